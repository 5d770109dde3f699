//! Queues and stacks against a plain list, in any order of calls: one handle pushes, two take.

use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memory::MemoryStore;
use larder_structures::Claim;
use proptest::prelude::*;

use crate::queue::support::{BOTH, Kind, LEASE, Line, small, text};

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Pop,
    Claim,
    /// Of the open claims, which.
    Ack(usize),
    Release(usize),
    Len,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0usize..40).prop_map(Step::Push),
        5 => Just(Step::Push(1)),
        5 => Just(Step::Pop),
        5 => Just(Step::Claim),
        4 => any::<usize>().prop_map(Step::Ack),
        2 => any::<usize>().prop_map(Step::Release),
        1 => Just(Step::Len),
    ]
}

/// The number of the item that is next, taken out of those that wait.
fn next(kind: Kind, ready: &mut Vec<usize>) -> Option<usize> {
    ready.sort_unstable();
    match kind {
        Kind::Queue if ready.is_empty() => None,
        Kind::Queue => Some(ready.remove(0)),
        Kind::Stack => ready.pop(),
    }
}

fn number(item: &[u8]) -> usize {
    text(item).parse().unwrap()
}

async fn play(kind: Kind, steps: Vec<(bool, Step)>) {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let handles = [Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await];
    let (mut ready, mut pushed) = (Vec::new(), 0);
    let mut open: Vec<(Claim, usize, u32)> = Vec::new();
    let mut attempts = std::collections::HashMap::new();
    for (second, step) in steps {
        let line = &handles[usize::from(second)];
        match step {
            Step::Push(count) => {
                let items: Vec<String> = (pushed..pushed + count).map(|n| n.to_string()).collect();
                handles[0].push_all(items).await.unwrap();
                ready.extend(pushed..pushed + count);
                pushed += count;
            }
            Step::Pop => {
                let popped = line.pop().await.unwrap().map(|item| number(&item));
                assert_eq!(popped, next(kind, &mut ready));
            }
            Step::Claim => {
                let claim = line.claim(LEASE).await.unwrap();
                let expected = next(kind, &mut ready);
                assert_eq!(claim.as_ref().map(|claim| number(claim.item())), expected);
                if let (Some(claim), Some(item)) = (claim, expected) {
                    let times = attempts.entry(item).or_insert(0);
                    *times += 1;
                    assert_eq!(claim.attempts(), *times);
                    open.push((claim, item, *times));
                }
            }
            Step::Ack(at) if !open.is_empty() => {
                let (claim, ..) = open.swap_remove(at % open.len());
                line.ack(claim.id()).await.unwrap();
            }
            Step::Release(at) if !open.is_empty() => {
                let (claim, item, _) = open.swap_remove(at % open.len());
                claim.release().await.unwrap();
                ready.push(item);
            }
            Step::Ack(_) | Step::Release(_) => {}
            Step::Len => assert_eq!(line.len().await.unwrap(), (ready.len() + open.len()) as u64),
        }
    }
    for (claim, ..) in open {
        claim.ack().await.unwrap();
    }
    while let Some(expected) = next(kind, &mut ready) {
        assert_eq!(handles[1].pop().await.unwrap().map(|item| number(&item)), Some(expected));
    }
    assert_eq!(handles[1].pop().await.unwrap(), None);
    let stat = handles[0].stat().await;
    assert_eq!((stat.ready, stat.claimed, stat.acknowledged), (0, 0, pushed as u64));
    assert_eq!((stat.segments_lost, stat.items_lost), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_list(steps in proptest::collection::vec((any::<bool>(), step()), 1..150)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for kind in BOTH {
            runtime.block_on(play(kind, steps.clone()));
        }
    }
}
