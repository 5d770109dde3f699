//! Counters, exact and fast.

mod copies;
mod faults;
pub(crate) mod fleet;
mod handle;
mod memcached;
pub(crate) mod support;
