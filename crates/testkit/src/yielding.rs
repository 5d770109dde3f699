//! A store that lets others run.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Profile, Run, Store, StoreRef};

/// A store that lets others run before and after each batch, so that tasks meet between them.
///
/// ```
/// # use larder_testkit::yielding::Yielding;
/// let inner: larder_core::StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let store: larder_core::StoreRef = std::sync::Arc::new(Yielding(inner));
/// assert_eq!(store.profile().store, "memory");
/// ```
#[derive(Debug)]
pub struct Yielding(pub StoreRef);

impl Store for Yielding {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            for _ in 0..fastrand::u8(1..4) {
                tokio::task::yield_now().await;
            }
            let replies = self.0.run(ctx, batch).await;
            tokio::task::yield_now().await;
            replies
        })
    }
}
