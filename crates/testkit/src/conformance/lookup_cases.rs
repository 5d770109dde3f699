//! Packed tables through their public handle, on every store.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use larder_core::{Batch, Ctx, Effect, ErrorKind, Key, Op, Profile, Reply, Result, Run, Store, StoreRef, Verb};
use larder_structures::lookup::{Built, Found, LookupKey, Rows};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Kind, Name, PackedTable};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    lookup_agrees_with_a_model [Cas];
    lookup_finds_the_edges_of_both_address_spaces [Cas];
    lookup_is_built_or_stays_when_the_nth_op_fails [Cas];
    lookup_reads_one_version_while_others_are_built [Cas];
    lookup_of_two_builds_the_later_goes_on [Cas];
    lookup_reports_a_lost_block_and_no_other [Cas];
    lookup_refuses_what_does_not_fit [Cas];
    drop_of_a_lookup_removes_every_key_and_a_handle_notices [Cas];
}

/// Small, so that few rows make many.
const BLOCK_BYTES: usize = 64;

/// A store that remembers under which keys something was written through it.
#[derive(Debug)]
struct Written {
    inner: StoreRef,
    keys: Mutex<BTreeSet<Key>>,
}

impl Written {
    fn over(inner: &StoreRef) -> Arc<Written> {
        Arc::new(Written { inner: inner.clone(), keys: Mutex::default() })
    }

    /// Those of them that hold something.
    async fn left(&self, t: &Bench) -> BTreeSet<Key> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut left = BTreeSet::new();
        for key in keys {
            if t.get(&key).await.is_some() {
                left.insert(key);
            }
        }
        left
    }
}

impl Store for Written {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let written = batch.iter().filter(|op| matches!(op.verb, Verb::Put { .. })).map(|op| op.key.clone());
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).extend(written);
        self.inner.run(ctx, batch)
    }
}

async fn open(store: &StoreRef, name: &str) -> PackedTable {
    let options = PackedTable::options().block_bytes(BLOCK_BYTES).timeout(std::time::Duration::from_secs(20));
    options.open_or_create(store, name).await.expect("a table")
}

fn key(text: &str) -> LookupKey {
    text.parse().expect("a key")
}

/// `count` ids, each with its number and what the version is called.
fn of_version(version: &str, count: u64) -> Rows {
    let mut rows = Rows::new(["number", "version"]).expect("columns");
    for id in 0..count {
        rows.push_id(id, [format!("number {:x}", id.wrapping_mul(0x9e37_79b9)), version.to_owned()]).expect("a row");
    }
    rows
}

/// The version that all of some ids are of; panics where they are of several.
async fn version_of(table: &PackedTable, count: u64) -> Result<Option<String>> {
    let keys: Vec<LookupKey> = (0..count).map(LookupKey::from).collect();
    let found = table.get_many(&keys).await?;
    let version =
        |found: &Option<Found>| found.as_ref().map(|found| String::from_utf8_lossy(&found.fields[1]).into_owned());
    let first = found.first().and_then(version);
    for (id, found) in found.iter().enumerate() {
        assert_eq!(version(found), first, "id {id} is of another version than id 0");
        if let Some(found) = found {
            let number = format!("number {:x}", (id as u64).wrapping_mul(0x9e37_79b9));
            assert_eq!((&found.fields[0][..], found.first), (number.as_bytes(), LookupKey::from(id as u64)));
        }
    }
    Ok(first)
}

/// A key of a version's, as `docs/layouts.md` writes it down.
async fn stored(t: &Bench, name: &str, index: &str) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await.expect("a manifest");
    let generation = manifest.expect("a structure").generation;
    Key::new(format!("L.{name}.b.{generation:016x}.{index}")).expect("a short name")
}

/// A key of the version in force: its head begins with 15 bytes and the version's number, and then comes the build, whose highest 48 bits are in the key.
async fn in_force(t: &Bench, name: &str, index: &str) -> Key {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let head = t.get(&stored(t, name, "0").await).await.expect("a head");
    let build = u64::from_le_bytes(head.value[19..27].try_into().expect("8 bytes"));
    let letters: String = (0..8).map(|at| char::from(LETTERS[(build >> (58 - 6 * at)) as usize & 63])).collect();
    stored(t, name, &format!("{letters}-{index}")).await
}

async fn lookup_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let mut handles = [open(&t.store, &name).await, open(&t.store, &name).await];
    assert_eq!(handles[1].get(key("1.2.3.4")).await.expect("an answer"), None, "nothing was built");
    for round in 0..4 {
        let mut model: Vec<(u32, u32, String)> = Vec::new();
        let mut rows = Rows::new(["word"]).expect("columns");
        let mut next = rng.u32(..1000);
        for _ in 0..rng.usize(..120) {
            let first = next + rng.u32(..3) * rng.u32(..5000);
            let last = first + rng.u32(..2) * rng.u32(..70_000);
            let word = format!("{}-{}", rng.u8(..3), rng.u16(..));
            rows.push(LookupKey::V4(first.into()), LookupKey::V4(last.into()), [&word]).expect("a row");
            model.push((first, last, word));
            next = last + 1;
        }
        let built: Built = handles[rng.usize(..2)].build(rows).await.expect("a build");
        assert_eq!((built.version, built.rows, built.is_swept), (round + 1, model.len() as u64, true), "seed {seed}");
        if rng.bool() {
            handles[rng.usize(..2)] = open(&t.store, &name).await;
        }
        for table in &handles {
            let mut keys: Vec<u32> = (0..100).map(|_| rng.u32(..next.saturating_add(1_000))).collect();
            keys.extend(model.iter().flat_map(|(first, last, _)| [*first, *last, last + 1]));
            let asked: Vec<LookupKey> = keys.iter().map(|key| LookupKey::V4((*key).into())).collect();
            let found = table.get_many(&asked).await.expect("an answer");
            for (key, found) in keys.iter().zip(found) {
                let row = model.iter().find(|(first, last, _)| (*first..=*last).contains(key));
                let expected = row.map(|(first, last, word)| Found {
                    first: LookupKey::V4((*first).into()),
                    last: LookupKey::V4((*last).into()),
                    fields: vec![word.clone().into()],
                    columns: ["word".to_owned()].into(),
                });
                assert_eq!(found, expected, "{key}, seed {seed}");
            }
        }
    }
}

async fn lookup_finds_the_edges_of_both_address_spaces(t: Bench) {
    let last = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let table = open(&t.store, &t.name("a")).await;
    let mut rows = Rows::new(["name"]).expect("columns");
    for (from, to, name) in [
        ("0.0.0.0", "0.0.0.0", "first of four"),
        ("255.255.255.255", "255.255.255.255", "last of four"),
        ("::", "::1", "first of six"),
        ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", "documents"),
        (last, last, "last of six"),
    ] {
        rows.push(key(from), key(to), [name]).expect("a row");
    }
    table.build(rows).await.expect("a build");
    let name = async |text: &str| {
        let found = table.get(key(text)).await.expect("an answer");
        found.map(|found| String::from_utf8_lossy(&found.fields[0]).into_owned())
    };
    for (text, expected) in [
        ("0.0.0.0", Some("first of four")),
        ("::ffff:0.0.0.0", Some("first of four")),
        ("0.0.0.1", None),
        ("255.255.255.254", None),
        ("255.255.255.255", Some("last of four")),
        ("::", Some("first of six")),
        ("::2", None),
        ("2001:db7:ffff::", None),
        ("2001:db8:abcd::9", Some("documents")),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", None),
        (last, Some("last of six")),
    ] {
        assert_eq!(name(text).await.as_deref(), expected, "{text}");
    }
    // The other way of writing addresses.
    let mut numbers = Rows::new(["name"]).expect("columns");
    numbers.push(16_777_216u64, 16_777_471u64, ["a network"]).expect("a row");
    table.build(numbers).await.expect("a build");
    assert_eq!(name("1.0.0.9").await.as_deref(), Some("a network"));
    assert_eq!((name("1.0.1.0").await, name("16777471").await.as_deref()), (None, Some("a network")));
}

async fn lookup_is_built_or_stays_when_the_nth_op_fails(t: Bench) {
    let faults = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)];
    for nth in 1.. {
        let mut injected = 0;
        for fault in [faults[nth % 5], faults[(nth + 2) % 5]] {
            let written = Written::over(&t.store);
            let faulty = Faulty::new(written.clone());
            // Letters and digits alone: keys are made of it as it is.
            let kind: String = format!("{fault:?}").chars().filter(char::is_ascii_alphanumeric).collect();
            let name = t.name(&format!("{kind}-{nth}"));
            let table = open(&faulty.shared(), &name).await;
            table.build(of_version("old", 20)).await.expect("a build");
            faulty.fail_nth(nth as u64, fault);
            let done = table.build(of_version("new", 30)).await;
            injected += faulty.injected();
            faulty.heal();
            faulty.deliver_late().await;
            let fresh = open(&t.store, &name).await;
            let found = version_of(&fresh, 20).await.unwrap_or_else(|error| panic!("{fault:?} at op {nth}: {error}"));
            let expected: &[&str] = match &done {
                Ok(_) => &["new"],
                Err(error) if error.is_unknown() => &["old", "new"],
                Err(error) => {
                    assert_eq!(error.known_effect(), Effect::NotApplied);
                    assert_ne!(error.kind(), ErrorKind::Lost, "{error}: nothing was lost ({fault:?} at op {nth})");
                    &["old"]
                }
            };
            let found = found.unwrap_or_default();
            assert!(
                expected.contains(&&found[..]),
                "{fault:?} at op {nth}: {found}, not one of {expected:?} ({done:?})"
            );
            // Whatever broke: the next build removes what is left, and the handle goes on.
            let built = table.build(of_version("next", 25)).await.expect("a build");
            assert_eq!(version_of(&table, 25).await.expect("rows").as_deref(), Some("next"));
            assert_eq!(fresh.stat().await.expect("a stat").others, 0, "{fault:?} at op {nth}");
            let mut kept = BTreeSet::from([stored(&t, &name, "0").await, in_force(&t, &name, "p0").await]);
            kept.insert(Key::new(format!("L.{name}.m")).expect("a short name"));
            for block in 0..built.blocks {
                kept.insert(in_force(&t, &name, &format!("{block:x}")).await);
            }
            assert_eq!(written.left(&t).await, kept, "what is there is what is in force ({fault:?} at op {nth})");
        }
        if injected == 0 {
            assert!(nth > 20, "a build of only {} ops", nth - 1);
            return;
        }
        assert_eq!(injected, 2, "both faults met op {nth}");
    }
}

async fn lookup_reads_one_version_while_others_are_built(t: Bench) {
    const ROWS: u64 = 60;
    let name = t.name("a");
    let builder = open(&t.store, &name).await;
    builder.build(of_version("v0000", ROWS)).await.expect("a build");
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let readers = (0..4).map(|_| {
        let (store, name, stopped) = (t.store.clone(), name.clone(), stopped.clone());
        tokio::spawn(async move {
            let table = open(&store, &name).await;
            let (mut last, mut reads) = (String::new(), 0u64);
            while !*stopped.borrow() {
                let version = version_of(&table, ROWS).await.expect("rows").expect("a version");
                assert!(version >= last, "{version} after {last}");
                (last, reads) = (version, reads + 1);
                tokio::task::yield_now().await;
            }
            // What a build that has returned has made is read at once by whoever finds a block gone.
            assert_eq!(version_of(&table, ROWS).await.expect("rows").as_deref(), Some("v0008"));
            reads
        })
    });
    let readers: Vec<_> = readers.collect();
    for version in 1..=8 {
        builder.build(of_version(&format!("v{version:04}"), ROWS)).await.expect("a build");
    }
    stop.send(true).expect("readers");
    for reader in readers {
        assert!(reader.await.expect("no panic") > 0);
    }
}

async fn lookup_of_two_builds_the_later_goes_on(t: Bench) {
    let name = t.name("a");
    let tables = [open(&t.store, &name).await, open(&t.store, &name).await];
    tables[0].build(of_version("old", 30)).await.expect("a build");
    for round in 0..4 {
        let builds = ["a", "b"].map(|who| format!("{who}{round}"));
        let (a, b) =
            tokio::join!(tables[0].build(of_version(&builds[0], 200)), tables[1].build(of_version(&builds[1], 200)),);
        let done = [a, b];
        for outcome in &done {
            if let Err(error) = outcome {
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
            }
        }
        let won: Vec<&str> =
            builds.iter().zip(&done).filter(|(_, done)| done.is_ok()).map(|(who, _)| &who[..]).collect();
        assert!(!won.is_empty(), "nobody's build came to an end: {done:?}");
        for table in &tables {
            let found = version_of(table, 200).await.expect("rows").expect("a version");
            assert!(won.contains(&&found[..]), "{found}, not one of {won:?}");
        }
        tables[0].build(of_version("between", 30)).await.expect("a build");
        assert_eq!(tables[1].stat().await.expect("a stat").others, 0);
    }
}

async fn lookup_reports_a_lost_block_and_no_other(t: Bench) {
    let name = t.name("a");
    let table = open(&t.store, &name).await;
    let built = table.build(of_version("one", 40)).await.expect("a build");
    assert!(built.blocks > 3, "{built:?}");
    assert_eq!(t.ok(Op::delete(in_force(&t, &name, "1").await)).await, Reply::Deleted);
    for table in [&table, &open(&t.store, &name).await] {
        let mut lost = Vec::new();
        for id in 0..45u64 {
            match table.get(id).await {
                Ok(found) => assert_eq!(found.is_some(), id < 40, "id {id}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                    lost.push(id);
                }
            }
        }
        let all = table.get_many(&(0..40u64).map(LookupKey::from).collect::<Vec<_>>()).await.expect_err("one is gone");
        let (first, last) = (lost.first().expect("one is gone"), lost.last().expect("one is gone"));
        assert!((1..20).contains(&lost.len()) && last - first == lost.len() as u64 - 1, "{lost:?}");
        let named = format!("block 1: {first} to {last}");
        assert!(all.kind() == ErrorKind::Lost && all.to_string().contains(&named), "{all} does not say {named}");
    }
    // What is lost is built anew.
    table.build(of_version("two", 40)).await.expect("a build");
    assert_eq!(version_of(&table, 40).await.expect("rows").as_deref(), Some("two"));
    assert_eq!(t.ok(Op::delete(stored(&t, &name, "0").await)).await, Reply::Deleted);
    let fresh = PackedTable::open(&t.store, &name).await.expect_err("the head is gone");
    let built = table.build(of_version("three", 40)).await.expect_err("the head is gone");
    for error in [fresh, built] {
        assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("head"), "{error}");
    }
}

async fn lookup_refuses_what_does_not_fit(t: Bench) {
    let name = t.name("a");
    assert_eq!(PackedTable::open(&t.store, &name).await.expect_err("absent").kind(), ErrorKind::Absent);
    let table = open(&t.store, &name).await;
    let most = t.store.profile().value_bytes_max(name.len() + 40);
    if most < 2 << 20 {
        let mut rows = Rows::new(["noise"]).expect("columns");
        rows.push_id(1u64, [b"short"]).expect("a row");
        // Of random bytes nothing can be spared.
        let mut rng = fastrand::Rng::with_seed(1);
        rows.push_id(2u64, [(0..most + 10_000).map(|_| rng.u8(..)).collect::<Vec<u8>>()]).expect("a row");
        let error = table.build(rows).await.expect_err("it is too large");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("row 2"), "{error} does not name the row");
        assert_eq!(table.stat().await.expect("a stat"), larder_structures::PackedTableStat::default());
    }
    let mut rows = Rows::new(["a"]).expect("columns");
    // Large, and any bytes.
    let large: Vec<u8> = (0..=255).cycle().take(200_000.min(most / 2)).collect();
    rows.push(key("10.0.0.0"), key("10.0.0.255"), [&large]).expect("a row");
    rows.push(key("10.0.1.0"), key("10.0.1.255"), [b""]).expect("a row");
    table.build(rows).await.expect("a build");
    assert_eq!(table.get(key("10.0.0.7")).await.expect("an answer").expect("a row").fields, [large]);
    assert_eq!(table.get(key("10.0.1.7")).await.expect("an answer").expect("a row").fields, [""]);
    let number = table.get(7u64).await.expect_err("a number");
    assert!(number.kind() == ErrorKind::BadInput && number.to_string().contains("7 is a number"), "{number}");
    // Nothing at all is a version, too.
    table.build(Rows::new(["a"]).expect("columns")).await.expect("a build");
    assert_eq!(table.get(key("10.0.0.7")).await.expect("an answer"), None);
    let other = larder_structures::Counter::open_or_create(&t.store, &name).await.expect_err("it is a table");
    assert!(other.to_string().contains("a packed table"), "{other}");
}

async fn drop_of_a_lookup_removes_every_key_and_a_handle_notices(t: Bench) {
    let name = t.name("a");
    let table = open(&t.store, &name).await;
    let built = table.build(of_version("one", 40)).await.expect("a build");
    let mut keys = vec![stored(&t, &name, "0").await, in_force(&t, &name, "p0").await];
    for block in 0..built.blocks {
        keys.push(in_force(&t, &name, &format!("{block:x}")).await);
    }
    for key in &keys {
        assert!(t.get(key).await.is_some(), "{key}");
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::PackedTable));
    for key in keys {
        assert_eq!(t.ok(Op::delete(key.clone())).await, Reply::Miss, "{key} is left");
    }
    for error in [table.get(0u64).await.err(), table.build(of_version("two", 3)).await.err()] {
        assert_eq!(error.expect("lost").kind(), ErrorKind::Lost);
    }
    let again = open(&t.store, &name).await;
    assert_eq!(again.get(0u64).await.expect("an answer"), None);
}
