//! The table against a plain map: in any order of calls, and by eight clients on connections that break.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::{Ctx, ErrorKind, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::Table;
use larder_testkit::faulty::{Fault, Faulty};
use larder_testkit::yielding::Yielding;
use proptest::prelude::*;

use crate::support::hooked::Hooked;
use crate::table::support::{Evicting, churn, entries, eventually, evicting, lose};

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>, Vec<u8>),
    Remove(Vec<u8>),
    Get(Vec<u8>),
    Many(Vec<Vec<u8>>),
    Entries,
    Pause,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(0u8..3, 0..3)
}

fn step() -> impl Strategy<Value = Step> {
    let value = prop_oneof![proptest::collection::vec(any::<u8>(), 0..4), proptest::collection::vec(0u8..2, 900..1000)];
    prop_oneof![
        4 => (key(), value).prop_map(|(key, value)| Step::Put(key, value)),
        3 => key().prop_map(Step::Remove),
        2 => key().prop_map(Step::Get),
        1 => proptest::collection::vec(key(), 0..5).prop_map(Step::Many),
        1 => Just(Step::Entries),
        1 => Just(Step::Pause),
    ]
}

async fn play(steps: Vec<(bool, Step)>, shards: u16, has_lives: bool, is_evicting: bool) {
    // Small enough that some entries have no room for a second value.
    let inner: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(15_000).build().unwrap());
    let store = if is_evicting { Arc::new(Evicting(inner)) } else { inner };
    let open = || Table::options().shards(shards).ttl(has_lives).dirtiness(40).open_or_create(&store, "t");
    let handles = [open().await.unwrap(), open().await.unwrap()];
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for (second, step) in steps {
        let table = &handles[usize::from(second)];
        match step {
            Step::Put(key, value) if has_lives && second => {
                table.put_for(&key, &value, Duration::from_secs(3600)).await.unwrap();
                model.insert(key, value);
            }
            Step::Put(key, value) => {
                table.put(&key, &value).await.unwrap();
                model.insert(key, value);
            }
            Step::Remove(key) => assert_eq!(table.remove(&key).await.unwrap(), model.remove(&key).is_some()),
            Step::Get(key) => {
                assert_eq!(table.get(&key).await.unwrap().as_deref(), model.get(&key).map(|value| &value[..]))
            }
            Step::Many(keys) => {
                let found = table.get_many(&keys).await.unwrap();
                for (key, value) in keys.iter().zip(found) {
                    assert_eq!(value.as_deref(), model.get(key).map(|value| &value[..]));
                }
            }
            Step::Entries => assert_eq!(entries(table).await, model),
            Step::Pause => {
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
            }
        }
    }
    for table in &handles {
        assert_eq!(entries(table).await, model);
        let keys: BTreeSet<Vec<u8>> = table.keys().await.unwrap().iter().map(|key| key.to_vec()).collect();
        assert_eq!(keys, model.keys().cloned().collect());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_model_agrees(
        steps in proptest::collection::vec((any::<bool>(), step()), 0..80),
        shards in 1u16..4,
        has_lives in any::<bool>(),
        is_evicting in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(play(steps, shards, has_lives, is_evicting));
    }
}

/// What the script leaves, if each of its calls says that it took effect.
async fn script(one: &Table, two: &Table) -> bool {
    let mut all_ok = true;
    for (key, value) in [("a", "1"), ("b", "1"), ("c", "1")] {
        all_ok &= one.put(key, value).await.is_ok();
    }
    all_ok &= two.remove("a").await.is_ok();
    all_ok &= two.put("b", "2").await.is_ok();
    _ = one.get("a").await;
    _ = one.entries().await;
    all_ok &= one.put("a", "3").await.is_ok();
    all_ok &= two.remove("c").await.is_ok();
    tokio::time::sleep(Duration::from_millis(1)).await;
    all_ok
}

#[tokio::test]
async fn a_break_at_any_op_is_told_or_changes_nothing() {
    for has_lives in [false, true] {
        for fault in FAULTS {
            let mut told = 0;
            for nth in 1.. {
                let faulty = Faulty::new(evicting());
                let store = faulty.shared();
                let open = || Table::options().shards(2).ttl(has_lives).open_or_create(&store, "t");
                let (one, two) = (open().await.unwrap(), open().await.unwrap());
                faulty.fail_nth(nth, fault);
                let all_ok = script(&one, &two).await;
                faulty.heal();
                faulty.deliver_late().await;
                let expected: BTreeMap<Vec<u8>, Vec<u8>> =
                    BTreeMap::from([(b"a".to_vec(), b"3".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
                for table in [&one, &two, &open().await.unwrap()] {
                    // Whatever happened, the list and the entries agree, and nothing was lost.
                    for key in ["a", "b", "c"] {
                        _ = table.get(key).await.unwrap_or_else(|error| panic!("{fault:?} at op {nth}: {error}"));
                    }
                    let found = entries(table).await;
                    if all_ok {
                        assert_eq!(found, expected, "{fault:?} at op {nth}");
                    }
                }
                told += u32::from(!all_ok);
                if faulty.injected() == 0 {
                    assert!(nth > 20 && all_ok, "only {nth} ops");
                    break;
                }
            }
            assert!(fault != Fault::NotSent || told == 0, "what was never sent is tried again");
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_an_error_that_changed_nothing() {
    let faulty = Faulty::new(evicting());
    let store = faulty.shared();
    let table = Table::options().timeout(Duration::from_millis(300)).open_or_create(&store, "t").await.unwrap();
    faulty.fail_always(Fault::NotSent);
    for error in [
        table.put("k", "v").await.unwrap_err(),
        table.get("k").await.unwrap_err(),
        table.remove("k").await.unwrap_err(),
        table.entries().await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false), "{error}");
    }
    faulty.heal();
    assert!(table.entries().await.unwrap().is_empty());
}

/// 8 tasks over 2 handles, each with keys of its own and some that all share; a third handle reads all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_clients_agree_with_a_model_at_random_breaks() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for (one_in, has_lives) in [(u64::MAX, false), (20, false), (30, true)] {
        // Others come in between at every op.
        let faulty = Faulty::new(Arc::new(Yielding(evicting())));
        let store = faulty.shared();
        let options = || Table::options().shards(2).ttl(has_lives).dirtiness(64).timeout(Duration::from_secs(20));
        let handles = [
            options().open_or_create(&store, "t").await.unwrap(),
            options().open_or_create(&store, "t").await.unwrap(),
        ];
        let fresh = options().open(&store, "t").await.unwrap();
        faulty.fail_randomly(seed, one_in, &FAULTS);
        let agreed = churn(&handles, &fresh, seed, 60, || async {
            faulty.heal();
            faulty.deliver_late().await;
        })
        .await;
        assert!(one_in != u64::MAX || agreed.unknown == 0, "{agreed:?}");
        assert!(agreed.known >= 80 && agreed.known > agreed.unknown, "{agreed:?}");
    }
}

/// The list has no room for a key that is put, and while its entry is taken back another makes room and puts an equal value: before whichever batch
/// that happens, what was acknowledged stays.
#[tokio::test]
async fn a_put_that_the_list_has_no_room_for_takes_nobody_elses_equal_value_along() {
    let key_of = |number: u32| [&number.to_le_bytes()[..], &[7; 500]].concat();
    let (mut refused, mut batches) = (0, 0);
    for nth in 1.. {
        let inner: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(20_000).build().unwrap());
        let store: StoreRef = Arc::new(Evicting(inner));
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let mut count = 0;
        while table.put(key_of(count), "v").await.is_ok() {
            count += 1;
        }
        table.settle().await;
        let hooked = Hooked::new(&store);
        let putting = Table::open(&hooked.shared(), "t").await.unwrap();
        let is_put = Arc::new(AtomicBool::new(false));
        hooked.at(nth, {
            let (other, is_put, key) = (table.clone(), is_put.clone(), key_of(count));
            move |store, batch| async move {
                for number in 0..4 {
                    assert!(other.remove(key_of(number)).await.unwrap());
                }
                eventually("there is room", || async { other.put(&key, "v").await.is_ok() }).await;
                is_put.store(true, Ordering::SeqCst);
                store.run(Ctx::default(), batch).await
            }
        });
        let outcome = putting.put(key_of(count), "v").await;
        if !is_put.load(Ordering::SeqCst) {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Full);
            break;
        }
        batches = nth;
        if let Err(error) = outcome {
            refused += 1;
            assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Full, true), "at batch {nth}: {error}");
        }
        assert_eq!(table.get(key_of(count)).await.unwrap().unwrap(), "v", "at batch {nth}");
        assert!(table.keys().await.unwrap().iter().any(|key| key[..] == key_of(count)), "at batch {nth}");
    }
    assert!(batches > 2 && refused > 0, "{refused} of {batches}");
}

/// A table with lives in which nothing fits any more, and the first key that did not.
async fn full_with_lives() -> (StoreRef, Table, Vec<u8>) {
    let inner: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(20_000).build().unwrap());
    let store: StoreRef = Arc::new(Evicting(inner));
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
    let mut count = 0;
    while table.put(long(count), "v").await.is_ok() {
        count += 1;
    }
    table.settle().await;
    (store, table, long(count))
}

fn long(number: u32) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[7; 500]].concat()
}

async fn make_room(table: &Table) {
    for number in 0..8 {
        assert!(table.remove(long(number)).await.unwrap());
    }
    eventually("there is room", || async { table.put(long(0), "v").await.is_ok() }).await;
    table.settle().await;
}

/// The list has no room for a key that is put, and before one of the batches by which its entry is taken back there is room, and another client puts the key, and
/// dies at any of its own: what was refused and is gone is not lost, as nobody was told that it was there.
#[tokio::test]
async fn with_lives_an_entry_that_is_taken_back_is_not_lost_whenever_another_that_puts_it_dies() {
    let mut taken_back = 0;
    for nth in 2..7 {
        for dies_at in 1..7 {
            let (store, table, key) = full_with_lives().await;
            let hooked = Hooked::new(&store);
            let putting = Table::open(&hooked.shared(), "t").await.unwrap();
            let dying_store = Hooked::new(&store);
            let dying = Table::open(&dying_store.shared(), "t").await.unwrap();
            hooked.at(nth, {
                let (table, key) = (table.clone(), key.clone());
                move |store, batch| async move {
                    make_room(&table).await;
                    for later in dies_at..dies_at + 40 {
                        dying_store.at(later, |_, _| std::future::pending());
                    }
                    let call = tokio::spawn(async move { dying.put(key, "other").await });
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    call.abort();
                    store.run(Ctx::default(), batch).await
                }
            });
            let what = format!("at batch {nth}, the other dies at its batch {dies_at}");
            let outcome = putting.put(&key, "v").await;
            putting.settle().await;
            match (outcome, table.get(&key).await) {
                (Ok(()), got) => assert!(got.unwrap().is_some(), "{what}"),
                (Err(error), got) if error.is_unknown() => {
                    assert!(got.is_ok(), "{what}: {error}, then {got:?}");
                }
                (Err(error), got) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{what}: {error}");
                    taken_back += usize::from(got.unwrap_or_else(|lost| panic!("{what}: {lost}")).is_none());
                }
            }
        }
    }
    assert!(taken_back > 0, "none was taken back");
}

/// An entry is lost, and another with a short life takes its key between a reader's look at the entry and the one at the list: that one is read. It was said that there was none (the job of
/// tables with lives, simulation seed 999063662).
#[tokio::test]
async fn with_lives_what_is_put_while_a_lost_entry_is_looked_for_is_read() {
    for (life, loses_it, expected) in [(120, false, Some("w")), (120, true, None), (3_600, false, Some("w"))] {
        let store: StoreRef = Arc::new(MemoryStore::builder().bytes_max(1 << 20).evict(true).build().unwrap());
        let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
        table.put("k", "v").await.unwrap();
        table.settle().await;
        lose(&store, "t", b"k").await;
        let hooked = Hooked::new(&store);
        let reading = Table::open(&hooked.shared(), "t").await.unwrap();
        hooked.at(2, move |store, batch| async move {
            table.put_for("k", "w", Duration::from_secs(life)).await.unwrap();
            table.settle().await;
            if loses_it {
                lose(&store, "t", b"k").await;
            }
            store.run(Ctx::default(), batch).await
        });
        let got = reading.get("k").await.unwrap();
        assert_eq!(got.as_deref(), expected.map(str::as_bytes), "a life of {life} s, lost: {loses_it}");
    }
}

/// A put takes an entry's place, and its maker dies before it is listed: is its life over before anybody has read it, the list knows the one before it alone, and that one is gone. It is told as
/// lost, though it was overwritten by a put that nobody was told of (the job of tables with lives, simulation seed 5016).
#[tokio::test]
async fn with_lives_what_a_dead_put_left_unlisted_is_lost_once_it_is_over() {
    let mut lost = 0;
    for dies_at in 1..=3 {
        let store: StoreRef = Arc::new(MemoryStore::builder().bytes_max(1 << 20).evict(true).build().unwrap());
        let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
        table.put("k", "v").await.unwrap();
        table.settle().await;
        let dying_store = Hooked::new(&store);
        let dying = Table::open(&dying_store.shared(), "t").await.unwrap();
        for later in dies_at..dies_at + 40 {
            dying_store.at(later, |_, _| std::future::pending());
        }
        let call = tokio::spawn(async move { dying.put_for("k", "w", Duration::from_millis(50)).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        call.abort();
        tokio::time::sleep(Duration::from_millis(100)).await;
        match table.get("k").await {
            Ok(got) => assert_eq!(got.unwrap(), "v", "the other died at its batch {dies_at}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                lost += 1;
            }
        }
        table.put("k", "anew").await.unwrap();
        assert_eq!(table.get("k").await.unwrap().unwrap(), "anew", "the key is sound again");
    }
    assert_eq!(lost, 1, "where it died between the entry and the list");
}

/// Two tasks put a key through one handle, and the one that began first comes to the entry after the other, whose listing is refused: whenever in the other's
/// taking it back that is, it is not told that its put is done where nothing is left.
#[tokio::test]
async fn with_lives_a_put_that_a_later_one_overtook_outlives_that_one_taken_back() {
    let mut refused = 0;
    for nth in 2..9 {
        let (store, table, key) = full_with_lives().await;
        let hooked = Hooked::new(&store);
        let handle = Table::open(&hooked.shared(), "t").await.unwrap();
        let (is_turn, turn) = tokio::sync::oneshot::channel();
        let (is_done, done) = tokio::sync::oneshot::channel::<()>();
        let (is_through, through) = tokio::sync::oneshot::channel();
        // Of the earlier one, which waits for its turn while the later one is under way.
        hooked.at(1, {
            let (later, key) = (handle.clone(), key.clone());
            move |store, batch| async move {
                tokio::spawn(async move { is_through.send(later.put(key, "later").await) });
                // The later one may be through with fewer batches.
                _ = tokio::time::timeout(Duration::from_millis(300), turn).await;
                store.run(Ctx::default(), batch).await
            }
        });
        hooked.at(nth, {
            let table = table.clone();
            move |store, batch| async move {
                make_room(&table).await;
                _ = is_turn.send(());
                // The earlier one may have to wait for this very batch.
                _ = tokio::time::timeout(Duration::from_millis(300), done).await;
                store.run(Ctx::default(), batch).await
            }
        });
        let earlier = tokio::time::timeout(Duration::from_secs(20), handle.put(&key, "earlier")).await.unwrap();
        _ = is_done.send(());
        let later = tokio::time::timeout(Duration::from_secs(20), through).await.unwrap().unwrap();
        handle.settle().await;
        let what = format!("at batch {nth}: earlier {earlier:?}, later {later:?}");
        refused += usize::from(later.is_err());
        let got = table.get(&key).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        if earlier.is_ok() || later.is_ok() {
            assert!(got.is_some(), "{what}");
        }
        if later.is_err_and(|error| !error.is_unknown()) && earlier.is_ok() {
            assert_eq!(got.unwrap(), "earlier", "{what}");
        }
    }
    assert!(refused > 0, "none was refused");
}

/// Found by the proof's histories (`larder-prove histories --seed 155636627 --seconds 0`).
#[tokio::test]
async fn a_put_whose_entry_is_lost_before_it_is_listed_is_unknown_and_where_nothing_can_be_lost_was_removed() {
    for may_lose in [true, false] {
        let memory = MemoryStore::builder().bytes_max(1 << 24).evict(may_lose).build().unwrap();
        let store: StoreRef = Arc::new(memory);
        let hooked = Hooked::new(&store);
        let table = Table::open_or_create(&hooked.shared(), "t").await.unwrap();
        // It is made, nobody knows; it is found; then it goes, before it is listed.
        hooked.lose_replies(1);
        hooked.at(3, |store, batch| async move {
            store.delete(batch[0].key.clone()).await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        let put = table.put("k", "v").await;
        assert_eq!(put.as_ref().is_err_and(larder_core::Error::is_unknown), may_lose, "{put:?}");
        assert_eq!(table.get("k").await.unwrap(), None);
        table.put("k", "w").await.unwrap();
        assert_eq!(table.get("k").await.unwrap().unwrap(), "w");
    }
}
