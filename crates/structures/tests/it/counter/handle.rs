//! The counter where nothing fails: totals, round trips, slots, options, loss.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use larder_core::{Effect, ErrorKind, ManualClock, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::counter::Mode;
use larder_structures::{Counter, Lock, Set};

use crate::counter::support::{Meter, counting, data_key, memory, process, slot_key, yielding};
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

#[tokio::test]
async fn round_trips_are_as_documented() {
    let (store, counting) = counting();
    let mut meter = Meter::new(counting);
    let counter = Counter::open_or_create(&store, "n").await.unwrap();
    assert_eq!(meter.round_trips(), 3, "make");
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 2, "first add");
    for _ in 0..3 {
        counter.add(1).await.unwrap();
        assert_eq!(meter.round_trips(), 1, "warm add");
    }
    let other = process(&store, "n").await;
    assert_eq!(meter.round_trips(), 1, "open");
    other.add(5).await.unwrap();
    assert_eq!(meter.round_trips(), 2, "first add of another process");
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 1, "warm add beside another process");
    assert_eq!(counter.get().await.unwrap(), 10);
    assert_eq!(meter.round_trips(), 1, "get");
    assert_eq!(counter.reset().await.unwrap(), 10);
    assert_eq!(meter.round_trips(), 2, "reset");
    counter.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 1, "warm add after a reset");
    counter.release().await.unwrap();
    assert_eq!(meter.round_trips(), 1, "release");
    counter.release().await.unwrap();
    assert_eq!(meter.round_trips(), 0, "release of nothing");
    assert_eq!(other.reset().await.unwrap(), 1);
    _ = meter.round_trips();
    assert_eq!(other.reset().await.unwrap(), 0);
    assert_eq!(meter.round_trips(), 1, "reset of 0");
}

#[tokio::test]
async fn round_trips_of_the_fast_one_are_as_documented() {
    let (store, counting) = counting();
    let mut meter = Meter::new(counting);
    let counter = Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    assert_eq!(meter.round_trips(), 3, "make");
    counter.add(7).await.unwrap();
    assert_eq!(meter.round_trips(), 1, "first add");
    counter.add(-9).await.unwrap();
    assert_eq!(meter.round_trips(), 1, "add");
    assert_eq!(counter.get().await.unwrap(), -2);
    assert_eq!(meter.round_trips(), 1, "get");
    assert_eq!(counter.reset().await.unwrap(), -2);
    assert_eq!(meter.round_trips(), 2, "reset");
    assert_eq!(counter.reset().await.unwrap(), 0);
    assert_eq!(meter.round_trips(), 1, "reset of 0");
    counter.release().await.unwrap();
    assert_eq!(meter.round_trips(), 0, "release");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_each_of_two_handles_lose_nothing() {
    let store = yielding();
    let cases =
        [("exact", Counter::options()), ("one slot", Counter::options().slots(1)), ("fast", Counter::options().fast())];
    for (name, options) in cases {
        let handles = [options.open_or_create(&store, name).await.unwrap(), options.open(&store, name).await.unwrap()];
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let counter = handles[task % 2].clone();
            tasks.spawn(async move {
                for step in 1..=100 {
                    counter.add(step).await.unwrap();
                    counter.add(-1).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(handles[0].get().await.unwrap(), 16 * (100 * 101 / 2 - 100), "{name}");
    }
}

#[tokio::test]
async fn adds_of_tasks_on_one_handle_share_round_trips() {
    let counting = metered(yielding());
    let store: StoreRef = Arc::new(counting.clone());
    let counter = Counter::open_or_create(&store, "n").await.unwrap();
    counter.add(1).await.unwrap();
    let mut meter = Meter::new(counting);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let counter = counter.clone();
        tasks.spawn(async move { counter.add(1).await.unwrap() });
    }
    tasks.join_all().await;
    assert_eq!(meter.round_trips(), 2, "the first goes alone, the others together");
    assert_eq!(counter.get().await.unwrap(), 101);
}

#[tokio::test]
async fn eight_processes_share_one_slot() {
    let store = yielding();
    Counter::options().slots(1).open_or_create(&store, "n").await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let counter = process(&store, "n").await;
        tasks.spawn(async move {
            for _ in 0..50 {
                counter.add(1).await.unwrap();
                tokio::task::yield_now().await;
            }
            counter.release().await.unwrap();
        });
    }
    tasks.join_all().await;
    assert_eq!(process(&store, "n").await.get().await.unwrap(), 400);
}

#[tokio::test]
async fn thousands_of_processes_leave_nothing_behind() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    Counter::open_or_create(&store, "n").await.unwrap().add(1).await.unwrap();
    let before = memory.stats().items;
    for _ in 0..2_000 {
        process(&store, "n").await.add(1).await.unwrap();
    }
    assert_eq!(memory.stats().items, before);
    assert_eq!(process(&store, "n").await.get().await.unwrap(), 2_001);
}

#[tokio::test]
async fn a_dead_owners_slot_is_taken_over_in_place_and_the_dead_may_return() {
    let store = memory();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let options = Counter::options().clock(clock.clone());
    let first = options.clone().slots(2).open_or_create(&store, "n").await.unwrap();
    first.add(1).await.unwrap();
    clock.advance(Duration::from_secs(20));
    let second = options.open(&store, "n").await.unwrap();
    second.add(10).await.unwrap();
    let before = [store.get(slot_key(&store, "n", 0).await).await, store.get(slot_key(&store, "n", 1).await).await];
    clock.advance(Duration::from_secs(15));
    // The first is 35 s silent, the second 15 s: the third takes the first's slot.
    let third = options.open(&store, "n").await.unwrap();
    third.add(100).await.unwrap();
    let after = [store.get(slot_key(&store, "n", 0).await).await, store.get(slot_key(&store, "n", 1).await).await];
    let owner = |item: &larder_core::Result<Option<larder_core::Item>>| {
        item.as_ref().unwrap().as_ref().unwrap().value.slice(25..33)
    };
    let changed: Vec<usize> = (0..2).filter(|&at| owner(&before[at]) != owner(&after[at])).collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(
        i128::from_le_bytes(after[changed[0]].as_ref().unwrap().as_ref().unwrap().value[1..17].try_into().unwrap()),
        101
    );
    first.add(1_000).await.unwrap();
    second.add(10_000).await.unwrap();
    third.add(100_000).await.unwrap();
    assert_eq!(first.get().await.unwrap(), 111_111);
}

#[tokio::test]
async fn a_released_slot_is_the_next_ones() {
    let (store, counting) = counting();
    let first = Counter::options().slots(2).open_or_create(&store, "n").await.unwrap();
    first.add(1).await.unwrap();
    let second = process(&store, "n").await;
    second.add(1).await.unwrap();
    first.release().await.unwrap();
    let third = process(&store, "n").await;
    third.add(1).await.unwrap();
    // Two slots and two owners: neither disturbs the other.
    let mut meter = Meter::new(counting);
    second.add(1).await.unwrap();
    third.add(1).await.unwrap();
    assert_eq!(meter.round_trips(), 2);
    // The first comes back, and shares one.
    first.add(1).await.unwrap();
    assert_eq!(third.get().await.unwrap(), 6);
}

#[tokio::test]
async fn options_that_differ_are_refused_and_unset_ones_follow() {
    let store = memory();
    Counter::options().slots(3).open_or_create(&store, "exact").await.unwrap();
    Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
    assert_eq!(process(&store, "exact").await.mode(), Mode::Exact);
    assert_eq!(Counter::open_or_create(&store, "fast").await.unwrap().mode(), Mode::Fast);
    let cases = [
        ("exact", Counter::options().fast(), "exact", "fast"),
        ("fast", Counter::options().exact(), "fast", "exact"),
        ("exact", Counter::options().slots(4), "3", "4"),
        ("fast", Counter::options().slots(4), "1", "4"),
        ("exact", Counter::options().copies(2), "1", "2"),
    ];
    for (name, options, is, asked) in cases {
        for error in
            [options.open(&store, name).await.unwrap_err(), options.open_or_create(&store, name).await.unwrap_err()]
        {
            assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
            assert!(error.detail().contains(is) && error.detail().contains(asked), "{error}");
        }
    }
    Lock::open(&store, "lock").await.unwrap().try_acquire().await.unwrap();
    Set::open_or_create(&store, "set").await.unwrap();
    for name in ["lock", "set"] {
        let error = Counter::open_or_create(&store, name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
        assert!(error.detail().contains(name) && error.detail().contains("counter"), "{error}");
    }
}

#[tokio::test]
async fn options_out_of_range_name_the_limit_and_the_value() {
    let store = memory();
    let cases = [
        (Counter::options().slots(0), "1024", "not 0"),
        (Counter::options().slots(1_025), "1024", "not 1025"),
        (Counter::options().copies(0), "5", "not 0"),
        (Counter::options().copies(6), "5", "not 6"),
        (Counter::options().fast().slots(2), "slots", "exact"),
        (Counter::options().fast().copies(2), "copies", "exact"),
    ];
    for (options, limit, value) in cases {
        let error = options.open_or_create(&store, "n").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.detail().contains(limit) && error.detail().contains(value), "{error}");
    }
    let error = Counter::options().copies(3).open_or_create(&store, "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.detail().contains("3 copies") && error.detail().contains("has 1"), "{error}");
    assert_eq!(Counter::open(&store, "n").await.unwrap_err().kind(), ErrorKind::Absent);
    for name in [&b""[..], &[7; 65]] {
        assert_eq!(Counter::open_or_create(&store, name).await.unwrap_err().kind(), ErrorKind::BadInput);
    }
}

#[tokio::test]
async fn names_are_arbitrary_bytes() {
    let store = memory();
    for (name, value) in [(&[0xff; 64][..], 1), (b"\0", 2), (b"a.s", 3), (b"a", 4)] {
        Counter::open_or_create(&store, name).await.unwrap().add(value).await.unwrap();
    }
    for (name, value) in [(&[0xff; 64][..], 1), (b"\0", 2), (b"a.s", 3), (b"a", 4)] {
        assert_eq!(Counter::open(&store, name).await.unwrap().get().await.unwrap(), i128::from(value));
    }
}

#[tokio::test]
async fn a_missing_slot_is_lost_and_never_a_smaller_number() {
    let store = memory();
    let counter = Counter::options().slots(4).open_or_create(&store, "n").await.unwrap();
    let others = [process(&store, "n").await, process(&store, "n").await, process(&store, "n").await];
    counter.add(1).await.unwrap();
    for other in &others {
        other.add(1).await.unwrap();
    }
    store.delete(slot_key(&store, "n", 2).await).await.unwrap();
    let fresh = process(&store, "n").await;
    for error in [fresh.get().await.unwrap_err(), fresh.add(1).await.unwrap_err(), fresh.reset().await.unwrap_err()] {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied));
        assert!(error.detail().contains("slots 2;") && error.detail().contains("sum to 3"), "{error}");
    }
    // The owner of the slot that is gone says so too; the owners of the others still count.
    let outcomes = [counter.add(1).await, others[0].add(1).await, others[1].add(1).await, others[2].add(1).await];
    let lost: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].kind(), lost[0].known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{:?}", lost[0]);
}

#[tokio::test]
async fn a_counter_that_was_dropped_or_made_again_is_lost_to_open_handles() {
    let store = memory();
    let counter = Counter::open_or_create(&store, "n").await.unwrap();
    let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
    counter.add(1).await.unwrap();
    for name in ["n", "fast"] {
        let name = larder_structures::Name::new(name).unwrap();
        larder_structures::registry::drop_structure(&store, larder_core::Ctx::default(), &name).await.unwrap().unwrap();
    }
    for error in [
        counter.add(1).await.unwrap_err(),
        counter.get().await.unwrap_err(),
        fast.add(1).await.unwrap_err(),
        fast.get().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.detail().contains("the manifest is gone too"), "{error}");
    }
    Counter::open_or_create(&store, "n").await.unwrap();
    Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
    for error in [counter.add(1).await.unwrap_err(), fast.add(1).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.detail().contains("made again"), "{error}");
    }
}

#[tokio::test]
async fn an_older_state_is_rolled_back() {
    let store = memory();
    let counter = Counter::options().slots(1).open_or_create(&store, "n").await.unwrap();
    counter.add(1).await.unwrap();
    let key = slot_key(&store, "n", 0).await;
    let old = store.get(key.clone()).await.unwrap().unwrap().value;
    counter.add(1).await.unwrap();
    store.put(key, PutMode::Set, old, Ttl::Never).await.unwrap();
    let fresh = process(&store, "n").await;
    assert_eq!(fresh.get().await.unwrap(), 1, "who has not seen more cannot know");
    for error in
        [counter.get().await.unwrap_err(), counter.add(1).await.unwrap_err(), counter.reset().await.unwrap_err()]
    {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::NotApplied), "{error}");
        assert!(error.detail().contains("write 1") && error.detail().contains("write 2"), "{error}");
    }
}

/// Others have written the slot as often since as it had been: its number of writes tells nothing, and who added knows what it lacks.
#[tokio::test]
async fn a_writer_is_told_of_an_older_state_that_was_written_as_often_since() {
    for (adds, by_others) in [(2, 1), (2, 2), (5, 7)] {
        let store = memory();
        let counter = Counter::options().slots(1).open_or_create(&store, "n").await.unwrap();
        counter.add(1).await.unwrap();
        let key = slot_key(&store, "n", 0).await;
        let old = store.get(key.clone()).await.unwrap().unwrap().value;
        for _ in 1..adds {
            counter.add(1).await.unwrap();
        }
        store.put(key, PutMode::Set, old, Ttl::Never).await.unwrap();
        let fresh = process(&store, "n").await;
        for _ in 0..by_others {
            fresh.add(1).await.unwrap();
        }
        for _ in 0..2 {
            let error = counter.add(1).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::NotApplied), "{error}");
        }
        assert_eq!(fresh.get().await.unwrap(), 1 + by_others);
        // Who comes now goes by what there is.
        process(&store, "n").await.add(1).await.unwrap();
    }
}

/// More writers came since than a slot remembers: then nobody can tell.
#[tokio::test]
async fn an_add_that_many_others_came_after_is_not_missed() {
    let store = memory();
    let counter = Counter::options().slots(1).open_or_create(&store, "n").await.unwrap();
    for _ in 0..3 {
        counter.add(1).await.unwrap();
        for _ in 0..12 {
            process(&store, "n").await.add(1).await.unwrap();
        }
    }
    assert_eq!(counter.get().await.unwrap(), 39);
}

#[tokio::test]
async fn foreign_bytes_in_a_slot_are_a_layout_mismatch() {
    let store = memory();
    let counter = Counter::open_or_create(&store, "n").await.unwrap();
    store.put(slot_key(&store, "n", 3).await, PutMode::Set, "42", Ttl::Never).await.unwrap();
    assert_eq!(counter.get().await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    let fast = Counter::options().fast().open_or_create(&store, "fast").await.unwrap();
    store.put(data_key(&store, "fast", 'n', 0).await, PutMode::Set, "x", Ttl::Never).await.unwrap();
    assert_eq!(fast.get().await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    assert_eq!(fast.add(1).await.unwrap_err().known_effect(), Effect::NotApplied);
}

/// A slot's golden bytes, from outside: version, sum, sequence, owner 0, beat 0, no marks.
fn slot_bytes(sum: i128) -> Vec<u8> {
    let mut bytes = vec![1];
    bytes.extend(sum.to_le_bytes());
    bytes.extend([0; 25]);
    bytes
}

#[tokio::test]
async fn an_overflow_is_an_error_and_nothing_is_added() {
    let store = memory();
    let counter = Counter::options().slots(2).open_or_create(&store, "n").await.unwrap();
    for index in 0..2 {
        store
            .put(slot_key(&store, "n", index).await, PutMode::Set, slot_bytes(i128::MAX - 5), Ttl::Never)
            .await
            .unwrap();
    }
    assert_eq!(counter.get().await.unwrap_err().kind(), ErrorKind::Overflow);
    let error = counter.add(6).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Overflow, Effect::NotApplied));
    counter.add(5).await.unwrap();
    counter.add(-4).await.unwrap();
    let counter = Counter::options().slots(1).open_or_create(&store, "m").await.unwrap();
    store.put(slot_key(&store, "m", 0).await, PutMode::Set, slot_bytes(i128::MIN + 5), Ttl::Never).await.unwrap();
    assert_eq!(counter.add(-6).await.unwrap_err().kind(), ErrorKind::Overflow);
    counter.add(-5).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), i128::MIN);
    assert_eq!(counter.reset().await.unwrap(), i128::MIN);
    counter.add(i64::MIN).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), i128::from(i64::MIN));
}

#[tokio::test]
async fn a_fast_counter_ends_where_it_says() {
    let store = memory();
    let counter = Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    let step = 1_i64 << 56;
    for sign in [1, -1] {
        for _ in 0..32 {
            counter.add(sign * step).await.unwrap();
        }
        assert_eq!(counter.get().await.unwrap(), i128::from(sign) << 61);
        for delta in [sign, sign * step] {
            let error = counter.add(delta).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Overflow, Effect::NotApplied));
            assert!(error.detail().contains("2305843009213693952"), "{error}");
        }
        assert_eq!(counter.reset().await.unwrap(), i128::from(sign) << 61);
    }
    for delta in [step + 1, -step - 1, i64::MIN, i64::MAX] {
        let error = counter.add(delta).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.detail().contains(&delta.to_string()) && error.detail().contains("72057594037927936"), "{error}");
    }
    assert_eq!(counter.get().await.unwrap(), 0);
    store.delete(data_key(&store, "n", 'n', 0).await).await.unwrap();
    for error in [counter.add(1).await.unwrap_err(), counter.get().await.unwrap_err()] {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied));
    }
}

#[tokio::test]
async fn a_fast_counter_has_golden_bytes() {
    let store = memory();
    let counter = Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    let key = data_key(&store, "n", 'n', 0).await;
    assert_eq!(store.get(key.clone()).await.unwrap().unwrap().value, "4611686018427387904");
    counter.add(-1).await.unwrap();
    assert_eq!(store.get(key.clone()).await.unwrap().unwrap().value, "4611686018427387903");
    // A server leaves blanks behind a number that became shorter.
    store.put(key, PutMode::Set, "4611686018427387999  ", Ttl::Never).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 95);
}

/// 31 writers at once may be seen to leave the range; what is farther out was never added.
#[tokio::test]
async fn a_number_that_no_adds_make_is_another_programs() {
    let store = memory();
    let counter = Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    let key = data_key(&store, "n", 'n', 0).await;
    let farthest = (1i128 << 61) + 31 * (1 << 56);
    for (value, is_ours) in [(farthest, true), (-farthest, true), (farthest + 1, false), (-farthest - 1, false)] {
        let stands = value + (1 << 62);
        store.put(key.clone(), PutMode::Set, stands.to_string(), Ttl::Never).await.unwrap();
        let (told, add) = (counter.get().await, counter.add(0).await.unwrap_err());
        assert_eq!(told.as_ref().ok(), is_ours.then_some(&value), "{told:?}");
        let expected = match is_ours {
            true => (ErrorKind::Overflow, Effect::NotApplied),
            false => (ErrorKind::LayoutMismatch, Effect::Unknown),
        };
        assert_eq!((add.kind(), add.known_effect()), expected, "{add}");
        assert_eq!(store.get(key.clone()).await.unwrap().unwrap().value, stands.to_string());
    }
    for foreign in ["", "hello, world"] {
        store.put(key.clone(), PutMode::Set, foreign, Ttl::Never).await.unwrap();
        for error in [counter.get().await.unwrap_err(), counter.add(7).await.unwrap_err()] {
            assert_eq!(
                (error.kind(), error.known_effect()),
                (ErrorKind::LayoutMismatch, Effect::NotApplied),
                "{error}"
            );
            assert!(error.to_string().contains("another program wrote"), "{error}");
        }
        assert_eq!(store.get(key.clone()).await.unwrap().unwrap().value, foreign);
    }
    for delta in [7, -10] {
        store.put(key.clone(), PutMode::Set, "5", Ttl::Never).await.unwrap();
        let error = counter.add(delta).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::LayoutMismatch, Effect::Unknown), "{error}");
        assert!(error.to_string().contains("another program wrote this number, which may be another now"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_resets_take_and_what_remains_is_what_was_added() {
    let store = yielding();
    for (name, options) in [("exact", Counter::options().slots(3)), ("fast", Counter::options().fast())] {
        options.open_or_create(&store, name).await.unwrap();
        let mut adders = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let counter = process(&store, name).await;
            adders.spawn(async move {
                for step in 1..=300 {
                    counter.add(step).await.unwrap();
                    tokio::task::yield_now().await;
                }
            });
        }
        let mut resetters = tokio::task::JoinSet::new();
        for _ in 0..2 {
            let counter = process(&store, name).await;
            resetters.spawn(async move {
                let mut taken = 0;
                for _ in 0..50 {
                    taken += counter.reset().await.unwrap();
                    tokio::task::yield_now().await;
                }
                taken
            });
        }
        adders.join_all().await;
        let taken: i128 = resetters.join_all().await.into_iter().sum();
        assert_eq!(taken + process(&store, name).await.get().await.unwrap(), 4 * 300 * 301 / 2, "{name}");
    }
}

#[test]
fn without_a_runtime_a_method_is_an_error_and_no_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for options in [Counter::options(), Counter::options().fast()] {
        let counter = runtime.block_on(options.open_or_create(&memory(), "n")).unwrap();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut add = Box::pin(counter.add(1));
        let Poll::Ready(Err(error)) = add.as_mut().poll(&mut context) else { panic!("it waits, or went on") };
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
        let mut get = Box::pin(counter.get());
        let Poll::Ready(Err(error)) = get.as_mut().poll(&mut context) else { panic!("it waits, or went on") };
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[tokio::test]
async fn a_timeout_of_0_is_bad_input() {
    let store = memory();
    for options in [Counter::options(), Counter::options().fast()] {
        let options = options.timeout(Duration::ZERO);
        assert_eq!(options.open_or_create(&store, "n").await.unwrap_err().kind(), ErrorKind::BadInput);
        assert_eq!(options.open(&store, "n").await.unwrap_err().kind(), ErrorKind::BadInput);
    }
}

/// One copy is what a fast counter has.
#[tokio::test]
async fn a_fast_counter_may_be_asked_for_with_one_copy_and_not_with_two() {
    let store = memory();
    let counter = Counter::options().fast().copies(1).open_or_create(&store, "n").await.unwrap();
    assert_eq!(counter.mode(), Mode::Fast);
    let error = Counter::options().fast().copies(2).open(&store, "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
}

/// Else a server that does not answer would keep its caller for ever.
#[tokio::test]
async fn every_request_of_an_opening_has_a_deadline() {
    let urged = Sieve::answering(&memory(), |ctx, op| {
        assert!(ctx.deadline.is_some(), "{op:?}");
        None
    });
    Counter::options().open_or_create(&urged, "n").await.unwrap();
    Counter::options().open(&urged, "n").await.unwrap().add(1).await.unwrap();
}
