//! Real servers of every kind, each behind a proxy.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_core::StoreRef;
use larder_server::{Config, DurableEngine, DurableOptions, Listen, Server};
use larder_store_redis::{Config as RedisConfig, RedisStore};
use larder_testkit::proxy::{Proxy, Rates};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};

use crate::support::memcached::{self, bad_network};

/// How a server is spoken to.
#[derive(Clone, Copy, Debug)]
enum Tongue {
    Memcached(&'static str),
    Redis,
}

/// A server, and a proxy before it.
pub(crate) struct Scene {
    pub(crate) proxy: Proxy,
    /// For messages.
    pub(crate) column: String,
    addr: SocketAddr,
    tongue: Tongue,
    _server: Box<dyn Any + Send + Sync>,
}

impl Scene {
    pub(crate) fn memcached((version, dialect): (Version, &'static str)) -> Scene {
        let server = Memcached::start(version, &[]);
        let (addr, column) = (server.addr(), format!("memcached {version:?} {dialect}"));
        Scene::before(addr, Tongue::Memcached(dialect), column, Box::new(server))
    }

    pub(crate) fn redis(version: RedisVersion) -> Scene {
        let server = RedisServer::start(version, &RedisOptions::new());
        Scene::before(server.addr(), Tongue::Redis, format!("{version:?}"), Box::new(server))
    }

    /// Our own server over a folder.
    pub(crate) fn served_folder() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let store = DurableOptions::new(folder.path()).open().unwrap();
        let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
        let server =
            Server::start(DurableEngine::new(store), Config { listen, threads: 2, ..Config::default() }).unwrap();
        let addr = server.addrs()[0];
        Scene::before(addr, Tongue::Memcached("auto"), "a served folder".to_owned(), Box::new((server, folder)))
    }

    fn before(addr: SocketAddr, tongue: Tongue, column: String, server: Box<dyn Any + Send + Sync>) -> Scene {
        Scene { proxy: Proxy::start(addr), column, addr, tongue, _server: server }
    }

    /// A client of its own, with connections of its own, that sees the server directly, and is patient with it.
    pub(crate) async fn direct(&self) -> StoreRef {
        self.client(self.addr, "timeout_ms=10000&connect_timeout_ms=10000").await
    }

    /// Eight such clients, behind the proxy.
    pub(crate) async fn eight(&self) -> Vec<StoreRef> {
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(self.client(self.proxy.addr(), "timeout_ms=500").await);
        }
        clients
    }

    async fn client(&self, addr: SocketAddr, options: &str) -> StoreRef {
        match self.tongue {
            Tongue::Memcached(dialect) => memcached::client(addr, &format!("dialect={dialect}&{options}")).await,
            Tongue::Redis => {
                let config = RedisConfig::from_url(&format!("redis://{addr}?{options}")).unwrap();
                Arc::new(RedisStore::connect(config).await.unwrap())
            }
        }
    }

    /// The network is bad from now on.
    pub(crate) fn worsen(&self, seed: u64, each: f64) {
        self.proxy.random(seed, bad_network(each));
    }

    /// It is good again, and what was still held back on the way has arrived.
    pub(crate) async fn calm(&self, seed: u64) {
        self.proxy.random(seed, Rates::default());
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(self.proxy.counts().faults() > 5, "{}: {:?}", self.column, self.proxy.counts());
    }
}
