//! Counters: each read lies between what had been counted for certain and what may have been, and all reads go one way.

use std::collections::BTreeSet;

use crate::history::recorder::{Call, Moment};

/// What is asked of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterOp {
    /// Adds so much; told: anything.
    Add(i64),
    /// Told: the number.
    Read,
}

/// What is wrong with a counter's history, in n log n. A read tells every add that had returned before it began, none that began after it
/// ended, and of those in between, and of unknown ones, any. Where nothing is taken away, a later read tells no less than an earlier one.
///
/// `may_drop`: adds may be missing, since a loss was told or caused; what was never added is wrong all the same.
pub fn check(calls: &[Call<CounterOp, i128>], may_drop: bool) -> Vec<String> {
    let mut bad = bounds(calls, may_drop);
    if !may_drop && calls.iter().all(|call| !matches!(call.op, CounterOp::Add(by) if by < 0)) {
        bad.extend(one_way(calls));
    }
    if !may_drop {
        bad.extend(last_read(calls));
    }
    bad
}

/// Sums of adds by moment: what had happened before one.
struct Sums(Vec<(Moment, i128)>);

impl Sums {
    fn new(mut at: Vec<(Moment, i128)>) -> Sums {
        at.sort_unstable();
        let mut sum = 0;
        for entry in &mut at {
            sum += entry.1;
            entry.1 = sum;
        }
        Sums(at)
    }

    /// The sum of all that lies before a moment.
    fn before(&self, moment: Moment) -> i128 {
        let count = self.0.partition_point(|(at, _)| *at < moment);
        if count == 0 { 0 } else { self.0[count - 1].1 }
    }
}

/// Adds that may count, of one sign: the sums by when they were told done, and by when they began.
fn sums(calls: &[Call<CounterOp, i128>], is_up: bool) -> (Sums, Sums) {
    let mut sure = Vec::new();
    let mut possible = Vec::new();
    for call in calls.iter().filter(|call| call.may_count()) {
        if let CounterOp::Add(by) = call.op
            && (by > 0) == is_up
        {
            possible.push((call.invoked, i128::from(by)));
            if call.ok().is_some() {
                sure.push((call.returned, i128::from(by)));
            }
        }
    }
    (Sums::new(sure), Sums::new(possible))
}

fn bounds(calls: &[Call<CounterOp, i128>], may_drop: bool) -> Vec<String> {
    let (up_sure, up_possible) = sums(calls, true);
    let (down_sure, down_possible) = sums(calls, false);
    let mut bad = Vec::new();
    for call in calls.iter().filter(|call| call.op == CounterOp::Read) {
        let Some(&told) = call.ok() else { continue };
        let mut least = up_sure.before(call.invoked) + down_possible.before(call.returned);
        let mut most = up_possible.before(call.returned) + down_sure.before(call.invoked);
        if may_drop {
            least = down_possible.before(call.returned);
            most = up_possible.before(call.returned);
        }
        if !(least..=most).contains(&told) {
            bad.push(format!(
                "client {} read {told}; it can be {least} to {most} (moment {})",
                call.client, call.invoked
            ));
        }
    }
    bad
}

/// A read that began after another had ended tells no less.
fn one_way(calls: &[Call<CounterOp, i128>]) -> Vec<String> {
    let reads = || calls.iter().filter(|call| call.op == CounterOp::Read).filter_map(|call| Some((call, *call.ok()?)));
    let mut ended: Vec<(Moment, i128)> = reads().map(|(call, told)| (call.returned, told)).collect();
    ended.sort_unstable();
    let mut most = i128::MIN;
    for entry in &mut ended {
        most = most.max(entry.1);
        entry.1 = most;
    }
    let mut bad = Vec::new();
    for (call, told) in reads() {
        let before = ended.partition_point(|(at, _)| *at < call.invoked);
        if before > 0 && ended[before - 1].1 > told {
            bad.push(format!("a read of {} was followed by one of {told}", ended[before - 1].1));
        }
    }
    bad
}

/// How many sums of unknown adds are told apart; beyond, the bounds must do.
const SUMS_MAX: usize = 1 << 16;

/// A read after everything has ended tells all that was told done, and some of what is unknown, each once: nothing else adds up.
fn last_read(calls: &[Call<CounterOp, i128>]) -> Option<String> {
    let last = calls.iter().rfind(|call| call.op == CounterOp::Read && call.ok().is_some())?;
    let is_quiet = |call: &Call<CounterOp, i128>| call.returned < last.invoked || call.is_unknown();
    if !calls.iter().all(|call| !matches!(call.op, CounterOp::Add(_)) || is_quiet(call)) {
        return None;
    }
    let mut sure = 0;
    let mut possible = BTreeSet::from([0i128]);
    for call in calls {
        let CounterOp::Add(by) = call.op else { continue };
        if call.ok().is_some() {
            sure += i128::from(by);
        } else if call.is_unknown() {
            let more: Vec<i128> = possible.iter().map(|sum| sum + i128::from(by)).collect();
            possible.extend(more);
            if possible.len() > SUMS_MAX {
                return None;
            }
        }
    }
    let told = *last.ok()?;
    (!possible.contains(&(told - sure))).then(|| {
        format!("at the end it is {told}; {sure} are certain, and no choice of the unknown adds makes up the rest")
    })
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

    #[test]
    fn good_histories_pass() {
        assert_eq!(check(&[add(3, 0, 5), read(0, 1, 2), read(3, 3, 4), read(3, 6, 7)], false), [""; 0]);
        assert_eq!(check(&[unknown(5, 0), read(0, 1, 2), unknown(2, 3), read(5, 4, 5), read(7, 6, 7)], false), [""; 0]);
        assert_eq!(check(&[add(3, 0, 1), unknown(-2, 2), read(1, 3, 4)], false), [""; 0]);
        assert_eq!(check(&[add(3, 0, 1), read(0, 2, 3)], true), [""; 0]);
    }

    #[test]
    fn what_is_lost_doubled_or_taken_back_is_found() {
        assert!(!check(&[add(3, 0, 1), read(0, 2, 3)], false).is_empty());
        assert!(!check(&[add(3, 0, 1), read(6, 2, 3)], false).is_empty());
        assert!(!check(&[add(3, 0, 9), read(3, 1, 2), read(0, 3, 4)], false).is_empty());
        assert!(!check(&[unknown(3, 0), unknown(4, 1), read(5, 2, 3)], false).is_empty());
        assert!(!check(&[add(3, 0, 1), read(4, 2, 3)], true).is_empty());
        let refused = Call { outcome: Outcome::NotApplied, ..add(3, 0, 1) };
        assert!(!check(&[refused, read(3, 2, 3)], false).is_empty());
    }
}
