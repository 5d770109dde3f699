//! A table's entries that get a new incarnation in their place: what others do meanwhile.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, ManualClock, Op, PutMode, Remaining, StoreExt, StoreRef, Verb, Want};
use larder_store_memory::MemoryStore;
use larder_structures::Table;

use super::races::{before, dead_at, is_gone_for_good, is_listed_for_good, is_lost_until_removed, remove, two};
use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, fail};
use crate::table::support::{entry_key, evicting, flagged, is_flagged, sorted_keys};

/// A reader renews what a dead client left leaving; others remove it before that is listed, and the list forgets it.
#[tokio::test]
async fn a_renewal_that_is_listed_too_late_is_a_loss() {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    for number in 0..1100u32 {
        table.put(number.to_le_bytes(), "v").await.unwrap();
    }
    dying.put("k", "v").await.unwrap();
    table.settle().await;
    flagged(&store, "t", b"k").await;
    dead_at(&hooked, 3, remove(&dying, "k")).await;
    let hooked = Hooked::new(&store);
    let far_off = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let reader = Table::options().clock(far_off).open(&hooked.shared(), "t").await.unwrap();
    let others = table.clone();
    // The list, the entry; the entry again, its rewriting, and the note.
    before(&hooked, 5, move || async move {
        assert!(others.remove("k").await.unwrap());
        for number in 0..1100u32 {
            others.settle().await;
            assert!(others.remove(number.to_le_bytes()).await.unwrap());
        }
        others.settle().await;
        tokio::time::sleep(Duration::from_millis(110)).await;
    });
    assert!(reader.keys().await.unwrap().contains(&"k".into()));
    reader.settle().await;
    is_lost_until_removed(&table, "k").await;
}

/// A reader gives the entry a new incarnation while a put of the same handle is on its way: that is no put, and overtakes none.
#[tokio::test]
async fn a_put_that_a_renewal_by_its_handle_overtook_is_read() {
    for has_lives in [false, true] {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let store = evicting();
        Table::options().ttl(has_lives).open_or_create(&store, "t").await.unwrap();
        let (table, hooked, dying) = two(&store).await;
        dying.put("k", "v").await.unwrap();
        flagged(&store, "t", b"k").await;
        dead_at(&hooked, 3, remove(&dying, "k")).await;
        let hooked = Hooked::new(&store);
        let handle = Table::options().clock(clock).open(&hooked.shared(), "t").await.unwrap();
        let reader = handle.clone();
        before(&hooked, 1, move || async move {
            assert_eq!(sorted_keys(&reader).await, ["k"]);
            reader.settle().await;
        });
        handle.put("k", "w").await.unwrap();
        handle.settle().await;
        assert_eq!(table.get("k").await.unwrap().unwrap(), "w", "lives: {has_lives}");
        is_listed_for_good(&store, &table, "k").await;
    }
}

/// An entry whose remover died before he deleted it.
struct Abandoned {
    table: Table,
    /// Its clock says that the remover died long ago: it renews what it reads.
    reader: Table,
    hooked: Arc<Hooked>,
    /// Behind `hooked`.
    removing: Table,
}

/// Put by the one who dies, or by `table`.
async fn abandoned(by_the_dying: bool) -> Abandoned {
    let store = evicting();
    let (table, hooked, dying) = two(&store).await;
    let putter = if by_the_dying { &dying } else { &table };
    putter.put("k", "v").await.unwrap();
    flagged(&store, "t", b"k").await;
    dead_at(&hooked, 3, remove(&dying, "k")).await;
    let far_off = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let reader = Table::options().clock(far_off).open(&store, "t").await.unwrap();
    let hooked = Hooked::new(&store);
    let removing = Table::open(&hooked.shared(), "t").await.unwrap();
    Abandoned { table, reader, hooked, removing }
}

/// A reader gives the entry a new incarnation between the steps of a remove: the entry is no other for that, and is removed. Found by the proof's simulation (seed 770807178).
#[tokio::test]
async fn a_remove_that_a_renewal_comes_between_removes() {
    for (nth, loses_reply) in [(1, false), (2, false), (3, false), (3, true)] {
        let Abandoned { table, reader, hooked, removing } = abandoned(true).await;
        hooked.at(nth, move |store, batch| async move {
            assert_eq!(sorted_keys(&reader).await, ["k"]);
            reader.settle().await;
            let replies = store.run(Ctx::default(), batch.clone()).await;
            if loses_reply { fail(&batch, Effect::Unknown) } else { replies }
        });
        assert!(removing.remove("k").await.unwrap(), "before batch {nth}");
        removing.settle().await;
        is_gone_for_good(&table, "k").await;
    }
}

/// The same, and all who had written to the entry put it again before the remove looks: only the renewal's writer tells that it is the same entry. It was taken for removed by others.
#[tokio::test]
async fn a_remove_that_a_renewal_and_puts_of_all_earlier_writers_come_between_removes() {
    for nth in [2, 3] {
        let Abandoned { table, reader, hooked, removing } = abandoned(false).await;
        let putting = table.clone();
        before(&hooked, nth, move || async move {
            assert_eq!(sorted_keys(&reader).await, ["k"]);
            reader.settle().await;
            putting.put("k", "w").await.unwrap();
        });
        assert!(removing.remove("k").await.unwrap(), "before batch {nth}");
        removing.settle().await;
        is_gone_for_good(&table, "k").await;
    }
}

/// An entry whose maker did not come to flag it, and whose remover died: before it is given another incarnation it is listed, and that takes its time off the life. The clock of the timers stands, so nobody
/// repairs it meanwhile.
#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_make_a_life_longer_by_the_time_that_it_takes() {
    let (life, takes) = (Duration::from_secs(60), Duration::from_millis(60));
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let answering = Answering::new(&store);
    let dying = Table::options().ttl(true).clock(clock.clone()).open_or_create(&answering.shared(), "t").await.unwrap();
    answering.by(|op| {
        let is_refused = matches!(op.verb, Verb::Delete { .. } | Verb::Put { mode: PutMode::Cas(_), .. });
        is_refused.then(|| Err(Error::new(ErrorKind::BadInput, "it is not sent")))
    });
    dying.put_for("k", "v", life).await.unwrap();
    dying.settle().await;
    dying.remove("k").await.unwrap_err();
    let hooked = Hooked::new(&store);
    let later = Arc::new(ManualClock::at(Duration::from_secs(2_000_000)));
    let reader = Table::options().clock(later).open(&hooked.shared(), "t").await.unwrap();
    // The list, the entry; the entry again, its signature, and the note that it is listed.
    before(&hooked, 5, move || async move { clock.advance(takes) });
    assert_eq!(sorted_keys(&reader).await, ["k"]);
    reader.settle().await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
    let op = Op::get(entry_key(&store, "t", b"k").await, Want::TTL);
    let item = store.run_one(Ctx::default(), op).await.unwrap().into_item().unwrap();
    let Remaining::For(left) = item.ttl else { panic!("{:?}", item.ttl) };
    assert!(left <= life - takes && left > life / 2, "{left:?}");
}
