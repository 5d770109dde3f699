//! The pages of the cookbook keep what its introduction says of them: each has its parts, in their order; the naive recipe is there, and a diagram of the race that it loses; the algorithm
//! has a diagram of its own; and each structure that the README lists is used by the program of a page.

use std::fs;
use std::path::Path;

use crate::command::{Context, Result};

/// The pages.
const BOOK: &str = "docs/cookbook/src";
/// The parts of a page, each a heading.
const PARTS: [&str; 8] =
    ["The problem", "The naive recipe", "The algorithm", "Guarantee", "Round trips", "Memory", "In Rust", "In a shell"];
/// What is about no structure: the list, the introduction, servers, and tests of one's own.
const OTHERS: [&str; 4] = ["SUMMARY.md", "introduction.md", "memory.md", "testing.md"];
/// What begins a page that only includes a document of the repository.
const INCLUDED: &str = "{{#include ";
/// Fewer pages than this, and the reading has gone wrong.
const PAGES_MIN: usize = 14;
/// What a message is drawn as, in one direction or the other.
const ARROWS: [&str; 6] = ["-->", "->|", "<--", "|<-", "──►", "◄──"];
/// A diagram of fewer messages shows no race.
const MESSAGES_MIN: usize = 2;

/// Returns a line for each page that lacks a part or a diagram, and for each structure without a page.
pub(crate) fn violations(root: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| fs::read_to_string(path).context(|| format!("could not read {}", path.display()));
    let folder = root.join(BOOK);
    let entries = fs::read_dir(&folder).context(|| format!("could not read {BOOK}"))?;
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let (mut found, mut programs, mut pages) = (Vec::new(), String::new(), 0);
    for name in names.iter().filter(|name| name.ends_with(".md") && !OTHERS.contains(&name.as_str())) {
        let page = read(&folder.join(name))?;
        if page.starts_with(INCLUDED) {
            continue;
        }
        pages += 1;
        found.extend(faults(&page).into_iter().map(|fault| format!("{BOOK}/{name} {fault}")));
        programs.extend(blocks(&page, "rust"));
    }
    let readme = read(&root.join("README.md"))?;
    let structures = structures(&readme);
    let without = structures.iter().filter(|structure| !programs.contains(&format!("{structure}::")));
    found.extend(without.map(|structure| format!("no program on a page of {BOOK} opens a {structure}")));
    if pages < PAGES_MIN || structures.len() < PAGES_MIN {
        found.push(format!("{pages} pages, {} structures; there were at least {PAGES_MIN}", structures.len()));
    }
    Ok(found)
}

/// What a page lacks.
fn faults(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut last = 0;
    for part in PARTS {
        match page.find(&format!("\n## {part}\n")) {
            None => found.push(format!("has no part {part:?}")),
            // What a reader needs first stands first; the rest may follow in any order.
            Some(at) if part != "Round trips" && part != "Memory" => {
                if at < last {
                    found.push(format!("has its part {part:?} in another place than the other pages"));
                }
                last = at;
            }
            Some(_) => {}
        }
    }
    let recipe = section(page, "The naive recipe");
    if !blocks(recipe, "text").iter().any(|block| messages(block) >= MESSAGES_MIN) {
        found.push("has no diagram of the race that its naive recipe loses".to_owned());
    }
    if recipe.split("```").next().is_some_and(|words| words.trim().len() < 20) && blocks(recipe, "text").len() < 2 {
        found.push("has a naive recipe that does not say what it does".to_owned());
    }
    if !blocks(section(page, "The algorithm"), "text").iter().any(|block| messages(block) >= MESSAGES_MIN) {
        found.push("has no diagram of its algorithm".to_owned());
    }
    found
}

/// What stands under a heading.
fn section<'p>(page: &'p str, heading: &str) -> &'p str {
    let after = page.split_once(&format!("\n## {heading}\n")).map_or("", |(_, after)| after);
    after.split("\n## ").next().unwrap_or_default()
}

/// The blocks of code of one kind.
fn blocks<'p>(text: &'p str, kind: &str) -> Vec<&'p str> {
    let begin = format!("```{kind}\n");
    text.split(begin.as_str()).skip(1).filter_map(|after| after.split("```").next()).collect()
}

/// How many messages a diagram shows: lines with an arrow.
fn messages(block: &str) -> usize {
    block.lines().filter(|line| ARROWS.iter().any(|arrow| line.contains(arrow))).count()
}

/// The structures that the README's table lists: the code in its first column.
fn structures(readme: &str) -> Vec<&str> {
    let table = readme.split_once("| structure | what it promises |").map_or("", |(_, after)| after);
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut found: Vec<&str> =
        rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A\n\n## The problem\n\nx\n\n## The naive recipe\n\nGet it, change it, set it:\n\n```text\nA  |--- get -->|\n   |<-- 1 -----|\n```\n\n## The algorithm\n\n```text\nA  |--- cas -->|\n   |<-- no ----|\n```\n\n## Guarantee\n\n## Round trips\n\n## Memory\n\n## In Rust\n\n## In a shell\n";

    #[test]
    fn a_page_with_all_of_it_passes_and_one_that_lacks_a_part_or_a_diagram_is_told() {
        assert_eq!(faults(PAGE), [""; 0]);
        let told = |from: &str, to: &str| faults(&PAGE.replacen(from, to, 1)).join("; ");
        assert_eq!(told("## Memory", "## Else"), "has no part \"Memory\"");
        assert!(told("|--- get -->|", "gets it").contains("race that its naive recipe loses"));
        assert!(told("|--- cas -->|", "swaps it").contains("diagram of its algorithm"));
        assert!(told("Get it, change it, set it:", "").contains("does not say what it does"));
        assert!(told("## The naive recipe", "## A recipe").contains("race"));
        let moved = PAGE.replacen("## The algorithm", "## X", 1) + "\n## The algorithm\n```text\n<--\n-->\n```\n";
        assert!(faults(&moved).join("; ").contains("in another place"));
    }

    #[test]
    fn the_readmes_structures_are_read() {
        let readme = "x\n\n| structure | what it promises |\n|---|---|\n| `Lock` | a |\n| `Counter`, exact | b |\n| `Counter`, fast | c |\n| `Queue`, `Stack` | `d` |\n\n| `no` | x |";
        assert_eq!(structures(readme), ["Lock", "Counter", "Queue", "Stack"]);
    }
}
