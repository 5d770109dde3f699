//! What a store has done so far: for metrics, and for tests that count round trips.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the store was opened. Each only grows.
///
/// ```
/// use larder_store_redis::Stats;
/// assert_eq!(Stats::default().ops, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections that were opened and shook hands.
    pub connections: u64,
    /// Of those, the ones that replaced a lost one.
    pub reconnects: u64,
    /// Dials that failed.
    pub dials_failed: u64,
    /// Connections given up because nothing came over them.
    pub poisoned: u64,
    /// Commands handed to a connection.
    pub ops: u64,
    /// Round trips: parts of batches handed to a connection.
    pub round_trips: u64,
    /// Commands whose caller stopped waiting at the deadline.
    pub timeouts: u64,
    /// Times that the server had forgotten a script, and it was loaded again.
    pub scripts_reloaded: u64,
    /// Ops that a node of a cluster sent elsewhere (`MOVED`, `ASK`).
    pub redirections: u64,
    /// Times that a cluster was asked who serves what.
    pub maps_read: u64,
    /// Bytes handed to the system to send.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
}

macro_rules! counters {
    ($($name:ident),*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64,)* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters!(
    connections,
    reconnects,
    dials_failed,
    poisoned,
    ops,
    round_trips,
    timeouts,
    scripts_reloaded,
    redirections,
    maps_read,
    sent_bytes,
    received_bytes
);

/// Adds to a counter. Relaxed: counters order nothing.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
