//! Visitor counters.

mod edges;
mod faults;
mod handle;
mod memcached;
pub(crate) mod support;
