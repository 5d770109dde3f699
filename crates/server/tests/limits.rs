//! Limits, back-pressure and the end: whatever a client does, others are served and memory stays bounded.

mod common;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{start, start_with};
use larder_server::{AuthFile, Config, DurableEngine, DurableOptions, Limits, Listen, Server};
use larder_testkit::sessions::{ask, connect, exchange, finish, read_until};

fn stat(addr: SocketAddr, name: &str) -> u64 {
    let mut stream = connect(addr);
    let text = String::from_utf8(ask(&mut stream, b"stats\r\n", b"END\r\n")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().parse().unwrap()
}

/// Waits for what another thread is about to do.
#[track_caller]
fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// True once the server has closed: nothing more came before that. A server that is silent has not.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 4096]) {
        Ok(bytes) => bytes == 0,
        Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
    }
}

/// Half a megabyte, so that a few of them are more than the buffers of the system take.
fn store_big(stream: &mut TcpStream) {
    let value = vec![b'v'; 500_000];
    ask(stream, &[&b"set big 0 0 500000\r\n"[..], &value, b"\r\n"].concat(), b"STORED\r\n");
}

#[test]
fn a_reader_that_never_reads_is_dropped_and_counted_and_holds_little() {
    let server = start(Limits { slow_timeout_ms: 400, ..Limits::default() });
    let addr = server.addrs()[0];
    let mut other = connect(addr);
    store_big(&mut other);
    // A gigabyte, or a quarter of one in one line, is asked for, and none of it read.
    let many = b"get big big big big big big big big big big\r\n".repeat(200);
    let [get, gat] = ["get", "gat 0"].map(|verb| format!("{verb}{}\r\n", " big".repeat(500)).into_bytes());
    for (kicks, request) in (1..).zip([many, get, gat]) {
        let mut deaf = connect(addr);
        deaf.write_all(&request).unwrap();
        // Where this thread had to wait, the kick may have come first.
        eventually(|| stat(addr, "read_buf_bytes") > 500_000 || stat(addr, "slow_kicks") == kicks);
        assert!(stat(addr, "read_buf_bytes") < 3_000_000, "one value, and what the soft limit lets be gathered");
        assert_eq!(ask(&mut other, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
        eventually(|| stat(addr, "slow_kicks") == kicks);
        eventually(|| stat(addr, "read_buf_bytes") == 0);
        assert_eq!(ask(&mut other, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
    }
}

#[test]
fn a_get_of_more_than_fits_the_buffers_goes_on_as_it_is_read() {
    let server = start(Limits::default());
    let mut stream = connect(server.addrs()[0]);
    let value = "v".repeat(100_000);
    for key in 0..20 {
        ask(&mut stream, format!("set k{key} 0 0 100000\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
    }
    // One of them is not there: what was paused goes on behind it.
    let keys: Vec<String> = (0..21).map(|key| format!("k{key}")).collect();
    let expected: String = keys[..20].iter().map(|key| format!("VALUE {key} 0 100000\r\n{value}\r\n")).collect();
    for verb in ["get", "gat 0", "get", "gat 100"] {
        let request = format!("{verb} {}\r\nmn\r\n", keys.join(" "));
        let reply = ask(&mut stream, request.as_bytes(), b"MN\r\n");
        assert!(reply == format!("{expected}END\r\nMN\r\n").as_bytes(), "{verb}: {} bytes", reply.len());
    }
    // Each was touched, before a pause and behind it.
    for key in &keys[..20] {
        let told = ask(&mut stream, format!("mg {key} t\r\n").as_bytes(), b"\r\n");
        assert!([&b"HD t100\r\n"[..], b"HD t99\r\n"].contains(&&told[..]), "{told:?}");
    }
    let touches = stat(server.addrs()[0], "cmd_touch");
    assert_eq!(touches, 2 * 21, "none was answered twice");
}

#[test]
fn a_thousand_half_requests_hold_what_they_sent_and_disturb_nobody() {
    let server = start(Limits { connections_max: 1_200, ..Limits::default() });
    let addr = server.addrs()[0];
    const HALVES: usize = 1_000;
    common::allow_files(3 * HALVES as u64);
    let mut halves: Vec<TcpStream> = (0..HALVES).map(|_| connect(addr)).collect();
    for (at, half) in halves.iter_mut().enumerate() {
        // A megabyte is promised, ten bytes are sent.
        let request: &[u8] = match at % 3 {
            0 => b"set k 0 0 1000000\r\n0123456789",
            1 => b"ms k 1000000 T0\r\n0123456789",
            _ => b"get a b c d",
        };
        half.write_all(request).unwrap();
    }
    let mut other = connect(addr);
    eventually(|| stat(addr, "curr_connections") > HALVES as u64);
    for _ in 0..100 {
        assert_eq!(
            ask(&mut other, b"set o 0 0 1\r\nx\r\nget o\r\n", b"END\r\n"),
            b"STORED\r\nVALUE o 0 1\r\nx\r\nEND\r\n"
        );
    }
    eventually(|| stat(addr, "read_buf_bytes") >= HALVES as u64 * 10);
    assert!(stat(addr, "read_buf_bytes") < HALVES as u64 * 1_024, "{}", stat(addr, "read_buf_bytes"));
    let reply = finish(halves.swap_remove(2), [&b" e\r\n"[..]]);
    assert_eq!(reply, b"END\r\n", "and each may still be finished");
}

#[test]
fn connections_that_together_hold_too_much_are_closed() {
    let server = start(Limits { held_bytes_max: 1 << 20, ..Limits::default() });
    let addr = server.addrs()[0];
    let mut hoarders: Vec<TcpStream> = (0..8).map(|_| connect(addr)).collect();
    for hoarder in &mut hoarders {
        let _ = hoarder.write_all(&[&b"set k 0 0 1000000\r\n"[..], &[b'x'; 600_000]].concat());
    }
    eventually(|| stat(addr, "held_kicks") > 0);
    eventually(|| stat(addr, "read_buf_bytes") <= 1 << 20);
    assert_eq!(exchange(addr, [&b"set k 0 0 1\r\nx\r\nget k\r\n"[..]]), b"STORED\r\nVALUE k 0 1\r\nx\r\nEND\r\n");
}

/// Half of a large value, of which no more comes, or a byte now and then, keeps no room from others for ever. Who sends little, or gets on, is let be.
#[test]
fn who_holds_half_a_request_and_does_not_get_on_with_it_makes_room_for_others() {
    const SLOW_MS: u64 = 2_500;
    const HOARDERS: u64 = 4;
    let limits = Limits { held_bytes_max: 3 << 19, slow_timeout_ms: SLOW_MS, ..Limits::default() };
    let server = start(limits);
    let addr = server.addrs()[0];
    let [mut telnet, mut steady] = [(); 2].map(|()| connect(addr));
    telnet.write_all(b"set small 0 0 5\r\nhe").unwrap();
    let half = [&b"set hoard 0 0 1000000\r\n"[..], &[b'x'; 200_000]].concat();
    let mut hoarders: Vec<TcpStream> = (0..HOARDERS).map(|_| connect(addr)).collect();
    hoarders.iter_mut().for_each(|hoarder| hoarder.write_all(&half).unwrap());
    eventually(|| stat(addr, "read_buf_bytes") > HOARDERS * 200_000);
    let large = [&b"set large 0 0 900000\r\n"[..], &[b'y'; 900_000], b"\r\n"].concat();
    // There is no room for it. Its client stays: one that has gone is not closed for what it holds.
    let mut refused = connect(addr);
    let _ = refused.write_all(&large[..800_000]);
    eventually(|| stat(addr, "held_kicks") == 1);
    // It gets on, for twice as long as others may stand still.
    steady.write_all(b"set steady 0 0 60000\r\n").unwrap();
    for _ in 0..20 {
        steady.write_all(&[b'z'; 3_000]).unwrap();
        // A byte now and then is not getting on: who has gone finds nobody.
        hoarders.iter_mut().for_each(|hoarder| _ = hoarder.write_all(b"x"));
        std::thread::sleep(Duration::from_millis(SLOW_MS / 10));
    }
    eventually(|| stat(addr, "slow_kicks") == HOARDERS);
    assert!(hoarders.iter_mut().all(is_closed));
    assert_eq!(exchange(addr, [&large[..]]), b"STORED\r\n", "others have the room");
    steady.write_all(b"\r\n").unwrap();
    assert_eq!(read_until(&mut steady, b"\n"), b"STORED\r\n");
    telnet.write_all(b"llo\r\n").unwrap();
    assert_eq!(read_until(&mut telnet, b"\n"), b"STORED\r\n");
    assert_eq!((stat(addr, "slow_kicks"), stat(addr, "held_kicks")), (HOARDERS, 1), "nobody else was closed");
}

/// What is left of many requests that came together is counted as it is, not as the buffer that they came in.
#[test]
fn a_little_rest_of_much_is_held_as_a_little() {
    let server = start(Limits { slow_timeout_ms: 300, ..Limits::default() });
    let addr = server.addrs()[0];
    let mut stream = connect(addr);
    let large = [&b"set k 0 0 900000\r\n"[..], &[b'v'; 900_000], b"\r\nget k"].concat();
    ask(&mut stream, &large, b"STORED\r\n");
    eventually(|| (1..=4_096).contains(&stat(addr, "read_buf_bytes")));
    std::thread::sleep(Duration::from_millis(900));
    let reply = ask(&mut stream, b"\r\n", b"END\r\n");
    assert_eq!(reply.len(), b"VALUE k 0 900000\r\n\r\nEND\r\n".len() + 900_000);
}

/// A rest that is more than any may hold is not the end of a buffer of a megabyte either: what is counted is what there is.
#[test]
fn a_rest_of_much_holds_no_more_than_is_counted() {
    const CONNECTIONS: usize = 100;
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    };
    let server = start(Limits::default());
    let addr = server.addrs()[0];
    let large = [&b"set k 0 0 900000\r\n"[..], &[b'v'; 900_000], b"\r\nset r 0 0 90000\r\n", &[b'r'; 8_000]].concat();
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| connect(addr)).collect();
    ask(&mut streams[0], &large, b"STORED\r\n");
    let before = resident();
    for stream in &mut streams[1..] {
        ask(stream, &large, b"STORED\r\n");
    }
    eventually(|| stat(addr, "read_buf_bytes") >= CONNECTIONS as u64 * 8_000);
    let grown = resident().saturating_sub(before);
    assert!(grown < CONNECTIONS as u64 * 400_000, "{grown} bytes for {CONNECTIONS} rests of 8,000");
}

#[test]
fn one_connection_too_many_is_told_so() {
    let server = start(Limits { connections_max: 2, ..Limits::default() });
    let addr = server.addrs()[0];
    let (mut one, two) = (connect(addr), connect(addr));
    ask(&mut one, b"mn\r\n", b"MN\r\n");
    let mut three = connect(addr);
    assert_eq!(read_until(&mut three, b"\n"), b"ERROR Too many open connections\r\n");
    assert!(is_closed(&mut three));
    drop(two);
    eventually(|| exchange(addr, [&b"mn\r\n"[..]]) == b"MN\r\n");
}

#[test]
fn the_idle_are_closed_and_the_busy_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let limits = Limits { idle_timeout_ms: 2_000, ..Limits::default() };
    let listen = [common::anywhere(), vec![Listen::Unix(socket.clone(), 0o700)]].concat();
    let server = start_with(Config { listen, limits, ..Config::default() });
    let addr = server.addrs()[0];
    let (mut idle, mut busy) = (connect(addr), connect(addr));
    let mut unix = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    ask(&mut idle, b"mn\r\n", b"MN\r\n");
    let until = Instant::now() + Duration::from_millis(4_800);
    while Instant::now() < until {
        ask(&mut busy, b"mn\r\n", b"MN\r\n");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(is_closed(&mut idle));
    ask(&mut busy, b"mn\r\n", b"MN\r\n");
    unix.write_all(b"mn\r\n").unwrap();
    assert_eq!(unix.read(&mut [0]).expect("memcached closes none of these, either"), 1);
    assert_eq!(stat(addr, "idle_kicks"), 1);
}

/// As in memcached: `SECURITY.md` says so.
#[test]
fn whoever_is_let_in_may_lower_the_limit_of_memory_so_that_the_next_write_finds_no_room() {
    let server = start(Limits::default());
    let mut client = connect(server.addrs()[0]);
    let mut set = |key: &str| {
        let set = format!("set {key} 0 0 500000\r\n{}\r\n", "v".repeat(500_000));
        String::from_utf8(ask(&mut client, set.as_bytes(), b"\r\n")).unwrap()
    };
    for nth in 0..20 {
        assert_eq!(set(&format!("k{nth}")), "STORED\r\n");
    }
    let mut other = connect(server.addrs()[0]);
    assert_eq!(ask(&mut other, b"cache_memlimit 8\r\n", b"\r\n"), b"OK\r\n");
    assert_eq!(set("more"), "SERVER_ERROR out of memory storing object\r\n");
    assert_eq!(ask(&mut other, b"mg k0 s\r\n", b"\r\n"), b"HD s500000\r\n", "what is there stays");
    assert_eq!(ask(&mut other, b"cache_memlimit 64\r\n", b"\r\n"), b"OK\r\n");
    assert_eq!(set("more"), "STORED\r\n");
}

/// What a client of TLS 1.2 and 1.3 begins with, without a byte that ends a line.
fn client_hello() -> Vec<u8> {
    let key_share = [&[0x00, 0x33, 0x00, 0x26, 0x00, 0x24, 0x00, 0x1d, 0x00, 0x20][..], &[0x55; 32]].concat();
    let extensions = [
        // Versions 1.3 and 1.2; one scheme of signatures.
        &[0x00, 0x2b, 0x00, 0x05, 0x04, 0x03, 0x04, 0x03, 0x03, 0x00, 0x0d, 0x00, 0x04, 0x00, 0x02, 0x04, 0x03][..],
        &key_share,
    ];
    let extensions = extensions.concat();
    let body = [
        // The version, what is random, no session, two cipher suites, no compression.
        &[0x03, 0x03][..],
        &[0x33; 32],
        &[0x00, 0x00, 0x04, 0x13, 0x01, 0xc0, 0x2b, 0x01, 0x00, 0x00, extensions.len() as u8],
        &extensions,
    ];
    let body = body.concat();
    let message = [&[0x01, 0x00, 0x00, body.len() as u8][..], &body].concat();
    let record = [&[0x16, 0x03, 0x01, 0x00, message.len() as u8][..], &message].concat();
    assert!(!record.contains(&b'\n'));
    record
}

#[test]
fn what_is_no_memcached_client_is_closed_and_disturbs_nobody() {
    let server = start(Limits::default());
    let addr = server.addrs()[0];
    let mut other = connect(addr);
    let binary_noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
    let endless = vec![b'x'; 1 << 20];
    let endless_get = [&b"get "[..], &vec![b'x'; 2 << 20]].concat();
    let http = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec();
    for hello in [client_hello(), [&client_hello()[..], &[7; 4_000]].concat(), vec![0x16]] {
        let mut stream = connect(addr);
        stream.write_all(&hello).unwrap();
        // It waits for an answer, and has sent no end of a line.
        assert_eq!(read_until(&mut stream, b"\n"), b"ERROR\r\n");
        assert!(is_closed(&mut stream));
        assert_eq!(ask(&mut other, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
    }
    for request in [binary_noop, endless, endless_get, http] {
        let mut stream = connect(addr);
        // The server may have closed before all was sent.
        let _ = stream.write_all(&request);
        assert!(is_closed(&mut stream), "{:?}", request[..8].escape_ascii().to_string());
        assert_eq!(ask(&mut other, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
    }
    assert_eq!(
        exchange(addr, [&b"get a too-long-"[..], &[b'k'; 250], b"\r\nmn\r\n"]),
        b"CLIENT_ERROR bad command line format\r\nMN\r\n"
    );
    assert_eq!(
        exchange(addr, [&b"set k 0 0 2147483645\r\nmn\r\n"[..]]),
        b"SERVER_ERROR object too large for cache\r\n"
    );
}

#[test]
fn an_end_lets_requests_under_way_finish() {
    let (limits, metrics) = (Limits { drain_timeout_ms: 8_000, ..Limits::default() }, "127.0.0.1:0".parse().ok());
    let server = start_with(Config { limits, metrics, ..Config::default() });
    let (addr, http) = (server.addrs()[0], server.metrics_addr().unwrap());
    let (mut half, mut idle) = (connect(addr), connect(addr));
    ask(&mut idle, b"mn\r\n", b"MN\r\n");
    half.write_all(b"mn\r\nset k 0 0 5\r\nhel").unwrap();
    read_until(&mut half, b"MN\r\n");
    let stopping = std::thread::spawn(move || server.stop());
    assert!(is_closed(&mut idle));
    assert!(TcpStream::connect_timeout(&addr, Duration::from_millis(500)).is_err(), "it takes no more connections");
    // Whoever looks after it is told why.
    let health = String::from_utf8(exchange(http, [&b"GET /healthz HTTP/1.0\r\n\r\n"[..]])).unwrap();
    assert!(health.starts_with("HTTP/1.1 503 ") && health.ends_with("\r\n\r\nending\n"), "{health}");
    half.write_all(b"lo\r\n").unwrap();
    assert_eq!(read_until(&mut half, b"\n"), b"STORED\r\n");
    assert!(is_closed(&mut half));
    stopping.join().unwrap();
    assert!(TcpStream::connect(http).is_err(), "it is over");
}

/// Whoever does not get on with what is under way keeps nobody waiting for longer than was said.
#[test]
fn who_never_finishes_is_cut_off_when_the_time_for_it_is_over() {
    // One that is far from over, and would be, were the time for it another than was said.
    for (drain_timeout_ms, is_cut_off) in [(300, true), (60_000, false)] {
        let server = start(Limits { drain_timeout_ms, ..Limits::default() });
        let mut half = connect(server.addrs()[0]);
        half.write_all(b"mn\r\nset k 0 0 5\r\nhel").unwrap();
        read_until(&mut half, b"MN\r\n");
        let (ended, end) = std::sync::mpsc::channel();
        let stopping = std::thread::spawn(move || {
            let began = Instant::now();
            server.stop();
            ended.send(began.elapsed()).unwrap();
        });
        if is_cut_off {
            let took = end.recv_timeout(Duration::from_secs(20)).expect("it ends");
            assert!(took >= Duration::from_millis(drain_timeout_ms), "the time was given: {took:?}");
            assert!(is_closed(&mut half), "nothing was acknowledged");
        } else {
            assert!(end.recv_timeout(Duration::from_millis(1_500)).is_err(), "there is time left");
            half.write_all(b"lo\r\n").unwrap();
            assert_eq!(read_until(&mut half, b"\n"), b"STORED\r\n");
        }
        stopping.join().unwrap();
    }
}

/// The end may come at any moment of a batch, before and after its reply: who was answered the first half of one gets the second.
#[test]
fn an_end_in_the_middle_of_a_batch_cuts_nobody_off() {
    for round in 0..100 {
        let server = start(Limits { drain_timeout_ms: 8_000, ..Limits::default() });
        let mut half = connect(server.addrs()[0]);
        half.write_all(b"mn\r\nset k 0 0 5\r\nhel").unwrap();
        read_until(&mut half, b"MN\r\n");
        let stopping = std::thread::spawn(move || server.stop());
        std::thread::sleep(Duration::from_micros(round * 100));
        half.write_all(b"lo\r\n").unwrap();
        assert_eq!(read_until(&mut half, b"\n"), b"STORED\r\n");
        stopping.join().unwrap();
    }
}

/// The end may come between the moment in which a connection is accepted and that in which a thread has it.
#[test]
fn an_end_comes_however_many_are_just_coming_in() {
    for _ in 0..150 {
        let server = start(Limits::default());
        let addr = server.addrs()[0];
        let coming = std::thread::spawn(move || (0..20).map(|_| TcpStream::connect(addr)).collect::<Vec<_>>());
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            server.stop();
            ended.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(20)).expect("it ends");
        drop(coming.join().unwrap());
    }
}

#[test]
fn a_client_may_end_it_only_where_that_is_allowed() {
    // Graceful or not, who is in the middle of a request finishes it.
    for shutdown in ["shutdown\r\n", "shutdown graceful\r\n"] {
        let limits = Limits { shutdown_enabled: true, drain_timeout_ms: 8_000, ..Limits::default() };
        let server = start(limits);
        let addr = server.addrs()[0];
        assert_eq!(exchange(addr, [&b"shutdown now\r\n"[..]]), b"CLIENT_ERROR invalid shutdown mode\r\n");
        assert_eq!(exchange(addr, [&b"shutdown graceful now\r\n"[..]]), b"CLIENT_ERROR invalid shutdown mode\r\n");
        let mut half = connect(addr);
        half.write_all(b"mn\r\nset k 0 0 5\r\nhel").unwrap();
        read_until(&mut half, b"MN\r\n");
        assert_eq!(exchange(addr, [shutdown.as_bytes()]), b"", "{shutdown}");
        eventually(|| TcpStream::connect(addr).is_err());
        half.write_all(b"lo\r\n").unwrap();
        assert_eq!(read_until(&mut half, b"\n"), b"STORED\r\n", "{shutdown}");
        server.wait();
    }
    let server = start(Limits::default());
    assert_eq!(exchange(server.addrs()[0], [&b"shutdown graceful\r\n"[..]]), b"SERVER_ERROR: shutdown not enabled\r\n");
}

#[test]
fn a_unix_socket_and_an_auth_file_let_in_whom_they_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("larder.sock");
    let auth = AuthFile::parse(b"joe:secret\n").unwrap();
    let config =
        || Config { listen: vec![Listen::Unix(path.clone(), 0o600)], auth: Some(auth.clone()), ..Config::default() };
    let server = start_with(config());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let ask = |pieces: &[&[u8]]| {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        pieces.iter().for_each(|piece| stream.write_all(piece).unwrap());
        stream.shutdown(Shutdown::Write).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    const OUT: &str = "CLIENT_ERROR unauthenticated\r\n";
    assert_eq!(ask(&[b"get key\r\n"]), OUT);
    assert_eq!(
        ask(&[b"set x 0 0 9\r\njoe wrong\r\nversion\r\n"]),
        format!("CLIENT_ERROR authentication failure\r\n{OUT}")
    );
    assert_eq!(ask(&[b"set x 0 0 10\r\njoe se", b"cret\r\nmn\r\n"]), "STORED\r\nMN\r\n");
    assert_eq!(
        ask(&[b"set x 0 0 3\r\njoe\r\nset x 0 0 10\r\njoe secret\r\nmn\r\n"]),
        "CLIENT_ERROR bad authentication token format\r\nSTORED\r\nMN\r\n"
    );
    assert_eq!(ask(&[b"set x 0 0 99999\r\n"]), "CLIENT_ERROR auth token too long\r\n");
    assert!(Server::start(common::engine(&Limits::default()), config()).is_err(), "one that lives is not pushed aside");
    drop(server);
    drop(start_with(config()));
}

#[test]
fn metrics_and_health_are_told_over_http() {
    let metrics = Some("127.0.0.1:0".parse().unwrap());
    let limits = Limits { slow_timeout_ms: 300, ..Limits::default() };
    let server = start_with(Config { metrics, limits, ..Config::default() });
    let (addr, http) = (server.addrs()[0], server.metrics_addr().unwrap());
    exchange(addr, [&b"set k 0 0 1\r\nx\r\nget k\r\nget l\r\n"[..], &b"get k\r\n".repeat(64)]);
    let ask = |request: &str| String::from_utf8(exchange(http, [request.as_bytes()])).unwrap();
    let text = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    for line in [
        "larder_get_hits_total 65",
        "larder_get_misses_total 1",
        "larder_slow_kicks_total 0",
        "larder_items 1",
        "# TYPE larder_request_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    is_prometheus(text.split_once("\r\n\r\n").unwrap().1);
    let reads = histogram(&text, "read");
    assert!((64..=80).contains(&reads), "of 66, one in 16 is timed, and stands for all 16: {text}");
    assert!(text.lines().any(|line| line.starts_with("# HELP larder_request_seconds ")), "{text}");
    assert!(histogram(&text, "write") + histogram(&text, "other") < reads, "{text}");
    // One who asks for more than the buffers of the system take, and reads nothing, is counted.
    let mut deaf = connect(addr);
    store_big(&mut deaf);
    deaf.write_all(&b"get big\r\n".repeat(200)).unwrap();
    eventually(|| ask("GET /metrics HTTP/1.0\r\n\r\n").lines().any(|line| line == "larder_slow_kicks_total 1"));
    assert!(ask("GET /healthz HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nok\n"));
    assert!(ask("GET /other HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask("DELETE /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 405"));
}

/// Whoever asks over HTTP and gets to no end of it, by however many connections, keeps nobody from being told how the server is.
#[test]
fn a_thousand_half_requests_over_http_keep_nobody_from_its_health() {
    const HALVES: usize = 1_000;
    /// As many as are open at a time.
    const OPEN_MAX: usize = 16;
    common::allow_files(2 * HALVES as u64);
    let server = start_with(Config { metrics: "127.0.0.1:0".parse().ok(), ..Config::default() });
    let http = server.metrics_addr().unwrap();
    let ask_health = || {
        let asked = Instant::now();
        let told = exchange(http, [&b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"[..]]);
        assert!(told.ends_with(b"\r\n\r\nok\n"), "{:?}", told.escape_ascii().to_string());
        assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
    };
    let long = [&b"GET /healthz HTTP/1.1\r\nX: "[..], &[b'x'; 8_000]].concat();
    let mut halves = Vec::new();
    for at in 0..HALVES {
        let mut half = connect(http);
        half.set_nonblocking(true).unwrap();
        // Nothing, a line, nearly the longest head, and one that is asked for and never read.
        let begun = [b"", &b"GET /healthz HTTP/1.1\r\n"[..], &long, b"GET /metrics HTTP/1.1\r\n\r\n"][at % 4];
        half.write_all(begun).unwrap();
        halves.push(half);
        if at % 20 == 19 {
            ask_health();
        }
    }
    // Those that are closed for others are, at once.
    let is_open = |mut half: &TcpStream| match half.read(&mut [0; 4_096]) {
        Ok(bytes) => bytes > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    eventually(|| halves.iter().filter(|half| is_open(half)).count() <= OPEN_MAX);
    drop(halves);
    // A head that is too long, or ends before its end, is not answered.
    for head in [[&long[..], &[b'x'; 12_000], b"\r\n\r\n"].concat(), long] {
        let mut stream = connect(http);
        let _ = stream.write_all(&head).and_then(|()| stream.shutdown(Shutdown::Write));
        assert!(is_closed(&mut stream), "{} bytes", head.len());
        ask_health();
    }
}

/// Nor do those who come right behind one that is whole, and are accepted at one go with it.
#[test]
fn a_request_over_http_is_answered_however_many_come_behind_it() {
    let server = start_with(Config { metrics: "127.0.0.1:0".parse().ok(), ..Config::default() });
    let http = server.metrics_addr().unwrap();
    for _ in 0..50 {
        let mut asking = connect(http);
        asking.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let behind: Vec<TcpStream> = (0..100).map(|_| connect(http)).collect();
        let mut told = Vec::new();
        asking.read_to_end(&mut told).unwrap();
        assert!(told.ends_with(b"\r\n\r\nok\n"), "{:?}", told.escape_ascii().to_string());
        drop(behind);
    }
}

/// The same of one who goes on with it, and comes anew as soon as it is closed.
#[test]
fn a_flood_of_half_requests_over_http_keeps_nobody_from_its_health() {
    const CONNECTIONS: usize = 100;
    let server = start_with(Config { metrics: "127.0.0.1:0".parse().ok(), ..Config::default() });
    let http = server.metrics_addr().unwrap();
    let (is_over, came) = (AtomicBool::new(false), AtomicUsize::new(0));
    let flood = || {
        let mut halves = VecDeque::new();
        while !is_over.load(Ordering::Relaxed) {
            let Ok(mut half) = TcpStream::connect(http) else { continue };
            let _ = half.write_all(b"GET /healthz HTTP/1.1\r\n");
            half.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            came.fetch_add(1, Ordering::Relaxed);
            halves.push_back(half);
            while halves.len() == CONNECTIONS && !is_over.load(Ordering::Relaxed) {
                if halves.front_mut().is_some_and(is_closed) {
                    halves.pop_front();
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(flood);
        scope.spawn(flood);
        let asking = scope.spawn(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(2) || came.load(Ordering::Relaxed) < 10 * CONNECTIONS {
                let asked = Instant::now();
                // Whose thread stands still between its connection and its request may be closed for others, and comes again.
                while !exchange(http, [&b"GET /healthz HTTP/1.1\r\n\r\n"[..]]).ends_with(b"\r\n\r\nok\n") {}
                assert!(asked.elapsed() < Duration::from_secs(1), "it took {:?}", asked.elapsed());
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let asked = asking.join();
        is_over.store(true, Ordering::Relaxed);
        asked.unwrap();
    });
}

/// Asserts the text form that Prometheus reads: each family once, with its help and type before its samples, names that are allowed, no series twice, and figures.
#[track_caller]
fn is_prometheus(text: &str) {
    assert!(text.ends_with('\n') && !text.contains('\r'), "{text}");
    let (mut families, mut series) = (BTreeMap::new(), BTreeSet::new());
    let mut lines = text.lines().peekable();
    while let Some(help) = lines.next() {
        let (family, said) = help.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')).expect(help);
        let is_name = |name: &str| {
            name.starts_with("larder_") && name.bytes().all(|it| b"_".contains(&it) || it.is_ascii_lowercase())
        };
        assert!(is_name(family) && !said.is_empty(), "{help}");
        let kind = lines.next().unwrap();
        let kind = kind.strip_prefix(&format!("# TYPE {family} ")).expect(kind);
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{family}: {kind}");
        assert_eq!(family.ends_with("_total"), kind == "counter", "{family}");
        assert!(families.insert(family.to_owned(), 0).is_none(), "{family} twice");
        while let Some(sample) = lines.next_if(|line| !line.starts_with('#')) {
            let (name, figure) = sample.rsplit_once(' ').unwrap();
            assert!(figure.parse::<f64>().is_ok(), "{sample}");
            assert!(series.insert(name.to_owned()), "{name} twice");
            let bare = name.split('{').next().unwrap();
            let suffix = bare.strip_prefix(family).expect(sample);
            assert!(
                if kind == "histogram" { ["_bucket", "_sum", "_count"].contains(&suffix) } else { suffix.is_empty() },
                "{sample}"
            );
            *families.get_mut(family).unwrap() += 1;
        }
    }
    assert!(families.len() > 10 && families.values().all(|&samples| samples > 0), "{families:?}");
}

/// How many requests of a class there were. Its buckets count all that took no longer than their bounds, the last of them all there are.
fn histogram(text: &str, class: &str) -> u64 {
    let buckets: Vec<(f64, u64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("larder_request_seconds_bucket{{class=\"{class}\",le=\"")))
        .map(|bucket| bucket.split_once("\"} ").unwrap())
        .map(|(bound, count)| (bound.parse().unwrap(), count.parse().unwrap()))
        .collect();
    assert!(buckets.len() > 20, "{text}");
    assert!(buckets.is_sorted_by(|one, next| one.0 < next.0 && one.1 <= next.1), "{class}: {buckets:?}");
    let count =
        text.lines().find_map(|line| line.strip_prefix(&format!("larder_request_seconds_count{{class=\"{class}\"}} ")));
    let count: u64 = count.unwrap().parse().unwrap();
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{class}");
    count
}

#[test]
fn everything_can_be_listed_and_flushed_later() {
    let server = start(Limits { track_access: true, ..Limits::default() });
    let mut stream = connect(server.addrs()[0]);
    ask(&mut stream, b"set a%b 7 100 3\r\nabc\r\nms AAEC 1 b\r\nx\r\n", b"HD\r\n");
    let dump = String::from_utf8(ask(&mut stream, b"lru_crawler metadump all\r\n", b"END\r\n")).unwrap();
    assert!(dump.starts_with("OK\r\n") && dump.contains("key=a%25b exp=") && dump.contains(" flags=7 \n"), "{dump}");
    let dump = String::from_utf8(ask(&mut stream, b"lru_crawler mgdump hash\r\n", b"EN\r\n")).unwrap();
    assert!(dump.contains("mg a%b\r\n") && dump.contains("mg AAEC b\r\n"), "{dump}");
    let settings = String::from_utf8(ask(&mut stream, b"stats settings\r\n", b"END\r\n")).unwrap();
    for setting in ["STAT durability process", "STAT evictions off", "STAT incarnation ", "STAT item_size_max 1048576"]
    {
        assert!(settings.contains(setting), "{setting} in {settings}");
    }
    let sizes = String::from_utf8(ask(&mut stream, b"stats sizes\r\n", b"END\r\n")).unwrap();
    assert_eq!(sizes, "STAT 64 1\r\nSTAT 96 1\r\nEND\r\n");
    ask(&mut stream, &[b"mg a%b v\r\n".repeat(160), b"mn\r\n".to_vec()].concat(), b"MN\r\n");
    let latency = String::from_utf8(ask(&mut stream, b"stats latency\r\n", b"END\r\n")).unwrap();
    let reads = latency.lines().find_map(|line| line.strip_prefix("STAT read:count ")).unwrap();
    let reads: u64 = reads.parse().unwrap();
    assert!((144..=192).contains(&reads), "of one in sixteen of 160 and a few: {latency}");
    let mut answer = |line: &[u8]| String::from_utf8(ask(&mut stream, line, b"\r\n")).unwrap();
    assert_eq!(answer(b"stats cachedump 2 0\r\n"), "END\r\n");
    assert_eq!(answer(b"stats cachedump 64 0\r\n"), "CLIENT_ERROR Illegal slab id\r\n");
    assert_eq!(answer(b"stats cachedump 1\r\n"), "CLIENT_ERROR bad command line\r\n");
    assert_eq!(answer(b"stats cachedump 1 x\r\n"), "CLIENT_ERROR bad command line format\r\n");
    ask(&mut stream, b"set never 0 0 1\r\nx\r\n", b"STORED\r\n");
    let dump = String::from_utf8(ask(&mut stream, b"stats cachedump 1 0\r\n", b"END\r\n")).unwrap();
    assert!(dump.contains("ITEM never [1 b; 0 s]\r\n") && dump.contains("ITEM a%b [3 b; 1"), "{dump}");
    assert_eq!(dump.matches("ITEM ").count(), 2, "a key of other bytes has no place there: {dump}");
    let one = String::from_utf8(ask(&mut stream, b"stats cachedump 1 1\r\n", b"END\r\n")).unwrap();
    assert_eq!(one.matches("ITEM ").count(), 1, "{one}");
    assert_eq!(ask(&mut stream, b"flush_all 2\r\nmg a%b v\r\n", b"abc\r\n"), b"OK\r\nVA 3\r\nabc\r\n");
    std::thread::sleep(Duration::from_millis(1_300));
    assert_eq!(ask(&mut stream, b"mg a%b v\r\n", b"EN\r\n"), b"EN\r\n");
    ask(&mut stream, b"set l 0 0 1\r\nx\r\n", b"STORED\r\n");
    std::thread::sleep(Duration::from_millis(1_100));
    let reply = String::from_utf8(ask(&mut stream, b"mg l l u\r\n", b"\r\n")).unwrap();
    assert!(reply == "HD l1\r\n" || reply == "HD l2\r\n", "{reply}");
    assert_eq!(ask(&mut stream, b"mg l l\r\nmg l l\r\n", b"l0\r\n").len(), reply.len() * 2);
}

/// Each keeps what it is of on the disk, and a thread at work.
#[test]
fn no_more_than_two_backups_are_sent_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = DurableOptions::new(folder.path()).open().unwrap();
    let config = Config { listen: common::anywhere(), threads: 1, ..Config::default() };
    let server = Server::start(DurableEngine::new(store), config).unwrap();
    let addr = server.addrs()[0];
    let mut other = connect(addr);
    for nth in 0..30 {
        let value = vec![b'v'; 1_000_000];
        let set = [format!("set k{nth} 0 0 1000000\r\n").as_bytes(), &value, b"\r\n"].concat();
        ask(&mut other, &set, b"STORED\r\n");
    }
    let begin = |stream: &mut TcpStream| {
        stream.write_all(b"lru_crawler backup all\r\n").unwrap();
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).unwrap();
        reply == *b"OK\r\n"
    };
    let begun = || {
        let mut stream = connect(addr);
        assert!(begin(&mut stream));
        stream
    };
    let (one, _two) = (begun(), begun());
    let busy = b"SERVER_ERROR busy: two backups are being sent\r\n";
    for _ in 0..2 {
        assert_eq!(ask(&mut other, b"lru_crawler backup all\r\n", b"\r\n"), busy);
    }
    drop(one);
    eventually(|| begin(&mut connect(addr)));
}
