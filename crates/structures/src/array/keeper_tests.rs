//! How many numbers the commits hold before the shards are settled, and before they must be.

use bytes::Bytes;
use larder_store_memory::MemoryStore;

use super::*;

fn keeper(shards: u16, store: MemoryStore) -> Keeper {
    let manifest = Manifest::new(Kind::Array, 1, shards, Bytes::new());
    Keeper::new(&(Arc::new(store) as StoreRef), &Name::new("a").unwrap(), &manifest).unwrap()
}

/// From which length on each of these is true, for commits that grow by numbers of which no shard has settled one.
fn turns(keeper: &Keeper, most: usize) -> [usize; 3] {
    let mut turns = [usize::MAX; 3];
    let mut commits = Commits::new(keeper.generation, keeper.shards);
    for count in 0..=most {
        let now = [keeper.is_behind(&commits), keeper.wants_tidying(&commits), keeper.is_full(&commits)];
        for (turn, is_so) in turns.iter_mut().zip(now) {
            match is_so {
                true => *turn = count.min(*turn),
                false => assert_eq!(*turn, usize::MAX, "it was so of fewer than {count}"),
            }
        }
        commits = commits.next(0, [], 0, 0);
    }
    turns
}

#[test]
fn shards_are_settled_once_in_16_to_256_numbers_and_must_be_after_eight_times_as_many() {
    // A number takes 9 bytes with up to 8 shards, 24 with 128, 136 with 1,024; some 4 KiB of them are kept, and 16 to 256.
    for (shards, settled, full) in [(2, 256, 2_048), (128, 170, 1_360), (1_024, 30, 240)] {
        let keeper = keeper(shards, MemoryStore::new());
        assert_eq!(turns(&keeper, full + 2), [settled / 2, settled, full], "{shards} shards");
    }
}

#[test]
fn a_store_of_small_items_bounds_the_numbers_by_what_one_holds() {
    let store = MemoryStore::builder().value_bytes_max(1_000).build().unwrap();
    let keeper = keeper(2, store);
    let [behind, settled, full] = turns(&keeper, 300);
    let mut commits = Commits::new(keeper.generation, keeper.shards);
    for _ in 0..full {
        commits = commits.next(0, [], 0, 0);
    }
    let bytes = commits.encode().len();
    assert!((900..=keeper.value_bytes_max).contains(&bytes), "{bytes} of {}", keeper.value_bytes_max);
    assert_eq!((behind, settled), (full / 4, full / 2));
}
