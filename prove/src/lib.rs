//! What Larder promises, held against what it does: each part of the proof runs from a seed for as long as it is given, and says what it
//! checked, which faults it caused, what was lost and told, and what was lost in silence, which has to be nothing.
//!
//! `cargo xtask prove` runs all parts and adds up what they found, by commit. The normal tests run a slice of each.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub mod crashes;
mod differential;
mod findings;
mod fuzz;
mod histories;
mod nemesis;
mod planted;
mod restarts;
pub mod served;
pub mod simulation;
mod stalls;
mod virtual_time;
mod watched;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

pub use findings::Findings;

/// What a run starts from and how long it may take.
#[derive(Debug, Clone)]
pub struct Budget {
    /// Everything that a part draws comes from this, so that a run can be had again.
    pub seed: u64,
    /// No new round begins later than this; the one that runs is ended.
    pub until: Instant,
    /// Nor more than so many, but for the first.
    seeds_max: u64,
    done: Arc<AtomicU64>,
}

impl Budget {
    /// From now on, for so long.
    pub fn new(seed: u64, time: Duration) -> Budget {
        Budget { seed, until: Instant::now() + time, seeds_max: u64::MAX, done: Arc::default() }
    }

    /// The same, of so many seeds at the most.
    pub fn at_most(self, seeds_max: u64) -> Budget {
        Budget { seeds_max, ..self }
    }

    /// The seeds of one round after the other, the budget's own first, until the time is over. There is always a first round.
    pub fn seeds(&self) -> impl Iterator<Item = u64> + use<> {
        let Budget { seed, until, seeds_max, .. } = *self;
        let done = self.done.clone();
        let goes_on = move |round| round == 0 || (Instant::now() < until && round < seeds_max);
        (0u64..).take_while(move |&round| goes_on(round)).map(move |round| {
            done.store(round + 1, Ordering::SeqCst);
            seed.wrapping_add(round)
        })
    }

    /// How many seeds were given out.
    pub fn seeds_done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Runs a round for each seed, `at_once` of them side by side, on threads of their own: for rounds that mostly wait.
    pub(crate) fn side_by_side<F>(&self, threads: usize, at_once: usize, round: impl Fn(u64) -> F) -> Findings
    where
        F: Future<Output = Findings> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut all = Findings::default();
            let mut rounds = JoinSet::new();
            for seed in self.seeds() {
                rounds.spawn(round(seed));
                if rounds.len() >= at_once
                    && let Some(found) = rounds.join_next().await
                {
                    all.add(found.expect("a round that does not panic"));
                }
            }
            while let Some(found) = rounds.join_next().await {
                all.add(found.expect("a round that does not panic"));
            }
            all
        })
    }
}

/// A part of the proof.
pub struct Part {
    /// The word that names it on the command line and in the results.
    pub name: &'static str,
    /// What it holds against what, in a line.
    pub about: &'static str,
    /// Runs it. A violation goes into the findings; what keeps the part from running at all is a panic that says so.
    pub run: fn(Budget) -> Findings,
}

/// All parts, in the order they are run.
pub const PARTS: &[Part] = &[
    histories::PART,
    planted::PART,
    stalls::PART,
    simulation::PART,
    nemesis::PART,
    restarts::PART,
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    crashes::PART,
    fuzz::PART,
    differential::PART,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_over_has_one_round() {
        assert_eq!(Budget::new(7, Duration::ZERO).seeds().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn rounds_count_on_from_the_seed_and_wrap() {
        assert_eq!(
            Budget::new(u64::MAX, Duration::from_secs(3600)).seeds().take(3).collect::<Vec<_>>(),
            [u64::MAX, 0, 1]
        );
    }

    #[test]
    fn a_budget_says_how_many_seeds_it_gave_out() {
        let budget = Budget::new(7, Duration::from_secs(3600));
        assert_eq!(budget.clone().seeds().take(3).count(), 3);
        assert_eq!(budget.seeds_done(), 3);
        let over = Budget::new(7, Duration::ZERO);
        assert_eq!((over.seeds().count(), over.seeds_done()), (1, 1));
    }

    #[test]
    fn a_budget_of_so_many_seeds_goes_no_further() {
        let budget = |seeds_max| Budget::new(32, Duration::from_secs(3600)).at_most(seeds_max);
        assert_eq!(budget(3).seeds().collect::<Vec<_>>(), [32, 33, 34]);
        assert_eq!(budget(0).seeds().count(), 1, "there is always a first round");
    }

    #[test]
    fn parts_have_names_of_their_own() {
        let mut names: Vec<_> = PARTS.iter().map(|part| part.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PARTS.len());
    }
}
