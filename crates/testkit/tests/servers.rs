//! The real servers start, stop, die and come back as asked.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use larder_testkit::servers::{Memcached, Version};

fn tell(stream: &mut TcpStream, request: &str) -> std::io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut reply = [0; 1024];
    let read = stream.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..read]).into_owned())
}

fn is_alive(pid: u32) -> bool {
    // A process that has ended but was not waited for yet is a zombie.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn old_is_1_6_18_and_new_is_newer() {
    let old = Memcached::start(Version::Old, &[]);
    assert!(old.stats("").contains("STAT version 1.6.18\r\n"));
    let new = Memcached::start(Version::New, &[]);
    let stats = new.stats("");
    let patch = stats.split("STAT version 1.6.").nth(1).and_then(|rest| rest.split("\r\n").next()).unwrap();
    assert!(patch.parse::<u32>().unwrap() >= 38, "{patch}");
}

#[test]
fn arguments_reach_the_server() {
    for version in Version::ALL {
        let server = Memcached::start(version, &["-m", "77", "-I", "2m"]);
        let settings = server.stats("settings");
        assert!(settings.contains(&format!("STAT maxbytes {}\r\n", 77 << 20)), "{settings}");
        assert!(settings.contains("STAT item_size_max 2097152\r\n"), "{settings}");
    }
}

#[test]
fn the_pid_is_the_servers_own() {
    for version in Version::ALL {
        let server = Memcached::start(version, &[]);
        assert_eq!(server.stat("pid"), u64::from(server.pid()));
    }
}

#[test]
fn a_dropped_server_is_gone() {
    let server = Memcached::start(Version::New, &[]);
    let (pid, addr) = (server.pid(), server.addr());
    drop(server);
    assert!(!is_alive(pid));
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn a_restart_keeps_the_port_and_loses_the_items() {
    let mut server = Memcached::start(Version::Old, &[]);
    let addr = server.addr();
    let mut stream = TcpStream::connect(addr).unwrap();
    assert_eq!(tell(&mut stream, "set k 0 0 1\r\nv\r\n").unwrap(), "STORED\r\n");
    server.kill9();
    server.kill9();
    assert!(tell(&mut stream, "get k\r\n").map_or(true, |reply| reply.is_empty()));
    server.restart();
    assert_eq!(server.addr(), addr);
    assert_eq!(tell(&mut TcpStream::connect(addr).unwrap(), "get k\r\n").unwrap(), "END\r\n");
}

#[test]
fn a_restart_replaces_a_running_server() {
    let mut server = Memcached::start(Version::New, &[]);
    let pid = server.pid();
    server.restart();
    assert_ne!(server.pid(), pid);
    assert!(!is_alive(pid));
}

#[test]
fn a_stopped_server_answers_only_after_cont() {
    let server = Memcached::start(Version::New, &[]);
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    assert!(tell(&mut stream, "version\r\n").unwrap().starts_with("VERSION"));
    server.stop();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(tell(&mut stream, "version\r\n").is_err());
    server.cont();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert!(tell(&mut stream, "").unwrap().starts_with("VERSION"));
}

#[test]
fn a_stopped_server_can_be_killed() {
    let mut server = Memcached::start(Version::New, &[]);
    let pid = server.pid();
    server.stop();
    server.kill9();
    assert!(!is_alive(pid));
}

#[test]
fn a_unix_socket_serves_and_restarts() {
    for version in Version::ALL {
        let mut server = Memcached::start_unix(version, &[]);
        assert!(server.url().starts_with("memcached+unix:///"));
        assert_eq!(server.stat("pid"), u64::from(server.pid()));
        server.restart();
        assert_eq!(server.stat("pid"), u64::from(server.pid()));
    }
}

#[test]
fn ascii_authentication_does_not_hinder_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "user:secret\n").unwrap();
    for version in Version::ALL {
        let server = Memcached::start(version, &["-Y", users.to_str().unwrap()]);
        let mut stream = TcpStream::connect(server.addr()).unwrap();
        assert!(tell(&mut stream, "get k\r\n").unwrap().starts_with("CLIENT_ERROR"));
        assert_eq!(tell(&mut stream, "set a 0 0 11\r\nuser secret\r\n").unwrap(), "STORED\r\n");
    }
}

#[test]
fn resident_memory_is_plausible() {
    let server = Memcached::start(Version::New, &[]);
    assert!((1 << 20..1 << 30).contains(&server.rss_bytes()), "{}", server.rss_bytes());
}

#[test]
#[should_panic(expected = "memcached did not start")]
fn a_bad_argument_is_a_panic_with_the_servers_words() {
    Memcached::start(Version::Old, &["--no-such-option"]);
}

#[test]
fn a_taken_port_is_told_from_other_failures() {
    let mut server = Memcached::start(Version::Old, &[]);
    server.kill9();
    let squatter = TcpListener::bind(server.addr()).unwrap();
    let freed = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        drop(squatter);
    });
    server.restart();
    freed.join().unwrap();
    assert_eq!(server.stat("pid"), u64::from(server.pid()));
}

/// A helper for the next test, run by it in a process of its own: starts a server and waits to be killed.
#[test]
fn helper_holds_a_server() {
    let Some(report) = std::env::var_os("LARDER_TEST_HOLD") else { return };
    // Started from a thread that ends at once: the server must outlive the thread, though not the process.
    let server = std::thread::spawn(|| Memcached::start(Version::New, &[])).join().unwrap();
    std::fs::write(report, server.pid().to_string()).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn servers_die_with_a_killed_test_process() {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("pid");
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["helper_holds_a_server", "--exact"])
        .env("LARDER_TEST_HOLD", &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let read = |path: &Path| std::fs::read_to_string(path).ok().and_then(|text| text.parse::<u32>().ok());
    until("the helper reports a server", || read(&report).is_some());
    let pid = read(&report).unwrap();
    assert!(is_alive(pid));
    holder.kill().unwrap();
    holder.wait().unwrap();
    until("the server is dead", || !is_alive(pid));
}
