//! Tables through their public handle, on every store.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Durability, ErrorKind, Key, Op, StoreRef};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Kind, Manifest, Name, Table};
use xxhash_rust::xxh3::xxh3_128;

use super::{Bench, assert_too_large, cases, one_over};
use crate::faulty::{Fault, Faulty};

cases! {
    table_agrees_with_a_model [Cas];
    table_takes_keys_and_values_of_any_bytes [Cas];
    table_is_whole_under_eight_tasks_and_two_handles [Cas];
    table_tells_or_changes_nothing_when_the_nth_op_fails [Cas];
    table_lists_what_a_broken_put_left [Cas];
    table_reports_a_lost_entry_or_repairs_its_list [Cas];
    table_reports_a_lost_shard_of_its_list [Cas];
    table_takes_the_largest_value_and_refuses_a_longer_one [Cas];
    table_with_lives_forgets_what_is_over [Cas, Ttl];
    drop_of_a_table_removes_every_entry_and_a_handle_notices [Cas];
    a_store_without_cas_refuses_a_table [NoCas];
}

const FAULTS: [Fault; 5] = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(2)];

type Model = BTreeMap<Bytes, Bytes>;

async fn manifest(t: &Bench, name: &str) -> Manifest {
    let name = Name::new(name).expect("a short name");
    find(&t.store, Ctx::default(), &name).await.expect("a manifest").expect("a structure")
}

/// The key of an entry, as `docs` write it down: other programs rely on it.
fn entry_key(name: &str, manifest: &Manifest, key: &[u8]) -> Key {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let hash = xxh3_128(key);
    let index: String = (0..14).map(|at| char::from(LETTERS[(hash >> (122 - 6 * at)) as usize & 63])).collect();
    Key::new(format!("L.{name}.t.{:016x}.{index}", manifest.generation)).expect("a short name")
}

fn list_key(name: &str, manifest: &Manifest, shard: u16) -> Key {
    Key::new(format!("L.{name}.t.{:016x}.{shard}", manifest.generation)).expect("a short name")
}

/// Waits until an entry says that it is listed: that is done behind the caller.
async fn flagged(t: &Bench, entry: &Key) {
    for _ in 0..2_000 {
        if t.get(entry).await.is_some_and(|item| item.flags & 1 == 1) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{entry} does not say that it is listed");
}

async fn entries(table: &Table) -> Model {
    let entries = table.entries().await.expect("entries");
    let count = entries.len();
    let model: Model = entries.into_iter().collect();
    assert_eq!(model.len(), count, "a key is told twice");
    model
}

/// True where an entry cannot be lost.
pub(super) fn is_lossless(store: &StoreRef) -> bool {
    let profile = store.profile();
    matches!(profile.durability, Durability::Process | Durability::Disk) && !profile.may_evict()
}

async fn table_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let mut handles = Vec::new();
    for _ in 0..2 {
        handles.push(Table::options().shards(3).open_or_create(&t.store, &name).await.expect("a table"));
    }
    let mut model = Model::new();
    for step in 0..80 {
        let table = &handles[rng.usize(..handles.len())];
        let key = Bytes::from(rng.u8(..20).to_string());
        match rng.u8(..10) {
            0..4 => {
                let value = Bytes::from(vec![rng.u8(..); rng.usize(..300)]);
                table.put(&key, &value).await.expect("a put");
                model.insert(key, value);
            }
            4..6 => {
                let removed = table.remove(&key).await.expect("a remove");
                assert_eq!(removed, model.remove(&key).is_some(), "step {step}, seed {seed}");
            }
            6 => {
                assert_eq!(table.get(&key).await.expect("a get"), model.get(&key).cloned(), "step {step}, seed {seed}")
            }
            7 => {
                let keys: Vec<Bytes> = (0..20).map(|n: u8| n.to_string().into()).collect();
                let found = table.get_many(&keys).await.expect("a get of many");
                let expected: Vec<Option<Bytes>> = keys.iter().map(|key| model.get(key).cloned()).collect();
                assert_eq!(found, expected, "step {step}, seed {seed}");
            }
            _ => assert_eq!(entries(table).await, model, "step {step}, seed {seed}"),
        }
    }
    for table in &handles {
        assert_eq!(entries(table).await, model, "seed {seed}");
    }
}

async fn table_takes_keys_and_values_of_any_bytes(t: Bench) {
    let table = Table::open_or_create(&t.store, t.name("a")).await.expect("a table");
    let all: [&[u8]; 5] = [b"", b" \0\r\n\t.%", b"\xff\xfe", &[0; 300], &[b'x'; 60_000]];
    for (key, value) in all.iter().zip(all.iter().rev()) {
        table.put(key, value).await.expect("a put");
    }
    for (key, value) in all.iter().zip(all.iter().rev()) {
        assert_eq!(table.get(key).await.expect("a get").expect("an entry"), *value);
        assert!(table.has(key).await.expect("a has"));
    }
    assert_eq!(entries(&table).await.len(), all.len());
    for key in all {
        assert!(table.remove(key).await.expect("a remove"));
        assert!(!table.has(key).await.expect("a has"));
    }
    assert!(table.keys().await.expect("keys").is_empty());
}

async fn table_is_whole_under_eight_tasks_and_two_handles(t: Bench) {
    let name = t.name("a");
    let one = Table::options().dirtiness(64).open_or_create(&t.store, &name).await.expect("a table");
    let two = Table::options().dirtiness(64).open(&t.store, &name).await.expect("the table");
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let table = if n % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                for round in 0..12 {
                    let (kept, gone) = (format!("{n}-{}", round % 4), format!("{n}-gone"));
                    table.put(&kept, round.to_string()).await.expect("a put");
                    table.put(&gone, "").await.expect("a put");
                    table.put("shared", n.to_string()).await.expect("a put");
                    assert_eq!(table.get(&kept).await.expect("a get").expect("an entry"), round.to_string());
                    assert!(table.remove(&gone).await.expect("a remove"));
                    if round % 5 == 0 {
                        assert!(table.entries().await.expect("entries").len() > round % 4);
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let mut found = entries(&one).await;
    assert!(found.remove(&b"shared"[..]).is_some());
    let expected: Model = (0..8)
        .flat_map(|n| (8..12).map(move |round| (format!("{n}-{}", round % 4).into(), round.to_string().into())))
        .collect();
    assert_eq!(found, expected);
}

async fn table_tells_or_changes_nothing_when_the_nth_op_fails(t: Bench) {
    for fault in FAULTS {
        for nth in 1..=12 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let table = Table::open_or_create(&faulty.shared(), &name).await.expect("a table");
            let other = Table::open(&t.store, &name).await.expect("the table");
            other.put("old", "1").await.expect("a put");
            other.put("gone", "1").await.expect("a put");
            faulty.fail_nth(nth, fault);
            let outcomes =
                [table.put("old", "2").await, table.put("new", "1").await, table.remove("gone").await.map(drop)];
            faulty.heal();
            faulty.deliver_late().await;
            let seen = [
                other.get("old").await.expect("a get") == Some("2".into()),
                other.get("new").await.expect("a get") == Some("1".into()),
                other.get("gone").await.expect("a get").is_none(),
            ];
            for (outcome, seen) in outcomes.into_iter().zip(seen) {
                match outcome {
                    Ok(()) => assert!(seen, "{fault:?} at op {nth}"),
                    Err(error) if error.is_unknown() => {}
                    Err(error) => panic!("{fault:?} at op {nth}: {error}"),
                }
            }
            assert!(
                fault == Fault::NotSent || entries(&other).await.contains_key(&b"old"[..]),
                "{fault:?} at op {nth}"
            );
        }
    }
}

/// The put's client dies between the entry and the list: whoever reads the entry lists it.
async fn table_lists_what_a_broken_put_left(t: Bench) {
    let name = t.name("a");
    let faulty = Faulty::new(t.store.clone());
    let dying = Table::options()
        .timeout(Duration::from_secs(5))
        .open_or_create(&faulty.shared(), &name)
        .await
        .expect("a table");
    // Three ops make the entry; the list is never reached.
    faulty.fail_nth(4, Fault::LostRequest);
    let put = tokio::spawn({
        let (dying, faulty) = (dying.clone(), faulty.clone());
        async move {
            let put = dying.put("k", "v");
            let mut put = std::pin::pin!(put);
            tokio::select! {
                biased;
                _ = &mut put => {}
                () = async {
                    while faulty.injected() == 0 {
                        tokio::task::yield_now().await;
                    }
                    faulty.fail_always(Fault::NotSent);
                } => {}
            }
        }
    });
    put.await.expect("no panic");
    let table = Table::open(&t.store, &name).await.expect("the table");
    let entry = entry_key(&name, &manifest(&t, &name).await, b"k");
    assert!(
        t.get(&entry).await.is_some_and(|item| item.flags & 1 == 0),
        "the entry is there, and says it is not listed"
    );
    assert_eq!(table.get("k").await.expect("a get").expect("an entry"), "v");
    flagged(&t, &entry).await;
    assert_eq!(table.keys().await.expect("keys"), ["k"]);
}

async fn table_reports_a_lost_entry_or_repairs_its_list(t: Bench) {
    let name = t.name("a");
    let table = Table::options().shards(2).open_or_create(&t.store, &name).await.expect("a table");
    for key in ["a", "b", "c"] {
        table.put(key, "v").await.expect("a put");
    }
    let manifest = manifest(&t, &name).await;
    for key in [b"a", b"b"] {
        let entry = entry_key(&name, &manifest, key);
        flagged(&t, &entry).await;
        t.ok(Op::delete(entry)).await;
    }
    for table in [&table, &Table::open(&t.store, &name).await.expect("the table")] {
        if is_lossless(&t.store) {
            assert_eq!(table.get("a").await.expect("a get"), None);
            assert_eq!(entries(table).await, Model::from([("c".into(), "v".into())]));
            continue;
        }
        for error in [table.get("a").await.err(), table.get_many(["c", "a"]).await.err(), table.entries().await.err()] {
            let error = error.expect("lost");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        let mut found = table.entries_and_lost().await.expect("what is there");
        found.lost.sort();
        assert_eq!((found.entries, found.lost), (vec![("c".into(), "v".into())], vec!["a".into(), "b".into()]));
    }
    table.put("a", "w").await.expect("a put");
    table.remove("b").await.expect("a remove");
    assert_eq!(entries(&table).await, Model::from([("a".into(), "w".into()), ("c".into(), "v".into())]));
}

async fn table_reports_a_lost_shard_of_its_list(t: Bench) {
    let name = t.name("a");
    let table = Table::open_or_create(&t.store, &name).await.expect("a table");
    table.put("a", "v").await.expect("a put");
    let list = list_key(&name, &manifest(&t, &name).await, 0);
    t.ok(Op::delete(list.clone())).await;
    for error in [table.keys().await.err(), table.get("b").await.err(), table.put("b", "v").await.err()] {
        let error = error.expect("lost");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    assert_eq!(table.get("a").await.expect("a get").expect("an entry"), "v");
    assert_eq!(t.value(&list).await, None, "a write made a lost list anew");
}

async fn table_takes_the_largest_value_and_refuses_a_longer_one(t: Bench) {
    let table = Table::open_or_create(&t.store, t.name("a")).await.expect("a table");
    let max = table.value_bytes_max(1).min(1_048_000);
    for byte in [b'x', b'y'] {
        table.put("k", vec![byte; max]).await.expect("a put");
        assert_eq!(table.get("k").await.expect("a get").expect("an entry"), vec![byte; max]);
    }
    let limit = table.value_bytes_max(1);
    if let Some(value) = one_over(limit) {
        assert_too_large(&table.put("k", value).await.expect_err("refused"), limit);
    }
    assert_eq!(table.get("k").await.expect("a get").expect("an entry"), vec![b'y'; max]);
}

async fn table_with_lives_forgets_what_is_over(t: Bench) {
    let name = t.name("a");
    let table = Table::options().ttl(true).open_or_create(&t.store, &name).await.expect("a table");
    let life = Duration::from_secs(2);
    table.put_for("short", "v", life).await.expect("a put");
    table.put_for("kept", "v", life).await.expect("a put");
    table.put("kept", "w").await.expect("a put");
    assert!(table.has("kept").await.expect("a has"));
    tokio::time::sleep(life + Duration::from_millis(1_300)).await;
    assert_eq!(table.get("short").await.expect("absent, not lost"), None);
    assert_eq!(table.keys().await.expect("keys"), ["kept"]);
    assert_eq!(entries(&table).await, Model::from([("kept".into(), "w".into())]));
    let without = Table::open_or_create(&t.store, t.name("b")).await.expect("a table");
    let error = without.put_for("k", "v", life).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
}

async fn drop_of_a_table_removes_every_entry_and_a_handle_notices(t: Bench) {
    let name = t.name("a");
    let table = Table::options().shards(4).open_or_create(&t.store, &name).await.expect("a table");
    let keys: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    for key in &keys {
        table.put(key, "v").await.expect("a put");
    }
    let old = manifest(&t, &name).await;
    assert_eq!((old.kind, old.shards), (Kind::Table, 4));
    let items = || {
        keys.iter().map(|key| entry_key(&name, &old, key.as_bytes())).chain((0..4).map(|n| list_key(&name, &old, n)))
    };
    for item in items() {
        assert!(t.value(&item).await.is_some(), "{item} is not where it is documented");
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert!(dropped.is_some());
    for item in items() {
        assert_eq!(t.value(&item).await, None, "{item}");
    }
    for error in [table.get("1").await.err(), table.keys().await.err(), table.put("new", "v").await.err()] {
        let error = error.expect("lost");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
    let again = Table::open_or_create(&t.store, &name).await.expect("a new life");
    assert!(entries(&again).await.is_empty());
}

async fn a_store_without_cas_refuses_a_table(t: Bench) {
    let error = Table::open_or_create(&t.store, t.name("a")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("cas"), "{error}");
    let name = Name::new(t.name("a")).expect("a name");
    assert!(find(&t.store, Ctx::default(), &name).await.expect("a look").is_none(), "something was made");
}
