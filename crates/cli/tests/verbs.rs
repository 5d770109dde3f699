//! Counters and sets through the command, on real servers.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::thread;

use common::{Done, fed, finish, larder, on, on_with_input, wait};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

fn server() -> (Memcached, String) {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    (server, url)
}

#[test]
fn a_counter_adds_reads_and_resets() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        for (name, fast) in [("hits", ""), ("quick", " --fast")] {
            let on = |line: &str| on(&server.url(), &line.replace("NAME", name));
            assert_eq!(on(&format!("counter add NAME 5{fast}")).exits(0), "");
            assert_eq!(on("counter add NAME").exits(0), "");
            assert_eq!(on("counter add NAME -10").exits(0), "");
            assert_eq!(on("counter add NAME -- -1").exits(0), "");
            assert_eq!(on("counter get NAME").exits(0), "-5\n");
            assert_eq!(on("--json counter get NAME").json(), json!({"name": name, "value": -5}));
            assert_eq!(on("counter reset NAME").exits(0), "-5\n");
            assert_eq!(on("counter get NAME").exits(0), "0\n", "a zero that is known to be one");
            assert_eq!(on("counter add NAME 7 --json").json(), json!({"name": name, "added": 7}));
        }
    }
}

#[test]
fn an_exact_counter_goes_beyond_64_bits() {
    let (_server, url) = server();
    for _ in 0..3 {
        on(&url, "counter add big 9223372036854775807").exits(0);
    }
    assert_eq!(on(&url, "counter get big").exits(0), "27670116110564327421\n");
    assert_eq!(on(&url, "--json counter get big").exits(0), "{\"name\":\"big\",\"value\":27670116110564327421}\n");
    on(&url, "counter add small --fast 9223372036854775807").fails(2, "limit");
}

#[test]
fn what_is_not_there_is_absent_and_no_zero() {
    let (_server, url) = server();
    let lines = [
        "counter get n",
        "counter reset n",
        "counter add n 1 --existing",
        "set members n",
        "set has n a",
        "set remove n a",
        "set add n a --existing",
        "set stat n",
        "set compact n",
        "set members n --text",
        "set has n a --text",
        "set add n a --existing --text",
        "lock status n",
        "lock run n --existing -- echo ran",
        "drop n",
    ];
    for line in lines {
        on(&url, line).fails(3, "absent (never created, or lost)");
        let done = on(&url, &format!("--json {line}"));
        assert_eq!((done.code(), done.text().as_str()), (3, ""));
        let error = done.json_error();
        assert_eq!((error["kind"].as_str(), error["exit_code"].as_u64()), (Some("absent"), Some(3)), "{line}");
    }
    assert!(on(&url, "counter get n").stderr.contains("`larder counter add n` creates it"));
    assert_eq!(on(&url, "lock release n --force").code(), 3);
    assert!(on(&url, "lock run n --existing -- true").stderr.contains("`larder lock run n` without --existing"));
    on(&url, "lock run n -- true").exits(0);
    assert_eq!(on(&url, "lock run n --existing -- echo ran").exits(0), "ran\n", "it is there now");
}

#[test]
fn a_set_adds_removes_and_tells() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        for (name, make) in [("tags", ""), ("wide", " --shards 8"), ("raw", " --text")] {
            let text = if name == "raw" { " --text" } else { "" };
            let on = |line: &str| on(&server.url(), &format!("{}{text}", line.replace("NAME", name)));
            let make = make.trim_end_matches(text);
            assert_eq!(on(&format!("set add NAME red green blue{make}")).exits(0), "");
            assert_eq!(on("set remove NAME green none").exits(0), "");
            assert_eq!(on("set members NAME").sorted_lines(), [b"blue".to_vec(), b"red".to_vec()]);
            assert_eq!(on("set has NAME red").exits(0), "true\n");
            assert_eq!(on("set has NAME green").exits(1), "false\n");
            assert_eq!(on("set has NAME red green blue").exits(1), "true\nfalse\ntrue\n");
            assert_eq!(on("set has NAME red blue").exits(0), "true\ntrue\n");
            assert_eq!(on("--json set has NAME red").json(), json!({"element": "red", "has": true}));
            assert!(on("set stat NAME").exits(0).starts_with("members 2\nbytes "));
            assert_eq!(on("--json set compact NAME").json()["stale_bytes"], 0);
            assert_eq!(on("--json set stat NAME").json()["members"], 2);
            on("set add NAME red --existing").exits(0);
            let mut members = on("--json set members NAME").json();
            members.as_array_mut().unwrap().sort_by_key(ToString::to_string);
            assert_eq!(members, json!(["blue", "red"]));
        }
    }
}

#[test]
fn names_and_elements_are_any_bytes() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let (_server, url) = server();
    let name = OsStr::from_bytes(b"\xff. \n");
    let run = |words: &[&OsStr]| {
        let mut command = larder(["set"]);
        finish(command.args(words).env("LARDER_STORE", &url))
    };
    let (text, binary) = (OsStr::from_bytes("grün".as_bytes()), OsStr::from_bytes(b"\x01\xfe\x7f"));
    run(&["add".as_ref(), name, text, binary]).exits(0);
    assert_eq!(run(&["members".as_ref(), name]).sorted_lines(), [b"\x01\xfe\x7f".to_vec(), "grün".into()]);
    assert_eq!(run(&["has".as_ref(), name, binary]).exits(0), "true\n");
    let json = run(&["members".as_ref(), name, "--json".as_ref()]).json();
    assert!(json.as_array().unwrap().contains(&json!({"base64": "Af5/"})), "{json}");
    let dropped = finish(larder(["drop", "--json"]).arg(name).env("LARDER_STORE", &url));
    assert_eq!(dropped.json(), json!({"name": {"base64": "/y4gCg=="}, "dropped": "set"}));
    let long = "x".repeat(65);
    for verb in ["counter get", "counter add", "set members", "lock status", "drop"] {
        on(&url, &format!("{verb} {long}")).fails(2, "65 bytes; the limit is 64");
        let mut empty = larder(verb.split(' ').chain([""]));
        finish(empty.env("LARDER_STORE", &url)).fails(2, "a name is empty; it takes 1 to 64 bytes");
    }
}

#[test]
fn elements_come_from_standard_input_by_the_line() {
    let (_server, url) = server();
    let many: String = (0..5_000).map(|n| format!("member-{n}\n")).collect();
    assert_eq!(on_with_input(&url, "set add ids -", many.as_bytes()).exits(0), "");
    assert_eq!(on(&url, "--json set stat ids").json()["members"], 5_000);
    let even: String = (0..5_000).step_by(2).map(|n| format!("member-{n}\n")).collect();
    on_with_input(&url, "set remove ids -", even.as_bytes()).exits(0);
    let members = on(&url, "set members ids").sorted_lines();
    let mut odd: Vec<Vec<u8>> = (1..5_000).step_by(2).map(|n| format!("member-{n}").into_bytes()).collect();
    odd.sort();
    assert!(members == odd, "{} members", members.len());
    let has = on_with_input(&url, "set has ids -", b"member-1\nmember-2\nmember-3");
    assert_eq!(has.exits(1), "true\nfalse\ntrue\n");
    // Lines are bytes; the last needs no end; an empty one is an empty element.
    on_with_input(&url, "set add raw -", b"\xff\0\r\n\nlast").exits(0);
    let expected: [&[u8]; 3] = [b"", b"\xff\0\r", b"last"];
    let mut expected = expected.map(<[u8]>::to_vec);
    expected.sort();
    assert_eq!(on(&url, "set members raw").sorted_lines(), expected);
    on_with_input(&url, "set add raw -", b"").exits(0);
    on_with_input(&url, "set has raw -", b"").exits(0);
}

#[test]
fn a_dash_among_other_elements_is_refused_before_anything_is_made() {
    let (_server, url) = server();
    for line in ["set add tags - a", "set add tags a -", "set add tags - -", "set remove tags a -", "set has tags - a"]
    {
        on(&url, line).fails(2, "`-` stands alone");
    }
    on(&url, "set members tags").fails(3, "absent");
    on_with_input(&url, "set add tags -", b"-\n").exits(0);
    assert_eq!(on(&url, "set members tags").exits(0), "-\n");
}

#[test]
fn membership_of_standard_input_is_told_a_line_each() {
    let (_server, url) = server();
    on(&url, "set add tags red green").exits(0);
    let done = on_with_input(&url, "set has tags -", b"red\nblue\ngreen\n");
    assert_eq!(done.exits(1), "true\nfalse\ntrue\n");
    let all: Vec<u8> = b"green\n".repeat(3000);
    assert_eq!(on_with_input(&url, "set has tags -", &all).exits(0), "true\n".repeat(3000));
}

#[test]
fn standard_input_that_is_too_long_a_line_says_how_far_it_got() {
    let (_server, url) = server();
    let mut input = b"short\n".repeat(1024);
    input.extend(vec![b'x'; 1024 * 1024 + 1]);
    let done = on_with_input(&url, "set add ids -", &input);
    done.fails(2, "longer than the limit of 1048576 bytes");
    assert!(done.stderr.contains("1024 elements of standard input are done"), "{}", done.stderr);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (_server, url) = server();
    let many: String = (0..50_000).map(|n| format!("member-{n}\n")).collect();
    on_with_input(&url, "set add ids -", many.as_bytes()).exits(0);
    let mut child = larder(["set", "members", "ids"]).env("LARDER_STORE", &url).spawn().unwrap();
    drop(child.stdout.take());
    let done = wait(child);
    assert_eq!((done.code(), done.stderr.as_str()), (141, ""));
    let done = unread(&url, "set has ids -", many.as_bytes());
    assert_eq!((done.code(), done.stderr.as_str()), (141, ""));
}

/// What a command says whose standard output nobody reads.
fn unread(store: &str, line: &str, input: &[u8]) -> Done {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    fed(larder(line.split_whitespace()).env("LARDER_STORE", store).stdout(writer), input)
}

#[test]
fn a_change_is_said_though_nobody_reads_what_it_prints() {
    let (_server, url) = server();
    on(&url, "counter add n 5").exits(0);
    on(&url, "queue push jobs a b").exits(0);
    on(&url, "table put prices apple 3").exits(0);
    for line in [
        "counter reset n",
        "--json counter add n 2",
        "queue pop jobs",
        "queue claim jobs",
        "sharded-set add tags red",
        "unique add site ann --each",
        "top add points ann 1",
        "drop tags",
    ] {
        let done = unread(&url, line, b"");
        assert_eq!(done.code(), 141, "{line}: {done:?}");
        let said = "what was asked for is done: nobody reads what is printed";
        assert!(done.stderr.contains(said), "{line}: {}", done.stderr);
    }
    assert_eq!(on(&url, "counter get n").exits(0), "2\n");
    assert_eq!(on(&url, "top get points ann").exits(0), "1\n");
    let lines: String = (0..3_000).map(|n| format!("m{n}\t1\n")).collect();
    let done = unread(&url, "top add points -", lines.as_bytes());
    assert_eq!(done.code(), 141, "{done:?}");
    let said = done.stderr.split_once(" elements of standard input are done: nobody reads");
    let count: u64 = said.expect(&done.stderr).0.rsplit(' ').next().unwrap().parse().unwrap();
    let all: Vec<Vec<u8>> = on(&url, "top list points --all").sorted_lines();
    assert_eq!(all.len() as u64, count + 1, "and ann");
    // Where nothing was there to take, nothing is done.
    on(&url, "stack push undo a").exits(0);
    on(&url, "stack pop undo").exits(0);
    for line in ["--json stack pop undo", "--json stack claim undo"] {
        let done = unread(&url, line, b"");
        assert_eq!(done.code(), 141, "{line}: {done:?}");
        assert!(done.stderr.contains("there is nothing to take: nobody reads"), "{line}: {}", done.stderr);
        assert!(!done.stderr.contains("done"), "{line}: {}", done.stderr);
    }
    on(&url, "table put prices pear 4").exits(0);
    let done = unread(&url, "--json table remove prices apple pear", b"");
    assert!(done.stderr.contains("1 of 2 elements are done: nobody reads"), "{}", done.stderr);
    assert_eq!(on(&url, "table keys prices").exits(0), "pear\n");
}

#[test]
fn a_name_is_one_structure() {
    let (_server, url) = server();
    on(&url, "counter add n").exits(0);
    on(&url, "set add n a").fails(8, "holds a counter, not a set");
    on(&url, "lock run n -- true").fails(8, "counter");
    on(&url, "counter add n --fast").fails(8, "fast");
    assert!(on(&url, "set members n").stderr.contains("larder drop"));
    assert_eq!(on(&url, "counter get n").exits(0), "1\n", "it is what it was");
}

#[test]
fn a_drop_that_is_refused_is_not_told_to_drop() {
    let (server, url) = server();
    on(&url, "counter add n").exits(0);
    // Where its manifest stood.
    ask(&server, "set L.n.m 0 0 3\r\nxyz", "STORED\r\n");
    let done = on(&url, "drop n");
    done.fails(8, "layout");
    let is_told = done.stderr.contains("the larder that wrote it") && !done.stderr.contains("larder drop");
    assert!(is_told, "{}", done.stderr);
}

#[test]
fn drop_removes_a_structure_and_all_its_keys() {
    let (server, url) = server();
    on(&url, "counter add warm").exits(0);
    on(&url, "drop warm").exits(0);
    // What is left is the fleet's own, if anything is.
    let before = server.stat("curr_items");
    for (make, kind) in [
        ("counter add n", "counter"),
        ("counter add n --fast", "fast counter"),
        ("set add n a b c --shards 16", "set"),
        ("lock run n -- true", "lock"),
    ] {
        on(&url, make).exits(0);
        assert!(server.stat("curr_items") > before);
        assert_eq!(on(&url, "drop n").exits(0), format!("{kind}\n"));
        assert_eq!(server.stat("curr_items"), before, "{kind}");
        on(&url, "drop n").fails(3, "nothing to drop");
    }
}

/// Sends a line to the server as somebody else would, and reads until the reply has its end.
fn ask(server: &Memcached, line: &str, end: &str) -> String {
    let mut connection = TcpStream::connect(server.addr()).unwrap();
    write!(connection, "{line}\r\n").unwrap();
    let mut reply = String::new();
    let mut lines = BufReader::new(connection);
    while !reply.ends_with(end) {
        assert!(lines.read_line(&mut reply).unwrap() > 0, "{reply}");
    }
    reply
}

#[test]
fn a_loss_that_can_be_known_is_said_to_be_one() {
    let (server, url) = server();
    on(&url, "set add n a b c").exits(0);
    let keys = ask(&server, "lru_crawler metadump all", "END\r\n");
    let shard =
        keys.split_whitespace().find_map(|word| word.strip_prefix("key=").filter(|key| key.starts_with("L.n.p.")));
    ask(&server, &format!("delete {}", shard.expect("the key of a shard")), "DELETED\r\n");
    let done = on(&url, "set members n");
    done.fails(4, "lost");
    assert!(done.stderr.contains("larder drop"), "{}", done.stderr);
}

#[test]
fn many_processes_count_exactly() {
    const PROCESSES: usize = 8;
    const ADDS: usize = 40;
    let (_server, url) = server();
    // What is counted here is adds; a loaded machine may take its time to connect.
    let url = format!("{url}?connect_timeout_ms=20000");
    let adders: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let url = url.clone();
            thread::spawn(move || (0..ADDS).for_each(|_| _ = on(&url, "--timeout 30s counter add hits 3").exits(0)))
        })
        .collect();
    adders.into_iter().for_each(|adder| adder.join().unwrap());
    assert_eq!(on(&url, "counter get hits").exits(0), format!("{}\n", PROCESSES * ADDS * 3));
}
