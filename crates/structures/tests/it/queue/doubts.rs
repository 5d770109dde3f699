//! Pushes whose callers are dropped, or that are refused, while a try of them has landed, or may yet.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, Reply, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;
use tokio::sync::Notify;

use crate::queue::between::{Answer, Between, adds, appends, but, swaps};
use crate::queue::support::{BOTH, Kind, Line, drain, key, small};
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
    pushed: &str,
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
    let outcome = line.push(pushed).await;
    between.heal();
    let late = late.lock().unwrap().take().expect("the first try");
    store.run(Ctx::default(), late).await;
    (outcome, line)
}

#[tokio::test(start_paused = true)]
async fn a_push_that_may_land_yet_is_unknown_though_the_store_refused_it_since() {
    for kind in BOTH {
        // An item that is no larger than others, and one that takes a tenth of a value.
        for (is_full, bytes) in [(false, 1), (true, 1), (false, 100_000), (true, 100_000)] {
            let pushed = "b".repeat(bytes);
            let (outcome, line) = push_while_the_first_try_is_late(kind, is_full, usize::MAX, &pushed).await;
            let error = outcome.unwrap_err();
            let what = format!("{kind:?}, it is full: {is_full}, {bytes} bytes");
            assert_eq!(error.known_effect(), Effect::Unknown, "{what}: {error}");
            line.push("c").await.unwrap();
            let expected = if is_full { vec![item(1)] } else { Vec::new() };
            let expected: Vec<String> = expected.into_iter().chain([pushed, "c".to_owned()]).collect();
            assert!(all(&line).await == expected, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_that_may_land_yet_stays_with_its_segment_where_it_is_refused_once() {
    for kind in BOTH {
        for is_full in [false, true] {
            let (outcome, line) = push_while_the_first_try_is_late(kind, is_full, 1, "b").await;
            outcome.unwrap();
            let expected = if is_full { vec![item(1)] } else { Vec::new() };
            let expected: Vec<String> = expected.into_iter().chain(["b".to_owned()]).collect();
            assert_eq!(all(&line).await, expected, "{kind:?}, it is full: {is_full}");
        }
    }
}

/// Fills two segments, and takes all there is: the segment that was the tail is removed.
async fn use_up(line: &Line) -> Vec<String> {
    line.push(item(1)).await.unwrap();
    line.push(item(2)).await.unwrap();
    line.drain().await
}

/// It lands at the first try, or that one is late and lands right before the second. When it is looked into, others have used up the segment.
#[tokio::test(start_paused = true)]
async fn a_push_whose_segment_was_used_up_meanwhile_is_unknown_and_is_not_made_again() {
    for kind in BOTH {
        for is_late in [false, true] {
            let store = memory();
            let between = Between::new(&store);
            let line = Line::open(kind, &between.shared(), &small()).await;
            let other = Line::open(kind, &store, &small()).await;
            let segment = key(kind, &store, Some(0)).await;
            let given = Arc::new(Mutex::new(Vec::new()));
            let (taker, taken, mut held) = (other.clone(), given.clone(), None::<Batch>);
            between.answer(move |store, batch| -> Option<Answer> {
                if !batch.iter().any(appends) {
                    return None;
                }
                let (store, batch) = (store.clone(), batch.clone());
                let (taker, taken) = (taker.clone(), taken.clone());
                let first = held.replace(batch.clone());
                Some(Box::pin(async move {
                    if is_late && first.is_none() {
                        return fail(&batch, Effect::Unknown);
                    }
                    store.run(Ctx::default(), first.unwrap_or_else(|| batch.clone())).await;
                    let items = use_up(&taker).await;
                    taken.lock().unwrap().extend(items);
                    if is_late { store.run(Ctx::default(), batch).await } else { fail(&batch, Effect::Unknown) }
                }))
            });
            let error = line.push("b").await.unwrap_err();
            between.heal();
            let what = format!("{kind:?}, it is late: {is_late}");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::Unknown), "{what}: {error}");
            assert!(store.get(segment).await.unwrap().is_none(), "{what}: the segment is there");
            assert_eq!(all(&other).await, [""; 0], "{what}");
            let given = given.lock().unwrap();
            assert_eq!(given.iter().filter(|item| *item == "b").count(), 1, "{what}: {given:?}");
        }
    }
}

/// Where it does not fit any more it cannot land late either: there is no doubt left.
#[tokio::test(start_paused = true)]
async fn a_push_that_was_lost_goes_to_the_next_segment_where_others_left_it_no_room() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(10_000).build().unwrap());
        let options = QueueOptions::default().segment_bytes(4_000);
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &options).await;
        let other = Line::open(kind, &store, &options).await;
        between.once(appends, |_, batch| async move {
            other.push([b'1'; 3_900]).await.unwrap();
            other.push([b'2'; 5_000]).await.unwrap();
            fail(&batch, Effect::Unknown)
        });
        line.push([b'3'; 6_500]).await.unwrap();
        let lengths: Vec<usize> = all(&line).await.iter().map(String::len).collect();
        assert_eq!(lengths, [3_900, 5_000, 6_500], "{kind:?}");
    }
}
