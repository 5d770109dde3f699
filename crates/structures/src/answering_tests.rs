//! A store on which a test answers chosen ops, and sees every batch.

use std::fmt;
use std::sync::{Arc, Mutex};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, Replies, Reply, Result, Run, Store, StoreRef};

type Rule = dyn FnMut(&Op) -> Option<Result<Reply>> + Send;

/// A store that answers chosen ops by a rule of the test's, and notes every batch as it came. What the rule answers is not sent; all else is, as one batch.
pub(crate) struct Answering {
    inner: StoreRef,
    rule: Mutex<Box<Rule>>,
    asked: Mutex<Vec<(Ctx, Batch)>>,
}

impl Answering {
    /// Without a rule yet.
    pub(crate) fn over(inner: &StoreRef) -> Arc<Answering> {
        Arc::new(Answering { inner: inner.clone(), rule: Mutex::new(Box::new(|_| None)), asked: Mutex::default() })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// From now on by this rule.
    pub(crate) fn by(&self, rule: impl FnMut(&Op) -> Option<Result<Reply>> + Send + 'static) {
        *self.rule.lock().unwrap() = Box::new(rule);
    }

    /// The batches since this was asked before.
    pub(crate) fn asked(&self) -> Vec<(Ctx, Batch)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

/// An error of this kind and effect.
pub(crate) fn fails(kind: ErrorKind, effect: Effect) -> Result<Reply> {
    Err(Error::new(kind, "as the test wants").effect(effect))
}

impl Store for Answering {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.asked.lock().unwrap().push((ctx, batch.clone()));
        let answers: Vec<Option<Result<Reply>>> = {
            let mut rule = self.rule.lock().unwrap();
            batch.iter().map(&mut **rule).collect()
        };
        Run::pending(async move {
            let sent: Batch =
                batch.into_iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(op, _)| op).collect();
            let mut replies =
                if sent.is_empty() { Replies::new() } else { self.inner.run(ctx, sent).await }.into_iter();
            answers.into_iter().filter_map(|answer| answer.or_else(|| replies.next())).collect()
        })
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}
