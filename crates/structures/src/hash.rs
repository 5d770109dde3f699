//! How maps that are walked are hashed: the order of a walk may reach a store, as the order of members in a value does.

use std::hash::BuildHasher;

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};
use larder_core::ambient;

/// Seeded anew for each map, since keys come from users; in a simulation with what the simulation draws, so that a walk has the same order again.
#[derive(Clone, Debug)]
pub(crate) struct State(SeedableRandomState);

impl Default for State {
    fn default() -> State {
        State(match ambient::simulated_random() {
            None => SeedableRandomState::random(),
            Some(seed) => SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()),
        })
    }
}

impl BuildHasher for State {
    type Hasher = FoldHasher<'static>;

    #[inline(always)]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}
