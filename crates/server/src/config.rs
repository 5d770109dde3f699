//! What a server is told.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

use crate::auth::AuthFile;

/// Limits, and what is allowed.
///
/// ```
/// use larder_server::Limits;
/// let limits = Limits { connections_max: 64, idle_timeout_ms: 60_000, ..Limits::default() };
/// assert_eq!(limits.item_bytes_max, 1 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once (`-c`). One more is told so, and closed. The process must be allowed to have as many files open, and some more: `larder serve` sees to that, a
    /// [`Server`](crate::Server) does not.
    pub connections_max: usize,
    /// The largest item as memcached counts it (`-I`): key, value and 59 bytes.
    pub item_bytes_max: usize,
    /// The memory limit as it is told in `stats` (`-m`). The store holds it.
    pub memory_bytes_max: usize,
    /// The longest line of a `get`; others are held to 2,048 bytes.
    pub line_bytes_max: usize,
    /// Bytes that all connections together may hold of what is not finished: requests without their end, replies that nobody takes. Past that, who holds more than 4 KiB and takes
    /// more is closed. What their requests wrote, and is not on disk yet, counts beside it, and nobody is closed for that: while all of it is too much, nothing more is read
    /// until what is on its way to the disk is there.
    pub held_bytes_max: usize,
    /// A TCP connection that sends nothing for so long is closed, unless it waits for the server; 0 for never.
    pub idle_timeout_ms: u64,
    /// A connection that takes nothing of its replies for so long is closed, and one that holds more than 4 KiB of a request and sends for so long neither its end nor 4 KiB more;
    /// 0 for never.
    pub slow_timeout_ms: u64,
    /// The server ends when nobody was connected for so long; 0 for never.
    pub exit_when_idle_ms: u64,
    /// How long an end that was asked for waits for requests under way.
    pub drain_timeout_ms: u64,
    /// Whether a client may end the server (`-A`).
    pub shutdown_enabled: bool,
    /// Whether `flush_all` is allowed (`-F` forbids it).
    pub flush_enabled: bool,
    /// Whether keys may be listed (`-X` forbids it).
    pub dump_enabled: bool,
    /// Whether the store keeps times of access, for `l` and `la`.
    pub track_access: bool,
    /// How much is logged (`-v`).
    pub verbosity: u32,
    /// Connections that may wait to be accepted (`-b`).
    pub backlog: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 1_024,
            item_bytes_max: 1 << 20,
            memory_bytes_max: 64 << 20,
            line_bytes_max: 1 << 20,
            held_bytes_max: 256 << 20,
            idle_timeout_ms: 0,
            slow_timeout_ms: 30_000,
            exit_when_idle_ms: 0,
            drain_timeout_ms: 5_000,
            shutdown_enabled: false,
            flush_enabled: true,
            dump_enabled: true,
            track_access: false,
            verbosity: 0,
            backlog: 1_024,
        }
    }
}

/// A place to listen.
///
/// ```
/// use larder_server::Listen;
/// let places = [Listen::Tcp("127.0.0.1:11211".parse()?), Listen::Unix("/run/larder.sock".into(), 0o700)];
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub enum Listen {
    /// A TCP address. One of IPv6 takes no IPv4.
    Tcp(SocketAddr),
    /// Those of the addresses that this machine has, on one port where they name none: what a name stands for, or everywhere.
    TcpAny(Vec<SocketAddr>),
    /// A unix socket, and the access it gets, as in `chmod`.
    Unix(PathBuf, u32),
}

/// A listener that was opened by whoever started the server, systemd mostly.
///
/// ```
/// use larder_server::{Config, Inherited};
/// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let config = Config { inherited: vec![Inherited::Tcp(socket.into())], ..Config::default() };
/// assert!(config.listen.is_empty());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Inherited {
    /// A TCP socket.
    Tcp(Arc<TcpListener>),
    /// A unix socket. Who may connect is up to whoever made it.
    Unix(Arc<UnixListener>),
}

/// TLS: who the server is, and who its clients must be. TLS 1.2 and 1.3; ciphers are those that `rustls` holds for safe.
///
/// ```
/// use larder_server::{ClientCerts, Tls};
/// let tls = Tls { clients: ClientCerts::Required("/etc/larder/clients.pem".into()), ..Tls::new("cert.pem", "key.pem") };
/// assert!(!tls.only_1_3);
/// ```
#[derive(Clone, Debug)]
pub struct Tls {
    /// The certificate chain, in PEM.
    pub chain: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// Whether clients show certificates.
    pub clients: ClientCerts,
    /// True to refuse TLS 1.2.
    pub only_1_3: bool,
}

impl Tls {
    /// With this chain and key, open to every client.
    ///
    /// ```
    /// let tls = larder_server::Tls::new("cert.pem", "key.pem");
    /// assert_eq!(tls.clients, larder_server::ClientCerts::Unasked);
    /// ```
    pub fn new(chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Tls {
        Tls { chain: chain.into(), key: key.into(), clients: ClientCerts::Unasked, only_1_3: false }
    }
}

/// Certificates of clients, and the file of those who may sign them, in PEM.
///
/// ```
/// let asked = larder_server::ClientCerts::Asked("clients.pem".into());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCerts {
    /// Nobody is asked for one.
    Unasked,
    /// Whoever shows one must show a good one; whoever shows none comes in.
    Asked(PathBuf),
    /// Nobody comes in without one.
    Required(PathBuf),
}

/// Who runs connections. Where there is one thread, both are the same.
///
/// ```
/// assert_eq!(larder_server::Runtime::default(), larder_server::Runtime::Shared);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Runtime {
    /// A thread with a runtime of its own for each worker; a connection stays with one.
    PerCore,
    /// One runtime that moves connections between its threads: none waits for a thread that has much to do while another has nothing.
    #[default]
    Shared,
}

/// What a server is told.
///
/// ```
/// use larder_server::{Config, Listen};
/// let config = Config { listen: vec![Listen::Tcp("127.0.0.1:11211".parse()?)], threads: 2, ..Config::default() };
/// assert!(config.auth.is_none());
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// Listeners that were opened by whoever started it.
    pub inherited: Vec<Inherited>,
    /// Where it answers `/metrics` and `/healthz`, if anywhere.
    pub metrics: Option<SocketAddr>,
    /// Threads that serve connections (`-t`).
    pub threads: usize,
    /// How they share the work.
    pub runtime: Runtime,
    /// Limits.
    pub limits: Limits,
    /// Who may come in (`-Y`); everybody without.
    pub auth: Option<AuthFile>,
    /// Whether SIGTERM, SIGINT and SIGUSR1 end it, and SIGHUP has it read the [auth file](AuthFile::read) and the files of TLS again.
    pub signals: bool,
    /// TLS (`-Z`): TCP is then TLS.
    pub tls: Option<Tls>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: Vec::new(),
            inherited: Vec::new(),
            metrics: None,
            threads: 4,
            runtime: Runtime::default(),
            limits: Limits::default(),
            auth: None,
            signals: false,
            tls: None,
        }
    }
}
