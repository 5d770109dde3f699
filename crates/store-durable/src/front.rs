//! What was written last, in front of the engine.
//!
//! An engine that is given item by item searches its list in memory for each, and that costs more than all else. So a round of many changes is written as *one* entry of the engine's,
//! a [`Round`](crate::layout::Round), and what it changed is kept here, where readers look first. Later, some at a time and in the order of their keys, the
//! items themselves go into the engine ([`moving`](crate::moving)), and then the rounds go: first the oldest. A store that is opened reads the rounds that are left.
//!
//! A round is a batch like any other: synced, numbered and verified with it. Nothing here has a file of its own.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::RandomState;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use crate::layout::{self, EXPIRY, ITEM, Record, Round};

/// Locks that keys share.
const SHARDS: usize = 64;

/// What is shorter is copied when it is read.
const COPIED_BYTES_MAX: usize = 4096;

/// A copy of an item's key: most are short, and need no allocation.
pub(crate) type ShortKey = SmallVec<[u8; 32]>;

/// An item's bytes as the engine will have them (`None`: it is gone), and the round that made it so.
struct Kept {
    value: Option<Bytes>,
    sequence: u64,
}

type Shard = HashMap<ShortKey, Kept, RandomState>;

/// What a change takes in memory besides its round's bytes, about: a place in a table that is two thirds full, and one in the list of what is sealed.
pub(crate) const CHANGE_BYTES: usize = size_of::<(ShortKey, Kept)>() * 3 / 2 + size_of::<ShortKey>();

/// The items that rounds have changed and the engine may not have.
pub(crate) struct Front {
    shards: Vec<RwLock<Shard>>,
    hasher: RandomState,
    items: AtomicUsize,
    /// Held while a round is put in, and while items that the engine has are taken out: a moment is before or after it.
    turn: RwLock<()>,
}

impl Default for Front {
    fn default() -> Front {
        let hasher = RandomState::default();
        let shard = || RwLock::new(HashMap::with_hasher(hasher.clone()));
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Front { shards, hasher, items: AtomicUsize::new(0), turn: RwLock::default() }
    }
}

impl Front {
    fn shard(&self, key: &[u8]) -> &RwLock<Shard> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    /// How many items are here.
    pub(crate) fn items(&self) -> usize {
        self.items.load(Ordering::Acquire)
    }

    /// What is known of an item here; `Some(None)`: it is gone.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        if self.items() == 0 {
            return None;
        }
        let value = self.shard(key).read().get(key).map(|kept| kept.value.clone())?;
        // Whoever keeps it should not keep the whole round for it.
        Some(value.map(|value| if value.len() < COPIED_BYTES_MAX { Bytes::copy_from_slice(&value) } else { value }))
    }

    /// For the committer, while it writes a round and puts it in.
    pub(crate) fn change(&self) -> RwLockWriteGuard<'_, ()> {
        self.turn.write()
    }

    /// For whoever needs all of one moment; `None` where it does not come to that in so long.
    pub(crate) fn hold(&self, wait: Duration) -> Option<RwLockReadGuard<'_, ()>> {
        self.turn.try_read_for(wait)
    }

    /// What a round has changed is seen from now on. To be called under [`change`](Front::change), when the round is as durable as was asked.
    pub(crate) fn put(&self, round: &Round) {
        for (key, value) in round.items() {
            let kept = Kept { value, sequence: round.sequence };
            if self.shard(key).write().insert(key.into(), kept).is_none() {
                self.items.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// The keys of all items, in their order.
    pub(crate) fn keys(&self) -> Vec<ShortKey> {
        let mut keys: Vec<ShortKey> =
            self.shards.iter().flat_map(|shard| shard.read().keys().cloned().collect::<Vec<_>>()).collect();
        keys.sort_unstable();
        keys
    }

    /// An item as it was left by a round up to this one; `None` where a later one changed it.
    pub(crate) fn left_by(&self, key: &[u8], sequence: u64) -> Option<Option<Bytes>> {
        let shard = self.shard(key).read();
        shard.get(key).filter(|kept| kept.sequence <= sequence).map(|kept| kept.value.clone())
    }

    /// The engine has all that rounds up to this one have left.
    pub(crate) fn forget(&self, keys: &[ShortKey], sequence: u64) {
        let _turn = self.change();
        for key in keys {
            let mut shard = self.shard(key).write();
            if shard.get(key).is_some_and(|kept| kept.sequence <= sequence) {
                shard.remove(key);
                self.items.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Engine entries from `from` on, before `to`, as they will be: items, and the ends of their lives; the first `most` of them. To be called under [`hold`](Front::hold).
    pub(crate) fn entries(&self, range: Range<&[u8]>, most: usize) -> BTreeMap<Vec<u8>, Option<Bytes>> {
        let mut entries = BTreeMap::new();
        if self.items() == 0 {
            return entries;
        }
        let mut add = |key: &[u8], value: Option<Bytes>| {
            let has_room = entries.len() < most;
            if range.contains(&key) && (has_room || entries.last_key_value().is_some_and(|(last, _)| key < &last[..])) {
                entries.insert(key.to_vec(), value);
                if !has_room {
                    entries.pop_last();
                }
            }
        };
        let wants_lives = range.start < &[EXPIRY + 1][..];
        let wants_items = range.end > &[ITEM][..];
        let mut engine_key = Vec::new();
        for shard in &self.shards {
            for (key, kept) in shard.read().iter() {
                let end = kept.value.as_ref().filter(|_| wants_lives).and_then(|value| Record::end_of(value));
                if let Some(end) = end {
                    layout::put_expiry_key(end, key, &mut engine_key);
                    add(&engine_key, Some(Bytes::new()));
                }
                if wants_items {
                    layout::put_item_key(key, &mut engine_key);
                    add(&engine_key, kept.value.clone());
                }
            }
        }
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::End;
    use crate::layout::RoundWriter;

    #[test]
    fn a_page_has_the_first_entries_of_all() {
        let front = Front::default();
        let mut writer = RoundWriter::new(1, 0, 0);
        for number in 0..500_u32 {
            let life = number.is_multiple_of(3).then_some(End::at(u64::from(number)));
            let record = Record { end: life, value: Bytes::from_static(b"v"), ..Record::default() };
            let key = number.wrapping_mul(2_654_435_761).to_be_bytes();
            writer.add(&key, (!number.is_multiple_of(5)).then_some(&record));
        }
        front.put(&writer.finish().0);
        let from = layout::item_key(&[80]);
        for range in [&[EXPIRY][..]..&[ITEM + 1], &from..&[ITEM + 1], &[ITEM]..&from] {
            let all = front.entries(range.clone(), usize::MAX);
            assert!(all.len() > 100);
            for most in [1, 2, 100, all.len(), all.len() + 1] {
                assert!(front.entries(range.clone(), most).iter().eq(all.iter().take(most)), "{most} of {range:?}");
            }
        }
    }
}
