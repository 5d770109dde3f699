//! The subjects: which files mutants are made of, and which tests they are held against.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use super::alone::Alone;
use super::cargo;
use crate::command::{Context, Failure, Result, output};
use crate::prove::product_of;

/// What mutants are made of, and what they are held against.
pub(super) struct Subject {
    pub(super) name: &'static str,
    package: &'static str,
    /// The folder of its package.
    folder: &'static str,
    /// Which of its files, if not all.
    files: Option<&'static [&'static str]>,
    /// Beside the package: which tests.
    tests: &'static [&'static str],
    /// Where the tests beside the code are built without what is built on it.
    alone: Option<Alone>,
    /// Where all mutants are built at once.
    pub(super) at_once: Option<AtOnce>,
    /// The folders of the tests.
    tested_in: &'static [&'static str],
}

/// How all mutants are built at once, and the tests that they are held against.
pub(super) struct AtOnce {
    pub(super) crate_root: &'static str,
    /// As cargo is told.
    pub(super) tests: &'static [&'static str],
    /// As the runner that lists them is told.
    pub(super) filter: &'static [&'static str],
    /// Whether one that survives is tried by itself, too, against all tests of the package: examples in its documentation are none that are built with the others.
    pub(super) has_examples: bool,
}

const TESTKIT: &str = "crates/testkit";
/// What the suite puts before the names of budgets.
const BUDGET: &str = "budget_";

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
    has_examples: false,
};
/// Without the test that builds a file of it by itself, which is none with switches.
const IN_CORE: AtOnce = AtOnce {
    crate_root: "crates/core/src/lib.rs",
    tests: &["--package=larder-core", "--lib", "--test=vocabulary"],
    filter: &["--ignore-default-filter"],
    has_examples: true,
};

const STRUCTURES: Subject = Subject {
    name: "structures",
    package: "larder-structures",
    folder: "crates/structures",
    files: None,
    tests: BESIDE,
    alone: Some(WITHOUT_TESTKIT),
    at_once: Some(IN_STRUCTURES),
    tested_in: &["crates/structures", TESTKIT],
};

/// A file of two subjects is tried once for both: they are held against the same tests.
const SUBJECTS: &[Subject] = &[
    Subject {
        name: "core",
        package: "larder-core",
        folder: "crates/core",
        files: None,
        tests: WITH_EXAMPLES,
        alone: None,
        at_once: Some(IN_CORE),
        tested_in: &["crates/core"],
    },
    Subject {
        name: "proto",
        package: "larder-proto",
        folder: "crates/proto",
        files: None,
        tests: WITH_EXAMPLES,
        alone: None,
        at_once: None,
        tested_in: &["crates/proto"],
    },
    Subject {
        name: "layouts",
        files: Some(&[
            "*/layout.rs",
            "lookup/bits.rs",
            "lookup/block.rs",
            "lookup/huffman.rs",
            "lookup/model.rs",
            "lookup/text.rs",
            "unique/rice.rs",
            "unique/id.rs",
            "array/commits.rs",
            "log/cursor.rs",
            "sharded/ends.rs",
            "records/schema.rs",
            "manifest.rs",
            "name.rs",
        ]),
        ..STRUCTURES
    },
    STRUCTURES,
];

/// The subject that is called so.
pub(super) fn named(name: &str) -> Result<&'static Subject> {
    let all = || SUBJECTS.iter().map(|subject| subject.name).collect::<Vec<_>>().join(", ");
    let known = SUBJECTS.iter().find(|subject| subject.name == name);
    known.ok_or_else(|| Failure(format!("no subject is called {name:?}; they are: {}", all())))
}

/// The files of each subject, by its name.
pub(crate) fn files(root: &Path) -> Result<BTreeMap<&'static str, Files>> {
    SUBJECTS.iter().map(|subject| Ok((subject.name, subject.files(root)?))).collect()
}

/// Files, and of how many lines each is that can have mutants: all but those of tests.
pub(crate) type Files = BTreeMap<String, usize>;

impl Subject {
    fn has(&self, file: &str) -> bool {
        let Some(file) = file.strip_prefix(self.folder).and_then(|file| file.strip_prefix("/src/")) else {
            return false;
        };
        self.files.is_none_or(|files| {
            files.iter().any(|known| match known.strip_prefix('*') {
                Some(end) => file.ends_with(end),
                None => file == *known,
            })
        })
    }

    /// Its files that are no tests, as git knows them.
    pub(super) fn files(&self, root: &Path) -> Result<Files> {
        let mut files = Files::new();
        for file in known_in(root, &[self.folder])?.into_iter().filter(|file| self.has(file)) {
            let text = read(root, &file)?;
            let lines = product_of(&file, &text).lines().filter(|line| !line.trim().is_empty()).count();
            if lines > 0 {
                files.insert(file, lines);
            }
        }
        Ok(files)
    }

    /// cargo-mutants, of these files, with its outcomes in this folder.
    pub(super) fn mutants<'f>(&self, folder: &Path, files: impl IntoIterator<Item = &'f str>) -> Command {
        let mut command = Command::new(cargo());
        command.args(["mutants", "--package", self.package, "--no-shuffle", "--output"]).arg(folder);
        files.into_iter().for_each(|file| _ = command.args(["--file", file]));
        command
    }

    /// By the tests of its own, in the copy where they are built alone.
    pub(super) fn hold_against_its_own(&self, cargo: &mut Command, root: &Path, folder: &Path) -> Result<()> {
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

/// The words of tests, which have the names of all of them, by the folders that they stand in.
#[derive(Default)]
pub(crate) struct Tests(BTreeMap<&'static [&'static str], BTreeSet<String>>);

impl Tests {
    /// Whether tests are still there that failed on mutants of a file, if it is of one.
    pub(crate) fn are_all_there(&mut self, root: &Path, file: Option<&str>, tests: &BTreeSet<String>) -> Result<bool> {
        let Some(file) = file else { return Ok(true) };
        let Some(subject) = SUBJECTS.iter().find(|subject| subject.has(file)) else { return Ok(false) };
        let words = match self.0.entry(subject.tested_in) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(words_of_tests(root, subject.tested_in)?),
        };
        Ok(tests.iter().all(|test| match test.split_once(" - ") {
            // An example in a file.
            Some((file, _)) => root.join(file).exists(),
            None => test.rsplit([':', ' ']).next().is_some_and(|name| {
                // The suite names those that hold a call to its round trips after what stands there.
                words.contains(name) || name.strip_prefix(BUDGET).is_some_and(|call| words.contains(call))
            }),
        }))
    }
}

fn words_of_tests(root: &Path, folders: &[&str]) -> Result<BTreeSet<String>> {
    let mut words = BTreeSet::new();
    for file in known_in(root, folders)? {
        let text = read(root, &file)?;
        // The test kit is no product.
        let code = if file.starts_with(TESTKIT) { 0 } else { product_of(&file, &text).len() };
        words.extend(text[code..].split(|c: char| !(c.is_alphanumeric() || c == '_')).map(str::to_owned));
    }
    Ok(words)
}

/// The Rust files that git knows in these folders, and that are there.
fn known_in(root: &Path, folders: &[&str]) -> Result<Vec<String>> {
    let files = output(Command::new("git").args(["ls-files", "-z", "--"]).args(folders).current_dir(root))?;
    let is_there = |file: &&str| file.ends_with(".rs") && root.join(file).is_file();
    Ok(files.split_terminator('\0').filter(is_there).map(str::to_owned).collect())
}

fn read(root: &Path, file: &str) -> Result<String> {
    fs::read_to_string(root.join(file)).context(|| format!("{file} cannot be read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_subject_are_those_that_are_no_tests_and_layouts_are_structures_too() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let files = files(root).unwrap();
        let has = |subject: &str, file: &str| files[subject].contains_key(&format!("crates/{file}"));
        assert!(has("core", "core/src/key.rs") && !has("core", "structures/src/name.rs"));
        assert!(has("layouts", "structures/src/manifest.rs") && has("layouts", "structures/src/queue/layout.rs"));
        assert!(!has("layouts", "structures/src/queue/push.rs") && has("structures", "structures/src/queue/push.rs"));
        assert!(files["layouts"].keys().all(|file| files["structures"].contains_key(file)));
        assert!(!files["structures"].keys().any(|file| file.ends_with("_tests.rs") || file.contains("/tests/")));
        // Each that is named is there.
        for name in named("layouts").unwrap().files.unwrap() {
            let is_it = |file: &String| file.ends_with(name.trim_start_matches('*'));
            assert!(files["layouts"].keys().any(is_it), "{name}");
        }
    }
    /// A macro puts together the names of those that hold a call to its round trips.
    #[test]
    fn tests_of_the_suite_are_there_by_their_names_and_budgets_by_those_of_their_calls() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut known = Tests::default();
        let mut are_there = |test: &str| {
            let tests = BTreeSet::from([format!("memory::{test}")]);
            known.are_all_there(root, Some("crates/structures/src/lookup/read.rs"), &tests).unwrap()
        };
        assert!(are_there("records_agree_with_a_model") && are_there("budget_lookup_get_many"));
        assert!(!are_there("records_agree_with_no_model") && !are_there("budget_lookup_get_too_many"));
    }
}
