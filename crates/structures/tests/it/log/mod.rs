//! Event logs.

mod edges;
mod faults;
mod handle;
mod memcached;
mod model;
mod setback;
pub(crate) mod support;
mod writes;
