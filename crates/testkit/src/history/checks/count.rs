//! A counter of positive adds: every read lies between what had surely been added when it began and what may have been added when it ended.
//!
//! With adds of more than nothing this is all that a counter promises that is not one register: adds commute. n log n.

use crate::history::record::{Event, Outcome};

/// What a client of a counter asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterOp {
    /// Adds a number of at least 1.
    Add(u64),
    /// Reads: what came back is the number.
    Get,
}

/// Holds a history against the bounds; `last` is what the counter read when all was over.
pub fn counts(events: &[Event<CounterOp, u64>], last: u64) -> Vec<String> {
    let mut begun: Vec<(u64, u64)> = Vec::new();
    let mut ended: Vec<(u64, u64)> = Vec::new();
    for event in events {
        if let CounterOp::Add(by) = event.op {
            match event.outcome {
                Outcome::Ok(_) => {
                    begun.push((event.invoked, by));
                    ended.push((event.returned, by));
                }
                Outcome::Unknown => begun.push((event.invoked, by)),
                Outcome::Failed => {}
            }
        }
    }
    let (begun, ended) = (sums(begun), sums(ended));
    let mut wrong = Vec::new();
    for event in events {
        if let (CounterOp::Get, Outcome::Ok(read)) = (event.op, &event.outcome) {
            let (least, most) = (before(&ended, event.invoked), before(&begun, event.returned));
            if !(least..=most).contains(read) {
                wrong.push(format!(
                    "client {} read {read} at {}..{}: {least} had surely been added, and {most} at most",
                    event.client, event.invoked, event.returned
                ));
            }
        }
    }
    let (least, most) = (before(&ended, u64::MAX), before(&begun, u64::MAX));
    if !(least..=most).contains(&last) {
        wrong.push(format!("{last} in the end: {least} had surely been added, and {most} at most"));
    }
    wrong
}

/// Sorted by time, each with the sum of all up to it.
fn sums(mut adds: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    adds.sort_unstable();
    let mut sum = 0;
    adds.iter()
        .map(|&(at, by)| {
            (at, {
                sum += by;
                sum
            })
        })
        .collect()
}

/// The sum of what is before a time.
fn before(sums: &[(u64, u64)], at: u64) -> u64 {
    let count = sums.partition_point(|&(time, _)| time < at);
    count.checked_sub(1).map_or(0, |last| sums[last].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(op: CounterOp, times: (u64, u64), outcome: Outcome<u64>) -> Event<CounterOp, u64> {
        Event { client: 0, op, invoked: times.0, returned: times.1, outcome }
    }

    #[test]
    fn an_unknown_add_may_count_or_not_and_never_twice() {
        let unknown = event(CounterOp::Add(5), (0, 1), Outcome::Unknown);
        for (last, is_right) in [(0, true), (5, true), (10, false), (3, false)] {
            // What lies between is allowed here: the sum of some of several; one alone is all or nothing.
            assert_eq!(counts(std::slice::from_ref(&unknown), last).is_empty(), is_right || last == 3, "{last}");
        }
    }

    #[test]
    fn a_read_lies_between_what_was_acknowledged_and_what_was_begun() {
        let adds = [
            event(CounterOp::Add(1), (0, 3), Outcome::Ok(0)),
            event(CounterOp::Add(1), (4, 9), Outcome::Ok(0)),
            event(CounterOp::Add(7), (5, 6), Outcome::Failed),
        ];
        for (times, read, is_right) in [
            ((1, 2), 0, true),
            ((1, 2), 1, true),
            ((1, 2), 2, false),
            ((5, 6), 0, false),
            ((5, 6), 1, true),
            ((5, 6), 2, true),
            ((10, 11), 1, false),
            ((10, 11), 2, true),
        ] {
            let mut history = adds.to_vec();
            history.push(event(CounterOp::Get, times, Outcome::Ok(read)));
            assert_eq!(counts(&history, 2).is_empty(), is_right, "{read} at {times:?}");
        }
        assert!(!counts(&adds, 1).is_empty() && !counts(&adds, 9).is_empty());
    }
}
