//! What differs from memcached on purpose, as the crate's documentation lists it: what both servers answer, so that the list says neither too much nor too little.
//!
//! Where no connection can ask, it is held elsewhere: ports, and what goes when it is full, in the command line's `as_memcached`; a disk that is damaged, full or fails in `damage`.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::{start, start_in_folder};
use larder_server::{Config, Limits, MemoryEngine, MemoryStore, Server};
use larder_testkit::servers::{Memcached, Version};
use larder_testkit::sessions::{ask, connect, exchange, normal};

/// What both may take at the most, with a key of one letter.
const LARGEST: usize = (1 << 20) - 59 - 1;

fn both() -> (Memcached, Server) {
    (Memcached::start(Version::New, &["-m", "64"]), start(Limits::default()))
}

/// All that is answered, without tokens and times that the server draws.
fn answer(addr: SocketAddr, request: &str) -> String {
    let reply = exchange(addr, [request.as_bytes()]);
    String::from_utf8(normal(&reply, true, 0)).expect("text")
}

/// Holds what each answers to each request: first memcached, then ours.
#[track_caller]
fn hold(addrs: [SocketAddr; 2], cases: &[(&str, [&str; 2])]) {
    for (request, expected) in cases {
        let shown = &request[..request.len().min(200)];
        for ((addr, expected), whose) in addrs.iter().zip(expected).zip(["memcached", "ours"]) {
            assert_eq!(answer(*addr, request), expected.replace('\n', "\r\n"), "{whose}: {shown:?}");
        }
    }
}

#[test]
fn a_set_that_is_too_large_deletes_what_was_there_in_set_mode_without_a_token_alone() {
    let (theirs, ours) = both();
    let [gone, kept] =
        ["SERVER_ERROR object too large for cache\nEN\n", "SERVER_ERROR object too large for cache\nVA 1\nx\n"];
    for (flags, told) in [
        ("", [gone, gone]),
        ("MS", [gone, gone]),
        ("I", [gone, gone]),
        ("ME", [gone, kept]),
        ("MA", [gone, kept]),
        ("MP", [gone, kept]),
        ("MR", [gone, kept]),
        ("C999999", [gone, kept]),
    ] {
        let bytes = LARGEST + 1;
        let request = format!("ms L {bytes} {flags}\r\n{}\r\nmg L v\r\n", "v".repeat(bytes));
        for addr in [theirs.addr(), ours.addrs()[0]] {
            assert_eq!(answer(addr, "set L 0 0 1\r\nx\r\n"), "STORED\r\n");
        }
        hold([theirs.addr(), ours.addrs()[0]], &[(&request, told)]);
    }
}

/// Both are full, for items of either size, and evict nothing.
#[test]
fn a_write_that_finds_no_room_deletes_what_was_there_in_set_mode_alone() {
    const SMALL: usize = 100_000;
    const LARGE: usize = 400_000;
    const REFUSED: &str = "SERVER_ERROR out of memory storing object\r\n";
    let theirs = Memcached::start(Version::New, &["-m", "8", "-M"]);
    let limits = Limits { memory_bytes_max: 8 << 20, ..Limits::default() };
    let store = MemoryStore::builder().bytes_max(8 << 20).value_bytes_max(1 << 20).build().unwrap();
    let config = Config { listen: common::anywhere(), threads: 1, limits, ..Config::default() };
    let ours = Server::start(MemoryEngine::new(store), config).unwrap();
    for (addr, is_ours) in [(theirs.addr(), false), (ours.addrs()[0], true)] {
        let put = |request: &str, bytes: usize| answer(addr, &format!("{request}\r\n{}\r\n", "v".repeat(bytes)));
        let fill = |name: &str, bytes: usize| {
            (0..200).find(|key| put(&format!("set {name}{key} 0 0 {bytes}"), bytes) == REFUSED).expect("an end")
        };
        assert!(fill("k", SMALL) > 20);
        for (key, mode) in ["ME", "MA", "MP", "MR", "MS", ""].into_iter().enumerate() {
            fill(&format!("large{mode}"), LARGE);
            let told = put(&format!("ms k{key} {LARGE} {mode}"), LARGE);
            // What is not to be written needs no room here.
            let expected = if is_ours && mode == "ME" { "NS\r\n" } else { REFUSED };
            assert_eq!(told, expected, "{mode}, ours: {is_ours}");
            let stays = is_ours && !["MS", ""].contains(&mode);
            let told = answer(addr, &format!("mg k{key}\r\n"));
            assert_eq!(told, if stays { "HD\r\n" } else { "EN\r\n" }, "{mode}, ours: {is_ours}");
        }
        let told = put(&format!("set k6 0 0 {LARGE}"), LARGE);
        assert_eq!((&told[..], &answer(addr, "mg k6\r\n")[..]), (REFUSED, "EN\r\n"), "ours: {is_ours}");
    }
}

#[test]
fn keys_in_base64_come_back_as_they_were_asked_for() {
    let (theirs, ours) = both();
    hold(
        [theirs.addr(), ours.addrs()[0]],
        &[
            (
                "ms YWJj 1 b\r\nx\r\nmg abc k\r\nmg YWJj b k\r\n",
                ["HD\nHD kYWJj b\nHD kYWJj b\n", "HD\nHD kabc\nHD kYWJj b\n"],
            ),
            (
                "set abc 0 0 1\r\nx\r\nmg abc k\r\nmg YWJj b k\r\n",
                ["STORED\nHD kabc\nHD kabc\n", "STORED\nHD kabc\nHD kYWJj b\n"],
            ),
            ("ms AAEC 1 b\r\nx\r\nmg AAEC b k\r\n", ["HD\nHD kAAEC b\n"; 2]),
            (
                "set me 0 0 1\r\nx\r\nme bWU= b\r\n",
                ["STORED\nEN\n", "STORED\nME bWU= exp=-1 # cas=# fetch=no # size=62\n"],
            ),
            (
                "me bWU= b b\r\n",
                ["ME me exp=-1 # cas=# fetch=no # size=62\n", "ME bWU= exp=-1 # cas=# fetch=no # size=62\n"],
            ),
            ("me me b\r\n", ["ME me exp=-1 # cas=# fetch=no # size=62\n", "CLIENT_ERROR bad command line format\n"]),
        ],
    );
}

#[test]
fn lines_with_something_too_long_in_them_do_nothing_and_are_answered_with_the_error_alone() {
    let (theirs, ours) = both();
    let key = "k".repeat(251);
    let [get, gat] = ["get a", "gat 0 a"].map(|verb| format!("set a 0 0 1\r\nx\r\n{verb} {key}\r\nmn\r\n"));
    let too_long = format!("O{}", "o".repeat(32));
    let [sum, delete, touch, put, make] = [
        format!("set n 0 0 2\r\n10\r\nma n {too_long}\r\nmg n v\r\n"),
        format!("md n {too_long}\r\nmg n v\r\n"),
        format!("mg n T1000 {too_long}\r\nmg n t\r\n"),
        format!("ms n 1 {too_long}\r\nx\r\nmg n v\r\n"),
        format!("mg none N0 {too_long}\r\nmg none v\r\n"),
    ];
    const OPAQUE: &str = "CLIENT_ERROR opaque token too long\n";
    let told = |before: &str, behind: &str| format!("{before}{OPAQUE}{behind}");
    let (eleven, ten) = (told("STORED\n", "VA 2\n11\n"), told("STORED\n", "VA 2\n10\n"));
    let stays = [told("", "VA 2\n11\n"), told("", "VA 2\n10\n")];
    let [touched, untouched] = ["HD t1000\n", "HD t-1\n"].map(|life| told("", life));
    let [made, not_made] = ["VA 0\n\n", "EN\n"].map(|there| told("", there));
    const LINE: [&str; 2] =
        ["CLIENT_ERROR bad command line format\n\nMN\n", "STORED\nCLIENT_ERROR bad command line format\nMN\n"];
    hold(
        [theirs.addr(), ours.addrs()[0]],
        &[
            (&get, LINE),
            (&gat, LINE),
            (&sum, [&eleven, &ten]),
            (&delete, [&stays[0], &stays[1]]),
            (&touch, [&touched, &untouched]),
            (&put, [&stays[0], &stays[1]]),
            (&make, [&made, &not_made]),
        ],
    );
}

#[test]
fn arithmetic_that_grows_by_a_digit_gives_token_and_life_all_the_same() {
    let (theirs, ours) = both();
    let request = |digits: &str| format!("set n 0 0 1\r\n{digits}\r\nma n E1000000 T1000 c t v\r\nmg n c t\r\n");
    let (grows, stays) = (request("9"), request("1"));
    let stayed = ["STORED\nVA 1 c1000000 t1000\n2\nHD c1000000 t1000\n"; 2];
    let grew = ["STORED\nVA 2 c1000000 t1000\n10\nHD c# t-1\n", "STORED\nVA 2 c1000000 t1000\n10\nHD c1000000 t1000\n"];
    hold([theirs.addr(), ours.addrs()[0]], &[(&grows, grew), (&stays, stayed)]);
}

/// A number may have spaces behind it.
#[test]
fn arithmetic_on_a_value_over_512_kib_is_carried_out_and_none_for_memcached() {
    let (theirs, ours) = both();
    let folder = tempfile::tempdir().unwrap();
    let in_folder = start_in_folder(folder.path());
    let request = |bytes: usize| {
        let number = format!("7{}", " ".repeat(bytes - 1));
        format!("set n 0 0 {bytes}\r\n{number}\r\nincr n 2\r\ndecr n 1\r\nma n v\r\n")
    };
    let [done, refused] = ["9\n8\nVA 1\n9\n".to_owned(), NO_NUMBER.repeat(3)].map(|told| format!("STORED\n{told}"));
    for ours in [ours.addrs()[0], in_folder.addrs()[0]] {
        hold([theirs.addr(), ours], &[(&request((512 << 10) - 100), [&done; 2].map(String::as_str))]);
        hold([theirs.addr(), ours], &[(&request((512 << 10) + 1), [&refused, &done].map(String::as_str))]);
    }
}

const NO_NUMBER: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value\n";
const NO_WATCH: &str = "CLIENT_ERROR watch commands not allowed\n";
const NO_DETAIL: &str = "CLIENT_ERROR stats detail not allowed\n";

#[test]
fn what_is_about_slabs_lists_of_use_and_the_crawler_is_taken_where_it_is_well_formed() {
    let (theirs, ours) = both();
    let addrs = [theirs.addr(), ours.addrs()[0]];
    hold(addrs, &[("set s 0 0 1\r\nx\r\n", ["STORED\n"; 2])]);
    let no_class = ["BADCLASS invalid class id\n"; 2];
    for classes in ["x", "0", "64", "1,x", "1,64", "al", "-1"] {
        for verb in ["crawl", "metadump", "mgdump"] {
            hold(addrs, &[(&format!("lru_crawler {verb} {classes}\r\n"), no_class)]);
        }
    }
    hold(
        addrs,
        &[
            ("slabs automove 1\r\nslabs automove 0\r\nslabs automove 3\r\n", ["OK\nOK\nERROR\n"; 2]),
            (
                "slabs reassign 1 1\r\n",
                ["SAME src and dst class are identical\n", "CLIENT_ERROR slab reassignment disabled\n"],
            ),
            ("lru_crawler tocrawl 5\r\nlru_crawler sleep 5\r\n", ["OK\nOK\n"; 2]),
            ("lru_crawler crawl ,\r\n", ["NOTSTARTED no items to crawl\n"; 2]),
            ("lru_crawler metadump ,\r\n", ["NOTSTARTED no items to crawl\n"; 2]),
            ("lru mode flat\r\nlru temp_ttl 5\r\n", ["OK\nOK\n", "ERROR\nERROR\n"]),
            ("lru tune 10 25 0.1 2.0\r\n", ["OK\n", "ERROR\n"]),
            ("watch\r\n", ["OK\n", NO_WATCH]),
            ("stats detail dump\r\n", ["END\n", NO_DETAIL]),
            ("stats cachedump 1 0\r\n", ["ITEM s [1 b; 0 s]\nEND\n"; 2]),
            ("refresh_certs\r\n", ["Error TLS not enabled\n", "ERROR\n"]),
            (
                "lru_crawler backup all\r\n",
                ["ERROR\n", "ERROR this store has no backups: it is gone with its process\n"],
            ),
            // Memcached goes by the table only to list, and lists no more once it was asked to do more.
            ("lru_crawler crawl hash\r\n", ["ERROR an unknown error happened\n"; 2]),
        ],
    );
    // As those two are refused by memcached that was told not to.
    let theirs = Memcached::start(Version::New, &["-W", "-X"]);
    let limits = Limits { dump_enabled: false, ..Limits::default() };
    let ours = start(limits);
    hold(
        [theirs.addr(), ours.addrs()[0]],
        &[
            ("watch\r\n", [NO_WATCH; 2]),
            ("stats detail on\r\n", [NO_DETAIL; 2]),
            ("lru_crawler metadump x\r\n", ["ERROR metadump not allowed\n"; 2]),
            ("lru_crawler mgdump all\r\n", ["ERROR key dump not allowed\n"; 2]),
            ("stats cachedump 1 0\r\n", ["CLIENT_ERROR stats cachedump not allowed\n"; 2]),
            ("lru_crawler backup all\r\n", ["ERROR\n", "ERROR backup not allowed\n"]),
            ("stats hot\r\n", ["ERROR\n", "CLIENT_ERROR stats hot not allowed\n"]),
        ],
    );
}

/// Times and tokens apart. Memcached lists for one client at a time, and says that it is busy for a moment longer.
#[test]
fn listings_are_those_of_memcached() {
    let (theirs, ours) = both();
    let listing = |addr: SocketAddr, request: &str| {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let told = answer(addr, request);
            assert!(Instant::now() < deadline, "{told}");
            if !told.starts_with("BUSY") {
                let fields = told.split(' ').map(|field| match field.split_once('=') {
                    Some((name @ ("la" | "cas"), _)) => format!("{name}=#"),
                    _ => field.to_owned(),
                });
                return fields.collect::<Vec<String>>().join(" ");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let addrs = [theirs.addr(), ours.addrs()[0]];
    hold(addrs, &[("set a%b 7 0 3\r\nabc\r\nmg a%b v\r\n", ["STORED\nVA 3\nabc\n"; 2])]);
    for (request, told) in [
        ("lru_crawler metadump all", "OK\nkey=a%25b exp=-1 la=# cas=# fetch=yes cls=1 size=69 flags=7 \nEND\n"),
        ("lru_crawler metadump hash", "OK\nkey=a%25b exp=-1 la=# cas=# fetch=yes cls=1 size=69 flags=7 \nEND\n"),
        ("lru_crawler metadump 2,1", "OK\nkey=a%25b exp=-1 la=# cas=# fetch=yes cls=1 size=69 flags=7 \nEND\n"),
        ("lru_crawler metadump 63", "OK\nEND\n"),
        ("lru_crawler mgdump 1", "OK\nmg a%b\nEN\n"),
        ("lru_crawler mgdump 5", "OK\nEN\n"),
    ] {
        for addr in addrs {
            let reply = listing(addr, &format!("{request}\r\n")).replace("\r\n", "\n");
            assert_eq!(reply, told, "{request}, ours: {}", addr == addrs[1]);
        }
    }
    // A key of any other bytes that came as it is goes as it is: as base64 this one would be longer than a key may be.
    let long = "é".repeat(125);
    hold(addrs, &[(&format!("delete a%b\r\nset {long} 0 0 1\r\nx\r\n"), ["DELETED\nSTORED\n"; 2])]);
    for addr in addrs {
        let ours = addr == addrs[1];
        assert_eq!(listing(addr, "lru_crawler mgdump all\r\n"), format!("OK\r\nmg {long}\r\nEN\r\n"), "ours: {ours}");
        assert_eq!(answer(addr, &format!("mg {long} v\r\n")), "VA 1\r\nx\r\n", "ours: {ours}");
    }
    // Memcached has it in another class.
    let cached = format!("ITEM {long} [1 b; 0 s]\r\nEND\r\n");
    assert_eq!(listing(addrs[1], "stats cachedump 1 0\r\n"), cached);
}

#[test]
fn a_life_is_as_long_as_it_was_told_and_up_to_a_second_shorter_in_memcached() {
    let (theirs, ours) = both();
    let [theirs, ours] = [theirs.addr(), ours.addrs()[0]];
    let mut was_short = false;
    for _ in 0..20 {
        let (mut their, mut our) = (connect(theirs), connect(ours));
        let begun = Instant::now();
        for stream in [&mut their, &mut our] {
            ask(stream, b"set k 0 1 1\r\nx\r\n", b"STORED\r\n");
        }
        std::thread::sleep(Duration::from_millis(700));
        let [theirs, ours] = [&mut their, &mut our].map(|stream| ask(stream, b"mg k\r\n", b"\r\n"));
        // Where this machine stood still nothing can be said.
        if begun.elapsed() < Duration::from_secs(1) {
            assert_eq!(ours, b"HD\r\n");
            was_short |= theirs == b"EN\r\n";
        }
        if was_short {
            return;
        }
    }
    panic!("no life in memcached ended early");
}

#[test]
fn a_flush_that_is_due_at_once_takes_what_is_stored_behind_it_in_memcached_alone() {
    let (theirs, ours) = both();
    let request = "flush_all 1\r\nset z 0 0 1\r\nz\r\nget z\r\n";
    const STAYS: &str = "OK\r\nSTORED\r\nVALUE z 0 1\r\nz\r\nEND\r\n";
    assert_eq!(answer(ours.addrs()[0], request), STAYS);
    // A second of its clock may begin behind it.
    let gone = (0..5).any(|_| answer(theirs.addr(), request) == "OK\r\nSTORED\r\nEND\r\n");
    assert!(gone, "memcached takes it");
}

/// Also forgotten by the process: over a folder, what a flush was to remove is there at the next start.
#[test]
fn what_is_different_over_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let theirs = Memcached::start(Version::New, &["-m", "256", "-I", "100m"]);
    let ours = start_in_folder(folder.path());
    hold(
        [theirs.addr(), ours.addrs()[0]],
        &[(
            "set k 0 0 1\r\nx\r\nmg k v\r\nmg k h t\r\nme k\r\n",
            [
                "STORED\nVA 1\nx\nHD h1 t-1\nME k exp=-1 # cas=# fetch=yes # size=61\n",
                "STORED\nVA 1\nx\nHD h0 t-1\nME k exp=-1 # cas=# fetch=no # size=61\n",
            ],
        )],
    );
    drop(ours);
    let store = || larder_server::DurableOptions::new(folder.path()).open().unwrap();
    let limits = Limits { item_bytes_max: 100 << 20, ..Limits::default() };
    let serve = || {
        let config = Config { listen: common::anywhere(), threads: 1, limits: limits.clone(), ..Config::default() };
        Server::start(larder_server::DurableEngine::new(store()), config).unwrap()
    };
    let ours = serve();
    // Key and value together: 250 bytes more.
    let bytes = (64 << 20) + 250;
    let large = format!("set L 0 0 {bytes}\r\n{}\r\n", "v".repeat(bytes));
    hold([theirs.addr(), ours.addrs()[0]], &[(&large, ["STORED\n", "SERVER_ERROR object too large for cache\n"])]);
    hold([theirs.addr(), ours.addrs()[0]], &[("flush_all 3\r\nmg k v\r\n", ["OK\nVA 1\nx\n"; 2])]);
    drop(ours);
    std::thread::sleep(Duration::from_millis(3_200));
    hold([theirs.addr(), serve().addrs()[0]], &[("mg k v\r\n", ["EN\n", "VA 1\nx\n"])]);
}

/// The value of a line `STAT <name> <value>`.
fn stat(told: &str, name: &str) -> Option<String> {
    let value = told.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    value.map(str::to_owned)
}

#[test]
fn what_is_different_in_statistics() {
    let (theirs, ours) = both();
    let addrs = [theirs.addr(), ours.addrs()[0]];
    hold(
        addrs,
        &[
            ("set small 0 0 1\r\nx\r\nverbosity 2\r\n", ["STORED\nOK\n"; 2]),
            ("stats sizes\r\n", ["STAT sizes_status disabled\nEND\n", "STAT 96 1\nEND\n"]),
        ],
    );
    let large = format!("set large 0 0 10000\r\n{}\r\n", "v".repeat(10_000));
    hold(addrs, &[(&large, ["STORED\n"; 2])]);
    for (addr, classes) in addrs.into_iter().zip([2, 1]) {
        assert_eq!(stat(&answer(addr, "stats settings\r\n"), "verbosity").as_deref(), Some("2"));
        let told = answer(addr, "stats items\r\n");
        assert_eq!(told.lines().filter(|line| line.contains(":number ")).count(), classes, "{told}");
        assert_eq!(stat(&answer(addr, "stats slabs\r\n"), "active_slabs"), Some(classes.to_string()));
    }
    hold(addrs, &[("stats hot\r\n", ["ERROR\n", &answer(addrs[1], "stats hot\r\n").replace("\r\n", "\n")])]);
    hold([addrs[0]; 2], &[("stats latency\r\n", ["ERROR\n"; 2])]);
    let reads = || {
        exchange(addrs[1], [&b"mg small\r\n".repeat(160)[..]]);
        stat(&answer(addrs[1], "stats latency\r\n"), "read:count").unwrap().parse::<u64>().unwrap()
    };
    let before = reads();
    hold(addrs, &[("stats reset\r\n", ["RESET\n"; 2])]);
    assert!(before >= 100 && reads() > before, "a reset leaves them");
    // When an item was used is kept over memory where that was asked for.
    std::thread::sleep(Duration::from_millis(2_100));
    let told = addrs.map(|addr| String::from_utf8(exchange(addr, [&b"mg large l\r\n"[..]])).unwrap());
    let seconds: u64 = told[0].strip_prefix("HD l").unwrap().trim_end().parse().unwrap();
    assert!(seconds >= 2 && told[1] == "HD l0\r\n", "{told:?}");
}

/// What a server says, and whether it closes.
type Said<'a> = (&'a [u8], bool);

/// What comes until the server closes, or for so long: and whether it closed.
fn said(stream: &mut TcpStream, wait: Duration) -> (Vec<u8>, bool) {
    let (deadline, mut told, mut bytes) = (Instant::now() + wait, Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).unwrap();
        match stream.read(&mut bytes) {
            Ok(0) => return (told, true),
            Ok(read) => told.extend_from_slice(&bytes[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return (told, false),
            Err(_) => return (told, true),
        }
    }
}

#[test]
fn how_a_connection_begins_and_what_it_holds_for_long() {
    let theirs = Memcached::start(Version::New, &["-m", "64"]);
    let ours = start(Limits { slow_timeout_ms: 500, ..Limits::default() });
    let addrs = [theirs.addr(), ours.addrs()[0]];
    let noop = [&b"\x80\x0a"[..], &[0; 22]].concat();
    let noop_answer = [&b"\x81\x0a"[..], &[0; 22]].concat();
    let half = [&b"set k 0 0 100000\r\n"[..], &[b'v'; 8_000]].concat();
    // What is sent; what memcached says and whether it closes; the same of ours.
    let cases: [(&[u8], Said<'_>, Said<'_>); 5] = [
        (&noop, (&noop_answer, false), (b"", true)),
        (b"\x16\x03\x01\x00\x05hello", (b"", false), (b"ERROR\r\n", true)),
        (b"\x16\x03\x01\x00\x05\nmn\r\n", (b"ERROR\r\nMN\r\n", false), (b"ERROR\r\n", true)),
        (b"mn\r\n\x80aaaa\r\nmn\r\n", (b"MN\r\nERROR\r\nMN\r\n", false), (b"MN\r\nERROR\r\nMN\r\n", false)),
        (&half, (b"", false), (b"", true)),
    ];
    let mut streams: Vec<[TcpStream; 2]> = Vec::new();
    for (request, ..) in cases {
        streams.push(addrs.map(|addr| {
            let mut stream = connect(addr);
            // Ours may have closed before all was sent.
            let _ = stream.write_all(request);
            stream
        }));
    }
    for ((request, theirs, ours), [their, our]) in cases.into_iter().zip(&mut streams) {
        let shown = request[..request.len().min(40)].escape_ascii();
        let (told, closed) = said(our, if ours.1 { Duration::from_secs(10) } else { Duration::from_millis(100) });
        assert_eq!((&told[..], closed), ours, "ours: {shown}");
        let (told, closed) = said(their, Duration::from_millis(300));
        assert_eq!((&told[..], closed), theirs, "memcached: {shown}");
    }
    for addr in addrs {
        assert_eq!(answer(addr, "mn\r\n"), "MN\r\n");
    }
}

/// Sends it piece by piece, for as long as the server takes it: after each another client is served.
fn send_beside_another(addr: SocketAddr, request: &[u8]) -> TcpStream {
    let (mut stream, mut other) = (connect(addr), connect(addr));
    for piece in request.chunks(64 << 10) {
        let taken = stream.write_all(piece);
        assert_eq!(ask(&mut other, b"mn\r\n", b"MN\r\n"), b"MN\r\n");
        if taken.is_err() {
            break;
        }
    }
    stream
}

#[test]
fn a_line_without_an_end_is_closed_by_both_and_one_that_begins_as_a_get_by_ours() {
    let (theirs, ours) = both();
    let wait = Duration::from_secs(10);
    for addr in [theirs.addr(), ours.addrs()[0]] {
        let mut stream = send_beside_another(addr, &[b'x'; 1 << 20]);
        assert_eq!(said(&mut stream, wait), (Vec::new(), true), "ours: {}", addr != theirs.addr());
    }
    let [mut their, mut our] = [theirs.addr(), ours.addrs()[0]].map(|addr| {
        let long = [&b"get "[..], &vec![b'x'; 2 << 20]].concat();
        send_beside_another(addr, &long)
    });
    assert_eq!(said(&mut our, wait), (Vec::new(), true));
    assert_eq!(said(&mut their, Duration::from_millis(300)), (Vec::new(), false));
    their.set_read_timeout(Some(wait)).unwrap();
    // Its end may still come.
    assert_eq!(ask(&mut their, b"\r\nmn\r\n", b"MN\r\n"), b"CLIENT_ERROR bad command line format\r\n\r\nMN\r\n");
    for addr in [theirs.addr(), ours.addrs()[0]] {
        assert_eq!(answer(addr, "mn\r\n"), "MN\r\n");
    }
}
