//! What queues and stacks look at on the way: how often, at how much, and what comes of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Key, Reply, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Claim, QueueOptions};

use crate::queue::between::{Answer, Between, appends, but, removes};
use crate::queue::support::{BOTH, Kind, Line, key, small};
use crate::support::shaped::Shaped;
use crate::table::support::{cost, counting};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Fills so many segments, and claims all there is. The claims, and the keys of the segments that they are of.
async fn claimed(kind: Kind, store: &StoreRef, line: &Line, segments: u64) -> (Vec<Claim>, Vec<Key>) {
    let (mut claims, mut keys) = (Vec::new(), Vec::new());
    for n in 0..segments {
        line.push(format!("{n:0250}")).await.unwrap();
    }
    for n in 0..segments {
        let segment = if kind == Kind::Queue { n } else { segments - 1 - n };
        keys.push(key(kind, store, Some(segment)).await);
    }
    for _ in 0..segments {
        claims.push(line.take().await);
    }
    (claims, keys)
}

async fn is_there(store: &StoreRef, key: &Key) -> bool {
    store.get(key.clone()).await.unwrap().is_some()
}

/// How often a handle looks that pushes so many items one after the other.
async fn looks(kind: Kind, items: usize, bytes: usize) -> usize {
    let between = Between::new(&memory());
    let line = Line::open(kind, &between.shared(), &QueueOptions::default()).await;
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    between.answer(move |_, batch| {
        let appended = batch.iter().find(|op| appends(op));
        let is_look = appended.is_some_and(|append| batch.iter().any(|op| op.is_read() && op.key == append.key));
        counted.fetch_add(usize::from(is_look), Ordering::Relaxed);
        None
    });
    for _ in 0..items {
        line.push(vec![b'x'; bytes]).await.unwrap();
    }
    looks.load(Ordering::Relaxed)
}

/// A look reads the whole segment. Small items fill one by their number: a thousand.
#[tokio::test]
async fn a_handle_looks_at_its_segment_eight_times_while_it_fills_it() {
    for kind in BOTH {
        for (items, bytes) in [(1_000, 1), (280, 100)] {
            let looks = looks(kind, items, bytes).await;
            assert!((7..=9).contains(&looks), "{kind:?}: {looks} looks for {items} items of {bytes} bytes");
        }
    }
}

/// He reads no segment of his own: what is used up he finds on the way.
#[tokio::test]
async fn who_only_acknowledges_what_others_claimed_removes_what_is_used_up() {
    for kind in BOTH {
        let store = memory();
        let one = Line::open(kind, &store, &small()).await;
        let (claims, keys) = claimed(kind, &store, &one, 6).await;
        let other = Line::open(kind, &store, &small()).await;
        for claim in claims {
            other.ack(claim.id()).await.unwrap();
        }
        for key in &keys[..3] {
            assert!(!is_there(&store, key).await, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn who_takes_an_item_removes_what_was_used_up_before_with_the_same_call() {
    for kind in BOTH {
        let store = memory();
        let one = Line::open(kind, &store, &small()).await;
        let (claims, keys) = claimed(kind, &store, &one, 3).await;
        one.push_all(["x", "y"]).await.unwrap();
        for claim in claims {
            // Each is another's, who has not read the segment.
            Line::open(kind, &store, &small()).await.ack(claim.id()).await.unwrap();
        }
        assert!(is_there(&store, &keys[0]).await && is_there(&store, &keys[1]).await, "{kind:?}");
        let other = Line::open(kind, &store, &small()).await;
        assert!(other.pop().await.unwrap().is_some());
        assert!(!is_there(&store, &keys[0]).await && !is_there(&store, &keys[1]).await, "{kind:?}");
    }
}

/// Late pushes to them are looked for where there is nothing else to take.
#[tokio::test]
async fn what_is_claimed_in_segments_that_were_passed_is_not_read_by_who_takes_an_item() {
    for kind in BOTH {
        let (store, counting) = counting(memory());
        let one = Line::open(kind, &store, &QueueOptions::default()).await;
        let mut claims = Vec::new();
        for _ in 0..3 {
            one.push(vec![b'x'; 40_000]).await.unwrap();
            claims.push(one.take().await);
        }
        one.push_all(["w", "x", "y"]).await.unwrap();
        // The tail is on record now.
        assert!(one.pop().await.unwrap().is_some());
        let other = Line::open(kind, &store, &QueueOptions::default()).await;
        let before = counting.counts();
        assert!(other.pop().await.unwrap().is_some());
        let counts = counting.counts().since(&before);
        assert!(counts.received_bytes < 10_000, "{kind:?}: {counts:?}");
        // Others have written the state since: it is read again, and the tail.
        one.pop().await.unwrap().unwrap();
        one.push("z").await.unwrap();
        let before = counting.counts();
        assert!(other.pop().await.unwrap().is_some());
        let counts = counting.counts().since(&before);
        assert!(counts.received_bytes < 10_000, "{kind:?}: {counts:?}");
    }
}

#[tokio::test]
async fn that_there_is_nothing_is_told_after_two_round_trips_however_many_segments_are_in_use() {
    for kind in BOTH {
        let (store, counting) = counting(memory());
        let one = Line::open(kind, &store, &small()).await;
        let _claims = claimed(kind, &store, &one, 14).await;
        // The tail is on record now, and the others are known.
        assert_eq!(one.pop().await.unwrap(), None);
        let nothing = async || {
            assert_eq!(one.pop().await.unwrap(), None);
            Ok(())
        };
        assert_eq!(cost(&counting, nothing()).await, 2, "{kind:?}");
    }
}

/// Who has read no segment yet reads the tail first, and then all that are used up as far as the state knows.
#[tokio::test]
async fn that_there_is_nothing_is_told_by_a_fresh_handle_after_two_round_trips() {
    for kind in BOTH {
        let (store, counting) = counting(memory());
        let one = Line::open(kind, &store, &small()).await;
        let _claims = claimed(kind, &store, &one, 14).await;
        assert_eq!(one.pop().await.unwrap(), None);
        let fresh = Line::open(kind, &store, &small()).await;
        assert_eq!(cost(&counting, fresh.pop()).await, 2, "{kind:?}");
    }
}

/// A push goes to the tail; a late one, of who has not noticed yet that a segment was closed, to one that was passed.
#[tokio::test]
async fn whoever_is_waiting_watches_the_state_the_tail_and_what_was_passed() {
    for kind in BOTH {
        let store = memory();
        let one = Line::open(kind, &store, &small()).await;
        let (_claims, mut wanted) = claimed(kind, &store, &one, 3).await;
        wanted.extend([key(kind, &store, Some(3)).await, key(kind, &store, None).await]);
        let between = Between::new(&Shaped::over(&store, |profile| profile.watch = true));
        let two = Line::open(kind, &between.shared(), &small()).await;
        let watched = Arc::new(Mutex::new(Vec::new()));
        let noted = watched.clone();
        between.answer(move |_, batch| {
            if !batch.iter().all(|op| matches!(op.verb, Verb::Watch { .. })) {
                return None;
            }
            noted.lock().unwrap().extend(batch.iter().map(|op| op.key.clone()));
            let (one, ops) = (one.clone(), batch.len());
            let answer: Answer = Box::pin(async move {
                one.push("an item").await.unwrap();
                (0..ops).map(|_| Ok(Reply::Changed)).collect()
            });
            Some(answer)
        });
        let wait = Duration::from_secs(60);
        let item = match &two {
            Line::Queue(queue) => queue.pop_within(wait).await,
            Line::Stack(stack) => stack.pop_within(wait).await,
        };
        assert_eq!(item.unwrap().as_deref(), Some(&b"an item"[..]), "{kind:?}");
        let mut watched = watched.lock().unwrap().clone();
        watched.sort();
        wanted.sort();
        assert_eq!(watched, wanted, "{kind:?}");
    }
}

/// The token that it was sent with was of a connection that has ended, say.
#[tokio::test]
async fn a_removal_that_was_refused_is_made_with_another_token_by_the_same_call() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &small()).await;
        for n in 0..3 {
            line.push(format!("{n:0250}")).await.unwrap();
        }
        let refused = Arc::new(Mutex::new(None));
        let noted = refused.clone();
        between.once(removes, move |store, batch| {
            *noted.lock().unwrap() = batch.iter().find(|op| removes(op)).map(|op| op.key.clone());
            but(store, batch, |op| removes(op).then_some(Ok(Reply::Exists)))
        });
        let segment = loop {
            assert!(line.pop().await.unwrap().is_some(), "{kind:?}: nothing was removed");
            if let Some(segment) = refused.lock().unwrap().take() {
                break segment;
            }
        };
        assert!(!is_there(&store, &segment).await, "{kind:?}");
    }
}
