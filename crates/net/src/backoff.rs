//! How long to wait before the next try.

use std::time::Duration;

/// Waits that grow with the failures in a row, with full jitter: each is drawn evenly between zero and a bound that doubles.
///
/// Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
///
/// ```
/// use larder_net::Backoff;
/// use std::time::Duration;
/// let ms = Duration::from_millis;
/// let backoff = Backoff { first: ms(50), max: ms(2_000), min: ms(5) };
/// assert!((ms(5)..=ms(50)).contains(&backoff.wait(0)));
/// assert!(backoff.wait(u32::MAX) <= ms(2_000));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The bound of the first wait; doubled for each failure.
    pub first: Duration,
    /// The longest bound.
    pub max: Duration,
    /// The shortest wait, so that a server which refuses at once is not hammered.
    pub min: Duration,
}

impl Backoff {
    /// Between two dials of a server.
    pub const REDIAL: Backoff =
        Backoff { first: Duration::from_millis(50), max: Duration::from_secs(2), min: Duration::from_millis(5) };

    /// How long to wait after so many failures in a row, before this one.
    pub fn wait(self, failures: u32) -> Duration {
        self.bound(failures).mul_f64(fastrand::f64()).max(self.min)
    }

    /// The longest that [`wait`](Backoff::wait) draws, but for the shortest there is.
    pub fn bound(self, failures: u32) -> Duration {
        self.first.saturating_mul(1u32 << failures.min(10)).min(self.max)
    }
}
