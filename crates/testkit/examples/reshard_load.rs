//! What a resharding costs those who read and write meanwhile: latencies of single operations before and during it, on real servers.
//!
//! `cargo run --release -p larder-testkit --example reshard_load [ELEMENTS]`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_structures::ShardedSet;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

const TASKS: u64 = 4;
const FROM: u16 = 8_000;
const TO: u16 = 16_000;

#[tokio::main]
async fn main() -> larder_core::Result<()> {
    let elements: u64 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    run("Redis 7", &redis.url(), elements).await?;
    let memcached = Memcached::start(Version::New, &["-m", "512"]);
    run("memcached", &memcached.url(), elements).await
}

async fn run(what: &str, url: &str, elements: u64) -> larder_core::Result<()> {
    // Those who read and write have a connection of their own, as other processes would.
    let (store, other) = (larder::open(url).await?, larder::open(url).await?);
    let options = ShardedSet::options().shards(FROM).timeout(Duration::from_secs(60));
    let set = options.clone().open_or_create(&store, "seen").await?;
    let start = Instant::now();
    for first in (0..elements).step_by(10_000) {
        set.add((first..(first + 10_000).min(elements)).map(|n| n.to_string())).await?;
    }
    println!("{what}: {elements} members in {FROM} shards, added in {:.1?}", start.elapsed());
    let user = options.open_or_create(&other, "seen").await?;
    let new = Arc::new(AtomicU64::new(0));
    let before = under_load(&user, elements, &new, tokio::time::sleep(Duration::from_secs(5))).await?;
    println!("  before it:  {}", shown(before));
    let start = Instant::now();
    let resharding = async { set.reshard(TO).await.expect("a resharding") };
    let during = under_load(&user, elements, &new, resharding).await?;
    println!("  during it:  {}, {FROM} to {TO} shards in {:.1?}", shown(during), start.elapsed());
    let (len, expected) = (set.len().await?, elements + new.load(Ordering::Relaxed));
    assert_eq!((len, set.members().await?.len() as u64), (expected, expected), "nothing lost, nothing doubled");
    println!("  and there are {len} members, as there should be");
    Ok(())
}

/// How long operations took, one at a time in each of some tasks, while something goes on.
async fn under_load(
    set: &ShardedSet,
    elements: u64,
    new: &Arc<AtomicU64>,
    meanwhile: impl Future<Output = ()>,
) -> larder_core::Result<Vec<Duration>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks = (0..TASKS).map(|_| {
        let (set, is_over, new) = (set.clone(), is_over.clone(), new.clone());
        tokio::spawn(async move {
            let mut took = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                if fastrand::bool() {
                    let is_there = set.has(fastrand::u64(..elements).to_string()).await?;
                    assert!(is_there, "a member is lost");
                } else {
                    let member = format!("x{}", fastrand::u64(..));
                    new.fetch_add(set.add([member]).await?.into_iter().map(u64::from).sum(), Ordering::Relaxed);
                }
                took.push(start.elapsed());
            }
            larder_core::Result::Ok(took)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    meanwhile.await;
    is_over.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("no panic")?);
    }
    all.sort_unstable();
    Ok(all)
}

fn shown(took: Vec<Duration>) -> String {
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    let (half, most, longest) = (at(0.5), at(0.999), at(1.0));
    let over = took.iter().filter(|took| **took > Duration::from_millis(50)).count();
    format!("{} operations: median {half:.1?}, 99.9 % {most:.1?}, longest {longest:.1?}, {over} over 50 ms", took.len())
}
