//! Every scheme of Redis opens through the facade, and what it opens keeps structures.
#![cfg(feature = "redis")]

use larder::{Counter, ErrorKind, Lock, Set};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};

/// A certificate for 127.0.0.1, signed by itself, and the options of servers that show it.
fn certificate() -> (tempfile::TempDir, RedisOptions) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let options = RedisOptions::new().tls(&cert, &key, &cert);
    (folder, options)
}

async fn keeps_structures(url: &str) {
    let store = larder::open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let counter = Counter::open_or_create(&store, "hits").await.unwrap();
    counter.add(3).await.unwrap();
    let set = Set::open_or_create(&store, "tags").await.unwrap();
    set.add(["a"]).await.unwrap();
    let guard = Lock::open(&store, "l").await.unwrap().try_acquire().await.unwrap().expect("nobody holds it");
    guard.release().await.unwrap();
    // By another client, of the same URL.
    let store = larder::open(url).await.unwrap();
    assert_eq!(Counter::open(&store, "hits").await.unwrap().get().await.unwrap(), 3, "{url}");
    assert!(Set::open(&store, "tags").await.unwrap().has("a").await.unwrap(), "{url}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rediss_opens_a_server_that_speaks_tls() {
    let (folder, options) = certificate();
    let trusted = format!("tls_ca={}", folder.path().join("cert.pem").display());
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &options);
        assert!(server.url().starts_with("rediss://"));
        keeps_structures(&format!("{}?{trusted}", server.url())).await;
        let stranger = larder::open(&server.url()).await.unwrap_err();
        assert!(stranger.to_string().contains("certificate"), "{stranger}");
    }
    let cluster = RedisCluster::start_with(RedisVersion::Redis8, &options);
    assert!(cluster.url().starts_with("rediss-cluster://"));
    keeps_structures(&format!("{}?{trusted}&timeout_ms=10000", cluster.url())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_unix_opens_a_server_on_a_socket() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new().unix());
        assert!(server.url().starts_with("redis+unix:///"));
        keeps_structures(&server.url()).await;
        let gone = server.url();
        drop(server);
        let error = larder::open(&gone).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(gone.trim_start_matches("redis+unix://")), "{error}");
    }
}
