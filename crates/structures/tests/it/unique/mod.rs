//! Unique visitors.

mod edges;
mod handle;
mod making;
mod memcached;
mod redis;
mod sets;
