//! Counts: gathered by a connection while it works, added up a batch, summed when somebody asks.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Figures;
use crate::hot::HotKeys;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $help:literal;)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub(crate) enum Count { $($(#[$doc])* $name,)* }

        impl Count {
            pub(crate) const ALL: &[Count] = &[$(Count::$name,)*];
            /// The name in `stats`, and behind `larder_` and before `_total` in the metrics.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Count::$name => $text,)* }
            }
            /// What the metrics say of it.
            pub(crate) fn help(self) -> &'static str {
                match self { $(Count::$name => $help,)* }
            }
        }
    };
}

counts! {
    CmdGet = "cmd_get", "Keys that were asked for";
    CmdSet = "cmd_set", "Commands that store";
    CmdFlush = "cmd_flush", "flush_all commands";
    CmdTouch = "cmd_touch", "Keys that were given another life, by touch, gat and mg with T";
    CmdMeta = "cmd_meta", "Commands of the meta dialect";
    GetHits = "get_hits", "Keys that were asked for and there";
    GetMisses = "get_misses", "Keys that were asked for and not there";
    DeleteMisses = "delete_misses", "Deletes of keys that were not there";
    DeleteHits = "delete_hits", "Deletes of keys that were there";
    IncrMisses = "incr_misses", "Increments of keys that were not there";
    IncrHits = "incr_hits", "Increments of keys that were there";
    DecrMisses = "decr_misses", "Decrements of keys that were not there";
    DecrHits = "decr_hits", "Decrements of keys that were there";
    CasMisses = "cas_misses", "Writes by a token of keys that were not there";
    CasHits = "cas_hits", "Writes by a token that was the one in force";
    CasBadval = "cas_badval", "Writes by a token that another write had passed";
    TouchHits = "touch_hits", "Touches of keys that were there";
    TouchMisses = "touch_misses", "Touches of keys that were not there";
    StoreTooLarge = "store_too_large", "Items refused because they are larger than one may be";
    StoreNoMemory = "store_no_memory", "Requests refused because there is no room";
    AuthCmds = "auth_cmds", "Tries to log in";
    AuthErrors = "auth_errors", "Tries to log in that were refused";
    BytesRead = "bytes_read", "Bytes that came from clients";
    BytesWritten = "bytes_written", "Bytes that went to clients";
    TotalItems = "total_items", "Items that were stored";
    TotalConnections = "total_connections", "Connections that were accepted";
    RejectedConnections = "rejected_connections", "Connections that were refused because there were too many";
    IdleKicks = "idle_kicks", "Connections that were closed because they asked for nothing for too long";
    SlowKicks = "slow_kicks", "Connections that were dropped because they did not read what they had asked for, or did not get on with half a request that they held much of";
    HeldKicks = "held_kicks", "Connections that were dropped because all together held too much of what was not finished";
    TlsErrors = "ssl_handshake_errors", "TLS handshakes that failed";
    Errors = "request_errors", "Requests that were answered with an error";
    /// Delayed `flush_all`s that failed when they were due: whoever asked had been told `OK`.
    FlushErrors = "flush_errors", "Delayed flush_all commands that failed when they were due";
}

const COUNTS: usize = Count::ALL.len();

/// What one batch counted.
#[derive(Debug)]
pub(crate) struct Tally {
    counts: [u64; COUNTS],
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { counts: [0; COUNTS] }
    }

    #[inline]
    pub(crate) fn add(&mut self, count: Count, number: u64) {
        self.counts[count as usize] += number;
    }
}

thread_local! {
    /// Which counts are this thread's: the first for whoever is no worker.
    static MINE: Cell<usize> = const { Cell::new(0) };
}

/// Has this thread, the worker of this number, count on cache lines of its own.
pub(crate) fn count_apart(worker: usize) {
    MINE.set(worker + 1);
}

/// The counts of one thread, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Counters {
    counts: [AtomicU64; COUNTS],
    latency: [Histogram; LATENCY_CLASSES.len()],
    pub(crate) hot: HotKeys,
}

/// Whose time a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Read,
    Write,
    Other,
}

pub(crate) const LATENCY_CLASSES: [(Class, &str); 3] =
    [(Class::Read, "read"), (Class::Write, "write"), (Class::Other, "other")];

/// Upper bounds of the histogram, in ns: doubling from 250 ns.
pub(crate) const BUCKETS: usize = 22;

pub(crate) fn bucket_bound_ns(bucket: usize) -> u64 {
    250 << bucket
}

/// Times, in buckets that double.
#[derive(Debug)]
struct Histogram {
    buckets: [AtomicU64; BUCKETS + 1],
    sum_ns: AtomicU64,
}

/// The sum of histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) buckets: [u64; BUCKETS + 1],
    pub(crate) sum_ns: u64,
}

impl Times {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// What so many of a hundred took at the most, in ns, by the bound of their bucket; `None` where there are none, or it is beyond the last bound.
    pub(crate) fn percentile_ns(&self, percent: u64) -> Option<u64> {
        let wanted = (self.count() * percent).div_ceil(100);
        let mut sum = 0;
        let bucket = self.buckets.iter().position(|count| {
            sum += count;
            wanted > 0 && sum >= wanted
        })?;
        (bucket < BUCKETS).then(|| bucket_bound_ns(bucket))
    }
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            latency: std::array::from_fn(|_| Histogram {
                buckets: std::array::from_fn(|_| AtomicU64::new(0)),
                sum_ns: AtomicU64::new(0),
            }),
            hot: HotKeys::default(),
        }
    }

    pub(crate) fn add(&self, count: Count, number: u64) {
        self.counts[count as usize].fetch_add(number, Ordering::Relaxed);
    }

    /// Adds what a batch counted, and empties it.
    pub(crate) fn absorb(&self, tally: &mut Tally) {
        for (sum, count) in self.counts.iter().zip(&mut tally.counts) {
            if *count != 0 {
                sum.fetch_add(std::mem::take(count), Ordering::Relaxed);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn has_read(&self) -> bool {
        self.counts[Count::CmdGet as usize].load(Ordering::Relaxed) > 0
    }

    pub(crate) fn time(&self, class: Class, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bucket = (0..BUCKETS).find(|&bucket| ns <= bucket_bound_ns(bucket)).unwrap_or(BUCKETS);
        let histogram = &self.latency[class as usize];
        histogram.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        histogram.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// The counts of all threads.
#[derive(Debug)]
pub(crate) struct AllCounters {
    /// The first are those of whoever is no worker: who accepts connections and keeps time.
    pub(crate) all: Vec<Counters>,
    /// What the counts were when `stats reset` was last asked for.
    base: [AtomicU64; COUNTS],
    evicted_base: AtomicU64,
    expired_base: AtomicU64,
}

impl AllCounters {
    pub(crate) fn new(workers: usize) -> AllCounters {
        let all = (0..=workers).map(|_| Counters::new()).collect();
        let base = std::array::from_fn(|_| AtomicU64::new(0));
        AllCounters { all, base, evicted_base: AtomicU64::new(0), expired_base: AtomicU64::new(0) }
    }

    /// Those of this thread. A connection may move to another between any two of its waits.
    #[inline]
    pub(crate) fn mine(&self) -> &Counters {
        self.all.get(MINE.get()).unwrap_or(&self.all[0])
    }

    /// Since the start.
    pub(crate) fn sum(&self, count: Count) -> u64 {
        self.all.iter().map(|counters| counters.counts[count as usize].load(Ordering::Relaxed)).sum()
    }

    /// Since the last reset.
    pub(crate) fn since_reset(&self, count: Count) -> u64 {
        self.sum(count).saturating_sub(self.base[count as usize].load(Ordering::Relaxed))
    }

    /// Items that went for want of room, since the last reset.
    pub(crate) fn evicted_since_reset(&self, figures: &Figures) -> u64 {
        figures.evicted.saturating_sub(self.evicted_base.load(Ordering::Relaxed))
    }

    /// Items that were removed after they had expired, since the last reset.
    pub(crate) fn expired_since_reset(&self, figures: &Figures) -> u64 {
        figures.expired.saturating_sub(self.expired_base.load(Ordering::Relaxed))
    }

    /// From here on counts begin at 0, the store's own among them. Metrics go on.
    pub(crate) fn reset(&self, figures: &Figures) {
        for &count in Count::ALL {
            self.base[count as usize].store(self.sum(count), Ordering::Relaxed);
        }
        self.evicted_base.store(figures.evicted, Ordering::Relaxed);
        self.expired_base.store(figures.expired, Ordering::Relaxed);
    }

    pub(crate) fn times(&self, class: Class) -> Times {
        let mut times = Times::default();
        for counters in &self.all {
            let histogram = &counters.latency[class as usize];
            for (sum, bucket) in times.buckets.iter_mut().zip(&histogram.buckets) {
                *sum += bucket.load(Ordering::Relaxed);
            }
            times.sum_ns += histogram.sum_ns.load(Ordering::Relaxed);
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_threads_and_since_a_reset() {
        let all = AllCounters::new(2);
        let mut tally = Tally::new();
        tally.add(Count::CmdGet, 3);
        all.mine().absorb(&mut tally);
        all.mine().absorb(&mut tally);
        // The second of its two workers, and one of a server that has more.
        for (worker, number) in [(1, 3), (7, 1)] {
            let count = || {
                count_apart(worker);
                all.mine().add(Count::CmdGet, number);
            };
            std::thread::scope(|scope| scope.spawn(count).join().unwrap());
        }
        let of = |counters: &Counters| counters.counts[Count::CmdGet as usize].load(Ordering::Relaxed);
        assert_eq!(all.all.iter().map(of).collect::<Vec<_>>(), [4, 0, 3]);
        assert_eq!((all.sum(Count::CmdGet), all.since_reset(Count::CmdGet)), (7, 7));
        all.reset(&Figures { evicted: 4, ..Figures::default() });
        assert_eq!(all.evicted_since_reset(&Figures { evicted: 6, ..Figures::default() }), 2);
        all.mine().add(Count::CmdGet, 1);
        assert_eq!((all.sum(Count::CmdGet), all.since_reset(Count::CmdGet)), (8, 1));
    }

    #[test]
    fn times_fall_into_the_bucket_that_bounds_them() {
        let all = AllCounters::new(1);
        all.mine().time(Class::Write, Duration::from_nanos(250));
        all.mine().time(Class::Write, Duration::from_nanos(251));
        all.mine().time(Class::Write, Duration::from_secs(3_600));
        let times = all.times(Class::Write);
        assert_eq!((times.buckets[0], times.buckets[1], times.buckets[BUCKETS]), (1, 1, 1));
        assert_eq!(all.times(Class::Read), Times::default());
        assert_eq!((times.count(), times.percentile_ns(50), times.percentile_ns(99)), (3, Some(500), None));
        assert_eq!(Times::default().percentile_ns(50), None);
    }
}
