//! What a table's handle does beside its callers, and what it spares them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder_core::{
    Ctx, Effect, Error, ErrorKind, ManualClock, Profile, PutMode, Reply, StoreExt, StoreRef, Verb, Want,
};
use larder_store_memory::MemoryStore;
use larder_structures::Table;

use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, dies_at};
use crate::support::sieve::Sieve;
use crate::table::support::{
    Evicting, cost, counting, entry_key, eventually, evicting, flagged, is_flagged, list_key, memory, sorted_keys,
};

/// Puts these, each by a handle of its own: none of them compacts what the others left.
async fn put_apart(store: &StoreRef, values: &[&str]) {
    let maker = Table::open_or_create(store, "t").await.unwrap();
    maker.put("k", values[0]).await.unwrap();
    maker.settle().await;
    for value in &values[1..] {
        Table::open(store, "t").await.unwrap().put("k", value).await.unwrap();
    }
}

#[tokio::test]
async fn an_entry_that_is_mostly_stale_is_compacted_by_its_first_reader() {
    let store = memory();
    put_apart(&store, &[&*"x".repeat(300); 6]).await;
    let item_key = entry_key(&store, "t", b"k").await;
    let bytes = || async { store.get(item_key.clone()).await.unwrap().unwrap().value.len() };
    assert!(bytes().await > 6 * 300);
    let reader = Table::open(&store, "t").await.unwrap();
    assert_eq!(reader.get("k").await.unwrap().unwrap(), "x".repeat(300));
    reader.settle().await;
    assert!(bytes().await < 2 * 300, "{} bytes", bytes().await);
    assert_eq!(reader.get("k").await.unwrap().unwrap(), "x".repeat(300));
}

#[tokio::test]
async fn an_entry_of_which_less_than_half_is_stale_is_let_be() {
    let inner = memory();
    put_apart(&inner, &[&"x".repeat(2_000), &"y".repeat(3_000)]).await;
    let (store, counting) = counting(inner);
    let reader = Table::open(&store, "t").await.unwrap();
    let before = counting.counts();
    assert_eq!(reader.get("k").await.unwrap().unwrap(), "y".repeat(3_000));
    reader.settle().await;
    assert_eq!(counting.counts().since(&before).round_trips, 1);
}

#[tokio::test]
async fn on_two_nodes_a_compaction_goes_with_the_next_put_of_the_same_entry() {
    let inner = memory();
    let two = Sieve::of(&inner, Profile { nodes: 2, ..(*inner.profile()).clone() }, |_, _| None);
    let (store, counting) = counting(two);
    let table = Table::open_or_create(&store, "t").await.unwrap();
    table.put("k", "0").await.unwrap();
    table.settle().await;
    let item_key = entry_key(&inner, "t", b"k").await;
    let mut longest = 0;
    for round in 0..300u32 {
        assert_eq!(cost(&counting, table.put("k", round.to_string())).await, 1);
        longest = longest.max(inner.get(item_key.clone()).await.unwrap().unwrap().value.len());
    }
    assert!((256..6_000).contains(&longest), "up to {longest} bytes");
}

/// Another client's put joins the entry right before its maker says in it that it is listed; and dies.
#[tokio::test]
async fn a_maker_whose_flag_others_beat_flags_the_entry_all_the_same() {
    let store = evicting();
    Table::open_or_create(&store, "t").await.unwrap();
    let hooked = Hooked::new(&store);
    let maker = Table::open(&hooked.shared(), "t").await.unwrap();
    // It puts, and lists; beside the caller it reads the entry, and writes it.
    hooked.at(4, |store, batch| async move {
        let dead = Hooked::new(&store);
        let dying = Table::open(&dead.shared(), "t").await.unwrap();
        dies_at(&dead, 2, dying.put("k", "w")).await;
        store.run(Ctx::default(), batch).await
    });
    maker.put("k", "v").await.unwrap();
    maker.settle().await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
    assert_eq!(maker.get("k").await.unwrap().unwrap(), "w");
}

/// What is left of a life is reckoned by the clock then.
#[tokio::test]
async fn an_entry_with_a_life_is_flagged_on_a_store_that_does_not_tell_what_is_left_of_it() {
    let inner = evicting();
    let store = Sieve::of(&inner, Profile { remaining_ttl: false, ..(*inner.profile()).clone() }, |_, _| None);
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
    table.put_for("k", "v", Duration::from_secs(3600)).await.unwrap();
    table.settle().await;
    assert_eq!(is_flagged(&store, "t", b"k").await, Some(true));
}

#[tokio::test]
async fn who_misses_an_entry_whose_life_is_over_takes_it_off_the_list() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let inner: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let (store, counting) = counting(Arc::new(Evicting(inner)));
    let table = Table::options().ttl(true).clock(clock.clone()).open_or_create(&store, "t").await.unwrap();
    table.put_for("k", "v", Duration::from_secs(60)).await.unwrap();
    table.settle().await;
    // Clocks may disagree by five minutes.
    clock.advance(Duration::from_secs(60 + 302));
    assert_eq!(table.get("k").await.unwrap(), None);
    table.settle().await;
    assert_eq!(cost(&counting, table.keys()).await, 1, "there is nothing to look for");
}

#[tokio::test]
async fn a_list_that_cannot_be_read_once_is_read_again() {
    let store = evicting();
    Table::open_or_create(&store, "t").await.unwrap().put("k", "v").await.unwrap();
    let hooked = Hooked::new(&store);
    let table = Table::open(&hooked.shared(), "t").await.unwrap();
    hooked.refuse(1);
    assert_eq!(sorted_keys(&table).await, ["k"]);
}

#[tokio::test]
async fn every_request_of_a_call_has_the_time_that_the_options_give() {
    let deadlines = Arc::new(Mutex::new(Vec::new()));
    let seen = deadlines.clone();
    let store = Sieve::answering(&evicting(), move |ctx, _| {
        seen.lock().unwrap().push(ctx.deadline);
        None
    });
    let table = Table::options().timeout(Duration::from_secs(60)).open_or_create(&store, "t").await.unwrap();
    table.put("k", "v").await.unwrap();
    table.put("k", "w").await.unwrap();
    table.get_many(["k", "l"]).await.unwrap();
    table.keys().await.unwrap();
    table.remove("k").await.unwrap();
    table.settle().await;
    let latest = Instant::now() + Duration::from_secs(60);
    let deadlines = std::mem::take(&mut *deadlines.lock().unwrap());
    assert!(deadlines.len() > 10 && deadlines.iter().all(|at| at.is_some_and(|at| at <= latest)), "{deadlines:?}");
}

#[tokio::test]
async fn a_life_may_be_as_long_as_the_store_takes_and_no_longer() {
    let inner = memory();
    let day = Duration::from_secs(86_400);
    let store = Sieve::of(&inner, Profile { ttl_max: day, ..(*inner.profile()).clone() }, |_, _| None);
    let (store, counting) = counting(store);
    let table = Table::options().ttl(true).open_or_create(&store, "t").await.unwrap();
    let before = counting.counts();
    let error = table.put_for("k", "v", day + Duration::from_millis(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert!(error.to_string().contains("over the limit of this store"), "{error}");
    assert_eq!(counting.counts().since(&before).round_trips, 0);
    table.put_for("k", "v", day).await.unwrap();
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
}

#[tokio::test]
async fn a_list_that_is_mostly_stale_is_compacted_by_who_reads_it() {
    let store = evicting();
    let never = || Table::options().dirtiness(1 << 20);
    let writer = never().open_or_create(&store, "t").await.unwrap();
    for _ in 0..20 {
        writer.put("k", "v").await.unwrap();
        writer.settle().await;
        assert!(writer.remove("k").await.unwrap());
        writer.settle().await;
    }
    let list = list_key(&store, "t", 0).await;
    let bytes = || async { store.get(list.clone()).await.unwrap().unwrap().value.len() };
    let before = bytes().await;
    assert!(never().open(&store, "t").await.unwrap().keys().await.unwrap().is_empty());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(bytes().await, before, "too little is stale for that handle");
    let reader = Table::options().dirtiness(64).open(&store, "t").await.unwrap();
    assert!(reader.keys().await.unwrap().is_empty());
    eventually("the list is compacted", || async { bytes().await < before / 2 }).await;
}

/// The remover died, and the entry is given another incarnation: it was listed before, and is not listed once more.
#[tokio::test]
async fn a_renewal_of_an_entry_that_is_listed_notes_it_once() {
    let inner = evicting();
    let maker = Table::open_or_create(&inner, "t").await.unwrap();
    maker.put("k", "v").await.unwrap();
    maker.settle().await;
    flagged(&inner, "t", b"k").await;
    let dead = Hooked::new(&inner);
    let dying = Table::open(&dead.shared(), "t").await.unwrap();
    dies_at(&dead, 3, dying.remove("k")).await;
    let (store, counting) = counting(inner.clone());
    let far_off = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let reader = Table::options().clock(far_off).open(&store, "t").await.unwrap();
    let before = counting.counts();
    assert_eq!(sorted_keys(&reader).await, ["k"]);
    reader.settle().await;
    // The list, the entry; the entry again, its rewriting, and the note; the entry, and its flag.
    assert_eq!(counting.counts().since(&before).round_trips, 7);
    assert_eq!(is_flagged(&inner, "t", b"k").await, Some(true));
}

/// So that an entry that is only ever put is compacted, too.
#[tokio::test]
async fn one_put_in_eight_looks_at_the_whole_entry_and_of_large_values_one_in_four() {
    const PUTS: u32 = 1_600;
    for (bytes, one_in) in [(20, 8), (1_500, 4)] {
        let inner = memory();
        let looks = Arc::new(Mutex::new(0u32));
        let seen = looks.clone();
        let store = Sieve::answering(&inner, move |_, op| {
            let is_entry = !op.key.as_bytes().ends_with(b".0") && !op.key.as_bytes().ends_with(b".m");
            if matches!(op.verb, Verb::Get { want, .. } if want.contains(Want::VALUE)) && is_entry {
                *seen.lock().unwrap() += 1;
            }
            None
        });
        let table = Table::open_or_create(&store, "t").await.unwrap();
        table.put("k", "first").await.unwrap();
        flagged(&inner, "t", b"k").await;
        table.settle().await;
        *looks.lock().unwrap() = 0;
        fastrand::seed(7);
        for _ in 0..PUTS {
            table.put("k", vec![b'x'; bytes]).await.unwrap();
        }
        table.settle().await;
        let looks = *looks.lock().unwrap();
        assert!((PUTS / one_in * 3 / 4..PUTS / one_in * 5 / 4).contains(&looks), "{looks} of values of {bytes} bytes");
    }
}

/// It may come yet, and name what must be there then.
#[tokio::test]
async fn an_entry_whose_listing_is_unknown_stays() {
    let inner = evicting();
    let answering = Answering::new(&inner);
    let table = Table::options().timeout(Duration::from_millis(200));
    let table = table.open_or_create(&answering.shared(), "t").await.unwrap();
    let late = Arc::new(Mutex::new(Vec::new()));
    let keeps = late.clone();
    answering.by(move |op| {
        let is_note = matches!(op.verb, Verb::Put { mode: PutMode::Append, .. }) && op.key.as_bytes().ends_with(b".0");
        is_note.then(|| {
            keeps.lock().unwrap().push(op.clone());
            Err(Error::new(ErrorKind::Unavailable, "the connection broke").effect(Effect::Unknown))
        })
    });
    assert!(table.put("k", "v").await.unwrap_err().is_unknown());
    let first = late.lock().unwrap().remove(0);
    assert_eq!(inner.run_one(Ctx::default(), first).await.unwrap(), Reply::Stored);
    assert_eq!(Table::open(&inner, "t").await.unwrap().get("k").await.unwrap().unwrap(), "v");
}
