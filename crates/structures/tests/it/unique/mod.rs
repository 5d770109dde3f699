//! Unique visitors.

mod handle;
mod memcached;
mod redis;
