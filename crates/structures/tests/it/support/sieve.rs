//! A store that looks at every op, answers some of them itself, and says of itself what a test wants.

use std::fmt;
use std::sync::Arc;

use larder_core::{Batch, Ctx, Op, Profile, Replies, Reply, Result, Run, Store, StoreRef};

type Answer = Box<dyn Fn(&Ctx, &Op) -> Option<Result<Reply>> + Send + Sync>;

/// Passes on what it does not answer.
pub(crate) struct Sieve {
    inner: StoreRef,
    profile: Arc<Profile>,
    answer: Answer,
}

impl Sieve {
    /// A store of this profile; what `answer` has a reply to is not sent.
    pub(crate) fn of(
        inner: &StoreRef,
        profile: Profile,
        answer: impl Fn(&Ctx, &Op) -> Option<Result<Reply>> + Send + Sync + 'static,
    ) -> StoreRef {
        Arc::new(Sieve { inner: inner.clone(), profile: Arc::new(profile), answer: Box::new(answer) })
    }

    /// The same with the profile of the store behind.
    pub(crate) fn answering(
        inner: &StoreRef,
        answer: impl Fn(&Ctx, &Op) -> Option<Result<Reply>> + Send + Sync + 'static,
    ) -> StoreRef {
        Sieve::of(inner, (*inner.profile()).clone(), answer)
    }
}

impl Store for Sieve {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let answers: Vec<Option<Result<Reply>>> = batch.iter().map(|op| (self.answer)(&ctx, op)).collect();
        Run::pending(async move {
            let rest: Batch =
                batch.into_iter().zip(&answers).filter(|(_, answer)| answer.is_none()).map(|(op, _)| op).collect();
            let mut replies =
                if rest.is_empty() { Replies::new() } else { self.inner.run(ctx, rest).await }.into_iter();
            answers.into_iter().filter_map(|answer| answer.or_else(|| replies.next())).collect()
        })
    }
}

impl fmt::Debug for Sieve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sieve")
    }
}
