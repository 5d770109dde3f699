//! Figures, and how the server keeps a shard.

use larder_core::native::{Collection, Native, NativeReply};
use larder_core::{Batch, Ctx, Op, Result};

use super::SHARDS_MAX;
use super::core::{Core, OPS_A_BATCH, coming_from};
use super::dense::Dense;
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
    /// What to do about shards that the server's limits have unpacked: with the limits, and how many shards would do, or how many dense numbers a shard; where neither would, the limit to set.
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
        // Dense ids are numbers, whatever else a server packs.
        let are_integers = packs_integers_only || self.params.is_dense;
        let (what, entries_max, bytes_max) = match self.of {
            Collection::Hash => ("hash-max-listpack", limits.hash_entries_max, limits.hash_value_bytes_max),
            Collection::Set if are_integers => ("set-max-intset", limits.set_integers_max, 0),
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
            let why = match are_integers && self.of == Collection::Set {
                true => format!("one had more than {what}-entries ({entries_max}) before"),
                false => format!("one is longer than {what}-value ({bytes_max} bytes), or was"),
            };
            return format!(
                "{what_is}, though no shard has more than {largest} elements, which are not too many: {why}"
            );
        }
        let but = match packs_integers_only && !self.params.is_dense {
            true => ", where all members are integers; Redis 7.2 packs others, too",
            false => "",
        };
        format!(
            "{what_is}: {largest} elements, as the fullest has, and the mark are over {what}-entries ({entries_max}); {}{but}",
            self.cure(what, entries_max, largest, elements)
        )
    }

    /// What packs shards again of which some have too many elements.
    fn cure(&self, what: &str, entries_max: u64, largest: u64, elements: u64) -> String {
        let raise = |to: u64| format!("set {what}-entries to {to}, and reshard: what is written anew is packed");
        if self.params.is_dense {
            let dense = Dense::of(&self.plan().map);
            return match dense.packed(self.of, entries_max) {
                Some(per_shard) => format!("resharding to {per_shard} dense numbers a shard packs them again"),
                None => raise((largest + 1).next_power_of_two()),
            };
        }
        let (shards, most) = (elements.div_ceil((entries_max / 2).max(1)).max(1), u64::from(SHARDS_MAX));
        let mean = elements.div_ceil(most);
        match shards {
            shards if shards <= most => format!("resharding to {shards} shards packs them again"),
            _ if mean <= mean_by_chance(entries_max) => format!("resharding to {most} shards packs them again"),
            _ => {
                let several = "or spread them over several names";
                format!(
                    "{most} shards, the most there are, have {mean} each: {}; {several}",
                    raise((2 * mean).next_power_of_two())
                )
            }
        }
    }
}

/// Deviations over the mean that a shard must have room for: 1 in 90,000 has more.
const DEVIATIONS: f64 = 4.25;

/// How many elements a shard may have in the mean, where they are spread by hash, so that chance keeps it within a limit. One is a mark.
fn mean_by_chance(entries_max: u64) -> u64 {
    let most = entries_max.saturating_sub(1) as f64;
    ((DEVIATIONS.powi(2) + 4.0 * most).sqrt() / 2.0 - DEVIATIONS / 2.0).powi(2) as u64
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
        let map = Map { id: 1, shards: 3, per_shard: 1_000 };
        set.learn(Plan { version: 2, map, phase: Phase::Stable });
        let said = set.advice("hashtable", 1, 100, 1_000);
        assert!(said.ends_with("one had more than set-max-intset-entries (512) before"), "{said}");
        let said = set.advice("hashtable", 1, 512, 1_000);
        assert!(said.ends_with("resharding to 509 dense numbers a shard packs them again"), "{said}");
    }

    #[test]
    fn dense_shards_are_packed_by_fewer_numbers_each_and_else_by_a_higher_limit() {
        let encodings = Encodings {
            hash_entries_max: 512,
            hash_value_bytes_max: 64,
            set_integers_max: 512,
            set_entries_max: 128,
            ..Encodings::default()
        };
        for (kind, fits, setting) in
            [(Kind::ShardedHash, 64, "hash-max-listpack-entries"), (Kind::ShardedSet, 509, "set-max-intset-entries")]
        {
            let mut core = core(kind, encodings);
            core.params.is_dense = true;
            let said = |version, shards, per_shard| {
                core.learn(Plan { version, map: Map { id: 1, shards, per_shard }, phase: Phase::Stable });
                core.advice("hashtable", 1, 1_000, 3_000)
            };
            let told = said(2, 3, 1_000);
            let cure = format!("over {setting} (512); resharding to {fits} dense numbers a shard packs them again");
            assert!(told.ends_with(&cure), "{told}");
            // Even the most shards would have too many each.
            let told = said(3, 65_535, 1_000);
            assert!(
                told.ends_with(&format!("set {setting} to 1024, and reshard: what is written anew is packed")),
                "{told}"
            );
            // The mark is one more than 512.
            let told = core.advice("hashtable", 1, 512, 3_000);
            assert!(told.contains(&format!("set {setting} to 1024, and reshard")), "{told}");
        }
    }

    /// Numbers are short, but what a hash keeps under them need not be; and a set of anything has members that are long.
    #[test]
    fn a_shard_with_few_elements_is_not_packed_for_their_length_but_in_a_set_of_integers() {
        let encodings = Encodings {
            hash_entries_max: 512,
            hash_value_bytes_max: 64,
            set_integers_max: 512,
            set_entries_max: 128,
            set_value_bytes_max: 32,
            ..Encodings::default()
        };
        for (kind, is_dense, why) in [
            (Kind::ShardedHash, true, "one is longer than hash-max-listpack-value (64 bytes), or was"),
            (Kind::ShardedSet, false, "one is longer than set-max-listpack-value (32 bytes), or was"),
            (Kind::ShardedSet, true, "one had more than set-max-intset-entries (512) before"),
        ] {
            let mut core = core(kind, encodings);
            core.params.is_dense = is_dense;
            let told = core.advice("hashtable", 1, 100, 300);
            assert!(told.ends_with(why), "{told}");
        }
    }

    #[test]
    fn no_more_shards_are_advised_than_there_can_be() {
        let encodings = Encodings { hash_entries_max: 128, hash_value_bytes_max: 64, ..Encodings::default() };
        let hash = core(Kind::ShardedHash, encodings);
        let most = u64::from(SHARDS_MAX);
        for (elements, says) in [
            (64 * most, "resharding to 65535 shards packs them again"),
            (64 * most + 1, "resharding to 65535 shards packs them again"),
            (87 * most, "resharding to 65535 shards packs them again"),
            (
                87 * most + 1,
                "set hash-max-listpack-entries to 256, and reshard: what is written anew is packed; or spread them over several names",
            ),
        ] {
            let said = hash.advice("hashtable", 1, 130, elements);
            assert!(said.ends_with(says), "{elements}: {said}");
        }
    }

    #[test]
    fn what_a_server_calls_packed_is_and_nothing_else() {
        assert!(["listpack", "ziplist", "intset"].into_iter().all(is_packed));
        assert!(!["hashtable", "skiplist", "quicklist", "raw", ""].into_iter().any(is_packed));
    }
}
