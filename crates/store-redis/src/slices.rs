//! Large batches that only read leave in slices: the server answers one while the next is encoded.
//!
//! A pipeline of thousands of commands is encoded as a whole before its first byte leaves, and the server has nothing to do meanwhile. None of the slices waits for the
//! replies to another, so they are one round trip still. Where writes are among the ops they are not cut: what became of a batch that was cut off is one question, not several.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use larder_core::{Batch, Replies};
use redis::Pipeline;

use crate::RedisStore;
use crate::link::{Fault, Lines, Values};
use crate::replicas::Does;
use crate::store::{Sent, is_no_script, nothing_yet, piped};

/// Ops of a slice. Encoding so many takes as long as some twenty system calls.
pub(crate) const SLICE_OPS: usize = 1024;

/// A slice on its way.
struct Slice<F> {
    sent: Sent,
    exchange: Pin<Box<F>>,
    answered: Option<Result<Values, Fault>>,
}

impl<F: Future<Output = Result<Values, Fault>>> Slice<F> {
    /// Goes on with it as far as that goes without waiting; the time that a task may take of its runtime at once does not count, or it could stop before its commands are handed over.
    async fn go_on(&mut self) {
        if self.answered.is_none() {
            let polled = poll_fn(|cx| Poll::Ready(self.exchange.as_mut().poll(cx)));
            self.answered = match tokio::task::unconstrained(polled).await {
                Poll::Ready(answered) => Some(answered),
                Poll::Pending => None,
            };
        }
    }
}

impl RedisStore {
    /// Runs a batch that only reads. `None` where it must be run as a whole: a slice has met a connection that ended, or a server that has forgotten the scripts. Were that
    /// slice alone asked again, a read in it could be newer than one behind it in the batch; and were a slice answered by the connection that took the place of another's,
    /// by a server that was set back meanwhile, older than one before it.
    pub(crate) async fn run_slices(&self, batch: &Batch, deadline: Instant) -> Option<Replies> {
        let (limits, mut replies) = (self.limits(), nothing_yet(batch.len()));
        let connections = || self.stats().connections;
        let before = connections();
        let mut under_way: Vec<Slice<_>> = Vec::with_capacity(batch.len().div_ceil(SLICE_OPS));
        let mut is_begun = false;
        for (ops, replies) in batch.chunks(SLICE_OPS).zip(replies.chunks_mut(SLICE_OPS)) {
            let mut sent = self.commands(ops, limits, replies);
            let pipeline = piped(&mut sent);
            let is_first = !is_begun && !pipeline.is_empty();
            is_begun |= is_first;
            let exchange = Box::pin(self.exchange(pipeline, is_first, deadline));
            under_way.push(Slice { sent, exchange, answered: None });
            // They hand their commands over in the order of the slices, also where the connection was full; its task sends them while this one lets others go first.
            for slice in &mut under_way {
                slice.go_on().await;
            }
            tokio::task::yield_now().await;
        }
        let slices = batch.chunks(SLICE_OPS).zip(replies.chunks_mut(SLICE_OPS)).zip(under_way);
        for ((ops, replies), Slice { sent, exchange, answered }) in slices {
            let answered = match answered {
                Some(answered) => answered,
                None => exchange.await,
            };
            match answered {
                Ok(values) if values.iter().any(is_no_script) => return None,
                Ok(values) => {
                    sent.iter().zip(values).for_each(|(sent, value)| self.settle(sent, Ok(value), ops, replies));
                }
                Err(fault) if fault.is_cut() => return None,
                Err(fault) => sent.iter().for_each(|sent| self.settle(sent, Err(fault.clone()), ops, replies)),
            }
        }
        (connections() == before).then_some(replies)
    }

    async fn exchange(&self, pipeline: Pipeline, is_first: bool, deadline: Instant) -> Result<Values, Fault> {
        if pipeline.is_empty() {
            return Ok(Values::new());
        }
        let lines = if is_first { Lines::All(&pipeline) } else { Lines::Rest(&pipeline) };
        self.node().run(lines, Does::Reads, deadline).await
    }
}
