//! The traps of real memcached servers, each by name, on an old (1.6.18) and a new (1.6.38 or later) release.

mod common;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::*;
use larder_core::{
    Arith, Cas, Effect, ErrorKind, Eviction, Key, Op, PutMode, Remaining, Reply, Store, Ttl, Verb, Want,
};
use larder_proto::{Abilities, Dialect};
use larder_store_memcached::MemcachedStore;
use larder_testkit::proxy::{Fault, Proxy};
use larder_testkit::servers::{Memcached, Version};

/// A server and a store for each release and for the meta and classic commands.
async fn each(args: &[&str]) -> Vec<(String, Memcached, MemcachedStore)> {
    each_of(&["auto", "classic"], args).await
}

/// Every command line there is, as long as it gets: the longest keys, numbers and opaque, in each dialect.
fn longest_lines() -> Vec<String> {
    let cas = Cas { token: u64::MAX, session: 0 };
    let mut lines = Vec::new();
    for dialect in [Dialect::Classic, Dialect::Meta13, Dialect::Meta] {
        for k in [vec![b'k'; 250], vec![0; 186]].into_iter().take(if dialect.is_meta() { 2 } else { 1 }) {
            let year = seconds(365 * 24 * 60 * 60);
            let put = |mode| {
                Op::new(key(&k), Verb::Put { mode, value: vec![b'v'; 1_000_000].into(), flags: u32::MAX, ttl: year })
            };
            let mut ops = vec![
                Op::get(key(&k), ALL),
                Op::touch(key(&k), year),
                Op::delete(key(&k)),
                Op::delete_if(key(&k), cas),
                Op::arith(key(&k), Arith::Incr(u64::MAX)),
                decr(&k, u64::MAX),
            ];
            ops.extend([PutMode::Set, PutMode::Add, PutMode::Replace, PutMode::Append, PutMode::Prepend].map(put));
            ops.push(put(PutMode::Cas(cas)));
            if dialect.is_meta() {
                ops.push(incr(&k, u64::MAX, Some(u64::MAX)));
            }
            for op in ops {
                let mut out = Vec::new();
                Abilities::of(dialect).encode(&op, u32::MAX, 1_700_000_000, &mut out).unwrap();
                let end = out.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
                lines.push(String::from_utf8(out[..end].to_vec()).unwrap());
            }
        }
    }
    lines
}

/// The flags of every command of ours that starts so, but for its key.
fn lines_of(command: &str) -> Vec<Vec<String>> {
    let lines = longest_lines().into_iter().filter(|line| line.starts_with(command));
    lines.map(|line| line.split_whitespace().skip(2).map(str::to_owned).collect()).collect()
}

/// True if no command of ours has such a flag.
fn never_sent(flag: char) -> bool {
    !lines_of("m").iter().flatten().any(|part| part.starts_with(flag))
}

#[tokio::test]
async fn a_command_line_over_2048_bytes_closes_the_connection_and_none_is_ever_sent() {
    for (name, server, store) in each(&[]).await {
        let line = |bytes: usize| [&b"mg "[..], &vec![b'k'; bytes - 3]].concat();
        assert_eq!(raw_all(server.addr(), &line(2_048)), (String::new(), false), "{name}: it waits for the end of it");
        assert_eq!(raw_all(server.addr(), &line(2_050)), (String::new(), true), "{name}");
        let longest = longest_lines().iter().map(String::len).max().unwrap();
        assert!((300..2_048).contains(&longest), "{longest}");
        // Any number of the longest keys in one batch is any number of lines.
        let gets = (0..1_000).map(|number| Op::get(key(format!("{number:0250}")), Want::VALUE));
        let replies = all(&store, gets).await;
        assert!(replies.iter().all(|reply| matches!(reply, Ok(Reply::Miss))), "{name}");
        assert_eq!(store.stats().poisoned, 0, "{name}");
    }
}

#[tokio::test]
async fn a_stub_that_a_get_vivified_is_a_real_empty_hit_and_no_get_of_ours_leaves_one() {
    for (name, server, store) in each(&[]).await {
        let error = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
        let said = format!("VA 0 W\r\n\r\nHD Z\r\n{error}");
        assert_eq!(raw_all(server.addr(), b"mg stub N30 v\r\nmg stub\r\nma stub\r\n").0, said, "{name}");
        // Another program's is what the server says it is.
        assert_eq!(value(&store, "stub").await.unwrap(), "", "{name}");
        assert_eq!(put(&store, PutMode::Add, "stub", "x").await, Reply::NotStored, "{name}");
        let error = one(&store, incr("stub", 1, None)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{name}");
        assert_eq!(value(&store, "missing").await, None, "{name}");
        assert_eq!(put(&store, PutMode::Add, "missing", "x").await, Reply::Stored, "{name}");
    }
    assert!(longest_lines().iter().filter(|line| line.contains(" N0 ")).all(|line| line.starts_with("ma ")));
}

#[tokio::test]
async fn a_vivifying_ma_answers_under_q_on_1_6_18_and_no_command_of_ours_is_quiet() {
    for (name, server, store) in each(&[]).await {
        let says = if server.version() == Version::Old { "HD O1\r\nMN\r\n" } else { "MN\r\n" };
        assert_eq!(raw_all(server.addr(), b"ma new N0 J1 D1 q O1\r\nmn\r\n").0, says, "{name}");
        assert_eq!(raw_all(server.addr(), b"ma new N0 J1 D1 q O1\r\nmn\r\n").0, "MN\r\n", "{name}: it is there");
        if store.profile().keys_binary {
            let ops: Vec<Op> = (0..200).map(|number| incr(format!("k{}", number / 2), 1, Some(7))).collect();
            let numbers: Vec<Reply> = all(&store, ops).await.into_iter().map(Result::unwrap).collect();
            let expected: Vec<Reply> = (0..200).map(|number| Reply::Number(7 + number % 2)).collect();
            assert_eq!(numbers, expected, "{name}");
        }
    }
    assert!(never_sent('q'));
}

#[tokio::test]
async fn a_token_may_go_backwards_and_is_no_fencing_token() {
    for (name, mut server, store) in each(&[]).await {
        for number in 0..20 {
            set(&store, format!("k{number}"), "v").await;
        }
        if server.version() == Version::New {
            // Another program may set tokens as it likes: deleted and added again, the item has a smaller one.
            assert_eq!(raw_all(server.addr(), b"ms k 1 E900\r\nx\r\n").0, "HD\r\n", "{name}");
            let before = token(&store, "k").await;
            assert_eq!(before.token, 900, "{name}");
            ok(&store, Op::delete(key("k"))).await;
            assert_eq!(put(&store, PutMode::Add, "k", "y").await, Reply::Stored, "{name}");
            assert!(token(&store, "k").await.token < before.token, "{name}");
            assert_eq!(put(&store, PutMode::Cas(before), "k", "z").await, Reply::Exists, "{name}");
            assert_eq!(value(&store, "k").await.unwrap(), "y", "{name}");
        }
        set(&store, "k", "v").await;
        let before = token(&store, "k").await;
        server.kill9();
        server.restart();
        wait_until_up(&store).await;
        assert_eq!(put(&store, PutMode::Add, "k", "y").await, Reply::Stored, "{name}");
        assert!(token(&store, "k").await.token < before.token, "{name}: a restart counts from the start");
        assert_eq!(put(&store, PutMode::Cas(before), "k", "z").await, Reply::Exists, "{name}");
    }
}

#[tokio::test]
async fn arithmetic_loses_an_explicit_token_when_the_number_grows_a_digit_and_none_is_ever_sent() {
    for (name, server, store) in each(&[]).await {
        let ma = |number: &str| format!("set n 0 0 1\r\n{number}\r\nma n E777 c v\r\nmg n c\r\n");
        let (same, grown) =
            (raw_all(server.addr(), ma("5").as_bytes()).0, raw_all(server.addr(), ma("9").as_bytes()).0);
        if server.version() == Version::Old {
            assert!(grown.starts_with("STORED\r\nCLIENT_ERROR invalid or duplicate flag\r\n"), "{name}: {grown}");
        } else {
            assert_eq!(same, "STORED\r\nVA 1 c777\r\n6\r\nHD c777\r\n", "{name}");
            assert!(grown.starts_with("STORED\r\nVA 2 c777\r\n10\r\nHD c"), "{name}: {grown}");
            assert!(!grown.ends_with("HD c777\r\n"), "{name}: {grown}");
        }
        // Tokens that the server draws change with every number, of one digit or two.
        for start in ["5", "9"] {
            set(&store, "n", start).await;
            let before = token(&store, "n").await;
            ok(&store, incr("n", 1, None)).await;
            assert_ne!(token(&store, "n").await.token, before.token, "{name}");
            assert_eq!(put(&store, PutMode::Cas(before), "n", "0").await, Reply::Exists, "{name}");
        }
    }
    assert!(never_sent('E'));
}

#[tokio::test]
async fn eviction_is_by_slab_class_so_a_sentinel_outlives_what_it_stands_for() {
    for (name, _server, store) in each(&["-m", "4"]).await {
        set(&store, "sentinel", "alive").await;
        for number in 0..60 {
            set(&store, format!("fill{number}"), vec![0; 200_000]).await;
        }
        assert_eq!(value(&store, "fill0").await, None, "{name}: 12 MB are in 4");
        assert_eq!(value(&store, "sentinel").await.unwrap(), "alive", "{name}");
        // So the client says that anything may be gone, and structures look at the thing itself.
        assert_eq!(store.profile().eviction, Eviction::WhenFull, "{name}");
    }
}

#[tokio::test]
async fn an_opaque_of_32_bytes_is_refused_without_one_and_ours_have_10_at_the_most() {
    for (name, server, _store) in each(&[]).await {
        let get = |digits: usize| format!("mg missing v O{}\r\nmn\r\n", "1".repeat(digits));
        let allowed = raw_all(server.addr(), get(31).as_bytes()).0;
        // The old one answers a miss with the opaque, the new one, too.
        assert_eq!(allowed, format!("EN O{}\r\nMN\r\n", "1".repeat(31)), "{name}");
        let refused = raw_all(server.addr(), get(32).as_bytes()).0;
        assert_eq!(refused, "CLIENT_ERROR opaque token too long\r\nMN\r\n", "{name}");
    }
    let lines = longest_lines();
    let opaques: Vec<&str> = lines.iter().filter_map(|line| line.trim_end().rsplit_once(" O")).map(|it| it.1).collect();
    assert!(opaques.len() > 20 && opaques.iter().all(|opaque| *opaque == "4294967295"), "{opaques:?}");
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
async fn an_append_with_n_makes_one_element_of_a_lost_value_and_none_is_ever_sent() {
    for (name, server, store) in each(&[]).await {
        let lost = "set k 0 0 4\r\na,b,\r\ndelete k\r\nms k 2 MA N0\r\nc,\r\nmg k v\r\n";
        // The old one ignores N and says that nothing is there; to the new one, a list of one is as good as a list of three.
        let answers = if server.version() == Version::Old { "NS\r\nEN\r\n" } else { "HD\r\nVA 2\r\nc,\r\n" };
        assert_eq!(says(server.addr(), lost), format!("STORED\r\nDELETED\r\n{answers}"), "{name}");
        for mode in [PutMode::Append, PutMode::Prepend] {
            set(&store, "k", "a,b,").await;
            ok(&store, Op::delete(key("k"))).await;
            assert_eq!(put(&store, mode, "k", "c,").await, Reply::NotStored, "{name}: the loss is seen");
            assert_eq!(value(&store, "k").await, None, "{name}");
        }
    }
    let puts = lines_of("ms ");
    assert!(puts.iter().any(|flags| flags.contains(&"MA".to_owned())), "{puts:?}");
    assert!(puts.iter().flatten().all(|flag| !flag.starts_with('N')), "{puts:?}");
}

#[tokio::test]
async fn win_stale_and_recache_answer_w_x_and_z_and_no_get_of_ours_asks_for_them() {
    for (name, server, store) in each(&[]).await {
        let says = |request: &str| says(server.addr(), request);
        let twice = "mg missing N30 R10 v\r\n".repeat(2);
        assert_eq!(says(&twice), "VA 0 W\r\n\r\nVA 0 Z\r\n\r\n", "{name}: one wins the miss");
        let last_seconds = "ms k 1 T5\r\nv\r\nmg k N30 R10 v\r\nmg k N30 R10 v\r\nmg k R1 v\r\n";
        assert_eq!(
            says(last_seconds),
            "HD\r\nVA 1 W\r\nv\r\nVA 1 Z\r\nv\r\nVA 1 Z\r\nv\r\n",
            "{name}: and the recache"
        );
        assert_eq!(
            says("ms k 1 T100\r\nv\r\nmg k N30 R10 v\r\n"),
            "HD\r\nVA 1\r\nv\r\n",
            "{name}: not before its time"
        );
        assert_eq!(says("md k I\r\nmg k v\r\nmg k v\r\n"), "HD\r\nVA 1 X W\r\nv\r\nVA 1 Z X\r\nv\r\n", "{name}");
        // Another program's marks stand behind the flags that we asked for; the item is read all the same, whoever won it.
        for mark in ["md k I\r\n", "ms k 1 T5\r\nv\r\nmg k R10\r\n", "md k I\r\nmg k\r\n"] {
            says(mark);
            let found = item(&store, "k").await.unwrap();
            assert!(found.value == "v" && found.cas.is_some(), "{name}: {found:?}");
            assert_eq!(value(&store, "k").await.unwrap(), "v", "{name}");
        }
        assert_eq!(put(&store, PutMode::Cas(token(&store, "k").await), "k", "w").await, Reply::Stored, "{name}");
        assert_eq!(says("mg k v\r\n"), "VA 1\r\nw\r\n", "{name}: a put of ours is fresh, for everybody");
        assert_eq!(store.stats().poisoned, 0, "{name}");
    }
    let gets = lines_of("mg ");
    let asked = |flag: &String| flag.starts_with(['O', 'T']) || ["v", "c", "f", "t", "b"].contains(&flag.as_str());
    assert!(!gets.is_empty() && gets.iter().flatten().all(asked), "{gets:?}");
    assert!(never_sent('R') && never_sent('I'));
}

#[tokio::test]
async fn c_is_ignored_on_a_miss_in_every_mode_that_can_create_and_ours_has_it_in_none() {
    for (name, server, _store) in each(&[]).await {
        let is_old = server.version() == Version::Old;
        let says = |request: &str| says(server.addr(), request);
        assert_eq!(says("ma n N0 J1 C5 v\r\nmg n v\r\n"), "VA 1\r\n1\r\nVA 1\r\n1\r\n", "{name}");
        assert_eq!(says("ms add 1 ME C5\r\nx\r\nmg add v\r\n"), "HD\r\nVA 1\r\nx\r\n", "{name}");
        for mode in ["MA", "MP"] {
            let made = says(&format!("ms {mode} 1 {mode} N0 C5\r\nx\r\nmg {mode} v\r\n"));
            assert_eq!(made, if is_old { "NS\r\nEN\r\n" } else { "HD\r\nVA 1\r\nx\r\n" }, "{name} {mode}");
        }
        // The one that the client sends.
        assert_eq!(says("ms set 1 C5\r\nx\r\nmg set v\r\n"), "NF\r\nEN\r\n", "{name}");
    }
    let puts = lines_of("ms ");
    let checked: Vec<&Vec<String>> =
        puts.iter().filter(|flags| flags.iter().any(|flag| flag.starts_with('C'))).collect();
    let creates = |flag: &String| flag.starts_with('M') || flag.starts_with('N');
    assert!(!checked.is_empty() && !checked.iter().any(|flags| flags.iter().any(creates)), "{checked:?}");
    assert!(!lines_of("ma ").iter().flatten().any(|flag| flag.starts_with('C')));
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
async fn an_ms_that_is_too_large_deletes_the_old_item_in_every_mode_and_classic_cas_and_append_keep_it() {
    for (name, server, store) in each(&[]).await {
        let too_large = |command: String| {
            let body = "v".repeat(1 << 20);
            let said = says(server.addr(), &format!("{command}\r\n{body}\r\nmg k v\r\n"));
            let kept = said.strip_prefix("SERVER_ERROR object too large for cache\r\n");
            kept.unwrap_or_else(|| panic!("{name}: {command}: {said}")).to_owned()
        };
        for mode in ["", "MS", "ME", "MR", "MA", "MP", "C1"] {
            set(&store, "k", "old").await;
            assert_eq!(too_large(format!("ms k {} {mode}", 1 << 20)), "EN\r\n", "{name} {mode}");
        }
        for classic in ["add", "replace", "append", "prepend", "cas", "set"] {
            set(&store, "k", "old").await;
            let token = token(&store, "k").await.token;
            let cas = if classic == "cas" { format!(" {token}") } else { String::new() };
            let kept = too_large(format!("{classic} k 0 0 {}{cas}", 1 << 20));
            let expected = if classic == "set" { "EN\r\n" } else { "VA 3\r\nold\r\n" };
            assert_eq!(kept, expected, "{name} {classic}");
        }
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
                let sent = store.stats().ops;
                let error = one(&store, Op::put(key(k), mode, vec![0; 1 << 20], Ttl::Never)).await.unwrap_err();
                assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{name}");
                assert_eq!(store.stats().ops, sent, "{name}: {mode:?} was sent");
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
async fn an_overlong_classic_key_makes_1_6_18_run_the_body_as_a_command_and_is_never_sent() {
    for (name, server, store) in each(&[]).await {
        let body = "set smuggled 0 0 1\r\ny";
        let set = format!("set {} 0 0 {}\r\n{body}\r\nmg smuggled v\r\n", "k".repeat(251), body.len());
        let ran = if server.version() == Version::Old { "STORED\r\nVA 1\r\ny\r\n" } else { "EN\r\n" };
        let said = says(server.addr(), &set);
        assert_eq!(said, format!("CLIENT_ERROR bad command line format\r\n{ran}"), "{name}");
        assert!(Key::new(vec![b'k'; 251]).is_err());
        let long = key([b"k".repeat(180), b"\r\nset x 0 0 1\r\n".to_vec()].concat());
        let error = one(&store, Op::put(long, PutMode::Set, "set x 0 0 1", Ttl::Never)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{name}");
        assert_eq!(store.stats().ops, 0, "{name}");
        assert_eq!(value(&store, "x").await, None, "{name}");
    }
}

#[tokio::test]
async fn keys_of_every_byte_and_of_250_bytes() {
    let binary: [&[u8]; 7] = [b"\x01", b"a\tb", b"a\0b", b"a b", b"line\r\nset x 0 0 1", "é".as_bytes(), &[0xff; 186]];
    for (name, _server, store) in each_of(&EVERY, &[]).await {
        let long = vec![b'k'; Key::BYTES_MAX];
        set(&store, &long, "long").await;
        assert_eq!(value(&store, &long).await.unwrap(), "long", "{name}");
        for bytes in binary {
            let stored = one(&store, Op::put(key(bytes), PutMode::Set, bytes.to_vec(), Ttl::Never)).await;
            if !store.profile().keys_binary {
                assert_eq!(stored.unwrap_err().kind(), ErrorKind::BadInput, "{name}");
                continue;
            }
            assert_eq!(stored.unwrap(), Reply::Stored, "{name}");
            assert_eq!(value(&store, bytes).await.unwrap(), bytes, "{name}");
            assert_eq!(put(&store, PutMode::Add, bytes, "x").await, Reply::NotStored, "{name}");
            assert_eq!(put(&store, PutMode::Append, bytes, "!").await, Reply::Stored, "{name}");
            assert_eq!(put(&store, PutMode::Append, [bytes, b"?"].concat().split_off(1), "!").await, Reply::NotStored);
            let cas = token(&store, bytes).await;
            assert_eq!(put(&store, PutMode::Cas(cas), bytes, "41").await, Reply::Stored, "{name}");
            assert_eq!(put(&store, PutMode::Cas(cas), bytes, "x").await, Reply::Exists, "{name}");
            assert_eq!(ok(&store, incr(bytes, 1, None)).await, Reply::Number(42), "{name}");
            assert_eq!(ok(&store, Op::touch(key(bytes), seconds(9))).await, Reply::Touched, "{name}");
            assert_eq!(ok(&store, Op::delete(key(bytes))).await, Reply::Deleted, "{name}");
        }
        let over = one(&store, Op::get(key([0u8; 187]), Want::VALUE)).await.unwrap_err();
        assert_eq!(over.kind(), ErrorKind::BadInput, "{name}");
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
        // Sent, this server would take any token for the one it has: it has none.
        let sent = store.stats().ops;
        let cas = Cas { token: 1, session: 1 };
        for op in [Op::put(key("k"), PutMode::Cas(cas), "x", Ttl::Never), Op::delete_if(key("k"), cas)] {
            let error = one(&store, op).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{name}");
            assert!(error.to_string().contains("cas"), "{name}: {error}");
        }
        assert_eq!(store.stats().ops, sent, "{name}");
        assert_eq!(value(&store, "k").await.unwrap(), "v", "{name}");
    }
}

/// A relay that puts two more letters into the value `new` than its command says: a request that was damaged on its way.
fn damaging(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let upstream = TcpStream::connect(server).unwrap();
            let (mut replies, mut back) = (upstream.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || {
                _ = io::copy(&mut replies, &mut back);
                _ = back.shutdown(Shutdown::Both);
            });
            thread::spawn(move || relay(client, upstream));
        }
    });
    addr
}

fn relay(mut client: TcpStream, mut upstream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let mut request = buffer[..count].to_vec();
        if let Some(at) = request.windows(5).position(|part| part == b"new\r\n") {
            request.splice(at + 3..at + 3, *b"er");
        }
        _ = upstream.write_all(&request);
    }
    _ = upstream.shutdown(Shutdown::Both);
}

#[tokio::test]
async fn a_bad_data_chunk_leaves_stray_replies_and_drops_the_connection() {
    for (name, server, _store) in each(&[]).await {
        // Of one request two replies: the next one's would be taken for this one's from here on.
        let said = raw_all(server.addr(), b"set x 0 0 3\r\nnewer\r\nversion\r\n").0;
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!((lines.len(), lines[0]), (3, "CLIENT_ERROR bad data chunk"), "{name}: {said}");
        assert!(lines[1].contains("ERROR") && lines[2].starts_with("VERSION "), "{name}: {said}");
        let dialect = name.split_once(' ').unwrap().1;
        let store = open(&format!("memcached://{}?dialect={dialect}", damaging(server.addr()))).await;
        set(&store, "k", "old").await;
        let error = one(&store, Op::put(key("k"), PutMode::Set, "new", Ttl::Never)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::NotApplied), "{name}: {error}");
        assert!(error.to_string().contains("bad data chunk"), "{name}: {error}");
        assert_eq!(value(&store, "k").await.unwrap(), "old", "{name}");
        assert_eq!(store.stats().poisoned, 1, "{name}");
    }
}

#[tokio::test]
async fn stray_replies_drop_the_connection() {
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
    for (name, server, store) in each(&[]).await {
        // The proof that counting does not help: under `q` it answers a miss, and not a hit.
        let md = b"set h 0 0 1\r\nv\r\nmd h q O1\r\nmd h q O2\r\nmn\r\n";
        assert_eq!(raw_all(server.addr(), md).0, "STORED\r\nNF O2\r\nMN\r\n", "{name}");
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
