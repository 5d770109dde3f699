//! Resets that come to no good end: what they took is named, or nothing was taken.

use std::time::{Duration, Instant};

use larder_core::{Ctx, Effect, Error, ErrorKind, PutMode, Result, StoreExt, StoreRef, Ttl};
use larder_structures::Counter;

use crate::counter::support::{memory, process, slot_key};
use crate::support::hooked::Hooked;
use crate::support::slow::Slow;

const TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than a reset may take.
const FOR_EVER_MS: u64 = 60_000;

/// A counter over a slow store, to which 5 was added.
async fn made(store: &StoreRef, is_fast: bool) -> Counter {
    let options = Counter::options().timeout(TIMEOUT);
    let options = if is_fast { options.fast() } else { options.slots(1) };
    let counter = options.open_or_create(store, "n").await.unwrap();
    counter.add(5).await.unwrap();
    counter
}

/// What stands in the counter beside what a failed reset may have taken.
async fn rest(memory: &StoreRef) -> i128 {
    process(memory, "n").await.get().await.unwrap()
}

/// Fails unless nothing was taken, and the error says so.
async fn assert_nothing_taken(memory: &StoreRef, error: &Error, total: i128) {
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied), "{error}");
    assert_eq!(rest(memory).await, total, "{error}");
}

/// Fails unless what was taken is what the error calls possible.
async fn assert_named(memory: &StoreRef, error: &Error, total: i128) {
    assert!(error.is_unknown(), "{error}");
    assert!(error.detail().contains(&format!("and perhaps {total} more, before: ")), "{error}");
    assert_eq!(rest(memory).await, 0, "{error}");
}

/// An add of 7 that holds the counter's writer for so many milliseconds once it has landed, and a reset beside it.
async fn reset_behind_an_add(slow: &Slow, counter: &Counter, add_ms: u64, reset: [(u64, u64); 2]) -> Result<i128> {
    slow.take_ms([(0, add_ms), reset[0], reset[1]]);
    let adder = counter.clone();
    let adding = tokio::spawn(async move { adder.add(7).await });
    while slow.left() == 3 {
        tokio::task::yield_now().await;
    }
    let taken = counter.reset().await;
    _ = adding.await.unwrap();
    taken
}

/// The reset begins with a tenth of its time left, its write lands at once, and the reply comes too late.
#[tokio::test]
async fn a_reset_that_waited_for_an_add_names_what_it_took_where_the_replies_come_too_late() {
    for keeps_deadlines in [true, false] {
        let memory = memory();
        let slow = Slow::new(&memory, keeps_deadlines);
        let counter = made(&(slow.clone() as StoreRef), false).await;
        let began = Instant::now();
        let error = reset_behind_an_add(&slow, &counter, 450, [(0, 0), (0, FOR_EVER_MS)]).await.unwrap_err();
        assert!(began.elapsed() < 4 * TIMEOUT, "{:?}", began.elapsed());
        // A machine that stands still meanwhile lets its time run out before.
        match error.known_effect() {
            Effect::NotApplied => assert_nothing_taken(&memory, &error, 12).await,
            _ => assert_named(&memory, &error, 12).await,
        }
    }
}

#[tokio::test]
async fn a_reset_that_waited_for_an_add_until_its_time_was_over_took_nothing_and_says_so() {
    let memory = memory();
    let slow = Slow::new(&memory, false);
    let counter = made(&(slow.clone() as StoreRef), false).await;
    // The add is given up 50 ms behind its timeout, at which the reset could begin.
    let error = reset_behind_an_add(&slow, &counter, FOR_EVER_MS, [(0, FOR_EVER_MS), (0, 0)]).await.unwrap_err();
    assert_nothing_taken(&memory, &error, 12).await;
}

/// The writes would take as long as the look did: there is not so much time left.
#[tokio::test]
async fn a_reset_does_not_begin_to_take_where_no_time_is_left_for_it() {
    for is_fast in [false, true] {
        let memory = memory();
        let slow = Slow::new(&memory, true);
        let counter = made(&(slow.clone() as StoreRef), is_fast).await;
        slow.take_ms([(150, 150), (150, 150)]);
        let error = counter.reset().await.unwrap_err();
        assert_nothing_taken(&memory, &error, 5).await;
        slow.take_ms([]);
        assert_eq!(counter.reset().await.unwrap(), 5);
    }
}

#[tokio::test]
async fn a_reset_whose_store_never_answers_names_what_it_may_have_taken() {
    for (is_fast, keeps_deadlines) in [(false, false), (false, true), (true, false), (true, true)] {
        let memory = memory();
        let slow = Slow::new(&memory, keeps_deadlines);
        let counter = made(&(slow.clone() as StoreRef), is_fast).await;
        slow.take_ms([(0, 0), (0, FOR_EVER_MS)]);
        let began = Instant::now();
        let error = counter.reset().await.unwrap_err();
        assert!(began.elapsed() < 3 * TIMEOUT, "{:?}", began.elapsed());
        assert_named(&memory, &error, 5).await;
    }
}

/// The reply to the one write is lost, and so is every look behind it.
#[tokio::test]
async fn a_sum_whose_reply_was_lost_and_that_cannot_be_looked_for_is_named() {
    for is_fast in [false, true] {
        let memory = memory();
        let hooked = Hooked::new(&memory);
        let counter = made(&hooked.shared(), is_fast).await;
        hooked.lose_replies(2);
        for nth in 3..400 {
            hooked.refuse(nth);
        }
        let error = counter.reset().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_named(&memory, &error, 5).await;
    }
}

/// Of two slots one is taken for certain, the other perhaps: each has its number.
#[tokio::test]
async fn what_was_taken_is_told_apart_from_what_may_have_been() {
    let memory = memory();
    let hooked = Hooked::new(&memory);
    let options = Counter::options().timeout(TIMEOUT).slots(2);
    let counter = options.open_or_create(&hooked.shared(), "n").await.unwrap();
    let other = process(&memory, "n").await;
    other.add(100).await.unwrap();
    counter.add(7).await.unwrap();
    hooked.at(2, |store, batch| async move {
        let mut replies = store.run(Ctx::default(), batch.clone()).await;
        // A write and a look each: those of the second are lost.
        let lost = crate::support::hooked::fail(&batch, Effect::Unknown);
        replies.truncate(2);
        replies.extend(lost.into_iter().skip(2));
        replies
    });
    for nth in 3..400 {
        hooked.refuse(nth);
    }
    let error = counter.reset().await.unwrap_err();
    let named = ["100 in all, and perhaps 7 more", "7 in all, and perhaps 100 more"];
    assert!(
        named.iter().any(|named| error.detail().starts_with(&format!("1 of 2 slots were reset, {named}"))),
        "{error}"
    );
    assert!(error.is_unknown() && rest(&memory).await == 0, "{error}");
}

/// The store goes back with the write of a reset, and others write the slot as often since: by its number of writes the write may land yet, by its sum it
/// stands for another state.
#[tokio::test]
async fn a_reset_in_doubt_that_meets_another_sum_at_the_same_write_is_rolled_back() {
    let memory = memory();
    let hooked = Hooked::new(&memory);
    let counter = made(&hooked.shared(), false).await;
    let key = slot_key(&memory, "n", 0).await;
    let old = memory.get(key.clone()).await.unwrap().unwrap().value;
    counter.add(95).await.unwrap();
    let other = process(&memory, "n").await;
    // The look, and the write that is lost.
    hooked.at(2, |store, batch| async move {
        store.put(key, PutMode::Set, old, Ttl::Never).await.unwrap();
        other.add(1).await.unwrap();
        crate::support::hooked::fail(&batch, Effect::Unknown)
    });
    let error = counter.reset().await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::RolledBack, Effect::Unknown), "{error}");
    assert!(
        error.detail().contains("and perhaps 100 more, before: ") && error.detail().contains("sum of 6"),
        "{error}"
    );
    assert_eq!(rest(&memory).await, 6, "nothing of what is there now was taken");
}
