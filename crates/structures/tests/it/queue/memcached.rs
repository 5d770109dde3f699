//! Queues and stacks on real memcached servers, old and new, and what they say on those that lack what they need.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{ErrorKind, StoreExt, StoreRef};
use larder_store_memcached::{Config, MemcachedStore};
use larder_structures::{Queue, QueueOptions};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::proxy::{Proxy, Rates};
use larder_testkit::servers::{Memcached, Version};

use crate::queue::support::{BOTH, LEASE, Line, key, small, text};

const VERSIONS: [Version; 2] = [Version::Old, Version::New];

/// A client of its own, with connections of its own: another process.
async fn client(addr: SocketAddr, options: &str) -> StoreRef {
    let config = Config::from_url(&format!("memcached://{addr}?{options}")).unwrap();
    Arc::new(MemcachedStore::connect(config).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_any_bytes_the_largest_and_many_at_once() {
    for version in VERSIONS {
        for kind in BOTH {
            let server = Memcached::start(version, &[]);
            let store = client(server.addr(), "").await;
            let line = Line::open(kind, &store, &QueueOptions::default()).await;
            let largest = vec![b'x'; line.item_bytes_max()];
            assert!(largest.len() > 1_048_000, "{}", largest.len());
            line.push_all([&b""[..], b"a\r\nb \0", &largest, b"\xff"]).await.unwrap();
            line.push_all((0..5_000u32).map(u32::to_be_bytes)).await.unwrap();
            assert_eq!(line.len().await.unwrap(), 5_004);
            let mut sizes: BTreeMap<usize, u32> = BTreeMap::new();
            for item in line.drain().await {
                *sizes.entry(item.len().min(100)).or_default() += 1;
            }
            assert_eq!(sizes.values().sum::<u32>(), 5_004, "{kind:?}, {version:?}");
            assert_eq!(line.len().await.unwrap(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_items_in_one_call() {
    let server = Memcached::start(Version::New, &["-m", "256"]);
    let store = client(server.addr(), "").await;
    let options = Queue::options().timeout(Duration::from_secs(60));
    let queue = options.open_or_create(&store, "q").await.unwrap();
    queue.push_all((0..1_000_000u32).map(u32::to_be_bytes)).await.unwrap();
    assert_eq!(queue.len().await.unwrap(), 1_000_000);
    for number in 0..100u32 {
        assert_eq!(queue.pop().await.unwrap().unwrap()[..], number.to_be_bytes());
    }
    assert_eq!(queue.len().await.unwrap(), 999_900);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_whose_consumer_died_comes_back_after_the_lease_by_the_servers_clock() {
    for version in VERSIONS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), "").await;
        let queue = Queue::open_or_create(&store, "q").await.unwrap();
        queue.push("job").await.unwrap();
        let sent = Instant::now();
        // A process of its own that is gone with all its connections.
        let dead = client(server.addr(), "").await;
        let claim = Queue::open(&dead, "q").await.unwrap().claim(Duration::from_secs(1)).await.unwrap().unwrap();
        let id = claim.id();
        drop((claim, dead));
        assert!(queue.claim(LEASE).await.unwrap().is_none(), "{version:?}");
        let again = loop {
            match queue.claim(LEASE).await.unwrap() {
                Some(claim) => break claim,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
            assert!(sent.elapsed() < Duration::from_secs(10), "{version:?}");
        };
        assert!(sent.elapsed() >= Duration::from_secs(1), "{:?} is less than the lease", sent.elapsed());
        assert_eq!((text(again.item()).as_str(), again.attempts()), ("job", 2));
        assert_eq!(queue.ack(id).await.unwrap_err().kind(), ErrorKind::Fenced);
        again.ack().await.unwrap();
        assert_eq!(queue.len().await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_push_to_a_removed_segment_goes_to_the_tail() {
    for (version, dialect) in VERSIONS.into_iter().flat_map(|version| [(version, ""), (version, "dialect=classic")]) {
        for kind in BOTH {
            let server = Memcached::start(version, &[]);
            let (one, two) = (client(server.addr(), dialect).await, client(server.addr(), dialect).await);
            let stale = Line::open(kind, &one, &small()).await;
            let busy = Line::open(kind, &two, &small()).await;
            let first = key(kind, &two, Some(0)).await;
            for n in 0..60 {
                busy.push(format!("item {n:03}")).await.unwrap();
            }
            assert_eq!(busy.drain().await.len(), 60);
            // What was drained is removed by the writes that follow.
            for _ in 0..3 {
                busy.push("x").await.unwrap();
                busy.pop().await.unwrap();
            }
            assert!(two.get(first).await.unwrap().is_none(), "{kind:?}: segment 0 is there");
            stale.push("late").await.unwrap();
            assert_eq!(busy.drain().await, ["late"], "{kind:?}, {version:?} {dialect}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flushed_server_is_a_loss_and_not_an_empty_queue() {
    for kind in BOTH {
        let server = Memcached::start(Version::New, &[]);
        let store = client(server.addr(), "").await;
        let line = Line::open(kind, &store, &small()).await;
        line.push("a").await.unwrap();
        let segment = key(kind, &store, Some(0)).await;
        for key in [key(kind, &store, None).await, segment] {
            store.delete(key).await.unwrap();
        }
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(line.push("b").await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_lack_what_it_needs_are_refused_by_name() {
    let bare = ClassicFake::start();
    let store = client(bare.addr(), "").await;
    for kind in BOTH {
        let error = Line::try_open(kind, &store, &QueueOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cas"), "{error}");
    }
}

/// What a task pushed for certain, and how often it was given what.
#[derive(Default)]
struct Known {
    pushed: Vec<String>,
    given: Vec<String>,
    /// Acknowledged for certain.
    done: Vec<String>,
}

/// 8 tasks over 2 clients behind a proxy that cuts, loses and delivers late: each pushes, claims and acknowledges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_behind_a_bad_network() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for version in VERSIONS {
        for kind in BOTH {
            let server = Memcached::start(version, &[]);
            let proxy = Proxy::start(server.addr());
            let clients = [client(proxy.addr(), "timeout_ms=300").await, client(proxy.addr(), "timeout_ms=300").await];
            // Large enough that a segment outlives the longest delay: see what `queue` says of late requests.
            let large = QueueOptions::default().timeout(Duration::from_secs(30));
            let handles = [Line::open(kind, &clients[0], &large).await, Line::open(kind, &clients[1], &large).await];
            let direct = Line::open(kind, &client(server.addr(), "").await, &large).await;
            let rates = Rates {
                lost_request: 0.02,
                lost_reply: 0.02,
                late_delivery: 0.02,
                cut_request: 0.01,
                cut_reply: 0.01,
                late_ms_max: 50,
                ..Rates::default()
            };
            proxy.random(seed, rates);
            let tasks: Vec<_> =
                (0..8u64).map(|task| tokio::spawn(work(handles[task as usize % 2].clone(), task))).collect();
            let mut known = Known::default();
            for task in tasks {
                let task = task.await.unwrap();
                known.pushed.extend(task.pushed);
                known.given.extend(task.given);
                known.done.extend(task.done);
            }
            assert!(proxy.counts().faults() > 5, "{:?}", proxy.counts());
            // What is still held back on the way arrives.
            tokio::time::sleep(Duration::from_millis(150)).await;
            let until = Instant::now() + Duration::from_secs(30);
            while direct.len().await.unwrap() > 0 {
                assert!(Instant::now() < until, "{:?}; {kind:?}, seed {seed}", direct.stat().await);
                match direct.pop().await.unwrap() {
                    Some(item) => known.given.push(text(&item)),
                    None => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
            let column = format!("{kind:?}, {version:?}, seed {seed}");
            let stat = direct.stat().await;
            assert_eq!((stat.segments_lost, stat.segments_missing, stat.items_lost), (0, 0, 0), "{column}");
            for item in &known.pushed {
                assert!(known.given.contains(item), "{item} is lost; {column}");
            }
            let mut times: BTreeMap<&String, u32> = BTreeMap::new();
            for item in &known.done {
                *times.entry(item).or_default() += 1;
            }
            times.retain(|_, times| *times > 1);
            assert!(times.len() <= known.pushed.len() / 20, "acknowledged more than once: {times:?}; {column}");
        }
    }
}

async fn work(line: Line, task: u64) -> Known {
    let mut known = Known::default();
    for n in 0..40 {
        let item = format!("{task} {n:03}");
        if line.push(&item).await.is_ok() {
            known.pushed.push(item);
        }
        // What a lost reply leaves open comes back after this.
        if let Ok(Some(claim)) = line.claim(Duration::from_secs(2)).await {
            known.given.push(text(claim.item()));
            if claim.ack().await.is_ok() {
                known.done.push(text(claim.item()));
            }
        }
    }
    known
}

/// Without faults nothing is delivered twice, whoever pushes and takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_healthy_tasks_on_two_clients_lose_and_repeat_nothing() {
    for kind in BOTH {
        let server = Memcached::start(Version::New, &[]);
        let handles = [
            Line::open(kind, &client(server.addr(), "").await, &small()).await,
            Line::open(kind, &client(server.addr(), "connections=3").await, &small()).await,
        ];
        let tasks: Vec<_> =
            (0..8u64).map(|task| tokio::spawn(work(handles[task as usize % 2].clone(), task))).collect();
        let mut times: BTreeMap<String, u32> = BTreeMap::new();
        for task in tasks {
            let known = task.await.unwrap();
            assert_eq!((known.pushed.len(), known.given.len()), (40, known.done.len()));
            for item in known.done {
                *times.entry(item).or_default() += 1;
            }
        }
        for item in handles[0].drain().await {
            *times.entry(item).or_default() += 1;
        }
        assert_eq!(times.len(), 320, "{kind:?}");
        times.retain(|_, times| *times > 1);
        assert!(times.is_empty(), "{kind:?}: {times:?}");
    }
}

/// The server tells nothing: whoever waits looks, 250 ms apart at the most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_claim_ends_within_the_bound_of_its_looks() {
    for (version, url) in [(Version::Old, ""), (Version::New, ""), (Version::New, "dialect=classic")] {
        let server = Memcached::start(version, &[]);
        let (producer, consumer) = (client(server.addr(), url).await, client(server.addr(), url).await);
        let pushed = Queue::open_or_create(&producer, "jobs").await.unwrap();
        let taken = Queue::open(&consumer, "jobs").await.unwrap();
        let begun = Instant::now();
        assert!(taken.pop_within(Duration::from_millis(300)).await.unwrap().is_none());
        assert!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
        let waiting = tokio::spawn(async move {
            let claim = taken.claim_within(Duration::from_secs(60), Duration::from_secs(60)).await.unwrap();
            (claim.expect("an item").item().clone(), Instant::now())
        });
        tokio::time::sleep(Duration::from_millis(600)).await;
        let at = Instant::now();
        pushed.push("a").await.unwrap();
        let (item, ended) = waiting.await.unwrap();
        assert_eq!(item, "a");
        // The bound is 250 ms; the rest is for a machine that is busy.
        let waited = ended.saturating_duration_since(at);
        assert!(waited < Duration::from_secs(2), "{version:?} {url}: {waited:?}");
    }
}
