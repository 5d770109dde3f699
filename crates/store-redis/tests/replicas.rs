//! Writes that wait until replicas have them.

mod common;

use std::time::{Duration, Instant};

use bytes::Bytes;
use common::*;
use larder_core::{Durability, Effect, ErrorKind, Op, PutMode, Reply, Store, StoreExt, Want};
use larder_net::all_of;
use larder_store_redis::RedisStore;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

/// A primary and its replica, in sync.
fn pair(version: RedisVersion) -> (RedisServer, RedisServer) {
    pair_with(version, &RedisOptions::new())
}

fn pair_with(version: RedisVersion, options: &RedisOptions) -> (RedisServer, RedisServer) {
    let primary = RedisServer::start(version, &options.clone().arg("repl-diskless-sync-delay", "0"));
    let replica = RedisServer::start(version, &options.clone().replica_of(primary.addr()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while replica.info("replication", "master_link_status") != "up"
        || primary.info("replication", "connected_slaves") != "1"
    {
        assert!(Instant::now() < deadline, "the replica does not come into sync");
        std::thread::sleep(Duration::from_millis(10));
    }
    (primary, replica)
}

#[tokio::test]
async fn a_write_is_told_once_the_replica_has_it_and_takes_one_round_trip() {
    for version in RedisVersion::ALL {
        let (primary, replica) = pair(version);
        let store = open(&format!("{}?wait_replicas=1&wait_ms=5000&timeout_ms=10000", primary.url())).await;
        assert_eq!(store.profile().warnings, Vec::<String>::new());
        let (trips, waits) = (store.stats().round_trips, primary.calls("wait"));
        for round in 0..50 {
            set(&store, "k", format!("v{round}")).await;
            // An item has a head before its value.
            let length = replica.command(&["STRLEN", &larder_key(&primary)]);
            assert_eq!(length, primary.command(&["STRLEN", &larder_key(&primary)]), "round {round}");
        }
        assert_eq!(store.stats().round_trips - trips, 50);
        assert_eq!(primary.calls("wait") - waits, 50);
        // Reads do not wait while everything is confirmed.
        assert!(value(&store, "k").await.is_some());
        assert_eq!(primary.calls("wait") - waits, 50);
    }
}

/// The one key that is there.
fn larder_key(server: &RedisServer) -> String {
    let keys = server.command(&["RANDOMKEY"]);
    keys.text().to_owned()
}

#[tokio::test]
async fn what_the_replica_did_not_confirm_is_unknown_and_reads_wait_until_it_has_it() {
    let (primary, replica) = pair(RedisVersion::Redis8);
    let store = open(&format!("{}?wait_replicas=1&wait_ms=60&timeout_ms=3000", primary.url())).await;
    set(&store, "k", "old").await;
    replica.stop();
    let error = one(&store, put("k", PutMode::Set, "new")).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown));
    let said = error.to_string();
    assert!(said.contains("0 of 1 replicas confirmed it within 60 ms"), "{said}");
    // The primary has it; nobody may take it for settled.
    let read = store.get(key("k")).await.unwrap_err();
    assert_eq!(read.known_effect(), Effect::NotApplied);
    assert!(read.to_string().contains("0 of 1 replicas"), "{read}");
    assert_eq!(store.stats().reconnects, 0);
    let other = open(&primary.url()).await;
    assert_eq!(value(&other, "k").await.unwrap(), "new", "others read what only the primary has");
    replica.cont();
    assert_eq!(settled(&store, "k").await, "new");
    let waits = primary.calls("wait");
    assert!(store.get(key("k")).await.unwrap().is_some());
    assert_eq!(primary.calls("wait"), waits, "nothing is owed any more");
    assert_eq!(one(&store, put("k", PutMode::Add, "x")).await.unwrap(), Reply::NotStored);
}

/// Reads until what is owed is confirmed, and returns what stands then.
async fn settled(store: &RedisStore, name: &str) -> Bytes {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match store.get(key(name)).await {
            Ok(item) => return item.unwrap().value,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[tokio::test]
async fn reads_wait_too_for_what_was_written_by_somebody_who_stopped_waiting() {
    let (primary, replica) = pair(RedisVersion::Redis8);
    let store = open(&format!("{}?wait_replicas=1&wait_ms=400&timeout_ms=9000", primary.url())).await;
    let hasty = |name: &'static str| {
        let write = one(&store, put(name, PutMode::Set, "new"));
        tokio::time::timeout(Duration::from_millis(20), write)
    };
    set(&store, "k", "old").await;
    replica.stop();
    hasty("k").await.expect_err("nobody confirms it");
    let read = store.get(key("k")).await.expect_err("the primary alone has it");
    assert!(read.to_string().contains("0 of 1 replicas"), "{read}");
    replica.cont();
    assert_eq!(settled(&store, "k").await, "new");
    let waits = primary.calls("wait");
    assert!(store.get(key("k")).await.unwrap().is_some());
    assert_eq!(primary.calls("wait"), waits, "nothing is owed any more");
}

/// More than share a pipeline from some number on.
#[tokio::test]
async fn reads_wait_too_for_what_a_crowd_wrote_that_stopped_waiting() {
    let (primary, replica) = pair(RedisVersion::Valkey);
    let store = open(&format!("{}?wait_replicas=1&wait_ms=100&timeout_ms=20000", primary.url())).await;
    set(&store, "k", "old").await;
    replica.stop();
    let crowd = all_of((0..16).map(|_| Box::pin(one(&store, put("k", PutMode::Set, "new")))).collect());
    tokio::time::timeout(Duration::from_millis(20), crowd).await.expect_err("nobody confirms it");
    let read = store.get(key("k")).await.expect_err("the primary alone has it");
    assert!(read.to_string().contains("0 of 1 replicas"), "{read}");
    replica.cont();
    assert_eq!(settled(&store, "k").await, "new");
}

#[tokio::test]
async fn too_few_replicas_are_warned_of_and_a_user_who_may_not_wait_is_refused() {
    let acl = "user default off\nuser admin on >admin ~* &* +@all\nuser joe on >pw ~* &* +@all -wait\n";
    let options = RedisOptions::new().acl(acl, "admin", "admin");
    let server = RedisServer::start(RedisVersion::Redis7, &options);
    let error = refused(&format!("redis://joe:pw@{}?wait_replicas=1", server.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("WAIT"), "{error}");
    open(&format!("redis://joe:pw@{}", server.addr())).await;
    let alone = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let store = open(&format!("{}?wait_replicas=2&wait_ms=5", alone.url())).await;
    let warnings = &store.profile().warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains("wait for 2 replicas, and 0 are connected")),
        "{warnings:?}"
    );
    let error = one(&store, put("k", PutMode::Set, "v")).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::Unknown);
}

/// What `WAIT` says to a replica is no answer about the write, which was refused.
#[tokio::test]
async fn a_primary_that_is_demoted_is_noticed_though_writes_wait_for_replicas() {
    for version in RedisVersion::ALL {
        let (server, _replica) = pair(version);
        let primary = RedisServer::start(version, &RedisOptions::new());
        let port = primary.addr().port().to_string();
        let get = || Op::get(key("k"), Want::VALUE);
        // Alone, as a script, and with a read, which is answered: then whether it was done is told by nobody.
        for (ops, effect) in [
            (vec![put("k", PutMode::Add, "w")], Effect::NotApplied),
            (vec![put("k", PutMode::Append, "w"), put("l", PutMode::Set, "w")], Effect::NotApplied),
            (vec![put("k", PutMode::Append, "w"), get()], Effect::Unknown),
        ] {
            assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
            let store = open(&format!("{}?wait_replicas=1&wait_ms=5000&timeout_ms=10000", server.url())).await;
            wait_until_confirmed(&store).await;
            assert_eq!(server.command(&["REPLICAOF", "127.0.0.1", &port]).text(), "OK");
            let error = all(&store, ops).await.remove(0).unwrap_err();
            assert_eq!(error.known_effect(), effect, "{error}");
            assert!(error.to_string().contains("replica"), "{error}");
            // From then on it is no store of this client any more, for reads neither.
            for op in [get(), put("k", PutMode::Set, "w")] {
                let error = one(&store, op).await.unwrap_err();
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
                assert!(error.to_string().contains(&format!("primary 127.0.0.1:{port}")), "{error}");
            }
        }
    }
}

/// A replica may be on its way back.
async fn wait_until_confirmed(store: &RedisStore) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while let Err(error) = one(store, put("k", PutMode::Set, "v")).await {
        assert!(Instant::now() < deadline, "{error}");
    }
}

#[tokio::test]
async fn a_refusal_stands_though_too_few_replicas_confirm() {
    let (primary, replica) = pair(RedisVersion::Redis8);
    let store = open(&format!("{}?wait_replicas=1&wait_ms=60&timeout_ms=5000", primary.url())).await;
    set(&store, "k", "a").await;
    primary.command(&["LPUSH", "list", "x"]);
    replica.stop();
    // From here on what was written before is not confirmed, either.
    let error = one(&store, put("other", PutMode::Set, "v")).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
    let error = one(&store, put("list", PutMode::Append, "w")).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::LayoutMismatch, Effect::NotApplied), "{error}");
    // Scripts that were forgotten are loaded again.
    primary.command(&["SCRIPT", "FLUSH"]);
    let error = one(&store, put("k", PutMode::Append, "b")).await.unwrap_err();
    assert_eq!((error.known_effect(), store.stats().scripts_reloaded), (Effect::Unknown, 1), "{error}");
    replica.cont();
    assert_eq!(settled(&store, "k").await, "ab");
}

/// A failover takes what one of them had acknowledged that the other had not, whoever is connected to whom when the store looks.
#[tokio::test]
async fn a_server_that_has_or_had_a_replica_promises_no_more_than_a_failover_leaves() {
    for version in RedisVersion::ALL {
        let (primary, mut replica) = pair_with(version, &RedisOptions::new().appendonly());
        let durability = async |server: &RedisServer| open(&server.url()).await.profile().durability;
        assert_eq!(durability(&primary).await, Durability::Recent);
        // Made a primary just now, as by a failover.
        assert_eq!(replica.command(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
        assert_eq!(replica.info("replication", "connected_slaves"), "0");
        assert_eq!(durability(&replica).await, Durability::Recent, "{version:?}");
        replica.kill9();
        let deadline = Instant::now() + Duration::from_secs(20);
        while primary.info("replication", "connected_slaves") != "0" {
            assert!(Instant::now() < deadline, "the replica does not leave");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(durability(&primary).await, Durability::Recent, "{version:?}");
    }
}

/// The exception that is documented: what comes later is noticed with the next connection.
#[tokio::test]
async fn a_replica_that_comes_later_is_noticed_with_the_next_connection() {
    let options = RedisOptions::new().appendonly();
    let server = RedisServer::start(RedisVersion::Redis8, &options.clone().arg("repl-diskless-sync-delay", "0"));
    let store = open(&server.url()).await;
    assert_eq!(store.profile().durability, Durability::Disk);
    let _replica = RedisServer::start(RedisVersion::Redis8, &options.replica_of(server.addr()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.info("replication", "connected_slaves") != "1" {
        assert!(Instant::now() < deadline, "the replica does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
    set(&store, "k", "v").await;
    assert_eq!(store.profile().durability, Durability::Disk);
    assert!(!server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).is_error());
    wait_until_up(&store).await;
    assert_eq!(store.profile().durability, Durability::Recent);
}

/// The exception that is documented: what it acknowledges then is dropped with its next sync, and this client is not told.
#[tokio::test]
async fn a_server_that_takes_writes_as_a_replica_is_warned_of() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new().arg("replica-read-only", "no"));
        let primary = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server.url()).await;
        let warnings = &store.profile().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("set replica-read-only yes"), "{warnings:?}");
        let port = primary.addr().port().to_string();
        assert_eq!(server.command(&["REPLICAOF", "127.0.0.1", &port]).text(), "OK");
        set(&store, "k", "v").await;
        assert_eq!(server.info("replication", "role"), "slave", "{version:?}");
    }
}
