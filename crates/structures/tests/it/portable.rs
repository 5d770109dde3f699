//! Reading native keys as items: what is told of those whose structure is not there.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, Remaining, Reply, StoreRef, Verb, Want};
use larder_core::{PutMode, StoreExt, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::Portable;
use larder_structures::records::{Schema, Value};
use larder_structures::{Counter, Kind, Manifest, Name, PackedRecords, UniqueVisitors, registry};

use crate::counter::fleet::{Fleet, Node};
use crate::counter::support::{Meter, data_key, memory, slot_key};
use crate::support::hooked::Hooked;
use crate::support::natives::{Held, Natives};
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

/// What a read of this key tells, through [`Portable`], of a store that says of it that it is no item; and its round trips.
async fn told(key: &str) -> (Error, u64) {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    hooked.at(1, |_, batch| async move {
        batch.iter().map(|_| Err(Error::new(ErrorKind::LayoutMismatch, "of another type"))).collect()
    });
    let counting = metered(hooked.shared());
    let portable: StoreRef = Arc::new(Portable::new(Arc::new(counting.clone())));
    let get = Batch::from_iter([Op::get(Key::new(key.to_owned()).unwrap(), Want::VALUE)]);
    let error = portable.run(Ctx::default(), get).await.remove(0).unwrap_err();
    (error, counting.counts().round_trips)
}

#[tokio::test]
async fn a_native_key_without_its_structure_is_told() {
    let (left, round_trips) = told("L.users.r.0123456789abcdef.s0").await;
    assert_eq!(left.kind(), ErrorKind::LayoutMismatch);
    assert!(left.to_string().contains("what is left of a structure that is not there"), "{left}");
    assert_eq!(round_trips, 2, "the key, its manifest");
    // The number of a fast counter may look like an item of its own right: the store's own word stands.
    let (number, round_trips) = told("L.users.n.0123456789abcdef.s0").await;
    assert!(number.to_string().contains("of another type"), "{number}");
    assert_eq!(round_trips, 2, "the key, its manifest");
}

/// What is read of a key.
async fn read(store: &StoreRef, key: &Key) -> larder_core::Result<Bytes> {
    let reply = store.run_one(Ctx::default(), Op::get(key.clone(), Want::VALUE)).await?;
    Ok(reply.into_item().expect("it is there").value)
}

/// Puts a manifest as the documented layout has it.
async fn put_manifest(store: &StoreRef, name: &str, kind: u8, layout: u8, generation: u64, params: &[u8]) {
    let head = [&b"LRD\x01"[..], &[kind, layout, 1, 0], &generation.to_le_bytes(), &[1]].concat();
    let key = Name::new(name).unwrap().manifest_key().unwrap();
    store.put(key, PutMode::Set, [&head[..], params].concat(), Ttl::Never).await.unwrap();
}

async fn manifest(store: &StoreRef, name: &str) -> Manifest {
    registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_counter_in_a_bit_field_is_read_as_one_in_digits() {
    let items = memory();
    let natives = Natives::over(&items).shared();
    let counting = metered(natives.clone());
    let mut meter = Meter::new(counting.clone());
    let portable: StoreRef = Arc::new(Portable::new(Arc::new(counting)));
    let mut keys = Vec::new();
    for (name, value) in [("hits", 42), ("debts", -1)] {
        Counter::options().fast().open_or_create(&natives, name).await.unwrap().add(value).await.unwrap();
        keys.push((name, data_key(&items, name, 'n', 0).await, ((1_i64 << 62) + value).to_string()));
    }
    for (name, key, digits) in &keys {
        assert_eq!(read(&portable, key).await.unwrap(), digits, "{name}");
        assert_eq!(meter.round_trips(), 3, "{name}: the key, its manifest, the bits");
        let (native, said) = (manifest(&natives, name).await, manifest(&portable, name).await);
        assert_eq!((native.layout, said), (3, Manifest { layout: 1, ..native }));
        meter.round_trips();
    }
    // What was learnt of each is kept.
    for (name, key, digits) in &keys {
        assert_eq!(read(&portable, key).await.unwrap(), digits, "{name}");
        assert_eq!(meter.round_trips(), 2, "{name}: the key, the bits");
    }
}

#[tokio::test]
async fn the_copies_of_a_slot_are_read_as_one_and_a_manifest_wherever_it_stands() {
    let nodes: Vec<Arc<Node>> = (0..3).map(|_| Node::new()).collect();
    let fleet = Fleet::shared(nodes.iter().map(|node| node.clone() as StoreRef));
    let counting = metered(fleet.clone());
    let mut meter = Meter::new(counting.clone());
    let portable: StoreRef = Arc::new(Portable::new(Arc::new(counting)));
    for (name, copies) in [("many", 3), ("one", 1)] {
        let counter = Counter::options().copies(copies).slots(2).open_or_create(&fleet, name).await.unwrap();
        counter.add(5).await.unwrap();
    }
    let (many, one) = (slot_key(&fleet, "many", 0).await, slot_key(&fleet, "one", 0).await);
    let slot = read(&portable, &many).await.unwrap();
    assert_eq!(slot[0], 1, "a slot, without ballots");
    assert_eq!(meter.round_trips(), 3, "the key, its manifest, the copies");
    assert_eq!(read(&portable, &many).await.unwrap(), slot);
    assert_eq!(meter.round_trips(), 2, "the key, the copies");
    assert_eq!(read(&portable, &one).await.unwrap(), read(&fleet, &one).await.unwrap());
    assert_eq!(meter.round_trips(), 2, "the key, its manifest");
    assert_eq!(read(&portable, &one).await.unwrap(), read(&fleet, &one).await.unwrap());
    assert_eq!(meter.round_trips(), 1, "the key");
    let key = Name::new("many").unwrap().manifest_key().unwrap();
    let said = Manifest { copies: 1, ..manifest(&fleet, "many").await };
    let alone: StoreRef = Arc::new(Portable::new(nodes[0].clone()));
    let error = read(&alone, &key).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("has copies on 3 servers, and this store is 1 of them"), "{error}");
    for node in &nodes {
        node.restart_empty();
        let portable: StoreRef = Arc::new(Portable::new(fleet.clone()));
        assert_eq!(Manifest::decode(&read(&portable, &key).await.unwrap()).unwrap(), said);
        let with_life = Op::get(key.clone(), Want::VALUE | Want::TTL);
        let item = portable.run_one(Ctx::default(), with_life).await.unwrap().into_item().unwrap();
        assert_eq!(item.ttl, Remaining::Never, "its life is told, too");
        assert_eq!(read(&portable, &many).await.unwrap(), slot);
        // Makes again what the server had.
        Counter::open(&fleet, "many").await.unwrap().repair().await.unwrap();
    }
    nodes[..2].iter().for_each(|node| node.restart_empty());
    let error = read(&portable, &many).await.unwrap_err();
    assert!(error.to_string().contains("this is not what a counter has here"), "{error}");
}

#[tokio::test]
async fn a_bit_field_that_looks_like_an_item_is_read_as_what_it_is() {
    let items = memory();
    let natives = Natives::over(&items);
    let portable: StoreRef = Arc::new(Portable::new(natives.shared()));
    let generation = 0xc111_2233_4455_6677_u64;
    put_manifest(&items, "n", 3, 3, generation, b"").await;
    let key = data_key(&items, "n", 'n', 0).await;
    natives.hold(&key, Held::Bits([generation.to_be_bytes(), (1_u64 << 62).to_be_bytes()].concat()));
    assert!(read(&natives.shared(), &key).await.is_ok(), "it is taken for an item");
    assert_eq!(read(&portable, &key).await.unwrap(), (1_u64 << 62).to_string());
}

#[tokio::test]
async fn a_native_shard_is_read_as_an_item_of_the_same_elements() {
    let items = memory();
    let natives = Natives::over(&items);
    let portable: StoreRef = Arc::new(Portable::new(natives.shared()));
    // A sharded set whose shards are native.
    put_manifest(&items, "seen", 25, 1, 7, b"\x01\0").await;
    let (native, said) = (manifest(&items, "seen").await, manifest(&portable, "seen").await);
    assert_eq!(native.kind, Kind::ShardedSet);
    assert_eq!(said, Manifest { params: Bytes::from_static(b"\0\0"), ..native });
    let shard = Key::new("L.seen.d.0000000000000007.00000001-0").unwrap();
    natives.hold(&shard, Held::set(["7", "-2147483648"]));
    let item = read(&portable, &shard).await.unwrap();
    assert_eq!((item[1], &item[10..]), (1, &b"\x01\0\0\0\x017"[..]));
    // One that was lost, and that a write made again, has no mark.
    natives.hold(&shard, Held::set(["8"]));
    let error = read(&portable, &shard).await.unwrap_err();
    assert!(error.to_string().contains("this is not what a sharded set has here"), "{error}");
}

/// Another program has written over the manifest of one structure: the keys of the others, in the same batch, are read as ever.
#[tokio::test]
async fn a_manifest_that_another_program_wrote_over_says_nothing_of_other_structures() {
    let items = memory();
    let natives = Natives::over(&items);
    let shards = ["fine", "odd"].map(|name| {
        let shard = Key::new(format!("L.{name}.d.0000000000000007.00000001-0")).unwrap();
        natives.hold(&shard, Held::set(["7", "-2147483648"]));
        shard
    });
    put_manifest(&items, "fine", 25, 1, 7, b"\x01\0").await;
    let odd = Name::new("odd").unwrap().manifest_key().unwrap();
    let store = Sieve::answering(&natives.shared(), move |_, op| {
        (op.key == odd).then(|| Err(Error::new(ErrorKind::LayoutMismatch, "of another type").key(&op.key)))
    });
    let portable = Portable::new(store);
    let gets = shards.iter().map(|key| Op::get(key.clone(), Want::VALUE)).collect();
    let mut replies = larder_core::Store::run(&portable, Ctx::default(), gets).await;
    let error = replies.remove(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert!(error.to_string().contains("L.odd.d."), "it names the key: {error}");
    let item = replies.remove(0).unwrap().into_item().unwrap();
    assert_eq!(item.value[10..], b"\x01\0\0\0\x017"[..]);
}

#[tokio::test]
async fn a_shard_of_a_period_that_is_not_listed_is_told_to_be_of_none() {
    let items = memory();
    let unique = UniqueVisitors::open_or_create(&items, "days").await.unwrap();
    unique.add(["ann"]).await.unwrap();
    let key = Name::new("days").unwrap().manifest_key().unwrap();
    let mut native = read(&items, &key).await.unwrap().to_vec();
    // The same, in sets of the store's own.
    native[17 + 23] = 3;
    items.put(key, PutMode::Set, native, Ttl::Never).await.unwrap();
    let generation = manifest(&items, "days").await.generation;
    let natives = Natives::over(&items);
    let portable: StoreRef = Arc::new(Portable::new(natives.shared()));
    let shard = Key::new(format!("L.days.u.{generation:016x}.ab-0")).unwrap();
    natives.hold(&shard, Held::set(["-2147483648"]));
    let error = read(&portable, &shard).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("a shard of a period that is not there, or is being made"), "{error}");
}

/// Only some kinds are ever native: of the others' keys the store's own word stands.
#[tokio::test]
async fn a_key_that_is_never_native_is_told_as_the_store_tells_it() {
    for key in ["L.users.s.0123456789abcdef.0", "L.users.p.0123456789abcdef.0", "L.users.q.0123456789abcdef.0"] {
        let (error, round_trips) = told(key).await;
        assert!(error.to_string().contains("of another type"), "{key}: {error}");
        assert_eq!(round_trips, 1, "{key}");
    }
}

/// All that a store answers, key by key, in a store of items; and the keys of which it said that nothing is there.
async fn moved(from: &StoreRef, keys: impl IntoIterator<Item = Key>) -> (StoreRef, Vec<Key>) {
    let keys: Vec<Key> = keys.into_iter().collect();
    let get = |key: &Key| Op::get(key.clone(), Want::VALUE | Want::FLAGS);
    let replies = from.run(Ctx::default(), keys.iter().map(get).collect()).await;
    let (to, mut missing) = (memory(), Vec::new());
    for (key, reply) in keys.into_iter().zip(replies) {
        let Some(item) = reply.unwrap().into_item() else {
            missing.push(key);
            continue;
        };
        let mut put = Op::put(key, PutMode::Add, item.value, Ttl::Never);
        if let Verb::Put { flags, .. } = &mut put.verb {
            *flags = item.flags;
        }
        assert_eq!(to.run_one(Ctx::default(), put).await.unwrap(), Reply::Stored);
    }
    (to, missing)
}

/// Key by key, as who moves a store does: several structures in one batch.
#[tokio::test]
async fn records_and_visitors_in_native_data_are_the_same_ones_where_their_items_are_moved_to() {
    let natives = Natives::over(&memory()).shared();
    let keys: Arc<Mutex<BTreeSet<Key>>> = Arc::default();
    let noted = keys.clone();
    let noting = Sieve::answering(&natives, move |_, op| {
        if !op.is_read() {
            noted.lock().unwrap().insert(op.key.clone());
        }
        None
    });
    let schema = Schema::parse(["n:u8"]).unwrap();
    let records = PackedRecords::options().schema(schema).shard_bytes(24).open_or_create(&noting, "n").await.unwrap();
    for (id, n) in [(3, 200), (8, 1), (30, 7)] {
        records.set(id, &[("n", Value::Uint(n))]).await.unwrap();
    }
    let year = Duration::from_secs(365 * 86_400);
    let days = UniqueVisitors::options().period(year).expected(50).open_or_create(&noting, "days").await.unwrap();
    let names: Vec<String> = (0..30).map(|number| number.to_string()).collect();
    days.add(&names).await.unwrap();

    let highest = Key::new(format!("L.n.r.{:016x}.highest", manifest(&natives, "n").await.generation)).unwrap();
    let keys = std::mem::take(&mut *keys.lock().unwrap());
    let (to, missing) = moved(&(Arc::new(Portable::new(natives.clone())) as StoreRef), keys).await;
    assert_eq!(missing, [highest], "it follows from the shards");
    let records = PackedRecords::open(&to, "n").await.unwrap();
    let values = [200, 0, 1, 7].map(|n| [Value::Uint(n)]);
    assert_eq!(records.get_many(&[3, 4, 8, 30]).await.unwrap(), values);
    assert_eq!(records.highest().await.unwrap(), Some(30));
    let days = UniqueVisitors::open(&to, "days").await.unwrap();
    assert_eq!(days.count().await.unwrap().visitors, 30);
    // And they go on as what they are there.
    records.set(31, &[("n", Value::Uint(9))]).await.unwrap();
    days.add(["7", "new"]).await.unwrap();
    assert_eq!((records.highest().await.unwrap(), days.count().await.unwrap().visitors), (Some(31), 31));
}

/// Nothing is asked beside it: one server says all there is to a key of an item, and to a name without a manifest.
#[tokio::test]
async fn what_stands_in_items_on_one_server_is_read_in_one_round_trip() {
    let items = memory();
    let counting = metered(items.clone());
    let mut meter = Meter::new(counting.clone());
    let portable: StoreRef = Arc::new(Portable::new(Arc::new(counting)));
    // A slot of an exact counter, the number of a fast one, a shard of records, and what is no structure's.
    for key in ["L.c.s.0123456789abcdef.0", "L.c.n.0123456789abcdef.0", "L.c.r.c123456789abcdef.s0", "c"] {
        let key = Key::new(key).unwrap();
        items.put(key.clone(), PutMode::Add, "what it is", Ttl::Never).await.unwrap();
        assert_eq!(read(&portable, &key).await.unwrap(), "what it is");
        assert_eq!(meter.round_trips(), 1, "{key:?}");
    }
    let absent = Name::new("c").unwrap().manifest_key().unwrap();
    assert_eq!(portable.run_one(Ctx::default(), Op::get(absent, Want::VALUE)).await.unwrap(), Reply::Miss);
    assert_eq!(meter.round_trips(), 1, "a manifest that is not there");
}
