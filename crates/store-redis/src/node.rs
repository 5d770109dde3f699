//! A server: its connection, and the one task that dials.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use larder_core::{Effect, Error, ErrorKind, Result};
use larder_net::{Backoff, Connector, Health, down_by_barren, is_barren};
use parking_lot::{Mutex, RwLock};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::codec::Refusal;
use crate::config::Config;
use crate::counters::{Counters, Stats, count};
use crate::gather::Gather;
use crate::handshake::{ServerInfo, questions, understood};
use crate::link::{Fault, Lines, Link, Values, Why};
use crate::replicas::{Confirmed, Does};
use crate::traffic::{Counted, Traffic};
use crate::watch::Watcher;

/// Batches that may wait to be encoded onto the connection; further callers wait in line.
const QUEUE_BATCHES_MAX: usize = 1_024;

/// What a server is expected to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One server on its own, and no replica.
    Single,
    /// A node of a cluster, whatever its part there.
    Member,
}

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) role: Role,
    pub(crate) config: Config,
    pub(crate) counters: Arc<Counters>,
    /// Where its connections live, whoever they are opened for.
    pub(crate) runtime: Handle,
    tls: Option<Connector>,
    link: RwLock<Option<Arc<Link>>>,
    pub(crate) health: Health,
    /// What the last handshake found.
    info: Mutex<Option<Arc<ServerInfo>>>,
    pub(crate) watcher: Watcher,
    /// The step between the small sizes of the server's allocator, once it was asked; `None` inside where it does not tell.
    pub(crate) quantum_bytes: OnceLock<Option<u64>>,
    /// Wakes the keeper when the connection was lost, or an op on it got no answer.
    look: Notify,
    /// True if an op got no answer since the keeper last looked.
    is_silent: AtomicBool,
}

/// When a connection had shaken hands, and what it had received by then.
#[derive(Debug)]
pub(crate) struct Dialled {
    traffic: Arc<Traffic>,
    received: u64,
    at: Instant,
}

impl Dialled {
    pub(crate) fn now(traffic: Arc<Traffic>) -> Dialled {
        Dialled { received: traffic.received_bytes(), traffic, at: Instant::now() }
    }

    /// Whether it was of no use.
    pub(crate) fn was_barren(&self) -> bool {
        is_barren(self.at, self.traffic.received_bytes() != self.received)
    }
}

impl Node {
    pub(crate) fn new(config: Config, counters: Arc<Counters>, role: Role, runtime: Handle) -> Result<Node> {
        Ok(Node {
            role,
            tls: config.tls.as_ref().map(Connector::new).transpose()?,
            config,
            counters,
            runtime,
            link: RwLock::new(None),
            health: Health::default(),
            info: Mutex::new(None),
            watcher: Watcher::default(),
            quantum_bytes: OnceLock::new(),
            look: Notify::new(),
            is_silent: AtomicBool::new(false),
        })
    }

    /// The server's address, for errors.
    pub(crate) fn name(&self) -> String {
        self.config.address.to_string()
    }

    /// What the last handshake found.
    pub(crate) fn info(&self) -> Option<Arc<ServerInfo>> {
        self.info.lock().clone()
    }

    /// What has been done so far, with the traffic of the present connection.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.counters.snapshot();
        let (sent, received) = self.traffic();
        stats.sent_bytes += sent;
        stats.received_bytes += received;
        stats
    }

    /// Bytes sent and received over the present connection.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        self.link().map_or((0, 0), |link| (link.traffic.sent_bytes(), link.traffic.received_bytes()))
    }

    /// Runs commands on the connection, one round trip; waits for a dial that is under way.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async function keeps what it is given twice, and this is in every call's future"
    )]
    pub(crate) fn run<'a>(
        &'a self,
        lines: Lines<'a>,
        does: Does,
        deadline: Instant,
    ) -> impl Future<Output = Result<Values, Fault>> + Send + 'a {
        async move {
            let link = match self.link() {
                Some(link) => link,
                None => Box::pin(self.link_by(deadline)).await.map_err(|error| Fault {
                    effect: Effect::NotApplied,
                    error,
                    why: Why::Late,
                })?,
            };
            self.run_over(&link, lines, does, deadline).await
        }
    }

    /// Runs commands on this very connection, for those that mean nothing on another; where it has ended, on none.
    #[expect(clippy::manual_async_fn, reason = "as above")]
    pub(crate) fn run_over<'a>(
        &'a self,
        link: &'a Arc<Link>,
        lines: Lines<'a>,
        does: Does,
        deadline: Instant,
    ) -> impl Future<Output = Result<Values, Fault>> + Send + 'a {
        async move {
            let received_bytes = link.traffic.received_bytes();
            let mut awaited = Awaited { node: self, link, received_bytes, has_ended: false };
            let answered = link.run(lines, does, deadline).await;
            awaited.has_ended = true;
            match &answered {
                Err(fault) if fault.is_unanswered() => self.has_no_answer(),
                Err(fault) if self.role == Role::Single && fault.why == Why::Demoted => self.retire(link),
                Ok(values) if self.role == Role::Single && does != Does::Reads && values.iter().any(is_read_only) => {
                    self.retire(link);
                }
                _ => {}
            }
            answered
        }
    }

    /// Gives a connection to nobody any more: the server has become a replica, whose reads are not to be trusted, and the next handshake says so, and names its
    /// primary. What is under way is answered still.
    fn retire(&self, link: &Link) {
        link.closed.store(true, Ordering::Release);
        self.watcher.close();
        self.look.notify_one();
    }

    /// Has the keeper look whether the connection lives.
    fn has_no_answer(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
        self.look.notify_one();
    }

    /// The live connection.
    fn link(&self) -> Option<Arc<Link>> {
        self.link.read().as_ref().filter(|link| !link.is_closed()).cloned()
    }

    /// The live connection, waiting for a dial that is under way; an error at once while the server is down.
    pub(crate) async fn link_by(&self, deadline: Instant) -> Result<Arc<Link>> {
        self.health.connection(deadline, || self.link()).await
    }

    /// Closes the connection, if there is one: its task holds the node.
    pub(crate) fn close(&self) {
        self.watcher.close();
        if let Some(link) = self.link.write().take() {
            link.close();
        }
    }

    /// Keeps the connection: the only one that dials this server, one dial at a time. Runs until it is aborted, and leaves no connection then.
    pub(crate) async fn keep(self: Arc<Node>) {
        let _closes = Closes(&self);
        let mut failures = 0u32;
        let mut last: Option<Dialled> = None;
        let mut was_open = false;
        loop {
            let look = self.look.notified();
            if let Some(link) = self.link() {
                look.await;
                self.check(&link).await;
                continue;
            }
            self.lost();
            match last.take() {
                Some(last) if last.was_barren() => {
                    if let Some(down) = down_by_barren(failures, None) {
                        self.health.down(down);
                    }
                    tokio::time::sleep(Backoff::REDIAL.wait(failures)).await;
                    failures = failures.saturating_add(1);
                }
                Some(_) => failures = 0,
                None => {}
            }
            match self.dial().await {
                Ok((link, info)) => {
                    last = Some(Dialled::now(link.traffic.clone()));
                    *self.info.lock() = Some(Arc::new(info));
                    count(&self.counters.connections, 1);
                    if std::mem::replace(&mut was_open, true) {
                        count(&self.counters.reconnects, 1);
                    }
                    *self.link.write() = Some(Arc::new(link));
                    self.health.up();
                }
                Err(error) => {
                    count(&self.counters.dials_failed, 1);
                    self.health.down(error);
                    tokio::time::sleep(Backoff::REDIAL.wait(failures)).await;
                    failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// Looks whether a connection on which an op got no answer still lives: closes it if nothing at all comes for twice the timeout.
    async fn check(&self, link: &Link) {
        if link.is_closed() || !self.is_silent.swap(false, Ordering::Relaxed) {
            return;
        }
        let received = link.traffic.received_bytes();
        let mut ping = link.conn.clone();
        let patience = self.config.timeout * 2;
        let answered = tokio::time::timeout(patience, ping.send_packed_command(&redis::cmd("PING"))).await;
        if !matches!(answered, Ok(Ok(_))) && link.traffic.received_bytes() == received {
            count(&self.counters.poisoned, 1);
            link.close();
        }
    }

    fn lost(&self) {
        if let Some(link) = self.link.write().take() {
            count(&self.counters.sent_bytes, link.traffic.sent_bytes());
            count(&self.counters.received_bytes, link.traffic.received_bytes());
        }
        self.health.lost();
    }

    async fn dial(self: &Arc<Node>) -> Result<(Link, ServerInfo)> {
        let limit = self.config.connect_timeout;
        match tokio::time::timeout(limit, self.shake_hands()).await {
            Ok(done) => done,
            Err(_) => {
                let mend = if self.tls.is_some() { "; is this the port on which the server speaks TLS?" } else { "" };
                let detail = format!("the dial with its handshake took more than {} ms{mend}", limit.as_millis());
                Err(Error::new(ErrorKind::Timeout, detail))
            }
        }
    }

    /// **Round trips: 2**, one more over TLS.
    async fn shake_hands(self: &Arc<Node>) -> Result<(Link, ServerInfo)> {
        let traffic = Arc::new(Traffic::default());
        let stream = self.config.address.dial(self.tls.as_ref()).await?;
        let stream = Counted::new(stream, traffic.clone());
        let opened = MultiplexedConnection::new_with_config(&self.greeting(), stream, connection_config()).await;
        let (conn, driver) = opened.map_err(|error| match traffic.looks_like() {
            None => self.not_greeted(error, &traffic),
            Some(other) => {
                Error::new(ErrorKind::Config, format!("this is no Redis or Valkey but {other}")).source(error)
            }
        })?;
        let closed = Arc::new(AtomicBool::new(false));
        let told = TellNode { node: self.clone(), closed: closed.clone() };
        let task = tokio::spawn(async move {
            let _told = told;
            driver.await;
        });
        let confirmed = self.config.wait.map(Confirmed::new);
        let task = task.abort_handle();
        let (counters, runtime, gather) = (self.counters.clone(), self.runtime.clone(), Gather::default());
        let link = Link { conn, traffic, counters, closed, confirmed, task, runtime, gather };
        let questions = questions(self.config.wait);
        let mut asked = link.conn.clone();
        let answers = asked.send_packed_commands(&questions, 0, questions.len()).await;
        let answers = answers.map_err(|error| unavailable("the handshake failed", error))?;
        Ok((link, understood(answers, self.role, self.config.wait)?))
    }

    /// A connection apart from the one that ops run on, for what the server pushes: `told` hears of that, `ended` of its end. What goes over it, and the task that
    /// keeps it, come with it, and live in the store's runtime: who asked for it may end before others who use it. **Round trips: 1**, one more over TLS.
    pub(crate) async fn open_pushed(
        self: &Arc<Node>,
        told: impl Fn(PushInfo) + Send + Sync + 'static,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<(MultiplexedConnection, Arc<Traffic>, AbortHandle)> {
        let node = self.clone();
        let dial = async move {
            let traffic = Arc::new(Traffic::default());
            let stream = node.config.address.dial(node.tls.as_ref()).await?;
            let stream = Counted::new(stream, traffic.clone());
            let hear = move |push| {
                told(push);
                Ok::<_, redis::aio::SendError>(())
            };
            let config = connection_config().set_push_sender(hear);
            let greeting = node.greeting();
            let opened = MultiplexedConnection::new_with_config(&greeting, stream, config).await;
            let (conn, driver) = opened.map_err(|error| node.not_greeted(error, &traffic))?;
            let task = tokio::spawn(async move {
                driver.await;
                ended();
            });
            Ok((conn, traffic, task.abort_handle()))
        };
        let late = || Error::new(ErrorKind::Timeout, "the dial with its handshake took too long");
        let limit = self.config.connect_timeout;
        let dialled = self.runtime.spawn(async move { tokio::time::timeout(limit, dial).await });
        let ended = |_| Error::new(ErrorKind::Unavailable, "the runtime that the store was opened on has ended");
        dialled.await.map_err(ended)?.map_err(|_| late())?
    }

    /// What the client crate says first: `HELLO 3`, with user and password, and `SELECT`.
    fn greeting(&self) -> RedisConnectionInfo {
        let mut greeting = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(i64::from(self.config.database))
            .set_lib_name("larder", env!("CARGO_PKG_VERSION"));
        if let Some(auth) = &self.config.auth {
            if !auth.user.is_empty() {
                greeting = greeting.set_username(&auth.user);
            }
            greeting = greeting.set_password(&auth.password);
        }
        greeting
    }

    fn not_greeted(&self, error: RedisError, traffic: &Traffic) -> Error {
        let said = error.to_string();
        let config = |detail: String| Error::new(ErrorKind::Config, detail).source(error.clone());
        if said.contains("NOAUTH")
            || said.contains("WRONGPASS")
            || error.kind() == redis::ErrorKind::AuthenticationFailed
        {
            return match &self.config.auth {
                None => config(format!(
                    "the server wants a password (HELLO: {said}); put it in the URL, redis://user:password@host"
                )),
                Some(_) => config(format!(
                    "the server refuses the user or the password (HELLO: {said}); correct them in the URL, redis://user:password@host, or on the server with \
                     ACL SETUSER"
                )),
            };
        }
        if said.contains(NOT_SELECTED) {
            return self.not_selected(error);
        }
        match error.kind() {
            redis::ErrorKind::Io if self.tls.is_none() => {
                let what =
                    "the handshake failed (where the server speaks TLS, open it as rediss:// or rediss-cluster://)";
                unavailable(what, error)
            }
            redis::ErrorKind::Io => unavailable("the handshake failed", error),
            // The parser takes a greeting that was cut for a wrong one.
            _ if traffic.is_cut() => unavailable("the connection ended during the handshake", error),
            _ => config(format!(
                "this is no Redis 6.2 or later, nor Valkey, or HELLO was renamed or taken away (HELLO: {said}); give HELLO back (rename-command), or use a \
                 newer server"
            )),
        }
    }

    /// What `SELECT` was refused for.
    fn not_selected(&self, error: RedisError) -> Error {
        let (said, database) = (error.to_string(), self.config.database);
        if said.contains("busy running") || said.contains("is loading") {
            return unavailable(&format!("the server does not select database {database} for now"), error);
        }
        let detail = match said.contains("no permissions") || said.contains("can't run") {
            true => format!(
                "the server forbids this user to select database {database} (SELECT: {said}); grant the command with ACL SETUSER, or use another user"
            ),
            false => format!("the server has no database {database} (SELECT: {said})"),
        };
        Error::new(ErrorKind::Config, detail).source(error)
    }
}

/// What the client crate begins an error with where the server does not take `SELECT`. It leaves out the server's code.
const NOT_SELECTED: &str = "refused to switch database";

fn is_read_only(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if Refusal::is_read_only(error))
}

fn connection_config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE_BATCHES_MAX)
}

/// Commands that somebody waits for. One who stops before the deadline, when nothing has come over the connection since, has it looked at: if everybody did that,
/// silence would be noticed by nobody.
struct Awaited<'a> {
    node: &'a Node,
    link: &'a Link,
    /// As they were before the commands were handed over.
    received_bytes: u64,
    has_ended: bool,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        if !self.has_ended && self.link.traffic.received_bytes() == self.received_bytes {
            self.node.has_no_answer();
        }
    }
}

/// Closes the connection of a node whose keeper ends. Who aborts the keeper closes it, too, but not what a dial brings that ends in that moment: nothing interrupts
/// the keeper before it has set it.
struct Closes<'a>(&'a Node);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Tells the node that a connection has ended, even if its task was aborted.
struct TellNode {
    node: Arc<Node>,
    closed: Arc<AtomicBool>,
}

impl Drop for TellNode {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.node.look.notify_one();
    }
}

fn unavailable(what: &str, error: RedisError) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{what}: {error}")).source(error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_to_redis_that_comes_while_the_store_is_dropped_is_closed() {
        let server = RedisServer::start(RedisVersion::Valkey, &RedisOptions::new());
        let config = Config::from_url(&server.url()).unwrap();
        let node = Arc::new(Node::new(config, Arc::default(), Role::Single, Handle::current()).unwrap());
        let open = Arc::downgrade(&node);
        // Holds the keeper up between its dial and its taking note of the connection.
        let held = node.info.lock();
        let keeper = tokio::spawn(node.clone().keep());
        std::thread::sleep(Duration::from_secs(1));
        // As a store does that is dropped.
        keeper.abort();
        node.close();
        drop(held);
        drop(node);
        let deadline = Instant::now() + Duration::from_secs(10);
        while open.upgrade().is_some() {
            assert!(Instant::now() < deadline, "the connection keeps the node, and the node the connection");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
