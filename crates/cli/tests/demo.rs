//! The demo: right where everything is right, and able to find out what is not.

mod common;

use std::time::{Duration, Instant};

use common::{Done, finish, larder, on, until, wait};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const STRUCTURES: [&str; 17] = [
    "lock",
    "exact counter",
    "fast counter",
    "set",
    "array",
    "cache",
    "visitors",
    "unique visitors",
    "log",
    "packed records",
    "packed table",
    "table",
    "queue",
    "stack",
    "sharded hash",
    "sharded set",
    "sorted set",
];

fn rows(done: &Done) -> Vec<Value> {
    done.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_total_is_right_in_memory() {
    let done = finish(&mut larder(["demo", "--seconds", "0.3"]));
    let table = done.exits(0);
    for structure in STRUCTURES {
        let row = table.lines().find(|line| line.starts_with(structure)).unwrap_or_else(|| panic!("{table}"));
        assert!(row.ends_with('✓'), "{row}");
    }
    assert!(!table.contains('\x1b'), "colours are for terminals only");
    assert_eq!(done.stderr, "", "so are bars");
}

#[test]
fn the_figures_come_as_json_too() {
    let done = finish(&mut larder(["--json", "demo", "--ops", "400", "--workers", "3"]));
    done.exits(0);
    let rows = rows(&done);
    let names: Vec<&str> = rows.iter().map(|row| row["structure"].as_str().unwrap()).collect();
    assert_eq!(names, STRUCTURES);
    for row in rows {
        assert_eq!((row["operations"].as_u64(), row["ok"].as_bool()), (Some(400), Some(true)), "{row}");
        assert!(row["off"].is_null() && row["operations_per_second"].as_f64() > Some(0.0), "{row}");
        let round_trips = row["round_trips_per_operation"].as_f64().unwrap();
        assert!(round_trips > 0.0 && row["bytes_per_element"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn a_total_that_is_off_is_found() {
    for (sabotaged, structure) in [
        "lock",
        "counter",
        "fast-counter",
        "set",
        "array",
        "cache",
        "visitors",
        "unique",
        "log",
        "records",
        "lookup",
        "table",
        "queue",
        "stack",
        "hash",
        "sharded-set",
        "top",
    ]
    .into_iter()
    .zip(STRUCTURES)
    {
        let done = finish(&mut larder(["--json", "demo", "--ops", "100", "--sabotage", sabotaged]));
        done.exits(1);
        for row in rows(&done) {
            let is_right = row["structure"] != structure;
            assert_eq!((row["ok"].as_bool(), row["off"].is_null()), (Some(is_right), is_right), "{row}");
        }
    }
    let table = finish(&mut larder(["demo", "--ops", "100", "--sabotage", "set"])).exits(1);
    assert!(table.contains("✗ a worker finds 1 members too many, and misses 0"), "{table}");
}

#[test]
fn on_memcached_it_is_right_and_leaves_nothing_behind() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let before = server.stat("curr_items");
        let done = on(&server.url(), "--json demo --ops 300 --workers 4");
        done.exits(0);
        assert_eq!(rows(&done).len(), STRUCTURES.len());
        // A fleet's fingerprint may stay on the server; nothing of the structures does.
        assert!(server.stat("curr_items") <= before + 1, "{}", server.stats(""));
    }
}

#[test]
fn interrupted_it_removes_what_it_made() {
    let server = Memcached::start(Version::New, &[]);
    // Several times: whether a lock is given back while it is dropped is a matter of luck.
    for round in 0..6 {
        let before = server.stat("cmd_set");
        let mut command = larder(["demo", "--seconds", "60", "--workers", "16"]);
        let child = command.env("LARDER_STORE", server.url()).spawn().unwrap();
        until("the first locks", || server.stat("cmd_set") > before + 50);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let done = wait(child);
        done.exits(128 + Signal::INT.as_raw());
        assert_eq!((server.stat("curr_items"), done.stderr.as_str()), (0, ""), "in round {round}");
    }
}

#[test]
fn a_server_that_falls_silent_is_told_soon() {
    let server = Memcached::start(Version::New, &[]);
    let mut command = larder(["demo", "--seconds", "60", "--timeout", "1s"]);
    let child = command.env("LARDER_STORE", server.url()).spawn().unwrap();
    until("the first lock", || server.stat("cmd_set") > 20);
    server.stop();
    let start = Instant::now();
    wait(child).fails(6, &server.addr().to_string());
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_store_that_can_carry_only_some_of_it_is_told_so_and_is_not_wrong() {
    let server = ClassicFake::start();
    let done = on(&format!("memcached://{}", server.addr()), "--json demo --ops 100");
    done.exits(0);
    for row in rows(&done) {
        let carries = ["fast counter", "set", "array", "visitors", "log"].contains(&row["structure"].as_str().unwrap());
        assert_eq!((row["ok"].as_bool(), row["unsupported"].is_null()), (Some(carries), carries), "{row}");
        assert!(row["off"].is_null(), "{row}");
    }
}
