//! The part `planted`: the checkers are checked. Bugs that programs like this one have had, each planted in a store or in a small structure of
//! the test's own, and never in the product; each must be caught within its budget of seeds, and the same without the bug must pass.

mod droppers;
mod rings;
mod scenes;
mod servers;

use larder_layers::testing::Fault;
use larder_testkit::history::jobs::planted::{self as toys, Flaw};

use self::scenes::{Scene, job};
use self::servers::Bug;
use crate::{Budget, Findings, Part};

pub(crate) const PART: Part = Part {
    name: "planted",
    about: "bugs that are planted on purpose, each caught by the checkers within its budget of seeds",
    run,
};

/// A bug, and the round that shows it.
struct Plant {
    name: &'static str,
    /// It is caught within so many seeds.
    seeds: u64,
    /// What the checkers find in one round, with the bug or without it.
    round: fn(seed: u64, is_planted: bool) -> Vec<String>,
}

const PLANTS: &[Plant] = &[
    Plant { name: "a retried increment counts twice", seeds: 5, round: retried_increment },
    Plant {
        name: "an append that makes the key again hides an eviction",
        seeds: 10,
        round: |seed, planted| {
            let scene = Scene { steals_one_in: Some(60), ..Scene::calm(seed) };
            scene.play(toys::set(flaw(Flaw::AppendCreates, planted)))
        },
    },
    Plant { name: "a blind unlock frees the lock of another", seeds: 5, round: rings::blind_unlock },
    Plant {
        name: "a slot is written by a plain set",
        seeds: 60,
        round: |seed, planted| on_server(seed, Bug::PlainSet, planted, "counter", &[Fault::Late(5), Fault::LostReply]),
    },
    Plant {
        name: "a lock's record is written by a plain set",
        seeds: 20,
        round: |seed, planted| on_server(seed, Bug::PlainSet, planted, "lock", &[]),
    },
    Plant {
        name: "a loss is told before anything is lost",
        // What is lost later on excuses nothing: the clients say so as they look for the first time.
        seeds: 10,
        round: |seed, planted| {
            let scene = Scene { steals_one_in: Some(60), ..Scene::calm(seed) };
            scene.play(toys::set(flaw(Flaw::CriesLost, planted)))
        },
    },
    Plant {
        name: "tokens are given again after a restart",
        seeds: 20,
        round: |seed, planted| on_server(seed, Bug::TokensReused, planted, "queue", &[]),
    },
    Plant {
        name: "a compaction drops an append that came in between",
        seeds: 20,
        round: |seed, planted| on_server(seed, Bug::DroppedAppend, planted, "set", &[]),
    },
    Plant { name: "a late event shows in a new window", seeds: 5, round: rings::late_event },
    Plant {
        name: "the first and the last chunk are the same key, and the whole ring is read",
        seeds: 5,
        round: rings::whole_ring,
    },
    Plant { name: "a log hides a gap behind another", seeds: 10, round: droppers::second_gap },
    Plant { name: "a release whose reply is lost drops the item", seeds: 5, round: droppers::lost_release },
    Plant {
        name: "an append found no key, another was faster with the add, and nobody tries again",
        seeds: 15,
        round: |seed, planted| on_toy(seed, &[], toys::grown_set(flaw(Flaw::NoSecondTry, planted))),
    },
    Plant {
        name: "an fsync is skipped: acknowledged, and gone after the kill",
        seeds: 5,
        round: |seed, planted| on_server(seed, Bug::Unsynced, planted, "sharded hash", &[]),
    },
    Plant {
        name: "a retried append brings back what others removed",
        // It shows, in one seed of nine, where one sees the element, and one removes it, in the time between the two appends.
        seeds: 100,
        round: |seed, planted| on_toy(seed, &[Fault::LostReply], toys::watched_set(flaw(Flaw::RetriedAppend, planted))),
    },
    Plant {
        name: "the outcomes of an append are swapped",
        seeds: 5,
        round: |seed, planted| on_toy(seed, &[Fault::NotSent], toys::set(flaw(Flaw::SwappedOutcomes, planted))),
    },
    Plant {
        name: "a counter that was evicted reads as zero",
        seeds: 10,
        round: |seed, planted| {
            let scene = Scene { steals_one_in: Some(60), ..Scene::calm(seed) };
            scene.play(toys::count(flaw(Flaw::LostReadsAsZero, planted)))
        },
    },
    Plant {
        name: "a reset that reads and then writes a zero drops an add",
        seeds: 20,
        round: |seed, planted| on_toy(seed, &[], toys::count(flaw(Flaw::ResetByPut, planted))),
    },
    Plant {
        name: "two keys are written in turn, and a crash comes between",
        seeds: 20,
        round: |seed, planted| on_toy(seed, &[Fault::NotSent], toys::table(flaw(Flaw::TwoKeysInTurn, planted))),
    },
    Plant {
        name: "members and their number are two steps",
        seeds: 20,
        round: |seed, planted| {
            if planted {
                return on_toy(seed, &[Fault::NotSent], toys::unique(Flaw::CountBesideSet));
            }
            Scene { faults: &[Fault::NotSent], ..Scene::calm(seed) }.play(job("unique visitors").run)
        },
    },
    Plant {
        name: "an invalidation is answered and not done",
        seeds: 10,
        round: |seed, planted| on_server(seed, Bug::NoDeletes, planted, "cache", &[]),
    },
    Plant {
        name: "a cached value is read from a replica that lags",
        seeds: 5,
        round: |seed, planted| on_server(seed, Bug::Lagging, planted, "cache", &[]),
    },
    Plant {
        name: "the ends of a sorted set are read from a replica that lags",
        seeds: 5,
        round: |seed, planted| on_server(seed, Bug::Lagging, planted, "sharded sorted set", &[]),
    },
    Plant {
        name: "what is to live for a time lives for ever",
        seeds: 15,
        round: |seed, planted| on_server(seed, Bug::NoLives, planted, "table with lives", &[]),
    },
    Plant {
        name: "a lock is let go at half of its lease",
        seeds: 5,
        round: |seed, planted| on_server(seed, Bug::ShortLives, planted, "lock", &[]),
    },
    Plant {
        name: "an item is given out again at half of its lease",
        // It shows where one holds an item for more than half of its lease, and another looks for one then.
        seeds: 60,
        round: |seed, planted| on_server(seed, Bug::ShortLives, planted, "queue", &[]),
    },
];

fn flaw(flaw: Flaw, is_planted: bool) -> Flaw {
    if is_planted { flaw } else { Flaw::None }
}

fn on_toy(
    seed: u64,
    faults: &'static [Fault],
    toy: impl FnOnce(
        larder_testkit::history::Arena,
        larder_testkit::history::Run,
    ) -> larder_testkit::history::Boxed<larder_testkit::history::Verdict>,
) -> Vec<String> {
    Scene { faults, ..Scene::calm(seed) }.play(toy)
}

/// A job of the product's own structures on a server that is wrong.
fn on_server(seed: u64, bug: Bug, is_planted: bool, name: &str, faults: &'static [Fault]) -> Vec<String> {
    let bug = if is_planted { bug } else { Bug::None };
    Scene { faults, bug: Some(bug), ..Scene::calm(seed) }.play(job(name).run)
}

fn retried_increment(seed: u64, is_planted: bool) -> Vec<String> {
    let scene = Scene { faults: &[Fault::LostReply], retries: is_planted, ..Scene::calm(seed) };
    scene.play(job("fast counter").run)
}

/// The first of a plant's seeds that shows it.
fn caught(plant: &Plant, seed: u64) -> Option<u64> {
    (0..plant.seeds).find(|at| !(plant.round)(seed.wrapping_add(*at), true).is_empty())
}

fn run(budget: Budget) -> Findings {
    let mut findings = Findings::default();
    for seed in budget.seeds() {
        let first = seed.wrapping_mul(1_000);
        for plant in PLANTS {
            let found = caught(plant, first);
            let counted = |what: &str| format!("planted: {}: {what}", plant.name);
            findings.count("hunts for planted bugs", 1);
            findings.count("hunts that missed", u64::from(found.is_none()));
            findings.count(&counted("hunts"), 1);
            findings.count(&counted("caught"), u64::from(found.is_some()));
            findings.count(&counted("seeds until caught"), found.map_or(0, |tries| tries + 1));
            if found.is_none() {
                findings.violation(seed, &format!("not caught in {} seeds: {}", plant.seeds, plant.name));
            }
            for wrong in (plant.round)(first, false) {
                findings.violation(seed, &format!("without the bug: {}: {wrong}", plant.name));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_bug_is_caught_within_its_budget() {
        for plant in PLANTS {
            assert!(caught(plant, 0).is_some(), "not caught in {} seeds: {}", plant.seeds, plant.name);
        }
    }

    /// Of many hunts none may miss by chance: each seed shows the bug, or one in so few that the budget is many times that.
    #[test]
    fn a_hunt_misses_less_than_once_in_ten_thousand() {
        const SEEDS: u64 = 100;
        let mut short = Vec::new();
        for plant in PLANTS {
            let shown = (1_000..1_000 + SEEDS).filter(|&seed| !(plant.round)(seed, true).is_empty()).count();
            let misses = (1.0 - shown as f64 / SEEDS as f64).powi(plant.seeds as i32);
            println!("{shown} of {SEEDS} seeds, a miss in {misses:.1e}: {}", plant.name);
            if misses > 1e-4 {
                short.push(format!("{shown} of {SEEDS} seeds show it, and {} are tried: {}", plant.seeds, plant.name));
            }
        }
        assert!(short.is_empty(), "{short:#?}");
    }

    #[test]
    fn without_the_bug_nothing_is_found() {
        for plant in PLANTS {
            for seed in 0..plant.seeds.min(100) {
                let wrong = (plant.round)(seed, false);
                assert!(wrong.is_empty(), "{}, seed {seed}: {wrong:?}", plant.name);
            }
        }
    }
}
