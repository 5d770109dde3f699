//! What ends a write, and what fits into a shard.

use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::{Answering, fails};
use crate::manifest::Kind;
use crate::name::Name;
use crate::sharded::layout::{HEADER_BYTES, Phase};
use crate::sharded::make::Settings;

async fn set(store: &StoreRef) -> Core {
    let settings = Settings { shards: Some(2), ..Settings::default() };
    settings.open(store, &Name::new("n").unwrap(), Kind::ShardedSet, true).await.unwrap()
}

#[tokio::test]
async fn a_store_that_fails_while_a_shard_is_filled_is_told_though_another_map_is_known_by_then() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let answering = Answering::over(&store);
    let set = set(&answering.shared()).await;
    let now = set.plan();
    let from = Map { id: !now.map.id, ..now.map };
    let before = Plan { phase: Phase::Moving(from), ..now };
    answering.by(|_| Some(fails(ErrorKind::Unavailable, Effect::NotApplied)));
    let round = Round { unfilled: vec![0], ..Round::default() };
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    let error = set.make_ready(Ctx::default(), &before, round, &mut backoff, &mut 0).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
}

#[tokio::test]
async fn a_shard_may_be_as_large_as_an_item_under_the_longest_key_and_no_larger() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(4_000).build().unwrap());
    let set = set(&store).await;
    let map = set.plan().map;
    let max = store.profile().value_bytes_max(set.key(&map, SHARDS_MAX).unwrap().as_bytes().len());
    let cas = Cas { token: 1, session: 1 };
    let put = |bytes: usize| {
        let mut shard = Shard::empty(Mark::Live);
        // One element, and two bytes that tell how long it is.
        shard.elements.insert(vec![b'x'; bytes - HEADER_BYTES - 2].into(), Bytes::new());
        assert_eq!(shard.encode(set.of).len(), bytes);
        set.put_item_op(&map, 0, &shard, cas)
    };
    put(max).unwrap();
    let error = put(max + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains(&format!("would take {} bytes, and an item takes {max}", max + 1)), "{error}");
}
