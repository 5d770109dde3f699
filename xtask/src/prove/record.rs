//! Runs as they are recorded, a line each, in `docs/proof/<commit>.jsonl`, which is kept with the code: another machine adds to it. Nothing counts twice: what a run did must be what no other did that counts. Runs of a commit count at a later one, too, as
//! long as what their part runs is the same: documents and tests have no say in what the proof finds, nor has the command line in where the durable store crashes. Mutants are tried and recorded by the file, and count as long as their file is the same but for its tests, and as
//! each test is still there that failed on one of them: it is taken that it would fail again, whatever else has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::changes::is_same_product;
use super::machine::machine;
use super::{MUTANTS, RESULTS, RUNS};
use crate::command::{Context, Failure, Result, output};
use crate::mutants::{Files, Tests};

/// What the proof is built of, and all that a part may run.
const PRODUCT: &[&str] = &["crates", "prove", "Cargo.toml", "Cargo.lock"];
/// What a part runs that needs no server: nothing else can change what it finds.
/// Of the proof itself its own room, and what all rooms stand in: it has nothing of theirs.
const CRASHES: &[&str] = &[
    "crates/core",
    "crates/dump",
    "crates/store-durable",
    "prove/Cargo.toml",
    "prove/src/crashes",
    "prove/src/findings.rs",
    "prove/src/lib.rs",
    "prove/src/main.rs",
    "Cargo.toml",
    "Cargo.lock",
];
const IN_PROCESS: &[&str] = &[
    "crates/core",
    "crates/dump",
    "crates/layers",
    "crates/store-durable",
    "crates/store-memory",
    "crates/structures",
    "crates/testkit",
    "prove",
    "Cargo.toml",
    "Cargo.lock",
];

/// What a part is made of.
fn sources(part: &str) -> &'static [&'static str] {
    match part {
        "crashes" => CRASHES,
        "histories" | "planted" | "simulation" | "stalls" => IN_PROCESS,
        _ => PRODUCT,
    }
}
/// What is counted of losses that nobody was told of.
const SILENT: &str = "silent losses";

/// What of its part a run did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// So many seeds, from the first on.
    Seeds { first: u64, count: u64 },
    /// The mutants of a file.
    Mutants { file: String },
    /// Of the mutants of a file those that other runs had left, once more.
    Left { file: String },
}

impl Extent {
    /// Whose mutants.
    pub(crate) fn file(&self) -> Option<&str> {
        match self {
            Extent::Mutants { file } | Extent::Left { file } => Some(file),
            Extent::Seeds { .. } => None,
        }
    }

    /// Whether two runs of a part did some of the same.
    fn meets(&self, other: &Extent) -> bool {
        match (self, other) {
            (Extent::Seeds { first, count }, Extent::Seeds { first: other, count: others }) => {
                *first < other.saturating_add(*others) && *other < first.saturating_add(*count)
            }
            (Extent::Mutants { file }, Extent::Mutants { file: other }) => file == other,
            _ => false,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Seeds { first, count: 0 | 1 } => write!(f, "{first}"),
            Extent::Seeds { first, count } => write!(f, "{first} to {}", first.saturating_add(count - 1)),
            Extent::Mutants { file } => write!(f, "{file}"),
            Extent::Left { file } => write!(f, "{file} left"),
        }
    }
}

/// One run of a part.
pub(crate) struct Run {
    pub(crate) part: String,
    pub(crate) extent: Extent,
    pub(crate) seconds: u64,
    pub(crate) counts: BTreeMap<String, u64>,
    pub(crate) violations: u64,
    pub(crate) told: Vec<String>,
    /// Mutants that no test saw and nobody argued: what tests lack, no fault of the product.
    pub(crate) survivors: Vec<String>,
    /// Mutants that another run had left: those that are killed by now, and those that are argued.
    pub(crate) killed: Vec<String>,
    pub(crate) argued: Vec<String>,
    /// Of a second trial the commit of the first.
    pub(crate) of: Option<String>,
    /// The tests that failed on mutants.
    pub(crate) tests: BTreeSet<String>,
    /// What the tree was by the end, where that was no longer what it was at the beginning.
    pub(crate) moved: Option<String>,
    /// The machine, the compiler and the servers, where that was recorded.
    pub(crate) on: Option<String>,
    /// The commit that it was recorded at, where that is an earlier one.
    pub(crate) earlier: Option<String>,
}

impl Run {
    pub(crate) fn parse(line: &str) -> Result<Run> {
        let value: Value = serde_json::from_str(line).context(|| format!("not a record of a run: {line}"))?;
        let number = |value: &Value, name: &str| {
            value[name].as_u64().ok_or_else(|| Failure(format!("a record of a run without {name}: {line}")))
        };
        let texts = |value: &Value| -> Vec<String> {
            value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let findings = &value["findings"];
        let counts = findings["counts"].as_object().into_iter().flatten();
        let extent = match value["file"].as_str() {
            Some(file) if value["left"] == true => Extent::Left { file: file.to_owned() },
            Some(file) => Extent::Mutants { file: file.to_owned() },
            None => Extent::Seeds { first: number(&value, "seed")?, count: number(&value, "seeds")? },
        };
        let killed = findings["killed"].as_object().into_iter().flatten();
        let killed: Vec<(&String, &str)> = killed.filter_map(|(name, test)| Some((name, test.as_str()?))).collect();
        Ok(Run {
            part: value["part"].as_str().unwrap_or_default().to_owned(),
            extent,
            seconds: number(&value, "seconds")?,
            counts: counts.map(|(what, times)| (what.clone(), times.as_u64().unwrap_or(0))).collect(),
            violations: number(findings, "violations")?,
            told: texts(&findings["told"]),
            survivors: texts(&findings["survivors"]),
            killed: killed.iter().map(|(name, _)| (*name).clone()).collect(),
            argued: texts(&findings["argued"]),
            of: value["of"].as_str().map(str::to_owned),
            tests: texts(&findings["tests"])
                .into_iter()
                .chain(killed.iter().map(|(_, test)| (*test).to_owned()))
                .collect(),
            moved: value["moved"].as_str().map(str::to_owned),
            on: value["on"].as_str().map(str::to_owned),
            earlier: None,
        })
    }

    fn did_some_of(&self, part: &str, extent: &Extent) -> bool {
        self.part == part && self.extent.meets(extent)
    }

    pub(crate) fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn silent_losses(&self) -> u64 {
        self.count(SILENT)
    }

    /// Whether it showed what it should.
    pub(crate) fn is_good(&self) -> bool {
        self.violations == 0 && self.silent_losses() == 0
    }
}

/// The runs at one commit: that of the tree as the book is opened, before anything runs.
pub(crate) struct Book {
    pub(crate) commit: String,
    root: PathBuf,
    file: PathBuf,
}

impl Book {
    pub(crate) fn open(root: &Path) -> Result<Book> {
        let commit = commit(root)?;
        let file = root.join(RUNS).join(format!("{commit}.jsonl"));
        Ok(Book { commit, root: root.to_owned(), file })
    }

    /// All that count: each once, and of second trials of mutants those of the first that counts.
    pub(crate) fn runs(&self) -> Result<Vec<Run>> {
        let mut runs: Vec<Run> = Vec::new();
        for run in if self.file.exists() { parsed(&self.file)? } else { Vec::new() } {
            if !runs.iter().any(|other| other.did_some_of(&run.part, &run.extent)) {
                runs.push(run);
            }
        }
        runs.extend(self.earlier(&runs)?);
        let trials: BTreeSet<(String, String)> = runs.iter().filter_map(|run| self.trial(run)).collect();
        let is_of_a_trial = |run: &Run| match (&run.extent, &run.of) {
            (Extent::Left { file }, Some(of)) => trials.contains(&(file.clone(), of.clone())),
            (Extent::Left { .. }, None) => false,
            _ => true,
        };
        runs.retain(is_of_a_trial);
        Ok(runs)
    }

    /// The file whose mutants a run tried first, and the commit of that.
    fn trial(&self, run: &Run) -> Option<(String, String)> {
        let Extent::Mutants { file } = &run.extent else { return None };
        Some((file.clone(), run.earlier.as_ref().unwrap_or(&self.commit).clone()))
    }

    /// The commits at which the mutants of files were tried, in the runs that count here.
    pub(crate) fn trials(&self) -> Result<BTreeMap<String, String>> {
        Ok(self.runs()?.iter().filter_map(|run| self.trial(run)).collect())
    }

    /// Runs at other commits that count at this one, and did nothing that these did.
    fn earlier(&self, counted: &[Run]) -> Result<Vec<Run>> {
        let Some(Ok(files)) = self.file.parent().map(fs::read_dir) else { return Ok(Vec::new()) };
        let mut files: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        files.retain(|file| *file != self.file && file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        let (mut earlier, mut tests): (Vec<Run>, Tests) = Default::default();
        for file in files {
            let Some(commit) = file.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let mut is_same = BTreeMap::new();
            for run in parsed(&file)?.into_iter().filter(|run| run.moved.is_none()) {
                let of = (run.part.clone(), run.extent.file().map(str::to_owned));
                let is_same =
                    is_same.entry(of).or_insert_with_key(|(part, file)| self.is_same(commit, part, file.as_deref()));
                let counts = *is_same && tests.are_all_there(&self.root, run.extent.file(), &run.tests)?;
                if counts && !counted.iter().chain(&earlier).any(|other| other.did_some_of(&run.part, &run.extent)) {
                    earlier.push(Run { earlier: Some(commit.to_owned()), ..run });
                }
            }
        }
        Ok(earlier)
    }

    /// Whether what a part runs, or the file that mutants are of, is what it was at a commit.
    fn is_same(&self, commit: &str, part: &str, file: Option<&str>) -> bool {
        match file {
            Some(file) => is_same_product(&self.root, commit, &[file]),
            None => is_same_product(&self.root, commit, sources(part)),
        }
    }

    /// Mutants of these files that no test saw, and nobody argued, in the runs that count here.
    pub(crate) fn left(&self, files: &Files) -> Result<Vec<String>> {
        let runs = self.runs()?;
        let is_of = |run: &&Run| run.part == MUTANTS && run.extent.file().is_some_and(|file| files.contains_key(file));
        let its: Vec<&Run> = runs.iter().filter(is_of).collect();
        Ok(left(&its).map(str::to_owned).collect())
    }

    /// Those of these files of which no mutants are recorded.
    pub(crate) fn untried(&self, files: Files) -> Result<Files> {
        let runs = self.runs()?;
        let is_tried = |file: &str| {
            let extent = Extent::Mutants { file: file.to_owned() };
            runs.iter().any(|run| run.did_some_of(MUTANTS, &extent))
        };
        Ok(files.into_iter().filter(|(file, _)| !is_tried(file)).collect())
    }

    /// Fails where some of this is recorded.
    pub(crate) fn refuse(&self, part: &str, extent: &Extent) -> Result<()> {
        self.refuse_known(&self.runs()?, part, extent)
    }

    /// The same, where what is recorded was read.
    fn refuse_known(&self, known: &[Run], part: &str, extent: &Extent) -> Result<()> {
        match known.iter().find(|run| run.did_some_of(part, extent)) {
            Some(run) => {
                let (commit, known) = (run.earlier.as_ref().unwrap_or(&self.commit), &run.extent);
                Err(Failure(format!("{part} {extent} would count twice: {known} is recorded at {commit}")))
            }
            None => Ok(()),
        }
    }

    /// Where a part goes on: behind all that it did.
    pub(crate) fn next_seed(&self, part: &str) -> Result<Option<u64>> {
        let runs = self.runs()?;
        let ends = runs.iter().filter(|run| run.part == part).filter_map(|run| match run.extent {
            Extent::Seeds { first, count } => Some(first.saturating_add(count)),
            Extent::Mutants { .. } | Extent::Left { .. } => None,
        });
        Ok(ends.max())
    }

    /// How many seeds from this one on no run of the part did.
    pub(crate) fn room(&self, part: &str, seed: u64) -> Result<u64> {
        self.refuse(part, &Extent::Seeds { first: seed, count: 1 })?;
        let runs = self.runs()?;
        let later = runs.iter().filter(|run| run.part == part).filter_map(|run| match run.extent {
            Extent::Seeds { first, .. } if first > seed => Some(first - seed),
            _ => None,
        });
        Ok(later.min().unwrap_or(u64::MAX))
    }

    /// Records a run that was begun as the book was opened: a part, its extent, its seconds and its findings.
    pub(crate) fn record(&self, root: &Path, run: Value) -> Result<Run> {
        self.record_known(root, &self.runs()?, run)
    }

    /// Records several, of which none did what another does. What was recorded before is read once.
    pub(crate) fn record_all(&self, root: &Path, runs: Vec<Value>) -> Result<()> {
        let known = self.runs()?;
        runs.into_iter().try_for_each(|run| self.record_known(root, &known, run).map(drop))
    }

    fn record_known(&self, root: &Path, known: &[Run], mut run: Value) -> Result<Run> {
        let now = commit(root)?;
        if now != self.commit {
            run["moved"] = json!(now);
        }
        run["on"] = json!(machine(root));
        let line = run.to_string();
        let run = Run::parse(&line)?;
        self.refuse_known(known, &run.part, &run.extent)?;
        fs::create_dir_all(self.file.parent().unwrap_or(root))
            .context(|| "could not make the folder of the runs".to_owned())?;
        let file = OpenOptions::new().create(true).append(true).open(&self.file);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.context(|| format!("could not record in {}", self.file.display()))?;
        Ok(run)
    }

    /// Fails where the tree is another by now.
    pub(crate) fn expect_unmoved(&self, root: &Path, doing: &str) -> Result<()> {
        let (then, now) = (&self.commit, commit(root)?);
        if *then == now {
            return Ok(());
        }
        Err(Failure(format!("the tree went from {then} to {now} {doing}: nothing says what ran")))
    }
}

/// The mutants that survive all of these runs.
pub(crate) fn left<'a>(mutants: &[&'a Run]) -> impl Iterator<Item = &'a str> {
    let settled: BTreeSet<&str> =
        mutants.iter().flat_map(|run| run.killed.iter().chain(&run.argued)).map(String::as_str).collect();
    let survivors: Vec<&str> = mutants.iter().flat_map(|run| &run.survivors).map(String::as_str).collect();
    survivors.into_iter().filter(move |name| !settled.contains(name))
}

fn parsed(file: &Path) -> Result<Vec<Run>> {
    let lines = fs::read_to_string(file).context(|| format!("could not read {}", file.display()))?;
    lines.lines().map(Run::parse).collect()
}

/// The commit, and whether the tree differs from it.
fn commit(root: &Path) -> Result<String> {
    let git = |args: &[&str]| output(Command::new("git").args(args).current_dir(root));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    // What the proof itself writes, its runs and its page, is no difference.
    let changed = git(&["status", "--porcelain", "--", ".", &format!(":!{RESULTS}"), &format!(":!{RUNS}")])?;
    Ok(format!("{}{}", commit.trim(), if changed.trim().is_empty() { "" } else { "-changed" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds(first: u64, count: u64) -> Extent {
        Extent::Seeds { first, count }
    }

    fn mutants(file: &str) -> Extent {
        Extent::Mutants { file: file.to_owned() }
    }

    #[test]
    fn what_is_no_record_is_told() {
        let told = |line: &str| Run::parse(line).err().unwrap().0;
        assert!(told("Killed").contains("Killed"));
        assert!(told(r#"{"part":"x","seed":1,"seeds":1,"seconds":2,"findings":{}}"#).contains("violations"));
        assert!(told(r#"{"part":"x","seed":1,"seconds":2,"findings":{"violations":0}}"#).contains("seeds"));
    }

    #[test]
    fn a_loss_that_nobody_was_told_of_is_bad_whatever_else_is_said() {
        let run = |silent: u64| {
            let findings = json!({"counts": {SILENT: silent}, "violations": 0});
            Run::parse(&json!({"part": "x", "seed": 1, "seeds": 1, "seconds": 2, "findings": findings}).to_string())
        };
        assert!(run(0).unwrap().is_good() && !run(1).unwrap().is_good());
    }

    #[test]
    fn runs_meet_in_their_seeds_and_in_the_file_of_their_mutants() {
        assert!(seeds(7, 3).meets(&seeds(9, 1)) && seeds(9, 1).meets(&seeds(7, 3)) && seeds(7, 3).meets(&seeds(0, 99)));
        assert!(!seeds(7, 3).meets(&seeds(10, 5)) && !seeds(10, 5).meets(&seeds(7, 3)));
        let left = Extent::Left { file: "a.rs".to_owned() };
        assert!(mutants("a.rs").meets(&mutants("a.rs")) && !mutants("a.rs").meets(&mutants("b.rs")));
        assert!(!mutants("a.rs").meets(&left) && !left.meets(&left) && !mutants("a.rs").meets(&seeds(0, 1)));
    }

    /// A tree of its own with one commit, a book of it, and how to record a run of these seeds.
    fn opened() -> (tempfile::TempDir, Book) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("code"), "first").unwrap();
        let who = ["-c", "user.name=a", "-c", "user.email=a@b"];
        for words in [&["init", "-q"][..], &["add", "code"], &["commit", "-q", "-m", "first"]] {
            output(Command::new("git").args(who).args(words).current_dir(root)).unwrap();
        }
        let commit = commit(root).unwrap();
        let file = root.join(".git").join("runs").join("proof.jsonl");
        let root = root.to_owned();
        (folder, Book { commit, root, file })
    }

    fn record(book: &Book, root: &Path, seed: u64, count: u64) -> Result<Run> {
        let findings = json!({"counts": {}, "violations": 0});
        book.record(root, json!({"part": "x", "seed": seed, "seeds": count, "seconds": 1, "findings": findings}))
    }

    #[test]
    fn a_seed_is_recorded_once_and_a_part_goes_on_behind_its_runs() {
        let (folder, book) = opened();
        assert_eq!((book.next_seed("x").unwrap(), book.room("x", 5).unwrap()), (None, u64::MAX));
        record(&book, folder.path(), 20, 10).unwrap();
        let run = record(&book, folder.path(), 5, 2).unwrap();
        assert_eq!(run.on, Some(machine(folder.path())));
        assert!(record(&book, folder.path(), 29, 1).err().unwrap().0.contains("20 to 29 is recorded"));
        assert_eq!(book.runs().unwrap().len(), 2);
        assert_eq!((book.next_seed("x").unwrap(), book.next_seed("y").unwrap()), (Some(30), None));
        assert_eq!(book.room("x", 7).unwrap(), 13, "up to the run at 20");
        assert!(book.room("x", 6).is_err() && book.room("y", 6).is_ok());
    }

    /// Writes a file of the tree, and has git know it.
    fn put(root: &Path, file: &str, text: &str) {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), text).unwrap();
        output(Command::new("git").args(["add", file]).current_dir(root)).unwrap();
    }

    #[test]
    fn mutants_of_an_earlier_commit_count_as_long_as_their_file_is_the_same_and_the_tests_are_there() {
        let (folder, mut book) = opened();
        let root = folder.path();
        let code =
            |product: &str, test: &str| format!("{product}\n#[cfg(test)]\nmod tests {{\n    fn {test}() {{}}\n}}\n");
        let files = ["a", "b"].map(|name| format!("crates/core/src/{name}.rs"));
        put(root, &files[0], &code("fn a() {}", "one"));
        put(root, &files[1], &code("fn b() {}", "two"));
        let who = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "second"];
        output(Command::new("git").args(who).current_dir(root)).unwrap();
        book.commit = commit(root).unwrap();
        for (file, tests) in files.iter().zip([["larder-core tests::one", "tests::two"], ["code - x (line 1)", "two"]])
        {
            let findings = json!({"counts": {"viable": 3}, "violations": 0, "tests": tests});
            book.record(root, json!({"part": MUTANTS, "file": file, "seconds": 1, "findings": findings})).unwrap();
        }
        fs::rename(&book.file, book.file.with_file_name(format!("{}.jsonl", book.commit))).unwrap();
        let file = book.file.with_file_name("later.jsonl");
        let later = Book { commit: "another".to_owned(), root: root.to_owned(), file };
        let told = || later.runs().unwrap().iter().map(|run| run.extent.to_string()).collect::<Vec<_>>();
        let untried = || later.untried(files.iter().map(|file| (file.clone(), 1)).collect()).unwrap();
        assert_eq!(told(), files);
        assert!(later.runs().unwrap().iter().all(|run| run.earlier.as_ref() == Some(&book.commit)));
        put(root, &files[0], &code("fn another() {}", "one"));
        assert_eq!(told(), files[1..], "the file is another");
        assert_eq!(untried().into_keys().collect::<Vec<_>>(), files[..1]);
        put(root, &files[0], &code("fn a() {}", "renamed"));
        assert_eq!(told(), files[1..], "a test is gone that failed");
        put(root, "crates/core/tests/it.rs", "fn one() {}");
        assert_eq!(told(), files, "it has moved");
        fs::remove_file(root.join("code")).unwrap();
        assert_eq!(told(), files[..1], "the file of an example is gone");
        put(root, &files[1], &code("fn b() {}", "three"));
        assert!(told().is_empty(), "one that failed on mutants of both");
    }

    #[test]
    fn a_run_counts_as_long_as_what_its_part_runs_is_the_same() {
        let (folder, book) = opened();
        let root = folder.path();
        for part in ["crashes", "nemesis", "simulation"] {
            let findings = json!({"counts": {}, "violations": 0});
            book.record(root, json!({"part": part, "seed": 1, "seeds": 1, "seconds": 1, "findings": findings}))
                .unwrap();
        }
        fs::rename(&book.file, book.file.with_file_name(format!("{}.jsonl", book.commit))).unwrap();
        let file = book.file.with_file_name("later.jsonl");
        let later = Book { commit: "later".to_owned(), root: root.to_owned(), file };
        let told = || later.runs().unwrap().into_iter().map(|run| run.part).collect::<Vec<_>>();
        assert_eq!(told(), ["crashes", "nemesis", "simulation"]);
        for (code, left) in [
            ("crates/cli/src/main.rs", &["crashes", "simulation"][..]),
            ("crates/structures/src/set.rs", &["crashes"]),
            ("prove/src/nemesis/mod.rs", &["crashes"]),
            ("prove/src/crashes/mod.rs", &[]),
        ] {
            put(root, code, "first");
            assert_eq!(told(), left, "{code}");
        }
    }

    /// The crates that these of the proof's own modules name.
    fn named_in(modules: &[&str]) -> BTreeSet<String> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prove/src");
        let mut files: Vec<PathBuf> = modules.iter().map(|module| source.join(module)).collect();
        let mut named = BTreeSet::new();
        while let Some(file) = files.pop() {
            if file.is_dir() {
                files.extend(fs::read_dir(&file).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = fs::read_to_string(&file).unwrap();
            let words = text.split(|c: char| !(c.is_alphanumeric() || c == '_'));
            named.extend(words.filter_map(|word| word.strip_prefix("larder_")).map(|name| name.replace('_', "-")));
            assert!(!text.contains("larder::"), "{}: the facade has all stores", file.display());
        }
        named
    }

    #[test]
    fn the_room_of_the_crashes_has_nothing_of_the_other_rooms() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../prove/src");
        let name = |entry: fs::DirEntry| entry.path().file_stem().unwrap().to_str().unwrap().to_owned();
        let rooms: Vec<String> = fs::read_dir(&source).unwrap().map(|entry| name(entry.unwrap())).collect();
        let counted =
            |room: &str| CRASHES.iter().any(|place| place.trim_end_matches(".rs") == format!("prove/src/{room}"));
        let others: Vec<&String> = rooms.iter().filter(|room| !counted(room)).collect();
        assert!(others.len() > 5 && rooms.iter().any(|room| room == "crashes"), "{rooms:?}");
        for entry in fs::read_dir(source.join("crashes")).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let named: Vec<_> = others.iter().filter(|room| text.contains(&format!("{room}::"))).collect();
            assert!(named.is_empty(), "{named:?}");
        }
    }

    #[test]
    fn a_part_is_made_of_all_crates_that_its_modules_name_and_of_what_those_are_made_of() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        for (part, modules) in [
            ("crashes", &["crashes"][..]),
            ("histories", &["histories", "virtual_time.rs", "watched.rs", "findings.rs"]),
            ("planted", &["planted", "histories", "virtual_time.rs", "watched.rs", "findings.rs"]),
            ("simulation", &["simulation", "virtual_time.rs", "watched.rs", "findings.rs"]),
            ("stalls", &["stalls.rs", "virtual_time.rs", "findings.rs"]),
        ] {
            let mut named: Vec<String> = named_in(modules).into_iter().collect();
            assert!(!named.is_empty(), "{part}");
            let mut at = 0;
            while let Some(name) = named.get(at).cloned() {
                let folder = format!("crates/{name}");
                assert!(sources(part).contains(&folder.as_str()), "{part} is made of {name}, too");
                let manifest = fs::read_to_string(crates.join(&name).join("Cargo.toml")).unwrap();
                let needs = manifest.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap();
                let needs = needs.lines().filter_map(|line| line.strip_prefix("larder-"));
                for need in needs.filter_map(|line| line.split(['.', ' ', '=']).next()) {
                    if !named.iter().any(|known| known == need) {
                        named.push(need.to_owned());
                    }
                }
                at += 1;
            }
        }
    }

    #[test]
    fn a_seed_counts_once_at_whatever_commit_it_ran() {
        let (folder, book) = opened();
        let root = folder.path();
        record(&book, root, 5, 3).unwrap();
        fs::rename(&book.file, book.file.with_file_name(format!("{}.jsonl", book.commit))).unwrap();
        let later =
            Book { commit: "later".to_owned(), root: root.to_owned(), file: book.file.with_file_name("later.jsonl") };
        assert!(later.refuse("x", &seeds(7, 1)).is_err());
        assert_eq!(later.next_seed("x").unwrap(), Some(8));
        fs::write(
            &later.file,
            json!({"part": "x", "seed": 6, "seeds": 1, "seconds": 1, "findings": {"violations": 0}}).to_string(),
        )
        .unwrap();
        let counted = later.runs().unwrap();
        assert_eq!((counted.len(), counted[0].earlier.is_none()), (1, true), "its own before others'");
    }

    #[test]
    fn mutants_that_were_left_are_left_until_they_are_settled() {
        let (folder, book) = opened();
        let run = |file: &str, left: bool, findings: Value| {
            let of = left.then_some(&book.commit);
            json!({"part": MUTANTS, "file": file, "left": left, "of": of, "seconds": 1, "findings": findings})
        };
        let record = |runs| book.record_all(folder.path(), runs);
        let tried = || {
            let a = run("a.rs", false, json!({"violations": 0, "survivors": ["a.rs: a", "a.rs: b"]}));
            vec![a, run("c.rs", false, json!({"violations": 0, "survivors": ["c.rs: c", "c.rs: d"]}))]
        };
        record(tried()).unwrap();
        let error = record(tried()).unwrap_err();
        assert!(error.0.contains("a.rs would count twice"), "{}", error.0);
        let a = run("a.rs", true, json!({"violations": 0, "killed": {"a.rs: b": "a test"}}));
        record(vec![a, run("c.rs", true, json!({"violations": 0, "argued": ["c.rs: c"]}))]).unwrap();
        let left = |files: &[&str]| book.left(&files.iter().map(|file| ((*file).to_owned(), 1)).collect()).unwrap();
        assert_eq!(left(&["a.rs", "c.rs"]), ["a.rs: a", "c.rs: d"]);
        assert_eq!(left(&["c.rs", "d.rs"]), ["c.rs: d"]);
        let trials = book.trials().unwrap();
        assert_eq!((trials.get("c.rs"), trials.get("d.rs")), (Some(&book.commit), None));
        // Of another trial than the one that counts.
        let text = fs::read_to_string(&book.file).unwrap();
        let other = format!("\"of\":\"{}\"", book.commit);
        fs::write(&book.file, text.replace(&other, "\"of\":\"another\"")).unwrap();
        assert_eq!(left(&["a.rs", "c.rs"]), ["a.rs: a", "a.rs: b", "c.rs: c", "c.rs: d"]);
        // Lines of two machines that came together.
        fs::write(&book.file, text.repeat(2)).unwrap();
        assert_eq!(book.runs().unwrap().iter().filter(|run| matches!(run.extent, Extent::Mutants { .. })).count(), 2);
    }

    #[test]
    fn a_tree_that_moved_while_a_run_ran_is_marked() {
        let (folder, book) = opened();
        assert_eq!(record(&book, folder.path(), 1, 1).unwrap().moved, None);
        book.expect_unmoved(folder.path(), "while it was built").unwrap();
        fs::write(folder.path().join("code"), "second").unwrap();
        let changed = format!("{}-changed", book.commit);
        assert_eq!(record(&book, folder.path(), 2, 1).unwrap().moved, Some(changed));
        assert!(book.expect_unmoved(folder.path(), "while it was built").is_err());
        assert_eq!(book.runs().unwrap().len(), 2, "it is in the book that was opened first");
    }
}
