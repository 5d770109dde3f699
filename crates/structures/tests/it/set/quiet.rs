//! Changes of a set as text beside a compaction of their handle that gets no answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Effect, ErrorKind, Op, Profile, PutMode, Run, Store, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::Set;

use crate::support::probe::sorted;
use crate::support::stuck::Stuck;

/// A handle of a text with much that is stale, and the store behind.
async fn dirty(timeout: Duration) -> (Set, Arc<Stuck>) {
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let stuck = Stuck::over(&inner, |inner| {
        Box::pin(async move {
            Set::open_text(&inner, "index").unwrap().add(["between"]).await.unwrap();
        })
    });
    let other = Set::open_text(&inner, "index").unwrap();
    other.add(["x".repeat(100), "y".repeat(100)]).await.unwrap();
    other.remove(["x".repeat(100), "y".repeat(100)]).await.unwrap();
    let store: StoreRef = stuck.clone();
    let set = Set::options().dirtiness(64).timeout(timeout).open_text(&store, "index").unwrap();
    stuck.arm();
    (set, stuck)
}

async fn until_held(stuck: &Stuck) {
    while !stuck.is_held() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_compaction_without_an_answer_holds_the_changes_of_a_text_up_for_a_second_and_no_longer() {
    let (set, stuck) = dirty(Duration::from_secs(10)).await;
    set.members().await.unwrap();
    until_held(&stuck).await;
    let began = Instant::now();
    set.add(["z"]).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(sorted(&Set::open_text(&stuck.inner, "index").unwrap()).await, ["between", "z"]);
}

#[tokio::test]
async fn a_change_that_its_handles_compaction_held_up_for_all_of_its_time_was_never_sent_and_says_so() {
    let (set, stuck) = dirty(Duration::from_millis(200)).await;
    set.members().await.unwrap();
    until_held(&stuck).await;
    let error = set.add(["z"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied), "{error}");
    assert_eq!(sorted(&Set::open_text(&stuck.inner, "index").unwrap()).await, ["between"]);
}

/// A change of the handle that gets no answer keeps a compaction from beginning, and that keeps others back: no longer than it may.
#[tokio::test]
async fn a_compaction_that_waits_for_a_change_without_an_answer_keeps_others_back_for_a_second_and_no_longer() {
    let (set, stuck) = dirty(Duration::from_secs(10)).await;
    let held = Arc::new(Held { inner: stuck.clone() });
    let store: StoreRef = held;
    let slow = Set::options().dirtiness(64).timeout(Duration::from_secs(10)).open_text(&store, "index").unwrap();
    drop(set);
    let first = tokio::spawn({
        let slow = slow.clone();
        async move { slow.add(["never answered"]).await }
    });
    tokio::task::yield_now().await;
    slow.members().await.unwrap();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let began = Instant::now();
    slow.add(["z"]).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    first.abort();
}

/// Does not answer one append.
#[derive(Debug)]
struct Held {
    inner: StoreRef,
}

impl Store for Held {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let is_held = |op: &Op| matches!(&op.verb, Verb::Put { mode: PutMode::Append, value, .. } if value.starts_with(b"+never"));
        if batch.iter().any(is_held) {
            return Run::pending(std::future::pending());
        }
        self.inner.run(ctx, batch)
    }
}
