use larder_core::{ManualClock, StoreExt, StoreRef};

use super::*;
use crate::answering_tests::Answering;
use crate::manifest::Kind;
use crate::name::Name;
use crate::sharded::ShardedSortedSet;
use crate::sharded::make::Settings;

/// A handle of a set of one shard, whose clock is right, or stands long before.
async fn handle(store: &StoreRef, is_behind: bool) -> ShardedSortedSet {
    let settings = Settings { shards: Some(1), kept: Some(1), ..Settings::default() };
    let name = Name::new("n").unwrap();
    let mut core = settings.open(store, &name, Kind::ShardedSortedSet, true).await.unwrap();
    if is_behind {
        core.clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    }
    ShardedSortedSet(Arc::new(core))
}

async fn top(set: &ShardedSortedSet) -> Bytes {
    set.top(1).await.unwrap().remove(0).0
}

/// They were some versions further than what the shard has seen: what is begun anew is beyond that, though no clock says so.
#[tokio::test]
async fn who_holds_ends_that_were_lost_knows_less_than_what_one_with_a_slow_clock_begins_anew() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let holds = handle(&store, false).await;
    holds.set([("a", 100.0), ("b", 90.0), ("c", 80.0), ("d", 50.0), ("e", 2.0), ("f", 1.0)]).await.unwrap();
    holds.remove(["a"]).await.unwrap();
    let lost = holds.0.keeper.held().unwrap().ends.version;
    store.delete(holds.0.ends_cell().unwrap().key).await.unwrap();
    let slow = handle(&store, true).await;
    assert_eq!(top(&slow).await, "b");
    let begun = slow.0.keeper.held().unwrap().ends.version;
    assert!(begun > lost + AHEAD / 2, "{begun} behind {lost}");
    assert_eq!(holds.set([("m", 85.0)]).await.unwrap(), [true]);
    let fresh = handle(&store, false).await;
    assert_eq!(fresh.remove(["b"]).await.unwrap(), [true]);
    for reader in [&holds, &slow, &fresh] {
        assert_eq!(top(reader).await, "m");
    }
}

/// Ends are decoded where their bytes are new to the handle, and not each time that they are looked at, or written by it.
#[tokio::test]
async fn ends_of_the_same_bytes_are_decoded_once() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let (one, other) = (handle(&store, false).await, handle(&store, false).await);
    one.set([("a", 1.0)]).await.unwrap();
    let written = one.0.keeper.held().unwrap();
    assert_eq!(top(&one).await, "a");
    let read = one.0.read_ends(Ctx::default()).await.unwrap();
    assert!(Arc::ptr_eq(&written.ends, &read.ends));
    other.set([("b", 2.0)]).await.unwrap();
    let later = one.0.read_ends(Ctx::default()).await.unwrap();
    assert!(!Arc::ptr_eq(&read.ends, &later.ends));
    assert_eq!(top(&one).await, "b");
    let decoded = Ends::decode(&later.value).unwrap();
    assert_eq!((&decoded, decoded.version), (&*later.ends, later.ends.version));
}

/// What others have written comes back with the write that they were before.
#[tokio::test]
async fn who_is_beaten_at_the_ends_is_told_what_is_there_in_one_round_trip() {
    let memory: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let answering = Answering::over(&memory);
    let store = answering.shared();
    let (one, other) = (handle(&store, false).await, handle(&store, false).await);
    one.set([("a", 1.0)]).await.unwrap();
    let held = one.0.keeper.held().unwrap();
    other.set([("b", 2.0)]).await.unwrap();
    answering.asked();
    let next = held.ends.with(&Records::from([(Bytes::from("a"), None)]), 2);
    let (landed, now) = one.0.replace_ends(Ctx::default(), &held, next).await.unwrap();
    assert!(!landed && now.ends.version > held.ends.version, "{now:?}");
    assert_eq!(answering.asked().len(), 1);
}
