//! What a round tells its writers, once its batch is written or has failed.

use std::sync::Arc;

use larder_core::{Batch, Effect, Error, Op, Replies, Reply, Result};
use tokio::sync::oneshot;

use crate::fault::{Fault, Harm};

/// An answer that waits for the round's batch.
pub(crate) enum Answer {
    Run { replies: Replies, batch: Arc<Batch>, reply: oneshot::Sender<Replies> },
    Alter { done: Result<()>, reply: oneshot::Sender<Result<()>> },
    Reclaim { done: Result<u64>, reply: oneshot::Sender<Result<u64>> },
    Sync { reply: oneshot::Sender<Result<()>> },
}

impl Answer {
    /// Tells the outcome. What was answered of a round whose batch failed rests on writes that may not be there.
    pub(crate) fn send(self, done: &Result<(), Fault>, store: &str) {
        match (self, done) {
            (Answer::Run { replies, reply, .. }, Ok(())) => _ = reply.send(replies),
            (Answer::Run { replies, batch, reply }, Err(fault)) => {
                let fail =
                    |(done, op): (Result<Reply>, &Op)| done.and_then(|_| Err(failed(fault, store, !op.is_read())));
                _ = reply.send(replies.into_iter().zip(batch.iter()).map(fail).collect());
            }
            (Answer::Alter { done: altered, reply }, done) => {
                _ = reply
                    .send(altered.and_then(|()| done.as_ref().copied().map_err(|fault| failed(fault, store, true))));
            }
            (Answer::Reclaim { done: reclaimed, reply }, done) => {
                let checked = done.as_ref().map_err(|fault| failed(fault, store, true));
                _ = reply.send(reclaimed.and_then(|removed| checked.map(|()| removed)));
            }
            (Answer::Sync { reply }, done) => {
                _ = reply.send(done.as_ref().copied().map_err(|fault| failed(fault, store, true)));
            }
        }
    }
}

fn failed(fault: &Fault, store: &str, is_write: bool) -> Error {
    let effect = if is_write { Effect::Unknown } else { Effect::NotApplied };
    let fault =
        Fault { harm: if fault.harm == Harm::Corrupt { Harm::Unavailable } else { fault.harm }, ..fault.clone() };
    fault.error(store).effect(effect)
}
