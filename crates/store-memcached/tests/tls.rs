//! TLS: to a terminator of ours in front of a memcached, and to memcached's own.

mod common;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use larder_core::{ErrorKind, Op, PutMode, Reply, Store, Ttl, Want};
use larder_net::all_of;
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::servers::{Memcached, Version};
use rustls_pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

/// More bytes than a test sends.
const NO_CUT: usize = usize::MAX / 2;
/// Connections that are cut in the middle of a large write.
const TRIALS: usize = 80;
/// Of many small batches in one write, some stand behind what went out before it failed, some before.
const BATCHES: usize = 200;
const OPS: usize = 50;

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

    /// Does the same, until `left` bytes have come: it resets the connection then, and passes on what came before that.
    fn cutter(&self, upstream: SocketAddr, left: Arc<AtomicUsize>) -> SocketAddr {
        let socket = TcpSocket::new_v4().unwrap();
        // The other side never waits for room.
        socket.set_recv_buffer_size(8 * 1024 * 1024).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(16).unwrap();
        let addr = listener.local_addr().unwrap();
        let acceptor = self.acceptor.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (near, far) = tokio::io::duplex(1024 * 1024);
                tokio::spawn(cut_off(stream, far, left.clone()));
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let (mut answers, mut requests) = TcpStream::connect(upstream).await?.into_split();
                    let (mut hears, mut tells) = tokio::io::split(acceptor.accept(near).await?);
                    let passes_on = async {
                        _ = tokio::io::copy(&mut hears, &mut requests).await;
                        requests.shutdown().await
                    };
                    tokio::join!(passes_on, tokio::io::copy(&mut answers, &mut tells)).1
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

/// Passes on what comes until `left` bytes have. It does not wait until they are understood, so that the other side is writing still.
async fn cut_off(stream: TcpStream, far: DuplexStream, left: Arc<AtomicUsize>) -> io::Result<()> {
    stream.set_zero_linger()?;
    let (mut hears, mut tells) = stream.into_split();
    let (mut answers, mut requests) = tokio::io::split(far);
    let passes_on = async {
        let mut bytes = vec![0; 64 * 1024];
        loop {
            let count = hears.read(&mut bytes).await?;
            requests.write_all(&bytes[..count]).await?;
            if count == 0 || left.fetch_sub(count, Ordering::SeqCst) <= count {
                return io::Result::Ok(());
            }
        }
    };
    tokio::select! {
        _ = passes_on => {}
        _ = tokio::io::copy(&mut answers, &mut tells) => {}
    }
    drop((hears, tells));
    left.store(NO_CUT, Ordering::SeqCst);
    requests.shutdown().await?;
    tokio::io::copy(&mut answers, &mut tokio::io::sink()).await?;
    Ok(())
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

/// In one call TLS hands the system 64 KiB after the other, and where that fails it does not tell what went out before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_went_out_before_a_write_over_tls_failed_is_unknown_and_never_sent_again() {
    let (certificate, left) = (Certificate::new(), Arc::new(AtomicUsize::new(NO_CUT)));
    let server = Memcached::start(Version::New, &["-m", "1024"]);
    let addr = certificate.cutter(server.addr(), left.clone());
    let store = open(&format!("memcached+tls://{addr}?{}&timeout_ms=20000", certificate.trusted())).await;
    let plain = open(&server.url()).await;
    let mut unknown = 0;
    for trial in 0..TRIALS {
        wait_until_up(&store).await;
        let name = |at: usize| key(format!("{trial}.{at}"));
        left.store(66 * 1024 + fastrand::usize(0..96 * 1024), Ordering::SeqCst);
        let add = |at: usize| Op::put(name(at), PutMode::Add, vec![b'v'; 64], Ttl::Never);
        let batches = (0..BATCHES).map(|batch| Box::pin(all(&store, (0..OPS).map(move |at| add(batch * OPS + at)))));
        for (at, reply) in all_of(batches.collect()).await.into_iter().flatten().enumerate() {
            match reply {
                Ok(reply) => assert_eq!(reply, Reply::Stored, "trial {trial}, op {at}: it found itself, sent before"),
                Err(error) if error.is_unknown() => unknown += 1,
                Err(error) => {
                    let found = one(&plain, Op::get(name(at), Want::empty())).await.unwrap();
                    assert_eq!(found, Reply::Miss, "trial {trial}, op {at}: {error}");
                }
            }
        }
    }
    assert!(unknown > 0, "nothing was cut");
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
