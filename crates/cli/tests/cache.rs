//! `larder cache` on real servers: one command at a time, over all processes.

mod common;

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use common::{Done, finish, larder, on, until, wait};
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

fn server() -> (Memcached, String) {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    (server, url)
}

/// `larder cache get pages KEY OPTIONS --else sh -c SCRIPT`.
fn get(url: &str, key: &str, options: &str, script: &str) -> Done {
    finish(&mut getting(url, key, options, script))
}

fn getting(url: &str, key: &str, options: &str, script: &str) -> std::process::Command {
    let mut command = larder(["cache", "get", "pages", key]);
    command.args(options.split_whitespace()).args(["--else", "sh", "-c", script]).env("LARDER_STORE", url);
    command
}

#[test]
fn the_commands_output_is_the_value_byte_by_byte() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        let made = get(&url, "k", "--ttl 5m", "printf 'a\\377\\n\\n'; printf \"$LARDER_CACHE_NAME $LARDER_CACHE_KEY\"");
        made.exits(0);
        assert_eq!(made.stdout, b"a\xff\n\npages k");
        let hit = get(&url, "k", "--ttl 5m", "echo made anew");
        assert_eq!((hit.code(), hit.stdout), (0, made.stdout));
        assert_eq!(get(&url, "", "--ttl 5m", "true").exits(0), "");
        assert_eq!(get(&url, "", "--ttl 5m", "echo no").exits(0), "", "an empty value is a value");
        let json = get(&url, "j", "--json --ttl 5m", "printf v").json();
        assert_eq!(json, json!({"name": "pages", "key": "j", "value": "v", "source": "rebuilt", "kept": true}));
        let json = get(&url, "j", "--json --ttl 5m", "printf w").json();
        assert_eq!(json, json!({"name": "pages", "key": "j", "value": "v", "source": "fresh", "kept": true}));
    }
}

#[test]
fn round_trips_are_as_the_help_says() {
    let (_server, url) = server();
    for (key, round_trips) in [("k", 5), ("k", 2), ("l", 4)] {
        let done = get(&url, key, "--trace --ttl 5m", "printf v");
        done.exits(0);
        assert!(done.stderr.contains(&format!("round trips: {round_trips},")), "{key}: {}", done.stderr);
    }
    let done = on(&url, "cache invalidate pages k --trace");
    assert!(done.stderr.contains("round trips: 2,"), "{}", done.stderr);
}

#[test]
fn a_command_that_fails_caches_nothing_and_its_exit_code_is_returned() {
    let (_server, url) = server();
    let failed = get(&url, "k", "--ttl 5m --lease 1h", "echo out; echo err >&2; exit 42");
    assert_eq!((failed.exits(42), failed.stderr.as_str()), ("out\n".to_owned(), "err\n"));
    assert_eq!(get(&url, "k", "--ttl 5m --lease 1h", "kill -9 $$").code(), 137);
    let none = ["cache", "get", "pages", "k", "--ttl", "5m", "--lease", "1h", "--else", "/no/such/command"];
    finish(larder(none).env("LARDER_STORE", &url)).fails(127, "/no/such/command");
    assert_eq!(get(&url, "k", "--ttl 5m --wait 0", "printf v").exits(0), "v", "the lease was given up each time");
}

#[test]
fn of_eight_processes_one_runs_its_command_and_all_print_its_output() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo run >> {}; sleep 0.3; echo $$", folder.path().join("runs").display());
    let processes: Vec<_> = (0..8).map(|_| getting(&url, "k", "--ttl 5m", &script).spawn().unwrap()).collect();
    let outputs: Vec<String> = processes.into_iter().map(|process| wait(process).exits(0)).collect();
    assert!(outputs.iter().all(|output| *output == outputs[0] && !output.is_empty()), "{outputs:?}");
    assert_eq!(fs::read_to_string(folder.path().join("runs")).unwrap(), "run\n");
}

#[test]
fn the_stale_value_is_served_while_a_command_runs_and_waiting_ends() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
    let slow = format!("touch {}; while ! test -e {}; do sleep 0.02; done; printf new", begun.display(), go.display());
    get(&url, "k", "--ttl 1s --stale 10m", "printf old").exits(0);
    // By the server's clock it is stale after two ticks at the latest.
    std::thread::sleep(Duration::from_millis(2_100));
    let running = getting(&url, "k", "--ttl 10m", &slow).spawn().unwrap();
    until("the command begins", || begun.exists());
    let stale = get(&url, "k", "--json --ttl 1s", "printf mine").json();
    assert_eq!((&stale["value"], &stale["source"]), (&json!("old"), &json!("stale")));
    // Of a value that was invalidated there is nothing to serve, and the next one need not wait for the old command.
    on(&url, "cache invalidate pages k").exits(0);
    assert_eq!(get(&url, "k", "--ttl 10m --wait 0", "printf newer").exits(0), "newer");
    fs::write(&go, "").unwrap();
    let late = wait(running);
    assert_eq!(late.exits(0), "new");
    assert!(late.stderr.contains("warning: the value was not cached"), "{}", late.stderr);
    assert_eq!(get(&url, "k", "--ttl 10m", "printf mine").exits(0), "newer");
}

#[test]
fn who_waits_in_vain_is_told_and_a_signal_gives_the_lease_up() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun");
    let slow = format!("touch {}; exec sleep 60", begun.display());
    let running = getting(&url, "k", "--ttl 5m --lease 1h", &slow).spawn().unwrap();
    until("the command begins", || begun.exists());
    let waited = get(&url, "k", "--ttl 5m --wait 300ms", "printf v");
    waited.fails(6, "somebody else's rebuild");
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert_eq!(wait(running).code(), 143);
    assert_eq!(get(&url, "k", "--ttl 5m --wait 0", "printf v").exits(0), "v");
}

#[test]
fn a_signal_ends_the_wait_for_what_the_command_left_behind() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun");
    for (key, tail) in [("a", "exit 0"), ("b", "exec sleep 60")] {
        // What is left behind is in a session of its own, and hears of no signal.
        let script = format!("setsid sleep 45 2>/dev/null & printf part; echo $! > {}; {tail}", begun.display());
        let running = getting(&url, key, "--ttl 5m --lease 1h", &script).spawn().unwrap();
        let left = common::number_in(&begun);
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
        let done = wait(running);
        assert_eq!((done.code(), &done.stdout[..]), (143, &b"part"[..]), "{}", done.stderr);
        assert!(told.elapsed() < Duration::from_secs(20), "{:?}", told.elapsed());
        assert_eq!(get(&url, key, "--ttl 5m --wait 0", "printf v").exits(0), "v");
        _ = kill_process(Pid::from_raw(left).unwrap(), Signal::KILL);
        fs::remove_file(&begun).unwrap();
    }
}

/// Of a value that a pipe does not hold, and that nobody reads on.
#[test]
fn a_signal_ends_the_printing_to_a_slow_reader() {
    let (_server, url) = server();
    let small = "head -c 500000 /dev/zero";
    get(&url, "hit", "--ttl 5m", small).exits(0);
    for (key, options, script) in [
        ("hit", "", small),
        ("hit", "--json", small),
        ("miss", "", small),
        ("fails", "", "head -c 500000 /dev/zero; exit 3"),
        ("over", "", "head -c 5000000 /dev/zero"),
        ("endless", "", "cat /dev/zero"),
    ] {
        let mut running = getting(&url, key, &format!("--ttl 5m --lease 1h {options}"), script).spawn().unwrap();
        let mut stdout = running.stdout.take().unwrap();
        // It has begun to print.
        stdout.read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
        let done = wait(running);
        assert_eq!(done.code(), 143, "{key}: {}", done.stderr);
        assert!(told.elapsed() < Duration::from_secs(20), "{key}: {:?}", told.elapsed());
        drop(stdout);
    }
    assert_eq!(get(&url, "endless", "--ttl 5m --wait 0", "printf v").exits(0), "v", "the lease was given up");
}

#[test]
fn output_over_the_limit_is_passed_on_and_not_kept_in_memory() {
    let (_server, url) = server();
    let script = "head -c 200000000 /dev/zero";
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 600000; exec \"$@\" | wc -c", "sh", env!("CARGO_BIN_EXE_larder")]);
    limited.args(["cache", "get", "pages", "k", "--ttl", "5m", "--else", "sh", "-c", script]).env("LARDER_STORE", &url);
    let done = finish(limited.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()));
    assert_eq!(done.text().trim(), "200000000", "{}", done.stderr);
    assert!(done.stderr.contains("warning: the value was not cached: a value has 200000000 bytes"), "{}", done.stderr);
    get(&url, "k", "--json --ttl 5m", script).fails(2, "200000000 bytes");
    assert_eq!(get(&url, "k", "--ttl 5m --wait 0", "printf v").exits(0), "v", "the lease was given up");
}

#[test]
fn what_is_wrong_is_named() {
    let (_server, url) = server();
    on(&url, "cache invalidate pages k").fails(3, "absent");
    get(&url, "k", "--ttl 5m --existing", "echo never").fails(3, "`larder cache get` creates it");
    on(&url, "inspect pages").fails(3, "absent");
    get(&url, "made", "--ttl 5m", "true").exits(0);
    assert_eq!(get(&url, "new", "--ttl 5m --existing", "echo made").exits(0), "made\n");
    get(&url, "k", "--ttl 0", "true").fails(2, "longer than 0");
    on(&url, "cache get pages k --ttl 5m").fails(2, "--else");
    get(&url, &"x".repeat(8_193), "--ttl 5m", "true").fails(2, "8192");
    on(&url, "set add pages2 a").exits(0);
    on(&url, "cache get pages2 k --ttl 5m --else true").fails(8, "holds a set, not a cache");
    // What follows --else is the command's.
    assert_eq!(on(&url, "cache get pages k --ttl 5m --else echo --json --ttl").exits(0), "--json --ttl\n");
}
