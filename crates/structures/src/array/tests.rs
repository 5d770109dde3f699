//! What options keep, which keys there are, what travels together, and what is told of a shard that was set back.

use std::sync::atomic::{AtomicUsize, Ordering};

use larder_core::{Batch, Ctx, ErrorKind, ManualClock, Op, Profile, PutMode, Run, Store, StoreExt, Ttl, Want};
use larder_store_memory::MemoryStore;

use super::*;
use crate::manifest::Kind;
use crate::registry;

#[test]
fn a_clock_is_taken_and_what_was_said_before_stays() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(77)));
    let options = Array::options().shards(4).dirtiness(5).timeout(Duration::from_secs(9)).clock(clock);
    assert_eq!((options.shards, options.timeout), (Some(4), Duration::from_secs(9)));
    let Tuning { clock, dirty_bytes } = options.tuning();
    assert_eq!((clock.wall(), dirty_bytes), (Duration::from_secs(77), 5));
}

#[test]
fn an_array_of_one_shard_has_no_commits_to_drop() {
    let name = Name::new("a").unwrap();
    for (shards, keys) in [(1, 0), (2, 1)] {
        let manifest = Manifest::new(Kind::Array, 1, shards, Bytes::new());
        assert_eq!(pieces(&name, &manifest).unwrap().len(), keys, "{shards} shards");
    }
}

/// A store whose answers come later, and that counts its batches.
#[derive(Debug)]
struct Later(MemoryStore, AtomicUsize);

impl Store for Later {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            self.1.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            batch.iter().map(|op| self.0.apply(op)).collect()
        })
    }
}

#[tokio::test]
async fn pushes_of_some_sixty_kilobytes_that_wait_for_one_under_way_travel_together() {
    let later = Arc::new(Later(MemoryStore::new(), AtomicUsize::new(0)));
    let store: StoreRef = later.clone();
    // Nothing is looked at behind the callers.
    let array = Array::options().shards(1).dirtiness(usize::MAX).open_or_create(&store, "a").await.unwrap();
    let before = later.1.load(Ordering::Relaxed);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..7u8 {
        let array = array.clone();
        tasks.spawn(async move { array.push([vec![number; 10_000]]).await });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    assert_eq!(later.1.load(Ordering::Relaxed) - before, 2, "the first, and all others");
    assert_eq!(array.elements().await.unwrap().len(), 7);
}

#[tokio::test]
async fn a_shard_that_was_set_back_behind_the_commits_is_told_with_the_change_that_it_lacks() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let open = async || Array::options().shards(2).open_or_create(&store, "a").await.unwrap();
    let array = open().await;
    let name = Name::new("a").unwrap();
    let manifest = registry::find(&store, Ctx::default(), &name).await.unwrap().unwrap();
    let shard = manifest.data_key(&name, 1).unwrap();
    let get = Op::get(shard.clone(), Want::VALUE);
    let before = store.run_one(Ctx::default(), get).await.unwrap().into_item().unwrap().value;
    array.change(["a", "b", "c", "d", "e", "f"], Vec::<&str>::new()).await.unwrap();
    store.put(shard, PutMode::Set, before, Ttl::Never).await.unwrap();
    let error = open().await.elements().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack);
    assert!(error.to_string().contains("shard 1 lacks change 1, which had been committed"), "{error}");
}
