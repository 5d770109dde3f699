//! What a structure takes in a store: the keys that were written, and what stands there now.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use larder::native::{Families, Native, NativeReply};
use larder::{Batch, Ctx, ErrorKind, Key, Op, Profile, Reply, Result, Route, Run, Store, StoreRef, Want};

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

/// The bytes of keys and values that stand under all the keys that were written; of what is no item, what the store says that it takes.
pub(super) async fn stored_bytes(footprints: &[Arc<Footprint>], ctx: Ctx) -> Result<u64> {
    let Some(first) = footprints.first() else { return Ok(0) };
    let places: HashSet<Place> = footprints.iter().flat_map(|footprint| footprint.places()).collect();
    let mut batch = Batch::new();
    for (key, rank) in &places {
        let route = Route { with: None, rank: *rank };
        batch.push(Op::get(Key::new(key.clone())?, Want::VALUE).routed(route));
    }
    let (mut bytes, mut native) = (0, Batch::new());
    for ((key, rank), reply) in places.iter().zip(first.store.run(ctx, batch).await) {
        match reply {
            Ok(Reply::Item(item)) => bytes += (key.len() + item.value.len()) as u64,
            Ok(_) => {}
            // No item, but a set or bits of the store's own.
            Err(error) if error.kind() == ErrorKind::LayoutMismatch && has_look(&first.store) => {
                let route = Route { with: None, rank: *rank };
                native.push(Op::native(Key::new(key.clone())?, Native::MemoryBytes).routed(route));
            }
            Err(error) => return Err(error),
        }
    }
    if !native.is_empty() {
        for reply in first.store.run(ctx, native).await {
            if let Some(NativeReply::Size(Some(size))) = reply?.into_native() {
                bytes += size;
            }
        }
    }
    Ok(bytes)
}

/// True if the store tells what a key of whatever kind takes.
fn has_look(store: &StoreRef) -> bool {
    store.profile().natives.contains(Families::LOOK)
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
