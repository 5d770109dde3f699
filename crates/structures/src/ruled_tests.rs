//! A store on which a test decides what becomes of the next ops.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};

use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, Replies, Reply, Result, Run, Store, StoreExt, StoreRef,
};

/// What becomes of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Goes,
    /// It is not sent, and its caller knows.
    NotSent,
    /// It takes effect, and its reply is lost.
    LostReply,
    /// It takes no effect, and its caller does not know.
    LostRequest,
}

/// A store where each of the next ops has a fate, whatever becomes of the others of its batch; those behind them all go.
pub(crate) struct Ruled {
    inner: StoreRef,
    fates: Mutex<VecDeque<Fate>>,
}

impl Ruled {
    pub(crate) fn over(inner: &StoreRef) -> Arc<Ruled> {
        Arc::new(Ruled { inner: inner.clone(), fates: Mutex::default() })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// What becomes of the ops from now on.
    pub(crate) fn next(&self, fates: impl IntoIterator<Item = Fate>) {
        *self.fates.lock().unwrap() = fates.into_iter().collect();
    }

    async fn run_one_op(&self, ctx: Ctx, op: Op) -> Result<Reply> {
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Goes);
        let is_read = op.is_read();
        if matches!(fate, Fate::Goes | Fate::LostReply) {
            let reply = self.inner.run_one(ctx, op).await;
            if fate == Fate::Goes {
                return reply;
            }
        }
        let effect = if is_read || fate == Fate::NotSent { Effect::NotApplied } else { Effect::Unknown };
        Err(Error::new(ErrorKind::Unavailable, format!("the connection broke: {fate:?}")).effect(effect))
    }
}

impl Store for Ruled {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let mut replies = Replies::new();
            for op in batch {
                replies.push(self.run_one_op(ctx, op).await);
            }
            replies
        })
    }
}

impl fmt::Debug for Ruled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ruled")
    }
}
