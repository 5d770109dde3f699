//! Every op in every dialect, on both releases.

mod common;

use std::time::Duration;

use common::*;
use larder_core::{Effect, ErrorKind, Op, PutMode, Remaining, Reply, Store, Ttl, TtlSupport, Verb, Want};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::servers::{Memcached, Version};

#[tokio::test]
async fn a_batch_runs_end_to_end_in_one_round_trip() {
    for (name, _server, store) in each_of(&EVERY, &[]).await {
        let ops = [
            Op::put(key("a"), PutMode::Set, "1", Ttl::Never),
            Op::get(key("a"), Want::VALUE),
            incr("a", 41, None),
            Op::delete(key("a")),
            Op::get(key("a"), Want::VALUE),
        ];
        let replies: Vec<Reply> = all(&store, ops).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(replies[0], Reply::Stored, "{name}");
        assert_eq!(replies[1].clone().into_item().unwrap().value, "1", "{name}");
        assert_eq!(replies[2..], [Reply::Number(42), Reply::Deleted, Reply::Miss], "{name}");
        assert_eq!(store.stats().round_trips, 1, "{name}");
    }
}

#[tokio::test]
async fn puts_answer_as_their_modes_say() {
    for (name, _server, store) in each_of(&EVERY, &[]).await {
        assert_eq!(put(&store, PutMode::Replace, "k", "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Append, "k", "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Prepend, "k", "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Add, "k", "b").await, Reply::Stored, "{name}");
        assert_eq!(put(&store, PutMode::Add, "k", "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Append, "k", "c").await, Reply::Stored, "{name}");
        assert_eq!(put(&store, PutMode::Prepend, "k", "a").await, Reply::Stored, "{name}");
        assert_eq!(value(&store, "k").await.unwrap(), "abc", "{name}");
        assert_eq!(put(&store, PutMode::Replace, "k", "d").await, Reply::Stored, "{name}");
        let cas = token(&store, "k").await;
        assert_eq!(put(&store, PutMode::Cas(cas), "none", "e").await, Reply::Miss, "{name}");
        assert_eq!(put(&store, PutMode::Cas(cas), "k", "e").await, Reply::Stored, "{name}");
        assert_eq!(put(&store, PutMode::Cas(cas), "k", "f").await, Reply::Exists, "{name}");
        assert_eq!(value(&store, "k").await.unwrap(), "e", "{name}");
        assert_eq!(ok(&store, Op::delete(key("k"))).await, Reply::Deleted, "{name}");
        assert_eq!(ok(&store, Op::delete(key("k"))).await, Reply::Miss, "{name}");
    }
}

#[tokio::test]
async fn flags_and_lives_come_back() {
    for (name, _server, store) in each_of(&EVERY, &[]).await {
        let ttl = seconds(100);
        let verb = Verb::Put { mode: PutMode::Set, value: "v".into(), flags: 7, ttl };
        ok(&store, Op::new(key("k"), verb)).await;
        let found = item(&store, "k").await.unwrap();
        assert_eq!(found.flags, 7, "{name}");
        if store.profile().remaining_ttl {
            assert!(matches!(found.ttl, Remaining::For(left) if left > Duration::from_secs(97)), "{name}: {found:?}");
        } else {
            assert_eq!(found.ttl, Remaining::Unknown, "{name}");
        }
        assert_eq!(ok(&store, Op::touch(key("k"), Ttl::Never)).await, Reply::Touched, "{name}");
        assert_eq!(ok(&store, Op::touch(key("none"), ttl)).await, Reply::Miss, "{name}");
        if store.profile().remaining_ttl {
            assert_eq!(item(&store, "k").await.unwrap().ttl, Remaining::Never, "{name}");
        }
    }
}

#[tokio::test]
async fn conditional_deletes_and_initial_values_where_the_profile_says_so() {
    for (name, _server, store) in each_of(&EVERY, &[]).await {
        set(&store, "k", "v").await;
        let cas = token(&store, "k").await;
        set(&store, "k", "w").await;
        let stale = one(&store, Op::delete_if(key("k"), cas)).await;
        let created = one(&store, incr("n", 2, Some(5))).await;
        let profile = store.profile();
        assert!(profile.delete_cas, "{name}");
        assert_eq!(stale.unwrap(), Reply::Exists, "{name}");
        assert_eq!(value(&store, "k").await.unwrap(), "w", "{name}");
        let cas = token(&store, "k").await;
        assert_eq!(ok(&store, Op::delete_if(key("k"), cas)).await, Reply::Deleted, "{name}");
        assert_eq!(ok(&store, Op::delete_if(key("k"), cas)).await, Reply::Miss, "{name}");
        // Gone for every op at once, also where its life was ended by a `cas`.
        assert_eq!(value(&store, "k").await, None, "{name}");
        assert_eq!(put(&store, PutMode::Append, "k", "x").await, Reply::NotStored, "{name}");
        assert_eq!(put(&store, PutMode::Add, "k", "new").await, Reply::Stored, "{name}");
        assert_eq!(value(&store, "k").await.unwrap(), "new", "{name}");
        if profile.arith_initial {
            assert_eq!(created.unwrap(), Reply::Number(5), "{name}");
            assert_eq!(ok(&store, incr("n", 2, Some(5))).await, Reply::Number(7), "{name}");
        } else {
            let error = created.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{name}");
        }
        assert_eq!(ok(&store, incr("none", 1, None)).await, Reply::Miss, "{name}");
    }
}

#[tokio::test]
async fn values_of_every_size_and_byte() {
    for (name, _server, store) in each_of(&["auto", "classic"], &["-I", "2m"]).await {
        let limit = store.profile().value_bytes_max(1);
        assert_eq!(limit, 2 * 1024 * 1024 - 60, "{name}");
        for bytes in [0, 1, 4_096, 4_097, 65_536, 1_048_576, limit] {
            let body: Vec<u8> = (0..bytes).map(|i| (i * 7 % 256) as u8).collect();
            set(&store, "k", body.clone()).await;
            assert!(value(&store, "k").await.unwrap() == body, "{name}: {bytes} bytes");
        }
    }
}

#[tokio::test]
async fn the_profile_tells_what_the_server_said() {
    for (_, _server, store) in each_of(&["auto"], &["-M", "-I", "2m"]).await {
        let profile = store.profile();
        assert_eq!(profile.eviction, larder_core::Eviction::Never);
        assert_eq!(profile.item_bytes_max, 2 * 1024 * 1024);
        assert!(profile.ttl_max > Duration::from_secs(3_650 * 24 * 3_600));
    }
    let server = Memcached::start(Version::Old, &[]);
    let profile = open(&server.url()).await.profile();
    assert_eq!(profile.store, "memcached 1.6.18 (meta13)");
    assert_eq!(profile.eviction, larder_core::Eviction::WhenFull);
    assert_eq!(profile.item_bytes_max, 1024 * 1024);
    assert!(profile.keys_binary && profile.cas && profile.delete_cas && profile.arith_initial);
    let server = Memcached::start(Version::New, &[]);
    assert!(open(&server.url()).await.profile().store.ends_with("(meta)"));
}

#[tokio::test]
async fn a_full_server_that_does_not_evict_says_full() {
    for version in Version::ALL {
        let server = Memcached::start(version, &["-M", "-m", "2"]);
        let store = open(&server.url()).await;
        let mut full = None;
        for i in 0..200 {
            if let Err(error) =
                one(&store, Op::put(key(format!("k{i}")), PutMode::Add, vec![1; 100_000], Ttl::Never)).await
            {
                full = Some(error);
                break;
            }
        }
        let error = full.expect("2 MB hold no 20 MB");
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    }
}

#[tokio::test]
async fn a_server_of_nine_commands_serves_what_it_can_and_refuses_the_rest() {
    let server = ClassicFake::start();
    let store = open(&server.url()).await;
    let profile = store.profile();
    assert!(!profile.cas && !profile.delete_cas && !profile.keys_binary && !profile.arith_initial);
    assert_eq!((profile.ttl, profile.remaining_ttl), (TtlSupport::None, false));
    assert_eq!(put(&store, PutMode::Add, "k", "1").await, Reply::Stored);
    assert_eq!(put(&store, PutMode::Append, "k", "2").await, Reply::Stored);
    assert_eq!(ok(&store, incr("k", 30, None)).await, Reply::Number(42));
    let found = item(&store, "k").await.unwrap();
    assert_eq!((found.value.as_ref(), found.cas), (&b"42"[..], None));
    let cas = larder_core::Cas { token: 1, session: 1 };
    for op in [
        Op::put(key("k"), PutMode::Set, "x", seconds(1)),
        Op::put(key("k"), PutMode::Cas(cas), "x", Ttl::Never),
        Op::touch(key("k"), seconds(1)),
        Op::touch(key("k"), Ttl::Never),
    ] {
        let error = one(&store, op).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
    }
    assert_eq!(value(&store, "k").await.unwrap(), "42");
    assert_eq!(ok(&store, Op::delete(key("k"))).await, Reply::Deleted);
}

#[tokio::test]
async fn dialect_classic_bare_asks_for_the_nine_commands_only() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&format!("{}?dialect=classic-bare", server.url())).await;
    assert_eq!(store.profile().ttl, TtlSupport::None);
    assert!(!store.profile().cas);
    set(&store, "k", "v").await;
    assert_eq!(item(&store, "k").await.unwrap().cas, None);
}

#[tokio::test]
async fn the_route_chooses_the_rank_and_refuses_one_too_many() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&server.url()).await;
    let route = larder_core::Route { with: None, rank: 1 };
    let error = one(&store, Op::get(key("k"), Want::VALUE).routed(route)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("rank 1") && error.to_string().contains("limit is 0"), "{error}");
}

#[tokio::test]
async fn a_batch_has_a_limit() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&server.url()).await;
    let limit = store.profile().batch_ops_max;
    let gets = |count: usize| (0..count).map(|i| Op::get(key(format!("k{}", i % 7)), Want::VALUE));
    assert!(all(&store, gets(limit)).await.iter().all(|reply| matches!(reply, Ok(Reply::Miss))));
    let replies = all(&store, gets(limit + 1)).await;
    assert_eq!(replies.len(), limit + 1);
    assert!(replies.iter().all(|reply| reply.as_ref().unwrap_err().kind() == ErrorKind::BadInput));
    assert!(all(&store, []).await.is_empty());
}

#[tokio::test]
async fn a_batch_with_ops_that_cannot_be_sent_runs_the_others() {
    let server = Memcached::start(Version::New, &[]);
    let store = open(&server.url()).await;
    let ops = [
        Op::put(key("a"), PutMode::Set, "1", Ttl::Never),
        Op::put(key("b"), PutMode::Set, vec![0; 2_000_000], Ttl::Never),
        Op::get(key([9u8; 200]), Want::VALUE),
        Op::get(key("a"), Want::VALUE),
    ];
    let replies = all(&store, ops).await;
    assert!(matches!(replies[0], Ok(Reply::Stored)));
    assert_eq!(replies[1].as_ref().unwrap_err().kind(), ErrorKind::BadInput);
    assert_eq!(replies[2].as_ref().unwrap_err().kind(), ErrorKind::BadInput);
    assert!(matches!(&replies[3], Ok(Reply::Item(item)) if item.value == "1"));
    assert_eq!(store.stats().ops, 2);
}
