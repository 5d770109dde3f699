//! What is set up wrong, or was written by others: each a clear error naming the command, the key and the mend, and nothing overwritten.

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use common::*;
use larder_core::list::{List, Listed};
use larder_core::native::{
    BitField, Collection, Guarded, GuardedAct, GuardedBits, GuardedBitsAct, Native, NativeReply, Only, Score,
};
use larder_core::{
    Arith, Ctx, Durability, Effect, Error, ErrorKind, Eviction as Evicts, Key, Op, PutMode, Reply, Route, Store,
    StoreExt, Ttl, Verb, Want,
};
use larder_store_redis::{ClusterConfig, Config, RedisClusterStore, RedisStore, WaitReplicas};
use larder_testkit::redis::{Eviction, RedisOptions, RedisServer, RedisVersion, Value};

fn start(version: RedisVersion) -> RedisServer {
    RedisServer::start(version, &RedisOptions::new())
}

#[tokio::test]
async fn a_replica_is_refused_and_its_primary_named() {
    for version in RedisVersion::ALL {
        let primary = start(version);
        let replica = RedisServer::start(version, &RedisOptions::new().replica_of(primary.addr()));
        let error = refused(&replica.url()).await;
        assert_eq!(error.kind(), ErrorKind::Config);
        let (said, port) = (error.to_string(), primary.addr().port());
        assert!(said.contains("replica (role slave)") && said.contains(&format!("primary 127.0.0.1:{port}")), "{said}");
    }
}

#[tokio::test]
async fn a_replica_is_refused_to_a_user_who_may_not_info_too() {
    let acl = "user default on nopass ~* &* +@all\n\
               user noinfo on >p ~* &* +@all -info\n\
               user norole on >p ~* &* +@all -info -role\n";
    for version in RedisVersion::ALL {
        let primary = start(version);
        let options = RedisOptions::new().replica_of(primary.addr()).acl(acl, "default", "");
        let replica = RedisServer::start(version, &options);
        for (user, named) in
            [("noinfo", format!("primary 127.0.0.1:{}", primary.addr().port())), ("norole", "INFO and ROLE".to_owned())]
        {
            let error = refused(&format!("redis://{user}:p@{}", replica.addr())).await;
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Config, "{said}");
            assert!(said.contains("this server is a replica") && said.contains(&named), "{said}");
        }
    }
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_refuses_writes_and_then_reads_and_says_so() {
    for version in RedisVersion::ALL {
        let (server, primary) = (start(version), start(version));
        let port = primary.addr().port().to_string();
        for op in [put("k", PutMode::Add, "w"), put("new", PutMode::Set, "w")] {
            assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
            let store = open(&server.url()).await;
            set(&store, "k", "v").await;
            assert_eq!(server.command(&["REPLICAOF", "127.0.0.1", &port]).text(), "OK");
            let error = one(&store, op).await.unwrap_err();
            let said = error.to_string();
            assert_eq!(error.known_effect(), Effect::NotApplied, "{said}");
            for part in ["has become a replica", "connect to its primary", "op ", "key \""] {
                assert!(said.contains(part), "{part:?} is not in: {said}");
            }
            for op in [Op::get(key("k"), Want::VALUE), put("k", PutMode::Set, "w")] {
                let error = one(&store, op).await.unwrap_err();
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{error}");
                let said = error.to_string();
                assert!(said.contains("replica") && said.contains(&format!("primary 127.0.0.1:{port}")), "{said}");
            }
            // Once it is a primary again it is found again.
            assert_eq!(server.command(&["REPLICAOF", "NO", "ONE"]).text(), "OK");
            wait_until_up(&store).await;
            set(&store, "k", "v").await;
        }
    }
}

#[tokio::test]
async fn a_password_that_is_missing_or_wrong_is_named() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new().password("s3cret"));
        let at = server.addr();
        let missing = refused(&format!("redis://{at}")).await;
        assert_eq!(missing.kind(), ErrorKind::Config);
        let said = missing.to_string();
        assert!(said.contains("wants a password (HELLO") && said.contains("put it in the URL"), "{said}");
        let wrong = refused(&format!("redis://:hunter2@{at}")).await;
        assert_eq!(wrong.kind(), ErrorKind::Config);
        let said = wrong.to_string();
        assert!(said.contains("refuses the user or the password (HELLO") && said.contains("correct them in"), "{said}");
        assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
        let store = open(&format!("redis://:s3cret@{at}")).await;
        set(&store, "k", "v").await;
        set(&open(&format!("redis://default:s3cret@{at}")).await, "k", "w").await;
        assert_eq!(value(&store, "k").await.unwrap(), "w");
    }
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named_and_databases_are_apart() {
    let server = start(RedisVersion::Valkey);
    let error = refused(&format!("{}/99", server.url())).await;
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("no database 99"), "{error}");
    let (zero, one) = (open(&server.url()).await, open(&format!("{}/1", server.url())).await);
    set(&one, "k", "v").await;
    assert_eq!((value(&zero, "k").await, value(&one, "k").await), (None, Some("v".into())));
}

#[tokio::test]
async fn a_policy_that_evicts_is_told_and_warned_of() {
    for version in RedisVersion::ALL {
        let options = RedisOptions::new().maxmemory(64 << 20, Eviction::AllKeysLru);
        let profile = open(&RedisServer::start(version, &options).url()).await.profile();
        assert_eq!(profile.eviction, Evicts::WhenFull);
        assert!(profile.warnings[0].contains("maxmemory-policy allkeys-lru"), "{:?}", profile.warnings);
        assert!(profile.warnings[0].contains("set maxmemory-policy noeviction"), "{:?}", profile.warnings);
        let profile = open(&start(version).url()).await.profile();
        assert_eq!((profile.eviction, profile.warnings.len()), (Evicts::Never, 0));
    }
}

#[tokio::test]
async fn limits_of_packed_encodings_that_cost_memory_are_warned_of() {
    for version in RedisVersion::ALL {
        let options = RedisOptions::new().arg("hash-max-listpack-entries", "4").arg("set-max-intset-entries", "0");
        let profile = open(&RedisServer::start(version, &options).url()).await.profile();
        let limits = profile.encodings.expect("the server tells");
        assert_eq!((limits.hash_entries_max, limits.set_integers_max), (4, 0));
        assert_eq!(profile.warnings.len(), 2, "{:?}", profile.warnings);
        for (said, mend) in
            profile.warnings.iter().zip(["set hash-max-listpack-entries 512", "set set-max-intset-entries 512"])
        {
            assert!(said.contains(mend) && said.contains("memory"), "{mend:?} is not in {said}");
        }
    }
}

#[tokio::test]
async fn what_a_restart_leaves_is_told() {
    for version in RedisVersion::ALL {
        let none = RedisOptions::new().arg("save", "");
        let snapshots = RedisOptions::new().arg("save", "3600 1");
        let second = RedisOptions::new().arg("appendonly", "yes");
        let always = RedisOptions::new().appendonly();
        for (options, durability) in [
            (none, Durability::Server),
            (snapshots, Durability::Recent),
            (second, Durability::Recent),
            (always, Durability::Disk),
        ] {
            let profile = open(&RedisServer::start(version, &options).url()).await.profile();
            assert_eq!(profile.durability, durability, "{version:?} {options:?}");
            let flavour = if version == RedisVersion::Valkey { "valkey " } else { "redis " };
            assert!(profile.store.starts_with(flavour), "{}", profile.store);
            let encodings = profile.encodings.expect("the server tells");
            assert_eq!((encodings.set_integers_max, encodings.sorted_set_entries_max), (512, 128));
        }
    }
}

#[tokio::test]
async fn what_acl_forbids_is_named_with_the_mend() {
    for version in RedisVersion::ALL {
        let acl = "user admin on >admin ~* &* +@all\n\
                   user default off\n\
                   user noscript on >p ~* &* +@all -evalsha\n\
                   user noload on >p ~* &* +@all -script\n\
                   user noset on >p ~* &* +@all -set\n\
                   user nobits on >p ~* &* +@all -bitfield\n\
                   user nolook on >p ~* &* +@all -config -info -scan\n\
                   user nokey on >p ~mine* &* +@all\n";
        let server = RedisServer::start(version, &RedisOptions::new().acl(acl, "admin", "admin"));
        let url = |user: &str| format!("redis://{user}:p@{}", server.addr());
        for (user, command) in [("noload", "SCRIPT LOAD"), ("noscript", "EVALSHA")] {
            let error = refused(&url(user)).await;
            let said = error.to_string();
            assert!(
                error.kind() == ErrorKind::Config && said.contains(command) && said.contains("ACL SETUSER"),
                "{said}"
            );
        }
        // Of a command in a script, old servers do not say which: the script's are named instead.
        let in_script = if version == RedisVersion::Redis7 { "calls SET, GETRANGE, EXISTS)" } else { "'set' command" };
        let refusals = [
            ("noset", PutMode::Add, "'set' command"),
            ("noset", PutMode::Set, in_script),
            ("nokey", PutMode::Add, " key"),
        ];
        for (user, mode, forbidden) in refusals {
            let op = put("k", mode, "v");
            let named = format!("op {}", op.name());
            let error = one(&open(&url(user)).await, op).await.unwrap_err();
            let said = error.to_string();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{said}");
            for part in ["forbids it to this user", forbidden, "ACL SETUSER", "key \"k\"", &named] {
                assert!(said.contains(part), "{part:?} is not in: {said}");
            }
        }
        // A guarded change of bits is a script, too.
        server.command(&["SET", "b", "m--------"]);
        let act = GuardedBitsAct::Incr { number: BitField::incr(63, 9, 1) };
        let op = Op::native(key("b"), Native::GuardedBits(GuardedBits { mark: "m".into(), act }));
        let error = one(&open(&url("nobits")).await, op).await.unwrap_err();
        let said = error.to_string();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{said}");
        let in_script = if version == RedisVersion::Redis7 { "BITFIELD)" } else { "'bitfield' command" };
        for part in ["forbids it to this user", in_script, "ACL SETUSER", "key \"b\"", "op guarded bits"] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
        server.command(&["DEL", "b"]);
        let store = open(&url("nolook")).await;
        let profile = store.profile();
        assert_eq!((profile.eviction, profile.durability), (Evicts::Unknown, Durability::Unknown));
        assert!(profile.warnings[0].contains("INFO is refused"), "{:?}", profile.warnings);
        let error = store.list(Ctx::default(), b"", &mut |_| ()).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("SCAN"), "{error}");
        assert_eq!(server.command(&["DBSIZE"]), Value::Int(0));
    }
}

#[tokio::test]
async fn a_command_that_was_taken_away_is_named() {
    // Away or renamed; called by the client, by a script, by both, or by structures that are native alone.
    let taken = [
        ("EVALSHA", ""),
        ("SET", ""),
        ("GET", ""),
        ("GETRANGE", "GR"),
        ("APPEND", ""),
        ("PTTL", ""),
        ("BITFIELD", "BF"),
        ("SADD", ""),
        ("SCRIPT", "SC"),
    ];
    for (version, (command, name)) in
        RedisVersion::ALL.into_iter().flat_map(|version| taken.map(|taken| (version, taken)))
    {
        let options = RedisOptions::new().arg(&format!("rename-command {command}"), name);
        let server = RedisServer::start(version, &options);
        let error = refused(&server.url()).await;
        let said = error.to_string();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{said}");
        assert!(said.contains(&format!("needs the command {command}")) && said.contains("rename-command"), "{said}");
    }
}

#[tokio::test]
async fn hello_that_was_taken_away_is_named_with_the_mend() {
    for (version, name) in RedisVersion::ALL.into_iter().flat_map(|version| ["", "HI"].map(|name| (version, name))) {
        let server = RedisServer::start(version, &RedisOptions::new().arg("rename-command HELLO", name));
        let error = refused(&server.url()).await;
        let said = error.to_string();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{said}");
        for part in ["Redis 6.2 or later", "HELLO was renamed or taken away", "give HELLO back (rename-command)"] {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
    }
}

/// What only tells of the server is missed, and said to be, where it is taken away; structures need none of it.
#[tokio::test]
async fn a_server_without_the_commands_that_only_tell_is_a_store_that_warns_and_names_what_it_lacks() {
    for version in RedisVersion::ALL {
        let taken = |command: &str| RedisOptions::new().arg(&format!("rename-command {command}"), "");
        for (command, warned) in [("INFO", "INFO is refused"), ("CONFIG", "CONFIG GET is refused")] {
            let server = RedisServer::start(version, &taken(command));
            let store = open(&server.url()).await;
            let warnings = store.profile().warnings.clone();
            assert!(warnings.len() == 1 && warnings[0].contains(warned), "{warnings:?}");
            set(&store, "k", "v").await;
            assert_eq!(value(&store, "k").await.unwrap(), "v");
        }
        let server = RedisServer::start(version, &taken("SCAN"));
        let store = open(&server.url()).await;
        assert_eq!(store.profile().warnings, [""; 0]);
        let error = store.list(Ctx::default(), b"", &mut |_| ()).await.unwrap_err();
        let said = error.to_string();
        assert!(
            error.kind() == ErrorKind::Config && said.contains("(SCAN)") && said.contains("rename-command"),
            "{said}"
        );
    }
}

/// A server repeats the arguments of a command that it does not know, and a refusal that is not UTF-8 ends the connection: with it would end what others wait for.
#[tokio::test]
async fn a_command_that_only_looks_and_was_taken_away_is_named_and_ends_no_connection() {
    for version in RedisVersion::ALL {
        let options = ["MEMORY", "OBJECT", "SCAN"]
            .into_iter()
            .fold(RedisOptions::new(), |options, command| options.arg(&format!("rename-command {command}"), ""));
        let server = RedisServer::start(version, &options);
        let store = open(&server.url()).await;
        let before = store.stats().connections;
        let is_named = |error: Error, command: &str| {
            let said = error.to_string();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Config, Effect::NotApplied), "{said}");
            assert!(said.contains(command) && said.contains("rename-command"), "{said}");
        };
        let name = || Key::new(&b"\xff\xfe"[..]).unwrap();
        for (look, command) in [(Native::Encoding, "OBJECT"), (Native::MemoryBytes, "MEMORY")] {
            is_named(one(&store, Op::native(name(), look)).await.unwrap_err(), command);
        }
        is_named(store.list(Ctx::default(), b"\xff", &mut |_| ()).await.unwrap_err(), "SCAN");
        set(&store, "k", "v").await;
        assert_eq!((store.stats().connections, store.stats().reconnects), (before, 0), "{version:?}");
    }
}

/// `HELLO` is answered meanwhile, and `SELECT` is not.
#[tokio::test]
async fn a_database_that_is_not_selected_for_now_or_by_this_user_is_told_as_that() {
    for version in RedisVersion::ALL {
        let acl = "user default on nopass ~* &* +@all\nuser noselect on >p ~* &* +@all -select\n";
        let options = RedisOptions::new().acl(acl, "default", "").arg("lua-time-limit", "10");
        let server = RedisServer::start(version, &options);
        let error = refused(&format!("redis://noselect:p@{}/1", server.addr())).await;
        let said = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Config, "{said}");
        assert!(said.contains("select database 1") && said.contains("ACL SETUSER"), "{said}");
        let error = refused(&format!("redis://{}/99", server.addr())).await;
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains("no database 99"), "{error}");
        let mut busy = TcpStream::connect(server.addr()).unwrap();
        busy.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        for database in [0, 1] {
            let error = refused(&format!("redis://{}/{database}", server.addr())).await;
            let said = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{version:?} {database}: {said}");
            assert!(said.contains("for now") && said.contains("busy"), "{said}");
        }
        assert_eq!(server.command(&["SCRIPT", "KILL"]).text(), "OK");
        set(&open(&format!("redis://{}/1", server.addr())).await, "k", "v").await;
    }
}

#[tokio::test]
async fn a_policy_that_evicts_what_has_a_life_is_warned_of_and_none_is_without_a_limit() {
    for version in RedisVersion::ALL {
        let options = RedisOptions::new().maxmemory(64 << 20, Eviction::VolatileLru);
        let profile = open(&RedisServer::start(version, &options).url()).await.profile();
        assert_eq!(profile.eviction, Evicts::WhenFull);
        assert!(profile.warnings[0].contains("maxmemory-policy volatile-lru"), "{:?}", profile.warnings);
        let options = RedisOptions::new().maxmemory(0, Eviction::AllKeysLru);
        let profile = open(&RedisServer::start(version, &options).url()).await.profile();
        assert_eq!((profile.eviction, &profile.warnings[..]), (Evicts::Never, &[][..]), "no limit is never reached");
    }
}

#[tokio::test]
async fn a_policy_that_is_set_later_is_noticed_with_the_next_connection() {
    let server = start(RedisVersion::Redis8);
    let store = open(&server.url()).await;
    for (name, value) in [("maxmemory", "64mb"), ("maxmemory-policy", "allkeys-lru")] {
        assert_eq!(server.command(&["CONFIG", "SET", name, value]).text(), "OK");
    }
    set(&store, "k", "v").await;
    assert_eq!((store.profile().eviction, store.profile().warnings.len()), (Evicts::Never, 0));
    assert!(!server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).is_error());
    wait_until_up(&store).await;
    assert_eq!(store.profile().eviction, Evicts::WhenFull);
    assert!(store.profile().warnings[0].contains("maxmemory-policy allkeys-lru"), "{:?}", store.profile().warnings);
}

async fn each_is_refused(server: &RedisServer, store: &RedisStore, name: &str, said: &str) {
    let before = server.command(&["DUMP", name]);
    let cas = a_cas(store).await;
    for op in every_op(name, cas) {
        let op_name = op.name();
        let what = format!("{name} {op_name}");
        let error = one(store, op).await.expect_err(&what);
        let text = error.to_string();
        assert_eq!(
            (error.kind(), error.known_effect()),
            (ErrorKind::LayoutMismatch, Effect::NotApplied),
            "{what}: {text}"
        );
        let named = [format!("op {op_name}"), format!("key \"{name}\"")];
        for part in [said, "nothing was changed", "Use another key or namespace", &named[0], &named[1]] {
            assert!(text.contains(part), "{what}: {part:?} is not in: {text}");
        }
    }
    assert_eq!(one(store, put(name, PutMode::Add, "v")).await.unwrap(), Reply::NotStored);
    assert_eq!(server.command(&["DUMP", name]), before, "{name} was changed");
    assert_eq!(server.command(&["PTTL", name]), Value::Int(-1));
}

#[tokio::test]
async fn a_key_of_another_type_is_never_touched() {
    for version in RedisVersion::ALL {
        let server = start(version);
        let store = open(&server.url()).await;
        server.command(&["RPUSH", "list", "a"]);
        server.command(&["HSET", "hash", "a", "b"]);
        server.command(&["SADD", "set", "a"]);
        server.command(&["ZADD", "sorted", "1", "a"]);
        server.command(&["XADD", "stream", "1-1", "a", "b"]);
        for name in ["list", "hash", "set", "sorted", "stream"] {
            each_is_refused(&server, &store, name, "another Redis type").await;
        }
    }
}

#[tokio::test]
async fn a_native_op_on_a_key_of_another_type_says_which_type_it_needs() {
    let some = || vec![Bytes::from_static(b"a")];
    let pair = || (Bytes::from_static(b"a"), Bytes::from_static(b"1"));
    let guarded = |of| {
        let act = GuardedAct::Put { entries: vec![pair()] };
        Native::Guarded(Guarded { of, mark: "m".into(), act })
    };
    let bits = |act| Native::GuardedBits(GuardedBits { mark: "m".into(), act });
    let ops = [
        (Native::HashSet { entries: vec![pair()] }, "a hash,"),
        (Native::HashAll, "a hash,"),
        (guarded(Collection::Hash), "a hash,"),
        (Native::SetAdd { members: some() }, "a set,"),
        (guarded(Collection::Set), "a set,"),
        (Native::SortedAdd { entries: vec![("a".into(), Score::from(1))], only: Only::empty() }, "a sorted set,"),
        (guarded(Collection::Sorted), "a sorted set,"),
        (Native::Bits(vec![BitField::set(8, 0, 1)]), "a string of bits,"),
        (Native::BitsLen, "a string of bits,"),
        (bits(GuardedBitsAct::Incr { number: BitField::incr(8, 0, 1) }), "a string of bits,"),
        (bits(GuardedBitsAct::Drop { or: Vec::new() }), "a string of bits,"),
        (
            Native::Guarded(Guarded { of: Collection::Set, mark: "m".into(), act: GuardedAct::Make { ttl_ms: None } }),
            "a set,",
        ),
        (
            Native::Guarded(Guarded { of: Collection::Hash, mark: "m".into(), act: GuardedAct::Drop { or: some() } }),
            "a hash,",
        ),
        (Native::StreamAppend { fields: vec![pair()], keep: None }, "a stream,"),
    ];
    for version in RedisVersion::ALL {
        let server = start(version);
        let store = open(&server.url()).await;
        server.command(&["RPUSH", "list", "a"]);
        let before = server.command(&["DUMP", "list"]);
        for (native, holds) in ops.clone() {
            let op = Op::native(key("list"), native);
            let named = format!("op {}", op.name());
            let error = one(&store, op).await.unwrap_err();
            let said = error.to_string();
            assert_eq!(
                (error.kind(), error.known_effect()),
                (ErrorKind::LayoutMismatch, Effect::NotApplied),
                "{version:?}: {said}"
            );
            let needs = format!("another Redis type than {holds}");
            for part in [&needs[..], "nothing was changed", "Use another key or namespace", &named, "key \"list\""] {
                assert!(said.contains(part), "{version:?}: {part:?} is not in: {said}");
            }
        }
        assert_eq!(server.command(&["DUMP", "list"]), before, "{version:?}");
    }
}

#[tokio::test]
async fn a_value_of_another_program_is_never_touched() {
    for version in RedisVersion::ALL {
        let server = start(version);
        let store = open(&server.url()).await;
        for (name, value) in
            [("text", &b"hello, world"[..]), ("short", b"5"), ("empty", b""), ("number", b"12345678901234567890")]
        {
            server.command(&[&b"SET"[..], name.as_bytes(), value]);
            each_is_refused(&server, &store, name, "another program wrote").await;
        }
    }
}

#[tokio::test]
async fn a_full_server_says_so_and_keeps_what_was_there() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new().maxmemory(8 << 20, Eviction::NoEviction));
        let store = open(&server.url()).await;
        set(&store, "k", "precious").await;
        let (mut filled, mut refused) = (0, 0);
        // A command takes memory itself while it runs, so the first refusal is not yet the edge.
        let error = loop {
            match one(&store, put(&format!("fill{filled}"), PutMode::Set, vec![7; 20_000])).await {
                Ok(_) => filled += 1,
                Err(error) if refused > 9 => break error,
                Err(_) => refused += 1,
            }
            assert!(filled < 1_000, "it takes ever more");
        };
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
        for mode in [PutMode::Set, PutMode::Append, PutMode::Prepend] {
            let error = one(&store, put("k", mode, vec![7; 400_000])).await.unwrap_err();
            assert_eq!(
                (error.kind(), error.known_effect()),
                (ErrorKind::Full, Effect::NotApplied),
                "{mode:?}: {error}"
            );
        }
        assert_eq!(value(&store, "k").await.unwrap(), "precious");
        assert_eq!(one(&store, Op::delete(key("fill0"))).await.unwrap(), Reply::Deleted, "room can be made");
    }
}

#[tokio::test]
async fn forgotten_scripts_are_loaded_again_and_a_keys_order_is_kept() {
    for version in RedisVersion::ALL {
        let server = start(version);
        let store = open(&server.url()).await;
        set(&store, "k", "a").await;
        server.command(&["SCRIPT", "FLUSH"]);
        set(&store, "k", "b").await;
        assert_eq!((value(&store, "k").await.unwrap(), store.stats().scripts_reloaded), ("b".into(), 1));
        server.command(&["SCRIPT", "FLUSH"]);
        let replies =
            all(&store, [put("k", PutMode::Append, "c"), put("l", PutMode::Set, "x"), put("k", PutMode::Append, "d")])
                .await;
        assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))), "{replies:?}");
        assert_eq!(value(&store, "k").await.unwrap(), "bcd");
        // So are those that look for a mark, and what they do is done once.
        let make = Native::BitsMake { value: "m--------".into() };
        let act = GuardedBitsAct::Incr { number: BitField::incr(8, 8, 1) };
        let incr = Native::GuardedBits(GuardedBits { mark: "m".into(), act });
        let of = Collection::Set;
        let mark = || Native::Guarded(Guarded { of, mark: "m".into(), act: GuardedAct::Make { ttl_ms: None } });
        one(&store, Op::native(key("b"), make)).await.unwrap();
        server.command(&["SCRIPT", "FLUSH"]);
        let replies = all(&store, [Op::native(key("b"), incr), Op::native(key("s"), mark())]).await;
        let told = |at: usize| replies[at].clone().unwrap().into_native().unwrap();
        assert_eq!(told(0), NativeReply::Numbers(vec![Some(u64::from(b'-') + 1)]));
        assert_eq!(told(1), NativeReply::Flags(vec![true]));
        assert_eq!(server.command(&["GET", "b"]).text(), "m.-------");
        server.command(&["DEL", "b", "s"]);
        // The get has run: the append before it must not run after it.
        server.command(&["SCRIPT", "FLUSH"]);
        let replies = all(
            &store,
            [put("k", PutMode::Append, "e"), Op::get(key("k"), Want::VALUE), put("l", PutMode::Append, "y")],
        )
        .await;
        let error = replies[0].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("scripts"), "{error}");
        assert_eq!(replies[2].as_ref().unwrap(), &Reply::Stored);
        assert_eq!((value(&store, "k").await.unwrap(), value(&store, "l").await.unwrap()), ("bcd".into(), "xy".into()));
    }
}

/// The largest batch that is promised.
#[tokio::test]
async fn a_large_batch_is_done_after_scripts_were_forgotten() {
    let server = start(RedisVersion::Redis8);
    let store = open(&format!("{}?timeout_ms=60000", server.url())).await;
    let ops = store.profile().batch_ops_max;
    server.command(&["SCRIPT", "FLUSH"]);
    let replies = all(&store, (0..ops).map(|at| put(&format!("k{at}"), PutMode::Set, "v"))).await;
    assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
    assert_eq!((replies.len(), store.stats().scripts_reloaded), (ops, 1));
}

#[tokio::test]
async fn keys_with_braces_and_routes_are_apart_and_are_listed_by_their_names() {
    let server = start(RedisVersion::Redis7);
    let store = open(&server.url()).await;
    let together =
        |name: &str| put(name, PutMode::Set, name.to_owned()).routed(Route { with: Some(key("L.q{0}")), rank: 0 });
    let names = ["L.q{0}", "{L}x", "}{", "L.*", "L.plain", "\x1a("];
    for name in names {
        set(&store, name, name).await;
    }
    assert_eq!(one(&store, together("L.q.c1")).await.unwrap(), Reply::Stored);
    assert_eq!(one(&store, together("{L}x").routed(Route::default())).await.unwrap(), Reply::Stored);
    for name in names {
        assert_eq!(value(&store, name).await.unwrap(), name);
    }
    assert_eq!(value(&store, "L.q.c1").await, None, "it stands with the other");
    assert_eq!(server.command(&["EXISTS", "{L.q\x1a(0\x1a)}L.q.c1"]), Value::Int(1));
    // What no key of ours is.
    let long = "x".repeat(251);
    let strange = ["user:{1}", "{user:1}.cart", "{", &long];
    for key in strange {
        assert_eq!(server.command(&["SET", key, "v"]), Value::Status("OK".to_owned()));
    }
    let routed = "{L.q\x1a(0\x1a)}L.q.c1";
    for (prefix, expected, others) in [
        (&b""[..], &["L.q{0}", "{L}x", "}{", "L.*", "L.plain", "\x1a("][..], &[&strange[..], &[routed]].concat()[..]),
        (b"L.", &["L.q{0}", "L.*", "L.plain"], &[]),
        (b"L.*", &["L.*"], &[]),
        (b"{L", &["{L}x"], &[]),
    ] {
        let (mut found, mut other) = (BTreeSet::new(), BTreeSet::new());
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        let mut tell = |listed: Listed<'_>| match listed {
            Listed::Key(key) => _ = found.insert(text(key)),
            Listed::Other(key) => _ = other.insert(text(key)),
            Listed::LookedAt(_) => {}
        };
        store.list(Ctx::default(), prefix, &mut tell).await.unwrap();
        let all = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        assert_eq!((found, other), (all(expected), all(others)), "{prefix:?}");
    }
    let error = one(&store, put("k", PutMode::Set, "v").routed(Route { with: None, rank: 1 })).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
}

/// Whoever mends it looks on the server, where keys that belong together have another name.
#[tokio::test]
async fn a_key_that_stands_elsewhere_on_the_server_is_named_as_it_stands_there() {
    for version in RedisVersion::ALL {
        let acl = "user default on nopass ~* &* +@all\nuser joe on >p ~L.* &* +@all\n";
        let server = RedisServer::start(version, &RedisOptions::new().acl(acl, "default", ""));
        server.command(&["RPUSH", "{L.q.0}L.q.c1", "a"]);
        server.command(&["SET", "{L.q.0}L.q.c2", "theirs"]);
        let with = |op: Op| op.routed(Route { with: Some(key("L.q.0")), rank: 0 });
        let (all, joe) = (open(&server.url()).await, open(&format!("redis://joe:p@{}", server.addr())).await);
        for (store, name, kind) in [
            (&joe, "L.q.c1", ErrorKind::Config),
            (&all, "L.q.c1", ErrorKind::LayoutMismatch),
            (&all, "L.q.c2", ErrorKind::LayoutMismatch),
        ] {
            for op in [Op::get(key(name), Want::VALUE), put(name, PutMode::Set, "v")] {
                let error = one(store, with(op)).await.unwrap_err();
                let said = error.to_string();
                assert_eq!((error.kind(), error.known_effect()), (kind, Effect::NotApplied), "{said}");
                for part in [format!("on the server the key is \"{{L.q.0}}{name}\""), format!("key \"{name}\"")] {
                    assert!(said.contains(&part), "{part:?} is not in: {said}");
                }
            }
        }
        // One that stands under its own name is named once.
        server.command(&["RPUSH", "L.x", "a"]);
        let said = one(&all, Op::get(key("L.x"), Want::VALUE)).await.unwrap_err().to_string();
        assert!(!said.contains("on the server the key is"), "{said}");
    }
}

#[tokio::test]
async fn a_listing_tells_every_one_of_many_keys() {
    let server = start(RedisVersion::Valkey);
    let store = open(&server.url()).await;
    for from in (0..5_000).step_by(1_000) {
        let puts = (from..from + 1_000).map(|n| put(&format!("n{n}"), PutMode::Add, ""));
        assert!(all(&store, puts).await.iter().all(Result::is_ok));
    }
    let mut found = BTreeSet::new();
    let mut tell = |listed: Listed<'_>| {
        if let Listed::Key(key) = listed {
            found.insert(key.to_vec());
        }
    };
    store.list(Ctx::default(), b"n", &mut tell).await.unwrap();
    assert_eq!(found.len(), 5_000);
}

#[tokio::test]
async fn arithmetic_is_that_of_64_bits_without_a_sign() {
    const SOME: [u64; 12] = [
        0,
        1,
        9,
        9_999_999_999,
        10_000_000_000,
        1 << 53,
        (1 << 53) + 1,
        i64::MAX as u64,
        i64::MAX as u64 + 1,
        18_446_744_069_999_999_999,
        u64::MAX - 1,
        u64::MAX,
    ];
    for version in RedisVersion::ALL {
        let server = start(version);
        let store = open(&server.url()).await;
        let mut random = fastrand::Rng::with_seed(7);
        let mut pairs: Vec<(u64, u64)> =
            SOME.iter().flat_map(|&one| SOME.iter().map(move |&other| (one, other))).collect();
        pairs.extend((0..500).map(|_| (random.u64(..) >> random.u32(0..64), random.u64(..) >> random.u32(0..64))));
        for flags in [0, 9] {
            let ops = pairs.iter().flat_map(|&(one, other)| {
                let value = one.to_string().into_bytes().into();
                let set = Verb::Put { mode: PutMode::Set, value, flags, ttl: Ttl::Never };
                let set = Op::new(key("n"), set);
                [
                    set.clone(),
                    Op::arith(key("n"), Arith::Incr(other)),
                    set,
                    Op::arith(key("n"), Arith::Decr(other)),
                    Op::get(key("n"), Want::all()),
                ]
            });
            for (replies, (one, other)) in all(&store, ops).await.chunks_exact(5).zip(&pairs) {
                let number = |at: usize| replies[at].clone().unwrap();
                assert_eq!(number(1), Reply::Number(one.wrapping_add(*other)), "{one} + {other}");
                let less = one.saturating_sub(*other);
                assert_eq!(number(3), Reply::Number(less), "{one} - {other}");
                let item = number(4).into_item().unwrap();
                assert_eq!((item.value, item.flags), (less.to_string().into(), flags));
            }
        }
    }
}

#[tokio::test]
async fn a_unix_socket_and_a_smaller_limit_work() {
    let server =
        RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().unix().arg("proto-max-bulk-len", "1048576"));
    let store = open(&server.url()).await;
    set(&store, "k", "v").await;
    assert_eq!(value(&store, "k").await.unwrap(), "v");
    let max = store.profile().value_bytes_max(1);
    assert_eq!(store.profile().item_bytes_max, 1_048_576);
    set(&store, "l", vec![1; max]).await;
    let error = one(&store, put("l", PutMode::Set, vec![1; max + 1])).await.unwrap_err();
    assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains(&max.to_string()), "{error}");
    assert_eq!(one(&store, put("l", PutMode::Append, "xxxxxxxxxxxxxx")).await.unwrap(), Reply::NotStored);
    let one_more = store.run_one(Ctx::default(), Op::get(key("k"), Want::VALUE)).await.unwrap();
    assert_eq!(one_more.into_item().unwrap().value, "v");
}

#[tokio::test]
async fn nobody_listening_is_unavailable_and_names_the_server() {
    let at = {
        let server = start(RedisVersion::Redis7);
        server.addr()
    };
    let error = refused(&format!("redis://{at}")).await;
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(error.to_string().contains(&at.to_string()), "{error}");
}

/// A configuration that is made by hand may have what no URL can say.
#[tokio::test]
async fn a_timeout_that_is_out_of_bounds_is_refused() {
    let server = start(RedisVersion::Valkey);
    for timeout in [Duration::ZERO, Config::TIMEOUT_MAX + Duration::from_nanos(1), Duration::MAX] {
        let config = Config::from_url(&server.url()).unwrap();
        for node in [Config { timeout, ..config.clone() }, Config { connect_timeout: timeout, ..config }] {
            let single = RedisStore::connect(node.clone()).await.expect_err("it connects");
            let seeds = vec![("127.0.0.1".to_owned(), server.addr().port())];
            let cluster = RedisClusterStore::connect(ClusterConfig { seeds, node }).await.expect_err("it connects");
            for error in [single, cluster] {
                assert_eq!(error.kind(), ErrorKind::Config, "{error}");
                assert!(error.to_string().contains("it must be 1 to 600000 ms"), "{error}");
            }
        }
    }
}

/// `WAIT` of no time waits for ever.
#[tokio::test]
async fn a_wait_for_replicas_that_is_out_of_bounds_is_refused() {
    let server = start(RedisVersion::Valkey);
    let (some, within) = (Duration::from_millis(500), "less than the timeout, 1s");
    for (replicas, timeout, part) in [
        (0, some, "0 replicas; it must be 1 to 64"),
        (65, some, "65 replicas; it must be 1 to 64"),
        (1, Duration::ZERO, within),
        (1, Duration::from_micros(999), within),
        (1, Duration::from_secs(1), within),
    ] {
        let config = Config::from_url(&server.url()).unwrap();
        let node = Config { wait: Some(WaitReplicas { replicas, timeout }), ..config };
        let error = RedisStore::connect(node).await.expect_err("it connects");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}
