//! Counters: each read lies between what had been counted for certain and what may have been, and all reads go one way. Resets take away what
//! they tell, and nothing between two of them is lost.

use std::collections::BTreeSet;

use super::Checked;
use super::search::{Found, Model, search_within};
use crate::history::recorder::{Call, Moment};

/// What is asked of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterOp {
    /// Adds so much; told: anything.
    Add(i64),
    /// Told: the number.
    Read,
    /// Takes the number away; told: what was taken.
    Reset,
}

type CounterCall = Call<CounterOp, i128>;

/// What a counter promises.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Adds may be missing, and what was taken be back, since the store was set back; what was never added is wrong all the same.
    pub may_drop: bool,
    /// Two resets at once may take the same, and leave less than nothing, so that a further one adds.
    pub takes_twice: bool,
    /// An add that has not returned, or is unknown, may be in one read and not in the next: it stands on some of a slot's copies, and another of them was read.
    pub may_waver: bool,
    /// It is one number, read and written at one moment: where nothing is reset, an order of all calls explains what was told.
    pub is_one_number: bool,
}

/// What is wrong with a counter's history, in n log n. A read tells every add that had returned before it began, none that began after it
/// ended, and of those in between, and of unknown ones, any. Where nothing is taken away, a later read tells no less than an earlier one, unless adds [may waver](Rules::may_waver).
///
/// A reset reads what it takes, and takes it piece by piece: until it has ended, a read may find any part of it gone. So where numbers of both
/// signs are added and taken away, only the last read is held against all: what was added is what was taken and what is left. That is left out
/// where it is unknown what a reset took.
pub fn check(calls: &[CounterCall], rules: Rules) -> Checked {
    let is_up = calls.iter().all(|call| !matches!(call.op, CounterOp::Add(by) if by < 0));
    let resets = calls.iter().any(|call| call.op == CounterOp::Reset && call.may_count());
    let mut bad = Vec::new();
    // What a reset took that is unknown, is anything: reads are held against no least then.
    let is_open = calls.iter().any(|call| call.op == CounterOp::Reset && call.is_unknown());
    let mut left_out = u64::from(rules.may_drop || is_open || !is_up && resets);
    if is_up || !resets {
        let sums = Sums::of(calls, rules);
        bad.extend(bounds(calls, &sums, rules));
        if is_up && !rules.may_drop && !rules.may_waver {
            bad.extend(one_way(calls, &sums));
        }
    }
    if !rules.may_drop {
        let last = last_read(calls);
        left_out += u64::from(last == Last::LeftOut);
        bad.extend(last.into_bad());
    }
    if bad.is_empty() && rules.is_one_number && !resets && !rules.may_drop {
        let calls: Vec<&CounterCall> = calls.iter().collect();
        match search_within(STEPS_MAX, &OneNumber, 0, &calls) {
            Found::Order => {}
            Found::None => bad.push(unexplained(&calls)),
            Found::Undecided => left_out += 1,
        }
    }
    Checked { bad, left_out }
}

/// A counter that is one number.
struct OneNumber;

impl Model for OneNumber {
    type Op = CounterOp;
    type Told = i128;
    type State = i128;

    fn step(&self, number: &i128, op: &CounterOp, told: Option<&i128>) -> Option<i128> {
        match op {
            CounterOp::Add(by) => Some(number + i128::from(*by)),
            CounterOp::Read => told.is_none_or(|told| told == number).then_some(*number),
            // Not a call of one moment.
            CounterOp::Reset => None,
        }
    }
}

/// Steps of a search for an order. Of many adds that are unknown any choice may be tried: beyond, the bounds must do.
const STEPS_MAX: usize = 20_000;

/// What a search for linearizability tells, which is stricter than all bounds, since it holds reads against each other.
fn unexplained(calls: &[&CounterCall]) -> String {
    format!("no order of its {} adds and reads explains what was told: {}", calls.len(), shown(calls))
}

/// What was read, in short, for a message.
fn shown(calls: &[&CounterCall]) -> String {
    let reads = calls.iter().filter(|call| call.op == CounterOp::Read);
    let reads = reads.filter_map(|call| Some(format!("{} at {}..{}", call.ok()?, call.invoked, call.returned)));
    reads.collect::<Vec<_>>().join(", ")
}

/// A sum by moment: what had happened before one.
struct Sum(Vec<(Moment, i128)>);

impl Sum {
    fn new(mut at: Vec<(Moment, i128)>) -> Sum {
        at.sort_unstable();
        let mut sum = 0;
        for entry in &mut at {
            sum += entry.1;
            entry.1 = sum;
        }
        Sum(at)
    }

    /// The sum of all that lies before a moment.
    fn before(&self, moment: Moment) -> i128 {
        let count = self.0.partition_point(|(at, _)| *at < moment);
        if count == 0 { 0 } else { self.0[count - 1].1 }
    }
}

/// More than any counter holds: what a reset may have taken of which it is not known.
const ANYTHING: i128 = 1 << 100;

/// What goes up and what goes down: by when it was told done, and by when it began.
struct Sums {
    up_sure: Sum,
    up_possible: Sum,
    down_sure: Sum,
    down_possible: Sum,
}

impl Sums {
    fn of(calls: &[CounterCall], rules: Rules) -> Sums {
        let (mut up_sure, mut up_possible, mut down_sure, mut down_possible) = (vec![], vec![], vec![], vec![]);
        for call in calls.iter().filter(|call| call.may_count()) {
            let by = match (call.op, call.ok()) {
                (CounterOp::Add(by), _) => i128::from(by),
                (CounterOp::Reset, Some(taken)) => -taken,
                (CounterOp::Reset, None) => {
                    if rules.takes_twice {
                        up_possible.push((call.invoked, ANYTHING));
                    }
                    -ANYTHING
                }
                (CounterOp::Read, _) => continue,
            };
            let (sure, possible) =
                if by > 0 { (&mut up_sure, &mut up_possible) } else { (&mut down_sure, &mut down_possible) };
            possible.push((call.invoked, by));
            if call.ok().is_some() {
                sure.push((call.returned, by));
            }
        }
        Sums {
            up_sure: Sum::new(up_sure),
            up_possible: Sum::new(up_possible),
            down_sure: Sum::new(down_sure),
            down_possible: Sum::new(down_possible),
        }
    }

    /// What had gone down, as a call saw it: at the most, and at the least. What a reset itself takes, it has not seen gone.
    fn down(&self, call: &CounterCall, told: i128) -> (i128, i128) {
        let own = if call.op == CounterOp::Reset { told.max(0) } else { 0 };
        (self.down_possible.before(call.returned) + own, self.down_sure.before(call.invoked))
    }
}

/// What was read, by reads and by resets.
fn told(calls: &[CounterCall]) -> impl Iterator<Item = (&CounterCall, i128)> {
    let reads = calls.iter().filter(|call| matches!(call.op, CounterOp::Read | CounterOp::Reset));
    reads.filter_map(|call| Some((call, *call.ok()?)))
}

fn bounds(calls: &[CounterCall], sums: &Sums, rules: Rules) -> Vec<String> {
    let mut bad = Vec::new();
    for (call, told) in told(calls) {
        let (down_most, down_least) = sums.down(call, told);
        let mut least = sums.up_sure.before(call.invoked) + down_most;
        let mut most = sums.up_possible.before(call.returned) + down_least;
        if rules.may_drop {
            least = down_most;
            most = sums.up_possible.before(call.returned);
        }
        if !(least..=most).contains(&told) {
            bad.push(format!(
                "client {} was told {told} ({:?}); it can be {least} to {most} (moment {})",
                call.client as i64, call.op, call.invoked
            ));
        }
    }
    bad
}

/// What a read tells and what had been taken away by then only grows: a read that began after another had ended tells no less of it.
fn one_way(calls: &[CounterCall], sums: &Sums) -> Vec<String> {
    let mut ended: Vec<(Moment, i128)> =
        told(calls).map(|(call, told)| (call.returned, told - sums.down(call, told).1)).collect();
    ended.sort_unstable();
    let mut most = i128::MIN;
    for entry in &mut ended {
        most = most.max(entry.1);
        entry.1 = most;
    }
    let mut bad = Vec::new();
    for (call, told) in told(calls) {
        let before = ended.partition_point(|(at, _)| *at < call.invoked);
        let now = told - sums.down(call, told).0;
        if before > 0 && ended[before - 1].1 > now {
            bad.push(format!("{} had been counted, and then {now} ({told} were told)", ended[before - 1].1));
        }
    }
    bad
}

/// How many sums of unknown adds are told apart; beyond, the bounds must do.
const SUMS_MAX: usize = 1 << 16;

/// A read after everything has ended tells all that was told done, and some of what is unknown, each once, less what was taken: nothing else
/// adds up.
fn last_read(calls: &[CounterCall]) -> Last {
    let read = calls.iter().rfind(|call| call.op == CounterOp::Read && call.ok().is_some());
    let Some((last, told)) = read.and_then(|call| Some((call, *call.ok()?))) else { return Last::LeftOut };
    let is_quiet = |call: &CounterCall| call.returned < last.invoked || call.is_unknown();
    if !calls.iter().all(|call| call.op == CounterOp::Read || is_quiet(call)) {
        return Last::LeftOut;
    }
    let mut sure = 0;
    let mut possible = BTreeSet::from([0i128]);
    for call in calls {
        match (call.op, call.ok()) {
            (CounterOp::Add(by), Some(_)) => sure += i128::from(by),
            (CounterOp::Add(by), None) if call.is_unknown() => {
                let more: Vec<i128> = possible.iter().map(|sum| sum + i128::from(by)).collect();
                possible.extend(more);
                if possible.len() > SUMS_MAX {
                    return Last::LeftOut;
                }
            }
            (CounterOp::Reset, Some(taken)) => sure -= taken,
            // What it took, nobody knows.
            (CounterOp::Reset, None) if call.is_unknown() => return Last::LeftOut,
            _ => {}
        }
    }
    if possible.contains(&(told - sure)) {
        return Last::AddsUp;
    }
    Last::Bad(format!(
        "at the end it is {told}; {sure} are certain, and no choice of the unknown adds makes up the rest"
    ))
}

/// What the last read came to.
#[derive(PartialEq, Eq)]
enum Last {
    AddsUp,
    Bad(String),
    LeftOut,
}

impl Last {
    fn into_bad(self) -> Option<String> {
        match self {
            Last::Bad(bad) => Some(bad),
            Last::AddsUp | Last::LeftOut => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn add(by: i64, invoked: u64, returned: u64) -> Call<CounterOp, i128> {
        Call { client: 0, op: CounterOp::Add(by), invoked, returned, outcome: Outcome::Ok(0) }
    }

    fn unknown(by: i64, invoked: u64) -> Call<CounterOp, i128> {
        Call { outcome: Outcome::Unknown, ..add(by, invoked, Moment::MAX) }
    }

    fn read(told: i128, invoked: u64, returned: u64) -> Call<CounterOp, i128> {
        Call { client: 1, op: CounterOp::Read, invoked, returned, outcome: Outcome::Ok(told) }
    }

    fn reset(taken: i128, invoked: u64, returned: u64) -> Call<CounterOp, i128> {
        Call { op: CounterOp::Reset, ..read(taken, invoked, returned) }
    }

    fn found(calls: &[Call<CounterOp, i128>]) -> Vec<String> {
        check(calls, Rules::default()).bad
    }

    fn dropping(calls: &[Call<CounterOp, i128>]) -> Vec<String> {
        check(calls, Rules { may_drop: true, ..Rules::default() }).bad
    }

    #[test]
    fn good_histories_pass() {
        assert_eq!(found(&[add(3, 0, 5), read(0, 1, 2), read(3, 3, 4), read(3, 6, 7)]), [""; 0]);
        assert_eq!(found(&[unknown(5, 0), read(0, 1, 2), unknown(2, 3), read(5, 4, 5), read(7, 6, 7)]), [""; 0]);
        assert_eq!(found(&[add(3, 0, 1), unknown(-2, 2), read(1, 3, 4)]), [""; 0]);
        assert_eq!(dropping(&[add(3, 0, 1), read(0, 2, 3)]), [""; 0]);
    }

    #[test]
    fn what_is_left_out_is_told() {
        let left_out = |calls: &[_], rules| check(calls, rules).left_out > 0;
        let open = Call { outcome: Outcome::Unknown, ..reset(0, 2, Moment::MAX) };
        assert!(!left_out(&[add(3, 0, 1), reset(3, 2, 3), unknown(5, 4), read(5, 5, 6)], Rules::default()));
        assert!(!left_out(&[add(3, 0, 1), add(-2, 2, 3), read(1, 4, 5)], Rules::default()));
        assert!(left_out(&[add(3, 0, 1), open, read(0, 4, 5)], Rules::default()), "what it took is unknown");
        assert!(left_out(&[add(3, 0, 1), add(-2, 2, 3), reset(1, 4, 5), read(0, 6, 7)], Rules::default()));
        assert!(left_out(&[add(3, 0, 1)], Rules::default()), "nothing was read at the end");
        assert!(left_out(&[read(0, 0, 1)], Rules { may_drop: true, ..Rules::default() }));
        let many: Vec<_> = (0..20).map(|n| unknown(1 << n, n as u64)).chain([read(6, 50, 51)]).collect();
        assert!(left_out(&many, Rules::default()), "more sums than are told apart");
    }

    #[test]
    fn what_is_lost_doubled_or_taken_back_is_found() {
        assert!(!found(&[add(3, 0, 1), read(0, 2, 3)]).is_empty());
        assert!(!found(&[add(3, 0, 1), read(6, 2, 3)]).is_empty());
        assert!(!found(&[add(3, 0, 9), read(3, 1, 2), read(0, 3, 4)]).is_empty());
        assert!(!found(&[unknown(3, 0), unknown(4, 1), read(5, 2, 3)]).is_empty());
        assert!(!dropping(&[add(3, 0, 1), read(4, 2, 3)]).is_empty());
        let refused = Call { outcome: Outcome::NotApplied, ..add(3, 0, 1) };
        assert!(!found(&[refused, read(3, 2, 3)]).is_empty());
    }

    #[test]
    fn resets_take_what_they_tell_and_no_add_is_lost_to_them() {
        // A reset takes piece by piece, and an add beside it is in what it tells, or remains.
        assert_eq!(found(&[add(5, 0, 1), reset(5, 2, 7), read(3, 3, 4), read(0, 8, 9)]), [""; 0]);
        assert_eq!(found(&[add(5, 0, 1), add(2, 2, 6), reset(5, 3, 5), read(2, 7, 8)]), [""; 0]);
        assert_eq!(found(&[add(5, 0, 1), add(2, 2, 6), reset(7, 3, 5), read(0, 7, 8)]), [""; 0]);
        // Two share it.
        assert_eq!(found(&[add(5, 0, 1), reset(2, 2, 6), reset(3, 3, 5), read(0, 7, 8)]), [""; 0]);
        let open = Call { outcome: Outcome::Unknown, ..reset(0, 2, Moment::MAX) };
        assert_eq!(found(&[add(5, 0, 1), open, read(1, 3, 4), read(0, 5, 6)]), [""; 0]);
        for bad in [
            vec![add(5, 0, 1), reset(4, 2, 3), read(0, 4, 5)],
            vec![add(5, 0, 1), reset(5, 2, 3), read(5, 4, 5)],
            vec![add(5, 0, 1), add(2, 2, 6), reset(5, 3, 5), read(0, 7, 8)],
            vec![add(5, 0, 1), reset(5, 2, 6), reset(5, 3, 5), read(0, 7, 8)],
            // What one had read is gone, and nobody had begun to take it.
            vec![add(5, 0, 9), read(5, 1, 2), read(0, 3, 4), reset(5, 5, 6), read(0, 10, 11)],
            vec![add(5, 0, 9), read(5, 1, 2), reset(3, 3, 4), read(2, 10, 11), read(1, 12, 13), read(2, 14, 15)],
            // Of both signs: only the end is held against all.
            vec![add(5, 0, 1), add(-2, 2, 3), reset(4, 4, 5), read(0, 6, 7)],
        ] {
            assert!(!found(&bad).is_empty(), "{bad:?}");
        }
        let below = [add(5, 0, 1), reset(5, 2, 6), reset(5, 3, 5), read(-5, 7, 8)];
        assert_eq!(found(&below), [""; 0], "on a fast counter both may take the same");
    }

    /// As nemesis found it at seed 639500593: the server with the copy that had an add stood still when the next read came.
    #[test]
    fn adds_on_some_copies_may_waver_and_what_was_told_done_may_not() {
        let wavers = |calls: &[_]| check(calls, Rules { may_waver: true, ..Rules::default() }).bad.len();
        let under_way = [add(5, 0, 1), add(3, 2, 9), read(8, 3, 4), read(5, 5, 6), read(8, 10, 11)];
        let open = [add(5, 0, 1), unknown(3, 2), read(8, 3, 4), read(5, 5, 6), read(8, 10, 11)];
        for calls in [&under_way, &open] {
            assert_eq!((wavers(calls), found(calls).len()), (0, 1));
        }
        assert_eq!(wavers(&[add(5, 0, 1), add(3, 2, 4), read(8, 5, 6), read(5, 7, 8)]), 2, "it had been told done");
        assert_ne!(wavers(&[add(5, 0, 1), unknown(3, 2), read(9, 3, 4), read(5, 5, 6)]), 0, "it counts once");
    }

    #[test]
    fn of_one_number_reads_are_held_against_each_other() {
        let one =
            |calls: &[Call<CounterOp, i128>]| check(calls, Rules { is_one_number: true, ..Rules::default() }).bad.len();
        // Each read lies within all bounds, and they go one way; but the first has seen the one add without the other, and the second the other way around.
        let torn = [add(2, 0, 100), add(3, 1, 100), read(2, 10, 11), read(3, 20, 21), read(5, 200, 201)];
        assert_eq!((found(&torn).len(), one(&torn)), (0, 1));
        let down = [add(2, 0, 100), add(-2, 1, 100), read(2, 10, 11), read(0, 20, 21), read(0, 200, 201)];
        assert_eq!(one(&down), 0);
        let late = [unknown(4, 0), add(1, 2, 3), read(1, 5, 6), read(5, 9, 10), add(1, 11, 12), read(6, 13, 14)];
        assert_eq!(one(&late), 0);
        let back = [unknown(4, 0), add(-4, 2, 30), read(4, 5, 6), read(0, 9, 10), read(4, 13, 14)];
        assert_eq!((found(&back).len(), one(&back)), (0, 1), "the add that is unknown counts once");
        // More choices than are tried: the bounds have said all.
        let many: Vec<_> =
            (0..40).map(|n| unknown(1 << n, n as u64)).chain([read(6, 50, 51), read(7, 60, 61)]).collect();
        assert_eq!((found(&many).len(), one(&many)), (0, 0));
    }
}
