//! Pushing: an append to the tail, and the opening of a next segment when the tail is full, or gone.
//!
//! | the append was | and then | |
//! |---|---|---|
//! | stored | | done |
//! | refused | the segment holds the frame: an earlier try landed | done |
//! | refused | it is there, and has room | the store is out of memory: tried again for a while, then `Unavailable` |
//! | refused | it is there, and full | neither this try nor an earlier one can land any more: on to the next segment |
//! | refused | it is not there, and nothing is in doubt | on to the tail that the state names; if that is the one, it is lost |
//! | refused | it is not there, and an earlier try is in doubt | unknown: it may have been delivered, and the segment removed since |
//! | in doubt | the segment holds the frame | done |
//! | in doubt | it does not, so far | the same frame again: repeats of it in one segment count once |

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, PutMode, Replies, Reply, Result, Ttl};

use super::engine::{Engine, Params, SEGMENT_ITEMS, View};
use super::layout::{self, Below, Content, Record, State};
use super::plan::{self, Order};
use crate::append::layout as frames;
use crate::cell::Wrote;
use crate::combine::Driver;
use crate::events;
use crate::ids::random_id;
use crate::manifest::unexpected;
use crate::retry::Backoff;

/// How many steps one push may take in all.
const STEPS_MAX: usize = 64;
/// How often it may fail, in a way that passes, while nothing is in doubt.
const FAULTS_MAX: u32 = 8;
/// A handle looks at the tail this many times while it fills one.
const LOOKS_A_SEGMENT: usize = 8;

/// What a caller pushes.
pub(super) struct Push {
    /// The items, as [`put_element`](frames::put_element) encodes them.
    pub(super) elements: Vec<u8>,
    pub(super) items: usize,
    pub(super) weight: usize,
    pub(super) deadline: Instant,
}

/// Pushes through one handle.
pub(super) struct Pusher {
    engine: Arc<Engine>,
    writer: u64,
    /// Of the frame under way.
    seq: u64,
    elements: Vec<u8>,
    /// The segment that is taken for the tail. `None`: the state must be read.
    tail: Option<Tail>,
    /// True while a try of the frame under way may have landed in `tail`, or may yet.
    is_in_doubt: bool,
    /// What may be pushed until the next look at the tail.
    bytes_until_look: usize,
    /// True while no further segment may be opened: then the tail is looked at before each push.
    is_tight: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Tail {
    number: u64,
    incarnation: u64,
}

/// What became of a step.
enum Step {
    Landed,
    Again,
}

/// Replies, one after the other.
pub(super) struct Answers(<Replies as IntoIterator>::IntoIter);

impl Answers {
    pub(super) fn new(replies: Replies) -> Answers {
        Answers(replies.into_iter())
    }

    pub(super) fn next(&mut self) -> Result<Reply> {
        self.0.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
    }
}

impl Driver for Pusher {
    type Change = Push;
    type Outcome = ();

    fn weight(change: &Push) -> usize {
        change.weight
    }

    async fn apply(&mut self, changes: &[Push], interrupted: bool) -> Result<()> {
        if !interrupted {
            self.seq += 1;
            self.is_in_doubt = false;
            self.elements = changes.iter().flat_map(|change| &change.elements).copied().collect();
        }
        let deadline = changes.iter().map(|change| change.deadline).max().unwrap_or_else(Instant::now);
        let items = changes.iter().map(|change| change.items).sum();
        self.settle(deadline, items).await
    }
}

impl Pusher {
    pub(super) fn new(engine: Arc<Engine>, view: &View) -> Pusher {
        let mut pusher = Pusher {
            engine,
            writer: random_id(),
            seq: 0,
            elements: Vec::new(),
            tail: None,
            is_in_doubt: false,
            bytes_until_look: 0,
            is_tight: false,
        };
        pusher.follow(view);
        // From a random start: of many short-lived handles, each that pushes a little, some look.
        pusher.bytes_until_look = fastrand::usize(0..pusher.look_bytes());
        pusher
    }

    fn look_bytes(&self) -> usize {
        (self.engine.params.segment_bytes as usize / LOOKS_A_SEGMENT).max(1)
    }

    async fn settle(&mut self, deadline: Instant, items: usize) -> Result<()> {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
        let ctx = Ctx { deadline: Some(deadline) };
        let (mut faults, mut last) = (0, None);
        for _ in 0..STEPS_MAX {
            match self.step(ctx, items).await {
                Ok(Step::Landed) => return Ok(()),
                Ok(Step::Again) => {}
                Err(error) => {
                    faults += 1;
                    let may_pass = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
                        || (error.is_unknown() && error.kind() != ErrorKind::Conflict);
                    if !may_pass || (!self.is_in_doubt && faults >= FAULTS_MAX) {
                        return Err(self.judged(error));
                    }
                    events::retry(self.engine.vigil.subject(), error.kind());
                    last = Some(error);
                }
            }
            let pause = if last.is_some() { backoff.next_pause() } else { Duration::ZERO };
            if Instant::now() + pause >= deadline {
                break;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        let over = || Error::new(ErrorKind::Timeout, "the push was not settled before its deadline");
        Err(self.judged(last.unwrap_or_else(over)))
    }

    fn judged(&self, error: Error) -> Error {
        // Opening a segment is done by nobody's order: only an append that is in doubt can bring items about.
        let is_unknown = self.is_in_doubt || (error.kind() == ErrorKind::Conflict && error.is_unknown());
        error.effect(if is_unknown { Effect::Unknown } else { Effect::NotApplied })
    }

    async fn step(&mut self, ctx: Ctx, items: usize) -> Result<Step> {
        let Some(tail) = self.tail else {
            let newest = self.engine.newest();
            let batch = Batch::from_iter([self.engine.cell.read_op()]);
            let view = self.engine.view(Answers::new(self.engine.vigil.run(ctx, batch).await).next(), newest)?;
            self.follow(&view);
            return Ok(Step::Again);
        };
        if self.is_in_doubt {
            if let Some(step) = self.resolve(ctx, tail).await? {
                return Ok(step);
            }
        } else if self.is_tight && !self.has_room(ctx, tail).await? {
            return Ok(Step::Again);
        }
        self.append(ctx, tail, items).await
    }

    fn follow(&mut self, view: &View) {
        self.tail = Some(Tail { number: view.state.tail, incarnation: view.state.incarnation });
        self.is_tight = !self.may_open(&view.state, None);
    }

    /// True if the limit leaves room for one more segment. What is used up does not count: it is about to be removed. `count`
    /// is how many items the tail has, where that is known.
    fn may_open(&self, state: &State, count: Option<u32>) -> bool {
        let Params { segment_bytes, bytes_max } = self.engine.params;
        let order = self.engine.order;
        // Of a segment that a stack has left, only a look tells whether something was pushed to it since.
        let is_drained = |at: usize| order == Order::Fifo && plan::is_drained(state, order, at);
        let is_used_up = |at: usize| {
            let record = &state.records[at];
            record.segment == state.tail
                && count.is_some_and(|count| count > 0 && record.count() == count)
                && state.opens.iter().all(|open| open.segment != state.tail)
        };
        let over = (0..state.records.len()).filter(|&at| is_drained(at) || is_used_up(at)).count() as u64;
        state.live.saturating_sub(over).saturating_add(1).saturating_mul(segment_bytes.into()) <= bytes_max
    }

    /// True if the tail is not full; else tries to open the next segment. **Round trips: 1**, 3 if one is opened.
    async fn has_room(&mut self, ctx: Ctx, tail: Tail) -> Result<bool> {
        let newest = self.engine.newest();
        let batch = Batch::from_iter([self.engine.cell.read_op(), self.engine.segment_read(tail.number)?]);
        let mut answers = Answers::new(self.engine.vigil.run(ctx, batch).await);
        let view = self.engine.view(answers.next(), newest)?;
        let content = self.content(tail, answers.next()?)?;
        if view.state.tail != tail.number {
            self.follow(&view);
            return Ok(false);
        }
        // One that is gone refuses the append, which finds out the rest.
        let is_full = content.as_ref().is_some_and(|content| self.is_full(content));
        if is_full {
            self.open_next(ctx, view, content).await?;
        }
        Ok(!is_full)
    }

    fn is_full(&self, content: &Content) -> bool {
        content.bytes >= self.engine.params.segment_bytes as usize || content.items.len() >= SEGMENT_ITEMS
    }

    fn frame(&self, tail: Tail) -> Bytes {
        frames::frame(layout::place(tail.number, tail.incarnation), self.writer, self.seq, &self.elements)
    }

    /// Appends the frame, with a look at the tail where one is due. **Round trips: 1**, and more where the tail must be left.
    async fn append(&mut self, ctx: Ctx, tail: Tail, items: usize) -> Result<Step> {
        let frame = self.frame(tail);
        // Small items make a segment full by their number.
        let frame_bytes = frame.len();
        let weight = frame_bytes.max(items * self.engine.params.segment_bytes as usize / SEGMENT_ITEMS);
        let is_look = self.bytes_until_look < weight;
        let append = Op::put(self.engine.segment_key(tail.number)?, PutMode::Append, frame, Ttl::Never);
        let mut batch = Batch::from_iter([append.clone()]);
        if is_look {
            batch.extend([self.engine.segment_read(tail.number)?, self.engine.cell.read_op()]);
        }
        let newest = self.engine.newest();
        let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
        let mut answers = Answers::new(self.engine.vigil.run(ctx, batch).await);
        match answers.next() {
            Ok(Reply::Stored) => self.is_in_doubt = false,
            Ok(Reply::NotStored) => {
                self.is_in_doubt = was_in_doubt;
                return self.refused(ctx, tail, frame_bytes).await;
            }
            Ok(other) => return Err(unexpected(&append, &other)),
            Err(error) => {
                self.is_in_doubt = was_in_doubt || error.is_unknown();
                return Err(error);
            }
        }
        self.bytes_until_look = self.bytes_until_look.saturating_sub(weight);
        if is_look {
            self.bytes_until_look = self.look_bytes();
            let segment = answers.next();
            if let Ok(Reply::Item(item)) = &segment
                && layout::incarnation(&item.value).is_ok_and(|incarnation| incarnation != tail.incarnation)
            {
                // The tail was used up and removed, and a late request made its number again: nobody reads that.
                self.is_in_doubt = true;
                return Err(self.cannot_tell(tail));
            }
            // It has landed; a next segment that cannot be opened now is opened by whoever looks next.
            _ = self.after_look(ctx, tail, segment, answers, newest).await;
        }
        Ok(Step::Landed)
    }

    async fn after_look(
        &mut self,
        ctx: Ctx,
        tail: Tail,
        segment: Result<Reply>,
        mut answers: Answers,
        newest: u64,
    ) -> Result<()> {
        let content = self.content(tail, segment?)?;
        let view = self.engine.view(answers.next(), newest)?;
        if view.state.tail != tail.number {
            self.follow(&view);
            return Ok(());
        }
        self.is_tight = !self.may_open(&view.state, None);
        let is_full = content.as_ref().is_some_and(|content| self.is_full(content));
        if is_full { self.open_next(ctx, view, content).await } else { Ok(()) }
    }

    /// The segment, unless it is gone or another's.
    fn content(&self, tail: Tail, reply: Reply) -> Result<Option<Content>> {
        let Some(item) = reply.into_item() else { return Ok(None) };
        let content = Content::parse(tail.number, &item, self.writer)?;
        Ok(Some(content).filter(|content| content.incarnation == tail.incarnation))
    }

    /// Looks whether a try that is in doubt has landed. `None`: not so far.
    async fn resolve(&mut self, ctx: Ctx, tail: Tail) -> Result<Option<Step>> {
        let batch = Batch::from_iter([self.engine.segment_read(tail.number)?]);
        let reply = Answers::new(self.engine.vigil.run(ctx, batch).await).next()?;
        match self.content(tail, reply)? {
            Some(content) if content.last >= self.seq => {
                self.is_in_doubt = false;
                Ok(Some(Step::Landed))
            }
            Some(_) => Ok(None),
            None => Err(self.cannot_tell(tail)),
        }
    }

    fn cannot_tell(&mut self, tail: Tail) -> Error {
        self.tail = None;
        let detail = format!(
            "the reply to a push was lost, and segment {} has been used up, or lost, since: whether the items were delivered \
             cannot be told any more",
            tail.number
        );
        self.engine.named(ErrorKind::Conflict, &detail).effect(Effect::Unknown)
    }

    /// After the tail refused an append: it is full, or gone, or was closed and removed.
    async fn refused(&mut self, ctx: Ctx, tail: Tail, frame_bytes: usize) -> Result<Step> {
        let newest = self.engine.newest();
        let batch = Batch::from_iter([self.engine.cell.read_op(), self.engine.segment_read(tail.number)?]);
        let mut answers = Answers::new(self.engine.vigil.run(ctx, batch).await);
        let view = self.engine.view(answers.next(), newest)?;
        let content = self.content(tail, answers.next()?)?;
        match &content {
            Some(content) if content.last >= self.seq => {
                self.is_in_doubt = false;
                return Ok(Step::Landed);
            }
            // A segment only grows: what it refuses now it refuses for ever.
            Some(_) => self.is_in_doubt = false,
            None if self.is_in_doubt => return Err(self.cannot_tell(tail)),
            None => {}
        }
        if view.state.tail != tail.number {
            self.follow(&view);
            return Ok(Step::Again);
        }
        if let Some(content) = content.as_ref().filter(|content| !self.is_full(content)) {
            // A next segment would not help, and what is closed without an item would pass for lost.
            let fits = content.bytes + frame_bytes <= self.engine.value_bytes_max;
            if fits || content.items.is_empty() {
                let detail = format!(
                    "the store refused {frame_bytes} more bytes to a segment of {}, which has room: it may be out of memory",
                    content.bytes
                );
                return Err(self.engine.named(ErrorKind::Unavailable, &detail));
            }
        }
        self.open_next(ctx, view, content).await?;
        Ok(Step::Again)
    }

    /// Opens the next segment, and makes it the tail. `content` is the tail's; `None` if that is lost. **Round trips: 2.**
    ///
    /// # Errors
    /// [`ErrorKind::Full`], and those of the store.
    async fn open_next(&mut self, ctx: Ctx, view: View, content: Option<Content>) -> Result<()> {
        let engine = self.engine.clone();
        let Engine { params, order, cell, .. } = &*engine;
        let View { mut state, cas } = view;
        let is_lost = content.is_none();
        if !is_lost && !self.may_open(&state, content.as_ref().map(Content::count)) {
            let Params { segment_bytes: each, bytes_max } = params;
            let detail =
                format!("it holds {} segments of {each} bytes; the limit is {bytes_max} bytes in all", state.live);
            return Err(self.engine.named(ErrorKind::Full, &detail));
        }
        // Until it is known what became of it.
        self.tail = None;
        let number = state.tail + 1;
        let was_taken_from = is_lost && state.record_at(state.tail).is_some();
        let count = content.as_ref().map(Content::count);
        let (mut record, noted) = self.leave(&mut state, count, number);
        let incarnation = random_id();
        let note = (*order == Order::Lifo)
            .then(|| layout::note_frame(number, incarnation, random_id(), record.below, &record.taken));
        let add = Op::put(
            self.engine.segment_key(number)?,
            PutMode::Add,
            layout::segment(number, incarnation, note),
            Ttl::Never,
        );
        let mut batch = Batch::from_iter([add, self.engine.segment_read(number)?]);
        for (segment, frame) in &noted {
            batch.push(Op::put(self.engine.segment_key(*segment)?, PutMode::Append, frame.clone(), Ttl::Never));
        }
        let mut answers = Answers::new(self.engine.store.run(ctx, batch).await);
        // Ours, or that of somebody who did not get to name it in the state, or races with us to.
        _ = answers.next();
        let Some(item) = answers.next()?.into_item() else {
            return Err(self.engine.named(ErrorKind::Unavailable, "a new segment was gone at once"));
        };
        let incarnation = Content::parse(number, &item, self.writer)?.incarnation;
        record.incarnation = incarnation;
        // A segment that did not take its note stays on record, and those above it too, so that the way down is known.
        let untaken = noted.iter().position(|_| !matches!(answers.next(), Ok(Reply::Stored)));
        if *order == Order::Lifo {
            state.records.drain(..untaken.unwrap_or(noted.len()));
        }
        // A queue gets there by itself, unless the tail that it took from is gone.
        if *order == Order::Lifo || was_taken_from {
            state.records.push(record);
        }
        (state.tail, state.incarnation, state.is_tail_lost) = (number, incarnation, false);
        state.seq += 1;
        let value = self.engine.encode(&state)?;
        let newest = self.engine.newest();
        let mut answers =
            Answers::new(self.engine.store.run(ctx, cell.put_ops(PutMode::Cas(cas), value.clone(), Ttl::Never)).await);
        let wrote = Wrote::new(&value, answers.next(), answers.next());
        if let Ok(Some(item)) = wrote.now {
            let view = self.engine.view(Ok(Reply::Item(item)), newest)?;
            self.follow(&view);
        }
        // Whether it landed does not matter: the tail that the state names is the one to push to.
        wrote.landed.map(|_| ())
    }

    /// Changes the state for a tail that is left behind. Returns the next tail's record, and the notes that segments of a stack
    /// must take before they are off the record. `count` is how many items the tail has; `None` if it is lost.
    fn leave(&self, state: &mut State, count: Option<u32>, number: u64) -> (Record, Vec<(u64, Bytes)>) {
        let at = state.record_at(state.tail);
        let mut below = Below { segment: Some(state.tail), is_guess: false };
        match at.filter(|_| count.is_none()) {
            Some(at) => {
                below = state.records.remove(at).below;
                if !state.is_tail_lost {
                    state.lost_segments += 1;
                    state.untold += 1;
                }
            }
            // A queue that has not got there yet finds the loss by itself.
            None => state.live += 1,
        }
        if self.engine.order == Order::Fifo {
            return (Record::new(number, 0, Below::default()), Vec::new());
        }
        let note = |record: &Record| {
            let Record { segment, incarnation, below, taken } = record;
            (*segment, layout::note_frame(*segment, *incarnation, random_id(), *below, taken))
        };
        // What is drained stays on record: so it is removed soon, and not only when the stack comes down to it again.
        let is_live = |record: &&Record| {
            let is_drained = record.is_whole() && (record.segment != state.tail || count == Some(record.count()));
            !is_drained || state.opens.iter().any(|open| open.segment == record.segment)
        };
        (Record::new(number, 0, below), state.records.iter().take_while(is_live).map(note).collect())
    }
}
