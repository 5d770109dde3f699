//! Which manifests are read as portable ones, and what is told where they cannot be read.

use bytes::Bytes;
use larder_core::{Effect, ErrorKind, Op, StoreExt, Want};
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::{Answering, fails};
use crate::records::Schema;
use crate::{PackedRecords, ShardedHash, ShardedSet, UniqueVisitors, registry};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn found(store: &StoreRef, name: &str) -> Manifest {
    registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().expect("it is there")
}

#[tokio::test]
async fn each_native_kind_is_read_as_the_same_in_items() {
    let store = memory();
    let schema = Schema::parse(["place:CA|US", "visits:u7"]).unwrap();
    PackedRecords::options().schema(schema).open_or_create(&store, "users").await.unwrap();
    UniqueVisitors::options().expected(10).open_or_create(&store, "site").await.unwrap();
    ShardedHash::options().shards(2).open_or_create(&store, "hash").await.unwrap();
    // Where the parameters say how they are kept; of unique visitors in an item, and natively.
    for (name, at, portable, native) in [("users", 0, 0, 2), ("site", 23, 1, 3), ("hash", 0, 0, 1)] {
        let found = found(&store, name).await;
        let [portable, native] = [portable, native].map(|byte| {
            let mut params = found.params.to_vec();
            params[at] = byte;
            Manifest { params: Bytes::from(params), ..found.clone() }
        });
        assert!(is_native(&native) && !is_native(&portable), "{name}");
        assert_eq!(portable_manifest(&portable), None, "{name}");
        assert_eq!(portable_manifest(&native), Some(portable), "{name}");
    }
}

/// It is none that is not there: the one who asks may ask again.
#[tokio::test]
async fn a_native_key_whose_manifest_cannot_be_reached_is_told_as_that() {
    let memory = memory();
    let name = Name::new("set").unwrap();
    ShardedSet::options().shards(2).open_or_create(&memory, "set").await.unwrap();
    let manifest = found(&memory, "set").await;
    let shard = registry::pieces(&memory, Ctx::default(), &name, &manifest).await.unwrap().keys.remove(0).key;
    let server = Answering::over(&memory);
    let portable: StoreRef = Arc::new(Portable::new(server.shared()));
    for (kind, told) in [
        (ErrorKind::Unavailable, ErrorKind::Unavailable),
        // Another program's, which no manifest is.
        (ErrorKind::BadInput, ErrorKind::LayoutMismatch),
    ] {
        let of_shard = shard.clone();
        server.by(move |op| {
            let is_shard = op.key == of_shard;
            Some(fails(if is_shard { ErrorKind::LayoutMismatch } else { kind }, Effect::NotApplied))
        });
        let error = portable.run_one(Ctx::default(), Op::get(shard.clone(), Want::VALUE)).await.unwrap_err();
        assert_eq!(error.kind(), told, "{error}");
    }
}
