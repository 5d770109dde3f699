//! The counter's slots as errors and other callers see them: how many there can be, which are gone, and what a write that was given up leaves behind.

use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, StoreExt};
use larder_structures::Counter;
use larder_testkit::faulty::{Fault, Faulty};

use crate::counter::support::{data_key, memory, slot_key};
use crate::support::hooked::Hooked;

#[tokio::test]
async fn as_many_slots_are_made_as_one_batch_takes_and_no_more() {
    let store = Hooked::with_batches_of(&memory(), 4).shared();
    let error = Counter::options().slots(5).open_or_create(&store, "n").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    Counter::options().slots(4).open_or_create(&store, "n").await.unwrap().add(1).await.unwrap();
}

#[tokio::test]
async fn slots_that_are_gone_are_listed_up_to_sixteen_of_them() {
    for (gone, is_cut) in [(2, false), (16, false), (17, true), (20, true)] {
        let store = memory();
        let counter = Counter::options().slots(20).open_or_create(&store, "n").await.unwrap();
        for index in 0..gone {
            assert!(store.delete(slot_key(&store, "n", index).await).await.unwrap());
        }
        let error = counter.get().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let listed: Vec<String> = (0..gone.min(16)).map(|index| index.to_string()).collect();
        let words = format!("slots {}{}; those", listed.join(", "), if is_cut { ", …" } else { "" });
        assert!(error.to_string().contains(&words), "{words:?} is not in: {error}");
    }
}

/// A store that refuses is not asked again at once: the pauses grow, and the first try costs none.
#[tokio::test(start_paused = true)]
async fn between_the_tries_of_an_add_there_are_pauses() {
    let faulty = Faulty::new(memory());
    let counter = Counter::options().slots(1).open_or_create(&faulty.shared(), "n").await.unwrap();
    counter.add(1).await.unwrap();
    let before = tokio::time::Instant::now();
    faulty.fail_nth(1, Fault::NotSent);
    counter.add(1).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO, "one try more, at once");
    faulty.fail_always(Fault::NotSent);
    assert_eq!(counter.add(1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(before.elapsed() > Duration::ZERO, "six tries");
}

/// Whoever drops an add while it is under way and then gives the slot back: the add counts in that slot, and in no other beside.
#[tokio::test]
async fn an_add_that_was_dropped_before_its_slot_was_given_back_counts_once() {
    // Which of the free slots an add takes is drawn.
    for _ in 0..2 {
        let store = memory();
        let hooked = Hooked::new(&store);
        let counter = Counter::options().slots(256).open_or_create(&hooked.shared(), "n").await.unwrap();
        let (landed, is_landed) = tokio::sync::oneshot::channel();
        // A look, and then the write.
        hooked.at(2, |store, batch| async move {
            _ = store.run(Ctx::default(), batch).await;
            landed.send(()).unwrap();
            std::future::pending().await
        });
        let adder = counter.clone();
        let adding = tokio::spawn(async move { adder.add(1).await });
        is_landed.await.unwrap();
        adding.abort();
        assert!(adding.await.unwrap_err().is_cancelled());
        counter.release().await.unwrap();
        counter.add(10).await.unwrap();
        assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 11);
    }
}

#[tokio::test]
async fn a_reset_that_the_store_refuses_took_nothing_and_says_so() {
    let store = memory();
    let hooked = Hooked::new(&store);
    let counter = Counter::options().slots(2).open_or_create(&hooked.shared(), "n").await.unwrap();
    counter.add(7).await.unwrap();
    // A look, and then whatever it writes.
    for nth in 2..40 {
        hooked.refuse(nth);
    }
    let error = counter.reset().await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert!(!error.to_string().contains("were reset"), "{error}");
    assert_eq!(Counter::open(&store, "n").await.unwrap().get().await.unwrap(), 7);
}

/// Whoever finds the number of a fast counter gone is told whether the counter is another's by now.
#[tokio::test]
async fn a_fast_counter_whose_number_is_gone_tells_whose_name_it_is_now() {
    let store = memory();
    let counter = Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    assert!(store.delete(data_key(&store, "n", 'n', 0).await).await.unwrap());
    for error in [counter.get().await.unwrap_err(), counter.add(1).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Lost);
        assert!(error.to_string().contains("evicted, or lost in a restart"), "{error}");
    }
    larder_structures::registry::drop_structure(&store, Ctx::default(), counter.name()).await.unwrap();
    let error = counter.get().await.unwrap_err();
    assert!(error.to_string().contains("the manifest is gone too"), "{error}");
    Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    let error = counter.get().await.unwrap_err();
    assert!(error.to_string().contains("dropped and made again"), "{error}");
}
