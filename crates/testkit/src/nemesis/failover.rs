//! Replicas that take over: a primary with one replica, and a cluster.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use fastrand::Rng;

use super::victims::stand_still;
use super::{Deed, Victim};
use crate::history::Caused;
use crate::proxy::Proxy;
use crate::redis::{RedisCluster, RedisOptions, RedisServer, RedisVersion};
use crate::servers::{Deadline, READY_MS_MAX};

/// How far a replica falls behind at the most.
const BEHIND_MS_MAX: u64 = 30;
/// Less than the silence after which a node of a cluster counts as failed.
const BLINK_MS_MAX: u64 = 150;
/// How long a primary is cut off at the most, beside what it takes to replace it.
const APART_MS_MAX: u64 = 200;
const PRIMARIES: usize = 3;
/// A slot of each third.
const SLOTS: [u16; PRIMARIES] = [0, 6_000, 12_000];

/// A primary with one replica, which takes its place as a name would move to it: clients reach whoever is primary through proxies.
pub struct Pair {
    primary: RedisServer,
    replica: RedisServer,
    proxies: Vec<Arc<Proxy>>,
}

impl Pair {
    /// Starts both, and `proxies` before the primary.
    ///
    /// # Panics
    /// When they do not come up.
    pub fn start(version: RedisVersion, proxies: usize) -> Self {
        let primary = RedisServer::start(version, &RedisOptions::new().arg("repl-diskless-sync-delay", "0"));
        let replica = RedisServer::start(version, &RedisOptions::new().arg("repl-diskless-sync-delay", "0"));
        let proxies = (0..proxies).map(|_| Arc::new(Proxy::start(primary.addr()))).collect();
        let pair = Self { primary, replica, proxies };
        pair.follow();
        pair
    }

    /// The proxies before whoever is primary.
    pub fn proxies(&self) -> &[Arc<Proxy>] {
        &self.proxies
    }

    /// Has the replica follow the primary, and waits until it has everything.
    fn follow(&self) {
        let addr = self.primary.addr();
        self.replica.command(&["REPLICAOF", &addr.ip().to_string(), &addr.port().to_string()]);
        let deadline = Deadline::after_ms(READY_MS_MAX);
        while self.replica.info("replication", "master_link_status") != "up" {
            assert!(!deadline.passed(), "a replica did not come in step: {}", self.replica.log());
            deadline.poll();
        }
    }
}

impl Victim for Pair {
    fn mild(&self) -> Vec<Deed> {
        vec![Deed::Stop]
    }

    fn grave(&self) -> Vec<Deed> {
        vec![Deed::FailOver]
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        match deed {
            Deed::Stop => stand_still(rng, || self.primary.stop(), || self.primary.cont()),
            Deed::FailOver => {
                // What was changed while the replica was behind is as it was, and what was made meanwhile is gone.
                caused.setbacks.fetch_add(1, Ordering::SeqCst);
                caused.losses.fetch_add(1, Ordering::SeqCst);
                self.replica.command(&["REPLICAOF", "NO", "ONE"]);
                sleep(Duration::from_millis(rng.u64(0..=BEHIND_MS_MAX)));
                self.primary.kill9();
                std::mem::swap(&mut self.primary, &mut self.replica);
                self.proxies.iter().for_each(|proxy| proxy.redirect(self.primary.addr()));
                self.replica.restart_empty();
                self.follow();
            }
            other => panic!("a pair does not suffer {other:?}"),
        }
    }
}

/// A cluster one of whose primaries is killed, stopped or cut off.
pub struct Partitioned {
    cluster: RedisCluster,
    grave: &'static [Deed],
}

impl Partitioned {
    /// What takes nothing that was acknowledged.
    pub const MILD: &[Deed] = &[Deed::Stop];

    /// A cluster that is whole, of a release.
    pub fn new(cluster: RedisCluster, version: RedisVersion) -> Self {
        Self { cluster, grave: Self::grave_of(version) }
    }

    /// What takes data, each as often as it stands here. A node is cut off where `CLUSTER FORGET` is the node's own affair: Redis from 7.2 on, and Valkey, have the others forget as well, until nobody knows anybody.
    pub fn grave_of(version: RedisVersion) -> &'static [Deed] {
        match version {
            RedisVersion::Redis7 => &[Deed::Partition, Deed::Partition, Deed::Outlast, Deed::Kill],
            _ => &[Deed::Outlast, Deed::Kill],
        }
    }

    /// A primary goes, by whatever `go` does, and `back` brings it back once its replica has taken its place.
    fn replaced(&mut self, rng: &mut Rng, go: fn(&mut RedisServer), back: fn(&mut RedisServer)) {
        let slot = SLOTS[rng.usize(..PRIMARIES)];
        let primary = self.cluster.primary_of(slot);
        go(self.cluster.node_mut(primary));
        self.wait_failover(slot, primary);
        back(self.cluster.node_mut(primary));
        self.cluster.wait_ok();
    }

    /// For a while there are two primaries, and clients that know either.
    fn part(&self, rng: &mut Rng) {
        // A node that stood still may have been replaced.
        self.cluster.wait_ok();
        let primary = self.cluster.primary_of(SLOTS[rng.usize(..PRIMARIES)]);
        self.cluster.cut_off(primary);
        sleep(Duration::from_millis(rng.u64(..=APART_MS_MAX)));
        self.cluster.meet_again(primary);
        self.cluster.wait_ok();
    }

    /// Asks the nodes that answer: one that stands still does not.
    fn wait_failover(&self, slot: u16, from: usize) {
        let others = (0..2 * PRIMARIES).filter(|&node| node != from);
        let deadline = Deadline::after_ms(2 * READY_MS_MAX);
        for node in others {
            while self.cluster.primary_by(node, slot).is_none_or(|primary| primary == from) {
                assert!(!deadline.passed(), "no replica took the place of node {from}");
                deadline.poll();
            }
        }
    }
}

impl Victim for Partitioned {
    fn mild(&self) -> Vec<Deed> {
        Self::MILD.to_vec()
    }

    fn grave(&self) -> Vec<Deed> {
        self.grave.to_vec()
    }

    fn suffer(&mut self, deed: Deed, rng: &mut Rng, caused: &Caused) {
        if deed == Deed::Stop {
            let node = &self.cluster.nodes()[self.cluster.primary_of(SLOTS[rng.usize(..PRIMARIES)])];
            node.stop();
            sleep(Duration::from_millis(rng.u64(1..=BLINK_MS_MAX)));
            return node.cont();
        }
        caused.setbacks.fetch_add(1, Ordering::SeqCst);
        caused.losses.fetch_add(1, Ordering::SeqCst);
        match deed {
            Deed::Partition => self.part(rng),
            Deed::Outlast => self.replaced(rng, |node| node.stop(), |node| node.cont()),
            Deed::Kill => self.replaced(rng, RedisServer::kill9, RedisServer::restart),
            other => panic!("a cluster does not suffer {other:?}"),
        }
    }

    /// On a machine that is busy, a node may have counted as failed that only waited for its turn.
    fn settle(&mut self, caused: &Caused) {
        self.cluster.wait_ok();
        if (PRIMARIES..2 * PRIMARIES).any(|node| self.cluster.is_primary(node)) {
            caused.setbacks.fetch_add(1, Ordering::SeqCst);
            caused.losses.fetch_add(1, Ordering::SeqCst);
        }
    }
}
