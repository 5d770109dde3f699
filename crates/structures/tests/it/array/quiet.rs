//! Writes of a handle beside its own compaction, of which a server does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::{Effect, ErrorKind, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::Array;

use crate::array::support::sorted;
use crate::support::stuck::Stuck;

/// A handle whose compaction holds its writes up and gets no answer, and the store behind.
async fn held(timeout: Duration) -> (Array, Arc<Stuck>) {
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let stuck = Stuck::over(&inner, |inner| {
        Box::pin(async move {
            Array::open(&inner, "a").await.unwrap().push(["between"]).await.unwrap();
        })
    });
    let other = Array::open_or_create(&inner, "a").await.unwrap();
    other.push(["x".repeat(100), "y".repeat(100)]).await.unwrap();
    other.remove(["x".repeat(100), "y".repeat(100)]).await.unwrap();
    let store: StoreRef = stuck.clone();
    let array = Array::options().dirtiness(64).timeout(timeout).open(&store, "a").await.unwrap();
    stuck.arm();
    array.elements().await.unwrap();
    while !stuck.is_held() {
        tokio::task::yield_now().await;
    }
    (array, stuck)
}

#[tokio::test]
async fn a_push_that_its_handles_compaction_held_up_for_all_of_its_time_was_never_sent_and_says_so() {
    let (array, stuck) = held(Duration::from_millis(200)).await;
    let error = array.push(["z"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied), "{error}");
    let other = Array::open(&stuck.inner, "a").await.unwrap();
    assert_eq!(sorted(&other).await, ["between"]);
}

/// It takes a look at other shards, on other servers, only: the write itself would be answered.
#[tokio::test]
async fn a_compaction_without_an_answer_holds_the_writes_of_its_handle_up_for_a_second_and_no_longer() {
    let (array, stuck) = held(Duration::from_secs(5)).await;
    let began = Instant::now();
    array.push(["z"]).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    let other = Array::open(&stuck.inner, "a").await.unwrap();
    assert_eq!(sorted(&other).await, ["between", "z"]);
}
