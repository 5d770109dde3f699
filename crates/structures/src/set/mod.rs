//! A set of members, of arbitrary bytes, that many processes change at once.
//!
//! Adding and removing is one `append`, whatever the number of members; reading is one `get`. See the engine, `append`, for
//! how that works and its source.
//!
//! # Guarantees, a store
//! | | memory | memcached | memcached's classic protocol without cas (MemcacheDB) |
//! |---|---|---|---|
//! | a change that was acknowledged | counts once, in the order of its handle | the same, until the server evicts or ends | the same |
//! | an outcome that is unknown | cannot be | looked into and tried again until the timeout; then `Unknown`: it counts at most once, and never after a later change of the handle to the same shard (so never after one of the same member) | the same |
//! | a lost shard | only where it is built as a cache that evicts: `Lost` | [`Lost`](larder_core::ErrorKind::Lost), never an empty set | the same |
//! | a shard that is older than the handle saw it | cannot be | [`RolledBack`](larder_core::ErrorKind::RolledBack) | the same |
//! | compaction | yes | yes | no: works until it is full |
//!
//! A change of members of several shards is atomic a shard, not over all: if some shards fail, the error names them, and its
//! effect is unknown unless no shard took the change. Reads of several shards are not one snapshot either.
//!
//! The order of a handle's changes, and that each counts once, rest on the writers that a shard remembers: the last 128, of which those silent
//! for more than ten minutes are forgotten first (all but 16). Only a request that the network delivers after its writer was
//! forgotten counts a second time.
//!
//! A handle reads the manifest when it opens, and looks at it again once a minute with a read or write that it makes anyway, in
//! the same round trip. Where a store evicted the manifest and not the shards (it is the item read least), the handle puts it back.
//! Within that minute a process that opens the name anew finds it absent, or makes another set; then the handle says
//! [`Lost`](larder_core::ErrorKind::Lost) from its next look on. What it wrote since stays with the life that is lost.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | add, remove: any number of members | 1; 2 more when the shard has no room and is compacted on the way |
//! | members, has, stat | 1 |
//! | compact | 2, 1 if there is nothing to do |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 3 to make it |
//!
//! # Limits and memory
//! A member has 0 bytes up to [`Set::member_bytes_max`]: the store's limit on a value less 2,904 bytes, less 2 as text. The members of one call may come to as
//! much in each shard. A member costs its bytes, and 1 to 2 for its length, once compacted; each write costs 14 to 17 bytes a shard more until then.
//! A shard costs 27 bytes, its key and the writers it remembers (13 to 15 bytes each).
//!
//! # Text
//! [`Set::open_text`] keeps a set as the article has it, `+a +b -a `, under a key of its own, for sharing with other programs.

mod binary;
pub(crate) mod layout;
mod members;
mod text;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{ClockRef, Error, ErrorKind, Key, Result, StoreRef, SystemClock};

use self::binary::Binary;
pub(crate) use self::layout::LAYOUT;
pub use self::members::Members;
use self::text::Text;
use crate::append::{Action, Tuning};
use crate::name::Name;
use crate::timeout;

/// A handle of a set: a cheap clone, shared by as many tasks as you like.
///
/// Concurrent changes through clones of one handle travel together, in one write.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Set;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let tags = Set::open_or_create(&store, "tags").await?;
/// tags.add(["red", "green", "blue"]).await?;
/// tags.remove(["green"]).await?;
/// let mut members = tags.members().await?.to_vec();
/// members.sort();
/// assert_eq!(members, ["blue", "red"]);
/// assert!(tags.has("red").await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Set(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Binary(Arc<Binary>),
    Text(Arc<Text>),
}

/// How a set is opened and made.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Set;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let visitors = Set::options().shards(16).open_or_create(&store, "visitors").await?;
/// visitors.add((0..1_000u32).map(u32::to_be_bytes)).await?;
/// assert_eq!(visitors.stat().await?.members, 1_000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SetOptions {
    shards: Option<u16>,
    timeout: Duration,
    dirty_bytes: usize,
    clock: Option<ClockRef>,
}

/// Figures of a set, by [`Set::stat`] and [`Set::compact`].
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::Set;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// # let tags = Set::open_or_create(&store, "tags").await?;
/// let stat = tags.stat().await?;
/// println!("{} members, {} % full", stat.members, 100 * stat.shard_bytes / stat.shard_bytes_max);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SetStat {
    /// How many members there are.
    pub members: u64,
    /// What the values take, in bytes, without keys and the store's own overhead.
    pub bytes: u64,
    /// What they would take compacted.
    pub live_bytes: u64,
    /// The rest: operations that others have overtaken, and what each write cost beside its members.
    pub stale_bytes: u64,
    /// Removals that are not compacted away yet.
    pub removals: u64,
    /// How many shards there are.
    pub shards: u16,
    /// What the largest shard takes.
    pub shard_bytes: u64,
    /// What a shard may take: at this size the set is full, where nothing is stale.
    pub shard_bytes_max: u64,
}

/// The most shards a set can be made with.
pub const SHARDS_MAX: u16 = 1024;

impl Default for SetOptions {
    fn default() -> SetOptions {
        SetOptions { shards: None, timeout: Duration::from_secs(5), dirty_bytes: 1024, clock: None }
    }
}

impl SetOptions {
    /// Over how many shards, 1 to [`SHARDS_MAX`], a set is spread that is made; 1 if not given. It is fixed then: opening with another number
    /// is a [`LayoutMismatch`](ErrorKind::LayoutMismatch). A shard holds as much as one item of the store.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let set = Set::options().shards(16).open_or_create(&store, "s").await?;
    /// assert_eq!(set.stat().await?.shards, 16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shards(mut self, shards: u16) -> SetOptions {
        self.shards = Some(shards);
        self
    }

    /// How long a call may take, with all it tries again; 5 s if not given, a day at the most.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// let options = Set::options().timeout(std::time::Duration::from_millis(200));
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> SetOptions {
        self.timeout = timeout.min(timeout::TIMEOUT_MAX);
        self
    }

    /// How many stale bytes a shard may have before a read compacts it, in the background; 1,024 if not given. It is compacted only if
    /// there are more stale bytes than live ones, too. A handle also looks by itself whenever it has appended 16 times as much.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// let options = Set::options().dirtiness(64 * 1024);
    /// ```
    pub fn dirtiness(mut self, bytes: usize) -> SetOptions {
        self.dirty_bytes = bytes;
        self
    }

    /// Where the time comes from that recent writers are remembered by, and looks at the manifest; the system's clock if not given.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// let options = Set::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(mut self, clock: ClockRef) -> SetOptions {
        self.clock = Some(clock);
        self
    }

    /// Opens a set that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Set::options().open(&store, "s").await.is_err());
    /// Set::open_or_create(&store, "s").await?;
    /// Set::options().open(&store, "s").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a name of 0 or more than 64 bytes and for a timeout of 0,
    /// [`Absent`](ErrorKind::Absent) if there is none, [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another structure or another number of shards,
    /// [`Unsupported`](ErrorKind::Unsupported) where the store's items are too small.
    pub async fn open(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Set> {
        let binary = Binary::open(store, &Name::new(name)?, &self, false).await?;
        Ok(Set(Inner::Binary(Arc::new(binary))))
    }

    /// Opens a set, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let set = Set::options().shards(4).open_or_create(&store, "s").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`open`](SetOptions::open), but for `Absent`; [`BadInput`](ErrorKind::BadInput) for a number of shards that is out of range.
    pub async fn open_or_create(self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Set> {
        let binary = Binary::open(store, &Name::new(name)?, &self, true).await?;
        Ok(Set(Inner::Binary(Arc::new(binary))))
    }

    /// A set as text under a key of its own: see [`Set::open_text`].
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let index = Set::options().dirtiness(4096).open_text(&store, "index")?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a key that is empty or too long, for more than one shard, and for a timeout of 0.
    pub fn open_text(self, store: &StoreRef, key: impl AsRef<[u8]>) -> Result<Set> {
        if self.shards.is_some_and(|shards| shards != 1) {
            let detail = "a set as text is one key: it cannot have several shards";
            return Err(Error::new(ErrorKind::BadInput, detail));
        }
        timeout::check(self.timeout)?;
        let key = Key::new(Bytes::copy_from_slice(key.as_ref()))?;
        Ok(Set(Inner::Text(Arc::new(Text::new(store, key, &self)))))
    }

    fn tuning(&self) -> Tuning {
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        Tuning { clock, dirty_bytes: self.dirty_bytes }
    }
}

impl Set {
    /// Options, to open a set otherwise than by default.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// let options = Set::options().shards(4).dirtiness(4096);
    /// ```
    pub fn options() -> SetOptions {
        SetOptions::default()
    }

    /// Opens a set that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::{ErrorKind, StoreRef};
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(Set::open(&store, "tags").await.unwrap_err().kind(), ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SetOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Set> {
        Set::options().open(store, name).await
    }

    /// Opens a set, and makes it if there is none. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags = Set::open_or_create(&store, "tags").await?;
    /// assert!(tags.members().await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SetOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Set> {
        Set::options().open_or_create(store, name).await
    }

    /// A set as text, `+a +b -a `, under this very key, to be shared with other programs that append to it. **Round trips: 0.**
    ///
    /// There is no manifest: the first `add` makes the key (2 round trips), and whoever deletes it ends the set. A handle that has
    /// seen the key and misses it says [`Lost`](ErrorKind::Lost), to reads and to changes; one that has not, [`Absent`](ErrorKind::Absent). A
    /// change whose outcome is unknown is reported and never tried again: the text has no sequences, so an `+a` that is
    /// tried again could bring back what somebody removed meanwhile. Members have at least 1 byte, without spaces and control
    /// characters. A compaction keeps the flags of the item, and its remaining life where the store can tell it
    /// (see `remaining_ttl` in the profile; elsewhere the item lives for ever from then on).
    ///
    /// ```
    /// # use larder_core::{Key, StoreExt, StoreRef};
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let index = Set::open_text(&store, "index")?;
    /// index.add(["a", "b"]).await?;
    /// index.remove(["a"]).await?;
    /// let item = store.get(Key::new("index")?).await?.expect("it was added to");
    /// assert_eq!(&item.value[..], b"+a +b -a ");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SetOptions::open_text`].
    pub fn open_text(store: &StoreRef, key: impl AsRef<[u8]>) -> Result<Set> {
        Set::options().open_text(store, key)
    }

    /// Adds members; those that are there already stay. **Round trips: 1**, whatever their number (0 for none).
    ///
    /// Dropped midway, the change is finished by the handle's next, or comes to nothing.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let tags = Set::open_or_create(&store, "tags").await?;
    /// tags.add(["red", "green"]).await?;
    /// tags.add(vec![vec![0u8, 255], vec![]]).await?;
    /// assert_eq!(tags.members().await?.len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for members, or a sum of them, over the limits in the [module](self); [`Full`](ErrorKind::Full) if they do not fit even after a
    /// compaction; [`Lost`](ErrorKind::Lost); [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime (without its timer Tokio
    /// panics); and what the store says. See the module for what an unknown effect means.
    pub async fn add(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        match &self.0 {
            Inner::Binary(set) => set.change(Action::Put, members).await,
            Inner::Text(set) => set.change(Action::Put, members).await,
        }
    }

    /// Removes members; those that are not there are left at that. **Round trips: 1**, whatever their number (0 for none).
    ///
    ///
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let tags = Set::open_or_create(&store, "tags").await?;
    /// tags.add(["red", "green"]).await?;
    /// tags.remove(["green", "blue"]).await?;
    /// assert_eq!(tags.members().await?.to_vec(), ["red"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`add`](Set::add). Removing works on a set that is full, too, where what goes makes room for what a shard notes of its writers: up to 15 bytes for each handle that has not written to it
    /// lately. A removal that waits beside an add of the same handle is written with it, and [`Full`](ErrorKind::Full) where both together have no room.
    pub async fn remove(&self, members: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<()> {
        match &self.0 {
            Inner::Binary(set) => set.change(Action::Remove, members).await,
            Inner::Text(set) => set.change(Action::Remove, members).await,
        }
    }

    /// All members, in no order, as they lie in the values that were read. **Round trips: 1.**
    ///
    /// Starts a compaction in the background where a shard is dirty.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let tags = Set::open_or_create(&store, "tags").await?;
    /// tags.add(["red", "red"]).await?;
    /// assert_eq!(tags.members().await?.to_vec(), ["red"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost), [`RolledBack`](ErrorKind::RolledBack), [`LayoutMismatch`](ErrorKind::LayoutMismatch) for foreign bytes, and what the store says.
    pub async fn members(&self) -> Result<Members> {
        match &self.0 {
            Inner::Binary(set) => set.members().await,
            Inner::Text(set) => set.members().await,
        }
    }

    /// True if this is a member. Reads one shard. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let tags = Set::open_or_create(&store, "tags").await?;
    /// tags.add(["red"]).await?;
    /// assert!(tags.has("red").await? && !tags.has("blue").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`members`](Set::members).
    pub async fn has(&self, member: impl AsRef<[u8]>) -> Result<bool> {
        match &self.0 {
            Inner::Binary(set) => set.has(member.as_ref()).await,
            Inner::Text(set) => set.has(member.as_ref()).await,
        }
    }

    /// Figures of the set. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let tags = Set::open_or_create(&store, "tags").await?;
    /// tags.add(["red"]).await?;
    /// let stat = tags.stat().await?;
    /// assert_eq!((stat.members, stat.shards), (1, 1));
    /// assert_eq!(stat.bytes, stat.live_bytes + stat.stale_bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`members`](Set::members).
    pub async fn stat(&self) -> Result<SetStat> {
        match &self.0 {
            Inner::Binary(set) => set.stat().await,
            Inner::Text(set) => set.stat().await,
        }
    }

    /// Compacts the set now, whatever its dirtiness, and tells its figures after that.
    /// **Round trips: 2**, 1 if nothing is stale, 2 more for each time that others wrote in between.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let tags = Set::open_or_create(&store, "tags").await?;
    /// tags.add(["a", "b"]).await?;
    /// tags.remove(["a"]).await?;
    /// assert!(tags.stat().await?.stale_bytes > 0);
    /// assert_eq!(tags.compact().await?.stale_bytes, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) on a store without conditional writes, [`Conflict`](ErrorKind::Conflict) if others keep writing,
    /// [`Timeout`](ErrorKind::Timeout) if changes of this handle are under way that long, and as [`members`](Set::members).
    pub async fn compact(&self) -> Result<SetStat> {
        match &self.0 {
            Inner::Binary(set) => set.compact().await,
            Inner::Text(set) => set.compact().await,
        }
    }

    /// The longest member that this set can hold, in bytes: see the limits in the [module](self). **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Set;
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert!(Set::open_text(&store, "index")?.member_bytes_max() > 1_000_000);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn member_bytes_max(&self) -> usize {
        match &self.0 {
            Inner::Binary(set) => set.member_bytes_max(),
            Inner::Text(set) => set.member_bytes_max(),
        }
    }
}
