//! The clients, each behind the same few calls.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use async_memcached::AsciiProtocol;
use larder_core::{Ctx, Op, PutMode, Reply, StoreExt, StoreRef, Ttl, Want};
use larder_store_memcached::{Config, MemcachedStore};
use memcache::exp;

use super::load::Load;
use crate::Result;

/// A client for tokio's tasks. Every call checks what it got.
pub(crate) trait Tasks: Send + Sync + 'static {
    /// Reads the value of a key of the load.
    fn get(&self, task: usize, at: usize) -> impl Future<Output = Result<()>> + Send;
    /// Writes it.
    fn set(&self, task: usize, at: usize) -> impl Future<Output = Result<()>> + Send;
}

/// A client for threads.
pub(super) trait Threads: Send + Sync {
    /// Reads the value of a key of the load.
    fn get(&self, at: usize) -> Result<()>;
    /// Writes it.
    fn set(&self, at: usize) -> Result<()>;
}

/// Ours, as every structure uses it: through `dyn Store`.
pub(crate) struct Larder {
    store: StoreRef,
    load: Arc<Load>,
}

impl Larder {
    pub(super) async fn connect(addr: SocketAddr, connections: &str, load: Arc<Load>) -> Result<Larder> {
        let config = Config::from_url(&format!("memcached://{addr}?connections={connections}"))?;
        Ok(Larder::over(Arc::new(MemcachedStore::connect(config).await?), load))
    }

    pub(crate) fn over(store: StoreRef, load: Arc<Load>) -> Larder {
        Larder { store, load }
    }
}

impl Tasks for Larder {
    async fn get(&self, _task: usize, at: usize) -> Result<()> {
        let op = Op::get(self.load.keys[at].clone(), Want::VALUE);
        match self.store.run_one(Ctx::default(), op).await? {
            Reply::Item(item) => self.load.check(at, &item.value),
            other => Err(format!("a get answered {other:?}").into()),
        }
    }

    async fn set(&self, _task: usize, at: usize) -> Result<()> {
        let op = Op::put(self.load.keys[at].clone(), PutMode::Set, self.load.values[at].clone(), Ttl::Never);
        match self.store.run_one(Ctx::default(), op).await? {
            Reply::Stored => Ok(()),
            other => Err(format!("a set answered {other:?}").into()),
        }
    }
}

/// `async-memcached`: a client is one connection for one caller at a time, so tasks share some, each with its own queue.
pub(super) struct AsyncMemcached {
    clients: Vec<tokio::sync::Mutex<async_memcached::Client>>,
    load: Arc<Load>,
}

impl AsyncMemcached {
    pub(super) async fn connect(addr: SocketAddr, pool: usize, load: Arc<Load>) -> Result<AsyncMemcached> {
        let mut clients = Vec::with_capacity(pool);
        for _ in 0..pool {
            clients.push(tokio::sync::Mutex::new(async_memcached::Client::new(format!("tcp://{addr}")).await?));
        }
        Ok(AsyncMemcached { clients, load })
    }
}

impl Tasks for AsyncMemcached {
    async fn get(&self, task: usize, at: usize) -> Result<()> {
        let mut client = self.clients[task % self.clients.len()].lock().await;
        let item = client.get(&self.load.text_keys[at]).await?;
        drop(client);
        self.load.check(at, item.and_then(|item| item.data).as_deref().unwrap_or_default())
    }

    async fn set(&self, task: usize, at: usize) -> Result<()> {
        let mut client = self.clients[task % self.clients.len()].lock().await;
        Ok(client.set(&self.load.text_keys[at], &self.load.values[at][..], None, None).await?)
    }
}

/// `memcache`'s newer client, on tokio, with its own pool.
pub(super) struct MemcacheExpTasks {
    client: exp::AsyncMemcache,
    load: Arc<Load>,
}

impl MemcacheExpTasks {
    pub(super) async fn connect(addr: SocketAddr, pool: usize, load: Arc<Load>) -> Result<MemcacheExpTasks> {
        Ok(MemcacheExpTasks { client: exp_builder(pool).connect_async([addr]).await?, load })
    }
}

/// Without its deadlines, which cost it time.
fn exp_builder(pool: usize) -> exp::MemcacheBuilder {
    exp::MemcacheBuilder::new().timeout(None).connect_timeout(None).max_idle(pool).max_connections(pool)
}

impl Tasks for MemcacheExpTasks {
    async fn get(&self, _task: usize, at: usize) -> Result<()> {
        let value: Option<Vec<u8>> = self.client.get(&self.load.text_keys[at]).await?;
        self.load.check(at, value.as_deref().unwrap_or_default())
    }

    async fn set(&self, _task: usize, at: usize) -> Result<()> {
        Ok(self.client.set(&self.load.text_keys[at], &self.load.values[at][..], exp::Ttl::NEVER).await?)
    }
}

/// `memcache`'s newer client, on threads.
pub(super) struct MemcacheExpThreads {
    client: exp::Memcache,
    load: Arc<Load>,
}

impl MemcacheExpThreads {
    pub(super) fn connect(addr: SocketAddr, pool: usize, load: Arc<Load>) -> Result<MemcacheExpThreads> {
        Ok(MemcacheExpThreads { client: exp_builder(pool).connect([addr])?, load })
    }
}

impl Threads for MemcacheExpThreads {
    fn get(&self, at: usize) -> Result<()> {
        let value: Option<Vec<u8>> = self.client.get(&self.load.text_keys[at])?;
        self.load.check(at, value.as_deref().unwrap_or_default())
    }

    fn set(&self, at: usize) -> Result<()> {
        Ok(self.client.set(&self.load.text_keys[at], &self.load.values[at][..], exp::Ttl::NEVER)?)
    }
}

/// `memcache`'s stable client, on threads, with its pool (r2d2).
pub(super) struct MemcacheThreads {
    client: memcache::Client,
    load: Arc<Load>,
}

impl MemcacheThreads {
    pub(super) fn connect(addr: SocketAddr, pool: usize, load: Arc<Load>) -> Result<MemcacheThreads> {
        let url = format!("memcache://{addr}?protocol=ascii&tcp_nodelay=true&connect_timeout=600");
        let client = memcache::Client::with_pool_size(url, u32::try_from(pool)?)?;
        Ok(MemcacheThreads { client, load })
    }
}

impl Threads for MemcacheThreads {
    fn get(&self, at: usize) -> Result<()> {
        let value: Option<Vec<u8>> = self.client.get(&self.load.text_keys[at])?;
        self.load.check(at, value.as_deref().unwrap_or_default())
    }

    fn set(&self, at: usize) -> Result<()> {
        Ok(self.client.set(&self.load.text_keys[at], &self.load.values[at][..], 0)?)
    }
}
