//! The same client for every server: connections that send so many requests at once, and read as many replies of a known length.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::Result;
use crate::drive::Step;

pub(super) const KEYS: usize = 10_000;
pub(super) const VALUE_BYTES: usize = 100;

/// What is spoken, and what is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    ClassicGet,
    ClassicSet,
    MetaGet,
    MetaSet,
    RespSet,
}

/// The key of this number.
fn key(number: usize) -> String {
    format!("bench:{number:010}")
}

impl Request {
    pub(super) fn name(self) -> &'static str {
        match self {
            Request::ClassicGet => "get",
            Request::ClassicSet => "set",
            Request::MetaGet => "mg",
            Request::MetaSet => "ms",
            Request::RespSet => "SET",
        }
    }

    fn write(self, out: &mut Vec<u8>, key: usize) {
        let key = self::key(key);
        let value = [b'v'; VALUE_BYTES];
        let with_value = |out: &mut Vec<u8>, head: String| {
            out.extend_from_slice(head.as_bytes());
            out.extend_from_slice(&value);
            out.extend_from_slice(b"\r\n");
        };
        match self {
            Request::ClassicGet => out.extend_from_slice(format!("get {key}\r\n").as_bytes()),
            Request::MetaGet => out.extend_from_slice(format!("mg {key} v\r\n").as_bytes()),
            Request::ClassicSet => with_value(out, format!("set {key} 0 0 {VALUE_BYTES}\r\n")),
            Request::MetaSet => with_value(out, format!("ms {key} {VALUE_BYTES}\r\n")),
            Request::RespSet => {
                with_value(out, format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${VALUE_BYTES}\r\n", key.len()));
            }
        }
    }

    /// How the reply begins, and its length.
    fn reply(self) -> (&'static [u8], usize) {
        match self {
            Request::ClassicGet => {
                let head = format!("VALUE bench:{:010} 0 {VALUE_BYTES}\r\n", 0).len();
                (b"VALUE bench:", head + VALUE_BYTES + "\r\nEND\r\n".len())
            }
            Request::MetaGet => (b"VA 100\r\nvvv", "VA 100\r\n".len() + VALUE_BYTES + 2),
            Request::ClassicSet => (b"STORED\r\n", 8),
            Request::MetaSet => (b"HD\r\n", 4),
            Request::RespSet => (b"+OK\r\n", 5),
        }
    }
}

/// One connection: a step is a batch of requests and their replies.
pub(super) struct Client {
    stream: TcpStream,
    request: Request,
    depth: usize,
    rng: fastrand::Rng,
    out: Vec<u8>,
    replies: Vec<u8>,
    /// How long each batch took.
    pub(super) ms: Vec<f64>,
}

impl Client {
    pub(super) async fn connect(addr: SocketAddr, request: Request, depth: usize, seed: u64) -> Result<Client> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let replies = vec![0; request.reply().1 * depth];
        let rng = fastrand::Rng::with_seed(seed);
        Ok(Client { stream, request, depth, rng, out: Vec::new(), replies, ms: Vec::new() })
    }
}

impl Step for Client {
    async fn step(&mut self) -> Result<()> {
        self.out.clear();
        for _ in 0..self.depth {
            self.request.write(&mut self.out, self.rng.usize(..KEYS));
        }
        let from = Instant::now();
        self.stream.write_all(&self.out).await?;
        self.stream.read_exact(&mut self.replies).await?;
        self.ms.push(from.elapsed().as_secs_f64() * 1e3);
        let (begin, bytes) = self.request.reply();
        match self.replies.chunks(bytes).all(|reply| reply.starts_with(begin)) {
            true => Ok(()),
            false => {
                let shown = self.replies[..self.replies.len().min(80)].escape_ascii();
                Err(format!("{} was answered by {shown}", self.request.name()).into())
            }
        }
    }
}

/// Sets `keys` items in long pipelines, whose values have so many bytes.
pub(super) fn fill(runtime: &Runtime, addr: SocketAddr, keys: usize, value_bytes: usize) -> Result<()> {
    const AT_ONCE: usize = 500;
    runtime.block_on(async {
        let mut stream = TcpStream::connect(addr).await?;
        let (mut out, mut replies) = (Vec::new(), Vec::new());
        for first in (0..keys).step_by(AT_ONCE) {
            let count = AT_ONCE.min(keys - first);
            out.clear();
            for key in first..first + count {
                out.extend_from_slice(format!("set bench:{key:010} 0 0 {value_bytes}\r\n").as_bytes());
                out.resize(out.len() + value_bytes, b'v');
                out.extend_from_slice(b"\r\n");
            }
            stream.write_all(&out).await?;
            replies.resize("STORED\r\n".len() * count, 0);
            stream.read_exact(&mut replies).await?;
            if !replies.chunks(8).all(|reply| reply == b"STORED\r\n") {
                return Err(format!("a set was answered by {}", replies[..40].escape_ascii()).into());
            }
        }
        Ok(())
    })
}
