//! A store for the tests of this crate: it remembers what it was asked, and answers what the test has put in line.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, Item, Key, Op, Profile, Replies, Reply, Result, Run, Store, Verb, Want,
};
use parking_lot::Mutex;

/// Answers gets with a value and puts with `Stored`, unless told otherwise.
#[derive(Debug, Default)]
pub(crate) struct Fake {
    asked: Mutex<Vec<(Ctx, Batch)>>,
    script: Mutex<VecDeque<Vec<Result<Reply>>>>,
    /// Answers come after this time; `None`: at once, without a future.
    pub(crate) delay: Option<Duration>,
}

impl Fake {
    pub(crate) fn slow(delay: Duration) -> Arc<Fake> {
        Arc::new(Fake { delay: Some(delay), ..Fake::default() })
    }

    /// Puts the answers to the next batch in line.
    pub(crate) fn will_answer(&self, replies: impl IntoIterator<Item = Result<Reply>>) {
        self.script.lock().push_back(replies.into_iter().collect());
    }

    /// What was asked since the last call.
    pub(crate) fn take_asked(&self) -> Vec<(Ctx, Batch)> {
        std::mem::take(&mut *self.asked.lock())
    }
}

pub(crate) fn fault(kind: ErrorKind, effect: Effect) -> Result<Reply> {
    Err(Error::new(kind, "as the test wants").effect(effect))
}

pub(crate) fn down() -> Result<Reply> {
    fault(ErrorKind::Unavailable, Effect::NotApplied)
}

pub(crate) fn key(name: &'static str) -> Key {
    Key::new(name).unwrap()
}

pub(crate) fn get(name: &'static str) -> Op {
    Op::get(key(name), Want::VALUE)
}

/// What a batch comes to that is awaited where there is no Tokio runtime. Nothing there wakes anybody, so it is asked once.
pub(crate) fn outside_a_runtime(run: Run<'_>) -> Replies {
    assert!(tokio::runtime::Handle::try_current().is_err());
    match pin!(run).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(replies) => replies,
        Poll::Pending => panic!("it waits for something"),
    }
}

impl Store for Fake {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { batch_ops_max: 77, ..Profile::unlimited("fake") })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let usual = batch.iter().map(|op| match op.verb {
            Verb::Get { .. } => Ok(Reply::Item(Item { value: op.key.clone().into_bytes(), ..Item::default() })),
            _ => Ok(Reply::Stored),
        });
        let replies: Replies = match self.script.lock().pop_front() {
            Some(scripted) => scripted.into_iter().collect(),
            None => usual.collect(),
        };
        self.asked.lock().push((ctx, batch));
        match self.delay {
            None => Run::Ready(replies),
            Some(delay) => Run::pending(async move {
                tokio::time::sleep(delay).await;
                replies
            }),
        }
    }
}
