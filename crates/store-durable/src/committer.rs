//! The committer: the one thread that writes.
//!
//! It takes what waits in the queue, applies each op to the item as the round has left it so far (the overlay, or else the engine), writes all
//! that changed as one batch, syncs once if the store syncs always, and then answers. Writers that come while it syncs wait for the next
//! round: so many writers share one sync. A round that will sync also waits a moment for those who were just answered ([`Gather`]).
//!
//! Readers do not come here. They read the engine, which shows a batch only once it was written, and synced if that was asked for: nobody sees what
//! a crash could still take back at `sync=always`, but for the moment in which the engine shows a batch and an earlier sync is found to have failed. A reader may see a write a moment
//! before its writer is told of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::quality::RandomState;
use larder_core::{Batch, Error, ErrorKind, Key, Op, Replies, Reply, Result};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::ahead::Ahead;
use crate::answer::Answer;
use crate::direct::{Ticket, Unsettled, What, Write};
use crate::engine::{Engine, Entries, Moment};
use crate::expiry::Expiry;
use crate::fault::Fault;
use crate::front::{Front, ShortKey};
use crate::gather::Gather;
use crate::layout::{self, Commit, Generations, ITEM, Record, RoundWriter};
use crate::moving::{How, Moving};
use crate::newest::Newest;
use crate::ops::{self, Change, Rules};
use crate::options::Sync;
use crate::queue::Requests;
use crate::recent::is_large;
use crate::sweep::Sweep;
use crate::time::Timekeeper;

pub(crate) mod moments;
mod reclaim;

/// Requests that may wait for the committer.
pub(crate) const QUEUE_REQUESTS_MAX: usize = 4096;
/// Ops of one round, at the most (and one request's more).
const ROUND_OPS_MAX: usize = 8192;
/// Bytes that one round writes, at the most (and one request's more).
const ROUND_BYTES_MAX: usize = 32 << 20;
/// So many cas tokens are set aside at once; a crash forgets those that were not given out.
const CAS_STEP: u64 = 1 << 20;
/// Tokens that are left when the next are set aside.
const CAS_LEFT_MIN: u64 = 1 << 18;
/// The last token that is given out. Nobody comes so far by counting; a program of an earlier version could, by tokens that its clients had chosen and that it counted on from.
pub(crate) const CAS_MAX: u64 = u64::MAX - (1 << 48);
/// Behind the engine keys of all items.
pub(crate) const ITEMS_END: [u8; 1] = [ITEM + 1];

/// What the store, the committer and the timer share.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    /// What stands before the engine.
    pub(crate) front: Front,
    /// The store's name in errors.
    pub(crate) name: String,
    pub(crate) time: Timekeeper,
    pub(crate) sync: Sync,
    pub(crate) session: u64,
    pub(crate) item_bytes_max: usize,
    /// The last batch that was written.
    pub(crate) written: AtomicU64,
    /// The last batch that is known to be on disk.
    pub(crate) synced: AtomicU64,
    /// True once the first batch of this life was written.
    pub(crate) has_written: AtomicBool,
    /// Why nothing is written any more: once a write failed, until the store is opened anew.
    failure: Mutex<Option<Fault>>,
    /// Bytes that must stay free on the disk.
    pub(crate) room: crate::room::Room,
    pub(crate) expiry: Expiry,
    /// The time of the last batch.
    pub(crate) time_noted_ms: AtomicU64,
    /// Somebody may have been told that an item is over by a later time than that.
    pub(crate) told_over: AtomicBool,
    /// The generation of items that is shown.
    pub(crate) generation: AtomicU32,
    /// Items of earlier ones are to be swept away.
    pub(crate) sweeps: AtomicBool,
    /// What a server decided of items and is not written, where there is one.
    pub(crate) unsettled: OnceLock<Arc<Unsettled>>,
}

/// An alteration of one item by the caller's own code, on the committer.
pub(crate) type AlterFn = Box<dyn FnOnce(Option<&Record>, &Rules) -> Result<Change> + Send>;

/// What the committer is asked to do.
pub(crate) enum Request {
    Run {
        batch: Arc<Batch>,
        deadline: Option<Instant>,
        reply: oneshot::Sender<Replies>,
        _room: Option<OwnedSemaphorePermit>,
    },
    Alter {
        key: Key,
        alter: AlterFn,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Remove what has expired: how many items went. The timer wants no answer.
    Reclaim {
        reply: Option<oneshot::Sender<Result<u64>>>,
    },
    /// Remove some of what earlier generations left.
    Sweep,
    /// Note the time.
    Time,
    /// Write a batch without items.
    Nothing,
    /// Have all that was written so far on disk.
    Sync {
        reply: oneshot::Sender<Result<()>>,
    },
    /// Have what stands before the engine go into it: soon, or, for who waits for it, at once.
    Move {
        reply: Option<std::sync::mpsc::Sender<Result<(), Fault>>>,
    },
    /// Look what a server has decided: that is looked at in each round.
    Inbox,
}

impl Shared {
    pub(crate) fn new(engine: Engine, parts: SharedParts, last: &Commit) -> Shared {
        let SharedParts { name, time, sync, session, item_bytes_max, room, generations } = parts;
        Shared {
            engine,
            front: Front::default(),
            name,
            time,
            sync,
            session,
            item_bytes_max,
            written: AtomicU64::new(last.sequence),
            synced: AtomicU64::new(last.sequence),
            has_written: AtomicBool::new(false),
            failure: Mutex::new(None),
            room,
            expiry: Expiry::default(),
            time_noted_ms: AtomicU64::new(last.time_ms),
            told_over: AtomicBool::new(false),
            generation: AtomicU32::new(generations.current),
            sweeps: AtomicBool::new(generations.current != generations.swept),
            unsettled: OnceLock::new(),
        }
    }

    /// The rules of an op that makes no item.
    pub(crate) fn rules(&self) -> Rules {
        Rules { now: self.time.now(), session: self.session, item_bytes_max: self.item_bytes_max, cas: 0 }
    }

    /// The live item under a key.
    pub(crate) fn read(&self, key: &[u8], now_ms: u64) -> Result<Option<Record>, Fault> {
        Ok(self.stored(key)?.filter(|record| !self.is_over(record, now_ms)))
    }

    /// True if an item is over, for who tells others.
    pub(crate) fn is_over(&self, record: &Record, now_ms: u64) -> bool {
        let is_over = record.is_over(now_ms);
        if is_over && record.end.is_some_and(|end| end.ms() > self.time_noted_ms.load(Ordering::Relaxed)) {
            self.told_over.store(true, Ordering::Relaxed);
        }
        is_over
    }

    /// The item under a key, over or not; none of an earlier generation.
    pub(crate) fn stored(&self, key: &[u8]) -> Result<Option<Record>, Fault> {
        // In this order: an item leaves the front when the engine has it.
        let bytes = match self.front.get(key) {
            Some(known) => known,
            None => self.engine.get(&layout::item_key(key))?,
        };
        let Some(bytes) = bytes else { return Ok(None) };
        let record = Record::decode(key, &bytes).map_err(|bad| crate::list::damaged(key, bad))?;
        // Looked at after the item: a later generation has begun before its first item is seen.
        Ok((record.generation == self.generation.load(Ordering::Acquire)).then_some(record))
    }

    /// How many items there are, about.
    pub(crate) fn items_about(&self) -> u64 {
        self.engine.entries_about() + self.front.items() as u64
    }

    /// Why nothing can be written.
    pub(crate) fn failure(&self) -> Option<Fault> {
        self.failure.lock().clone()
    }

    /// Nothing is written from here on.
    pub(crate) fn fail(&self, fault: &Fault) {
        self.failure.lock().get_or_insert_with(|| fault.clone());
        if let Some(unsettled) = self.unsettled.get() {
            unsettled.fail();
        }
    }

    /// The error of a write that was refused because an earlier one failed.
    pub(crate) fn refused(&self, earlier: &Fault) -> Error {
        let detail = format!("nothing is written since a write failed; open the store anew ({})", earlier.detail);
        Error::new(ErrorKind::Unavailable, detail).store(&self.name)
    }

    /// # Errors
    /// `Full` where the disk has no room for what is written now.
    pub(crate) fn check_room(&self) -> Result<(), Fault> {
        self.room.check(|| self.engine.begun())
    }

    /// Counts bytes that are to be written, until they are.
    ///
    /// # Errors
    /// `Full` where the disk has no room for them.
    pub(crate) fn admit(&self, bytes: u64) -> Result<(), Fault> {
        self.room.admit(bytes, || self.engine.begun())
    }

    /// Has what is in memory written to tables, where the disk lacks room: nothing else would be written for as long as writes are refused. True where a batch without items is to be written next.
    pub(crate) fn make_room(&self) -> Result<bool, Fault> {
        match self.room.waits_for_tables(|| self.engine.begun()) {
            true => self.engine.write_removals(),
            false => Ok(false),
        }
    }

    /// Has what was written so far on disk.
    pub(crate) fn sync_now(&self) -> Result<(), Fault> {
        if let Some(fault) = self.failure() {
            return Err(fault);
        }
        let written = self.written.load(Ordering::Acquire);
        if self.synced.load(Ordering::Acquire) < written {
            self.engine.sync().inspect_err(|fault| self.fail(fault))?;
            self.synced.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// What [`Shared::new`] takes besides the engine.
pub(crate) struct SharedParts {
    pub(crate) name: String,
    pub(crate) time: Timekeeper,
    pub(crate) sync: Sync,
    pub(crate) session: u64,
    pub(crate) item_bytes_max: usize,
    pub(crate) room: crate::room::Room,
    pub(crate) generations: Generations,
}

/// The committer's own state.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    requests: Requests<Request>,
    gather: Gather,
    commit: Commit,
    journal: Newest,
    ahead: Ahead,
    moving: Moving,
    /// The cas token that was given out last.
    cas: u64,
    /// Items as the round has left them so far.
    overlay: HashMap<ShortKey, Option<Record>, RandomState>,
    answers: Vec<Answer>,
    /// What a server decided, and this round writes behind what is in the overlay; a key may be there twice, and the last counts.
    decided: Vec<(Bytes, Option<Record>)>,
    /// Of that, what is large: its key's hash, and by which ticket.
    large: Vec<(u64, Ticket)>,
    last_ticket: Ticket,
    /// Expiries whose time has come, to be removed with the round's batch.
    over: Vec<Vec<u8>>,
    generations: Generations,
    /// The generations are to be noted with the round's batch.
    notes_generations: bool,
    sweep: Sweep,
    /// Where the next piece of what is over begins; `None`: with the first.
    reclaims_from: Option<Vec<u8>>,
    ops: usize,
    bytes: usize,
    /// What the round writes of what was admitted on the disk.
    admitted_bytes: u64,
    /// The round has something that must be on disk before it is answered.
    must_sync: bool,
    /// A batch of the round could not be written.
    failed: Option<Fault>,
    now: Duration,
}

impl Committer {
    /// `last` is the batch that was written last, of the store's incarnation.
    pub(crate) fn new(
        shared: Arc<Shared>,
        requests: Requests<Request>,
        last: Commit,
        generations: Generations,
        journal: Newest,
        moving: Moving,
    ) -> Committer {
        Committer {
            now: shared.time.now(),
            ahead: if shared.sync == Sync::Always { Ahead::of(&journal.path()) } else { Ahead::default() },
            shared,
            moving,
            requests,
            gather: Gather::default(),
            commit: last,
            journal,
            cas: last.cas_limit,
            overlay: HashMap::default(),
            answers: Vec::new(),
            decided: Vec::new(),
            large: Vec::new(),
            last_ticket: 0,
            over: Vec::new(),
            generations,
            notes_generations: false,
            sweep: Sweep::of(generations),
            reclaims_from: None,
            ops: 0,
            bytes: 0,
            admitted_bytes: 0,
            must_sync: false,
            failed: None,
        }
    }

    /// Works until the queue is closed.
    pub(crate) fn run(mut self) {
        let mut taken = Vec::new();
        loop {
            while self.moving.is_sealed() && self.requests.waiting() == 0 && self.move_some(0).is_ok() {}
            let (wanted, patience) = self.gather.next();
            let is_last = !self.requests.take(&mut taken, wanted.min(QUEUE_REQUESTS_MAX), patience);
            self.gather.came(taken.len());
            self.begin_round();
            for request in taken.drain(..) {
                self.take(request);
                self.end_full_round();
            }
            let decided = self.shared.unsettled.get().map(|unsettled| unsettled.take());
            for write in decided.into_iter().flatten() {
                self.take_decided(write);
                self.end_full_round();
            }
            let ops = self.ops;
            self.end_round();
            // More than came, so that those before are moved when these fill their room. Whoever writes next is told where it fails.
            _ = self.move_some(ops * 2);
            if is_last {
                return self.close();
            }
        }
    }

    fn end_full_round(&mut self) {
        if self.ops >= ROUND_OPS_MAX || self.bytes >= ROUND_BYTES_MAX {
            self.end_part();
        }
    }

    /// Takes in what a server has decided.
    fn take_decided(&mut self, write: Write) {
        match write.what {
            What::Item { hash, key, record, cas } => {
                self.ops += 1;
                self.bytes += record.as_ref().map_or(0, |record| record.value.len());
                self.admitted_bytes += record.as_ref().map_or(0, |record| record.bytes_about(&key));
                self.cas = self.cas.max(cas);
                if is_large(&key, record.as_ref()) {
                    self.large.push((hash, write.ticket));
                }
                let record = self.of_now(record);
                self.decided.push((key, record));
            }
            What::Clear => {
                self.end_round();
                if let Err(fault) = self.clear() {
                    self.shared.fail(&fault);
                }
                self.begin_round();
            }
        }
        self.last_ticket = write.ticket;
    }

    /// Removes every item: the next generation begins.
    fn clear(&mut self) -> Result<(), Fault> {
        let next = self.generations.current.checked_add(1);
        self.generations.current =
            next.ok_or_else(|| Fault::corrupt("no generation is left to remove everything by"))?;
        self.notes_generations = true;
        self.commit()?;
        self.shared.generation.store(self.generations.current, Ordering::Release);
        self.sweep.begin();
        self.shared.sweeps.store(true, Ordering::Release);
        Ok(())
    }

    fn begin_round(&mut self) {
        self.now = self.shared.time.now();
        (self.ops, self.bytes, self.must_sync, self.failed) = (0, 0, false, None);
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.now.as_millis()).unwrap_or(u64::MAX)
    }

    fn take(&mut self, request: Request) {
        match request {
            Request::Run { batch, deadline, reply, .. } => {
                if reply.is_closed() {
                    return;
                }
                let answer = self.run_batch(batch, deadline, reply);
                self.answers.push(answer);
            }
            Request::Alter { key, alter, reply } => {
                self.ops += 1;
                let done = self.alter(&key, alter);
                self.answers.push(Answer::Alter { done, reply });
            }
            Request::Reclaim { reply } => {
                let done = self.reclaim(reply.is_some());
                if let Some(reply) = reply {
                    self.answers.push(Answer::Reclaim { done, reply });
                }
            }
            Request::Sweep => self.sweep(),
            Request::Time => {
                self.end_part();
                self.note_time();
            }
            Request::Nothing => {
                self.end_part();
                self.write_nothing();
            }
            Request::Sync { reply } => {
                self.must_sync = true;
                self.answers.push(Answer::Sync { reply });
            }
            Request::Move { reply: None } => self.moving.seal(&self.shared),
            Request::Move { reply: Some(reply) } => {
                self.end_part();
                _ = reply.send(self.move_all());
            }
            Request::Inbox => {}
        }
    }

    fn run_batch(&mut self, batch: Arc<Batch>, deadline: Option<Instant>, reply: oneshot::Sender<Replies>) -> Answer {
        self.ops += batch.len();
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let mut replies = Replies::with_capacity(batch.len());
        for op in batch.iter() {
            let done = if is_late {
                let detail = "the deadline came while the op waited for those before it";
                Err(Error::new(ErrorKind::Timeout, detail).op(op).store(&self.shared.name))
            } else {
                self.run_op(op)
            };
            replies.push(done);
        }
        Answer::Run { replies, batch, reply }
    }

    fn run_op(&mut self, op: &Op) -> Result<Reply> {
        if !op.is_read() {
            self.may_write(op)?;
        }
        let now_ms = self.now_ms();
        let key = op.key.as_bytes();
        let rules = Rules { cas: self.next_cas(), ..self.shared.rules_at(self.now) };
        let name = &self.shared.name;
        let stored;
        let item = match self.overlay.get(key) {
            Some(record) => record.as_ref(),
            None if ops::depends(&op.verb) => {
                stored = self.shared.stored(key).map_err(|fault| fault.error(name).op(op))?;
                stored.as_ref()
            }
            None => None,
        };
        let item = item.filter(|record| !self.shared.is_over(record, now_ms));
        let (reply, change) = ops::apply(op, item, &rules).map_err(|error| error.store(name))?;
        self.change(&op.key, change).map_err(|fault| fault.error(&self.shared.name).op(op))?;
        Ok(reply)
    }

    /// Notes what becomes of an item in this round.
    fn change(&mut self, key: &Key, change: Change) -> Result<(), Fault> {
        let record = match change {
            Change::Keep => return Ok(()),
            Change::Put(record) => Some(record),
            Change::Remove => None,
        };
        if let Some(record) = &record {
            let bytes = record.bytes_about(key.as_bytes());
            self.shared.admit(bytes)?;
            self.admitted_bytes += bytes;
            // One that the caller chose, or that the item keeps, says nothing of those that were given out.
            if record.cas == self.next_cas() {
                self.cas = record.cas;
            }
            self.bytes += record.value.len();
        }
        self.put(key.as_bytes(), record);
        Ok(())
    }

    /// This is what becomes of an item in this round.
    fn put(&mut self, key: &[u8], record: Option<Record>) {
        let record = self.of_now(record);
        self.overlay.insert(key.into(), record);
    }

    /// An item of the current generation.
    fn of_now(&self, record: Option<Record>) -> Option<Record> {
        record.map(|record| Record { generation: self.generations.current, ..record })
    }

    fn may_write(&self, op: &Op) -> Result<()> {
        if let Some(earlier) = self.shared.failure() {
            return Err(self.shared.refused(&earlier).op(op));
        }
        // What gives room back is let through.
        if !matches!(op.verb, larder_core::Verb::Delete { .. }) {
            self.may_put().map_err(|fault| fault.error(&self.shared.name).op(op))?;
        }
        Ok(())
    }

    /// Looks whether there is room for an item, and a token.
    fn may_put(&self) -> Result<(), Fault> {
        self.shared.check_room()?;
        if self.next_cas() > CAS_MAX { Err(Fault::no_token()) } else { Ok(()) }
    }

    /// The token of the next item.
    fn next_cas(&self) -> u64 {
        self.cas.saturating_add(1)
    }

    fn alter(&mut self, key: &Key, alter: AlterFn) -> Result<()> {
        if let Some(earlier) = self.shared.failure() {
            return Err(self.shared.refused(&earlier).key(key));
        }
        let named = |fault: Fault| fault.error(&self.shared.name).key(key);
        self.may_put().map_err(named)?;
        let stored = match self.overlay.get(key.as_bytes()) {
            Some(record) => record.clone(),
            None => self.shared.stored(key.as_bytes()).map_err(named)?,
        };
        let now_ms = self.now_ms();
        let rules = Rules { cas: self.next_cas(), ..self.shared.rules_at(self.now) };
        let change = alter(stored.as_ref().filter(|record| !self.shared.is_over(record, now_ms)), &rules)?;
        self.change(key, change).map_err(|fault| fault.error(&self.shared.name).key(key))
    }

    /// Writes what came so far, answers, and goes on: what fails later is not told to those before it.
    fn end_part(&mut self) {
        self.end_round();
        self.begin_round();
    }

    /// Writes the round's batch and answers.
    fn end_round(&mut self) {
        let done = self.commit().and_then(|()| if self.must_sync { self.shared.sync_now() } else { Ok(()) });
        self.shared.room.carried_out(std::mem::take(&mut self.admitted_bytes));
        self.overlay.clear();
        self.decided.clear();
        self.over.clear();
        if let Err(fault) = done {
            self.failed.get_or_insert(fault);
        }
        let done = self.failed.clone().map_or(Ok(()), Err);
        let large = std::mem::take(&mut self.large);
        if let Some(unsettled) = self.shared.unsettled.get()
            && done.is_ok()
            && self.shared.failure().is_none()
        {
            unsettled.settle(&large, self.last_ticket);
        }
        if self.shared.sync == Sync::Always {
            self.gather.ended(self.answers.len(), self.requests.waiting());
        }
        for answer in self.answers.drain(..) {
            answer.send(&done, &self.shared.name);
        }
    }

    /// Writes what the round changed, if it changed something.
    fn commit(&mut self) -> Result<(), Fault> {
        let records = self.overlay.values().chain(self.decided.iter().map(|(_, record)| record));
        let bytes = records.flatten().map(|record| record.value.len()).sum();
        let changes = self.overlay.len() + self.decided.len();
        if changes == 0 && self.over.is_empty() && !self.notes_generations {
            return Ok(());
        }
        if let Some(fault) = self.shared.failure() {
            return Err(fault);
        }
        let how = self.moving.how(changes, bytes);
        if how == How::MovedFirst {
            self.move_all()?;
        }
        let mut entries = self.shared.engine.entries();
        for engine_key in self.over.drain(..) {
            entries.add(&engine_key, None);
        }
        let mut writer = (how == How::AsRound).then(|| RoundWriter::new(self.commit.sequence + 1, changes, bytes));
        if writer.is_none() {
            // The engine has one of a key in a batch.
            for (key, record) in self.decided.drain(..) {
                self.overlay.insert(key[..].into(), record);
            }
        }
        let overlay = self.overlay.iter().map(|(key, record)| (&key[..], record.as_ref()));
        for (key, record) in overlay.chain(self.decided.iter().map(|(key, record)| (&key[..], record.as_ref()))) {
            match &mut writer {
                Some(writer) => writer.add(key, record),
                None => entries.add_item(key, record),
            }
            if let Some(end) = record.and_then(|record| record.end) {
                self.shared.expiry.note(end);
            }
        }
        if std::mem::take(&mut self.notes_generations) {
            entries.add(layout::GENERATION_KEY, Some(&self.generations.encode()));
        }
        let is_synced = self.shared.sync == Sync::Always;
        let Some(writer) = writer else {
            return self.write(entries, is_synced, Seen::AtOnce);
        };
        let (round, round_bytes) = writer.finish();
        entries.add(&layout::round_key(self.moving.slot()), Some(&round_bytes));
        let shared = self.shared.clone();
        let turn = shared.front.change();
        self.write(entries, is_synced, Seen::Later)?;
        if let Some(fault) = shared.failure() {
            // It failed meanwhile: readers wait for this turn no longer, and would see a part of the round.
            return Err(fault);
        }
        shared.front.put(&round);
        drop(turn);
        self.moving.wrote(round.sequence, changes, round_bytes.len());
        if self.moving.is_full() {
            // The round is written: what fails here is told to whoever writes next.
            while self.moving.is_sealed() && self.move_some(0).is_ok() {}
            if !self.moving.is_sealed() {
                self.moving.seal(&self.shared);
            }
        }
        Ok(())
    }

    /// What a batch would have changed is seen as it was before. The engine shows a batch whose sync succeeded, also where an earlier sync is heard of then that did not: a crash could take it back.
    fn hide(&self, before: &Moment) {
        let mut writer = RoundWriter::new(self.commit.sequence + 1, self.overlay.len(), 0);
        for key in self.overlay.keys() {
            // What cannot be read is an error to whoever reads it.
            let Ok(value) = before.get(&layout::item_key(key)) else { continue };
            writer.add_bytes(key, value.as_deref());
        }
        let _turn = self.shared.front.change();
        self.shared.front.put(&writer.finish().0);
    }

    /// Moves some of what stands before the engine into it, if something is sealed.
    fn move_some(&mut self, least: usize) -> Result<(), Fault> {
        if let Some(fault) = self.shared.failure() {
            return Err(fault);
        }
        match self.moving.step(&self.shared, least) {
            Some(entries) => self.write(entries, false, Seen::Later),
            None => Ok(()),
        }
    }

    /// Moves all of it.
    fn move_all(&mut self) -> Result<(), Fault> {
        while !self.moving.is_clear() {
            self.moving.seal(&self.shared);
            self.move_some(usize::MAX)?;
        }
        Ok(())
    }

    /// Writes entries as one batch, and its commit record.
    fn write(&mut self, entries: Entries, is_synced: bool, seen: Seen) -> Result<(), Fault> {
        let bytes = entries.bytes;
        // Before tokens of a new lot are seen, it is on disk that they were given out.
        let takes_lot = seen != Seen::Never && self.cas.saturating_add(CAS_LEFT_MIN) > self.commit.cas_limit;
        let engine = &self.shared.engine;
        let advanced = self.journal.advance(|journal| engine.follow(journal));
        let begins_file = advanced.inspect_err(|fault| self.shared.fail(fault))?;
        if begins_file {
            // Begun when the last batch was written, or after it: what may be the file's first is on disk before there is a second.
            self.shared.sync_now()?;
            self.shared.engine.forget_earlier();
        }
        if self.shared.sync == Sync::Always {
            if begins_file {
                self.ahead = Ahead::of(&self.journal.path());
            }
            self.ahead.make_room(entries.journal_bytes_max());
        }
        let is_synced = is_synced || takes_lot || begins_file;
        let next = Commit {
            sequence: self.commit.sequence + 1,
            synced: self.shared.synced.load(Ordering::Acquire),
            cas_limit: if takes_lot { self.cas.saturating_add(CAS_STEP) } else { self.commit.cas_limit },
            time_ms: self.now_ms(),
            ..self.commit
        };
        let before = (is_synced && seen == Seen::AtOnce).then(|| self.shared.engine.moment(BTreeMap::new()));
        let from = Instant::now();
        self.commit = self.shared.engine.commit(entries, next, is_synced).inspect_err(|fault| {
            self.shared.fail(fault);
            before.iter().for_each(|before| self.hide(before));
        })?;
        if is_synced {
            self.gather.synced(from.elapsed());
        }
        self.shared.time_noted_ms.store(self.commit.time_ms, Ordering::Relaxed);
        self.shared.written.store(self.commit.sequence, Ordering::Release);
        if is_synced {
            self.shared.synced.fetch_max(self.commit.sequence, Ordering::AcqRel);
        }
        self.shared.has_written.store(true, Ordering::Release);
        self.shared.room.wrote(bytes);
        Ok(())
    }
}

/// When readers see what a batch changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// As soon as the engine has it, and before it is synced.
    AtOnce,
    /// Only when it is put in front.
    Later,
    /// It changes no item, and gives out no token.
    Never,
}

impl Shared {
    fn rules_at(&self, now: Duration) -> Rules {
        Rules { now, session: self.session, item_bytes_max: self.item_bytes_max, cas: 0 }
    }
}
