//! Machines whose clocks are hours apart, on real servers: what is promised holds, since only rates count.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Clock, ClockRef, StoreRef, SystemClock};
use larder_store_memcached::{Config, MemcachedStore};
use larder_structures::lock::Lock;
use larder_structures::{Array, Counter, Set};
use larder_testkit::servers::{Memcached, Version};

const HOUR: Duration = Duration::from_secs(3600);

/// A machine whose wall clock is off: three hours behind, or ahead.
#[derive(Debug)]
struct Off {
    right: SystemClock,
    is_ahead: bool,
}

impl Clock for Off {
    fn monotonic(&self) -> Duration {
        self.right.monotonic()
    }

    fn wall(&self) -> Duration {
        let now = self.right.wall();
        if self.is_ahead { now + 3 * HOUR } else { now - 3 * HOUR }
    }
}

fn clocks() -> [ClockRef; 3] {
    let off = |is_ahead| Arc::new(Off { right: SystemClock::new(), is_ahead });
    [off(true), SystemClock::shared(), off(false)]
}

async fn client(server: &Memcached) -> StoreRef {
    Arc::new(MemcachedStore::connect(Config::from_url(&server.url()).unwrap()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_and_sets_of_machines_hours_apart_lose_nothing() {
    for version in [Version::Old, Version::New] {
        let server = Memcached::start(version, &[]);
        let mut tasks = Vec::new();
        for (machine, clock) in clocks().into_iter().enumerate() {
            let store = client(&server).await;
            let counter = Counter::options().slots(2).clock(clock.clone());
            let counter = counter.open_or_create(&store, "counter").await.unwrap();
            let set = Set::options().clock(clock).dirtiness(64).open_or_create(&store, "set").await.unwrap();
            tasks.push(tokio::spawn(async move {
                for round in 0..300u32 {
                    counter.add(1).await.unwrap();
                    set.add([format!("{machine}-{}", round % 20)]).await.unwrap();
                    set.remove([format!("{machine}-{}", (round + 10) % 20)]).await.unwrap();
                }
                set.compact().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let store = client(&server).await;
        assert_eq!(Counter::open(&store, "counter").await.unwrap().get().await.unwrap(), 900, "{version:?}");
        // The last ten that each machine added.
        assert_eq!(Set::open(&store, "set").await.unwrap().members().await.unwrap().len(), 30, "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrays_and_fast_counters_of_machines_hours_apart_lose_nothing() {
    for version in [Version::Old, Version::New] {
        let server = Memcached::start(version, &[]);
        let mut tasks = Vec::new();
        for (machine, clock) in clocks().into_iter().enumerate() {
            let store = client(&server).await;
            let fast = Counter::options().fast().clock(clock.clone());
            let fast = fast.open_or_create(&store, "fast").await.unwrap();
            let array = Array::options().shards(2).clock(clock).dirtiness(64);
            let array = array.open_or_create(&store, "array").await.unwrap();
            tasks.push(tokio::spawn(async move {
                for round in 0..100u32 {
                    fast.add(1).await.unwrap();
                    array.push([format!("{machine}-{round}")]).await.unwrap();
                    if round >= 10 {
                        array.change([""; 0], [format!("{machine}-{}", round - 10)]).await.unwrap();
                    }
                }
                array.compact().await.unwrap();
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let store = client(&server).await;
        assert_eq!(Counter::open(&store, "fast").await.unwrap().get().await.unwrap(), 300, "{version:?}");
        // The last ten that each machine pushed.
        let array = Array::open(&store, "array").await.unwrap();
        assert_eq!(array.elements().await.unwrap().len(), 30, "{version:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_not_robbed_by_a_machine_hours_ahead_and_its_tokens_still_grow() {
    for version in [Version::Old, Version::New] {
        let server = Memcached::start(version, &[]);
        let mut last_token = 0;
        for holder in clocks() {
            let lease = Duration::from_secs(30);
            let lock = Lock::options().lease(lease).clock(holder).open(&client(&server).await, "lock").await.unwrap();
            let guard = lock.try_acquire().await.unwrap().expect("free");
            assert!(guard.fencing_token() > last_token, "{version:?}");
            last_token = guard.fencing_token();
            for other in clocks() {
                let store = client(&server).await;
                let other = Lock::options().lease(lease).clock(other).open(&store, "lock").await.unwrap();
                assert!(other.try_acquire().await.unwrap().is_none(), "{version:?}: robbed");
            }
            guard.release().await.unwrap();
        }
    }
}
