//! What is spread over shards: clients write, remove and read, and in every other run make the shards another number meanwhile.

use bytes::Bytes;
use larder_core::Result;
use larder_structures::{ShardedHash, ShardedSet, ShardedSortedSet};

use super::drive::{self, opener};
use super::maps::{
    Apply, KEPT, MEMBERS, MapJob, Mix, entries, is_member, map, members, nothing_else, number, one, unsupported,
};
use crate::history::check::map::{MapOp, MapTold};
use crate::history::{Arena, Boxed, Run, Verdict};

/// How many shards there are at first.
const SHARDS: u16 = 3;

/// A mix with resharding in every other run.
fn resharded(mix: Mix, run: Run) -> Mix {
    Mix { reshard: u32::from(run.habits().bool()), ..mix }
}

pub(super) fn hash(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let apply: Apply<ShardedHash> = |hash, op| {
            Box::pin(async move {
                match op {
                    MapOp::Put(key, value) => {
                        Ok(MapTold::WasNew(one(hash.set([(key.to_string(), value.to_string())]).await?)?))
                    }
                    MapOp::Remove(key) => Ok(MapTold::WasThere(one(hash.remove([key.to_string()]).await?)?)),
                    MapOp::Get(key) => Ok(MapTold::Value(hash.get(key.to_string()).await?.map(number).transpose()?)),
                    MapOp::All => entries(hash.entries().await?),
                    MapOp::Reshard(shards) => hash.reshard(shards).await.map(|()| MapTold::Done),
                    _ => unsupported(),
                }
            })
        };
        let open = opener!(ShardedHash::options().shards(SHARDS), drive::name("sharded hash", run));
        let mix = resharded(Mix { has_values: true, ..MEMBERS }, run);
        map(arena, run, MapJob { name: "sharded hash", open, mix, apply, also: nothing_else }).await
    })
}

pub(super) fn set(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let apply: Apply<ShardedSet> = |set, op| {
            Box::pin(async move {
                match op {
                    MapOp::Put(key, _) => Ok(MapTold::WasNew(one(set.add([key.to_string()]).await?)?)),
                    MapOp::Remove(key) => Ok(MapTold::WasThere(one(set.remove([key.to_string()]).await?)?)),
                    MapOp::Get(key) => set.has(key.to_string()).await.map(is_member),
                    MapOp::All => members(set.members().await?),
                    MapOp::Reshard(shards) => set.reshard(shards).await.map(|()| MapTold::Done),
                    _ => unsupported(),
                }
            })
        };
        let open = opener!(ShardedSet::options().shards(SHARDS), drive::name("sharded set", run));
        let mix = resharded(MEMBERS, run);
        map(arena, run, MapJob { name: "sharded set", open, mix, apply, also: nothing_else }).await
    })
}

pub(super) fn sorted_set(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let apply: Apply<ShardedSortedSet> = |set, op| {
            Box::pin(async move {
                match op {
                    MapOp::Put(key, value) => {
                        Ok(MapTold::WasNew(one(set.set([(key.to_string(), value as f64)]).await?)?))
                    }
                    MapOp::Add(key, by) => {
                        let told = set.add([(key.to_string(), by as f64)]).await?;
                        Ok(MapTold::Value(told.first().map(|score| *score as i64)))
                    }
                    MapOp::Remove(key) => Ok(MapTold::WasThere(one(set.remove([key.to_string()]).await?)?)),
                    MapOp::Get(key) => Ok(MapTold::Value(set.score(key.to_string()).await?.map(|score| score as i64))),
                    MapOp::All => Ok(MapTold::All(scores(set.entries().await?)?)),
                    MapOp::Top(n) => Ok(MapTold::Best(scores(set.top(n).await?)?)),
                    MapOp::Bottom(n) => Ok(MapTold::Best(scores(set.bottom(n).await?)?)),
                    MapOp::Reshard(shards) => set.reshard(shards).await.map(|()| MapTold::Done),
                    MapOp::Count | MapOp::Make(..) | MapOp::End(..) | MapOp::Lose(..) => unsupported(),
                }
            })
        };
        let open =
            opener!(ShardedSortedSet::options().shards(SHARDS).kept(KEPT as u16), drive::name("sorted set", run));
        let mix = resharded(Mix { add: 4, put: 4, best: 4, has_values: true, ..MEMBERS }, run);
        map(arena, run, MapJob { name: "sharded sorted set", open, mix, apply, also: nothing_else }).await
    })
}

fn scores(all: Vec<(Bytes, f64)>) -> Result<Vec<(u64, i64)>> {
    all.into_iter().map(|(member, score)| Ok((number(member)? as u64, score as i64))).collect()
}
