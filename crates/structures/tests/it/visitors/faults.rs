//! Visitors on a connection that breaks, and in the worst order of events that healthy clients can meet.

use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, PutMode, StoreExt, StoreRef, Ttl};
use larder_structures::Visitors;
use larder_testkit::faulty::{Fault, Faulty};

use crate::support::hooked::Hooked;
use crate::support::probe::Probe;
use crate::visitors::support::*;

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

/// What callers know of their hits.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    counted: u64,
    unknown: u64,
}

impl Known {
    fn take(&mut self, hits: u64, outcome: larder_core::Result<()>) {
        match outcome {
            Ok(()) => self.counted += hits,
            Err(error) if error.is_unknown() => self.unknown += hits,
            Err(error) => assert_eq!(error.known_effect(), Effect::NotApplied),
        }
    }

    fn agrees(&self, found: u64) -> bool {
        (self.counted..=self.counted + self.unknown).contains(&found)
    }
}

#[tokio::test]
async fn a_break_at_any_op_counts_hits_at_most_once_and_visitors_once() {
    for fault in FAULTS {
        for nth in 1..=40 {
            let clock = clock();
            let faulty = Faulty::new(memory(&clock));
            let store = faulty.shared();
            let handles = [open(&store, &clock).await, open(&store, &clock).await];
            faulty.fail_nth(nth, fault);
            let (mut hits, mut first) = (Known::default(), Known::default());
            for round in 0..2u64 {
                for (who, site) in handles.iter().enumerate() {
                    let digit = 10u64.pow(who as u32 + 2 * round as u32);
                    hits.take(digit, site.hit_many(digit).await);
                    // A visitor's hit is settled whatever breaks.
                    for id in [format!("{round}"), format!("{who}{round}")] {
                        site.hit_visitor(id).await.unwrap_or_else(|error| panic!("{fault:?} at op {nth}: {error}"));
                    }
                }
                if round == 0 {
                    (first, hits) = (hits, Known::default());
                    clock.advance(PERIOD);
                }
            }
            faulty.heal();
            faulty.deliver_late().await;
            assert!(first.unknown == 0 || hits.unknown == 0, "one break, two outcomes unknown");
            for site in [&handles[0], &handles[1], &open(&store, &clock).await] {
                let found = site.get().await.unwrap() - 3;
                assert!(first.agrees(found), "{fault:?} at op {nth}: {found} of {first:?}");
                let found = site.current().await.unwrap() - 3;
                assert!(hits.agrees(found), "{fault:?} at op {nth}: {found} of {hits:?}");
            }
            // What was acknowledged is known to have been there.
            for shard in [None, Some(0), Some(1)] {
                let key = key(&store, window(&clock), shard).await;
                if is_there(&store, &key).await && (shard.is_some() || hits.counted > 0) {
                    evict(&store, &key).await;
                    assert_eq!(kind(handles[0].current().await), ErrorKind::Lost, "{fault:?} at op {nth}: {shard:?}");
                    break;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_hit_whose_outcome_is_unknown_is_not_tried_again() {
    for (fault, counts) in [(Fault::LostReply, 1), (Fault::LostRequest, 0), (Fault::Late(1_000), 1)] {
        for is_first in [true, false] {
            let clock = clock();
            let faulty = Faulty::new(memory(&clock));
            let store = faulty.shared();
            let site = open(&store, &clock).await;
            if !is_first {
                site.hit_many(10).await.unwrap();
            }
            let before = faulty.ops();
            faulty.fail_nth(1, fault);
            let error = site.hit().await.unwrap_err();
            assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
            assert_eq!(faulty.ops() - before, if is_first { 3 } else { 1 }, "{fault:?}");
            faulty.deliver_late().await;
            let hits = if is_first { counts } else { 10 + counts };
            assert_eq!(site.current().await.unwrap(), hits, "{fault:?}, the window's first: {is_first}");
        }
    }
}

/// The same few visitors, said by 8 clients at once on a connection that breaks: once each, in each window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn visitors_that_eight_clients_repeat_count_once_whatever_breaks() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let clock = clock();
    let faulty = Faulty::new(Probe::over(memory(&clock)).shared());
    let store = faulty.shared();
    let mut handles = Vec::new();
    for _ in 0..8 {
        handles.push(options(&clock).timeout(Duration::from_secs(20)).open_or_create(&store, NAME).await.unwrap());
    }
    for round in 0..3 {
        faulty.fail_randomly(seed ^ round, 9, &FAULTS);
        let tasks: Vec<_> = handles
            .iter()
            .cloned()
            .map(|site| {
                tokio::spawn(async move {
                    for n in 0..40 {
                        site.hit_visitor(format!("{n}")).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        faulty.heal();
        faulty.deliver_late().await;
        assert_eq!(open(&store, &clock).await.current().await.unwrap(), 40, "seed {seed}");
        clock.advance(PERIOD);
    }
    assert!(faulty.injected() > 20, "{}", faulty.injected());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hits_of_eight_tasks_on_two_handles_agree_with_their_outcomes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let clock = clock();
    let faulty = Faulty::new(Probe::over(memory(&clock)).shared());
    let store = faulty.shared();
    let handles = [open(&store, &clock).await, open(&store, &clock).await];
    for round in 0..4 {
        faulty.fail_randomly(seed ^ round, 7, &FAULTS);
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let site = handles[task % 2].clone();
                tokio::spawn(async move {
                    let mut known = Known::default();
                    for _ in 0..40 {
                        known.take(1, site.hit().await);
                    }
                    known
                })
            })
            .collect();
        let mut sum = Known::default();
        for task in tasks {
            let known = task.await.unwrap();
            (sum.counted, sum.unknown) = (sum.counted + known.counted, sum.unknown + known.unknown);
        }
        faulty.heal();
        faulty.deliver_late().await;
        let found = handles[0].current().await.unwrap();
        assert!(sum.agrees(found), "{found} of {sum:?}; seed {seed}");
        assert!(sum.counted > 100 && sum.unknown > 10, "{sum:?}");
        clock.advance(PERIOD);
    }
}

/// The first ops of a batch, then what others do meanwhile, then the rest: as two servers answer.
async fn torn<F: Future<Output = ()>>(
    store: StoreRef,
    batch: Batch,
    first: usize,
    meanwhile: impl FnOnce() -> F,
) -> larder_core::Replies {
    let (head, tail) = (batch[..first].iter().cloned().collect(), batch[first..].iter().cloned().collect());
    let mut replies = store.run(Ctx::default(), head).await;
    meanwhile().await;
    replies.extend(store.run(Ctx::default(), tail).await);
    replies
}

/// One makes the window; before it reads the ledger, another one has met the window and listed it. Nothing was lost.
#[tokio::test]
async fn two_that_make_a_window_at_once_take_it_for_no_loss() {
    for names in [false, true] {
        let clock = clock();
        let inner = memory(&clock);
        let hooked = Hooked::new(&inner);
        let store = hooked.shared();
        let one = open(&store, &clock).await;
        let two = open(&inner, &clock).await;
        hooked.at(1, move |store, batch| {
            torn(store, batch, 2, move || async move {
                if names { two.hit_visitor("v").await.unwrap() } else { two.hit().await.unwrap() }
            })
        });
        if names {
            one.hit_visitor("v").await.unwrap()
        } else {
            one.hit().await.unwrap()
        }
        for site in [&one, &open(&inner, &clock).await] {
            assert_eq!(site.current().await.unwrap(), if names { 1 } else { 2 });
        }
        one.hit().await.unwrap();
        clock.advance(PERIOD);
        assert_eq!(one.get().await.unwrap(), if names { 2 } else { 3 });
    }
}

/// A reader that misses a window; before it reads the ledger, somebody has made and listed it. Nothing was lost.
#[tokio::test]
async fn a_reader_that_a_maker_overtakes_reports_no_loss() {
    let clock = clock();
    let inner = memory(&clock);
    let hooked = Hooked::new(&inner);
    let store = hooked.shared();
    let one = open(&store, &clock).await;
    let two = open(&inner, &clock).await;
    hooked.at(1, move |store, batch| {
        let ledger_at = batch.len() - 1;
        torn(store, batch, ledger_at, move || async move {
            two.hit_many(3).await.unwrap();
            two.hit_visitor("v").await.unwrap();
        })
    });
    assert_eq!(one.current().await.unwrap(), 4);
}

/// A process that stood still between its look at the clock and the read: the window has ended meanwhile, as it should.
#[tokio::test]
async fn a_reader_that_stands_still_reports_no_loss() {
    let clock = clock();
    let inner = memory(&clock);
    let hooked = Hooked::new(&inner);
    let store = hooked.shared();
    let site = open(&store, &clock).await;
    for is_short in [true, false] {
        site.hit_many(3).await.unwrap();
        clock.advance(PERIOD);
        let asleep = clock.clone();
        hooked.at(1, move |store, batch| async move {
            asleep.advance(if is_short { PERIOD } else { 10 * PERIOD });
            store.run(Ctx::default(), batch).await
        });
        assert_eq!(site.get().await.unwrap(), if is_short { 3 } else { 0 });
    }
}

/// A process that dies between making a window and listing it: who comes next lists it in its place.
#[tokio::test]
async fn a_window_whose_maker_died_is_listed_by_the_next() {
    for names in [false, true] {
        let clock = clock();
        let inner = memory(&clock);
        let hooked = Hooked::new(&inner);
        let store = hooked.shared();
        let options = || options(&clock).shards(1).timeout(Duration::from_millis(200));
        let one = options().open_or_create(&store, NAME).await.unwrap();
        // The first batch makes it; whatever comes then is not sent.
        for nth in 2..200 {
            hooked.refuse(nth);
        }
        let error = if names { one.hit_visitor("v").await.unwrap_err() } else { one.hit().await.unwrap_err() };
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        drop(one);
        let two = options().open(&inner, NAME).await.unwrap();
        assert_eq!(two.current().await.unwrap(), 1);
        if names {
            two.hit_visitor("w").await.unwrap()
        } else {
            two.hit().await.unwrap()
        }
        assert_eq!(two.current().await.unwrap(), 2);
        evict(&inner, &key(&inner, window(&clock), names.then_some(0)).await).await;
        assert_eq!(kind(two.current().await), ErrorKind::Lost);
    }
}

/// Whoever is told a figure is told its loss, too, also of hits that nobody acknowledged.
#[tokio::test]
async fn what_nobody_has_listed_is_listed_by_who_reads_it() {
    for names in [false, true] {
        let clock = clock();
        let inner = memory(&clock);
        let hooked = Hooked::new(&inner);
        let options = || options(&clock).shards(1).timeout(Duration::from_millis(200));
        let dying = options().open_or_create(&hooked.shared(), NAME).await.unwrap();
        for nth in 2..200 {
            hooked.refuse(nth);
        }
        let error = if names { dying.hit_visitor("v").await } else { dying.hit().await }.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        let hooked = Hooked::new(&inner);
        let other = options().open(&hooked.shared(), NAME).await.unwrap();
        // Where it cannot be listed it is not told.
        (2..200).for_each(|nth| hooked.refuse(nth));
        let error = other.current().await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        let other = options().open(&inner, NAME).await.unwrap();
        assert_eq!(other.current().await.unwrap(), 1);
        evict(&inner, &key(&inner, window(&clock), names.then_some(0)).await).await;
        assert_eq!(kind(other.current().await), ErrorKind::Lost);
    }
}

/// The ledger's server went back to before the window, the counter's did not; whoever knows the window hits on without a look at the ledger.
#[tokio::test]
async fn hits_that_a_ledger_forgot_are_read_and_their_loss_is_told() {
    for names in [false, true] {
        let clock = clock();
        let store = memory(&clock);
        let site = options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
        let ledger = ledger_key(&store).await;
        let before = store.get(ledger.clone()).await.unwrap().unwrap().value;
        let hit = async |name: &str| if names { site.hit_visitor(name).await } else { site.hit().await };
        hit("v").await.unwrap();
        store.put(ledger, PutMode::Set, before, Ttl::Never).await.unwrap();
        hit("w").await.unwrap();
        let fresh = options(&clock).shards(1).open(&store, NAME).await.unwrap();
        assert_eq!(fresh.current().await.unwrap(), 2);
        evict(&store, &key(&store, window(&clock), names.then_some(0)).await).await;
        assert_eq!(kind(fresh.current().await), ErrorKind::Lost);
    }
}

/// A hit into a shard that nobody has listed, and that is gone before it could be: it is not acknowledged for the one made since.
#[tokio::test]
async fn a_visitor_of_a_shard_that_was_lost_unlisted_is_in_the_next() {
    let clock = clock();
    let inner = memory(&clock);
    let hooked = Hooked::new(&inner);
    let store = hooked.shared();
    let options = || options(&clock).shards(1).timeout(Duration::from_millis(200));
    let dying = options().open_or_create(&store, NAME).await.unwrap();
    for nth in 2..200 {
        hooked.refuse(nth);
    }
    dying.hit_visitor("dying").await.unwrap_err();
    let hooked = Hooked::new(&inner);
    let one = options().open(&hooked.shared(), NAME).await.unwrap();
    let two = options().open(&inner, NAME).await.unwrap();
    let shard = key(&inner, window(&clock), Some(0)).await;
    // The first batch lands in the shard that is not listed; the second is to tell which that is.
    hooked.at(2, move |store, batch| async move {
        evict(&store, &shard).await;
        two.hit_visitor("two").await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    one.hit_visitor("one").await.unwrap();
    assert_eq!(open_one(&inner, &clock).await.current().await.unwrap(), 2);
}

async fn open_one(store: &StoreRef, clock: &std::sync::Arc<larder_core::ManualClock>) -> Visitors {
    options(clock).shards(1).open(store, NAME).await.unwrap()
}

/// Entries of windows that are over make room before a hit is refused: else nobody would ever get so far as to remove them.
#[tokio::test]
async fn a_list_that_was_full_takes_windows_again_once_its_own_are_over() {
    let clock = clock();
    let inner =
        larder_store_memory::MemoryStore::builder().value_bytes_max(6_000).clock(clock.clone()).build().unwrap();
    let store: StoreRef = std::sync::Arc::new(inner);
    let period = Duration::from_secs(1);
    let site = Visitors::options().period(period).shards(1).clock(clock.clone());
    let site = site.open_or_create(&store, NAME).await.unwrap();
    let mut windows = 0;
    let error = loop {
        match site.hit().await {
            Ok(()) => windows += 1,
            Err(error) => break error,
        }
        clock.advance(period);
        assert!(windows < 600);
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(windows > 100, "{windows} windows");
    clock.advance(Duration::from_secs(3_600));
    site.hit().await.unwrap();
    assert_eq!(site.current().await.unwrap(), 1);
}

/// A window that is lost before its maker has listed it, and made again by another: both list theirs, so it is lost.
#[tokio::test]
async fn a_window_that_is_lost_while_it_is_made_is_lost() {
    let clock = clock();
    let inner = memory(&clock);
    let hooked = Hooked::new(&inner);
    let store = hooked.shared();
    let one = open(&store, &clock).await;
    let two = open(&inner, &clock).await;
    let counter = key(&inner, window(&clock), None).await;
    hooked.at(2, |store, batch| async move {
        evict(&store, &counter).await;
        two.hit().await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    one.hit().await.unwrap();
    assert_eq!(kind(one.current().await), ErrorKind::Lost);
}

#[tokio::test]
async fn opening_and_making_survive_a_break_or_say_what_is_known() {
    for fault in FAULTS {
        for nth in 1..=4 {
            let clock = clock();
            let faulty = Faulty::new(memory(&clock));
            let store = faulty.shared();
            faulty.fail_nth(nth, fault);
            let made = options(&clock).open_or_create(&store, NAME).await;
            faulty.heal();
            faulty.deliver_late().await;
            let site: Visitors = match made {
                Ok(site) => site,
                Err(_) => open(&store, &clock).await,
            };
            site.hit().await.unwrap();
            assert_eq!(open(&store, &clock).await.current().await.unwrap(), 1, "{fault:?} at op {nth}");
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_an_error_that_changed_nothing() {
    let clock = clock();
    let faulty = Faulty::new(memory(&clock));
    let store = faulty.shared();
    let site = open(&store, &clock).await;
    faulty.fail_always(Fault::NotSent);
    for error in
        [site.hit().await.unwrap_err(), site.hit_visitor("v").await.unwrap_err(), site.get().await.unwrap_err()]
    {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    }
    faulty.heal();
    assert_eq!(site.current().await.unwrap(), 0);
}
