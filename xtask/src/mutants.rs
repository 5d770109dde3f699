//! `cargo xtask mutants`: mutation testing by `cargo-mutants`, in shards. What it finds is recorded as a run of the proof, so that `cargo xtask prove --results` adds
//! it up by commit.
//!
//! Each package's mutants are held against its own tests, those that need no server. One that survives is a violation, unless `docs/mutants.md` argues it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anstream::println;
use serde_json::{Value, json};

use crate::command::{Context, Failure, Result, output};
use crate::prove;

const ARGUED: &str = "docs/mutants.md";

/// What mutants are made of, and what they are held against.
struct Subject {
    package: &'static str,
    /// Beside the package: which tests.
    tests: &'static [&'static str],
    /// Which files, if not all.
    files: &'static [&'static str],
}

/// Documentation tests count, too, where they are what holds a small function: cargo's own runner has them.
const WITH_EXAMPLES: &[&str] = &["--test-tool", "cargo"];
/// Tests in memory alone: the filter is in `.config/nextest.toml`.
const IN_MEMORY: &[&str] = &["--test-tool", "nextest", "--cargo-test-arg=--profile", "--cargo-test-arg=mutants"];
/// Layouts are held by the tests beside them.
const BESIDE: &[&str] = &["--test-tool", "cargo", "--cargo-test-arg=--lib"];

/// By the names of the command line.
const SUBJECTS: &[(&str, Subject)] = &[
    ("core", Subject { package: "larder-core", tests: WITH_EXAMPLES, files: &[] }),
    ("proto", Subject { package: "larder-proto", tests: WITH_EXAMPLES, files: &[] }),
    (
        "layouts",
        Subject {
            package: "larder-structures",
            tests: BESIDE,
            files: &[
                "crates/structures/src/*/layout.rs",
                "crates/structures/src/lookup/{bits,block,huffman,model,text}.rs",
                "crates/structures/src/unique/{rice,id}.rs",
                "crates/structures/src/array/commits.rs",
                "crates/structures/src/log/cursor.rs",
                "crates/structures/src/sharded/ends.rs",
                "crates/structures/src/records/schema.rs",
                "crates/structures/src/{manifest,name}.rs",
            ],
        },
    ),
    ("structures", Subject { package: "larder-structures", tests: IN_MEMORY, files: &[] }),
];

/// What to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mutants of these: core, proto, layouts, structures
    #[arg(value_name = "SUBJECT", default_values = ["core", "proto", "layouts"])]
    subjects: Vec<String>,
    /// One part of so many of each subject's mutants, K/N, K from 0 on
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only mutants whose name matches; may be given again
    #[arg(long = "re", value_name = "REGEX")]
    names: Vec<String>,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let mut cargo = Command::new(cargo());
    output(cargo.args(["mutants", "--version"]))
        .map_err(|_| Failure("cargo-mutants is missing: cargo install cargo-mutants --locked".to_owned()))?;
    let mut survivors = 0;
    for name in &args.subjects {
        let known = SUBJECTS.iter().find(|(known, _)| known == name);
        let (name, subject) = known.ok_or_else(|| Failure(format!("no subject is called {name:?}")))?;
        survivors += try_subject(root, args, name, subject)?;
    }
    if survivors == 0 {
        Ok(())
    } else {
        Err(Failure(format!("{survivors} mutants survive, and {ARGUED} has none of them")))
    }
}

/// Tries the mutants of a subject, and records what became of them: how many survive that are not argued.
fn try_subject(root: &Path, args: &Args, name: &str, subject: &Subject) -> Result<u64> {
    let folder = prove::target(root).join("mutants").join(name);
    fs::create_dir_all(&folder).context(|| format!("could not make {}", folder.display()))?;
    let mut cargo = Command::new(cargo());
    cargo.args(["mutants", "--package", subject.package, "--no-shuffle", "--output"]).arg(&folder).args(subject.tests);
    subject.files.iter().for_each(|file| _ = cargo.args(["--file", file]));
    args.names.iter().for_each(|name| _ = cargo.args(["--re", name]));
    args.shard.iter().for_each(|shard| _ = cargo.args(["--shard", shard, "--sharding", "round-robin"]));
    println!("\n\x1b[1m==> mutants of {name}\x1b[0m");
    let began = Instant::now();
    // It fails where mutants survive; what they are it says in its file.
    cargo.current_dir(root).status().context(|| "could not start cargo mutants".to_owned())?;
    let file = folder.join("mutants.out/outcomes.json");
    let text = fs::read_to_string(&file).context(|| format!("no outcome in {}", file.display()))?;
    let outcomes = serde_json::from_str(&text).context(|| format!("{} cannot be read", file.display()))?;
    let argued = fs::read_to_string(root.join(ARGUED)).context(|| format!("{ARGUED} cannot be read"))?;
    let found = found(name, &outcomes, &argued)?;
    let shard = args.shard.as_deref().and_then(|shard| shard.split('/').next()?.parse().ok()).unwrap_or(0u64);
    let run = json!({"part": "mutants", "seed": shard, "seconds": began.elapsed().as_secs(), "findings": found});
    prove::record(root, &run)?;
    Ok(found["violations"].as_u64().unwrap_or(0))
}

/// What became of the mutants, as a part of the proof has it.
fn found(name: &str, outcomes: &Value, argued: &str) -> Result<Value> {
    let odd = || Failure("cargo-mutants' outcomes have an unexpected shape".to_owned());
    let argued: BTreeSet<&str> =
        argued.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next()).collect();
    let (mut killed, mut timeouts, mut broken, mut excused, mut told) = (0u64, 0u64, 0u64, 0u64, Vec::new());
    for outcome in outcomes["outcomes"].as_array().ok_or_else(odd)? {
        let Some(mutant) = outcome["scenario"]["Mutant"]["name"].as_str() else { continue };
        match outcome["summary"].as_str().ok_or_else(odd)? {
            "CaughtMutant" => killed += 1,
            "Timeout" => timeouts += 1,
            "Unviable" => broken += 1,
            "MissedMutant" if argued.contains(&placeless(mutant)[..]) => excused += 1,
            "MissedMutant" => told.push(mutant),
            _ => return Err(odd()),
        }
    }
    let viable = killed + timeouts + excused + told.len() as u64;
    Ok(json!({
        "counts": {
            (format!("mutants of {name}: viable")): viable,
            (format!("mutants of {name}: killed")): killed,
            (format!("mutants of {name}: never ended, found out by the clock")): timeouts,
            (format!("mutants of {name}: survive, argued")): excused,
            (format!("mutants of {name}: survive")): told.len(),
            (format!("mutants of {name}: do not build")): broken,
        },
        "violations": told.len(),
        "told": told,
    }))
}

/// A mutant's name without its line and column, which move: `file: what`.
fn placeless(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(what)) => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survivors_are_violations_unless_they_are_argued() {
        let mutant = |name: &str, summary: &str| json!({"scenario": {"Mutant": {"name": name}}, "summary": summary});
        let outcomes = json!({"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            mutant("a.rs:1:2: replace x -> u8 with 0", "CaughtMutant"),
            mutant("a.rs:1:2: replace x -> u8 with 1", "Timeout"),
            mutant("a.rs:9:9: replace + with - in y", "MissedMutant"),
            mutant("a.rs:7:2: replace | with ^ in z", "MissedMutant"),
            mutant("a.rs:1:2: replace x -> u8 with Default::default()", "Unviable"),
        ]});
        let argued = "# Mutants\n\n- `a.rs: replace | with ^ in z`: the bits are disjoint.\n";
        let found = found("core", &outcomes, argued).unwrap();
        assert_eq!(found["violations"], 1);
        assert_eq!(found["told"], json!(["a.rs:9:9: replace + with - in y"]));
        let count = |what: &str| found["counts"][format!("mutants of core: {what}")].as_u64().unwrap();
        assert_eq!(["viable", "killed", "survive, argued", "survive", "do not build"].map(count), [4, 1, 1, 1, 1]);
        assert!(super::found("core", &json!({"outcomes": [mutant("a.rs:1:2: b", "Novel")]}), "").is_err());
    }
}
