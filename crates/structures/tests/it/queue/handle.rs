//! Queues and stacks on the memory store: order, claims, leases, limits, loss, many tasks at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, ManualClock, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Queue, QueueOptions, Stack, registry};

use crate::queue::support::{BOTH, Kind, LEASE, Line, key, small, text};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

fn numbered(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|n| format!("item {n:06}")).collect()
}

#[tokio::test]
async fn a_queue_gives_the_oldest_and_a_stack_the_newest_over_many_segments() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &small()).await;
        for item in numbered(0..500) {
            line.push(item).await.unwrap();
        }
        assert_eq!(line.len().await.unwrap(), 500);
        assert!(line.stat().await.segments > 10, "{:?}", line.stat().await);
        let mut expected = numbered(0..500);
        if kind == Kind::Stack {
            expected.reverse();
        }
        assert_eq!(line.drain().await, expected, "{kind:?}");
        assert_eq!((line.len().await.unwrap(), line.stat().await.acknowledged), (0, 500));
    }
}

#[tokio::test]
async fn items_of_any_bytes_and_of_no_bytes_and_no_items_at_all() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &QueueOptions::default()).await;
        line.push_all(std::iter::empty::<&[u8]>()).await.unwrap();
        assert_eq!(line.pop().await.unwrap(), None);
        let items: [&[u8]; 3] = [b"", b"\0\r\n\xff", b""];
        line.push_all(items).await.unwrap();
        let popped = [line.pop().await.unwrap(), line.pop().await.unwrap(), line.pop().await.unwrap()];
        // The same from both ends.
        assert_eq!(popped.map(Option::unwrap).map(|item| item.to_vec()), items);
        assert_eq!(line.pop().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_hundred_thousand_items_pass_through_and_few_keys_stay() {
    // A stack reads its tail for every item: fewer are enough.
    for (kind, count) in [(Kind::Queue, 100_000), (Kind::Stack, 10_000)] {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        let handles = [
            Line::open(kind, &store, &QueueOptions::default()).await,
            Line::open(kind, &store, &QueueOptions::default()).await,
        ];
        handles[0].push_all(numbered(0..count)).await.unwrap();
        assert_eq!(handles[1].len().await.unwrap(), count as u64);
        let mut seen = BTreeSet::new();
        for round in 0..count / 10 {
            let line = &handles[round / 70 % 2];
            let claim = line.take().await;
            claim.ack().await.unwrap();
            assert!(seen.insert(claim.item().clone()));
            // At the same time, so that they travel together.
            let (a, b, c) = tokio::join!(line.pop(), line.pop(), line.pop());
            let (d, e, f) = tokio::join!(line.pop(), line.pop(), line.pop());
            let (g, h, i) = tokio::join!(line.pop(), line.pop(), line.pop());
            for popped in [a, b, c, d, e, f, g, h, i] {
                assert!(seen.insert(popped.unwrap().unwrap()));
            }
        }
        assert_eq!((seen.len(), handles[0].pop().await.unwrap()), (count, None));
        // The manifest, the state, the tail, and what the next calls would remove.
        assert!(memory.stats().items <= 8, "{} items, {kind:?}", memory.stats().items);
        assert_eq!(handles[0].stat().await.acknowledged, count as u64);
    }
}

#[tokio::test]
async fn a_million_items_in_one_call() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &QueueOptions::default()).await;
        line.push_all((0..1_000_000u32).map(u32::to_be_bytes)).await.unwrap();
        assert_eq!(line.len().await.unwrap(), 1_000_000);
        for number in 0..100 {
            let expected = if kind == Kind::Queue { number } else { 999_999 - number };
            assert_eq!(line.pop().await.unwrap().unwrap()[..], u32::to_be_bytes(expected), "{kind:?}");
        }
        assert_eq!(line.len().await.unwrap(), 999_900);
    }
}

#[tokio::test]
async fn keys_do_not_pile_up_while_items_come_and_go() {
    for kind in BOTH {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        let line = Line::open(kind, &store, &small()).await;
        let mut most = 0;
        for round in 0..400 {
            line.push_all(numbered(round * 10..round * 10 + 10)).await.unwrap();
            for _ in 0..10 {
                let claim = line.take().await;
                claim.ack().await.unwrap();
            }
            most = most.max(memory.stats().items);
        }
        assert!(most <= 12, "{most} items, {kind:?}");
        assert_eq!(line.len().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_stack_that_goes_up_and_down_keeps_what_lies_below() {
    let store = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    let mut model = Vec::new();
    let mut next = 0;
    // Up by three segments, down by two, and again: each time what was left half taken is left behind.
    for _ in 0..30 {
        for _ in 0..45 {
            let item = format!("item {next:06}");
            line.push(&item).await.unwrap();
            model.push(item);
            next += 1;
        }
        for _ in 0..31 {
            assert_eq!(line.pop().await.unwrap().map(|item| text(&item)), model.pop());
        }
        assert_eq!(line.len().await.unwrap(), model.len() as u64);
    }
    model.reverse();
    assert_eq!(line.drain().await, model);
}

#[tokio::test]
async fn a_claim_that_is_not_acknowledged_is_given_to_another_when_the_lease_has_run_out() {
    for kind in BOTH {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let [one, two] = [Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await];
        one.push("a").await.unwrap();
        let first = one.claim(Duration::from_secs(10)).await.unwrap().unwrap();
        assert_eq!(first.attempts(), 1);
        clock.advance(Duration::from_secs(9));
        assert!(two.claim(LEASE).await.unwrap().is_none(), "{kind:?}");
        first.renew().await.unwrap();
        clock.advance(Duration::from_secs(9));
        assert!(two.claim(LEASE).await.unwrap().is_none(), "{kind:?}");
        assert_eq!((two.stat().await.ready, two.stat().await.claimed), (0, 1));
        clock.advance(Duration::from_secs(2));
        let second = two.claim(Duration::from_secs(10)).await.unwrap().unwrap();
        assert_eq!((text(second.item()).as_str(), second.attempts()), ("a", 2));
        for error in [first.ack().await, first.release().await, first.renew().await] {
            let error = error.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Fenced, Effect::NotApplied), "{error}");
        }
        // A lease that has run out is still good while nobody else was given the item.
        clock.advance(Duration::from_secs(60));
        second.ack().await.unwrap();
        assert_eq!(one.pop().await.unwrap(), None);
        assert_eq!(one.len().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_poison_item_shows_by_its_attempts() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &small()).await;
        line.push("poison").await.unwrap();
        for attempt in 1..=20 {
            let claim = line.take().await;
            assert_eq!(claim.attempts(), attempt);
            claim.release().await.unwrap();
            assert_eq!((line.stat().await.ready, line.stat().await.claimed), (1, 0));
        }
        let other = Line::open(kind, &memory(), &small()).await;
        assert!(other.claim(LEASE).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn what_is_given_back_comes_first_in_a_queue_and_in_its_place_in_a_stack() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &small()).await;
        line.push_all(["a", "b", "c"]).await.unwrap();
        let [one, two] = [line.take().await, line.take().await];
        two.release().await.unwrap();
        one.release().await.unwrap();
        line.push("d").await.unwrap();
        let expected = if kind == Kind::Queue { ["a", "b", "c", "d"] } else { ["d", "c", "b", "a"] };
        assert_eq!(line.drain().await, expected);
    }
}

#[tokio::test]
async fn claims_are_acknowledged_by_id_and_only_once() {
    let store = memory();
    let queue = Queue::open_or_create(&store, "q").await.unwrap();
    queue.push("a").await.unwrap();
    let id = queue.claim(LEASE).await.unwrap().unwrap().id();
    let other = Queue::open(&store, "q").await.unwrap();
    other.renew(id, LEASE).await.unwrap();
    other.ack(id.to_string().parse().unwrap()).await.unwrap();
    assert_eq!(queue.ack(id).await.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(queue.release(id).await.unwrap_err().kind(), ErrorKind::Fenced);
    // Its marker may still be there: what counts is the claim.
    assert_eq!(queue.renew(id, LEASE).await.unwrap_err().kind(), ErrorKind::Fenced);
    for text in ["", "0", "00000000000000000", "xyz", "-1", "+1"] {
        let error = text.parse::<larder_structures::queue::ClaimId>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{text}");
    }
}

#[tokio::test]
async fn no_more_than_1024_claims_are_open_and_one_more_is_refused_by_name() {
    let store = memory();
    let line = Line::open(Kind::Queue, &store, &QueueOptions::default()).await;
    line.push_all(numbered(0..1_100)).await.unwrap();
    let mut claims = Vec::new();
    for _ in 0..1_024 {
        claims.push(line.take().await);
    }
    let error = line.claim(LEASE).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied));
    assert!(error.to_string().contains("1024"), "{error}");
    // Popping leaves nothing open.
    assert_eq!(text(&line.pop().await.unwrap().unwrap()), "item 001024");
    claims[500].release().await.unwrap();
    assert_eq!(text(line.take().await.item()), "item 000500");
    claims[7].ack().await.unwrap();
    assert_eq!(text(line.take().await.item()), "item 001025");
}

/// A stack gives the newest first: where no more may be open, what was given back, and none that would be one more.
#[tokio::test]
async fn no_more_than_1024_claims_of_a_stack_are_open_though_one_was_given_back_below() {
    let line = Line::open(Kind::Stack, &memory(), &QueueOptions::default()).await;
    line.push_all(numbered(0..1_024)).await.unwrap();
    let mut claims = Vec::new();
    for _ in 0..1_024 {
        claims.push(line.take().await);
    }
    line.push_all(numbered(1_024..1_026)).await.unwrap();
    claims[500].release().await.unwrap();
    let again = line.take().await;
    assert_eq!((again.item(), again.attempts()), (claims[500].item(), 2));
    let error = line.claim(LEASE).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    again.ack().await.unwrap();
    assert_eq!(text(line.take().await.item()), "item 001025");
    assert_eq!(line.stat().await.claimed, 1_024);
}

#[tokio::test]
async fn the_limit_of_bytes_is_named_and_room_comes_back() {
    for kind in BOTH {
        let store = memory();
        let options = small().bytes_max(1_024);
        let line = Line::open(kind, &store, &options).await;
        let mut pushed = Vec::new();
        let error = loop {
            let item = format!("item {:06}", pushed.len());
            match line.push(&item).await {
                Ok(()) => pushed.push(item),
                Err(error) => break error,
            }
            assert!(pushed.len() < 100, "{kind:?} is never full");
        };
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains("1024"), "{error}");
        // So says a fresh handle, with its first push.
        let fresh = Line::open(kind, &store, &options).await;
        assert_eq!(fresh.push("x").await.unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(line.len().await.unwrap(), pushed.len() as u64);
        for _ in 0..pushed.len() {
            let claim = line.take().await;
            assert!(pushed.contains(&text(claim.item())));
            claim.ack().await.unwrap();
        }
        assert_eq!(line.pop().await.unwrap(), None);
        for _ in 0..20 {
            fresh.push("again").await.unwrap();
        }
        assert_eq!(line.drain().await.len(), 20, "{kind:?}");
    }
}

#[tokio::test]
async fn an_item_over_the_limit_is_refused_and_the_largest_is_not() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(10_000).build().unwrap());
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        let largest = vec![b'x'; line.item_bytes_max()];
        assert!(largest.len() > 9_800, "{}", largest.len());
        let error = line.push([&largest[..], b"y"].concat()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(&largest.len().to_string()), "{error}");
        assert_eq!(line.len().await.unwrap(), 0);
        for _ in 0..5 {
            line.push(&largest).await.unwrap();
            line.push("small").await.unwrap();
        }
        assert_eq!(line.len().await.unwrap(), 10);
        assert_eq!(line.drain().await.iter().map(String::len).sum::<usize>(), 5 * (largest.len() + 5), "{kind:?}");
    }
}

#[tokio::test]
async fn wrong_options_and_stores_are_refused_by_name() {
    let store = memory();
    let refused = |options: QueueOptions| {
        let store = store.clone();
        async move { options.open_or_create(&store, "q").await.unwrap_err() }
    };
    for options in [
        Queue::options().segment_bytes(255),
        Queue::options().segment_bytes(u32::MAX),
        Queue::options().bytes_max(100),
        Queue::options().segment_bytes(256).bytes_max(767),
        Queue::options().timeout(Duration::ZERO),
    ] {
        assert_eq!(refused(options).await.kind(), ErrorKind::BadInput);
    }
    let error = refused(Queue::options().segment_bytes(256).bytes_max(767)).await.to_string();
    assert!(error.contains("767") && error.contains("768"), "{error}");
    let queue = Queue::options().segment_bytes(512).open_or_create(&store, "q").await.unwrap();
    for options in [Queue::options().segment_bytes(1_024), Queue::options().bytes_max(1 << 20)] {
        assert_eq!(refused(options).await.kind(), ErrorKind::LayoutMismatch);
    }
    assert_eq!(Stack::open(&store, "q").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    for lease in [Duration::ZERO, Duration::from_nanos(1)] {
        let error = queue.claim(lease).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains("1ms"), "{error}");
    }
    let tiny: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(2_000).build().unwrap());
    assert_eq!(Queue::open_or_create(&tiny, "q").await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_late_push_to_a_segment_that_others_have_left_is_delivered() {
    for kind in BOTH {
        let store = memory();
        let [stale, busy] = [Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await];
        stale.push("first").await.unwrap();
        // While a claim is open, the segment stays; then it is removed.
        for is_removed in [false, true] {
            busy.push_all(["x"; 3]).await.unwrap();
            let held = if is_removed { None } else { Some(busy.take().await) };
            for item in numbered(0..60) {
                busy.push(item).await.unwrap();
            }
            let drained = busy.drain().await.len();
            assert!(drained >= 60, "{drained}");
            stale.push("late").await.unwrap();
            if let Some(held) = held {
                held.ack().await.unwrap();
            }
            let rest = busy.drain().await;
            assert_eq!(rest, ["late"], "{kind:?}, removed: {is_removed}");
        }
        assert_eq!(busy.len().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_lost_segment_is_told_once_and_taking_goes_on_behind_it() {
    for kind in BOTH {
        let store = memory();
        let line = Line::open(kind, &store, &small()).await;
        for item in numbered(0..200) {
            line.push(item).await.unwrap();
        }
        let before = line.stat().await;
        store.delete(key(kind, &store, Some(3)).await).await.unwrap();
        assert_eq!(line.stat().await.segments_missing, 1);
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::Lost);
        let (mut items, mut losses) = (Vec::new(), 0);
        loop {
            match line.pop().await {
                Ok(Some(item)) => items.push(text(&item)),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
                    losses += 1;
                }
            }
        }
        assert_eq!(losses, 1, "{kind:?}");
        // One segment's worth is missing, and the rest is in order.
        let missing = before.ready as usize - items.len();
        assert!((5..=20).contains(&missing), "{missing} of {}", before.ready);
        if kind == Kind::Stack {
            items.reverse();
        }
        assert!(items.is_sorted());
        let after = line.stat().await;
        assert_eq!((after.segments_missing, after.segments_lost), (0, 1));
        line.push("on").await.unwrap();
        assert_eq!(line.drain().await, ["on"]);
    }
}

#[tokio::test]
async fn a_lost_tail_is_told_once_whoever_finds_it() {
    for kind in BOTH {
        for consumer_first in [true, false] {
            let store = memory();
            let line = Line::open(kind, &store, &small()).await;
            line.push("a").await.unwrap();
            store.delete(key(kind, &store, Some(0)).await).await.unwrap();
            if consumer_first {
                assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost, "{kind:?}");
                assert_eq!(line.pop().await.unwrap(), None, "{kind:?}");
            }
            line.push("b").await.unwrap();
            if !consumer_first {
                let fresh = Line::open(kind, &store, &small()).await;
                assert_eq!(fresh.claim(LEASE).await.unwrap_err().kind(), ErrorKind::Lost, "{kind:?}");
            }
            assert_eq!(line.drain().await, ["b"], "{kind:?}");
            assert_eq!(line.stat().await.segments_lost, 1);
        }
    }
}

#[tokio::test]
async fn a_lost_or_rolled_back_state_is_told_to_everybody() {
    for kind in BOTH {
        let store = memory();
        let line = Line::open(kind, &store, &small()).await;
        let state = key(kind, &store, None).await;
        let old = store.get(state.clone()).await.unwrap().unwrap().value;
        line.push("a").await.unwrap();
        assert!(line.pop().await.unwrap().is_some());
        let put = larder_core::PutMode::Set;
        store.put(state.clone(), put, old, larder_core::Ttl::Never).await.unwrap();
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::RolledBack);
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::RolledBack);
        store.delete(state).await.unwrap();
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(line.len().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(Line::try_open(kind, &store, &small()).await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test]
async fn a_drop_leaves_no_key() {
    for kind in BOTH {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        let line = Line::open(kind, &store, &small()).await;
        for item in numbered(0..100) {
            line.push(item).await.unwrap();
        }
        line.pop().await.unwrap();
        let dropped = registry::drop_structure(&store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap();
        assert!(dropped.is_some());
        assert_eq!(memory.stats().items, 0, "{kind:?}");
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_two_handles_lose_and_repeat_nothing() {
    for kind in BOTH {
        let store = memory();
        let handles = [Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await];
        let tasks: Vec<_> = (0..8usize)
            .map(|task| {
                let line = handles[task % 2].clone();
                tokio::spawn(async move {
                    let mut taken = Vec::new();
                    for n in 0..150 {
                        line.push(format!("{task} {n:04}")).await.unwrap();
                        if let Some(claim) = line.claim(LEASE).await.unwrap() {
                            claim.ack().await.unwrap();
                            taken.push(text(claim.item()));
                        }
                    }
                    taken
                })
            })
            .collect();
        let mut times: BTreeMap<String, u32> = BTreeMap::new();
        for task in tasks {
            for item in task.await.unwrap() {
                *times.entry(item).or_default() += 1;
            }
        }
        for item in handles[0].drain().await {
            *times.entry(item).or_default() += 1;
        }
        assert_eq!(times.len(), 1_200, "{kind:?}");
        times.retain(|_, times| *times > 1);
        assert!(times.is_empty(), "{kind:?}: {times:?}");
        assert_eq!(handles[1].stat().await.acknowledged, 1_200);
        assert_eq!(handles[1].stat().await.segments_lost, 0);
    }
}

#[tokio::test]
async fn segments_that_were_removed_behind_an_open_claim_are_not_missing() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &small()).await;
        for item in numbered(0..30) {
            line.push(item).await.unwrap();
        }
        let held = line.take().await;
        for item in numbered(30..100) {
            line.push(item).await.unwrap();
        }
        assert_eq!(line.drain().await.len(), 99);
        for _ in 0..4 {
            line.push("x").await.unwrap();
            line.pop().await.unwrap();
        }
        assert_eq!((line.len().await.unwrap(), line.stat().await.segments_missing), (1, 0), "{kind:?}");
        held.ack().await.unwrap();
        assert_eq!(line.len().await.unwrap(), 0);
    }
}

/// Several producers, one consumer: what each pushed comes in its order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_keeps_the_order_of_each_producer() {
    let store = memory();
    let consumer = Line::open(Kind::Queue, &store, &small()).await;
    let producers: Vec<_> = (0..4usize)
        .map(|producer| {
            let store = store.clone();
            tokio::spawn(async move {
                let line = Line::open(Kind::Queue, &store, &small()).await;
                for n in 0..200 {
                    line.push(format!("{producer} {n:04}")).await.unwrap();
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    let mut last: BTreeMap<String, String> = BTreeMap::new();
    for item in consumer.drain().await {
        let (producer, n) = item.split_once(' ').unwrap();
        let before = last.insert(producer.to_owned(), n.to_owned());
        assert!(before.is_none_or(|before| before.as_str() < n), "{item}");
    }
    assert_eq!(last.values().filter(|last| *last == "0199").count(), 4);
}

#[tokio::test]
async fn a_caller_that_is_dropped_midway_leaves_nothing_lost_or_done_twice() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &small()).await;
        for n in 0..50 {
            let push = tokio::time::timeout(Duration::ZERO, line.push(format!("{n:03}")));
            _ = push.await;
            let claim = tokio::time::timeout(Duration::ZERO, line.claim(LEASE)).await;
            if let Ok(Ok(Some(claim))) = claim {
                claim.release().await.unwrap();
            }
        }
        line.push("end").await.unwrap();
        let items = line.drain().await;
        let unique: BTreeSet<&String> = items.iter().collect();
        assert_eq!(unique.len(), items.len(), "{items:?}");
        assert!(unique.contains(&"end".to_owned()));
    }
}

/// Four wait, on two handles; each push is one waiter's, and who waits for nothing is told so in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_wait_each_gets_an_item_of_its_own_and_the_last_gets_none() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let handles = [Queue::open_or_create(&store, "q").await.unwrap(), Queue::open(&store, "q").await.unwrap()];
    let waiters: Vec<_> = (0..5)
        .map(|n| {
            let queue = handles[n % 2].clone();
            tokio::spawn(async move { queue.pop_within(Duration::from_secs(3)).await.unwrap() })
        })
        .collect();
    for item in ["a", "b", "c", "d"] {
        tokio::time::sleep(Duration::from_millis(50)).await;
        handles[0].push(item).await.unwrap();
    }
    let mut got = Vec::new();
    for waiter in waiters {
        got.push(waiter.await.unwrap());
    }
    got.sort();
    let item = |item: &'static str| Some(bytes::Bytes::from_static(item.as_bytes()));
    assert_eq!(got, [None, item("a"), item("b"), item("c"), item("d")]);
    assert_eq!(handles[1].len().await.unwrap(), 0);
}

/// A lease that runs out changes nothing that could be watched: the next look finds it.
#[tokio::test]
async fn a_waiting_claim_gets_what_a_dead_consumer_left() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let stack = Stack::open_or_create(&store, "s").await.unwrap();
    stack.push("a").await.unwrap();
    let dead = stack.claim(Duration::from_millis(400)).await.unwrap().unwrap();
    let again = stack.claim_within(Duration::from_secs(60), Duration::from_secs(20)).await.unwrap().unwrap();
    assert_eq!((again.item(), again.attempts()), (dead.item(), 2));
    assert_eq!(
        stack.claim_within(Duration::ZERO, Duration::from_secs(20)).await.unwrap_err().kind(),
        ErrorKind::BadInput
    );
}
