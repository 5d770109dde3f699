//! A map that went back, by a failover, to one that plans another: shards are sealed for that already.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Ctx, ErrorKind, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;

use super::core::Core;
use super::layout::{Map, Mark, Phase, Plan};
use super::make::{Settings, make_op};
use super::write::Change;
use crate::manifest::Kind;
use crate::name::Name;

/// A set of these members whose map plans another, of which these shards are made; and that plan.
async fn planned(store: &StoreRef, members: &[Bytes], made: &[u16]) -> (Core, Plan) {
    let settings = Settings { shards: Some(2), ..Settings::default() };
    let set = settings.open(store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap();
    set.change(members, &vec![Change::Put(Bytes::new()); members.len()]).await.unwrap();
    let now = set.plan();
    let to = Map { id: !now.map.id, shards: 3, per_shard: 0 };
    for &shard in made {
        let op = make_op(set.of, false, set.key(&to, shard).unwrap(), Mark::Unfilled).unwrap();
        store.run_one(Ctx::default(), op).await.unwrap();
    }
    let planned = Plan { version: now.version + 1, map: now.map, phase: Phase::Planned(to) };
    store.put(set.map_key().clone(), PutMode::Set, planned.encode(), Ttl::Never).await.unwrap();
    (set, planned)
}

fn members() -> Vec<Bytes> {
    (0..40).map(|number: u32| Bytes::from(number.to_string())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_planned_map_whose_shards_are_all_there_is_put_in_force_with_all_elements() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let members = members();
    let (set, planned) = planned(&store, &members, &[0, 1, 2]).await;
    let Phase::Planned(to) = planned.phase else { panic!("it is planned") };
    let told = set.went_back(&planned, 0).await.unwrap();
    assert_eq!(told.kind(), ErrorKind::RolledBack, "{told}");
    // Who has seen the plan finds this one newer.
    assert_eq!(set.plan(), Plan { version: planned.version + 1, map: to, phase: Phase::Moving(planned.map) });
    assert!(set.get(&members).await.unwrap().iter().all(Option::is_some));
}

#[tokio::test(start_paused = true)]
async fn a_planned_map_that_lacks_a_shard_is_cleared_away_and_another_one_takes_its_place() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let members = members();
    let (set, planned) = planned(&store, &members, &[0, 2]).await;
    let Phase::Planned(to) = planned.phase else { panic!("it is planned") };
    let told = set.went_back(&planned, 0).await.unwrap();
    assert_eq!(told.kind(), ErrorKind::RolledBack, "{told}");
    let now = set.plan();
    assert!(now.map.id != to.id && now.map.id != planned.map.id && now.map.shards == planned.map.shards, "{now:?}");
    assert!(set.get(&members).await.unwrap().iter().all(Option::is_some));
    for shard in 0..to.shards {
        assert!(!store.delete(set.key(&to, shard).unwrap()).await.unwrap(), "nothing is left of it");
    }
}

/// What was moved whole is removed where it came from: the shards of the plan have the only copy.
#[tokio::test(start_paused = true)]
async fn a_planned_map_that_lacks_a_shard_is_left_as_it_is_where_one_in_force_is_gone_as_well() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let (set, planned) = planned(&store, &members(), &[0, 2]).await;
    let Phase::Planned(to) = planned.phase else { panic!("it is planned") };
    store.delete(set.key(&planned.map, 0).unwrap()).await.unwrap();
    let told = set.went_back(&planned, 1).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Lost, "{told}");
    for shard in [0, 2] {
        assert!(store.delete(set.key(&to, shard).unwrap()).await.unwrap(), "shard {shard} is there");
    }
}
