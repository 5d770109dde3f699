//! Looking at a cache from outside: what stands under a key, how many entries there are, and what of that is no cache's.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, Error, ErrorKind, PutMode, StoreExt, StoreRef, Ttl, ambient};
use larder_store_memory::MemoryStore;
use larder_structures::inspect::{CacheEntry, CacheState, cache_entries, cache_entry};
use larder_structures::{Cache, Name};

use crate::cache::support::{cached, clocked, entry_key, leased, options, secs};

fn name() -> Name {
    Name::new("c").unwrap()
}

async fn look(store: &StoreRef, key: &str) -> Option<CacheEntry> {
    cache_entry(store, Ctx::default(), &name(), key.as_bytes()).await.unwrap()
}

#[tokio::test]
async fn an_entry_is_told_as_whoever_asks_for_it_would_meet_it() {
    let (clock, store) = clocked();
    let cache = options().clock(clock.clone()).open_or_create(&store, "c").await.unwrap();
    let state = async || {
        let entry = look(&store, "k").await.unwrap();
        (entry.state, entry.value_bytes, entry.age, entry.left)
    };
    assert_eq!(look(&store, "k").await, None);
    let lease = leased(&cache, "k").await;
    assert_eq!(state().await, (CacheState::Rebuilding, None, secs(0), secs(0)));
    assert!(lease.finish("value").await.is_kept());
    assert_eq!(state().await, (CacheState::Fresh, Some(5), secs(0), secs(15)));
    clock.advance(secs(3));
    assert_eq!(state().await, (CacheState::Fresh, Some(5), secs(3), secs(12)));
    clock.advance(secs(8));
    assert_eq!(state().await, (CacheState::Stale, Some(5), secs(11), secs(4)));
    let lease = leased(&cache, "k").await;
    assert_eq!(state().await, (CacheState::Rebuilding, Some(5), secs(0), secs(4)));
    let bytes = look(&store, "k").await.unwrap().bytes;
    let stored = store.get(entry_key(&store, "c", "BMN9mZPii-apIe").await).await.unwrap().unwrap().value;
    assert_eq!(bytes, stored.len() as u64);
    lease.give_up().await;
    leased(&cache, "z").await.give_up().await;
    let over = look(&store, "z").await.unwrap();
    assert_eq!((over.state, over.value_bytes, over.left), (CacheState::Over, None, Duration::ZERO));
    clock.advance(secs(20));
    assert_eq!(look(&store, "k").await, None);
}

#[tokio::test]
async fn an_entry_of_another_key_that_shares_its_place_is_none() {
    let (_, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    cached(&cache, "other", "theirs").await;
    assert!(look(&store, "other").await.is_some());
    let other = store.get(entry_key(&store, "c", "8aHe0YPt7vLKvR").await).await.unwrap().unwrap();
    let place = entry_key(&store, "c", "BMN9mZPii-apIe").await;
    store.put(place, PutMode::Set, other.value, Ttl::After(secs(15))).await.unwrap();
    assert_eq!(look(&store, "k").await, None);
}

/// Tells two keys, and then how it ended.
struct Cut(ErrorKind);

impl List for Cut {
    fn list<'a>(&'a self, _: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            for index in [b"one", b"two"] {
                tell(Listed::Key(&[prefix, index].concat()));
            }
            tell(Listed::LookedAt(1_000));
            Err(Error::new(self.0, "it goes no further"))
        })
    }
}

impl fmt::Debug for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cut")
    }
}

#[tokio::test]
async fn entries_are_counted_as_far_as_the_time_for_it_goes() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    Cache::open_or_create(&store, "c2").await.unwrap();
    for key in ["a", "b", "d"] {
        cached(&cache, key, "v").await;
    }
    let all = cache_entries(&store, &*memory, Ctx::default(), &name(), Duration::MAX).await.unwrap();
    assert_eq!((all.count, all.are_all), (3, true));
    let some = cache_entries(&store, &Cut(ErrorKind::Timeout), Ctx::default(), &name(), secs(60)).await.unwrap();
    assert_eq!((some.count, some.are_all), (2, false));
    // What is none of that time is told: a store that fails, and a caller who has less of it.
    let failed = cache_entries(&store, &Cut(ErrorKind::Unavailable), Ctx::default(), &name(), secs(60)).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    let brief = Ctx { deadline: Some(ambient::now() + secs(30)) };
    let late = cache_entries(&store, &Cut(ErrorKind::Timeout), brief, &name(), secs(60)).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
}

/// A manifest as another release might write it: with data keys, with copies, or with another hash.
#[tokio::test]
async fn a_cache_that_places_its_entries_otherwise_is_left_alone() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let manifest = |shards: u8, copies: u8, hash: u8| {
        let generation = 0x1122_3344_5566_7788_u64.to_le_bytes();
        [&b"LRD\x01\x0b\x01"[..], &[shards, 0], &generation, &[copies, hash]].concat()
    };
    Cache::open_or_create(&store, "ours").await.unwrap();
    let ours = store.get(Name::new("ours").unwrap().manifest_key().unwrap()).await.unwrap().unwrap().value;
    let (head, hash) = (&ours[..8], ours[17]);
    assert_eq!(manifest(0, 1, hash)[..8], *head);
    for (shards, copies, hash, is_known) in
        [(0, 1, hash, true), (1, 1, hash, false), (0, 2, hash, false), (0, 1, hash + 1, false)]
    {
        let key = name().manifest_key().unwrap();
        store.put(key, PutMode::Set, manifest(shards, copies, hash), Ttl::Never).await.unwrap();
        let opened = Cache::open(&store, "c").await;
        assert_eq!(opened.is_ok(), is_known, "{shards} shards, {copies} copies, hash {hash}");
        if let Err(error) = opened {
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
        }
    }
}

/// The lease goes on: who asks then has to wait, and is served nothing.
#[tokio::test]
async fn a_stale_value_whose_time_ends_beside_a_lease_is_told_as_none() {
    let (clock, store) = clocked();
    let cache = options().lease(secs(60)).clock(clock.clone()).open_or_create(&store, "c").await.unwrap();
    cached(&cache, "k", "value").await;
    clock.advance(secs(11));
    let _lease = leased(&cache, "k").await;
    for (passed, value_bytes, left) in [(0, Some(5), 4), (3, Some(5), 1), (1, None, 0), (1, None, 0)] {
        clock.advance(secs(passed));
        let entry = look(&store, "k").await.unwrap();
        assert_eq!((entry.state, entry.value_bytes, entry.left), (CacheState::Rebuilding, value_bytes, secs(left)));
    }
}

#[tokio::test]
async fn a_count_that_had_less_time_than_its_caller_says_that_it_is_not_all() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    Cache::open_or_create(&store, "c").await.unwrap();
    let patient = Ctx { deadline: Some(ambient::now() + secs(600)) };
    let some = cache_entries(&store, &Cut(ErrorKind::Timeout), patient, &name(), secs(60)).await.unwrap();
    assert_eq!((some.count, some.are_all), (2, false));
}

#[test]
fn states_have_words() {
    let all = [CacheState::Fresh, CacheState::Stale, CacheState::Rebuilding, CacheState::Over];
    assert_eq!(all.map(CacheState::as_str), ["fresh", "stale", "being rebuilt", "over"]);
}
