//! Locks: tokens grow in the order of the grants.

use std::collections::HashMap;

use crate::history::recorder::{Call, Moment};

/// What is asked of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOp {
    /// Takes it; told: the token.
    Acquire,
    /// Gives it back; told: 1 if it was held to the end, nothing if it was lost before. Whether the lease cannot have run out by then, so shortly was the lock asked for.
    Release(u64, bool),
    /// Renews its lease; told, and whether, as of a release.
    Renew(u64, bool),
    /// Frees it, whoever holds it; told: the token of who did. By this moment the call was over, whatever came of it.
    Force(Moment),
    /// Writes to what the lock guards, with this token; told: 1 where it was taken.
    Write(u64),
}

/// What is told; `None`: the lock was not free.
pub type LockTold = Option<u64>;

/// A lock as one client held it, by a clock that everybody shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Whose.
    pub client: usize,
    /// By which grant.
    pub token: u64,
    /// From then on it was held for certain.
    pub from: Moment,
    /// Until then.
    pub until: Moment,
}

/// What is promised of a run.
#[derive(Clone, Copy, Debug)]
pub struct Promise {
    /// By this moment the record was never lost or set back: up to then nobody holds the lock beside another. [`Moment::MAX`]: it never was.
    pub whole_until: Moment,
    /// Tokens grow behind a loss of the record, too, since the clocks of the clients agree.
    pub grows_on: bool,
}

/// A token that was given, and between which moments.
#[derive(Clone, Copy)]
struct Grant {
    client: usize,
    token: u64,
    begun: Moment,
    ended: Moment,
}

/// What is wrong with what was told of a lock, in n log n: two who held it at once; a token that is given twice, or is less than one that was given before; a write of
/// an earlier grant that landed behind one of a later, and one of the latest that was refused.
///
/// Where it is freed by force, its holder goes on until he hears of it: he held it for certain until it may have been freed. Whoever asks for the lock after that is given a larger token, and the
/// one who held it is told so, as soon as he asks; and nobody is told so too early.
pub fn check(calls: &[Call<LockOp, LockTold>], holds: &[Hold], promise: Promise) -> Vec<String> {
    let forces = Forces::of(calls);
    let whole = holds.iter().filter_map(|hold| forces.clipped(*hold)?.clipped(promise.whole_until));
    let whole: Vec<Hold> = whole.collect();
    let grants = grants(calls, &whole, promise);
    let mut bad = overlaps(&whole);
    bad.extend(fallen(&grants));
    bad.extend(stale_writes(calls, &grants));
    bad.extend(ousted(calls, &forces, promise.whole_until));
    bad
}

/// Who may have been freed by force, and when.
struct Forces {
    /// By token: when it was begun to free its holder, as that was told, and when it was done.
    told: HashMap<u64, (Moment, Moment)>,
    /// Beginnings and ends of calls of which nobody knows whom they freed.
    open: Vec<(Moment, Moment)>,
    /// When each token was asked for.
    asked: HashMap<u64, Moment>,
}

impl Forces {
    fn of(calls: &[Call<LockOp, LockTold>]) -> Forces {
        let mut forces = Forces { told: HashMap::new(), open: Vec::new(), asked: HashMap::new() };
        for call in calls {
            match (call.op, call.ok()) {
                (LockOp::Acquire, Some(Some(token))) => _ = forces.asked.insert(*token, call.invoked),
                (LockOp::Force(_), Some(Some(token))) => {
                    let (begun, done) = forces.told.entry(*token).or_insert((Moment::MAX, Moment::MAX));
                    (*begun, *done) = ((*begun).min(call.invoked), (*done).min(call.returned));
                }
                (LockOp::Force(over), None) if call.is_unknown() => forces.open.push((call.invoked, over)),
                _ => {}
            }
        }
        forces
    }

    /// From when on a token's holder may have been freed. What is late of a call frees the one whom it had found.
    fn may_free(&self, token: u64) -> Moment {
        let asked = self.asked.get(&token).copied().unwrap_or(0);
        let open = self.open.iter().filter(|(_, over)| *over > asked).map(|(begun, _)| *begun);
        let told = self.told.get(&token).map(|(begun, _)| *begun);
        open.chain(told).min().unwrap_or(Moment::MAX)
    }

    /// What of a hold is certain.
    fn clipped(&self, hold: Hold) -> Option<Hold> {
        let until = self.may_free(hold.token);
        (hold.from < until).then(|| Hold { until: hold.until.min(until), ..hold })
    }
}

/// Who was freed by force and is told that he had it to the end, or has it still; whose lease cannot have run out, and who was told that it was lost though nobody may have freed it;
/// and who asked after that for the lock, and was given no larger token.
fn ousted(calls: &[Call<LockOp, LockTold>], forces: &Forces, whole_until: Moment) -> Vec<String> {
    let mut bad = Vec::new();
    for call in calls.iter().filter(|call| call.returned <= whole_until) {
        match (call.op, call.ok()) {
            (LockOp::Release(token, is_early) | LockOp::Renew(token, is_early), Some(told)) => {
                let freed = forces.told.get(&token).filter(|(_, done)| *done < call.invoked);
                if let (Some((_, done)), Some(_)) = (freed, told) {
                    bad.push(format!(
                        "token {token} was freed by force at {done}, and its holder was told at {} that it was held",
                        call.returned
                    ));
                }
                if is_early && told.is_none() && forces.may_free(token) > call.returned {
                    bad.push(format!("token {token} was lost at {}, and nobody had freed it", call.returned));
                }
            }
            (LockOp::Acquire, Some(Some(token))) => {
                let freed = forces.told.iter().filter(|(_, (_, done))| *done < call.invoked);
                if let Some(other) = freed.map(|(other, _)| *other).max().filter(|other| other >= token) {
                    bad.push(format!("token {token} was given after {other}, which had been freed by force"));
                }
            }
            _ => {}
        }
    }
    bad
}

impl Hold {
    /// What of it is by a moment.
    fn clipped(self, until: Moment) -> Option<Hold> {
        (self.from <= until).then(|| Hold { until: self.until.min(until), ..self })
    }
}

/// The grants whose tokens must grow. Of those that were seen to hold the lock the order is known: nobody else held it then, so each was granted behind all that held it before.
/// Others were granted some time during their call.
fn grants(calls: &[Call<LockOp, LockTold>], holds: &[Hold], promise: Promise) -> Vec<Grant> {
    let held: HashMap<u64, Moment> = holds.iter().map(|hold| (hold.token, hold.from)).collect();
    let of_call = |call: &Call<LockOp, LockTold>| {
        let (LockOp::Acquire, Some(Some(token))) = (call.op, call.ok()) else { return None };
        let (begun, ended) = held.get(token).map_or((call.invoked, call.returned), |from| (*from, *from));
        let is_promised = promise.grows_on || call.returned <= promise.whole_until;
        is_promised.then_some(Grant { client: call.client, token: *token, begun, ended })
    };
    calls.iter().filter_map(of_call).collect()
}

/// Tokens that are given twice, or are less than one that was given before.
fn fallen(grants: &[Grant]) -> Vec<String> {
    let mut bad = Vec::new();
    let mut known: HashMap<u64, usize> = HashMap::new();
    for grant in grants {
        if let Some(other) = known.insert(grant.token, grant.client) {
            bad.push(format!("token {} was given to clients {other} and {}", grant.token, grant.client));
        }
    }
    let mut ended: Vec<(Moment, u64)> = grants.iter().map(|grant| (grant.ended, grant.token)).collect();
    ended.sort_unstable();
    let mut most = 0;
    for entry in &mut ended {
        most = most.max(entry.1);
        entry.1 = most;
    }
    for grant in grants {
        let before = ended.partition_point(|(at, _)| *at < grant.begun);
        if before > 0 && ended[before - 1].1 >= grant.token {
            bad.push(format!("token {} was given after {}", grant.token, ended[before - 1].1));
        }
    }
    bad
}

/// Writes by grants out of their order, whatever their tokens are. What is written to compares tokens, and knows no grants.
fn stale_writes(calls: &[Call<LockOp, LockTold>], grants: &[Grant]) -> Vec<String> {
    let by_token: HashMap<u64, &Grant> = grants.iter().map(|grant| (grant.token, grant)).collect();
    let mut writes: Vec<(Moment, u64, bool)> = Vec::new();
    for call in calls {
        if let (LockOp::Write(token), Some(told)) = (call.op, call.ok()) {
            writes.push((call.returned, token, told.is_some()));
        }
    }
    writes.sort_unstable();
    // Of the writes that landed, the grant that certainly came last, and the moment by which all had been granted.
    let (mut latest, mut all_by) = ((0, 0), 0);
    let mut bad = Vec::new();
    for (at, token, is_taken) in writes {
        let Some(grant) = by_token.get(&token) else {
            // A grant of which nothing is promised: what it wrote may refuse any other.
            all_by = if is_taken { Moment::MAX } else { all_by };
            continue;
        };
        let (begun, later) = latest;
        if is_taken && begun > grant.ended {
            bad.push(format!("a write with token {token} landed at {at}, after one of a later grant, with {later}"));
        }
        if !is_taken && all_by < grant.begun {
            bad.push(format!("a write with token {token} was refused at {at}, and no later grant had written"));
        }
        if is_taken {
            latest = latest.max((grant.begun, token));
            all_by = all_by.max(grant.ended);
        }
    }
    bad
}

/// Two who held a lock at once, in n log n.
pub fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut holds = holds.to_vec();
    holds.sort_unstable_by_key(|hold| (hold.from, hold.until));
    let mut bad = Vec::new();
    let mut longest: Option<Hold> = None;
    for hold in holds {
        if let Some(other) = longest.filter(|other| other.until > hold.from) {
            bad.push(format!(
                "clients {} and {} held the lock at {}, by tokens {} and {}",
                other.client, hold.client, hold.from, other.token, hold.token
            ));
        }
        if longest.is_none_or(|other| other.until < hold.until) {
            longest = Some(hold);
        }
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn call(op: LockOp, invoked: u64, returned: u64, told: LockTold) -> Call<LockOp, LockTold> {
        Call { client: 0, op, invoked, returned, outcome: Outcome::Ok(told) }
    }

    fn hold(client: usize, token: u64, from: Moment, until: Moment) -> Hold {
        Hold { client, token, from, until }
    }

    const ALWAYS: Promise = Promise { whole_until: Moment::MAX, grows_on: true };

    fn acquire(invoked: u64, returned: u64, token: u64) -> Call<LockOp, LockTold> {
        call(LockOp::Acquire, invoked, returned, Some(token))
    }

    fn write(at: u64, token: u64) -> Call<LockOp, LockTold> {
        call(LockOp::Write(token), at, at + 1, Some(1))
    }

    fn refused(at: u64, token: u64) -> Call<LockOp, LockTold> {
        call(LockOp::Write(token), at, at + 1, None)
    }

    fn found(calls: &[Call<LockOp, LockTold>]) -> usize {
        check(calls, &[], ALWAYS).len()
    }

    #[test]
    fn holds_that_overlap_are_found() {
        assert_eq!(overlaps(&[hold(1, 2, 5, 9), hold(0, 1, 0, 5)]), [""; 0]);
        assert_eq!(overlaps(&[hold(0, 1, 0, 9), hold(1, 2, 2, 3), hold(2, 3, 4, 4)]).len(), 2);
    }

    fn force(at: u64, freed: LockTold) -> Call<LockOp, LockTold> {
        call(LockOp::Force(at + 1), at, at + 1, freed)
    }

    fn release(at: u64, token: u64, told: LockTold) -> Call<LockOp, LockTold> {
        call(LockOp::Release(token, true), at, at + 1, told)
    }

    #[test]
    fn who_is_freed_by_force_is_told_so_and_nobody_else_is() {
        for of in [LockOp::Release, LockOp::Renew] {
            let end = |at, told, is_early| call(of(5, is_early), at, at + 1, told);
            let with = |calls: &[Call<LockOp, LockTold>]| found(&[&[acquire(0, 1, 5)], calls].concat());
            assert_eq!(with(&[end(4, Some(1), true)]), 0);
            assert_eq!(with(&[force(2, Some(5)), end(4, None, true)]), 0);
            assert_eq!(with(&[force(2, Some(5)), end(4, Some(1), true)]), 1, "it was not his any more");
            assert_eq!(with(&[end(4, Some(1), true), force(5, Some(5))]), 0, "at the same time");
            assert_eq!(with(&[end(4, None, true)]), 1, "nobody took it");
            assert_eq!(with(&[end(4, None, false)]), 0, "the lease is over");
            assert_eq!(with(&[end(4, None, true), force(6, Some(5))]), 1, "too late to be the cause");
            assert_eq!(with(&[force(2, Some(4)), end(4, None, true)]), 1, "another's");
            let open = |over| Call { outcome: Outcome::Unknown, ..call(LockOp::Force(over), 0, Moment::MAX, None) };
            assert_eq!([9, 0].map(|over| with(&[open(over), end(4, None, true)])), [0, 1], "before it was asked for");
            let back = Promise { whole_until: 4, ..ALWAYS };
            let calls = [acquire(0, 1, 5), force(2, Some(5)), end(4, Some(1), true)];
            assert_eq!(check(&calls, &[], back).len(), 0, "the store went back");
        }
    }

    #[test]
    fn who_asks_after_a_force_is_given_a_larger_token_and_who_was_freed_goes_on_without_it() {
        // The one who was freed had not heard yet that it was given to him.
        let slow = |token| vec![acquire(0, 9, 5), force(2, Some(5)), acquire(4, 6, token)];
        assert_eq!([6, 4].map(|token| found(&slow(token))), [0, 1]);
        // He thinks that he holds it, for a while.
        let holds = [hold(0, 5, 1, 20), hold(1, 6, 12, 15)];
        let calls = [acquire(0, 1, 5), acquire(8, 11, 6)];
        let with = |more: &[Call<LockOp, LockTold>]| check(&[&calls, more].concat(), &holds, ALWAYS).len();
        assert_eq!(with(&[]), 1);
        assert_eq!(with(&[force(4, Some(5))]), 0);
        assert_eq!(with(&[force(16, Some(5))]), 1, "it was freed after the other had it");
        let open = Call { outcome: Outcome::Unknown, ..force(4, None) };
        assert_eq!(with(&[Call { returned: Moment::MAX, ..open }]), 0);
        // What he writes is refused, and not taken.
        let freed = [acquire(0, 1, 5), force(2, Some(5)), acquire(4, 5, 6), write(6, 6)];
        let then = |write| found(&[&freed[..], &[write, release(10, 5, None)]].concat());
        assert_eq!((then(refused(8, 5)), then(write(8, 5))), (0, 1));
    }

    #[test]
    fn tokens_grow() {
        assert_eq!(found(&[acquire(0, 1, 5), write(2, 5), acquire(3, 4, 6), write(5, 6)]), 0);
        // At the same time: either order.
        assert_eq!(found(&[acquire(0, 9, 6), acquire(1, 8, 5)]), 0);
        assert_eq!(found(&[acquire(0, 1, 5), acquire(2, 3, 5)]), 2);
        assert_eq!(found(&[acquire(0, 1, 6), acquire(2, 3, 5)]), 1);
    }

    #[test]
    fn of_calls_at_the_same_time_who_held_it_before_was_granted_it_before() {
        let calls = [acquire(0, 9, 6), acquire(1, 20, 5)];
        let holds = [hold(0, 6, 10, 12), hold(1, 5, 21, 22)];
        assert_eq!(check(&calls, &holds, ALWAYS).len(), 1);
        let lost = Promise { whole_until: 15, ..ALWAYS };
        assert_eq!(
            check(&calls, &holds, lost),
            [""; 0],
            "the record went in between, and the calls were at the same time"
        );
    }

    #[test]
    fn writes_land_in_the_order_of_the_grants_whatever_their_tokens_are() {
        assert_eq!(found(&[acquire(0, 1, 5), acquire(2, 3, 6), write(4, 6), refused(6, 5)]), 0);
        // Tokens that fell: what compares them takes the earlier grant's write, and refuses the later's.
        assert_eq!(found(&[acquire(0, 1, 6), acquire(2, 3, 5), write(4, 5), write(6, 6)]), 2);
        assert_eq!(found(&[acquire(0, 1, 6), write(2, 6), acquire(4, 5, 5), refused(6, 5)]), 2);
        // A resource that compares nothing.
        assert_eq!(found(&[acquire(0, 1, 5), acquire(2, 3, 6), write(4, 6), write(6, 5)]), 1);
    }

    #[test]
    fn what_is_behind_a_loss_is_promised_by_clocks_that_agree_and_what_is_before_it_always() {
        let calls = [acquire(0, 1, 5), acquire(2, 3, 4), acquire(10, 11, 3), write(12, 3), write(14, 4)];
        let by = |grows_on| check(&calls, &[], Promise { whole_until: 6, grows_on }).len();
        assert_eq!(by(true), 3);
        assert_eq!(by(false), 1, "4 was given after 5 while the record was there");
        let holds = [hold(0, 5, 2, 4), hold(1, 4, 3, 8), hold(2, 3, 7, 9)];
        let both = check(&[], &holds, Promise { whole_until: 6, grows_on: false });
        assert_eq!(both.len(), 1, "a fresh process may overlap once the record was lost: {both:?}");
    }
}
