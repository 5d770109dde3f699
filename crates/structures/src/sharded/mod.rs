//! Sharded collections: a hash, a set, or a sorted set, of any size, in many small shards whose number can be changed while it is used.
//!
//! A server keeps small collections packed, and large ones in tables that take several times the memory; and a store of plain items takes no
//! collection that is larger than an item. So elements are spread over shards of some 64: [`ShardedHash`] is values by fields, [`ShardedSet`] is members,
//! [`ShardedSortedSet`] is members by scores. Any operation goes to the shards it is about, all at once.
//!
//! Source: J. Carlson, "Redis in Action", 2013, section 9.2 (sharded hashes and sets: dense numbers by range, others by hash; of sorted
//! sets the highest and the lowest kept apart). Added to it: which element stands
//! where is recorded with the data, and not computed from a number that every program must be told; the number of shards changes online; a
//! shard that was lost is told from an empty one.
//!
//! # How it works
//! A small item, the map, says how many shards there are and what their keys are made of. Elements stand in the shard of their hash (XXH3-64), whose
//! range is cut evenly; or, with [`dense`](ShardedOptions::dense), whole numbers stand in ranges of so many.
//! A shard carries a mark, which is looked at by the very op that writes to it: it is live, or sealed, or was never filled.
//!
//! | layout | where | a shard | a change |
//! |---|---|---|---|
//! | native | Redis, Valkey | a hash or a set of the server's own | one op, which the shard refuses where it is not live |
//! | portable | every other store with conditional writes | an item, its elements in order | a read and a conditional write |
//!
//! # Resharding
//! [`reshard`](ShardedHash::reshard) makes other shards, empty, and puts their map in force. A new shard is filled once: what its elements come from is sealed, which
//! makes it refuse every write and say the same for ever, and then the new one is written on condition that it is unfilled. Whoever meets an unfilled shard can do that, so nobody ever
//! waits for the one that reshards, and it may die at any step: the next one goes on. A writer whose map is old is refused by the shard itself, and reads the map. A
//! reader that meets an unfilled shard reads what it comes from. Every element is moved once, of some hundred at a time. `docs/design.md` says why it is so.
//!
//! Where shards are items, it is looked first whether all that stands in them fits into the new ones, and else refused ([`Full`](larder_core::ErrorKind::Full)). A new shard that
//! several come into must have an eighth of an item left, since the old ones may grow until they are sealed. Should they grow by more than that, such a shard stays unfilled: it
//! is read as before, but a write to it and another resharding are `Full`, until the store takes larger items.
//!
//! # The sorted set
//! A question about all scores would have to be put to all shards. So the members of the highest and of the lowest scores are kept apart as well, as one item, the ends:
//! [`top`](ShardedSortedSet::top) and [`bottom`](ShardedSortedSet::bottom) are one read of it. Twice as many as can be read stand there, so that it outlives removals; when it falls short it is
//! *filled*: the shards are read, 128 at a time, while others go on.
//!
//! A change that concerns an end is written to the shard, marked as pending, and then to the ends; then it is acknowledged. Between the two it has happened for nobody: whoever meets a pending
//! member in a shard looks whether the ends agree with it, and else brings that about himself, before he tells its score. So the ends show every change that was acknowledged, and a
//! writer that dies between the two writes is found by whoever reads the member, or all. Ends that are lost are made again from the shards, which have all there is. A change
//! between the ends is a write of the shard alone: the shard says if the ends were filled since its writer has looked at them. The argument is in `keeper.rs`; `docs/design.md` says what
//! else was thought of.
//!
//! Its shards are items on every store, since they carry more than a native collection can. Those who change one end at once wait for each other: some hundreds to thousands of such calls a
//! second, by the store's round trip, each of as many members as you like; changes between the ends do not.
//!
//! # Guarantees, a store
//! | | memory | memcached | Redis, Valkey |
//! |---|---|---|---|
//! | a change that was acknowledged | is seen by every read that begins later | the same, until the server evicts or ends | the same |
//! | "new", "was there" | told of exactly one of those who add, or remove, at once | the same | the same |
//! | a change whose reply is lost | cannot be | settled by looking, or `Unknown` | `Unknown`, and never sent again |
//! | changes of one call | each shard by itself | the same | the same |
//! | the ends of a sorted set | show every change that was acknowledged before they are read | the same | the same |
//! | the ends lost | only where the store is built to evict: made again from the shards by whoever needs them | the same | the same |
//! | a lost shard, or map (looked at once a minute) | only where the store is built to evict | [`Lost`](larder_core::ErrorKind::Lost), never an empty one | the same |
//! | while it is resharded | all of the above | the same | the same |
//! | a shard that is older than it was (a server restored from a copy) | cannot be | cannot be | not noticed; of the map it is [`RolledBack`](larder_core::ErrorKind::RolledBack), once a handle that knew the newer, or another one that this cannot have come from by so few writes; of the ends it is mended when a handle, or a shard that is looked at, has seen newer ones |
//!
//! What reads all shards (`len`, `entries`, `members`) is no snapshot: each is read at one moment. An element that is neither added nor removed meanwhile is there once. What counts a sorted
//! set (`len`, `is_empty`, `stat`) reads no members: a change that has happened for nobody yet counts.
//!
//! # Round trips
//! | of an opened handle | portable | native |
//! |---|---|---|
//! | get, has, of one or many | 1 | 1 |
//! | set, add, remove, of one or many | 2 | 1 |
//! | len | 1 for 1,024 shards | 1 for 1,024 shards |
//! | entries, members | 1 for 128 shards | 1 for 128 shards |
//! | top, bottom | 1 | |
//! | score, of one or many | 1; 2 for one at an end that others changed | |
//! | set, add, remove of scored members | 2; 3 where an end is changed, and 3 more each time that others change it meanwhile | |
//! | filling the ends | 3 for every 128 shards, and 3; where they were lost, or went back, and 6 with the read that found it | |
//! | open | 2 | 2 |
//! | open_or_create | 2 if it is there, 4 to make it | the same |
//! | while it is resharded | a write to a shard that nothing came to yet: 5 more; a read: 1 more | 4 more; 1 more |
//! | by a handle whose map is old | 2 more, once | a read: 2 more; a write: 3 more, once |
//!
//! One more for each further 1,024 shards that one call touches (256 of a read where shards are items).
//!
//! # Memory and limits
//! Servers pack a hash of up to 512 fields, each and its value of up to 64 bytes (`hash-max-listpack-entries`, `-value`), a set of up to 512 integers, and from Redis 7.2 a set of up to
//! 128 others.
//! A shard takes one more entry, for its mark. [`stat`](ShardedHash::stat) says how a shard is really kept, and when the server's limits have it unpacked.
//! There are at most 65,535 shards. A name has at most 65,535 bytes; a value, and where shards are items a whole shard, what an item of the store takes under the longest key that a shard can have.

#[cfg(test)]
mod back_tests;
mod core;
mod dense;
mod ends;
mod fill;
mod filler;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod hash;
mod keeper;
pub(crate) mod layout;
#[cfg(test)]
mod lives_tests;
mod make;
pub(crate) mod portable;
mod read;
mod reshard;
mod set;
mod sorted_set;
mod stat;
mod write;

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Result, StoreRef};

pub use self::core::NAME_BYTES_MAX;
pub use self::dense::{Dense, dense};
pub use self::hash::ShardedHash;
pub(crate) use self::layout::LAYOUT;
use self::make::Settings;
pub(crate) use self::make::{are_native, describe, pieces};
pub use self::reshard::Progress;
pub use self::set::ShardedSet;
pub use self::sorted_set::ShardedSortedSet;
pub use self::stat::ShardedStat;
use crate::name::Name;
use crate::timeout;

/// The most shards there can be.
pub const SHARDS_MAX: u16 = u16::MAX;
/// How many there are where nothing was said.
const SHARDS_MIN: u16 = 64;
/// How many elements a shard is made for where no more are needed: operations walk through a shard, and those that are spread by chance stay under 128.
const FILL: u64 = 64;
/// And at the most, where shards would be too many.
const FILL_MAX: u64 = 1_024;
/// Made for fewer, a shard's key would take more than its elements.
const FILL_MIN: u64 = 8;

/// What can be sharded.
mod sealed {
    use std::sync::Arc;

    use super::core::Core;
    use crate::manifest::Kind;

    pub trait Sealed: Sized {
        const KIND: Kind;
        fn of(core: Arc<Core>) -> Self;
    }
}

use sealed::Sealed;

/// How a sharded collection is opened and made.
///
/// ```
/// use larder_structures::ShardedHash;
/// let options = ShardedHash::options().expected(1_000_000).timeout(std::time::Duration::from_secs(10));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ShardedOptions<T> {
    settings: Settings,
    of: PhantomData<fn() -> T>,
}

impl<T> Default for ShardedOptions<T> {
    fn default() -> ShardedOptions<T> {
        ShardedOptions { settings: Settings::default(), of: PhantomData }
    }
}

impl<T: Sealed> ShardedOptions<T> {
    /// How many shards it is made with, if it must be made: 1 to [`SHARDS_MAX`]. One that is there keeps its own.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let users = ShardedHash::options().shards(8).open_or_create(&store, "users").await?;
    /// assert_eq!(users.stat().await?.shards, 8);
    /// # Ok(()) }
    /// ```
    pub fn shards(mut self, shards: u16) -> ShardedOptions<T> {
        self.settings.shards = Some(shards);
        self
    }

    /// For how many elements it is made: a shard for every 64, or for every half of what the server keeps packed if that is less. 4,096 if nothing is said; more may come, and [`reshard`](ShardedHash::reshard) makes room for them.
    ///
    /// Where that takes more than [`SHARDS_MAX`] shards (4,194,240 elements), shards are made for more: up to half of what the server keeps packed (16,776,960 elements of a hash by the settings of
    /// today's servers; of a set, whose members need not be numbers, still 4,194,240); where shards are items, for as many elements as an item takes KiB, 1,024 at the most. For yet more it is
    /// refused, with the most that it can be made for; [`shards`](ShardedOptions::shards) makes it all the same.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let users = ShardedHash::options().expected(100_000).open_or_create(&store, "users").await?;
    /// assert_eq!(users.stat().await?.shards, 1_563);
    /// # Ok(()) }
    /// ```
    pub fn expected(mut self, elements: u64) -> ShardedOptions<T> {
        self.settings.expected = Some(elements);
        self
    }

    /// How long a call may take, with all it tries again; 5 s if not given, a day at the most. What reads all shards, and a resharding, may take as long for each batch.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let options = ShardedHash::options().timeout(std::time::Duration::from_secs(1));
    /// let users = options.open_or_create(&store, "users").await?;
    /// # Ok(()) }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> ShardedOptions<T> {
        self.settings.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// Opens one that is there. **Round trips: 2.**
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a name of 0 or more than 64 bytes and for a timeout of 0, [`Absent`](larder_core::ErrorKind::Absent) if there is
    /// none, [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) for another structure, and for one that is not dense and should be, [`Lost`](larder_core::ErrorKind::Lost)
    /// where the map is gone, [`Unsupported`](larder_core::ErrorKind::Unsupported) on a store without conditional writes.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let error = ShardedHash::options().open(&store, "users").await.unwrap_err();
    /// assert_eq!(error.kind(), larder_core::ErrorKind::Absent);
    /// # Ok(()) }
    /// ```
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<T> {
        self.open_as(store, &Name::new(name)?, false).await
    }

    /// Opens one, and makes it if there is none. **Round trips: 2**, 4 if it is made, and 1 more for each further 1,024 shards.
    ///
    /// # Errors
    /// As [`open`](ShardedOptions::open), but for `Absent`; [`BadInput`](larder_core::ErrorKind::BadInput) for 0 shards or too many.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let points = ShardedSortedSet::options().open_or_create(&store, "points").await?;
    /// let again = ShardedSortedSet::options().open_or_create(&store, "points").await?; // the same
    /// # Ok(()) }
    /// ```
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<T> {
        self.open_as(store, &Name::new(name)?, true).await
    }

    async fn open_as(self, store: &StoreRef, name: &Name, may_create: bool) -> Result<T> {
        Ok(T::of(Arc::new(self.settings.open(store, name, T::KIND, may_create).await?)))
    }
}

/// What elements are named by.
mod numbered {
    pub trait Numbered {}
    impl Numbered for super::ShardedHash {}
    impl Numbered for super::ShardedSet {}
    impl Numbered for super::ShardedSortedSet {}
}

impl<T: Sealed + numbered::Numbered> ShardedOptions<T> {
    /// Fields, or members, are whole numbers from 0 that come close together, such as ids, and a shard holds so many of them, one after the other: they take less room, and the numbers that one
    /// call is about stand in few shards. There are as many as the shards take: more are refused until it is resharded. That they are numbers is fixed when it is made; how many stand in a
    /// shard [`reshard_dense`](ShardedHash::reshard_dense) changes.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let users = ShardedHash::options().dense(100).shards(4).open_or_create(&store, "users").await?;
    /// users.set([("399", "the last that has room")]).await?;
    /// assert!(users.set([("400", "more")]).await.is_err());
    /// let paid = larder_structures::ShardedSet::options().dense(500).shards(2).open_or_create(&store, "paid").await?;
    /// assert_eq!(paid.add(["7", "999"]).await?, [true, true]);
    /// # Ok(()) }
    /// ```
    pub fn dense(mut self, per_shard: u32) -> ShardedOptions<T> {
        self.settings.dense = Some(per_shard);
        self
    }
}

impl ShardedOptions<ShardedSortedSet> {
    /// How many members [`top`](ShardedSortedSet::top) and [`bottom`](ShardedSortedSet::bottom) can read, if it must be made: 1 to 1,000; 100 if nothing is said. Twice as many
    /// stand at each end, and all of them are written with each change to one of them; together with what an item of the store takes they say how long a member may be. Fixed when it is made.
    ///
    /// ```
    /// # use larder_structures::{ShardedHash, ShardedSortedSet};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let points = ShardedSortedSet::options().kept(3).open_or_create(&store, "points").await?;
    /// assert!(points.top(4).await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn kept(mut self, members: u16) -> ShardedOptions<ShardedSortedSet> {
        self.settings.kept = Some(members);
        self
    }
}

/// What every sharded collection can do.
macro_rules! common {
    ($Type:ident, $kind:ident, $example:literal) => {
        impl super::sealed::Sealed for $Type {
            const KIND: crate::manifest::Kind = crate::manifest::Kind::$kind;
            fn of(core: std::sync::Arc<super::core::Core>) -> $Type {
                $Type(core)
            }
        }

        impl $Type {
            /// Options, to open it otherwise than by default.
            pub fn options() -> super::ShardedOptions<$Type> {
                super::ShardedOptions::default()
            }

            /// Opens one that is there. **Round trips: 2.**
            ///
            /// # Errors
            /// As [`ShardedOptions::open`](super::ShardedOptions::open).
            pub async fn open(store: &larder_core::StoreRef, name: impl AsRef<[u8]>) -> larder_core::Result<$Type> {
                $Type::options().open(store, name).await
            }

            /// Opens one, and makes it if there is none. **Round trips: 2**, 4 if it is made.
            ///
            /// # Errors
            /// As [`ShardedOptions::open_or_create`](super::ShardedOptions::open_or_create).
            pub async fn open_or_create(
                store: &larder_core::StoreRef,
                name: impl AsRef<[u8]>,
            ) -> larder_core::Result<$Type> {
                $Type::options().open_or_create(store, name).await
            }

            /// How many elements there are. No snapshot; what is neither added nor removed meanwhile counts once, also while it is resharded. In a sorted set a change whose writer is midway, or
            /// died there, counts, though nobody is told of it yet. **Round trips: 1** for every 1,024 shards.
            ///
            /// # Errors
            /// [`Lost`](larder_core::ErrorKind::Lost) where a shard is gone, and those of the store.
            pub async fn len(&self) -> larder_core::Result<u64> {
                Ok(self.0.sweep(false).await?.count)
            }

            /// True if it has no elements, as [`len`](Self::len) counts them. Round trips: as [`len`](Self::len).
            ///
            /// # Errors
            /// As [`len`](Self::len).
            pub async fn is_empty(&self) -> larder_core::Result<bool> {
                Ok(self.len().await? == 0)
            }

            /// How many shards there are, as far as this handle knows. **Round trips: 0.**
            pub fn shards(&self) -> u16 {
                self.0.plan().map.shards
            }

            /// Whether an element may have this name: how long it is, and where numbers are dense, whether it is one of the range that this handle knows. **Round trips: 0.**
            ///
            /// # Errors
            /// [`BadInput`](larder_core::ErrorKind::BadInput), as whoever writes it is told.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
            /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
            #[doc = concat!("use larder_structures::", stringify!($Type), ";")]
            #[doc = concat!("let ids = ", stringify!($Type), "::options().dense(100).shards(3).open_or_create(&store, \"ids\").await?;")]
            /// assert!(ids.takes("299").is_ok() && ids.takes("300").is_err() && ids.takes("x").is_err());
            /// # Ok(()) }
            /// ```
            pub fn takes(&self, name: impl AsRef<[u8]>) -> larder_core::Result<()> {
                self.0.takes(name.as_ref())
            }

            /// The range of its numbers where they are dense, in words.
            pub(crate) fn range(&self) -> Option<[(&'static str, String); 2]> {
                self.0.range()
            }

            /// Figures: how many elements, as [`len`](Self::len) counts them, how full the fullest shard is, and how the server keeps it. **Round trips: 2**, 1 more for each further 1,024 shards.
            ///
            /// # Errors
            /// As [`len`](Self::len).
            pub async fn stat(&self) -> larder_core::Result<super::ShardedStat> {
                self.0.stat().await
            }

            /// Makes the shards another number, while others read and write: see [Resharding](super#resharding). One that others began and did not finish is finished first. Of dense numbers
            /// more shards make room for more of them, and hold as many each as before: [`reshard_dense`](Self::reshard_dense) makes those smaller.
            #[doc = concat!("\n```\n", $example, "\n```\n")]
            /// **Round trips:** natively 3 for every 32 shards, or for as many as come from some 500 old ones, else 5, and 1 for every 32 old ones that are brought together; 1 for every 1,024
            /// old ones; and some 6. Others wait for none of them.
            ///
            /// # Errors
            /// [`BadInput`](larder_core::ErrorKind::BadInput) unless they are 1 to [`SHARDS_MAX`](super::SHARDS_MAX); [`Lost`](larder_core::ErrorKind::Lost) where a shard is gone;
            /// [`Conflict`](larder_core::ErrorKind::Conflict) where others keep resharding; [`Full`](larder_core::ErrorKind::Full) for shards that are items and too few for what
            /// stands in the old ones, which go on as they are; [`RolledBack`](larder_core::ErrorKind::RolledBack), once, where the store went back since this handle read the map,
            /// and, once, where it went back behind a resharding, to before it was in force: it goes on then from what there is, as whoever meets a shard of it does; those of the store. Whatever it is, nothing is lost by it: reshard again.
            pub async fn reshard(&self, shards: u16) -> larder_core::Result<()> {
                self.0.reshard(super::reshard::Aim::Shards(shards), &mut |_| ()).await
            }

            /// The same, telling now and then how far it is.
            ///
            /// # Errors
            /// As [`reshard`](Self::reshard).
            pub async fn reshard_with(
                &self,
                shards: u16,
                mut tell: impl FnMut(super::Progress) + Send,
            ) -> larder_core::Result<()> {
                self.0.reshard(super::reshard::Aim::Shards(shards), &mut tell).await
            }

            /// Makes shards of dense numbers another size, while others read and write: so many numbers each, and as many shards as hold the numbers that there is room for now. So shards that
            /// grew too large for what the server packs become small again. Round trips: as [`reshard`](Self::reshard).
            ///
            /// # Errors
            /// As [`reshard`](Self::reshard); [`BadInput`](larder_core::ErrorKind::BadInput) for 0, for so few that it takes more than [`SHARDS_MAX`](super::SHARDS_MAX) shards, and where elements
            /// are spread by hash.
            ///
            /// ```
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
            /// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
            #[doc = concat!("use larder_structures::", stringify!($Type), ";")]
            #[doc = concat!("let ids = ", stringify!($Type), "::options().dense(1_000).shards(3).open_or_create(&store, \"ids\").await?;")]
            /// ids.reshard_dense(100).await?;
            /// assert_eq!(ids.shards(), 30);
            /// # Ok(()) }
            /// ```
            pub async fn reshard_dense(&self, per_shard: u32) -> larder_core::Result<()> {
                self.0.reshard(super::reshard::Aim::PerShard(per_shard), &mut |_| ()).await
            }

            /// The same, telling now and then how far it is.
            ///
            /// # Errors
            /// As [`reshard_dense`](Self::reshard_dense).
            pub async fn reshard_dense_with(
                &self,
                per_shard: u32,
                mut tell: impl FnMut(super::Progress) + Send,
            ) -> larder_core::Result<()> {
                self.0.reshard(super::reshard::Aim::PerShard(per_shard), &mut tell).await
            }
        }
    };
}
pub(crate) use common;
