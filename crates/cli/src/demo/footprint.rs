//! What a structure takes in a store: the keys that were written, and what stands there now.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use larder::{Batch, Ctx, Key, Op, Profile, Reply, Result, Route, Run, Store, StoreRef, Want};

/// A store that remembers which keys were written through it. It serves stores that keep no account themselves.
pub(super) struct Footprint {
    store: StoreRef,
    /// Protects the places, for the moment a batch is noted.
    places: Mutex<HashSet<Place>>,
}

/// A key, and which copy of it.
type Place = (Vec<u8>, u8);

impl Footprint {
    pub(super) fn new(store: StoreRef) -> Footprint {
        Footprint { store, places: Mutex::default() }
    }

    fn note(&self, op: &Op) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert((op.key.as_bytes().to_vec(), op.route.rank));
    }

    fn places(&self) -> HashSet<Place> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The bytes of keys and values that stand under all the keys that were written.
pub(super) async fn stored_bytes(footprints: &[Arc<Footprint>], ctx: Ctx) -> Result<u64> {
    let Some(first) = footprints.first() else { return Ok(0) };
    let places: HashSet<Place> = footprints.iter().flat_map(|footprint| footprint.places()).collect();
    let mut batch = Batch::new();
    for (key, rank) in &places {
        let route = Route { with: None, rank: *rank };
        batch.push(Op::get(Key::new(key.clone())?, Want::VALUE).routed(route));
    }
    let mut bytes = 0;
    for ((key, _), reply) in places.iter().zip(first.store.run(ctx, batch).await) {
        if let Reply::Item(item) = reply? {
            bytes += (key.len() + item.value.len()) as u64;
        }
    }
    Ok(bytes)
}

impl Store for Footprint {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        batch.iter().filter(|op| !op.is_read()).for_each(|op| self.note(op));
        self.store.run(ctx, batch)
    }
}

impl fmt::Debug for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Footprint").field("store", &self.store).finish_non_exhaustive()
    }
}
