//! `cargo xtask clients`: what clients in other languages expect of memcached, as their own suites say it: run against our server over both of its stores,
//! and against memcached itself, an old and a new one. What may fail on ours, and what is left out, stands in `docs/clients.md` with the reason: a failure that is not listed
//! there fails the task, and so does a line there of a test that passes, a suite that did not run the same tests on ours as on the newest memcached, and one that was not done in its time.
//!
//! The suites come from their registries, into `target/clients`. One of them knows no port but 11211, so each server has a loopback address of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anstream::println;

use crate::command::{Context, Failure, Result, output};
use crate::servers;

/// What may fail, and what is left out, a line each: suite, test, over which of our stores, reason.
const EXCEPTIONS: &str = "docs/clients.md";
/// Our server over each of its stores, as the list names them.
const OVER: [(&str, &str); 2] = [("memory", "larder, memory"), ("folder", "larder, file")];
const NODE_CLIENT: &str = "memcached@2.2.2";
/// What its tests were written for: later ones of the same names are others.
const NODE_TOOLS: [&str; 2] = ["mocha@5", "should@2.1.1"];
const PYTHON_CLIENT: &str = "pymemcache==4.0.0";
/// The ports that the suites use: three, for clients that spread keys.
const PORTS: [u16; 3] = [11_211, 11_212, 11_213];
/// How long a server may take to listen.
const READY: Duration = Duration::from_secs(10);
/// How long a suite may take, in seconds, as `timeout` takes it.
const SUITE_S: &str = "300";

/// The tests of a suite by name, and whether each passed.
type Outcomes = BTreeMap<String, bool>;

/// A server under test: three processes of it on an address of their own.
struct Subject {
    name: &'static str,
    address: &'static str,
    processes: Vec<Child>,
}

impl Drop for Subject {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Subject {
    fn start(name: &'static str, address: &'static str, command: impl Fn(u16) -> Command) -> Result<Subject> {
        let mut subject = Subject { name, address, processes: Vec::new() };
        for port in PORTS {
            let mut command = command(port);
            command.args(["-l", address, "-p", &port.to_string()]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            subject.processes.push(command.spawn().context(|| format!("could not start {name}"))?);
            let start = Instant::now();
            while TcpStream::connect((address, port)).is_err() {
                if start.elapsed() > READY {
                    return Err(Failure(format!("{name} does not listen on {address}:{port}; is that in use?")));
                }
                sleep(Duration::from_millis(20));
            }
        }
        Ok(subject)
    }
}

/// What runs a suite against an address, without some of its files.
type Suite = fn(&Path, &str, &[&str]) -> Result<Outcomes>;

const SUITES: [(&str, Suite); 3] =
    [("npm memcached 2.2.2", node), ("PyPI pymemcache 4.0.0", python), ("memccapable -a", capable)];

pub(crate) fn run(root: &Path) -> Result<()> {
    servers::ensure(root, false)?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    output(cargo.args(["build", "--package", "larder-cli"]).current_dir(root))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let folder = target.join("clients");
    prepare(&folder)?;
    let subjects = start(root, &target.join("debug/larder"), &folder)?;
    let excepted = Exceptions::read(root)?;
    let (mut is_good, mut seen) = (true, BTreeSet::new());
    for (suite, run) in SUITES {
        println!("\n{suite}");
        let mut known_to_fail: BTreeMap<String, &str> = BTreeMap::new();
        let mut of_memcached = Outcomes::new();
        for subject in &subjects {
            let outcomes = run(&folder, subject.address, &excepted.left_out(suite))?;
            let failed: Vec<&String> = outcomes.iter().filter(|(_, passed)| !**passed).map(|(name, _)| name).collect();
            println!("  {:<24} {:>4} pass, {:>3} fail", subject.name, outcomes.len() - failed.len(), failed.len());
            if outcomes.is_empty() {
                return Err(Failure(format!("{suite} ran no test against {}", subject.name)));
            }
            if !subject.name.starts_with("memcached") {
                for difference in differences(&of_memcached, &outcomes) {
                    is_good = false;
                    println!("    \x1b[1;31m{difference}\x1b[0m");
                }
            } else {
                // The newest comes last, and is the one that ours stands for.
                of_memcached.clone_from(&outcomes);
            }
            for test in failed {
                if subject.name.starts_with("memcached") {
                    known_to_fail.entry(test.clone()).or_insert(subject.name);
                } else if excepted.has(suite, test, subject.name) {
                    seen.insert((suite.to_owned(), test.clone(), subject.name));
                    let peer =
                        known_to_fail.get(test).map_or_else(String::new, |peer| format!("; fails on {peer} too"));
                    println!("    {test}: listed{peer}");
                } else {
                    is_good = false;
                    println!("    \x1b[1;31m{test}: fails, and {EXCEPTIONS} does not list it for this store\x1b[0m");
                }
            }
        }
    }
    for (suite, test, subject) in excepted.tests.difference(&seen) {
        is_good = false;
        println!("\x1b[1;31m{EXCEPTIONS} lists {test} of {suite}, which does not fail on {subject}\x1b[0m");
    }
    if is_good {
        Ok(())
    } else {
        Err(Failure(format!("what ran, what fails and what {EXCEPTIONS} lists do not agree")))
    }
}

/// What ran on one of both servers only: a suite that ends between two tests, without a word, has passed all that it ran.
fn differences(memcached: &Outcomes, ours: &Outcomes) -> Vec<String> {
    let only = |of: &Outcomes, other: &Outcomes, what: &str| -> Vec<String> {
        of.keys().filter(|test| !other.contains_key(*test)).map(|test| format!("{test}: {what}")).collect()
    };
    let mut found = only(memcached, ours, "did not run, and ran on memcached");
    found.extend(only(ours, memcached, "ran, and did not run on memcached"));
    found
}

/// What the list says.
#[derive(Debug, PartialEq, Eq)]
struct Exceptions {
    /// Suite, test, and the subject on which it may fail.
    tests: BTreeSet<(String, String, &'static str)>,
    /// Suite and file of tests that is not run.
    files: Vec<(String, String)>,
}

impl Exceptions {
    fn read(root: &Path) -> Result<Exceptions> {
        let path = root.join(EXCEPTIONS);
        let text = fs::read_to_string(&path).context(|| format!("could not read {}", path.display()))?;
        Exceptions::parse(&text)
    }

    /// The rows of the table: `| suite | `test` | stores | reason |`.
    fn parse(text: &str) -> Result<Exceptions> {
        let mut found = Exceptions { tests: BTreeSet::new(), files: Vec::new() };
        for line in text.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [suite, test, stores, reason] = cells[..] else { return Err(Failure(format!("{EXCEPTIONS}: {line}"))) };
            let test = test.strip_prefix('`').and_then(|test| test.strip_suffix('`'));
            let is_suite = SUITES.iter().any(|(name, _)| *name == suite);
            let subject = |store: &str| OVER.iter().find(|(name, _)| *name == store).map(|(_, subject)| *subject);
            let subjects: Option<Vec<_>> = stores.split(", ").map(subject).collect();
            let (Some(test), Some(subjects), true, false) = (test, subjects, is_suite, reason.is_empty()) else {
                return Err(Failure(format!("{EXCEPTIONS} takes a suite, a test, stores and a reason: {line}")));
            };
            if !test.ends_with(".test.js") {
                found.tests.extend(subjects.into_iter().map(|on| (suite.to_owned(), test.to_owned(), on)));
            } else if subjects.len() == OVER.len() {
                found.files.push((suite.to_owned(), test.to_owned()));
            } else {
                // It runs against memcached, too, and would be left out there.
                return Err(Failure(format!("{EXCEPTIONS}: a file is left out for all stores: {line}")));
            }
        }
        Ok(found)
    }

    fn has(&self, suite: &str, test: &str, subject: &str) -> bool {
        self.tests.iter().any(|(of, name, on)| of == suite && name == test && *on == subject)
    }

    fn left_out(&self, suite: &str) -> Vec<&str> {
        self.files.iter().filter(|(of, _)| of == suite).map(|(_, file)| &file[..]).collect()
    }
}

fn start(root: &Path, larder: &Path, folder: &Path) -> Result<Vec<Subject>> {
    let memcached = |name: &'static str| {
        let run = servers::folder(root).join(name).join("run");
        move |_| Command::new(&run)
    };
    let in_files = |port: u16| {
        let files = folder.join(format!("store-{port}"));
        // Of an earlier run.
        let _ = fs::remove_dir_all(&files);
        let mut command = Command::new(larder);
        command.args(["memcached", "--store"]).arg(format!("file:{}?sync=never", files.display()));
        command
    };
    let in_memory = |_| {
        let mut command = Command::new(larder);
        command.arg("memcached");
        command
    };
    Ok(vec![
        Subject::start("memcached, old", "127.77.0.1", memcached("memcached-old"))?,
        Subject::start("memcached, new", "127.77.0.2", memcached("memcached-new"))?,
        Subject::start(OVER[0].1, "127.77.0.3", in_memory)?,
        Subject::start(OVER[1].1, "127.77.0.4", in_files)?,
    ])
}

/// Fetches the suites that are not there yet.
fn prepare(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).context(|| format!("could not create {}", folder.display()))?;
    servers::program(&folder.join("memccapable"), "libmemcached-tools", "memccapable")?;
    let node = folder.join("node");
    if !node.join("node_modules/.bin/mocha").exists() {
        fs::create_dir_all(&node).context(|| format!("could not create {}", node.display()))?;
        let packed = output(Command::new("npm").args(["pack", "--silent", NODE_CLIENT]).current_dir(&node))?;
        output(Command::new("tar").args(["xzf", packed.trim(), "--strip-components=1"]).current_dir(&node))?;
        // Without the scripts of packages: one would put a hook into this repository.
        let install = ["install", "--silent", "--ignore-scripts", "--save-dev"];
        output(Command::new("npm").args(install).args(NODE_TOOLS).current_dir(&node))?;
    }
    let python = folder.join("python");
    if !python.join("venv/bin/pytest").exists() {
        fs::create_dir_all(&python).context(|| format!("could not create {}", python.display()))?;
        let sdist = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", PYTHON_CLIENT];
        output(Command::new("python3").args(sdist).current_dir(&python))?;
        output(
            Command::new("sh").args(["-c", "tar xzf pymemcache-*.tar.gz --strip-components=1"]).current_dir(&python),
        )?;
        output(Command::new("python3").args(["-m", "venv", "venv"]).current_dir(&python))?;
        let pip = python.join("venv/bin/pip");
        output(Command::new(pip).args(["install", "--quiet", "pytest", PYTHON_CLIENT]).current_dir(&python))?;
    }
    Ok(())
}

/// That a suite came to an end of its own: one in which a test fails has an exit status of 1, or so. `timeout` has 124 where the time was over, and 125 to 127 where it ran nothing.
fn ended(status: ExitStatus) -> Result<()> {
    match status.code() {
        Some(124) => Err(Failure(format!("a suite was not done after {SUITE_S} s"))),
        Some(125..=127) | None => Err(Failure(format!("a suite could not be run: {status}"))),
        Some(_) => Ok(()),
    }
}

/// Runs a suite, which ends with an error where a test fails, and returns what it printed.
fn said(command: &mut Command) -> Result<String> {
    let mut timed = Command::new("timeout");
    timed.arg(SUITE_S).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    timed.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        timed.current_dir(folder);
    }
    let done = timed.output().context(|| "could not start a suite".to_owned())?;
    ended(done.status)?;
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

fn node(folder: &Path, address: &str, left_out: &[&str]) -> Result<Outcomes> {
    let others: String = left_out.iter().map(|file| format!(" ! -name {file}")).collect();
    let script = format!(
        "exec node_modules/.bin/mocha --require should --exit --reporter json $(find test -name '*.test.js'{others})"
    );
    let folder = folder.join("node");
    let text = said(Command::new("sh").args(["-c", &script]).current_dir(folder).env("MEMCACHED__HOST", address))?;
    // Tests print, too: the report is the last object.
    let start = text.find("{\n  \"stats\"").ok_or_else(|| Failure(format!("mocha printed no report:\n{text}")))?;
    let report: serde_json::Value =
        serde_json::from_str(&text[start..]).context(|| "the report of mocha".to_owned())?;
    let of = |list: &str, passed: bool| {
        let tests = report[list].as_array().cloned().unwrap_or_default();
        tests.into_iter().filter_map(move |test| Some((test["fullTitle"].as_str()?.to_owned(), passed)))
    };
    Ok(of("passes", true).chain(of("failures", false)).collect())
}

fn python(folder: &Path, address: &str, _: &[&str]) -> Result<Outcomes> {
    let folder = folder.join("python");
    let mut command = Command::new(folder.join("venv/bin/python"));
    command.args(["-m", "pytest", "-q", "-rA", "-o", "addopts=", "-p", "no:cacheprovider"]);
    command.args(["pymemcache/test/test_integration.py", "--server", address]).current_dir(&folder);
    let text = said(&mut command)?;
    let outcome = |line: &str| {
        let (word, rest) = line.split_once(' ')?;
        let name = rest.split(" - ").next()?.rsplit("::").next()?;
        let passed = match word {
            "PASSED" => true,
            "FAILED" | "ERROR" => false,
            _ => return None,
        };
        Some((name.to_owned(), passed))
    };
    Ok(text.lines().filter_map(outcome).collect())
}

fn capable(folder: &Path, address: &str, _: &[&str]) -> Result<Outcomes> {
    let mut command = Command::new(folder.join("memccapable/run"));
    let text = said(command.args(["-h", address, "-p", "11211", "-a"]))?;
    // Names and `[pass]` go to standard output; what is said of those that fail goes elsewhere.
    let outcome = |part: &str| Some((format!("ascii {}", part.split("  ").next()?.trim()), part.contains("[pass]")));
    Ok(text.split("ascii ").skip(1).filter_map(outcome).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_ended_early_has_not_passed() {
        let outcomes = |names: &[&str]| -> Outcomes { names.iter().map(|name| ((*name).to_owned(), true)).collect() };
        let all = outcomes(&["get", "set", "touch"]);
        assert!(differences(&all, &all).is_empty());
        let failed: Outcomes = all.keys().map(|name| (name.clone(), false)).collect();
        assert!(differences(&all, &failed).is_empty(), "what fails is told elsewhere");
        assert_eq!(differences(&all, &outcomes(&["get"])).len(), 2);
        let other = differences(&all, &outcomes(&["get", "set", "other"]));
        assert_eq!(other, ["touch: did not run, and ran on memcached", "other: ran, and did not run on memcached"]);
    }

    #[test]
    fn a_suite_whose_time_is_over_is_an_error_and_one_with_a_failure_is_not() {
        let ends = |code: i32| said(Command::new("sh").args(["-c", &format!("echo said; exit {code}")]));
        for code in [0, 1, 2] {
            assert_eq!(ends(code).unwrap_or_else(|error| panic!("{error}")), "said\n");
        }
        assert!([124, 126, 127].iter().all(|code| ends(*code).is_err()));
    }

    #[test]
    fn the_list_is_read_as_it_stands() {
        let list = Exceptions::read(&crate::workspace_root()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(list.left_out(SUITES[0].0), ["memcached-connections.test.js"]);
        for text in [
            "| nobody's | `test` | folder | why |",
            "| memccapable -a | `ascii x` | folder |  |",
            "| memccapable -a | `ascii x` | folder |",
            "| memccapable -a | `ascii x` | why |",
            "| memccapable -a | `ascii x` | disk | why |",
            "| memccapable -a | `ascii x` |  | why |",
            "| npm memcached 2.2.2 | `x.test.js` | folder | why |",
        ] {
            assert!(Exceptions::parse(text).is_err(), "{text}");
        }
        // What may fail over a folder may not over memory.
        let one = |stores: &str| {
            let text = format!("| memccapable -a | `ascii x` | {stores} | why |");
            let found = Exceptions::parse(&text).unwrap_or_else(|error| panic!("{error}"));
            OVER.map(|(_, subject)| found.has("memccapable -a", "ascii x", subject))
        };
        assert_eq!([one("memory"), one("folder"), one("memory, folder")], [[true, false], [false, true], [true; 2]]);
        assert!(!list.has("memccapable -a", "ascii y", OVER[0].1));
        assert!(list.tests.iter().all(|(suite, _, on)| !suite.starts_with("PyPI") || *on == OVER[1].1));
    }
}
