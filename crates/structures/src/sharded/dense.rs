//! Collections of dense numbers: how they are cut into shards, and how small those must be to be packed.

use larder_core::native::Collection;
use larder_core::{Batch, Ctx, Op, Result, StoreRef, Want};

use super::layout::{Map, Params, Plan};
use super::{FILL, SHARDS_MAX};
use crate::manifest::{Kind, Manifest};
use crate::name::Name;

/// Of a set of numbers: it is searched in halves, but a new member moves half of it.
const INTEGERS_MAX: u64 = 4_096;
/// Left of what a set may have: to the mark, and to the header, which is as long as two numbers: a power of two would be just past an allocator's class.
const SET_LEFT: u64 = 3;

/// How the numbers of a sharded collection are cut now; `None` where elements are spread by hash, for another kind, and where the map is gone, or of another release.
/// **Round trips: 1**, and none but for dense numbers.
///
/// # Errors
/// Those of the store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// use larder_structures::{Name, ShardedSet, registry};
/// use larder_structures::sharded::{Dense, dense};
/// let paid = ShardedSet::options().dense(500).shards(4).open_or_create(&store, "paid").await?;
/// let name = Name::new("paid")?;
/// let manifest = registry::find(&store, larder_core::Ctx::default(), &name).await?.expect("it is there");
/// let dense = dense(&store, larder_core::Ctx::default(), &name, &manifest).await?;
/// assert_eq!(dense, Some(Dense { shards: 4, per_shard: 500 }));
/// # Ok(()) }
/// ```
pub async fn dense(store: &StoreRef, ctx: Ctx, name: &Name, manifest: &Manifest) -> Result<Option<Dense>> {
    let is_sharded = matches!(manifest.kind, Kind::ShardedHash | Kind::ShardedSet | Kind::ShardedSortedSet);
    if !is_sharded || !Params::decode(&manifest.params).is_some_and(|params| params.is_dense) {
        return Ok(None);
    }
    let get = Batch::from_buf([Op::get(manifest.data_key(name, 0)?, Want::VALUE)]);
    let reply = store.run(ctx, get).await.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?;
    let plan = reply.into_item().and_then(|item| Plan::decode(&item.value));
    Ok(plan.map(|plan| Dense::of(&plan.map)).filter(|dense| dense.per_shard > 0))
}

/// How dense numbers are cut into shards.
///
/// ```
/// use larder_core::native::Collection;
/// use larder_structures::sharded::Dense;
/// let dense = Dense { shards: 3, per_shard: 1_000 };
/// assert_eq!(dense.packed(Collection::Set, 512), Some(509));
/// assert_eq!(dense.packed(Collection::Hash, 512), Some(64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dense {
    /// How many shards there are.
    pub shards: u16,
    /// How many numbers stand in each.
    pub per_shard: u32,
}

impl Dense {
    pub(super) fn of(map: &Map) -> Dense {
        Dense { shards: map.shards, per_shard: map.per_shard }
    }

    /// How many numbers a shard is to have, so that a server keeps every shard packed that packs so many entries; `None` where smaller shards do not, or would be more than
    /// [`SHARDS_MAX`]. Of a set about as many as are packed, of a hash, in which every operation walks through a shard, no more than 64 unless the shards would be too many.
    pub fn packed(&self, of: Collection, entries_max: u64) -> Option<u32> {
        let numbers = u64::from(self.shards) * u64::from(self.per_shard);
        let least = numbers.div_ceil(u64::from(SHARDS_MAX)).max(1);
        let wished = match of {
            Collection::Set => entries_max.min(INTEGERS_MAX).saturating_sub(SET_LEFT),
            _ => FILL.min(entries_max / 2),
        };
        let per_shard = u32::try_from(wished.max(least)).ok()?;
        (u64::from(per_shard) < entries_max && per_shard < self.per_shard).then_some(per_shard)
    }
}

#[cfg(test)]
#[path = "dense_tests.rs"]
mod tests;
