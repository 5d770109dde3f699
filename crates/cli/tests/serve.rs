//! `larder serve` and `larder memcached`: the process, and what it keeps.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use common::{finish, larder, on, until, wait};

/// A server on a socket in a folder; killed when it is dropped.
struct Served {
    child: Child,
    socket: PathBuf,
}

impl Served {
    fn start(folder: &Path, options: &[&str]) -> Served {
        Served::by(larder(["serve"]), folder, options)
    }

    fn by(mut command: Command, folder: &Path, options: &[&str]) -> Served {
        let socket = folder.join("socket");
        _ = std::fs::remove_file(&socket);
        command.arg("-s").arg(&socket).args(options);
        let mut child = command.spawn().unwrap();
        until("the server", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended");
            UnixStream::connect(&socket).is_ok()
        });
        Served { child, socket }
    }

    fn url(&self) -> String {
        format!("memcached+unix://{}", self.socket.display())
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// A request, and the first line of its reply.
    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn in_folder(folder: &Path) -> Vec<String> {
    vec!["--store".to_owned(), format!("file:{}", folder.join("store").display())]
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// Adds one as fast as it is answered, until the server is gone: how many times it was.
fn count(mut stream: UnixStream, key: &str) -> u64 {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut count, mut line) = (0, String::new());
    loop {
        line.clear();
        let asked = stream.write_all(format!("ma {key} N0 J1 v\r\n").as_bytes());
        if asked.is_err() || reader.read_line(&mut line).unwrap_or(0) == 0 {
            return count;
        }
        assert_eq!(line, "VA ".to_owned() + line.trim_start_matches("VA "), "{line}");
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || !line.ends_with('\n') {
            return count;
        }
        count += 1;
        assert_eq!(line.trim_end(), count.to_string());
    }
}

#[test]
fn a_killed_server_has_lost_nothing_that_it_answered() {
    let folder = tempfile::tempdir().unwrap();
    let options = in_folder(folder.path());
    for round in 0..4 {
        let server = Served::start(folder.path(), &words(&options));
        let counters: Vec<_> = (0..8)
            .map(|task| {
                let stream = server.connect();
                std::thread::spawn(move || count(stream, &format!("n{round}-{task}")))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(150 + 80 * round));
        server.kill();
        let told: Vec<u64> = counters.into_iter().map(|counter| counter.join().unwrap()).collect();
        assert!(told.iter().sum::<u64>() > 0, "nothing was counted");
        let server = Served::start(folder.path(), &words(&options));
        for (task, &told) in told.iter().enumerate() {
            let mut stream = server.connect();
            stream.write_all(format!("mg n{round}-{task} v\r\nquit\r\n").as_bytes()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            let stored: u64 = reply.lines().nth(1).map_or(0, |line| line.parse().unwrap());
            // The one that was on its way may have been written, too.
            assert!((told..=told + 1).contains(&stored), "{stored} where {told} were told");
        }
    }
}

#[test]
fn structures_outlive_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let options = in_folder(folder.path());
    let server = Served::start(folder.path(), &words(&options));
    on(&server.url(), "counter add hits 5").exits(0);
    on(&server.url(), "set add tags red").exits(0);
    let incarnation = |server: &Served| {
        let mut stream = server.connect();
        stream.write_all(b"stats settings\r\nquit\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        assert!(reply.contains("STAT durability disk\r\n") && reply.contains("STAT evictions off\r\n"), "{reply}");
        reply.lines().find(|line| line.starts_with("STAT incarnation ")).unwrap().to_owned()
    };
    let before = incarnation(&server);
    // SIGTERM: it drains and closes.
    let id = rustix::process::Pid::from_raw(server.child.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let mut server = server;
    until("its end", || server.child.try_wait().unwrap().is_some());
    drop(server);
    let server = Served::start(folder.path(), &words(&options));
    assert_eq!(incarnation(&server), before);
    assert_eq!(on(&server.url(), "counter get hits").exits(0), "5\n");
    on(&server.url(), "set has tags red").exits(0);
    // While it serves, nobody else may have the folder.
    let url = format!("file:{}?wait_ms=50", folder.path().join("store").display());
    on(&url, "counter get hits").fails(6, &format!("open in process {}", server.child.id()));
}

#[test]
fn memory_forgets_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start(folder.path(), &["-m", "16"]);
    on(&server.url(), "counter add hits 5").exits(0);
    assert_eq!(server.ask("version\r\n"), "VERSION 1.6.45-larder");
    server.kill();
    let server = Served::start(folder.path(), &["-m", "16"]);
    on(&server.url(), "counter get hits").fails(3, "absent");
}

#[test]
fn by_the_name_of_memcached_it_takes_its_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("memcached");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_larder"), &link).unwrap();
    let server = Served::by(Command::new(&link), folder.path(), &["-m", "8", "-c", "64", "-t", "2", "-U", "0", "-vv"]);
    assert_eq!(server.ask("set k 0 0 1\r\nx\r\n"), "STORED");
    server.kill();
    let said = finish(Command::new(&link).arg("-V").stdout(std::process::Stdio::piped())).exits(0);
    assert!(said.starts_with("memcached 1.6."), "{said}");
}

#[test]
fn what_cannot_be_served_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (options, said) in [
        (&["--store", "redis://localhost"][..], "cannot be served"),
        (&["--store", "file:x", "--evict"], "drops nothing"),
        (&["--store", "file:x?snyc=always"], "did you mean sync"),
        (&["-c"], "takes a value"),
        (&["--threads", "0"], "takes 1 to 256"),
        (&["-l", "no such host"], "no such host"),
    ] {
        let mut command = larder(["serve"]);
        command.current_dir(folder.path()).args(options);
        let done = wait(command.spawn().unwrap());
        assert_ne!(done.code(), 0, "{options:?}");
        assert!(done.stderr.contains(said), "{options:?}: {}", done.stderr);
    }
}
