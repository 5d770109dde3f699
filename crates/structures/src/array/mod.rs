//! An array: an ordered list of elements, of arbitrary bytes, that many processes append to and change at once.
//!
//! Elements may occur more than once, and may be empty. Appending is one `append`, whatever the number of elements; reading is one
//! `get` a shard. See the engine, `append`, for how that works and its source.
//!
//! # One shard or several
//! An array is made with one shard, if not asked otherwise, and holds what fits into an item of the store, in one order. Made with several, elements are spread by a
//! hash of their bytes: **the order holds among the elements of a shard only**, and a read lists shard after shard.
//!
//! # Guarantees, a store
//! | | memory | memcached | memcached's classic protocol without cas (MemcacheDB) |
//! |---|---|---|---|
//! | a push or remove that was acknowledged | counts once, in the order of its handle; atomic a shard | the same, until the server evicts or ends | the same |
//! | a [`change`](Array::change) | atomic: every read shows all of it or nothing, also after a crash of the changer | the same | the same within one shard; over several refused with [`Unsupported`](larder_core::ErrorKind::Unsupported) |
//! | an outcome that is unknown | cannot be | looked into and tried again until the timeout; then `Unknown`: it counts at most once, all of it or nothing | the same |
//! | a lost shard, or lost commits | only where it is built as a cache that evicts: `Lost` | [`Lost`](larder_core::ErrorKind::Lost), never a shorter list | the same |
//! | a shard that is older than the handle saw it | cannot be | [`RolledBack`](larder_core::ErrorKind::RolledBack) | the same |
//! | one of several servers set back alone | cannot be | [`RolledBack`](larder_core::ErrorKind::RolledBack) to everybody who would read half a change, until the loss is [accepted](Array::accept_loss) | |
//! | compaction | yes | yes | no: works until it is full |
//!
//! What rests on the writers that a shard remembers, and on the looks at the manifest, holds as for a [set](crate::set).
//!
//! # A change over several shards
//! It is written into each shard under a number, and counts nowhere; then one conditional write of the *commits* makes it count in all of
//! them. Nothing is copied, nobody waits, and a changer that dies leaves nothing to be repaired: what it wrote never counts. A reader that meets
//! a change on the way reads once more what is older than the rest.
//!
//! Changes over several shards have one order. What is pushed or removed *beside* such a change, before it returns, has its place in each shard by when it arrived there, and is seen
//! at once: so a push may be seen before the change and yet survive it, though the change deletes elements of these bytes. What is acknowledged before a
//! change begins comes before it, what begins after it returned comes after it.
//!
//! # Under a lock
//! [`Array::change_under`] adds fencing: it fails once the lease is over, and a change whose fencing token is smaller than that of a change made since is refused,
//! also where it arrives late. All locks that an array is changed under must be one lock: tokens of several cannot be compared.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | push, remove: any number of elements | 1; 2 more when a shard has no room and is compacted on the way |
//! | change within one shard | 1 |
//! | change over several shards | 2; 1 more for a handle's first, 2 more for each time that others changed meanwhile, and 4 more once in 16 to 256 changes (in half as many while a shard is full, see the limits) |
//! | change_under | 2 |
//! | elements, stat | 1; 1 or 2 more where a change over several shards goes on meanwhile |
//! | compact | 2, 1 if there is nothing to do; 2 more where a change is open |
//! | accept_loss | 1 where nothing was lost, else 6 |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 3 to make it |
//!
//! # Limits and memory
//! An element has 0 bytes up to [`Array::element_bytes_max`]: the store's limit on a value less 3,022 bytes. The elements of one call may come to as
//! much in each shard; a call with more is refused, and nothing is written. An element costs its bytes, 1 to 2 for its length, and 1 more if it begins with a zero byte; each write
//! costs 14 to 17 bytes a shard more until it is compacted, and a change over several shards 13 to 30. A shard costs 27 bytes, its key and the writers it remembers
//! (13 to 15 bytes each); the commits take up to 4 KB, with more than 250 shards a shard's bit in each of 16 to 30 numbers; beside a shard that is too full to note what it has settled, eight times that.
//!
//! Of several shards each notes now and then which changes it has settled, in 13 to 26 bytes, whether these touched it or not. One may be too full for it, mostly where it was filled before its first.
//! Changes over other shards go on beside it for eight times as many as are kept else (2,048; with many shards, or items of a few KB, fewer), and then are [`Full`](larder_core::ErrorKind::Full), naming that shard, until something is removed from it.

mod accept;
mod change;
mod commits;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod handle;
mod keeper;
mod layout;
mod whole;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
#[cfg(doc)]
use larder_core::ErrorKind;
use larder_core::{ClockRef, Key, Result, StoreRef, SystemClock};

use self::handle::Handle;
pub(crate) use self::layout::LAYOUT;
use crate::append::{Action, Tuning};
use crate::lock::LockGuard;
use crate::manifest::Manifest;
use crate::name::Name;
use crate::timeout;

/// A handle of an array: a cheap clone, shared by as many tasks as you like.
///
/// Concurrent pushes and removals through clones of one handle travel together, in one write.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Array;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let jobs = Array::open_or_create(&store, "jobs").await?;
/// jobs.push(["sweep", "cook", "sweep"]).await?;
/// jobs.change(["eat"], ["cook"]).await?; // removes every "cook", then appends "eat"
/// assert_eq!(jobs.elements().await?, ["sweep", "sweep", "eat"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Array(Arc<Handle>);

/// How an array is opened and made.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Array;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let events = Array::options().shards(16).open_or_create(&store, "events").await?;
/// events.push((0..1_000u32).map(u32::to_be_bytes)).await?;
/// assert_eq!(events.stat().await?.elements, 1_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ArrayOptions {
    shards: Option<u16>,
    timeout: Duration,
    dirty_bytes: usize,
    clock: Option<ClockRef>,
}

/// Figures of an array, by [`Array::stat`] and [`Array::compact`].
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Array;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let jobs = Array::open_or_create(&store, "jobs").await?;
/// let stat = jobs.stat().await?;
/// println!("{} elements, {} % full", stat.elements, 100 * stat.shard_bytes / stat.shard_bytes_max);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ArrayStat {
    /// How many elements there are.
    pub elements: u64,
    /// What the shards take, in bytes, without keys and the store's own overhead.
    pub bytes: u64,
    /// What they would take compacted: more than `bytes` where a shard has not noted yet which changes over several it has settled.
    pub live_bytes: u64,
    /// The rest: removals and what they removed, changes that came to nothing, and what each write cost beside its elements.
    pub stale_bytes: u64,
    /// How many shards there are.
    pub shards: u16,
    /// What the largest shard takes.
    pub shard_bytes: u64,
    /// What a shard may take: at this size the array is full, where nothing is stale.
    pub shard_bytes_max: u64,
}

/// The most shards an array can be made with.
pub const SHARDS_MAX: u16 = 1024;

impl Default for ArrayOptions {
    fn default() -> ArrayOptions {
        ArrayOptions { shards: None, timeout: Duration::from_secs(5), dirty_bytes: 1024, clock: None }
    }
}

impl ArrayOptions {
    /// Over how many shards, 1 to [`SHARDS_MAX`], an array is spread that is made; 1 if not given. It is fixed then: opening with another number
    /// is a [`LayoutMismatch`](ErrorKind::LayoutMismatch). A shard holds as much as one item of the store; with several, order holds within a shard only.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let array = Array::options().shards(16).open_or_create(&store, "a").await?;
    /// assert_eq!(array.stat().await?.shards, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shards(mut self, shards: u16) -> ArrayOptions {
        self.shards = Some(shards);
        self
    }

    /// How long a call may take, with all it tries again; 5 s if not given, a day at the most.
    ///
    /// ```
    /// # use larder_structures::Array;
    /// let options = Array::options().timeout(std::time::Duration::from_millis(200));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> ArrayOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// How many stale bytes a shard may have before a read compacts it, in the background; 1,024 if not given. It is compacted only if
    /// there are more stale bytes than live ones, too. A handle also looks by itself whenever it has appended 16 times as much.
    ///
    /// ```
    /// # use larder_structures::Array;
    /// let options = Array::options().dirtiness(64 * 1024);
    /// ```
    pub fn dirtiness(mut self, bytes: usize) -> ArrayOptions {
        self.dirty_bytes = bytes;
        self
    }

    /// Where the time comes from that recent writers are remembered by, and looks at the manifest; the system's clock if not given.
    ///
    /// ```
    /// # use larder_structures::Array;
    /// let options = Array::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(mut self, clock: ClockRef) -> ArrayOptions {
        self.clock = Some(clock);
        self
    }

    /// Opens an array that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Array::options().open(&store, "a").await.is_err());
    /// Array::open_or_create(&store, "a").await?;
    /// Array::options().open(&store, "a").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes and for a timeout of 0,
    /// [`Absent`](ErrorKind::Absent) if there is none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure or another number of shards,
    /// [`Unsupported`](ErrorKind::Unsupported) where the store's items or batches are too small.
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Array> {
        Ok(Array(Arc::new(Handle::open(store, &Name::new(name)?, &self, false).await?)))
    }

    /// Opens an array, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let array = Array::options().shards(4).open_or_create(&store, "a").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](ArrayOptions::open), but for `Absent`; [`BadInput`](ErrorKind::BadInput) for a number of shards that is out of range.
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Array> {
        Ok(Array(Arc::new(Handle::open(store, &Name::new(name)?, &self, true).await?)))
    }

    fn tuning(&self) -> Tuning {
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        Tuning { clock, dirty_bytes: self.dirty_bytes }
    }
}

impl Array {
    /// Options, to open an array otherwise than by default.
    ///
    /// ```
    /// # use larder_structures::Array;
    /// let options = Array::options().shards(4).dirtiness(4096);
    /// ```
    pub fn options() -> ArrayOptions {
        ArrayOptions::default()
    }

    /// Opens an array that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::{ErrorKind, StoreRef};
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(Array::open(&store, "jobs").await.unwrap_err().kind(), ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ArrayOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Array> {
        Array::options().open(store, name).await
    }

    /// Opens an array, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let jobs = Array::open_or_create(&store, "jobs").await?;
    /// assert!(jobs.elements().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`ArrayOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Array> {
        Array::options().open_or_create(store, name).await
    }

    /// Appends elements, in their order. **Round trips: 1**, whatever their number (0 for none).
    ///
    /// Over several shards it is atomic a shard. Dropped midway, it is finished by the handle's next, or comes to nothing.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let jobs = Array::open_or_create(&store, "jobs").await?;
    /// jobs.push(["sweep", "sweep"]).await?;
    /// jobs.push(vec![vec![0u8, 255], vec![]]).await?;
    /// assert_eq!(jobs.elements().await?, [&b"sweep"[..], b"sweep", b"\x00\xff", b""]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for elements, or a sum of them, over the limits in the [module](self): nothing is written; [`Full`](ErrorKind::Full) if they do not fit even
    /// after a compaction; [`Lost`](ErrorKind::Lost); [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime (without its timer Tokio
    /// panics); and what the store says. See the module for what an unknown effect means.
    pub async fn push(&self, elements: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        self.0.append(Action::Put, elements).await
    }

    /// Removes every occurrence of each of these; those that are not there are left at that. **Round trips: 1**, whatever their number (0 for
    /// none).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let jobs = Array::open_or_create(&store, "jobs").await?;
    /// jobs.push(["sweep", "cook", "sweep"]).await?;
    /// jobs.remove(["sweep", "eat"]).await?;
    /// assert_eq!(jobs.elements().await?, ["cook"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](Array::push). Removing works on an array that is full, too, where what goes makes room for what a shard notes: up to 15 bytes for each handle that has not written to it lately, and
    /// of several shards up to 26 for the changes that it has settled, if it has none of these yet. A removal that waits beside a push of the same handle is written with it, and
    /// [`Full`](ErrorKind::Full) where both together have no room.
    pub async fn remove(&self, elements: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        self.0.append(Action::Remove, elements).await
    }

    /// Removes every occurrence of each element of `delete`, then appends those of `add`: all of it at once, for every reader, without a
    /// lock. **Round trips: 1** where all of them belong to one shard, else **2**: see the [module](self).
    ///
    /// Dropped midway, all of it counts or nothing.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let hosts = Array::options().shards(8).open_or_create(&store, "hosts").await?;
    /// hosts.push(["10.0.0.1", "10.0.0.2"]).await?;
    /// // No reader ever finds one host, or three.
    /// hosts.change(["10.0.0.3"], ["10.0.0.1"]).await?;
    /// assert_eq!(hosts.elements().await?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](Array::push); if any shard has no room, nothing counts in any; see the limits in the [module](self) for one that it does not touch. [`Unsupported`](ErrorKind::Unsupported) for several shards on a store without conditional
    /// writes. [`Conflict`](ErrorKind::Conflict) if others changed it at each of 64 tries.
    pub async fn change(
        &self,
        add: impl IntoIterator<Item = impl AsRef<[u8]>>,
        delete: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        self.0.change(None, add, delete).await
    }

    /// [`change`](Array::change) by the holder of a lock, with its fencing token. **Round trips: 2.**
    ///
    /// What it adds: it fails once the lease is over by this process's clock, and a change that arrives after one of a later holder counts
    /// nowhere. It does not keep out [`push`](Array::push), [`remove`](Array::remove) and [`change`](Array::change), which ask for no lock.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Array, Lock};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let hosts = Array::open_or_create(&store, "hosts").await?;
    /// let guard = Lock::open(&store, "hosts-lock").await?.acquire(std::time::Duration::from_secs(5)).await?;
    /// // What is written next may depend on what is read here: no other holder writes in between.
    /// let next = format!("host-{}", hosts.elements().await?.len());
    /// hosts.change_under(&guard, [next], Vec::<&str>::new()).await?;
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`change`](Array::change). [`Fenced`](ErrorKind::Fenced) if the lock was lost, or a later holder has changed the array: nothing counts
    /// (with an unknown effect only where the array was compacted in that very moment).
    pub async fn change_under(
        &self,
        guard: &LockGuard,
        add: impl IntoIterator<Item = impl AsRef<[u8]>>,
        delete: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<()> {
        self.0.change(Some(guard), add, delete).await
    }

    /// All elements, in order; with several shards, shard after shard. They share the memory of the values that were read. **Round trips: 1.**
    ///
    /// Starts a compaction in the background where a shard is dirty.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let jobs = Array::open_or_create(&store, "jobs").await?;
    /// jobs.push(["b", "a", "b"]).await?;
    /// assert_eq!(jobs.elements().await?, ["b", "a", "b"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), [`RolledBack`](ErrorKind::RolledBack), [`LayoutMismatch`](ErrorKind::LayoutMismatch) for foreign bytes, and what the store says.
    pub async fn elements(&self) -> Result<Vec<Bytes>> {
        self.0.elements().await
    }

    /// Figures of the array. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let jobs = Array::open_or_create(&store, "jobs").await?;
    /// jobs.push(["a", "a"]).await?;
    /// let stat = jobs.stat().await?;
    /// assert_eq!((stat.elements, stat.shards), (2, 1));
    /// assert_eq!(stat.bytes, stat.live_bytes + stat.stale_bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`elements`](Array::elements).
    pub async fn stat(&self) -> Result<ArrayStat> {
        self.0.stat().await
    }

    /// Compacts the array now, whatever its dirtiness, and tells its figures after that.
    /// **Round trips: 2**, 1 if nothing is stale, 2 more for each time that others wrote in between, and 2 where a change over several shards is
    /// open: its changer has to write it once more.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let jobs = Array::open_or_create(&store, "jobs").await?;
    /// jobs.push(["a", "b"]).await?;
    /// jobs.remove(["a"]).await?;
    /// assert!(jobs.stat().await?.stale_bytes > 0);
    /// assert_eq!(jobs.compact().await?.stale_bytes, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) on a store without conditional writes, [`Conflict`](ErrorKind::Conflict) if others keep writing, and as
    /// [`elements`](Array::elements).
    pub async fn compact(&self) -> Result<ArrayStat> {
        self.0.compact().await
    }

    /// Goes on with an array of which a part was set back, as by the failover of one of several primaries: takes of each shard what is there, and makes the parts fit again.
    /// True if there was such a loss; false if the parts fit as they are, and nothing was written. **Round trips: 1** where they fit, and where there is one shard; else **6**, and 1 more for each
    /// change by others that comes before its first write.
    ///
    /// Where only one of an array's servers went back, the changes over several shards that were lost there may stand in the other shards, settled: so every read is told
    /// [`RolledBack`](ErrorKind::RolledBack), by whatever handle, until somebody says by this call that the loss is accepted. **From then on such a change may be read by halves**: look through the elements, or
    /// make the array anew. What was pushed, removed or changed after the loss, and before or beside this call, is kept. From its first
    /// write on changes over several shards are refused, until its last; dropped or failed midway it is called again; several may call it at a time, and the loss is accepted once.
    ///
    /// This handle forgets what it has seen, and goes on whatever that was, also where it alone was told. Other handles that changed or read the array before are told `RolledBack`, once they look at the
    /// changes of others, until they are opened anew or call this as well.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let hosts = Array::options().shards(8).open_or_create(&store, "hosts").await?;
    /// hosts.change(["10.0.0.1", "10.0.0.2"], Vec::<&str>::new()).await?;
    /// assert!(!hosts.accept_loss().await?); // nothing was lost
    /// assert_eq!(hosts.elements().await?.len(), 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where a shard, or the commits, are gone altogether: then nothing fits again, and it is dropped and made anew. [`Unsupported`](ErrorKind::Unsupported)
    /// on a store without conditional writes, [`Conflict`](ErrorKind::Conflict) if others changed it at each of 64 tries, [`Full`](ErrorKind::Full) where a shard has no room to note where it
    /// goes on (up to 26 bytes: remove something from it), and as [`elements`](Array::elements).
    pub async fn accept_loss(&self) -> Result<bool> {
        self.0.accept_loss().await
    }

    /// The longest element that this array can hold, in bytes: see the limits in the [module](self). **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Array;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Array::open_or_create(&store, "jobs").await?.element_bytes_max() > 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn element_bytes_max(&self) -> usize {
        self.0.element_bytes_max()
    }
}

/// The keys of an array beside its shards.
pub(crate) fn pieces(name: &Name, manifest: &Manifest) -> Result<Vec<Key>> {
    if manifest.shards > 1 { Ok(vec![manifest.data_key(name, keeper::INDEX)?]) } else { Ok(Vec::new()) }
}

#[cfg(test)]
mod tests;
