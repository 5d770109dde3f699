//! A log of events, by time: many processes put, read a range of time, and follow what comes.
//!
//! An event is bytes and a time. Events of one stretch of time, a chunk, stand together in one value, or several where they outgrow
//! one; a put is one `append`. Which chunks were made is listed (the module `ledger`), so that one that is gone is a gap
//! that readers are told of, and never silence.
//!
//! Source: the event log of "Structures over memcached" as a ring of chunks. Two things are otherwise. The number of a chunk is its
//! time divided by its length, and never taken modulo the ring: so an event that comes late never turns up in a later round, and a
//! range whose ends fall on one chunk is not the whole ring. And chunks are listed, by incarnation.
//!
//! # Guarantees, a store
//! | | memory | memcached | without cas or expiry (MemcacheDB) |
//! |---|---|---|---|
//! | an event whose put was acknowledged | told once, by every fetch of its time and by every tail, until its retention is over | the same; a loss is told as a gap | the same |
//! | an outcome that is unknown | cannot be | looked into and tried again until the timeout; then `Unknown`: it is told at most once | the same |
//! | a part of a chunk that was evicted, or went with its server | only where the store is built to evict: a [`Gap`] | a [`Gap`] in every fetch of its time until its retention is over, and once in every tail, also where it was begun anew since | the same |
//! | the list of chunks is gone | [`Lost`](larder_core::ErrorKind::Lost) | `Lost`; to putters from their next chunk or minute on | the same |
//! | chunks past the retention | leave by themselves | the same | stay until another is made |
//!
//! - Within one fetch, and one look of a tail, events are in the order of their time; those of one millisecond part by part, and as they arrived in each.
//! - A put of several chunks is atomic a chunk, not over all.
//! - A store that was set back to an older state, and put into since, is told to a tail as [`RolledBack`](larder_core::ErrorKind::RolledBack) by any part that does not begin with what
//!   was read of it, wherever that part ends now. What a setback took before a tail read it, the tail does not know of.
//! - Where the list of chunks was set back, a part that it lacks by that is found again once somebody puts into it. A handle that goes on putting there is told `RolledBack` by its next part or chunk, or
//!   within a minute, as is every later put of it: open the log anew. With that it lists the parts again that it puts into, so that what it was told to be there is found. What it put in that
//!   minute and put nothing behind is not found before somebody puts into its part.
//! - Around a loss, and only there, a tail may tell an event twice: one whose put was in doubt when the part was lost that it first
//!   landed in. The gap is told in the same look, or was before.
//! - Wall clocks that disagree by up to five minutes cost nothing. One that is further off makes its owner put events at wrong times,
//!   see younger or older chunks as over, or makes chunks end early, which others are told of as gaps.
//! - A putter that crashes between making a part and registering it leaves an event that nobody was promised: nobody sees it, until
//!   another puts into the same part, and registers it. It ends with the chunk's life.
//! - **What a gap stands for**: what was in its part, and what is put there for one more minute and one put's time by handles that have not noticed. A handle looks once a minute which incarnation it puts into. So where a part was
//!   evicted, made again by a putter that died before it registered it, and evicted a second time within that minute, a tail that has told the gap tells no second one: what was lost with the second is in the
//!   part and the time of the first. A fetch tells a gap there in any case.
//! - A request that the network holds back until its part was evicted **and** made again, and its event put elsewhere, can
//!   bring it back as a second one to a tail that has kept no mark of it; a fetch tells it once.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | put, into a part that this handle has seen or that is there | 1 |
//! | put, a part's first event: of a chunk, or after 64 KiB of it | 2; 3 to 4 where others make the same part at the same time; 2 more, once in 64 chunks or seldomer, for removing entries of the list |
//! | put, where the part has no room | 2 to 3 more |
//! | fetch | 1 for the list, 1 for all parts (one a batch that they fill) |
//! | a look of a tail | 1 where nothing came, 2 where something did; it reads 64 parts at the most, and each further 64 that changed are a look of 1 |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 3 to make it |
//!
//! # Limits and memory
//! An event has 0 bytes up to [`EventLog::event_bytes_max`], the store's limit on a value less about 130 bytes. A log has at most
//! [`CHUNKS_MAX`] chunks within its retention, a chunk 65,536 parts, and all chunks together about 54,000 parts (an item of 1 MiB lists so many):
//! 3 GB of events that come one by one. Without cas the list cannot be compacted, and a log takes some 15,000 parts in its whole life. A put travels with those that wait on the same handle; each frame costs 14 to 17 bytes, each event 2 to 6
//! beside its own, a part 34 and its key, and 19 in the list. A look of a tail asks for the token of every part within the retention, and holds the 64 parts that it reads: so its memory
//! does not grow with what the log keeps. A retention whose list of chunks this store's items cannot hold is refused at open.
//! The first put of a handle into a part that is there, and one a minute, reads that part: mostly up to 64 KiB.

mod cursor;
mod events;
mod fetch;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod inner;
mod layout;
mod options;
mod put;
mod tail;
mod writer;

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Key, Result, StoreRef};

pub use self::cursor::Cursor;
pub use self::events::{Event, Events, Gap, GapCause};
use self::inner::Inner;
pub(crate) use self::layout::{Counted, LAYOUT, weigh};
pub use self::options::{CHUNK_MAX, CHUNK_MIN, CHUNKS_MAX, EventLogOptions, FUTURE_MAX, RETENTION_MAX};
pub use self::tail::Tail;
use self::writer::Writer;
use crate::combine::Combiner;
use crate::ledger;
use crate::manifest::Manifest;
use crate::name::Name;
use crate::owned::Owned;
use crate::registry::Pieces;

/// A handle of a log: a cheap clone, shared by as many tasks as you like.
///
/// Concurrent puts through clones of one handle travel together, in one write.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::EventLog;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let log = EventLog::open_or_create(&store, "audit").await?;
/// log.put("ann signed in").await?;
/// log.put("bob signed in").await?;
/// let events = log.fetch(..).await?.whole()?;
/// assert_eq!(events[1].bytes, "bob signed in");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct EventLog {
    inner: Arc<Inner>,
    combiner: Arc<Combiner<Writer>>,
    timeout: Duration,
    future: Duration,
}

impl EventLog {
    fn new(inner: Inner, timeout: Duration, future: Duration) -> EventLog {
        let inner = Arc::new(inner);
        let weight_max = writer::PART_BYTES.min(inner.event_bytes_max());
        let combiner = Arc::new(Combiner::new(Writer::new(inner.clone()), weight_max));
        EventLog { inner, combiner, timeout, future }
    }

    /// Options, to open a log otherwise than by default.
    ///
    /// ```
    /// # use larder_structures::EventLog;
    /// let options = EventLog::options().retention(std::time::Duration::from_secs(86_400));
    /// ```
    pub fn options() -> EventLogOptions {
        EventLogOptions::default()
    }

    /// Opens a log that is there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::{ErrorKind, StoreRef};
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(EventLog::open(&store, "audit").await.unwrap_err().kind(), ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`EventLogOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<EventLog> {
        EventLog::options().open(store, name).await
    }

    /// Opens a log, and makes it if there is none: 24 chunks of an hour. **Round trips: 1**, 3 if it is made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let log = EventLog::open_or_create(&store, "audit").await?;
    /// assert!(log.fetch(..).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`EventLogOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<EventLog> {
        EventLog::options().open_or_create(store, name).await
    }

    /// The events of a range of time, in milliseconds since the Unix epoch, and the gaps in it. What is older than the retention is not
    /// told. **Round trips: 2**: the list of chunks, then all parts of the range at once; one more for each further batch that they fill.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let log = EventLog::open_or_create(&store, "audit").await?;
    /// log.put("x").await?;
    /// let now_ms = log.now_ms();
    /// assert_eq!(log.fetch(now_ms - 1_000..=now_ms).await?.whole()?.len(), 1);
    /// assert_eq!(log.fetch(..now_ms - 1_000).await?.whole()?.len(), 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](larder_core::ErrorKind::BadInput) for a range that ends before it begins, [`Lost`](larder_core::ErrorKind::Lost) where the list
    /// of chunks is gone, those of the store: if one part could not be read, nothing is told. Parts that are gone are no error here: see [`Events`].
    pub async fn fetch(&self, range: impl RangeBounds<u64>) -> Result<Events> {
        let times = fetch::millis(&range)?;
        self.inner.ledger.vigil().check()?;
        let found = fetch::fetch(&self.inner, Ctx::within(self.timeout), times).await?;
        self.inner.ledger.vigil().check()?;
        Ok(found)
    }

    /// Follows the log from a cursor on: [`Cursor::default`] begins with the oldest event that is kept. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{EventLog, log::Cursor};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// # log.put("x").await?;
    /// let mut tail = log.tail(Cursor::default())?;
    /// for event in tail.next().await?.whole()? {
    ///     println!("{}", String::from_utf8_lossy(&event.bytes));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](larder_core::ErrorKind::Lost) for a cursor of an earlier life of the name.
    pub fn tail(&self, cursor: Cursor) -> Result<Tail> {
        Tail::new(self.inner.clone(), self.timeout, cursor)
    }

    /// Follows the log from now on: what is there already is not told. **Round trips: 2**, and one more for
    /// each further 64 parts that the log has: it reads them all, 64 at a time, each within a timeout of their own.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// log.put("before").await?;
    /// let mut tail = log.tail_from_now().await?;
    /// log.put("after").await?;
    /// assert_eq!(tail.poll().await?.whole()?[0].bytes, "after");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tail::poll`].
    pub async fn tail_from_now(&self) -> Result<Tail> {
        let mut tail = self.tail(Cursor::default())?;
        loop {
            let _before = tail.poll().await?;
            if !tail.is_behind() {
                return Ok(tail);
            }
        }
    }

    /// The time of this handle's clock, in milliseconds since the Unix epoch: what events are given that are given no time.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// assert!(log.now_ms() > 1_700_000_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }

    /// How much time a chunk spans.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// assert_eq!(log.chunk().as_secs(), 3_600);
    /// # Ok(())
    /// # }
    /// ```
    pub fn chunk(&self) -> Duration {
        Duration::from_millis(self.inner.params.chunk_ms)
    }

    /// How long events are kept.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// assert_eq!(log.retention().as_secs(), 24 * 3_600);
    /// # Ok(())
    /// # }
    /// ```
    pub fn retention(&self) -> Duration {
        Duration::from_millis(self.inner.params.retention_ms)
    }

    /// The longest event that this store takes, in bytes.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::EventLog;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let log = EventLog::open_or_create(&store, "audit").await?;
    /// assert!(log.event_bytes_max() > 1_000_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn event_bytes_max(&self) -> usize {
        self.inner.event_bytes_max()
    }
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// The keys of a log's parts, for dropping it, and the token of their list. **Round trips: 1.**
///
/// # Errors
/// Those of the store, and [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch).
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let (listed, cas) = ledger::pieces_and_token(store, ctx, name, manifest).await?;
    let keys: Result<Vec<Key>> = inner::parts(&listed).into_iter().map(|at| manifest.data_key(name, at)).collect();
    Ok(Pieces { keys: Owned::items(keys?), tokens: vec![cas] })
}

/// The parameters in words; `None` for what this release did not write.
pub(crate) fn describe(params: &[u8]) -> Option<Vec<(&'static str, String)>> {
    let params = layout::Params::decode(params)?;
    let time = |ms| format!("{:?}", std::time::Duration::from_millis(ms));
    Some(vec![("chunk", time(params.chunk_ms)), ("retention", time(params.retention_ms))])
}
