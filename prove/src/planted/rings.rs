//! Two structures as the documents have them: a lock that is freed blindly, and a log on a ring of chunks.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::{Clock, Ctx, Key, Op, PutMode, Reply, StoreExt, StoreRef, Ttl, Want};
use larder_store_memory::MemoryStore;
use larder_testkit::history::check::grants::{Hold, overlaps};
use larder_testkit::history::check::log::{Allowed, LogOp, LogTold, check};
use larder_testkit::history::recorder::Recorder;

use crate::virtual_time::{self, VirtualClock};

const LEASE: Duration = Duration::from_millis(500);
const TURNS: usize = 30;

/// The documents' lock, an item with a life that its holder deletes. Who stood still past his lease deletes that of another; with a
/// delete by token he does not.
pub(super) fn blind_unlock(seed: u64, is_planted: bool) -> Vec<String> {
    virtual_time::run(seed, async {
        let clock = VirtualClock::shared();
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().expect("a store"));
        let holds = Arc::new(Mutex::new(Vec::new()));
        let clients: Vec<_> = (0..3)
            .map(|client| {
                let rng = fastrand::Rng::with_seed(seed.wrapping_mul(3).wrapping_add(client as u64));
                tokio::spawn(holder(client, store.clone(), clock.clone(), rng, holds.clone(), is_planted))
            })
            .collect();
        for client in clients {
            client.await.expect("a client");
        }
        let holds = std::mem::take(&mut *holds.lock().unwrap_or_else(PoisonError::into_inner));
        overlaps(&holds)
    })
}

async fn holder(
    client: usize,
    store: StoreRef,
    clock: Arc<VirtualClock>,
    mut rng: fastrand::Rng,
    holds: Arc<Mutex<Vec<Hold>>>,
    is_blind: bool,
) {
    let key = Key::new("lock").expect("a key");
    let now_ms = || clock.monotonic().as_millis() as u64;
    for _ in 0..TURNS {
        let take = Op::put(key.clone(), PutMode::Add, client.to_string(), Ttl::After(LEASE));
        while store.run_one(Ctx::default(), take.clone()).await.expect("a store that works") != Reply::Stored {
            tokio::time::sleep(Duration::from_millis(rng.u64(1..40))).await;
        }
        let from = now_ms();
        let token = store.run_one(Ctx::default(), Op::get(key.clone(), Want::CAS)).await.ok();
        let token = token.and_then(Reply::into_item).and_then(|item| item.cas);
        // Once in three turns longer than the lease.
        let work = if rng.u8(..3) == 0 { rng.u64(510..900) } else { rng.u64(10..300) };
        tokio::time::sleep(Duration::from_millis(work)).await;
        let until = now_ms().min(from + LEASE.as_millis() as u64);
        let hold = Hold { client, token: token.map_or(0, |token| token.token), from, until };
        holds.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
        let free = match token.filter(|_| !is_blind) {
            Some(token) => Op::delete_if(key.clone(), token),
            None => Op::delete(key.clone()),
        };
        _ = store.run_one(Ctx::default(), free).await;
        tokio::time::sleep(Duration::from_millis(rng.u64(1..100))).await;
    }
}

const CHUNKS: u64 = 4;
const EVENTS: u64 = 200;

/// What is wrong with a log on a ring of chunks, each with a life of one round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ring {
    /// Nothing: its chunks have absolute numbers.
    Sound,
    /// A chunk is known by its place alone: a late event makes an old one anew, with a whole life, and shows when the ring comes round.
    ByPlace,
    /// Places are read from the first up to the end of the ring and on to the last, also where the first is the last.
    Wraps,
}

/// The documents' log, whose late events show in a new window.
pub(super) fn late_event(seed: u64, is_planted: bool) -> Vec<String> {
    log(seed, if is_planted { Ring::ByPlace } else { Ring::Sound })
}

/// The documents' log, whose windows of one chunk are the whole ring.
pub(super) fn whole_ring(seed: u64, is_planted: bool) -> Vec<String> {
    log(seed, if is_planted { Ring::Wraps } else { Ring::Sound })
}

/// The chunks that are read of a window that ends now: of each place the newest.
fn chunks(ring: Ring, first: u64, now: u64) -> Vec<u64> {
    let (from, to) = (first % CHUNKS, now % CHUNKS);
    let goes_up = if ring == Ring::Wraps { from < to } else { from <= to };
    let places: Vec<u64> = if goes_up { (from..=to).collect() } else { (from..CHUNKS).chain(0..=to).collect() };
    places.into_iter().map(|place| now - (now + CHUNKS - place) % CHUNKS).collect()
}

fn log(seed: u64, ring: Ring) -> Vec<String> {
    virtual_time::run(seed, async {
        let clock = VirtualClock::shared();
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().expect("a store"));
        let mut rng = fastrand::Rng::with_seed(seed);
        let history = Recorder::<LogOp, LogTold>::default();
        let chunk_ms = 1_000;
        let place = |chunk: u64| if ring == Ring::ByPlace { chunk % CHUNKS } else { chunk };
        let key = |chunk: u64| Key::new(format!("chunk-{}", place(chunk))).expect("a key");
        for event in 0..EVENTS {
            let now = CHUNKS + clock.monotonic().as_millis() as u64 / chunk_ms;
            let late = if rng.u8(..10) == 0 { rng.u64(..CHUNKS) } else { 0 };
            let chunk = now - late;
            let life = Ttl::After(Duration::from_millis(chunk_ms * CHUNKS));
            let put = async {
                let append = Op::put(key(chunk), PutMode::Append, format!("{event} "), Ttl::Never);
                if store.run_one(Ctx::default(), append).await? == Reply::NotStored {
                    let make = Op::put(key(chunk), PutMode::Add, format!("{event} "), life);
                    store.run_one(Ctx::default(), make).await?;
                }
                Ok(LogTold::default())
            };
            history.call(0, LogOp::PutAt(event, chunk), put).await;
            tokio::time::sleep(Duration::from_millis(rng.u64(1..400))).await;
            let now = CHUNKS + clock.monotonic().as_millis() as u64 / chunk_ms;
            let first = now - rng.u64(..2);
            let read = async {
                let mut events = Vec::new();
                for chunk in chunks(ring, first, now) {
                    let item = store.get(key(chunk)).await?;
                    let text = item.map(|item| String::from_utf8_lossy(&item.value).into_owned()).unwrap_or_default();
                    events.extend(text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()));
                }
                Ok(LogTold { events, ..LogTold::default() })
            };
            history.call(0, LogOp::Window(first, now), read).await;
        }
        check(&history.finish().0, Allowed::default()).bad
    })
}
