//! A store whose batches fall apart, as over several servers, and short ways to read arrays.

pub(crate) mod agree;

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Batch, Ctx, Op, Profile, Replies, Run, Store, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::Array;

pub(crate) const NOTHING: [&str; 0] = [];

/// Runs the ops of a batch one by one, those of different keys in any order; others come in between at every one.
#[derive(Debug)]
pub(crate) struct Scattered(pub StoreRef);

impl Scattered {
    pub(crate) fn shared() -> StoreRef {
        Arc::new(Scattered(Arc::new(MemoryStore::new())))
    }
}

impl Store for Scattered {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let ops: Vec<Op> = batch.iter().cloned().collect();
            let mut keys: Vec<_> = ops.iter().map(|op| op.key.clone()).collect();
            fastrand::shuffle(&mut keys);
            keys.dedup();
            let mut replies: Vec<_> = ops.iter().map(|_| None).collect();
            for key in keys {
                for at in (0..ops.len()).filter(|&at| ops[at].key == key) {
                    if replies[at].is_some() {
                        continue;
                    }
                    for _ in 0..fastrand::usize(0..3) {
                        tokio::task::yield_now().await;
                    }
                    let one: Batch = std::iter::once(ops[at].clone()).collect();
                    replies[at] = self.0.run(ctx, one).await.into_iter().next();
                }
            }
            replies.into_iter().flatten().collect::<Replies>()
        })
    }
}

pub(crate) async fn sorted(array: &Array) -> Vec<Bytes> {
    let mut elements = array.elements().await.unwrap();
    elements.sort();
    elements
}

/// The parts of a whole that is changed at once: `g-0` to `g-9`, in all shards of four.
pub(crate) fn whole(generation: u32) -> Vec<String> {
    (0..10).map(|part| format!("{generation}-{part}")).collect()
}

/// Which whole this is, if it is one and nothing else.
pub(crate) fn generation_of(elements: &[Bytes]) -> Option<u32> {
    let first = std::str::from_utf8(elements.first()?).ok()?;
    let generation = first.split_once('-')?.0.parse().ok()?;
    (elements == whole(generation)).then_some(generation)
}
