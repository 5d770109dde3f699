//! Results as one picture: a panel a contest, a bar an entry, a thin line over the middle half of its rounds.
//!
//! Written by hand: bars and text need no plotting crate, and the fonts stay the viewer's.

use std::fmt::Write;

use crate::contest::{Contest, Entry};
use crate::report::Report;

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 24.0;
const LABEL_WIDTH: f64 = 250.0;
const FIGURE_WIDTH: f64 = 110.0;
const BAR_HEIGHT: f64 = 15.0;
const BAR_STEP: f64 = 20.0;
const PANEL_HEAD: f64 = 26.0;
const PANEL_GAP: f64 = 12.0;
const SECTION_HEAD: f64 = 46.0;

const OURS: &str = "#1f6feb";
const THEIRS: &str = "#9aa4b2";
const INK: &str = "#1f2328";
const FAINT: &str = "#59636e";
const MET: &str = "#1a7f37";
const MISSED: &str = "#cf222e";

/// The picture of a report.
pub(crate) fn render(report: &Report) -> String {
    let mut body = String::new();
    let mut y = MARGIN;
    let mut last = None;
    for findings in &report.findings {
        if last.replace(findings.section) != Some(findings.section) {
            y += SECTION_HEAD - 18.0;
            text(&mut body, MARGIN, y, "start", 18.0, INK, findings.section.title());
            y += 18.0;
        }
        for contest in &findings.contests {
            y = panel(&mut body, y, contest);
        }
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// Draws a contest below `top` and answers where it ends.
fn panel(body: &mut String, top: f64, contest: &Contest) -> f64 {
    let mut y = top + 16.0;
    text(body, MARGIN, y, "start", 13.0, INK, &format!("{} ({})", contest.name, contest.unit.name()));
    for verdict in &contest.verdicts {
        let goal = if verdict.limit.is_some() { format!(", goal {}", verdict.goal()) } else { String::new() };
        let colour = match verdict.met {
            Some(true) => MET,
            Some(false) => MISSED,
            None => FAINT,
        };
        text(body, WIDTH - MARGIN, y, "end", 12.0, colour, &(verdict.line(contest) + &goal));
        y += 16.0;
    }
    y = y.max(top + PANEL_HEAD) - 4.0;
    let most = contest.entries.iter().map(|entry| entry.spread.high).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - 2.0 * MARGIN - LABEL_WIDTH - FIGURE_WIDTH) / most;
    for entry in &contest.entries {
        bar(body, y, scale, contest, entry);
        y += BAR_STEP;
    }
    y + PANEL_GAP
}

fn bar(body: &mut String, y: f64, scale: f64, contest: &Contest, entry: &Entry) {
    let is_ours =
        contest.verdicts.iter().any(|verdict| verdict.ours == entry.label) || entry.label.starts_with("larder");
    let (left, middle) = (MARGIN + LABEL_WIDTH, y + BAR_HEIGHT / 2.0);
    let name =
        if entry.detail.is_empty() { entry.label.clone() } else { format!("{} ({})", entry.label, entry.detail) };
    text(body, left - 8.0, middle + 4.0, "end", 12.0, INK, &name);
    let spread = entry.spread;
    let (width, low, high) = (spread.median * scale, left + spread.low * scale, left + spread.high * scale);
    let fill = if is_ours { OURS } else { THEIRS };
    _ = writeln!(
        body,
        "<rect x=\"{left}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" rx=\"2\" fill=\"{fill}\"/>\n\
         <path d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v6M{high:.1} {:.1}v6\" stroke=\"{INK}\" fill=\"none\"/>",
        middle - 3.0,
        middle - 3.0
    );
    text(body, high.max(left + width) + 8.0, middle + 4.0, "start", 12.0, INK, &contest.unit.show(spread.median));
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, size: f64, fill: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{fill}\">{what}</text>"
    );
}
