//! Queues and stacks.

mod back;
mod edges;
mod faults;
mod handle;
mod late;
mod memcached;
mod model;
mod removal;
pub(crate) mod support;
