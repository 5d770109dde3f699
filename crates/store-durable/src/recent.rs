//! The items that were decided last, of one shard: those that are not settled, all of them, and of those that are as many as fit into a bound.
//!
//! Those that are settled are forgotten in the order in which they were settled. Forgetting needs no care: the engine has them.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use foldhash::quality::RandomState;

use crate::direct::Ticket;
use crate::layout::Record;

/// Bytes of settled items that a shard keeps, with what keeping them takes.
pub(crate) const KEPT_BYTES_MAX: usize = 32 << 10;
/// What an item takes here besides its key and value, about.
const ITEM_BYTES: usize = 192;

/// The items of a shard that were decided last.
#[derive(Default)]
pub(crate) struct Recent {
    items: HashMap<Bytes, Decided, RandomState>,
    /// What was settled, oldest first, and may have been decided anew since.
    settled: VecDeque<(Bytes, Ticket, usize)>,
    kept_bytes: usize,
}

/// An item as it was decided last; `None`: gone.
pub(crate) struct Decided {
    pub(crate) record: Option<Record>,
    pub(crate) ticket: Ticket,
}

impl Recent {
    /// What was decided of an item, if that is known here.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Decided> {
        self.items.get(key)
    }

    /// This is what an item is from now on.
    pub(crate) fn decide(&mut self, key: Bytes, record: Option<Record>, ticket: Ticket) {
        self.items.insert(key, Decided { record, ticket });
    }

    /// What was decided by this ticket is where all look; what was decided later is not.
    pub(crate) fn settle(&mut self, key: &Bytes, ticket: Ticket) {
        let Some(decided) = self.items.get(key).filter(|decided| decided.ticket == ticket) else { return };
        let bytes = ITEM_BYTES + key.len() + decided.record.as_ref().map_or(0, |record| record.value.len());
        if bytes > KEPT_BYTES_MAX {
            self.items.remove(key);
            return;
        }
        self.settled.push_back((key.clone(), ticket, bytes));
        self.kept_bytes += bytes;
        while self.kept_bytes > KEPT_BYTES_MAX {
            let Some((key, ticket, bytes)) = self.settled.pop_front() else { break };
            self.kept_bytes -= bytes;
            if self.items.get(&key).is_some_and(|decided| decided.ticket == ticket) {
                self.items.remove(&key);
            }
        }
    }

    /// Forgets everything: all items are gone.
    pub(crate) fn clear(&mut self) {
        *self = Recent::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: &[u8]) -> Option<Record> {
        Some(Record { cas: 1, value: Bytes::copy_from_slice(value), ..Record::default() })
    }

    fn key(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    #[test]
    fn what_is_not_settled_is_kept_however_much_it_is() {
        let mut recent = Recent::default();
        for number in 0..100 {
            recent.decide(key(number), record(&[7; KEPT_BYTES_MAX]), number + 1);
        }
        assert!((0..100).all(|number| recent.get(&key(number)).is_some()));
    }

    #[test]
    fn what_is_settled_is_kept_up_to_the_bound_and_the_oldest_is_forgotten() {
        let mut recent = Recent::default();
        let count = (KEPT_BYTES_MAX / ITEM_BYTES * 3) as u64;
        for number in 0..count {
            recent.decide(key(number), record(b"v"), number + 1);
            recent.settle(&key(number), number + 1);
            assert!(recent.kept_bytes <= KEPT_BYTES_MAX);
            assert!(recent.get(&key(number)).is_some(), "the newest stays");
        }
        assert!(recent.get(&key(0)).is_none());
        assert_eq!(recent.items.len(), recent.settled.len());
    }

    #[test]
    fn one_that_is_larger_than_the_bound_is_not_kept() {
        let mut recent = Recent::default();
        recent.decide(key(1), record(&[7; KEPT_BYTES_MAX]), 1);
        recent.settle(&key(1), 1);
        assert!(recent.get(&key(1)).is_none());
        assert_eq!(recent.kept_bytes, 0);
    }

    #[test]
    fn one_that_was_decided_anew_is_not_forgotten_for_what_it_was() {
        let mut recent = Recent::default();
        recent.decide(key(1), record(b"old"), 1);
        recent.settle(&key(1), 1);
        recent.decide(key(1), record(b"new"), 2);
        recent.settle(&key(1), 1);
        for number in 2..(KEPT_BYTES_MAX / ITEM_BYTES * 3) as u64 {
            recent.decide(key(number), record(b"v"), number + 1);
            recent.settle(&key(number), number + 1);
        }
        assert_eq!(recent.get(&key(1)).and_then(|decided| decided.record.clone()), record(b"new"), "it is not settled");
    }

    #[test]
    fn one_that_is_gone_is_known_to_be_gone() {
        let mut recent = Recent::default();
        recent.decide(key(1), None, 1);
        recent.settle(&key(1), 1);
        assert!(recent.get(&key(1)).is_some_and(|decided| decided.record.is_none()));
    }
}
