//! Reports for people: a table with a bar a group, then what is not packed, then advice.

use std::fmt::Write as _;
use std::io::Write as _;

use indicatif::{HumanCount, HumanDuration};
use larder::footprint::{Act, Advice, Estimate, Footprint, Group, Report, settings};
use larder::survey::Vitals;
use larder::text::size;

use crate::exit::Failure;

/// How wide the longest bar is, in characters.
const BAR_CHARS: usize = 20;
/// How wide an owner may be.
const OWNER_CHARS_MAX: usize = 36;
const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";

pub(super) fn print_report(report: &Report, groups_max: usize) -> Result<(), Failure> {
    let mut out = String::new();
    head(&mut out, report);
    groups(&mut out, report, groups_max);
    structures(&mut out, &report.structures, groups_max);
    unpacked(&mut out, report, groups_max);
    advice(&mut out, report);
    print(&out)
}

/// What data call for: lines of a configuration, all else as comments.
pub(super) fn print_advice(report: &Report) -> Result<(), Failure> {
    print(&configuration(report))
}

fn configuration(report: &Report) -> String {
    let mut out = String::new();
    let (saving, looked_at) = by_saving(report);
    for error in &report.silent {
        // A comment is one line.
        let error = error.to_string().replace(['\r', '\n'], " ");
        _ = writeln!(out, "# no answer, and its keys are not counted: {error}");
    }
    if !looked_at.is_empty() {
        _ = writeln!(out, "# To look at");
    }
    for one in looked_at {
        line(&mut out, one, "");
    }
    if saving.is_empty() {
        _ = writeln!(
            out,
            "# {} keys, {}: nothing would save a hundredth of that",
            HumanCount(report.keys),
            size(report.bytes.value)
        );
    }
    for one in saving {
        line(&mut out, one, &format!(" would save about {}", size(one.saves_bytes)));
    }
    for setting in settings(&report.advice) {
        // Options of a command line are no lines of a configuration.
        let before = if setting.name.starts_with('-') { "# memcached " } else { "" };
        _ = writeln!(out, "# now: {} {}\n{before}{setting}", setting.name, setting.now);
    }
    out
}

fn line(out: &mut String, one: &Advice, saves: &str) {
    _ = writeln!(out, "# {}{saves}", one.act);
    _ = writeln!(out, "#   {}: {}", about(one), one.why);
    _ = writeln!(out, "#   {}", one.note);
}

/// Advice that saves memory, and advice for another reason.
fn by_saving(report: &Report) -> (Vec<&Advice>, Vec<&Advice>) {
    report.advice.iter().partition(|one| one.saves_bytes > 0.0)
}

fn print(out: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(out.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

fn head(out: &mut String, report: &Report) {
    for node in &report.nodes {
        _ = writeln!(out, "{} at {}: {}", node.software, node.node, memory(node));
    }
    for error in &report.silent {
        _ = writeln!(out, "{RED}no answer, and its keys are not counted:{PLAIN} {error}");
    }
    let took = HumanDuration(report.took);
    _ = writeln!(
        out,
        "{} keys take {}{}, found out in {took}\n",
        HumanCount(report.keys),
        size(report.bytes.value),
        error(&report.bytes)
    );
}

fn memory(node: &Vitals) -> String {
    let mut parts = Vec::new();
    let mut tell =
        |bytes: Option<u64>, what: &str| parts.extend(bytes.map(|bytes| format!("{} {what}", size(bytes as f64))));
    tell(node.used_bytes, "used");
    tell(node.data_bytes.filter(|_| node.data_bytes != node.used_bytes), "of that data and keys");
    tell(node.resident_bytes, "resident");
    tell(node.limit_bytes, "the limit");
    tell(node.disk_bytes, "on disk");
    parts.extend(node.resident_ratio.map(|ratio| format!("{ratio:.2} resident for each byte used")));
    parts.join(", ")
}

/// ` ± 3.1 %`; nothing where it is exact.
fn error(estimate: &Estimate) -> String {
    match estimate.share() {
        Some(0.0) => String::new(),
        Some(share) => format!(" ± {:.1} %", share * 100.0),
        None => " ± ?".to_owned(),
    }
}

const HEADER: [&str; 9] =
    ["whose", "type", "kept as", "keys", "bytes", "±", "elements", "bytes an element", "RSS an element"];

fn groups(out: &mut String, report: &Report, groups_max: usize) {
    let shown = report.groups.get(..groups_max).unwrap_or(&report.groups);
    let rows: Vec<[String; 9]> = shown.iter().map(cells).collect();
    let most = shown.first().map_or(1.0, |group| group.bytes.value).max(1.0);
    let tails = shown.iter().map(|group| {
        let colour = if group.is_unpacked() { RED } else { GREEN };
        format!("{colour}{}{PLAIN}", bar(group.bytes.value / most))
    });
    table(out, HEADER, &rows, tails, 3);
    if let Some(left) = report.groups.len().checked_sub(shown.len()).filter(|&left| left > 0) {
        let bytes: f64 = report.groups.iter().skip(shown.len()).map(|group| group.bytes.value).sum();
        _ = writeln!(out, "… and {left} groups of {}; --groups shows more", size(bytes));
    }
    let sampled = report.groups.iter().map(|group| group.measured.len()).max().unwrap_or(0);
    if sampled > 0 {
        _ = writeln!(out, "Measured on up to {sampled} keys a group; ± is what 95 of 100 samples are within.");
    }
    _ = writeln!(out);
}

fn cells(group: &Group) -> [String; 9] {
    let each = |bytes: Option<f64>| bytes.map_or_else(String::new, |bytes| format!("{bytes:.1}"));
    let share = match group.bytes.share() {
        Some(0.0) => String::new(),
        Some(share) => format!("{:.1} %", share * 100.0),
        None => "?".to_owned(),
    };
    let elements =
        group.elements.map_or_else(String::new, |elements| HumanCount(elements.value.round() as u64).to_string());
    [
        cut(&group.owner.to_string()),
        group.data_type.as_str().to_owned(),
        group.encoding.clone(),
        HumanCount(group.keys).to_string(),
        size(group.bytes.value),
        share,
        elements,
        each(group.element_bytes()),
        each(group.element_resident_bytes()),
    ]
}

const STRUCTURES_HEADER: [&str; 7] =
    ["structure", "kind", "keys", "bytes", "elements", "bytes an element", "RSS an element"];

fn structures(out: &mut String, all: &[Footprint], rows_max: usize) {
    if all.is_empty() {
        return;
    }
    let mut shown: Vec<&Footprint> = all.iter().collect();
    shown.sort_by(|one, other| other.bytes.total_cmp(&one.bytes));
    shown.truncate(rows_max);
    let rows: Vec<[String; 7]> = shown
        .iter()
        .map(|structure| {
            let elements = structure.elements.filter(|&elements| elements > 0.0);
            let each = |bytes: Option<f64>| {
                bytes.zip(elements).map_or_else(String::new, |(bytes, elements)| format!("{:.1}", bytes / elements))
            };
            [
                cut(&structure.name.to_string()),
                structure.kind.map_or("?", larder::Kind::as_str).to_owned(),
                HumanCount(structure.keys).to_string(),
                size(structure.bytes),
                structure.elements.map_or_else(String::new, |count| HumanCount(count.round() as u64).to_string()),
                each(Some(structure.bytes)),
                each(structure.resident_bytes),
            ]
        })
        .collect();
    table(out, STRUCTURES_HEADER, &rows, std::iter::repeat_n(String::new(), rows.len()), 2);
    _ = writeln!(out);
}

fn unpacked(out: &mut String, report: &Report, groups_max: usize) {
    let mut all = report.groups.iter().filter(|group| group.is_unpacked()).take(groups_max).peekable();
    if all.peek().is_none() {
        return;
    }
    _ = writeln!(out, "{BOLD}Not packed, and why{PLAIN}");
    for group in all {
        _ = writeln!(out, "{} ({}), {} keys", group.owner, group.kept(), HumanCount(group.keys));
        for (reason, share) in &group.reasons {
            _ = writeln!(out, "  {:.0} % of keys: {reason}", share * 100.0);
        }
    }
    _ = writeln!(out);
}

fn advice(out: &mut String, report: &Report) {
    let (saving, looked_at) = by_saving(report);
    if !looked_at.is_empty() {
        _ = writeln!(out, "{BOLD}To look at{PLAIN}");
    }
    for one in looked_at {
        _ = writeln!(out, "{RED}{}{PLAIN}", act(one));
        _ = writeln!(out, "  {}: {}", about(one), one.why);
    }
    if saving.is_empty() {
        _ = writeln!(out, "Nothing would save a hundredth of it.");
    } else {
        _ = writeln!(out, "{BOLD}What would save memory{PLAIN}");
    }
    for one in saving {
        _ = writeln!(out, "{GREEN}{:>9}{PLAIN}  {}", size(one.saves_bytes), act(one));
        _ = writeln!(out, "           {}: {}", about(one), one.why);
    }
    if !report.advice.is_empty() {
        _ = writeln!(out, "`larder memory advise` says what else is to be known of each.");
    }
}

fn act(advice: &Advice) -> String {
    match &advice.act {
        Act::Settings(settings) | Act::Options(settings) => {
            let all: Vec<String> = settings.iter().map(|setting| format!("{setting} (now {})", setting.now)).collect();
            all.join(", ")
        }
        act => act.to_string(),
    }
}

fn about(advice: &Advice) -> String {
    match &advice.owner {
        Some(owner) => format!("{owner} ({})", advice.kept),
        None => advice.kept.clone(),
    }
}

/// A table: the first `left` columns to the left, the others to the right, a tail behind each row.
fn table<const N: usize>(
    out: &mut String,
    header: [&str; N],
    rows: &[[String; N]],
    tails: impl Iterator<Item = String>,
    left: usize,
) {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    });
    let line = |out: &mut String, cells: [&str; N], tail: &str| {
        for (column, (cell, width)) in cells.into_iter().zip(widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            _ = if column < left { write!(out, "{gap}{cell:<width$}") } else { write!(out, "{gap}{cell:>width$}") };
        }
        _ = writeln!(out, "  {tail}");
    };
    out.push_str(BOLD);
    line(out, header, PLAIN);
    for (row, tail) in rows.iter().zip(tails) {
        line(out, row.each_ref().map(String::as_str), &tail);
    }
}

/// A bar of eighths of characters.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (BAR_CHARS * 8) as f64).ceil() as usize;
    format!("{}{}", "█".repeat(eighths / 8), EIGHTHS[eighths % 8])
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(OWNER_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn advice_tells_of_servers_that_do_not_answer() {
        let opened = larder::open_all("memory:").await.unwrap();
        let (survey, options) = (opened.survey.unwrap(), larder::footprint::Options::default());
        let mut report = larder::footprint::report(&opened.store, &*survey, &options, &mut |_| ()).await.unwrap();
        let told = |report: &Report| (configuration(report), super::super::json::advise(report)["silent"].clone());
        assert!(!told(&report).0.contains("no answer"));
        report.silent.push(larder::Error::new(larder::ErrorKind::Unavailable, "b:11211 is\naway"));
        let (plain, json) = told(&report);
        assert!(plain.starts_with("# no answer, and its keys are not counted: "), "{plain}");
        assert!(plain.lines().all(|line| line.starts_with('#')), "{plain}");
        assert!(json[0].as_str().unwrap().contains("b:11211"), "{json}");
    }

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(1.0).chars().count(), BAR_CHARS);
        assert_eq!((bar(0.0).as_str(), bar(0.001).as_str(), bar(0.5).chars().count()), ("", "▏", BAR_CHARS / 2));
        assert_eq!(bar(f64::INFINITY).chars().count(), BAR_CHARS);
    }
}
