//! The checkers: pure functions from a history to what is wrong with it.

pub mod cache;
pub mod counter;
pub mod estimate;
pub mod grants;
pub mod leases;
pub mod lives;
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
    /// How much could not be held against the rules: what happened excuses it, or it takes too long to tell. 0: all was checked as if nothing had gone wrong.
    pub left_out: u64,
}

impl Checked {
    /// Adds what is wrong, unless it is excused.
    fn add(&mut self, what: String, is_excused: bool) {
        if is_excused { self.left_out += 1 } else { self.bad.push(what) }
    }
}

impl From<Vec<String>> for Checked {
    fn from(bad: Vec<String>) -> Checked {
        Checked { bad, left_out: 0 }
    }
}
