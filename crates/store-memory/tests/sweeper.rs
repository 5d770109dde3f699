//! The sweeper's thread, alone in its process so that it can be counted.

#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use larder_core::{PutMode, Ttl};
use larder_store_memory::MemoryStore;

fn sweepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter(|task| {
            std::fs::read(task.as_ref().unwrap().path().join("comm")).is_ok_and(|name| name == b"larder-sweep\n")
        })
        .count()
}

fn wait_for(count: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while sweepers() != count {
        assert!(Instant::now() < deadline, "{} sweepers, not {count}", sweepers());
        std::thread::yield_now();
    }
}

#[test]
fn the_thread_starts_with_the_first_life_and_ends_with_the_store() {
    // It does not sleep its turn out. The best of five: on a busy machine it may wait for its core.
    let quickest = (0..5).map(|_| from_the_first_life_to_the_end()).min().unwrap();
    assert!(quickest < Duration::from_millis(400), "{quickest:?}");
}

/// How long the thread takes to end.
fn from_the_first_life_to_the_end() -> Duration {
    let store = MemoryStore::new();
    store.direct().put(b"k", PutMode::Set, b"v", 0, Ttl::Never).unwrap();
    assert_eq!(sweepers(), 0);
    for key in 0..100u8 {
        store.direct().put(&[key], PutMode::Set, b"v", 0, Ttl::After(Duration::from_secs(60))).unwrap();
    }
    wait_for(1);
    let started = Instant::now();
    drop(store);
    wait_for(0);
    started.elapsed()
}
