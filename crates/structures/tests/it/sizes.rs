//! What structures take of real servers' memory, and of this process's, at a share of the sizes that the targets are of.

use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memory::MemoryStore;
use larder_store_redis::{Config, RedisStore};
use larder_structures::lookup::Rows;
use larder_structures::records::{PackedRecords, Schema};
use larder_structures::{PackedTable, Precision, UniqueVisitors};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, Value};
use larder_testkit::servers::{Memcached, Version};

use crate::support::memcached::client;

/// An eighth of 10 million, whose hashes have 3 bits less than 32: so gaps, and what they take, are the same. In the process they fill 33 shards.
const VISITORS: u64 = 1_250_000;
const PRECISION: Precision = Precision::NearExact { bits: 29 };
/// Nothing here is about timing out.
const PATIENT: &str = "timeout_ms=10000&connect_timeout_ms=10000";

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
    let store = client(server.addr(), PATIENT).await;
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
    let store = client(server.addr(), PATIENT).await;
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

/// What of 10 million locations is not their bits: an element's target, 1.125 bytes, is the bits alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_million_records_take_their_bits_and_what_tells_a_loss() {
    const USERS: u64 = 10_000_000;
    const BITS_BYTES: u64 = USERS * 9 / 8;
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let before = memory.stats().bytes as u64;
    let schema = Schema::parse(["place:u9"]).unwrap();
    let records = PackedRecords::options().schema(schema).open_or_create(&store, "users").await.unwrap();
    let per_shard = (records.id_max() + 1) / u64::from(larder_structures::records::SHARDS_MAX);
    let shards = USERS.div_ceil(per_shard);
    for shard in 0..shards {
        records.set(shard * per_shard, &[("place", 1u64.into())]).await.unwrap();
    }
    let taken = memory.stats().bytes as u64 - before;
    // Shards are made whole, and of a class of 64 KiB.
    let beside = shards * ((64 << 10) - per_shard * 9 / 8);
    let unfilled = (shards * per_shard - USERS) * 9 / 8;
    let rest = taken - BITS_BYTES - beside - unfilled;
    println!(
        "{taken} bytes: {BITS_BYTES} of bits, {beside} of headers and keys in {shards} shards, {unfilled} of the last one, {rest} of index, ledger and manifest"
    );
    assert!(taken > BITS_BYTES, "the bits alone are the target");
    assert!(taken <= BITS_BYTES + BITS_BYTES / 250, "{taken}");
}

/// What a visitor takes in sets of 32 bits, by how many members the server is told to pack: by the 512 that it packs unless told, more than 4.4 bytes, whatever we do (`unique/sizing.rs`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compact_visitors_take_less_the_more_a_server_packs() {
    const VISITORS: u64 = 200_000;
    let mut each = Vec::new();
    for members_max in ["512", "1024", "4096"] {
        let server =
            RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().arg("set-max-intset-entries", members_max));
        let store = redis(&server).await;
        let site = UniqueVisitors::options().precision(Precision::Compact).expected(VISITORS);
        let site = site.open_or_create(&store, "site").await.unwrap();
        let day = site.current().unwrap();
        for first in (0..VISITORS).step_by(50_000) {
            site.add_in(day, first..first + 50_000).await.unwrap();
        }
        let stat = site.stat(day).await.unwrap().unwrap();
        assert_eq!(stat.unpacked_shards, 0, "{stat:?}");
        each.push(live(&server) as f64 / VISITORS as f64);
    }
    println!("bytes a visitor where 512, 1,024 and 4,096 are packed: {each:.3?}");
    assert!((4.4..4.6).contains(&each[0]) && each[1] < 4.4 && each[2] < 4.25, "{each:?}");
}

/// The blocks of a table stand in one slab class, and in no more of its pages than they fill: so what is resident is up to a page more than what is live, whatever the size of a block.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_packed_table_takes_whole_pages_of_one_class_of_memcached() {
    let server = Memcached::start(Version::Old, &[]);
    let store = client(server.addr(), PATIENT).await;
    let table = PackedTable::open_or_create(&store, "cities").await.unwrap();
    let mut random = fastrand::Rng::with_seed(5);
    let mut rows = Rows::new(["a", "b"]).unwrap();
    for id in 0..60_000u64 {
        rows.push_id(id, [0, 1].map(|_| format!("{:016x}", random.u64(..)))).unwrap();
    }
    let built = table.build(rows).await.unwrap();
    let stats = server.stats("slabs");
    let of = |class: &str, what: &str| -> u64 {
        let found = stats.lines().find_map(|line| line.trim().strip_prefix(&format!("STAT {class}:{what} ")));
        found.unwrap_or_else(|| panic!("no {what} of class {class}")).parse().unwrap()
    };
    let classes: Vec<&str> = stats
        .lines()
        .filter_map(|line| line.strip_prefix("STAT ")?.split_once(":used_chunks "))
        .map(|(class, _)| class)
        .collect();
    let blocks = classes.iter().max_by_key(|class| of(class, "used_chunks")).unwrap();
    let (used, pages) = (of(blocks, "used_chunks"), of(blocks, "total_pages"));
    let (filled, page_bytes) =
        (used * of(blocks, "chunk_size"), of(blocks, "chunk_size") * of(blocks, "chunks_per_page"));
    println!(
        "{used} chunks, {:.2} pages of which there are {pages}: {:.2} times as much",
        filled as f64 / page_bytes as f64,
        (pages * page_bytes) as f64 / filled as f64
    );
    assert!(used >= u64::from(built.blocks), "the blocks, and the directory, stand in one class");
    assert_eq!(pages, used.div_ceil(of(blocks, "chunks_per_page")), "no page is there for what came and went");
    // The manifest and the head.
    assert!(classes.iter().all(|class| class == blocks || of(class, "used_chunks") <= 2), "{stats}");
}
