//! Logs: what is put is told once, in order; what is lost is told as a gap; what is refused, and how many round trips it takes.

use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, StoreExt, StoreRef};
use larder_structures::log::{Cursor, GapCause};
use larder_structures::{EventLog, Name, Set, registry};

use crate::log::support::*;
use crate::support::hooked::Hooked;
use crate::support::probe::Probe;

async fn opened() -> (std::sync::Arc<Probe>, StoreRef, std::sync::Arc<larder_core::ManualClock>, EventLog) {
    let probe = Probe::new();
    let store = probe.shared();
    let clock = clock();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    probe.round_trips();
    (probe, store, clock, log)
}

async fn again(store: &StoreRef, clock: &std::sync::Arc<larder_core::ManualClock>) -> EventLog {
    options(clock).open(store, "l").await.unwrap()
}

#[tokio::test]
async fn events_are_told_in_the_order_of_their_time_then_as_they_arrived() {
    let (_, _, _, log) = opened().await;
    log.put_at(START_MS, "third").await.unwrap();
    log.put_at(START_MS - 5 * MINUTE_MS, "first").await.unwrap();
    log.put_at(START_MS, "fourth").await.unwrap();
    log.put_at(START_MS - 1, "second").await.unwrap();
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["first", "second", "third", "fourth"]);
    // Both ends count, or not, as the range says.
    assert_eq!(texts(log.fetch(START_MS - 1..START_MS).await.unwrap()), ["second"]);
    assert_eq!(texts(log.fetch(START_MS..=START_MS).await.unwrap()), ["third", "fourth"]);
    assert_eq!(texts(log.fetch(START_MS - 5 * MINUTE_MS..START_MS - 1).await.unwrap()), ["first"]);
    assert_eq!(log.fetch(START_MS..START_MS).await.unwrap().whole().unwrap(), []);
    // The errata of the article: first and last chunk the same read the whole ring.
    assert_eq!(texts(log.fetch(START_MS - 4 * MINUTE_MS..=START_MS - 4 * MINUTE_MS).await.unwrap()), [""; 0]);
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let (probe, store, clock, log) = opened().await;
    log.put("a").await.unwrap();
    assert_eq!(probe.round_trips(), 2, "a chunk's first event");
    log.put("b").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "put");
    let other = again(&store, &clock).await;
    assert_eq!(probe.round_trips(), 1, "open");
    other.put("c").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "the first put of another handle");
    let events: Vec<(u64, String)> = (0..100).map(|n| (START_MS, n.to_string())).collect();
    log.put_all(events).await.unwrap();
    assert_eq!(probe.round_trips(), 1, "a hundred");
    log.put_at(START_MS - MINUTE_MS, "older").await.unwrap();
    assert_eq!(probe.round_trips(), 2, "another chunk");
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 104);
    assert_eq!(probe.round_trips(), 2, "fetch");
    let mut tail = log.tail(Cursor::default()).unwrap();
    tail.poll().await.unwrap().whole().unwrap();
    assert_eq!(probe.round_trips(), 2, "the first look");
    assert!(tail.poll().await.unwrap().is_empty());
    assert_eq!(probe.round_trips(), 1, "a look that finds nothing");
    log.put("d").await.unwrap();
    probe.round_trips();
    assert_eq!(texts(tail.poll().await.unwrap()), ["d"]);
    assert_eq!(probe.round_trips(), 2, "a look that finds something");
    let name = Name::new("l").unwrap();
    registry::drop_structure(&store, Default::default(), &name).await.unwrap().unwrap();
    assert_eq!(probe.round_trips(), 5, "drop");
}

#[tokio::test]
async fn a_further_part_takes_a_put_of_2_and_more_parts_than_a_batch_takes_a_fetch_of_more() {
    let probe = Probe::new();
    let clock = clock();
    // Fails where a batch has more ops than the store takes.
    let store = Hooked::with_batches_of(&probe.shared(), 4).shared();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    let event = "x".repeat(40_000);
    let mut costs = Vec::new();
    for _ in 0..6 {
        probe.round_trips();
        log.put(&event).await.unwrap();
        costs.push(probe.round_trips());
    }
    // Two fill a part, which its maker lists before he answers.
    assert_eq!(costs, [2, 1, 2, 1, 2, 1]);
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 6);
    assert_eq!(probe.round_trips(), 2, "the list, and three parts");
    for minutes in 1..4 {
        log.put_at(START_MS - minutes * MINUTE_MS, "x").await.unwrap();
    }
    probe.round_trips();
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 9);
    assert_eq!(probe.round_trips(), 3, "the list, four parts, and two");
}

#[tokio::test]
async fn a_late_event_is_in_its_own_chunk_and_never_in_a_later_round() {
    let (_, _, clock, log) = opened().await;
    // The article's ring of 10 chunks: an event of the oldest of them, that comes late, then a round later the same slot again.
    log.put_at(START_MS - 9 * MINUTE_MS, "late").await.unwrap();
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["late"]);
    let mut tail = log.tail(Cursor::default()).unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["late"]);
    advance(&clock, 2 * MINUTE_MS);
    log.put("now").await.unwrap();
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["now"]);
    assert_eq!(texts(tail.poll().await.unwrap()), ["now"]);
    advance(&clock, 8 * MINUTE_MS);
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["now"]);
    advance(&clock, 3 * MINUTE_MS);
    assert_eq!(texts(log.fetch(..).await.unwrap()), [""; 0], "past the retention, and no gap");
    assert!(tail.poll().await.unwrap().is_empty());
}

#[tokio::test]
async fn any_bytes_the_empty_and_the_largest_event() {
    let (_, _, _, log) = opened().await;
    let largest = vec![b'x'; log.event_bytes_max()];
    assert!(largest.len() > 1_000_000);
    for event in [&b""[..], b"\xff\0\r\n", &largest, b"behind"] {
        log.put(event).await.unwrap();
    }
    let events = log.fetch(..).await.unwrap().whole().unwrap();
    let bytes: Vec<&[u8]> = events.iter().map(|event| &event.bytes[..]).collect();
    assert_eq!(bytes, [&b""[..], b"\xff\0\r\n", &largest, b"behind"]);
    let error = log.put(vec![b'x'; largest.len() + 1]).await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::BadInput, false));
    assert!(error.to_string().contains(&largest.len().to_string()), "{error}");
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 4);
}

#[tokio::test]
async fn a_chunk_that_outgrows_a_part_goes_on_in_others() {
    let (_, store, clock, log) = opened().await;
    let text = |n: usize| format!("{n:01000}");
    let expected: Vec<String> = (0..300).map(text).collect();
    let other = again(&store, &clock).await;
    let mut tail = log.tail(Cursor::default()).unwrap();
    let mut told = Vec::new();
    for (n, event) in expected.iter().enumerate() {
        [&log, &other][n % 2].put(event).await.unwrap();
        if n % 37 == 0 {
            told.extend(texts(tail.poll().await.unwrap()));
        }
    }
    told.extend(texts(tail.poll().await.unwrap()));
    assert_eq!(told.len(), 300);
    told.sort();
    assert_eq!(told, expected);
    let mut all = texts(log.fetch(..).await.unwrap());
    all.sort();
    assert_eq!(all, expected);
    assert!(store.get(part_key(&store, "l", START_MS, 2).await).await.unwrap().is_some(), "a third part");
}

/// Items of 7,000 bytes: the store itself refuses, and nobody has counted.
#[tokio::test]
async fn a_part_that_the_store_refuses_to_grow_is_followed_by_another() {
    let probe = Probe::small(7_000);
    let store = probe.shared();
    let clock = clock();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    for n in 0..40 {
        // Each handle is fresh: it begins with the first part, and finds it full.
        let fresh = again(&store, &clock).await;
        fresh.put(format!("{n:0500}")).await.unwrap();
        probe.round_trips();
        fresh.put(format!("{n:0500}")).await.unwrap();
        assert!(probe.round_trips() <= 4);
    }
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 80);
    assert!(store.get(part_key(&store, "l", START_MS, 5).await).await.unwrap().is_some());
    let refused = log.put(vec![0; log.event_bytes_max() + 1]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::BadInput);
    let largest = vec![0; log.event_bytes_max()];
    log.put(&largest).await.unwrap();
    log.put(&largest).await.unwrap();
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 82);
}

#[tokio::test]
async fn a_part_that_is_gone_is_a_gap_and_is_told_once_by_a_tail() {
    let (_, store, clock, log) = opened().await;
    log.put_at(START_MS - MINUTE_MS, "kept").await.unwrap();
    log.put("lost").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["kept", "lost"]);
    evict(&store, "l", START_MS, 0).await;
    let found = log.fetch(..).await.unwrap();
    assert_eq!(found.clone().whole().unwrap_err().kind(), ErrorKind::Lost);
    let (events, gaps) = with_gaps(found);
    assert_eq!(events, ["kept"]);
    let chunk = START_MS / MINUTE_MS;
    assert_eq!((gaps[0].first_ms, gaps[0].last_ms), (chunk * MINUTE_MS, chunk * MINUTE_MS + MINUTE_MS - 1));
    assert_eq!((gaps[0].part, gaps[0].cause, gaps.len()), (0, GapCause::Missing, 1));
    // Of a chunk where nothing was lost, nothing is told.
    assert_eq!(texts(log.fetch(..chunk * MINUTE_MS).await.unwrap()), ["kept"]);
    for mut tail in [log.tail(Cursor::default()).unwrap(), log.tail(kept(&tail)).unwrap(), tail] {
        let (_, gaps) = with_gaps(tail.poll().await.unwrap());
        assert_eq!(gaps.len(), 1);
        assert!(tail.poll().await.unwrap().is_empty());
        assert!(log.tail(kept(&tail)).unwrap().poll().await.unwrap().is_empty(), "told once, in the next process too");
    }
    // Over with the retention.
    advance(&clock, 12 * MINUTE_MS);
    assert!(log.fetch(..).await.unwrap().is_empty());
}

/// A cursor that went through its bytes.
fn kept(tail: &larder_structures::log::Tail) -> Cursor {
    Cursor::from_bytes(&tail.cursor().to_bytes()).unwrap()
}

#[tokio::test]
async fn a_part_that_is_made_again_by_a_handle_that_never_saw_it_is_a_gap_and_its_events() {
    for by_the_same in [false, true] {
        let (_, store, clock, log) = opened().await;
        log.put("lost").await.unwrap();
        let mut tail = log.tail(Cursor::default()).unwrap();
        tail.poll().await.unwrap().whole().unwrap();
        evict(&store, "l", START_MS, 0).await;
        let putter = if by_the_same { log.clone() } else { again(&store, &clock).await };
        putter.put("new").await.unwrap();
        for found in [log.fetch(..).await.unwrap(), tail.poll().await.unwrap()] {
            let (events, gaps) = with_gaps(found);
            assert_eq!(events, ["new"]);
            assert_eq!((gaps.len(), gaps[0].cause), (1, GapCause::Replaced));
        }
        // And lost again: both are told.
        evict(&store, "l", START_MS, 0).await;
        log.put("newest").await.unwrap();
        let (events, gaps) = with_gaps(log.fetch(..).await.unwrap());
        assert_eq!((events, gaps.len()), (vec!["newest".to_owned()], 2));
        let (events, gaps) = with_gaps(tail.poll().await.unwrap());
        assert_eq!((events, gaps.len()), (vec!["newest".to_owned()], 1), "the first was told before");
    }
}

#[tokio::test]
async fn a_list_of_chunks_that_is_gone_is_lost_and_never_an_empty_log() {
    let (_, store, clock, log) = opened().await;
    log.put("a").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    store.delete(ledger_key(&store, "l").await).await.unwrap();
    let fresh = again(&store, &clock).await;
    for log in [&log, &fresh] {
        assert_eq!(log.fetch(..).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(log.put_at(START_MS - MINUTE_MS, "b").await.unwrap_err().kind(), ErrorKind::Lost);
    }
    assert_eq!(tail.poll().await.unwrap_err().kind(), ErrorKind::Lost);
    // A handle that only appends to a part that it knows finds out within a minute.
    advance(&clock, 61_000);
    let error = log.put_at(START_MS, "c").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn clocks_three_minutes_apart_lose_nothing() {
    let (_, store, clock, log) = opened().await;
    let apart = |ms: i64| {
        let other = std::sync::Arc::new(larder_core::ManualClock::at(Duration::from_millis(
            START_MS.checked_add_signed(ms).unwrap(),
        )));
        async { (options(&other).open(&store, "l").await.unwrap(), other) }
    };
    let (fast, _) = apart(3 * 60_000).await;
    let (slow, slow_clock) = apart(-3 * 60_000).await;
    fast.put("fast").await.unwrap();
    slow.put("slow").await.unwrap();
    log.put("mine").await.unwrap();
    for log in [&fast, &slow, &log] {
        assert_eq!(texts(log.fetch(..).await.unwrap()), ["slow", "mine", "fast"]);
        let mut tail = log.tail(Cursor::default()).unwrap();
        assert_eq!(texts(tail.poll().await.unwrap()), ["slow", "mine", "fast"]);
    }
    // An event of the oldest chunk that the slow one still takes: the fast one's clock must not end it under the slow one.
    let old_ms = now_ms(&slow_clock) - 10 * MINUTE_MS + 1;
    slow.put_at(old_ms, "old").await.unwrap();
    assert_eq!(texts(slow.fetch(..).await.unwrap())[0], "old");
    fast.put_at(START_MS - 6 * MINUTE_MS, "x").await.unwrap();
    assert_eq!(texts(slow.fetch(..).await.unwrap())[0], "old");
    // Without a gap, also when all that a store keeps by its own clock is over for the fast one.
    advance(&clock, 5 * MINUTE_MS);
    log.put("later").await.unwrap();
    assert!(texts(slow.fetch(..).await.unwrap()).contains(&"old".to_owned()));
}

#[tokio::test]
async fn times_out_of_range_are_refused_and_nothing_is_written() {
    let (probe, _, clock, log) = opened().await;
    for (time_ms, limit) in [
        (START_MS + 5 * MINUTE_MS + 1, "the limit is 300000 ms"),
        (u64::MAX, "the limit is 300000 ms"),
        (START_MS - 10 * MINUTE_MS - 1, "600000 ms"),
        (0, "600000 ms"),
    ] {
        let error = log.put_all([(START_MS, "good"), (time_ms, "bad")]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
        assert!(error.to_string().contains(limit) && error.to_string().contains(&time_ms.to_string()), "{error}");
    }
    assert_eq!(probe.round_trips(), 0);
    log.put_at(START_MS + 5 * MINUTE_MS, "soon").await.unwrap();
    log.put_at(START_MS - 10 * MINUTE_MS, "just").await.unwrap();
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["just", "soon"]);
    let (first, last) = (START_MS, START_MS - 1);
    let error = log.fetch(first..=last).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("before that"), "{error}");
    assert!(log.fetch(u64::MAX..).await.unwrap().is_empty());
    assert!(log.fetch(..0).await.unwrap().is_empty());
    // A clock that has not been set takes events of its own time.
    clock.set_wall(Duration::ZERO);
    log.put("1970").await.unwrap();
}

#[tokio::test]
async fn no_events_and_very_many_in_one_call() {
    let (probe, _, _, log) = opened().await;
    log.put_all(Vec::<(u64, &str)>::new()).await.unwrap();
    assert_eq!(probe.round_trips(), 0);
    let events = (0..1_000_000u64).map(|n| (START_MS - n % (9 * MINUTE_MS), n.to_le_bytes()));
    log.put_all(events).await.unwrap();
    let all = log.fetch(..).await.unwrap().whole().unwrap();
    assert_eq!(all.len(), 1_000_000);
    assert!(all.is_sorted_by_key(|event| event.time_ms));
    let unique: std::collections::HashSet<&[u8]> = all.iter().map(|event| &event.bytes[..]).collect();
    assert_eq!(unique.len(), 1_000_000);
}

#[tokio::test]
async fn a_store_without_room_says_full_and_what_was_put_stays() {
    let inner = larder_store_memory::MemoryStore::builder().bytes_max(256 * 1024).build().unwrap();
    let store = Probe::over(std::sync::Arc::new(inner)).shared();
    let clock = clock();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    for is_new_chunk in [false, true] {
        let mut expected = log.fetch(..).await.unwrap().whole().unwrap().len();
        let error = loop {
            let time_ms = START_MS - u64::from(is_new_chunk) * MINUTE_MS;
            match log.put_at(time_ms, [b'x'; 1_000]).await {
                Ok(()) => expected += 1,
                Err(error) => break error,
            }
            assert!(expected < 1_000);
        };
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
        assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), expected);
    }
}

#[tokio::test]
async fn parameters_are_checked_and_kept() {
    let store = Probe::new().shared();
    let seconds = Duration::from_secs;
    let bad = [
        (Some(Duration::ZERO), None, "1s to 2678400s"),
        (Some(Duration::from_millis(999)), None, "1s to 2678400s"),
        (Some(seconds(32 * 86_400)), None, "1s to 2678400s"),
        (None, Some(Duration::ZERO), "retention is 1s"),
        (Some(seconds(60)), Some(seconds(59)), "shorter than a chunk"),
        (Some(seconds(1)), Some(seconds(4_097)), "the limit is 4096"),
        (None, Some(Duration::MAX), "retention is 1s"),
    ];
    for (chunk, retention, limit) in bad {
        let mut options = EventLog::options();
        options = chunk.map_or(options.clone(), |chunk| options.chunk(chunk));
        options = retention.map_or(options.clone(), |retention| options.retention(retention));
        let error = options.open_or_create(&store, "l").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains(limit), "{error}");
    }
    assert_eq!(EventLog::open(&store, "l").await.unwrap_err().kind(), ErrorKind::Absent);
    let error = EventLog::options().timeout(Duration::ZERO).open_or_create(&store, "l").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    let log = EventLog::options().retention(seconds(48 * 3_600)).open_or_create(&store, "l").await.unwrap();
    assert_eq!((log.chunk(), log.retention()), (seconds(2 * 3_600), seconds(48 * 3_600)));
    // Who names none takes those that are there.
    assert_eq!(EventLog::open_or_create(&store, "l").await.unwrap().chunk(), seconds(2 * 3_600));
    for other in [EventLog::options().chunk(seconds(3_600)), EventLog::options().retention(seconds(3_600))] {
        let error = other.open_or_create(&store, "l").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
        assert!(error.to_string().contains("3600s"), "{error}");
    }
    assert_eq!(Set::open(&store, "l").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    Set::open_or_create(&store, "s").await.unwrap();
    assert_eq!(EventLog::open_or_create(&store, "s").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
}

#[tokio::test]
async fn a_cursor_goes_on_in_another_process_and_not_in_another_life() {
    let (_, store, clock, log) = opened().await;
    let mut now = log.tail_from_now().await.unwrap();
    log.put("a").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["a"]);
    assert_eq!(texts(now.poll().await.unwrap()), ["a"]);
    log.put_at(START_MS - 3 * MINUTE_MS, "late").await.unwrap();
    log.put("b").await.unwrap();
    let other = again(&store, &clock).await;
    let mut taken_up = other.tail(kept(&tail)).unwrap();
    assert_eq!(texts(taken_up.poll().await.unwrap()), ["late", "b"]);
    assert!(taken_up.poll().await.unwrap().is_empty());
    registry::drop_structure(&store, Default::default(), &Name::new("l").unwrap()).await.unwrap();
    options(&clock).open_or_create(&store, "l").await.unwrap();
    let error = again(&store, &clock).await.tail(kept(&tail)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn waiting_tells_an_event_soon_after_it_came() {
    let (_, _, _, log) = opened().await;
    let mut tail = log.tail_from_now().await.unwrap().every(Duration::from_millis(20));
    let waiting = tokio::spawn(async move { texts(tail.next().await.unwrap()) });
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(!waiting.is_finished());
    log.put("a").await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap(), ["a"]);
}

#[tokio::test]
async fn a_drop_leaves_nothing_and_a_handle_notices() {
    let (_, store, clock, log) = opened().await;
    for n in 0..9 {
        log.put_at(START_MS - n * MINUTE_MS, "x").await.unwrap();
    }
    let keys = [part_key(&store, "l", START_MS, 0).await, part_key(&store, "l", START_MS - 8 * MINUTE_MS, 0).await];
    registry::drop_structure(&store, Default::default(), &Name::new("l").unwrap()).await.unwrap().unwrap();
    for key in keys {
        assert!(store.get(key).await.unwrap().is_none());
    }
    assert_eq!(log.put("y").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(log.fetch(..).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(options(&clock).open(&store, "l").await.unwrap_err().kind(), ErrorKind::Absent);
}

#[tokio::test]
async fn the_list_does_not_grow_for_ever() {
    let (_, store, clock, log) = opened().await;
    let key = ledger_key(&store, "l").await;
    for n in 0..400u64 {
        log.put("x").await.unwrap();
        // The store's own clock stands: its items are expired here.
        if n >= 20 {
            _ = store.delete(part_key(&store, "l", now_ms(&clock) - 20 * MINUTE_MS, 0).await).await;
        }
        advance(&clock, MINUTE_MS);
        assert!(store.get(key.clone()).await.unwrap().unwrap().value.len() < 8_000, "at chunk {n}");
    }
    assert_eq!(log.fetch(..).await.unwrap().whole().unwrap().len(), 10);
}

/// What is past its life makes room before a put is refused: else nobody would ever get so far as to remove it.
#[tokio::test]
async fn a_list_that_was_full_takes_chunks_again_once_its_own_are_over() {
    let clock = clock();
    let inner =
        larder_store_memory::MemoryStore::builder().value_bytes_max(5_900).clock(clock.clone()).build().unwrap();
    let store: StoreRef = std::sync::Arc::new(inner);
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    let mut parts = 0;
    let error = loop {
        // No two of them fit into a part.
        match log.put([b'x'; 3_000]).await {
            Ok(()) => parts += 1,
            Err(error) => break error,
        }
        assert!(parts < 1_000);
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(parts > 200, "{parts} parts");
    assert_eq!(log.put([b'x'; 3_000]).await.unwrap_err().kind(), ErrorKind::Full, "nothing is over yet");
    advance(&clock, 20 * MINUTE_MS);
    log.put("after").await.unwrap();
    assert_eq!(texts(again(&store, &clock).await.fetch(..).await.unwrap()), ["after"]);
    assert!(store.get(ledger_key(&store, "l").await).await.unwrap().unwrap().value.len() < 1_000);
}

#[tokio::test]
async fn eight_tasks_on_two_handles_lose_nothing_and_repeat_nothing() {
    let (_, store, clock, log) = opened().await;
    let other = again(&store, &clock).await;
    let mut tail = other.tail(Cursor::default()).unwrap();
    let task = |task: u64| {
        let log = if task.is_multiple_of(2) { log.clone() } else { other.clone() };
        tokio::spawn(async move {
            for n in 0..100 {
                log.put_at(START_MS - n % 3 * MINUTE_MS, format!("{task}-{n}-{:0200}", 0)).await.unwrap();
            }
        })
    };
    let tasks: Vec<_> = (0..8).map(task).collect();
    let mut told = Vec::new();
    while tasks.iter().any(|task| !task.is_finished()) {
        told.extend(texts(tail.poll().await.unwrap()));
    }
    for task in tasks {
        task.await.unwrap();
    }
    told.extend(texts(tail.poll().await.unwrap()));
    told.sort();
    let mut all = texts(log.fetch(..).await.unwrap());
    all.sort();
    let mut expected: Vec<String> =
        (0..8).flat_map(|task| (0..100).map(move |n| format!("{task}-{n}-{:0200}", 0))).collect();
    expected.sort();
    assert_eq!(all, expected);
    assert_eq!(told, expected);
}

/// A look asks for no more than it was told to, and what the next one takes up costs one round trip.
#[tokio::test]
async fn a_look_is_bounded_and_the_next_takes_up_what_it_left() {
    let probe = Probe::small(7_000);
    let clock = clock();
    let log = options(&clock).open_or_create(&probe.shared(), "l").await.unwrap();
    for n in 0..10 {
        // No two of them fit into a part; two chunks.
        let time_ms = START_MS - if n % 2 == 0 { MINUTE_MS } else { 0 };
        log.put_at(time_ms, format!("{n}{:0>4000}", 0)).await.unwrap();
    }
    let mut tail = log.tail(Cursor::default()).unwrap().parts_a_look(2);
    let mut told = Vec::new();
    let mut trips = Vec::new();
    for _ in 0..6 {
        probe.round_trips();
        let found = texts(tail.poll().await.unwrap());
        assert!(found.len() <= 2, "{}", found.len());
        trips.push(probe.round_trips());
        told.extend(found.iter().map(|text| text[..1].to_owned()));
        if !tail.is_behind() {
            break;
        }
    }
    // The older chunk first, and a chunk that is too large for a look goes in several.
    assert_eq!(told.concat(), "0246813579");
    assert_eq!(trips, [2, 1, 1, 1, 1, 1]);
    assert!(!tail.is_behind());
    log.put("new").await.unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["new"]);
}

/// 4,096 chunks need a list of some 80 KB.
#[tokio::test]
async fn a_retention_whose_list_of_chunks_does_not_fit_is_refused_at_open() {
    let second = Duration::from_secs(1);
    let wanted = || EventLog::options().chunk(second).retention(second * 4096);
    let small = Probe::small(64 * 1024).shared();
    let error = wanted().open_or_create(&small, "l").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("needs a list of 4761 of them; the limit on this store"), "{error}");
    assert!(registry::find(&small, Ctx::default(), &Name::new("l").unwrap()).await.unwrap().is_none());
    wanted().retention(second * 2048).open_or_create(&small, "l").await.unwrap();
    let large = Probe::small(128 * 1024).shared();
    wanted().open_or_create(&large, "l").await.unwrap();
}

/// One connection tells tokens and the other values, look after look.
#[tokio::test]
async fn two_connections_that_take_turns_cost_a_look_one_more_once() {
    let (probe, store, clock, _) = opened().await;
    let log = again(&(std::sync::Arc::new(ByTurns(store, Default::default())) as StoreRef), &clock).await;
    log.put("first").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["first"]);
    probe.round_trips();
    let mut costs = Vec::new();
    for _ in 0..6 {
        assert_eq!(texts(tail.poll().await.unwrap()), [""; 0]);
        costs.push(probe.round_trips());
    }
    assert_eq!(costs, [2, 1, 1, 1, 1, 1]);
    // And nothing that comes is taken for known.
    for event in ["second", "third", "fourth"] {
        log.put(event).await.unwrap();
        assert_eq!(texts(tail.poll().await.unwrap()), [event]);
    }
}
