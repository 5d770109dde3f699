//! Locks and atomics whose every step is a scheduler's decision, and a hash that is the same in every run, in the place of the store's own.

use std::fmt;

pub(crate) use foldhash::quality::FixedState as HashState;
pub(crate) use shuttle::sync::MutexGuard;
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// A lock as `parking_lot` has it: nothing to unwrap.
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread of a program panics with a lock held")
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}
