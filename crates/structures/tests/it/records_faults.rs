//! Packed records on a store that fails, or loses, in the middle of a call.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_core::native::{Native, NativeReply};
use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Replies, Reply, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::records::{Schema, Value};
use larder_structures::{Name, PackedRecords, registry};
use tokio::sync::Notify;

use crate::records::{IN_SHARD_1, evict, is_lost, one_a_shard, records, set, stores};
use crate::support::hooked::{Hooked, fail};
use crate::support::steady::metered;

async fn key_of(store: &StoreRef, index: &str) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new("users").unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.users.r.{:016x}.{index}", manifest.generation)).unwrap()
}

fn is_native(store: &StoreRef) -> bool {
    !store.profile().natives.is_empty()
}

/// The bytes of a shard; none where it is not there.
async fn bytes_of(store: &StoreRef, shard: u32) -> Bytes {
    let key = key_of(store, &format!("s{shard}")).await;
    if !is_native(store) {
        return store.get(key).await.unwrap().map(|item| item.value).unwrap_or_default();
    }
    let read = Op::native(key, Native::BitsRead { offset_bytes: 0, len_bytes: 1_000 });
    let Some(NativeReply::Bytes(bytes)) = store.run_one(Ctx::default(), read).await.unwrap().into_native() else {
        panic!("bits are read as bytes");
    };
    bytes
}

/// The first ops of a batch, and the rest.
fn split(batch: &Batch, at: usize) -> (Batch, Batch) {
    (batch.iter().take(at).cloned().collect(), batch.iter().skip(at).cloned().collect())
}

fn told(kind: ErrorKind, effect: Effect) -> larder_core::Result<Reply> {
    Err(Error::new(kind, "as the store says").effect(effect))
}

#[tokio::test]
async fn a_set_of_two_shards_of_which_one_was_refused_is_unknown() {
    let hooked = Hooked::new(&(Arc::new(MemoryStore::new()) as StoreRef));
    let records = records(&hooked.shared()).await;
    let ids = one_a_shard(2);
    for &id in &ids {
        set(&records, id, 1).await.unwrap();
    }
    // Both are read, then both are written.
    hooked.at(2, |store, batch| async move {
        let (first, rest) = split(&batch, 1);
        let mut replies = store.run(Ctx::default(), first).await;
        replies.extend(fail(&rest, Effect::NotApplied));
        replies
    });
    let fields = [("visits", Value::Uint(9))];
    let error = records.set_many(ids.iter().map(|&id| (id, &fields[..]))).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
    assert_eq!(records.get_many(&ids).await.unwrap(), [[Value::Uint(9)], [Value::Uint(1)]]);
}

/// Of a few records only their bytes are read, behind what the shard says of itself.
#[tokio::test]
async fn a_shard_that_goes_while_parts_of_it_are_read_is_lost() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    let records = records(&hooked.shared()).await;
    set(&records, 7, 8).await.unwrap();
    hooked.at(1, |store, batch| async move {
        assert_eq!(batch.len(), 2);
        let (head, part) = split(&batch, 1);
        let mut replies = store.run(Ctx::default(), head).await;
        evict(&store, 0).await;
        replies.extend(store.run(Ctx::default(), part).await);
        replies
    });
    is_lost(records.get(7).await);
}

/// A shard may be there without any record that was set: its maker died, or could not write.
#[tokio::test]
async fn a_shard_in_which_nothing_was_set_does_not_raise_the_highest_id() {
    let hooked = Hooked::new(&(Arc::new(MemoryStore::new()) as StoreRef));
    let records = records(&hooked.shared()).await;
    for (id, highest) in [(IN_SHARD_1, None), (3 * IN_SHARD_1, Some(3))] {
        // It looks at the list, makes the shard, lists it, looks again, and reads it: then it may not write.
        hooked.refuse(6);
        set(&records, id, 1).await.unwrap_err();
        assert_eq!(records.highest().await.unwrap(), highest);
        set(&records, 3, 1).await.unwrap();
        assert_eq!(records.highest().await.unwrap(), Some(3));
    }
}

#[tokio::test]
async fn no_more_than_two_mib_of_shards_are_asked_for_at_once() {
    let counting = metered(Arc::new(MemoryStore::new()));
    let store: StoreRef = Arc::new(counting.clone());
    let options = PackedRecords::options().schema(Schema::parse(["n:u32"]).unwrap()).shard_bytes(512 << 10);
    let records = options.open_or_create(&store, "n").await.unwrap();
    let per_shard = (records.id_max() + 1) / 32_768;
    let ids: Vec<u64> = (0..8).map(|shard| 5 + shard * per_shard).collect();
    let fields = [("n", Value::Uint(9))];
    for is_made in [false, true] {
        let before = counting.counts();
        records.set_many(ids.iter().map(|&id| (id, &fields[..]))).await.unwrap();
        let spent = counting.counts().since(&before).round_trips;
        assert!(!is_made || spent == 2 * 2, "a read and a write for each four shards, not {spent}");
    }
    let before = counting.counts();
    assert_eq!(records.get_many(&ids).await.unwrap(), vec![[Value::Uint(9)]; 8]);
    assert_eq!(counting.counts().since(&before).round_trips, 2, "one for each four shards");
}

#[tokio::test]
async fn a_shard_whose_making_was_not_answered_is_used_where_it_is_there() {
    for store in stores() {
        let hooked = Hooked::new(&store);
        let records = records(&hooked.shared()).await;
        // It looks at the list, then makes the shard and reads what that says of itself.
        hooked.at(2, |store, batch| async move {
            let mut replies = store.run(Ctx::default(), batch).await;
            replies[0] = told(ErrorKind::Unavailable, Effect::Unknown);
            replies
        });
        set(&records, 7, 8).await.unwrap();
        assert_eq!(records.get(7).await.unwrap(), [Value::Uint(8)]);
    }
}

#[tokio::test]
async fn a_store_without_room_for_a_shard_says_so_and_nothing_was_set() {
    for kind in [ErrorKind::Full, ErrorKind::BadInput] {
        for store in stores() {
            let hooked = Hooked::new(&store);
            let records = records(&hooked.shared()).await;
            hooked.at(2, move |store, batch| async move {
                let (_, look) = split(&batch, 1);
                let mut replies = Replies::new();
                replies.push(told(kind, Effect::NotApplied));
                replies.extend(store.run(Ctx::default(), look).await);
                replies
            });
            let error = set(&records, 7, 8).await.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (kind, Effect::NotApplied), "{error}");
            assert_eq!(records.get(7).await.unwrap(), [Value::Uint(0)]);
            set(&records, 7, 8).await.unwrap();
        }
    }
}

/// Somebody has made it again and not listed it yet, or died before: to everybody the one that is listed is gone.
#[tokio::test]
async fn a_shard_of_another_incarnation_than_the_one_that_is_listed_is_lost() {
    for store in stores() {
        let knows = records(&store).await;
        set(&knows, 7, 8).await.unwrap();
        let mut other = bytes_of(&store, 0).await.to_vec();
        evict(&store, 0).await;
        other[7] ^= 1;
        let key = key_of(&store, "s0").await;
        let make = match is_native(&store) {
            true => Op::native(key, Native::BitsMake { value: other.into() }),
            false => Op::put(key, PutMode::Add, other, Ttl::Never),
        };
        store.run_one(Ctx::default(), make).await.unwrap();
        for handle in [&records(&store).await, &knows] {
            is_lost(handle.get(7).await);
            is_lost(set(handle, 8, 9).await);
            is_lost(handle.aggregate_ids(&["visits"], &[7]).await);
        }
    }
}

/// What it made for a list that is gone it removes once, and then no more.
#[tokio::test]
async fn a_shard_that_could_not_be_listed_is_removed_once() {
    for store in stores() {
        let counting = metered(store.clone());
        let hooked = Hooked::new(&(Arc::new(counting.clone()) as StoreRef));
        let records = records(&hooked.shared()).await;
        let list = key_of(&store, "0").await;
        hooked.at(2, |store, batch| async move {
            assert!(store.delete(list).await.unwrap());
            store.run(Ctx::default(), batch).await
        });
        is_lost(set(&records, 7, 8).await);
        assert!(bytes_of(&store, 0).await.is_empty(), "it was made, and nobody would find it");
        let before = counting.counts();
        is_lost(records.get(7).await);
        assert_eq!(counting.counts().since(&before).round_trips, 2, "the shard, the list");
    }
}

/// The list goes while a shard is made, and a look beside that removes what is not there yet; then it is made, and `at_listing` is what becomes of its listing.
async fn make_beside_a_removal<F>(
    store: &StoreRef,
    at_listing: impl FnOnce(StoreRef, Batch) -> F + Send + 'static,
) -> (PackedRecords, larder_core::Result<()>)
where
    F: Future<Output = Replies> + Send + 'static,
{
    let hooked = Hooked::new(store);
    let records = records(&hooked.shared()).await;
    let list = key_of(store, "0").await;
    let [missed, listing] = [0; 2].map(|_| Arc::new(Notify::new()));
    let beside = Arc::new(Mutex::new(None));
    // The list is looked at, the shard made; beside it the shard is read, the list looked at, the shard removed.
    hooked.at(2, {
        let (missed, beside, reader) = (missed.clone(), beside.clone(), records.clone());
        |store, batch| async move {
            assert!(store.delete(list).await.unwrap());
            *beside.lock().unwrap() = Some(tokio::spawn(async move { reader.get(7).await }));
            missed.notified().await;
            store.run(Ctx::default(), batch).await
        }
    });
    hooked.at(5, {
        let listing = listing.clone();
        |store, batch| async move {
            let replies = store.run(Ctx::default(), batch).await;
            missed.notify_one();
            listing.notified().await;
            replies
        }
    });
    hooked.at(6, |store, batch| async move {
        listing.notify_one();
        let beside = beside.lock().unwrap().take().unwrap();
        is_lost(beside.await.unwrap());
        at_listing(store, batch).await
    });
    let outcome = set(&records, 7, 8).await;
    (records, outcome)
}

#[tokio::test]
async fn a_shard_that_a_look_beside_its_making_missed_is_removed_by_the_next() {
    for store in stores() {
        let full = |_, batch: Batch| async move {
            batch.iter().map(|_| told(ErrorKind::Full, Effect::NotApplied)).collect::<Replies>()
        };
        let (records, outcome) = make_beside_a_removal(&store, full).await;
        let error = outcome.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
        assert!(!bytes_of(&store, 0).await.is_empty(), "it was made");
        is_lost(records.get(7).await);
        assert!(bytes_of(&store, 0).await.is_empty(), "nobody would find it");
    }
}

#[tokio::test]
async fn a_shard_that_a_look_beside_its_making_missed_is_removed_by_its_maker_who_cannot_list_it() {
    for store in stores() {
        let counting = metered(store.clone());
        let counted: StoreRef = Arc::new(counting.clone());
        let run = |store: StoreRef, batch| async move { store.run(Ctx::default(), batch).await };
        let (records, outcome) = make_beside_a_removal(&counted, run).await;
        is_lost(outcome);
        assert!(bytes_of(&store, 0).await.is_empty(), "it was made, and nobody would find it");
        let before = counting.counts();
        is_lost(records.get(7).await);
        assert_eq!(counting.counts().since(&before).round_trips, 2, "the shard, the list");
    }
}

/// Its maker stops waiting for it before it is there.
#[tokio::test]
async fn a_shard_that_a_look_beside_its_making_missed_is_removed_though_its_maker_stopped_waiting() {
    for store in stores() {
        let hooked = Hooked::new(&store);
        let records = records(&hooked.shared()).await;
        let (list, reader) = (key_of(&store, "0").await, records.clone());
        let made = Arc::new(Notify::new());
        hooked.at(2, {
            let made = made.clone();
            |store, batch| async move {
                assert!(store.delete(list).await.unwrap());
                is_lost(reader.get(7).await);
                _ = store.run(Ctx::default(), batch).await;
                made.notify_one();
                std::future::pending().await
            }
        });
        tokio::select! {
            _ = set(&records, 7, 8) => panic!("it is not answered"),
            () = made.notified() => {}
        }
        assert!(!bytes_of(&store, 0).await.is_empty(), "it was made");
        is_lost(records.get(7).await);
        assert!(bytes_of(&store, 0).await.is_empty(), "nobody would find it");
    }
}
