//! What each deed does to each server, and that what it may take is counted before.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;
use larder_testkit::history::Caused;
use larder_testkit::nemesis::{Cache, Deed, Nemesis, Pair, Partitioned, Redis, Several, Small, Trouble, Victim, draw};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

/// What a memcached says to a request.
fn ask(addr: SocketAddr, request: &str) -> String {
    ask_each(addr, &[request])
}

/// Asks one after the other, over one connection; what was answered to the last.
fn ask_each(addr: SocketAddr, requests: &[&str]) -> String {
    let mut stream = TcpStream::connect(addr).expect("a server that listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    let mut answer = String::new();
    for request in requests {
        stream.write_all(request.as_bytes()).expect("a server that reads");
        let mut reply = [0; 8192];
        let read = stream.read(&mut reply).expect("an answer");
        answer = String::from_utf8_lossy(&reply[..read]).into_owned();
    }
    answer
}

fn put(addr: SocketAddr) {
    assert_eq!(ask(addr, "set k 0 0 1\r\nv\r\n"), "STORED\r\n");
}

fn is_there(addr: SocketAddr) -> bool {
    ask(addr, "get k\r\n").starts_with("VALUE")
}

/// Has a victim suffer a deed to its end; returns the losses and setbacks it counted.
fn suffer(victim: &mut impl Victim, deed: Deed) -> (u64, u64) {
    let caused = Caused::default();
    victim.suffer(deed, &mut Rng::with_seed(7), &caused);
    victim.settle(&caused);
    (caused.losses.load(Ordering::SeqCst), caused.setbacks.load(Ordering::SeqCst))
}

#[test]
fn memcached_loses_by_a_kill_and_by_flushes_and_by_nothing_else() {
    let server = Memcached::start(Version::New, &[]);
    let addr = server.addr();
    let mut victim = Cache::new(server);
    for deed in victim.mild().into_iter().chain(victim.grave()) {
        put(addr);
        let is_grave = victim.grave().contains(&deed);
        assert_eq!(suffer(&mut victim, deed), (u64::from(is_grave), 0), "{deed:?}");
        assert_eq!(is_there(addr), !is_grave, "{deed:?}");
    }
}

#[test]
fn of_several_one_loses_and_the_others_keep_what_they_have() {
    let servers: Vec<Memcached> = (0..3).map(|_| Memcached::start(Version::New, &[])).collect();
    let addrs: Vec<SocketAddr> = servers.iter().map(Memcached::addr).collect();
    let mut victim = Several::new(servers);
    for deed in [Deed::Kill, Deed::Flush, Deed::FlushLater] {
        addrs.iter().for_each(|addr| put(*addr));
        assert_eq!(suffer(&mut victim, deed), (1, 0), "{deed:?}");
        assert_eq!(addrs.iter().filter(|addr| is_there(**addr)).count(), 2, "{deed:?}");
    }
}

#[test]
fn a_small_memcached_evicts_or_refuses() {
    let server = Memcached::start(Version::New, &["-m", "2"]);
    let addr = server.addr();
    let mut victim = Small::new(server, true);
    assert_eq!((victim.grave(), suffer(&mut victim, Deed::Fill)), (vec![Deed::Fill], (1, 0)));
    let evictions = |stats: &str| stats.contains("STAT evictions ") && !stats.contains("STAT evictions 0\r\n");
    let mut stream = TcpStream::connect(addr).expect("a server that listens");
    stream.write_all(b"stats\r\nquit\r\n").expect("a server that reads");
    let mut stats = String::new();
    stream.read_to_string(&mut stats).expect("statistics");
    assert!(evictions(&stats), "{stats}");

    let server = Memcached::start(Version::New, &["-m", "2", "-M"]);
    let addr = server.addr();
    let mut victim = Small::new(server, false);
    put(addr);
    assert!(victim.grave().is_empty());
    assert_eq!(suffer(&mut victim, Deed::Fill), (0, 0));
    assert!(is_there(addr));
    // It was full, and has room again.
    put(addr);
}

#[test]
fn redis_keeps_over_a_kill_what_it_saved() {
    for keeps in [false, true] {
        let options = if keeps { RedisOptions::new().appendonly() } else { RedisOptions::new() };
        let server = RedisServer::start(RedisVersion::Valkey, &options);
        let addr = server.addr();
        let mut victim = Redis::new(server, keeps);
        for deed in [Deed::Stop, Deed::Kill, Deed::Flush] {
            assert_eq!(ask(addr, "SET k v\r\n"), "+OK\r\n");
            let is_grave = victim.grave().contains(&deed);
            assert_eq!(suffer(&mut victim, deed), (u64::from(is_grave), 0), "{deed:?}");
            assert_eq!(ask(addr, "EXISTS k\r\n"), if is_grave { ":0\r\n" } else { ":1\r\n" }, "{deed:?}");
        }
    }
}

#[test]
fn a_pair_fails_over_to_a_replica_that_fell_behind() {
    let mut pair = Pair::start(RedisVersion::Redis7, 2);
    let proxies = pair.proxies().to_vec();
    let mut before = ask(proxies[0].addr(), "INFO server\r\n");
    for _ in 0..2 {
        // The replica has it: `WAIT` speaks of what its own connection wrote.
        assert_eq!(ask_each(proxies[0].addr(), &["SET k v\r\n", "WAIT 1 5000\r\n"]), ":1\r\n");
        assert_eq!(suffer(&mut pair, Deed::FailOver), (1, 1));
        for proxy in &proxies {
            assert_eq!(ask(proxy.addr(), "GET k\r\n"), "$1\r\nv\r\n");
            assert!(ask(proxy.addr(), "ROLE\r\n").contains("master"));
        }
        let now = ask(proxies[0].addr(), "INFO server\r\n");
        assert_ne!(before, now);
        before = now;
    }
    assert_eq!(suffer(&mut pair, Deed::Stop), (0, 0));
}

#[test]
fn a_primary_that_is_stopped_or_cut_off_is_replaced_and_comes_back_as_a_replica() {
    let mut victim = Partitioned::new(RedisCluster::start(RedisVersion::Redis7), RedisVersion::Redis7);
    assert_eq!(suffer(&mut victim, Deed::Stop), (0, 0));
    // A failover is seen once more at the end: by the roles.
    assert_eq!(suffer(&mut victim, Deed::Outlast), (2, 2));
    // The places are changed back.
    assert_eq!(suffer(&mut victim, Deed::Partition), (1, 1));
}

#[test]
fn a_plan_is_carried_out_until_its_end_is_asked_for() {
    let caused = Arc::new(Caused::default());
    let server = Memcached::start(Version::New, &[]);
    let addr = server.addr();
    put(addr);
    let victim = Cache::new(server);
    let seed = (0..).find(|&seed| {
        let plan = draw(seed, &victim.mild(), &victim.grave(), 50);
        plan.iter().any(|step| step.deed == Deed::Kill)
    });
    let nemesis = Nemesis::begin(victim, seed.expect("a seed"), 50, Arc::clone(&caused));
    let start = Instant::now();
    while !nemesis.done().contains_key(&Deed::Kill) {
        assert!(start.elapsed() < Duration::from_secs(30), "the server was never killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    nemesis.end();
    nemesis.end();
    assert_eq!(caused.losses.load(Ordering::SeqCst), 1);
    assert!(!is_there(addr));
}
