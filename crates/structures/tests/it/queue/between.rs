//! A store on which a test answers the batches it looks for.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use larder_core::{Batch, Ctx, Effect, Op, Profile, PutMode, Replies, Reply, Result, Run, Store, StoreRef, Verb};

use crate::support::hooked::fail;
use crate::support::slow::Pace;

/// What comes of a batch.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Replies> + Send>>;
type Rule = Box<dyn FnMut(&StoreRef, &Batch) -> Option<Answer> + Send>;

/// Gives the answers of a rule, and passes on what it says nothing of.
pub(crate) struct Between {
    inner: StoreRef,
    rule: Mutex<Option<Rule>>,
}

impl Between {
    pub(crate) fn new(inner: &StoreRef) -> Arc<Between> {
        Arc::new(Between { inner: inner.clone(), rule: Mutex::default() })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// From now on batches are answered by this.
    pub(crate) fn answer(&self, rule: impl FnMut(&StoreRef, &Batch) -> Option<Answer> + Send + 'static) {
        *self.rule.lock().unwrap() = Some(Box::new(rule));
    }

    /// Instead of the next batch with such an op does this with the store behind.
    pub(crate) fn once<F>(&self, is_it: fn(&Op) -> bool, act: impl FnOnce(StoreRef, Batch) -> F + Send + 'static)
    where
        F: Future<Output = Replies> + Send + 'static,
    {
        let mut act = Some(act);
        self.answer(move |store, batch| {
            if !batch.iter().any(is_it) {
                return None;
            }
            Some(Box::pin(act.take()?(store.clone(), batch.clone())))
        });
    }

    /// From now on batches with such an op are not carried out, and this is known of them.
    pub(crate) fn refuse(&self, is_it: fn(&Op) -> bool, effect: Effect) {
        self.answer(move |_, batch| {
            let (is_refused, batch) = (batch.iter().any(is_it), batch.clone());
            is_refused.then(|| -> Answer { Box::pin(async move { fail(&batch, effect) }) })
        });
    }

    /// From now on batches with such an op are carried out at this pace, whatever their deadlines.
    pub(crate) fn slow(&self, is_it: impl Fn(&Op) -> bool + Send + 'static, (before, after): Pace) {
        self.answer(move |store, batch| {
            let (is_slow, store, batch) = (batch.iter().any(&is_it), store.clone(), batch.clone());
            is_slow.then(|| -> Answer {
                Box::pin(async move {
                    tokio::time::sleep(before).await;
                    let replies = store.run(Ctx::default(), batch).await;
                    tokio::time::sleep(after).await;
                    replies
                })
            })
        });
    }

    pub(crate) fn heal(&self) {
        *self.rule.lock().unwrap() = None;
    }
}

impl Store for Between {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let answer = self.rule.lock().unwrap().as_mut().and_then(|rule| rule(&self.inner, &batch));
        match answer {
            Some(answer) => Run::pending(answer),
            None => self.inner.run(ctx, batch),
        }
    }
}

impl fmt::Debug for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Between")
    }
}

/// Carries a batch out but for the ops that have an answer here.
pub(crate) async fn but(store: StoreRef, batch: Batch, answer: fn(&Op) -> Option<Result<Reply>>) -> Replies {
    let mut replies = Replies::new();
    for op in batch {
        match answer(&op) {
            Some(reply) => replies.push(reply),
            None => replies.extend(store.run(Ctx::default(), Batch::from_iter([op])).await),
        }
    }
    replies
}

/// A write of the state.
pub(crate) fn swaps(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. })
}

pub(crate) fn appends(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
}

/// The making of a segment, or of a link.
pub(crate) fn adds(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Add, .. })
}

/// The making of a link.
pub(crate) fn links(op: &Op) -> bool {
    adds(op) && op.key.as_bytes().rsplit(|&byte| byte == b'.').next().is_some_and(|index| index.starts_with(b"n"))
}

/// The removal of a segment.
pub(crate) fn removes(op: &Op) -> bool {
    matches!(op.verb, Verb::Delete { cas: Some(_) })
}
