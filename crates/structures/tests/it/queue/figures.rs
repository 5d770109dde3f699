//! Figures of queues and stacks, and their drop, where segments are missing, far apart or many.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, registry};

use crate::queue::between::{Answer, Between, removes};
use crate::queue::support::{BOTH, Kind, LEASE, Line, key, small};
use crate::support::hooked::Hooked;
use crate::support::probe::{set_value, value_of};
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

/// Once as many are found, or missing, as there are, nothing below is asked for: all of that was removed.
#[tokio::test]
async fn figures_of_a_stack_whose_lowest_segment_is_lost_cost_the_same_however_many_were_removed_below() {
    let mut costs = Vec::new();
    for removed in [20, 800] {
        let (_, store) = memory();
        let (counted, counting) = counting(store.clone());
        let line = Line::open(Kind::Stack, &counted, &small()).await;
        skip(&line, removed).await;
        // What was removed goes off the record.
        line.push("x").await.unwrap();
        line.pop().await.unwrap().unwrap();
        push(&line, 4).await;
        let lowest = line.stat().await;
        assert_eq!((lowest.ready, lowest.segments_missing), (4, 0));
        let mut lost = None;
        for number in removed as u64 - 2..removed as u64 + 4 {
            let is_there = key_of(&store, number).await;
            lost = lost.or(is_there);
        }
        assert!(store.delete(lost.unwrap()).await.unwrap());
        let before = counting.counts();
        let stat = line.stat().await;
        costs.push(counting.counts().since(&before).round_trips);
        assert_eq!((stat.ready, stat.segments_missing), (3, 1));
    }
    assert_eq!(costs[0], costs[1]);
}

/// The key of a stack's segment, if there is one of that number.
async fn key_of(store: &StoreRef, number: u64) -> Option<Key> {
    let manifest = registry::find(store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap().unwrap();
    let link = Key::new(format!("L.q.k.{:016x}.n{number:x}", manifest.generation)).unwrap();
    let told = store.get(link).await.unwrap()?.value;
    let incarnation = u64::from_le_bytes(told[4..].try_into().unwrap());
    let segment = Key::new(format!("L.q.k.{:016x}.s{incarnation:016x}", manifest.generation)).unwrap();
    store.get(segment.clone()).await.unwrap().map(|_| segment)
}

/// A stack of so many segments below one that is partly taken, and so the only one on record.
async fn deep(store: &StoreRef, count: usize) -> Line {
    let line = Line::open(Kind::Stack, store, &small()).await;
    push(&line, count).await;
    line.push_all(["a", "b"]).await.unwrap();
    line.pop().await.unwrap().unwrap();
    line
}

#[tokio::test]
async fn sixteen_segments_of_a_stack_are_one_round_trip() {
    let mut costs = Vec::new();
    for count in [16, 160] {
        let (memory, store) = memory();
        let (counted, counting) = counting(store);
        let line = deep(&counted, count).await;
        assert_eq!(line.len().await.unwrap(), count as u64 + 1);
        costs.push((cost(&counting, line.len()).await, cost(&counting, drop_it(&counted)).await));
        assert_eq!(memory.stats().items, 0);
    }
    let (few, many) = (costs[0], costs[1]);
    // The links of all are asked for at once.
    assert_eq!(many.0, few.0 + 9);
    assert_eq!(many.1, few.1 + 9);
}

/// It lost its first write, as in a failover, and is nothing but its header: it cannot say what lies below.
#[tokio::test]
async fn a_drop_finds_what_lies_below_an_empty_segment_of_a_stack() {
    let (memory, store) = memory();
    deep(&store, 40).await;
    let emptied = key(Kind::Stack, &store, Some(30)).await;
    let value = value_of(&store, &emptied).await;
    set_value(&store, &emptied, value.slice(..27)).await;
    // By 16 links at a time: those below are not among the first.
    drop_it(&Hooked::with_batches_of(&store, 16).shared()).await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

/// All of it was taken, it was not removed, and then its bytes were spoilt: nobody wants them.
#[tokio::test]
async fn a_used_up_segment_that_cannot_be_read_is_in_nobodys_way() {
    let (_, store) = memory();
    let between = Between::new(&store);
    let line = Line::open(Kind::Queue, &between.shared(), &small()).await;
    push(&line, 4).await;
    between.refuse(removes, Effect::NotApplied);
    for _ in 0..2 {
        line.pop().await.unwrap().unwrap();
    }
    let used_up = key(Kind::Queue, &store, Some(0)).await;
    assert!(store.get(used_up.clone()).await.unwrap().is_some(), "it was not removed");
    set_value(&store, &used_up, Bytes::from("of another program")).await;
    let fresh = Line::open(Kind::Queue, &store, &small()).await;
    let stat = fresh.stat().await;
    assert_eq!((stat.ready, stat.acknowledged, stat.segments_missing), (2, 2, 0));
    assert_eq!(fresh.len().await.unwrap(), 2);
}

/// All of it was claimed, it was evicted, and then the last of it was acknowledged by who has never seen it: nobody can have removed it.
#[tokio::test]
async fn a_used_up_segment_that_was_gone_before_is_missing() {
    let (_, store) = memory();
    let line = Line::open(Kind::Queue, &store, &small()).await;
    push(&line, 4).await;
    let (first, _second) = (line.take().await, line.take().await);
    store.delete(key(Kind::Queue, &store, Some(0)).await).await.unwrap();
    Line::open(Kind::Queue, &store, &small()).await.ack(first.id()).await.unwrap();
    let stat = Line::open(Kind::Queue, &store, &small()).await.stat().await;
    assert_eq!((stat.ready, stat.claimed, stat.acknowledged), (2, 1, 1));
    assert_eq!((stat.segments_missing, stat.segments_lost), (1, 0));
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
