//! Logs at the edges: what one write holds, what goes where once a put failed, and what a tail leaves out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, ManualClock, Op, PutMode, Replies, Reply, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::EventLog;
use larder_structures::log::{Cursor, Tail};

use crate::log::support::*;
use crate::support::answering::Answering;
use crate::support::hooked::Hooked;
use crate::support::probe::Probe;
use crate::support::shaped::Shaped;
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

fn is_append(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
}

/// A log that keeps 120 chunks, and another handle of it.
async fn long(store: &StoreRef, clock: &Arc<ManualClock>) -> EventLog {
    let options = options(clock).retention(Duration::from_millis(120 * MINUTE_MS));
    options.open_or_create(store, "l").await.unwrap()
}

/// An event of each of so many chunks.
fn chunks(count: u64) -> impl Iterator<Item = (u64, String)> {
    (0..count).map(|n| (START_MS - n * MINUTE_MS, n.to_string()))
}

#[tokio::test]
async fn how_far_ahead_events_may_be_is_as_the_options_say() {
    let (store, clock) = (Probe::new().shared(), clock());
    let log = options(&clock).future(Duration::from_secs(120)).open_or_create(&store, "l").await.unwrap();
    assert_eq!((log.now_ms(), log.retention()), (START_MS, Duration::from_secs(600)), "the other options stand");
    log.put_at(START_MS + 120_000, "near").await.unwrap();
    let error = log.put_at(START_MS + 120_001, "far").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("120001 ms ahead of this clock; the limit is 120000 ms"), "{error}");
}

#[tokio::test]
async fn one_write_holds_64_chunks_and_64_kib() {
    let (probe, clock) = (Probe::new(), clock());
    let log = long(&probe.shared(), &clock).await;
    log.put_all(chunks(65)).await.unwrap();
    for (count, writes) in [(64, 1), (65, 2)] {
        probe.round_trips();
        log.put_all(chunks(count)).await.unwrap();
        assert_eq!(probe.round_trips(), writes, "{count} chunks");
    }
    probe.round_trips();
    log.put_all((0..15).map(|_| (START_MS - 2 * MINUTE_MS, "x".repeat(4_000)))).await.unwrap();
    assert_eq!(probe.round_trips(), 1, "60,000 bytes");
}

#[tokio::test]
async fn puts_that_would_not_fit_into_one_part_together_go_out_one_by_one() {
    let (store, clock) = (Probe::small(7_000).shared(), clock());
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..5 {
        let log = log.clone();
        callers.spawn(async move { log.put(format!("{number}-{:03000}", 0)).await.unwrap() });
    }
    callers.join_all().await;
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 5);
}

#[tokio::test]
async fn more_chunks_than_a_batch_takes_go_out_in_several() {
    let (store, clock) = (Probe::new().shared(), clock());
    // Fails where a batch has more ops than the store takes.
    let log = long(&Hooked::with_batches_of(&store, 8).shared(), &clock).await;
    for _ in 0..2 {
        log.put_all(chunks(20)).await.unwrap();
    }
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 40);
}

#[tokio::test]
async fn a_put_into_a_part_that_was_seen_within_a_minute_is_one_op() {
    let counting = metered(Arc::new(MemoryStore::new()));
    let (store, clock): (StoreRef, _) = (Arc::new(counting.clone()), clock());
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    log.put("a").await.unwrap();
    advance(&clock, MINUTE_MS - 1);
    let before = counting.counts();
    log.put_at(START_MS, "b").await.unwrap();
    let spent = counting.counts().since(&before);
    assert_eq!((spent.round_trips, spent.ops), (1, 1));
}

#[tokio::test]
async fn an_append_that_was_not_sent_goes_to_the_same_part_once_that_was_seen() {
    let (store, clock) = (Probe::new().shared(), clock());
    let hooked = Hooked::new(&store);
    let log = options(&clock).open_or_create(&hooked.shared(), "l").await.unwrap();
    log.put("a").await.unwrap();
    hooked.refuse(1);
    log.put("b").await.unwrap();
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["a", "b"]);
    assert!(store.get(part_key(&store, "l", START_MS, 1).await).await.unwrap().is_none(), "one part holds both");
}

#[tokio::test]
async fn a_reply_that_belongs_to_no_append_is_told_and_the_put_unknown() {
    let hooked = Hooked::new(&Probe::new().shared());
    let log = options(&clock()).open_or_create(&hooked.shared(), "l").await.unwrap();
    log.put("a").await.unwrap();
    hooked.at(1, |_, batch| async move { batch.iter().map(|_| Ok(Reply::Deleted)).collect() });
    let error = log.put("b").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::Unknown), "{error}");
}

#[tokio::test]
async fn a_handle_that_finds_a_part_full_goes_on_to_the_next_without_a_look() {
    let (probe, clock) = (Probe::small(7_000), clock());
    let store = probe.shared();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    log.put("x".repeat(6_500)).await.unwrap();
    let fresh = options(&clock).open(&store, "l").await.unwrap();
    probe.round_trips();
    fresh.put("y".repeat(2_000)).await.unwrap();
    assert_eq!(probe.round_trips(), 3, "full, made behind it, listed");
}

/// The store refuses to grow a part that has room by its profile: two refusals are enough.
#[tokio::test]
async fn a_part_that_the_store_refuses_to_grow_is_tried_twice() {
    let (store, clock) = (Probe::new().shared(), clock());
    let answering = Answering::new(&store);
    let log = options(&clock).open_or_create(&answering.shared(), "l").await.unwrap();
    let (first, refused) = (part_key(&store, "l", START_MS, 0).await, Arc::new(AtomicU64::new(0)));
    let counted = refused.clone();
    answering.by(move |op| {
        (op.key == first && is_append(op)).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Reply::NotStored)
        })
    });
    log.put("a").await.unwrap();
    assert_eq!(refused.load(Ordering::Relaxed), 2);
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["a"]);
    assert!(store.get(part_key(&store, "l", START_MS, 1).await).await.unwrap().is_some());
}

/// However often it is tried: what is made for it stays, and the next finds it.
#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_to_grow_any_part_is_said_to_be_full_and_gets_eight_parts() {
    let inner = Arc::new(MemoryStore::new());
    let (store, clock): (StoreRef, _) = (inner.clone(), clock());
    options(&clock).open_or_create(&store, "l").await.unwrap().put("a").await.unwrap();
    let before = inner.stats().items;
    let answering = Answering::new(&store);
    let log = options(&clock).open(&answering.shared(), "l").await.unwrap();
    answering.by(|op| is_append(op).then_some(Ok(Reply::NotStored)));
    for _ in 0..3 {
        let error = log.put("b").await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
        assert_eq!(inner.stats().items, before + 8);
    }
    answering.by(|_| None);
    log.put("c").await.unwrap();
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["a", "c"]);
}

/// An event that landed in the first part, where a reader finds it, and by a replica that lags seems to be gone with it: it is put again, into the second part, since others filled the first.
async fn in_two_parts(store: &StoreRef, clock: &Arc<ManualClock>) -> Tail {
    let direct = long(store, clock).await;
    direct.put("0").await.unwrap();
    let tail = Arc::new(tokio::sync::Mutex::new(direct.tail(Cursor::default()).unwrap()));
    let hooked = Hooked::new(store);
    let log = long(&hooked.shared(), clock).await;
    // To append, and to read what there is: the append landed, and the read failed.
    hooked.at(1, |store, batch| async move {
        let mut replies: Replies = store.run(Ctx::default(), batch).await;
        replies[2] = Err(Error::new(ErrorKind::Unavailable, "the server is down").effect(Effect::NotApplied));
        replies
    });
    let follower = tail.clone();
    hooked.at(2, |store, batch| async move {
        assert_eq!(texts(follower.lock().await.poll().await.unwrap()), ["0", "twice"]);
        let mut replies: Replies = store.run(Ctx::default(), batch).await;
        replies[0] = Ok(Reply::Miss);
        replies
    });
    hooked.at(3, |store, batch| async move {
        let mut replies: Replies = batch.iter().take(2).map(|_| Ok(Reply::NotStored)).collect();
        replies.extend(store.run(Ctx::default(), batch.iter().skip(2).cloned().collect()).await);
        replies
    });
    log.put("twice").await.unwrap();
    assert!(store.get(part_key(store, "l", START_MS, 1).await).await.unwrap().is_some(), "there is a second");
    drop(hooked);
    Arc::into_inner(tail).unwrap().into_inner()
}

#[tokio::test]
async fn an_event_that_is_put_again_after_a_look_that_missed_it_is_told_once() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let clock = clock();
    let mut tail = in_two_parts(&store, &clock).await;
    assert!(tail.poll().await.unwrap().is_empty(), "it is not told again");
    assert_eq!(texts(long(&store, &clock).await.fetch(..).await.unwrap()), ["0", "twice"]);
}

#[tokio::test]
async fn a_cursor_forgets_the_chunks_that_are_over() {
    let clock = clock();
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let mut tail = in_two_parts(&store, &clock).await;
    let log = long(&store, &clock).await;
    // So many that their entries in the list are worth removing.
    log.put_all(chunks(70)).await.unwrap();
    while !tail.poll().await.unwrap().is_empty() {}
    let grown = tail.cursor().to_bytes().len();
    advance(&clock, 300 * MINUTE_MS);
    log.put("new").await.unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["new"]);
    let mut fresh = log.tail(Cursor::default()).unwrap();
    assert_eq!(texts(fresh.poll().await.unwrap()), ["new"]);
    assert_eq!(tail.cursor(), fresh.cursor(), "{grown} bytes before");
}

#[tokio::test]
async fn a_gap_that_was_told_costs_a_look_no_round_trip_more() {
    let (probe, clock) = (Probe::new(), clock());
    let store = probe.shared();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    log.put("lost").await.unwrap();
    evict(&store, "l", START_MS, 0).await;
    let mut tail = log.tail(Cursor::default()).unwrap();
    assert_eq!(with_gaps(tail.poll().await.unwrap()).1.len(), 1);
    for _ in 0..3 {
        probe.round_trips();
        assert!(tail.poll().await.unwrap().is_empty());
        assert_eq!(probe.round_trips(), 1);
    }
}

/// A chunk that did not change leaves its retention between two looks of which the second takes up what the first left.
#[tokio::test]
async fn a_chunk_that_is_over_before_a_tail_has_caught_up_is_no_gap() {
    let (store, clock) = (Probe::new().shared(), clock());
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    let newer = || (0..3).map(|n| (START_MS - n * MINUTE_MS, n.to_string()));
    log.put_at(START_MS - 9 * MINUTE_MS, "old").await.unwrap();
    log.put_all(newer()).await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap().parts_a_look(1);
    let mut told = Vec::new();
    for is_first in [true, false] {
        loop {
            told.extend(texts(tail.poll().await.unwrap()));
            if !tail.is_behind() {
                break;
            }
            if !is_first {
                advance(&clock, 2 * MINUTE_MS);
            }
        }
        log.put_all(newer()).await.unwrap();
    }
    assert_eq!(told, ["old", "2", "1", "0", "2", "1", "0"]);
}

/// What the first look left was there when the list was read; by the second it is past the retention, and its part has expired.
#[tokio::test]
async fn a_part_that_ends_before_a_look_takes_it_up_is_no_gap() {
    let clock = clock();
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    for n in (0..3).rev() {
        log.put_at(START_MS - n * MINUTE_MS, n.to_string()).await.unwrap();
    }
    let mut tail = log.tail(Cursor::default()).unwrap().parts_a_look(1);
    assert_eq!(texts(tail.poll().await.unwrap()), ["2"]);
    assert!(tail.is_behind());
    advance(&clock, 60 * MINUTE_MS);
    let (events, gaps) = with_gaps(tail.poll().await.unwrap());
    assert_eq!((events.len(), gaps.len(), tail.is_behind()), (0, 0, false), "{gaps:?}");
    log.put("newer").await.unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["newer"]);
}

#[tokio::test(start_paused = true)]
async fn a_tail_that_finds_nothing_pauses_for_half_of_what_it_was_told_at_the_least() {
    let (probe, clock) = (Probe::new(), clock());
    let log = options(&clock).open_or_create(&probe.shared(), "l").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap().every(Duration::from_secs(2));
    probe.round_trips();
    assert!(tokio::time::timeout(Duration::from_secs(100), tail.next()).await.is_err(), "there is nothing");
    let looks = probe.round_trips();
    assert!((50..=101).contains(&looks), "{looks} looks");
}

#[tokio::test]
async fn events_of_more_than_64_kib_go_out_in_several_writes() {
    let (probe, clock) = (Probe::new(), clock());
    let log = long(&probe.shared(), &clock).await;
    log.put("x").await.unwrap();
    probe.round_trips();
    log.put_all((0..20).map(|_| (START_MS, "x".repeat(4_000)))).await.unwrap();
    assert_eq!(probe.round_trips(), 2, "80,000 bytes");
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 21);
}

/// A log of 65 chunks that was put to; each further put to one of these is refused by the store for good.
async fn refusing(refused: &[u64]) -> EventLog {
    let (store, clock) = (Probe::new().shared(), clock());
    let answering = Answering::new(&store);
    let log = long(&answering.shared(), &clock).await;
    log.put_all(chunks(65)).await.unwrap();
    let mut keys = Vec::new();
    for n in refused {
        keys.push(part_key(&store, "l", START_MS - n * MINUTE_MS, 0).await);
    }
    answering.by(move |op| {
        let is_refused = is_append(op) && keys.contains(&op.key);
        is_refused.then(|| Err(Error::new(ErrorKind::Unsupported, "as the test wants")))
    });
    log
}

#[tokio::test]
async fn a_write_that_fails_behind_others_says_how_many_events_were_put() {
    let log = refusing(&[64]).await;
    let error = log.put_all(chunks(65)).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::Unknown), "{error}");
    assert!(error.to_string().contains("64 of 65 events were put, then: "), "{error}");
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 65 + 64);
}

#[tokio::test]
async fn of_a_write_to_several_chunks_one_that_fails_leaves_a_doubt_and_all_of_them_none() {
    for (refused, effect) in [(&[1][..], Effect::Unknown), (&[0, 1, 2], Effect::NotApplied)] {
        let error = refusing(refused).await.put_all(chunks(3)).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, effect), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tail_pauses_for_the_upper_half_of_what_it_was_told() {
    let clock = clock();
    let store = Shaped::over(&Probe::new().shared(), |profile| profile.watch = false);
    let looks = Arc::new(Mutex::new(Vec::new()));
    let seen = looks.clone();
    let noting = Sieve::answering(&store, move |_, _| {
        seen.lock().unwrap().push(tokio::time::Instant::now());
        None
    });
    let log = options(&clock).open_or_create(&noting, "l").await.unwrap();
    let every = Duration::from_secs(10);
    let mut tail = log.tail(Cursor::default()).unwrap().every(every);
    assert!(tokio::time::timeout(100 * every, tail.next()).await.is_err(), "nothing comes");
    let mut looks = looks.lock().unwrap().clone();
    looks.dedup();
    let pauses: Vec<Duration> = looks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let tick = Duration::from_millis(1);
    assert!(
        pauses.len() > 90 && pauses.iter().all(|pause| *pause + tick >= every / 2 && *pause <= every + tick),
        "{pauses:?}"
    );
}
