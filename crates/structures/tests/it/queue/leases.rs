//! Claims whose leases the store does not take: nobody holds an item without one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, ManualClock, Op, PutMode, Reply, Result, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use tokio::sync::Notify;

use crate::queue::between::{Answer, Between, but, swaps};
use crate::queue::support::{BOTH, Kind, LEASE, Line, small, text};
use crate::support::hooked::fail;
use crate::support::slow::Slow;
use crate::table::support::{cost, counting};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Writes the marker of a claim.
fn marks(op: &Op) -> bool {
    let key = text(op.key.as_bytes());
    matches!(op.verb, Verb::Put { mode: PutMode::Set, .. })
        && key.rsplit('.').next().is_some_and(|index| index.starts_with('c'))
}

/// A store that is full takes no new item; one that is there, of the size it had, it takes.
fn has_no_room_for_a_lease(op: &Op) -> Option<Result<Reply>> {
    let error = Error::new(ErrorKind::Full, "the store is out of memory").effect(Effect::NotApplied);
    marks(op).then_some(Err(error))
}

/// A handle on a store that a test answers for, and one on the store behind; an item is in it.
async fn two(kind: Kind) -> (Arc<Between>, Line, Line) {
    let store = memory();
    let between = Between::new(&store);
    let one = Line::open(kind, &between.shared(), &small()).await;
    one.push("a").await.unwrap();
    let other = Line::open(kind, &store, &small()).await;
    (between, one, other)
}

#[tokio::test]
async fn a_claim_whose_lease_is_never_stored_fails_and_the_item_is_given_to_another() {
    for kind in BOTH {
        let (between, one, other) = two(kind).await;
        between.answer(|store, batch| {
            let is_it = batch.iter().any(marks);
            is_it.then(|| -> Answer { Box::pin(but(store.clone(), batch.clone(), has_no_room_for_a_lease)) })
        });
        let error = one.claim(LEASE).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{kind:?}: {error}");
        let claim = other.take().await;
        assert_eq!(claim.item(), "a");
        between.heal();
        assert!(one.claim(LEASE).await.unwrap().is_none(), "{kind:?}");
        claim.ack().await.unwrap();
        assert_eq!(one.len().await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_lost_has_its_lease_or_is_made_again() {
    for kind in BOTH {
        for is_marked in [true, false] {
            let (between, one, other) = two(kind).await;
            between.once(swaps, move |store, batch| async move {
                if is_marked {
                    store.run(Ctx::default(), batch.clone()).await;
                } else {
                    but(store, batch.clone(), has_no_room_for_a_lease).await;
                }
                fail(&batch, Effect::Unknown)
            });
            let claim = one.take().await;
            let what = format!("{kind:?}, its lease was stored: {is_marked}");
            assert_eq!(claim.attempts(), if is_marked { 1 } else { 2 }, "{what}");
            assert!(other.claim(LEASE).await.unwrap().is_none(), "{what}: two have it");
            claim.renew().await.unwrap();
            claim.ack().await.unwrap();
        }
    }
}

/// The reply is lost, the lease is not there, and none can be stored: the claim is not made out of what the state says.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_reply_is_lost_and_whose_lease_is_never_stored_fails() {
    for kind in BOTH {
        let (between, one, other) = two(kind).await;
        let mut is_lost = false;
        between.answer(move |store, batch| {
            if !batch.iter().any(marks) {
                return None;
            }
            let (store, batch) = (store.clone(), batch.clone());
            let loses = !std::mem::replace(&mut is_lost, true);
            Some(Box::pin(async move {
                let replies = but(store, batch.clone(), has_no_room_for_a_lease).await;
                if loses { fail(&batch, Effect::Unknown) } else { replies }
            }))
        });
        let error = one.claim(LEASE).await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{kind:?}: {error}");
        assert_eq!(other.take().await.item(), "a", "{kind:?}");
    }
}

/// A stack looks at its tail again.
#[tokio::test]
async fn a_claim_whose_lease_is_refused_once_takes_a_round_trip_more_and_two_of_a_stack() {
    for (kind, round_trips) in [(Kind::Queue, 3), (Kind::Stack, 4)] {
        let between = Between::new(&memory());
        let (store, counting) = counting(between.shared());
        let line = Line::open(kind, &store, &small()).await;
        line.push("a").await.unwrap();
        between.once(swaps, |store, batch| but(store, batch, has_no_room_for_a_lease));
        assert_eq!(cost(&counting, line.claim(LEASE)).await, round_trips, "{kind:?}");
        assert_eq!(line.stat().await.claimed, 1);
    }
}

/// Between the write and what is done about its lease another looks, and is given the item: that one alone has it.
#[tokio::test]
async fn what_another_was_given_before_the_lease_was_stored_is_not_claimed_twice() {
    for kind in BOTH {
        let (between, one, other) = two(kind).await;
        let held = Arc::new(Mutex::new(None));
        let holds = held.clone();
        between.once(swaps, move |store, batch| async move {
            let replies = but(store, batch, has_no_room_for_a_lease).await;
            *holds.lock().unwrap() = other.claim(LEASE).await.unwrap();
            replies
        });
        assert!(one.claim(LEASE).await.unwrap().is_none(), "{kind:?}: two have it");
        let claim = held.lock().unwrap().take().expect("it has no lease");
        claim.ack().await.unwrap();
    }
}

#[tokio::test]
async fn a_claim_that_is_made_again_has_one_timeout() {
    let store = memory();
    let between = Between::new(&store);
    let line = Line::open(Kind::Queue, &between.shared(), &small().timeout(Duration::from_secs(2))).await;
    line.push("a").await.unwrap();
    let mut is_second = false;
    between.answer(move |store, batch| {
        if !batch.iter().any(swaps) {
            return None;
        }
        let (store, batch) = (store.clone(), batch.clone());
        let hangs = std::mem::replace(&mut is_second, true);
        Some(Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            but(store, batch, has_no_room_for_a_lease).await
        }))
    });
    let since = Instant::now();
    let error = line.claim(LEASE).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

/// A store whose leases go by a clock that the test moves, a handle that a test answers for, and an item.
async fn clocked(kind: Kind) -> (Arc<ManualClock>, Arc<Between>, Line) {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let between = Between::new(&store);
    let line = Line::open(kind, &between.shared(), &small()).await;
    line.push("a").await.unwrap();
    (clock, between, line)
}

/// Holds the first write of the state back until the second comes, and lets this happen in between, when the lease of the first is over.
fn between_two_tries<F>(clock: Arc<ManualClock>, between: &Between, mut act: impl FnMut(StoreRef) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let (mut writes, mut held) = (0, None::<Batch>);
    between.answer(move |store, batch| {
        if !batch.iter().any(swaps) {
            return None;
        }
        writes += 1;
        let (store, batch) = (store.clone(), batch.clone());
        match (writes, held.take()) {
            (1, _) => {
                held = Some(batch.clone());
                Some(Box::pin(async move { fail(&batch, Effect::Unknown) }))
            }
            (2, Some(first)) => {
                let (clock, act) = (clock.clone(), act(store.clone()));
                Some(Box::pin(async move {
                    store.run(Ctx::default(), first).await;
                    clock.advance(2 * LEASE);
                    act.await;
                    store.run(Ctx::default(), batch).await
                }))
            }
            _ => None,
        }
    });
}

/// The second try of a claim does not make the lease of the first anew, which was over before another was given the item.
#[tokio::test(start_paused = true)]
async fn what_another_was_given_between_two_tries_of_a_claim_is_not_given_to_both() {
    for kind in BOTH {
        let (clock, between, line) = clocked(kind).await;
        let given = Arc::new(Mutex::new(None));
        let noted = given.clone();
        between_two_tries(clock, &between, move |store| {
            let noted = noted.clone();
            async move {
                let claim = Line::open(kind, &store, &small()).await.take().await;
                *noted.lock().unwrap() = Some(claim);
            }
        });
        let claim = line.claim(LEASE).await.unwrap();
        assert!(claim.is_none(), "{kind:?}: two have it");
        between.heal();
        let given = given.lock().unwrap().take().expect("the other's claim");
        assert_eq!((given.item(), given.attempts()), (&bytes::Bytes::from("a"), 2), "{kind:?}");
        given.ack().await.unwrap();
        assert_eq!(line.len().await.unwrap(), 0, "{kind:?}");
    }
}

/// Who has missed a lease gives the item away by his next write, however late that comes.
#[tokio::test(start_paused = true)]
async fn a_lease_that_another_has_missed_between_two_tries_of_a_claim_does_not_come_back() {
    for kind in BOTH {
        let (clock, between, line) = clocked(kind).await;
        let [looked, go] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        let other = Arc::new(Mutex::new(None));
        let (begun, may_go, noted) = (looked.clone(), go.clone(), other.clone());
        between_two_tries(clock, &between, move |store| {
            let (looked, begun, may_go, noted) = (looked.clone(), begun.clone(), may_go.clone(), noted.clone());
            async move {
                let between = Between::new(&store);
                let line = Line::open(kind, &between.shared(), &small()).await;
                between.once(swaps, move |store, batch| async move {
                    begun.notify_one();
                    may_go.notified().await;
                    store.run(Ctx::default(), batch).await
                });
                *noted.lock().unwrap() = Some(tokio::spawn(async move { line.claim(LEASE).await }));
                looked.notified().await;
            }
        });
        let claim = line.claim(LEASE).await.unwrap();
        go.notify_one();
        let other = other.lock().unwrap().take().expect("the other's claim");
        let other = other.await.unwrap().unwrap();
        assert_ne!(claim.is_some(), other.is_some(), "{kind:?}: {claim:?}, {other:?}");
    }
}

/// The store has it from when the write came; its answer may come much later.
#[tokio::test]
async fn a_claim_counts_from_when_its_write_was_sent_and_anew_from_when_a_renewal_was() {
    for kind in BOTH {
        let slow = Slow::new(&(Arc::new(MemoryStore::new()) as StoreRef), true);
        let store: StoreRef = slow.clone();
        let line = Line::open(kind, &store, &small()).await;
        line.push("a").await.unwrap();
        let (lease, term, late) = (Duration::from_secs(20), Duration::from_secs(19), Duration::from_millis(300));
        let begin = Instant::now();
        slow.take_ms([(0, 0), (0, 300)]);
        let claim = line.claim(lease).await.unwrap().unwrap();
        assert_eq!(slow.left(), 0, "{kind:?}");
        let deadline = claim.deadline();
        assert!(deadline >= begin + term && deadline + late <= Instant::now() + term, "{kind:?}");
        assert!(claim.remaining() <= term - late, "{kind:?}");
        let clone = claim.clone();
        let begin = Instant::now();
        slow.take_ms([(0, 300)]);
        claim.renew().await.unwrap();
        let deadline = clone.deadline();
        assert!(deadline >= begin + term && deadline + late <= Instant::now() + term, "{kind:?}");
    }
}

/// Another may have it by then: nobody begins with it.
#[tokio::test]
async fn a_claim_that_is_over_when_its_answer_comes_is_made_again() {
    for kind in BOTH {
        let slow = Slow::new(&(Arc::new(MemoryStore::new()) as StoreRef), true);
        let store: StoreRef = slow.clone();
        let line = Line::open(kind, &store, &small()).await;
        line.push("a").await.unwrap();
        // Longer than a busy machine stands still.
        let lease = Duration::from_secs(1);
        slow.take_ms([(0, 0), (0, 1_000)]);
        let claim = line.claim(lease).await.unwrap().unwrap();
        assert_eq!((claim.attempts(), &claim.item()[..]), (2, &b"a"[..]), "{kind:?}");
        assert!(!claim.remaining().is_zero(), "{kind:?}");
        line.ack(claim.id()).await.unwrap();
        assert_eq!(line.len().await.unwrap(), 0, "{kind:?}");
        // Each time.
        line.push("b").await.unwrap();
        slow.take_ms([(0, 1_000); 8]);
        let error = line.claim(lease).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown), "{kind:?}: {error}");
        slow.take_ms([]);
        assert_eq!(&line.take().await.item()[..], b"b", "{kind:?}: it is given away at once");
    }
}
