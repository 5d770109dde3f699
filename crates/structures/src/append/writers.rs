//! Who wrote a value, and the last of each that counted: what tells a repeat.

use std::cmp::Reverse;
use std::collections::HashMap;

/// The most writers whose last sequence a snapshot keeps.
pub(crate) const WRITERS_MAX: usize = 128;
/// Writers that were silent for longer are kept only as long as fewer than [`WRITERS_IDLE_MAX`] are kept in all.
pub(crate) const WRITER_RECENT_S: u32 = 600;
/// See [`WRITER_RECENT_S`].
pub(crate) const WRITERS_IDLE_MAX: usize = 16;

/// The last that counted of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Last {
    pub(crate) seq: u64,
    /// When a compaction last saw it write; `None`: it wrote since.
    pub(super) seconds: Option<u32>,
    /// Where its last frame begins in the log, to tell the newest.
    pub(super) at: usize,
}

/// The writers of a value. Most values have one: it takes no map to read them, nor a seed for one.
#[derive(Debug, Default)]
pub(crate) struct Writers {
    first: Option<(u64, Last)>,
    others: Option<HashMap<u64, Last, crate::hash::State>>,
}

impl Writers {
    pub(crate) fn get(&self, writer: u64) -> Option<Last> {
        match self.first {
            Some((first, last)) if first == writer => Some(last),
            _ => self.others.as_ref()?.get(&writer).copied(),
        }
    }

    pub(super) fn insert(&mut self, writer: u64, last: Last) {
        match &mut self.first {
            Some((first, of_first)) if *first == writer => *of_first = last,
            Some(_) => _ = self.others.get_or_insert_default().insert(writer, last),
            empty => *empty = Some((writer, last)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.others.as_ref().map_or(0, HashMap::len)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Last)> {
        let others = self.others.iter().flatten();
        self.first.into_iter().chain(others.map(|(&writer, &last)| (writer, last)))
    }

    /// Forgets all but the newest.
    pub(super) fn keep(&mut self, max: usize) {
        if self.len() > max {
            let newest = self.newest_first(u32::MAX);
            *self = Writers::default();
            newest.into_iter().take(max).for_each(|(writer, last)| self.insert(writer, last));
        }
    }

    /// Those that a snapshot keeps, the newest first: at most [`WRITERS_MAX`], and of those that were silent for more than
    /// [`WRITER_RECENT_S`] only as many as make [`WRITERS_IDLE_MAX`] together with the others.
    ///
    /// What falls off: should a frame of such a writer arrive yet (delayed that long, or behind that many other writers), or its
    /// writer try it again, it counts once more.
    pub(crate) fn kept(&self, now_s: u32) -> Vec<(u64, Last)> {
        let mut all = self.newest_first(now_s);
        all.truncate(WRITERS_MAX);
        let is_recent = |last: &Last| now_s.saturating_sub(last.seconds.unwrap_or(now_s)) <= WRITER_RECENT_S;
        let recent = all.iter().take_while(|(_, last)| is_recent(last)).count();
        all.truncate(recent.max(WRITERS_IDLE_MAX));
        all
    }

    /// Those who wrote since the last compaction come first, whatever the clocks of earlier compactors said; they count as of `now_s`.
    fn newest_first(&self, now_s: u32) -> Vec<(u64, Last)> {
        let mut all: Vec<(u64, Last)> = self.iter().collect();
        all.sort_unstable_by_key(|&(writer, last)| Reverse((last.at, last.seconds.unwrap_or(now_s), writer)));
        all
    }
}
