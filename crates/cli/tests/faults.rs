//! What commands cost, counted on the wire, and what they say when the wire breaks.

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use common::{Done, larder, on, on_with_input, until, wait};
use larder_testkit::proxy::{Fault, Proxy, Then};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};

/// What connecting to a server costs, in round trips. `--trace` leaves it out.
const CONNECT: u64 = 1;

/// Commands in turn, and what each costs beside connecting.
const COSTS: &[(&str, u64)] = &[
    ("counter add exact", 6), // looks, makes slots and manifest, the first add 2, gives the slot back
    ("counter add exact", 4),
    ("counter get exact", 2),
    ("counter reset exact", 3),
    ("counter reset exact", 2),
    ("counter add fast --fast", 4),
    ("counter add fast", 2),
    ("counter get fast", 2),
    ("counter reset fast", 3),
    ("set add tags red green blue", 4),
    ("set add tags red green blue", 2),
    ("set remove tags red", 2),
    ("set has tags green", 2),
    ("set has tags green blue", 2),
    ("set members tags", 2),
    ("set stat tags", 2),
    ("set compact tags", 3),
    ("lock run nightly -- true", 4),
    ("lock run nightly -- true", 3),
    ("lock status nightly", 2),
    ("lock release nightly --force", 2), // nobody has it
    ("array push steps sweep cook", 4),  // looks, makes the shard and the manifest, appends
    ("array push steps eat", 2),
    ("array get steps", 2),
    ("array change steps --add wash --delete eat", 2),
    ("array remove steps wash", 2),
    ("table put prices apple 3", 7), // makes it with 3, the entry, its key on the list, and 2 that tidy up
    ("table put prices apple 4", 2),
    ("table get prices apple", 2),
    ("table put sessions ann 1 --ttl 1h", 7),
    ("table put sessions ann 2 --ttl 1h", 6),
    ("visitors hit site", 5), // makes them with 3, the window's counter and that it is listed
    ("visitors hit site", 2),
    ("visitors hit site --visitor ann", 3), // the window's first id: its shard, and that it is listed
    ("visitors hit site --visitor ann", 2),
    ("visitors get site", 2),
    ("log put audit started", 5), // makes it with 3, the chunk's first part and that it is listed
    ("log put audit ended", 2),
    ("log fetch audit", 3),
    ("log tail audit", 3),
    ("queue push jobs a b c", 5),
    ("queue push jobs d", 3),
    ("queue pop jobs", 4),
    ("queue stat jobs", 4),
    ("queue len jobs", 4),
    ("stack push undo a b c", 5),
    ("stack push undo d", 3),
    ("stack pop undo", 4),
    ("stack stat undo", 4),
    ("stack len undo", 4),
    ("cache get pages k --ttl 5m --else true", 5), // looks, makes the manifest, and 3 for the rebuild
    ("cache get pages k --ttl 5m --else true", 2),
    ("cache invalidate pages k", 2),
    ("drop nightly", 2),
    ("drop tags", 3),
];

/// What may take one round trip more now and then: see [`costs_of_puts`].
const PUT: &str = "table put";

#[test]
fn what_a_command_costs_in_round_trips_is_as_the_help_says() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("memcached://{}", proxy.addr());
        on(&url, "counter add first").exits(0); // and signs the server as one of this fleet
        for &(line, round_trips) in COSTS.iter().filter(|(line, _)| !line.starts_with("table ")) {
            costs(&url, &proxy, line, round_trips);
        }
        costs_of_puts(&url, &proxy);
        let holder = larder(["lock", "run", "held", "--", "sleep", "1000"]).env("LARDER_STORE", server.url()).spawn();
        let holder = holder.unwrap();
        until("the lock is held", || on(&url, "lock status held").code() == 0);
        costs(&url, &proxy, "lock release held --force", 3);
        kill_process(Pid::from_child(&holder), Signal::TERM).unwrap();
        wait(holder);
        for kind in ["queue jobs", "stack undo"] {
            let (kind, name) = kind.split_once(' ').unwrap();
            let claim = || on(&url, &format!("--json {kind} claim {name}")).json()["id"].as_str().unwrap().to_owned();
            let (first, second) = (claim(), claim());
            costs(&url, &proxy, &format!("{kind} renew {name} {first}"), 3);
            costs(&url, &proxy, &format!("{kind} release {name} {first}"), 3);
            costs(&url, &proxy, &format!("{kind} ack {name} {second}"), 3);
        }
        let plain = on(&url, "--trace counter get exact").stderr;
        assert!(plain.starts_with("round trips: 2, ops: "), "{plain}");
    }
}

/// What a help text's line of round trips allows, such as `open 1 (3 when it is created), reset 2; 1 where it is zero already`.
fn told(help: &str) -> BTreeSet<u64> {
    let (_, rest) = help.split_once("Round trips: ").expect(help);
    // As the terminal is wide.
    let line = rest.split("\n\n").next().unwrap().replace('\n', " ");
    let numbers = |text: &str| -> Vec<u64> {
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    let mut clauses = line.split([';', '.', ':']).map(str::trim);
    let steps: Vec<&str> = clauses.next().unwrap().split(", ").collect();
    // A step's other number, in brackets, stands for the first.
    let (mut usual, mut new) = (0, 0);
    for step in &steps {
        let (outside, inside) = step.split_once('(').unwrap_or((step, ""));
        let count: u64 = numbers(outside).iter().sum();
        usual += count;
        new += numbers(inside).first().unwrap_or(&count);
    }
    let mut costs = BTreeSet::from([usual, new]);
    let last: u64 = numbers(steps.last().unwrap()).iter().sum();
    for clause in clauses {
        match numbers(clause)[..] {
            [instead, ..] if clause.contains(" where ") => _ = costs.insert(usual - last + instead),
            ref all if clause.contains(" in all") => costs.extend(all),
            _ => {}
        }
    }
    costs
}

#[test]
fn the_help_tells_what_is_counted() {
    let mut wrong = Vec::new();
    for (line, round_trips) in COSTS {
        let words = if line.starts_with("drop ") { 1 } else { 2 };
        let command: Vec<&str> = line.split(' ').take(words).collect();
        let help = larder(command.iter().copied().chain(["--help"])).output().unwrap();
        let costs = told(&String::from_utf8(help.stdout).unwrap());
        if !costs.contains(round_trips) {
            wrong.push(format!("{line} takes {round_trips}, its help tells {costs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Runs a command and asserts what it costs.
#[track_caller]
fn costs(url: &str, proxy: &Proxy, line: &str, round_trips: u64) {
    let before = proxy.counts().chunks;
    let done = on(url, &format!("--trace --json {line}"));
    assert_eq!(done.code(), 0, "{line}: {done:?}");
    assert_eq!(done.round_trips(), round_trips, "{line}: {done:?}");
    // What it says of itself is what went over the wire: it waits for each reply before it sends more.
    assert_eq!(proxy.counts().chunks - before, CONNECT + round_trips, "{line}");
}

/// A put to a table that is made, or whose entry is: where that took longer than the library waits for it, it looks once more whether the entry is still there. Besides such a late
/// listing, a writer looks behind itself now and then. Either way its count is the one with that look, and it is made again, in another table, until the usual one shows.
fn costs_of_puts(url: &str, proxy: &Proxy) {
    const TRIES: u32 = 40;
    for attempt in 0..TRIES {
        let mut have_looked = false;
        for &(line, usual) in COSTS.iter().filter(|(line, _)| line.starts_with("table ")) {
            let line = line.replacen(" put ", &format!(" put {attempt}-"), 1).replacen(
                " get ",
                &format!(" get {attempt}-"),
                1,
            );
            let before = proxy.counts().chunks;
            let start = Instant::now();
            let done = on(url, &format!("--trace --json {line}"));
            let took = start.elapsed();
            assert_eq!(done.code(), 0, "{line}: {done:?}");
            let spent = done.round_trips();
            assert_eq!(proxy.counts().chunks - before, CONNECT + spent, "{line}");
            // Besides a late listing, a writer looks behind itself now and then.
            let looked_once_more = spent == usual + 1 && line.starts_with(PUT);
            assert!(spent == usual || looked_once_more, "{line}: {spent} instead of {usual}, in {took:?}: {done:?}");
            have_looked |= looked_once_more;
        }
        if !have_looked {
            return;
        }
    }
    panic!("in each of {TRIES} tries a put looked once more");
}

/// At the most, since batches that come while one is under way travel together; and once in some 16 KiB a writer looks behind itself whether
/// the set wants compacting: here behind each batch at the most.
#[test]
fn elements_of_standard_input_cost_a_round_trip_a_batch_at_the_most() {
    // 1,024, 1,024 and 952 elements.
    let many: String = (0..3_000).map(|n| format!("member-{n}\n")).collect();
    // Two and two and two: a third of 100 KiB would be more than 256 KiB.
    let large: String = (0..6).map(|n| format!("{n}{}\n", "x".repeat(100 * 1024))).collect();
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        on(&url, "set add opened first").exits(0); // and signs the server as one of this fleet
        on(&url, "set add large first").exits(0);
        for (name, input, open, batches) in [("opened", &many, 1, 3), ("new", &many, 3, 3), ("large", &large, 1, 3)] {
            let done = on_with_input(&url, &format!("--trace --json set add {name} -"), input.as_bytes());
            assert_eq!(done.code(), 0, "{name}: {done:?}");
            let range = open + 1..=open + 2 * batches;
            assert!(range.contains(&done.round_trips()), "{name}, {version:?}: not in {range:?}: {done:?}");
            let found = on(&url, &format!("set members {name}")).sorted_lines();
            let mut expected: Vec<Vec<u8>> = input.lines().map(|line| line.as_bytes().to_vec()).collect();
            expected.extend((name != "new").then(|| b"first".to_vec()));
            expected.sort();
            assert!(found == expected, "{name}, {version:?}: {} of {} elements", found.len(), expected.len());
        }
    }
}

/// True for the arithmetic of a fast counter, in whatever dialect.
fn is_add(bytes: &[u8]) -> bool {
    bytes.starts_with(b"ma ") || bytes.starts_with(b"incr ")
}

#[test]
fn a_fast_add_whose_reply_is_lost_is_unknown_and_not_tried_again() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("memcached://{}", proxy.addr());
        on(&url, "counter add n 5 --fast").exits(0);
        proxy.script(0, |moment, _| if is_add(moment.bytes) { Fault::LoseReply(Then::Close) } else { Fault::Pass });
        on(&url, "counter add n 1").fails(7, "unknown whether it took effect");
        let error = on(&url, "--json counter add n 1").json_error();
        assert_eq!(error["exit_code"], 7);
        assert!(error["hint"].as_str().unwrap().contains("read before you try again"), "{error}");
        proxy.set(Fault::Pass);
        assert_eq!(on(&url, "counter get n").exits(0), "7\n", "both landed, once");
    }
}

#[test]
fn an_exact_add_whose_request_or_reply_is_lost_counts_once() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let proxy = Proxy::start(server.addr());
        let url = format!("memcached://{}", proxy.addr());
        on(&url, "counter add n 5").exits(0);
        for fault in [Fault::LoseReply(Then::Close), Fault::LoseRequest(Then::Close)] {
            let mut left = 1;
            proxy.script(0, move |moment, _| {
                let is_write = [&b"ms L.n.s."[..], b"cas L.n.s."].iter().any(|start| moment.bytes.starts_with(start));
                if !is_write || left == 0 {
                    return Fault::Pass;
                }
                left -= 1;
                fault.clone()
            });
            let faults = proxy.counts().faults();
            on(&url, "counter add n 1").exits(0);
            assert_eq!(proxy.counts().faults(), faults + 1, "the fault has set in");
        }
        assert_eq!(on(&url, "counter get n").exits(0), "7\n");
    }
}

#[test]
fn a_server_that_hangs_is_said_to() {
    let server = Memcached::start(Version::New, &[]);
    on(&server.url(), "counter add n 5").exits(0);
    server.stop();
    // It hangs at the handshake already, so nothing was sent that could count.
    let done = on(&server.url(), "--timeout 300ms counter add n 1");
    done.fails(6, "");
    assert!(done.stderr.contains(&server.addr().to_string()), "{}", done.stderr);
    server.cont();
    assert_eq!(on(&server.url(), "counter get n").exits(0), "5\n");
    let proxy = Proxy::start(server.addr());
    proxy.script(0, |moment, _| if moment.bytes.starts_with(b"mg L.n") { Fault::Hang } else { Fault::Pass });
    let url = format!("memcached://{}", proxy.addr());
    on(&url, "--timeout 300ms counter get n").fails(6, "timeout");
}

#[test]
fn a_server_of_another_kind_is_named_with_the_url_that_opens_it() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::default());
        let done = on(&format!("memcached://{}", server.addr()), "counter add n");
        done.fails(2, "a Redis or Valkey server (open it as redis://host:port)");
        assert!(done.stderr.contains(&server.addr().to_string()), "{done:?}");
        assert_eq!(on(&server.url(), "ls").exits(0), "", "{version:?}: nothing was written");
    }
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        for scheme in ["redis", "redis-cluster"] {
            let done = on(&format!("{scheme}://{}", server.addr()), "counter add n");
            done.fails(2, "a memcached (open it as memcached://host:port)");
            assert!(done.stderr.contains(&server.addr().to_string()), "{done:?}");
        }
    }
    let web = said_by_anything(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    on(&format!("memcached://{web}"), "counter get n").fails(2, "a web server");
    on(&format!("redis://{web}"), "counter get n").fails(2, "a web server");
}

/// A server that answers whatever it is asked with this, on every connection.
fn said_by_anything(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            _ = stream.read(&mut [0; 1024]);
            _ = stream.write_all(answer);
        }
    });
    addr
}

/// What a verb says that reads lines, on a server that is cut off behind the first of them. `look` tells when that one is there, by `shown`.
fn cut_off_behind_the_first_line(line: &str, look: &str, shown: &str) -> Done {
    let server = Memcached::start(Version::New, &[]);
    let proxy = Proxy::start(server.addr());
    let url = format!("memcached://{}", proxy.addr());
    let mut command = larder(line.split_whitespace());
    let mut child = command.env("LARDER_STORE", &url).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"a\t1\n").unwrap();
    until(look, || on(&server.url(), look).text() == shown);
    // The command has its reply, too; and then it knows that its connection is gone.
    thread::sleep(Duration::from_millis(300));
    proxy.set(Fault::Close);
    proxy.cut_all();
    thread::sleep(Duration::from_millis(300));
    stdin.write_all(b"b\t2\n").unwrap();
    drop(stdin);
    wait(child)
}

#[test]
fn lines_that_would_count_twice_are_unknown_once_some_are_done() {
    for (line, look, shown, said) in [
        ("--json queue push jobs -", "queue len jobs", "1\n", "1 items are pushed"),
        ("--json stack push undo -", "stack len undo", "1\n", "1 items are pushed"),
        ("--json array push steps -", "array get steps", "a\t1\n", "1 elements of standard input are pushed"),
        ("--json log put audit -", "log fetch audit", "a\t1\n", "1 events of standard input are put"),
        ("--json top add points -", "top get points a", "1\n", "1 elements of standard input are done"),
    ] {
        let done = cut_off_behind_the_first_line(line, look, shown);
        assert_eq!(done.code(), 7, "{line}: {done:?}");
        let error = done.json_error();
        assert_eq!((&error["kind"], &error["exit_code"]), (&"unavailable".into(), &7.into()), "{line}");
        assert!(error["message"].as_str().unwrap().starts_with(said), "{error}");
        assert!(error["hint"].as_str().unwrap().contains("counts twice"), "{error}");
    }
}

#[test]
fn lines_that_do_no_harm_twice_keep_their_exit_code_and_say_how_many_are_done() {
    for (line, look, shown, said) in [
        ("sharded-set add tags -", "sharded-set len tags", "1\n", "1 elements of standard input are done"),
        (
            "visitors hit site --visitor -",
            "visitors get site --current",
            "1\n",
            "1 elements of standard input are done",
        ),
        ("table put prices -", "table get prices a", "1\n", "1 entries of standard input are put"),
    ] {
        let done = cut_off_behind_the_first_line(line, look, shown);
        done.fails(6, said);
    }
}
