use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use larder_core::{Clock, PutMode, Verb};
use larder_store_memory::MemoryStore;

use super::*;
use crate::Lock;
use crate::answering_tests::{Answering, fails};

const OWNER: u64 = 7;

/// A handle on a lock that `OWNER` holds, and the store behind it.
async fn held() -> (Arc<Answering>, Shared) {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let answering = Answering::over(&memory);
    let shared = Shared::new(answering.shared(), Name::new("n").unwrap(), Lock::options()).unwrap();
    assert!(shared.put(shared.ctx(), None, &record(1)).await.landed.unwrap());
    answering.asked();
    (answering, shared)
}

fn record(beat: u64) -> Record {
    Record {
        generation: 1,
        held: true,
        token: 3,
        owner: OWNER,
        beat,
        lease_ms: 30_000,
        since_us: 0,
        label: Bytes::new(),
    }
}

fn is_write(op: &larder_core::Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. })
}

/// How many writes were asked for.
fn writes(answering: &Answering) -> usize {
    answering.asked().iter().flat_map(|(_, batch)| batch).filter(|op| is_write(op)).count()
}

/// A clock that goes on by a microsecond whenever it is asked.
#[derive(Debug)]
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn monotonic(&self) -> Duration {
        self.wall()
    }

    fn wall(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

#[tokio::test]
async fn whoever_makes_a_record_waits_until_the_wall_clock_has_gone_on() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let options = Lock::options().clock(Arc::new(Ticking(AtomicU64::new(1_000))));
    let shared = Shared::new(store, Name::new("n").unwrap(), options).unwrap();
    assert!(shared.next_wall_us().await > 1_000);
}

#[tokio::test]
async fn every_request_of_a_lock_has_the_time_that_its_options_give() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let answering = Answering::over(&memory);
    let lock = Lock::options().timeout(TIMEOUT).open(&answering.shared(), "n").await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    lock.status().await.unwrap();
    guard.release().await.unwrap();
    lock.force_release().await.unwrap();
    let latest = Instant::now() + TIMEOUT;
    let deadlines: Vec<Option<Instant>> = answering.asked().iter().map(|(ctx, _)| ctx.deadline).collect();
    assert!(deadlines.len() > 3 && deadlines.iter().all(|at| at.is_some_and(|at| at <= latest)), "{deadlines:?}");
}

#[tokio::test]
async fn a_write_that_was_answered_takes_one_round_trip_though_what_it_left_could_not_be_read() {
    let (answering, shared) = held().await;
    let before = shared.read(shared.ctx()).await.unwrap();
    answering.by(|op| op.is_read().then(|| fails(ErrorKind::Unavailable, Effect::NotApplied)));
    answering.asked();
    let put = shared.put(shared.ctx(), before.as_ref(), &record(2)).await;
    assert!(put.landed.unwrap() && put.now.is_err());
    assert_eq!(answering.asked().len(), 1);
}

#[tokio::test]
async fn a_release_that_the_store_refuses_is_tried_once_and_told_as_not_applied() {
    let (answering, shared) = held().await;
    answering.by(|op| is_write(op).then(|| fails(ErrorKind::Unsupported, Effect::NotApplied)));
    let error = shared.let_go(shared.ctx(), OWNER, None).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unsupported, Effect::NotApplied), "{error}");
    assert_eq!(writes(&answering), 1);
}

#[tokio::test]
async fn a_release_that_was_lost_on_its_way_is_sent_again() {
    let (answering, shared) = held().await;
    let mut is_lost = false;
    answering.by(move |op| {
        let is_first = is_write(op) && !std::mem::replace(&mut is_lost, true);
        is_first.then(|| fails(ErrorKind::Unavailable, Effect::Unknown))
    });
    assert_eq!(shared.let_go(shared.ctx(), OWNER, None).await.unwrap(), LetGo::Freed);
    assert_eq!(writes(&answering), 2);
    let left = shared.read(shared.ctx()).await.unwrap().expect("a record");
    assert!(!left.record.held);
}
