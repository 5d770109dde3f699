//! The store on a cluster: which node serves a key, what follows when that changes, and when a node is lost.
//!
//! The routing is our own, over the same node connections as the store on one server. The client crate's cluster connection sends again what
//! was sent over a connection that broke, writes too, and a whole pipeline for one redirected command of it: a counter would count twice.

mod config;
#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub mod fuzz;
mod map;
mod nodes;
mod parts;
#[cfg(test)]
mod parts_tests;
mod slot;
mod told;
mod watch;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use larder_core::ext::answered_at_once;
use larder_core::list::{List, Listed, Listing};
use larder_core::{Batch, Ctx, ErrorKind, Profile, Replies, Result, Run, Store};
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::codec::Limits;
use crate::counters::{Counters, Stats};
use crate::handshake::{ServerInfo, Unknown};
use crate::list::{Progress, list_node};
use crate::profile::{BATCH_OPS_MAX, cluster_profile, item_bytes_max};
use crate::watch::is_watch;

pub use config::ClusterConfig;
use nodes::{Member, Nodes};
use parts::unserved;
use slot::Slot;

/// Between two looks for a primary that can be listed.
const LIST_PAUSE: Duration = Duration::from_millis(50);

/// What each primary told; `None` for one that has told nothing yet.
type Infos = Vec<Option<Arc<ServerInfo>>>;

/// A store on a Redis or Valkey cluster.
///
/// # What is promised
/// - A batch is split by node; each part is one pipeline on one connection that all callers share. **Round trips: 1** a node that serves a
///   key of the batch, all nodes at once; one more for what a node redirects, when slots move, and after a node has forgotten the scripts.
/// - Only primaries are asked, for reads too.
/// - An error with [`Effect::NotApplied`](larder_core::Effect::NotApplied) is a promise: a node said no, or was sent nothing. A write that was sent
///   and not answered is [`Effect::Unknown`](larder_core::Effect::Unknown), and never sent again. What a node redirects (`MOVED`, `ASK`) is followed; what it
///   refuses for now (`TRYAGAIN`, `CLUSTERDOWN`, `LOADING`, `READONLY` of a primary that was demoted) is tried again with jittered pauses until the op's
///   deadline, and so are reads.
/// - One task looks at the map of slots, when a node redirects, refuses or is lost; a failover brings no storm of looks.
/// - A key whose slot nobody serves: [`ErrorKind::Unavailable`], naming the slot, by the deadline.
/// - Ops routed with another key ([`Route::with`](larder_core::Route)) share its slot.
/// - For the rest, see [`RedisStore`](crate::RedisStore).
///
/// # What is not
/// - **A failover may lose acknowledged writes**: replicas follow a little behind. Structures tell a handle that saw more (`RolledBack`, `Lost`); a
///   fresh process cannot know. A primary that is cut off from the others may serve reads, and take writes that will be lost, until its
///   `cluster-node-timeout`.
/// - There are no ranks of a route: [`nodes`](Profile::nodes) is 1, since a cluster keeps its own copies; [`scattered`](Profile::scattered) where it has several primaries.
///
/// ```no_run
/// use larder_core::{Key, PutMode, StoreExt, Ttl};
/// use larder_store_redis::{ClusterConfig, RedisClusterStore};
/// # async fn example() -> larder_core::Result<()> {
/// let config = ClusterConfig::from_url("redis-cluster://10.0.0.1:7000,10.0.0.2:7000")?;
/// let store = RedisClusterStore::connect(config).await?;
/// store.put(Key::new("greeting")?, PutMode::Set, "hello", Ttl::Never).await?;
/// # Ok(())
/// # }
/// ```
pub struct RedisClusterStore {
    nodes: Arc<Nodes>,
    keeper: JoinHandle<()>,
    /// The profile, and of which handshakes it was put together.
    profile: Mutex<(Infos, Arc<Profile>)>,
    /// The limits, and how many handshakes there had been when they were put together.
    limits: Mutex<(u64, Limits)>,
}

impl std::fmt::Debug for RedisClusterStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisClusterStore").field("config", &self.nodes.config).finish_non_exhaustive()
    }
}

impl Drop for RedisClusterStore {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl RedisClusterStore {
    /// Asks the first seed who serves what, and all others at once if it does not tell, or knows of no node for some slots; connects to every primary, all at
    /// once. Runs on the tokio runtime it is called on, and needs it for as long as it lives. **Round trips: 3** at the first seed, 2 at each other primary.
    ///
    /// A cluster of which some primaries are down connects: ops on their slots wait for the failover, as long as their deadline allows. Until each has told, the
    /// profile promises nothing of what is lost or evicted ([`Durability::Unknown`](larder_core::Durability), [`may_evict`](Profile::may_evict)), and warns of it. So it does
    /// later, of a primary at a new address, until its handshake; tables and queues that were used meanwhile expect losses for as long as their handles live.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`], [`ErrorKind::Timeout`]: no seed could be reached, or none knows of a slot that is served;
    /// - [`ErrorKind::Config`]: a node is not one of a cluster, wants a password or refuses the one that was given, or forbids a command that the
    ///   store needs; or the configuration is wrong in itself.
    ///
    /// ```no_run
    /// # async fn example() -> larder_core::Result<()> {
    /// use larder_store_redis::{ClusterConfig, RedisClusterStore};
    /// let store = RedisClusterStore::connect(ClusterConfig::from_url("redis-cluster://:secret@cache")?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(config: ClusterConfig) -> Result<RedisClusterStore> {
        config.node.check()?;
        let value_bytes_max = config.node.value_bytes_max;
        let nodes = Arc::new(Nodes::new(config, Arc::new(Counters::default())));
        nodes.look().await?;
        let members = nodes.topology().members.clone();
        for member in &members {
            member.node.health.first_dial().await;
            if let Some(error) = member.node.health.error().filter(|error| error.kind() == ErrorKind::Config) {
                return Err(error.store(member.node.name()));
            }
        }
        let keeper = tokio::spawn(nodes.clone().keep());
        let profile = Mutex::new((Vec::new(), Arc::new(cluster_profile(&[], members.len(), value_bytes_max))));
        let item_bytes_max = item_bytes_max(&ServerInfo::default(), value_bytes_max);
        let limits = Limits { item_bytes_max, unknown: Unknown::default() };
        Ok(RedisClusterStore { nodes, keeper, profile, limits: Mutex::new((0, limits)) })
    }

    /// What the store has done so far, on all nodes.
    ///
    /// ```no_run
    /// # fn example(store: &larder_store_redis::RedisClusterStore) {
    /// println!("{} redirections", store.stats().redirections);
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        let mut stats = self.nodes.counters.snapshot();
        for member in self.nodes.known() {
            let (sent, received) = member.node.traffic();
            stats.sent_bytes += sent;
            stats.received_bytes += received;
        }
        stats
    }

    fn limits(&self) -> Limits {
        let value_bytes_max = self.nodes.config.node.value_bytes_max;
        let handshakes = self.nodes.counters.connections.load(Ordering::Relaxed);
        let mut known = self.limits.lock();
        if known.0 != handshakes {
            let infos = self.infos();
            let limits = infos.iter().flatten().map(|info| item_bytes_max(info, value_bytes_max));
            let item_bytes_max = limits.min().unwrap_or(known.1.item_bytes_max);
            let unknown = infos.iter().flatten().fold(Unknown::default(), |all, info| all.or(info.unknown));
            *known = (handshakes, Limits { item_bytes_max, unknown });
        }
        known.1
    }

    /// The primaries, as the map has them now.
    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.nodes.topology().members.clone()
    }

    /// The primaries that serve keys as the servers see them, each with the places of its keys. A key of a slot that nobody serves has none.
    pub(crate) fn by_owner<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Vec<(Arc<Member>, Vec<usize>)> {
        let topology = self.nodes.topology();
        let mut places = vec![Vec::new(); topology.members.len()];
        for (place, key) in keys.enumerate() {
            if let Some(of) = topology.map.owner(Slot::of(key)).and_then(|owner| places.get_mut(owner)) {
                of.push(place);
            }
        }
        topology.members.iter().cloned().zip(places).filter(|(_, places)| !places.is_empty()).collect()
    }

    fn infos(&self) -> Infos {
        self.nodes.topology().members.iter().map(|member| member.node.info()).collect()
    }

    async fn run_batch(&self, ctx: Ctx, batch: Batch) -> Replies {
        let deadline = ctx.deadline.unwrap_or(Instant::now() + self.nodes.config.node.timeout);
        parts::Run::new(&self.nodes, &batch, self.limits(), deadline).finish().await
    }

    /// Waits until one of the items is another.
    async fn watch(&self, ctx: Ctx, batch: Batch) -> Replies {
        let deadline = ctx.deadline.unwrap_or(Instant::now() + self.nodes.config.node.timeout);
        watch::watch(&self.nodes, &batch, deadline).await
    }
}

impl Store for RedisClusterStore {
    fn profile(&self) -> Arc<Profile> {
        let infos = self.infos();
        let mut known = self.profile.lock();
        let at = |info: &Option<Arc<ServerInfo>>| info.as_ref().map(Arc::as_ptr);
        if !known.0.iter().map(at).eq(infos.iter().map(at)) {
            let told: Vec<&ServerInfo> = infos.iter().flatten().map(AsRef::as_ref).collect();
            let profile = cluster_profile(&told, infos.len(), self.nodes.config.node.value_bytes_max);
            *known = (infos, Arc::new(profile));
        }
        known.1.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if let Some(replies) = answered_at_once(&batch, BATCH_OPS_MAX) {
            return Run::Ready(replies);
        }
        match batch.as_slice() {
            ops if ops.iter().all(is_watch) => Run::pending(self.watch(ctx, batch)),
            _ => Run::pending(self.run_batch(ctx, batch)),
        }
    }
}

/// `SCAN` on one primary after the other. What holds of a single server holds of each; a key of a slot that moves meanwhile may be told twice, or missed.
///
/// - Each is asked before its keys, and behind them, whether it is a primary still. Where one is not, or is down, before any of its keys was told, the map is looked at, for as long as an op
///   may take, and the primaries that it has then are listed; later that is [`ErrorKind::Unavailable`]. Where a node forbids `CLUSTER NODES` a replica is not noticed.
/// - Slots that no node serves may have had keys: [`ErrorKind::Unavailable`], with all others told.
/// - **Round trips: 2** more a primary.
impl List for RedisClusterStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move {
            let mut progress = Progress::default();
            let mut listed: Vec<Arc<Member>> = Vec::new();
            // Until when another primary is looked for in the place of one that cannot be listed.
            let mut until = None;
            loop {
                let topology = self.nodes.topology();
                let is_left = |member: &&Arc<Member>| listed.iter().all(|other| !Arc::ptr_eq(other, member));
                let error = match topology.members.iter().find(is_left) {
                    None if topology.map.is_whole() => return Ok(()),
                    None => {
                        // All there are were listed to their end.
                        progress.is_begun = false;
                        unserved(&topology)
                    }
                    Some(member) => match list_node(&member.node, ctx, prefix, &mut progress, tell).await {
                        Ok(()) => {
                            listed.push(member.clone());
                            until = None;
                            continue;
                        }
                        Err(error) => error.store(member.node.name()),
                    },
                };
                // Where nobody runs ops nobody else would have the map looked at.
                self.nodes.refresh();
                let timeout = self.nodes.config.node.timeout;
                let until = *until.get_or_insert_with(|| ctx.at_most(timeout).deadline.unwrap_or_else(Instant::now));
                if progress.is_begun || error.kind() != ErrorKind::Unavailable || Instant::now() >= until {
                    return Err(error);
                }
                self.nodes.refreshed(LIST_PAUSE, until).await;
                tokio::time::sleep_until(until.min(Instant::now() + LIST_PAUSE).into()).await;
            }
        })
    }
}
