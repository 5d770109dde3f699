//! The cache on real memcached servers, old and new, in every dialect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use larder_core::{ErrorKind, ManualClock};
use larder_structures::{Cache, CacheOptions};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::proxy::Proxy;
use larder_testkit::servers::{Memcached, Version};

use crate::cache::support::{Truth, cached, churn, found, is_fresh, is_stale, leased, long_rebuild, secs, why_not};
use crate::support::memcached::{COLUMNS, bad_network, client};

fn options() -> CacheOptions {
    Cache::options().ttl(secs(3)).stale(secs(3)).lease(secs(2)).wait(secs(20))
}

/// A client whose wall clock is off by so many seconds.
fn off_by(seconds: i64) -> Arc<ManualClock> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Arc::new(ManualClock::at(Duration::from_secs(now.as_secs().checked_add_signed(seconds).unwrap())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_eight_clients_exactly_one_rebuilds_on_a_server() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let rebuilds = Arc::new(AtomicUsize::new(0));
        let mut clients = Vec::new();
        for _ in 0..8 {
            let store = client(server.addr(), &format!("dialect={dialect}")).await;
            let cache = options().lease(secs(30)).open_or_create(&store, "c").await.unwrap();
            clients.push((store, cache));
        }
        let asking: Vec<_> = clients
            .iter()
            .map(|(_, cache)| {
                let (cache, rebuilds) = (cache.clone(), rebuilds.clone());
                tokio::spawn(async move {
                    let rebuild = async || {
                        let mine = rebuilds.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        Ok::<_, larder_core::Error>(format!("{mine}"))
                    };
                    cache.get_or_rebuild("k", rebuild).await.unwrap()
                })
            })
            .collect();
        for asked in asking {
            assert_eq!(asked.await.unwrap().value, "0");
        }
        assert_eq!(rebuilds.load(Ordering::SeqCst), 1, "{version:?} {dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_of_three_leases_is_made_once_on_a_server() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let (mut stores, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let store = client(server.addr(), &format!("dialect={dialect}")).await;
            clients.push(options().open_or_create(&store, "c").await.unwrap());
            stores.push(store);
        }
        let (rebuilds, got) = long_rebuild(clients, secs(2)).await;
        assert_eq!(rebuilds, 1, "{version:?} {dialect}: {got:?}");
        assert!(got.iter().all(|cached| cached.value == "0" && cached.is_kept()), "{version:?} {dialect}: {got:?}");
    }
}

/// The clients' wall clocks are off by an hour, each another way: where the server tells what remains of a life they do not matter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fresh_stale_and_gone_go_by_the_servers_clock() {
    for version in [Version::Old, Version::New] {
        let server = Memcached::start(version, &[]);
        let early = client(server.addr(), "").await;
        let late = client(server.addr(), "").await;
        let one = options().clock(off_by(-3_600)).open_or_create(&early, "c").await.unwrap();
        let two = options().clock(off_by(3_600)).open_or_create(&late, "c").await.unwrap();
        let made = Instant::now();
        cached(&one, "k", "old").await;
        assert!(is_fresh(&found(&two, "k").await, "old"), "{version:?}");
        // Past its ttl in any second that the server's clock may be in, and before its window ends.
        tokio::time::sleep_until((made + Duration::from_millis(3_500)).into()).await;
        let lease = leased(&two, "k").await;
        for cache in [&one, &two] {
            assert!(is_stale(&found(cache, "k").await, "old"), "{version:?}");
        }
        assert!(lease.finish("new").await.is_kept());
        assert!(is_fresh(&found(&one, "k").await, "new"), "{version:?}");
        tokio::time::sleep(Duration::from_millis(6_200)).await;
        assert!(one.get("k").await.unwrap().is_none(), "{version:?}");
    }
}

/// The weaker guarantee: who is ahead rebuilds too soon, who is behind takes the stale for fresh, and the server's clock ends it for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_the_classic_dialect_a_wrong_wall_clock_misjudges_and_serves_nothing_past_its_life() {
    let server = Memcached::start(Version::New, &[]);
    let store = client(server.addr(), "dialect=classic").await;
    assert!(!store.profile().remaining_ttl);
    let right = options().ttl(secs(1)).stale(secs(2)).open_or_create(&store, "c").await.unwrap();
    let behind = options().clock(off_by(-3_600)).open(&store, "c").await.unwrap();
    let ahead = options().clock(off_by(3_600)).open(&store, "c").await.unwrap();
    cached(&right, "k", "v").await;
    assert!(is_fresh(&found(&right, "k").await, "v"));
    assert!(ahead.get("k").await.unwrap().is_none());
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(is_stale(&right.get("k").await.unwrap().unwrap(), "v"));
    assert!(is_fresh(&found(&behind, "k").await, "v"));
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    assert!(behind.get("k").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_rebuilder_is_followed_after_its_lease() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let cache = options().open_or_create(&store, "c").await.unwrap();
        let began = Instant::now();
        std::mem::forget(leased(&cache, "k").await);
        let made = cached(&cache, "k", "v").await;
        let waited = began.elapsed();
        assert!(made.is_kept(), "{made:?}");
        assert!(waited >= secs(2) - Duration::from_millis(50), "{version:?} {dialect}: {waited:?}");
        assert!(waited < secs(8), "{version:?} {dialect}: {waited:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalidations_slow_rebuilders_and_failures_are_as_elsewhere() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let other = client(server.addr(), &format!("dialect={dialect}")).await;
        let cache = options().lease(secs(60)).open_or_create(&store, b"\xff \n").await.unwrap();
        let cache2 = options().lease(secs(60)).open_or_create(&other, b"\xff \n").await.unwrap();
        let before = leased(&cache, "k").await;
        cache2.invalidate("k").await.unwrap();
        let after = leased(&cache2, "k").await;
        assert_eq!(why_not(&before.finish("before").await).kind(), ErrorKind::Conflict, "{version:?} {dialect}");
        assert!(after.finish("after").await.is_kept());
        assert!(is_fresh(&found(&cache, "k").await, "after"));
        leased(&cache, "failing").await.give_up().await;
        leased(&cache2, "failing").await.give_up().await;
        let max = cache.value_bytes_max("k");
        cache.invalidate("k").await.unwrap();
        assert!(leased(&cache, "k").await.finish(vec![b'x'; max]).await.is_kept(), "{version:?} {dialect}");
        assert_eq!(found(&cache2, "k").await.value.len(), max);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_server_evicts_is_a_miss_and_nothing_else() {
    let server = Memcached::start(Version::New, &["-m", "4"]);
    let store = client(server.addr(), "").await;
    let cache = options().ttl(secs(3_600)).open_or_create(&store, "c").await.unwrap();
    let value = |number: usize| format!("{number:05000}");
    for number in 0..2_000usize {
        let made = cache.get_or_rebuild(number.to_be_bytes(), async || Ok::<_, larder_core::Error>(value(number)));
        made.await.unwrap();
    }
    let mut misses = 0;
    for number in 0..2_000usize {
        match cache.get(number.to_be_bytes()).await.unwrap() {
            Some(cached) => assert_eq!(cached.value, value(number)),
            None => misses += 1,
        }
    }
    assert!((500..2_000).contains(&misses), "{misses}");
    let made = cache.get_or_rebuild(0usize.to_be_bytes(), async || Ok::<_, larder_core::Error>(value(0))).await;
    assert_eq!(made.unwrap().value, value(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_cas_and_expiry_is_refused() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    assert_eq!(Cache::open_or_create(&store, "c").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

/// 8 tasks on 2 clients and one key, behind a proxy that cuts, loses and delivers late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_invalidation_is_undone_behind_a_bad_network() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    // Of all columns together: in one of them both connections may be down from the beginning, and most calls fail at once.
    let (mut served, mut faults) = (0, 0);
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("dialect={dialect}&timeout_ms=300");
        let mut handles = Vec::new();
        for _ in 0..2 {
            let store = client(proxy.addr(), &url).await;
            let options = options().ttl(secs(1)).stale(secs(1)).lease(secs(1)).timeout(secs(5));
            handles.push(options.open_or_create(&store, "c").await.unwrap());
        }
        proxy.random(seed, bad_network(0.02));
        let truth = Arc::new(Truth::default());
        let tasks: Vec<_> = (0..8u64)
            .map(|task| tokio::spawn(churn(handles[task as usize % 2].clone(), truth.clone(), seed ^ task, 40)))
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        faults += proxy.counts().faults();
        served += truth.served.load(Ordering::SeqCst);
    }
    assert!(faults > 20 && served > 20, "{faults} {served}");
}
