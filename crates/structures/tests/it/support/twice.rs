//! A router between that repeats what it has not seen answered.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Profile, Run, Store, StoreRef};

/// Carries out what it is asked to, and some writes once more: a while later, or before the first comes to it.
#[derive(Debug)]
pub(crate) struct Twice(pub StoreRef);

impl Store for Twice {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let copy: Batch = batch.iter().filter(|op| !op.is_read() && fastrand::u8(..3) == 0).cloned().collect();
        let (store, pauses) = (self.0.clone(), fastrand::usize(..60));
        tokio::spawn(async move {
            for _ in 0..pauses {
                tokio::task::yield_now().await;
            }
            store.run(Ctx::default(), copy).await;
        });
        self.0.run(ctx, batch)
    }
}
