//! What a store has done so far: for metrics, and for tests that count round trips.

use std::sync::atomic::{AtomicU64, Ordering};

/// Totals since the store was opened. Each only grows.
///
/// ```
/// use larder_store_memcached::Stats;
/// assert_eq!(Stats::default().ops, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Connections that were opened and shook hands.
    pub connections: u64,
    /// Of those, the ones that replaced a lost one.
    pub reconnects: u64,
    /// Of the connections, the ones that were opened as read lanes.
    pub lanes: u64,
    /// Dials that failed.
    pub dials_failed: u64,
    /// Connections given up because a reply made no sense, or none came.
    pub poisoned: u64,
    /// Ops handed to a connection.
    pub ops: u64,
    /// Round trips: parts of batches handed to a connection, one a node and batch.
    pub round_trips: u64,
    /// Ops that ended with a timeout.
    pub timeouts: u64,
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
    lanes,
    dials_failed,
    poisoned,
    ops,
    round_trips,
    timeouts,
    sent_bytes,
    received_bytes
);

/// Adds to a counter. Relaxed: counters order nothing.
pub(crate) fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
