//! All mutants of a subject in one build, and each held against the tests that reach it.
//!
//! `cargo-mutants` says what the mutants are, and tries those that can have no switch (`switch`). For all others the tests are built once, on a copy of the tree. Each test runs alone, in a process of its
//! own: first with no switch on, noting the mutants it comes past; then, for each mutant, those that do, the quickest first, until one fails, and fails again. One that no test comes past survives without a trial.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anstream::println;
use serde_json::{Value, json};

use super::switch::{self, Genre, Mutant, Switched};
use crate::command::{Context, Failure, Result, output, show};

/// Which mutant is on, by its number; and the file for those that were come past.
const ON: &str = "LARDER_MUTANT";
const SEEN: &str = "LARDER_MUTANTS_SEEN";
/// How long a test may take beside twenty times what it took with no mutant on: a machine may be busy.
const TEST_TIMEOUT: Duration = Duration::from_secs(8);
/// How long one may take with none on, which is what the other limit comes of.
const FIRST_TIMEOUT: Duration = Duration::from_secs(200);
/// How many tests are kept that killed mutants of a file.
const KILLERS_KEPT: usize = 8;
/// How many of the slowest tests are told: a mutant that survives meets all that come past it.
const SLOWEST: usize = 12;
/// A build that leaves out what the compiler refused is done again: each time it comes further.
const BUILDS_MAX: usize = 40;

/// What each crate with mutants gets.
const SWITCHES: &str = r#"
#[allow(warnings)]
pub(crate) mod switches {
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static SEEN: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    static SET: OnceLock<(usize, Option<std::fs::File>)> = OnceLock::new();

    /// Whether this mutant is on.
    pub(crate) fn is_on(number: usize) -> bool {
        let (on, seen) = SET.get_or_init(|| {
            let on = std::env::var("LARDER_MUTANT").ok().and_then(|on| on.parse().ok()).unwrap_or(usize::MAX);
            let open = |path| std::fs::File::options().create(true).append(true).open(path).expect("the file of mutants");
            (on, std::env::var_os("LARDER_MUTANTS_SEEN").map(open))
        });
        if let Some(mut seen) = seen.as_ref()
            && !SEEN[number].swap(true, Ordering::Relaxed)
        {
            seen.write_all(format!("{number}\n").as_bytes()).expect("the file of mutants");
        }
        *on == number
    }
}
"#;

/// A mutant as `cargo-mutants` lists it.
struct Listed {
    name: String,
    file: String,
    genre: Genre,
    begins: (usize, usize),
    text: String,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    KilledByTheClock,
    Survives,
    DoesNotBuild,
}

impl Fate {
    /// As `cargo-mutants` says it.
    fn summary(self) -> &'static str {
        match self {
            Fate::Killed => "CaughtMutant",
            Fate::KilledByTheClock => "Timeout",
            Fate::Survives => "MissedMutant",
            Fate::DoesNotBuild => "Unviable",
        }
    }
}

/// Where mutants are built, and with what tests.
pub(super) struct Ground<'a> {
    /// The copy of the tree: it is written to.
    pub(super) tree: &'a Path,
    pub(super) target: &'a Path,
    /// The source of the crate that all mutants are in.
    pub(super) crate_root: &'a str,
    /// Which tests, as `cargo test` is told.
    pub(super) tests: &'a [&'a str],
    /// Which of them, as the runner that lists them is told.
    pub(super) filter: &'a [&'a str],
}

/// Tries these mutants, as `cargo-mutants` lists them: the outcomes in its form, and the names of those that it must try itself. Those that are argued meet the tests beside the code alone: no test should
/// see them, so they would meet all that come past them.
pub(super) fn trials(
    ground: &Ground<'_>,
    list: &[Value],
    is_argued: impl Fn(&str) -> bool,
) -> Result<(Vec<Value>, Vec<String>)> {
    let (mut fates, mut apart) = (BTreeMap::new(), BTreeSet::new());
    let mutants = listed(list)?;
    println!("    {} mutants: switches", mutants.len());
    ground.build(&mutants, &mut fates, &mut apart)?;
    let tests = ground.tests()?;
    println!("    {} do not build, {} stay apart; {} tests", fates.len(), apart.len(), tests.len());
    let reached = ground.reached(&tests)?;
    let built = (0..mutants.len()).filter(|at| !fates.contains_key(at) && !apart.contains(at));
    let (argued, left): (Vec<usize>, Vec<usize>) = built.partition(|&at| is_argued(&mutants[at].name));
    let killers = Killers::default();
    for (what, these, is_asked) in [("mutants", left, every as fn(&Test) -> bool), ("argued mutants", argued, beside)] {
        let tried = in_turns(what, &these, |&at| ground.fate(at, &mutants[at].file, &reached, &killers, is_asked))?;
        fates.extend(these.into_iter().zip(tried));
    }
    let outcome = |(at, (fate, by)): (&usize, &(Fate, Option<String>))| json!({"scenario": {"Mutant": {"name": mutants[*at].name}}, "summary": fate.summary(), "killer": by});
    let outcomes = fates.iter().map(outcome).collect();
    Ok((outcomes, apart.into_iter().map(|at| mutants[at].name.clone()).collect()))
}

type Fates = BTreeMap<usize, (Fate, Option<String>)>;

fn listed(list: &[Value]) -> Result<Vec<Listed>> {
    let odd = |value: &Value| Failure(format!("cargo-mutants lists a mutant of an unexpected shape: {value}"));
    let one = |value: &Value| {
        let text = |name: &str| value[name].as_str().map(str::to_owned);
        let at = |name: &str| value["span"]["start"][name].as_u64().and_then(|at| usize::try_from(at).ok());
        Some(Listed {
            name: text("name")?,
            file: text("file")?,
            genre: Genre::of(value["genre"].as_str()?)?,
            begins: (at("line")?, at("column")?),
            text: text("replacement")?,
        })
    };
    list.iter().map(|value| one(value).ok_or_else(|| odd(value))).collect()
}

fn every(_: &Test) -> bool {
    true
}

fn beside(test: &Test) -> bool {
    test.is_beside
}

/// A test of its own binary.
#[derive(Clone)]
struct Test {
    name: String,
    /// Whether it stands beside the code, with the crate's own.
    is_beside: bool,
    binary: PathBuf,
    folder: PathBuf,
}

/// A test that comes past mutants, and how long it takes.
struct Reach<'t> {
    test: &'t Test,
    takes: Duration,
    mutants: BTreeSet<usize>,
}

impl Ground<'_> {
    /// Puts all mutants behind switches, without those that the compiler refuses.
    fn build(&self, mutants: &[Listed], fates: &mut Fates, apart: &mut BTreeSet<usize>) -> Result<()> {
        let read = |file: &str| fs::read_to_string(self.tree.join(file)).context(|| format!("{file} cannot be read"));
        let mut files: BTreeMap<&str, String> = BTreeMap::new();
        for file in mutants.iter().map(|mutant| &mutant.file[..]).chain([self.crate_root]) {
            if !files.contains_key(file) {
                files.insert(file, read(file)?);
            }
        }
        for _ in 0..BUILDS_MAX {
            let mut written = BTreeMap::new();
            for (file, text) in &files {
                let is_left = |at: &usize| mutants[*at].file == *file && !fates.contains_key(at) && !apart.contains(at);
                let its: Vec<Mutant> =
                    (0..mutants.len()).filter(is_left).map(|at| numbered(at, &mutants[at])).collect();
                let switched = switch::switched(text, &its).map_err(|error| Failure(format!("{file}: {error}")))?;
                apart.extend(switched.apart.iter().map(|&number| number as usize));
                let more = if *file == self.crate_root {
                    SWITCHES.replace("COUNT", &mutants.len().to_string())
                } else {
                    String::new()
                };
                let path = self.tree.join(file);
                fs::write(&path, format!("{}{more}", switched.text)).context(|| format!("could not write {file}"))?;
                written.insert(*file, switched);
            }
            let refusals = self.refusals()?;
            if refusals.is_empty() {
                return Ok(());
            }
            let before = fates.len() + apart.len();
            for refusal in &refusals {
                blame(refusal, &written, fates, apart);
            }
            println!("    {} errors: {} mutants do not build, {} stay apart", refusals.len(), fates.len(), apart.len());
            if fates.len() + apart.len() == before {
                return Err(Failure(format!("the switches do not build, whatever is left out:\n{}", refusals[0].said)));
            }
        }
        Err(Failure(format!("the switches do not build after {BUILDS_MAX} turns")))
    }

    fn cargo(&self, words: &[&str]) -> Command {
        let mut cargo = Command::new(super::cargo());
        cargo.args(words).current_dir(self.tree).env("CARGO_TARGET_DIR", self.target);
        // The product's lints are for what people wrote. Without debug text it is built sooner; with some optimization the tests take a fraction.
        cargo
            .env("RUSTFLAGS", "--cap-lints=warn")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
        cargo.env("CARGO_PROFILE_DEV_DEBUG_ASSERTIONS", "true").env("CARGO_PROFILE_DEV_OVERFLOW_CHECKS", "true");
        cargo
    }

    /// What the compiler refuses.
    fn refusals(&self) -> Result<Vec<Refusal>> {
        let words =
            [&["check", "--profile", "test", "--offline", "--quiet", "--message-format=json"], self.tests].concat();
        let mut cargo = self.cargo(&words);
        let out = cargo.stdin(Stdio::null()).output().context(|| format!("could not start `{}`", show(&cargo)))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let refusals: Vec<Refusal> = messages.filter_map(|message| Refusal::of(&message["message"])).collect();
        match (out.status.success(), refusals.is_empty()) {
            (false, true) => {
                Err(Failure(format!("`{}` failed:\n{}", show(&cargo), String::from_utf8_lossy(&out.stderr))))
            }
            _ => Ok(refusals),
        }
    }

    /// Builds the tests, and lists them.
    fn tests(&self) -> Result<Vec<Test>> {
        let words = [&["nextest", "list", "--offline", "--message-format=json"], self.tests, self.filter].concat();
        let text = output(&mut self.cargo(&words))?;
        let line = text.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
        let list: Value = serde_json::from_str(line).context(|| "the list of tests cannot be read".to_owned())?;
        let suites = list["rust-suites"].as_object().into_iter().flatten();
        let mut tests = Vec::new();
        for (_, suite) in suites {
            let path = |name: &str| PathBuf::from(suite[name].as_str().unwrap_or_default());
            let is_beside = suite["kind"] == "lib";
            for (name, test) in suite["testcases"].as_object().into_iter().flatten() {
                if test["filter-match"]["status"] == "matches" && test["ignored"] == false {
                    let (binary, folder) = (path("binary-path"), path("cwd"));
                    tests.push(Test { name: name.clone(), is_beside, binary, folder });
                }
            }
        }
        Ok(tests)
    }

    /// Runs each test with no mutant on: those that each comes past, the quickest first.
    fn reached<'t>(&self, tests: &'t [Test]) -> Result<Vec<Reach<'t>>> {
        let folder = empty_folder(self.target)?;
        let numbered: Vec<(usize, &Test)> = tests.iter().enumerate().collect();
        let reach = |&(at, test): &(usize, &'t Test)| -> Result<(Ended, Reach<'t>)> {
            let seen = folder.join(at.to_string());
            let began = Instant::now();
            let ended = run(test, &[(SEEN, seen.as_os_str())], FIRST_TIMEOUT)?;
            let takes = began.elapsed();
            let text = if seen.exists() {
                fs::read_to_string(&seen).context(|| seen.display().to_string())?
            } else {
                String::new()
            };
            let mutants = text.lines().filter_map(|number| number.parse().ok()).collect();
            Ok((ended, Reach { test, takes, mutants }))
        };
        let tried = in_turns("tests", &numbered, reach)?;
        let (good, bad): (Vec<_>, Vec<_>) = tried.into_iter().partition(|(ended, _)| *ended == Ended::Passed);
        if !bad.is_empty() {
            let names: Vec<&str> = bad.iter().map(|(_, reach)| &reach.test.name[..]).collect();
            return Err(Failure(format!(
                "tests fail with no mutant on, which shows nothing of any mutant: {}",
                names.join(", ")
            )));
        }
        let mut reached: Vec<Reach<'t>> = good.into_iter().map(|(_, reach)| reach).collect();
        reached.sort_by_key(|reach| reach.takes);
        let all: Duration = reached.iter().map(|reach| reach.takes).sum();
        let slowest: Vec<String> = reached
            .iter()
            .rev()
            .take(SLOWEST)
            .map(|reach| format!("{} {:.1} s", reach.test.name, reach.takes.as_secs_f64()))
            .collect();
        println!("    {:.0} s in all; the slowest: {}", all.as_secs_f64(), slowest.join(", "));
        Ok(reached)
    }

    /// Holds a mutant against the tests that come past it, those that are asked: first those that killed others of its file.
    fn fate(
        &self,
        mutant: usize,
        file: &str,
        reached: &[Reach<'_>],
        killers: &Killers,
        is_asked: fn(&Test) -> bool,
    ) -> Result<(Fate, Option<String>)> {
        let number = mutant.to_string();
        let first = killers.of(file);
        let rest = (0..reached.len()).filter(|at| !first.contains(at));
        let meets = |&at: &usize| reached[at].mutants.contains(&mutant) && is_asked(reached[at].test);
        for at in first.iter().copied().chain(rest).filter(meets) {
            let Reach { test, takes, .. } = &reached[at];
            let ended = || run(test, &[(ON, number.as_ref())], TEST_TIMEOUT + 20 * *takes);
            let first = ended()?;
            // A test that fails by chance, whatever is on, or on a machine that is busy, kills nobody.
            if first == Ended::Passed || ended()? == Ended::Passed {
                continue;
            }
            let fate = if first == Ended::TooLate { Fate::KilledByTheClock } else { Fate::Killed };
            killers.note(file, at);
            return Ok((fate, Some(test.name.clone())));
        }
        Ok((Fate::Survives, None))
    }
}

/// Which tests have killed mutants of a file, the last first: they are likely to kill the next.
#[derive(Default)]
struct Killers(Mutex<BTreeMap<String, Vec<usize>>>);

impl Killers {
    fn of(&self, file: &str) -> Vec<usize> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(file).cloned().unwrap_or_default()
    }

    fn note(&self, file: &str, test: usize) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let its = known.entry(file.to_owned()).or_default();
        its.retain(|other| *other != test);
        its.insert(0, test);
        its.truncate(KILLERS_KEPT);
    }
}

fn numbered(at: usize, listed: &Listed) -> Mutant {
    Mutant { number: at as u32, genre: listed.genre, begins: listed.begins, text: listed.text.clone() }
}

/// The folder of what tests come past, empty.
fn empty_folder(target: &Path) -> Result<PathBuf> {
    let folder = target.join("seen");
    crate::servers::remove(&folder)?;
    fs::create_dir_all(&folder).context(|| format!("could not make {}", folder.display()))?;
    Ok(folder)
}

/// An error of the compiler.
struct Refusal {
    said: String,
    /// Files by their end, and where in them.
    spans: Vec<(String, std::ops::Range<usize>)>,
}

impl Refusal {
    fn of(message: &Value) -> Option<Refusal> {
        if message["level"] != "error" {
            return None;
        }
        let spans = message["spans"].as_array()?.iter().filter(|span| span["is_primary"] == true);
        let at = |span: &Value, name: &str| span[name].as_u64().and_then(|at| usize::try_from(at).ok());
        let span = |span: &Value| {
            Some((span["file_name"].as_str()?.to_owned(), at(span, "byte_start")?..at(span, "byte_end")?))
        };
        let spans: Vec<_> = spans.filter_map(span).collect();
        // What only sums up others.
        if spans.is_empty() {
            return None;
        }
        Some(Refusal { said: message["rendered"].as_str().unwrap_or_default().to_owned(), spans })
    }
}

/// Whose an error is: of a mutant in whose own text it stands, which does not build; else of those whose place it is in, which stay apart.
fn blame(refusal: &Refusal, files: &BTreeMap<&str, Switched>, fates: &mut Fates, apart: &mut BTreeSet<usize>) {
    for (name, span) in &refusal.spans {
        let Some((_, file)) = files.iter().find(|(file, _)| name.ends_with(**file) || file.ends_with(&name[..])) else {
            continue;
        };
        let holds = |range: &std::ops::Range<usize>| range.start <= span.start && span.end <= range.end;
        let smallest = |range: fn(&switch::Placed) -> &std::ops::Range<usize>| {
            file.placed.iter().filter(|placed| holds(range(placed))).min_by_key(|placed| range(placed).len())
        };
        if let Some(own) = smallest(|placed| &placed.own).filter(|placed| !placed.own.is_empty()) {
            fates.insert(own.number as usize, (Fate::DoesNotBuild, None));
        } else if let Some(around) = smallest(|placed| &placed.around) {
            let same = file.placed.iter().filter(|placed| placed.around == around.around);
            apart.extend(same.map(|placed| placed.number as usize));
        } else {
            let within =
                file.placed.iter().filter(|placed| span.start <= placed.around.start && placed.around.end <= span.end);
            apart.extend(within.map(|placed| placed.number as usize));
        }
    }
}

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Passed,
    Failed,
    TooLate,
}

/// Runs one test in a process of its own.
fn run(test: &Test, set: &[(&str, &std::ffi::OsStr)], timeout: Duration) -> Result<Ended> {
    let mut command = Command::new(&test.binary);
    command.args(["--exact", &test.name]).current_dir(&test.folder).envs(set.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context(|| format!("could not start `{}`", show(&command)))?;
    let ended = wait(&mut child, timeout);
    ended.context(|| format!("could not wait for {}", test.name))
}

fn wait(child: &mut Child, timeout: Duration) -> std::io::Result<Ended> {
    let (began, mut pause) = (Instant::now(), Duration::from_micros(500));
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if status.success() { Ended::Passed } else { Ended::Failed });
        }
        if began.elapsed() > timeout {
            child.kill()?;
            child.wait()?;
            return Ok(Ended::TooLate);
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(10));
    }
}

/// Does something with each of them, two at a time on each core since most tests wait more than they compute, and says how far it is: the answers in their order.
fn in_turns<T: Sync, A: Send>(what: &str, all: &[T], one: impl Fn(&T) -> Result<A> + Sync) -> Result<Vec<A>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new((Vec::with_capacity(all.len()), 0)));
    let began = Instant::now();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(of) = all.get(at) else { return };
            let answer = one(of);
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            if answer.is_err() {
                next.store(all.len(), Ordering::Relaxed);
            }
            done.0.push((at, answer));
            // Every twentieth part.
            let part = done.0.len() * 20 / all.len().max(1);
            if part > done.1 {
                done.1 = part;
                println!("    {what}: {} of {}, {} s", done.0.len(), all.len(), began.elapsed().as_secs());
            }
        }
    };
    let jobs = std::thread::available_parallelism().map_or(1, usize::from) * 2;
    std::thread::scope(|scope| (0..jobs).for_each(|_| _ = scope.spawn(work)));
    let (mut answers, _) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Test) {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("test");
        fs::write(&binary, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let test = Test { name: "a::b".to_owned(), is_beside: true, binary, folder: folder.path().to_owned() };
        (folder, test)
    }

    #[test]
    fn a_test_passes_fails_or_is_too_late() {
        let ended = |script: &str| run(&shell(script).1, &[(ON, "7".as_ref())], Duration::from_millis(500)).unwrap();
        assert_eq!(ended("exit 0"), Ended::Passed);
        assert_eq!(ended("exit 101"), Ended::Failed);
        assert_eq!(ended("kill -SEGV $$"), Ended::Failed);
        assert_eq!(ended("exec sleep 60"), Ended::TooLate);
        assert_eq!(ended("test \"$LARDER_MUTANT $*\" = \"7 --exact a::b\""), Ended::Passed);
    }

    #[test]
    fn a_mutant_meets_the_tests_that_come_past_it_until_one_fails() {
        let (_kept, good) = shell("exit 0");
        let (_too, bad) = shell("test $LARDER_MUTANT != 3");
        let reach =
            |test, mutants: &[usize]| Reach { test, takes: Duration::ZERO, mutants: mutants.iter().copied().collect() };
        let reached = [reach(&good, &[1, 2, 3]), reach(&bad, &[2, 3])];
        let folder = Path::new("/");
        let ground = Ground { tree: folder, target: folder, crate_root: "", tests: &[], filter: &[] };
        let killers = Killers::default();
        let fate = |mutant| ground.fate(mutant, "a.rs", &reached, &killers, every).unwrap();
        assert_eq!(fate(3), (Fate::Killed, Some("a::b".to_owned())));
        assert_eq!((killers.of("a.rs"), killers.of("b.rs")), (vec![1], vec![]));
        assert_eq!([fate(1), fate(2), fate(4)].map(|(fate, _)| fate), [Fate::Survives; 3]);
        let elsewhere = Test { is_beside: false, ..bad.clone() };
        let reached = [reach(&elsewhere, &[3])];
        let fate = |is_asked| ground.fate(3, "c.rs", &reached, &killers, is_asked).unwrap().0;
        assert_eq!([fate(every), fate(beside)], [Fate::Killed, Fate::Survives], "one that is argued");
    }

    #[test]
    fn a_test_that_fails_once_kills_nobody() {
        let (_kept, by_chance) = shell("mkdir once 2>/dev/null && exit 101; exit 0");
        let reached = [Reach { test: &by_chance, takes: Duration::ZERO, mutants: BTreeSet::from([1]) }];
        let folder = Path::new("/");
        let ground = Ground { tree: folder, target: folder, crate_root: "", tests: &[], filter: &[] };
        assert_eq!(ground.fate(1, "a.rs", &reached, &Killers::default(), every).unwrap().0, Fate::Survives);
    }

    #[test]
    fn those_that_killed_last_come_first_and_not_too_many() {
        let killers = Killers::default();
        (0..KILLERS_KEPT + 2).chain([5]).for_each(|test| killers.note("a.rs", test));
        let kept = killers.of("a.rs");
        assert_eq!((kept.len(), &kept[..3]), (KILLERS_KEPT, &[5, KILLERS_KEPT + 1, KILLERS_KEPT][..]));
    }

    /// What the compiler says of these bytes of a file.
    fn refusal(file: &str, from: usize, to: usize) -> Refusal {
        let span = json!({"file_name": file, "byte_start": from, "byte_end": to, "is_primary": true});
        Refusal::of(&json!({"level": "error", "rendered": "no", "spans": [span]})).unwrap()
    }

    #[test]
    fn an_error_is_of_the_mutant_it_stands_in_or_of_the_place_it_is_at() {
        let code = "fn f(a: u8) -> u8 {\n    a + 1\n}\n";
        let mutant = |number, genre, begins, text: &str| Mutant { number, genre, begins, text: text.to_owned() };
        let mutants = [
            mutant(0, Genre::FnValue, (2, 5), "1"),
            mutant(1, Genre::BinaryOperator, (2, 7), "-"),
            mutant(2, Genre::BinaryOperator, (2, 7), "*"),
        ];
        let switched = switch::switched(code, &mutants).unwrap();
        let at = |text: &str| switched.text.find(text).map(|at| (at, at + text.len())).unwrap();
        let (own, place) = (at("a - 1"), at("a + 1"));
        let files = BTreeMap::from([("crates/a/src/f.rs", switched)]);
        let blamed = |(from, to): (usize, usize)| {
            let (mut fates, mut apart) = (BTreeMap::new(), BTreeSet::new());
            blame(&refusal("crates/a/src/f.rs", from, to), &files, &mut fates, &mut apart);
            blame(&refusal("crates/a/src/g.rs", from, to), &files, &mut fates, &mut apart);
            (fates.into_keys().collect::<Vec<_>>(), apart.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(blamed(own), (vec![1], vec![]));
        assert_eq!(blamed(place), (vec![], vec![1, 2]));
        assert_eq!(blamed((0, 2)), (vec![], vec![]), "before all of them");
        assert!(Refusal::of(&json!({"level": "warning", "spans": []})).is_none());
        assert!(Refusal::of(&json!({"level": "error", "spans": []})).is_none(), "it sums up others");
    }

    #[test]
    fn answers_come_in_the_order_of_what_was_asked_and_an_error_ends_it() {
        let all: Vec<u64> = (0..50).collect();
        let twice = in_turns("numbers", &all, |at| Ok(at * 2)).unwrap();
        assert_eq!(twice, all.iter().map(|at| at * 2).collect::<Vec<_>>());
        let odd = |at: &u64| if *at == 7 { Err(Failure("seven".to_owned())) } else { Ok(()) };
        assert_eq!(in_turns("numbers", &all, odd).unwrap_err().0, "seven");
        assert!(in_turns("nothing", &[] as &[u64], |_| Ok(())).unwrap().is_empty());
    }

    #[test]
    fn what_is_listed_in_another_shape_is_refused() {
        let listed = |genre: &str| {
            let start = json!({"line": 3, "column": 5});
            super::listed(&[
                json!({"name": "a.rs:3:5: b", "file": "a.rs", "genre": genre, "replacement": "c", "span": {"start": start}}),
            ])
        };
        assert_eq!(listed("MatchArm").unwrap()[0].begins, (3, 5));
        assert!(listed("Novel").err().unwrap().0.contains("Novel"));
    }
}
