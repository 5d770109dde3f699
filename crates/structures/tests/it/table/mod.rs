//! Tables.

mod faults;
mod handle;
mod memcached;
mod order;
mod races;
pub(crate) mod support;
