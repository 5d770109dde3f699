//! A store that takes its time, and keeps to its callers' deadlines, or does not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Profile, Replies, Run, Store, StoreRef};

/// How long a batch takes until it has its effect, and from there until its replies are there.
pub(crate) type Pace = (Duration, Duration);

/// A store whose next batches are slow, each at a pace of its own; behind them it is quick.
#[derive(Debug)]
pub(crate) struct Slow {
    inner: StoreRef,
    keeps_deadlines: bool,
    paces: Mutex<VecDeque<Pace>>,
}

impl Slow {
    pub(crate) fn new(inner: &StoreRef, keeps_deadlines: bool) -> Arc<Slow> {
        Arc::new(Slow { inner: inner.clone(), keeps_deadlines, paces: Mutex::default() })
    }

    /// The next batches take so many milliseconds, and none of those behind them any time.
    pub(crate) fn take_ms(&self, paces: impl IntoIterator<Item = (u64, u64)>) {
        let ms = Duration::from_millis;
        *self.paces() = paces.into_iter().map(|(before, after)| (ms(before), ms(after))).collect();
    }

    /// How many of those are not asked for yet.
    pub(crate) fn left(&self) -> usize {
        self.paces().len()
    }

    fn paces(&self) -> MutexGuard<'_, VecDeque<Pace>> {
        self.paces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Slow {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let Some((before, after)) = self.paces().pop_front() else { return self.inner.run(ctx, batch) };
        Run::pending(async move {
            let late = overdue(&batch);
            let work = async {
                tokio::time::sleep(before).await;
                let replies = self.inner.run(Ctx::default(), batch).await;
                tokio::time::sleep(after).await;
                replies
            };
            match ctx.deadline.filter(|_| self.keeps_deadlines) {
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    tokio::time::timeout(left, work).await.unwrap_or(late)
                }
                None => work.await,
            }
        })
    }
}

/// What is told of ops without replies at the deadline; reads have no effect to be in doubt of.
fn overdue(batch: &Batch) -> Replies {
    let error = |op: &larder_core::Op| {
        let effect = if op.is_read() { Effect::NotApplied } else { Effect::Unknown };
        Err(Error::new(ErrorKind::Timeout, "no reply in time").effect(effect))
    };
    batch.iter().map(error).collect()
}
