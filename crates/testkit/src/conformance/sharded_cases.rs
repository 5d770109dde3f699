//! Sharded hashes and sets through their public handles, on every store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::native::Families;
use larder_core::{Ctx, Effect, ErrorKind, Key, Op, Reply, Result, StoreRef};
use larder_layers::Counting;
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Kind, Name, ShardedHash, ShardedSet};

use super::reshard_cases::Meanwhile;
use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    sharded_hashes_agree_with_a_model [Cas];
    sharded_sets_tell_a_new_member_once_under_eight_tasks_while_resharded [Cas];
    sharded_hashes_are_set_or_not_when_the_nth_op_fails [Cas];
    sharded_hashes_report_a_lost_shard_and_no_other [Cas];
    sharded_hashes_of_dense_numbers_grow [Cas];
    sharded_sets_of_dense_numbers_grow [Cas];
    sharded_hashes_refuse_what_does_not_fit [Cas];
    sharded_handles_follow_a_map_they_have_not_seen [Cas];
    sharded_round_trips_are_as_documented [Cas];
    sharded_shards_are_packed [Native(Families::HASH.union(Families::SET).union(Families::LOOK))];
    drop_of_a_sharded_hash_removes_every_key_and_a_handle_notices [Cas];
}

const PATIENCE: Duration = Duration::from_secs(30);

async fn hash(store: &StoreRef, name: &str, shards: u16) -> ShardedHash {
    let options = ShardedHash::options().shards(shards).timeout(PATIENCE);
    options.open_or_create(store, name).await.expect("a sharded hash")
}

async fn set(store: &StoreRef, name: &str, shards: u16) -> ShardedSet {
    let options = ShardedSet::options().shards(shards).timeout(PATIENCE);
    options.open_or_create(store, name).await.expect("a sharded set")
}

async fn entries(hash: &ShardedHash) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let all = hash.entries().await.expect("entries");
    let count = all.len();
    let all: BTreeMap<_, _> = all.into_iter().map(|(field, value)| (field.to_vec(), value.to_vec())).collect();
    assert_eq!(all.len(), count, "a field is there twice");
    all
}

/// Fields of any bytes, those that a native shard could take for its mark among them.
fn some_field(rng: &mut fastrand::Rng) -> Vec<u8> {
    match rng.u8(..12) {
        0 => Vec::new(),
        1 => b"-2147483648".to_vec(),
        2 => b"-2147483647".to_vec(),
        3 => b"\0-2147483646".to_vec(),
        4 => vec![0, 0xff, b'\r', b'\n'],
        _ => rng.u16(..60).to_string().into_bytes(),
    }
}

async fn sharded_hashes_agree_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let handles = [hash(&t.store, &name, 5).await, hash(&t.store, &name, 5).await];
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for step in 0..80 {
        let hash = &handles[rng.usize(..2)];
        let fields: Vec<Vec<u8>> = (0..rng.usize(1..8)).map(|_| some_field(&mut rng)).collect();
        match rng.u8(..10) {
            0..=3 => {
                let sets: Vec<_> = fields.iter().map(|field| (field, step.to_string().into_bytes())).collect();
                let expected: Vec<bool> =
                    sets.iter().map(|(field, value)| model.insert(field.to_vec(), value.clone()).is_none()).collect();
                assert_eq!(hash.set(sets).await.expect("a set"), expected, "step {step}, seed {seed}");
            }
            4..=5 => {
                let expected: Vec<bool> = fields.iter().map(|field| model.remove(field).is_some()).collect();
                assert_eq!(hash.remove(&fields).await.expect("a removal"), expected, "step {step}, seed {seed}");
            }
            6..=7 => {
                let found = hash.get_many(&fields).await.expect("values");
                let expected: Vec<Option<Bytes>> =
                    fields.iter().map(|field| model.get(field).map(|value| Bytes::from(value.clone()))).collect();
                assert_eq!(found, expected, "step {step}, seed {seed}");
            }
            8 => {
                assert_eq!(hash.len().await.expect("a length"), model.len() as u64, "step {step}, seed {seed}");
                assert_eq!(entries(hash).await, model, "step {step}, seed {seed}");
            }
            _ => hash.reshard(rng.u16(1..12)).await.expect("a resharding"),
        }
    }
}

/// All add the same members, a part of them after the other, and some parts with each resharding.
async fn sharded_sets_tell_a_new_member_once_under_eight_tasks_while_resharded(t: Bench) {
    const TASKS: usize = 8;
    const PARTS: u32 = 25;
    const A_PART: u32 = 16;
    const MEMBERS: u64 = (PARTS * A_PART) as u64;
    let name = t.name("a");
    let handles = [set(&t.store, &name, 3).await, set(&t.store, &name, 3).await];
    let other = set(&Meanwhile::yielding(&t.store), &name, 3).await;
    let (new, meanwhile) = (Arc::new(AtomicU64::new(0)), Meanwhile::of(TASKS));
    let adders = (0..TASKS).map(|task| {
        let (set, new, meanwhile) = (handles[task % 2].clone(), new.clone(), meanwhile.clone());
        tokio::spawn(async move {
            let mut next = 0;
            for turn in 0.. {
                let come = meanwhile.have_come(turn, PARTS);
                if next == PARTS && meanwhile.is_over(turn) {
                    break;
                }
                let part = if next < come { next } else { fastrand::u32(..next) };
                next = next.max(part + 1);
                let mut members: Vec<u32> = (part * A_PART..(part + 1) * A_PART).collect();
                fastrand::shuffle(&mut members);
                let told = meanwhile.call(task, set.add(members.iter().map(u32::to_string))).await.expect("an add");
                new.fetch_add(told.into_iter().filter(|new| *new).count() as u64, Ordering::Relaxed);
                let is_there = meanwhile.call(task, set.has(members[0].to_string())).await.expect("a look");
                assert!(is_there, "{} was acknowledged", members[0]);
                // A store in the process answers at once, and lets nobody else in.
                tokio::task::yield_now().await;
            }
        })
    });
    let adders: Vec<_> = adders.collect();
    let is_over = Arc::new(AtomicBool::new(false));
    let watcher = {
        let (set, is_over) = (handles[0].clone(), is_over.clone());
        tokio::spawn(async move {
            let mut last = 0;
            while !is_over.load(Ordering::Relaxed) {
                let now = set.len().await.expect("a length");
                assert!((last..=MEMBERS).contains(&now), "{last} members, then {now}");
                last = now;
                tokio::task::yield_now().await;
            }
        })
    };
    while let Some(shards) = meanwhile.begin(&[7, 2, 9, 5]) {
        other.reshard(shards).await.expect("a resharding");
        meanwhile.end();
    }
    for adder in adders {
        adder.await.expect("no panic");
    }
    other.reshard(4).await.expect("a resharding");
    is_over.store(true, Ordering::Relaxed);
    watcher.await.expect("no panic");
    assert_eq!(new.load(Ordering::Relaxed), MEMBERS, "each is new once");
    for set in &handles {
        let members: BTreeSet<Bytes> = set.members().await.expect("members").into_iter().collect();
        assert_eq!((set.len().await.expect("a length"), members.len() as u64), (MEMBERS, MEMBERS));
    }
}

async fn sharded_hashes_are_set_or_not_when_the_nth_op_fails(t: Bench) {
    for fault in [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)] {
        for nth in 1..=6 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let hash = hash(&faulty.shared(), &name, 4).await;
            hash.set([("kept", "0")]).await.expect("a set");
            faulty.fail_nth(nth, fault);
            let mut expected = Vec::new();
            for field in ["a", "b"] {
                expected.push(match hash.set([(field, "1")]).await {
                    Ok(told) => {
                        assert_eq!(told, [true], "{fault:?} at op {nth}");
                        vec![Some(Bytes::from("1"))]
                    }
                    Err(error) if error.is_unknown() => vec![None, Some(Bytes::from("1"))],
                    Err(error) => {
                        assert_ne!(error.kind(), ErrorKind::Lost, "{error}: nothing was lost ({fault:?} at op {nth})");
                        vec![None]
                    }
                });
            }
            faulty.heal();
            faulty.deliver_late().await;
            for hash in [&hash, &self::hash(&t.store, &name, 4).await] {
                for (field, expected) in ["a", "b"].iter().zip(&expected) {
                    let found = hash.get(field).await.unwrap_or_else(|error| panic!("{fault:?} at op {nth}: {error}"));
                    assert!(expected.contains(&found), "{fault:?} at op {nth}: {found:?}, not one of {expected:?}");
                }
                assert_eq!(hash.get("kept").await.expect("a value").as_deref(), Some(&b"0"[..]));
            }
        }
    }
}

/// A key as `docs/layouts.md` writes it down: that of the map.
async fn map_key(t: &Bench, name: &str) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await.expect("a manifest");
    let generation = manifest.expect("a structure").generation;
    Key::new(format!("L.{name}.h.{generation:016x}.0")).expect("a short name")
}

async fn shard_key(t: &Bench, name: &str, shard: u16) -> Key {
    let map = map_key(t, name).await;
    let value = t.ok(Op::get(map.clone(), larder_core::Want::VALUE)).await.into_item().expect("the map").value;
    let id = u32::from_le_bytes(*value[10..].first_chunk().expect("an id"));
    let text = std::str::from_utf8(map.as_bytes()).expect("text");
    Key::new(format!("{}{id:08x}-{shard}", &text[..text.len() - 1])).expect("a short name")
}

async fn sharded_hashes_report_a_lost_shard_and_no_other(t: Bench) {
    let name = t.name("a");
    let hash = ShardedHash::options().shards(3).dense(10).timeout(PATIENCE);
    let hash = hash.open_or_create(&t.store, &name).await.expect("a hash");
    hash.set((0..30).map(|id| (id.to_string(), "v"))).await.expect("a set");
    t.remove(shard_key(&t, &name, 1).await).await;
    for hash in [hash, ShardedHash::open(&t.store, &name).await.expect("a hash")] {
        let lost = [
            hash.get("10").await.err(),
            hash.set([("19", "w")]).await.err(),
            hash.remove(["15"]).await.err(),
            hash.len().await.err(),
            hash.entries().await.err(),
            hash.reshard(7).await.err(),
        ];
        for (at, error) in lost.into_iter().enumerate() {
            let error = error.unwrap_or_else(|| panic!("call {at}: it is gone"));
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        assert_eq!(hash.get("9").await.expect("a value").as_deref(), Some(&b"v"[..]));
    }
    t.remove(map_key(&t, &name).await).await;
    assert_eq!(ShardedHash::open(&t.store, &name).await.expect_err("no map").kind(), ErrorKind::Lost);
}

async fn sharded_hashes_of_dense_numbers_grow(t: Bench) {
    let name = t.name("a");
    let options = || ShardedHash::options().shards(2).dense(8).timeout(PATIENCE);
    let hash = options().open_or_create(&t.store, &name).await.expect("a hash");
    let stale = options().open_or_create(&t.store, &name).await.expect("a hash");
    hash.set((0..16).map(|id| (id.to_string(), id.to_string()))).await.expect("a set");
    for (field, words) in [("16", "0 to 15"), ("-1", "whole numbers"), ("07", "whole numbers"), ("", "whole numbers")] {
        for error in [hash.set([("1", "x"), (field, "y")]).await.err(), hash.get(field).await.err()] {
            let error = error.expect("out of range");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    assert_eq!(hash.get("1").await.expect("a value").as_deref(), Some(&b"1"[..]), "nothing was written");
    hash.reshard(5).await.expect("more shards");
    assert_eq!(stale.set([("39", "39")]).await.expect("it takes more now"), [true]);
    hash.reshard(3).await.expect("fewer, and larger, shards");
    let expected: BTreeMap<Vec<u8>, Vec<u8>> =
        (0..16).chain([39]).map(|id: u32| (id.to_string().into_bytes(), id.to_string().into_bytes())).collect();
    assert_eq!(entries(&hash).await, expected);
    assert_eq!(entries(&stale).await, expected);
    assert_eq!(stale.get("39").await.expect("a value").as_deref(), Some(&b"39"[..]));
    // Smaller shards again, of which there are as many as hold the 42 numbers that it takes.
    hash.reshard_dense(8).await.expect("smaller shards");
    assert_eq!((hash.shards(), entries(&hash).await), (6, expected.clone()));
    assert_eq!(stale.set([("47", "47")]).await.expect("the last that has room"), [true]);
    assert_eq!(stale.remove(["47"]).await.expect("a removal"), [true]);
    assert_eq!((stale.shards(), entries(&stale).await), (6, expected));
    assert_eq!(stale.reshard_dense(0).await.expect_err("no numbers").kind(), ErrorKind::BadInput);
}

async fn sharded_sets_of_dense_numbers_grow(t: Bench) {
    let name = t.name("a");
    let options = || ShardedSet::options().shards(2).dense(8).timeout(PATIENCE);
    let set = options().open_or_create(&t.store, &name).await.expect("a set");
    let stale = options().open_or_create(&t.store, &name).await.expect("a set");
    let numbers = |numbers: std::ops::Range<u32>| numbers.map(|id| id.to_string());
    assert!(set.add(numbers(0..16)).await.expect("an add").into_iter().all(|is_new| is_new));
    assert_eq!(stale.add(["15", "3"]).await.expect("an add"), [false, false]);
    for (member, words) in [("16", "0 to 15"), ("-1", "whole numbers"), ("07", "whole numbers"), ("", "whole numbers")]
    {
        for error in [set.add(["1", member]).await.err(), set.has(member).await.err()] {
            let error = error.expect("out of range");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
    set.reshard(5).await.expect("more shards");
    assert_eq!(stale.add(["39"]).await.expect("it takes more now"), [true]);
    assert_eq!(stale.remove(["2", "38"]).await.expect("a removal"), [true, false]);
    set.reshard(3).await.expect("fewer, and larger, shards");
    stale.reshard_dense(5).await.expect("smaller shards");
    assert_eq!(stale.shards(), 9, "of 42 numbers");
    let expected: std::collections::BTreeSet<Vec<u8>> =
        numbers(0..16).chain(numbers(39..40)).filter(|id| id != "2").map(String::into_bytes).collect();
    for set in [set, stale] {
        let members = set.members().await.expect("members");
        assert_eq!((members.len(), set.len().await.expect("a length")), (16, 16));
        assert_eq!(
            members.into_iter().map(|member| member.to_vec()).collect::<std::collections::BTreeSet<_>>(),
            expected
        );
        assert_eq!(set.has_many(["39", "2", "0"]).await.expect("answers"), [true, false, true]);
    }
    let wrong = ShardedSet::options().shards(2).open_or_create(&t.store, t.name("b")).await.expect("a set");
    wrong.add(["a"]).await.expect("any name");
    let wrong = ShardedSet::options().dense(8).open(&t.store, t.name("b")).await;
    assert_eq!(wrong.expect_err("by hash").kind(), ErrorKind::LayoutMismatch);
}

async fn sharded_hashes_refuse_what_does_not_fit(t: Bench) {
    let name = t.name("a");
    assert_eq!(ShardedHash::open(&t.store, &name).await.expect_err("absent").kind(), ErrorKind::Absent);
    let made = ShardedHash::options().shards(0).open_or_create(&t.store, &name).await;
    assert_eq!(made.expect_err("no shards").kind(), ErrorKind::BadInput);
    let hash = hash(&t.store, &name, 2).await;
    assert_eq!(ShardedSet::open(&t.store, &name).await.expect_err("a hash").kind(), ErrorKind::LayoutMismatch);
    let dense = ShardedHash::options().dense(9).open(&t.store, &name).await;
    assert_eq!(dense.expect_err("by hash").kind(), ErrorKind::LayoutMismatch);
    let long = vec![b'x'; 65_536];
    let error = hash.set([("a".as_bytes(), &b"1"[..]), (&long, b"1")]).await.expect_err("too long");
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("65535") && error.to_string().contains("65536"), "{error}");
    let max = t.store.profile().value_bytes_max(250);
    if max < 8 << 20 {
        let error = hash.set([("a", vec![0; max + 250])]).await.expect_err("too large");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    }
    assert_eq!(hash.reshard(0).await.expect_err("no shards").kind(), ErrorKind::BadInput);
    let error = hash.reshard_dense(5).await.expect_err("they are spread by hash");
    assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains("by hash"), "{error}");
    assert_eq!(hash.len().await.expect("a length"), 0);
    assert_eq!(hash.set([("", ""); 0]).await.expect("nothing to do"), [false; 0]);
}

async fn sharded_handles_follow_a_map_they_have_not_seen(t: Bench) {
    let name = t.name("a");
    let hash = hash(&t.store, &name, 2).await;
    // Handles that saw nothing of it, one for each first call.
    let mut stale = Vec::new();
    for _ in 0..5 {
        stale.push(self::hash(&t.store, &name, 2).await);
    }
    hash.set((0..20).map(|n| (n.to_string(), "v"))).await.expect("a set");
    for shards in [6, 1, 3] {
        hash.reshard(shards).await.expect("a resharding");
    }
    assert_eq!(stale[0].get("7").await.expect("a value").as_deref(), Some(&b"v"[..]));
    assert_eq!(stale[1].set([("7", "w"), ("77", "w")]).await.expect("a set"), [false, true]);
    assert_eq!(stale[2].len().await.expect("a length"), 21);
    assert_eq!(entries(&stale[3]).await.len(), 21);
    stale[4].reshard(2).await.expect("a resharding");
    assert_eq!((hash.len().await.expect("a length"), hash.shards()), (21, 2));
}

async fn sharded_round_trips_are_as_documented(t: Bench) {
    let counting = Counting::new(t.store.clone());
    let store: StoreRef = Arc::new(counting.clone());
    let name = t.name("a");
    let is_native = store.profile().natives.contains(Families::HASH.union(Families::SET));
    let write = if is_native { 1 } else { 2 };
    async fn cost<T>(counting: &Counting, act: impl Future<Output = Result<T>>) -> (u64, T) {
        let before = counting.counts();
        let outcome = act.await.expect("an uncontended call");
        (counting.counts().since(&before).round_trips, outcome)
    }
    let (spent, hash) = cost(&counting, ShardedHash::options().shards(8).open_or_create(&store, &name)).await;
    assert_eq!(spent, 4, "open_or_create, made");
    assert_eq!(cost(&counting, ShardedHash::open(&store, &name)).await.0, 2, "open");
    let many = || (0..100).map(|n| (n.to_string(), "v"));
    let fields = || (0..100).map(|n| n.to_string());
    assert_eq!(cost(&counting, hash.set(many())).await.0, write, "set");
    assert_eq!(cost(&counting, hash.get("7")).await.0, 1, "get");
    assert_eq!(cost(&counting, hash.get_many(fields())).await.0, 1, "get_many");
    assert_eq!(cost(&counting, hash.remove(fields().take(50))).await.0, write, "remove");
    assert_eq!(cost(&counting, hash.len()).await.0, 1, "len");
    assert_eq!(cost(&counting, hash.entries()).await.0, 1, "entries");
    assert_eq!(cost(&counting, hash.stat()).await.0, 1 + u64::from(is_native), "stat");
    let seen = set(&store, &t.name("b"), 8).await;
    assert_eq!(cost(&counting, seen.add(fields())).await.0, write, "add");
    assert_eq!(cost(&counting, seen.add(fields())).await.0, 1, "add of none that is new");
    assert_eq!(cost(&counting, seen.has_many(fields())).await.0, 1, "has_many");
    // What a resharding costs for 8 shards, and what it costs the first read, and the first write, of a handle that knows nothing of it.
    let stale = ShardedHash::open(&store, &name).await.expect("a hash");
    let writer = ShardedHash::open(&store, &name).await.expect("a hash");
    let spent = cost(&counting, hash.reshard(16)).await.0;
    assert!(spent <= if is_native { 12 } else { 14 }, "a resharding took {spent}");
    assert_eq!(cost(&counting, stale.get("77")).await.0, 3, "the first read after it");
    assert_eq!(cost(&counting, stale.get("78")).await.0, 1, "the second");
    // Natively the shard is asked why it refused.
    let more = if is_native { 3 } else { 2 };
    assert_eq!(cost(&counting, writer.set([("77", "w")])).await.0, write + more, "the first write after it");
    assert_eq!(cost(&counting, writer.set([("78", "w")])).await.0, write, "the second");
}

async fn sharded_shards_are_packed(t: Bench) {
    let hash = ShardedHash::options().expected(3_000).timeout(PATIENCE);
    let hash = hash.open_or_create(&t.store, t.name("a")).await.expect("a hash");
    hash.set((0..3_000).map(|n| (format!("user-{n}"), "some value of thirty bytes or so"))).await.expect("a set");
    let stat = hash.stat().await.expect("figures");
    assert_eq!((stat.elements, stat.encoding.as_deref(), &stat.advice), (3_000, Some("listpack"), &None), "{stat:?}");
    let ids = ShardedSet::options().shards(8).timeout(PATIENCE);
    let ids = ids.open_or_create(&t.store, t.name("b")).await.expect("a set");
    ids.add((0..2_000).map(|n: i64| (n * 7_919 % 100_003 - 50_000).to_string())).await.expect("an add");
    let stat = ids.stat().await.expect("figures");
    assert_eq!((stat.elements, stat.encoding.as_deref()), (2_000, Some("intset")), "{stat:?}");
    // A long value unpacks its shard, which is told though it is not the fullest.
    hash.set([("user-0", "x".repeat(1_000))]).await.expect("a set");
    let stat = hash.stat().await.expect("figures");
    assert_eq!((stat.encoding.as_deref(), stat.unpacked_shards), (Some("listpack"), Some(1)), "{stat:?}");
    let advice = stat.advice.expect("one is unpacked");
    assert!(advice.contains("1 shard is a hashtable") && advice.contains("longer than"), "{advice}");
    // Too few shards: the server unpacks them, which is said with the cure; and the cure cures.
    let max = t.store.profile().encodings.expect("limits").hash_entries_max;
    hash.reshard(2).await.expect("a resharding");
    let advice = hash.stat().await.expect("figures").advice.expect("it is unpacked");
    let shards = 3_000u64.div_ceil(max / 2);
    assert!(advice.contains("hashtable") && advice.contains(&format!("to {shards} shards")), "{advice}");
    hash.set([("user-0", "short")]).await.expect("a set");
    hash.reshard(u16::try_from(shards).expect("some")).await.expect("a resharding");
    assert_eq!(hash.stat().await.expect("figures").encoding.as_deref(), Some("listpack"));
    dense_shards_are_packed_again(&t).await;
}

/// More shards of dense numbers are as large as before: smaller ones are advised, and packed.
async fn dense_shards_are_packed_again(t: &Bench) {
    let limits = t.store.profile().encodings.expect("limits");
    let numbers = || (0..3_000).map(|id: u32| id.to_string());
    let paid = ShardedSet::options().dense(1_000).shards(3).timeout(PATIENCE);
    let paid = paid.open_or_create(&t.store, t.name("c")).await.expect("a set");
    paid.add(numbers()).await.expect("an add");
    let cities = ShardedHash::options().dense(1_000).shards(3).timeout(PATIENCE);
    let cities = cities.open_or_create(&t.store, t.name("d")).await.expect("a hash");
    cities.set(numbers().map(|id| (id, "some value"))).await.expect("a set");
    let told = [paid.stat().await.expect("figures"), cities.stat().await.expect("figures")];
    let fits = [limits.set_integers_max - 3, 64];
    for (stat, fits) in told.iter().zip(fits) {
        let advice = stat.advice.as_deref().unwrap_or_default();
        assert!(advice.ends_with(&format!("resharding to {fits} dense numbers a shard packs them again")), "{stat:?}");
    }
    paid.reshard_dense(u32::try_from(fits[0]).expect("some")).await.expect("a resharding");
    cities.reshard_dense(64).await.expect("a resharding");
    for stat in [paid.stat().await.expect("figures"), cities.stat().await.expect("figures")] {
        assert_eq!((stat.elements, stat.unpacked_shards, &stat.advice), (3_000, Some(0), &None), "{stat:?}");
    }
}

async fn drop_of_a_sharded_hash_removes_every_key_and_a_handle_notices(t: Bench) {
    let name = t.name("a");
    let hash = hash(&t.store, &name, 3).await;
    hash.set([("a", "1")]).await.expect("a set");
    let mut keys = vec![map_key(&t, &name).await];
    for shard in 0..3 {
        keys.push(shard_key(&t, &name, shard).await);
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::ShardedHash));
    for key in keys {
        assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Miss, "{key} is left");
    }
    for error in [hash.get("a").await.err(), hash.set([("a", "2")]).await.err(), hash.len().await.err()] {
        assert_eq!(error.expect("lost").kind(), ErrorKind::Lost);
    }
    let again = self::hash(&t.store, &name, 3).await;
    assert_eq!((again.len().await.expect("a length"), again.get("a").await.expect("a look")), (0, None));
}
