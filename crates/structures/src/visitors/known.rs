//! What a handle remembers: pieces that the ledger lists, and visitors that were counted.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use larder_core::Key;

/// The most visitors that a handle remembers; more cost a round trip each time they come.
pub(super) const VISITORS_MAX: usize = 65_536;
/// What all clones of a handle remember.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Protects the memory only, never held across an await: so a plain mutex.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    windows: BTreeMap<u64, Window>,
    visitors: usize,
}

#[derive(Debug, Default)]
struct Window {
    /// The keys of the parts that the ledger lists.
    parts: BTreeMap<u16, Key>,
    visitors: HashSet<u64, crate::hash::State>,
}

impl Known {
    /// The key of a part of which it is known that the ledger lists it.
    pub(super) fn part(&self, window: u64, part: u16) -> Option<Key> {
        self.lock().windows.get(&window)?.parts.get(&part).cloned()
    }

    /// Notes that the ledger lists a part. Windows before `oldest` are forgotten.
    pub(super) fn listed(&self, window: u64, part: u16, key: Key, oldest: u64) {
        let mut inner = self.lock();
        inner.windows.entry(window).or_default().parts.insert(part, key);
        while let Some(first) = inner.windows.first_entry()
            && *first.key() < oldest
        {
            let forgotten = first.remove().visitors.len();
            inner.visitors -= forgotten;
        }
    }

    /// Notes that a part is gone.
    pub(super) fn gone(&self, window: u64, part: u16) {
        let mut inner = self.lock();
        let Inner { windows, visitors } = &mut *inner;
        if let Some(window) = windows.get_mut(&window) {
            window.parts.remove(&part);
            // Which of them were in that part is not worth remembering.
            *visitors -= window.visitors.len();
            window.visitors.clear();
        }
    }

    /// True if the visitor was counted in the window.
    pub(super) fn has_visitor(&self, window: u64, hash: u64) -> bool {
        self.lock().windows.get(&window).is_some_and(|window| window.visitors.contains(&hash))
    }

    /// Notes that the visitor was counted. Where there is no room, older windows make it, or it is let be.
    pub(super) fn visited(&self, window: u64, hash: u64) {
        let mut inner = self.lock();
        if inner.visitors >= VISITORS_MAX {
            inner.forget_visitors_before(window);
        }
        if inner.visitors >= VISITORS_MAX {
            return;
        }
        let Inner { windows, visitors } = &mut *inner;
        // Only beside parts that are known: what is forgotten stays so.
        if let Some(window) = windows.get_mut(&window) {
            *visitors += usize::from(window.visitors.insert(hash));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it was held (an allocation failed) leaves at worst a count that is off, of what is only a memory.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn forget_visitors_before(&mut self, window: u64) {
        for (_, older) in self.windows.range_mut(..window) {
            self.visitors -= older.visitors.len();
            older.visitors = HashSet::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &'static str) -> Key {
        Key::new(text).unwrap()
    }

    #[test]
    fn what_was_noted_is_known_until_it_is_old_or_gone() {
        let known = Known::default();
        known.listed(5, 0, key("five"), 0);
        known.listed(5, 2, key("shard"), 0);
        known.visited(5, 77);
        assert_eq!((known.part(5, 0), known.part(5, 1)), (Some(key("five")), None));
        assert!(known.has_visitor(5, 77) && !known.has_visitor(6, 77) && !known.has_visitor(5, 78));
        known.gone(5, 2);
        assert_eq!((known.part(5, 2), known.has_visitor(5, 77)), (None, false));
        known.visited(5, 77);
        known.listed(9, 0, key("nine"), 6);
        assert_eq!((known.part(5, 0), known.has_visitor(5, 77)), (None, false));
        known.visited(5, 78);
        assert!(!known.has_visitor(5, 78), "a window that was forgotten came back");
        assert_eq!(known.lock().visitors, 0);
        known.listed(10, 0, key("ten"), 9);
        assert_eq!(known.part(9, 0), Some(key("nine")), "the oldest that is kept is no older one");
    }

    #[test]
    fn the_memory_is_bounded_and_newer_windows_come_first() {
        let known = Known::default();
        for window in [1, 2] {
            known.listed(window, 0, key("k"), 0);
        }
        (0..VISITORS_MAX as u64).for_each(|hash| known.visited(1, hash));
        known.visited(2, 0);
        assert!(known.has_visitor(2, 0) && !known.has_visitor(1, 0));
        (0..2 * VISITORS_MAX as u64).for_each(|hash| known.visited(2, hash));
        assert_eq!(known.lock().visitors, VISITORS_MAX);
    }
}
