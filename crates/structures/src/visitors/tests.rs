//! What visitors tell the observer, and what a drop is told of their list.

use larder_core::{Batch, PutMode, StoreExt, Ttl};
use larder_store_memory::MemoryStore;

use super::*;
use crate::events::tests::{listen, told};
use crate::ruled_tests::{Fate, Ruled};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn open(store: &StoreRef, name: &str) -> Visitors {
    Visitors::options().shards(1).open_or_create(store, name).await.unwrap()
}

/// The first hit of a shard makes it unless it is there, appends to it, and reads the list, in one round trip.
#[tokio::test]
async fn a_first_hit_is_told_to_be_tried_again_where_it_is_not_in_and_not_where_it_is() {
    listen();
    for (name, fate, retries) in [
        ("a-shard-that-was-not-sent", Fate::NotSent, 1),
        ("a-shard-that-was-not-made", Fate::LostRequest, 1),
        // The append tells that it is there.
        ("a-shard-whose-making-is-not-told", Fate::LostReply, 0),
    ] {
        let memory = memory();
        let ruled = Ruled::over(&memory);
        let site = open(&ruled.shared(), name).await;
        ruled.next([fate]);
        site.hit_visitor("v").await.unwrap();
        assert_eq!(told(name), vec!["retry after unavailable"; retries], "{name}");
        assert_eq!(open(&memory, name).await.current().await.unwrap(), 1, "{name}");
    }
}

#[tokio::test]
async fn a_shard_that_is_written_anew_tells_a_compaction() {
    listen();
    let (name, memory) = ("a-shard-that-is-full-of-repeats", MemoryStore::builder().value_bytes_max(8_000).build());
    let store: StoreRef = Arc::new(memory.unwrap());
    let site = open(&store, name).await;
    site.hit_visitor("first").await.unwrap();
    let period = site.0.window_of(site.0.now_ms()).unwrap();
    let key = site.0.key(period, layout::part_of(0)).unwrap();
    let shard = store.get(key.clone()).await.unwrap().unwrap().value;
    let repeats = shard.slice(layout::SHARD_HEADER_BYTES..);
    while store.get(key.clone()).await.unwrap().unwrap().value.len() + repeats.len() <= site.0.value_bytes_max {
        store.put(key.clone(), PutMode::Append, repeats.clone(), Ttl::Never).await.unwrap();
    }
    assert_eq!(told(name), [""; 0]);
    site.hit_visitor("second").await.unwrap();
    assert_eq!(told(name), ["compaction begun", "compaction done"]);
    assert_eq!(store.get(key).await.unwrap().unwrap().value.len(), shard.len() + repeats.len());
}

/// What a later release may list beyond has no key of this one.
#[tokio::test]
async fn a_drop_is_told_of_the_pieces_that_have_keys_alone() {
    let store = memory();
    let site = open(&store, "site").await;
    let piece = |number, part| Piece { number, part, incarnation: 7 };
    let known = [piece(3, 0), piece(layout::WINDOW_MAX, layout::SHARDS_MAX)];
    let strange = [piece(layout::WINDOW_MAX + 1, 0), piece(3, layout::SHARDS_MAX + 1)];
    site.0.ledger.register(site.0.deadline(), &[known, strange].concat()).await.unwrap();
    let ctx = Ctx::default();
    let manifest = crate::manifest::find(&store, ctx, site.name()).await.unwrap().unwrap().manifest;
    let found = pieces(&store, ctx, site.name(), &manifest).await.unwrap();
    let keys: Vec<Key> = found.keys.into_iter().map(|owned| owned.key).collect();
    assert_eq!(keys, known.map(|piece| site.0.key(piece.number, piece.part).unwrap()));
    // They are as good as any.
    let gets: Batch = keys.iter().map(|key| larder_core::Op::get(key.clone(), larder_core::Want::VALUE)).collect();
    assert!(store.run(ctx, gets).await.iter().all(std::result::Result::is_ok));
}
