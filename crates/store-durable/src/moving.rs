//! How what rounds have changed comes into the engine: on the committer, some items between two rounds.
//!
//! The rounds up to some number are *sealed*; the items that they left, and that no later round has changed, are written in the order of their keys. When all are written the
//! sealed rounds are removed, the oldest first: a crash in between leaves the newest, and what those say of an item is what the engine has. Then the items are forgotten in front.
//! None of it is synced by itself: the engine's journal keeps the order, and what is moved is on disk in its round for as long as the journal may lose it.

use std::collections::VecDeque;

use crate::committer::Shared;
use crate::engine::{Engine, Entries};
use crate::fault::Fault;
use crate::front::{CHANGE_BYTES, ShortKey};
use crate::layout::{self, Record, Round};

/// Items that are moved between two rounds, at the least.
const STEP_ITEMS: usize = 128;
/// Bytes that are moved between two rounds, about.
const STEP_BYTES: usize = 1 << 20;
/// Rounds of fewer changes are written item by item, where nothing is in front.
const CHANGES_MIN: usize = 8;
/// And those whose changes have more bytes than that, all together.
const BYTES_MAX: usize = 1 << 20;
/// Sealed when it has so many bytes, with what its changes take in front,
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
        match (self.is_clear(), bytes > BYTES_MAX) {
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

    /// A round of so many changes was written there.
    pub(crate) fn wrote(&mut self, sequence: u64, changes: usize, bytes: usize) {
        self.live.push_back(Live { slot: self.next_slot, sequence });
        self.next_slot = self.next_slot.wrapping_add(1);
        self.open_bytes += bytes + changes * CHANGE_BYTES;
        self.open_rounds += 1;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.open_bytes >= SEAL_BYTES || self.open_rounds >= SEAL_ROUNDS
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Nothing is in front. What the last sealed rounds left is there until it is forgotten, a step after the rounds have gone from the engine: readers would find that
    /// before what was written behind it.
    pub(crate) fn is_clear(&self) -> bool {
        self.live.is_empty() && self.sealed.is_none()
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
                if let Some(end) = value.as_ref().and_then(|value| Record::end_of(value)) {
                    shared.expiry.note(end);
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use bytes::Bytes;
    use larder_core::{Batch, Ctx, Key, Op, PutMode, Store, StoreExt, Ttl};
    use tokio::sync::oneshot;

    use super::*;
    use crate::committer::Request;
    use crate::layout::RoundWriter;
    use crate::ops::Change;
    use crate::options::Sync;
    use crate::{DurableStore, Options};

    #[tokio::test]
    async fn nothing_goes_past_what_is_in_front_until_that_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).open().unwrap();
        let (shared, mut moving) = (store.shared(), Moving::default());
        let both = |moving: &Moving| [moving.how(1, 1), moving.how(1, BYTES_MAX + 1)];
        assert!(both(&moving) == [How::ByItem; 2]);
        let mut writer = RoundWriter::new(7, 0, 0);
        writer.add(b"k", Some(&Record { value: Bytes::from_static(b"v"), ..Record::default() }));
        let (round, bytes) = writer.finish();
        shared.front.put(&round);
        moving.wrote(round.sequence, 1, bytes.len());
        assert!(both(&moving) == [How::AsRound, How::MovedFirst]);
        moving.seal(shared);
        assert!(moving.step(shared, 0).is_some() && moving.live.is_empty(), "its items and its end, in one step");
        assert!(shared.front.get(b"k").is_some());
        assert!(both(&moving) == [How::AsRound, How::MovedFirst]);
        assert!(moving.step(shared, 0).is_none() && shared.front.get(b"k").is_none());
        assert!(both(&moving) == [How::ByItem; 2]);
    }

    #[test]
    fn many_changes_of_few_bytes_are_sealed_for_what_they_take_in_front() {
        let mut moving = Moving::default();
        let changes = SEAL_BYTES.div_ceil(2 * CHANGE_BYTES);
        moving.wrote(1, changes, 0);
        assert!(!moving.is_full());
        moving.wrote(2, changes, 0);
        assert!(moving.is_full());
    }

    fn put(key: &str, mode: PutMode, value: &'static str) -> Op {
        Op::put(Key::new(key.to_owned()).unwrap(), mode, value, Ttl::Never)
    }

    /// Has the committer stand still once it comes there, which the first tells, until the second is dropped.
    async fn gate(store: &DurableStore) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((entered, enters), (release, released)) = (mpsc::channel(), mpsc::channel::<()>());
        let alter = Box::new(move |_: Option<&Record>, _: &_| {
            entered.send(()).unwrap();
            _ = released.recv();
            Ok(Change::Keep)
        });
        let key = Key::new("gate").unwrap();
        assert!(store.ask(Request::Alter { key, alter, reply: oneshot::channel().0 }).await.is_ok());
        (enters, release)
    }

    async fn ask(store: &DurableStore, op: Op) -> oneshot::Receiver<larder_core::Replies> {
        let (reply, answer) = oneshot::channel();
        let batch = Arc::new(Batch::from_iter([op]));
        store.ask(Request::Run { batch, deadline: None, reply, _room: None }).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_write_between_the_end_of_the_last_round_and_its_being_forgotten_is_built_upon() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).sync(Sync::Never).open().unwrap();
        let batch = (0..CHANGES_MIN).map(|number| put(&format!("k{number}"), PutMode::Set, "old")).collect();
        assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok));
        let (enters, release) = gate(&store).await;
        enters.recv().unwrap();
        store.ask(Request::Move { reply: None }).await.unwrap();
        let (enters, last) = gate(&store).await;
        drop(release);
        // The rounds are sealed now; behind this gate one step moves all of it, and what waits then is taken before the next.
        enters.recv().unwrap();
        let set = ask(&store, put("k1", PutMode::Set, "new")).await;
        // Ends the round, so that what follows looks for the item where readers do.
        store.ask(Request::Sweep).await.unwrap();
        let appended = ask(&store, put("k1", PutMode::Append, ", and more")).await;
        drop(last);
        assert!(set.await.unwrap()[0].is_ok() && appended.await.unwrap()[0].is_ok());
        store.settle().unwrap();
        let item = store.get(Key::new("k1").unwrap()).await.unwrap().unwrap();
        assert_eq!(item.value, "new, and more");
    }
}
