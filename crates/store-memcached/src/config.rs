//! What a store needs to know before it connects.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::Result;
use larder_net::{Address, Auth, Tls};
use larder_proto::Dialect;

/// How to reach a fleet of memcached servers, and how to treat it.
///
/// Made from a URL by [`from_url`](Config::from_url); the table of options is there. Printing it masks the password.
#[derive(Clone)]
pub struct Config {
    /// The servers, at least one, in any order.
    pub servers: Vec<Server>,
    /// User and password of memcached's ASCII authentication (`-Y`). Sent only to a server that asks for them.
    pub auth: Option<Auth>,
    /// TLS, if the servers speak it.
    pub tls: Option<Tls>,
    /// Connections a server.
    pub connections: Connections,
    /// How long an op may take if its context has no deadline. From [`TIMEOUT_MIN`](Config::TIMEOUT_MIN) to [`TIMEOUT_MAX`](Config::TIMEOUT_MAX).
    pub timeout: Duration,
    /// How long a dial with its handshake may take. From [`TIMEOUT_MIN`](Config::TIMEOUT_MIN) to [`TIMEOUT_MAX`](Config::TIMEOUT_MAX).
    pub connect_timeout: Duration,
    /// How keys are spread over servers.
    pub hash: Hash,
    /// How the fleet's fingerprint is treated.
    pub fleet: FleetMode,
    /// Which commands to use.
    pub dialect: DialectMode,
    /// How many ops may wait for one connection.
    pub queue_ops_max: usize,
    /// How many bytes may wait to be sent on one connection.
    pub queue_bytes_max: usize,
}

impl Config {
    /// The port of a server whose URL names none.
    pub const PORT: u16 = 11_211;
    /// The most connections a server, where a number is given.
    pub const CONNECTIONS_MAX: usize = 4;
    /// The most servers of a fleet: the rank of a route is a byte.
    pub const SERVERS_MAX: usize = 256;
    /// The largest weight of a server.
    pub const WEIGHT_MAX: u32 = 100;
    /// The shortest timeout.
    pub const TIMEOUT_MIN: Duration = Duration::from_millis(1);
    /// The longest timeout.
    pub const TIMEOUT_MAX: Duration = Duration::from_millis(600_000);

    /// Everything at its default, for these servers.
    ///
    /// ```
    /// use larder_store_memcached::{Config, Server};
    /// let config = Config::new(vec![Server::tcp("127.0.0.1", 11211)]);
    /// assert_eq!(config.timeout, std::time::Duration::from_secs(1));
    /// ```
    pub fn new(servers: Vec<Server>) -> Config {
        Config {
            servers,
            auth: None,
            tls: None,
            connections: Connections::Auto,
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            hash: Hash::Rendezvous,
            fleet: FleetMode::Check,
            dialect: DialectMode::Auto,
            queue_ops_max: 65_536,
            queue_bytes_max: 64 * 1024 * 1024,
        }
    }

    /// Reads a URL: `memcached://[user:password@]host[:port][,host[:port]…][?option=value[&…]]`,
    /// `memcached+tls://…` with the same parts, or `memcached+unix:///path/to/socket[?…]`.
    ///
    /// The default port is 11211; IPv6 addresses stand in brackets; user and password may be percent-encoded, and a question mark in them must be.
    /// A server is identified by `host:port` as written here: that text is hashed, so every client must write it alike.
    ///
    /// | option | values | default | meaning |
    /// |---|---|---|---|
    /// | `connections` | `auto`, 1 to 4 | `auto` | connections a server: one, and a second for reads while the first is busy; or so many, each for its share of the keys ([`Connections`]) |
    /// | `timeout_ms` | 1 to 600000 | 1000 | an op without a deadline of its own gives up; a connection that owes a reply and is silent for twice as long is closed, and one whose oldest reply is overdue by eight times as long, with none completed |
    /// | `connect_timeout_ms` | 1 to 600000 | 1000 | a dial with its handshake gives up |
    /// | `hash` | `rendezvous`, `ketama` | `rendezvous` | how keys are spread; `ketama` as libmemcached does (`KETAMA_WEIGHTED`) |
    /// | `weights` | `1,2,…` | all 1 | one number of 1 to 100 a server |
    /// | `fleet` | `check`, `ignore`, `claim` | `check` | what to do if a server belongs to another server list: refuse it, not look, or make it belong to this one, once ([`FleetMode`]) |
    /// | `dialect` | `auto`, `classic`, `classic-bare`, `meta13`, `meta` | `auto` | which commands to use |
    /// | `queue_ops_max` | 1 to 1000000 | 65536 | ops that may wait for one connection, and the most of a batch (16384 if more may wait) |
    /// | `queue_bytes_max` | 65536 to 4294967296 | 67108864 | bytes that may wait to be sent on one connection, and the most of an item that the profile promises |
    /// | `tls_ca` | a path | the system's roots | certificates (PEM) to trust, with `memcached+tls` |
    /// | `tls_cert` | a path | | the client's own certificate (PEM), for servers that ask for one; goes with `tls_key` |
    /// | `tls_key` | a path | | its private key (PEM) |
    /// | `tls_name` | a host name | the host | the name to expect in the certificate |
    /// | `tls_insecure` | `yes`, `no` | `no` | trust any certificate: for tests |
    ///
    /// # Errors
    /// [`ErrorKind::Config`](larder_core::ErrorKind::Config), naming the part, the limits or the known options, and the nearest
    /// spelling of a mistyped one.
    ///
    /// ```
    /// use larder_store_memcached::{Config, Hash};
    /// let config = Config::from_url("memcached://cache1,cache2:11311?hash=ketama")?;
    /// assert_eq!(config.servers[1].name, "cache2:11311");
    /// assert_eq!(config.hash, Hash::Ketama);
    /// let error = Config::from_url("memcached://cache?timout_ms=5").unwrap_err();
    /// assert!(error.to_string().contains("did you mean timeout_ms?"));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Config> {
        crate::url::parse(url)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.servers.iter().map(|server| server.name.as_str()).collect();
        f.debug_struct("Config")
            .field("servers", &names)
            .field("auth", &self.auth)
            .field("tls", &self.tls)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// How many connections a server gets.
///
/// ```
/// use larder_store_memcached::{Config, Connections};
/// assert_eq!(Config::from_url("memcached://a")?.connections, Connections::Auto);
/// assert_eq!(Config::from_url("memcached://a?connections=2")?.connections, Connections::Exactly(2));
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// One; and a second, the *read lane*, from when 1,000 reads of one second have found the first busy (8 ops or more without a
    /// reply), until it has not been used for a minute.
    ///
    /// The lane carries nothing but reads without a cas token, of keys to which no write waits for its reply on the first connection.
    /// So a read is behind every write to its key that was sent before it, one whose caller gave up included, as on one
    /// connection. When the lane cannot be had, or ends, reads go over the first.
    Auto,
    /// So many, from 1 to [`Config::CONNECTIONS_MAX`]. A batch goes over the one of its first key, so ops that are alone in their batch go over the same one for the same key.
    ///
    /// What was answered is seen by whatever is sent behind that, over each of them. But a read may overtake a write to its key that is under way in a batch which began with
    /// another key, one whose caller gave up included; only with 1 that is as with [`Auto`](Connections::Auto).
    ///
    /// All reach one server: while a connection lives, one to another server at the same address (behind a balancer, say), as far as both tell
    /// who they are, is refused, and tried again after a pause. So there may be fewer.
    Exactly(usize),
}

impl Connections {
    /// Those that are kept at all times.
    pub(crate) fn kept(self) -> usize {
        match self {
            Connections::Auto => 1,
            Connections::Exactly(count) => count,
        }
    }
}

/// One server.
///
/// ```
/// use larder_store_memcached::{Config, Server};
/// let heavy = Server { weight: 3, ..Server::tcp("cache2", 11211) };
/// assert_eq!(Config::from_url("memcached://cache1,cache2?weights=1,3")?.servers[1], heavy);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its identity: `host:port` or a path. Hashed, so it must be the same on every client.
    pub name: String,
    /// Where to dial.
    pub address: Address,
    /// Its share of the keys, relative to the others'; 1 to [`Config::WEIGHT_MAX`].
    pub weight: u32,
}

impl Server {
    /// A server at a host and port, of weight 1. An IPv6 address is given without brackets.
    ///
    /// ```
    /// use larder_store_memcached::Server;
    /// assert_eq!(Server::tcp("::1", 11211).name, "[::1]:11211");
    /// ```
    pub fn tcp(host: &str, port: u16) -> Server {
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Server { name, address: Address::Tcp { host: host.to_owned(), port }, weight: 1 }
    }

    /// A server behind a unix socket, of weight 1.
    ///
    /// ```
    /// use larder_store_memcached::Server;
    /// assert_eq!(Server::unix("/run/memcached.sock").name, "/run/memcached.sock");
    /// ```
    pub fn unix(path: impl Into<PathBuf>) -> Server {
        let path = path.into();
        Server { name: path.display().to_string(), address: Address::Unix(path), weight: 1 }
    }
}

/// How keys are spread over servers.
///
/// ```
/// use larder_store_memcached::{Config, Hash};
/// assert_eq!(Config::from_url("memcached://a,b")?.hash, Hash::Rendezvous);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// Larder's own weighted rendezvous hash; see [`ring`](crate::ring).
    Rendezvous,
    /// The weighted ring of libmemcached, to share a fleet with clients that use it.
    Ketama,
}

impl Hash {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Hash::Rendezvous => "rendezvous",
            Hash::Ketama => "ketama",
        }
    }
}

/// What to do about the fingerprint that a fleet's servers carry; see [`fleet`](crate::fleet).
///
/// ```
/// use larder_store_memcached::{Config, FleetMode};
/// assert_eq!(Config::from_url("memcached://a,b?fleet=claim")?.fleet, FleetMode::Claim);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetMode {
    /// Refuse a server that belongs to another list.
    Check,
    /// Do not look, and leave no mark.
    Ignore,
    /// Make each server belong to this list, at the first handshake with it; then as `Check`, so that who claims it later keeps it.
    Claim,
}

/// Which commands to use.
///
/// ```
/// use larder_store_memcached::{Config, DialectMode};
/// assert_eq!(Config::from_url("memcached://a?dialect=classic-bare")?.dialect, DialectMode::Bare);
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialectMode {
    /// By the server's version, and by what it answers.
    Auto,
    /// This one, whatever the server says: for tests.
    Forced(Dialect),
    /// Classic, without expiry and cas tokens, as MemcacheDB has it.
    Bare,
}
