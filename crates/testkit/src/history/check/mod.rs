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

/// What a checker comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What is wrong, in words.
    pub bad: Vec<String>,
    /// Something could not be held against the rules: what happened allows too much, or takes too long to tell.
    pub left_out: bool,
}

impl From<Vec<String>> for Checked {
    fn from(bad: Vec<String>) -> Checked {
        Checked { bad, left_out: false }
    }
}
