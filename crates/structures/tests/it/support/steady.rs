//! Handles that do nothing beside their callers for a while.

/// How many bytes a handle writes to its list at the least before it looks at it, beside its callers. More than a test writes.
const BYTES: usize = 8_000;

/// A handle draws how much it writes until it first looks at its list, up to 16 KiB. What those draw that are opened next on this thread keeps such a look out
/// of what a test counts.
pub(crate) fn steady() {
    let is_late = |_| fastrand::usize(0..16 * 1_024) > BYTES;
    let seed = (0..).find(|&seed| {
        fastrand::seed(seed);
        // What is made is drawn for twice: to see whether the store can carry it, and then.
        (0..4).all(is_late)
    });
    fastrand::seed(seed.unwrap_or(0));
}
