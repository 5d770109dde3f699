//! Making and dropping structures where replies are lost and others come in between.

use std::sync::Arc;

use bytes::Bytes;
use larder_core::{
    Batch, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Replies, Reply, StoreExt, StoreRef, Ttl, Verb, Want,
};
use larder_store_memory::MemoryStore;
use larder_structures::lock::Lock;
use larder_structures::{Counter, ShardedSortedSet, UniqueVisitors};
use larder_structures::{Kind, Name, Set, registry};

use crate::counter::support::data_key;
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, fail};
use crate::support::natives::{Held, Natives};
use crate::support::probe::shard_key;
use crate::support::sieve::Sieve;
use crate::support::steady::metered;

fn name() -> Name {
    Name::new("s").unwrap()
}

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn drop_set(store: &StoreRef) -> larder_core::Result<Option<larder_structures::Manifest>> {
    registry::drop_structure(store, Ctx::default(), &name()).await
}

/// The keys of the shards that a batch makes.
fn keys(batch: &Batch) -> Vec<Key> {
    batch.iter().map(|op| op.key.clone()).collect()
}

async fn is_there(store: &StoreRef, key: &Key) -> bool {
    let reply = store.run_one(Ctx::default(), Op::get(key.clone(), Want::empty())).await.unwrap();
    reply != Reply::Miss
}

#[tokio::test]
async fn what_is_dropped_while_its_creation_waits_for_a_reply_is_made_anew_with_its_data() {
    let store = memory();
    let hooked = Hooked::new(&store);
    // After a look and the data: the manifest.
    hooked.at(3, |store, batch| async move {
        _ = store.run(Ctx::default(), batch.clone()).await;
        drop_set(&store).await.unwrap().unwrap();
        fail(&batch, Effect::Unknown)
    });
    Set::open_or_create(&hooked.shared(), "s").await.unwrap().add(["a"]).await.unwrap();
    assert!(Set::open(&store, "s").await.unwrap().has("a").await.unwrap());
}

#[tokio::test]
async fn a_manifest_that_was_lost_on_the_way_is_sent_again() {
    let store = memory();
    let hooked = Hooked::new(&store);
    hooked.at(3, |_, batch| async move { fail(&batch, Effect::Unknown) });
    Set::open_or_create(&hooked.shared(), "s").await.unwrap().add(["a"]).await.unwrap();
    assert!(Set::open(&store, "s").await.unwrap().has("a").await.unwrap());
}

#[tokio::test]
async fn while_it_is_unknown_whether_a_manifest_landed_its_data_stay_and_the_error_says_so() {
    for refused in [&[4, 5][..], &[4, 6, 8, 10], &[4, 5, 6, 7, 8, 9, 10]] {
        let store = memory();
        let hooked = Hooked::new(&store);
        for nth in refused {
            hooked.refuse(*nth);
        }
        // After a look and the data: the manifest, which lands.
        hooked.lose_replies(3);
        if let Err(error) = Set::open_or_create(&hooked.shared(), "s").await {
            assert!(error.is_unknown(), "{refused:?}: {error}");
        }
        Set::open(&store, "s").await.unwrap().add(["a"]).await.unwrap();
    }
}

#[tokio::test]
async fn data_of_a_manifest_that_never_landed_are_removed() {
    let foreign = |store: StoreRef| async move {
        let key = name().manifest_key().unwrap();
        store.put(key, PutMode::Set, "foreign", Ttl::Never).await.unwrap();
    };
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    for refuses in [true, false] {
        let store = memory();
        let hooked = Hooked::new(&store);
        let seen = made.clone();
        hooked.at(2, move |store, batch| async move {
            *seen.lock().unwrap() = keys(&batch);
            store.run(Ctx::default(), batch).await
        });
        if refuses {
            hooked.refuse(3);
        } else {
            hooked.at(3, move |store, batch| async move {
                foreign(store.clone()).await;
                store.run(Ctx::default(), batch).await
            });
        }
        let error = Set::options().shards(3).open_or_create(&hooked.shared(), "s").await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::NotApplied);
        let made = made.lock().unwrap().clone();
        assert_eq!(made.len(), 3);
        for key in made {
            assert!(!is_there(&store, &key).await, "{key:?} is left, {error}");
        }
    }
}

#[tokio::test]
async fn of_two_that_create_the_loser_removes_its_data_and_gets_what_the_winner_made() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let made = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = made.clone();
    hooked.at(2, move |store, batch| async move {
        *seen.lock().unwrap() = keys(&batch);
        let replies = store.run(Ctx::default(), batch).await;
        Set::open_or_create(&store, "s").await.unwrap().add(["winner"]).await.unwrap();
        replies
    });
    let set = Set::open_or_create(&hooked.shared(), "s").await.unwrap();
    assert!(set.has("winner").await.unwrap());
    let made = made.lock().unwrap().clone();
    assert!(!is_there(&store, &made[0]).await);
}

#[tokio::test]
async fn a_drop_whose_token_died_with_its_connection_goes_on() {
    let store = memory();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    let hooked = Hooked::new(&store);
    // After a look and the data: the manifest, by a token of the connection before.
    hooked.at(3, |_, _| async { Replies::from_iter([Ok(Reply::Exists)]) });
    assert_eq!(drop_set(&hooked.shared()).await.unwrap().unwrap().kind, Kind::Set);
    assert!(drop_set(&store).await.unwrap().is_none());
    assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_drop_whose_last_reply_is_lost_looks_what_became_of_it() {
    for lands in [true, false] {
        let store = memory();
        Set::open_or_create(&store, "s").await.unwrap();
        let hooked = Hooked::new(&store);
        if lands {
            hooked.lose_replies(3);
        } else {
            hooked.at(3, |_, batch| async move { fail(&batch, Effect::Unknown) });
        }
        assert!(drop_set(&hooked.shared()).await.unwrap().is_some());
        assert!(drop_set(&store).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn a_drop_that_cannot_tell_says_unknown() {
    let store = memory();
    Set::open_or_create(&store, "s").await.unwrap();
    let hooked = Hooked::new(&store);
    hooked.lose_replies(3);
    hooked.refuse(4);
    let error = drop_set(&hooked.shared()).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(drop_set(&store).await.unwrap().is_none());
}

#[tokio::test]
async fn what_was_made_again_while_it_was_dropped_is_left_alone() {
    let store = memory();
    Set::open_or_create(&store, "s").await.unwrap();
    let hooked = Hooked::new(&store);
    hooked.at(3, |store, batch| async move {
        drop_set(&store).await.unwrap().unwrap();
        Set::open_or_create(&store, "s").await.unwrap().add(["new"]).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let error = drop_set(&hooked.shared()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(Set::open(&store, "s").await.unwrap().has("new").await.unwrap());
}

#[tokio::test]
async fn a_lock_that_is_renewed_while_it_is_dropped_is_dropped() {
    let store = memory();
    let guard = Lock::open(&store, "s").await.unwrap().try_acquire().await.unwrap().unwrap();
    let hooked = Hooked::new(&store);
    let guard = Arc::new(guard);
    let renews = guard.clone();
    // After a look: the record, by its token.
    hooked.at(2, move |store, batch| async move {
        renews.renew().await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(drop_set(&hooked.shared()).await.unwrap().unwrap().kind, Kind::Lock);
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn more_keys_than_a_batch_takes_are_dropped_in_several() {
    let store = memory();
    let set = Set::options().shards(70).open_or_create(&store, "s").await.unwrap();
    set.add((0..1_000u32).map(u32::to_be_bytes)).await.unwrap();
    let small = Hooked::with_batches_of(&store, 16).shared();
    assert!(drop_set(&small).await.unwrap().is_some());
    assert!(drop_set(&store).await.unwrap().is_none());

    // A manifest that no release wrote: 65,535 shards with 255 copies each.
    let manifest = [&b"LRD\x01\x04\x01\xff\xff\x88\x77\x66\x55\x44\x33\x22\x11\xff"[..], b"\x01"].concat();
    let key = name().manifest_key().unwrap();
    store.put(key, PutMode::Set, Bytes::from(manifest), Ttl::Never).await.unwrap();
    assert!(drop_set(&store).await.unwrap().is_some());
}

/// What a store refused at the making of a structure is told at once; what may have been written is written again.
#[tokio::test]
async fn a_making_goes_on_where_it_is_in_doubt_and_only_there() {
    let store = memory();
    let hooked = Hooked::new(&store);
    hooked.refuse(2);
    let error = Set::open_or_create(&hooked.shared(), "refused").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!error.is_unknown(), "{error}");
    let hooked = Hooked::new(&store);
    hooked.lose_replies(2);
    Set::open_or_create(&hooked.shared(), "in doubt").await.unwrap();
}

/// What was not sent is not tried again behind the caller's back: nothing is gone, and the error says so.
#[tokio::test]
async fn a_drop_that_the_store_refuses_leaves_the_structure_as_it_was() {
    let store = memory();
    let guard = Lock::open(&store, "s").await.unwrap().try_acquire().await.unwrap().unwrap();
    let hooked = Hooked::new(&store);
    // After a look: the record.
    hooked.refuse(2);
    let error = drop_set(&hooked.shared()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    guard.renew().await.unwrap();
}

#[tokio::test]
async fn a_drop_removes_a_bit_field_by_its_mark() {
    let items = memory();
    let natives = Natives::over(&items);
    Counter::options().fast().open_or_create(&natives.shared(), "s").await.unwrap();
    let key = data_key(&items, "s", 'n', 0).await;
    let ours = natives.held(&key).unwrap();
    let theirs = Held::Bits(b"another program's".to_vec());
    natives.hold(&key, theirs.clone());
    let error = drop_set(&natives.shared()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert_eq!(natives.held(&key), Some(theirs));
    natives.hold(&key, ours);
    assert_eq!(drop_set(&natives.shared()).await.unwrap().unwrap().kind, Kind::FastCounter);
    assert_eq!(natives.held(&key), None);
}

/// The head of a period says which sets it has: while one of them cannot be removed, the head stays for the next drop.
#[tokio::test]
async fn a_drop_that_meets_another_programs_set_keeps_what_names_the_others() {
    let memory = Arc::new(MemoryStore::new());
    let items: StoreRef = memory.clone();
    UniqueVisitors::open_or_create(&items, "s").await.unwrap().add(["ann"]).await.unwrap();
    let manifest_key = name().manifest_key().unwrap();
    let mut manifest = items.get(manifest_key.clone()).await.unwrap().unwrap().value.to_vec();
    // The same, in sets of the store's own.
    manifest[17 + 23] = 3;
    items.put(manifest_key, PutMode::Set, manifest, Ttl::Never).await.unwrap();
    let natives = Natives::over(&items);
    let mut shards = Vec::new();
    let mut heads = Vec::new();
    memory.each(|key, _| {
        let index = key.rsplit(|byte| *byte == b'.').next().unwrap();
        let key = Key::new(Bytes::copy_from_slice(key)).unwrap();
        match (index.starts_with(b"h"), index.contains(&b'-')) {
            (true, _) => heads.push(key),
            (_, true) => shards.push(key),
            _ => {}
        }
    });
    assert!(heads.len() == 1 && !shards.is_empty(), "{heads:?}, {shards:?}");
    let ours = Held::set(["-2147483648"]);
    for shard in &shards {
        assert!(items.delete(shard.clone()).await.unwrap());
        natives.hold(shard, ours.clone());
    }
    let theirs = Held::set(["1"]);
    natives.hold(&shards[0], theirs.clone());
    let error = drop_set(&natives.shared()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert!(is_there(&items, &heads[0]).await);
    assert_eq!(natives.held(&shards[0]), Some(theirs));
    natives.hold(&shards[0], ours);
    assert!(drop_set(&natives.shared()).await.unwrap().is_some());
    assert_eq!((memory.stats().items, natives.held(&shards[0])), (0, None));
}

#[tokio::test]
async fn what_stands_in_the_place_of_a_manifest_is_listed_with_its_error_and_what_the_store_fails_at_is_an_error() {
    for (kind, effect, is_listed) in [
        (ErrorKind::LayoutMismatch, Effect::NotApplied, true),
        (ErrorKind::BadInput, Effect::NotApplied, true),
        (ErrorKind::LayoutMismatch, Effect::Unknown, false),
        (ErrorKind::Unavailable, Effect::NotApplied, false),
        (ErrorKind::Unavailable, Effect::Unknown, false),
    ] {
        let store = memory();
        Set::open_or_create(&store, "s").await.unwrap();
        let theirs = Name::new("theirs").unwrap();
        let (key, answering) = (theirs.manifest_key().unwrap(), Answering::new(&store));
        answering.by(move |op| (op.key == key).then(|| Err(Error::new(kind, "as the test wants").effect(effect))));
        let names = vec![theirs.clone(), name()];
        match registry::manifests(&answering.shared(), Ctx::default(), names).await {
            Ok(all) => {
                assert!(is_listed, "{kind:?}, {effect:?}: {all:?}");
                assert_eq!(all.iter().map(|listed| &listed.name).collect::<Vec<_>>(), [&theirs, &name()]);
                assert_eq!(all[0].manifest.as_ref().unwrap_err().kind(), kind);
                assert_eq!(all[1].manifest.as_ref().unwrap().kind, Kind::Set);
            }
            Err(error) => assert!(!is_listed && error.kind() == kind, "{kind:?}, {effect:?}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_drop_that_cannot_remove_the_manifest_of_what_has_lost_its_data_says_unknown() {
    let store = memory();
    Set::open_or_create(&store, "s").await.unwrap();
    let hooked = Hooked::new(&store);
    // After a look and the data: the manifest.
    hooked.refuse(3);
    let error = drop_set(&hooked.shared()).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    assert!(drop_set(&store).await.unwrap().is_some());
}

#[tokio::test]
async fn a_drop_that_has_removed_a_part_of_the_data_or_may_have_says_unknown() {
    // Of the second shard: it is removed, may be, or is not.
    for (second, effect) in [
        (None, Effect::Unknown),
        (Some(Effect::Unknown), Effect::Unknown),
        (Some(Effect::NotApplied), Effect::NotApplied),
    ] {
        let store = memory();
        Set::options().shards(2).open_or_create(&store, "s").await.unwrap();
        let first = shard_key(&store, "s", 0).await;
        let answering = Answering::new(&store);
        answering.by(move |op| {
            let effect = if op.key == first { Some(Effect::NotApplied) } else { second };
            let is_delete = matches!(op.verb, Verb::Delete { .. });
            effect
                .filter(|_| is_delete)
                .map(|effect| Err(Error::new(ErrorKind::Unavailable, "as the test wants").effect(effect)))
        });
        let error = drop_set(&answering.shared()).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, effect), "{second:?}: {error}");
        assert!(drop_set(&store).await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_drop_that_nobody_is_in_the_way_of_takes_no_time_and_one_of_nothing_takes_a_round_trip() {
    let counting = metered(memory());
    let (store, begun) = (Arc::new(counting.clone()) as StoreRef, tokio::time::Instant::now());
    Set::open_or_create(&store, "s").await.unwrap();
    for (is_there, round_trips) in [(true, 3), (false, 1)] {
        let before = counting.counts();
        assert_eq!(drop_set(&store).await.unwrap().is_some(), is_there);
        assert_eq!(counting.counts().since(&before).round_trips, round_trips, "was there: {is_there}");
    }
    assert!(begun.elapsed().is_zero(), "it waited for {:?}", begun.elapsed());
}

/// Each delete goes by itself, so that the map, which others wrote meanwhile, is not in the last batch.
#[tokio::test(start_paused = true)]
async fn a_drop_in_many_batches_deletes_once_more_what_others_made_meanwhile() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let other = ShardedSortedSet::options().shards(2).open_or_create(&store, "s").await.unwrap();
    let small = Hooked::with_batches_of(&store, 1);
    // After the manifest and the map: the first shard.
    small.at(3, |store, batch| async move {
        other.reshard(5).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(drop_set(&small.shared()).await.unwrap().unwrap().kind, Kind::ShardedSortedSet);
    assert_eq!(memory.stats().items, 0);
}

#[tokio::test]
async fn a_drop_asks_for_no_copies_where_there_is_no_second_server() {
    let store = memory();
    // A set with a copy on a second server, in a store that has one.
    let manifest = b"LRD\x01\x04\x01\x01\x00\x88\x77\x66\x55\x44\x33\x22\x11\x02\x01";
    let key = name().manifest_key().unwrap();
    store.put(key, PutMode::Set, Bytes::from_static(manifest), Ttl::Never).await.unwrap();
    let nodes = store.profile().nodes;
    let checked = Sieve::answering(&store, move |_, op| {
        assert!(usize::from(op.route.rank) < nodes, "{op:?}");
        None
    });
    assert_eq!(drop_set(&checked).await.unwrap().unwrap().copies, 2);
    assert!(drop_set(&store).await.unwrap().is_none());
}
