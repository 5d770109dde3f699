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

/// What is wrong with the grants of a lock whose record was never lost, in n log n: a token that is given twice, or is less than one that
/// was given before; a write that landed after one of a later grant.
pub fn check(calls: &[Call<LockOp, LockTold>]) -> Vec<String> {
    let mut bad = Vec::new();
    let mut granted: HashMap<u64, usize> = HashMap::new();
    let mut ended: Vec<(Moment, u64)> = Vec::new();
    for call in calls {
        if let (LockOp::Acquire, Some(Some(token))) = (call.op, call.ok()) {
            if let Some(other) = granted.insert(*token, call.client) {
                bad.push(format!("token {token} was given to clients {other} and {}", call.client));
            }
            ended.push((call.returned, *token));
        }
    }
    ended.sort_unstable();
    let mut most = 0;
    for entry in &mut ended {
        most = most.max(entry.1);
        entry.1 = most;
    }
    for call in calls {
        let (LockOp::Acquire, Some(Some(token))) = (call.op, call.ok()) else { continue };
        let before = ended.partition_point(|(at, _)| *at < call.invoked);
        if before > 0 && ended[before - 1].1 >= *token {
            bad.push(format!("token {token} was given after {}", ended[before - 1].1));
        }
    }
    bad.extend(stale_writes(calls));
    bad
}

/// Writes that were taken, one after the other, go by growing tokens.
fn stale_writes(calls: &[Call<LockOp, LockTold>]) -> Vec<String> {
    let mut taken: Vec<(Moment, u64)> = Vec::new();
    for call in calls {
        if let (LockOp::Write(token), Some(Some(1))) = (call.op, call.ok()) {
            taken.push((call.returned, token));
        }
    }
    taken.sort_unstable();
    let stale = taken.windows(2).filter(|pair| pair[0].1 > pair[1].1);
    stale.map(|pair| format!("a write with token {} landed after one with {}", pair[1].1, pair[0].1)).collect()
}

/// A lock as one client held it, by the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Whose.
    pub client: usize,
    /// When it was granted.
    pub from_ms: u64,
    /// When its lease ended, or it was given back: whichever came first.
    pub until_ms: u64,
}

/// Two who held a lock at once, in n log n.
pub fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut holds = holds.to_vec();
    holds.sort_unstable_by_key(|hold| (hold.from_ms, hold.until_ms));
    let mut bad = Vec::new();
    let mut longest: Option<Hold> = None;
    for hold in holds {
        if let Some(other) = longest.filter(|other| other.until_ms > hold.from_ms) {
            bad.push(format!("clients {} and {} held the lock at {} ms", other.client, hold.client, hold.from_ms));
        }
        if longest.is_none_or(|other| other.until_ms < hold.until_ms) {
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

    #[test]
    fn holds_that_overlap_are_found() {
        let hold = |client, from_ms, until_ms| Hold { client, from_ms, until_ms };
        assert_eq!(overlaps(&[hold(1, 5, 9), hold(0, 0, 5)]), [""; 0]);
        assert_eq!(overlaps(&[hold(0, 0, 9), hold(1, 2, 3), hold(2, 4, 5)]).len(), 2);
    }

    #[test]
    fn tokens_grow_and_stale_writes_are_found() {
        let acquire = |invoked, returned, token| call(LockOp::Acquire, invoked, returned, Some(token));
        let write = |at, token| call(LockOp::Write(token), at, at + 1, Some(1));
        assert_eq!(check(&[acquire(0, 1, 5), write(2, 5), acquire(3, 4, 6), write(5, 6)]), [""; 0]);
        // At the same time: either order.
        assert_eq!(check(&[acquire(0, 9, 6), acquire(1, 8, 5)]), [""; 0]);
        assert_eq!(check(&[acquire(0, 1, 5), acquire(2, 3, 5)]).len(), 2);
        assert_eq!(check(&[acquire(0, 1, 6), acquire(2, 3, 5)]).len(), 1);
        assert_eq!(check(&[acquire(0, 1, 5), acquire(2, 3, 6), write(4, 6), write(6, 5)]).len(), 1);
    }
}
