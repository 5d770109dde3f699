//! How a server is started.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// How a server is started. Without a word: no password, no persistence, no limit of memory.
///
/// ```
/// use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
///
/// let primary = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
/// let replica = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().replica_of(primary.addr()));
/// assert_eq!(replica.info("replication", "role"), "slave");
/// ```
#[derive(Clone, Default)]
pub struct RedisOptions {
    /// User and password of [`RedisServer::command`](super::RedisServer::command).
    pub(super) admin: Option<(String, String)>,
    pub(super) unix: bool,
    pub(super) tls: Option<TlsFiles>,
    acl: Option<String>,
    args: Vec<String>,
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions").field("args", &self.args).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(super) struct TlsFiles {
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
}

/// What a server does when its memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// It refuses writes.
    NoEviction,
    /// It drops the keys that were not used for longest.
    AllKeysLru,
    /// It drops, of the keys with a life, those that were not used for longest.
    VolatileLru,
}

impl RedisOptions {
    /// Nothing special.
    pub fn new() -> Self {
        Self::default()
    }

    /// A password for the default user.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.admin = Some(("default".to_owned(), password.to_owned()));
        self.arg("requirepass", password)
    }

    /// The lines of an ACL file, such as `user app on >secret ~* +@all -flushall`, and who administers.
    #[must_use]
    pub fn acl(mut self, lines: &str, admin: &str, admin_password: &str) -> Self {
        self.admin = Some((admin.to_owned(), admin_password.to_owned()));
        self.acl = Some(lines.to_owned());
        self
    }

    /// Every write goes to a file before it is acknowledged (`appendfsync always`).
    #[must_use]
    pub fn appendonly(self) -> Self {
        self.arg("appendonly", "yes").arg("appendfsync", "always")
    }

    /// A limit of memory, and what happens there.
    #[must_use]
    pub fn maxmemory(self, bytes: u64, policy: Eviction) -> Self {
        let policy = match policy {
            Eviction::NoEviction => "noeviction",
            Eviction::AllKeysLru => "allkeys-lru",
            Eviction::VolatileLru => "volatile-lru",
        };
        self.arg("maxmemory", &bytes.to_string()).arg("maxmemory-policy", policy)
    }

    /// A replica of another server.
    #[must_use]
    pub fn replica_of(self, primary: SocketAddr) -> Self {
        self.arg("replicaof", &format!("{} {}", primary.ip(), primary.port())).arg("repl-diskless-sync-delay", "0")
    }

    /// TLS only, with a certificate, its key and who is trusted, as PEM files. Clients need no certificate,
    /// unless `tls-auth-clients` says otherwise.
    #[must_use]
    pub fn tls(mut self, cert: &Path, key: &Path, ca: &Path) -> Self {
        self.tls = Some(TlsFiles { cert: cert.to_owned(), key: key.to_owned(), ca: ca.to_owned() });
        self
    }

    /// A unix socket only.
    #[must_use]
    pub fn unix(mut self) -> Self {
        self.unix = true;
        self
    }

    /// Any other setting of `redis.conf`.
    #[must_use]
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([format!("--{name}"), value.to_owned()]);
        self
    }

    /// What `other` says, behind the settings of this one.
    pub(super) fn and(self, other: &Self) -> Self {
        let args = self.args.into_iter().chain(other.args.iter().cloned()).collect();
        Self { args, ..other.clone() }
    }

    /// The command line, for a server in `folder`.
    pub(super) fn arguments(&self, folder: &Path) -> Vec<String> {
        let mut args = Vec::new();
        let mut pair = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        if let Some(tls) = &self.tls {
            pair("tls-cert-file", tls.cert.display().to_string());
            pair("tls-key-file", tls.key.display().to_string());
            pair("tls-ca-cert-file", tls.ca.display().to_string());
            pair("tls-auth-clients", "no".to_owned());
        }
        if let Some(acl) = &self.acl {
            let path = folder.join("users.acl");
            fs::write(&path, acl).expect("an ACL file in a folder of our own");
            pair("aclfile", path.display().to_string());
        }
        // Last, so that they win.
        args.extend(self.args.iter().cloned());
        args
    }
}
