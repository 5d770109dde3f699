//! Queue and stack through their public handles, on every store that carries them, and their round-trip budgets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, ErrorKind, StoreRef};
use larder_layers::Counting;
use larder_structures::registry::drop_structure;
use larder_structures::{Claim, Name, Queue, QueueOptions, Stack, StackOptions};

use super::{Bench, cases};

cases! {
    queue_is_first_in_first_out_over_segments [Cas, DeleteCas, Ttl];
    stack_is_last_in_first_out_over_segments [Cas, DeleteCas, Ttl];
    queue_loses_and_repeats_nothing_under_eight_tasks_and_two_handles [Cas, DeleteCas, Ttl];
    a_store_without_cas_refuses_queue_and_stack [NoCas];
    budget_queue_open_takes_2 [Cas, DeleteCas, Ttl];
    budget_queue_create_takes_4 [Cas, DeleteCas, Ttl];
    budget_queue_push_takes_1 [Cas, DeleteCas, Ttl];
    budget_queue_claim_takes_2_and_1_in_a_row [Cas, DeleteCas, Ttl];
    budget_queue_pop_takes_2_and_1_in_a_row [Cas, DeleteCas, Ttl];
    budget_queue_ack_release_and_renew_take_1 [Cas, DeleteCas, Ttl];
    budget_queue_len_takes_2 [Cas, DeleteCas, Ttl];
    budget_queue_push_that_opens_a_segment_takes_3 [Cas, DeleteCas, Ttl];
    budget_stack_push_that_opens_a_segment_takes_3 [Cas, DeleteCas, Ttl];
    budget_stack_push_takes_1_claim_2_ack_1 [Cas, DeleteCas, Ttl];
    budget_of_an_empty_queue_takes_1 [Cas, DeleteCas, Ttl];
    budget_drop_of_a_queue_takes_5 [Cas, DeleteCas, Ttl];
}

const LEASE: Duration = Duration::from_secs(600);

/// Small segments, so that few items fill several; and long enough for any loaded machine.
fn small() -> QueueOptions {
    Queue::options().segment_bytes(256).timeout(Duration::from_secs(60))
}

async fn queue(store: &StoreRef, name: &str) -> Queue {
    small().open_or_create(store, name).await.expect("a queue")
}

async fn stack(store: &StoreRef, name: &str) -> Stack {
    StackOptions::from(small()).open_or_create(store, name).await.expect("a stack")
}

async fn claimed(queue: &Queue) -> Claim {
    queue.claim(LEASE).await.expect("a claim").expect("an item")
}

fn numbered(count: usize) -> Vec<Bytes> {
    (0..count).map(|n| Bytes::from(format!("item {n:04}"))).collect()
}

async fn queue_is_first_in_first_out_over_segments(t: Bench) {
    let queue = queue(&t.store, &t.name("a")).await;
    for item in numbered(60) {
        queue.push(item).await.expect("a push");
    }
    assert_eq!(queue.len().await.expect("a length"), 60);
    for item in numbered(60) {
        assert_eq!(queue.pop().await.expect("a pop"), Some(item));
    }
    assert_eq!(queue.pop().await.expect("a pop"), None);
    assert_eq!(queue.len().await.expect("a length"), 0);
}

async fn stack_is_last_in_first_out_over_segments(t: Bench) {
    let stack = stack(&t.store, &t.name("a")).await;
    for item in numbered(60) {
        stack.push(item).await.expect("a push");
    }
    let mut expected = numbered(60);
    for _ in 0..40 {
        assert_eq!(stack.pop().await.expect("a pop"), expected.pop());
    }
    stack.push_all(numbered(30)).await.expect("a push");
    expected.extend(numbered(30));
    assert_eq!(stack.len().await.expect("a length"), 50);
    while let Some(item) = expected.pop() {
        assert_eq!(stack.pop().await.expect("a pop"), Some(item));
    }
    assert_eq!(stack.pop().await.expect("a pop"), None);
}

async fn queue_loses_and_repeats_nothing_under_eight_tasks_and_two_handles(t: Bench) {
    let name = t.name("a");
    let handles = [queue(&t.store, &name).await, queue(&t.store, &name).await];
    let tasks: Vec<_> = (0..8usize)
        .map(|task| {
            let queue = handles[task % 2].clone();
            tokio::spawn(async move {
                let mut done = Vec::new();
                for n in 0..30 {
                    queue.push(format!("{task} {n:04}")).await.expect("a push");
                    if let Some(claim) = queue.claim(LEASE).await.expect("a claim") {
                        claim.ack().await.expect("an acknowledgement");
                        done.push(claim.item().clone());
                    }
                }
                done
            })
        })
        .collect();
    let mut times: BTreeMap<Bytes, u32> = BTreeMap::new();
    for task in tasks {
        for item in task.await.expect("a task") {
            *times.entry(item).or_default() += 1;
        }
    }
    while let Some(item) = handles[0].pop().await.expect("a pop") {
        *times.entry(item).or_default() += 1;
    }
    assert_eq!(times.len(), 240);
    assert!(times.values().all(|&times| times == 1), "{times:?}");
}

async fn a_store_without_cas_refuses_queue_and_stack(t: Bench) {
    for error in [
        Queue::open_or_create(&t.store, t.name("a")).await.err(),
        Stack::open_or_create(&t.store, t.name("a")).await.err(),
    ] {
        let error = error.expect("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

// Round trips.

/// A store that counts.
struct Metered {
    counting: Counting,
    store: StoreRef,
    name: String,
}

impl Metered {
    fn new(t: &Bench) -> Metered {
        let counting = Counting::new(t.store.clone());
        Metered { store: Arc::new(counting.clone()), counting, name: t.name("budget") }
    }

    async fn queue(&self) -> Queue {
        Queue::open_or_create(&self.store, &self.name).await.expect("a queue")
    }

    async fn cost<T>(&self, act: impl Future<Output = larder_core::Result<T>>) -> (u64, T) {
        let before = self.counting.counts();
        let outcome = act.await.expect("an uncontended call");
        (self.counting.counts().since(&before).round_trips, outcome)
    }
}

async fn budget_queue_open_takes_2(t: Bench) {
    let m = Metered::new(&t);
    m.queue().await;
    assert_eq!(m.cost(Queue::open(&m.store, &m.name)).await.0, 2);
}

async fn budget_queue_create_takes_4(t: Bench) {
    let m = Metered::new(&t);
    assert_eq!(m.cost(Queue::open_or_create(&m.store, &m.name)).await.0, 4);
}

async fn budget_queue_push_takes_1(t: Bench) {
    let m = Metered::new(&t);
    let queue = m.queue().await;
    for _ in 0..300 {
        assert_eq!(m.cost(queue.push("a job of some thirty bytes or so")).await.0, 1);
    }
    let fresh = m.queue().await;
    assert_eq!(m.cost(fresh.push_all((0..500u32).map(u32::to_be_bytes))).await.0, 1);
}

async fn budget_queue_claim_takes_2_and_1_in_a_row(t: Bench) {
    let m = Metered::new(&t);
    let (queue, other) = (m.queue().await, m.queue().await);
    queue.push_all(numbered(100)).await.expect("a push");
    assert_eq!(m.cost(queue.claim(LEASE)).await.0, 2);
    for _ in 0..10 {
        assert_eq!(m.cost(queue.claim(LEASE)).await.0, 1);
    }
    // Another wrote the state, and has not read the segment.
    assert_eq!(m.cost(other.claim(LEASE)).await.0, 2);
    assert_eq!(m.cost(queue.claim(LEASE)).await.0, 2);
}

async fn budget_queue_pop_takes_2_and_1_in_a_row(t: Bench) {
    let m = Metered::new(&t);
    let queue = m.queue().await;
    queue.push_all(numbered(100)).await.expect("a push");
    assert_eq!(m.cost(queue.pop()).await.0, 2);
    for _ in 0..10 {
        assert_eq!(m.cost(queue.pop()).await.0, 1);
    }
}

async fn budget_queue_ack_release_and_renew_take_1(t: Bench) {
    let m = Metered::new(&t);
    let (queue, other) = (m.queue().await, m.queue().await);
    queue.push_all(numbered(100)).await.expect("a push");
    let (one, two, three) = (claimed(&queue).await, claimed(&queue).await, claimed(&queue).await);
    assert_eq!(m.cost(one.renew()).await.0, 1);
    assert_eq!(m.cost(one.ack()).await.0, 1);
    assert_eq!(m.cost(two.release()).await.0, 1);
    // By another, which must read the state that it has not seen.
    assert_eq!(m.cost(other.ack(three.id())).await.0, 2);
}

async fn budget_queue_len_takes_2(t: Bench) {
    let m = Metered::new(&t);
    let queue = m.queue().await;
    queue.push_all(numbered(900)).await.expect("a push");
    assert_eq!(m.cost(queue.len()).await, (2, 900));
}

async fn budget_queue_push_that_opens_a_segment_takes_3(t: Bench) {
    let m = Metered::new(&t);
    let queue = queue(&m.store, &m.name).await;
    opens_a_segment_with_3(&m, |item| queue.push(item)).await;
}

async fn budget_stack_push_that_opens_a_segment_takes_3(t: Bench) {
    let m = Metered::new(&t);
    let stack = stack(&m.store, &m.name).await;
    opens_a_segment_with_3(&m, |item| stack.push(item)).await;
}

async fn opens_a_segment_with_3<F>(m: &Metered, push: impl Fn(Bytes) -> F)
where
    F: Future<Output = larder_core::Result<()>>,
{
    let mut costs = Vec::new();
    for item in numbered(40) {
        costs.push(m.cost(push(item)).await.0);
    }
    // The look at the tail travels with the push that finds it full; opening the next takes 2.
    assert!(costs.iter().all(|cost| [1, 3].contains(cost)), "{costs:?}");
    assert!((2..8).contains(&costs.iter().filter(|cost| **cost == 3).count()), "{costs:?}");
}

async fn budget_stack_push_takes_1_claim_2_ack_1(t: Bench) {
    let m = Metered::new(&t);
    let stack = Stack::open_or_create(&m.store, &m.name).await.expect("a stack");
    for item in numbered(10) {
        assert_eq!(m.cost(stack.push(item)).await.0, 1);
    }
    for _ in 0..5 {
        let (cost, claim) = m.cost(stack.claim(LEASE)).await;
        assert_eq!(cost, 2);
        assert_eq!(m.cost(claim.expect("an item").ack()).await.0, 1);
        assert_eq!(m.cost(stack.pop()).await.0, 2);
    }
}

async fn budget_of_an_empty_queue_takes_1(t: Bench) {
    let m = Metered::new(&t);
    let queue = m.queue().await;
    assert_eq!(m.cost(queue.pop()).await, (1, None));
    assert_eq!(m.cost(queue.claim(LEASE)).await.0, 1);
}

async fn budget_drop_of_a_queue_takes_5(t: Bench) {
    let m = Metered::new(&t);
    m.queue().await.push("a").await.expect("a push");
    let name = Name::new(&m.name).expect("a name");
    assert_eq!(m.cost(drop_structure(&m.store, Ctx::default(), &name)).await.0, 5);
}
