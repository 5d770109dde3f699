//! The store of a user who has set none: durable, and used by many commands in turns.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Done, finish, larder, on, until};

/// A command of a user with a home.
fn at_home(home: &tempfile::TempDir, line: &str) -> Command {
    let mut command = larder(line.split_whitespace());
    command.env("XDG_DATA_HOME", home.path());
    command
}

fn run(home: &tempfile::TempDir, line: &str) -> Done {
    finish(&mut at_home(home, line))
}

#[test]
fn a_fresh_machine_remembers() {
    let home = tempfile::tempdir().unwrap();
    run(&home, "counter get hits").fails(3, "absent");
    run(&home, "counter add hits").exits(0);
    run(&home, "counter add hits 2").exits(0);
    assert_eq!(run(&home, "counter get hits").exits(0), "3\n");
    let folder = home.path().join("larder");
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // The same place, by HOME alone.
    let other = tempfile::tempdir().unwrap();
    let mut command = larder(["counter", "add", "hits"]);
    finish(command.env("HOME", other.path())).exits(0);
    assert!(other.path().join(".local/share/larder/larder").exists());
}

#[test]
fn commands_at_the_same_time_wait_for_each_other() {
    let home = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| _ = run(&home, "counter add hits --timeout 60s").exits(0)));
        }
    });
    assert_eq!(run(&home, "counter get hits").exits(0), "40\n");
}

#[test]
fn a_command_under_a_lock_uses_the_store_itself() {
    let home = tempfile::tempdir().unwrap();
    let larder_itself = env!("CARGO_BIN_EXE_larder");
    let script = format!("{larder_itself} counter add hits && {larder_itself} lock status nightly");
    let said = finish(at_home(&home, "lock run nightly -- sh -c").arg(script)).exits(0);
    assert!(said.starts_with("held by "), "{said}");
    assert_eq!(run(&home, "counter get hits").exits(0), "1\n");
    assert!(run(&home, "lock status nightly").exits(0).starts_with("free"));
}

#[test]
fn what_follows_lets_others_write() {
    let home = tempfile::tempdir().unwrap();
    run(&home, "log put audit first").exits(0);
    let out = home.path().join("out");
    let mut follower = at_home(&home, "log tail audit -f")
        .stdout(std::fs::File::create(&out).unwrap())
        .stderr(std::process::Stdio::inherit())
        .spawn()
        .unwrap();
    let seen = |event: &str| std::fs::read_to_string(&out).unwrap().contains(event);
    until("the first event", || seen("first"));
    run(&home, "log put audit second").exits(0);
    until("the second event", || seen("second"));
    follower.kill().unwrap();
    follower.wait().unwrap();
}

#[test]
fn one_who_holds_the_store_is_named_after_the_wait() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let held = larder_store(&path);
    let url = format!("file:{}?wait_ms=200", path.display());
    let start = Instant::now();
    on(&url, "counter add hits").fails(6, &format!("open in process {}", std::process::id()));
    assert!(start.elapsed() >= Duration::from_millis(200));
    drop(held);
    on(&url, "counter add hits").exits(0);
}

/// The store, open in this process.
fn larder_store(path: &std::path::Path) -> larder::durable::DurableStore {
    larder::durable::Options::new(path).open().unwrap()
}
