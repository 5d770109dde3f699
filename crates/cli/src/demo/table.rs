//! What the demo found, for people and for machines.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use serde_json::json;

use crate::args::Subject;
use crate::exit::Failure;
use crate::output::Out;

/// One structure.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) subject: Subject,
    pub(super) ops: u64,
    pub(super) elapsed: Duration,
    pub(super) round_trips: u64,
    pub(super) elements: u64,
    /// Keys and values as they stand in the store.
    pub(super) bytes: u64,
    pub(super) verdict: Verdict,
}

/// What the check said.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Every total is what the workers did.
    Right,
    /// This is off.
    Off(String),
    /// The store lacks what the structure needs, and the structure said so.
    Unsupported(String),
}

const HEADER: [&str; 6] =
    ["structure", "operations", "a second", "round trips each", "bytes an element", "every total checked"];

impl Row {
    /// The row of a structure that the store cannot carry.
    pub(super) fn unsupported(subject: Subject, why: String) -> Row {
        let verdict = Verdict::Unsupported(why);
        Row { subject, ops: 0, elapsed: Duration::ZERO, round_trips: 0, elements: 0, bytes: 0, verdict }
    }

    pub(super) fn is_off(&self) -> bool {
        matches!(self.verdict, Verdict::Off(_))
    }

    fn ops_per_second(&self) -> f64 {
        ratio(self.ops as f64, self.elapsed.as_secs_f64())
    }

    fn round_trips_each(&self) -> f64 {
        ratio(self.round_trips as f64, self.ops as f64)
    }

    fn element_bytes(&self) -> f64 {
        ratio(self.bytes as f64, self.elements as f64)
    }

    /// The cells but for the verdict.
    fn cells(&self) -> [String; 5] {
        [
            self.subject.label().to_owned(),
            grouped(self.ops),
            grouped(self.ops_per_second().round() as u64),
            format!("{:.2}", self.round_trips_each()),
            format!("{:.1}", self.element_bytes()),
        ]
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Prints a table, with a line on what stands in it.
pub(super) fn print(rows: &[Row], store: &str, workers: u16) -> Result<(), Failure> {
    let cells: Vec<[String; 5]> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        let widths = cells.iter().map(|row| row[column].chars().count());
        widths.chain([HEADER[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut out = String::new();
    let line = |out: &mut String, cells: &[&str; 5], last: &str| {
        _ = write!(out, "{:<width$}", cells[0], width = widths[0]);
        for (cell, width) in cells.iter().zip(widths).skip(1) {
            _ = write!(out, "  {cell:>width$}");
        }
        _ = writeln!(out, "  {last}");
    };
    let [a, b, c, d, e, verdict] = HEADER;
    out.push_str("\x1b[1m");
    line(&mut out, &[a, b, c, d, e], &format!("{verdict}\x1b[0m"));
    for (row, cells) in rows.iter().zip(&cells) {
        let verdict = match &row.verdict {
            Verdict::Right => "\x1b[32m✓\x1b[0m".to_owned(),
            Verdict::Off(what) => format!("\x1b[1;31m✗\x1b[0m {what}"),
            Verdict::Unsupported(why) => format!("\x1b[33m–\x1b[0m {why}"),
        };
        line(&mut out, &cells.each_ref().map(String::as_str), &verdict);
    }
    _ = writeln!(out, "\nstore: {store}; {workers} workers at once.");
    out.push_str(
        "Bytes are keys and values as stored, without what the store adds; a lock and a counter are one element.\n",
    );
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(out.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// Prints an object a structure.
pub(super) fn print_json(rows: &[Row]) -> Result<(), Failure> {
    for row in rows {
        let object = json!({
            "structure": row.subject.label(),
            "operations": row.ops,
            "seconds": row.elapsed.as_secs_f64(),
            "operations_per_second": row.ops_per_second(),
            "round_trips_per_operation": row.round_trips_each(),
            "elements": row.elements,
            "bytes_per_element": row.element_bytes(),
            "ok": matches!(row.verdict, Verdict::Right),
            "off": if let Verdict::Off(what) = &row.verdict { Some(what) } else { None },
            "unsupported": if let Verdict::Unsupported(why) = &row.verdict { Some(why) } else { None },
        });
        Out { json: true }.answer("", &object)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
