//! The store: splits batches over nodes, all at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use larder_core::ext::answered_at_once;
use larder_core::{Batch, Ctx, Error, ErrorKind, Op, Profile, Replies, Result, Run, Store};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::conn::Enqueued;
use crate::counters::{Counters, Stats};
use crate::fleet::Fingerprint;
use crate::node::{Node, Shared};
use crate::profile::{FRESH, aggregate, batch_ops_max};
use crate::ring::{Ring, fnv};
use crate::sending::{Places, Sending, ordered};
use larder_net::{Connector, all_of};

/// A store on one memcached server, or on a fleet of them.
///
/// # What is promised
/// - A batch is split by server; each part is written at once, on one connection, in the order of the batch. A read is behind every
///   write to its key that was sent before it, though reads may have a connection of their own ([`Connections::Auto`](crate::Connections::Auto)); with
///   `connections=2` and more, behind every write to its key that was answered before it ([`Connections::Exactly`](crate::Connections::Exactly)). **Round trips: 1** a
///   server, all servers at once. (One an op to a memcached before 1.6.39 over TLS: it may hang on pipelined sets.)
/// - An error with [`Effect::NotApplied`](larder_core::Effect::NotApplied) is a promise. A write that was handed to the
///   system and not answered is [`Effect::Unknown`](larder_core::Effect::Unknown), and never sent again. A read is sent again once.
/// - A cas token belongs to the connection that read it; when that is gone, ops with it answer `Exists`, unsent.
/// - Dropping a future leaves the connection in step. Ops that wait in the queue are sent all the same.
/// - Deadlines are looked at every 10 ms, so that an op may end that much late.
/// - There is no failover: rehashing would split a lock in two. Ops of a server that is down fail at once, naming it, while one
///   prober redials with jittered backoff (5 ms to 2 s). One that ends three connections in a row within 2 s, before an answer, is down.
///
/// # Limits
/// - Keys that are not printable ASCII take base64, and so 186 bytes at the most; the classic dialect refuses them.
/// - A value that is too large for the server is refused before it is sent. If the server runs out of memory, a plain set **and any
///   put under a binary key** loses the item that was there (the error's effect is `Unknown`); the other modes keep it.
/// - A life above 30 days is counted by the server's clock, read at the handshake: it may be off by two seconds. From then to the next handshake it is also
///   off by what the server's clock is set, and by how long the client's machine is suspended. Of a server that tells no time the client's clock is taken.
/// - Tokens hold as long as a connection: behind a proxy that speaks memcached itself (mcrouter, for one) it outlives the servers, which count tokens from 1
///   again when they are restarted. One of before may match what was stored since, so **conditional writes through such a proxy are not safe** over that.
/// - The queue of a connection is bounded in ops and bytes and never blocks: over it, ops fail with
///   [`ErrorKind::Unavailable`], unsent. What finds nothing that waits is taken whatever its size. The profile promises no batch of
///   more ops and no item of more bytes than may wait.
///
/// ```no_run
/// use larder_core::{Key, PutMode, StoreExt, Ttl};
/// use larder_store_memcached::{Config, MemcachedStore};
/// # async fn example() -> larder_core::Result<()> {
/// let store = MemcachedStore::connect(Config::from_url("memcached://127.0.0.1:11211")?).await?;
/// store.put(Key::new("greeting")?, PutMode::Set, "hello", Ttl::Never).await?;
/// assert!(store.get(Key::new("greeting")?).await?.is_some());
/// # Ok(())
/// # }
/// ```
pub struct MemcachedStore {
    nodes: Vec<Arc<Node>>,
    ring: Ring,
    shared: Arc<Shared>,
    keepers: Vec<JoinHandle<()>>,
    profile: Mutex<Told>,
}

/// The profile, and when it was put together.
struct Told {
    /// How many handshakes there had been.
    handshakes: u64,
    at: Instant,
    profile: Arc<Profile>,
}

impl std::fmt::Debug for MemcachedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemcachedStore").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Drop for MemcachedStore {
    fn drop(&mut self) {
        for keeper in &self.keepers {
            keeper.abort();
        }
    }
}

impl MemcachedStore {
    /// Connects to every server, all at once, and shakes hands. Runs on the tokio runtime it is called on, and needs it for as
    /// long as it lives. **Round trips: 1** a server, after those of TCP and TLS; one more each where a password is given, where the server asks for it,
    /// where it is found to be an old one, and where the list is left on it or claimed.
    ///
    /// A fleet of which some servers are down connects: ops on those fail until they are back.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`]: no server could be reached;
    /// - [`ErrorKind::Config`]: a server is no memcached, refuses the password or belongs to another fleet, or the
    ///   configuration is wrong in itself.
    ///
    /// ```no_run
    /// # async fn example() -> larder_core::Result<()> {
    /// use larder_store_memcached::{Config, MemcachedStore};
    /// let store = MemcachedStore::connect(Config::from_url("memcached://cache1,cache2?timeout_ms=200")?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(config: Config) -> Result<MemcachedStore> {
        check(&config)?;
        let tls = config.tls.as_ref().map(Connector::new).transpose()?;
        let fingerprint = Fingerprint::of(&config);
        let ring = Ring::new(&config.servers, config.hash);
        let shared = Arc::new(Shared { config, counters: Arc::new(Counters::default()), tls, fingerprint });
        let servers = shared.config.servers.iter();
        let nodes: Vec<Arc<Node>> = servers.map(|server| Arc::new(Node::new(server.clone(), shared.clone()))).collect();
        let keepers = nodes.iter().map(|node| tokio::spawn(node.clone().keep())).collect();
        let profile = Arc::new(aggregate(&[], &shared.config));
        let profile = Mutex::new(Told { handshakes: 0, at: Instant::now(), profile });
        let store = MemcachedStore { nodes, ring, shared, keepers, profile };
        let mut down = Vec::new();
        for node in &store.nodes {
            node.health.first_dial().await;
            if let Some(error) = node.health.error() {
                let error = error.store(&node.server.name);
                if error.kind() == ErrorKind::Config {
                    return Err(error);
                }
                down.push(error);
            }
        }
        match down.pop() {
            Some(error) if down.len() + 1 == store.nodes.len() => Err(error),
            _ => Ok(store),
        }
    }

    /// What the store has done so far.
    ///
    /// ```no_run
    /// # fn example(store: &larder_store_memcached::MemcachedStore) {
    /// println!("{} round trips", store.stats().round_trips);
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot()
    }

    /// The name of the server that holds a key, as an op with this route would be sent to; `None` for a rank past the last.
    ///
    /// ```no_run
    /// # fn example(store: &larder_store_memcached::MemcachedStore) -> larder_core::Result<()> {
    /// use larder_core::{Key, Op, Want};
    /// println!("{:?}", store.server_of(&Op::get(Key::new("hits")?, Want::VALUE)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn server_of(&self, op: &Op) -> Option<&str> {
        self.place(op).map(|place| self.nodes[place].server.name.as_str())
    }

    /// The servers.
    pub(crate) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// How long an op may take, where its caller says nothing.
    pub(crate) fn timeout(&self) -> std::time::Duration {
        self.shared.config.timeout
    }

    fn place(&self, op: &Op) -> Option<usize> {
        let key = op.route.with.as_ref().unwrap_or(&op.key);
        self.ring.server(key.as_bytes(), op.route.rank)
    }

    /// Which of a node's connections: the same for the same key, so that what is written on one is read on it.
    fn choice(&self, op: &Op) -> usize {
        if self.shared.config.connections.kept() == 1 { 0 } else { fnv(op.key.as_bytes()) as usize }
    }

    /// One node: no splitting, and no allocation a batch but the part's.
    async fn run_on(&self, node: &Node, ctx: Ctx, batch: Batch) -> Replies {
        let now = Instant::now();
        let deadline = ctx.deadline.unwrap_or(now + self.shared.config.timeout);
        let choice = self.choice(&batch[0]);
        let all = || (0..batch.len()).collect::<Places>();
        // What fails there goes on over home.
        let sending = |todo: Places| Sending::new(node, &batch, choice, deadline, todo);
        // The fast path: a connection is there, no op wants another one, and nothing fails.
        if now < deadline
            && let Some(conn) = node.conn_for(choice, batch.iter())
            && batch.iter().all(|op| conn.may_carry(op))
            && let Ok(enqueued) = conn.enqueue(batch.iter(), now, deadline)
        {
            drop(conn);
            let waiting = match enqueued {
                Enqueued { waiting: Some(waiting), refused } if refused.is_empty() => waiting,
                enqueued => return ordered(Box::pin(sending(Places::new()).run_from(&all(), enqueued)).await),
            };
            let outcome = waiting.await;
            if outcome.cut.is_none() && outcome.replies.iter().all(Result::is_ok) {
                return outcome.replies;
            }
            let mut sending = sending(Places::new());
            sending.settle(&all(), outcome);
            return ordered(Box::pin(sending.run()).await);
        }
        ordered(Box::pin(sending(all()).run()).await)
    }

    /// Several nodes, all at once; each part keeps the order of the batch.
    async fn run_split(&self, ctx: Ctx, batch: Batch) -> Replies {
        let deadline = ctx.deadline.unwrap_or(Instant::now() + self.shared.config.timeout);
        let mut results = Vec::with_capacity(batch.len());
        let mut parts: Vec<Places> = vec![Places::new(); self.nodes.len()];
        for (place, op) in batch.iter().enumerate() {
            match self.place(op) {
                Some(node) => parts[node].push(place),
                None => results.push((place, Err(self.no_such_rank(op)))),
            }
        }
        let parts = self.nodes.iter().zip(parts).filter(|(_, places)| !places.is_empty());
        let runs = parts.map(|(node, places)| {
            let choice = self.choice(&batch[places[0]]);
            Box::pin(Sending::new(node, &batch, choice, deadline, places).over_lane().run())
        });
        for part in all_of(runs.collect()).await {
            results.extend(part);
        }
        ordered(results)
    }

    fn no_such_rank(&self, op: &Op) -> Error {
        let detail = format!("a route has rank {}; the limit is {}", op.route.rank, self.nodes.len() - 1);
        Error::new(ErrorKind::BadInput, detail).op(op)
    }
}

impl Store for MemcachedStore {
    fn profile(&self) -> Arc<Profile> {
        let handshakes = self.shared.counters.connections.load(Ordering::Relaxed);
        let mut told = self.profile.lock();
        if told.handshakes != handshakes || told.at.elapsed() >= FRESH {
            let infos: Vec<_> = self.nodes.iter().filter_map(|node| node.info()).collect();
            let profile = Arc::new(aggregate(&infos, &self.shared.config));
            *told = Told { handshakes, at: Instant::now(), profile };
        }
        told.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if let Some(replies) = answered_at_once(&batch, batch_ops_max(&self.shared.config)) {
            return Run::Ready(replies);
        }
        match batch.as_slice() {
            [op] => match self.place(op) {
                Some(place) => Run::pending(self.run_on(&self.nodes[place], ctx, batch)),
                None => Run::Ready(Replies::from_iter([Err(self.no_such_rank(op))])),
            },
            ops if self.nodes.len() == 1 && ops.iter().all(|op| op.route.rank == 0) => {
                Run::pending(self.run_on(&self.nodes[0], ctx, batch))
            }
            _ => Run::pending(self.run_split(ctx, batch)),
        }
    }
}

/// Refuses what a URL could not say, for configurations made by hand.
fn check(config: &Config) -> Result<()> {
    let wrong = |detail: String| Err(Error::new(ErrorKind::Config, detail));
    let count = config.servers.len();
    if count == 0 || count > Config::SERVERS_MAX {
        return wrong(format!("there are {count} servers; there must be 1 to {}", Config::SERVERS_MAX));
    }
    for (name, given) in [("timeout", config.timeout), ("connect_timeout", config.connect_timeout)] {
        if !(Config::TIMEOUT_MIN..=Config::TIMEOUT_MAX).contains(&given) {
            let (least, most) = (Config::TIMEOUT_MIN.as_millis(), Config::TIMEOUT_MAX.as_millis());
            return wrong(format!("{name} is {given:?}; it must be {least} to {most} ms"));
        }
    }
    let (given, limit) = (config.connections.kept(), Config::CONNECTIONS_MAX);
    if !(1..=limit).contains(&given) {
        return wrong(format!("connections is {given}; it must be 1 to {limit}"));
    }
    for (place, server) in config.servers.iter().enumerate() {
        if !(1..=Config::WEIGHT_MAX).contains(&server.weight) {
            let (name, weight, limit) = (&server.name, server.weight, Config::WEIGHT_MAX);
            return wrong(format!("the weight of {name} is {weight}; it must be 1 to {limit}"));
        }
        if config.servers[..place].iter().any(|other| other.name == server.name) {
            return wrong(format!("the server {} is listed twice", server.name));
        }
    }
    Ok(())
}
