//! A primary of a cluster that is cut off from the other nodes while clients still reach it, and its return.
//!
//! It is made to forget the others, so that it heeds nothing they say, and its replica takes its place as an election would have it. To clients that know it as
//! the primary it is one still, where it may serve without the others' slots (`cluster-require-full-coverage no`), until the nodes meet again.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::RedisCluster;
use super::nodes::{self, NODES, PRIMARIES};

/// A meeting of nodes that takes longer has failed.
const MEETING: Duration = Duration::from_millis(1_500);

impl RedisCluster {
    /// Cuts a primary off, of a Redis before 7.2 (what a later one forgets it has the others forget as well): the others go on without it, and it without them. Returns who takes its place; what its replica did not have yet is lost.
    ///
    /// # Panics
    /// When a node refuses, or the replica does not take over within 20 s.
    pub fn cut_off(&self, primary: usize) -> usize {
        let successor = (primary + PRIMARIES) % NODES;
        let slot = firsts().find(|&slot| self.primary_of(slot) == primary);
        let slot = slot.unwrap_or_else(|| panic!("node {primary} has the first slot of no third"));
        for other in (0..NODES).filter(|&node| node != primary) {
            let said = self.nodes()[primary].command(&["CLUSTER", "FORGET", self.id(other)]);
            assert!(!said.is_error(), "{}", said.text());
        }
        let said = self.nodes()[successor].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        // The others may have taken it for dead, and elected it, meanwhile.
        assert!(!said.is_error() || self.is_primary(successor), "{}", said.text());
        self.wait_until("without the one that was cut off", |cluster| {
            (0..NODES).filter(|&node| node != primary).all(|node| cluster.primary_by(node, slot) == Some(successor))
        });
        successor
    }

    /// Has a node that was cut off meet the others again: it learns who serves its slots, and follows.
    ///
    /// # Panics
    /// When that is not so after 20 s.
    pub fn meet_again(&self, node: usize) {
        let met = Cell::new(None::<Instant>);
        let knows = |slot| self.primary_by(node, slot).is_some_and(|primary| primary != node);
        self.wait_until("whole again", |cluster| {
            // On a busy machine a node may take a meeting for failed.
            if met.get().is_none_or(|met| met.elapsed() > MEETING) {
                cluster.meet(node);
                met.set(Some(Instant::now()));
            }
            !cluster.is_primary(node) && firsts().all(knows)
        });
    }

    fn meet(&self, node: usize) {
        for other in (0..NODES).filter(|&other| other != node) {
            let addr = self.nodes()[other].addr();
            let words = ["CLUSTER".to_owned(), "MEET".into(), addr.ip().to_string(), addr.port().to_string()];
            let said = self.nodes()[node].command(&words);
            assert!(!said.is_error(), "{}", said.text());
        }
    }
}

/// The first slot of each third.
fn firsts() -> impl Iterator<Item = u16> {
    (0..PRIMARIES).map(|third| nodes::slots(third).0)
}
