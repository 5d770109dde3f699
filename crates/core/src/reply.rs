//! Replies: outcomes as data. An outcome is never an error, and costs no allocation of its own.

use std::time::Duration;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::error::Result;
use crate::native::NativeReply;
use crate::op::Cas;

/// How one op ended, where the store could say.
///
/// ```
/// use larder_core::Reply;
/// let say = |reply: &Reply| match reply {
///     Reply::Item(item) => format!("{} bytes", item.value.len()),
///     Reply::Miss => "nothing there".to_owned(),
///     other => format!("{other:?}"),
/// };
/// assert_eq!(say(&Reply::Miss), "nothing there");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A get found the item.
    Item(Item),
    /// There is no item.
    Miss,
    /// The put took effect.
    Stored,
    /// The put's condition did not hold: add found an item; replace, append or prepend found none (or no room in it).
    NotStored,
    /// The item is not the one the token was read from, or the token's session has ended.
    Exists,
    /// The item is gone.
    Deleted,
    /// The item has its new life.
    Touched,
    /// The number after arithmetic.
    Number(u64),
    /// A watched item is another, or may be.
    Changed,
    /// The deadline of a watch came, and the item was still the same.
    Unchanged,
    /// What a native op brought.
    Native(Box<NativeReply>),
}

/// An item as a get brought it. Parts that were not wanted are empty or `None`.
///
/// ```
/// let item = larder_core::Item { value: "v".into(), ..Default::default() };
/// assert_eq!(item.cas, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Item {
    /// The value.
    pub value: Bytes,
    /// The flags it was stored with.
    pub flags: u32,
    /// Its cas token, where wanted and the store has them.
    pub cas: Option<Cas>,
    /// Its remaining life.
    pub ttl: Remaining,
}

/// What is left of an item's life.
///
/// ```
/// use larder_core::Remaining;
/// assert_ne!(Remaining::default(), Remaining::Never);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Remaining {
    /// Not asked for, or the store cannot tell.
    #[default]
    Unknown,
    /// It does not expire.
    Never,
    /// This much, by the store's clock; memcached counts whole seconds.
    For(Duration),
}

/// One result an op, in the order of the batch.
///
/// ```
/// use larder_core::{Replies, Reply};
/// let replies = Replies::from_iter([Ok(Reply::Stored), Ok(Reply::Miss)]);
/// assert_eq!(replies.len(), 2);
/// ```
pub type Replies = SmallVec<[Result<Reply>; 1]>;

impl From<NativeReply> for Reply {
    fn from(reply: NativeReply) -> Reply {
        Reply::Native(Box::new(reply))
    }
}

impl Reply {
    /// The bytes of values and members that came back, without what a protocol adds.
    ///
    /// ```
    /// use larder_core::{Item, Reply};
    /// assert_eq!(Reply::Item(Item { value: "four".into(), ..Item::default() }).value_bytes(), 4);
    /// ```
    pub fn value_bytes(&self) -> usize {
        match self {
            Reply::Item(item) => item.value.len(),
            Reply::Native(native) => native.bytes(),
            _ => 0,
        }
    }

    /// What a native op brought.
    ///
    /// ```
    /// use larder_core::{Reply, native::NativeReply};
    /// assert_eq!(Reply::from(NativeReply::Count(3)).into_native(), Some(NativeReply::Count(3)));
    /// assert_eq!(Reply::Miss.into_native(), None);
    /// ```
    pub fn into_native(self) -> Option<NativeReply> {
        match self {
            Reply::Native(native) => Some(*native),
            _ => None,
        }
    }

    /// The item, if a get found one.
    ///
    /// ```
    /// use larder_core::{Item, Reply};
    /// assert_eq!(Reply::Miss.into_item(), None);
    /// assert_eq!(Reply::Item(Item::default()).into_item(), Some(Item::default()));
    /// ```
    pub fn into_item(self) -> Option<Item> {
        match self {
            Reply::Item(item) => Some(item),
            _ => None,
        }
    }
}
