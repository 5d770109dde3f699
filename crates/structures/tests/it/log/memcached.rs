//! The log on real memcached servers, old and new, in every dialect, and on one that knows the classic commands only.

use std::collections::HashMap;
use std::time::Duration;

use larder_core::{ErrorKind, StoreExt, StoreRef};
use larder_structures::log::Cursor;
use larder_structures::{EventLog, Name, registry};
use larder_testkit::classic_fake::ClassicFake;
use larder_testkit::servers::{Memcached, Version};

use crate::log::support::*;
use crate::support::memcached::{COLUMNS, client};
use crate::support::probe::Probe;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_trips_parts_gaps_and_the_largest_event() {
    for (version, dialect) in COLUMNS {
        let server = Memcached::start(version, &[]);
        let probe = Probe::over(client(server.addr(), &format!("dialect={dialect}")).await);
        let store = probe.shared();
        let column = format!("{version:?} {dialect}");
        let clock = clock();
        let log = options(&clock).open_or_create(&store, b"l").await.unwrap();
        assert_eq!(probe.round_trips(), 3, "made, {column}");
        let mut tail = log.tail(Cursor::default()).unwrap();
        log.put(b"a\r\nb \0\xff").await.unwrap();
        assert_eq!(probe.round_trips(), 2, "a chunk's first, {column}");
        log.put("").await.unwrap();
        assert_eq!(probe.round_trips(), 1, "put, {column}");
        let largest = vec![b'x'; log.event_bytes_max()];
        assert!(largest.len() > 1_040_000, "{column}");
        log.put(&largest).await.unwrap();
        log.put("behind").await.unwrap();
        probe.round_trips();
        let events = log.fetch(..).await.unwrap().whole().unwrap();
        assert_eq!(probe.round_trips(), 2, "fetch, {column}");
        let bytes: Vec<&[u8]> = events.iter().map(|event| &event.bytes[..]).collect();
        assert_eq!(bytes, [&b"a\r\nb \0\xff"[..], b"", &largest, b"behind"], "{column}");
        assert_eq!(tail.poll().await.unwrap().whole().unwrap(), events, "{column}");
        probe.round_trips();
        assert!(tail.poll().await.unwrap().is_empty());
        assert_eq!(probe.round_trips(), 1, "a look, {column}");
        evict(&store, "l", START_MS, 0).await;
        let fresh = options(&clock).open(&client(server.addr(), "").await, "l").await.unwrap();
        fresh.put("new").await.unwrap();
        let (_, gaps) = log.fetch(..).await.unwrap().with_gaps();
        assert_eq!(gaps.len(), 1, "{column}");
        let (told, gaps) = with_gaps(tail.poll().await.unwrap());
        assert_eq!((told, gaps.len()), (vec!["new".to_owned()], 1), "{column}");
        let list = ledger_key(&store, "l").await;
        registry::drop_structure(&store, Default::default(), &Name::new("l").unwrap()).await.unwrap().unwrap();
        // In the classic dialect a delete by token leaves an empty item that is over, until it is asked for.
        assert!(store.get(list).await.unwrap().is_none());
        assert!(registry::find(&store, Default::default(), &Name::new("l").unwrap()).await.unwrap().is_none());
        assert_eq!(server.stat("curr_items"), 0, "{column}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_million_events_in_one_call() {
    let server = Memcached::start(Version::New, &["-m", "256"]);
    let store = client(server.addr(), "").await;
    let clock = clock();
    let log = options(&clock).timeout(Duration::from_secs(60)).open_or_create(&store, "l").await.unwrap();
    log.put_all((0..1_000_000u64).map(|n| (START_MS - n % (9 * MINUTE_MS), n.to_le_bytes()))).await.unwrap();
    let all = log.fetch(..).await.unwrap().whole().unwrap();
    assert_eq!(all.len(), 1_000_000);
    assert!(all.is_sorted_by_key(|event| event.time_ms));
    let unique: std::collections::HashSet<&[u8]> = all.iter().map(|event| &event.bytes[..]).collect();
    assert_eq!(unique.len(), 1_000_000);
}

/// Where the server itself ends the items: a chunk of a second, kept for two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_leave_the_server_by_themselves() {
    let server = Memcached::start(Version::New, &[]);
    let store = client(server.addr(), "").await;
    let second = Duration::from_secs(1);
    let log = EventLog::options().chunk(second).retention(second * 2).open_or_create(&store, "l").await.unwrap();
    log.put("a").await.unwrap();
    let key = part_key_of(&store, "l", &log).await;
    let item = store.run_one(Default::default(), larder_core::Op::get(key, larder_core::Want::TTL)).await.unwrap();
    let Some(larder_core::Remaining::For(life)) = item.into_item().map(|item| item.ttl) else { panic!("no life") };
    // Chunk, retention, and five minutes for clocks that are apart.
    assert!(life > Duration::from_secs(301) && life <= Duration::from_secs(306), "{life:?}");
}

async fn part_key_of(store: &StoreRef, name: &str, log: &EventLog) -> larder_core::Key {
    let manifest = registry::find(store, Default::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    let chunk = log.now_ms() / 1_000;
    for chunk in [chunk, chunk - 1] {
        let key = larder_core::Key::new(format!("L.{name}.e.{:016x}.{chunk:x}-0", manifest.generation)).unwrap();
        if store.get(key.clone()).await.unwrap().is_some() {
            return key;
        }
    }
    panic!("the part is not there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_absent_or_lost_and_never_an_empty_log() {
    let mut server = Memcached::start(Version::New, &[]);
    let store = client(server.addr(), "").await;
    let clock = clock();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    log.put("a").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    tail.poll().await.unwrap().whole().unwrap();
    server.restart();
    // The client dials again when it has seen the connection break.
    let error = loop {
        match log.put("b").await.unwrap_err() {
            error if error.kind() == ErrorKind::Unavailable => tokio::time::sleep(Duration::from_millis(10)).await,
            error => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(log.fetch(..).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(tail.poll().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(EventLog::open(&store, "l").await.unwrap_err().kind(), ErrorKind::Absent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_nine_commands_carries_a_log() {
    let server = ClassicFake::start();
    let store = client(server.addr(), "").await;
    assert!(!store.profile().cas);
    let clock = clock();
    let log = options(&clock).open_or_create(&store, "l").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    for n in 0..5u64 {
        log.put_at(START_MS - n * MINUTE_MS, n.to_string()).await.unwrap();
    }
    assert_eq!(texts(log.fetch(..).await.unwrap()), ["4", "3", "2", "1", "0"]);
    assert_eq!(texts(tail.poll().await.unwrap()), ["4", "3", "2", "1", "0"]);
    log.put_at(START_MS - 2 * MINUTE_MS, "late").await.unwrap();
    assert_eq!(texts(tail.poll().await.unwrap()), ["late"]);
    assert!(tail.poll().await.unwrap().is_empty());
    evict(&store, "l", START_MS, 0).await;
    assert_eq!(with_gaps(tail.poll().await.unwrap()).1.len(), 1);
    assert!(tail.poll().await.unwrap().is_empty());
    // Nothing expires here: whoever makes a chunk removes those that are over, once there are many.
    let first = part_key(&store, "l", START_MS - 4 * MINUTE_MS, 0).await;
    assert!(store.get(first.clone()).await.unwrap().is_some());
    for n in 0..90 {
        advance(&clock, MINUTE_MS);
        log.put(n.to_string()).await.unwrap();
    }
    assert!(store.get(first).await.unwrap().is_none());
    let expected: Vec<String> = (80..90).map(|n| n.to_string()).collect();
    assert_eq!(texts(log.fetch(now_ms(&clock) - 9 * MINUTE_MS - 1..).await.unwrap()), expected);
}

/// More events than the server has memory: what it evicts, whatever that is, is told of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_server_evicts_is_a_gap_or_lost_and_never_silence() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for version in Version::ALL {
        let server = Memcached::start(version, &["-m", "8"]);
        let clock = clock();
        let clients = [client(server.addr(), "").await, client(server.addr(), "").await];
        let one = options(&clock).open_or_create(&clients[0], "l").await.unwrap();
        let handles = [one, options(&clock).open(&clients[1], "l").await.unwrap()];
        let mut tail = handles[1].tail(Cursor::default()).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut acknowledged, mut told, mut gaps_told, mut is_lost) = (Vec::new(), HashMap::new(), Vec::new(), false);
        for n in 0..1_500 {
            let (time_ms, text) =
                (START_MS - rng.u64(0..9 * MINUTE_MS), format!("{n}-{:0len$}", 0, len = rng.usize(1..30_000)));
            match handles[n % 2].put_at(time_ms, &text).await {
                Ok(()) => acknowledged.push((time_ms, text)),
                Err(error) if error.kind() == ErrorKind::Lost => is_lost = true,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
            }
            if n % 100 == 0 && !is_lost {
                match tail.poll().await {
                    Ok(found) => {
                        let (events, gaps) = with_gaps(found);
                        events.into_iter().for_each(|text| *told.entry(text).or_insert(0) += 1);
                        gaps_told.extend(gaps);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                        is_lost = true;
                    }
                }
            }
        }
        assert!(server.stat("evictions") > 10);
        let fetched = match handles[0].fetch(..).await {
            Ok(found) => found,
            // The list went, too: nobody takes the log for an empty one.
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                continue;
            }
        };
        assert!(!is_lost);
        let (events, gaps) = with_gaps(fetched);
        let there: std::collections::HashSet<String> = events.into_iter().collect();
        let (events, more) = with_gaps(tail.poll().await.unwrap());
        events.into_iter().for_each(|text| *told.entry(text).or_insert(0) += 1);
        gaps_told.extend(more);
        assert!(!gaps.is_empty() && there.len() < acknowledged.len(), "nothing was lost: no test");
        let covers = |gaps: &[larder_structures::log::Gap], time_ms: u64| {
            gaps.iter().any(|gap| (gap.first_ms..=gap.last_ms).contains(&time_ms))
        };
        for (time_ms, text) in &acknowledged {
            let number = text.split('-').next();
            assert!(there.contains(text) || covers(&gaps, *time_ms), "{number:?} is missing; {version:?}, seed {seed}");
            let times = told.get(text).copied().unwrap_or(0);
            assert!(times == 1 || times == 0 && covers(&gaps_told, *time_ms), "{number:?} {times} times, seed {seed}");
        }
    }
}
