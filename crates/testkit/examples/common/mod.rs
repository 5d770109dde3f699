//! A store of its own for each measurement, and what it holds.

use std::sync::Arc;

use larder::StoreRef;
use larder_store_memory::MemoryStore;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version, rss_bytes_of};

/// What can be measured on, as the command line names it.
pub(crate) const STORES: [&str; 3] = ["memory", "memcached", "redis"];

/// A store, with its server where it has one.
pub(crate) enum Ground {
    Memory(Arc<MemoryStore>),
    Memcached(Memcached),
    Redis(RedisServer),
}

/// What a store holds, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Held {
    /// What it says itself: of memcached the chunks that are in use, of Redis without what connections hold, which is no data.
    pub(crate) live: u64,
    /// What its process occupies.
    pub(crate) resident: u64,
}

impl Ground {
    pub(crate) fn start(on: &str) -> Ground {
        match on {
            "memcached" => Ground::Memcached(Memcached::start(Version::Old, &["-m", "4096"])),
            "redis" => Ground::Redis(RedisServer::start(RedisVersion::Redis7, &RedisOptions::new())),
            _ => Ground::Memory(Arc::new(MemoryStore::new())),
        }
    }

    pub(crate) async fn store(&self) -> StoreRef {
        match self {
            Ground::Memory(memory) => memory.clone(),
            Ground::Memcached(server) => larder::open(&server.url()).await.expect("a server"),
            Ground::Redis(server) => larder::open(&server.url()).await.expect("a server"),
        }
    }

    pub(crate) fn held(&self) -> Held {
        match self {
            Ground::Memory(memory) => {
                Held { live: memory.stats().bytes as u64, resident: rss_bytes_of(std::process::id()) }
            }
            Ground::Memcached(server) => Held { live: server.used_chunk_bytes(), resident: server.rss_bytes() },
            Ground::Redis(server) => {
                let of = |field| server.info("memory", field).parse::<u64>().unwrap_or(0);
                let live = of("used_memory").saturating_sub(of("mem_clients_normal"));
                Held { live, resident: server.rss_bytes() }
            }
        }
    }
}

impl Held {
    /// What has come since then.
    pub(crate) fn since(self, before: Held) -> Held {
        Held { live: self.live.saturating_sub(before.live), resident: self.resident.saturating_sub(before.resident) }
    }
}
