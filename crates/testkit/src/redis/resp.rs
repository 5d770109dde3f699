//! A Redis client of a few lines, for what tests ask of servers beside the store under test.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The deepest nesting of a reply that is read.
const DEPTH_MAX: u32 = 16;

/// A reply in the form of RESP 2.
///
/// ```
/// use larder_testkit::redis::Value;
/// assert_eq!(Value::Bulk(b"v".to_vec()).text(), "v");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing there.
    Nil,
    /// A status such as `OK`.
    Status(String),
    /// A refusal, in the server's words.
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// Several replies.
    Array(Vec<Value>),
}

impl Value {
    /// What a person would read; the parts of an array stand in lines.
    pub fn text(&self) -> String {
        match self {
            Self::Nil => String::new(),
            Self::Status(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Array(parts) => parts.iter().map(Self::text).collect::<Vec<_>>().join("\n"),
        }
    }

    /// True for a refusal.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }
}

/// A connection to a server's unix socket.
pub(super) struct Connection(BufReader<UnixStream>);

impl Connection {
    pub(super) fn open(path: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self(BufReader::new(stream)))
    }

    pub(super) fn command<A: AsRef<[u8]>>(&mut self, words: &[A]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            let word = word.as_ref();
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&request)?;
        self.reply(0)
    }

    fn reply(&mut self, depth: u32) -> io::Result<Value> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::UnexpectedEof)?;
        let number = || rest.parse::<i64>().map_err(|_| broken(line));
        Ok(match kind {
            "+" => Value::Status(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Int(number()?),
            "$" | "*" if number()? < 0 => Value::Nil,
            "$" => {
                let mut bytes = vec![0; usize::try_from(number()?).map_err(|_| broken(line))? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Value::Bulk(bytes)
            }
            "*" if depth < DEPTH_MAX => {
                Value::Array((0..number()?).map(|_| self.reply(depth + 1)).collect::<io::Result<_>>()?)
            }
            _ => return Err(broken(line)),
        })
    }
}

fn broken(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"))
}
