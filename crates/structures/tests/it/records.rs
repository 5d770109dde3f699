//! Packed records: what a handle does about shards that others make and lose beside it.

use std::sync::Arc;

use larder_core::{Batch, Ctx, ErrorKind, Key, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::records::{Schema, Value};
use larder_structures::{Name, PackedRecords, registry};

use crate::support::hooked::Hooked;
use crate::support::twice::Twice;

/// Shards of 64 records each.
const SHARD_BYTES: usize = 72;
const IN_SHARD_1: u64 = 64;

async fn records(store: &StoreRef) -> PackedRecords {
    let options = PackedRecords::options().schema(Schema::parse(["visits:u8"]).unwrap()).shard_bytes(SHARD_BYTES);
    options.open_or_create(store, "users").await.unwrap()
}

async fn set(records: &PackedRecords, id: u64, visits: u64) -> larder_core::Result<()> {
    records.set(id, &[("visits", Value::Uint(visits))]).await
}

/// Loses a shard, as an eviction does.
async fn evict(store: &StoreRef, shard: u32) {
    let manifest = registry::find(store, Ctx::default(), &Name::new("users").unwrap()).await.unwrap().unwrap();
    let key = Key::new(format!("L.users.r.{:016x}.s{shard}", manifest.generation)).unwrap();
    assert!(store.delete(key).await.unwrap(), "shard {shard} was not there");
}

fn is_lost<T: std::fmt::Debug>(told: larder_core::Result<T>) {
    assert_eq!(told.unwrap_err().kind(), ErrorKind::Lost);
}

/// One handle stands still between its look at the list and its making of a shard, or before it lists it; meanwhile another makes the shard, writes to it, and the store loses it.
/// Found by the proof's simulation (seed 880079261).
#[tokio::test]
async fn a_shard_that_others_made_and_the_store_lost_since_the_look_is_told_to_who_makes_it_again() {
    for nth in [2, 3] {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let one = records(&store).await;
        let hooked = Hooked::new(&store);
        let other = records(&hooked.shared()).await;
        let (behind, first) = (store.clone(), one.clone());
        hooked.at(nth, move |store, batch| async move {
            if nth == 3 {
                // The making that is to be listed is undone first, as if it had come before the other's.
                evict(&behind, 0).await;
            }
            set(&first, 7, 8).await.unwrap();
            evict(&behind, 0).await;
            if nth == 3 {
                _ = set(&first, 9, 9).await;
            }
            store.run(Ctx::default(), batch).await
        });
        is_lost(set(&other, 0, 64).await);
        for handle in [&other, &one, &records(&store).await] {
            is_lost(handle.get(0).await);
            is_lost(handle.get(7).await);
        }
    }
}

/// A handle that learns of all shards for the sake of one does not take one that was lost and made again for whole.
#[tokio::test]
async fn a_look_for_another_shard_does_not_hide_a_loss() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    for round in 0..8u64 {
        let one = records(&store).await;
        let hooked = Hooked::new(&store);
        let other = records(&hooked.shared()).await;
        let (behind, first) = (store.clone(), one.clone());
        hooked.at(2, move |store, batch| async move {
            set(&first, 7, 8).await.unwrap();
            evict(&behind, 0).await;
            store.run(Ctx::default(), batch).await
        });
        is_lost(set(&other, 0, 64).await);
        // Which of the two incarnations is the larger is drawn: in half of the rounds the one that is there.
        for handle in [&other, &records(&store).await] {
            set(handle, IN_SHARD_1, 1 + round).await.unwrap();
            is_lost(handle.get(7).await);
            is_lost(set(handle, 7, 9).await);
        }
        registry::drop_structure(&store, Ctx::default(), &Name::new("users").unwrap()).await.unwrap();
    }
}

#[tokio::test]
async fn the_first_set_in_a_shard_takes_the_round_trips_it_documents() {
    let counting = larder_layers::Counting::new(Arc::new(MemoryStore::new()));
    let store: StoreRef = Arc::new(counting.clone());
    let records = records(&store).await;
    for (documented, visits) in [(2 + 4, 1), (2, 2)] {
        let before = counting.counts();
        set(&records, 0, visits).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, documented);
    }
}

/// No connection does that; a router may that repeats what it has not seen answered.
#[tokio::test]
async fn requests_that_are_delivered_twice_set_once_while_nothing_is_lost() {
    for _ in 0..12 {
        let store: StoreRef = Arc::new(Twice(Arc::new(MemoryStore::new())));
        let (one, two) = (records(&store).await, records(&store).await);
        for (number, id) in (0..3 * IN_SHARD_1).step_by(5).enumerate() {
            let handle = if number % 2 == 0 { &one } else { &two };
            set(handle, id, 1).await.unwrap();
            set(handle, id, 2).await.unwrap();
            tokio::task::yield_now().await;
            assert_eq!(one.get(id).await.unwrap(), [Value::Uint(2)], "id {id}");
        }
        for id in (0..3 * IN_SHARD_1).step_by(5) {
            assert_eq!(two.get(id).await.unwrap(), [Value::Uint(2)], "id {id}");
        }
    }
}

/// The limit of that: the making of a shard is the same request, and so makes the same shard, whenever it comes.
#[tokio::test]
async fn a_making_that_is_delivered_again_behind_its_loss_hides_what_was_set() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    let records = records(&hooked.shared()).await;
    let making = Arc::new(std::sync::Mutex::new(Batch::new()));
    let kept = making.clone();
    hooked.at(2, |store, batch| async move {
        *kept.lock().unwrap() = batch.clone();
        store.run(Ctx::default(), batch).await
    });
    set(&records, 0, 64).await.unwrap();
    evict(&store, 0).await;
    let making = std::mem::take(&mut *making.lock().unwrap());
    store.run(Ctx::default(), making).await;
    assert_eq!(records.get(0).await.unwrap(), [Value::Uint(0)]);
}
