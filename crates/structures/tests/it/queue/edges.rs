//! Queues and stacks where figures, limits and ends of claims meet: what healthy clients see at the edges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{
    Batch, Ctx, Effect, ErrorKind, Key, Op, Profile, PutMode, Reply, Run, Store, StoreExt, StoreRef, Ttl, Verb,
};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Queue, QueueOptions, registry};

use crate::queue::support::{BOTH, Kind, LEASE, Line, key, small};
use crate::table::support::counting;

/// Counts round trips, lets others go first, and refuses appends when told to.
#[derive(Debug)]
struct Watched {
    inner: Arc<MemoryStore>,
    batches: AtomicU64,
    refuses_appends: AtomicBool,
}

impl Watched {
    fn new() -> Arc<Watched> {
        Watched::over(MemoryStore::new())
    }

    fn over(inner: MemoryStore) -> Arc<Watched> {
        Arc::new(Watched {
            inner: Arc::new(inner),
            batches: AtomicU64::new(0),
            refuses_appends: AtomicBool::new(false),
        })
    }

    fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    fn take_batches(&self) -> u64 {
        self.batches.swap(0, Ordering::Relaxed)
    }
}

impl Store for Watched {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        Run::pending(async move {
            tokio::task::yield_now().await;
            let is_refused = |op: &Op| {
                self.refuses_appends.load(Ordering::Relaxed)
                    && matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
            };
            batch.iter().map(|op| if is_refused(op) { Ok(Reply::NotStored) } else { self.inner.apply(op) }).collect()
        })
    }
}

#[tokio::test]
async fn figures_and_a_drop_cost_what_is_there_and_not_what_was() {
    for kind in BOTH {
        let watched = Watched::new();
        let store = watched.shared();
        let line = Line::open(kind, &store, &small()).await;
        line.push([1; 100]).await.unwrap();
        let held = if kind == Kind::Queue { Some(line.take().await) } else { None };
        for _ in 0..1_000 {
            line.push([2; 100]).await.unwrap();
            line.pop().await.unwrap().unwrap();
        }
        watched.take_batches();
        assert_eq!(line.len().await.unwrap(), 1, "{kind:?}");
        let took = watched.take_batches();
        assert!(took <= 4, "{kind:?}: {took} round trips");
        drop(held);
        registry::drop_structure(&store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap();
        let took = watched.take_batches();
        assert!(took <= 8, "{kind:?}: {took} round trips");
    }
}

#[tokio::test]
async fn a_deep_stack_is_counted_and_dropped_with_all_its_segments() {
    let watched = Watched::new();
    let store = watched.shared();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    // Every other time some segments come and go: their numbers are missing afterwards.
    for n in 0..60 {
        line.push([1; 250]).await.unwrap();
        for _ in 0..n % 4 {
            line.push([2; 250]).await.unwrap();
            line.push([2; 250]).await.unwrap();
            line.pop().await.unwrap().unwrap();
            line.pop().await.unwrap().unwrap();
        }
    }
    assert_eq!(line.len().await.unwrap(), 60);
    assert_eq!(line.stat().await.segments_missing, 0);
    registry::drop_structure(&store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap();
    assert_eq!(watched.inner.stats().items, 0);
}

#[tokio::test]
async fn a_long_claim_at_the_front_is_no_loss() {
    let store = Watched::new().shared();
    let queue = Line::open(Kind::Queue, &store, &small()).await;
    for n in 0..200 {
        queue.push(format!("item {n:020}")).await.unwrap();
    }
    let held = queue.take().await;
    for _ in 0..150 {
        queue.take().await.ack().await.unwrap();
    }
    assert_eq!(queue.len().await.unwrap(), 50);
    held.ack().await.unwrap();
    assert_eq!(queue.len().await.unwrap(), 49);
}

#[tokio::test]
async fn two_claims_at_once_after_a_lease_ran_out_are_settled_at_once() {
    let watched = Watched::new();
    let queue = Queue::open_or_create(&watched.shared(), "q").await.unwrap();
    queue.push_all(["a", "b"]).await.unwrap();
    let a = queue.claim(Duration::from_millis(500)).await.unwrap().unwrap();
    let b = queue.claim(LEASE).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    watched.take_batches();
    let (acked, one, two) = tokio::join!(b.ack(), queue.claim(LEASE), queue.claim(LEASE));
    acked.unwrap();
    let mut given: Vec<_> = [one.unwrap(), two.unwrap()].into_iter().flatten().collect();
    assert_eq!(given.len(), 1);
    assert_eq!(given.pop().unwrap().item(), a.item());
    let took = watched.take_batches();
    assert!(took <= 8, "{took} round trips");
}

#[tokio::test]
async fn an_empty_one_has_room_however_few_segments_it_may_have() {
    for kind in BOTH {
        for segments in 3..=5 {
            for size in [10, 300] {
                let store = Watched::new().shared();
                let line = Line::open(kind, &store, &small().bytes_max(256 * segments)).await;
                for round in 0..10 {
                    let mut pushed = 0;
                    let error = loop {
                        match line.push(vec![b'x'; size]).await {
                            Ok(()) => pushed += 1,
                            Err(error) => break error,
                        }
                        assert!(pushed < 100, "{kind:?} is never full");
                    };
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    assert!(
                        pushed > 0,
                        "{kind:?} of {segments} segments, items of {size}: full when empty, round {round}"
                    );
                    assert_eq!(line.drain().await.len(), pushed);
                    assert!(line.stat().await.segments <= 2);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_claim_that_is_over_is_not_renewed() {
    for kind in BOTH {
        let line = Line::open(kind, &Watched::new().shared(), &small()).await;
        line.push("a").await.unwrap();
        let first = line.take().await;
        first.renew().await.unwrap();
        first.release().await.unwrap();
        assert_eq!(first.renew().await.unwrap_err().kind(), ErrorKind::Fenced);
        let second = line.take().await;
        assert_eq!(first.renew().await.unwrap_err().kind(), ErrorKind::Fenced);
        second.ack().await.unwrap();
        assert_eq!(second.renew().await.unwrap_err().kind(), ErrorKind::Fenced);
    }
}

#[tokio::test]
async fn a_store_that_refuses_appends_for_a_while_closes_no_empty_segments() {
    for kind in BOTH {
        let watched = Watched::new();
        let line = Line::open(kind, &watched.shared(), &small()).await;
        for first in [&[][..], &["a"]] {
            line.push_all(first).await.unwrap();
            watched.refuses_appends.store(true, Ordering::Relaxed);
            let error = line.push("b").await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
            watched.refuses_appends.store(false, Ordering::Relaxed);
            line.push("c").await.unwrap();
            let stat = line.stat().await;
            assert_eq!((stat.segments, stat.segments_missing), (1, 0), "{kind:?}");
            assert_eq!(line.drain().await.len(), first.len() + 1, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn a_push_that_the_store_has_no_memory_for_is_full_at_once() {
    for kind in BOTH {
        let (store, counting) = counting(Arc::new(MemoryStore::builder().bytes_max(1 << 20).build().unwrap()));
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        line.push("a").await.unwrap();
        let mut fillers = Vec::new();
        for bytes in [64 * 1024, 1024, 16] {
            loop {
                let key = Key::new(format!("filler{}", fillers.len())).unwrap();
                if store.put(key.clone(), PutMode::Add, vec![0; bytes], Ttl::Never).await.is_err() {
                    break;
                }
                fillers.push(key);
            }
        }
        let mut pushed = 1;
        let (before, error) = loop {
            let before = counting.counts();
            match line.push([b'x'; 100]).await {
                Ok(()) => pushed += 1,
                Err(error) => break (before, error),
            }
            assert!(pushed < 200, "{kind:?} is never full");
        };
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
        assert_eq!(counting.counts().since(&before).round_trips, 1, "{kind:?}");
        for filler in fillers {
            store.delete(filler).await.unwrap();
        }
        line.push("b").await.unwrap();
        assert_eq!(line.drain().await.len(), pushed + 1, "{kind:?}");
    }
}

#[tokio::test]
async fn a_claim_that_does_not_fit_the_state_fails_alone() {
    let watched = Watched::over(MemoryStore::builder().value_bytes_max(4_300).build().unwrap());
    let queue = Queue::open_or_create(&watched.shared(), "q").await.unwrap();
    queue.push_all((0..1_000).map(|n: u32| n.to_string())).await.unwrap();
    let mut held = Vec::new();
    let error = loop {
        match queue.claim(LEASE).await {
            Ok(claim) => held.push(claim.unwrap()),
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(held.len() > 100, "{}", held.len());
    // The first is under way alone. The others travel in one write, and are more than it makes room for.
    let claim = || {
        let queue = queue.clone();
        tokio::spawn(async move { queue.claim(LEASE).await })
    };
    let (one, two) = (held[1].clone(), held[0].clone());
    let acked = tokio::spawn(async move { one.ack().await });
    let released = tokio::spawn(async move { two.release().await });
    let claims: Vec<_> = (0..8).map(|_| claim()).collect();
    acked.await.unwrap().unwrap();
    released.await.unwrap().unwrap();
    for claim in claims {
        assert_eq!(claim.await.unwrap().unwrap_err().kind(), ErrorKind::Full);
    }
    assert!(queue.claim(LEASE).await.unwrap().is_some());
}

#[tokio::test]
async fn a_stack_has_room_for_what_was_taken_before_anybody_takes_again() {
    let store = Watched::new().shared();
    let line = Line::open(Kind::Stack, &store, &small().bytes_max(4 * 256)).await;
    let mut held = Vec::new();
    for _ in 0..8 {
        line.push(vec![b'x'; 130]).await.unwrap();
    }
    // All of the upper segments is claimed, and acknowledged by another, who does not take again: they stay on record, used up.
    while line.stat().await.ready > 2 {
        held.push(line.take().await);
    }
    let other = Line::open(Kind::Stack, &store, &small().bytes_max(4 * 256)).await;
    for claim in &held {
        other.ack(claim.id()).await.unwrap();
    }
    // One segment is in use: there is room for three more, whoever pushes.
    let mut pushed = 0;
    while pushed < 5 {
        line.push(vec![b'y'; 130]).await.unwrap_or_else(|error| panic!("after {pushed}: {error}"));
        pushed += 1;
    }
    assert_eq!(line.drain().await.len(), 7);
}

#[tokio::test]
async fn what_is_claimed_can_be_given_back_and_acknowledged_by_anybody_at_the_states_very_limit() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(4_300).build().unwrap());
        let line = Line::open(kind, &store, &small().segment_bytes(2_000)).await;
        for n in 0..1_000 {
            line.push(n.to_string()).await.unwrap();
        }
        let mut held = Vec::new();
        let error = loop {
            match line.claim(LEASE).await {
                Ok(claim) => held.push(claim.unwrap()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        // Each is another writer, which the state notes.
        for (n, claim) in held.iter().take(20).enumerate() {
            let other = Line::open(kind, &store, &small().segment_bytes(2_000)).await;
            match (&other, n % 4) {
                (_, 3) => other.ack(claim.id()).await.unwrap(),
                (Line::Queue(queue), _) => queue.release(claim.id()).await.unwrap(),
                (Line::Stack(stack), _) => stack.release(claim.id()).await.unwrap(),
            }
        }
    }
}

/// Why a claim reads before it writes: what it would leave that took the next item by guess, before it was pushed, is what a loss looks like.
#[tokio::test]
async fn a_claim_of_an_item_that_is_not_there_yet_would_be_a_loss_to_the_others() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let (one, other) = (Queue::open_or_create(&store, "q").await.unwrap(), Queue::open(&store, "q").await.unwrap());
    one.push("a").await.unwrap();
    let segment = key(Kind::Queue, &store, Some(0)).await;
    let of_one_item = store.get(segment.clone()).await.unwrap().expect("the segment").value;
    one.push("b").await.unwrap();
    let claims = [one.claim(LEASE).await.unwrap().unwrap(), one.claim(LEASE).await.unwrap().unwrap()];
    assert_eq!(claims.each_ref().map(|claim| claim.item().to_vec()), [b"a", b"b"]);
    // The state says that two were taken; the segment has one, as it would have had.
    store.put(segment, PutMode::Set, of_one_item, Ttl::Never).await.unwrap();
    assert_eq!(other.claim(LEASE).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Why the next segment is added first, and named in the state with another round trip: what one batch would leave of which only the naming arrived is what a loss looks like.
#[tokio::test]
async fn a_segment_that_is_named_before_it_is_added_would_be_a_loss() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let line = Line::open(kind, &store, &small()).await;
        let mut pushed = 0;
        // The push that finds the first segment full lands there, and opens the second: nothing is in that yet.
        while line.stat().await.segments < 2 {
            line.push(format!("item {pushed:04}")).await.unwrap();
            pushed += 1;
        }
        store.delete(key(kind, &store, Some(1)).await).await.unwrap();
        let (mut taken, mut losses) = (0, 0);
        loop {
            match line.pop().await {
                Ok(Some(_)) => taken += 1,
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost, "{kind:?}: {error}");
                    losses += 1;
                }
            }
        }
        assert_eq!((taken, losses), (pushed, 1), "{kind:?}");
    }
}

/// Why an acknowledgement is conditional on the state, which a handle has to read that has not written it last: what a blind write by what it knew would leave has forgotten the
/// claims of others, whose items are given away again.
#[tokio::test]
async fn an_acknowledgement_that_does_not_look_would_give_the_items_of_others_away() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let (one, other) = (Queue::open_or_create(&store, "q").await.unwrap(), Queue::open(&store, "q").await.unwrap());
    one.push_all(["a", "b"]).await.unwrap();
    let first = one.claim(LEASE).await.unwrap().unwrap();
    let state = key(Kind::Queue, &store, None).await;
    let seen = store.get(state.clone()).await.unwrap().expect("the state").value;
    let second = other.claim(LEASE).await.unwrap().unwrap();
    assert_eq!((&first.item()[..], &second.item()[..]), (&b"a"[..], &b"b"[..]));
    let of_both = store.get(state.clone()).await.unwrap().expect("the state").value;
    store.put(state.clone(), PutMode::Set, seen, Ttl::Never).await.unwrap();
    let third = Queue::open(&store, "q").await.unwrap().claim(LEASE).await.unwrap().unwrap();
    assert_eq!(third.item(), second.item(), "two have it, and no lease has run out");
    // As it is: both are done with, once.
    store.put(state, PutMode::Set, of_both, Ttl::Never).await.unwrap();
    first.ack().await.unwrap();
    second.ack().await.unwrap();
    assert_eq!(one.len().await.unwrap(), 0);
}
