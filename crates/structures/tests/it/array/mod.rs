//! Arrays.

mod change;
mod faults;
mod handle;
mod memcached;
mod model;
pub(crate) mod support;
