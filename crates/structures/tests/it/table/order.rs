//! The order of a key's incarnations on a table's list: what is late in one of them does not bring the key back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Replies, StoreRef};
use larder_structures::Table;

use super::races::Classic;
use crate::support::hooked::{Hooked, dies_at, fail};
use crate::table::support::{evicting, flagged, lose, sorted_keys};

/// A handle of another client, on which the test decides what becomes of chosen batches.
async fn other(store: &StoreRef) -> (Table, Arc<Hooked>) {
    let hooked = Hooked::new(store);
    (Table::open(&hooked.shared(), "t").await.unwrap(), hooked)
}

/// "k" is absent to all, and put anew it is listed as ever.
async fn is_gone_for_good(store: &StoreRef, table: &Table) {
    assert_eq!(table.get("k").await.unwrap(), None);
    assert!(sorted_keys(table).await.is_empty());
    assert!(table.entries_and_lost().await.unwrap().lost.is_empty());
    assert!(!table.remove("k").await.unwrap());
    table.put("k", "again").await.unwrap();
    flagged(store, "t", b"k").await;
    lose(store, "t", b"k").await;
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
}

/// The maker stands between entry and list. Another put takes the place of his entry, and the reply to that is lost, so he finds his
/// value and lists that alone. Then the maker lists his own.
#[tokio::test]
async fn an_entry_replaced_before_its_maker_listed_it_goes_with_the_one_that_replaced_it() {
    let store = evicting();
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
    let ((making, stopped), (replacing, breaking)) = (other(&store).await, other(&store).await);
    let is_lost = Arc::new(AtomicBool::new(false));
    for nth in 1..10 {
        let is_lost = is_lost.clone();
        breaking.at(nth, |store, batch| async move {
            let replies = store.run(Ctx::default(), batch.clone()).await;
            let is_by_token = batch.iter().any(|op| op.cas().is_some());
            match is_by_token && !is_lost.swap(true, Ordering::Relaxed) {
                true => fail(&batch, Effect::Unknown),
                false => replies,
            }
        });
    }
    stopped.at(2, |store, batch| async move {
        replacing.put_for("k", "newer", Duration::from_secs(3600)).await.unwrap();
        replacing.settle().await;
        store.run(Ctx::default(), batch).await
    });
    making.put_for("k", "v", Duration::from_secs(7200)).await.unwrap();
    making.settle().await;
    assert!(is_lost.load(Ordering::Relaxed));
    assert_eq!(table.get("k").await.unwrap().unwrap(), "newer");
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    is_gone_for_good(&store, &table).await;
}

/// The maker stands between entry and list. A client removes his entry, and dies before he noted it *gone*; others put and remove the
/// key again, which takes that entry along. Then the maker lists it; in between the list is compacted, or not.
#[tokio::test]
async fn what_a_later_removal_took_along_is_not_listed_by_its_maker_any_more() {
    for is_compacted in [false, true] {
        let store = evicting();
        let dirtiness = if is_compacted { 1 } else { 1 << 20 };
        let table = Table::options().dirtiness(dirtiness).open_or_create(&store, "t").await.unwrap();
        let ((making, stopped), (dying, dead)) = (other(&store).await, other(&store).await);
        let others = table.clone();
        stopped.at(2, move |store, batch| async move {
            for nth in 7..60 {
                dead.at(nth, |_, batch| async move { fail(&batch, Effect::NotApplied) });
            }
            assert!(dying.remove("k").await.unwrap());
            others.put("k", "newer").await.unwrap();
            others.settle().await;
            assert!(others.remove("k").await.unwrap());
            others.settle().await;
            if is_compacted {
                assert!(others.keys().await.unwrap().is_empty());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            store.run(Ctx::default(), batch).await
        });
        making.put("k", "v").await.unwrap();
        making.settle().await;
        is_gone_for_good(&store, &table).await;
    }
}

/// What a full list answers to the note of a put.
fn refused(batch: &Batch) -> Replies {
    batch.iter().map(|_| Err(Error::new(ErrorKind::Full, "no room"))).collect()
}

#[tokio::test]
async fn what_the_list_refuses_is_there_until_it_is_taken_back() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let (making, hooked) = other(&store).await;
    let reader = table.clone();
    hooked.at(2, |_, batch| async move {
        assert_eq!(reader.get("k").await.unwrap().unwrap(), "v");
        assert!(reader.keys().await.unwrap().is_empty());
        refused(&batch)
    });
    let error = making.put("k", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert_eq!(table.get("k").await.unwrap(), None);
    is_gone_for_good(&store, &table).await;
}

/// Of two puts of one handle the later makes the entry, so the earlier was overwritten before it came, and is done. Then the list refuses the later:
/// took it its entry back, nothing would be left of the earlier.
#[tokio::test]
async fn what_overtook_a_put_that_is_done_is_not_taken_back_by_its_maker() {
    let store = evicting();
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
    let (putting, hooked) = other(&store).await;
    let (made, is_made) = tokio::sync::oneshot::channel();
    let (done, is_done) = tokio::sync::oneshot::channel();
    let (late, life) = (putting.clone(), Duration::from_secs(7200));
    let (told, later) = tokio::sync::oneshot::channel();
    // The later is refused, and is about to look what it can take back.
    hooked.at(3, |_, batch| async move { refused(&batch) });
    hooked.at(4, |store, batch| async move {
        made.send(()).unwrap();
        is_done.await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    hooked.at(1, move |store, batch| async move {
        tokio::spawn(async move { told.send(late.put_for("k", "later", life).await) });
        is_made.await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    putting.put_for("k", "earlier", life).await.unwrap();
    done.send(()).unwrap();
    let error = later.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{error}");
    assert_eq!(table.get("k").await.unwrap().unwrap(), "later");
    flagged(&store, "t", b"k").await;
    lose(&store, "t", b"k").await;
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
}

/// A reader found the entry, and lists it for its maker. The maker was refused meanwhile; took he it back now, it would be lost.
#[tokio::test]
async fn what_a_reader_lists_is_not_taken_back_by_its_maker() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let ((making, refusing), (reading, stopping)) = (other(&store).await, other(&store).await);
    let (listed, is_listed) = tokio::sync::oneshot::channel();
    let (undone, is_undone) = tokio::sync::oneshot::channel();
    // The reader gets, reads, signs and notes; then it stands still until the maker is through.
    stopping.at(5, |store, batch| async move {
        listed.send(()).unwrap();
        is_undone.await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    refusing.at(2, |_, batch| async move {
        assert_eq!(reading.get("k").await.unwrap().unwrap(), "v");
        is_listed.await.unwrap();
        refused(&batch)
    });
    let error = making.put("k", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{error}");
    undone.send(()).unwrap();
    flagged(&store, "t", b"k").await;
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    assert_eq!(sorted_keys(&table).await, ["k"]);
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    is_gone_for_good(&store, &table).await;
}

/// The connection breaks between the two writes of a put: the append joined the entry, and the network holds the add back until others have removed the
/// entry. It makes it again, so the put must not be acknowledged, whether or not the append's own reply came.
#[tokio::test]
async fn a_put_whose_add_may_come_after_a_remove_is_unknown() {
    for is_append_told in [true, false] {
        let store = evicting();
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let (putting, hooked) = other(&store).await;
        table.put("k", "old").await.unwrap();
        flagged(&store, "t", b"k").await;
        let (send, late) = tokio::sync::oneshot::channel();
        hooked.at(1, move |store, batch| async move {
            let is_append = |op: &larder_core::Op| op.name() == "append";
            let (append, rest): (Batch, Batch) = batch.clone().into_iter().partition(is_append);
            let told = store.run(Ctx::default(), append).await;
            let mut replies = if is_append_told { told } else { Replies::new() };
            replies.extend(fail(&batch, Effect::Unknown).into_iter().skip(replies.len()));
            send.send(rest).unwrap();
            replies
        });
        let outcome = putting.put("k", "v").await;
        assert_eq!(table.get("k").await.unwrap().unwrap(), "v", "the append has joined the entry");
        assert!(table.remove("k").await.unwrap());
        table.settle().await;
        assert_eq!(table.get("k").await.unwrap(), None);
        store.run(Ctx::default(), late.await.unwrap()).await;
        assert_eq!(table.get("k").await.unwrap().unwrap(), "v", "the add has made it anew");
        let error = outcome.expect_err("it is not over");
        assert!(error.is_unknown(), "the append was told: {is_append_told}: {error}");
        // What came late is an entry like others.
        flagged(&store, "t", b"k").await;
        assert_eq!(sorted_keys(&table).await, ["k"]);
        assert!(table.remove("k").await.unwrap());
        table.settle().await;
        is_gone_for_good(&store, &table).await;
    }
}

/// The maker is refused by the list while another client, which has read his entry, is about to remove it: he takes it back, and others put the key anew. The removal listed what was gone by then, after that, and
/// took the new entry off the list with it. Found by the proof's simulation (seed 999767389).
#[tokio::test]
async fn what_its_maker_took_back_while_it_is_removed_is_not_listed_after_what_comes_next() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let ((making, refusing), (removing, stopped)) = (other(&store).await, other(&store).await);
    let (read, is_read) = tokio::sync::oneshot::channel();
    let (undone, is_undone) = tokio::sync::oneshot::channel();
    let others = table.clone();
    stopped.at(2, move |store, batch| async move {
        read.send(()).unwrap();
        is_undone.await.unwrap();
        others.put("k", "newer").await.unwrap();
        flagged(&store, "t", b"k").await;
        store.run(Ctx::default(), batch).await
    });
    let (told, removed) = tokio::sync::oneshot::channel();
    refusing.at(2, move |_, batch| async move {
        tokio::spawn(async move { told.send(removing.remove("k").await) });
        is_read.await.unwrap();
        refused(&batch)
    });
    let error = making.put("k", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    undone.send(()).unwrap();
    assert!(removed.await.unwrap().unwrap(), "what came next");
    table.settle().await;
    is_gone_for_good(&store, &table).await;
}

/// What a remove lists for its maker is not taken back by him.
#[tokio::test]
async fn what_a_remove_lists_is_not_taken_back_by_its_maker() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let ((making, refusing), (removing, stopping)) = (other(&store).await, other(&store).await);
    let (signed, is_signed) = tokio::sync::oneshot::channel();
    let (undone, is_undone) = tokio::sync::oneshot::channel();
    // It reads, signs and notes; then it stands still until the maker is through.
    stopping.at(4, |store, batch| async move {
        signed.send(()).unwrap();
        is_undone.await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let (told, removed) = tokio::sync::oneshot::channel();
    refusing.at(2, move |_, batch| async move {
        tokio::spawn(async move { told.send(removing.remove("k").await) });
        is_signed.await.unwrap();
        refused(&batch)
    });
    let error = making.put("k", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{error}");
    undone.send(()).unwrap();
    assert!(removed.await.unwrap().unwrap());
    table.settle().await;
    is_gone_for_good(&store, &table).await;
}

/// An entry that is lost after a remove signed it, and before it listed it: another takes its place, and is listed first. That one goes with all that is before and after it.
#[tokio::test]
async fn what_a_remove_lists_after_its_loss_goes_with_what_came_next() {
    for is_put_again in [false, true] {
        let store = evicting();
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let ((dying, dead), (removing, stopping)) = (other(&store).await, other(&store).await);
        let others = table.clone();
        stopping.at(3, move |store, batch| async move {
            lose(&store, "t", b"k").await;
            if is_put_again {
                others.put("k", "newer").await.unwrap();
                flagged(&store, "t", b"k").await;
            }
            store.run(Ctx::default(), batch).await
        });
        dies_at(&dead, 2, dying.put("k", "v")).await;
        assert!(removing.remove("k").await.unwrap(), "it was there, or lost");
        removing.settle().await;
        is_gone_for_good(&store, &table).await;
    }
}

/// A put comes late with its listing, and gives the entry that is there by then another incarnation; its maker has not listed it, is refused meanwhile, and does not take it back.
#[tokio::test]
async fn what_is_made_anew_is_not_taken_back_by_its_maker() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let ((making, stopped), (next, refusing)) = (other(&store).await, other(&store).await);
    let (made, is_made) = tokio::sync::oneshot::channel();
    let (listed, is_listed) = tokio::sync::oneshot::channel();
    refusing.at(2, |_, batch| async move {
        made.send(()).unwrap();
        is_listed.await.unwrap();
        refused(&batch)
    });
    let (told, put) = tokio::sync::oneshot::channel();
    // It is lost before it is listed, so nothing says that it is gone.
    stopped.at(2, move |store, batch| async move {
        lose(&store, "t", b"k").await;
        tokio::spawn(async move { told.send(next.put("k", "next").await) });
        is_made.await.unwrap();
        tokio::time::sleep(Duration::from_millis(110)).await;
        store.run(Ctx::default(), batch).await
    });
    // It looks late at the entry and the list, then it reads, signs and lists what came next.
    let (undone, is_undone) = tokio::sync::oneshot::channel();
    stopped.at(7, |store, batch| async move {
        listed.send(()).unwrap();
        is_undone.await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    let making = tokio::spawn(async move { (making.put("k", "v").await, making.settle().await).0 });
    let error = put.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{error}");
    undone.send(()).unwrap();
    making.await.unwrap().unwrap();
    assert_eq!(table.get("k").await.unwrap().unwrap(), "next");
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    is_gone_for_good(&store, &table).await;
}

/// A put joined an entry that others removed before it came to list it; another put made the next one, and is refused. Listed by then, it would come after the one that follows, and be lost once that is removed.
#[tokio::test]
async fn what_is_there_in_the_place_of_what_a_put_joined_is_not_taken_back_by_its_maker() {
    for nth in [3, 4] {
        let store = evicting();
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let ((dying, dead), (joining, stopped), (next, refusing)) =
            (other(&store).await, other(&store).await, other(&store).await);
        dies_at(&dead, 2, dying.put("k", "v")).await;
        let (made, is_made) = tokio::sync::oneshot::channel();
        let (read, is_read) = tokio::sync::oneshot::channel();
        refusing.at(2, |_, batch| async move {
            made.send(()).unwrap();
            is_read.await.unwrap();
            refused(&batch)
        });
        let (told, put) = tokio::sync::oneshot::channel();
        let remover = table.clone();
        // It has joined it, and looks at it once more.
        stopped.at(2, |store, batch| async move {
            assert!(remover.remove("k").await.unwrap());
            remover.settle().await;
            tokio::spawn(async move { told.send(next.put("k", "next").await) });
            is_made.await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        // It is about to sign that, or to list it.
        let others = table.clone();
        stopped.at(nth, |store, batch| async move {
            read.send(()).unwrap();
            let refused = put.await.unwrap().unwrap_err();
            if refused.known_effect() == Effect::NotApplied {
                others.put("k", "after it").await.unwrap();
                flagged(&store, "t", b"k").await;
            }
            store.run(Ctx::default(), batch).await
        });
        joining.put("k", "w").await.unwrap();
        joining.settle().await;
        assert!(table.remove("k").await.unwrap());
        table.settle().await;
        is_gone_for_good(&store, &table).await;
    }
}

/// The maker is refused, and finds nothing to take back: others have removed his entry, and were told that it was there.
#[tokio::test]
async fn a_put_that_is_refused_and_was_removed_by_others_is_unknown() {
    let store = evicting();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    let (making, hooked) = other(&store).await;
    let remover = table.clone();
    hooked.at(2, |_, batch| async move {
        assert!(remover.remove("k").await.unwrap());
        remover.settle().await;
        refused(&batch)
    });
    let error = making.put("k", "v").await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::Unknown), "{error}");
    is_gone_for_good(&store, &table).await;
}

/// As above, and the one that took the place of what was lost is removed by others while this remove gives it another incarnation; and on a store without deletes by token, where no other is there.
#[tokio::test]
async fn a_remove_deletes_what_it_has_read_after_it_looked_at_its_listing() {
    for is_removed_by_others in [false, true] {
        let store: StoreRef = Arc::new(Classic(evicting()));
        let table = Table::open_or_create(&store, "t").await.unwrap();
        let ((dying, dead), (removing, stopping)) = (other(&store).await, other(&store).await);
        dies_at(&dead, 2, dying.put("k", "v")).await;
        let others = table.clone();
        stopping.at(3, move |store, batch| async move {
            lose(&store, "t", b"k").await;
            others.put("k", "newer").await.unwrap();
            flagged(&store, "t", b"k").await;
            store.run(Ctx::default(), batch).await
        });
        if is_removed_by_others {
            let others = table.clone();
            stopping.at(5, move |store, batch| async move {
                assert!(others.remove("k").await.unwrap());
                others.settle().await;
                store.run(Ctx::default(), batch).await
            });
        }
        assert!(removing.remove("k").await.unwrap(), "removed, or lost");
        removing.settle().await;
        is_gone_for_good(&store, &table).await;
    }
}
