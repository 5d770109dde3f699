//! Resetting an exact counter: each slot's sum is taken away by a conditional write.
//!
//! A slot changes atomically, so an add that races a reset is either in what the reset returns or remains.

use larder_core::{Ctx, Effect, Error, ErrorKind, Result};

use super::exact::sum;
use super::layout::{Fate, Mark, Slot};
use super::register::{Job, View};
use super::writer::{Seat, Tries, Writer};
use crate::events;
use crate::ids::random_id;

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
    /// Takes every slot's sum away; the sum of what was taken. **Round trips: 2**, 1 if the counter was 0; with several copies 3.
    pub(super) async fn reset(&mut self) -> Result<i128> {
        let ctx = Ctx::within(self.slots.timeout);
        let views = self.slots.read_all(ctx).await?;
        sum(views.iter())?;
        // A writer of its own, so that the marks of this writer's adds stay as they are.
        let mark = Mark { writer: random_id(), op: 1 };
        let taking = |(index, view): (u16, View)| {
            (view.slot.sum != 0 || !view.settled).then_some(Taking { index, view: Some(view), sent: None, taken: None })
        };
        let mut all: Vec<Taking> = (0..).zip(views).filter_map(taking).collect();
        let mut tries = Tries::new(ctx);
        loop {
            let tried = self.take_all(ctx, mark, &mut all).await;
            if all.iter().all(|taking| taking.taken.is_some()) {
                break;
            }
            let is_sent = all.iter().any(|taking| taking.sent.is_some());
            let cause = tried.as_ref().err().map_or(ErrorKind::Conflict, Error::kind);
            let paced = match tried {
                Ok(()) => tries.conflict().await,
                Err(error) => tries.fault(error, is_sent).await,
            };
            paced.map_err(|error| partly(error, &all))?;
            events::retry(self.subject(), cause);
        }
        self.keep_seat(&mut all);
        total(&all)
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
        for taking in open(all) {
            if let Some((view, next, purpose)) = taking.begin(mark)? {
                jobs.push(Job { index: taking.index, view, next });
                sent.push((purpose, taking));
            }
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
    fn begin(&mut self, mark: Mark) -> Result<Option<(View, Slot, Purpose)>> {
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

/// The error of a reset that stopped midway: it names what is gone already.
fn partly(error: Error, all: &[Taking]) -> Error {
    let taken = all.iter().filter(|taking| taking.taken.is_some()).count();
    let is_sent = all.iter().any(|taking| taking.sent.is_some());
    if taken == 0 && !is_sent {
        return error;
    }
    let sum = total(all).unwrap_or(i128::MAX);
    let detail = format!("{taken} of {} slots were reset, {sum} in all, before: {}", all.len(), error.detail());
    Error::new(error.kind(), detail).effect(Effect::Unknown).source(error)
}
