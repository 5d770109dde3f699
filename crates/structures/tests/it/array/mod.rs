//! Arrays.

mod change;
mod edges;
mod faults;
mod handle;
mod memcached;
mod model;
mod quiet;
mod setback;
pub(crate) mod support;
