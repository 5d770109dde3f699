//! What is told of dense numbers, and what a handle knows of them that opened before others made room.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{ErrorKind, PutMode, StoreExt, Ttl};
use larder_layers::Counting;
use larder_store_memory::MemoryStore;

use super::*;
use crate::sharded::layout::Phase;
use crate::{Set, ShardedSet, registry};

fn counting() -> (Counting, StoreRef) {
    let counting = Counting::new(Arc::new(MemoryStore::new()));
    let store: StoreRef = Arc::new(counting.clone());
    (counting, store)
}

async fn found(store: &StoreRef, name: &str) -> (Name, Manifest) {
    let name = Name::new(name).unwrap();
    let manifest = registry::find(store, Ctx::default(), &name).await.unwrap().expect("it is there");
    (name, manifest)
}

#[tokio::test]
async fn how_numbers_are_cut_is_told_in_one_round_trip_and_of_what_is_not_dense_in_none() {
    let (counting, store) = counting();
    ShardedSet::options().dense(500).shards(4).open_or_create(&store, "paid").await.unwrap();
    ShardedSet::options().shards(4).open_or_create(&store, "spread").await.unwrap();
    Set::open_or_create(&store, "tags").await.unwrap();
    let (paid, manifest) = found(&store, "paid").await;
    // Of another kind the same parameters say something else.
    let other = Manifest { kind: Kind::Set, ..manifest.clone() };
    let cut = Some(Dense { shards: 4, per_shard: 500 });
    let (spread, tags) = (found(&store, "spread").await, found(&store, "tags").await);
    for ((name, manifest), dense_now, round_trips) in
        [((paid.clone(), manifest), cut, 1), ((paid, other), None, 0), (spread, None, 0), (tags, None, 0)]
    {
        let before = counting.counts();
        assert_eq!(dense(&store, Ctx::default(), &name, &manifest).await.unwrap(), dense_now, "{name}");
        assert_eq!(counting.counts().since(&before).round_trips, round_trips, "{name}");
    }
}

#[tokio::test]
async fn of_a_map_that_is_gone_or_tells_of_no_numbers_nothing_is_told() {
    let (_, store) = counting();
    ShardedSet::options().dense(500).shards(4).open_or_create(&store, "paid").await.unwrap();
    let (name, manifest) = found(&store, "paid").await;
    let key = manifest.data_key(&name, 0).unwrap();
    let map = Map { id: 1, shards: 4, per_shard: 0 };
    let none = Plan { version: 9, map, phase: Phase::Stable }.encode();
    store.put(key.clone(), PutMode::Set, none, Ttl::Never).await.unwrap();
    assert_eq!(dense(&store, Ctx::default(), &name, &manifest).await.unwrap(), None);
    store.put(key.clone(), PutMode::Set, Bytes::from_static(b"another"), Ttl::Never).await.unwrap();
    assert_eq!(dense(&store, Ctx::default(), &name, &manifest).await.unwrap(), None);
    assert!(store.delete(key).await.unwrap());
    assert_eq!(dense(&store, Ctx::default(), &name, &manifest).await.unwrap(), None);
}

#[test]
fn shards_are_to_be_smaller_than_they_are_and_to_have_room_for_the_mark() {
    let dense = |shards, per_shard| Dense { shards, per_shard };
    // A hash is filled to the half of what is packed, and with 64 at the most.
    let hash = |entries_max| dense(3, 1_000).packed(Collection::Hash, entries_max);
    assert_eq!([hash(100), hash(128), hash(512)], [Some(50), Some(64), Some(64)]);
    // As small as that already.
    let set = |per_shard| dense(3, per_shard).packed(Collection::Set, 512);
    assert_eq!([set(510), set(509), set(508)], [Some(509), None, None]);
    // The most shards would have 512 numbers each, and the mark is an entry, too.
    let full = |entries_max| dense(13_107, 2_560).packed(Collection::Set, entries_max);
    assert_eq!([full(512), full(513)], [None, Some(512)]);
    let full = |entries_max| dense(13_107, 2_560).packed(Collection::Hash, entries_max);
    assert_eq!([full(512), full(513)], [None, Some(512)]);
}

#[tokio::test]
async fn a_number_that_others_have_made_room_for_is_found_by_who_opened_before() {
    let (counting, store) = counting();
    let open = async || ShardedSet::options().dense(10).shards(2).open_or_create(&store, "n").await.unwrap();
    let (before, too_far, other) = (open().await, open().await, open().await);
    other.reshard(4).await.unwrap();
    other.add(["35"]).await.unwrap();
    assert_eq!(before.has_many(["35", "5"]).await.unwrap(), [true, false]);
    // One look at the map tells that there is no room for this one, either.
    let counts = counting.counts();
    let error = too_far.has("40").await.unwrap_err();
    assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains("0 to 39"), "{error}");
    assert_eq!(counting.counts().since(&counts).round_trips, 1);
}
