//! Structures that are made while requests come late: nothing that was sent for it brings back, later, what was lost or dropped since.

use std::sync::Arc;

use larder_core::{Ctx, ErrorKind, Key, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::registry::drop_structure;
use larder_structures::{Cache, Counter, Kind, Name};
use larder_testkit::faulty::{Fault, Faulty};

use crate::kinds::openers;
use crate::sharded::contents;

/// No op of a test comes so late.
const FOR_EVER: Fault = Fault::Late(1_000_000);
/// No making takes more ops.
const OPS_MAX: u64 = 400;

/// All keys but those of manifests.
fn data(memory: &MemoryStore) -> Vec<Vec<u8>> {
    contents(memory).into_keys().filter(|key| !key.ends_with(b".m")).collect()
}

async fn delete(memory: &MemoryStore, key: Vec<u8>) {
    memory.delete(Key::new(key).unwrap()).await.unwrap();
}

/// Of each kind, whichever request of its making comes late.
#[tokio::test]
async fn what_was_made_is_not_brought_back_by_a_late_request_once_it_is_lost() {
    let mut delayed = 0;
    for opener in openers().into_iter().filter(|opener| opener.kind != Kind::Lock) {
        for nth in 1..=OPS_MAX {
            let memory = Arc::new(MemoryStore::new());
            let faulty = Faulty::new(memory.clone());
            faulty.fail_nth(nth, FOR_EVER);
            let when = format!("{} at {nth}", opener.kind.as_str());
            let made = (opener.make)(faulty.shared(), "n".to_owned()).await;
            if faulty.injected() == 0 {
                break;
            }
            delayed += u64::from(made.is_ok());
            let data = data(&memory);
            for key in &data {
                delete(&memory, key.clone()).await;
            }
            faulty.deliver_late().await;
            let after = contents(&memory);
            let back: Vec<_> = data.iter().filter(|key| after.contains_key(*key)).collect();
            assert!(back.is_empty(), "{when}: {back:?}");
        }
    }
    assert!(delayed > 40, "{delayed}");
}

/// The slot of a fast counter, and that of an exact one: evicted, and not zero.
#[tokio::test]
async fn a_counter_whose_making_came_late_is_lost_and_not_zero() {
    for options in [Counter::options().fast(), Counter::options().slots(1)] {
        let memory = Arc::new(MemoryStore::new());
        let faulty = Faulty::new(memory.clone());
        faulty.fail_nth(2, FOR_EVER);
        let counter = options.open_or_create(&faulty.shared(), "n").await.unwrap();
        counter.add(5).await.unwrap();
        for key in data(&memory) {
            delete(&memory, key).await;
        }
        faulty.deliver_late().await;
        let store: StoreRef = memory;
        let error = Counter::open(&store, "n").await.unwrap().get().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}

/// A manifest that comes late, after the structure was dropped, is of a life that never had an entry.
#[tokio::test]
async fn entries_of_a_cache_that_was_dropped_are_not_reached_through_a_manifest_that_comes_late() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let faulty = Faulty::new(memory.clone());
    faulty.fail_nth(2, FOR_EVER);
    let cache = Cache::open_or_create(&faulty.shared(), "n").await.unwrap();
    cache.get_or_rebuild("k", || async { Ok::<_, larder_core::Error>("old") }).await.unwrap();
    drop_structure(&memory, Ctx::default(), &Name::new("n").unwrap()).await.unwrap();
    faulty.deliver_late().await;
    let again = Cache::open(&memory, "n").await.unwrap();
    assert_eq!(again.get("k").await.unwrap().map(|entry| entry.value), None);
}
