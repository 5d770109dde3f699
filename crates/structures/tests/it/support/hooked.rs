//! A store on which a test decides what becomes of chosen batches.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Profile, Replies, Run, Store, StoreRef};

use crate::support::steady::steady;

type Hook = Box<dyn FnOnce(StoreRef, Batch) -> Pin<Box<dyn Future<Output = Replies> + Send>> + Send>;

/// A store that runs a hook instead of the nth batch.
pub(crate) struct Hooked {
    inner: StoreRef,
    batch_ops_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    batches: u64,
    hooks: HashMap<u64, Hook>,
}

impl Hooked {
    pub(crate) fn new(inner: &StoreRef) -> Arc<Hooked> {
        Hooked::with_batches_of(inner, usize::MAX)
    }

    /// One that takes so many ops in a batch.
    pub(crate) fn with_batches_of(inner: &StoreRef, ops_max: usize) -> Arc<Hooked> {
        steady();
        Arc::new(Hooked { inner: inner.clone(), batch_ops_max: ops_max, state: Mutex::default() })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// Instead of the nth batch from now (1 is the next one), does this with the store behind.
    pub(crate) fn at<F>(&self, nth: u64, hook: impl FnOnce(StoreRef, Batch) -> F + Send + 'static)
    where
        F: Future<Output = Replies> + Send + 'static,
    {
        let mut state = self.state.lock().unwrap();
        let at = state.batches + nth;
        state.hooks.insert(at, Box::new(move |store, batch| Box::pin(hook(store, batch))));
    }

    /// The nth batch from now is not sent, and its caller knows.
    pub(crate) fn refuse(&self, nth: u64) {
        self.at(nth, |_, batch| async move { fail(&batch, Effect::NotApplied) });
    }

    /// The nth batch from now takes effect, and its replies are lost.
    pub(crate) fn lose_replies(&self, nth: u64) {
        self.at(nth, |store, batch| async move {
            _ = store.run(Ctx::default(), batch.clone()).await;
            fail(&batch, Effect::Unknown)
        });
    }
}

/// An error for every op; reads have no effect to be in doubt of.
pub(crate) fn fail(batch: &Batch, effect: Effect) -> Replies {
    let error = |op: &larder_core::Op| {
        let effect = if op.is_read() { Effect::NotApplied } else { effect };
        Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(effect))
    };
    batch.iter().map(error).collect()
}

impl Store for Hooked {
    fn profile(&self) -> Arc<Profile> {
        let profile = self.inner.profile();
        let batch_ops_max = profile.batch_ops_max.min(self.batch_ops_max);
        Arc::new(Profile { batch_ops_max, ..(*profile).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let hook = {
            let mut state = self.state.lock().unwrap();
            state.batches += 1;
            let at = state.batches;
            state.hooks.remove(&at)
        };
        assert!(batch.len() <= self.batch_ops_max, "{} ops in a batch", batch.len());
        match hook {
            Some(hook) => Run::pending(hook(self.inner.clone(), batch)),
            None => self.inner.run(ctx, batch),
        }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

/// Runs a call of a client that dies at its nth batch from now, which is not sent.
pub(crate) async fn dies_at<T>(hooked: &Arc<Hooked>, nth: u64, call: impl Future<Output = larder_core::Result<T>>) {
    let died = Arc::new(tokio::sync::Notify::new());
    let dies = died.clone();
    hooked.at(nth, move |_, _| async move {
        dies.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        _ = call => panic!("it came to an end before batch {nth}"),
        () = died.notified() => {}
    }
}
