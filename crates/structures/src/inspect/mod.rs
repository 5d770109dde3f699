//! Looking at a structure of whatever kind: what it is, what it takes, and what it promises on the store that it stands in.

mod weigh;
mod words;

use larder_core::native::{Native, NativeReply};
use larder_core::{Batch, Ctx, Error, ErrorKind, Op, Reply, Result, StoreRef, Want};

use self::weigh::Scales;
pub use crate::cache::look::{CacheEntries, CacheEntry, CacheState, cache_entries, cache_entry};
use crate::copies;
use crate::counter;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::queue::QueueStat;
use crate::records;
use crate::registry;
use crate::sharded;
use crate::unique;
use crate::{Array, PackedRecords, PackedTable, Queue, Set, ShardedHash, ShardedSet, ShardedSortedSet, Stack};

/// How many values one batch reads: they come whole, and may be large.
const VALUES_A_BATCH: usize = 64;

/// What [`inspect`] found.
///
/// ```
/// # use larder_core::{Ctx, StoreRef};
/// # use larder_structures::{Name, Set, inspect::inspect};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// Set::open_or_create(&store, "tags").await?.add(["red"]).await?;
/// let found = inspect(&store, Ctx::default(), &Name::new("tags")?).await?.expect("it is there");
/// assert_eq!((found.manifest.kind.as_str(), found.keys, found.missing), ("set", 2, 0));
/// assert_eq!(found.elements, Some(1));
/// assert!(found.guarantee.contains("end with this process"), "{}", found.guarantee);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Its name.
    pub name: Name,
    /// What is recorded about it: kind, layout, generation, shards, copies.
    pub manifest: Manifest,
    /// What its parameters are, in words.
    pub params: Vec<(&'static str, String)>,
    /// How many keys of it were found: the manifest, data, and pieces, each copy counted.
    pub keys: u64,
    /// How many keys that its manifest names were not there: data that are lost, or copies that a server lost.
    pub missing: u64,
    /// How many of its keys could not be read, since their server did not answer.
    pub unread: u64,
    /// What the values of the found keys take, in bytes, without keys and the store's own overhead.
    pub bytes: u64,
    /// Of the data of a set, an array or a table (its list and its entries), what they would take compacted; of the segments of a queue or a stack, all but
    /// the items that were acknowledged; of the list and the parts of a log, and the list, counters and shards of visitors, all but what repeats what stands there already;
    /// `None` for other kinds, and where data are lost.
    pub live_bytes: Option<u64>,
    /// The rest of the data of those kinds.
    pub stale_bytes: Option<u64>,
    /// How many elements it has; `None` for a kind that has none, or cannot count them without reading more than it may.
    pub elements: Option<u64>,
    /// What it promises on this store, in a sentence.
    pub guarantee: String,
}

/// Looks at the structure under a name, whatever its kind; `None` if there is none. Nothing is written, unless a copy of the manifest on another
/// server is made again.
///
/// The values come whole, since no store tells the size of one: a large structure is as much to read. It is no snapshot: who writes
/// meanwhile shows in some of the figures.
///
/// **Round trips: 1** for the manifest, 1 for every 64 data keys, for a set or an array 2 more, for a queue or a stack 4; for a kind whose pieces are listed in its data, what it takes to read the list.
///
/// # Errors
/// [`LayoutMismatch`](larder_core::ErrorKind::LayoutMismatch) where the name holds something that this release does not know; those of the store. Data
/// that are lost are no error here: they are counted.
///
/// ```
/// # use larder_core::{Ctx, StoreRef};
/// # use larder_structures::{Name, inspect::inspect};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// assert!(inspect(&store, Ctx::default(), &Name::new("nothing")?).await?.is_none());
/// # Ok(()) }
/// ```
pub async fn inspect(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Option<Inspection>> {
    let Some(found) = copies::find(store, ctx, name).await? else { return Ok(None) };
    let manifest = found.manifest;
    let mut inspection = Inspection {
        name: name.clone(),
        params: words::params(name, &manifest, &found.item.value),
        guarantee: words::guarantee(&manifest, &store.profile()),
        keys: 1,
        missing: 0,
        unread: 0,
        bytes: found.item.value.len() as u64,
        live_bytes: None,
        stale_bytes: None,
        elements: None,
        manifest,
    };
    inspection.measure(store, ctx).await?;
    if inspection.missing == 0 && inspection.unread == 0 {
        inspection.ask(store, name).await?;
    } else {
        (inspection.live_bytes, inspection.stale_bytes, inspection.elements) = (None, None, None);
    }
    Ok(Some(inspection))
}

impl Inspection {
    /// Asks the structure itself for what only it can tell.
    async fn ask(&mut self, store: &StoreRef, name: &Name) -> Result<()> {
        match self.manifest.kind {
            Kind::Set => {
                let stat = Set::open(store, name.as_bytes()).await?.stat().await?;
                (self.live_bytes, self.stale_bytes) = (Some(stat.live_bytes), Some(stat.stale_bytes));
                self.elements = Some(stat.members);
            }
            Kind::Array => {
                let stat = match Array::open(store, name.as_bytes()).await?.stat().await {
                    // Its commits are gone: without them the shards cannot be told.
                    Err(error) if error.kind() == ErrorKind::Lost => {
                        self.missing += 1;
                        return Ok(());
                    }
                    stat => stat?,
                };
                (self.live_bytes, self.stale_bytes) = (Some(stat.live_bytes), Some(stat.stale_bytes));
                self.elements = Some(stat.elements);
            }
            Kind::ShardedHash => {
                let hash = ShardedHash::open(store, name.as_bytes()).await?;
                self.params.extend(hash.range().into_iter().flatten());
                self.elements_of(hash.len().await)?;
            }
            Kind::ShardedSet => {
                let set = ShardedSet::open(store, name.as_bytes()).await?;
                self.params.extend(set.range().into_iter().flatten());
                self.elements_of(set.len().await)?;
            }
            Kind::PackedTable => {
                self.elements = Some(PackedTable::open(store, name.as_bytes()).await?.stat().await?.rows)
            }
            Kind::ShardedSortedSet => {
                let set = ShardedSortedSet::open(store, name.as_bytes()).await?;
                self.params.extend(set.range().into_iter().flatten());
                self.elements_of(set.len().await)?;
            }
            Kind::Queue => {
                let stat = Queue::open(store, name.as_bytes()).await?.stat().await?;
                self.queued(&stat);
            }
            Kind::Stack => {
                let stat = Stack::open(store, name.as_bytes()).await?.stat().await?;
                self.queued(&stat);
            }
            // Ids are dense: there is a record for each up to the highest.
            Kind::Records => {
                let highest = PackedRecords::open(store, name.as_bytes()).await?.highest().await;
                self.elements_of(highest.map(|highest| highest.map_or(0, |id| id + 1)))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Segments, and the items in them.
    fn queued(&mut self, stat: &QueueStat) {
        self.missing += stat.segments_missing;
        if stat.segments_missing == 0 {
            self.elements = Some(stat.ready + stat.claimed);
            self.live_bytes = Some(stat.bytes.saturating_sub(stat.stale_bytes));
            self.stale_bytes = Some(stat.stale_bytes);
        }
    }

    /// Elements in shards that the manifest does not name: one that is lost is missing.
    fn elements_of(&mut self, len: Result<u64>) -> Result<()> {
        match len {
            Err(error) if error.kind() == ErrorKind::Lost => self.missing += 1,
            len => self.elements = Some(len?),
        }
        Ok(())
    }

    /// Counts the keys and the bytes of the data.
    async fn measure(&mut self, store: &StoreRef, ctx: Ctx) -> Result<()> {
        let profile = store.profile();
        let mut scales = Scales::of(&self.manifest);
        let mut gets = Vec::new();
        for index in 0..self.manifest.shards {
            let cells = self.manifest.cells(&self.name, index)?.into_iter().take(profile.nodes);
            gets.extend(cells.map(|cell| match counter::is_native(&self.manifest) {
                true => Op::native(cell.key, Native::MemoryBytes).routed(cell.route),
                false => Op::get(cell.key, Want::VALUE).routed(cell.route),
            }));
        }
        let named = gets.len();
        // Where data are lost, the list of the pieces may be too: then what can still be found is counted.
        let pieces = registry::pieces(store, ctx, &self.name, &self.manifest).await.unwrap_or_default().keys;
        let is_native = match self.manifest.kind {
            Kind::Records => records::is_native(&self.manifest),
            Kind::UniqueVisitors => unique::is_native(&self.manifest),
            Kind::ShardedHash | Kind::ShardedSet | Kind::ShardedSortedSet => sharded::are_native(&self.manifest),
            _ => false,
        };
        gets.extend(pieces.into_iter().map(|piece| match is_native {
            true => Op::native(piece.key, Native::MemoryBytes),
            false => Op::get(piece.key, Want::VALUE),
        }));
        let a_batch = VALUES_A_BATCH.min(profile.batch_ops_max);
        for (part, ops) in gets.chunks(a_batch).enumerate() {
            let batch: Batch = ops.iter().cloned().collect();
            let mut fault: Option<Error> = None;
            let mut answered = 0;
            for (at, reply) in (part * a_batch..).zip(store.run(ctx, batch).await) {
                let bytes = reply.map(|reply| match reply {
                    Reply::Item(item) => {
                        scales.take(u16::try_from(at).ok().filter(|_| at < named), &item.value);
                        Some(item.value.len() as u64)
                    }
                    Reply::Native(native) => match *native {
                        NativeReply::Size(bytes) => bytes,
                        _ => None,
                    },
                    _ => None,
                });
                match bytes {
                    Ok(Some(bytes)) => {
                        self.keys += 1;
                        self.bytes += bytes;
                    }
                    // A piece may have gone since it was listed: pieces have lives.
                    Ok(None) => self.missing += u64::from(at < named),
                    Err(error) => {
                        self.unread += 1;
                        fault = Some(error);
                        continue;
                    }
                }
                answered += 1;
            }
            // One server of several may be down; where none answers there is nothing to tell.
            if let Some(fault) = fault.filter(|_| answered == 0) {
                return Err(fault);
            }
        }
        (self.live_bytes, self.stale_bytes, self.elements) = scales.told();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
