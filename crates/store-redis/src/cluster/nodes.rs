//! The nodes of a cluster: which there are, who serves what, and the one task that finds it out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Error, ErrorKind, Result};
use larder_net::Backoff;
use parking_lot::{Mutex, RwLock};
use redis::Value;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::JoinHandle;

use super::config::ClusterConfig;
use super::map::{PRIMARIES_MAX, Place, SlotMap};
use crate::codec::refused;
use crate::counters::{Counters, count};
use crate::node::{Node, Role};
use crate::replicas::Does;

/// Between two looks at the map, of which the last ones found nothing. Never shorter than its shortest, however often a look is asked for.
const LOOKS: Backoff =
    Backoff { first: Duration::from_millis(20), max: Duration::from_secs(1), min: Duration::from_millis(10) };
/// How long a node is kept that serves no slot any more: what was sent to it may still be answered.
const RETIRED: Duration = Duration::from_secs(30);
/// Nodes that are known at once: primaries, seeds, those that redirections named, and retired ones.
const NODES_MAX: usize = 2 * PRIMARIES_MAX;

/// A node, and the task that keeps its connection.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) place: Place,
    pub(crate) node: Arc<Node>,
    keeper: JoinHandle<()>,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.keeper.abort();
        self.node.close();
    }
}

/// A node, and since when it serves nothing.
type Known = (Arc<Member>, Option<Instant>);

/// The map of one moment, with its nodes.
#[derive(Debug)]
pub(crate) struct Topology {
    pub(crate) map: SlotMap,
    /// As many as the map has primaries, in its order.
    pub(crate) members: Vec<Arc<Member>>,
}

/// What the nodes share.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) config: ClusterConfig,
    pub(crate) counters: Arc<Counters>,
    topology: RwLock<Arc<Topology>>,
    /// Every node that is known. A lock of its own: nodes come by redirections, too.
    known: Mutex<HashMap<Place, Known>>,
    /// Wakes the refresher.
    asked: Notify,
    /// Wakes those who wait for a look to end.
    looked: Notify,
}

impl Nodes {
    pub(crate) fn new(config: ClusterConfig, counters: Arc<Counters>) -> Nodes {
        let empty = Topology { map: SlotMap::empty(), members: Vec::new() };
        Nodes {
            config,
            counters,
            topology: RwLock::new(Arc::new(empty)),
            known: Mutex::new(HashMap::new()),
            asked: Notify::new(),
            looked: Notify::new(),
        }
    }

    /// Who serves what, as far as is known.
    pub(crate) fn topology(&self) -> Arc<Topology> {
        self.topology.read().clone()
    }

    /// The node at a place, which begins to be known, and dialled, with that.
    pub(crate) fn at(&self, place: &Place) -> Result<Arc<Member>> {
        let mut known = self.known.lock();
        if let Some((member, _)) = known.get(place) {
            return Ok(member.clone());
        }
        if known.len() >= NODES_MAX {
            let detail = format!("{NODES_MAX} nodes of the cluster are known, which is the limit");
            return Err(Error::new(ErrorKind::Protocol, detail));
        }
        let node = Arc::new(Node::new(self.config.of(place), self.counters.clone(), Role::Member)?);
        let keeper = tokio::spawn(node.clone().keep());
        let member = Arc::new(Member { place: place.clone(), node, keeper });
        known.insert(place.clone(), (member.clone(), None));
        Ok(member)
    }

    /// Every node that is known.
    pub(crate) fn known(&self) -> Vec<Arc<Member>> {
        self.known.lock().values().map(|(member, _)| member.clone()).collect()
    }

    /// Ends with the next look at the map that ends after this was called.
    pub(crate) fn looked(&self) -> Notified<'_> {
        self.looked.notified()
    }

    /// Has the map looked at again, soon.
    pub(crate) fn refresh(&self) {
        self.asked.notify_one();
    }

    /// Waits until a look has ended that was asked for now, but no longer than `pause`, and not past the deadline.
    pub(crate) async fn refreshed(&self, pause: Duration, deadline: Instant) {
        let looked = self.looked.notified();
        self.refresh();
        let until = deadline.min(Instant::now() + pause);
        // Time is the one outcome, a new map the other; the caller looks.
        let _ = tokio::time::timeout_at(until.into(), looked).await;
    }

    /// Looks at the map whenever it is asked to: the only one that does, so that a failover brings no storm. Runs until it is aborted.
    pub(crate) async fn keep(self: Arc<Nodes>) {
        let mut failures = 0u32;
        loop {
            if failures == 0 {
                self.asked.notified().await;
            }
            count(&self.counters.maps_read, 1);
            failures = if self.look().await.is_ok() { 0 } else { failures.saturating_add(1) };
            self.looked.notify_waiters();
            tokio::time::sleep(LOOKS.wait(failures)).await;
        }
    }

    /// Asks one node after the other until one tells the map: those that serve, in a random order, then the others, then the seeds.
    pub(crate) async fn look(&self) -> Result<()> {
        let mut candidates = self.topology().members.clone();
        fastrand::shuffle(&mut candidates);
        let is_listed = |listed: &[Arc<Member>], place: &Place| listed.iter().any(|member| member.place == *place);
        for member in self.known() {
            if !is_listed(&candidates, &member.place) {
                candidates.push(member);
            }
        }
        let mut last = None;
        for member in candidates {
            match self.ask(&member).await {
                Ok(map) => return self.install(map),
                Err(error) => last = Some(error),
            }
        }
        for place in self.config.seeds() {
            let member = self.at(&place)?;
            match self.ask(&member).await {
                Ok(map) => return self.install(map),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Config, "there is no seed; name one node at least")))
    }

    /// **Round trips: 1.**
    async fn ask(&self, member: &Member) -> Result<SlotMap> {
        let named = |error: Error| error.store(member.node.name());
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        // A node that was just begun to be known is being dialled: that is waited for.
        let deadline = Instant::now() + self.config.node.connect_timeout + self.config.node.timeout;
        let answered = member.node.run(std::iter::once(&cmd), Does::Asks, deadline).await;
        let mut values = answered.map_err(|fault| named(fault.error))?;
        match values.pop() {
            Some(Value::ServerError(error)) => Err(named(refused(&error))),
            Some(value) => {
                let map = SlotMap::read(&value, &member.place).map_err(named)?;
                if map.primaries().is_empty() {
                    let detail = "no slot is served as this node sees it: make the cluster (redis-cli --cluster create), or fix it";
                    return Err(named(Error::new(ErrorKind::Unavailable, detail)));
                }
                Ok(map)
            }
            None => Err(named(larder_core::ext::no_reply())),
        }
    }

    /// Makes a map the one to go by, begins to know its nodes, and forgets those that have served nothing for a while.
    fn install(&self, map: SlotMap) -> Result<()> {
        let members = map.primaries().iter().map(|place| self.at(place)).collect::<Result<Vec<_>>>()?;
        let now = Instant::now();
        let mut forgotten = Vec::new();
        self.known.lock().retain(|place, (member, idle)| {
            if members.iter().any(|serving| serving.place == *place) {
                *idle = None;
                return true;
            }
            let is_over = now.duration_since(*idle.get_or_insert(now)) > RETIRED;
            if is_over {
                forgotten.push(member.clone());
            }
            !is_over
        });
        *self.topology.write() = Arc::new(Topology { map, members });
        Ok(())
    }
}
