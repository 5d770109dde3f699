//! What unique visitors take on real servers and in the process, and how fast they are added: a line a precision and store.
//!
//! `cargo run --release -p larder-testkit --example unique_memory -- 1000000 [memory|memcached|redis]`

mod common;

use std::time::Instant;

use common::Ground;
use larder::{IdKind, Precision, UniqueVisitors};

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
        for store in common::STORES {
            if only.as_deref().is_none_or(|only| only == store) {
                measure(store, visitors, precision, ids).await;
            }
        }
    }
}

async fn measure(on: &str, visitors: u64, precision: Precision, ids: IdKind) {
    let ground = Ground::start(on);
    let store = ground.store().await;
    let before = ground.held();
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
    let held = ground.held().since(before);
    let each = |bytes: u64| bytes as f64 / visitors as f64;
    println!(
        "| {on} | {} | {} | {:.3} | {:.3} | {rate:.0} | {took:.1?} | # counted {} of {visitors}, {:.2} missed",
        precision.as_str(),
        ids.as_str(),
        each(held.live),
        each(held.resident),
        count.visitors,
        count.missed
    );
}
