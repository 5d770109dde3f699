//! What packed records take on real servers and in the process, and how fast all of them are counted: places of 9 bits, as in the chapter's third job.
//!
//! `cargo run --release -p larder-testkit --example records_memory -- 10000000 [memory|memcached|redis]`
//!
//! The plain read is the same shards, brought over the same connection in batches of the same size, and nothing counted.

mod common;

use std::time::{Duration, Instant};

use common::Ground;
use larder::native::Native;
use larder::records::{Schema, Value};
use larder::{Batch, Ctx, Durability, Key, Op, PackedRecords, StoreRef, Want};

/// Different places, of which some are far more frequent than others.
const PLACES: usize = 320;
/// How many records go out together.
const BATCH: u64 = 1 << 16;
/// How often a time is taken; the least counts, since others use the machine as well.
const TRIES: usize = 15;
/// Of shards of this size, how many are read at once.
const BLOCK_BYTES: usize = 2 << 20;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut args = std::env::args().skip(1);
    let users: u64 = args.next().and_then(|count| count.parse().ok()).unwrap_or(1_000_000);
    let only = args.next();
    println!("| store | bytes a user, live | RSS | sets/s | aggregate | plain read | ratio |");
    println!("|---|---|---|---|---|---|---|");
    for on in common::STORES {
        if only.as_deref().is_none_or(|only| only == on) {
            measure(on, users).await;
        }
    }
}

async fn measure(on: &str, users: u64) {
    let ground = Ground::start(on);
    let store = ground.store().await;
    let labels: Vec<String> = (0..PLACES).map(|place| format!("P{place:03}")).collect();
    let schema = Schema::new().choice("place", labels.iter().map(String::as_str)).build().expect("a schema");
    let options = PackedRecords::options().schema(schema).timeout(Duration::from_secs(60));
    let before = ground.held();
    let records = options.open_or_create(&store, "users").await.expect("records");
    let (start, mut random) = (Instant::now(), fastrand::Rng::with_seed(1));
    let mut counts = vec![0u64; PLACES];
    for first in (0..users).step_by(BATCH as usize) {
        let entries: Vec<(u64, [(&str, Value); 1])> = (first..users.min(first + BATCH))
            .map(|id| {
                // The square makes some places some hundred times as frequent as others.
                let place = (random.f64().powi(2) * PLACES as f64) as usize;
                counts[place] += 1;
                (id, [("place", labels[place].as_str().into())])
            })
            .collect();
        records.set_many(entries.iter().map(|(id, fields)| (*id, &fields[..]))).await.expect("a set");
    }
    let rate = users as f64 / start.elapsed().as_secs_f64();
    let held = ground.held().since(before);
    let mut aggregate = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        let found = records.aggregate(&["place"]).await.expect("an aggregate");
        aggregate = aggregate.min(start.elapsed());
        assert!(labels.iter().zip(&counts).all(|(label, &count)| found.count(&[label.as_str().into()]) == count));
    }
    let plain = plain_read(&store, users).await;
    let each = |bytes: u64| bytes as f64 / users as f64;
    println!(
        "| {on} | {:.3} | {:.3} | {rate:.0} | {aggregate:.2?} | {plain:.2?} | {:.2} |",
        each(held.live),
        each(held.resident),
        aggregate.as_secs_f64() / plain.as_secs_f64()
    );
}

/// The least time that reading as many bytes takes: items (or bits) of the size of a shard, one batch after the other.
async fn plain_read(store: &StoreRef, users: u64) -> Duration {
    let is_native = store.profile().natives.contains(larder::native::Families::BITS);
    let shard_bytes = match store.profile().durability {
        _ if is_native => (1 << 20) - 64,
        Durability::Process => 65_000,
        _ => 8_700,
    };
    let shards = (users as usize * 9 / 8).div_ceil(shard_bytes);
    let keys: Vec<Key> = (0..shards).map(|shard| Key::new(format!("plain-{shard}")).expect("a key")).collect();
    let value = bytes::Bytes::from(vec![0x5a; shard_bytes]);
    for key in &keys {
        let make = match is_native {
            true => Op::native(key.clone(), Native::BitsMake { value: value.clone() }),
            false => Op::put(key.clone(), larder::PutMode::Set, value.clone(), larder::Ttl::Never),
        };
        store
            .run(Ctx::default(), Batch::from_iter([make]))
            .await
            .into_iter()
            .for_each(|reply| drop(reply.expect("a put")));
    }
    let read = |key: &Key| match is_native {
        true => Op::native(key.clone(), Native::BitsRead { offset_bytes: 0, len_bytes: 1 << 20 }),
        false => Op::get(key.clone(), Want::VALUE),
    };
    let mut least = Duration::MAX;
    for _ in 0..TRIES {
        let start = Instant::now();
        for part in keys.chunks((BLOCK_BYTES / shard_bytes).max(1)) {
            for reply in store.run(Ctx::default(), part.iter().map(read).collect()).await {
                reply.expect("a read");
            }
        }
        least = least.min(start.elapsed());
    }
    least
}
