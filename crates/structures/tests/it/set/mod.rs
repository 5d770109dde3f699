//! Sets.

mod edges;
mod faults;
mod handle;
mod late;
mod memcached;
mod model;
mod quiet;
mod servers;
mod text;
mod writes;
