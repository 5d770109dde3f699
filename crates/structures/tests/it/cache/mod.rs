//! Caches: one rebuild at a time.

mod faults;
mod handle;
mod look;
mod memcached;
pub(crate) mod support;
