//! Eight threads at once: nothing is lost, nothing is counted twice, the budget holds.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_core::{Arith, ErrorKind, Initial, PutMode, Reply, Ttl, Want};
use larder_store_memory::{Direct, MemoryStore};

const THREADS: usize = 8;
const ROUNDS: usize = 2_000;

/// Sets a flag when its owner is done, or panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn all_at_once(store: &MemoryStore, act: impl Fn(usize, Direct<'_>) + Sync) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let act = &act;
            scope.spawn(move || act(thread, store.direct()));
        }
    });
}

#[test]
fn increments_of_one_key_are_all_there() {
    let store = MemoryStore::new();
    let one = Some(Initial { value: 1, ttl: Ttl::Never });
    all_at_once(&store, |_, direct| {
        for _ in 0..ROUNDS {
            direct.arith(b"n", Arith::Incr(1), one).unwrap();
        }
    });
    let total = store.direct().arith(b"n", Arith::Incr(0), None).unwrap();
    assert_eq!(total, Reply::Number((THREADS * ROUNDS) as u64));
}

#[test]
fn appends_to_one_key_are_all_there_whole() {
    let store = MemoryStore::new();
    store.direct().put(b"log", PutMode::Set, b"", 0, Ttl::Never).unwrap();
    all_at_once(&store, |thread, direct| {
        for round in 0..ROUNDS {
            let entry = ((thread * ROUNDS + round) as u64).to_le_bytes();
            let mode = if round % 2 == 0 { PutMode::Append } else { PutMode::Prepend };
            assert_eq!(direct.put(b"log", mode, &entry, 0, Ttl::Never).unwrap(), Reply::Stored);
        }
    });
    let log = store.direct().read(b"log", |item| item.value.to_vec()).unwrap().unwrap();
    let entries: HashSet<_> = log.chunks(8).map(|entry| u64::from_le_bytes(entry.try_into().unwrap())).collect();
    assert_eq!((log.len(), entries.len()), (THREADS * ROUNDS * 8, THREADS * ROUNDS));
    assert!(entries.iter().all(|&entry| entry < (THREADS * ROUNDS) as u64));
}

#[test]
fn of_the_writers_with_one_token_one_wins() {
    let store = MemoryStore::new();
    store.direct().put(b"n", PutMode::Set, b"0", 0, Ttl::Never).unwrap();
    all_at_once(&store, |_, direct| {
        for _ in 0..ROUNDS / 4 {
            loop {
                let item = direct.get(b"n", Want::VALUE | Want::CAS).unwrap().unwrap();
                let number: u64 = std::str::from_utf8(&item.value).unwrap().parse().unwrap();
                let next = (number + 1).to_string();
                match direct.put(b"n", PutMode::Cas(item.cas.unwrap()), next.as_bytes(), 0, Ttl::Never).unwrap() {
                    Reply::Stored => break,
                    reply => assert_eq!(reply, Reply::Exists),
                }
            }
        }
    });
    let total = store.direct().arith(b"n", Arith::Incr(0), None).unwrap();
    assert_eq!(total, Reply::Number((THREADS * ROUNDS / 4) as u64));
}

#[test]
fn of_the_adders_one_wins() {
    let store = MemoryStore::new();
    let won = std::sync::atomic::AtomicUsize::new(0);
    all_at_once(&store, |_, direct| {
        for key in 0..ROUNDS {
            if direct.put(&key.to_le_bytes(), PutMode::Add, b"", 0, Ttl::Never).unwrap() == Reply::Stored {
                won.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    assert_eq!(won.load(Ordering::Relaxed), ROUNDS);
}

#[test]
fn the_budget_holds_at_every_moment() {
    for evict in [false, true] {
        let store = MemoryStore::builder().bytes_max(200_000).evict(evict).build().unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            // Also when a writer panics: the watcher would keep the scope, and the panic, for ever.
            let _over = SetOnDrop(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Shards are read one after the other: a sum may mix moments, but each part is capped.
                    let bytes = store.stats().bytes;
                    assert!(bytes <= 2 * 200_000, "{bytes}");
                    thread::yield_now();
                }
            });
            all_at_once(&store, |thread, direct| {
                for round in 0..ROUNDS {
                    let key = ((round * 31 + thread * 7) % 1_500).to_le_bytes();
                    let value = vec![b'v'; (round * 37) % 700];
                    let ttl = if round % 3 == 0 { Ttl::After(Duration::from_millis(2)) } else { Ttl::Never };
                    match direct.put(&key, PutMode::Set, &value, 0, ttl) {
                        Ok(reply) => assert_eq!(reply, Reply::Stored),
                        Err(error) => assert!(error.kind() == ErrorKind::Full && !evict, "{error}"),
                    }
                    if round % 5 == 0 {
                        direct.delete(&key, None).unwrap();
                    }
                }
            });
        });
        assert!(store.stats().bytes <= 200_000);
    }
}

#[test]
fn what_has_expired_goes_without_being_touched() {
    let store = MemoryStore::new();
    for key in 0..5_000u64 {
        let ttl = if key % 2 == 0 { Ttl::After(Duration::from_millis(20)) } else { Ttl::Never };
        store.direct().put(&key.to_le_bytes(), PutMode::Set, &[b'v'; 100], 0, ttl).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.stats().items > 2_500 {
        assert!(Instant::now() < deadline, "{:?}", store.stats());
        thread::sleep(Duration::from_millis(5));
    }
    let stats = store.stats();
    assert_eq!((stats.items, stats.expired), (2_500, 2_500));
}
