//! The store of a user who has set none: durable, behind a server that the first command starts; and files that commands use in turns.

mod common;

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Done, finish, larder, on, until};
use larder::dump::{DumpItem, DumpReader, DumpWriter, Head};
use larder_testkit::servers::{Memcached, Version};

/// A user's home. When it is dropped, the server of the user's store has ended.
struct Home {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Home {
    fn new() -> Home {
        Home::named("home")
    }

    fn named(name: &str) -> Home {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        Home { _folder: folder, path }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn is_served(&self) -> bool {
        UnixStream::connect(self.path().join("larder.socket")).is_ok()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let ended = || !self.is_served();
        if !std::thread::panicking() {
            until("the end of the user's server", || {
                std::thread::sleep(Duration::from_millis(1_200));
                ended()
            });
        }
    }
}

/// A command of a user with a home.
fn at_home(home: &Home, line: &str) -> Command {
    let mut command = larder(line.split_whitespace());
    command.env("XDG_DATA_HOME", home.path()).env("LARDER_OWN_SERVER_IDLE_S", "1");
    command
}

fn run(home: &Home, line: &str) -> Done {
    finish(&mut at_home(home, line))
}

#[test]
fn a_fresh_machine_remembers() {
    let home = Home::new();
    run(&home, "counter get hits").fails(3, "absent");
    run(&home, "counter add hits").exits(0);
    run(&home, "counter add hits 2").exits(0);
    assert_eq!(run(&home, "counter get hits").exits(0), "3\n");
    let folder = home.path().join("larder");
    assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // The same place, by HOME alone.
    let other = tempfile::tempdir().unwrap();
    let mut command = larder(["counter", "add", "hits", "--direct"]);
    finish(command.env("HOME", other.path())).exits(0);
    assert!(other.path().join(".local/share/larder/larder").exists());
}

/// A store that keeps what it acknowledged lost nothing, and says so; one that may have lost it says that.
#[test]
fn what_is_absent_in_a_durable_store_was_never_created() {
    let home = Home::new();
    let server = Memcached::start(Version::New, &[]);
    for line in [
        "counter get n",
        "lock status n",
        "lock release n --force",
        "inspect n",
        "drop n",
        "reshard n --shards 4",
        "table keys n",
        "queue len n",
        "cache invalidate n k",
    ] {
        for done in [run(&home, line), finish(at_home(&home, line).arg("--direct"))] {
            done.fails(3, "\"n\" is absent (never created)");
            assert!(!done.stderr.contains("lost"), "{line}: {}", done.stderr);
        }
        finish(at_home(&home, line).env("LARDER_STORE", server.url())).fails(3, "is absent (never created, or lost)");
    }
}

#[test]
fn commands_at_the_same_time_wait_for_each_other() {
    let home = Home::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| _ = run(&home, "counter add hits --timeout 60s").exits(0)));
        }
    });
    assert_eq!(run(&home, "counter get hits").exits(0), "40\n");
}

#[test]
fn files_are_used_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}?wait_ms=60000", folder.path().join("store").display());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| _ = on(&url, "counter add hits --timeout 60s").exits(0)));
        }
    });
    assert_eq!(on(&url, "counter get hits").exits(0), "20\n");
    let larder_itself = env!("CARGO_BIN_EXE_larder");
    let script = format!("{larder_itself} lock status nightly");
    let mut command = larder(["lock", "run", "nightly", "--", "sh", "-c", &script]);
    assert!(finish(command.env("LARDER_STORE", &url)).exits(0).starts_with("held by "));
}

#[test]
fn a_command_under_a_lock_uses_the_store_itself() {
    let home = Home::new();
    let larder_itself = env!("CARGO_BIN_EXE_larder");
    let script = format!("{larder_itself} counter add hits && {larder_itself} lock status nightly");
    let said = finish(at_home(&home, "lock run nightly -- sh -c").arg(script)).exits(0);
    assert!(said.starts_with("held by "), "{said}");
    assert_eq!(run(&home, "counter get hits").exits(0), "1\n");
    assert!(run(&home, "lock status nightly").exits(0).starts_with("free"));
}

#[test]
fn what_follows_lets_others_write() {
    let home = Home::new();
    run(&home, "log put audit first").exits(0);
    let follower = Follower::of(&mut at_home(&home, "log tail audit -f"));
    until("the first event", || follower.said().contains("first"));
    run(&home, "log put audit second").exits(0);
    until("the second event", || follower.said().contains("second"));
}

/// A command that goes on until it is dropped.
struct Follower {
    child: std::process::Child,
    out: tempfile::NamedTempFile,
}

impl Follower {
    fn of(command: &mut Command) -> Follower {
        let out = tempfile::NamedTempFile::new().unwrap();
        let child = command.stdout(out.reopen().unwrap()).stderr(std::process::Stdio::inherit()).spawn().unwrap();
        Follower { child, out }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.out.path()).unwrap()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[test]
fn what_follows_files_uses_them_in_turns_with_who_writes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}?wait_ms=60000", folder.path().join("store").display());
    let command = |line: &str| {
        let mut command = larder(line.split_whitespace());
        command.args(["--timeout", "60s"]).env("LARDER_STORE", &url);
        command
    };
    let follow = |line: &str| Follower::of(&mut command(line));
    let write = |line: &str| finish(&mut command(line)).exits(0);
    write("log put audit event0");
    write("visitors hit site --period 1h");
    let followers = [follow("log tail audit -f"), follow("visitors watch site --every 500ms")];
    let [events, figures] = &followers;
    for number in 1..=5 {
        write(&format!("log put audit event{number}"));
        write("visitors hit site");
        until("the event", || events.said().contains(&format!("event{number}")));
        until("the hit", || hits(figures) == Some(number + 1));
    }
}

/// Who holds a lock and calls the command itself, who waits for that lock, two who follow, and who writes: all at once on the store of `command`.
fn side_by_side(command: &(dyn Fn(&str) -> Command + Sync)) {
    let folder = tempfile::tempdir().unwrap();
    let larder_itself = env!("CARGO_BIN_EXE_larder");
    let write = |line: &str| finish(&mut command(line)).exits(0);
    write("log put audit event0");
    write("visitors hit site --period 1h");
    let events = Follower::of(&mut command("log tail audit -f"));
    let figures = Follower::of(&mut command("visitors watch site --every 500ms"));
    // It goes on while this file is there: no longer than this test.
    let held = folder.path().join("held");
    std::fs::write(&held, "").unwrap();
    let step = format!("{larder_itself} --timeout 60s counter add steps");
    let script = format!("{step} && while test -e {}; do sleep 0.05; done; {step}", held.display());
    let holder = command("lock run nightly -- sh -c").arg(script).spawn().unwrap();
    until("the holder's first step", || finish(&mut command("counter get steps")).text() == "1\n");
    let reads = format!("{larder_itself} --timeout 60s counter get steps");
    let mut waiter = command("lock run nightly --wait 50s -- sh -c").arg(reads).spawn().unwrap();
    for number in 1..=4 {
        write(&format!("log put audit event{number}"));
        write("visitors hit site");
        write("counter add hits");
        until("the event", || events.said().contains(&format!("event{number}")));
        until("the hit", || hits(&figures) == Some(number + 1));
        assert!(write("lock status nightly").starts_with("held by "), "the holder has it");
        assert!(waiter.try_wait().unwrap().is_none(), "the other waits");
    }
    std::fs::remove_file(held).unwrap();
    common::wait(holder).exits(0);
    assert_eq!(common::wait(waiter).exits(0), "2\n", "it has the lock when the holder has let it go");
    assert!(write("lock status nightly").starts_with("free"));
    write("log put audit last");
    until("the last event", || events.said().contains("last"));
    assert_eq!(write("counter get hits"), "4\n");
}

/// The hits that a watcher told last. An hour may end meanwhile: the last two columns are those before it and since.
fn hits(watcher: &Follower) -> Option<u64> {
    let counts = |line: &str| line.split(' ').skip(2).map(|word| word.parse::<u64>().unwrap()).sum::<u64>();
    watcher.said().rsplit_once('\n').and_then(|(lines, _)| lines.lines().last().map(counts))
}

#[test]
fn a_holder_one_who_waits_two_who_follow_and_a_writer_share_files() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}?wait_ms=60000", folder.path().join("store").display());
    side_by_side(&|line| {
        let mut command = larder(["--timeout", "60s"].into_iter().chain(line.split_whitespace()));
        command.env("LARDER_STORE", &url);
        command
    });
}

#[test]
fn a_holder_one_who_waits_two_who_follow_and_a_writer_share_the_store_of_a_home() {
    let home = tempfile::tempdir().unwrap();
    side_by_side(&|line| {
        let mut command = larder(["--timeout", "60s"].into_iter().chain(line.split_whitespace()));
        command.env("HOME", home.path()).env("LARDER_OWN_SERVER_IDLE_S", "1");
        command
    });
    let socket = home.path().join(".local/share/larder.socket");
    assert!(home.path().join(".local/share/larder/larder").exists());
    until("the end of the user's server", || {
        std::thread::sleep(Duration::from_millis(1_200));
        UnixStream::connect(&socket).is_err()
    });
}

/// Its server's socket would have a path of over 107 bytes: the files are opened, for one operation at a time.
#[test]
fn a_home_whose_path_is_too_long_for_a_socket_is_used_in_turns() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("h".repeat(110));
    let command = |line: &str| {
        let mut command = larder(["--timeout", "60s"].into_iter().chain(line.split_whitespace()));
        command.env("XDG_DATA_HOME", &home);
        command
    };
    let larder_itself = env!("CARGO_BIN_EXE_larder");
    let script = format!("{larder_itself} counter add hits && {larder_itself} lock status nightly");
    let said = finish(command("lock run nightly -- sh -c").arg(script)).exits(0);
    assert!(said.starts_with("held by "), "{said}");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..3).for_each(|_| _ = finish(&mut command("counter add hits")).exits(0)));
        }
    });
    assert_eq!(finish(&mut command("counter get hits")).exits(0), "10\n");
    assert!(home.join("larder/larder").exists() && !home.join("larder.socket").exists());
    finish(command("backup").arg(folder.path().join("all.dump"))).exits(0);
    finish(&mut command("check")).exits(0);
}

/// Its server takes what its files take.
#[test]
fn large_items_are_imported_into_a_fresh_home_served_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("large.dump");
    let file = std::fs::File::create(&dump).unwrap();
    let mut writer = DumpWriter::new(file, &Head::now("large")).unwrap();
    let largest = larder::durable::Options::VALUE_BYTES_MAX + larder::Key::BYTES_MAX - b"largest".len();
    let items = [("two", 2 << 20, 7), ("sixty", 60_000_000, 0), ("largest", largest, 0)];
    for (number, (key, bytes, flags)) in (1..).zip(items) {
        let key = larder::Key::new(key).unwrap();
        writer.push(&DumpItem { key, flags, expiry_ms: None, value: vec![number; bytes].into() }).unwrap();
    }
    writer.finish().unwrap();
    for direct in ["", " --direct"] {
        let home = Home::new();
        let command = |line: &str, file: &Path| {
            let mut command = at_home(&home, &format!("--timeout 60s{direct} {line}"));
            common::wait_within(command.arg(file).spawn().unwrap(), Duration::from_secs(120))
        };
        assert_eq!(command("import", &dump).exits(0), "3 written, 0 there already, 0 over, 0 refused\n");
        let back = folder.path().join(format!("back{}.dump", direct.len()));
        command("export", &back).exits(0);
        let mut reader = DumpReader::new(std::io::BufReader::new(std::fs::File::open(&back).unwrap())).unwrap();
        let mut found = std::collections::BTreeMap::new();
        while let Some(block) = reader.next_block().unwrap() {
            for item in block {
                let first = item.value[0];
                assert!(item.value.iter().all(|&byte| byte == first));
                found.insert(first, (item.value.len(), item.flags));
            }
        }
        let expected = (1..).zip(items).map(|(number, (_, bytes, flags))| (number, (bytes, flags))).collect();
        assert_eq!(found, expected, "{direct}");
    }
}

#[test]
fn the_server_ends_when_nobody_needs_it_and_comes_again() {
    let home = Home::new();
    run(&home, "counter add hits").exits(0);
    assert!(home.is_served());
    // It is asked rarely, so that the question does not keep it.
    until("its end", || {
        std::thread::sleep(Duration::from_millis(1_500));
        !home.is_served()
    });
    assert_eq!(run(&home, "counter get hits").exits(0), "1\n");
}

#[test]
fn files_can_be_opened_instead_and_end_the_server() {
    let home = Home::new();
    run(&home, "counter add hits").exits(0);
    run(&home, "counter add hits --direct").exits(0);
    assert!(!home.is_served());
    assert_eq!(run(&home, "counter get hits").exits(0), "2\n");
    let dump = home.path().join("monday.dump");
    finish(at_home(&home, "backup").arg(&dump)).exits(0);
    assert!(home.is_served(), "a backup is taken by the server");
    run(&home, "check").exits(0);
    assert!(!home.is_served());
    // Somebody who is connected is not cut off.
    run(&home, "counter get hits").exits(0);
    let somebody = UnixStream::connect(home.path().join("larder.socket")).unwrap();
    run(&home, "counter get hits --direct").fails(6, "1 other commands are using this user's store");
    drop(somebody);
}

#[test]
fn a_home_may_have_what_means_something_in_a_url() {
    for name in ["a@b", "a#b", "a%41b", "jdoe:pw@corp.example", "a b"] {
        let home = Home::named(name);
        run(&home, "counter add hits").exits(0);
        assert!(home.is_served(), "{name}");
        let dump = home.path().join("dump");
        finish(at_home(&home, "backup").arg(&dump)).exits(0);
        finish(at_home(&home, "export").arg(home.path().join("export"))).exits(0);
        run(&home, "counter add hits --direct").exits(0);
        run(&home, "check").exits(0);
        assert_eq!(run(&home, "counter get hits").exits(0), "2\n", "{name}");
    }
}

/// That is "for ever" to some.
#[test]
fn times_without_an_end_are_waited_for_no_longer_than_it_takes() {
    let home = Home::new();
    let longest = u64::MAX;
    run(&home, &format!("counter add hits --timeout {longest}")).exits(0);
    assert_eq!(run(&home, &format!("counter get hits --direct --timeout {longest}")).exits(0), "1\n");
    run(&home, &format!("check --timeout {longest}")).exits(0);
    run(&home, &format!("ls --direct --timeout {longest}s")).exits(0);
    run(&home, "cache get pages / --ttl 5m --else echo page").exits(0);
    let found = run(&home, &format!("inspect pages --direct --count-for {longest} --timeout {longest} --json")).json();
    assert_eq!((&found["entries"], &found["entries_are_all"]), (&1.into(), &true.into()));
    let url = format!("file:{}", home.path().join("else").display());
    on(&url, &format!("counter add hits --timeout {longest}")).exits(0);
}

/// As of a line of a crontab that takes a lock, so that no two of it run at once.
#[test]
fn the_server_holds_nothing_of_whoever_started_the_command() {
    let home = Home::new();
    let lock = home.path().join("lock");
    let flock = || {
        let mut command = Command::new("flock");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut add = flock();
    add.arg(&lock).arg(env!("CARGO_BIN_EXE_larder")).args(["counter", "add", "hits"]).env_remove("LARDER_STORE");
    add.env("XDG_DATA_HOME", home.path()).env("LARDER_OWN_SERVER_IDLE_S", "20").env("LISTEN_FDS", "1");
    finish(&mut add).exits(0);
    assert!(home.is_served());
    finish(flock().arg("-n").arg(&lock).arg("true")).exits(0);
    // So that nobody has to wait for its end.
    run(&home, "counter get hits --direct").exits(0);
}

/// Of a command in a unit of `Type=notify`: its own server is not that unit, which would count as ready, or as stopping, with it.
#[test]
fn the_server_tells_systemd_nothing_of_the_unit_that_started_it() {
    let home = Home::new();
    let place = home.path().join("notify");
    let told = UnixDatagram::bind(&place).unwrap();
    told.set_nonblocking(true).unwrap();
    finish(at_home(&home, "counter add hits").env("NOTIFY_SOCKET", &place)).exits(0);
    assert!(home.is_served());
    // It ends by itself, and would say that, too.
    run(&home, "counter get hits --direct").exits(0);
    let said = told.recv(&mut [0; 64]).unwrap_err();
    assert_eq!(said.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_killed_server_is_followed_by_another_that_has_everything() {
    let home = Home::new();
    for round in 1..=3 {
        run(&home, "counter add hits").exits(0);
        let mut stream = UnixStream::connect(home.path().join("larder.socket")).unwrap();
        stream.write_all(b"stats\r\nquit\r\n").unwrap();
        let mut stats = String::new();
        stream.read_to_string(&mut stats).unwrap();
        let id = stats.lines().find_map(|line| line.strip_prefix("STAT pid ")?.parse::<i32>().ok()).unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        until("its end", || !home.is_served());
        assert_eq!(run(&home, "counter get hits").exits(0), format!("{round}\n"));
    }
}

#[test]
fn another_process_is_waited_for_and_named_after_five_seconds_where_nothing_else_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let held = larder_store(&path);
    let url = format!("file:{}", path.display());
    let start = Instant::now();
    on(&url, "counter add hits").fails(6, &format!("open in process {}", std::process::id()));
    assert!((5..30).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| on(&url, "counter add hits"));
        std::thread::sleep(Duration::from_secs(1));
        drop(held);
        waiting.join().unwrap().exits(0);
    });
}

/// As an operation is.
#[test]
fn another_process_is_waited_for_as_long_as_an_operation_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let held = larder_store(&path);
    let url = format!("file:{}", path.display());
    for line in ["counter add hits", "check"] {
        let start = Instant::now();
        on(&url, &format!("{line} --timeout 300ms")).fails(6, &format!("open in process {}", std::process::id()));
        assert!((300..4_500).contains(&start.elapsed().as_millis()), "{line}: {:?}", start.elapsed());
    }
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| on(&url, "counter add hits --timeout 60s"));
        std::thread::sleep(Duration::from_secs(6));
        drop(held);
        waiting.join().unwrap().exits(0);
    });
}

/// A folder is no server, and what a witness tells of it is no matter of a structure that could be dropped.
#[test]
fn hints_about_a_folder_are_of_folders() {
    let folder = tempfile::tempdir().unwrap();
    let [at, kept, witness] = ["store", "kept", "witness"].map(|name| folder.path().join(name));
    let plain = format!("file:{}?wait_ms=0", at.display());
    let url = format!("{plain}&witness={}", witness.display());
    let copy = |from: &Path, to: &Path| {
        _ = std::fs::remove_dir_all(to);
        assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
    };
    on(&url, "counter add hits").exits(0);
    copy(&at, &kept);
    on(&url, "counter add hits").exits(0);
    let held = larder_store(&at);
    for line in ["counter get hits", "counter add hits", "ls", "check", "serve -s unused"] {
        let done = on(&plain, line);
        assert_eq!(done.code(), 6, "{line}: {done:?}");
        assert!(done.stderr.contains("hint: one process at a time has a folder open"), "{line}: {}", done.stderr);
    }
    drop(held);
    let told = |line: &str, kind: &str| {
        let done = on(&url, line);
        assert_eq!(done.code(), 4, "{line}: {done:?}");
        let hint = done.stderr.rsplit_once("hint: ").unwrap_or_else(|| panic!("no hint: {}", done.stderr)).1;
        assert!(done.stderr.contains(kind) && hint.contains("what a witness tells"), "{line}: {}", done.stderr);
        assert!(!done.stderr.contains("drop NAME"), "{line}: {}", done.stderr);
    };
    copy(&kept, &at);
    for line in ["counter get hits", "counter add hits", "ls", "check", "backup unused", "serve -s unused"] {
        told(line, "rolled back");
    }
    std::fs::remove_dir_all(&at).unwrap();
    for line in ["counter add hits", "check"] {
        told(line, "lost");
        _ = std::fs::remove_dir_all(&at);
    }
    copy(&kept, &at);
    let identity = std::fs::read_to_string(at.join("larder")).unwrap().replace("version 3\n", "version 99\n");
    let body = &identity[..identity.rfind("check ").unwrap()];
    let check = format!("check {:016x}\n", xxhash_rust::xxh3::xxh3_64(body.as_bytes()));
    std::fs::write(at.join("larder"), format!("{body}{check}")).unwrap();
    for line in ["counter get hits", "check"] {
        let done = on(&plain, line);
        assert_eq!(done.code(), 8, "{line}: {done:?}");
        assert!(done.stderr.contains("says layout 99") && done.stderr.contains("hint: a newer larder"), "{done:?}");
    }
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
fn larder_store(path: &Path) -> larder::durable::DurableStore {
    larder::durable::Options::new(path).open().unwrap()
}
