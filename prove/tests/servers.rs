//! A slice of the parts that need real servers. Each round is told by its seed: `larder-prove PART --seed N --seconds 0` plays it again.

use std::time::{Duration, Instant};

use larder_prove::{Budget, Findings, PARTS, served};
use larder_testkit::history::JOBS;

/// Histories of the slice: one of each job, which a seed picks by its remainder.
const HISTORIES: u64 = JOBS.len() as u64;

/// Runs one round of a part for each seed, and holds that nothing was violated.
fn slice(part: &str, seeds: impl IntoIterator<Item = u64>) -> Findings {
    served::executable_is(env!("CARGO_BIN_EXE_larder-prove"));
    let part = PARTS.iter().find(|known| known.name == part).expect("a part of the proof");
    let mut all = Findings::default();
    for seed in seeds {
        let start = Instant::now();
        let found = (part.run)(Budget::new(seed, Duration::ZERO));
        println!("{}, seed {seed}: {:?} in {:?}", part.name, found.counts, start.elapsed());
        all.add(found);
    }
    assert_eq!((all.violations, &all.told[..]), (0, &[][..]));
    all
}

/// One server of each sort, but for those that are as fast and of no other promise.
#[test]
fn servers_that_are_killed_lose_nothing_in_silence() {
    let found = slice("restarts", [0, 3, 4, 8]);
    assert!(found.counts["restart cycles"] >= 12);
    assert!(found.counts["losses told"] > 0 && found.counts["operations checked"] > 200);
}

#[test]
fn histories_on_servers_behind_bad_networks_count_honestly() {
    let found = slice("nemesis", 0..HISTORIES);
    assert_eq!(found.counts["histories"], HISTORIES);
    let unchecked: Vec<&str> = JOBS
        .iter()
        .map(|job| job.name)
        .filter(|job| found.counted(&format!("operations checked: {job}")) == 0)
        .collect();
    assert_eq!(unchecked, [""; 0]);
    assert!(found.counts["operations checked"] > HISTORIES * 50);
    let faults: u64 =
        found.counts.iter().filter(|(what, _)| what.starts_with("faults: ")).map(|(_, times)| times).sum();
    assert!(faults > HISTORIES, "{:?}", found.counts);
}
