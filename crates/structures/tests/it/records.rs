//! Packed records: what a handle does about shards that others make and lose beside it.

use std::sync::Arc;

use larder_core::native::Native;
use larder_core::{Batch, Ctx, ErrorKind, Key, Op, Reply, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::records::{Schema, Value};
use larder_structures::{Name, PackedRecords, registry};

use crate::support::hooked::Hooked;
use crate::support::natives::Natives;
use crate::support::sieve::Sieve;
use crate::support::steady::metered;
use crate::support::twice::Twice;

/// Shards of 64 records each.
const SHARD_BYTES: usize = 72;
pub(crate) const IN_SHARD_1: u64 = 64;

pub(crate) async fn records(store: &StoreRef) -> PackedRecords {
    let options = PackedRecords::options().schema(Schema::parse(["visits:u8"]).unwrap()).shard_bytes(SHARD_BYTES);
    options.open_or_create(store, "users").await.unwrap()
}

pub(crate) async fn set(records: &PackedRecords, id: u64, visits: u64) -> larder_core::Result<()> {
    records.set(id, &[("visits", Value::Uint(visits))]).await
}

/// Loses a shard, as an eviction does.
pub(crate) async fn evict(store: &StoreRef, shard: u32) {
    let manifest = registry::find(store, Ctx::default(), &Name::new("users").unwrap()).await.unwrap().unwrap();
    let key = Key::new(format!("L.users.r.{:016x}.s{shard}", manifest.generation)).unwrap();
    let is_native = !store.profile().natives.is_empty();
    let gone = if is_native { Op::native(key, Native::Remove) } else { Op::delete(key) };
    assert_eq!(store.run_one(Ctx::default(), gone).await.unwrap(), Reply::Deleted, "shard {shard} was not there");
}

/// A store for each of the two layouts.
pub(crate) fn stores() -> [StoreRef; 2] {
    let memory = || Arc::new(MemoryStore::new()) as StoreRef;
    [memory(), Natives::over(&memory()).shared()]
}

/// An id in each of the first shards.
pub(crate) fn one_a_shard(shards: u64) -> Vec<u64> {
    (0..shards).map(|shard| 1 + shard * IN_SHARD_1).collect()
}

pub(crate) fn is_lost<T: std::fmt::Debug>(told: larder_core::Result<T>) {
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
    let counting = metered(Arc::new(MemoryStore::new()));
    let store: StoreRef = Arc::new(counting.clone());
    let records = records(&store).await;
    for (documented, visits) in [(2 + 4, 1), (2, 2)] {
        let before = counting.counts();
        set(&records, 0, visits).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, documented);
    }
}

#[tokio::test]
async fn shards_that_were_never_made_take_one_look_together_at_each_call() {
    for store in stores() {
        let counting = metered(store);
        let records = records(&(Arc::new(counting.clone()) as StoreRef)).await;
        let ids = one_a_shard(10);
        for _ in 0..2 {
            let before = counting.counts();
            assert_eq!(records.get(7).await.unwrap(), [Value::Uint(0)]);
            assert_eq!(counting.counts().since(&before).round_trips, 2, "a get");
            let before = counting.counts();
            assert_eq!(records.get_many(&ids).await.unwrap(), vec![[Value::Uint(0)]; 10]);
            assert_eq!(counting.counts().since(&before).round_trips, 2, "of ten shards");
            let before = counting.counts();
            let counted = records.aggregate_ids(&["visits"], &ids).await.unwrap();
            assert_eq!(counted.count(&[Value::Uint(0)]), 10);
            assert_eq!(counting.counts().since(&before).round_trips, 2, "a count of ten shards");
        }
        // Shards that are there, and known, need none.
        set(&records, ids[3], 4).await.unwrap();
        let before = counting.counts();
        assert_eq!(records.get_many(&ids[3..4]).await.unwrap(), [[Value::Uint(4)]]);
        assert_eq!(counting.counts().since(&before).round_trips, 1, "of one that is there");
        let before = counting.counts();
        assert_eq!(records.get_many(&ids).await.unwrap()[3], [Value::Uint(4)]);
        assert_eq!(counting.counts().since(&before).round_trips, 2, "of nine that are not");
        for (some, expected) in [(&ids[3..4], 1), (&ids[..], 2)] {
            let before = counting.counts();
            assert_eq!(records.aggregate_ids(&[], some).await.unwrap().records, some.len() as u64);
            assert_eq!(
                counting.counts().since(&before).round_trips,
                expected,
                "as a get, though no field is asked for"
            );
        }
    }
}

/// Also where they are read in many batches.
#[tokio::test]
async fn shards_that_were_never_made_take_one_look_behind_the_last_batch() {
    // Of four ops a batch each is a native shard; a portable one may take 17, by its parts, and so has a batch for itself.
    for (store, batches) in stores().into_iter().zip([8, 2]) {
        let counting = metered(store);
        let hooked = Hooked::with_batches_of(&(Arc::new(counting.clone()) as StoreRef), 4);
        let records = records(&hooked.shared()).await;
        let before = counting.counts();
        records.get_many(&one_a_shard(8)).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, batches + 1);
    }
}

#[tokio::test]
async fn a_lost_shard_among_those_that_were_never_made_is_told() {
    for store in stores() {
        let knows = records(&store).await;
        let ids = one_a_shard(10);
        for at in [3, 6] {
            set(&knows, ids[at], 5).await.unwrap();
        }
        let knew_none = records(&store).await;
        evict(&store, 3).await;
        for handle in [&knew_none, &knows] {
            is_lost(handle.get_many(&ids).await);
            is_lost(handle.aggregate_ids(&["visits"], &ids).await);
            is_lost(handle.aggregate_ids(&[], &ids).await);
            is_lost(handle.get_many(&ids[3..5]).await);
            let others = handle.get_many(&ids[4..]).await.unwrap();
            assert_eq!((others[2].clone(), others[3].clone()), (vec![Value::Uint(5)], vec![Value::Uint(0)]));
        }
        is_lost(set(&knows, ids[3], 6).await);
    }
}

/// What is looked up of one shard, or by another caller of the handle, makes no loss of another that is made since it was missed.
#[tokio::test]
async fn shards_that_are_made_between_the_reading_and_the_look_are_read_again() {
    for store in stores() {
        for is_same_handle in [false, true] {
            let hooked = Hooked::new(&store);
            let reader = records(&hooked.shared()).await;
            let writer = if is_same_handle { reader.clone() } else { records(&store).await };
            let ids = one_a_shard(4);
            let made = ids.clone();
            hooked.at(1, move |store, batch| async move {
                let replies = store.run(Ctx::default(), batch).await;
                for id in made {
                    set(&writer, id, 8).await.unwrap();
                }
                replies
            });
            assert_eq!(reader.get_many(&ids).await.unwrap(), vec![[Value::Uint(8)]; 4], "{is_same_handle}");
            registry::drop_structure(&store, Ctx::default(), &Name::new("users").unwrap()).await.unwrap();
        }
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

#[tokio::test]
async fn a_shard_takes_at_least_its_header_and_one_record() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    for (field, least) in [("n:u8", 17), ("n:u9", 18), ("n:u64", 24)] {
        let open = |bytes: usize| {
            let options = PackedRecords::options().schema(Schema::parse([field]).unwrap()).shard_bytes(bytes);
            options.open_or_create(&store, field.replace(':', "-"))
        };
        let error = open(least - 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains(&format!("it takes {least} to ")), "{error}");
        let records = open(least).await.unwrap();
        records.set(3, &[("n", Value::Uint(200))]).await.unwrap();
        assert_eq!(records.get(3).await.unwrap(), [Value::Uint(200)]);
    }
}

#[tokio::test]
async fn records_are_grouped_by_fields_wherever_these_stand_and_no_group_without_any_is_told() {
    for (fields, values) in [(["a:u3", "b:u5", "c:u2"], [5, 17, 2]), (["a:u9", "b:u12", "c:u10"], [300, 4000, 1000])] {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let options = PackedRecords::options().schema(Schema::parse(fields).unwrap()).shard_bytes(SHARD_BYTES);
        let records = options.open_or_create(&store, "users").await.unwrap();
        let [a, b, c] = values.map(Value::Uint);
        for id in [1, 4, 9] {
            records.set(id, &[("a", a.clone()), ("b", b.clone()), ("c", c.clone())]).await.unwrap();
        }
        records.set(2, &[("b", b.clone())]).await.unwrap();
        let counted = records.aggregate(&["c", "b"]).await.unwrap();
        assert_eq!((counted.records, counted.groups.len()), (10, 3), "{counted:?}");
        assert_eq!(counted.count(&[c.clone(), b.clone()]), 3);
        assert_eq!(counted.count(&[Value::Uint(0), b.clone()]), 1);
        assert_eq!(counted.count(&[Value::Uint(0), Value::Uint(0)]), 6);
        let counted = records.aggregate(&["b"]).await.unwrap();
        assert_eq!((counted.groups.len(), counted.count(&[b])), (2, 4), "{counted:?}");
    }
}

#[tokio::test]
async fn an_aggregate_tells_after_each_block_how_many_records_are_done() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::with_batches_of(&memory, 3);
    let records = records(&hooked.shared()).await;
    for id in [0, IN_SHARD_1, 182] {
        set(&records, id, 1).await.unwrap();
    }
    let mut told = Vec::new();
    let counted = records.aggregate_told(&["visits"], &mut |done, all| told.push((done, all))).await.unwrap();
    assert_eq!(told, [(56, 183), (112, 183), (183, 183)]);
    assert_eq!(counted.count(&[Value::Uint(1)]), 3);
}

#[tokio::test]
async fn a_shard_in_which_nothing_was_set_is_not_read_to_be_counted() {
    let counting = metered(Arc::new(MemoryStore::new()));
    let hooked = Hooked::new(&(Arc::new(counting.clone()) as StoreRef));
    let records = records(&hooked.shared()).await;
    set(&records, 55, 1).await.unwrap();
    // It looks at the list, makes the shard, lists it, looks again, and reads it: then it may not write.
    hooked.refuse(6);
    set(&records, 56, 1).await.unwrap_err();
    let before = counting.counts();
    assert_eq!(records.highest().await.unwrap(), Some(55));
    let of_highest = counting.counts().since(&before).ops;
    let before = counting.counts();
    assert_eq!(records.aggregate(&["visits"]).await.unwrap().records, 56);
    assert_eq!(counting.counts().since(&before).ops, of_highest + 2, "the list, and the shard that has records");
}

/// Whoever gives an aggregate up has nothing under way that is read for it.
#[tokio::test]
async fn an_aggregate_that_is_dropped_reads_no_further() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&memory);
    let records = records(&hooked.shared()).await;
    set(&records, 0, 1).await.unwrap();
    let held = Arc::new(tokio::sync::Notify::new());
    let (reading, guard) = (held.clone(), Arc::downgrade(&held));
    // Two tell the highest id, one the list.
    hooked.at(4, move |_, _| async move {
        reading.notify_one();
        std::future::pending::<()>().await;
        drop(reading);
        unreachable!("it is given up")
    });
    tokio::select! {
        _ = records.aggregate(&["visits"]) => panic!("it waits"),
        () = held.notified() => {}
    }
    drop(held);
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(guard.upgrade().is_none(), "it is read on");
}

/// A store that has no parts of items.
fn without_ranges(inner: &StoreRef) -> StoreRef {
    let profile = larder_core::Profile { ranges: larder_core::Ranges::No, ..(*inner.profile()).clone() };
    let own = profile.clone();
    Sieve::of(inner, profile, move |_, op| op.check(&own).err().map(Err))
}

#[tokio::test]
async fn records_do_without_parts_of_items() {
    let store = without_ranges(&(Arc::new(MemoryStore::new()) as StoreRef));
    let records = records(&store).await;
    for id in [5, IN_SHARD_1, 3 * IN_SHARD_1] {
        set(&records, id, 1 + id).await.unwrap();
    }
    assert_eq!(records.highest().await.unwrap(), Some(3 * IN_SHARD_1));
    assert_eq!(records.get_many(&[5, 6, IN_SHARD_1]).await.unwrap(), [6, 0, 65].map(|visits| [Value::Uint(visits)]));
    assert_eq!(records.aggregate(&["visits"]).await.unwrap().groups.len(), 4);
}

/// Of a large shard only what is asked for is brought; of a small one all of it, which takes one op.
#[tokio::test]
async fn few_records_are_read_by_parts_where_that_brings_less() {
    let counting = metered(Arc::new(MemoryStore::new()));
    let store: StoreRef = Arc::new(counting.clone());
    let schema = || Schema::parse(["a:u32", "b:u32"]).unwrap();
    for (bytes, name, ops, received) in [(4096, "large", 4, 16 + 3 * 10), (112, "small", 1, 112)] {
        let options = PackedRecords::options().schema(schema()).shard_bytes(bytes);
        let records = options.open_or_create(&store, name).await.unwrap();
        records.set(2, &[("b", Value::Uint(7))]).await.unwrap();
        let before = counting.counts();
        assert_eq!(records.get_many(&[2, 3, 9]).await.unwrap()[0], [Value::Uint(0), Value::Uint(7)]);
        let cost = counting.counts().since(&before);
        assert_eq!((cost.round_trips, cost.ops, cost.received_bytes), (1, ops, received), "{name}");
    }
}
