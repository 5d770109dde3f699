//! What tables tell the observer.

use larder_core::StoreExt;
use larder_store_memory::MemoryStore;

use super::*;
use crate::events::tests::{listen, told};

#[tokio::test]
async fn entries_and_lost_tells_a_loss_where_an_entry_is_lost_and_none_where_all_are_there() {
    listen();
    let name = "entries-of-which-one-is-lost";
    let store: StoreRef = Arc::new(MemoryStore::builder().bytes_max(1 << 24).evict(true).build().unwrap());
    let table = Table::open_or_create(&store, name).await.unwrap();
    table.put("k", "v").await.unwrap();
    table.settle().await;
    assert_eq!(table.entries_and_lost().await.unwrap().entries.len(), 1);
    assert_eq!(told(name), [""; 0]);
    assert!(store.delete(table.0.item_key(&table.0.spot(b"k")).unwrap()).await.unwrap(), "it was there");
    assert_eq!(table.entries_and_lost().await.unwrap().lost, ["k"]);
    assert_eq!(told(name), ["loss: lost"]);
}

/// An entry without room for another value is written anew, with that alone: nothing of what stood there is compacted then.
#[tokio::test]
async fn puts_of_one_handle_meet_no_compaction_of_their_own() {
    listen();
    let name = "an-entry-that-one-handle-fills";
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(7_000).build().unwrap());
    let table = Table::open_or_create(&store, name).await.unwrap();
    for _ in 0..300 {
        table.put("k", vec![b'x'; 500]).await.unwrap();
        table.settle().await;
    }
    let events = told(name);
    assert!(events.len() > 20, "{events:?}");
    assert!(events.iter().all(|event| event == "compaction begun" || event == "compaction done"), "{events:?}");
}
