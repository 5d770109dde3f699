//! The table: semantics, limits, loss, lives, round trips.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, ManualClock, PutMode, StoreExt, StoreRef, Ttl, TtlSupport};
use larder_store_memory::MemoryStore;
use larder_structures::registry::{self, drop_structure};
use larder_structures::{Name, Set, Table};
use tokio::task::JoinHandle;

use crate::support::hooked::{Hooked, dies_at};
use crate::support::shaped::Shaped;
use crate::support::slow::Slow;
use crate::table::support::{
    cost, counting, entries, entry_key, eventually, evicting, flagged, is_flagged, list_key, lose, memory, sorted_keys,
};

#[tokio::test]
async fn what_was_put_is_read_and_what_was_removed_is_not() {
    for store in [memory(), evicting()] {
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let other = Table::open(&store, "t").await.unwrap();
        for (key, value) in [(&b"a"[..], &b"1"[..]), (b"", b"empty"), (b"\0\xff", b""), (b"a", b"2")] {
            table.put(key, value).await.unwrap();
            assert_eq!(other.get(key).await.unwrap().unwrap(), value);
            assert!(other.has(key).await.unwrap());
        }
        assert_eq!(sorted_keys(&other).await, [&b""[..], b"\0\xff", b"a"]);
        assert_eq!(entries(&table).await.get(&b"a"[..]).unwrap(), b"2");
        assert!(other.remove("a").await.unwrap());
        assert!(!table.remove("a").await.unwrap());
        assert_eq!(table.get("a").await.unwrap(), None);
        assert!(!table.has("a").await.unwrap() && !table.has("never").await.unwrap());
        let many = table.get_many([&b"a"[..], b"", b"", b"\0\xff"]).await.unwrap();
        assert_eq!(many, [None, Some("empty".into()), Some("empty".into()), Some(Bytes::new())]);
        assert_eq!(entries(&other).await.len(), 2);
        table.put("a", "3").await.unwrap();
        assert_eq!(other.get("a").await.unwrap().unwrap(), "3");
        assert_eq!(sorted_keys(&table).await.len(), 3);
    }
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let inner = evicting();
    let (store, counting) = counting(inner.clone());
    assert_eq!(cost(&counting, Table::open_or_create(&store, "t")).await, 3);
    assert_eq!(cost(&counting, Table::open(&store, "t")).await, 1);
    let table = Table::options().dirtiness(1 << 20).open(&store, "t").await.unwrap();
    assert_eq!(cost(&counting, table.put("a", "1")).await, 2);
    flagged(&inner, "t", b"a").await;
    assert_eq!(cost(&counting, table.put("a", "2")).await, 1);
    let another = Table::open(&store, "t").await.unwrap();
    assert_eq!(cost(&counting, another.put("a", "3")).await, 1);
    assert_eq!(cost(&counting, table.get("a")).await, 1);
    assert_eq!(cost(&counting, table.has("a")).await, 1);
    assert_eq!(cost(&counting, table.get("b")).await, 2);
    table.put("z", "1").await.unwrap();
    assert_eq!(cost(&counting, table.get_many(["a", "z", "a"])).await, 1);
    // Of what is missing the list tells whether it was ever there, once for all of them.
    assert_eq!(cost(&counting, table.get_many(["a", "b", "c", "z", "d"])).await, 2);
    assert_eq!(cost(&counting, table.keys()).await, 1);
    assert_eq!(cost(&counting, table.entries()).await, 2);
    assert_eq!(cost(&counting, table.remove("a")).await, 3);
    assert_eq!(cost(&counting, table.remove("b")).await, 2);
    // An entry whose maker died before he listed it.
    let dead = Hooked::new(&inner);
    let dying = Table::open(&dead.shared(), "t").await.unwrap();
    dies_at(&dead, 2, dying.put("u", "1")).await;
    assert_eq!(cost(&counting, table.remove("u")).await, 6);
    eventually("the key is off the list", || async { cost(&counting, table.keys()).await == 1 }).await;
    table.put("l", "1").await.unwrap();
    flagged(&inner, "t", b"l").await;
    lose(&inner, "t", b"l").await;
    let before = counting.counts();
    assert_eq!(table.get("l").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(counting.counts().since(&before).round_trips, 4);
    // Where nothing can be lost.
    let (store, counting) = crate::table::support::counting(memory());
    let table = Table::open_or_create(&store, "t").await.unwrap();
    assert_eq!(cost(&counting, table.get("b")).await, 1);
}

/// What the third one is for: `a_listing_that_comes_after_the_list_forgot_that_the_entry_is_gone_is_a_loss_or_is_taken_back`, in `races.rs`.
#[tokio::test]
async fn a_put_that_lists_its_new_entry_late_takes_one_more() {
    let (store, counting) = counting(evicting());
    Table::open_or_create(&store, "t").await.unwrap();
    let hooked = Hooked::new(&store);
    let table = Table::open(&hooked.shared(), "t").await.unwrap();
    for (key, pause_ms, expected) in [("slow", 110, 3), ("quick", 0, 2)] {
        hooked.at(2, move |store, batch| async move {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            store.run(Ctx::default(), batch).await
        });
        assert_eq!(cost(&counting, table.put(key, "v")).await, expected, "{key}");
        table.settle().await;
    }
}

#[tokio::test]
async fn an_entry_that_is_lost_is_lost_until_it_is_put_or_removed() {
    let store = evicting();
    let table = Table::options().shards(3).open_or_create(&store, "t").await.unwrap();
    for key in ["a", "b", "c", "d"] {
        table.put(key, "v").await.unwrap();
    }
    for key in [b"a", b"b", b"c"] {
        flagged(&store, "t", key).await;
        lose(&store, "t", key).await;
    }
    for error in [
        table.get("a").await.unwrap_err(),
        table.has("a").await.unwrap_err(),
        table.get_many(["d", "a"]).await.unwrap_err(),
        table.entries().await.unwrap_err(),
        Table::open(&store, "t").await.unwrap().get("a").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("a "), "{error}");
        assert!(!error.to_string().contains(" d "), "{error}");
    }
    let mut found = table.entries_and_lost().await.unwrap();
    found.lost.sort();
    assert_eq!((found.entries, found.lost), (vec![("d".into(), "v".into())], vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(sorted_keys(&table).await, ["a", "b", "c", "d"]);
    table.put("a", "again").await.unwrap();
    assert!(table.remove("b").await.unwrap());
    assert!(table.remove("c").await.unwrap());
    assert_eq!(table.get("a").await.unwrap().unwrap(), "again");
    assert_eq!(table.get_many(["b", "c"]).await.unwrap(), [None, None]);
    assert!(!table.remove("b").await.unwrap());
    // What was lost before it was put again does not come up when that is removed.
    assert!(table.remove("a").await.unwrap());
    assert_eq!(table.get("a").await.unwrap(), None);
    assert_eq!(entries(&table).await.len(), 1);
}

#[tokio::test]
async fn a_store_that_cannot_lose_repairs_its_list() {
    let store = memory();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("a", "v").await.unwrap();
    flagged(&store, "t", b"a").await;
    lose(&store, "t", b"a").await;
    assert_eq!(table.get("a").await.unwrap(), None);
    assert_eq!(table.keys().await.unwrap(), ["a"]);
    assert!(table.entries().await.unwrap().is_empty());
    eventually("the key is off the list", || async { table.keys().await.unwrap().is_empty() }).await;
}

#[tokio::test]
async fn a_shard_of_the_list_that_is_gone_is_lost() {
    for store in [memory(), evicting()] {
        let table = Table::open_or_create(&store, "t").await.unwrap();
        table.put("a", "v").await.unwrap();
        flagged(&store, "t", b"a").await;
        store.delete(list_key(&store, "t", 0).await).await.unwrap();
        assert_eq!(table.get("a").await.unwrap().unwrap(), "v");
        table.put("a", "w").await.unwrap();
        for error in [
            table.keys().await.unwrap_err(),
            table.entries().await.unwrap_err(),
            table.get("b").await.unwrap_err(),
            table.remove("a").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        let error = table.put("b", "v").await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
        assert_eq!(is_flagged(&store, "t", b"b").await, None, "what could not be listed is left");
    }
}

#[tokio::test]
async fn bad_input_is_named_and_nothing_is_written() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(20_000).build().unwrap());
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let (key_max, value_max) = (table.key_bytes_max(), table.value_bytes_max(1));
    let error = table.put("k", vec![7; value_max + 1]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied));
    assert!(error.to_string().contains(&value_max.to_string()), "{error}");
    assert!(error.to_string().contains(&(value_max + 1).to_string()), "{error}");
    for error in [
        table.put(vec![7; key_max + 1], "").await.unwrap_err(),
        table.get(vec![7; key_max + 1]).await.unwrap_err(),
        table.remove(vec![7; key_max + 1]).await.unwrap_err(),
        table.get_many([vec![7; key_max + 1]]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(&key_max.to_string()), "{error}");
    }
    let error = table.put_for("k", "v", Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("ttl(true)"), "{error}");
    assert!(table.entries().await.unwrap().is_empty());
    let lives = Table::options().ttl(true).open_or_create(&store, "l").await.unwrap();
    assert_eq!(lives.put_for("k", "v", Duration::ZERO).await.unwrap_err().kind(), ErrorKind::BadInput);
    assert!(lives.entries().await.unwrap().is_empty());
    assert_eq!(Table::options().shards(0).open_or_create(&store, "x").await.unwrap_err().kind(), ErrorKind::BadInput);
    assert_eq!(Table::options().shards(1025).open(&store, "x").await.unwrap_err().kind(), ErrorKind::BadInput);
    let error = Table::options().timeout(Duration::ZERO).open(&store, "x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
}

#[tokio::test]
async fn the_largest_key_and_value_are_put_over_and_removed() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(20_000).build().unwrap());
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let key = vec![7; table.key_bytes_max()];
    let max = table.value_bytes_max(key.len());
    // The second has no room beside the first.
    for byte in 1..6 {
        table.put(&key, vec![byte; max]).await.unwrap();
        assert_eq!(table.get(&key).await.unwrap().unwrap(), vec![byte; max]);
    }
    table.put(&key, "").await.unwrap();
    assert_eq!(table.get(&key).await.unwrap().unwrap(), "");
    assert!(table.remove(&key).await.unwrap());
    assert!(table.entries().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_list_that_is_full_says_so_and_keeps_nothing_of_the_put() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(20_000).build().unwrap());
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let mut count = 0u32;
    let error = loop {
        match table.put([&count.to_le_bytes()[..], &[7; 500]].concat(), "v").await {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("more shards"), "{error}");
    assert!(count > 20, "{count}");
    let refused = [&count.to_le_bytes()[..], &[7; 500]].concat();
    assert_eq!(is_flagged(&store, "t", &refused).await, None);
    assert_eq!(table.keys().await.unwrap().len(), count as usize);
    // An entry that is listed takes values all the same, and a removal makes room.
    let first = [&0u32.to_le_bytes()[..], &[7; 500]].concat();
    table.put(&first, "w").await.unwrap();
    for number in 0..4u32 {
        assert!(table.remove([&number.to_le_bytes()[..], &[7; 500]].concat()).await.unwrap());
    }
    eventually("there is room", || async { table.put(&refused, "v").await.is_ok() }).await;
}

#[tokio::test]
async fn none_and_very_many_keys_in_one_call() {
    let store = memory();
    let table = Table::options().shards(4).open_or_create(&store, "t").await.unwrap();
    assert!(table.get_many([] as [&str; 0]).await.unwrap().is_empty());
    table.put(999_999u32.to_le_bytes(), "last").await.unwrap();
    let small = Hooked::with_batches_of(&store, 10_000).shared();
    let table = Table::open(&small, "t").await.unwrap();
    let found = table.get_many((0..1_000_000u32).map(u32::to_le_bytes)).await.unwrap();
    assert_eq!(found.len(), 1_000_000);
    assert_eq!(found.iter().filter(|value| value.is_some()).count(), 1);
    assert_eq!(found[999_999].as_ref().unwrap(), "last");
}

#[tokio::test]
async fn an_entry_that_is_put_over_is_compacted_behind() {
    let store = memory();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("k", "0").await.unwrap();
    flagged(&store, "t", b"k").await;
    let item_key = entry_key(&store, "t", b"k").await;
    let bytes = || async { store.get(item_key.clone()).await.unwrap().unwrap().value.len() };
    // By those who put and never read, too.
    for round in 0..500u32 {
        // Without a pause: no other task comes in between.
        table.put("k", round.to_string()).await.unwrap();
        assert!(bytes().await < 6_000, "{} bytes after {round} puts", bytes().await);
    }
    eventually("a reader compacts it", || async {
        assert_eq!(table.get("k").await.unwrap().unwrap(), "499");
        bytes().await < 400
    })
    .await;
    assert_eq!(table.get("k").await.unwrap().unwrap(), "499");
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
}

#[tokio::test]
async fn a_compaction_by_those_who_put_takes_no_round_trip_of_its_own() {
    let inner = memory();
    let (store, counting) = counting(inner.clone());
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("k", "0").await.unwrap();
    table.settle().await;
    let item_key = entry_key(&inner, "t", b"k").await;
    let bytes = || async { inner.get(item_key.clone()).await.unwrap().unwrap().value.len() };
    let (mut longest, mut times_compacted) = (0, 0);
    for round in 0..400u32 {
        let (was, before) = (bytes().await, counting.counts());
        table.put("k", round.to_string()).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, 1);
        let is = bytes().await;
        times_compacted += u32::from(is < was);
        longest = longest.max(is);
    }
    assert!(times_compacted > 5 && longest < 6_000, "compacted {times_compacted} times, up to {longest} bytes");
    // What waits for another put is done by who waits for the table to settle.
    table.settle().await;
    assert_eq!(table.get("k").await.unwrap().unwrap(), "399");
}

#[tokio::test]
async fn a_program_that_ends_can_wait_for_what_is_done_behind_it() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.settle().await;
    table.put("k", "v").await.unwrap();
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(false));
    table.settle().await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
}

/// Two go on putting through the handle, half a second apart, on a store that takes half a second: there is always something behind one of them.
#[tokio::test(start_paused = true)]
async fn to_wait_for_what_is_done_behind_a_handle_that_never_rests_ends_in_time() {
    let slow = Slow::new(&memory(), false);
    let store: StoreRef = slow.clone();
    let table = Table::options().timeout(Duration::from_secs(600)).open_or_create(&store, "t").await.unwrap();
    slow.take_ms((0..10_000).map(|_| (500, 0)));
    let putting: Vec<_> = (0..2u32)
        .map(|putter| {
            let table = table.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(500) * putter).await;
                for number in 0..200 {
                    table.put([putter, number].map(|number| number as u8), "v").await.unwrap();
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let since = tokio::time::Instant::now();
    tokio::time::timeout(Duration::from_secs(60), table.settle()).await.expect("an end");
    assert_eq!(since.elapsed().as_secs(), 5);
    assert!(putting.iter().all(|putting| !putting.is_finished()));
    putting.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn it_opens_only_as_it_was_made() {
    let store = memory();
    assert_eq!(Table::open(&store, "t").await.unwrap_err().kind(), ErrorKind::Absent);
    Table::options().shards(2).open_or_create(&store, "t").await.unwrap();
    Table::options().ttl(true).open_or_create(&store, "l").await.unwrap();
    Set::open_or_create(&store, "s").await.unwrap();
    assert!(Table::open(&store, "l").await.unwrap().has_lives());
    assert!(!Table::options().ttl(false).open(&store, "t").await.unwrap().has_lives());
    for error in [
        Table::options().shards(3).open(&store, "t").await.unwrap_err(),
        Table::options().ttl(true).open_or_create(&store, "t").await.unwrap_err(),
        Table::options().ttl(false).open(&store, "l").await.unwrap_err(),
        Table::open_or_create(&store, "s").await.unwrap_err(),
        Set::open_or_create(&store, "t").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    }
    let name = Name::new("t").unwrap();
    let manifest = registry::find(&store, Ctx::default(), &name).await.unwrap().unwrap();
    assert_eq!((manifest.shards, &manifest.params[..]), (2, &[1, 0][..]));
}

#[tokio::test]
async fn a_drop_removes_every_entry_and_open_handles_notice() {
    for store in [memory(), evicting()] {
        let table = Table::options().shards(3).open_or_create(&store, "t").await.unwrap();
        let mut keys = Vec::new();
        for number in 0..100u32 {
            table.put(number.to_le_bytes(), "v").await.unwrap();
            keys.push(entry_key(&store, "t", &number.to_le_bytes()).await);
        }
        let small = Hooked::with_batches_of(&store, 16).shared();
        assert!(drop_structure(&small, Ctx::default(), &Name::new("t").unwrap()).await.unwrap().is_some());
        for key in keys {
            assert!(store.get(key).await.unwrap().is_none());
        }
        assert_eq!(table.get("v").await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(table.keys().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(table.put("new", "v").await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(Table::open_or_create(&store, "t").await.unwrap().keys().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn foreign_bytes_are_an_error_and_never_a_value() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("k", "v").await.unwrap();
    table.put("l", "w").await.unwrap();
    for key in [b"k", b"l"] {
        flagged(&store, "t", key).await;
    }
    // Another key's entry under this one's hash.
    let (mine, others) = (entry_key(&store, "t", b"k").await, entry_key(&store, "t", b"l").await);
    let item = store.get(others).await.unwrap().unwrap();
    let put = larder_core::Verb::Put { mode: PutMode::Set, value: item.value, flags: item.flags, ttl: Ttl::Never };
    store.run_one(Ctx::default(), larder_core::Op::new(mine.clone(), put)).await.unwrap();
    for error in [
        table.get("k").await.unwrap_err(),
        table.put("k", "mine").await.unwrap_err(),
        table.remove("k").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("same hash"), "{error}");
    }
    assert_eq!(table.get("l").await.unwrap().unwrap(), "w");
    store.put(mine, PutMode::Set, "foreign", Ttl::Never).await.unwrap();
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    assert_eq!(table.put("k", "mine").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
}

/// A table with lives, whose clock the test turns; the store's own goes with it.
async fn with_lives() -> (Arc<ManualClock>, StoreRef, Table) {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let inner: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let store: StoreRef = Arc::new(crate::table::support::Evicting(inner));
    let table = Table::options().ttl(true).clock(clock.clone()).open_or_create(&store, "t").await.unwrap();
    (clock, store, table)
}

#[tokio::test]
async fn a_life_that_is_over_is_absent_and_one_that_is_not_is_lost() {
    let (clock, store, table) = with_lives().await;
    let hour = Duration::from_secs(3600);
    table.put_for("short", "v", hour).await.unwrap();
    table.put("for ever", "v").await.unwrap();
    table.put_for("lost", "v", 3 * hour).await.unwrap();
    for key in [&b"short"[..], b"for ever", b"lost"] {
        flagged(&store, "t", key).await;
    }
    assert_eq!(sorted_keys(&table).await, ["for ever", "lost", "short"]);
    lose(&store, "t", b"lost").await;
    assert_eq!(table.get("lost").await.unwrap_err().kind(), ErrorKind::Lost);
    clock.advance(hour + Duration::from_secs(2));
    assert_eq!(table.get("short").await.unwrap(), None);
    assert_eq!(sorted_keys(&table).await, ["for ever", "lost"]);
    assert_eq!(table.get("lost").await.unwrap_err().kind(), ErrorKind::Lost);
    // Clocks may disagree by five minutes: from then on nobody can tell.
    clock.advance(2 * hour - Duration::from_secs(200));
    assert_eq!(table.get("lost").await.unwrap(), None);
    assert_eq!(table.get("for ever").await.unwrap().unwrap(), "v");
    // What is over for certain is taken off the list by whoever reads it.
    clock.advance(hour);
    assert_eq!(sorted_keys(&table).await, ["for ever"]);
    let list = list_key(&store, "t", 0).await;
    let count = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).filter(|window| *window == what).count();
    eventually("the list forgets what is over", || async {
        let _ = table.keys().await.unwrap();
        // One note *listed* each, and one *gone*; a compaction leaves the latter.
        count(&store.get(list.clone()).await.unwrap().unwrap().value, b"\x12\x02") >= 2
    })
    .await;
}

#[tokio::test]
async fn a_put_gives_an_entry_another_life_and_the_list_knows_it() {
    let (clock, store, table) = with_lives().await;
    let hour = Duration::from_secs(3600);
    // A life, for ever, and a life again.
    table.put_for("a", "1", hour).await.unwrap();
    table.put("a", "2").await.unwrap();
    table.put("b", "1").await.unwrap();
    table.put_for("b", "2", hour).await.unwrap();
    for key in [b"a", b"b"] {
        flagged(&store, "t", key).await;
    }
    clock.advance(hour + Duration::from_secs(2));
    assert_eq!(table.get("a").await.unwrap().unwrap(), "2");
    assert_eq!(table.get("b").await.unwrap(), None);
    assert_eq!(sorted_keys(&table).await, ["a"]);
    lose(&store, "t", b"a").await;
    assert_eq!(table.get("a").await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(table.remove("a").await.unwrap());
    assert_eq!(table.get("a").await.unwrap(), None);
    assert!(!table.remove("b").await.unwrap());
    // Flagging an entry as listed does not change its life.
    table.put_for("c", "1", hour).await.unwrap();
    clock.advance(Duration::from_secs(600));
    flagged(&store, "t", b"c").await;
    clock.advance(hour - Duration::from_secs(590));
    assert_eq!(table.get("c").await.unwrap(), None);
}

/// It is the store's clock that ends a life: by minutes, and by more than clocks may disagree.
#[tokio::test]
async fn a_reader_whose_clock_is_ahead_lists_what_is_there() {
    let (clock, store, table) = with_lives().await;
    table.put_for("k", "v", Duration::from_secs(200)).await.unwrap();
    flagged(&store, "t", b"k").await;
    for ahead_s in [240, 3600] {
        let ahead = Arc::new(ManualClock::at(Duration::from_secs(1_000_000 + ahead_s)));
        let (store, counting) = counting(store.clone());
        let reader = Table::options().clock(ahead).open(&store, "t").await.unwrap();
        assert_eq!(reader.get("k").await.unwrap().unwrap(), "v");
        assert_eq!(cost(&counting, reader.keys()).await, 2);
        assert_eq!(reader.keys().await.unwrap(), ["k"]);
        assert_eq!(entries(&reader).await.len(), 1);
        reader.settle().await;
    }
    // When it is over in truth, it is looked for once.
    assert_eq!(table.keys().await.unwrap(), ["k"]);
    clock.advance(Duration::from_secs(202));
    let (store, counting) = counting(store);
    let reader = Table::options().clock(clock).open(&store, "t").await.unwrap();
    let before = counting.counts();
    assert!(reader.keys().await.unwrap().is_empty());
    assert_eq!(counting.counts().since(&before).round_trips, 2);
    reader.settle().await;
    assert_eq!(cost(&counting, reader.keys()).await, 1);
}

#[tokio::test]
async fn round_trips_with_lives_are_as_documented() {
    let inner = evicting();
    let (store, counting) = counting(inner.clone());
    let table = Table::options().ttl(true).dirtiness(1 << 20).open_or_create(&store, "t").await.unwrap();
    let life = Duration::from_secs(60);
    assert_eq!(cost(&counting, table.put_for("a", "1", life)).await, 2);
    flagged(&inner, "t", b"a").await;
    assert_eq!(cost(&counting, table.put_for("a", "2", life)).await, 3);
    flagged(&inner, "t", b"a").await;
    // An entry whose maker died before he listed it.
    let dead = Hooked::new(&inner);
    let dying = Table::open(&dead.shared(), "t").await.unwrap();
    dies_at(&dead, 2, dying.put_for("u", "1", life)).await;
    assert_eq!(cost(&counting, table.put_for("u", "2", life)).await, 6);
    assert_eq!(cost(&counting, table.get("a")).await, 1);
}

/// Whoever flags an entry as listed writes its life anew: as it was, to the millisecond where the store counts those.
#[tokio::test]
async fn a_life_under_a_second_is_no_longer_for_being_listed() {
    for ttl in [TtlSupport::Millis, TtlSupport::Seconds] {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let inner: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let store = Shaped::over(&inner, |profile| profile.ttl = ttl);
        let table = Table::options().ttl(true).clock(clock.clone()).open_or_create(&store, "t").await.unwrap();
        table.put_for("k", "v", Duration::from_millis(200)).await.unwrap();
        table.settle().await;
        assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
        clock.advance(Duration::from_millis(150));
        assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
        clock.advance(Duration::from_millis(150));
        // Where it counts seconds, what is left is told in whole ones, rounded down.
        assert_eq!(table.get("k").await.unwrap().is_some(), ttl == TtlSupport::Seconds);
        clock.advance(Duration::from_secs(1));
        assert_eq!(table.get("k").await.unwrap(), None);
    }
}
