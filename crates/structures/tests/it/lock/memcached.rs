//! The lock on real memcached servers, old and new, in every dialect. Time is real here, so leases are short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_core::{Ctx, ErrorKind, StoreRef};
use larder_store_memcached::{Config, MemcachedStore};
use larder_structures::lock::{Lock, LockStatus, Loss, Released};
use larder_structures::{Kind, Name, registry};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::servers::{Memcached, Version};

use crate::lock::support::{Gate, Pass, SECOND, life_left};
use crate::support::memcached::{COLUMNS, client};
use crate::support::steady::metered;

const NAME: &[u8] = b"n\xff\n";

async fn open(store: &StoreRef, lease_ms: u64) -> Lock {
    Lock::options().lease(Duration::from_millis(lease_ms)).label("test").open(store, NAME).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_of_two_clients_lose_no_increment() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let total = Arc::new(AtomicU64::new(0));
        let last_token = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..2 {
            let lock = open(&client(server.addr(), &format!("dialect={dialect}")).await, 10_000).await;
            for _ in 0..4 {
                let (lock, total, last_token) = (lock.clone(), total.clone(), last_token.clone());
                tasks.push(tokio::spawn(async move {
                    for _ in 0..50 {
                        let guard = lock.acquire(60 * SECOND).await.unwrap();
                        assert!(last_token.swap(guard.fencing_token(), Ordering::SeqCst) < guard.fencing_token());
                        let seen = total.load(Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        total.store(seen + 1, Ordering::SeqCst);
                        assert_eq!(guard.release().await.unwrap(), Released::Released);
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(total.load(Ordering::SeqCst), 400, "{version:?} {dialect}");
    }
}

#[tokio::test]
async fn every_write_gives_the_record_a_life_of_thirty_days() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        // The classic dialect cannot tell lives: another client looks.
        let direct = client(server.addr(), "").await;
        let key = Name::new(NAME).unwrap().manifest_key().unwrap();
        let month = 30 * 24 * 3600 * SECOND;
        let is_whole = async || {
            let left = life_left(&direct, &key).await;
            assert!(left <= month && left >= month - 3 * SECOND, "{left:?}, {version:?} {dialect}");
        };
        let lock = open(&client(server.addr(), &format!("dialect={dialect}")).await, 60_000).await;
        let guard = lock.try_acquire().await.unwrap().unwrap();
        is_whole().await;
        guard.renew().await.unwrap();
        is_whole().await;
        guard.release().await.unwrap();
        is_whole().await;
        let _guard = lock.try_acquire().await.unwrap().unwrap();
        is_whole().await;
        lock.force_release().await.unwrap();
        is_whole().await;
    }
}

#[tokio::test]
async fn round_trips_are_those_of_the_documents() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = metered(client(server.addr(), &format!("dialect={dialect}")).await);
        let counted: StoreRef = Arc::new(store.clone());
        let lock = open(&counted, 10_000).await;
        let guard = lock.try_acquire().await.unwrap().unwrap();
        guard.renew().await.unwrap();
        guard.release().await.unwrap();
        lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
        lock.status().await.unwrap();
        assert_eq!(store.counts().round_trips, 1 + 4 + 2 + 1, "{version:?} {dialect}");
        let other = open(&counted, 10_000).await;
        other.try_acquire().await.unwrap().unwrap().release().await.unwrap();
        let before = store.counts().round_trips;
        let _guard = lock.try_acquire().await.unwrap().unwrap();
        assert_eq!(store.counts().round_trips - before, 2, "{version:?} {dialect}: another wrote last");
    }
}

#[tokio::test]
async fn a_fresh_process_takes_a_dead_holders_lock_at_once_by_the_servers_clock() {
    let lease = 2 * SECOND;
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let gate = Gate::new(&client(server.addr(), "dialect=auto").await);
        let gated: StoreRef = gate.clone();
        let dead = open(&gated, 2_000).await.try_acquire().await.unwrap().unwrap();
        gate.set(Pass::HangBefore);
        assert!(open(&client(server.addr(), "dialect=auto").await, 2_000).await.try_acquire().await.unwrap().is_none());
        assert_eq!(dead.lost().await, Loss::LeaseOver);
        // The server counts whole seconds, so it can tell a second and a tick later.
        tokio::time::sleep(2 * SECOND + Duration::from_millis(300)).await;
        let lock = open(&client(server.addr(), "dialect=auto").await, 2_000).await;
        let LockStatus::Held(holder) = lock.status().await.unwrap() else { panic!("nobody freed it") };
        assert!(holder.is_dead() && holder.lease == lease, "{holder:?}");
        let before = Instant::now();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        assert!(before.elapsed() < SECOND / 2, "{:?}", before.elapsed());
        assert!(guard.fencing_token() > dead.fencing_token());
    }
}

#[tokio::test]
async fn the_classic_dialect_observes_for_one_lease() {
    let server = Memcached::start(Version::Old, &[]);
    let gate = Gate::new(&client(server.addr(), "dialect=classic").await);
    let gated: StoreRef = gate.clone();
    let dead = open(&gated, 1_000).await.try_acquire().await.unwrap().unwrap();
    gate.set(Pass::HangBefore);
    let lock = open(&client(server.addr(), "dialect=classic").await, 1_000).await;
    let before = Instant::now();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    assert!((SECOND..2 * SECOND).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert!(!dead.is_held() && guard.is_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_holder_is_never_robbed() {
    // Side by side, since each takes its time.
    let columns: Vec<_> =
        COLUMNS.into_iter().map(|(version, dialect)| tokio::spawn(robbery(version, dialect))).collect();
    for column in columns {
        column.await.unwrap();
    }
}

async fn robbery(version: Version, dialect: &'static str) {
    let server = Memcached::start(version, &[]);
    let store = client(server.addr(), &format!("dialect={dialect}")).await;
    // Five seconds' worth of ticks of the server's clock, fifteen renewals.
    let guard = open(&store, 1_000).await.try_acquire().await.unwrap().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let robber = tokio::spawn({
        let (store, over) = (client(server.addr(), &format!("dialect={dialect}")).await, over.clone());
        async move {
            let mut tries = 0;
            while !over.load(Ordering::SeqCst) {
                // A fresh handle each time knows nothing but what the server tells.
                if let Some(_robbed) = open(&store, 1_000).await.try_acquire().await.unwrap() {
                    return None;
                }
                tries += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Some(tries)
        }
    });
    tokio::time::sleep(5 * SECOND).await;
    assert!(guard.is_held());
    over.store(true, Ordering::SeqCst);
    assert!(robber.await.unwrap().is_some_and(|tries| tries > 5), "{version:?} {dialect}: robbed, or no try");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_server_that_restarts_loses_the_lock_and_everybody_learns() {
    for (version, dialect) in COLUMNS {
        let mut server = Memcached::start(version, &[]);
        let lock = open(&client(server.addr(), &format!("dialect={dialect}")).await, 3_000).await;
        let guard = lock.try_acquire().await.unwrap().unwrap();
        server.restart();
        assert_eq!(guard.lost().await, Loss::Gone, "{version:?} {dialect}");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Lost);
        let fresh = open(&client(server.addr(), &format!("dialect={dialect}")).await, 3_000).await;
        assert_eq!(fresh.status().await.unwrap(), LockStatus::Absent);
        let before = Instant::now();
        let guard = lock.acquire(10 * SECOND).await.unwrap();
        assert!((2 * SECOND..5 * SECOND).contains(&before.elapsed()), "{:?}", before.elapsed());
        assert!(guard.is_held());
    }
}

#[tokio::test]
async fn a_server_that_stands_still_past_the_lease_ends_it_in_time() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        // The margin is a tenth of the lease: what a loaded machine may be late by.
        let guard = open(&store, 3_000).await.try_acquire().await.unwrap().unwrap();
        server.stop();
        let before = Instant::now();
        let error = guard.run(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert!(before.elapsed() < 3 * SECOND, "{:?}", before.elapsed());
        server.cont();
        // What it sent before may land now; the lock can be had all the same.
        drop(guard);
        let next = open(&client(server.addr(), &format!("dialect={dialect}")).await, 3_000)
            .await
            .acquire(10 * SECOND)
            .await
            .unwrap();
        assert!(next.is_held());
    }
}

#[tokio::test]
async fn a_lock_that_is_dropped_is_lost_to_its_holder() {
    let server = Memcached::start(Version::New, &[]);
    let store = client(server.addr(), "dialect=auto").await;
    let guard = open(&store, 1_000).await.try_acquire().await.unwrap().unwrap();
    let name = Name::new(NAME).unwrap();
    let dropped = registry::drop_structure(&store, Ctx::default(), &name).await.unwrap();
    assert_eq!(dropped.unwrap().kind, Kind::Lock);
    assert_eq!(guard.lost().await, Loss::Gone);
}

#[tokio::test]
async fn a_server_without_cas_is_refused() {
    let server = ClassicFake::start();
    let config = Config::from_url(&server.url()).unwrap();
    let store: StoreRef = Arc::new(MemcachedStore::connect(config).await.unwrap());
    let error = Lock::open(&store, "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("needs conditional writes (cas)"), "{error}");
}
