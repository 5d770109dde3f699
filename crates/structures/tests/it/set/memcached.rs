//! The set on real memcached servers, old and new, in every dialect, and on one that knows the classic commands only.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Effect, ErrorKind, StoreExt};
use larder_structures::Set;
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::proxy::Proxy;
use larder_testkit::servers::Memcached;

use crate::support::memcached::{COLUMNS, bad_network, client, command};
use crate::support::probe::{Probe, shard_key, sorted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_members_and_compaction() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let probe = Probe::over(client(server.addr(), &format!("dialect={dialect}")).await);
        let store = probe.shared();
        let column = format!("{version:?} {dialect}");
        // Never dirty enough for a look behind the writer, which starts at random and would be counted.
        let set = Set::options().shards(7).dirtiness(usize::MAX).open_or_create(&store, b"n\xff\n").await.unwrap();
        assert_eq!(probe.round_trips(), 3, "made, {column}");
        set.add((0..20_000u32).map(u32::to_be_bytes)).await.unwrap();
        set.add([Bytes::new(), Bytes::from_static(b"a\r\nb \0")]).await.unwrap();
        set.remove((1..20_000u32).map(u32::to_be_bytes)).await.unwrap();
        assert_eq!(probe.round_trips(), 3, "changed, {column}");
        assert_eq!(sorted(&set).await, [&b""[..], &[0; 4], b"a\r\nb \0"]);
        assert!(set.has("").await.unwrap());
        assert_eq!(probe.round_trips(), 2, "read, {column}");
        let stat = set.compact().await.unwrap();
        assert_eq!(probe.round_trips(), 2, "compacted, {column}");
        assert_eq!((stat.members, stat.stale_bytes), (3, 0), "{column}");
        assert_eq!(set.stat().await.unwrap(), stat);
        Set::open(&store, b"n\xff\n").await.unwrap();
        assert_eq!(probe.round_trips(), 2, "stat and open, {column}");
        assert_eq!(sorted(&set).await, [&b""[..], &[0; 4], b"a\r\nb \0"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_member_full_and_lost() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let column = format!("{version:?} {dialect}");
        let set = Set::open_or_create(&store, "s").await.unwrap();
        let largest = vec![b'x'; set.member_bytes_max()];
        assert!(largest.len() > 1_040_000, "{}", largest.len());
        set.add([&largest]).await.unwrap();
        assert!(set.has(&largest).await.unwrap(), "{column}");
        // Refused by the server, which answers as for a miss; the old value stays.
        let error = set.add([vec![b'y'; 100_000]]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{column}: {error}");
        assert!(error.to_string().contains("more shards"), "{error}");
        assert!(set.has(&largest).await.unwrap(), "{column}");
        set.remove([&largest]).await.unwrap();
        set.add(["a"]).await.unwrap();
        assert_eq!(sorted(&set).await, ["a"], "{column}");
        let key = shard_key(&store, "s", 0).await;
        store.delete(key.clone()).await.unwrap();
        assert_eq!(set.add(["b"]).await.unwrap_err().kind(), ErrorKind::Lost, "{column}");
        assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Lost, "{column}");
        assert!(store.get(key).await.unwrap().is_none());
        command(server.addr(), "flush_all\r\n", "OK\r\n");
        assert_eq!(Set::open(&store, "s").await.unwrap_err().kind(), ErrorKind::Absent, "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_set_that_is_dirty_is_compacted_on_the_way() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let set = Set::options().dirtiness(1 << 30).open_or_create(&store, "s").await.unwrap();
        for number in 0..600u32 {
            set.add([format!("{:04000}", number % 7)]).await.unwrap();
        }
        assert_eq!(set.members().await.unwrap().len(), 7, "{version:?} {dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_is_shared_with_other_programs() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let set = Set::options().dirtiness(1).open_text(&store, "index").unwrap();
        assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Absent);
        set.add(["a", "b"]).await.unwrap();
        command(server.addr(), "append index 0 0 6\r\n-a +c \r\n", "STORED\r\n");
        assert_eq!(sorted(&set).await, ["b", "c"]);
        set.compact().await.unwrap();
        set.remove(["c"]).await.unwrap();
        set.compact().await.unwrap();
        command(server.addr(), "get index\r\n", "VALUE index 0 3\r\n+b \r\nEND\r\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_nine_commands_carries_a_set_that_cannot_be_compacted() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    assert!(!store.profile().cas);
    let set = Set::options().shards(3).open_or_create(&store, "s").await.unwrap();
    set.add(["a", "b"]).await.unwrap();
    set.remove(["a"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["b"]);
    assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
    let text = Set::open_text(&store, "index").unwrap();
    text.add(["a"]).await.unwrap();
    assert_eq!(sorted(&text).await, ["a"]);
    assert_eq!(text.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

/// 8 tasks over 2 clients, each with members of its own, behind a proxy that cuts, loses and delivers late; a third client
/// compacts all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_brought_back_behind_a_bad_network() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("dialect={dialect}&timeout_ms=500");
        let clients = [client(proxy.addr(), &url).await, client(proxy.addr(), &url).await];
        let options = || Set::options().shards(2).dirtiness(64).timeout(Duration::from_secs(30));
        let handles = [
            options().open_or_create(&clients[0], "s").await.unwrap(),
            options().open_or_create(&clients[1], "s").await.unwrap(),
        ];
        let direct = options().open(&client(server.addr(), "").await, "s").await.unwrap();
        let compactor = tokio::spawn({
            let set = direct.clone();
            async move {
                loop {
                    _ = set.compact().await;
                    tokio::task::yield_now().await;
                }
            }
        });
        proxy.random(seed, bad_network(0.05));
        let tasks: Vec<_> =
            (0..8u64).map(|task| tokio::spawn(churn(handles[task as usize % 2].clone(), task, seed ^ task))).collect();
        let mut known = HashMap::new();
        for task in tasks {
            known.extend(task.await.unwrap());
        }
        compactor.abort();
        assert!(proxy.counts().faults() > 5, "{:?}", proxy.counts());
        // What is still held back on the way arrives, and must not count.
        tokio::time::sleep(Duration::from_millis(150)).await;
        let members = sorted(&direct).await;
        for (member, is_known) in &known {
            let is_there = members.iter().any(|there| there == member.as_bytes());
            if let Some(expected) = is_known {
                assert_eq!(is_there, *expected, "{member}; {version:?} {dialect}, seed {seed}");
            }
        }
        let unknown = known.values().filter(|known| known.is_none()).count();
        assert!(unknown <= known.len() / 10, "{unknown} of {} unknown", known.len());
    }
}

/// Changes members of its own; returns what must be there, and what must not, where it is known.
async fn churn(set: Set, task: u64, seed: u64) -> HashMap<String, Option<bool>> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut known = HashMap::new();
    for _ in 0..80 {
        let member = format!("{task}-{}", rng.u32(0..10));
        let is_add = rng.bool();
        let outcome = if is_add { set.add([&member]).await } else { set.remove([&member]).await };
        match outcome {
            Ok(()) => _ = known.insert(member, Some(is_add)),
            Err(error) if error.is_unknown() => _ = known.insert(member, None),
            Err(_) => {}
        }
    }
    known
}
