//! Not for programs: a server without sockets, for the proof's fuzzing. Connections are the server's own; what they read and write is memory.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::config::Limits;
use crate::conn::Connection;
use crate::engine::{Engine, MemoryEngine};
use crate::env::{Env, Settings};
use crate::files::Files;

/// A server without sockets.
pub struct Wire {
    env: Arc<Env<MemoryEngine>>,
}

/// What came of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Talk {
    /// All that was answered.
    pub replies: Vec<u8>,
    /// Writes that it was answered with.
    pub writes: usize,
    /// Pieces that the server did not read, since it had closed.
    pub unread: usize,
    /// The most that the server held of it while it waited for the next piece, in bytes.
    pub held_bytes_max: usize,
    /// True if it went on waiting with all there was to read.
    pub is_hung: bool,
}

impl Wire {
    /// A server over this store.
    pub fn new(engine: MemoryEngine, limits: Limits) -> Wire {
        Wire { env: Env::new(engine, limits, 1, Files::default(), Settings::default()) }
    }

    /// A connection that sends these pieces, each when the one before was taken in, says that no more comes, and takes at most so many bytes of replies at a time.
    pub fn talk(&self, pieces: impl IntoIterator<Item = Vec<u8>>, taken_at_once: usize) -> Talk {
        let most = self.env.limits.connections_max;
        let Some(state) = self.env.conns.admit(most, String::new(), "", 0) else { return Talk::default() };
        let pieces: VecDeque<Vec<u8>> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        // It waits once a piece, and once for the end.
        let mut waits_left = pieces.len() + 2;
        let taken_at_once = taken_at_once.max(1);
        let mut stream = Memory { pieces, is_due: false, replies: Vec::new(), writes: 0, taken_at_once };
        let mut connection = Connection::new(self.env.clone(), state, &mut stream);
        let mut held_bytes_max = 0;
        // It is polled again whenever it waits: the next piece is there by then.
        while waits_left > 0 && Pin::new(&mut connection).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            held_bytes_max = held_bytes_max.max(self.env.all_held_bytes());
            waits_left -= 1;
        }
        drop(connection);
        let Memory { replies, writes, pieces, .. } = stream;
        Talk { replies, writes, unread: pieces.len(), held_bytes_max, is_hung: waits_left == 0 }
    }

    /// Connections that the server still counts.
    pub fn connections(&self) -> usize {
        self.env.conns.count()
    }

    /// Bytes that the server counts as held for connections.
    pub fn held_bytes(&self) -> usize {
        self.env.all_held_bytes()
    }

    /// Bytes that its items take.
    pub fn item_bytes(&self) -> u64 {
        self.env.engine.figures().bytes
    }
}

/// A stream of pieces: between two the reader waits once.
struct Memory {
    pieces: VecDeque<Vec<u8>>,
    /// The reader has waited.
    is_due: bool,
    replies: Vec<u8>,
    writes: usize,
    taken_at_once: usize,
}

impl AsyncRead for &mut Memory {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_due, true) {
            return Poll::Pending;
        }
        let Some(piece) = self.pieces.front_mut() else { return Poll::Ready(Ok(())) };
        let bytes = piece.len().min(buffer.remaining());
        buffer.put_slice(&piece[..bytes]);
        piece.drain(..bytes);
        if piece.is_empty() {
            self.pieces.pop_front();
            self.is_due = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for &mut Memory {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = bytes.len().min(self.taken_at_once);
        self.replies.extend_from_slice(&bytes[..taken]);
        self.writes += 1;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
