//! A server of the fleet: its connections, and the one task that dials.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use larder_core::{Error, ErrorKind, Result};
use larder_net::{Backoff, Connector, Stream};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::config::{Config, Server};
use crate::conn::{Conn, Queue, QueueLimits};
use crate::counters::{Counters, count};
use crate::driver::Driver;
use crate::fleet;
use crate::probe::{Exchange, Probed, ServerInfo, probe, within};
use crate::stream::split;

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) server: Server,
    pub(crate) shared: Arc<Shared>,
    /// The connections by place; `None` where there is none. Filled by the keeper; a lost one is taken out at once, since its
    /// socket closes with its last holder, and what it still carries should not arrive later than need be.
    conns: RwLock<Vec<Option<Arc<Conn>>>>,
    health: Mutex<Health>,
    /// What the last handshake found.
    info: Mutex<Option<ServerInfo>>,
    /// Wakes callers when a dial has ended, well or not.
    dialled: Notify,
    /// Wakes the keeper when a connection was lost.
    missing: Notify,
}

/// What all servers of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
    pub(crate) tls: Option<Connector>,
    /// The text that each server of the fleet carries.
    pub(crate) fingerprint: fleet::Fingerprint,
}

#[derive(Debug)]
enum Health {
    /// A first dial, or the first after a loss, is under way: callers wait for it.
    Dialling,
    Up,
    /// Dials fail: callers are refused at once, and one prober goes on dialling.
    Down {
        since: Instant,
        error: Error,
    },
}

impl Node {
    pub(crate) fn new(server: Server, shared: Arc<Shared>) -> Node {
        let conns = (0..shared.config.connections).map(|_| None).collect();
        Node {
            server,
            shared,
            conns: RwLock::new(conns),
            health: Mutex::new(Health::Dialling),
            info: Mutex::new(None),
            dialled: Notify::new(),
            missing: Notify::new(),
        }
    }

    pub(crate) fn info(&self) -> Option<ServerInfo> {
        self.info.lock().clone()
    }

    /// A live connection; `choice` says which, if there are several.
    pub(crate) fn conn(&self, choice: usize) -> Option<Arc<Conn>> {
        let conns = self.conns.read();
        let places = conns.len();
        (0..places).filter_map(|step| conns[(choice + step) % places].as_ref()).find(|conn| !conn.is_closed()).cloned()
    }

    /// The connection that read a cas token, if it lives.
    pub(crate) fn conn_of(&self, session: u64) -> Option<Arc<Conn>> {
        self.conns.read().iter().flatten().find(|conn| conn.session == session && !conn.is_closed()).cloned()
    }

    /// A live connection, waiting for a dial that is under way; an error at once while the server is down.
    pub(crate) async fn conn_by(&self, choice: usize, deadline: Instant) -> Result<Arc<Conn>> {
        loop {
            let dialled = self.dialled.notified();
            if let Some(conn) = self.conn(choice) {
                return Ok(conn);
            }
            if let Some(error) = self.down() {
                return Err(error);
            }
            if tokio::time::timeout_at(deadline.into(), dialled).await.is_err() {
                return Err(Error::new(ErrorKind::Timeout, "no connection before the deadline; a dial is under way"));
            }
        }
    }

    /// The error for callers while the server is down.
    pub(crate) fn down(&self) -> Option<Error> {
        match &*self.health.lock() {
            Health::Down { since, error } => {
                let kind = match error.kind() {
                    ErrorKind::Config => ErrorKind::Config,
                    _ => ErrorKind::Unavailable,
                };
                let down_s = since.elapsed().as_secs();
                let detail = match down_s {
                    0 => error.detail().to_owned(),
                    _ => format!("down for {down_s} s: {}", error.detail()),
                };
                Some(Error::new(kind, detail).source(error.clone()))
            }
            Health::Dialling | Health::Up => None,
        }
    }

    /// Waits for the end of the first dial.
    pub(crate) async fn first_dial(&self) {
        loop {
            let dialled = self.dialled.notified();
            if !matches!(*self.health.lock(), Health::Dialling) {
                return;
            }
            dialled.await;
        }
    }

    /// Keeps the connections: the only one that dials this server, one dial at a time. Runs until it is aborted.
    pub(crate) async fn keep(self: Arc<Node>) {
        let tasks = Tasks(Mutex::new(Vec::new()));
        let mut opened = vec![false; self.shared.config.connections];
        let mut failures = 0u32;
        loop {
            let missing = self.missing.notified();
            let Some(place) = self.vacant() else {
                missing.await;
                continue;
            };
            match self.dial().await {
                Ok((conn, driver)) => {
                    failures = 0;
                    tasks.spawn(self.clone(), driver);
                    *self.info.lock() = Some(conn.server.clone());
                    self.conns.write()[place] = Some(conn);
                    if std::mem::replace(&mut opened[place], true) {
                        count(&self.shared.counters.reconnects, 1);
                    }
                    *self.health.lock() = Health::Up;
                    self.dialled.notify_waiters();
                }
                Err(error) => {
                    count(&self.shared.counters.dials_failed, 1);
                    self.mark_down(error);
                    self.dialled.notify_waiters();
                    tokio::time::sleep(Backoff::REDIAL.wait(failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// A place without a live connection.
    fn vacant(&self) -> Option<usize> {
        let conns = self.conns.read();
        conns.iter().position(|conn| conn.as_ref().is_none_or(|conn| conn.is_closed()))
    }

    fn mark_down(&self, error: Error) {
        if self.conn(0).is_some() {
            return; // another connection lives: the server is up, and this dial was one too many for it
        }
        let mut health = self.health.lock();
        let since = match &*health {
            Health::Down { since, .. } => *since,
            Health::Dialling | Health::Up => Instant::now(),
        };
        *health = Health::Down { since, error };
    }

    fn lost(&self) {
        for conn in self.conns.write().iter_mut() {
            if conn.as_ref().is_some_and(|conn| conn.is_closed()) {
                *conn = None;
            }
        }
        if self.conn(0).is_none() {
            let mut health = self.health.lock();
            if matches!(*health, Health::Up) {
                *health = Health::Dialling;
            }
        }
        self.missing.notify_one();
    }

    async fn dial(&self) -> Result<(Arc<Conn>, Driver)> {
        let config = &self.shared.config;
        let work = async {
            let mut exchange = Exchange::new(self.open().await?);
            let Probed { server, item } = probe(&mut exchange, config, &fleet::read()?).await?;
            fleet::check(&mut exchange, item, &self.shared.fingerprint, config.fleet).await?;
            Ok((exchange.finish()?, server))
        };
        let (stream, server) = within(config.connect_timeout, work).await?;
        let (task_stream, direct) = split(stream);
        let conn = Arc::new(Conn {
            session: next_session(),
            server,
            limits: QueueLimits { ops_max: config.queue_ops_max, bytes_max: config.queue_bytes_max },
            counters: self.shared.counters.clone(),
            queue: Mutex::new(Queue::default()),
            direct,
        });
        let driver = Driver::new(conn.clone(), task_stream, config.timeout * 2);
        count(&self.shared.counters.connections, 1);
        Ok((conn, driver))
    }

    /// A connection beside those of ops, for questions that they do not ask; closed when it is dropped.
    pub(crate) async fn exchange(&self) -> Result<Exchange> {
        let config = &self.shared.config;
        let work = async {
            let mut exchange = Exchange::new(self.open().await?);
            probe(&mut exchange, config, &fleet::read()?).await?;
            Ok(exchange)
        };
        within(config.connect_timeout, work).await
    }

    async fn open(&self) -> Result<Stream> {
        self.server.address.dial(self.shared.tls.as_ref()).await
    }
}

/// The tasks of a node's connections; they end when the keeper does.
struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Tasks {
    fn spawn(&self, node: Arc<Node>, driver: Driver) {
        let mut tasks = self.0.lock();
        tasks.retain(|task| !task.is_finished());
        let told = TellNode(node);
        tasks.push(tokio::spawn(async move {
            driver.run().await;
            drop(told);
        }));
    }
}

/// Tells the node that a connection has ended, even if its task did not end as it should.
struct TellNode(Arc<Node>);

impl Drop for TellNode {
    fn drop(&mut self) {
        self.0.lost();
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.0.get_mut() {
            task.abort();
        }
    }
}

/// Numbers connections. They begin anywhere, so that a token that leaves the process is not taken for one of another's.
fn next_session() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static START: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    START.get_or_init(|| fastrand::u64(..)).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))
}
