//! A counter that many processes add to.
//!
//! There are two, and the one is chosen when a counter is made:
//!
//! | | exact (the default) | fast ([`CounterOptions::fast`]) |
//! |---|---|---|
//! | counts | each add exactly once, through lost replies, cut connections and writes that arrive late | what the server's arithmetic counts; an add whose reply is lost may be counted or not, is reported as unknown, and is never retried |
//! | range | 128 bits, signed | ±2^61, at most ±2^56 an add |
//! | keys | a pool of slots, 16 unless said otherwise | 1 |
//! | **round trips**: add | 1; a process's first 2; more where processes outnumber slots | 1 |
//! | get | 1 | 1 |
//! | reset | 2, 1 where it is 0 already | 2, 1 where it is 0 already |
//! | release | 1 | 0 |
//! | open | 1 | 1 |
//! | make | 3, with copies 4 | 3 |
//! | copies on several servers | [`CounterOptions::copies`] | no |
//! | needs of the store | cas | arithmetic; bit fields where it has them |
//!
//! # Guarantees, store by store
//!
//! | store | what an end of the process or server takes | what is said then |
//! |---|---|---|
//! | in the process | the counter | `Absent` to those who open it, `Lost` to open handles |
//! | a server without persistence | what stood there, all of it | `Lost` where the manifest or this handle knows better; `Absent` ("never created, or lost") where nothing is left that could tell |
//! | several such servers, 2 copies | nothing, if one server is lost: reads go on, adds wait until it is back, and make its copies again | `Lost` where both copies of a slot are gone |
//! | 3 copies | nothing, if one server is lost: reads and adds go on | as above |
//! | a store that evicts | what it evicted | `Lost`, never a smaller number |
//!
//! A handle looks at the manifest once a minute, with a read or write that it makes anyway, in the same round trip. One that was
//! evicted while the data stayed is put back. Within that minute a process that opens the name anew finds it absent, or makes
//! another counter; then the handle says `Lost` from its next look on, and what it counted since is in the life that is lost.
//!
//! A loss is an error and names what is left. A store that was set back to an older state is [`RolledBack`], if this handle has seen the newer one and others
//! have not written as often since; to a handle that adds, at its next add, also then.
//!
//! # How the exact counter works
//!
//! A process owns one slot of the pool and adds to it by conditional writes, each carrying the sum on. A slot remembers the last 8
//! writers and the number of each one's last write, so that a writer whose reply was lost finds out what became of its write:
//! it landed, or it is written again, conditional on what was just read, so that the lost one can land before it or never.
//! A process takes a slot that was given back, else one whose owner has been silent for 30 s by its clock, else it shares one.
//! A wrong guess costs round trips, never a count, and a slot is taken over in place: processes that come and go leave nothing behind.
//!
//! A get reads each slot at one moment, but not all at the same: it counts all adds that had returned before it began, and of
//! those under way any. With several copies, one that has not returned, or failed midway, may be in one get and not in the next
//! (which read another copy, since a server did not answer), until its writer or another settles it.
//!
//! [`RolledBack`]: larder_core::ErrorKind::RolledBack

mod exact;
mod fast;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzz;
mod layout;
mod options;
mod register;
mod replica;
mod reset;
mod writer;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, Result, StoreRef};

use self::exact::Slots;
use self::fast::Fast;
pub(crate) use self::fast::{is_native, is_present, mark, number_op, portable_manifest, portable_number, presence_op};
use self::layout::LAYOUT;
pub use self::options::CounterOptions;
pub(crate) use self::replica::portable_slot;
use self::writer::Writer;
use crate::combine::Combiner;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::runtime;
use crate::vigil::Vigil;

/// The layout that this release reads, of a counter of this manifest's kind.
pub(crate) fn layout_of(manifest: &Manifest) -> u8 {
    match manifest.kind {
        Kind::FastCounter => fast::layout_of(manifest),
        _ => LAYOUT,
    }
}

/// Adds that tasks of one handle ask for at the same time share a write, up to this many.
const ADDS_A_WRITE_MAX: usize = 65_536;
/// How much longer than the timeout a method may take, so that it can tell what it knows.
const GRACE: Duration = Duration::from_millis(50);

/// A counter, opened. Clones share the process's slot, and what their tasks add at the same time shares a write.
///
/// Methods must be awaited on a tokio runtime whose timers are enabled; without one they are
/// [`Unsupported`](ErrorKind::Unsupported).
///
/// ```
/// use larder_structures::Counter;
/// # use larder_store_memory::MemoryStore;
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
/// let hits = Counter::open_or_create(&store, "hits").await?;
/// hits.add(41).await?;
/// hits.add(1).await?;
/// assert_eq!(hits.get().await?, 42);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Counter {
    name: Name,
    timeout: Duration,
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Exact { slots: Arc<Slots>, writer: Arc<Combiner<Writer>> },
    Fast(Arc<Fast>),
}

/// How a counter counts.
///
/// ```
/// use larder_structures::counter::Mode;
/// assert_eq!(Mode::Exact.to_string(), "exact");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By conditional writes to a pool of slots: each add exactly once.
    Exact,
    /// By the server's arithmetic: an add whose reply is lost may be counted or not.
    Fast,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Exact => "exact",
            Mode::Fast => "fast",
        })
    }
}

impl Counter {
    /// Opens a counter that is there, of either mode. **Round trips: 1**; 2 where a copy on another server is made again, 3 or 4 where another life's stands there.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if there is none, [`ErrorKind::LayoutMismatch`] if the name holds another structure,
    /// [`ErrorKind::BadInput`] for a name that is empty or too long, [`ErrorKind::Unsupported`] on a store that cannot carry it.
    ///
    /// ```
    /// # use larder_core::ErrorKind;
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let error = Counter::open(&store, "hits").await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Absent);
    /// # Ok(()) }
    /// ```
    pub async fn open(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Counter> {
        Counter::options().open(store, name).await
    }

    /// Opens a counter, or makes an exact one of 16 slots that starts at 0. **Round trips: 1** if it is there, else 3.
    ///
    /// # Errors
    /// As [`open`](Counter::open), but for `Absent`.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::open_or_create(&store, "hits").await?;
    /// assert_eq!(hits.get().await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn open_or_create(store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Counter> {
        Counter::options().open_or_create(store, name).await
    }

    /// Options for opening and making a counter.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::options().slots(64).open_or_create(&store, "hits").await?;
    /// # Ok(()) }
    /// ```
    pub fn options() -> CounterOptions {
        CounterOptions::default()
    }

    /// Adds a number, which may be negative.
    ///
    /// **Round trips: 1**; a process's first add 2. Exact, further: 2 where another process wrote the slot in between; with
    /// several copies the first takes 3, and 7 after a server came back empty. Adds of tasks at the same time share them.
    ///
    /// Safe to cancel: an add that was dropped while it waited is withdrawn, one under way is counted once or not at all.
    ///
    /// # Errors
    /// An error of [`Effect::NotApplied`] was not counted and never will be. With [`Effect::Unknown`] the add was counted once
    /// or not at all; the next add finds out, and never counts it again.
    /// [`ErrorKind::Lost`], [`ErrorKind::RolledBack`]: see [`get`](Counter::get). [`ErrorKind::Overflow`]: nothing is added.
    /// [`ErrorKind::Conflict`]: too many processes share the slots. [`ErrorKind::BadInput`]: more than ±2^56 at once, on a fast counter.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let stock = Counter::open_or_create(&store, "stock").await?;
    /// stock.add(10).await?;
    /// stock.add(-3).await?;
    /// assert_eq!(stock.get().await?, 7);
    /// # Ok(()) }
    /// ```
    pub async fn add(&self, delta: i64) -> Result<()> {
        match &self.inner {
            Inner::Exact { writer, .. } => {
                // Bounded by the queue itself: it knows of a change whether it was begun.
                self.check()?;
                writer.submit_within(delta, self.timeout.saturating_add(GRACE)).await?;
                self.vigil().check()
            }
            Inner::Fast(fast) => self.bounded(fast.add(delta)).await,
        }
    }

    /// The total. **Round trips: 1.**
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where a slot is gone, naming it and the sum of the others. [`ErrorKind::RolledBack`] where a slot is
    /// older than this handle has seen it. [`ErrorKind::Overflow`] where the slots sum to more than 128 bits hold.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::options().fast().open_or_create(&store, "hits").await?;
    /// hits.add(5).await?;
    /// assert_eq!(hits.get().await?, 5);
    /// # Ok(()) }
    /// ```
    pub async fn get(&self) -> Result<i128> {
        match &self.inner {
            Inner::Exact { slots, .. } => self.bounded(slots.total()).await,
            Inner::Fast(fast) => self.bounded(fast.get(Ctx::within(self.timeout))).await,
        }
    }

    /// Takes the total away, so that the counter starts at 0 again; returns what it took. An add that races it is either in what
    /// is returned or remains, so nothing is lost between them. Two resets at once share it; on a fast counter both may take the
    /// same, and leave as much less than 0 as they took too much.
    ///
    /// **Round trips: 2**, 1 where it was 0; with several copies 3, and 4 where one is missing; more where adds race it.
    ///
    /// Not safe to cancel: what a reset took that is dropped midway is gone, and nobody is told how much it was.
    ///
    /// # Errors
    /// As [`get`](Counter::get). An error of [`Effect::Unknown`] names what was taken before it, which is gone, and what was
    /// perhaps taken: of a slot, or of a fast counter, whose write got no answer within the timeout. After one of
    /// [`Effect::NotApplied`] nothing was taken: so also where the timeout ran out behind adds of this handle, or where less of it
    /// was left than the look at the counter had taken.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::open_or_create(&store, "hits").await?;
    /// hits.add(5).await?;
    /// assert_eq!(hits.reset().await?, 5);
    /// assert_eq!(hits.get().await?, 0);
    /// # Ok(()) }
    /// ```
    pub async fn reset(&self) -> Result<i128> {
        match &self.inner {
            Inner::Exact { slots, writer } => {
                self.check()?;
                // One deadline for all of it, the wait for the adds under way included.
                let ctx = Ctx::within(self.timeout);
                let Ok(mut writer) = tokio::time::timeout(self.timeout, writer.driver()).await else {
                    return Err(reset::too_late(&self.name, "others of this handle were under way for all of it"));
                };
                // Bounded by itself: it knows what it has sent.
                let taken = writer.reset(ctx).await?;
                slots.registers.vigil.check()?;
                Ok(taken)
            }
            Inner::Fast(fast) => {
                self.check()?;
                let taken = fast.reset(Ctx::within(self.timeout)).await?;
                fast.vigil.check()?;
                Ok(taken)
            }
        }
    }

    /// Gives the process's slot back, so that another finds it at once. A process that ends without it costs the next one nothing
    /// but, for 30 s, a slot to choose from. The handle stays usable, and takes a slot again when it adds.
    ///
    /// **Round trips: 1**; 0 on a fast counter and on a handle that has added nothing.
    ///
    /// # Errors
    /// Those of the store. No count depends on them.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::open_or_create(&store, "hits").await?;
    /// hits.add(1).await?;
    /// hits.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn release(&self) -> Result<()> {
        match &self.inner {
            Inner::Exact { writer, .. } => self.bounded(async { writer.driver().await.release().await }).await,
            Inner::Fast(_) => Ok(()),
        }
    }

    /// Makes copies again that are missing, of all slots at once, until none is; how many slots it mended. Adds do it for the
    /// slot they write and for idle ones, so this is for those who have just replaced a server and want to know that all is well.
    ///
    /// **Round trips: 5**, 1 where nothing is missing; more where adds race it.
    ///
    /// # Errors
    /// As [`get`](Counter::get); also that of a server that could not be asked.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::open_or_create(&store, "hits").await?;
    /// assert_eq!(hits.repair().await?, 0); // one copy only: there is nothing to mend it from
    /// # Ok(()) }
    /// ```
    pub async fn repair(&self) -> Result<u16> {
        match &self.inner {
            Inner::Exact { slots, .. } => self.bounded(slots.repair()).await,
            Inner::Fast(_) => Ok(0),
        }
    }

    /// How it counts.
    ///
    /// ```
    /// # use larder_structures::counter::{Counter, Mode};
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::open_or_create(&store, "hits").await?;
    /// assert_eq!(hits.mode(), Mode::Exact);
    /// # Ok(()) }
    /// ```
    pub fn mode(&self) -> Mode {
        match self.inner {
            Inner::Exact { .. } => Mode::Exact,
            Inner::Fast(_) => Mode::Fast,
        }
    }

    /// Its name.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::open_or_create(&store, "hits").await?;
    /// assert_eq!(hits.name().as_bytes(), b"hits");
    /// # Ok(()) }
    /// ```
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Waits no longer than the timeout, whatever the store and the other tasks of this handle do.
    async fn bounded<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let outcome = tokio::time::timeout(self.timeout.saturating_add(GRACE), work).await.unwrap_or_else(|_| {
            let detail = format!("no outcome on counter {} within {:?}", self.name, self.timeout);
            Err(Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown))
        })?;
        self.vigil().check()?;
        Ok(outcome)
    }

    /// Fails where nothing can be asked for: this life of the name is over, or there is no runtime.
    fn check(&self) -> Result<()> {
        self.vigil().check()?;
        runtime::current("a counter's methods have a timeout").map(drop)
    }

    fn vigil(&self) -> &Vigil {
        match &self.inner {
            Inner::Exact { slots, .. } => &slots.registers.vigil,
            Inner::Fast(fast) => &fast.vigil,
        }
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counter").field("name", &self.name).field("mode", &self.mode()).finish_non_exhaustive()
    }
}
