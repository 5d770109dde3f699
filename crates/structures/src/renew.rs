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

fn until_renewal(leased: &impl Leased) -> Duration {
    (leased.lease() / RENEWALS_A_LEASE).saturating_sub(leased.age())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use larder_core::Error;

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
}
