//! Making a period, and forgetting one, where a store says what is not expected, or nothing.

use larder_core::native::NativeReply;
use larder_core::{StoreExt, StoreRef, Verb};
use larder_store_memory::MemoryStore;

use super::super::core::PLANNED;
use super::*;
use crate::answering_tests::{Answering, fails};
use crate::unique::{Novelty, UniqueVisitors, UniqueVisitorsOptions};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Periods of a year: a test on the last of its milliseconds would take longer.
fn options() -> UniqueVisitorsOptions {
    UniqueVisitors::options().period(Duration::from_secs(365 * 86_400)).expected(1)
}

async fn open(store: &StoreRef) -> UniqueVisitors {
    options().open_or_create(store, "site").await.unwrap()
}

async fn forget(site: &UniqueVisitors) -> Result<()> {
    site.forget(site.current().unwrap()).await
}

/// What one finds who was not there before.
async fn count(store: &StoreRef) -> Result<u64> {
    open(store).await.count().await.map(|count| count.visitors)
}

async fn is_lost(store: &StoreRef) {
    assert_eq!(count(store).await.unwrap_err().kind(), ErrorKind::Lost);
}

async fn is_empty(store: &StoreRef) {
    assert_eq!(count(store).await.unwrap(), 0);
}

fn is_delete(op: &Op) -> bool {
    matches!(op.verb, Verb::Delete { .. })
}

/// What becomes of the deletes is not known.
fn loses_deletes(op: &Op) -> Option<Result<Reply>> {
    is_delete(op).then(|| fails(ErrorKind::Unavailable, Effect::Unknown))
}

/// However often: what says so stays until the shards are deleted.
#[tokio::test]
async fn a_removal_that_fails_midway_is_a_loss_until_it_succeeds() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let site = open(&answering.shared()).await;
    site.add([1u64]).await.unwrap();
    answering.by(loses_deletes);
    for _ in 0..3 {
        let error = forget(&site).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::Unknown), "{error}");
        is_lost(&memory).await;
    }
    answering.by(|_| None);
    forget(&site).await.unwrap();
    is_empty(&memory).await;
}

/// What was said of it stays while it is looked for again.
#[tokio::test]
async fn a_period_that_was_forgotten_is_no_loss_where_what_comes_late_of_it_cannot_be_removed() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let site = open(&answering.shared()).await;
    let (core, period) = (&site.0.core, site.current().unwrap());
    // Its maker died before he made them.
    core.ledger.register(core.deadline(), &[entry(period, 3, PLANNED, 7)]).await.unwrap();
    forget(&site).await.unwrap();
    answering.by(loses_deletes);
    assert_eq!(forget(&site).await.unwrap_err().kind(), ErrorKind::Unavailable);
    is_empty(&memory).await;
    assert_eq!(open(&memory).await.add([1u64]).await.unwrap(), [Novelty::New]);
}

/// So its shards are not looked for ever again: what the list says of it names none.
#[tokio::test]
async fn a_period_that_was_listed_and_lost_its_head_is_forgotten_for_good() {
    let store = memory();
    let site = open(&store).await;
    site.add([1u64]).await.unwrap();
    let (core, period) = (&site.0.core, site.current().unwrap());
    let incarnation = core.known(period).unwrap().head.incarnation;
    assert!(store.delete(core.head_key(period).unwrap()).await.unwrap(), "it was there");
    forget(&site).await.unwrap();
    let list = core.ledger.read(Ctx::default()).await.unwrap();
    assert_eq!(list.pieces(), [entry(period, 0, FORGOTTEN, incarnation)]);
}

/// It is the one that came between.
#[tokio::test]
async fn a_head_that_is_another_by_the_time_of_its_removal_is_left_and_no_error() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let site = open(&answering.shared()).await;
    site.add([1u64]).await.unwrap();
    answering.by(|op| (is_delete(op) && op.cas().is_some()).then_some(Ok(Reply::Exists)));
    forget(&site).await.unwrap();
    is_empty(&memory).await;
    assert_eq!(open(&memory).await.add([1u64]).await.unwrap(), [Novelty::New]);
}

/// A shard is deleted without a token: whether it is gone is not known.
#[tokio::test]
async fn a_strange_answer_to_the_removal_of_a_shard_is_told_and_leaves_the_period_lost() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let site = open(&answering.shared()).await;
    site.add([1u64]).await.unwrap();
    answering.by(|op| (is_delete(op) && op.cas().is_none()).then_some(Ok(Reply::Exists)));
    let error = forget(&site).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::Unknown), "{error}");
    is_lost(&memory).await;
}

/// It is left as it is, and in nobody's way.
#[tokio::test]
async fn a_period_is_forgotten_though_another_programs_value_stands_under_the_key_of_a_shard() {
    let memory = memory();
    let answering = Answering::over(&memory);
    let site = open(&answering.shared()).await;
    site.add([1u64]).await.unwrap();
    answering.by(|op| (is_delete(op) && op.cas().is_none()).then(|| Ok(NativeReply::Unmarked.into())));
    assert_eq!(forget(&site).await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    is_empty(&memory).await;
    assert_eq!(open(&memory).await.add([1u64]).await.unwrap(), [Novelty::New]);
}

/// One that takes no other's place is added: a token has nothing to do with it.
#[tokio::test(start_paused = true)]
async fn a_strange_answer_to_the_making_of_a_head_is_told_as_that() {
    for strange in [Reply::Exists, Reply::Miss] {
        let memory = memory();
        let answering = Answering::over(&memory);
        let site = open(&answering.shared()).await;
        let head = site.0.core.head_key(site.current().unwrap()).unwrap();
        let reply = strange.clone();
        answering.by(move |op| (op.key == head && !op.is_read()).then(|| Ok(reply.clone())));
        let error = site.add([1u64]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Protocol, Effect::NotApplied), "{strange:?}");
        answering.by(|_| None);
        assert_eq!(site.add([1u64]).await.unwrap(), [Novelty::New]);
    }
}
