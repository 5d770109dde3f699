//! The checkers: pure functions from a history to what is wrong with it.

pub mod counter;
pub mod map;
pub mod search;
