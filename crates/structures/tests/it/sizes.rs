//! What structures take of real servers' memory, and of this process's, at a share of the sizes that the targets are of.

use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memory::MemoryStore;
use larder_store_redis::{Config, RedisStore};
use larder_structures::records::{PackedRecords, Schema};
use larder_structures::{Precision, UniqueVisitors};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, Value};
use larder_testkit::servers::{Memcached, Version};

use crate::support::memcached::client;

/// An eighth of 10 million, whose hashes have 3 bits less than 32: so gaps, and what they take, are the same. In the process they fill 33 shards.
const VISITORS: u64 = 1_250_000;
const PRECISION: Precision = Precision::NearExact { bits: 29 };

async fn redis(server: &RedisServer) -> StoreRef {
    let config = Config::from_url(&format!("{}?timeout_ms=20000&connect_timeout_ms=10000", server.url())).unwrap();
    Arc::new(RedisStore::connect(config).await.unwrap())
}

/// What a server's keys and values take in its allocator's classes: buffers, scripts and replies come and go beside them, and weigh too much at a share of the size.
fn live(server: &RedisServer) -> u64 {
    let Value::Array(keys) = server.command(&["KEYS", "*"]) else { panic!("the keys") };
    let taken = keys.iter().map(|key| match key {
        Value::Bulk(key) => match server.command(&[&b"MEMORY"[..], b"USAGE", key, b"SAMPLES", b"0"]) {
            Value::Int(bytes) => u64::try_from(bytes).unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    });
    taken.sum()
}

async fn fill(store: &StoreRef) {
    let site = UniqueVisitors::options().precision(PRECISION).expected(VISITORS);
    let site = site.open_or_create(store, "site").await.unwrap();
    let day = site.current().unwrap();
    for first in (0..VISITORS).step_by(125_000) {
        site.add_in(day, first..first + 125_000).await.unwrap();
    }
}

fn a_visitor(bytes: u64) -> f64 {
    bytes as f64 / VISITORS as f64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn near_exact_visitors_take_what_is_documented() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    fill(&store).await;
    let in_process = a_visitor(memory.stats().bytes as u64);

    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = redis(&server).await;
    fill(&store).await;
    let on_redis = a_visitor(live(&server));

    let server = Memcached::start(Version::Old, &[]);
    let store = client(server.addr(), "").await;
    fill(&store).await;
    let on_memcached = a_visitor(server.used_chunk_bytes());

    println!("bytes a visitor: {in_process:.4} in the process, {on_redis:.4} on Redis, {on_memcached:.4} on memcached");
    // The head, the ledger and the manifest weigh eight times what they do of 10 million.
    assert!(in_process <= 1.305, "{in_process}");
    assert!(on_redis <= 1.35, "{on_redis}");
    assert!(on_memcached <= 1.5, "{on_memcached}");
}

/// Ten shards, which are made whole: so many more hold 10 million locations of 9 bits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_take_what_is_documented() {
    const SHARDS: u64 = 10;
    const USERS: u64 = 10_000_000;
    let open = async |store: &StoreRef| {
        let schema = Schema::parse(["place:u9"]).unwrap();
        let records = PackedRecords::options().schema(schema).open_or_create(store, "users").await.unwrap();
        records.set(0, &[("place", 1u64.into())]).await.unwrap();
        let per_shard = (records.id_max() + 1) / u64::from(larder_structures::records::SHARDS_MAX);
        (records, per_shard)
    };
    let ten_more = async |(records, per_shard): &(PackedRecords, u64)| {
        for shard in 1..=SHARDS {
            records.set(shard * per_shard, &[("place", 1u64.into())]).await.unwrap();
        }
    };
    let a_user = |bytes: u64, (_, per_shard): &(PackedRecords, u64)| {
        (USERS.div_ceil(*per_shard) * bytes.div_ceil(SHARDS)) as f64 / USERS as f64
    };

    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let users = open(&store).await;
    let before = memory.stats().bytes as u64;
    ten_more(&users).await;
    let in_process = a_user(memory.stats().bytes as u64 - before, &users);

    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    let store = redis(&server).await;
    let users = open(&store).await;
    let before = live(&server);
    ten_more(&users).await;
    let on_redis = a_user(live(&server) - before, &users);

    let server = Memcached::start(Version::Old, &[]);
    let store = client(server.addr(), "").await;
    let users = open(&store).await;
    let before = server.used_chunk_bytes();
    ten_more(&users).await;
    let on_memcached = a_user(server.used_chunk_bytes() - before, &users);

    println!("bytes a user: {in_process:.4} in the process, {on_redis:.4} on Redis, {on_memcached:.4} on memcached");
    // 9 bits are 1.125 bytes, and a shard has a header and a key.
    assert!(in_process <= 1.129, "{in_process}");
    assert!(on_redis <= 1.13, "{on_redis}");
    assert!(on_memcached <= 1.15, "{on_memcached}");
}
