//! Sets on real servers at their limits: a server of three that is down, a million members at a time, real eviction.

use std::sync::Arc;
use std::time::Duration;

use crate::support::steady::metered;
use bytes::Bytes;
use larder_core::{Effect, ErrorKind, Key, PutMode, Reply, StoreExt, StoreRef, Ttl};
use larder_store_memcached::{Config, MemcachedStore};
use larder_store_memory::MemoryStore;
use larder_structures::Set;
use larder_testkit::servers::{Memcached, Version};

const VERSIONS: [Version; 2] = [Version::Old, Version::New];

async fn client(url: &str) -> StoreRef {
    Arc::new(MemcachedStore::connect(Config::from_url(url).unwrap()).await.unwrap())
}

fn members(count: u32) -> impl Iterator<Item = [u8; 4]> {
    (0..count).map(u32::to_be_bytes)
}

fn sorted(mut members: Vec<Bytes>) -> Vec<Bytes> {
    members.sort_unstable();
    members
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_one_server_of_three_down_its_shards_fail_by_name_and_the_others_go_on() {
    const MEMBERS: u32 = 300;
    for version in VERSIONS {
        let mut servers: Vec<Memcached> = (0..3).map(|_| Memcached::start(version, &[])).collect();
        let list: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
        let store = client(&format!("memcached://{}?timeout_ms=500", list.join(","))).await;
        let options = || Set::options().timeout(Duration::from_millis(800));
        let set = options().shards(24).open_or_create(&store, "s").await.unwrap();
        set.add(members(MEMBERS)).await.unwrap();
        // The others may have left their mark on it by then.
        let url = format!("memcached://{}?fleet=ignore", list[1]);
        servers[1].kill9();

        // A read of all shards names what cannot be reached; it is no smaller set.
        let error = set.members().await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
        // Members on the other servers are found and changed, one by one.
        let (mut reached, mut refused) = (0, 0);
        for member in members(MEMBERS) {
            match set.has(member).await {
                Ok(has) => {
                    assert!(has, "{member:?}");
                    reached += 1;
                }
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(reached > 0 && refused > 0, "{reached} reached, {refused} refused");
        // A change of all shards: those of the two others took it, and the error says so.
        let error = set.add((MEMBERS..2 * MEMBERS).map(u32::to_be_bytes)).await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        assert!(error.to_string().contains("others took the change"), "{error}");

        // It comes back empty: a loss, and never a smaller set.
        servers[1].restart();
        client(&url).await;
        for attempt in 0.. {
            let error = set.members().await.unwrap_err();
            if error.kind() == ErrorKind::Lost {
                break;
            }
            assert!(attempt < 100, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_members_in_one_call_into_1024_shards() {
    const MILLION: u32 = 1_000_000;
    for version in VERSIONS {
        let server = Memcached::start(version, &["-m", "256"]);
        let counting = metered(client(&server.url()).await);
        let store: StoreRef = Arc::new(counting.clone());
        let set = Set::options()
            .shards(1024)
            .dirtiness(usize::MAX)
            .timeout(Duration::from_secs(60))
            .open_or_create(&store, "s")
            .await
            .unwrap();
        let before = counting.counts();
        set.add(members(MILLION)).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, 1, "{version:?}");
        let found = sorted(set.members().await.unwrap().to_vec());
        assert_eq!(found.len(), MILLION as usize, "{version:?}");
        assert!(found.iter().zip(members(MILLION)).all(|(found, member)| **found == member), "{version:?}");
        let stat = set.compact().await.unwrap();
        assert_eq!((stat.members, stat.stale_bytes, stat.shards), (u64::from(MILLION), 0, 1024), "{version:?}");
    }
}

#[tokio::test]
async fn a_million_members_that_do_not_fit_into_one_shard_are_refused_and_nothing_is_written() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(1 << 20).build().unwrap());
    let set = Set::open_or_create(&store, "s").await.unwrap();
    let error = set.add(members(1_000_000)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied));
    assert!(error.to_string().contains("5000000 bytes") && error.to_string().contains("the limit is"), "{error}");
    assert!(set.members().await.unwrap().is_empty());
}

/// Another program fills the server until it evicts.
async fn fill(store: &StoreRef, server: &Memcached) {
    let value = Bytes::from(vec![b'x'; 100_000]);
    for number in 0..4_000 {
        let key = Key::new(format!("filler-{number}")).unwrap();
        assert_eq!(store.put(key, PutMode::Set, value.clone(), Ttl::Never).await.unwrap(), Reply::Stored);
    }
    assert!(server.stat("evictions") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_the_server_evicts_is_lost_to_reads_and_writes_and_never_empty() {
    for version in VERSIONS {
        let server = Memcached::start(version, &["-m", "8"]);
        let store = client(&server.url()).await;
        let set = Set::open_or_create(&store, "s").await.unwrap();
        // Of the size class of the other program's values, so that theirs push it out.
        set.add([vec![b'm'; 98_000]]).await.unwrap();
        fill(&store, &server).await;
        for _ in 0..2 {
            assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Lost, "{version:?}");
            let error = set.add(["a"]).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{version:?}");
        }
    }
}
