//! The counter on real memcached servers, old and new, in every dialect, behind a proxy that breaks connections, on three
//! servers of which one dies, and on a server that knows the classic commands only.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Effect, ErrorKind, StoreRef};
use larder_store_memcached::{Address, Config, MemcachedStore, Server};
use larder_structures::Counter;
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::proxy::{Proxy, Rates};
use larder_testkit::servers::{Memcached, Version};

use crate::counter::support::Meter;
use crate::support::memcached::{COLUMNS, client};
use crate::support::steady::metered;

const RATES: Rates = Rates {
    lost_request: 0.01,
    lost_reply: 0.01,
    late_delivery: 0.01,
    cut_request: 0.01,
    cut_reply: 0.01,
    late_ms_max: 30,
    ..Rates::NONE
};

/// A client of several servers, each reached at its own address or through a proxy.
async fn fleet_client(servers: &[Memcached], proxies: &[Proxy]) -> StoreRef {
    let server = |(at, server): (usize, &Memcached)| {
        let named = Server::tcp(&server.addr().ip().to_string(), server.addr().port());
        let Some(proxy) = proxies.get(at) else { return named };
        let address = Address::Tcp { host: proxy.addr().ip().to_string(), port: proxy.addr().port() };
        Server { address, ..named }
    };
    let config = Config::new(servers.iter().enumerate().map(server).collect());
    Arc::new(MemcachedStore::connect(config).await.unwrap())
}

fn servers(version: Version) -> Vec<Memcached> {
    (0..3).map(|_| Memcached::start(version, &[])).collect()
}

/// Adds 1 `times` times; of those whose outcome was told as unknown, how many.
async fn increments(counter: Counter, times: u32) -> (i128, i128) {
    let (mut counted, mut unknown) = (0, 0);
    while counted + unknown < i128::from(times) {
        match counter.add(1).await {
            Ok(()) => counted += 1,
            Err(error) if error.is_unknown() => unknown += 1,
            // It was not counted and never will be, so it is done again.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    (counted, unknown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn totals_and_round_trips() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let counting = metered(client(server.addr(), &format!("dialect={dialect}")).await);
        let store: StoreRef = Arc::new(counting.clone());
        let column = format!("{version:?} {dialect}");
        let mut meter = Meter::new(counting);
        let counter = Counter::open_or_create(&store, b"n\xff\n").await.unwrap();
        assert_eq!(meter.round_trips(), 3, "make, {column}");
        counter.add(i64::MIN).await.unwrap();
        assert_eq!(meter.round_trips(), 2, "first add, {column}");
        counter.add(i64::MIN).await.unwrap();
        counter.add(7).await.unwrap();
        assert_eq!(meter.round_trips(), 2, "warm adds, {column}");
        assert_eq!(counter.get().await.unwrap(), 2 * i128::from(i64::MIN) + 7, "{column}");
        assert_eq!(meter.round_trips(), 1, "get, {column}");
        assert_eq!(counter.reset().await.unwrap(), 2 * i128::from(i64::MIN) + 7, "{column}");
        counter.release().await.unwrap();
        assert_eq!(meter.round_trips(), 3, "reset and release, {column}");

        let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
        let step = 1_i64 << 56;
        for sign in [1, -1] {
            for _ in 0..32 {
                fast.add(sign * step).await.unwrap();
            }
            assert_eq!(fast.add(sign).await.unwrap_err().kind(), ErrorKind::Overflow, "{column}");
            assert_eq!(fast.reset().await.unwrap(), i128::from(sign) << 61, "{column}");
        }
        assert_eq!(fast.get().await.unwrap(), 0, "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_behind_a_failing_network_count_exactly() {
    for (version, dialect) in COLUMNS {
        let seed = fastrand::u64(..);
        println!("{version:?} {dialect}, seed {seed}");
        let server = Memcached::start(version, &[]);
        let direct = client(server.addr(), "").await;
        Counter::open_or_create(&direct, "n").await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        let mut proxies = Vec::new();
        for task in 0..8 {
            let proxy = Proxy::start(server.addr());
            let store = client(proxy.addr(), &format!("dialect={dialect}&timeout_ms=500")).await;
            let counter = Counter::options().timeout(Duration::from_secs(30)).open(&store, "n").await.unwrap();
            proxy.random(seed ^ task, RATES);
            proxies.push(proxy);
            tasks.spawn(increments(counter, 1_000));
        }
        let outcomes = tasks.join_all().await;
        let faults: u64 = proxies.iter().map(|proxy| proxy.counts().faults()).sum();
        assert!(faults > 100, "{faults}");
        assert!(outcomes.iter().all(|&outcome| outcome == (1_000, 0)), "{outcomes:?}");
        let counter = Counter::open(&direct, "n").await.unwrap();
        assert_eq!(counter.get().await.unwrap(), 8_000, "{version:?} {dialect}, seed {seed}");
        // What is still held back on the way arrives, and must not count.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(counter.get().await.unwrap(), 8_000, "{version:?} {dialect}, seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_a_loss_and_never_a_zero() {
    for version in Version::ALL {
        let mut server = Memcached::start(version, &[]);
        let store = client(server.addr(), "").await;
        let counter = Counter::open_or_create(&store, "n").await.unwrap();
        let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
        counter.add(5).await.unwrap();
        server.restart();
        // The first answer after a restart may be that of the broken connection.
        for handle in [&counter, &fast] {
            let errors = [told(handle).await, handle.add(1).await.unwrap_err(), handle.get().await.unwrap_err()];
            for error in errors {
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
            }
        }
        let error = Counter::open(&store, "n").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Absent);
        assert!(error.detail().contains("never created, or lost"), "{error}");
        // Made anew, it is another counter: the old handle does not write to it.
        let again = Counter::open_or_create(&store, "n").await.unwrap();
        assert_eq!(counter.add(1).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(again.get().await.unwrap(), 0);
    }
}

/// The error of a get, once the server can be reached again.
async fn told(counter: &Counter) -> larder_core::Error {
    for _ in 0..200 {
        let error = counter.get().await.unwrap_err();
        if error.kind() != ErrorKind::Unavailable {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the server is not reached again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_servers_dies_under_four_writers_and_comes_back_empty() {
    for version in Version::ALL {
        let mut servers = servers(version);
        let direct = fleet_client(&servers, &[]).await;
        let options = Counter::options().copies(3).slots(8).timeout(Duration::from_secs(20));
        let watcher = options.open_or_create(&direct, "n").await.unwrap();
        let mut total = 0;
        for victim in 0..3 {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let store = fleet_client(&servers, &[]).await;
                let counter = options.open(&store, "n").await.unwrap();
                tasks.spawn(increments(counter, 1_500));
            }
            let wait_until = async |more: i128| {
                while watcher.get().await.map_or(true, |now| now < total + more) {
                    tokio::task::yield_now().await;
                }
            };
            wait_until(1_000).await;
            servers[victim].kill9();
            wait_until(2_500).await;
            servers[victim].restart();
            let outcomes = tasks.join_all().await;
            let counted: i128 = outcomes.iter().map(|outcome| outcome.0).sum();
            let unknown: i128 = outcomes.iter().map(|outcome| outcome.1).sum();
            assert_eq!((counted, unknown), (6_000, 0), "{version:?}, victim {victim}");
            total += counted;
            mended(&watcher).await;
            assert_eq!(watcher.get().await.unwrap(), total, "{version:?}, victim {victim}");
        }
        servers[0].restart();
        servers[1].restart();
        assert_eq!(told(&watcher).await.kind(), ErrorKind::Lost);
    }
}

/// Repairs, once all servers can be reached again.
async fn mended(counter: &Counter) {
    let mut last = None;
    for _ in 0..500 {
        match counter.repair().await {
            Ok(_) => return,
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not mended: {last:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_behind_failing_networks_count_exactly() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let servers = servers(Version::New);
    let direct = fleet_client(&servers, &[]).await;
    Counter::options().copies(3).open_or_create(&direct, "n").await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    let mut all_proxies = Vec::new();
    for task in 0..4_u64 {
        let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
        let store = fleet_client(&servers, &proxies).await;
        let counter = Counter::options().timeout(Duration::from_secs(30)).open(&store, "n").await.unwrap();
        for (at, proxy) in proxies.iter().enumerate() {
            proxy.random(seed ^ task ^ (at as u64) << 8, RATES);
        }
        all_proxies.extend(proxies);
        tasks.spawn(increments(counter, 500));
    }
    let outcomes = tasks.join_all().await;
    assert!(outcomes.iter().all(|&outcome| outcome == (500, 0)), "{outcomes:?}");
    let counter = Counter::open(&direct, "n").await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 2_000, "seed {seed}");
    tokio::time::sleep(Duration::from_millis(100)).await;
    counter.add(1).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 2_001, "seed {seed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_cas_carries_the_fast_one_and_says_what_the_exact_one_needs() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    let error = Counter::open_or_create(&store, "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.detail().contains("cas") && error.detail().contains("fast"), "{error}");
    let fast = Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    fast.add(-5).await.unwrap();
    fast.add(7).await.unwrap();
    assert_eq!(fast.get().await.unwrap(), 2);
    assert_eq!(fast.reset().await.unwrap(), 2);
    assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 0);
}
