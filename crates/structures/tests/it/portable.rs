//! Reading native keys as items: what is told of those whose structure is not there.

use std::sync::Arc;

use larder_core::{Batch, Ctx, Error, ErrorKind, Key, Op, StoreRef, Want};
use larder_store_memory::MemoryStore;
use larder_structures::Portable;

use crate::support::hooked::Hooked;

/// What a read of this key tells, through [`Portable`], of a store that says of it that it is no item.
async fn told(key: &str) -> Error {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    hooked.at(1, |_, batch| async move {
        batch.iter().map(|_| Err(Error::new(ErrorKind::LayoutMismatch, "of another type"))).collect()
    });
    let portable: StoreRef = Arc::new(Portable::new(hooked.shared()));
    let get = Batch::from_iter([Op::get(Key::new(key.to_owned()).unwrap(), Want::VALUE)]);
    portable.run(Ctx::default(), get).await.remove(0).unwrap_err()
}

#[tokio::test]
async fn a_native_key_without_its_structure_is_told() {
    let left = told("L.users.r.0123456789abcdef.s0").await;
    assert_eq!(left.kind(), ErrorKind::LayoutMismatch);
    assert!(left.to_string().contains("what is left of a structure that is not there"), "{left}");
    // The number of a fast counter may look like an item of its own right: the store's own word stands.
    let number = told("L.users.n.0123456789abcdef.s0").await;
    assert!(number.to_string().contains("of another type"), "{number}");
}
