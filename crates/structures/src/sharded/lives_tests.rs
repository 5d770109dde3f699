//! Handles of a life of the name that is over: others made it again, behind a manifest that was evicted.

use std::sync::Arc;

use larder_core::{Effect, ErrorKind, Result, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;

use super::core::Core;
use super::{ShardedHash, ShardedSet, ShardedSortedSet};
use crate::name::Name;

enum Handle {
    Hash(ShardedHash),
    Set(ShardedSet),
    Sorted(ShardedSortedSet),
}

impl Handle {
    async fn open(kind: usize, store: &StoreRef) -> Handle {
        match kind {
            0 => Handle::Hash(ShardedHash::options().shards(2).open_or_create(store, "n").await.unwrap()),
            1 => Handle::Set(ShardedSet::options().shards(2).open_or_create(store, "n").await.unwrap()),
            _ => Handle::Sorted(ShardedSortedSet::options().shards(2).open_or_create(store, "n").await.unwrap()),
        }
    }

    fn core(&self) -> &Core {
        match self {
            Handle::Hash(hash) => &hash.0,
            Handle::Set(set) => &set.0,
            Handle::Sorted(set) => &set.0,
        }
    }

    async fn write(&self) -> Result<()> {
        match self {
            Handle::Hash(hash) => hash.set([("a", "1")]).await.map(drop),
            Handle::Set(set) => set.add(["a"]).await.map(drop),
            Handle::Sorted(set) => set.set([("a", 1.0)]).await.map(drop),
        }
    }

    async fn read(&self) -> Result<()> {
        match self {
            Handle::Hash(hash) => hash.get("a").await.map(drop),
            Handle::Set(set) => set.has("a").await.map(drop),
            Handle::Sorted(set) => set.scores(["a"]).await.map(drop),
        }
    }

    async fn len(&self) -> Result<()> {
        match self {
            Handle::Hash(hash) => hash.len().await.map(drop),
            Handle::Set(set) => set.len().await.map(drop),
            Handle::Sorted(set) => set.len().await.map(drop),
        }
    }

    async fn sweep(&self) -> Result<()> {
        match self {
            Handle::Hash(hash) => hash.entries().await.map(drop),
            Handle::Set(set) => set.members().await.map(drop),
            Handle::Sorted(set) => set.entries().await.map(drop),
        }
    }
}

/// By the very call whose batch has the look in it.
#[tokio::test]
async fn a_life_that_others_made_meanwhile_ends_the_call_that_sees_it() {
    for (kind, step) in (0..3).flat_map(|kind| (0..4).map(move |step| (kind, step))) {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let handle = Handle::open(kind, &store).await;
        handle.write().await.unwrap();
        store.delete(Name::new("n").unwrap().manifest_key().unwrap()).await.unwrap();
        Handle::open(kind, &store).await.write().await.unwrap();
        handle.core().vigil.make_due();
        let outcome = match step {
            0 => handle.write().await,
            1 => handle.read().await,
            2 => handle.sweep().await,
            _ => handle.len().await,
        };
        let error = outcome.expect_err(&format!("kind {kind}, step {step}"));
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
    }
}
