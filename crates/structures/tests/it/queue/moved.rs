//! Counts of queues and stacks that others change at every moment.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Effect, ErrorKind, Profile, Run, Store, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;

use crate::queue::support::{BOTH, Kind, Line, key, small};

/// A store before each batch of which another handle takes an item.
#[derive(Debug)]
struct Moving {
    inner: StoreRef,
    kind: Kind,
}

impl Store for Moving {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let other = Line::open(self.kind, &self.inner, &small()).await;
            assert!(other.pop().await.unwrap().is_some());
            self.inner.run(ctx, batch).await
        })
    }
}

#[tokio::test]
async fn a_count_with_segments_missing_that_others_may_have_removed_is_told_as_such_and_never_short() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let line = Line::open(kind, &store, &small()).await;
        for n in 0..600 {
            line.push(format!("item {n:04}")).await.unwrap();
        }
        let segments = line.stat().await.segments;
        store.delete(key(kind, &store, Some(segments / 2)).await).await.unwrap();
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::Lost, "{kind:?}");
        let moving: StoreRef = Arc::new(Moving { inner: store.clone(), kind });
        let error = Line::open(kind, &moving, &small()).await.len().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.known_effect()),
            (ErrorKind::Conflict, Effect::NotApplied),
            "{kind:?}: {error}"
        );
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::Lost, "{kind:?}: nobody was told yet");
    }
}
