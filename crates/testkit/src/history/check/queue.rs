//! Queues and stacks of values that are pushed once each: nothing lost, nothing invented, nothing done twice, nobody out of turn.

use std::collections::{BTreeMap, HashMap};

use crate::history::recorder::{Call, Moment};

/// What is asked of a queue or stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOp {
    /// Puts a value, which nobody else puts.
    Push(u64),
    /// Takes a value for good.
    Pop,
    /// Takes a value for a while.
    Claim,
    /// Says that a claimed value is done with.
    Ack(u64),
    /// Gives a claimed value back.
    Release(u64),
}

/// What is told: the value that was taken, if there was one.
pub type QueueTold = Option<u64>;
type QueueCall = Call<QueueOp, QueueTold>;

/// Which end is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First in, first out, where there is one producer. Of several, one that has not noticed that others closed a segment may push to it once more when
    /// it was emptied already: that value comes late, after the producer's next.
    Queue,
    /// Last in, first out, by producer.
    Stack,
}

/// What the checker may excuse.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allowed {
    /// Values may be missing: a loss was told, or the store set back.
    pub loss: bool,
    /// Values may come again after this moment: from then on requests were delivered late or twice, or the store was set back.
    pub repeats_after: Option<Moment>,
}

/// What became of a value.
#[derive(Default)]
struct Fate {
    /// The client, and when; `None` for a push that was told not to have happened.
    pushed: Option<(usize, Moment, Moment)>,
    is_acknowledged: bool,
    /// Deliveries: began, ended.
    taken: Vec<(Moment, Moment)>,
    /// Ends of pops and acknowledgements that were told done.
    done: Vec<Moment>,
    /// Somebody claimed it, or may be done with it.
    is_claimed: bool,
    is_in_doubt: bool,
}

/// What is wrong with a history that ends with the taking of everything, in n log n.
pub fn check(calls: &[QueueCall], order: Order, allowed: Allowed, last: usize) -> Vec<String> {
    let (fates, mut bad) = fates(calls);
    let unknown_pops = calls.iter().filter(|call| call.op == QueueOp::Pop && call.is_unknown()).count();
    let unknown_takes =
        unknown_pops + calls.iter().filter(|call| call.op == QueueOp::Claim && call.is_unknown()).count();
    let mut missing = Vec::new();
    for (value, fate) in &fates {
        if fate.is_acknowledged && fate.done.is_empty() && !fate.is_in_doubt {
            missing.push(*value);
        }
        bad.extend(repeats(*value, fate, allowed.repeats_after.unwrap_or(Moment::MAX)));
    }
    if missing.len() > unknown_pops && !allowed.loss {
        bad.push(format!("pushed, acknowledged and never seen again: {missing:?}; {unknown_pops} pops are unknown"));
    }
    let is_take = |call: &&QueueCall| matches!(call.op, QueueOp::Pop | QueueOp::Claim);
    // A take that failed may have held a value for a moment, and given it back behind others.
    let failed_takes = calls.iter().filter(is_take).filter(|call| call.ok().is_none()).count();
    if unknown_takes == 0 && !allowed.loss && allowed.repeats_after.is_none() {
        if failed_takes > 0 {
            return bad;
        }
        bad.extend(false_ends(calls, &fates));
        let producers = || calls.iter().filter(|call| matches!(call.op, QueueOp::Push(_))).map(|call| call.client);
        let is_lone = producers().min() == producers().max();
        bad.extend(match order {
            Order::Queue if is_lone => out_of_turn(&fates),
            Order::Queue => Vec::new(),
            Order::Stack => not_reversed(calls, &fates, last),
        });
    }
    bad
}

fn fates(calls: &[QueueCall]) -> (BTreeMap<u64, Fate>, Vec<String>) {
    let mut fates: BTreeMap<u64, Fate> = BTreeMap::new();
    for call in calls {
        match (call.op, call.ok()) {
            (QueueOp::Push(value), told) => {
                let fate = fates.entry(value).or_default();
                fate.pushed = call.may_count().then_some((call.client, call.invoked, call.returned));
                fate.is_acknowledged = told.is_some();
            }
            (QueueOp::Pop | QueueOp::Claim, Some(Some(value))) => {
                let fate = fates.entry(*value).or_default();
                fate.taken.push((call.invoked, call.returned));
                if call.op == QueueOp::Pop { fate.done.push(call.returned) } else { fate.is_claimed = true }
            }
            (QueueOp::Ack(value), Some(_)) => fates.entry(value).or_default().done.push(call.returned),
            (QueueOp::Ack(value) | QueueOp::Release(value), None) => {
                fates.entry(value).or_default().is_in_doubt |= call.is_unknown()
            }
            _ => {}
        }
    }
    let mut bad = Vec::new();
    for (value, fate) in &fates {
        let first = fate.taken.iter().map(|(_, ended)| *ended).min();
        match (fate.pushed, first) {
            (None, Some(_)) => bad.push(format!("{value} was taken and never pushed")),
            (Some((_, begun, _)), Some(ended)) if ended < begun => {
                bad.push(format!("{value} was taken before its push"))
            }
            _ => {}
        }
    }
    (fates, bad)
}

/// A value that came again by then.
fn repeats(value: u64, fate: &Fate, until: Moment) -> Option<String> {
    let times = fate.done.iter().filter(|at| **at <= until).count();
    if times > 1 {
        return Some(format!("{value} was done with {times} times"));
    }
    let done = *fate.done.iter().min()?;
    let again = fate.taken.iter().find(|(begun, ended)| *begun > done && *ended <= until)?;
    Some(format!("{value} was done with at {done}, and given out again at {}", again.0))
}

/// "There is nothing" where something had been pushed, and was taken by nobody until later.
fn false_ends(calls: &[QueueCall], fates: &BTreeMap<u64, Fate>) -> Vec<String> {
    // By the end of the push: the latest moment, of all values so far, at which a value was certainly still there.
    let mut there: Vec<(Moment, Moment, u64)> = fates
        .iter()
        .filter(|(_, fate)| fate.is_acknowledged && !fate.is_in_doubt)
        .filter_map(|(value, fate)| {
            let first = fate.taken.iter().map(|(begun, _)| *begun).min().unwrap_or(Moment::MAX);
            fate.pushed.map(|(_, _, pushed)| (pushed, first, *value))
        })
        .collect();
    there.sort_unstable();
    let mut best = (0, 0);
    for entry in &mut there {
        if entry.1 > best.0 {
            best = (entry.1, entry.2);
        }
        (entry.1, entry.2) = best;
    }
    let ends = calls.iter().filter(|call| matches!((call.op, call.ok()), (QueueOp::Pop | QueueOp::Claim, Some(None))));
    let wrong = ends.filter_map(|call| {
        let before = there.partition_point(|(pushed, ..)| *pushed < call.invoked);
        let (_, until, value) = *there.get(before.checked_sub(1)?)?;
        (until > call.returned)
            .then(|| format!("nothing was found at {}..{}, and {value} was there", call.invoked, call.returned))
    });
    wrong.collect()
}

/// Of one producer's values that were popped and never claimed, none is wholly before one that was pushed before it.
fn out_of_turn(fates: &BTreeMap<u64, Fate>) -> Vec<String> {
    let mut bad = Vec::new();
    for values in by_producer(fates).values() {
        let mut soonest = (Moment::MAX, 0);
        for &(value, (begun, ended)) in values.iter().rev() {
            if soonest.0 < begun {
                bad.push(format!("{} came out before {value}, which its producer had pushed before it", soonest.1));
            }
            soonest = soonest.min((ended, value));
        }
    }
    bad
}

/// A value, and when its pop began and ended.
type Popped = (u64, (Moment, Moment));

/// By producer, in the order of their pushes: values that were popped once and never claimed.
fn by_producer(fates: &BTreeMap<u64, Fate>) -> HashMap<usize, Vec<Popped>> {
    let mut all: HashMap<usize, Vec<(Moment, Popped)>> = HashMap::new();
    for (value, fate) in
        fates.iter().filter(|(_, fate)| fate.is_acknowledged && !fate.is_claimed && fate.taken.len() == 1)
    {
        if let Some((client, begun, _)) = fate.pushed {
            all.entry(client).or_default().push((begun, (*value, fate.taken[0])));
        }
    }
    let sorted = all.into_iter().map(|(client, mut values)| {
        values.sort_unstable();
        (client, values.into_iter().map(|(_, popped)| popped).collect())
    });
    sorted.collect()
}

/// What the last client takes from a stack, when all is over, comes in the reverse order of each producer's pushes.
fn not_reversed(calls: &[QueueCall], fates: &BTreeMap<u64, Fate>, last: usize) -> Vec<String> {
    let drained = |value: &u64| calls.iter().any(|call| call.client == last && call.ok() == Some(&Some(*value)));
    let mut bad = Vec::new();
    for values in by_producer(fates).values() {
        let values: Vec<_> = values.iter().filter(|(value, _)| drained(value)).collect();
        bad.extend(
            values
                .windows(2)
                .filter(|pair| pair[0].1.1 < pair[1].1.0)
                .map(|pair| format!("{} was popped before {}, which lay above it", pair[0].0, pair[1].0)),
        );
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    const LAST: usize = 9;

    fn call(op: QueueOp, invoked: u64, told: QueueTold) -> QueueCall {
        Call { client: 0, op, invoked, returned: invoked + 1, outcome: Outcome::Ok(told) }
    }

    fn unknown(op: QueueOp, invoked: u64) -> QueueCall {
        Call { client: 0, op, invoked, returned: Moment::MAX, outcome: Outcome::Unknown }
    }

    fn found(calls: &[QueueCall], order: Order) -> usize {
        check(calls, order, Allowed::default(), LAST).len()
    }

    #[test]
    fn good_histories_pass() {
        use QueueOp::{Ack, Claim, Pop, Push};
        let fifo = [
            call(Push(1), 0, None),
            call(Push(2), 2, None),
            call(Pop, 4, Some(1)),
            call(Pop, 6, Some(2)),
            call(Pop, 8, None),
        ];
        assert_eq!(found(&fifo, Order::Queue), 0);
        let claims = [call(Push(1), 0, None), call(Claim, 2, Some(1)), unknown(Ack(1), 4)];
        assert_eq!(found(&claims, Order::Queue), 0);
        let again = [call(Push(1), 0, None), call(Claim, 2, Some(1)), call(Claim, 4, Some(1)), call(Ack(1), 6, None)];
        assert_eq!(found(&again, Order::Queue), 0);
        assert_eq!(found(&[call(Push(1), 0, None), unknown(Pop, 2)], Order::Queue), 0);
        assert_eq!(found(&[unknown(Push(1), 0), call(Pop, 2, None), call(Pop, 4, Some(1))], Order::Queue), 0);
    }

    #[test]
    fn what_comes_again_is_excused_by_what_was_late_before_it_and_by_nothing_later() {
        let calls = [call(QueueOp::Push(1), 0, None), call(QueueOp::Pop, 2, Some(1)), call(QueueOp::Pop, 4, Some(1))];
        let found = |late| {
            let allowed = Allowed { repeats_after: Some(late), ..Allowed::default() };
            check(&calls, Order::Queue, allowed, LAST).len()
        };
        assert_eq!([found(3), found(4), found(5), found(9)], [0, 0, 1, 1]);
    }

    #[test]
    fn values_of_one_producer_among_several_may_come_late() {
        use QueueOp::{Pop, Push};
        let late = [call(Push(1), 0, None), call(Push(2), 2, None), call(Pop, 4, Some(2)), call(Pop, 6, Some(1))];
        assert_eq!(found(&late, Order::Queue), 1);
        let other = [Call { client: 1, ..call(Push(3), 8, None) }, call(Pop, 10, Some(3))];
        assert_eq!(found(&[late.as_slice(), &other].concat(), Order::Queue), 0);
    }

    #[test]
    fn bad_histories_are_found() {
        use QueueOp::{Ack, Claim, Pop, Push};
        for (calls, order) in [
            (vec![call(Push(1), 0, None)], Order::Queue),
            (vec![call(Pop, 0, Some(1))], Order::Queue),
            (vec![call(Pop, 0, Some(1)), call(Push(1), 5, None)], Order::Queue),
            (vec![call(Push(1), 0, None), call(Pop, 2, Some(1)), call(Pop, 4, Some(1))], Order::Queue),
            (
                vec![call(Push(1), 0, None), call(Claim, 2, Some(1)), call(Ack(1), 4, None), call(Claim, 6, Some(1))],
                Order::Queue,
            ),
            (vec![call(Push(1), 0, None), call(Pop, 2, None), call(Pop, 4, Some(1))], Order::Queue),
            (
                vec![call(Push(1), 0, None), call(Push(2), 2, None), call(Pop, 4, Some(2)), call(Pop, 6, Some(1))],
                Order::Queue,
            ),
        ] {
            assert!(found(&calls, order) > 0, "{calls:?}");
        }
        let pop = |at, value| Call { client: LAST, ..call(Pop, at, Some(value)) };
        let stack = [call(Push(1), 0, None), call(Push(2), 2, None), pop(4, 1), pop(6, 2)];
        assert_eq!(found(&stack, Order::Stack), 1);
        let refused = Call { outcome: Outcome::NotApplied, ..call(Push(1), 0, None) };
        assert_eq!(found(&[refused, call(Pop, 2, Some(1))], Order::Queue), 1);
    }
}
