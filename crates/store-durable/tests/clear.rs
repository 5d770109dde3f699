//! Everything removed at once.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{copy, ends, get, incr, key, set, try_get};
use larder_core::list::{List, Listed};
use larder_core::{Batch, Ctx, Op, PutMode, Store, StoreExt, Ttl, Want};
use larder_store_durable::{Direct, DirectItem, DirectNext, DurableStore, Options, Ticket};

/// More than a round of the committer takes.
const ITEMS: usize = 9_000;

async fn filled(folder: &Path) -> DurableStore {
    let store = Options::new(folder).open().unwrap();
    let put = |number: usize| {
        let ttl = if number.is_multiple_of(2) { Ttl::Never } else { Ttl::After(Duration::from_secs(600)) };
        Op::put(key(&format!("k{number}")), PutMode::Set, "old", ttl)
    };
    let ops: Vec<Op> = (0..ITEMS).map(put).collect();
    for batch in ops.chunks(4_000) {
        let batch: Batch = batch.iter().cloned().collect();
        assert!(store.run(Ctx::default(), batch).await.iter().all(Result::is_ok));
    }
    store
}

async fn settled(direct: &Direct, ticket: Ticket) {
    let settled = std::future::poll_fn(|cx| match direct.poll_settled(ticket, cx) {
        Ok(poll) => poll.map(Ok),
        Err(error) => std::task::Poll::Ready(Err(error)),
    });
    settled.await.unwrap();
}

fn put(direct: &Direct, key: &[u8], value: &'static str) -> Ticket {
    let put = |_: Option<&DirectItem>, cas| {
        DirectNext::Put(DirectItem { value: value.into(), flags: 0, marks: 0, cas, expiry_ms: None })
    };
    direct.update(key, put).unwrap()
}

async fn listed(store: &DurableStore) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut tell = |listed: Listed<'_>| {
        if let Listed::Key(key) = listed {
            keys.push(key.to_vec());
        }
    };
    store.list(Ctx::default(), b"", &mut tell).await.unwrap();
    keys
}

/// Items that are stored, shown or not.
fn stored(store: &DurableStore) -> u64 {
    let checked = store.check(&mut |_| ()).unwrap();
    assert_eq!(checked.damaged, 0, "{:?}", checked.first);
    checked.items
}

async fn swept(store: &DurableStore, left: u64) {
    let begun = Instant::now();
    while stored(store) != left {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} items are left", stored(store));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn everything_goes_by_one_write_and_what_comes_after_it_stays() {
    let folder = tempfile::tempdir().unwrap();
    let direct = Direct::new(filled(folder.path()).await);
    let cleared = direct.clear().unwrap();
    let written = put(&direct, b"k1", "new");
    assert!(direct.get(b"k2").unwrap().0.is_none(), "whoever asks next sees it");
    settled(&direct, cleared.max(written)).await;
    assert_eq!(direct.get(b"k1").unwrap().0.unwrap().value, "new");
    assert!(direct.get(b"k2").unwrap().0.is_none());
    let mut walked = Vec::new();
    assert_eq!(direct.walk(b"", 2 * ITEMS, &mut |key, _| walked.push(key.to_vec())).unwrap(), None);
    assert_eq!(walked, [b"k1"]);
    let store = direct.store();
    assert_eq!(listed(store).await, [b"k1"]);
    assert_eq!(store.scan(b"", ITEMS, Want::VALUE).unwrap().len(), 1);
    assert_eq!((get(store, "k1").await.unwrap(), get(store, "k2").await), ("new".into(), None));
    assert_eq!(incr(store, "k3").await.unwrap(), 1, "an op finds nothing to build on");
    let (backup, totals) = store.backup(Vec::new(), &mut |_| ()).unwrap();
    assert_eq!(totals.items, 2);
    swept(store, 2).await;

    let elsewhere = folder.path().join("restored");
    Options::new(&elsewhere).restore(&backup[..], &mut |_| ()).unwrap();
    let restored = Options::new(&elsewhere).open().unwrap();
    assert_eq!(get(&restored, "k1").await.unwrap(), "new");
}

#[tokio::test]
async fn a_crash_at_any_batch_leaves_all_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let direct = Direct::new(filled(&path).await);
    settled(&direct, direct.clear().unwrap()).await;
    swept(direct.store(), 0).await;
    drop(direct);
    let journal = std::fs::read(path.join("engine/0.jnl")).unwrap();
    let ends = ends(&journal);
    let crashed_at = async |at: usize| {
        let crashed = folder.path().join("crashed");
        std::fs::create_dir(&crashed).unwrap();
        copy(&path, &crashed);
        // Noted at the end, and here it is not the end yet.
        std::fs::remove_file(crashed.join("state")).unwrap();
        std::fs::write(crashed.join("engine/0.jnl"), &journal[..ends[at]]).unwrap();
        let items = listed(&Options::new(&crashed).open().unwrap()).await.len();
        std::fs::remove_dir_all(&crashed).unwrap();
        items
    };
    // All while items are made and go, and some of those that sweep.
    let step = ends.len().div_ceil(4);
    let mut found = Vec::new();
    for at in (0..ends.len()).filter(|at| *at < 12 || at % step == 0) {
        found.push(crashed_at(at).await);
    }
    let cleared = found.iter().rposition(|items| *items > 0).expect("items that are there before they go") + 1;
    assert_eq!(found[cleared - 1], ITEMS, "{found:?}");
    assert!(found[..cleared].is_sorted() && found[cleared..].iter().all(|items| *items == 0), "{found:?}");
    assert!(found.len() > cleared + 1, "what was swept was written, too: {found:?}");
}

#[tokio::test]
async fn a_store_that_is_closed_before_all_is_swept_goes_on_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let direct = Direct::new(filled(folder.path()).await);
        settled(&direct, direct.clear().unwrap()).await;
        settled(&direct, put(&direct, b"k1", "new")).await;
        drop(direct);
        let store = Options::new(folder.path()).open().unwrap();
        assert_eq!(listed(&store).await, [b"k1"], "round {round}");
        if round != 1 {
            swept(&store, 1).await;
        }
        assert_eq!(get(&store, "k1").await.unwrap(), "new");
        set(&store, "k2", "new").await.unwrap();
        assert_eq!(
            try_get(&store, "k2").await.unwrap().unwrap(),
            "new",
            "the key of an item that was swept, or is not yet"
        );
    }
}

#[tokio::test]
async fn what_was_swept_leaves_no_end_of_a_life_behind() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(larder_core::ManualClock::at(Duration::from_secs(1_700_000_000)));
    let open = || Options::new(folder.path()).clock(clock.clone()).open().unwrap();
    let store = open();
    let brief = |value: &'static str| Op::put(key("k"), PutMode::Set, value, Ttl::After(Duration::from_secs(600)));
    store.run_one(Ctx::default(), brief("old")).await.unwrap();
    let direct = Direct::new(store);
    settled(&direct, direct.clear().unwrap()).await;
    // Its end is that of the one before, to the millisecond: sweeping that must leave it.
    direct.store().run_one(Ctx::default(), brief("new")).await.unwrap();
    drop(direct);
    let store = open();
    swept(&store, 1).await;
    assert_eq!(get(&store, "k").await.unwrap(), "new");
    // And a 64th of its life, by which it is removed.
    clock.advance(Duration::from_secs(600 + 600 / 64 + 1));
    assert_eq!(store.reclaim_expired().await.unwrap(), 1, "its end is noted still");
    assert_eq!(stored(&store), 0);
}
