//! The halves of a transport.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use larder_net::Stream;
use tokio::io::AsyncWrite;
use tokio::net::{TcpStream, tcp, unix};
use tokio_rustls::client::TlsStream;
use tokio_util::io::poll_read_buf;

/// Splits into the task's half and the one that callers may write to.
pub(crate) fn split(stream: Stream) -> (TaskStream, DirectWriter) {
    match stream {
        Stream::Tcp(stream) => {
            let (read, write) = stream.into_split();
            (TaskStream::Tcp(read), DirectWriter::Tcp(write))
        }
        Stream::Unix(stream) => {
            let (read, write) = stream.into_split();
            (TaskStream::Unix(read), DirectWriter::Unix(write))
        }
        Stream::Tls(stream) => (TaskStream::Tls(stream), DirectWriter::None),
    }
}

/// What callers write to on an idle connection.
#[derive(Debug)]
pub(crate) enum DirectWriter {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
    /// TLS has state of its own: only the task writes.
    None,
}

impl DirectWriter {
    /// Writes without blocking.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            DirectWriter::Tcp(half) => half.try_write(bytes),
            DirectWriter::Unix(half) => half.try_write(bytes),
            DirectWriter::None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// The half that the connection's task owns.
#[derive(Debug)]
pub(crate) enum TaskStream {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    Tls(Box<TlsStream<TcpStream>>),
}

impl TaskStream {
    /// Reads into the free part of `received`; 0 is the end of the stream.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, received: &mut BytesMut) -> Poll<io::Result<usize>> {
        match self {
            TaskStream::Tcp(half) => poll_read_buf(Pin::new(half), cx, received),
            TaskStream::Unix(half) => poll_read_buf(Pin::new(half), cx, received),
            TaskStream::Tls(stream) => poll_read_buf(Pin::new(stream), cx, received),
        }
    }

    /// Writes what the system takes.
    pub(crate) fn poll_write(
        &mut self,
        direct: &DirectWriter,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let ready = match (&mut *self, direct) {
                (TaskStream::Tls(stream), _) => return Pin::new(stream).poll_write(cx, bytes),
                (_, DirectWriter::Tcp(half)) => half.as_ref().poll_write_ready(cx),
                (_, DirectWriter::Unix(half)) => half.as_ref().poll_write_ready(cx),
                (_, DirectWriter::None) => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            };
            match ready {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
            match direct.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {} // readiness was stale; ask again
                done => return Poll::Ready(done),
            }
        }
    }

    /// True if a write that fails may have handed a part to the system: TLS writes on and on in one call, and if it fails then it does not tell what went out before.
    pub(crate) fn may_have_written_before_it_failed(&self) -> bool {
        matches!(self, TaskStream::Tls(_))
    }

    /// Pushes out what TLS may hold back.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            TaskStream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            TaskStream::Tcp(_) | TaskStream::Unix(_) => Poll::Ready(Ok(())),
        }
    }
}
