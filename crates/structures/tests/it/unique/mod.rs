//! Unique visitors.

mod edges;
mod handle;
mod memcached;
mod redis;
mod sets;
