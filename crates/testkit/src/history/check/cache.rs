//! Caches: what is served was made for that key, and not before an invalidation that the reader came after.

use std::collections::HashMap;

use crate::history::recorder::{Call, Moment};

/// What is asked of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheOp {
    /// Reads a key, or makes its value.
    Get(u64),
    /// Ends what is there.
    Invalidate(u64),
}

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheTold {
    /// This value was found.
    Found(u64),
    /// This value was made by the caller, who began to make it at this moment.
    Made(u64, Moment),
    /// It is done.
    Done,
}

/// What is wrong with a cache's history, in n log n.
pub fn check(calls: &[Call<CacheOp, CacheTold>], made: &HashMap<u64, (u64, Moment)>) -> Vec<String> {
    // By key: ends of invalidations, each with the latest beginning of any that had ended by then.
    let mut invalidations: HashMap<u64, Vec<(Moment, Moment)>> = HashMap::new();
    for call in calls {
        if let (CacheOp::Invalidate(key), Some(_)) = (call.op, call.ok()) {
            invalidations.entry(key).or_default().push((call.returned, call.invoked));
        }
    }
    for ended in invalidations.values_mut() {
        ended.sort_unstable();
        let mut latest = 0;
        for entry in ended {
            latest = latest.max(entry.1);
            entry.1 = latest;
        }
    }
    let wrong = calls.iter().filter_map(|call| {
        let (CacheOp::Get(key), Some(CacheTold::Found(value))) = (call.op, call.ok()) else { return None };
        let Some(&(made_for, begun)) = made.get(value).filter(|(_, begun)| *begun < call.returned) else {
            return Some(format!("{value} was found for {key}, and nobody had made it"));
        };
        if made_for != key {
            return Some(format!("{value} was made for {made_for} and found for {key}"));
        }
        let ended = invalidations.get(&key)?;
        let before = ended.partition_point(|(ended, _)| *ended < call.invoked);
        let (_, latest) = *ended.get(before.checked_sub(1)?)?;
        (begun < latest).then(|| {
            format!(
                "{value} of key {key}, begun at {begun}, was found at {} after an invalidation at {latest}",
                call.invoked
            )
        })
    });
    wrong.collect()
}

/// A turn to make a key's value, which its holder had for certain from `begun` to `finishing`, unless somebody invalidated the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The key.
    pub key: u64,
    /// When its holder began to ask for it.
    pub asked: Moment,
    /// When it was told to have it.
    pub begun: Moment,
    /// When it began to put the value in the cache.
    pub finishing: Moment,
}

/// What of turns is certain: those that began before this moment, by which nothing was lost or late that could have ended them.
pub fn certain(mut turns: Vec<Turn>, until: Moment) -> Vec<Turn> {
    turns.retain(|turn| turn.begun <= until);
    turns
}

/// Turns of one key that two had at once, with no invalidation that could have ended the first one's: for histories in which no lease
/// runs out, in n log n and, for each overlap, the invalidations of its key.
pub fn two_at_once(calls: &[Call<CacheOp, CacheTold>], turns: &[Turn]) -> Vec<String> {
    let mut turns = turns.to_vec();
    turns.sort_unstable_by_key(|turn| (turn.key, turn.begun));
    // Of each key's turns up to now, the one that lasts longest.
    let mut longest: Option<Turn> = None;
    let mut bad = Vec::new();
    for turn in turns {
        if let Some(first) = longest.filter(|first| first.key == turn.key && first.finishing > turn.begun) {
            // Who was told first need not have had it first.
            let is_ended = |one: &Turn, next: &Turn| {
                calls.iter().any(|call| {
                    let is_of_key = call.op == CacheOp::Invalidate(one.key) && call.may_count();
                    is_of_key && call.invoked < next.begun && call.returned > one.asked
                })
            };
            if !is_ended(&first, &turn) && !is_ended(&turn, &first) {
                bad.push(format!("two make key {} at once: {first:?} and {turn:?}", turn.key));
            }
        }
        longest = longest.filter(|first| first.key == turn.key && first.finishing > turn.finishing).or(Some(turn));
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn call(op: CacheOp, invoked: u64, told: CacheTold) -> Call<CacheOp, CacheTold> {
        Call { client: 0, op, invoked, returned: invoked + 2, outcome: Outcome::Ok(told) }
    }

    #[test]
    fn what_was_invalidated_invented_or_anothers_is_found() {
        let made = HashMap::from([(7, (1, 1)), (8, (2, 1))]);
        let invalidate = call(CacheOp::Invalidate(1), 4, CacheTold::Done);
        let found = |at, key, value| call(CacheOp::Get(key), at, CacheTold::Found(value));
        assert_eq!(check(&[found(2, 1, 7), invalidate.clone(), found(5, 1, 7)], &made), [""; 0]);
        assert_eq!(check(&[invalidate, found(7, 1, 7)], &made).len(), 1);
        assert_eq!(check(&[found(2, 1, 8)], &made).len(), 1);
        assert_eq!(check(&[found(2, 1, 9)], &made).len(), 1);
    }

    #[test]
    fn two_turns_at_once_are_found_but_where_an_invalidation_ended_the_first() {
        let turn = |key, asked| Turn { key, asked, begun: asked + 1, finishing: asked + 10 };
        let invalidate = |at| call(CacheOp::Invalidate(1), at, CacheTold::Done);
        assert_eq!(two_at_once(&[], &[turn(1, 1), turn(2, 2), turn(1, 11)]), [""; 0], "one after the other");
        assert_eq!(two_at_once(&[], &[turn(1, 5), turn(1, 1)]).len(), 1);
        assert_eq!(two_at_once(&[invalidate(3)], &[turn(1, 1), turn(1, 5)]), [""; 0]);
        // The second to be told was the first to have it, and lost it before the other asked.
        let told_late = Turn { key: 1, asked: 1, begun: 9, finishing: 12 };
        assert_eq!(two_at_once(&[invalidate(2)], &[turn(1, 5), told_late]), [""; 0]);
        assert_eq!(two_at_once(&[invalidate(10)], &[turn(1, 5), told_late]).len(), 1);
        // Over before the first was asked for, and begun after the second was had.
        for at in [0, 7] {
            assert_eq!(two_at_once(&[invalidate(at)], &[turn(1, 3), turn(1, 5)]).len(), 1, "{at}");
        }
        // What began behind a loss may be beside another that lost its lease by it.
        let both = || vec![turn(1, 1), turn(1, 5)];
        assert_eq!([6, 5].map(|until| two_at_once(&[], &certain(both(), until)).len()), [1, 0]);
        // The turn in the middle is short; the first outlasts it.
        let short = Turn { finishing: 4, ..turn(1, 2) };
        assert_eq!(two_at_once(&[], &[turn(1, 1), short, turn(1, 8)]).len(), 2);
    }
}
