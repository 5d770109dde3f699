//! The documents' links lead somewhere: to a file that is there, and to a heading that is in it. Pages of the cookbook link to pages of the
//! cookbook alone, since a rendered book holds nothing else, and its list of pages names all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::command::{Context, Result};

/// Where documents are, besides the root.
const DOCS: &str = "docs";
/// The pages of the book.
const BOOK: &str = "docs/cookbook/src";
const SUMMARY: &str = "SUMMARY.md";
/// Fewer links than this, and the reading of the documents has gone wrong, not the documents right.
const LINKS_MIN: usize = 20;

/// Returns a line for each link that leads nowhere, and for each page of the book that is not in its list.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(root, false, &mut files)?;
    collect(&root.join(DOCS), true, &mut files)?;
    files.sort();
    let (mut found, mut count) = (Vec::new(), 0);
    for file in &files {
        let text = read(file)?;
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        for (number, target) in links(&text) {
            count += 1;
            if let Some(why) = fault(root, file, &target)? {
                found.push(format!("{name}:{number}: the link to {target} {why}"));
            }
        }
    }
    if count < LINKS_MIN {
        found.push(format!("{count} links in the documents; there were at least {LINKS_MIN}"));
    }
    found.extend(unlisted(root)?);
    Ok(found)
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).context(|| format!("could not read {}", file.display()))
}

/// The documents in a folder, and below it if asked for.
fn collect(folder: &Path, below: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).context(|| format!("could not read {}", folder.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() && below {
            collect(&path, below, files)?;
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "md") {
            files.push(path);
        }
    }
    Ok(())
}

/// The targets of links and inclusions that are not on the web, each with its line; code is none.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        // What stands between an odd and an even backquote is code, too.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        let inclusions = prose.split("{{#include ").skip(1).filter_map(|rest| rest.split_once("}}"));
        let local = targets.chain(inclusions).map(|(target, _)| target.trim()).filter(|target| !target.contains("://"));
        found.extend(local.map(|target| (number + 1, target.to_owned())));
    }
    found
}

/// Why a link leads nowhere, if it does not.
fn fault(root: &Path, file: &Path, target: &str) -> Result<Option<String>> {
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let folder = file.parent().unwrap_or(root);
    let to = if path.is_empty() { file.to_path_buf() } else { plain(&folder.join(path)) };
    if !to.exists() {
        return Ok(Some("leads to nothing".to_owned()));
    }
    let book = root.join(BOOK);
    let is_inclusion = || read(file).is_ok_and(|text| text.contains(&format!("{{{{#include {target}}}}}")));
    if file.starts_with(&book) && !to.starts_with(&book) && !is_inclusion() {
        return Ok(Some("leads out of the book: a page that includes the document goes into it".to_owned()));
    }
    if !heading.is_empty() && !headings(&read(&to)?).contains(heading) {
        return Ok(Some("names a heading that is not there".to_owned()));
    }
    Ok(None)
}

/// The path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

/// What headings are linked to as.
fn headings(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('#'));
    let slug = |title: &str| {
        let letters = title.trim_start_matches('#').trim().to_lowercase();
        letters
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>()
            .replace(' ', "-")
    };
    lines.map(slug).collect()
}

/// The pages of the book that its list does not name: nobody would see them.
fn unlisted(root: &Path) -> Result<Vec<String>> {
    let book = root.join(BOOK);
    let list = read(&book.join(SUMMARY))?;
    let named: BTreeSet<String> = links(&list).into_iter().map(|(_, target)| target).collect();
    let mut pages = Vec::new();
    collect(&book, false, &mut pages)?;
    pages.sort();
    let names = pages.iter().filter_map(|page| page.file_name()?.to_str());
    let missing = names.filter(|name| *name != SUMMARY && !named.contains(*name));
    Ok(missing.map(|name| format!("{BOOK}/{name} is not in {SUMMARY}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_code_is_none() {
        let text = "a [b](c.md) and [d](e.md#f), `[no](code.md)`\n```\n[no](code.md)\n```\n[web](https://x.org/y)\n{{#include ../g.md}}";
        let found: Vec<(usize, String)> =
            [(1, "c.md"), (1, "e.md#f"), (6, "../g.md")].map(|(line, target)| (line, target.to_owned())).into();
        assert_eq!(links(text), found);
    }

    #[test]
    fn a_link_that_leads_nowhere_or_out_of_the_book_is_told() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let fault = |file: &str, target: &str| fault(root, &root.join(file), target).unwrap();
        assert_eq!(fault("docs/design.md", "guarantees.md"), None);
        assert_eq!(fault("docs/design.md", "#cache"), None);
        assert!(fault("docs/design.md", "#no-such-heading").unwrap().contains("heading"));
        assert!(fault("docs/design.md", "nowhere.md").unwrap().contains("nothing"));
        assert!(fault("docs/cookbook/src/lock.md", "../../design.md").unwrap().contains("out of the book"));
        assert_eq!(fault("docs/cookbook/src/guarantees.md", "../../guarantees.md"), None);
    }

    #[test]
    fn headings_are_linked_to_by_their_words() {
        let found = headings("# The durable store\n## Cache: an entry\n### `larder` and more");
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["cache-an-entry", "larder-and-more", "the-durable-store"]);
    }
}
