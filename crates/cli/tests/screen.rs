//! `larder top`, in a terminal and without one.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::process::Child;
use std::thread;

use common::{larder, on, on_with_input, until, wait};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terminal::Terminal;

const ROWS: NonZeroU16 = NonZeroU16::new(45).unwrap();

/// A command in a terminal of its own.
struct Shown {
    child: Child,
    terminal: Terminal,
}

impl Shown {
    fn start(url: &str, line: &str) -> Shown {
        let (terminal, end) = Terminal::open(ROWS);
        let mut command = larder(line.split_whitespace());
        command.env("LARDER_STORE", url).env("TERM", "xterm-256color");
        command.stdin(end.try_clone().unwrap()).stdout(end.try_clone().unwrap()).stderr(end);
        Shown { child: command.spawn().unwrap(), terminal }
    }

    fn shows(&self, word: &str) -> bool {
        self.terminal.screen().shown.screen().contents().contains(word)
    }

    fn types(&mut self, keys: &str) {
        self.terminal.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// The exit code; what was switched on of the terminal must have been switched off.
    fn end(self) -> i32 {
        let done = wait(self.child);
        let screen = self.terminal.end();
        let written = String::from_utf8_lossy(&screen.written);
        for restored in ["\x1b[?1049l", "\x1b[?25h"] {
            assert!(written.contains(restored), "the terminal is as it was");
        }
        done.code()
    }
}

#[test]
fn the_screen_shows_what_a_server_does_until_q() {
    let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    on(&server.url(), "counter add hits").exits(0);
    let mut terminal = Shown::start(&server.url(), "top --interval 100ms");
    for word in ["servers", "commands,", "structures", "counter", "7.0.15"] {
        until(word, || terminal.shows(word));
    }
    terminal.types("p");
    until("the pause", || terminal.shows("PAUSED"));
    terminal.types("q");
    assert_eq!(terminal.end(), 0);
}

#[test]
fn the_terminal_is_given_back_on_a_signal_too() {
    let server = Memcached::start(Version::New, &[]);
    let terminal = Shown::start(&server.url(), "top --interval 100ms");
    until("the screen", || terminal.shows("servers"));
    kill_process(Pid::from_child(&terminal.child), Signal::TERM).unwrap();
    assert_eq!(terminal.end(), 128 + Signal::TERM.as_raw());
}

#[test]
fn without_a_terminal_it_is_one_sample() {
    for version in RedisVersion::ALL {
        let server = RedisServer::start(version, &RedisOptions::new());
        on(&server.url(), "counter add hits").exits(0);
        server.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
        let sample = on(&server.url(), "--json top --interval 300ms").json();
        let node = &sample["nodes"][0];
        assert!(node["ops_per_second"].as_f64().unwrap() > 0.0, "{sample}");
        assert!(node["used_bytes"].as_u64().unwrap() > 0 && node["resident_bytes"].as_u64().unwrap() > 0, "{sample}");
        assert_eq!(sample["structures"], serde_json::json!({"counter": 1}), "{version:?}");
        assert!(sample["round_trip_us"].as_f64().unwrap() > 0.0);
        let commands: Vec<&str> =
            node["commands"].as_array().unwrap().iter().map(|one| one["command"].as_str().unwrap()).collect();
        assert!(commands.contains(&"info"), "{version:?}: {commands:?}");
        assert!(!node["slow"].as_array().unwrap().is_empty(), "{version:?}: {sample}");
    }
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        tells_what_it_does(&server.url(), "memcached 1.6.", false);
        let plain = on(&server.url(), "top --once --interval 200ms").exits(0);
        assert!(plain.starts_with("memcached 1.6.") && plain.contains("ops/s "), "{plain}");
        assert!(plain.contains("a get takes "), "{plain}");
    }
    on("redis://127.0.0.1:1", "top").fails(6, "127.0.0.1:1");
}

/// Holds what one sample says of a memcached to what was done there: one counter was made, and the look itself is a request.
fn tells_what_it_does(url: &str, software: &str, is_in_folder: bool) {
    on(url, "counter add hits").exits(0);
    let sample = on(url, "--json top --interval 300ms").json();
    let node = &sample["nodes"][0];
    assert!(node["software"].as_str().unwrap().starts_with(software), "{sample}");
    assert!(node["ops_per_second"].as_f64().unwrap() > 0.0, "{sample}");
    // Of a folder it is the disk that is used, which has no limit that -m sets.
    let (told, untold) = if is_in_folder { ("disk_bytes", "used_bytes") } else { ("used_bytes", "disk_bytes") };
    assert!(node[told].as_u64().unwrap() > 0, "{sample}");
    assert!(node[untold].is_null(), "{sample}");
    assert_eq!(node["limit_bytes"].is_null(), is_in_folder, "{sample}");
    assert_eq!(sample["structures"], serde_json::json!({"counter": 1}), "{sample}");
    assert!(sample["round_trip_us"].as_f64().unwrap() > 0.0, "{sample}");
}

#[test]
fn our_own_server_tells_what_it_does_over_memory_and_over_a_folder() {
    for store in ["memory:", "file:store"] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = larder(["serve", "--listen", "unix:socket", "--store", store]);
        let mut serving = command.current_dir(folder.path()).spawn().unwrap();
        let socket = folder.path().join("socket");
        until("the server", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        let url = format!("memcached+unix://{}", socket.display());
        tells_what_it_does(&url, "larder ", store.starts_with("file:"));
        let report = on(&url, "memory report").exits(0);
        assert_eq!(report.contains(" the limit"), store == "memory:", "{report}");
        assert_eq!(report.contains(" on disk"), store != "memory:", "{report}");
        serving.kill().unwrap();
        serving.wait().unwrap();
    }
}

#[test]
fn our_own_server_tells_hot_keys_and_its_times() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut serving = larder(["serve", "--listen", &format!("unix:{}", socket.display())]).spawn().unwrap();
    until("the server", || socket.exists());
    let url = format!("memcached+unix://{}", socket.display());
    let members: String = (0..4_000).map(|id| format!("{id}\n")).collect();
    on_with_input(&url, "set add cold -", members.as_bytes()).exits(0);
    use std::os::unix::net::UnixStream;
    let ask = |requests: &[u8]| {
        let mut client = UnixStream::connect(&socket).unwrap();
        client.write_all(requests).unwrap();
        client.write_all(b"quit\r\n").unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
    };
    // One key far more often than any other.
    ask(&b"get hot%20key\r\n".repeat(20_000));
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let sample = thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                ask(&b"get other\r\n".repeat(50));
                thread::sleep(std::time::Duration::from_millis(10));
            }
        });
        let sample = on(&url, "--json top --interval 1s").json();
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        sample
    });
    kill_process(Pid::from_child(&serving), Signal::TERM).unwrap();
    serving.wait().unwrap();
    let node = &sample["nodes"][0];
    assert!(node["software"].as_str().unwrap().starts_with("larder "), "{sample}");
    assert!(node["resident_bytes"].as_u64().unwrap() > 1 << 20, "of the whole process: {sample}");
    let hot: &Vec<Value> = node["hot"].as_array().unwrap();
    assert_eq!(hot[0]["key"], "hot%20key", "{sample}");
    let count = hot[0]["count"].as_u64().unwrap();
    assert!((10_000..30_000).contains(&count), "one in 64 of 20,000 was looked at: {count}");
    let reads = node["commands"].as_array().unwrap().iter().find(|one| one["command"] == "read").unwrap();
    assert!(reads["per_second"].as_f64().unwrap() > 0.0 && reads["p99_us"].is_f64(), "{sample}");
}

/// Of what takes long with much, a terminal shows how far it has come; nothing else does.
#[test]
fn how_far_a_check_and_a_backup_have_come_is_shown_on_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file:{}", folder.path().join("store").display());
    let words: Vec<String> = (0..1_000).map(|number| format!("word-{number:04}")).collect();
    on_with_input(&store, "set add tags -", words.join("\n").as_bytes()).exits(0);
    let dump = folder.path().join("all.dump");
    for line in ["check".to_owned(), format!("backup {}", dump.display())] {
        let Shown { child, terminal } = Shown::start(&store, &line);
        wait(child).exits(0);
        let screen = terminal.end();
        // What is answered at the end tells bytes, not kilobytes.
        let told = String::from_utf8_lossy(&screen.written);
        assert!(told.contains(" bytes of values") && told.contains(" items, ") && told.contains(" KiB"), "{told:?}");
        let last = screen.shown.screen().contents();
        assert!(!last.contains("KiB"), "{line}: it is gone at the end: {last}");
    }
    let done = on(&store, "check");
    assert!(done.exits(0).contains(" bytes of values") && done.stderr.is_empty(), "{done:?}");
}
