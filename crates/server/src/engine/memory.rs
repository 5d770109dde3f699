//! The store in the process, as an engine.

use larder_core::{Eviction, Result, Store};
use larder_store_memory::{MemoryStore, Next, Seen};

use super::{Engine, Figures, Promises, Walk, durability_word};

/// The store in the process, as an engine.
///
/// ```
/// use larder_server::{Engine, MemoryEngine, MemoryStore};
/// let engine = MemoryEngine::new(MemoryStore::builder().bytes_max(64 << 20).build()?);
/// assert_eq!(engine.figures().items, 0);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryEngine {
    store: MemoryStore,
    incarnation: u64,
}

impl MemoryEngine {
    /// Serves this store.
    ///
    /// ```
    /// use larder_server::{Engine, MemoryEngine, MemoryStore};
    /// // Two lives of a server are told apart.
    /// let [one, other] = [(); 2].map(|()| MemoryEngine::new(MemoryStore::new()).promises().incarnation);
    /// assert_ne!(one, other);
    /// ```
    pub fn new(store: MemoryStore) -> MemoryEngine {
        use std::hash::BuildHasher;
        // The standard library's hasher has random keys: a number that no other life of a server has.
        let incarnation = std::hash::RandomState::new().hash_one(std::process::id());
        MemoryEngine { store, incarnation }
    }
}

impl Engine for MemoryEngine {
    fn now_ms(&self) -> u64 {
        self.store.direct().now_ms()
    }

    #[inline]
    fn fetch<T>(&self, key: &[u8], see: impl FnOnce(Seen<'_>) -> T) -> Result<Option<T>> {
        self.store.direct().fetch(key, see)
    }

    #[inline]
    fn update<'n>(&self, key: &[u8], decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>) -> Result<()> {
        self.store.direct().update(key, decide)
    }

    fn flush(&self) -> Result<()> {
        self.store.clear();
        Ok(())
    }

    fn walk(&self, at: Walk, see: impl FnMut(&[u8], Seen<'_>)) -> Result<Option<Walk>> {
        let next = self.store.each_from(at.place, see);
        Ok(next.map(|place| Walk { place, from: Vec::new() }))
    }

    fn figures(&self) -> Figures {
        let stats = self.store.stats();
        Figures {
            items: stats.items as u64,
            bytes: stats.bytes as u64,
            evicted: stats.evicted,
            expired: stats.expired,
            torn_bytes: 0,
        }
    }

    fn set_bytes_max(&self, bytes: usize) -> bool {
        self.store.set_bytes_max(bytes)
    }

    fn promises(&self) -> Promises {
        let profile = self.store.profile();
        Promises {
            durability: durability_word(profile.durability),
            evicts: profile.eviction != Eviction::Never,
            incarnation: self.incarnation,
        }
    }
}
