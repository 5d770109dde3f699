//! Figures, and how the server keeps a shard.

use larder_core::native::{Collection, Native, NativeReply};
use larder_core::{Batch, Ctx, Op, Result};

use super::core::{Core, OPS_A_BATCH, coming_from};
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
    /// How many shards the server does not keep packed; `None` where shards are items.
    pub unpacked_shards: Option<u16>,
    /// What to do about shards that the server's limits have unpacked: with the limits, and how many shards would do.
    pub advice: Option<String>,
}

impl Core {
    /// **Round trips: 2** for every 1,024 shards where the server keeps them, else 1. Every shard is asked how it is kept.
    pub(super) async fn stat(&self) -> Result<ShardedStat> {
        let sweep = self.sweep(false).await?;
        let plan = self.plan();
        let (largest_shard, fullest) = sweep.largest;
        let encodings = if self.is_native() { self.encodings(&plan.map).await? } else { Vec::new() };
        let unpacked: Vec<&String> = encodings.iter().flatten().filter(|encoding| !is_packed(encoding)).collect();
        let unpacked_shards = self.is_native().then(|| u16::try_from(unpacked.len()).unwrap_or(u16::MAX));
        let advice = unpacked.first().map(|encoding| self.advice(encoding, unpacked.len(), largest_shard, sweep.count));
        Ok(ShardedStat {
            elements: sweep.count,
            shards: plan.map.shards,
            moving_from: coming_from(&plan).map(|from| from.shards),
            largest_shard,
            encoding: encodings.into_iter().nth(fullest.into()).flatten(),
            unpacked_shards,
            advice,
        })
    }

    /// How the server keeps each shard; `None` for one that is gone. **Round trips: 1** for every 1,024.
    async fn encodings(&self, map: &Map) -> Result<Vec<Option<String>>> {
        let mut all = Vec::with_capacity(map.shards.into());
        let shards: Vec<u16> = (0..map.shards).collect();
        for part in shards.chunks(self.a_batch(1, OPS_A_BATCH)) {
            // As long for each part: there may be many.
            let ctx = Ctx { deadline: Some(self.deadline()) };
            let ask = |&shard: &u16| Ok(Op::native(self.key(map, shard)?, Native::Encoding));
            for reply in self.run(ctx, part.iter().map(ask).collect::<Result<Batch>>()?).await {
                all.push(match reply?.into_native() {
                    Some(NativeReply::Text(text)) => text,
                    _ => None,
                });
            }
        }
        Ok(all)
    }

    /// What to do about shards that are not packed, of which one is a `encoding`.
    fn advice(&self, encoding: &str, unpacked: usize, largest: u64, elements: u64) -> String {
        let what_is = match unpacked {
            1 => format!("1 shard is a {encoding}"),
            _ => format!("{unpacked} shards are not packed, but a {encoding}"),
        };
        let limits = self.store.profile().encodings.unwrap_or_default();
        // Before Redis 7.2.
        let packs_integers_only = self.of == Collection::Set && limits.set_entries_max == 0;
        let (what, entries_max, bytes_max) = match self.of {
            Collection::Hash => ("hash-max-listpack", limits.hash_entries_max, limits.hash_value_bytes_max),
            Collection::Set if packs_integers_only => ("set-max-intset", limits.set_integers_max, 0),
            Collection::Set => ("set-max-listpack", limits.set_entries_max, limits.set_value_bytes_max),
            Collection::Sorted => {
                ("zset-max-listpack", limits.sorted_set_entries_max, limits.sorted_set_value_bytes_max)
            }
        };
        if entries_max == 0 {
            return format!("{what_is}: {what}-entries is 0, or this server does not tell it");
        }
        // The mark is an entry as well.
        if largest < entries_max && packs_integers_only && !self.params.is_dense {
            return format!(
                "{what_is}: this server packs no set but one of integers (up to {entries_max}); Redis 7.2 packs others, too"
            );
        }
        if largest < entries_max {
            let why = match packs_integers_only {
                true => format!("one had more than {what}-entries ({entries_max}) before"),
                false => format!("one is longer than {what}-value ({bytes_max} bytes), or was"),
            };
            return format!(
                "{what_is}, though no shard has more than {largest} elements, which are not too many: {why}"
            );
        }
        let shards = elements.div_ceil((entries_max / 2).max(1)).max(1);
        // Dense ids are numbers.
        let but = match packs_integers_only && !self.params.is_dense {
            true => ", where all members are integers; Redis 7.2 packs others, too",
            false => "",
        };
        format!(
            "{what_is}: {largest} elements, as the fullest has, and the mark are over {what}-entries ({entries_max}); resharding to {shards} shards packs them again{but}"
        )
    }
}

fn is_packed(encoding: &str) -> bool {
    matches!(encoding, "listpack" | "ziplist" | "intset")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use larder_core::profile::Encodings;
    use larder_core::{Profile, Run, Store, StoreRef, Verb};

    use super::*;
    use crate::manifest::{Kind, Manifest};
    use crate::name::Name;
    use crate::sharded::layout::{Kept, LAYOUT, Params, Phase, Plan};

    /// A server of which one thing is known: how it keeps keys.
    #[derive(Debug)]
    struct Server(Encodings);

    impl Store for Server {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { encodings: Some(self.0), ..Profile::unlimited("server") })
        }

        fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
            let told = |op: &Op| match &op.verb {
                Verb::Native(native) if **native == Native::Encoding => {
                    let is_first = op.key.as_bytes().ends_with(b"-0");
                    NativeReply::Text((!is_first).then(|| "listpack".to_owned()))
                }
                _ => NativeReply::Count(0),
            };
            Run::Ready(batch.iter().map(|op| Ok(told(op).into())).collect())
        }
    }

    fn core(kind: Kind, encodings: Encodings) -> Core {
        let store: StoreRef = Arc::new(Server(encodings));
        let manifest = Manifest::new(kind, LAYOUT, 1, Bytes::new());
        let params = Params { kept: Kept::Native, is_dense: false, limits: None };
        let plan = Plan { version: 1, map: Map { id: 1, shards: 3, per_shard: 0 }, phase: Phase::Stable };
        Core::new(&store, &Name::new("n").unwrap(), manifest, params, plan, Duration::from_secs(5)).unwrap()
    }

    #[tokio::test]
    async fn how_each_shard_is_kept_is_asked_in_the_order_of_the_shards() {
        let core = core(Kind::ShardedHash, Encodings::default());
        let listpack = Some("listpack".to_owned());
        assert_eq!(core.encodings(&core.plan().map).await.unwrap(), [None, listpack.clone(), listpack]);
    }

    #[test]
    fn the_advice_names_the_limit_and_the_shards_that_keep_within_half_of_it() {
        let encodings = Encodings {
            hash_entries_max: 128,
            hash_value_bytes_max: 64,
            set_integers_max: 512,
            set_entries_max: 100,
            ..Encodings::default()
        };
        let hash = core(Kind::ShardedHash, encodings);
        let said = hash.advice("hashtable", 2, 130, 1_000);
        assert!(said.contains("130 elements") && said.contains("hash-max-listpack-entries (128)"), "{said}");
        assert!(said.contains("resharding to 16 shards packs them again"), "{said}");
        let said = hash.advice("hashtable", 1, 127, 1_000);
        assert!(
            said.contains("1 shard is a hashtable") && said.contains("hash-max-listpack-value (64 bytes)"),
            "{said}"
        );
        let said = core(Kind::ShardedSet, encodings).advice("hashtable", 1, 100, 160);
        assert!(said.contains("resharding to 4 shards packs them again"), "{said}");
        let said = core(Kind::ShardedHash, Encodings::default()).advice("hashtable", 1, 100, 160);
        assert!(said.contains("hash-max-listpack-entries is 0, or this server does not tell it"), "{said}");
    }

    #[test]
    fn before_redis_7_2_the_advice_goes_by_the_limit_of_sets_of_integers() {
        let encodings = Encodings { set_integers_max: 512, ..Encodings::default() };
        let mut set = core(Kind::ShardedSet, encodings);
        let packs = "packs no set but one of integers (up to 512)";
        // The mark is an integer as well.
        for (largest, says) in [(100, packs), (511, packs), (512, "over set-max-intset-entries (512)")] {
            let said = set.advice("hashtable", 1, largest, 1_000);
            assert!(said.contains(says), "{said}");
            assert!(said.contains("Redis 7.2 packs others, too"), "{said}");
            let reshards = said.contains("resharding to 4 shards packs them again, where all members are integers");
            assert_eq!(reshards, largest == 512, "{said}");
        }
        set.params.is_dense = true;
        let said = set.advice("hashtable", 1, 100, 1_000);
        assert!(said.ends_with("one had more than set-max-intset-entries (512) before"), "{said}");
        let said = set.advice("hashtable", 1, 512, 1_000);
        assert!(said.ends_with("resharding to 4 shards packs them again"), "{said}");
    }

    #[test]
    fn what_a_server_calls_packed_is_and_nothing_else() {
        assert!(["listpack", "ziplist", "intset"].into_iter().all(is_packed));
        assert!(!["hashtable", "skiplist", "quicklist", "raw", ""].into_iter().any(is_packed));
    }
}
