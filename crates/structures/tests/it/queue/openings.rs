//! The opening of a next segment: what counts for the limit, what is left behind, and what becomes of a push that could not have one.

use std::sync::Arc;

use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Replies, Reply, Result, StoreExt, StoreRef, Ttl, Verb,
    ambient,
};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;

use crate::queue::between::{Answer, Between, adds, appends, but, links, removes, swaps};
use crate::queue::support::{BOTH, Kind, Line, drain, key, small};
use crate::support::hooked::Hooked;
use crate::support::sieve::Sieve;
use crate::support::slow::Slow;
use crate::table::support::{cost, counting};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// An item that fills a segment.
fn item(n: usize) -> String {
    format!("{n:0250}")
}

/// Half of one: two of them fill a segment.
fn half(n: usize) -> String {
    format!("{n:0130}")
}

/// One who takes, and whose removals of what is used up are never sent: so it stays.
async fn idle_taker(kind: Kind, store: &StoreRef, options: &QueueOptions) -> Line {
    let between = Between::new(store);
    let line = Line::open(kind, &between.shared(), options).await;
    between.refuse(removes, Effect::NotApplied);
    line
}

#[tokio::test]
async fn a_full_stack_has_room_where_its_tail_and_what_lies_below_that_are_used_up() {
    let (store, options) = (memory(), small().bytes_max(3 * 256));
    let line = Line::open(Kind::Stack, &store, &options).await;
    let taker = idle_taker(Kind::Stack, &store, &options).await;
    for n in 0..3 {
        line.push(item(n)).await.unwrap();
    }
    let claims = [taker.take().await, taker.take().await, taker.take().await];
    assert_eq!(line.push("x").await.unwrap_err().kind(), ErrorKind::Full);
    // All but the lowest.
    for claim in &claims[..2] {
        claim.ack().await.unwrap();
    }
    for n in 3..5 {
        line.push(item(n)).await.unwrap();
    }
    assert_eq!(line.push("x").await.unwrap_err().kind(), ErrorKind::Full);
    // Two are in use, one of them by a claim; and the tail is used up from now on.
    assert_eq!(taker.pop().await.unwrap().unwrap(), item(4));
    line.push("y").await.unwrap();
    assert_eq!(line.drain().await, ["y".to_owned(), item(3)]);
    claims[2].release().await.unwrap();
    assert_eq!(line.drain().await, [item(0)]);
}

/// What is used up stays on record until it is removed, so that it does not count for the limit: also where segments hold other numbers of items, and where a claim is open in another.
#[tokio::test]
async fn what_a_stack_has_used_up_leaves_room_whatever_is_pushed_above_it() {
    for is_claimed in [false, true] {
        let (store, options) = (memory(), small().bytes_max(4 * 256));
        let line = Line::open(Kind::Stack, &store, &options).await;
        let taker = idle_taker(Kind::Stack, &store, &options).await;
        for n in 0..3 {
            line.push(item(n)).await.unwrap();
        }
        for _ in 0..3 {
            assert!(taker.pop().await.unwrap().is_some());
        }
        line.push(half(0)).await.unwrap();
        let claim = if is_claimed { Some(taker.take().await) } else { None };
        // Four segments of two each.
        for n in 1..8 {
            line.push(half(n)).await.unwrap_or_else(|error| panic!("claimed: {is_claimed}, after {n}: {error}"));
        }
        assert_eq!(line.push("x").await.unwrap_err().kind(), ErrorKind::Full);
        let from = usize::from(is_claimed);
        assert_eq!(line.drain().await, (from..8).rev().map(half).collect::<Vec<_>>());
        if let Some(claim) = claim {
            claim.ack().await.unwrap();
        }
    }
}

/// A store that keeps to deadlines, as those on the network do: what comes behind its own is not carried out.
fn punctual(inner: &StoreRef) -> StoreRef {
    Sieve::answering(inner, |ctx, _| {
        let is_late = ctx.deadline.is_some_and(|deadline| deadline < ambient::now());
        is_late.then(|| Err(Error::new(ErrorKind::Timeout, "no time is left").effect(Effect::NotApplied)))
    })
}

/// A stack of 20 items that one took, who ends before he removes their segments.
async fn used_up(store: &StoreRef) -> Line {
    let line = Line::open(Kind::Stack, store, &small()).await;
    for n in 0..20 {
        line.push(item(n)).await.unwrap();
    }
    let taker = idle_taker(Kind::Stack, store, &small()).await;
    for _ in 0..20 {
        assert!(taker.pop().await.unwrap().is_some());
    }
    line
}

/// Used up, and there: whoever took it all has ended before he removed it.
#[tokio::test]
async fn a_stack_that_is_only_pushed_to_lets_go_of_what_nobody_removes() {
    let store = punctual(&memory());
    let line = used_up(&store).await;
    let state = key(Kind::Stack, &store, None).await;
    for n in 100..400 {
        line.push(item(n)).await.unwrap();
        let bytes = store.get(state.clone()).await.unwrap().expect("the state").value.len();
        assert!(bytes < 2_500, "{bytes} bytes after {n}");
    }
    assert_eq!(line.drain().await, (100..400).rev().map(item).collect::<Vec<_>>());
    assert_eq!(line.stat().await.segments_lost, 0);
}

/// The server of what was used up hangs: half of the time is left for what the push is about.
#[tokio::test(start_paused = true)]
async fn a_look_at_what_a_stack_has_used_up_that_hangs_does_not_keep_others_from_pushing() {
    let store = memory();
    let _line = used_up(&store).await;
    let slow = Slow::new(&store, true);
    let shared: StoreRef = slow.clone();
    let pusher = Line::open(Kind::Stack, &shared, &small()).await;
    // The append finds the segment full by that; the next batch is the look.
    slow.take_ms([(0, 0), (1_000_000, 0)]);
    let since = tokio::time::Instant::now();
    pusher.push(item(20)).await.unwrap();
    assert_eq!(slow.left(), 0);
    assert!(since.elapsed().as_secs() >= 1, "the look hung for {:?}", since.elapsed());
    pusher.push("more").await.unwrap();
    assert_eq!(pusher.drain().await, ["more".to_owned(), item(20)]);
}

/// Carries a batch out, but for appends to this key, for which the store has no memory.
async fn without_memory(store: StoreRef, batch: Batch, full: Key) -> Replies {
    let mut replies = Replies::new();
    for op in batch {
        if appends(&op) && op.key == full {
            replies.push(Ok(Reply::NotStored));
        } else {
            replies.extend(store.run(Ctx::default(), Batch::from_iter([op])).await);
        }
    }
    replies
}

/// As memcached does that has no memory left for items of that size: others have their own.
#[tokio::test(start_paused = true)]
async fn a_push_that_the_store_refuses_to_a_segment_that_is_full_goes_to_the_next_one() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &small()).await;
        between.refuse(adds, Effect::NotApplied);
        line.push(item(1)).await.unwrap();
        assert_eq!(line.stat().await.segments, 1, "no other could be opened");
        let full = key(kind, &store, Some(0)).await;
        between.answer(move |store, batch| {
            let answer: Answer = Box::pin(without_memory(store.clone(), batch.clone(), full.clone()));
            Some(answer)
        });
        line.push("b").await.unwrap();
        let (mut items, told) = drain(&line).await;
        items.sort();
        assert_eq!((items, told), (vec![item(1), "b".to_owned()], 0), "{kind:?}");
    }
}

/// A segment that may have been opened holds nothing of it.
#[tokio::test(start_paused = true)]
async fn a_push_for_which_no_segment_was_opened_for_certain_had_no_effect() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(10_000).build().unwrap());
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &QueueOptions::default().segment_bytes(4_000)).await;
        between.refuse(swaps, Effect::Unknown);
        line.push([b'1'; 6_000]).await.unwrap();
        let error = line.push([b'2'; 6_000]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        between.heal();
        line.push([b'3'; 6_000]).await.unwrap();
        let (mut items, told) = drain(&line).await;
        items.sort();
        assert_eq!((items, told), (["1", "3"].map(|item| item.repeat(6_000)).to_vec(), 0), "{kind:?}");
    }
}

#[tokio::test]
async fn a_queues_segment_is_not_left_before_its_link_is_there() {
    let store = memory();
    let between = Between::new(&store);
    let line = Line::open(Kind::Queue, &between.shared(), &small()).await;
    between.answer(|store, batch| {
        let link = |op: &Op| {
            links(op).then(|| Err(Error::new(ErrorKind::Unavailable, "it is not sent").effect(Effect::NotApplied)))
        };
        let answer = || -> Answer { Box::pin(but(store.clone(), batch.clone(), link)) };
        batch.iter().any(adds).then(answer)
    });
    for n in 0..4 {
        line.push(item(n)).await.unwrap();
    }
    // The first is the one that is taken from: the state has it on record.
    assert_eq!(line.stat().await.segments, 2);
    between.heal();
    for n in 4..6 {
        line.push(item(n)).await.unwrap();
    }
    assert!(line.stat().await.segments > 2);
    let items = drain(&Line::open(Kind::Queue, &store, &small()).await).await;
    assert_eq!(items, ((0..6).map(item).collect(), 0));
}

/// As memcached does under `-M`, which has no memory left for items of this size: no new one is stored, and of a plain `set` the old one is gone.
async fn out_of_memory(store: StoreRef, batch: Batch) -> Replies {
    let mut replies = Replies::new();
    for op in batch {
        match op.verb {
            Verb::Put { mode: PutMode::Set, .. } => {
                store.delete(op.key).await.unwrap();
                replies.push(full(Effect::Unknown));
            }
            Verb::Put { .. } => replies.push(full(Effect::NotApplied)),
            _ => replies.extend(store.run(Ctx::default(), Batch::from_iter([op])).await),
        }
    }
    replies
}

fn full(effect: Effect) -> Result<Reply> {
    Err(Error::new(ErrorKind::Full, "the store is out of memory").effect(effect))
}

/// What was sent by one who was too late is carried out when the store has no memory left: the state does not tell any more of the segment that it would leave.
#[tokio::test]
async fn an_opener_that_is_too_late_and_refused_takes_no_segment_along() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let one = Line::open(kind, &store, &small()).await;
        one.push(item(0)).await.unwrap();
        let two = Line::open(kind, &between.shared(), &small()).await;
        let first = one.clone();
        between.once(adds, |store, batch| async move {
            // This one opens the next segment.
            first.push(item(2)).await.unwrap();
            out_of_memory(store, batch).await
        });
        two.push(item(1)).await.unwrap();
        between.heal();
        two.push(item(3)).await.unwrap();
        let (mut items, told) = drain(&Line::open(kind, &store, &small()).await).await;
        items.sort();
        assert_eq!((items, told), ((0..4).map(item).collect(), 0), "{kind:?}");
    }
}

/// The links that it left are not those of the segments that it named since: each is one round trip more.
#[tokio::test]
async fn a_link_of_a_state_that_was_set_back_gives_way_to_its_next() {
    let (store, counting) = counting(memory());
    let line = Line::open(Kind::Queue, &store, &small()).await;
    let state = key(Kind::Queue, &store, None).await;
    line.push(item(0)).await.unwrap();
    let old = store.get(state.clone()).await.unwrap().expect("the state").value;
    let mut costs = Vec::new();
    for _ in 0..2 {
        let line = Line::open(Kind::Queue, &store, &small()).await;
        for n in 1..4 {
            costs.push(cost(&counting, line.push(item(n))).await);
        }
        if costs.len() == 3 {
            store.put(state.clone(), PutMode::Set, old.clone(), Ttl::Never).await.unwrap();
        }
    }
    // The first link is that of a segment which both states name.
    assert_eq!(costs, [3, 3, 3, 3, 4, 4]);
    let items = drain(&Line::open(Kind::Queue, &store, &small()).await).await;
    assert_eq!(items, ([0, 1, 1, 2, 3].map(item).to_vec(), 0));
}

#[tokio::test]
async fn a_stack_leaves_as_many_segments_at_once_as_fit_into_a_batch() {
    // It refuses what is more.
    for ops_max in [20, 21, 22, 23] {
        let store = Hooked::with_batches_of(&memory(), ops_max).shared();
        let line = Line::open(Kind::Stack, &store, &small()).await;
        for n in 0..12 {
            line.push(item(n)).await.unwrap();
        }
        let mut claims = Vec::new();
        for _ in 0..12 {
            claims.push(line.take().await);
        }
        for n in 12..16 {
            line.push(item(n)).await.unwrap();
        }
        for claim in &claims {
            claim.release().await.unwrap();
        }
        let (items, told) = drain(&Line::open(Kind::Stack, &store, &small()).await).await;
        assert_eq!((items, told), ((0..16).rev().map(item).collect(), 0), "{ops_max} ops");
    }
}

/// The segment that is taken from is on record, and the tail, too: only what waits between them needs a link.
#[tokio::test]
async fn a_queue_has_a_link_for_each_segment_in_the_middle_and_no_other() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let line = Line::open(Kind::Queue, &store, &small()).await;
    // The manifest, the state, a segment.
    assert_eq!(memory.stats().items, 3);
    for (n, items) in [4, 6, 8].into_iter().enumerate() {
        line.push(item(n)).await.unwrap();
        assert_eq!(memory.stats().items, items, "after {} segments", n + 1);
    }
}
