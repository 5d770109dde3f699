//! Arrays through the command, on real servers.

mod common;

use std::process::{Command, Stdio};

use common::{finish, larder, on, on_with_input};
use larder_testkit::servers::{Memcached, Version};
use serde_json::json;

#[test]
fn elements_are_pushed_changed_removed_and_read_in_order() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let on = |line: &str| on(&server.url(), line);
        assert_eq!(on("array push jobs sweep cook sweep").exits(0), "");
        assert_eq!(on("array push jobs -- -v").exits(0), "");
        assert_eq!(on("array get jobs").exits(0), "sweep\ncook\nsweep\n-v\n");
        assert_eq!(on("array change jobs --add eat sleep --delete sweep --delete none").exits(0), "");
        assert_eq!(on("array get jobs").exits(0), "cook\n-v\neat\nsleep\n");
        assert_eq!(on("array change jobs --add=-v --delete=-v").exits(0), "");
        assert_eq!(on("array remove jobs cook none").exits(0), "");
        assert_eq!(on("--json array get jobs").json(), json!(["eat", "sleep", "-v"]));
        assert!(on("array stat jobs").exits(0).starts_with("elements 3\nbytes "));
        assert_eq!(on("--json array compact jobs").json()["stale_bytes"], 0);
        on("array remove jobs eat sleep -- -v").exits(0);
        assert_eq!(on("array get jobs").exits(0), "", "empty, and known to be");
        assert_eq!(on("drop jobs --json").json(), json!({"name": "jobs", "dropped": "array"}));
    }
}

#[test]
fn an_array_of_several_keys_is_changed_at_once() {
    let server = Memcached::start(Version::New, &[]);
    let on = |line: &str| on(&server.url(), line);
    on("array change hosts --add a b c d e f --shards 5").exits(0);
    let changed = on("--json --trace array change hosts --add g h i j k l --delete a b c d e f");
    changed.exits(0);
    assert_eq!(changed.round_trips(), 1 + 3, "opening, changing");
    let mut lines = on("array get hosts").sorted_lines();
    lines.sort();
    assert_eq!(lines, ["g", "h", "i", "j", "k", "l"].map(|line| line.as_bytes().to_vec()));
    on("array push hosts a --shards 4").fails(8, "5 shards, not 4");
    on("array push hosts a --shards 0").fails(2, "1 to 1024 shards");
}

#[test]
fn standard_input_keeps_its_order() {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    let lines: String = (0..5_000).map(|number| format!("line-{}\n", number % 3_000)).collect();
    on_with_input(&url, "array push lines -", lines.as_bytes()).exits(0);
    assert_eq!(on(&url, "array get lines").exits(0), lines);
    let odd: String = (0..1_500).map(|number| format!("line-{}\n", 2 * number + 1)).collect();
    on_with_input(&url, "array change lines --add end --delete -", odd.as_bytes()).exits(0);
    let left: String =
        (0..5_000).map(|n| n % 3_000).filter(|n| n % 2 == 0).map(|n| format!("line-{n}\n")).collect::<String>()
            + "end\n";
    assert_eq!(on(&url, "array get lines").exits(0), left);
    on_with_input(&url, "array change lines --add - --delete end", b"\xff\0\n\nlast").exits(0);
    on_with_input(&url, "array remove lines -", left.as_bytes()).exits(0);
    assert_eq!(on(&url, "array get lines").stdout, b"\xff\0\n\nlast\n");
}

#[test]
fn what_is_wrong_is_said() {
    let server = Memcached::start(Version::New, &[]);
    let on = |line: &str| on(&server.url(), line);
    let absent = ["get n", "stat n", "compact n", "remove n a", "push n a --existing", "change n --add a --existing"];
    for line in absent {
        on(&format!("array {line}")).fails(3, "absent (never created, or lost)");
        on(&format!("array {line}")).fails(3, "larder array push n ELEMENT");
    }
    on("set add s a").exits(0);
    on("array push s a").fails(8, "holds a set, not an array");
    on_with_input(&server.url(), "array push n - a", b"").fails(2, "stands alone");
    on_with_input(&server.url(), "array change n --add - --delete -", b"").fails(2, "not for both");
    on(&format!("array push n {}", "x".repeat(100))).exits(0);
}

#[test]
fn standard_input_without_an_end_is_refused_where_all_of_it_is_one_change_or_one_value() {
    let server = Memcached::start(Version::New, &[]);
    for (line, said) in [
        ("array change jobs --add -", "and no change of 1 shards can hold them"),
        ("table put sessions key -", "the limit on this store is"),
    ] {
        let mut endless = Command::new("yes").stdout(Stdio::piped()).spawn().unwrap();
        let mut command = larder(line.split(' '));
        let stdin = endless.stdout.take().unwrap();
        let done = finish(command.env("LARDER_STORE", server.url()).stdin(stdin));
        endless.kill().unwrap();
        endless.wait().unwrap();
        done.fails(2, said);
    }
    on(&server.url(), "array get jobs").exits(0);
    on(&server.url(), "table get sessions key").exits(1);
}
