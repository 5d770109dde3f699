//! Visitors in memory: windows, late hits, few hits, loss, clocks, limits, a model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, ManualClock, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Set, Visitors, registry};

use crate::support::probe::{Probe, set_value, value_of};
use crate::visitors::support::*;

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn windows_shift_exactly_at_the_boundary() {
    let clock = clock();
    let site = open(&memory(&clock), &clock).await;
    site.hit().await.unwrap();
    clock.advance(PERIOD - MS);
    site.hit().await.unwrap();
    assert_eq!((site.current().await.unwrap(), site.get().await.unwrap()), (2, 0));
    clock.advance(MS);
    assert_eq!((site.current().await.unwrap(), site.get().await.unwrap()), (0, 2));
    site.hit().await.unwrap();
    assert_eq!((site.current().await.unwrap(), site.get().await.unwrap()), (1, 2));
    clock.advance(PERIOD - MS);
    assert_eq!((site.current().await.unwrap(), site.get().await.unwrap()), (1, 2));
    clock.advance(MS);
    assert_eq!((site.current().await.unwrap(), site.get().await.unwrap()), (0, 1));
    clock.advance(PERIOD);
    assert_eq!((site.current().await.unwrap(), site.get().await.unwrap()), (0, 0));
}

/// The article's counter is wrong here, as it says: the window that is being filled vanishes on the way.
#[tokio::test]
async fn few_visitors_are_counted_right() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    for hour in 0..48 {
        // At another moment of its window each hour, the last one included.
        let late = Duration::from_millis((hour * 6_389) % 300_000).max(MS);
        clock.advance(late);
        site.hit().await.unwrap();
        if hour % 2 == 0 {
            site.hit_visitor("the cat").await.unwrap();
        }
        let expected = 1 + u64::from(hour % 2 == 0);
        clock.advance(PERIOD - late);
        for reader in [&site, &open(&store, &clock).await] {
            assert_eq!(reader.get().await.unwrap(), expected, "hour {hour}");
            assert_eq!(reader.interpolated().await.unwrap(), 0, "hour {hour}");
        }
        clock.advance(PERIOD - MS);
        assert_eq!(site.get().await.unwrap(), expected, "hour {hour}");
        assert_eq!(site.interpolated().await.unwrap(), expected, "hour {hour}");
        clock.advance(MS);
        assert_eq!((site.get().await.unwrap(), site.interpolated().await.unwrap()), (0, expected), "hour {hour}");
        clock.advance(PERIOD);
        assert_eq!((site.get().await.unwrap(), site.interpolated().await.unwrap()), (0, 0), "hour {hour}");
        clock.advance(9 * PERIOD);
    }
}

#[tokio::test]
async fn the_interpolated_figure_moves_without_steps() {
    let clock = clock();
    let site = open(&memory(&clock), &clock).await;
    let mut before = 0;
    for hits in [1_000u64, 4_000, 4_000, 0, 0] {
        site.hit_many(hits).await.unwrap();
        for second in 0..300 {
            let now = site.interpolated().await.unwrap();
            assert!(now.abs_diff(before) <= 4_000 / 300 + 1, "from {before} to {now} at second {second}");
            before = now;
            clock.advance(SECOND);
        }
    }
    assert_eq!(before, 13, "one second before the last step of the way from 4000 to 0");
}

#[tokio::test]
async fn a_visitor_counts_once_a_window_whoever_says_it() {
    let clock = clock();
    let store = memory(&clock);
    let (one, two) = (open(&store, &clock).await, open(&store, &clock).await);
    for site in [&one, &two, &one] {
        for id in [&b"alice"[..], b"bob", b"", b"\xff\0\n"] {
            site.hit_visitor(id).await.unwrap();
        }
    }
    one.hit_many(3).await.unwrap();
    assert_eq!(two.current().await.unwrap(), 4 + 3);
    clock.advance(PERIOD);
    two.hit_visitor("alice").await.unwrap();
    assert_eq!((one.current().await.unwrap(), one.get().await.unwrap()), (1, 7));
}

#[tokio::test]
async fn late_hits_count_in_the_window_of_their_time_while_it_is_kept() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    clock.advance(Duration::from_secs(100));
    site.hit_at(at(START_S - 600), 5).await.unwrap();
    site.hit_at(at(START_S - 1), 7).await.unwrap();
    site.hit_visitor_at("late", at(START_S - 1)).await.unwrap();
    // A clock that is ahead: the next window.
    site.hit_at(at(START_S + 400), 9).await.unwrap();
    assert_eq!(site.get_at(at(START_S - 600)).await.unwrap(), 5);
    assert_eq!((site.get().await.unwrap(), site.current().await.unwrap()), (8, 0));
    assert_eq!(site.get_at(at(START_S + 300)).await.unwrap(), 9);
    for (time, limit, value) in [
        (at(START_S - 601), "600000 ms", "400000 ms ago"),
        (at(START_S + 401), "300000 ms", "301000 ms ahead"),
        (at(0), "600000 ms", "window 0"),
    ] {
        for error in [
            site.hit_at(time, 1).await.unwrap_err(),
            site.hit_visitor_at("v", time).await.unwrap_err(),
            site.get_at(time).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
            assert!(error.to_string().contains(limit) || error.to_string().contains(value), "{error}");
        }
    }
    assert_eq!(kind(site.hit_at(std::time::UNIX_EPOCH - SECOND, 1).await), ErrorKind::BadInput);
    assert!(!is_there(&store, &key(&store, window(&clock) - 3, None).await).await);
    clock.advance(PERIOD);
    assert_eq!(site.current().await.unwrap(), 9);
}

/// Two that hit, 3 minutes apart, and a third one between them; every one reads by its own clock.
#[tokio::test]
async fn clocks_three_minutes_apart_lose_nothing_and_report_no_loss() {
    for period_s in [1, 7, 60, 300] {
        let behind = Arc::new(ManualClock::at(Duration::from_secs(START_S)));
        let middle = Arc::new(ManualClock::at(Duration::from_secs(START_S + 90)));
        let ahead = Arc::new(ManualClock::at(Duration::from_secs(START_S + 180)));
        // The store's own clock is none of theirs.
        let server = Arc::new(ManualClock::at(Duration::from_secs(77)));
        let store = memory(&server);
        let clocks = [&behind, &middle, &ahead];
        let mut handles = Vec::new();
        for clock in clocks {
            let options = Visitors::options().period(Duration::from_secs(period_s)).shards(1);
            handles.push(options.clock(clock.clone()).open_or_create(&store, NAME).await.unwrap());
        }
        let (mut hits, mut read) = (0u64, 0u64);
        for second in 0..900u64 {
            if second < 240 {
                for (who, site) in handles.iter().enumerate() {
                    if fastrand::u8(..4) == 0 {
                        site.hit().await.unwrap();
                        site.hit_visitor(format!("{who} {second}")).await.unwrap();
                        hits += 2;
                    }
                }
            }
            if let Some(site) = handles.get(fastrand::usize(..12)) {
                site.interpolated().await.unwrap_or_else(|error| panic!("period {period_s}, second {second}: {error}"));
            }
            // The one behind reads each window at its end: by then everybody has left it.
            if (START_S + second + 1).is_multiple_of(period_s) {
                read += handles[0].get().await.unwrap();
            }
            for clock in clocks.iter().chain([&&server]) {
                clock.advance(SECOND);
            }
        }
        assert_eq!(read, hits, "period {period_s}");
    }
}

#[tokio::test]
async fn an_evicted_window_is_lost_and_no_other() {
    for shard in [None, Some(0), Some(1)] {
        let clock = clock();
        let store = memory(&clock);
        let site = open(&store, &clock).await;
        let fill = async |site: &Visitors| {
            site.hit_many(3).await.unwrap();
            for n in 0..20 {
                site.hit_visitor(format!("v{n}")).await.unwrap();
            }
        };
        fill(&site).await;
        clock.advance(PERIOD);
        fill(&site).await;
        evict(&store, &key(&store, window(&clock) - 1, shard).await).await;
        clock.advance(PERIOD - SECOND);
        for reader in [&site, &open(&store, &clock).await] {
            let error = reader.get().await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
            assert!(error.to_string().contains(&format!("window {}", window(&clock) - 1)), "{error}");
            assert_eq!(kind(reader.interpolated().await), ErrorKind::Lost);
            assert_eq!(reader.current().await.unwrap(), 23);
        }
        // Late hits make it anew: it stays lost, for those who saw the first and for those who did not.
        let fresh = open(&store, &clock).await;
        for site in [&site, &fresh] {
            let time = at((window(&clock) - 1) * PERIOD.as_secs());
            site.hit_at(time, 1).await.unwrap();
            for n in 0..20 {
                site.hit_visitor_at(format!("late {n}"), time).await.unwrap();
            }
            assert_eq!(kind(fresh.get().await), ErrorKind::Lost, "{shard:?}");
            assert_eq!(kind(open(&store, &clock).await.get().await), ErrorKind::Lost, "{shard:?}");
        }
        clock.advance(SECOND);
        assert_eq!(site.get().await.unwrap(), 23);
        assert_eq!(kind(site.interpolated().await), ErrorKind::Lost);
        clock.advance(PERIOD);
        assert_eq!((site.get().await.unwrap(), site.interpolated().await.unwrap()), (0, 23));
    }
}

/// The window that is being filled is evicted while hits come: what is counted since is not passed off as the whole.
#[tokio::test]
async fn hits_go_on_in_a_lost_window_and_reads_say_so() {
    let clock = clock();
    let store = memory(&clock);
    let (one, two) = (open(&store, &clock).await, open(&store, &clock).await);
    one.hit_many(3).await.unwrap();
    two.hit().await.unwrap();
    one.hit_visitor("v").await.unwrap();
    evict(&store, &key(&store, window(&clock), None).await).await;
    for site in [&one, &two, &one] {
        site.hit().await.unwrap();
        assert_eq!(kind(site.current().await), ErrorKind::Lost);
    }
    clock.advance(PERIOD);
    assert_eq!(kind(one.get().await), ErrorKind::Lost);
    assert_eq!(one.current().await.unwrap(), 0);
}

#[tokio::test]
async fn a_ledger_that_is_lost_is_lost_for_all() {
    let clock = clock();
    let store = memory(&clock);
    let (warm, cold) = (open(&store, &clock).await, open(&store, &clock).await);
    warm.hit().await.unwrap();
    evict(&store, &ledger_key(&store).await).await;
    for site in [&warm, &cold] {
        assert_eq!(kind(site.get().await), ErrorKind::Lost);
    }
    let counter = key(&store, window(&clock), None).await;
    for error in [cold.hit().await.unwrap_err(), cold.hit_visitor("v").await.unwrap_err()] {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
    }
    assert!(!is_there(&store, &counter).await, "a hit left something behind that nobody can find");
    clock.advance(PERIOD);
    assert_eq!(kind(warm.hit().await), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_two_handles_count_exactly() {
    let clock = clock();
    let store = Probe::over(memory(&clock)).shared();
    let handles = [open(&store, &clock).await, open(&store, &clock).await];
    for round in 0..3u64 {
        let tasks: Vec<_> = (0..8u64)
            .map(|task| {
                let site = handles[task as usize % 2].clone();
                tokio::spawn(async move {
                    for n in 0..50 {
                        site.hit().await.unwrap();
                        // Half of them are everybody's.
                        let who = if n % 2 == 0 { format!("all {n}") } else { format!("{task} {n}") };
                        site.hit_visitor(who).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for site in &handles {
            assert_eq!(site.current().await.unwrap(), 8 * 50 + 8 * 25 + 25, "round {round}");
        }
        clock.advance(PERIOD);
    }
}

#[tokio::test]
async fn bad_options_and_input_are_named_and_write_nothing() {
    let clock = clock();
    let store = memory(&clock);
    for (period, shards, said) in [
        (Duration::ZERO, 1, "0ns"),
        (999 * MS, 1, "999ms"),
        (Duration::from_secs(30 * 86_400) + MS, 1, "30 days"),
        (Duration::from_micros(1_500_500), 1, "whole milliseconds"),
        (PERIOD, 0, "not 0"),
        (PERIOD, 257, "1 to 256"),
        (SECOND, 16, "10000"),
    ] {
        let error = Visitors::options().period(period).shards(shards).open_or_create(&store, NAME).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    }
    assert_eq!(kind(options(&clock).timeout(Duration::ZERO).open_or_create(&store, NAME).await), ErrorKind::BadInput);
    assert!(registry::find(&store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().is_none());
    let site = open(&store, &clock).await;
    for other in [options(&clock).period(2 * PERIOD), options(&clock).shards(3)] {
        assert_eq!(kind(other.open(&store, NAME).await), ErrorKind::LayoutMismatch);
    }
    assert_eq!(kind(Set::open_or_create(&store, NAME).await), ErrorKind::LayoutMismatch);
    let error = site.hit_many((1 << 31) + 1).await.unwrap_err();
    assert!(error.kind() == ErrorKind::BadInput && error.to_string().contains("2147483648"), "{error}");
    site.hit_many(0).await.unwrap();
    assert!(!is_there(&store, &key(&store, window(&clock), None).await).await);
    site.hit_many(1 << 31).await.unwrap();
    assert_eq!(site.current().await.unwrap(), 1 << 31);
    clock.set_wall(Duration::from_secs(u64::MAX / 1_000_000_000));
    assert_eq!(site.current().await.unwrap(), 0);
}

#[tokio::test]
async fn a_window_ends_where_it_says() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    site.hit().await.unwrap();
    let key = key(&store, window(&clock), None).await;
    let digits = String::from_utf8(value_of(&store, &key).await.to_vec()).unwrap();
    let full = (digits.parse::<u64>().unwrap() >> 40 << 40) + (1 << 39);
    set_value(&store, &key, full.to_string().into()).await;
    for _ in 0..2 {
        let error = site.hit_many(5).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Overflow, Effect::NotApplied), "{error}");
        assert_eq!(site.current().await.unwrap(), 1 << 39);
    }
}

#[tokio::test]
async fn foreign_bytes_are_a_layout_mismatch() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    site.hit().await.unwrap();
    for n in 0..40 {
        site.hit_visitor([n]).await.unwrap();
    }
    for (shard, foreign) in [(None, "x"), (Some(0), "x"), (Some(1), "")] {
        let key = key(&store, window(&clock), shard).await;
        let value = value_of(&store, &key).await;
        set_value(&store, &key, foreign.into()).await;
        let error = site.current().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
        set_value(&store, &key, value).await;
        assert_eq!(site.current().await.unwrap(), 41);
    }
}

/// Repeats of other processes are compacted away first; then the shard is full, and says what helps.
#[tokio::test]
async fn a_full_shard_compacts_its_repeats_and_then_says_so() {
    let clock = clock();
    let store: StoreRef =
        Arc::new(MemoryStore::builder().value_bytes_max(12_300).clock(clock.clone()).build().unwrap());
    let open = async || options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
    // Nobody remembers what the other counted.
    for _ in 0..2 {
        let site = open().await;
        for n in 0..1_000u32 {
            site.hit_visitor(n.to_le_bytes()).await.unwrap();
        }
        assert_eq!(site.current().await.unwrap(), 1_000);
    }
    let site = open().await;
    let mut counted = 1_000;
    let error = loop {
        match site.hit_visitor(format!("more {counted}")).await {
            Ok(()) => counted += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("more shards"), "{error}");
    assert!(error.to_string().contains(&format!("holds {counted} visitors")), "{error}");
    assert!(counted > 1_500, "{counted}");
    // Those who are in it may come again, and hits of the other kind still count.
    open().await.hit_visitor(7u32.to_le_bytes()).await.unwrap();
    site.hit().await.unwrap();
    assert_eq!(site.current().await.unwrap(), counted + 1);
    clock.advance(PERIOD);
    site.hit_visitor("more").await.unwrap();
    assert_eq!(site.get().await.unwrap(), counted + 1);
}

/// An append does not tell what the shard has: so it is read, and written by token.
#[tokio::test]
async fn a_hit_into_a_full_shard_takes_2_more() {
    let clock = clock();
    let inner = MemoryStore::builder().value_bytes_max(12_300).clock(clock.clone()).build().unwrap();
    let probe = Probe::over(Arc::new(inner));
    let store = probe.shared();
    let open = async || options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
    let sites = [open().await, open().await];
    let mut costs = BTreeSet::new();
    for n in 0..1_000u32 {
        for site in &sites {
            probe.round_trips();
            site.hit_visitor(n.to_le_bytes()).await.unwrap();
            costs.insert(probe.round_trips());
        }
    }
    // The first makes the shard; of those that find it full, one names who is in it already, and only looks.
    assert!(costs.is_subset(&BTreeSet::from([1, 2, 3])) && costs.contains(&3), "{costs:?}");
    assert_eq!(sites[0].current().await.unwrap(), 1_000);
}

#[tokio::test]
async fn repeats_are_compacted_beside_a_reader() {
    let clock = clock();
    let store = memory(&clock);
    for _ in 0..4 {
        let site = options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
        for n in 0..4_000u32 {
            site.hit_visitor(n.to_le_bytes()).await.unwrap();
        }
    }
    let key = key(&store, window(&clock), Some(0)).await;
    assert_eq!(value_of(&store, &key).await.len(), 12 + 4 * 4_000 * 8);
    let site = Visitors::options().clock(clock.clone()).open(&store, NAME).await.unwrap();
    assert_eq!(site.current().await.unwrap(), 4_000);
    settle().await;
    assert_eq!(value_of(&store, &key).await.len(), 12 + 4_000 * 8);
    assert_eq!(site.current().await.unwrap(), 4_000);
    clock.advance(3 * PERIOD + 2 * PERIOD);
    assert!(!is_there(&store, &key).await, "a compaction gave it another life");
}

/// Keys end with the use of their window, and the ledger does not grow: on a store that keeps lives, and on one that does not.
#[tokio::test]
async fn windows_that_are_over_leave_nothing_behind() {
    for keeps_lives in [true, false] {
        let clock = clock();
        let inner = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let store: StoreRef = if keeps_lives { inner.clone() } else { Arc::new(NoLives(inner.clone())) };
        let period = 10 * SECOND;
        let site = options(&clock).period(period).shards(1).open_or_create(&store, NAME).await.unwrap();
        let mut most = 0;
        for _ in 0..400 {
            site.hit().await.unwrap();
            site.hit_visitor("v").await.unwrap();
            settle().await;
            clock.advance(period);
            assert_eq!(site.get().await.unwrap(), 2, "keeps lives: {keeps_lives}");
            most = most.max(value_of(&store, &ledger_key(&store).await).await.len());
        }
        // 10 minutes of windows, two pieces each, and as much again before it is compacted.
        assert!(most < 2 * 80 * 2 * 36 + 1_024, "the ledger has grown to {most} bytes");
        let first = key(&store, START_S / 10, None).await;
        assert!(!is_there(&store, &first).await, "keeps lives: {keeps_lives}");
        let keys = inner.stats().items;
        assert!(keys < 2 * 80 + 2, "{keys} keys are left; keeps lives: {keeps_lives}");
    }
}

#[tokio::test]
async fn a_drop_removes_every_key_and_handles_notice() {
    let clock = clock();
    let inner = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let store: StoreRef = inner.clone();
    let site = open(&store, &clock).await;
    for _ in 0..3 {
        site.hit().await.unwrap();
        // So many that both shards of the window have some, whatever the structure's key to hash them by.
        for n in 0..60 {
            site.hit_visitor(format!("{n}")).await.unwrap();
        }
        clock.advance(PERIOD);
    }
    site.hit().await.unwrap();
    assert_eq!(inner.stats().items, 2 + 3 * 3 + 1);
    registry::drop_structure(&store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().unwrap();
    assert_eq!(inner.stats().items, 0);
    assert_eq!(kind(site.get().await), ErrorKind::Lost);
    assert_eq!(kind(site.hit().await), ErrorKind::Lost);
    assert_eq!(kind(site.hit_visitor("v").await), ErrorKind::Lost);
    assert_eq!(inner.stats().items, 0, "a hit after the drop left something behind");
    let again = open(&store, &clock).await;
    assert_eq!(again.get().await.unwrap(), 0);
    assert_eq!(kind(site.hit().await), ErrorKind::Lost);
    assert_eq!(again.current().await.unwrap(), 0);
}

/// Who sees visitors alone that it has counted would send nothing, and be told of nothing.
#[tokio::test]
async fn a_handle_that_meets_known_visitors_alone_is_told_of_a_drop_within_a_minute() {
    for is_made_again in [false, true] {
        let clock = clock();
        let store = memory(&clock);
        let site = open(&store, &clock).await;
        site.hit_visitor("v").await.unwrap();
        clock.advance(Duration::from_secs(61));
        site.hit_visitor("v").await.unwrap();
        assert_eq!(site.current().await.unwrap(), 1, "it was noted once more, and counts once");
        registry::drop_structure(&store, Ctx::default(), &Name::new(NAME).unwrap()).await.unwrap().unwrap();
        if is_made_again {
            open(&store, &clock).await;
        }
        clock.advance(Duration::from_secs(61));
        assert_eq!(kind(site.hit_visitor("v").await), ErrorKind::Lost, "made again: {is_made_again}");
    }
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let clock = clock();
    let probe = Probe::over(memory(&clock));
    let store = probe.shared();
    let site = open(&store, &clock).await;
    assert_eq!(probe.round_trips(), 3, "made");
    let second = options(&clock).open(&store, NAME).await.unwrap();
    assert_eq!(probe.round_trips(), 1, "opened");
    site.hit().await.unwrap();
    assert_eq!(probe.round_trips(), 2, "the window's first");
    second.hit().await.unwrap();
    assert_eq!(probe.round_trips(), 1, "another handle's first");
    site.hit().await.unwrap();
    assert_eq!(probe.round_trips(), 1, "a hit");
    let alone = options(&clock).shards(1).open_or_create(&store, "alone").await.unwrap();
    probe.round_trips();
    alone.hit_visitor("a").await.unwrap();
    assert_eq!(probe.round_trips(), 2, "the shard's first");
    alone.hit_visitor("b").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "a visitor");
    alone.hit_visitor("b").await.unwrap();
    assert_eq!(probe.round_trips(), 0, "a visitor again");
    clock.advance(PERIOD);
    for figure in [site.get().await, site.interpolated().await, site.current().await] {
        figure.unwrap();
    }
    assert_eq!(probe.round_trips(), 3, "reads");
    evict(&store, &key(&store, window(&clock) - 1, None).await).await;
    probe.round_trips();
    assert_eq!(kind(site.get().await), ErrorKind::Lost);
    assert_eq!(probe.round_trips(), 2, "a lost window");
}

/// A plain map, against random hits, late ones among them, on two handles.
#[tokio::test]
async fn a_model_agrees() {
    for run in 0..20 {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = clock();
        let store = memory(&clock);
        let mut handles = [open(&store, &clock).await, open(&store, &clock).await];
        let mut model: BTreeMap<u64, (u64, BTreeSet<u8>)> = BTreeMap::new();
        let figure = |model: &BTreeMap<u64, (u64, BTreeSet<u8>)>, window: u64| {
            model.get(&window).map_or(0, |(hits, visitors)| hits + visitors.len() as u64)
        };
        for step in 0..300 {
            let site = &handles[rng.usize(..2)];
            let (now, behind) = (window(&clock), rng.u64(..=2));
            let time = at((now - behind) * 300 + rng.u64(..300).min(if behind == 0 { 0 } else { 299 }));
            let who = rng.u8(..12);
            match rng.u8(..10) {
                0 => clock.advance(Duration::from_millis(rng.u64(..700_000))),
                1..=3 => {
                    let hits = rng.u64(..5);
                    site.hit_at(time, hits).await.unwrap();
                    model.entry(now - behind).or_default().0 += hits;
                }
                4..=6 => {
                    site.hit_visitor_at([who], time).await.unwrap();
                    model.entry(now - behind).or_default().1.insert(who);
                }
                7 => handles[usize::from(who % 2)] = open(&store, &clock).await,
                _ => {
                    assert_eq!(site.get_at(time).await.unwrap(), figure(&model, now - behind), "step {step} of {run}");
                    assert_eq!(site.get().await.unwrap(), figure(&model, now - 1), "step {step} of {run}");
                }
            }
        }
    }
}

/// A hit that is dropped at any moment counts once or not at all, and the window is known to have been there.
#[tokio::test]
async fn a_hit_that_is_dropped_counts_once_or_not_at_all() {
    for polls in 0..12 {
        for names in [false, true] {
            let clock = clock();
            let store = Probe::over(memory(&clock)).shared();
            let site = options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
            {
                let mut hit: std::pin::Pin<Box<dyn Future<Output = _>>> =
                    if names { Box::pin(site.hit_visitor("v")) } else { Box::pin(site.hit()) };
                for _ in 0..polls {
                    let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(hit.as_mut().poll(cx))).await;
                    if poll.is_ready() {
                        break;
                    }
                }
            }
            let counted = site.current().await.unwrap();
            assert!(counted <= 1, "{counted}");
            if names {
                site.hit_visitor("w").await.unwrap()
            } else {
                site.hit().await.unwrap()
            }
            assert_eq!(site.current().await.unwrap(), counted + 1, "polls {polls}");
            evict(&store, &key(&store, window(&clock), names.then_some(0)).await).await;
            assert_eq!(kind(site.current().await), ErrorKind::Lost, "polls {polls}");
        }
    }
}

#[tokio::test]
async fn a_manifest_that_was_evicted_is_put_back_by_a_hit() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    site.hit().await.unwrap();
    store.delete(Name::new(NAME).unwrap().manifest_key().unwrap()).await.unwrap();
    clock.advance(Duration::from_secs(60));
    site.hit().await.unwrap();
    settle().await;
    assert_eq!(Visitors::options().clock(clock).open(&store, NAME).await.unwrap().current().await.unwrap(), 2);
}
