//! A clock that stands at any second: the one that tests turn by hand ends after 584 years.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::Clock;

/// Seconds since 1970.
#[derive(Debug)]
pub(crate) struct Far(AtomicU64);

impl Far {
    pub(crate) fn at(second: u64) -> Arc<Far> {
        Arc::new(Far(AtomicU64::new(second)))
    }

    pub(crate) fn set(&self, second: u64) {
        self.0.store(second, Ordering::SeqCst);
    }
}

impl Clock for Far {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}
