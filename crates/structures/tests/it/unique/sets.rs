//! Unique visitors in sets of integers, on a stand-in for a server's own sets: a test decides what becomes of each batch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::native::{Native, NativeReply};
use larder_core::{Ctx, Effect, Error, ErrorKind, Key, Reply, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{IdKind, Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions};

use crate::support::hooked::{Hooked, fail};
use crate::support::natives::{Held, Natives};
use crate::support::sieve::Sieve;
use crate::support::steady::{metered, steady};

const MARK: &str = "-2147483648";

/// A server that keeps sets of so many integers packed.
fn sets(packed_max: u64) -> Arc<Natives> {
    let items: StoreRef = Arc::new(MemoryStore::new());
    Natives::packing(&items, Some(packed_max))
}

/// How many members each set has, its mark among them.
fn sizes(sets: &Natives) -> BTreeMap<Key, usize> {
    let size = |held| if let Held::Names(names) = held { names.len() } else { panic!("it is no set: {held:?}") };
    sets.all().into_iter().map(|(key, held)| (key, size(held))).collect()
}

/// Another program's set under a key.
fn plant(sets: &Natives, key: &Key) {
    sets.hold(key, Held::set(["theirs"]));
}

/// Loses the set that has most members, and tells how many visitors were in it.
fn lose_largest(sets: &Natives) -> (Key, usize) {
    let (largest, size) = sizes(sets).into_iter().max_by_key(|(_, size)| *size).unwrap();
    sets.lose(&largest);
    (largest, size - 1)
}

/// Periods of a year: a test on the last of its milliseconds would take longer.
fn options() -> UniqueVisitorsOptions {
    steady();
    UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).ids(IdKind::Integer).expected(100)
}

async fn open(store: &StoreRef) -> UniqueVisitors {
    options().open_or_create(store, "site").await.unwrap()
}

async fn count(site: &UniqueVisitors) -> u64 {
    site.count().await.unwrap().visitors
}

/// Ids no two of which are in one shard: found by where they go in a structure of the same shape.
async fn ids_of_shards_of_their_own(sets: &Arc<Natives>, wanted: usize) -> Vec<u64> {
    let other = options().open_or_create(&sets.shared(), "other").await.unwrap();
    other.add([u64::MAX]).await.unwrap();
    let (mut taken, mut ids) = (BTreeSet::new(), Vec::new());
    for id in 1_000u64.. {
        let before = sizes(sets);
        other.add([id]).await.unwrap();
        let grown = sizes(sets).into_iter().find(|(key, size)| before.get(key) != Some(size));
        if taken.insert(grown.expect("it is new").0) {
            ids.push(id);
        }
        if ids.len() == wanted {
            break;
        }
    }
    ids
}

#[tokio::test]
async fn each_id_is_new_once_in_a_call_and_among_calls() {
    for precision in [Precision::Compact, Precision::Exact] {
        let store = sets(8).shared();
        let site = options().precision(precision).open_or_create(&store, "site").await.unwrap();
        let told = site.add([1u64, 2, 1, 3, 1]).await.unwrap();
        assert_eq!(told, [Novelty::New, Novelty::New, Novelty::Known, Novelty::New, Novelty::Known], "{precision:?}");
        assert_eq!(site.add([3u64, 4]).await.unwrap(), [Novelty::Known, Novelty::New]);
        let year = site.current().unwrap();
        let would_be = site.are_new_in(year, [4u64, 5, 1]).await.unwrap();
        assert_eq!(would_be, [Novelty::Known, Novelty::New, Novelty::Known]);
        let stat = site.stat(year).await.unwrap().unwrap();
        assert_eq!((stat.count.visitors, stat.unpacked_shards), (4, 0), "{precision:?}");
        assert!(stat.shards > 10, "{stat:?}");
        let again = UniqueVisitors::open(&store, "site").await.unwrap();
        assert_eq!((again.precision(), count(&again).await), (precision, 4));
    }
}

#[tokio::test]
async fn round_trips_are_as_documented() {
    let counting = metered(sets(8).shared());
    let shared: StoreRef = Arc::new(counting.clone());
    let site = open(&shared).await;
    site.add(0..50u64).await.unwrap();
    let year = site.current().unwrap();
    let before = counting.counts();
    assert_eq!(count(&site).await, 50);
    let after_count = counting.counts();
    assert_eq!(after_count.since(&before).round_trips, 1, "a count of many shards");
    assert_eq!(site.stat(year).await.unwrap().unwrap().count.stored, 50);
    let after_stat = counting.counts();
    assert_eq!(after_stat.since(&after_count).round_trips, 2, "a count, and how the sets are kept");
    site.are_new_in(year, 0..50u64).await.unwrap();
    let after_look = counting.counts();
    assert_eq!(after_look.since(&after_stat).round_trips, 1, "who would be new");
    site.add(40..90u64).await.unwrap();
    assert_eq!(counting.counts().since(&after_look).round_trips, 1, "an add to many shards");
}

#[tokio::test]
async fn figures_of_many_shards_fit_the_batches_of_a_store_that_takes_few_ops() {
    let sets = sets(8);
    // More ops in a batch than these, and the store panics.
    let hooked = Hooked::with_batches_of(&sets.shared(), 9);
    let site = open(&hooked.shared()).await;
    let told = site.add(0..50u64).await.unwrap();
    assert_eq!(told, [Novelty::New; 50]);
    let stat = site.stat(site.current().unwrap()).await.unwrap().unwrap();
    assert_eq!((stat.count.visitors, stat.largest_shard as usize), (50, *sizes(&sets).values().max().unwrap() - 1));
}

/// 16,383 ids and shards go into a batch, less where the store takes fewer ops; batches go out four at a time.
#[tokio::test]
async fn ids_of_many_shards_are_spread_over_batches_of_which_four_are_under_way() {
    let sets = sets(8);
    let ids = ids_of_shards_of_their_own(&sets, 14).await;
    // One op is left for a look at the manifest, so that two ids with their shards fit, and not three.
    let hooked = Hooked::with_batches_of(&sets.shared(), 6);
    let counting = metered(hooked.shared());
    let shared: StoreRef = Arc::new(counting.clone());
    let site = open(&shared).await;
    site.add([u64::MAX]).await.unwrap();
    _ = sets.most_under_way();
    for (ids, batches, at_once) in [(&ids[..2], 1, 1), (&ids[..6], 3, 3), (&ids[..], 7, 4)] {
        let before = counting.counts();
        site.add(ids.iter().copied()).await.unwrap();
        assert_eq!(counting.counts().since(&before).round_trips, batches, "{} ids", ids.len());
        assert_eq!(sets.most_under_way(), at_once, "{} ids", ids.len());
    }
    assert_eq!(count(&site).await, 1 + ids.len() as u64);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_sent_is_sent_again_a_few_times() {
    let hooked = Hooked::new(&sets(8).shared());
    let counting = metered(hooked.shared());
    let shared: StoreRef = Arc::new(counting.clone());
    let site = open(&shared).await;
    site.add([1u64]).await.unwrap();
    hooked.refuse(1);
    assert_eq!(site.add([1u64, 2]).await.unwrap(), [Novelty::Known, Novelty::New]);
    (1..=70).for_each(|nth| hooked.refuse(nth));
    let before = counting.counts();
    let error = site.add([2u64, 3]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(counting.counts().since(&before).round_trips, 8);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_leaves_it_open_who_was_new_and_each_counts_once() {
    let hooked = Hooked::new(&sets(8).shared());
    let site = open(&hooked.shared()).await;
    site.add([1u64]).await.unwrap();
    hooked.lose_replies(1);
    assert_eq!(site.add([1u64, 2]).await.unwrap(), [Novelty::Unknown; 2]);
    // More often than what was never sent is tried: nobody is told that nothing happened.
    (1..=12).for_each(|nth| hooked.lose_replies(nth));
    assert_eq!(site.add([3u64]).await.unwrap(), [Novelty::Unknown]);
    assert_eq!(site.add([3u64, 4]).await.unwrap(), [Novelty::Known, Novelty::New]);
    assert_eq!(count(&site).await, 4);
}

#[tokio::test(start_paused = true)]
async fn an_add_that_was_not_answered_and_is_refused_then_may_count() {
    let hooked = Hooked::new(&sets(8).shared());
    let site = open(&hooked.shared()).await;
    site.add([1u64]).await.unwrap();
    hooked.lose_replies(1);
    (2..=200).for_each(|nth| hooked.refuse(nth));
    let error = site.add([2u64]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
}

/// A store that answers when the time is over, and that nothing came of it.
#[tokio::test]
async fn an_add_whose_time_is_over_is_not_sent_again() {
    let sets = sets(8);
    open(&sets.shared()).await.add([1u64]).await.unwrap();
    let asked = Arc::new(Mutex::new(0));
    let asks = asked.clone();
    let slow = Sieve::answering(&sets.shared(), move |ctx, op| {
        let Verb::Native(native) = &op.verb else { return None };
        let Native::Guarded(_) = **native else { return None };
        *asks.lock().unwrap() += 1;
        let left = ctx.deadline.expect("a deadline").saturating_duration_since(std::time::Instant::now());
        std::thread::sleep(left);
        Some(Err(Error::new(ErrorKind::Timeout, "it was away").effect(Effect::Unknown)))
    });
    let site = options().timeout(Duration::from_millis(500)).open(&slow, "site").await.unwrap();
    let error = site.add([2u64]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown), "{error}");
    assert_eq!(*asked.lock().unwrap(), 1);
}

#[tokio::test]
async fn figures_tell_how_many_sets_are_too_large_to_be_kept_packed() {
    let sets = sets(8);
    let site = options().expected(30).open_or_create(&sets.shared(), "site").await.unwrap();
    site.add(0..200u64).await.unwrap();
    let large = sizes(&sets).values().filter(|size| **size > 8).count();
    assert!(large > 1, "{large}");
    let stat = site.stat(site.current().unwrap()).await.unwrap().unwrap();
    assert_eq!(stat.unpacked_shards, large as u64);
}

/// Visitors whose adds go out two ids a batch, and four ids for two batches.
async fn of_two_batches() -> (Arc<Hooked>, UniqueVisitors, Vec<u64>) {
    let sets = sets(8);
    let ids = ids_of_shards_of_their_own(&sets, 4).await;
    let hooked = Hooked::with_batches_of(&sets.shared(), 6);
    let site = open(&hooked.shared()).await;
    site.add([u64::MAX]).await.unwrap();
    (hooked, site, ids)
}

#[tokio::test(start_paused = true)]
async fn of_several_batches_one_that_was_not_sent_leaves_nobody_in_doubt() {
    let (hooked, site, ids) = of_two_batches().await;
    for novelty in [Novelty::New, Novelty::Known] {
        hooked.refuse(1);
        assert_eq!(site.add(ids.iter().copied()).await.unwrap(), [novelty; 4]);
    }
}

/// A store that panics may have carried out what it was sent.
#[tokio::test(start_paused = true)]
async fn of_several_batches_one_that_panicked_is_in_doubt_and_sent_again() {
    let (hooked, site, ids) = of_two_batches().await;
    hooked.at(1, |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        if replies.len() == 2 { panic!("on purpose") } else { replies }
    });
    let told = site.add(ids.iter().copied()).await.unwrap();
    let of = |novelty| told.iter().filter(|told| **told == novelty).count();
    assert_eq!((of(Novelty::Unknown), of(Novelty::New)), (2, 2), "{told:?}");
    assert_eq!(count(&site).await, 1 + 4);
}

#[tokio::test]
async fn ids_of_a_shard_that_is_gone_or_another_programs_are_counted_in_the_error() {
    for is_anothers in [false, true] {
        let sets = sets(8);
        let site = open(&sets.shared()).await;
        site.add(0..60u64).await.unwrap();
        let (key, lost) = lose_largest(&sets);
        assert!(lost > 1, "{lost}");
        if is_anothers {
            plant(&sets, &key);
        }
        let error = site.add(0..60u64).await.unwrap_err();
        let told = (error.kind(), error.known_effect());
        assert_eq!(told, (ErrorKind::Lost, Effect::NotApplied), "nobody was new: {error}");
        assert!(error.to_string().contains(&format!("{lost} of 60 ids were not added")), "{error}");
        // Of those that come for the first time some count, and which is not told.
        let error = site.add(0..100u64).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::Unknown), "{error}");
        assert_eq!(site.count().await.unwrap_err().kind(), ErrorKind::Lost);
        let year = site.current().unwrap();
        assert_eq!(site.are_new_in(year, 0..60u64).await.unwrap_err().kind(), ErrorKind::Lost);
        if is_anothers {
            assert_eq!(sizes(&sets)[&key], 1, "and theirs is left alone");
            continue;
        }
        site.forget(year).await.unwrap();
        assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
    }
}

#[tokio::test]
async fn a_shard_that_goes_while_figures_are_taken_is_lost() {
    let sets = sets(8);
    let hooked = Hooked::new(&sets.shared());
    let site = open(&hooked.shared()).await;
    site.add(0..20u64).await.unwrap();
    // How many each has, and then how they are kept.
    hooked.at(2, move |store, batch| async move {
        lose_largest(&sets);
        store.run(Ctx::default(), batch).await
    });
    let error = site.stat(site.current().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// The mark is looked for, and members are counted, by two commands.
#[tokio::test]
async fn a_shard_that_goes_between_its_mark_and_its_number_is_lost_and_not_empty() {
    let store = Sieve::answering(&sets(8).shared(), |_, op| {
        let is_number = matches!(&op.verb, Verb::Native(native) if **native == Native::SetLen);
        is_number.then(|| Ok(Reply::from(NativeReply::Count(0))))
    });
    let site = open(&store).await;
    site.add(0..20u64).await.unwrap();
    let error = site.count().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn sets_are_made_for_as_many_members_as_the_server_packs() {
    // Of a server that does not tell, what servers pack unless told otherwise.
    for (packed_max, a_set) in [(512, 424), (0, 424), (1_024, 861)] {
        let site = options().expected(20 * a_set).open_or_create(&sets(packed_max).shared(), "site").await.unwrap();
        site.add([1u64]).await.unwrap();
        let shards = site.stat(site.current().unwrap()).await.unwrap().unwrap().shards;
        assert!((20..=21).contains(&shards), "{shards} sets where {packed_max} are packed");
    }
}

#[tokio::test]
async fn a_set_unites_with_hashes_that_are_kept_shorter() {
    let store = sets(8).shared();
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let near = options().precision(Precision::NearExact { bits: 24 });
    let near = near.open_or_create(&memory, "near").await.unwrap();
    near.add(50..150u64).await.unwrap();
    let year = near.current().unwrap();
    for precision in [Precision::Compact, Precision::Exact] {
        let site = options().precision(precision).open_or_create(&store, precision.as_str()).await.unwrap();
        site.add(0..100u64).await.unwrap();
        assert_eq!(UniqueVisitors::union([(&site, year)]).await.unwrap(), site.count().await.unwrap(), "{precision:?}");
        let both = UniqueVisitors::union([(&site, year), (&near, year)]).await.unwrap();
        assert_eq!(both.visitors, 150, "{precision:?}");
    }
}

/// Whoever makes a period draws the names of its shards. Where one is taken by chance, others are drawn.
#[tokio::test(start_paused = true)]
async fn a_period_whose_shards_name_is_taken_is_made_under_another() {
    let sets = sets(8);
    let hooked = Hooked::new(&sets.shared());
    let site = open(&hooked.shared()).await;
    let theirs = Arc::new(Mutex::new(None));
    // The steps of making one: look, forecast, plan, shards, head, entry, look again.
    let (planting, planted) = (sets.clone(), theirs.clone());
    hooked.at(4, move |store, batch| async move {
        plant(&planting, &batch[0].key);
        *planted.lock().unwrap() = Some(batch[0].key.clone());
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(site.add([7u64]).await.unwrap(), [Novelty::New]);
    assert_eq!(count(&site).await, 1);
    let theirs = theirs.lock().unwrap().take().unwrap();
    assert_eq!(sizes(&sets)[&theirs], 1, "and theirs is left alone");
    assert!(sets.all().values().filter(|set| set.has(MARK)).count() > 10);
}

/// What comes of a reply that no server gives.
#[tokio::test]
async fn a_reply_of_another_length_is_an_error_and_no_answer() {
    let hooked = Hooked::new(&sets(8).shared());
    let site = open(&hooked.shared()).await;
    site.add([1u64]).await.unwrap();
    let short = || NativeReply::Flags(vec![true]);
    hooked.at(1, move |_, batch| async move { batch.iter().map(|_| Ok(Reply::from(short()))).collect() });
    let error = site.are_new_in(site.current().unwrap(), [1u64]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    hooked.at(1, |_, batch| async move {
        let long = NativeReply::Flags(vec![true; 2]);
        batch.iter().map(|_| Ok(Reply::from(long.clone()))).collect()
    });
    let error: Error = site.add([1u64]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    hooked.at(1, |_, batch| async move { fail(&batch, Effect::NotApplied) });
    assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::Known]);
}
