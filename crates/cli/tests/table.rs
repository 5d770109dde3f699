//! `larder table` on real servers: put, get, has, remove, keys, entries, lives, losses, exit codes and round trips.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{finish, larder, on, on_with_input};
use larder_testkit::servers::{Memcached, Version};
use serde_json::{Value, json};

fn server() -> (Memcached, String) {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    (server, url)
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

/// Deletes an entry, as an eviction does. The generation stands in the manifest.
fn evict(server: &Memcached, index: &str) {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"get L.prices.m\r\n").unwrap();
    let mut reply = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    reply.read_line(&mut head).unwrap();
    let length: usize = head.trim_end().rsplit_once(' ').unwrap().1.parse().unwrap();
    let mut manifest = vec![0; length + "\r\nEND\r\n".len()];
    reply.read_exact(&mut manifest).unwrap();
    let generation = u64::from_le_bytes(manifest[8..16].try_into().unwrap());
    stream.write_all(format!("delete L.prices.t.{generation:016x}.{index}\r\n").as_bytes()).unwrap();
    head.clear();
    reply.read_line(&mut head).unwrap();
    assert_eq!(head, "DELETED\r\n");
}

#[test]
fn what_is_put_is_there_and_what_is_removed_is_not() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        assert_eq!(on(&url, "table put prices apple 3.20").exits(0), "");
        assert_eq!(on_with_input(&url, "table put prices pear -", b"two\nlines\xff").exits(0), "");
        assert_eq!(on(&url, "table get prices apple").exits(0), "3.20\n");
        let done = on(&url, "table get prices pear --raw");
        assert_eq!((done.code(), &done.stdout[..]), (0, &b"two\nlines\xff"[..]), "{}", done.stderr);
        assert_eq!(on(&url, "table put prices apple 3.30").exits(0), "");
        assert_eq!(lines(&on(&url, "table keys prices").exits(0)), ["apple", "pear"]);
        assert_eq!(on(&url, "table has prices apple pear").exits(0), "true\ntrue\n");
        assert_eq!(on(&url, "table has prices apple plum").exits(1), "true\nfalse\n");
        assert_eq!(on_with_input(&url, "table has prices -", b"plum\napple\n").exits(1), "false\ntrue\n");
        assert_eq!(on(&url, "table remove prices pear plum").exits(0), "");
        assert_eq!(on(&url, "table get prices pear").exits(1), "");
        assert_eq!(on(&url, "table entries prices").exits(0), "apple\t3.30\n");
        let json: Value = serde_json::from_str(&on(&url, "--json table entries prices").exits(0)).unwrap();
        assert_eq!((&json["key"], &json["value"]), (&Value::from("apple"), &Value::from("3.30")));
        let json: Value = serde_json::from_str(&on(&url, "--json table get prices pear").exits(1)).unwrap();
        assert_eq!((json["has"].as_bool(), json["value"].is_null()), (Some(false), true));
        assert_eq!(on(&url, "drop prices").exits(0), "table\n");
        on(&url, "table keys prices").fails(3, "larder table put prices KEY VALUE");
    }
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_put() {
    let (_server, url) = server();
    on(&url, "table put prices apple 1 --existing").fails(3, "larder table put prices KEY VALUE");
    on(&url, "table put prices apple 1 --shards 0").fails(2, "1 to 1024");
    on(&url, "table put prices apple 1").exits(0);
    on(&url, "table put prices pear 1 --ttl 1m").fails(8, "ttl(true)");
    on(&url, "table put prices pear 1 --shards 2").fails(8, "1 shards");
    on(&url, "set add tags red").exits(0);
    on(&url, "table put tags a 1").fails(8, "tags");
    let error = on_with_input(&url, "table put prices pear -", &vec![b'x'; 2_000_000]);
    error.fails(2, "the limit on this store is 104");
    assert_eq!(on(&url, "table keys prices").exits(0), "apple\n");
}

#[test]
fn entries_and_keys_come_from_standard_input_and_values_go_out_in_their_order() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        on(&url, "table get prices apple").fails(3, "larder table put prices KEY VALUE");
        let entries: String = (0..3_000).map(|n| format!("k{n}\tv{n}\n")).collect();
        assert_eq!(on_with_input(&url, "table put prices -", entries.as_bytes()).exits(0), "");
        // The same key again, in one batch and in another: the last value stays.
        let again: String = (0..2_500).map(|n| format!("k{}\tw{n}\n", n % 5)).collect();
        let done = on_with_input(&url, "--json table put prices - --existing", again.as_bytes());
        assert_eq!(done.json(), json!({"name": "prices", "entries": 2_500}));
        assert_eq!(on(&url, "table get prices k0 k7 k4").exits(0), "w2495\nv7\nw2499\n");
        assert_eq!(on(&url, "table get prices k0 none k7").exits(1), "w2495\nv7\n");
        let keys: String = (5..3_000).map(|n| format!("k{n}\n")).collect();
        let values: String = (5..3_000).map(|n| format!("v{n}\n")).collect();
        assert_eq!(on_with_input(&url, "table get prices -", keys.as_bytes()).exits(0), values);
        let told = on_with_input(&url, "--json table get prices -", b"k7\nnone\n").exits(1);
        let told: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let none = json!({"key": "none", "has": false, "value": null});
        assert_eq!(told, [json!({"key": "k7", "has": true, "value": "v7"}), none]);
        // Tabs of the value are its own; an empty key and an empty value are some.
        on_with_input(&url, "table put prices -", b"tabs\ta\tb\n\tempty key\nempty value\t\n").exits(0);
        assert_eq!(on_with_input(&url, "table get prices -", b"tabs\n\nempty value").exits(0), "a\tb\nempty key\n\n");
        on(&url, "table get prices k1 k2 --raw").fails(2, "--raw prints the value of a single key");
        on(&url, "table get prices k1 -").fails(2, "stands alone");
        on(&url, "table put prices k1").fails(2, "the key has no value");
        let done = on_with_input(&url, "table put prices -", b"new\t1\nno tab here\n");
        done.fails(2, "no tab between key and value: \"no tab here\"");
        assert_eq!(on(&url, "table get prices new").exits(1), "", "nothing of its batch is put");
        on_with_input(&url, "table put lives - --ttl 1h", b"a\t1\n").exits(0);
        assert_eq!(on(&url, "table get lives a").exits(0), "1\n");
    }
}

#[test]
fn an_entry_with_a_life_is_gone_when_that_is_over() {
    let (_server, url) = server();
    on(&url, "table put sessions u7 v --ttl 2s").exits(0);
    on(&url, "table put sessions u8 v").exits(0);
    assert_eq!(on(&url, "table has sessions u8").exits(0), "true\n");
    std::thread::sleep(Duration::from_millis(3_200));
    assert_eq!(on(&url, "table get sessions u7").exits(1), "");
    assert_eq!(on(&url, "table entries sessions").exits(0), "u8\tv\n");
}

#[test]
fn what_was_evicted_is_lost_and_named() {
    let (server, url) = server();
    on(&url, "table put prices a 1").exits(0);
    on(&url, "table put prices b 2").exits(0);
    // Where `a` is: see the golden vectors.
    evict(&server, "qW-vcFrxaDTmxj");
    on(&url, "table get prices a").fails(4, "\"a\"");
    on(&url, "table has prices a").fails(4, "\"a\"");
    let done = on(&url, "table entries prices");
    assert_eq!((done.code(), &done.stdout[..]), (4, &b"b\t2\n"[..]));
    assert!(done.stderr.contains("1 of 2 entries are gone: \"a\""), "{}", done.stderr);
    on(&url, "table remove prices a").exits(0);
    assert_eq!(on(&url, "table get prices a").exits(1), "");
    assert_eq!(on(&url, "table entries prices").exits(0), "b\t2\n");
}

#[test]
fn round_trips_are_as_the_help_says() {
    let (_server, url) = server();
    let cost = |command: &str| {
        let mut words = vec!["--trace"];
        words.extend(command.split_whitespace());
        let done = finish(larder(words).env("LARDER_STORE", &url));
        let told = done.stderr.split_once("round trips: ").map(|(_, rest)| rest).unwrap_or_default();
        told.split(',').next().unwrap().parse::<u32>().unwrap_or_else(|_| panic!("{}", done.stderr))
    };
    // Made 3, the entry 2, and 2 to flag it.
    assert_eq!(cost("table put prices a 1"), 7);
    assert_eq!(cost("table put prices b 1"), 5);
    assert_eq!(cost("table put prices a 2"), 2);
    assert_eq!(cost("table get prices a"), 2);
    assert_eq!(cost("table get prices a b"), 2);
    assert_eq!(cost("table get prices a b c"), 3);
    assert_eq!(cost("table has prices a b"), 2);
    assert_eq!(cost("table get prices c"), 3);
    assert_eq!(cost("table keys prices"), 2);
    assert_eq!(cost("table entries prices"), 3);
    assert_eq!(cost("table remove prices a"), 6);
    assert_eq!(cost("table keys prices"), 2);
    // With lives: a new entry as without, and an entry that is there is looked at, replaced and listed.
    assert_eq!(cost("table put sessions a 1 --ttl 1h"), 7);
    assert_eq!(cost("table put sessions b 1 --ttl 1h"), 5);
    assert_eq!(cost("table put sessions a 2 --ttl 1h"), 6);
}
