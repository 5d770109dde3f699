//! The chapter's benchmark at a thousandth of its sizes: every job comes to its end on every store, and what it found is written.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// The program, with rounds as few and as short as they can be.
fn chapter(folder: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_larder-bench"));
    command.args(["chapter", "--items", "10000", "--rounds", "1", "--seconds", "0.05"]).args(args);
    for (option, file) in [("--json", "results.json"), ("--svg", "results.svg"), ("--markdown", "bench.md")] {
        command.arg(option).arg(folder.path().join(file));
    }
    command.output().expect("the program")
}

/// The contests of the file, each run's.
fn runs(folder: &TempDir) -> Vec<BTreeSet<String>> {
    let text = std::fs::read_to_string(folder.path().join("results.json")).expect("results");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let name = |contest: &serde_json::Value| contest["name"].as_str().expect("a name").to_owned();
    let contests = |run: &serde_json::Value| run["contests"].as_array().expect("contests").iter().map(name).collect();
    report["findings"].as_array().expect("runs").iter().map(contests).collect()
}

/// Every contest there is.
fn all() -> BTreeSet<String> {
    const LOOKUP: [&str; 4] = ["memory", "loading", "a lookup", "a lookup, and the read in it"];
    const VISITORS: [&str; 14] = [
        "memory, compact",
        "loading",
        "one is added",
        "all are counted",
        "memory, near-exact",
        "error, near-exact",
        "memory, exact, numbers",
        "memory, exact, any ids",
        "a sketch",
        "error, a sketch",
        "memory of a tenth, compact",
        "memory of a tenth, near-exact",
        "memory of a tenth, exact, numbers",
        "memory of a tenth, exact, any ids",
    ];
    const LOCATIONS: [&str; 4] = ["memory", "loading", "one is looked up", "all are counted"];
    let stores = ["in the process", "in a folder", "on memcached", "on Redis"];
    let jobs = [("A, cities", &LOOKUP[..]), ("B, visitors", &VISITORS), ("C, locations", &LOCATIONS)];
    let mut all: BTreeSet<String> = stores
        .iter()
        .flat_map(|on| jobs.iter().map(move |(job, contests)| (on, job, contests)))
        .flat_map(|(on, job, contests)| contests.iter().map(move |contest| format!("{job}, {on}: {contest}")))
        .collect();
    all.insert("B, visitors, on Redis: ids from standard input".to_owned());
    for on in ["on memcached", "on Redis"] {
        for of in ["a set", "a hash", "a sorted set"] {
            for what in ["the longest", "the slowest of 1,000"] {
                all.insert(format!("resharding {of}, {on}: {what} op meanwhile"));
            }
        }
    }
    all
}

#[test]
fn every_job_ends_on_every_store() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = chapter(&folder, &[]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    // Cargo builds the command for the tests of the whole workspace; alone, this package has none.
    if Path::new(env!("CARGO_BIN_EXE_larder-bench")).with_file_name("larder").exists() {
        assert!(output.status.success(), "{told}");
        assert_eq!(runs(&folder), [all()]);
    } else {
        assert!(!output.status.success() && told.contains("cargo build --release -p larder-cli makes it"), "{told}");
        let without: BTreeSet<String> = all().into_iter().filter(|name| !name.ends_with("standard input")).collect();
        assert_eq!(runs(&folder), [without]);
    }
}

#[test]
fn a_job_that_fails_loses_nothing_of_the_others_and_one_that_is_held_anew_replaces_itself() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = chapter(&folder, &["--only", "on Redis", "--larder", "/nowhere/larder"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("/nowhere/larder is not there"), "{told}");
    let found = runs(&folder);
    let on_redis: BTreeSet<String> = all().into_iter().filter(|name| name.contains("on Redis")).collect();
    let missing: Vec<&String> = on_redis.difference(&found[0]).collect();
    assert_eq!(missing, ["B, visitors, on Redis: ids from standard input"]);
    let output = chapter(&folder, &["--only", "C, locations, on Redis", "--keep"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let anew = runs(&folder);
    assert!(anew[1].iter().all(|name| name.starts_with("C, locations, on Redis")) && anew[1].len() == 4, "{anew:?}");
    assert_eq!(anew[0], found[0].difference(&anew[1]).cloned().collect());
}
