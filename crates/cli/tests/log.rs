//! `larder log` on real servers: put, fetch, tail, gaps, cursors, exit codes and round trips.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use common::{finish, larder, on, on_with_input, until};
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn server() -> (Memcached, String) {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    (server, url)
}

fn put(url: &str, event: &str, options: &str) {
    let mut command = larder(["log", "put", "audit", event]);
    assert_eq!(finish(command.args(options.split_whitespace()).env("LARDER_STORE", url)).exits(0), "");
}

/// Deletes the part of a time's chunk, of a second, as an eviction does. The generation stands in the manifest.
fn evict(server: &Memcached, time_ms: u64) {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"get L.audit.m\r\n").unwrap();
    let mut reply = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    reader_line(&mut reply, &mut head);
    let length: usize = head.trim_end().rsplit_once(' ').unwrap().1.parse().unwrap();
    let mut manifest = vec![0; length + "\r\nEND\r\n".len()];
    reply.read_exact(&mut manifest).unwrap();
    let generation = u64::from_le_bytes(manifest[8..16].try_into().unwrap());
    stream.write_all(format!("delete L.audit.e.{generation:016x}.{:x}-0\r\n", time_ms / 1000).as_bytes()).unwrap();
    reader_line(&mut reply, &mut head);
    assert_eq!(head, "DELETED\r\n");
}

fn reader_line(reader: &mut impl BufRead, line: &mut String) {
    line.clear();
    reader.read_line(line).unwrap();
}

#[test]
fn events_go_in_and_come_out_in_the_order_of_their_time() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        put(&url, "second", "");
        put(&url, "first", "--at 5m");
        put(&url, "", "--at 2m");
        assert_eq!(on_with_input(&url, "log put audit -", b"third\nfour\xff\n").exits(0), "");
        let done = on(&url, "log fetch audit");
        assert_eq!((done.code(), &done.stdout[..]), (0, &b"first\n\nsecond\nthird\nfour\xff\n"[..]), "{}", done.stderr);
        assert_eq!(on(&url, "log fetch audit --until 1m").exits(0), "first\n\n");
        assert_eq!(on(&url, "log fetch audit --since 4m --until 1m").exits(0), "\n");
        assert_eq!(on(&url, "log tail audit -n 1 --json").exits(0).lines().count(), 1);
        let timed = on(&url, "log fetch audit --until 1m --times").exits(0);
        let (time, event) = timed.lines().next().unwrap().split_once(' ').unwrap();
        assert_eq!(event, "first");
        assert_eq!(on(&url, &format!("log fetch audit --since {time} --until {time}")).exits(0), "first\n");
        let json: Value =
            serde_json::from_str(on(&url, "log fetch audit --json").exits(0).lines().last().unwrap()).unwrap();
        assert_eq!(json["event"]["base64"], "Zm91cv8=");
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(json["time_ms"].as_u64().unwrap().abs_diff(now_ms) < 60_000, "{json}");
    }
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_put() {
    let (_server, url) = server();
    for line in ["log fetch audit", "log put audit x --existing"] {
        on(&url, line).fails(3, "larder log put audit EVENT");
    }
    on(&url, "log put audit x --retention 1s --chunk 1h").fails(2, "shorter than a chunk");
    put(&url, "kept", "--retention 1h");
    on(&url, "log put audit x --existing --retention 2h").fails(8, "3600s");
    on(&url, "log put audit old --at 2h").fails(2, "keeps events for 3600000 ms");
    on(&url, "log put audit new --at @99999999999999").fails(2, "the limit is 300000 ms");
    on(&url, "log put audit other --retention 2h").fails(8, "3600s");
    on(&url, "log put audit other --at yesterday").fails(2, "2026-11-21T14:00:00Z");
    on(&url, "log fetch audit --since 1m --until 2m").fails(2, "ends before that");
    on(&url, "set add tags red").exits(0);
    on(&url, "log put tags x").fails(8, "tags");
    assert_eq!(on(&url, "log fetch audit").exits(0), "kept\n");
}

#[test]
fn round_trips_are_as_the_help_says() {
    let (_server, url) = server();
    let now = format!("@{}", SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis());
    for (line, round_trips) in [
        (format!("log put audit a --at {now}"), 5),
        (format!("log put audit b --at {now}"), 2),
        (format!("log put audit c --existing --at {now}"), 2),
        ("log fetch audit".to_owned(), 3),
        ("log tail audit".to_owned(), 3),
        ("drop audit".to_owned(), 5),
    ] {
        let done = on(&url, &format!("{line} --trace"));
        done.exits(0);
        assert!(done.stderr.contains(&format!("round trips: {round_trips},")), "{line}: {}", done.stderr);
    }
}

#[test]
fn a_gap_is_told_and_the_exit_code_says_so() {
    let (server, url) = server();
    let lost_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64 - 10_000;
    put(&url, "lost", &format!("--chunk 1s --retention 1h --at @{lost_ms}"));
    put(&url, "kept", "--at 20s");
    evict(&server, lost_ms);
    let done = on(&url, "log fetch audit");
    assert_eq!(done.exits(4), "kept\n");
    assert!(done.stderr.contains("lost: events of 20"), "{}", done.stderr);
    let done = on(&url, "log tail audit --json");
    let lines = done.exits(4);
    let gap: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((gap["gap"]["part"].as_u64(), gap["gap"]["cause"].as_str()), (Some(0), Some("missing")), "{lines}");
}

#[test]
fn a_cursor_in_a_file_goes_on_where_the_last_call_stopped() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cursor");
    // Somebody else's.
    let beside = folder.path().join("cursor.new");
    std::fs::write(&beside, "mine").unwrap();
    let line = format!("log tail audit --cursor {}", file.display());
    put(&url, "one", "");
    assert_eq!(on(&url, &line).exits(0), "one\n");
    assert_eq!(on(&url, &line).exits(0), "");
    put(&url, "two", "");
    put(&url, "late", "--at 10m");
    assert_eq!(on(&url, &line).exits(0), "late\ntwo\n");
    assert_eq!(on(&url, &line).exits(0), "");
    on(&url, "drop audit").exits(0);
    assert_eq!(std::fs::read(&beside).unwrap(), b"mine");
    put(&url, "anew", "");
    on(&url, &line).fails(4, "made anew");
    std::fs::write(&file, "nonsense").unwrap();
    on(&url, &line).fails(2, "no cursor");
}

#[test]
fn follow_prints_each_event_once_as_it_comes() {
    let (_server, url) = server();
    put(&url, "before", "");
    let mut command = larder(["log", "tail", "audit", "-f", "--every", "50ms"]);
    let mut child = command.env("LARDER_STORE", &url).stdout(Stdio::piped()).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines() {
            _ = sender.send(line.unwrap());
        }
    });
    let mut told: Vec<String> = Vec::new();
    let mut wait_for = |count: usize| {
        until("an event", || {
            told.extend(lines.try_iter());
            told.len() >= count
        });
        told.clone()
    };
    wait_for(1);
    put(&url, "after", "");
    wait_for(2);
    put(&url, "late", "--at 90m");
    assert_eq!(wait_for(3), ["before", "after", "late"]);
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    assert!(!child.wait().unwrap().success());
    reader.join().unwrap();
}

#[test]
fn events_of_a_pipe_that_stays_open_are_put_as_they_come() {
    let (_server, url) = server();
    let mut command = larder(["log", "put", "audit", "-"]);
    let mut child = command.env("LARDER_STORE", &url).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let is_there = |event: &str| on(&url, "log fetch audit").stdout.ends_with(format!("{event}\n").as_bytes());
    stdin.write_all(b"first\n").unwrap();
    until("the first event is there", || is_there("first"));
    std::thread::sleep(std::time::Duration::from_millis(1_500));
    stdin.write_all(b"second\nand the beginning of a third").unwrap();
    until("the second event is there", || is_there("second"));
    drop(stdin);
    common::wait(child).exits(0);
    let timed = on(&url, "log fetch audit --json").exits(0);
    let times: Vec<u64> =
        timed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["time_ms"].as_u64().unwrap()).collect();
    assert_eq!(times.len(), 3, "{timed}");
    assert!(times[1] >= times[0] + 1_500 && times[2] >= times[1], "{times:?}");
}

#[test]
fn what_was_put_before_a_line_that_is_too_long_is_said() {
    let (_server, url) = server();
    let input = format!("a\t1\nb\t2\n{}\n", "x".repeat((1 << 20) + 1));
    for (line, code, said) in [
        ("log put audit -", 7, "2 events of standard input are put: "),
        ("array push jobs -", 7, "2 elements of standard input are pushed: "),
        ("table put sessions -", 2, "2 entries of standard input are put: "),
    ] {
        let done = on_with_input(&url, line, input.as_bytes());
        done.fails(code, said);
        assert!(done.stderr.contains("longer than the limit"), "{}", done.stderr);
    }
    assert_eq!(on(&url, "log fetch audit").exits(0), "a\t1\nb\t2\n");
    assert_eq!(on(&url, "table get sessions a b").exits(0), "1\n2\n");
}
