//! A server of ours on a free port, and bytes to and from it.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use larder_server::{Config, Limits, Listen, MemoryEngine, Server};
use larder_store_memory::MemoryStore;

pub(crate) fn anywhere() -> Vec<Listen> {
    vec![Listen::Tcp("127.0.0.1:0".parse().expect("an address"))]
}

pub(crate) fn engine(limits: &Limits) -> MemoryEngine {
    let store = MemoryStore::builder().bytes_max(limits.memory_bytes_max).value_bytes_max(limits.item_bytes_max);
    MemoryEngine::new(store.track_access(limits.track_access).build().expect("limits that are in range"))
}

pub(crate) fn start(limits: Limits) -> Server {
    start_with(Config { limits, ..Config::default() })
}

pub(crate) fn start_with(config: Config) -> Server {
    let listen = if config.listen.is_empty() { anywhere() } else { config.listen };
    Server::start(engine(&config.limits), Config { listen, threads: 2, ..config }).expect("it starts")
}

/// A server over a store in a folder.
pub(crate) fn start_in_folder(folder: &std::path::Path) -> Server {
    let store = larder_server::DurableOptions::new(folder).open().expect("a store");
    let config = Config { listen: anywhere(), threads: 2, ..Config::default() };
    Server::start(larder_server::DurableEngine::new(store), config).expect("it starts")
}

pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Sends the pieces, says that no more comes, and returns all that came back until the end.
pub(crate) fn exchange<'a>(addr: SocketAddr, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    finish(connect(addr), pieces)
}

/// The same on a connection that is there.
pub(crate) fn finish<'a>(mut stream: TcpStream, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    for piece in pieces {
        // A server that has closed already needs no more.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    // One that closes with bytes unread resets the connection; what came before counts.
    let _ = stream.read_to_end(&mut reply);
    reply
}

/// Reads until the reply ends with `end`.
pub(crate) fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    let mut byte = [0; 4096];
    while !reply.ends_with(end) {
        let bytes = stream.read(&mut byte).expect("a reply");
        assert!(bytes > 0, "closed after {:?}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&byte[..bytes]);
    }
    reply
}

pub(crate) fn ask(stream: &mut TcpStream, request: &[u8], end: &[u8]) -> Vec<u8> {
    stream.write_all(request).expect("it takes it");
    read_until(stream, end)
}
