//! One connection, seen from its callers: they encode into a shared buffer and wait; the task in `driver` does the rest.
//!
//! # Why a lock, and which
//! Callers of any thread append their bytes and their part in one step, so that the order of the bytes is the order of the
//! parts. The lock is held to encode (and, on an idle connection, for one write that cannot block), never across an await.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use larder_core::{Error, ErrorKind, Op};
use larder_net::is_barren;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::counters::{Counters, count};
use crate::part::{Part, Waiting};
use crate::probe::ServerInfo;
use crate::stream::DirectWriter;
use crate::traffic::Traffic;

/// A buffer that grew over this for one large value is given back when it is empty.
pub(crate) const BUFFER_KEPT_BYTES: usize = 1024 * 1024;

/// A connection that shook hands.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The session of the cas tokens it reads.
    pub(crate) session: u64,
    pub(crate) server: ServerInfo,
    /// When it had shaken hands.
    pub(crate) begun: Instant,
    /// The address at the other end; `None` for a unix socket.
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) limits: QueueLimits,
    pub(crate) counters: Arc<Counters>,
    pub(crate) queue: Mutex<Queue>,
    pub(crate) direct: DirectWriter,
    pub(crate) traffic: Traffic,
}

/// How much may wait on one connection. Over it, ops are refused at once: a queue that blocks hides an overload. What finds nothing
/// that waits is taken whatever it is: it would be refused for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) ops_max: usize,
    pub(crate) bytes_max: usize,
}

/// What callers and the task share. The lock around it protects the order of `out` and `parts`.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Encoded bytes that were not written; they may begin with the rest of a request of which some was.
    pub(crate) out: Vec<u8>,
    /// Where `out` begins in the stream of all bytes of this connection.
    pub(crate) out_start: u64,
    /// Parts that the task has not taken over yet, in the order of their bytes.
    pub(crate) parts: VecDeque<Queued>,
    /// Ops without a reply, those the task has taken over included.
    pub(crate) unanswered_ops: usize,
    /// Bytes the task has taken over and not yet written; while there are some, nobody else may write.
    pub(crate) sending_bytes: usize,
    pub(crate) next_opaque: u32,
    /// The number of the part that was pushed last.
    pub(crate) last_number: u64,
    /// A moment before which no part that was pushed can be overdue.
    pub(crate) first_deadline: Option<Instant>,
    /// The task will look at the queue by itself: no need to wake it.
    pub(crate) woken: bool,
    /// The task's clock runs, so that deadlines are looked at.
    pub(crate) ticking: bool,
    pub(crate) waker: Option<Waker>,
    /// Why the connection ended, once it has.
    pub(crate) closed: Option<Error>,
}

/// A part, its number in the order of this connection, from 1, and where its bytes begin in the stream.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) part: Arc<Part>,
    pub(crate) number: u64,
    pub(crate) begin: u64,
}

/// What became of ops handed to a connection.
pub(crate) struct Enqueued {
    /// The wait for the ops that were taken; `None` if none was.
    pub(crate) waiting: Option<Waiting>,
    /// The ops that cannot be encoded, by their place among those handed over. They were not sent.
    pub(crate) refused: Vec<(usize, Error)>,
}

/// Why a connection took none of the ops.
pub(crate) enum Reject {
    /// It has ended; another may do.
    Closed,
    /// Too much waits on it already.
    Full(Error),
}

impl Conn {
    pub(crate) fn is_closed(&self) -> bool {
        self.traffic.is_closed()
    }

    /// Whether it was of no use.
    pub(crate) fn was_barren(&self) -> bool {
        is_barren(self.begun, self.traffic.has_answered())
    }

    /// True if the op can go this way without looking further: it depends on no token, or on one that was read here.
    pub(crate) fn may_carry(&self, op: &Op) -> bool {
        !self.server.lockstep && op.cas().is_none_or(|cas| cas.session == self.session && cas.token != 0)
    }

    /// Encodes the ops as one part; on an idle connection, also writes it, which saves waking the task.
    pub(crate) fn enqueue<'o>(
        &self,
        ops: impl ExactSizeIterator<Item = &'o Op> + Clone,
        now: Instant,
        deadline: Instant,
    ) -> Result<Enqueued, Reject> {
        let count_ops = ops.len();
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return Err(Reject::Closed);
        }
        self.check_limits(&queue, ops.clone())?;
        let idle = queue.unanswered_ops == 0 && queue.sending_bytes == 0 && queue.out.is_empty();
        let begin = queue.out_start + queue.out.len() as u64;
        let server_now_s = self.server.now_s(now);
        let mut expects = SmallVec::with_capacity(count_ops);
        let mut refused = Vec::new();
        let number = queue.last_number + 1;
        let Queue { out, next_opaque, .. } = &mut *queue;
        for (place, op) in ops.enumerate() {
            match self.server.abilities.encode(op, *next_opaque, server_now_s, out) {
                Ok(expect) => {
                    expects.push(expect);
                    self.traffic.pushes(op, number);
                }
                Err(error) => refused.push((place, error)),
            }
            *next_opaque = next_opaque.wrapping_add(1);
        }
        if expects.is_empty() {
            return Ok(Enqueued { waiting: None, refused });
        }
        count(&self.counters.ops, expects.len() as u64);
        count(&self.counters.round_trips, 1);
        queue.last_number = number;
        queue.unanswered_ops += expects.len();
        self.traffic.set_unanswered(queue.unanswered_ops);
        queue.first_deadline = Some(queue.first_deadline.map_or(deadline, |first| first.min(deadline)));
        let part = Part::new(expects, deadline);
        queue.parts.push_back(Queued { part: part.clone(), number, begin });
        if idle {
            self.write_directly(&mut queue);
        }
        let wake = !queue.woken && (!queue.out.is_empty() || !queue.ticking);
        let waker = if wake {
            queue.woken = true;
            queue.waker.clone()
        } else {
            None
        };
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(Enqueued { waiting: Some(Waiting::new(part)), refused })
    }

    fn check_limits<'o>(&self, queue: &Queue, ops: impl ExactSizeIterator<Item = &'o Op>) -> Result<(), Reject> {
        let QueueLimits { ops_max, bytes_max } = self.limits;
        if queue.unanswered_ops > 0 && queue.unanswered_ops + ops.len() > ops_max {
            return Err(Reject::Full(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{} ops wait for the server; with {} more it would be over the limit queue_ops_max={ops_max}",
                    queue.unanswered_ops,
                    ops.len()
                ),
            )));
        }
        let waiting = queue.out.len() + queue.sending_bytes;
        let more: usize = ops.map(bytes_about).sum();
        if waiting > 0 && waiting + more > bytes_max {
            return Err(Reject::Full(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{waiting} bytes wait to be sent; with {more} more it would be over the limit \
                     queue_bytes_max={bytes_max}"
                ),
            )));
        }
        Ok(())
    }

    /// Hands `out` to the system, as far as it takes it without blocking. Failures are left to the task: it will meet the same.
    fn write_directly(&self, queue: &mut Queue) {
        let Ok(written) = self.direct.try_write(&queue.out) else {
            return;
        };
        count(&self.counters.sent_bytes, written as u64);
        queue.out_start += written as u64;
        if written == queue.out.len() {
            queue.out.clear();
            if queue.out.capacity() > BUFFER_KEPT_BYTES {
                queue.out = Vec::new();
            }
        } else {
            queue.out.drain(..written);
        }
    }
}

/// The bytes of an encoded op, rounded up: the command line is under 512.
fn bytes_about(op: &Op) -> usize {
    op.value_bytes() + op.key.as_bytes().len() + 64
}
