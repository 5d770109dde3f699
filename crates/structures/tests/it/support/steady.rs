//! Handles that do nothing beside their callers for a while.

use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::StoreRef;
use larder_layers::Counting;

/// How many bytes a handle writes to its list at the least before it looks at it, beside its callers. More than a test writes.
const BYTES: usize = 8_000;

/// Of so many lists in turn: a handle has one a shard, and what is made is drawn for twice, to see whether the store can carry it and then.
const LISTS: usize = 12;

/// A handle draws how much it writes until it first looks at its list, up to 16 KiB. What those draw that are opened next on this thread keeps such a look out
/// of what a test counts, and of what it has happen at the nth batch. The stores that count and that break do it as they are made.
pub(crate) fn steady() {
    // Another seed each time: versions of items are drawn, too, and no two of them may be alike.
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let is_late = |_| fastrand::usize(0..16 * 1_024) > BYTES;
    let is_steady = |&seed: &u64| {
        fastrand::seed(seed);
        (0..LISTS).all(is_late)
    };
    let seed = std::iter::repeat_with(|| NEXT.fetch_add(1, Ordering::Relaxed)).find(is_steady);
    fastrand::seed(seed.unwrap_or(0));
}

/// The store, and what it is asked, of which nothing is what a handle does beside its callers by chance.
pub(crate) fn metered(store: StoreRef) -> Counting {
    steady();
    Counting::new(store)
}
