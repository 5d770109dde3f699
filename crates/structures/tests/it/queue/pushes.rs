//! Pushing to queues and stacks: what travels in one write, what has room, and what becomes of a segment that is left.

use std::sync::{Arc, Mutex};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Reply, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Queue, QueueOptions, registry};
use tokio::sync::Notify;

use crate::queue::between::{Between, adds, appends, but, links, removes, swaps};
use crate::queue::support::{BOTH, Kind, Line, drain, key, small};
use crate::support::hooked::fail;
use crate::support::probe::Probe;
use crate::table::support::{Evicting, cost, counting};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Pushes each of the items by a task of its own, all at the same time.
async fn push_at_once(queue: &Queue, items: impl Iterator<Item = Vec<u8>>) {
    let pushes: Vec<_> = items
        .map(|item| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.push(item).await })
        })
        .collect();
    for push in pushes {
        push.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn small_pushes_at_the_same_time_travel_in_one_write() {
    let probe = Probe::new();
    let queue = Queue::open_or_create(&probe.shared(), "q").await.unwrap();
    probe.round_trips();
    push_at_once(&queue, (0..400).map(|_| b"x".to_vec())).await;
    // The first is under way alone.
    let took = probe.round_trips();
    assert!(took <= 3, "{took} round trips");
    assert_eq!(queue.len().await.unwrap(), 400);
}

#[tokio::test]
async fn large_pushes_at_the_same_time_travel_in_writes_of_a_segment_each() {
    // All of them together are more than a value may have.
    let queue = Queue::open_or_create(&Probe::small(100_000).shared(), "q").await.unwrap();
    push_at_once(&queue, (0..40).map(|_| vec![b'x'; 10_000])).await;
    let stat = queue.stat().await.unwrap();
    assert_eq!((stat.ready, stat.segments_missing), (40, 0));
    assert!(stat.segments >= 5, "{stat:?}");
}

#[tokio::test]
async fn items_of_less_than_a_segment_are_pushed_in_one_round_trip() {
    for kind in BOTH {
        let (store, counting) = counting(memory());
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        assert_eq!(cost(&counting, line.push_all((0..100).map(|_| [b'x'; 200]))).await, 1, "{kind:?}");
        assert_eq!(line.len().await.unwrap(), 100);
    }
}

#[tokio::test]
async fn a_segment_is_closed_with_a_thousand_items_however_small_they_are() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &QueueOptions::default()).await;
        for _ in 0..50 {
            line.push_all([b"x"; 100]).await.unwrap();
        }
        let stat = line.stat().await;
        assert_eq!(stat.ready, 5_000);
        assert!(stat.segments >= 5, "{kind:?}: {stat:?}");
    }
}

#[tokio::test]
async fn segments_of_half_of_what_the_store_takes_are_made_whatever_the_name() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(10_000).build().unwrap());
    let name = "n".repeat(64);
    let queue = Queue::options().segment_bytes(5_000).open_or_create(&store, &name).await.unwrap();
    queue.push("a").await.unwrap();
    assert_eq!(queue.len().await.unwrap(), 1);
    let error = Queue::options().segment_bytes(5_126).open_or_create(&store, "q").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
}

/// Pushes items that fill a segment each until there is no room.
async fn fill_up(line: &Line) -> usize {
    for n in 0..20 {
        if let Err(error) = line.push(format!("{n:0250}")).await {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            return n;
        }
    }
    panic!("it is never full");
}

#[tokio::test]
async fn what_is_used_up_and_not_removed_yet_leaves_room() {
    let store = memory();
    let options = small().bytes_max(4 * 256);
    let line = Line::open(Kind::Queue, &store, &options).await;
    let filled = fill_up(&line).await;
    let mut claims = Vec::new();
    for _ in 0..filled {
        claims.push(line.take().await);
    }
    // The tail is in use. The others are used up, and whoever acknowledges them has not read them, and removes nothing.
    let _held = claims.pop();
    for claim in claims {
        Line::open(Kind::Queue, &store, &options).await.ack(claim.id()).await.unwrap();
    }
    for n in 0..3 {
        line.push([b'y'; 250]).await.unwrap_or_else(|error| panic!("after {n}: {error}"));
    }
    assert_eq!(line.drain().await.len(), 3);
}

#[tokio::test]
async fn a_tail_that_is_full_and_used_up_leaves_room() {
    for kind in BOTH {
        let line = Line::open(kind, &memory(), &small().bytes_max(3 * 256)).await;
        let filled = fill_up(&line).await;
        let mut claims = Vec::new();
        for _ in 0..filled {
            claims.push(line.take().await);
        }
        let newest = if kind == Kind::Queue { claims.pop() } else { Some(claims.swap_remove(0)) };
        assert_eq!(line.push("x").await.unwrap_err().kind(), ErrorKind::Full, "{kind:?}");
        newest.expect("a claim").ack().await.unwrap();
        line.push("y").await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert_eq!(line.drain().await, ["y"]);
        drop(claims);
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_whose_reply_was_lost_is_not_written_again_where_it_is_seen() {
    for kind in BOTH {
        let between = Between::new(&memory());
        let line = Line::open(kind, &between.shared(), &QueueOptions::default()).await;
        between.once(appends, |store, batch| async move {
            store.run(Ctx::default(), batch.clone()).await;
            fail(&batch, Effect::Unknown)
        });
        line.push([b'x'; 1_000]).await.unwrap();
        let stat = line.stat().await;
        assert_eq!(stat.ready, 1);
        assert!(stat.bytes < 1_100, "{kind:?}: {stat:?}");
    }
}

/// The request arrives late, after a look that does not find it, and leaves no room for the next try.
#[tokio::test(start_paused = true)]
async fn a_push_that_lands_late_and_is_refused_the_second_time_is_there_once() {
    for kind in BOTH {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(10_000).build().unwrap());
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &QueueOptions::default().segment_bytes(4_000)).await;
        let late = Arc::new(Mutex::new(None::<Batch>));
        between.answer(move |store, batch| {
            if !batch.iter().any(appends) {
                return None;
            }
            let (store, batch) = (store.clone(), batch.clone());
            match late.lock().unwrap().replace(batch.clone()) {
                None => Some(Box::pin(async move { fail(&batch, Effect::Unknown) })),
                Some(first) => Some(Box::pin(async move {
                    store.run(Ctx::default(), first).await;
                    let replies = store.run(Ctx::default(), batch).await;
                    assert_eq!(replies[0].as_ref().unwrap(), &Reply::NotStored);
                    replies
                })),
            }
        });
        line.push([b'x'; 6_000]).await.unwrap();
        between.heal();
        assert_eq!(line.drain().await.len(), 1, "{kind:?}");
    }
}

/// Whether the state names a segment that was made for it is not known for a while: once it is known that it does not, the segment goes.
#[tokio::test(start_paused = true)]
async fn a_segment_that_was_never_named_is_removed_though_that_was_in_doubt() {
    for kind in BOTH {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = memory.clone();
        let between = Between::new(&store);
        let [one, two] =
            [Line::open(kind, &between.shared(), &small()).await, Line::open(kind, &store, &small()).await];
        one.push("a").await.unwrap();
        let lost = Arc::new(Mutex::new(false));
        let noted = lost.clone();
        between.once(swaps, move |_, batch| async move {
            *noted.lock().unwrap() = true;
            fail(&batch, Effect::Unknown)
        });
        while !*lost.lock().unwrap() {
            one.push([b'x'; 100]).await.unwrap();
        }
        // Another writes the state: what was in doubt never lands.
        two.pop().await.unwrap().unwrap();
        while two.stat().await.segments < 3 {
            one.push([b'x'; 100]).await.unwrap();
        }
        registry::drop_structure(&store, Ctx::default(), &Name::new("q").unwrap()).await.unwrap();
        assert_eq!(memory.stats().items, 0, "{kind:?}");
    }
}

/// A stack's segment that is left must have its link, and note what was taken of it: one that got only one of the two stays on record.
#[tokio::test]
async fn a_stacks_segment_that_could_not_be_left_whole_is_found_and_gives_nothing_twice() {
    let note = |op: &Op| appends(op).then_some(Ok(Reply::NotStored));
    let link = |op: &Op| {
        links(op).then(|| Err(Error::new(ErrorKind::Unavailable, "it is not sent").effect(Effect::NotApplied)))
    };
    for (what, refused) in [("note", note as fn(&Op) -> Option<larder_core::Result<Reply>>), ("link", link)] {
        let store = memory();
        let between = Between::new(&store);
        let line = Line::open(Kind::Stack, &between.shared(), &small()).await;
        between.answer(move |store, batch| {
            batch
                .iter()
                .any(adds)
                .then(|| -> crate::queue::between::Answer { Box::pin(but(store.clone(), batch.clone(), refused)) })
        });
        line.push_all(["a", "b", "c"]).await.unwrap();
        assert_eq!(line.pop().await.unwrap().as_deref(), Some(&b"c"[..]));
        for n in 0..3 {
            line.push(format!("{n:0250}")).await.unwrap();
        }
        assert!(line.stat().await.segments > 3);
        between.heal();
        let items = Line::open(Kind::Stack, &store, &small()).await.drain().await;
        let whole: Vec<&str> = items.iter().map(|item| item.trim_start_matches('0')).collect();
        assert_eq!(whole, ["2", "1", "", "b", "a"], "without a {what}");
    }
}

/// A tail of which all was taken once, and that was pushed to since, is left as any other: else it, and all above it, would stay in the state for ever.
#[tokio::test]
async fn a_stack_that_was_empty_once_grows_as_any_other() {
    let store = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    line.push("a").await.unwrap();
    assert!(line.pop().await.unwrap().is_some());
    for _ in 0..200 {
        line.push([b'x'; 250]).await.unwrap();
    }
    let state = store.get(key(Kind::Stack, &store, None).await).await.unwrap().expect("the state").value;
    assert!(state.len() < 200, "{} bytes", state.len());
    assert_eq!(line.drain().await.len(), 200);
}

/// Who takes has taken all there was, and comes no more: what is removed stays on record, and all that is pushed since lies above it.
#[tokio::test]
async fn a_stack_that_is_only_pushed_to_does_not_grow_its_state() {
    for (pushed, taken, may_evict) in [(4, 4, false), (4, 4, true), (40, 40, false), (4, 3, false)] {
        let inner: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(4_300).build().unwrap());
        let store: StoreRef = if may_evict { Arc::new(Evicting(inner)) } else { inner };
        let line = Line::open(Kind::Stack, &store, &small()).await;
        for n in 0..pushed {
            line.push(item(n)).await.unwrap();
        }
        for _ in 0..taken {
            assert!(line.pop().await.unwrap().is_some());
        }
        let state = key(Kind::Stack, &store, None).await;
        for n in 0..400 {
            line.push(item(1_000 + n))
                .await
                .unwrap_or_else(|error| panic!("{pushed}, {taken}, {may_evict}, {n}: {error}"));
            let bytes = store.get(state.clone()).await.unwrap().expect("the state").value.len();
            assert!(bytes < 2_500, "{bytes} bytes after {n}");
        }
        let items = line.drain().await;
        let all: Vec<String> = (0..pushed - taken).chain(1_000..1_400).rev().map(item).collect();
        assert_eq!(items, all);
        let stat = line.stat().await;
        assert_eq!((stat.segments_lost, stat.segments), (0, 1), "{pushed}, {taken}, {may_evict}");
    }
}

/// An item that fills a segment.
fn item(n: usize) -> String {
    format!("{n:0250}")
}

/// He has read a segment that was let go of a moment ago, and removes it by what he read: to the state it would be lost.
#[tokio::test]
async fn what_another_is_about_to_remove_a_stack_does_not_let_go_of() {
    let store = memory();
    let (of_taker, of_pusher) = (Between::new(&store), Between::new(&store));
    let taker = Line::open(Kind::Stack, &of_taker.shared(), &small()).await;
    for n in 0..20 {
        taker.push(item(n)).await.unwrap();
    }
    let mut claims = Vec::new();
    for _ in 0..20 {
        claims.push(taker.take().await);
    }
    // Whoever acknowledges them has not read them, and removes nothing.
    for claim in claims {
        Line::open(Kind::Stack, &store, &small()).await.ack(claim.id()).await.unwrap();
    }
    let pusher = Line::open(Kind::Stack, &of_pusher.shared(), &small()).await;
    pusher.push("first").await.unwrap();
    let (held, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (is_held, goes_on) = (held.clone(), go.clone());
    of_pusher.once(swaps, |store, batch| async move {
        is_held.notify_one();
        goes_on.notified().await;
        store.run(Ctx::default(), batch).await
    });
    let pushing = Arc::new(Mutex::new(None));
    let pushed = pushing.clone();
    of_taker.once(removes, |store, batch| async move {
        let task = tokio::spawn(async move { pusher.push(item(99)).await });
        *pushed.lock().unwrap() = Some(task);
        held.notified().await;
        store.run(Ctx::default(), batch).await
    });
    assert!(taker.pop().await.unwrap().is_some());
    go.notify_one();
    let task = pushing.lock().unwrap().take().expect("he was about to remove something");
    task.await.unwrap().unwrap();
    let (items, told) = drain(&Line::open(Kind::Stack, &store, &small()).await).await;
    assert_eq!((items.len(), told), (1, 0), "{items:?}");
    assert_eq!(taker.stat().await.segments_lost, 0);
}
