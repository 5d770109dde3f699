//! `cargo xtask prove`: runs the parts of the proof (`prove/`) and adds up what all runs at this commit found, in `docs/results.md`.
//!
//! Each run of a part is recorded by its commit and its seeds, so that parts can be run alone, broken off and gone on with, and add up.

mod changes;
mod machine;
mod page;
mod record;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anstream::println;
use serde_json::{Value, json};

use crate::command::{Context, Failure, Result, output};
use crate::servers;
pub(crate) use changes::product_of;
pub(crate) use record::Book;
use record::Run;

const RESULTS: &str = "docs/results.md";
/// The folder of the runs.
const RUNS: &str = "docs/proof";
/// The part whose runs another task makes: it has mutants in place of seeds.
pub(crate) const MUTANTS: &str = "mutants";

/// What to run, and for how long.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long all parts together may take; a part always ends its first round
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// What the runs start from; where it is not given, a part goes on behind its last run at this commit, or draws one, and says which
    #[arg(long)]
    seed: Option<u64>,
    /// Only this part; may be given again
    #[arg(long = "only", value_name = "PART")]
    parts: Vec<String>,
    /// Run nothing: write the results of the runs that there are
    #[arg(long)]
    results: bool,
}

/// A part that is to be run, from which seed, and how many of them are not done yet.
struct Turn<'a> {
    part: &'a str,
    seed: u64,
    seeds_max: u64,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let book = Book::open(root)?;
    let ran = if args.results { Ok(()) } else { run_parts(root, &book, args) };
    let runs = book.runs()?;
    if !runs.is_empty() {
        let results = root.join(RESULTS);
        fs::write(&results, page::page(&runs, &crate::mutants::files(root)?, &book.commit))
            .context(|| format!("could not write {}", results.display()))?;
        println!("\nwritten: {RESULTS} ({} runs at {})", runs.len(), book.commit);
    } else if ran.is_ok() {
        return Err(Failure(format!("no run is recorded at {}", book.commit)));
    }
    ran
}

/// The folder of what is built.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn run_parts(root: &Path, book: &Book, args: &Args) -> Result<()> {
    servers::ensure(root, false)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let built = cargo.args(["build", "--profile", "prove", "--package", "larder-prove"]).current_dir(root).status();
    if !built.context(|| "could not start cargo".to_owned())?.success() {
        return Err(Failure("larder-prove does not build".to_owned()));
    }
    book.expect_unmoved(root, "while larder-prove was built")?;
    let program = target(root).join("prove/larder-prove");
    let listed = output(&mut Command::new(&program))?;
    let all: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if let Some(unknown) = args.parts.iter().find(|part| !all.contains(&part.as_str())) {
        return Err(Failure(format!("no part is called {unknown:?}; they are: {}", all.join(", "))));
    }
    let wanted: Vec<&str> =
        all.into_iter().filter(|part| args.parts.is_empty() || args.parts.iter().any(|name| name == part)).collect();
    let seconds = (args.minutes * 60 / wanted.len().max(1) as u64).max(1);
    let drawn = drawn();
    let turns = wanted.into_iter().map(|part| turn(book, part, args.seed, drawn)).collect::<Result<Vec<_>>>()?;
    let mut failed = Vec::new();
    for turn in &turns {
        println!("\n\x1b[1m==> {}\x1b[0m, seed {}, {seconds} s", turn.part, turn.seed);
        if !run_part(root, &program, book, turn, seconds)? {
            failed.push(turn.part);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure(format!("violations in: {}", failed.join(", ")))) }
}

/// Where a part starts. Fails where that seed is done.
fn turn<'a>(book: &Book, part: &'a str, given: Option<u64>, drawn: u64) -> Result<Turn<'a>> {
    let seed = match given {
        Some(seed) => seed,
        None => book.next_seed(part)?.unwrap_or(drawn),
    };
    Ok(Turn { part, seed, seeds_max: book.room(part, seed)? })
}

/// Runs one part and records what it printed. Returns whether nothing was violated, and nothing lost in silence.
fn run_part(root: &Path, program: &Path, book: &Book, turn: &Turn, seconds: u64) -> Result<bool> {
    let part = turn.part;
    let mut command = Command::new(program);
    command.args([part, "--seed", &turn.seed.to_string(), "--seeds-max", &turn.seeds_max.to_string()]);
    command.args(["--seconds", &seconds.to_string()]);
    command.env("LARDER_SERVERS_DIR", servers::folder(root)).current_dir(root).stderr(Stdio::inherit());
    let said = command.output().context(|| format!("could not start {part}"))?;
    let text = String::from_utf8_lossy(&said.stdout);
    let found = text.lines().last().filter(|line| Run::parse(line).is_ok());
    let value = match found {
        Some(line) => serde_json::from_str(line).context(|| format!("{part} said {line}"))?,
        None => {
            let told = format!("{part} ended without findings ({})", said.status);
            println!("    {told}");
            fell_down(part, turn.seed, &told)
        }
    };
    let run = book.record(root, value)?;
    for (what, times) in &run.counts {
        println!("    {what:<40}{:>16}", page::grouped(*times));
    }
    if let Some(now) = &run.moved {
        println!("    the tree is {now} by now: it counts for {}, of which its program was built", book.commit);
    }
    Ok(said.status.success() && run.is_good())
}

/// What is recorded of a run that panicked, hung or was killed: it has shown nothing, whatever it did before, and other seeds do not mend that. Who shows that it was the machine's
/// doing takes the record out.
fn fell_down(part: &str, seed: u64, told: &str) -> Value {
    let findings = json!({"counts": {}, "violations": 1, "told": [format!("seed {seed}: {told}")]});
    json!({"part": part, "seed": seed, "seeds": 1, "seconds": 0, "findings": findings})
}

/// A seed that nobody gave: a multiple of what the part `crashes` takes to do one work whole.
fn drawn() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % 1_000_000_007 / page::SHARES_OF_A_WORK * page::SHARES_OF_A_WORK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_fell_down_is_a_violation_of_its_first_seed() {
        let run = Run::parse(&fell_down("fuzz", 7, "fuzz ended without findings (signal: 9)").to_string()).unwrap();
        assert!(!run.is_good() && run.violations == 1);
        assert_eq!(run.told, ["seed 7: fuzz ended without findings (signal: 9)"]);
        assert_eq!(run.extent, record::Extent::Seeds { first: 7, count: 1 });
    }
}
