//! TLS, to servers and clusters that speak it themselves: who is trusted, who is not, and what is said of it.

mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::*;
use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, PutMode, Reply, Store, Ttl, Want};
use larder_store_redis::{ClusterConfig, RedisClusterStore};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};

const PATIENCE: &str = "timeout_ms=10000&connect_timeout_ms=10000";

/// A certificate for `localhost` and 127.0.0.1, signed by itself, and where its files are.
struct Certificate {
    folder: tempfile::TempDir,
}

impl Certificate {
    fn new() -> Certificate {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cert.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
        Certificate { folder }
    }

    fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    fn options(&self) -> RedisOptions {
        RedisOptions::new().tls(&self.cert(), &self.key(), &self.cert())
    }

    fn trusted(&self) -> String {
        format!("tls_ca={}&{PATIENCE}", self.cert().display())
    }

    /// As a client that shows this certificate.
    fn shown(&self) -> String {
        format!("tls_cert={}&tls_key={}", self.cert().display(), self.key().display())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_one_connection_over_tls() {
    let certificate = Certificate::new();
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &certificate.options());
        let store = Arc::new(open(&format!("{}?{}", server.url(), certificate.trusted())).await);
        // Larger than a record of TLS, and than what a socket takes at once.
        let large = vec![5; 3_000_000];
        set(&store, "large", large.clone()).await;
        assert!(value(&store, "large").await.unwrap() == large, "{version:?}");
        let tasks = (0..32).map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for round in 0..20 {
                    let (k, text) = (format!("k{task}"), format!("{task}.{round}"));
                    let ops = [put(&k, PutMode::Set, text.clone()), Op::get(key(&k), Want::VALUE)];
                    let replies = all(&store, ops).await;
                    assert!(matches!(&replies[1], Ok(Reply::Item(item)) if item.value == text), "{replies:?}");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!((store.stats().connections, store.stats().timeouts), (1, 0));
    }
}

#[tokio::test]
async fn who_is_not_trusted_is_refused_and_the_reason_named() {
    let (certificate, stranger) = (Certificate::new(), Certificate::new());
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &certificate.options());
        let url = server.url();
        let wrong_name = format!("{}&tls_name=cache.example", certificate.trusted());
        for (options, said) in [(stranger.trusted(), "certificate"), (wrong_name, "cache.example")] {
            let error = refused(&format!("{url}?{options}")).await;
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains("TLS handshake") && error.to_string().contains(said), "{error}");
        }
        for options in [format!("{}&tls_name=localhost", certificate.trusted()), "tls_insecure=yes".to_owned()] {
            let store = open(&format!("{url}?{options}")).await;
            set(&store, "k", "v").await;
        }
        let missing = refused(&format!("{url}?tls_ca=/nowhere.pem")).await;
        assert!(missing.kind() == ErrorKind::Config && missing.to_string().contains("/nowhere.pem"), "{missing}");
    }
}

#[tokio::test]
async fn a_port_of_the_other_kind_is_named() {
    let certificate = Certificate::new();
    let (with, without) = (
        RedisServer::start(RedisVersion::Redis7, &certificate.options()),
        RedisServer::start(RedisVersion::Redis7, &RedisOptions::new()),
    );
    // To a server without TLS its greeting is the beginning of a long line, mostly: it waits for the rest, and says nothing.
    let ca = certificate.cert();
    let error = refused(&format!("rediss://{}?tls_ca={}&connect_timeout_ms=1000", without.addr(), ca.display())).await;
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Config), "{error}");
    assert!(error.to_string().contains("is this the port on which the server speaks TLS?"), "{error}");
    let error = refused(&format!("redis://{}?{PATIENCE}", with.addr())).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("open it as rediss://"), "{error}");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_one() {
    let (certificate, stranger) = (Certificate::new(), Certificate::new());
    let server = RedisServer::start(RedisVersion::Redis8, &certificate.options().arg("tls-auth-clients", "yes"));
    let url = format!("{}?{}", server.url(), certificate.trusted());
    let store = open(&format!("{url}&{}", certificate.shown())).await;
    set(&store, "k", "v").await;
    assert_eq!(value(&store, "k").await.unwrap(), "v");
    for options in [String::new(), format!("&{}", stranger.shown())] {
        let error = refused(&format!("{url}{options}")).await;
        assert!(matches!(error.kind(), ErrorKind::Config | ErrorKind::Unavailable), "{error}");
        assert!(error.to_string().contains("handshake failed"), "{error}");
    }
    for half in ["tls_cert", "tls_key"] {
        let error = refused(&format!("{url}&{half}={}", certificate.cert().display())).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains("which is not given"), "{error}");
    }
    let nowhere = refused(&format!("{url}&tls_cert={}&tls_key=/nowhere.pem", certificate.cert().display())).await;
    assert!(nowhere.to_string().contains("tls_key=/nowhere.pem"), "{nowhere}");
}

async fn connect(url: &str) -> Result<RedisClusterStore, Error> {
    RedisClusterStore::connect(ClusterConfig::from_url(url)?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls_serves_moves_and_fails_over() {
    let certificate = Certificate::new();
    let mut cluster = RedisCluster::start_with(RedisVersion::Valkey, &certificate.options());
    assert!(cluster.url().starts_with("rediss-cluster://"));
    let other = Certificate::new();
    let stranger = connect(&format!("{}?{}", cluster.url(), other.trusted())).await.unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::Config, "{stranger}");
    assert!(stranger.to_string().contains("TLS handshake"), "{stranger}");

    let store = connect(&format!("{}?{}", cluster.url(), certificate.trusted())).await.unwrap();
    let keys: Vec<Key> = (0..60).map(|at| key(format!("tls-{at}"))).collect();
    let puts: Batch = keys.iter().map(|key| Op::put(key.clone(), PutMode::Set, "v", Ttl::Never)).collect();
    let replies = store.run(Ctx::default(), puts.clone()).await;
    assert!(replies.iter().all(|reply| *reply.as_ref().unwrap() == Reply::Stored), "{replies:?}");
    // A slot that moves is followed to a node that is dialled by its address, over TLS too.
    let slot = cluster.nodes()[0].command(&["CLUSTER", "KEYSLOT", "tls-0"]).text().parse().unwrap();
    cluster.move_slot(slot, (cluster.primary_of(slot) + 1) % 3);
    assert!(store.run(Ctx::default(), puts.clone()).await.iter().all(Result::is_ok));
    let primary = cluster.primary_of(0);
    cluster.node_mut(primary).kill9();
    cluster.wait_failover(0, primary);
    let reads: Batch = keys.iter().map(|key| Op::get(key.clone(), Want::VALUE)).collect();
    assert!(store.run(Ctx::default(), reads).await.iter().all(Result::is_ok));
}
