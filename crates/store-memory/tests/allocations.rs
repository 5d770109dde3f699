//! One item, one allocation: an allocator that counts says so.

use allocation_counter::{AllocationInfo, measure};
use larder_core::{PutMode, Reply, Ttl};
use larder_store_memory::MemoryStore;

const ITEMS: usize = 20_000;
const SHARDS: usize = 4;

/// 16 bytes each, as many as there are items.
fn keys() -> Vec<Vec<u8>> {
    (0..ITEMS).map(|number| format!("key{number:013}").into_bytes()).collect()
}

fn few_shards() -> MemoryStore {
    MemoryStore::builder().shards(SHARDS).build().unwrap()
}

/// What it takes of the allocator to give all `keys` this value.
fn put(store: &MemoryStore, keys: &[Vec<u8>], mode: PutMode, value: &[u8]) -> AllocationInfo {
    let direct = store.direct();
    measure(|| {
        for key in keys {
            assert_eq!(direct.put(key, mode, value, 0, Ttl::Never).unwrap(), Reply::Stored);
        }
    })
}

fn delete(store: &MemoryStore, keys: &[Vec<u8>]) -> AllocationInfo {
    let direct = store.direct();
    measure(|| {
        for key in keys {
            assert_eq!(direct.delete(key, None).unwrap(), Reply::Deleted);
        }
    })
}

#[test]
fn an_item_is_one_allocation_and_a_shard_one_more() {
    let (store, keys) = (few_shards(), keys());
    for (at, bytes) in [0, 8, 255, 256, 4_000].into_iter().enumerate() {
        let (from, to) = (at * ITEMS / 5, (at + 1) * ITEMS / 5);
        let added = put(&store, &keys[from..to], PutMode::Add, &vec![b'v'; bytes]);
        let tables = if at == 0 { SHARDS } else { 0 };
        // What stays: a table that grows gives the old one back.
        assert_eq!(added.count_current, (to - from + tables) as i64, "{bytes} bytes: {added:?}");
        // What was made: no table doubles more often than this, and an item is made once.
        let growths_max = SHARDS * (ITEMS.ilog2() as usize + 1);
        assert!(added.count_total as usize - (to - from) <= growths_max, "{bytes} bytes: {added:?}");
    }
}

#[test]
fn tables_that_have_room_cost_a_put_nothing_more() {
    let (store, keys) = (few_shards(), keys());
    put(&store, &keys, PutMode::Set, b"12345678");
    // So few that neither a table shrinks as they go nor their graves fill it.
    let few = &keys[..100];
    let gone = delete(&store, few);
    assert_eq!((gone.count_total, gone.count_current), (0, -100));
    let room = put(&store, few, PutMode::Set, b"12345678");
    // At the worst every table was full of graves to the last place, and was made anew once.
    assert_eq!(room.count_current, 100);
    assert!((100..=100 + SHARDS as u64).contains(&room.count_total), "{room:?}");
}

#[test]
fn an_overwrite_of_the_same_size_takes_nothing_and_one_of_another_size_leaks_nothing() {
    let (store, keys) = (few_shards(), keys());
    put(&store, &keys, PutMode::Set, b"12345678");
    let same = put(&store, &keys, PutMode::Set, b"87654321");
    assert_eq!((same.count_total, same.count_current, same.bytes_current), (0, 0, 0), "{same:?}");
    let larger = put(&store, &keys, PutMode::Replace, &[b'v'; 100]);
    assert_eq!((larger.count_total, larger.count_current), (ITEMS as u64, 0), "{larger:?}");
    let smaller = put(&store, &keys, PutMode::Set, b"12345678");
    assert_eq!((smaller.count_current, smaller.bytes_current), (0, -larger.bytes_current), "{smaller:?}");
    let read = measure(|| {
        for key in &keys {
            assert_eq!(store.direct().read(key, |item| item.value.len()).unwrap(), Some(8));
        }
    });
    assert_eq!(read.count_total, 0, "{read:?}");
}

#[test]
fn deletes_give_back_what_puts_took_and_the_store_the_rest() {
    let keys = keys();
    let life = measure(|| {
        let store = few_shards();
        let put = put(&store, &keys, PutMode::Set, b"12345678");
        let gone = delete(&store, &keys);
        // The tables that are left are one a shard, and small.
        assert_eq!(put.count_current + gone.count_current, SHARDS as i64, "{put:?} {gone:?}");
        let left = put.bytes_current + gone.bytes_current;
        assert!(left <= SHARDS as i64 * 1_024, "{left} bytes are left of {}", put.bytes_current);
    });
    assert_eq!((life.count_current, life.bytes_current), (0, 0), "{life:?}");
}
