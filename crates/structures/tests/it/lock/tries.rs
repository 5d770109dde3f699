//! How long a try or a wait for a lock takes, what it says of who holds it, and what it leaves where its write was refused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, StoreExt, Verb};
use larder_structures::lock::LockStatus;

use crate::lock::support::*;
use crate::support::hooked::{Hooked, fail};

/// By its own clock alone a handle would have to observe the dead one's record for ten minutes.
#[tokio::test(start_paused = true)]
async fn a_try_observes_for_a_minute_at_the_most() {
    let (store, clock) = memory();
    let store = Reprofiled::speaking(&store, Dialect::Silent);
    let gate = Gate::new(&store);
    let long = || options(&clock).lease(Duration::from_secs(600));
    let dead = long().open(&(gate.clone() as larder_core::StoreRef), "n").await.unwrap();
    let _guard = dead.try_acquire().await.unwrap().unwrap();
    gate.set(Pass::HangBefore);
    let fresh = long().open(&store, "n").await.unwrap();
    let begin = tokio::time::Instant::now();
    assert!(fresh.try_acquire().await.unwrap().is_none());
    assert_eq!(begin.elapsed(), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_says_who_holds_the_lock() {
    let (store, clock) = memory();
    let holder = options(&clock).label("backup on host 7").open(&store, "n").await.unwrap();
    let guard = holder.try_acquire().await.unwrap().unwrap();
    let error = options(&clock).open(&store, "n").await.unwrap().acquire(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let (owner, token) = (format!("{:016x}", guard.owner()), format!("token {}", guard.fencing_token()));
    for said in ["backup on host 7", &owner, &token] {
        assert!(error.to_string().contains(said), "{said:?} is not in {error}");
    }
}

/// A record that is gone may be a live holder's: nobody takes the lock before that one's lease is over, whoever asks.
#[tokio::test(start_paused = true)]
async fn a_lock_whose_record_is_gone_is_not_taken_and_nothing_is_written() {
    let (store, clock) = memory();
    let lock = options(&clock).open(&store, "n").await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let other = options(&clock).open(&store, "n").await.unwrap();
    assert!(other.try_acquire().await.unwrap().is_none());
    assert!(store.delete(key("n")).await.unwrap());
    assert_eq!(other.try_acquire().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(store.get(key("n")).await.unwrap().is_none(), "it was made anew");
    drop(guard);
}

/// What was refused for certain leaves nothing to give back: the next one may take the lock at once, and keeps it.
#[tokio::test(start_paused = true)]
async fn a_try_that_was_overtaken_leaves_the_lock_to_who_was_first() {
    let (store, clock) = memory();
    let hooked = Hooked::new(&store);
    let lock = options(&clock).open(&hooked.shared(), "n").await.unwrap();
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let other = options(&clock).open(&store, "n").await.unwrap();
    let (told, mut taken) = tokio::sync::oneshot::channel();
    hooked.at(1, move |store, batch| async move {
        told.send(other.try_acquire().await.unwrap().expect("it is free")).ok();
        store.run(Ctx::default(), batch).await
    });
    assert!(lock.try_acquire().await.unwrap().is_none());
    let guard = taken.try_recv().unwrap();
    tokio::time::sleep(LEASE).await;
    assert!(guard.is_held());
}

/// A write that stays unanswered may land as long as the record is as it was, and no longer.
#[tokio::test(start_paused = true)]
async fn an_error_behind_a_write_that_can_land_no_more_says_that_nothing_was_done() {
    let (store, clock) = memory();
    let hooked = Hooked::new(&store);
    let lock = options(&clock).open(&hooked.shared(), "n").await.unwrap();
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let other = options(&clock).open(&store, "n").await.unwrap();
    // The write is lost, another has the lock for a moment, and what stands there is read.
    hooked.at(1, move |store, batch| async move {
        other.try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
        let mut replies = fail(&batch, Effect::Unknown);
        replies.truncate(1);
        replies.extend(store.run(Ctx::default(), batch.into_iter().skip(1).collect()).await);
        replies
    });
    hooked.refuse(2);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false), "{error}");
    assert!(matches!(lock.status().await.unwrap(), LockStatus::Free { .. }));
}

/// Of two writes that say the same the second would be taken for the first, which may land yet.
#[tokio::test(start_paused = true)]
async fn each_write_of_a_try_is_another_though_no_time_has_passed() {
    let (store, clock) = memory();
    let hooked = Hooked::new(&store);
    let lock = options(&clock).open(&hooked.shared(), "n").await.unwrap();
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    let values = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = (values.clone(), values.clone());
    // Its fate is unknown, and what stands there is what was there before.
    hooked.at(1, move |store, batch| async move {
        first.lock().unwrap().push(batch[0].clone());
        let mut replies = fail(&batch, Effect::Unknown);
        replies.truncate(1);
        replies.extend(store.run(Ctx::default(), batch.into_iter().skip(1).collect()).await);
        replies
    });
    hooked.at(2, move |store, batch| {
        second.lock().unwrap().push(batch[0].clone());
        async move { store.run(Ctx::default(), batch).await }
    });
    let _guard = lock.try_acquire().await.unwrap().unwrap();
    let values: Vec<_> = values
        .lock()
        .unwrap()
        .iter()
        .map(|op| match &op.verb {
            Verb::Put { value, .. } => value.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(values.len() == 2 && values[0] != values[1], "{values:?}");
}

/// Where the read behind the write fails, a record that was there before is known to be written over; one that was made is to be written over yet.
#[tokio::test(start_paused = true)]
async fn a_write_whose_read_failed_takes_a_lock_that_was_there_and_leaves_a_new_one_open() {
    for is_new in [true, false] {
        let (store, clock) = memory();
        let hooked = Hooked::new(&store);
        let lock = options(&clock).open(&hooked.shared(), "n").await.unwrap();
        if !is_new {
            lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
        }
        hooked.at(1, |store, batch| async move {
            let unread = fail(&batch, Effect::NotApplied).into_iter().skip(1);
            let put = batch.into_iter().take(1).collect();
            store.run(Ctx::default(), put).await.into_iter().chain(unread).collect()
        });
        match lock.try_acquire().await {
            Ok(guard) => assert!(!is_new && guard.expect("it is free").is_held()),
            Err(error) => assert!(is_new && error.is_unknown(), "new: {is_new}, {error}"),
        }
    }
}

/// Its first write may land as long as nobody else has written; the second was refused since another had.
#[tokio::test(start_paused = true)]
async fn a_try_whose_open_write_was_overtaken_says_of_a_later_fault_that_nothing_was_done() {
    let (store, clock) = memory();
    let hooked = Hooked::new(&store);
    let lock = options(&clock).open(&hooked.shared(), "n").await.unwrap();
    lock.try_acquire().await.unwrap().unwrap().release().await.unwrap();
    hooked.at(1, |store, batch| async move {
        let mut replies = fail(&batch, Effect::Unknown);
        replies.truncate(1);
        replies.extend(store.run(Ctx::default(), batch.into_iter().skip(1).collect()).await);
        replies
    });
    let other = options(&clock).open(&store, "n").await.unwrap();
    hooked.at(2, move |store, batch| async move {
        other.try_acquire().await.unwrap().expect("it is free").release().await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    hooked.refuse(3);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Unavailable, false), "{error}");
}
