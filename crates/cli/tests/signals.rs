//! What signals do to `larder serve`: over memory all of it is gone with the process.

mod common;

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{larder, on, until};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};

/// A server on a socket in a folder; killed when it is dropped.
struct Served {
    child: Child,
    socket: PathBuf,
    log: BufReader<ChildStderr>,
}

impl Served {
    fn start(folder: &Path, options: &[&str]) -> Served {
        let mut server = Served::spawn(folder, options);
        server.wait();
        server
    }

    /// One that need not listen yet.
    fn spawn(folder: &Path, options: &[&str]) -> Served {
        let socket = folder.join("socket");
        let mut child = larder(["serve", "-v"]).arg("-s").arg(&socket).args(options).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Served { child, socket, log }
    }

    /// Until it listens.
    fn wait(&mut self) {
        until("the server", || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended");
            UnixStream::connect(&self.socket).is_ok()
        });
    }

    fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client(BufReader::new(stream))
    }

    /// One that has said who it is, and what it was told.
    fn log_in(&self, user: &str, password: &str) -> (Client, String) {
        let mut client = self.connect();
        let token = format!("{user} {password}");
        let told = client.ask(&format!("set a 0 0 {}\r\n{token}\r\n", token.len()));
        (client, told)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line of its log that has these words in it.
    fn logged(&mut self, words: &str) -> String {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended, and has not said {words:?}");
        }
        line
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

struct Client(BufReader<UnixStream>);

impl Client {
    /// The first line of the reply.
    fn ask(&mut self, request: &str) -> String {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

const REFUSED: &str = "CLIENT_ERROR authentication failure";

#[test]
fn a_hangup_leaves_items_and_connections_and_has_users_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:one\njoe:old\n").unwrap();
    let mut server = Served::start(folder.path(), &["-Y", users.to_str().unwrap()]);
    let (mut ann, told) = server.log_in("ann", "one");
    assert_eq!((&told[..], &server.log_in("bob", "two").1[..]), ("STORED", REFUSED));
    assert_eq!(ann.ask("set k 0 0 1\r\nv\r\n"), "STORED");
    std::fs::write(&users, "bob:two\njoe:new\n").unwrap();
    server.signal(Signal::HUP);
    server.logged("the auth file was read again");
    let held = |server: &Served| {
        for (user, password, told) in [("ann", "one", REFUSED), ("joe", "old", REFUSED), ("joe", "new", "STORED")] {
            assert_eq!(server.log_in(user, password).1, told, "{user} {password}");
        }
        let (mut bob, told) = server.log_in("bob", "two");
        assert_eq!((&told[..], &bob.ask("mg k s\r\n")[..]), ("STORED", "HD s1"));
    };
    held(&server);
    for broken in [Some("ann:one\nno colon\n"), Some(""), None] {
        match broken {
            Some(text) => std::fs::write(&users, text).unwrap(),
            None => std::fs::remove_file(&users).unwrap(),
        }
        server.signal(Signal::HUP);
        let line = server.logged("users and passwords stay as they were");
        assert!(line.contains("WARN") && !line.contains("one"), "{line}");
        held(&server);
    }
    assert_eq!(ann.ask("mg k s\r\n"), "HD s1", "who was in stays");
    assert!(server.child.try_wait().unwrap().is_none());
}

#[test]
fn a_hangup_does_nothing_to_a_server_that_reads_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Served::start(folder.path(), &[]);
    let mut client = server.connect();
    assert_eq!(client.ask("set k 0 0 1\r\nv\r\n"), "STORED");
    for _ in 0..3 {
        server.signal(Signal::HUP);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(client.ask("mg k s\r\n"), "HD s1");
    }
    server.signal(Signal::USR1);
    until("its end", || server.child.try_wait().unwrap().is_some());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn usr1_lets_half_a_request_finish_and_ends_as_term_does() {
    for signal in [Signal::TERM, Signal::USR1] {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Served::start(folder.path(), &["-o", "drain_timeout_ms=60000"]);
        let mut client = server.connect();
        assert_eq!(client.ask("mn\r\nset k 0 0 5\r\nhel"), "MN");
        server.signal(signal);
        until("no more connections", || UnixStream::connect(&server.socket).is_err());
        // Neither does that end it at once.
        server.signal(Signal::HUP);
        server.signal(Signal::USR1);
        assert_eq!(client.ask("lo\r\n"), "STORED", "{signal:?}");
        until("its end", || server.child.try_wait().unwrap().is_some());
        assert_eq!(server.child.wait().unwrap().code(), Some(0), "{signal:?}");
    }
}

#[test]
fn a_hangup_has_a_renewed_certificate_shown_to_who_comes_then() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    };
    renew();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = larder(["serve", "-v", "-l", "127.0.0.1", "-p", &port.to_string(), "-Z"]);
    let mut child = command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).spawn().unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let mut server = Served { child, socket: PathBuf::new(), log };
    until("the server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    // It trusts what is in the file by then.
    let trusting = format!("memcached+tls://localhost:{port}?tls_ca={}", cert.display());
    on(&trusting, "counter add hits 3").exits(0);
    renew();
    on(&trusting, "counter get hits").fails(2, "certificate");
    server.signal(Signal::HUP);
    server.logged("certificate and key were read again");
    assert_eq!(on(&trusting, "counter get hits").exits(0), "3\n");
}

#[test]
fn a_hangup_while_a_folder_is_being_opened_ends_nothing_and_users_are_those_of_then() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file:{}", folder.path().join("store").display());
    let places = ["first", "second"].map(|name| folder.path().join(name));
    places.iter().for_each(|place| std::fs::create_dir(place).unwrap());
    let users = folder.path().join("users");
    std::fs::write(&users, "ann:one\n").unwrap();
    let first = Served::start(&places[0], &["--store", &store]);
    let waiting = format!("{store}?wait_ms=60000");
    let mut second = Served::spawn(&places[1], &["--store", &waiting, "-Y", users.to_str().unwrap()]);
    // It has read its arguments by then, and waits for the folder.
    until("the handler", || catches_hangups(&second.child));
    std::fs::write(&users, "bob:two\n").unwrap();
    second.signal(Signal::HUP);
    drop(first);
    second.wait();
    for (user, password, told) in [("ann", "one", REFUSED), ("bob", "two", "STORED")] {
        assert_eq!(second.log_in(user, password).1, told, "{user}");
    }
}

/// What it read by then may be what was renewed meanwhile.
#[test]
fn a_hangup_while_files_are_read_for_the_first_time_has_them_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let [cert, key, renewed] = ["cert.pem", "key.pem", "renewed.pem"].map(|name| folder.path().join(name));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(&renewed, made.cert.pem()).unwrap();
    assert!(Command::new("mkfifo").arg(&cert).status().unwrap().success());
    let files = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    // Each of the threads may see the signal, and has nobody to tell of it; so many of them begin before the last one is there.
    let mut server = Served::spawn(folder.path(), &[&["-Z", "-t", "64", "--runtime", "per-core"], &files[..]].concat());
    // Whoever reads it is there once it can be written without waiting.
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let mut pipe = None;
    until("the server at its certificate", || {
        pipe = options.open(&cert).ok();
        pipe.is_some()
    });
    std::fs::rename(&renewed, &cert).unwrap();
    server.signal(Signal::HUP);
    pipe.unwrap().write_all(made.cert.pem().as_bytes()).unwrap();
    server.wait();
    let (id, is_read) = (Pid::from_child(&server.child), AtomicBool::new(false));
    std::thread::scope(|scope| {
        // A server that says nothing has no more lines once it is ended.
        scope.spawn(|| {
            let begun = Instant::now();
            while !is_read.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ = kill_process(id, Signal::KILL);
        });
        server.logged("certificate and key were read again");
        is_read.store(true, Ordering::Relaxed);
    });
}

/// As the system tells of the process.
fn catches_hangups(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    u64::from_str_radix(caught, 16).unwrap() & (1 << (Signal::HUP.as_raw() - 1)) != 0
}
