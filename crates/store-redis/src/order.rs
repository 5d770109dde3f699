//! The order of the ops on one key, in a batch of which some are sent again. In one pass each: a batch may have thousands of ops.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Of so many ops, those that did not run and may be sent again, in their order: behind none of them has another on its key run.
pub(crate) fn not_overtaken<K: Eq + Hash>(
    ops: usize,
    ran: impl Fn(usize) -> bool,
    key: impl Fn(usize) -> K,
) -> Vec<usize> {
    let (mut again, mut have_run) = (Vec::new(), HashSet::new());
    for op in (0..ops).rev() {
        if ran(op) {
            have_run.insert(key(op));
        } else if !have_run.contains(&key(op)) {
            again.push(op);
        }
    }
    again.reverse();
    again
}

/// Of each of so many ops, the first on its key.
pub(crate) fn firsts<K: Eq + Hash>(ops: usize, key: impl Fn(usize) -> K) -> Vec<usize> {
    let mut known = HashMap::new();
    (0..ops).map(|op| *known.entry(key(op)).or_insert(op)).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_sent_again_overtakes_nothing_on_its_key() {
        let keys = ["a", "b", "a", "a", "c", "b", "a"];
        // By those that have run.
        for (ran, again) in [
            (&[][..], &[0, 1, 2, 3, 4, 5, 6][..]),
            (&[3], &[1, 4, 5, 6]),
            (&[0, 1, 4], &[2, 3, 5, 6]),
            (&[5, 6], &[4]),
            (&[0, 1, 2, 3, 4, 5, 6], &[]),
        ] {
            assert_eq!(not_overtaken(keys.len(), |op| ran.contains(&op), |op| keys[op]), again, "{ran:?}");
        }
        assert_eq!(firsts(keys.len(), |op| keys[op]), [0, 1, 0, 0, 4, 1, 0]);
    }

    /// Of the largest batch each key is looked at once.
    #[test]
    fn a_large_batch_is_gone_through_once() {
        let (ops, looks) = (crate::profile::BATCH_OPS_MAX, Cell::new(0));
        let key = |op: usize| {
            looks.set(looks.get() + 1);
            op
        };
        assert_eq!(not_overtaken(ops, |op| op % 2 == 0, key).len(), ops / 2);
        assert_eq!(firsts(ops, key).len(), ops);
        assert_eq!(looks.get(), 2 * ops);
    }
}
