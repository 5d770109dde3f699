//! What a check comes to where some of it is excused.

/// What is bad, and how much would be if there were no excuse for it.
#[derive(Default)]
pub(super) struct Findings {
    pub(super) bad: Vec<String>,
    pub(super) left_out: u64,
}

impl Findings {
    pub(super) fn add(&mut self, what: String, is_excused: bool) {
        if is_excused { self.left_out += 1 } else { self.bad.push(what) }
    }
}
