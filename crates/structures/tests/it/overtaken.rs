//! Reads of one handle that overtake each other: what is older than a read that was sent later is late, and not rolled back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use larder_core::{Ctx, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::lookup::Rows;
use larder_structures::{PackedTable, ShardedHash};

use crate::support::hooked::Hooked;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Which batch reads the map is not this test's business: it is the first that a task sends whose shard is gone, or the second.
#[tokio::test]
async fn a_map_that_was_read_before_a_newer_one_is_not_rolled_back() {
    for nth in 1..=3 {
        let memory = memory();
        let other = ShardedHash::options().shards(3).open_or_create(&memory, "h").await.unwrap();
        other.set([("a", "1")]).await.unwrap();
        let hooked = Hooked::new(&memory);
        let late = ShardedHash::open(&hooked.shared(), "h").await.unwrap();
        // Its map is old from here on.
        other.reshard(5).await.unwrap();
        let overtaken = Arc::new(AtomicBool::new(false));
        let (task, is_overtaken) = (late.clone(), overtaken.clone());
        hooked.at(nth, move |store, batch| async move {
            let replies = store.run(Ctx::default(), batch).await;
            // Before the replies arrive, the map changes, and another task of this handle reads the newer one.
            other.reshard(7).await.unwrap();
            assert_eq!(task.get("a").await.unwrap().as_deref(), Some(&b"1"[..]));
            assert_eq!(task.shards(), 7);
            is_overtaken.store(true, Ordering::Relaxed);
            replies
        });
        let found = late.get("a").await;
        assert_eq!(found.unwrap_or_else(|error| panic!("batch {nth}: {error}")).as_deref(), Some(&b"1"[..]));
        if !overtaken.load(Ordering::Relaxed) {
            assert!(nth > 2, "a handle whose map is old reads the shard, then the map");
        }
    }
}

#[tokio::test]
async fn a_version_that_was_read_before_a_newer_one_is_not_rolled_back() {
    async fn build(table: &PackedTable, word: &str) {
        let mut rows = Rows::new(["word"]).unwrap();
        rows.push_id(1u64, [word]).unwrap();
        table.build(rows).await.unwrap();
    }
    for nth in 1..=3 {
        let memory = memory();
        let other = PackedTable::open_or_create(&memory, "t").await.unwrap();
        build(&other, "first").await;
        let hooked = Hooked::new(&memory);
        let late = PackedTable::open(&hooked.shared(), "t").await.unwrap();
        assert_eq!(late.get(1u64).await.unwrap().unwrap().fields, ["first"]);
        build(&other, "second").await;
        let task = late.clone();
        hooked.at(nth, move |store, batch| async move {
            let replies = store.run(Ctx::default(), batch).await;
            build(&other, "third").await;
            assert_eq!(task.get(1u64).await.unwrap().unwrap().fields, ["third"]);
            replies
        });
        let found = late.get(1u64).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        let word = found.unwrap().fields[0].clone();
        assert!(word == "second" || word == "third", "batch {nth}: {word:?}");
    }
}
