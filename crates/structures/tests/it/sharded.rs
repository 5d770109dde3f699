//! Sharded collections: what others do, or leave, between two steps of a call, and what a call costs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::native::{Guarded, GuardedAct, Native, NativeReply};
use larder_core::{Ctx, Effect, Error, ErrorKind, Key, PutMode, Reply, Result, StoreExt, StoreRef, Ttl, Verb};
use larder_layers::{Counting, Counts};
use larder_store_memory::MemoryStore;
use larder_structures::inspect::inspect;
use larder_structures::registry::drop_structure;
use larder_structures::{Name, ShardedHash, ShardedSet, ShardedSortedSet};
use tokio::time::Instant;

use crate::support::hooked::{Hooked, dies_at, fail};
use crate::support::natives::Natives;
use crate::support::probe::Probe;
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

/// The batches of a resharding of few shards that are items: one reads the map, one looks whether shards are sealed, one what is to fit, one writes the plan, one makes the
/// shards, one reads the map again, one puts the new map in force, ...
pub(crate) const MAKES: u64 = 5;
/// ... and this one begins to fill it.
pub(crate) const FILLS: u64 = 8;

pub(crate) fn memory() -> (Arc<MemoryStore>, StoreRef) {
    let memory = Arc::new(MemoryStore::new());
    (memory.clone(), memory)
}

pub(crate) fn counting() -> (Counting, StoreRef) {
    let counting = metered(Arc::new(MemoryStore::new()));
    (counting.clone(), Arc::new(counting))
}

/// What a call costs, and what it answers.
pub(crate) async fn cost<T>(counting: &Counting, call: impl Future<Output = Result<T>>) -> (Counts, T) {
    let before = counting.counts();
    let answer = call.await.unwrap();
    (counting.counts().since(&before), answer)
}

/// All that a store holds.
pub(crate) fn contents(memory: &MemoryStore) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut contents = BTreeMap::new();
    memory.each(|key, seen| _ = contents.insert(key.to_vec(), seen.value.to_vec()));
    contents
}

pub(crate) async fn set(store: &StoreRef, shards: u16) -> ShardedSet {
    ShardedSet::options().shards(shards).open_or_create(store, "n").await.unwrap()
}

/// A set of 40 members whose resharding to 3 shards has put the map in force, and died.
pub(crate) async fn moving(store: &StoreRef) {
    set(store, 2).await.add((0..40).map(|member| member.to_string())).await.unwrap();
    let hooked = Hooked::new(store);
    let dying = set(&hooked.shared(), 2).await;
    dies_at(&hooked, FILLS, dying.reshard(3)).await;
    assert_eq!(set(store, 2).await.stat().await.unwrap().moving_from, Some(2));
}

#[tokio::test]
async fn a_shard_that_is_filled_while_a_reader_is_at_its_source_is_not_lost() {
    let (_, store) = memory();
    moving(&store).await;
    let hooked = Hooked::new(&store);
    let reader = set(&hooked.shared(), 2).await;
    hooked.at(1, |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        // It fills, and removes what nothing comes from any more; the map tells yet of the old shards.
        let filler = Hooked::new(&store);
        let filling = set(&filler.shared(), 2).await;
        dies_at(&filler, 7, filling.reshard(3)).await;
        replies
    });
    assert_eq!(reader.has_many(["7", "40"]).await.unwrap(), [true, false]);
}

/// The third batch seals what the elements come from, the fifth writes the new shards.
#[tokio::test]
async fn a_filling_goes_on_where_replies_are_lost_and_ends_at_what_was_refused() {
    for nth in [3, 5] {
        for is_lost in [true, false] {
            let (_, store) = memory();
            moving(&store).await;
            let hooked = Hooked::new(&store);
            let filling = set(&hooked.shared(), 2).await;
            if is_lost {
                hooked.lose_replies(nth)
            } else {
                hooked.refuse(nth)
            }
            match filling.reshard(3).await {
                Ok(()) => assert!(is_lost, "batch {nth} was refused"),
                Err(error) => assert!(!is_lost && !error.is_unknown(), "batch {nth}: {error}"),
            }
            filling.reshard(3).await.unwrap();
            let stat = filling.stat().await.unwrap();
            assert_eq!((stat.elements, stat.shards, stat.moving_from), (40, 3, None), "batch {nth}");
        }
    }
}

/// A write that three shards take part in: one has taken it, and its reply is lost; what became of the others is looked at, and cannot be.
#[tokio::test]
async fn a_change_in_doubt_stays_so_where_the_look_at_another_shard_fails() {
    let (_, items) = memory();
    let store = Natives::over(&items).shared();
    moving(&store).await;
    assert_eq!(set(&store, 2).await.add(["7"]).await.unwrap(), [false], "its shard is filled");
    let hooked = Hooked::new(&store);
    let writer = set(&hooked.shared(), 2).await;
    hooked.at(1, |store, batch| async move {
        let lost = || Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::Unknown));
        let is_refused = |reply: &Reply| matches!(reply, Reply::Native(native) if **native == NativeReply::Unmarked);
        let replies = store.run(Ctx::default(), batch).await.into_iter();
        replies.map(|reply| if reply.as_ref().is_ok_and(is_refused) { reply } else { lost() }).collect()
    });
    hooked.refuse(2);
    let error = writer.add((40..80).map(|member| member.to_string())).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    let members = set(&store, 2).await.len().await.unwrap();
    assert!(members > 40 && members < 80, "{members}: a part of it was made");
}

#[tokio::test]
async fn a_number_behind_the_end_of_the_old_map_is_not_there_while_nothing_came_to_its_shard() {
    let (_, store) = memory();
    let options = || ShardedHash::options().shards(2).dense(10);
    options().open_or_create(&store, "n").await.unwrap().set([("3", "v"), ("17", "w")]).await.unwrap();
    let hooked = Hooked::new(&store);
    let dying = options().open(&hooked.shared(), "n").await.unwrap();
    dies_at(&hooked, FILLS, dying.reshard(4)).await;
    let reader = options().open(&store, "n").await.unwrap();
    assert_eq!(
        reader.get_many(["25", "3", "39", "17"]).await.unwrap(),
        [None, Some("v".into()), None, Some("w".into())]
    );
    assert_eq!(reader.get("40").await.unwrap_err().kind(), ErrorKind::BadInput);
    assert_eq!((reader.stat().await.unwrap().moving_from, reader.len().await.unwrap()), (Some(2), 2));
}

/// Each of five parts of a sweep meets shards that are filled at that moment; at four such in a row a shard that is missing is lost.
#[tokio::test]
async fn a_sweep_of_many_shards_that_are_filled_just_ahead_of_it_loses_none() {
    let (_, store) = memory();
    set(&store, 320).await.add((0..2_000).map(|member| member.to_string())).await.unwrap();
    let hooked = Hooked::new(&store);
    let dying = set(&hooked.shared(), 2).await;
    dies_at(&hooked, FILLS, dying.reshard(640)).await;
    let hooked = Hooked::new(&store);
    let reader = set(&hooked.shared(), 2).await;
    for part in 0..5 {
        // Of each part the shards are read, what they come from, the map, and the shards again.
        hooked.at(4 * part + 2, move |store, batch| async move {
            let filler = Hooked::new(&store);
            let filling = set(&filler.shared(), 2).await;
            // 128 shards more: 5 batches for every 32, 2 for those that are filled already; and one reads the map.
            dies_at(&filler, 1 + 4 * (2 * part + 5) + 1, filling.reshard(640)).await;
            store.run(Ctx::default(), batch).await
        });
    }
    assert_eq!(reader.members().await.unwrap().len(), 2_000);
}

#[tokio::test]
async fn a_writer_whose_shard_is_filled_and_resharded_again_by_others_goes_on_there() {
    let (_, store) = memory();
    moving(&store).await;
    let hooked = Hooked::new(&store);
    let writer = set(&hooked.shared(), 2).await;
    // It finds its shard unfilled, and reads what it comes from.
    hooked.at(2, |store, batch| async move {
        set(&store, 2).await.reshard(5).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(writer.add(["new"]).await.unwrap(), [true]);
    assert_eq!((writer.len().await.unwrap(), writer.shards()), (41, 5));
}

/// A shard that went back, by a failover, to before it was filled: what it came from is gone.
#[tokio::test]
async fn a_shard_that_is_unfilled_while_nothing_comes_to_it_is_lost() {
    let (memory, store) = memory();
    moving(&store).await;
    let before = contents(&memory);
    let handle = set(&store, 2).await;
    handle.reshard(3).await.unwrap();
    let shards: Vec<_> = contents(&memory).into_keys().filter(|key| key.contains(&b'-')).collect();
    assert_eq!(shards.len(), 3);
    for key in shards {
        memory.direct().put(&key, PutMode::Set, &before[&key], 0, Ttl::Never).unwrap();
    }
    let told = [handle.add(["7"]).await.map(drop), handle.has("7").await.map(drop), handle.len().await.map(drop)];
    for error in told.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(error.to_string().contains("sharded set \"n\": shard "), "{error}");
    }
    // It is looked at four times, and the map each time.
    let probe = Probe::over(store.clone());
    let reader = set(&probe.shared(), 2).await;
    probe.round_trips();
    assert_eq!(reader.has("7").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(probe.round_trips(), 4 * 2);
}

#[tokio::test]
async fn shards_that_are_made_behind_a_drop_are_removed_again() {
    let (memory, store) = memory();
    let hooked = Hooked::new(&store);
    let handle = set(&hooked.shared(), 2).await;
    hooked.at(MAKES, |store, batch| async move {
        drop_structure(&store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let error = handle.reshard(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(memory.stats().items, 0, "{:?}", contents(&memory).keys());
}

/// The third batch of a drop deletes the shards that the map told of, the fourth the map.
#[tokio::test]
async fn a_drop_takes_the_shards_of_a_resharding_that_others_make_meanwhile() {
    for (nth, is_native) in [(3, false), (4, false), (3, true), (4, true)] {
        let (memory, items) = memory();
        let natives = Natives::over(&items);
        let store = if is_native { natives.shared() } else { items };
        let (old, other) = (set(&store, 2).await, set(&store, 2).await);
        old.add((0..40).map(|member| member.to_string())).await.unwrap();
        let hooked = Hooked::new(&store);
        hooked.at(nth, move |store, batch| async move {
            let resharded = other.reshard(3).await;
            // Once the shards are deleted, it puts a map in force whose shards nothing can come to.
            assert_eq!(resharded.is_ok(), nth == 3, "{resharded:?}");
            store.run(Ctx::default(), batch).await
        });
        let dropped = drop_structure(&hooked.shared(), Ctx::default(), &Name::new("n").unwrap()).await.unwrap();
        assert!(dropped.is_some());
        let left = contents(&memory);
        assert_eq!((left.len(), natives.all().len()), (0, 0), "batch {nth}: {:?}, {:?}", left.keys(), natives.all());
        for outcome in [old.add(["a"]).await, old.remove(["1"]).await] {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
        }
    }
}

#[tokio::test]
async fn a_map_of_another_release_keeps_its_collection_from_being_dropped() {
    let (memory, store) = memory();
    set(&store, 2).await.add(["a"]).await.unwrap();
    let before = contents(&memory);
    let (key, map) = before.iter().find(|(key, _)| key.ends_with(b".0")).unwrap();
    let drop_it = async || drop_structure(&store, Ctx::default(), &Name::new("n").unwrap()).await;
    memory.direct().put(key, PutMode::Set, b"another", 0, Ttl::Never).unwrap();
    let error = drop_it().await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::LayoutMismatch, Effect::NotApplied), "{error}");
    assert_eq!(memory.stats().items, before.len());
    memory.direct().put(key, PutMode::Set, map, 0, Ttl::Never).unwrap();
    drop_it().await.unwrap();
    assert_eq!(memory.stats().items, 0);
}

/// Whoever plans and comes no further for 2 s is taken for dead; what he makes after that he removes.
#[tokio::test(start_paused = true)]
async fn a_plan_that_stands_for_two_seconds_is_cleared_and_its_late_shards_are_removed() {
    let (memory, store) = memory();
    let hooked = Hooked::new(&store);
    let options = || ShardedSet::options().shards(2).dense(10);
    let late = options().open_or_create(&hooked.shared(), "n").await.unwrap();
    late.add(["3", "17"]).await.unwrap();
    hooked.at(MAKES, move |store, batch| async move {
        let (watching, clearing) =
            (options().open(&store, "n").await.unwrap(), options().open(&store, "n").await.unwrap());
        let begin = Instant::now();
        clearing.reshard(2).await.unwrap();
        let took = begin.elapsed();
        assert!(took >= Duration::from_secs(2) && took < Duration::from_millis(2_050), "{took:?}");
        // Who saw the plan does not take the map for one that went back.
        assert_eq!(watching.has("20").await.unwrap_err().kind(), ErrorKind::BadInput);
        store.run(Ctx::default(), batch).await
    });
    late.reshard(4).await.unwrap();
    assert_eq!(late.has_many(["3", "17", "30"]).await.unwrap(), [true, true, false]);
    assert_eq!(memory.stats().items, 4 + 2, "the shards, the map and the manifest: {:?}", contents(&memory).keys());
}

/// The reading that finds the plan, 40 more in 2 s, one with the token, a look at the shards of each map: then the plan is cleared away.
const CLEARS: u64 = 1 + 40 + 1 + 2 + 1;

#[tokio::test(start_paused = true)]
async fn the_shards_of_a_dead_plan_are_removed_where_the_reply_to_its_clearing_is_lost() {
    let (memory, store) = memory();
    let hooked = Hooked::new(&store);
    let dying = set(&hooked.shared(), 2).await;
    dies_at(&hooked, MAKES + 1, dying.reshard(5)).await;
    assert_eq!(memory.stats().items, 2 + 5 + 2, "{:?}", contents(&memory).keys());
    let hooked = Hooked::new(&store);
    let clearing = set(&hooked.shared(), 2).await;
    hooked.lose_replies(CLEARS);
    clearing.reshard(2).await.unwrap();
    assert_eq!(memory.stats().items, 2 + 2, "the shards, the map and the manifest: {:?}", contents(&memory).keys());
}

/// The map item that follows a plan, which it puts in force.
fn in_force(planned: &[u8]) -> Vec<u8> {
    let version = u64::from_le_bytes(planned[2..10].try_into().unwrap()) + 1;
    [&[1, 2][..], &version.to_le_bytes(), &planned[20..], &planned[10..20]].concat()
}

/// Others take the plan over, from a map that went back, and reshard again: what is moving away is in its shards yet.
#[tokio::test]
async fn a_plan_that_others_have_put_in_force_and_left_again_keeps_its_shards() {
    let (memory, store) = memory();
    set(&store, 2).await.add((0..40).map(|member| member.to_string())).await.unwrap();
    let hooked = Hooked::new(&store);
    let late = set(&hooked.shared(), 2).await;
    // It has made its shards, and reads the map again.
    hooked.at(MAKES + 1, move |store, batch| async move {
        let (key, planned) = contents(&memory).into_iter().find(|(key, _)| key.ends_with(b".0")).unwrap();
        memory.direct().put(&key, PutMode::Set, &in_force(&planned), 0, Ttl::Never).unwrap();
        let others = Hooked::new(&store);
        let resharding = set(&others.shared(), 2).await;
        // It fills them, and puts the next map in force.
        dies_at(&others, 1 + 5 + 1 + FILLS, resharding.reshard(4)).await;
        store.run(Ctx::default(), batch).await
    });
    late.reshard(3).await.unwrap();
    assert_eq!(late.len().await.unwrap(), 40);
}

#[tokio::test]
async fn writers_of_one_handle_do_not_beat_each_other_at_a_shard() {
    let probe = Probe::new();
    let set = set(&probe.shared(), 1).await;
    probe.round_trips();
    let adding: Vec<_> = (0..8)
        .map(|member| {
            let set = set.clone();
            tokio::spawn(async move { set.add([member.to_string()]).await.unwrap() })
        })
        .collect();
    for added in adding {
        assert_eq!(added.await.unwrap(), [true]);
    }
    assert_eq!(probe.round_trips(), 8 * 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_others_beat_at_each_try_is_told_so_and_was_not_made() {
    let (_, store) = memory();
    set(&store, 1).await;
    let beaten = Sieve::answering(&store, |_, op| {
        matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. }).then_some(Ok(Reply::Exists))
    });
    let error = set(&beaten, 1).await.add(["a"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("others kept changing sharded set \"n\""), "{error}");
}

#[tokio::test]
async fn a_call_is_tried_once_however_little_time_it_has() {
    let (_, store) = memory();
    set(&store, 1).await;
    let hasty = ShardedSet::options().timeout(Duration::from_nanos(1)).open(&store, "n").await.unwrap();
    assert_eq!(hasty.add(["a"]).await.unwrap(), [true]);
    assert!(hasty.has("a").await.unwrap());
}

#[tokio::test]
async fn a_shard_that_has_no_room_says_what_makes_some() {
    let memory = Arc::new(MemoryStore::builder().value_bytes_max(2_048).build().unwrap());
    let store: StoreRef = memory;
    let hash = ShardedHash::options().shards(1).open_or_create(&store, "n").await.unwrap();
    let value = "x".repeat(100);
    let mut room = 0;
    let error = loop {
        match hash.set([(room.to_string(), value.clone())]).await {
            Ok(_) => room += 1,
            Err(error) => break error,
        }
    };
    assert!(room > 10, "{room} of 100 bytes in 2,048");
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("resharding to more shards makes room"), "{error}");
    hash.reshard(2).await.unwrap();
    hash.set([(room.to_string(), value)]).await.unwrap();
    assert_eq!(hash.len().await.unwrap(), room + 1);
}

/// Two shards that are nearly full, and what fills one.
async fn nearly_full(store: &StoreRef) -> ShardedHash {
    let hash = ShardedHash::options().shards(2).open_or_create(store, "n").await.unwrap();
    let mut field = 0;
    while hash.set([(field.to_string(), "x".repeat(100))]).await.is_ok() {
        field += 1;
    }
    hash
}

#[tokio::test]
async fn a_resharding_to_shards_that_would_not_fit_is_refused_and_nothing_is_changed() {
    let memory = Arc::new(MemoryStore::builder().value_bytes_max(2_048).build().unwrap());
    let store: StoreRef = memory.clone();
    let hash = nearly_full(&store).await;
    let (len, before) = (hash.len().await.unwrap(), contents(&memory));
    let error = hash.reshard(1).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    let bytes: usize = before.iter().filter(|(key, _)| key.contains(&b'-')).map(|(_, value)| value.len()).sum();
    // One header less.
    let says = format!("shard 0 of 1 would take {} bytes", bytes - 14);
    assert!(error.to_string().contains(&says) && error.to_string().contains("that an item takes"), "{says}: {error}");
    assert!(contents(&memory) == before, "{:?}", contents(&memory).keys());
    assert_eq!(hash.remove(["0"]).await.unwrap(), [true]);
    assert_eq!(hash.set([("0", "v")]).await.unwrap(), [true]);
    hash.reshard(4).await.unwrap();
    assert_eq!((hash.len().await.unwrap(), hash.shards()), (len, 4));
}

/// What several shards come into leaves some room: a shard may grow until it is sealed.
#[tokio::test]
async fn a_shard_that_several_come_into_has_room_for_what_is_written_until_it_is_filled() {
    let memory = Arc::new(MemoryStore::builder().value_bytes_max(2_048).build().unwrap());
    let store: StoreRef = memory;
    let hash = ShardedHash::options().shards(2).open_or_create(&store, "n").await.unwrap();
    let value = |bytes: usize| "x".repeat(bytes);
    hash.set([("0", value(1_000)), ("1", value(1_000))]).await.unwrap();
    let error = hash.reshard(1).await.unwrap_err();
    assert!(error.to_string().contains("are left to what is written meanwhile"), "{error}");
    hash.set([("1", value(800))]).await.unwrap();
    let hooked = Hooked::new(&store);
    let resharding = ShardedHash::open(&hooked.shared(), "n").await.unwrap();
    let old = hash.clone();
    // The new map is in force, and nothing is sealed yet.
    hooked.at(FILLS, move |store, batch| async move {
        old.set([("1", "x".repeat(1_000))]).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    resharding.reshard(1).await.unwrap();
    assert_eq!(hash.get("1").await.unwrap().unwrap().len(), 1_000);
}

#[tokio::test]
async fn calls_send_as_many_ops_as_shards_they_touch() {
    let (counting, store) = counting();
    let hash = ShardedHash::options().shards(300).open_or_create(&store, "n").await.unwrap();
    let fields: Vec<String> = (0..2_000).map(|field| field.to_string()).collect();
    hash.set(fields.iter().map(|field| (field, "v"))).await.unwrap();
    let (cost, value) = cost(&counting, hash.get("7")).await;
    assert_eq!((cost.round_trips, cost.ops, value), (1, 1, Some("v".into())));
    let (cost, new) = self::cost(&counting, hash.set([("7", "w")])).await;
    assert_eq!((cost.round_trips, cost.ops, new), (2, 2, vec![false]));
    let (cost, len) = self::cost(&counting, hash.len()).await;
    assert_eq!((cost.round_trips, cost.ops, len), (1, 300, 2_000), "1,024 shards are counted at once");
    let few = ShardedHash::options().shards(200).open_or_create(&store, "few").await.unwrap();
    few.set(fields.iter().map(|field| (field, "v"))).await.unwrap();
    let (cost, found) = self::cost(&counting, few.get_many(&fields)).await;
    assert!(found.iter().all(Option::is_some));
    assert_eq!(cost.round_trips, 1, "256 shards are read at once");
    let (cost, found) = self::cost(&counting, hash.get_many(&fields)).await;
    assert!(found.iter().all(Option::is_some));
    assert_eq!((cost.round_trips, cost.ops), (2, 300), "one more for each further 256");
}

#[tokio::test]
async fn a_name_that_is_too_long_is_told_without_a_request() {
    let (counting, store) = counting();
    let set = set(&store, 2).await;
    let before = counting.counts();
    let error = set.has(vec![b'x'; 65_536]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert_eq!(counting.counts().since(&before).round_trips, 0);
    let longest = vec![b'x'; 65_535];
    assert_eq!(set.add([&longest]).await.unwrap(), [true]);
    assert!(set.has(&longest).await.unwrap() && !set.has(&longest[1..]).await.unwrap());
}

/// Beside the header, and what the lengths of a field and a value take.
#[tokio::test]
async fn a_value_has_all_the_room_of_an_item_but_thirty_bytes() {
    let memory = Arc::new(MemoryStore::builder().value_bytes_max(2_048).build().unwrap());
    let store: StoreRef = memory.clone();
    let hash = ShardedHash::options().shards(1).open_or_create(&store, "n").await.unwrap();
    let key = contents(&memory).into_keys().find(|key| key.ends_with(b"-0")).expect("the shard");
    // It is the same however many shards there come to be.
    let limit = store.profile().value_bytes_max(key.len() - 1 + "65535".len()) - 30;
    let longest = "x".repeat(limit);
    hash.set([("field", &longest)]).await.unwrap();
    assert_eq!(hash.get("field").await.unwrap().unwrap(), longest);
    let error = hash.set([("field", longest + "x")]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    let says = format!("a value has {} bytes; the limit here is {limit}", limit + 1);
    assert!(error.to_string().contains(&says), "{error}");
}

#[tokio::test]
async fn a_collection_says_how_it_is_made() {
    let (_, store) = memory();
    let expected = ShardedHash::options().expected(65).open_or_create(&store, "two").await.unwrap();
    assert_eq!(expected.shards(), 2, "a shard for every 64");
    let points = ShardedSortedSet::options().kept(7).open_or_create(&store, "points").await.unwrap();
    assert_eq!(points.kept(), 7);
    for name in ["two", "points"] {
        let found = inspect(&store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().expect("it is there");
        let said = [("elements are spread by", "XXH3-64"), ("kept in", "items under conditional writes")];
        assert_eq!(found.params[..2], said.map(|(what, how)| (what, how.to_owned())), "{name}");
        assert_eq!(found.params.contains(&("kept at each end", "7".to_owned())), name == "points");
        assert!(!found.params.iter().any(|(what, _)| what.contains("dense")), "{name}");
    }
    let dense = ShardedSet::options().shards(4).dense(10).open_or_create(&store, "dense").await.unwrap();
    for numbers in [40, 80] {
        let found = inspect(&store, Ctx::default(), &Name::new("dense").unwrap()).await.unwrap().expect("it is there");
        let said = [("dense numbers", format!("0 to {}", numbers - 1)), ("dense numbers a shard", "10".to_owned())];
        assert!(said.iter().all(|what| found.params.contains(what)), "{:?}", found.params);
        dense.reshard(8).await.unwrap();
    }
}

#[tokio::test]
async fn the_fullest_shard_is_told() {
    let (_, store) = memory();
    let set = ShardedSet::options().shards(4).dense(10).open_or_create(&store, "n").await.unwrap();
    set.add(["1", "2", "11", "12", "13", "14", "31"]).await.unwrap();
    let stat = set.stat().await.unwrap();
    assert_eq!((stat.elements, stat.shards, stat.largest_shard), (7, 4, 4));
}

pub(crate) async fn points(store: &StoreRef) -> ShardedSortedSet {
    ShardedSortedSet::options().shards(3).kept(2).open_or_create(store, "n").await.unwrap()
}

/// Ten members, m0 to m9, of these scores, whose ends were lost.
pub(crate) async fn without_ends(memory: &MemoryStore, store: &StoreRef) -> ShardedSortedSet {
    let points = points(store).await;
    points.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    let ends = contents(memory).into_keys().find(|key| key.ends_with(b".1")).expect("the ends");
    store.delete(Key::new(ends).unwrap()).await.unwrap();
    points
}

pub(crate) fn named(found: &[(bytes::Bytes, f64)]) -> Vec<&str> {
    found.iter().map(|(member, _)| std::str::from_utf8(member).unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn ends_are_filled_whatever_others_change_meanwhile_and_who_is_beaten_pauses() {
    let mut pauses = 0;
    for nth in 1.. {
        let (memory, store) = memory();
        let others = without_ends(&memory, &store).await;
        let hooked = Hooked::new(&store);
        let reader = points(&hooked.shared()).await;
        let begin = Instant::now();
        let is_reached = Arc::new(AtomicBool::new(false));
        let reached = is_reached.clone();
        hooked.at(nth, move |store, batch| async move {
            others.set([("late", 100.0)]).await.unwrap();
            others.set([("m0", 50.0)]).await.unwrap();
            reached.store(true, Ordering::Relaxed);
            store.run(Ctx::default(), batch).await
        });
        reader.top(2).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        if !is_reached.load(Ordering::Relaxed) {
            assert_eq!(begin.elapsed(), Duration::ZERO, "nobody was in the way");
            break;
        }
        pauses += u32::from(begin.elapsed() > Duration::ZERO);
        assert_eq!(named(&reader.top(2).await.unwrap()), ["late", "m0"], "batch {nth}");
        assert_eq!(named(&reader.bottom(2).await.unwrap()), ["m1", "m2"], "batch {nth}");
    }
    assert!(pauses > 0);
}

/// A reply that is lost costs one more look, and nothing is written twice.
#[tokio::test]
async fn ends_are_filled_though_the_reply_to_a_write_is_lost_for_one_more_round_trip() {
    let mut least = None;
    for nth in (0..).map(|nth: u64| nth.checked_sub(1).unwrap_or(1_000)) {
        let (memory, store) = memory();
        without_ends(&memory, &store).await;
        let counting = metered(store);
        let hooked = Hooked::new(&(Arc::new(counting.clone()) as StoreRef));
        let reader = points(&hooked.shared()).await;
        let is_write = Arc::new(AtomicBool::new(false));
        let writes = is_write.clone();
        hooked.at(nth, move |store, batch| async move {
            let replies = store.run(Ctx::default(), batch.clone()).await;
            if batch.iter().all(larder_core::Op::is_read) {
                return replies;
            }
            writes.store(true, Ordering::Relaxed);
            fail(&batch, Effect::Unknown)
        });
        let before = counting.counts();
        let found = reader.top(2).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        let cost = counting.counts().since(&before).round_trips;
        assert_eq!(named(&found), ["m9", "m8"], "batch {nth}");
        let without = *least.get_or_insert(cost);
        let is_write = is_write.load(Ordering::Relaxed);
        assert!(cost <= without + u64::from(is_write), "batch {nth} took {cost} round trips, not {without}");
        if nth == without {
            break;
        }
    }
}

#[tokio::test]
async fn ends_are_filled_from_shards_that_nothing_came_to_yet() {
    let (memory, store) = memory();
    without_ends(&memory, &store).await;
    let hooked = Hooked::new(&store);
    let dying = points(&hooked.shared()).await;
    dies_at(&hooked, FILLS, dying.reshard(5)).await;
    let reader = points(&store).await;
    assert_eq!(named(&reader.top(2).await.unwrap()), ["m9", "m8"]);
    assert_eq!(named(&reader.bottom(2).await.unwrap()), ["m0", "m1"]);
    assert_eq!(reader.stat().await.unwrap().moving_from, Some(3));
}

#[tokio::test]
async fn a_member_that_others_overtake_at_the_ends_is_brought_there_before_it_is_acknowledged() {
    let (_, store) = memory();
    let others = points(&store).await;
    others.set((0..10).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    let hooked = Hooked::new(&store);
    let late = points(&hooked.shared()).await;
    // It reads the shard and the ends, writes the shard, then the ends.
    hooked.at(3, |store, batch| async move {
        for score in 0..4 {
            others.set([(format!("other{score}"), 50.0 + f64::from(score))]).await.unwrap();
        }
        store.run(Ctx::default(), batch).await
    });
    late.set([("late", 100.0)]).await.unwrap();
    for reader in [&late, &points(&store).await] {
        assert_eq!(named(&reader.top(2).await.unwrap()), ["late", "other3"]);
    }
}

#[tokio::test]
async fn a_change_far_from_the_ends_does_not_read_them() {
    let (counting, store) = counting();
    let points = ShardedSortedSet::options().shards(1).kept(1).open_or_create(&store, "n").await.unwrap();
    points.set((0..20).map(|score| (format!("m{score}"), f64::from(score)))).await.unwrap();
    points.set([("m10", 10.5)]).await.unwrap();
    let (cost, _) = cost(&counting, points.set([("m10", 11.5)])).await;
    assert_eq!((cost.round_trips, cost.ops), (2, 2), "the shard is read, and written");
    let (cost, _) = self::cost(&counting, points.set([("m10", 99.0)])).await;
    assert_eq!(cost.round_trips, 3);
    assert_eq!(named(&points.top(1).await.unwrap()), ["m10"]);
}

/// The same over what a server has of its own, where a shard turns in one op.
#[tokio::test]
async fn a_native_filling_goes_on_where_a_reply_is_lost_and_ends_at_what_was_refused() {
    for effect in [Effect::Unknown, Effect::NotApplied] {
        let natives = Natives::over(&memory().1).shared();
        set(&natives, 2).await.add((0..40).map(|member| member.to_string())).await.unwrap();
        let was_asked = AtomicBool::new(false);
        let failing = Sieve::answering(&natives, move |_, op| {
            let Verb::Native(native) = &op.verb else { return None };
            let Native::Guarded(Guarded { act: GuardedAct::Turn { entries, .. }, .. }) = &**native else { return None };
            let is_fill = !entries.is_empty() && !was_asked.swap(true, Ordering::SeqCst);
            is_fill.then(|| Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(effect)))
        });
        match set(&failing, 2).await.reshard(3).await {
            Ok(()) => assert_eq!(effect, Effect::Unknown),
            Err(error) => assert!(effect == Effect::NotApplied && !error.is_unknown(), "{error}"),
        }
        let handle = set(&natives, 2).await;
        handle.reshard(3).await.unwrap();
        let stat = handle.stat().await.unwrap();
        assert_eq!((stat.elements, stat.shards, stat.moving_from), (40, 3, None));
    }
}

/// Of three shards the middle one comes from both that there were; the second of those is lost while it is filled.
#[tokio::test]
async fn the_shard_that_a_native_filling_lacks_is_named() {
    let natives = Natives::over(&memory().1);
    let store = natives.shared();
    set(&store, 2).await.add((0..40).map(|member| member.to_string())).await.unwrap();
    let before: Vec<Key> = natives.all().into_keys().collect();
    let hooked = Hooked::new(&store);
    let dying = set(&hooked.shared(), 2).await;
    dies_at(&hooked, FILLS, dying.reshard(3)).await;
    let second = before.iter().find(|key| key.as_bytes().ends_with(b"-1")).unwrap();
    natives.lose(second);
    let error = set(&store, 2).await.reshard(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("shard 1 of 2"), "{error}");
}

/// What is to be filled is read first, then what it comes from: others fill it in between, and remove that.
#[tokio::test]
async fn a_source_that_goes_while_others_fill_from_it_is_not_lost() {
    let (_, store) = memory();
    moving(&store).await;
    let hooked = Hooked::new(&store);
    let (filling, other) = (set(&hooked.shared(), 2).await, set(&store, 2).await);
    hooked.at(2, move |store, batch| async move {
        let of_targets = store.run(Ctx::default(), batch.iter().take(3).cloned().collect()).await;
        other.reshard(3).await.unwrap();
        let rest = store.run(Ctx::default(), batch.iter().skip(3).cloned().collect()).await;
        assert!(rest.iter().any(|reply| matches!(reply, Ok(Reply::Miss))), "{rest:?}");
        of_targets.into_iter().chain(rest).collect()
    });
    filling.reshard(3).await.unwrap();
    let stat = filling.stat().await.unwrap();
    assert_eq!((stat.elements, stat.shards, stat.moving_from), (40, 3, None));
}

#[tokio::test]
async fn a_writer_that_meets_an_unfilled_shard_fills_it_in_four_round_trips() {
    let (counting, store) = counting();
    moving(&store).await;
    let writer = set(&store, 2).await;
    let (counts, added) = cost(&counting, writer.add(["40"])).await;
    // It looks, fills, looks again and writes.
    assert_eq!((counts.round_trips, added), (1 + 4 + 2, vec![true]));
}
