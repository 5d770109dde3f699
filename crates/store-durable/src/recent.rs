//! The items that were decided last, of one shard: those that are not settled, all of them, and of those that are as many as fit into a bound.
//!
//! What is settled is forgotten in the order in which it was decided, by whoever decides next in the shard, who has it at hand, or within a second by the timer; what is
//! [large](LARGE_BYTES), as soon as it is settled. Forgetting needs no care: the engine has it.

use std::collections::VecDeque;

use bytes::Bytes;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use crate::direct::Ticket;
use crate::layout::Record;

/// Bytes of items that a shard keeps, with what keeping them takes, of those that are settled.
pub(crate) const KEPT_BYTES_MAX: usize = 32 << 10;
/// An item of more is not kept.
pub(crate) const LARGE_BYTES: usize = 4 << 10;
/// What an item takes here besides its key and value, about.
const ITEM_BYTES: usize = 192;

/// The items of a shard that were decided last. Keys come with their hashes, of which those of a shard may have bits 32 and up in common.
#[derive(Default)]
pub(crate) struct Recent {
    items: HashTable<Decided>,
    /// What was decided and is to be forgotten, oldest first; it may have been decided anew since.
    order: VecDeque<Old>,
    order_bytes: usize,
}

/// An item as it was decided last; `None`: gone.
pub(crate) struct Decided {
    hash: u64,
    key: Bytes,
    pub(crate) record: Option<Record>,
    pub(crate) ticket: Ticket,
}

struct Old {
    hash: u64,
    ticket: Ticket,
    bytes: usize,
}

/// Whether an item is forgotten as soon as it is settled.
pub(crate) fn is_large(key: &[u8], record: Option<&Record>) -> bool {
    bytes_of(key, record) > LARGE_BYTES
}

fn bytes_of(key: &[u8], record: Option<&Record>) -> usize {
    key.len() + record.map_or(0, |record| record.value.len())
}

impl Recent {
    /// What was decided of an item, if that is known here.
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<&Decided> {
        self.items.find(hash, |decided| decided.key == key)
    }

    /// This is what an item is from now on; what is settled, up to the ticket `settled`, is [trimmed](Recent::trim).
    pub(crate) fn decide(&mut self, hash: u64, key: Bytes, record: Option<Record>, ticket: Ticket, settled: Ticket) {
        let bytes = bytes_of(&key, record.as_ref());
        if bytes <= LARGE_BYTES {
            let bytes = ITEM_BYTES + bytes;
            self.order.push_back(Old { hash, ticket, bytes });
            self.order_bytes += bytes;
        }
        let decided = Decided { hash, key, record, ticket };
        match self.items.entry(hash, |there| there.key == decided.key, |there| there.hash) {
            Entry::Occupied(mut there) => *there.get_mut() = decided,
            Entry::Vacant(vacant) => _ = vacant.insert(decided),
        }
        self.trim(settled);
    }

    /// Forgets the oldest of what is settled, up to this ticket, where there is too much.
    pub(crate) fn trim(&mut self, settled: Ticket) {
        while self.order_bytes > KEPT_BYTES_MAX {
            let Some(old) = self.order.front().filter(|old| old.ticket <= settled) else { break };
            let Old { hash, ticket, bytes } = *old;
            self.order.pop_front();
            self.order_bytes -= bytes;
            self.forget(hash, ticket);
        }
    }

    /// Forgets what was decided by this ticket, which is settled; not what was decided later.
    pub(crate) fn forget(&mut self, hash: u64, ticket: Ticket) {
        if let Ok(decided) = self.items.find_entry(hash, |decided| decided.ticket == ticket) {
            decided.remove();
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

    /// Hashes of one shard.
    fn hash(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9) & 0xfc00_0000_ffff_ffff
    }

    fn key(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    fn get(recent: &Recent, number: u64) -> Option<&Decided> {
        recent.get(hash(number), &key(number))
    }

    #[test]
    fn what_is_not_settled_is_kept_however_much_it_is() {
        let mut recent = Recent::default();
        for number in 0..100 {
            recent.decide(hash(number), key(number), record(&[7; LARGE_BYTES / 2]), number + 1, 0);
        }
        assert!((0..100).all(|number| get(&recent, number).is_some()));
        recent.decide(hash(100), key(100), record(b""), 101, 60);
        assert!((0..100).all(|number| get(&recent, number).is_some() == (number >= 60)), "the rest is too much, too");
        recent.trim(100);
        assert!(recent.order_bytes <= KEPT_BYTES_MAX && get(&recent, 100).is_some());
    }

    #[test]
    fn what_is_settled_is_kept_up_to_the_bound_and_the_oldest_is_forgotten() {
        let mut recent = Recent::default();
        let count = (KEPT_BYTES_MAX / ITEM_BYTES * 3) as u64;
        for number in 0..count {
            recent.decide(hash(number), key(number), record(b"v"), number + 1, number);
            assert!(recent.order_bytes <= KEPT_BYTES_MAX);
            assert!(get(&recent, number).is_some(), "the newest stays");
        }
        assert!(get(&recent, 0).is_none() && recent.items.len() > 100);
        assert_eq!(recent.items.len(), recent.order.len());
    }

    #[test]
    fn one_that_is_large_is_kept_until_it_is_settled() {
        let mut recent = Recent::default();
        let large = record(&[7; LARGE_BYTES]);
        assert!(is_large(&key(1), large.as_ref()) && !is_large(&key(1), record(b"v").as_ref()) && !is_large(b"", None));
        recent.decide(hash(1), key(1), large.clone(), 1, 0);
        recent.decide(hash(2), key(2), large, 2, 0);
        assert!(get(&recent, 1).is_some() && recent.order_bytes == 0);
        recent.forget(hash(1), 1);
        assert!(get(&recent, 1).is_none());
        recent.decide(hash(2), key(2), record(b"new"), 3, 2);
        recent.forget(hash(2), 2);
        assert_eq!(get(&recent, 2).and_then(|decided| decided.record.clone()), record(b"new"));
    }

    #[test]
    fn one_that_was_decided_anew_is_not_forgotten_for_what_it_was() {
        let mut recent = Recent::default();
        recent.decide(hash(1), key(1), record(b"old"), 1, 0);
        let count = (KEPT_BYTES_MAX / ITEM_BYTES * 3) as u64;
        recent.decide(hash(1), key(1), record(b"new"), count, count - 1);
        for number in 2..count {
            recent.decide(hash(number), key(number), record(b"v"), count + number, count - 1);
        }
        assert_eq!(get(&recent, 1).and_then(|decided| decided.record.clone()), record(b"new"), "it is not settled");
    }

    #[test]
    fn one_that_is_gone_is_known_to_be_gone() {
        let mut recent = Recent::default();
        recent.decide(hash(1), key(1), None, 1, 0);
        recent.decide(hash(2), key(2), None, 2, 1);
        assert!(get(&recent, 1).is_some_and(|decided| decided.record.is_none()));
    }
}
