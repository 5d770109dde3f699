//! Queues and stacks.

mod back;
pub(crate) mod between;
mod doubts;
mod edges;
mod faults;
mod figures;
mod handle;
mod late;
mod leases;
mod looks;
mod memcached;
mod model;
mod moved;
mod notes;
mod openings;
mod pushes;
mod removal;
mod scattered;
mod stores;
pub(crate) mod support;
mod takes;
mod tries;
