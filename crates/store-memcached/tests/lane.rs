//! The read lane: it comes when many read at once, it carries what may go over it and nothing else, and nobody notices when it goes.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use larder_core::{Batch, Ctx, Effect, ErrorKind, Op, PutMode, Reply, Store, StoreExt, Ttl, Want};
use larder_store_memcached::{MemcachedStore, fleet};
use larder_testkit::proxy::{Fault, Proxy, Then};
use larder_testkit::servers::{Memcached, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Keys that are read by many.
const KEYS: usize = 64;

/// Many reads at a time, each of which must find its value.
async fn read_much(store: &MemcachedStore, rounds: usize) {
    for _ in 0..rounds {
        let reads = (0..KEYS).map(|at| {
            let store = &store;
            async move { assert_eq!(value(store, format!("k{at}")).await.unwrap(), format!("v{at}")) }
        });
        all_at_once(reads.collect()).await;
    }
}

async fn all_at_once(runs: Vec<impl Future<Output = ()>>) {
    let mut runs: Vec<_> = runs.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        runs.retain_mut(|run| run.as_mut().poll(cx).is_pending());
        if runs.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// Reads until the store has opened so many lanes.
async fn read_until_lanes(store: &MemcachedStore, lanes: u64) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.stats().lanes < lanes {
        assert!(Instant::now() < deadline, "there are {:?}", store.stats());
        read_much(store, 10).await;
    }
}

async fn fill(store: &MemcachedStore) {
    for at in 0..KEYS {
        set(store, format!("k{at}"), format!("v{at}")).await;
    }
}

/// A store whose home is the proxy's connection 0, its first lane 1.
async fn scene(options: &str) -> (Memcached, Proxy, MemcachedStore) {
    let server = Memcached::start(Version::New, &[]);
    fill(&open(&server.url()).await).await;
    let proxy = Proxy::start(server.addr());
    let store = open(&format!("memcached://{}?{options}", proxy.addr())).await;
    (server, proxy, store)
}

#[tokio::test]
async fn a_lane_comes_with_many_reads_at_a_time_and_not_before() {
    let server = Memcached::start(Version::Old, &[]);
    let store = open(&server.url()).await;
    fill(&store).await;
    for _ in 0..3_000 {
        assert_eq!(value(&store, "k7").await.unwrap(), "v7");
    }
    // A burst now and then is no reason either.
    read_much(&store, 10).await;
    assert_eq!((store.stats().connections, store.stats().lanes), (1, 0));
    read_until_lanes(&store, 1).await;
    read_much(&store, 100).await;
    assert_eq!((store.stats().connections, store.stats().lanes), (2, 1));

    let single = open(&format!("{}?connections=1", server.url())).await;
    read_much(&single, 200).await;
    assert_eq!(single.stats().connections, 1);
}

/// How a caller gives up.
#[derive(Clone, Copy, Debug)]
enum GivesUp {
    AtDeadline,
    Drops,
}

#[tokio::test]
async fn a_read_is_behind_a_write_whose_caller_gave_up() {
    const HELD_MS: u64 = 1_500;
    for how in [GivesUp::AtDeadline, GivesUp::Drops] {
        let (_server, proxy, store) = scene("timeout_ms=5000").await;
        read_until_lanes(&store, 1).await;
        set(&store, "k", "old").await;

        // The write is held, and with it all that comes behind it on home.
        proxy.next(Fault::Delay { ms: HELD_MS });
        let start = Instant::now();
        let write = Op::put(key("k"), PutMode::Set, "new", Ttl::Never);
        match how {
            GivesUp::AtDeadline => {
                let error = store.run_one(Ctx::within(Duration::from_millis(50)), write).await.unwrap_err();
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown));
            }
            GivesUp::Drops => {
                let given_up = tokio::time::timeout(Duration::from_millis(50), one(&store, write)).await;
                assert!(given_up.is_err());
            }
        }
        let busy = (0..10).map(|at| Op::put(key(format!("busy{at}")), PutMode::Set, "", Ttl::Never));
        let busy = all(&store, busy);
        let (busy, ()) = tokio::join!(busy, async {
            tokio::task::yield_now().await;
            // Home is busy, and other reads go round it (but for keys that share a place with one that is written; these do not).
            for at in 0..4 {
                assert_eq!(value(&store, format!("k{at}")).await.unwrap(), format!("v{at}"));
            }
            assert!(start.elapsed() < Duration::from_millis(HELD_MS / 2), "{how:?}: {:?}", start.elapsed());
            // Not those of the key, alone or among others.
            let alone = value(&store, "k");
            let among = all(&store, ["k1", "k"].map(|k| Op::get(key(k), Want::VALUE)));
            let (alone, among) = tokio::join!(alone, among);
            assert_eq!(alone.unwrap(), "new", "{how:?}: read before the write that was sent before it");
            assert!(matches!(&among[1], Ok(Reply::Item(item)) if item.value == "new"), "{how:?}: {among:?}");
            assert!(start.elapsed() >= Duration::from_millis(HELD_MS), "{how:?}: {:?}", start.elapsed());
        });
        assert!(busy.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
        assert_eq!((store.stats().connections, store.stats().reconnects), (2, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_carries_nothing_but_reads_without_a_token() {
    for dialect in ["auto", "classic"] {
        let (_server, proxy, store) = scene(&format!("dialect={dialect}")).await;
        let seen: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let note = seen.clone();
        proxy.script(0, move |moment, _| {
            if moment.connection > 0 {
                note.lock().unwrap().push(moment.bytes.to_vec());
            }
            Fault::Pass
        });
        let store = Arc::new(store);
        let work = (0..KEYS).map(|at| {
            let store = store.clone();
            tokio::spawn(async move {
                let mine = key(format!("k{at}"));
                for round in 0..200 {
                    let own = format!("v{at} of {round}");
                    let put = Op::put(mine.clone(), PutMode::Set, own.clone(), Ttl::Never);
                    assert_eq!(one(&store, put).await.unwrap(), Reply::Stored);
                    assert_eq!(value(&store, &mine.as_bytes()).await.unwrap(), own, "a read missed its caller's write");
                    let mixed = [Op::get(mine.clone(), Want::VALUE), Op::touch(mine.clone(), Ttl::Never)];
                    assert!(all(&store, mixed).await.iter().all(Result::is_ok));
                    let cas = token(&store, mine.as_bytes()).await;
                    let put = Op::put(mine.clone(), PutMode::Cas(cas), own, Ttl::Never);
                    assert_eq!(one(&store, put).await.unwrap(), Reply::Stored, "a token of home was not good there");
                }
            })
        });
        for work in work.collect::<Vec<_>>() {
            work.await.unwrap();
        }
        assert_eq!((store.stats().lanes, store.stats().reconnects), (1, 0), "{dialect}");
        let seen = seen.lock().unwrap().concat();
        let lines: Vec<&str> = std::str::from_utf8(&seen).unwrap().split_terminator("\r\n").collect();
        let is_read = |line: &&str| {
            line.starts_with("get k") || line.starts_with("mg k") && !line.split(' ').skip(2).any(|flag| flag == "c")
        };
        let is_greeting = |line: &&str| {
            ["version", "stats settings", "stats", "get L!fleet"].contains(line)
                || line.starts_with("gets L!probe")
                || line.starts_with("touch L!probe")
        };
        let others: Vec<_> = lines.iter().filter(|line| !is_read(line) && !is_greeting(line)).collect();
        assert!(others.is_empty(), "{dialect}: the lane carried {others:?}");
        assert!(lines.iter().filter(|line| is_read(line)).count() > 100, "{dialect}: the lane carried next to nothing");
    }
}

#[tokio::test]
async fn a_lane_claims_nothing() {
    let (server, _proxy, store) = scene("fleet=claim").await;
    let other = Memcached::start(Version::New, &[]);
    let _new = open(&format!("memcached://{},{}?fleet=claim", server.addr(), other.addr())).await;
    let truth = open(&format!("{}?fleet=ignore", server.url())).await;
    let claimed = value(&truth, fleet::KEY).await;
    assert!(claimed.is_some());
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.stats().lanes + store.stats().dials_failed == 0 {
        assert!(Instant::now() < deadline, "there are {:?}", store.stats());
        read_much(&store, 10).await;
    }
    assert_eq!(value(&truth, fleet::KEY).await, claimed, "the lane took the server back");
}

#[tokio::test]
async fn a_lane_that_breaks_fails_no_read_and_comes_again() {
    let (_server, proxy, store) = scene("").await;
    let breaks = Arc::new(AtomicBool::new(true));
    let script = breaks.clone();
    proxy.script(0, move |moment, _| {
        let is_read = moment.bytes.starts_with(b"mg k");
        match moment.connection > 0 && is_read && script.swap(false, Ordering::Relaxed) {
            true => Fault::LoseReply(Then::Close),
            false => Fault::Pass,
        }
    });
    read_until_lanes(&store, 2).await;
    assert!(!breaks.load(Ordering::Relaxed));
    read_much(&store, 100).await;
    let stats = store.stats();
    assert_eq!((stats.connections, stats.lanes, stats.reconnects), (3, 2, 0), "home went, too");
}

#[tokio::test]
async fn a_lane_that_falls_silent_is_avoided() {
    let (_server, proxy, store) = scene("timeout_ms=400").await;
    read_until_lanes(&store, 1).await;
    read_much(&store, 20).await;
    proxy.script(0, |moment, _| if moment.connection > 0 { Fault::Hang } else { Fault::Pass });
    let reads = |store| {
        let reads = (0..KEYS).map(|at| Op::get(key(format!("k{at}")), Want::VALUE));
        let runs = reads.map(move |op| async move { one(store, op).await });
        futures_of(runs.collect())
    };
    let first = reads(&store).await;
    let late = first.iter().filter(|reply| reply.is_err()).count();
    assert!(late > 0, "no read went over the lane");
    assert!(first.iter().all(|reply| reply.as_ref().map_or_else(|error| error.kind() == ErrorKind::Timeout, |_| true)));
    // It owes replies: until they come, nothing is sent there.
    for _ in 0..20 {
        assert!(reads(&store).await.iter().all(Result::is_ok));
    }
    assert_eq!((store.stats().lanes, store.stats().reconnects), (1, 0));
}

async fn futures_of<T>(runs: Vec<impl Future<Output = T>>) -> Vec<T> {
    let done = Mutex::new(Vec::new());
    let runs = runs.into_iter().map(|run| async {
        let outcome = run.await;
        done.lock().unwrap().push(outcome);
    });
    all_at_once(runs.collect()).await;
    done.into_inner().unwrap()
}

#[tokio::test]
async fn a_lane_that_cannot_be_had_is_done_without() {
    let (_server, proxy, store) = scene("").await;
    proxy.set(Fault::Close);
    let deadline = Instant::now() + Duration::from_secs(10);
    while store.stats().dials_failed == 0 {
        assert!(Instant::now() < deadline, "no lane was tried");
        read_much(&store, 20).await;
    }
    read_much(&store, 100).await;
    let stats = store.stats();
    assert_eq!((stats.connections, stats.lanes, stats.dials_failed), (1, 0, 1), "it is tried again without a rest");
}

#[tokio::test]
async fn a_lane_goes_with_its_home() {
    let (_server, proxy, store) = scene("").await;
    read_until_lanes(&store, 1).await;
    proxy.cut_all();
    wait_until_up(&store).await;
    fill(&store).await;
    // Home is another: a lane for that one.
    read_until_lanes(&store, 2).await;
    read_much(&store, 50).await;
    assert_eq!((store.stats().connections, store.stats().reconnects), (4, 1));
}

/// An address whose first connection reaches one server, and whose others another.
async fn balancer(first: SocketAddr, others: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut upstream = first;
        while let Ok((mut client, _)) = listener.accept().await {
            let to = std::mem::replace(&mut upstream, others);
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    addr
}

#[tokio::test]
async fn a_lane_that_reaches_another_server_is_not_used() {
    let servers = [Memcached::start(Version::New, &[]), Memcached::start(Version::New, &[])];
    fill(&open(&servers[0].url()).await).await;
    let addr = balancer(servers[0].addr(), servers[1].addr()).await;
    let store = open(&format!("memcached://{addr}")).await;
    let deadline = Instant::now() + Duration::from_secs(10);
    while store.stats().dials_failed == 0 {
        assert!(Instant::now() < deadline, "no lane was tried");
        read_much(&store, 20).await;
    }
    read_much(&store, 50).await;
    assert_eq!(store.stats().lanes, 0);
}

/// Keys would be on two servers, by the batch that they are in.
#[tokio::test]
async fn connections_that_reach_different_servers_are_not_used_side_by_side() {
    let mut first = Memcached::start(Version::New, &[]);
    let second = Memcached::start(Version::New, &[]);
    let addr = balancer(first.addr(), second.addr()).await;
    let store = open(&format!("memcached://{addr}?connections=2")).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.stats().dials_failed < 2 {
        assert!(Instant::now() < deadline, "there are {:?}", store.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    fill(&store).await;
    let gets = (0..KEYS).map(|at| Op::get(key(format!("k{at}")), Want::VALUE));
    for (at, reply) in all(&store, gets).await.into_iter().enumerate() {
        assert_eq!(reply.unwrap().into_item().expect("it is on the other server").value, format!("v{at}"));
    }
    assert_eq!(store.stats().connections, 1);

    // Where the one that was there first has gone, what comes next is taken, whoever it is.
    first.kill9();
    while store.stats().connections < 3 {
        assert!(Instant::now() < deadline, "there are {:?}", store.stats());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(value(&store, "k0").await, None);
}

#[tokio::test]
async fn a_fleet_has_a_lane_for_each_busy_server() {
    let servers: Vec<Memcached> = (0..2).map(|_| Memcached::start(Version::New, &[])).collect();
    let hosts: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let store = open(&format!("memcached://{}", hosts.join(","))).await;
    fill(&store).await;
    read_until_lanes(&store, 2).await;
    // Batches over both: whole, in order, and behind the writes before them.
    for round in 0..50 {
        let runs = (0..KEYS).map(|at| {
            let store = &store;
            async move {
                let keys: Vec<String> = (0..4).map(|step| format!("b{at}.{step}")).collect();
                let puts = keys.iter().map(|k| Op::put(key(k), PutMode::Set, format!("{k} {round}"), Ttl::Never));
                assert!(all(store, puts).await.iter().all(Result::is_ok));
                let gets: Batch = keys.iter().map(|k| Op::get(key(k), Want::VALUE)).collect();
                for (k, reply) in keys.iter().zip(store.run(Ctx::default(), gets).await) {
                    assert_eq!(reply.unwrap().into_item().unwrap().value, format!("{k} {round}"));
                }
            }
        });
        all_at_once(runs.collect()).await;
    }
    assert_eq!((store.stats().connections, store.stats().reconnects), (4, 0));
}

/// Callers that come at the same time share writes to the socket, and replies share reads.
#[tokio::test]
async fn what_many_ask_at_once_goes_in_a_few_writes() {
    let (_server, proxy, store) = scene("connections=1").await;
    read_much(&store, 1).await;
    let before = proxy.counts().chunks;
    const ROUNDS: u64 = 10;
    read_much(&store, ROUNDS as usize).await;
    let chunks = proxy.counts().chunks - before;
    assert!(chunks <= 4 * ROUNDS, "{chunks} chunks for {ROUNDS} times {KEYS} requests");
}

/// Passes a server on with another process id, as where each of several containers has its server as process 1.
async fn in_a_container(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = TcpStream::connect(server).await.unwrap().into_split();
                let requests = tokio::io::copy(&mut from_client, &mut to_server);
                let replies = async {
                    let mut said = Vec::new();
                    while from_server.read_buf(&mut said).await.is_ok_and(|bytes| bytes > 0) {
                        // Whole lines only; what is asked here has no binary values.
                        if said.ends_with(b"\r\n") {
                            let text = String::from_utf8(std::mem::take(&mut said)).unwrap();
                            let lines = text.split_inclusive("\r\n");
                            let lines =
                                lines.map(|line| if line.starts_with("STAT pid ") { "STAT pid 1\r\n" } else { line });
                            let lines: String = lines.collect();
                            if to_client.write_all(lines.as_bytes()).await.is_err() {
                                return;
                            }
                        }
                    }
                };
                tokio::select! {
                    _ = requests => {}
                    () = replies => {}
                }
            });
        }
    });
    addr
}

#[tokio::test]
async fn a_lane_that_reaches_another_server_with_the_same_process_id_is_not_used() {
    let first = Memcached::start(Version::New, &[]);
    fill(&open(&first.url()).await).await;
    // Servers tell their age in seconds.
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    let second = Memcached::start(Version::New, &[]);
    let addr = balancer(in_a_container(first.addr()).await, in_a_container(second.addr()).await).await;
    let store = open(&format!("memcached://{addr}?timeout_ms=10000")).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.stats().dials_failed == 0 {
        assert!(Instant::now() < deadline, "no lane was tried");
        assert_eq!(store.stats().lanes, 0, "it was taken for the same server");
        read_much(&store, 20).await;
    }
    read_much(&store, 50).await;
    assert_eq!(store.stats().lanes, 0);

    // The same one is known again, however old it is by then.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let contained = in_a_container(first.addr()).await;
    let store = open(&format!("memcached://{contained}?timeout_ms=10000")).await;
    read_until_lanes(&store, 1).await;
}
