//! The handshake: who is there, what it can do, and whether it may be used.

use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use larder_core::text::Shown;
use larder_core::{Durability, Error, ErrorKind, Op, Reply, Result};
use larder_net::{Auth, Stream};
use larder_proto::stats::{STAT_LINES_MAX, Stats, take_line};
use larder_proto::{Abilities, Answer, Decoder, Dialect, Expect, ProtocolError, Version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::config::{Config, DialectMode};

/// The key that the handshake asks after. Nothing is ever stored there.
const PROBE_KEY: &str = "L!probe";
/// The most bytes of an answer that the handshake keeps.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// The longest line of an answer that is read line by line.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// The largest item that any memcached takes (`-I`); what a server says beyond is not believed.
const ITEM_BYTES_MAX: usize = 1 << 30;
/// How long a server may say nothing in the middle of a long answer: its crawler may pass many items that have ended.
const SILENCE_MAX: Duration = Duration::from_secs(300);

/// What the handshake found out about a server.
#[derive(Clone, Debug)]
pub(crate) struct ServerInfo {
    pub(crate) abilities: Abilities,
    pub(crate) version: Option<Version>,
    /// Whether it evicts, if it told.
    pub(crate) evicts: Option<bool>,
    /// What its data end with: Larder's own server says so over files, of any other it is the server's own end.
    pub(crate) durability: Durability,
    /// Which process it is, if it told.
    pub(crate) identity: Identity,
    /// Its clock, in seconds since 1970, and when it was read.
    time: (u64, Instant),
    /// True if a second op must not be sent before the first is answered.
    pub(crate) lockstep: bool,
}

/// What tells a server from another at the same address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) pid: Option<u64>,
    /// When the process began, by its own clock: where servers run in containers, each may be process 1 there.
    pub(crate) began_s: Option<u64>,
    /// Drawn by Larder's own server when its store began.
    pub(crate) incarnation: Option<u64>,
}

impl Identity {
    /// Whether it is the same server, as far as both tell. Two with one process id that began within two seconds are taken for one.
    pub(crate) fn is_same(&self, other: &Identity) -> bool {
        let began = match (self.began_s, other.began_s) {
            // Both are told in whole seconds, which may be rounded apart.
            (Some(one), Some(other)) => one.abs_diff(other) <= 1,
            (one, other) => one == other,
        };
        let is_drawn = self.incarnation.is_some();
        self.pid == other.pid && self.incarnation == other.incarnation && (began || is_drawn)
    }
}

impl ServerInfo {
    /// The server's clock. It counts seconds, so that this may be off by one or two; or by how long this machine was suspended meanwhile.
    pub(crate) fn now_s(&self, now: Instant) -> u64 {
        self.time.0 + now.saturating_duration_since(self.time.1).as_secs()
    }
}

/// A fresh connection, spoken to in turns: questions, then their answers.
pub(crate) struct Exchange {
    stream: Stream,
    received: BytesMut,
}

impl Exchange {
    pub(crate) fn new(stream: Stream) -> Exchange {
        Exchange { stream, received: BytesMut::with_capacity(8 * 1024) }
    }

    /// The address at the other end.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer()
    }

    /// The transport, if the server has said nothing that was not asked for.
    pub(crate) fn finish(self) -> Result<Stream> {
        if self.received.is_empty() {
            Ok(self.stream)
        } else {
            Err(not_memcached(&format!("unasked-for bytes after the handshake: {}", Shown(&self.received))))
        }
    }

    /// The next line of an answer whose lines end in `\n` alone, without it.
    pub(crate) async fn bare_line(&mut self) -> Result<BytesMut> {
        let mut searched = 0;
        loop {
            if let Some(found) = self.received[searched..].iter().position(|&byte| byte == b'\n') {
                let mut line = self.received.split_to(searched + found + 1);
                line.truncate(searched + found);
                return Ok(line);
            }
            searched = self.received.len();
            if searched > LINE_BYTES_MAX {
                return Err(not_memcached("a line of its answer has no end"));
            }
            self.midway().await?;
        }
    }

    /// Reads on, for as long as the server says something.
    async fn read_some(&mut self, when: &str, hint: &str) -> Result<()> {
        let read = tokio::time::timeout(SILENCE_MAX, self.stream.read_buf(&mut self.received)).await;
        let silent = |_| {
            let detail = format!("the server said nothing for {} s {when}", SILENCE_MAX.as_secs());
            Error::new(ErrorKind::Timeout, detail)
        };
        let lost = |error| unavailable(&format!("the connection was lost {when}"), error);
        match read.map_err(silent)?.map_err(lost)? {
            0 => Err(Error::new(ErrorKind::Unavailable, format!("the server closed the connection {when}{hint}"))),
            _ => Ok(()),
        }
    }

    /// Reads on in the middle of an answer.
    async fn midway(&mut self) -> Result<()> {
        self.read_some("midway", "").await
    }

    /// The next so many bytes of an answer, and the end of a line behind them.
    pub(crate) async fn block(&mut self, bytes: usize) -> Result<BytesMut> {
        while self.received.len() < bytes + 2 {
            self.midway().await?;
        }
        let block = self.received.split_to(bytes);
        match &self.received.split_to(2)[..] {
            b"\r\n" => Ok(block),
            _ => Err(not_memcached("a block of its answer has another length than it said")),
        }
    }

    /// The answer to `stats`, names and values; empty from a server that does not know the topic.
    pub(crate) async fn stat_lines(&mut self, topic: &str) -> Result<Vec<(String, String)>> {
        let question = if topic.is_empty() { "stats\r\n".to_owned() } else { format!("stats {topic}\r\n") };
        self.send(question.as_bytes()).await?;
        let mut lines = Vec::new();
        while lines.len() < STAT_LINES_MAX {
            let line = self.line().await?;
            let text = String::from_utf8_lossy(&line);
            let Some(rest) = text.strip_prefix("STAT ") else { return Ok(lines) };
            let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
            lines.push((name.to_owned(), value.to_owned()));
        }
        Err(not_memcached(&format!("a stats reply has more than {STAT_LINES_MAX} lines")))
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| unavailable("sending failed", error))
    }

    async fn more(&mut self) -> Result<()> {
        self.read_some("during the handshake", " (too many connections, or not a memcached?)").await?;
        if let Some(other) = looks_like(&self.received) {
            return Err(Error::new(
                ErrorKind::Config,
                format!("this is not a memcached but {other}; it answered {}", Shown(&self.received)),
            ));
        }
        if self.received.len() > ANSWER_BYTES_MAX {
            return Err(not_memcached("its answer has no end"));
        }
        Ok(())
    }

    async fn line(&mut self) -> Result<BytesMut> {
        loop {
            match take_line(&mut self.received) {
                Ok(Some(line)) => return Ok(line),
                Ok(None) => self.more().await?,
                Err(error) => return Err(garbage(&error)),
            }
        }
    }

    async fn stats(&mut self, stats: &mut Stats) -> Result<()> {
        stats.lines = 0;
        loop {
            let line = self.line().await?;
            if stats.line(&line).map_err(|error| garbage(&error))? {
                return Ok(());
            }
        }
    }

    /// Runs one op in the classic dialect, without a ttl and tokens: every server knows it.
    pub(crate) async fn op(&mut self, op: &Op) -> Result<Reply> {
        let mut out = Vec::new();
        let expect = Abilities::bare().encode(op, 0, 0, &mut out)?;
        self.send(&out).await?;
        self.reply(&expect).await
    }

    async fn reply(&mut self, expect: &Expect) -> Result<Reply> {
        let decoder = Decoder { session: 0, value_bytes_max: ANSWER_BYTES_MAX };
        loop {
            match decoder.decode(&mut self.received, expect).map_err(|error| garbage(&error))? {
                Some(Answer::Reply(reply)) => return Ok(reply),
                Some(Answer::Refused { error, .. }) => return Err(error),
                None => self.more().await?,
            }
        }
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("peer", &self.peer()).finish_non_exhaustive()
    }
}

/// What the first questions brought.
pub(crate) struct Probed {
    pub(crate) server: ServerInfo,
    /// The item that was asked after along with them.
    pub(crate) item: Reply,
}

/// Finds out what the server is, and brings an item along. Authenticates if it asks for that. **Round trips: 1**, one more each
/// where it was given a password, where the server asked for it, and for a server of the classic dialect.
pub(crate) async fn probe(exchange: &mut Exchange, config: &Config, item: &Op) -> Result<Probed> {
    // Whether the server wants the password is known from its first answer: one that does not would take it for an item.
    if let Some(auth) = &config.auth {
        exchange.send(b"version\r\n").await?;
        if exchange.line().await?.starts_with(UNAUTHENTICATED) {
            authenticate(exchange, auth).await?;
        }
    }
    let mut questions = b"version\r\nstats settings\r\nstats\r\n".to_vec();
    let expect = Abilities::bare().encode(item, 0, 0, &mut questions)?;
    exchange.send(&questions).await?;
    let version = version(&exchange.line().await?)?;
    let mut stats = Stats::default();
    exchange.stats(&mut stats).await?;
    exchange.stats(&mut stats).await?;
    let item = exchange.reply(&expect).await?;
    let time = match stats.time_s {
        Some(time_s) => time_s,
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs(),
    };
    let mut abilities = match config.dialect {
        DialectMode::Forced(dialect) => Abilities::of(dialect),
        DialectMode::Bare => Abilities::bare(),
        DialectMode::Auto => Abilities::of(Dialect::of(version)),
    };
    if config.dialect == DialectMode::Auto && !abilities.dialect.is_meta() {
        ask_classic(exchange, &mut abilities).await?;
    }
    abilities.cas &= stats.cas.unwrap_or(true);
    if let Some(bytes) = stats.item_bytes_max {
        abilities.item_bytes_max = bytes.min(ITEM_BYTES_MAX);
    }
    let lockstep = config.tls.is_some() && version.is_some_and(|version| version < Version::TLS_PIPELINES);
    let durability = durability(stats.durability.as_deref());
    let began_s = stats.time_s.zip(stats.uptime_s).and_then(|(time, uptime)| time.checked_sub(uptime));
    let identity = Identity { pid: stats.pid, began_s, incarnation: stats.incarnation };
    let time = (time, Instant::now());
    let server = ServerInfo { abilities, version, evicts: stats.evicts, durability, identity, time, lockstep };
    Ok(Probed { server, item })
}

/// What the word of a server means to its clients: what ends with its process ends with it.
fn durability(word: Option<&str>) -> Durability {
    match word {
        Some("disk") => Durability::Disk,
        Some("recent") => Durability::Recent,
        _ => Durability::Server,
    }
}

const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated";

/// The answer to `version`; `None` from a server that does not know the command.
fn version(line: &[u8]) -> Result<Option<Version>> {
    if line.starts_with(UNAUTHENTICATED) {
        return Err(Error::new(
            ErrorKind::Config,
            "the server wants a user and a password; give them as memcached://user:password@host",
        ));
    }
    if let Some(text) = line.strip_prefix(b"VERSION ") {
        return Ok(std::str::from_utf8(text).ok().and_then(Version::parse));
    }
    if line == b"ERROR" {
        return Ok(None);
    }
    // It has as many connections as it may, or what it stands for is down.
    if line.starts_with(b"ERROR ") || line.starts_with(b"SERVER_ERROR") {
        return Err(Error::new(ErrorKind::Unavailable, format!("the server answered {} to \"version\"", Shown(line))));
    }
    Err(not_memcached(&format!("it answered {} to \"version\"", Shown(line))))
}

async fn authenticate(exchange: &mut Exchange, auth: &Auth) -> Result<()> {
    let secret = format!("{} {}", auth.user, auth.password);
    // The key is arbitrary: the server takes the first set for the credentials, and stores nothing.
    exchange.send(format!("set {PROBE_KEY} 0 0 {}\r\n{secret}\r\n", secret.len()).as_bytes()).await?;
    let line = exchange.line().await?;
    if line.as_ref() == b"STORED" {
        return Ok(());
    }
    let error = format!("the server refused the user {:?} or its password: it answered {}", auth.user, Shown(&line));
    Err(Error::new(ErrorKind::Config, error))
}

/// Finds out by asking whether a server of the classic dialect has tokens and expiry: `gets` and `touch` (memcached 1.4.8,
/// 2011) are answered with `ERROR` by one that has not, MemcacheDB for one. A server that keeps lives but has no `touch`
/// is treated as having no expiry: it would be the wrong guess the other way that does harm.
async fn ask_classic(exchange: &mut Exchange, abilities: &mut Abilities) -> Result<()> {
    exchange.send(format!("gets {PROBE_KEY}\r\ntouch {PROBE_KEY} 1\r\n").as_bytes()).await?;
    let gets = exchange.line().await?;
    let touch = exchange.line().await?;
    abilities.cas = gets.as_ref() == b"END";
    abilities.ttl = touch.as_ref() == b"NOT_FOUND";
    for (line, command) in [(gets, "gets"), (touch, "touch")] {
        if !matches!(line.as_ref(), b"END" | b"NOT_FOUND") && !line.starts_with(b"ERROR") {
            return Err(not_memcached(&format!("it answered {} to {command:?}", Shown(&line))));
        }
    }
    Ok(())
}

/// What else a server may be, by the first bytes it sends.
fn looks_like(bytes: &[u8]) -> Option<&'static str> {
    let starts = |prefix: &[u8]| bytes.starts_with(prefix);
    if starts(b"-ERR") || starts(b"-NOAUTH") || starts(b"-DENIED") || starts(b"+OK") || starts(b"-MOVED") {
        return Some("a Redis or Valkey server (open it as redis://host:port)");
    }
    if starts(b"HTTP/") || starts(b"<!DOCTYPE") || starts(b"<html") {
        return Some("a web server");
    }
    if starts(&[0x15, 0x03]) || starts(&[0x16, 0x03]) {
        return Some("a server that speaks TLS (memcached+tls:// does)");
    }
    if starts(b"SSH-") {
        return Some("an SSH server");
    }
    None
}

fn not_memcached(detail: &str) -> Error {
    Error::new(ErrorKind::Config, format!("this is not a memcached: {detail}"))
}

fn garbage(error: &ProtocolError) -> Error {
    not_memcached(&error.to_string())
}

pub(crate) fn unavailable(what: &str, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what}: {error}")).source(error)
}

/// Bounds a dial and its handshake.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("no connection with a finished handshake after connect_timeout_ms={}", limit.as_millis()),
        )),
    }
}
