//! A store that answers chosen ops by a rule of the test's.

use std::fmt;
use std::sync::{Arc, Mutex};

use larder_core::{Batch, Ctx, Op, Profile, Replies, Reply, Result, Run, Store, StoreRef};

type Rule = dyn Fn(&Op) -> Option<Result<Reply>> + Send + Sync;

/// What the rule answers is not sent; all else is, as one batch.
pub(crate) struct Answering {
    inner: StoreRef,
    rule: Mutex<Arc<Rule>>,
}

impl Answering {
    /// Without a rule yet.
    pub(crate) fn new(inner: &StoreRef) -> Arc<Answering> {
        Arc::new(Answering { inner: inner.clone(), rule: Mutex::new(Arc::new(|_| None)) })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// From now on by this rule.
    pub(crate) fn by(&self, rule: impl Fn(&Op) -> Option<Result<Reply>> + Send + Sync + 'static) {
        *self.rule.lock().unwrap() = Arc::new(rule);
    }
}

impl Store for Answering {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let rule = self.rule.lock().unwrap().clone();
        Run::pending(async move {
            let answers: Vec<Option<Result<Reply>>> = batch.iter().map(|op| rule(op)).collect();
            let is_sent = answers.iter().map(Option::is_none);
            let sent: Batch =
                batch.into_iter().zip(is_sent).filter(|(_, is_sent)| *is_sent).map(|(op, _)| op).collect();
            let mut replies = match sent.is_empty() {
                true => Replies::new(),
                false => self.inner.run(ctx, sent).await,
            }
            .into_iter();
            answers.into_iter().filter_map(|answer| answer.or_else(|| replies.next())).collect()
        })
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answering")
    }
}
