//! Unique visitors where a test must decide what happens between two steps; what holds on every store is in the conformance suite.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, Op, Reply, StoreRef};
use larder_core::{Key, StoreExt};
use larder_store_memory::MemoryStore;
use larder_structures::{Novelty, Precision, UniqueVisitors, UniqueVisitorsOptions};
use larder_testkit::yielding::Yielding;

use crate::support::hooked::{Hooked, fail};
use crate::support::steady::metered;

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Periods of a year: a test on the last of its milliseconds would take longer.
fn options() -> UniqueVisitorsOptions {
    UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).expected(1)
}

async fn open(store: &StoreRef) -> UniqueVisitors {
    options().open_or_create(store, "site").await.unwrap()
}

async fn count(site: &UniqueVisitors) -> u64 {
    site.count().await.unwrap().visitors
}

#[tokio::test]
async fn a_write_that_others_wrote_over_is_unknown_and_counts_once() {
    for (others, expected) in [(7u64, Novelty::Unknown), (1, Novelty::Unknown)] {
        let store = memory();
        let hooked = Hooked::new(&store);
        let (site, other) = (open(&hooked.shared()).await, open(&store).await);
        site.add([0u64]).await.unwrap();
        // The write lands, its reply is lost, and somebody writes the shard before it is looked at.
        hooked.at(2, move |store, batch| async move {
            _ = store.run(Ctx::default(), batch.clone()).await;
            other.add([others, 8]).await.unwrap();
            fail(&batch, Effect::Unknown)
        });
        assert_eq!(site.add([1u64, 0]).await.unwrap(), [expected, Novelty::Known]);
        assert_eq!(count(&site).await, 2 + 1 + u64::from(others == 7));
    }
}

#[tokio::test]
async fn a_write_that_lands_as_it_is_tried_again_is_known_for_its_own() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let site = open(&hooked.shared()).await;
    site.add([0u64]).await.unwrap();
    let (keep, late) = std::sync::mpsc::channel();
    hooked.at(2, move |_, batch| async move {
        keep.send(batch.clone()).unwrap();
        fail(&batch, Effect::Unknown)
    });
    // The look has found nothing; the first write arrives before the second, which it has refused.
    hooked.at(4, move |store, batch| async move {
        let late = late.recv().unwrap();
        _ = store.run(Ctx::default(), late).await;
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(site.add([1u64, 0]).await.unwrap(), [Novelty::New, Novelty::Known]);
    assert_eq!(count(&site).await, 2);
}

#[tokio::test]
async fn what_did_not_land_is_known_if_others_added_it_since() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let (site, other) = (open(&hooked.shared()).await, open(&store).await);
    site.add([0u64]).await.unwrap();
    hooked.at(2, move |_, batch| async move {
        other.add([1u64]).await.unwrap();
        fail(&batch, Effect::Unknown)
    });
    assert_eq!(site.add([1u64, 2]).await.unwrap(), [Novelty::Known, Novelty::New]);
    assert_eq!(count(&site).await, 3);
}

#[tokio::test]
async fn a_caller_that_is_dropped_midway_does_no_harm() {
    for has_landed in [false, true] {
        let store = memory();
        let hooked = Hooked::new(&store);
        let site = open(&hooked.shared()).await;
        site.add([0u64]).await.unwrap();
        hooked.at(2, move |store, batch| async move {
            if has_landed {
                _ = store.run(Ctx::default(), batch).await;
            }
            std::future::pending().await
        });
        assert!(tokio::time::timeout(Duration::from_millis(20), site.add([1u64, 2])).await.is_err());
        // The next caller finishes what was under way.
        assert_eq!(site.add([2u64, 3]).await.unwrap(), [Novelty::Known, Novelty::New], "{has_landed}");
        assert_eq!(count(&site).await, 4);
    }
}

/// Of two callers in one write the one that drives it is dropped; the write arrives between the other's look and its write.
#[tokio::test]
async fn a_write_of_a_dropped_caller_that_arrives_late_leaves_the_others_ids_new() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let site = open(&hooked.shared()).await;
    site.add([0u64]).await.unwrap();
    let (keep, late) = std::sync::mpsc::channel();
    let (go_on, gate) = tokio::sync::oneshot::channel::<()>();
    let (is_sent, sent) = tokio::sync::oneshot::channel::<()>();
    hooked.at(2, move |store, batch| async move {
        gate.await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    hooked.at(4, move |_, batch| async move {
        keep.send(batch).unwrap();
        is_sent.send(()).unwrap();
        std::future::pending().await
    });
    hooked.at(6, move |store, batch| async move {
        _ = store.run(Ctx::default(), late.recv().unwrap()).await;
        store.run(Ctx::default(), batch).await
    });
    let add = |id: u64| {
        let site = site.clone();
        tokio::spawn(async move { site.add([id]).await })
    };
    let first = add(1);
    tokio::task::yield_now().await;
    let (driving, waiting) = (add(2), add(3));
    tokio::task::yield_now().await;
    go_on.send(()).unwrap();
    assert_eq!(first.await.unwrap().unwrap(), [Novelty::New]);
    sent.await.unwrap();
    driving.abort();
    assert_eq!(waiting.await.unwrap().unwrap(), [Novelty::New]);
    assert_eq!(count(&site).await, 4);
}

#[tokio::test]
async fn a_period_that_many_make_at_once_is_one() {
    for round in 0..20u64 {
        let store: StoreRef = Arc::new(Yielding(memory()));
        let mut tasks = Vec::new();
        for task in 0..6u64 {
            let store = store.clone();
            tasks.push(tokio::spawn(async move {
                let site = options().expected(20_000).open_or_create(&store, "site").await.unwrap();
                let told = site.add([round, task, task + 1]).await.unwrap();
                // None but readers of a period that is being made.
                site.count().await.unwrap();
                [round, task, task + 1].into_iter().zip(told).filter(|(_, told)| *told == Novelty::New).count()
            }));
        }
        let mut new = 0;
        for task in tasks {
            new += task.await.unwrap();
        }
        let distinct: BTreeSet<u64> = (0..=6).chain([round]).collect();
        let site = open(&store).await;
        assert_eq!((new, count(&site).await), (distinct.len(), distinct.len() as u64), "round {round}");
    }
}

/// The head is thrown away before the ledger lists it, and somebody makes the period again: two lives, of which no visitor may be new in both.
#[tokio::test]
async fn a_head_that_is_thrown_away_while_a_period_is_made_is_a_loss_to_both() {
    // The steps of making one: look, forecast, plan, shards, head, entry, look again.
    const HEAD: u64 = 5;
    for step in [HEAD + 1, HEAD + 2] {
        let store = memory();
        let hooked = Hooked::new(&store);
        let (site, other) = (open(&hooked.shared()).await, open(&store).await);
        let (keep, head) = std::sync::mpsc::channel();
        hooked.at(HEAD, move |store, batch| async move {
            keep.send(batch[0].key.clone()).unwrap();
            store.run(Ctx::default(), batch).await
        });
        let (tell, told) = std::sync::mpsc::channel();
        hooked.at(step, move |store, batch| async move {
            let head = head.recv().unwrap();
            let replies = store.run(Ctx::default(), Batch::from_iter([Op::delete(head)])).await;
            assert!(matches!(replies[..], [Ok(Reply::Deleted)]), "{replies:?} at the head's key");
            tell.send(other.add([7u64]).await).unwrap();
            store.run(Ctx::default(), batch).await
        });
        let ours = site.add([7u64]).await.expect_err("another life of the period");
        assert_eq!((ours.kind(), ours.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{ours}");
        match told.recv().unwrap() {
            // Ours was not listed yet: nobody can know.
            Ok(told) => assert_eq!((step, told), (HEAD + 1, vec![Novelty::New])),
            Err(theirs) => assert_eq!((step, theirs.kind()), (HEAD + 2, ErrorKind::Lost), "{theirs}"),
        }
        // And to everybody from now on, until what is left is cleared away.
        let fresh = open(&store).await;
        assert_eq!(fresh.count().await.expect_err("two lives").kind(), ErrorKind::Lost);
        fresh.forget(fresh.period_of(std::time::SystemTime::now()).unwrap()).await.unwrap();
        assert_eq!(fresh.add([7u64]).await.unwrap(), [Novelty::New]);
        assert_eq!(count(&fresh).await, 1);
    }
}

#[tokio::test]
async fn near_exact_counts_are_corrected() {
    let store = memory();
    let options = options().precision(Precision::NearExact { bits: 24 }).expected(60_000);
    let site = options.open_or_create(&store, "site").await.unwrap();
    for part in 0..6u64 {
        site.add(part * 10_000..(part + 1) * 10_000).await.unwrap();
    }
    let found = site.count().await.unwrap();
    // 60,000^2 / 2^25 are expected to have met.
    assert!((90.0..125.0).contains(&found.missed), "{found:?}");
    assert!(found.stored < 59_960, "{found:?}");
    assert!(found.visitors.abs_diff(60_000) as f64 <= 5.0 * found.standard_error, "{found:?}");
    let twice = UniqueVisitors::union([(&site, site.current().unwrap()), (&site, site.current().unwrap())]);
    assert_eq!(twice.await.unwrap().visitors, found.visitors);
}

#[tokio::test]
async fn a_shard_that_is_full_says_so() {
    let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(16_640).build().unwrap());
    let site = open(&store).await;
    let mut added = 0;
    let error = loop {
        match site.add(added..added + 500).await {
            Ok(_) => added += 500,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("expect more"), "{error}");
    assert!(added > 4_000, "{added} in an item of 16 KB");
    assert_eq!(count(&site).await, added);
}

#[tokio::test]
async fn many_ids_of_many_callers_share_round_trips() {
    let store: StoreRef = Arc::new(Yielding(memory()));
    let counting = metered(store);
    let shared: StoreRef = Arc::new(counting.clone());
    let site = open(&shared).await;
    site.add([0u64]).await.unwrap();
    let before = counting.counts();
    let tasks: Vec<_> = (1..=64u64)
        .map(|id| {
            let site = site.clone();
            tokio::spawn(async move { site.add([id]).await.unwrap() })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.unwrap(), [Novelty::New]);
    }
    let spent = counting.counts().since(&before).round_trips;
    assert!(spent <= 12, "{spent} round trips for 64 callers");
}

#[tokio::test]
async fn a_store_of_items_too_small_is_refused_and_the_smallest_that_does_is_not() {
    for (bytes, fits) in [(2_000, false), (16_383, false), (16_384, true), (100_000, true)] {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(bytes).build().unwrap());
        match UniqueVisitors::open_or_create(&store, "site").await {
            Ok(site) => {
                assert!(fits, "{bytes}");
                assert_eq!(site.add([7u64]).await.unwrap(), [Novelty::New]);
            }
            Err(error) => {
                assert!(!fits, "{bytes}: {error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.to_string().contains("16384"), "{error}");
                assert!(store.get(Key::new("L.site.m").unwrap()).await.unwrap().is_none(), "{bytes}");
            }
        }
    }
}

#[tokio::test]
async fn sharded_collections_refuse_items_too_small() {
    for (bytes, fits) in [(500, false), (1_024, true)] {
        let store: StoreRef = Arc::new(MemoryStore::builder().value_bytes_max(bytes).build().unwrap());
        let refused = [
            larder_structures::ShardedHash::options().shards(1).open_or_create(&store, "h").await.err(),
            larder_structures::ShardedSet::options().shards(1).open_or_create(&store, "s").await.err(),
        ];
        for error in refused {
            let told = error.map(|error| (error.kind(), error.to_string().contains("1024")));
            assert_eq!(told, (!fits).then_some((ErrorKind::Unsupported, true)), "{bytes}");
        }
    }
}
