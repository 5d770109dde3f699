//! The set through its handle: what it holds, what it costs, what it refuses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, Effect, ErrorKind, Key, PutMode, StoreExt, StoreRef, Ttl};
use larder_structures::{Name, Set, registry};

use crate::support::probe::{Probe, set_value, shard_key, sorted, value_of};

#[tokio::test]
async fn round_trips_are_as_documented() {
    let probe = Probe::new();
    let store = probe.shared();
    // Never dirty: what runs in the background would be counted, too.
    let set = Set::options().shards(7).dirtiness(1 << 40).open_or_create(&store, "s").await.unwrap();
    assert_eq!(probe.round_trips(), 3, "made");
    Set::open_or_create(&store, "s").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "opened or made");
    Set::open(&store, "s").await.unwrap();
    assert_eq!(probe.round_trips(), 1, "opened");
    for count in [2u32, 3, 1_000, 20_000] {
        set.add((0..count).map(u32::to_be_bytes)).await.unwrap();
        assert_eq!(probe.round_trips(), 1, "added {count}");
        set.remove((1..count).map(u32::to_be_bytes)).await.unwrap();
        assert_eq!(probe.round_trips(), 1, "removed {count}");
    }
    assert!(set.has(0u32.to_be_bytes()).await.unwrap());
    assert_eq!(probe.round_trips(), 1, "has");
    assert_eq!(set.members().await.unwrap().len(), 1);
    assert_eq!(probe.round_trips(), 1, "members");
    assert_eq!(set.stat().await.unwrap().members, 1);
    assert_eq!(probe.round_trips(), 1, "stat");
    set.add(["x"]).await.unwrap();
    probe.round_trips();
    set.compact().await.unwrap();
    assert_eq!(probe.round_trips(), 2, "compacted");
    set.compact().await.unwrap();
    assert_eq!(probe.round_trips(), 1, "nothing to compact");
    set.add(Vec::<Bytes>::new()).await.unwrap();
    assert_eq!(probe.round_trips(), 0, "nothing to add");
}

#[tokio::test]
async fn members_are_any_bytes() {
    let store = Probe::new().shared();
    let set = Set::open_or_create(&store, b"\x00 \xff").await.unwrap();
    let all: Vec<Bytes> = (0..=255u8).map(|byte| Bytes::copy_from_slice(&[byte])).collect();
    set.add(&all).await.unwrap();
    set.add([Bytes::new(), Bytes::from_static(b"+a -b \r\n")]).await.unwrap();
    let mut expected = all.clone();
    expected.extend([Bytes::new(), Bytes::from_static(b"+a -b \r\n")]);
    expected.sort();
    assert_eq!(sorted(&set).await, expected);
    assert!(set.has("").await.unwrap());
    set.compact().await.unwrap();
    assert_eq!(sorted(&set).await, expected);
    set.remove([""]).await.unwrap();
    assert!(!set.has("").await.unwrap());
}

#[tokio::test]
async fn the_largest_member_fits_and_can_be_removed_and_one_more_byte_is_refused() {
    let probe = Probe::small(20_000);
    let store = probe.shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    let largest = vec![b'x'; set.member_bytes_max()];
    let room_bytes = store.profile().value_bytes_max(shard_key(&store, "s", 0).await.as_bytes().len());
    assert_eq!(largest.len(), room_bytes - 2_904, "as documented");
    set.add([&largest]).await.unwrap();
    assert!(set.has(&largest).await.unwrap());
    probe.round_trips();
    // There is no room for the frame of the removal: the value is written anew.
    set.remove([&largest]).await.unwrap();
    assert_eq!(probe.round_trips(), 3);
    assert!(set.members().await.unwrap().is_empty());
    let error = set.add([vec![b'x'; largest.len() + 1]]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains(&format!("{} bytes; the limit on this store is", largest.len() + 1)), "{error}");
    let many = vec![vec![0u8; 100]; 200];
    let error = set.add(&many).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("20400 bytes in shard 0 of 1"), "{error}");
}

#[tokio::test]
async fn a_hundred_thousand_members_over_shards_cost_what_is_documented() {
    let store = Probe::new().shared();
    let set = Set::options().shards(16).open_or_create(&store, "s").await.unwrap();
    set.add((0..100_000u64).map(u64::to_be_bytes)).await.unwrap();
    let stat = set.stat().await.unwrap();
    assert_eq!((stat.members, stat.shards), (100_000, 16));
    // In a frame a shard: 8 bytes and 1 each, 17 a frame at most, 27 a shard.
    assert!(stat.bytes <= 100_000 * 9 + 16 * (17 + 27), "{stat:?}");
    let stat = set.compact().await.unwrap();
    assert_eq!(stat.bytes, 100_000 * 9 + 16 * (27 + 13));
    assert_eq!((stat.bytes, stat.stale_bytes), (stat.live_bytes, 0));
    assert_eq!(set.members().await.unwrap().len(), 100_000);
    assert!(set.has(99_999u64.to_be_bytes()).await.unwrap());
    assert!(!set.has(100_000u64.to_be_bytes()).await.unwrap());
    assert!(stat.shard_bytes_max >= 1 << 20, "{stat:?}");
}

#[tokio::test]
async fn what_is_not_there_or_is_something_else_is_told() {
    let store = Probe::new().shared();
    let error = Set::open(&store, "s").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Absent);
    assert!(error.to_string().contains("never created, or lost"), "{error}");
    Set::options().shards(2).open_or_create(&store, "s").await.unwrap();
    Set::options().shards(2).open(&store, "s").await.unwrap();
    let error = Set::options().shards(3).open_or_create(&store, "s").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("2 shards, not 3"), "{error}");
    for shards in [0, 1025] {
        let error = Set::options().shards(shards).open_or_create(&store, "t").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadInput);
        assert!(error.to_string().contains(&format!("not {shards}")), "{error}");
    }
    for name in [&b""[..], &[b'x'; 65]] {
        assert_eq!(Set::open_or_create(&store, name).await.unwrap_err().kind(), ErrorKind::BadInput);
    }
    // A manifest of another kind: byte 4 of it.
    let key = Name::new("s").unwrap().manifest_key().unwrap();
    let mut manifest = value_of(&store, &key).await.to_vec();
    manifest[4] = 2;
    set_value(&store, &key, manifest.into()).await;
    let error = Set::open_or_create(&store, "s").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("holds a counter, not a set"), "{error}");
    let tiny = Probe::small(1_000).shared();
    assert_eq!(Set::open_or_create(&tiny, "s").await.unwrap_err().kind(), ErrorKind::Unsupported);
    assert!(tiny.get(key).await.unwrap().is_none(), "nothing was written");
}

#[tokio::test]
async fn a_shard_that_is_gone_is_lost_and_never_made_again() {
    let store = Probe::new().shared();
    let set = Set::options().shards(2).open_or_create(&store, "s").await.unwrap();
    set.add((0..100u8).map(|byte| [byte])).await.unwrap();
    let gone = shard_key(&store, "s", 1).await;
    store.delete(gone.clone()).await.unwrap();
    for set in [set, Set::open(&store, "s").await.unwrap()] {
        let error = set.members().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("shard 1 of 2 is gone"), "{error}");
        let error = set.add((0..100u8).map(|byte| [byte])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("shard 1 of 2 failed, 1 others took the change"), "{error}");
        assert_eq!(error.known_effect(), Effect::Unknown, "a part of it took effect");
        assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(set.stat().await.unwrap_err().kind(), ErrorKind::Lost);
    }
    assert!(store.get(gone).await.unwrap().is_none());
}

#[tokio::test]
async fn a_set_that_was_dropped_is_lost_to_its_handles_and_another_when_made_again() {
    let store = Probe::new().shared();
    let old = Set::open_or_create(&store, "s").await.unwrap();
    old.add(["a"]).await.unwrap();
    registry::drop_structure(&store, Ctx::default(), &Name::new("s").unwrap()).await.unwrap().unwrap();
    let new = Set::open_or_create(&store, "s").await.unwrap();
    assert_eq!(old.add(["b"]).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(old.members().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(new.members().await.unwrap().is_empty());
}

#[tokio::test]
async fn foreign_bytes_in_a_shard_are_told() {
    let store = Probe::new().shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    set.add(["a"]).await.unwrap();
    let key = shard_key(&store, "s", 0).await;
    store.put(key.clone(), PutMode::Append, "+x ", Ttl::Never).await.unwrap();
    let error = set.members().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("offset"), "{error}");
    assert_eq!(set.has("a").await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    set_value(&store, &key, Bytes::from_static(b"42")).await;
    assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
}

#[tokio::test]
async fn a_full_set_says_so_takes_removals_and_then_members_again() {
    let store = Probe::small(12_000).shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    let member = |number: u32| format!("{number:0100}");
    let mut count = 0;
    let error = loop {
        match set.add([member(count)]).await {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(error.known_effect(), Effect::NotApplied);
    assert!(error.to_string().contains("more shards") && error.to_string().contains("at most 12"), "{error}");
    // Compacted on the way: as full of members as can be.
    let stat = set.stat().await.unwrap();
    assert!(stat.live_bytes + 101 > stat.shard_bytes_max, "{count}: {stat:?}");
    assert_eq!(set.members().await.unwrap().len(), count as usize);
    set.remove([member(0)]).await.unwrap();
    set.add([member(count)]).await.unwrap();
    assert_eq!(set.add([member(count + 1)]).await.unwrap_err().kind(), ErrorKind::Full);
    assert!(!set.has(member(0)).await.unwrap());
    assert!(set.has(member(count)).await.unwrap());
}

#[tokio::test]
async fn without_cas_it_works_until_it_is_full_and_says_why() {
    let store = Probe::without_cas(12_000).shared();
    let set = Set::options().dirtiness(10).open_or_create(&store, "s").await.unwrap();
    let error = loop {
        if let Err(error) = set.add([[b'x'; 100]]).await {
            break error;
        }
        assert_eq!(set.members().await.unwrap().to_vec(), [&[b'x'; 100][..]]);
    };
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(error.to_string().contains("cannot be compacted"), "{error}");
    assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_dirty_set_is_compacted_behind_a_read_and_behind_writes() {
    let probe = Probe::new();
    let store = probe.shared();
    let never = Set::options().dirtiness(1 << 40).open_or_create(&store, "s").await.unwrap();
    let set = Set::options().dirtiness(100).open(&store, "s").await.unwrap();
    never.add(["a", "b"]).await.unwrap();
    for _ in 0..4 {
        never.remove([[b'x'; 50]]).await.unwrap();
    }
    assert_eq!(sorted(&never).await, ["a", "b"]);
    assert!(never.stat().await.unwrap().stale_bytes > 200, "it is not dirty to this handle");
    probe.round_trips();
    assert_eq!(sorted(&set).await, ["a", "b"]);
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(set.stat().await.unwrap().stale_bytes, 0);
    assert_eq!(probe.round_trips(), 3, "read, compact, stat");

    // Writes alone: 16 times the dirtiness between two looks.
    for _ in 0..1_000 {
        set.add(["a"]).await.unwrap();
    }
    let bytes = value_of(&store, &shard_key(&store, "s", 0).await).await.len();
    assert!(bytes < 4_000, "{bytes}");
}

#[tokio::test]
async fn a_reader_is_never_held_up_by_a_compaction() {
    let probe = Probe::new();
    let store = probe.shared();
    let never = Set::options().dirtiness(1 << 40).open_or_create(&store, "s").await.unwrap();
    let set = Set::options().dirtiness(0).open(&store, "s").await.unwrap();
    for _ in 0..10 {
        never.remove([[b'x'; 50]]).await.unwrap();
    }
    probe.close_gate();
    probe.gate.add_permits(1);
    // The one permit is the read's; the compaction behind it waits at the gate.
    assert!(set.members().await.unwrap().is_empty());
    probe.open_gate();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(set.stat().await.unwrap().stale_bytes, 0);
}

#[tokio::test]
async fn a_value_that_went_back_is_rolled_back() {
    let store = Probe::new().shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    let other = Set::open(&store, "s").await.unwrap();
    let key = shard_key(&store, "s", 0).await;
    let empty = value_of(&store, &key).await;
    set.add(["a"]).await.unwrap();
    let one = value_of(&store, &key).await;
    set.add(["b"]).await.unwrap();

    // Own writes that were acknowledged, without ever having read.
    set_value(&store, &key, one.clone()).await;
    let error = set.members().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack);
    assert!(error.to_string().contains("write 2 was acknowledged and is gone"), "{error}");
    // A handle that saw nothing newer takes it as it is.
    assert_eq!(sorted(&other).await, ["a"]);
    // What was seen by reading.
    set_value(&store, &key, empty.clone()).await;
    assert_eq!(other.has("a").await.unwrap_err().kind(), ErrorKind::RolledBack);

    // Another epoch: compacted, then back.
    set_value(&store, &key, one.clone()).await;
    other.compact().await.unwrap();
    other.stat().await.unwrap();
    set_value(&store, &key, one).await;
    assert_eq!(other.stat().await.unwrap_err().kind(), ErrorKind::RolledBack);

    // Back, and then grown past what was seen by others: the own write is missed in the same epoch.
    let third = Set::options().open(&store, "s").await.unwrap();
    third.stat().await.unwrap();
    third.add(["c"]).await.unwrap();
    set_value(&store, &key, empty).await;
    let foreign = Set::open(&store, "s").await.unwrap();
    foreign.add([[b'x'; 500]]).await.unwrap();
    assert_eq!(third.members().await.unwrap_err().kind(), ErrorKind::RolledBack);
}

/// What others compacted says of everybody who wrote what it holds, as long as they are few: who is not among them wrote nothing that is in it.
#[tokio::test]
async fn a_value_that_went_back_to_before_all_writes_of_a_handle_and_was_compacted_since_is_rolled_back() {
    let store = Probe::new().shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    let key = shard_key(&store, "s", 0).await;
    let empty = value_of(&store, &key).await;
    set.add(["a"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["a"]);
    set_value(&store, &key, empty).await;
    let other = Set::open(&store, "s").await.unwrap();
    other.add(["b"]).await.unwrap();
    other.remove(["b"]).await.unwrap();
    other.compact().await.unwrap();
    other.add([[b'x'; 500]]).await.unwrap();
    let error = set.members().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack);
    assert!(error.to_string().contains("write 1 was acknowledged and is gone"), "{error}");
}

#[tokio::test]
async fn a_value_that_went_back_and_has_outgrown_what_was_seen_is_rolled_back() {
    for has_read in [true, false] {
        let store = Probe::new().shared();
        let writer = Set::open_or_create(&store, "s").await.unwrap();
        let reader = Set::open(&store, "s").await.unwrap();
        let key = shard_key(&store, "s", 0).await;
        writer.add(["a"]).await.unwrap();
        if has_read {
            writer.members().await.unwrap();
        }
        let older = value_of(&store, &key).await;
        writer.add(["lost"]).await.unwrap();
        assert_eq!(sorted(&reader).await, ["a", "lost"]);
        set_value(&store, &key, older).await;
        // The handle whose write is gone writes on, as one does that was not told.
        for member in ["b", "c", "d"] {
            writer.add([member]).await.unwrap();
        }
        let error = writer.members().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RolledBack);
        assert!(
            error.to_string().contains("write 2 was acknowledged and is gone, though later ones are there"),
            "{error}"
        );
        let error = reader.has("a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::RolledBack);
        assert!(error.to_string().contains("does not begin with the"), "{error}");
        // Not by reading again, either.
        assert_eq!(writer.members().await.unwrap_err().kind(), ErrorKind::RolledBack);
        let fresh = Set::open(&store, "s").await.unwrap();
        assert_eq!(sorted(&fresh).await, ["a", "b", "c", "d"]);
        // Compacted by one who does not know, it still shows to the one whose later write is not in the snapshot.
        fresh.compact().await.unwrap();
        assert_eq!(
            reader.has("a").await.map_err(|error| error.kind()),
            Ok(true),
            "outgrown and compacted: it cannot know"
        );
    }
}

#[tokio::test]
async fn concurrent_callers_of_a_handle_share_writes() {
    let probe = Probe::new();
    let store = probe.shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    probe.round_trips();
    let callers: Vec<_> = (0..500u32)
        .map(|number| {
            let set = set.clone();
            tokio::spawn(async move { set.add([number.to_be_bytes()]).await })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    let writes = probe.round_trips();
    assert!(writes <= 4, "{writes} round trips for 500 callers");
    assert_eq!(set.members().await.unwrap().len(), 500);
}

#[tokio::test]
async fn a_call_that_is_not_answered_in_time_is_unknown_and_the_next_one_goes_on() {
    let probe = Probe::new();
    let store = probe.shared();
    let set = Set::options().timeout(Duration::from_millis(50)).open_or_create(&store, "s").await.unwrap();
    probe.close_gate();
    let error = set.add(["a"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown));
    probe.open_gate();
    set.add(["b"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["b"]);
}

#[tokio::test]
async fn adds_that_are_cancelled_land_once_or_not_at_all_and_harm_nobody() {
    let probe = Probe::new();
    let store = probe.shared();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    for number in 0..200u32 {
        let add = set.add([number.to_be_bytes()]);
        let mut add = std::pin::pin!(add);
        // Polled a few times, then dropped: before it is sent, while it is under way, or done.
        for _ in 0..number % 4 {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(add.as_mut().poll(cx))).await;
            if polled.is_ready() {
                break;
            }
        }
    }
    set.add(["end"]).await.unwrap();
    let members = sorted(&set).await;
    assert!(members.contains(&Bytes::from_static(b"end")));
    // Never polled: never added.
    assert!(!members.contains(&Bytes::copy_from_slice(&0u32.to_be_bytes())));
    let mut unique = members.clone();
    unique.dedup();
    assert_eq!(unique, members);
}

#[tokio::test]
async fn handles_are_shared_between_threads_and_racing_creations_are_one() {
    fn assert_traits<T: Clone + Send + Sync + 'static>() {}
    assert_traits::<Set>();
    let store: StoreRef = Probe::new().shared();
    let makers: Vec<_> = (0..8u8)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move {
                let set = Set::options().open_or_create(&store, "s").await.unwrap();
                set.add([[number]]).await.unwrap();
            })
        })
        .collect();
    for maker in makers {
        maker.await.unwrap();
    }
    assert_eq!(Set::open(&store, "s").await.unwrap().members().await.unwrap().len(), 8);
    assert!(store.get(Key::new("s").unwrap()).await.unwrap().is_none());
}

#[test]
fn outside_a_runtime_a_change_is_an_error_and_no_panic() {
    let store: StoreRef = Arc::new(larder_store_memory::MemoryStore::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let binary = runtime.block_on(Set::open_or_create(&store, "s")).unwrap();
    drop(runtime);
    for set in [binary, Set::open_text(&store, "t").unwrap()] {
        let mut change = std::pin::pin!(set.add(["a"]));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(Err(error)) = change.as_mut().poll(&mut cx) else { panic!("it fails at once") };
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test]
async fn a_timeout_of_zero_is_refused() {
    let store = Probe::new().shared();
    let options = || Set::options().timeout(Duration::ZERO);
    for error in [
        options().open_or_create(&store, "s").await.unwrap_err(),
        options().open(&store, "s").await.unwrap_err(),
        options().open_text(&store, "s").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::BadInput);
    }
}
