//! Appending: one write under way a handle, settled or given up within its deadline.
//!
//! A write is a frame a shard, all sent in one batch. Each shard goes its own way from there:
//!
//! | what came | what it means | next |
//! |---|---|---|
//! | stored | it landed | done |
//! | not stored | no such value, or no room in it | read |
//! | unknown | it may have landed, or may yet | read |
//! | not applied | it was never sent | pause, read |
//! | read: sequence is there | it landed | done |
//! | read: it is not | it did not, so far | append it again: should both land, readers drop the second |
//! | read: no room | | write the value anew, by cas, with the frame applied to it |
//! | read: no value | | lost; unknown where it may have landed |
//!
//! A write that is not settled by its deadline is given up; the next one has a higher sequence, so the one given up either
//! landed before it or never counts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::observe::Phase;
use larder_core::{Batch, Cas, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, Ttl, ambient};

use super::layout::{self, Elements};
use super::past::Seen;
use super::shards::{Room, ShardStat, Shards};
use crate::combine::Driver;
use crate::events;
use crate::manifest::unexpected;
use crate::retry::Backoff;

/// How many batches one write may take in all.
const ROUNDS_MAX: usize = 32;
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often a shard's op may fail, in a way that passes, while nothing is in doubt. Later there is more to lose by giving up.
const FAULTS_MAX: u32 = 8;
/// Refused appends after which the limit in the profile is no longer believed.
const REFUSALS_BELIEVED_MAX: u32 = 2;

/// A caller's change.
pub(crate) struct Write {
    /// At most one a shard.
    pub(crate) parts: Vec<Part>,
    /// When the caller stops waiting.
    pub(crate) deadline: Instant,
}

/// What a change appends to one shard.
pub(crate) struct Part {
    pub(crate) shard: u16,
    /// As [`put_element`](layout::put_element) encodes them.
    pub(crate) elements: Vec<u8>,
}

/// What became of each shard of a write, in rising order.
pub(crate) type Outcomes = Arc<Vec<(u16, Result<()>)>>;

/// Appends frames in the order of a sequence.
pub(crate) struct Writer<E: Elements> {
    shards: Arc<Shards<E>>,
    /// The last sequence that was given out for each shard: without gaps, so that a lost one shows.
    seqs: Vec<u64>,
    /// Bytes to append to each shard until the next look at its dirt.
    until_look: Vec<usize>,
    pending: Vec<Pending>,
    deadline: Instant,
}

/// One shard of the write under way.
struct Pending {
    shard: u16,
    seq: u64,
    frame: Bytes,
    step: Step,
    /// True once something was sent of which it is not known whether it landed.
    is_in_doubt: bool,
    /// How often the store refused the append.
    refusals: u32,
    faults: u32,
    /// What was seen of the shard before the first op of this write, and before the last one.
    first: Seen,
    before: Seen,
    last_error: Option<Error>,
    outcome: Option<Result<()>>,
}

/// A step whose reply is awaited.
struct Sent {
    /// Of which of the pending.
    at: usize,
    step: Step,
    /// Whether the write was in doubt before: it is again once this step is known to have done nothing.
    was_in_doubt: bool,
}

#[derive(Clone)]
enum Step {
    Append,
    Read,
    /// Write the value anew, if it still has this token.
    Rewrite(Cas, Bytes),
    /// Have the structure settle what stands in the way up to this number, then read.
    Settle(u64),
    /// Have the structure look whether the value fits what it depends on, then read.
    Look,
}

impl<E: Elements> Writer<E> {
    pub(crate) fn new(shards: Arc<Shards<E>>) -> Writer<E> {
        let look_bytes = shards.look_bytes();
        // From a random start: of many short-lived handles, each that writes a little, some look.
        let until_look = (0..shards.count()).map(|_| fastrand::usize(0..look_bytes)).collect();
        Writer {
            seqs: vec![0; usize::from(shards.count())],
            shards,
            until_look,
            pending: Vec::new(),
            deadline: ambient::now(),
        }
    }

    fn begin(&mut self, changes: &[Write]) {
        let mut elements: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
        for part in changes.iter().flat_map(|change| &change.parts) {
            elements.entry(part.shard).or_default().extend_from_slice(&part.elements);
        }
        self.deadline = changes.iter().map(|change| change.deadline).max().unwrap_or_else(ambient::now);
        let (shards, seqs) = (&self.shards, &mut self.seqs);
        let pending = |(shard, elements): (u16, Vec<u8>)| {
            let (seq, seen) = (&mut seqs[usize::from(shard)], shards.seen(shard));
            *seq += 1;
            Pending {
                shard,
                seq: *seq,
                frame: layout::frame(shards.place(shard), shards.writer, *seq, &elements),
                step: Step::Append,
                is_in_doubt: false,
                refusals: 0,
                faults: 0,
                first: seen.clone(),
                before: seen,
                last_error: None,
                outcome: None,
            }
        };
        self.pending = elements.into_iter().map(pending).collect();
    }

    async fn settle(&mut self) {
        let shards = self.shards.clone();
        // Where a compaction has it for so long, what was not sent never is.
        let Some(_quiet) = shards.quiet(Ctx { deadline: Some(self.deadline) }).await else { return };
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
        for _ in 0..ROUNDS_MAX {
            if self.pending.iter().all(|pending| pending.outcome.is_some()) || ambient::now() >= self.deadline {
                return;
            }
            let ctx = Ctx { deadline: Some(self.deadline) };
            self.settle_others(ctx).await;
            self.look_at_others(ctx).await;
            let (batch, steps) = self.next_batch();
            let mut replies = self.shards.vigil.run(ctx, batch).await.into_iter();
            let mut must_pause = false;
            for Sent { at, step, was_in_doubt } in steps {
                let reply = replies.next().unwrap_or_else(|| Err(larder_core::ext::no_reply()));
                let pending = &mut self.pending[at];
                let is_answered = reply.as_ref().map_or_else(|error| !error.is_unknown(), |_| true);
                if is_answered {
                    pending.is_in_doubt = was_in_doubt;
                }
                must_pause |= pending.advance(&self.shards, step, reply);
            }
            if must_pause {
                let left = self.deadline.saturating_duration_since(ambient::now());
                tokio::time::sleep(backoff.next_pause().min(left)).await;
            }
        }
    }

    /// Has the structure settle what keeps shards from being written anew. Where that fails, they read and meet it again.
    async fn settle_others(&mut self, ctx: Ctx) {
        let upto = |pending: &Pending| if let Step::Settle(upto) = pending.step { upto } else { 0 };
        let highest = self.pending.iter().filter(|pending| pending.outcome.is_none()).map(upto).max().unwrap_or(0);
        if highest == 0 {
            return;
        }
        let settled = self.shards.settle(ctx, highest).await;
        for pending in self.pending.iter_mut().filter(|pending| upto(pending) > 0 && pending.outcome.is_none()) {
            pending.step = Step::Read;
            if let Err(error) = &settled {
                // Nothing of this write's own was sent.
                pending.fault(Step::Read, error.clone().effect(Effect::NotApplied));
            }
        }
    }

    /// Has the structure look at shards that do not fit what it knows; where they do not fit what is there, either, they cannot be written anew.
    async fn look_at_others(&mut self, ctx: Ctx) {
        let is_one = |pending: &&mut Pending| pending.outcome.is_none() && matches!(pending.step, Step::Look);
        let shards: Vec<u16> = self.pending.iter_mut().filter(is_one).map(|pending| pending.shard).collect();
        if shards.is_empty() {
            return;
        }
        let looked = self.shards.read_whole(ctx, shards).await;
        for pending in self.pending.iter_mut().filter(is_one) {
            pending.step = Step::Read;
            match &looked {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::RolledBack => pending.fail(error.clone()),
                Err(error) => _ = pending.fault(Step::Read, error.clone().effect(Effect::NotApplied)),
            }
        }
    }

    /// The next op of each shard that is not settled.
    fn next_batch(&mut self) -> (Batch, Vec<Sent>) {
        let mut batch = Batch::new();
        let mut steps = Vec::new();
        for (at, pending) in self.pending.iter_mut().enumerate().filter(|(_, pending)| pending.outcome.is_none()) {
            batch.push(pending.op(&self.shards));
            // Should this future be dropped before the reply comes, the next caller starts with a look at what landed.
            let step = std::mem::replace(&mut pending.step, Step::Read);
            let was_in_doubt = pending.is_in_doubt;
            pending.is_in_doubt |= matches!(step, Step::Append | Step::Rewrite(..));
            pending.before = self.shards.seen(pending.shard);
            steps.push(Sent { at, step, was_in_doubt });
        }
        (batch, steps)
    }

    /// Takes the outcomes, and notes what they tell.
    fn finish(&mut self) -> Outcomes {
        let mut look_at = Vec::new();
        let mut outcomes = Vec::with_capacity(self.pending.len());
        for mut pending in self.pending.drain(..) {
            let outcome = pending.outcome.take().unwrap_or_else(|| Err(pending.give_up()));
            if outcome.is_ok() {
                self.shards.acked(pending.shard, pending.seq, &pending.first);
                let until = &mut self.until_look[usize::from(pending.shard)];
                match until.checked_sub(pending.frame.len()) {
                    Some(left) => *until = left,
                    None => {
                        *until = self.shards.look_bytes();
                        look_at.push(pending.shard);
                    }
                }
            }
            outcomes.push((pending.shard, outcome));
        }
        if !look_at.is_empty() {
            self.shards.look_behind(look_at);
        }
        Arc::new(outcomes)
    }
}

impl<E: Elements> Driver for Writer<E> {
    type Change = Write;
    type Outcome = Outcomes;

    fn weight(change: &Write) -> usize {
        change.parts.iter().map(|part| part.elements.len()).sum()
    }

    async fn apply(&mut self, changes: &[Write], interrupted: bool) -> Result<Outcomes> {
        if !interrupted {
            self.begin(changes);
        }
        self.settle().await;
        Ok(self.finish())
    }
}

impl Pending {
    fn op<E: Elements>(&self, shards: &Shards<E>) -> Op {
        match &self.step {
            Step::Append => shards.op(self.shard, |key| Op::put(key, PutMode::Append, self.frame.clone(), Ttl::Never)),
            Step::Read | Step::Settle(_) | Step::Look => shards.read_op(self.shard),
            Step::Rewrite(cas, value) => {
                shards.op(self.shard, |key| Op::put(key, PutMode::Cas(*cas), value.clone(), Ttl::Never))
            }
        }
    }

    /// Takes in the reply to a step. True if there should be a pause before the next.
    fn advance<E: Elements>(&mut self, shards: &Shards<E>, step: Step, reply: Result<Reply>) -> bool {
        if matches!(step, Step::Rewrite(..)) {
            shards.tell_reply(self.shard, &reply);
        }
        match (step, reply) {
            (Step::Append | Step::Rewrite(..), Ok(Reply::Stored)) => self.outcome = Some(Ok(())),
            (Step::Append, Ok(Reply::NotStored)) => self.refusals += 1,
            (Step::Rewrite(..), Ok(Reply::Exists)) => {
                events::conflict(shards.vigil.subject());
                return true;
            }
            // The read that comes next finds that it is gone.
            (Step::Rewrite(..), Ok(Reply::Miss)) => {}
            (Step::Read, Ok(Reply::Item(item))) => {
                let reading = shards.reading(self.shard, item, self.before.clone());
                match self.judge(shards, &reading) {
                    Ok(Some(step)) => self.step = step,
                    Ok(None) => self.outcome = Some(Ok(())),
                    Err(error) => self.fail(error),
                }
            }
            (Step::Read, Ok(Reply::Miss)) => {
                // Nothing is left that a late append could land in. One whose reply was lost may have been read before it went.
                self.fail(shards.lost(&[self.shard]));
            }
            (step, Ok(other)) => {
                self.step = step;
                let error = unexpected(&self.op(shards), &other);
                self.fail(error);
            }
            (step, Err(error)) => {
                let cause = error.kind();
                let is_worth_it = self.fault(step, error);
                if is_worth_it {
                    events::retry(shards.vigil.subject(), cause);
                }
                return is_worth_it;
            }
        }
        false
    }

    /// Takes in an error. True if the step may be tried again, after a pause.
    fn fault(&mut self, step: Step, error: Error) -> bool {
        let is_read = matches!(step, Step::Read);
        // A store that cannot be reached now may be in a moment; one that refuses will refuse again.
        let is_passing = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout);
        self.faults += 1;
        let is_worth_it = self.is_in_doubt || self.faults < FAULTS_MAX;
        if (is_read || error.is_unknown() || is_passing) && is_worth_it {
            self.last_error = Some(error);
        } else {
            self.fail(error);
        }
        self.outcome.is_none()
    }

    /// What to do about a value that was read: `None` if the frame is in it.
    fn judge<E: Elements>(&self, shards: &Shards<E>, reading: &super::shards::Reading) -> Result<Option<Step>> {
        let folded = shards.fold(reading, ())?;
        if folded.last(shards.writer) >= self.seq {
            return Ok(None);
        }
        let bytes = shards.value(reading).len();
        let fits = bytes.saturating_add(self.frame.len()) <= shards.value_bytes_max();
        if fits && self.refusals < REFUSALS_BELIEVED_MAX {
            return Ok(Some(Step::Append));
        }
        match shards.token(reading) {
            Ok(cas) => Ok(Some(match shards.rewritten(reading, &self.frame)? {
                Room::Rewrite(value) => {
                    shards.tell(self.shard, Phase::Begun);
                    Step::Rewrite(cas, value)
                }
                Room::Settle(upto) => Step::Settle(upto),
                Room::Look => Step::Look,
            })),
            Err(_) => {
                let stat = ShardStat { elements: 0, bytes, live_bytes: bytes, removals: 0 };
                let hint = " (this store has no conditional writes, so it cannot be compacted)";
                Err(shards.full(self.shard, stat, self.frame.len(), hint))
            }
        }
    }

    fn fail(&mut self, error: Error) {
        let effect = if self.is_in_doubt || error.is_unknown() { Effect::Unknown } else { Effect::NotApplied };
        self.outcome = Some(Err(error.effect(effect)));
    }

    /// The error of a shard that could not be settled in time.
    fn give_up(&self) -> Error {
        let effect = if self.is_in_doubt { Effect::Unknown } else { Effect::NotApplied };
        match &self.last_error {
            Some(error) => error.clone().effect(effect),
            None if self.refusals > 0 => {
                Error::new(ErrorKind::Conflict, "others wrote at each try to make room").effect(effect)
            }
            None => Error::new(ErrorKind::Timeout, "the write was not settled before its deadline").effect(effect),
        }
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
