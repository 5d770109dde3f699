//! Native ops: what a store can do with a key beyond an item's bytes.
//!
//! They are optional. A [`Profile`](crate::Profile) says which [`Families`] a store has; an op of another one is answered
//! [`ErrorKind::Unsupported`], and nothing is sent. A structure that uses them records so with its data, and has a portable layout
//! for every other store.
//!
//! A native key holds no item: a get or a put of it is a [`ErrorKind::LayoutMismatch`], and so is a native op on a key of another type
//! of the server. Within a type nothing tells whose a key is: bits are written into any string, an item too, and members are added to any
//! set. So a structure keeps native data only under keys that bear the random generation of its manifest, which nobody else has by chance, and changes
//! them by [`Guarded`] and [`GuardedBits`], which look for a mark first. [`Native::Remove`] and [`Native::Expire`] take a key of any family. The key of a
//! native op is named, routed and prefixed as every other.
//!
//! **A key that is missing reads as an empty one**: hashes, sets and sorted sets without members do not exist, bits that were never
//! written are 0, and a write makes the key. Whoever must tell a lost key from an empty one keeps a mark in it that is never 0, and reads it
//! in the same op, or one op before in the same batch: ops on one key keep their order.
//!
//! ```
//! use larder_core::native::{BitField, Native};
//! use larder_core::{Key, Op};
//! // The mark at the start of a shard, and the seventh field of 9 bits behind it.
//! let bits = vec![BitField::get(8, 0), BitField::get(9, 8 + 7 * 9)];
//! let op = Op::native(Key::new("shard")?, Native::Bits(bits));
//! assert!(op.is_read());
//! # Ok::<(), larder_core::Error>(())
//! ```

use std::cmp::Ordering;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};

#[path = "native_guarded.rs"]
mod guarded;

pub use guarded::{Collection, Guarded, GuardedAct, GuardedBits, GuardedBitsAct};

bitflags::bitflags! {
    /// The families of native ops.
    ///
    /// ```
    /// use larder_core::native::{Families, Native};
    /// assert_eq!(Native::MemoryBytes.family(), Families::LOOK);
    /// assert_eq!(larder_core::Profile::unlimited("example").natives, Families::empty());
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Families: u8 {
        /// Hashes: fields with values under one key.
        const HASH = 1;
        /// Sets of members.
        const SET = 2;
        /// Sets of members in the order of their scores.
        const SORTED = 4;
        /// Unsigned numbers of any width at any bit of a value.
        const BITS = 8;
        /// Streams of entries.
        const STREAM = 16;
        /// How a key is kept, and what it takes.
        const LOOK = 32;
        /// Removing keys of whatever family, and giving them lives.
        const KEYS = 64;
    }
}

/// A native op: what to do with the key. See the [module](self) for what all have in common.
///
/// Each is one command to one key, applied as a whole or not at all. An op with an empty list of fields, members or entries is
/// [`ErrorKind::BadInput`].
///
/// ```
/// use larder_core::native::Native;
/// let add = Native::SetAdd { members: vec!["red".into()] };
/// assert!(!add.is_read());
/// assert_eq!(add.name(), "set add");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Native {
    /// The values of fields of a hash. Answers [`Values`](NativeReply::Values).
    HashGet {
        /// Which fields.
        fields: Vec<Bytes>,
    },
    /// Sets fields of a hash. Answers [`Count`](NativeReply::Count): how many are new.
    HashSet {
        /// Fields and their values.
        entries: Vec<(Bytes, Bytes)>,
    },
    /// Sets a field of a hash unless there is one. Answers [`Flag`](NativeReply::Flag): true if it was set.
    HashAdd {
        /// The field.
        field: Bytes,
        /// Its value.
        value: Bytes,
    },
    /// Removes fields of a hash. Answers [`Count`](NativeReply::Count): how many there were.
    HashRemove {
        /// Which fields.
        fields: Vec<Bytes>,
    },
    /// Adds to a field of a hash, a signed number of 64 bits, 0 where there is none. Answers [`Number`](NativeReply::Number); leaving
    /// the range is [`ErrorKind::Overflow`], a value that is no number [`ErrorKind::BadInput`].
    HashIncr {
        /// The field.
        field: Bytes,
        /// By how much.
        by: i64,
    },
    /// All fields of a hash and their values, in no order. Answers [`Pairs`](NativeReply::Pairs).
    HashAll,
    /// How many fields a hash has. Answers [`Count`](NativeReply::Count).
    HashLen,
    /// A page of a hash. Answers [`Page`](NativeReply::Page) of fields and values in turn.
    HashScan(Scan),
    /// Adds members to a set. Answers [`Count`](NativeReply::Count): how many are new. To learn which, send one op a member, in one batch.
    SetAdd {
        /// The members.
        members: Vec<Bytes>,
    },
    /// Removes members of a set. Answers [`Count`](NativeReply::Count): how many there were.
    SetRemove {
        /// The members.
        members: Vec<Bytes>,
    },
    /// Which of these are members of a set. Answers [`Flags`](NativeReply::Flags).
    SetHas {
        /// Those to look for.
        members: Vec<Bytes>,
    },
    /// All members of a set, in no order. Answers [`Members`](NativeReply::Members).
    SetAll,
    /// How many members a set has. Answers [`Count`](NativeReply::Count).
    SetLen,
    /// A page of a set. Answers [`Page`](NativeReply::Page).
    SetScan(Scan),
    /// Adds members to a sorted set, or changes their scores. Answers [`Count`](NativeReply::Count): how many are new or changed.
    SortedAdd {
        /// Members and their scores.
        entries: Vec<(Bytes, Score)>,
        /// Which of them are written.
        only: Only,
    },
    /// Adds to the score of a member of a sorted set, 0 where there is none. Answers [`Scores`](NativeReply::Scores) with the new one.
    SortedIncr {
        /// The member.
        member: Bytes,
        /// By how much.
        by: Score,
    },
    /// Removes members of a sorted set. Answers [`Count`](NativeReply::Count): how many there were.
    SortedRemove {
        /// The members.
        members: Vec<Bytes>,
    },
    /// Removes the members of these ranks. Answers [`Count`](NativeReply::Count): how many there were.
    SortedTrim(Ranks),
    /// The members of these ranks with their scores, in the order asked for. Answers [`Scored`](NativeReply::Scored).
    SortedRange(Ranks),
    /// The scores of members of a sorted set. Answers [`Scores`](NativeReply::Scores).
    SortedScores {
        /// The members.
        members: Vec<Bytes>,
    },
    /// The rank of a member of a sorted set. Answers [`Rank`](NativeReply::Rank).
    SortedRank {
        /// The member.
        member: Bytes,
        /// True to count from the highest score.
        from_top: bool,
    },
    /// How many members a sorted set has. Answers [`Count`](NativeReply::Count).
    SortedLen,
    /// Changes a collection that carries a mark, and no other. Answers [`Flags`](NativeReply::Flags), one for each change, or
    /// [`Unmarked`](NativeReply::Unmarked): nothing was written then, and no key made.
    Guarded(Guarded),
    /// Changes a value of bits that begins with a mark, and no other. Answers what its act says, or [`Unmarked`](NativeReply::Unmarked): nothing was
    /// written then, and no key made.
    GuardedBits(GuardedBits),
    /// Reads and writes numbers in the bits of a value, in order and as a whole. Answers [`Numbers`](NativeReply::Numbers), one each.
    Bits(Vec<BitField>),
    /// Makes the value of bits if there is none. Answers [`Flag`](NativeReply::Flag): true if it was made.
    BitsMake {
        /// The bytes.
        value: Bytes,
    },
    /// Bytes of a value of bits, from `offset_bytes` on, as far as it goes. Answers [`Bytes`](NativeReply::Bytes); empty where there are none.
    BitsRead {
        /// From which byte.
        offset_bytes: u64,
        /// How many bytes at the most.
        len_bytes: u64,
    },
    /// How many bytes a value of bits has. Answers [`Count`](NativeReply::Count); 0 where there is none.
    BitsLen,
    /// Appends an entry to a stream. Answers [`Id`](NativeReply::Id).
    StreamAppend {
        /// Fields and values.
        fields: Vec<(Bytes, Bytes)>,
        /// Forgets the oldest entries over about this many: stores may keep some more.
        keep: Option<u64>,
    },
    /// Entries of a stream between two ids, both included, oldest first. Answers [`Entries`](NativeReply::Entries).
    StreamRange {
        /// The first.
        from: StreamId,
        /// The last.
        to: StreamId,
        /// How many at the most.
        limit: u64,
    },
    /// How many entries a stream has. Answers [`Count`](NativeReply::Count).
    StreamLen,
    /// How the store keeps the key, in its own words: `listpack`, `intset`, … Answers [`Text`](NativeReply::Text).
    Encoding,
    /// What the key takes of the store's memory, with all that is kept beside it. Answers [`Size`](NativeReply::Size).
    MemoryBytes,
    /// Removes the key, whatever it holds. Answers [`Deleted`](crate::Reply::Deleted) or [`Miss`](crate::Reply::Miss).
    Remove,
    /// Gives the key a life, whatever it holds. Answers [`Touched`](crate::Reply::Touched) or [`Miss`](crate::Reply::Miss).
    Expire {
        /// How long, from now; 1 ms at the least.
        ttl_ms: u64,
    },
}

/// Where a scan goes on, and how much it looks at.
///
/// ```
/// use larder_core::native::Scan;
/// assert_eq!(Scan::start(100).cursor, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// 0 to begin, then what the last page said.
    pub cursor: u64,
    /// About how many to look at. What is there from the beginning to the end of a scan is told at least once, maybe more often.
    pub count: u32,
}

impl Scan {
    /// The beginning of a scan.
    ///
    /// ```
    /// # use larder_core::native::Scan;
    /// assert_eq!(Scan::start(10), Scan { cursor: 0, count: 10 });
    /// ```
    pub fn start(count: u32) -> Scan {
        Scan { cursor: 0, count }
    }
}

bitflags::bitflags! {
    /// Which entries [`Native::SortedAdd`] writes; all, if empty.
    ///
    /// [`NEW`](Only::NEW) goes with none of the others, and [`GREATER`](Only::GREATER) not with [`LESS`](Only::LESS).
    ///
    /// ```
    /// use larder_core::native::Only;
    /// assert!((Only::KNOWN | Only::GREATER).check().is_ok());
    /// assert!((Only::NEW | Only::GREATER).check().is_err());
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Only: u8 {
        /// Members that are not there yet.
        const NEW = 1;
        /// Members that are there: the op makes neither a member nor the key.
        const KNOWN = 2;
        /// Members that are there only if the score grows; others are added, unless `KNOWN` says otherwise.
        const GREATER = 4;
        /// The same where the score falls.
        const LESS = 8;
    }
}

impl Only {
    /// Checks that the conditions can hold together.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] where they cannot.
    ///
    /// ```
    /// assert!(larder_core::native::Only::empty().check().is_ok());
    /// ```
    pub fn check(self) -> Result<()> {
        let is_mixed = self.contains(Only::NEW) && self != Only::NEW;
        if is_mixed || self.contains(Only::GREATER | Only::LESS) {
            return Err(Error::new(ErrorKind::BadInput, format!("conditions that exclude each other: {self:?}")));
        }
        Ok(())
    }
}

/// Ranks of a sorted set, both ends included; negative ones count from the end: -1 is the last.
///
/// ```
/// use larder_core::native::Ranks;
/// assert_eq!(Ranks::top(10), Ranks { first: 0, last: 9, from_top: true });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// The first.
    pub first: i64,
    /// The last.
    pub last: i64,
    /// True to count from the highest score. [`Native::SortedTrim`] takes only false.
    pub from_top: bool,
}

impl Ranks {
    /// The `n` highest scores, the highest first.
    ///
    /// ```
    /// # use larder_core::native::Ranks;
    /// assert_eq!(Ranks::top(3), Ranks { first: 0, last: 2, from_top: true });
    /// assert_eq!(Ranks::top(0), Ranks { first: 1, last: 0, from_top: true }); // none: -1 is the last of all
    /// ```
    pub fn top(n: u32) -> Ranks {
        match n {
            0 => Ranks { first: 1, last: 0, from_top: true },
            n => Ranks { first: 0, last: i64::from(n) - 1, from_top: true },
        }
    }

    /// The `n` lowest scores, the lowest first.
    ///
    /// ```
    /// assert!(!larder_core::native::Ranks::bottom(3).from_top);
    /// ```
    pub fn bottom(n: u32) -> Ranks {
        Ranks { from_top: false, ..Ranks::top(n) }
    }
}

/// The score of a member of a sorted set: a number of 64 bits with a fraction, never "not a number". Whole numbers to 2^53 are exact.
///
/// ```
/// use larder_core::native::Score;
/// assert!(Score::new(1.5)? < Score::new(f64::INFINITY)?);
/// assert_eq!(Score::new(-0.0)?, Score::from(0));
/// assert!(Score::new(f64::NAN).is_err());
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Score(f64);

impl Score {
    /// A score.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for what is not a number.
    ///
    /// ```
    /// assert_eq!(larder_core::native::Score::new(2.0)?.get(), 2.0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(score: f64) -> Result<Score> {
        if score.is_nan() {
            return Err(Error::new(ErrorKind::BadInput, "a score is not a number"));
        }
        // One zero only, so that equal scores have equal bits.
        Ok(Score(score + 0.0))
    }

    /// The number.
    ///
    /// ```
    /// assert_eq!(larder_core::native::Score::from(7).get(), 7.0);
    /// ```
    pub fn get(self) -> f64 {
        self.0
    }
}

impl From<i32> for Score {
    fn from(score: i32) -> Score {
        Score(f64::from(score))
    }
}

impl From<u32> for Score {
    fn from(score: u32) -> Score {
        Score(f64::from(score))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// One step of [`Native::Bits`]: an unsigned number of `width` bits, the highest bit first, that begins at bit `offset`, where bit 0 is
/// the highest of the first byte.
///
/// ```
/// use larder_core::native::BitField;
/// assert!(BitField::set(9, 8, 511).check().is_ok());
/// assert!(BitField::set(9, 8, 512).check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// 1 to [`BitField::WIDTH_MAX`] bits.
    pub width: u8,
    /// The first bit; the last one is before [`BitField::OFFSET_END`].
    pub offset: u64,
    /// What to do.
    pub act: BitAct,
}

/// What a [`BitField`] does with its bits.
///
/// ```
/// use larder_core::native::{BitAct, BitField};
/// assert_eq!(BitField::get(8, 0).act, BitAct::Get);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitAct {
    /// Reads them: answers the number.
    Get,
    /// Writes them: answers the number that was there before.
    Set(u64),
    /// Adds to them: answers the new number, or `None` where it would leave the range: nothing is written then.
    Incr(i64),
}

impl BitField {
    /// The widest number.
    pub const WIDTH_MAX: u8 = 63;
    /// Where the bits of the largest value end: 512 MiB of them.
    pub const OFFSET_END: u64 = 1 << 32;

    /// Reads.
    ///
    /// ```
    /// assert!(larder_core::native::BitField::get(63, 0).check().is_ok());
    /// ```
    pub fn get(width: u8, offset: u64) -> BitField {
        BitField { width, offset, act: BitAct::Get }
    }

    /// Writes.
    ///
    /// ```
    /// assert!(larder_core::native::BitField::set(1, 0, 2).check().is_err());
    /// ```
    pub fn set(width: u8, offset: u64, value: u64) -> BitField {
        BitField { width, offset, act: BitAct::Set(value) }
    }

    /// Adds.
    ///
    /// ```
    /// assert!(larder_core::native::BitField::incr(64, 0, 1).check().is_err());
    /// ```
    pub fn incr(width: u8, offset: u64, by: i64) -> BitField {
        BitField { width, offset, act: BitAct::Incr(by) }
    }

    /// Checks width, place and value.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`], with the limit and the value.
    ///
    /// ```
    /// let error = larder_core::native::BitField::get(0, 0).check().unwrap_err();
    /// assert!(error.to_string().contains("1 to 63"));
    /// ```
    pub fn check(self) -> Result<()> {
        let BitField { width, offset, act } = self;
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        if !(1..=BitField::WIDTH_MAX).contains(&width) {
            return bad(format!("a bit field has {width} bits; it takes 1 to {}", BitField::WIDTH_MAX));
        }
        if offset > BitField::OFFSET_END - u64::from(width) {
            let end = BitField::OFFSET_END;
            return bad(format!("a bit field of {width} bits begins at bit {offset}; it must end before bit {end}"));
        }
        match act {
            BitAct::Set(value) if value >> width != 0 => {
                bad(format!("a bit field of {width} bits takes at most {}, not {value}", (1u64 << width) - 1))
            }
            _ => Ok(()),
        }
    }
}

/// The id of an entry of a stream: the store's clock in ms, and a number within it.
///
/// ```
/// use larder_core::native::StreamId;
/// assert!(StreamId::MIN < StreamId { ms: 1, seq: 0 } && StreamId { ms: 1, seq: 0 } < StreamId::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Milliseconds since 1970 by the store's clock; never smaller than the last entry's.
    pub ms: u64,
    /// Which of that millisecond.
    pub seq: u64,
}

impl StreamId {
    /// Before every entry.
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    /// After every entry.
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };
}

/// An entry of a stream.
///
/// ```
/// use larder_core::native::{StreamEntry, StreamId};
/// let entry = StreamEntry { id: StreamId::MIN, fields: vec![("k".into(), "v".into())] };
/// assert_eq!(entry.fields.len(), 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEntry {
    /// Its id.
    pub id: StreamId,
    /// Its fields and values.
    pub fields: Vec<(Bytes, Bytes)>,
}

/// How a native op ended. Each [`Native`] says which it answers.
///
/// ```
/// use larder_core::native::NativeReply;
/// assert_eq!(NativeReply::Values(vec![Some("four".into()), None]).bytes(), 4);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NativeReply {
    /// How many.
    Count(u64),
    /// Whether it was done.
    Flag(bool),
    /// A signed number.
    Number(i64),
    /// One value each, in the order asked for; `None` where there is none.
    Values(Vec<Option<Bytes>>),
    /// One answer each, in the order asked for.
    Flags(Vec<bool>),
    /// Fields and values.
    Pairs(Vec<(Bytes, Bytes)>),
    /// Members.
    Members(Vec<Bytes>),
    /// A page of a scan.
    Page {
        /// Where the next page begins; `None` after the last one. A page may be empty and yet not the last.
        next: Option<u64>,
        /// What is on it.
        found: Vec<Bytes>,
    },
    /// One score each, in the order asked for; `None` where there is no such member.
    Scores(Vec<Option<Score>>),
    /// Members and their scores.
    Scored(Vec<(Bytes, Score)>),
    /// A rank, 0 first; `None` where there is no such member.
    Rank(Option<u64>),
    /// One number each, in the order asked for; `None` where an addition would have left the range.
    Numbers(Vec<Option<u64>>),
    /// Bytes.
    Bytes(Bytes),
    /// The id of a new entry.
    Id(StreamId),
    /// Entries.
    Entries(Vec<StreamEntry>),
    /// Text in the store's own words; `None` where there is no such key.
    Text(Option<String>),
    /// A size in bytes; `None` where there is no such key.
    Size(Option<u64>),
    /// There is no such key, or it does not carry the mark: it was lost, or is another program's.
    Unmarked,
}

impl Native {
    /// Which family it belongs to.
    ///
    /// ```
    /// use larder_core::native::{Families, Native};
    /// assert_eq!(Native::HashAll.family(), Families::HASH);
    /// ```
    pub fn family(&self) -> Families {
        use Native::*;
        match self {
            HashGet { .. }
            | HashSet { .. }
            | HashAdd { .. }
            | HashRemove { .. }
            | HashIncr { .. }
            | HashAll
            | HashLen
            | HashScan(_) => Families::HASH,
            SetAdd { .. } | SetRemove { .. } | SetHas { .. } | SetAll | SetLen | SetScan(_) => Families::SET,
            SortedAdd { .. }
            | SortedIncr { .. }
            | SortedRemove { .. }
            | SortedTrim(_)
            | SortedRange(_)
            | SortedScores { .. }
            | SortedRank { .. }
            | SortedLen => Families::SORTED,
            Guarded(guarded) => guarded.of.family(),
            Bits(_) | GuardedBits(_) | BitsMake { .. } | BitsRead { .. } | BitsLen => Families::BITS,
            StreamAppend { .. } | StreamRange { .. } | StreamLen => Families::STREAM,
            Encoding | MemoryBytes => Families::LOOK,
            Remove | Expire { .. } => Families::KEYS,
        }
    }

    /// True if it changes nothing.
    ///
    /// ```
    /// use larder_core::native::{BitField, Native};
    /// assert!(Native::Bits(vec![BitField::get(1, 0)]).is_read());
    /// assert!(!Native::Bits(vec![BitField::get(1, 0), BitField::set(1, 0, 1)]).is_read());
    /// ```
    pub fn is_read(&self) -> bool {
        use Native::*;
        match self {
            HashGet { .. } | HashAll | HashLen | HashScan(_) => true,
            SetHas { .. } | SetAll | SetLen | SetScan(_) => true,
            SortedRange(_) | SortedScores { .. } | SortedRank { .. } | SortedLen => true,
            BitsRead { .. } | BitsLen | StreamRange { .. } | StreamLen | Encoding | MemoryBytes => true,
            Bits(fields) => fields.iter().all(|field| field.act == BitAct::Get),
            HashSet { .. } | HashAdd { .. } | HashRemove { .. } | HashIncr { .. } => false,
            SetAdd { .. } | SetRemove { .. } | StreamAppend { .. } | BitsMake { .. } => false,
            SortedAdd { .. } | SortedIncr { .. } | SortedRemove { .. } | SortedTrim(_) => false,
            Guarded(_) | GuardedBits(_) | Remove | Expire { .. } => false,
        }
    }

    /// Its name, for errors and metrics.
    ///
    /// ```
    /// assert_eq!(larder_core::native::Native::SetAll.name(), "set all");
    /// ```
    pub fn name(&self) -> &'static str {
        use Native::*;
        match self {
            HashGet { .. } => "hash get",
            HashSet { .. } => "hash set",
            HashAdd { .. } => "hash add",
            HashRemove { .. } => "hash remove",
            HashIncr { .. } => "hash incr",
            HashAll => "hash all",
            HashLen => "hash len",
            HashScan(_) => "hash scan",
            SetAdd { .. } => "set add",
            SetRemove { .. } => "set remove",
            SetHas { .. } => "set has",
            SetAll => "set all",
            SetLen => "set len",
            SetScan(_) => "set scan",
            SortedAdd { .. } => "sorted add",
            SortedIncr { .. } => "sorted incr",
            SortedRemove { .. } => "sorted remove",
            SortedTrim(_) => "sorted trim",
            SortedRange(_) => "sorted range",
            SortedScores { .. } => "sorted scores",
            SortedRank { .. } => "sorted rank",
            SortedLen => "sorted len",
            Guarded(_) => "guarded change",
            GuardedBits(_) => "guarded bits",
            Bits(_) => "bits",
            BitsMake { .. } => "bits make",
            BitsRead { .. } => "bits read",
            BitsLen => "bits len",
            StreamAppend { .. } => "stream append",
            StreamRange { .. } => "stream range",
            StreamLen => "stream len",
            Encoding => "encoding",
            MemoryBytes => "memory bytes",
            Remove => "remove",
            Expire { .. } => "expire",
        }
    }

    /// Checks what every store would refuse: empty lists, bit fields out of range, conditions that exclude each other.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`]; nothing must be sent.
    ///
    /// ```
    /// assert!(larder_core::native::Native::SetAdd { members: Vec::new() }.check().is_err());
    /// ```
    pub fn check(&self) -> Result<()> {
        use Native::*;
        let is_empty = match self {
            HashGet { fields } | HashRemove { fields } => fields.is_empty(),
            HashSet { entries } => entries.is_empty(),
            SetAdd { members } | SetRemove { members } | SetHas { members } => members.is_empty(),
            SortedRemove { members } | SortedScores { members } => members.is_empty(),
            SortedAdd { entries, only } => {
                only.check()?;
                entries.is_empty()
            }
            Guarded(guarded) => return guarded.check(self.name()),
            GuardedBits(guarded) => return guarded.check(self.name()),
            StreamAppend { fields, .. } => fields.is_empty(),
            Bits(fields) => {
                fields.iter().try_for_each(|field| field.check())?;
                fields.is_empty()
            }
            SortedTrim(ranks) if ranks.from_top => {
                return Err(Error::new(ErrorKind::BadInput, "a trim counts ranks from the lowest score"));
            }
            Expire { ttl_ms: 0 } => {
                return Err(Error::new(ErrorKind::BadInput, "a life is 0; the shortest is 1 ms"));
            }
            HashScan(Scan { count: 0, .. }) | SetScan(Scan { count: 0, .. }) => {
                return Err(Error::new(ErrorKind::BadInput, "a scan looks at 0; it takes at least 1"));
            }
            _ => false,
        };
        if is_empty { Err(of_nothing(self.name())) } else { Ok(()) }
    }

    /// The bytes of fields, values and members that it sends, without what a protocol adds.
    ///
    /// ```
    /// use larder_core::native::Native;
    /// assert_eq!(Native::SetAdd { members: vec!["red".into(), "blue".into()] }.bytes(), 7);
    /// ```
    pub fn bytes(&self) -> usize {
        use Native::*;
        let pairs = |pairs: &[(Bytes, Bytes)]| pairs.iter().map(|(field, value)| field.len() + value.len()).sum();
        let all = |all: &[Bytes]| all.iter().map(Bytes::len).sum();
        match self {
            HashGet { fields } | HashRemove { fields } => all(fields),
            HashSet { entries } => pairs(entries),
            HashAdd { field, value } => field.len() + value.len(),
            HashIncr { field, .. } => field.len() + 8,
            SetAdd { members } | SetRemove { members } | SetHas { members } => all(members),
            SortedRemove { members } | SortedScores { members } => all(members),
            SortedAdd { entries, .. } => entries.iter().map(|(member, _)| member.len() + 8).sum(),
            SortedIncr { member, .. } => member.len() + 8,
            SortedRank { member, .. } => member.len(),
            BitsMake { value } => value.len(),
            Bits(fields) => fields.len() * 8,
            StreamAppend { fields, .. } => pairs(fields),
            Guarded(guarded) => guarded.bytes(),
            GuardedBits(guarded) => guarded.bytes(),
            _ => 0,
        }
    }
}

fn of_nothing(name: &str) -> Error {
    Error::new(ErrorKind::BadInput, format!("{name} of nothing; it takes at least 1"))
}

impl NativeReply {
    /// The bytes of values and members that came back, without what a protocol adds.
    ///
    /// ```
    /// use larder_core::native::NativeReply;
    /// assert_eq!(NativeReply::Members(vec!["red".into()]).bytes(), 3);
    /// ```
    pub fn bytes(&self) -> usize {
        use NativeReply::*;
        let pairs =
            |pairs: &[(bytes::Bytes, bytes::Bytes)]| pairs.iter().map(|(field, value)| field.len() + value.len()).sum();
        match self {
            Values(values) => values.iter().flatten().map(bytes::Bytes::len).sum(),
            Pairs(found) => pairs(found),
            Members(found) | Page { found, .. } => found.iter().map(bytes::Bytes::len).sum(),
            Scored(found) => found.iter().map(|(member, _)| member.len() + 8).sum(),
            Scores(found) => found.len() * 8,
            Numbers(numbers) => numbers.len() * 8,
            Bytes(bytes) => bytes.len(),
            Entries(entries) => entries.iter().map(|entry| pairs(&entry.fields)).sum(),
            Text(text) => text.as_ref().map_or(0, String::len),
            Unmarked => 0,
            Count(_) | Flag(_) | Number(_) | Flags(_) | Rank(_) | Id(_) | Size(_) => 0,
        }
    }
}

#[cfg(test)]
#[path = "native_tests.rs"]
mod tests;
