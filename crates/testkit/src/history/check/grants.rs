//! Locks: tokens grow in the order of the grants.

use std::collections::HashMap;

use crate::history::recorder::{Call, Moment};

/// What is asked of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOp {
    /// Takes it; told: the token.
    Acquire,
    /// Gives it back.
    Release(u64),
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
pub fn check(calls: &[Call<LockOp, LockTold>], holds: &[Hold], promise: Promise) -> Vec<String> {
    let whole: Vec<Hold> = holds.iter().filter_map(|hold| hold.clipped(promise.whole_until)).collect();
    let grants = grants(calls, &whole, promise);
    let mut bad = overlaps(&whole);
    bad.extend(fallen(&grants));
    bad.extend(stale_writes(calls, &grants));
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
