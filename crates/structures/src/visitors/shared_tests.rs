//! Entries of windows that are over, what a handle remembers, and how long things are kept.

use std::time::SystemTime;

use larder_core::{ManualClock, PutMode, StoreExt};
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::{Answering, fails};
use crate::visitors::Visitors;

const PERIOD: Duration = Duration::from_secs(60);
/// The window that it is now.
const NOW: u64 = 28_000_000;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(PERIOD * NOW as u32))
}

fn memory(clock: &Arc<ManualClock>) -> StoreRef {
    Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap())
}

async fn open(store: &StoreRef, clock: &Arc<ManualClock>) -> Visitors {
    Visitors::options().period(PERIOD).shards(1).clock(clock.clone()).open_or_create(store, "site").await.unwrap()
}

/// The middle of a window so many before now.
fn before(windows: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + PERIOD * (NOW - windows) as u32 + PERIOD / 2
}

/// Lets what runs beside the callers run.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// A structure whose ledger lists so many windows that are over by everybody's clock, and that was hit since.
async fn hit_with_over(windows: u64) -> Visitors {
    let clock = clock();
    let site = open(&memory(&clock), &clock).await;
    let over: Vec<Piece> = (0..windows).map(|at| Piece { number: NOW - 1_000 + at, part: 0, incarnation: 5 }).collect();
    site.0.ledger.register(site.0.deadline(), &over).await.unwrap();
    site.hit().await.unwrap();
    site
}

async fn listed(site: &Visitors) -> usize {
    site.0.ledger.read(Ctx::default()).await.unwrap().pieces().len()
}

#[tokio::test]
async fn entries_of_windows_that_are_over_go_once_there_are_sixteen_of_them() {
    for (windows, left) in [(15, 15 + 1), (16, 1), (17, 1)] {
        let site = hit_with_over(windows).await;
        settle().await;
        assert_eq!(listed(&site).await, left, "{windows} windows");
    }
}

/// A process that ends soon does not wait for what runs beside the callers.
#[tokio::test]
async fn so_many_entries_of_windows_that_are_over_that_a_task_might_not_end_go_with_the_hit() {
    assert_eq!(listed(&hit_with_over(255).await).await, 255 + 1, "a task has them, which did not run yet");
    assert_eq!(listed(&hit_with_over(256).await).await, 1);
}

#[tokio::test]
async fn hits_of_a_window_leave_the_handle_what_it_knows_of_those_that_take_late_hits() {
    let clock = clock();
    clock.advance(PERIOD / 2);
    let answering = Answering::over(&memory(&clock));
    let site = open(&answering.shared(), &clock).await;
    for windows in (0..=KEPT).rev() {
        site.hit_at(before(windows), 1).await.unwrap();
    }
    for windows in 0..=KEPT {
        answering.asked();
        site.hit_at(before(windows), 1).await.unwrap();
        let asked = answering.asked();
        let ops: usize = asked.iter().map(|(_, batch)| batch.len()).sum();
        assert_eq!(ops, 1, "a window of {windows} before: {asked:?}");
    }
}

/// The hit was counted, and only the list, in the same batch, could not be read.
#[tokio::test]
async fn a_first_hit_is_entered_though_the_list_could_not_be_read_at_once() {
    let clock = clock();
    let answering = Answering::over(&memory(&clock));
    let site = open(&answering.shared(), &clock).await;
    let (list, mut refused) = (site.0.ledger.read_op().key, false);
    answering.by(move |op| {
        let is_first = op.is_read() && op.key == list && !std::mem::replace(&mut refused, true);
        is_first.then(|| fails(ErrorKind::Unavailable, larder_core::Effect::NotApplied))
    });
    site.hit().await.unwrap();
    assert_eq!((listed(&site).await, site.current().await.unwrap()), (1, 1));
}

#[tokio::test]
async fn a_hit_is_five_minutes_ahead_at_the_most() {
    let clock = clock();
    let site = open(&memory(&clock), &clock).await;
    let ahead = |by: Duration| SystemTime::UNIX_EPOCH + PERIOD * NOW as u32 + by;
    site.hit_at(ahead(Duration::from_secs(300)), 1).await.unwrap();
    let error = site.hit_at(ahead(Duration::from_millis(300_001)), 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput, "{error}");
    assert!(error.to_string().contains("the limit is 300000 ms"), "{error}");
}

#[tokio::test]
async fn repeats_are_let_be_up_to_sixty_four_kibibytes() {
    let clock = clock();
    let store = memory(&clock);
    let site = open(&store, &clock).await;
    site.hit_visitor("v").await.unwrap();
    let key = site.0.key(NOW, layout::part_of(0)).unwrap();
    let bytes = async || store.get(key.clone()).await.unwrap().unwrap().value.len();
    let alone = bytes().await;
    let visitor = store.get(key.clone()).await.unwrap().unwrap().value.slice(layout::SHARD_HEADER_BYTES..);
    for (repeats, is_compacted) in [(8_192, false), (1, true)] {
        store.put(key.clone(), PutMode::Append, visitor.repeat(repeats), Ttl::Never).await.unwrap();
        let before = bytes().await;
        assert_eq!(site.current().await.unwrap(), 1);
        settle().await;
        assert_eq!(bytes().await, if is_compacted { alone } else { before }, "{repeats} more");
    }
}
