//! When a table's calls try again, what they tell of what is lost, and what its handle does for an entry beside its callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Effect, Error, ErrorKind, ManualClock, Op, Profile, PutMode, StoreExt, StoreRef, Verb, Want};
use larder_store_memory::MemoryStore;
use larder_structures::Table;

use crate::support::hooked::{Hooked, dies_at};
use crate::support::sieve::Sieve;
use crate::table::support::{Evicting, cost, counting, entry_key, evicting, is_flagged, lose, memory};

/// An op on an entry: on none of the list's shards, and not on the manifest.
fn is_of_an_entry(op: &Op) -> bool {
    !op.key.as_bytes().ends_with(b".0") && !op.key.as_bytes().ends_with(b".m")
}

fn is_note(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Append, .. }) && op.key.as_bytes().ends_with(b".0")
}

#[tokio::test(start_paused = true)]
async fn a_put_that_was_not_sent_waits_a_moment_before_it_is_tried_again() {
    let hooked = Hooked::new(&memory());
    let table = Table::open_or_create(&hooked.shared(), "t").await.unwrap();
    hooked.refuse(1);
    let begin = tokio::time::Instant::now();
    table.put("k", "v").await.unwrap();
    assert!(!begin.elapsed().is_zero(), "it was tried again at once");
}

#[tokio::test]
async fn what_is_left_of_a_life_is_asked_where_there_are_lives_and_the_store_tells() {
    for (has_lives, tells) in [(false, true), (true, false), (false, false), (true, true)] {
        let inner = evicting();
        let asked = Arc::new(AtomicU64::new(0));
        let counted = asked.clone();
        let profile = Profile { remaining_ttl: tells, ..(*inner.profile()).clone() };
        let store = Sieve::of(&inner, profile, move |_, op| {
            let is_asked = matches!(op.verb, Verb::Get { want, .. } if want.contains(Want::TTL));
            if is_of_an_entry(op) && is_asked {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        let table = Table::options().ttl(has_lives).open_or_create(&store, "t").await.unwrap();
        table.put("k", "v").await.unwrap();
        table.settle().await;
        assert_eq!(is_flagged(&inner, "t", b"k").await, Some(true));
        assert_eq!(asked.load(Ordering::Relaxed) > 0, has_lives && tells, "lives: {has_lives}, told: {tells}");
    }
}

/// It puts, and lists; beside the caller it reads the entry, and the fourth batch says in it that it is listed.
#[tokio::test]
async fn a_flag_that_the_store_did_not_take_is_written_at_the_next_try() {
    let store = evicting();
    let hooked = Hooked::new(&store);
    let table = Table::open_or_create(&hooked.shared(), "t").await.unwrap();
    hooked.refuse(4);
    table.put("k", "v").await.unwrap();
    table.settle().await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
}

/// A removal reads the entry, notes that it goes, and deletes it; beside the caller it looks again, and takes it off the list.
#[tokio::test]
async fn an_entry_that_was_removed_is_taken_off_the_list_where_another_has_its_place_by_then() {
    let inner = evicting();
    let hooked = Hooked::new(&inner);
    let table = Table::open_or_create(&hooked.shared(), "t").await.unwrap();
    table.put("k", "v").await.unwrap();
    table.settle().await;
    hooked.at(4, |store, batch| async move {
        let other = Table::open(&store, "t").await.unwrap();
        other.put("k", "w").await.unwrap();
        other.settle().await;
        store.run(larder_core::Ctx::default(), batch).await
    });
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    let (store, counting) = counting(inner);
    let reader = Table::open(&store, "t").await.unwrap();
    assert_eq!(cost(&counting, reader.keys()).await, 1, "there is nothing to look for");
    assert_eq!(reader.get("k").await.unwrap().unwrap(), "w");
}

/// Clocks may disagree by five minutes.
#[tokio::test]
async fn an_entry_whose_life_may_not_be_over_for_all_is_left_on_the_list() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let inner: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let notes = Arc::new(AtomicU64::new(0));
    let counted = notes.clone();
    let inner: StoreRef = Arc::new(Evicting(inner));
    let store = Sieve::answering(&inner, move |_, op| {
        counted.fetch_add(u64::from(is_note(op)), Ordering::Relaxed);
        None
    });
    let table = Table::options().ttl(true).clock(clock.clone()).open_or_create(&store, "t").await.unwrap();
    table.put_for("k", "v", Duration::from_secs(60)).await.unwrap();
    table.settle().await;
    notes.store(0, Ordering::Relaxed);
    // Its end is rounded up to the next second.
    for (passed_s, noted) in [(62, 0), (61 + 300 - 62, 0), (1, 1)] {
        clock.advance(Duration::from_secs(passed_s));
        assert_eq!(table.get("k").await.unwrap(), None);
        table.settle().await;
        assert_eq!(notes.load(Ordering::Relaxed), noted, "after {passed_s} s more");
    }
}

/// By the clock of who looks it ends this second: what is left of it cannot be written.
#[tokio::test]
async fn an_entry_that_ends_this_second_is_not_written_anew_where_the_store_does_not_tell_what_is_left() {
    let at = |second| Arc::new(ManualClock::at(Duration::from_secs(second)));
    let inner = evicting();
    let store = Sieve::of(&inner, Profile { remaining_ttl: false, ..(*inner.profile()).clone() }, |_, _| None);
    let options = Table::options().ttl(true);
    options.clone().clock(at(1_000_000)).open_or_create(&store, "t").await.unwrap();
    let dead = Hooked::new(&store);
    let dying = options.clone().clock(at(1_000_000)).open(&dead.shared(), "t").await.unwrap();
    dies_at(&dead, 2, dying.put_for("k", "v", Duration::from_secs(60))).await;
    let reader = options.clock(at(1_000_061)).open(&store, "t").await.unwrap();
    assert_eq!(reader.get("k").await.unwrap().unwrap(), "v");
    reader.settle().await;
    assert!(inner.get(entry_key(&inner, "t", b"k").await).await.unwrap().is_some());
    assert_eq!(is_flagged(&inner, "t", b"k").await, Some(false));
}

#[tokio::test]
async fn of_many_entries_that_are_lost_eight_are_named_and_the_others_counted() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let keys: Vec<String> = (0..10).map(|key| format!("key{key}")).collect();
    for key in &keys {
        table.put(key, "v").await.unwrap();
    }
    table.settle().await;
    for key in &keys {
        lose(&store, "t", key.as_bytes()).await;
    }
    for (count, more) in [(1, None), (8, None), (9, Some(1)), (10, Some(2))] {
        let error = table.get_many(&keys[..count]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        let named = keys.iter().filter(|key| error.to_string().contains(&***key)).count();
        assert_eq!(named, count.min(8), "{error}");
        let says = more.map(|more| format!(", {more} more "));
        assert_eq!(error.to_string().contains(" more "), more.is_some(), "{error}");
        assert!(says.is_none_or(|says| error.to_string().contains(&says)), "{error}");
    }
}

/// That the value was joined to the entry is known: only the look behind it is made again.
#[tokio::test]
async fn a_put_whose_look_at_the_entry_failed_looks_again_and_puts_nothing_twice() {
    let (puts, fails) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, failing) = (puts.clone(), fails.clone());
    let store = Sieve::answering(&memory(), move |_, op| {
        if !is_of_an_entry(op) {
            return None;
        }
        counted.fetch_add(u64::from(matches!(op.verb, Verb::Put { .. })), Ordering::Relaxed);
        let is_look = matches!(op.verb, Verb::Get { .. });
        let fails =
            is_look && failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        fails.then(|| Err(Error::new(ErrorKind::Unavailable, "as the test wants").effect(Effect::NotApplied)))
    });
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("k", "first").await.unwrap();
    table.settle().await;
    puts.store(0, Ordering::Relaxed);
    fails.store(1, Ordering::Relaxed);
    table.put("k", "second").await.unwrap();
    assert_eq!(fails.load(Ordering::Relaxed), 0, "none failed");
    // The append, and beside it what would make the entry.
    assert_eq!(puts.load(Ordering::Relaxed), 2);
    assert_eq!(table.get("k").await.unwrap().unwrap(), "second");
}
