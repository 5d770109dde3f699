//! Time that passes when nobody has anything else to do: a runtime whose timers end at once, and a clock that goes with it.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::Clock;

/// A day in 2023, in no window's last minute.
const WALL: Duration = Duration::from_secs(1_700_000_000);

/// The clock of a runtime whose time is paused: it moves with the timers. Its wall time is later by a microsecond each time it is asked for: on no machine is it the same
/// before and after a round trip, and what is given by it, as tokens of a lock whose record was lost, must not be either.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    start: tokio::time::Instant,
    asked: AtomicU64,
}

impl VirtualClock {
    /// A clock that begins now. Within a runtime of [`run`].
    pub(crate) fn shared() -> Arc<VirtualClock> {
        Arc::new(VirtualClock { start: tokio::time::Instant::now(), asked: AtomicU64::new(0) })
    }
}

impl Clock for VirtualClock {
    fn monotonic(&self) -> Duration {
        // A store's sweeper asks from outside the runtime, where time is not paused and may be earlier.
        tokio::time::Instant::now().saturating_duration_since(self.start)
    }

    fn wall(&self) -> Duration {
        WALL + self.monotonic() + Duration::from_micros(self.asked.fetch_add(1, Ordering::SeqCst))
    }
}

/// Runs something on one thread, where time passes only while nobody has anything to do. Jitter comes from the seed.
pub(crate) fn run<T>(seed: u64, work: impl Future<Output = T>) -> T {
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(work)
}
