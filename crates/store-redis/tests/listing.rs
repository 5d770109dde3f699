//! A listing tells every key that stands there from its beginning to its end, or says that it has not.

mod common;

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use common::*;
use larder_core::list::{List, Listed, Listing};
use larder_core::{Ctx, ErrorKind, PutMode, Result, Store, StoreExt};
use larder_store_redis::{ClusterConfig, RedisClusterStore};
use larder_testkit::proxy::Proxy;
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};

const PATIENCE: &str = "timeout_ms=10000&connect_timeout_ms=5000";
/// Twenty pieces of a listing.
const KEYS: usize = 20_000;

async fn fill(store: &impl Store) {
    for from in (0..KEYS).step_by(1_000) {
        let puts = (from..from + 1_000).map(|n| put(&format!("n{n}"), PutMode::Set, ""));
        assert!(store.run(Ctx::default(), puts.collect()).await.iter().all(Result::is_ok));
    }
}

/// Goes on with a listing until it has told that it has looked at anything, and then no more.
async fn begin(listing: &mut Listing<'_>, looked_at: &AtomicU64) {
    poll_fn(|cx| {
        if let Poll::Ready(listed) = listing.as_mut().poll(cx) {
            panic!("it ended at once: {listed:?}");
        }
        if looked_at.load(Ordering::Relaxed) > 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Begins a listing, does something, and goes on with it. What it said in the end, and how many keys it had told.
async fn interrupted(list: &impl List, meanwhile: impl AsyncFnOnce()) -> (Result<()>, usize) {
    let looked_at = AtomicU64::new(0);
    let mut found = BTreeSet::new();
    let mut tell = |listed: Listed<'_>| match listed {
        Listed::Key(key) => _ = found.insert(key.to_vec()),
        Listed::Other(key) => panic!("{key:?}"),
        Listed::LookedAt(so_far) => looked_at.store(so_far, Ordering::Relaxed),
    };
    let mut listing = list.list(Ctx::default(), b"n", &mut tell);
    begin(&mut listing, &looked_at).await;
    // The piece that it has asked for already is answered: it breaks between two pieces.
    tokio::time::sleep(Duration::from_millis(300)).await;
    meanwhile().await;
    let listed = listing.await;
    (listed, found.len())
}

/// It must have told all, or say that it has not.
fn judge(listed: Result<()>, found: usize, what: &str) {
    let error = listed.expect_err(&format!("{what}: it ended well with {found} of {KEYS} keys"));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
    assert!(error.to_string().contains("what was told is not all"), "{what}: {error}");
}

#[tokio::test]
async fn a_listing_does_not_go_on_with_a_server_that_was_started_again() {
    for version in RedisVersion::ALL {
        let mut server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&format!("{}?{PATIENCE}", server.url())).await;
        fill(&store).await;
        let restart = async || {
            server.command(&["SAVE"]);
            server.restart();
            wait_until_up(&store).await;
        };
        let (listed, found) = interrupted(&store, restart).await;
        judge(listed, found, &format!("{version:?}"));
        let (listed, found) = interrupted(&store, async || ()).await;
        assert_eq!((listed.unwrap(), found), ((), KEYS), "{version:?}: the next one tells them all");
    }
}

#[tokio::test]
async fn a_listing_does_not_go_on_with_the_replica_that_a_proxy_leads_to_meanwhile() {
    let primary = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
    let replica = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new().replica_of(primary.addr()));
    let proxy = Proxy::start(primary.addr());
    let store = open(&format!("redis://{}?{PATIENCE}", proxy.addr())).await;
    fill(&store).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while replica.command(&["DBSIZE"]) != primary.command(&["DBSIZE"]) {
        assert!(Instant::now() < deadline, "the replica does not come into sync");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let promote = async || {
        replica.command(&["REPLICAOF", "NO", "ONE"]);
        proxy.redirect(replica.addr());
        proxy.cut_all();
        let reconnects = store.stats().reconnects;
        while store.stats().reconnects == reconnects {
            assert!(Instant::now() < deadline + Duration::from_secs(20), "it does not come back");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        wait_until_up(&store).await;
    };
    let (listed, found) = interrupted(&store, promote).await;
    judge(listed, found, "promoted");
}

#[tokio::test]
async fn a_listing_of_a_cluster_does_not_go_on_with_a_node_that_was_started_again() {
    // Later releases keep the keys of each slot apart, and go from slot to slot.
    let options = RedisOptions::new().arg("cluster-node-timeout", "15000");
    let mut cluster = RedisCluster::start_with(RedisVersion::Redis7, &options);
    let config = ClusterConfig::from_url(&format!("{}?{PATIENCE}", cluster.url())).unwrap();
    let store = RedisClusterStore::connect(config).await.unwrap();
    fill(&store).await;
    let primaries: Vec<usize> = (0..cluster.nodes().len()).filter(|&node| cluster.is_primary(node)).collect();
    let restart = async || {
        let reconnects = store.stats().reconnects;
        for &primary in &primaries {
            cluster.nodes()[primary].command(&["SAVE"]);
            cluster.node_mut(primary).restart();
        }
        cluster.wait_ok();
        let deadline = Instant::now() + Duration::from_secs(20);
        while store.stats().reconnects < reconnects + primaries.len() as u64 {
            assert!(Instant::now() < deadline, "it does not come back");
            // An op has the nodes looked for.
            _ = store.get(key("up?")).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (listed, found) = interrupted(&store, restart).await;
    judge(listed, found, "cluster");
}

async fn open_cluster(cluster: &RedisCluster) -> RedisClusterStore {
    let config = ClusterConfig::from_url(&format!("{}?{PATIENCE}", cluster.url())).unwrap();
    RedisClusterStore::connect(config).await.unwrap()
}

/// Nobody has run an op since its primary died, so that the map still names it: it came back with nothing, and does not come into sync.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_a_cluster_goes_to_the_primary_where_the_one_it_knew_is_an_empty_replica() {
    let mut cluster = RedisCluster::start(RedisVersion::Redis7);
    let store = open_cluster(&cluster).await;
    fill(&store).await;
    let reconnects = store.stats().reconnects;
    tokio::task::block_in_place(|| {
        cluster.node_mut(0).kill9();
        cluster.wait_failover(0, 0);
        let heir = cluster.primary_by(1, 0).unwrap();
        assert!(!cluster.nodes()[heir].command(&["ACL", "SETUSER", "default", "-psync", "-sync"]).is_error());
        cluster.node_mut(0).restart_empty();
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    while cluster.nodes()[0].info("replication", "role") != "slave" || store.stats().reconnects == reconnects {
        assert!(Instant::now() < deadline, "it does not come back as a replica");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(cluster.nodes()[0].command(&["DBSIZE"]).text(), "0");
    let (listed, found) = interrupted(&store, async || ()).await;
    assert_eq!((listed.unwrap(), found), ((), KEYS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_of_a_cluster_says_so_where_a_primary_becomes_a_replica_midway() {
    let cluster = RedisCluster::start(RedisVersion::Valkey);
    let store = open_cluster(&cluster).await;
    fill(&store).await;
    let fail_over = async || {
        tokio::task::block_in_place(|| {
            for node in 0..cluster.nodes().len() {
                if !cluster.is_primary(node) {
                    cluster.fail_over_to(node);
                }
            }
            let deadline = Instant::now() + Duration::from_secs(20);
            while cluster.nodes().iter().filter(|node| node.info("replication", "role") == "slave").count() != 3 {
                assert!(Instant::now() < deadline, "they do not give way");
            }
        });
    };
    let (listed, found) = interrupted(&store, fail_over).await;
    judge(listed, found, "failed over");
    let (listed, found) = interrupted(&store, async || ()).await;
    assert_eq!((listed.unwrap(), found), ((), KEYS), "the next one asks those who are primaries now");
}
