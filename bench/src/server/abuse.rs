//! A day's worth of abuse in small: connections that do nothing, that stop in the middle of a request, and that never read.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::Result;

const IDLE: usize = 10_000;
const HALVES: usize = 1_000;
/// So many replies are asked for by whoever never reads, of such a value: 50 MB, more than the buffers of both sockets take.
const UNREAD: usize = 100;
const UNREAD_VALUE_BYTES: usize = 500_000;
/// How long the server may take until it holds what it cannot send.
const HELD_WITHIN: Duration = Duration::from_secs(10);

/// What it is, for the table.
pub(super) const WHAT: &str = "10,000 idle connections, 1,000 half requests and a reader that never reads";

/// The connections; they close when this is dropped.
pub(super) struct Abuse {
    _connections: Vec<TcpStream>,
}

impl Abuse {
    pub(super) fn of(addr: SocketAddr) -> Result<Abuse> {
        let mut connections = Vec::with_capacity(IDLE + HALVES + 1);
        for _ in 0..IDLE + HALVES {
            connections.push(TcpStream::connect(addr)?);
        }
        for half in &mut connections[IDLE..] {
            half.write_all(b"set half 0 0 1000000\r\n0123456789")?;
        }
        connections.push(deaf(addr)?);
        Ok(Abuse { _connections: connections })
    }
}

/// One that asks and never reads: once the server holds what it cannot send, since it would be no abuse before.
fn deaf(addr: SocketAddr) -> Result<TcpStream> {
    let mut asking = BufReader::new(TcpStream::connect(addr)?);
    let value = "v".repeat(UNREAD_VALUE_BYTES);
    asking.get_mut().write_all(format!("set deaf 0 0 {UNREAD_VALUE_BYTES}\r\n{value}\r\n").as_bytes())?;
    let stored = line(&mut asking)?;
    if stored != "STORED" {
        return Err(format!("the value for the deaf reader: {stored}").into());
    }
    let before = held_bytes(&mut asking)?;
    let mut deaf = TcpStream::connect(addr)?;
    deaf.set_nonblocking(true)?;
    match deaf.write_all("get deaf\r\n".repeat(UNREAD).as_bytes()) {
        // The server reads no more than it may answer.
        Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
        _ => {}
    }
    let begun = Instant::now();
    // The buffer of its replies takes one at least.
    while held_bytes(&mut asking)? < before + UNREAD_VALUE_BYTES {
        if begun.elapsed() > HELD_WITHIN {
            return Err("the deaf reader's replies went into the buffers of the system".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(deaf)
}

fn line(stream: &mut BufReader<TcpStream>) -> Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// What the server holds for all connections of what is not finished.
fn held_bytes(stream: &mut BufReader<TcpStream>) -> Result<usize> {
    stream.get_mut().write_all(b"stats\r\n")?;
    let mut held = None;
    loop {
        let line = line(stream)?;
        match line.strip_prefix("STAT read_buf_bytes ") {
            Some(bytes) => held = Some(bytes.parse()?),
            None if line == "END" => return held.ok_or_else(|| "stats has no read_buf_bytes".into()),
            None if line.is_empty() => return Err("stats has no end".into()),
            None => {}
        }
    }
}
