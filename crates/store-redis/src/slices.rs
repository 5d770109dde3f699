//! Large batches that only read leave in slices: the server answers one while the next is encoded.
//!
//! A pipeline of thousands of commands is encoded as a whole before its first byte leaves, and the server has nothing to do meanwhile. None of the slices waits for the
//! replies to another, so they are one round trip still. Where writes are among the ops they are not cut: what became of a batch that was cut off is one question, not several.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Instant;

use larder_core::{Batch, Replies};

use crate::RedisStore;
use crate::link::{Fault, Lines, Values};
use crate::replicas::Does;
use crate::store::{Packed, Sent, is_no_script, nothing_yet};

/// Ops of a slice. Encoding so many takes as long as some twenty system calls.
pub(crate) const SLICE_OPS: usize = 1024;

/// A slice on its way.
struct Slice<F> {
    sent: Sent,
    exchange: Pin<Box<F>>,
    answered: Option<Result<Values, Fault>>,
}

impl RedisStore {
    /// Runs a batch that only reads. `None` where it must be run as a whole: a slice has met a connection that ended, or a server that has forgotten the scripts. Were that
    /// slice alone asked again, a read in it could be newer than one behind it in the batch; and were a slice answered by the connection that took the place of another's,
    /// by a server that was set back meanwhile, older than one before it.
    pub(crate) async fn run_slices(&self, batch: &Batch, deadline: Instant) -> Option<Replies> {
        let (limits, mut replies) = (self.limits(), nothing_yet(batch.len()));
        let connections = || self.stats().connections;
        let before = connections();
        let mut under_way = Vec::with_capacity(batch.len().div_ceil(SLICE_OPS));
        for (ops, replies) in batch.chunks(SLICE_OPS).zip(replies.chunks_mut(SLICE_OPS)) {
            let mut sent = self.commands(ops, limits, replies);
            let is_first = under_way.is_empty();
            let mut exchange = Box::pin(self.exchange(Packed::of(&mut sent), is_first, deadline));
            // Polled once, it has handed its commands over, in the order of the slices; the connection's task sends them while this one lets others go first.
            let answered = match poll_fn(|cx| Poll::Ready(exchange.as_mut().poll(cx))).await {
                Poll::Ready(answered) => Some(answered),
                Poll::Pending => None,
            };
            under_way.push(Slice { sent, exchange, answered });
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

    async fn exchange(&self, packed: Packed, is_first: bool, deadline: Instant) -> Result<Values, Fault> {
        let lines = match &packed {
            Packed::Many(pipeline) if !is_first => Lines::Rest(pipeline),
            packed => packed.lines(),
        };
        if packed.is_empty() { Ok(Values::new()) } else { self.node().run(lines, Does::Reads, deadline).await }
    }
}
