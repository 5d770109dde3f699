//! Pushing: an append to the tail, and the opening of a next segment when the tail is full, or gone.
//!
//! | the append was | and then | |
//! |---|---|---|
//! | stored | | done |
//! | refused | the segment holds the frame: an earlier try landed | done |
//! | refused | it is there, and the frame does not fit into it | neither this try nor an earlier one can land any more: on to the next segment |
//! | refused | it is there, the frame fits, and an earlier try is in doubt | the store is out of memory, and the earlier try may land yet: the same frame again, for as long as there is time; then unknown |
//! | refused | it is there, the frame fits, and nothing is in doubt | if it is full, on to the next segment; else the store is out of memory: tried again for a while, then `Unavailable` |
//! | refused | it is not there, and nothing is in doubt | on to the tail that the state names; if that is the one, it is lost |
//! | refused | it is not there, and an earlier try is in doubt | unknown: it may have been delivered, and the segment removed since |
//! | not taken: the store is `Full`, as it says itself | | that, at once: nobody knows when there is room. Unknown if an earlier try is in doubt |
//! | in doubt | the segment holds the frame | done |
//! | in doubt | it does not, so far | the same frame again: repeats of it in one segment count once |

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Op, PutMode, Replies, Reply, Result, Ttl, ambient};

use super::engine::{Engine, Params, SEGMENT_ITEMS, View};
use super::layout::{self, Below, Content, Record, State};
use super::plan::{self, Order, Shelf};
use super::removal::{self, Removals};
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
/// How many segments that a stack has left are looked at where it seems full.
const LOOKED_AT_MAX: usize = 16;
/// With more than so many segments on record, a stack leaves those as well of which nothing is left.
const ON_RECORD_MAX: usize = 16;
/// What a batch that adds a segment has beside what leaves others: the adding, and a look whether it is there.
const OPS_TO_ADD: usize = 2;
/// What it takes to leave one, at the most: its link, a look at that, a note.
const OPS_TO_LEAVE: usize = 3;
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
    /// True once the frame under way is known to have landed: whoever drops it after that leaves nothing to be done again.
    has_landed: bool,
    /// What may be pushed until the next look at the tail.
    bytes_until_look: usize,
    /// True while no further segment may be opened: then the tail is looked at before each push.
    is_tight: bool,
    /// A segment that was added, while nobody knows whether the state names it.
    spare: Option<Spare>,
    /// Of the segments that a stack has left: what a look finds.
    shelf: Shelf,
    /// Of these, which were found gone.
    removals: Removals,
}

/// A segment that this handle added to name it in the state.
#[derive(Clone, Copy)]
struct Spare {
    tail: Tail,
    /// The sequence of the state that the naming was conditional on.
    base: u64,
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
        if interrupted && self.has_landed {
            // What was dropped may have been about to tell a loss: the next push looks.
            self.bytes_until_look = 0;
            return Ok(());
        }
        if !interrupted {
            self.seq += 1;
            (self.is_in_doubt, self.has_landed) = (false, false);
            self.elements = changes.iter().flat_map(|change| &change.elements).copied().collect();
        }
        let deadline = changes.iter().map(|change| change.deadline).max().unwrap_or_else(ambient::now);
        let items = changes.iter().map(|change| change.items).sum();
        self.settle(deadline, items).await
    }
}

impl Pusher {
    pub(super) fn new(engine: Arc<Engine>, view: &View) -> Pusher {
        let writer = random_id();
        let removals = Removals::new(writer, engine.may_evict(), engine.timeout);
        let mut pusher = Pusher {
            engine,
            writer,
            seq: 0,
            elements: Vec::new(),
            tail: None,
            is_in_doubt: false,
            has_landed: false,
            bytes_until_look: 0,
            is_tight: false,
            spare: None,
            shelf: Shelf::default(),
            removals,
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
            if ambient::now() + pause >= deadline {
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

    /// True if another segment is the tail now: that one is followed.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] if it is none that came later: a state that was set back, and written since, does not name the one that was pushed to.
    fn has_moved(&mut self, view: &View, tail: Tail) -> Result<bool> {
        self.follow(view);
        if self.tail == Some(tail) {
            return Ok(false);
        }
        if view.state.tail > tail.number {
            return Ok(true);
        }
        let detail = format!(
            "segment {} was its tail and is not any more: its state went back to an older one, and what was pushed there since is lost",
            tail.number
        );
        Err(self.engine.named(ErrorKind::RolledBack, &detail))
    }

    /// True if the limit leaves room for one more segment. What is used up does not count: it is about to be removed. `count`
    /// is how many items the tail has, where that is known.
    fn may_open(&self, state: &State, count: Option<u32>) -> bool {
        let order = self.engine.order;
        // Of a segment that a stack has left, only a look tells whether something was pushed to it since.
        let is_drained = |at: usize| order == Order::Fifo && plan::is_drained(state, order, at);
        let drained = (0..state.records.len()).filter(|&at| is_drained(at)).count() as u64;
        let over = drained + u64::from(self.is_used_up(state, count));
        self.has_room_beside(state.live.saturating_sub(over))
    }

    /// True if the limit leaves room for one more segment than these.
    fn has_room_beside(&self, segments: u64) -> bool {
        let Params { segment_bytes, bytes_max } = self.engine.params;
        segments.saturating_add(1).saturating_mul(segment_bytes.into()) <= bytes_max
    }

    /// The same of a stack, after a look at the segments that it has left: those are removed by who takes, which nobody may do for long.
    /// **Round trips: 1**, none of a queue.
    async fn may_open_by_a_look(&self, ctx: Ctx, state: &State, count: Option<u32>) -> Result<bool> {
        let left = self.look_at_drained(ctx, state).await?;
        let is_over = |(record, content): &&(&Record, Option<Content>)| {
            content.as_ref().is_none_or(|content| content.count() == record.count())
        };
        let over = left.iter().filter(is_over).count() as u64 + u64::from(self.is_used_up(state, count));
        Ok(!left.is_empty() && self.has_room_beside(state.live.saturating_sub(over)))
    }

    /// Segments that a stack has left and of which nothing is left, as far as the state knows, with what is there. **Round trips: 1**, if there are any.
    async fn look_at_drained<'s>(&self, ctx: Ctx, state: &'s State) -> Result<Vec<(&'s Record, Option<Content>)>> {
        let order = self.engine.order;
        let left: Vec<&Record> = (0..state.records.len())
            .filter(|&at| order == Order::Lifo && plan::is_drained(state, order, at))
            .map(|at| &state.records[at])
            .take(LOOKED_AT_MAX)
            .collect();
        if left.is_empty() {
            return Ok(Vec::new());
        }
        let reads: Result<Batch> = left.iter().map(|record| self.engine.segment_read(record.incarnation)).collect();
        let mut answers = Answers::new(self.engine.store.run(ctx, reads?).await);
        let mut looked_at = Vec::with_capacity(left.len());
        for record in left {
            let item = answers.next()?.into_item();
            // Nothing of it is left that anybody wants: what stands in its place must not keep others from pushing.
            let content = item.and_then(|item| Content::parse(record.segment, &item, self.writer).ok());
            looked_at.push((record, content));
        }
        Ok(looked_at)
    }

    /// Takes segments off the record that are gone, where those who take from a stack have not done so for long: what lies above them would stay on record, too. Returns those
    /// that are used up and still there; of what cannot be looked at, none. **Round trips: 1**, if there are many on record; else none.
    async fn tidy(&mut self, ctx: Ctx, state: &mut State) -> Vec<u64> {
        if state.records.len() <= ON_RECORD_MAX {
            return Vec::new();
        }
        // A server that is down is not to keep others from pushing.
        let now = ambient::now();
        let deadline = ctx.deadline.map(|deadline| now + deadline.saturating_duration_since(now) / 2);
        self.shelf.begin(None);
        let Ok(looked_at) = self.look_at_drained(Ctx { deadline }, state).await else { return Vec::new() };
        let segments: Vec<u64> = looked_at.iter().map(|(record, _)| record.segment).collect();
        let there: Vec<u64> =
            looked_at.iter().filter(|(_, content)| content.is_some()).map(|(record, _)| record.segment).collect();
        for (&segment, (_, content)) in segments.iter().zip(looked_at) {
            self.shelf.keep(segment, content, state.tail, state.seq);
        }
        self.removals.forget_all_but(state);
        self.removals.learn(self.engine.may_evict());
        self.removals.note_missed(state, self.engine.order, &self.shelf);
        plan::tidy(state, self.engine.order, &self.shelf, &self.removals);
        // What is there is not wanted.
        segments.into_iter().for_each(|segment| self.shelf.forget(segment));
        there
    }

    /// True if all of the tail's `count` items were taken and are done with.
    fn is_used_up(&self, state: &State, count: Option<u32>) -> bool {
        let record = state.record_at(state.tail).map(|at| &state.records[at]);
        record.is_some_and(|record| count.is_some_and(|count| count > 0 && record.count() == count))
            && state.opens.iter().all(|open| open.segment != state.tail)
    }

    /// True if the tail is not full; else tries to open the next segment. **Round trips: 1**, 3 if one is opened.
    async fn has_room(&mut self, ctx: Ctx, tail: Tail) -> Result<bool> {
        let newest = self.engine.newest();
        let batch = Batch::from_iter([self.engine.cell.read_op(), self.engine.segment_read(tail.incarnation)?]);
        let mut answers = Answers::new(self.engine.vigil.run(ctx, batch).await);
        let view = self.engine.view(answers.next(), newest)?;
        let content = self.content(tail, answers.next()?)?;
        if self.has_moved(&view, tail)? {
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
        let append = Op::put(self.engine.segment_key(tail.incarnation)?, PutMode::Append, frame, Ttl::Never);
        let mut batch = Batch::from_iter([append.clone()]);
        if is_look {
            batch.extend([self.engine.segment_read(tail.incarnation)?, self.engine.cell.read_op()]);
        }
        let newest = self.engine.newest();
        let was_in_doubt = std::mem::replace(&mut self.is_in_doubt, true);
        let mut answers = Answers::new(self.engine.vigil.run(ctx, batch).await);
        match answers.next() {
            Ok(Reply::Stored) => _ = self.landed(),
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
            // It has landed; a next segment that cannot be opened now is opened by whoever looks next.
            if let Err(error) = self.after_look(ctx, tail, segment, answers, newest).await
                && matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack)
            {
                // Where it landed nobody may come any more. The next push is told as well.
                (self.is_in_doubt, self.bytes_until_look) = (true, 0);
                return Err(error);
            }
        }
        Ok(Step::Landed)
    }

    /// Notes that the frame has landed.
    fn landed(&mut self) -> Step {
        (self.is_in_doubt, self.has_landed) = (false, true);
        Step::Landed
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
        if self.has_moved(&view, tail)? {
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
        let batch = Batch::from_iter([self.engine.segment_read(tail.incarnation)?]);
        let reply = Answers::new(self.engine.vigil.run(ctx, batch).await).next()?;
        match self.content(tail, reply)? {
            Some(content) if content.last >= self.seq => Ok(Some(self.landed())),
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
        let batch = Batch::from_iter([self.engine.cell.read_op(), self.engine.segment_read(tail.incarnation)?]);
        let mut answers = Answers::new(self.engine.vigil.run(ctx, batch).await);
        let view = self.engine.view(answers.next(), newest)?;
        let content = self.content(tail, answers.next()?)?;
        match &content {
            Some(content) if content.last >= self.seq => return Ok(self.landed()),
            // A segment only grows: what does not fit into it now never will.
            Some(content) if !self.fits(content, frame_bytes) => self.is_in_doubt = false,
            // The earlier try may land here yet: elsewhere this one would be a second.
            Some(content) if self.is_in_doubt => return Err(self.out_of_memory(content, frame_bytes)),
            None if self.is_in_doubt => return Err(self.cannot_tell(tail)),
            Some(_) | None => {}
        }
        if self.has_moved(&view, tail)? {
            return Ok(Step::Again);
        }
        if let Some(content) = content.as_ref().filter(|content| !self.is_full(content)) {
            // A next segment would not help, and what is closed without an item would pass for lost.
            if self.fits(content, frame_bytes) || content.items.is_empty() {
                return Err(self.out_of_memory(content, frame_bytes));
            }
        }
        self.open_next(ctx, view, content).await?;
        Ok(Step::Again)
    }

    fn fits(&self, content: &Content, frame_bytes: usize) -> bool {
        content.bytes + frame_bytes <= self.engine.value_bytes_max
    }

    fn out_of_memory(&self, content: &Content, frame_bytes: usize) -> Error {
        let detail = format!(
            "the store refused {frame_bytes} more bytes to a segment of {}, which has room: it may be out of memory",
            content.bytes
        );
        self.engine.named(ErrorKind::Unavailable, &detail)
    }

    /// Opens the next segment, and makes it the tail. `content` is the tail's; `None` if that is lost. **Round trips: 2**, and 1 more where a stack has many on record, and for each link that a state left that was set back.
    ///
    /// # Errors
    /// [`ErrorKind::Full`], and those of the store.
    async fn open_next(&mut self, ctx: Ctx, view: View, content: Option<Content>) -> Result<()> {
        let mut state = view.state.clone();
        let count = content.as_ref().map(Content::count);
        if content.is_some() && !self.may_open(&state, count) && !self.may_open_by_a_look(ctx, &state, count).await? {
            let Params { segment_bytes: each, bytes_max } = self.engine.params;
            let detail =
                format!("it holds {} segments of {each} bytes; the limit is {bytes_max} bytes in all", state.live);
            return Err(self.engine.named(ErrorKind::Full, &detail));
        }
        let used_up = self.tidy(ctx, &mut state).await;
        // Until it is known what became of it.
        self.tail = None;
        let base = state.seq;
        let tail = Tail { number: state.tail + 1, incarnation: random_id() };
        let next = self.next(state, count, tail, &used_up);
        self.discard_spare(ctx, &view.state).await;
        self.spare = Some(Spare { tail, base });
        let named = self.name(ctx, view.cas, next, tail).await;
        if !named.as_ref().is_err_and(Error::is_unknown) {
            self.spare = None;
        }
        // Never named: nobody else knows of it.
        if named.as_ref().map_or_else(|error| !error.is_unknown(), |is_named| !is_named) {
            self.discard(ctx, tail).await;
        }
        // Whether it landed does not matter: the tail that the state names is the one to push to.
        named.map(|_| ())
    }

    /// Adds the next segment, and names it in the state. False if another wrote the state first. **Round trips: 2**, and 1 more for each link that a state left that was set back.
    async fn name(&mut self, ctx: Ctx, cas: Cas, next: Next, tail: Tail) -> Result<bool> {
        let engine = self.engine.clone();
        let Next { mut state, record, leaving, .. } = next;
        let note = (engine.order == Order::Lifo).then(|| layout::note_frame(&record, random_id(), state.seq + 1));
        let segment = layout::segment(tail.number, tail.incarnation, note);
        let add = Op::put(engine.segment_key(tail.incarnation)?, PutMode::Add, segment, Ttl::Never);
        let mut batch = Batch::from_iter([add, engine.segment_read(tail.incarnation)?]);
        for Leaving { segment, incarnation, note } in &leaving {
            batch.extend(engine.link_ops(*segment, *incarnation)?);
            if let Some(note) = note {
                batch.push(Op::put(engine.segment_key(*incarnation)?, PutMode::Append, note.clone(), Ttl::Never));
            }
        }
        let mut answers = Answers::new(engine.store.run(ctx, batch).await);
        let added = answers.next();
        if answers.next()?.into_item().is_none() {
            added?;
            return Err(engine.named(ErrorKind::Unavailable, "a new segment was gone at once"));
        }
        let mut left = 0;
        let mut fault = None;
        for leaving in &leaving {
            let (added, now) = (answers.next(), answers.next());
            let is_noted = leaving.note.is_none() || matches!(answers.next(), Ok(Reply::Stored));
            let linked = engine.is_linked(ctx, leaving.segment, leaving.incarnation, added, now).await;
            let is_linked = matches!(linked, Ok(true));
            fault = fault.or(linked.err());
            if !(is_linked && is_noted) {
                break;
            }
            left += 1;
        }
        if engine.order == Order::Lifo {
            // A segment that did not take its note or link stays on record, and those above it too: so the way down is known.
            state.records.drain(..left);
        } else if left < leaving.len() {
            // Without a fault another opener was faster with a link: whoever looks anew finds his segment.
            return fault.map_or(Ok(false), |fault| Err(fault.effect(Effect::NotApplied)));
        }
        // A queue gets there by itself, unless the tail that it took from is gone.
        if engine.order == Order::Lifo || next.was_taken_from {
            state.records.push(record);
        }
        (state.tail, state.incarnation, state.is_tail_lost) = (tail.number, tail.incarnation, false);
        state.seq += 1;
        let value = engine.encode(&state, true)?;
        let newest = engine.newest();
        let ops = engine.cell.put_ops(PutMode::Cas(cas), value.clone(), Ttl::Never);
        let mut answers = Answers::new(engine.store.run(ctx, ops).await);
        let wrote = Wrote::new(&value, answers.next(), answers.next());
        if let Ok(Some(item)) = wrote.now
            && let Ok(view) = engine.view(Ok(Reply::Item(item)), newest)
        {
            self.follow(&view);
        }
        wrote.landed
    }

    /// Removes a segment that the state never named. Should this fail, a few bytes are left that nobody names.
    async fn discard(&self, ctx: Ctx, tail: Tail) {
        if let Ok(key) = self.engine.segment_key(tail.incarnation) {
            _ = self.engine.store.run(ctx, Batch::from_iter([Op::delete(key)])).await;
        }
    }

    /// Removes what a call that was cut off added, where the state tells that it was not named, and never will be.
    async fn discard_spare(&mut self, ctx: Ctx, state: &State) {
        let Some(Spare { tail, base }) = self.spare.take() else { return };
        if state.seq > base && state.tail <= tail.number && state.incarnation != tail.incarnation {
            self.discard(ctx, tail).await;
        }
    }

    /// What the state comes to with a next tail. `count` is how many items the tail has; `None` if it is lost. `used_up` are segments that a stack may let go of.
    fn next(&self, mut state: State, count: Option<u32>, tail: Tail, used_up: &[u64]) -> Next {
        let was_taken_from = count.is_none() && state.record_at(state.tail).is_some();
        let (record, leaving) = self.leave(&mut state, count, tail, used_up);
        Next { state, record, leaving, was_taken_from }
    }

    /// Changes the state for a tail that is left behind. Returns the next tail's record, and the segments that the state forgets.
    fn leave(&self, state: &mut State, count: Option<u32>, tail: Tail, used_up: &[u64]) -> (Record, Vec<Leaving>) {
        let at = state.record_at(state.tail);
        let mut below = Below { segment: Some(state.tail), is_guess: false };
        match at.filter(|_| count.is_none()) {
            Some(at) => {
                below = state.records.remove(at).below;
                if !state.is_tail_lost {
                    state.lost_segments += 1;
                    state.found += 1;
                }
            }
            // A queue that has not got there yet finds the loss by itself.
            None => state.live += 1,
        }
        let record = Record::new(tail.number, tail.incarnation, below);
        if self.engine.order == Order::Fifo {
            let is_on_record =
                state.records.iter().any(|record| record.segment == state.tail && record.incarnation != 0);
            let (segment, incarnation) = (state.tail, state.incarnation);
            let leaving = count.filter(|_| !is_on_record).map(|_| Leaving { segment, incarnation, note: None });
            return (Record { below: Below::default(), ..record }, leaving.into_iter().collect());
        }
        let leave = |record: &Record| {
            let note = layout::note_frame(record, random_id(), state.seq + 1);
            Leaving { segment: record.segment, incarnation: record.incarnation, note: Some(note) }
        };
        let is_live = |record: &Record| {
            let is_drained = record.is_whole() && (record.segment != state.tail || count == Some(record.count()));
            !is_drained || state.opens.iter().any(|open| open.segment == record.segment)
        };
        // What is drained stays on record: so it is removed soon, and not only when the stack comes down to it again. But not so much that the state grows with all that lies above
        // it: then what nobody is about to remove leaves as well.
        let over = state.records.len().saturating_sub(ON_RECORD_MAX);
        let is_let_go = |record: &Record| {
            used_up.contains(&record.segment) && record.remover.is_none_or(|remover| removal::is_old(state, remover))
        };
        let leaves = |(at, record): &(usize, &Record)| is_live(record) || (*at < over && is_let_go(record));
        // What does not fit into the batch stays on record until the next time.
        let most = self.engine.store.profile().batch_ops_max.saturating_sub(OPS_TO_ADD) / OPS_TO_LEAVE;
        let leaving = state.records.iter().enumerate().take_while(leaves).take(most).map(|(_, record)| leave(record));
        (record, leaving.collect())
    }
}

/// What the state comes to with a next tail.
struct Next {
    state: State,
    record: Record,
    leaving: Vec<Leaving>,
    /// True if a queue was taking from a tail that is lost.
    was_taken_from: bool,
}

/// A segment whose incarnation the state forgets: a link must tell it before; and a stack's segment must note what was taken of it.
struct Leaving {
    segment: u64,
    incarnation: u64,
    note: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use larder_store_memory::MemoryStore;

    use super::super::options::Settings;
    use super::*;
    use crate::append::Action;
    use crate::manifest::Kind;
    use crate::name::Name;

    async fn pusher(kind: Kind) -> Pusher {
        let store = Arc::new(MemoryStore::new());
        let (store, name): (larder_core::StoreRef, Name) = (store, Name::new("q").unwrap());
        let (engine, view) = Engine::open(&store, &name, kind, &Settings::default(), true).await.unwrap();
        Pusher::new(Arc::new(engine), &view)
    }

    fn on_record(segment: u64, taken: &[(u32, u32)]) -> Record {
        let record = Record::new(segment, 100 + segment, Below::default());
        Record { taken: taken.to_vec(), ..record }
    }

    /// So many segments that are used up, and a tail from which nothing was taken.
    fn used_up(segments: u64) -> State {
        let records = (0..segments).map(|segment| on_record(segment, &[(0, 1)])).chain([on_record(segments, &[])]);
        State { seq: 41, tail: segments, incarnation: 100 + segments, records: records.collect(), ..State::default() }
    }

    const NEXT: Tail = Tail { number: 30, incarnation: 7 };

    #[tokio::test]
    async fn a_stack_keeps_sixteen_segments_on_record_and_lets_go_of_others_that_are_used_up() {
        let pusher = pusher(Kind::Stack).await;
        let all: Vec<u64> = (0..20).collect();
        for (segments, let_go) in [(20, 5), (16, 1), (15, 0)] {
            let (_, leaving) = pusher.leave(&mut used_up(segments), Some(1), NEXT, &all);
            let left: Vec<u64> = leaving.iter().map(|leaving| leaving.segment).collect();
            assert_eq!(left, all[..let_go], "{segments} used up, and the tail");
        }
    }

    /// Of frames.
    #[derive(Default)]
    struct Sequences(Vec<u64>);

    impl crate::append::Fold<'_> for Sequences {
        fn frame(&mut self, _: u64, seq: u64) {
            self.0.push(seq);
        }

        fn apply(&mut self, action: Action, _: &[u8]) {
            assert_eq!(action, Action::Remove);
        }
    }

    /// Which is the next one: others, who write by what is documented, go by the order of notes.
    #[tokio::test]
    async fn a_note_has_the_sequence_of_the_state_that_takes_its_segment_off_the_record() {
        let pusher = pusher(Kind::Stack).await;
        let (_, leaving) = pusher.leave(&mut used_up(0), Some(1), NEXT, &[]);
        let [Leaving { segment: 0, incarnation: 100, note: Some(note) }] = &leaving[..] else {
            panic!("it is not left")
        };
        let value = layout::segment(0, 100, Some(note.clone()));
        let value = frames::Value::parse(&value, layout::place(0, 100)).unwrap();
        assert_eq!(value.fold(Sequences::default()).unwrap().state.0, [42]);
    }
}
