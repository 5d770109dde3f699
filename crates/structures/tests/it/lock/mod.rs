//! Locks.

mod faults;
mod handle;
mod memcached;
pub(crate) mod support;
mod tries;
