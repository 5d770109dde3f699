//! Histories: what clients of a structure did and were told, while things broke, held against what the structure promises.
//!
//! A [`Job`] drives one structure by 2 clients or more with values of their own, and records when each call began, when it ended and what it
//! was told: done, not done, or unknown. Then everything is calm, and all is read once more. The checkers ([`check`]) are pure functions
//! over what was recorded. What the guarantees allow, `Lost` or an unknown outcome, they allow only where [`Caused`] says that something
//! really happened.

pub mod check;
pub mod jobs;
pub mod recorder;

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use larder_core::{ClockRef, StoreRef, SystemClock};
use larder_structures::Kind;
use tokio::time::Instant;

pub use jobs::{COPIES, JOBS};

/// A future that owns what it needs.
pub type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a run of a job works on.
#[derive(Clone)]
pub struct Arena {
    /// One store a client, 2 or more: whatever the nemesis does stands between it and the data.
    pub clients: Vec<StoreRef>,
    /// The same data without faults, once the nemesis is quiet: for the final read.
    pub quiet: StoreRef,
    /// What the nemesis has really caused up to now.
    pub caused: Arc<Caused>,
    /// Makes the nemesis quiet, and returns when nothing of it can still land: called once, before the final read.
    pub calm: Calm,
}

/// Ends a nemesis. See [`Arena::calm`].
pub type Calm = Arc<dyn Fn() -> Boxed<()> + Send + Sync>;

/// A nemesis that is never there.
pub fn calm() -> Calm {
    Arc::new(|| Box::pin(std::future::ready(())))
}

/// A batch that takes longer is one of those of which calls run out of time, and others come to conclusions.
pub const SLOW: Duration = Duration::from_millis(100);

/// What a nemesis has really caused: only what is counted here excuses a loss. Counts only grow; each is raised *before* the harm is done.
#[derive(Debug, Default)]
pub struct Caused {
    /// Data was, or may have been, thrown away: an eviction, a flush, a restart of a store that keeps nothing.
    pub losses: AtomicU64,
    /// Older data was, or may have been, put back: a failover that lost writes, a restart with a stale file.
    pub setbacks: AtomicU64,
    /// Clocks of clients or servers were set.
    pub clock_jumps: AtomicU64,
    /// Set where the two below and `under_way` are counted: what goes wrong for no cause is a violation there.
    pub watched: AtomicBool,
    /// Batches whose writes, or some of them, nobody knows of whether they were carried out: their callers learnt so, or went away.
    pub cuts: AtomicU64,
    /// Batches of which something failed, whatever is known of it, or that took so long that calls may run out of time: the cuts, too.
    pub failures: AtomicU64,
    /// Since when batches are under way, each under a number of its own; no cause, but what may become one.
    pub under_way: Mutex<HashMap<u64, Instant>>,
    /// Requests arrived, or may arrive, after their client gave them up, or twice: what only such deliveries can repeat is a violation before the first.
    pub late: AtomicU64,
}

impl Caused {
    /// Whether data may be gone.
    pub fn may_have_lost(&self) -> bool {
        self.losses.load(Ordering::SeqCst) > 0
    }

    /// Whether data may be older than what was acknowledged.
    pub fn may_have_set_back(&self) -> bool {
        self.setbacks.load(Ordering::SeqCst) > 0
    }

    /// Whether anything may have been thrown away or put back.
    pub fn may_have_harmed(&self) -> bool {
        self.may_have_lost() || self.may_have_set_back()
    }

    /// Whether a request may have been carried out late or twice.
    pub fn may_have_been_late(&self) -> bool {
        self.late.load(Ordering::SeqCst) > 0
    }

    /// Whether it may be unknown of a write that it was carried out.
    pub fn may_have_cut(&self) -> bool {
        !self.is_watched() || self.cuts.load(Ordering::SeqCst) > 0
    }

    /// Whether anything may have failed, or takes long just now.
    pub fn may_have_failed(&self) -> bool {
        let is_slow = || self.begun().values().any(|begun| begun.elapsed() >= SLOW);
        !self.is_watched() || self.failures.load(Ordering::SeqCst) > 0 || is_slow()
    }

    /// Whether anything is under way.
    pub fn is_under_way(&self) -> bool {
        !self.is_watched() || !self.begun().is_empty()
    }

    /// See `under_way`.
    pub fn begun(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_watched(&self) -> bool {
        self.watched.load(Ordering::SeqCst)
    }

    /// Whether a clock may be wrong.
    pub fn may_have_set_clocks(&self) -> bool {
        self.clock_jumps.load(Ordering::SeqCst) > 0
    }
}

/// Gives each handle the clock that it goes by.
pub type Clocks = Arc<dyn Fn() -> ClockRef + Send + Sync>;

tokio::task_local! {
    static CLOCKS: Clocks;
}

/// Runs a job each of whose handles asks `clocks` for a clock of its own, and not for the system's.
pub async fn by_clocks<T>(clocks: impl Fn() -> ClockRef + Send + Sync + 'static, job: impl Future<Output = T>) -> T {
    CLOCKS.scope(Arc::new(clocks), job).await
}

/// A clock for a handle that the job opens now. Machines have a clock each, and no two are set alike: never one for two handles.
fn clock() -> ClockRef {
    CLOCKS.try_with(|clocks| clocks()).unwrap_or_else(|_| SystemClock::shared())
}

/// What a job draws from, and how much it does.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Everything drawn comes from this.
    pub seed: u64,
    /// About how many calls all clients make together.
    pub ops: usize,
}

impl Run {
    /// For what the clients of a run make a habit of: no remainder of the seed, which chooses the job already.
    fn habits(self) -> fastrand::Rng {
        fastrand::Rng::with_seed(!self.seed)
    }
}

/// One structure under work.
pub struct Job {
    /// The word that names it.
    pub name: &'static str,
    /// The structure.
    pub kind: Kind,
    /// Runs it. Needs a Tokio runtime with its timer.
    pub run: fn(Arena, Run) -> Boxed<Verdict>,
}

/// What a run of a job came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Calls that took effect, or may have, whose outcomes were held against the guarantees, the final reads among them: none that failed for certain.
    pub operations: u64,
    /// Of those, calls of histories in which no check was left out: where the store was set back, say, most are; and what a checker says that it left out.
    pub fully_checked: u64,
    /// Of those, calls that were told to be unknown.
    pub unknown: u64,
    /// `Lost`, `Absent` and `RolledBack` told, and gaps.
    pub losses_told: u64,
    /// Runs whose structure the store cannot have: nothing is checked then.
    pub refused: u64,
    /// What the guarantees do not allow, in words.
    pub violations: Vec<String>,
}

impl Verdict {
    /// Adds another.
    pub fn add(&mut self, other: Verdict) {
        self.operations += other.operations;
        self.fully_checked += other.fully_checked;
        self.unknown += other.unknown;
        self.losses_told += other.losses_told;
        self.refused += other.refused;
        self.violations.extend(other.violations);
    }
}
