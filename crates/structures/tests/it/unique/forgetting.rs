//! Forgetting a period of unique visitors beside those who make it, add to it, and forget it too; and what comes of it late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, Op, PutMode, Reply, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Novelty, UniqueVisitors, registry};
use larder_testkit::yielding::Yielding;
use tokio::sync::Notify;

use super::support::{DAY, ENTRY, HEAD, SHARDS, memory, open, options};
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, dies_at, fail};
use crate::support::shaped::Shaped;
use crate::support::steady::metered;

/// The steps of forgetting one: read, enter that it begins, ...
const DELETES: u64 = 3;
const END: u64 = 4;
/// How often chance decides who goes first.
const ROUNDS: u64 = 40;

async fn count(site: &UniqueVisitors) -> u64 {
    site.count().await.unwrap().visitors
}

async fn forget(site: &UniqueVisitors) {
    site.forget(site.current().unwrap()).await.unwrap();
}

/// The key of the head that stands.
fn head_of(memory: &MemoryStore) -> Key {
    let mut heads = Vec::new();
    memory.each(|key, _| {
        let index = key.rsplit(|&byte| byte == b'.').next().unwrap();
        heads.extend((index[0] == b'h').then(|| Key::new(key.to_vec()).unwrap()));
    });
    assert_eq!(heads.len(), 1, "{heads:?}");
    heads.remove(0)
}

/// Loses the head that stands.
async fn lose_head(memory: &MemoryStore, store: &StoreRef) {
    assert!(store.delete(head_of(memory)).await.unwrap(), "it was there");
}

async fn drop_all(store: &StoreRef) {
    registry::drop_structure(store, Ctx::default(), &Name::new("site").unwrap()).await.unwrap().unwrap();
}

fn is_lost(error: &Error) {
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
}

/// Its shards are found by the list: else they lived on, and who has the period open would add to them behind the others' backs.
#[tokio::test]
async fn who_has_a_period_open_that_was_forgotten_without_its_head_is_told_and_adds_to_the_next_one() {
    for keep in [None, Some(DAY)] {
        let (inner, store) = memory();
        let options = || keep.map_or_else(options, |keep| options().keep(keep));
        let known = options().open_or_create(&store, "site").await.unwrap();
        let fresh = options().open(&store, "site").await.unwrap();
        assert_eq!(known.add([1u64]).await.unwrap(), [Novelty::New]);
        lose_head(&inner, &store).await;
        is_lost(&fresh.count().await.unwrap_err());
        forget(&fresh).await;
        assert_eq!(fresh.add([2u64]).await.unwrap(), [Novelty::New]);
        is_lost(&known.add([3u64]).await.unwrap_err());
        assert_eq!(known.add([2u64, 3]).await.unwrap(), [Novelty::Known, Novelty::New]);
        assert_eq!((count(&known).await, count(&fresh).await), (2, 2));
        assert_eq!(inner.stats().items, 4, "manifest, list, head and shard: {keep:?}");
    }
}

/// What he enters late is void, and takes nothing of the next one's.
#[tokio::test]
async fn a_period_that_is_forgotten_before_its_maker_enters_it_is_none_beside_the_next() {
    let (inner, store) = memory();
    let hooked = Hooked::new(&store);
    let (maker, other) = (open(&hooked.shared()).await, open(&store).await);
    let next = other.clone();
    hooked.at(ENTRY, move |store, batch| async move {
        forget(&next).await;
        assert_eq!(next.add([7u64]).await.unwrap(), [Novelty::New]);
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(maker.add([7u64, 8]).await.unwrap(), [Novelty::Known, Novelty::New]);
    assert_eq!(other.add([8u64, 9]).await.unwrap(), [Novelty::Known, Novelty::New]);
    assert_eq!(count(&open(&store).await).await, 3);
    forget(&other).await;
    assert_eq!(count(&open(&store).await).await, 0);
    assert_eq!(inner.stats().items, 2, "manifest and list");
}

/// They are made once it is read which there are, and before these are deleted.
#[tokio::test]
async fn a_maker_whose_shards_were_deleted_by_who_read_his_plan_begins_anew() {
    let (inner, store) = memory();
    let (hooked, between) = (Hooked::new(&store), Hooked::new(&store));
    let (maker, other) = (open(&hooked.shared()).await, open(&between.shared()).await);
    hooked.at(SHARDS, move |store, batch| async move {
        let (tell, told) = std::sync::mpsc::channel();
        between.at(2, move |_, next| async move {
            tell.send(store.run(Ctx::default(), batch).await).unwrap();
            store.run(Ctx::default(), next).await
        });
        forget(&other).await;
        told.recv().unwrap()
    });
    assert_eq!(maker.add([7u64]).await.unwrap(), [Novelty::New]);
    assert_eq!(count(&open(&store).await).await, 1);
    drop_all(&store).await;
    assert_eq!(inner.stats().items, 0);
}

/// Neither is a head that is lost any help to find them, nor a maker who goes on.
#[tokio::test]
async fn shards_that_are_made_once_their_plan_was_forgotten_are_removed() {
    for dies in [false, true] {
        let (inner, store) = memory();
        let hooked = Hooked::new(&store);
        let (maker, other) = (open(&hooked.shared()).await, open(&store).await);
        let forgets = other.clone();
        hooked.at(SHARDS, move |store, batch| async move {
            forget(&forgets).await;
            store.run(Ctx::default(), batch).await
        });
        if dies {
            dies_at(&hooked, ENTRY, maker.add([7u64])).await;
            // By then the head is void.
            assert_eq!(count(&other).await, 0);
            assert_eq!(other.add([7u64]).await.unwrap(), [Novelty::New]);
            assert_eq!(inner.stats().items, 5, "manifest, list, head, and two shards, of which one is nobody's");
        } else {
            assert_eq!(maker.add([7u64]).await.unwrap(), [Novelty::New]);
            assert_eq!(inner.stats().items, 4, "manifest, list, head and shard");
        }
        assert_eq!(count(&other).await, 1);
        lose_head(&inner, &store).await;
        if dies {
            forget(&open(&store).await).await;
            assert_eq!(inner.stats().items, 2, "manifest and list");
        }
        drop_all(&store).await;
        assert_eq!(inner.stats().items, 0);
    }
}

/// Nobody knows when what was sent arrives.
#[tokio::test]
async fn a_part_of_a_removal_that_comes_late_takes_nothing_of_the_next_period() {
    for step in [DELETES, 2, END] {
        let (_, store) = memory();
        let hooked = Hooked::new(&store);
        let (slow, other) = (open(&hooked.shared()).await, open(&store).await);
        other.add([1u64]).await.unwrap();
        let late = Arc::new(Mutex::new(Batch::new()));
        let keeps = late.clone();
        hooked.at(step, move |_, batch| async move {
            let replies = fail(&batch, Effect::Unknown);
            *keeps.lock().unwrap() = batch;
            replies
        });
        // What is written to the list is written again.
        let forgotten = slow.forget(slow.current().unwrap()).await;
        assert_eq!(forgotten.is_err(), step == DELETES, "step {step}: {forgotten:?}");
        forget(&other).await;
        assert_eq!(other.add([2u64]).await.unwrap(), [Novelty::New]);
        let late = std::mem::take(&mut *late.lock().unwrap());
        assert!(!late.is_empty());
        store.run(Ctx::default(), late).await;
        assert_eq!(other.add([2u64, 3]).await.unwrap(), [Novelty::Known, Novelty::New], "step {step}");
        assert_eq!(count(&open(&store).await).await, 2, "step {step}");
    }
}

/// What became of it is not known to its maker, and what he made was forgotten since.
#[tokio::test]
async fn an_entry_that_comes_once_its_period_was_forgotten_is_no_loss() {
    let (_, store) = memory();
    let (answering, kept) = (Answering::new(&store), Arc::new(Mutex::new(Vec::<Op>::new())));
    let keeps = kept.clone();
    answering.by(move |op| {
        let is_entry = matches!(op.verb, Verb::Put { mode: PutMode::Append, .. }) && op.key.as_bytes().ends_with(b".0");
        is_entry.then(|| {
            keeps.lock().unwrap().push(op.clone());
            Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::Unknown))
        })
    });
    let options = || options().keep(DAY).timeout(Duration::from_millis(200));
    let maker = options().open_or_create(&answering.shared(), "site").await.unwrap();
    maker.add([1u64]).await.unwrap_err();
    let other = options().open(&store, "site").await.unwrap();
    forget(&other).await;
    let first = kept.lock().unwrap().remove(0);
    assert_eq!(store.run_one(Ctx::default(), first).await.unwrap(), Reply::Stored);
    assert_eq!(count(&other).await, 0);
    assert_eq!(other.add([1u64]).await.unwrap(), [Novelty::New]);
    assert_eq!(count(&options().open(&store, "site").await.unwrap()).await, 1);
}

/// Who has it open may add to it still: so nobody reads it as one that nobody came in, or begins the next.
#[tokio::test]
async fn a_removal_that_stops_midway_is_a_loss_until_it_is_done_again() {
    for step in [DELETES, END] {
        let (inner, store) = memory();
        let hooked = Hooked::new(&store);
        let (known, dying, other) = (open(&store).await, open(&hooked.shared()).await, open(&store).await);
        known.add([1u64]).await.unwrap();
        dies_at(&hooked, step, dying.forget(dying.current().unwrap())).await;
        is_lost(&other.count().await.unwrap_err());
        is_lost(&other.add([2u64]).await.unwrap_err());
        match known.add([2u64]).await {
            Ok(told) => assert_eq!((step, told), (DELETES, vec![Novelty::New])),
            Err(error) => is_lost(&error),
        }
        forget(&other).await;
        assert_eq!((count(&other).await, inner.stats().items), (0, 2), "manifest and list: step {step}");
        if step == DELETES {
            is_lost(&known.add([2u64]).await.unwrap_err());
        }
        assert_eq!(known.add([2u64]).await.unwrap(), [Novelty::New]);
    }
}

/// A maker is told, too, whose period is just being forgotten as he looks at it once more.
#[tokio::test]
async fn a_maker_beside_a_removal_that_stopped_midway_is_told() {
    let (_, store) = memory();
    let (hooked, between) = (Hooked::new(&store), Hooked::new(&store));
    let (maker, dying) = (open(&hooked.shared()).await, open(&between.shared()).await);
    hooked.at(HEAD + 2, move |store, batch| async move {
        dies_at(&between, DELETES, dying.forget(dying.current().unwrap())).await;
        store.run(Ctx::default(), batch).await
    });
    is_lost(&maker.add([7u64]).await.unwrap_err());
    let other = open(&store).await;
    forget(&other).await;
    assert_eq!(other.add([7u64]).await.unwrap(), [Novelty::New]);
    assert_eq!(maker.add([7u64, 8]).await.unwrap(), [Novelty::Known, Novelty::New]);
}

/// Where a store deletes nothing by its token, the head stays, and the next takes its place: of two makers that of one.
#[tokio::test]
async fn a_head_that_was_forgotten_and_stands_is_nobodys_and_gives_way() {
    let (inner, memory) = memory();
    let store = Shaped::over(&memory, |profile| profile.delete_cas = false);
    let hooked = Hooked::new(&store);
    let (slow, other) = (open(&hooked.shared()).await, open(&store).await);
    for round in 0..3u64 {
        other.add([7u64]).await.unwrap();
        forget(&other).await;
        assert_eq!(inner.stats().items, 3, "manifest, list and head");
        assert_eq!((count(&other).await, other.is_new(7u64).await.unwrap()), (0, Novelty::New), "{round}");
        let first = other.clone();
        hooked.at(HEAD, move |store, batch| async move {
            assert_eq!(first.add([7u64]).await.unwrap(), [Novelty::New]);
            store.run(Ctx::default(), batch).await
        });
        assert_eq!(slow.add([7u64, 8]).await.unwrap(), [Novelty::Known, Novelty::New], "{round}");
        assert_eq!((count(&other).await, inner.stats().items), (2, 4), "manifest, list, head and shard");
        forget(&other).await;
        is_lost(&slow.add([8u64]).await.unwrap_err());
    }
    drop_all(&store).await;
    assert_eq!(inner.stats().items, 0);
}

/// A head whose reply was lost may take the place of the void one yet, while that stands: its shards are there then.
#[tokio::test]
async fn a_head_that_comes_late_in_the_place_of_one_that_was_forgotten_has_its_shards() {
    let (_, memory) = memory();
    let store = Shaped::over(&memory, |profile| profile.delete_cas = false);
    let hooked = Hooked::new(&store);
    let site = open(&hooked.shared()).await;
    site.add([7u64]).await.unwrap();
    forget(&site).await;
    let late = Arc::new(Mutex::new(None));
    let sent = late.clone();
    hooked.at(HEAD, move |_, batch| async move {
        let replies = fail(&batch, Effect::Unknown);
        *sent.lock().unwrap() = Some(batch);
        replies
    });
    // He looks whose head it is, and finds the void one; over another connection it has another token.
    hooked.at(HEAD + 1, |store, batch| async move {
        let mut replies = store.run(Ctx::default(), batch).await;
        for reply in &mut replies {
            if let Ok(Reply::Item(item)) = reply {
                item.cas = item.cas.map(|cas| larder_core::Cas { session: cas.session + 1, ..cas });
            }
        }
        replies
    });
    hooked.at(HEAD + 2, move |store, batch| async move {
        let head = late.lock().unwrap().take().unwrap();
        assert!(matches!(store.run(Ctx::default(), head).await[..], [Ok(Reply::Stored)]));
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(site.add([7u64]).await.unwrap(), [Novelty::New]);
    assert_eq!((count(&site).await, count(&open(&store).await).await), (1, 1));
}

/// Of lives that were forgotten the list keeps 1,024: what it lets go of it lets go of whole.
#[tokio::test]
async fn an_entry_that_came_late_goes_with_the_word_that_its_life_was_forgotten() {
    let (_, store) = memory();
    let hooked = Hooked::new(&store);
    let days = options().period(DAY);
    let maker = days.open_or_create(&hooked.shared(), "site").await.unwrap();
    let other = days.open(&store, "site").await.unwrap();
    let first = maker.current().unwrap() - 1_100;
    let (late, died) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
    let (sent, dies) = (late.clone(), died.clone());
    hooked.at(ENTRY, move |_, batch| async move {
        *sent.lock().unwrap() = Some(batch);
        dies.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        _ = maker.add_in(first, [7u64]) => panic!("it came to an end"),
        () = died.notified() => {}
    }
    other.forget(first).await.unwrap();
    let batch: Batch = late.lock().unwrap().take().unwrap();
    assert!(store.run(Ctx::default(), batch).await.iter().all(|reply| matches!(reply, Ok(Reply::Stored))));
    assert_eq!(other.count_in(first).await.unwrap().visitors, 0, "the entry is passed over");
    for period in first + 1..first + 1_090 {
        other.add_in(period, [7u64]).await.unwrap();
        other.forget(period).await.unwrap();
    }
    assert_eq!(other.count_in(first).await.unwrap().visitors, 0);
    assert_eq!(other.add_in(first, [7u64]).await.unwrap(), [Novelty::New]);
}

/// A head that goes just before the next one would take its place: it is looked for once more.
#[tokio::test]
async fn a_head_that_was_forgotten_and_goes_as_the_next_comes_is_no_loss() {
    let (inner, memory) = memory();
    let store = Shaped::over(&memory, |profile| profile.delete_cas = false);
    let hooked = Hooked::new(&store);
    let site = open(&hooked.shared()).await;
    site.add([7u64]).await.unwrap();
    forget(&site).await;
    let (key, is_gone) = (head_of(&inner), Arc::new(Mutex::new(false)));
    let goes = is_gone.clone();
    hooked.at(HEAD, move |store, batch| async move {
        *goes.lock().unwrap() = store.delete(key).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert_eq!(site.add([7u64]).await.unwrap(), [Novelty::New]);
    assert!(*is_gone.lock().unwrap());
    assert_eq!((count(&site).await, inner.stats().items), (1, 4), "manifest, list, head and shard");
}

#[tokio::test]
async fn a_removal_takes_four_round_trips_and_of_a_period_in_which_nobody_came_one() {
    for keep in [None, Some(DAY)] {
        let counting = metered(memory().1);
        let shared: StoreRef = Arc::new(counting.clone());
        let options = keep.map_or_else(options, |keep| options().keep(keep));
        let site = options.open_or_create(&shared, "site").await.unwrap();
        for expected in [4, 1] {
            if expected == 4 {
                site.add([1u64]).await.unwrap();
            }
            let before = counting.counts();
            forget(&site).await;
            assert_eq!(counting.counts().since(&before).round_trips, expected, "{keep:?}");
        }
        // As often as it is made anew.
        site.add([1u64]).await.unwrap();
        let before = counting.counts();
        forget(&site).await;
        assert_eq!(counting.counts().since(&before).round_trips, 4, "{keep:?}");
    }
}

/// Who comes once it was forgotten for the last time counts, and is new once; before that some are told that it is lost, and none anything else.
#[tokio::test]
async fn a_period_that_is_forgotten_again_and_again_beside_those_who_add_to_it_counts_who_came_since() {
    for round in 0..ROUNDS {
        let (inner, memory) = memory();
        let store: StoreRef = Arc::new(Yielding(memory));
        let (time, last) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let options = if round % 2 == 0 { options() } else { options().keep(DAY) };
        // What is drawn from here on is another in each round, and the same in each run.
        fastrand::seed(round);
        let mut tasks = Vec::new();
        for task in 0..5u64 {
            let site = options.open_or_create(&store, "site").await.unwrap();
            let (time, last) = (time.clone(), last.clone());
            tasks.push(tokio::spawn(async move {
                let mut told = Vec::new();
                for step in 0..8u64 {
                    if task == 0 && step % 3 == 2 {
                        forget(&site).await;
                        last.fetch_max(time.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                    }
                    let (began, id) = (time.fetch_add(1, Ordering::SeqCst), 3 * task + step);
                    match site.add([id]).await {
                        Ok(novelty) => told.push((began, id, novelty[0])),
                        Err(error) => is_lost(&error),
                    }
                }
                (site, told)
            }));
        }
        let (mut sites, mut since) = (Vec::new(), Vec::new());
        for task in tasks {
            let (site, told) = task.await.unwrap();
            sites.push(site);
            since.extend(told.into_iter().filter(|(began, ..)| *began > last.load(Ordering::SeqCst)));
        }
        let fresh = options.open(&store, "site").await.unwrap();
        let found = fresh.are_new_in(fresh.current().unwrap(), 0..20u64).await.unwrap();
        for &(_, id, _) in &since {
            assert_eq!(found[id as usize], Novelty::Known, "{id} in round {round}");
            let new = since.iter().filter(|told| told.1 == id && told.2 == Novelty::New).count();
            assert!(new <= 1, "{id} was new {new} times in round {round}");
        }
        let known = found.iter().filter(|novelty| **novelty == Novelty::Known).count() as u64;
        assert_eq!(count(&fresh).await, known, "round {round}");
        for (site, id) in sites.into_iter().zip(100u64..) {
            // Who had it open before may learn of it just now.
            let told = match site.add([id]).await {
                Err(error) => {
                    is_lost(&error);
                    site.add([id]).await
                }
                told => told,
            };
            assert_eq!(told.unwrap(), [Novelty::New], "round {round}");
        }
        assert_eq!(count(&fresh).await, known + 5, "round {round}");
        drop_all(&store).await;
        assert_eq!(inner.stats().items, 0, "round {round}");
    }
}
