//! A slice of the simulation, and what makes it one: a seed runs the same way twice, here and in another process.

use std::process::Command;

use super::*;

/// Set in a process that is to print the trace of a seed and nothing else.
const PRINT: &str = "LARDER_SIMULATION_PRINT";

#[test]
fn a_slice_of_seeds_shows_no_violation() {
    let mut findings = Findings::default();
    for seed in 0..100 {
        tell(&mut findings, seed, simulate(seed, false));
    }
    assert_eq!(findings.told, Vec::<String>::new());
    assert_eq!((findings.violations, findings.counts["simulation seeds"]), (0, 100), "no store refuses a structure");
    let kinds = findings.counts.keys().filter(|what| what.starts_with("faults: ")).count();
    assert!(kinds >= 12, "{:?}", findings.counts);
    assert!(findings.counts["operations checked"] > 1_000, "{:?}", findings.counts);
}

#[test]
fn a_seed_replays_to_the_byte() {
    let mut lines = 0;
    for job in JOBS {
        let mut checked = 0;
        for seed in 0..2 {
            let (once, again) = (simulate_job(seed, job, true), simulate_job(seed, job, true));
            lines += once.trace.lines().count();
            assert_eq!(difference(&once.trace, &again.trace), None, "job {}, seed {seed}", job.name);
            assert_eq!(once, again, "job {}, seed {seed}", job.name);
            checked += once.verdict.operations;
        }
        assert!(checked > 0, "{}: nothing was checked", job.name);
    }
    assert!(lines > 2_000, "{lines} things happened in all");
}

/// The first line that differs, both ways, with its number.
fn difference(one: &str, other: &str) -> Option<(usize, String, String)> {
    let (mut one, mut other) = (one.lines(), other.lines());
    for number in 1.. {
        match (one.next(), other.next()) {
            (None, None) => break,
            (one, other) if one == other => {}
            (one, other) => {
                return Some((number, one.unwrap_or_default().to_owned(), other.unwrap_or_default().to_owned()));
            }
        }
    }
    None
}

#[test]
fn seeds_differ() {
    assert_ne!(simulate_job(1, &JOBS[0], true).trace, simulate_job(2, &JOBS[0], true).trace);
}

/// What differs from process to process (where things lie in memory, what hashes are seeded with) must not show either.
#[test]
fn a_seed_replays_to_the_byte_in_another_process() {
    if let Some(seed) = std::env::var(PRINT).ok().and_then(|seed| seed.parse().ok()) {
        print!("{BEGIN}{}{END}", traces_of(seed));
        return;
    }
    let name = "simulation::tests::a_seed_replays_to_the_byte_in_another_process";
    let this = std::env::current_exe().expect("this test's program");
    let seed = 5;
    let other = Command::new(&this).args(["--exact", name, "--nocapture"]).env(PRINT, seed.to_string()).output();
    let printed = String::from_utf8(other.expect("a process").stdout).expect("a trace is text");
    let there = printed.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map(|(trace, _)| trace);
    let there = there.unwrap_or_else(|| panic!("no trace in {printed:?}"));
    assert_eq!(difference(there, &traces_of(seed)), None, "seed {seed}");
}

const BEGIN: &str = "<<<";
const END: &str = ">>>";

fn traces_of(seed: u64) -> String {
    JOBS.iter().map(|job| simulate_job(seed, job, true).trace).collect()
}
