//! Who removes a segment of which nothing is left, and what it means when one is not there.
//!
//! Somebody who has not noticed yet that a segment was closed may push to it when all that was in it is taken. Should the server then evict it, nobody has seen
//! that item; and a segment that was removed and one that was evicted look alike. So the state names the one writer that removes a segment, before it does, and
//! that one does it at once and by the token of what was taken whole: the store's answer tells it whether the segment was there as it was read. A segment that is
//! gone and that nobody was to remove is lost, and what was pushed to it late with it.
//!
//! | the segment is gone, and the state names | then it was |
//! |---|---|
//! | nobody | evicted: told |
//! | this writer, whose removal was answered | removed |
//! | this writer, whose removal found nothing | evicted: told |
//! | this writer, whose removal was not answered, or another's | removed, as far as anybody can tell; another's is given time for a number of writes |

use std::collections::HashMap;
use std::time::Duration;

use larder_core::{Batch, Ctx, Op, Reply, Result, ambient};

use super::consume::Consumer;
use super::engine::View;
use super::layout::{Content, Record, Remover, State};
use super::plan::{self, Order, Shelf};

/// How many segments one writer is to remove at a time.
const REMOVALS_MAX: usize = 16;
/// After so many writes of the state another writer takes over a removal: who was to do it has probably ended.
const WRITES_UNTIL_TAKEN_OVER: u64 = 16;
/// How often one call writes the state to say what a removal met with.
const NOTES_MAX: usize = 3;

/// What is known of a removal of this writer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// It was sent, and not answered.
    InDoubt,
    Removed,
    /// The segment was not what was read: something was pushed to it.
    Refused,
    /// It was not there.
    Missing,
}

/// What became of a segment of which nothing is left and that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Removed,
    /// It is gone without having been removed.
    Evicted,
    /// It may be about to be removed, or the state may have changed since.
    Open,
}

/// The removals of one writer.
#[derive(Debug)]
pub(super) struct Removals {
    pub(super) writer: u64,
    /// By the incarnations of the segments.
    known: HashMap<u64, Removal>,
}

impl Removals {
    pub(super) fn new(writer: u64) -> Removals {
        Removals { writer, known: HashMap::new() }
    }

    /// Forgets segments that are not on record any more.
    fn forget_all_but(&mut self, state: &State) {
        self.known.retain(|incarnation, _| state.records.iter().any(|record| record.incarnation == *incarnation));
    }

    /// What became of a drained segment that a read did not find. `is_of_now`: the state was this very one when it was sent.
    pub(super) fn fate(&self, state: &State, record: &Record, is_of_now: bool) -> Fate {
        let by_the_state = |remover: Option<Remover>| match remover {
            None => Fate::Evicted,
            Some(remover) if remover.writer != self.writer && !is_old(state, remover) => Fate::Open,
            Some(remover) if remover.writer == self.writer && !remover.is_second => Fate::Evicted,
            Some(_) => Fate::Removed,
        };
        match self.known.get(&record.incarnation) {
            Some(Removal::Removed) => Fate::Removed,
            Some(Removal::InDoubt) if record.remover.is_some() => Fate::Removed,
            Some(Removal::Missing) if record.remover.is_some_and(|remover| remover.writer == self.writer) => {
                Fate::Evicted
            }
            _ if is_of_now => by_the_state(record.remover),
            _ => Fate::Open,
        }
    }

    /// True if this writer's removal of it was refused.
    pub(super) fn is_refused(&self, record: &Record) -> bool {
        record.remover.is_some_and(|remover| remover.writer == self.writer)
            && self.known.get(&record.incarnation) == Some(&Removal::Refused)
    }

    /// Names this writer as the one that removes what is drained, and is as it was when it was taken whole, as far as was read.
    pub(super) fn intend(&self, state: &mut State, order: Order, shelf: &Shelf) {
        let is_own = |remover: Remover| remover.writer == self.writer;
        let mut room = REMOVALS_MAX.saturating_sub(
            state.records.iter().filter_map(|record| record.remover).filter(|&remover| is_own(remover)).count(),
        );
        for at in 0..state.records.len() {
            let record = &state.records[at];
            let is_free = record.remover.is_none_or(|remover| !is_own(remover) && is_old(state, remover));
            if room > 0 && is_free && plan::is_drained(state, order, at) && whole(record, shelf).is_some() {
                let is_second = record.remover.is_some();
                state.records[at].remover = Some(Remover { writer: self.writer, seq: state.seq + 1, is_second });
                room -= 1;
            }
        }
    }

    /// The segments that this writer is to remove now.
    fn due<'a>(&'a self, state: &'a State, order: Order) -> impl Iterator<Item = (&'a Record, Remover)> {
        let is_due = |record: &Record| matches!(self.known.get(&record.incarnation), None | Some(Removal::InDoubt));
        let drained =
            (0..state.records.len()).filter(move |&at| plan::is_drained(state, order, at)).map(|at| &state.records[at]);
        let own = drained
            .filter_map(|record| Some((record, record.remover.filter(|remover| remover.writer == self.writer)?)));
        own.filter(move |(record, _)| is_due(record))
    }
}

fn is_old(state: &State, remover: Remover) -> bool {
    state.seq.saturating_sub(remover.seq) >= WRITES_UNTIL_TAKEN_OVER
}

/// The segment as it was read, if it holds what was taken and nothing else.
fn whole<'s>(record: &Record, shelf: &'s Shelf) -> Option<&'s Content> {
    let content = shelf.get(record.segment)?.content.as_deref()?;
    (content.count() == record.count() && record.kept(content).is_none() && content.incarnation == record.incarnation)
        .then_some(content)
}

/// A removal that is under way.
struct Sent {
    segment: u64,
    incarnation: u64,
    /// True if another request may have removed it: then it says nothing that it was not there.
    is_shared: bool,
}

impl Consumer {
    /// Removes what the state says that this handle removes, and says so in the state where it met with something else than was read. What fails is
    /// done by a later call. **Round trips: 1** where there is something to remove, of a stack 2.
    pub(super) async fn clear_up(&mut self, ctx: Ctx) {
        // The caller's answer is known: it is not to come too late for this.
        let now = ambient::now();
        let deadline = ctx.deadline.map(|deadline| now + deadline.saturating_duration_since(now) / 2);
        let ctx = Ctx { deadline: deadline.or(Some(now + Duration::from_secs(1))) };
        for _ in 0..NOTES_MAX {
            let Some(view) = self.view.clone() else { return };
            self.removals.forget_all_but(&view.state);
            match self.remove(ctx, &view).await {
                Ok(true) => {}
                // Nothing to say, or nobody to say it to.
                Ok(false) | Err(_) => return,
            }
            if !self.note_removals(ctx, view).await {
                return;
            }
        }
    }

    /// Removes the segments that are due. True if the state must be told of one that was not as it was read. **Round trips: 1**, of a stack 2.
    async fn remove(&mut self, ctx: Ctx, view: &View) -> Result<bool> {
        let (mut sent, mut batch) = (Vec::new(), Batch::default());
        for (record, remover) in self.removals.due(&view.state, self.engine.order) {
            let Some((content, cas)) = whole(record, &self.shelf).and_then(|content| Some((content, content.cas?)))
            else {
                continue;
            };
            let (segment, incarnation) = (record.segment, content.incarnation);
            let is_shared = remover.is_second || self.removals.known.contains_key(&incarnation);
            batch.push(Op::delete_if(self.engine.segment_key(incarnation)?, cas));
            if self.engine.order == Order::Fifo {
                // A queue's segment stays on record until it is gone: nobody will need the link again.
                batch.push(Op::delete(self.engine.link_key(segment)?));
            }
            sent.push(Sent { segment, incarnation, is_shared });
        }
        if sent.is_empty() {
            return Ok(false);
        }
        // Whoever drops this future midway leaves removals that are in doubt.
        self.removals.known.extend(sent.iter().map(|sent| (sent.incarnation, Removal::InDoubt)));
        let known = self.known();
        let mut answers = super::push::Answers::new(self.engine.store.run(ctx, batch).await);
        let mut unlinked = Vec::new();
        let mut must_note = false;
        for Sent { segment, incarnation, is_shared } in sent {
            let answer = answers.next();
            if self.engine.order == Order::Fifo {
                _ = answers.next();
            }
            if answer.as_ref().is_err_and(|error| !error.is_unknown()) && !is_shared {
                self.removals.known.remove(&incarnation);
                continue;
            }
            let removal = match answer {
                Ok(Reply::Deleted) => Removal::Removed,
                Ok(Reply::Miss) if is_shared => Removal::Removed,
                Ok(Reply::Miss) => Removal::Missing,
                Ok(Reply::Exists) => Removal::Refused,
                _ => Removal::InDoubt,
            };
            self.removals.known.insert(incarnation, removal);
            must_note |= matches!(removal, Removal::Missing | Removal::Refused);
            match removal {
                Removal::Removed | Removal::Missing => self.shelf.keep(segment, None, known.0, known.1),
                Removal::Refused | Removal::InDoubt => self.shelf.forget(segment),
            }
            if self.engine.order == Order::Lifo && removal == Removal::Removed {
                unlinked.push(segment);
            }
        }
        self.remove_links(ctx, unlinked).await;
        Ok(must_note)
    }

    /// Removes the links of a stack's segments that are gone. While one may go off the record again its link must stay: so it is removed
    /// after the segment, and not with it. **Round trips: 1**, if there are any.
    async fn remove_links(&self, ctx: Ctx, segments: Vec<u64>) {
        let keys = segments.into_iter().filter_map(|segment| self.engine.link_key(segment).ok());
        let deletes: Batch = keys.map(Op::delete).collect();
        if !deletes.is_empty() {
            _ = self.engine.store.run(ctx, deletes).await;
        }
    }

    /// Writes into the state what removals met with. False where that failed, or there was nothing to say. **Round trips: 1.**
    async fn note_removals(&mut self, ctx: Ctx, view: View) -> bool {
        let Ok(plan) = self.plan(&view.state, &[], None) else { return false };
        if plan.state == view.state {
            return false;
        }
        match self.fitted(&view.state, &[], plan) {
            Ok(Some((plan, value))) => self.write(ctx, view, plan, value).await.is_ok(),
            _ => false,
        }
    }
}
