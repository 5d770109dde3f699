//! Reshardings: what others do between their steps, what a store refuses, and maps that went back behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, PutMode, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use tokio::time::Instant;

use crate::queue::between::{Between, adds};
use crate::sharded::{FILLS, MAKES, contents, memory, moving, set};
use crate::support::hooked::{Hooked, dies_at};
use crate::support::sieve::Sieve;

/// The map item, by its key.
fn map(memory: &MemoryStore) -> (Vec<u8>, Vec<u8>) {
    contents(memory).into_iter().find(|(key, _)| key.ends_with(b".0")).expect("the map")
}

fn put_back(memory: &MemoryStore, (key, value): &(Vec<u8>, Vec<u8>)) {
    memory.direct().put(key, PutMode::Set, value, 0, Ttl::Never).unwrap();
}

async fn forty(store: &StoreRef) {
    set(store, 2).await.add((0..40).map(|member| member.to_string())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_resharding_goes_on_where_others_finish_it_and_reshard_again() {
    for nth in 2..=7 {
        let (_, store) = memory();
        moving(&store).await;
        let hooked = Hooked::new(&store);
        let late = set(&hooked.shared(), 2).await;
        hooked.at(nth, |store, batch| async move {
            set(&store, 2).await.reshard(5).await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        late.reshard(3).await.unwrap_or_else(|error| panic!("batch {nth}: {error}"));
        assert_eq!((late.len().await.unwrap(), late.shards()), (40, 3), "batch {nth}");
    }
}

/// Its own map is in force and full: what others plan to come after that is no matter of its.
#[tokio::test(start_paused = true)]
async fn a_resharding_that_is_done_does_not_wait_for_what_others_plan_then() {
    let is_planned = Arc::new(AtomicBool::new(false));
    for nth in FILLS..FILLS + 8 {
        let (_, store) = memory();
        forty(&store).await;
        let hooked = Hooked::new(&store);
        let late = set(&hooked.shared(), 2).await;
        let planned = is_planned.clone();
        hooked.at(nth, |store, batch| async move {
            let others = Hooked::new(&store);
            let planning = set(&others.shared(), 2).await;
            if planning.shards() == 3 && planning.stat().await.unwrap().moving_from.is_none() {
                dies_at(&others, MAKES, planning.reshard(5)).await;
                planned.store(true, Ordering::Relaxed);
            }
            store.run(Ctx::default(), batch).await
        });
        let begin = Instant::now();
        late.reshard(3).await.unwrap();
        assert!(begin.elapsed() < Duration::from_secs(1), "batch {nth}: {:?}", begin.elapsed());
        assert_eq!((late.len().await.unwrap(), late.shards()), (40, 3), "batch {nth}");
    }
    assert!(is_planned.load(Ordering::Relaxed), "others came in between");
}

#[tokio::test]
async fn each_batch_of_a_resharding_has_a_deadline() {
    let (_, store) = memory();
    forty(&store).await;
    let checked = Sieve::answering(&store, |ctx, op| {
        assert!(ctx.deadline.is_some(), "{op:?}");
        None
    });
    set(&checked, 2).await.reshard(3).await.unwrap();
}

/// The third batch writes the plan.
#[tokio::test]
async fn a_resharding_whose_plan_is_refused_is_told_and_changes_nothing() {
    let (memory, store) = memory();
    forty(&store).await;
    let before = contents(&memory);
    let hooked = Hooked::new(&store);
    let set = set(&hooked.shared(), 2).await;
    hooked.refuse(3);
    let error = set.reshard(3).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert!(contents(&memory) == before, "{:?}", contents(&memory).keys());
}

#[tokio::test]
async fn a_resharding_whose_plan_is_gone_when_its_shards_are_made_removes_them_and_says_that_the_map_went_back() {
    let (memory, store) = memory();
    forty(&store).await;
    let (hooked, before) = (Hooked::new(&store), map(&memory));
    let late = set(&hooked.shared(), 2).await;
    let back = memory.clone();
    // It has made its shards, and reads the map again.
    hooked.at(MAKES + 1, move |store, batch| async move {
        put_back(&back, &before);
        store.run(Ctx::default(), batch).await
    });
    let error = late.reshard(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RolledBack, "{error}");
    assert_eq!(memory.stats().items, 2 + 2, "{:?}", contents(&memory).keys());
    late.reshard(3).await.unwrap();
    assert_eq!(late.len().await.unwrap(), 40);
}

/// A store on which it takes so long to make anything.
fn slow_to_make(store: &StoreRef, takes: Duration) -> StoreRef {
    let slow = Between::new(store);
    slow.slow(adds, (takes, Duration::ZERO));
    slow.shared()
}

/// To make its shards takes each of them longer than the others wait at first, who take it for dead.
#[tokio::test(start_paused = true)]
async fn reshardings_that_clear_each_others_plans_away_come_to_an_end() {
    let (_, store) = memory();
    forty(&store).await;
    let slow = slow_to_make(&store, Duration::from_secs(3));
    let (one, two, three) = (set(&slow, 2).await, set(&slow, 2).await, set(&slow, 2).await);
    let (one, two, three) = tokio::join!(one.reshard(3), two.reshard(4), three.reshard(5));
    for (nth, outcome) in [one, two, three].into_iter().enumerate() {
        outcome.unwrap_or_else(|error| panic!("resharding {nth}: {error}"));
    }
    assert_eq!(set(&store, 2).await.len().await.unwrap(), 40);
}

/// The second one takes the first for dead after 2 s, and the first the second; then the second leaves the first the 4 s that it needs.
#[tokio::test(start_paused = true)]
async fn who_took_a_live_one_for_dead_is_patient_for_twice_as_long() {
    let (_, store) = memory();
    forty(&store).await;
    let one = set(&slow_to_make(&store, Duration::from_millis(4_000)), 2).await;
    let two = set(&slow_to_make(&store, Duration::from_millis(4_500)), 2).await;
    let begin = Instant::now();
    let first = async {
        one.reshard(3).await.unwrap();
        begin.elapsed()
    };
    let (first, second) = tokio::join!(first, two.reshard(4));
    second.unwrap();
    assert!(first < Duration::from_secs(12), "{first:?}");
}
