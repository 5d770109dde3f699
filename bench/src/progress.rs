//! What happens meanwhile, on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::contest::Contest;

/// A bar of the rounds on a terminal, a line a contest elsewhere.
pub(crate) struct Progress {
    bar: ProgressBar,
    lines: bool,
}

impl Progress {
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new(0);
        let template = "{elapsed_precise} {bar:24.cyan} {pos}/{len} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress { lines: bar.is_hidden(), bar }
    }

    #[cfg(test)]
    pub(crate) fn silent() -> Progress {
        Progress { bar: ProgressBar::hidden(), lines: false }
    }

    /// So many rounds more.
    pub(crate) fn more(&self, rounds: usize) {
        self.bar.inc_length(rounds as u64);
    }

    pub(crate) fn step(&self) {
        self.bar.inc(1);
    }

    pub(crate) fn at(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// A step that is not measured.
    pub(crate) fn note(&self, what: &str) {
        self.at(what);
        if self.lines {
            eprintln!("{what}");
        }
    }

    pub(crate) fn say(&self, contest: &Contest) {
        if self.lines {
            let figures: Vec<String> = contest
                .entries
                .iter()
                .map(|entry| format!("{} {}", entry.label, contest.unit.show(entry.spread.median)))
                .collect();
            eprintln!("{}: {}", contest.name, figures.join(", "));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
