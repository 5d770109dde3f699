//! `stats` and its kin, held against memcached's: names, shape, and what a reset does.

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use common::start;
use larder_server::{Config, Limits, Server};
use larder_testkit::servers::{Memcached, Version};
use larder_testkit::sessions::{ask, connect};

/// Ours, in `stats` and `stats settings`: memcached has none of that name.
const OURS: [&str; 13] = [
    "slow_kicks",
    "held_kicks",
    "request_errors",
    "flush_errors",
    "larder_version",
    "incarnation",
    "durability",
    "torn_bytes",
    "slow_timeout_ms",
    "held_bytes_max",
    "line_bytes_max",
    "track_access",
    "resident_bytes",
];
/// memcached's, where it speaks TLS.
const WITH_TLS: &str = "ssl_handshake_errors";

/// What monitors of memcached read: all of these are told.
const WANTED: [(&str, &str); 2] = [
    (
        "stats",
        "pid uptime time version pointer_size rusage_user rusage_system max_connections curr_connections total_connections rejected_connections \
         connection_structures cmd_get cmd_set cmd_flush cmd_touch cmd_meta get_hits get_misses delete_hits delete_misses incr_hits incr_misses decr_hits \
         decr_misses cas_hits cas_misses cas_badval touch_hits touch_misses store_too_large store_no_memory auth_cmds auth_errors idle_kicks bytes_read \
         bytes_written read_buf_bytes limit_maxbytes accepting_conns threads bytes curr_items total_items evictions reclaimed",
    ),
    (
        "stats settings",
        "maxbytes maxconns tcpport udpport inter verbosity evictions domain_socket umask shutdown_command num_threads detail_enabled cas_enabled tcp_backlog \
         binding_protocol auth_enabled_sasl auth_enabled_ascii item_size_max maxconns_fast flush_enabled dump_enabled idle_timeout track_sizes ssl_enabled \
         client_flags_size",
    ),
];

fn text(stream: &mut TcpStream, request: &str) -> String {
    let reply = ask(stream, format!("{request}\r\nmn\r\n").as_bytes(), b"MN\r\n");
    let reply = String::from_utf8(reply).unwrap();
    reply.strip_suffix("MN\r\n").unwrap().to_owned()
}

/// The names of a reply that is well formed.
fn names(reply: &str) -> BTreeSet<String> {
    let lines = reply.strip_suffix("END\r\n").unwrap_or_else(|| panic!("no end: {reply}"));
    let name = |line: &str| {
        let (name, value) = line.strip_prefix("STAT ").and_then(|rest| rest.split_once(' ')).unwrap();
        assert!(!name.is_empty() && !value.is_empty(), "{line}");
        name.to_owned()
    };
    lines.split_terminator("\r\n").map(name).collect()
}

fn work(addr: SocketAddr) -> TcpStream {
    let mut stream = connect(addr);
    let requests = "set a 0 0 5\r\nhello\r\nset n 0 0 1\r\n1\r\nincr n 1\r\ndecr n 1\r\nget a\r\nget none\r\ntouch a 0\r\ndelete none\r\ndelete n";
    text(&mut stream, requests);
    stream
}

#[test]
fn what_is_told_has_memcacheds_names_and_shape() {
    let theirs = Memcached::start(Version::New, &["-o", "track_sizes,idle_timeout=3600"]);
    let ours = start(Limits::default());
    let [mut theirs, mut ours] = [theirs.addr(), ours.addrs()[0]].map(work);
    for what in ["stats", "stats settings", "stats items", "stats slabs", "stats sizes"] {
        let [theirs, ours] = [&mut theirs, &mut ours].map(|stream| text(stream, what));
        let (theirs, mut ours) = (names(&theirs), names(&ours));
        ours.retain(|name| !OURS.contains(&&name[..]) && name != WITH_TLS);
        assert!(!ours.is_empty(), "{what}");
        let strange: Vec<&String> = ours.difference(&theirs).collect();
        assert!(strange.is_empty(), "{what}: memcached has no {strange:?}");
    }
    for (what, wanted) in WANTED {
        for (whose, stream) in [("memcached", &mut theirs), ("larder", &mut ours)] {
            let told = names(&text(stream, what));
            let missing: Vec<&str> = wanted.split_whitespace().filter(|name| !told.contains(*name)).collect();
            assert!(missing.is_empty(), "{what} of {whose} has no {missing:?}");
        }
    }
    // Where a name has one value, it is the same.
    for (what, wanted) in [
        (
            "stats",
            &[
                "curr_items",
                "total_items",
                "cmd_get",
                "cmd_set",
                "get_hits",
                "get_misses",
                "touch_hits",
                "delete_misses",
                "evictions",
            ][..],
        ),
        ("stats items", &["items:1:number", "items:1:evicted", "items:1:reclaimed", "items:1:outofmemory"]),
        ("stats slabs", &["1:used_chunks", "1:get_hits", "1:touch_hits", "active_slabs"]),
        ("stats sizes", &["96"]),
    ] {
        let told = [&mut theirs, &mut ours].map(|stream| text(stream, what));
        for name in wanted {
            let [theirs, ours] =
                told.each_ref().map(|told| told.lines().find(|line| line.starts_with(&format!("STAT {name} "))));
            assert!(theirs.is_some() && theirs == ours, "{what}: {theirs:?} and {ours:?}");
        }
    }
}

#[test]
fn a_store_without_items_has_none_to_tell_of() {
    let theirs = Memcached::start(Version::New, &[]);
    let ours = start(Limits::default());
    for addr in [theirs.addr(), ours.addrs()[0]] {
        let mut stream = connect(addr);
        assert_eq!(text(&mut stream, "stats items"), "END\r\n");
        let slabs = text(&mut stream, "stats slabs");
        assert!(slabs.starts_with("STAT active_slabs 0\r\nSTAT total_malloced "), "{slabs}");
    }
}

#[test]
fn a_reset_has_counts_begin_anew_and_leaves_what_is_there() {
    let theirs = Memcached::start(Version::New, &[]);
    let limits = Limits { memory_bytes_max: 8 << 20, ..Limits::default() };
    let store = larder_store_memory::MemoryStore::builder().bytes_max(8 << 20).evict(true).build().unwrap();
    let config = larder_server::Config { listen: common::anywhere(), threads: 1, limits, ..Default::default() };
    let ours = larder_server::Server::start(larder_server::MemoryEngine::new(store), config).unwrap();
    for addr in [theirs.addr(), ours.addrs()[0]] {
        let mut stream = work(addr);
        assert_eq!(text(&mut stream, "stats reset"), "RESET\r\n");
        let told = text(&mut stream, "stats");
        for line in [
            "cmd_get 0",
            "cmd_set 0",
            "get_hits 0",
            "touch_hits 0",
            "total_items 0",
            "evictions 0",
            "reclaimed 0",
            "curr_items 1",
        ] {
            assert!(told.contains(&format!("STAT {line}\r\n")), "{line} in {told}");
        }
    }
    // What went for want of room is counted from then on, too.
    let mut stream = connect(ours.addrs()[0]);
    let value = "v".repeat(10_000);
    let fill: String = (0..2_000).map(|key| format!("set k{key} 0 0 10000 noreply\r\n{value}\r\n")).collect();
    let evicted = |stream: &mut TcpStream| {
        let told = text(stream, "stats");
        told.lines().find_map(|line| line.strip_prefix("STAT evictions ")).unwrap().parse::<u64>().unwrap()
    };
    text(&mut stream, fill.trim_end());
    let before = evicted(&mut stream);
    assert!(before > 1_000, "{before}");
    text(&mut stream, "stats reset");
    assert_eq!(evicted(&mut stream), 0);
    assert!(text(&mut stream, "stats items").contains("STAT items:1:evicted 0\r\n"));
}

fn stat(stream: &mut TcpStream, name: &str) -> u64 {
    let told = text(stream, "stats");
    let line = told.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in {told}")).parse().unwrap()
}

#[test]
fn writes_with_a_token_are_counted_whichever_way_they_are_asked_for() {
    let theirs = Memcached::start(Version::New, &[]);
    let ours = start(Limits::default());
    let [theirs, ours] = [theirs.addr(), ours.addrs()[0]].map(|addr| {
        let mut stream = connect(addr);
        let mut counted = |request: &str, reply: &str| {
            let told = text(&mut stream, request);
            assert!(told.starts_with(reply), "{request:?}: {told:?}");
            ["cas_hits", "cas_misses", "cas_badval"].map(|name| stat(&mut stream, name))
        };
        let mut counts = vec![counted("ms k 1 C5\r\nx", "NF"), counted("ms k 1 MR C5\r\nx", "NF")];
        // None of these goes by a token alone.
        counts.extend(["MA N0", "ME", "MP"].map(|mode| counted(&format!("ms k 1 {mode} C5\r\nx"), "")));
        counts.push(counted("ms k 1 E1000\r\nx", "HD"));
        counts.push(counted("ms k 1 C1000 E1001\r\nx", "HD"));
        counts.push(counted("ms k 1 C1001 E1002 MR q\r\nx", ""));
        counts.push(counted("ms k 1 C1000\r\nx", "EX"));
        counts.push(counted("ms k 1 C1000 MR\r\nx", "EX"));
        counts.push(counted("ms k 1 C1000 MA\r\nx", "EX"));
        // Late, and stored as stale.
        counts.push(counted("ms k 1 C1000 I E1003\r\nx", "HD"));
        counts.push(counted("ms k 1 C2000 I\r\nx", "EX"));
        counts.push(counted("cas k 0 0 1 1003\r\nx", "STORED"));
        counts.push(counted("cas none 0 0 1 1\r\nx", "NOT_FOUND"));
        counts
    });
    assert_eq!(ours, theirs);
    assert_eq!(ours.last(), Some(&[4, 3, 3]));
}

/// Whatever asks for it: of a request alone that is answered so, and of each once.
#[test]
fn what_finds_no_room_is_counted_whatever_asked_for_it() {
    const KEYS: usize = 200;
    let server = start(Limits { memory_bytes_max: 8 << 20, ..Limits::default() });
    let mut stream = connect(server.addrs()[0]);
    let refused = |told: &str| told.matches("SERVER_ERROR out of memory").count() as u64;
    // Large ones, and then small ones for what is left.
    let (mut set, mut number) = (0, 0);
    for value in ["v".repeat(10_000), "v".to_owned()] {
        loop {
            let keys = number..number + KEYS;
            let sets: String = keys.map(|key| format!("set k{key:08} 0 0 {}\r\n{value}\r\n", value.len())).collect();
            let more = refused(&text(&mut stream, sets.trim_end()));
            (set, number) = (set + more, number + KEYS);
            if more == KEYS as u64 {
                break;
            }
        }
    }
    assert_eq!(stat(&mut stream, "store_no_memory"), set);
    for request in ["ma new{} N0 J1", "mg new{} N30 v", "ms new{} 1\r\nx"] {
        let before = stat(&mut stream, "store_no_memory");
        let asked: Vec<String> = (0..KEYS).map(|key| request.replace("{}", &key.to_string())).collect();
        let more = refused(&text(&mut stream, &asked.join("\r\n")));
        assert!(more > 0, "{request} found room");
        assert_eq!(stat(&mut stream, "store_no_memory") - before, more, "{request}");
    }
    let all = stat(&mut stream, "store_no_memory");
    assert!(text(&mut stream, "stats items").contains(&format!("STAT items:1:outofmemory {all}\r\n")));
}

/// `-m` is of memory: a client that held what is on disk against it would warn of a limit that nobody meets.
#[test]
fn a_folder_tells_of_no_limit_of_memory() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [common::start_in_folder(folder.path()), start(Limits::default())];
    for (server, limit) in servers.iter().zip([0, 64 << 20]) {
        let mut stream = connect(server.addrs()[0]);
        assert_eq!(stat(&mut stream, "limit_maxbytes"), limit);
        let settings = text(&mut stream, "stats settings");
        assert!(settings.contains(&format!("STAT maxbytes {limit}\r\n")), "{settings}");
    }
}

/// On one thread: whoever asks for one look at all items behind another has his turns, and no more.
#[test]
fn looks_at_all_items_keep_nobody_else_waiting() {
    const ITEMS: usize = 20_000;
    const LOOKS: usize = 400;
    let limits = Limits::default();
    let engine = common::engine(&limits);
    let config = Config { limits, listen: common::anywhere(), threads: 1, ..Config::default() };
    let server = Server::start(engine, config).unwrap();
    let mut many = connect(server.addrs()[0]);
    let items: String = (0..ITEMS).map(|item| format!("set {item} 0 0 1 noreply\r\nx\r\n")).collect();
    ask(&mut many, (items + "mn\r\n").as_bytes(), b"MN\r\n");
    many.write_all("stats sizes\r\n".repeat(LOOKS).as_bytes()).unwrap();
    many.read_exact(&mut [0; 1]).unwrap();
    ask(&mut connect(server.addrs()[0]), b"mn\r\n", b"MN\r\n");
    many.set_nonblocking(true).unwrap();
    let (mut told, mut some) = (Vec::new(), [0; 4096]);
    while let Ok(bytes) = many.read(&mut some) {
        told.extend_from_slice(&some[..bytes]);
    }
    let looks = memchr::memmem::find_iter(&told, b"END\r\n").count();
    assert!(looks < LOOKS, "all {looks} were done before another was answered");
    many.set_nonblocking(false).unwrap();
    ask(&mut many, b"mn\r\n", b"MN\r\n");
}

/// What is no key, since it is too long, is none that is asked for much.
#[test]
fn a_key_that_is_refused_is_not_hot() {
    let server = start(Limits::default());
    let mut stream = connect(server.addrs()[0]);
    let refused = format!("get {}\r\n", "x".repeat(2_100));
    let told =
        ask(&mut stream, (refused.repeat(2_000) + "get a\r\n".repeat(500).as_str() + "mn\r\n").as_bytes(), b"MN\r\n");
    assert_eq!(memchr::memmem::find_iter(&told, b"CLIENT_ERROR").count(), 2_000);
    let hot = String::from_utf8(ask(&mut stream, b"stats hot\r\n", b"END\r\n")).unwrap();
    let keys: Vec<&str> = hot.lines().filter_map(|line| line.strip_prefix("STAT ")?.rsplit(' ').next()).collect();
    assert_eq!(keys, ["a"], "{hot}");
}
