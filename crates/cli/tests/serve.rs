//! `larder serve` and `larder memcached`: the process, and what it keeps.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{finish, larder, number_in, on, until, wait};
use larder_testkit::servers::rss_bytes_of;

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

    /// By SIGTERM.
    fn end(mut self) {
        let id = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        until("its end", || self.child.try_wait().unwrap().is_some());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// All that it said on standard error until it was killed, which this does.
    fn stderr(mut self) -> String {
        self.child.kill().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn in_folder_synced(folder: &Path, sync: &str) -> Vec<String> {
    vec!["--store".to_owned(), format!("file:{}?sync={sync}", folder.join(sync).display())]
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

/// At every setting: a reply waits at least until the system has what it says, and the system outlives the process.
#[test]
fn a_killed_server_has_lost_nothing_that_it_answered() {
    let folder = tempfile::tempdir().unwrap();
    for sync in ["always", "every:100ms", "never"] {
        kill_while_it_counts(folder.path(), sync);
    }
}

fn kill_while_it_counts(folder: &Path, sync: &str) {
    let options = in_folder_synced(folder, sync);
    for round in 0..4 {
        let server = Served::start(folder, &words(&options));
        let counters: Vec<_> = (0..8)
            .map(|task| {
                let stream = server.connect();
                std::thread::spawn(move || count(stream, &format!("n{round}-{task}")))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(150 + 80 * round));
        server.kill();
        let told: Vec<u64> = counters.into_iter().map(|counter| counter.join().unwrap()).collect();
        assert!(told.iter().sum::<u64>() > 0, "nothing was counted at {sync}");
        let server = Served::start(folder, &words(&options));
        for (task, &told) in told.iter().enumerate() {
            let mut stream = server.connect();
            stream.write_all(format!("mg n{round}-{task} v\r\nquit\r\n").as_bytes()).unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            let stored: u64 = reply.lines().nth(1).map_or(0, |line| line.parse().unwrap());
            // The one that was on its way may have been written, too.
            assert!((told..=told + 1).contains(&stored), "{stored} where {told} were told, at {sync}");
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
    // It drains and closes.
    server.end();
    let server = Served::start(folder.path(), &words(&options));
    assert_eq!(incarnation(&server), before);
    assert_eq!(on(&server.url(), "counter get hits").exits(0), "5\n");
    on(&server.url(), "set has tags red").exits(0);
    // While it serves, nobody else may have the folder.
    let url = format!("file:{}?wait_ms=50", folder.path().join("store").display());
    on(&url, "counter get hits").fails(6, &format!("open in process {}", server.child.id()));
}

/// How many batches the store has noted to be on disk: once it is closed.
fn synced(folder: &Path) -> u64 {
    let noted = std::fs::read_to_string(folder.join("store/state")).unwrap_or_default();
    noted.lines().find_map(|line| line.strip_prefix("sequence ")).map_or(0, |sequence| sequence.parse().unwrap())
}

/// At `sync=never` nothing is synced while it serves; SIGTERM does that before it ends, and SIGKILL cannot.
#[test]
fn what_was_answered_is_on_disk_when_a_server_that_is_told_to_end_has_ended() {
    const WRITES: u64 = 200;
    for is_told in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("file:{}?sync=never", folder.path().join("store").display());
        let server = Served::start(folder.path(), &["--store", &store]);
        for n in 0..WRITES {
            assert_eq!(server.ask(&format!("set k{n} 0 0 1\r\nx\r\n")), "STORED");
        }
        assert!(synced(folder.path()) < WRITES, "nobody asked for it");
        if is_told {
            server.end()
        } else {
            server.kill()
        }
        assert_eq!(synced(folder.path()) >= WRITES, is_told);
    }
}

/// What a client is in the middle of when SIGTERM comes is answered, and what is answered is there afterwards.
#[test]
fn a_server_that_is_told_to_end_lets_half_a_request_finish() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file:{}?sync=never", folder.path().join("store").display());
    let mut server = Served::start(folder.path(), &["--store", &store, "-o", "drain_timeout_ms=60000"]);
    let mut half = BufReader::new(server.connect());
    half.get_mut().write_all(b"mn\r\nset k 0 0 5\r\nhel").unwrap();
    let mut line = String::new();
    half.read_line(&mut line).unwrap();
    assert_eq!(line, "MN\r\n", "it has come so far");
    let id = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    until("no more connections", || UnixStream::connect(&server.socket).is_err());
    assert!(server.child.try_wait().unwrap().is_none(), "it waits for the rest");
    half.get_mut().write_all(b"lo\r\n").unwrap();
    line.clear();
    half.read_line(&mut line).unwrap();
    assert_eq!(line, "STORED\r\n");
    until("its end", || server.child.try_wait().unwrap().is_some());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    drop(server);
    let server = Served::start(folder.path(), &["--store", &store]);
    assert_eq!(server.ask("get k\r\n"), "VALUE k 0 5");
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

/// By either of its names it serves the store that it is given, and refuses one that cannot be served.
#[test]
fn as_memcached_it_serves_the_store_it_is_given_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("memcached");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_larder"), &link).unwrap();
    let options = in_folder(folder.path());
    for (number, command) in [larder(["memcached"]), Command::new(&link)].into_iter().enumerate() {
        let server = Served::by(command, folder.path(), &words(&options));
        on(&server.url(), "counter add hits 5").exits(0);
        server.kill();
        let server = Served::by(larder(["memcached"]), folder.path(), &words(&options));
        assert_eq!(on(&server.url(), "counter get hits").exits(0), format!("{}\n", 5 * (number + 1)));
    }
    for line in ["memcached --store redis://localhost", "--store redis://localhost memcached"] {
        let mut command = larder(line.split(' '));
        finish(command.arg("-s").arg(folder.path().join("none"))).fails(2, "redis://localhost cannot be served");
    }
    // What the environment names for clients is nothing to serve.
    let mut command = larder(["memcached"]);
    command.env("LARDER_STORE", "redis://localhost");
    let server = Served::by(command, folder.path(), &[]);
    assert_eq!(server.ask("get L.hits.m\r\n"), "END");
}

/// As clients take it: a folder that memory was served in the place of would be found empty by all who come.
#[test]
fn a_scheme_in_capitals_is_served_as_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let durability = |command: Command| {
        let server = Served::by(command, folder.path(), &[]);
        let mut stream = server.connect();
        stream.write_all(b"stats settings\r\nquit\r\n").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply.lines().find_map(|line| line.strip_prefix("STAT durability ")).unwrap().to_owned()
    };
    let file = format!("FILE:{}", folder.path().join("store").display());
    for (url, word) in [(file.as_str(), "disk"), ("MEMORY:", "process"), ("Memory:", "process")] {
        let mut in_environment = larder(["serve"]);
        in_environment.env("LARDER_STORE", url);
        assert_eq!(durability(in_environment), word, "LARDER_STORE={url}");
        assert_eq!(durability(larder(["serve", "--store", url])), word, "--store {url}");
    }
    // A mistyped one is no client's.
    let mut command = larder(["serve", "-s", "none"]);
    finish(command.env("LARDER_STORE", "MEMORY:x").current_dir(folder.path())).fails(2, "cannot be served");
}

/// Runs `larder serve` with these two descriptors as systemd hands them over: from 3 on, and the process is told that they are meant.
fn activated(descriptors: [OwnedFd; 2], options: &[&str]) -> Command {
    let script = "exec 3<&0 4<&1 0</dev/null 1>/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\" serve \"$@\"";
    let [first, second] = descriptors;
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_larder")]).args(options);
    command.stdin(first).stdout(second).stderr(std::process::Stdio::piped());
    command
}

#[test]
fn sockets_of_systemd_are_served_and_systemd_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let told = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let next = || {
        let mut buffer = [0; 256];
        let length = told.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = tcp.local_addr().unwrap();
    let path = folder.path().join("socket");
    let unix = UnixListener::bind(&path).unwrap();
    // On an address of its own it would find the port taken.
    let mut command = activated([tcp.into(), unix.into()], &["-p", &addr.port().to_string()]);
    let mut child = command.env("NOTIFY_SOCKET", folder.path().join("notify")).spawn().unwrap();
    // Its ends of them are the program's alone.
    drop(command);
    assert_eq!(next(), "READY=1");
    on(&format!("memcached://{addr}"), "counter add hits").exits(0);
    let by_path = format!("memcached+unix://{}", path.display());
    assert_eq!(on(&by_path, "counter get hits").exits(0), "1\n");
    let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert_eq!(next(), "STOPPING=1");
    assert!(child.wait().unwrap().success());
}

/// In the background, where only descriptors come that are meant for it: a lock of whoever started it is let go.
#[test]
fn in_the_background_it_has_sockets_of_systemd_and_no_other_file_of_whoever_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let [lock, pid, socket] = ["lock", "pid", "socket"].map(|name| folder.path().join(name));
    let free = || finish(Command::new("flock").arg("-n").arg(&lock).arg("true")).status.success();
    let ends = |pid: &Path| {
        let server = rustix::process::Pid::from_raw(number_in(pid)).unwrap();
        assert!(free());
        rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
        until("its end", || !pid.exists());
    };
    let mut flock = Command::new("flock");
    flock.stdout(Stdio::piped()).stderr(Stdio::piped()).env_remove("LARDER_STORE");
    flock.arg(&lock).arg(env!("CARGO_BIN_EXE_larder")).args(["serve", "-d", "-s"]).arg(&socket).arg("-P").arg(&pid);
    flock.args(["-o", "exit_when_idle=30"]);
    finish(&mut flock).exits(0);
    until("the server", || UnixStream::connect(&socket).is_ok());
    ends(&pid);
    // With a lock as descriptor 9.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let path = folder.path().join("passed");
    let unix = UnixListener::bind(&path).unwrap();
    let options = ["-d", "-p", &addr.port().to_string(), "-P", pid.to_str().unwrap(), "-o", "exit_when_idle=30"];
    let script = "exec 9>\"$LOCK\"; flock 9; exec 3<&0 4<&1 0</dev/null 1>/dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec \"$0\" serve \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_larder")]).args(options).env("LOCK", &lock);
    command.stdin(OwnedFd::from(listener)).stdout(OwnedFd::from(unix)).stderr(Stdio::piped());
    finish(&mut command).exits(0);
    drop(command);
    until("the server", || pid.exists());
    on(&format!("memcached://{addr}"), "counter add hits").exits(0);
    let by_path = format!("memcached+unix://{}", path.display());
    assert_eq!(on(&by_path, "counter get hits").exits(0), "1\n");
    ends(&pid);
}

#[test]
fn a_descriptor_of_systemd_that_cannot_be_served_is_an_error() {
    let listener = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap());
    let (connection, _other) = UnixStream::pair().unwrap();
    for (descriptor, said) in [
        (OwnedFd::from(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()), "cannot be served"),
        (OwnedFd::from(std::fs::File::open("/dev/null").unwrap()), "is not a socket"),
        (OwnedFd::from(connection), "it is a connection, not a listener"),
    ] {
        finish(&mut activated([listener(), descriptor], &[])).fails(2, said);
    }
}

/// The value of a line of a unit file.
fn value_in<'a>(unit: &'a str, name: &str) -> &'a str {
    unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn the_unit_files_are_true_of_the_program() {
    const SERVICE: &str = include_str!("../../../dist/larder.service");
    const SOCKET: &str = include_str!("../../../dist/larder.socket");
    let line = value_in(SERVICE, "ExecStart");
    let mut words = line.split(' ');
    let (program, verb) = (words.next().unwrap(), words.next());
    assert!(program.ends_with("/larder") && verb == Some("serve"), "{line}");
    let args = larder_server::Args::parse(words).unwrap();
    assert!(args.ignored.is_empty(), "{:?}", args.ignored);
    assert_eq!(args.store, None, "a store in a folder would need StateDirectory=");
    let limits = &args.config.limits;
    let seconds = |name| value_in(SERVICE, name).parse::<u64>().unwrap() * 1_000;
    assert!(seconds("TimeoutStopSec") > limits.drain_timeout_ms, "systemd kills what drains");
    let files = value_in(SERVICE, "LimitNOFILE").parse::<usize>().unwrap();
    assert!(files > limits.connections_max + 64, "{files} files for {} connections", limits.connections_max);
    assert_eq!((value_in(SERVICE, "Type"), value_in(SERVICE, "Requires")), ("notify", "larder.socket"));
    assert_eq!(value_in(SOCKET, "ListenStream"), "127.0.0.1:11211", "where clients look first");
    assert_eq!(value_in(SOCKET, "Backlog"), limits.backlog.to_string());
    // systemd's own reading, where it is installed; of a program that is there.
    let folder = tempfile::tempdir().unwrap();
    let units = [("larder.service", SERVICE), ("larder.socket", SOCKET)].map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text.replace(program, env!("CARGO_BIN_EXE_larder"))).unwrap();
        path
    });
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(units);
    match verify.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => {
            let done = wait(child);
            assert_eq!((done.code(), &done.stderr[..]), (0, ""));
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
}

#[test]
fn over_tls_it_serves_those_who_trust_it_and_refuses_the_rest_clearly() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut command = larder(["serve", "-l", "127.0.0.1", "-p", &port.to_string(), "-Z"]);
    let mut child = command.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).spawn().unwrap();
    until("the server", || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let trusted = format!("memcached+tls://localhost:{port}?tls_ca={}", cert.display());
    on(&trusted, "counter add hits 3").exits(0);
    assert_eq!(on(&trusted, "counter get hits").exits(0), "3\n");
    on(&format!("memcached+tls://localhost:{port}"), "counter get hits").fails(2, "invalid peer certificate");
    on(&format!("memcached://127.0.0.1:{port}"), "counter get hits").fails(2, "a server that speaks TLS");
    on(&trusted, "counter get hits").exits(0);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A server that a shell has given these limits of open files.
fn served_under(limits: &str, folder: &Path, options: &[&str]) -> Served {
    let larder = larder(["serve"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits} && exec \"$0\" \"$@\"")]).arg(larder.get_program()).args(larder.get_args());
    shell.env_remove("LARDER_STORE").stdout(Stdio::null()).stderr(Stdio::piped());
    Served::by(shell, folder, options)
}

#[test]
fn as_many_connections_as_are_allowed_are_served_though_fewer_files_were() {
    const CONNECTIONS: usize = 200;
    let folder = tempfile::tempdir().unwrap();
    let server = served_under("ulimit -Sn 64", folder.path(), &["-c", &CONNECTIONS.to_string()]);
    let mut streams = Vec::new();
    // One that came before may not be gone yet.
    until("as many connections", || {
        let (mut stream, mut reply) = (server.connect(), [0; 4]);
        let asked = stream.write_all(b"mn\r\n").and_then(|()| stream.read_exact(&mut reply));
        streams.extend(asked.ok().filter(|()| &reply == b"MN\r\n").map(|()| stream));
        streams.len() == CONNECTIONS
    });
    assert_eq!(server.ask(""), "ERROR Too many open connections");
    assert_eq!(server.stderr(), "");
}

#[test]
fn more_connections_than_files_may_ever_be_open_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    // More than root may have, either.
    let server = served_under("ulimit -n 64", folder.path(), &["-t", "2", "-c", "9000000000"]);
    assert_eq!(server.ask("mn\r\n"), "MN");
    let said = server.stderr();
    assert!(said.contains("WARN") && said.contains("9000000072 files") && said.contains("may have 64"), "{said}");
    // What is enough is enough.
    let server = served_under("ulimit -n 372", folder.path(), &["-t", "2", "-c", "300"]);
    assert_eq!(server.ask("mn\r\n"), "MN");
    assert_eq!(server.stderr(), "");
}

/// Who may raise the limit that nobody else may goes on with a higher one, also as another user. Root may where nobody took that from it, as containers do.
#[test]
fn root_raises_the_limit_of_files_that_others_may_not() {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let may = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    if u64::from_str_radix(may, 16).unwrap() & (1 << CAP_SYS_RESOURCE) == 0 {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for user in ["root", "nobody"] {
        let options = ["-t", "2", "-c", "300", "-u", user];
        let server = served_under("ulimit -n 64", folder.path(), &options);
        assert_eq!(server.ask("mn\r\n"), "MN");
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.child.id())).unwrap();
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        assert!(files.split_whitespace().take(2).all(|most| most == "372"), "{user}: {files}");
        assert_eq!(server.stderr(), "");
    }
}

/// Each costs the server less than this much memory.
const IDLE_BYTES_MAX: u64 = 8 * 1024;
/// What who never reads may hold: what may be gathered of replies, the largest value of them, and what is read at once.
const DEAF_BYTES_MAX: u64 = 3 << 20;
/// Where nobody else works on the machine, `LARDER_ABUSE=1` holds the slowest hundredth to twice what it was, and asks more often.
const ABUSE: &str = "LARDER_ABUSE";

/// How long each of so many sets and gets took, one after the other, the quickest first.
fn asked(server: &Served, rounds: usize) -> Vec<Duration> {
    let mut other = server.connect();
    let mut took: Vec<Duration> = (0..rounds)
        .map(|round| {
            let (begun, round) = (std::time::Instant::now(), round % 1_000);
            other.write_all(format!("set n 0 0 3\r\n{round:03}\r\nget n\r\n").as_bytes()).unwrap();
            let mut reply = vec![0; 8 + 13 + 5 + 5];
            other.read_exact(&mut reply).unwrap();
            assert_eq!(reply, format!("STORED\r\nVALUE n 0 3\r\n{round:03}\r\nEND\r\n").as_bytes());
            begun.elapsed()
        })
        .collect();
    took.sort();
    took
}

#[test]
fn ten_thousand_idle_connections_a_thousand_halves_and_a_deaf_reader_cost_little_and_others_are_served() {
    const IDLE: usize = 10_000;
    const HALVES: usize = 1_000;
    let wanted = (IDLE + HALVES + 500) as u64;
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    assert!(limits.maximum.is_none_or(|most| most >= wanted), "at most {:?} files may be open here", limits.maximum);
    let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let is_strict = std::env::var_os(ABUSE).is_some();
    let rounds = if is_strict { 100_000 } else { 1_000 };
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start(folder.path(), &["-c", "12000"]);
    assert_eq!(server.ask(&format!("set big 0 0 500000\r\n{}\r\n", "v".repeat(500_000))), "STORED");
    let quiet = asked(&server, rounds);
    let before = rss_bytes_of(server.child.id());
    let idle: Vec<UnixStream> = (0..IDLE).map(|_| server.connect()).collect();
    let halves: Vec<UnixStream> = (0..HALVES)
        .map(|_| {
            let mut half = server.connect();
            half.write_all(b"set k 0 0 100000\r\n0123456789").unwrap();
            half
        })
        .collect();
    let mut deaf = server.connect();
    deaf.set_nonblocking(true).unwrap();
    // Half a gigabyte is asked for; the server reads no more of it than it may answer.
    _ = deaf.write_all(&b"get big\r\n".repeat(1_000));
    let abused = asked(&server, rounds);
    let grown = rss_bytes_of(server.child.id()).saturating_sub(before);
    let each = grown.saturating_sub(DEAF_BYTES_MAX) / (IDLE + HALVES) as u64;
    assert!(each < IDLE_BYTES_MAX, "{each} bytes a connection");
    let p99 = |took: &[Duration]| took[took.len() * 99 / 100];
    println!("{grown} bytes more; p99 {:?}, and {:?} without", p99(&abused), p99(&quiet));
    if is_strict {
        assert!(p99(&abused) <= 2 * p99(&quiet), "{:?} and {:?}", p99(&abused), p99(&quiet));
    }
    // They are alive all the same.
    for mut stream in [&idle[0], &idle[IDLE - 1]] {
        stream.write_all(b"mn\r\n").unwrap();
        let mut reply = [0; 4];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"MN\r\n");
    }
    drop((halves, deaf));
}

#[test]
fn what_was_flushed_stays_so_over_a_kill_and_what_came_after_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let options = in_folder(folder.path());
    for round in 0..3 {
        let server = Served::start(folder.path(), &words(&options));
        // More than one batch of removals.
        let sets: String = (0..5_000).map(|key| format!("set k{key} 0 0 1 noreply\r\nx\r\n")).collect();
        let request = format!("{sets}flush_all\r\nset after 0 0 1\r\n{round}\r\n");
        let mut stream = server.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let lines: Vec<String> = BufReader::new(stream).lines().take(2).map(Result::unwrap).collect();
        assert_eq!(lines, ["OK", "STORED"]);
        server.kill();
        let server = Served::start(folder.path(), &words(&options));
        for key in [0, 1, 2_500, 4_999] {
            assert_eq!(server.ask(&format!("get k{key}\r\n")), "END");
        }
        let mut stream = server.connect();
        stream.write_all(b"lru_crawler metadump all\r\nget after\r\nquit\r\n").unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        assert_eq!(told.matches("key=").count(), 1, "{told}");
        assert!(told.ends_with(&format!("VALUE after 0 1\r\n{round}\r\nEND\r\n")), "{told}");
        server.kill();
    }
}

/// A listing goes through what is durable: it waits until what came before it on its connection is.
#[test]
fn a_listing_finds_what_came_before_it_on_its_connection() {
    let folder = tempfile::tempdir().unwrap();
    let server = Served::start(folder.path(), &words(&in_folder(folder.path())));
    for round in 0..50 {
        let mut stream = server.connect();
        let request = format!(
            "set k{round} 0 0 1\r\nx\r\nlru_crawler metadump all\r\nset l{round} 0 0 1 noreply\r\nx\r\nstats sizes\r\nflush_all\r\nlru_crawler \
             mgdump all\r\nquit\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut told = String::new();
        stream.read_to_string(&mut told).unwrap();
        let lines: Vec<&str> = told.lines().collect();
        let [stored, begun, key, end, sizes, end_of_sizes, flushed, begun_again, end_again] = lines[..] else {
            panic!("{told}")
        };
        assert_eq!((stored, begun, end), ("STORED", "OK", "END"), "{told}");
        assert!(key.starts_with(&format!("key=k{round} ")), "{told}");
        assert!(sizes.starts_with("STAT ") && sizes.ends_with(" 2"), "{told}");
        assert_eq!((end_of_sizes, flushed, begun_again, end_again), ("END", "OK", "OK", "EN"), "{told}");
    }
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

#[test]
fn a_served_store_is_backed_up_as_of_one_moment_while_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &words(&in_folder(folder.path())));
    // More than one part of the backup.
    let sets: String = (0..2_000).map(|number| format!("set k{number:04} 0 0 1000\r\n{number:01000}\r\n")).collect();
    let mut filling = served.connect();
    filling.write_all(sets.as_bytes()).unwrap();
    let stored = BufReader::new(filling).lines().take(2_000).filter(|line| line.as_ref().unwrap() == "STORED");
    assert_eq!(stored.count(), 2_000);
    // The two are counted in turns, so that in every moment the first is equal, or one ahead.
    let mut writing = served.connect();
    let stopped = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stops = stopped.clone();
    let writer = std::thread::spawn(move || {
        let mut lines = BufReader::new(writing.try_clone().unwrap()).lines();
        let mut count = 0;
        while !stops.load(std::sync::atomic::Ordering::Relaxed) {
            for key in ["a-first", "z-last"] {
                writing.write_all(format!("ma {key} N0 J1 v\r\n").as_bytes()).unwrap();
                assert!(lines.next().unwrap().unwrap().starts_with("VA "));
                lines.next().unwrap().unwrap();
            }
            count += 1;
        }
        count
    });
    let dumps: Vec<_> = (0..3).map(|number| folder.path().join(format!("{number}.dump"))).collect();
    for dump in &dumps {
        let said = finish(larder(["--store", &served.url(), "backup"]).arg(dump)).exits(0);
        assert!(said.contains("2002 items"), "{said}");
    }
    stopped.store(true, std::sync::atomic::Ordering::Relaxed);
    let count: u64 = writer.join().unwrap();
    assert!(count > 3, "nobody wrote meanwhile");
    for (number, dump) in dumps.iter().enumerate() {
        let restored = format!("file:{}", folder.path().join(format!("restored{number}")).display());
        finish(larder(["--store", &restored, "restore"]).arg(dump)).exits(0);
        let [first, last] = numbers(&restored, ["a-first", "z-last"]);
        assert!(first == last || first == last + 1, "{first} and {last} were never there at once");
    }
}

/// A plain client has a token as a bare number, and keeps it.
#[test]
fn tokens_of_the_served_store_that_was_backed_up_are_good_for_nothing_in_the_restored_one() {
    let folder = tempfile::tempdir().unwrap();
    let urls = ["from", "to"].map(|name| format!("file:{}", folder.path().join(name).display()));
    let dump = folder.path().join("dump");
    let served = Served::start(folder.path(), &["--store", &urls[0]]);
    let tokens = ["v1", "v2"].map(|value| {
        assert_eq!(served.ask(&format!("set k 0 0 2\r\n{value}\r\n")), "STORED");
        served.ask("mg k c\r\n").strip_prefix("HD c").unwrap().to_owned()
    });
    finish(larder(["--store", &served.url(), "backup"]).arg(&dump)).exits(0);
    drop(served);
    finish(larder(["--store", &urls[1], "restore"]).arg(&dump)).exits(0);
    let served = Served::start(folder.path(), &["--store", &urls[1]]);
    for token in tokens {
        assert_eq!(served.ask(&format!("cas k 0 0 2 {token}\r\nv3\r\n")), "EXISTS", "{token}");
    }
    // As large as they are, they are a client's own.
    let token = served.ask("mg k c\r\n").strip_prefix("HD c").unwrap().to_owned();
    assert_eq!(served.ask(&format!("cas k 0 0 2 {token}\r\nv3\r\n")), "STORED");
}

/// Reads numbers of a store in a folder, by a server of its own.
fn numbers(url: &str, keys: [&str; 2]) -> [u64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start(folder.path(), &["--store", url]);
    let mut stream = served.connect();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    keys.map(|key| {
        stream.write_all(format!("mg {key} v\r\n").as_bytes()).unwrap();
        assert!(lines.next().unwrap().unwrap().starts_with("VA "));
        lines.next().unwrap().unwrap().parse().unwrap()
    })
}

#[test]
fn a_server_that_can_make_no_backup_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("x.dump");
    let memory = Served::start(folder.path(), &[]);
    finish(larder(["--store", &memory.url(), "backup"]).arg(&dump)).fails(8, "makes no backups");
    drop(memory);
    let mut options = in_folder(folder.path());
    options.push("-X".to_owned());
    let forbidden = Served::start(folder.path(), &words(&options));
    finish(larder(["--store", &forbidden.url(), "backup"]).arg(&dump)).fails(8, "not allowed");
    assert!(!dump.exists() && !folder.path().join("x.dump.new").exists());
}

#[test]
fn a_server_that_root_starts_goes_on_as_the_user_that_is_named() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let server = Served::by(larder(["memcached"]), folder.path(), &["-u", "nobody", "-m", "64"]);
    assert_eq!(server.ask("set k 0 0 1\r\nv\r\n"), "STORED");
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for name in ["Uid:", "Gid:"] {
        assert!(!field(name).split_whitespace().any(|id| id == "0"), "{status}");
    }
    assert_eq!(field("Groups:"), "", "{status}");
    finish(&mut larder(["memcached", "-u", "nobody-of-that-name", "-l", "127.0.0.1", "-p", "0"]))
        .fails(2, "no such user");
}
