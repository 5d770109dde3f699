//! What the server needs of a store: one item changed in one piece, and a look over all of them.

use larder_core::{Durability, Eviction, Result, Store};
use larder_store_memory::{MemoryStore, Next, Seen};

/// An embedded store that the server answers from.
pub trait Engine: Send + Sync + 'static {
    /// Now, in ms of the store's clock: what expiries count from.
    fn now_ms(&self) -> u64;

    /// Shows an item, and notes that it was fetched.
    ///
    /// # Errors
    /// What the store cannot do. A key that is not there is no error.
    fn fetch<T>(&self, key: &[u8], see: impl FnOnce(Seen<'_>) -> T) -> Result<Option<T>>;

    /// Changes one item in one piece; see [`Direct::update`](larder_store_memory::Direct::update). The closure may run again.
    ///
    /// # Errors
    /// No room. Nothing has changed then.
    fn update<'n>(&self, key: &[u8], decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>) -> Result<()>;

    /// Removes all that is there.
    fn flush(&self);

    /// Parts that [`each`](Engine::each) walks one by one.
    fn parts(&self) -> usize;

    /// Shows every living item of a part.
    fn each(&self, part: usize, see: impl FnMut(&[u8], Seen<'_>));

    /// What it holds.
    fn figures(&self) -> Figures;

    /// Sets the memory limit; false if there is none to set.
    fn set_bytes_max(&self, bytes: usize) -> bool;

    /// What it promises.
    fn promises(&self) -> Promises;
}

/// What a store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Items.
    pub items: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Items that went for want of room.
    pub evicted: u64,
    /// Items that were removed after they had expired.
    pub expired: u64,
}

/// What a store promises, for `stats settings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promises {
    /// The word for its durability: `process`, `server`, `disk`.
    pub durability: &'static str,
    /// True if it drops items when it is full.
    pub evicts: bool,
    /// Drawn anew whenever the store begins empty: two servers with one incarnation hold the same data.
    pub incarnation: u64,
}

/// The word for a durability.
pub(crate) fn durability_word(durability: Durability) -> &'static str {
    match durability {
        Durability::Process => "process",
        Durability::Server => "server",
        Durability::Recent => "recent",
        Durability::Disk => "disk",
        Durability::Unknown => "unknown",
    }
}

/// The store in the process, as an engine.
#[derive(Debug)]
pub struct MemoryEngine {
    store: MemoryStore,
    incarnation: u64,
}

impl MemoryEngine {
    /// Serves this store.
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

    fn flush(&self) {
        self.store.clear();
    }

    fn parts(&self) -> usize {
        self.store.shards()
    }

    fn each(&self, part: usize, see: impl FnMut(&[u8], Seen<'_>)) {
        self.store.each_of_shard(part, see);
    }

    fn figures(&self) -> Figures {
        let stats = self.store.stats();
        Figures { items: stats.items as u64, bytes: stats.bytes as u64, evicted: stats.evicted, expired: stats.expired }
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
