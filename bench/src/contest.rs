//! Contests: the same work done by several, in turns.

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::progress::Progress;
use crate::stats::Spread;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unit {
    /// Ops a second: more is better.
    OpsPerSecond,
    /// Microseconds an op: less is better.
    MicrosPerOp,
    /// Bytes an item beyond its key and value: less is better.
    OverheadBytes,
    /// Bytes: less is better.
    Bytes,
    /// Bytes of many elements, each: less is better.
    ElementBytes,
    /// Bytes of all there is: less is better.
    WholeBytes,
    /// Milliseconds: less is better.
    Millis,
    /// Times as much as the least there could be: less is better.
    Times,
    /// By what share of the truth a figure is off: less is better.
    Error,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::OpsPerSecond => "ops/s",
            Unit::MicrosPerOp => "us/op",
            Unit::OverheadBytes => "bytes of overhead an item",
            Unit::Bytes => "bytes an item",
            Unit::ElementBytes => "bytes an element",
            Unit::WholeBytes => "bytes in all",
            Unit::Millis => "ms",
            Unit::Times => "times the least",
            Unit::Error => "of the truth",
        }
    }

    fn more_is_better(self) -> bool {
        self == Unit::OpsPerSecond
    }

    /// A figure for people.
    pub(crate) fn show(self, figure: f64) -> String {
        match self {
            Unit::OpsPerSecond if figure >= 999_500.0 => format!("{:.2} M", figure / 1e6),
            Unit::OpsPerSecond => format!("{:.1} k", figure / 1e3),
            Unit::MicrosPerOp if figure < 10.0 => format!("{figure:.2} us"),
            Unit::MicrosPerOp => format!("{figure:.1} us"),
            Unit::OverheadBytes => format!("{figure:.1} B"),
            Unit::Bytes | Unit::WholeBytes => format!("{figure:.0} B"),
            Unit::ElementBytes => format!("{figure:.2} B"),
            Unit::Millis => format!("{figure:.2} ms"),
            Unit::Times => format!("{figure:.2}x"),
            Unit::Error => format!("{figure:.2e}"),
        }
    }
}

/// Several that did the same work, and how ours did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Contest {
    /// The work, such as `get, 512 tasks`.
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) entries: Vec<Entry>,
    pub(crate) verdicts: Vec<Verdict>,
}

/// One of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) label: String,
    /// How it was set up, such as `pool of 16`; may be empty.
    pub(crate) detail: String,
    pub(crate) rounds: Vec<f64>,
    pub(crate) spread: Spread,
}

/// What must be reached.
#[derive(Clone, Debug)]
pub(crate) struct Goal {
    /// Whose figure.
    pub(crate) ours: &'static str,
    /// Against whose: the best of these labels. Empty: the figure itself is judged.
    pub(crate) against: Vec<&'static str>,
    pub(crate) limit: Option<Limit>,
}

/// A bound of a ratio, or of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Limit {
    AtLeast(f64),
    AtMost(f64),
}

/// How a goal came out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) ours: String,
    /// The best of those it was held against.
    pub(crate) against: Option<String>,
    /// The ratio of the two, or the figure where there is no other.
    pub(crate) value: Spread,
    pub(crate) limit: Option<Limit>,
    pub(crate) met: Option<bool>,
}

/// One that takes part: `run` does a round and answers its figure.
pub(crate) struct Contestant<'a> {
    pub(crate) label: &'static str,
    pub(crate) detail: String,
    pub(crate) run: Box<dyn FnMut() -> Result<f64> + 'a>,
}

impl<'a> Contestant<'a> {
    pub(crate) fn new(label: &'static str, detail: String, run: impl FnMut() -> Result<f64> + 'a) -> Contestant<'a> {
        Contestant { label, detail, run: Box::new(run) }
    }
}

/// A warm-up round and then `rounds` rounds; in each, everybody has a turn, and another one begins each time, so that what
/// the machine does meanwhile, and who ran before whom, falls on all alike.
pub(crate) fn hold(
    progress: &Progress,
    name: &str,
    unit: Unit,
    rounds: usize,
    mut contestants: Vec<Contestant<'_>>,
    goals: &[Goal],
) -> Result<Contest> {
    progress.more((rounds + 1) * contestants.len());
    let mut entries: Vec<Entry> = contestants
        .iter()
        .map(|one| Entry {
            label: one.label.to_owned(),
            detail: one.detail.clone(),
            rounds: Vec::with_capacity(rounds),
            spread: Spread::of(&[]),
        })
        .collect();
    let count = contestants.len();
    for round in 0..=rounds {
        for turn in 0..count {
            let at = (round + turn) % count;
            let one = &mut contestants[at];
            progress.at(&format!("{name}: {} {}", one.label, one.detail));
            let figure = (one.run)().map_err(|error| format!("{name}: {} {}: {error}", one.label, one.detail))?;
            if round > 0 {
                entries[at].rounds.push(figure);
            }
            progress.step();
        }
    }
    for entry in &mut entries {
        entry.spread = Spread::of(&entry.rounds);
    }
    let verdicts = goals.iter().filter_map(|goal| judge(goal, unit, &entries)).collect();
    let contest = Contest { name: name.to_owned(), unit, entries, verdicts };
    progress.say(&contest);
    Ok(contest)
}

/// Figures that were taken once, such as what something takes.
pub(crate) fn once(
    progress: &Progress,
    name: &str,
    unit: Unit,
    figures: Vec<(&'static str, String, f64)>,
    goals: &[Goal],
) -> Contest {
    let entries = figures.into_iter().map(|(label, detail, figure)| Entry {
        label: label.to_owned(),
        detail,
        rounds: vec![figure],
        spread: Spread::of(&[figure]),
    });
    let entries: Vec<Entry> = entries.collect();
    let verdicts = goals.iter().filter_map(|goal| judge(goal, unit, &entries)).collect();
    let contest = Contest { name: name.to_owned(), unit, entries, verdicts };
    progress.say(&contest);
    contest
}

/// The best of the entries with these labels.
pub(crate) fn best<'a>(unit: Unit, entries: &'a [Entry], labels: &[&str]) -> Option<&'a Entry> {
    let listed = entries.iter().filter(|entry| labels.contains(&entry.label.as_str()));
    let by_median = |a: &&Entry, b: &&Entry| a.spread.median.total_cmp(&b.spread.median);
    if unit.more_is_better() { listed.max_by(by_median) } else { listed.min_by(by_median) }
}

fn judge(goal: &Goal, unit: Unit, entries: &[Entry]) -> Option<Verdict> {
    let ours = entries.iter().find(|entry| entry.label == goal.ours)?;
    let other = best(unit, entries, &goal.against);
    let value = match other {
        Some(other) => Spread::of_ratios(&ours.rounds, &other.rounds),
        None => ours.spread,
    };
    let met = goal.limit.map(|limit| match limit {
        Limit::AtLeast(least) => value.median >= least,
        Limit::AtMost(most) => value.median <= most,
    });
    Some(Verdict {
        ours: ours.label.clone(),
        against: other.map(|other| other.label.clone()),
        value,
        limit: goal.limit,
        met,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(unit: Unit, ours: f64, peers: [f64; 2], limit: Limit) -> Contest {
        let contestants = vec![
            Contestant::new("ours", String::new(), move || Ok(ours)),
            Contestant::new("a", String::new(), move || Ok(peers[0])),
            Contestant::new("b", String::new(), move || Ok(peers[1])),
        ];
        let goal = Goal { ours: "ours", against: vec!["a", "b"], limit: Some(limit) };
        hold(&Progress::silent(), "work", unit, 3, contestants, &[goal]).unwrap()
    }

    #[test]
    fn ours_is_held_against_the_best_peer() {
        let contest = run(Unit::OpsPerSecond, 10.0, [5.0, 2.0], Limit::AtLeast(2.0));
        assert_eq!((contest.verdicts[0].against.as_deref(), contest.verdicts[0].met), (Some("a"), Some(true)));
        let contest = run(Unit::MicrosPerOp, 3.0, [5.0, 2.0], Limit::AtMost(1.15));
        assert_eq!((contest.verdicts[0].against.as_deref(), contest.verdicts[0].met), (Some("b"), Some(false)));
    }

    #[test]
    fn the_first_round_is_a_warm_up_and_every_round_begins_with_another() {
        let order = std::cell::RefCell::new(Vec::new());
        let mut calls = 0.0;
        let contestants = vec![
            Contestant::new("x", String::new(), || {
                order.borrow_mut().push('x');
                calls += 1.0;
                Ok(calls)
            }),
            Contestant::new("y", String::new(), || {
                order.borrow_mut().push('y');
                Ok(0.0)
            }),
        ];
        let contest = hold(&Progress::silent(), "work", Unit::MicrosPerOp, 3, contestants, &[]).unwrap();
        assert_eq!(contest.entries[0].rounds, [2.0, 3.0, 4.0]);
        assert_eq!(order.into_inner().into_iter().collect::<String>(), "xyyxxyyx");
    }
}
