//! Opening and making a counter.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Batch, ClockRef, Ctx, Error, ErrorKind, Profile, PutMode, Result, StoreRef, SystemClock};

use super::exact::Slots;
use super::fast::{self, Fast};
use super::layout;
use super::writer::Writer;
use super::{ADDS_A_WRITE_MAX, Counter, Inner, Mode};
use crate::combine::Combiner;
use crate::copies::{self, COPIES_MAX};
use crate::manifest::{self, Kind, Manifest};
use crate::name::Name;
use crate::timeout;

const SLOTS_DEFAULT: u16 = 16;
const SLOTS_MAX: u16 = 1_024;
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// How a counter is opened and made. What is said here must be so of a counter that exists; what is not said follows it.
///
/// ```
/// # use larder_core::ErrorKind;
/// # use larder_structures::Counter;
/// # use larder_store_memory::MemoryStore;
/// # use std::sync::Arc;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
/// Counter::options().slots(4).open_or_create(&store, "hits").await?;
/// assert!(Counter::open(&store, "hits").await.is_ok());
/// let error = Counter::options().slots(8).open(&store, "hits").await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CounterOptions {
    mode: Option<Mode>,
    slots: Option<u16>,
    copies: Option<u8>,
    timeout: Option<Duration>,
    clock: Option<ClockRef>,
}

impl CounterOptions {
    /// Counts by the server's arithmetic: see [`Mode::Fast`].
    ///
    /// ```
    /// let options = larder_structures::Counter::options().fast();
    /// ```
    pub fn fast(self) -> CounterOptions {
        CounterOptions { mode: Some(Mode::Fast), ..self }
    }

    /// Counts exactly, which is the default of a new counter, and refuses one that exists and does not.
    ///
    /// ```
    /// let options = larder_structures::Counter::options().exact();
    /// ```
    pub fn exact(self) -> CounterOptions {
        CounterOptions { mode: Some(Mode::Exact), ..self }
    }

    /// How many slots a new exact counter has: 1 to 1,024, 16 unless said. As many processes as slots add in one round trip;
    /// every slot costs each get some 45 to 170 bytes.
    ///
    /// ```
    /// let options = larder_structures::Counter::options().slots(64);
    /// ```
    pub fn slots(self, slots: u16) -> CounterOptions {
        CounterOptions { slots: Some(slots), ..self }
    }

    /// On how many servers each slot of a new exact counter stands: 1 to 5, 1 unless said. The store must have as many.
    ///
    /// | copies | servers that may be lost for reading | for adding |
    /// |---|---|---|
    /// | 1 | 0 | 0 |
    /// | 2 | 1 | 0, until it is back, empty or not |
    /// | 3 | 1 | 1 |
    /// | 4 | 2 | 1 |
    /// | 5 | 2 | 2 |
    ///
    /// A server that came back empty counts as lost until its copies were made again, which adds do.
    /// **Round trips** of an add stay 1; a process's first takes 3.
    ///
    /// ```
    /// let options = larder_structures::Counter::options().copies(3);
    /// ```
    pub fn copies(self, copies: u8) -> CounterOptions {
        CounterOptions { copies: Some(copies), ..self }
    }

    /// How long a method may take, with all its retries; 5 s unless said, a day at the most. 0 is refused at open.
    ///
    /// ```
    /// let options = larder_structures::Counter::options().timeout(std::time::Duration::from_secs(1));
    /// ```
    pub fn timeout(self, timeout: Duration) -> CounterOptions {
        CounterOptions { timeout: Some(timeout.min(timeout::TIMEOUT_MAX)), ..self }
    }

    /// The clock that tells which slots are idle, and when to look at the manifest again; the system's unless said. A wrong one
    /// costs round trips, never a count.
    ///
    /// ```
    /// let options = larder_structures::Counter::options().clock(larder_core::SystemClock::shared());
    /// ```
    pub fn clock(self, clock: ClockRef) -> CounterOptions {
        CounterOptions { clock: Some(clock), ..self }
    }

    /// Opens a counter that is there. **Round trips: 1**; 2 where a copy on another server is made again, and 1 more each where the first server's is, too,
    /// and where one of another life is replaced.
    ///
    /// # Errors
    /// As [`Counter::open`]; also [`ErrorKind::LayoutMismatch`] where the counter is not as these options say, and
    /// [`ErrorKind::BadInput`] for options out of range.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// assert!(Counter::options().fast().open(&store, "hits").await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn open(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Counter> {
        let name = Name::new(name)?;
        self.check()?;
        let found = copies::find(store, self.ctx(), &name).await?;
        let found = found.ok_or_else(|| manifest::absent(store, &name))?;
        self.handle(store, name, &found.manifest)
    }

    /// Opens a counter, or makes it as these options say. **Round trips: 1** if it is there, else 3, with several copies 4.
    ///
    /// # Errors
    /// As [`open`](CounterOptions::open), but for `Absent`.
    ///
    /// ```
    /// # use larder_structures::Counter;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::sync::Arc;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
    /// # let store: larder_core::StoreRef = Arc::new(MemoryStore::new());
    /// let hits = Counter::options().fast().open_or_create(&store, "hits").await?;
    /// # Ok(()) }
    /// ```
    pub async fn open_or_create(&self, store: &StoreRef, name: impl AsRef<[u8]>) -> Result<Counter> {
        let name = Name::new(name)?;
        self.check()?;
        if let Some(found) = copies::find(store, self.ctx(), &name).await? {
            return self.handle(store, name, &found.manifest);
        }
        let new = self.manifest(&store.profile());
        let ops = self.handle(store, name.clone(), &new)?.create_ops().len();
        let batch_ops_max = store.profile().batch_ops_max;
        if ops > batch_ops_max {
            let (slots, copies) = (new.shards, new.copies);
            let detail = format!(
                "{slots} slots of {copies} copies are more ops than one batch takes; the limit is {batch_ops_max}"
            );
            return Err(Error::new(ErrorKind::BadInput, detail).store(store.profile().store.clone()));
        }
        let data_of = |new: &Manifest| Ok(vec![self.handle(store, name.clone(), new)?.create_ops()]);
        let made = manifest::create(store, self.ctx(), &name, new, data_of).await?;
        let copies = (1..made.copies).map(|rank| (rank, PutMode::Add));
        copies::spread(store, self.ctx(), &name, &made, copies).await;
        self.handle(store, name, &made)
    }

    /// Refuses what no counter can be.
    fn check(&self) -> Result<()> {
        let bad = |detail: String| Err(Error::new(ErrorKind::BadInput, detail));
        timeout::check(self.timeout.unwrap_or(TIMEOUT_DEFAULT))?;
        if let Some(slots) = self.slots
            && !(1..=SLOTS_MAX).contains(&slots)
        {
            return bad(format!("a counter has 1 to {SLOTS_MAX} slots, not {slots}"));
        }
        if let Some(copies) = self.copies
            && !(1..=COPIES_MAX).contains(&copies)
        {
            return bad(format!("a counter has 1 to {COPIES_MAX} copies, not {copies}"));
        }
        if self.mode == Some(Mode::Fast) && (self.slots.is_some() || self.copies.is_some_and(|copies| copies > 1)) {
            return bad("a fast counter has neither slots nor copies: leave them out, or make it exact".to_owned());
        }
        Ok(())
    }

    /// What a new counter records.
    fn manifest(&self, profile: &Profile) -> Manifest {
        match self.mode.unwrap_or(Mode::Exact) {
            Mode::Exact => {
                let slots = self.slots.unwrap_or(SLOTS_DEFAULT);
                let new = Manifest::new(Kind::Counter, layout::LAYOUT, slots, Bytes::new());
                Manifest { copies: self.copies.unwrap_or(1), ..new }
            }
            Mode::Fast => fast::manifest(profile),
        }
    }

    /// A handle on what a manifest says, if it is as these options say.
    fn handle(&self, store: &StoreRef, name: Name, manifest: &Manifest) -> Result<Counter> {
        self.compare(&name, manifest)?;
        let timeout = self.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let clock = self.clock.clone().unwrap_or_else(SystemClock::shared);
        let inner = if manifest.kind == Kind::FastCounter {
            Inner::Fast(Arc::new(Fast::new(store.clone(), name.clone(), manifest, timeout, clock)?))
        } else {
            can_carry(&store.profile(), manifest)?;
            let slots = Slots::new(store.clone(), name.clone(), manifest, timeout, clock)?;
            let writer = Arc::new(Combiner::new(Writer::new(slots.clone()), ADDS_A_WRITE_MAX));
            Inner::Exact { slots, writer }
        };
        Ok(Counter { name, timeout, inner })
    }

    fn compare(&self, name: &Name, manifest: &Manifest) -> Result<()> {
        let mode = match manifest.kind {
            Kind::FastCounter => Mode::Fast,
            _ => Mode::Exact,
        };
        let kind = match mode {
            Mode::Exact => Kind::Counter,
            Mode::Fast => Kind::FastCounter,
        };
        manifest.expect(name, kind, super::layout_of(manifest))?;
        let differs = |what: &str, is: &dyn std::fmt::Display, asked: &dyn std::fmt::Display| {
            let detail = format!("counter {name} has {what} {is}; it was opened with {what} {asked}");
            Err(Error::new(ErrorKind::LayoutMismatch, detail))
        };
        match self {
            CounterOptions { mode: Some(asked), .. } if *asked != mode => differs("mode", &mode, asked),
            CounterOptions { slots: Some(asked), .. } if *asked != manifest.shards || mode == Mode::Fast => {
                differs("slots", &manifest.shards, asked)
            }
            CounterOptions { copies: Some(asked), .. } if *asked != manifest.copies => {
                differs("copies", &manifest.copies, asked)
            }
            _ => Ok(()),
        }
    }

    fn ctx(&self) -> Ctx {
        Ctx::within(self.timeout.unwrap_or(TIMEOUT_DEFAULT))
    }
}

/// Refuses a store that cannot carry an exact counter.
fn can_carry(profile: &Profile, manifest: &Manifest) -> Result<()> {
    if !profile.cas {
        let detail = "an exact counter needs conditional writes (cas), which this store has not; a fast one needs none";
        return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
    }
    let copies = usize::from(manifest.copies);
    if copies > profile.nodes {
        let detail = format!("{copies} copies need as many servers; this store has {}", profile.nodes);
        return Err(Error::new(ErrorKind::Unsupported, detail).store(profile.store.clone()));
    }
    Ok(())
}

impl Counter {
    fn create_ops(&self) -> Batch {
        match &self.inner {
            Inner::Exact { slots, .. } => slots.registers.create_ops(),
            Inner::Fast(fast) => fast.create_ops(),
        }
    }
}
