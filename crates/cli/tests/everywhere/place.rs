//! A store of each kind there is, for the commands.

use std::any::Any;
use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};

use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, shared_cluster};
use larder_testkit::servers::{Memcached, Version};

use crate::common::{Done, finish, larder, on_with_input, until};

/// A store, and a name in it that nobody else uses: the cluster is that of all tests of a run.
pub(crate) struct Place {
    url: String,
    pub(crate) name: String,
    /// What an inspection says of the store, and of what ends the data there.
    pub(crate) store: &'static str,
    pub(crate) end: &'static str,
    /// What holds the store: servers, and folders.
    _held: Box<dyn Any>,
}

const A_RESTART: &str = "a restart of its server takes the data";

impl Place {
    fn new(url: String, store: &'static str, end: &'static str, held: impl Any) -> Place {
        let name = format!("n{:016x}", fastrand::u64(..));
        Place { url, name, store, end, _held: Box::new(held) }
    }

    pub(crate) fn redis() -> Place {
        let server = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new());
        Place::new(server.url(), "redis 7.", A_RESTART, server)
    }

    pub(crate) fn valkey() -> Place {
        let server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
        Place::new(server.url(), "valkey ", A_RESTART, server)
    }

    pub(crate) fn cluster() -> Place {
        Place::new(shared_cluster(RedisVersion::Redis7).url(), "cluster of 3", A_RESTART, ())
    }

    pub(crate) fn folder() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file:{}", folder.path().join("store").display());
        Place::new(url, "file:", "what was acknowledged survives a crash of the store", folder)
    }

    pub(crate) fn served() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let child = larder(["serve".as_ref(), "-s".as_ref(), socket.as_os_str()]).spawn().unwrap();
        let mut served = Served(child);
        until("the server", || {
            assert!(served.0.try_wait().unwrap().is_none(), "it ended");
            UnixStream::connect(&socket).is_ok()
        });
        let url = format!("memcached+unix://{}", socket.display());
        Place::new(url, "memcached 1.6.45", A_RESTART, (served, folder))
    }

    pub(crate) fn three() -> Place {
        let servers = [Version::New, Version::Old, Version::New].map(|version| Memcached::start(version, &[]));
        let addrs = servers.each_ref().map(|server| server.addr().to_string());
        Place::new(format!("memcached://{}", addrs.join(",")), "3 servers", A_RESTART, servers)
    }

    /// Runs a command line, words apart by spaces, in which `NAME` stands for the name.
    pub(crate) fn on(&self, line: &str) -> Done {
        finish(&mut self.larder(line, [""; 0]))
    }

    /// The same with something on standard input.
    pub(crate) fn on_with_input(&self, line: &str, input: &[u8]) -> Done {
        on_with_input(&self.url, &self.named(line), input)
    }

    /// A command line, and more words as they are.
    pub(crate) fn larder(&self, line: &str, more: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = larder(self.named(line).split_whitespace());
        command.args(more).env("LARDER_STORE", &self.url);
        command
    }

    fn named(&self, line: &str) -> String {
        line.replace("NAME", &self.name)
    }
}

/// A server of ours; killed when it is dropped.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
