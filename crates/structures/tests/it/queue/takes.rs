//! Taking from queues and stacks: what is known after a fault, what is told once, and what is not asked for twice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Key, ManualClock, Op, PutMode, StoreExt, StoreRef, Ttl, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::{Claim, QueueOptions};
use larder_testkit::faulty::{Fault, Faulty};

use crate::queue::between::{Answer, Between, but, removes, swaps};
use crate::queue::support::{BOTH, Kind, LEASE, Line, drain, key, small, text};
use crate::support::hooked::{Hooked, fail};
use crate::support::probe::Probe;
use crate::table::support::{Evicting, cost, counting};

fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// Fills segments, each with one item, until there are so many.
async fn fill(line: &Line, segments: u64) {
    let mut n = 0;
    while line.stat().await.segments < segments {
        line.push(format!("{n:0250}")).await.unwrap();
        n += 1;
    }
}

/// Claims all there is, and has each claim acknowledged by a handle of its own, which looks at nothing else.
async fn use_up(kind: Kind, store: &StoreRef, line: &Line) {
    let mut claims = Vec::new();
    while let Some(claim) = line.claim(LEASE).await.unwrap() {
        claims.push(claim);
    }
    for claim in claims {
        Line::open(kind, store, &small()).await.ack(claim.id()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_take_that_was_never_sent_had_no_effect_and_one_whose_reply_is_lost_may_have() {
    for kind in BOTH {
        let memory = memory();
        let faulty = Faulty::new(memory.clone());
        let line = Line::open(kind, &faulty.shared(), &small()).await;
        line.push("a").await.unwrap();
        faulty.fail_always(Fault::NotSent);
        let error = line.pop().await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        faulty.heal();
        // The write arrives, and nothing is heard from there on.
        let between = Between::new(&memory);
        let line = Line::open(kind, &between.shared(), &small()).await;
        let mut is_cut = false;
        between.answer(move |store, batch| {
            let (store, batch) = (store.clone(), batch.clone());
            let arrives = !is_cut && batch.iter().any(swaps);
            is_cut |= arrives;
            let answer: Answer = Box::pin(async move {
                if arrives {
                    store.run(Ctx::default(), batch.clone()).await;
                }
                fail(&batch, if arrives { Effect::Unknown } else { Effect::NotApplied })
            });
            is_cut.then_some(answer)
        });
        let error = line.pop().await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        between.heal();
        assert_eq!(line.pop().await.unwrap(), None, "it was taken, once");
    }
}

#[tokio::test(start_paused = true)]
async fn a_take_that_was_overtaken_once_is_tried_again_at_once() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let [one, two] =
            [Line::open(kind, &store, &small()).await, Line::open(kind, &between.shared(), &small()).await];
        one.push_all(["a", "b"]).await.unwrap();
        let first = one.clone();
        between.once(swaps, |store, batch| async move {
            first.pop().await.unwrap().unwrap();
            store.run(Ctx::default(), batch).await
        });
        let since = tokio::time::Instant::now();
        assert!(two.pop().await.unwrap().is_some());
        assert_eq!(since.elapsed(), Duration::ZERO, "{kind:?}");
        assert_eq!(one.pop().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_lost_state_is_told_by_the_first_look() {
    for kind in BOTH {
        let memory = memory();
        let (store, counting) = counting(memory.clone());
        let line = Line::open(kind, &store, &small()).await;
        memory.delete(key(kind, &memory, None).await).await.unwrap();
        let told = || async {
            assert_eq!(line.pop().await.unwrap_err().kind(), ErrorKind::Lost);
            Ok(())
        };
        assert_eq!(cost(&counting, told()).await, 1, "{kind:?}");
    }
}

/// A write whose reply is lost is looked into as long as the state remembers who wrote: 16 writers.
#[tokio::test]
async fn whether_a_take_landed_is_told_after_fifteen_other_writers_and_not_after_seventeen() {
    for kind in BOTH {
        // It lands or not, so many others write, and it can be told or not.
        for (lands, others, is_told) in [(true, 15, true), (false, 16, true), (false, 17, false), (true, 17, false)] {
            let store = memory();
            let between = Between::new(&store);
            let line = Line::open(kind, &between.shared(), &small()).await;
            line.push_all((0..60).map(|n| n.to_string())).await.unwrap();
            let mut overtaking = Vec::new();
            for _ in 0..others {
                overtaking.push(Line::open(kind, &store, &small()).await);
            }
            between.once(swaps, move |store, batch| async move {
                if lands {
                    store.run(Ctx::default(), batch.clone()).await;
                }
                for other in overtaking {
                    other.pop().await.unwrap().unwrap();
                }
                fail(&batch, Effect::Unknown)
            });
            let what = format!("{kind:?}, it lands: {lands}, {others} others");
            let given = line.pop().await;
            match &given {
                Ok(item) => assert!(item.is_some() && is_told, "{what}: {item:?}"),
                Err(error) => {
                    assert!(!is_told, "{what}: {error}");
                    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::Unknown), "{what}");
                }
            }
            let taken = others + usize::from(lands || given.is_ok());
            assert_eq!(line.drain().await.len(), 60 - taken, "{what}");
        }
    }
}

/// Counts writes of the state in a call, and lets something happen instead of the second.
fn at_the_second_write(
    between: &Between,
    writes: &Arc<AtomicUsize>,
    mut act: impl FnMut(StoreRef, Batch) -> Answer + Send + 'static,
) {
    let writes = writes.clone();
    between.answer(move |store, batch| {
        let is_second = batch.iter().any(swaps) && writes.fetch_add(1, Ordering::Relaxed) > 0;
        is_second.then(|| act(store.clone(), batch.clone()))
    });
}

/// Who wrote the state between a loss and the note that it was told does not take the loss for one that nobody has heard of.
#[tokio::test]
async fn a_loss_that_another_was_told_of_since_is_not_told_again_from_what_was_known() {
    for kind in BOTH {
        let store = memory();
        let one = Line::open(kind, &store, &small()).await;
        fill(&one, 6).await;
        let claim = one.take().await;
        // The second from the end that is taken from.
        let gone = if kind == Kind::Queue { 1 } else { 3 };
        store.delete(key(kind, &store, Some(gone)).await).await.unwrap();
        let between = Between::new(&store);
        let two = Line::open(kind, &between.shared(), &small()).await;
        let (writes, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Some(claim))));
        at_the_second_write(&between, &writes, move |store, batch| {
            let held = held.lock().unwrap().take();
            Box::pin(async move {
                if let Some(claim) = held {
                    claim.release().await.unwrap();
                }
                store.run(Ctx::default(), batch).await
            })
        });
        let error = loop {
            writes.store(0, Ordering::Relaxed);
            match two.pop().await {
                Ok(item) => assert!(item.is_some(), "{kind:?}: no loss"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(writes.load(Ordering::Relaxed) > 1, "{kind:?}");
        let (items, told) = drain(&one).await;
        assert!(!items.is_empty());
        assert_eq!(told, 0, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_heard_of_a_loss_is_not_told_again_though_nobody_could_note_that() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &small()).await;
        fill(&line, 4).await;
        store.delete(key(kind, &store, Some(1)).await).await.unwrap();
        let writes = Arc::new(AtomicUsize::new(0));
        at_the_second_write(&between, &writes, |_, batch| Box::pin(async move { fail(&batch, Effect::NotApplied) }));
        let (mut taken, mut told) = (0, 0);
        loop {
            writes.store(0, Ordering::Relaxed);
            match line.pop().await {
                Ok(Some(_)) => taken += 1,
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                    told += 1;
                    assert!(told < 5, "{kind:?}: it is told on and on");
                }
            }
        }
        assert_eq!((taken, told), (2, 1), "{kind:?}");
        // It is told to others, who have not heard of it.
        between.heal();
        assert_eq!(drain(&Line::open(kind, &store, &small()).await).await.1, 1, "{kind:?}");
    }
}

/// The link of a queue's segment is read along with the segment before it: going on costs a read, the write, and the removal of what was used up.
#[tokio::test]
async fn going_on_to_the_next_segment_of_a_queue_takes_three_round_trips() {
    let memory = memory();
    let pushing = Line::open(Kind::Queue, &memory, &small()).await;
    for n in 0..120 {
        pushing.push(format!("item {n:06}")).await.unwrap();
    }
    let (store, counting) = counting(memory);
    let line = Line::open(Kind::Queue, &store, &small()).await;
    let mut costs = Vec::new();
    for _ in 0..120 {
        costs.push(cost(&counting, line.pop()).await);
    }
    assert!(costs.iter().all(|&cost| cost <= 3), "{costs:?}");
    assert!(costs.iter().filter(|&&cost| cost == 1).count() > 80, "{costs:?}");
}

/// What lies below the tail of a stack was closed when it was read: only the tail is read again.
#[tokio::test]
async fn what_lies_below_the_tail_of_a_stack_is_read_once() {
    let (store, counting) = counting(memory());
    let line = Line::open(Kind::Stack, &store, &small()).await;
    let mut pushed = 0;
    while line.stat().await.segments < 2 {
        line.push(format!("item {pushed:06}")).await.unwrap();
        pushed += 1;
    }
    assert!(pushed > 4, "{pushed}");
    line.pop().await.unwrap().unwrap();
    for _ in 1..pushed - 1 {
        assert_eq!(cost(&counting, line.pop()).await, 2);
    }
}

#[tokio::test]
async fn an_acknowledgement_by_another_reads_no_segment() {
    for kind in BOTH {
        let (store, counting) = counting(memory());
        let one = Line::open(kind, &store, &QueueOptions::default()).await;
        one.push([b'x'; 5_000]).await.unwrap();
        let claim = one.take().await;
        let other = Line::open(kind, &store, &QueueOptions::default()).await;
        let before = counting.counts();
        other.ack(claim.id()).await.unwrap();
        let counts = counting.counts().since(&before);
        assert!(counts.received_bytes < 1_000, "{kind:?}: {counts:?}");
    }
}

/// A store whose leases go by a clock that the test moves.
fn clocked() -> (Arc<ManualClock>, StoreRef) {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    (clock, Arc::new(store))
}

/// A look for the marker of a claim.
fn looks_for_a_marker(op: &Op) -> bool {
    let key = text(op.key.as_bytes());
    matches!(op.verb, Verb::Get { .. }) && key.rsplit('.').next().is_some_and(|index| index.starts_with('c'))
}

#[tokio::test]
async fn a_marker_that_was_looked_for_is_not_looked_for_again_in_the_same_call() {
    for kind in BOTH {
        for is_alive in [true, false] {
            let (clock, store) = clocked();
            let between = Between::new(&store);
            let one = Line::open(kind, &store, &small()).await;
            one.push_all(if is_alive { &["a", "b"][..] } else { &["a"] }).await.unwrap();
            let first = one.claim(Duration::from_secs(10)).await.unwrap().unwrap();
            // It knows of the claim.
            let two = Line::open(kind, &between.shared(), &small()).await;
            if !is_alive {
                clock.advance(Duration::from_secs(11));
            }
            let looks = Arc::new(AtomicUsize::new(0));
            let counted = looks.clone();
            between.answer(move |_, batch| {
                counted.fetch_add(batch.iter().filter(|op| looks_for_a_marker(op)).count(), Ordering::Relaxed);
                None
            });
            let second = two.take().await;
            assert_eq!(
                (second.item() == first.item(), second.attempts()),
                if is_alive { (false, 1) } else { (true, 2) }
            );
            assert_eq!(looks.load(Ordering::Relaxed), 1, "{kind:?}, it is alive: {is_alive}");
        }
    }
}

/// Of many claims some markers are looked for with each write, others each time: so none is passed over for good while there is more to take.
#[tokio::test]
async fn a_lease_that_ran_out_among_many_is_found_while_there_is_more_to_take() {
    let (clock, store) = clocked();
    let options = QueueOptions::default();
    let [one, two] = [Line::open(Kind::Queue, &store, &options).await, Line::open(Kind::Queue, &store, &options).await];
    one.push_all((0..500).map(|n| n.to_string())).await.unwrap();
    for _ in 0..40 {
        _ = one.claim(Duration::from_secs(600)).await.unwrap().unwrap();
    }
    let dead = one.claim(Duration::from_secs(10)).await.unwrap().unwrap();
    clock.advance(Duration::from_secs(11));
    let mut found = false;
    for _ in 0..400 {
        found |= two.pop().await.unwrap().unwrap() == *dead.item();
    }
    assert!(found);
}

async fn put(store: &StoreRef, key: Key, value: &'static str) {
    store.put(key, PutMode::Set, value, Ttl::Never).await.unwrap();
}

#[tokio::test]
async fn what_is_no_segment_is_named_and_not_taken_for_lost() {
    for kind in BOTH {
        let store = memory();
        let one = Line::open(kind, &store, &small()).await;
        one.push("a").await.unwrap();
        put(&store, key(kind, &store, Some(0)).await, "garbage").await;
        let fresh = Line::open(kind, &store, &small()).await;
        assert_eq!(fresh.pop().await.unwrap_err().kind(), ErrorKind::LayoutMismatch, "{kind:?}");
        assert_eq!(fresh.len().await.unwrap_err().kind(), ErrorKind::LayoutMismatch, "{kind:?}");
    }
}

#[tokio::test]
async fn what_stands_in_the_place_of_a_segment_that_is_used_up_keeps_nobody_from_the_rest() {
    for kind in BOTH {
        let store = memory();
        let one = Line::open(kind, &store, &small()).await;
        fill(&one, 4).await;
        use_up(kind, &store, &one).await;
        one.push("the rest").await.unwrap();
        put(&store, key(kind, &store, Some(1)).await, "garbage").await;
        let (items, told) = drain(&Line::open(kind, &store, &small()).await).await;
        assert_eq!(items, ["the rest"], "{kind:?}");
        // What was pushed to it late is gone, if there was something.
        assert!(told <= 1, "{kind:?}: told {told} times");
        assert_eq!(one.len().await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_claim_whose_marker_was_not_stored_gets_another() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let [one, two] =
            [Line::open(kind, &between.shared(), &small()).await, Line::open(kind, &store, &small()).await];
        one.push("a").await.unwrap();
        between.once(swaps, |store, batch| {
            but(store, batch, |op| {
                let is_marker = matches!(op.verb, Verb::Put { mode: PutMode::Set, .. });
                let error = Error::new(ErrorKind::Unavailable, "it is not sent").effect(Effect::NotApplied);
                is_marker.then_some(Err(error))
            })
        });
        let claim = one.take().await;
        assert!(two.claim(LEASE).await.unwrap().is_none(), "{kind:?}");
        claim.ack().await.unwrap();
    }
}

/// Each answer is that of its own segment.
#[tokio::test]
async fn several_segments_that_are_removed_in_one_go_are_no_loss() {
    for kind in BOTH {
        let memory = Arc::new(MemoryStore::new());
        let store: StoreRef = Arc::new(Evicting(memory.clone()));
        let one = Line::open(kind, &store, &small()).await;
        fill(&one, 5).await;
        use_up(kind, &store, &one).await;
        assert_eq!(drain(&one).await, (Vec::new(), 0), "{kind:?}");
        let stat = one.stat().await;
        assert_eq!((stat.segments, stat.segments_lost, stat.segments_missing), (1, 0, 0), "{kind:?}");
        // The manifest, the state, the tail; a link that is none's, and markers of claims that others have ended.
        assert!(memory.stats().items <= 8, "{kind:?}: {} keys", memory.stats().items);
        let other = Line::open(kind, &store, &small()).await;
        assert_eq!(drain(&other).await, (Vec::new(), 0), "{kind:?}");
    }
}

/// Lets a write of the state arrive with the next one, right before it: whoever sent it knows nothing of it.
fn with_the_next(late: &mut Option<Batch>, store: &StoreRef, batch: &Batch) -> Option<Answer> {
    if !batch.iter().any(swaps) {
        return None;
    }
    let (store, batch) = (store.clone(), batch.clone());
    let first = late.replace(batch.clone());
    Some(Box::pin(async move {
        let Some(first) = first else { return fail(&batch, Effect::Unknown) };
        store.run(Ctx::default(), first).await;
        store.run(Ctx::default(), batch).await
    }))
}

/// The first write arrives late, right before the second, whose answer shows it and not whether its lease was stored.
#[tokio::test(start_paused = true)]
async fn a_claim_that_lands_late_is_looked_into_and_not_given_up() {
    for kind in BOTH {
        let store = memory();
        let between = Between::new(&store);
        let line = Line::open(kind, &between.shared(), &small()).await;
        line.push("a").await.unwrap();
        let mut late = None::<Batch>;
        between.answer(move |store, batch| with_the_next(&mut late, store, batch));
        let claim = line.take().await;
        between.heal();
        assert_eq!(claim.attempts(), 1, "{kind:?}");
        claim.renew().await.unwrap();
        claim.ack().await.unwrap();
        assert_eq!(line.len().await.unwrap(), 0, "{kind:?}");
    }
}

/// What the store answers to the second try shows that the first has landed: no look is needed for that.
#[tokio::test(start_paused = true)]
async fn a_pop_that_lands_late_is_known_by_the_answer_to_the_next_try() {
    for kind in BOTH {
        let between = Between::new(&memory());
        let line = Line::open(kind, &between.shared(), &small()).await;
        line.push("a").await.unwrap();
        let (mut late, batches) = (None::<Batch>, Arc::new(AtomicUsize::new(0)));
        let counted = batches.clone();
        between.answer(move |store, batch| {
            counted.fetch_add(1, Ordering::Relaxed);
            with_the_next(&mut late, store, batch)
        });
        assert_eq!(line.pop().await.unwrap().as_deref(), Some(&b"a"[..]), "{kind:?}");
        // A read and a write, and after the doubt once more.
        assert_eq!(batches.load(Ordering::Relaxed), 4, "{kind:?}");
        assert_eq!(line.pop().await.unwrap(), None, "{kind:?}");
    }
}

fn is_marker(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Set, ttl: Ttl::After(_), .. })
}

/// Claims so many items at the same time: the first is under way alone, the others wait for it together.
async fn claim_at_once(line: &Line, count: usize) -> Vec<Claim> {
    let claim = || {
        let line = line.clone();
        tokio::spawn(async move { line.take().await })
    };
    let tasks: Vec<_> = (0..count).map(|_| claim()).collect();
    let mut claims = Vec::new();
    for task in tasks {
        claims.push(task.await.unwrap());
    }
    claims
}

#[tokio::test]
async fn no_more_than_128_claims_travel_in_one_write() {
    let between = Between::new(&memory());
    let store = Probe::over(between.shared()).shared();
    let line = Line::open(Kind::Queue, &store, &QueueOptions::default()).await;
    line.push_all((0..300).map(|n| n.to_string())).await.unwrap();
    let writes = Arc::new(Mutex::new(Vec::new()));
    let noted = writes.clone();
    between.answer(move |_, batch| {
        if batch.iter().any(swaps) {
            noted.lock().unwrap().push(batch.iter().filter(|op| is_marker(op)).count());
        }
        None
    });
    let claims = claim_at_once(&line, 300).await;
    assert_eq!(claims.len(), 300);
    let writes = writes.lock().unwrap();
    assert_eq!(writes.iter().sum::<usize>(), 300, "{writes:?}");
    assert_eq!(writes.iter().max(), Some(&128), "{writes:?}");
}

/// What is only looked at on the way is left out where a write fills a batch.
#[tokio::test]
async fn a_write_of_many_claims_has_no_more_ops_than_the_store_takes() {
    for kind in BOTH {
        // It refuses what is more.
        let narrow = Hooked::with_batches_of(&memory(), 20);
        let store = Probe::over(narrow.shared()).shared();
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        line.push_all((0..40).map(|n| n.to_string())).await.unwrap();
        let mut claims = claim_at_once(&line, 8).await;
        claims.extend(claim_at_once(&line, 19).await);
        assert_eq!(line.stat().await.claimed, 27, "{kind:?}");
        for claim in claims {
            claim.ack().await.unwrap();
        }
        assert_eq!(line.drain().await.len(), 13, "{kind:?}");
    }
}

/// Where it is not known for long whether a write landed, each look asks for the markers of as many claims as a batch takes.
#[tokio::test]
async fn more_claims_at_once_than_a_batch_takes_go_in_several_writes() {
    for kind in BOTH {
        let between = Between::new(&Hooked::with_batches_of(&memory(), 20).shared());
        let store = Probe::over(between.shared()).shared();
        let line = Line::open(kind, &store, &QueueOptions::default()).await;
        line.push_all((0..100).map(|n| n.to_string())).await.unwrap();
        assert_eq!(claim_at_once(&line, 40).await.len(), 40, "{kind:?}");
        let lost = AtomicUsize::new(0);
        between.answer(move |_, batch| {
            let is_lost = batch.iter().filter(|op| is_marker(op)).count() > 10 && batch.iter().any(swaps);
            if !is_lost || lost.fetch_add(1, Ordering::Relaxed) >= 3 {
                return None;
            }
            let answer: Answer = Box::pin(std::future::ready(fail(batch, Effect::Unknown)));
            Some(answer)
        });
        assert_eq!(claim_at_once(&line, 40).await.len(), 40, "{kind:?}");
        assert_eq!(line.drain().await.len(), 20, "{kind:?}");
    }
}

/// Who knows a segment as it was when it was the tail reads it again once it was closed: more may have been pushed to it.
#[tokio::test]
async fn what_was_pushed_to_a_stack_since_its_tail_was_read_comes_in_its_order() {
    let store = memory();
    let between = Between::new(&store);
    let [one, two] =
        [Line::open(Kind::Stack, &store, &small()).await, Line::open(Kind::Stack, &between.shared(), &small()).await];
    // What lies below is used up and stays, and so do those above it on record.
    between.refuse(removes, Effect::NotApplied);
    one.push([b'0'; 250]).await.unwrap();
    assert!(two.pop().await.unwrap().is_some());
    one.push_all(["a", "b"]).await.unwrap();
    let claim = two.take().await;
    assert_eq!(claim.item(), "b");
    one.push("c").await.unwrap();
    one.push([b'd'; 250]).await.unwrap();
    one.push("e").await.unwrap();
    // He hears of the new tail by that, and reads no segment.
    claim.ack().await.unwrap();
    assert_eq!(two.drain().await, ["e", &"d".repeat(250), "c", "a"]);
}

/// Pushes two items to each of so many segments of a stack, and loses one of them.
async fn losing(segments: u64, taken: usize, lost: u64) -> (StoreRef, Vec<String>) {
    let store = memory();
    let line = Line::open(Kind::Stack, &store, &small()).await;
    let item = |n: u64| format!("{n:0130}");
    for n in 0..2 * segments {
        line.push(item(n)).await.unwrap();
    }
    assert_eq!(line.stat().await.segments, segments + 1);
    for _ in 0..taken {
        line.pop().await.unwrap().unwrap();
    }
    store.delete(key(Kind::Stack, &store, Some(lost)).await).await.unwrap();
    (store, (0..2 * segments).rev().skip(taken).map(item).collect())
}

/// Takes all there is, a loss as `None`; of what never ends, a part.
async fn all_and_losses(line: &Line) -> Vec<Option<String>> {
    let mut all = Vec::new();
    while all.len() < 50 {
        match line.pop().await {
            Ok(Some(item)) => all.push(Some(text(&item))),
            Ok(None) => break,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                all.push(None);
            }
        }
    }
    all
}

#[tokio::test]
async fn a_loss_in_a_stack_is_told_once_and_in_its_place() {
    // Of four segments one that nobody has come to yet, or the one of which an item was taken.
    for (taken, lost) in [(0, 2), (0, 1), (0, 0), (1, 3), (3, 2)] {
        let (store, items) = losing(4, taken, lost).await;
        let line = Line::open(Kind::Stack, &store, &small()).await;
        let of_it = 2 - taken % 2;
        let above = items.len() - 2 * lost as usize - of_it;
        let mut expected: Vec<Option<String>> = items[..above].iter().cloned().map(Some).collect();
        expected.push(None);
        expected.extend(items[above + of_it..].iter().cloned().map(Some));
        assert_eq!(all_and_losses(&line).await, expected, "{taken} taken, segment {lost} is lost");
        assert_eq!(line.stat().await.segments_lost, 1, "{taken} taken, segment {lost} is lost");
    }
}
