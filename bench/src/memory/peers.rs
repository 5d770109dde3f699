//! The peers, each under the thinnest adapter that keeps the semantics.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use foldhash::quality::RandomState;
use moka::ops::compute;
use quick_cache::sync::{Cache as QuickCache, DefaultLifecycle, EntryAction, EntryResult};
use quick_cache::{OptionsBuilder, UnitWeighter};

use super::table::{Buf, Item, Table};

/// As many as our store has: more than the default of four a core was faster here.
const DASHMAP_SHARDS: usize = 256;

/// `dashmap`: items change in place, under its shard's lock.
pub(super) struct Dash {
    map: DashMap<Box<[u8]>, Item<Vec<u8>>, RandomState>,
}

impl Dash {
    pub(super) fn new() -> Dash {
        Dash { map: DashMap::with_hasher_and_shard_amount(RandomState::default(), DASHMAP_SHARDS) }
    }

    fn change<T>(&self, key: &[u8], change: impl FnOnce(&mut Item<Vec<u8>>) -> T) -> Option<T> {
        let mut item = self.map.get_mut(key)?;
        item.is_alive().then(|| change(&mut item))
    }
}

impl Table for Dash {
    type Owned = Vec<u8>;

    fn read<T>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let item = self.map.get(key)?;
        item.is_alive().then(|| see(&item.value))
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.read(key, <[u8]>::to_vec)
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        let item = self.map.get(key)?;
        item.is_alive().then_some(item.version)
    }

    fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        // An entry needs a key of its own, so the item that is there is looked for without one first.
        if let Some(mut item) = self.map.get_mut(key) {
            return item.overwrite(value, ttl);
        }
        match self.map.entry(Box::from(key)) {
            Entry::Occupied(mut entry) => entry.get_mut().overwrite(value, ttl),
            Entry::Vacant(entry) => drop(entry.insert(Item::new(value, ttl))),
        }
    }

    fn add(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> bool {
        if let Some(mut item) = self.map.get_mut(key) {
            return item.add(value, ttl);
        }
        match self.map.entry(Box::from(key)) {
            Entry::Occupied(mut entry) => entry.get_mut().add(value, ttl),
            Entry::Vacant(entry) => {
                drop(entry.insert(Item::new(value, ttl)));
                true
            }
        }
    }

    fn cas(&self, key: &[u8], version: u64, value: &[u8], ttl: Option<Duration>) -> bool {
        self.change(key, |item| item.cas(version, value, ttl)).unwrap_or(false)
    }

    fn append(&self, key: &[u8], tail: &[u8]) -> bool {
        self.change(key, |item| item.append(tail)).is_some()
    }

    fn incr(&self, key: &[u8], delta: u64) -> Option<u64> {
        self.change(key, |item| item.incr(delta))?
    }

    fn delete(&self, key: &[u8]) -> bool {
        self.map.remove(key).is_some_and(|(_, item)| item.is_alive())
    }
}

/// `quick_cache`: items change in place through its entries, whose keys must be `Vec` to be looked up by slices. Readers get a
/// clone of the item, so values are either shared (`Arc`) or copied (`Vec`): both take part.
pub(super) struct Quick<B: Buf> {
    cache: QuickCache<Vec<u8>, Item<B>>,
}

impl<B: Buf> Quick<B> {
    /// With room for twice the items, so that none is evicted.
    pub(super) fn new(items: u64) -> Option<Quick<B>> {
        let mut options = OptionsBuilder::new();
        options.estimated_items_capacity(usize::try_from(items).ok()?).weight_capacity(2 * items);
        let options = options.build().ok()?;
        let lifecycle = DefaultLifecycle::default();
        let cache =
            QuickCache::with_options(options, UnitWeighter, quick_cache::DefaultHashBuilder::default(), lifecycle);
        Some(Quick { cache })
    }

    fn change<T>(&self, key: &[u8], change: impl FnOnce(&mut Item<B>) -> T) -> Option<T> {
        let change = |_: &Vec<u8>, item: &mut Item<B>| EntryAction::Retain(item.is_alive().then(|| change(item)));
        match self.cache.entry(key, None, change) {
            EntryResult::Retained(outcome) => outcome,
            // Dropped, the guard of a vacant place gives it up again.
            _ => None,
        }
    }

    fn put(&self, key: &[u8], value: &[u8], ttl: Option<Duration>, put: impl FnOnce(&mut Item<B>) -> bool) -> bool {
        match self.cache.entry(key, None, |_, item| EntryAction::Retain(put(item))) {
            EntryResult::Retained(outcome) => outcome,
            EntryResult::Vacant(guard) => guard.insert(Item::new(value, ttl)).is_ok(),
            _ => false,
        }
    }
}

impl<B: Buf> Table for Quick<B> {
    type Owned = B;

    fn read<T>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let item = self.cache.peek(key)?;
        item.is_alive().then(|| see(item.value.as_ref()))
    }

    fn get(&self, key: &[u8]) -> Option<B> {
        let item = self.cache.peek(key)?;
        item.is_alive().then_some(item.value)
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        self.change(key, |item| item.version)
    }

    fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.put(key, value, ttl, |item| {
            item.overwrite(value, ttl);
            true
        });
    }

    fn add(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> bool {
        self.put(key, value, ttl, |item| item.add(value, ttl))
    }

    fn cas(&self, key: &[u8], version: u64, value: &[u8], ttl: Option<Duration>) -> bool {
        self.change(key, |item| item.cas(version, value, ttl)).unwrap_or(false)
    }

    fn append(&self, key: &[u8], tail: &[u8]) -> bool {
        self.change(key, |item| item.append(tail)).is_some()
    }

    fn incr(&self, key: &[u8], delta: u64) -> Option<u64> {
        self.change(key, |item| item.incr(delta))?
    }

    fn delete(&self, key: &[u8]) -> bool {
        self.cache.remove(key).is_some_and(|(_, item)| item.is_alive())
    }
}

/// What moka holds.
type MokaItem = Item<Arc<[u8]>>;

/// `moka`: items are replaced, never changed in place, and readers share them.
pub(super) struct Moka {
    cache: moka::sync::Cache<Box<[u8]>, MokaItem, RandomState>,
}

impl Moka {
    pub(super) fn new() -> Moka {
        Moka { cache: moka::sync::Cache::builder().build_with_hasher(RandomState::default()) }
    }

    fn alive(&self, key: &[u8]) -> Option<MokaItem> {
        self.cache.get(key).filter(Item::is_alive)
    }

    /// Replaces an item by what `change` makes of it; `None` leaves it.
    fn change<T>(&self, key: &[u8], change: impl FnOnce(Option<MokaItem>) -> (T, Option<MokaItem>)) -> Option<T> {
        let mut outcome = None;
        self.cache.entry(Box::from(key)).and_compute_with(|entry| {
            let (answer, put) = change(entry.map(moka::Entry::into_value));
            outcome = Some(answer);
            put.map_or(compute::Op::Nop, compute::Op::Put)
        });
        outcome
    }

    fn change_alive<T>(&self, key: &[u8], change: impl FnOnce(&mut MokaItem) -> T) -> Option<T> {
        self.change(key, |item| match item.filter(Item::is_alive) {
            Some(mut item) => {
                let answer = change(&mut item);
                (Some(answer), Some(item))
            }
            None => (None, None),
        })?
    }
}

impl Table for Moka {
    type Owned = Arc<[u8]>;

    fn read<T>(&self, key: &[u8], see: impl FnOnce(&[u8]) -> T) -> Option<T> {
        Some(see(&self.alive(key)?.value))
    }

    fn get(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        Some(self.alive(key)?.value)
    }

    fn version(&self, key: &[u8]) -> Option<u64> {
        Some(self.alive(key)?.version)
    }

    fn set(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        self.change(key, |item| match item {
            Some(mut item) => {
                item.overwrite(value, ttl);
                ((), Some(item))
            }
            None => ((), Some(Item::new(value, ttl))),
        });
    }

    fn add(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) -> bool {
        let added = self.change(key, |item| match item {
            Some(mut item) => {
                let added = item.add(value, ttl);
                (added, added.then_some(item))
            }
            None => (true, Some(Item::new(value, ttl))),
        });
        added.unwrap_or(false)
    }

    fn cas(&self, key: &[u8], version: u64, value: &[u8], ttl: Option<Duration>) -> bool {
        let swapped = self.change(key, |item| match item {
            Some(mut item) => {
                let swapped = item.cas(version, value, ttl);
                (swapped, swapped.then_some(item))
            }
            None => (false, None),
        });
        swapped.unwrap_or(false)
    }

    fn append(&self, key: &[u8], tail: &[u8]) -> bool {
        self.change_alive(key, |item| item.append(tail)).is_some()
    }

    fn incr(&self, key: &[u8], delta: u64) -> Option<u64> {
        self.change_alive(key, |item| item.incr(delta))?
    }

    fn delete(&self, key: &[u8]) -> bool {
        self.cache.remove(key).is_some_and(|item| item.is_alive())
    }

    fn settle(&self) {
        self.cache.run_pending_tasks();
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{check, check_atomic};
    use super::*;

    #[test]
    fn dashmap_has_the_semantics() {
        check(&Dash::new());
        check_atomic(&Dash::new());
    }

    #[test]
    fn quick_cache_has_the_semantics() {
        check(&Quick::<Vec<u8>>::new(1_000).unwrap());
        check_atomic(&Quick::<Vec<u8>>::new(1_000).unwrap());
        check(&Quick::<Arc<[u8]>>::new(1_000).unwrap());
        check_atomic(&Quick::<Arc<[u8]>>::new(1_000).unwrap());
    }

    #[test]
    fn moka_has_the_semantics() {
        check(&Moka::new());
        check_atomic(&Moka::new());
    }
}
