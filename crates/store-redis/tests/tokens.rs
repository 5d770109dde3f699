//! Which item a cas token matches: the one that it was read from, and no other.

mod common;

use common::*;
use larder_core::{Op, PutMode, Reply, Ttl, Verb, Want};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

#[tokio::test]
async fn a_token_outlives_its_connection_and_matches_nothing_else() {
    for version in RedisVersion::ALL {
        let mut server = RedisServer::start(version, &RedisOptions::new().appendonly());
        let store = open(&server.url()).await;
        let cas = a_cas(&store).await;
        server.restart();
        wait_until_up(&store).await;
        assert_eq!(one(&store, put("ours", PutMode::Cas(cas), "w")).await.unwrap(), Reply::Stored, "{version:?}");
        // The same bytes, written again, are another item.
        set(&store, "ours", "v").await;
        let cas = a_cas(&store).await;
        set(&store, "ours", "v").await;
        assert_eq!(one(&store, put("ours", PutMode::Cas(cas), "x")).await.unwrap(), Reply::Exists);
        assert_eq!(one(&store, Op::delete_if(key("ours"), cas)).await.unwrap(), Reply::Exists);
        // So is an item that was deleted and made again, and one that grew.
        let cas = a_cas(&store).await;
        one(&store, put("ours", PutMode::Append, "!")).await.unwrap();
        assert_eq!(one(&store, put("ours", PutMode::Cas(cas), "x")).await.unwrap(), Reply::Exists);
        one(&store, Op::delete(key("ours"))).await.unwrap();
        assert_eq!(one(&store, put("ours", PutMode::Cas(cas), "x")).await.unwrap(), Reply::Miss);
        assert!(store.stats().reconnects > 0);
    }
}

/// A server that lost its last appends grows to the same length with others. What is written then was acknowledged by a server that never failed again.
#[tokio::test]
async fn a_token_of_an_append_that_was_lost_does_not_match_one_of_the_same_length_in_its_place() {
    for version in RedisVersion::ALL {
        let mut server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server.url()).await;
        for (name, flags) in [("plain", 0), ("flagged", 9)] {
            let set = Verb::Put { mode: PutMode::Set, value: "v".into(), flags, ttl: Ttl::Never };
            one(&store, Op::new(key(name), set)).await.unwrap();
        }
        server.command(&["SAVE"]);
        let mut tokens = Vec::new();
        for name in ["plain", "flagged"] {
            one(&store, put(name, PutMode::Append, "aaaa")).await.unwrap();
            tokens.push((name, cas_of(&store, name).await));
        }
        server.kill9();
        server.restart();
        wait_until_up(&store).await;
        for (name, cas) in tokens {
            assert_eq!(value(&store, name).await.unwrap(), "v", "{version:?}: as it was saved");
            one(&store, put(name, PutMode::Append, "bbbb")).await.unwrap();
            let swap = one(&store, put(name, PutMode::Cas(cas), "ours")).await.unwrap();
            assert_eq!(swap, Reply::Exists, "{version:?} {name}");
            assert_eq!(one(&store, Op::delete_if(key(name), cas)).await.unwrap(), Reply::Exists, "{version:?} {name}");
            let item = one(&store, Op::get(key(name), Want::all())).await.unwrap().into_item().unwrap();
            assert_eq!((&item.value[..], item.flags), (&b"vbbbb"[..], if name == "plain" { 0 } else { 9 }));
        }
    }
}

/// What is shorter than 1,000 bytes is compared by one read, what is longer by two.
#[tokio::test]
async fn an_item_of_any_length_is_written_over_as_it_was_read_and_not_as_it_grew() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        let store = open(&server.url()).await;
        for length in [0, 1, 90, 91, 989, 990, 991, 992, 1_015, 1_016, 100_000] {
            let value = vec![b'v'; length];
            let is = |reply: Reply| (version, length, reply);
            set(&store, "item", value.clone()).await;
            let cas = cas_of(&store, "item").await;
            let swap = put("item", PutMode::Cas(cas), value.clone());
            one(&store, put("item", PutMode::Append, "!")).await.unwrap();
            assert_eq!(is(one(&store, swap.clone()).await.unwrap()), is(Reply::Exists));
            let replies = all(&store, [swap.clone(), Op::get(key("item"), Want::VALUE)]).await;
            let [swapped, found] = <[_; 2]>::try_from(replies.into_iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(is(swapped.unwrap()), is(Reply::Exists));
            assert_eq!(found.unwrap().into_item().unwrap().value.len(), length + 1);
            one(&store, Op::delete(key("item"))).await.unwrap();
            assert_eq!(is(one(&store, swap).await.unwrap()), is(Reply::Miss));
            set(&store, "item", value.clone()).await;
            let cas = cas_of(&store, "item").await;
            let swapped = one(&store, put("item", PutMode::Cas(cas), "w")).await.unwrap();
            assert_eq!(is(swapped), is(Reply::Stored));
            assert_eq!(common::value(&store, "item").await.unwrap(), "w");
        }
    }
}
