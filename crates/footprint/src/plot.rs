//! A report as a picture: a bar a group, as long as what it takes.
//!
//! Written by hand: bars and text need no plotting crate, and the fonts stay the viewer's.

use std::fmt::Write;

use larder_core::text::size;

use crate::group::Group;
use crate::report::Report;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const LABEL_WIDTH: f64 = 330.0;
const FIGURE_WIDTH: f64 = 190.0;
const BAR_HEIGHT: f64 = 15.0;
const BAR_STEP: f64 = 21.0;
const HEAD: f64 = 66.0;
/// Groups that are drawn; the others are one bar.
const GROUPS_MAX: usize = 30;
/// Characters of a label.
const LABEL_CHARS_MAX: usize = 48;

const PACKED: &str = "#1f6feb";
const UNPACKED: &str = "#cf222e";
const SAVED: &str = "#1a7f37";
const INK: &str = "#1f2328";
const FAINT: &str = "#59636e";

/// The picture, as SVG: what each group takes with the error of that, those that are not packed in red, and to where the best advice would bring them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let store: larder_core::StoreRef = memory.clone();
/// let report = larder_footprint::report(&store, &*memory, &Default::default(), &mut |_| ()).await?;
/// assert!(larder_footprint::svg(&report).starts_with("<svg"));
/// # Ok(()) }
/// ```
pub fn svg(report: &Report) -> String {
    let mut body = String::new();
    let servers: Vec<String> = report.nodes.iter().map(|node| format!("{} ({})", node.node, node.software)).collect();
    text(
        &mut body,
        MARGIN,
        MARGIN + 12.0,
        "start",
        16.0,
        INK,
        &format!("{} keys, {}", report.keys, size(report.bytes.value)),
    );
    text(&mut body, MARGIN, MARGIN + 30.0, "start", 12.0, FAINT, &servers.join(", "));
    let drawn = report.groups.get(..GROUPS_MAX).unwrap_or(&report.groups);
    let others: f64 = report.groups.iter().skip(GROUPS_MAX).map(|group| group.bytes.value).sum();
    let reach =
        |group: &Group| group.bytes.value + Some(group.bytes.error).filter(|error| error.is_finite()).unwrap_or(0.0);
    let most = drawn.iter().map(reach).fold(others.max(f64::MIN_POSITIVE), f64::max);
    let scale = (WIDTH - 2.0 * MARGIN - LABEL_WIDTH - FIGURE_WIDTH) / most;
    let mut y = HEAD;
    for group in drawn {
        bar(&mut body, y, scale, group, saved(report, group));
        y += BAR_STEP;
    }
    if others > 0.0 {
        let label = format!("{} others", report.groups.len() - drawn.len());
        rect(&mut body, y, others * scale, FAINT, 1.0);
        label_and_figure(&mut body, y, others * scale, &label, &size(others));
        y += BAR_STEP;
    }
    let legend = "blue: as small as the server keeps it; red: not packed; green: what advice would save; lines: the error of a sample";
    text(&mut body, MARGIN, y + 20.0, "start", 11.0, FAINT, legend);
    let height = y + 20.0 + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

/// The most that one advice would save of a group.
fn saved(report: &Report, group: &Group) -> f64 {
    let kept = group.kept();
    let is_about = |one: &&crate::Advice| one.owner.as_ref() == Some(&group.owner) && one.kept == kept;
    report.advice.iter().filter(is_about).map(|one| one.saves_bytes).fold(0.0, f64::max).min(group.bytes.value)
}

fn bar(body: &mut String, y: f64, scale: f64, group: &Group, saved: f64) {
    let value = group.bytes.value;
    rect(body, y, value * scale, if group.is_unpacked() { UNPACKED } else { PACKED }, 0.0);
    rect(body, y, saved * scale, SAVED, (value - saved) * scale);
    let left = MARGIN + LABEL_WIDTH;
    let mut end = value * scale;
    if group.bytes.error > 0.0 && group.bytes.error.is_finite() {
        let (low, high) = ((value - group.bytes.error).max(0.0) * scale, (value + group.bytes.error) * scale);
        let middle = y + BAR_HEIGHT / 2.0;
        _ = writeln!(
            body,
            "<path d=\"M{:.1} {middle:.1}H{:.1}M{:.1} {:.1}v6M{:.1} {:.1}v6\" stroke=\"{INK}\" fill=\"none\"/>",
            left + low,
            left + high,
            left + low,
            middle - 3.0,
            left + high,
            middle - 3.0
        );
        end = high;
    }
    let label = format!("{} ({})", group.owner, group.kept());
    let each = group.element_bytes().map_or_else(String::new, |bytes| format!(", {bytes:.1} B an element"));
    label_and_figure(body, y, end, &label, &format!("{}{each}", size(value)));
}

fn rect(body: &mut String, y: f64, width: f64, fill: &str, from: f64) {
    let left = MARGIN + LABEL_WIDTH + from;
    _ = writeln!(
        body,
        "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{fill}\"/>"
    );
}

fn label_and_figure(body: &mut String, y: f64, end: f64, label: &str, figure: &str) {
    let label = match label.char_indices().nth(LABEL_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &label[..at]),
        None => label.to_owned(),
    };
    let (left, base) = (MARGIN + LABEL_WIDTH, y + BAR_HEIGHT - 3.0);
    text(body, left - 8.0, base, "end", 12.0, INK, &label);
    text(body, left + end + 8.0, base, "start", 12.0, INK, figure);
}

fn text(body: &mut String, x: f64, y: f64, anchor: &str, size: f64, fill: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{fill}\">{what}</text>"
    );
}
