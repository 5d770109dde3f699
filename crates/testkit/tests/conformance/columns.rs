//! The columns: stores as users open them, each fresh.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use larder_core::StoreRef;
use larder_layers::{Counting, Namespace, Observed, Outage, Retry, Timeout};
use larder_server::{Config, DurableEngine, DurableOptions, Listen, MemoryEngine, Server};
use larder_store_memory::MemoryStore;
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion, shared_cluster};
use larder_testkit::servers::{Memcached, Version};

use crate::crashing::Crashing;

/// A store under test.
pub(crate) struct Column {
    /// Its name in the matrix.
    pub(crate) name: &'static str,
    /// Opens a fresh one.
    pub(crate) open: fn() -> Opening,
}

/// These cases are about what is answered, not when: a loaded machine is no failure.
const PATIENCE: &str = "timeout_ms=10000&connect_timeout_ms=10000";

type Opening = Pin<Box<dyn Future<Output = Opened> + Send>>;

/// A store that is open, with the servers it needs.
pub(crate) struct Opened {
    /// The store.
    pub(crate) store: StoreRef,
    /// The same, of one that crashes.
    pub(crate) crashing: Option<Arc<Crashing>>,
    _servers: Box<dyn Any + Send>,
}

impl Opened {
    fn new(store: StoreRef, servers: impl Any + Send) -> Opened {
        Opened { store, crashing: None, _servers: Box::new(servers) }
    }
}

/// All of them.
pub(crate) const COLUMNS: &[Column] = &[
    Column { name: "memory", open: || Box::pin(memory()) },
    Column { name: "memory-layers", open: || Box::pin(memory_layers()) },
    Column { name: "durable", open: || Box::pin(durable()) },
    Column { name: "durable-crashed", open: || Box::pin(durable_crashed()) },
    Column { name: "memcached-old", open: || Box::pin(memcached(Version::Old, 1, "")) },
    Column { name: "memcached-new", open: || Box::pin(memcached(Version::New, 1, "")) },
    Column { name: "memcached-new-x3", open: || Box::pin(memcached(Version::New, 3, "")) },
    Column { name: "memcached-old-x3", open: || Box::pin(memcached(Version::Old, 3, "&hash=ketama&connections=2")) },
    Column { name: "memcached-new-classic", open: || Box::pin(memcached(Version::New, 1, "&dialect=classic")) },
    Column { name: "memcached-old-classic", open: || Box::pin(memcached(Version::Old, 1, "&dialect=classic")) },
    Column { name: "redis-7", open: || Box::pin(redis(RedisVersion::Redis7)) },
    Column { name: "redis-8", open: || Box::pin(redis(RedisVersion::Redis8)) },
    Column { name: "valkey", open: || Box::pin(redis(RedisVersion::Valkey)) },
    Column { name: "larder-serve-memory", open: || Box::pin(larder_serve()) },
    Column { name: "larder-serve-durable", open: || Box::pin(larder_serve_durable()) },
    Column { name: "redis-8-cluster", open: || Box::pin(redis_cluster(RedisVersion::Redis8)) },
    Column { name: "classic-bare", open: || Box::pin(classic_bare()) },
];

async fn open(url: &str) -> StoreRef {
    larder::open(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn memory() -> Opened {
    Opened::new(open("memory:").await, ())
}

/// Behind all layers, in the order that users would stack them.
async fn memory_layers() -> Opened {
    let store = open("memory:").await;
    let store: StoreRef = Arc::new(Timeout::new(store, Duration::from_secs(5)));
    let store: StoreRef = Arc::new(Retry::new(store));
    let store: StoreRef = Arc::new(Outage::new(store));
    let store: StoreRef = Arc::new(Namespace::new(store, "ns:").expect("a short prefix"));
    let store: StoreRef = Arc::new(Observed::new(store, "layers"));
    Opened::new(Arc::new(Counting::new(store)), ())
}

/// What a value may have at most here: a store that takes 64 MB would have the cases of the largest value take long.
const DURABLE: &str = "value_bytes_max=1m";

async fn durable() -> Opened {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(&format!("file:{}?{DURABLE}", folder.path().display())).await;
    Opened::new(store, folder)
}

/// A durable store that crashes now and then, and is opened anew.
async fn durable_crashed() -> Opened {
    let crashing = Arc::new(Crashing::start(DURABLE).await);
    Opened { store: crashing.clone(), crashing: Some(crashing), _servers: Box::new(()) }
}

async fn memcached(version: Version, count: usize, options: &str) -> Opened {
    let servers: Vec<Memcached> = (0..count).map(|_| Memcached::start(version, &["-m", "64"])).collect();
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let store = open(&format!("memcached://{}?{PATIENCE}{options}", addresses.join(","))).await;
    Opened::new(store, servers)
}

async fn redis(version: RedisVersion) -> Opened {
    let server = RedisServer::start(version, &RedisOptions::new());
    let store = open(&format!("{}?{PATIENCE}", server.url())).await;
    Opened::new(store, server)
}

/// Our own server over the store in the process, through our own client.
async fn larder_serve() -> Opened {
    let store = MemoryStore::builder().bytes_max(64 << 20).build().expect("a store");
    let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    let config = Config { listen, threads: 2, ..Config::default() };
    let server = Server::start(MemoryEngine::new(store), config).expect("it listens");
    let store = open(&format!("memcached://{}?{PATIENCE}", server.addrs()[0])).await;
    Opened::new(store, server)
}

/// The same over a store in a folder.
async fn larder_serve_durable() -> Opened {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DurableOptions::new(folder.path()).open().expect("a store");
    let listen = vec![Listen::Tcp(([127, 0, 0, 1], 0).into())];
    let config = Config { listen, threads: 2, ..Config::default() };
    let server = Server::start(DurableEngine::new(store), config).expect("it listens");
    let store = open(&format!("memcached://{}?{PATIENCE}", server.addrs()[0])).await;
    Opened::new(store, (server, folder))
}

/// The cluster that all processes of the run share: each case has keys of its own.
async fn redis_cluster(version: RedisVersion) -> Opened {
    let cluster = tokio::task::spawn_blocking(move || shared_cluster(version)).await.expect("a cluster");
    let store = open(&format!("{}?{PATIENCE}", cluster.url())).await;
    Opened::new(store, cluster)
}

/// A server that knows only get, set, add, replace, append, prepend, incr, decr and delete, without expiry and cas.
async fn classic_bare() -> Opened {
    let server = ClassicFake::start();
    let store = open(&format!("memcached://{}?{PATIENCE}", server.addr())).await;
    Opened::new(store, server)
}
