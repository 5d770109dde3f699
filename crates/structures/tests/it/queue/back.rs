//! Segments that a server set back to an older state while the queue's or stack's state, which lies on another, stays as it is.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Effect, ErrorKind, Key, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;

use crate::queue::between::{Between, swaps};
use crate::queue::support::{BOTH, Kind, LEASE, Line, drain, key, small, text};
use crate::table::support::Evicting;

const PUSHED: usize = 8;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn value(store: &StoreRef, key: &Key) -> Bytes {
    store.get(key.clone()).await.unwrap().expect("a segment").value
}

async fn set_back(store: &StoreRef, key: &Key, value: Bytes) {
    store.put(key.clone(), PutMode::Set, value, Ttl::Never).await.unwrap();
}

/// `PUSHED` items, one a push, of which some were taken; then the segment has only the first of them, and others are pushed.
struct Case {
    kind: Kind,
    taken: usize,
    there: usize,
    pushed: usize,
}

impl Case {
    async fn run(&self, is_fresh: bool) {
        let &Case { kind, taken, there, pushed } = self;
        let what =
            format!("{kind:?}, {taken} taken, {there} there, {pushed} pushed since, by a fresh handle: {is_fresh}");
        let store = memory();
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        let segment = key(kind, &store, Some(0)).await;
        let mut values = vec![value(&store, &segment).await];
        for at in 0..PUSHED {
            line.push(format!("old {at}")).await.unwrap();
            values.push(value(&store, &segment).await);
        }
        let mut before = Vec::new();
        for _ in 0..taken {
            before.push(text(&line.pop().await.unwrap().unwrap()));
        }
        set_back(&store, &segment, values[there].clone()).await;
        for at in 0..pushed {
            line.push(format!("new {at}")).await.unwrap();
        }
        let other = Line::open(kind, &store, &QueueOptions::default()).await;
        let taker = if is_fresh { &other } else { &line };
        let (items, told) = drain(taker).await;
        let times = |item: &String| items.iter().filter(|other| *other == item).count();
        for at in 0..pushed {
            assert_eq!(times(&format!("new {at}")), 1, "{what}: {items:?}");
        }
        for at in (0..there).map(|at| format!("old {at}")).filter(|old| !before.contains(old)) {
            // Who has the old content at hand gives what is gone out of it, and looks for the rest then.
            assert!(times(&at) == 1 || (!is_fresh && times(&at) == 2), "{what}: {items:?}");
        }
        let repeated = before.iter().map(times).sum::<usize>();
        let end = match kind {
            Kind::Queue => taken,
            Kind::Stack if taken == 0 => 0,
            Kind::Stack => PUSHED,
        };
        if is_fresh {
            let lost = end.saturating_sub(there);
            assert_eq!(told, usize::from(lost > 0), "{what}: {items:?}");
            assert!(repeated <= lost.saturating_sub(1), "{what}: {items:?}");
        } else {
            assert!(told <= 1 && repeated < PUSHED - there + 1, "{what}: {items:?}");
        }
        assert_eq!(taker.stat().await.segments_lost, told as u64, "{what}");
        assert_eq!(taker.len().await.unwrap(), 0, "{what}");
    }
}

#[tokio::test]
async fn what_is_pushed_to_a_segment_that_was_set_back_is_delivered() {
    for kind in BOTH {
        for (taken, there) in (0..=PUSHED).flat_map(|taken| (0..=PUSHED).map(move |there| (taken, there))) {
            for pushed in [0, 1, 3, PUSHED - there, PUSHED + 1] {
                let case = Case { kind, taken, there, pushed };
                case.run(true).await;
                case.run(false).await;
            }
        }
    }
}

/// The same bytes again are another item.
#[tokio::test]
async fn equal_items_are_told_apart() {
    for kind in BOTH {
        let store = memory();
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        let segment = key(kind, &store, Some(0)).await;
        let empty = value(&store, &segment).await;
        line.push("same").await.unwrap();
        assert!(line.pop().await.unwrap().is_some());
        set_back(&store, &segment, empty).await;
        line.push("same").await.unwrap();
        assert_eq!(drain(&line).await, (vec!["same".to_owned()], 1), "{kind:?}");
    }
}

#[tokio::test]
async fn claims_of_what_is_gone_are_void_and_the_others_stay() {
    let store = memory();
    let line = Line::open(Kind::Queue, &store, &QueueOptions::default()).await;
    let segment = key(Kind::Queue, &store, Some(0)).await;
    line.push("a").await.unwrap();
    line.push("b").await.unwrap();
    let of_two = value(&store, &segment).await;
    line.push("c").await.unwrap();
    let (a, b, c) = (line.take().await, line.take().await, line.take().await);
    set_back(&store, &segment, of_two).await;
    line.push_all(["x", "y"]).await.unwrap();
    let other = Line::open(Kind::Queue, &store, &QueueOptions::default()).await;
    assert_eq!(other.len().await.unwrap_err().kind(), ErrorKind::Lost);
    let error = other.claim(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    a.ack().await.unwrap();
    b.release().await.unwrap();
    assert_eq!(c.ack().await.unwrap_err().kind(), ErrorKind::Fenced);
    let stat = other.stat().await;
    assert_eq!((stat.items_lost, stat.segments_lost, stat.ready, stat.claimed), (1, 1, 3, 0));
    assert_eq!(drain(&other).await, (["b", "x", "y"].map(str::to_owned).to_vec(), 0));
}

/// A stack notes in a segment that it leaves what was taken of it: of what stood there before it was set back.
#[tokio::test]
async fn a_note_of_what_was_taken_does_not_hold_for_what_was_pushed_since() {
    let store = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    let segment = key(Kind::Stack, &store, Some(0)).await;
    for at in 0..4 {
        line.push(format!("old {at}")).await.unwrap();
    }
    let of_four = value(&store, &segment).await;
    line.push_all(["old 4", "old 5"]).await.unwrap();
    for _ in 0..2 {
        assert!(line.pop().await.unwrap().is_some());
    }
    set_back(&store, &segment, of_four).await;
    let new: Vec<String> = (0..60).map(|at| format!("new {at}")).collect();
    for item in &new {
        line.push(item).await.unwrap();
    }
    assert!(line.stat().await.segments > 2);
    let other = Line::open(Kind::Stack, &store, &small()).await;
    let (items, told) = drain(&other).await;
    let old = (0..4).map(|at| format!("old {at}"));
    let all: Vec<String> = old.chain(new).rev().collect();
    assert_eq!((items, told), (all, 1));
}

/// The other way round: the state alone is set back, to where it did not name the segment that is pushed to.
#[tokio::test]
async fn a_producer_is_told_of_a_state_that_went_back() {
    for kind in BOTH {
        for is_written_since in [false, true] {
            let store = memory();
            let line = Line::open(kind, &store, &small()).await;
            let state = key(kind, &store, None).await;
            line.push("first").await.unwrap();
            let old = value(&store, &state).await;
            while line.stat().await.segments < 2 {
                line.push([1; 100]).await.unwrap();
            }
            set_back(&store, &state, old).await;
            if is_written_since {
                // More often than it was before: only the segment tells.
                let other = Line::open(kind, &store, &small()).await;
                while other.stat().await.segments < 2 {
                    other.push([2; 100]).await.unwrap();
                }
                while other.pop().await.unwrap().is_some() {}
            }
            let mut pushed = 0;
            let error = loop {
                match line.push([3; 20]).await {
                    Ok(()) => pushed += 1,
                    Err(error) => break error,
                }
                assert!(pushed < 20, "{kind:?}, written since: {is_written_since}");
            };
            assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
            if !is_written_since {
                assert_eq!(line.push("more").await.unwrap_err().kind(), ErrorKind::RolledBack);
            }
        }
    }
}

/// Pushes and takes in the first segment so many times, and loses it: the push behind that finds out.
async fn lose_the_tail(kind: Kind, store: &StoreRef, times: usize) {
    let line = Line::open(kind, store, &QueueOptions::default()).await;
    for _ in 0..times {
        line.push("a").await.unwrap();
        assert!(line.pop().await.unwrap().is_some());
    }
    store.delete(key(kind, store, Some(0)).await).await.unwrap();
    line.push("behind").await.unwrap();
    assert_eq!(line.stat().await.segments_missing, 1, "{kind:?}");
}

/// Losses are counted anew from where the state went back to: what a consumer has heard of before is not what was found since, though the state was written more often by then than he knew.
#[tokio::test(start_paused = true)]
async fn a_loss_that_was_found_since_the_state_went_back_unseen_is_told() {
    // The state says that he has heard of the first; or it could not be noted, and he looks before there is the next.
    for (kind, is_noted) in BOTH.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
        let what = format!("{kind:?}, noted: {is_noted}");
        let store = memory();
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &QueueOptions::default()).await;
        let [state, segment] = [key(kind, &store, None).await, key(kind, &store, Some(0)).await];
        let old = [value(&store, &state).await, value(&store, &segment).await];
        lose_the_tail(kind, &store, 1).await;
        if !is_noted {
            between.refuse(swaps, Effect::NotApplied);
        }
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost, "{what}");
        between.heal();
        assert_eq!(line.pop().await.unwrap().as_deref(), Some(&b"behind"[..]), "{what}");
        for (key, old) in [&state, &segment].into_iter().zip(old) {
            set_back(&store, key, old).await;
        }
        if !is_noted {
            let other = Line::open(kind, &store, &QueueOptions::default()).await;
            for _ in 0..8 {
                other.push("b").await.unwrap();
                assert!(other.pop().await.unwrap().is_some());
            }
            assert_eq!(line.pop().await.unwrap(), None, "{what}");
        }
        lose_the_tail(kind, &store, 8).await;
        assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost, "{what}");
        assert_eq!(line.pop().await.unwrap().as_deref(), Some(&b"behind"[..]), "{what}");
        assert_eq!(line.pop().await.unwrap(), None, "{what}");
    }
}

/// What is left of links that a state did not know any more is not taken for what it named since.
#[tokio::test]
async fn segments_that_were_named_since_the_state_went_back_are_found() {
    for kind in BOTH {
        let store = memory();
        let line = Line::open(kind, &store, &small()).await;
        let state = key(kind, &store, None).await;
        line.push("first").await.unwrap();
        let old = value(&store, &state).await;
        for _ in 0..30 {
            line.push([1; 100]).await.unwrap();
        }
        assert!(line.stat().await.segments > 4);
        set_back(&store, &state, old).await;
        let other = Line::open(kind, &store, &small()).await;
        let new: Vec<String> = (0..30).map(|at| format!("new {at:0100}")).collect();
        for item in &new {
            other.push(item).await.unwrap();
        }
        let (items, told) = drain(&Line::open(kind, &store, &small()).await).await;
        assert_eq!(told, 0, "{kind:?}");
        let found: Vec<&String> = items.iter().filter(|item| item.starts_with("new")).collect();
        assert_eq!(found.len(), new.len(), "{kind:?}: {items:?}");
    }
}

/// Nothing of it is there for certain, so nothing of it counts as taken; and then it is evicted.
#[tokio::test]
async fn a_segment_that_was_set_back_and_is_evicted_then_is_told_as_lost() {
    for there in 1..=2 {
        let store: StoreRef = Arc::new(Evicting(memory()));
        let line = Line::open(Kind::Queue, &store, &small()).await;
        let segment = key(Kind::Queue, &store, Some(0)).await;
        let mut values = vec![value(&store, &segment).await];
        while line.stat().await.segments < 2 {
            line.push(format!("old {:06}", values.len())).await.unwrap();
            values.push(value(&store, &segment).await);
        }
        // Of what was taken the state knows what it was 1, 2, 4 and 8 pushes before the last; their number hangs on the bytes that the drawn numbers take.
        values.dedup();
        let pushed = values.len() - 1;
        assert!((10..=16).contains(&pushed), "{pushed} pushes to a segment");
        let there = if there == 1 { 1 } else { pushed - 9 };
        line.push("in the tail").await.unwrap();
        while line.claim(LEASE).await.unwrap().is_some() {}
        set_back(&store, &segment, values[there].clone()).await;
        let other = Line::open(Kind::Queue, &store, &small()).await;
        assert_eq!(other.pop().await.unwrap_err().kind(), ErrorKind::Lost, "{there}");
        store.delete(segment).await.unwrap();
        let (items, told) = drain(&Line::open(Kind::Queue, &store, &small()).await).await;
        assert_eq!((items.len(), other.stat().await.segments_lost), (0, 2), "{there}");
        assert!(told > 0, "{there}");
    }
}

/// What a stack's segment has lost before it was left is found when the stack comes down to it: who claimed it has no claim any more.
#[tokio::test]
async fn claims_of_what_a_segment_had_lost_before_it_was_left_are_void() {
    for is_given_back in [false, true] {
        let store = memory();
        let line = Line::open(Kind::Stack, &store, &small()).await;
        let segment = key(Kind::Stack, &store, Some(0)).await;
        for at in 0..4 {
            line.push(format!("old {at}")).await.unwrap();
        }
        let of_four = value(&store, &segment).await;
        line.push_all(["old 4", "old 5"]).await.unwrap();
        let gone = [line.take().await, line.take().await];
        let kept = line.take().await;
        set_back(&store, &segment, of_four).await;
        let new: Vec<String> = (0..60).map(|at| format!("new {at}")).collect();
        for item in &new {
            line.push(item).await.unwrap();
        }
        let other = Line::open(Kind::Stack, &store, &small()).await;
        let (items, told) = drain(&other).await;
        let old = (0..3).map(|at| format!("old {at}"));
        let all: Vec<String> = old.chain(new).rev().collect();
        assert_eq!((items, told), (all, 1));
        for claim in gone {
            let ended = if is_given_back { claim.release().await } else { claim.ack().await };
            assert_eq!(ended.unwrap_err().kind(), ErrorKind::Fenced);
        }
        let stat = other.stat().await;
        assert_eq!((stat.items_lost, stat.segments_lost, stat.ready, stat.claimed), (2, 1, 0, 1));
        kept.release().await.unwrap();
        assert_eq!(drain(&other).await, (vec!["old 3".to_owned()], 0));
    }
}

/// Its first note stays in the segment: a later one knows that the loss was found.
#[tokio::test]
async fn what_a_segment_had_lost_before_it_was_left_is_told_once_however_often_it_is_left() {
    let store = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    let segment = key(Kind::Stack, &store, Some(0)).await;
    line.push("old 0").await.unwrap();
    let of_one = value(&store, &segment).await;
    line.push("old 1").await.unwrap();
    assert!(line.pop().await.unwrap().is_some());
    set_back(&store, &segment, of_one).await;
    let fill = async || {
        for at in 0..60 {
            line.push(format!("new {at}")).await.unwrap();
        }
    };
    fill().await;
    let other = Line::open(Kind::Stack, &store, &small()).await;
    let error = loop {
        if let Err(error) = other.pop().await {
            break error;
        }
    };
    assert!(error.to_string().contains("before it was left"), "{error}");
    let claim = other.take().await;
    fill().await;
    let third = Line::open(Kind::Stack, &store, &small()).await;
    let (items, told) = drain(&third).await;
    assert_eq!((items.last().map(String::as_str), told), (Some("old 0"), 0), "{items:?}");
    claim.ack().await.unwrap();
    let stat = third.stat().await;
    assert_eq!((stat.items_lost, stat.segments_lost, stat.ready, stat.claimed), (0, 1, 0, 0));
}

/// A stack's segment came with a note of what lies below it: that is there also where what it got when it was left is gone.
#[tokio::test]
async fn what_lies_below_a_segment_that_was_set_back_to_before_it_was_left_is_found() {
    let store = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    let bottom = "0".repeat(250);
    line.push(&bottom).await.unwrap();
    let second = key(Kind::Stack, &store, Some(1)).await;
    line.push("kept").await.unwrap();
    let of_one = value(&store, &second).await;
    line.push("1".repeat(250)).await.unwrap();
    line.push("top").await.unwrap();
    assert_eq!(line.stat().await.segments, 3);
    set_back(&store, &second, of_one).await;
    let (items, told) = drain(&Line::open(Kind::Stack, &store, &small()).await).await;
    assert_eq!((items, told), (vec!["top".to_owned(), "kept".to_owned(), bottom], 0));
}
