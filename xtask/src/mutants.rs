//! `cargo xtask mutants`: mutation testing by `cargo-mutants`, in shards. What it finds is recorded as a run of the proof, so that `cargo xtask prove --results` adds
//! it up by commit.
//!
//! Each package's mutants are held against its own tests, those that need no server. One that survives fails the command, unless `docs/mutants.md` argues it: it is what the
//! tests lack, not what the product does wrong, and the page of results lists it by itself.

mod alone;
mod at_once;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anstream::println;
use serde_json::{Value, json};

use crate::command::{Context, Failure, Result, output};
use crate::prove::{self, Book, Extent};
use alone::Alone;
use at_once::Ground;

const ARGUED: &str = "docs/mutants.md";
/// What cargo-mutants ends with where it tried the mutants: none was missed, some were, some never ended. Anything else is a wrong command line, a test that fails on the
/// code as it is, or a fault of its own, and says nothing of any mutant.
const TRIED: [i32; 3] = [0, 2, 3];

/// What mutants are made of, and what they are held against.
struct Subject {
    package: &'static str,
    /// Beside the package: which tests.
    tests: &'static [&'static str],
    /// Where the tests beside the code are built without what is built on it.
    alone: Option<Alone>,
    /// Where all mutants are built at once.
    at_once: Option<AtOnce>,
    /// Which files, if not all.
    files: &'static [&'static str],
    /// The folders of what they are made of and held against, as far as it is ours.
    sources: &'static [&'static str],
}

impl Subject {
    /// cargo-mutants, of its files, with its outcomes in this folder.
    fn mutants(&self, folder: &Path) -> Command {
        let mut cargo = Command::new(cargo());
        cargo.args(["mutants", "--package", self.package, "--no-shuffle", "--output"]).arg(folder);
        self.files.iter().for_each(|file| _ = cargo.args(["--file", file]));
        cargo
    }

    /// By the tests of its own, in the copy where they are built alone.
    fn hold_against_its_own(&self, cargo: &mut Command, root: &Path, folder: &Path) -> Result<()> {
        cargo.args(self.tests);
        if let Some(alone) = &self.alone {
            let tree = folder.join("tree");
            alone.tree(root, self.package, &tree)?;
            // The copy is nothing that git knows.
            cargo.arg("--gitignore=false").current_dir(tree);
        } else {
            cargo.current_dir(root);
        }
        Ok(())
    }
}

/// How all mutants are built at once, and the tests that they are held against.
struct AtOnce {
    crate_root: &'static str,
    /// As cargo is told.
    tests: &'static [&'static str],
    /// As the runner that lists them is told.
    filter: &'static [&'static str],
}

impl AtOnce {
    /// Tries mutants on a copy of the tree, and writes what came of it into this folder.
    fn trials(&self, root: &Path, list: &[Value], folder: &Path) -> Result<(Vec<Value>, Vec<String>)> {
        // Who tries another subject behind this one builds little anew.
        let place = prove::target(root).join("mutants").join("at-once");
        let (tree, target) = (place.join("tree"), place.join("target"));
        alone::copy_of(root, &tree)?;
        let ground = Ground {
            tree: &tree,
            target: &target,
            crate_root: self.crate_root,
            tests: self.tests,
            filter: self.filter,
        };
        let argued = argued_text(root)?;
        let argued = self::argued(&argued);
        let (outcomes, apart) = at_once::trials(&ground, list, |name| is_argued(&argued, name))?;
        let told = folder.join("at-once.json");
        let text = json!({"outcomes": outcomes, "apart": apart}).to_string();
        fs::write(&told, text).context(|| format!("could not write {}", told.display()))?;
        Ok((outcomes, apart))
    }
}

/// Documentation tests count, too, where they are what holds a small function: cargo's own runner has them.
const WITH_EXAMPLES: &[&str] = &["--test-tool", "cargo"];
/// Those of structures that can have no switch are held by the tests beside them, which are quick.
const BESIDE: &[&str] = &["--test-tool", "cargo", "--cargo-arg=--lib"];
/// The testkit is built on the structures, and has the faulty store of the layers.
const WITHOUT_TESTKIT: Alone = Alone { without: "larder-testkit", with: ("larder-layers", "testing") };

/// Held against all that is in memory: the tests beside the code, and the conformance suite over the memory store.
const IN_STRUCTURES: AtOnce = AtOnce {
    crate_root: "crates/structures/src/lib.rs",
    tests: &["--package=larder-structures", "--package=larder-testkit", "--lib", "--test=it", "--test=conformance"],
    filter: &[
        "--profile=mutants",
        "--ignore-default-filter",
        "-E=default() | (package(larder-structures) & kind(lib))",
    ],
};

/// What the tests in memory run: other stores are built beside it, and are not asked.
const IN_MEMORY: &[&str] =
    &["crates/core", "crates/layers", "crates/store-memory", "crates/structures", "crates/testkit"];

/// By the names of the command line.
const SUBJECTS: &[(&str, Subject)] = &[
    (
        "core",
        Subject {
            package: "larder-core",
            tests: WITH_EXAMPLES,
            alone: None,
            at_once: None,
            files: &[],
            sources: &["crates/core"],
        },
    ),
    (
        "proto",
        Subject {
            package: "larder-proto",
            tests: WITH_EXAMPLES,
            alone: None,
            at_once: None,
            files: &[],
            sources: &["crates/core", "crates/proto"],
        },
    ),
    (
        "layouts",
        Subject {
            package: "larder-structures",
            tests: BESIDE,
            alone: Some(WITHOUT_TESTKIT),
            at_once: Some(IN_STRUCTURES),
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
            sources: IN_MEMORY,
        },
    ),
    (
        "structures",
        Subject {
            package: "larder-structures",
            tests: BESIDE,
            alone: Some(WITHOUT_TESTKIT),
            at_once: Some(IN_STRUCTURES),
            files: &[],
            sources: IN_MEMORY,
        },
    ),
];

/// The folders of what a subject's mutants are made of and held against.
pub(crate) fn sources(subject: &str) -> Option<&'static [&'static str]> {
    SUBJECTS.iter().find(|(known, _)| *known == subject).map(|(_, subject)| subject.sources)
}

/// What to try.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mutants of these: core, proto, layouts, structures
    #[arg(value_name = "SUBJECT", default_values = ["core", "proto", "layouts"])]
    subjects: Vec<String>,
    /// One part of so many of each subject's mutants, K/N, K from 0 on
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
    let known = |name: &String| {
        let all = || SUBJECTS.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(", ");
        let known = SUBJECTS.iter().find(|(known, _)| known == name);
        known.ok_or_else(|| Failure(format!("no subject is called {name:?}; they are: {}", all())))
    };
    let mut survivors = 0;
    for (name, subject) in args.subjects.iter().map(known).collect::<Result<Vec<_>>>()? {
        survivors += match args.left {
            true => try_left(root, name, subject)?,
            false => try_subject(root, args, shard, name, subject)?,
        };
    }
    if survivors == 0 {
        Ok(())
    } else {
        Err(Failure(format!("{survivors} mutants survive, and {ARGUED} has none of them")))
    }
}

/// A part of the mutants by its number, and how many parts there are.
fn shard_of(words: &str) -> Result<(u64, u64)> {
    let numbers = words.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
    let odd = || Failure(format!("a shard is K/N, K from 0 on and less than N, not {words:?}"));
    numbers.filter(|(at, of)| at < of).ok_or_else(odd)
}

/// Tries the mutants of a subject, and records what became of them: how many survive that are not argued.
fn try_subject(root: &Path, args: &Args, (at, of): (u64, u64), name: &str, subject: &Subject) -> Result<usize> {
    let book = Book::open(root)?;
    book.refuse(prove::MUTANTS, &Extent::Shard { subject: name.to_owned(), at, of })?;
    let folder = prove::target(root).join("mutants").join(name);
    fs::create_dir_all(&folder).context(|| format!("could not make {}", folder.display()))?;
    let mut cargo = subject.mutants(&folder);
    args.names.iter().for_each(|name| _ = cargo.args(["--re", name]));
    args.shard.iter().for_each(|shard| _ = cargo.args(["--shard", shard, "--sharding", "round-robin"]));
    println!("\n\x1b[1m==> mutants of {name}\x1b[0m");
    let began = Instant::now();
    let outcomes = match &subject.at_once {
        Some(at_once) => outcomes_at_once(root, subject, at_once, &mut cargo, &folder)?,
        None => {
            subject.hold_against_its_own(&mut cargo, root, &folder)?;
            outcomes(&mut cargo, &folder.join("mutants.out/outcomes.json"))?
        }
    };
    let argued = argued_text(root)?;
    let found = found(&outcomes, &argued)?;
    println!("    {}", found["counts"]);
    let wrong = argued_and_killed(&outcomes, &argued);
    wrong.iter().for_each(|name| println!("    argued, and killed: {name}"));
    if args.names.is_empty() {
        let seconds = began.elapsed().as_secs();
        let (part, findings) = (prove::MUTANTS, &found);
        let run =
            json!({"part": part, "subject": name, "shard": at, "shards": of, "seconds": seconds, "findings": findings});
        book.record(root, run)?;
    }
    if wrong.is_empty() {
        Ok(found["survivors"].as_array().map_or(0, Vec::len))
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
    let (mut all, apart) = at_once.trials(root, &listed(cargo, root)?, folder)?;
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

/// The mutants that cargo-mutants would try.
fn listed(cargo: &mut Command, root: &Path) -> Result<Vec<Value>> {
    let list = output(cargo.args(["--list", "--json"]).current_dir(root))?;
    serde_json::from_str(&list).context(|| "cargo-mutants' list cannot be read".to_owned())
}

/// Tries once more what survives of a subject, and records what does no longer: how many do.
fn try_left(root: &Path, name: &str, subject: &Subject) -> Result<usize> {
    let book = Book::open(root)?;
    let left = book.left(name)?;
    println!("\n\x1b[1m==> mutants of {name} that survive: {}\x1b[0m", left.len());
    if left.is_empty() {
        return Ok(0);
    }
    let folder = prove::target(root).join("mutants").join(format!("{name}-left"));
    fs::create_dir_all(&folder).context(|| format!("could not make {}", folder.display()))?;
    let (began, text) = (Instant::now(), argued_text(root)?);
    let known = argued(&text);
    let mut again = Again { root, folder: &folder, subject, known: &known, killed: BTreeMap::new() };
    let rest = match &subject.at_once {
        Some(at_once) => again.run_at_once(&left, at_once)?,
        None => left.clone(),
    };
    book.expect_unmoved(root, "while its tests ran")?;
    if !rest.is_empty() {
        again.run(&rest, |cargo| subject.hold_against_its_own(cargo, root, &folder))?;
    }
    book.expect_unmoved(root, "while its tests ran")?;
    let killed = &again.killed;
    let argued: Vec<&String> =
        left.iter().filter(|name| is_argued(&known, name) && !killed.contains_key(*name)).collect();
    let survivors = left.len() - killed.len() - argued.len();
    println!("    killed {}, argued {}, survive {survivors}", killed.len(), argued.len());
    let findings = json!({"counts": {}, "violations": 0, "told": [], "killed": killed, "argued": argued});
    let seconds = began.elapsed().as_secs();
    let run = json!({"part": prove::MUTANTS, "subject": name, "left": true, "seconds": seconds, "findings": findings});
    book.record(root, run)?;
    Ok(survivors)
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
    /// Tries those at once that can have a switch: the others.
    fn run_at_once(&mut self, names: &[String], at_once: &AtOnce) -> Result<Vec<String>> {
        let mut cargo = self.subject.mutants(self.folder);
        let mut list = listed(&mut cargo, self.root)?;
        list.retain(|mutant| names.iter().any(|name| mutant["name"] == name[..]));
        let (mut outcomes, apart) = at_once.trials(self.root, &list, self.folder)?;
        outcomes.extend(apart.iter().map(|name| json!({"scenario": {"Mutant": {"name": name}}})));
        self.take(names, &json!({"outcomes": outcomes}))?;
        Ok(apart)
    }

    /// Tries these, in the way that is set up.
    fn run(&mut self, names: &[String], set_up: impl FnOnce(&mut Command) -> Result<()>) -> Result<()> {
        let outcomes = self.outcomes(names, set_up)?;
        self.take(names, &outcomes)
    }

    fn outcomes(&self, names: &[String], set_up: impl FnOnce(&mut Command) -> Result<()>) -> Result<Value> {
        let mut cargo = self.subject.mutants(self.folder);
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

/// What became of the mutants, as a part of the proof has it.
fn found(outcomes: &Value, argued: &str) -> Result<Value> {
    let odd = || Failure("cargo-mutants' outcomes have an unexpected shape".to_owned());
    let argued = self::argued(argued);
    let (mut caught, mut timeouts, mut broken, mut excused, mut survivors) = (0u64, 0u64, 0u64, 0u64, Vec::new());
    let mut is_sound = false;
    for outcome in outcomes["outcomes"].as_array().ok_or_else(odd)? {
        let summary = outcome["summary"].as_str().ok_or_else(odd)?;
        let Some(mutant) = outcome["scenario"]["Mutant"]["name"].as_str() else {
            is_sound = summary == "Success";
            continue;
        };
        match summary {
            "CaughtMutant" => caught += 1,
            "Timeout" => timeouts += 1,
            "Unviable" => broken += 1,
            "MissedMutant" if is_argued(&argued, mutant) => excused += 1,
            "MissedMutant" => survivors.push(mutant),
            _ => return Err(odd()),
        }
    }
    if !is_sound {
        return Err(fails_as_it_is());
    }
    let killed = caught + timeouts;
    Ok(json!({
        "counts": {
            "viable": killed + excused + survivors.len() as u64,
            "killed": killed,
            "killed by the clock": timeouts,
            "argued": excused,
            "survive": survivors.len(),
            "do not build": broken,
        },
        "violations": 0,
        "told": [],
        "survivors": survivors,
    }))
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
        ]});
        let argued = "# Mutants\n\n- `a.rs: replace | with ^ in z`: the bits are disjoint.\n- `a.rs:8:9: replace + with * in v`: the same there.\n";
        let found = found(&outcomes, argued).unwrap();
        assert_eq!(found["violations"], 0);
        assert_eq!(found["survivors"], json!(["a.rs:9:9: replace + with - in y", "a.rs:8:3: replace + with * in v"]));
        let count = |what: &str| found["counts"][what].as_u64().unwrap();
        let whats = ["viable", "killed", "killed by the clock", "argued", "survive", "do not build"];
        assert_eq!(whats.map(count), [6, 2, 1, 2, 2, 1]);
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
    fn outcomes_that_show_nothing_are_refused() {
        let outcomes = |all: &[Value]| super::found(&json!({"outcomes": all}), "");
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
        assert!(super::killers(&outcomes, &folder.path().join("elsewhere")).is_err());
    }

    #[test]
    fn who_is_tried_again_is_killed_by_a_test_that_failed_and_must_still_be_a_mutant() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("mutants.out")).unwrap();
        fs::write(folder.path().join("mutants.out/a.log"), "test x::y ... FAILED\n").unwrap();
        let subject = &SUBJECTS[0].1;
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
        for name in ["core", "layouts", "structures"] {
            assert!(SUBJECTS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }
}
