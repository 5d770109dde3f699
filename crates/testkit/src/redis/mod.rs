//! Real Redis and Valkey servers for tests, each on a loopback port or unix socket of its own, and clusters of them.
//!
//! `cargo xtask servers` puts the executables in place. A server dies with its handle and with the test process. Tests ask a server
//! things over a second, private unix socket ([`RedisServer::command`]), whatever it listens on for the store under test.

mod cluster;
mod cut_off;
mod nodes;
mod options;
mod resp;
mod shared;

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::servers::{
    Deadline, PORT_ATTEMPTS_MAX, READY_MS_MAX, REPLY_MS_MAX, bound_to_us, continue_process, executable, rss_bytes_of,
    spawn_lasting, stop_process,
};

pub use cluster::RedisCluster;
pub use options::{Eviction, RedisOptions};
pub use resp::Value;
pub use shared::{SharedCluster, shared_cluster};

/// Below 22,000: a node of a cluster talks to the others on its port + 10,000, which must stay below the ports that Linux hands
/// to outgoing connections.
const PORTS: std::ops::Range<u16> = 10_000..22_000;
/// From a node's port to the one it talks to other nodes on.
const BUS_OFFSET: u16 = 10_000;
/// What every server of this module is told first.
const ARGS: &[&str] = &["--bind", "127.0.0.1", "--daemonize", "no", "--save", "", "--enable-debug-command", "local"];

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RedisVersion {
    /// 7.0, of Debian 12.
    Redis7,
    /// 8.
    Redis8,
    /// Valkey 8 or later.
    Valkey,
}

impl RedisVersion {
    /// All, for tests that hold on every server.
    ///
    /// ```
    /// use larder_testkit::redis::RedisVersion;
    /// assert_eq!(RedisVersion::ALL.len(), 3);
    /// ```
    pub const ALL: [Self; 3] = [Self::Redis7, Self::Redis8, Self::Valkey];

    /// The script that starts this server.
    ///
    /// # Panics
    /// When it is not there; the message says how to get it.
    fn executable(self) -> PathBuf {
        let name = match self {
            Self::Redis7 => "redis-7",
            Self::Redis8 => "redis-8",
            Self::Valkey => "valkey",
        };
        let run = executable(name);
        // Servers run in a folder of their own.
        fs::canonicalize(&run).unwrap_or(run)
    }
}

/// A running server of our own; killed when dropped.
///
/// ```
/// use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
///
/// let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
/// assert_eq!(server.command(&["PING"]).text(), "PONG");
/// assert!(server.url().starts_with("redis://127.0.0.1:"));
/// ```
#[derive(Debug)]
pub struct RedisServer {
    version: RedisVersion,
    options: RedisOptions,
    /// `None` where it listens on a unix socket only.
    addr: Option<SocketAddr>,
    process: Option<Child>,
    /// Holds the data, the server's words and the sockets.
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server on a free loopback port, or on a unix socket where the options say so, and waits until it serves.
    ///
    /// ```
    /// use larder_testkit::redis::{Eviction, RedisOptions, RedisServer, RedisVersion};
    ///
    /// let options = RedisOptions::new().maxmemory(8 << 20, Eviction::AllKeysLru);
    /// let server = RedisServer::start(RedisVersion::Valkey, &options);
    /// assert_eq!(server.config("maxmemory-policy"), "allkeys-lru");
    /// ```
    ///
    /// # Panics
    /// When the executable is missing or the server does not come up.
    pub fn start(version: RedisVersion, options: &RedisOptions) -> Self {
        let mut said = String::new();
        for _ in 0..PORT_ATTEMPTS_MAX {
            let addr = (!options.unix).then(free_addr);
            let mut server = Self::prepared(version, options, addr);
            match server.spawn() {
                Ok(()) => return server,
                Err(complaint) if is_port_taken(&complaint) => said = complaint,
                Err(complaint) => panic!("{version:?} did not start: {complaint}"),
            }
        }
        panic!("{version:?} found no free port in {PORT_ATTEMPTS_MAX} attempts: {said}");
    }

    /// A server that was not started yet.
    fn prepared(version: RedisVersion, options: &RedisOptions, addr: Option<SocketAddr>) -> Self {
        let folder = tempfile::Builder::new().prefix("larder-test-").tempdir().expect("a temporary folder");
        Self { version, options: options.clone(), addr, process: None, folder }
    }

    /// The TCP address.
    ///
    /// # Panics
    /// When the server listens on a unix socket.
    pub fn addr(&self) -> SocketAddr {
        self.addr.unwrap_or_else(|| panic!("the server listens on the unix socket {}", self.socket().display()))
    }

    /// The store URL, `redis://`, `rediss://` or `redis+unix://`, without user and password.
    pub fn url(&self) -> String {
        match self.addr {
            Some(addr) if self.options.tls.is_some() => format!("rediss://{addr}"),
            Some(addr) => format!("redis://{addr}"),
            None => format!("redis+unix://{}", self.socket().display()),
        }
    }

    /// The unix socket, which is there in any case.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The folder with the server's data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Which server this is.
    pub fn version(&self) -> RedisVersion {
        self.version
    }

    /// The id of the process, which is the server itself.
    ///
    /// # Panics
    /// When it was killed and not restarted.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the server was killed").id()
    }

    /// Runs a command as the administrator, on a connection of its own.
    ///
    /// ```
    /// use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
    ///
    /// let server = RedisServer::start(RedisVersion::Redis8, &RedisOptions::new().password("secret"));
    /// assert_eq!(server.command(&["SET", "k", "v"]).text(), "OK");
    /// assert!(server.command(&["NO-SUCH-COMMAND"]).is_error());
    /// ```
    ///
    /// # Panics
    /// When the server does not answer within 5 s.
    pub fn command<A: AsRef<[u8]>>(&self, words: &[A]) -> Value {
        self.try_command(words).unwrap_or_else(|error| panic!("{:?} did not answer: {error}", self.version))
    }

    /// The same, for a server that may be dead.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn try_command<A: AsRef<[u8]>>(&self, words: &[A]) -> io::Result<Value> {
        let mut connection = resp::Connection::open(&self.socket(), Duration::from_millis(REPLY_MS_MAX))?;
        if let Some((user, password)) = &self.options.admin {
            connection.command(&["AUTH", user, password])?;
        }
        connection.command(words)
    }

    /// A field of `INFO <section>`, such as `connected_clients` of `clients`; empty where there is none.
    ///
    /// ```
    /// use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
    ///
    /// let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
    /// assert_eq!(server.info("replication", "role"), "master");
    /// ```
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn info(&self, section: &str, field: &str) -> String {
        field_of(&self.command(&["INFO", section]).text(), field)
    }

    /// How often the server ran a command since it started (or since `CONFIG RESETSTAT`).
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info("commandstats", &format!("cmdstat_{}", command.to_lowercase()));
        let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.and_then(|calls| calls.parse().ok()).unwrap_or(0)
    }

    /// The value of a setting.
    ///
    /// # Panics
    /// When the server does not answer.
    pub fn config(&self, name: &str) -> String {
        match self.command(&["CONFIG", "GET", name]) {
            Value::Array(pair) => pair.get(1).map(Value::text).unwrap_or_default(),
            other => other.text(),
        }
    }

    /// Kills the server as a crash would, without a word to its clients. Does nothing when it is dead already.
    ///
    /// ```
    /// use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
    ///
    /// let mut server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().appendonly());
    /// server.command(&["SET", "k", "v"]);
    /// server.kill9();
    /// server.restart();
    /// assert_eq!(server.command(&["GET", "k"]).text(), "v");
    /// server.restart_empty();
    /// assert_eq!(server.command(&["GET", "k"]).text(), "");
    /// ```
    pub fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Fails only for a process that has ended, which `wait` finds out too.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Kills the server if need be and starts one in its place, on the same port or socket, over the data that were written.
    ///
    /// # Panics
    /// When the server does not come up; a port that another took meanwhile is waited for first.
    pub fn restart(&mut self) {
        self.kill9();
        let deadline = Deadline::after_ms(READY_MS_MAX);
        while let Err(complaint) = self.spawn() {
            let again = is_port_taken(&complaint) && !deadline.passed();
            assert!(again, "{:?} did not restart: {complaint}", self.version);
            deadline.poll();
        }
    }

    /// The same, over nothing: the data are removed first.
    ///
    /// # Panics
    /// As [`restart`](Self::restart).
    pub fn restart_empty(&mut self) {
        self.kill9();
        for name in ["dump.rdb", "appendonlydir"] {
            let path = self.folder.path().join(name);
            // Neither is there without persistence.
            let _ = fs::remove_file(&path);
            let _ = fs::remove_dir_all(&path);
        }
        self.restart();
    }

    /// Stops the server where it is (SIGSTOP): connections stay open, nothing answers. Returns once it stands.
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
    /// # Panics
    /// When the server was killed.
    pub fn rss_bytes(&self) -> u64 {
        rss_bytes_of(self.pid())
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn arguments(&self) -> Vec<String> {
        let mut args: Vec<String> = ARGS.iter().map(|&arg| arg.to_owned()).collect();
        let mut pair = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        let port = self.addr.map_or(0, |addr| addr.port()).to_string();
        let (plain, tls) = if self.options.tls.is_some() { ("0".to_owned(), port) } else { (port, "0".to_owned()) };
        pair("port", plain);
        if self.options.tls.is_some() {
            pair("tls-port", tls);
        }
        pair("dir", self.folder.path().display().to_string());
        pair("unixsocket", self.socket().display().to_string());
        args.extend(self.options.arguments(self.folder.path()));
        args
    }

    /// Starts the process and waits until it serves; otherwise says why not.
    fn spawn(&mut self) -> Result<(), String> {
        self.launch()?;
        let outcome = self.wait_ready();
        if outcome.is_err() {
            self.kill9();
        }
        outcome.map_err(|error| format!("{error}; it said: {}", self.log()))
    }

    /// Starts the process.
    fn launch(&mut self) -> Result<(), String> {
        let shown = |error: io::Error| format!("could not be executed: {error}");
        // Left behind by a server that was killed.
        let _ = fs::remove_file(self.socket());
        let log = File::create(self.folder.path().join("log")).map_err(shown)?;
        let mut command = bound_to_us(&self.version.executable());
        command.args(self.arguments()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(shown)?).stderr(log);
        self.process = Some(spawn_lasting(command).map_err(shown)?);
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<(), String> {
        let deadline = Deadline::after_ms(READY_MS_MAX);
        loop {
            if let Some(Ok(Some(status))) = self.process.as_mut().map(Child::try_wait) {
                return Err(format!("ended with {status}"));
            }
            // The log is ours, which tells our server from another one on the same port. While data are loaded, it says `LOADING`.
            let listens = self.log().contains("eady to accept connections");
            if listens && self.try_command(&["PING"]).is_ok_and(|said| !said.text().starts_with("LOADING")) {
                return Ok(());
            }
            if deadline.passed() {
                return Err(format!("does not answer after {READY_MS_MAX} ms"));
            }
            deadline.poll();
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// A loopback address that nobody listens on, and nobody on the port that a node of a cluster would need beside it. That saves the
/// start of a process in the usual case of a collision; the server itself is the judge.
fn free_addr() -> SocketAddr {
    for _ in 0..PORT_ATTEMPTS_MAX {
        let port = fastrand::u16(PORTS);
        let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if free(port) && free(port + BUS_OFFSET) {
            return SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        }
    }
    panic!("no free port between {} and {} in {PORT_ATTEMPTS_MAX} attempts", PORTS.start, PORTS.end);
}

fn is_port_taken(complaint: &str) -> bool {
    complaint.contains("Address already in use") || complaint.contains("Failed listening on port")
}

/// A field of what `INFO` or `CLUSTER INFO` says; empty where there is none.
fn field_of(text: &str, field: &str) -> String {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}
