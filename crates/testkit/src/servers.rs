//! Real memcached servers for tests, old and new, on loopback ports or unix sockets of their own.
//!
//! `cargo xtask servers` puts the executables in place. A server dies with its handle, and, where `setpriv` exists
//! (any Linux with util-linux), with the test process too, however that ends.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Names the folder with the servers; without it, `.servers` of the workspace.
pub const SERVERS_DIR_ENV: &str = "LARDER_SERVERS_DIR";

/// How long a server may take until it answers, and a signal until it shows.
pub(crate) const READY_MS_MAX: u64 = 10_000;
/// How long a request of this module may wait for its reply.
pub(crate) const REPLY_MS_MAX: u64 = 5_000;
/// How often a condition without an event is looked at again.
const POLL_MS: u64 = 2;
/// Starts on different ports before giving up.
pub(crate) const PORT_ATTEMPTS_MAX: u32 = 50;
/// Below the ports that Linux hands to outgoing connections, so that nobody takes the port of a server that is down,
/// and a client that dials it cannot be connected to itself.
pub(crate) const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Which memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// 1.6.18, of Debian 12: meta commands, but no vivifying append.
    Old,
    /// 1.6.38 or later.
    New,
}

impl Version {
    /// Both, for tests that hold on every server.
    ///
    /// ```
    /// use larder_testkit::servers::Version;
    /// assert_eq!(Version::ALL, [Version::Old, Version::New]);
    /// ```
    pub const ALL: [Self; 2] = [Self::Old, Self::New];

    /// The script that starts this server.
    ///
    /// # Panics
    /// When it is not there; the message says how to get it.
    fn executable(self) -> PathBuf {
        let name = match self {
            Self::Old => "memcached-old",
            Self::New => "memcached-new",
        };
        executable(name)
    }
}

/// The script that starts what `cargo xtask servers` has put into the folder of this name: a server, or a shell (`zsh`, `fish`).
///
/// ```
/// let zsh = larder_testkit::servers::executable("zsh");
/// let said = std::process::Command::new(zsh).args(["-f", "-c", "print $ZSH_NAME"]).output()?;
/// assert_eq!(said.stdout, b"zsh\n");
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// When it is not there; the message says how to get it.
pub fn executable(name: &str) -> PathBuf {
    let run = servers_dir().join(name).join("run");
    assert!(run.exists(), "{} is missing: run cargo xtask servers", run.display());
    run
}

pub(crate) fn servers_dir() -> PathBuf {
    match std::env::var_os(SERVERS_DIR_ENV) {
        Some(dir) => PathBuf::from(dir),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.servers"),
    }
}

/// Where a server listens.
#[derive(Clone, Debug)]
enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A running memcached of our own; killed when dropped.
///
/// ```
/// use larder_testkit::servers::{Memcached, Version};
///
/// let server = Memcached::start(Version::Old, &["-m", "64"]);
/// assert!(server.stats("").contains("STAT version 1.6.18"));
/// ```
#[derive(Debug)]
pub struct Memcached {
    version: Version,
    args: Vec<String>,
    endpoint: Endpoint,
    process: Option<Child>,
    /// Holds the port file, the server's complaints and the unix socket.
    folder: TempDir,
}

impl Memcached {
    /// Starts a server on a free loopback port, with `args` after our own, and waits until it answers.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// let server = Memcached::start(Version::New, &["-m", "64", "-I", "2m"]);
    /// assert!(server.addr().ip().is_loopback());
    /// ```
    ///
    /// # Panics
    /// When the executable is missing or the server does not come up.
    pub fn start(version: Version, args: &[&str]) -> Self {
        let mut said = String::new();
        for _ in 0..PORT_ATTEMPTS_MAX {
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, fastrand::u16(PORTS)));
            // Saves the start of a process in the usual case of a collision; the server itself is the judge.
            if TcpListener::bind(addr).is_err() {
                continue;
            }
            let mut server = Self::new(version, args, |_| Endpoint::Tcp(addr));
            match server.spawn() {
                Ok(()) => return server,
                Err(complaint) if is_port_taken(&complaint) => said = complaint,
                Err(complaint) => panic!("memcached did not start: {complaint}"),
            }
        }
        panic!("memcached found no free port in {PORT_ATTEMPTS_MAX} attempts: {said}");
    }

    /// Starts a server on a unix socket in a folder of its own.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// let server = Memcached::start_unix(Version::New, &[]);
    /// assert!(server.url().starts_with("memcached+unix:///"));
    /// ```
    ///
    /// # Panics
    /// When the executable is missing or the server does not come up.
    pub fn start_unix(version: Version, args: &[&str]) -> Self {
        let mut server = Self::new(version, args, |folder| Endpoint::Unix(folder.join("socket")));
        if let Err(complaint) = server.spawn() {
            panic!("memcached did not start: {complaint}");
        }
        server
    }

    fn new(version: Version, args: &[&str], endpoint: impl FnOnce(&Path) -> Endpoint) -> Self {
        let folder = tempfile::Builder::new().prefix("larder-test-").tempdir().expect("a temporary folder");
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self { version, args, endpoint: endpoint(folder.path()), process: None, folder }
    }

    /// The TCP address.
    ///
    /// # Panics
    /// When the server listens on a unix socket.
    pub fn addr(&self) -> SocketAddr {
        match &self.endpoint {
            Endpoint::Tcp(addr) => *addr,
            Endpoint::Unix(path) => panic!("the server listens on the unix socket {}", path.display()),
        }
    }

    /// The store URL: `memcached://…`, `memcached+unix://…`, or `memcached+tls://…` when started with `-Z`.
    pub fn url(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp(addr) if self.is_tls() => format!("memcached+tls://{addr}"),
            Endpoint::Tcp(addr) => format!("memcached://{addr}"),
            Endpoint::Unix(path) => format!("memcached+unix://{}", path.display()),
        }
    }

    /// The id of the process, which is the server itself.
    ///
    /// # Panics
    /// When it was killed and not restarted.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server was killed").id()
    }

    /// Which memcached this is.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Kills the server as a crash would, without a word to its clients. Does nothing when it is dead already.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// let mut server = Memcached::start(Version::New, &[]);
    /// server.kill9();
    /// assert!(std::net::TcpStream::connect(server.addr()).is_err());
    /// server.restart();
    /// assert!(std::net::TcpStream::connect(server.addr()).is_ok());
    /// ```
    pub fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Fails only for a process that has ended, which `wait` finds out too.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Kills the server if need be and starts an empty one in its place, on the same port or socket.
    ///
    /// # Panics
    /// When the server does not come up; a port that another took meanwhile is waited for first.
    pub fn restart(&mut self) {
        self.kill9();
        let deadline = Deadline::after_ms(READY_MS_MAX);
        while let Err(complaint) = self.spawn() {
            assert!(is_port_taken(&complaint) && !deadline.passed(), "memcached did not restart: {complaint}");
            deadline.poll();
        }
    }

    /// Stops the server where it is (SIGSTOP): connections stay open, nothing answers. Returns once it stands.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// let server = Memcached::start(Version::New, &[]);
    /// server.stop();
    /// assert!(std::net::TcpStream::connect(server.addr()).is_ok()); // by the kernel; nobody answers
    /// server.cont();
    /// ```
    ///
    /// # Panics
    /// When the server was killed.
    pub fn stop(&self) {
        stop_process(self.pid());
    }

    /// Lets a stopped server go on (SIGCONT).
    ///
    /// # Panics
    /// When the server was killed.
    pub fn cont(&self) {
        continue_process(self.pid());
    }

    /// The memory the server really occupies (RSS), in bytes.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// assert!(Memcached::start(Version::New, &[]).rss_bytes() > 1024 * 1024);
    /// ```
    ///
    /// # Panics
    /// When the server was killed.
    pub fn rss_bytes(&self) -> u64 {
        rss_bytes_of(self.pid())
    }

    /// What the slab chunks in use take, in bytes: its items with all that a chunk rounds up.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// assert_eq!(Memcached::start(Version::New, &[]).used_chunk_bytes(), 0);
    /// ```
    ///
    /// # Panics
    /// When the server was killed.
    pub fn used_chunk_bytes(&self) -> u64 {
        let stats = self.stats("slabs");
        let (mut size, mut bytes) = (0, 0);
        for line in stats.lines() {
            let number = || line.trim().rsplit(' ').next().and_then(|number| number.parse::<u64>().ok()).unwrap_or(0);
            if line.contains(":chunk_size ") {
                size = number();
            } else if line.contains(":used_chunks ") {
                bytes += size * number();
            }
        }
        bytes
    }

    /// The server's own statistics, as it sends them: `what` is empty or a topic such as `settings` or `items`.
    ///
    /// # Panics
    /// When the server does not answer within 5 s, or speaks TLS only.
    pub fn stats(&self, what: &str) -> String {
        let request = if what.is_empty() { "stats\r\n".to_owned() } else { format!("stats {what}\r\n") };
        match self.exchange(request.as_bytes(), b"END\r\n") {
            Ok(reply) => String::from_utf8_lossy(&reply).into_owned(),
            Err(error) => panic!("memcached did not answer `{}`: {error}", request.trim()),
        }
    }

    /// One number of the server's general statistics, such as `curr_connections`.
    ///
    /// ```
    /// use larder_testkit::servers::{Memcached, Version};
    ///
    /// let server = Memcached::start(Version::New, &[]);
    /// assert_eq!(server.stat("curr_items"), 0);
    /// ```
    ///
    /// # Panics
    /// When the server does not answer, or has no such number.
    pub fn stat(&self, name: &str) -> u64 {
        let stats = self.stats("");
        let value = stats.lines().find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        let number = value.and_then(|value| value.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no number `{name}` in the statistics:\n{stats}"))
    }

    fn is_tls(&self) -> bool {
        self.args.iter().any(|arg| arg == "-Z" || arg == "--enable-ssl")
    }

    /// Starts the process and waits until it serves; otherwise says why not.
    fn spawn(&mut self) -> Result<(), String> {
        let stderr_path = self.folder.path().join("stderr");
        let ready_path = self.folder.path().join("ready");
        let _ = fs::remove_file(&ready_path);
        let stderr = File::create(&stderr_path).map_err(|error| format!("{}: {error}", stderr_path.display()))?;
        let mut command = bound_to_us(&self.version.executable());
        match &self.endpoint {
            Endpoint::Tcp(addr) => {
                command.args(["-l", &addr.ip().to_string(), "-p", &addr.port().to_string()]);
            }
            Endpoint::Unix(path) => {
                let _ = fs::remove_file(path);
                command.arg("-s").arg(path);
            }
        }
        // memcached writes this file once it listens, which tells our server from another one on the same port.
        command.args(&self.args).env("MEMCACHED_PORT_FILENAME", &ready_path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        self.process = Some(spawn_lasting(command).map_err(|error| format!("could not be executed: {error}"))?);
        let outcome = self.wait_ready(&ready_path);
        if outcome.is_err() {
            self.kill9();
        }
        outcome.map_err(|error| format!("{error}; it said: {}", fs::read_to_string(&stderr_path).unwrap_or_default()))
    }

    fn wait_ready(&mut self, ready_path: &Path) -> Result<(), String> {
        let deadline = Deadline::after_ms(READY_MS_MAX);
        loop {
            let ended = self.process.as_mut().map(Child::try_wait);
            if let Some(Ok(Some(status))) = ended {
                return Err(format!("ended with {status}"));
            }
            let listens = match &self.endpoint {
                Endpoint::Tcp(_) => ready_path.exists(),
                Endpoint::Unix(path) => path.exists(),
            };
            // With ASCII authentication the ping is refused, which shows as well that it serves.
            if listens && (self.is_tls() || self.exchange(b"version\r\n", b"\r\n").is_ok()) {
                return Ok(());
            }
            if deadline.passed() {
                return Err(format!("does not answer after {READY_MS_MAX} ms"));
            }
            deadline.poll();
        }
    }

    /// Sends a request on a fresh connection and reads until the reply ends in `end`.
    fn exchange(&self, request: &[u8], end: &[u8]) -> io::Result<Vec<u8>> {
        let timeout = Some(Duration::from_millis(REPLY_MS_MAX));
        match &self.endpoint {
            Endpoint::Tcp(addr) => {
                let stream = TcpStream::connect(addr)?;
                stream.set_read_timeout(timeout)?;
                exchange_on(stream, request, end)
            }
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(timeout)?;
                exchange_on(stream, request, end)
            }
        }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.kill9();
    }
}

fn exchange_on(mut stream: impl Read + Write, request: &[u8], end: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(request)?;
    let mut reply = Vec::new();
    let mut chunk = [0; 4096];
    while !reply.ends_with(end) {
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => reply.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(reply)
}

/// Stops a process where it is (SIGSTOP), and returns once it stands.
pub(crate) fn stop_process(pid: u32) {
    signal(pid, Signal::STOP);
    let deadline = Deadline::after_ms(READY_MS_MAX);
    while !status_of(pid, "State:").starts_with('T') {
        assert!(!deadline.passed(), "process {pid} did not stop");
        deadline.poll();
    }
}

/// Lets a stopped process go on (SIGCONT).
pub(crate) fn continue_process(pid: u32) {
    signal(pid, Signal::CONT);
}

/// The memory a process really occupies (RSS), in bytes.
///
/// ```
/// assert!(larder_testkit::servers::rss_bytes_of(std::process::id()) > 0);
/// ```
pub fn rss_bytes_of(pid: u32) -> u64 {
    let rss = status_of(pid, "VmRSS:");
    let kib = rss.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    kib.expect("VmRSS is a number of kB") * 1024
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(pid, signal).expect("a signal to a child of ours");
}

/// A field of `/proc/<pid>/status`.
fn status_of(pid: u32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the status of a child");
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    value.expect("a field of the status").trim().to_owned()
}

fn is_port_taken(complaint: &str) -> bool {
    complaint.contains("Address already in use")
}

/// A moment after which waiting is over.
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after_ms(ms: u64) -> Self {
        Self(Instant::now() + Duration::from_millis(ms))
    }

    pub(crate) fn passed(&self) -> bool {
        Instant::now() >= self.0
    }

    pub(crate) fn poll(&self) {
        thread::sleep(Duration::from_millis(POLL_MS));
    }
}

/// A command whose process the kernel kills when ours ends in whatever way, where `setpriv` can ask for that.
pub(crate) fn bound_to_us(executable: &Path) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    let can = *SETPRIV.get_or_init(|| {
        let tried = Command::new("setpriv").args(["--pdeathsig", "KILL", "true"]).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| status.success())
    });
    if !can {
        return Command::new(executable);
    }
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(executable);
    command
}

type SpawnRequest = (Command, mpsc::Sender<io::Result<Child>>);

/// Spawns from a thread that lives as long as the process: the kernel's "parent died" means the thread that spawned,
/// and a server must not die because the worker thread that started it was idle.
pub(crate) fn spawn_lasting(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, queue) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            for (mut command, reply) in queue {
                // Nobody listens when the caller panicked meanwhile; the server then dies with this process.
                let _ = reply.send(command.spawn());
            }
        });
        requests
    });
    let (reply, child) = mpsc::channel();
    spawner.send((command, reply)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}
