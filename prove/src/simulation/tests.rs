//! A slice of the simulation, and what makes it one: a seed runs the same way twice.

use super::*;

#[test]
fn a_slice_of_seeds_shows_no_violation() {
    let mut findings = Findings::default();
    for seed in 0..100 {
        tell(&mut findings, seed, simulate(seed, false));
    }
    assert_eq!(findings.told, Vec::<String>::new());
    assert_eq!((findings.violations, findings.counts["simulation seeds"]), (0, 100));
    let kinds = findings.counts.keys().filter(|what| what.starts_with("faults: ")).count();
    assert!(kinds >= 12, "{:?}", findings.counts);
    assert!(findings.counts["operations checked"] > 1_000, "{:?}", findings.counts);
}

#[test]
fn a_seed_replays_to_the_byte() {
    for job in JOBS {
        for seed in 0..4 {
            let (once, again) = (simulate_job(seed, job, true), simulate_job(seed, job, true));
            assert!(once.trace.lines().count() > 20, "{}", once.trace);
            let differs = once.trace.lines().zip(again.trace.lines()).find(|(one, other)| one != other);
            assert_eq!(differs, None, "job {}, seed {seed}", job.name);
            assert_eq!(once, again, "job {}, seed {seed}", job.name);
        }
    }
}

#[test]
fn seeds_differ() {
    assert_ne!(simulate_job(1, &JOBS[0], true).trace, simulate_job(2, &JOBS[0], true).trace);
}
