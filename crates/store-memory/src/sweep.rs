//! The sweeper: a thread that removes what has expired without being asked for.
//!
//! It looks only at shards whose earliest expiry has passed, holds a lock for a bounded number of buckets, and rests nine times as
//! long as it works. So an item goes within about a second of its expiry, or as fast as a tenth of a core can go round the
//! store (some 50 million items a second of work).

use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crate::store::Inner;

/// How long the sweeper sleeps when nothing is due.
const IDLE: Duration = Duration::from_millis(500);
/// How long it works at most before it rests, and for how many times as long.
const WORK_MAX: Duration = Duration::from_millis(2);
const REST_FACTOR: u32 = 9;
/// The shortest rest: the timer is no finer.
const REST_MIN: Duration = Duration::from_millis(1);

/// Starts the thread. It ends when the store is dropped; an error of the system leaves expired items to be found by ops.
pub(crate) fn start(inner: &Arc<Inner>) -> Option<Thread> {
    let weak = Arc::downgrade(inner);
    let spawned = thread::Builder::new().name("larder-sweep".to_owned()).spawn(move || sweep_until_dropped(&weak));
    spawned.ok().map(|handle| handle.thread().clone())
}

fn sweep_until_dropped(weak: &Weak<Inner>) {
    let mut shard = 0;
    // The store's drop unparks the thread, which then finds nothing to upgrade.
    while let Some(inner) = weak.upgrade() {
        let started = Instant::now();
        let idle = sweep_some(&inner, &mut shard, started);
        drop(inner);
        thread::park_timeout(if idle { IDLE } else { (started.elapsed() * REST_FACTOR).max(REST_MIN) });
    }
}

/// Sweeps from `shard` on, for [`WORK_MAX`] or once around: true if that found nothing more that is due.
fn sweep_some(inner: &Inner, shard: &mut usize, started: Instant) -> bool {
    let now_ms = inner.shared.now_ms();
    for _ in 0..inner.slots.len() {
        let slot = &inner.slots[*shard % inner.slots.len()];
        while slot.earliest_ms() <= now_ms {
            let (removed, done) = slot.lock(&inner.shared).sweep(now_ms);
            inner.count_expired(removed);
            if started.elapsed() > WORK_MAX {
                return false;
            }
            if done {
                break;
            }
        }
        *shard = (*shard + 1) % inner.slots.len();
    }
    true
}
