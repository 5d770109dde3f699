//! A fleet of servers in the process, each of which can be down, or come back empty.
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, Replies, Run, Store, StoreRef};

use crate::counter::support::memory;

/// One server.
#[derive(Debug)]
pub(crate) struct Node {
    is_down: AtomicBool,
    holds: Mutex<StoreRef>,
}

impl Node {
    pub(crate) fn new() -> Arc<Node> {
        Arc::new(Node { is_down: AtomicBool::new(false), holds: Mutex::new(memory()) })
    }

    pub(crate) fn stop(&self) {
        self.is_down.store(true, Ordering::SeqCst);
    }

    pub(crate) fn resume(&self) {
        self.is_down.store(false, Ordering::SeqCst);
    }

    /// It forgets everything, and is up.
    pub(crate) fn restart_empty(&self) {
        *self.holds.lock().unwrap() = memory();
        self.resume();
    }
}

impl Store for Node {
    fn profile(&self) -> Arc<Profile> {
        self.holds.lock().unwrap().profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            tokio::task::yield_now().await;
            let store = self.holds.lock().unwrap().clone();
            if self.is_down.load(Ordering::SeqCst) {
                let down = |op: &Op| {
                    Error::new(ErrorKind::Unavailable, "the server is down").op(op).effect(Effect::NotApplied)
                };
                return batch.iter().map(|op| Err(down(op))).collect();
            }
            store.run(ctx, batch).await
        })
    }
}

/// The servers as one process sees them: each over a connection of its own.
#[derive(Debug)]
pub(crate) struct Fleet {
    nodes: Vec<StoreRef>,
}

impl Fleet {
    pub(crate) fn shared(nodes: impl IntoIterator<Item = StoreRef>) -> StoreRef {
        Arc::new(Fleet { nodes: nodes.into_iter().collect() })
    }

    fn node_of(&self, op: &Op) -> usize {
        let mut hasher = DefaultHasher::new();
        op.route.with.as_ref().unwrap_or(&op.key).hash(&mut hasher);
        (hasher.finish() as usize + usize::from(op.route.rank)) % self.nodes.len()
    }
}

impl Store for Fleet {
    fn profile(&self) -> Arc<Profile> {
        let profile = self.nodes[0].profile();
        Arc::new(Profile { nodes: self.nodes.len(), store: "fleet".to_owned(), ..(*profile).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let mut replies: Vec<Option<larder_core::Result<larder_core::Reply>>> =
                batch.iter().map(|_| None).collect();
            // In an order of chance, with others in between: so the servers do not agree on who was first.
            let mut order: Vec<usize> = (0..self.nodes.len()).collect();
            fastrand::shuffle(&mut order);
            for node in order {
                let places: Vec<usize> = (0..batch.len()).filter(|&at| self.node_of(&batch[at]) == node).collect();
                if places.is_empty() {
                    continue;
                }
                for _ in 0..fastrand::u8(..3) {
                    tokio::task::yield_now().await;
                }
                let part: Batch = places.iter().map(|&at| batch[at].clone()).collect();
                for (at, reply) in places.into_iter().zip(self.nodes[node].run(ctx, part).await) {
                    replies[at] = Some(reply);
                }
            }
            replies.into_iter().flatten().collect::<Replies>()
        })
    }
}
