//! Event logs: every fetch tells all of its time once, every tail tells each event once, and what is missing is told as a gap.

use std::collections::{HashMap, HashSet};

use crate::history::recorder::{Call, Moment};

/// What is asked of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOp {
    /// Puts an event, which nobody else puts, of this time.
    PutAt(u64, u64),
    /// Reads the events from one time to another.
    Window(u64, u64),
    /// Reads all there is.
    Fetch,
    /// Goes on reading: the tail of this client.
    Tail,
}

/// What a read told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogTold {
    /// The events.
    pub events: Vec<u64>,
    /// Whether gaps were told.
    pub gaps: bool,
    /// Whether a tail has more to tell at once.
    pub is_behind: bool,
}

type LogCall = Call<LogOp, LogTold>;

/// What is wrong with a log's history, in n log n. After a gap nothing is known of what was put before it was told.
///
/// On a store that was set back an event may be gone, or out of reach for a while: its part stood there again, and the list of parts did not name it until
/// somebody put into it. Nothing happens to the store from `calm_from` on: what a fetch tells then stays there, and a tail that looks after it may not have
/// skipped any of it, whatever was before.
pub fn check(calls: &[LogCall], is_set_back: bool, calm_from: Moment) -> Vec<String> {
    let mut puts: HashMap<u64, &LogCall> = HashMap::new();
    let mut done: Vec<(Moment, u64)> = Vec::new();
    let mut times: HashMap<u64, u64> = HashMap::new();
    for call in calls {
        if let LogOp::PutAt(event, time) = call.op {
            times.insert(event, time);
            puts.insert(event, call);
            if call.ok().is_some() {
                done.push((call.returned, event));
            }
        }
    }
    done.sort_unstable();
    let mut bad = Vec::new();
    let mut tails: HashMap<usize, Tail> = HashMap::new();
    let mut there: Option<&LogCall> = None;
    for call in calls.iter().filter(|call| !matches!(call.op, LogOp::PutAt(..))) {
        let Some(told) = call.ok() else { continue };
        bad.extend(invented(call, told, &puts));
        if let LogOp::Window(first, last) = call.op {
            let strays =
                told.events.iter().filter(|event| !times.get(event).is_some_and(|at| (first..=last).contains(at)));
            bad.extend(
                strays.map(|event| format!("{event} was told in the window {first} to {last}, and is not of it")),
            );
            let is_of_it = |event: &u64| times.get(event).is_some_and(|at| (first..=last).contains(at));
            bad.extend(fetched(call, told, &done, is_set_back, is_of_it));
        } else if call.op == LogOp::Fetch {
            if call.invoked >= calm_from {
                there = Some(call);
            }
            bad.extend(fetched(call, told, &done, is_set_back, |_| true));
        } else {
            let tail = tails.entry(call.client).or_default();
            bad.extend(tail.look(call, told, &done, is_set_back));
            if let Some(fetch) = there.filter(|fetch| fetch.returned < call.invoked) {
                bad.extend(tail.skipped(call, told, fetch));
            }
        }
    }
    bad
}

/// What a fetch tells twice, or not at all though it was put before and is of what was asked for.
fn fetched(
    call: &LogCall,
    told: &LogTold,
    done: &[(Moment, u64)],
    is_set_back: bool,
    is_of_it: impl Fn(&u64) -> bool,
) -> Vec<String> {
    let mut seen = HashSet::new();
    let twice = told.events.iter().filter(|event| !seen.insert(**event));
    let mut bad: Vec<String> = twice.map(|event| format!("a fetch tells {event} twice")).collect();
    if !told.gaps && !is_set_back {
        let before = done.iter().take_while(|(at, _)| *at < call.invoked);
        let missing = before.filter(|(_, event)| is_of_it(event) && !seen.contains(event));
        bad.extend(
            missing.map(|(_, event)| {
                format!("a fetch at {} ({:?}) does not tell {event}, nor a gap", call.invoked, call.op)
            }),
        );
    }
    bad
}

/// Events that nobody had put, or had been told were not put.
fn invented(call: &LogCall, told: &LogTold, puts: &HashMap<u64, &LogCall>) -> Vec<String> {
    let wrong = told
        .events
        .iter()
        .filter(|event| !puts.get(event).is_some_and(|put| put.may_count() && put.invoked < call.returned));
    wrong.map(|event| format!("{event} was told at {}, and nobody had put it", call.returned)).collect()
}

/// A tail: what it has told, and how far what was put has been held against it.
#[derive(Default)]
struct Tail {
    told: HashSet<u64>,
    checked: usize,
    had_gaps: bool,
}

impl Tail {
    fn look(&mut self, call: &LogCall, told: &LogTold, done: &[(Moment, u64)], is_set_back: bool) -> Vec<String> {
        let mut bad = Vec::new();
        self.had_gaps |= told.gaps;
        for event in &told.events {
            // "a tail may tell an event twice whose put was in doubt when its part was lost; the gap is told by then"
            if !self.told.insert(*event) && !self.had_gaps && !is_set_back {
                bad.push(format!("the tail of client {} tells {event} twice", call.client as i64));
            }
        }
        if told.is_behind {
            return bad;
        }
        while let Some((at, event)) = done.get(self.checked).filter(|(at, _)| *at < call.invoked) {
            if !self.told.contains(event) && !self.had_gaps && !is_set_back {
                let client = call.client as i64;
                bad.push(format!("the tail of client {client} does not tell {event}, put at {at}, nor a gap"));
            }
            self.checked += 1;
        }
        bad
    }

    /// What a fetch before this look told, on a store that nothing happened to since, and this tail never did.
    fn skipped(&self, call: &LogCall, told: &LogTold, fetch: &LogCall) -> Vec<String> {
        if told.is_behind || self.had_gaps {
            return Vec::new();
        }
        let there = fetch.ok().into_iter().flat_map(|fetched| &fetched.events);
        let skipped = there.filter(|event| !self.told.contains(event));
        let client = call.client as i64;
        skipped
            .map(|event| format!("the tail of client {client} skipped {event}, which a fetch before tells"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn put(event: u64, invoked: u64) -> LogCall {
        let outcome = Outcome::Ok(LogTold::default());
        Call { client: 0, op: LogOp::PutAt(event, 3), invoked, returned: invoked + 1, outcome }
    }

    fn read(op: LogOp, invoked: u64, events: &[u64]) -> LogCall {
        let outcome = Outcome::Ok(LogTold { events: events.to_vec(), ..LogTold::default() });
        Call { client: 1, op, invoked, returned: invoked + 1, outcome }
    }

    #[test]
    fn what_is_missing_repeated_or_invented_is_found() {
        use LogOp::{Fetch, Tail};
        let good = [put(1, 0), read(Tail, 2, &[1]), put(2, 4), read(Fetch, 6, &[1, 2]), read(Tail, 8, &[2])];
        assert_eq!(check(&good, false, Moment::MAX), [""; 0]);
        for bad in [
            vec![put(1, 0), read(Fetch, 2, &[])],
            vec![put(1, 0), read(Fetch, 2, &[1, 1])],
            vec![read(Fetch, 2, &[1]), put(1, 5)],
            vec![put(1, 0), read(Tail, 2, &[])],
            vec![put(1, 0), read(Tail, 2, &[1]), read(Tail, 4, &[1])],
        ] {
            assert!(!check(&bad, false, Moment::MAX).is_empty(), "{bad:?}");
        }
        let windows = |window, events: &[u64]| check(&[put(1, 0), read(window, 2, events)], false, Moment::MAX).len();
        assert_eq!([windows(LogOp::Window(2, 3), &[1]), windows(LogOp::Window(4, 5), &[])], [0, 0]);
        assert_eq!(windows(LogOp::Window(4, 5), &[1]), 1, "it is not of it");
        assert_eq!([windows(LogOp::Window(2, 3), &[]), windows(LogOp::Window(3, 3), &[1, 1])], [1, 1]);
        let mut gap = read(Fetch, 2, &[]);
        gap.outcome = Outcome::Ok(LogTold { gaps: true, ..LogTold::default() });
        assert_eq!(check(&[put(1, 0), gap], false, Moment::MAX), [""; 0]);
    }
    #[test]
    fn a_tail_that_was_set_back_may_miss_what_is_out_of_reach_and_nothing_that_is_there_once_all_is_calm() {
        use LogOp::{Fetch, Tail};
        // Event 1 is out of reach when the tail looks first, and told by a fetch later.
        let early = [put(1, 0), put(2, 2), read(Tail, 4, &[2]), read(Fetch, 6, &[1, 2])];
        let then = |last: LogCall| check(&[&early[..], &[last]].concat(), true, 5);
        assert_eq!(check(&early, true, 5), [""; 0]);
        assert_eq!(then(read(Tail, 8, &[1])), [""; 0]);
        assert_eq!(then(read(Tail, 8, &[])).len(), 1, "event 1 is there, and the tail goes past it");
        assert_eq!(check(&[&early[..], &[read(Tail, 8, &[])]].concat(), true, 7), [""; 0], "it may be gone again");
        let with = |told: LogTold| {
            let outcome = Outcome::Ok(told);
            then(Call { client: 1, op: Tail, invoked: 8, returned: 9, outcome })
        };
        assert_eq!(with(LogTold { gaps: true, ..LogTold::default() }), [""; 0]);
        assert_eq!(with(LogTold { is_behind: true, ..LogTold::default() }), [""; 0]);
    }
}
