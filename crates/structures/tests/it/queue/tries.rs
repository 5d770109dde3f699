//! How often calls of queues and stacks are tried again, with which pauses, and what they say of themselves at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;

use crate::queue::between::{Answer, Between, swaps};
use crate::queue::support::{BOTH, Line, small};
use crate::support::hooked::fail;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Nothing is sent from now on, and whoever tries knows: how often that was.
fn cut(between: &Between) -> Arc<AtomicUsize> {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = tries.clone();
    between.answer(move |_, batch| {
        counted.fetch_add(1, Ordering::Relaxed);
        let batch = batch.clone();
        let answer: Answer = Box::pin(async move { fail(&batch, Effect::NotApplied) });
        Some(answer)
    });
    tries
}

/// A push, or a pop, that fails.
async fn failing(line: &Line, is_push: bool) -> Error {
    match is_push {
        true => line.push("b").await.unwrap_err(),
        false => line.pop().await.unwrap_err(),
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_is_tried_eight_times_with_pauses_and_then_given_up() {
    for kind in BOTH {
        for is_push in [true, false] {
            let between = Between::new(&memory());
            let line = Line::open(kind, &between.shared(), &small()).await;
            line.push("a").await.unwrap();
            let (tries, since) = (cut(&between), tokio::time::Instant::now());
            let error = failing(&line, is_push).await;
            let what = format!("{kind:?}, a push: {is_push}: {error}");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{what}");
            assert_eq!(tries.load(Ordering::Relaxed), 8, "{what}");
            assert!(!since.elapsed().is_zero(), "{what}");
            between.heal();
            assert_eq!(line.drain().await, ["a"], "{what}");
        }
    }
}

/// The last pause would end behind the deadline: whoever waited for that would only be told that his call was cut off, and nothing of its effect.
#[tokio::test]
async fn what_could_not_be_sent_until_its_time_was_over_had_no_effect_and_says_so() {
    for kind in BOTH {
        for (is_push, _) in [true, false].into_iter().flat_map(|is_push| (0..3).map(move |n| (is_push, n))) {
            let between = Between::new(&memory());
            let options = QueueOptions::default().timeout(Duration::from_millis(10));
            let line = Line::open(kind, &between.shared(), &options).await;
            cut(&between);
            let error = failing(&line, is_push).await;
            let what = format!("{kind:?}, a push: {is_push}: {error}");
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_take_that_is_overtaken_again_and_again_makes_way_for_the_others() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let [one, two] =
            [Line::open(kind, &store, &small()).await, Line::open(kind, &between.shared(), &small()).await];
        one.push_all((0..10).map(|n| n.to_string())).await.unwrap();
        let (first, mut left) = (one.clone(), 6);
        between.answer(move |store, batch| {
            if !batch.iter().any(swaps) || left == 0 {
                return None;
            }
            left -= 1;
            let (store, batch, first) = (store.clone(), batch.clone(), first.clone());
            let answer: Answer = Box::pin(async move {
                first.pop().await.unwrap().unwrap();
                store.run(Ctx::default(), batch).await
            });
            Some(answer)
        });
        let since = tokio::time::Instant::now();
        assert!(two.pop().await.unwrap().is_some());
        assert!(!since.elapsed().is_zero(), "{kind:?}");
        assert_eq!(one.drain().await.len(), 3, "{kind:?}");
    }
}
