//! Figures of queues and stacks, and their drop, where segments are missing, far apart or many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_core::{Ctx, ErrorKind, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, registry};

use crate::queue::between::{Answer, Between};
use crate::queue::support::{BOTH, Kind, LEASE, Line, key, small};
use crate::support::hooked::Hooked;
use crate::table::support::{cost, counting};

fn memory() -> (Arc<MemoryStore>, StoreRef) {
    let memory = Arc::new(MemoryStore::new());
    (memory.clone(), memory)
}

/// Pushes so many items, each of which fills a segment.
async fn push(line: &Line, count: usize) {
    for _ in 0..count {
        line.push([b'x'; 250]).await.unwrap();
    }
}

/// Pushes so many, and takes them again: their numbers are missing from then on.
async fn skip(line: &Line, count: usize) {
    push(line, count).await;
    for _ in 0..count {
        line.pop().await.unwrap().unwrap();
    }
}

async fn drop_it(store: &StoreRef) -> larder_core::Result<()> {
    registry::drop_structure(store, Ctx::default(), &Name::new("q").unwrap()).await.map(|_| ())
}

/// Drops it by batches of 16, few of them, and nothing is left.
async fn drop_in_few_batches(memory: &MemoryStore, store: &StoreRef) {
    let (counted, counting) = counting(Hooked::with_batches_of(store, 16).shared());
    let took = cost(&counting, drop_it(&counted)).await;
    assert!(took <= 20, "{took} round trips");
    assert_eq!(memory.stats().items, 0);
}

#[tokio::test]
async fn a_lost_tail_that_was_told_is_missing_no_more() {
    for kind in BOTH {
        let (_, store) = memory();
        let line = Line::open(kind, &store, &small()).await;
        line.push("a").await.unwrap();
        store.delete(key(kind, &store, Some(0)).await).await.unwrap();
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost);
        let stat = line.stat().await;
        assert_eq!((stat.segments_missing, stat.segments_lost), (0, 1), "{kind:?}");
        assert_eq!(line.len().await.unwrap(), 0, "{kind:?}");
    }
}

/// Below a segment that is lost numbers are tried one after the other: those that were removed before are not missing.
#[tokio::test]
async fn of_a_stack_with_gaps_a_lost_segment_is_one_and_hides_none() {
    let (memory, store) = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    push(&line, 3).await;
    skip(&line, 3).await;
    // What was removed goes off the record.
    line.push("x").await.unwrap();
    line.pop().await.unwrap().unwrap();
    push(&line, 4).await;
    // The lowest above the gap.
    let lost = 6;
    assert_eq!(line.stat().await.ready, 7);
    store.delete(key(Kind::Stack, &store, Some(lost)).await).await.unwrap();
    let stat = line.stat().await;
    assert_eq!((stat.ready, stat.segments_missing), (6, 1));
    drop_it(&store).await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

#[tokio::test]
async fn figures_and_a_drop_ask_for_no_more_at_once_than_the_store_takes() {
    for kind in BOTH {
        let (memory, store) = memory();
        push(&Line::open(kind, &store, &small()).await, 60).await;
        // It refuses what is more.
        let narrow = Hooked::with_batches_of(&store, 20).shared();
        let line = Line::open(kind, &narrow, &small()).await;
        assert_eq!(line.len().await.unwrap(), 60);
        drop_it(&narrow).await.unwrap();
        assert_eq!(memory.stats().items, 0, "{kind:?}");
    }
}

/// The segment that knew how to go on is gone: all numbers below it are tried.
#[tokio::test]
async fn a_drop_finds_what_lies_below_a_lost_segment_of_a_deep_stack() {
    let (memory, store) = memory();
    push(&Line::open(Kind::Stack, &store, &small()).await, 60).await;
    store.delete(key(Kind::Stack, &store, Some(40)).await).await.unwrap();
    drop_in_few_batches(&memory, &store).await;
}

/// Each segment says which comes below it: numbers in between are not tried.
#[tokio::test]
async fn a_drop_of_a_stack_with_wide_gaps_costs_what_is_there() {
    let (memory, store) = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    for _ in 0..3 {
        push(&line, 2).await;
        for _ in 0..60 {
            skip(&line, 2).await;
        }
    }
    push(&line, 2).await;
    drop_in_few_batches(&memory, &store).await;
}

/// A segment is missing, and others write the state before each look: what is missing may have been removed. It ends all the same.
#[tokio::test]
async fn figures_are_told_though_others_always_write() {
    let (_, store) = memory();
    let other = Line::open(Kind::Queue, &store, &small()).await;
    other.push_all((0..12).map(|n| n.to_string())).await.unwrap();
    let mut claims = Vec::new();
    for _ in 0..10 {
        claims.push(other.take().await);
    }
    push(&other, 3).await;
    store.delete(key(Kind::Queue, &store, Some(1)).await).await.unwrap();
    let between = Between::new(&store);
    let line = Line::open(Kind::Queue, &between.shared(), &small()).await;
    let (state, looks) = (key(Kind::Queue, &store, None).await, Arc::new(AtomicU64::new(0)));
    let (counted, claims) = (looks.clone(), Mutex::new(claims));
    between.answer(move |store, batch| {
        let is_look = batch.iter().any(|op| op.key == state && matches!(op.verb, Verb::Get { .. }));
        if !is_look {
            return None;
        }
        counted.fetch_add(1, Ordering::Relaxed);
        let claim = claims.lock().unwrap().pop()?;
        let (store, batch) = (store.clone(), batch.clone());
        let answer: Answer = Box::pin(async move {
            claim.ack().await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        Some(answer)
    });
    assert_eq!(line.stat().await.segments_missing, 0, "nobody knows");
    // The first, and one behind each of four passes.
    assert_eq!(looks.load(Ordering::Relaxed), 5);
    between.heal();
    assert_eq!(line.stat().await.segments_missing, 1);
    assert!(other.claim(LEASE).await.unwrap().is_some());
}
