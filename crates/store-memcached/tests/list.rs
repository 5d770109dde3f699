//! Listing keys of real servers, old and new, in every dialect.

mod common;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use larder_core::list::{List, Listed};
use larder_core::{Batch, Ctx, ErrorKind, Key, Op, PutMode, Store, StoreExt, Ttl};
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::servers::{Memcached, Version};

async fn connect(url: &str) -> MemcachedStore {
    MemcachedStore::connect(Config::from_url(url).unwrap()).await.unwrap()
}

async fn keys(store: &MemcachedStore, prefix: &[u8]) -> (BTreeSet<Vec<u8>>, u64) {
    let (mut keys, mut looked_at) = (BTreeSet::new(), 0);
    let mut tell = |told: Listed<'_>| match told {
        Listed::Key(key) => _ = keys.insert(key.to_vec()),
        Listed::Other(key) => panic!("{key:?}"),
        Listed::LookedAt(count) => looked_at = count,
    };
    store.list(Ctx::within(Duration::from_secs(30)), prefix, &mut tell).await.unwrap();
    (keys, looked_at)
}

async fn fill(store: &MemcachedStore, prefix: &str, count: usize) {
    let ops = |range: std::ops::Range<usize>| -> Batch {
        range.map(|n| Op::put(Key::new(format!("{prefix}{n}")).unwrap(), PutMode::Set, "value", Ttl::Never)).collect()
    };
    for start in (0..count).step_by(1_000) {
        for reply in store.run(Ctx::default(), ops(start..count.min(start + 1_000))).await {
            reply.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_prefix_are_listed_by_old_and_new_servers_in_every_dialect() {
    for version in Version::ALL {
        for dialect in ["auto", "classic"] {
            let server = Memcached::start(version, &[]);
            let store = connect(&format!("{}?dialect={dialect}", server.url())).await;
            assert_eq!(keys(&store, b"").await.0.len(), 0, "{version:?} {dialect}: an empty server");
            fill(&store, "L.a%20b.", 15_000).await;
            fill(&store, "other", 10).await;
            let (listed, looked_at) = keys(&store, b"L.").await;
            let expected: BTreeSet<Vec<u8>> = (0..15_000).map(|n| format!("L.a%20b.{n}").into_bytes()).collect();
            assert_eq!(listed.len(), expected.len(), "{version:?} {dialect}");
            assert_eq!(listed, expected);
            assert!(looked_at >= 15_010, "{looked_at}");
            // Its own connection: ops go on.
            assert!(store.get(Key::new("other1").unwrap()).await.unwrap().is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_keys_come_back_as_they_are() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let store = connect(&server.url()).await;
        let key = &b"L.\0\xff \n%25"[..];
        store.put(Key::new(key).unwrap(), PutMode::Set, "v", Ttl::Never).await.unwrap();
        assert_eq!(keys(&store, b"L.").await.0, BTreeSet::from([key.to_vec()]), "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_lists_all_its_servers() {
    let servers: Vec<Memcached> = (0..3).map(|_| Memcached::start(Version::New, &[])).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let store = connect(&format!("memcached://{}", addresses.join(","))).await;
    fill(&store, "L.x.", 300).await;
    assert_eq!(keys(&store, b"L.x.").await.0.len(), 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_list_says_so_and_a_dead_one_is_unavailable() {
    let fake = ClassicFake::start();
    let store = connect(&format!("memcached://{}", fake.addr())).await;
    let error = store.list(Ctx::default(), b"", &mut |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    let server = Memcached::start(Version::New, &["-o", "no_lru_crawler"]);
    let store = connect(&server.url()).await;
    let error = store.list(Ctx::default(), b"", &mut |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    let mut server = Memcached::start(Version::New, &[]);
    let store = connect(&server.url()).await;
    server.kill9();
    let error = store.list(Ctx::default(), b"", &mut |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart();
    server.stop();
    let start = Instant::now();
    let error = store.list(Ctx::within(Duration::from_millis(300)), b"", &mut |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}
