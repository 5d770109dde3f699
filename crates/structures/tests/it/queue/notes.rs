//! What a call that has its answer does beside that: it removes what is used up, notes it, and says that a loss was told; how long that may take, and how often it is tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use larder_core::{ErrorKind, Reply, StoreExt, StoreRef, Verb, ambient};
use larder_store_memory::MemoryStore;
use larder_structures::{Queue, QueueOptions};

use crate::queue::between::{Between, removes, swaps};
use crate::queue::support::{BOTH, Line, drain, key, small};
use crate::support::probe::Probe;
use crate::support::sieve::Sieve;
use crate::table::support::evicting;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// The caller's answer is known by then: a store that hangs is not to keep it for all of its time.
#[tokio::test]
async fn a_removal_has_half_of_what_is_left_of_its_callers_time() {
    for kind in BOTH {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let store = Sieve::answering(&memory(), move |ctx, op| {
            if removes(op) {
                let left = ctx.deadline.expect("it has a deadline").saturating_duration_since(ambient::now());
                assert!(left > Duration::from_secs(5) && left <= Duration::from_secs(15), "{left:?}");
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        // Calls may take 30 s.
        let line = Line::open(kind, &store, &small()).await;
        line.push_all((0..12).map(|_| [b'x'; 100])).await.unwrap();
        assert_eq!(drain(&line).await.0.len(), 12);
        assert!(asked.load(Ordering::Relaxed) > 0, "{kind:?}: nothing was removed");
    }
}

/// Among many who write the state: others, who miss the segment, wait for the note.
#[tokio::test(start_paused = true)]
async fn a_removal_is_noted_though_twelve_others_were_first() {
    for kind in BOTH {
        let inner = evicting();
        let (removed, tries) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (removals, writes) = (removed.clone(), tries.clone());
        let store = Sieve::answering(&inner, move |_, op| {
            removals.fetch_add(usize::from(removes(op)), Ordering::Relaxed);
            let is_note = swaps(op) && removals.load(Ordering::Relaxed) > 0;
            (is_note && writes.fetch_add(1, Ordering::Relaxed) < 12).then_some(Ok(Reply::Exists))
        });
        let line = Line::open(kind, &store, &small()).await;
        line.push_all((0..12).map(|_| [b'x'; 100])).await.unwrap();
        while removed.load(Ordering::Relaxed) == 0 {
            assert!(line.pop().await.unwrap().is_some());
        }
        assert!(tries.load(Ordering::Relaxed) > 12, "{kind:?}: {tries:?} tries");
    }
}

/// Of a loss the caller hears in time also where the store does not answer when that is to be noted.
#[tokio::test(start_paused = true)]
async fn a_loss_is_told_in_time_though_the_store_hangs_as_it_is_to_be_noted() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let timeout = Duration::from_secs(5);
        let line = Line::open(kind, &between.shared(), &small().timeout(timeout)).await;
        line.push_all((0..6).map(|_| [b'x'; 100])).await.unwrap();
        let segment = key(kind, &store, Some(1)).await;
        assert!(store.delete(segment).await.unwrap());
        let told = loop {
            // The first write of a call passes, the next one hangs.
            let mut writes = 0;
            between.answer(move |_, batch| {
                writes += batch.iter().filter(|op| swaps(op)).count();
                (writes > 1).then(|| -> crate::queue::between::Answer { Box::pin(std::future::pending()) })
            });
            let begin = tokio::time::Instant::now();
            match line.pop().await {
                Ok(item) => assert!(item.is_some(), "{kind:?}: the loss was not told"),
                Err(error) => break (error.kind(), begin.elapsed()),
            }
        };
        assert_eq!(told.0, ErrorKind::Lost, "{kind:?}");
        assert!(told.1 <= timeout, "{kind:?}: after {:?}", told.1);
    }
}

/// The first of a call's items may be there where a later one failed.
#[tokio::test]
async fn a_push_that_fails_behind_the_first_part_of_its_items_says_how_many_are_there() {
    let between = Between::new(&memory());
    let queue = Queue::options().segment_bytes(256).open_or_create(&between.shared(), "q").await.unwrap();
    let mut full = false;
    between.answer(move |_, batch| {
        let has_third = |value: &[u8]| value.windows(200).any(|some| some == [b'y'; 200]);
        let is_second = batch.iter().any(|op| matches!(&op.verb, Verb::Put { value, .. } if has_third(value)));
        full |= is_second;
        let refused = |_: &_| Err(larder_core::Error::new(ErrorKind::Full, "there is no room"));
        let replies = full.then(|| batch.iter().map(refused).collect::<larder_core::Replies>())?;
        Some(Box::pin(async move { replies }))
    });
    let error = queue.push_all([[b'x'; 200], [b'x'; 200], [b'y'; 200]]).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(error.to_string().contains("the first 2 of 3 items were pushed"), "{error}");
}

/// A segment is closed with 1,000 items: no more than so many travel in a write that it takes whole.
#[tokio::test]
async fn pushes_of_many_small_items_at_the_same_time_share_no_segment_of_several_thousand() {
    let queue = Queue::open_or_create(&Probe::new().shared(), "q").await.unwrap();
    let pushes: Vec<_> = (0..8)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.push_all([b"x"; 900]).await })
        })
        .collect();
    for push in pushes {
        push.await.unwrap().unwrap();
    }
    let stat = queue.stat().await.unwrap();
    assert_eq!(stat.ready, 7_200);
    assert!(stat.segments >= 4, "{stat:?}");
}

#[tokio::test]
async fn a_thousand_items_go_in_one_write_and_one_more_in_another() {
    for (items, writes) in [(1_000, 1), (1_001, 2), (2_000, 2)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let store = Sieve::answering(&memory(), move |_, op| {
            counted.fetch_add(usize::from(crate::queue::between::appends(op)), Ordering::Relaxed);
            None
        });
        let queue = Queue::open_or_create(&store, "q").await.unwrap();
        queue.push_all((0..items).map(|_| b"x")).await.unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), writes, "{items} items");
    }
}

#[tokio::test]
async fn a_claim_tells_the_lease_that_was_asked_for() {
    let queue = QueueOptions::default().open_or_create(&memory(), "q").await.unwrap();
    queue.push("a").await.unwrap();
    let lease = Duration::from_secs(77);
    assert_eq!(queue.claim(lease).await.unwrap().expect("it is there").lease(), lease);
}
