//! The cache through its handle: who rebuilds, who waits, who is served what, and what it costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Error, ErrorKind, ManualClock, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::cache::{KEY_BYTES_MAX, Lookup, Source};
use larder_structures::{Cache, Name, Set, registry};

use crate::cache::support::{
    Distant, cached, clocked, entry_key, found, is_fresh, is_stale, leased, long_rebuild, options, secs, why_not,
};
use crate::lock::support::{Dialect, Reprofiled, memory};
use crate::support::probe::Probe;
use crate::support::shaped::Shaped;
use crate::support::steady::metered;

/// The index of the key `k`.
const INDEX_OF_K: &str = "BMN9mZPii-apIe";
/// A lease where time is paused. The store's sweeper goes by real time: so long no machine stands still.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn round_trips_are_as_documented() {
    let probe = Probe::new();
    let store = probe.shared();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    assert_eq!(probe.round_trips(), 2, "made");
    options().open_or_create(&store, "c").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "opened or made");
    options().open(&store, "c").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "opened");
    cached(&cache, "k", "v").await;
    assert_eq!(probe.round_trips(), 3, "rebuilt");
    cached(&cache, "k", "w").await;
    assert_eq!(probe.round_trips(), 1, "hit");
    assert!(cache.get("k").await.unwrap().is_some());
    assert_eq!(probe.round_trips(), 1, "get");
    cache.invalidate("k").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "invalidated");
    let failed = cache.get_or_rebuild("k", async || Err::<Bytes, _>(Error::new(ErrorKind::Full, "mine"))).await;
    assert_eq!(failed.unwrap_err().detail(), "mine");
    assert_eq!(probe.round_trips(), 3, "the closure failed");
    let lease = leased(&cache, "other").await;
    assert_eq!(probe.round_trips(), 2, "leased");
    lease.finish("v").await;
    assert_eq!(probe.round_trips(), 1, "finished");
}

#[tokio::test]
async fn a_stale_value_is_rebuilt_in_three_round_trips_and_served_in_one() {
    let (clock, store) = clocked();
    let probe = Probe::over(store);
    let cache = options().open_or_create(&probe.shared(), "c").await.unwrap();
    cached(&cache, "k", "old").await;
    clock.advance(secs(10));
    probe.round_trips();
    let lease = leased(&cache, "k").await;
    assert_eq!(probe.round_trips(), 2, "leased");
    assert!(is_stale(&found(&cache, "k").await, "old"));
    assert_eq!(probe.round_trips(), 1, "served stale");
    lease.finish("new").await;
    assert_eq!(probe.round_trips(), 1, "finished");
    assert!(is_fresh(&found(&cache, "k").await, "new"));
}

/// 8 clients, each with a handle of its own, ask for one key that nobody has made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_clients_exactly_one_rebuilds_and_all_get_its_value() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let rebuilds = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (store, rebuilds) = (store.clone(), rebuilds.clone());
            tokio::spawn(async move {
                let cache = options().lease(secs(30)).open_or_create(&store, "c").await.unwrap();
                let rebuild = async || {
                    let mine = rebuilds.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Ok::<_, larder_core::Error>(format!("{mine}"))
                };
                cache.get_or_rebuild("k", rebuild).await.unwrap()
            })
        })
        .collect();
    let mut by_source = [0, 0];
    for client in clients {
        let cached = client.await.unwrap();
        assert_eq!(cached.value, "0");
        match cached.source {
            Source::Fresh => by_source[0] += 1,
            Source::Rebuilt(Ok(())) => by_source[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((rebuilds.load(Ordering::SeqCst), by_source), (1, [7, 1]));
}

#[tokio::test(start_paused = true)]
async fn a_rebuild_of_three_leases_is_made_once_by_four_clients() {
    let (store, clock) = memory();
    let mut clients = Vec::new();
    for _ in 0..4 {
        let options = options().lease(LONG).wait(LONG * 10).clock(clock.clone());
        clients.push(options.open_or_create(&store, "c").await.unwrap());
    }
    let (rebuilds, got) = long_rebuild(clients, LONG).await;
    assert_eq!(rebuilds, 1, "{got:?}");
    assert!(got.iter().all(|cached| cached.value == "0" && cached.is_kept()), "{got:?}");
}

/// The stale value travels with each renewal, and is not served for longer by it.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_at_each_third_and_the_stale_value_does_not_live_longer_by_it() {
    let (store, clock) = memory();
    let probe = Probe::over(store);
    let options = options().ttl(Duration::from_millis(1)).stale(LONG * 2).lease(LONG).clock(clock);
    let cache = options.open_or_create(&probe.shared(), "c").await.unwrap();
    cached(&cache, "k", "old").await;
    tokio::time::sleep(secs(1)).await;
    let rebuild = leased(&cache, "k").await;
    assert_eq!(rebuild.stale().unwrap(), "old");
    probe.round_trips();
    let rebuild = rebuild.renewing();
    tokio::time::sleep(secs(70)).await;
    assert_eq!(probe.round_trips(), 3, "a third each");
    assert!(is_stale(&found(&cache, "k").await, "old"));
    tokio::time::sleep(secs(65)).await;
    assert!(cache.get("k").await.unwrap().is_none(), "its window is over");
    probe.round_trips();
    assert!(rebuild.finish("new").await.is_kept());
    assert_eq!(probe.round_trips(), 1, "the token of the last renewal is known");
    tokio::time::sleep(LONG).await;
    assert_eq!(probe.round_trips(), 0, "nobody renews what is finished");
}

#[tokio::test(start_paused = true)]
async fn a_renewing_rebuild_that_is_dropped_or_invalidated_renews_no_more() {
    let (store, clock) = memory();
    let probe = Probe::over(store);
    let cache = options().lease(LONG).clock(clock).open_or_create(&probe.shared(), "c").await.unwrap();
    let rebuild = leased(&cache, "k").await.renewing();
    cache.invalidate("k").await.unwrap();
    tokio::time::sleep(LONG * 2 / 3).await;
    probe.round_trips();
    tokio::time::sleep(LONG).await;
    assert_eq!(probe.round_trips(), 0, "the renewal that found it gone was the last");
    assert!(cache.get("k").await.unwrap().is_none());
    probe.round_trips();
    assert_eq!(why_not(&rebuild.finish("v").await).kind(), ErrorKind::Conflict);
    assert_eq!(probe.round_trips(), 0, "it is known to be gone");
    drop(leased(&cache, "k").await.renewing());
    tokio::time::sleep(LONG * 2).await;
    probe.round_trips();
    leased(&cache, "k").await.give_up().await;
    assert_eq!(probe.round_trips(), 3);
}

#[tokio::test]
async fn a_value_is_fresh_for_its_ttl_stale_for_its_window_and_then_gone() {
    let (clock, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    let made = cached(&cache, "k", "v").await;
    assert!(matches!(made.source, Source::Rebuilt(Ok(()))));
    clock.advance(Duration::from_millis(9_999));
    assert!(is_fresh(&cache.get("k").await.unwrap().unwrap(), "v"));
    clock.advance(Duration::from_millis(1));
    assert!(is_stale(&cache.get("k").await.unwrap().unwrap(), "v"));
    clock.advance(Duration::from_millis(4_999));
    assert!(is_stale(&cache.get("k").await.unwrap().unwrap(), "v"));
    clock.advance(Duration::from_millis(1));
    assert!(cache.get("k").await.unwrap().is_none());
}

#[tokio::test]
async fn while_one_rebuilds_a_stale_value_the_others_are_served_it_until_its_window_ends() {
    let (clock, store) = clocked();
    // What a write takes by the cache's clock is taken off its life: the same that stands still here.
    let options = options().clock(clock.clone()).lease(secs(60)).wait(Duration::ZERO);
    let cache = options.open_or_create(&store, "c").await.unwrap();
    cached(&cache, "k", "old").await;
    clock.advance(secs(12));
    let lease = leased(&cache, "k").await;
    assert_eq!(lease.stale().unwrap(), "old");
    assert!(is_stale(&found(&cache, "k").await, "old"));
    clock.advance(Duration::from_millis(2_999));
    assert!(is_stale(&found(&cache, "k").await, "old"));
    // 15 s after it was made. The rebuild goes on, and is still the only one.
    clock.advance(Duration::from_millis(1));
    assert_eq!(cache.lookup("k").await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(cache.get("k").await.unwrap().is_none());
    assert!(lease.finish("new").await.is_kept());
    assert!(is_fresh(&found(&cache, "k").await, "new"));
}

#[tokio::test]
async fn a_rebuilder_that_dies_is_followed_after_its_lease_by_the_stores_clock() {
    let (clock, store) = clocked();
    // The readers' own clocks are off by a day, each another way: only the store's counts.
    let early = Arc::new(ManualClock::at(secs(1_000_000 - 86_400)));
    let late = Arc::new(ManualClock::at(secs(1_000_000 + 86_400)));
    let dead = options().clock(early).open_or_create(&store, "c").await.unwrap();
    let next = options().clock(late).wait(Duration::ZERO).open(&store, "c").await.unwrap();
    for (value, stale) in [(None, false), (Some("old"), true)] {
        if let Some(value) = value {
            cached(&next, "k", value).await;
            clock.advance(secs(11));
        }
        std::mem::forget(leased(&dead, "k").await);
        clock.advance(Duration::from_millis(1_999));
        match next.lookup("k").await {
            Ok(Lookup::Found(cached)) => assert!(stale && is_stale(&cached, "old")),
            Ok(Lookup::Rebuild(_)) => panic!("before the lease was over"),
            Err(error) => assert!(!stale && error.kind() == ErrorKind::Timeout, "{error}"),
        }
        clock.advance(Duration::from_millis(1));
        assert!(leased(&next, "k").await.finish("new").await.is_kept());
        next.invalidate("k").await.unwrap();
    }
}

#[tokio::test]
async fn a_waiting_client_takes_over_from_a_dead_rebuilder() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let cache = options().lease(Duration::from_millis(300)).open_or_create(&store, "c").await.unwrap();
    let before = std::time::Instant::now();
    std::mem::forget(leased(&cache, "k").await);
    let made = cached(&cache, "k", "v").await;
    assert!(matches!(made.source, Source::Rebuilt(Ok(()))));
    assert!(before.elapsed() >= Duration::from_millis(250), "{:?}", before.elapsed());
}

#[tokio::test]
async fn a_slow_rebuilder_never_overwrites_what_was_made_since() {
    let (clock, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    let slow = leased(&cache, "k").await;
    clock.advance(secs(2));
    assert!(leased(&cache, "k").await.finish("new").await.is_kept());
    let late = slow.finish("old").await;
    assert_eq!((&late.value[..], why_not(&late).kind()), (&b"old"[..], ErrorKind::Conflict));
    assert!(is_fresh(&found(&cache, "k").await, "new"));
    // The same while the next one is still at work.
    cache.invalidate("k").await.unwrap();
    let slow = leased(&cache, "k").await;
    clock.advance(secs(2));
    let next = leased(&cache, "k").await;
    assert_eq!(why_not(&slow.finish("old").await).kind(), ErrorKind::Conflict);
    assert!(next.finish("newer").await.is_kept());
}

#[tokio::test]
async fn an_invalidation_is_not_undone_by_a_rebuild_that_began_before_it() {
    let (clock, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    for is_stale in [false, true] {
        if is_stale {
            cached(&cache, "k", "first").await;
            clock.advance(secs(11));
        }
        let before = leased(&cache, "k").await;
        cache.invalidate("k").await.unwrap();
        // Nothing is there that could be served, and the next one need not wait.
        let after = leased(&cache, "k").await;
        assert_eq!(after.stale(), None);
        assert_eq!(why_not(&before.finish("before").await).kind(), ErrorKind::Conflict);
        assert!(after.finish("after").await.is_kept());
        assert!(is_fresh(&found(&cache, "k").await, "after"));
        // With nobody else about, too.
        cache.invalidate("k").await.unwrap();
        let before = leased(&cache, "k").await;
        cache.invalidate("k").await.unwrap();
        assert_eq!(why_not(&before.finish("before").await).kind(), ErrorKind::Conflict);
        assert!(cache.get("k").await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_closure_that_fails_gives_the_lease_up_at_once_and_leaves_the_stale_value() {
    let (clock, store) = clocked();
    let options = options().lease(secs(60)).wait(Duration::ZERO).clock(clock.clone());
    let cache = options.open_or_create(&store, "c").await.unwrap();
    let fail = || cache.get_or_rebuild("k", async || Err::<Bytes, _>(Error::new(ErrorKind::Overflow, "mine")));
    for _ in 0..2 {
        assert_eq!(fail().await.unwrap_err().kind(), ErrorKind::Overflow);
    }
    cached(&cache, "k", "old").await;
    clock.advance(secs(10));
    assert_eq!(fail().await.unwrap_err().kind(), ErrorKind::Overflow);
    assert!(is_stale(&cache.get("k").await.unwrap().unwrap(), "old"));
    let lease = leased(&cache, "k").await;
    clock.advance(secs(4));
    lease.give_up().await;
    assert!(is_stale(&cache.get("k").await.unwrap().unwrap(), "old"));
    // Giving up twice has not made it live longer.
    clock.advance(secs(1));
    assert!(cache.get("k").await.unwrap().is_none());
}

/// Each failure writes the stale value twice, and what passes on the way to the store and back is part of its time.
#[tokio::test(start_paused = true)]
async fn rebuilds_that_fail_one_after_the_other_far_away_do_not_make_the_stale_value_live_longer() {
    const EACH_WAY: Duration = Duration::from_millis(50);
    let ttl = secs(1);
    for (dialect, stale) in [(Dialect::Millis, secs(1)), (Dialect::Silent, secs(1)), (Dialect::Millis, secs(5))] {
        let (inner, clock) = memory();
        let inner = Reprofiled::speaking(&inner, dialect);
        let options = || options().ttl(ttl).stale(stale).lease(LONG).wait(Duration::ZERO).clock(clock.clone());
        let near = options().open_or_create(&inner, "c").await.unwrap();
        let far = options().open(&Distant::shared(&inner, EACH_WAY), "c").await.unwrap();
        cached(&near, "k", "old").await;
        let made = tokio::time::Instant::now();
        let failures = Arc::new(AtomicUsize::new(0));
        let failing = tokio::spawn({
            let failures = failures.clone();
            async move {
                tokio::time::sleep(ttl).await;
                loop {
                    let fail = async || Err::<Bytes, _>(Error::new(ErrorKind::Overflow, "mine"));
                    assert_eq!(far.get_or_rebuild("k", fail).await.unwrap_err().detail(), "mine");
                    failures.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        tokio::time::sleep_until(made + ttl + stale - 2 * EACH_WAY).await;
        let seen = near.get("k").await.unwrap();
        assert!(seen.is_some_and(|seen| is_stale(&seen, "old")), "{dialect:?}, {stale:?}: its window is not over");
        tokio::time::sleep_until(made + ttl + stale + 2 * EACH_WAY).await;
        let seen = near.get("k").await.unwrap();
        assert!(seen.is_none(), "{dialect:?}, {stale:?}: {seen:?}");
        assert!(!failing.is_finished());
        failing.abort();
        let failures = failures.load(Ordering::SeqCst);
        assert!(failures >= stale.as_millis() as usize / 300, "{dialect:?}, {stale:?}: {failures}");
    }
}

/// Where the store tells no remaining life, a lease begins a life anew of what is left of the stale value by its taker's clock.
#[tokio::test]
async fn where_wall_clocks_judge_a_lease_of_one_that_is_behind_makes_the_stale_window_as_much_longer() {
    let (clock, inner) = clocked();
    let store = Reprofiled::speaking(&inner, Dialect::Silent);
    let late = Arc::new(ManualClock::at(secs(1_000_000 - 4)));
    let pass = |by| {
        clock.advance(secs(by));
        late.advance(secs(by));
    };
    let options = || options().ttl(secs(1)).stale(secs(10));
    let right = options().clock(clock.clone()).open_or_create(&store, "c").await.unwrap();
    let behind = options().clock(late.clone()).open(&store, "c").await.unwrap();
    cached(&right, "k", "v").await;
    pass(8);
    leased(&behind, "k").await.give_up().await;
    pass(6);
    assert!(is_stale(&behind.get("k").await.unwrap().unwrap(), "v"), "3 s past its window");
    assert!(right.get("k").await.unwrap().is_none());
    pass(1);
    assert!(behind.get("k").await.unwrap().is_none(), "the server's clock ended it");
}

#[tokio::test]
async fn a_rebuild_that_is_dropped_or_panics_gives_the_lease_up() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let cache = options().lease(secs(3600)).open_or_create(&store, "c").await.unwrap();
    drop(leased(&cache, "k").await);
    let dying = {
        let cache = cache.clone();
        tokio::spawn(async move {
            cache.get_or_rebuild("k", async || -> larder_core::Result<Bytes> { panic!("on purpose") }).await
        })
    };
    assert!(dying.await.unwrap_err().is_panic());
    let never = cache.get_or_rebuild("k", std::future::pending::<larder_core::Result<Bytes>>);
    assert!(tokio::time::timeout(Duration::from_millis(300), never).await.is_err());
    cached(&cache, "k", "v").await;
}

#[tokio::test]
async fn keys_and_values_are_any_bytes() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let cache = options().open_or_create(&store, b"\xff. ").await.unwrap();
    let keys: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).chain([vec![], vec![0; KEY_BYTES_MAX]]).collect();
    for key in &keys {
        let made = cache.get_or_rebuild(key, async || Ok::<_, larder_core::Error>(key.clone())).await.unwrap();
        assert_eq!(made.value, key);
    }
    for key in &keys {
        assert_eq!(cache.get(key).await.unwrap().unwrap().value, key);
    }
    cache.invalidate("").await.unwrap();
    assert!(cache.get("").await.unwrap().is_none());
}

#[tokio::test]
async fn the_largest_value_is_cached_and_one_more_byte_is_told() {
    let probe = Probe::small(40_000);
    let store = probe.shared();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    let max = cache.value_bytes_max("k");
    assert!(max > 39_000, "{max}");
    let made = cache.get_or_rebuild("k", async || Ok::<_, larder_core::Error>(vec![b'x'; max])).await.unwrap();
    assert!(made.is_kept());
    assert_eq!(cache.get("k").await.unwrap().unwrap().value.len(), max);
    let made = cache.get_or_rebuild("l", async || Ok::<_, larder_core::Error>(vec![b'x'; max + 1])).await.unwrap();
    assert_eq!(made.value.len(), max + 1);
    let error = why_not(&made);
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains(&format!("{} bytes; the limit on this store is {max}", max + 1)), "{error}");
    assert!(cache.get("l").await.unwrap().is_none());
    leased(&cache, "l").await.give_up().await;
    probe.round_trips();
    let error = cache.get(vec![0; KEY_BYTES_MAX + 1]).await.unwrap_err();
    assert_eq!((error.kind(), probe.round_trips()), (ErrorKind::BadInput, 0));
    assert!(error.to_string().contains("8193 bytes; the limit is 8192"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_anything_is_written() {
    let (_, store) = clocked();
    let zero = Duration::ZERO;
    let year = secs(365 * 86_400);
    for (options, said) in [
        (options().ttl(zero), "ttl is 0ns"),
        (options().lease(zero), "lease is 0ns"),
        (options().timeout(zero), "timeout is 0ns"),
        (options().ttl(year * 60).stale(year * 41), "the limit on this store is"),
        (options().ttl(Duration::MAX).stale(Duration::MAX), "the limit on this store is"),
    ] {
        let error = options.open_or_create(&store, "c").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(said), "{error}");
    }
    let without_cas = Probe::without_cas(100_000).shared();
    let tiny = Probe::small(10_000).shared();
    for store in [without_cas, tiny] {
        let error = Cache::open_or_create(&store, "c").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(store.get(Name::new("c").unwrap().manifest_key().unwrap()).await.unwrap().is_none());
    }
    Set::open_or_create(&store, "s").await.unwrap();
    let error = Cache::open_or_create(&store, "s").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert_eq!(Cache::open(&store, "c").await.unwrap_err().kind(), ErrorKind::Absent);
}

#[tokio::test]
async fn an_entry_that_is_evicted_is_a_miss_and_a_lease_that_is_evicted_lets_another_in() {
    let (_, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    let key = entry_key(&store, "c", INDEX_OF_K).await;
    cached(&cache, "k", "v").await;
    assert!(store.delete(key.clone()).await.unwrap(), "the entry stands where it is documented");
    assert!(cache.get("k").await.unwrap().is_none());
    let evicted = leased(&cache, "k").await;
    assert!(store.delete(key.clone()).await.unwrap());
    assert!(leased(&cache, "k").await.finish("new").await.is_kept());
    assert_eq!(why_not(&evicted.finish("old").await).kind(), ErrorKind::Conflict);
    assert!(is_fresh(&found(&cache, "k").await, "new"));
}

/// Whichever life of the name the handle knows: it looks with the op that removes.
#[tokio::test]
async fn an_invalidation_reaches_a_cache_that_others_made_anew_meanwhile() {
    let (_, inner) = clocked();
    let counting = metered(inner.clone());
    let store: StoreRef = Arc::new(counting.clone());
    let first = options().open_or_create(&store, "c").await.unwrap();
    cached(&first, "k", "older").await;
    inner.delete(Name::new("c").unwrap().manifest_key().unwrap()).await.unwrap();
    let second = options().open_or_create(&inner, "c").await.unwrap();
    cached(&second, "k", "old").await;
    first.invalidate("k").await.unwrap();
    assert!(second.get("k").await.unwrap().is_none());
    // Where nobody made it anew, the look costs nothing.
    let before = counting.counts().round_trips;
    first.invalidate("k").await.unwrap();
    assert_eq!(counting.counts().round_trips - before, 1);
}

#[tokio::test]
async fn foreign_bytes_are_told_and_an_invalidation_mends_it() {
    let (_, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    let key = entry_key(&store, "c", INDEX_OF_K).await;
    store.put(key.clone(), PutMode::Set, "not ours", Ttl::Never).await.unwrap();
    for error in [cache.get("k").await.unwrap_err(), cache.lookup("k").await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
        assert!(error.to_string().contains("not ours"), "{error}");
    }
    cache.invalidate("k").await.unwrap();
    cached(&cache, "k", "v").await;
    // An entry of another key, copied to this one's place, as two keys of one index would be.
    cached(&cache, "other", "theirs").await;
    let other = entry_key(&store, "c", "8aHe0YPt7vLKvR").await;
    let item = store.get(other).await.unwrap().unwrap();
    store.put(key, PutMode::Set, item.value, Ttl::After(secs(15))).await.unwrap();
    assert!(cache.get("k").await.unwrap().is_none());
    let made = cached(&cache, "k", "mine").await;
    assert_eq!((&made.value[..], made.is_kept()), (&b"mine"[..], true));
}

#[tokio::test]
async fn a_cache_that_was_dropped_is_another_and_handles_follow_within_a_minute() {
    let (clock, store) = clocked();
    let maker = options().ttl(secs(3600)).clock(clock.clone()).open_or_create(&store, "c").await.unwrap();
    let user = options().ttl(secs(3600)).clock(clock.clone()).open(&store, "c").await.unwrap();
    cached(&maker, "k", "old").await;
    let name = Name::new("c").unwrap();
    registry::drop_structure(&store, Ctx::default(), &name).await.unwrap().unwrap();
    clock.advance(secs(60));
    // Whoever may not make it says so, again and again; whoever may does, and both are in the new life then.
    for _ in 0..2 {
        assert_eq!(user.get("k").await.unwrap_err().kind(), ErrorKind::Absent);
    }
    assert!(maker.get("k").await.unwrap().is_none());
    assert!(user.get("k").await.unwrap().is_none());
    cached(&user, "k", "new").await;
    assert!(is_fresh(&found(&maker, "k").await, "new"));
    // Dropped and made again by somebody else.
    registry::drop_structure(&store, Ctx::default(), &name).await.unwrap().unwrap();
    let fresh = options().open_or_create(&store, "c").await.unwrap();
    assert!(fresh.get("k").await.unwrap().is_none());
    clock.advance(secs(60));
    assert!(user.get("k").await.unwrap().is_none());
}

#[tokio::test]
async fn waiting_ends_when_it_should_and_says_for_what_it_waited() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let cache = options().lease(secs(60)).wait(Duration::from_millis(200)).open_or_create(&store, "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    let before = std::time::Instant::now();
    let error = cache.lookup("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("somebody else's rebuild of \"k\""), "{error}");
    assert!(before.elapsed() >= Duration::from_millis(200));
    lease.finish("v").await;
}

/// What a key takes is missing from its value, byte for byte, and no more.
#[tokio::test]
async fn a_longer_key_leaves_as_much_less_for_its_value() {
    let store = Probe::small(40_000).shared();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    let long = "k".repeat(1_000);
    let max = cache.value_bytes_max(&long);
    assert_eq!(cache.value_bytes_max("") - max, 1_000);
    let made = cache.get_or_rebuild(&long, async || Ok::<_, larder_core::Error>(vec![b'x'; max])).await.unwrap();
    assert!(made.is_kept(), "{made:?}");
    assert_eq!(cache.get(&long).await.unwrap().unwrap().value.len(), max);
}

#[tokio::test]
async fn a_lease_says_whose_value_is_to_be_made() {
    let (_, store) = clocked();
    let cache = options().open_or_create(&store, "c").await.unwrap();
    for key in ["", "k", "/index?page=2"] {
        assert_eq!(leased(&cache, key).await.key(), key.as_bytes());
    }
}

#[tokio::test]
async fn an_entry_may_live_as_long_as_the_store_keeps_anything_and_no_longer() {
    let (_, inner) = clocked();
    let store = Shaped::over(&inner, |profile| profile.ttl_max = secs(100));
    Cache::options().ttl(secs(60)).stale(secs(40)).open_or_create(&store, "c").await.unwrap();
    let longer = Cache::options().ttl(secs(60)).stale(secs(40) + Duration::from_millis(1));
    let error = longer.open_or_create(&store, "c").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("the limit on this store is 100s"), "{error}");
}
