//! The array on real memcached servers, old and new, in every dialect, and on one that knows the classic commands only.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, StoreExt, StoreRef};
use larder_structures::{Array, Name, registry};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::proxy::Proxy;
use larder_testkit::servers::{Memcached, Version};

use crate::array::support::{NOTHING, generation_of, sorted, whole};
use crate::support::memcached::{COLUMNS, bad_network, client, command};
use crate::support::peak;
use crate::support::probe::Probe;

/// Looks for dirt beside the caller are round trips, too. They come after 16 times as many bytes to a shard, the first one after a random part of that: of 16 MiB
/// the 80 kB a shard of a million elements are enough, once in four times for one of 64 shards.
const NO_LOOKS: usize = usize::MAX;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_order_changes_and_compaction() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let probe = Probe::over(client(server.addr(), &format!("dialect={dialect}")).await);
        let store = probe.shared();
        let column = format!("{version:?} {dialect}");
        let one = Array::options().dirtiness(NO_LOOKS).open_or_create(&store, b"one\xff\n").await.unwrap();
        assert_eq!(probe.round_trips(), 3, "made, {column}");
        one.push(["b", "a", "b", "", "\0"]).await.unwrap();
        one.change(["c"], ["b"]).await.unwrap();
        assert_eq!(one.elements().await.unwrap(), ["a", "", "\0", "c"], "{column}");
        assert_eq!(probe.round_trips(), 3, "pushed, changed, read, {column}");
        let many = Array::options().shards(7).dirtiness(NO_LOOKS).open_or_create(&store, "many").await.unwrap();
        many.push((0..20_000u32).map(u32::to_be_bytes)).await.unwrap();
        probe.round_trips();
        many.change(whole(0), (0..20_000u32).map(u32::to_be_bytes)).await.unwrap();
        assert_eq!(probe.round_trips(), 3, "a handle's first change, {column}");
        many.change(whole(1), whole(0)).await.unwrap();
        assert_eq!(probe.round_trips(), 2, "changed, {column}");
        assert_eq!(sorted(&many).await, whole(1), "{column}");
        assert_eq!(probe.round_trips(), 1, "read, {column}");
        let stat = many.compact().await.unwrap();
        assert_eq!(probe.round_trips(), 2, "compacted, {column}");
        assert_eq!((stat.elements, stat.stale_bytes), (10, 0), "{column}");
        assert_eq!(many.stat().await.unwrap(), stat);
        assert_eq!(sorted(&Array::open(&store, "many").await.unwrap()).await, whole(1), "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_and_a_million_elements_in_one_call() {
    const MILLION: u32 = 1_000_000;
    let server = Memcached::start(Version::New, &["-m", "256"]);
    let probe = Probe::over(client(server.addr(), "timeout_ms=60000").await);
    let options = Array::options().shards(64).dirtiness(NO_LOOKS).timeout(Duration::from_secs(60));
    let array = options.open_or_create(&probe.shared(), "a").await.unwrap();
    probe.round_trips();
    array.push(NOTHING).await.unwrap();
    array.remove(NOTHING).await.unwrap();
    array.change(NOTHING, NOTHING).await.unwrap();
    assert_eq!(probe.round_trips(), 0, "nothing was asked for");
    assert!(array.elements().await.unwrap().is_empty());

    probe.round_trips();
    peak::reset();
    let before = peak::bytes();
    array.push((0..MILLION).map(u32::to_be_bytes)).await.unwrap();
    assert_eq!(probe.round_trips(), 1, "pushed");
    let elements = sorted(&array).await;
    let is_all = elements.iter().zip(0..MILLION).all(|(element, n)| *element == n.to_be_bytes()[..]);
    assert!(is_all && elements.len() == MILLION as usize, "{} elements", elements.len());
    drop(elements);
    array.remove((0..MILLION).map(u32::to_be_bytes)).await.unwrap();
    assert!(array.elements().await.unwrap().is_empty());
    let taken = peak::bytes() - before;
    assert!(taken < PEAK_MAX, "{} MiB for a million elements of 4 bytes", taken >> 20);
}

/// A million elements of 4 bytes are some 5 MB in the store, and 32 bytes each to who holds them.
const PEAK_MAX: u64 = 160 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_element_an_evicted_shard_and_a_restart() {
    for (version, dialect) in COLUMNS {
        let mut server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let column = format!("{version:?} {dialect}");
        let array = Array::options().shards(2).open_or_create(&store, "a").await.unwrap();
        let largest = vec![0u8; array.element_bytes_max()];
        assert!(largest.len() > 1_040_000, "{}", largest.len());
        array.push([&largest]).await.unwrap();
        assert_eq!(array.elements().await.unwrap(), [&largest], "{column}");
        let error = array.push([&largest]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{column}: {error}");
        array.remove([&largest]).await.unwrap();
        array.change(whole(0), NOTHING).await.unwrap();
        assert_eq!(sorted(&array).await, whole(0), "{column}");
        for index in ["1", "commits"] {
            let key = key_of(&store, index).await;
            let item = store.get(key.clone()).await.unwrap().unwrap();
            store.delete(key.clone()).await.unwrap();
            assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::Lost, "{column}, {index}");
            assert_eq!(
                array.change(whole(1), whole(0)).await.unwrap_err().kind(),
                ErrorKind::Lost,
                "{column}, {index}"
            );
            assert!(store.get(key.clone()).await.unwrap().is_none());
            store.put(key, larder_core::PutMode::Set, item.value, larder_core::Ttl::Never).await.unwrap();
        }
        assert_eq!(sorted(&array).await, whole(0), "{column}");
        command(server.addr(), "flush_all\r\n", "OK\r\n");
        assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::Lost, "{column}");
        assert_eq!(Array::open(&store, "a").await.unwrap_err().kind(), ErrorKind::Absent, "{column}");
        let array = Array::options().shards(2).open_or_create(&store, "b").await.unwrap();
        array.push(whole(0)).await.unwrap();
        server.restart();
        let error = loop {
            // The first calls may meet the broken connection.
            match array.push(whole(1)).await {
                Err(error) if error.kind() == ErrorKind::Lost => break error,
                other => assert!(other.is_err_and(|error| error.kind() == ErrorKind::Unavailable), "{column}"),
            }
        };
        assert_eq!(error.kind(), ErrorKind::Lost, "{column}");
    }
}

async fn key_of(store: &StoreRef, index: &str) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.a.a.{:016x}.{index}", manifest.generation)).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_nine_commands_carries_an_array_without_changes_over_several_shards() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    assert!(!store.profile().cas);
    let array = Array::options().shards(3).open_or_create(&store, "a").await.unwrap();
    array.push(whole(0)).await.unwrap();
    array.remove(&whole(0)[3..]).await.unwrap();
    array.change(["x"], ["x"]).await.unwrap();
    assert_eq!(array.change(whole(1), NOTHING).await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(sorted(&array).await, ["0-0", "0-1", "0-2", "x"]);
    assert_eq!(array.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

/// Two clients push, one swaps wholes, one compacts, all behind a proxy that cuts, loses and delivers late; readers find one whole at any time,
/// and at the end every push that was acknowledged, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_repeated_or_halved_behind_a_bad_network() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("dialect={dialect}&timeout_ms=500");
        let column = format!("{version:?} {dialect}, seed {seed}");
        let options = || Array::options().shards(3).dirtiness(256).timeout(Duration::from_secs(30));
        let direct = options().open_or_create(&client(server.addr(), "").await, "a").await.unwrap();
        direct.push(whole(0)).await.unwrap();
        let mut behind = Vec::new();
        for _ in 0..3 {
            behind.push(options().open(&client(proxy.addr(), &url).await, "a").await.unwrap());
        }
        proxy.random(seed, bad_network(0.04));
        let is_over = Arc::new(AtomicBool::new(false));
        let reader = tokio::spawn({
            let (array, is_over) = (direct.clone(), is_over.clone());
            async move {
                let (mut reads, mut newest) = (0, 0);
                while !is_over.load(Ordering::SeqCst) {
                    let generation = generation_of(&swapped(&array).await).expect("one whole");
                    assert!(generation >= newest);
                    (reads, newest) = (reads + 1, generation);
                    if reads % 10 == 0 {
                        _ = array.compact().await;
                    }
                }
                reads
            }
        });
        let pushers: Vec<_> =
            behind[1..].iter().enumerate().map(|(at, array)| tokio::spawn(push(array.clone(), at))).collect();
        let mut generation = 0;
        for next in 1..=40 {
            match behind[0].change(whole(next), whole(generation)).await {
                Ok(()) => generation = next,
                // Looked into by one whose network is good: it may count yet, so not before the late ones have arrived.
                Err(error) if error.is_unknown() => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    generation = generation_of(&swapped(&direct).await).expect("one whole");
                }
                Err(_) => {}
            }
        }
        let mut pushed = Vec::new();
        for pusher in pushers {
            pushed.extend(pusher.await.unwrap());
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(reader.await.unwrap() > 5, "{column}");
        assert!(proxy.counts().faults() > 5, "{:?}", proxy.counts());
        tokio::time::sleep(Duration::from_millis(150)).await;
        let elements = sorted(&direct).await;
        for (element, is_sure) in &pushed {
            let found = elements.iter().filter(|there| there == &element.as_bytes()).count();
            assert!(found == 1 || (!is_sure && found == 0), "{element}: {found}; {column}");
        }
        assert_eq!(generation_of(&swapped(&direct).await), Some(generation), "{column}");
        assert!(pushed.iter().filter(|(_, is_sure)| *is_sure).count() > 60, "{column}");
    }
}

/// What is swapped; the rest was pushed.
async fn swapped(array: &Array) -> Vec<Bytes> {
    sorted(array).await.into_iter().filter(|element| !element.starts_with(b"push")).collect()
}

/// What was pushed, and whether that is certain; what certainly was not is left out.
async fn push(array: Array, task: usize) -> Vec<(String, bool)> {
    let mut pushed = Vec::new();
    for number in 0..50 {
        let element = format!("push-{task}-{number}");
        match array.push([&element]).await {
            Ok(()) => pushed.push((element, true)),
            Err(error) if error.is_unknown() => pushed.push((element, false)),
            Err(_) => {}
        }
    }
    pushed
}
