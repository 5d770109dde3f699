//! What the counter's tests share.
use std::sync::Arc;

use crate::support::steady::metered;
use larder_core::{Ctx, Key, StoreRef};
use larder_layers::{Counting, Counts};
use larder_store_memory::MemoryStore;
use larder_structures::{Counter, Name, registry};
use larder_testkit::yielding::Yielding;

pub(crate) fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// The key of a slot, by the documented scheme.
pub(crate) async fn slot_key(store: &StoreRef, name: &str, index: u16) -> Key {
    data_key(store, name, 's', index).await
}

pub(crate) async fn data_key(store: &StoreRef, name: &str, role: char, index: u16) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.{name}.{role}.{:016x}.{index}", manifest.generation)).unwrap()
}

/// A store that counts, over a memory store.
pub(crate) fn counting() -> (StoreRef, Counting) {
    let counting = metered(memory());
    (Arc::new(counting.clone()), counting)
}

/// What ran since the last call.
pub(crate) struct Meter {
    counting: Counting,
    before: Counts,
}

impl Meter {
    pub(crate) fn new(counting: Counting) -> Meter {
        let before = counting.counts();
        Meter { counting, before }
    }

    pub(crate) fn round_trips(&mut self) -> u64 {
        let now = self.counting.counts();
        now.since(&std::mem::replace(&mut self.before, now)).round_trips
    }
}

/// A handle of another process: it shares nothing with others but the store.
pub(crate) async fn process(store: &StoreRef, name: &str) -> Counter {
    Counter::open(store, name).await.unwrap()
}

/// A memory store that lets others run.
pub(crate) fn yielding() -> StoreRef {
    Arc::new(Yielding(memory()))
}
