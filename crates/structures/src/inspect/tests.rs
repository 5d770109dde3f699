//! What is measured of native keys and of many pieces, and which errors are a loss.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{PutMode, StoreExt, Ttl, Verb};
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::Answering;
use crate::records::{Schema, Value};
use crate::{EventLog, UniqueVisitors};

/// What each native key takes on the server of these tests.
const NATIVE_BYTES: u64 = 1_000_000;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn found(store: &StoreRef, name: &str) -> (Name, Manifest) {
    let name = Name::new(name).unwrap();
    let manifest = registry::find(store, Ctx::default(), &name).await.unwrap().expect("it is there");
    (name, manifest)
}

/// Structures of items, whose parameters are made to say that these are native: by this byte at this place.
async fn native_ones(store: &StoreRef) -> Vec<(Name, Manifest)> {
    let schema = Schema::parse(["place:CA|US", "visits:u7"]).unwrap();
    let users = PackedRecords::options().schema(schema).open_or_create(store, "users").await.unwrap();
    users.set(3, &[("visits", Value::Uint(9))]).await.unwrap();
    let site = UniqueVisitors::options().expected(10).open_or_create(store, "site").await.unwrap();
    site.add([1u64, 2]).await.unwrap();
    ShardedHash::options().shards(3).open_or_create(store, "hash").await.unwrap();
    ShardedSet::options().shards(3).open_or_create(store, "set").await.unwrap();
    let mut all = Vec::new();
    for (name, at, byte) in [("users", 0, 2), ("site", 23, 3), ("hash", 0, 1), ("set", 0, 1)] {
        let (name, mut manifest) = found(store, name).await;
        let mut params = manifest.params.to_vec();
        params[at] = byte;
        manifest.params = Bytes::from(params);
        all.push((name, manifest));
    }
    all
}

/// A server tells of its own collections and bit fields how much they take; as items they cannot be read.
#[tokio::test]
async fn the_keys_of_native_structures_are_counted_with_what_the_server_says_that_they_take() {
    let memory = memory();
    let all = native_ones(&memory).await;
    let server = Answering::over(&memory);
    server.by(|op| match &op.verb {
        Verb::Native(native) if **native == Native::MemoryBytes => {
            Some(Ok(NativeReply::Size(Some(NATIVE_BYTES)).into()))
        }
        _ => None,
    });
    for (name, manifest) in all {
        let pieces = registry::pieces(&memory, Ctx::default(), &name, &manifest).await.unwrap().keys.len() as u64;
        assert!(pieces > 1, "{name}");
        let named = u64::from(manifest.shards);
        let mut inspection = Inspection {
            params: Vec::new(),
            guarantee: String::new(),
            keys: 0,
            missing: 0,
            unread: 0,
            bytes: 0,
            live_bytes: None,
            stale_bytes: None,
            elements: None,
            name,
            manifest,
        };
        inspection.measure(&server.shared(), Ctx::default()).await.unwrap();
        let Inspection { name, keys, missing, unread, bytes, .. } = inspection;
        assert_eq!((keys, missing, unread, bytes / NATIVE_BYTES), (named + pieces, 0, 0, pieces), "{name}");
    }
}

/// They are read in several batches.
#[tokio::test]
async fn of_a_log_with_more_parts_than_a_batch_reads_every_event_is_counted() {
    let store = memory();
    let minute = Duration::from_secs(60);
    let log = EventLog::options().chunk(minute).retention(100 * minute).open_or_create(&store, "log").await.unwrap();
    let (parts, now_ms) = (VALUES_A_BATCH as u64 + 6, log.now_ms());
    log.put_all((0..parts).map(|number| (now_ms - number * 60_000, "x"))).await.unwrap();
    let found = inspect(&store, Ctx::default(), &Name::new("log").unwrap()).await.unwrap().expect("it is there");
    assert_eq!((found.elements, found.missing, found.stale_bytes.is_some()), (Some(parts), 0, true));
    assert_eq!(found.keys, 1 + u64::from(found.manifest.shards) + parts);
}

#[tokio::test]
async fn what_another_program_wrote_in_the_place_of_data_is_an_error_and_no_loss() {
    let store = memory();
    Array::options().shards(2).open_or_create(&store, "array").await.unwrap();
    ShardedSet::options().shards(2).open_or_create(&store, "set").await.unwrap();
    for name in ["array", "set"] {
        let (name, manifest) = found(&store, name).await;
        // The commits, and a shard.
        let key = registry::pieces(&store, Ctx::default(), &name, &manifest).await.unwrap().keys.remove(0).key;
        let value = Bytes::from_static(b"another program's");
        let put = Verb::Put { mode: PutMode::Set, value, flags: 3, ttl: Ttl::Never };
        store.run_one(Ctx::default(), Op::new(key.clone(), put)).await.unwrap();
        let error = inspect(&store, Ctx::default(), &name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{name}: {error}");
        assert!(store.delete(key).await.unwrap());
        let inspected = inspect(&store, Ctx::default(), &name).await.unwrap().expect("it is there");
        assert_eq!((inspected.missing, inspected.elements), (1, None), "{name}");
    }
}
