//! The cache through its public handle, on every store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Error, ErrorKind};
use larder_structures::cache::{Cached, Lookup, Rebuild, Source};
use larder_structures::registry::drop_structure;
use larder_structures::{Cache, CacheOptions, Name};

use super::{Bench, assert_too_large, cases, one_over};
use crate::faulty::{Fault, Faulty};

cases! {
    cache_rebuilds_once_under_eight_tasks_and_two_handles [Cas, Ttl];
    cache_keeps_keys_and_values_of_any_bytes [Cas, Ttl];
    cache_serves_the_stale_value_while_one_rebuilds [Cas, Ttl];
    cache_lets_the_next_in_when_a_rebuilder_dies_or_fails [Cas, Ttl];
    cache_does_not_undo_an_invalidation [Cas, Ttl];
    cache_says_truly_what_it_kept_when_the_nth_op_fails [Cas, Ttl];
    cache_that_is_dropped_serves_nothing_old [Cas, Ttl];
    a_store_without_cas_refuses_a_cache [NoCas];
}

/// Long enough for any loaded machine.
fn patient() -> CacheOptions {
    let long = Duration::from_secs(3_600);
    Cache::options().ttl(long).stale(long).lease(long).wait(Duration::from_secs(60)).timeout(Duration::from_secs(30))
}

async fn made(cache: &Cache, key: &str, value: &'static str) -> Cached {
    cache.get_or_rebuild(key, async || Ok::<_, Error>(value)).await.expect("a value")
}

async fn leased(cache: &Cache, key: &str) -> Rebuild {
    match cache.lookup(key).await.expect("a lookup") {
        Lookup::Rebuild(rebuild) => rebuild,
        Lookup::Found(cached) => panic!("nobody rebuilds, and this was found: {cached:?}"),
    }
}

async fn cache_rebuilds_once_under_eight_tasks_and_two_handles(t: Bench) {
    let name = t.name("a");
    let handles = [
        patient().open_or_create(&t.store, &name).await.expect("a cache"),
        patient().open_or_create(&t.store, &name).await.expect("the cache"),
    ];
    let rebuilds = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (cache, rebuilds) = (handles[task % 2].clone(), rebuilds.clone());
            tokio::spawn(async move {
                let rebuild = async || {
                    rebuilds.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    Ok::<_, Error>(task.to_string())
                };
                cache.get_or_rebuild("k", rebuild).await.expect("a value").value
            })
        })
        .collect();
    let mut values = Vec::new();
    for task in tasks {
        values.push(task.await.expect("no panic"));
    }
    assert_eq!(rebuilds.load(Ordering::SeqCst), 1, "rebuilds");
    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
}

async fn cache_keeps_keys_and_values_of_any_bytes(t: Bench) {
    let cache = patient().open_or_create(&t.store, t.name("a")).await.expect("a cache");
    let all: [&[u8]; 6] = [b"", b" ", b"\r\n", b"\0\xff", b"key", &[b'x'; 8 * 1024]];
    for bytes in all {
        let cached = cache.get_or_rebuild(bytes, async || Ok::<_, Error>(bytes)).await.expect("a value");
        assert!(cached.is_kept(), "{cached:?}");
    }
    for bytes in all {
        let cached = cache.get(bytes).await.expect("a get").expect("cached");
        assert_eq!(cached.value, bytes);
    }
    let limit = cache.value_bytes_max("new");
    if let Some(value) = one_over(limit) {
        let cached = cache.get_or_rebuild("new", async || Ok::<_, Error>(value.clone())).await.expect("the value");
        assert_eq!(cached.value, value, "its maker has it");
        let Source::Rebuilt(Err(error)) = cached.source else { panic!("{:?}", cached.source) };
        assert_too_large(&error, limit);
        assert!(cache.get("new").await.expect("a get").is_none(), "it was kept");
        // Nobody waits for it.
        assert!(made(&cache, "new", "small").await.is_kept());
    }
    let error = cache.get([b'x'; 8 * 1024 + 1]).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert!(error.to_string().contains("8193") && error.to_string().contains("8192"), "{error}");
}

async fn cache_serves_the_stale_value_while_one_rebuilds(t: Bench) {
    let brief = patient().ttl(Duration::from_secs(1));
    let brief = brief.open_or_create(&t.store, t.name("a")).await.expect("a cache");
    // What these make stays fresh, however long the rest takes.
    let cache = patient().open(&t.store, t.name("a")).await.expect("the cache");
    let other = patient().open(&t.store, t.name("a")).await.expect("the cache");
    made(&brief, "k", "old").await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let rebuild = leased(&cache, "k").await;
    assert_eq!(rebuild.stale().expect("the stale value"), "old");
    let served = made(&other, "k", "of nobody").await;
    assert!(matches!(served.source, Source::Stale) && served.value == "old", "{served:?}");
    let finished = rebuild.finish("new").await;
    assert!(finished.is_kept(), "{finished:?}");
    assert_eq!(made(&other, "k", "of nobody").await.value, "new");
}

async fn cache_lets_the_next_in_when_a_rebuilder_dies_or_fails(t: Bench) {
    let cache = patient().lease(Duration::from_secs(1));
    let cache = cache.open_or_create(&t.store, t.name("a")).await.expect("a cache");
    let other = patient().open(&t.store, t.name("a")).await.expect("the cache");
    std::mem::forget(leased(&cache, "k").await);
    assert!(made(&other, "k", "v").await.is_kept());
    let failing = async || Err::<Bytes, _>(Error::new(ErrorKind::Overflow, "of the closure"));
    let error = cache.get_or_rebuild("l", failing).await.expect_err("failed");
    assert_eq!(error.detail(), "of the closure");
    let long = patient().open(&t.store, t.name("a")).await.expect("the cache");
    leased(&long, "m").await.give_up().await;
    assert!(made(&other, "m", "v").await.is_kept());
}

async fn cache_does_not_undo_an_invalidation(t: Bench) {
    let cache = patient().open_or_create(&t.store, t.name("a")).await.expect("a cache");
    let other = patient().open(&t.store, t.name("a")).await.expect("the cache");
    let before = leased(&cache, "k").await;
    other.invalidate("k").await.expect("an invalidation");
    let after = leased(&other, "k").await;
    let late = before.finish("before").await;
    assert!(matches!(&late.source, Source::Rebuilt(Err(error)) if error.kind() == ErrorKind::Conflict), "{late:?}");
    assert!(after.finish("after").await.is_kept());
    assert_eq!(made(&cache, "k", "of nobody").await.value, "after");
    cache.invalidate("k").await.expect("an invalidation");
    assert!(other.get("k").await.expect("a get").is_none());
}

async fn cache_says_truly_what_it_kept_when_the_nth_op_fails(t: Bench) {
    let direct = patient().open_or_create(&t.store, t.name("a")).await.expect("a cache");
    for fault in [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(2)] {
        for nth in 1..=5 {
            let key = format!("{fault:?} {nth}");
            let faulty = Faulty::new(t.store.clone());
            let options = patient().timeout(Duration::from_secs(5));
            let cache = options.open(&faulty.shared(), t.name("a")).await.expect("the cache");
            faulty.fail_nth(nth, fault);
            let outcome = cache.get_or_rebuild(&key, async || Ok::<_, Error>("v")).await;
            faulty.heal();
            faulty.deliver_late().await;
            let there = direct.get(&key).await.expect("a get").is_some();
            match outcome {
                Ok(cached) => assert!(cached.is_kept() && there, "{key}: {cached:?}"),
                Err(error) => assert!(!there, "{key}: {error}"),
            }
        }
    }
}

async fn cache_that_is_dropped_serves_nothing_old(t: Bench) {
    let name = t.name("a");
    let cache = patient().open_or_create(&t.store, &name).await.expect("a cache");
    made(&cache, "k", "old").await;
    let dropped = drop_structure(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a drop");
    assert!(dropped.is_some());
    assert_eq!(Cache::open(&t.store, &name).await.expect_err("absent").kind(), ErrorKind::Absent);
    let again = patient().open_or_create(&t.store, &name).await.expect("a cache");
    assert!(again.get("k").await.expect("a get").is_none());
    assert_eq!(made(&again, "k", "new").await.value, "new");
}

async fn a_store_without_cas_refuses_a_cache(t: Bench) {
    let error = Cache::open_or_create(&t.store, t.name("a")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
