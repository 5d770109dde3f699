//! The task of one connection: it alone reads, and writes whatever callers could not write themselves.
//!
//! Writes are coalesced without a timer: when callers wake the task it lets every task that is ready to run go first, then
//! writes all they have left. Replies are matched in order; the opaque number or key in each proves that nothing slipped.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use larder_core::{Error, ErrorKind, Replies, Result};
use larder_proto::{Answer, Decoder};
use tokio::time::Sleep;

use crate::conn::{BUFFER_KEPT_BYTES, Conn, Queue, Queued};
use crate::counters::count;
use crate::part::{Cut, Outcome, Part};
use crate::stream::TaskStream;

/// How often deadlines are looked at while something is unanswered.
const TICK: Duration = Duration::from_millis(10);
/// How many ticks without a new op stop the clock. Stopping it at the first would have the next op start it again, which
/// costs more than the ticks do.
const IDLE_TICKS_MAX: u32 = 100;
/// For how many times as long as a server may be silent the oldest part may be overdue, and no reply complete: its bytes may come, but too slowly to be of use.
const STALLS_OVERDUE_MAX: u32 = 4;
/// Reads in a row after which the clock is looked at, though there is more to be read.
const READS_IN_A_ROW: u32 = 16;
/// How much is asked of the system in one read, at the least.
const READ_BYTES: usize = 64 * 1024;

/// The task's side of a connection.
pub(crate) struct Driver {
    conn: Arc<Conn>,
    stream: TaskStream,
    decoder: Decoder,
    received: BytesMut,
    /// Bytes taken over from the queue, and how many of them were written.
    sending: Vec<u8>,
    sent: usize,
    /// Where `sending` begins in the stream.
    sending_start: u64,
    flush: bool,
    /// Parts whose bytes were taken over, oldest first.
    inflight: VecDeque<Queued>,
    /// The replies of the oldest part so far, and how many came (more, if the part had ended before, or nobody waits for it).
    front: Replies,
    front_is_awaited: bool,
    front_answered: usize,
    /// The number of the last part whose last reply has come.
    last_answered: u64,
    /// Parts whose last reply has come, until their callers are woken.
    finished: Vec<(Arc<Part>, Replies)>,
    first_deadline: Option<Instant>,
    tick: Pin<Box<Sleep>>,
    ticking: bool,
    /// Reads since the clock was looked at.
    reads: u32,
    /// Ticks in a row that found no op since the one before, and the number that tells.
    idle_ticks: u32,
    seen_opaque: u32,
    /// Since when the server owes an answer and has sent no byte.
    quiet_since: Option<Instant>,
    /// Since when it owes one and has completed none.
    owes_since: Option<Instant>,
    stall: Duration,
    /// What the callers are told if the task ends.
    cause: Error,
}

enum Event {
    Received(usize),
    Woken,
    Written(usize),
    Tick,
}

impl Driver {
    pub(crate) fn new(conn: Arc<Conn>, stream: TaskStream, stall: Duration) -> Driver {
        let decoder = Decoder { session: conn.session, value_bytes_max: conn.server.abilities.item_bytes_max };
        Driver {
            conn,
            stream,
            decoder,
            received: BytesMut::with_capacity(READ_BYTES),
            sending: Vec::new(),
            sent: 0,
            sending_start: 0,
            flush: false,
            inflight: VecDeque::new(),
            front: Replies::new(),
            front_is_awaited: true,
            front_answered: 0,
            last_answered: 0,
            finished: Vec::new(),
            first_deadline: None,
            tick: Box::pin(tokio::time::sleep(Duration::ZERO)),
            ticking: false,
            reads: 0,
            idle_ticks: 0,
            seen_opaque: 0,
            quiet_since: None,
            owes_since: None,
            stall,
            cause: Error::new(ErrorKind::Unavailable, "the store was closed"),
        }
    }

    /// Runs until the connection ends.
    pub(crate) async fn run(mut self) {
        self.conn.traffic.runs_here();
        loop {
            let turn = match poll_fn(|cx| self.poll_event(cx)).await {
                Ok(Event::Received(bytes)) => self.on_received(bytes),
                Ok(Event::Woken) => {
                    // Let everyone who is ready to run append first: one write for all of them.
                    tokio::task::yield_now().await;
                    self.take_out();
                    Ok(())
                }
                Ok(Event::Written(bytes)) => {
                    // The server cannot answer a request before it has it whole.
                    if self.was_oldest_under_way(bytes) {
                        self.quiet_since = None;
                    }
                    self.on_written();
                    Ok(())
                }
                Ok(Event::Tick) => self.on_tick(),
                Err(error) => Err(lost(&error)),
            };
            if let Err(cause) = turn {
                if cause.kind() != ErrorKind::Unavailable {
                    count(&self.conn.counters.poisoned, 1);
                }
                self.cause = cause;
                return; // dropping tells the callers
            }
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Event>> {
        // Where bytes come as fast as they are read nothing below that would be come to, and no deadline looked at.
        if self.reads >= READS_IN_A_ROW && self.poll_tick(cx) {
            return Poll::Ready(Ok(Event::Tick));
        }
        if self.received.capacity() - self.received.len() < READ_BYTES / 4 {
            self.received.reserve(READ_BYTES);
        }
        match self.stream.poll_read(cx, &mut self.received) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            Poll::Ready(Ok(bytes)) => {
                self.reads += 1;
                return Poll::Ready(Ok(Event::Received(bytes)));
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {}
        }
        if self.sent < self.sending.len() {
            let unsent = &self.sending[self.sent..];
            match self.stream.poll_write(&self.conn.direct, cx, unsent) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(bytes)) => {
                    count(&self.conn.counters.sent_bytes, bytes as u64);
                    self.sent += bytes;
                    self.flush = true;
                    return Poll::Ready(Ok(Event::Written(bytes)));
                }
                Poll::Ready(Err(error)) => {
                    if self.stream.may_have_written_before_it_failed() {
                        self.sent = self.sending.len();
                    }
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => {}
            }
        } else if self.flush {
            match self.stream.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.flush = false,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        if self.poll_tick(cx) {
            return Poll::Ready(Ok(Event::Tick));
        }
        let mut queue = self.conn.queue.lock();
        if queue.woken {
            return Poll::Ready(Ok(Event::Woken));
        }
        if !queue.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            queue.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn poll_tick(&mut self, cx: &mut Context<'_>) -> bool {
        self.reads = 0;
        self.ticking && self.tick.as_mut().poll(cx).is_ready()
    }

    /// Takes over what callers have left, unless an earlier write is under way, and starts the clock.
    fn take_out(&mut self) {
        let conn = self.conn.clone();
        let mut queue = conn.queue.lock();
        queue.woken = false;
        self.take_parts(&mut queue);
        let lockstep = conn.server.lockstep;
        let may_write = self.sending.is_empty() && (!lockstep || self.inflight.is_empty());
        if may_write && !queue.out.is_empty() {
            match queue.parts.get(1) {
                // One part at a time: up to where the next begins.
                Some(next) if lockstep => {
                    let bytes = (next.begin - queue.out_start) as usize;
                    self.sending.extend(queue.out.drain(..bytes));
                }
                _ => std::mem::swap(&mut self.sending, &mut queue.out),
            }
            self.sending_start = queue.out_start;
            queue.out_start += self.sending.len() as u64;
            queue.sending_bytes = self.sending.len();
            self.take_parts(&mut queue);
        }
        if queue.unanswered_ops > 0 && !queue.ticking {
            queue.ticking = true;
            self.ticking = true;
            self.tick.as_mut().reset(tokio::time::Instant::now() + TICK);
        }
    }

    /// Takes over the parts that have been written, in part at least, or are about to be.
    fn take_parts(&mut self, queue: &mut Queue) {
        if queue.out.is_empty() {
            self.inflight.append(&mut queue.parts);
            return;
        }
        let begun = queue.parts.partition_point(|queued| queued.begin < queue.out_start);
        self.inflight.extend(queue.parts.drain(..begun));
    }

    /// True if of the oldest part that waits for an answer not all was written before the last so many bytes were.
    fn was_oldest_under_way(&self, written: usize) -> bool {
        let end = self.inflight.get(1).map_or(self.sending_start + self.sending.len() as u64, |next| next.begin);
        !self.inflight.is_empty() && end > self.sending_start + (self.sent - written) as u64
    }

    fn on_written(&mut self) {
        if self.sent < self.sending.len() {
            return;
        }
        self.sending.clear();
        self.sent = 0;
        if self.sending.capacity() > BUFFER_KEPT_BYTES {
            self.sending = Vec::new();
        }
        let more = {
            let mut queue = self.conn.queue.lock();
            queue.sending_bytes = 0;
            !queue.out.is_empty()
        };
        if more {
            self.take_out();
        }
    }

    /// How much of the stream the system has taken, or may have.
    fn written(&self, queue: &Queue) -> u64 {
        if self.sending.is_empty() { queue.out_start } else { self.sending_start + self.sent as u64 }
    }

    fn on_received(&mut self, bytes: usize) -> Result<()> {
        count(&self.conn.counters.received_bytes, bytes as u64);
        let conn = self.conn.clone();
        conn.traffic.runs_here();
        let written = {
            let mut queue = conn.queue.lock();
            self.take_parts(&mut queue);
            self.written(&queue)
        };
        let mut answered = 0;
        let parsed = self.parse(written, &mut answered);
        self.quiet_since = None;
        if answered > 0 {
            self.owes_since = None;
        }
        {
            let mut queue = conn.queue.lock();
            queue.unanswered_ops -= answered;
            conn.traffic.set_unanswered(queue.unanswered_ops);
        }
        conn.traffic.answered(self.last_answered);
        for (part, replies) in self.finished.drain(..) {
            wake(part.finish(Outcome { replies, cut: None }));
        }
        if conn.server.lockstep && self.inflight.is_empty() {
            self.take_out();
        }
        parsed
    }

    /// Of a part that is answered in part, and that nobody waits for any more, no reply is kept: its last one may be long in coming.
    fn forget_unawaited(&mut self) {
        if self.front_answered == 0 || !self.front_is_awaited {
            return;
        }
        if self.inflight.front().is_some_and(|queued| !queued.part.is_waiting()) {
            self.front = Replies::new();
            self.front_is_awaited = false;
        }
    }

    /// Parses all replies that are complete.
    fn parse(&mut self, written: u64, answered: &mut usize) -> Result<()> {
        self.forget_unawaited();
        while !self.received.is_empty() {
            let Some(queued) = self.inflight.front().filter(|queued| queued.begin < written) else {
                let bytes = larder_core::text::Shown(&self.received).to_string();
                return Err(Error::new(ErrorKind::Protocol, format!("the server sent what nobody asked for: {bytes}")));
            };
            let Some(expect) = queued.part.expects.get(self.front_answered) else {
                return Err(Error::new(ErrorKind::Protocol, "the server sent more replies than it got ops"));
            };
            let answer = self.decoder.decode(&mut self.received, expect);
            let Some(answer) = answer.map_err(|error| Error::new(ErrorKind::Protocol, error.to_string()))? else {
                return Ok(());
            };
            *answered += 1;
            self.front_answered += 1;
            let mut poison = None;
            let reply = match answer {
                Answer::Reply(reply) => Ok(reply),
                Answer::Refused { error, in_step } => {
                    if !in_step {
                        poison = Some(Error::new(ErrorKind::Protocol, format!("lost step: {}", error.detail())));
                    }
                    Err(error)
                }
            };
            if self.front_is_awaited {
                self.front.push(reply);
            }
            if self.front_answered == queued.part.expects.len() {
                self.front_answered = 0;
                self.front_is_awaited = true;
                let replies = std::mem::take(&mut self.front);
                if let Some(queued) = self.inflight.pop_front() {
                    self.last_answered = queued.number;
                    self.finished.push((queued.part, replies));
                }
            }
            if let Some(poison) = poison {
                return Err(poison);
            }
        }
        Ok(())
    }

    fn on_tick(&mut self) -> Result<()> {
        let now = Instant::now();
        let conn = self.conn.clone();
        let mut wakers = Vec::new();
        let owed = {
            let mut queue = conn.queue.lock();
            self.take_parts(&mut queue);
            let first = self.first_deadline.into_iter().chain(queue.first_deadline.take()).min();
            self.first_deadline = first;
            if first.is_some_and(|first| first <= now) {
                self.end_overdue(&mut queue, now, &mut wakers);
            }
            let idle = queue.unanswered_ops == 0 && queue.next_opaque == self.seen_opaque;
            self.idle_ticks = if idle { self.idle_ticks + 1 } else { 0 };
            self.seen_opaque = queue.next_opaque;
            if self.idle_ticks > IDLE_TICKS_MAX {
                queue.ticking = false;
                self.ticking = false;
                self.idle_ticks = 0;
            } else {
                self.tick.as_mut().reset(tokio::time::Instant::now() + TICK);
            }
            queue.unanswered_ops > 0
        };
        wakers.into_iter().for_each(Waker::wake);
        if !owed {
            (self.quiet_since, self.owes_since) = (None, None);
            return Ok(());
        }
        self.check_progress(now)
    }

    /// Gives up a server that owes replies and is silent, or so slow that nobody waits for them any more.
    fn check_progress(&mut self, now: Instant) -> Result<()> {
        let timeout = |detail: String| Err(Error::new(ErrorKind::Timeout, detail));
        let quiet_since = *self.quiet_since.get_or_insert(now);
        if now.duration_since(quiet_since) >= self.stall {
            return timeout(format!("the server sent nothing for {} ms and owes replies", self.stall.as_millis()));
        }
        let owes_since = *self.owes_since.get_or_insert(now);
        let Some(oldest) = self.inflight.front() else { return Ok(()) };
        let limit = self.stall * STALLS_OVERDUE_MAX;
        if now.saturating_duration_since(oldest.part.deadline.max(owes_since)) >= limit {
            return timeout(format!("a reply that nobody waits for was not complete after {} ms", limit.as_millis()));
        }
        Ok(())
    }

    /// Ends the parts whose deadline has passed. Those that nobody has begun to write are taken out of the queue; the others
    /// keep their place, so that their replies, should they come, are not taken for another's.
    fn end_overdue(&mut self, queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) {
        let mut next: Option<Instant> = None;
        let mut timeouts = 0;
        for (place, queued) in self.inflight.iter().enumerate() {
            if queued.part.deadline > now {
                next = Some(next.map_or(queued.part.deadline, |next| next.min(queued.part.deadline)));
                continue;
            }
            self.conn.traffic.overdue(queued.number);
            if queued.part.is_waiting() {
                let replies = if place == 0 { std::mem::take(&mut self.front) } else { Replies::new() };
                timeouts += queued.part.expects.len() - replies.len();
                let outcome = Outcome { replies, cut: Some(Cut::TimedOut { sent: true }) };
                wakers.extend(queued.part.finish(outcome));
            }
        }
        let overdue = queue.parts.iter().any(|queued| queued.part.deadline <= now);
        if overdue {
            timeouts += remove_unsent(queue, now, wakers);
            self.conn.traffic.set_unanswered(queue.unanswered_ops);
        }
        for queued in &queue.parts {
            next = Some(next.map_or(queued.part.deadline, |next| next.min(queued.part.deadline)));
        }
        self.first_deadline = next;
        count(&self.conn.counters.timeouts, timeouts as u64);
    }
}

/// Takes overdue parts, with their bytes, out of a queue. What is left to write of a part that was begun, and is none of the queue's any more, stays before them.
fn remove_unsent(queue: &mut Queue, now: Instant, wakers: &mut Vec<Waker>) -> usize {
    let mut removed = 0;
    let parts = std::mem::take(&mut queue.parts);
    let out = std::mem::take(&mut queue.out);
    let first = parts.front().map_or(queue.out_start, |queued| queued.begin);
    queue.out.extend_from_slice(&out[..(first - queue.out_start) as usize]);
    let mut ends: VecDeque<u64> = parts.iter().skip(1).map(|queued| queued.begin).collect();
    ends.push_back(queue.out_start + out.len() as u64);
    for (queued, end) in parts.into_iter().zip(ends) {
        if queued.part.deadline <= now {
            removed += queued.part.expects.len();
            let outcome = Outcome { replies: Replies::new(), cut: Some(Cut::TimedOut { sent: false }) };
            wakers.extend(queued.part.finish(outcome));
            continue;
        }
        let bytes = (queued.begin - queue.out_start) as usize..(end - queue.out_start) as usize;
        let begin = queue.out_start + queue.out.len() as u64;
        queue.out.extend_from_slice(&out[bytes]);
        queue.parts.push_back(Queued { begin, ..queued });
    }
    queue.unanswered_ops -= removed;
    removed
}

/// However the task ends, an end of the runtime included, every caller is told, and told honestly.
impl Drop for Driver {
    fn drop(&mut self) {
        let conn = self.conn.clone();
        let (written, unsent) = {
            let mut queue = conn.queue.lock();
            queue.closed = Some(self.cause.clone());
            conn.traffic.close();
            let written = self.written(&queue);
            queue.out = Vec::new();
            queue.waker = None;
            queue.unanswered_ops = 0;
            (written, std::mem::take(&mut queue.parts))
        };
        self.inflight.extend(unsent);
        for queued in self.inflight.drain(..) {
            let cut = Cut::Closed { sent: queued.begin < written, cause: self.cause.clone() };
            wake(queued.part.finish(Outcome { replies: std::mem::take(&mut self.front), cut: Some(cut) }));
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

fn lost(error: &io::Error) -> Error {
    let detail = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        _ => format!("the connection was lost: {error}"),
    };
    Error::new(ErrorKind::Unavailable, detail)
}

#[cfg(test)]
mod tests {
    use larder_core::Op;
    use smallvec::SmallVec;

    use super::*;

    const NOW_AND_LATER: [Duration; 2] = [Duration::ZERO, Duration::from_secs(60)];

    /// A part whose bytes begin there; overdue at once, or after a while.
    fn queued(begin: u64, now: Instant, is_overdue: bool) -> Queued {
        let deadline = now + NOW_AND_LATER[usize::from(!is_overdue)];
        let abilities = larder_proto::Abilities::of(larder_proto::Dialect::Meta);
        let get = Op::get(larder_core::Key::new("k").unwrap(), larder_core::Want::VALUE);
        let expect = abilities.encode(&get, 1, 0, &mut Vec::new()).unwrap();
        Queued { part: Part::new(SmallVec::from_iter([expect]), deadline), number: 1, begin }
    }

    /// A caller wrote directly as much as the system took; the rest of it stands before what came since.
    #[test]
    fn the_rest_of_a_request_that_was_begun_stays_where_those_behind_it_are_taken_back() {
        let now = Instant::now();
        // The rest of the first, b, c and d: of these, who is overdue, and what is left.
        for (overdue, left) in [
            ([true, true, true], &b"lo\r\n"[..]),
            ([true, false, true], b"lo\r\nget c\r\n"),
            ([false, true, false], b"lo\r\nget b\r\nget d\r\n"),
        ] {
            let parts = (0..3).map(|at| queued(14 + 7 * at as u64, now, overdue[at])).collect();
            let out = b"lo\r\nget b\r\nget c\r\nget d\r\n".to_vec();
            let mut queue = Queue { out, out_start: 10, parts, unanswered_ops: 4, ..Queue::default() };
            let removed = remove_unsent(&mut queue, now, &mut Vec::new());
            assert_eq!(removed, overdue.iter().filter(|&&is| is).count());
            assert_eq!((queue.out.as_slice(), queue.unanswered_ops), (left, 4 - removed));
            let begins: Vec<u64> = queue.parts.iter().map(|queued| queued.begin).collect();
            assert_eq!(begins, [14, 21, 28][..3 - removed]);
        }
    }
}
