//! `cargo xtask mutants`: mutation testing by `cargo-mutants`, in shards. What it finds is recorded as a run of the proof, so that `cargo xtask prove --results` adds
//! it up by commit.
//!
//! Each package's mutants are held against its own tests, those that need no server. One that survives fails the command, unless `docs/mutants.md` argues it: it is what the
//! tests lack, not what the product does wrong, and the page of results lists it by itself.

mod alone;
mod at_once;
mod subjects;
mod switch;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::iter::Sum;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anstream::println;
use serde_json::{Value, json};

use crate::command::{Context, Failure, Result, output};
use crate::prove::{self, Book};
use at_once::Ground;
use subjects::{AtOnce, Subject};
pub(crate) use subjects::{Files, Tests, files};

const ARGUED: &str = "docs/mutants.md";
/// What came of those that are built at once, until all that belong to the call are tried.
const TRIED_AT_ONCE: &str = "at-once.json";
/// What cargo-mutants ends with where it tried the mutants: none was missed, some were, some never ended. Anything else is a wrong command line, a test that fails on the
/// code as it is, or a fault of its own, and says nothing of any mutant.
const TRIED: [i32; 3] = [0, 2, 3];

/// What to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mutants of these: core, proto, layouts, structures
    #[arg(value_name = "SUBJECT", default_values = ["core", "proto", "layouts"])]
    subjects: Vec<String>,
    /// Of the files that are not tried yet one part of so many, K/N, K from 0 on
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only mutants whose name matches, for a look: nothing is recorded; may be given again
    #[arg(long = "re", value_name = "REGEX")]
    names: Vec<String>,
    /// Once more those that survive in runs that count here
    #[arg(long, conflicts_with_all = ["shard", "names"])]
    left: bool,
}

pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let mut cargo = Command::new(cargo());
    output(cargo.args(["mutants", "--version"]))
        .map_err(|_| Failure("cargo-mutants is missing: cargo install cargo-mutants --locked".to_owned()))?;
    let shard = args.shard.as_deref().map_or(Ok((0, 1)), shard_of)?;
    let subjects = args.subjects.iter().map(|name| subjects::named(name)).collect::<Result<Vec<_>>>()?;
    let mut survivors = 0;
    for subject in subjects {
        survivors += match args.left {
            true => try_left(root, subject)?,
            false => try_subject(root, args, shard, subject)?,
        };
    }
    if survivors == 0 {
        Ok(())
    } else {
        Err(Failure(format!("{survivors} mutants survive, and {ARGUED} has none of them")))
    }
}

/// A part by its number, and how many parts there are.
fn shard_of(words: &str) -> Result<(usize, usize)> {
    let numbers = words.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
    let odd = || Failure(format!("a shard is K/N, K from 0 on and less than N, not {words:?}"));
    numbers.filter(|(at, of)| at < of).ok_or_else(odd)
}

/// A part of files, each with about as many lines.
fn part_of(files: Files, (at, of): (usize, usize)) -> BTreeSet<String> {
    let mut files: Vec<(String, usize)> = files.into_iter().collect();
    files.sort_by_key(|(_, lines)| Reverse(*lines));
    files.into_iter().map(|(file, _)| file).skip(at).step_by(of).collect()
}

/// Tries the mutants of a subject's files, and records what became of them: how many survive that are not argued.
fn try_subject(root: &Path, args: &Args, shard: (usize, usize), subject: &Subject) -> Result<usize> {
    let (book, all) = (Book::open(root)?, subject.files(root)?);
    let is_look = !args.names.is_empty();
    let files = if is_look { all.clone() } else { book.untried(all.clone())? };
    println!(
        "\n\x1b[1m==> mutants of {}: {} of its {} files are to be tried\x1b[0m",
        subject.name,
        files.len(),
        all.len()
    );
    let files = part_of(files, shard);
    if files.is_empty() {
        return Ok(0);
    }
    let folder = prove::target(root).join("mutants").join(subject.name);
    fs::create_dir_all(&folder).context(|| format!("could not make {}", folder.display()))?;
    let mut cargo = subject.mutants(&folder, files.iter().map(String::as_str));
    args.names.iter().for_each(|name| _ = cargo.args(["--re", name]));
    let began = Instant::now();
    let outcomes = match &subject.at_once {
        Some(at_once) => outcomes_at_once(root, subject, at_once, &mut cargo, &folder)?,
        None => {
            subject.hold_against_its_own(&mut cargo, root, &folder)?;
            outcomes(&mut cargo, &folder.join("mutants.out/outcomes.json"))?
        }
    };
    let (argued, mut killers) = (argued_text(root)?, killers(&outcomes, &folder.join("mutants.out"))?);
    killers.extend(killers_by_the_clock(&outcomes));
    let found = found(&outcomes, &killers, &argued)?;
    let all: Found = found.values().sum();
    println!("    {}", all.counts());
    let wrong = argued_and_killed(&outcomes, &argued);
    wrong.iter().for_each(|name| println!("    argued, and killed: {name}"));
    if !is_look {
        let (seconds, none) = (began.elapsed().as_secs(), Found::default());
        for file in &files {
            // One of which there are no mutants is tried, too.
            let found = found.get(file).unwrap_or(&none);
            let seconds = seconds * found.tried() / all.tried().max(1);
            let run = json!({"part": prove::MUTANTS, "file": file, "seconds": seconds, "findings": found.findings()});
            book.record(root, run)?;
        }
    }
    if wrong.is_empty() {
        Ok(all.survivors.len())
    } else {
        Err(Failure(format!("{} mutants are argued in {ARGUED}, and a test fails on them", wrong.len())))
    }
}

/// The outcomes of all mutants that `cargo` would try: built at once; those that can have no switch one by one.
fn outcomes_at_once(
    root: &Path,
    subject: &Subject,
    at_once: &AtOnce,
    cargo: &mut Command,
    folder: &Path,
) -> Result<Value> {
    let list = listed(cargo, root)?;
    // Where those that stay apart could not be tried, whoever calls again goes on with them.
    let (mut all, mut apart) = match tried_before(root, &list, folder)? {
        Some(tried) => tried,
        None => trials(root, at_once, &list, folder)?,
    };
    if at_once.has_examples {
        apart.extend(take_survivors(&mut all, &argued(&argued_text(root)?)));
    }
    all.push(json!({"scenario": "Baseline", "summary": "Success"}));
    if !apart.is_empty() {
        let known = BTreeSet::new();
        let again = Again { root, folder, subject, known: &known, killed: BTreeMap::new() };
        let tried = again.outcomes(&apart, |cargo| subject.hold_against_its_own(cargo, root, folder))?;
        let is_apart = |outcome: &&Value| {
            let name = outcome["scenario"]["Mutant"]["name"].as_str();
            outcome["scenario"] == "Baseline" || name.is_some_and(|name| apart.iter().any(|apart| apart == name))
        };
        let before = all.len();
        all.extend(tried["outcomes"].as_array().into_iter().flatten().filter(is_apart).cloned());
        // And how the tests ended without a mutant.
        if all.len() != before + apart.len() + 1 {
            let came = all.len() - before;
            return Err(Failure(format!("cargo-mutants tried {came} of {} mutants that stay apart", apart.len())));
        }
    }
    Ok(json!({"outcomes": all}))
}

/// Takes out the outcomes of those that survive and are not argued: their names.
fn take_survivors(outcomes: &mut Vec<Value>, argued: &BTreeSet<&str>) -> Vec<String> {
    let is_survivor = |outcome: &mut Value| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str();
        outcome["summary"] == "MissedMutant" && name.is_some_and(|name| !is_argued(argued, name))
    };
    let taken = outcomes.extract_if(.., is_survivor);
    taken.filter_map(|outcome| outcome["scenario"]["Mutant"]["name"].as_str().map(str::to_owned)).collect()
}

/// Tries mutants at once on a copy of the tree, and writes what came of it into this folder: the outcomes, and those that stay apart.
fn trials(root: &Path, at_once: &AtOnce, list: &[Value], folder: &Path) -> Result<(Vec<Value>, Vec<String>)> {
    // Who tries another subject behind this one builds little anew.
    let place = prove::target(root).join("mutants").join("at-once");
    let (tree, target) = (place.join("tree"), place.join("target"));
    alone::copy_of(root, &tree)?;
    let ground = Ground {
        tree: &tree,
        target: &target,
        crate_root: at_once.crate_root,
        tests: at_once.tests,
        filter: at_once.filter,
    };
    let argued = argued_text(root)?;
    let argued = self::argued(&argued);
    let (outcomes, apart) = at_once::trials(&ground, list, |name| is_argued(&argued, name))?;
    let told = folder.join(TRIED_AT_ONCE);
    let text = json!({"outcomes": outcomes, "apart": apart, "of": what_is_tried(root, list)?}).to_string();
    fs::write(&told, text).context(|| format!("could not write {}", told.display()))?;
    Ok((outcomes, apart))
}

/// The mutants by their names, and their files as git knows them.
fn what_is_tried(root: &Path, list: &[Value]) -> Result<Value> {
    let files: BTreeSet<&str> = list.iter().filter_map(|mutant| mutant["file"].as_str()).collect();
    let hashes = output(Command::new("git").arg("hash-object").args(&files).current_dir(root))?;
    let names: Vec<&Value> = list.iter().map(|mutant| &mutant["name"]).collect();
    Ok(json!({"mutants": names, "files": hashes.lines().collect::<Vec<_>>()}))
}

/// What came of trying these very mutants of these very files at once, in a call that did not come to its end.
fn tried_before(root: &Path, list: &[Value], folder: &Path) -> Result<Option<(Vec<Value>, Vec<String>)>> {
    let Ok(text) = fs::read_to_string(folder.join(TRIED_AT_ONCE)) else { return Ok(None) };
    let told: Value = serde_json::from_str(&text).unwrap_or_default();
    if told["of"] != what_is_tried(root, list)? {
        return Ok(None);
    }
    let all = |name: &str| told[name].as_array().cloned().unwrap_or_default();
    let (outcomes, apart) = (all("outcomes"), all("apart"));
    println!("    {} were tried at once before", outcomes.len());
    Ok(Some((outcomes, apart.iter().filter_map(Value::as_str).map(str::to_owned).collect())))
}

/// The mutants that cargo-mutants would try.
fn listed(cargo: &mut Command, root: &Path) -> Result<Vec<Value>> {
    let list = output(cargo.args(["--list", "--json"]).current_dir(root))?;
    serde_json::from_str(&list).context(|| "cargo-mutants' list cannot be read".to_owned())
}

/// Tries once more what survives of a subject, and records what does no longer: how many do.
fn try_left(root: &Path, subject: &Subject) -> Result<usize> {
    let book = Book::open(root)?;
    let left = book.left(&subject.files(root)?)?;
    println!("\n\x1b[1m==> mutants of {} that survive: {}\x1b[0m", subject.name, left.len());
    if left.is_empty() {
        return Ok(0);
    }
    let folder = prove::target(root).join("mutants").join(format!("{}-left", subject.name));
    fs::create_dir_all(&folder).context(|| format!("could not make {}", folder.display()))?;
    let (began, text) = (Instant::now(), argued_text(root)?);
    let known = argued(&text);
    let mut again = Again { root, folder: &folder, subject, known: &known, killed: BTreeMap::new() };
    let list = names_of(&listed(&mut again.cargo(&left), root)?);
    let now: Vec<String> = left.iter().map(|name| place_now(name, &list)).collect();
    let rest = match &subject.at_once {
        Some(at_once) => again.run_at_once(&now, at_once)?,
        None => now.clone(),
    };
    book.expect_unmoved(root, "while its tests ran")?;
    if !rest.is_empty() {
        again.run(&rest, |cargo| subject.hold_against_its_own(cargo, root, &folder))?;
    }
    book.expect_unmoved(root, "while its tests ran")?;
    let seconds = began.elapsed().as_secs();
    let (mut survivors, mut runs, trials) = (left.len(), Vec::new(), book.trials()?);
    for file in left.iter().map(|name| file_of(name)).collect::<BTreeSet<_>>() {
        // They are settled by the names that they have in the trial.
        let its: Vec<(&String, &String)> = left.iter().zip(&now).filter(|(name, _)| file_of(name) == file).collect();
        let killed: BTreeMap<&String, &String> =
            its.iter().filter_map(|(name, now)| Some((*name, again.killed.get(*now)?))).collect();
        let is_argued = |name: &String, now: &String| is_argued(&known, name) || is_argued(&known, now);
        let argued = its.iter().filter(|(name, now)| is_argued(name, now) && !killed.contains_key(name));
        let argued: Vec<&String> = argued.map(|(name, _)| *name).collect();
        survivors -= killed.len() + argued.len();
        let findings = json!({"counts": {}, "violations": 0, "told": [], "killed": killed, "argued": argued});
        let seconds = seconds * its.len() as u64 / left.len() as u64;
        let of = trials.get(file);
        runs.push(json!({"part": prove::MUTANTS, "file": file, "left": true, "of": of, "seconds": seconds, "findings": findings}));
    }
    book.record_all(root, runs)?;
    println!("    killed {}, survive {survivors}", again.killed.len());
    Ok(survivors)
}

fn names_of(list: &[Value]) -> BTreeSet<String> {
    list.iter().filter_map(|mutant| Some(mutant["name"].as_str()?.to_owned())).collect()
}

/// The name of a mutant by the line that it stands at now, where that moved with comments before it: if one alone is the same but for that.
fn place_now(name: &str, list: &BTreeSet<String>) -> String {
    let mut same = list.iter().filter(|other| lineless(other) == lineless(name));
    match (list.contains(name), same.next(), same.next()) {
        (false, Some(moved), None) => moved.clone(),
        _ => name.to_owned(),
    }
}

/// What a mutant's name says beside the line: its file, and its column and what is changed.
fn lineless(name: &str) -> (&str, &str) {
    let (file, place) = name.split_once(':').unwrap_or((name, ""));
    (file, place.split_once(':').map_or(place, |(_, rest)| rest))
}

/// The file that a mutant is of, by its name.
fn file_of(name: &str) -> &str {
    name.split(':').next().unwrap_or(name)
}

/// Mutants of a subject that are tried once more.
struct Again<'a> {
    root: &'a Path,
    folder: &'a Path,
    subject: &'a Subject,
    /// Those that are argued.
    known: &'a BTreeSet<&'a str>,
    /// Which test failed on whom.
    killed: BTreeMap<String, String>,
}

impl Again<'_> {
    /// Tries those at once that can have a switch: those that are to be tried by themselves, too.
    fn run_at_once(&mut self, names: &[String], at_once: &AtOnce) -> Result<Vec<String>> {
        let mut list = listed(&mut self.cargo(names), self.root)?;
        list.retain(|mutant| names.iter().any(|name| mutant["name"] == name[..]));
        let (mut outcomes, apart) = trials(self.root, at_once, &list, self.folder)?;
        outcomes.extend(apart.iter().map(|name| json!({"scenario": {"Mutant": {"name": name}}})));
        self.take(names, &json!({"outcomes": outcomes}))?;
        let is_left = |name: &&String| !self.killed.contains_key(*name) && !is_argued(self.known, name);
        Ok(if at_once.has_examples { names.iter().filter(is_left).cloned().collect() } else { apart })
    }

    /// Tries these, in the way that is set up.
    fn run(&mut self, names: &[String], set_up: impl FnOnce(&mut Command) -> Result<()>) -> Result<()> {
        let outcomes = self.outcomes(names, set_up)?;
        self.take(names, &outcomes)
    }

    /// cargo-mutants, of the files of these.
    fn cargo(&self, names: &[String]) -> Command {
        let files: BTreeSet<&str> = names.iter().map(|name| file_of(name)).collect();
        self.subject.mutants(self.folder, files)
    }

    fn outcomes(&self, names: &[String], set_up: impl FnOnce(&mut Command) -> Result<()>) -> Result<Value> {
        let mut cargo = self.cargo(names);
        names.iter().for_each(|name| _ = cargo.arg("--re").arg(format!("^{}$", literal(name))));
        // cargo-mutants (27.1.0) tries those that leave out a field whatever the names are, but none where nothing is said to have changed.
        let diff = self.folder.join("left.diff");
        fs::write(&diff, diff_of(self.root, names)?).context(|| format!("could not write {}", diff.display()))?;
        cargo.arg("--in-diff").arg(&diff);
        set_up(&mut cargo)?;
        outcomes(&mut cargo, &self.folder.join("mutants.out/outcomes.json"))
    }

    /// Notes who was killed.
    fn take(&mut self, names: &[String], outcomes: &Value) -> Result<()> {
        let all = || outcomes["outcomes"].as_array().into_iter().flatten();
        let is_sound = |outcome: &Value| outcome["scenario"] != "Baseline" || outcome["summary"] == "Success";
        if !all().all(is_sound) {
            return Err(fails_as_it_is());
        }
        let tried: BTreeSet<&str> =
            all().filter_map(|outcome| outcome["scenario"]["Mutant"]["name"].as_str()).collect();
        let is_gone = |name: &&String| !tried.contains(&name[..]) && !is_argued(self.known, name);
        if let Some(gone) = names.iter().find(is_gone) {
            return Err(Failure(format!("{gone} survived, and is no mutant any more; {ARGUED} does not have it")));
        }
        let killed = killers(outcomes, &self.folder.join("mutants.out"))?;
        self.killed.extend(killed.into_iter().filter(|(name, _)| names.contains(name)));
        Ok(())
    }
}

/// A diff that adds the lines of these mutants, and nothing else.
fn diff_of(root: &Path, names: &[String]) -> Result<String> {
    let mut lines: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for name in names {
        let mut parts = name.splitn(3, ':');
        let odd = || Failure(format!("the name of a mutant begins with its file and line: {name}"));
        let (file, line) = parts.next().zip(parts.next()).ok_or_else(odd)?;
        lines.entry(file).or_default().insert(line.parse().map_err(|_| odd())?);
    }
    let mut diff = String::new();
    for (file, lines) in lines {
        let text = fs::read_to_string(root.join(file)).context(|| format!("{file} cannot be read"))?;
        diff += &format!("--- a/{file}\n+++ b/{file}\n");
        for (added, line) in lines.into_iter().enumerate() {
            let text = text.lines().nth(line - 1).unwrap_or_default();
            diff += &format!("@@ -{},0 +{line} @@\n+{text}\n", line - 1 - added);
        }
    }
    Ok(diff)
}

/// A regular expression for a text as it is.
fn literal(text: &str) -> String {
    let one = |c: char| match c {
        // With a backslash these two are the ends of a word.
        '<' | '>' => format!("[{c}]"),
        c if c.is_ascii_punctuation() => format!("\\{c}"),
        c => c.to_string(),
    };
    text.chars().map(one).collect()
}

/// Runs cargo-mutants, and reads what it wrote into the file: of this run, and only if it tried the mutants.
fn outcomes(cargo: &mut Command, file: &Path) -> Result<Value> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(Failure(format!("could not remove {}: {error}", file.display())));
        }
        _ => {}
    }
    let status = cargo.status().context(|| "could not start cargo mutants".to_owned())?;
    if !status.code().is_some_and(|code| TRIED.contains(&code)) {
        return Err(Failure(format!("cargo mutants tried no mutants ({status}): its output says why")));
    }
    let text = fs::read_to_string(file).context(|| format!("no outcome in {}", file.display()))?;
    serde_json::from_str(&text).context(|| format!("{} cannot be read", file.display()))
}

/// What became of the mutants of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    caught: u64,
    timeouts: u64,
    broken: u64,
    excused: u64,
    survivors: Vec<String>,
    /// The tests that failed on one of them.
    tests: BTreeSet<String>,
}

impl Found {
    fn viable(&self) -> u64 {
        self.caught + self.timeouts + self.excused + self.survivors.len() as u64
    }

    fn tried(&self) -> u64 {
        self.viable() + self.broken
    }

    fn counts(&self) -> Value {
        json!({
            "viable": self.viable(),
            "killed": self.caught + self.timeouts,
            "killed by the clock": self.timeouts,
            "argued": self.excused,
            "survive": self.survivors.len(),
            "do not build": self.broken,
        })
    }

    /// As a part of the proof has it.
    fn findings(&self) -> Value {
        let (counts, survivors, tests) = (self.counts(), &self.survivors, &self.tests);
        json!({"counts": counts, "violations": 0, "told": [], "survivors": survivors, "tests": tests})
    }
}

impl<'f> Sum<&'f Found> for Found {
    fn sum<I: Iterator<Item = &'f Found>>(all: I) -> Found {
        all.fold(Found::default(), |mut sum, one| {
            sum.caught += one.caught;
            sum.timeouts += one.timeouts;
            sum.broken += one.broken;
            sum.excused += one.excused;
            sum.survivors.extend(one.survivors.iter().cloned());
            sum.tests.extend(one.tests.iter().cloned());
            sum
        })
    }
}

/// What became of the mutants, by their file.
fn found(outcomes: &Value, killers: &BTreeMap<String, String>, argued: &str) -> Result<BTreeMap<String, Found>> {
    let odd = || Failure("cargo-mutants' outcomes have an unexpected shape".to_owned());
    let argued = self::argued(argued);
    let (mut files, mut is_sound): (BTreeMap<String, Found>, bool) = Default::default();
    for outcome in outcomes["outcomes"].as_array().ok_or_else(odd)? {
        let summary = outcome["summary"].as_str().ok_or_else(odd)?;
        let Some(mutant) = outcome["scenario"]["Mutant"]["name"].as_str() else {
            is_sound = summary == "Success";
            continue;
        };
        let found = files.entry(file_of(mutant).to_owned()).or_default();
        match summary {
            "CaughtMutant" => found.caught += 1,
            "Timeout" => found.timeouts += 1,
            "Unviable" => found.broken += 1,
            "MissedMutant" if is_argued(&argued, mutant) => found.excused += 1,
            "MissedMutant" => found.survivors.push(mutant.to_owned()),
            _ => return Err(odd()),
        }
        found.tests.extend(killers.get(mutant).cloned());
    }
    if is_sound { Ok(files) } else { Err(fails_as_it_is()) }
}

/// Those that the text says no test can see, and one did. By the name with its place: others of that name may be the same.
fn argued_and_killed(outcomes: &Value, argued: &str) -> Vec<String> {
    let argued = self::argued(argued);
    let all = outcomes["outcomes"].as_array().into_iter().flatten();
    let killed = all.filter(|outcome| outcome["summary"] == "CaughtMutant");
    let names = killed.filter_map(|outcome| outcome["scenario"]["Mutant"]["name"].as_str());
    names.filter(|name| is_argued(&argued, name)).map(str::to_owned).collect()
}

fn argued_text(root: &Path) -> Result<String> {
    fs::read_to_string(root.join(ARGUED)).context(|| format!("{ARGUED} cannot be read"))
}

/// The mutants that the text argues.
fn argued(text: &str) -> BTreeSet<&str> {
    text.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next()).collect()
}

/// By its name without a place, which moves; or with it, where others of that name are not the same.
fn is_argued(argued: &BTreeSet<&str>, name: &str) -> bool {
    argued.contains(name) || argued.contains(&placeless(name)[..])
}

/// The test that failed on each mutant, by the log of its trial under this folder. A test that was stopped for the time it took, on a machine that may be busy, kills none at a second trial.
fn killers(outcomes: &Value, folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut killers = BTreeMap::new();
    for outcome in outcomes["outcomes"].as_array().into_iter().flatten() {
        let Some(name) = outcome["scenario"]["Mutant"]["name"].as_str() else { continue };
        if outcome["summary"] != "CaughtMutant" {
            continue;
        }
        if let Some(test) = outcome["killer"].as_str() {
            killers.insert(name.to_owned(), test.to_owned());
        }
        let Some(log) = outcome["log_path"].as_str() else { continue };
        let log = folder.join(log);
        let text = fs::read(&log).context(|| format!("{} cannot be read", log.display()))?;
        if let Some(test) = String::from_utf8_lossy(&text).lines().find_map(failed) {
            killers.insert(name.to_owned(), test.to_owned());
        }
    }
    Ok(killers)
}

/// The test that did not end on each mutant, where that is told.
fn killers_by_the_clock(outcomes: &Value) -> BTreeMap<String, String> {
    let all = outcomes["outcomes"].as_array().into_iter().flatten();
    let late = all.filter(|outcome| outcome["summary"] == "Timeout");
    let pair = |outcome: &Value| {
        let name = outcome["scenario"]["Mutant"]["name"].as_str()?;
        Some((name.to_owned(), outcome["killer"].as_str()?.to_owned()))
    };
    late.filter_map(pair).collect()
}

/// The test that a line of a runner's output says has failed: `FAIL [   0.1s] (1/9) package test`, or cargo's `test name ... FAILED`.
fn failed(line: &str) -> Option<&str> {
    let line = line.trim();
    match line.strip_prefix("FAIL [") {
        Some(rest) => rest.split_once(") ").map(|(_, test)| test),
        None => line.strip_prefix("test ")?.strip_suffix(" ... FAILED"),
    }
}

fn fails_as_it_is() -> Failure {
    Failure("the tests fail on the code as it is: that shows nothing of any mutant".to_owned())
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

    fn mutant(name: &str, summary: &str) -> Value {
        json!({"scenario": {"Mutant": {"name": name}}, "summary": summary})
    }

    #[test]
    fn survivors_are_told_unless_they_are_argued_and_are_no_violations() {
        let outcomes = json!({"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            mutant("a.rs:1:2: replace x -> u8 with 0", "CaughtMutant"),
            mutant("a.rs:1:2: replace x -> u8 with 1", "Timeout"),
            mutant("a.rs:9:9: replace + with - in y", "MissedMutant"),
            mutant("a.rs:7:2: replace | with ^ in z", "MissedMutant"),
            mutant("a.rs:8:3: replace + with * in v", "MissedMutant"),
            mutant("a.rs:8:9: replace + with * in v", "MissedMutant"),
            mutant("a.rs:1:2: replace x -> u8 with Default::default()", "Unviable"),
            mutant("b.rs:1:2: c", "MissedMutant"),
        ]});
        let argued = "# Mutants\n\n- `a.rs: replace | with ^ in z`: the bits are disjoint.\n- `a.rs:8:9: replace + with * in v`: the same there.\n";
        let killers = BTreeMap::from([("a.rs:1:2: replace x -> u8 with 0".to_owned(), "a test".to_owned())]);
        let found = found(&outcomes, &killers, argued).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a.rs", "b.rs"]);
        let findings = found["a.rs"].findings();
        assert_eq!((&findings["violations"], &findings["tests"]), (&json!(0), &json!(["a test"])));
        let survivors = ["a.rs:9:9: replace + with - in y", "a.rs:8:3: replace + with * in v"];
        assert_eq!(findings["survivors"], json!(survivors));
        let count = |what: &str| findings["counts"][what].as_u64().unwrap();
        let whats = ["viable", "killed", "killed by the clock", "argued", "survive", "do not build"];
        assert_eq!(whats.map(count), [6, 2, 1, 2, 2, 1]);
        let all: Found = found.values().sum();
        assert_eq!((all.viable(), all.tried(), all.survivors.len()), (7, 8, 3));
    }

    #[test]
    fn a_part_of_files_has_about_as_many_lines_as_the_others() {
        let files: Files =
            [("a", 9), ("b", 1), ("c", 7), ("d", 3)].map(|(file, lines)| (file.to_owned(), lines)).into();
        let part = |at, of| part_of(files.clone(), (at, of)).into_iter().collect::<Vec<_>>();
        assert_eq!([part(0, 2), part(1, 2)], [["a", "d"], ["b", "c"]]);
        assert_eq!(part(0, 1).len(), 4);
        assert!(part(4, 5).is_empty());
    }

    #[test]
    fn one_that_moved_with_comments_before_it_is_tried_where_it_stands() {
        let list =
            ["a.rs:8:9: replace + with * in v", "a.rs:9:9: replace > with < in v", "a.rs:10:9: replace > with < in v"];
        let list = list.map(str::to_owned).into();
        for (name, now) in [
            ("a.rs:5:9: replace + with * in v", "a.rs:8:9: replace + with * in v"),
            ("a.rs:9:9: replace > with < in v", "a.rs:9:9: replace > with < in v"),
            // It may be either; none has its column; none is of its file.
            ("a.rs:7:9: replace > with < in v", "a.rs:7:9: replace > with < in v"),
            ("a.rs:8:7: replace + with * in v", "a.rs:8:7: replace + with * in v"),
            ("b.rs:8:9: replace + with * in v", "b.rs:8:9: replace + with * in v"),
        ] {
            assert_eq!(place_now(name, &list), now);
        }
    }

    #[test]
    fn one_that_is_argued_and_killed_is_told() {
        let outcomes = json!({"outcomes": [
            {"scenario": "Baseline", "summary": "Success"},
            mutant("a.rs:7:2: replace | with ^ in z", "CaughtMutant"),
            mutant("a.rs:8:3: replace + with * in v", "CaughtMutant"),
            mutant("a.rs:8:9: replace + with * in v", "MissedMutant"),
        ]});
        let argued = "- `a.rs: replace | with ^ in z`: so.\n- `a.rs:8:9: replace + with * in v`: so.\n";
        assert_eq!(argued_and_killed(&outcomes, argued), ["a.rs:7:2: replace | with ^ in z"]);
    }

    #[test]
    fn those_that_survive_and_are_not_argued_are_taken_out() {
        let mut outcomes = vec![
            mutant("a.rs:1:2: b", "MissedMutant"),
            mutant("a.rs:2:2: c", "CaughtMutant"),
            mutant("a.rs:3:2: d", "MissedMutant"),
        ];
        assert_eq!(take_survivors(&mut outcomes, &BTreeSet::from(["a.rs: d"])), ["a.rs:1:2: b"]);
        assert_eq!(outcomes, [mutant("a.rs:2:2: c", "CaughtMutant"), mutant("a.rs:3:2: d", "MissedMutant")]);
    }

    #[test]
    fn outcomes_that_show_nothing_are_refused() {
        let outcomes = |all: &[Value]| super::found(&json!({"outcomes": all}), &BTreeMap::new(), "");
        let sound = json!({"scenario": "Baseline", "summary": "Success"});
        let broken = json!({"scenario": "Baseline", "summary": "Failure"});
        assert!(outcomes(&[sound.clone(), mutant("a.rs:1:2: b", "CaughtMutant")]).is_ok());
        assert!(outcomes(&[sound, mutant("a.rs:1:2: b", "Novel")]).is_err());
        assert!(outcomes(&[broken, mutant("a.rs:1:2: b", "CaughtMutant")]).is_err());
        assert!(outcomes(&[mutant("a.rs:1:2: b", "CaughtMutant")]).is_err());
    }

    #[test]
    fn only_a_run_that_tried_the_mutants_counts_and_none_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outcomes.json");
        let run = |says: &str| outcomes(Command::new("sh").args(["-c", says]).current_dir(folder.path()), &file);
        for code in [0, 2, 3] {
            assert!(run(&format!("echo '{{}}' > outcomes.json; exit {code}")).is_ok(), "{code}");
        }
        for code in [1, 4, 70] {
            assert!(run(&format!("echo '{{}}' > outcomes.json; exit {code}")).is_err(), "{code}");
        }
        fs::write(&file, "{}").unwrap();
        assert!(run("true").err().unwrap().0.contains("no outcome"), "what a run before it left");
    }

    #[test]
    fn the_lines_of_mutants_are_a_diff() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.rs"), "one\ntwo\nthree\nfour\n").unwrap();
        let names = ["a.rs:4:1: x", "a.rs:2:9: y", "a.rs:2:3: replace a::b -> c with d"].map(str::to_owned);
        let diff = diff_of(folder.path(), &names).unwrap();
        assert_eq!(diff, "--- a/a.rs\n+++ b/a.rs\n@@ -1,0 +2 @@\n+two\n@@ -2,0 +4 @@\n+four\n");
        assert!(diff_of(folder.path(), &["a.rs: x".to_owned()]).is_err());
    }

    #[test]
    fn who_killed_a_mutant_is_told_by_the_log_of_its_trial() {
        let folder = tempfile::tempdir().unwrap();
        let outcomes = json!({"outcomes": [
            {"scenario": {"Mutant": {"name": "a"}}, "summary": "CaughtMutant", "log_path": "a.log"},
            {"scenario": {"Mutant": {"name": "b"}}, "summary": "CaughtMutant", "log_path": "b.log"},
            {"scenario": {"Mutant": {"name": "c"}}, "summary": "MissedMutant", "log_path": "a.log"},
            {"scenario": {"Mutant": {"name": "d"}}, "summary": "Timeout", "log_path": "a.log"},
        ]});
        fs::write(
            folder.path().join("a.log"),
            "  PASS [ 1s] (1/9) x y\n        FAIL [   0.1s] (2/9) larder-structures a::b\n",
        )
        .unwrap();
        fs::write(folder.path().join("b.log"), "     TIMEOUT [  60.0s] (2/9) larder-structures a::b\n").unwrap();
        let killers = killers(&outcomes, folder.path()).unwrap();
        assert_eq!(killers, BTreeMap::from([("a".to_owned(), "larder-structures a::b".to_owned())]));
        assert_eq!(failed("test a::b ... FAILED"), Some("a::b"));
        assert!(killers_by_the_clock(&outcomes).is_empty());
        let late =
            json!({"outcomes": [{"scenario": {"Mutant": {"name": "e"}}, "summary": "Timeout", "killer": "c::d"}]});
        assert_eq!(killers_by_the_clock(&late), BTreeMap::from([("e".to_owned(), "c::d".to_owned())]));
        assert!(super::killers(&outcomes, &folder.path().join("elsewhere")).is_err());
    }

    #[test]
    fn who_is_tried_again_is_killed_by_a_test_that_failed_and_must_still_be_a_mutant() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("mutants.out")).unwrap();
        fs::write(folder.path().join("mutants.out/a.log"), "test x::y ... FAILED\n").unwrap();
        let subject = subjects::named("core").unwrap();
        let known = BTreeSet::from(["f.rs: replace a with b"]);
        let again =
            || Again { root: folder.path(), folder: folder.path(), subject, known: &known, killed: BTreeMap::new() };
        let names = ["f.rs:1:1: c", "f.rs:2:1: d", "f.rs:3:1: replace a with b"].map(str::to_owned);
        let caught = |name: &str| json!({"scenario": {"Mutant": {"name": name}}, "summary": "CaughtMutant", "log_path": "a.log"});
        let sound = json!({"scenario": "Baseline", "summary": "Success"});
        let tried = json!({"outcomes": [sound, caught("f.rs:1:1: c"), mutant("f.rs:2:1: d", "MissedMutant"), caught("f.rs:9:1: field")]});
        let mut of = again();
        of.take(&names, &tried).unwrap();
        assert_eq!(of.killed, BTreeMap::from([(names[0].clone(), "x::y".to_owned())]));
        let without = json!({"outcomes": [sound, caught("f.rs:1:1: c")]});
        assert!(again().take(&names, &without).unwrap_err().0.contains("f.rs:2:1: d survived"));
        let broken = json!({"outcomes": [{"scenario": "Baseline", "summary": "Failure"}, caught("f.rs:1:1: c"), caught("f.rs:2:1: d")]});
        assert!(again().take(&names, &broken).unwrap_err().0.contains("as it is"));
    }

    #[test]
    fn a_name_is_found_as_it_is() {
        assert_eq!(
            literal("a/b.rs:1:2: replace | with ^ in <T>::x"),
            r"a\/b\.rs\:1\:2\: replace \| with \^ in [<]T[>]\:\:x"
        );
    }

    #[test]
    fn a_shard_is_one_of_its_number() {
        assert_eq!(shard_of("3/40").unwrap(), (3, 40));
        assert!(["3", "3/3", "4/3", "a/3", "/", "-1/3", "0/0"].iter().all(|words| shard_of(words).is_err()));
    }

    #[test]
    fn subjects_that_the_page_asks_for_can_be_chosen() {
        let known = subjects::named("nobody's").err().unwrap().0;
        for name in ["core", "layouts", "structures"] {
            assert_eq!(subjects::named(name).unwrap().name, name);
            assert!(known.contains(name), "{known}");
        }
    }
}
