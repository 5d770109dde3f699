//! What unique visitors take on real servers and in the process, and how fast they are added: a line a precision and store.
//!
//! `cargo run --release -p larder-testkit --example unique_memory -- 1000000 [memory|memcached|redis]`

use std::sync::Arc;
use std::time::Instant;

use larder::{IdKind, Precision, StoreRef, UniqueVisitors};
use larder_store_memory::MemoryStore;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version, rss_bytes_of};

/// How many ids go out together.
const BATCH: u64 = 65_536;

#[tokio::main]
async fn main() {
    let mut args = std::env::args().skip(1);
    let visitors: u64 = args.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let only = args.next();
    let kinds = [
        (Precision::Compact, IdKind::Any),
        (Precision::NEAR_EXACT, IdKind::Any),
        (Precision::Exact, IdKind::Integer),
        (Precision::Exact, IdKind::Any),
        (Precision::SKETCH, IdKind::Any),
    ];
    println!("| store | precision | ids | bytes a visitor, live | RSS | ids/s | count in |");
    println!("|---|---|---|---|---|---|---|");
    for (precision, ids) in kinds {
        for store in ["memory", "memcached", "redis"] {
            if only.as_deref().is_none_or(|only| only == store) {
                measure(store, visitors, precision, ids).await;
            }
        }
    }
}

async fn measure(on: &str, visitors: u64, precision: Precision, ids: IdKind) {
    let server = (on == "memcached").then(|| Memcached::start(Version::Old, &["-m", "4096"]));
    let redis = (on == "redis").then(|| RedisServer::start(RedisVersion::Redis7, &RedisOptions::new()));
    let memory = Arc::new(MemoryStore::new());
    let url = server.as_ref().map(Memcached::url).or_else(|| redis.as_ref().map(RedisServer::url));
    let store: StoreRef = match url {
        Some(url) => larder::open(&url).await.expect("a server"),
        None => memory.clone(),
    };
    let rss = || match (&server, &redis) {
        (Some(server), _) => server.rss_bytes(),
        (_, Some(redis)) => redis.rss_bytes(),
        _ => rss_bytes_of(std::process::id()),
    };
    // What connections hold is no data: 80 KB after large batches, which a sketch is less than.
    let used = || {
        let of = |field| redis.as_ref().map_or(0, |redis| redis.info("memory", field).parse::<u64>().unwrap_or(0));
        of("used_memory").saturating_sub(of("mem_clients_normal"))
    };
    let (before, used_before) = (rss(), used());
    let options = UniqueVisitors::options().precision(precision).ids(ids).expected(visitors);
    let site = options.open_or_create(&store, "site").await.expect("unique visitors");
    let (start, mut random) = (Instant::now(), fastrand::Rng::with_seed(1));
    let mut left = visitors;
    while left > 0 {
        let count = left.min(BATCH);
        let batch: Vec<u64> = (0..count).map(|_| random.u64(..)).collect();
        site.add(batch).await.expect("an add");
        left -= count;
    }
    let rate = visitors as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    let count = site.count().await.expect("a count");
    let took = start.elapsed();
    let live = match (&server, &redis) {
        // Whole chunks of the slabs in use.
        (Some(server), _) => server.used_chunk_bytes(),
        (_, Some(_)) => used().saturating_sub(used_before),
        _ => memory.stats().bytes as u64,
    };
    let each = |bytes: u64| bytes as f64 / visitors as f64;
    println!(
        "| {on} | {} | {} | {:.3} | {:.3} | {rate:.0} | {took:.1?} | # counted {} of {visitors}, {:.2} missed",
        precision.as_str(),
        ids.as_str(),
        each(live),
        each(rss().saturating_sub(before)),
        count.visitors,
        count.missed
    );
}
