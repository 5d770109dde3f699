//! The nine commands of the classic fake, and that there is no tenth.

use std::io::{Read, Write};
use std::net::TcpStream;

use larder_testkit::classic_fake::ClassicFake;

/// Sends everything in one write and requires exactly this reply. A `get` of a key that is not there ends it, so that a
/// reply too many shows.
fn talk(stream: &mut TcpStream, request: &str, reply: &str) {
    const LAST: &str = "get -\r\n";
    stream.write_all(format!("{request}{LAST}").as_bytes()).unwrap();
    let expected = format!("{reply}END\r\n");
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while read.len() < expected.len() && expected.as_bytes().starts_with(&read) {
        let n = stream.read(&mut buffer).unwrap_or(0);
        read.extend_from_slice(&buffer[..n]);
        if n == 0 {
            break;
        }
    }
    assert_eq!(String::from_utf8_lossy(&read), expected, "reply to {:?}", &request[..request.len().min(80)]);
}

fn connect(server: &ClassicFake) -> TcpStream {
    let stream = TcpStream::connect(server.addr()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    stream
}

#[test]
fn storage_commands() {
    let server = ClassicFake::start();
    let s = &mut connect(&server);
    talk(s, "get k\r\n", "END\r\n");
    talk(s, "replace k 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    talk(s, "append k 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    talk(s, "prepend k 0 0 1\r\nx\r\n", "NOT_STORED\r\n");
    talk(s, "add k 5 0 1\r\na\r\n", "STORED\r\n");
    talk(s, "add k 6 0 1\r\nb\r\n", "NOT_STORED\r\n");
    talk(s, "append k 7 0 2\r\ncd\r\n", "STORED\r\n");
    talk(s, "prepend k 8 0 2\r\nef\r\n", "STORED\r\n");
    talk(s, "get k\r\n", "VALUE k 5 5\r\nefacd\r\nEND\r\n");
    talk(s, "replace k 9 0 0\r\n\r\n", "STORED\r\n");
    talk(s, "set l 0 0 4\r\n\r\n\r\n\r\n", "STORED\r\n");
    talk(s, "get k miss l\r\n", "VALUE k 9 0\r\n\r\nVALUE l 0 4\r\n\r\n\r\n\r\nEND\r\n");
}

#[test]
fn arithmetic_is_memcacheds() {
    let server = ClassicFake::start();
    let s = &mut connect(&server);
    talk(s, "incr n 1\r\n", "NOT_FOUND\r\n");
    talk(s, "set n 0 0 2\r\n10\r\nincr n 5\r\ndecr n 7\r\n", "STORED\r\n15\r\n8\r\n");
    talk(s, "get n\r\n", "VALUE n 0 2\r\n8 \r\nEND\r\n");
    talk(s, "decr n 100\r\nincr n 3\r\n", "0\r\n3\r\n");
    talk(s, "set n 0 0 20\r\n18446744073709551615\r\nincr n 2\r\n", "STORED\r\n1\r\n");
    talk(s, "set n 0 0 1\r\nx\r\n", "STORED\r\n");
    talk(s, "incr n 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n");
    talk(s, "set n 0 0 1\r\n1\r\nincr n x\r\n", "STORED\r\nCLIENT_ERROR invalid numeric delta argument\r\n");
}

#[test]
fn delete_and_shared_items() {
    let server = ClassicFake::start();
    let (a, b) = (&mut connect(&server), &mut connect(&server));
    talk(a, "set k 0 0 1\r\nv\r\n", "STORED\r\n");
    talk(b, "delete k\r\ndelete k\r\ndelete k 0\r\n", "DELETED\r\nNOT_FOUND\r\nNOT_FOUND\r\n");
    talk(a, "get k\r\n", "END\r\n");
}

#[test]
fn expiry_is_ignored() {
    let server = ClassicFake::start();
    let s = &mut connect(&server);
    // Absolute, and long ago: memcached would drop it at once.
    talk(s, "set k 0 2600000 1\r\nv\r\n", "STORED\r\n");
    talk(s, "get k\r\n", "VALUE k 0 1\r\nv\r\nEND\r\n");
}

#[test]
fn everything_else_is_an_error() {
    let server = ClassicFake::start();
    let s = &mut connect(&server);
    for line in
        ["version", "stats", "gets k", "touch k 1", "mn", "mg k v", "mg k v t", "verbosity 1", "get", "", "quit"]
    {
        talk(s, &format!("{line}\r\n"), "ERROR\r\n");
    }
    // Where the command is not known, its value is a line of its own.
    for request in ["cas k 0 0 1 9\r\nv\r\n", "ms k 1\r\nv\r\n", "set k 0 0 1 noreply\r\nv\r\n"] {
        talk(s, request, "ERROR\r\nERROR\r\n");
    }
    talk(s, "get k\r\n", "END\r\n");
}

#[test]
fn limits_are_memcacheds() {
    let server = ClassicFake::start();
    let s = &mut connect(&server);
    let key = "k".repeat(251);
    talk(s, &format!("get {key}\r\n"), "CLIENT_ERROR bad command line format\r\n");
    let value = "v".repeat((1 << 20) + 1);
    let refused = "SERVER_ERROR object too large for cache\r\n";
    talk(s, &format!("set k 0 0 {}\r\n{value}\r\n", value.len()), refused);
    talk(s, &format!("set k 0 0 {}\r\n{}\r\n", 1 << 20, &value[1..]), "STORED\r\n");
    // One that would become too large by joining looks like a miss.
    talk(s, "append k 0 0 1\r\nv\r\n", "NOT_STORED\r\n");
    talk(s, "prepend k 0 0 1\r\nv\r\n", "NOT_STORED\r\n");
    talk(s, "set k 0 0 1\r\nvv\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n");
}
