//! The jobs: what clients do with each structure.

mod caches;
mod counters;
mod drive;
mod lives;
mod locks;
mod logs;
mod maps;
pub mod planted;
pub(crate) mod queues;
mod records;
mod sharded;
mod tables;
mod uniques;

use larder_structures::Kind;

use super::{Arena, Boxed, Job, Run, Verdict};

/// One or more for every structure.
pub const JOBS: &[Job] = &[
    job("lock", Kind::Lock, locks::lock),
    job("counter", Kind::Counter, counters::exact),
    job("fast counter", Kind::FastCounter, counters::fast),
    job("set", Kind::Set, maps::set),
    job("visitors", Kind::Visitors, counters::visitors),
    job("visitors by window", Kind::Visitors, counters::windows),
    job("event log", Kind::EventLog, logs::log),
    job("array", Kind::Array, maps::array),
    job("array changes", Kind::Array, maps::array_changes),
    job("table", Kind::Table, maps::table),
    job("table with lives", Kind::Table, lives::table),
    job("queue", Kind::Queue, queues::queue),
    job("stack", Kind::Stack, queues::stack),
    job("cache", Kind::Cache, caches::cache),
    job("unique visitors", Kind::UniqueVisitors, uniques::exact),
    job("unique visitors, compact", Kind::UniqueVisitors, uniques::compact),
    job("unique visitors, near-exact", Kind::UniqueVisitors, uniques::near_exact),
    job("unique visitors, sketch", Kind::UniqueVisitors, uniques::sketch),
    job("packed records", Kind::Records, records::records),
    job("highest id", Kind::Records, records::highest),
    job("sharded hash", Kind::ShardedHash, sharded::hash),
    job("sharded set", Kind::ShardedSet, sharded::set),
    job("sharded sorted set", Kind::ShardedSortedSet, sharded::sorted_set),
    job("packed table", Kind::PackedTable, tables::packed),
];

/// Of a store of several servers of which one alone loses what it has: nothing of it may ever be missing, told or not.
pub const COPIES: Job = job("counter of copies", Kind::Counter, counters::of_copies);

const fn job(name: &'static str, kind: Kind, run: fn(Arena, Run) -> Boxed<Verdict>) -> Job {
    Job { name, kind, run }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use larder_core::{Clock, ClockRef, StoreRef, SystemClock};
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::history::{Caused, by_clocks, calm};

    /// A clock that counts who asks it.
    #[derive(Debug, Default)]
    struct Asked {
        times: AtomicU64,
        right: SystemClock,
    }

    impl Clock for Asked {
        fn monotonic(&self) -> Duration {
            self.times.fetch_add(1, Ordering::SeqCst);
            self.right.monotonic()
        }

        fn wall(&self) -> Duration {
            self.times.fetch_add(1, Ordering::SeqCst);
            self.right.wall()
        }
    }

    /// Structures that are given no clock take the system's, of which a simulation has one for each handle, too.
    const NO_CLOCK: [Kind; 5] =
        [Kind::Records, Kind::ShardedHash, Kind::ShardedSet, Kind::ShardedSortedSet, Kind::PackedTable];

    #[tokio::test]
    async fn each_handle_of_a_job_goes_by_a_clock_of_its_own() {
        for job in JOBS.iter().filter(|job| !NO_CLOCK.contains(&job.kind)) {
            let given: Arc<Mutex<Vec<Arc<Asked>>>> = Arc::default();
            let shared = given.clone();
            let clocks = move || {
                let clock = Arc::new(Asked::default());
                shared.lock().unwrap().push(clock.clone());
                clock as ClockRef
            };
            let store: StoreRef = Arc::new(MemoryStore::builder().build().unwrap());
            let (clients, caused) = (vec![store.clone(); 3], Arc::new(Caused::default()));
            let arena = Arena { clients, quiet: store, caused, calm: calm() };
            let verdict = by_clocks(clocks, (job.run)(arena, Run { seed: 1, ops: 30 })).await;
            assert_eq!(verdict.violations, [""; 0], "{}", job.name);
            let asked = given.lock().unwrap().iter().filter(|clock| clock.times.load(Ordering::SeqCst) > 0).count();
            assert!(asked >= 5, "{}: {asked} clocks for who makes it, three clients and who reads it last", job.name);
        }
    }
}
