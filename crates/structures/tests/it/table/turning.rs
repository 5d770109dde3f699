//! A table on a store that could not lose anything when it was opened, and can by now: Redis and memcached say anew at each handshake what they keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Batch, Clock, Ctx, Error, ErrorKind, Op, StoreRef};
use larder_structures::Table;

use crate::support::hooked::Hooked;
use crate::support::turning::Turning;
use crate::table::support::{cost, counting, flagged, is_flagged, list_key, lose, memory};

/// A table that was opened while nothing could be lost, with these entries, listed for good.
async fn opened(keys: &[&str]) -> (Arc<Turning>, Arc<Hooked>, Table) {
    let turning = Turning::over(&memory());
    let hooked = Hooked::new(&turning.shared());
    let table = Table::open_or_create(&hooked.shared(), "t").await.unwrap();
    for key in keys {
        table.put(key, "v").await.unwrap();
        flagged(&turning.shared(), "t", key.as_bytes()).await;
    }
    table.settle().await;
    (turning, hooked, table)
}

async fn keys_of_a_fresh_handle(turning: &Arc<Turning>) -> Vec<bytes::Bytes> {
    Table::open(&turning.shared(), "t").await.unwrap().keys().await.unwrap()
}

#[tokio::test]
async fn what_is_lost_since_the_store_may_lose_is_told_and_stays_listed() {
    let (turning, _, table) = opened(&["k", "there"]).await;
    turning.turn(true);
    lose(&turning.shared(), "t", b"k").await;
    let lost = table.get("k").await.unwrap_err();
    assert_eq!((lost.kind(), lost.to_string().contains("\"k\"")), (ErrorKind::Lost, true), "{lost}");
    assert_eq!(table.entries().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(table.entries_and_lost().await.unwrap().lost, ["k"]);
    assert_eq!(table.get_many(["there", "k"]).await.unwrap_err().kind(), ErrorKind::Lost);
    // What it may have lost meanwhile it may have lost for good.
    turning.turn(false);
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(table.entries_and_lost().await.unwrap().lost, ["k"]);
    table.settle().await;
    assert_eq!(keys_of_a_fresh_handle(&turning).await.len(), 2);
}

/// The handshake comes before the replies, and may come behind the call.
#[tokio::test]
async fn what_is_lost_while_it_is_asked_for_is_told_and_stays_listed() {
    for listing in [false, true] {
        let (turning, hooked, table) = opened(&["k"]).await;
        let turns = turning.clone();
        // Of the entries the list is read first.
        hooked.at(1 + u64::from(listing), move |store, batch| async move {
            turns.turn(true);
            store.run(Ctx::default(), Batch::from_iter([Op::delete(batch[0].key.clone())])).await;
            store.run(Ctx::default(), batch).await
        });
        let told = if listing { table.entries().await.map(drop) } else { table.get("k").await.map(drop) };
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(is_flagged(&turning.shared(), "t", b"k").await, None);
        table.settle().await;
        assert_eq!(keys_of_a_fresh_handle(&turning).await, ["k"]);
    }
}

/// As long as nothing can be lost, one round trip tells what is missing; as soon as something can, the list is asked, and no more than ever.
#[tokio::test]
async fn a_store_that_turns_costs_no_round_trip_until_it_does() {
    let turning = Turning::over(&memory());
    let (store, counting) = counting(turning.shared());
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("k", "v").await.unwrap();
    table.settle().await;
    assert_eq!(cost(&counting, table.get("k")).await, 1);
    assert_eq!(cost(&counting, table.get("absent")).await, 1);
    turning.turn(true);
    assert_eq!(cost(&counting, table.get("k")).await, 1);
    assert_eq!(cost(&counting, table.get("absent")).await, 2);
    assert_eq!(cost(&counting, table.entries()).await, 2);
}

/// A profile behind layers, or of a cluster, is not for nothing: what is there has it read once, and only what is missing once more, behind the reply.
#[tokio::test]
async fn an_entry_that_is_there_has_the_store_asked_once_what_it_keeps() {
    let (turning, _, table) = opened(&["k", "l"]).await;
    let mut before = turning.profiles();
    let mut asked = || turning.profiles() - std::mem::replace(&mut before, turning.profiles());
    assert_eq!(table.get("k").await.unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(asked(), 1);
    assert_eq!(table.get_many(["k", "l"]).await.unwrap().len(), 2);
    assert_eq!(asked(), 1);
    assert_eq!(table.get("absent").await.unwrap(), None);
    assert_eq!(asked(), 2);
}

/// A put whose entry is lost before it is listed was told as done, where a removal was all that could have happened to it.
#[tokio::test]
async fn a_put_whose_entry_is_lost_before_it_is_listed_is_unknown() {
    let (turning, hooked, table) = opened(&[]).await;
    let turns = turning.clone();
    hooked.lose_replies(1);
    hooked.at(3, move |store, batch| async move {
        turns.turn(true);
        store.run(Ctx::default(), Batch::from_iter([Op::delete(batch[0].key.clone())])).await;
        store.run(Ctx::default(), batch).await
    });
    assert!(table.put("k", "v").await.is_err_and(|error: Error| error.is_unknown()));
}

/// Lost after it was listed, late: the note that it is gone would have hidden that.
#[tokio::test]
async fn an_entry_that_is_lost_while_its_maker_is_late_is_lost() {
    let (turning, hooked, table) = opened(&[]).await;
    let (turns, losing): (_, StoreRef) = (turning.clone(), turning.shared());
    hooked.at(2, move |store, batch| async move {
        turns.turn(true);
        lose(&losing, "t", b"k").await;
        tokio::time::sleep(Duration::from_millis(110)).await;
        store.run(Ctx::default(), batch).await
    });
    table.put("k", "v").await.unwrap();
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(keys_of_a_fresh_handle(&turning).await, ["k"]);
}

/// Who misses an entry needs the list: on a store that has come to lose that may be gone, too.
#[tokio::test]
async fn a_list_that_is_lost_is_told_to_who_misses_an_entry() {
    let (turning, _, table) = opened(&["k"]).await;
    turning.turn(true);
    lose(&turning.shared(), "t", b"k").await;
    let list = Op::delete(list_key(&turning.shared(), "t", 0).await);
    turning.shared().run(Ctx::default(), Batch::from_iter([list])).await;
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A clock that turns a store as it is asked for the nth time.
#[derive(Debug)]
struct TurnsStore {
    turning: Arc<Turning>,
    asks_left: AtomicU64,
}

impl Clock for TurnsStore {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        if self.asks_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.turning.turn(true);
        }
        Duration::from_secs(1_000_000)
    }
}

/// It is gone already, and the store owns up to it sooner or later: what was held for absent by then stays listed, so that it is told as lost.
#[tokio::test]
async fn what_is_lost_before_the_store_says_that_it_may_lose_stays_listed() {
    let mut turned = 0;
    for nth in 1.. {
        let (turning, ..) = opened(&["k"]).await;
        lose(&turning.shared(), "t", b"k").await;
        let clock = Arc::new(TurnsStore { turning: turning.clone(), asks_left: AtomicU64::new(u64::MAX) });
        let table = Table::options().clock(clock.clone()).open(&turning.shared(), "t").await.unwrap();
        clock.asks_left.store(nth, Ordering::SeqCst);
        let told = table.entries().await;
        if !turning.is_turned() {
            break;
        }
        turned += 1;
        match told {
            Ok(entries) => assert!(entries.is_empty(), "{entries:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        }
        table.settle().await;
        assert_eq!(keys_of_a_fresh_handle(&turning).await, ["k"], "at question {nth}");
    }
    assert!(turned > 0);
}
