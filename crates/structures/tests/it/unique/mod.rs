//! Unique visitors.

mod edges;
mod forgetting;
mod handle;
mod making;
mod memcached;
mod redis;
mod sets;
mod support;
