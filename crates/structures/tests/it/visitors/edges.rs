//! Visitors at the edges of what they promise: limits, lives, the list of windows that are over, stores that refuse.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::ambient::now;
use larder_core::{
    Clock, Ctx, Effect, Error, ErrorKind, Key, ManualClock, PutMode, Reply, StoreExt, StoreRef, Ttl, Verb,
};
use larder_store_memory::MemoryStore;
use larder_structures::Visitors;

use crate::support::far::Far;
use crate::support::hooked::Hooked;
use crate::support::probe::Probe;
use crate::support::shaped::Shaped;
use crate::support::sieve::Sieve;
use crate::support::steady::{metered, steady};
use crate::visitors::support::*;

const SECOND: Duration = Duration::from_secs(1);

/// Visitors of a window a second, with a counter each.
async fn of_seconds(store: &StoreRef, clock: &Arc<ManualClock>) -> Visitors {
    steady();
    options(clock).period(SECOND).shards(1).open_or_create(store, NAME).await.unwrap()
}

#[tokio::test]
async fn all_windows_in_use_have_ten_thousand_pieces_at_the_most() {
    let clock = clock();
    let store = memory(&clock);
    // Of the windows that are kept there are 3; of those that are over for some clock as many as 10 minutes have.
    for (period_ms, shards, pieces) in
        [(16_667, 256, Some(10_023)), (17_143, 256, None), (16_500, 249, None), (16_500, 250, Some(10_040))]
    {
        let options = options(&clock).period(Duration::from_millis(period_ms)).shards(shards);
        let made = options.open_or_create(&store, format!("site-{period_ms}-{shards}")).await.map(drop);
        let said = made.map_err(|error| (error.kind(), error.to_string()));
        match pieces {
            None => assert_eq!(said, Ok(())),
            Some(pieces) => {
                let (kind, text) = said.unwrap_err();
                assert_eq!(kind, ErrorKind::BadInput);
                assert!(text.contains(&format!("have {pieces} pieces in use; the limit is 10000")), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_window_is_five_minutes_unless_said_and_up_to_thirty_days() {
    const DAYS_30: Duration = Duration::from_secs(30 * 24 * 3_600);
    let store: StoreRef = Arc::new(MemoryStore::new());
    let unsaid = Visitors::options().open_or_create(&store, "unsaid").await.unwrap();
    assert_eq!(unsaid.period(), Duration::from_secs(300));
    let long = Visitors::options().period(DAYS_30).open_or_create(&store, "long").await.unwrap();
    assert_eq!((long.period(), Visitors::open(&store, "long").await.unwrap().period()), (DAYS_30, DAYS_30));
    let longer = Visitors::options().period(DAYS_30 + Duration::from_millis(1));
    assert_eq!(kind(longer.open_or_create(&store, "longer").await), ErrorKind::BadInput);
}

/// A store that does not answer in time is not waited for.
#[tokio::test]
async fn opening_and_making_are_asked_for_within_their_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(7);
    let clock = clock();
    let deadlines = Arc::new(Mutex::new(Vec::new()));
    let asked = deadlines.clone();
    let store = Sieve::answering(&memory(&clock), move |ctx, _| {
        asked.lock().unwrap().push(ctx.deadline);
        None
    });
    let begin = now();
    let options = options(&clock).timeout(TIMEOUT);
    options.open_or_create(&store, NAME).await.unwrap();
    options.open(&store, NAME).await.unwrap();
    let deadlines = deadlines.lock().unwrap();
    assert!(deadlines.len() >= 3, "{deadlines:?}");
    for deadline in deadlines.iter() {
        let within = deadline.expect("a deadline");
        assert!(within >= begin + TIMEOUT && within <= now() + TIMEOUT, "{deadlines:?} after {begin:?}");
    }
}

#[tokio::test]
async fn a_store_whose_batches_or_lives_are_too_small_is_refused() {
    let clock = clock();
    let memory = memory(&clock);
    let open = async |store: StoreRef| {
        let made = options(&clock).shards(4).open_or_create(&store, NAME).await;
        made.map(drop).map_err(|error| (error.kind(), error.to_string()))
    };
    // Two windows of a counter and 4 shards each, and the list.
    let (kind, text) = open(Shaped::over(&memory, |profile| profile.batch_ops_max = 10)).await.unwrap_err();
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("two windows of 4 shards are 11 ops; a batch here takes 10"), "{text}");
    // Three windows of 5 minutes, and three times as much as clocks may be apart.
    let lives = |most_s| Shaped::over(&memory, |profile| profile.ttl_max = Duration::from_secs(most_s));
    let (kind, text) = open(lives(1_799)).await.unwrap_err();
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("windows must live for 1800s; the longest life here is 1799s"), "{text}");
    open(lives(1_800)).await.unwrap();
    let just = Shaped::over(&memory, |profile| profile.batch_ops_max = 11);
    open(just.clone()).await.unwrap();
    let site = options(&clock).shards(4).open(&just, NAME).await.unwrap();
    site.hit_visitor("v").await.unwrap();
    assert_eq!(site.interpolated().await.unwrap(), 0);
    assert_eq!(site.current().await.unwrap(), 1);
}

#[tokio::test]
async fn a_loss_says_whether_the_piece_was_made_again() {
    let clock = clock();
    let store = memory(&clock);
    let hooked = Hooked::new(&store);
    let (site, other) = (open(&hooked.shared(), &clock).await, open(&store, &clock).await);
    site.hit().await.unwrap();
    evict(&store, &key(&store, window(&clock), None).await).await;
    let error = site.current().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(!error.to_string().contains("made again"), "{error}");
    // Of the next window both list a counter: the first was gone before it was listed.
    clock.advance(PERIOD);
    let counter = key(&store, window(&clock), None).await;
    hooked.at(2, |store, batch| async move {
        evict(&store, &counter).await;
        other.hit().await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    site.hit().await.unwrap();
    let error = site.current().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("lost in a restart, and was made again"), "{error}");
}

#[tokio::test]
async fn the_last_window_that_has_a_key_counts_and_the_one_after_it_is_refused() {
    const LAST: u64 = 99_999_999_999;
    let clock = Far::at(LAST);
    let store: StoreRef = Arc::new(MemoryStore::new());
    let options = Visitors::options().period(SECOND).shards(1).clock(clock.clone());
    let site = options.open_or_create(&store, NAME).await.unwrap();
    site.hit().await.unwrap();
    site.hit_visitor("v").await.unwrap();
    assert_eq!(site.current().await.unwrap(), 2);
    clock.set(LAST + 1);
    for error in
        [site.hit().await.unwrap_err(), site.hit_visitor("v").await.unwrap_err(), site.get().await.unwrap_err()]
    {
        assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
        assert!(error.to_string().contains("the last window is 99999999999"), "{error}");
    }
}

/// Two periods after its end a window is over, and for clocks that are behind it is there for 5 minutes more.
#[tokio::test]
async fn a_window_lives_on_for_five_minutes_after_its_use() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    site.hit().await.unwrap();
    let key = key(&store, window(&clock), None).await;
    clock.advance(3 * PERIOD + Duration::from_secs(300));
    assert!(is_there(&store, &key).await);
    clock.advance(Duration::from_secs(10));
    assert!(!is_there(&store, &key).await);
}

/// By the clock of its maker, and by one that is 5 minutes ahead of that, and 5 s that stores may take off.
#[tokio::test]
async fn windows_leave_the_list_once_there_are_many_that_are_over_by_everybodys_clock() {
    let clock = clock();
    let counting = metered(memory(&clock));
    let store: StoreRef = Arc::new(counting.clone());
    let site = of_seconds(&store, &clock).await;
    for _ in 0..20 {
        site.hit().await.unwrap();
        clock.advance(SECOND);
    }
    let first = async |since_start_s| {
        clock.advance(Duration::from_secs(START_S + since_start_s) - clock.wall());
        let before = counting.counts();
        site.hit().await.unwrap();
        settle().await;
        counting.counts().since(&before).round_trips
    };
    // The first was kept until 3 s after it began, the sixteenth until 18 s.
    assert_eq!(first(18 + 604).await, 2, "fifteen are over");
    assert_eq!(first(22 + 605).await, 4, "all twenty are over: a look at their keys, and a write of the list");
    // Who reads the list next compacts it.
    first(22 + 650).await;
    assert_eq!(first(22 + 700).await, 2, "nothing is over any more");
}

/// A hit does not wait for what is done beside it.
#[tokio::test]
async fn a_hit_returns_while_entries_are_removed() {
    let clock = clock();
    let store = memory(&clock);
    let hooked = Hooked::new(&store);
    let site = of_seconds(&hooked.shared(), &clock).await;
    for _ in 0..20 {
        site.hit().await.unwrap();
        clock.advance(SECOND);
    }
    clock.advance(Duration::from_secs(3_600));
    // The hit itself, its entry, and then the look at the keys of the others.
    hooked.at(3, |_, _| std::future::pending());
    let mut hit = std::pin::pin!(site.hit());
    let mut is_done = false;
    for _ in 0..100 {
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(hit.as_mut().poll(cx))).await;
        if poll.is_ready() {
            is_done = true;
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(is_done, "it waits for a look that never comes back");
    assert_eq!(of_seconds(&store, &clock).await.current().await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_visitors_hit_is_tried_again_only_where_that_may_help_and_a_few_times() {
    let clock = clock();
    let hooked = Hooked::new(&memory(&clock));
    let counting = metered(hooked.shared());
    let store: StoreRef = Arc::new(counting.clone());
    let site = options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
    for is_first in [true, false] {
        (1..=60).for_each(|nth| hooked.refuse(nth));
        let before = counting.counts();
        let error = site.hit_visitor("v").await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        assert_eq!(counting.counts().since(&before).round_trips, 8, "the shard's first: {is_first}");
        // What a store does not take it will not take the next time.
        for nth in 1..=60 {
            hooked.at(nth, |_, batch| async move {
                let refuse = |_| Err(Error::new(ErrorKind::Unsupported, "not here").effect(Effect::NotApplied));
                batch.iter().map(refuse).collect()
            });
        }
        let before = counting.counts();
        let error = site.hit_visitor("v").await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
        assert_eq!(counting.counts().since(&before).round_trips, 1, "the shard's first: {is_first}");
        (1..=60).for_each(|nth| hooked.at(nth, |store, batch| async move { store.run(Ctx::default(), batch).await }));
        site.hit_visitor("w").await.unwrap();
    }
    assert_eq!(site.current().await.unwrap(), 1);
}

/// A list that is gone is not asked for again: what was made is removed, and the hit says `Lost`.
#[tokio::test]
async fn a_hit_without_a_list_costs_no_more_than_to_clear_it_away() {
    let clock = clock();
    let probe = Probe::over(memory(&clock));
    let store = probe.shared();
    let site = open(&store, &clock).await;
    evict(&store, &ledger_key(&store).await).await;
    probe.round_trips();
    let error = site.hit().await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
    assert_eq!(probe.round_trips(), 2);
    assert!(!is_there(&store, &key(&store, window(&clock), None).await).await);
}

/// Repeats of so many visitors behind a shard, as other processes leave them.
async fn repeat(store: &StoreRef, shard: &Key, visitors: usize) {
    let value = store.get(shard.clone()).await.unwrap().unwrap().value;
    let repeats = value.slice(12..12 + visitors * 8);
    store.put(shard.clone(), PutMode::Append, repeats, Ttl::Never).await.unwrap();
}

async fn bytes_of(store: &StoreRef, shard: &Key) -> usize {
    store.get(shard.clone()).await.unwrap().unwrap().value.len()
}

/// A shard of so many visitors, in no particular room.
async fn of_visitors(store: &StoreRef, clock: &Arc<ManualClock>, visitors: u32) -> (Visitors, Key) {
    let site = options(clock).shards(1).open_or_create(store, NAME).await.unwrap();
    for n in 0..visitors {
        site.hit_visitor(n.to_le_bytes()).await.unwrap();
    }
    let shard = key(store, window(clock), Some(0)).await;
    assert_eq!(bytes_of(store, &shard).await, 12 + visitors as usize * 8);
    (site, shard)
}

#[tokio::test]
async fn repeats_that_are_less_than_the_visitors_are_let_be() {
    let clock = clock();
    let store = memory(&clock);
    let (site, shard) = of_visitors(&store, &clock, 10_000).await;
    repeat(&store, &shard, 9_000).await;
    let before = bytes_of(&store, &shard).await;
    assert_eq!(site.current().await.unwrap(), 10_000);
    settle().await;
    assert_eq!(bytes_of(&store, &shard).await, before);
    repeat(&store, &shard, 1_002).await;
    assert_eq!(site.current().await.unwrap(), 10_000);
    settle().await;
    assert_eq!(bytes_of(&store, &shard).await, 12 + 10_000 * 8);
}

#[tokio::test]
async fn repeats_are_compacted_as_often_as_they_come() {
    let clock = clock();
    let store = memory(&clock);
    let (site, shard) = of_visitors(&store, &clock, 5_000).await;
    for round in 0..3 {
        repeat(&store, &shard, 5_000).await;
        repeat(&store, &shard, 5_000).await;
        assert_eq!(site.current().await.unwrap(), 5_000);
        settle().await;
        assert_eq!(bytes_of(&store, &shard).await, 12 + 5_000 * 8, "round {round}");
    }
}

#[tokio::test]
async fn every_request_of_a_hit_that_names_its_visitor_has_a_deadline() {
    let clock = clock();
    let without = Arc::new(Mutex::new(Vec::new()));
    let seen = without.clone();
    let inner = MemoryStore::builder().value_bytes_max(8_000).clock(clock.clone()).build().unwrap();
    let store = Sieve::answering(&(Arc::new(inner) as StoreRef), move |ctx, op| {
        if ctx.deadline.is_none() && op.key.as_bytes().ends_with(b"-0") {
            seen.lock().unwrap().push(op.clone());
        }
        None
    });
    // The shard is made, appended to, and written anew where two have filled it with repeats.
    for _ in 0..2 {
        let site = options(&clock).shards(1).open_or_create(&store, NAME).await.unwrap();
        for n in 0..600u32 {
            site.hit_visitor(n.to_le_bytes()).await.unwrap();
        }
    }
    assert_eq!(*without.lock().unwrap(), []);
}

/// An append that finds nothing is refused like one that finds no room: where there is room it is tried again.
#[tokio::test]
async fn a_shard_that_was_away_for_a_moment_takes_the_hit_where_nothing_can_be_compacted() {
    let probe = Probe::without_cas(6_000);
    let clock = clock();
    let is_away = Arc::new(AtomicBool::new(false));
    let asked = is_away.clone();
    let store = Sieve::answering(&probe.shared(), move |_, op| {
        let is_append =
            matches!(op.verb, Verb::Put { mode: PutMode::Append, .. }) && op.key.as_bytes().ends_with(b"-0");
        (is_append && asked.swap(false, Ordering::SeqCst)).then_some(Ok(Reply::NotStored))
    });
    let (site, _) = of_visitors(&store, &clock, 500).await;
    is_away.store(true, Ordering::SeqCst);
    site.hit_visitor("late").await.unwrap();
    assert!(!is_away.load(Ordering::SeqCst));
    assert_eq!(site.current().await.unwrap(), 501);
}

/// They count, and may be entered by others yet: only where the list is gone does nobody find them.
#[tokio::test]
async fn hits_whose_window_is_not_entered_stay_though_the_list_cannot_be_read_once() {
    for names in [false, true] {
        let clock = clock();
        let inner = memory(&clock);
        let hooked = Hooked::new(&inner);
        let options = || options(&clock).shards(1).timeout(Duration::from_millis(200));
        let one = options().open_or_create(&hooked.shared(), NAME).await.unwrap();
        (2..=200).for_each(|nth| hooked.refuse(nth));
        let outcome = if names { one.hit_visitor("v").await } else { one.hit().await };
        assert_eq!(outcome.unwrap_err().known_effect(), Effect::Unknown);
        (1..=200).for_each(|nth| hooked.at(nth, |store, batch| async move { store.run(Ctx::default(), batch).await }));
        hooked.at(1, |store, batch| async move {
            let mut replies = store.run(Ctx::default(), batch).await;
            replies.pop();
            let error = Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::NotApplied);
            replies.push(Err(error));
            replies
        });
        assert_eq!(kind(one.current().await), ErrorKind::Unavailable);
        assert_eq!(options().open(&inner, NAME).await.unwrap().current().await.unwrap(), 1, "with an id: {names}");
    }
}
