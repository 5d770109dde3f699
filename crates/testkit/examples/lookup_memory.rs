//! What a packed table takes on real servers and in the process, how long it takes to build, and what a lookup costs: the cities of the chapter's second job.
//!
//! `cargo run --release -p larder-testkit --example lookup_memory -- 370000 [memory|memcached|redis]`
//!
//! The time of decoding is that of a lookup in the process whose block is at hand, less that of reading it; over servers a lookup is one round trip and the same decoding.

mod common;

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::Ground;
use larder::layers::Counting;
use larder::lookup::Rows;
use larder::{Ctx, Op, PackedTable, StoreExt, StoreRef, Want};
use larder_store_memory::MemoryStore;
use larder_testkit::cities::{Cities, City};
use larder_testkit::servers::rss_bytes_of;

/// The argument of the child process that holds the items alone.
const LOAD: &str = "--load";
/// How many lookups are timed, in windows of so many; the first quartile of the windows counts, since others use the machine as well.
const LOOKUPS: usize = 50_000;
const WINDOW: usize = 100;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut args = std::env::args().skip(1).peekable();
    if args.next_if(|arg| arg == LOAD).is_some() {
        return load(&args.next().expect("a file")).await;
    }
    let count: usize = args.next().and_then(|count| count.parse().ok()).unwrap_or(370_000);
    let only = args.next();
    let cities: Vec<City> = Cities::new(1).take(count).collect();
    println!(
        "| store | live, MB | RSS, MB | RSS / live | values, MB | blocks | build, s | round trips a lookup | lookup, us | without decoding, us |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for on in common::STORES {
        if only.as_deref().is_none_or(|only| only == on) {
            measure(on, &cities).await;
        }
    }
}

async fn measure(on: &str, cities: &[City]) {
    let ground = Ground::start(on);
    let counting = Counting::new(ground.store().await);
    let store: StoreRef = Arc::new(counting.clone());
    let table = PackedTable::options().timeout(Duration::from_secs(60)).open_or_create(&store, "cities").await;
    let table = table.expect("a table");
    // What an empty table takes, which is a page of memcached's for each size of small items, is there before.
    table.build(Rows::new(["city", "region", "country"]).expect("columns")).await.expect("a build");
    let before = ground.held();
    let mut rows = Rows::new(["city", "region", "country"]).expect("columns");
    for (id, city) in (0u64..).zip(cities) {
        rows.push_id(id, city).expect("a row");
    }
    let start = Instant::now();
    let built = table.build(rows).await.expect("a build");
    let took = start.elapsed();
    let held = ground.held().since(before);
    let resident = match ground {
        Ground::Memory(_) => resident_of_a_copy(&store, built.blocks).await,
        _ => held.resident,
    };
    let mut random = fastrand::Rng::with_seed(2);
    let ids: Vec<u64> = (0..LOOKUPS).map(|_| random.u64(..cities.len() as u64)).collect();
    let trips = counting.counts().round_trips;
    let mut windows = Vec::new();
    for some in ids.chunks(WINDOW) {
        let start = Instant::now();
        for &id in some {
            let found = table.get(id).await.expect("an answer").expect("a row");
            let city = &cities[id as usize];
            assert!(found.fields.iter().zip(city).all(|(field, expected)| field == expected.as_bytes()));
        }
        windows.push(start.elapsed());
    }
    let lookup = quartile(windows);
    let trips = (counting.counts().round_trips - trips) as f64 / LOOKUPS as f64;
    let plain = plain_read(&store, &table, built.blocks).await;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / WINDOW as f64;
    println!(
        "| {on} | {:.2} | {:.2} | {:.2} | {:.2} | {} | {:.2} | {trips:.2} | {:.2} | {:.2} |",
        mb(held.live),
        mb(resident),
        resident as f64 / held.live as f64,
        mb(built.bytes),
        built.blocks,
        took.as_secs_f64(),
        each(lookup),
        each(plain),
    );
}

/// The keys of the blocks, as `docs/layouts.md` writes them down.
async fn block_keys(store: &StoreRef, blocks: u32) -> Vec<larder::Key> {
    let name = larder::Name::new("cities").expect("a name");
    let manifest = larder::find(store, Ctx::default(), &name).await.expect("a manifest").expect("a table");
    let key = |block| larder::Key::new(format!("L.cities.b.{:016x}.00000002-{block:x}", manifest.generation));
    (0..blocks).map(|block| key(block).expect("a key")).collect()
}

/// What a process grows by that holds the blocks and nothing else: in this one, packing has left room behind.
async fn resident_of_a_copy(store: &StoreRef, blocks: u32) -> u64 {
    let mut bytes = Vec::new();
    for key in block_keys(store, blocks).await {
        let item = store.get(key.clone()).await.expect("a read").expect("a block");
        for part in [key.as_bytes(), &item.value] {
            bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
        }
    }
    let path = std::env::temp_dir().join(format!("larder-lookup-{}", std::process::id()));
    std::fs::write(&path, bytes).expect("a file");
    let program = std::env::current_exe().expect("this program");
    let child = std::process::Command::new(program).arg(LOAD).arg(&path).output().expect("a child");
    std::fs::remove_file(&path).expect("the file");
    String::from_utf8_lossy(&child.stdout).trim().parse().expect("bytes")
}

/// Fills a store from a file and prints by how much this process grew.
async fn load(path: &str) {
    let mut file = std::io::BufReader::new(std::fs::File::open(path).expect("the file"));
    let store = MemoryStore::new();
    let mut part = || -> Option<Vec<u8>> {
        let mut len = [0; 4];
        file.read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        file.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let before = rss_bytes_of(std::process::id());
    while let (Some(key), Some(value)) = (part(), part()) {
        let key = larder::Key::new(key).expect("a key");
        store.put(key, larder::PutMode::Set, value, larder::Ttl::Never).await.expect("a put");
    }
    println!("{}", rss_bytes_of(std::process::id()).saturating_sub(before));
}

/// The time of a window that nobody else interrupted.
fn quartile(mut windows: Vec<Duration>) -> Duration {
    windows.sort_unstable();
    windows[windows.len() / 4]
}

/// The time that reading as many blocks takes, and nothing of them decoded.
async fn plain_read(store: &StoreRef, table: &PackedTable, blocks: u32) -> Duration {
    assert_eq!(table.stat().await.expect("a stat").blocks, blocks);
    let keys = block_keys(store, blocks).await;
    let mut random = fastrand::Rng::with_seed(3);
    let wanted: Vec<usize> = (0..LOOKUPS).map(|_| random.usize(..keys.len())).collect();
    let mut windows = Vec::new();
    for some in wanted.chunks(WINDOW) {
        let start = Instant::now();
        for &at in some {
            let reply = store.run_one(Ctx::default(), Op::get(keys[at].clone(), Want::VALUE)).await;
            assert!(reply.expect("a read").into_item().is_some());
        }
        windows.push(start.elapsed());
    }
    quartile(windows)
}
