//! What is promised names its evidence, and it exists: each test that `docs/guarantees.md` and the like name is a function of that name.

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, iter};

use crate::command::{Context, Result};
use crate::style;

/// The documents, and how many names each has at the least: with fewer the reading has gone wrong, not the document right.
const DOCUMENTS: [(&str, usize); 2] = [("docs/guarantees.md", 20), ("SECURITY.md", 5)];

/// Returns a line for each test that is named and does not exist.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut functions = BTreeSet::new();
    for file in style::files(root)? {
        let source = fs::read_to_string(&file).context(|| format!("could not read {}", file.display()))?;
        functions.extend(functions_of(&source).map(str::to_owned));
    }
    let mut found = Vec::new();
    for (document, least) in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).context(|| format!("could not read {document}"))?;
        let named = named(&text);
        found.extend(missing(document, &named, &functions));
        if named.len() < least {
            found.push(format!("{document} names {} tests; there were at least {least}", named.len()));
        }
    }
    Ok(found)
}

fn missing(document: &str, named: &BTreeSet<&str>, functions: &BTreeSet<String>) -> Vec<String> {
    let missing = named.iter().filter(|name| !functions.contains(**name));
    missing.map(|name| format!("{document} names the test {name}; there is none")).collect()
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
        let functions = functions_of("async fn it_does_what_it_says() {}\n    fn other(").map(str::to_owned).collect();
        assert_eq!(
            missing("a.md", &named(text), &functions),
            ["a.md names the test it_was_renamed_since; there is none"]
        );
    }
}
