//! What is promised names its evidence, and it exists: each test that `docs/guarantees.md` and the like name is a function of that name, in the file that they name; and each promise of the guarantees,
//! a row of a table, names one, itself or in the row *shown by* that follows it, or says *not tested* and why.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, iter};

use crate::command::{Context, Result};
use crate::style;

/// The documents, and how many names each has at the least: with fewer the reading has gone wrong, not the document right.
const DOCUMENTS: [(&str, usize); 2] = [("docs/guarantees.md", 20), ("SECURITY.md", 5)];

/// The document whose every row is a promise, but for the tables under these headings: they sum up what is promised below, or say what stores are.
const PROMISES: &str = "docs/guarantees.md";
const NO_PROMISES: [&str; 2] = ["## At a glance", "## The stores"];
/// What begins the row that names the tests of the rows before it: of the one before it, or of all in a table of nothing else.
const SHOWN_BY: &str = "shown by";
/// Fewer promises than this, and the reading has gone wrong.
const PROMISES_MIN: usize = 120;

/// The files that define a function of each name.
type Functions = BTreeMap<String, BTreeSet<String>>;

/// Returns a line for each test that is named and does not exist, or not where it is said to be.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut functions = Functions::new();
    for file in style::files(root)? {
        let source = fs::read_to_string(&file).context(|| format!("could not read {}", file.display()))?;
        for function in functions_of(&source) {
            functions.entry(function.to_owned()).or_default().insert(file.display().to_string());
        }
    }
    let mut found = Vec::new();
    for (document, least) in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).context(|| format!("could not read {document}"))?;
        let named = named(&text);
        found.extend(missing(document, &named, &functions));
        found.extend(misplaced(document, &text, &functions));
        if named.len() < least {
            found.push(format!("{document} names {} tests; there were at least {least}", named.len()));
        }
        if document == PROMISES {
            let (bare, count) = unshown(&text);
            found.extend(bare.into_iter().map(|row| format!("{document}:{row}")));
            if count < PROMISES_MIN {
                found.push(format!("{document} has {count} promises; there were at least {PROMISES_MIN}"));
            }
        }
    }
    Ok(found)
}

/// The rows that promise something and name no test, each with its line; and how many rows promise something.
fn unshown(text: &str) -> (Vec<String>, usize) {
    let (mut found, mut count) = (Vec::new(), 0);
    let lines: Vec<&str> = text.lines().collect();
    let is_row = |line: &str| line.starts_with('|');
    let is_rule = |line: &str| is_row(line) && line.bytes().all(|byte| b"|-: ".contains(&byte));
    let first = |line: &str| line.split('|').nth(1).unwrap_or_default().trim().to_owned();
    let names = |line: &str| !named(line).is_empty() || line.contains("not tested: ");
    let mut heading = "";
    for (at, line) in lines.iter().enumerate() {
        if line.starts_with('#') {
            heading = line;
        }
        let next = lines.get(at + 1).copied().unwrap_or_default();
        let is_promise = is_row(line) && !is_rule(line) && !is_rule(next) && !first(line).starts_with(SHOWN_BY);
        if !is_promise || NO_PROMISES.contains(&heading) {
            continue;
        }
        count += 1;
        // A table that one row of tests closes.
        let closes = lines[at..].iter().take_while(|line| is_row(line)).find(|line| first(line).starts_with(SHOWN_BY));
        let of_all = closes.filter(|row| first(row) != SHOWN_BY);
        let shown = [Some(&next).filter(|next| first(next).starts_with(SHOWN_BY)), of_all];
        if !names(line) && !shown.into_iter().flatten().any(|row| names(row)) {
            found.push(format!("{}: {:?} is shown by no test", at + 1, first(line)));
        }
    }
    (found, count)
}

fn missing(document: &str, named: &BTreeSet<&str>, functions: &Functions) -> Vec<String> {
    let missing = named.iter().filter(|name| !functions.contains_key(**name));
    missing.map(|name| format!("{document} names the test {name}; there is none")).collect()
}

/// The tests that a document says are in a file, `file.rs`: `a_test`, `another`, and are not. A file is named by the end of its path, up to a semicolon or the
/// end of a cell.
fn misplaced(document: &str, text: &str, functions: &Functions) -> Vec<String> {
    let mut found = Vec::new();
    for part in text.split([';', '|', '\n']) {
        let mut file = None;
        for span in part.split('`').skip(1).step_by(2) {
            if span.ends_with(".rs") {
                file = Some(span);
            } else if let (Some(file), Some(places)) = (file, functions.get(span)) {
                let is_there = |place: &String| place.ends_with(&format!("/{file}"));
                if !places.iter().any(is_there) {
                    found.push(format!("{document} says that {file} has the test {span}; it has not"));
                }
            }
        }
    }
    found
}

/// The words in code spans that can only be names of tests: sentences of small letters, joined by underscores.
fn named(text: &str) -> BTreeSet<&str> {
    let is_test = |word: &&str| {
        word.matches('_').count() >= 3
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(is_test).collect()
}

/// The names of the functions that a source defines. Conformance cases are functions too.
fn functions_of(source: &str) -> impl Iterator<Item = &str> {
    let mut rest = source;
    iter::from_fn(move || {
        let (_, after) = rest.split_once("fn ")?;
        rest = after;
        Some(after.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let text = "shown by `a.rs`: `it_does_what_it_says`, `it_was_renamed_since`; an `Absent`, a `may_evict`";
        let functions = of_file("/t/a.rs", "async fn it_does_what_it_says() {}\n    fn other(");
        assert_eq!(
            missing("a.md", &named(text), &functions),
            ["a.md names the test it_was_renamed_since; there is none"]
        );
    }
    #[test]
    fn a_test_that_is_elsewhere_is_found() {
        let functions = of_file("/t/it/lock/handle.rs", "fn it_is_held() {}");
        let text = |file| format!("| x | `{file}`: `it_is_held`; `other.rs` |\n| `lock.rs` | `it_is_held` |");
        assert_eq!(misplaced("a.md", &text("it/lock/handle.rs"), &functions), [""; 0]);
        assert_eq!(misplaced("a.md", &text("k/handle.rs"), &functions).len(), 1);
        assert_eq!(
            misplaced("a.md", &text("lock.rs"), &functions),
            ["a.md says that lock.rs has the test it_is_held; it has not"]
        );
    }

    #[test]
    fn a_promise_without_a_test_is_found() {
        let text = "## A\n| | memory |\n|---|---|\n| one | x |\n| shown by | `it_does_what_it_says` |\n| two | y |\n| three | `it_does_this_and_that` |\n| four | not tested: no server does it |\n## At a glance\n| | a |\n|---|---|\n| five | z |\n## B\n| | c |\n|--|--|\n| six | z |\n| seven | z |\n| shown by `all.rs` | `it_does_all_of_it_well` |\n| shown by | |";
        let (bare, count) = unshown(text);
        assert_eq!((bare, count), (vec!["6: \"two\" is shown by no test".to_owned()], 6));
        // A row that follows shows the one before it alone.
        assert_eq!(unshown("| one | x |\n| two | y |\n| shown by | `it_does_what_it_says` |").0.len(), 1);
    }

    fn of_file(file: &str, source: &str) -> Functions {
        functions_of(source).map(|function| (function.to_owned(), BTreeSet::from([file.to_owned()]))).collect()
    }
}
