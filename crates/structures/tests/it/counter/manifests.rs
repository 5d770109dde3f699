//! The manifest of a counter whose data stand on several servers: which copy of it counts, and which are made again.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Effect, ErrorKind, Key, Op, PutMode, Reply, Route, StoreExt, StoreRef, Ttl, Want};
use larder_structures::{Counter, Name, registry};

use crate::counter::fleet::{Fleet, Node};
use crate::counter::support::Meter;
use crate::support::hooked::{Hooked, fail};
use crate::support::steady::metered;

/// Three servers, and a counter with so many copies on them.
async fn counter_of(copies: u8) -> StoreRef {
    let store = Fleet::shared((0..3).map(|_| Node::new() as StoreRef));
    Counter::options().copies(copies).open_or_create(&store, "n").await.unwrap().add(1).await.unwrap();
    store
}

fn key() -> Key {
    Name::new("n").unwrap().manifest_key().unwrap()
}

fn at(rank: u8) -> Route {
    Route { with: None, rank }
}

/// What stands on the server of that rank.
async fn held(store: &StoreRef, rank: u8) -> Option<Bytes> {
    let get = Op::get(key(), Want::VALUE).routed(at(rank));
    store.run_one(Ctx::default(), get).await.unwrap().into_item().map(|item| item.value)
}

async fn hold(store: &StoreRef, rank: u8, value: impl Into<Bytes>) {
    let put = Op::put(key(), PutMode::Set, value.into(), Ttl::Never).routed(at(rank));
    assert_eq!(store.run_one(Ctx::default(), put).await.unwrap(), Reply::Stored);
}

async fn lose(store: &StoreRef, rank: u8) {
    let delete = Op::delete(key()).routed(at(rank));
    assert_eq!(store.run_one(Ctx::default(), delete).await.unwrap(), Reply::Deleted);
}

#[tokio::test]
async fn a_copy_on_another_machine_than_the_manifest_says_is_none() {
    let store = counter_of(2).await;
    let manifest = held(&store, 1).await.unwrap();
    hold(&store, 2, manifest.clone()).await;
    lose(&store, 0).await;
    lose(&store, 1).await;
    assert_eq!(Counter::open(&store, "n").await.unwrap_err().kind(), ErrorKind::Absent);
    // On one of its own it counts.
    hold(&store, 1, manifest).await;
    assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 1);
}

#[tokio::test]
async fn no_copy_is_made_beyond_those_that_the_manifest_says() {
    let store = counter_of(2).await;
    for lost in [None, Some(0), Some(1)] {
        if let Some(rank) = lost {
            lose(&store, rank).await;
        }
        Counter::open(&store, "n").await.unwrap();
        let copies = [held(&store, 0).await, held(&store, 1).await, held(&store, 2).await];
        assert_eq!(copies.map(|copy| copy.is_some()), [true, true, false], "{lost:?} was lost");
    }
}

#[tokio::test]
async fn whoever_finds_one_copy_makes_the_others_again_also_where_the_first_is_gone() {
    let store = counter_of(3).await;
    let manifest = held(&store, 0).await;
    for kept in 0..3 {
        for rank in (0..3).filter(|&rank| rank != kept) {
            lose(&store, rank).await;
        }
        assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 1);
        for rank in 0..3 {
            assert_eq!(held(&store, rank).await, manifest, "rank {rank}, where {kept} was kept");
        }
    }
}

/// Others make the name anew before the first copy is put back.
#[tokio::test]
async fn a_manifest_that_others_make_while_it_is_brought_back_is_left_alone_and_told() {
    let store = counter_of(3).await;
    lose(&store, 0).await;
    let older = held(&store, 1).await;
    let hooked = Hooked::new(&store);
    hooked.at(2, |store, batch| async move {
        hold(&store, 0, "of others").await;
        store.run(Ctx::default(), batch).await
    });
    let error = registry::find(&hooked.shared(), Ctx::default(), &Name::new("n").unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("being made or restored by others"), "{error}");
    assert_eq!(held(&store, 0).await, Some(Bytes::from("of others")));
    assert_eq!(held(&store, 1).await, older, "the copies, too");
}

/// The same behind it, while the other copies are put back: those are no reason to write the first once more.
#[tokio::test]
async fn the_first_copy_that_others_wrote_since_it_was_brought_back_is_left_alone() {
    let store = counter_of(3).await;
    lose(&store, 0).await;
    lose(&store, 1).await;
    let hooked = Hooked::new(&store);
    hooked.at(3, |store, batch| async move {
        hold(&store, 0, "of others").await;
        store.run(Ctx::default(), batch).await
    });
    let name = Name::new("n").unwrap();
    assert!(registry::find(&hooked.shared(), Ctx::default(), &name).await.unwrap().is_some());
    assert_eq!(held(&store, 0).await, Some(Bytes::from("of others")));
    assert_eq!(held(&store, 1).await, held(&store, 2).await);
}

/// Makes a counter on three servers, or opens one that lacks a copy: the batch that writes copies is held back.
async fn with_copies_held_back(is_made: bool) -> (StoreRef, Batch) {
    let store = if is_made { Fleet::shared((0..3).map(|_| Node::new() as StoreRef)) } else { counter_of(3).await };
    if !is_made {
        lose(&store, 1).await;
    }
    let hooked = Hooked::new(&store);
    let held_back = Arc::new(Mutex::new(Batch::new()));
    let holds = held_back.clone();
    // A look, the data, and the manifest; or the look alone.
    hooked.at(if is_made { 4 } else { 2 }, move |_, batch| async move {
        *holds.lock().unwrap() = batch.clone();
        fail(&batch, Effect::Unknown)
    });
    Counter::options().copies(3).open_or_create(&hooked.shared(), "n").await.unwrap();
    let held_back = std::mem::take(&mut *held_back.lock().unwrap());
    assert_eq!(held_back.len(), if is_made { 2 } else { 1 });
    (store, held_back)
}

async fn drop_counter(store: &StoreRef) {
    registry::drop_structure(store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
}

/// Drops the counter, and makes one of its name that holds 5.
async fn make_anew(store: &StoreRef) -> Counter {
    drop_counter(store).await;
    let counter = Counter::options().copies(3).open_or_create(store, "n").await.unwrap();
    counter.add(5).await.unwrap();
    counter
}

#[tokio::test]
async fn a_copy_that_comes_late_replaces_none_of_a_later_life() {
    for is_made in [true, false] {
        let (store, late) = with_copies_held_back(is_made).await;
        let counter = make_anew(&store).await;
        store.run(Ctx::default(), late).await;
        lose(&store, 0).await;
        let fresh = Counter::open(&store, "n").await.unwrap();
        assert_eq!(fresh.get().await.unwrap(), 5, "made {is_made}");
        assert_eq!(counter.get().await.unwrap(), 5, "made {is_made}");
    }
}

/// What remains: where the later life has no copy, the late one stands until the next open replaces it.
#[tokio::test]
async fn a_copy_that_comes_late_where_there_is_none_stands_until_the_next_open() {
    let (store, late) = with_copies_held_back(true).await;
    make_anew(&store).await;
    lose(&store, 1).await;
    store.run(Ctx::default(), late).await;
    let first = held(&store, 0).await;
    assert_ne!(held(&store, 1).await, first);
    let counting = metered(store.clone());
    let mut meter = Meter::new(counting.clone());
    Counter::open(&(Arc::new(counting) as StoreRef), "n").await.unwrap();
    assert_eq!(meter.round_trips(), 3, "the look, that at the one that decides, and the copy");
    assert_eq!(held(&store, 1).await, first);
}

/// And behind a drop the name is there again, without data.
#[tokio::test]
async fn a_copy_that_comes_behind_a_drop_says_lost_until_it_is_dropped_once_more() {
    let (store, late) = with_copies_held_back(true).await;
    drop_counter(&store).await;
    store.run(Ctx::default(), late).await;
    let counter = Counter::options().copies(3).open_or_create(&store, "n").await.unwrap();
    assert_eq!(counter.get().await.unwrap_err().kind(), ErrorKind::Lost);
    drop_counter(&store).await;
    assert_eq!(Counter::open(&store, "n").await.unwrap_err().kind(), ErrorKind::Absent);
}

/// An open reads the first server before another life begins, and the others after it: it takes that life's copies for those of an earlier one.
#[tokio::test]
async fn an_open_that_another_life_overtakes_writes_over_none_of_its_copies() {
    let store = counter_of(3).await;
    let hooked = Hooked::new(&store);
    hooked.at(1, |store, batch| async move {
        let mut ops = batch.into_iter();
        let mut replies = store.run(Ctx::default(), Batch::from_iter(ops.next())).await;
        make_anew(&store).await;
        replies.extend(store.run(Ctx::default(), ops.collect()).await);
        replies
    });
    let counter = Counter::open(&hooked.shared(), "n").await.unwrap();
    assert_eq!(counter.get().await.unwrap_err().kind(), ErrorKind::Lost);
    let first = held(&store, 0).await;
    assert_eq!([held(&store, 1).await, held(&store, 2).await], [first.clone(), first]);
    assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 5);
}
