//! `larder queue …` and `larder stack …` on real servers: items go through pipes, commands and crashes.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use common::{Done, is_alive, larder, number_in, on, on_with_input, until, wait};
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};

fn server() -> (Memcached, String) {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    (server, url)
}

/// `queue work jobs OPTIONS -- sh -c SCRIPT`, with `$FILE` a file of its own.
fn start(url: &str, options: &str, script: &str, file: &Path) -> Child {
    start_on(url, "queue", options, script, file)
}

fn start_on(url: &str, kind: &str, options: &str, script: &str, file: &Path) -> Child {
    let words = [kind, "work", "jobs"].into_iter().chain(options.split_whitespace()).chain(["--", "sh", "-c", script]);
    larder(words).env("LARDER_STORE", url).env("FILE", file).spawn().unwrap()
}

fn work(url: &str, options: &str, script: &str) -> Done {
    wait(start(url, options, script, Path::new("/dev/null")))
}

#[test]
fn items_come_out_at_the_right_end_and_nothing_is_exit_code_1() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        assert_eq!(on(&url, "queue push jobs a b").exits(0), "");
        assert_eq!(on(&url, "stack push undo a b").exits(0), "");
        assert_eq!(on(&url, "queue len jobs").exits(0), "2\n");
        for (line, expected) in [("queue pop jobs", "a\n"), ("stack pop undo", "b\n"), ("queue pop jobs", "b\n")] {
            assert_eq!(on(&url, line).exits(0), expected);
        }
        assert_eq!(on(&url, "queue pop jobs").exits(1), "");
        assert_eq!(on(&url, "--json queue claim jobs").exits(1), "{\"item\":null}\n");
        assert_eq!(on(&url, "--json stack pop undo").exits(0), "{\"item\":\"a\"}\n");
        on(&url, "queue len none").fails(3, "`larder queue push none ITEM` creates it");
        on(&url, "queue push none x --existing").fails(3, "absent");
        on(&url, "stack len jobs").fails(8, "holds a queue, not a stack");
    }
}

#[test]
fn ten_thousand_lines_of_standard_input_keep_their_order() {
    let (_server, url) = server();
    let lines: String = (0..10_000).map(|n| format!("line {n:05}\n")).collect();
    on_with_input(&url, "queue push jobs -", lines.as_bytes()).exits(0);
    assert_eq!(on(&url, "queue len jobs").exits(0), "10000\n");
    for n in 0..3 {
        assert_eq!(on(&url, "queue pop jobs").exits(0), format!("line {n:05}\n"));
    }
    let stat = on(&url, "--json queue stat jobs").json();
    assert_eq!((stat["ready"].as_u64(), stat["acknowledged"].as_u64()), (Some(9_997), Some(3)));
    // The next two through the command of a worker: one is given up, and of the other the worker is told to stop, which the command is not to hear of before it has ended.
    let done = work(
        &url,
        "--idle-exit 0s --jobs 1 --attempts-max 1 --poll 10ms",
        "trap '' TERM; cat > /dev/null; test \"$LARDER_ITEM\" = 'line 00003' && exit 3; kill $PPID",
    );
    assert_eq!(done.code(), 128 + 15);
    assert!(
        done.stderr.contains("\"line 00003\" exited with 3, at attempt 1: the item is given up"),
        "{}",
        done.stderr
    );
    assert_eq!(on(&url, "queue len jobs").exits(0), "9995\n");
}

#[test]
fn a_claim_is_acknowledged_given_back_or_renewed_by_its_id() {
    for kind in ["queue", "stack"] {
        let (_server, url) = server();
        let json = |line: &str| on(&url, &format!("--json {kind} {line}")).json();
        let on = |line: &str| on(&url, &format!("{kind} {line}"));
        on("push jobs a").exits(0);
        let printed = on("claim jobs").exits(0);
        let (id, item) = printed.split_once('\t').unwrap();
        assert_eq!((id.len(), item), (16, "a\n"));
        on("claim jobs").exits(1);
        on(&format!("renew jobs {id} --lease 1m")).exits(0);
        on(&format!("release jobs {id}")).exits(0);
        let again = json("claim jobs");
        assert_eq!((again["item"].as_str(), again["attempts"].as_u64()), (Some("a"), Some(2)));
        let again = again["id"].as_str().unwrap().to_owned();
        on(&format!("ack jobs {id}")).fails(5, "nothing is claimed as");
        on(&format!("ack jobs {again}")).exits(0);
        on(&format!("renew jobs {again}")).fails(5, "has run out, or it was acknowledged");
        on("ack jobs zero").fails(2, "16 hex digits");
        assert_eq!(on("len jobs").exits(0), "0\n");
        let stat = json("stat jobs");
        assert_eq!(
            (stat["ready"].as_u64(), stat["claimed"].as_u64(), stat["acknowledged"].as_u64()),
            (Some(0), Some(0), Some(1))
        );
    }
}

#[test]
fn verbs_cost_what_their_help_says() {
    let (_server, url) = server();
    let cost = |line: &str, code: i32| {
        let done = on(&url, &format!("--json --trace {line}"));
        done.exits(code);
        done.round_trips()
    };
    let id = |line: &str| on(&url, line).exits(0).split_once('\t').unwrap().0.to_owned();
    assert_eq!(cost("queue push jobs a b c", 0), 5);
    assert_eq!(cost("queue push jobs d", 0), 3);
    assert_eq!(cost("queue pop jobs", 0), 4);
    assert_eq!(cost("queue claim jobs", 0), 4);
    assert_eq!(cost("queue len jobs", 0), 4);
    assert_eq!(cost("queue pop jobs", 0), 4);
    assert_eq!(cost("queue pop jobs", 0), 4);
    assert_eq!(cost("queue pop jobs", 1), 3);
    for kind in ["queue", "stack"] {
        assert_eq!(cost(&format!("{kind} push line-{kind} a b c"), 0), 5);
        let of = |verb: &str| format!("{kind} {verb} line-{kind}");
        let claimed = id(&of("claim"));
        assert_eq!(cost(&format!("{} {claimed}", of("renew")), 0), 3);
        assert_eq!(cost(&format!("{} {claimed}", of("release")), 0), 3);
        let claimed = id(&of("claim"));
        assert_eq!(cost(&format!("{} {claimed}", of("ack")), 0), 3);
        assert_eq!(cost(&of("stat"), 0), 4);
        assert_eq!(cost(&of("len"), 0), 4);
        assert_eq!(cost(&of("pop"), 0), 4);
        assert_eq!(cost(&of("claim"), 0), 4);
        assert_eq!(cost(&of("claim"), 1), 3);
    }
}

#[test]
fn a_command_gets_the_item_and_its_exit_code_decides() {
    let (_server, url) = server();
    on(&url, "queue push jobs first second").exits(0);
    let script = "echo $(cat) = $LARDER_ITEM at $LARDER_ATTEMPT of $LARDER_QUEUE_NAME";
    assert_eq!(work(&url, "--once", script).exits(0), "first = first at 1 of jobs\n");
    let failed = work(&url, "--once", "exit 9");
    failed.exits(9);
    assert!(failed.stderr.contains("exited with 9, at attempt 1: the item is given back"), "{}", failed.stderr);
    assert_eq!(work(&url, "--once", script).exits(0), "second = second at 2 of jobs\n");
    work(&url, "--once", script).exits(1);
    work(&url, "--idle-exit 0s", script).exits(0);
    on(&url, "queue push jobs bad").exits(0);
    let given_up = work(&url, "--idle-exit 0s --poll 1ms --attempts-max 3", "exit 4");
    given_up.exits(0);
    assert!(given_up.stderr.contains("at attempt 3: the item is given up"), "{}", given_up.stderr);
    assert_eq!(on(&url, "queue len jobs").exits(0), "0\n");
    on(&url, "queue push jobs left").exits(0);
    larder_not_found(&url);
    assert_eq!(on(&url, "queue pop jobs").exits(0), "left\n");
}

#[test]
fn a_stack_gives_a_command_its_newest_item_and_takes_back_what_failed() {
    let (_server, url) = server();
    let work = |options: &str, script: &str| wait(start_on(&url, "stack", options, script, Path::new("/dev/null")));
    on(&url, "stack push jobs first second").exits(0);
    let script = "echo $(cat) = $LARDER_ITEM at $LARDER_ATTEMPT of $LARDER_QUEUE_NAME";
    work("--once", "exit 9").exits(9);
    assert_eq!(on(&url, "--json stack stat jobs").json()["ready"], 2);
    assert_eq!(work("--once", script).exits(0), "second = second at 2 of jobs\n");
    assert_eq!(work("--idle-exit 0s", script).exits(0), "first = first at 1 of jobs\n");
    assert_eq!(on(&url, "stack len jobs").exits(0), "0\n");
    work("--once", script).exits(1);
}

/// The item of a command that cannot be run is given back at once.
fn larder_not_found(url: &str) {
    let done = on(url, "queue work jobs --once -- /nowhere/to/be/found");
    done.fails(127, "/nowhere/to/be/found");
}

#[test]
fn a_taking_that_waits_gets_what_comes_and_says_so_if_nothing_does() {
    let (_server, url) = server();
    on(&url, "queue push jobs first").exits(0);
    assert_eq!(on(&url, "queue pop jobs --wait 1m").exits(0), "first\n");
    let began = Instant::now();
    assert_eq!(on(&url, "queue pop jobs --wait 500ms").exits(1), "");
    assert!(began.elapsed() >= Duration::from_millis(500), "{:?}", began.elapsed());
    let waiting = ["queue", "claim", "jobs", "--wait", "1m"];
    let waiting = larder(waiting).env("LARDER_STORE", &url).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    on(&url, "queue push jobs second").exits(0);
    let claimed = wait(waiting).exits(0);
    assert!(claimed.ends_with("\tsecond\n"), "{claimed}");
    on(&url, "queue pop jobs --wait soon").exits(2);
}

#[test]
fn several_commands_run_at_once() {
    let (_server, url) = server();
    on(&url, "queue push jobs 1 2 3 4 5 6 7 8").exits(0);
    let start = Instant::now();
    let done = work(&url, "--jobs 8 --idle-exit 0s --poll 10ms", "sleep 1; echo $LARDER_ITEM");
    done.exits(0);
    assert_eq!(done.sorted_lines().concat(), b"12345678");
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert_eq!(on(&url, "queue len jobs").exits(0), "0\n");
}

#[test]
fn the_item_of_a_worker_that_was_killed_comes_back_after_the_lease_and_not_before() {
    let (_server, url) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    on(&url, "queue push jobs job").exits(0);
    let began = Instant::now();
    let mut worker = start(&url, "--lease 2s", "echo $$ > $FILE; exec sleep 1000", &file);
    let pid = number_in(&file);
    worker.kill().unwrap();
    worker.wait().unwrap();
    on(&url, "queue claim jobs").exits(1);
    let mut again = String::new();
    until("the item to come back", || {
        let done = on(&url, "--json queue claim jobs");
        again = done.text();
        done.code() == 0
    });
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(again.contains("\"attempts\":2") && again.contains("\"job\""), "{again}");
    _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
}

#[test]
fn an_item_that_was_claimed_and_not_acknowledged_comes_back_after_its_lease_and_not_before() {
    let (_server, url) = server();
    for kind in ["queue", "stack"] {
        let on = |line: &str| on(&url, line);
        on(&format!("{kind} push {kind}-jobs job")).exits(0);
        let began = Instant::now();
        let claimed = on(&format!("{kind} claim {kind}-jobs --lease 2s")).exits(0);
        let (first, _) = claimed.split_once('\t').unwrap();
        on(&format!("{kind} claim {kind}-jobs")).exits(1);
        assert_eq!(on(&format!("{kind} len {kind}-jobs")).exits(0), "1\n");
        let mut again = String::new();
        until("the item to come back", || {
            let done = on(&format!("--json {kind} claim {kind}-jobs --lease 1m"));
            again = done.text();
            done.code() == 0
        });
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(again.contains("\"attempts\":2") && again.contains("\"job\""), "{again}");
        on(&format!("{kind} ack {kind}-jobs {first}")).fails(5, "nothing is claimed as");
        assert_eq!(on(&format!("{kind} len {kind}-jobs")).exits(0), "1\n", "the other has it, for a minute");
    }
}

#[test]
fn the_lease_is_renewed_while_the_command_runs() {
    let (_server, url) = server();
    on(&url, "queue push jobs job").exits(0);
    let worker = start(&url, "--once --lease 2s", "sleep 7", Path::new("/dev/null"));
    until("the claim", || on(&url, "--json queue stat jobs").json()["claimed"] == 1);
    let until_end = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until_end {
        on(&url, "queue claim jobs").exits(1);
        std::thread::sleep(Duration::from_millis(100));
    }
    wait(worker).exits(0);
    assert_eq!(on(&url, "queue len jobs").exits(0), "0\n");
}

#[test]
fn a_worker_that_is_told_to_stop_ends_its_command_and_gives_the_item_back() {
    for (script, left) in [
        ("echo $$ > $FILE; exec sleep 1000", "1\n"),
        // One that ends well when it is told to is done with its item.
        ("trap 'exit 0' TERM; echo $$ > $FILE; while :; do sleep 0.05; done", "0\n"),
    ] {
        let (_server, url) = server();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        on(&url, "queue push jobs job").exits(0);
        let worker = start(&url, "", script, &file);
        let pid = number_in(&file);
        kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
        assert_eq!(wait(worker).code(), 128 + 15);
        assert!(!is_alive(pid));
        let stat = on(&url, "--json queue stat jobs").json();
        assert_eq!(stat["claimed"], 0, "{stat}");
        assert_eq!(on(&url, "queue len jobs").exits(0), left);
        _ = fs::remove_file(&file);
    }
}

#[test]
fn a_worker_that_is_told_to_stop_gives_no_item_up() {
    for script in [
        "echo $$ > $FILE; exec sleep 1000",
        // One that says so as if it had failed by itself.
        "trap 'exit 1' TERM; echo $$ > $FILE; while :; do sleep 0.05; done",
    ] {
        let (_server, url) = server();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        on(&url, "queue push jobs job").exits(0);
        let worker = start(&url, "--attempts-max 1", script, &file);
        number_in(&file);
        kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
        let done = wait(worker);
        assert_eq!(done.code(), 128 + 15);
        assert!(done.stderr.contains("the item is given back"), "{}", done.stderr);
        let stat = on(&url, "--json queue stat jobs").json();
        assert_eq!((&stat["claimed"], &stat["ready"]), (&0.into(), &1.into()), "{stat}");
        // A failure of its own is one.
        let done = work(&url, "--attempts-max 1 --idle-exit 0s", "exit 1");
        done.exits(0);
        assert!(done.stderr.contains("the item is given up"), "{}", done.stderr);
        assert_eq!(on(&url, "queue len jobs").exits(0), "0\n");
    }
}

/// As by a service manager, which tells all processes of a service at once: the command has ended by then.
#[test]
fn a_command_that_was_told_to_stop_before_its_worker_is_not_given_up() {
    let (_server, url) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    on(&url, "queue push jobs job").exits(0);
    let worker = start(&url, "--attempts-max 1", "echo $$ > $FILE; exec sleep 1000", &file);
    let command = Pid::from_raw(number_in(&file)).unwrap();
    kill_process(command, Signal::TERM).unwrap();
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    assert_eq!(wait(worker).code(), 128 + 15);
    assert_eq!(on(&url, "queue len jobs").exits(0), "1\n");
}

/// `nohup` has a hangup ignored, and a shell without job control the interrupts of what is in the background.
#[test]
fn a_worker_goes_on_through_signals_that_whoever_started_it_ignores() {
    let (_server, url) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    on(&url, "queue push jobs job").exits(0);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_larder"), "queue", "work", "jobs"]);
    command.args(["--idle-exit", "0s", "--", "sh", "-c", "echo $$ > $FILE; while [ -e $FILE ]; do sleep 0.05; done"]);
    command.env("LARDER_STORE", &url).env("FILE", &file);
    let worker = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let command = Pid::from_raw(number_in(&file)).unwrap();
    for signal in [Signal::HUP, Signal::INT] {
        kill_process(Pid::from_child(&worker), signal).unwrap();
        kill_process(command, signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    fs::remove_file(&file).unwrap();
    let done = wait(worker);
    done.exits(0);
    assert_eq!(done.stderr, "");
    assert_eq!(on(&url, "queue len jobs").exits(0), "0\n");
}

#[test]
fn a_signal_during_a_claim_starts_no_command() {
    let (server, url) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("runs");
    on(&url, "queue push jobs job").exits(0);
    let options = "--poll 1s --timeout 30s";
    let worker = start(&url, options, "echo run >> $FILE; exit 1", &file);
    until("the first run", || file.exists());
    until("the giving back", || on(&url, "--json queue stat jobs").json()["claimed"] == 0);
    // The next claim finds a server that stands still.
    server.stop();
    std::thread::sleep(Duration::from_millis(1_500));
    kill_process(Pid::from_child(&worker), Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    server.cont();
    assert_eq!(wait(worker).code(), 128 + 15);
    assert_eq!(fs::read_to_string(&file).unwrap(), "run\n");
    let stat = on(&url, "--json queue stat jobs").json();
    assert_eq!((&stat["claimed"], &stat["ready"]), (&0.into(), &1.into()), "{stat}");
}

#[test]
fn a_command_is_ended_when_its_lease_is_over_though_the_store_does_not_answer() {
    let (server, url) = server();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    on(&url, "queue push jobs job").exits(0);
    // Else the connection is given up sooner.
    let patient = format!("{url}?timeout_ms=60000");
    let worker = start(&patient, "--once --lease 2s --timeout 60s", "echo $$ > $FILE; exec sleep 1000", &file);
    let pid = number_in(&file);
    server.stop();
    let since = Instant::now();
    until("the end of the command", || !is_alive(pid));
    assert!(since.elapsed() < Duration::from_secs(6), "{:?} after a lease of 2 s", since.elapsed());
    server.cont();
    wait(worker).fails(5, "the lease of");
}

#[test]
fn the_limit_of_bytes_is_exit_code_8_where_nothing_was_pushed_before_it() {
    let (_server, url) = server();
    let items: Vec<String> = (0..20_000).map(|n| format!("line-{n:05}")).collect();
    let lines = items.join("\n");
    // Some are there: who gives all of them again has these twice.
    for (line, input) in [
        ("queue push jobs --bytes-max 100000 -".to_owned(), lines.as_bytes()),
        (format!("queue push typed --bytes-max 100000 {}", items.join(" ")), &[]),
    ] {
        let done = on_with_input(&url, &line, input);
        done.fails(7, "the limit is 100000 bytes");
        assert!(done.stderr.contains("items are pushed") && done.stderr.contains("counts twice"), "{}", done.stderr);
        assert!(!done.stderr.contains(" 0 items"), "{}", done.stderr);
    }
    let done = on_with_input(&url, "queue push jobs -", &lines.as_bytes()[..16_000]);
    done.fails(8, "0 items are pushed: ");
}
