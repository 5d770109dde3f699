//! Caches: one rebuild at a time.

mod faults;
mod handle;
mod memcached;
pub(crate) mod support;
