//! How large shards are made, and what a manifest says of them.

use std::sync::Arc;

use larder_core::{Ctx, PutMode, Store, Ttl};
use larder_store_memory::MemoryStore;

use super::*;

fn schema() -> Schema {
    Schema::parse(["place:CA|US", "visits:u7"]).unwrap()
}

/// A class of 8,880 bytes has the item's header, of 48 bytes and a token, the value's end and two zeros, the key and the value.
#[test]
fn a_shard_fills_a_slab_class_of_memcacheds_together_with_its_key() {
    let profile = Profile { durability: Durability::Server, ..Profile::unlimited("a server") };
    for key_bytes in [1, 40, 250] {
        let bytes = RecordsOptions::default().shard_bytes_for(&profile, Kept::Portable, key_bytes, 8).unwrap();
        assert_eq!(bytes + key_bytes + 59, 8_880, "a key of {key_bytes} bytes");
    }
}

/// As the memory store itself counts what an item takes of the heap: one class more would be 72 KiB.
#[test]
fn a_shard_in_process_fills_a_class_of_64_kib_together_with_its_key() {
    for key_bytes in [1, 40, 250] {
        let store = MemoryStore::new();
        let bytes = RecordsOptions::default().shard_bytes_for(&store.profile(), Kept::Portable, key_bytes, 8).unwrap();
        let put = |value: usize| {
            let key = vec![b'k'; key_bytes];
            store.direct().put(&key, PutMode::Set, &vec![0; value], 0, Ttl::Never).unwrap();
            store.stats().bytes
        };
        // With its table, of which there is as much for a small item.
        let small = put(1);
        let more = put(bytes) - small;
        assert!((65_000..65_536).contains(&more), "a key of {key_bytes} bytes: {more} bytes more than one of a byte");
    }
}

/// A string of Redis's has up to ten bytes beside what is in it, and past a power of two it takes a quarter more.
#[test]
fn a_shard_in_bit_fields_stays_just_under_256_kib_whatever_its_key() {
    let profile = MemoryStore::new().profile();
    for key_bytes in [1, 250] {
        let bytes = RecordsOptions::default().shard_bytes_for(&profile, Kept::Native, key_bytes, 8).unwrap();
        assert!((255 << 10..=(256 << 10) - 10).contains(&bytes), "{bytes}");
    }
}

#[tokio::test]
async fn a_manifest_says_what_records_have_how_many_are_in_a_shard_and_how_they_are_kept() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let options = PackedRecords::options().schema(schema()).shard_bytes(1_000);
    options.open_or_create(&store, "users").await.unwrap();
    let name = Name::new("users").unwrap();
    let made = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
    let said = describe(&made).expect("it is of this release");
    let of = |what| said.iter().find(|(named, _)| *named == what).map(|(_, value)| value.as_str()).expect(what);
    assert_eq!(of("fields"), schema().to_string());
    assert_eq!(of("bits a record"), schema().bits().to_string());
    assert_eq!(of("kept in"), "items under conditional writes");
    let (records, bytes): (usize, usize) =
        (of("records a shard").parse().unwrap(), of("bytes a shard").parse().unwrap());
    assert!(bytes <= 1_000 && bytes * 8 >= records * schema().bits(), "{records} in {bytes}");
    assert_eq!(describe(&Manifest { params: "of another release".into(), ..made }), None);
}

/// What is printed of a schema has the ends of a long list of labels alone.
#[tokio::test]
async fn the_first_field_and_label_that_differ_are_named() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let labels = |fifth: &str, count: usize| {
        let mut labels: Vec<String> = (0..count).map(|at| format!("L{at}")).collect();
        labels[4] = fifth.to_owned();
        FieldKind::Choice(labels)
    };
    let schema = |kind: FieldKind| Schema::new().bit("paid").field("place", kind).build().unwrap();
    let open = |schema: Schema| PackedRecords::options().schema(schema).open_or_create(&store, "users");
    open(schema(labels("L4", 9))).await.unwrap();
    for (other, said) in [
        (schema(labels("X", 9)), "label 5 of field place is L4, not X"),
        (schema(labels("L4", 10)), "label 10 of field place is none, not L9"),
        (schema(FieldKind::Bit), "field 2 is place:L0|…|L8 (9 labels), not place:bit"),
        (Schema::new().bit("paid").build().unwrap(), "field 2 is place:L0|…|L8 (9 labels), not no more fields"),
        (Schema::new().bit("new").build().unwrap(), "field 1 is paid:bit, not new:bit"),
    ] {
        let error = open(other).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
        assert!(error.to_string().contains(said), "{error}");
    }
}
