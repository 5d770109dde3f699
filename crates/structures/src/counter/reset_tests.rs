use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memory::MemoryStore;

use crate::Counter;

#[tokio::test]
async fn a_reset_takes_what_every_writer_added_and_leaves_nothing() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let options = || Counter::options().slots(4);
    let counter = options().open_or_create(&store, "n").await.unwrap();
    for delta in [7, -3, 100] {
        let writer = options().open(&store, "n").await.unwrap();
        writer.add(delta).await.unwrap();
    }
    assert_eq!(counter.reset().await.unwrap(), 104);
    assert_eq!((counter.get().await.unwrap(), counter.reset().await.unwrap()), (0, 0));
}
