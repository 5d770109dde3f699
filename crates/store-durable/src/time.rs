//! The store's time: the wall clock's, but it never goes back, over restarts too.

use std::time::Duration;

use larder_core::ClockRef;

/// Tells the store's time.
///
/// It begins with the wall clock's when the store is opened, or with the last batch's where the wall clock is behind that, and goes on with the
/// monotonic clock. So a wall clock that is set back brings nothing back that was over, and makes no item live longer than it was to live, but
/// for the time that the store was closed.
#[derive(Debug)]
pub(crate) struct Timekeeper {
    clock: ClockRef,
    /// Store time minus monotonic time may be negative: both are kept.
    opened_at: Duration,
    monotonic_then: Duration,
}

impl Timekeeper {
    pub(crate) fn new(clock: ClockRef, last_ms: u64) -> Timekeeper {
        let opened_at = clock.wall().max(Duration::from_millis(last_ms));
        Timekeeper { opened_at, monotonic_then: clock.monotonic(), clock }
    }

    /// Since the Unix epoch.
    pub(crate) fn now(&self) -> Duration {
        self.opened_at + self.clock.monotonic().saturating_sub(self.monotonic_then)
    }

    /// The same in whole ms.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }

    /// What the wall clock says, in whole ms since the Unix epoch.
    pub(crate) fn wall_ms(&self) -> u64 {
        u64::try_from(self.clock.wall().as_millis()).unwrap_or(u64::MAX)
    }
}
