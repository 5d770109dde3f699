//! Caches on a connection that breaks: before and after every op, at random, and with requests that arrive late.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Reply, StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::cache::{Lookup, Source};
use larder_structures::{Cache, CacheOptions};
use larder_testkit::faulty::{Fault, Faulty};

use crate::cache::support::{Truth, cached, churn, clocked, found, is_fresh, leased, options, secs, why_not};
use crate::lock::support::memory;
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, fail};
use crate::support::slow::Slow;
use crate::support::steady::metered;

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

/// A lease where time is paused. The store's sweeper goes by real time: so long no machine stands still.
const LONG: Duration = Duration::from_secs(60);

fn brief() -> CacheOptions {
    options().timeout(Duration::from_millis(400))
}

/// Whichever op breaks: what is said to be cached is, what is said not to be is not, and when the lease is over it can be made anew.
#[tokio::test]
async fn a_rebuild_says_truly_whether_it_was_cached_whichever_op_breaks() {
    for is_stale in [false, true] {
        for fault in FAULTS {
            for nth in 1.. {
                let (clock, inner) = clocked();
                let faulty = Faulty::new(inner.clone());
                let cache = brief().open_or_create(&faulty.shared(), "c").await.unwrap();
                let direct = brief().open(&inner, "c").await.unwrap();
                if is_stale {
                    cached(&direct, "k", "old").await;
                    clock.advance(secs(11));
                }
                faulty.fail_nth(nth, fault);
                let made = cache.get_or_rebuild("k", async || Ok::<_, larder_core::Error>("v")).await;
                let is_injected = faulty.injected() > 0;
                faulty.heal();
                faulty.deliver_late().await;
                let seen = direct.get("k").await.unwrap();
                let column = format!("{fault:?} at op {nth}, stale {is_stale}: {made:?}, {seen:?}");
                match &made {
                    Ok(made) => {
                        let Source::Rebuilt(outcome) = &made.source else { panic!("{column}") };
                        // One fault alone leaves nothing unknown.
                        assert!(outcome.is_ok(), "{column}");
                        assert!(is_fresh(&seen.unwrap(), "v"), "{column}");
                    }
                    // Nothing was made; a read that failed is told.
                    Err(_) => assert!(seen.is_none_or(|seen| seen.value == "old"), "{column}"),
                }
                clock.advance(secs(2));
                direct.invalidate("k").await.unwrap();
                assert!(cached(&cache, "k", "w").await.is_kept(), "{column}");
                if !is_injected {
                    assert!(nth > 4, "only {nth} ops");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn an_invalidation_that_is_acknowledged_took_effect_whichever_op_breaks() {
    for fault in FAULTS {
        for nth in 1..=2 {
            let (_, inner) = clocked();
            let faulty = Faulty::new(inner.clone());
            let cache = brief().open_or_create(&faulty.shared(), "c").await.unwrap();
            let direct = brief().open(&inner, "c").await.unwrap();
            cached(&direct, "k", "v").await;
            faulty.fail_nth(nth, fault);
            let outcome = cache.invalidate("k").await;
            let there = direct.get("k").await.unwrap();
            match (outcome, fault) {
                (Ok(()), _) => assert!(there.is_none(), "{fault:?}"),
                (Err(error), Fault::NotSent) => assert!(!error.is_unknown() && there.is_some()),
                (Err(error), _) => panic!("{fault:?}: {error}"),
            }
        }
    }
}

/// A final write that the network keeps back until long after its caller gave up.
#[tokio::test]
async fn a_value_that_arrives_late_does_not_undo_an_invalidation_or_another_rebuild() {
    for is_remade in [false, true] {
        let (_, inner) = clocked();
        let hooked = Hooked::new(&inner);
        let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
        let direct = brief().open(&inner, "c").await.unwrap();
        let lease = leased(&cache, "k").await;
        let (send, mut late) = tokio::sync::mpsc::unbounded_channel::<Batch>();
        for nth in 1..200 {
            let send = send.clone();
            hooked.at(nth, |_, batch| async move {
                let replies = fail(&batch, Effect::Unknown);
                _ = send.send(batch);
                replies
            });
        }
        let made = lease.finish("old").await;
        assert_eq!(made.value, "old");
        assert!(why_not(&made).is_unknown(), "{made:?}");
        direct.invalidate("k").await.unwrap();
        if is_remade {
            cached(&direct, "k", "new").await;
        }
        let mut arrived = 0;
        while let Ok(batch) = late.try_recv() {
            arrived += 1;
            _ = inner.run(Ctx::default(), batch).await;
        }
        assert!(arrived > 1);
        match direct.get("k").await.unwrap() {
            Some(seen) => assert!(is_remade && is_fresh(&seen, "new"), "{seen:?}"),
            None => assert!(!is_remade),
        }
    }
}

/// It landed, others were served it, and then it was removed: nobody can tell that from one that never landed.
#[tokio::test]
async fn a_value_whose_reply_is_lost_and_that_is_removed_before_the_look_is_unknown() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let direct = brief().open(&inner, "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    hooked.at(1, move |store, batch| async move {
        _ = store.run(Ctx::default(), batch.clone()).await;
        assert!(is_fresh(&direct.get("k").await.unwrap().unwrap(), "v"));
        direct.invalidate("k").await.unwrap();
        fail(&batch, Effect::Unknown)
    });
    let made = lease.finish("v").await;
    assert!(!made.is_kept() && why_not(&made).is_unknown(), "{made:?}");
}

/// A server that takes requests and does not answer in time.
#[tokio::test]
async fn an_invalidation_takes_one_timeout_for_all_its_tries_and_is_unknown_then() {
    let (_, inner) = clocked();
    let slow = Slow::new(&inner, true);
    let store: StoreRef = slow.clone();
    let cache = options().timeout(secs(1)).open_or_create(&store, "c").await.unwrap();
    cached(&cache, "k", "v").await;
    slow.take_ms([(60_000, 0); 8]);
    let begin = Instant::now();
    assert!(cache.invalidate("k").await.unwrap_err().is_unknown());
    assert!(begin.elapsed() < secs(3), "{:?}", begin.elapsed());
}

/// The first try may have taken effect, and the next one was not even sent.
#[tokio::test]
async fn an_invalidation_whose_second_try_is_refused_is_unknown() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    for (nth, effect) in [(1, Effect::Unknown), (2, Effect::NotApplied)] {
        hooked.at(nth, move |_, batch| async move { fail(&batch, effect) });
    }
    assert!(cache.invalidate("k").await.unwrap_err().is_unknown());
}

/// It was given up for unknown, and nobody was in its way since: nothing that comes behind it undoes it.
#[tokio::test(start_paused = true)]
async fn a_value_of_unknown_outcome_that_arrives_late_is_cached() {
    let (inner, clock) = memory();
    let answering = Answering::new(&inner);
    let cache = brief().lease(LONG).clock(clock.clone()).open_or_create(&answering.shared(), "c").await.unwrap();
    let direct = brief().clock(clock).open(&inner, "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    let late = Arc::new(Mutex::new(Vec::new()));
    let keeps = late.clone();
    answering.by(move |op| match &op.verb {
        Verb::Put { value, .. } if value.ends_with(b"made") => {
            keeps.lock().unwrap().push(op.clone());
            Some(Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::Unknown)))
        }
        _ => None,
    });
    assert!(why_not(&lease.finish("made").await).is_unknown());
    let first = late.lock().unwrap().remove(0);
    assert_eq!(inner.run_one(Ctx::default(), first).await.unwrap(), Reply::Stored);
    assert!(is_fresh(&direct.get("k").await.unwrap().unwrap(), "made"));
}

/// Nothing of it can have taken effect.
#[tokio::test]
async fn a_value_that_was_not_sent_before_its_lease_went_was_not_cached_for_certain() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let direct = brief().open(&inner, "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    hooked.at(1, move |_, batch| async move {
        direct.invalidate("k").await.unwrap();
        fail(&batch, Effect::NotApplied)
    });
    let made = lease.finish("v").await;
    assert_eq!((why_not(&made).kind(), why_not(&made).known_effect()), (ErrorKind::Conflict, Effect::NotApplied));
}

/// What a store does not take it will not take the next time: the lease is given up at once, so that others may try.
#[tokio::test]
async fn a_value_that_the_store_does_not_take_is_sent_once_and_its_lease_is_given_up() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    hooked.at(1, |_, batch| async move {
        let refuse = |_| Err(Error::new(ErrorKind::Full, "no room").effect(Effect::NotApplied));
        batch.iter().map(refuse).collect()
    });
    let made = lease.finish("v").await;
    assert_eq!((why_not(&made).kind(), why_not(&made).known_effect()), (ErrorKind::Full, Effect::NotApplied));
    assert!(matches!(cache.lookup("k").await.unwrap(), Lookup::Rebuild(_)));
}

#[tokio::test]
async fn a_last_write_whose_reply_is_lost_is_looked_for_until_the_store_answers() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().timeout(LONG).open_or_create(&hooked.shared(), "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    hooked.lose_replies(1);
    (2..5).for_each(|nth| hooked.refuse(nth));
    assert!(lease.finish("v").await.is_kept());
    assert!(is_fresh(&found(&cache, "k").await, "v"));
}

/// It landed, and its caller did not wait to hear of it: what gives a lease up that was not finished leaves it.
#[tokio::test]
async fn a_value_stays_though_its_finish_was_dropped_before_it_was_answered() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    let landed = Arc::new(tokio::sync::Notify::new());
    let lands = landed.clone();
    hooked.at(1, |store, batch| async move {
        assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok), "it lands");
        lands.notify_one();
        std::future::pending().await
    });
    tokio::select! {
        biased;
        _ = lease.finish("v") => panic!("it was answered"),
        () = landed.notified() => {}
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(is_fresh(&found(&cache, "k").await, "v"));
}

/// Two leases of one caller: the network keeps the first back, the second lands, and the first arrives after an invalidation.
#[tokio::test]
async fn a_lease_that_arrives_late_does_not_undo_an_invalidation() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let direct = brief().open(&inner, "c").await.unwrap();
    let (send, mut late) = tokio::sync::mpsc::unbounded_channel::<Batch>();
    hooked.at(2, |_, batch| async move {
        let replies = fail(&batch, Effect::Unknown);
        _ = send.send(batch);
        replies
    });
    let lease = leased(&cache, "k").await;
    let first = late.try_recv().expect("a first lease was sent");
    direct.invalidate("k").await.unwrap();
    assert!(inner.run(Ctx::default(), first).await.iter().all(Result::is_ok), "it lands");
    let made = lease.finish("old").await;
    assert_eq!((why_not(&made).kind(), why_not(&made).known_effect()), (ErrorKind::Conflict, Effect::NotApplied));
    assert!(direct.get("k").await.unwrap().is_none(), "the invalidation was undone");
}

/// Two leases of one caller, of which the first lands after all, before the second: the rebuild is under that one, for as long as that one lasts.
#[tokio::test]
async fn a_lease_that_lands_after_it_was_given_up_for_lost_is_the_callers_own() {
    let (clock, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let (send, mut late) = tokio::sync::mpsc::unbounded_channel::<Batch>();
    hooked.at(2, |_, batch| async move {
        let replies = fail(&batch, Effect::Unknown);
        _ = send.send(batch);
        replies
    });
    hooked.at(4, move |store, batch| async move {
        let first = late.try_recv().expect("a first lease was sent");
        _ = store.run(Ctx::default(), first).await;
        store.run(Ctx::default(), batch).await
    });
    let lease = leased(&cache, "k").await;
    assert!(lease.finish("v").await.is_kept());
    assert!(is_fresh(&found(&cache, "k").await, "v"));
    clock.advance(secs(15));
    assert!(cached(&cache, "k", "w").await.is_kept());
}

/// Its lease has landed, and it has not heard of it: there is no rebuild yet that would give it up.
#[tokio::test]
async fn a_lookup_that_is_dropped_while_its_lease_is_written_gives_it_up() {
    for had_value in [false, true] {
        let (clock, inner) = clocked();
        let hooked = Hooked::new(&inner);
        let long = || options().lease(secs(3600)).wait(Duration::ZERO).clock(clock.clone());
        let cache = long().open_or_create(&hooked.shared(), "c").await.unwrap();
        let other = long().open(&inner, "c").await.unwrap();
        if had_value {
            cached(&other, "k", "old").await;
            clock.advance(secs(11));
        }
        let landed = Arc::new(tokio::sync::Notify::new());
        let lands = landed.clone();
        hooked.at(2, |store, batch| async move {
            assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok), "it lands");
            lands.notify_one();
            std::future::pending().await
        });
        tokio::select! {
            biased;
            _ = cache.lookup("k") => panic!("the lease was answered"),
            () = landed.notified() => {}
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        match other.lookup("k").await {
            Ok(Lookup::Rebuild(rebuild)) => {
                assert_eq!(rebuild.stale().map(|value| &value[..]), had_value.then_some(&b"old"[..]));
                assert!(rebuild.finish("new").await.is_kept());
            }
            seen => panic!("the lease stands, had a value: {had_value}: {seen:?}"),
        }
        // Nothing of it comes after.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(is_fresh(&found(&cache, "k").await, "new"));
    }
}

/// One whose lookup fails, too: it was told that the lease may have been taken, and does not keep it.
#[tokio::test]
async fn a_lookup_that_fails_after_its_lease_was_written_gives_it_up() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let brief = || brief().timeout(Duration::from_millis(1)).lease(secs(3600)).wait(Duration::ZERO);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let other = brief().open(&inner, "c").await.unwrap();
    hooked.at(2, |store, batch| async move {
        _ = store.run(Ctx::default(), batch.clone()).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        fail(&batch, Effect::Unknown)
    });
    assert!(cache.lookup("k").await.unwrap_err().is_unknown());
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(other.lookup("k").await, Ok(Lookup::Rebuild(_))));
}

#[tokio::test]
async fn a_lost_reply_of_the_last_write_is_looked_up() {
    let (_, inner) = clocked();
    let hooked = Hooked::new(&inner);
    let cache = brief().open_or_create(&hooked.shared(), "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    hooked.lose_replies(1);
    assert!(lease.finish("v").await.is_kept());
    assert!(is_fresh(&found(&cache, "k").await, "v"));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_told_in_time_and_the_value_comes_back() {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let cache = brief().open_or_create(&faulty.shared(), "c").await.unwrap();
    let lease = leased(&cache, "k").await;
    faulty.fail_always(Fault::NotSent);
    let made = lease.finish("v").await;
    assert_eq!((&made.value[..], why_not(&made).kind()), (&b"v"[..], ErrorKind::Unavailable));
    assert_eq!(why_not(&made).known_effect(), Effect::NotApplied);
    assert_eq!(cache.lookup("k").await.unwrap_err().kind(), ErrorKind::Unavailable);
    faulty.fail_always(Fault::LostRequest);
    assert!(cache.invalidate("k").await.unwrap_err().is_unknown());
}

/// The store cannot be reached for more than a lease: another takes over, and the first is told why its value is not cached.
#[tokio::test(start_paused = true)]
async fn a_lease_that_could_not_be_renewed_is_followed_and_told() {
    let (inner, clock) = memory();
    let faulty = Faulty::new(inner.clone());
    let short = || brief().lease(LONG).wait(LONG * 2).clock(clock.clone());
    let cache = short().open_or_create(&faulty.shared(), "c").await.unwrap();
    let other = short().open(&inner, "c").await.unwrap();
    let slow = cache.get_or_rebuild("k", async || {
        faulty.fail_always(Fault::NotSent);
        assert!(cached(&other, "k", "new").await.is_kept());
        faulty.heal();
        Ok::<_, larder_core::Error>("old")
    });
    let made = slow.await.unwrap();
    assert_eq!(made.value, "old");
    let error = why_not(&made);
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied));
    assert!(error.to_string().contains("the last renewal of its lease had failed: unavailable"), "{error}");
    assert!(is_fresh(&found(&other, "k").await, "new"));
}

/// Whichever renewal breaks, in whatever way: the next one holds the lease, and the value is cached.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_once_is_tried_again_before_the_lease_is_over() {
    for fault in FAULTS {
        let (inner, clock) = memory();
        let faulty = Faulty::new(inner.clone());
        let short = || brief().lease(LONG).wait(Duration::ZERO).clock(clock.clone());
        let cache = short().open_or_create(&faulty.shared(), "c").await.unwrap();
        let other = short().open(&inner, "c").await.unwrap();
        let made = cache.get_or_rebuild("k", async || {
            for nth in 1..=2 {
                faulty.fail_nth(nth, fault);
                tokio::time::sleep(LONG * 5 / 6).await;
                let error = other.lookup("k").await.expect_err("it is leased");
                assert_eq!(error.kind(), ErrorKind::Timeout, "{fault:?}: {error}");
            }
            Ok::<_, larder_core::Error>("v")
        });
        let made = made.await.unwrap();
        assert!(made.is_kept(), "{fault:?}: {made:?}");
        assert_eq!(faulty.injected(), 2, "{fault:?}");
        assert!(is_fresh(&found(&other, "k").await, "v"), "{fault:?}");
    }
}

/// 8 tasks on 2 clients and one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_invalidation_is_undone_at_random_faults() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let clients = [Faulty::new(inner.clone()), Faulty::new(inner)];
    let truth = Arc::new(Truth::default());
    let mut handles: Vec<Cache> = Vec::new();
    for client in &clients {
        let options = Cache::options().ttl(Duration::from_millis(30)).stale(Duration::from_millis(20));
        let options = options.lease(Duration::from_millis(50)).timeout(Duration::from_millis(500));
        handles.push(options.open_or_create(&client.shared(), "c").await.unwrap());
        client.fail_randomly(seed, 20, &FAULTS);
    }
    let tasks: Vec<_> = (0..8u64)
        .map(|task| tokio::spawn(churn(handles[task as usize % 2].clone(), truth.clone(), seed ^ task, 300)))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(clients.iter().map(Faulty::injected).sum::<u64>() > 50);
    let count = |number: &std::sync::atomic::AtomicU64| number.load(Ordering::SeqCst);
    assert!(count(&truth.served) > 500 && count(&truth.rebuilds) > 50, "{truth:?}");
    assert!(count(&truth.unknown) * 20 < count(&truth.rebuilds), "{truth:?}");
}

/// Where the store cannot be reached for a whole lease the rebuild is another's: renewing it would only be in the way.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_over_is_renewed_no_more() {
    let (inner, clock) = memory();
    let faulty = Faulty::new(inner);
    let counting = metered(faulty.shared());
    let store: StoreRef = Arc::new(counting.clone());
    let cache = brief().lease(LONG).clock(clock).open_or_create(&store, "c").await.unwrap();
    let lease = leased(&cache, "k").await.renewing();
    faulty.fail_always(Fault::NotSent);
    let before = counting.counts();
    tokio::time::sleep(LONG * 3 / 2).await;
    let then = counting.counts();
    assert!(then.since(&before).round_trips > 0, "it was tried");
    tokio::time::sleep(LONG * 3).await;
    assert_eq!(counting.counts().since(&then).round_trips, 0);
    assert_eq!(why_not(&lease.finish("late").await).kind(), ErrorKind::Unavailable);
}

/// A store that answers a renewal without the token of what it wrote: the next write finds it, and the lease is as good as before.
#[tokio::test(start_paused = true)]
async fn a_renewal_whose_token_is_not_told_keeps_the_lease() {
    let (inner, clock) = memory();
    let hooked = Hooked::new(&inner);
    let cache = brief().lease(LONG).clock(clock).open_or_create(&hooked.shared(), "c").await.unwrap();
    let lease = leased(&cache, "k").await.renewing();
    hooked.at(1, |store, batch| async move {
        let mut replies = store.run(Ctx::default(), batch).await;
        for reply in &mut replies {
            if let Ok(Reply::Item(item)) = reply {
                item.cas = None;
            }
        }
        replies
    });
    tokio::time::sleep(LONG / 2).await;
    let made = lease.finish("v").await;
    assert!(made.is_kept(), "{made:?}");
    assert!(is_fresh(&found(&cache, "k").await, "v"));
}
