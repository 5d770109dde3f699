//! Structures in the layouts that they have over native hashes, sorted sets and bits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use larder_core::native::{Families, Guarded, GuardedAct, Native};
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, Op, Reply, StoreExt, StoreRef, Verb};
use larder_layers::Counting;
use larder_store_memory::MemoryStore;
use larder_structures::records::{Schema, Value};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Name, PackedRecords, ShardedHash};

use crate::support::hooked::{Hooked, dies_at};
use crate::support::natives::{Held, Natives};
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

fn store() -> (Arc<MemoryStore>, StoreRef) {
    let memory = Arc::new(MemoryStore::new());
    let store = Natives::over(&(memory.clone() as StoreRef)).shared();
    (memory, store)
}

fn counting(inner: StoreRef) -> (Counting, StoreRef) {
    let counting = metered(inner);
    (counting.clone(), Arc::new(counting))
}

/// Shards of 16 records each.
async fn records(store: &StoreRef) -> PackedRecords {
    let schema = Schema::parse(["a:u5", "b:u11"]).unwrap();
    PackedRecords::options().schema(schema).shard_bytes(48).open_or_create(store, "n").await.unwrap()
}

async fn set(records: &PackedRecords, id: u64, a: u64, b: u64) -> larder_core::Result<()> {
    records.set(id, &[("a", Value::Uint(a)), ("b", Value::Uint(b))]).await
}

async fn shard(store: &StoreRef, shard: u32) -> Key {
    let manifest = find(store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.n.r.{:016x}.s{shard}", manifest.generation)).unwrap()
}

async fn remove(store: &StoreRef, key: Key) {
    let removed = store.run_one(Ctx::default(), Op::native(key, Native::Remove)).await.unwrap();
    assert_eq!(removed, Reply::Deleted, "it was not there");
}

#[tokio::test]
async fn records_in_bits_are_read_and_counted_as_they_were_set() {
    let (memory, store) = store();
    let (one, two) = (records(&store).await, records(&store).await);
    assert_eq!(one.highest().await.unwrap(), None);
    let mut model: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (id, a, b) in [(3, 31, 2_047), (0, 1, 1_024), (40, 7, 5), (3, 8, 9), (17, 0, 3), (16, 30, 0), (15, 2, 2)] {
        set(&one, id, a, b).await.unwrap();
        model.insert(id, (a, b));
        let highest = *model.last_key_value().unwrap().0;
        assert_eq!(two.highest().await.unwrap(), Some(highest));
    }
    let ids: Vec<u64> = (0..60).collect();
    for (id, found) in ids.iter().zip(two.get_many(&ids).await.unwrap()) {
        let (a, b) = model.get(id).copied().unwrap_or_default();
        assert_eq!(found, [Value::Uint(a), Value::Uint(b)], "id {id}");
    }
    let counted = two.aggregate(&["b"]).await.unwrap();
    assert_eq!((counted.records, counted.groups.len()), (41, 6), "{counted:?}");
    for (_, b) in model.values() {
        let count = if *b == 0 { 41 - 5 } else { 1 };
        assert_eq!(counted.count(&[Value::Uint(*b)]), count, "{b}: {counted:?}");
    }
    drop_structure(&store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

#[tokio::test]
async fn a_set_in_bits_that_raises_no_highest_id_is_one_op() {
    let (_, store) = store();
    let (counting, store) = counting(store);
    let records = records(&store).await;
    for (id, ops) in [(5, None), (4, Some(1)), (5, Some(1)), (6, Some(3))] {
        let before = counting.counts();
        set(&records, id, 1, 2).await.unwrap();
        let cost = counting.counts().since(&before);
        assert!(ops.is_none_or(|ops| (cost.round_trips, cost.ops) == (1, ops)), "id {id}: {cost:?}");
    }
}

#[tokio::test]
async fn a_shard_of_bits_that_is_gone_or_another_programs_is_lost() {
    for foreign in [None, Some("something else"), Some("")] {
        let (_, store) = store();
        let records = records(&store).await;
        set(&records, 20, 1, 2).await.unwrap();
        set(&records, 3, 1, 2).await.unwrap();
        let key = shard(&store, 0).await;
        remove(&store, key.clone()).await;
        if let Some(value) = foreign {
            store.run_one(Ctx::default(), Op::native(key, Native::BitsMake { value: value.into() })).await.unwrap();
        }
        let told =
            [set(&records, 3, 1, 2).await, records.get(3).await.map(drop), records.aggregate(&["a"]).await.map(drop)];
        for (at, told) in told.into_iter().enumerate() {
            let error = told.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost, "call {at}, {foreign:?}: {error}");
            assert!(error.to_string().contains("lost ids 0 to 15"), "{error}");
        }
        assert_eq!(records.get(20).await.unwrap()[0], Value::Uint(1));
    }
}

/// One of two shards is written, the other was lost: some of the call was done.
#[tokio::test]
async fn a_set_of_many_in_bits_that_ends_midway_is_unknown() {
    let (_, store) = store();
    let records = records(&store).await;
    for id in [3, 20] {
        set(&records, id, 1, 2).await.unwrap();
    }
    remove(&store, shard(&store, 1).await).await;
    let fields = [("a", Value::Uint(9))];
    let error = records.set_many([(3, &fields[..]), (20, &fields[..])]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::Unknown), "{error}");
    assert_eq!(records.get(3).await.unwrap()[0], Value::Uint(9));
    let error = records.set_many([(20, &fields[..])]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Lost, false), "{error}");
}

#[tokio::test]
async fn a_shard_of_bits_that_goes_as_it_is_made_may_be_made_again() {
    let (_, store) = store();
    let hooked = Hooked::new(&store);
    let records = records(&hooked.shared()).await;
    // It looks at the list, then makes the shard, and looks at that.
    hooked.at(2, |store, batch| async move {
        let key = batch.iter().next().unwrap().key.clone();
        let mut replies = larder_core::Replies::new();
        for op in batch {
            replies.extend(store.run(Ctx::default(), Batch::from_iter([op])).await);
            _ = store.run_one(Ctx::default(), Op::native(key.clone(), Native::Remove)).await;
        }
        replies
    });
    let error = set(&records, 3, 1, 2).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    set(&records, 3, 1, 2).await.unwrap();
    assert_eq!(records.get(3).await.unwrap(), [Value::Uint(1), Value::Uint(2)]);
}

async fn hash(store: &StoreRef) -> ShardedHash {
    ShardedHash::options().shards(2).open_or_create(store, "n").await.unwrap()
}

async fn entries(hash: &ShardedHash) -> BTreeMap<String, String> {
    let text = |bytes: bytes::Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    hash.entries().await.unwrap().into_iter().map(|(field, value)| (text(field), text(value))).collect()
}

#[tokio::test]
async fn a_sharded_hash_of_native_hashes_agrees_with_a_model_while_it_is_resharded() {
    let (memory, store) = store();
    assert!(store.profile().natives.contains(Families::HASH));
    let (one, two) = (hash(&store).await, hash(&store).await);
    let mut model = BTreeMap::new();
    for (round, shards) in [3, 1, 5, 2].into_iter().enumerate() {
        for number in 0..20 {
            let (field, value) = ((number * 7 + round) % 30, format!("{round} {number}"));
            let is_new = model.insert(field.to_string(), value.clone()).is_none();
            assert_eq!(one.set([(field.to_string(), value)]).await.unwrap(), [is_new]);
        }
        for field in [round.to_string(), "none".to_owned()] {
            assert_eq!(two.remove([&field]).await.unwrap(), [model.remove(&field).is_some()]);
        }
        two.reshard(shards).await.unwrap();
        assert_eq!(entries(&one).await, model);
        let stat = one.stat().await.unwrap();
        assert_eq!((stat.elements, stat.shards, stat.unpacked_shards), (model.len() as u64, shards, Some(0)));
        assert_eq!(stat.encoding.as_deref(), Some("listpack"));
    }
    drop_structure(&store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

/// A hash of thirty fields whose resharding died: the new map is in force, and none of its shards is filled.
async fn unfilled() -> StoreRef {
    let (_, store) = store();
    hash(&store).await.set((0..30).map(|field| (field.to_string(), "v"))).await.unwrap();
    let hooked = Hooked::new(&store);
    let dying = hash(&hooked.shared()).await;
    dies_at(&hooked, 7, dying.reshard(3)).await;
    store
}

#[tokio::test]
async fn who_writes_to_a_native_shard_that_nothing_came_to_yet_fills_it() {
    let store = unfilled().await;
    let one = hash(&store).await;
    assert_eq!(one.stat().await.unwrap().moving_from, Some(2));
    assert_eq!(one.set([("0", "w"), ("new", "w")]).await.unwrap(), [false, true]);
    assert_eq!(entries(&one).await.len(), 31);
    one.reshard(3).await.unwrap();
    let found = entries(&hash(&store).await).await;
    assert_eq!((found.len(), &*found["0"], &*found["7"], &*found["new"]), (31, "w", "v", "w"));
}

#[tokio::test]
async fn a_record_without_a_field_to_set_is_known_from_then_on_and_missed_with_its_shard() {
    let (_, store) = store();
    let records = records(&store).await;
    for id in [3, 5] {
        records.set(id, &[]).await.unwrap();
        assert_eq!(records.highest().await.unwrap(), Some(id));
    }
    assert_eq!(records.aggregate(&["a"]).await.unwrap().records, 6);
    remove(&store, shard(&store, 0).await).await;
    let error = records.set(5, &[]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
}

/// 64 ops of 1,024 numbers each, of which a record here has two.
#[tokio::test]
async fn so_many_numbers_are_read_from_bits_in_one_round_trip_as_documented() {
    let (counting, store) = counting(store().1);
    let schema = Schema::parse(["a:u5", "b:u11"]).unwrap();
    let options = PackedRecords::options().schema(schema).shard_bytes(1 << 17);
    let records = options.open_or_create(&store, "n").await.unwrap();
    let last = 64 * 1_024 / 2;
    set(&records, last - 1, 3, 2_000).await.unwrap();
    for (count, round_trips, ops) in [(600, 1, 2), (last, 1, 64), (last + 1, 2, 65)] {
        let before = counting.counts();
        let ids: Vec<u64> = (0..count).collect();
        let read = records.get_many(&ids).await.unwrap();
        let cost = counting.counts().since(&before);
        assert_eq!((cost.round_trips, cost.ops), (round_trips, ops), "{count} records");
        assert_eq!(read.len() as u64, count);
        assert_eq!(read.iter().filter(|record| record[1] == Value::Uint(2_000)).count(), usize::from(count >= last));
    }
}

/// The key has one member, which no other program has, and only who made it ever makes it.
#[tokio::test]
async fn the_highest_id_is_never_lowered_nor_made_again() {
    let items: StoreRef = Arc::new(MemoryStore::new());
    let natives = Natives::over(&items);
    let store = natives.shared();
    let (one, other) = (records(&store).await, records(&store).await);
    set(&one, 40, 1, 2).await.unwrap();
    // It knows of no higher one.
    set(&other, 3, 1, 2).await.unwrap();
    let generation = find(&store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap().generation;
    let key = Key::new(format!("L.n.r.{generation:016x}.highest")).unwrap();
    let held = Held::Names(BTreeMap::from([(format!("{generation:016x}").into(), "41".into())]));
    assert_eq!(natives.held(&key), Some(held), "the id, plus 1");
    for records in [&one, &other, &records(&store).await] {
        assert_eq!(records.highest().await.unwrap(), Some(40));
    }
    natives.lose(&key);
    let error = set(&one, 41, 1, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(natives.held(&key), None);
    // A set of another program's is left as it is.
    natives.hold(&key, Held::Names(BTreeMap::from([("theirs".into(), "7".into())])));
    assert_eq!(set(&one, 42, 1, 2).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(natives.held(&key), Some(Held::Names(BTreeMap::from([("theirs".into(), "7".into())]))));
}

/// Whatever has made it longer, what is behind the last record is not Larder's.
#[tokio::test]
async fn a_shard_of_bits_that_has_a_byte_more_is_told_and_not_counted() {
    let natives = Natives::over(&(Arc::new(MemoryStore::new()) as StoreRef));
    let store = natives.shared();
    let records = records(&store).await;
    set(&records, 3, 1, 2).await.unwrap();
    let key = shard(&store, 0).await;
    let Some(Held::Bits(mut bits)) = natives.held(&key) else { panic!("it has no bits") };
    bits.push(0);
    natives.hold(&key, Held::Bits(bits));
    let error = records.aggregate(&["a"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
}

/// Of a shard of a hash.
fn is_seal(op: &Op) -> bool {
    let Verb::Native(native) = &op.verb else { return false };
    matches!(&**native, Native::Guarded(Guarded { act: GuardedAct::Turn { to, .. }, .. }) if &to[..] == b"-2147483647")
}

#[tokio::test]
async fn a_seal_whose_outcome_is_unknown_is_tried_again_by_who_would_fill_a_shard() {
    let store = unfilled().await;
    let seals = Arc::new(AtomicU32::new(0));
    let (counted, lost) = (seals.clone(), || Error::new(ErrorKind::Unavailable, "cut").effect(Effect::Unknown));
    let losing = move |_: &Ctx, op: &Op| (is_seal(op) && counted.fetch_add(1, Relaxed) < 2).then(|| Err(lost()));
    let one = hash(&Sieve::answering(&store, losing)).await;
    assert_eq!(one.set([("0", "w"), ("new", "w")]).await.unwrap(), [false, true]);
    assert!(seals.load(Relaxed) > 2, "two were lost");
}

/// Where the server takes no writes, say: what is asked for is refused as that is, and not tried until others seem to be in the way.
#[tokio::test(start_paused = true)]
async fn a_seal_that_the_server_refuses_is_told_by_who_would_fill_a_shard() {
    let store = unfilled().await;
    let refused = || Error::new(ErrorKind::Unavailable, "MISCONF no writes").effect(Effect::NotApplied);
    let refusing = Sieve::answering(&store, move |_, op| is_seal(op).then(|| Err(refused())));
    let one = hash(&refusing).await;
    for error in [one.set([("0", "w")]).await.unwrap_err(), one.reshard(3).await.unwrap_err()] {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("MISCONF"), "{error}");
    }
    // What others have sealed needs no seal.
    assert_eq!(hash(&store).await.set([("0", "w"), ("new", "w")]).await.unwrap(), [false, true]);
    assert_eq!(one.set([("0", "x")]).await.unwrap(), [false]);
}
