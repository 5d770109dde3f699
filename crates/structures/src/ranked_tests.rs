//! Stores of several servers, for what is kept on more than one.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Op, Profile, Reply, Result, Run, Store};
use larder_store_memory::MemoryStore;

/// Three servers, of which an op says by its rank which it is for.
#[derive(Debug)]
pub(crate) struct Three([MemoryStore; 3]);

impl Three {
    pub(crate) fn new() -> Three {
        Three([(); 3].map(|()| MemoryStore::new()))
    }

    /// One of them.
    pub(crate) fn at(&self, rank: u8) -> &MemoryStore {
        &self.0[usize::from(rank)]
    }

    /// By the server that the op is for.
    pub(crate) fn apply(&self, op: &Op) -> Result<Reply> {
        self.at(op.route.rank).apply(op)
    }
}

impl Store for Three {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { nodes: 3, ..(*self.0[0].profile()).clone() })
    }

    fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
        Run::Ready(batch.iter().map(|op| self.apply(op)).collect())
    }
}
