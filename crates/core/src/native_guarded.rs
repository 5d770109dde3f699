//! Changes of collections that carry a mark.

use bytes::Bytes;

use super::Families;

/// A change of a collection on condition that it carries a mark: a field, or a member, of this name.
///
/// A write to a key that is missing makes it, so a key that was lost, or closed by others, would come back with one entry in it. One that carries a
/// mark is told from it by the same op, as one step of the store's.
///
/// ```
/// use larder_core::native::{Collection, Guarded, GuardedAct, Native};
/// let act = GuardedAct::Remove { names: vec!["red".into()] };
/// let op = Native::Guarded(Guarded { of: Collection::Set, mark: "open".into(), act });
/// assert!(!op.is_read() && op.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// What the key holds.
    pub of: Collection,
    /// The field, or member, without which nothing is done.
    pub mark: Bytes,
    /// What is done.
    pub act: GuardedAct,
}

/// What a key holds.
///
/// ```
/// use larder_core::native::{Collection, Families};
/// assert_eq!(Collection::Set.family(), Families::SET);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collection {
    /// A hash: entries are fields and values.
    Hash,
    /// A set: entries are members, and their values are nothing.
    Set,
    /// A sorted set: entries are members, and their values are scores, as text.
    Sorted,
}

impl Collection {
    /// The family of its ops.
    ///
    /// ```
    /// # use larder_core::native::{Collection, Families};
    /// assert_eq!(Collection::Hash.family(), Families::HASH);
    /// ```
    pub fn family(self) -> Families {
        match self {
            Collection::Hash => Families::HASH,
            Collection::Set => Families::SET,
            Collection::Sorted => Families::SORTED,
        }
    }
}

/// What a [`Guarded`] op does.
///
/// ```
/// # use larder_core::native::GuardedAct;
/// let seal = GuardedAct::Turn { to: "closed".into(), entries: Vec::new() };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardedAct {
    /// Sets entries. A flag each: true if it is new.
    Put {
        /// Names and values.
        entries: Vec<(Bytes, Bytes)>,
    },
    /// Removes entries. A flag each: true if it was there.
    Remove {
        /// Their names.
        names: Vec<Bytes>,
    },
    /// Sets entries, and another mark in the place of the one that it carries. A flag for each entry.
    Turn {
        /// The other mark.
        to: Bytes,
        /// Names and values; may be empty.
        entries: Vec<(Bytes, Bytes)>,
    },
}
