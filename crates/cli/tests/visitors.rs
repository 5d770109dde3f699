//! Visitors through the command, on real servers.

mod common;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use common::{larder, on, on_with_input, until, wait};
use larder::StoreExt;
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A server, and a period of an hour of which some is left: no test here lasts so long.
fn server(version: Version) -> (Memcached, String) {
    while now_s() % 3_600 > 3_600 - 30 {
        std::thread::sleep(Duration::from_secs(1));
    }
    let server = Memcached::start(version, &[]);
    let url = server.url();
    (server, url)
}

#[test]
fn hits_are_counted_and_read() {
    for version in Version::ALL {
        let (_server, url) = server(version);
        let on = |line: &str| on(&url, line);
        assert_eq!(on("visitors hit site --period 1h").exits(0), "");
        assert_eq!(on("visitors hit site 4 --json").json(), json!({"name": "site", "hits": 4}));
        assert_eq!(on("visitors hit site --visitor alice --visitor bob --visitor alice").exits(0), "");
        on("visitors hit site --visitor bob").exits(0);
        assert_eq!(on("visitors get site --current").exits(0), "7\n");
        assert_eq!(on("visitors get site").exits(0), "0\n", "a window that nobody hit");
        on(&format!("visitors hit site 3 --at {}", now_s() - 3_600)).exits(0);
        on(&format!("visitors hit site --visitor carol --at {}", now_s() - 3_600)).exits(0);
        assert_eq!(on("visitors get site").exits(0), "4\n");
        assert_eq!(on("--json visitors get site").json(), json!({"name": "site", "visitors": 4, "of": "last"}));
        assert_eq!(on(&format!("visitors get site --at {}", now_s())).exits(0), "7\n");
        assert_eq!(on(&format!("visitors get site --at {}", now_s() - 3_600)).exits(0), "4\n");
        let at = on(&format!("--json visitors get site --at {}", now_s() - 7_200)).json();
        assert_eq!(at, json!({"name": "site", "visitors": 0, "of": "at"}));
        on(&format!("visitors get site --at {}", now_s() - 4 * 3_600)).fails(2, "7200000 ms");
        on("visitors get site --at noon").fails(2, "2026-01-31T12:00:00Z");
        on(&format!("visitors get site --current --at {}", now_s())).fails(2, "cannot be used with");
        let interpolated = on("visitors get site --interpolated").exits(0);
        assert!((0..=4).contains(&interpolated.trim_end().parse::<u64>().unwrap()), "{interpolated}");
    }
}

#[test]
fn visitors_come_from_standard_input() {
    let (_server, url) = server(Version::New);
    let ids: String = (0..3_000).map(|n| format!("{}\n", n % 1_700)).collect();
    on_with_input(&url, "visitors hit site --period 1h --visitor -", ids.as_bytes()).exits(0);
    assert_eq!(on(&url, "visitors get site --current").exits(0), "1700\n");
    on(&url, "visitors hit site --visitor - --visitor a").fails(2, "stands alone");
}

#[test]
fn what_is_wrong_is_said() {
    let (_server, url) = server(Version::New);
    for line in ["visitors get n", "visitors watch n", "visitors hit n --existing"] {
        on(&url, line).fails(3, "absent (never created, or lost)");
        assert!(on(&url, line).stderr.contains("`larder visitors hit n` creates them"));
    }
    on(&url, "visitors hit n --period 1h").exits(0);
    on(&url, "visitors hit n --period 2h").fails(8, "3600s");
    on(&url, "visitors hit m --period 40d").fails(2, "30 days");
    on(&url, "visitors hit n 2147483649").fails(2, "2147483648");
    on(&url, &format!("visitors hit n --at {}", now_s() - 4 * 3_600)).fails(2, "7200000 ms");
    on(&url, &format!("visitors hit n --at {}", now_s() + 400)).fails(2, "300000 ms");
    on(&url, "set add n a").fails(8, "not a set");
    assert_eq!(on(&url, "visitors get n --current").exits(0), "1\n");
    assert_eq!(on(&url, "drop n").exits(0), "visitors\n");
}

#[test]
fn a_lost_window_is_lost_and_no_zero() {
    let (_server, url) = server(Version::New);
    on(&url, "visitors hit site --period 1h").exits(0);
    let dropped = on(&url, "visitors hit site 5");
    dropped.exits(0);
    evict_windows(&url);
    let lost = on(&url, "visitors get site --current");
    lost.fails(4, "is gone");
    assert!(lost.stderr.contains("the window after it is counted as ever"), "{}", lost.stderr);
    assert_eq!(on(&url, "visitors get site").exits(0), "0\n");
    let watched = on(&url, "visitors watch site --count 1").exits(0);
    assert!(watched.ends_with(" 0 0 lost\n"), "{watched}");
    assert!(on(&url, "--json visitors watch site --count 1").json()["current"].is_null());
}

/// Deletes the window that is being filled, as a server does that evicts.
fn evict_windows(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = larder::open(url).await.unwrap();
        let name = larder::Name::new("site").unwrap();
        let manifest = larder::find(&store, larder::Ctx::default(), &name).await.unwrap().unwrap();
        let key = format!("L.site.v.{:016x}.w{}", manifest.generation, now_s() / 3_600);
        assert!(store.delete(larder::Key::new(key).unwrap()).await.unwrap());
    });
}

#[test]
fn watching_prints_a_line_each_time_until_it_is_interrupted() {
    let (_server, url) = server(Version::New);
    on(&url, "visitors hit site 7 --period 1h").exits(0);
    let before = now_s();
    let watched = on(&url, "visitors watch site --every 20ms --count 3").exits(0);
    let lines: Vec<Vec<u64>> =
        watched.lines().map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect()).collect();
    assert_eq!(lines.len(), 3);
    for line in lines {
        assert!(line[0] >= before && line[1..] == [0, 0, 7], "{line:?}");
    }
    let object = on(&url, "--json visitors watch site --count 1").json();
    assert_eq!((&object["name"], &object["current"], &object["last"]), (&json!("site"), &json!(7), &json!(0)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures");
    let mut command = larder(["visitors", "watch", "site", "--every", "10ms"]);
    let file = std::fs::File::create(&path).unwrap();
    let child = command.env("LARDER_STORE", &url).stdout(file).spawn().unwrap();
    until("three lines", || std::fs::read_to_string(&path).unwrap().lines().count() >= 3);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait(child).exits(128 + Signal::INT.as_raw());
}

#[test]
fn watching_goes_on_when_the_server_does_not_answer_for_a_while() {
    let (server, url) = server(Version::New);
    on(&url, "visitors hit site 7 --period 1h").exits(0);
    let folder = tempfile::tempdir().unwrap();
    let [figures, said] = ["figures", "said"].map(|name| folder.path().join(name));
    let lines = || std::fs::read_to_string(&figures).unwrap().lines().count();
    let mut command = larder(["visitors", "watch", "site", "--every", "10ms", "--timeout", "300ms"]);
    let [out, err] = [&figures, &said].map(|path| std::fs::File::create(path).unwrap());
    let child = command.env("LARDER_STORE", &url).stdout(out).stderr(err).spawn().unwrap();
    until("a line", || lines() >= 1);
    server.stop();
    until("a warning", || std::fs::read_to_string(&said).unwrap().contains("; trying again\n"));
    let before = lines();
    server.cont();
    until("lines again", || lines() > before + 2);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    wait(child).exits(128 + Signal::TERM.as_raw());
    // What is no matter of time ends it.
    on(&url, "drop site").exits(0);
    on(&url, "visitors watch site").fails(3, "absent");
}

/// `script` of util-linux gives it a terminal.
#[test]
fn at_a_terminal_it_is_a_live_line_with_a_sparkline() {
    let (_server, url) = server(Version::New);
    on(&url, "visitors hit site 7 --period 1h").exits(0);
    let line = format!("{} visitors watch site --every 20ms --count 3", env!("CARGO_BIN_EXE_larder"));
    let mut command = std::process::Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("LARDER_STORE", &url);
    command
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let shown = wait(command.spawn().expect("script, of util-linux")).exits(0);
    assert!(shown.contains("\r\x1b[2K\"site\" ▁▁▁ 0 (last 0, so far 7)"), "{shown:?}");
    assert!(shown.ends_with("\r\n"), "{shown:?}");
}

#[test]
fn round_trips_are_as_the_help_says() {
    let (_server, url) = server(Version::New);
    let cost = |line: &str| on(&url, &format!("--json --trace {line}")).round_trips();
    assert_eq!(cost("visitors hit site --period 1h"), 3 + 2);
    assert_eq!(cost("visitors hit site"), 1 + 1);
    assert_eq!(cost("visitors get site"), 1 + 1);
    assert_eq!(cost("visitors get site --interpolated"), 1 + 1);
    assert_eq!(cost("visitors watch site --count 1"), 1 + 3);
    assert_eq!(cost(&format!("visitors get site --at {}", now_s())), 1 + 1);
    assert_eq!(cost("visitors hit site --visitor ann"), 1 + 2);
    assert_eq!(cost("visitors hit site --visitor ann"), 1 + 1);
    assert_eq!(cost("visitors hit few --shards 1 --visitor ann"), 3 + 2);
    assert_eq!(cost("visitors hit few --visitor bob"), 1 + 1);
}
