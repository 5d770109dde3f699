//! Results for people: a table on a terminal, and as Markdown.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};

use crate::contest::{Contest, Entry};
use crate::report::{Findings, Report};

/// One benchmark as a table; in colour where standard output is a terminal.
pub(crate) fn terminal(findings: &Findings) -> String {
    let mut text = format!("\n{}\n{}\n{}\n", findings.section.title(), findings.how, findings.machine.line());
    let labels = labels(&findings.contests);
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    let mut header = vec![Cell::new("work")];
    header.extend(labels.iter().map(|label| Cell::new(label).add_attribute(Attribute::Bold)));
    header.push(Cell::new("ratio (middle half of the rounds; all)"));
    header.push(Cell::new("goal"));
    table.set_header(header);
    for contest in &findings.contests {
        let mut row = vec![Cell::new(&contest.name)];
        row.extend(labels.iter().map(|label| {
            let text = entry(contest, label).map_or_else(String::new, |entry| figure(contest, entry, "\n"));
            Cell::new(text).set_alignment(CellAlignment::Right)
        }));
        let verdicts: Vec<String> = contest.verdicts.iter().map(|verdict| verdict.line(contest)).collect();
        row.push(Cell::new(verdicts.join("\n")));
        row.push(goal_cell(contest));
        table.add_row(row);
    }
    _ = writeln!(text, "{table}");
    text
}

fn goal_cell(contest: &Contest) -> Cell {
    let goals: Vec<String> = contest.verdicts.iter().map(|verdict| goal(verdict.goal(), verdict.outcome())).collect();
    let cell = Cell::new(goals.join("\n"));
    let outcomes: Vec<bool> = contest.verdicts.iter().filter_map(|verdict| verdict.met).collect();
    match outcomes.iter().all(|&met| met) {
        _ if outcomes.is_empty() => cell,
        true => cell.fg(Color::Green),
        false => cell.fg(Color::Red).add_attribute(Attribute::Bold),
    }
}

fn goal(goal: String, outcome: &str) -> String {
    if goal.is_empty() { goal } else { format!("{goal}: {outcome}") }
}

/// The whole report as Markdown, below what is said about the benchmarks in general.
pub(crate) fn markdown(report: &Report, svg: &Path) -> String {
    let mut text = include_str!("bench.md").to_owned();
    _ = writeln!(text, "\n![Medians of all rounds; the thin lines span their middle half]({})", svg.display());
    let mut last = None;
    for findings in &report.findings {
        let machine = &findings.machine;
        // Of several runs there are several tables.
        if last.replace(findings.section) != Some(findings.section) {
            _ = writeln!(text, "\n## {}", findings.section.title());
        }
        _ = writeln!(text, "\n{}\n", findings.how);
        _ = writeln!(text, "Machine: {}. Crates: {}.\n", machine.line(), machine.crates.join(", "));
        let labels = labels(&findings.contests);
        _ = writeln!(text, "| work | {} | ratio (middle half of the rounds; all) | goal |", labels.join(" | "));
        _ = writeln!(text, "|---|{}---|---|", "--:|".repeat(labels.len()));
        for contest in &findings.contests {
            let figures = labels.iter().map(|label| match entry(contest, label) {
                Some(entry) => figure(contest, entry, " ") + " | ",
                None => " | ".to_owned(),
            });
            let verdicts: Vec<String> = contest.verdicts.iter().map(|verdict| verdict.line(contest)).collect();
            let goals: Vec<String> =
                contest.verdicts.iter().map(|verdict| goal(verdict.goal(), verdict.outcome())).collect();
            let (figures, verdicts, goals) = (figures.collect::<String>(), verdicts.join("<br>"), goals.join("<br>"));
            _ = writeln!(text, "| {} | {figures}{verdicts} | {goals} |", contest.name);
        }
    }
    text
}

/// Every label that occurs, in the order it first does.
fn labels(contests: &[Contest]) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    let entries = contests.iter().flat_map(|contest| &contest.entries);
    entries.map(|entry| entry.label.as_str()).filter(|label| seen.insert(*label)).collect()
}

fn entry<'a>(contest: &'a Contest, label: &str) -> Option<&'a Entry> {
    contest.entries.iter().find(|entry| entry.label == label)
}

fn figure(contest: &Contest, entry: &Entry, detail_after: &str) -> String {
    let figure = contest.unit.show(entry.spread.median);
    if entry.detail.is_empty() { figure } else { format!("{figure}{detail_after}({})", entry.detail) }
}
