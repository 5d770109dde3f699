//! What a part of the proof found, in a form that adds up.

use std::collections::BTreeMap;

use larder_testkit::history::Verdict;
use serde::{Deserialize, Serialize};

/// Violations that are kept word by word; the rest are counted.
const TOLD_MAX: usize = 20;
/// Of one history: a thing that went wrong shows in many calls, and the first few tell it.
const TOLD_OF_A_HISTORY: usize = 2;

/// What is counted of losses that nobody was told of.
pub(crate) const SILENT_LOSSES: &str = "silent losses";

/// What is counted of operations in whose history no check was left out.
pub(crate) const FULLY_CHECKED: &str = "operations fully checked";

/// What is counted of those whose outcome was told to be unknown; and of those, where no check was left out.
pub(crate) const AMBIGUOUS: &str = "ambiguous operations";
pub(crate) const AMBIGUOUS_FULLY_CHECKED: &str = "ambiguous operations fully checked";

/// What a run of a part found. Two runs of a part add up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// How often each thing happened: `operations checked`, `faults: cut`, `losses told`. What begins with `faults: ` is a fault that was caused.
    pub counts: BTreeMap<String, u64>,
    /// What the guarantees do not allow: how often.
    pub violations: u64,
    /// The first of them, each with the seed that shows it again.
    pub told: Vec<String>,
}

impl Findings {
    /// Counts `times` more of something. What was looked for and never came is counted, too: as 0.
    pub fn count(&mut self, what: &str, times: u64) {
        *self.counts.entry(what.to_owned()).or_default() += times;
    }

    /// How often something was counted.
    pub fn counted(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// Whether all is as the guarantees say: nothing is violated, and nothing lost in silence, whoever counted it.
    pub fn is_good(&self) -> bool {
        self.violations == 0 && self.counted(SILENT_LOSSES) == 0
    }

    /// Records what must not be.
    pub fn violation(&mut self, seed: u64, what: &str) {
        self.violations += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(format!("seed {seed}: {what}"));
        }
    }

    /// Adds what the checkers say of a history of a job, and where it was played.
    pub fn verdict(&mut self, seed: u64, job: &str, place: &str, verdict: Verdict) {
        self.count("operations checked", verdict.operations);
        self.count(FULLY_CHECKED, verdict.fully_checked);
        self.count(&format!("operations checked: {job}"), verdict.operations);
        self.count(AMBIGUOUS, verdict.unknown);
        self.count(AMBIGUOUS_FULLY_CHECKED, if verdict.fully_checked > 0 { verdict.unknown } else { 0 });
        self.count("losses told", verdict.losses_told);
        if verdict.refused > 0 {
            self.count(&format!("histories of what the store cannot have: {job}"), verdict.refused);
        }
        for violation in verdict.violations.iter().take(TOLD_OF_A_HISTORY) {
            self.violation(seed, &format!("{violation} ({place})"));
        }
        self.violations += verdict.violations.len().saturating_sub(TOLD_OF_A_HISTORY) as u64;
    }

    /// Adds what another run found.
    pub fn add(&mut self, other: Findings) {
        for (what, times) in other.counts {
            *self.counts.entry(what).or_default() += times;
        }
        self.violations += other.violations;
        let room = TOLD_MAX - self.told.len().min(TOLD_MAX);
        self.told.extend(other.told.into_iter().take(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_violation_of_a_history_counts_and_the_first_are_told() {
        let mut all = Findings::default();
        let violations = ["a", "b", "c"].map(str::to_owned).to_vec();
        all.verdict(
            7,
            "set",
            "here",
            Verdict { operations: 5, fully_checked: 3, unknown: 1, losses_told: 0, refused: 0, violations },
        );
        assert_eq!(
            (all.violations, &all.told[..]),
            (3, &["seed 7: a (here)".to_owned(), "seed 7: b (here)".to_owned()][..])
        );
        assert_eq!((all.counts["operations checked: set"], all.counts[AMBIGUOUS]), (5, 1));
        assert_eq!((all.counted("operations checked"), all.counted(FULLY_CHECKED)), (5, 3));
        let set_back = Verdict { operations: 5, unknown: 2, refused: 1, ..Verdict::default() };
        all.verdict(8, "set", "here", set_back);
        assert_eq!(all.counted("histories of what the store cannot have: set"), 1);
        assert_eq!((all.counted(AMBIGUOUS), all.counted(AMBIGUOUS_FULLY_CHECKED)), (3, 1));
    }

    #[test]
    fn a_loss_in_silence_is_a_failure_even_where_nobody_calls_it_a_violation() {
        let mut found = Findings::default();
        found.count(SILENT_LOSSES, 0);
        assert!(found.is_good());
        found.count(SILENT_LOSSES, 1);
        assert!(!found.is_good());
    }

    #[test]
    fn findings_add_up_and_keep_no_more_than_the_first_violations() {
        let mut all = Findings::default();
        for seed in 0..30 {
            let mut one = Findings::default();
            one.count("operations checked", 10);
            one.count("losses told", 0);
            one.violation(seed, "lost");
            all.add(one);
        }
        let counts = [("losses told".to_owned(), 0), ("operations checked".to_owned(), 300)];
        assert_eq!(all.counts, BTreeMap::from(counts));
        assert_eq!((all.violations, all.told.len(), all.told[0].as_str()), (30, TOLD_MAX, "seed 0: lost"));
    }
}
