//! A script that is refused a write after it has written: what is told of it is what stands.

mod common;

use bytes::Bytes;
use common::*;
use larder_core::native::{
    BitField, Collection, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply,
};
use larder_core::{Effect, Error, ErrorKind, Op, PutMode, Reply, Store};
use larder_store_redis::RedisStore;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, Value};

/// What a collection is, and the command that counts its entries.
const COLLECTIONS: [(Collection, &str); 3] =
    [(Collection::Hash, "HLEN"), (Collection::Set, "SCARD"), (Collection::Sorted, "ZCARD")];

fn guarded(of: Collection, act: GuardedAct) -> Op {
    Op::native(key("n"), Native::Guarded(Guarded { of, mark: "m".into(), act }))
}

async fn refusal(store: &RedisStore, op: Op, expected: (ErrorKind, Effect), parts: &[&str]) -> Error {
    let named = format!("op {}; key {:?}", op.name(), String::from_utf8_lossy(op.key.as_bytes()));
    let error = one(store, op).await.expect_err(&named);
    assert_eq!((error.kind(), error.known_effect()), expected, "{error}");
    for part in parts.iter().chain([&&named[..]]) {
        assert!(error.to_string().contains(part), "{part:?} is not in: {error}");
    }
    error
}

#[tokio::test]
async fn what_a_script_may_do_only_half_of_is_told_as_it_stands() {
    for version in RedisVersion::ALL {
        let acl = "user admin on >p ~* &* +@all\n\
                   user default off\n\
                   user nolife on >p ~* &* +@all -pexpire\n\
                   user noback on >p ~* &* +@all -pexpire -hdel -srem -zrem\n\
                   user noset on >p ~* &* +@all -set\n\
                   user norange on >p ~* &* +@all -setrange\n";
        let server = RedisServer::start(version, &RedisOptions::new().acl(acl, "admin", "p"));
        let url = |user: &str| format!("redis://{user}:p@{}?value_bytes_max=1024", server.addr());
        let (nolife, noback) = (open(&url("nolife")).await, open(&url("noback")).await);
        for (of, count) in COLLECTIONS {
            // What was made is taken back, and may be made once the life may be set.
            let make = guarded(of, GuardedAct::Make { ttl_ms: Some(60_000) });
            refusal(&nolife, make.clone(), (ErrorKind::Config, Effect::NotApplied), &["ACL SETUSER"]).await;
            assert_eq!(server.command(&["EXISTS", "n"]), Value::Int(0), "{version:?} {of:?}");
            // Where that is forbidden, too, it stays, without its life.
            let said = ["refused PEXPIRE", "stays", "grant PEXPIRE", "ACL SETUSER"];
            refusal(&noback, make.clone(), (ErrorKind::Config, Effect::Unknown), &said).await;
            assert_eq!(server.command(&[count, "n"]), Value::Int(1), "{version:?} {of:?}");
            assert_eq!(server.command(&["PTTL", "n"]), Value::Int(-1), "{version:?} {of:?}");
            // Whoever may not take the old mark sets neither the new one nor what comes with it.
            for entries in [Vec::new(), vec![("e".into(), "1".into())]] {
                let turn = guarded(of, GuardedAct::Turn { to: "t".into(), entries });
                refusal(&noback, turn, (ErrorKind::Config, Effect::NotApplied), &["grant the command"]).await;
                assert_eq!(server.command(&[count, "n"]), Value::Int(1), "{version:?} {of:?}");
            }
            server.command(&["DEL", "n"]);
            let admin = open(&url("admin")).await;
            let made = one(&admin, make).await.unwrap().into_native().unwrap();
            assert_eq!(made, NativeReply::Flags(vec![true]), "{version:?} {of:?}");
            server.command(&["DEL", "n"]);
        }
        let admin = open(&url("admin")).await;
        an_append_that_is_not_taken_back(&server, &admin, &open(&url("noset")).await).await;
        an_append_without_a_version_of_its_own(&admin, &open(&url("norange")).await).await;
    }
}

async fn an_append_without_a_version_of_its_own(admin: &RedisStore, norange: &RedisStore) {
    set(admin, "c", "x").await;
    let said = ["refused SETRANGE", "grant SETRANGE", "stays"];
    refusal(norange, put("c", PutMode::Append, "y"), (ErrorKind::Config, Effect::Unknown), &said).await;
    assert_eq!(value(admin, "c").await.unwrap(), "xy");
    assert_eq!(one(admin, put("c", PutMode::Append, "z")).await.unwrap(), Reply::Stored);
    assert_eq!(value(admin, "c").await.unwrap(), "xyz");
}

async fn an_append_that_is_not_taken_back(server: &RedisServer, admin: &RedisStore, noset: &RedisStore) {
    let max = admin.profile().value_bytes_max(1);
    set(admin, "a", vec![7; max]).await;
    let Value::Int(before) = server.command(&["STRLEN", "a"]) else { panic!("no length") };
    let append = put("a", PutMode::Append, vec![8; 100]);
    refusal(noset, append.clone(), (ErrorKind::Config, Effect::Unknown), &["refused SET", "grant SET", "stays"]).await;
    assert_eq!(server.command(&["STRLEN", "a"]), Value::Int(before + 100));
    // Who may set takes it back; what has room is not to be taken back.
    set(admin, "a", vec![7; max]).await;
    assert_eq!(one(admin, append).await.unwrap(), Reply::NotStored);
    assert_eq!(server.command(&["STRLEN", "a"]), Value::Int(before));
    set(admin, "b", "x").await;
    assert_eq!(one(noset, put("b", PutMode::Append, "y")).await.unwrap(), Reply::Stored);
    assert_eq!(value(admin, "b").await.unwrap(), "xy");
}

#[tokio::test]
async fn what_is_wrong_with_a_later_part_leaves_unknown_what_was_written() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new().arg("proto-max-bulk-len", "1048576"));
        let store = open(&server.url()).await;
        let of = Collection::Sorted;
        one(&store, guarded(of, GuardedAct::Make { ttl_ms: None })).await.unwrap();
        let score = |name: &str| Bytes::from_static(if name == "bad" { b"no score" } else { b"1" });
        let entries = |names: &[&'static str]| -> Vec<(Bytes, Bytes)> {
            names.iter().map(|&name| (name.into(), score(name))).collect()
        };
        let count = || server.command(&["ZCARD", "n"]);
        let put = |names: &[&'static str]| guarded(of, GuardedAct::Put { entries: entries(names) });
        let first = refusal(&store, put(&["bad", "a"]), (ErrorKind::BadInput, Effect::NotApplied), &["float"]).await;
        assert_eq!(count(), Value::Int(1), "{version:?}: {first}");
        let unknown = (ErrorKind::Protocol, Effect::Unknown);
        refusal(&store, put(&["a", "bad"]), unknown, &["refused ZADD", "float", "stays"]).await;
        assert_eq!(count(), Value::Int(2), "{version:?}");
        let turn = |names| guarded(of, GuardedAct::Turn { to: "t".into(), entries: entries(names) });
        refusal(&store, turn(&["bad"]), (ErrorKind::BadInput, Effect::NotApplied), &["float"]).await;
        refusal(&store, turn(&["b", "bad"]), unknown, &["refused ZADD", "float", "stays"]).await;
        assert_eq!(count(), Value::Int(3), "{version:?}");
        assert_eq!(server.command(&["ZSCORE", "n", "m"]).text(), "0", "{version:?}: it carries the mark that it had");

        // More numbers than one command sets, and the last one past the longest value.
        server.command(&["SET", "n", "m"]);
        let bits = |numbers: Vec<BitField>| {
            let act = GuardedBitsAct::Put { numbers };
            Op::native(key("n"), Native::GuardedBits(GuardedBits { mark: "m".into(), act }))
        };
        let far = BitField::set(8, 16 << 20, 1);
        refusal(&store, bits(vec![far]), (ErrorKind::BadInput, Effect::NotApplied), &["offset"]).await;
        assert_eq!(server.command(&["STRLEN", "n"]), Value::Int(1), "{version:?}");
        let many = (1..=1_500).map(|at| BitField::set(8, at * 8, 1)).chain([far]).collect();
        refusal(&store, bits(many), unknown, &["refused BITFIELD", "offset", "stays"]).await;
        assert!(matches!(server.command(&["STRLEN", "n"]), Value::Int(1_000..)), "{version:?}");
    }
}
