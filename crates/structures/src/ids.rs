//! Random numbers that name a writer, an owner or a generation: no two machines must draw the same.

use larder_core::ambient;

/// A random id that is not 0.
pub(crate) fn random_id() -> u64 {
    ambient::random().max(1)
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
