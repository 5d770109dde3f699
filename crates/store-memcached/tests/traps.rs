//! The traps of real memcached servers, each by name, on an old (1.6.18) and a new (1.6.38 or later) release.

mod common;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::*;
use larder_core::{Cas, Effect, ErrorKind, Op, PutMode, Remaining, Reply, Store, Ttl, Verb, Want};
use larder_store_memcached::MemcachedStore;
use larder_testkit::proxy::{Fault, Proxy};
use larder_testkit::servers::{Memcached, Version};

/// A server and a store for each release and for the meta and classic commands.
async fn each(args: &[&str]) -> Vec<(String, Memcached, MemcachedStore)> {
    let mut stores = Vec::new();
    for version in Version::ALL {
        for dialect in ["auto", "classic"] {
            let server = Memcached::start(version, args);
            let store = open(&format!("{}?dialect={dialect}", server.url())).await;
            stores.push((format!("{version:?} {dialect}"), server, store));
        }
    }
    stores
}

/// What a server answers to raw bytes.
fn raw(addr: SocketAddr, request: &[u8], reply_bytes: usize) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(request).unwrap();
    let mut reply = vec![0; reply_bytes];
    stream.read_exact(&mut reply).unwrap();
    String::from_utf8(reply).unwrap()
}

#[tokio::test]
async fn modes_are_single_letters() {
    for (name, _server, store) in each(&[]).await.into_iter().step_by(2) {
        let binary = b"two words";
        assert_eq!(put(&store, PutMode::Append, binary, "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Prepend, binary, "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Replace, binary, "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Add, binary, "b").await, Reply::Stored, "{name}");
        assert_eq!(put(&store, PutMode::Append, binary, "c").await, Reply::Stored, "{name}");
        assert_eq!(put(&store, PutMode::Prepend, binary, "a").await, Reply::Stored, "{name}");
        assert_eq!(value(&store, binary).await.unwrap(), "abc", "{name}");
    }
}

#[tokio::test]
async fn the_dialect_is_chosen_by_version_never_by_an_error() {
    let old = Memcached::start(Version::Old, &[]);
    // The proof that asking does not help: 1.6.18 takes N on an append without a word, and ignores it.
    assert_eq!(raw(old.addr(), b"ms k 1 MA N0\r\nx\r\nmg k\r\n", 8), "NS\r\nEN\r\n");
    assert!(open(&old.url()).await.profile().store.contains("(meta13)"));
    let new = Memcached::start(Version::New, &[]);
    assert_eq!(raw(new.addr(), b"ms k 1 MA N0\r\nx\r\nmg k\r\n", 8), "HD\r\nHD\r\n");
    assert!(open(&new.url()).await.profile().store.contains("(meta)"));
}

#[tokio::test]
async fn an_append_never_creates() {
    for (name, _server, store) in each(&[]).await {
        for k in [&b"printable"[..], b"two words"] {
            if k == b"printable" || store.profile().keys_binary {
                assert_eq!(put(&store, PutMode::Append, k, "x").await, Reply::NotStored, "{name}");
                assert_eq!(value(&store, k).await, None, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn cas_on_a_miss_does_not_create() {
    for (name, _server, store) in each(&[]).await {
        set(&store, "other", "v").await;
        let cas = token(&store, "other").await;
        for k in [&b"printable"[..], b"two words"] {
            if k == b"printable" || store.profile().keys_binary {
                assert_eq!(put(&store, PutMode::Cas(cas), k, "x").await, Reply::Miss, "{name}");
                assert_eq!(value(&store, k).await, None, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_token_of_zero_is_no_token() {
    for (name, _server, store) in each(&[]).await {
        set(&store, "k", "v").await;
        let session = token(&store, "k").await.session;
        let zero = Cas { token: 0, session };
        assert_eq!(put(&store, PutMode::Cas(zero), "k", "x").await, Reply::Exists, "{name}");
        if store.profile().delete_cas {
            assert_eq!(ok(&store, Op::delete_if(key("k"), zero)).await, Reply::Exists, "{name}");
        }
        assert_eq!(value(&store, "k").await.unwrap(), "v", "{name}");
    }
}

#[tokio::test]
async fn an_append_keeps_the_old_ttl_and_flags() {
    for (name, _server, store) in each(&[]).await {
        let verb = Verb::Put { mode: PutMode::Set, value: "a".into(), flags: 9, ttl: seconds(500) };
        ok(&store, Op::new(key("k"), verb)).await;
        let verb = Verb::Put { mode: PutMode::Append, value: "b".into(), flags: 1, ttl: Ttl::Never };
        ok(&store, Op::new(key("k"), verb)).await;
        let found = item(&store, "k").await.unwrap();
        assert_eq!((found.value.as_ref(), found.flags), (&b"ab"[..], 9), "{name}");
        if store.profile().remaining_ttl {
            assert!(matches!(found.ttl, Remaining::For(left) if left.as_secs() > 490), "{name}: {found:?}");
        }
    }
}

#[tokio::test]
async fn the_item_limit_is_known_to_the_byte() {
    let name20 = "k".repeat(20);
    for args in [&[][..], &["-I", "2m"]] {
        for (name, server, store) in each(args).await {
            let limit = store.profile().value_bytes_max(20);
            if args.is_empty() {
                assert_eq!(limit, 1_048_497, "{name}");
            }
            set(&store, &name20, vec![b'v'; limit]).await;
            let over = Op::put(key(&name20), PutMode::Set, vec![b'v'; limit + 1], Ttl::Never);
            let error = one(&store, over).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{name}");
            let text = error.to_string();
            assert!(text.contains(&limit.to_string()) && text.contains(&(limit + 1).to_string()), "{name}: {text}");
            assert_eq!(value(&store, &name20).await.unwrap().len(), limit, "{name}");
            // It is the server's limit too, not a cautious guess.
            let mut request = format!("set {name20} 0 0 {}\r\n", limit + 1).into_bytes();
            request.extend(std::iter::repeat_n(b'v', limit + 1));
            request.extend(b"\r\n");
            assert_eq!(raw(server.addr(), &request, 12), "SERVER_ERROR", "{name}");
        }
    }
}

#[tokio::test]
async fn flags_take_four_bytes_of_the_item_limit() {
    for (name, _server, store) in each(&[]).await {
        let limit = store.profile().value_bytes_max(1);
        let with_flags = |bytes: usize| {
            Op::new(key("k"), Verb::Put { mode: PutMode::Set, value: vec![0; bytes].into(), flags: 1, ttl: Ttl::Never })
        };
        assert_eq!(ok(&store, with_flags(limit - 4)).await, Reply::Stored, "{name}");
        assert_eq!(one(&store, with_flags(limit - 3)).await.unwrap_err().kind(), ErrorKind::BadInput, "{name}");
        assert_eq!(value(&store, "k").await.unwrap().len(), limit - 4, "{name}");
    }
}

#[tokio::test]
async fn a_put_that_is_too_large_leaves_the_old_item() {
    for (name, _server, store) in each(&[]).await {
        for k in [&b"printable"[..], b"two words"] {
            if k != b"printable" && !store.profile().keys_binary {
                continue;
            }
            set(&store, k, "old").await;
            let cas = token(&store, k).await;
            let modes =
                [PutMode::Set, PutMode::Add, PutMode::Replace, PutMode::Append, PutMode::Prepend, PutMode::Cas(cas)];
            for mode in modes {
                let error = one(&store, Op::put(key(k), mode, vec![0; 1 << 20], Ttl::Never)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadInput, "{name}");
            }
            assert_eq!(value(&store, k).await.unwrap(), "old", "{name}");
        }
    }
}

#[tokio::test]
async fn out_of_memory_leaves_the_old_item_in_conditional_modes_and_is_unknown_for_a_set() {
    for (name, _server, store) in each(&["-M", "-m", "2"]).await {
        set(&store, "k", "old").await;
        let mut i = 0;
        let fill = loop {
            i += 1;
            let fill = Op::put(key(format!("fill{i}")), PutMode::Add, vec![0; 200_000], Ttl::Never);
            if let Err(error) = one(&store, fill).await {
                break error;
            }
        };
        assert_eq!(fill.kind(), ErrorKind::Full, "{name}");
        let cas = token(&store, "k").await;
        for mode in [PutMode::Replace, PutMode::Cas(cas)] {
            let error = one(&store, Op::put(key("k"), mode, vec![0; 200_000], Ttl::Never)).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{name}");
            assert_eq!(value(&store, "k").await.unwrap(), "old", "{name}");
        }
        let error = one(&store, Op::put(key("k"), PutMode::Set, vec![0; 200_000], Ttl::Never)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{name}");
        assert_eq!(value(&store, "k").await, None, "{name}: the server is expected to drop the old item");
    }
}

#[tokio::test]
async fn an_append_past_the_limit_answers_like_a_miss_and_keeps_the_old_value() {
    for (name, _server, store) in each(&[]).await {
        set(&store, "k", vec![0; 1_000_000]).await;
        assert_eq!(put(&store, PutMode::Append, "k", vec![0; 100_000]).await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Prepend, "k", vec![0; 100_000]).await, Reply::NotStored, "{name}");
        assert_eq!(value(&store, "k").await.unwrap().len(), 1_000_000, "{name}");
    }
}

#[tokio::test]
async fn an_overlong_key_is_never_sent() {
    for (name, _server, store) in each(&[]).await {
        assert!(larder_core::Key::new(vec![b'k'; 251]).is_err());
        let long = key([b"k".repeat(180), b"\r\nset x 0 0 1\r\n".to_vec()].concat());
        let error = one(&store, Op::put(long, PutMode::Set, "set x 0 0 1", Ttl::Never)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{name}");
        assert_eq!(store.stats().ops, 0, "{name}");
        assert_eq!(value(&store, "x").await, None, "{name}");
    }
}

#[tokio::test]
async fn lives_of_31_days_and_10_years_are_not_taken_for_dates() {
    const DAY: u64 = 24 * 60 * 60;
    for (name, server, store) in each(&[]).await {
        for days in [1, 29, 30, 31, 3_650] {
            assert_eq!(ok(&store, Op::put(key("k"), PutMode::Set, "v", seconds(days * DAY))).await, Reply::Stored);
            assert_eq!(value(&store, "k").await.unwrap(), "v", "{name}: {days} days");
            // By the server's own word, whatever the dialect.
            let left = raw(server.addr(), b"mg k t\r\n", 6 + (days * DAY - 1).to_string().len());
            let left: u64 = left.trim_start_matches("HD t").trim().parse().unwrap();
            assert!(left.abs_diff(days * DAY) <= 2, "{name}: {days} days, {left} s left");
            assert_eq!(ok(&store, Op::touch(key("k"), seconds(days * DAY))).await, Reply::Touched, "{name}");
            assert_eq!(value(&store, "k").await.unwrap(), "v", "{name}: {days} days");
        }
        let error = one(&store, Op::put(key("k"), PutMode::Set, "w", seconds(200 * 365 * DAY))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{name}");
        assert!(error.to_string().contains("the limit is"), "{error}");
        assert_eq!(value(&store, "k").await.unwrap(), "v", "{name}");
        assert!(store.profile().ttl_max > Duration::from_secs(3_650 * DAY));
    }
}

#[tokio::test]
async fn a_life_of_one_second_may_be_short_and_is_never_long() {
    for (name, _server, store) in each(&[]).await {
        let start = Instant::now();
        ok(&store, Op::put(key("k"), PutMode::Set, "v", Ttl::After(Duration::from_millis(1)))).await;
        let gone = loop {
            if value(&store, "k").await.is_none() {
                break start.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        // One second by a clock that ticks once a second, and a margin for a busy machine.
        assert!(gone < Duration::from_millis(2_500), "{name}: {gone:?}");
    }
}

#[tokio::test]
async fn arithmetic_wraps_floors_and_is_trimmed() {
    for (name, _server, store) in each(&[]).await {
        set(&store, "k", "10").await;
        assert_eq!(ok(&store, decr("k", 1)).await, Reply::Number(9), "{name}");
        // The server left "9 " in the item; the number is a number all the same.
        assert_eq!(value(&store, "k").await.unwrap().trim_ascii_end(), b"9", "{name}");
        assert_eq!(ok(&store, decr("k", 3)).await, Reply::Number(6), "{name}");
        assert_eq!(ok(&store, decr("k", 100)).await, Reply::Number(0), "{name}");
        assert_eq!(ok(&store, incr("k", u64::MAX, None)).await, Reply::Number(u64::MAX), "{name}");
        let wrapped = one(&store, incr("k", 2, None)).await;
        match wrapped {
            Ok(reply) => assert_eq!(reply, Reply::Number(1), "{name}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::BadInput, "{name}: {error}"), // see the next trap
        }
        set(&store, "text", "hits").await;
        let error = one(&store, incr("text", 1, None)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{name}");
        assert_eq!(value(&store, "text").await.unwrap(), "hits", "{name}");
        assert_eq!(store.stats().poisoned, 0, "{name}");
    }
}

#[tokio::test]
async fn values_of_2_to_the_63_and_more_may_fail_before_1_6_22_and_are_never_wrong() {
    for (name, server, store) in each(&[]).await {
        for i in 0..50u64 {
            let k = format!("k{i}");
            let start = (1 << 63) + i;
            set(&store, &k, start.to_string()).await;
            match one(&store, incr(&k, 1, None)).await {
                Ok(reply) => assert_eq!(reply, Reply::Number(start + 1), "{name}"),
                Err(error) => {
                    assert_eq!(server.version(), Version::Old, "{name}: {error}");
                    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied));
                    assert_eq!(value(&store, &k).await.unwrap(), start.to_string(), "{name}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_token_survives_touch_and_not_append() {
    for (name, _server, store) in each(&[]).await {
        set(&store, "k", "v").await;
        let cas = token(&store, "k").await;
        ok(&store, Op::touch(key("k"), seconds(100))).await;
        assert_eq!(put(&store, PutMode::Cas(cas), "k", "w").await, Reply::Stored, "{name}");
        let cas = token(&store, "k").await;
        put(&store, PutMode::Append, "k", "x").await;
        assert_eq!(put(&store, PutMode::Cas(cas), "k", "y").await, Reply::Exists, "{name}");
        assert_eq!(value(&store, "k").await.unwrap(), "wx", "{name}");
    }
}

#[tokio::test]
async fn a_token_of_an_earlier_life_of_the_server_is_refused_unsent() {
    for (name, mut server, store) in each(&[]).await {
        set(&store, "k", "old").await;
        let cas = token(&store, "k").await;
        server.kill9();
        server.restart();
        // The same token, drawn again by the new life of the server: it would match by accident.
        let expected = format!("STORED\r\nVALUE k 0 3 {}\r\n", cas.token);
        assert_eq!(raw(server.addr(), b"set k 0 0 3\r\nnew\r\ngets k\r\n", expected.len()), expected, "{name}");
        wait_until_up(&store).await;
        let sent = store.stats().ops;
        assert_eq!(put(&store, PutMode::Cas(cas), "k", "stale").await, Reply::Exists, "{name}");
        if store.profile().delete_cas {
            assert_eq!(ok(&store, Op::delete_if(key("k"), cas)).await, Reply::Exists, "{name}");
        }
        assert_eq!(store.stats().ops, sent, "{name}: a stale token was sent");
        assert_eq!(value(&store, "k").await.unwrap(), "new", "{name}");
    }
}

#[tokio::test]
async fn a_token_of_another_connection_is_refused_or_goes_to_its_own() {
    for (name, server, store) in each(&[]).await {
        let other = open(&server.url()).await;
        set(&store, "k", "v").await;
        let foreign = token(&other, "k").await;
        assert_eq!(put(&store, PutMode::Cas(foreign), "k", "x").await, Reply::Exists, "{name}");
        let several = open(&format!("{}?connections=4", server.url())).await;
        for i in 0..40 {
            let k = format!("k{i}");
            set(&several, &k, "v").await;
            let cas = token(&several, &k).await;
            assert_eq!(put(&several, PutMode::Cas(cas), &k, "w").await, Reply::Stored, "{name}");
        }
        // Tokens of several connections in one batch, each with a read behind it.
        let mut ops = Vec::new();
        for i in 0..20 {
            let k = format!("k{i}");
            let cas = token(&several, &k).await;
            ops.push(Op::put(key(&k), PutMode::Cas(cas), "x", Ttl::Never));
        }
        let sessions: HashSet<u64> = ops.iter().filter_map(|op| op.cas().map(|cas| cas.session)).collect();
        assert_eq!(sessions.len(), 4, "{name}: the keys do not use all connections");
        let replies = all(&several, ops).await;
        assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))), "{name}: {replies:?}");
    }
}

#[tokio::test]
async fn a_server_without_cas_says_so_and_refuses() {
    for (name, _server, store) in each(&["-C"]).await {
        assert!(!store.profile().cas && !store.profile().delete_cas, "{name}");
        set(&store, "k", "v").await;
        let found = item(&store, "k").await.unwrap();
        assert_eq!((found.value.as_ref(), found.cas), (&b"v"[..], None), "{name}");
    }
}

#[tokio::test]
async fn bad_data_chunk_drops_the_connection() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let store = open(&format!("memcached://{}", proxy.addr())).await;
        set(&store, "k", "old").await;
        proxy.next(Fault::Garbage(b"CLIENT_ERROR bad data chunk\r\nERROR\r\n".to_vec()));
        let error = one(&store, Op::put(key("k"), PutMode::Set, "new", Ttl::Never)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert_eq!(value(&store, "k").await.unwrap(), "old");
        assert_eq!(store.stats().poisoned, 1);
    }
}

#[tokio::test]
async fn md_answers_not_found_and_is_matched_by_its_opaque() {
    for (name, _server, store) in each(&[]).await {
        set(&store, "there", "v").await;
        let ops = [
            Op::delete(key("gone")),
            Op::get(key("there"), Want::VALUE),
            Op::delete(key("there")),
            Op::get(key("there"), Want::VALUE),
        ];
        let replies: Vec<Reply> = all(&store, ops).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(replies[0], Reply::Miss, "{name}");
        assert!(matches!(&replies[1], Reply::Item(item) if item.value == "v"), "{name}");
        assert_eq!(replies[2..], [Reply::Deleted, Reply::Miss], "{name}");
    }
}
