//! The one task that dials a server, while its dials fail.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::*;
use larder_core::{Op, PutMode, Ttl, Want};
use larder_store_memcached::MemcachedStore;
use larder_testkit::servers::{Memcached, Version};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Leads to a server, or ends each connection at once; which of the two, and when those that stand end, a test says.
#[derive(Default)]
struct Gate {
    is_shut: AtomicBool,
    dials: AtomicUsize,
    standing: Mutex<Vec<Arc<Notify>>>,
}

impl Gate {
    async fn before(server: SocketAddr) -> (Arc<Gate>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let gate = Arc::new(Gate::default());
        let opened = gate.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                opened.dials.fetch_add(1, Ordering::Relaxed);
                if opened.is_shut.load(Ordering::Relaxed) {
                    continue;
                }
                let cut = Arc::new(Notify::new());
                opened.standing.lock().unwrap().push(cut.clone());
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = cut.notified() => {}
                    }
                });
            }
        });
        (gate, addr)
    }

    /// Ends the connection that has stood the longest.
    fn cut(&self) {
        self.standing.lock().unwrap().remove(0).notify_one();
    }

    /// Lets nobody in, and waits until dials have failed so often that the next is far off.
    async fn shut(&self, store: &MemcachedStore) {
        self.is_shut.store(true, Ordering::Relaxed);
        let failed = store.stats().dials_failed;
        self.cut();
        while store.stats().dials_failed < failed + 7 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_waits_for_the_next_dial_hears_that_its_store_was_dropped() {
    let server = Memcached::start(Version::New, &[]);
    let (gate, addr) = Gate::before(server.addr()).await;
    let store = open(&format!("memcached://{addr}?connections=2")).await;
    wait_for(|| store.stats().connections == 2).await;
    gate.shut(&store).await;
    let dials = gate.dials.load(Ordering::Relaxed);
    drop(store);
    // As long as it waits at the most.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert!(gate.dials.load(Ordering::Relaxed) <= dials + 1, "it dials on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_waits_for_the_next_dial_hears_that_another_connection_was_lost() {
    let server = Memcached::start(Version::New, &[]);
    let (gate, addr) = Gate::before(server.addr()).await;
    let store = open(&format!("memcached://{addr}?connections=2&timeout_ms=5000")).await;
    for round in 1..=3 {
        wait_for(|| store.stats().connections == 2 * round).await;
        gate.shut(&store).await;
        gate.is_shut.store(false, Ordering::Relaxed);
        gate.cut();
        let lost = Instant::now();
        while let Err(error) = one(&store, Op::get(key("k"), Want::VALUE)).await {
            assert!(lost.elapsed() < Duration::from_secs(10), "{error}");
        }
        let (took, limit) = (lost.elapsed(), Duration::from_millis(300));
        assert!(took < limit, "round {round}: nobody dialled for {took:?} while there was no connection");
    }
}

async fn wait_for(done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "it does not come to that");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A batch goes over the connection of its first key, a single op over that of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_is_read_over_whichever_connection() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&format!("{}?connections=4", server.url())).await;
    let names: Vec<String> = (0..16).map(|at| format!("k{at}")).collect();
    for round in 0..100 {
        let puts = names.iter().map(|name| Op::put(key(name), PutMode::Set, format!("{round}"), Ttl::Never));
        assert!(all(&store, puts).await.iter().all(Result::is_ok));
        for name in &names {
            assert_eq!(value(&store, name).await.unwrap(), format!("{round}"), "{name}");
        }
    }
}
