//! History checking: several clients drive a structure while a nemesis breaks what is between them and the data; all that they asked for and were
//! told is recorded, and a checker holds it against what the structure promises.
//!
//! | room | purpose |
//! |---|---|
//! | [`record`] | the recorder: who asked for what, when, and what came back |
//! | `checks` | checkers: pure functions over a recorded history |
//! | `jobs` | a workload for each structure: drives it, reads it in the end, and calls its checker |

pub mod checks;
mod jobs;
pub mod record;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Error, ErrorKind, StoreRef};
use larder_structures::Kind;

pub use jobs::JOBS;

/// What a run of a job works on.
#[derive(Clone)]
pub struct Arena {
    /// One store a client, 2 to 4: whatever the nemesis does stands between it and the data.
    pub clients: Vec<StoreRef>,
    /// The same data without faults, once the nemesis is quiet: for the final read.
    pub quiet: StoreRef,
    /// What the nemesis has really caused up to now.
    pub caused: Arc<Caused>,
    /// Makes the nemesis quiet, and returns when nothing of it can still land: called once, before the final read.
    pub calm: Calm,
}

/// Ends a nemesis. See [`Arena::calm`].
pub type Calm = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A nemesis that is never there.
pub fn calm() -> Calm {
    Arc::new(|| Box::pin(std::future::ready(())))
}

/// What a nemesis has really caused: only what is counted here excuses a loss. Counts only grow; each is raised *before* the harm is done.
#[derive(Debug, Default)]
pub struct Caused {
    /// Data was, or may have been, thrown away: an eviction, a flush, a restart of a store that keeps nothing.
    pub losses: AtomicU64,
    /// Older data was, or may have been, put back: a failover that lost writes, a restart with a stale file.
    pub setbacks: AtomicU64,
    /// Clocks of clients or servers were set.
    pub clock_jumps: AtomicU64,
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
}

/// What a run starts from.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Everything that the job draws comes from this.
    pub seed: u64,
    /// How many operations all clients together ask for.
    pub ops: usize,
}

/// What a run of a job came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Operations that were recorded and checked.
    pub operations: u64,
    /// Those of them whose outcome the client was told is unknown.
    pub unknown: u64,
    /// Losses and setbacks that the structure told of, which the nemesis had caused.
    pub losses_told: u64,
    /// What the guarantees do not allow.
    pub violations: Vec<String>,
}

impl Verdict {
    /// Counts the losses and setbacks that clients were told of; one that the nemesis did not cause is a violation.
    pub fn judge_losses(&mut self, caused: &Caused, told: &[Error]) {
        for error in told {
            let is_excused = match error.kind() {
                ErrorKind::Lost | ErrorKind::Absent => caused.may_have_lost(),
                ErrorKind::RolledBack => caused.may_have_set_back() || caused.may_have_lost(),
                ErrorKind::Corrupt | ErrorKind::LayoutMismatch => false,
                _ => continue,
            };
            if is_excused {
                self.losses_told += 1;
            } else {
                self.violations.push(format!("told of a loss that nobody caused: {error}"));
            }
        }
    }
}

/// A workload of one structure with its checker.
pub struct Job {
    /// A word for it, in results.
    pub name: &'static str,
    /// The structure.
    pub kind: Kind,
    /// Runs it.
    pub run: fn(Arena, Run) -> Pin<Box<dyn Future<Output = Verdict> + Send>>,
}
