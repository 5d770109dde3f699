//! Putting: one write under way a handle, a frame a chunk, settled or given up within its deadline.
//!
//! Each chunk of a write goes its own way, and what goes out together travels in one batch:
//!
//! | step | sent | what came | next |
//! |---|---|---|---|
//! | append | the frame, to a part that the ledger is known to list | stored | done |
//! | | | not stored | look: it is full, or gone |
//! | make | a header, if there is no part; the frame; a read of the part, one of the ledger | both stored | register |
//! | | | the frame alone was stored, and the part is listed as this incarnation | done |
//! | | | the frame alone was stored, and it is not | register |
//! | | | the frame alone was stored, and the part could not be read | look |
//! | | | neither was stored | the next part |
//! | look | a read of the part, one of the ledger | the frame is there | done, or register |
//! | | | it is not, and has room | append |
//! | | | it has none | the next part |
//! | | | it is the eighth that is empty, and refused the frame | full |
//! | | | there is no part | make, as another incarnation |
//! | register | to the ledger: the incarnation of the part | | done |
//! | any | with a read of the ledger | it is gone, or went back to an older state | [`Lost`](ErrorKind::Lost), [`RolledBack`](ErrorKind::RolledBack) |
//!
//! An append does not say which incarnation it landed in: the part may have been lost, and made again by somebody who died before it
//! was registered. So a part of which that was not seen for a minute is made, which it is not, rather than appended to.
//!
//! A lost reply leads to a look. What is sent again keeps its sequence, so readers drop the second of two. Before a frame whose first
//! try is in doubt goes to another part, or another incarnation, it is marked: readers then look for it in the chunk's other parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, Ttl, Want, ambient};

use super::inner::{Inner, parts, piece};
use super::layout::{At, HEADER_BYTES};
use crate::combine::Driver;
use crate::events;
use crate::ids::random_id;
use crate::ledger::{List, Piece};
use crate::manifest::unexpected;
use crate::retry::Backoff;

/// A handle goes on to the next part once it knows of so many bytes in one: a store copies a value when it grows.
pub(super) const PART_BYTES: usize = 64 * 1024;
/// The most ops of one chunk's step.
const OPS_A_STEP: usize = 3;
/// How many rounds one write may take in all.
const ROUNDS_MAX: usize = 64;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often a chunk's op may fail, in a way that passes, while nothing is in doubt. Later there is more to lose by giving up.
const FAULTS_MAX: u32 = 8;
/// Refused appends after which the limit in the profile is no longer believed.
const REFUSALS_BELIEVED_MAX: u32 = 2;
/// Empty parts that refuse an append, after which no other is made: the next may lie on a server that has room, but each that is made stays.
const EMPTY_PARTS_MAX: u32 = 8;
/// Of how many chunks a handle remembers the part that it writes to.
const KNOWN_MAX: usize = 1024;
/// Entries past their life that are let be: removing them costs round trips.
pub(super) const EXPIRED_MIN: usize = 64;
/// How long a handle goes without a look at its ledger while it is used: the store must see it used, too, and its loss must be noticed.
const WATCH_EVERY: Duration = Duration::from_secs(60);

/// A caller's events.
pub(super) struct Put {
    /// The elements of each chunk, as [`put_event`](super::layout::put_event) encodes them; each chunk once, in order.
    pub(super) chunks: Vec<(u64, Vec<u8>)>,
    /// When the caller stops waiting.
    pub(super) deadline: Instant,
}

/// What became of each chunk of a write, in rising order.
pub(super) type Outcomes = Arc<Vec<(u64, Result<()>)>>;

/// Puts frames in the order of a sequence.
pub(super) struct Writer {
    inner: Arc<Inner>,
    /// The last sequence that was given out.
    seq: u64,
    /// The part of each chunk that this handle writes to. The ledger lists it.
    known: BTreeMap<u64, Known>,
    pending: Vec<Pending>,
    deadline: Instant,
    /// What the ledger listed last.
    list: Option<List>,
    /// Parts that were listed, and are perhaps not any more: the list went back to an older state.
    went_back: Vec<Piece>,
    /// True once this write has registered a part: the time to remove what is past its life.
    has_registered: bool,
    /// When the ledger is to be looked at again, by the clock's monotonic time.
    next_watch: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    part: u16,
    /// It has so many at least.
    bytes: usize,
    /// When the incarnation that is there was last seen to be listed, by the clock's monotonic time; `None`: never.
    checked: Option<Duration>,
    /// That incarnation, as it was last seen.
    incarnation: Option<u64>,
}

/// One chunk of the write under way.
struct Pending {
    at: At,
    seq: u64,
    elements: Vec<u8>,
    step: Step,
    /// True once something was sent of which it is not known whether it landed.
    is_in_doubt: bool,
    /// True once it landed, in a part that is perhaps not listed.
    is_landed: bool,
    /// True where it may stand in another part, too.
    is_marked: bool,
    /// The incarnation of the part, where it is known to be missing from the ledger.
    unlisted: Option<u64>,
    /// The parts that were sent to be made, and are not known to be listed.
    made: Vec<Piece>,
    /// What the part has at least.
    bytes: usize,
    /// When the incarnation that is there was last seen, and which it is; see [`Known`].
    checked: Option<Duration>,
    incarnation: Option<u64>,
    /// Of the frame that was sent last.
    frame_bytes: usize,
    /// How often the store refused the append.
    refusals: u32,
    /// How many parts refused it that were empty.
    empty_parts: u32,
    faults: u32,
    last_error: Option<Error>,
    outcome: Option<Result<()>>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Append,
    /// As this incarnation, if there is none.
    Make(u64),
    Look,
    Register(u64),
}

/// A step whose replies are awaited.
struct Sent {
    /// Of which of the pending.
    index: usize,
    step: Step,
    /// Whether the write was in doubt before: it is again once this step is known to have done nothing.
    was_in_doubt: bool,
}

/// What the ledger said in a round, if it was asked.
type View = Option<Result<List>>;

impl Writer {
    pub(super) fn new(inner: Arc<Inner>) -> Writer {
        let next_watch = inner.clock.monotonic().saturating_add(WATCH_EVERY);
        Writer {
            inner,
            seq: 0,
            known: BTreeMap::new(),
            pending: Vec::new(),
            deadline: ambient::now(),
            list: None,
            went_back: Vec::new(),
            has_registered: false,
            next_watch,
        }
    }

    fn begin(&mut self, puts: &[Put]) {
        let mut chunks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (chunk, elements) in puts.iter().flat_map(|put| &put.chunks) {
            chunks.entry(*chunk).or_default().extend_from_slice(elements);
        }
        self.seq += 1;
        self.has_registered = false;
        self.deadline = puts.iter().map(|put| put.deadline).max().unwrap_or_else(ambient::now);
        let pending = |(chunk, elements): (u64, Vec<u8>)| {
            let (part, bytes, step) = self.place(chunk, elements.len());
            let known = self.known.get(&chunk).filter(|known| known.part == part);
            let (checked, incarnation) = known.map_or((None, None), |known| (known.checked, known.incarnation));
            Pending { checked, incarnation, ..Pending::new(At { chunk, part }, self.seq, elements, step, bytes) }
        };
        self.pending = chunks.into_iter().map(pending).collect();
    }

    /// Where elements of so many bytes go first.
    fn place(&self, chunk: u64, bytes: usize) -> (u16, usize, Step) {
        let Some(known) = self.known.get(&chunk) else { return (0, 0, Step::Make(random_id())) };
        let is_full = known.bytes >= PART_BYTES || known.bytes.saturating_add(bytes) > self.inner.value_bytes_max;
        match known.part.checked_add(1) {
            Some(next) if is_full => (next, 0, Step::Make(random_id())),
            _ if self.is_fresh(known) => (known.part, known.bytes, Step::Append),
            _ => (known.part, known.bytes, Step::Make(random_id())),
        }
    }

    /// True if it was seen lately that the ledger lists what is there.
    fn is_fresh(&self, known: &Known) -> bool {
        let now = self.inner.clock.monotonic();
        known.checked.is_some_and(|checked| now.saturating_sub(checked) < WATCH_EVERY)
    }

    async fn settle(&mut self) {
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        for _ in 0..ROUNDS_MAX {
            if self.pending.iter().all(|pending| pending.outcome.is_some()) || ambient::now() >= self.deadline {
                break;
            }
            let must_pause = self.round().await;
            self.register().await;
            if must_pause {
                let left = self.deadline.saturating_duration_since(ambient::now());
                tokio::time::sleep(backoff.next_pause().min(left)).await;
            }
        }
        self.relist().await;
        self.remove_unlisted().await;
        self.trim().await;
    }

    /// Sends the next step of each chunk, but for registrations. True if there should be a pause before the next.
    async fn round(&mut self) -> bool {
        let (mut batch, sent, mut asks_ledger) = self.next_batch();
        if sent.is_empty() {
            return false;
        }
        let now = self.inner.clock.monotonic();
        if now >= self.next_watch {
            asks_ledger = true;
        }
        let before = self.inner.ledger.seen();
        if asks_ledger {
            self.next_watch = now.saturating_add(WATCH_EVERY);
            batch.push(self.inner.ledger.read_op());
        }
        let ctx = Ctx { deadline: Some(self.deadline) };
        let mut replies = self.inner.ledger.vigil().run(ctx, batch).await;
        let view: View = asks_ledger.then(|| {
            let reply = replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
            self.inner.ledger.list(reply, before)
        });
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
        let mut must_pause = false;
        for Sent { index, step, was_in_doubt } in sent {
            let pending = &mut self.pending[index];
            must_pause |= match step {
                Step::Append => pending.appended(&self.inner, was_in_doubt, next()),
                Step::Make(incarnation) => {
                    let replies = (next(), next(), next());
                    pending.made(&self.inner, incarnation, was_in_doubt, replies, &view)
                }
                Step::Look | Step::Register(_) => pending.looked(&self.inner, was_in_doubt, next(), &view),
            };
        }
        match view {
            Some(Ok(list)) => self.list = Some(list),
            Some(Err(error)) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack) => {
                self.lose_list(&error);
            }
            _ => {}
        }
        must_pause
    }

    /// The list is gone, or lacks what it had: nobody finds a part that it does not name, whatever landed there.
    fn lose_list(&mut self, error: &Error) {
        for pending in &mut self.pending {
            let is_done = matches!(pending.outcome, Some(Ok(())));
            let effect = if is_done { Effect::Unknown } else { pending.effect() };
            pending.outcome = Some(Err(error.clone().effect(effect)));
        }
        // What is known of them no longer holds: the next put to each asks the list.
        let known = std::mem::take(&mut self.known);
        if error.kind() != ErrorKind::RolledBack {
            return;
        }
        let now_ms = self.inner.now_ms();
        for (chunk, Known { part, incarnation, .. }) in known {
            // All parts of it: whoever puts there next goes from the first to the last that is listed, and not by those in between.
            let listed = self.list.iter().flat_map(|list| list.between(chunk, chunk)).copied();
            let last = incarnation.map(|incarnation| piece(At { chunk, part }, incarnation));
            for piece in listed.chain(last).filter(|piece| !self.inner.is_over(piece.number, now_ms)) {
                if !self.went_back.contains(&piece) {
                    self.went_back.push(piece);
                }
            }
        }
    }

    /// Lists the parts anew of the chunks that this handle went on putting into while the list lacked some of them. What fails, or is dropped, is done behind its next write.
    async fn relist(&mut self) {
        if !self.went_back.is_empty() && self.inner.ledger.register(self.deadline, &self.went_back).await.is_ok() {
            self.went_back.clear();
        }
    }

    /// The next ops of the chunks that are not settled, as far as a batch takes them, and whether the ledger is to be read with them.
    fn next_batch(&mut self) -> (Batch, Vec<Sent>, bool) {
        // The ledger and the look at the manifest have a place of their own.
        let ops_max = self.inner.store.profile().batch_ops_max.saturating_sub(2).max(OPS_A_STEP);
        let now_ms = self.inner.now_ms();
        let (mut batch, mut sent, mut asks_ledger) = (Batch::new(), Vec::new(), false);
        for (index, pending) in self.pending.iter_mut().enumerate() {
            let is_waiting = pending.outcome.is_some() || matches!(pending.step, Step::Register(_));
            if is_waiting || batch.len() + OPS_A_STEP > ops_max {
                continue;
            }
            let ops = match pending.ops(&self.inner, now_ms) {
                Ok(ops) => ops,
                Err(error) => {
                    pending.fail(error);
                    continue;
                }
            };
            batch.extend(ops);
            // Should this future be dropped before the replies come, the next caller starts with a look at what landed.
            let step = std::mem::replace(&mut pending.step, Step::Look);
            let was_in_doubt = pending.is_in_doubt;
            pending.is_in_doubt |= !matches!(step, Step::Look);
            asks_ledger |= !matches!(step, Step::Append);
            sent.push(Sent { index, step, was_in_doubt });
        }
        (batch, sent, asks_ledger)
    }

    /// Registers the parts that wait for it, all at once.
    async fn register(&mut self) {
        let waits = |pending: &Pending| match (pending.step, &pending.outcome) {
            (Step::Register(incarnation), None) => Some(piece(pending.at, incarnation)),
            _ => None,
        };
        let pieces: Vec<Piece> = self.pending.iter().filter_map(waits).collect();
        if pieces.is_empty() {
            return;
        }
        let mut outcome = self.inner.ledger.register(self.deadline, &pieces).await;
        if matches!(&outcome, Err(error) if error.kind() == ErrorKind::Full) && self.remove_expired(1).await {
            outcome = self.inner.ledger.register(self.deadline, &pieces).await;
        }
        self.has_registered |= outcome.is_ok();
        for pending in self.pending.iter_mut().filter(|pending| waits(pending).is_some()) {
            // What landed in a part that is not listed may be found yet, once another lists it.
            pending.outcome = Some(outcome.clone().map_err(|error| error.effect(Effect::Unknown)));
            if outcome.is_ok() {
                pending.made.retain(|made| !pieces.contains(made));
            }
        }
    }

    /// Removes the parts that this write made for a list that is gone by now, as in a drop: nobody would find them. What others made they remove themselves.
    async fn remove_unlisted(&self) {
        let is_lost =
            |pending: &&Pending| matches!(&pending.outcome, Some(Err(error)) if error.kind() == ErrorKind::Lost);
        let made: Vec<Piece> = self.pending.iter().filter(is_lost).flat_map(|pending| pending.made.clone()).collect();
        if made.is_empty() {
            return;
        }
        let (inner, ctx) = (&self.inner, Ctx { deadline: Some(self.deadline) });
        // Where only this life of the name is over, the list may be there, and name them.
        if !inner.ledger.is_gone(ctx).await {
            return;
        }
        // Which of them stand, and are this write's, is not known where a reply was lost.
        let Ok(reads) = inner.read_parts(ctx, &parts(&made), Want::VALUE).await else { return };
        let is_ours = |at: At, bytes: &[u8]| {
            let incarnation = inner.parse(at, bytes).map(|part| part.incarnation);
            incarnation.is_ok_and(|incarnation| made.contains(&piece(at, incarnation)))
        };
        let ours = reads.iter().filter(|read| read.item.as_ref().is_some_and(|(bytes, _)| is_ours(read.at, bytes)));
        let deletes: Vec<Op> = ours.filter_map(|read| inner.key(read.at).ok()).map(Op::delete).collect();
        for some in deletes.chunks(inner.store.profile().batch_ops_max) {
            // What cannot be removed ends with its chunk.
            _ = inner.store.run(ctx, some.iter().cloned().collect()).await;
        }
    }

    /// Removes entries that are past their life, now and then. What fails is done another time.
    async fn trim(&mut self) {
        if std::mem::take(&mut self.has_registered) {
            self.remove_expired(EXPIRED_MIN).await;
        }
    }

    /// Removes entries that are past their life, if there are so many of them. True if that was done.
    async fn remove_expired(&self, min: usize) -> bool {
        let Some(list) = &self.list else { return false };
        let inner = &self.inner;
        let expired = inner.expired(list.pieces(), inner.now_ms());
        if expired.len() < min {
            return false;
        }
        inner.ledger.trim(self.deadline, &expired, |piece| inner.key(super::inner::at(piece))).await.is_ok()
    }

    /// Takes the outcomes, and notes what they tell.
    fn finish(&mut self) -> Outcomes {
        let mut outcomes = Vec::with_capacity(self.pending.len());
        for mut pending in std::mem::take(&mut self.pending) {
            let chunk = pending.at.chunk;
            let outcome = pending.outcome.take().unwrap_or_else(|| Err(pending.give_up()));
            match &outcome {
                Ok(()) => self.note(&pending),
                Err(_) => _ = self.known.remove(&chunk),
            }
            outcomes.push((chunk, outcome));
        }
        Arc::new(outcomes)
    }

    /// Notes where the next events of a chunk go.
    fn note(&mut self, pending: &Pending) {
        let At { chunk, part } = pending.at;
        let top = self.list.as_ref().and_then(|list| list.between(chunk, chunk).last()).map_or(0, |piece| piece.part);
        let known = match top > part {
            true => Known { part: top, bytes: 0, checked: None, incarnation: None },
            false => {
                let Pending { bytes, checked, incarnation, .. } = *pending;
                Known { part, bytes, checked, incarnation }
            }
        };
        self.known.insert(chunk, known);
        if self.known.len() > KNOWN_MAX {
            self.known.pop_first();
        }
    }
}

impl Driver for Writer {
    type Change = Put;
    type Outcome = Outcomes;

    fn weight(put: &Put) -> usize {
        put.chunks.iter().map(|(_, elements)| elements.len()).sum()
    }

    async fn apply(&mut self, puts: &[Put], interrupted: bool) -> Result<Outcomes> {
        if !interrupted {
            self.begin(puts);
        }
        self.settle().await;
        Ok(self.finish())
    }
}

impl Pending {
    fn new(at: At, seq: u64, elements: Vec<u8>, step: Step, bytes: usize) -> Pending {
        Pending {
            at,
            seq,
            elements,
            step,
            is_in_doubt: false,
            is_landed: false,
            is_marked: false,
            unlisted: None,
            made: Vec::new(),
            bytes,
            checked: None,
            incarnation: None,
            frame_bytes: 0,
            refusals: 0,
            empty_parts: 0,
            faults: 0,
            last_error: None,
            outcome: None,
        }
    }

    fn frame(&self, inner: &Inner) -> Bytes {
        self.at.frame(inner.manifest.generation, inner.writer, self.seq, &self.elements, self.is_marked)
    }

    fn ops(&mut self, inner: &Inner, now_ms: u64) -> Result<Batch> {
        let key = inner.key(self.at)?;
        let frame = self.frame(inner);
        self.frame_bytes = frame.len();
        let append = |key| Op::put(key, PutMode::Append, frame, Ttl::Never);
        Ok(match self.step {
            Step::Append => Batch::from_iter([append(key)]),
            Step::Make(incarnation) => {
                self.made.push(piece(self.at, incarnation));
                let header = self.at.header(inner.manifest.generation, incarnation);
                let add = Op::put(key.clone(), PutMode::Add, header, inner.ttl(self.at, now_ms));
                Batch::from_iter([add, append(key.clone()), Op::get(key, Want::VALUE)])
            }
            Step::Look | Step::Register(_) => Batch::from_iter([Op::get(key, Want::VALUE)]),
        })
    }

    /// The replies to a step. True if there should be a pause.
    fn appended(&mut self, inner: &Inner, was_in_doubt: bool, reply: Result<Reply>) -> bool {
        match reply {
            Ok(Reply::Stored) => {
                self.bytes += self.frame_bytes;
                self.landed();
            }
            Ok(Reply::NotStored) => {
                self.is_in_doubt = was_in_doubt;
                self.refusals += 1;
            }
            Ok(other) => self.unexpected(inner, &other),
            Err(error) => return self.fault(inner, was_in_doubt, error),
        }
        false
    }

    fn made(
        &mut self,
        inner: &Inner,
        incarnation: u64,
        was_in_doubt: bool,
        (add, append, read): (Result<Reply>, Result<Reply>, Result<Reply>),
        view: &View,
    ) -> bool {
        match (add, append) {
            (Ok(Reply::Stored), Ok(Reply::Stored)) => {
                self.bytes = HEADER_BYTES + self.frame_bytes;
                self.saw(inner, incarnation);
                self.unlisted = Some(incarnation);
                self.landed();
            }
            (_, Ok(Reply::Stored)) => {
                self.is_landed = true;
                self.is_in_doubt = was_in_doubt;
                // Another incarnation than the one that is listed may be there. What cannot be told now is seen by a look.
                if let (Ok(Reply::Item(item)), Some(Ok(list))) = (read, view)
                    && let Err(error) = self.judge(inner, &item.value, list)
                {
                    self.fail(error);
                }
            }
            (Ok(Reply::NotStored), Ok(Reply::NotStored)) => {
                self.is_in_doubt = was_in_doubt;
                let is_empty = matches!(&read, Ok(Reply::Item(item)) if item.value.len() <= HEADER_BYTES);
                match view {
                    Some(Ok(list)) if !was_in_doubt => self.go_on_from(is_empty, list),
                    _ => {}
                }
            }
            // The store has no room for a part, and there is none.
            (Err(error), Ok(Reply::NotStored)) if error.kind() == ErrorKind::Full => {
                self.is_in_doubt = was_in_doubt;
                self.fail(error);
            }
            // It was made, and is gone already; or nothing is known of the making.
            (_, Ok(Reply::NotStored)) => {
                self.is_in_doubt = was_in_doubt;
                self.refusals += 1;
                return true;
            }
            (_, Ok(other)) => self.unexpected(inner, &other),
            (_, Err(error)) => return self.fault(inner, was_in_doubt, error),
        }
        false
    }

    fn looked(&mut self, inner: &Inner, was_in_doubt: bool, reply: Result<Reply>, view: &View) -> bool {
        let list = match view {
            Some(Ok(list)) => list,
            Some(Err(error)) => return self.fault(inner, was_in_doubt, error.clone()),
            None => return self.fault(inner, was_in_doubt, larder_core::ext::no_reply()),
        };
        match reply {
            Ok(Reply::Item(item)) => {
                if let Err(error) = self.judge(inner, &item.value, list) {
                    self.fail(error);
                }
            }
            Ok(Reply::Miss) => {
                // What landed there is gone, or was never there. Should it arrive late, it is a second one.
                self.is_marked |= self.is_in_doubt || self.is_landed;
                self.is_landed = false;
                self.refusals = 0;
                self.unlisted = None;
                self.bytes = 0;
                self.checked = None;
                self.incarnation = None;
                self.step = Step::Make(random_id());
            }
            Ok(other) => self.unexpected(inner, &other),
            Err(error) => return self.fault(inner, was_in_doubt, error),
        }
        false
    }

    /// What to do about a part that was read.
    fn judge(&mut self, inner: &Inner, bytes: &[u8], list: &List) -> Result<()> {
        let part = inner.parse(self.at, bytes)?;
        let piece = piece(self.at, part.incarnation);
        let is_listed = list.has_exactly(&piece);
        self.unlisted = (!is_listed).then_some(part.incarnation);
        self.made.retain(|made| !is_listed || *made != piece);
        self.bytes = part.len();
        self.saw(inner, part.incarnation);
        if part.has(inner.writer, self.seq).map_err(|error| inner.named(error, self.at))? {
            self.landed();
            return Ok(());
        }
        self.is_marked |= self.is_landed;
        self.is_landed = false;
        let fits = part.len().saturating_add(self.frame(inner).len()) <= inner.value_bytes_max;
        if fits && self.refusals < REFUSALS_BELIEVED_MAX {
            self.step = Step::Append;
            return Ok(());
        }
        self.go_on_from(part.len() <= HEADER_BYTES, list);
        Ok(())
    }

    /// Notes which incarnation is there.
    fn saw(&mut self, inner: &Inner, incarnation: u64) {
        self.checked = Some(inner.clock.monotonic());
        self.incarnation = Some(incarnation);
    }

    fn landed(&mut self) {
        self.is_landed = true;
        match self.unlisted {
            Some(incarnation) => self.step = Step::Register(incarnation),
            None => self.outcome = Some(Ok(())),
        }
    }

    /// Goes on from a part that refused the frame, unless too many did that are empty.
    fn go_on_from(&mut self, is_empty: bool, list: &List) {
        self.empty_parts += u32::from(is_empty);
        match self.empty_parts >= EMPTY_PARTS_MAX {
            true => self.fail(refused()),
            false => self.go_on(list),
        }
    }

    /// Goes on to another part: the last that is listed, or one behind this.
    fn go_on(&mut self, list: &List) {
        let Some(next) = self.at.part.checked_add(1) else {
            let detail = format!("chunk {} of the log has {} parts, as many as it can", self.at.chunk, u16::MAX);
            return self.fail(Error::new(ErrorKind::Full, detail));
        };
        let chunk = self.at.chunk;
        let top = list.between(chunk, chunk).last().map_or(0, |piece| piece.part);
        self.is_marked |= self.is_in_doubt;
        self.at.part = next.max(top);
        self.refusals = 0;
        self.unlisted = None;
        self.bytes = 0;
        self.checked = None;
        self.incarnation = None;
        self.step = Step::Make(random_id());
    }

    fn unexpected(&mut self, inner: &Inner, reply: &Reply) {
        let error = match inner.key(self.at) {
            Ok(key) => unexpected(&Op::get(key, Want::VALUE), reply),
            Err(error) => error,
        };
        self.fail(error);
    }

    /// Takes in an error. True if a look may follow, after a pause.
    fn fault(&mut self, inner: &Inner, was_in_doubt: bool, error: Error) -> bool {
        if !error.is_unknown() {
            self.is_in_doubt = was_in_doubt;
        }
        // A store that cannot be reached now may be in a moment; one that refuses will refuse again.
        let is_passing = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
        self.faults += 1;
        let is_worth_it = self.is_in_doubt || self.is_landed || self.faults < FAULTS_MAX;
        if (error.is_unknown() || is_passing) && is_worth_it {
            events::retry(inner.subject(), error.kind());
            self.last_error = Some(error);
        } else {
            self.fail(error);
        }
        self.outcome.is_none()
    }

    fn effect(&self) -> Effect {
        if self.is_in_doubt || self.is_landed || self.is_marked { Effect::Unknown } else { Effect::NotApplied }
    }

    fn fail(&mut self, error: Error) {
        let effect = if error.is_unknown() { Effect::Unknown } else { self.effect() };
        self.outcome = Some(Err(error.effect(effect)));
    }

    /// The error of a chunk that could not be settled in time.
    fn give_up(&self) -> Error {
        let effect = self.effect();
        match &self.last_error {
            Some(error) => error.clone().effect(effect),
            None if self.refusals > 0 => refused().effect(effect),
            None => {
                let detail = format!("the put was not settled before its deadline, in at most {ROUNDS_MAX} rounds");
                Error::new(ErrorKind::Timeout, detail).effect(effect)
            }
        }
    }
}

fn refused() -> Error {
    Error::new(ErrorKind::Full, "the store refused the event, and has not said why")
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
