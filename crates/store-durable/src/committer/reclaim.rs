//! The committer removes what is over.

use std::sync::atomic::Ordering;

use larder_core::Result;

use super::Committer;
use crate::fault::{Fault, Harm};
use crate::layout::{self, EXPIRY};

/// What became of an item whose expiry has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// It was over, and goes.
    Over,
    /// It has got another life since, or is gone.
    Other,
    /// It is damaged. It stays, and its expiry with it.
    Damaged,
}

impl Committer {
    /// The last that is done: what stands in front goes into the engine, and a piece of what is over, or is to be swept, goes from it. A store that is used in turns is not open for as long as it takes the
    /// timer to ask for that. What fails here is found by whoever opens the store next.
    pub(super) fn close(mut self) {
        if self.move_all().is_err() || self.shared.failure().is_some() || self.shared.check_room().is_err() {
            return;
        }
        self.begin_round();
        if self.shared.expiry.is_due(self.now_ms()) {
            _ = self.reclaim(false);
        }
        self.end_round();
        if self.shared.sweeps.load(Ordering::Acquire) {
            self.begin_round();
            self.sweep();
            self.end_round();
        }
        _ = self.move_all();
    }

    /// Removes items whose life is over: some of them, from where it stopped before, or `all`. An item that is damaged stays, for whoever asks for it to be told.
    pub(super) fn reclaim(&mut self, all: bool) -> Result<u64> {
        let (now_ms, shared) = (self.now_ms(), self.shared.clone());
        let named = |fault: Fault| fault.error(&shared.name);
        // The entries before that are gone, and the engine would look at what it keeps of them again.
        let (mut removed, mut from) = (0, self.reclaims_from.take().unwrap_or_else(|| vec![EXPIRY]));
        if all {
            from = vec![EXPIRY];
            self.end_part();
            self.move_all().map_err(named)?;
        }
        loop {
            if let Some(earlier) = shared.failure() {
                return Err(shared.refused(&earlier));
            }
            let due = shared.expiry.due(&shared.engine, &from, now_ms).map_err(named)?;
            if let Some(last) = due.keys.last() {
                // Behind it: what is damaged, and stays, is not met again.
                from = [&last[..], &[0]].concat();
            }
            let mut came_to_something = false;
            for engine_key in due.keys {
                let came = self.reclaim_one(&engine_key, now_ms).map_err(named)?;
                if came != Came::Damaged {
                    removed += u64::from(came == Came::Over);
                    came_to_something = true;
                    self.over.push(engine_key);
                    self.ops += 1;
                }
            }
            if !due.is_full || (came_to_something && !all) {
                self.reclaims_from = due.is_full.then_some(from);
                return Ok(removed);
            }
            self.end_part();
        }
    }

    /// Removes the item of an expiry that has come, if it is the item's own: it may have got another life since.
    fn reclaim_one(&mut self, engine_key: &[u8], now_ms: u64) -> Result<Came, Fault> {
        let Some((_, key)) = layout::split_expiry_key(engine_key) else { return Ok(Came::Other) };
        let is_over = match self.overlay.get(key) {
            Some(record) => record.as_ref().is_some_and(|record| record.is_over(now_ms)),
            None => match self.shared.stored(key) {
                Ok(stored) => stored.is_some_and(|record| record.is_over(now_ms)),
                Err(fault) if fault.harm == Harm::Corrupt => return Ok(Came::Damaged),
                Err(fault) => return Err(fault),
            },
        };
        if is_over {
            self.put(key, None);
        }
        Ok(if is_over { Came::Over } else { Came::Other })
    }
}
