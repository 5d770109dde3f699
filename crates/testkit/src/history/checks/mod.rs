//! Checkers: pure functions over a recorded history. Each returns what it found wrong, in words.

pub mod count;
