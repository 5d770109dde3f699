//! `cargo xtask prove`: runs the parts of the proof (`prove/`) and adds up what all runs at this commit found, in `docs/results.md`.
//!
//! Each run of a part is a line in `target/proofs/<commit>.jsonl`, so that parts can be run alone, broken off and gone on with, and add up.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anstream::println;
use serde_json::Value;

use crate::command::{Context, Failure, Result, output};
use crate::servers;

const RESULTS: &str = "docs/results.md";
/// What is counted as a fault that was caused begins so.
const FAULTS: &str = "faults: ";

/// What to run, and for how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long all parts together may take; a part always ends its first round
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// What the runs start from; drawn, and printed, if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Only this part; may be given again
    #[arg(long = "only", value_name = "PART")]
    parts: Vec<String>,
    /// Run nothing: write the results of the runs that there are
    #[arg(long)]
    results: bool,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let target = target(root);
    let record = record_of(root)?;
    let ran = if args.results { Ok(()) } else { run_parts(root, &target, &record, args) };
    let lines = fs::read_to_string(&record).context(|| format!("no run is recorded in {}", record.display()))?;
    let runs = lines.lines().map(Run::parse).collect::<Result<Vec<_>>>()?;
    let results = root.join(RESULTS);
    fs::write(&results, page(&runs, &commit(root)?, &machine()))
        .context(|| format!("could not write {}", results.display()))?;
    println!("\nwritten: {RESULTS} ({} runs at this commit)", runs.len());
    ran
}

/// The folder of what is built.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Where the runs at this commit are recorded.
fn record_of(root: &Path) -> Result<PathBuf> {
    Ok(target(root).join("proofs").join(format!("{}.jsonl", commit(root)?)))
}

/// Records a run that another task made: a part, its seed, its seconds and its findings.
pub(crate) fn record(root: &Path, run: &Value) -> Result<()> {
    let line = run.to_string();
    Run::parse(&line)?;
    let record = record_of(root)?;
    fs::create_dir_all(record.parent().unwrap_or(root))
        .context(|| "could not make the folder of the runs".to_owned())?;
    append(&record, &line)
}

fn append(record: &Path, line: &str) -> Result<()> {
    let file = OpenOptions::new().create(true).append(true).open(record);
    let written = file.and_then(|mut file| writeln!(file, "{line}"));
    written.context(|| format!("could not record in {}", record.display()))
}

fn run_parts(root: &Path, target: &Path, record: &Path, args: &Args) -> Result<()> {
    servers::ensure(root, false)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let built = cargo.args(["build", "--profile", "prove", "--package", "larder-prove"]).current_dir(root).status();
    if !built.context(|| "could not start cargo".to_owned())?.success() {
        return Err(Failure("larder-prove does not build".to_owned()));
    }
    let program = target.join("prove/larder-prove");
    let listed = output(&mut Command::new(&program))?;
    let all: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if let Some(unknown) = args.parts.iter().find(|part| !all.contains(&part.as_str())) {
        return Err(Failure(format!("no part is called {unknown:?}; they are: {}", all.join(", "))));
    }
    let wanted: Vec<&str> =
        all.into_iter().filter(|part| args.parts.is_empty() || args.parts.iter().any(|name| name == part)).collect();
    let seed = args.seed.unwrap_or_else(drawn);
    let seconds = (args.minutes * 60 / wanted.len().max(1) as u64).max(1);
    fs::create_dir_all(record.parent().unwrap_or(target))
        .context(|| "could not make the folder of the runs".to_owned())?;
    let mut failed = Vec::new();
    for part in wanted {
        println!("\n\x1b[1m==> {part}\x1b[0m, seed {seed}, {seconds} s");
        if !run_part(root, &program, record, part, seed, seconds)? {
            failed.push(part);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure(format!("violations in: {}", failed.join(", ")))) }
}

/// Runs one part and records what it printed. Returns whether nothing was violated.
fn run_part(root: &Path, program: &Path, record: &Path, part: &str, seed: u64, seconds: u64) -> Result<bool> {
    let mut command = Command::new(program);
    command.args([part, "--seed", &seed.to_string(), "--seconds", &seconds.to_string()]);
    command.env("LARDER_SERVERS_DIR", servers::folder(root)).current_dir(root).stderr(Stdio::inherit());
    let said = command.output().context(|| format!("could not start {part}"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let Some(line) = text.lines().last().filter(|line| Run::parse(line).is_ok()) else {
        // What fell down has shown nothing, whatever it did before.
        println!("    {part} ended without findings ({})", said.status);
        return Ok(false);
    };
    append(record, line)?;
    let run = Run::parse(line)?;
    for (what, times) in &run.counts {
        println!("    {what:<40}{:>16}", grouped(*times));
    }
    Ok(said.status.success() && run.violations == 0)
}

/// One run of a part, as it is recorded.
struct Run {
    part: String,
    seed: u64,
    seconds: u64,
    counts: BTreeMap<String, u64>,
    violations: u64,
    told: Vec<String>,
}

impl Run {
    fn parse(line: &str) -> Result<Run> {
        let value: Value = serde_json::from_str(line).context(|| format!("not a record of a run: {line}"))?;
        let number = |value: &Value, name: &str| {
            value[name].as_u64().ok_or_else(|| Failure(format!("a record of a run without {name}: {line}")))
        };
        let findings = &value["findings"];
        let counts = findings["counts"].as_object().into_iter().flatten();
        let told = findings["told"].as_array().into_iter().flatten();
        Ok(Run {
            part: value["part"].as_str().unwrap_or_default().to_owned(),
            seed: number(&value, "seed")?,
            seconds: number(&value, "seconds")?,
            counts: counts.map(|(what, times)| (what.clone(), times.as_u64().unwrap_or(0))).collect(),
            violations: number(findings, "violations")?,
            told: told.filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }
}

/// All that was found, as the page of results.
fn page(runs: &[Run], commit: &str, machine: &str) -> String {
    let mut page = format!(
        "# What the proof found\n\n`cargo xtask prove` wrote this page: all runs of its parts at commit {commit}, added up. \
         How it is run, and what each part does: [CONTRIBUTING.md](../CONTRIBUTING.md#the-proof).\n\nMachine: {machine}.\n\n\
         ## Parts\n\n| part | runs | minutes | violations | seeds |\n|---|---|---|---|---|\n"
    );
    let parts: BTreeSet<&str> = runs.iter().map(|run| run.part.as_str()).collect();
    for part in &parts {
        let its: Vec<&Run> = runs.iter().filter(|run| run.part == **part).collect();
        let seeds: Vec<String> = its.iter().map(|run| run.seed.to_string()).collect();
        let seconds: u64 = its.iter().map(|run| run.seconds).sum();
        let violations: u64 = its.iter().map(|run| run.violations).sum();
        // A string takes whatever is written.
        let _ = writeln!(
            page,
            "| {part} | {} | {:.1} | {violations} | {} |",
            its.len(),
            seconds as f64 / 60.0,
            seeds.join(", ")
        );
    }
    page.push_str(&counts(runs, &parts, "What was done", |what| !what.starts_with(FAULTS)));
    page.push_str(&counts(runs, &parts, "Faults that were caused", |what| what.starts_with(FAULTS)));
    let told: Vec<&String> = runs.iter().flat_map(|run| &run.told).collect();
    if !told.is_empty() {
        page.push_str("\n## Violations\n\n");
        told.iter().for_each(|line| page.push_str(&format!("- {}\n", line.replace('\n', " "))));
    }
    page
}

/// A table of counts, a column a part and one for their sum.
fn counts(runs: &[Run], parts: &BTreeSet<&str>, title: &str, wanted: impl Fn(&str) -> bool) -> String {
    let whats: BTreeSet<&str> =
        runs.iter().flat_map(|run| run.counts.keys()).map(String::as_str).filter(|what| wanted(what)).collect();
    if whats.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = parts.iter().copied().collect();
    let mut table =
        format!("\n## {title}\n\n| what | all | {} |\n|---|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for what in whats {
        let of = |part: Option<&str>| -> u64 {
            let its = runs.iter().filter(|run| part.is_none_or(|part| run.part == part));
            its.filter_map(|run| run.counts.get(what)).sum()
        };
        let cells: Vec<String> = parts.iter().map(|part| grouped(of(Some(part)))).collect();
        let _ =
            writeln!(table, "| {} | {} | {} |", what.trim_start_matches(FAULTS), grouped(of(None)), cells.join(" | "));
    }
    table
}

/// A count as it is read: `1,234,567`; nothing for none.
fn grouped(count: u64) -> String {
    if count == 0 {
        return String::new();
    }
    let digits = count.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

/// The commit, and whether the tree differs from it.
fn commit(root: &Path) -> Result<String> {
    let git = |args: &[&str]| output(Command::new("git").args(args).current_dir(root));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // The page that this task writes is no difference.
    let changed = git(&["status", "--porcelain", "--", ".", &format!(":!{RESULTS}")])?;
    Ok(format!("{}{}", commit.trim(), if changed.trim().is_empty() { "" } else { "-changed" }))
}

/// What the runs are of: read off, nothing typed in.
fn machine() -> String {
    let field = |file: &str, name: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map(|(_, value)| value.trim().to_owned()).unwrap_or_default()
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rustc = output(Command::new("rustc").arg("--version")).unwrap_or_default();
    format!(
        "{}, {} cores, {}, Linux {}, {}",
        field("/proc/cpuinfo", "model name"),
        std::thread::available_parallelism().map_or(1, usize::from),
        field("/proc/meminfo", "MemTotal"),
        kernel.trim(),
        rustc.trim()
    )
}

/// A seed that nobody gave.
fn drawn() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_micros() as u64 % 1_000_000_007)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(part: &str, seed: u64, violations: u64) -> Run {
        let line = format!(
            r#"{{"part":"{part}","seed":{seed},"seconds":90,"findings":{{"counts":{{"operations checked":1500000,"faults: cut":7}},"violations":{violations},"told":{}}}}}"#,
            if violations > 0 { r#"["seed 3: lost\nin silence"]"# } else { "[]" }
        );
        Run::parse(&line).unwrap()
    }

    #[test]
    fn runs_of_a_part_add_up_and_violations_are_told() {
        let page = page(&[run("histories", 1, 0), run("histories", 2, 1), run("crashes", 3, 0)], "abc", "a machine");
        assert!(page.contains("| histories | 2 | 3.0 | 1 | 1, 2 |"), "{page}");
        assert!(page.contains("| operations checked | 4,500,000 | 1,500,000 | 3,000,000 |"), "{page}");
        assert!(page.contains("| cut | 21 | 7 | 14 |"), "{page}");
        assert!(page.contains("- seed 3: lost in silence"), "{page}");
    }

    #[test]
    fn what_is_no_record_is_told() {
        assert!(Run::parse("Killed").err().unwrap().0.contains("Killed"));
        assert!(
            Run::parse(r#"{"part":"x","seed":1,"seconds":2,"findings":{}}"#).err().unwrap().0.contains("violations")
        );
    }

    #[test]
    fn counts_are_grouped() {
        assert_eq!([0, 7, 1_000, 12_345_678].map(grouped), ["", "7", "1,000", "12,345,678"]);
    }
}
