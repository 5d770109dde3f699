//! Making a period of unique visitors, and clearing one away: what is told, and what is left, where a step of it fails.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, StoreExt, StoreRef, Verb};
use larder_structures::{Name, Novelty, UniqueVisitors, registry};

use super::support::{DAY, ENTRY, HEAD, SHARDS, memory, open, options};
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, dies_at, fail};
use crate::support::shaped::Shaped;
use crate::support::steady::metered;

/// A period is looked for, found by nobody, and made: but not where the store says that it takes nothing of the kind.
#[tokio::test]
async fn a_period_that_a_store_does_not_take_is_tried_once() {
    let (_, store) = memory();
    let hooked = Hooked::new(&store);
    let counting = metered(hooked.shared());
    let site = open(&(Arc::new(counting.clone()) as StoreRef)).await;
    for nth in 1..=60 {
        hooked.at(nth, |_, batch| async move {
            let refuse = |_| Err(Error::new(ErrorKind::Unsupported, "not here").effect(Effect::NotApplied));
            batch.iter().map(refuse).collect()
        });
    }
    let before = counting.counts();
    let error = site.add([1u64]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
    assert_eq!(counting.counts().since(&before).round_trips, 1);
}

/// The next writer enters it in its maker's place, before a visitor is counted.
#[tokio::test]
async fn the_loss_of_a_period_whose_maker_died_before_he_entered_it_is_told() {
    let (_, store) = memory();
    let hooked = Hooked::new(&store);
    let dying = open(&hooked.shared()).await;
    let (keep, head) = std::sync::mpsc::channel();
    hooked.at(HEAD, move |store, batch| async move {
        keep.send(batch[0].key.clone()).unwrap();
        store.run(Ctx::default(), batch).await
    });
    dies_at(&hooked, ENTRY, dying.add([1u64])).await;
    assert_eq!(open(&store).await.add([2u64]).await.unwrap(), [Novelty::New]);
    assert!(store.delete(head.recv().unwrap()).await.unwrap(), "it was there");
    let error = open(&store).await.count().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// A store on which what enters periods in the list is under way for ever; and that.
fn that_keeps_entries_back(store: &StoreRef) -> (StoreRef, Arc<Mutex<Vec<Op>>>) {
    let (answering, kept) = (Answering::new(store), Arc::new(Mutex::new(Vec::new())));
    let keeps = kept.clone();
    answering.by(move |op| {
        let is_entry = matches!(op.verb, Verb::Put { mode: PutMode::Append, .. }) && op.key.as_bytes().ends_with(b".0");
        is_entry.then(|| {
            keeps.lock().unwrap().push(op.clone());
            Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::Unknown))
        })
    });
    (answering.shared(), kept)
}

/// What became of its entry is not known: it may come yet, and name what must be there then.
#[tokio::test]
async fn a_period_whose_entry_comes_late_is_no_loss() {
    let (_, store) = memory();
    let (slow, kept) = that_keeps_entries_back(&store);
    let options = || options().keep(DAY).timeout(Duration::from_millis(200));
    let site = options().open_or_create(&slow, "site").await.unwrap();
    site.add([1u64]).await.unwrap_err();
    let first = kept.lock().unwrap().remove(0);
    assert_eq!(store.run_one(Ctx::default(), first).await.unwrap(), Reply::Stored);
    let other = options().open(&store, "site").await.unwrap();
    assert_eq!(other.add([1u64]).await.unwrap(), [Novelty::New]);
    assert_eq!(other.count().await.unwrap().visitors, 1);
}

/// Where nothing expires, the plan names them to whoever drops the structure.
#[tokio::test]
async fn shards_that_come_after_their_maker_gave_them_up_are_dropped_with_the_structure() {
    let (inner, store) = memory();
    let hooked = Hooked::new(&store);
    let site = open(&hooked.shared()).await;
    let late = Arc::new(Mutex::new(Batch::new()));
    let keeps = late.clone();
    hooked.at(SHARDS, move |_, batch| async move {
        let replies = fail(&batch, Effect::Unknown);
        *keeps.lock().unwrap() = batch;
        replies
    });
    assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
    let late = std::mem::take(&mut *late.lock().unwrap());
    let replies = store.run(Ctx::default(), late).await;
    assert!(!replies.is_empty() && replies.iter().all(|reply| matches!(reply, Ok(Reply::Stored))), "{replies:?}");
    registry::drop_structure(&store, Ctx::default(), &Name::new("site").unwrap()).await.unwrap().unwrap();
    assert_eq!(inner.stats().items, 0);
}

#[tokio::test(start_paused = true)]
async fn strange_answers_to_the_making_of_shards_are_told_as_that() {
    let (_, store) = memory();
    let answering = Answering::new(&store);
    let site = open(&answering.shared()).await;
    answering.by(|op| matches!(op.verb, Verb::Put { mode: PutMode::Add, .. }).then_some(Ok(Reply::Deleted)));
    let error = site.add([1u64]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::NotApplied), "{error}");
}

/// Nobody need look what became of it.
#[tokio::test]
async fn a_head_that_was_not_sent_is_not_looked_for() {
    let (inner, store) = memory();
    let hooked = Hooked::new(&store);
    let site = open(&hooked.shared()).await;
    hooked.refuse(HEAD);
    let (tell, next) = std::sync::mpsc::channel();
    hooked.at(HEAD + 1, move |store, batch| async move {
        tell.send(batch.iter().all(|op| matches!(op.verb, Verb::Delete { .. }))).unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
    assert!(next.recv().unwrap(), "what was made for it goes at once");
    assert_eq!(inner.stats().items, 4, "manifest, list, head and shard");
}

#[tokio::test]
async fn a_period_that_is_forgotten_leaves_no_shard() {
    let (inner, store) = memory();
    let site = options().expected(20_000).open_or_create(&store, "site").await.unwrap();
    site.add([1u64]).await.unwrap();
    assert!(inner.stats().items > 10, "there are shards");
    site.forget(site.current().unwrap()).await.unwrap();
    assert_eq!(inner.stats().items, 2, "manifest and list");
}

/// How many are expected is no part of what is fixed: each handle has its own.
#[tokio::test]
async fn a_handle_expects_as_many_as_it_was_told_and_else_as_its_maker() {
    let (_, store) = memory();
    let made = options().expected(700).open_or_create(&store, "site").await.unwrap();
    let year = made.current().unwrap();
    let told = options().expected(5_000).open(&store, "site").await.unwrap();
    let untold = UniqueVisitors::open(&store, "site").await.unwrap();
    for (site, expected) in [(&made, 700), (&told, 5_000), (&untold, 700)] {
        assert_eq!(site.forecast(year).await.unwrap(), expected);
    }
}

/// Of the days of a zone one may be two days long, where the date line was moved.
#[tokio::test]
async fn a_store_carries_periods_that_live_as_long_as_it_takes_and_no_longer() {
    let (_, memory) = memory();
    let days = || UniqueVisitors::options().period(DAY).keep(DAY);
    // Their own day, one that they are kept, and three times five minutes for clocks that are apart.
    for (options, name, life_s) in [(days(), "plain", 173_700), (days().zone("Europe/Berlin"), "of-a-zone", 260_100)] {
        let lives = |ms| Shaped::over(&memory, |profile| profile.ttl_max = Duration::from_millis(ms));
        let error = options.open_or_create(&lives(life_s * 1_000 - 1), name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains(&format!("periods must live for {life_s}s")), "{error}");
        options.open_or_create(&lives(life_s * 1_000), name).await.unwrap();
    }
}
