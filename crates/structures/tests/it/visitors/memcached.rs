//! Visitors on real memcached servers, old and new, in every dialect, and on one that knows the classic commands only.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, Key, Op, PutMode, Remaining, StoreExt, StoreRef, Ttl, Want};
use larder_structures::{Name, Visitors, registry};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::proxy::Proxy;
use larder_testkit::servers::{Memcached, Version};

use crate::support::memcached::{COLUMNS, bad_network, client};
use crate::support::probe::Probe;
use crate::visitors::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_round_trips_loss_and_drop() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let probe = Probe::over(client(server.addr(), &format!("dialect={dialect}")).await);
        let store = probe.shared();
        let column = format!("{version:?} {dialect}");
        let clock = clock();
        let site = options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
        assert_eq!(probe.round_trips(), 3, "made, {column}");
        site.hit_many(9).await.unwrap();
        assert_eq!(probe.round_trips(), 2, "the window's first, {column}");
        site.hit().await.unwrap();
        assert_eq!(probe.round_trips(), 1, "a hit, {column}");
        site.hit_visitor(b"\r\n\xff\0").await.unwrap();
        assert_eq!(probe.round_trips(), 2, "the shard's first, {column}");
        site.hit_visitor("").await.unwrap();
        site.hit_visitor("").await.unwrap();
        assert_eq!(probe.round_trips(), 1, "a visitor, and again, {column}");
        clock.advance(PERIOD + PERIOD / 4);
        assert_eq!((site.get().await.unwrap(), site.interpolated().await.unwrap()), (12, 3), "{column}");
        site.hit().await.unwrap();
        evict(&store, &key(&store, window(&clock) - 1, None).await).await;
        for reader in [&site, &open_again(&store, &clock).await] {
            assert_eq!(kind(reader.get().await), ErrorKind::Lost, "{column}");
            assert_eq!(reader.current().await.unwrap(), 1, "{column}");
        }
        registry::drop_structure(&store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().unwrap();
        assert_eq!(kind(site.hit().await), ErrorKind::Lost, "{column}");
        assert_eq!(kind(site.get().await), ErrorKind::Lost, "{column}");
        // In the classic dialect a delete by token leaves an empty item that is over, until it is asked for.
        assert!(registry::find(&store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().is_none());
        assert_eq!(server.stat("curr_items"), 0, "{column}");
    }
}

async fn open_again(store: &StoreRef, clock: &Arc<larder_core::ManualClock>) -> Visitors {
    Visitors::options().clock(clock.clone()).open(store, NAME).await.unwrap()
}

/// The end of a key is a fixed time, not so long after its first hit: the article's shift, compensated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_lives_for_its_use_whenever_it_was_first_hit() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), "").await;
        for (period_s, into_s) in [(300u64, 0u64), (300, 290), (30 * 86_400, 0), (30 * 86_400, 20 * 86_400)] {
            let clock = Arc::new(larder_core::ManualClock::at(Duration::from_secs(600 * 30 * 86_400 + into_s)));
            let site = Visitors::options().period(Duration::from_secs(period_s)).clock(clock.clone());
            let site = site.shards(1).open_or_create(&store, NAME).await.unwrap();
            site.hit().await.unwrap();
            site.hit_visitor("v").await.unwrap();
            let window = 600 * 30 * 86_400 / period_s;
            for shard in [None, Some(0)] {
                let get = Op::get(key(&store, window, shard).await, Want::TTL);
                let item = store.run_one(Ctx::default(), get).await.unwrap().into_item().unwrap();
                let Remaining::For(left) = item.ttl else { panic!("it lives for ever") };
                let expected = 3 * period_s + 305 - into_s;
                assert!((expected - 3..=expected).contains(&left.as_secs()), "{left:?}, not {expected} s; {version:?}");
            }
            registry::drop_structure(&store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().unwrap();
        }
    }
}

/// A server that has no memory for more: what was read least goes first, the window with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_server_evicts_is_lost_and_never_a_zero() {
    for version in Version::ALL {
        let server = Memcached::start(version, &["-m", "4"]);
        let store = client(server.addr(), "").await;
        let clock = clock();
        let site = open(&store, &clock).await;
        site.hit_many(5).await.unwrap();
        clock.advance(PERIOD);
        assert_eq!(site.get().await.unwrap(), 5);
        let counter = key(&store, window(&clock) - 1, None).await;
        let put = |n: usize| {
            // As long as the counter's, so that they take its place.
            let key = Key::new(format!("{n:0length$}", length = counter.as_bytes().len())).unwrap();
            Op::put(key, PutMode::Set, "7".repeat(19), Ttl::Never)
        };
        for part in 0..50 {
            for reply in store.run(Ctx::default(), (part * 4_000..(part + 1) * 4_000).map(put).collect()).await {
                reply.unwrap();
            }
        }
        assert!(!is_there(&store, &counter).await, "{version:?} evicted nothing");
        assert_eq!(kind(site.get().await), ErrorKind::Lost, "{version:?}");
        assert_eq!(kind(site.interpolated().await), ErrorKind::Lost, "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_a_loss_and_never_a_zero() {
    for version in Version::ALL {
        let mut server = Memcached::start(version, &[]);
        let store = client(server.addr(), "").await;
        let clock = clock();
        let site = open(&store, &clock).await;
        site.hit_many(5).await.unwrap();
        site.hit_visitor("v").await.unwrap();
        server.restart();
        // The first answer after a restart may be that of the broken connection.
        let mut told = site.get().await.unwrap_err();
        for _ in 0..200 {
            if told.kind() != ErrorKind::Unavailable {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            told = site.get().await.unwrap_err();
        }
        for error in [
            told,
            site.current().await.unwrap_err(),
            site.interpolated().await.unwrap_err(),
            site.hit().await.unwrap_err(),
            site.hit_visitor("w").await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
        }
        assert_eq!(kind(options(&clock).open(&store, NAME).await), ErrorKind::Absent);
        let again = open(&store, &clock).await;
        assert_eq!(kind(site.hit().await), ErrorKind::Lost);
        assert_eq!((again.get().await.unwrap(), again.current().await.unwrap()), (0, 0));
    }
}

/// 8 processes behind a network that cuts, loses and delivers late, over three windows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_behind_a_failing_network() {
    for (version, dialect) in COLUMNS {
        let seed = fastrand::u64(..);
        println!("{version:?} {dialect}, seed {seed}");
        let server = Memcached::start(version, &[]);
        let direct = client(server.addr(), "").await;
        let clock = clock();
        let reader = open(&direct, &clock).await;
        let proxy = Proxy::start(server.addr());
        let mut handles = Vec::new();
        for _ in 0..8 {
            let store = client(proxy.addr(), &format!("dialect={dialect}&timeout_ms=500")).await;
            handles.push(options(&clock).timeout(Duration::from_secs(30)).open(&store, NAME).await.unwrap());
        }
        proxy.random(seed, bad_network(0.03));
        for _ in 0..2 {
            let mut tasks = tokio::task::JoinSet::new();
            for (task, site) in handles.iter().cloned().enumerate() {
                tasks.spawn(hits(site, task));
            }
            let outcomes = tasks.join_all().await;
            let (counted, unknown) = outcomes.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            // What is still held back on the way arrives.
            tokio::time::sleep(Duration::from_millis(150)).await;
            clock.advance(PERIOD);
            // 30 that all have named, and 30 of each of the 8.
            let found = reader.get().await.unwrap() - 30 - 8 * 30;
            assert!((counted..=counted + unknown).contains(&found), "{found} of {counted} and {unknown}, seed {seed}");
            assert!(counted > 8 * 60 / 2, "{counted}");
        }
        assert!(proxy.counts().faults() > 20, "{:?}", proxy.counts());
    }
}

/// Hits of both kinds; how many counted, and of how many it is not known. Those that name their visitor must be settled.
async fn hits(site: Visitors, task: usize) -> (u64, u64) {
    let (mut counted, mut unknown) = (0, 0);
    for n in 0..60 {
        match site.hit().await {
            Ok(()) => counted += 1,
            Err(error) if error.is_unknown() => unknown += 1,
            Err(error) => assert_eq!(error.known_effect(), Effect::NotApplied),
        }
        let id = if n % 2 == 0 { format!("all {n}") } else { format!("{task} {n}") };
        let mut tries = 0;
        // To try again does no harm, to callers neither.
        while let Err(error) = site.hit_visitor(&id).await {
            tries += 1;
            assert!(tries < 20, "{error}");
        }
    }
    (counted, unknown)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_nine_commands_carries_visitors_and_their_windows_are_removed() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    assert!(!store.profile().cas);
    let clock = clock();
    let period = Duration::from_secs(60);
    let site = options(&clock).period(period).shards(1).open_or_create(&store, NAME).await.unwrap();
    for _ in 0..60 {
        site.hit_many(2).await.unwrap();
        site.hit_visitor("v").await.unwrap();
        site.hit_visitor("w").await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        clock.advance(period);
        assert_eq!(site.get().await.unwrap(), 4);
    }
    // Windows are in use for 3 minutes, and for ten more by somebody's clock; 16 entries wait to be removed.
    for _ in 0..100 {
        if !is_there(&store, &key(&store, START_S / 60 + 10, None).await).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for (window, there) in [(0, false), (20, false), (59, true)] {
        assert_eq!(is_there(&store, &key(&store, START_S / 60 + window, None).await).await, there, "window {window}");
        assert_eq!(
            is_there(&store, &key(&store, START_S / 60 + window, Some(0)).await).await,
            there,
            "window {window}"
        );
    }
}
