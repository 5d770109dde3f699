//! The checkers: pure functions from a history to what is wrong with it.

pub mod cache;
pub mod counter;
mod findings;
pub mod grants;
pub mod log;
pub mod map;
pub mod order;
pub mod queue;
pub mod ranking;
pub mod search;
pub mod versions;
