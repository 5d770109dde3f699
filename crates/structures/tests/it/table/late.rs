//! Entries that are noted late: others removed them meanwhile, or put them anew, and the list may have forgotten that.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Ctx, PutMode, Reply, StoreExt, StoreRef, Verb};
use larder_structures::Table;

use super::races::is_lost_until_removed;
use crate::support::hooked::{Hooked, dies_at};
use crate::support::sieve::Sieve;
use crate::table::support::{entry_key, evicting};

const HOUR: Duration = Duration::from_secs(3_600);
/// More than a list remembers to be gone.
const MANY: u32 = 1_100;
/// From then on a note is late.
const LATE: Duration = Duration::from_millis(110);

async fn open(store: &StoreRef, has_lives: bool) -> Table {
    let options = Table::options().ttl(has_lives).timeout(Duration::from_secs(60));
    options.open_or_create(store, "t").await.unwrap()
}

async fn put(table: &Table, key: &str, value: &str) -> larder_core::Result<()> {
    match table.has_lives() {
        true => table.put_for(key, value, HOUR).await,
        false => table.put(key, value).await,
    }
}

/// A table of many other entries.
async fn of_many(store: &StoreRef, has_lives: bool) -> Table {
    let table = open(store, has_lives).await;
    for number in 0..MANY {
        put(&table, &number.to_string(), "v").await.unwrap();
    }
    table.settle().await;
    table
}

/// Removes "k", and so many others that the list forgets it.
async fn forget(table: &Table) {
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    for number in 0..MANY {
        assert!(table.remove(number.to_string()).await.unwrap());
        table.settle().await;
    }
    tokio::time::sleep(LATE).await;
}

#[tokio::test]
async fn with_lives_a_listing_that_comes_after_the_list_forgot_that_the_entry_is_gone_is_a_loss() {
    let store = evicting();
    let table = of_many(&store, true).await;
    let hooked = Hooked::new(&store);
    let slow = open(&hooked.shared(), true).await;
    let others = table.clone();
    hooked.at(2, move |store, batch| async move {
        forget(&others).await;
        store.run(Ctx::default(), batch).await
    });
    put(&slow, "k", "v").await.unwrap();
    slow.settle().await;
    is_lost_until_removed(&table, "k").await;
}

/// The list names what came after it: there is nothing to be done about either.
#[tokio::test]
async fn an_entry_that_was_listed_after_one_that_is_late_is_let_be() {
    for has_lives in [false, true] {
        let store = evicting();
        let table = open(&store, has_lives).await;
        let hooked = Hooked::new(&store);
        let slow = open(&hooked.shared(), has_lives).await;
        let item_key = entry_key(&store, "t", b"k").await;
        let newer = Arc::new(Mutex::new(bytes::Bytes::new()));
        let (keeps, others, of) = (newer.clone(), table.clone(), item_key.clone());
        hooked.at(2, move |store, batch| async move {
            let replies = store.run(Ctx::default(), batch).await;
            assert!(others.remove("k").await.unwrap());
            put(&others, "k", "newer").await.unwrap();
            others.settle().await;
            *keeps.lock().unwrap() = store.get(of).await.unwrap().unwrap().value;
            tokio::time::sleep(LATE).await;
            replies
        });
        put(&slow, "k", "v").await.unwrap();
        slow.settle().await;
        let newer = newer.lock().unwrap().clone();
        assert_eq!(store.get(item_key).await.unwrap().unwrap().value, newer, "with lives: {has_lives}");
        assert_eq!(table.get("k").await.unwrap().unwrap(), "newer");
    }
}

/// An entry whose maker died before he listed it.
async fn unlisted(store: &StoreRef) {
    let dead = Hooked::new(store);
    let dying = open(&dead.shared(), true).await;
    dies_at(&dead, 2, put(&dying, "k", "v")).await;
}

/// It adds its own and finds the other, reads that, signs it, and lists it late; it does not take its place, and looks at what it listed, in the list, too. Then it
/// begins anew, and dies. The other may have been put by somebody who was told so, and lost.
#[tokio::test]
async fn what_a_put_listed_late_for_another_and_did_not_replace_is_a_loss() {
    let store = evicting();
    let table = of_many(&store, true).await;
    unlisted(&store).await;
    let hooked = Hooked::new(&store);
    let slow = open(&hooked.shared(), true).await;
    let others = table.clone();
    hooked.at(4, move |store, batch| async move {
        forget(&others).await;
        store.run(Ctx::default(), batch).await
    });
    dies_at(&hooked, 8, put(&slow, "k", "w")).await;
    is_lost_until_removed(&table, "k").await;
}

/// How often an entry was written under a token.
fn counting_rewrites(inner: &StoreRef) -> (StoreRef, Arc<AtomicUsize>) {
    let rewrites = Arc::new(AtomicUsize::new(0));
    let counted = rewrites.clone();
    let store = Sieve::answering(inner, move |_, op| {
        let is_entry = !op.key.as_bytes().ends_with(b".0");
        if is_entry && matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. }) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
        None
    });
    (store, rewrites)
}

#[tokio::test]
async fn a_put_that_took_the_place_of_one_that_it_listed_late_is_not_made_anew() {
    let inner = evicting();
    open(&inner, true).await;
    unlisted(&inner).await;
    let (store, rewrites) = counting_rewrites(&inner);
    let hooked = Hooked::new(&store);
    let slow = open(&hooked.shared(), true).await;
    hooked.at(4, |store, batch| async move {
        tokio::time::sleep(LATE).await;
        store.run(Ctx::default(), batch).await
    });
    put(&slow, "k", "w").await.unwrap();
    slow.settle().await;
    assert_eq!(rewrites.load(Ordering::SeqCst), 3, "it is signed, its place is taken, and that is flagged");
    assert_eq!(slow.get("k").await.unwrap().unwrap(), "w");
}

/// A router between repeats it, and answers what became of the second.
#[tokio::test]
async fn with_lives_a_put_that_landed_and_was_answered_as_beaten_is_known_for_its_own() {
    let inner = evicting();
    let table = open(&inner, true).await;
    put(&table, "k", "v").await.unwrap();
    table.settle().await;
    let (store, rewrites) = counting_rewrites(&inner);
    let hooked = Hooked::new(&store);
    let repeated = open(&hooked.shared(), true).await;
    hooked.at(2, |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        assert!(matches!(replies[..], [Ok(Reply::Stored)]), "{replies:?}");
        replies.into_iter().map(|_| Ok(Reply::Exists)).collect()
    });
    put(&repeated, "k", "w").await.unwrap();
    repeated.settle().await;
    assert_eq!(rewrites.load(Ordering::SeqCst), 2, "it is put, and flagged, and signed for nobody");
    assert_eq!(table.get("k").await.unwrap().unwrap(), "w");
}
