//! How many came in the last minutes: hits counted in windows of time, by many processes at once.
//!
//! Time is cut into windows of one period; window *n* goes from *n* periods after 1970 to the next, for everybody. The window that is
//! being filled is the shadow: hits count there. The one before it, the last complete one, is what [`get`](Visitors::get) returns; it does
//! not change any more, but for late hits. [`interpolated`](Visitors::interpolated) moves evenly from the window before that one to it
//! while a period passes, so that a page shows no steps.
//!
//! Source: "Data structures in memcached/MemcacheDB, part 1", smira, Habr, 2009. What was changed: the article has two keys by turns, which meet
//! again after two periods, so that it is right only with many visitors (it says so); here a window is a key of its own for ever, and a window that
//! nobody hit is 0. A key's life ends at a fixed time, not so long after its first hit. Loss is told. Clocks may disagree.
//!
//! # Two kinds of hits
//! [`hit`](Visitors::hit) is for a caller that knows that the visitor is new in this period (by a cookie, or a log): the store's own arithmetic.
//! [`hit_visitor`](Visitors::hit_visitor) takes the visitor's id and counts it once a window, whoever else says it too. A window's figure is
//! the sum of both.
//!
//! Of an id its 64-bit hash (XXH3, seeded with the structure's generation) is kept. Two ids with one hash count as one: of *n* visitors in a window
//! *n* (*n* - 1) / 2^65 are expected to be missing, 3 in 10^8 of a million visitors (not each: in all). Somebody who knows the generation can make up
//! ids that collide.
//!
//! # Guarantees, a store
//! | | memory | memcached | memcached's classic protocol without cas or lives (MemcacheDB) |
//! |---|---|---|---|
//! | a hit that was acknowledged | counts once, or its window says [`Lost`](ErrorKind::Lost) | the same | the same |
//! | a lost reply: `hit` | cannot be | `Unknown`: it counts once or not at all, and is never tried again | the same |
//! | a lost reply: `hit_visitor` | cannot be | tried again until the timeout, counting once; then `Unknown`, counting once or not at all | the same |
//! | a window that was evicted | only where it is built as a cache that evicts: `Lost`, for that window only | `Lost`, for that window only | the same |
//! | a window that nobody hit | 0 | 0 | 0 |
//! | a restart | the end | `Lost` to handles; [`Absent`](ErrorKind::Absent) to who has never seen it | as the server keeps it |
//! | windows that are over | expire | expire | are deleted by those who hit later ones |
//! | repeats that fill a shard | compacted away | compacted away | stay; [`Full`](ErrorKind::Full) comes sooner |
//!
//! How a loss is told: the pieces of a window (its counter, and the shards of its visitors) are listed in a ledger, each with an incarnation that its
//! maker drew at random and that stands in the piece, too. A hit is acknowledged only when its piece is listed. So a piece that is listed and gone, or
//! there in another incarnation, was lost; one that is neither there nor listed was never hit. A read, too, lists what it finds before it tells it. A counter has room for 22 bits of
//! incarnation: one that is lost and made again is taken for the first once in 4 million losses. Hits go on in a window that was lost; reads of it say so.
//! A ledger that is lost ends the structure: everything says `Lost` until it is dropped and made anew.
//!
//! # Clocks
//! Each client counts by its own clock. Where two disagree, one's hits count in windows that begin as much earlier or later; nothing is
//! lost as long as they disagree by no more than 5 minutes. Beyond that, hits can count in windows that others have seen the last of, and a reader that
//! is so far behind can take a window that has expired for a lost one.
//!
//! [`hit_at`](Visitors::hit_at) takes the time of a hit: late ones count in the window of their time as long as it is kept, for two periods after its
//! end. Older ones, and those more than 5 minutes ahead, are [`BadInput`](ErrorKind::BadInput).
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | hit, hit_many, hit_at | 1; a window's first 2 |
//! | hit_visitor | 1; 0 for one that the handle has counted in this window already; a shard's first in a window 2 |
//! | get, current, interpolated, get_at | 1; 2 where a window was lost, or is not listed yet |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 3 to make it |
//!
//! Seldom more: a handle that meets a window whose maker has not listed it yet, or died before, lists it (1 more, of a shard 2); a shard without
//! room is compacted on the way (2 more); every 256th window or so its predecessors' entries are removed (2 more).
//!
//! # Limits and memory
//! Periods of 1 s to 30 days. A window counts to 2^39 hits, 2^31 a call. A window costs its counter, 60 to 80 bytes with its key and without the server's own
//! overhead, and 8 bytes a visitor named (8 more for each process that names the same one, until it is compacted). Three windows are in use; those before
//! live on for 5 minutes. A handle remembers 65,536 visitors.
//!
//! | module | what it holds |
//! |---|---|
//! | `layout` | the bytes, and the arithmetic of windows |
//! | `options` | opening and making |
//! | `shared` | windows, lives, the ledger |
//! | `hits`, `visits` | counting |
//! | `read` | figures, and loss |
//! | `known` | what a handle remembers |

#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod hits;
mod known;
mod layout;
mod options;
mod read;
mod shared;
mod visits;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_core::{Ctx, Error, ErrorKind, Key, Result, StoreRef};

pub(crate) use self::layout::{LAYOUT, stale_bytes};
pub use self::options::VisitorsOptions;
use self::shared::{Shared, as_ms};
use crate::ledger::{self, Piece};
use crate::manifest::Manifest;
use crate::name::Name;
use crate::owned::Owned;
use crate::registry::Pieces;

/// A handle of visitors: a cheap clone, shared by as many tasks as you like.
///
/// ```
/// # use larder_core::{ManualClock, StoreRef};
/// # use larder_structures::Visitors;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
/// let clock = Arc::new(ManualClock::at(Duration::from_secs(1_700_000_100)));
/// let site = Visitors::options().clock(clock.clone()).open_or_create(&store, "site").await?;
/// site.hit().await?;
/// site.hit_visitor("alice").await?;
/// site.hit_visitor("alice").await?;
/// assert_eq!((site.current().await?, site.get().await?), (2, 0));
/// clock.advance(Duration::from_secs(300));
/// assert_eq!((site.current().await?, site.get().await?), (0, 2));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Visitors(Arc<Shared>);

impl Visitors {
    /// Options, to open visitors otherwise than by default.
    ///
    /// ```
    /// # use larder_structures::Visitors;
    /// let options = Visitors::options().period(std::time::Duration::from_secs(60)).shards(8);
    /// ```
    pub fn options() -> VisitorsOptions {
        VisitorsOptions::default()
    }

    /// Opens visitors that are there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::{ErrorKind, StoreRef};
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(Visitors::open(&store, "site").await.unwrap_err().kind(), ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`VisitorsOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Visitors> {
        Visitors::options().open(store, name).await
    }

    /// Opens visitors, and makes them with a period of 5 minutes if there are none. **Round trips: 1**, 3 if they are made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = Visitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.get().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`VisitorsOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Visitors> {
        Visitors::options().open_or_create(store, name).await
    }

    /// Counts a visitor that the caller knows to be new in this window. **Round trips: 1**, a window's first 2.
    ///
    /// Dropped midway, it counts once or not at all.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// site.hit().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// With [`Effect::Unknown`](larder_core::Effect::Unknown) it counted once or not at all, and with `NotApplied` it did not and will not. [`Lost`](ErrorKind::Lost) where the
    /// structure is gone; [`Overflow`](ErrorKind::Overflow) past 2^39 in a window; [`Unsupported`](ErrorKind::Unsupported) for a window's first hit
    /// outside a Tokio runtime; and what the store says.
    pub async fn hit(&self) -> Result<()> {
        self.hit_many(1).await
    }

    /// Counts several at once. **Round trips: 1**, a window's first 2; 0 for none.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// site.hit_many(12).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`hit`](Visitors::hit); [`BadInput`](ErrorKind::BadInput) for more than 2^31.
    pub async fn hit_many(&self, hits: u64) -> Result<()> {
        let window = self.0.window_of(self.0.now_ms())?;
        self.0.hit(window, hits).await
    }

    /// Counts several that came at a time, in the window of that time. **Round trips: 1**, a window's first 2; 0 for none.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # use std::time::{Duration, SystemTime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// site.hit_at(SystemTime::now() - Duration::from_secs(300), 1).await?; // late
    /// assert_eq!(site.get().await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`hit_many`](Visitors::hit_many); [`BadInput`](ErrorKind::BadInput) for a time in a window that is over (two periods after its end), more than 5
    /// minutes ahead of the handle's clock, or before 1970.
    pub async fn hit_at(&self, time: SystemTime, hits: u64) -> Result<()> {
        let window = self.0.window_of_hit(since_1970_ms(time)?)?;
        self.0.hit(window, hits).await
    }

    /// Counts a visitor once in this window, by its id: any bytes. **Round trips: 1**; 0 if this handle has counted it already, but for one a minute,
    /// which looks whether the structure is there; a shard's first in a window 2.
    ///
    /// Tried again where a reply is lost: that does no harm. So does the caller's trying again, in the same window.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let clock = std::sync::Arc::new(larder_core::ManualClock::at(std::time::Duration::from_secs(1_000_000)));
    /// # let site = Visitors::options().clock(clock).open_or_create(&store, "site").await?;
    /// for id in ["alice", "bob", "alice"] {
    ///     site.hit_visitor(id).await?;
    /// }
    /// assert_eq!(site.current().await?, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// With [`Effect::Unknown`](larder_core::Effect::Unknown) it counted once or not at all; trying again does no harm. [`Full`](ErrorKind::Full) where a shard takes no
    /// more visitors; [`Lost`](ErrorKind::Lost) where the structure is gone; [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime; and what the
    /// store says.
    pub async fn hit_visitor(&self, id: impl AsRef<[u8]>) -> Result<()> {
        let window = self.0.window_of(self.0.now_ms())?;
        self.0.visit(window, id.as_ref()).await
    }

    /// Counts a visitor once in the window of a time. **Round trips:** as [`hit_visitor`](Visitors::hit_visitor).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # use std::time::{Duration, SystemTime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// site.hit_visitor_at("alice", SystemTime::now() - Duration::from_secs(300)).await?;
    /// assert_eq!(site.get().await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`hit_visitor`](Visitors::hit_visitor), and of the time as [`hit_at`](Visitors::hit_at).
    pub async fn hit_visitor_at(&self, id: impl AsRef<[u8]>, time: SystemTime) -> Result<()> {
        let window = self.0.window_of_hit(since_1970_ms(time)?)?;
        self.0.visit(window, id.as_ref()).await
    }

    /// The figure of the last complete window. **Round trips: 1**, 2 where it was lost, or is not listed yet.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// println!("{} visitors", site.get().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where that window, or the structure, is gone; [`LayoutMismatch`](ErrorKind::LayoutMismatch) for foreign bytes; and what the store says.
    pub async fn get(&self) -> Result<u64> {
        let (_, [figure]) = self.0.read_behind([1]).await?;
        Ok(figure)
    }

    /// The figure so far of the window that is being filled. **Round trips: 1**, 2 where it was lost, or is not listed yet.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.current().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Visitors::get).
    pub async fn current(&self) -> Result<u64> {
        let (_, [figure]) = self.0.read_behind([0]).await?;
        Ok(figure)
    }

    /// A figure that moves evenly: with *a* the last complete window but one, *b* the last, and *f* the part of the current window that
    /// has passed, *a* (1 - *f*) + *b* *f*, rounded to the nearest. **Round trips: 1**, 2 where a window was lost, or is not listed yet.
    ///
    /// So it is where [`get`](Visitors::get) will be at the end of the window, and goes on from there: it has no steps.
    ///
    /// ```
    /// # use larder_core::{ManualClock, StoreRef};
    /// # use larder_structures::Visitors;
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    /// let clock = Arc::new(ManualClock::at(Duration::from_secs(300_000)));
    /// let site = Visitors::options().clock(clock.clone()).open_or_create(&store, "site").await?;
    /// site.hit_many(100).await?;
    /// clock.advance(Duration::from_secs(300 + 75));
    /// assert_eq!((site.get().await?, site.interpolated().await?), (100, 25));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Visitors::get), of either window.
    pub async fn interpolated(&self) -> Result<u64> {
        let (now_ms, [older, newer]) = self.0.read_behind([2, 1]).await?;
        let period_ms = self.0.params.period_ms;
        Ok(layout::interpolated(older, newer, now_ms % period_ms, period_ms))
    }

    /// The figure of the window of a time: of the current one, or of one of the two before. **Round trips: 1**, 2 where it was lost, or is not listed yet.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # use std::time::{Duration, SystemTime};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = Visitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.get_at(SystemTime::now() - Duration::from_secs(600)).await?, 0);
    /// assert!(site.get_at(SystemTime::now() - Duration::from_secs(1_200)).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Visitors::get), and of the time as [`hit_at`](Visitors::hit_at).
    pub async fn get_at(&self, time: SystemTime) -> Result<u64> {
        let window = self.0.window_of_hit(since_1970_ms(time)?)?;
        self.0.read_window(window).await
    }

    /// How long a window is. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = Visitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.period().as_secs(), 300);
    /// # Ok(())
    /// # }
    /// ```
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.0.params.period_ms)
    }

    /// The name. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::Visitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = Visitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.name().as_bytes(), b"site");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &Name {
        &self.0.name
    }
}

/// # Errors
/// [`ErrorKind::BadInput`] for a time before 1970.
fn since_1970_ms(time: SystemTime) -> Result<u64> {
    let since = time.duration_since(UNIX_EPOCH).map_err(|error| {
        let detail = format!("a hit is {:?} before 1970, where the first window begins", error.duration());
        Error::new(ErrorKind::BadInput, detail)
    })?;
    Ok(as_ms(since))
}

/// The keys of the pieces that the ledger lists, for dropping them. **Round trips: 1.** One that was made and not listed yet ends by itself, where the
/// store lets items end.
///
/// # Errors
/// As [`ledger::pieces`].
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    let (listed, cas) = ledger::pieces_and_token(store, ctx, name, manifest).await?;
    // What a later release may list beyond has no key of this one.
    let known = listed.iter().filter(|piece| piece.number <= layout::WINDOW_MAX && piece.part <= layout::SHARDS_MAX);
    let key = |piece: &Piece| manifest.data_key(name, layout::Index { window: piece.number, part: piece.part });
    let keys: Result<Vec<Key>> = known.map(key).collect();
    Ok(Pieces { keys: Owned::items(keys?), tokens: vec![cas] })
}

/// The parameters in words; `None` for what this release did not write.
pub(crate) fn describe(params: &[u8]) -> Option<Vec<(&'static str, String)>> {
    let params = layout::Params::decode(params)?;
    let period = Duration::from_millis(params.period_ms);
    Some(vec![("period", format!("{period:?}")), ("shards a window", params.shards.to_string())])
}

#[cfg(test)]
mod tests;
