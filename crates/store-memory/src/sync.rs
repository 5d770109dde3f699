//! What the store takes from elsewhere, and its test of schedules replaces (`tests/schedules/`): the same sources are compiled there over locks and
//! atomics whose every step a scheduler decides on, and over a hash that is the same in every run.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// How keys are hashed: seeded for each store, since keys come from users.
pub(crate) use foldhash::quality::RandomState as HashState;
pub(crate) use parking_lot::{Mutex, MutexGuard};
