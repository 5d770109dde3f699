//! Time as an argument: the system's clock, or one that a test turns by hand.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[cfg(feature = "simulation")]
use crate::ambient::simulation;

/// Where a store or a structure gets the time from.
///
/// ```
/// use larder_core::{Clock, SystemClock};
/// let clock = SystemClock::new();
/// assert!(clock.wall() > clock.monotonic());
/// ```
pub trait Clock: Send + Sync + fmt::Debug {
    /// Time since some fixed moment; never goes backwards.
    fn monotonic(&self) -> Duration;
    /// Time since the Unix epoch; may be wrong, and may jump.
    fn wall(&self) -> Duration;
}

/// A clock that is shared.
///
/// ```
/// use larder_core::{ClockRef, ManualClock};
/// let clock: ClockRef = std::sync::Arc::new(ManualClock::default());
/// assert_eq!(clock.wall(), std::time::Duration::ZERO);
/// ```
pub type ClockRef = Arc<dyn Clock>;

/// The system's clock.
///
/// Its monotonic time goes on while the machine is suspended (`CLOCK_BOOTTIME`) where the system can tell, so that a lease that
/// ended during a sleep is over on waking up.
///
/// ```
/// use larder_core::{Clock, SystemClock};
/// let clock = SystemClock::new();
/// assert!(clock.monotonic() <= clock.monotonic());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: Duration,
    /// Which of a simulated world's clocks this is.
    #[cfg(feature = "simulation")]
    number: u64,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    ///
    /// ```
    /// use larder_core::{Clock, SystemClock};
    /// assert!(SystemClock::new().monotonic() < std::time::Duration::from_secs(60));
    /// ```
    pub fn new() -> SystemClock {
        #[cfg(feature = "simulation")]
        if let Some(number) = simulation::ask(|world| world.new_clock()) {
            let made = SystemClock { start: Duration::ZERO, number };
            return SystemClock { start: made.monotonic(), ..made };
        }
        SystemClock {
            start: since_boot(),
            #[cfg(feature = "simulation")]
            number: 0,
        }
    }

    /// The same, shared.
    ///
    /// ```
    /// let clock = larder_core::SystemClock::shared();
    /// assert!(clock.monotonic() <= clock.monotonic());
    /// ```
    pub fn shared() -> ClockRef {
        Arc::new(SystemClock::new())
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if let Some(since) = simulation::ask(|world| world.monotonic(self.number)) {
            return since.saturating_sub(self.start);
        }
        since_boot().saturating_sub(self.start)
    }

    fn wall(&self) -> Duration {
        #[cfg(feature = "simulation")]
        if let Some(wall) = simulation::ask(|world| world.wall(self.number)) {
            return wall;
        }
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
    }
}

/// Time since the machine started, suspended or not.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Time since the first call in this process; whether a suspended machine counts is up to the system.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// A clock that stands still until it is turned.
///
/// ```
/// use larder_core::{Clock, ManualClock};
/// use std::time::Duration;
/// let clock = ManualClock::at(Duration::from_secs(1_000));
/// clock.advance(Duration::from_secs(5));
/// assert_eq!(clock.wall(), Duration::from_secs(1_005));
/// clock.set_wall(Duration::from_secs(7)); // a wall clock may jump; the monotonic one does not
/// assert_eq!(clock.monotonic(), Duration::from_secs(5));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    monotonic_ns: AtomicU64,
    wall_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `wall` since the Unix epoch, its monotonic time at zero.
    ///
    /// ```
    /// use larder_core::{Clock, ManualClock};
    /// use std::time::Duration;
    /// let clock = ManualClock::at(Duration::from_secs(9));
    /// assert_eq!((clock.wall(), clock.monotonic()), (Duration::from_secs(9), Duration::ZERO));
    /// ```
    pub fn at(wall: Duration) -> ManualClock {
        let clock = ManualClock::default();
        clock.set_wall(wall);
        clock
    }

    /// Turns both times forward, at the most to the end of what a clock can tell: some 584 years.
    ///
    /// ```
    /// use larder_core::{Clock, ManualClock};
    /// use std::time::Duration;
    /// let clock = ManualClock::default();
    /// clock.advance(Duration::from_millis(3));
    /// assert_eq!(clock.monotonic(), Duration::from_millis(3));
    /// ```
    pub fn advance(&self, by: Duration) {
        for time in [&self.monotonic_ns, &self.wall_ns] {
            // Never refused: there is always a next value.
            _ = time.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| Some(now.saturating_add(as_ns(by))));
        }
    }

    /// Sets the wall clock, forward or back.
    ///
    /// ```
    /// use larder_core::{Clock, ManualClock};
    /// use std::time::Duration;
    /// let clock = ManualClock::at(Duration::from_secs(9));
    /// clock.set_wall(Duration::from_secs(1));
    /// assert_eq!(clock.wall(), Duration::from_secs(1));
    /// ```
    pub fn set_wall(&self, wall: Duration) {
        self.wall_ns.store(as_ns(wall), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Duration {
        Duration::from_nanos(self.wall_ns.load(Ordering::SeqCst))
    }
}

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_turned_past_its_end_stands_there() {
        let clock = ManualClock::at(Duration::from_secs(1));
        let end = Duration::from_nanos(u64::MAX);
        for by in [Duration::MAX, Duration::from_secs(1)] {
            clock.advance(by);
            assert_eq!((clock.monotonic(), clock.wall()), (end, end));
        }
    }

    #[test]
    fn the_systems_clock_starts_at_zero_and_goes_on() {
        let clock = SystemClock::new();
        assert!(clock.monotonic() < Duration::from_secs(1));
        let before = clock.monotonic();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.monotonic() >= before + Duration::from_millis(2));
        assert!(clock.wall() > Duration::from_secs(1_700_000_000));
    }
}
