//! Bytes to a server and back.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use fastrand::Rng;

/// A connection.
pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    stream.set_nodelay(true).expect("a socket");
    stream
}

/// Sends the pieces, says that no more comes, and returns all that came back until the end.
pub fn exchange<'a>(addr: SocketAddr, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    finish(connect(addr), pieces)
}

/// The same on a connection that is there.
pub fn finish<'a>(mut stream: TcpStream, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
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
pub fn read_until(stream: &mut TcpStream, end: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    let mut byte = [0; 4096];
    while !reply.ends_with(end) {
        let bytes = stream.read(&mut byte).expect("a reply");
        assert!(bytes > 0, "closed after {:?}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&byte[..bytes]);
    }
    reply
}

/// Sends a request, and reads as [`read_until`] does.
pub fn ask(stream: &mut TcpStream, request: &[u8], end: &[u8]) -> Vec<u8> {
    stream.write_all(request).expect("it takes it");
    read_until(stream, end)
}

/// Each request is answered before the next is sent; the last one may leave the connection waiting.
pub fn one_by_one(addr: SocketAddr, requests: &[Vec<u8>]) -> Vec<u8> {
    let Some((last, before)) = requests.split_last() else { return Vec::new() };
    let mut stream = connect(addr);
    let mut replies = Vec::new();
    for request in before {
        let reply = ask(&mut stream, &[request, &b"mn\r\n"[..]].concat(), b"MN\r\n");
        replies.extend_from_slice(reply.strip_suffix(b"MN\r\n").unwrap_or(&reply));
    }
    replies.extend(finish(stream, [&last[..]]));
    replies
}

/// Cuts into pieces: mostly one, else a few.
pub fn pieces<'a>(bytes: &'a [u8], rng: &mut Rng) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = (0..rng.usize(0..4)).map(|_| rng.usize(0..=bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}
