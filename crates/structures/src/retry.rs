//! How often, and with which pauses, a conflict is tried again.

use std::time::Duration;

/// Pauses that grow, with full jitter: each is drawn evenly between zero and a bound that doubles.
///
/// Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015 (the variant called full jitter).
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    bound: Duration,
    max: Duration,
}

impl Backoff {
    /// The first pause is at most `first`, no pause is longer than `max`.
    pub(crate) fn new(first: Duration, max: Duration) -> Backoff {
        Backoff { bound: first.min(max), max }
    }

    /// The next pause.
    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.bound.mul_f64(fastrand::f64());
        self.bound = (self.bound * 2).min(self.max);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_under_a_bound_that_doubles_up_to_the_limit() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(35));
        for bound_ms in [10, 20, 35, 35] {
            assert!(backoff.next_pause() <= Duration::from_millis(bound_ms));
        }
    }
}
