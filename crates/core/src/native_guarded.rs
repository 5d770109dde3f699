//! Changes of collections, and of bits, that carry a mark.

use bytes::Bytes;

use super::{BitAct, BitField, Families};
use crate::error::{Error, ErrorKind, Result};

/// A change of a collection on condition that it carries a mark: a field, or a member, of this name.
///
/// A write to a key that is missing makes it, so a key that was lost, or closed by others, would come back with one entry in it; and nothing else tells
/// whose a collection is. One that carries a mark is told from all others by the same op, as one step of the store's.
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
        /// The other mark: the same would be taken away.
        to: Bytes,
        /// Names and values; may be empty.
        entries: Vec<(Bytes, Bytes)>,
    },
    /// Makes the collection with the mark alone (of value `0`, of score 0), if there is nothing under the key. A flag: true if it was made, false where one
    /// that carries the mark is there; [`Unmarked`](super::NativeReply::Unmarked) where another is.
    Make {
        /// Its life in ms, 1 at the least; none for ever. One that is there keeps its own.
        ttl_ms: Option<u64>,
    },
    /// Removes the key. A flag: true if it was removed, false where there is none; [`Unmarked`](super::NativeReply::Unmarked) where it carries none of the marks.
    Drop {
        /// Marks that do as well.
        or: Vec<Bytes>,
    },
}

impl Guarded {
    pub(super) fn check(&self, name: &str) -> Result<()> {
        let is_empty = match &self.act {
            GuardedAct::Put { entries } => entries.is_empty(),
            GuardedAct::Remove { names } => names.is_empty(),
            GuardedAct::Make { ttl_ms: Some(0) } => {
                return Err(Error::new(ErrorKind::BadInput, "a life is 0; the shortest is 1 ms"));
            }
            GuardedAct::Turn { to, .. } if *to == self.mark => {
                let detail = "a turn puts another mark in the place of the one that it asks for, and both are the same";
                return Err(Error::new(ErrorKind::BadInput, detail));
            }
            GuardedAct::Turn { .. } | GuardedAct::Make { .. } | GuardedAct::Drop { .. } => false,
        };
        if is_empty { Err(super::of_nothing(name)) } else { Ok(()) }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.act {
            GuardedAct::Put { entries } | GuardedAct::Turn { entries, .. } => {
                entries.iter().map(|(name, value)| name.len() + value.len()).sum()
            }
            GuardedAct::Remove { names } => names.iter().map(Bytes::len).sum(),
            GuardedAct::Make { .. } => self.mark.len(),
            GuardedAct::Drop { .. } => 0,
        }
    }
}

/// A change of a value of bits on condition that it begins with a mark.
///
/// Bits are written into any string, and into none. One that begins with these bytes is told from all others by the same op.
///
/// ```
/// use larder_core::native::{BitField, GuardedBits, GuardedBitsAct, Native};
/// let act = GuardedBitsAct::Incr { number: BitField::incr(63, 65, 1) };
/// let op = Native::GuardedBits(GuardedBits { mark: "a number".into(), act });
/// assert!(!op.is_read() && op.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardedBits {
    /// What it begins with; 1 byte at the least, 1,024 at the most.
    pub mark: Bytes,
    /// What is done.
    pub act: GuardedBitsAct,
}

/// What a [`GuardedBits`] op does.
///
/// ```
/// # use larder_core::native::{BitField, GuardedBitsAct};
/// let put = GuardedBitsAct::Put { numbers: vec![BitField::set(9, 64, 511)] };
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardedBitsAct {
    /// Writes numbers, as a whole. Answers [`Flag`](super::NativeReply::Flag), true.
    Put {
        /// Fields that are set.
        numbers: Vec<BitField>,
    },
    /// Adds to a number. Answers [`Numbers`](super::NativeReply::Numbers): the new one, or `None` where it would leave the range; nothing is written then.
    Incr {
        /// A field that is added to; within the first 1,024 bytes.
        number: BitField,
    },
    /// Removes the key. Answers [`Flag`](super::NativeReply::Flag): true if it was removed, false where there is none.
    Drop {
        /// Marks that do as well.
        or: Vec<Bytes>,
    },
}

impl GuardedBits {
    /// The longest mark, and the last byte of a number that is added to.
    pub const MARK_BYTES_MAX: usize = 1_024;

    pub(super) fn check(&self, name: &str) -> Result<()> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        let or: &[Bytes] = if let GuardedBitsAct::Drop { or } = &self.act { or } else { &[] };
        for mark in std::iter::once(&self.mark).chain(or) {
            if !(1..=GuardedBits::MARK_BYTES_MAX).contains(&mark.len()) {
                let (bytes, max) = (mark.len(), GuardedBits::MARK_BYTES_MAX);
                return bad(format!("a mark of bits has {bytes} bytes; it takes 1 to {max}"));
            }
        }
        match &self.act {
            GuardedBitsAct::Put { numbers } if numbers.is_empty() => Err(super::of_nothing(name)),
            GuardedBitsAct::Put { numbers } => numbers.iter().try_for_each(|number| match number.act {
                BitAct::Set(_) => number.check(),
                _ => bad(format!("a guarded put sets numbers; it takes no {:?}", number.act)),
            }),
            GuardedBitsAct::Incr { number } => {
                number.check()?;
                let (end, max) = ((number.offset + u64::from(number.width)).div_ceil(8), GuardedBits::MARK_BYTES_MAX);
                match number.act {
                    BitAct::Incr(_) if end <= max as u64 => Ok(()),
                    BitAct::Incr(_) => bad(format!("a number that is added to ends in byte {end}; the limit is {max}")),
                    _ => bad(format!("a guarded addition adds; it takes no {:?}", number.act)),
                }
            }
            GuardedBitsAct::Drop { .. } => Ok(()),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match &self.act {
            GuardedBitsAct::Put { numbers } => numbers.len() * 8,
            GuardedBitsAct::Incr { .. } => 8,
            GuardedBitsAct::Drop { .. } => 0,
        }
    }
}
