//! Event logs.

mod edges;
mod faults;
mod handle;
mod memcached;
mod model;
pub(crate) mod support;
mod writes;
