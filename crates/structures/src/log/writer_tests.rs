use std::sync::Arc;

use larder_core::{Ctx, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;

use crate::name::Name;
use crate::{EventLog, manifest, registry};

/// A store copies a value when it grows, so that one which grew without end would cost ever more.
#[tokio::test]
async fn a_handle_fills_a_part_with_sixty_four_kibibytes_and_goes_on_to_the_next() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let log = EventLog::open_or_create(&store, "l").await.unwrap();
    // Of two chunks at the most, whatever the time is: one of them has more than a part.
    for _ in 0..150 {
        log.put(vec![b'x'; 1_000]).await.unwrap();
    }
    let name = Name::new("l").unwrap();
    let made = manifest::find(&store, Ctx::default(), &name).await.unwrap().unwrap().manifest;
    let mut sizes = Vec::new();
    for piece in registry::pieces(&store, Ctx::default(), &name, &made).await.unwrap().keys {
        sizes.push(store.get(piece.key).await.unwrap().unwrap().value.len());
    }
    sizes.sort_unstable();
    let largest = sizes.pop().expect("a part");
    assert!((60_000..70_000).contains(&largest), "{largest}, and {sizes:?}");
    assert!(!sizes.is_empty(), "there is another");
}
