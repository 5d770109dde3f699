//! What is done to the cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_testkit::redis::{RedisCluster, Value};

use crate::EACH;

/// How long a primary goes on acknowledging what its replica does not get, in every other round. Less than what makes a node pass for dead.
const UNREPLICATED: Duration = Duration::from_millis(300);
/// Keys of each structure whose slots move in a round.
const MOVES: usize = 2;
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
    /// Slots that moved, by the kind of the structure that has a key there.
    pub(crate) moved: BTreeMap<String, u32>,
}

/// What the breaker and the workers tell each other.
#[derive(Default)]
pub(crate) struct Signals {
    /// Rounds of faults that are over.
    pub(crate) round: AtomicU64,
    pub(crate) ops: AtomicU64,
    pub(crate) stop: AtomicBool,
}

impl Signals {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Kills a primary, has its replica take over, brings it back as a replica, and moves slots of every structure; round after round until it is told to
/// stop, two at the least.
pub(crate) fn break_things(cluster: &mut RedisCluster, signals: &Signals) -> Done {
    let mut done = Done::default();
    let mut round = 0;
    while round < 2 || !signals.is_over() {
        let slot = THIRD * (round % 3) as u16;
        let is_unreplicated = round % 2 == 0;
        fail_over(cluster, slot, is_unreplicated);
        done.killed += 1;
        done.unreplicated += u32::from(is_unreplicated);
        move_slots(cluster, round as usize % EACH, &mut done.moved);
        round += 1;
        signals.round.store(round, Ordering::Relaxed);
        let until = signals.ops.load(Ordering::Relaxed) + CALM_OPS;
        while signals.ops.load(Ordering::Relaxed) < until && !signals.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    done
}

fn fail_over(cluster: &mut RedisCluster, slot: u16, is_unreplicated: bool) {
    let victim = cluster.primary_of(slot);
    let replica = replica_of(cluster, victim);
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
    cluster.wait_failover(slot, victim);
    cluster.node_mut(victim).restart();
    cluster.wait_ok();
}

fn replica_of(cluster: &RedisCluster, primary: usize) -> usize {
    let port = cluster.nodes()[primary].addr().port().to_string();
    let follows = |&node: &usize| cluster.nodes()[node].info("replication", "master_port") == port;
    (0..cluster.nodes().len()).find(follows).expect("every primary has a replica")
}

/// Moves slots in which the structures numbered `at` have keys, each to another primary.
fn move_slots(cluster: &RedisCluster, at: usize, moved: &mut BTreeMap<String, u32>) {
    let primaries: Vec<usize> = (0..cluster.nodes().len()).filter(|&node| cluster.is_primary(node)).collect();
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for &primary in &primaries {
        let Value::Array(all) = cluster.nodes()[primary].command(&["KEYS", &format!("L.*{at}.*")]) else { continue };
        for key in all.iter().map(Value::text) {
            let name = key.split("L.").last().and_then(|rest| rest.split('.').next()).unwrap_or_default();
            if let Some(kind) = name.strip_suffix(&at.to_string()) {
                keys.entry(kind.to_owned()).or_default().push(key);
            }
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
