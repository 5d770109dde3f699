//! The log through its public handle, on every store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Clock, Ctx, ErrorKind, Key, ManualClock, Op, Remaining, SystemClock, TtlSupport};
use larder_structures::log::{Cursor, EventLogOptions, Events, GapCause};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{EventLog, Name};

use super::{Bench, assert_too_large, cases, one_over};
use crate::faulty::{Fault, Faulty};

cases! {
    log_agrees_with_a_model [];
    log_keeps_events_of_any_bytes [];
    log_refuses_times_in_the_future_and_before_its_retention [];
    log_is_whole_under_eight_tasks_and_two_handles [];
    log_is_whole_when_the_nth_op_fails [];
    log_reports_a_lost_part_as_a_gap [];
    log_reports_a_lost_list_of_chunks [];
    log_goes_on_in_another_part_and_loses_nothing [];
    log_tails_go_on_from_a_cursor_that_was_kept [];
    log_that_is_dropped_leaves_no_key [];
    log_forgets_what_is_past_its_retention_and_calls_it_no_gap [];
    log_takes_chunks_whose_time_is_over_off_its_list [];
    log_parts_live_as_long_as_anybody_wants_them [];
}

/// Ten chunks of a minute, and patience.
fn options() -> EventLogOptions {
    let minute = Duration::from_secs(60);
    EventLog::options().chunk(minute).retention(minute * 10).timeout(Duration::from_secs(30))
}

async fn made(t: &Bench) -> EventLog {
    options().open_or_create(&t.store, t.name("a")).await.expect("a log")
}

/// What was told, each event with how often.
fn counted(events: Vec<larder_structures::log::Event>) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    for event in events {
        *counts.entry(event.bytes.to_vec()).or_default() += 1;
    }
    counts
}

fn whole(events: Events) -> BTreeMap<Vec<u8>, usize> {
    counted(events.whole().expect("no gap"))
}

fn once<B: Into<Vec<u8>>>(events: impl IntoIterator<Item = B>) -> BTreeMap<Vec<u8>, usize> {
    events.into_iter().map(|event| (event.into(), 1)).collect()
}

/// The key of a part, as `docs` write it down: other programs rely on it.
async fn part_key(t: &Bench, time_ms: u64) -> Key {
    part_key_of(t, time_ms / 60_000).await
}

async fn part_key_of(t: &Bench, chunk: u64) -> Key {
    let name = t.name("a");
    let manifest = find(&t.store, Ctx::default(), &Name::new(&name).expect("a name")).await.expect("a manifest");
    let generation = manifest.expect("a log").generation;
    Key::new(format!("L.{name}.e.{generation:016x}.{chunk:x}-0")).expect("a key")
}

async fn ledger_key(t: &Bench) -> Key {
    let part = part_key(t, 0).await;
    let text = String::from_utf8_lossy(part.as_bytes()).into_owned();
    Key::new(text.replace("0-0", "0")).expect("a key")
}

async fn log_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut handles = [made(&t).await, made(&t).await];
    let mut tail = handles[0].tail(Cursor::default()).expect("a tail");
    let now_ms = handles[0].now_ms();
    let mut model: Vec<(u64, String)> = Vec::new();
    let mut told = BTreeMap::new();
    for step in 0..120 {
        let at = rng.usize(..2);
        match rng.u32(..10) {
            0 => handles[at] = options().open(&t.store, t.name("a")).await.expect("the log"),
            1..=2 => {
                let (first, last) = (now_ms - rng.u64(..400_000), now_ms + 1);
                let expected = model.iter().filter(|(time_ms, _)| (first..last).contains(time_ms));
                let expected = once(expected.map(|(_, text)| text.clone()));
                let found = whole(handles[at].fetch(first..last).await.expect("a fetch"));
                assert_eq!(found, expected, "step {step}, seed {seed}");
            }
            3 => {
                for (event, times) in whole(tail.poll().await.expect("a look")) {
                    *told.entry(event).or_default() += times;
                }
                assert_eq!(told, once(model.iter().map(|(_, text)| text.clone())), "step {step}, seed {seed}");
            }
            _ => {
                let (time_ms, text) =
                    (now_ms - rng.u64(..400_000), format!("{step}-{:0len$}", 0, len = rng.usize(1..500)));
                handles[at].put_at(time_ms, &text).await.expect("a put");
                model.push((time_ms, text));
            }
        }
    }
}

async fn log_keeps_events_of_any_bytes(t: Bench) {
    let log = made(&t).await;
    let all: [&[u8]; 6] = [b"", b" ", b"a\r\nb", b"END\r\n", b"\0\xff", &[b'x'; 100_000]];
    for event in all {
        log.put(event).await.expect("a put");
    }
    let limit = log.event_bytes_max();
    if let Some(event) = one_over(limit) {
        assert_too_large(&log.put(&event).await.expect_err("refused"), limit);
        let beside = [(log.now_ms(), &b"beside it"[..]), (log.now_ms(), &event)];
        assert_too_large(&log.put_all(beside).await.expect_err("refused"), limit);
    }
    assert_eq!(whole(log.fetch(..).await.expect("a fetch")), once(all));
}

/// Of ten chunks of a minute, and 5 minutes that clocks may be apart.
async fn log_refuses_times_in_the_future_and_before_its_retention(t: Bench) {
    const MINUTE_MS: u64 = 60_000;
    let log = made(&t).await;
    let now_ms = log.now_ms();
    let good = [now_ms - 9 * MINUTE_MS, now_ms, now_ms + 4 * MINUTE_MS];
    for time_ms in good {
        log.put_at(time_ms, time_ms.to_string()).await.expect("a time that the log takes");
    }
    let expected = once(good.map(|time_ms| time_ms.to_string()));
    let (old, new) = ([0, 1, now_ms - 12 * MINUTE_MS], [now_ms + 7 * MINUTE_MS, now_ms * 2, u64::MAX]);
    for time_ms in old.into_iter().chain(new) {
        for error in [
            log.put_at(time_ms, "bad").await.expect_err("refused"),
            // One of them, and nothing is put.
            log.put_all([(now_ms, "beside it"), (time_ms, "bad")]).await.expect_err("refused"),
        ] {
            assert!(error.kind() == ErrorKind::BadInput && !error.is_unknown(), "{time_ms}: {error}");
        }
    }
    assert_eq!(whole(log.fetch(..).await.expect("a fetch")), expected, "what was refused is there");
    let mut tail = log.tail(Cursor::default()).expect("a tail");
    assert_eq!(whole(tail.poll().await.expect("a look")), expected);
}

async fn log_is_whole_under_eight_tasks_and_two_handles(t: Bench) {
    let (one, two) = (made(&t).await, made(&t).await);
    let now_ms = one.now_ms();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let log = if task % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                for n in 0..25u64 {
                    log.put_at(now_ms - n % 3 * 60_000, format!("{task}-{n}")).await.expect("a put");
                }
            })
        })
        .collect();
    let mut tail = two.tail(Cursor::default()).expect("a tail");
    let mut told = Vec::new();
    while tasks.iter().any(|task| !task.is_finished()) {
        told.extend(tail.poll().await.expect("a look").whole().expect("no gap"));
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    told.extend(tail.poll().await.expect("a look").whole().expect("no gap"));
    let expected = once((0..8).flat_map(|task| (0..25).map(move |n| format!("{task}-{n}"))));
    assert_eq!(whole(one.fetch(..).await.expect("a fetch")), expected);
    assert_eq!(counted(told), expected);
}

async fn log_is_whole_when_the_nth_op_fails(t: Bench) {
    for fault in [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(2)] {
        for nth in 1..=8 {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}-{nth}"));
            let log = options().open_or_create(&faulty.shared(), &name).await.expect("a log");
            let other = options().open(&t.store, &name).await.expect("the log");
            let mut tail = other.tail(Cursor::default()).expect("a tail");
            faulty.fail_nth(nth, fault);
            let mut told = Vec::new();
            for n in 0..3u64 {
                let time_ms = other.now_ms() - n % 2 * 60_000;
                log.put_at(time_ms, format!("one-{n}")).await.expect("a put that can be settled");
                other.put_at(time_ms, format!("two-{n}")).await.expect("a put");
                told.extend(tail.poll().await.expect("a look").whole().expect("no gap"));
            }
            faulty.heal();
            faulty.deliver_late().await;
            told.extend(tail.poll().await.expect("a look").whole().expect("no gap"));
            let expected = once((0..3).flat_map(|n| [format!("one-{n}"), format!("two-{n}")]));
            assert_eq!(whole(other.fetch(..).await.expect("a fetch")), expected, "{fault:?} at op {nth}");
            assert_eq!(counted(told), expected, "{fault:?} at op {nth}");
        }
    }
}

async fn log_reports_a_lost_part_as_a_gap(t: Bench) {
    let log = made(&t).await;
    let now_ms = log.now_ms();
    log.put_at(now_ms, "lost").await.expect("a put");
    log.put_at(now_ms - 120_000, "kept").await.expect("a put");
    let mut tail = log.tail(Cursor::default()).expect("a tail");
    tail.poll().await.expect("a look").whole().expect("no gap");
    t.ok(Op::delete(part_key(&t, now_ms).await)).await;
    let error = log.fetch(..).await.expect("a fetch").whole().expect_err("a part is gone");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let (events, gaps) = log.fetch(..).await.expect("a fetch").with_gaps();
    assert_eq!(counted(events), once(["kept"]));
    assert_eq!((gaps.len(), gaps[0].cause), (1, GapCause::Missing));
    assert!((gaps[0].first_ms..=gaps[0].last_ms).contains(&now_ms));
    // Begun anew by a handle that never saw it.
    made(&t).await.put_at(now_ms, "new").await.expect("a put");
    for found in [log.fetch(..).await.expect("a fetch"), tail.poll().await.expect("a look")] {
        let (events, gaps) = found.with_gaps();
        assert!(counted(events).contains_key(&b"new"[..]));
        assert_eq!((gaps.len(), gaps[0].cause), (1, GapCause::Replaced));
    }
    assert!(tail.poll().await.expect("a look").is_empty(), "a gap is told once");
}

async fn log_reports_a_lost_list_of_chunks(t: Bench) {
    let log = made(&t).await;
    log.put("a").await.expect("a put");
    t.ok(Op::delete(ledger_key(&t).await)).await;
    let fresh = options().open(&t.store, t.name("a")).await.expect("the manifest is there");
    for log in [log, fresh] {
        let read = log.fetch(..).await.expect_err("the list is gone");
        let put = log.put_at(log.now_ms() - 120_000, "b").await.expect_err("the list is gone");
        let tail = log.tail(Cursor::default()).expect("a tail").poll().await.expect_err("the list is gone");
        assert_eq!([read.kind(), put.kind(), tail.kind()], [ErrorKind::Lost; 3], "{read} / {put} / {tail}");
    }
}

async fn log_goes_on_in_another_part_and_loses_nothing(t: Bench) {
    let (one, two) = (made(&t).await, made(&t).await);
    let now_ms = one.now_ms();
    let big = |n: u32| [vec![b'x'; 300_000], n.to_be_bytes().to_vec()].concat();
    for n in 0..8 {
        let log = if n % 2 == 0 { &one } else { &two };
        log.put_at(now_ms, big(n)).await.expect("a put");
    }
    assert_eq!(whole(one.fetch(..).await.expect("a fetch")), once((0..8).map(big)));
}

async fn log_tails_go_on_from_a_cursor_that_was_kept(t: Bench) {
    let log = made(&t).await;
    log.put("a").await.expect("a put");
    let mut tail = log.tail(Cursor::default()).expect("a tail");
    assert_eq!(whole(tail.poll().await.expect("a look")), once(["a"]));
    let kept = tail.cursor().to_bytes();
    log.put_at(log.now_ms() - 300_000, "late").await.expect("a put");
    let other = options().open(&t.store, t.name("a")).await.expect("the log");
    let mut tail = other.tail(Cursor::from_bytes(&kept).expect("a cursor")).expect("a tail");
    assert_eq!(whole(tail.poll().await.expect("a look")), once(["late"]));
    assert!(tail.poll().await.expect("a look").is_empty());
}

async fn log_that_is_dropped_leaves_no_key(t: Bench) {
    let log = made(&t).await;
    let now_ms = log.now_ms();
    let mut keys = vec![ledger_key(&t).await];
    for n in 0..5 {
        log.put_at(now_ms - n * 60_000, "x").await.expect("a put");
        keys.push(part_key(&t, now_ms - n * 60_000).await);
    }
    for key in &keys {
        assert!(t.get(key).await.is_some(), "{key}");
    }
    drop_structure(&t.store, Ctx::default(), &Name::new(t.name("a")).expect("a name")).await.expect("a drop");
    for key in &keys {
        assert!(t.get(key).await.is_none(), "{key} outlived the drop");
    }
    assert_eq!(log.put("late").await.expect_err("it is gone").kind(), ErrorKind::Lost);
}

/// How long chunks are that must be over soon, in milliseconds, and how many of them are kept.
const SHORT_MS: u64 = 1_000;
const SHORT_KEPT: u64 = 3;
/// How far apart clocks may be: parts live so much longer.
const APART_MS: u64 = 300_000;

/// A log of short chunks, by a clock that begins with the right time, at the beginning of a chunk, and is turned by the case.
async fn short_lived(t: &Bench) -> (Arc<ManualClock>, EventLog) {
    let now_ms = u64::try_from(SystemClock::new().wall().as_millis()).expect("a time") / SHORT_MS * SHORT_MS;
    let clock = Arc::new(ManualClock::at(Duration::from_millis(now_ms)));
    let log = short_options(&clock).open_or_create(&t.store, t.name("a")).await.expect("a log");
    (clock, log)
}

fn short_options(clock: &Arc<ManualClock>) -> EventLogOptions {
    let chunk = Duration::from_millis(SHORT_MS);
    let options = EventLog::options().chunk(chunk).retention(chunk * SHORT_KEPT as u32);
    options.timeout(Duration::from_secs(30)).clock(clock.clone())
}

fn turn(clock: &ManualClock, by_ms: u64) {
    clock.advance(Duration::from_millis(by_ms));
}

/// What a server does with a part at the end of its life, which is minutes after the retention. Nothing is left where the log removed it itself.
async fn expire(t: &Bench, chunk: u64) {
    let key = part_key_of(t, chunk).await;
    if t.get(&key).await.is_some() {
        t.ok(Op::delete(key)).await;
    }
}

async fn log_forgets_what_is_past_its_retention_and_calls_it_no_gap(t: Bench) {
    let (clock, log) = short_lived(&t).await;
    let first_ms = log.now_ms();
    let mut tail = log.tail(Cursor::default()).expect("a tail");
    let mut idle = log.tail(Cursor::default()).expect("a tail");
    let mut kept_cursor = None;
    let mut told = Vec::new();
    for n in 0..10u64 {
        log.put(n.to_string()).await.expect("a put");
        let kept = n.saturating_sub(SHORT_KEPT)..=n;
        for log in [&log, &short_options(&clock).open(&t.store, t.name("a")).await.expect("the log")] {
            let all = whole(log.fetch(..).await.expect("a fetch"));
            assert_eq!(all, once(kept.clone().map(|n| n.to_string())), "after {n} chunks");
            let past = log.fetch(..log.now_ms() - SHORT_KEPT * SHORT_MS).await.expect("a fetch into the past");
            assert!(past.whole().expect("no gap").is_empty(), "after {n} chunks");
            let ever = log.fetch(first_ms..=log.now_ms()).await.expect("a fetch from the beginning");
            assert_eq!(whole(ever), all, "after {n} chunks");
        }
        if n > SHORT_KEPT {
            let refused = log.put_at(first_ms, "too late").await.expect_err("past the retention");
            assert_eq!(refused.kind(), ErrorKind::BadInput, "{refused}");
        }
        if n % 2 == 0 {
            told.extend(tail.poll().await.expect("a look").whole().expect("no gap"));
        }
        if n == 1 {
            kept_cursor = Some(tail.cursor().to_bytes());
        }
        turn(&clock, SHORT_MS);
        // Long before it ends by itself the server is without it, and nobody misses it: not even who has read it.
        if n > SHORT_KEPT {
            expire(&t, first_ms / SHORT_MS + n - SHORT_KEPT - 1).await;
        }
    }
    told.extend(tail.poll().await.expect("a look").whole().expect("no gap"));
    assert_eq!(counted(told), once((0..10).map(|n| n.to_string())), "each while it was kept, and once");
    // Those who did not look in time: the retired chunks are not there, and that is no gap.
    let cursor = Cursor::from_bytes(&kept_cursor.expect("a cursor")).expect("a cursor");
    let resumed = log.tail(cursor).expect("a tail");
    for mut tail in [idle, resumed] {
        assert_eq!(whole(tail.poll().await.expect("a look")), once(["7", "8", "9"]));
    }
    idle = log.tail(Cursor::default()).expect("a tail");
    // What goes before its time is one.
    t.ok(Op::delete(part_key_of(&t, first_ms / SHORT_MS + 9).await)).await;
    for found in [log.fetch(..).await.expect("a fetch"), idle.poll().await.expect("a look")] {
        let (events, gaps) = found.with_gaps();
        assert_eq!((counted(events), gaps.len()), (once(["7", "8"]), 1));
    }
    turn(&clock, 20 * SHORT_MS);
    for found in [log.fetch(..).await.expect("a fetch"), tail.poll().await.expect("a look")] {
        assert!(found.whole().expect("no gap: it is past the retention").is_empty());
    }
}

/// Three hundred chunks are made, and all but the newest are over: by the next puts they leave the list.
async fn log_takes_chunks_whose_time_is_over_off_its_list(t: Bench) {
    let (clock, log) = short_lived(&t).await;
    let first = log.now_ms() / SHORT_MS;
    for n in 0..300 {
        log.put(n.to_string()).await.expect("a put");
        turn(&clock, SHORT_MS);
    }
    let ledger = ledger_key(&t).await;
    let full = t.value(&ledger).await.expect("a list").len();
    turn(&clock, APART_MS);
    let keeps_for_ever = t.store.profile().ttl == TtlSupport::None;
    for chunk in (first..first + 300).filter(|_| !keeps_for_ever) {
        expire(&t, chunk).await;
    }
    for n in 0..3 {
        log.put(format!("new {n}")).await.expect("a put");
        turn(&clock, SHORT_MS);
    }
    // Where nothing ends by itself, the log has removed them.
    for chunk in first..first + 290 {
        assert!(t.get(&part_key_of(&t, chunk).await).await.is_none(), "chunk {} is there yet", chunk - first);
    }
    assert_eq!(whole(log.fetch(..).await.expect("a fetch")), once(["new 0", "new 1", "new 2"]));
    // Without conditional writes the list says that they are gone, and keeps that.
    if !t.store.profile().cas {
        return;
    }
    // It is compacted beside the callers, by a write that gives way to theirs: a later look has it done again.
    let mut left = full;
    for _ in 0..100 {
        left = t.value(&ledger).await.expect("a list").len();
        if left < full / 10 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(whole(log.fetch(..).await.expect("a fetch")), once(["new 0", "new 1", "new 2"]));
    }
    panic!("{left} bytes are left of {full}");
}

/// To the end of the chunk, the retention, and as far as clocks may be apart; two seconds more where lives are coarse.
async fn log_parts_live_as_long_as_anybody_wants_them(t: Bench) {
    let (_clock, log) = short_lived(&t).await;
    let now_ms = log.now_ms();
    for back in 0..=SHORT_KEPT {
        log.put_at(now_ms - back * SHORT_MS, "x").await.expect("a put");
        let item = t.get(&part_key_of(&t, now_ms / SHORT_MS - back).await).await.expect("a part");
        let life = match item.ttl {
            Remaining::For(life) => life,
            // Without lives the log removes parts itself; and not every store tells what is left of one.
            _ if t.store.profile().ttl == TtlSupport::None || !t.store.profile().remaining_ttl => continue,
            other => panic!("{other:?} is no life"),
        };
        let wanted_ms = (SHORT_KEPT + 1 - back) * SHORT_MS + APART_MS;
        let life_ms = u64::try_from(life.as_millis()).expect("a life");
        // The case itself takes a while.
        assert!(life_ms <= wanted_ms + 3_000 && life_ms + 30_000 > wanted_ms, "{life_ms} ms, wanted {wanted_ms}");
    }
}
