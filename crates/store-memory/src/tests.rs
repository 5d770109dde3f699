//! What only the inside can tell: the count is exact, tables grow and shrink, eviction and sweeps keep their bounds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Arith, Clock, ErrorKind, Initial, ManualClock, PutMode, Remaining, Reply, Ttl, Want};

use crate::shard::{HOLD_BUCKETS_MAX, table_bytes_least};
use crate::{Marks, MemoryStore, Next, Place, Seen, Token, Value};

/// Counts every item and table again, and compares with the running counts: the bytes.
#[track_caller]
fn exact_bytes(store: &MemoryStore) -> usize {
    let inner = store.inner();
    // All shards at once: the sweeper may be at work.
    let shards: Vec<_> = inner.slots.iter().map(|slot| slot.lock(&inner.shared)).collect();
    for shard in &shards {
        assert_eq!(shard.bytes(), shard.bytes_counted());
    }
    let sum = shards.iter().map(|shard| shard.bytes()).sum();
    if let Some(max) = inner.shared.budget.max() {
        assert_eq!(inner.shared.budget.used(), sum);
        assert!(sum <= max, "{sum} > {max}");
    }
    sum
}

fn ms(ms: u64) -> Ttl {
    Ttl::After(Duration::from_millis(ms))
}

fn set(store: &MemoryStore, key: &[u8], value: &[u8], ttl: Ttl) -> larder_core::Result<Reply> {
    store.direct().put(key, PutMode::Set, value, 0, ttl)
}

fn has(store: &MemoryStore, key: &[u8]) -> bool {
    store.direct().get(key, Want::empty()).unwrap().is_some()
}

/// Ops of every kind over some thousand keys, from a seed; replies do not matter here.
fn churn(store: &MemoryStore, clock: &ManualClock, seed: u64, ops: usize) {
    let direct = store.direct();
    let mut state = seed | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for _ in 0..ops {
        let key = random(3_000).to_le_bytes();
        let value = vec![b'7'; random(400) as usize];
        let ttl = if random(3) == 0 { ms(random(500) + 1) } else { Ttl::Never };
        let initial = Some(Initial { value: random(1_000), ttl });
        _ = match random(16) {
            0..=3 => direct.put(&key, PutMode::Set, &value, random(2) as u32, ttl),
            4 => direct.put(&key, PutMode::Add, &value, 0, ttl),
            5 => direct.put(&key, PutMode::Replace, &value, 0, ttl),
            6..=7 => direct.put(&key, PutMode::Append, &value, 0, ttl),
            8 => direct.put(&key, PutMode::Prepend, &value, 0, ttl),
            9..=10 => direct.delete(&key, None),
            11 => direct.touch(&key, ttl),
            12 => direct.arith(&key, Arith::Incr(random(u64::MAX)), initial),
            13 => direct.arith(&key, Arith::Decr(random(10)), initial),
            14 => direct.get(&key, Want::all()).map(|_| Reply::Miss),
            _ => {
                clock.advance(Duration::from_millis(random(3)));
                Ok(Reply::Miss)
            }
        };
    }
}

#[test]
fn the_count_is_exact_after_anything() {
    for (bytes_max, evict, shards) in [
        (None, false, 4),
        (Some(300_000), false, 4),
        (Some(300_000), true, 4),
        (Some(60_000), true, 1),
        (Some(5_000), true, 64),
    ] {
        let clock = Arc::new(ManualClock::default());
        let mut builder = MemoryStore::builder().clock(clock.clone()).evict(evict).shards(shards);
        if let Some(bytes) = bytes_max {
            builder = builder.bytes_max(bytes);
        }
        let store = builder.build().unwrap();
        for round in 0..20 {
            churn(&store, &clock, 77 + round, 2_000);
            exact_bytes(&store);
        }
        clock.advance(Duration::from_secs(1));
        store.reclaim_expired();
        exact_bytes(&store);
        for key in 0..3_000u64 {
            _ = store.direct().delete(&key.to_le_bytes(), None);
        }
        assert!(exact_bytes(&store) <= shards * 1024, "empty tables shrink: {:?}", store.stats());
        assert_eq!(store.stats().items, 0);
    }
}

#[test]
fn a_full_store_is_nearly_full_names_the_limit_and_takes_again_what_was_freed() {
    let store = MemoryStore::builder().bytes_max(1 << 20).build().unwrap();
    let mut stored = 0u64;
    let error = loop {
        match set(&store, &stored.to_le_bytes(), &[b'v'; 100], Ttl::Never) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(!error.is_unknown() && error.to_string().contains("1048576"), "{error}");
    // What is missing is a table twice as large, or an item.
    assert!(exact_bytes(&store) > (1 << 20) * 9 / 10, "{:?}", store.stats());
    for key in 0..stored {
        assert!(has(&store, &key.to_le_bytes()));
    }
    // Items change in place; a full store goes on working.
    for key in 0..stored {
        assert_eq!(set(&store, &key.to_le_bytes(), &[b'w'; 100], Ttl::Never).unwrap(), Reply::Stored);
    }
    // Deleting and adding goes on for ever: graves in the tables need no room to be cleared.
    for key in 0..20_000u64 {
        let key = (key % stored).to_le_bytes();
        assert_eq!(store.direct().delete(&key, None).unwrap(), Reply::Deleted);
        assert_eq!(set(&store, &key, &[b'x'; 100], Ttl::Never).unwrap(), Reply::Stored);
    }
    exact_bytes(&store);
}

#[test]
fn a_full_store_reclaims_what_has_expired_before_it_refuses() {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::builder().bytes_max(1 << 20).clock(clock.clone()).build().unwrap();
    let fill =
        |from: u64| (from..).take_while(|key| set(&store, &key.to_le_bytes(), &[b'v'; 100], ms(50)).is_ok()).count();
    let first = fill(0);
    assert!(first > 5_000);
    clock.advance(Duration::from_millis(49));
    assert!(fill(1_000_000) < first / 100, "nothing has expired yet, a slot here or there is free");
    clock.advance(Duration::from_millis(1));
    let second = fill(2_000_000);
    assert!(second >= first * 9 / 10, "{first} {second}");
    exact_bytes(&store);
}

#[test]
fn an_item_larger_than_the_budget_is_refused_and_evicts_nothing() {
    let store = MemoryStore::builder().bytes_max(100_000).evict(true).build().unwrap();
    set(&store, b"small", b"v", Ttl::Never).unwrap();
    assert_eq!(set(&store, b"large", &[0; 200_000], Ttl::Never).unwrap_err().kind(), ErrorKind::Full);
    assert!(has(&store, b"small"));
    assert_eq!(store.stats().evicted, 0);
}

/// A store that evicts, with 100 small items.
fn hundred(bytes_max: usize) -> MemoryStore {
    let store = MemoryStore::builder().bytes_max(bytes_max).evict(true).build().unwrap();
    for key in 0..100u64 {
        set(&store, &key.to_le_bytes(), b"small", Ttl::Never).unwrap();
    }
    store
}

#[test]
fn an_item_that_fits_only_without_its_table_is_refused_and_evicts_nothing() {
    // The item's class is the budget to the byte.
    let store = hundred(1 << 20);
    let error = set(&store, b"k", &[0; 1_000_000], Ttl::Never).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("1048576"), "{error}");
    assert_eq!((store.stats().items, store.stats().evicted), (100, 0));
    // So it is with one that grows, and with one that is given up for another.
    set(&store, b"k", b"small", Ttl::Never).unwrap();
    assert_eq!(set(&store, b"k", &[0; 1_000_000], Ttl::Never).unwrap_err().kind(), ErrorKind::Full);
    let append = store.direct().put(b"k", PutMode::Append, &[0; 1_000_000], 0, Ttl::Never);
    assert_eq!(append.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!((store.stats().items, store.stats().evicted), (101, 0));
    exact_bytes(&store);
}

#[test]
fn what_fits_an_empty_store_is_stored_and_what_does_not_evicts_nothing() {
    let least = table_bytes_least();
    for (more, fits) in [(0, false), (1, false), (least - 1, false), (least, true), (least + 1, true), (4_096, true)] {
        let store = hundred((1 << 20) + more);
        let stored = set(&store, b"k", &[0; 1_000_000], Ttl::Never);
        assert_eq!(stored.is_ok(), fits, "{more}: {stored:?}");
        assert!(fits || store.stats().evicted == 0, "{more}: {:?}", store.stats());
        exact_bytes(&store);
    }
    // From a class below to one above.
    for bytes in (850_000..1_048_800).step_by(3_300).chain([983_015, 983_016, 983_017, 1_048_551, 1_048_552, 1_048_553])
    {
        for is_there in [false, true] {
            let store = hundred(1 << 20);
            if is_there {
                set(&store, b"k", b"small", Ttl::Never).unwrap();
            }
            match set(&store, b"k", &vec![0; bytes], Ttl::Never) {
                Ok(_) => assert!(has(&store, b"k") && bytes < 983_100, "{bytes}"),
                Err(error) => {
                    assert_eq!((error.kind(), store.stats().evicted), (ErrorKind::Full, 0), "{bytes}");
                    assert_eq!(store.stats().items, 100 + usize::from(is_there), "{bytes}");
                }
            }
            exact_bytes(&store);
        }
    }
}

#[test]
fn an_eviction_ends_where_nothing_is_left() {
    let store = hundred(1 << 20);
    let inner = store.inner();
    assert_eq!(inner.evict(usize::MAX), 100);
    // Tables that hold nothing are given back, however small.
    assert_eq!(exact_bytes(&store), 0);
    let visits = inner.evict_turn.load(Ordering::Relaxed);
    assert!(visits <= 32 * inner.slots.len(), "{visits} visits");
}

#[test]
fn a_cache_keeps_what_is_read_and_drops_what_is_not() {
    let store = MemoryStore::builder().bytes_max(4 << 20).evict(true).build().unwrap();
    let hot: Vec<_> = (0..1_000u64).map(|key| (key << 32).to_le_bytes()).collect();
    for key in &hot {
        set(&store, key, &[b'h'; 100], Ttl::Never).unwrap();
    }
    for key in 0..200_000u64 {
        set(&store, &key.to_le_bytes(), &[b'c'; 100], Ttl::Never).unwrap();
        if key % 20 == 0 {
            hot.iter().skip((key / 20) as usize % 10).step_by(10).for_each(|key| _ = has(&store, key));
        }
    }
    let kept = hot.iter().filter(|key| has(&store, &key[..])).count();
    assert!(kept > 950, "{kept} of 1000 hot items");
    assert!(exact_bytes(&store) > (4 << 20) * 9 / 10, "a cache stays full");
    assert!(store.stats().evicted > 150_000);
    // Shards keep their share: the largest has at most some twice what the smallest has.
    let inner = store.inner();
    let lens: Vec<_> = inner.slots.iter().map(|slot| slot.lock(&inner.shared).len()).collect();
    assert!(lens.iter().max() < lens.iter().min().map(|min| min * 4).as_ref(), "{lens:?}");
}

#[test]
fn a_large_item_evicts_from_other_shards_too() {
    let store = MemoryStore::builder().bytes_max(4 << 20).evict(true).shards(64).build().unwrap();
    for key in 0..60_000u64 {
        set(&store, &key.to_le_bytes(), &[b'c'; 100], Ttl::Never).unwrap();
    }
    for key in 0..8u8 {
        set(&store, &[key], &[b'L'; 1 << 20], Ttl::Never).unwrap();
        assert!(has(&store, &[key]));
        exact_bytes(&store);
    }
}

#[test]
fn shards_are_of_uneven_size_so_that_tables_do_not_double_at_once() {
    let store = MemoryStore::new();
    for key in 0..100_000u64 {
        set(&store, &key.to_le_bytes(), b"", Ttl::Never).unwrap();
    }
    let inner = store.inner();
    let lens: Vec<_> = inner.slots.iter().map(|slot| slot.lock(&inner.shared).len()).collect();
    assert!(lens.iter().all(|&len| (200..=700).contains(&len)), "{lens:?}");
    let (first, last) = (lens[..32].iter().sum::<usize>(), lens[224..].iter().sum::<usize>());
    let ratio = last.max(first) as f64 / last.min(first) as f64;
    assert!((1.7..2.3).contains(&ratio), "{first} {last}");
}

#[test]
fn every_shard_count_covers_every_hash() {
    for shards in [1, 2, 3, 255, 256, 4096] {
        let store = MemoryStore::builder().shards(shards).build().unwrap();
        for key in 0..30_000u64 {
            set(&store, &key.to_le_bytes(), b"", Ttl::Never).unwrap();
        }
        let inner = store.inner();
        assert!(inner.slots.iter().filter(|slot| slot.lock(&inner.shared).len() > 0).count() * 100 >= shards * 95);
    }
}

#[test]
fn a_life_is_never_cut_short_and_its_rest_is_exact() {
    let clock = Arc::new(ManualClock::default());
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    clock.advance(Duration::from_micros(900));
    set(&store, b"k", b"v", Ttl::After(Duration::from_micros(1_050))).unwrap();
    // Stored at 0.9 ms for 1.05 ms: the expiry is rounded up to 2 ms.
    clock.advance(Duration::from_micros(1_099));
    let rest = store.direct().get(b"k", Want::TTL).unwrap().unwrap().ttl;
    assert_eq!(rest, Remaining::For(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    assert!(!has(&store, b"k"));
}

/// A clock that is 1 ms on after each look of the thread that made it; others, as the sweeper is, do not turn it.
#[derive(Debug)]
struct Looked {
    by: std::thread::ThreadId,
    ms: AtomicU64,
}

impl Clock for Looked {
    fn monotonic(&self) -> Duration {
        let more = u64::from(std::thread::current().id() == self.by);
        Duration::from_millis(self.ms.fetch_add(more, Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        self.monotonic()
    }
}

#[test]
fn an_update_that_met_the_item_is_done_to_it_though_its_life_ends_meanwhile() {
    const START_MS: u64 = 1_000;
    fn write(value: Value<'_>, expiry_ms: u64) -> Next<'_> {
        let (marks, token) = (Marks::empty(), Token::Fresh);
        Next::Write { value, flags: 0, expiry_ms: Some(expiry_ms), marks, token }
    }
    // The life ends at each look at the clock that there may be.
    for left_ms in 1..8 {
        let acts: [(Value<'_>, &[u8]); 4] = [
            (Value::Same, b"5"),
            (Value::Whole(b"6"), b"6"),
            (Value::Padded { number: 6, width: 1 }, b"6"),
            (Value::Padded { number: 6, width: 3 }, b"6  "),
        ];
        for (value, after) in acts {
            let clock = Arc::new(Looked { by: std::thread::current().id(), ms: AtomicU64::new(START_MS) });
            let store = MemoryStore::builder().clock(clock.clone()).bytes_max(1 << 20).evict(true).track_access(true);
            let store = store.build().unwrap();
            let direct = store.direct();
            direct.update(b"k", |_, _| write(Value::Whole(b"5"), START_MS + 100)).unwrap();
            clock.ms.store(START_MS + 100 - left_ms, Ordering::Relaxed);
            let mut met = false;
            let decide = |seen: Option<Seen<'_>>, _| {
                met = seen.is_some();
                write(value, START_MS + 10_000)
            };
            direct.update(b"k", decide).unwrap();
            let found = direct.fetch(b"k", |seen| seen.value.to_vec()).unwrap();
            let is_made = met || matches!(value, Value::Whole(_));
            assert_eq!(found, is_made.then(|| after.to_vec()), "{value:?}, {left_ms} ms before the end");
        }
    }
}

#[test]
fn a_sweep_misses_no_expiry_however_the_table_changes_under_it() {
    let falling = |key: u64, _: u64| 1_000_000 - key;
    let scattered = |key: u64, trial: u64| 1 + (key + trial).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000;
    for (trial, life_ms) in (0..12u64).flat_map(|trial| [(trial, falling as fn(u64, u64) -> u64), (trial, scattered)]) {
        let clock = Arc::new(ManualClock::default());
        let store = MemoryStore::builder().clock(clock.clone()).shards(1).build().unwrap();
        let inner = store.inner();
        let slot = &inner.slots[0];
        let mut least = u64::MAX;
        for key in 0..4_000u64 {
            least = least.min(life_ms(key, trial));
            set(&store, &key.to_le_bytes(), b"v", ms(life_ms(key, trial))).unwrap();
            // A part of a sweep, often; nothing expires, but the bound is found anew at the end of each.
            if key % 40 == trial {
                slot.lock(&inner.shared).sweep(0);
                assert!(slot.earliest_ms() <= least, "{} > {least}, trial {trial}", slot.earliest_ms());
            }
        }
        // The table shrinks under a sweep: what was ahead of it is behind.
        slot.lock(&inner.shared).sweep(0);
        let kept = (0..4_000u64).filter(|key| key % 16 == trial).collect::<Vec<_>>();
        for key in (0..4_000u64).filter(|key| key % 16 != trial) {
            store.direct().delete(&key.to_le_bytes(), None).unwrap();
        }
        let least = kept.iter().map(|&key| life_ms(key, trial)).min().unwrap();
        while !slot.lock(&inner.shared).sweep(0).1 {}
        assert!(slot.earliest_ms() <= least, "{} > {least}, trial {trial}", slot.earliest_ms());
        // The bound is tight after a whole sweep, and so is what a sweep removes.
        while !slot.lock(&inner.shared).sweep(0).1 {}
        assert_eq!(slot.earliest_ms(), least);
        clock.advance(Duration::from_millis(least));
        assert_eq!(store.reclaim_expired(), 1);
        clock.advance(Duration::from_secs(1_000));
        assert_eq!(store.reclaim_expired(), kept.len() - 1);
        assert_eq!(store.stats().items, 0);
    }
}

#[test]
fn a_walk_goes_on_within_a_shard_and_misses_nothing_where_items_move_meanwhile() {
    const ITEMS: u64 = 20_000;
    let store = MemoryStore::builder().shards(1).build().unwrap();
    let key = |n: u64| n.to_le_bytes();
    (0..ITEMS).for_each(|n| _ = set(&store, &key(n), b"v", Ttl::Never).unwrap());
    // What is done to the store after three steps, and how often an item may be shown then.
    type Meanwhile = fn(&MemoryStore);
    let grow: Meanwhile =
        |store| (0..4 * ITEMS).for_each(|n| _ = set(store, &(ITEMS + n).to_le_bytes(), b"v", Ttl::Never).unwrap());
    let write: Meanwhile =
        |store| (0..ITEMS).for_each(|n| _ = set(store, &n.to_le_bytes(), &[b'w'; 100], ms(1_000_000)).unwrap());
    // A smaller table has those at its beginning that were at the end of the larger one.
    let shrink: Meanwhile = |store| {
        let stays = |n: &u64| *n < ITEMS && n % 16 == 1;
        (0..5 * ITEMS).filter(|n| !stays(n)).for_each(|n| _ = store.direct().delete(&n.to_le_bytes(), None).unwrap());
    };
    for (meanwhile, most) in [(write, 1), (grow, 2), (shrink, 2)] {
        let (mut at, mut seen) = (Some(Place::default()), std::collections::HashMap::new());
        for step in 0.. {
            let Some(place) = at else { break };
            if step == 3 {
                meanwhile(&store);
            }
            let mut shown = 0;
            at = store.each_from(place, |key, _| {
                shown += 1;
                *seen.entry(key.to_vec()).or_insert(0) += 1;
            });
            assert!(shown <= HOLD_BUCKETS_MAX || (step == 3 && most == 2), "{shown} items in step {step}");
        }
        let times = (0..ITEMS).filter(|n| has(&store, &key(*n))).map(|n| seen.get(&key(n)[..]).copied().unwrap_or(0));
        let times: Vec<i32> = times.collect();
        assert!(times.len() >= ITEMS as usize / 16);
        assert!(
            times.iter().all(|times| (1..=most).contains(times)),
            "{:?} to {:?}",
            times.iter().min(),
            times.iter().max()
        );
    }
}

#[test]
fn sessions_differ_between_lives() {
    let sessions: std::collections::HashSet<_> =
        (0..1_000).map(|_| MemoryStore::new().inner().shared.session).collect();
    assert_eq!(sessions.len(), 1_000);
}
