//! Writes to sharded collections: what becomes of one that is in doubt, refused or beaten in a part, what it waits for, and what has room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, Result, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::sharded::NAME_BYTES_MAX;
use larder_structures::{ShardedHash, ShardedSet};
use tokio::sync::Notify;

use crate::sharded::{contents, memory};
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, fail};
use crate::support::probe::Probe;
use crate::support::shaped::Shaped;

/// Of dense numbers: those under 10 are in the first shard, those under 20 in the second.
async fn two(store: &StoreRef, timeout: Duration) -> ShardedSet {
    ShardedSet::options().shards(2).dense(10).timeout(timeout).open_or_create(store, "n").await.unwrap()
}

const LONG: Duration = Duration::from_secs(60);

/// A write of the first shard, or of the second.
fn written(op: &Op) -> Option<usize> {
    let is_write = matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. });
    [&b"-0"[..], b"-1"].iter().position(|end| is_write && op.key.as_bytes().ends_with(end))
}

fn unavailable(effect: Effect) -> Error {
    Error::new(ErrorKind::Unavailable, "as the test wants").effect(effect)
}

/// The second batch of a change writes the shard.
#[tokio::test]
async fn a_change_whose_reply_is_lost_is_looked_for_and_one_that_was_not_sent_is_told() {
    for is_sent in [true, false] {
        let (_, store) = memory();
        let hooked = Hooked::new(&store);
        let set = two(&hooked.shared(), LONG).await;
        match is_sent {
            true => hooked.lose_replies(2),
            false => hooked.at(2, |_, batch| async move { fail(&batch, Effect::Unknown) }),
        }
        assert_eq!(set.add(["3"]).await.unwrap(), [true], "sent: {is_sent}");
        assert!(set.has("3").await.unwrap());
        hooked.refuse(2);
        let error = set.add(["4"]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert!(!set.has("4").await.unwrap());
    }
}

#[tokio::test]
async fn a_change_whose_reply_is_lost_and_behind_which_others_wrote_is_unknown() {
    let (_, store) = memory();
    let hooked = Hooked::new(&store);
    let set = two(&hooked.shared(), LONG).await;
    hooked.at(2, |store, batch| async move {
        _ = store.run(Ctx::default(), batch.clone()).await;
        two(&store, LONG).await.add(["5"]).await.unwrap();
        fail(&batch, Effect::Unknown)
    });
    let error = set.add(["3"]).await.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("others have written to shard 0"), "{error}");
    assert_eq!(set.has_many(["3", "5"]).await.unwrap(), [true, true]);
}

/// What the first and the second of two writes are answered, `None`: they are carried out; and what must be known of the call.
const PARTS: [([Option<Effect>; 2], Effect); 4] = [
    ([None, Some(Effect::NotApplied)], Effect::Unknown),
    ([Some(Effect::NotApplied), None], Effect::Unknown),
    ([Some(Effect::Unknown), Some(Effect::NotApplied)], Effect::Unknown),
    ([Some(Effect::NotApplied), Some(Effect::NotApplied)], Effect::NotApplied),
];

#[tokio::test(start_paused = true)]
async fn a_change_of_two_shards_of_which_one_is_refused_is_unknown_unless_the_other_is_untouched() {
    for (answers, effect) in PARTS {
        let (_, store) = memory();
        let answering = Answering::new(&store);
        let set = two(&answering.shared(), LONG).await;
        answering.by(move |op| answers[written(op)?].map(|effect| Err(unavailable(effect))));
        let error = set.add(["3", "13"]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, effect), "{answers:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_others_beat_at_a_shard_ends_with_its_time_and_is_unknown_unless_the_other_is_untouched() {
    for (answers, effect) in PARTS {
        let (_, store) = memory();
        let answering = Answering::new(&store);
        let set = two(&answering.shared(), Duration::from_nanos(1)).await;
        let tries = Arc::new(AtomicU64::new(0));
        let counted = tries.clone();
        answering.by(move |op| {
            let answer = answers[written(op)?]?;
            Some(match answer {
                Effect::NotApplied => {
                    counted.fetch_add(1, Ordering::Relaxed);
                    Ok(Reply::Exists)
                }
                effect => Err(unavailable(effect)),
            })
        });
        let error = set.add(["3", "13"]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, effect), "{answers:?}: {error}");
        let beaten = answers.iter().filter(|answer| **answer == Some(Effect::NotApplied)).count() as u64;
        assert_eq!(tries.load(Ordering::Relaxed), beaten, "each is tried once: {answers:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn writers_of_one_handle_do_not_wait_for_each_other_at_different_shards() {
    let (_, store) = memory();
    let hooked = Hooked::new(&store);
    let set = two(&hooked.shared(), LONG).await;
    let (begun, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, waits) = (begun.clone(), goes_on.clone());
    hooked.at(1, move |store, batch| async move {
        begins.notify_one();
        waits.notified().await;
        store.run(Ctx::default(), batch).await
    });
    let slow = set.clone();
    let slow = tokio::spawn(async move { slow.add(["3"]).await });
    begun.notified().await;
    let other = tokio::time::timeout(LONG, set.add(["13"])).await;
    assert_eq!(other.expect("it waits for the first").unwrap(), [true]);
    goes_on.notify_one();
    assert_eq!(slow.await.unwrap().unwrap(), [true]);
}

#[tokio::test]
async fn a_name_that_is_too_long_is_refused_before_anything_is_sent() {
    let probe = Probe::new();
    let set = ShardedSet::options().shards(2).open_or_create(&probe.shared(), "n").await.unwrap();
    probe.round_trips();
    let error = set.add(["x".repeat(NAME_BYTES_MAX + 1)]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::BadInput, Effect::NotApplied), "{error}");
    assert_eq!(probe.round_trips(), 0);
    assert_eq!(set.add(["x".repeat(NAME_BYTES_MAX)]).await.unwrap(), [true]);
}

/// The number behind these words.
fn number(said: &str, words: &str) -> usize {
    let rest = said.split_once(words).unwrap_or_else(|| panic!("{words:?} in {said:?}")).1;
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).expect("a number")
}

fn small() -> StoreRef {
    Arc::new(MemoryStore::builder().value_bytes_max(2_048).build().unwrap())
}

/// An eighth is left to what is written meanwhile, and no more.
#[tokio::test]
async fn shards_that_come_to_seven_eighths_of_an_item_are_brought_together() {
    let store = small();
    let hash = ShardedHash::options().shards(2).open_or_create(&store, "n").await.unwrap();
    hash.set([("0", "x".repeat(1_000)), ("1", "x".repeat(1_000))]).await.unwrap();
    let said = hash.reshard(1).await.unwrap_err().to_string();
    let left = number(&said, "that an item takes, ");
    let over = number(&said, "would take ") - (number(&said, "and of the ") - left);
    let set = async |bytes: usize| hash.set([("1", "x".repeat(bytes))]).await.unwrap();
    set(1_000 - over + 1).await;
    assert_eq!(hash.reshard(1).await.unwrap_err().kind(), ErrorKind::Full);
    set(1_000 - over).await;
    hash.reshard(1).await.unwrap();
    assert_eq!((hash.len().await.unwrap(), hash.shards()), (2, 1));
}

#[tokio::test]
async fn a_shard_that_one_alone_comes_into_may_be_as_full_as_that_was() {
    let store = small();
    let hash = ShardedHash::options().shards(1).dense(10).open_or_create(&store, "n").await.unwrap();
    hash.set([("3", "x".repeat(1_950))]).await.unwrap();
    hash.reshard(2).await.unwrap();
    assert_eq!(hash.get("3").await.unwrap().unwrap().len(), 1_950);
    hash.set([("13", "y".repeat(1_950))]).await.unwrap();
}

/// A shard has a longer key where there are more.
#[tokio::test]
async fn a_shard_that_is_full_to_the_last_byte_fits_under_a_longer_key() {
    let mut longer = 0;
    for nth in 0..40 {
        let (memory, store) = memory();
        // An item has its key in it, as on a server.
        let store = Shaped::over(&store, |profile| profile.item_bytes_max = 2_048);
        let hash = ShardedHash::options().shards(1).open_or_create(&store, "n").await.unwrap();
        let field = format!("{nth:017}");
        let mut bytes = 2_048;
        while hash.set([(&field, "x".repeat(bytes))]).await.is_err() {
            bytes -= 1;
        }
        hash.reshard(11).await.unwrap_or_else(|error| panic!("{field}: {error}"));
        assert_eq!(hash.get(&field).await.unwrap().unwrap().len(), bytes);
        assert_eq!(hash.set([(&field, "y".repeat(bytes))]).await.unwrap(), [false]);
        longer +=
            usize::from(contents(&memory).iter().any(|(key, shard)| key.ends_with(b"-10") && shard.len() > bytes));
    }
    assert!(longer > 0, "none came to the shard of the longer key");
}

async fn twenty(store: &StoreRef) -> Result<ShardedSet> {
    ShardedSet::options().shards(20).open_or_create(store, "n").await
}

/// The batches of a making in batches of eight: a look, three of six shards, one of the other two and the map, the manifest.
#[tokio::test]
async fn a_collection_of_more_shards_than_a_batch_takes_has_all_of_them_and_leaves_none_where_it_is_not_made() {
    let (memory, store) = memory();
    let small = Hooked::with_batches_of(&store, 8);
    small.refuse(6);
    let error = twenty(&small.shared()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert_eq!(memory.stats().items, 0, "{:?}", contents(&memory).keys());
    // Others are first.
    small.at(5, |store, batch| async move {
        twenty(&store).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let set = twenty(&small.shared()).await.unwrap();
    assert_eq!(memory.stats().items, 20 + 2, "{:?}", contents(&memory).keys());
    set.add((0..200).map(|member| member.to_string())).await.unwrap();
    assert_eq!(set.len().await.unwrap(), 200);
}

#[tokio::test]
async fn a_collection_made_in_small_batches_has_all_its_shards() {
    let (memory, store) = memory();
    let set = twenty(&Hooked::with_batches_of(&store, 8).shared()).await.unwrap();
    assert_eq!(memory.stats().items, 20 + 2, "{:?}", contents(&memory).keys());
    set.add((0..200).map(|member| member.to_string())).await.unwrap();
    assert_eq!(set.len().await.unwrap(), 200);
}

#[tokio::test]
async fn a_store_whose_items_take_1024_bytes_has_room_for_shards() {
    let (memory, store) = memory();
    let mut said = String::new();
    for item_bytes_max in 1_000.. {
        let shaped = Shaped::over(&store, |profile| profile.item_bytes_max = item_bytes_max);
        match ShardedSet::options().shards(1).open_or_create(&shaped, "n").await {
            Ok(_) => {
                let all = contents(&memory);
                let shard = all.keys().find(|key| key.ends_with(b"-0")).expect("a shard");
                // The last that there can be is called 65534.
                assert_eq!(shaped.profile().value_bytes_max(shard.len() + 4), 1_024);
                break;
            }
            Err(error) => said = error.to_string(),
        }
    }
    assert!(said.contains("sharded set \"n\" needs items of 1024 bytes"), "{said}");
}
