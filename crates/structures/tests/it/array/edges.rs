//! Arrays at the edges: values that fill an item to the last byte, stores of few ops, shards that cannot be written to beside those that can.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{Ctx, Effect, Error, ErrorKind, Key, Replies, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Array, ArrayOptions, Lock, Name, registry};

use crate::array::support::{NOTHING, sorted, whole};
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, dies_at, fail};
use crate::support::probe::{Probe, set_value, value_of};

/// Nothing is compacted unless it must be.
fn options(shards: u16) -> ArrayOptions {
    Array::options().shards(shards).dirtiness(1 << 30)
}

/// The key of a shard, or of the commits, by the documented scheme.
async fn key_of(store: &StoreRef, index: &str) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.a.a.{:016x}.{index}", manifest.generation)).unwrap()
}

async fn shards(store: &StoreRef, count: u16) -> Vec<Bytes> {
    let mut values = Vec::new();
    for shard in 0..count {
        values.push(value_of(store, &key_of(store, &shard.to_string()).await).await);
    }
    values
}

#[tokio::test]
async fn an_array_of_one_shard_has_no_commits_and_a_drop_leaves_nothing() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    Array::open_or_create(&store, "a").await.unwrap().push(["x"]).await.unwrap();
    assert_eq!(memory.stats().items, 2, "the manifest and the shard");
    registry::drop_structure(&store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

/// It has nothing beside its shard that would have to go first.
#[tokio::test]
async fn a_drop_of_an_array_of_one_shard_costs_three_round_trips_and_of_several_four() {
    for (shards, round_trips) in [(1, 3), (2, 4)] {
        let probe = Probe::new();
        options(shards).open_or_create(&probe.shared(), "a").await.unwrap();
        probe.round_trips();
        registry::drop_structure(&probe.shared(), Ctx::default(), &Name::new("a").unwrap()).await.unwrap();
        assert_eq!(probe.round_trips(), round_trips, "{shards} shards");
    }
}

#[tokio::test]
async fn the_options_that_were_given_before_the_clock_stand() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let array = Array::options().shards(3).clock(larder_core::SystemClock::shared());
    assert_eq!(array.open_or_create(&store, "a").await.unwrap().stat().await.unwrap().shards, 3);
}

#[tokio::test]
async fn a_batch_must_take_the_commits_beside_all_shards() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let error = options(4).open_or_create(&Hooked::with_batches_of(&store, 4).shared(), "a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("has 4 shards and is read by one op more"), "{error}");
    let array = options(4).open_or_create(&Hooked::with_batches_of(&store, 5).shared(), "a").await.unwrap();
    array.change(whole(0), NOTHING).await.unwrap();
    assert_eq!(sorted(&array).await, whole(0));
}

#[tokio::test]
async fn a_read_that_finds_dirt_has_it_compacted() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let writer = options(2).open_or_create(&store, "a").await.unwrap();
    for _ in 0..50 {
        writer.change(whole(0), whole(0)).await.unwrap();
    }
    let reader = Array::options().dirtiness(64).open(&store, "a").await.unwrap();
    assert_eq!(sorted(&reader).await, whole(0));
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    let stat = writer.stat().await.unwrap();
    assert_eq!((stat.stale_bytes, stat.elements), (0, 10));
}

/// What is appended beside what is there takes a frame more than what is written anew: the last bytes are had by that alone.
#[tokio::test]
async fn a_value_may_fill_an_item_to_the_last_byte() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(7_000).build().unwrap());
    let array = options(1).open_or_create(&store, "a").await.unwrap();
    array.push([vec![b'x'; 3_900]]).await.unwrap();
    let max = array.stat().await.unwrap().shard_bytes_max;
    // 40 bytes for header and writer, 2 for each element's length.
    let largest = max as usize - 3_900 - 44;
    for bytes in (largest - 3..=largest + 3).rev() {
        match array.push([vec![b'y'; bytes]]).await {
            Ok(()) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Full, "{error}"),
        }
    }
    let stat = array.stat().await.unwrap();
    assert_eq!((stat.elements, stat.bytes), (2, max));
}

#[tokio::test]
async fn a_holder_changes_as_often_as_it_likes_under_its_lock() {
    for shards in [1, 4] {
        let store: StoreRef = Arc::new(MemoryStore::new());
        let array = options(shards).open_or_create(&store, "a").await.unwrap();
        let guard = Lock::open(&store, "l").await.unwrap().try_acquire().await.unwrap().unwrap();
        for number in 0..3 {
            let before = array.elements().await.unwrap();
            array.change_under(&guard, whole(number), before).await.unwrap();
            assert_eq!(sorted(&array).await, whole(number), "{shards} shards");
        }
        guard.release().await.unwrap();
    }
}

/// Between a change under a lock and the look at what became of it, a later holder changes the array, and it is compacted: nothing tells any more whether the change counted.
#[tokio::test]
async fn a_change_under_a_lock_of_which_no_trace_is_left_is_unknown_to_who_lost_the_lock() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let other = options(1).open_or_create(&store, "a").await.unwrap();
    let lock = Lock::open(&store, "l").await.unwrap();
    let first = lock.try_acquire().await.unwrap().unwrap();
    let second = Lock::open(&store, "l").await.unwrap();
    second.force_release().await.unwrap();
    let second = second.try_acquire().await.unwrap().unwrap();
    let hooked = Hooked::new(&store);
    let array = options(1).open(&hooked.shared(), "a").await.unwrap();
    let later = other.clone();
    hooked.at(2, |store, batch| async move {
        later.change_under(&second, ["second"], NOTHING).await.unwrap();
        later.compact().await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let error = array.change_under(&first, ["first"], NOTHING).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Fenced, Effect::Unknown), "{error}");
    assert_eq!(other.elements().await.unwrap(), ["first", "second"]);
}

/// An array of two shards, the first of which is full of what was removed, under a change over both that it has not settled. With it an element of each shard, the
/// one of the full shard too large for it.
async fn full_and_unsettled(store: &StoreRef) -> (String, String) {
    let array = options(2).open_or_create(store, "a").await.unwrap();
    let [mut large, mut small] = [None, None];
    for letter in 'a'..='z' {
        let before = shards(store, 2).await;
        let element = letter.to_string().repeat(2_000);
        array.push([&element]).await.unwrap();
        let is_first = shards(store, 2).await[0] != before[0];
        array.remove([&element]).await.unwrap();
        if is_first {
            large = large.or(Some(element))
        } else {
            small = small.or(Some(letter.to_string().repeat(2_000)))
        }
        if large.is_some() && small.is_some() {
            break;
        }
    }
    array.compact().await.unwrap();
    array.change(whole(0), NOTHING).await.unwrap();
    let (large, small) = (large.unwrap(), small.unwrap());
    for _ in 0..2 {
        array.push([&large]).await.unwrap();
    }
    array.remove([&large]).await.unwrap();
    let values = shards(store, 2).await;
    assert!(values[0].len() > 6_000 && values[1].len() < 1_000, "{} and {}", values[0].len(), values[1].len());
    (large, small)
}

/// The commits cannot be read, and the full shard cannot be written anew without them. The other takes its part, though its first try failed.
#[tokio::test(start_paused = true)]
async fn a_shard_that_could_not_be_settled_keeps_no_other_from_its_part_of_a_push() {
    let store: StoreRef = Probe::small(7_500).shared();
    let (large, small) = full_and_unsettled(&store).await;
    let commits = key_of(&store, "commits").await;
    let answering = Answering::new(&store);
    let hooked = Hooked::new(&answering.shared());
    let array = options(2).open(&hooked.shared(), "a").await.unwrap();
    let down = || Error::new(ErrorKind::Unavailable, "the server is down").effect(Effect::NotApplied);
    answering.by(move |op| (op.key == commits).then(|| Err(down())));
    hooked.at(1, |store, batch| async move {
        let first = batch.iter().take(1).cloned().collect();
        let mut replies: Replies = store.run(Ctx::default(), first).await;
        replies.extend(fail(&batch.iter().skip(1).cloned().collect(), Effect::NotApplied));
        replies
    });
    let error = array.push([&large, &small]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    assert!(error.to_string().contains("shard 0 of 2 failed, 1 others took the change"), "{error}");
    let elements = options(2).open(&store, "a").await.unwrap().elements().await.unwrap();
    assert!(elements.contains(&Bytes::from(small)) && !elements.contains(&Bytes::from(large)));
}

/// The same full shard, set back behind a change that the commits know: that is no fault that passes.
#[tokio::test]
async fn a_push_into_a_full_shard_that_went_back_is_told_so_at_once() {
    let probe = Probe::small(7_500);
    let store = probe.shared();
    let (large, _) = full_and_unsettled(&store).await;
    let key = key_of(&store, "0").await;
    let older = value_of(&store, &key).await;
    options(2).open(&store, "a").await.unwrap().change(whole(1), NOTHING).await.unwrap();
    assert_ne!(value_of(&store, &key).await, older);
    set_value(&store, &key, older).await;
    let fresh = options(2).open(&store, "a").await.unwrap();
    probe.round_trips();
    let error = fresh.push([&large]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::NotApplied), "{error}");
    let spent = probe.round_trips();
    assert!(spent <= 6, "{spent} round trips: append, read, commits, read, and both together twice");
}

/// A reader in between compacts it: of the change under the lock only what it did is left, and no later holder was there.
#[tokio::test]
async fn a_change_under_a_lock_that_is_compacted_before_its_look_counted() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    let array = Array::options().open_or_create(&hooked.shared(), "a").await.unwrap();
    let other = Array::options().open(&store, "a").await.unwrap();
    let guard = Lock::open(&store, "l").await.unwrap().try_acquire().await.unwrap().unwrap();
    array.push(whole(0)).await.unwrap();
    hooked.at(2, move |store, batch| async move {
        other.compact().await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    array.change_under(&guard, whole(1), whole(0)).await.unwrap();
    assert_eq!(sorted(&array).await, whole(1));
    guard.release().await.unwrap();
}

/// The bound is of what a call comes to in a shard: an element of n bytes takes those and its length, of three bytes for the first and of one for the second.
#[tokio::test]
async fn a_call_may_come_to_the_last_byte_of_its_limit() {
    let store = Probe::small(20_000).shared();
    let array = options(1).open_or_create(&store, "a").await.unwrap();
    let largest = vec![b'x'; array.element_bytes_max()];
    let error = array.push([&largest, &vec![b'y'; 61]]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    let [comes_to, limit] = [largest.len() + 3 + 62, largest.len() + 3 + 61];
    assert!(error.to_string().contains(&format!("come to {comes_to} bytes in shard 0 of 1; the limit is {limit}:")));
    assert!(array.elements().await.unwrap().is_empty());
    let most = [largest, vec![b'y'; 60]];
    array.push(&most).await.unwrap();
    assert_eq!(array.elements().await.unwrap(), most);
}

#[tokio::test]
async fn a_change_that_never_came_to_its_end_is_no_element_in_the_figures() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let array = options(2).open_or_create(&store, "a").await.unwrap();
    array.change(whole(0), NOTHING).await.unwrap();
    let hooked = Hooked::new(&store);
    let dying = options(2).open(&hooked.shared(), "a").await.unwrap();
    // It reads the commits, writes into each shard, and then would make that count.
    dies_at(&hooked, 3, dying.change(whole(1), NOTHING)).await;
    let stat = array.stat().await.unwrap();
    assert_eq!((stat.elements, sorted(&array).await), (10, whole(0).into_iter().map(Bytes::from).collect()));
    assert!(stat.stale_bytes > 0, "{stat:?}");
}

/// What a later release may write into the manifest, one thing at a time.
#[tokio::test]
async fn an_array_that_spreads_or_copies_its_elements_otherwise_is_not_opened() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    Array::open_or_create(&store, "a").await.unwrap();
    let key = Name::new("a").unwrap().manifest_key().unwrap();
    let manifest = value_of(&store, &key).await;
    // Behind the number of copies there is how elements are spread.
    let copies_at = manifest.len() - 2;
    for at in [copies_at, copies_at + 1] {
        let mut other = manifest.to_vec();
        other[at] += 1;
        set_value(&store, &key, other.into()).await;
        let error = Array::open(&store, "a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
        assert!(error.to_string().contains("in a way this release does not know"), "{error}");
    }
    set_value(&store, &key, manifest).await;
    Array::open(&store, "a").await.unwrap();
}

#[tokio::test]
async fn pushes_that_wait_for_one_that_is_under_way_travel_together() {
    let probe = Probe::new();
    let array = options(1).open_or_create(&probe.shared(), "a").await.unwrap();
    let element = |number: u8| vec![number; 1_000];
    probe.close_gate();
    let pushes: Vec<_> = (1..=9)
        .map(|number| {
            let array = array.clone();
            tokio::spawn(async move { array.push([element(number)]).await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    probe.round_trips();
    probe.open_gate();
    for push in pushes {
        push.await.unwrap().unwrap();
    }
    assert_eq!(probe.round_trips(), 1, "the first was under way, the other eight are one write");
    assert_eq!(sorted(&array).await, (1..=9).map(element).collect::<Vec<_>>());
}
