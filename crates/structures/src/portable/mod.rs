//! A store read as if all structures in it were kept in items, one a key, as they are on every store: for moving what it holds.
//!
//! Where a store has more than items, some structures are kept in its own collections and bit fields; and where it is of several servers, a counter may have copies of each key.
//! Each such key has a counterpart in the portable layout, under the same name and with the same content, so one key at a time is read and written as that:
//!
//! | native key | is read as |
//! |---|---|
//! | a manifest | the same, with the parameters of the portable layout |
//! | a manifest with copies | the same, with one; where the server of rank 0 has none, that of another |
//! | the copies of a slot of an exact counter | the slot that holds, as one without copies |
//! | the bit field of a fast counter | its value in decimal digits |
//! | a shard of packed records | the same bytes, with the number of records known |
//! | the highest id of packed records | nothing: it follows from the shards |
//! | a shard of a sharded hash, or set | the item with the same elements and the same mark |
//! | a set of unique visitors | the blob of the same hashes, with the life of its period |
//!
//! Everything else is read as it is.

mod read;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use larder_core::{Batch, Ctx, Profile, Run, Store, StoreRef};

use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::unique::portable::Periods;
use crate::{counter, records, sharded, unique};

/// How many structures are remembered.
const SEEN_MAX: usize = 1_024;

/// A store whose native structures, and those with copies on several servers, are read as their portable counterparts: see the [module](self).
///
/// Only reads of whole items are changed; every other op is the store's own. What was lost reads as nothing, or is an error, and never as something empty: a shard or a number without its mark is
/// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch), as are a slot of which too many copies are gone and everything that another program wrote.
///
/// **Round trips** of a batch of reads: 1, and where some of its keys are native, or have copies, 1 for each 32 of them, and 1 for the manifests of those not read
/// before (of unique visitors 3). Over several servers 1 more for each manifest that is missing where it should stand.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::{Counter, Portable};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// Counter::open_or_create(&store, "hits").await?.add(5).await?;
/// let store: StoreRef = std::sync::Arc::new(Portable::new(store));
/// assert_eq!(Counter::open(&store, "hits").await?.get().await?, 5);
/// # Ok(()) }
/// ```
pub struct Portable {
    store: StoreRef,
    /// What is known of structures, by name and life; never held across an await. What is fixed when a structure is made does not change in that life.
    seen: Mutex<HashMap<(Name, u64), Seen>>,
}

/// What is known of one life of a structure.
#[derive(Clone, Debug)]
enum Seen {
    /// Its native keys are of this manifest; of unique visitors, with its periods.
    Native(Arc<Manifest>, Option<Arc<Periods>>),
    /// All its keys are items.
    Items,
}

impl Portable {
    /// Reads this store so.
    ///
    /// ```
    /// # let store = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
    /// let store = larder_structures::Portable::new(store);
    /// ```
    pub fn new(store: StoreRef) -> Portable {
        Portable { store, seen: Mutex::default() }
    }

    fn seen(&self, of: &(Name, u64)) -> Option<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(of).cloned()
    }

    fn see(&self, of: (Name, u64), seen: Seen) {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SEEN_MAX {
            all.clear();
        }
        all.insert(of, seen);
    }
}

impl Store for Portable {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(self.read(ctx, batch))
    }
}

impl fmt::Debug for Portable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Portable").field("store", &self.store).finish_non_exhaustive()
    }
}

/// True if keys of this structure are no items, or have copies.
fn is_native(manifest: &Manifest) -> bool {
    match manifest.kind {
        Kind::Counter => manifest.copies > 1,
        Kind::FastCounter => counter::is_native(manifest),
        Kind::Records => records::is_native(manifest),
        Kind::UniqueVisitors => unique::is_native(manifest),
        Kind::ShardedHash | Kind::ShardedSet => sharded::are_native(manifest),
        _ => false,
    }
}

/// What the manifest of a native structure says in the portable layout; `None` for any other.
fn portable_manifest(manifest: &Manifest) -> Option<Manifest> {
    if !is_native(manifest) {
        return None;
    }
    match manifest.kind {
        Kind::Counter => Some(Manifest { copies: 1, ..manifest.clone() }),
        Kind::FastCounter => Some(counter::portable_manifest(manifest)),
        Kind::Records => records::portable::manifest(manifest),
        Kind::UniqueVisitors => unique::portable::manifest(manifest),
        _ => sharded::portable::manifest(manifest),
    }
}

#[cfg(test)]
mod tests;
