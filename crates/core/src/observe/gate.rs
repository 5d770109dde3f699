//! The gate before every event: one relaxed load of one byte, and a branch that is not taken.
//!
//! A file of its own and without dependencies, so that a test can compile it alone, with optimisation, and count what is left of it
//! (`tests/free.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

/// True once an observer was set. It never goes back.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// True if somebody listens. Relaxed: who is told a moment late misses an event or two.
#[inline(always)]
pub fn is_open() -> bool {
    IS_OPEN.load(Ordering::Relaxed)
}

/// Lets events through from now on.
pub(super) fn open() {
    IS_OPEN.store(true, Ordering::Relaxed);
}
