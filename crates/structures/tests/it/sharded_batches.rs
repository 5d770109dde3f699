//! Sharded collections of more shards than a batch has ops.

use std::sync::Arc;

use larder_core::{Key, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{ShardedSet, ShardedSortedSet};

use crate::sharded::{FILLS, contents, cost, memory, named, set};
use crate::support::hooked::{Hooked, dies_at};
use crate::support::natives::Natives;
use crate::support::steady::metered;

/// Items, and native collections.
fn stores() -> [(StoreRef, bool); 2] {
    [(memory().1, false), (Natives::over(&memory().1).shared(), true)]
}

/// A set of 400 members in so many shards.
async fn many(store: &StoreRef, shards: u16) -> ShardedSet {
    let set = set(store, shards).await;
    set.add((0..400).map(|member| member.to_string())).await.unwrap();
    set
}

/// What a batch takes is asserted by the store.
#[tokio::test]
async fn many_shards_become_few_and_many_again_in_small_batches() {
    for (store, is_native) in stores() {
        let other = many(&store, 40).await;
        let small = set(&Hooked::with_batches_of(&store, 16).shared(), 40).await;
        for shards in [1, 50, 7, 2, 40] {
            small.reshard(shards).await.unwrap();
            for handle in [&small, &other] {
                let found = (handle.members().await.unwrap().len(), handle.len().await.unwrap(), handle.shards());
                assert_eq!(found, (400, 400, shards), "native: {is_native}");
            }
        }
    }
}

/// He finds unfilled what comes from more shards than a batch has ops.
#[tokio::test]
async fn a_writer_goes_on_where_many_shards_become_one_in_small_batches() {
    for (store, is_native) in stores() {
        many(&store, 40).await;
        // Of 40 items two batches look what is to fit, of native shards none.
        let fills = if is_native { FILLS - 1 } else { FILLS + 1 };
        let hooked = Hooked::new(&store);
        let dying = set(&hooked.shared(), 40).await;
        dies_at(&hooked, fills, dying.reshard(1)).await;
        let small = set(&Hooked::with_batches_of(&store, 16).shared(), 40).await;
        assert_eq!(small.stat().await.unwrap().moving_from, Some(40), "native: {is_native}");
        assert_eq!(small.add(["7", "new"]).await.unwrap(), [false, true], "native: {is_native}");
        assert_eq!((small.len().await.unwrap(), small.shards()), (401, 1), "native: {is_native}");
        small.reshard(3).await.unwrap();
        assert_eq!((small.len().await.unwrap(), small.shards()), (401, 3), "native: {is_native}");
    }
}

#[tokio::test]
async fn ends_of_more_shards_than_a_batch_has_ops_are_filled() {
    let (memory, store) = memory();
    let small = Hooked::with_batches_of(&store, 16).shared();
    let points = ShardedSortedSet::options().shards(64).kept(2).open_or_create(&small, "n").await.unwrap();
    points.set((0..100).map(|score| (format!("m{score:02}"), f64::from(score)))).await.unwrap();
    let ends = contents(&memory).into_keys().find(|key| key.ends_with(b".1")).expect("the ends");
    store.delete(Key::new(ends).unwrap()).await.unwrap();
    assert_eq!(named(&points.top(2).await.unwrap()), ["m99", "m98"]);
    assert_eq!(named(&points.bottom(2).await.unwrap()), ["m00", "m01"]);
}

/// A resharding's batches but those that fill: four read the map, one looks whether shards are sealed, one writes the plan, one makes the shards, one puts the new one in force, one
/// ends it.
const AROUND: u64 = 9;

/// Of each part two batches fill it, of items four, and one removes what it came from. Of items one more looks at every 32 what is to fit.
#[tokio::test]
async fn shards_are_filled_by_the_32_or_by_what_they_come_from() {
    for (from, to, parts) in [(320, 64, 2), (320, 40, 2), (960, 20, 2), (900, 10, 2), (600, 1, 1), (64, 128, 4)] {
        for is_native in [false, true] {
            let counting = metered(match is_native {
                true => Natives::over(&memory().1).shared(),
                false => Arc::new(MemoryStore::new()),
            });
            let set = many(&(Arc::new(counting.clone()) as StoreRef), from).await;
            let (counts, ()) = cost(&counting, set.reshard(to)).await;
            let looks = if to < from && !is_native { u64::from(from).div_ceil(32) } else { 0 };
            let each = if is_native { 3 } else { 5 };
            // What 600 are sealed and read by are more ops than a batch has.
            let more = u64::from(from == 600 && is_native);
            assert_eq!(counts.round_trips, AROUND + looks + each * parts + more, "{from} to {to}, native: {is_native}");
            assert_eq!(set.len().await.unwrap(), 400);
        }
    }
}

/// Of batches of 16 ops four are left to looks: four shards, what each comes from, which is sealed and read. The old ones are looked at in two batches, the new ones
/// made in three.
#[tokio::test]
async fn as_many_shards_are_filled_at_once_as_a_small_batch_takes() {
    for (store, is_native) in stores() {
        many(&store, 8).await;
        let counting = metered(Hooked::with_batches_of(&store, 16).shared());
        let small = set(&(Arc::new(counting.clone()) as StoreRef), 8).await;
        let (counts, ()) = cost(&counting, small.reshard(16)).await;
        let each = if is_native { 3 } else { 5 };
        assert_eq!(counts.round_trips, AROUND + 1 + 2 + each * 4, "native: {is_native}");
        assert_eq!(small.len().await.unwrap(), 400);
    }
}
