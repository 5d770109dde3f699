//! What a store needs to know before it connects.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_net::{Address, Auth, Tls};

/// How to reach a server, and how to treat it.
///
/// Made from a URL by [`from_url`](Config::from_url); the table of options is there. Printing it masks the password.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the server listens.
    pub address: Address,
    /// The user and the password; the user is empty where the server has only a password.
    pub auth: Option<Auth>,
    /// TLS, if the server speaks it.
    pub tls: Option<Tls>,
    /// Which of the server's numbered databases.
    pub database: u32,
    /// How long an op may take if its context has no deadline. From [`TIMEOUT_MIN`](Config::TIMEOUT_MIN) to [`TIMEOUT_MAX`](Config::TIMEOUT_MAX).
    pub timeout: Duration,
    /// How long a dial with its handshake may take. From [`TIMEOUT_MIN`](Config::TIMEOUT_MIN) to [`TIMEOUT_MAX`](Config::TIMEOUT_MAX).
    pub connect_timeout: Duration,
    /// The largest value, beside the longest key; the server's own limit where that is less.
    pub value_bytes_max: usize,
    /// Whether writes wait until replicas have them.
    pub wait: Option<WaitReplicas>,
}

/// How writes wait for replicas: each batch that writes is followed by `WAIT`, in the same round trip.
///
/// A write that too few replicas confirm in time is [`Effect::Unknown`](larder_core::Effect::Unknown): the primary has it. From then on reads over
/// the connection wait as well, until the replicas have caught up, so that nothing is taken for settled which a failover could still take back.
///
/// # What it does not promise
/// - **It is no consensus.** A failover may choose a replica that had not confirmed (wait for all of them to exclude that), and what a replica confirmed is in its
///   memory, not on its disk.
/// - Others read a write before replicas have it.
/// - What a lost connection left unknown is settled over the next one, which cannot wait for what the lost one wrote.
/// - `WAIT` holds up the connection, which all callers share: writes follow each other at the pace of the replicas, and while too few answer each
///   takes [`timeout`](WaitReplicas::timeout).
///
/// ```
/// use larder_store_redis::Config;
/// let config = Config::from_url("redis://cache?wait_replicas=2&wait_ms=100")?;
/// let wait = config.wait.expect("it was asked for");
/// assert_eq!((wait.replicas, wait.timeout.as_millis()), (2, 100));
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitReplicas {
    /// How many replicas must have a write: 1 to [`MAX`](WaitReplicas::MAX).
    pub replicas: u32,
    /// How long they may take. Less than the timeout of an op, which could end before.
    pub timeout: Duration,
}

impl WaitReplicas {
    /// The most replicas that can be waited for.
    pub const MAX: u32 = 64;
}

impl Config {
    /// The port of a server whose URL names none.
    pub const PORT: u16 = 6_379;
    /// The shortest timeout.
    pub const TIMEOUT_MIN: Duration = Duration::from_millis(1);
    /// The longest timeout.
    pub const TIMEOUT_MAX: Duration = Duration::from_millis(600_000);
    /// The largest [`value_bytes_max`](Config::value_bytes_max): what servers take unless they are told otherwise, less a header and a key.
    pub const VALUE_BYTES_MAX: usize = 512 * 1024 * 1024 - 1024;
    /// The largest value unless the URL says otherwise. A server does one thing at a time: while it moves a value of hundreds of megabytes,
    /// all others wait.
    pub const VALUE_BYTES_DEFAULT: usize = 4 * 1024 * 1024;

    /// Everything at its default, for this server.
    ///
    /// ```
    /// use larder_store_redis::Config;
    /// let config = Config::tcp("127.0.0.1", Config::PORT);
    /// assert_eq!(config.address.to_string(), "127.0.0.1:6379");
    /// ```
    pub fn tcp(host: &str, port: u16) -> Config {
        Config::new(Address::Tcp { host: host.to_owned(), port })
    }

    /// The same, for a server behind a unix socket.
    ///
    /// ```
    /// use larder_store_redis::Config;
    /// assert_eq!(Config::unix("/run/redis.sock").address.to_string(), "/run/redis.sock");
    /// ```
    pub fn unix(path: impl Into<PathBuf>) -> Config {
        Config::new(Address::Unix(path.into()))
    }

    fn new(address: Address) -> Config {
        Config {
            address,
            auth: None,
            tls: None,
            database: 0,
            timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            value_bytes_max: Config::VALUE_BYTES_DEFAULT,
            wait: None,
        }
    }

    /// Reads a URL: `redis://[user:password@]host[:port][/database][?option=value[&…]]`, `rediss://…` for TLS with the same parts, or
    /// `redis+unix://[user:password@]/path/to/socket[?database=1&…]`. `:password@` is a password without a user.
    ///
    /// The default port is 6379; IPv6 addresses stand in brackets; user and password may be percent-encoded, and a question mark in them must be.
    ///
    /// | option | values | default | meaning |
    /// |---|---|---|---|
    /// | `database` | 0 to 1000000 | 0 | which numbered database; as well `/1` behind the host |
    /// | `timeout_ms` | 1 to 600000 | 1000 | an op without a deadline of its own gives up; a connection over which nothing comes for twice as long after that is closed |
    /// | `connect_timeout_ms` | 1 to 600000 | 1000 | a dial with its handshake gives up |
    /// | `value_bytes_max` | 1024 to 536869888 | 4194304 | the largest value; less where the server takes less |
    /// | `wait_replicas` | 0 to 64 | 0 | how many replicas must have a write before it is told as done: see [`WaitReplicas`] |
    /// | `wait_ms` | 1 to 600000, less than `timeout_ms` | half of `timeout_ms` | how long they may take; then the write is unknown |
    /// | `tls_ca` | a path | the system's roots | certificates (PEM) to trust, with `rediss` |
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
    /// use larder_store_redis::Config;
    /// let config = Config::from_url("redis://:secret@cache/2?timeout_ms=200")?;
    /// assert_eq!((config.database, config.timeout.as_millis()), (2, 200));
    /// let error = Config::from_url("redis://cache?timout_ms=5").unwrap_err();
    /// assert!(error.to_string().contains("did you mean timeout_ms?"));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn from_url(url: &str) -> Result<Config> {
        crate::url::parse(url)
    }
}

impl Config {
    /// Refuses what a URL could not say, for configurations made by hand.
    pub(crate) fn check(&self) -> Result<()> {
        for (name, given) in [("timeout", self.timeout), ("connect_timeout", self.connect_timeout)] {
            if !(Config::TIMEOUT_MIN..=Config::TIMEOUT_MAX).contains(&given) {
                let (least, most) = (Config::TIMEOUT_MIN.as_millis(), Config::TIMEOUT_MAX.as_millis());
                let detail = format!("{name} is {given:?}; it must be {least} to {most} ms");
                return Err(Error::new(ErrorKind::Config, detail));
            }
        }
        let Some(WaitReplicas { replicas, timeout }) = self.wait else { return Ok(()) };
        if !(1..=WaitReplicas::MAX).contains(&replicas) {
            let detail = format!("writes are to wait for {replicas} replicas; it must be 1 to {}", WaitReplicas::MAX);
            return Err(Error::new(ErrorKind::Config, detail));
        }
        // The server takes whole milliseconds, and none stands for ever.
        let is_too_long = timeout >= self.timeout && timeout > Config::TIMEOUT_MIN;
        if timeout < Config::TIMEOUT_MIN || is_too_long {
            let (least, most) = (Config::TIMEOUT_MIN.as_millis(), self.timeout);
            let detail = format!(
                "writes are to wait {timeout:?} for replicas; it must be {least} ms or more, and less than the timeout, {most:?}"
            );
            return Err(Error::new(ErrorKind::Config, detail));
        }
        Ok(())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.address, f)
    }
}
