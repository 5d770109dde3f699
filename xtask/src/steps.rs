//! `cargo xtask test` and `cargo xtask check`: steps that are announced, timed, and added up in a table at the end.

use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anstream::adapter::strip_str;
use anstream::{eprintln, println};

use crate::command::{Context, Failure, Result, show};
use crate::{cookbook, directions, evidence, examples, links, scripts, servers, style, summary, twins};

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[1;32m";
const RED: &str = "\x1b[1;31m";
const PLAIN: &str = "\x1b[0m";

struct Outcome {
    name: &'static str,
    passed: bool,
    took: Duration,
}

/// Runs steps one after the other. A step that fails does not keep the next ones from running: one run shows all.
struct Steps<'a> {
    root: &'a Path,
    outcomes: Vec<Outcome>,
    /// What the test runners themselves said in the end, word for word.
    summaries: Vec<String>,
}

/// Directions of dependencies, style, that the guarantees' evidence exists and that the documents' links lead somewhere.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    steps.checks();
    steps.finish()
}

/// Everything that must hold before a change is merged; the same here and in CI.
pub(crate) fn test(root: &Path) -> Result<()> {
    let mut steps = Steps::new(root);
    steps.run("servers", || servers::ensure(root, false));
    steps.checks();
    steps.cargo("format", &["fmt", "--all", "--check"]);
    steps.cargo("clippy", &["clippy", "--workspace", "--all-targets", "--keep-going", "--", "-D", "warnings"]);
    // What a program has that takes one kind of server alone: its features keep the other's dependencies away, and must build without them.
    for (name, features) in [("redis alone", "redis"), ("memcached alone", "memcached"), ("durable alone", "durable")] {
        steps.cargo(name, &["check", "-p", "larder", "--no-default-features", "--features", features]);
    }
    // By itself, without what other crates bring along.
    steps.cargo("durable store", &["check", "-p", "larder-store-durable"]);
    steps.cargo("documentation", &["doc", "--workspace", "--lib", "--no-deps", "--keep-going"]);
    let nextest = Command::new(cargo()).args(["nextest", "--version"]).output();
    if nextest.is_ok_and(|output| output.status.success()) {
        steps.runner("tests", &["nextest", "run", "--workspace"]);
    } else {
        println!("cargo-nextest is not installed: the tests run under cargo test, all threads in one process");
        steps.runner("tests", &["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]);
    }
    steps.runner("doc tests", &["test", "--workspace", "--doc", "--no-fail-fast"]);
    steps.finish()
}

impl<'a> Steps<'a> {
    fn new(root: &'a Path) -> Self {
        Self { root, outcomes: Vec::new(), summaries: Vec::new() }
    }

    fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        println!("\n{BOLD}==> {name}{PLAIN}");
        let start = Instant::now();
        let result = step();
        let took = start.elapsed();
        if let Err(failure) = &result {
            eprintln!("{RED}{name} failed:{PLAIN} {failure}");
        }
        println!("    {name}: {:.1} s", took.as_secs_f64());
        self.outcomes.push(Outcome { name, passed: result.is_ok(), took });
    }

    fn checks(&mut self) {
        let root = self.root;
        self.run("dependency directions", || none("points the wrong way", directions::violations(root)?));
        self.run("style", || none("breaks the style", style::violations(root)?));
        self.run("keys of scripts", || none("touches another key", scripts::violations(root)?));
        self.run("evidence", || none("has no evidence", evidence::violations(root)?));
        self.run("examples", || none("is asserted by no test", examples::violations(root)?));
        self.run("links", || none("leads nowhere", links::violations(root)?));
        self.run("cookbook", || none("is not whole", cookbook::violations(root)?));
        self.run("blocking twins", || none("has no twin", twins::violations(root)?));
        self.run("guarantees", || none("is stale", summary::violations(root)?));
    }

    fn cargo(&mut self, name: &'static str, args: &[&str]) {
        let mut command = self.command(args);
        self.run(name, || {
            let status = command.status().context(|| format!("could not start `{}`", show(&command)))?;
            ended(&command, status.success())
        });
    }

    /// A test runner: what it prints is passed on, and its summary kept for the end.
    fn runner(&mut self, name: &'static str, args: &[&str]) {
        let mut command = self.command(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut summaries = Vec::new();
        self.run(name, || pass_on(&mut command, &mut summaries));
        self.summaries.append(&mut summaries);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(args).current_dir(self.root).env("LARDER_SERVERS_DIR", servers::folder(self.root));
        if args.first() == Some(&"doc") {
            command.env("RUSTDOCFLAGS", "-D warnings");
        }
        if std::io::stdout().is_terminal() {
            // The runners see a pipe.
            command.env("CARGO_TERM_COLOR", "always");
        }
        command
    }

    fn finish(self) -> Result<()> {
        println!("\n{BOLD}{:<24}{:>10}  result{PLAIN}", "step", "seconds");
        for Outcome { name, passed, took } in &self.outcomes {
            let (colour, word) = if *passed { (GREEN, "ok") } else { (RED, "FAILED") };
            println!("{name:<24}{:>10.1}  {colour}{word}{PLAIN}", took.as_secs_f64());
        }
        let total: Duration = self.outcomes.iter().map(|outcome| outcome.took).sum();
        println!("{:<24}{:>10.1}", "total", total.as_secs_f64());
        if !self.summaries.is_empty() {
            println!("\nThe runners' own words:");
            self.summaries.iter().for_each(|line| println!("{line}"));
        }
        let failed: Vec<_> =
            self.outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.name).collect();
        if failed.is_empty() { Ok(()) } else { Err(Failure(format!("failed: {}", failed.join(", ")))) }
    }
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn ended(command: &Command, success: bool) -> Result<()> {
    if success { Ok(()) } else { Err(Failure(format!("`{}` failed", show(command)))) }
}

/// No violation passes.
fn none(what: &str, violations: Vec<String>) -> Result<()> {
    if violations.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("{} {what}:\n  {}", violations.len(), violations.join("\n  "))))
}

fn pass_on(command: &mut Command, summaries: &mut Vec<String>) -> Result<()> {
    let mut child = command.spawn().context(|| format!("could not start `{}`", show(command)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let kept = Mutex::new(summaries);
    thread::scope(|scope| {
        scope.spawn(|| each_line(stderr, |line| eprintln!("{line}"), &kept));
        each_line(stdout, |line| println!("{line}"), &kept);
    });
    let status = child.wait().context(|| format!("could not wait for `{}`", show(command)))?;
    ended(command, status.success())
}

fn each_line(stream: Option<impl Read>, print: impl Fn(&str), kept: &Mutex<&mut Vec<String>>) {
    let Some(stream) = stream else { return };
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    let mut ended = false;
    // What a test prints need not be UTF-8.
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\n', '\r']);
        print(text);
        let plain = strip_str(text).to_string();
        ended |= ends_the_run(&plain);
        if ended || is_summary(&plain) {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned());
        }
        line.clear();
    }
}

/// The line in which nextest says how many tests ran and how they ended. Those behind it name the tests that failed, and those that needed another try.
fn ends_the_run(line: &str) -> bool {
    line.trim_start().starts_with("Summary [")
}

/// The line in which cargo's own runner says so.
fn is_summary(line: &str) -> bool {
    line.trim_start().starts_with("test result: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_recognised() {
        assert!(is_summary("test result: ok. 6 passed; 0 failed"));
        assert!(!is_summary("        PASS [   0.003s] a test result: none"));
    }

    #[test]
    fn what_nextest_says_last_is_kept_with_the_names_of_those_that_failed() {
        let told = "PASS [ 0.003s] a Summary of nothing\n FAIL [ 1.0s] a::b\n  Summary [ 0.1s] 2 tests run: 1 passed, 1 timed out\n  TIMEOUT [ 180.005s] (1/2) a::b\nerror: test run failed\n";
        let mut kept = Vec::new();
        each_line(Some(told.as_bytes()), |_| (), &Mutex::new(&mut kept));
        let last: Vec<&str> = told.lines().skip(2).collect();
        assert_eq!(kept, last);
    }

    #[test]
    fn the_readme_sets_up_with_two_commands_and_ci_calls_the_second() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let read = |file: &str| std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        let readme = read("README.md");
        let block = readme.split_once("## Set up").unwrap().1.split("```").nth(1).unwrap();
        let commands = block.strip_prefix("sh\n").unwrap().lines().map(|line| line.split('#').next().unwrap().trim());
        let commands: Vec<&str> = commands.filter(|command| !command.is_empty()).collect();
        assert_eq!(commands, ["cargo run --release -- demo", "cargo xtask test"]);
        assert_eq!(read(".ci/run").lines().last(), Some("exec cargo xtask test"));
    }

    #[test]
    fn a_runner_is_passed_on_and_its_summary_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; printf '\\033[32mtest result: ok.\\033[0m\\n' >&2; exit 1"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut summaries = Vec::new();
        assert!(pass_on(&mut command, &mut summaries).is_err());
        assert_eq!(summaries, ["\x1b[32mtest result: ok.\x1b[0m"]);
    }

    #[test]
    fn a_failed_step_fails_the_whole_and_stops_nothing() {
        let mut steps = Steps::new(Path::new("."));
        steps.run("first", || Err(Failure("on purpose".to_owned())));
        steps.run("second", || Ok(()));
        assert_eq!(steps.outcomes.len(), 2);
        assert_eq!(steps.finish().unwrap_err().0, "failed: first");
    }

    #[test]
    fn violations_fail() {
        assert!(none("is wrong", Vec::new()).is_ok());
        assert_eq!(none("is wrong", vec!["a".into()]).unwrap_err().0, "1 is wrong:\n  a");
    }
}
