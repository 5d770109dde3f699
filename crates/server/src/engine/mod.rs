//! What the server needs of a store: one item changed in one piece, and a look over all of them.

mod durable;
mod memory;

use std::task::{Context, Poll};

use larder_core::{Durability, Error, Result};
use larder_store_durable::BackupParts;
use larder_store_memory::{Next, Place, Seen};

pub use durable::DurableEngine;
pub use memory::MemoryEngine;

/// An embedded store that the server answers from.
///
/// ```
/// use larder_server::{Engine, MemoryEngine, MemoryStore};
/// let engine = MemoryEngine::new(MemoryStore::new());
/// assert_eq!(engine.fetch(b"k", |seen| seen.value.len())?, None);
/// assert_eq!((engine.figures().items, engine.promises().evicts), (0, false));
/// # Ok::<(), larder_core::Error>(())
/// ```
pub trait Engine: Send + Sync + 'static {
    /// Whether a plain set that finds no room takes the old item with it, as memcached has it: nobody then reads what was to be replaced. Not where an acknowledged
    /// value is never lost.
    const REFUSED_SET_REMOVES: bool = true;

    /// Whether [`walk`](Engine::walk), [`backup`](Engine::backup), its parts and [`disk_bytes`](Engine::disk_bytes) may wait for a sync that is under way: then only threads call
    /// them that nobody else waits for.
    const WAITS_FOR_DISK: bool = false;

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

    /// The same as [`update`](Engine::update), for who may not need a look: unless it `looks`, the decision is the same whatever is there, and may be shown nothing though there is something.
    ///
    /// # Errors
    /// As of [`update`](Engine::update).
    fn write<'n>(&self, key: &[u8], _looks: bool, decide: impl FnMut(Option<Seen<'_>>, u64) -> Next<'n>) -> Result<()> {
        self.update(key, decide)
    }

    /// Removes all that is there.
    ///
    /// # Errors
    /// The store takes no writes. Nothing has changed then.
    fn flush(&self) -> Result<()>;

    /// Asked after each request: the last of what the calls of this thread wrote or saw since this was asked last, and must be
    /// [settled](Engine::poll_settled) before anybody is told of it; 0 for nothing.
    fn touched(&self) -> u64 {
        0
    }

    /// Asked after [`touched`](Engine::touched): bytes of keys and values that the calls of this thread have written since this was asked last, and that stay in memory until what was
    /// touched is settled. Nobody who has too many of them goes on before that.
    fn unsettled_bytes(&self) -> usize {
        0
    }

    /// Whether what was touched is as durable as the store promises. Replies wait for that.
    ///
    /// # Errors
    /// A write failed: what the replies say may have happened or not, and they are not sent.
    fn poll_settled(&self, _touched: u64, _cx: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Shows some of the living items, a thousand or so, and says where to go on; `None` at the end. Begun at [`Walk::default`].
    ///
    /// # Errors
    /// An item is damaged, or cannot be read: what was shown is not all.
    fn walk(&self, at: Walk, see: impl FnMut(&[u8], Seen<'_>)) -> Result<Option<Walk>>;

    /// Begins a backup of this moment; `None` where the store can make none.
    ///
    /// # Errors
    /// The store is damaged.
    fn backup(&self) -> Result<Option<BackupParts>> {
        Ok(None)
    }

    /// The next part of a backup; `None` after the last one.
    ///
    /// # Errors
    /// The store is damaged: the backup has no end then.
    fn backup_part(&self, _backup: &mut BackupParts) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    /// Why nothing is written any more, if a write has failed: what `/healthz` says.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// What it holds, told at once, whatever the disk is at: of a store that [may wait for it](Engine::WAITS_FOR_DISK) the bytes are 0 here, and are [`disk_bytes`](Engine::disk_bytes).
    fn figures(&self) -> Figures;

    /// Bytes that its files take, of a store that [may wait for them](Engine::WAITS_FOR_DISK): the server asks once a second, in a thread of its own, and tells what it heard last.
    fn disk_bytes(&self) -> u64 {
        0
    }

    /// Sets the memory limit; false if there is none to set.
    fn set_bytes_max(&self, bytes: usize) -> bool;

    /// What it promises.
    fn promises(&self) -> Promises;
}

/// A place in a walk over all items.
///
/// ```
/// use larder_server::{Engine, MemoryEngine, MemoryStore, Walk};
/// let engine = MemoryEngine::new(MemoryStore::new());
/// let (mut at, mut items) = (Some(Walk::default()), 0);
/// while let Some(place) = at {
///     at = engine.walk(place, |_key, _seen| items += 1)?;
/// }
/// assert_eq!(items, 0);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The place, of a store in the process.
    pub place: Place,
    /// The key, of a store in order.
    pub from: Vec<u8>,
}

/// What a store holds.
///
/// ```
/// use larder_server::{Engine, MemoryEngine, MemoryStore};
/// assert_eq!(MemoryEngine::new(MemoryStore::new()).figures().evicted, 0);
/// ```
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
    /// Bytes of a write that a crash had cut short, cut off when the store was opened; or of damage in what was not known to be on disk.
    pub torn_bytes: u64,
}

/// What a store promises, for `stats settings`.
///
/// ```
/// use larder_server::{Engine, MemoryEngine, MemoryStore};
/// assert_eq!(MemoryEngine::new(MemoryStore::new()).promises().durability, "process");
/// ```
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
