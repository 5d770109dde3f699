//! TLS: which versions are spoken, and what the files must be.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use larder_server::{ClientCerts, Config, Limits, Server, Tls};
use larder_testkit::servers::rss_bytes_of;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

/// Held by those that take much memory, where tests share a process: one measures it.
static MEMORY: Mutex<()> = Mutex::new(());

/// A certificate and its key, in files.
fn files(folder: &std::path::Path) -> Tls {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Tls::new(cert, key)
}

/// A client that speaks this version alone, without a socket.
fn unconnected(tls: &Tls, version: &'static SupportedProtocolVersion) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&tls.chain).unwrap()).unwrap();
    let config = ClientConfig::builder_with_protocol_versions(&[version]).with_root_certificates(roots);
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::new(config.with_no_client_auth()), name).unwrap()
}

fn client(
    server: &Server,
    tls: &Tls,
    version: &'static SupportedProtocolVersion,
) -> StreamOwned<ClientConnection, TcpStream> {
    StreamOwned::new(unconnected(tls, version), TcpStream::connect(server.addrs()[0]).unwrap())
}

/// What it is answered.
fn said(server: &Server, tls: &Tls, version: &'static SupportedProtocolVersion) -> std::io::Result<Vec<u8>> {
    let mut stream = client(server, tls, version);
    stream.write_all(b"mn\r\n")?;
    let mut reply = vec![0; 4];
    stream.read_exact(&mut reply)?;
    Ok(reply)
}

#[test]
fn versions_are_1_2_and_1_3_or_the_latter_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tls = files(folder.path());
    for only_1_3 in [false, true] {
        let tls = Tls { only_1_3, ..tls.clone() };
        let server = common::start_with(Config { tls: Some(tls.clone()), ..Config::default() });
        assert_eq!(said(&server, &tls, &TLS13).unwrap(), b"MN\r\n");
        assert_eq!(said(&server, &tls, &TLS12).is_ok(), !only_1_3);
    }
}

/// What the socket does not take at once is sent when it does, without another request of the client's.
#[test]
fn a_large_reply_to_a_slow_client_comes_whole() {
    const BYTES: usize = 1_000_000;
    let _alone = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let tls = files(folder.path());
    let server = common::start_with(Config { tls: Some(tls.clone()), ..Config::default() });
    for version in [&TLS12, &TLS13] {
        let mut stream = client(&server, &tls, version);
        stream.sock.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        stream.write_all(format!("set k 0 0 {BYTES}\r\n").as_bytes()).unwrap();
        stream.write_all(&vec![b'v'; BYTES]).unwrap();
        stream.write_all(b"\r\n").unwrap();
        let mut stored = [0; 8];
        stream.read_exact(&mut stored).unwrap();
        assert_eq!(&stored, b"STORED\r\n");
        // More than the sockets hold, however far they grow.
        const TIMES: usize = 12;
        stream.write_all(&b"get k\r\n".repeat(TIMES)).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        let mut reply = vec![0; TIMES * (format!("VALUE k 0 {BYTES}\r\n\r\nEND\r\n").len() + BYTES)];
        stream.read_exact(&mut reply).expect("all of it comes");
        assert!(reply.ends_with(b"v\r\nEND\r\n"));
    }
}

#[test]
fn a_file_that_is_not_what_it_is_to_be_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let tls = files(folder.path());
    let other = folder.path().join("other.pem");
    std::fs::write(&other, "no certificate").unwrap();
    for tls in [
        Tls { chain: other.clone(), ..tls.clone() },
        Tls { key: other.clone(), ..tls.clone() },
        Tls { clients: ClientCerts::Required(other.clone()), ..tls.clone() },
        Tls { clients: ClientCerts::Asked(folder.path().join("other.pem")), ..tls.clone() },
    ] {
        let config = Config { listen: common::anywhere(), tls: Some(tls.clone()), ..Config::default() };
        let engine = common::engine(&larder_server::Limits::default());
        let error = Server::start(engine, config).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), larder_core::ErrorKind::Config, "{text}");
        assert!(text.contains("other.pem") || text.contains("cert.pem"), "{tls:?}: {text}");
    }
}

/// As a proxy or a timer asks for it once there are new files.
#[test]
fn certificates_are_read_again_for_connections_to_come_and_stay_where_they_cannot_be() {
    let (folder, renewed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (tls, next) = (files(folder.path()), files(renewed.path()));
    // What each of them is to trust, whatever becomes of the files.
    let (old, new) = (unconnected(&tls, &TLS13), unconnected(&next, &TLS13));
    let server = common::start_with(Config { tls: Some(tls.clone()), ..Config::default() });
    let connect = |client| StreamOwned::new(client, TcpStream::connect(server.addrs()[0]).unwrap());
    let mut before = connect(old);
    let mut ask = |request: &str| {
        before.write_all(request.as_bytes()).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"MN\r\n") {
            let mut byte = [0];
            before.read_exact(&mut byte).unwrap();
            reply.extend(byte);
        }
        String::from_utf8(reply).unwrap()
    };
    assert_eq!(ask("refresh_certs\r\nmn\r\n"), "OK\r\nMN\r\n", "nothing is new");
    assert_eq!(said(&server, &tls, &TLS13).unwrap(), b"MN\r\n");
    let (trusted, key) = (folder.path().join("old.pem"), std::fs::read(&tls.key).unwrap());
    std::fs::copy(&tls.chain, &trusted).unwrap();
    let old = Tls { chain: trusted, ..tls.clone() };
    // A new certificate that its key does not belong to, and none at all: the old one stays.
    std::fs::copy(&next.chain, &tls.chain).unwrap();
    for (broken, request) in [(key, "refresh_certs\r\n"), (b"no key".to_vec(), "refresh_certs noreply\r\n")] {
        std::fs::write(&tls.key, broken).unwrap();
        let reply = ask(&format!("{request}mn\r\n"));
        assert!(reply.starts_with("SERVER_ERROR ") && reply.lines().count() == 2, "{reply}");
        assert!(!reply.contains(".pem"), "{reply}");
        assert_eq!(said(&server, &old, &TLS13).unwrap(), b"MN\r\n");
    }
    std::fs::copy(&next.key, &tls.key).unwrap();
    assert_eq!(ask("refresh_certs noreply\r\nmn\r\n"), "MN\r\n");
    connect(new).write_all(b"quit\r\n").unwrap();
    assert_eq!(said(&server, &next, &TLS13).unwrap(), b"MN\r\n");
    assert!(said(&server, &old, &TLS13).is_err(), "who trusts the old one alone comes in no more");
    assert_eq!(ask("mn\r\n"), "MN\r\n", "who was in stays");
}

#[test]
fn certificates_are_not_read_again_where_there_are_none() {
    let server = common::start(Limits::default());
    let mut stream = TcpStream::connect(server.addrs()[0]).unwrap();
    stream.write_all(b"refresh_certs\r\nquit\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "ERROR\r\n");
}

/// The number that `stats` tells of itself.
fn stat(stream: &mut StreamOwned<ClientConnection, TcpStream>, name: &str) -> u64 {
    stream.write_all(b"stats\r\n").unwrap();
    let mut told = String::new();
    while !told.ends_with("END\r\n") {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        told.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    let line = told.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {told}")).parse().unwrap()
}

/// What each of those holds at the most, with what its client has in this process.
const BYTES_EACH_MAX: [u64; 3] = [32 << 10, 48 << 10, 192 << 10];

/// A handshake that is not gone on with: half of a hello, a whole one, to which the server has answered, and most of the longest that there may be.
fn beginnings(tls: &Tls) -> [Vec<u8>; 3] {
    let mut hello = Vec::new();
    unconnected(tls, &TLS13).write_tls(&mut hello).unwrap();
    let mut long = Vec::new();
    let message = [&[0x01, 0x00, 0xff, 0x00, 0x03, 0x03][..], &[0x33; 64_000]].concat();
    for record in message.chunks(16_000) {
        long.extend_from_slice(&[0x16, 0x03, 0x01]);
        long.extend_from_slice(&u16::try_from(record.len()).unwrap().to_be_bytes());
        long.extend_from_slice(record);
    }
    [hello[..hello.len() / 2].to_vec(), hello, long]
}

#[test]
fn a_thousand_half_handshakes_hold_little_disturb_nobody_and_end_after_ten_seconds() {
    const OF_EACH: usize = 350;
    const TIMEOUT: Duration = Duration::from_secs(10);
    let _alone = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    common::allow_files(9 * OF_EACH as u64);
    let folder = tempfile::tempdir().unwrap();
    let tls = files(folder.path());
    let limits = Limits { connections_max: 1_200, ..Limits::default() };
    let server = common::start_with(Config { tls: Some(tls.clone()), limits, ..Config::default() });
    let mut other = client(&server, &tls, &TLS13);
    let errors = stat(&mut other, "ssl_handshake_errors");
    let (begun, mut halves) = (Instant::now(), Vec::new());
    for (beginning, bytes_each_max) in beginnings(&tls).into_iter().zip(BYTES_EACH_MAX) {
        let before = rss_bytes_of(std::process::id());
        for _ in 0..OF_EACH {
            let mut half = TcpStream::connect(server.addrs()[0]).unwrap();
            half.set_read_timeout(Some(2 * TIMEOUT)).unwrap();
            half.write_all(&beginning).unwrap();
            halves.push(half);
        }
        while stat(&mut other, "curr_connections") <= halves.len() as u64 {
            assert!(begun.elapsed() < TIMEOUT, "they do not come in");
        }
        // So long each has had its turn.
        for _ in 0..5 {
            assert_eq!(said(&server, &tls, &TLS13).unwrap(), b"MN\r\n");
            std::thread::sleep(Duration::from_millis(100));
        }
        let grown = rss_bytes_of(std::process::id()).saturating_sub(before);
        assert!(grown < OF_EACH as u64 * bytes_each_max, "{grown} bytes for {OF_EACH} of {}", beginning.len());
    }
    assert!(begun.elapsed() < TIMEOUT, "this machine is too slow to tell");
    assert_eq!(stat(&mut other, "ssl_handshake_errors"), errors, "nobody is closed before");
    for half in &mut halves {
        // What it was answered, and the end.
        let ended = half.read_to_end(&mut Vec::new());
        assert!(!matches!(ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "it is not closed");
        assert!(begun.elapsed() >= TIMEOUT, "closed after {:?}", begun.elapsed());
    }
    assert!(begun.elapsed() < 3 * TIMEOUT, "closed after {:?}", begun.elapsed());
    // The last one is counted a moment after it is closed.
    while stat(&mut other, "ssl_handshake_errors") - errors < halves.len() as u64 {
        assert!(begun.elapsed() < 3 * TIMEOUT, "not all are counted");
    }
    assert_eq!(said(&server, &tls, &TLS13).unwrap(), b"MN\r\n");
}
