//! How many different visitors came in a day: each id counts once a period, whoever adds it, and whoever adds it first is told that it was new.
//!
//! Time is cut into periods, days unless said otherwise, in any time zone: so far ahead of UTC for ever ([`offset_s`](UniqueVisitorsOptions::offset_s)), or by the
//! calendar of a place, whose clocks change ([`zone`](UniqueVisitorsOptions::zone)). A period has a number, absolute, for ever: `20000` is the day that begins
//! 20,000 days after 1970 there. A period is a number of shards, sized for the visitors that are expected; a shard holds hashes of ids. There is no
//! counter beside them: the count *is* the sum of the shards, so nothing that stops midway loses a visitor.
//!
//! Source: J. Carlson, "Redis in Action", 2013, chapter 9: a sharded set of the first 15 hex digits of a UUID, and a counter. What was changed: ids are
//! hashed and never cut (of a version-7 UUID the first digits are a clock); the counter is gone, and with it the step between the two in which a crash loses a
//! visitor; what is expected is recorded with the day, so that to expect another number moves nothing; a day without visitors is no error; shards are
//! as full as they are meant to be; loss is told.
//!
//! # Four precisions
//! | | kept of an id | bytes a visitor at 10 million, coded | what is missing there |
//! |---|---|---|---|
//! | [`Exact`](Precision::Exact), numbers | a bijection of its 64 bits | 5.3 | nothing |
//! | [`Exact`](Precision::Exact), any | its whole 128-bit hash | 13.3 | 1.5 in 10^25 |
//! | [`Compact`](Precision::Compact) | 47 bits | 3.2 | 0.4 ids in all |
//! | [`NearExact`](Precision::NearExact) | 32 bits (24 to 48) | 1.3 | 0.12 %, put back into the count, which is then off by 10^-5 |
//! | [`Sketch`](Precision::Sketch) | a few bits in all | 2.7 KB in all | the count is off by 1.1 % |
//!
//! Of *n* ids with *b* bits of a hash kept, *n*²/2^(*b*+1) are expected to meet another and not to be counted; [`UniqueCount::missed`] tells how many.
//! Compact keeps 35 bits, and one more for each doubling of the shards. Hashes are XXH3-128 from a seed, or for numbers a bijection.
//!
//! On Redis and Valkey compact periods, and exact ones of numbers, are kept in the server's own sets of integers (`native`): the reply to an add is the "new?". Members have 32 bits where
//! compact (46 in all at 10 million) and where ids are below 2^45, 64 where one is larger: 4.5 and 8.6 bytes a visitor.
//!
//! # Guarantees, a store
//! | | memory | memcached, Redis |
//! |---|---|---|
//! | an id that was acknowledged | counts once | counts once, or its period says [`Lost`](ErrorKind::Lost) |
//! | "new?" of concurrent callers | exactly one of those that add an id is told [`New`](Novelty::New) | the same |
//! | a lost reply | cannot be | tried again, counting once; "new?" is [`Unknown`](Novelty::Unknown) only where others wrote the same shard just then; in sets for the ids of that batch |
//! | a shard that is gone | `Lost`, for that period only | the same |
//! | a period in which nobody came | 0 | 0 |
//! | a restart | the end | `Lost` to handles; [`Absent`](ErrorKind::Absent) to who has never seen it |
//! | a store without cas | | refused at open, [`Unsupported`](ErrorKind::Unsupported) |
//!
//! How a loss is told: all shards of a period are created, empty, before its head, and the head before its entry in the ledger; a visitor is
//! counted after that. So a shard or a head that is missing was lost. A period that was lost takes no more visitors until
//! [`forget`](UniqueVisitors::forget) clears it away; those after it are not touched. Near-exact and compact never tell `New` twice, but tell `Known` of one that is
//! new where two hashes meet. A sketch cannot tell: `Unknown`.
//!
//! A store that goes back to an older state of a shard (a failover to a replica that was behind) is not noticed.
//!
//! # Round trips
//! | of an opened handle | round trips |
//! |---|---|
//! | add, add_in | 2 for every 4,096 shards that ids stand in, 1 where all of these are known already; in sets 1 for every 16,383 ids and shards, four such at once |
//! | is_new | 1 |
//! | are_new_in | 1 for every 4,096 shards that ids stand in |
//! | count, count_in | 1 for every 4,096 shards; no values travel, but that of a sketch |
//! | stat | as a count; twice as many in sets, and of a sketch |
//! | forecast | as a count of the period before |
//! | union | 1 for every 256 shards of each period; the values travel |
//! | forget | 4, and 1 more for each further 4,096 shards; 1 where nobody came |
//! | open | 1 |
//! | open_or_create | 1 if it is there, 3 to make it |
//!
//! A handle's first call for a period costs 1 more, or, where it is the first add to a period, which makes it, 7 more (6 where periods expire), and 1 for each further 4,096 shards, its own and
//! of the period before. An add that meets with others' writes is tried again: 2 more each time. Adds of one handle that come together share theirs, but in sets.
//!
//! # How many are expected
//! A period is made for half as many again as came in the one before it; where nobody came, for what the options say. One that outgrows it is not resized: it
//! has more in each shard, is written more slowly, and stays right, until a shard reaches the largest item ([`Full`](ErrorKind::Full): with items of 1 MiB
//! some 200 times as many as expected). [`stat`](UniqueVisitors::stat) tells.
//!
//! # Memory
//! A shard takes 5 KB when the period is as full as expected, near-exact 10 KB on Redis and 48 KB in the process, 4.4 KB on memcached. On a server that takes memory in size classes it takes that from the start, in one class:
//! items that grow leave pages of each class behind. A set is made for 424 members where the server packs 512, for 861 where it is told to pack 1,024 (`set-max-intset-entries`), which is 4.35 bytes a visitor; [`stat`](UniqueVisitors::stat) tells how many it does not. A store in the process holds it as it is.
//!
//! | module | what it holds |
//! |---|---|
//! | `layout` | the bytes, and where a hash stands |
//! | `rice` | the code of sorted numbers |
//! | `zone` | days by the calendar of a zone |
//! | `id` | ids and hashes |
//! | `sizing` | shards and bits for a number of visitors, the forecast, the correction |
//! | `sketch` | CPC sketches |
//! | `options` | opening and making |
//! | `core` | periods, heads, the ledger |
//! | `native` | periods on a server's own sets |
//! | `make` | making a period, and clearing one away |
//! | `add` | adding |
//! | `count` | figures, "new?" without adding, unions |

mod add;
mod core;
mod count;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod id;
mod layout;
mod make;
mod native;
mod options;
pub(crate) mod portable;
mod rice;
mod sizing;
mod sketch;
mod zone;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use larder_core::{Ctx, Effect, Error, ErrorKind, Result, StoreRef, ambient};

use self::add::{Adder, Change};
use self::core::{Core, as_ms};
use self::id::{Hash, hash_of};
pub use self::id::{IdKind, VisitorId};
pub(crate) use self::layout::LAYOUT;
pub use self::layout::Precision;
pub use self::options::UniqueVisitorsOptions;
use crate::combine::Combiner;
use crate::manifest::Manifest;
use crate::name::Name;
use crate::registry::Pieces;
use crate::runtime;

/// The most ids that one call takes.
const IDS_MAX: usize = 1 << 20;

/// A handle of unique visitors: a cheap clone, shared by as many tasks as you like.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::{Novelty, UniqueVisitors};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let site = UniqueVisitors::options().expected(1_000).open_or_create(&store, "site").await?;
/// assert_eq!(site.add(["alice", "bob", "alice"]).await?, [Novelty::New, Novelty::New, Novelty::Known]);
/// assert_eq!(site.add(["bob", "carol"]).await?, [Novelty::Known, Novelty::New]);
/// assert_eq!(site.count().await?.visitors, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct UniqueVisitors(Arc<Shared>);

struct Shared {
    core: Arc<Core>,
    combiner: Combiner<Adder>,
    tickets: AtomicU64,
}

/// Whether a visitor came for the first time in a period.
///
/// ```
/// use larder_structures::unique::Novelty;
/// assert_eq!(Novelty::New.as_str(), "new");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Novelty {
    /// It did: nobody else is told so of this id.
    New,
    /// It was there already.
    Known,
    /// It counts, and whether it was there before cannot be told: a reply was lost while others wrote, or this is a sketch.
    Unknown,
}

impl Novelty {
    /// The answer in a word.
    ///
    /// ```
    /// assert_eq!(larder_structures::Novelty::Known.as_str(), "known");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Novelty::New => "new",
            Novelty::Known => "known",
            Novelty::Unknown => "unknown",
        }
    }
}

/// How many came.
///
/// ```
/// let nobody = larder_structures::UniqueCount::default();
/// assert_eq!((nobody.visitors, nobody.standard_error), (0, 0.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UniqueCount {
    /// The count: what is stored; where near-exact, with those that are expected to be missing; of a sketch its estimate.
    pub visitors: u64,
    /// How many different hashes are stored; 0 for a sketch.
    pub stored: u64,
    /// How many ids are expected not to be among them, since their hash is another's.
    pub missed: f64,
    /// By how many visitors an estimate is off, as a standard deviation; 0 where nothing is estimated.
    pub standard_error: f64,
}

/// Figures of a period.
///
/// ```
/// # use larder_structures::UniqueVisitors;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let visitors = UniqueVisitors::options().expected(1_000).open_or_create(&store, "site").await?;
/// visitors.add(["alice", "bob", "alice"]).await?;
/// let stat = visitors.stat(visitors.current()?).await?.expect("somebody came");
/// assert_eq!((stat.count.visitors, stat.expected), (2, 1_000));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UniqueStat {
    /// Which period.
    pub period: u64,
    /// How many visitors it was made for.
    pub expected: u64,
    /// Over how many shards it is spread.
    pub shards: u32,
    /// How many bits of a hash are kept.
    pub bits: u32,
    /// What a shard is padded to, in bytes; 0 where it is not.
    pub padded_bytes: u32,
    /// How many visitors the fullest shard has.
    pub largest_shard: u32,
    /// Where shards are sets of the server's own: how many it does not keep packed, as it says itself, so that they take some ten times as much memory; 0 elsewhere.
    pub unpacked_shards: u64,
    /// How many came.
    pub count: UniqueCount,
}

impl UniqueStat {
    /// True if more came than the period was made for: it is right, and takes longer to write.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::options().expected(1).open_or_create(&store, "site").await?;
    /// site.add(["alice", "bob"]).await?;
    /// assert!(site.stat(site.current()?).await?.is_some_and(|stat| stat.is_outgrown()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_outgrown(&self) -> bool {
        self.count.visitors > self.expected
    }
}

impl UniqueVisitors {
    /// Options, to open unique visitors otherwise than by default.
    ///
    /// ```
    /// # use larder_structures::UniqueVisitors;
    /// let options = UniqueVisitors::options().expected(1_000_000).offset_s(3_600);
    /// ```
    pub fn options() -> UniqueVisitorsOptions {
        UniqueVisitorsOptions::default()
    }

    /// Opens unique visitors that are there. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::{ErrorKind, StoreRef};
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// assert_eq!(UniqueVisitors::open(&store, "site").await.unwrap_err().kind(), ErrorKind::Absent);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UniqueVisitorsOptions::open`].
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<UniqueVisitors> {
        UniqueVisitors::options().open(store, name).await
    }

    /// Opens unique visitors, and makes compact ones of a day in UTC if there are none. **Round trips: 1**, 3 if they are made.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.count().await?.visitors, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`UniqueVisitorsOptions::open_or_create`].
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<UniqueVisitors> {
        UniqueVisitors::options().open_or_create(store, name).await
    }

    /// Adds visitors to the period that it is now, and tells of each whether it is new: of the same id several times, the first. At most 2^20.
    /// **Round trips: 2**, see the [module](self).
    ///
    /// Dropped midway, or where a part of it failed, some count and some do not; to add them again does no harm, but then those that counted are told to be
    /// known.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Novelty, UniqueVisitors};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// let ids: Vec<String> = (0..100).map(|n| format!("visitor {n}")).collect();
    /// assert!(site.add(&ids).await?.iter().all(|novelty| *novelty == Novelty::New));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput), with nothing written, for what is no number where numbers are counted, and for too many;
    /// [`Lost`](ErrorKind::Lost) where the period or the structure is gone; [`Full`](ErrorKind::Full) where a shard has reached the largest item; with
    /// [`Effect::Unknown`] some may count; [`Unsupported`](ErrorKind::Unsupported) outside a Tokio runtime; and what the store says.
    pub async fn add<'a, I>(&self, ids: I) -> Result<Vec<Novelty>>
    where
        I: IntoIterator,
        I::Item: Into<VisitorId<'a>>,
    {
        let hashes = self.hashes(ids)?;
        self.add_hashes(self.current()?, &hashes).await
    }

    /// Adds visitors to a period. **Round trips:** as [`add`](UniqueVisitors::add).
    ///
    /// For those who came late; and for calendars: where summer time makes days of 23 and 25 hours, the caller knows which day it is, and says so by
    /// the number of days from 1970 to that date.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// let yesterday = site.current()? - 1;
    /// site.add_in(yesterday, [7u64, 8]).await?;
    /// assert_eq!(site.count_in(yesterday).await?.visitors, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`add`](UniqueVisitors::add), and [`BadInput`](ErrorKind::BadInput) for a period that is no longer kept, or begins more than 26 hours from now.
    pub async fn add_in<'a, I>(&self, period: u64, ids: I) -> Result<Vec<Novelty>>
    where
        I: IntoIterator,
        I::Item: Into<VisitorId<'a>>,
    {
        let hashes = self.hashes(ids)?;
        self.add_hashes(period, &hashes).await
    }

    async fn add_hashes(&self, period: u64, hashes: &[Hash]) -> Result<Vec<Novelty>> {
        let core = &self.0.core;
        core.vigil().check()?;
        core.expect_kept(period)?;
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        runtime::current("an add has a timeout")?;
        let deadline = core.deadline();
        let day = within(deadline, core.timeout, core.open_day(deadline, period)).await?;
        let spots: Vec<_> = hashes.iter().map(|&hash| core.spot(&day.head, hash)).collect();
        let told = match core.is_native() {
            true => {
                within(deadline, core.timeout, async { Ok(core.add_members(deadline, &day, &spots).await) }).await?
            }
            false => self.write(day, spots, deadline).await?,
        };
        core.vigil().check()?;
        match told.failed {
            None => Ok(told.novelties),
            Some((error, count)) if count == hashes.len() => Err(error),
            Some((error, count)) => {
                let detail = format!("{count} of {} ids were not added: {error}", hashes.len());
                Err(Error::new(error.kind(), detail).effect(error.known_effect()).source(error.clone()))
            }
        }
    }

    /// Adds to shards that are written whole, with what others add meanwhile.
    async fn write(&self, day: Arc<core::Day>, spots: Vec<layout::Spot>, deadline: Instant) -> Result<add::Told> {
        let ticket = self.0.tickets.fetch_add(1, Ordering::Relaxed);
        let left = deadline.saturating_duration_since(ambient::now());
        let outcome = self.0.combiner.submit_within(Change { ticket, day, spots, deadline }, left).await?;
        outcome.get(&ticket).cloned().ok_or_else(|| {
            Error::new(ErrorKind::Protocol, "a write told nothing of this caller").effect(Effect::Unknown)
        })
    }

    /// Whether a visitor would be new in the period that it is now; adds nothing. **Round trips: 1.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Novelty, UniqueVisitors};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.is_new("alice").await?, Novelty::New);
    /// site.add(["alice"]).await?;
    /// assert_eq!(site.is_new("alice").await?, Novelty::Known);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`add`](UniqueVisitors::add).
    pub async fn is_new(&self, id: impl Into<VisitorId<'_>>) -> Result<Novelty> {
        let novelties = self.are_new_in(self.current()?, [id]).await?;
        Ok(novelties.first().copied().unwrap_or(Novelty::Unknown))
    }

    /// Whether visitors would be new in a period; adds nothing. **Round trips: 1** for every 4,096 shards that they stand in.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Novelty, UniqueVisitors};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// site.add(["bob"]).await?;
    /// assert_eq!(site.are_new_in(site.current()?, ["alice", "bob"]).await?, [Novelty::New, Novelty::Known]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`add_in`](UniqueVisitors::add_in).
    pub async fn are_new_in<'a, I>(&self, period: u64, ids: I) -> Result<Vec<Novelty>>
    where
        I: IntoIterator,
        I::Item: Into<VisitorId<'a>>,
    {
        let hashes = self.hashes(ids)?;
        let core = &self.0.core;
        core.expect_kept(period)?;
        let novelties = core.are_new(self.ctx(), period, &hashes).await?;
        core.vigil().check()?;
        Ok(novelties)
    }

    /// How many came so far in the period that it is now. **Round trips: 1** for every 4,096 shards.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Precision, UniqueVisitors};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::options().precision(Precision::SKETCH).open_or_create(&store, "site").await?;
    /// site.add(0..1_000u64).await?;
    /// let count = site.count().await?;
    /// assert!(count.visitors.abs_diff(1_000) < 60 && count.standard_error < 15.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost) where a part of the period, or the structure, is gone; [`LayoutMismatch`](ErrorKind::LayoutMismatch) for foreign bytes; and what the
    /// store says.
    pub async fn count(&self) -> Result<UniqueCount> {
        self.count_in(self.current()?).await
    }

    /// How many came in a period; 0 for one in which nobody came. **Round trips:** as [`count`](UniqueVisitors::count).
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.count_in(site.current()? - 1).await?.visitors, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`count`](UniqueVisitors::count), and [`BadInput`](ErrorKind::BadInput) for a period that is no longer kept.
    pub async fn count_in(&self, period: u64) -> Result<UniqueCount> {
        let core = &self.0.core;
        core.expect_kept(period)?;
        let count = core.count(self.ctx(), period).await?;
        core.vigil().check()?;
        Ok(count)
    }

    /// How many came in any of several periods, of one structure or of several, each once. **Round trips: 1** for every 256 shards of each period, and 1 for each
    /// that its handle does not know.
    ///
    /// Where the precisions differ, all are cut to the shortest hash, and the count is as exact as that. Sketches are merged. The values travel.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let (shop, blog) = (UniqueVisitors::open_or_create(&store, "shop").await?, UniqueVisitors::open_or_create(&store, "blog").await?);
    /// shop.add(["alice", "bob"]).await?;
    /// blog.add(["bob", "carol"]).await?;
    /// let today = shop.current()?;
    /// assert_eq!(UniqueVisitors::union([(&shop, today), (&blog, today)]).await?.visitors, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`count_in`](UniqueVisitors::count_in), of any; [`BadInput`](ErrorKind::BadInput) for structures of other ids or another seed, and for a sketch with what is none.
    pub async fn union(parts: impl IntoIterator<Item = (&UniqueVisitors, u64)>) -> Result<UniqueCount> {
        let parts: Vec<(&UniqueVisitors, u64)> = parts.into_iter().collect();
        for (handle, period) in &parts {
            handle.0.core.expect_kept(*period)?;
        }
        let Some(deadline) = parts.iter().map(|(handle, _)| handle.0.core.deadline()).max() else {
            return Ok(UniqueCount::default());
        };
        let inner: Vec<count::Part<'_>> =
            parts.iter().map(|(handle, period)| count::Part { core: &handle.0.core, period: *period }).collect();
        let count = count::union(&inner, deadline).await?;
        for (handle, _) in &parts {
            handle.0.core.vigil().check()?;
        }
        Ok(count)
    }

    /// How many visitors a period would be made for: half as many again as came in the one before it; where nobody came, or what is left of it cannot be read, what the
    /// options say. **Round trips: 1** for every 4,096 shards of the period before, one more where the handle does not know it; none where that one is over.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::options().expected(700).open_or_create(&store, "site").await?;
    /// let today = site.current()?;
    /// assert_eq!(site.forecast(today).await?, 700);
    /// site.add_in(today - 1, 0..100u64).await?;
    /// assert_eq!(site.forecast(today).await?, 150);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the store.
    pub async fn forecast(&self, period: u64) -> Result<u64> {
        self.0.core.forecast(self.ctx(), period).await
    }

    /// Figures of a period; `None` for one in which nobody came. **Round trips:** those of [`count`](UniqueVisitors::count); twice as many of a sketch, and where
    /// shards are sets of the server's own, which is asked how it keeps them.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.stat(site.current()?).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`count_in`](UniqueVisitors::count_in).
    pub async fn stat(&self, period: u64) -> Result<Option<UniqueStat>> {
        let core = &self.0.core;
        core.expect_kept(period)?;
        let stat = core.stat(self.ctx(), period).await?;
        core.vigil().check()?;
        Ok(stat)
    }

    /// Removes a period with all its visitors: one that is not wanted any more, or what is left of one that was lost. **Round trips: 4**, and 1 more for each further
    /// 4,096 shards; 1 if nobody came.
    ///
    /// Other handles that have it open are told [`Lost`](ErrorKind::Lost) once, and so is who comes while it is under way; after that the period is a new one, whatever
    /// comes late of the one before. Where periods never expire the list keeps 19 bytes of each that was removed, of 1,024 of them.
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// site.add(["alice"]).await?;
    /// site.forget(site.current()?).await?;
    /// assert_eq!(site.count().await?.visitors, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LayoutMismatch`](ErrorKind::LayoutMismatch) for another program's value, which is left: it is removed but for that, or, under its head's key, not at all. Those
    /// of the store; then a part of it may be gone, and it says `Lost`, but to handles that have it open, until it is removed again.
    pub async fn forget(&self, period: u64) -> Result<()> {
        let core = &self.0.core;
        core.vigil().check()?;
        runtime::current("a removal has a timeout")?;
        let deadline = core.deadline();
        within(deadline, core.timeout, core.remove(deadline, period)).await
    }

    /// The number of the period that it is now. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::{ManualClock, StoreRef};
    /// # use larder_structures::UniqueVisitors;
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    /// let clock = Arc::new(ManualClock::at(Duration::from_secs(20_000 * 86_400)));
    /// let new_york = UniqueVisitors::options().offset_s(-5 * 3_600).clock(clock).open_or_create(&store, "site").await?;
    /// assert_eq!(new_york.current()?, 19_999); // it is seven in the evening there
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`BadInput`](ErrorKind::BadInput) for a clock before the first period, or after the last.
    pub fn current(&self) -> Result<u64> {
        self.number_of(self.0.core.now_ms())
    }

    /// The number of the period of a time. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// # let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.period_of(UNIX_EPOCH + Duration::from_secs(86_400))?, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`current`](UniqueVisitors::current).
    pub fn period_of(&self, time: SystemTime) -> Result<u64> {
        let since = time.duration_since(UNIX_EPOCH).map_err(|error| {
            Error::new(
                ErrorKind::BadInput,
                format!("a time is {:?} before 1970, where the first period begins", error.duration()),
            )
        })?;
        self.number_of(as_ms(since))
    }

    fn number_of(&self, time_ms: u64) -> Result<u64> {
        self.0.core.params.period_of(time_ms).ok_or_else(|| {
            let detail = format!("{time_ms} ms after 1970 is in none of the periods 0 to {}", layout::PERIOD_MAX);
            Error::new(ErrorKind::BadInput, detail)
        })
    }

    /// How long a period is. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.period().as_secs(), 86_400);
    /// # Ok(())
    /// # }
    /// ```
    pub fn period(&self) -> Duration {
        Duration::from_millis(self.0.core.params.period_ms)
    }

    /// How exactly it counts. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::{Precision, UniqueVisitors};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.precision(), Precision::Compact);
    /// # Ok(())
    /// # }
    /// ```
    pub fn precision(&self) -> Precision {
        self.0.core.params.precision
    }

    /// The name. **Round trips: 0.**
    ///
    /// ```
    /// # use larder_core::StoreRef;
    /// # use larder_structures::UniqueVisitors;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let site = UniqueVisitors::open_or_create(&store, "site").await?;
    /// assert_eq!(site.name().as_bytes(), b"site");
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(&self) -> &Name {
        &self.0.core.name
    }

    fn ctx(&self) -> Ctx {
        Ctx::within(self.0.core.timeout)
    }

    fn hashes<'a, I>(&self, ids: I) -> Result<Vec<Hash>>
    where
        I: IntoIterator,
        I::Item: Into<VisitorId<'a>>,
    {
        let params = &self.0.core.params;
        let mut hashes = Vec::new();
        for id in ids {
            if hashes.len() >= IDS_MAX {
                return Err(Error::new(
                    ErrorKind::BadInput,
                    format!("there are more than {IDS_MAX} ids, the limit of one call"),
                ));
            }
            hashes.push(hash_of(id.into(), params.ids, params.seed)?);
        }
        Ok(hashes)
    }
}

/// # Errors
/// [`ErrorKind::Timeout`], with an unknown effect.
async fn within<T>(deadline: Instant, timeout: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout_at(deadline.into(), work).await.unwrap_or_else(|_| {
        let detail = format!("it was not settled within {timeout:?}");
        Err(Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown))
    })
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// The keys of the periods that the ledger lists, for dropping them. **Round trips: 2.**
///
/// # Errors
/// Those of the store, and [`ErrorKind::LayoutMismatch`].
pub(crate) async fn pieces(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Pieces> {
    make::pieces(store, ctx, name, manifest).await
}

/// True if its pieces are no items.
pub(crate) fn is_native(manifest: &Manifest) -> bool {
    layout::Params::decode(&manifest.params).is_some_and(|params| params.shape == layout::Shape::Native)
}

/// The parameters in words; `None` for what this release did not write.
pub(crate) fn describe(params: &[u8]) -> Option<Vec<(&'static str, String)>> {
    let params = layout::Params::decode(params)?;
    let period = Duration::from_millis(params.period_ms);
    let keep = match params.keep_ms {
        0 => "for ever".to_owned(),
        ms => format!("{:?}", Duration::from_millis(ms)),
    };
    Some(vec![
        ("period", format!("{period:?}")),
        match &params.zone {
            Some(zone) => ("zone", zone.name().to_owned()),
            None => ("offset", format!("{} s", params.offset_ms / 1_000)),
        },
        ("precision", params.precision.as_str().to_owned()),
        ("ids", params.ids.as_str().to_owned()),
        ("expected", params.expected.to_string()),
        ("kept", keep),
    ])
}
