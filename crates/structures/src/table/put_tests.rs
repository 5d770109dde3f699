//! Entries that others list, remove and give another name while their maker is slow.

use std::time::Duration;

use larder_core::{StoreExt, StoreRef};
use larder_store_memory::MemoryStore;

use super::super::{LISTING_MAX, Table};
use super::*;
use crate::answering_tests::{Answering, fails};

/// Others have removed it, and the list, which had forgotten that it is gone, has named it again.
#[tokio::test]
async fn an_entry_with_a_life_that_was_listed_too_late_leaves_the_list_again() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap().0;
    table.put(b"k", b"v", Ttl::After(Duration::from_secs(3_600))).await.unwrap();
    table.settle().await;
    let (spot, mut effort) = (table.spot(b"k"), table.effort().unwrap());
    let Says::Mortal { incarnation, .. } = table.ask_of_one(&mut effort, &spot, b"k").await.unwrap() else {
        panic!("it has a life")
    };
    assert!(store.delete(table.item_key(&spot).unwrap()).await.unwrap(), "it was there");
    let since = ambient::now() - 2 * LISTING_MAX;
    table.check_late(&mut effort, &spot, b"k", incarnation, since).await.unwrap();
    assert_eq!(table.ask_of_one(&mut effort, &spot, b"k").await.unwrap(), Says::NotListed);
}

/// Its maker has not listed it yet, and who renews it dies as soon as it has another name.
#[tokio::test]
async fn what_was_renewed_and_removed_does_not_come_back_when_its_maker_lists_it_late() {
    const STALE: u64 = 7;
    let memory = Arc::new(MemoryStore::builder().bytes_max(1 << 24).evict(true).build().unwrap());
    let store: StoreRef = memory.clone();
    let table = Table::open_or_create(&store, "t").await.unwrap().0;
    let (spot, generation) = (table.spot(b"k"), table.manifest.generation);
    let item_key = table.item_key(&spot).unwrap();
    let frame = layout::whole_frame(Stamp { generation, writer: 1, seq: 1 }, &spot, (STALE, 0), b"k", b"v");
    let value = layout::new_entry(generation, &frame);
    let verb = Verb::Put { mode: PutMode::Add, value, flags: spot.flags(false), ttl: Ttl::Never };
    memory.apply(&Op::new(item_key.clone(), verb)).unwrap();

    let dying = Answering::over(&store);
    let renewer = Table::open(&dying.shared(), "t").await.unwrap();
    let is_renewed = {
        let get = Op::get(item_key, Want::VALUE);
        move || {
            let item = memory.apply(&get).unwrap().into_item().expect("it is there");
            Entry::parse(&item.value, generation).unwrap().incarnation != STALE
        }
    };
    let is_dead = is_renewed.clone();
    dying.by(move |_| is_dead().then(|| fails(ErrorKind::Unsupported, Effect::NotApplied)));
    renewer.0.renew_behind(b"k", STALE);
    renewer.settle().await;
    assert!(is_renewed());

    assert!(table.remove(b"k").await.unwrap());
    table.settle().await;
    let late = Note::Listed { incarnation: STALE, expiry_s: 0, key: b"k" };
    table.note(table.effort().unwrap().deadline, spot.shard, &[late]).await.unwrap();
    let table = Table::open(&store, "t").await.unwrap();
    assert_eq!(table.get("k").await.unwrap(), None);
    assert!(table.keys().await.unwrap().is_empty());
}
