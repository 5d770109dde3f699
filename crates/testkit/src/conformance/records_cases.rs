//! Packed records through their public handle, on every store.

use std::collections::BTreeMap;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, Op, StoreRef};
use larder_structures::records::{Aggregate, FieldKind, Schema, Value};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Kind, Name, PackedRecords};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    records_agree_with_a_model [Cas];
    records_of_neighbours_in_one_byte_lose_nothing [Cas];
    records_are_set_or_not_when_the_nth_op_fails [Cas];
    records_report_a_lost_shard_and_no_other [Cas];
    records_know_the_highest_id_under_eight_tasks [Cas];
    records_without_a_field_to_set_are_known [Cas];
    records_refuse_what_does_not_fit [Cas];
    records_of_one_bit_are_counted [Cas];
    records_are_grouped_by_fields_of_any_width [Cas];
    drop_of_records_removes_every_key_and_a_handle_notices [Cas];
}

/// 29 bits a record, 40 in a shard.
const SHARD_BYTES: usize = 16 + 145;
const PER_SHARD: u64 = 40;

fn schema() -> Schema {
    Schema::parse(["place:CA|US|FR", "paid:bit", "visits:u5", "debt:i5", "code:bytes2"]).expect("a schema")
}

async fn open(store: &StoreRef, name: &str) -> PackedRecords {
    let options = PackedRecords::options().schema(schema()).shard_bytes(SHARD_BYTES);
    options.timeout(std::time::Duration::from_secs(20)).open_or_create(store, name).await.expect("records")
}

fn some_value(rng: &mut fastrand::Rng, kind: &FieldKind) -> Value {
    match kind {
        FieldKind::Bit => rng.bool().into(),
        FieldKind::Uint(bits) => rng.u64(..1 << bits).into(),
        FieldKind::Int(bits) => rng.i64(-(1 << (bits - 1))..1 << (bits - 1)).into(),
        FieldKind::Choice(labels) => Value::Choice(rng.choice(labels).cloned().filter(|_| rng.u8(..4) > 0)),
        // Of few values, so that groups have some records each; the highest bits are among them.
        FieldKind::Bytes(bytes) => {
            let bytes: Vec<u8> = (0..*bytes).map(|_| rng.choice([0, 1, 0x7f, 0x80, 0xff]).unwrap_or(0)).collect();
            Value::Bytes(bytes.into())
        }
    }
}

fn no_code() -> Value {
    Value::Bytes(vec![0; 2].into())
}

fn zeros() -> Vec<Value> {
    vec![Value::Choice(None), false.into(), 0u64.into(), 0i64.into(), no_code()]
}

async fn records_agree_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    let mut handles = [open(&t.store, &name).await, open(&t.store, &name).await];
    let mut model: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    let fields = schema().fields().to_vec();
    for step in 0..60 {
        let which = rng.usize(..2);
        let records = handles[which].clone();
        let ids: Vec<u64> = (0..rng.usize(1..6)).map(|_| rng.u64(..300)).collect();
        match rng.u8(..8) {
            0..=3 => {
                let mut sets = Vec::new();
                for &id in &ids {
                    let record = model.entry(id).or_insert_with(zeros);
                    let mut set = Vec::new();
                    for (at, field) in fields.iter().enumerate() {
                        if rng.bool() {
                            continue;
                        }
                        record[at] = some_value(&mut rng, field.kind());
                        set.push((field.name(), record[at].clone()));
                    }
                    sets.push((id, set));
                }
                records.set_many(sets.iter().map(|(id, set)| (*id, &set[..]))).await.expect("a set");
            }
            4 => handles[which] = open(&t.store, &name).await,
            5 => {
                let expected: Vec<_> = ids.iter().map(|id| model.get(id).cloned().unwrap_or_else(zeros)).collect();
                assert_eq!(records.get_many(&ids).await.expect("records"), expected, "step {step}, seed {seed}");
                let names = *rng.choice(GROUPINGS).expect("some");
                let counted = records.aggregate_ids(names, &ids).await.expect("an aggregate");
                agrees(&counted, names, &expected).unwrap_or_else(|what| panic!("step {step}, seed {seed}: {what}"));
            }
            _ => {
                let end = model.keys().next_back().map_or(0, |id| id + 1);
                assert_eq!(records.highest().await.expect("an id"), end.checked_sub(1), "step {step}, seed {seed}");
                let expected: Vec<_> = (0..end).map(|id| model.get(&id).cloned().unwrap_or_else(zeros)).collect();
                let names = *rng.choice(GROUPINGS).expect("some");
                let counted = records.aggregate(names).await.expect("an aggregate");
                agrees(&counted, names, &expected).unwrap_or_else(|what| panic!("step {step}, seed {seed}: {what}"));
            }
        }
    }
    let end = model.keys().next_back().map_or(0, |id| id + 1);
    let expected: Vec<_> = (0..end).map(|id| model.get(&id).cloned().unwrap_or_else(zeros)).collect();
    for names in GROUPINGS {
        let counted = handles[0].aggregate(names).await.expect("an aggregate");
        agrees(&counted, names, &expected).unwrap_or_else(|what| panic!("at the end, seed {seed}: {what}"));
    }
}

/// Fields to group by: each alone, and several, of few bits and of many.
const GROUPINGS: &[&[&str]] = &[
    &["place"],
    &["debt"],
    &["code"],
    &["visits", "place"],
    &["debt", "paid"],
    &["code", "debt"],
    &["code", "place", "paid", "visits", "debt"],
];

/// Whether an aggregate by these fields tells the groups of these records, each once.
fn agrees(counted: &Aggregate, names: &[&str], records: &[Vec<Value>]) -> Result<(), String> {
    let schema = schema();
    let at: Vec<usize> = names.iter().map(|name| schema.position(name).expect("a field")).collect();
    let mut expected: BTreeMap<Vec<Value>, u64> = BTreeMap::new();
    for record in records {
        *expected.entry(at.iter().map(|&at| record[at].clone()).collect()).or_default() += 1;
    }
    let found: BTreeMap<Vec<Value>, u64> =
        counted.groups.iter().map(|group| (group.values.clone(), group.count)).collect();
    let is_right = (counted.records, &found) == (records.len() as u64, &expected);
    if is_right && counted.groups.len() == expected.len() {
        return Ok(());
    }
    Err(format!("by {names:?} {} records are {found:?}, not {} as {expected:?}", counted.records, records.len()))
}

async fn records_of_neighbours_in_one_byte_lose_nothing(t: Bench) {
    let name = t.name("a");
    let handles = [open(&t.store, &name).await, open(&t.store, &name).await];
    let tasks = (0..8u64).map(|task| {
        let records = handles[task as usize % 2].clone();
        tokio::spawn(async move {
            for round in 1..=10u64 {
                // Eight neighbours, and in each a field of its own for either handle.
                let field =
                    if task % 2 == 0 { ("visits", Value::from(round)) } else { ("debt", Value::from(-(round as i64))) };
                records.set(20 + task / 2, &[field]).await.expect("a set");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    for records in &handles {
        for id in 20..24 {
            let expected = vec![Value::Choice(None), false.into(), 10u64.into(), (-10i64).into(), no_code()];
            assert_eq!(records.get(id).await.expect("a record"), expected, "record {id}");
        }
        assert_eq!(records.get(19).await.expect("a record"), zeros());
    }
}

async fn records_are_set_or_not_when_the_nth_op_fails(t: Bench) {
    for fault in [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)] {
        for nth in 1..=9 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let records = open(&faulty.shared(), &name).await;
            faulty.fail_nth(nth, fault);
            let mut expected = Vec::new();
            for id in [3, PER_SHARD + 3] {
                let done = records.set(id, &[("visits", 7u64.into())]).await;
                match done {
                    Ok(()) => expected.push(vec![7]),
                    Err(error) if error.is_unknown() => expected.push(vec![0, 7]),
                    Err(error) => {
                        assert_eq!(error.known_effect(), Effect::NotApplied);
                        assert_ne!(error.kind(), ErrorKind::Lost, "{error}: nothing was lost ({fault:?} at op {nth})");
                        expected.push(vec![0]);
                    }
                }
            }
            faulty.heal();
            faulty.deliver_late().await;
            let fresh = open(&t.store, &name).await;
            for (id, expected) in [3, PER_SHARD + 3].into_iter().zip(&expected) {
                let record = fresh.get(id).await.unwrap_or_else(|error| panic!("{fault:?} at op {nth}: {error}"));
                let Value::Uint(visits) = record[2] else { panic!("a number") };
                assert!(expected.contains(&visits), "{fault:?} at op {nth}: {visits}, not one of {expected:?}");
                if visits == 7 {
                    assert!(fresh.highest().await.expect("an id") >= Some(id), "{fault:?} at op {nth}");
                }
            }
            // Whatever broke, the records are as good as before.
            fresh.set(3, &[("visits", 9u64.into())]).await.expect("a set");
            assert_eq!(records.get(3).await.expect("a record")[2], Value::Uint(9));
        }
    }
}

/// A key as `docs/layouts.md` writes it down.
async fn key(t: &Bench, name: &str, index: &str) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await.expect("a manifest");
    let generation = manifest.expect("a structure").generation;
    Key::new(format!("L.{name}.r.{generation:016x}.{index}")).expect("a short name")
}

async fn records_report_a_lost_shard_and_no_other(t: Bench) {
    let name = t.name("a");
    let records = open(&t.store, &name).await;
    for shard in 0..3 {
        records.set(shard * PER_SHARD + 1, &[("visits", 5u64.into())]).await.expect("a set");
    }
    let gone = key(&t, &name, "s1").await;
    t.remove(gone).await;
    for records in [records, open(&t.store, &name).await] {
        let lost = [
            records.get(PER_SHARD).await.err(),
            records.set(PER_SHARD + 1, &[("paid", true.into())]).await.err(),
            records.aggregate(&["paid"]).await.err(),
            records.get(2 * PER_SHARD - 1).await.err(),
        ];
        for error in lost {
            let error = error.expect("it is gone");
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
            assert!(error.to_string().contains("ids 40 to 79"), "{error} does not name what is lost");
        }
        assert_eq!(records.get(1).await.expect("a record")[2], Value::Uint(5));
        assert_eq!(records.highest().await.expect("an id"), Some(2 * PER_SHARD + 1));
        assert_eq!(records.get(7 * PER_SHARD).await.expect("never made"), zeros());
    }
}

async fn records_know_the_highest_id_under_eight_tasks(t: Bench) {
    let name = t.name("a");
    let handles = [open(&t.store, &name).await, open(&t.store, &name).await];
    assert_eq!(handles[0].highest().await.expect("none"), None);
    let tasks = (0..8u64).map(|task| {
        let records = handles[task as usize % 2].clone();
        tokio::spawn(async move {
            for round in 0..6 {
                let id = round * 30 + task;
                records.set(id, &[("paid", true.into())]).await.expect("a set");
                let highest = records.highest().await.expect("an id");
                assert!(highest >= Some(id), "{id} was acknowledged, and the highest is {highest:?}");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    for records in handles {
        assert_eq!(records.highest().await.expect("an id"), Some(157));
        let counted = records.aggregate(&["paid"]).await.expect("an aggregate");
        assert_eq!((counted.count(&[true.into()]), counted.records), (48, 158));
    }
}

async fn records_without_a_field_to_set_are_known(t: Bench) {
    let name = t.name("a");
    let records = open(&t.store, &name).await;
    records.set(7, &[]).await.expect("a set");
    assert_eq!(records.highest().await.expect("an id"), Some(7));
    records.set_many([(60, &[][..]), (3, &[("paid", true.into())][..])]).await.expect("a set");
    assert_eq!(records.highest().await.expect("an id"), Some(60));
    assert_eq!(records.get(60).await.expect("a record"), zeros());
    let counted = records.aggregate(&["paid"]).await.expect("an aggregate");
    assert_eq!((counted.count(&[true.into()]), counted.records), (1, 61));
}

async fn records_refuse_what_does_not_fit(t: Bench) {
    let name = t.name("a");
    let options = PackedRecords::options;
    assert_eq!(options().open(&t.store, &name).await.expect_err("absent").kind(), ErrorKind::Absent);
    let no_schema = options().open_or_create(&t.store, &name).await.expect_err("no schema");
    assert_eq!(no_schema.kind(), ErrorKind::BadInput, "{no_schema}");
    let records = open(&t.store, &name).await;
    let other = ["place:CA|US|FR", "paid:bit", "visits:u6", "debt:i5", "code:bytes2"];
    let other = Schema::parse(other).expect("a schema");
    for options in [options().schema(other), options().shard_bytes(100)] {
        let error = options.open_or_create(&t.store, &name).await.expect_err("made otherwise");
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
    let fits = ("paid", Value::from(true));
    for (id, field, words) in [
        (1, ("visits", Value::from(32u64)), ["visits", "31", "32"]),
        (1, ("debt", Value::from(16i64)), ["debt", "15", "16"]),
        (1, ("place", Value::from("DE")), ["place", "CA", "DE"]),
        (1, ("age", Value::from(1u64)), ["age", "visits", "place"]),
        (records.id_max() + 1, fits.clone(), ["range", "1310719", "1310720"]),
        (u64::MAX, fits.clone(), ["range", "1310719", "18446744073709551615"]),
    ] {
        let sets = [(2u64, std::slice::from_ref(&fits)), (id, std::slice::from_ref(&field))];
        let error = records.set_many(sets).await.expect_err("it does not fit");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error} does not name {word}"));
    }
    assert_eq!(records.highest().await.expect("nothing was written"), None);
    assert_eq!(records.get(u64::MAX).await.expect_err("out of range").kind(), ErrorKind::BadInput);
    assert_eq!(records.aggregate(&["age"]).await.expect_err("no such field").kind(), ErrorKind::BadInput);
    records.set(records.id_max(), std::slice::from_ref(&fits)).await.expect("the last id");
    assert_eq!(records.highest().await.expect("an id"), Some(1_310_719));
}

async fn records_of_one_bit_are_counted(t: Bench) {
    let schema = Schema::parse(["seen:bit"]).expect("a schema");
    let bits = PackedRecords::options().schema(schema).open_or_create(&t.store, t.name("a")).await.expect("bits");
    let ids = [0u64, 7, 8, 63, 64, 4_097, 70_000];
    let seen = [("seen", Value::from(true))];
    bits.set_many(ids.iter().map(|&id| (id, &seen[..]))).await.expect("a set");
    bits.set(8, &[("seen", false.into())]).await.expect("a set");
    let counted = bits.aggregate(&["seen"]).await.expect("an aggregate");
    assert_eq!((counted.count(&[true.into()]), counted.count(&[false.into()])), (6, 69_995));
    let found = bits.get_many(&[6, 7, 8, 9, 70_000, 70_001]).await.expect("bits");
    let found: Vec<bool> = found.iter().map(|record| record[0] == Value::Bit(true)).collect();
    assert_eq!(found, [false, true, false, false, true, false]);
    assert_eq!(bits.aggregate(&[]).await.expect("an aggregate").records, 70_001);
}

async fn records_are_grouped_by_fields_of_any_width(t: Bench) {
    let schema = Schema::parse(["wide:i62", "paid:bit", "seen:bit", "code:bytes8"]).expect("a schema");
    let records = PackedRecords::options().schema(schema).open_or_create(&t.store, t.name("a")).await.expect("records");
    let least = -(1i64 << 61);
    for (id, wide) in [(0, least), (1, least), (2, (1 << 61) - 1), (3, -1)] {
        records.set(id, &[("wide", wide.into()), ("paid", (id == 1).into())]).await.expect("a set");
    }
    let just = ["wide", "paid"];
    for counted in [records.aggregate(&just).await, records.aggregate_ids(&just, &[0, 1, 2, 3]).await] {
        let counted = counted.expect("an aggregate");
        assert_eq!((counted.records, counted.groups.len()), (4, 4));
        for (wide, paid) in [(least, false), (least, true), ((1 << 61) - 1, false), (-1, false)] {
            assert_eq!(counted.count(&[wide.into(), paid.into()]), 1, "{wide} {paid}");
        }
    }
    let code = |last: u8| Value::from(Bytes::copy_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, last]));
    for (id, last) in [(0, 1), (3, 1), (5, 2)] {
        records.set(id, &[("code", code(last))]).await.expect("a set");
    }
    let none = || Value::from(Bytes::from_static(&[0; 8]));
    // Ids 1, 2 and 4 have no code, and 4 was never set.
    for counted in [records.aggregate(&["code"]).await, records.aggregate_ids(&["code"], &[0, 1, 2, 3, 4, 5]).await] {
        let counted = counted.expect("of 64 bits");
        let groups: Vec<_> = counted.groups.iter().map(|group| (group.values[0].clone(), group.count)).collect();
        assert_eq!((counted.records, groups), (6, vec![(none(), 3), (code(1), 2), (code(2), 1)]), "the least first");
    }
    let all = ["code", "wide", "paid", "seen"];
    let counted = records.aggregate(&all).await.expect("of 128 bits");
    assert_eq!((counted.records, counted.groups.len()), (6, 6));
    assert_eq!(counted.count(&[code(1), (-1i64).into(), false.into(), false.into()]), 1);
    assert_eq!(counted.count(&[none(), least.into(), true.into(), false.into()]), 1);
    assert_eq!(counted.count(&[none(), 0i64.into(), false.into(), false.into()]), 1, "4");
}

async fn drop_of_records_removes_every_key_and_a_handle_notices(t: Bench) {
    let name = t.name("a");
    let records = open(&t.store, &name).await;
    for shard in 0..3 {
        records.set(shard * PER_SHARD, &[("visits", 5u64.into())]).await.expect("a set");
    }
    let mut keys = vec![key(&t, &name, "0").await];
    for shard in 0..3 {
        keys.push(key(&t, &name, &format!("s{shard}")).await);
    }
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert_eq!(dropped.map(|manifest| manifest.kind), Some(Kind::Records));
    for key in keys {
        assert_eq!(t.ok(Op::delete(key.clone())).await, larder_core::Reply::Miss, "{key} is left");
    }
    for error in [records.get(0).await.err(), records.set(0, &[("paid", true.into())]).await.err()] {
        assert_eq!(error.expect("lost").kind(), ErrorKind::Lost);
    }
    let again = open(&t.store, &name).await;
    assert_eq!((again.highest().await.expect("none"), again.get(0).await.expect("a record")), (None, zeros()));
}
