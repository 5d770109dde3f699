//! A day's worth of abuse in small: connections that do nothing, that stop in the middle of a request, and that never read.

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

use crate::Result;

const IDLE: usize = 10_000;
const HALVES: usize = 1_000;
/// So many replies are asked for by whoever never reads.
const UNREAD: usize = 10_000;

/// What it is, for the table.
pub(super) const WHAT: &str = "10,000 idle connections, 1,000 half requests and a reader that never reads";

/// The connections; they close when this is dropped.
pub(super) struct Abuse {
    _connections: Vec<TcpStream>,
}

impl Abuse {
    pub(super) fn of(addr: SocketAddr, key: &str) -> Result<Abuse> {
        let mut connections = Vec::with_capacity(IDLE + HALVES + 1);
        for _ in 0..IDLE + HALVES {
            connections.push(TcpStream::connect(addr)?);
        }
        for half in &mut connections[IDLE..] {
            half.write_all(b"set half 0 0 1000000\r\n0123456789")?;
        }
        let mut deaf = TcpStream::connect(addr)?;
        deaf.set_nonblocking(true)?;
        match deaf.write_all(format!("get {key}\r\n").repeat(UNREAD).as_bytes()) {
            // The server reads no more than it may answer.
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            _ => connections.push(deaf),
        }
        Ok(Abuse { _connections: connections })
    }
}
