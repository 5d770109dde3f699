//! Figures, and how the server keeps a shard.

use larder_core::native::{Collection, Native, NativeReply};
use larder_core::{Batch, Ctx, Op, Result};

use super::core::{Core, coming_from};
use super::layout::Map;

/// Figures of a sharded collection.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let seen = larder_structures::ShardedSet::open_or_create(&store, "seen").await?;
/// let stat = seen.stat().await?;
/// assert_eq!((stat.shards, stat.elements, stat.encoding), (64, 0, None));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardedStat {
    /// How many elements there are.
    pub elements: u64,
    /// How many shards.
    pub shards: u16,
    /// How many shards elements are being moved from, while it is resharded.
    pub moving_from: Option<u16>,
    /// How many elements the fullest shard has.
    pub largest_shard: u64,
    /// How the server keeps the fullest shard, in its own words; `None` where shards are items.
    pub encoding: Option<String>,
    /// What to do about shards that the server's limits have unpacked: with the limits, and how many shards would do.
    pub advice: Option<String>,
}

impl Core {
    /// **Round trips: 2**, 1 more for each further 1,024 shards.
    pub(super) async fn stat(&self) -> Result<ShardedStat> {
        let sweep = self.sweep(false).await?;
        let plan = self.plan();
        let (largest_shard, fullest) = sweep.largest;
        let encoding = match self.is_native() {
            true => self.encoding(&plan.map, fullest).await?,
            false => None,
        };
        Ok(ShardedStat {
            elements: sweep.count,
            shards: plan.map.shards,
            moving_from: coming_from(&plan).map(|from| from.shards),
            largest_shard,
            advice: encoding.as_deref().and_then(|encoding| self.advice(encoding, largest_shard, sweep.count)),
            encoding,
        })
    }

    async fn encoding(&self, map: &Map, shard: u16) -> Result<Option<String>> {
        let ctx = Ctx { deadline: Some(self.deadline()) };
        let batch = Batch::from_buf([Op::native(self.key(map, shard)?, Native::Encoding)]);
        let reply = self.run(ctx, batch).await.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))?;
        Ok(match reply.into_native() {
            Some(NativeReply::Text(text)) => text,
            _ => None,
        })
    }

    /// What to do about a shard that is not packed.
    fn advice(&self, encoding: &str, largest: u64, elements: u64) -> Option<String> {
        if matches!(encoding, "listpack" | "ziplist" | "intset") {
            return None;
        }
        let limits = self.store.profile().encodings.unwrap_or_default();
        let (what, entries_max, bytes_max) = match self.of {
            Collection::Hash => ("hash-max-listpack", limits.hash_entries_max, limits.hash_value_bytes_max),
            Collection::Set => ("set-max-listpack", limits.set_entries_max, limits.set_value_bytes_max),
            Collection::Sorted => {
                ("zset-max-listpack", limits.sorted_set_entries_max, limits.sorted_set_value_bytes_max)
            }
        };
        if entries_max == 0 {
            return Some(format!(
                "the fullest shard is a {encoding}: this server packs no set but one of integers (up to {}); Redis 7.2 packs others, too",
                limits.set_integers_max
            ));
        }
        // The mark is an entry as well.
        if largest < entries_max {
            return Some(format!(
                "the fullest shard is a {encoding}, though {largest} elements are not too many: one is longer than {what}-value ({bytes_max} bytes), or was"
            ));
        }
        let shards = elements.div_ceil((entries_max / 2).max(1)).max(1);
        Some(format!(
            "the fullest shard is a {encoding}: {largest} elements and the mark are over {what}-entries ({entries_max}); resharding to {shards} shards packs them again"
        ))
    }
}
