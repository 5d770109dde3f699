//! What a part of the proof found, in a form that adds up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Violations that are kept word by word; the rest are counted.
const TOLD_MAX: usize = 20;

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
    /// Counts `times` more of something.
    pub fn count(&mut self, what: &str, times: u64) {
        if times > 0 {
            *self.counts.entry(what.to_owned()).or_default() += times;
        }
    }

    /// Records what must not be.
    pub fn violation(&mut self, seed: u64, what: &str) {
        self.violations += 1;
        if self.told.len() < TOLD_MAX {
            self.told.push(format!("seed {seed}: {what}"));
        }
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
    fn findings_add_up_and_keep_no_more_than_the_first_violations() {
        let mut all = Findings::default();
        for seed in 0..30 {
            let mut one = Findings::default();
            one.count("operations checked", 10);
            one.count("losses told", 0);
            one.violation(seed, "lost");
            all.add(one);
        }
        assert_eq!(all.counts, BTreeMap::from([("operations checked".to_owned(), 300)]));
        assert_eq!((all.violations, all.told.len(), all.told[0].as_str()), (30, TOLD_MAX, "seed 0: lost"));
    }
}
