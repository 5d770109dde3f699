//! TLS: to a terminator of ours in front of a memcached, and to memcached's own.

mod common;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use larder_core::{ErrorKind, Op, PutMode, Reply, Store, Ttl, Want};
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::servers::{Memcached, Version};
use rustls_pki_types::PrivateKeyDer;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

/// A certificate for `localhost` and 127.0.0.1, signed by itself, and where its files are.
struct Certificate {
    folder: tempfile::TempDir,
    acceptor: TlsAcceptor,
}

impl Certificate {
    fn new() -> Certificate {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        Certificate { folder, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn trusted(&self) -> String {
        format!("tls_ca={}", self.file("cert.pem").display())
    }

    /// Takes TLS off what comes in, and passes it on.
    async fn terminator(&self, upstream: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let acceptor = self.acceptor.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut inside = TcpStream::connect(upstream).await?;
                    let mut outside = acceptor.accept(stream).await?;
                    tokio::io::copy_bidirectional(&mut outside, &mut inside).await
                });
            }
        });
        addr
    }

    /// A memcached that speaks TLS itself.
    fn memcached(&self, version: Version) -> Memcached {
        let (chain, key) = (self.file("cert.pem"), self.file("key.pem"));
        let options = format!("ssl_chain_cert={},ssl_key={}", chain.display(), key.display());
        Memcached::start(version, &["-Z", "-o", &options])
    }
}

async fn work_out(url: &str) {
    let store = Arc::new(open(url).await);
    let large = vec![5; 1_000_000];
    set(&store, "large", large.clone()).await;
    assert!(value(&store, "large").await.unwrap() == large);
    let tasks = (0..64).map(|task| {
        let store = store.clone();
        tokio::spawn(async move {
            for round in 0..20 {
                let (k, text) = (format!("k{task}"), format!("{task}.{round}"));
                let ops = [
                    Op::put(key(&k), PutMode::Set, text.clone(), Ttl::Never),
                    Op::put(key(format!("other{task}")), PutMode::Set, vec![1; 2_000], Ttl::Never),
                    Op::get(key(&k), Want::VALUE),
                ];
                let replies = all(&store, ops).await;
                assert!(matches!(&replies[2], Ok(Reply::Item(item)) if item.value == text), "{replies:?}");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!((store.stats().connections, store.stats().timeouts), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminator_in_front_of_memcached() {
    let certificate = Certificate::new();
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let addr = certificate.terminator(server.addr()).await;
        work_out(&format!("memcached+tls://{addr}?{}&timeout_ms=5000", certificate.trusted())).await;
    }
}

/// Named after the trap: memcached before 1.6.39 may hang on pipelined sets over TLS, so the client sends one op at a time to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_before_1_6_39_may_hang_on_pipelined_sets() {
    let certificate = Certificate::new();
    for version in Version::ALL {
        let server = certificate.memcached(version);
        let url = format!("{}?{}&timeout_ms=2000", server.url(), certificate.trusted());
        work_out(&url).await;
        sizes_of_pipelined_sets(&open(&url).await).await;
    }
}

/// Batches of sets of many sizes, with nothing behind them that could wake a server that waits for more.
async fn sizes_of_pipelined_sets(store: &MemcachedStore) {
    for value_bytes in [10, 500, 1_900, 2_030, 4_000, 8_000, 15_900, 16_300, 20_000, 60_000, 200_000] {
        let puts = (0..12).map(|i| Op::put(key(format!("k{i}")), PutMode::Set, vec![1; value_bytes], Ttl::Never));
        for reply in all(store, puts).await {
            assert!(matches!(reply, Ok(Reply::Stored)), "{value_bytes} bytes: {reply:?}");
        }
    }
}

#[tokio::test]
async fn who_is_not_trusted_is_refused() {
    let certificate = Certificate::new();
    let server = Memcached::start(Version::New, &[]);
    let addr = certificate.terminator(server.addr()).await;
    let stranger = Certificate::new();
    for options in [stranger.trusted(), format!("{}&tls_name=cache.example", certificate.trusted())] {
        let error = refused(&format!("memcached+tls://{addr}?{options}")).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("TLS"), "{error}");
    }
    let missing = refused(&format!("memcached+tls://{addr}?tls_ca=/nowhere.pem")).await;
    assert!(missing.to_string().contains("/nowhere.pem"), "{missing}");
    let named = open(&format!("memcached+tls://{addr}?{}&tls_name=localhost", certificate.trusted())).await;
    set(&named, "k", "v").await;
    let insecure = open(&format!("memcached+tls://{addr}?tls_insecure=yes")).await;
    assert_eq!(value(&insecure, "k").await.unwrap(), "v");
    assert!(insecure.profile().cas);
}

#[tokio::test]
async fn tls_and_no_tls_are_told_apart() {
    let certificate = Certificate::new();
    let server = Memcached::start(Version::New, &[]);
    let addr = certificate.terminator(server.addr()).await;
    let plain_to_tls = refused(&format!("memcached://{addr}")).await;
    assert_eq!(plain_to_tls.kind(), ErrorKind::Config, "{plain_to_tls}");
    assert!(plain_to_tls.to_string().contains("memcached+tls://"), "{plain_to_tls}");
    let url = format!("memcached+tls://{}?tls_insecure=yes&connect_timeout_ms=500", server.addr());
    let tls_to_plain = tokio::time::timeout(Duration::from_secs(5), refused(&url)).await;
    assert!(tls_to_plain.is_ok());
}

/// A server that ends, or a balancer, in the middle of a handshake: that passes, and is no matter of certificates.
#[tokio::test]
async fn a_server_that_closes_in_the_middle_of_a_handshake_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            _ = stream.read(&mut [0; 4_096]).await;
        }
    });
    let url = format!("memcached+tls://{addr}?timeout_ms=300&connect_timeout_ms=300");
    let error = match MemcachedStore::connect(Config::from_url(&url).unwrap()).await {
        Ok(store) => one(&store, Op::get(key("k"), Want::VALUE)).await.unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
