//! The peers of the client, each behind the same two calls.

use std::sync::Arc;

use bytes::Bytes;
use fred::prelude::{Builder, Client as FredClient, ClientLike, Config as FredConfig, KeysInterface};
use redis::AsyncCommands;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection};

use crate::Result;
use crate::memcached::clients::Tasks;
use crate::memcached::load::Load;

/// `redis`: a connection that tasks share, cloned for each op as its documentation has it. Without its deadlines, which cost it time.
pub(super) struct Redis<C> {
    conn: C,
    load: Arc<Load>,
}

/// `redis`'s multiplexed connection.
pub(super) async fn multiplexed(url: &str) -> Result<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

/// The same, dialled anew when it breaks.
pub(super) async fn manager(url: &str) -> Result<ConnectionManager> {
    let config = ConnectionManagerConfig::new().set_response_timeout(None);
    Ok(redis::Client::open(url)?.get_connection_manager_with_config(config).await?)
}

impl<C> Redis<C> {
    pub(super) fn new(conn: C, load: Arc<Load>) -> Redis<C> {
        Redis { conn, load }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Tasks for Redis<C> {
    async fn get(&self, _task: usize, at: usize) -> Result<()> {
        let value: Option<Vec<u8>> = self.conn.clone().get(&self.load.text_keys[at]).await?;
        self.load.check(at, value.as_deref().unwrap_or_default())
    }

    async fn set(&self, _task: usize, at: usize) -> Result<()> {
        Ok(self.conn.clone().set(&self.load.text_keys[at], &self.load.values[at][..]).await?)
    }
}

/// `fred`: a client that tasks share.
pub(super) struct Fred {
    client: FredClient,
    load: Arc<Load>,
}

impl Fred {
    pub(super) async fn connect(url: &str, load: Arc<Load>) -> Result<Fred> {
        let client = Builder::from_config(FredConfig::from_url(url)?).build()?;
        // The task that it answers lives as long as the client.
        client.init().await?;
        Ok(Fred { client, load })
    }
}

impl Tasks for Fred {
    async fn get(&self, _task: usize, at: usize) -> Result<()> {
        let value: Option<Bytes> = self.client.get(&self.load.text_keys[at]).await?;
        self.load.check(at, value.as_deref().unwrap_or_default())
    }

    async fn set(&self, _task: usize, at: usize) -> Result<()> {
        Ok(self.client.set(&self.load.text_keys[at], self.load.values[at].clone(), None, None, false).await?)
    }
}
