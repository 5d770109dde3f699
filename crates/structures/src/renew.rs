//! Keeping a lease: renewed at a third of it, tried again on faults after jittered pauses, until it is given back, lost or over.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use larder_core::observe::Subject;
use larder_core::{Ctx, ErrorKind, Result};

use crate::events;
use crate::retry::Backoff;

/// Renewals in one lease.
pub(crate) const RENEWALS_A_LEASE: u32 = 3;

/// How much earlier than the others its holder takes a lease to be over: a tenth of it, at most one second.
pub(crate) fn margin(lease: Duration) -> Duration {
    (lease / 10).min(Duration::from_secs(1))
}

/// A lease that can be renewed.
pub(crate) trait Leased: Send + Sync + 'static {
    /// How long one renewal makes it last.
    fn lease(&self) -> Duration;

    /// How long one exchange with the store may take.
    fn timeout(&self) -> Duration;

    /// How long ago the last write that is confirmed was sent.
    fn age(&self) -> Duration;

    /// How long it lasts yet, as its holder judges it; zero once it is over or lost, and then for good.
    fn left(&self) -> Duration;

    /// What it is a lease of, to the observer.
    fn subject(&self) -> Subject<'_>;

    /// Renews it. After an error it is tried again, as long as something is [`left`](Leased::left).
    fn renew(&self, ctx: Ctx) -> impl Future<Output = Result<()>> + Send;

    /// A try failed, and another follows.
    fn failed(&self, cause: larder_core::Error) {
        events::retry(self.subject(), cause.kind());
    }
}

/// Renews a lease until nothing is left of it. For a task of its own, which whoever gives the lease back aborts.
pub(crate) async fn keep<L: Leased>(leased: Arc<L>) {
    let lease = leased.lease();
    let fresh = Backoff::new(lease / 30, lease / 6);
    let mut backoff = fresh.clone();
    let mut pause = until_renewal(&*leased);
    loop {
        let left = leased.left();
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(pause.min(left)).await;
        let limit = leased.timeout().min(lease / RENEWALS_A_LEASE).min(leased.left());
        let error = match tokio::time::timeout(limit, leased.renew(Ctx::within(limit))).await {
            Ok(Ok(())) => {
                backoff = fresh.clone();
                pause = until_renewal(&*leased);
                continue;
            }
            Ok(Err(error)) => error,
            Err(_) => larder_core::Error::new(ErrorKind::Timeout, format!("a renewal took longer than {limit:?}")),
        };
        if leased.left().is_zero() {
            return;
        }
        leased.failed(error);
        pause = backoff.next_pause();
    }
}

/// How long it is until a lease is to be renewed; zero once that is due.
pub(crate) fn until_renewal(leased: &impl Leased) -> Duration {
    (leased.lease() / RENEWALS_A_LEASE).saturating_sub(leased.age())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use larder_core::Error;
    use tokio::time::Instant;

    use super::*;
    use crate::events::tests::{listen, told};

    /// A lease whose first renewal fails, and which is over after the second.
    struct Fails {
        tries: AtomicU32,
    }

    impl Leased for Fails {
        fn lease(&self) -> Duration {
            Duration::from_secs(30)
        }

        fn timeout(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn age(&self) -> Duration {
            Duration::ZERO
        }

        fn left(&self) -> Duration {
            if self.tries.load(Ordering::Relaxed) < 2 { self.lease() } else { Duration::ZERO }
        }

        fn subject(&self) -> Subject<'_> {
            Subject { kind: "lock", name: b"renewed at the second try" }
        }

        async fn renew(&self, _: Ctx) -> Result<()> {
            match self.tries.fetch_add(1, Ordering::Relaxed) {
                0 => Err(Error::new(ErrorKind::Unavailable, "as the test wants")),
                _ => Ok(()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_failed_is_told_and_tried_again() {
        listen();
        keep(Arc::new(Fails { tries: AtomicU32::new(0) })).await;
        assert_eq!(told("renewed at the second try"), ["retry after unavailable"]);
    }

    /// A lease whose renewals the test decides about, by their number, at moments that it notes; over after so many.
    struct Paced {
        tries_max: usize,
        ends: fn(usize) -> Option<Result<()>>,
        tried: Mutex<Vec<Instant>>,
    }

    impl Leased for Paced {
        fn lease(&self) -> Duration {
            Duration::from_secs(30)
        }

        fn timeout(&self) -> Duration {
            Duration::from_secs(3_600)
        }

        fn age(&self) -> Duration {
            Duration::ZERO
        }

        fn left(&self) -> Duration {
            let is_over = self.tried.lock().unwrap().len() >= self.tries_max;
            if is_over { Duration::ZERO } else { Duration::from_secs(3_600) }
        }

        fn subject(&self) -> Subject<'_> {
            Subject { kind: "lock", name: b"paced" }
        }

        async fn renew(&self, _: Ctx) -> Result<()> {
            let number = {
                let mut tried = self.tried.lock().unwrap();
                tried.push(Instant::now());
                tried.len()
            };
            match (self.ends)(number) {
                Some(outcome) => outcome,
                None => std::future::pending().await,
            }
        }
    }

    /// How far apart so many tries to renew are.
    async fn apart(tries_max: usize, ends: fn(usize) -> Option<Result<()>>) -> Vec<Duration> {
        let paced = Arc::new(Paced { tries_max, ends, tried: Mutex::default() });
        keep(paced.clone()).await;
        let tried = paced.tried.lock().unwrap();
        tried.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn fails() -> Result<()> {
        Err(Error::new(ErrorKind::Unavailable, "as the test wants"))
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_tried_again_within_a_thirtieth_of_the_lease_and_later_within_a_sixth() {
        let tick = Duration::from_millis(1);
        // Each second one fails.
        let gaps = apart(81, |number| Some(if number % 2 == 1 { fails() } else { Ok(()) })).await;
        assert!(gaps.iter().step_by(2).all(|gap| *gap <= Duration::from_secs(1) + tick), "{gaps:?}");
        let gaps = apart(80, |_| Some(fails())).await;
        assert!(gaps.iter().all(|gap| *gap <= Duration::from_secs(5) + tick), "{gaps:?}");
        assert!(gaps.iter().any(|gap| *gap > Duration::from_secs(1)), "they grow: {gaps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_does_not_end_is_given_up_after_a_third_of_the_lease() {
        let gaps = apart(2, |_| None).await;
        assert!((10..=11).contains(&gaps[0].as_secs()), "{gaps:?}");
    }
}
