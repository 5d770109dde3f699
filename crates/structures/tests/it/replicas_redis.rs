//! Structures on a store whose writes wait for replicas.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Effect, StoreRef};
use larder_store_redis::{Config, RedisStore};
use larder_structures::Counter;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adds_that_no_replica_confirms_are_unknown_and_count_once_at_the_most() {
    let options = RedisOptions::new().arg("repl-diskless-sync-delay", "0");
    let primary = RedisServer::start(RedisVersion::Valkey, &options);
    let replica = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new().replica_of(primary.addr()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while replica.info("replication", "master_link_status") != "up" {
        assert!(Instant::now() < deadline, "the replica does not come into sync");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let url = format!("{}?wait_replicas=1&wait_ms=40&timeout_ms=2000", primary.url());
    let store: StoreRef = Arc::new(RedisStore::connect(Config::from_url(&url).unwrap()).await.unwrap());
    let counter = Counter::options().timeout(Duration::from_millis(400)).open_or_create(&store, "hits").await.unwrap();
    for _ in 0..10 {
        counter.add(1).await.unwrap();
    }
    replica.stop();
    let mut unknown = 0i128;
    for _ in 0..3 {
        let error = counter.add(1).await.unwrap_err();
        unknown += i128::from(error.known_effect() == Effect::Unknown);
    }
    assert!(unknown > 0, "the first reached the primary");
    replica.cont();
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = counter.add(1).await {
        unknown += i128::from(error.known_effect() == Effect::Unknown);
        assert!(Instant::now() < deadline, "{error}");
    }
    let total = counter.get().await.unwrap();
    assert!((11..=11 + unknown).contains(&total), "{total} with {unknown} unknown");
    primary.command(&["WAIT", "1", "5000"]);
    assert_eq!(replica.command(&["DBSIZE"]), primary.command(&["DBSIZE"]));
}
