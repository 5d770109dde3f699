//! The writer of an exact counter: a process's one slot, and what became of the writes it sent there.
//!
//! Each write carries the slot's whole sum on and is conditional on what was read before it, so that correctness depends on
//! nobody's guess about who is alive: a slot may be taken over at any moment, and two writers may share one.
//!
//! Source of the method: measured against four others under lost requests, lost replies and late delivery (4 clients,
//! 1,500 increments each): the only one with an error of 0 at about one round trip a write.

use std::sync::Arc;
use std::time::Duration;

use larder_core::observe::{self, Event, Subject};
use larder_core::{Ctx, Effect, Error, ErrorKind, Result};

use super::exact::{Slots, is_over_in};
use super::layout::{Fate, MARKS_MAX, Mark, NOBODY, Slot};
use super::register::{Job, View};
use crate::combine::Driver;
use crate::events;
use crate::ids::random_id;
use crate::retry::Backoff;

/// How often one write is tried while others keep writing the slot, or while its outcome is unknown.
pub(super) const TRIES_MAX: u32 = 256;
/// How often one write is tried on a store that cannot be reached, as long as nothing was sent.
const UNREACHABLE_TRIES_MAX: u32 = 6;
/// The first pause between tries is at most this; the first retry comes without one.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// The owner of a slot that was not written for so long counts as dead, when a process looks for a slot. A wrong guess costs
/// the owner round trips, never a count.
const DEAD_MS: u64 = 30_000;
/// A writer that meets others on its slot looks for a better one on every so many meetings.
const MEETINGS_A_LOOK: u32 = 8;

/// One process's writer. Its [`Driver::Change`] is a number to add.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) slots: Arc<Slots>,
    id: u64,
    /// The number of the last write begun; every try of one write has the same.
    op: u64,
    pub(super) seat: Option<Seat>,
    /// A write of number `op` that was sent, and may have landed or may yet.
    sent: Option<Sent>,
    /// The last write that was acknowledged: its slot shows it, or is an older one.
    acked: Option<Acked>,
    /// How often another writer was met on the slot.
    meetings: u32,
}

/// The slot that this process writes.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) index: u16,
    /// `None`: it must be read before it is written.
    pub(super) view: Option<View>,
}

#[derive(Debug)]
struct Sent {
    base_seq: u64,
}

#[derive(Debug)]
struct Acked {
    index: u16,
    op: u64,
    /// The slot's sequence when it was sent first.
    base_seq: u64,
}

/// Whether to try again.
enum Tried {
    Landed,
    Again,
}

impl Driver for Writer {
    type Change = i64;
    type Outcome = ();

    fn weight(_: &i64) -> usize {
        1
    }

    async fn apply(&mut self, changes: &[i64], interrupted: bool) -> Result<()> {
        let delta: i128 = changes.iter().map(|&change| i128::from(change)).sum();
        if !interrupted {
            self.op += 1;
            // What may still land of the write before was reported as unknown. It is conditional on the state of the slot that
            // this write replaces, so it lands before this one or never.
            self.sent = None;
        }
        let outcome = self.add(Ctx::within(self.slots.timeout), delta).await;
        outcome.map_err(|error| if self.sent.is_some() { error.effect(Effect::Unknown) } else { error })
    }
}

impl Writer {
    pub(super) fn new(slots: Arc<Slots>) -> Writer {
        Writer { slots, id: random_id(), op: 0, seat: None, sent: None, acked: None, meetings: 0 }
    }

    async fn add(&mut self, ctx: Ctx, delta: i128) -> Result<()> {
        let mut tries = Tries::new(ctx);
        loop {
            match self.try_add(ctx, delta).await {
                Ok(Tried::Landed) => return Ok(()),
                Ok(Tried::Again) => {
                    tries.conflict().await?;
                    events::retry(self.subject(), ErrorKind::Conflict);
                }
                Err(error) => {
                    let cause = error.kind();
                    tries.fault(error, self.sent.is_some()).await?;
                    events::retry(self.subject(), cause);
                }
            }
        }
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        self.slots.registers.vigil.subject()
    }

    /// One read, where one is needed, and one write.
    async fn try_add(&mut self, ctx: Ctx, delta: i128) -> Result<Tried> {
        let (index, view) = self.sit(ctx).await?;
        let mark = Mark { writer: self.id, op: self.op };
        self.check_acked(index, &view)?;
        if let Some(sent) = &self.sent {
            if !view.settled {
                return self.settle(ctx, index, view).await;
            }
            match view.slot.fate(mark, sent.base_seq) {
                Fate::Landed => {
                    self.acked = Some(Acked { index, op: self.op, base_seq: sent.base_seq });
                    self.sent = None;
                    return Ok(Tried::Landed);
                }
                Fate::Never => self.sent = None,
                Fate::Forgotten => return Err(forgotten(index)),
                Fate::Open => {}
            }
        }
        let next = view.slot.added(mark, delta, self.slots.now_ms())?;
        if view.is_thin() {
            // A server came back empty, so slots that nobody writes have a copy less too. What fails here the next one does.
            _ = self.slots.mend_idle(ctx, index).await;
        }
        let sent_before = self.sent.is_some();
        let base_seq = self.sent.get_or_insert(Sent { base_seq: view.slot.seq }).base_seq;
        // Whoever drops this future midway leaves a seat that must be read again.
        self.seat = Some(Seat { index, view: None });
        let (landed, now) = self.write(ctx, index, view, next).await;
        let is_known = match &landed {
            Ok(true) => {
                self.acked = Some(Acked { index, op: self.op, base_seq });
                true
            }
            Ok(false) => !sent_before,
            Err(error) => !sent_before && !error.is_unknown(),
        };
        if is_known {
            self.sent = None;
        }
        if let Ok(false) = landed {
            events::conflict(self.subject());
        }
        self.meet(index, now, matches!(landed, Ok(false)));
        Ok(if landed? { Tried::Landed } else { Tried::Again })
    }

    /// Checks that a slot holds what was acknowledged there last: one that was set back may have been written as often since.
    ///
    /// # Errors
    /// [`ErrorKind::RolledBack`] where it does not.
    fn check_acked(&self, index: u16, view: &View) -> Result<()> {
        let Some(acked) = self.acked.as_ref().filter(|acked| acked.index == index && view.settled) else {
            return Ok(());
        };
        match view.slot.fate(Mark { writer: self.id, op: acked.op }, acked.base_seq) {
            Fate::Never | Fate::Open => Err(self.slots.lacks(index, acked.base_seq, view)),
            Fate::Landed | Fate::Forgotten => Ok(()),
        }
    }

    /// Writes what stands on too few copies as it is, so that it stays, and tells what became of what was sent.
    async fn settle(&mut self, ctx: Ctx, index: u16, view: View) -> Result<Tried> {
        self.seat = Some(Seat { index, view: None });
        let next = view.slot.clone();
        let (landed, now) = self.write(ctx, index, view, next).await;
        self.seat = Some(Seat { index, view: now });
        landed.map(|_| Tried::Again)
    }

    /// Keeps what was read back with a write; after a conflict with another writer, maybe looks for a slot of its own.
    fn meet(&mut self, index: u16, now: Option<View>, was_conflict: bool) {
        let strange = now.as_ref().is_some_and(|view| view.slot.owner != self.id);
        self.seat = Some(Seat { index, view: now });
        if was_conflict && strange && self.sent.is_none() {
            if self.meetings.is_multiple_of(MEETINGS_A_LOOK) {
                self.seat = None;
            }
            self.meetings = self.meetings.wrapping_add(1);
        }
    }

    async fn write(&self, ctx: Ctx, index: u16, view: View, next: Slot) -> (Result<bool>, Option<View>) {
        let job = Job { index, view, next };
        // A miss or a fault leaves the seat to be read again, which words it.
        self.slots.write(ctx, vec![job]).await.pop().unwrap_or_else(|| (Err(larder_core::ext::no_reply()), None))
    }

    /// The slot to write, and what it holds: as known from the last write, else read.
    async fn sit(&mut self, ctx: Ctx) -> Result<(u16, View)> {
        let (index, view) = match &self.seat {
            Some(Seat { index, view: Some(view) }) => return Ok((*index, view.clone())),
            Some(Seat { index, view: None }) => (*index, self.read(ctx, *index).await?),
            None => self.pick(ctx).await?,
        };
        self.seat = Some(Seat { index, view: Some(view.clone()) });
        Ok((index, view))
    }

    async fn read(&self, ctx: Ctx, index: u16) -> Result<View> {
        let mut views = self.slots.look(ctx, std::iter::once(index)).await?;
        views.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))
    }

    async fn pick(&mut self, ctx: Ctx) -> Result<(u16, View)> {
        let reads = self.slots.look(ctx, 0..self.slots.registers.len()).await?;
        let mut fault = None;
        let mut views = Vec::with_capacity(reads.len());
        for (index, read) in (0..).zip(reads) {
            match read {
                Ok(view) => views.push((index, view)),
                Err(error) => fault = Some(error),
            }
        }
        let now_ms = self.slots.now_ms();
        match best_seat(views.iter().map(|(_, view)| &view.slot), now_ms) {
            Some(at) => {
                let (index, view) = views.swap_remove(at);
                if view.slot.owner != NOBODY && view.slot.owner != self.id {
                    let is_dead = is_idle(&view.slot, now_ms);
                    observe::emit(|| Event::Takeover { subject: self.subject(), is_dead });
                }
                Ok((index, view))
            }
            None => Err(fault.unwrap_or_else(larder_core::ext::no_reply)),
        }
    }

    /// Gives the slot back, if it is still this writer's. **Round trips: 1**, 0 where there is nothing to give back.
    pub(super) async fn release(&mut self) -> Result<()> {
        let ctx = Ctx::within(self.slots.timeout);
        let mut tries = Tries::new(ctx);
        while self.seat.is_some() {
            let (index, view) = self.sit(ctx).await?;
            if view.slot.owner != self.id {
                self.stand_up(Some(view));
                break;
            }
            let next = view.slot.released()?;
            self.seat = Some(Seat { index, view: None });
            let (landed, now) = self.write(ctx, index, view, next).await;
            match landed {
                Ok(true) => self.stand_up(now),
                Ok(false) => {
                    self.seat = Some(Seat { index, view: now });
                    tries.conflict().await?;
                }
                Err(error) => tries.fault(error, true).await?,
            }
        }
        Ok(())
    }

    fn stand_up(&mut self, now: Option<View>) {
        self.seat = match self.seat.take() {
            // A write whose caller was dropped is still to be settled, and can be only here.
            Some(seat) if self.sent.is_some() => Some(Seat { view: now, ..seat }),
            _ => None,
        };
    }
}

/// Counts and paces the tries of one write.
pub(super) struct Tries {
    ctx: Ctx,
    backoff: Backoff,
    tries: u32,
    last: Option<Error>,
}

impl Tries {
    pub(super) fn new(ctx: Ctx) -> Tries {
        Tries { ctx, backoff: Backoff::new(PAUSE_MIN, PAUSE_MAX), tries: 0, last: None }
    }

    /// After another writer was first.
    pub(super) async fn conflict(&mut self) -> Result<()> {
        self.next(TRIES_MAX).await
    }

    /// After a fault: an error that passes, and is worth another try, or not.
    pub(super) async fn fault(&mut self, error: Error, was_sent: bool) -> Result<()> {
        let may_pass = matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Protocol);
        let may_pass = may_pass || (error.is_unknown() && error.kind() != ErrorKind::Conflict);
        if !may_pass {
            return Err(error);
        }
        self.last = Some(error);
        self.next(if was_sent { TRIES_MAX } else { UNREACHABLE_TRIES_MAX }).await
    }

    async fn next(&mut self, tries_max: u32) -> Result<()> {
        self.tries += 1;
        let pause = if self.tries > 1 { self.backoff.next_pause() } else { Duration::ZERO };
        // A try that begins at the deadline would end after it.
        if self.tries >= tries_max || is_over_in(self.ctx, pause) {
            return Err(self.last.take().unwrap_or_else(|| {
                let detail =
                    format!("other writers were first {} times; the limit is {tries_max} or the timeout", self.tries);
                Error::new(ErrorKind::Conflict, detail)
            }));
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }
}

/// True if nobody has the slot, or its owner seems dead.
pub(super) fn is_idle(slot: &Slot, now_ms: u64) -> bool {
    slot.owner == NOBODY || slot.beat_ms.saturating_add(DEAD_MS) < now_ms
}

/// Which slot a process takes: one that was given back, else one whose owner seems dead, the longest dead first, else any,
/// to share it. Random among equals, so that processes which start together spread out.
fn best_seat<'a>(slots: impl ExactSizeIterator<Item = &'a Slot>, now_ms: u64) -> Option<usize> {
    let rank = |slot: &Slot| match slot.owner {
        NOBODY => 0,
        _ if is_idle(slot, now_ms) => slot.beat_ms.max(1),
        _ => u64::MAX,
    };
    let ranked = slots.enumerate().map(|(at, slot)| (rank(slot), fastrand::u64(..), at));
    ranked.min().map(|(_, _, at)| at)
}

fn forgotten(index: u16) -> Error {
    let detail = format!(
        "the reply to an add was lost, and more than {MARKS_MAX} others have written slot {index} since: whether it was counted \
         cannot be told any more"
    );
    Error::new(ErrorKind::Conflict, detail).effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use larder_core::StoreRef;
    use larder_layers::Counting;
    use larder_store_memory::MemoryStore;

    use super::*;
    use crate::counter::{Counter, Inner};
    use crate::events::tests::{listen, told};

    fn slot(owner: u64, beat_ms: u64) -> Slot {
        let mark = Mark { writer: owner, op: 1 };
        Slot::default().added(mark, 0, beat_ms).unwrap()
    }

    fn picks(slots: &[Slot], now_ms: u64) -> Vec<usize> {
        let mut picks: Vec<_> = (0..200).filter_map(|_| best_seat(slots.iter(), now_ms)).collect();
        picks.sort_unstable();
        picks.dedup();
        picks
    }

    #[test]
    fn a_released_slot_is_taken_first_then_the_longest_dead_then_any() {
        let now_ms = 1_000_000;
        let dead_ms = now_ms - DEAD_MS - 1;
        let slots = [slot(1, now_ms), slot(NOBODY, now_ms), slot(2, dead_ms), slot(NOBODY, 5)];
        assert_eq!(picks(&slots, now_ms), [1, 3]);
        let slots = [slot(1, now_ms), slot(2, dead_ms), slot(3, dead_ms - 1), slot(4, dead_ms - 1)];
        assert_eq!(picks(&slots, now_ms), [2, 3]);
        let slots = [slot(1, now_ms), slot(2, now_ms - DEAD_MS), slot(3, now_ms + 9)];
        assert_eq!(picks(&slots, now_ms), [0, 1, 2]);
        assert_eq!(best_seat([].iter(), now_ms), None);
    }

    /// A writer of a counter of so many slots, which is made where it is not there.
    async fn writer(store: &StoreRef, name: &str, slots: u16) -> Writer {
        let counter = Counter::options().slots(slots).open_or_create(store, name).await.unwrap();
        let Inner::Exact { slots, .. } = &counter.inner else { panic!("it is exact") };
        Writer::new(slots.clone())
    }

    #[tokio::test]
    async fn a_slot_is_taken_over_from_another_and_from_nobody_else() {
        listen();
        let store: StoreRef = Arc::new(MemoryStore::new());
        let mut first = writer(&store, "taken", 1).await;
        first.apply(&[1], false).await.unwrap();
        assert_eq!(told("taken"), [""; 0], "it was nobody's");
        let mut second = writer(&store, "taken", 1).await;
        second.apply(&[1], false).await.unwrap();
        assert_eq!(told("taken"), ["takeover, dead false"]);
        // It looks for a slot once more.
        second.seat = None;
        second.apply(&[1], false).await.unwrap();
        assert_eq!(told("taken"), ["takeover, dead false"], "it was its own");
    }

    #[tokio::test]
    async fn who_gave_its_slot_back_looks_for_one_anew_unless_a_write_there_is_not_settled() {
        let counting = Counting::new(Arc::new(MemoryStore::new()));
        let store: StoreRef = Arc::new(counting.clone());
        let mut writer = writer(&store, "released", 2).await;
        writer.apply(&[1], false).await.unwrap();
        writer.release().await.unwrap();
        assert!(writer.seat.is_none());
        writer.apply(&[1], false).await.unwrap();
        // A caller was dropped midway.
        writer.sent = Some(Sent { base_seq: 1 });
        let index = writer.seat.as_ref().unwrap().index;
        let before = counting.counts();
        writer.release().await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, 1, "what was read back is not read again");
        let seat = writer.seat.as_ref().unwrap();
        assert_eq!(seat.index, index, "only there it can be settled");
        assert_eq!(seat.view.as_ref().map(|view| view.slot.owner), Some(NOBODY));
    }

    #[tokio::test(start_paused = true)]
    async fn who_others_are_first_before_gives_up_after_256_tries() {
        let mut tries = Tries::new(Ctx::default());
        for _ in 1..256 {
            tries.conflict().await.unwrap();
        }
        let error = tries.conflict().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("other writers were first 256 times"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_fault_is_worth_another_try_where_it_passes_or_leaves_a_doubt_that_a_look_can_end() {
        use Effect::{NotApplied, Unknown};
        let faults = [
            (ErrorKind::Unavailable, NotApplied, true),
            (ErrorKind::Timeout, NotApplied, true),
            (ErrorKind::Protocol, NotApplied, true),
            (ErrorKind::Full, NotApplied, false),
            (ErrorKind::LayoutMismatch, NotApplied, false),
            (ErrorKind::Conflict, NotApplied, false),
            (ErrorKind::Full, Unknown, true),
            // Whether it was counted cannot be told any more.
            (ErrorKind::Conflict, Unknown, false),
        ];
        for (kind, effect, is_tried_again) in faults {
            let fault = Error::new(kind, "as the test wants").effect(effect);
            let outcome = Tries::new(Ctx::default()).fault(fault, true).await;
            assert_eq!(outcome.is_ok(), is_tried_again, "{kind:?}, {effect:?}");
            assert!(
                outcome.is_ok() || outcome.is_err_and(|error| (error.kind(), error.known_effect()) == (kind, effect))
            );
        }
    }

    #[test]
    fn a_write_takes_as_many_adds_as_it_may_whatever_they_add() {
        assert_eq!([i64::MIN, 0, 1, i64::MAX].map(|add| Writer::weight(&add)), [1; 4]);
    }
}
