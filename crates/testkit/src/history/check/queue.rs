//! Queues and stacks of values that are pushed once each: nothing lost, nothing invented, nothing done twice, nobody out of turn.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::Checked;
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
    /// Has a claim's lease begin anew; told: the value, or that it is over.
    Renew(u64),
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
#[derive(Clone, Debug)]
pub struct Allowed {
    /// Values may be missing: a loss was told, or the store set back.
    pub loss: bool,
    /// By this moment nothing had been lost or set back.
    pub whole_until: Moment,
    /// Values may come again after this moment: the store was set back.
    pub repeats_after: Option<Moment>,
    /// How many requests were delivered late or twice: so many values may come again.
    pub late: u64,
    /// By this moment no request had been delivered late or twice.
    pub on_time_until: Moment,
    /// By the moment at which a call began: requests of it of which the caller does not know what became of them. Of a push, those with its value: one that is delivered after the
    /// segment was left is there twice, and nothing else can repeat a value: what is late of a taker is conditional on a state that is over. Of a claim, those with its lease or its
    /// state: it may have claimed another value first, whose lease it did not find.
    pub open: HashMap<Moment, u64>,
}

/// Nothing.
impl Default for Allowed {
    fn default() -> Allowed {
        let (late, open) = (0, HashMap::new());
        Allowed { loss: false, whole_until: Moment::MAX, repeats_after: None, late, on_time_until: Moment::MAX, open }
    }
}

/// What became of a value.
#[derive(Default)]
struct Fate {
    /// The client, and when; `None` for a push that was told not to have happened.
    pushed: Option<(usize, Moment, Moment)>,
    is_acknowledged: bool,
    /// Requests with the value that may have been delivered, beside the one that was known to be.
    open: u64,
    /// Deliveries: began, ended.
    taken: Vec<(Moment, Moment)>,
    /// Ends of pops and acknowledgements that were told done.
    done: Vec<Moment>,
    /// Somebody claimed it.
    is_claimed: bool,
    /// Somebody may be done with it: a release never is.
    may_be_done: bool,
}

/// What is wrong with a history that ends with the taking of everything, in n log n.
pub fn check(calls: &[QueueCall], order: Order, allowed: &Allowed, last: usize) -> Checked {
    let (fates, bad) = fates(calls, &allowed.open);
    let mut found = Checked { bad, left_out: 0 };
    missing(calls, &fates, allowed, &mut found);
    repeats(&fates, allowed, &mut found);
    let holders = Holders::new(calls, &allowed.open);
    false_ends(calls, &fates, &holders, allowed, &mut found);
    let producers = || calls.iter().filter(|call| matches!(call.op, QueueOp::Push(_))).map(|call| call.client);
    let is_lone = producers().min() == producers().max();
    match order {
        Order::Queue if is_lone => out_of_turn(&fates, &holders, allowed, &mut found),
        Order::Queue => {}
        Order::Stack => not_reversed(calls, &fates, last, (&holders, allowed), &mut found),
    }
    found
}

/// Values that were pushed and never seen again. An acknowledgement that is unknown may be done with its value; a release may not: it gives it back, or does not.
fn missing(calls: &[QueueCall], fates: &BTreeMap<u64, Fate>, allowed: &Allowed, found: &mut Checked) {
    let is_missing = |fate: &Fate| fate.is_acknowledged && fate.done.is_empty() && !fate.may_be_done;
    let missing: Vec<u64> = fates.iter().filter(|(_, fate)| is_missing(fate)).map(|(value, _)| *value).collect();
    let unknown_pops = calls.iter().filter(|call| call.op == QueueOp::Pop && call.is_unknown()).count();
    if missing.len() > unknown_pops {
        let what = format!("pushed, acknowledged and never seen again: {missing:?}; {unknown_pops} pops are unknown");
        found.add(what, allowed.loss);
    }
}

/// Calls that may hold a value without anybody knowing which.
struct Holders {
    /// Beginnings of pops that are unknown: each took one value for good, or none.
    pops: Vec<Moment>,
    /// Beginnings of claims, once for each value that they may hold.
    claims: Vec<Moment>,
}

/// Values that a claim whose outcome is not known may hold: "a claim whose lease the store does not take is made once more", and the first is not over for others until they look.
const HELD_BY_A_CLAIM: usize = 2;

impl Holders {
    fn new(calls: &[QueueCall], open: &HashMap<Moment, u64>) -> Holders {
        let mut holders = Holders { pops: Vec::new(), claims: Vec::new() };
        for call in calls {
            let is_in_doubt = open.contains_key(&call.invoked);
            match (call.op, call.ok()) {
                (QueueOp::Pop, None) if call.is_unknown() => holders.pops.push(call.invoked),
                // One that failed may have held a value for a moment, and given it back behind others.
                (QueueOp::Claim, None) => holders.claims.extend([call.invoked; HELD_BY_A_CLAIM]),
                (QueueOp::Claim, Some(_)) if is_in_doubt => holders.claims.extend([call.invoked; HELD_BY_A_CLAIM - 1]),
                _ => {}
            }
        }
        holders.pops.sort_unstable();
        holders.claims.sort_unstable();
        holders
    }

    /// How many values may be held by then, and come back.
    fn of_claims(&self, until: Moment) -> usize {
        self.claims.partition_point(|begun| *begun < until)
    }

    /// How many values may be held by then.
    fn all(&self, until: Moment) -> usize {
        self.of_claims(until) + self.pops.partition_point(|begun| *begun < until)
    }
}

fn fates(calls: &[QueueCall], open: &HashMap<Moment, u64>) -> (BTreeMap<u64, Fate>, Vec<String>) {
    let mut fates: BTreeMap<u64, Fate> = BTreeMap::new();
    for call in calls {
        match (call.op, call.ok()) {
            (QueueOp::Push(value), told) => {
                let fate = fates.entry(value).or_default();
                fate.pushed = call.may_count().then_some((call.client, call.invoked, call.returned));
                fate.is_acknowledged = told.is_some();
                fate.open = open.get(&call.invoked).copied().unwrap_or(0);
            }
            (QueueOp::Pop | QueueOp::Claim, Some(Some(value))) => {
                let fate = fates.entry(*value).or_default();
                fate.taken.push((call.invoked, call.returned));
                if call.op == QueueOp::Pop { fate.done.push(call.returned) } else { fate.is_claimed = true }
            }
            (QueueOp::Ack(value), Some(_)) => fates.entry(value).or_default().done.push(call.returned),
            (QueueOp::Ack(value), None) => fates.entry(value).or_default().may_be_done |= call.is_unknown(),
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

/// Values that came again.
fn repeats(fates: &BTreeMap<u64, Fate>, allowed: &Allowed, found: &mut Checked) {
    let mut late = 0;
    for (value, fate) in fates {
        let Some(done) = fate.done.iter().min().copied() else { continue };
        let times = fate.done.len() as u64;
        let again: Vec<_> = fate.taken.iter().filter(|(begun, _)| *begun > done).collect();
        let repeats = (times - 1).max(again.len() as u64);
        if repeats == 0 {
            continue;
        }
        let seconds = fate.done.iter().filter(|at| times > 1 && **at > done);
        let first = seconds.chain(again.iter().map(|(_, ended)| ended)).min().copied().unwrap_or(done);
        let is_late = first > allowed.on_time_until && repeats <= fate.open;
        late += if is_late { repeats } else { 0 };
        let is_set_back = allowed.repeats_after.is_some_and(|at| first > at);
        let what = match again.first() {
            Some((begun, _)) => format!("{value} was done with at {done}, and given out again at {begun}"),
            None => format!("{value} was done with {times} times"),
        };
        found.add(what, is_set_back || is_late);
    }
    if late > allowed.late && allowed.repeats_after.is_none() {
        found.bad.push(format!("{late} values came again, and {} requests were late", allowed.late));
    }
}

/// "There is nothing" where more had been pushed, and was taken by nobody until later, than those may have held of whose takes nobody knows.
fn false_ends(
    calls: &[QueueCall],
    fates: &BTreeMap<u64, Fate>,
    holders: &Holders,
    allowed: &Allowed,
    found: &mut Checked,
) {
    // By the end of the push: until when the value was certainly still there, whatever its claims and releases came to.
    let mut pushed: Vec<(Moment, Moment, u64)> = fates
        .iter()
        .filter(|(_, fate)| fate.is_acknowledged)
        .filter_map(|(value, fate)| {
            let first = fate.taken.iter().map(|(begun, _)| *begun).min().unwrap_or(Moment::MAX);
            fate.pushed.map(|(_, _, pushed)| (pushed, first, *value))
        })
        .collect();
    pushed.sort_unstable();
    let mut pushed = pushed.into_iter().peekable();
    let mut there: BTreeSet<(Moment, u64)> = BTreeSet::new();
    let is_end = |call: &&QueueCall| matches!((call.op, call.ok()), (QueueOp::Pop | QueueOp::Claim, Some(None)));
    let mut ends: Vec<&QueueCall> = calls.iter().filter(is_end).collect();
    ends.sort_by_key(|call| call.invoked);
    for call in ends {
        while let Some((_, first, value)) = pushed.next_if(|(ended, ..)| *ended < call.invoked) {
            there.insert((first, value));
        }
        while there.first().is_some_and(|(first, _)| *first <= call.invoked) {
            there.pop_first();
        }
        let mut kept = there.range((call.returned + 1, 0)..).map(|(_, value)| value);
        let Some(value) = kept.next() else { continue };
        let what = format!("nothing was found at {}..{}, and {value} was there", call.invoked, call.returned);
        let may_be_held = holders.all(call.returned);
        let is_held = may_be_held > 0 && kept.nth(may_be_held - 1).is_none();
        found.add(what, is_held || allowed.loss && call.returned > allowed.whole_until);
    }
}

/// Of one producer's values that were popped and never claimed, more are wholly before one that was pushed before them than those may have held back of whose claims nobody knows.
fn out_of_turn(fates: &BTreeMap<u64, Fate>, holders: &Holders, allowed: &Allowed, found: &mut Checked) {
    for values in by_producer(fates).values() {
        overtaken(values.iter().copied(), holders, allowed, |one, other| {
            format!("{one} came out before {other}, which its producer had pushed before it")
        })
        .for_each(|(what, is_excused)| found.add(what, is_excused));
    }
}

/// Of values in the order in which they should be popped, those before which others were popped that come later: with what is to be said, and whether it is excused. A value is
/// late where somebody held it as the other was popped.
fn overtaken(
    values: impl DoubleEndedIterator<Item = Popped>,
    holders: &Holders,
    allowed: &Allowed,
    say: impl Fn(u64, u64) -> String,
) -> impl Iterator<Item = (String, bool)> {
    // Of the values so far: by the moment at which its pop began, each that is still to come.
    let mut before: BTreeSet<(Moment, Moment, u64)> = BTreeSet::new();
    let mut said = Vec::new();
    for (value, (begun, ended)) in values {
        let mut late = before.range((ended + 1, 0, 0)..);
        if let Some((_, other_ended, other)) = late.next() {
            let may_be_held = holders.of_claims(ended);
            let is_held = may_be_held > 0 && late.nth(may_be_held - 1).is_none();
            said.push((say(value, *other), is_held || allowed.loss && *other_ended > allowed.whole_until));
        }
        before.insert((begun, ended, value));
    }
    said.into_iter()
}

/// A value, and when its pop began and ended.
type Popped = (u64, (Moment, Moment));

/// By producer, in the order of their pushes: values that were popped once and never claimed, and of whose pushes nothing may stand in a second place.
fn by_producer(fates: &BTreeMap<u64, Fate>) -> HashMap<usize, Vec<Popped>> {
    let mut all: HashMap<usize, Vec<(Moment, Popped)>> = HashMap::new();
    for (value, fate) in fates
        .iter()
        .filter(|(_, fate)| fate.is_acknowledged && !fate.is_claimed && fate.taken.len() == 1 && fate.open == 0)
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
fn not_reversed(
    calls: &[QueueCall],
    fates: &BTreeMap<u64, Fate>,
    last: usize,
    (holders, allowed): (&Holders, &Allowed),
    found: &mut Checked,
) {
    let drained: HashSet<u64> =
        calls.iter().filter(|call| call.client == last).filter_map(|call| call.ok().copied().flatten()).collect();
    for values in by_producer(fates).values() {
        let values = values.iter().rev().filter(|(value, _)| drained.contains(value)).copied();
        overtaken(values, holders, allowed, |one, other| {
            format!("{one} was popped before {other}, which lay above it")
        })
        .for_each(|(what, is_excused)| found.add(what, is_excused));
    }
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
        check(calls, order, &Allowed::default(), LAST).bad.len()
    }

    /// How much is wrong, and how much is excused.
    fn both(calls: &[QueueCall], order: Order, allowed: &Allowed) -> [u64; 2] {
        let Checked { bad, left_out } = check(calls, order, allowed, LAST);
        [bad.len() as u64, left_out]
    }

    fn of_queue(calls: &[QueueCall]) -> [u64; 2] {
        both(calls, Order::Queue, &Allowed::default())
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
    fn what_comes_again_is_excused_by_a_late_request_of_its_own_push_and_by_nothing_later() {
        let pop = |at| call(QueueOp::Pop, at, Some(1));
        let of = |calls: &[QueueCall], on_time_until, late, open| {
            let open = HashMap::from([(0, open)]);
            let allowed = Allowed { late, on_time_until, open, ..Allowed::default() };
            both(&[&[call(QueueOp::Push(1), 0, None)], calls].concat(), Order::Queue, &allowed)
        };
        let twice = [pop(2), pop(4)];
        assert_eq!([3, 4, 5, 9].map(|until| of(&twice, until, 1, 1)[0]), [0, 0, 1, 1]);
        assert_eq!(of(&twice, 3, 1, 0), [1, 0], "its push was never in doubt");
        assert_eq!(of(&[pop(2), pop(4), pop(6)], 3, 9, 1), [1, 0], "one of its requests was");
        assert_eq!(of(&[pop(2), pop(4), pop(6)], 3, 2, 2), [0, 1]);
        assert_eq!(of(&[pop(2), pop(4), pop(6)], 3, 1, 2), [1, 1], "one came late");
        let claimed = [pop(2), call(QueueOp::Claim, 4, Some(1))];
        assert_eq!([of(&claimed, 3, 1, 1), of(&claimed, 3, 1, 0)], [[0, 1], [1, 0]]);
        let back = |at| Allowed { repeats_after: Some(at), ..Allowed::default() };
        let calls = [&[call(QueueOp::Push(1), 0, None)], &twice[..]].concat();
        assert_eq!([3, 5].map(|at| both(&calls, Order::Queue, &back(at))), [[0, 1], [1, 0]]);
    }

    #[test]
    fn a_release_gives_back_and_is_done_with_nothing() {
        use QueueOp::{Ack, Claim, Pop, Push, Release};
        let claimed = [call(Push(1), 0, None), call(Claim, 2, Some(1))];
        let then = |last: &[QueueCall]| of_queue(&[&claimed, last].concat());
        assert_eq!(then(&[unknown(Release(1), 4)]), [1, 0]);
        assert_eq!(then(&[unknown(Release(1), 4), call(Pop, 6, Some(1))]), [0, 0]);
        assert_eq!(then(&[unknown(Ack(1), 4)]), [0, 0]);
        assert_eq!(then(&[unknown(Release(1), 4), call(Pop, 6, None), call(Pop, 8, Some(1))]), [0, 0]);
    }

    #[test]
    fn of_what_is_there_a_take_that_is_unknown_may_hold_so_much_and_only_after_it() {
        use QueueOp::{Claim, Pop, Push};
        let pushes = [call(Push(1), 0, None), call(Push(2), 2, None), call(Push(3), 4, None)];
        let pops = [call(Pop, 20, Some(1)), call(Pop, 22, Some(2)), call(Pop, 24, Some(3))];
        let with = |calls: &[QueueCall]| both(&[&pushes, calls, &pops].concat(), Order::Queue, &Allowed::default());
        assert_eq!(with(&[call(Pop, 8, None)]), [1, 0]);
        assert_eq!(with(&[unknown(Pop, 6), call(Pop, 8, None)]), [1, 0], "it took one");
        assert_eq!(with(&[unknown(Claim, 6), call(Pop, 8, None)]), [1, 0], "two, and one is there");
        assert_eq!(with(&[unknown(Claim, 6), unknown(Pop, 7), call(Pop, 8, None)]), [0, 1]);
        assert_eq!(with(&[call(Pop, 8, None), unknown(Claim, 10), unknown(Claim, 11)]), [1, 0], "before them");
        let open = |at| Allowed { open: HashMap::from([(at, 1)]), ..Allowed::default() };
        let other = [call(Push(4), 6, None), call(Claim, 8, Some(4)), call(QueueOp::Ack(4), 10, None)];
        let calls = [&pushes[..1], &other, &[call(Pop, 12, None)], &pops[..1]].concat();
        assert_eq!([both(&calls, Order::Queue, &open(8)), of_queue(&calls)], [[0, 1], [1, 0]], "another before it");
        let whole_until = |whole_until| Allowed { loss: true, whole_until, ..Allowed::default() };
        let calls = [&pushes[..], &[call(Pop, 8, None)]].concat();
        assert_eq!(both(&calls, Order::Queue, &whole_until(8)), [0, 2], "the values are missing, too");
        assert_eq!(both(&calls, Order::Queue, &whole_until(9)), [1, 1]);
    }

    #[test]
    fn values_keep_their_order_but_for_those_that_a_claim_may_have_held() {
        use QueueOp::{Claim, Pop, Push};
        let pushes = [1, 2, 3, 4].map(|value| call(Push(value), 2 * value, None));
        let pops = |values: [u64; 4]| {
            let at = [20, 22, 24, 26];
            std::array::from_fn::<_, 4, _>(|n| Call { client: LAST, ..call(Pop, at[n], Some(values[n])) })
        };
        let refused = |op, invoked| Call { outcome: Outcome::NotApplied, ..call(op, invoked, None) };
        for (order, good) in [(Order::Queue, [1, 2, 3, 4]), (Order::Stack, [4, 3, 2, 1])] {
            let with = |between: &[QueueCall], values| {
                both(&[&pushes, between, &pops(values)].concat(), order, &Allowed::default())
            };
            let [one, two, three, four] = good;
            for held in [unknown(Claim, 12), refused(Claim, 12)] {
                assert_eq!(with(std::slice::from_ref(&held), good), [0, 0]);
                assert_eq!(with(std::slice::from_ref(&held), [two, one, three, four]), [0, 1], "{order:?}");
                assert_eq!(with(&[held], [four, one, two, three]), [1, 0], "{order:?}: it held two at the most");
            }
            for never in [unknown(Pop, 12), refused(Pop, 12), unknown(Claim, 30)] {
                assert_eq!(with(&[never], [two, one, three, four]), [1, 0], "{order:?}: it gives nothing back");
            }
            let swapped = [&pushes[..], &pops([two, one, three, four])].concat();
            let open = |value: u64| Allowed { open: HashMap::from([(2 * value, 1)]), ..Allowed::default() };
            assert_eq!([both(&swapped, order, &open(one))[0], both(&swapped, order, &open(three))[0]], [0, 1]);
            let lost = |whole_until| Allowed { loss: true, whole_until, ..Allowed::default() };
            assert_eq!([both(&swapped, order, &lost(22)), both(&swapped, order, &lost(23))], [[0, 1], [1, 0]]);
        }
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
