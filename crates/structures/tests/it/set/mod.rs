//! Sets.

mod edges;
mod faults;
mod handle;
mod memcached;
mod model;
mod servers;
mod text;
