//! Claims through one handle, where writes fail or others are first.

use larder_core::{Batch, ManualClock, StoreRef, Verb};
use larder_store_memory::MemoryStore;

use super::super::Queue;
use super::super::options::Settings;
use super::*;
use crate::answering_tests::{Answering, fails};
use crate::manifest::Kind;
use crate::name::Name;

const LEASE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_is_known_of_a_lease_that_ran_out_is_forgotten_with_the_claim() {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let queue = Queue::open_or_create(&store, "q").await.unwrap();
    queue.push("a").await.unwrap();
    let (name, settings) = (Name::new("q").unwrap(), Settings::default());
    let (engine, view) = Engine::open(&store, &name, Kind::Queue, &settings, false).await.unwrap();
    let mut consumer = Consumer::new(Arc::new(engine), view);
    for attempt in 1..20 {
        let (what, deadline) =
            (What::Claim { id: attempt, life: LEASE, term: LEASE }, ambient::now() + settings.timeout);
        let outcomes = consumer.apply(&[Change { ticket: 1, what, deadline }], false).await.unwrap();
        let given = &outcomes[&1];
        assert!(matches!(given, Ok(Given::Item { attempts, .. }) if u64::from(*attempts) == attempt), "{given:?}");
        assert!(consumer.expired.is_empty(), "{:?}", consumer.expired);
        clock.advance(LEASE * 2);
    }
}

/// The id under which a claim asks for an item.
const ASKED: u64 = 42;

/// The id of a claim of the one item of a queue, where the first write of the state is answered so, and before it that of the claim's marker.
async fn claimed(state: Result<Reply>, marker: Option<Result<Reply>>) -> u64 {
    let answering = Answering::over(&(Arc::new(MemoryStore::new()) as StoreRef));
    let store = answering.shared();
    Queue::open_or_create(&store, "q").await.unwrap().push("a").await.unwrap();
    let (name, settings) = (Name::new("q").unwrap(), Settings::default());
    let (engine, view) = Engine::open(&store, &name, Kind::Queue, &settings, false).await.unwrap();
    let mut consumer = Consumer::new(Arc::new(engine), view);
    let cell = consumer.engine.cell.key.clone();
    let (mut state, mut marker) = (Some(state), marker);
    answering.by(move |op| match &op.verb {
        Verb::Put { mode: PutMode::Cas(_), .. } if op.key == cell => state.take(),
        Verb::Put { mode: PutMode::Set, .. } => marker.take(),
        _ => None,
    });
    let what = What::Claim { id: ASKED, life: LEASE, term: LEASE };
    let change = Change { ticket: 1, what, deadline: ambient::now() + settings.timeout };
    let outcomes = consumer.apply(&[change], false).await.unwrap();
    let Ok(Given::Item { claim: Some(Claimed { id: claim, .. }), attempts: 1, .. }) = outcomes[&1] else {
        panic!("{:?}", outcomes[&1])
    };
    let marker = consumer.engine.marker(claim, |key| Op::get(key, larder_core::Want::empty())).unwrap();
    assert!(matches!(store.run(Ctx::default(), Batch::from_iter([marker])).await[0], Ok(Reply::Item(_))), "its lease");
    claim
}

/// Its marker may come late, when somebody else has the item by then.
#[tokio::test]
async fn a_claim_behind_a_write_in_doubt_has_a_lease_of_its_own() {
    let lost = || fails(ErrorKind::Unavailable, Effect::Unknown);
    assert_ne!(claimed(lost(), None).await, ASKED);
    assert_ne!(claimed(Ok(Reply::Exists), Some(lost())).await, ASKED, "of the lease alone it is not known");
}

/// So a call that meets with many others does not leave a lease behind for each of them.
#[tokio::test]
async fn a_claim_keeps_its_lease_where_others_were_first() {
    assert_eq!(claimed(Ok(Reply::Exists), None).await, ASKED);
    assert_eq!(claimed(fails(ErrorKind::Unavailable, Effect::NotApplied), None).await, ASKED);
}
