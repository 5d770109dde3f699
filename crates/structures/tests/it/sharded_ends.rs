//! The ends of a sorted set while they are filled: what others do meanwhile to them, to the shards and to the map, and what a filling costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_core::{Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Reply, StoreExt, StoreRef, Ttl, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::registry::drop_structure;
use larder_structures::{Name, ShardedSortedSet};

use crate::sharded::{FILLS, contents, cost, counting, memory, named, points, without_ends};
use crate::support::hooked::{Hooked, dies_at};
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

/// The batches of a reader that finds no ends: one reads them, one the map, one begins them anew, one reads the map again, and this one begins to fill them.
const ENDS_FILL: u64 = 5;

/// A conditional write of a shard.
fn is_shard_write(op: &Op) -> bool {
    op.key.as_bytes().contains(&b'-') && matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. })
}

/// A conditional write of the ends.
fn is_ends_write(op: &Op) -> bool {
    op.key.as_bytes().ends_with(b".1") && matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. })
}

async fn lose_ends(memory: &MemoryStore, store: &StoreRef) {
    let ends = contents(memory).into_keys().find(|key| key.ends_with(b".1")).expect("the ends");
    store.delete(Key::new(ends).unwrap()).await.unwrap();
}

/// Ten members whose ends were begun anew by one who died before he filled them.
async fn begun(memory: &MemoryStore, store: &StoreRef) {
    without_ends(memory, store).await;
    let hooked = Hooked::new(store);
    let dying = points(&hooked.shared()).await;
    dies_at(&hooked, ENDS_FILL, dying.top(2)).await;
}

/// The versions of the ends that stand in the shards.
fn seen(memory: &MemoryStore) -> Vec<u64> {
    let shards = contents(memory).into_iter().filter(|(key, _)| key.contains(&b'-'));
    shards.map(|(_, shard)| u64::from_le_bytes(shard[14..22].try_into().unwrap())).collect()
}

/// A reader fills the ends of ten members, m0 to m9, and does so whatever `others` have done at any of its batches.
async fn is_filled_beside<F: Future<Output = ()> + Send + 'static>(
    prepare: impl AsyncFn(&MemoryStore, &StoreRef),
    others: impl Fn(StoreRef) -> F + Clone + Send + 'static,
) {
    for nth in 1.. {
        let (memory, store) = memory();
        prepare(&memory, &store).await;
        let hooked = Hooked::new(&store);
        let reader = points(&hooked.shared()).await;
        let is_reached = Arc::new(AtomicBool::new(false));
        let (reached, others) = (is_reached.clone(), others.clone());
        hooked.at(nth, move |store, batch| async move {
            others(store.clone()).await;
            reached.store(true, Ordering::Relaxed);
            store.run(Ctx::default(), batch).await
        });
        let found = reader.top(2).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        assert_eq!(named(&found), ["m9", "m8"], "batch {nth}");
        assert_eq!(named(&reader.bottom(2).await.unwrap()), ["m0", "m1"], "batch {nth}");
        if !is_reached.load(Ordering::Relaxed) {
            assert!(nth > ENDS_FILL, "it took {nth} batches");
            break;
        }
    }
}

/// 200 times in a row, and not for ever.
#[tokio::test(start_paused = true)]
async fn ends_that_others_write_first_at_each_try_are_a_conflict() {
    let (memory, store) = memory();
    without_ends(&memory, &store).await;
    let tries = Arc::new(AtomicU64::new(0));
    let counted = tries.clone();
    let beaten = Sieve::answering(&store, move |_, op| {
        // Who does not give up gets there some time.
        (is_ends_write(op) && counted.fetch_add(1, Ordering::Relaxed) < 1_000).then_some(Ok(Reply::Exists))
    });
    let error = points(&beaten).await.top(2).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("others kept changing"), "{error}");
    assert_eq!(tries.load(Ordering::Relaxed), 200);
}

#[tokio::test]
async fn a_filling_takes_three_round_trips_for_128_shards_and_three_and_three_more_where_the_ends_were_lost() {
    for (shards, steps) in [(1, 1), (128, 1), (129, 2), (300, 3)] {
        let (memory, store) = memory();
        let options = || ShardedSortedSet::options().shards(shards).kept(2);
        let points = options().open_or_create(&store, "n").await.unwrap();
        points.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
        lose_ends(&memory, &store).await;
        let hooked = Hooked::new(&store);
        let dying = options().open(&hooked.shared(), "n").await.unwrap();
        dies_at(&hooked, ENDS_FILL, dying.top(2)).await;
        let counting = metered(store.clone());
        let reader = options().open(&(Arc::new(counting.clone()) as StoreRef), "n").await.unwrap();
        let (counts, found) = cost(&counting, reader.top(2)).await;
        assert_eq!((counts.round_trips, named(&found)), (3 * steps + 3, vec!["m9", "m8"]), "{shards} shards");
        // They are begun anew, between two looks at the map.
        lose_ends(&memory, &store).await;
        let (counts, found) = cost(&counting, reader.top(2)).await;
        assert_eq!((counts.round_trips, named(&found)), (3 * steps + 6, vec!["m9", "m8"]), "{shards} shards");
    }
}

/// Ends that were set back, as by a failover, are older than what the shards were told of: those may not be told of older ones.
#[tokio::test]
async fn what_a_shard_was_told_of_the_ends_only_grows_though_they_are_set_back() {
    let (memory, store) = memory();
    begun(&memory, &store).await;
    let (key, ends) = contents(&memory).into_iter().find(|(key, _)| key.ends_with(b".1")).expect("the ends");
    let writer = points(&store).await;
    assert_eq!(named(&writer.top(2).await.unwrap()), ["m9", "m8"]);
    for (member, score) in [("m3", 30.0), ("m4", 40.0), ("m5", 50.0)] {
        writer.set([(member, score)]).await.unwrap();
    }
    lose_ends(&memory, &store).await;
    assert_eq!(named(&writer.top(2).await.unwrap()), ["m5", "m4"]);
    let before = seen(&memory);
    memory.direct().put(&key, PutMode::Set, &ends, 0, Ttl::Never).unwrap();
    let reader = points(&store).await;
    assert_eq!(named(&reader.top(2).await.unwrap()), ["m5", "m4"]);
    let after = seen(&memory);
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?} {after:?}");
}

/// What is beyond the ends that a writer knows may be within those that are being filled: he is told by the shard, whenever he comes to it.
#[tokio::test(start_paused = true)]
async fn who_knows_ends_that_reached_less_looks_at_them_anew_before_he_writes() {
    for nth in 1.. {
        let (memory, store) = memory();
        let old = points(&store).await;
        old.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
        points(&store).await.remove(["m9", "m8", "m7"]).await.unwrap();
        lose_ends(&memory, &store).await;
        let hooked = Hooked::new(&store);
        let reader = points(&hooked.shared()).await;
        let is_reached = Arc::new(AtomicBool::new(false));
        let reached = is_reached.clone();
        hooked.at(nth, move |store, batch| async move {
            old.set([("mid", 5.5)]).await.unwrap();
            reached.store(true, Ordering::Relaxed);
            store.run(Ctx::default(), batch).await
        });
        reader.top(2).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        if !is_reached.load(Ordering::Relaxed) {
            assert!(nth > ENDS_FILL, "it took {nth} batches");
            break;
        }
        assert_eq!(named(&reader.top(2).await.unwrap()), ["m6", "mid"], "batch {nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn ends_are_filled_though_others_seal_the_shards_for_new_ones_and_die() {
    let prepare = async |memory: &MemoryStore, store: &StoreRef| _ = without_ends(memory, store).await;
    is_filled_beside(prepare, |store| async move {
        let hooked = Hooked::new(&store);
        let dying = points(&hooked.shared()).await;
        // One batch reads the map, one what is filled and what from, one seals that.
        dies_at(&hooked, FILLS + 3, dying.reshard(5)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn ends_are_filled_though_others_fill_the_shards_first_and_reshard_them_again() {
    let prepare = async |memory: &MemoryStore, store: &StoreRef| {
        without_ends(memory, store).await;
        let hooked = Hooked::new(store);
        let dying = points(&hooked.shared()).await;
        dies_at(&hooked, FILLS, dying.reshard(5)).await;
    };
    is_filled_beside(prepare, |store| async move { points(&store).await.reshard(7).await.unwrap() }).await;
}

#[tokio::test]
async fn ends_are_not_filled_from_shards_that_went_back_to_before_they_were_filled() {
    let (memory, store) = memory();
    let handle = without_ends(&memory, &store).await;
    let hooked = Hooked::new(&store);
    let dying = points(&hooked.shared()).await;
    dies_at(&hooked, FILLS, dying.reshard(5)).await;
    let before = contents(&memory);
    handle.reshard(5).await.unwrap();
    let shards: Vec<_> = contents(&memory).into_keys().filter(|key| key.contains(&b'-')).collect();
    assert_eq!(shards.len(), 5);
    for key in shards {
        memory.direct().put(&key, PutMode::Set, &before[&key], 0, Ttl::Never).unwrap();
    }
    let error = points(&store).await.top(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// Asked once, and not until nobody knows any more what it said.
#[tokio::test]
async fn what_a_store_says_that_refuses_to_tell_a_shard_of_the_ends_is_told() {
    let (memory, store) = memory();
    without_ends(&memory, &store).await;
    let tries = Arc::new(AtomicU64::new(0));
    let counted = tries.clone();
    let refusing = Sieve::answering(&store, move |_, op| {
        let is_refused = is_shard_write(op) && counted.fetch_add(1, Ordering::Relaxed) < 1_000;
        is_refused.then(|| Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::NotApplied)))
    });
    let error = points(&refusing).await.top(2).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(tries.load(Ordering::Relaxed), 3, "one a shard");
    assert_eq!(named(&points(&store).await.top(2).await.unwrap()), ["m9", "m8"]);
}

/// Where shards are unfilled, and others write first at each try to seal what they come from.
#[tokio::test]
async fn ends_of_shards_that_others_keep_from_being_filled_are_a_conflict() {
    let (memory, store) = memory();
    without_ends(&memory, &store).await;
    let hooked = Hooked::new(&store);
    let dying = points(&hooked.shared()).await;
    dies_at(&hooked, FILLS, dying.reshard(5)).await;
    let tries = Arc::new(AtomicU64::new(0));
    let counted = tries.clone();
    let beaten = Sieve::answering(&store, move |_, op| {
        (is_shard_write(op) && counted.fetch_add(1, Ordering::Relaxed) < 1_000).then_some(Ok(Reply::Exists))
    });
    let error = points(&beaten).await.top(2).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
    assert_eq!(tries.load(Ordering::Relaxed), 3 * 100, "what they come from, a hundred times");
}

/// As by a failover of the server that has the ends: others have written them as often since as this handle knows.
#[tokio::test]
async fn ends_that_went_back_are_made_again_though_others_wrote_them_as_often_since() {
    let (memory, store) = memory();
    let knows = points(&store).await;
    knows.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    let (key, before) = contents(&memory).into_iter().find(|(key, _)| key.ends_with(b".1")).expect("the ends");
    knows.set([("ours", 100.0)]).await.unwrap();
    let put = Op::put(Key::new(key).unwrap(), PutMode::Set, before, Ttl::Never);
    store.run_one(Ctx::default(), put).await.unwrap();
    // It looks at other shards, which were told of nothing newer.
    let others = points(&store).await;
    others.set([("theirs", 90.0)]).await.unwrap();
    for handle in [&knows, &points(&store).await] {
        assert_eq!(named(&handle.top(2).await.unwrap()), ["ours", "theirs"]);
    }
}

/// What happens before a write, or at one of its batches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Turn {
    Nothing,
    /// The ends go back.
    Back,
    /// They do, and others write them as often as this handle knows.
    BackAndOthers,
    /// Others write them.
    Others,
}

impl Turn {
    async fn take(self, store: &StoreRef, (key, ends): &(Vec<u8>, Vec<u8>)) {
        if matches!(self, Turn::Back | Turn::BackAndOthers) {
            let put = Op::put(Key::new(key.clone()).unwrap(), PutMode::Set, ends.clone(), Ttl::Never);
            store.run_one(Ctx::default(), put).await.unwrap();
        }
        if matches!(self, Turn::Others | Turn::BackAndOthers) {
            points(store).await.set([("theirs", 90.0)]).await.unwrap();
        }
    }
}

/// As above, of a handle that does not read the ends, but writes: whenever they went back, and whatever others write meanwhile, it is done, and nothing is missing.
#[tokio::test(start_paused = true)]
async fn ends_that_went_back_are_made_again_by_who_writes() {
    let turns = [
        (Turn::Back, Turn::Nothing),
        (Turn::BackAndOthers, Turn::Nothing),
        (Turn::Back, Turn::Others),
        (Turn::Nothing, Turn::Back),
        (Turn::Nothing, Turn::BackAndOthers),
    ];
    for ((first, then), nth) in turns.into_iter().flat_map(|turns| (1..=12).map(move |nth| (turns, nth))) {
        let when = format!("{first:?}, {then:?} at batch {nth}");
        let (memory, store) = memory();
        let hooked = Hooked::new(&store);
        let knows = points(&hooked.shared()).await;
        knows.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
        let before = contents(&memory).into_iter().find(|(key, _)| key.ends_with(b".1")).expect("the ends");
        knows.set([("ours", 100.0)]).await.unwrap();
        first.take(&store, &before).await;
        let is_reached = Arc::new(AtomicBool::new(false));
        let reached = is_reached.clone();
        hooked.at(nth, move |store, batch| async move {
            then.take(&store, &before).await;
            reached.store(true, Ordering::Relaxed);
            store.run(Ctx::default(), batch).await
        });
        let new = knows.set([("mine", 95.0)]).await.unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(new, [true], "{when}");
        let is_reached = is_reached.load(Ordering::Relaxed);
        assert!(is_reached || nth > 3, "{when}");
        for handle in [&knows, &points(&store).await] {
            assert_eq!(named(&handle.top(2).await.unwrap()), ["ours", "mine"], "{when}");
        }
    }
}

/// Whoever reads them is not told of fewer than he knew, whenever others write those that went back.
#[tokio::test(start_paused = true)]
async fn ends_that_went_back_are_made_again_by_who_reads() {
    for nth in 1..=10 {
        let (memory, store) = memory();
        let hooked = Hooked::new(&store);
        let knows = points(&hooked.shared()).await;
        knows.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
        let before = contents(&memory).into_iter().find(|(key, _)| key.ends_with(b".1")).expect("the ends");
        knows.set([("ours", 100.0)]).await.unwrap();
        Turn::Back.take(&store, &before).await;
        let is_reached = Arc::new(AtomicBool::new(false));
        let reached = is_reached.clone();
        hooked.at(nth, move |store, batch| async move {
            Turn::Others.take(&store, &before).await;
            reached.store(true, Ordering::Relaxed);
            store.run(Ctx::default(), batch).await
        });
        let found = knows.top(2).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        assert_eq!(named(&found)[0], "ours", "batch {nth}");
        if !is_reached.load(Ordering::Relaxed) {
            assert!(nth > 3, "it took {nth} batches");
            break;
        }
        for handle in [&knows, &points(&store).await] {
            assert_eq!(named(&handle.top(2).await.unwrap()), ["ours", "theirs"], "batch {nth}");
        }
    }
}

/// Nobody would find them.
#[tokio::test(start_paused = true)]
async fn ends_that_are_begun_anew_beside_a_drop_leave_nothing() {
    for nth in 1..=ENDS_FILL {
        let (memory, store) = memory();
        without_ends(&memory, &store).await;
        let hooked = Hooked::new(&store);
        let reader = points(&hooked.shared()).await;
        hooked.at(nth, |store, batch| async move {
            drop_structure(&store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
            store.run(Ctx::default(), batch).await
        });
        let error = reader.top(2).await.expect_err("it is gone");
        assert_eq!(error.kind(), ErrorKind::Lost, "batch {nth}: {error}");
        assert_eq!(memory.stats().items, 0, "batch {nth}");
    }
}

/// As [`what_a_store_says_that_refuses_to_tell_a_shard_of_the_ends_is_told`], of the ends themselves.
#[tokio::test(start_paused = true)]
async fn what_a_store_says_that_refuses_the_ends_is_told() {
    let (memory, store) = memory();
    without_ends(&memory, &store).await;
    let tries = Arc::new(AtomicU64::new(0));
    let counted = tries.clone();
    let refusing = Sieve::answering(&store, move |_, op| {
        let is_refused = matches!(op.verb, Verb::Put { .. }) && op.key.as_bytes().ends_with(b".1");
        is_refused.then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::NotApplied))
        })
    });
    let error = points(&refusing).await.top(2).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(tries.load(Ordering::Relaxed), 1);
    assert_eq!(named(&points(&store).await.top(2).await.unwrap()), ["m9", "m8"]);
}

/// All in one shard: which one tells the others of the ends.
async fn in_one_shard(store: &StoreRef) -> ShardedSortedSet {
    ShardedSortedSet::options().shards(1).kept(2).open_or_create(store, "n").await.unwrap()
}

/// The batches of a writer that knows nothing yet: one reads the shard and the ends, one writes the shard, and this one writes the ends.
const WRITES_ENDS: u64 = 3;

/// Ten members, m0 to m9, of which somebody raises m9 to 50; what `others` do before he writes the ends; and a handle.
async fn raised_beside<F>(others: impl FnOnce(StoreRef) -> F + Send + 'static) -> ShardedSortedSet
where
    F: Future<Output = ()> + Send + 'static,
{
    let (_, store) = memory();
    in_one_shard(&store).await.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    let hooked = Hooked::new(&store);
    let slow = in_one_shard(&hooked.shared()).await;
    hooked.at(WRITES_ENDS, move |store, batch| async move {
        assert!(batch.iter().any(is_ends_write), "{batch:?}");
        others(store.clone()).await;
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(slow.set([("m9", 50.0)]).await.unwrap(), [false]);
    in_one_shard(&store).await
}

/// The ends say so already, but he who raises it may write them yet: by the token that he read.
#[tokio::test(start_paused = true)]
async fn who_sets_a_score_back_while_another_raises_it_has_the_last_word() {
    let points = raised_beside(|store| async move {
        assert_eq!(in_one_shard(&store).await.set([("m9", 9.0)]).await.unwrap(), [false]);
    })
    .await;
    for _ in 0..2 {
        assert_eq!(points.top(1).await.unwrap(), [(bytes::Bytes::from("m9"), 9.0)]);
        assert_eq!(points.score("m9").await.unwrap(), Some(9.0));
    }
}

/// One who died set it back in the shard, and another wrote the shard for another member: neither did so at the ends, where the first may write yet.
#[tokio::test(start_paused = true)]
async fn a_score_that_is_told_is_that_of_the_ends_whoever_died_midway() {
    let points = raised_beside(|store| async move {
        let hooked = Hooked::new(&store);
        let dying = in_one_shard(&hooked.shared()).await;
        dies_at(&hooked, WRITES_ENDS, dying.set([("m9", 9.0)])).await;
        assert_eq!(in_one_shard(&store).await.set([("m5", 4.5)]).await.unwrap(), [false]);
    })
    .await;
    let score = points.score("m9").await.unwrap().expect("it is there");
    assert_eq!(points.top(1).await.unwrap(), [(bytes::Bytes::from("m9"), score)]);
}

/// One reads the shard and the ends, one writes the shard, one the ends; and one looks what became of them.
#[tokio::test]
async fn ends_whose_reply_is_lost_are_looked_at_once() {
    let (_, store) = memory();
    in_one_shard(&store).await.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    let hooked = Hooked::new(&store);
    let counting = metered(hooked.shared());
    let writer = in_one_shard(&(Arc::new(counting.clone()) as StoreRef)).await;
    hooked.lose_replies(WRITES_ENDS);
    let (counts, new) = cost(&counting, writer.set([("m9", 50.0)])).await;
    assert_eq!((counts.round_trips, new), (WRITES_ENDS + 1, vec![false]));
}

/// It looks at the ends with the shard, and so at what others wrote since.
#[tokio::test]
async fn a_score_that_reaches_the_ends_takes_three_round_trips_though_others_wrote_them() {
    let (counting, store) = counting();
    let knows = points(&store).await;
    knows.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    for (theirs, ours, score) in [("a", "b", 20.0), ("c", "d", 30.0), ("e", "f", 40.0)] {
        points(&store).await.set([(theirs, score)]).await.unwrap();
        let (counts, _) = cost(&counting, knows.set([(ours, score + 1.0)])).await;
        assert_eq!(counts.round_trips, 3, "{ours}");
    }
}

/// What is removed is removed, whatever comes of filling the ends that it left short.
#[tokio::test]
async fn a_removal_is_done_though_the_ends_that_it_left_short_cannot_be_filled() {
    for nth in WRITES_ENDS + 1..=WRITES_ENDS + 3 {
        let (_, store) = memory();
        in_one_shard(&store).await.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
        let hooked = Hooked::new(&store);
        let writer = in_one_shard(&hooked.shared()).await;
        hooked.refuse(nth);
        assert_eq!(writer.remove(["m9", "m8", "m7"]).await.unwrap(), [true; 3], "batch {nth} is refused");
        assert_eq!(named(&writer.top(2).await.unwrap()), ["m6", "m5"]);
    }
}

/// One shard of ten numbers, of which these are there.
async fn dense(store: &StoreRef) -> ShardedSortedSet {
    ShardedSortedSet::options().shards(1).dense(10).kept(1).open_or_create(store, "n").await.unwrap()
}

const SCORED: [(&str, f64); 6] = [("0", 100.0), ("1", 90.0), ("2", 80.0), ("3", 50.0), ("4", 2.0), ("5", 1.0)];

/// A number of a shard that nothing comes to: nobody who knows ends from before they were filled may write there.
#[tokio::test]
async fn a_score_of_a_new_number_is_seen_though_its_writer_knows_ends_from_before_they_were_filled() {
    let (_, store) = memory();
    let (writer, other) = (dense(&store).await, dense(&store).await);
    writer.set(SCORED).await.unwrap();
    assert_eq!(other.remove(["0", "1"]).await.unwrap(), [true, true]);
    other.reshard(2).await.unwrap();
    assert_eq!(writer.set([("15", 85.0)]).await.unwrap(), [true]);
    for reader in [&other, &dense(&store).await] {
        assert_eq!(named(&reader.top(1).await.unwrap()), ["15"]);
    }
}

/// The batches of a resharding to more shards of dense numbers: none looks what is to fit, and this one begins to fill them.
const FILLS_DENSE: u64 = FILLS - 1;

/// The new shard is in use while the others are not filled yet: whoever fills the ends finds it, though he knows the old map alone.
#[tokio::test]
async fn a_score_of_a_new_number_is_seen_though_the_ends_are_filled_by_one_who_has_not_seen_its_shard() {
    let (_, store) = memory();
    let stale = dense(&store).await;
    stale.set(SCORED).await.unwrap();
    let hooked = Hooked::new(&store);
    let dying = dense(&hooked.shared()).await;
    dies_at(&hooked, FILLS_DENSE, dying.reshard(2)).await;
    let writer = dense(&store).await;
    assert_eq!((writer.shards(), writer.set([("15", 85.0)]).await.unwrap()), (2, vec![true]));
    assert_eq!(stale.remove(["0", "1"]).await.unwrap(), [true, true]);
    for reader in [&stale, &writer, &dense(&store).await] {
        assert_eq!(named(&reader.top(1).await.unwrap()), ["15"]);
        assert_eq!(reader.stat().await.unwrap().moving_from, Some(1));
    }
    writer.reshard(2).await.unwrap();
    assert_eq!((writer.len().await.unwrap(), named(&writer.top(1).await.unwrap())), (5, vec!["15"]));
}

/// What the last of the old shards was told is not known then.
#[tokio::test]
async fn a_shard_of_new_numbers_is_not_filled_where_the_last_old_one_is_lost() {
    let (memory, store) = memory();
    dense(&store).await.set(SCORED).await.unwrap();
    let last = contents(&memory).into_keys().find(|key| key.ends_with(b"-0")).expect("the shard");
    let hooked = Hooked::new(&store);
    let dying = dense(&hooked.shared()).await;
    dies_at(&hooked, FILLS_DENSE, dying.reshard(2)).await;
    store.delete(Key::new(last).unwrap()).await.unwrap();
    let error = dense(&store).await.set([("15", 85.0)]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("shard 0 of 1"), "{error}");
}

/// The shard says it, and the ends do not yet: it counts, and is told to who asks for the member.
#[tokio::test]
async fn a_count_takes_in_a_change_that_has_happened_for_nobody_yet() {
    let (_, store) = memory();
    let points = in_one_shard(&store).await;
    points.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    let counted = async || (points.len().await.unwrap(), points.stat().await.unwrap().elements);
    let dying = async || {
        let hooked = Hooked::new(&store);
        let dying = in_one_shard(&hooked.shared()).await;
        (hooked, dying)
    };
    let (hooked, adds) = dying().await;
    dies_at(&hooked, WRITES_ENDS, adds.set([("late", 50.0)])).await;
    assert_eq!((counted().await, named(&points.top(1).await.unwrap())), ((11, 11), vec!["m9"]));
    assert_eq!(points.score("late").await.unwrap(), Some(50.0));
    let (hooked, removes) = dying().await;
    dies_at(&hooked, WRITES_ENDS, removes.remove(["late"])).await;
    assert_eq!((counted().await, named(&points.top(1).await.unwrap())), ((10, 10), vec!["late"]));
    assert_eq!(points.score("late").await.unwrap(), None);
    assert_eq!((counted().await, named(&points.top(1).await.unwrap())), ((10, 10), vec!["m9"]));
}
