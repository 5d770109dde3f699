//! The table's cases: a client that dies after each step, and others that come in between two steps. The letters are those of the
//! module's documentation.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, ManualClock, Replies, StoreRef};
use larder_structures::Table;

use crate::support::hooked::{Hooked, fail};
use crate::table::support::{
    Evicting, entries, eventually, evicting, flagged, is_flagged, list_key, lose, sorted_keys,
};

/// A table, and a handle of another client, on which the test decides what becomes of chosen batches.
pub(super) async fn two(store: &StoreRef) -> (Table, Arc<Hooked>, Table) {
    let table = Table::open_or_create(store, "t").await.unwrap();
    let hooked = Hooked::new(store);
    let other = Table::options().timeout(Duration::from_secs(2)).open(&hooked.shared(), "t").await.unwrap();
    (table, hooked, other)
}

/// Batches from the nth on never come back, as for a client that died. Nothing is sent of them.
fn die_at(hooked: &Arc<Hooked>, nth: u64) {
    for later in nth..nth + 40 {
        hooked.at(later, |_, _| std::future::pending());
    }
}

/// Runs a call of a client that dies at its nth batch from now.
pub(super) async fn dead_at<T: Send + 'static>(
    hooked: &Arc<Hooked>,
    nth: u64,
    call: impl Future<Output = larder_core::Result<T>> + Send + 'static,
) {
    die_at(hooked, nth);
    let call = tokio::spawn(call);
    tokio::time::sleep(Duration::from_millis(30)).await;
    call.abort();
}

pub(super) fn put(
    table: &Table,
    key: &'static str,
    value: &'static str,
) -> impl Future<Output = larder_core::Result<()>> + use<> {
    let table = table.clone();
    async move { table.put(key, value).await }
}

pub(super) fn remove(table: &Table, key: &'static str) -> impl Future<Output = larder_core::Result<bool>> + use<> {
    let table = table.clone();
    async move { table.remove(key).await }
}

/// Does this with the store behind, then lets the batch through.
pub(super) fn before<F>(hooked: &Hooked, nth: u64, act: impl FnOnce() -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    hooked.at(nth, |store, batch| async move {
        act().await;
        store.run(Ctx::default(), batch).await
    });
}

/// A loss of the key is told: it is listed for good.
pub(super) async fn is_listed_for_good(store: &StoreRef, table: &Table, key: &str) {
    flagged(store, "t", key.as_bytes()).await;
    assert_eq!(sorted_keys(table).await, [key.to_owned()]);
    lose(store, "t", key.as_bytes()).await;
    assert_eq!(table.get(key).await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Nobody can know whether it was lost or removed: whoever misses it is told, until somebody puts or removes it.
pub(super) async fn is_lost_until_removed(table: &Table, key: &str) {
    assert_eq!(table.get(key).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(table.remove(key).await.unwrap());
    table.settle().await;
    is_gone_for_good(table, key).await;
}

pub(super) async fn is_gone_for_good(table: &Table, key: &str) {
    let fresh = table.clone();
    assert_eq!(fresh.get(key).await.unwrap(), None);
    assert!(sorted_keys(table).await.is_empty());
    assert!(table.entries_and_lost().await.unwrap().lost.is_empty());
    assert!(!table.remove(key).await.unwrap());
}

#[tokio::test]
async fn put_a_dead_client_left_an_entry_that_is_not_listed_and_a_reader_lists_it() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    dead_at(&hooked, 2, put(&dying, "k", "v")).await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(false));
    assert!(table.keys().await.unwrap().is_empty());
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    is_listed_for_good(&store, &table, "k").await;
}

#[tokio::test]
async fn put_a_the_next_put_lists_what_a_dead_client_did_not_before_it_is_acknowledged() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    dead_at(&hooked, 2, put(&dying, "k", "v")).await;
    table.put("k", "w").await.unwrap();
    assert_eq!(sorted_keys(&table).await, ["k"]);
    // Evicted at once, before anything was done behind the caller.
    lose(&store, "t", b"k").await;
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn put_a_a_remove_takes_away_what_a_dead_client_did_not_list() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    dead_at(&hooked, 2, put(&dying, "k", "v")).await;
    assert!(table.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
}

#[tokio::test]
async fn put_b_a_dead_client_left_an_entry_that_is_listed_and_does_not_say_so() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    dead_at(&hooked, 3, put(&dying, "k", "v")).await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(false));
    assert_eq!(sorted_keys(&table).await, ["k"]);
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    is_listed_for_good(&store, &table, "k").await;
    assert!(table.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
}

#[tokio::test]
async fn remove_e_a_dead_client_left_an_entry_that_is_leaving_and_it_stays() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store = evicting();
    let (_, hooked, dying) = two(&store).await;
    let table = Table::options().clock(clock.clone()).open(&store, "t").await.unwrap();
    dying.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    dead_at(&hooked, 3, remove(&dying, "k")).await;
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    assert_eq!(sorted_keys(&table).await, ["k"]);
    assert_eq!(entries(&table).await.len(), 1);
    table.put("k", "w").await.unwrap();
    // The dead client's clock is another: from far away in time, its remove is over, and a reader gives the entry a new incarnation.
    let list =
        || async { larder_core::StoreExt::get(&*store, list_key(&store, "t", 0).await).await.unwrap().unwrap().value };
    // Listed: incarnation, no expiry, key. It is gone once that is noted.
    let listed = list().await;
    let at = listed.windows(5).position(|bytes| bytes == b"\0\0\0\0k").expect("the listing");
    let gone = [b"\x12\x02", &listed[at - 8..at]].concat();
    eventually("the entry is listed for good", || async {
        _ = table.keys().await.unwrap();
        list().await.windows(gone.len()).any(|bytes| bytes == gone)
    })
    .await;
    assert_eq!(table.get("k").await.unwrap().unwrap(), "w");
    is_listed_for_good(&store, &table, "k").await;
}

/// Nobody asks for the keys: those who get, or put, find what the dead client left, all the same.
#[tokio::test]
async fn remove_e_those_who_only_get_or_only_put_repair_what_a_dead_client_left() {
    for is_get in [true, false] {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let store = evicting();
        let (_, hooked, dying) = two(&store).await;
        let table = Table::options().clock(clock.clone()).open(&store, "t").await.unwrap();
        dying.put("k", "v").await.unwrap();
        flagged(&store, "t", b"k").await;
        dead_at(&hooked, 3, remove(&dying, "k")).await;
        table.put("k", "w").await.unwrap();
        table.settle().await;
        clock.advance(Duration::from_secs(601));
        if is_get {
            assert_eq!(table.get("k").await.unwrap().unwrap(), "w");
        } else {
            table.put("k", "w").await.unwrap();
        }
        // Until nothing is under way: the look through the list, the new incarnation, and that it is flagged.
        for _ in 0..3 {
            table.settle().await;
        }
        flagged(&store, "t", b"k").await;
        assert_eq!(table.get("k").await.unwrap().unwrap(), "w");
        lose(&store, "t", b"k").await;
        let told = table.get("k").await;
        assert_eq!(told.as_ref().map_err(larder_core::Error::kind), Err(ErrorKind::Lost), "by get: {is_get}");
    }
}

#[tokio::test]
async fn remove_f_a_dead_client_left_a_key_that_is_leaving_and_it_is_absent() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    dying.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    dead_at(&hooked, 4, remove(&dying, "k")).await;
    assert_eq!(table.get("k").await.unwrap(), None);
    is_gone_for_good(&table, "k").await;
    table.put("k", "w").await.unwrap();
    is_listed_for_good(&store, &table, "k").await;
}

#[tokio::test]
async fn a_reader_between_the_steps_of_a_put_sees_it_or_nothing() {
    let store = evicting();
    for nth in 1..=2 {
        let (table, hooked, putting) = two(&store).await;
        let reader = table.clone();
        before(&hooked, nth, move || async move {
            let seen = reader.get("k").await.unwrap();
            assert_eq!(seen.is_some(), nth == 2);
            _ = entries(&reader).await;
        });
        putting.put("k", "v").await.unwrap();
        is_listed_for_good(&store, &table, "k").await;
        assert!(table.remove("k").await.unwrap());
        is_gone_for_good(&table, "k").await;
    }
}

/// What healthy clients do to each other is never a loss.
#[tokio::test]
async fn a_reader_between_the_steps_of_a_remove_sees_the_entry_or_nothing() {
    let store = evicting();
    for nth in 1..=3 {
        let (table, hooked, removing) = two(&store).await;
        table.put("k", "v").await.unwrap();
        flagged(&store, "t", b"k").await;
        let reader = table.clone();
        before(&hooked, nth, move || async move {
            assert_eq!(reader.get("k").await.unwrap().unwrap(), "v");
            assert_eq!(sorted_keys(&reader).await, ["k"]);
            assert_eq!(entries(&reader).await.len(), 1);
        });
        let reader = table.clone();
        hooked.at(3, move |store, batch| async move {
            let replies = store.run(Ctx::default(), batch).await;
            assert_eq!(reader.get("k").await.unwrap(), None);
            assert!(reader.keys().await.unwrap().is_empty());
            assert!(entries(&reader).await.is_empty());
            replies
        });
        assert!(removing.remove("k").await.unwrap());
        is_gone_for_good(&table, "k").await;
    }
}

/// The reader is the one with the hooks: at each of its batches, somebody removes the entry, or removes it and puts it anew.
#[tokio::test]
async fn a_remove_between_the_steps_of_a_reader_is_never_a_loss() {
    for is_put_again in [false, true] {
        for (nth, is_there) in [(1, true), (2, false), (3, false)] {
            let store = evicting();
            let (table, hooked, reading) = two(&store).await;
            if is_there {
                table.put("k", "v").await.unwrap();
                flagged(&store, "t", b"k").await;
            } else {
                // It comes after the reader's first look.
                let putting = table.clone();
                hooked.at(1, |store, batch| async move {
                    let replies = store.run(Ctx::default(), batch).await;
                    putting.put("k", "v").await.unwrap();
                    replies
                });
            }
            let changing = table.clone();
            before(&hooked, nth, move || async move {
                changing.remove("k").await.unwrap();
                if is_put_again {
                    changing.put("k", "w").await.unwrap();
                }
            });
            let seen = reading.get("k").await;
            assert!(seen.is_ok(), "{is_put_again} {nth} {is_there}: {seen:?}");
            assert_eq!(table.has("k").await.unwrap(), is_put_again);
        }
    }
}

/// The one who removes has the hooks: at its first batch nothing is there, then somebody puts the entry, and removes it before a later one.
#[tokio::test]
async fn a_remove_of_what_comes_and_goes_between_its_steps_is_no_removal_of_its_own() {
    for nth in 2..=6 {
        let store = evicting();
        let (table, hooked, removing) = two(&store).await;
        let putting = table.clone();
        hooked.at(1, |store, batch| async move {
            let replies = store.run(Ctx::default(), batch).await;
            putting.put("k", "v").await.unwrap();
            replies
        });
        let other = table.clone();
        before(&hooked, nth, move || async move { assert!(other.remove("k").await.unwrap()) });
        assert!(!removing.remove("k").await.unwrap(), "{nth}");
        is_gone_for_good(&table, "k").await;
    }
}

/// Put after the first look, removed before the second, put anew before the list is read again.
#[tokio::test]
async fn a_key_that_changes_at_each_look_of_a_reader_is_never_a_loss() {
    let store = evicting();
    let (table, hooked, reading) = two(&store).await;
    for nth in 2..=5 {
        let changing = table.clone();
        before(&hooked, nth, move || async move {
            if nth % 2 == 0 {
                changing.put("k", format!("{nth}")).await.unwrap();
            } else {
                changing.remove("k").await.unwrap();
            }
        });
    }
    // Get, list: put. Get: removed. List: put anew. Get: removed. List.
    assert_eq!(reading.get("k").await.unwrap(), None);
    assert_eq!(table.get("k").await.unwrap(), None);
}

#[tokio::test]
async fn of_two_that_put_a_new_key_at_once_both_are_listed_and_one_value_stays() {
    let store = evicting();
    // The other puts before the first one's entry, between entry and list, and before it is flagged.
    for nth in 1..=3 {
        let (table, hooked, first) = two(&store).await;
        let second = table.clone();
        before(&hooked, nth, move || async move { second.put("k", "second").await.unwrap() });
        first.put("k", "first").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let value = table.get("k").await.unwrap().unwrap();
        assert_eq!(value, if nth == 1 { "first" } else { "second" });
        is_listed_for_good(&store, &table, "k").await;
        assert!(table.remove("k").await.unwrap());
        is_gone_for_good(&table, "k").await;
    }
}

/// The append came too early and the add too late.
#[tokio::test]
async fn a_put_whose_add_meets_anothers_writes_by_token() {
    let store = evicting();
    let (table, hooked, first) = two(&store).await;
    let second = table.clone();
    hooked.at(1, |store, batch| async move {
        let (append, rest): (Batch, Batch) = batch.into_iter().partition(|op| op.name() == "append");
        let mut replies = store.run(Ctx::default(), append).await;
        second.put("k", "second").await.unwrap();
        replies.extend(store.run(Ctx::default(), rest).await);
        replies
    });
    first.put("k", "first").await.unwrap();
    assert_eq!(table.get("k").await.unwrap().unwrap(), "first");
    is_listed_for_good(&store, &table, "k").await;
}

#[tokio::test]
async fn a_remove_between_the_steps_of_a_put_takes_it_away_for_good() {
    let store = evicting();
    for nth in 2..=3 {
        let (table, hooked, putting) = two(&store).await;
        let removing = table.clone();
        before(&hooked, nth, move || async move {
            assert!(removing.remove("k").await.unwrap());
            // Long gone when the putter's own note comes.
            tokio::time::sleep(Duration::from_millis(20)).await;
        });
        putting.put("k", "v").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        is_gone_for_good(&table, "k").await;
        table.put("k", "w").await.unwrap();
        is_listed_for_good(&store, &table, "k").await;
        assert!(table.remove("k").await.unwrap());
    }
}

/// A table that others removed "k" from, and so many other entries after it that the list has forgotten it is gone, while its maker
/// stood between entry and list; what became of his put.
async fn listed_too_late(store: &StoreRef, is_put_again: bool) -> (Table, larder_core::Result<()>) {
    let table = Table::open_or_create(store, "t").await.unwrap();
    let hooked = Hooked::new(store);
    let slow = Table::options().timeout(Duration::from_secs(60)).open(&hooked.shared(), "t").await.unwrap();
    for number in 0..1100u32 {
        table.put(number.to_le_bytes(), "v").await.unwrap();
    }
    table.settle().await;
    let others = table.clone();
    before(&hooked, 2, move || async move {
        assert!(others.remove("k").await.unwrap());
        others.settle().await;
        for number in 0..1100u32 {
            assert!(others.remove(number.to_le_bytes()).await.unwrap());
            others.settle().await;
        }
        if is_put_again {
            others.put("k", "newer").await.unwrap();
            others.settle().await;
        }
        tokio::time::sleep(Duration::from_millis(110)).await;
    });
    let outcome = slow.put("k", "v").await;
    slow.settle().await;
    (table, outcome)
}

#[tokio::test]
async fn a_listing_that_comes_after_the_list_forgot_that_the_entry_is_gone_is_a_loss_or_is_taken_back() {
    let (table, outcome) = listed_too_late(&evicting(), false).await;
    outcome.unwrap();
    is_lost_until_removed(&table, "k").await;
    // Where nothing can be lost, it was removed.
    let (table, outcome) = listed_too_late(&crate::table::support::memory(), false).await;
    is_gone_for_good(&table, "k").await;
    outcome.unwrap();
}

#[tokio::test]
async fn a_listing_that_comes_too_late_does_not_outlive_a_newer_entry() {
    let store = evicting();
    let (table, outcome) = listed_too_late(&store, true).await;
    outcome.unwrap();
    assert_eq!(table.get("k").await.unwrap().unwrap(), "newer");
    assert_eq!(sorted_keys(&table).await, ["k"]);
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    is_gone_for_good(&table, "k").await;
    table.put("k", "w").await.unwrap();
    is_listed_for_good(&store, &table, "k").await;
}

/// A list that forgets nothing tells an entry that was lost from one that was removed.
#[tokio::test]
async fn an_entry_that_is_lost_before_it_is_listed_late_is_lost() {
    let store = evicting();
    let (table, hooked, putting) = two(&store).await;
    let losing = store.clone();
    before(&hooked, 2, move || async move {
        lose(&losing, "t", b"k").await;
        tokio::time::sleep(Duration::from_millis(110)).await;
    });
    putting.put("k", "v").await.unwrap();
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
}

/// Removed and put anew by others, with their *gone* done or not, while a put is midway.
#[tokio::test]
async fn a_late_note_of_a_put_does_not_touch_a_newer_incarnation() {
    let store = evicting();
    let (table, hooked, putting) = two(&store).await;
    let others = table.clone();
    before(&hooked, 2, move || async move {
        assert!(others.remove("k").await.unwrap());
        others.put("k", "newer").await.unwrap();
    });
    putting.put("k", "older").await.unwrap();
    assert_eq!(table.get("k").await.unwrap().unwrap(), "newer");
    flagged(&store, "t", b"k").await;
    assert_eq!(sorted_keys(&table).await, ["k"]);
    assert!(table.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
}

#[tokio::test]
async fn a_put_between_the_steps_of_a_remove_is_removed_or_stays_listed() {
    let store = evicting();
    for (nth, is_there) in [(1, false), (2, false), (3, false), (4, true)] {
        let (table, hooked, removing) = two(&store).await;
        table.put("k", "v").await.unwrap();
        flagged(&store, "t", b"k").await;
        let putting = table.clone();
        before(&hooked, nth, move || async move { putting.put("k", "w").await.unwrap() });
        assert!(removing.remove("k").await.unwrap());
        if is_there {
            eventually("the put is through", || async { table.has("k").await.unwrap() }).await;
            tokio::time::sleep(Duration::from_millis(30)).await;
            is_listed_for_good(&store, &table, "k").await;
            assert!(table.remove("k").await.unwrap());
        }
        is_gone_for_good(&table, "k").await;
    }
}

/// There each put takes the entry's place under another name. It was there all the time, so a remove may not say that it was not (the job of tables with lives, simulation seed 998132987).
#[tokio::test]
async fn with_lives_a_put_between_the_steps_of_a_remove_is_removed_or_comes_after_it() {
    let store = evicting();
    drop(Table::options().ttl(true).open_or_create(&store, "t").await.unwrap());
    for nth in 1..=4 {
        let (table, hooked, removing) = two(&store).await;
        table.put("k", "v").await.unwrap();
        table.settle().await;
        let putting = table.clone();
        before(&hooked, nth, move || async move { putting.put_for("k", "w", Duration::from_secs(60)).await.unwrap() });
        assert!(removing.remove("k").await.unwrap(), "{nth}");
        removing.settle().await;
        table.settle().await;
        if nth == 4 {
            assert_eq!(table.get("k").await.unwrap().unwrap(), "w", "put behind the removal");
            assert!(table.remove("k").await.unwrap());
        }
        is_gone_for_good(&table, "k").await;
    }
}

#[tokio::test]
async fn of_two_removes_one_removes_and_a_put_in_between_stays() {
    let store = evicting();
    for is_put_again in [false, true] {
        for nth in 1..=3 {
            let (table, hooked, removing) = two(&store).await;
            table.put("k", "v").await.unwrap();
            flagged(&store, "t", b"k").await;
            let others = table.clone();
            before(&hooked, nth, move || async move {
                assert!(others.remove("k").await.unwrap());
                if is_put_again {
                    others.put("k", "newer").await.unwrap();
                }
            });
            let removed = removing.remove("k").await.unwrap();
            // Begun after the put, it removes that.
            assert_eq!(removed, nth == 1 && is_put_again, "{nth} {is_put_again}");
            if is_put_again && nth > 1 {
                assert_eq!(table.get("k").await.unwrap().unwrap(), "newer");
                is_listed_for_good(&store, &table, "k").await;
                assert!(table.remove("k").await.unwrap());
            }
            is_gone_for_good(&table, "k").await;
        }
    }
}

/// The reader saw the entry before it was listed; by the time it lists it, it was listed, and removed.
#[tokio::test]
async fn a_late_repair_does_not_bring_a_key_back() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    dead_at(&hooked, 2, put(&dying, "k", "v")).await;
    let slow = Hooked::new(&store);
    let reading = Table::open(&slow.shared(), "t").await.unwrap();
    let others = table.clone();
    // After the get, and the repair's own look: its note.
    before(&slow, 3, move || async move {
        others.put("k", "w").await.unwrap();
        assert!(others.remove("k").await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    });
    assert_eq!(reading.get("k").await.unwrap().unwrap(), "v");
    reading.settle().await;
    is_gone_for_good(&table, "k").await;
}

#[tokio::test]
async fn a_put_whose_reply_is_lost_is_looked_for() {
    let store = evicting();
    for is_new in [true, false] {
        let (table, hooked, putting) = two(&store).await;
        if !is_new {
            table.put("k", "old").await.unwrap();
            flagged(&store, "t", b"k").await;
        }
        hooked.lose_replies(1);
        // In an entry that was there, its append is seen, and nothing tells whether its add has come as well.
        let outcome = putting.put("k", "v").await;
        assert_eq!(outcome.map_err(|error| error.is_unknown()), if is_new { Ok(()) } else { Err(true) });
        assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
        assert_eq!(sorted_keys(&table).await, ["k"]);
        // It did not arrive: that is all anybody knows.
        hooked.at(1, |_, batch| async move { fail(&batch, Effect::Unknown) });
        let error = putting.put("k", "w").await.unwrap_err();
        assert!(error.is_unknown(), "{error}");
        assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
        // It was not sent: tried again.
        hooked.refuse(1);
        putting.put("k", "x").await.unwrap();
        assert_eq!(table.get("k").await.unwrap().unwrap(), "x");
        is_listed_for_good(&store, &table, "k").await;
        assert!(table.remove("k").await.unwrap());
    }
}

#[tokio::test]
async fn a_remove_whose_reply_is_lost_is_looked_into() {
    let store = evicting();
    for arrives in [true, false] {
        let (table, hooked, removing) = two(&store).await;
        table.put("k", "v").await.unwrap();
        flagged(&store, "t", b"k").await;
        if arrives {
            hooked.lose_replies(3);
        } else {
            hooked.at(3, |_, batch| async move { fail(&batch, Effect::Unknown) });
        }
        assert!(removing.remove("k").await.unwrap());
        is_gone_for_good(&table, "k").await;
    }
}

#[tokio::test]
async fn a_remove_that_is_given_up_is_unknown() {
    let store = evicting();
    let (table, hooked, _) = two(&store).await;
    let removing = Table::options().timeout(Duration::from_millis(200)).open(&hooked.shared(), "t").await.unwrap();
    table.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    for nth in 3..80 {
        hooked.at(nth, |_, batch| async move { fail(&batch, Effect::NotApplied) });
    }
    let error = removing.remove("k").await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    assert_eq!(sorted_keys(&table).await, ["k"]);
}

/// A store of a classic server: conditional puts, and no conditional deletes.
#[derive(Debug)]
pub(super) struct Classic(pub(super) StoreRef);

impl larder_core::Store for Classic {
    fn profile(&self) -> Arc<larder_core::Profile> {
        Arc::new(larder_core::Profile { delete_cas: false, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> larder_core::Run<'a> {
        let is_by_token = |op: &larder_core::Op| op.name() == "delete" && op.cas().is_some();
        assert!(!batch.iter().any(is_by_token), "a delete by token");
        self.0.run(ctx, batch)
    }
}

#[tokio::test]
async fn without_deletes_by_token_all_works_but_the_race_that_is_named() {
    let inner: StoreRef = Arc::new(Evicting(crate::table::support::memory()));
    let store: StoreRef = Arc::new(Classic(inner));
    let (table, hooked, removing) = two(&store).await;
    table.put("k", "v").await.unwrap();
    assert!(removing.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
    // A put in between is removed, as one that came before.
    table.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    let putting = table.clone();
    before(&hooked, 3, move || async move { putting.put("k", "w").await.unwrap() });
    assert!(removing.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
    // A delete whose reply is lost is not tried again: it could take a newer entry.
    table.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    hooked.at(3, |_, batch| async move { fail(&batch, Effect::Unknown) });
    assert!(removing.remove("k").await.unwrap_err().is_unknown());
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    assert!(table.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
    // A remove and a put in between: the new entry goes, and its key says so.
    table.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    let others = table.clone();
    before(&hooked, 3, move || async move {
        assert!(others.remove("k").await.unwrap());
        others.put("k", "newer").await.unwrap();
    });
    _ = removing.remove("k").await.unwrap();
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(table.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
}

#[tokio::test]
async fn a_store_without_cas_is_refused() {
    #[derive(Debug)]
    struct NoCas(StoreRef);
    impl larder_core::Store for NoCas {
        fn profile(&self) -> Arc<larder_core::Profile> {
            Arc::new(larder_core::Profile { cas: false, delete_cas: false, ..(*self.0.profile()).clone() })
        }
        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> larder_core::Run<'a> {
            self.0.run(ctx, batch)
        }
    }
    let store: StoreRef = Arc::new(NoCas(crate::table::support::memory()));
    let error = Table::open_or_create(&store, "t").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("cas"), "{error}");
    assert_eq!(Table::open(&store, "t").await.unwrap_err().kind(), ErrorKind::Absent);
}

#[tokio::test]
async fn with_lives_a_crash_between_entry_and_list_is_repaired() {
    let store = evicting();
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
    let hooked = Hooked::new(&store);
    let dying = Table::open(&hooked.shared(), "t").await.unwrap();
    table.put_for("k", "v", Duration::from_secs(7200)).await.unwrap();
    flagged(&store, "t", b"k").await;
    // Read, written anew, not listed.
    let call = dying.clone();
    dead_at(&hooked, 3, async move { call.put_for("k", "w", Duration::from_secs(3600)).await }).await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(false));
    assert_eq!(table.get("k").await.unwrap().unwrap(), "w");
    flagged(&store, "t", b"k").await;
    assert!(table.remove("k").await.unwrap());
    is_gone_for_good(&table, "k").await;
}

#[tokio::test]
async fn a_reply_that_is_missing_is_an_error_and_no_panic() {
    let store = evicting();
    let (_, hooked, table) = two(&store).await;
    hooked.at(1, |_, _| async { Replies::new() });
    assert!(table.get("k").await.is_err());
    hooked.at(1, |_, _| async { Replies::new() });
    assert!(table.put("k", "v").await.is_err());
    hooked.at(1, |_, _| async { Replies::new() });
    assert!(table.keys().await.is_err());
    hooked.at(1, |_, _| async { Replies::new() });
    assert!(table.remove("k").await.is_err());
}

/// Two tasks put a key through one handle. The one that began first comes to the entry after the other, as a write of this handle that is
/// older than one in the entry: it does not count there, so the list must not name an incarnation for it.
#[tokio::test]
async fn with_lives_a_put_that_a_later_one_of_its_handle_overtook_is_overwritten_by_it() {
    for is_there in [false, true] {
        let store = evicting();
        let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
        let hooked = Hooked::new(&store);
        let handle = Table::open(&hooked.shared(), "t").await.unwrap();
        if is_there {
            table.put_for("k", "old", Duration::from_secs(7200)).await.unwrap();
            flagged(&store, "t", b"k").await;
        }
        let later = handle.clone();
        before(&hooked, 1, move || async move {
            later.put_for("k", "later", Duration::from_secs(7200)).await.unwrap();
            later.settle().await;
        });
        handle.put_for("k", "earlier", Duration::from_secs(3600)).await.unwrap();
        handle.settle().await;
        assert_eq!(table.get("k").await.unwrap().unwrap(), "later");
        assert_eq!(sorted_keys(&table).await, ["k"]);
        assert!(table.remove("k").await.unwrap());
        table.settle().await;
        is_gone_for_good(&table, "k").await;
        table.put("k", "w").await.unwrap();
        is_listed_for_good(&store, &table, "k").await;
    }
}

/// Nobody knows whether the earlier one landed before the later one, or may land yet: after a remove, say.
#[tokio::test]
async fn a_put_whose_reply_is_lost_is_not_known_by_a_later_one_of_its_handle() {
    for has_lives in [false, true] {
        let store = evicting();
        Table::options().ttl(has_lives).open_or_create(&store, "t").await.unwrap();
        let (table, hooked, handle) = two(&store).await;
        let later = handle.clone();
        let (send, late) = tokio::sync::oneshot::channel();
        hooked.at(1, |_, batch| async move {
            later.put("k", "later").await.unwrap();
            later.settle().await;
            send.send(batch.clone()).unwrap();
            fail(&batch, Effect::Unknown)
        });
        let outcome = handle.put("k", "earlier").await;
        assert!(table.remove("k").await.unwrap());
        table.settle().await;
        store.run(Ctx::default(), late.await.unwrap()).await;
        assert_eq!(table.get("k").await.unwrap().unwrap(), "earlier", "it has landed yet");
        let error = outcome.unwrap_err();
        assert!(error.is_unknown(), "{error}");
    }
}
