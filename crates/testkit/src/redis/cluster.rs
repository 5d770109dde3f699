//! Clusters of 3 primaries with a replica each.

use std::time::{Duration, Instant};

use super::nodes::{self, Member, NODES, PRIMARIES};
use super::{PORT_ATTEMPTS_MAX, RedisOptions, RedisServer, RedisVersion, Value, field_of, free_addr, is_port_taken};
use crate::servers::Deadline;

/// How long a cluster may take until it serves; the servers themselves wait 2 s.
const READY_MS_MAX: u64 = 20_000;
/// After this much silence a node counts as failed, and its replica takes over.
const NODE_TIMEOUT_MS: u64 = 1_000;
/// Keys that move in one command.
const MOVED_KEYS_MAX: &str = "100";
/// How long a move of keys may take.
const MOVE_MS_MAX: &str = "5000";

/// A running cluster of our own: the nodes 0 to 2 start as primaries of a third of the slots each, 3 to 5 as their replicas, in this
/// order. Killed when dropped.
///
/// ```
/// use larder_testkit::redis::{RedisCluster, RedisVersion};
///
/// let cluster = RedisCluster::start(RedisVersion::Redis7);
/// assert_eq!(cluster.primary_of(0), 0);
/// assert!(cluster.url().starts_with("redis-cluster://127.0.0.1:"));
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    members: Vec<Member>,
}

impl RedisCluster {
    /// Starts a cluster and waits until every node serves and every replica is in sync: some 2 seconds.
    ///
    /// # Panics
    /// When the executable is missing or the cluster does not come up.
    pub fn start(version: RedisVersion) -> Self {
        Self::start_with(version, &RedisOptions::new())
    }

    /// The same, with settings for every node, such as persistence or `cluster-require-full-coverage`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn start_with(version: RedisVersion, options: &RedisOptions) -> Self {
        let mut said = String::new();
        for _ in 0..PORT_ATTEMPTS_MAX {
            let (mut nodes, members) = prepared(version, options);
            match nodes.iter_mut().try_for_each(RedisServer::launch).and_then(|()| wait_all(&mut nodes)) {
                Ok(()) => {
                    let cluster = Self { nodes, members };
                    cluster.wait_ok();
                    return cluster;
                }
                Err(complaint) if is_port_taken(&complaint) => said = complaint,
                Err(complaint) => panic!("a cluster of {version:?} did not start: {complaint}"),
            }
        }
        panic!("a cluster of {version:?} found no free ports in {PORT_ATTEMPTS_MAX} attempts: {said}");
    }

    /// The store URL, naming the nodes that started as primaries; `rediss-cluster://` with TLS.
    pub fn url(&self) -> String {
        let scheme = if self.nodes[0].options.tls.is_some() { "rediss-cluster" } else { "redis-cluster" };
        url(scheme, &self.nodes)
    }

    /// The nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// A node, to be killed, stopped, or restarted.
    pub fn node_mut(&mut self, node: usize) -> &mut RedisServer {
        &mut self.nodes[node]
    }

    /// What a node is called among nodes.
    pub(super) fn id(&self, node: usize) -> &str {
        &self.members[node].id
    }

    /// The node that is the primary of a slot, in the eyes of the first living node that knows one.
    ///
    /// # Panics
    /// When no living node knows one.
    pub fn primary_of(&self, slot: u16) -> usize {
        let place = self.alive().find_map(|node| self.seen_by(node, slot));
        place.unwrap_or_else(|| panic!("no node knows a primary of the slot {slot}"))
    }

    /// Which node is the primary of a slot, as one node sees it; `None` where it does not know or does not answer.
    pub fn primary_by(&self, node: usize, slot: u16) -> Option<usize> {
        self.seen_by(&self.nodes[node], slot)
    }

    /// Which node is the primary of a slot, as one node sees it.
    fn seen_by(&self, node: &RedisServer, slot: u16) -> Option<usize> {
        let Ok(Value::Array(ranges)) = node.try_command(&["CLUSTER", "SLOTS"]) else { return None };
        ranges.iter().find_map(|range| {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else { return None };
            let inside = (*first..=*last).contains(&i64::from(slot));
            let id = primary.get(2)?.text();
            inside.then(|| self.members.iter().position(|member| member.id == id)).flatten()
        })
    }

    /// Waits until every living node says that the cluster is whole, all agree who is primary of the first slot of each third, and
    /// every living replica is in sync.
    ///
    /// # Panics
    /// When that is not so after 20 s.
    pub fn wait_ok(&self) {
        self.wait_until("whole", |cluster| cluster.alive().all(is_ok) && cluster.agreed());
    }

    /// Waits until a slot has another primary than the given node, in the eyes of every other living node.
    ///
    /// # Panics
    /// When that is not so after 20 s.
    pub fn wait_failover(&self, slot: u16, from: usize) {
        self.wait_until("failed over", |cluster| {
            let others = || cluster.alive().filter(|node| node.addr() != cluster.members[from].addr);
            others().all(|node| cluster.seen_by(node, slot).is_some_and(|place| place != from))
        });
    }

    pub(super) fn wait_until(&self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Deadline::after_ms(READY_MS_MAX);
        while !done(self) {
            assert!(!deadline.passed(), "the cluster is not {what} after {READY_MS_MAX} ms: {}", self.state());
            deadline.poll();
        }
    }

    fn agreed(&self) -> bool {
        (0..PRIMARIES).map(|third| nodes::slots(third).0).all(|slot| {
            let mut seen = self.alive().map(|node| self.seen_by(node, slot));
            let first = seen.next().flatten();
            first.is_some() && seen.all(|other| other == first)
        })
    }

    fn state(&self) -> String {
        let states = self.alive().map(|node| {
            node.try_command(&["CLUSTER", "NODES"]).map_or_else(|error| error.to_string(), |nodes| nodes.text())
        });
        states.collect::<Vec<_>>().join("\n")
    }

    /// Has a replica take its primary's place, with the primary's consent: nothing is lost.
    ///
    /// # Panics
    /// When the node is no replica, or that is not so after 20 s.
    pub fn fail_over_to(&self, replica: usize) {
        let asked = std::cell::Cell::new(None::<Instant>);
        self.wait_until("failed over", |cluster| {
            let node = &cluster.nodes[replica];
            // The others do not vote twice for one primary's place within two timeouts: ask again.
            if asked.get().is_none_or(|asked| asked.elapsed() > Duration::from_millis(2 * NODE_TIMEOUT_MS)) {
                let said = node.command(&["CLUSTER", "FAILOVER"]);
                assert!(!said.is_error() || asked.get().is_some(), "{}", said.text());
                asked.set(Some(Instant::now()));
            }
            node.info("replication", "role") == "master"
        });
    }

    /// Moves a slot with its keys to another primary. Does nothing where it is there already.
    ///
    /// # Panics
    /// When a node refuses; the message has its words.
    pub fn move_slot(&self, slot: u16, to: usize) {
        if self.primary_of(slot) == to {
            return;
        }
        self.begin_move(slot, to);
        self.move_keys(slot, to);
        self.end_move(slot, to);
    }

    /// Begins to move a slot: from now on its primary redirects for keys that it has not (`ASK`).
    ///
    /// # Panics
    /// As [`move_slot`](Self::move_slot).
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot);
        self.slot_command(to, slot, "IMPORTING", &self.members[from].id);
        self.slot_command(from, slot, "MIGRATING", &self.members[to].id);
    }

    /// Moves the keys of a slot whose move has begun.
    ///
    /// # Panics
    /// As [`move_slot`](Self::move_slot).
    pub fn move_keys(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot);
        let (host, port) = (self.members[to].addr.ip().to_string(), self.members[to].addr.port().to_string());
        loop {
            let count = ["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), MOVED_KEYS_MAX];
            let Value::Array(keys) = self.nodes[from].command(&count) else { panic!("no keys of the slot {slot}") };
            if keys.is_empty() {
                return;
            }
            let mut words: Vec<Vec<u8>> =
                ["MIGRATE", &host, &port, "", "0", MOVE_MS_MAX, "KEYS"].map(|word| word.as_bytes().to_vec()).to_vec();
            words.extend(keys.into_iter().filter_map(|key| if let Value::Bulk(key) = key { Some(key) } else { None }));
            let said = self.nodes[from].command(&words);
            assert!(!said.is_error(), "the slot {slot} did not move: {}", said.text());
        }
    }

    /// Ends the move of a slot: its primary is another one from now on. Returns once every living node knows, replicas too: one that did not, and took
    /// its primary's place, would take the slot back.
    ///
    /// # Panics
    /// As [`move_slot`](Self::move_slot), and when that is not so after 20 s.
    pub fn end_move(&self, slot: u16, to: usize) {
        let from = self.primary_of(slot);
        // The receiver first: a slot that its old primary gave up would have none until the gossip comes round.
        let others = (0..NODES).filter(|&node| node != to && node != from && self.is_primary(node));
        let order: Vec<usize> = [to, from].into_iter().chain(others).collect();
        // One that a failover deposes meanwhile refuses, and hears of it from the others.
        order.iter().for_each(|&node| _ = self.say_slot(node, slot, "NODE", &self.members[to].id));
        let told = std::cell::Cell::new(Instant::now());
        self.wait_until("agreed", |cluster| {
            // A failover that nobody asked for may depose the receiver meanwhile: then all agree on another.
            let is_deposed = !cluster.is_primary(to);
            let found = || cluster.alive().find_map(|node| cluster.seen_by(node, slot));
            let Some(owner) = (if is_deposed { found() } else { Some(to) }) else { return false };
            let is_wrong = |node: &RedisServer| cluster.seen_by(node, slot) != Some(owner);
            // A message under way, in which the old primary still claims the slot by a later epoch than the receiver knew to draw, has the receiver give the
            // slot back, and then nobody serves it: who sees it so is told again. One who sees the receiver deposed refuses.
            if !is_deposed && told.get().elapsed() > Duration::from_millis(NODE_TIMEOUT_MS) {
                let wrong = order.iter().filter(|&&node| is_wrong(&cluster.nodes[node]) && cluster.is_primary(node));
                wrong.for_each(|&node| _ = cluster.say_slot(node, slot, "NODE", &cluster.members[to].id));
                told.set(Instant::now());
            }
            !cluster.alive().any(is_wrong)
        });
    }

    /// Whether a node lives and is a primary.
    pub fn is_primary(&self, node: usize) -> bool {
        let node = &self.nodes[node];
        node.process.is_some() && node.info("replication", "role") == "master"
    }

    fn slot_command(&self, node: usize, slot: u16, what: &str, id: &str) {
        let said = self.say_slot(node, slot, what, id);
        assert!(!said.is_error(), "node {node} refuses SETSLOT {slot} {what}: {}", said.text());
    }

    fn say_slot(&self, node: usize, slot: u16, what: &str, id: &str) -> Value {
        self.nodes[node].command(&["CLUSTER", "SETSLOT", &slot.to_string(), what, id])
    }

    fn alive(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.process.is_some())
    }
}

/// Nodes that know each other and were not started yet.
pub(super) fn prepared(version: RedisVersion, options: &RedisOptions) -> (Vec<RedisServer>, Vec<Member>) {
    let mut members: Vec<Member> = Vec::new();
    while members.len() < NODES {
        let addr = free_addr();
        if members.iter().all(|member| member.addr != addr) {
            members.push(Member::new(addr));
        }
    }
    let options = clustered(options);
    let node = |(place, member): (usize, &Member)| {
        let server = RedisServer::prepared(version, &options, Some(member.addr));
        std::fs::write(server.folder().join("nodes.conf"), nodes::file(&members, place)).expect("a file of our own");
        server
    };
    (members.iter().enumerate().map(node).collect(), members)
}

/// Settings of a node; those that were given come last, and so win.
fn clustered(options: &RedisOptions) -> RedisOptions {
    let options = RedisOptions::new()
        .arg("cluster-enabled", "yes")
        .arg("cluster-config-file", "nodes.conf")
        .arg("cluster-node-timeout", &NODE_TIMEOUT_MS.to_string())
        .arg("cluster-allow-replica-migration", "no")
        .arg("repl-diskless-sync-delay", "0")
        .and(options);
    let options = match &options.admin {
        Some((_, password)) => {
            let password = password.clone();
            options.arg("masterauth", &password)
        }
        None => options,
    };
    if options.tls.is_some() { options.arg("tls-cluster", "yes").arg("tls-replication", "yes") } else { options }
}

/// Waits until all of the launched nodes answer.
fn wait_all(nodes: &mut [RedisServer]) -> Result<(), String> {
    for node in nodes {
        if let Err(error) = node.wait_ready() {
            return Err(format!("{error}; it said: {}", node.log()));
        }
    }
    Ok(())
}

/// Whether a node says that the cluster is whole and, as a replica, that it is in sync.
pub(super) fn is_ok(node: &RedisServer) -> bool {
    let Ok(info) = node.try_command(&["CLUSTER", "INFO"]) else { return false };
    if field_of(&info.text(), "cluster_state") != "ok" {
        return false;
    }
    let Ok(info) = node.try_command(&["INFO", "replication"]) else { return false };
    let info = info.text();
    field_of(&info, "role") == "master" || field_of(&info, "master_link_status") == "up"
}

pub(super) fn url(scheme: &str, nodes: &[RedisServer]) -> String {
    let seeds: Vec<String> = nodes[..PRIMARIES].iter().map(|node| node.addr().to_string()).collect();
    format!("{scheme}://{}", seeds.join(","))
}
