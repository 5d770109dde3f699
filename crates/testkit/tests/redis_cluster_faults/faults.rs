//! What is done to the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_testkit::redis::{RedisCluster, Value};

use crate::EACH;
use crate::windows::{Window, Windows};

/// How long a primary goes on acknowledging what its replica does not get, in every other round. Less than what makes a node pass for dead.
const UNREPLICATED: Duration = Duration::from_millis(300);
/// Keys of each structure whose slots move in a round.
const MOVES: usize = 2;
/// How long every structure has to be looked at before a primary is killed.
const LOOKED: Duration = Duration::from_millis(200);
/// How long primaries and replicas may take to be level.
const LEVEL_MAX: Duration = Duration::from_secs(20);
/// Between two rounds so many ops are run in peace.
const CALM_OPS: u64 = 10_000;
/// The slots of the cluster's primaries begin here, as they start out.
const THIRD: u16 = 5_500;

/// What was done.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) killed: u32,
    /// Of these, primaries that had acknowledged what their replica never got.
    pub(crate) unreplicated: u32,
    /// Failovers that nobody here brought about.
    pub(crate) unplanned: u32,
    /// Slots that were under way while a primary was dead and its replica took over.
    pub(crate) at_once: u32,
    /// Slots that moved, by the kind of the structure that has a key there.
    pub(crate) moved: BTreeMap<String, u32>,
}

/// What the breaker and the workers tell each other.
#[derive(Default)]
pub(crate) struct Signals {
    /// Grows before each kill and once the cluster is whole again.
    pub(crate) phase: AtomicU64,
    pub(crate) ops: AtomicU64,
    pub(crate) stop: AtomicBool,
}

impl Signals {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Kills a primary, has its replica take over, every other time while slots of the others move, brings it back as a replica, and moves slots of every
/// structure; round after round until it is told to stop, two at the least.
pub(crate) fn break_things(cluster: &mut RedisCluster, signals: &Signals, windows: &Windows) -> Done {
    let mut done = Done::default();
    let mut pairs = Pairs::default();
    let mut round = 0;
    while round < 2 || !signals.is_over() {
        let slot = THIRD * (round % 3) as u16;
        let is_unreplicated = round % 2 == 0;
        // Every other time slots move meanwhile.
        let moves = if is_unreplicated { 0 } else { MOVES };
        signals.phase.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(LOOKED);
        done.unplanned += pairs.level(cluster, windows, None);
        let (successor, at_once) = fail_over(cluster, slot, (is_unreplicated, moves), &pairs, windows);
        done.at_once += at_once;
        done.unplanned += pairs.level(cluster, windows, Some(successor));
        done.killed += 1;
        done.unreplicated += u32::from(is_unreplicated);
        signals.phase.fetch_add(1, Ordering::Relaxed);
        move_slots(cluster, round as usize % EACH, &mut done.moved);
        round += 1;
        let until = signals.ops.load(Ordering::Relaxed) + CALM_OPS;
        while signals.ops.load(Ordering::Relaxed) < until && !signals.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    done.unplanned += pairs.level(cluster, windows, None);
    done
}

/// The primaries, and when each was last level with its replica.
#[derive(Default)]
struct Pairs {
    /// The name of each one's history, and that moment.
    seen: Seen,
}

type Seen = BTreeMap<usize, (String, Instant)>;

impl Pairs {
    /// Waits until every replica has what its primary had. A primary with another history than before, that is not the successor of one that was killed,
    /// took over unasked: whatever was acknowledged since all were level may be gone. How many did.
    fn level(&mut self, cluster: &RedisCluster, windows: &Windows, successor: Option<usize>) -> u32 {
        let seen = level_pairs(cluster);
        let is_same = |node: &usize, id: &String| self.seen.get(node).is_some_and(|(before, _)| before == id);
        let unasked = seen.iter().filter(|&(node, (id, _))| !is_same(node, id) && successor != Some(*node)).count();
        let before = std::mem::replace(&mut self.seen, seen);
        match before.values().map(|&(_, moment)| moment).min() {
            Some(from) if unasked > 0 => {
                windows.push(Window { from, to: Instant::now(), names: None });
                unasked as u32
            }
            _ => 0,
        }
    }
}

/// Waits until there are three primaries and the replica of each has what its primary had. A failover that nobody asked for may be under way: then it is looked again.
fn level_pairs(cluster: &RedisCluster) -> Seen {
    let start = Instant::now();
    loop {
        cluster.wait_ok();
        let primaries = (0..cluster.nodes().len()).filter(|&node| cluster.is_primary(node));
        let seen: Seen = primaries.filter_map(|primary| Some((primary, level_with(cluster, primary)?))).collect();
        if seen.len() == 3 {
            return seen;
        }
        let state = seen.keys().collect::<Vec<_>>();
        assert!(start.elapsed() < LEVEL_MAX, "only {state:?} are primaries whose replicas follow them");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The name of a primary's history, and a moment from which its replica has everything; `None` if none comes to that in a while.
fn level_with(cluster: &RedisCluster, primary: usize) -> Option<(String, Instant)> {
    let moment = Instant::now();
    let offset = number(cluster, primary, "master_repl_offset");
    let replica = replica_of(cluster, primary)?;
    while number(cluster, replica, "slave_repl_offset") < offset {
        if moment.elapsed() > LEVEL_MAX / 4 {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Some((cluster.nodes()[primary].info("replication", "master_replid"), moment))
}

fn number(cluster: &RedisCluster, node: usize, field: &str) -> u64 {
    cluster.nodes()[node].info("replication", field).parse().unwrap_or_default()
}

/// Kills the primary of a slot and brings it back as a replica. Who took its place, and how many slots of the others moved meanwhile.
fn fail_over(
    cluster: &mut RedisCluster,
    slot: u16,
    (is_unreplicated, moves): (bool, usize),
    pairs: &Pairs,
    windows: &Windows,
) -> (usize, u32) {
    let victim = cluster.primary_of(slot);
    let replica = replica_of(cluster, victim).expect("it was level with one");
    let names = keys_of(cluster, victim, "*").iter().map(|key| name_of(key).to_owned()).collect::<BTreeSet<_>>();
    let moving = of_others(cluster, victim, moves);
    let from = pairs.seen[&victim].1;
    if is_unreplicated {
        cluster.nodes()[replica].stop();
        let said = cluster.nodes()[victim].command(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_ne!(said, Value::Int(0), "it had no replica");
        std::thread::sleep(UNREPLICATED);
        cluster.node_mut(victim).kill9();
        cluster.nodes()[replica].cont();
    } else {
        cluster.node_mut(victim).kill9();
    }
    windows.push(Window { from, to: Instant::now(), names: Some(names) });
    moving.iter().for_each(|&(slot, to)| cluster.begin_move(slot, to));
    cluster.wait_failover(slot, victim);
    if !moving.is_empty() {
        // A cluster with an uncovered slot moves no keys. The dead one hears of it all when it comes back.
        cluster.wait_ok();
    }
    for &(slot, to) in &moving {
        cluster.move_keys(slot, to);
        cluster.end_move(slot, to);
    }
    cluster.node_mut(victim).restart();
    cluster.wait_ok();
    (replica, moving.len() as u32)
}

/// Slots with keys, of primaries that are not to be killed, and which other one of these is to have each.
fn of_others(cluster: &RedisCluster, victim: usize, moves: usize) -> Vec<(u16, usize)> {
    let others: Vec<usize> =
        (0..cluster.nodes().len()).filter(|&node| node != victim && cluster.is_primary(node)).collect();
    let mut moving = BTreeMap::new();
    for (at, &from) in others.iter().cycle().take(moves).enumerate() {
        let keys = keys_of(cluster, from, "*");
        let key = &keys[fastrand::usize(..keys.len())];
        let slot = cluster.nodes()[from].command(&["CLUSTER", "KEYSLOT", key]).text();
        moving.insert(slot.parse().unwrap(), others[(at + 1) % others.len()]);
    }
    moving.into_iter().collect()
}

fn keys_of(cluster: &RedisCluster, node: usize, pattern: &str) -> Vec<String> {
    let Value::Array(all) = cluster.nodes()[node].command(&["KEYS", pattern]) else { return Vec::new() };
    all.iter().map(Value::text).collect()
}

/// The structure that a key belongs to, or the raw key.
fn name_of(key: &str) -> &str {
    match key.rsplit_once("L.") {
        Some((_, rest)) => rest.split('.').next().unwrap_or_default(),
        None => key,
    }
}

fn replica_of(cluster: &RedisCluster, primary: usize) -> Option<usize> {
    let port = cluster.nodes()[primary].addr().port().to_string();
    let follows = |&node: &usize| cluster.nodes()[node].info("replication", "master_port") == port;
    (0..cluster.nodes().len()).find(follows)
}

/// Moves slots in which the structures numbered `at` have keys, each to another primary.
fn move_slots(cluster: &RedisCluster, at: usize, moved: &mut BTreeMap<String, u32>) {
    let primaries: Vec<usize> = (0..cluster.nodes().len()).filter(|&node| cluster.is_primary(node)).collect();
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for key in primaries.iter().flat_map(|&primary| keys_of(cluster, primary, "*")) {
        if let Some(kind) = name_of(&key).strip_suffix(&at.to_string()) {
            // Raw keys that end in this digit move.
            let kind = kind.split('-').next().unwrap_or_default().to_owned();
            keys.entry(kind).or_default().push(key);
        }
    }
    for (kind, keys) in keys {
        for _ in 0..MOVES {
            let key = &keys[fastrand::usize(..keys.len())];
            let slot = cluster.nodes()[primaries[0]].command(&["CLUSTER", "KEYSLOT", key]).text();
            let slot: u16 = slot.parse().unwrap();
            let from = cluster.primary_of(slot);
            let others: Vec<usize> = primaries.iter().copied().filter(|&node| node != from).collect();
            cluster.move_slot(slot, others[fastrand::usize(..others.len())]);
            *moved.entry(kind.clone()).or_default() += 1;
        }
    }
}
