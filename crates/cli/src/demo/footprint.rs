//! What a structure takes in a store: the keys that were written, and what stands there now.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use larder::native::{Native, NativeReply};
use larder::{Batch, Ctx, Key, Op, Profile, Reply, Result, Route, Run, Store, StoreRef, Verb, Want};

/// A store that remembers which keys were written through it. It serves stores that keep no account themselves.
pub(super) struct Footprint {
    store: StoreRef,
    /// Protects the places, for the moment a batch is noted.
    places: Mutex<HashSet<Place>>,
}

/// A key, which copy of it, and whether it is one of the store's own collections.
type Place = (Vec<u8>, u8, bool);

impl Footprint {
    pub(super) fn new(store: StoreRef) -> Footprint {
        Footprint { store, places: Mutex::default() }
    }

    fn note(&self, op: &Op) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.insert((op.key.as_bytes().to_vec(), op.route.rank, matches!(op.verb, Verb::Native(_))));
    }

    fn places(&self) -> HashSet<Place> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The bytes of keys and values that stand under all the keys that were written; of the store's own collections what it says that they take.
pub(super) async fn stored_bytes(footprints: &[Arc<Footprint>], ctx: Ctx) -> Result<u64> {
    let Some(first) = footprints.first() else { return Ok(0) };
    let places: HashSet<Place> = footprints.iter().flat_map(|footprint| footprint.places()).collect();
    let mut batch = Batch::new();
    for (key, rank, is_native) in &places {
        let (key, route) = (Key::new(key.clone())?, Route { with: None, rank: *rank });
        let look = if *is_native { Op::native(key, Native::MemoryBytes) } else { Op::get(key, Want::VALUE) };
        batch.push(look.routed(route));
    }
    let mut bytes = 0;
    for ((key, ..), reply) in places.iter().zip(first.store.run(ctx, batch).await) {
        match reply? {
            Reply::Item(item) => bytes += (key.len() + item.value.len()) as u64,
            Reply::Native(native) => {
                if let NativeReply::Size(Some(size)) = *native {
                    bytes += size;
                }
            }
            _ => {}
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
