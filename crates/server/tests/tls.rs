//! TLS: which versions are spoken, and what the files must be.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use larder_server::{ClientCerts, Config, Server, Tls};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};

/// A certificate and its key, in files.
fn files(folder: &std::path::Path) -> Tls {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Tls::new(cert, key)
}

/// A client that speaks this version alone.
fn client(
    server: &Server,
    tls: &Tls,
    version: &'static SupportedProtocolVersion,
) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&tls.chain).unwrap()).unwrap();
    let config = ClientConfig::builder_with_protocol_versions(&[version]).with_root_certificates(roots);
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config.with_no_client_auth()), name).unwrap();
    StreamOwned::new(client, TcpStream::connect(server.addrs()[0]).unwrap())
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
