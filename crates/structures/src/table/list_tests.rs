//! The table's own ops, on stores and by clocks that a test shapes.

use std::cmp;

use larder_core::{Effect, ManualClock, Run, Store, StoreExt};
use larder_layers::Counting;
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::{Answering, fails};
use crate::{Table, registry};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

async fn opened(store: &StoreRef) -> Arc<Inner> {
    Table::open_or_create(store, "t").await.unwrap().0
}

/// The entry as it is.
async fn found(table: &Inner, key: &[u8]) -> Found {
    let mut effort = table.effort().unwrap();
    table.read(&mut effort, &table.spot(key), key).await.unwrap().expect("it is there")
}

#[tokio::test]
async fn a_call_whose_time_is_over_tries_nothing_again() {
    let table = opened(&memory()).await;
    let mut effort = table.effort().unwrap();
    let broken = || Error::new(ErrorKind::Unavailable, "no server answers");
    effort.again(table.subject(), broken()).await.unwrap();
    effort.deadline = ambient::now();
    assert_eq!(effort.again(table.subject(), broken()).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// It has an hour, and does not use it up; nor does it ask again at once.
#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_asked_eight_times_with_pauses_between() {
    let answering = Answering::over(&memory());
    let hour = Duration::from_secs(3_600);
    let table = Table::options().timeout(hour).open_or_create(&answering.shared(), "t").await.unwrap();
    answering.asked();
    answering.by(|_| Some(fails(ErrorKind::Unavailable, Effect::NotApplied)));
    let begin = tokio::time::Instant::now();
    let got = tokio::time::timeout(Duration::from_secs(60), table.get("k")).await.expect("it gives up");
    assert_eq!(got.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(answering.asked().len(), 8);
    assert!(!begin.elapsed().is_zero());
}

#[tokio::test]
async fn who_reads_the_list_of_a_table_that_was_made_again_is_told_to_open_it_anew() {
    let store = memory();
    let table = Table::open_or_create(&store, "t").await.unwrap();
    registry::drop_structure(&store, Ctx::default(), &table.0.name).await.unwrap();
    Table::open_or_create(&store, "t").await.unwrap();
    table.0.shards.vigil.make_due();
    let error = table.keys().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("made again by others: open it anew"), "{error}");
}

/// Else each later put of the entry would have to list it again.
#[tokio::test]
async fn a_put_flags_its_entry_itself_where_much_is_under_way_beside_the_callers() {
    let table = opened(&memory()).await;
    for _ in 0..BEHIND_TASKS_MAX {
        table.behind(|_| std::future::pending());
    }
    table.put(b"k", b"v", Ttl::Never).await.unwrap();
    assert!(found(&table, b"k").await.is_listed);
}

#[tokio::test]
async fn an_entry_is_not_written_anew_in_the_second_in_which_its_life_ends() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
    let table = Table::options().ttl(true).clock(clock).open_or_create(&memory(), "t").await.unwrap().0;
    for (expiry_s, left) in [(999, None), (1_000, None), (1_001, Some(Ttl::After(Duration::from_secs(1))))] {
        assert_eq!(table.left(expiry_s, Remaining::Unknown), left, "{expiry_s}");
    }
}

/// As many servers, as far as is told.
#[derive(Debug)]
struct Servers(StoreRef, usize);

impl Store for Servers {
    fn profile(&self) -> Arc<Profile> {
        Arc::new(Profile { nodes: self.1, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.0.run(ctx, batch)
    }
}

#[tokio::test]
async fn a_compaction_goes_with_the_next_put_on_one_server_and_of_the_same_entry_on_two() {
    for (nodes, next, is_carried) in [(1, "k", true), (1, "l", true), (2, "k", true), (2, "l", false)] {
        let answering = Answering::over(&(Arc::new(Servers(memory(), nodes)) as StoreRef));
        let store = answering.shared();
        let table = opened(&store).await;
        table.put(b"k", &[b'x'; 300], Ttl::Never).await.unwrap();
        table.settle().await;
        for _ in 0..5 {
            // By handles of their own: none compacts what the others left.
            opened(&store).await.put(b"k", &[b'x'; 300], Ttl::Never).await.unwrap();
        }
        let dirty = found(&table, b"k").await;
        table.compact_with_next(b"k", &dirty);
        answering.asked();
        table.put(next.as_bytes(), b"v", Ttl::Never).await.unwrap();
        let asked = answering.asked();
        let is_append = |op: &Op| matches!(op.verb, Verb::Put { mode: PutMode::Append, .. });
        let (_, put) = asked.iter().find(|(_, batch)| batch.iter().any(is_append)).expect("it is put");
        assert_eq!(put.iter().any(|op| op.cas().is_some()), is_carried, "{nodes} servers, {next}");
    }
}

#[tokio::test]
async fn an_entry_is_compacted_once_more_of_it_is_stale_than_is_not() {
    let store = memory();
    let answering = Answering::over(&store);
    let (first, second, table) = (opened(&store).await, opened(&store).await, opened(&answering.shared()).await);
    let mut met = Vec::new();
    for bytes in 500.. {
        let key = format!("{bytes}");
        first.put(key.as_bytes(), &vec![b'x'; bytes], Ttl::Never).await.unwrap();
        first.settle().await;
        second.put(key.as_bytes(), &[b'y'; 500], Ttl::Never).await.unwrap();
        let found = found(&table, key.as_bytes()).await;
        let stale = Entry::parse(&found.item.value, table.manifest.generation).unwrap().stale_bytes(table.now_s());
        let rest = found.item.value.len() - stale;
        answering.asked();
        table.compact_behind(key.as_bytes(), &found);
        assert_eq!(!answering.asked().is_empty(), stale > rest, "{stale} of {}", stale + rest);
        met.push(stale.cmp(&rest));
        if stale > rest {
            break;
        }
    }
    assert!(met.contains(&cmp::Ordering::Equal) && met.contains(&cmp::Ordering::Less), "{met:?}");
}

#[tokio::test]
async fn who_takes_an_entry_for_gone_takes_it_off_the_list_only_where_it_is() {
    let store = memory();
    let table = opened(&store).await;
    table.put(b"k", b"v", Ttl::Never).await.unwrap();
    table.settle().await;
    let (spot, mut effort) = (table.spot(b"k"), table.effort().unwrap());
    let item = found(&table, b"k").await.item;
    let incarnation = table.entry(b"k", &item).unwrap().incarnation;
    table.tidy_behind(b"k", incarnation);
    table.settle().await;
    assert_eq!(table.ask_of_one(&mut effort, &spot, b"k").await.unwrap(), Says::Listed { incarnation });
    assert!(store.delete(table.item_key(&spot).unwrap()).await.unwrap(), "it was there");
    table.tidy_behind(b"k", incarnation);
    table.settle().await;
    assert_eq!(table.ask_of_one(&mut effort, &spot, b"k").await.unwrap(), Says::NotListed);
}

/// Lets others run before and after each batch.
#[derive(Debug)]
struct Slow(StoreRef);

impl Store for Slow {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            tokio::task::yield_now().await;
            let replies = self.0.run(ctx, batch).await;
            tokio::task::yield_now().await;
            replies
        })
    }
}

#[tokio::test]
async fn callers_who_put_at_once_share_the_writes_of_the_list() {
    let answering = Answering::over(&memory());
    let slow: StoreRef = Arc::new(Slow(answering.shared()));
    let table = Table::options().shards(1).open_or_create(&slow, "t").await.unwrap();
    answering.asked();
    let put = |number: u32| {
        let table = table.clone();
        tokio::spawn(async move { table.put(format!("{number:0200}"), "v").await })
    };
    for put in (0..64).map(put).collect::<Vec<_>>() {
        put.await.unwrap().unwrap();
    }
    let list = table.0.shards.read_op(0).key;
    let asked = answering.asked();
    let writes = asked.iter().flat_map(|(_, batch)| batch).filter(|op| op.key == list && !op.is_read()).count();
    assert!((1..8).contains(&writes), "{writes} writes for 64 keys");
}

/// Seconds are counted in whole: the clock shows 1,000 s and 1,600 s here, and less than ten minutes lie between.
#[tokio::test]
async fn who_only_gets_looks_through_the_list_after_ten_minutes_and_not_before() {
    let clock = Arc::new(ManualClock::at(Duration::from_millis(1_000_900)));
    let counting = Counting::new(memory());
    let store: StoreRef = Arc::new(counting.clone());
    let table = Table::options().clock(clock.clone()).open_or_create(&store, "t").await.unwrap();
    table.put("k", "v").await.unwrap();
    table.settle().await;
    for (pause_ms, round_trips) in [(599_200, 1), (1_000, 2), (1_000, 1)] {
        clock.advance(Duration::from_millis(pause_ms));
        let before = counting.counts();
        table.get("k").await.unwrap().unwrap();
        table.settle().await;
        assert_eq!(counting.counts().since(&before).round_trips, round_trips, "after {pause_ms} ms more");
    }
}
