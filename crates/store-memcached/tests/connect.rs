//! Who answers, and how: other servers, passwords, unix sockets.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::*;
use larder_core::{Ctx, ErrorKind, Eviction, Op, PutMode, Reply, Store, StoreExt, Ttl, TtlSupport, Want};
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::proxy::Proxy;
use larder_testkit::servers::{Memcached, Version};

/// A server that says the same to whatever it hears; it ends with the test process.
fn says(text: &'static [u8]) -> SocketAddr {
    // Until the other side goes away.
    says_and(text, |mut stream| _ = std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink())))
}

/// The same; `then` is what it does with the connection once it has said it.
fn says_and(text: &'static [u8], then: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(text);
            then(stream);
        }
    });
    addr
}

#[tokio::test]
async fn what_is_no_memcached_is_named() {
    let cases: [(&[u8], &str); 8] = [
        (b"-ERR unknown command 'version', with args beginning with:\r\n", "a Redis or Valkey server"),
        (b"-NOAUTH Authentication required.\r\n", "a Redis or Valkey server"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "a web server"),
        (&[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46], "memcached+tls://"),
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", "an SSH server"),
        (b"J\0\0\0\n5.5.5-10.11\0\r\n", "not a memcached"),
        (b"VERSION 1.6.38\r\nhello\r\n", "not a memcached"),
        (b"VERSION 1.6.38\r\nEND\r\nEND\r\nmore\r\n", "not a memcached"),
    ];
    for (text, expected) in cases {
        let addr = says(text);
        let error = refused(&format!("memcached://{addr}")).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        let text = error.to_string();
        assert!(text.contains(expected) && text.contains(&addr.to_string()), "{text}");
    }
}

#[tokio::test]
async fn a_server_that_says_nothing_too_much_or_closes_is_given_up() {
    let start = Instant::now();
    let error = refused(&format!("memcached://{}?connect_timeout_ms=100", says(b""))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("connect_timeout_ms=100"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2));
    let endless = refused(&format!("memcached://{}", says(&[b'x'; 5_000]))).await;
    assert_eq!(endless.kind(), ErrorKind::Config, "{endless}");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(&format!("memcached://{nobody}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");
    let error = refused("memcached+unix:///nowhere/at/all.sock").await;
    assert!(error.to_string().contains("/nowhere/at/all.sock"), "{error}");
}

#[tokio::test]
async fn a_server_that_closes_in_the_handshake_is_unavailable() {
    for text in [&b""[..], b"VERS", b"VERSION 1.6.38\r\n", b"VERSION 1.6.38\r\nSTAT a b\r\n"] {
        let addr = says_and(text, drop);
        let error = refused(&format!("memcached://{addr}?connect_timeout_ms=2000")).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text:?}: {error}");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }
}

/// It is there, and of no use: dialled anew as seldom as one that is down.
#[tokio::test]
async fn a_server_that_closes_behind_the_handshake_is_not_dialled_without_a_pause() {
    let dials = Arc::new(AtomicUsize::new(0));
    let counted = dials.clone();
    let addr = says_and(b"VERSION 1.6.38\r\nEND\r\nEND\r\nEND\r\n", move |stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        drop(stream);
    });
    for connections in ["auto", "2"] {
        let url = format!("memcached://{addr}?connections={connections}");
        let connect = tokio::time::timeout(Duration::from_secs(5), open(&url));
        let store = connect.await.expect("connecting does not end");
        dials.store(0, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let dials = dials.load(Ordering::Relaxed);
        assert!((1..=40).contains(&dials), "{connections}: {dials} dials in 2 s");
        let error = one(&store, Op::get(key("k"), Want::VALUE)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn a_version_that_cannot_be_read_gets_the_classic_dialect() {
    // version, stats settings, stats, the get of the fleet's mark; then gets and touch.
    let addr = says(b"VERSION mcrouter 36\r\nEND\r\nEND\r\nEND\r\nEND\r\nNOT_FOUND\r\n");
    let profile = open(&format!("memcached://{addr}")).await.profile();
    assert_eq!(profile.store, "memcached (classic)");
    assert!(profile.cas && profile.ttl == TtlSupport::Seconds && !profile.arith_initial);
    assert_eq!(profile.eviction, Eviction::Unknown);
}

#[tokio::test]
async fn a_time_that_no_clock_tells_is_as_none_told() {
    const DAYS_31_S: u64 = 31 * 24 * 60 * 60;
    let (told, requests) = mpsc::channel();
    let greeting = b"VERSION 1.6.38\r\nEND\r\nSTAT time 18446744073709551615\r\nEND\r\nEND\r\n";
    let addr = says_and(greeting, move |mut stream| {
        let mut request = [0; 1_024];
        let bytes = stream.read(&mut request).unwrap_or(0);
        let _ = told.send(String::from_utf8_lossy(&request[..bytes]).into_owned());
        let _ = stream.write_all(b"HD O0\r\n");
    });
    let store = open(&format!("memcached://{addr}")).await;
    // A clock goes on, and this one has nowhere to go.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let life = Ttl::After(Duration::from_secs(DAYS_31_S));
    one(&store, Op::put(key("k"), PutMode::Set, "v", life)).await.unwrap();
    let request = requests.recv().unwrap();
    let end_s = request.split(' ').find_map(|word| word.strip_prefix('T')).unwrap().parse::<u64>().unwrap();
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(end_s.abs_diff(now_s + DAYS_31_S) <= 2, "{request}");
}

/// Where the server's times end one day the longest life falls by a second each second.
#[tokio::test]
async fn the_longest_life_that_is_told_can_be_asked_for_for_a_while() {
    let greeting = b"VERSION 1.6.38\r\nEND\r\nSTAT time 2000000000\r\nEND\r\nEND\r\n";
    let addr = says_and(greeting, |mut stream| {
        let _ = stream.read(&mut [0; 1_024]);
        let _ = stream.write_all(b"HD O0\r\n");
    });
    let store = open(&format!("memcached://{addr}")).await;
    let told = store.profile().ttl_max;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let fell = told - store.profile().ttl_max;
    assert_eq!(ok(&store, Op::put(key("k"), PutMode::Set, "v", Ttl::After(told))).await, Reply::Stored);
    assert!((5..60).contains(&fell.as_secs()), "{fell:?} less are told 6 s later");
}

#[tokio::test]
async fn connecting_takes_the_round_trips_that_are_documented() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth");
    std::fs::write(&file, "joe:secret\n").unwrap();
    let (plain, asks) =
        (Memcached::start(Version::New, &[]), Memcached::start(Version::New, &["-Y", file.to_str().unwrap()]));
    let (to_plain, to_asks) = (Proxy::start(plain.addr()), Proxy::start(asks.addr()));
    let other = Memcached::start(Version::New, &[]);
    let fleet = format!("{},{}", to_plain.addr(), other.addr());
    for (proxy, url, round_trips) in [
        (&to_plain, format!("memcached://{}", to_plain.addr()), 1),
        (&to_plain, format!("memcached://joe:secret@{}", to_plain.addr()), 2),
        (&to_asks, format!("memcached://joe:secret@{}", to_asks.addr()), 3),
        // The first leaves the list, the next finds it; claiming is one, too.
        (&to_plain, format!("memcached://{fleet}"), 2),
        (&to_plain, format!("memcached://{fleet}"), 1),
        (&to_plain, format!("memcached://{fleet}?fleet=claim"), 2),
    ] {
        let before = proxy.counts().chunks;
        let _store = open(&url).await;
        assert_eq!(proxy.counts().chunks - before, round_trips, "{url}");
    }
}

#[tokio::test]
async fn a_password_is_sent_where_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("auth");
    std::fs::write(&file, "joe:se%cret@1\n").unwrap();
    for version in Version::ALL {
        let server = Memcached::start(version, &["-Y", file.to_str().unwrap()]);
        let addr = server.addr();
        let store = open(&format!("memcached://joe:se%25cret%401@{addr}")).await;
        set(&store, "k", "v").await;
        assert_eq!(value(&store, "k").await.unwrap(), "v");
        let error = refused(&format!("memcached://{addr}")).await;
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().contains("user:password@"), "{error}");
        let error = refused(&format!("memcached://joe:wrong-one@{addr}")).await;
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("refused") && text.contains("joe") && !text.contains("wrong-one"), "{text}");
        let shown = format!("{store:?}");
        assert!(!shown.contains("se%cret") && !shown.contains("secret"), "{shown}");
    }
    let open_server = Memcached::start(Version::New, &[]);
    let store = open(&format!("memcached://joe:secret@{}", open_server.addr())).await;
    assert_eq!(store.stats().connections, 1);
    assert!(!open_server.stats("").contains("STAT cmd_set 1"), "the password was stored");
}

#[tokio::test]
async fn unix_sockets_work() {
    for version in Version::ALL {
        let server = Memcached::start_unix(version, &[]);
        let store = open(&format!("{}?connections=2", server.url())).await;
        set(&store, "k", vec![7; 900_000]).await;
        assert_eq!(value(&store, "k").await.unwrap().len(), 900_000);
        assert!(store.profile().store.starts_with("memcached 1.6"));
    }
}

/// It is a memcached that has as many connections as it may, or what a proxy stands for is down: that passes.
#[tokio::test]
async fn a_server_that_takes_no_more_connections_is_unavailable_and_no_other_program() {
    for text in [&b"ERROR Too many open connections\r\n"[..], b"SERVER_ERROR backend is down\r\n"] {
        let url = format!("memcached://{}?timeout_ms=300&connect_timeout_ms=300", says_and(text, drop));
        let store = MemcachedStore::connect(Config::from_url(&url).unwrap()).await;
        let error = match store {
            Ok(store) => one(&store, Op::get(key("k"), Want::VALUE)).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

/// A configuration that is made by hand may have what no URL can say.
#[tokio::test]
async fn a_timeout_that_is_out_of_bounds_is_refused() {
    let server = Memcached::start(Version::New, &[]);
    for timeout in [Duration::ZERO, Config::TIMEOUT_MAX + Duration::from_nanos(1), Duration::MAX] {
        let config = config(&server.url());
        for config in [Config { timeout, ..config.clone() }, Config { connect_timeout: timeout, ..config }] {
            let connect = tokio::time::timeout(Duration::from_secs(60), MemcachedStore::connect(config));
            let error = connect.await.expect("it hangs").expect_err("it connects");
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains("it must be 1 to 600000 ms"), "{error}");
        }
    }
}

/// A server whose first connection answers with a value of so many bytes, one every five milliseconds; the others hold nothing.
fn drips(value_bytes: usize) -> SocketAddr {
    let is_first = AtomicBool::new(true);
    says_and(b"VERSION 1.6.38\r\nEND\r\nEND\r\nEND\r\n", move |mut stream| {
        let drips = is_first.swap(false, Ordering::Relaxed);
        std::thread::spawn(move || {
            while stream.read(&mut [0; 1_024]).is_ok_and(|bytes| bytes > 0) {
                if !drips {
                    let _ = stream.write_all(b"EN\r\n");
                    continue;
                }
                let head = format!("VA {value_bytes} O0\r\n");
                let _ = stream.write_all(head.as_bytes());
                for at in 0..value_bytes {
                    let end: &[u8] = if at + 1 == value_bytes { b"v\r\n" } else { b"v" };
                    if stream.write_all(end).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        });
    })
}

/// Each byte is a sign of life, and none brings an answer nearer that anybody waits for.
#[tokio::test]
async fn a_server_whose_answer_drips_is_given_up_when_nobody_waits_for_it() {
    let store = open(&format!("memcached://{}?timeout_ms=100&connections=1", drips(1_000_000))).await;
    let start = Instant::now();
    loop {
        match one(&store, Op::get(key("k"), Want::VALUE)).await {
            Ok(reply) => break assert_eq!(reply, Reply::Miss),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Timeout, "{error}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5), "it is still waited for");
    }
    assert_eq!((store.stats().connections, store.stats().reconnects), (2, 1));
}

#[tokio::test]
async fn a_value_that_comes_slowly_is_waited_for() {
    let store = open(&format!("memcached://{}?timeout_ms=100&connections=1", drips(500))).await;
    let get = Op::get(key("k"), Want::VALUE);
    let start = Instant::now();
    let item = store.run_one(Ctx::within(Duration::from_secs(60)), get).await.unwrap().into_item();
    assert_eq!(item.unwrap().value.len(), 500);
    assert!(start.elapsed() > Duration::from_secs(2), "it did not come slowly");
    assert_eq!(store.stats().connections, 1);
}
