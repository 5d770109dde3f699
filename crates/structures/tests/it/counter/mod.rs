//! Counters, exact and fast.

mod bits;
mod copies;
mod faults;
pub(crate) mod fleet;
mod handle;
mod manifests;
mod memcached;
mod resets;
mod seats;
pub(crate) mod support;
