//! `larder lock …` on real servers: a command runs while the lock is held, and not a moment more than can be helped.

mod common;

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Done, finish, is_alive, larder, number_in, on, until, wait};
use larder_testkit::proxy::{Fault, Proxy, Then};
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};

fn server() -> (Memcached, String) {
    let server = Memcached::start(Version::New, &[]);
    let url = server.url();
    (server, url)
}

/// `lock run NAME OPTIONS -- sh -c SCRIPT`, with `$FILE` a file of its own.
fn start(url: &str, options: &str, script: &str, file: &Path) -> Child {
    let words =
        ["lock", "run", "nightly"].into_iter().chain(options.split_whitespace()).chain(["--", "sh", "-c", script]);
    larder(words).env("LARDER_STORE", url).env("FILE", file).spawn().unwrap()
}

fn run(url: &str, options: &str, script: &str) -> Done {
    wait(start(url, options, script, Path::new("/dev/null")))
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

fn state(url: &str) -> String {
    on(url, "--json lock status nightly").json()["state"].as_str().unwrap().to_owned()
}

#[test]
fn the_command_runs_with_token_and_name_and_its_exit_code_is_handed_on() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let url = server.url();
        let done = run(&url, "", "echo $LARDER_LOCK_NAME $LARDER_FENCING_TOKEN; exit 42");
        let first = done.exits(42);
        let token = |text: &str| text.trim().strip_prefix("nightly ").unwrap().parse::<u64>().unwrap();
        let second = run(&url, "", "echo $LARDER_LOCK_NAME $LARDER_FENCING_TOKEN").exits(0);
        assert!(token(&second) > token(&first), "{first} {second}");
        assert_eq!(on(&url, "lock status nightly").exits(0), format!("free, last token {}\n", token(&second)));
    }
}

#[test]
fn ends_of_all_kinds_have_the_codes_of_a_shell() {
    let (_server, url) = server();
    run(&url, "", "exit 0").exits(0);
    run(&url, "", "exit 5").exits(5);
    run(&url, "", "kill -9 $$").exits(128 + 9);
    on(&url, "lock run nightly -- /no/such/command").fails(127, "cannot be run");
    on(&url, "lock run nightly -- /dev/null").fails(126, "cannot be run");
    finish(larder(["lock", "run", "nightly", "--", ""]).env("LARDER_STORE", &url))
        .fails(127, "the command \"\" cannot");
    assert_eq!(state(&url), "free", "a command that could not be run leaves the lock free");
    assert_eq!(run(&url, "", "cat").exits(0), "", "standard input is the command's");
}

#[test]
fn while_it_runs_the_lock_is_held_and_nobody_else_gets_it() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut holder = start(&url, "--label me/1", "echo $$ > $FILE; while test -e $FILE; do sleep 0.01; done", &file);
    number_in(&file);
    let status = on(&url, "lock status nightly").exits(0);
    assert!(status.starts_with("held by \"me/1\" with token ") && status.ends_with("lease 30s\n"), "{status}");
    let json = on(&url, "--json lock status nightly").json();
    assert_eq!((json["state"].as_str(), json["label"].as_str()), (Some("held"), Some("me/1")));
    assert_eq!(json["lease_ms"], 30_000);
    assert!(json["until_ms"].as_u64() > json["since_ms"].as_u64(), "{json}");
    let busy = on(&url, "lock run nightly --wait 0 -- true");
    busy.fails(5, "held by somebody else: \"me/1\" with token");
    on(&url, "lock run nightly --wait 100ms -- true").fails(5, "me/1");
    on(&url, "lock run nightly --wait 100ms --lock-exit-code 99 -- true").fails(99, "me/1");
    fs::remove_file(&file).unwrap();
    assert!(holder.wait().unwrap().success());
    on(&url, "lock run nightly --wait 0 -- true").exits(0);
}

#[test]
fn a_command_whose_lock_was_taken_away_is_ended_with_all_it_started() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    // The second ignores SIGTERM, so only SIGKILL ends it; the third has left a process behind that does.
    let scripts = [
        "echo $$ > $FILE; exec sleep 600",
        "trap '' TERM; echo $$ > $FILE; while :; do sleep 0.01; done",
        "sh -c 'trap \"\" TERM; echo $$ > $FILE; while :; do sleep 0.01; done' & wait",
    ];
    for (index, script) in scripts.iter().enumerate() {
        let file = folder.path().join(index.to_string());
        // However long the grace is: the first command ends at once when it is told to.
        let grace = if index == 0 { "18446744073709551615" } else { "200ms" };
        let child = start(&url, &format!("--lease 300ms --grace {grace}"), script, &file);
        let pid = number_in(&file);
        assert!(is_alive(pid));
        let released = on(&url, "lock release nightly --force").exits(0);
        // On a loaded machine the short lease may have run out just before.
        assert!(released.contains("held by "), "{released}");
        let begin = Instant::now();
        wait(child).fails(5, "was lost while the command ran");
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        until("the end of the command", || !is_alive(pid));
    }
}

#[test]
fn a_server_that_is_gone_ends_the_command_with_the_lease() {
    let (mut server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let child = start(&url, "--lease 500ms --grace 1s", "echo $$ > $FILE; exec sleep 600", &file);
    let pid = number_in(&file);
    server.kill9();
    wait(child).fails(5, "was lost while the command ran");
    assert!(!is_alive(pid));
}

#[test]
fn signals_are_handed_on_and_the_lock_is_given_back() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    for (index, (sent, trap)) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")].iter().enumerate()
    {
        let file = folder.path().join(index.to_string());
        let script = format!("trap 'exit 42' {trap}; echo $$ > $FILE; while :; do sleep 0.01; done");
        let child = start(&url, "", &script, &file);
        number_in(&file);
        signal(&child, *sent);
        wait(child).exits(42);
        assert_eq!(state(&url), "free");
        let file = folder.path().join(format!("{index} untrapped"));
        let child = start(&url, "", "echo $$ > $FILE; exec sleep 600", &file);
        number_in(&file);
        signal(&child, *sent);
        wait(child).exits(128 + sent.as_raw());
        assert_eq!(state(&url), "free");
    }
}

#[test]
fn a_hangup_that_nohup_has_ignored_reaches_neither_it_nor_the_command() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut command = std::process::Command::new("nohup");
    command.args([env!("CARGO_BIN_EXE_larder"), "lock", "run", "nightly", "--", "sh", "-c"]);
    command.arg("echo $$ > $FILE; while [ -e $FILE ]; do sleep 0.05; done; exit 42");
    command.env("LARDER_STORE", &url).env("FILE", &file).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    number_in(&file);
    signal(&child, Signal::HUP);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(state(&url), "held");
    fs::remove_file(&file).unwrap();
    wait(child).exits(42);
    assert_eq!(state(&url), "free");
}

#[test]
fn a_signal_while_it_waits_ends_the_wait() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let holder = start(&url, "", "echo $$ > $FILE; exec sleep 600", &file);
    number_in(&file);
    let waiter = start(&url, "", "exit 3", &file);
    // It listens to signals once it has opened the lock; until then a signal ends it outright, which is right as well.
    thread::sleep(Duration::from_millis(200));
    signal(&waiter, Signal::TERM);
    let done = wait(waiter);
    let by_signal = done.status.signal() == Some(Signal::TERM.as_raw());
    assert!(by_signal || done.code() == 128 + Signal::TERM.as_raw(), "{done:?}");
    signal(&holder, Signal::TERM);
    wait(holder).exits(128 + Signal::TERM.as_raw());
}

/// True for a write of the lock's record, in whatever dialect.
fn is_write(bytes: &[u8]) -> bool {
    [&b"ms L.nightly.m"[..], b"add L.nightly.m", b"cas L.nightly.m"].iter().any(|start| bytes.starts_with(start))
}

#[test]
fn a_signal_while_the_lock_is_being_taken_gives_it_back() {
    let (server, url) = server();
    run(&url, "", "exit 0").exits(0);
    let proxy = Proxy::start(server.addr());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ran");
    let (seen, writes) = mpsc::channel();
    proxy.script(0, move |moment, _| {
        if is_write(moment.bytes) && seen.send(()).is_ok() {
            return Fault::Delay { ms: 60 };
        }
        Fault::Pass
    });
    let child = start(&format!("memcached://{}", proxy.addr()), "--lease 1h", "echo 1 > $FILE", &file);
    writes.recv_timeout(Duration::from_secs(60)).unwrap();
    signal(&child, Signal::TERM);
    wait(child).exits(128 + Signal::TERM.as_raw());
    // What the proxy still holds has landed by then.
    thread::sleep(Duration::from_millis(300));
    assert_eq!((state(&url).as_str(), file.exists()), ("free", false));
}

#[test]
fn a_lock_that_may_have_been_taken_is_said_to_be_unknown() {
    let (server, url) = server();
    for wait in ["0", "100ms"] {
        run(&url, "", "exit 0").exits(0);
        let proxy = Proxy::start(server.addr());
        let mut is_silent = false;
        // The write lands, and from then on nothing is answered, to nobody.
        proxy.script(0, move |moment, _| match (is_silent, is_write(moment.bytes)) {
            (true, _) => Fault::Hang,
            (false, true) => {
                is_silent = true;
                Fault::LoseReply(Then::Hang)
            }
            _ => Fault::Pass,
        });
        let through = format!("memcached://{}", proxy.addr());
        let done = on(&through, &format!("--timeout 300ms lock run nightly --lease 1s --wait {wait} -- echo ran"));
        done.fails(7, "its lease, 1s, ends it");
        assert_eq!(state(&url), "held");
        on(&url, "drop nightly").exits(0);
    }
}

#[test]
fn a_holder_that_died_is_followed_after_its_lease() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut holder = start(&url, "--lease 2s", "echo $$ > $FILE; exec sleep 600", &file);
    let orphan = number_in(&file);
    holder.kill().unwrap();
    holder.wait().unwrap();
    run(&url, "--wait 30s", "exit 0").exits(0);
    // SIGKILL cannot be handed on: that is what the fencing token is for.
    assert!(is_alive(orphan));
    kill_process(Pid::from_raw(orphan).unwrap(), Signal::KILL).unwrap();
}

/// `script` of util-linux gives a command a terminal, and types into it what is written to its standard input.
#[test]
fn at_a_terminal_the_command_reads_from_it_and_is_interrupted_once() {
    let (_server, url) = server();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("count");
    let inner = r#"n=0; trap 'n=$((n+1))' INT; read line; echo $n > "$FILE"; read line; echo 2 > "$FILE.two"; while test $n -eq 0; do :; done;
        sleep 0.3; echo "$n $line" > "$FILE.end"; exit 7"#;
    // `exec`: a shell of its own in between would be interrupted too, and some shells then end by that signal whatever the command did.
    let line = format!("exec {} lock run nightly -- sh -c \"$INNER\"", env!("CARGO_BIN_EXE_larder"));
    let mut command = std::process::Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("INNER", inner).env("LARDER_STORE", &url).env("FILE", &file);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("script, of util-linux");
    let mut terminal = child.stdin.take().unwrap();
    terminal.write_all(b"one\n").unwrap();
    assert_eq!(number_in(&file), 0);
    terminal.write_all(b"two\n").unwrap();
    assert_eq!(number_in(&folder.path().join("count.two")), 2);
    terminal.write_all(b"\x03").unwrap();
    let done = wait(child);
    assert_eq!(done.code(), 7, "{done:?}");
    assert_eq!(fs::read_to_string(folder.path().join("count.end")).unwrap(), "1 two\n");
    assert_eq!(state(&url), "free");
}

#[test]
fn breaking_a_lock_takes_force() {
    let (_server, url) = server();
    run(&url, "", "exit 0").exits(0);
    let refused = on(&url, "lock release nightly");
    refused.fails(2, "--force");
    assert!(refused.stderr.contains("larder lock status"), "{}", refused.stderr);
    assert!(on(&url, "lock release nightly --force").exits(0).starts_with("free, last token "));
}

#[test]
fn limits_are_named() {
    let (_server, url) = server();
    for lease in ["0", "50ms", "31d", "10y", "18446744073709551615"] {
        on(&url, &format!("lock run nightly --lease {lease} -- true")).fails(2, "100 ms to 1 day");
    }
    let label = "x".repeat(65);
    on(&url, &format!("lock run nightly --label {label} -- true")).fails(2, "65 bytes; the limit is 64");
}

#[test]
fn a_hundred_guarded_increments_of_a_plain_file_by_four_processes_make_a_hundred() {
    let script = "n=$(cat \"$FILE\"); sleep 0.002; echo $((n + 1)) > \"$FILE\"";
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        fs::write(&file, "0\n").unwrap();
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (url, file) = (server.url(), file.clone());
                thread::spawn(move || (0..25).for_each(|_| _ = wait(start(&url, "", script, &file)).exits(0)))
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(number_in(&file), 100, "{version:?}");
    }
}

#[test]
fn a_fresh_process_needs_no_terminal() {
    let (_server, url) = server();
    let done = finish(larder(["lock", "run", "nightly", "--", "true"]).env("LARDER_STORE", &url));
    assert_eq!((done.exits(0).as_str(), done.stderr.as_str()), ("", ""));
}
