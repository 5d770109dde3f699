//! Resetting an exact counter: each slot's sum is taken away by a conditional write.
//!
//! A slot changes atomically, so an add that races a reset is either in what the reset returns or remains.
//!
//! What was taken is gone, so whoever began must come to say it: one deadline holds for all of a reset, no write is sent that could
//! hardly be answered within it, and one that was sent is not cut off without naming what it takes.

use std::future::Future;
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, Result, ambient};

use super::GRACE;
use super::exact::{Slots, sum};
use super::layout::{Fate, Mark, Slot};
use super::register::{Job, View};
use super::writer::{Seat, Tries, Writer};
use crate::events;
use crate::ids::random_id;
use crate::name::Name;

/// A slot whose sum is being taken away.
struct Taking {
    index: u16,
    /// `None`: it must be read first.
    view: Option<View>,
    /// The sequence and the sum before a write that was sent, and may have landed or may yet.
    sent: Option<(u64, i128)>,
    /// What was taken away; `None` while it was not.
    taken: Option<i128>,
}

/// Why a slot is written.
enum Purpose {
    /// What was read stands on too few copies: it is written as it is, so that what is taken is certain.
    Settle,
    /// Its sum is taken; `sent_before`: an earlier try may have done it.
    Take { sent_before: bool },
}

impl Writer {
    /// Takes every slot's sum away; the sum of what was taken. **Round trips: 2**, 1 if the counter was 0; with several copies 3, and 4 where one is missing.
    ///
    /// Ends at the deadline or a moment behind it, whatever the store does.
    pub(super) async fn reset(&mut self, ctx: Ctx) -> Result<i128> {
        let views = look_in_time(ctx, &self.slots.name, self.slots.read_all(ctx)).await?;
        sum(views.iter())?;
        // A writer of its own, so that the marks of this writer's adds stay as they are.
        let mark = Mark { writer: random_id(), op: 1 };
        let taking = |(index, view): (u16, View)| {
            (view.slot.sum != 0 || !view.settled).then_some(Taking { index, view: Some(view), sent: None, taken: None })
        };
        let mut all: Vec<Taking> = (0..).zip(views).filter_map(taking).collect();
        // What was sent stands in `all`, also where this comes to no end.
        let ended = within(ctx, self.take(ctx, mark, &mut all)).await;
        ended.unwrap_or_else(|| Err(unanswered(&self.slots.name))).map_err(|error| partly(error, &all))?;
        self.keep_seat(&mut all);
        total(&all)
    }

    /// Takes until all is taken, or gives up.
    async fn take(&self, ctx: Ctx, mark: Mark, all: &mut [Taking]) -> Result<()> {
        let mut tries = Tries::new(ctx);
        loop {
            let tried = self.take_all(ctx, mark, all).await;
            if all.iter().all(|taking| taking.taken.is_some()) {
                return Ok(());
            }
            let is_sent = all.iter().any(|taking| taking.sent.is_some());
            let cause = tried.as_ref().err().map_or(ErrorKind::Conflict, Error::kind);
            match tried {
                Ok(()) => tries.conflict().await?,
                Err(error) => tries.fault(error, is_sent).await?,
            }
            events::retry(self.subject(), cause);
        }
    }

    /// Tries once to take what was not taken yet.
    async fn take_all(&self, ctx: Ctx, mark: Mark, all: &mut [Taking]) -> Result<()> {
        let unread: Vec<u16> = open(all).filter(|taking| taking.view.is_none()).map(|taking| taking.index).collect();
        let mut fault = None;
        if !unread.is_empty() {
            let reads = self.slots.look(ctx, unread.iter().copied()).await?;
            for (taking, read) in open(all).filter(|taking| taking.view.is_none()).zip(reads) {
                taking.view = read.map_err(|error| fault = Some(error)).ok();
            }
        }
        let mut jobs = Vec::new();
        let mut sent = Vec::new();
        let mut stuck = None;
        for taking in open(all) {
            match taking.begin(&self.slots, mark) {
                Ok(Some((view, next, purpose))) => {
                    jobs.push(Job { index: taking.index, view, next });
                    sent.push((purpose, taking));
                }
                Ok(None) => {}
                Err(error) => stuck = Some(error),
            }
        }
        if let Some(error) = stuck {
            // It cannot go on, and nothing of this try is sent.
            sent.into_iter().for_each(|(purpose, taking)| _ = taking.end(purpose, Ok(false), None));
            return Err(error);
        }
        let written = self.slots.write(ctx, jobs).await;
        for ((purpose, taking), (landed, now)) in sent.into_iter().zip(written) {
            if let Some(error) = taking.end(purpose, landed, now) {
                fault = Some(error);
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// The next add shall find its slot read.
    fn keep_seat(&mut self, all: &mut [Taking]) {
        if let Some(Seat { index, view }) = &mut self.seat
            && let Some(taking) = all.iter_mut().find(|taking| taking.index == *index)
        {
            *view = taking.view.take();
        }
    }
}

impl Taking {
    /// What is to be written, if anything is.
    fn begin(&mut self, slots: &Slots, mark: Mark) -> Result<Option<(View, Slot, Purpose)>> {
        let Some(view) = self.view.take() else { return Ok(None) };
        if !view.settled {
            let next = view.slot.clone();
            return Ok(Some((view, next, Purpose::Settle)));
        }
        if let Some((base_seq, base_sum)) = self.sent {
            match view.slot.fate(mark, base_seq) {
                Fate::Landed => {
                    (self.sent, self.taken, self.view) = (None, Some(base_sum), Some(view));
                    return Ok(None);
                }
                Fate::Never => self.sent = None,
                Fate::Forgotten => {
                    let detail = format!("whether slot {} was reset cannot be told any more: {base_sum}", self.index);
                    return Err(Error::new(ErrorKind::Conflict, detail).effect(Effect::Unknown));
                }
                Fate::Open if view.slot.sum != base_sum => return Err(slots.differs(self.index, base_sum, &view)),
                Fate::Open => {}
            }
        }
        if view.slot.sum == 0 && self.sent.is_none() {
            (self.taken, self.view) = (Some(0), Some(view));
            return Ok(None);
        }
        let next = view.slot.emptied(mark)?;
        let sent_before = self.sent.is_some();
        self.sent.get_or_insert((view.slot.seq, view.slot.sum));
        Ok(Some((view, next, Purpose::Take { sent_before })))
    }

    /// Notes what is known after the write.
    fn end(&mut self, purpose: Purpose, landed: Result<bool>, now: Option<View>) -> Option<Error> {
        self.view = now;
        if let Purpose::Take { sent_before } = purpose {
            let is_known = match &landed {
                Ok(_) => true,
                Err(error) => !error.is_unknown(),
            };
            if matches!(landed, Ok(true)) {
                self.taken = self.sent.take().map(|(_, sum)| sum);
            } else if is_known && !sent_before {
                self.sent = None;
            }
        }
        landed.err()
    }
}

fn open(all: &mut [Taking]) -> impl Iterator<Item = &mut Taking> {
    all.iter_mut().filter(|taking| taking.taken.is_none())
}

fn total(all: &[Taking]) -> Result<i128> {
    all.iter().filter_map(|taking| taking.taken).try_fold(0_i128, i128::checked_add).ok_or_else(|| {
        Error::new(ErrorKind::Overflow, "what was reset leaves 128 bits; it is gone").effect(Effect::Unknown)
    })
}

/// The error of a reset that stopped midway: it names what is gone already, and what may be.
fn partly(error: Error, all: &[Taking]) -> Error {
    let taken = all.iter().filter(|taking| taking.taken.is_some()).count();
    let mut in_doubt =
        all.iter().filter(|taking| taking.taken.is_none()).filter_map(|taking| Some(taking.sent?.1)).peekable();
    if taken == 0 && in_doubt.peek().is_none() {
        // Whatever else was written leaves the sums as they are.
        return error.effect(Effect::NotApplied);
    }
    let perhaps = in_doubt.peek().is_some().then(|| format!(", and perhaps {} more", worded(in_doubt)));
    let sum = worded(all.iter().filter_map(|taking| taking.taken));
    let detail = format!(
        "{taken} of {} slots were reset, {sum} in all{}, before: {}",
        all.len(),
        perhaps.unwrap_or_default(),
        error.detail()
    );
    Error::new(error.kind(), detail).effect(Effect::Unknown).source(error)
}

/// A sum for people.
fn worded(mut sums: impl Iterator<Item = i128>) -> String {
    sums.try_fold(0_i128, i128::checked_add).map_or_else(|| "more than 128 bits hold".to_owned(), |sum| sum.to_string())
}

/// Looks at a counter, and says whether there is time to take what was seen: a write takes as long as the look before it.
///
/// # Errors
/// [`ErrorKind::Timeout`] where there is not: nothing is taken.
pub(super) async fn look_in_time<T>(ctx: Ctx, name: &Name, look: impl Future<Output = Result<T>>) -> Result<T> {
    let too_late = || too_late(name, "the look at it took more than half of what was left");
    let began = ambient::now();
    let seen = within(ctx, look).await.ok_or_else(too_late)?.map_err(|error| error.effect(Effect::NotApplied))?;
    let took = ambient::now().saturating_duration_since(began);
    if left(ctx) < took { Err(too_late()) } else { Ok(seen) }
}

/// What is left until the deadline.
fn left(ctx: Ctx) -> Duration {
    ctx.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(ambient::now()))
}

/// Work that may go on for a moment behind the deadline, so that it can tell what it knows; `None` where it does not end then.
pub(super) async fn within<T>(ctx: Ctx, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(left(ctx).saturating_add(GRACE), work).await.ok()
}

/// The error of a reset that took nothing, for want of time.
pub(super) fn too_late(name: &Name, why: &str) -> Error {
    Error::new(ErrorKind::Timeout, format!("counter {name} was not reset within the timeout: {why}"))
}

/// The error of a reset whose write was not answered.
pub(super) fn unanswered(name: &Name) -> Error {
    let detail = format!("the store did not answer on counter {name} within the timeout");
    Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown)
}

#[cfg(test)]
#[path = "reset_tests.rs"]
mod tests;
