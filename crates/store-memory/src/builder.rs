//! How a store is made: limits, checked when it is built.

use larder_core::{ClockRef, Error, ErrorKind, Result, SystemClock};

use crate::item;
use crate::store::MemoryStore;

/// The limits of a [`MemoryStore`] to be.
///
/// ```
/// use larder_store_memory::MemoryStore;
/// let cache = MemoryStore::builder().bytes_max(64 << 20).evict(true).build()?;
/// assert!(MemoryStore::builder().evict(true).build().is_err()); // evict what, without a limit?
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) bytes_max: Option<usize>,
    pub(crate) evict: bool,
    pub(crate) clock: ClockRef,
    pub(crate) value_bytes_max: usize,
    pub(crate) shards: Option<usize>,
    pub(crate) tracks_access: bool,
}

impl Builder {
    /// The most shards a store can have.
    pub const SHARDS_MAX: usize = 4096;
    /// The shards of a store that does not say otherwise, and has a budget that is worth them.
    pub const SHARDS: usize = 256;
    /// The largest value of a store that does not say otherwise: 1 MiB.
    pub const VALUE_BYTES_MAX: usize = 1 << 20;
    /// The smallest budget, in bytes.
    pub const BYTES_MAX_MIN: usize = 1 << 10;

    /// A smaller budget has fewer shards, so that an item and an index do not fill one.
    const BYTES_PER_SHARD: usize = 64 << 10;

    pub(crate) fn new() -> Builder {
        Builder {
            bytes_max: None,
            evict: false,
            clock: SystemClock::shared(),
            value_bytes_max: Builder::VALUE_BYTES_MAX,
            shards: None,
            tracks_access: false,
        }
    }

    /// The byte budget; there is none by default. It counts what the heap gives for items, by size class and with the
    /// allocator's own header, and the index tables; the sum never passes it. What it does not count: the empty shards (128
    /// bytes each), and the second copy that exists while an item is moved or one shard's table rebuilt.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::builder().bytes_max(64 << 20).build()?;
    /// assert!(MemoryStore::builder().bytes_max(0).build().is_err());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn bytes_max(mut self, bytes: usize) -> Builder {
        self.bytes_max = Some(bytes);
        self
    }

    /// Whether a full store drops items that were not used lately (a cache), or refuses writes with
    /// [`ErrorKind::Full`] (the default, since structures live in it). Needs [`bytes_max`](Builder::bytes_max).
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// use larder_core::Store;
    /// let cache = MemoryStore::builder().bytes_max(64 << 20).evict(true).build()?;
    /// assert!(cache.profile().may_evict());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn evict(mut self, evict: bool) -> Builder {
        self.evict = evict;
        self
    }

    /// The clock that lives are kept by; the system's by default.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// use larder_core::ManualClock;
    /// use std::sync::Arc;
    /// let clock = Arc::new(ManualClock::default());
    /// let store = MemoryStore::builder().clock(clock.clone()).build()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn clock(mut self, clock: ClockRef) -> Builder {
        self.clock = clock;
        self
    }

    /// The largest value that fits beside any key, in bytes; 1 MiB by default. Key and value together are limited to this
    /// plus 250, the longest key: that is the `item_bytes_max` of the profile, exactly.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// use larder_core::Store;
    /// let store = MemoryStore::builder().value_bytes_max(100).build()?;
    /// assert_eq!(store.profile().value_bytes_max(250), 100);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn value_bytes_max(mut self, bytes: usize) -> Builder {
        self.value_bytes_max = bytes;
        self
    }

    /// The number of shards, each with a lock of its own; by default 256, or fewer where a shard would have less than 64 KiB
    /// of the budget.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::builder().shards(16).build()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Builder {
        self.shards = Some(shards);
        self
    }

    /// Whether items keep when they were last used, to the second, for [`Seen::accessed_s`](crate::Seen): 4 bytes an item. Off by default.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::builder().track_access(true).build()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn track_access(mut self, track: bool) -> Builder {
        self.tracks_access = track;
        self
    }

    /// Makes the store.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a budget under 1 KiB, eviction without a budget, a `value_bytes_max` of 0 or over 2 GiB, and
    /// shards of 0 or over 4,096.
    ///
    /// ```
    /// # use larder_store_memory::MemoryStore;
    /// let store = MemoryStore::builder().build()?;
    /// assert_eq!(store.stats().items, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn build(self) -> Result<MemoryStore> {
        let config = |detail: String| Err(Error::new(ErrorKind::Config, detail).store("memory"));
        if let Some(bytes) = self.bytes_max.filter(|&bytes| bytes < Builder::BYTES_MAX_MIN) {
            return config(format!("bytes_max is {bytes}; the smallest is {}", Builder::BYTES_MAX_MIN));
        }
        if self.evict && self.bytes_max.is_none() {
            return config("evict needs bytes_max: without a budget nothing is ever evicted".to_owned());
        }
        let value_limit = item::VALUE_BYTES_MAX - larder_core::Key::BYTES_MAX;
        if !(1..=value_limit).contains(&self.value_bytes_max) {
            return config(format!("value_bytes_max is {}; it takes 1 to {value_limit}", self.value_bytes_max));
        }
        if let Some(shards) = self.shards.filter(|shards| !(1..=Builder::SHARDS_MAX).contains(shards)) {
            return config(format!("shards is {shards}; it takes 1 to {}", Builder::SHARDS_MAX));
        }
        Ok(MemoryStore::assemble(self))
    }

    pub(crate) fn shard_count(&self) -> usize {
        let worth = self.bytes_max.map_or(Builder::SHARDS, |bytes| bytes / Builder::BYTES_PER_SHARD);
        self.shards.unwrap_or(worth.clamp(1, Builder::SHARDS))
    }
}
