//! Event logs: every fetch tells all of its time once, every tail tells each event once, and what is missing is told as a gap.

use std::collections::{HashMap, HashSet};

use super::Checked;
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
    /// The gaps.
    pub gaps: Vec<Missed>,
    /// Whether a tail has more to tell at once.
    pub is_behind: bool,
}

/// A gap, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The first time of which events may be missing.
    pub first_ms: u64,
    /// The last.
    pub last_ms: u64,
    /// The part of that time. Nobody knows which part an event was put into: so a gap may be of any event of its time.
    pub part: u16,
}

impl Missed {
    fn is_of(&self, time: u64) -> bool {
        (self.first_ms..=self.last_ms).contains(&time)
    }
}

/// What the checker may excuse beside what was told as a gap.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// The store may have been set back: an event may be gone, or out of reach for a while: its part stood there again, and the list of parts did not name it until somebody put
    /// into it.
    pub set_back: bool,
    /// By this moment nothing had been lost or set back.
    pub whole_until: Moment,
    /// Requests may have been delivered late.
    pub late: bool,
    /// Nothing happens to the store from here on: what a fetch tells then stays there, and a tail that looks after it may not have skipped any of it, whatever was before.
    pub calm_from: Moment,
}

/// Nothing.
impl Default for Allowed {
    fn default() -> Allowed {
        Allowed { set_back: false, whole_until: Moment::MAX, late: false, calm_from: Moment::MAX }
    }
}

impl Allowed {
    fn may_be_set_back_in(&self, call: &LogCall) -> bool {
        self.set_back && call.returned > self.whole_until
    }
}

type LogCall = Call<LogOp, LogTold>;

/// The puts of a history.
#[derive(Default)]
struct Puts<'a> {
    /// By event: with its time.
    all: HashMap<u64, (u64, &'a LogCall)>,
    /// By the moment at which they ended, those that were acknowledged.
    done: Vec<(Moment, u64)>,
}

impl<'a> Puts<'a> {
    fn new(calls: &'a [LogCall]) -> Puts<'a> {
        let mut puts = Puts::default();
        for call in calls {
            let LogOp::PutAt(event, time) = call.op else { continue };
            puts.all.insert(event, (time, call));
            if call.ok().is_some() {
                puts.done.push((call.returned, event));
            }
        }
        puts.done.sort_unstable();
        puts
    }

    /// Whether an event is of a time.
    fn is_of(&self, event: u64, first: u64, last: u64) -> bool {
        self.all.get(&event).is_some_and(|(time, _)| (first..=last).contains(time))
    }

    /// Whether somebody may have made a part of a gap's time again, after that gap was told, and not registered it before an event was put: by a put that began before that one ended, and
    /// ended after the gap was told, or never did.
    fn may_hide(&self, gap: &Missed, told: Moment, put: &LogCall) -> bool {
        let others = self.all.values().filter(|(of, other)| gap.is_of(*of) && other.invoked != put.invoked);
        others
            .into_iter()
            .any(|(_, other)| other.invoked < put.returned && (other.ok().is_none() || other.returned > told))
    }
}

/// What is wrong with a log's history, in n log n. A gap stands for events of its time.
pub fn check(calls: &[LogCall], allowed: Allowed) -> Checked {
    let puts = Puts::new(calls);
    let mut found = Checked::default();
    let mut tails: HashMap<usize, Tail> = HashMap::new();
    let mut there: Option<&LogCall> = None;
    for call in calls.iter().filter(|call| !matches!(call.op, LogOp::PutAt(..))) {
        let Some(told) = call.ok() else { continue };
        found.bad.extend(invented(call, told, &puts));
        if let LogOp::Window(first, last) = call.op {
            found.bad.extend(strays(told, &puts, first, last));
            fetched(call, told, &puts, allowed, |event| puts.is_of(event, first, last), &mut found);
        } else if call.op == LogOp::Fetch {
            if call.invoked >= allowed.calm_from {
                there = Some(call);
            }
            fetched(call, told, &puts, allowed, |_| true, &mut found);
        } else {
            let tail = tails.entry(call.client).or_default();
            tail.look(call, told, &puts, allowed, &mut found);
            if let Some(fetch) = there.filter(|fetch| fetch.returned < call.invoked) {
                tail.skipped(call, told, fetch, &puts, &mut found);
            }
        }
    }
    found
}

/// What a window tells that is not of it.
fn strays(told: &LogTold, puts: &Puts<'_>, first: u64, last: u64) -> Vec<String> {
    let events = told.events.iter().filter(|event| !puts.is_of(**event, first, last));
    let events = events.map(|event| format!("{event} was told in the window {first} to {last}, and is not of it"));
    let gaps = told.gaps.iter().filter(|gap| gap.last_ms < first || gap.first_ms > last);
    events
        .chain(gaps.map(|gap| format!("{gap:?} was told in the window {first} to {last}, and is not of it")))
        .collect()
}

/// What a fetch tells twice, or not at all though it was put before and is of what was asked for: what is missing is of the time of a gap that it tells.
fn fetched(
    call: &LogCall,
    told: &LogTold,
    puts: &Puts<'_>,
    allowed: Allowed,
    is_of_it: impl Fn(u64) -> bool,
    found: &mut Checked,
) {
    let mut seen = HashSet::new();
    let twice = told.events.iter().filter(|event| !seen.insert(**event));
    found.bad.extend(twice.map(|event| format!("a fetch tells {event} twice")));
    let before = puts.done.iter().map(|(at, event)| (*at, *event)).take_while(|(at, _)| *at < call.invoked);
    for (_, event) in before.filter(|(_, event)| is_of_it(*event) && !seen.contains(event)) {
        let time = puts.all[&event].0;
        let is_gap = told.gaps.iter().any(|gap| gap.is_of(time));
        let what = format!("a fetch at {} ({:?}) does not tell {event} of {time}, nor a gap", call.invoked, call.op);
        found.add(what, is_gap || allowed.may_be_set_back_in(call));
    }
}

/// Events that nobody had put, or had been told were not put.
fn invented(call: &LogCall, told: &LogTold, puts: &Puts<'_>) -> Vec<String> {
    let is_put =
        |event: &u64| puts.all.get(event).is_some_and(|(_, put)| put.may_count() && put.invoked < call.returned);
    let wrong = told.events.iter().filter(|event| !is_put(event));
    wrong.map(|event| format!("{event} was told at {}, and nobody had put it", call.returned)).collect()
}

/// A tail: what it has told, and how far what was put has been held against it.
#[derive(Default)]
struct Tail {
    told: HashSet<u64>,
    checked: usize,
    /// With the moment at which it had told them.
    gaps: Vec<(Missed, Moment)>,
}

impl Tail {
    fn look(&mut self, call: &LogCall, told: &LogTold, puts: &Puts<'_>, allowed: Allowed, found: &mut Checked) {
        self.gaps.extend(told.gaps.iter().map(|gap| (*gap, call.returned)));
        let client = call.client as i64;
        let is_set_back = allowed.may_be_set_back_in(call);
        for event in &told.events {
            if !self.told.insert(*event) {
                let what = format!("the tail of client {client} tells {event} twice");
                found.add(what, is_set_back || self.may_tell_twice(*event, puts, allowed));
            }
        }
        if told.is_behind {
            return;
        }
        while let Some((at, event)) = puts.done.get(self.checked).filter(|(at, _)| *at < call.invoked) {
            if !self.told.contains(event) {
                let (time, put) = puts.all[event];
                let what =
                    format!("the tail of client {client} does not tell {event} of {time}, put at {at}, nor a gap");
                found.add(what, is_set_back || self.may_miss(time, put, puts));
            }
            self.checked += 1;
        }
    }

    /// "a tail may tell an event twice whose put was in doubt when its part was lost; the gap is told by then". Of one that was done before anything was lost only a request can be
    /// told twice that the network held back until its part was made again.
    fn may_tell_twice(&self, event: u64, puts: &Puts<'_>, allowed: Allowed) -> bool {
        let Some((time, put)) = puts.all.get(&event) else { return false };
        (put.returned > allowed.whole_until || allowed.late) && self.gaps.iter().any(|(gap, _)| gap.is_of(*time))
    }

    /// A gap stands for what was put before it was told. It stands for later events, too, if a putter made the part again by then and had not registered it, or crashed before: others who
    /// do not know put there for a minute, and "a tail that has told it tells no second one" (`histories`, seed 1414009493).
    fn may_miss(&self, time: u64, put: &LogCall, puts: &Puts<'_>) -> bool {
        self.gaps
            .iter()
            .filter(|(gap, _)| gap.is_of(time))
            .any(|(gap, told)| put.invoked < *told || puts.may_hide(gap, *told, put))
    }

    /// What a fetch before this look told, on a store that was not set back since, and this tail never did. A gap stands for it that the tail told after the fetch: a store that evicts
    /// goes on with that (`histories` steals in the last reads, too: seed 1413200397); or one told before, behind which another putter hid it.
    fn skipped(&self, call: &LogCall, told: &LogTold, fetch: &LogCall, puts: &Puts<'_>, found: &mut Checked) {
        if told.is_behind {
            return;
        }
        let there = fetch.ok().into_iter().flat_map(|fetched| &fetched.events);
        for event in there.filter(|event| !self.told.contains(event)) {
            let is_excused = puts.all.get(event).is_some_and(|(time, put)| {
                let stands = |(gap, told): &(Missed, Moment)| *told > fetch.returned || puts.may_hide(gap, *told, put);
                self.gaps.iter().filter(|(gap, _)| gap.is_of(*time)).any(stands)
            });
            let client = call.client as i64;
            let what = format!("the tail of client {client} skipped {event}, which a fetch before tells");
            found.add(what, is_excused);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn put(event: u64, invoked: u64) -> LogCall {
        put_of(event, 3, invoked)
    }

    fn put_of(event: u64, time: u64, invoked: u64) -> LogCall {
        let outcome = Outcome::Ok(LogTold::default());
        Call { client: 0, op: LogOp::PutAt(event, time), invoked, returned: invoked + 1, outcome }
    }

    fn read(op: LogOp, invoked: u64, events: &[u64]) -> LogCall {
        read_gaps(op, invoked, events, &[])
    }

    /// With gaps of these times.
    fn read_gaps(op: LogOp, invoked: u64, events: &[u64], gaps: &[(u64, u64)]) -> LogCall {
        let gaps = gaps.iter().map(|&(first_ms, last_ms)| Missed { first_ms, last_ms, part: 0 }).collect();
        let outcome = Outcome::Ok(LogTold { events: events.to_vec(), gaps, is_behind: false });
        Call { client: 1, op, invoked, returned: invoked + 1, outcome }
    }

    /// How much is wrong, and how much is excused.
    fn found(calls: &[LogCall], allowed: Allowed) -> [u64; 2] {
        let Checked { bad, left_out } = check(calls, allowed);
        [bad.len() as u64, left_out]
    }

    fn plain(calls: &[LogCall]) -> [u64; 2] {
        found(calls, Allowed::default())
    }

    #[test]
    fn what_is_missing_repeated_or_invented_is_found() {
        use LogOp::{Fetch, Tail};
        let good = [put(1, 0), read(Tail, 2, &[1]), put(2, 4), read(Fetch, 6, &[1, 2]), read(Tail, 8, &[2])];
        assert_eq!(plain(&good), [0, 0]);
        for bad in [
            vec![put(1, 0), read(Fetch, 2, &[])],
            vec![put(1, 0), read(Fetch, 2, &[1, 1])],
            vec![read(Fetch, 2, &[1]), put(1, 5)],
            vec![put(1, 0), read(Tail, 2, &[])],
            vec![put(1, 0), read(Tail, 2, &[1]), read(Tail, 4, &[1])],
        ] {
            assert_eq!(plain(&bad), [1, 0], "{bad:?}");
        }
        let windows = |window, events: &[u64]| plain(&[put(1, 0), read(window, 2, events)])[0];
        assert_eq!([windows(LogOp::Window(2, 3), &[1]), windows(LogOp::Window(4, 5), &[])], [0, 0]);
        assert_eq!(windows(LogOp::Window(4, 5), &[1]), 1, "it is not of it");
        assert_eq!([windows(LogOp::Window(2, 3), &[]), windows(LogOp::Window(3, 3), &[1, 1])], [1, 1]);
    }

    #[test]
    fn a_gap_excuses_what_is_missing_of_its_time_and_nothing_else() {
        use LogOp::{Fetch, Tail, Window};
        for op in [Fetch, Window(0, 30), Tail] {
            let missing = |gaps| plain(&[put_of(1, 3, 0), read_gaps(op, 2, &[], gaps)]);
            assert_eq!([missing(&[(0, 9)]), missing(&[(3, 3), (10, 19)])], [[0, 1]; 2], "{op:?}");
            assert_eq!([missing(&[(10, 19)]), missing(&[(0, 2), (4, 9)])], [[1, 0]; 2], "{op:?}");
        }
        // A second part goes, and is not told.
        let two = [put_of(1, 3, 0), put_of(2, 12, 2), read_gaps(Fetch, 4, &[], &[(0, 9)])];
        assert_eq!(plain(&two), [1, 1]);
        assert_eq!(plain(&[read_gaps(Window(10, 12), 2, &[], &[(0, 9)])]), [1, 0], "a gap of another time");
    }

    #[test]
    fn a_tails_gap_holds_for_what_was_put_before_it_and_for_what_another_putter_hides() {
        use LogOp::Tail;
        let gap = [read_gaps(Tail, 4, &[], &[(0, 9)])];
        let then = |puts: &[LogCall]| {
            let calls = [&gap[..], puts, &[read(Tail, 20, &[])]].concat();
            plain(&calls)
        };
        assert_eq!(then(&[put_of(1, 3, 6)]), [1, 0], "the part is there again, and says what is in it");
        assert_eq!(then(&[put_of(1, 3, 2)]), [0, 1]);
        assert_eq!(then(&[put_of(1, 12, 2)]), [1, 0], "of another time");
        let crashed =
            |time, invoked| Call { outcome: Outcome::Unknown, returned: Moment::MAX, ..put_of(2, time, invoked) };
        assert_eq!(then(&[crashed(4, 3), put_of(1, 3, 6)]), [0, 1]);
        assert_eq!(then(&[crashed(12, 3), put_of(1, 3, 6)]), [1, 0], "of another time");
        assert_eq!(then(&[put_of(1, 3, 6), crashed(4, 9)]), [1, 0], "too late");
        // It has made the part again and not come to registering it, or was done by then.
        let slow = |returned| Call { returned, ..put_of(2, 4, 3) };
        assert_eq!([then(&[slow(9), put_of(1, 3, 6)]), then(&[slow(4), put_of(1, 3, 6)])], [[0, 2], [1, 1]]);
    }

    #[test]
    fn a_tail_tells_twice_only_what_was_in_doubt_when_its_part_was_lost() {
        use LogOp::Tail;
        let twice = |time, allowed| {
            let told = [read(Tail, 2, &[1]), read_gaps(Tail, 4, &[], &[(0, 9)]), read(Tail, 6, &[1])];
            found(&[&[put_of(1, time, 0)], &told[..]].concat(), allowed)
        };
        let whole_until = |whole_until| Allowed { whole_until, ..Allowed::default() };
        assert_eq!([twice(3, whole_until(0)), twice(12, whole_until(0))], [[0, 1], [1, 0]]);
        assert_eq!(twice(3, whole_until(1)), [1, 0], "nothing was lost by the end of its put");
        assert_eq!(twice(3, Allowed { late: true, ..whole_until(1) }), [0, 1]);
        let early = [put(1, 0), read(Tail, 2, &[1]), read(Tail, 4, &[1]), read_gaps(Tail, 6, &[], &[(0, 9)])];
        assert_eq!(found(&early, whole_until(0)), [1, 0], "the gap is told by then");
    }

    #[test]
    fn a_tail_that_was_set_back_may_miss_what_is_out_of_reach_and_nothing_that_is_there_once_all_is_calm() {
        use LogOp::{Fetch, Tail};
        let back = |calm_from| Allowed { set_back: true, whole_until: 2, calm_from, ..Allowed::default() };
        // Event 1 is out of reach when the tail looks first, and told by a fetch later.
        let early = [put(1, 0), put(2, 2), read(Tail, 4, &[2]), read(Fetch, 6, &[1, 2])];
        let then = |last: LogCall| found(&[&early[..], &[last]].concat(), back(5));
        assert_eq!(found(&early, back(5)), [0, 1]);
        assert_eq!(found(&early, Allowed { whole_until: 5, ..back(5) }), [1, 0], "it was set back later");
        assert_eq!(then(read(Tail, 8, &[1])), [0, 1]);
        assert_eq!(then(read(Tail, 8, &[])), [1, 1], "event 1 is there, and the tail goes past it");
        assert_eq!(then(read_gaps(Tail, 8, &[], &[(0, 9)])), [0, 2], "it went since");
        assert_eq!(then(read_gaps(Tail, 8, &[], &[(10, 19)])), [1, 1], "not of its time");
        let before = [put(1, 0), read_gaps(Tail, 2, &[], &[(0, 9)]), read(Fetch, 6, &[1]), read(Tail, 8, &[])];
        assert_eq!(found(&before, back(5))[0], 1, "no gap stands for what is there after it was told");
        let gone_again = [&early[..], &[read(Tail, 8, &[])]].concat();
        assert_eq!(found(&gone_again, back(7)), [0, 1], "it may be gone again");
        let mut behind = read(Tail, 8, &[]);
        behind.outcome = Outcome::Ok(LogTold { is_behind: true, ..LogTold::default() });
        assert_eq!(then(behind), [0, 1]);
    }
}
