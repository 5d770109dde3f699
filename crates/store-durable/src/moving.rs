//! How what rounds have changed comes into the engine: on the committer, some items between two rounds.
//!
//! The rounds up to some number are *sealed*; the items that they left, and that no later round has changed, are written in the order of their keys. When all are written the
//! sealed rounds are removed, the oldest first: a crash in between leaves the newest, and what those say of an item is what the engine has. Then the items are forgotten in front.
//! None of it is synced by itself: the engine's journal keeps the order, and what is moved is on disk in its round for as long as the journal may lose it.

use std::collections::VecDeque;

use crate::committer::Shared;
use crate::engine::{Engine, Entries};
use crate::fault::Fault;
use crate::front::ShortKey;
use crate::layout::{self, Record, Round};

/// Items that are moved between two rounds, at the least.
const STEP_ITEMS: usize = 128;
/// Bytes that are moved between two rounds, about.
const STEP_BYTES: usize = 1 << 20;
/// Rounds of fewer changes are written item by item, where nothing is in front.
const CHANGES_MIN: usize = 8;
/// And those whose changes have more bytes than that, all together.
const BYTES_MAX: usize = 1 << 20;
/// Sealed when it has so many bytes,
const SEAL_BYTES: usize = 16 << 20;
/// or rounds.
const SEAL_ROUNDS: usize = 4096;

/// A round that is in the engine: its place there, its number, its bytes.
#[derive(Clone, Copy)]
struct Live {
    slot: u16,
    sequence: u64,
}

/// What is under way.
#[derive(Default)]
pub(crate) struct Moving {
    /// Rounds in the engine, oldest first.
    live: VecDeque<Live>,
    next_slot: u16,
    /// Of those that are not sealed.
    open_bytes: usize,
    open_rounds: usize,
    /// The last round that is sealed.
    sealed: Option<u64>,
    /// What sealed rounds left, in the order of the keys, and how many of them are moved.
    keys: Vec<ShortKey>,
    moved: usize,
}

/// How a round is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    ByItem,
    AsRound,
    /// All that is in front goes into the engine first.
    MovedFirst,
}

impl Moving {
    /// Goes on from what was found in the engine: its rounds go into `shared`'s front.
    pub(crate) fn find(engine: &Engine) -> Result<Vec<(u16, Round)>, Fault> {
        let (mut rounds, mut bad) = (Vec::new(), None);
        engine.scan(&[layout::ROUND], &[layout::ROUND + 1], &mut |key, bytes| {
            match (layout::split_round_key(key), Round::decode(&bytes)) {
                (Some(slot), Ok(round)) => rounds.push((slot, round)),
                (None, _) => bad = Some("a round has a key that is none"),
                (_, Err(error)) => bad = Some(error.0),
            }
            bad.is_none()
        })?;
        bad.map_or(Ok(()), |bad| Err(Fault::corrupt(bad)))?;
        rounds.sort_by_key(|(_, round)| round.sequence);
        Ok(rounds)
    }

    /// Puts what was found in front, sealed.
    pub(crate) fn resume(shared: &Shared, rounds: &[(u16, Round)]) -> Moving {
        let mut moving = Moving::default();
        let _turn = shared.front.change();
        for (slot, round) in rounds {
            shared.front.put(round);
            moving.live.push_back(Live { slot: *slot, sequence: round.sequence });
            moving.next_slot = slot.wrapping_add(1);
        }
        moving.open_rounds = rounds.len();
        moving.seal(shared);
        moving
    }

    pub(crate) fn how(&self, changes: usize, bytes: usize) -> How {
        match (self.live.is_empty(), bytes > BYTES_MAX) {
            (true, true) => How::ByItem,
            (true, false) if changes < CHANGES_MIN => How::ByItem,
            (false, true) => How::MovedFirst,
            _ => How::AsRound,
        }
    }

    /// The place of the next round.
    pub(crate) fn slot(&self) -> u16 {
        self.next_slot
    }

    /// A round was written there.
    pub(crate) fn wrote(&mut self, sequence: u64, bytes: usize) {
        self.live.push_back(Live { slot: self.next_slot, sequence });
        self.next_slot = self.next_slot.wrapping_add(1);
        self.open_bytes += bytes;
        self.open_rounds += 1;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.open_bytes >= SEAL_BYTES || self.open_rounds >= SEAL_ROUNDS
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Seals what is open, if nothing is sealed.
    pub(crate) fn seal(&mut self, shared: &Shared) {
        let Some(last) = self.live.back().filter(|_| self.sealed.is_none()) else { return };
        self.sealed = Some(last.sequence);
        (self.keys, self.moved) = (shared.front.keys(), 0);
        (self.open_bytes, self.open_rounds) = (0, 0);
    }

    /// The next entries to be written, `None` when there are none: the sealed rounds are forgotten then.
    pub(crate) fn step(&mut self, shared: &Shared, least: usize) -> Option<Entries> {
        let sealed = self.sealed?;
        let mut entries = shared.engine.entries();
        let least = least.max(STEP_ITEMS);
        let mut count = 0;
        while count < least && entries.bytes < STEP_BYTES && self.moved < self.keys.len() {
            let key = &self.keys[self.moved];
            self.moved += 1;
            if let Some(value) = shared.front.left_by(key, sealed) {
                if let Some(expiry_ms) = value.as_ref().and_then(|value| Record::expiry_of(value)) {
                    shared.expiry.note(expiry_ms);
                }
                entries.add_bytes(key, value.as_deref());
                count += 1;
            }
        }
        // Only behind all items, and the oldest first.
        while count < least
            && self.moved == self.keys.len()
            && self.live.front().is_some_and(|live| live.sequence <= sealed)
        {
            if let Some(live) = self.live.pop_front() {
                entries.add(&layout::round_key(live.slot), None);
                count += 1;
            }
        }
        if count > 0 {
            return Some(entries);
        }
        shared.front.forget(&self.keys, sealed);
        (self.sealed, self.keys, self.moved) = (None, Vec::new(), 0);
        None
    }
}
