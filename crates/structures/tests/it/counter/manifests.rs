//! The manifest of a counter whose data stand on several servers: which copy of it counts, and which are made again.

use bytes::Bytes;
use larder_core::{Ctx, ErrorKind, Key, Op, PutMode, Reply, Route, StoreExt, StoreRef, Ttl, Want};
use larder_structures::{Counter, Name, registry};

use crate::counter::fleet::{Fleet, Node};
use crate::support::hooked::Hooked;

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
