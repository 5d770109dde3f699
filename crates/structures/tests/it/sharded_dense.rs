//! Shards of dense numbers become smaller: beside others, and by one that dies.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder_core::{Ctx, ErrorKind, StoreRef};
use larder_structures::inspect::inspect;
use larder_structures::{Name, ShardedSet};
use larder_testkit::faulty::{Fault, Faulty};

use crate::sharded::memory;
use crate::support::natives::Natives;

async fn ids(store: &StoreRef) -> ShardedSet {
    ShardedSet::options().dense(10).shards(4).open_or_create(store, "n").await.unwrap()
}

async fn numbers(set: &ShardedSet) -> BTreeSet<u32> {
    let all = set.members().await.unwrap();
    let found: BTreeSet<u32> = all.iter().map(|id| std::str::from_utf8(id).unwrap().parse().unwrap()).collect();
    assert_eq!(found.len(), all.len(), "a number is there twice");
    found
}

/// Items, and native collections.
fn stores() -> [StoreRef; 2] {
    [memory().1, Natives::over(&memory().1).shared()]
}

#[tokio::test]
async fn shards_become_larger_and_small_again() {
    for store in stores() {
        let (set, stale) = (ids(&store).await, ids(&store).await);
        let expected: BTreeSet<u32> = (0..40).filter(|id| id % 3 > 0).collect();
        set.add(expected.iter().map(u32::to_string)).await.unwrap();
        set.reshard(1).await.unwrap();
        assert_eq!((set.shards(), numbers(&set).await), (1, expected.clone()));
        for (per_shard, shards) in [(10, 4), (7, 6), (1, 42), (100, 1), (3, 34), (3, 34)] {
            set.reshard_dense(per_shard).await.unwrap();
            for handle in [&set, &stale] {
                assert_eq!((numbers(handle).await, handle.shards()), (expected.clone(), shards), "{per_shard} a shard");
            }
        }
        // The manifest, the map and the shards.
        let found = inspect(&store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
        assert_eq!(found.keys, 34 + 2);
        assert!(found.params.contains(&("dense numbers a shard", "3".to_owned())), "{:?}", found.params);
    }
}

#[tokio::test]
async fn so_small_that_there_would_be_too_many_is_refused_with_the_least() {
    let (_, store) = memory();
    let set = ShardedSet::options().dense(100_000).shards(10).open_or_create(&store, "n").await.unwrap();
    let error = set.reshard_dense(15).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
    assert!(error.to_string().contains("65535 at the most, of 16 numbers each"), "{error}");
    assert_eq!((set.shards(), set.len().await.unwrap()), (10, 0));
    let error = set.reshard_dense(0).await.unwrap_err();
    assert!(error.to_string().contains("at least 1 dense number"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn one_that_dies_at_any_op_is_gone_on_from_and_nothing_is_lost() {
    for inner in stores() {
        for (nth, fault) in (1..).flat_map(|nth| [(nth, Fault::NotSent), (nth, Fault::LostReply)]) {
            let name = format!("n{nth}-{fault:?}");
            let options = || ShardedSet::options().dense(10).shards(4);
            let faulty = Faulty::new(inner.clone());
            let dying = options().open_or_create(&faulty.shared(), &name).await.unwrap();
            let other = options().open_or_create(&inner, &name).await.unwrap();
            let mut expected: BTreeSet<u32> = (0..40).step_by(2).collect();
            other.add(expected.iter().map(u32::to_string)).await.unwrap();
            faulty.fail_nth(nth, fault);
            let outcome = dying.reshard_dense(3).await;
            let is_over = faulty.injected() == 0;
            faulty.heal();
            assert_eq!(numbers(&other).await, expected, "{name}");
            assert_eq!(other.add(["7", "8"]).await.unwrap(), [true, false], "{name}");
            assert_eq!(other.remove(["4", "5"]).await.unwrap(), [true, false], "{name}");
            expected.insert(7);
            expected.remove(&4);
            // To what the dead one wanted, to another size, or to another number.
            match nth % 3 {
                0 => other.reshard_dense(3).await.unwrap(),
                1 => other.reshard_dense(8).await.unwrap(),
                _ => other.reshard(2).await.unwrap(),
            }
            for handle in [&other, &dying] {
                assert_eq!(numbers(handle).await, expected, "{name}");
            }
            let found = inspect(&inner, Ctx::default(), &Name::new(&name).unwrap()).await.unwrap().unwrap();
            assert_eq!(found.keys, u64::from(other.shards()) + 2, "{name}: nothing is left of the dead one's");
            if is_over {
                outcome.unwrap();
                break;
            }
        }
    }
}

/// Each task has numbers of its own, of which it finds what it was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_change_and_read_while_shards_become_smaller_and_larger() {
    const TASKS: u32 = 8;
    for store in stores() {
        let set = Arc::new(ids(&store).await);
        let workers: Vec<_> = (0..TASKS)
            .map(|task| {
                let set = set.clone();
                tokio::spawn(async move {
                    let mut random = fastrand::Rng::with_seed(task.into());
                    let mut own = BTreeSet::new();
                    for _ in 0..150 {
                        let id = random.u32(..5) * TASKS + task;
                        match random.bool() {
                            true => assert_eq!(set.add([id.to_string()]).await.unwrap(), [own.insert(id)], "{id}"),
                            false => assert_eq!(set.remove([id.to_string()]).await.unwrap(), [own.remove(&id)], "{id}"),
                        }
                        assert_eq!(set.has(id.to_string()).await.unwrap(), own.contains(&id), "{id}");
                        tokio::task::yield_now().await;
                    }
                    own
                })
            })
            .collect();
        let other = ids(&store).await;
        for per_shard in [3, 25, 1, 7, 40, 2] {
            other.reshard_dense(per_shard).await.unwrap();
            other.reshard(9).await.unwrap();
        }
        let mut expected = BTreeSet::new();
        for worker in workers {
            expected.extend(worker.await.unwrap());
        }
        assert_eq!((numbers(&set).await, numbers(&other).await), (expected.clone(), expected));
    }
}
