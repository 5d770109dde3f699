//! The byte budget: one number that every shard takes from before it allocates.

use std::sync::atomic::Ordering;

use crate::sync::AtomicUsize;

/// Bytes taken of at most `max`. Without a limit nothing is counted here, so that shards share no cache line; each shard
/// counts its own bytes in either case.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Budget {
    used: AtomicUsize,
    /// Whether there is a limit does not change, since nothing is counted without.
    limited: bool,
    max: AtomicUsize,
}

/// The bytes that are missing for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Short(pub(crate) usize);

impl Budget {
    pub(crate) fn new(bytes_max: Option<usize>) -> Budget {
        let max = AtomicUsize::new(bytes_max.unwrap_or(usize::MAX));
        Budget { used: AtomicUsize::new(0), limited: bytes_max.is_some(), max }
    }

    /// Changes the limit; false if there was none. What is over a smaller one is not given back here.
    pub(crate) fn set_max(&self, bytes_max: usize) -> bool {
        if self.limited {
            self.max.store(bytes_max, Ordering::Relaxed);
        }
        self.limited
    }

    /// The limit, if there is one.
    pub(crate) fn max(&self) -> Option<usize> {
        self.limited.then(|| self.max.load(Ordering::Relaxed))
    }

    /// The bytes taken, where there is a limit.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// True if `bytes` more would fit right now.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.max().is_none_or(|max| self.used().checked_add(bytes).is_some_and(|sum| sum <= max))
    }

    /// Takes `bytes`, or nothing: the sum never passes the limit, not for a moment.
    // Relaxed is enough: the number guards no other memory, and a read-modify-write always sees the latest value.
    pub(crate) fn take(&self, bytes: usize) -> Result<(), Short> {
        let Some(max) = self.max().filter(|_| bytes != 0) else { return Ok(()) };
        let sum = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).map(drop).map_err(|_| Short(bytes))
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, bytes: usize) {
        if self.limited && bytes != 0 {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing_up_to_the_limit() {
        let budget = Budget::new(Some(100));
        assert_eq!(budget.take(60), Ok(()));
        assert_eq!(budget.take(41), Err(Short(41)));
        assert!(budget.fits(40) && !budget.fits(41) && !budget.fits(usize::MAX));
        assert_eq!(budget.take(40), Ok(()));
        budget.give(100);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn threads_never_pass_the_limit() {
        let budget = Budget::new(Some(1_000));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        if budget.take(7).is_ok() {
                            assert!(budget.used() <= 1_000);
                            budget.give(7);
                        }
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
    }
}
