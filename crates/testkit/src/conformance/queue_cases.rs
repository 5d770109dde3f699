//! Queue and stack through their public handles, on every store that carries them, and their round-trip budgets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Ctx, ErrorKind, Key, Op, StoreRef};
use larder_layers::Counting;
use larder_structures::registry::{drop_structure, find};
use larder_structures::{Claim, Name, Queue, QueueOptions, Stack, StackOptions};

use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};
use crate::queue_bytes::segment_key;

cases! {
    queue_is_first_in_first_out_over_segments [Cas, DeleteCas, Ttl];
    stack_is_last_in_first_out_over_segments [Cas, DeleteCas, Ttl];
    queue_keeps_items_of_any_bytes [Cas, DeleteCas, Ttl];
    queue_delivers_again_what_was_not_acknowledged [Cas, DeleteCas, Ttl];
    queue_loses_and_repeats_nothing_under_eight_tasks_and_two_handles [Cas, DeleteCas, Ttl];
    queue_loses_nothing_when_the_nth_op_fails [Cas, DeleteCas, Ttl];
    queue_tells_a_lost_segment_once [Cas, DeleteCas, Ttl];
    queue_says_full_and_takes_again_when_there_is_room [Cas, DeleteCas, Ttl];
    a_store_without_cas_refuses_queue_and_stack [NoCas];
    budget_queue_open_takes_2 [Cas, DeleteCas, Ttl];
    budget_queue_create_takes_4 [Cas, DeleteCas, Ttl];
    budget_queue_push_takes_1 [Cas, DeleteCas, Ttl];
    budget_queue_claim_takes_2_and_1_in_a_row [Cas, DeleteCas, Ttl];
    budget_queue_pop_takes_2_and_1_in_a_row [Cas, DeleteCas, Ttl];
    budget_queue_ack_release_and_renew_take_1 [Cas, DeleteCas, Ttl];
    budget_queue_len_takes_2 [Cas, DeleteCas, Ttl];
    budget_queue_push_that_opens_a_segment_takes_3 [Cas, DeleteCas, Ttl];
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

async fn queue_keeps_items_of_any_bytes(t: Bench) {
    let queue = Queue::open_or_create(&t.store, t.name("a")).await.expect("a queue");
    let largest = vec![b'x'; queue.item_bytes_max().min(1 << 20)];
    let items: [&[u8]; 5] = [b"", b" \0\r\n\xff", &largest, b"\r\nEND\r\n", b""];
    queue.push_all(items).await.expect("a push");
    for item in items {
        assert_eq!(queue.pop().await.expect("a pop").as_deref(), Some(item));
    }
}

async fn queue_delivers_again_what_was_not_acknowledged(t: Bench) {
    let name = t.name("a");
    let (dead, alive) = (queue(&t.store, &name).await, queue(&t.store, &name).await);
    dead.push("job").await.expect("a push");
    let claim = dead.claim(Duration::from_millis(400)).await.expect("a claim").expect("the job");
    assert!(alive.claim(LEASE).await.expect("a claim").is_none(), "it was given to two");
    let again = loop {
        match alive.claim(LEASE).await.expect("a claim") {
            Some(claim) => break claim,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!((again.item(), again.attempts()), (&Bytes::from("job"), 2));
    assert_eq!(claim.ack().await.expect_err("refused").kind(), ErrorKind::Fenced);
    again.ack().await.expect("an acknowledgement");
    assert_eq!(alive.len().await.expect("a length"), 0);
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

async fn queue_loses_nothing_when_the_nth_op_fails(t: Bench) {
    for fault in [Fault::LostRequest, Fault::Cut, Fault::LostReply] {
        for nth in (1..60).step_by(3) {
            let faulty = Faulty::new(t.store.clone());
            let name = t.name(&format!("{fault:?}{nth}"));
            let queue = queue(&faulty.shared(), &name).await;
            faulty.fail_nth(nth, fault);
            let mut done = Vec::new();
            for item in numbered(14) {
                queue.push(item).await.expect("a push");
                if done.len() < 7 {
                    let claim = claimed(&queue).await;
                    claim.ack().await.expect("an acknowledgement");
                    done.push(claim.item().clone());
                }
            }
            faulty.heal();
            while let Some(item) = queue.pop().await.expect("a pop") {
                done.push(item);
            }
            assert_eq!(done, numbered(14), "{fault:?} at op {nth}");
        }
    }
}

/// The key of a segment, as `docs` write it down.
async fn segment(t: &Bench, name: &str, number: u64) -> Key {
    let manifest = find(&t.store, Ctx::default(), &Name::new(name).expect("a name")).await;
    let manifest = manifest.expect("a manifest").expect("a queue");
    segment_key(&t.store, &format!("L.{name}.q.{:016x}", manifest.generation), number).await
}

async fn queue_tells_a_lost_segment_once(t: Bench) {
    let name = t.name("a");
    let queue = queue(&t.store, &name).await;
    for item in numbered(60) {
        queue.push(item).await.expect("a push");
    }
    t.ok(Op::delete(segment(&t, &name, 1).await)).await;
    assert_eq!(queue.len().await.expect_err("not all there").kind(), ErrorKind::Lost);
    let (mut items, mut losses) = (Vec::new(), 0);
    loop {
        match queue.pop().await {
            Ok(Some(item)) => items.push(item),
            Ok(None) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                losses += 1;
            }
        }
    }
    assert_eq!(losses, 1);
    assert!(items.len() > 30 && items.is_sorted(), "{items:?}");
}

async fn queue_says_full_and_takes_again_when_there_is_room(t: Bench) {
    let options = small().bytes_max(768);
    let queue = options.open_or_create(&t.store, t.name("a")).await.expect("a queue");
    let mut pushed = 0;
    let error = loop {
        match queue.push(format!("item {pushed:04}")).await {
            Ok(()) => pushed += 1,
            Err(error) => break error,
        }
        assert!(pushed < 100, "never full");
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("768") && !error.is_unknown(), "{error}");
    for _ in 0..pushed {
        assert!(queue.pop().await.expect("a pop").is_some());
    }
    queue.push("again").await.expect("room");
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
    let queue = small().open_or_create(&m.store, &m.name).await.expect("a queue");
    let mut costs = Vec::new();
    for item in numbered(40) {
        costs.push(m.cost(queue.push(item)).await.0);
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
