//! What a put sends: to which part, how often, what it knows of what it sent, and what it removes where the log was dropped meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, ManualClock, Op, PutMode, Replies, Reply, StoreExt, StoreRef, Verb,
};
use larder_layers::Counting;
use larder_store_memory::MemoryStore;
use larder_structures::log::Cursor;
use larder_structures::{EventLog, Name, registry};

use crate::log::support::*;
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, fail};
use crate::support::probe::{Probe, value_of};
use crate::support::steady::metered;

const SECOND: Duration = Duration::from_secs(1);

fn is_append(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
}

fn is_add(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Add, .. })
}

/// A log of chunks of a minute that keeps so many of them.
async fn keeping(store: &StoreRef, clock: &Arc<ManualClock>, chunks: u64) -> EventLog {
    let options = options(clock).retention(Duration::from_millis(chunks * MINUTE_MS));
    options.open_or_create(store, "l").await.unwrap()
}

/// An event of each of so many chunks, those of the newest first.
fn chunks(count: u64) -> impl Iterator<Item = (u64, String)> {
    (0..count).map(|n| (START_MS - n * MINUTE_MS, n.to_string()))
}

fn counting() -> (StoreRef, Counting) {
    let counting = metered(Arc::new(MemoryStore::new()));
    (Arc::new(counting.clone()), counting)
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::NotApplied)
}

async fn is_there(store: &StoreRef, time_ms: u64, part: u16) -> bool {
    store.get(part_key(store, "l", time_ms, part).await).await.unwrap().is_some()
}

/// Removes the log with all that it lists.
async fn drop_it(store: &StoreRef) {
    assert!(registry::drop_structure(store, Ctx::default(), &Name::new("l").unwrap()).await.unwrap().is_some());
}

/// Lets the append of a batch pass, and has its reads fail: what landed is not known to be listed.
async fn unread(store: StoreRef, batch: Batch) -> Replies {
    let mut replies = store.run(Ctx::default(), batch.clone()).await;
    for (op, reply) in batch.iter().zip(&mut replies) {
        if op.is_read() {
            *reply = Err(unavailable());
        }
    }
    replies
}

#[tokio::test]
async fn every_put_after_the_first_is_one_op_while_its_part_was_seen_within_a_minute() {
    let ((store, counting), clock) = (counting(), clock());
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    log.put("first").await.unwrap();
    for n in 0..3 {
        let before = counting.counts();
        log.put(n.to_string()).await.unwrap();
        let spent = counting.counts().since(&before);
        assert_eq!((spent.round_trips, spent.ops), (1, 1), "put {n}");
    }
}

#[tokio::test]
async fn what_does_not_fit_behind_what_a_handle_has_put_goes_to_the_next_part_at_once() {
    let (probe, clock) = (Probe::small(7_000), clock());
    let log = options(&clock).open_or_create(&probe.shared(), "l").await.unwrap();
    log.put("x".repeat(6_500)).await.unwrap();
    probe.round_trips();
    log.put("y".repeat(2_000)).await.unwrap();
    assert_eq!(probe.round_trips(), 2, "made, and listed");
}

#[tokio::test]
async fn a_batch_takes_as_many_chunks_as_the_store_lets_it() {
    let ((store, counting), clock) = (counting(), clock());
    // Two of the eight ops are kept for the list of chunks and for the manifest, and three for what a chunk may need.
    let log = keeping(&Hooked::with_batches_of(&store, 8).shared(), &clock, 120).await;
    log.put_all(chunks(20)).await.unwrap();
    let before = counting.counts();
    log.put_all(chunks(20)).await.unwrap();
    let spent = counting.counts().since(&before);
    assert_eq!((spent.round_trips, spent.ops), (5, 20));
}

#[tokio::test]
async fn a_handle_remembers_the_parts_of_1024_chunks() {
    let ((store, counting), clock) = (counting(), clock());
    let log = keeping(&store, &clock, 1_100).await;
    log.put_all(chunks(1_024)).await.unwrap();
    for (n, text) in [(1_023, "the oldest"), (0, "the newest")] {
        let before = counting.counts();
        log.put_at(START_MS - n * MINUTE_MS, text).await.unwrap();
        assert_eq!(counting.counts().since(&before).ops, 1, "{text}");
    }
}

/// To look for what is past its life costs round trips, so that is done for 64 entries of the list at the least.
#[tokio::test]
async fn entries_past_their_life_leave_the_list_once_they_are_64() {
    for (count, is_trimmed) in [(63, false), (64, true)] {
        let clock = clock();
        let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let log = keeping(&store, &clock, 120).await;
        log.put_all(chunks(count)).await.unwrap();
        advance(&clock, 300 * MINUTE_MS);
        let list = ledger_key(&store, "l").await;
        let before = value_of(&store, &list).await.len();
        log.put("new").await.unwrap();
        // An entry is listed in few bytes; to remove 64 takes as many as to list them.
        let grown = value_of(&store, &list).await.len() - before;
        assert_eq!(grown > 500, is_trimmed, "{count} entries, {grown} bytes");
        assert_eq!(texts(log.fetch(..).await.unwrap()), ["new"]);
    }
}

/// The first try was held back and then made the part, which others filled; the second finds it there. A look tells that the first is in it.
#[tokio::test]
async fn a_making_in_doubt_that_finds_a_full_part_looks_before_it_goes_on() {
    let (store, clock) = (Probe::small(7_000).shared(), clock());
    let direct = options(&clock).open_or_create(&store, "l").await.unwrap();
    let hooked = Hooked::new(&store);
    let log = options(&clock).open(&hooked.shared(), "l").await.unwrap();
    let held_back = Arc::new(Mutex::new(Batch::new()));
    let keeps = held_back.clone();
    hooked.at(1, |_, batch| async move {
        *keeps.lock().unwrap() = batch.clone();
        fail(&batch, Effect::Unknown)
    });
    // The second batch is a look, which finds nothing.
    hooked.at(3, |store, batch| async move {
        let first = std::mem::take(&mut *held_back.lock().unwrap());
        store.run(Ctx::default(), first).await;
        direct.put("x".repeat(6_400)).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    log.put("y".repeat(600)).await.unwrap();
    assert!(!is_there(&store, START_MS, 1).await, "it stands in the first part");
    assert_eq!(texts(log.fetch(..).await.unwrap()).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_no_room_for_a_part_is_asked_once_and_one_that_cannot_tell_again() {
    for (kind, is_told) in [(ErrorKind::Full, true), (ErrorKind::Unavailable, false)] {
        let (store, clock) = (Probe::new().shared(), clock());
        let answering = Answering::new(&store);
        let log = options(&clock).open_or_create(&answering.shared(), "l").await.unwrap();
        let part = part_key(&store, "l", START_MS, 0).await;
        let makings = Arc::new(AtomicU64::new(0));
        let counted = makings.clone();
        answering.by(move |op| {
            if op.key != part || !is_add(op) || counted.fetch_add(1, Ordering::Relaxed) > 0 {
                return None;
            }
            Some(Err(Error::new(kind, "as the test wants").effect(Effect::NotApplied)))
        });
        match log.put("a").await {
            Ok(()) => assert!(!is_told && makings.load(Ordering::Relaxed) == 2, "{kind:?}"),
            Err(error) => {
                assert_eq!((error.kind(), error.known_effect()), (kind, Effect::NotApplied), "{error}");
                assert!(is_told && error.to_string().contains("as the test wants"), "{error}");
                assert_eq!(makings.load(Ordering::Relaxed), 1);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_put_of_which_nothing_was_sent_is_given_up_at_the_eighth_fault() {
    let (store, clock) = (Probe::new().shared(), clock());
    let answering = Answering::new(&store);
    let log = options(&clock).timeout(60 * SECOND).open_or_create(&answering.shared(), "l").await.unwrap();
    log.put("a").await.unwrap();
    let part = part_key(&store, "l", START_MS, 0).await;
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    answering.by(move |op| {
        (op.key == part).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(unavailable())
        })
    });
    let error = log.put("b").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 8);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_a_put_for_good_is_not_asked_again() {
    let (store, clock) = (Probe::new().shared(), clock());
    let answering = Answering::new(&store);
    let log = options(&clock).open_or_create(&answering.shared(), "l").await.unwrap();
    log.put("a").await.unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    answering.by(move |op| {
        is_append(op).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Unsupported, "as the test wants").effect(Effect::NotApplied))
        })
    });
    let error = log.put("b").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

/// Its append may have landed, or did and nobody could tell where; then the store cannot be reached for a while.
#[tokio::test(start_paused = true)]
async fn a_put_that_may_have_landed_is_looked_for_however_often_that_fails() {
    for is_known_to_have_landed in [false, true] {
        let (store, clock) = (Probe::new().shared(), clock());
        let direct = options(&clock).open_or_create(&store, "l").await.unwrap();
        direct.put("a").await.unwrap();
        let hooked = Hooked::new(&store);
        let log = options(&clock).timeout(60 * SECOND).open(&hooked.shared(), "l").await.unwrap();
        match is_known_to_have_landed {
            true => hooked.at(1, unread),
            false => hooked.lose_replies(1),
        }
        (2..22).for_each(|nth| hooked.refuse(nth));
        log.put("b").await.unwrap();
        assert_eq!(texts(log.fetch(..).await.unwrap()), ["a", "b"]);
    }
}

/// It landed in a part that could not be read, and a look ends in an error that stays.
#[tokio::test]
async fn a_put_that_landed_in_a_part_that_cannot_be_looked_at_is_unknown() {
    let (store, clock) = (Probe::new().shared(), clock());
    let direct = options(&clock).open_or_create(&store, "l").await.unwrap();
    direct.put("a").await.unwrap();
    let hooked = Hooked::new(&store);
    let log = options(&clock).open(&hooked.shared(), "l").await.unwrap();
    hooked.at(1, unread);
    hooked.at(2, |_, batch| async move {
        batch.iter().map(|_| Err(Error::new(ErrorKind::Unsupported, "as the test wants"))).collect()
    });
    let error = log.put("b").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::Unknown), "{error}");
    assert_eq!(texts(direct.fetch(..).await.unwrap()), ["a", "b"], "and so it was");
}

/// The first landed, a tail has told it, and then a look shows the part as it was before, by a replica that lags, say: the second is marked.
#[tokio::test(start_paused = true)]
async fn a_tail_knows_the_second_of_an_event_that_landed_and_was_gone_at_a_look() {
    let (store, clock) = (Probe::small(7_000).shared(), clock());
    let direct = options(&clock).open_or_create(&store, "l").await.unwrap();
    direct.put(format!("0-{:06000}", 0)).await.unwrap();
    let before = value_of(&store, &part_key(&store, "l", START_MS, 0).await).await;
    let tail = Arc::new(tokio::sync::Mutex::new(direct.tail(Cursor::default()).unwrap()));
    let hooked = Hooked::new(&store);
    let log = options(&clock).open(&hooked.shared(), "l").await.unwrap();
    hooked.at(1, unread);
    // The looks that follow do not see it, and the appends are refused: others have filled the part.
    for nth in 2..=6 {
        let (before, follower) = (before.clone(), tail.clone());
        hooked.at(nth, move |store, batch: Batch| async move {
            if !batch.iter().all(Op::is_read) {
                return batch.iter().map(|_| Ok(Reply::NotStored)).collect();
            }
            let told = texts(follower.lock().await.poll().await.unwrap()).len();
            assert_eq!(told, if nth == 2 { 2 } else { 0 }, "the first is told");
            let mut replies: Replies = store.run(Ctx::default(), batch).await;
            if let Some(Ok(Reply::Item(item))) = replies.first_mut() {
                item.value = before;
            }
            replies
        });
    }
    log.put(format!("twice-{:0300}", 0)).await.unwrap();
    assert!(is_there(&store, START_MS, 1).await, "there is a second");
    assert!(tail.lock().await.poll().await.unwrap().is_empty(), "it is not told again");
    assert_eq!(texts(direct.fetch(..).await.unwrap()).len(), 2);
}

/// A part is made, and gone at every look, without an error that would say why.
#[tokio::test(start_paused = true)]
async fn a_put_that_comes_to_no_end_says_full_where_the_store_refused_it_last_and_else_that_its_rounds_are_over() {
    for is_first_part_full in [false, true] {
        let (store, clock) = (Probe::small(7_000).shared(), clock());
        let direct = options(&clock).open_or_create(&store, "l").await.unwrap();
        if is_first_part_full {
            direct.put("x".repeat(6_500)).await.unwrap();
        }
        let first = part_key(&store, "l", START_MS, 0).await;
        let answering = Answering::new(&store);
        let log = options(&clock).timeout(60 * SECOND).open(&answering.shared(), "l").await.unwrap();
        answering.by(move |op| {
            let is_of_a_part = op.key.as_bytes().starts_with(b"L.l.e.") && op.key.as_bytes().contains(&b'-');
            if !is_of_a_part || (is_first_part_full && op.key == first) {
                return None;
            }
            Some(Ok(match op.verb {
                Verb::Put { mode: PutMode::Add, .. } => Reply::Stored,
                Verb::Put { .. } => Reply::NotStored,
                _ => Reply::Miss,
            }))
        });
        // The full part takes one round, then a making and a look take turns: the 64th is the one or the other.
        let error = log.put("y".repeat(1_000)).await.unwrap_err();
        let (kind, words) = match is_first_part_full {
            true => (ErrorKind::Full, "has not said why"),
            false => (ErrorKind::Timeout, "in at most 64 rounds"),
        };
        assert_eq!((error.kind(), error.known_effect()), (kind, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

/// How the second part of a chunk comes to be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// By the write that made it.
    ByItsMaker,
    /// By others: the replies to its making were lost.
    ByOthers,
}

/// A write to two chunks. All appends to the older are refused, and of the newer those to its first part, in which there is nothing but its header then: so it goes to the second.
#[tokio::test(start_paused = true)]
async fn a_part_that_was_made_in_vain_goes_with_a_log_that_is_dropped_before_the_put_ends() {
    for listed in [Listed::ByItsMaker, Listed::ByOthers] {
        let memory = Arc::new(MemoryStore::new());
        let (store, clock): (StoreRef, _) = (memory.clone(), clock());
        options(&clock).open_or_create(&store, "l").await.unwrap();
        let (first, second) = (part_key(&store, "l", START_MS, 0).await, part_key(&store, "l", START_MS, 1).await);
        let answering = Answering::new(&store);
        let refused = first.clone();
        let newer = second.as_bytes().strip_suffix(b"1").unwrap().to_vec();
        answering.by(move |op| {
            let is_refused = is_append(op) && op.key.as_bytes().contains(&b'-');
            let is_of_newer = op.key.as_bytes().starts_with(&newer) && op.key != refused;
            (is_refused && !is_of_newer).then_some(Ok(Reply::NotStored))
        });
        let hooked = Hooked::new(&answering.shared());
        let log = options(&clock).open(&hooked.shared(), "l").await.unwrap();
        // The first part is made, looked at, refuses a second time and is looked at again; then the second is made.
        if listed == Listed::ByOthers {
            let others = options(&clock).open(&answering.shared(), "l").await.unwrap();
            hooked.at(5, move |store, batch| async move {
                let replies = store.run(Ctx::default(), batch.clone()).await;
                others.put("by others").await.unwrap();
                let lost = replies.into_iter().zip(fail(&batch, Effect::Unknown)).zip(&batch);
                lost.map(|((reply, lost), op)| if op.key == second { lost } else { reply }).collect()
            });
        }
        // The sixth lists it, or finds it listed.
        let checked = store.clone();
        hooked.at(7, move |store, batch| async move {
            let told = texts(options(&clock).open(&store, "l").await.unwrap().fetch(..).await.unwrap());
            assert!(told.contains(&"a".to_owned()), "{listed:?}: it is listed: {told:?}");
            drop_it(&store).await;
            assert!(checked.get(first).await.unwrap().is_some(), "{listed:?}: nobody knows of it");
            store.run(Ctx::default(), batch).await
        });
        let both = [(START_MS, "a".to_owned()), (START_MS - MINUTE_MS, "b".to_owned())];
        let error = log.put_all(both).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{listed:?}: {error}");
        assert_eq!(memory.stats().items, 0, "{listed:?}");
    }
}

/// The reply to the making was lost, and a look finds the part: it is not listed, and before it is the log is dropped.
#[tokio::test]
async fn a_part_that_a_look_found_unlisted_goes_with_a_log_that_is_dropped_before_it_is_listed() {
    let memory = Arc::new(MemoryStore::new());
    let (store, clock): (StoreRef, _) = (memory.clone(), clock());
    let hooked = Hooked::new(&store);
    let log = options(&clock).open_or_create(&hooked.shared(), "l").await.unwrap();
    hooked.lose_replies(1);
    // A look, and then it is to be listed.
    hooked.at(3, |store, batch| async move {
        drop_it(&store).await;
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(log.put("a").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(memory.stats().items, 0);
}
