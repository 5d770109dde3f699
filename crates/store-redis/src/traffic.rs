//! What goes over a connection, counted: it is how an op that failed is known not to have been sent.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use larder_net::Stream;
use smallvec::SmallVec;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Counts of one connection.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// How often the system was asked to send. While it stands still, nothing was sent.
    writes: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// The server's side of the stream has ended.
    ended: AtomicBool,
    /// What the server said first.
    greeting: OnceLock<SmallVec<[u8; GREETING_BYTES_MAX]>>,
}

/// As much of what a server says first is kept as tells what it is.
const GREETING_BYTES_MAX: usize = 16;

impl Traffic {
    /// How often the system was asked to send. Acquires: what failed after a write saw it.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// The stream from the server has ended, wherever it stood in a reply. Acquires, as [`writes`](Traffic::writes).
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The stream ended before the server had said anything else than what a greeting begins with: it was cut.
    pub(crate) fn is_cut(&self) -> bool {
        let is_begun = |said: &SmallVec<_>| said.first().is_none_or(|first| b"%*-+".contains(first));
        self.has_ended() && self.greeting.get().is_none_or(is_begun)
    }

    /// What else than a Redis the server is, by the first bytes it said, and how it is opened.
    pub(crate) fn looks_like(&self) -> Option<&'static str> {
        let said = self.greeting.get()?;
        if said.starts_with(b"ERROR\r\n") || said.starts_with(b"CLIENT_ERROR ") {
            return Some("a memcached (open it as memcached://host:port)");
        }
        said.starts_with(b"HTTP/").then_some("a web server")
    }
}

/// A transport whose traffic is counted.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: Stream,
    traffic: Arc<Traffic>,
}

impl Counted {
    pub(crate) fn new(stream: Stream, traffic: Arc<Traffic>) -> Counted {
        Counted { stream, traffic }
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let has_room = buf.remaining() > 0;
        let done = ready!(Pin::new(&mut this.stream).poll_read(cx, buf));
        let received = &buf.filled()[before..];
        if has_room && received.is_empty() {
            this.traffic.ended.store(true, Ordering::Release);
        }
        if this.traffic.received_bytes.fetch_add(received.len() as u64, Ordering::Relaxed) == 0 {
            let first = &received[..received.len().min(GREETING_BYTES_MAX)];
            _ = this.traffic.greeting.set(SmallVec::from_slice(first));
        }
        Poll::Ready(done)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        // Before, and whatever comes of it: a failed write may have sent a part.
        this.traffic.writes.fetch_add(1, Ordering::Release);
        let done = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes));
        this.traffic.sent_bytes.fetch_add(*done.as_ref().unwrap_or(&0) as u64, Ordering::Relaxed);
        Poll::Ready(done)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
