//! The table on real memcached servers, old and new, in every dialect, and behind a bad network.

use std::time::Duration;

use larder_core::{Effect, ErrorKind};
use larder_structures::Table;
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::servers::{Memcached, Version};

use crate::support::memcached::{COLUMNS, client, command};
use crate::support::peak;
use crate::table::support::{cost, counting, entries, flagged, lose, sorted_keys};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_and_bytes_of_any_kind() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let direct = client(server.addr(), "").await;
        let (store, counting) = counting(client(server.addr(), &format!("dialect={dialect}")).await);
        let column = format!("{version:?} {dialect}");
        let table = Table::options().shards(3).open_or_create(&store, "t").await.unwrap();
        let key = &b"a\r\nb \0\xff"[..];
        assert_eq!(cost(&counting, table.get(key)).await, 2, "missing, {column}");
        table.put(key, "1").await.unwrap();
        flagged(&direct, "t", key).await;
        // What is done behind the callers is through.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(cost(&counting, table.put(key, "2")).await, 1, "put, {column}");
        assert_eq!(cost(&counting, table.get(key)).await, 1, "get, {column}");
        table.put("z", "3").await.unwrap();
        flagged(&direct, "t", b"z").await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(cost(&counting, table.get_many([key, b"z"])).await, 1, "get_many, {column}");
        assert!(table.remove("z").await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(cost(&counting, table.keys()).await, 1, "keys, {column}");
        assert_eq!(cost(&counting, table.entries()).await, 2, "entries, {column}");
        assert_eq!(table.get(key).await.unwrap().unwrap(), "2");
        table.put("", "").await.unwrap();
        assert_eq!(sorted_keys(&table).await, [b"", key], "{column}");
        assert_eq!(table.get("").await.unwrap().unwrap(), "");
        assert!(table.remove(key).await.unwrap() && table.remove("").await.unwrap());
        assert!(entries(&table).await.is_empty(), "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_and_a_million_keys_in_one_call() {
    const MILLION: usize = 1_000_000;
    const EVERY: usize = 1_000;
    let server = Memcached::start(Version::New, &["-m", "256"]);
    let (store, counting) = counting(client(server.addr(), "timeout_ms=60000").await);
    let table = Table::options().timeout(Duration::from_secs(60)).open_or_create(&store, "t").await.unwrap();
    assert_eq!(cost(&counting, table.get_many([""; 0])).await, 0, "nothing was asked for");
    assert!(table.get_many([""; 0]).await.unwrap().is_empty() && table.entries().await.unwrap().is_empty());
    for n in (0..MILLION).step_by(EVERY) {
        table.put(n.to_string(), n.to_string()).await.unwrap();
    }
    table.settle().await;

    peak::reset();
    let (before, counts) = (peak::bytes(), counting.counts());
    let found = table.get_many((0..MILLION).map(|n| n.to_string())).await.unwrap();
    let batches = MILLION.div_ceil(store.profile().batch_ops_max) as u64;
    let looks = MILLION.div_ceil(65_536) as u64;
    assert_eq!(counting.counts().since(&counts).round_trips, batches + looks, "one more a look for what is missing");
    assert_eq!(found.len(), MILLION);
    for (n, value) in found.into_iter().enumerate() {
        assert_eq!(value, n.is_multiple_of(EVERY).then(|| n.to_string().into()), "{n}");
    }
    let taken = peak::bytes() - before;
    assert!(taken < PEAK_MAX, "{} MiB for a million keys of 6 bytes", taken >> 20);
}

/// The keys that are asked for take 56 bytes each, what is told of them 40, before it is turned into what the caller gets.
const PEAK_MAX: u64 = 256 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_largest_value_lost_entries_and_a_restart() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let column = format!("{version:?} {dialect}");
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let max = table.value_bytes_max(1);
        assert!(max > 1_040_000, "{max}");
        for byte in [b'x', b'y'] {
            table.put("k", vec![byte; max]).await.unwrap();
            assert_eq!(table.get("k").await.unwrap().unwrap(), vec![byte; max], "{column}");
        }
        let error = table.put("k", vec![b'z'; max + 1]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{column}");
        assert!(table.has("k").await.unwrap(), "{column}");
        flagged(&store, "t", b"k").await;
        lose(&store, "t", b"k").await;
        assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost, "{column}");
        assert_eq!(table.entries_and_lost().await.unwrap().lost, ["k"], "{column}");
        table.put("k", "again").await.unwrap();
        assert_eq!(table.get("k").await.unwrap().unwrap(), "again", "{column}");
        command(server.addr(), "flush_all\r\n", "OK\r\n");
        assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost, "{column}");
        assert_eq!(table.put("l", "v").await.unwrap_err().kind(), ErrorKind::Lost, "{column}");
        assert_eq!(Table::open(&store, "t").await.unwrap_err().kind(), ErrorKind::Absent, "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_evicts_says_which_entries_are_lost() {
    let server = Memcached::start(Version::New, &["-m", "8"]);
    let store = client(server.addr(), "").await;
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let (mut lost, mut there) = (0, 0);
    for number in 0..600u32 {
        table.put(number.to_string(), vec![7; 30_000]).await.unwrap();
        // Read, the list is not what the server evicts.
        _ = table.keys().await.unwrap();
    }
    for number in 0..600u32 {
        match table.get(number.to_string()).await {
            Ok(Some(value)) => {
                assert_eq!(value, vec![7; 30_000]);
                there += 1;
            }
            Ok(None) => panic!("{number} was put, and is said to be absent"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 50 && there > 10, "{lost} lost, {there} there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_ends_by_the_servers_clock() {
    let mut tables = Vec::new();
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let store = client(server.addr(), &format!("dialect={dialect}")).await;
        let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
        table.put_for("short", "v", Duration::from_secs(3)).await.unwrap();
        table.put_for("put over", "v", Duration::from_secs(3)).await.unwrap();
        table.put("put over", "w").await.unwrap();
        assert!(table.has("short").await.unwrap());
        flagged(&store, "t", b"short").await;
        tables.push((server, table));
    }
    tokio::time::sleep(Duration::from_millis(4_500)).await;
    for ((_, table), column) in tables.iter().zip(COLUMNS) {
        assert_eq!(table.get("short").await.unwrap(), None, "{column:?}");
        assert_eq!(table.get("put over").await.unwrap().unwrap(), "w", "{column:?}");
        assert_eq!(sorted_keys(table).await, ["put over"], "{column:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_nine_commands_is_refused() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    let error = Table::open_or_create(&store, "t").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
