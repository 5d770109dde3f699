//! Pushes whose callers are dropped, or that are refused, while a try of them has landed, or may yet.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, Reply, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;
use tokio::sync::Notify;

use crate::queue::between::{Answer, Between, adds, appends, but, swaps};
use crate::queue::support::{BOTH, Kind, Line, drain, small};
use crate::support::hooked::fail;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// An item that fills a segment.
fn item(n: usize) -> String {
    format!("{n:0250}")
}

/// All that comes, in an order of its own; nothing may be lost.
async fn all(line: &Line) -> Vec<String> {
    let (mut items, told) = drain(line).await;
    assert_eq!(told, 0);
    items.sort();
    items
}

/// The append is acknowledged. Then the next segment is opened, and that hangs: before the state names it, or after.
#[tokio::test]
async fn a_push_that_is_dropped_while_it_opens_the_next_segment_is_there_once() {
    for kind in BOTH {
        for names_it in [true, false] {
            let between = Between::new(&memory());
            let line = Line::open(kind, &between.shared(), &small()).await;
            let hung = Arc::new(Notify::new());
            let hangs = hung.clone();
            between.once(swaps, move |store, batch| async move {
                if names_it {
                    store.run(Ctx::default(), batch).await;
                }
                hangs.notify_one();
                std::future::pending().await
            });
            let pushing = tokio::spawn({
                let line = line.clone();
                async move { line.push(item(1)).await }
            });
            hung.notified().await;
            pushing.abort();
            assert!(pushing.await.unwrap_err().is_cancelled());
            between.heal();
            line.push(item(2)).await.unwrap();
            assert_eq!(all(&line).await, [item(1), item(2)], "{kind:?}, the state names it: {names_it}");
        }
    }
}

/// Holds the first append back until it is told to go on, and hangs at the opening of a segment, which is carried out. From there on nothing is sent, if so said.
fn hold_then_hang(between: &Between, go: Arc<Notify>, is_cut: bool) {
    let (mut is_held, mut is_hung) = (false, false);
    between.answer(move |store, batch| -> Option<Answer> {
        let (store, batch) = (store.clone(), batch.clone());
        if is_hung {
            return is_cut.then(|| -> Answer { Box::pin(async move { fail(&batch, Effect::NotApplied) }) });
        }
        if batch.iter().any(swaps) {
            is_hung = true;
            return Some(Box::pin(async move {
                store.run(Ctx::default(), batch).await;
                std::future::pending().await
            }));
        }
        if is_held || !batch.iter().any(appends) {
            return None;
        }
        is_held = true;
        let go = go.clone();
        Some(Box::pin(async move {
            go.notified().await;
            store.run(Ctx::default(), batch).await
        }))
    });
}

/// Nobody is dropped by hand: the one that drives both reaches its own timeout, and the other goes on, whether or not anything can be sent any more.
#[tokio::test(start_paused = true)]
async fn of_two_pushes_in_one_write_the_later_goes_on_when_the_earlier_gives_up_and_both_are_there_once() {
    for kind in BOTH {
        for is_cut in [false, true] {
            let between = Between::new(&memory());
            // Small enough for all three, and filled by them.
            let line = Line::open(kind, &between.shared(), &small().segment_bytes(512)).await;
            let go = Arc::new(Notify::new());
            hold_then_hang(&between, go.clone(), is_cut);
            let push = |item: String| {
                let line = line.clone();
                tokio::spawn(async move { line.push(item).await })
            };
            let pause = || tokio::time::sleep(Duration::from_secs(1));
            let first = push("first".to_owned());
            pause().await;
            let earlier = push(item(1));
            pause().await;
            let later = push(item(2));
            pause().await;
            go.notify_one();
            first.await.unwrap().unwrap();
            let error = earlier.await.unwrap().unwrap_err();
            let what = format!("{kind:?}, nothing is sent any more: {is_cut}");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown), "{what}: {error}");
            later.await.unwrap().unwrap_or_else(|error| panic!("{what}: {error}"));
            between.heal();
            assert_eq!(all(&line).await, [item(1), item(2), "first".to_owned()], "{what}");
        }
    }
}

/// The first try is held back by the network. The others, so many, are refused by a store that is out of memory; then the first arrives.
async fn push_while_the_first_try_is_late(
    kind: Kind,
    is_full: bool,
    refused: usize,
) -> (larder_core::Result<()>, Line) {
    let store = memory();
    let between = Between::new(&store);
    let line = Line::open(kind, &between.shared(), &QueueOptions::default().segment_bytes(256)).await;
    if is_full {
        between.once(adds, |_, batch| async move { fail(&batch, Effect::NotApplied) });
        line.push(item(1)).await.unwrap();
        assert_eq!(line.stat().await.segments, 1, "no other could be opened");
    }
    let late = Arc::new(Mutex::new(None::<Batch>));
    let held = late.clone();
    let mut left = refused;
    between.answer(move |store, batch| -> Option<Answer> {
        if !batch.iter().any(appends) {
            return None;
        }
        let (store, batch) = (store.clone(), batch.clone());
        let mut held = held.lock().unwrap();
        if held.is_none() {
            *held = Some(batch.clone());
            return Some(Box::pin(async move { fail(&batch, Effect::Unknown) }));
        }
        left = left.checked_sub(1)?;
        Some(Box::pin(but(store, batch, |op| appends(op).then_some(Ok(Reply::NotStored)))))
    });
    let outcome = line.push("b").await;
    between.heal();
    let late = late.lock().unwrap().take().expect("the first try");
    store.run(Ctx::default(), late).await;
    (outcome, line)
}

#[tokio::test(start_paused = true)]
async fn a_push_that_may_land_yet_is_unknown_though_the_store_refused_it_since() {
    for kind in BOTH {
        for is_full in [false, true] {
            let (outcome, line) = push_while_the_first_try_is_late(kind, is_full, usize::MAX).await;
            let error = outcome.unwrap_err();
            assert_eq!(error.known_effect(), Effect::Unknown, "{kind:?}, it is full: {is_full}: {error}");
            line.push("c").await.unwrap();
            let expected = if is_full { vec![item(1)] } else { Vec::new() };
            let expected: Vec<String> = expected.into_iter().chain(["b".to_owned(), "c".to_owned()]).collect();
            assert_eq!(all(&line).await, expected, "{kind:?}, it is full: {is_full}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_that_may_land_yet_stays_with_its_segment_where_it_is_refused_once() {
    for kind in BOTH {
        for is_full in [false, true] {
            let (outcome, line) = push_while_the_first_try_is_late(kind, is_full, 1).await;
            outcome.unwrap();
            let expected = if is_full { vec![item(1)] } else { Vec::new() };
            let expected: Vec<String> = expected.into_iter().chain(["b".to_owned()]).collect();
            assert_eq!(all(&line).await, expected, "{kind:?}, it is full: {is_full}");
        }
    }
}
