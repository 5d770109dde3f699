//! Several servers: how keys are spread, what one that is down does to the others, and the fingerprint.

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::*;
use larder_core::{Effect, ErrorKind, Eviction, Op, PutMode, Reply, Route, Store, Ttl, TtlSupport, Want};
use larder_store_memcached::fleet;
use larder_testkit::proxy::Proxy;
use larder_testkit::servers::{Memcached, Version};

fn start(count: usize) -> Vec<Memcached> {
    (0..count).map(|i| Memcached::start(Version::ALL[i % 2], &[])).collect()
}

fn url(servers: &[Memcached], options: &str) -> String {
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    format!("memcached://{}?{options}", addresses.join(","))
}

fn get(k: &str) -> Op {
    Op::get(key(k), Want::VALUE)
}

#[tokio::test]
async fn a_batch_over_three_servers_keeps_its_order_in_one_round_trip_each() {
    let servers = start(3);
    for hash in ["rendezvous", "ketama"] {
        let store = open(&url(&servers, &format!("hash={hash}&fleet=claim"))).await;
        assert_eq!(store.profile().nodes, 3);
        assert_eq!(store.profile().store, "memcached 1.6.18 (meta13), 3 servers");
        let names: Vec<String> = (0..60).map(|i| format!("{hash}{i}")).collect();
        let puts = names.iter().map(|k| Op::put(key(k), PutMode::Add, k.clone(), Ttl::Never));
        assert!(all(&store, puts).await.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
        assert_eq!(store.stats().round_trips, 3);
        for (k, reply) in names.iter().zip(all(&store, names.iter().map(|k| get(k))).await) {
            assert_eq!(reply.unwrap().into_item().unwrap().value, k.as_bytes());
        }
        assert_eq!(store.stats().round_trips, 6);
        for server in &servers {
            assert!(server.stat("curr_items") > 5, "{hash}: a server has almost nothing");
        }
    }
}

#[tokio::test]
async fn one_dead_server_of_three_fails_its_own_ops_only() {
    let mut servers = start(3);
    let store = open(&url(&servers, "timeout_ms=500")).await;
    let names: Vec<String> = (0..60).map(|i| format!("k{i}")).collect();
    let puts = || names.iter().map(|k| Op::put(key(k), PutMode::Set, k.clone(), Ttl::Never));
    assert!(all(&store, puts()).await.iter().all(Result::is_ok));
    let dead = servers[1].addr().to_string();
    servers[1].kill9();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let start = Instant::now();
        let replies = all(&store, names.iter().map(|k| get(k))).await;
        let mut down = 0;
        for (k, reply) in names.iter().zip(&replies) {
            if store.server_of(&get(k)) == Some(&dead) {
                let error = reply.as_ref().unwrap_err();
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
                assert!(error.to_string().contains(&dead), "{error}");
                down += usize::from(error.detail().starts_with("down for"));
            } else {
                assert!(matches!(reply, Ok(Reply::Item(item)) if item.value == k.as_bytes()), "{k}: {reply:?}");
            }
        }
        if down > 5 {
            assert!(start.elapsed() < Duration::from_millis(200), "not refused at once: {:?}", start.elapsed());
            break;
        }
        assert!(Instant::now() < deadline);
    }
    // No failover: nobody else got the dead server's keys.
    assert_eq!(servers.iter().map(|server| server.addr().to_string()).filter(|addr| *addr == dead).count(), 1);
    servers[1].restart();
    let of_dead = names.iter().find(|k| store.server_of(&get(k)) == Some(&dead)).unwrap();
    while let Err(error) = one(&store, get(of_dead)).await {
        assert!(Instant::now() < deadline + Duration::from_secs(5), "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(value(&store, of_dead).await, None);
    // The restarted server carries the fingerprint again.
    let alone = refused(&format!("memcached://{dead}")).await;
    assert_eq!(alone.kind(), ErrorKind::Config, "{alone}");
}

#[tokio::test]
async fn a_fleet_with_a_server_down_connects_and_one_with_all_down_does_not() {
    let mut servers = start(2);
    servers[0].kill9();
    let store = open(&url(&servers, "")).await;
    assert_eq!(store.profile().nodes, 2);
    servers[1].kill9();
    let error = refused(&url(&servers, "")).await;
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
}

/// A server that was down at open may evict when it is back, and a structure that was opened meanwhile relies on what it was told.
#[tokio::test]
async fn a_server_that_is_down_counts_as_one_that_promises_nothing() {
    let up = Memcached::start(Version::New, &["-M"]);
    let mut servers = vec![up, Memcached::start(Version::New, &[])];
    assert!(!open(&url(&servers[..1], "")).await.profile().may_evict(), "the one that is up refuses when it is full");
    servers[1].kill9();
    let store = open(&url(&servers, "")).await;
    let down = store.profile();
    assert!(down.may_evict(), "{down:?}");
    assert_eq!(down.eviction, Eviction::Unknown);
    // What a server does not know it refuses by name, so that what the others can is offered.
    assert!(down.cas && down.arith_initial && down.ttl == TtlSupport::Seconds, "{down:?}");
    servers[1].restart();
    let deadline = Instant::now() + Duration::from_secs(10);
    while store.profile().eviction != Eviction::WhenFull {
        assert!(Instant::now() < deadline, "{:?}", store.profile());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// An op that puts a copy where nothing is.
fn copy(i: usize, rank: u8) -> Op {
    let route = Route { with: Some(key(format!("together{i}"))), rank };
    Op::put(key(format!("copy{i}")), PutMode::Add, "v", Ttl::Never).routed(route)
}

#[tokio::test]
async fn ranks_place_copies_on_different_servers() {
    let servers = start(3);
    let store = open(&url(&servers, "")).await;
    for i in 0..20 {
        let routed = |rank| copy(i, rank);
        // `add` succeeds on each, so they are three different servers.
        let replies = all(&store, (0..3).map(routed)).await;
        assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
        let error = one(&store, routed(3)).await.unwrap_err();
        assert!(error.to_string().contains("the limit is 2"), "{error}");
    }
    let together: HashMap<_, u32> = (0..50).fold(HashMap::new(), |mut seen, i| {
        let route = Route { with: Some(key("home")), rank: 0 };
        *seen.entry(store.server_of(&get(&format!("k{i}")).routed(route))).or_default() += 1;
        seen
    });
    assert_eq!(together.len(), 1, "keys of one routing key are spread");
}

#[tokio::test]
async fn a_client_with_another_list_is_refused_naming_both() {
    let servers = start(3);
    let _first = open(&url(&servers, "")).await;
    let _same_in_another_order =
        open(&format!("memcached://{},{},{}", servers[2].addr(), servers[0].addr(), servers[1].addr())).await;
    for other in
        [url(&servers[..2], ""), url(&servers[..1], ""), url(&servers, "hash=ketama"), url(&servers, "weights=1,2,1")]
    {
        let error = refused(&other).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{other}: {error}");
        let text = error.to_string();
        assert!(text.contains("ours is \"larder fleet 1") && text.contains("server's \"larder fleet 1"), "{text}");
        assert!(text.contains("fleet=claim"), "{text}");
    }
    let _ignoring = open(&url(&servers[..2], "fleet=ignore")).await;
    let claimed = open(&url(&servers[..2], "fleet=claim")).await;
    let _claimed_list = open(&url(&servers[..2], "")).await;
    assert_eq!(refused(&url(&servers, "")).await.kind(), ErrorKind::Config);
    drop(claimed);
    let _single = open(&url(&servers[..1], "fleet=claim")).await;
    let _now_single = open(&url(&servers[..1], "")).await;
}

/// A client that lives on with `fleet=claim` in its URL must not take the servers back each time that a connection breaks.
#[tokio::test]
async fn a_claim_is_made_once_and_not_again_at_each_dial() {
    let servers = start(3);
    let proxies = [Proxy::start(servers[0].addr()), Proxy::start(servers[1].addr())];
    let old = open(&format!("memcached://{},{}?fleet=claim", proxies[0].addr(), proxies[1].addr())).await;
    let _new = open(&url(&servers, "fleet=claim")).await;
    let single = open(&url(&servers[..1], "fleet=ignore")).await;
    let claimed = value(&single, fleet::KEY).await.unwrap();
    proxies[0].cut_all();
    let deadline = Instant::now() + Duration::from_secs(10);
    while old.stats().reconnects + old.stats().dials_failed == 0 {
        assert!(Instant::now() < deadline, "{:?}", old.stats());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(value(&single, fleet::KEY).await.unwrap(), claimed, "the older list was put over the newer one");
    // It is told why, as any client with another list is.
    let error = loop {
        match all(&old, (0..20).map(|i| get(&format!("k{i}")))).await.into_iter().find_map(Result::err) {
            Some(error) if error.kind() == ErrorKind::Config => break error,
            _ => assert!(Instant::now() < deadline),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(error.to_string().contains("another server list"), "{error}");
}

#[tokio::test]
async fn a_single_server_carries_no_mark_and_a_lost_mark_is_put_back() {
    let servers = start(2);
    let single = open(&url(&servers[..1], "")).await;
    assert_eq!(value(&single, fleet::KEY).await, None);
    let fleet_store = open(&url(&servers, "")).await;
    assert!(
        value(&single, fleet::KEY).await.unwrap().starts_with(b"larder fleet 1\nhash rendezvous\nserver 127.0.0.1:")
    );
    ok(&single, Op::delete(key(fleet::KEY))).await; // as an eviction would
    let again = open(&url(&servers, "")).await;
    assert!(value(&single, fleet::KEY).await.is_some());
    drop((fleet_store, again));
}

/// A server may be so light that it has no point on the ring.
#[tokio::test]
async fn a_ketama_fleet_of_very_uneven_weights_places_copies() {
    let servers = start(2);
    let store = open(&url(&servers, "hash=ketama&weights=1,100")).await;
    for i in 0..20 {
        let replies = all(&store, (0..2).map(|rank| copy(i, rank))).await;
        assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))), "{replies:?}");
    }
}

#[tokio::test]
async fn who_is_refused_for_another_list_is_told_which_server_of_it_carries_that() {
    let servers = start(3);
    // The last one of the list alone belongs to others.
    let elsewhere = start(1);
    let _others = open(&format!("memcached://{},{}", servers[2].addr(), elsewhere[0].addr())).await;
    let error = refused(&url(&servers, "")).await;
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    let named = format!("store {}", servers[2].addr());
    assert!(error.to_string().contains(&named), "{named:?} is not in: {error}");
}
