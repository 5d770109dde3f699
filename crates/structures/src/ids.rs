//! Random numbers that name a writer, an owner or a generation: no two machines must draw the same.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A random id that is not 0.
///
/// SipHash of a count, keyed by the system's randomness. A generator that seeds itself from the time and a thread's number is
/// good for jitter only: machines that start together would draw the same ids.
pub(crate) fn random_id() -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(0);
    let draw = RandomState::new().hash_one(DRAWN.fetch_add(1, Ordering::Relaxed));
    draw.max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_differ() {
        let drawn: HashSet<u64> = (0..10_000).map(|_| random_id()).collect();
        assert_eq!(drawn.len(), 10_000);
        assert!(!drawn.contains(&0));
    }
}
