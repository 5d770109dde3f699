//! Runs as they are recorded, a line each, in `docs/proof/<commit>.jsonl`, which is kept with the code: another machine adds to it. Nothing counts twice: what a run did must be what no other did that counts. Runs of a commit count at a later one, too, as
//! long as what their part runs is the same: documents and tests have no say in what the proof finds, nor has the command line in where the durable store crashes. So do mutants as long as nothing has changed that they were made of and held against, but for tests that
//! have come: who was killed stays so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::changes::{self, Change};
use super::machine::machine;
use super::{MUTANTS, RESULTS, RUNS};
use crate::command::{Context, Failure, Result, output};
use crate::mutants;

/// What the proof is built of, and all that a part may run.
const PRODUCT: &[&str] = &["crates", "prove", "Cargo.toml", "Cargo.lock"];
/// What a part runs that needs no server: nothing else can change what it finds.
const CRASHES: &[&str] = &["crates/core", "crates/dump", "crates/store-durable", "prove", "Cargo.toml", "Cargo.lock"];
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
    /// Of the mutants of a subject every `of`th, from the one `at` on.
    Shard { subject: String, at: u64, of: u64 },
    /// Of the mutants of a subject those that other runs had left, once more.
    Left { subject: String },
}

impl Extent {
    /// Whose mutants.
    pub(crate) fn subject(&self) -> Option<&str> {
        match self {
            Extent::Shard { subject, .. } | Extent::Left { subject } => Some(subject),
            Extent::Seeds { .. } => None,
        }
    }

    /// Whether two runs of a part did some of the same.
    fn meets(&self, other: &Extent) -> bool {
        match (self, other) {
            (Extent::Seeds { first, count }, Extent::Seeds { first: other, count: others }) => {
                *first < other.saturating_add(*others) && *other < first.saturating_add(*count)
            }
            (Extent::Shard { subject, at, of }, Extent::Shard { subject: other, at: others, of: step }) => {
                // There is a number with both remainders.
                let common = divisor(*of, *step).max(1);
                subject == other && at % common == others % common
            }
            _ => false,
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Extent::Seeds { first, count: 0 | 1 } => write!(f, "{first}"),
            Extent::Seeds { first, count } => write!(f, "{first} to {}", first.saturating_add(count - 1)),
            Extent::Shard { subject, at, of } => write!(f, "{subject} {at}/{of}"),
            Extent::Left { subject } => write!(f, "{subject} left"),
        }
    }
}

/// The greatest number that divides both.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
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
        let extent = match value["subject"].as_str() {
            Some(subject) if value["left"] == true => Extent::Left { subject: subject.to_owned() },
            Some(subject) => {
                let (at, of) = (number(&value, "shard")?, number(&value, "shards")?);
                Extent::Shard { subject: subject.to_owned(), at, of }
            }
            None => Extent::Seeds { first: number(&value, "seed")?, count: number(&value, "seeds")? },
        };
        Ok(Run {
            part: value["part"].as_str().unwrap_or_default().to_owned(),
            extent,
            seconds: number(&value, "seconds")?,
            counts: counts.map(|(what, times)| (what.clone(), times.as_u64().unwrap_or(0))).collect(),
            violations: number(findings, "violations")?,
            told: texts(&findings["told"]),
            survivors: texts(&findings["survivors"]),
            killed: findings["killed"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect(),
            argued: texts(&findings["argued"]),
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

    /// All that are recorded.
    pub(crate) fn runs(&self) -> Result<Vec<Run>> {
        let mut runs = if self.file.exists() { parsed(&self.file)? } else { Vec::new() };
        runs.extend(self.earlier(&runs)?);
        Ok(runs)
    }

    /// Runs at other commits that count at this one, and did nothing that these did.
    fn earlier(&self, counted: &[Run]) -> Result<Vec<Run>> {
        let Some(Ok(files)) = self.file.parent().map(fs::read_dir) else { return Ok(Vec::new()) };
        let mut files: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        files.retain(|file| *file != self.file && file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        let mut earlier: Vec<Run> = Vec::new();
        for file in files {
            let Some(commit) = file.file_stem().and_then(|stem| stem.to_str()) else { continue };
            let mut is_same = BTreeMap::new();
            for run in parsed(&file)?.into_iter().filter(|run| run.moved.is_none()) {
                let of = (run.part.clone(), run.extent.subject().map(str::to_owned));
                let counts = *is_same
                    .entry(of)
                    .or_insert_with_key(|(part, subject)| self.counts_here(part, subject.as_deref(), commit));
                if counts && !counted.iter().chain(&earlier).any(|other| other.did_some_of(&run.part, &run.extent)) {
                    earlier.push(Run { earlier: Some(commit.to_owned()), ..run });
                }
            }
        }
        Ok(earlier)
    }

    /// Whether runs at another commit would be the same here: those of a subject's mutants, or of another part.
    fn counts_here(&self, part: &str, subject: Option<&str>, commit: &str) -> bool {
        match subject {
            Some(subject) => mutants::sources(subject)
                .is_some_and(|sources| changes::since(&self.root, commit, sources) <= Change::MoreTests),
            None => changes::since(&self.root, commit, sources(part)) <= Change::Tests,
        }
    }

    /// Mutants of a subject that no test saw, and nobody argued, in the runs that count here.
    pub(crate) fn left(&self, subject: &str) -> Result<Vec<String>> {
        let runs = self.runs()?;
        let its: Vec<&Run> =
            runs.iter().filter(|run| run.part == MUTANTS && run.extent.subject() == Some(subject)).collect();
        Ok(left(&its).map(str::to_owned).collect())
    }

    /// Fails where some of this is recorded.
    pub(crate) fn refuse(&self, part: &str, extent: &Extent) -> Result<()> {
        match self.runs()?.iter().find(|run| run.did_some_of(part, extent)) {
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
            Extent::Shard { .. } | Extent::Left { .. } => None,
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
    pub(crate) fn record(&self, root: &Path, mut run: Value) -> Result<Run> {
        let now = commit(root)?;
        if now != self.commit {
            run["moved"] = json!(now);
        }
        run["on"] = json!(machine(root));
        let line = run.to_string();
        let run = Run::parse(&line)?;
        self.refuse(&run.part, &run.extent)?;
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

    fn shard(subject: &str, at: u64, of: u64) -> Extent {
        Extent::Shard { subject: subject.to_owned(), at, of }
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
    fn runs_meet_in_their_seeds_and_in_the_mutants_of_their_shards() {
        assert!(seeds(7, 3).meets(&seeds(9, 1)) && seeds(9, 1).meets(&seeds(7, 3)) && seeds(7, 3).meets(&seeds(0, 99)));
        assert!(!seeds(7, 3).meets(&seeds(10, 5)) && !seeds(10, 5).meets(&seeds(7, 3)));
        // The third of ten has the third and the eighth of twenty, and not the second of four.
        assert!(shard("core", 3, 5).meets(&shard("core", 13, 20)) && shard("core", 0, 1).meets(&shard("core", 5, 7)));
        assert!(!shard("core", 3, 10).meets(&shard("core", 2, 4)) && !shard("core", 3, 5).meets(&shard("core", 4, 5)));
        assert!(!shard("core", 3, 5).meets(&shard("proto", 3, 5)));
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

    #[test]
    fn runs_of_an_earlier_commit_count_as_long_as_their_code_is_the_same() {
        let (folder, book) = opened();
        let root = folder.path();
        let findings = json!({"counts": {"viable": 3}, "violations": 0});
        for (subject, at) in [("core", 0), ("layouts", 1), ("nobody's", 2)] {
            let run = json!({"part": MUTANTS, "subject": subject, "shard": at, "shards": 3, "seconds": 1, "findings": findings});
            book.record(root, run).unwrap();
        }
        record(&book, root, 1, 1).unwrap();
        let runs = |name: &str| {
            let file = book.file.with_file_name(name);
            Book { commit: "another".to_owned(), root: root.to_owned(), file }.runs().unwrap()
        };
        let of = book.file.with_file_name(format!("{}.jsonl", book.commit));
        fs::rename(&book.file, of).unwrap();
        let told = || runs("later.jsonl").iter().map(|run| run.extent.to_string()).collect::<Vec<_>>();
        assert!(runs("later.jsonl").iter().all(|run| run.earlier.as_ref() == Some(&book.commit)));
        assert_eq!(told(), ["core 0/3", "layouts 1/3", "1"]);
        let add = |file: &str, text: &str| {
            let file = root.join("crates").join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
            output(Command::new("git").args(["add", "crates"]).current_dir(root)).unwrap();
        };
        add("core/tests/more.rs", "first");
        assert_eq!(told(), ["core 0/3", "layouts 1/3", "1"], "a test more");
        add("structures/src/code.rs", "first");
        assert_eq!(told(), ["core 0/3"], "the structures are others by now");
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
            ("prove/src/crashes.rs", &[]),
        ] {
            fs::create_dir_all(root.join(code).parent().unwrap()).unwrap();
            fs::write(root.join(code), "first").unwrap();
            output(Command::new("git").args(["add", code]).current_dir(root)).unwrap();
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
        let run = |what: Value, findings: Value| {
            let mut run = json!({"part": MUTANTS, "subject": "core", "seconds": 1, "findings": findings});
            run.as_object_mut().unwrap().extend(what.as_object().unwrap().clone());
            book.record(folder.path(), run).unwrap();
        };
        run(json!({"shard": 0, "shards": 2}), json!({"violations": 0, "survivors": ["a", "b"]}));
        run(json!({"shard": 1, "shards": 2}), json!({"violations": 0, "survivors": ["c"]}));
        run(json!({"left": true}), json!({"violations": 0, "killed": {"b": "a test"}}));
        run(json!({"left": true}), json!({"violations": 0, "argued": ["c"]}));
        assert_eq!(book.left("core").unwrap(), ["a"]);
        assert!(book.left("layouts").unwrap().is_empty());
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
