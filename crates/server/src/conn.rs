//! A connection: reads when there is something, answers a batch with one write, and holds nothing while it waits.
//!
//! Bytes are read into a buffer of the thread, and replies gathered in another; only what is not finished, a request without its end or a
//! reply that the client does not take, is moved to the connection. So 10,000 idle connections hold no buffers at all.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio_util::io::poll_read_buf;

use crate::conns::{ConnState, Phase};
use crate::counters::Count;
use crate::engine::Engine;
use crate::env::Env;
use crate::session::{Dump, Session};

/// What is read at once.
const READ_BYTES: usize = 64 << 10;
/// A buffer for replies that has grown beyond this is not kept by its thread.
const OUT_BYTES_KEPT: usize = 512 << 10;
/// A connection may hold so much however full the others are.
const HELD_BYTES_FREE: usize = 4 << 10;
/// Who holds more than that of half a request gets on with it if so much comes, or its end.
const PROGRESS_BYTES_MIN: usize = 4 << 10;

thread_local! {
    /// The buffers of this thread: what is read, and where replies are gathered.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = RefCell::new((vec![0; READ_BYTES], Vec::new()));
}

pub(crate) struct Connection<E: Engine, S> {
    env: Arc<Env<E>>,
    state: Arc<ConnState>,
    stream: S,
    session: Session,
    /// A request that is not all there, or requests that wait until replies were taken.
    pending: BytesMut,
    /// What was taken from the front of that, and is still in memory.
    consumed: usize,
    /// Others had their turn since there is something to wait for.
    has_yielded: bool,
    /// The next part of a listing, from a thread that may wait for the disk: what remains then, and its bytes.
    walking: Option<JoinHandle<(Option<Dump>, Vec<u8>)>>,
    /// How much of the replies was sent.
    sent: usize,
    /// True while the stream may hold back some of that.
    is_unflushed: bool,
    /// What is counted of this connection in the bytes that all hold, and in those of all that wait for the disk.
    held: usize,
    unsettled: usize,
    /// True if it holds half a request, and more than any may.
    is_hoarding: bool,
    /// What has come since it was last seen to get on with that.
    progress: usize,
}

impl<E: Engine, S: AsyncRead + AsyncWrite + Unpin> Connection<E, S> {
    pub(crate) fn new(env: Arc<Env<E>>, state: Arc<ConnState>, stream: S) -> Connection<E, S> {
        let session = Session::new(env.files.ask_who());
        let pending = BytesMut::new();
        Connection {
            env,
            state,
            stream,
            session,
            pending,
            consumed: 0,
            has_yielded: false,
            walking: None,
            sent: 0,
            is_unflushed: false,
            held: 0,
            unsettled: 0,
            is_hoarding: false,
            progress: 0,
        }
    }

    /// Waits until what the replies say is durable. Where it cannot be, they are not sent, and the connection ends: the outcome is unknown.
    fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if self.session.waits_for > 0 {
            self.state.set_phase(Phase::Waiting);
            // Who asks has what was written so far made durable: what others have sent meanwhile is to go with it.
            if !std::mem::replace(&mut self.has_yielded, true) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.env.engine.poll_settled(self.session.waits_for, cx)).map_err(std::io::Error::other)?;
            self.session.settled(&self.env);
            self.has_yielded = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what there is to send.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(self.poll_settled(cx))?;
        while self.sent < self.session.out.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.session.out[self.sent..])? {
                Poll::Ready(0) => return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into())),
                Poll::Ready(bytes) => {
                    self.sent += bytes;
                    self.is_unflushed = true;
                    self.env.counters.mine().add(Count::BytesWritten, bytes as u64);
                    self.touch();
                }
                Poll::Pending => {
                    self.state.set_phase(Phase::Writing);
                    return Poll::Pending;
                }
            }
        }
        // Sent, or taken to answer into where nothing was to be answered yet: who has sent half a line keeps no buffer of the thread's.
        if self.session.out.capacity() > 0 {
            self.give_back();
        }
        // Plain sockets have nothing to flush. TLS takes what the socket does not, and sends it only when it is asked to.
        if self.is_unflushed {
            if Pin::new(&mut self.stream).poll_flush(cx)?.is_pending() {
                self.state.set_phase(Phase::Writing);
                return Poll::Pending;
            }
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the buffer of sent replies to the thread, or to the heap.
    fn give_back(&mut self) {
        self.sent = 0;
        let mut out = std::mem::take(&mut self.session.out);
        out.clear();
        SCRATCH.with_borrow_mut(|(_, spare)| {
            if spare.capacity() == 0 && out.capacity() <= OUT_BYTES_KEPT {
                *spare = out;
            }
        });
    }

    fn touch(&self) {
        self.state.last_ms.store(self.env.coarse_ms.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes requests from what is pending.
    fn feed_pending(&mut self) {
        let taken = self.session.feed(&self.env, &self.pending);
        self.pending.advance(taken);
        self.consumed += taken;
        if taken > 0 {
            self.progress = PROGRESS_BYTES_MIN;
        }
        // Who is left with little of what was much holds little: never over twice what is left.
        let (left, all) = (self.pending.len(), self.pending.capacity().saturating_add(self.consumed));
        if left == 0 || (self.consumed >= left && all > HELD_BYTES_FREE) {
            self.pending = BytesMut::from(&self.pending[..]);
            self.consumed = 0;
        }
    }

    /// Has the next part of a listing made where nobody else is served: the store may wait for a sync that is under way, and this thread has others to serve.
    fn poll_walk(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if let Some(dump) = self.session.dump.take() {
            self.state.set_phase(Phase::Waiting);
            let env = self.env.clone();
            self.walking = Some(tokio::task::spawn_blocking(move || {
                let mut out = Vec::new();
                (dump.step(&env, &mut out), out)
            }));
        }
        if let Some(walking) = &mut self.walking {
            let (rest, part) = ready!(Pin::new(walking).poll(cx)).map_err(std::io::Error::other)?;
            self.walking = None;
            self.session.dump = rest;
            if self.session.out.capacity() == 0 {
                self.session.out = part;
            } else {
                self.session.out.extend_from_slice(&part);
            }
            self.touch();
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once, and takes the requests that are there: false at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<bool>> {
        // A large body is read to where it is gathered; all else goes by the thread's buffer, so that who has sent little holds little.
        let read = if self.pending.len() < READ_BYTES { self.poll_read_some(cx) } else { self.poll_read_body(cx) };
        let bytes = ready!(read)?;
        self.env.counters.mine().add(Count::BytesRead, bytes as u64);
        self.progress = self.progress.saturating_add(bytes);
        self.touch();
        Poll::Ready(Ok(bytes > 0))
    }

    fn poll_read_some(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        SCRATCH.with_borrow_mut(|(scratch, spare)| {
            let mut buffer = ReadBuf::new(scratch);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer))?;
            let read = buffer.filled();
            if self.session.out.capacity() == 0 {
                self.session.out = std::mem::take(spare);
            }
            if !self.pending.is_empty() {
                self.pending.extend_from_slice(read);
                self.feed_pending();
                return Poll::Ready(Ok(read.len()));
            }
            let taken = self.session.feed(&self.env, read);
            if taken < read.len() {
                self.pending.extend_from_slice(&read[taken..]);
            }
            Poll::Ready(Ok(read.len()))
        })
    }

    /// Room is made as a body comes, not as it was promised: twice what is there, to no more than it needs.
    fn poll_read_body(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<usize>> {
        let missing = self.session.need.saturating_sub(self.pending.len());
        let room = if missing == 0 { READ_BYTES } else { missing.min(self.pending.len()) };
        if self.pending.capacity() == self.pending.len() {
            self.pending.reserve(room);
        }
        let read = ready!(poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.pending))?;
        if read > 0 {
            self.feed_pending();
        }
        Poll::Ready(Ok(read))
    }

    /// Waits, where all together hold too much and some of that is on its way to the disk, until what is on its way now is there: with the rest of a request more would be.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_paused = self.env.is_crowded() && {
            let waits_for = self.env.waits_for.load(Ordering::Relaxed);
            // Where it failed, whoever wrote it is told.
            self.env.engine.poll_settled(waits_for, cx).is_pending()
        };
        if is_paused {
            self.state.set_phase(Phase::Waiting);
            return Poll::Pending;
        }
        // Until now it was not the client that was waited for, for this or for the disk.
        if self.state.phase() == Phase::Waiting {
            self.touch();
        }
        Poll::Ready(())
    }

    /// Counts what this connection holds; false if all together hold too much. What waits for the disk goes by itself, and nobody is closed for it.
    fn hold(&mut self) -> bool {
        let unsettled = self.session.unsettled_bytes;
        count(&self.env.unsettled_bytes, &mut self.unsettled, unsettled);
        if unsettled > 0 {
            self.env.waits_for.fetch_max(self.session.waits_for, Ordering::Relaxed);
        }
        let (before, held) = (self.held, self.pending.capacity() + self.consumed + self.session.out.capacity());
        let all = count(&self.env.held_bytes, &mut self.held, held);
        held <= before.max(HELD_BYTES_FREE) || all <= self.env.limits.held_bytes_max
    }

    /// Notes whether this connection gets on with half a request that it holds more of than any may: a byte now and then is not enough, or a few of them would
    /// keep the room of all. Who has sent little, or waits for the server, is not meant.
    fn note_progress(&mut self) {
        let was_hoarding = self.is_hoarding;
        self.is_hoarding = self.state.phase() == Phase::Half && self.held > HELD_BYTES_FREE;
        if self.is_hoarding && (!was_hoarding || self.progress >= PROGRESS_BYTES_MIN) {
            self.progress = 0;
            self.state.set_stuck_since(Some(self.env.coarse_ms.load(Ordering::Relaxed)));
        } else if was_hoarding && !self.is_hoarding {
            self.state.set_stuck_since(None);
        }
    }

    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            ready!(self.poll_flush(cx))?;
            if self.session.closing {
                return Pin::new(&mut self.stream).poll_shutdown(cx);
            }
            if E::WAITS_FOR_DISK && (self.session.dump.is_some() || self.walking.is_some()) {
                ready!(self.poll_walk(cx))?;
                continue;
            }
            if std::mem::take(&mut self.session.yields) {
                // It is at work, and neither idle nor stuck.
                self.touch();
                self.progress = PROGRESS_BYTES_MIN;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if self.session.blocked {
                self.feed_pending();
                continue;
            }
            let idle = self.pending.is_empty() && self.session.is_idle();
            // Before it looks: it either sees that the server ends, or is woken when it does.
            self.state.woken_by(cx);
            if idle && self.env.draining.load(Ordering::Relaxed) {
                self.session.closing = true;
                continue;
            }
            ready!(self.poll_room(cx));
            self.state.set_phase(if idle { Phase::Idle } else { Phase::Half });
            if !ready!(self.poll_read(cx))? {
                self.session.closing = true;
            }
        }
    }
}

impl<E: Engine, S: AsyncRead + AsyncWrite + Unpin> Future for Connection<E, S> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match this.poll_serve(cx) {
            Poll::Ready(end) => {
                if let Err(error) = end {
                    tracing::debug!(conn = this.state.id, %error, "connection lost");
                }
                Poll::Ready(())
            }
            Poll::Pending if this.hold() => {
                this.note_progress();
                Poll::Pending
            }
            Poll::Pending => {
                this.env.counters.mine().add(Count::HeldKicks, 1);
                tracing::warn!(conn = this.state.id, held_bytes = this.held, "closed: connections hold too much");
                Poll::Ready(())
            }
        }
    }
}

impl<E: Engine, S> Drop for Connection<E, S> {
    fn drop(&mut self) {
        count(&self.env.held_bytes, &mut self.held, 0);
        count(&self.env.unsettled_bytes, &mut self.unsettled, 0);
        self.env.conns.closed(self.state.id);
        tracing::debug!(conn = self.state.id, peer = %self.state.peer, "closed");
    }
}

/// Counts bytes of one, of which `counted` were, in those of all: how many those are then.
fn count(all: &AtomicUsize, counted: &mut usize, bytes: usize) -> usize {
    let before = std::mem::replace(counted, bytes);
    match bytes.checked_sub(before) {
        Some(0) => all.load(Ordering::Relaxed),
        Some(more) => all.fetch_add(more, Ordering::Relaxed) + more,
        None => all.fetch_sub(before - bytes, Ordering::Relaxed) - (before - bytes),
    }
}
