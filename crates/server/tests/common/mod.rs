//! A server of ours on a free port, and bytes to and from it.
#![allow(dead_code)]

use larder_server::{Config, Limits, Listen, MemoryEngine, Server};
use larder_store_memory::MemoryStore;

pub(crate) fn anywhere() -> Vec<Listen> {
    vec![Listen::Tcp("127.0.0.1:0".parse().expect("an address"))]
}

pub(crate) fn engine(limits: &Limits) -> MemoryEngine {
    let store = MemoryStore::builder().bytes_max(limits.memory_bytes_max).value_bytes_max(limits.item_bytes_max);
    MemoryEngine::new(store.track_access(limits.track_access).build().expect("limits that are in range"))
}

pub(crate) fn start(limits: Limits) -> Server {
    start_with(Config { limits, ..Config::default() })
}

pub(crate) fn start_with(config: Config) -> Server {
    let listen = if config.listen.is_empty() { anywhere() } else { config.listen };
    Server::start(engine(&config.limits), Config { listen, threads: 2, ..config }).expect("it starts")
}

/// Allows this process so many files: both ends are in it.
pub(crate) fn allow_files(files: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    assert!(limit.maximum.is_none_or(|most| most >= files), "at most {:?} files may be open here", limit.maximum);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("a limit that may be raised");
}

/// A server over a store in a folder.
pub(crate) fn start_in_folder(folder: &std::path::Path) -> Server {
    let store = larder_server::DurableOptions::new(folder).open().expect("a store");
    let config = Config { listen: anywhere(), threads: 2, ..Config::default() };
    Server::start(larder_server::DurableEngine::new(store), config).expect("it starts")
}
