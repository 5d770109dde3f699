//! Pushes whose callers are dropped when they have landed.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, StoreRef};
use larder_store_memory::MemoryStore;
use tokio::sync::Notify;

use crate::queue::between::{Answer, Between, appends, swaps};
use crate::queue::support::{BOTH, Line, drain, small};
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
                let push = tokio::spawn(async move { line.push(item).await });
                async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    push
                }
            };
            let first = push("first".to_owned()).await;
            let earlier = push(item(1)).await;
            let later = push(item(2)).await;
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
