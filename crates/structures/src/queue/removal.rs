//! Who removes a segment of which nothing is left, and what it means when one is not there.
//!
//! Somebody who has not noticed yet that a segment was closed may push to it when all that was in it is taken. Should the server then evict it, nobody has seen
//! that item; and a segment that was removed and one that was evicted look alike. So the state names the one writer that removes a segment, before it does, and
//! that one does it at once and by the token of what was taken whole: the store's answer tells it whether the segment was there as it was read. A segment that is
//! gone and that nobody was to remove is lost, and what was pushed to it late with it.
//!
//! A server of several that loses what it has, with or without a failover, is as one that evicts where the state stands on another: what is said below of a store that may evict holds also of one that has
//! several servers without a disk ([`may_lose_one`](larder_core::Profile::may_lose_one)).
//!
//! | the segment is gone, and the state names | then it was |
//! |---|---|
//! | nobody | evicted: told |
//! | this writer, whose removal was answered | removed |
//! | this writer, whose removal found nothing | evicted: told |
//! | this writer, whose removal was not answered | removed, on a store that never evicts; on others nobody knows: told |
//! | another, or this writer after another | removed, on a store that never evicts and after so many writes that he has probably ended; on others nobody knows as long as he does not say so: told after a while |
//!
//! A caller waits a moment for a removal, which goes on without it: a server that is silent does not hold up what was taken. What came of it a later call takes in; until then it is open.
//!
//! So on a store that may evict a removal is noted in the state as soon as it is answered. Among many who write the state that write may come through late; until then, or until the
//! loss is told, nobody is told that there is nothing to take.
//!
//! A store on the network may come to be another while a handle is open: whether it may evict is asked behind the replies, and once it may, it is taken to do so for good.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Op, Replies, Reply, Result, ambient};
use tokio::task::JoinHandle;

use super::consume::{Consumer, Step};
use super::engine::View;
use super::layout::{Content, Record, Remover, State};
use super::plan::{self, Order, Seen, Shelf};
use super::push::Answers;
use crate::retry::Backoff;

/// How many segments one writer is to remove at a time.
const REMOVALS_MAX: usize = 16;
/// After so many writes of the state another writer takes over a removal: who was to do it has probably ended.
const WRITES_UNTIL_TAKEN_OVER: u64 = 16;
/// For so long, by his own clock, whoever misses a segment that another is to remove waits for that one's note where it may have been evicted: among many who write the state, his write comes through some
/// time.
const NOTE_WAIT: Duration = Duration::from_millis(300);
/// For so long a caller whose answer is known waits for a removal: others who miss the segment wait for its note a little longer.
const REMOVAL_WAIT: Duration = Duration::from_millis(200);
/// How long a removal may take where the call has no end.
const REMOVAL_MAX: Duration = Duration::from_secs(1);
/// How often one call tries to remove, and to write into the state what that met with, without a pause.
const NOTES_MAX: usize = 8;
/// The pauses between further tries to note a removal.
const NOTE_PAUSE_FIRST: Duration = Duration::from_millis(1);
const NOTE_PAUSE_MAX: Duration = Duration::from_millis(20);

/// What is known of a removal of this writer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Removal {
    /// It was sent, and not answered.
    InDoubt,
    Removed,
    /// The segment was not what was read, or the connection that its token was of has ended.
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
    /// True if what is gone may have been evicted, or lost with one of several servers.
    may_evict: bool,
    /// How long another's note is waited for.
    note_wait: Duration,
    /// By the incarnations of the segments.
    known: HashMap<u64, Removal>,
    /// Segments on record that are gone, by their incarnations.
    missed: HashMap<u64, Missed>,
    /// Removals that were sent together, and of which it is not known yet what they met with.
    under_way: Option<UnderWay>,
}

/// When a segment was found gone.
#[derive(Clone, Copy, Debug)]
struct Missed {
    since: Instant,
    /// The call that read it.
    call: u64,
    /// Who was to remove it.
    remover: Option<Remover>,
}

impl Removals {
    /// Of a handle whose calls may take so long.
    pub(super) fn new(writer: u64, may_evict: bool, timeout: Duration) -> Removals {
        // A call ends with an answer also where it is short.
        let note_wait = NOTE_WAIT.min(timeout / 2);
        Removals { writer, may_evict, note_wait, known: HashMap::new(), missed: HashMap::new(), under_way: None }
    }

    /// Takes note of what the store says by now. What may have been evicted stays so.
    pub(super) fn learn(&mut self, may_evict: bool) {
        self.may_evict |= may_evict;
    }

    /// Forgets segments that are not on record any more.
    pub(super) fn forget_all_but(&mut self, state: &State) {
        let is_on_record = |incarnation: u64| state.records.iter().any(|record| record.incarnation == incarnation);
        self.known.retain(|incarnation, _| is_on_record(*incarnation));
        self.missed.retain(|incarnation, _| is_on_record(*incarnation));
    }

    /// Takes note of segments that are gone.
    pub(super) fn note_missed(&mut self, state: &State, order: Order, shelf: &Shelf) {
        if !self.may_evict {
            return;
        }
        for record in &state.records {
            if shelf.get(record.segment).is_some_and(|seen| seen.content.is_some()) {
                // It is there, set back perhaps: if it is missed again, that is another matter.
                self.missed.remove(&record.incarnation);
            }
        }
        for (record, seen) in gone(state, order, shelf) {
            let remover = record.remover;
            let missed = || Missed { since: ambient::now(), call: seen.call, remover };
            let known = self.missed.entry(record.incarnation).or_insert_with(missed);
            if known.remover != remover {
                // It was there again meanwhile, and drained anew.
                *known = missed();
            }
        }
    }

    /// True if it is open what became of a segment that is gone: another, who may have removed it, may still say so, or the state has changed since it was looked for. `state` is without those whose fate
    /// is known.
    pub(super) fn are_in_doubt(&self, state: &State, order: Order, shelf: &Shelf) -> bool {
        self.may_evict && gone(state, order, shelf).next().is_some()
    }

    /// True if another has had the time to say that he has removed it.
    fn has_waited(&self, incarnation: u64) -> bool {
        let waited = |missed: &Missed| ambient::now().saturating_duration_since(missed.since);
        self.missed.get(&incarnation).is_some_and(|missed| waited(missed) >= self.note_wait)
    }

    /// True if it was not there either when it was read once more since it was missed: then it was gone while the state was as it is, or the write that is conditional on that is refused.
    fn is_missed_again(&self, incarnation: u64, seen: &Seen) -> bool {
        self.missed.get(&incarnation).is_some_and(|missed| seen.call > missed.call)
    }

    /// True if others have to be told what a removal of this writer's met with.
    fn must_note(&self, state: &State) -> bool {
        state.records.iter().any(|record| match self.known.get(&record.incarnation) {
            Some(Removal::Missing) => true,
            Some(Removal::Removed | Removal::InDoubt) => self.may_evict,
            Some(Removal::Refused) | None => false,
        })
    }

    /// What became of a drained segment that a read did not find; of this call, if that `is_fresh`.
    pub(super) fn fate(&self, state: &State, record: &Record, seen: &Seen, is_fresh: bool) -> Fate {
        // The state was this very one when the read was sent, or it has been on record since it was missed first.
        let is_of_now = seen.seq == state.seq || (is_fresh && self.is_missed_again(record.incarnation, seen));
        let Some(remover) = record.remover else { return if is_of_now { Fate::Evicted } else { Fate::Open } };
        let is_own = remover.writer == self.writer;
        match self.known.get(&record.incarnation) {
            Some(Removal::Removed) => Fate::Removed,
            Some(Removal::Missing) if is_own => Fate::Evicted,
            Some(Removal::InDoubt) if self.is_under_way(record.incarnation) => Fate::Open,
            Some(Removal::InDoubt) if is_own && !remover.is_second => self.in_doubt(),
            _ if !is_of_now => Fate::Open,
            // Never sent, or refused.
            _ if is_own && !remover.is_second => Fate::Evicted,
            _ if self.may_evict && self.has_waited(record.incarnation) => Fate::Evicted,
            _ if !self.may_evict && (is_own || is_old(state, remover)) => Fate::Removed,
            _ => Fate::Open,
        }
    }

    /// True if what a removal of this writer's met with may be told yet.
    fn is_under_way(&self, incarnation: u64) -> bool {
        self.under_way.iter().flat_map(|under_way| &under_way.sent).any(|sent| sent.incarnation == incarnation)
    }

    /// What became of a segment that may have been removed, or not.
    fn in_doubt(&self) -> Fate {
        if self.may_evict { Fate::Evicted } else { Fate::Removed }
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
        let is_due = |record: &Record| {
            matches!(self.known.get(&record.incarnation), None | Some(Removal::InDoubt | Removal::Refused))
        };
        let drained =
            (0..state.records.len()).filter(move |&at| plan::is_drained(state, order, at)).map(|at| &state.records[at]);
        let own = drained
            .filter_map(|record| Some((record, record.remover.filter(|remover| remover.writer == self.writer)?)));
        own.filter(move |(record, _)| is_due(record))
    }
}

/// The segments that were drained and are gone.
fn gone<'s>(state: &'s State, order: Order, shelf: &'s Shelf) -> impl Iterator<Item = (&'s Record, &'s Seen)> {
    let drained = (0..state.records.len()).filter(move |&at| plan::is_drained(state, order, at));
    let seen = drained.filter_map(move |at| Some((&state.records[at], shelf.get(state.records[at].segment)?)));
    seen.filter(|(_, seen)| seen.content.is_none())
}

/// True if another may take over: who was to remove it has probably ended.
pub(super) fn is_old(state: &State, remover: Remover) -> bool {
    state.seq.saturating_sub(remover.seq) >= WRITES_UNTIL_TAKEN_OVER
}

/// The segment as it was read, if it holds what was taken and nothing else.
fn whole<'s>(record: &Record, shelf: &'s Shelf) -> Option<&'s Content> {
    let content = shelf.get(record.segment)?.content.as_deref()?;
    (content.count() == record.count() && record.kept(content).is_none() && content.incarnation == record.incarnation)
        .then_some(content)
}

/// Removals that were sent together.
#[derive(Debug)]
struct UnderWay {
    sent: Vec<Sent>,
    /// The tail and the sequence of the state that was known then.
    known: (u64, u64),
    replies: JoinHandle<Replies>,
}

/// A removal that is under way.
#[derive(Debug)]
struct Sent {
    segment: u64,
    incarnation: u64,
    /// What is known of an earlier try.
    before: Option<Removal>,
    /// True if another was to remove it before.
    is_second: bool,
}

impl Sent {
    /// What the answer says.
    fn answered(&self, answer: &Result<Reply>) -> Option<Removal> {
        let is_in_doubt = self.is_second || self.before == Some(Removal::InDoubt);
        match answer {
            Ok(Reply::Deleted) => Some(Removal::Removed),
            Ok(Reply::Miss) if is_in_doubt => Some(Removal::InDoubt),
            Ok(Reply::Miss) => Some(Removal::Missing),
            Ok(Reply::Exists) if self.before == Some(Removal::InDoubt) => Some(Removal::InDoubt),
            Ok(Reply::Exists) => Some(Removal::Refused),
            Err(error) if !error.is_unknown() => self.before,
            _ => Some(Removal::InDoubt),
        }
    }
}

impl Consumer {
    /// Removes what the state says that this handle removes, and says so in the state where others cannot tell what became of it. What fails, or takes longer than the caller is held up, is
    /// done by a later call; that is a quarter of the time to `lease_end` at the most, the end of the shortest lease that was given. **Round trips: 1** where there is something to remove, of a stack 2; 1 more on a store that may evict, or has several servers without a disk.
    pub(super) async fn clear_up(&mut self, ctx: Ctx, lease_end: Option<Instant>) {
        // The caller's answer is known: it is not to come too late for this.
        let now = ambient::now();
        let left = |end: Instant| end.saturating_duration_since(now);
        let half = ctx.deadline.map_or(REMOVAL_MAX, |deadline| left(deadline) / 2);
        let most = half.min(NOTE_WAIT).min(lease_end.map_or(NOTE_WAIT, |end| left(end) / 4));
        let removal = Ctx { deadline: Some(now + half) };
        let ctx = Ctx { deadline: Some(now + most) };
        let mut backoff = Backoff::new(NOTE_PAUSE_FIRST, NOTE_PAUSE_MAX);
        for tries in 0.. {
            if tries >= NOTES_MAX && !self.pauses_for_a_note(&mut backoff, now, ctx).await {
                return;
            }
            let Some(view) = self.view.clone() else { return };
            self.removals.forget_all_but(&view.state);
            let Ok(left) = self.remove(removal, ctx, &view).await else { return };
            self.removals.learn(self.engine.may_evict());
            if !left.is_empty() && self.read_again(ctx, &left).await.is_err() {
                return;
            }
            match self.note_removals(ctx).await {
                // There is more to do only for what was not as it was read, and where others were first.
                Ok(Some(Step::Done(_)) | None) if left.is_empty() => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Pauses before another try to note a removal: others, who miss the segment, wait for that. False where there is none to note, or they have given up by now.
    async fn pauses_for_a_note(&self, backoff: &mut Backoff, since: Instant, ctx: Ctx) -> bool {
        let must_note = self.view.as_ref().is_some_and(|view| self.removals.must_note(&view.state));
        let pause = backoff.next_pause();
        let until = ctx.deadline.map_or(since + NOTE_WAIT, |deadline| deadline.min(since + NOTE_WAIT));
        let goes_on = must_note && ambient::now() + pause < until;
        if goes_on {
            tokio::time::sleep(pause).await;
        }
        goes_on
    }

    /// Removes the segments that are due, by the deadline of `removal`, and waits a moment for it, by that of `ctx`; the numbers of those that were not as they were read. **Round trips: 1**, of a stack 2.
    async fn remove(&mut self, removal: Ctx, ctx: Ctx, view: &View) -> Result<Vec<u64>> {
        let is_new = self.removals.under_way.is_none();
        if is_new {
            self.removals.under_way = self.send_removals(removal, view)?;
        }
        let Some(UnderWay { replies, .. }) = &mut self.removals.under_way else { return Ok(Vec::new()) };
        let left = ctx.deadline.map_or(REMOVAL_WAIT, |deadline| deadline.saturating_duration_since(ambient::now()));
        // What did not come in time is not waited for again.
        let wait = if is_new { REMOVAL_WAIT.min(left) } else { Duration::ZERO };
        let Ok(replies) = tokio::time::timeout(wait, replies).await else { return Ok(Vec::new()) };
        let Some(UnderWay { sent, known, .. }) = self.removals.under_way.take() else { return Ok(Vec::new()) };
        let mut answers = Answers::new(replies.unwrap_or_default());
        let (mut unlinked, mut refused) = (Vec::new(), Vec::new());
        for sent in sent {
            let answer = answers.next();
            if self.engine.order == Order::Fifo {
                _ = answers.next();
            }
            match sent.answered(&answer) {
                Some(removal) => _ = self.removals.known.insert(sent.incarnation, removal),
                None => _ = self.removals.known.remove(&sent.incarnation),
            }
            match answer {
                Ok(Reply::Deleted | Reply::Miss) => self.shelf.keep(sent.segment, None, known.0, known.1),
                _ => self.shelf.forget(sent.segment),
            }
            match answer {
                Ok(Reply::Deleted) if self.engine.order == Order::Lifo => unlinked.push(sent.segment),
                Ok(Reply::Exists) => refused.push(sent.segment),
                _ => {}
            }
        }
        self.remove_links(ctx, unlinked).await;
        Ok(refused)
    }

    /// Sends the removals that are due: they go on whoever is dropped. `None` if there are none.
    fn send_removals(&mut self, ctx: Ctx, view: &View) -> Result<Option<UnderWay>> {
        let (mut sent, mut batch) = (Vec::new(), Batch::default());
        for (record, remover) in self.removals.due(&view.state, self.engine.order) {
            let Some((content, cas)) = whole(record, &self.shelf).and_then(|content| Some((content, content.cas?)))
            else {
                continue;
            };
            let (segment, incarnation) = (record.segment, content.incarnation);
            let before = self.removals.known.get(&incarnation).copied();
            batch.push(Op::delete_if(self.engine.segment_key(incarnation)?, cas));
            if self.engine.order == Order::Fifo {
                // A queue's segment stays on record until it is gone: nobody will need the link again.
                batch.push(Op::delete(self.engine.link_key(segment)?));
            }
            sent.push(Sent { segment, incarnation, before, is_second: remover.is_second });
        }
        if sent.is_empty() {
            return Ok(None);
        }
        self.removals.known.extend(sent.iter().map(|sent| (sent.incarnation, Removal::InDoubt)));
        let (store, left) =
            (self.engine.store.clone(), ctx.deadline.map(|end| end.saturating_duration_since(ambient::now())));
        let replies = tokio::spawn(async move {
            let run = async { store.run(ctx, batch).await };
            // Nothing else of this handle is removed meanwhile.
            tokio::time::timeout(left.unwrap_or(REMOVAL_MAX), run).await.unwrap_or_default()
        });
        Ok(Some(UnderWay { sent, known: self.known(), replies }))
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

    /// Writes into the state what removals met with; `None` where nobody has to know now. **Round trips: 1.**
    async fn note_removals(&mut self, ctx: Ctx) -> Result<Option<Step>> {
        let Some(view) = self.view.clone() else { return Ok(None) };
        self.shelf.forget_unlinked(&view.state);
        if !self.removals.must_note(&view.state) {
            return Ok(None);
        }
        let Ok(plan) = self.plan(&view.state, &[], None) else { return Ok(None) };
        if plan.state == view.state {
            return Ok(None);
        }
        match self.fitted(&view.state, &[], plan)? {
            Some((plan, value)) => self.write(ctx, view, plan, value).await.map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use larder_core::{Cas, Effect, Error, ErrorKind, PutMode, StoreRef, Ttl, Verb};
    use larder_store_memory::MemoryStore;

    use super::super::engine::Engine;
    use super::super::layout::Below;
    use super::super::options::Settings;
    use super::super::past::Chain;
    use super::*;
    use crate::answering_tests::Answering;
    use crate::manifest::Kind;
    use crate::name::Name;

    /// The writer that is looked at.
    const ME: u64 = 7;

    fn removals(may_evict: bool) -> Removals {
        Removals::new(ME, may_evict, Duration::from_secs(5))
    }

    /// So many segments before the tail, of two items each, of which all was taken.
    fn drained(segments: u64) -> (State, Shelf) {
        let mut shelf = Shelf::default();
        let chain = Chain::of(2, 2, 0);
        let record = |number: u64| Record {
            taken: vec![(0, 2)],
            print: chain.print(2),
            ..Record::new(number, 100 + number, Below::default())
        };
        for number in 0..segments {
            let content = Content {
                incarnation: 100 + number,
                items: vec![Bytes::from_static(b"x"); 2],
                below: None,
                taken: Vec::new(),
                kept: None,
                chain: chain.clone(),
                bytes: 100,
                cas: Some(Cas { token: 1, session: 1 }),
                last: 0,
            };
            shelf.keep(number, Some(content), segments, 100);
        }
        let tail = Record::new(segments, 100 + segments, Below::default());
        let records = (0..segments).map(record).chain([tail]).collect();
        (State { seq: 100, tail: segments, incarnation: 100 + segments, records, ..State::default() }, shelf)
    }

    /// What became of segment 0, which was not there when it was looked for with the state as it is.
    fn fate_of(removals: &Removals, remover: Option<Remover>) -> Fate {
        let (mut state, mut shelf) = drained(1);
        state.records[0].remover = remover;
        shelf.keep(0, None, state.tail, state.seq);
        removals.fate(&state, &state.records[0], shelf.get(0).expect("it was looked for"), true)
    }

    #[test]
    fn a_segment_that_is_gone_was_removed_or_evicted_as_the_state_and_the_store_tell() {
        let named = |writer, seq, is_second| Some(Remover { writer, seq, is_second });
        // By whom it was to be removed; what is known where nothing is evicted, and where something may be.
        for (remover, never, may) in [
            (None, Fate::Evicted, Fate::Evicted),
            // Never sent: who removed it?
            (named(ME, 99, false), Fate::Evicted, Fate::Evicted),
            // What the other sent may have come to it.
            (named(ME, 99, true), Fate::Removed, Fate::Open),
            (named(8, 99, false), Fate::Open, Fate::Open),
            (named(8, 100 - WRITES_UNTIL_TAKEN_OVER + 1, false), Fate::Open, Fate::Open),
            // He has probably ended, and has said nothing.
            (named(8, 100 - WRITES_UNTIL_TAKEN_OVER, false), Fate::Removed, Fate::Open),
        ] {
            let fates = (fate_of(&removals(false), remover), fate_of(&removals(true), remover));
            assert_eq!(fates, (never, may), "{remover:?}");
        }
    }

    #[test]
    fn what_a_removal_met_with_tells_whether_a_segment_that_is_gone_then_is_lost() {
        let error = |effect| Err(Error::new(ErrorKind::Unavailable, "no reply came").effect(effect));
        let (deleted, miss, exists) = (Ok(Reply::Deleted), Ok(Reply::Miss), Ok(Reply::Exists));
        let in_doubt = Some(Removal::InDoubt);
        for (before, answer, fate) in [
            (None, &deleted, Fate::Removed),
            (in_doubt, &deleted, Fate::Removed),
            (None, &miss, Fate::Evicted),
            // An earlier try may have removed it.
            (in_doubt, &miss, Fate::Removed),
            // It was there, as another than was read: whoever comes next finds it gone.
            (None, &exists, Fate::Evicted),
            (Some(Removal::Refused), &exists, Fate::Evicted),
            // And an earlier try may yet remove it.
            (in_doubt, &exists, Fate::Removed),
            (None, &error(Effect::NotApplied), Fate::Evicted),
            (in_doubt, &error(Effect::NotApplied), Fate::Removed),
            (None, &error(Effect::Unknown), Fate::Removed),
        ] {
            let mut removals = removals(false);
            let sent = Sent { segment: 0, incarnation: 100, before, is_second: false };
            removals.known.extend(sent.answered(answer).map(|removal| (100, removal)));
            let remover = Remover { writer: ME, seq: 99, is_second: false };
            assert_eq!(fate_of(&removals, Some(remover)), fate, "{before:?}, {answer:?}");
        }
    }

    #[test]
    fn what_is_missed_while_others_write_is_lost_only_when_it_is_missed_again() {
        let (mut state, mut shelf) = drained(1);
        let mut removals = removals(true);
        let fate = |state: &State, shelf: &Shelf, removals: &Removals, is_fresh| {
            removals.fate(state, &state.records[0], shelf.get(0).expect("it was looked for"), is_fresh)
        };
        // The state is another one than when the read was sent.
        shelf.begin(None);
        shelf.keep(0, None, 1, state.seq - 1);
        removals.note_missed(&state, Order::Fifo, &shelf);
        assert_eq!(fate(&state, &shelf, &removals, true), Fate::Open);
        shelf.begin(None);
        state.seq += 1;
        shelf.keep(0, None, 1, state.seq - 1);
        removals.note_missed(&state, Order::Fifo, &shelf);
        assert_eq!(fate(&state, &shelf, &removals, false), Fate::Open, "it was not read in this call");
        assert_eq!(fate(&state, &shelf, &removals, true), Fate::Evicted);
    }

    #[test]
    fn one_writer_is_to_remove_some_segments_at_a_time_and_leaves_the_others() {
        let (mut state, shelf) = drained(REMOVALS_MAX as u64 + 4);
        let named = |state: &State, writer| {
            state.records.iter().filter(|record| record.remover.is_some_and(|remover| remover.writer == writer)).count()
        };
        removals(true).intend(&mut state, Order::Fifo, &shelf);
        assert_eq!(named(&state, ME), REMOVALS_MAX);
        removals(true).intend(&mut state, Order::Fifo, &shelf);
        assert_eq!(named(&state, ME), REMOVALS_MAX);
        // Another takes the rest, and nothing from the first.
        Removals::new(8, true, Duration::from_secs(5)).intend(&mut state, Order::Fifo, &shelf);
        assert_eq!((named(&state, ME), named(&state, 8)), (REMOVALS_MAX, 4));
    }

    #[tokio::test(start_paused = true)]
    async fn another_try_to_note_a_removal_is_made_after_a_pause_and_as_long_as_others_wait_for_it() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let name = Name::new("q").unwrap();
        let (engine, view) = Engine::open(&store, &name, Kind::Queue, &Settings::default(), true).await.unwrap();
        let incarnation = view.state.incarnation;
        let mut consumer = Consumer::new(Arc::new(engine), view);
        consumer.removals.may_evict = true;
        consumer.removals.known.insert(incarnation, Removal::Removed);
        let backoff = || Backoff::new(NOTE_PAUSE_FIRST, NOTE_PAUSE_MAX);
        // The machine may stand still for as long as others wait, and some.
        let now = ambient::now();
        let since = now + NOTE_WAIT - NOTE_PAUSE_MAX;
        let within = |after| Ctx { deadline: Some(now + after) };
        let begin = tokio::time::Instant::now();
        assert!(consumer.pauses_for_a_note(&mut backoff(), since, within(Duration::from_secs(60))).await);
        assert!(!begin.elapsed().is_zero());
        assert!(consumer.pauses_for_a_note(&mut backoff(), since, Ctx::default()).await, "a call without a deadline");
        // They have given up, or the caller has no time left.
        let long_ago = now - NOTE_WAIT;
        assert!(!consumer.pauses_for_a_note(&mut backoff(), long_ago, within(Duration::from_secs(60))).await);
        assert!(!consumer.pauses_for_a_note(&mut backoff(), since, within(Duration::ZERO)).await);
        // There is nothing that others have to know.
        consumer.removals.known.insert(incarnation, Removal::Refused);
        assert!(!consumer.pauses_for_a_note(&mut backoff(), since, within(Duration::from_secs(60))).await);
    }

    #[test]
    fn another_that_is_to_remove_a_segment_decides_what_became_of_it() {
        let named = |writer, is_second| Some(Remover { writer, seq: 99, is_second });
        for removal in [Removal::InDoubt, Removal::Missing] {
            for may_evict in [false, true] {
                let mut removals = removals(may_evict);
                removals.known.insert(100, removal);
                // He has only just been named: what this one's own removal met with was before.
                assert_eq!(fate_of(&removals, named(8, false)), Fate::Open, "{removal:?}, may evict: {may_evict}");
            }
        }
        // What the other sent may have come to it before this one's.
        let mut removals = removals(true);
        removals.known.insert(100, Removal::InDoubt);
        assert_eq!(fate_of(&removals, named(ME, true)), Fate::Open);
    }

    #[test]
    fn of_a_state_that_is_another_by_now_only_what_a_removal_found_is_known() {
        let (mut state, mut shelf) = drained(1);
        state.records[0].remover = Some(Remover { writer: ME, seq: 99, is_second: false });
        shelf.keep(0, None, state.tail, state.seq - 1);
        for (known, fate) in [
            (None, Fate::Open),
            (Some(Removal::Refused), Fate::Open),
            (Some(Removal::Missing), Fate::Evicted),
            (Some(Removal::Removed), Fate::Removed),
        ] {
            let mut removals = removals(true);
            removals.known.extend(known.map(|removal| (100, removal)));
            let seen = shelf.get(0).expect("it was looked for");
            assert_eq!(removals.fate(&state, &state.records[0], seen, false), fate, "{known:?}");
        }
    }

    #[test]
    fn what_is_not_on_record_any_more_is_forgotten() {
        let (mut state, mut shelf) = drained(2);
        shelf.begin(None);
        (0..2).for_each(|number| shelf.keep(number, None, 2, state.seq));
        let mut removals = removals(true);
        removals.known.extend([(100, Removal::Removed), (101, Removal::Removed)]);
        removals.note_missed(&state, Order::Fifo, &shelf);
        state.records.remove(0);
        removals.forget_all_but(&state);
        assert_eq!(removals.known.keys().collect::<Vec<_>>(), [&101]);
        assert_eq!(removals.missed.keys().collect::<Vec<_>>(), [&101]);
    }

    #[test]
    fn a_removal_is_taken_over_sixteen_writes_behind_the_one_that_names_its_remover() {
        let (mut state, shelf) = drained(1);
        removals(true).intend(&mut state, Order::Fifo, &shelf);
        // The write that names him.
        state.seq += 1;
        let another = |state: &State| {
            let mut state = state.clone();
            Removals::new(8, true, Duration::from_secs(5)).intend(&mut state, Order::Fifo, &shelf);
            state.records[0].remover.unwrap()
        };
        state.seq += WRITES_UNTIL_TAKEN_OVER - 1;
        assert_eq!(another(&state).writer, ME);
        state.seq += 1;
        let Remover { writer, is_second, .. } = another(&state);
        assert_eq!((writer, is_second), (8, true));
    }

    #[test]
    fn what_a_writer_is_to_remove_is_due_until_that_is_answered() {
        let (mut state, shelf) = drained(2);
        let mut removals = removals(true);
        let due = |removals: &Removals, state: &State| -> Vec<u64> {
            removals.due(state, Order::Fifo).map(|(record, _)| record.segment).collect()
        };
        assert_eq!(due(&removals, &state), [0; 0], "nobody is named yet");
        removals.intend(&mut state, Order::Fifo, &shelf);
        assert_eq!(due(&removals, &state), [0, 1]);
        removals.known.extend([(100, Removal::Removed), (101, Removal::InDoubt)]);
        assert_eq!(due(&removals, &state), [1]);
        assert_eq!(due(&Removals::new(8, true, Duration::from_secs(5)), &state), [0; 0]);
    }

    async fn consumer(store: &StoreRef) -> Consumer {
        let name = Name::new("q").unwrap();
        let (engine, view) = Engine::open(store, &name, Kind::Queue, &Settings::default(), true).await.unwrap();
        Consumer::new(Arc::new(engine), view)
    }

    /// How long after this moment the first batch ends that was asked for with such an op.
    fn given(answering: &Answering, begin: Instant, is_it: fn(&Op) -> bool) -> Duration {
        let asked = answering.asked();
        let (ctx, _) = asked.iter().find(|(_, batch)| batch.iter().any(is_it)).expect("it was asked for");
        ctx.deadline.expect("it has an end").saturating_duration_since(begin)
    }

    #[tokio::test]
    async fn a_removal_has_half_of_what_is_left_of_a_call_and_a_second_where_that_has_no_end() {
        for (within, least, most) in [(Some(60), 20, 30), (None, 0, 1)] {
            let answering = Answering::over(&(Arc::new(MemoryStore::new()) as StoreRef));
            let mut consumer = consumer(&answering.shared()).await;
            let (mut state, shelf) = drained(1);
            state.records[0].remover = Some(Remover { writer: consumer.removals.writer, seq: 99, is_second: false });
            consumer.view = consumer.view.map(|view| View { state, ..view });
            consumer.shelf = shelf;
            answering.asked();
            let begin = ambient::now();
            let deadline = within.map(|secs| begin + Duration::from_secs(secs));
            consumer.clear_up(Ctx { deadline }, None).await;
            let given = given(&answering, begin, |op| matches!(op.verb, Verb::Delete { cas: Some(_) }));
            assert!(given > Duration::from_secs(least), "{within:?}: {given:?}");
            // A machine may stand still for a moment.
            assert!(given < Duration::from_secs(most + 10), "{within:?}: {given:?}");
        }
    }

    /// Whoever was given a lease is to have most of it when he hears of it.
    #[tokio::test]
    async fn a_note_has_a_quarter_of_the_lease_that_was_given() {
        let answering = Answering::over(&(Arc::new(MemoryStore::new()) as StoreRef));
        let mut consumer = consumer(&answering.shared()).await;
        let (state, mut shelf) = drained(1);
        shelf.keep(0, None, state.tail, state.seq);
        consumer.view = consumer.view.map(|view| View { state, ..view });
        consumer.shelf = shelf;
        consumer.removals.may_evict = true;
        consumer.removals.known.insert(100, Removal::Removed);
        answering.asked();
        let begin = ambient::now();
        let lease_end = begin + Duration::from_millis(200);
        consumer.clear_up(Ctx { deadline: Some(begin + Duration::from_secs(60)) }, Some(lease_end)).await;
        let given = given(&answering, begin, |op| matches!(op.verb, Verb::Put { .. }));
        // 50 ms, and three quarters of the time that the machine stood still for before that was reckoned.
        assert!(given >= Duration::from_millis(50) && given < Duration::from_millis(250), "{given:?}");
    }

    /// What others have to know may have to wait for a later call, as where the state has no room for it: this one does not.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_can_note_nothing_now_does_not_wait() {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let mut consumer = consumer(&store).await;
        consumer.removals.may_evict = true;
        let incarnation = consumer.view.as_ref().expect("it is open").state.incarnation;
        consumer.removals.known.insert(incarnation, Removal::Removed);
        let begin = tokio::time::Instant::now();
        consumer.clear_up(Ctx { deadline: Some(ambient::now() + Duration::from_secs(60)) }, None).await;
        assert!(begin.elapsed().is_zero(), "it waited for {:?}", begin.elapsed());
    }

    /// Others wait for it: whoever gave up would let them tell a loss that is none.
    #[tokio::test(start_paused = true)]
    async fn what_a_removal_met_with_is_noted_also_where_others_are_first_ten_times() {
        // A machine that stands still for as long as others wait makes it give up, once.
        for _ in 0..20 {
            let answering = Answering::over(&(Arc::new(MemoryStore::new()) as StoreRef));
            let store = answering.shared();
            let mut consumer = consumer(&store).await;
            let (state, mut shelf) = drained(1);
            shelf.keep(0, None, state.tail, state.seq);
            let (engine, value) = (consumer.engine.clone(), state.encode(consumer.engine.generation()));
            let put = Op::put(engine.cell.key.clone(), PutMode::Set, value, Ttl::Never);
            let mut replies = store.run(Ctx::default(), Batch::from_iter([put, engine.cell.read_op()])).await;
            consumer.view = Some(engine.view(replies.remove(1), 0).unwrap());
            consumer.shelf = shelf;
            consumer.removals.may_evict = true;
            consumer.removals.known.insert(100, Removal::Removed);
            let mut others = 0..10;
            answering.by(move |op| {
                let is_write = matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. });
                is_write.then(|| others.next()).flatten().map(|_| Ok(Reply::Exists))
            });
            consumer.clear_up(Ctx { deadline: Some(ambient::now() + Duration::from_secs(60)) }, None).await;
            let reply = store.run(Ctx::default(), Batch::from_iter([engine.cell.read_op()])).await.remove(0);
            if engine.view(reply, 0).unwrap().state.records.iter().all(|record| record.segment != 0) {
                return;
            }
        }
        panic!("it was never noted");
    }
}
