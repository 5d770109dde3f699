//! The counter where replies are lost, requests arrive late, connections end, and callers go away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Op, Profile, Run, Store, StoreRef};
use larder_structures::Counter;
use larder_testkit::faulty::{Fault, Faulty};
use larder_testkit::yielding::Yielding;
use proptest::prelude::*;

use crate::counter::support::{memory, process, yielding};

const FAULTS: [Fault; 5] = [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(3)];

/// What adds have told of the total.
#[derive(Clone, Copy, Default)]
struct Known {
    min: i128,
    max: i128,
}

impl Known {
    async fn add(&mut self, counter: &Counter, delta: i64) {
        let delta128 = i128::from(delta);
        match counter.add(delta).await {
            Ok(()) => {
                self.min += delta128;
                self.max += delta128;
            }
            Err(error) if error.is_unknown() => {
                self.min += delta128.min(0);
                self.max += delta128.max(0);
            }
            Err(_) => {}
        }
    }
}

#[tokio::test]
async fn whichever_op_breaks_in_whatever_way_adds_count_once() {
    for fault in FAULTS {
        // An add of a fresh process has 16 reads and 2 ops of its write, then 2 for each further one, and 2 for the release.
        for nth in 1..=28 {
            let faulty = Faulty::new(memory());
            let store = faulty.shared();
            let counter = Counter::open_or_create(&store, "n").await.unwrap();
            let other = process(&store, "n").await;
            other.add(1_000_000).await.unwrap();
            faulty.fail_nth(nth, fault);
            for step in 0..5 {
                // One break is always got over.
                counter.add(10_i64.pow(step)).await.unwrap_or_else(|error| panic!("{fault:?} at {nth}: {error}"));
            }
            counter.release().await.unwrap_or_else(|error| panic!("{fault:?} at {nth}: {error}"));
            faulty.heal();
            faulty.deliver_late().await;
            assert_eq!(faulty.injected(), 1, "{fault:?} at {nth}");
            assert_eq!(other.get().await.unwrap(), 1_011_111, "{fault:?} at {nth}");
        }
    }
}

#[tokio::test]
async fn whichever_op_of_a_reset_breaks_nothing_is_taken_twice() {
    for fault in FAULTS {
        // 4 reads, 8 ops of the writes, and 4 reads of the second reset.
        for nth in 1..=16 {
            let faulty = Faulty::new(memory());
            let store = faulty.shared();
            let counter = Counter::options().slots(4).open_or_create(&store, "n").await.unwrap();
            for step in 0..4 {
                process(&store, "n").await.add(10_i64.pow(step)).await.unwrap();
            }
            faulty.fail_nth(nth, fault);
            let mut taken = 0;
            // A break of the reads of a reset is told; nothing was taken then.
            for _ in 0..2 {
                match counter.reset().await {
                    Ok(sum) => taken += sum,
                    Err(error) => assert_eq!(error.known_effect(), Effect::NotApplied, "{fault:?} at {nth}: {error}"),
                }
            }
            faulty.deliver_late().await;
            assert_eq!(faulty.injected(), 1, "{fault:?} at {nth}");
            assert_eq!(taken + counter.get().await.unwrap(), 1_111, "{fault:?} at {nth}");
            assert_eq!(taken, 1_111, "{fault:?} at {nth}");
        }
    }
}

#[tokio::test]
async fn opening_and_making_survive_a_break_or_tell() {
    for fault in FAULTS {
        for nth in 1..=20 {
            let faulty = Faulty::new(memory());
            let store = faulty.shared();
            faulty.fail_nth(nth, fault);
            let mut opened = Counter::open_or_create(&store, "n").await;
            if opened.is_err() {
                faulty.deliver_late().await;
                opened = Counter::open_or_create(&store, "n").await;
            }
            let counter = opened.unwrap_or_else(|error| panic!("{fault:?} at {nth}: {error}"));
            counter.add(1).await.unwrap_or_else(|error| panic!("{fault:?} at {nth}: {error}"));
            faulty.deliver_late().await;
            assert_eq!(process(&store, "n").await.get().await.unwrap(), 1, "{fault:?} at {nth}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_with_random_breaks_count_exactly() {
    for slots in [1, 4, 16] {
        let seed = fastrand::u64(..);
        println!("slots {slots}, seed {seed}");
        let store: StoreRef = Arc::new(Yielding(memory()));
        Counter::options().slots(slots).open_or_create(&store, "n").await.unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            // Each has a connection of its own, as processes have.
            let faulty = Faulty::new(store.clone());
            let counter =
                Counter::options().timeout(Duration::from_secs(60)).open(&faulty.shared(), "n").await.unwrap();
            faulty.fail_randomly(seed ^ task, 30, &FAULTS);
            tasks.spawn(async move {
                let mut known = Known::default();
                for _ in 0..200 {
                    known.add(&counter, 1).await;
                }
                faulty.heal();
                faulty.deliver_late().await;
                assert!(faulty.injected() > 0);
                known
            });
        }
        let known = tasks.join_all().await;
        let (min, max) = known.iter().fold((0, 0), |(min, max), known| (min + known.min, max + known.max));
        let total = process(&store, "n").await.get().await.unwrap();
        // A slot remembers eight writers, so none is forgotten while it is away.
        assert_eq!((min, max), (total, total), "{slots} slots, seed {seed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fast_counter_tells_what_it_does_not_know() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let store = yielding();
    Counter::options().fast().open_or_create(&store, "n").await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..8 {
        let faulty = Faulty::new(store.clone());
        let counter = Counter::open(&faulty.shared(), "n").await.unwrap();
        faulty.fail_randomly(seed ^ task, 20, &FAULTS);
        tasks.spawn(async move {
            let mut known = Known::default();
            for _ in 0..300 {
                known.add(&counter, 1).await;
            }
            faulty.deliver_late().await;
            known
        });
    }
    let known = tasks.join_all().await;
    let (min, max) = known.iter().fold((0, 0), |(min, max), known| (min + known.min, max + known.max));
    let total = process(&store, "n").await.get().await.unwrap();
    assert!(min < max && (min..=max).contains(&total), "{total} is not in {min}..={max}");
}

#[tokio::test]
async fn an_unreachable_store_is_told_and_nothing_was_counted() {
    let faulty = Faulty::new(memory());
    let counter = Counter::open_or_create(&faulty.shared(), "n").await.unwrap();
    counter.add(1).await.unwrap();
    faulty.fail_always(Fault::NotSent);
    let error = counter.add(10).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
    assert!(counter.get().await.is_err());
    faulty.heal();
    counter.add(100).await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 101);
}

#[tokio::test]
async fn an_add_that_stays_unknown_is_told_and_counts_once_at_the_most() {
    for fault in [Fault::LostRequest, Fault::LostReply, Fault::Late(1_000)] {
        let faulty = Faulty::new(memory());
        let options = Counter::options().timeout(Duration::from_millis(100));
        let counter = options.open_or_create(&faulty.shared(), "n").await.unwrap();
        counter.add(1).await.unwrap();
        faulty.fail_always(fault);
        let error = counter.add(10).await.unwrap_err();
        assert!(error.is_unknown(), "{fault:?}: {error}");
        faulty.heal();
        counter.add(100).await.unwrap();
        let before = counter.get().await.unwrap();
        assert!(before == 101 || before == 111, "{fault:?}: {before}");
        faulty.deliver_late().await;
        assert_eq!(counter.get().await.unwrap(), before, "{fault:?}: what is late comes too late");
        counter.add(1_000).await.unwrap();
        assert_eq!(counter.get().await.unwrap(), before + 1_000);
    }
}

#[tokio::test]
async fn a_store_that_hangs_is_left_in_time() {
    #[derive(Debug)]
    struct Hanging(StoreRef, AtomicBool);
    impl Store for Hanging {
        fn profile(&self) -> Arc<Profile> {
            self.0.profile()
        }
        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            if self.1.load(Ordering::Relaxed) {
                return Run::pending(std::future::pending());
            }
            self.0.run(ctx, batch)
        }
    }
    let hanging = Arc::new(Hanging(memory(), false.into()));
    let store: StoreRef = hanging.clone();
    let counter = Counter::options().timeout(Duration::from_millis(50)).open_or_create(&store, "n").await.unwrap();
    counter.add(1).await.unwrap();
    hanging.1.store(true, Ordering::Relaxed);
    for error in
        [counter.add(10).await.unwrap_err(), counter.get().await.unwrap_err(), counter.release().await.unwrap_err()]
    {
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::Unknown), "{error}");
    }
    hanging.1.store(false, Ordering::Relaxed);
    counter.add(100).await.unwrap();
    let total = counter.get().await.unwrap();
    assert!(total == 101 || total == 111, "{total}");
}

#[tokio::test]
async fn adds_cancelled_anywhere_count_once_or_not_at_all() {
    for round in 0..300 {
        let faulty = Faulty::new(yielding());
        let counter = Counter::options().slots(2).open_or_create(&faulty.shared(), "n").await.unwrap();
        let other = process(&faulty.shared(), "n").await;
        faulty.fail_randomly(round, 12, &[Fault::LostReply, Fault::Cut, Fault::LostRequest, Fault::Late(2)]);
        let mut tasks = Vec::new();
        for step in 0..6 {
            let counter = if step % 3 == 2 { other.clone() } else { counter.clone() };
            tasks.push(tokio::spawn(async move { counter.add(10_i64.pow(step)).await }));
        }
        for _ in 0..fastrand::u8(0..30) {
            tokio::task::yield_now().await;
        }
        let abort = fastrand::usize(..tasks.len());
        tasks[abort].abort();
        let mut known = Vec::new();
        for (step, task) in tasks.into_iter().enumerate() {
            known.push((10_i128.pow(step as u32), task.await));
        }
        faulty.heal();
        counter.add(1_000_000).await.unwrap();
        other.add(1_000_000).await.unwrap();
        faulty.deliver_late().await;
        let total = counter.get().await.unwrap();
        assert_eq!(total / 1_000_000, 2);
        for (weight, outcome) in known {
            let digit = total / weight % 10;
            match outcome {
                Ok(Ok(())) => assert_eq!(digit, 1, "round {round}: {total}, {weight} returned"),
                Ok(Err(error)) if !error.is_unknown() => {
                    assert_eq!(digit, 0, "round {round}: {total}, {weight}: {error}")
                }
                _ => assert!(digit <= 1, "round {round}: {total}, {weight} is unknown"),
            }
        }
    }
}

/// Loses the reply of one batch of writes, and lets other processes add before it says so.
#[derive(Debug)]
struct Overtaken {
    inner: StoreRef,
    others: u32,
    is_armed: AtomicBool,
}

impl Store for Overtaken {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if batch.iter().all(Op::is_read) || !self.is_armed.swap(false, Ordering::Relaxed) {
            return self.inner.run(ctx, batch);
        }
        Run::pending(async move {
            let replies = self.inner.run(ctx, batch).await;
            for _ in 0..self.others {
                process(&self.inner, "n").await.add(1).await.unwrap();
            }
            let lost = || Error::new(ErrorKind::Unavailable, "the reply was lost").effect(Effect::Unknown);
            replies.iter().map(|_| Err(lost())).collect()
        })
    }
}

#[tokio::test]
async fn a_writer_finds_its_write_behind_seven_others_and_says_so_where_it_cannot() {
    for (others, is_found) in [(1, true), (7, true), (8, false), (20, false)] {
        let overtaken = Arc::new(Overtaken { inner: memory(), others, is_armed: false.into() });
        let store: StoreRef = overtaken.clone();
        let counter = Counter::options().slots(1).open_or_create(&store, "n").await.unwrap();
        counter.add(1_000).await.unwrap();
        overtaken.is_armed.store(true, Ordering::Relaxed);
        match counter.add(100).await {
            Ok(()) => assert!(is_found, "{others}"),
            Err(error) => {
                assert!(!is_found && error.is_unknown() && error.detail().contains("slot 0"), "{others}: {error}");
            }
        }
        assert_eq!(counter.get().await.unwrap(), 1_100 + i128::from(others));
        counter.add(10_000).await.unwrap();
        assert_eq!(counter.get().await.unwrap(), 11_100 + i128::from(others));
    }
}

/// What a model test does.
#[derive(Clone, Debug)]
enum Step {
    Add(usize, i64),
    Get(usize),
    Reset(usize),
    Release(usize),
    Reopen(usize),
    Break(u64, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4usize, any::<i64>()).prop_map(|(who, delta)| Step::Add(who, delta)),
        2 => (0..4usize).prop_map(Step::Get),
        1 => (0..4usize).prop_map(Step::Reset),
        1 => (0..4usize).prop_map(Step::Release),
        1 => (0..4usize).prop_map(Step::Reopen),
        2 => (1..20u64, 0..FAULTS.len()).prop_map(|(nth, fault)| Step::Break(nth, fault)),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against a plain number. Breaks make single calls fail; what they tell of their effect must hold.
    #[test]
    fn random_steps_agree_with_a_plain_number(steps in steps(), slots in 1u16..5) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let memory = memory();
            let faulty = Faulty::new(memory.clone());
            let store = faulty.shared();
            let mut handles = vec![Counter::options().slots(slots).open_or_create(&store, "n").await.unwrap()];
            for _ in 1..4 {
                handles.push(process(&store, "n").await);
            }
            let mut model = 0_i128;
            for step in steps {
                match step {
                    Step::Add(who, delta) => match handles[who].add(delta).await {
                        Ok(()) => model += i128::from(delta),
                        // More writers came since the handle last looked than a slot remembers: it may have counted, or not.
                        Err(error) => {
                            assert!(error.is_unknown(), "{error}");
                            let total = Counter::open(&memory, "n").await.unwrap().get().await.unwrap();
                            assert!([model, model + i128::from(delta)].contains(&total), "{total} after {model} and {delta}");
                            model = total;
                        }
                    },
                    Step::Get(who) => if let Ok(total) = handles[who].get().await {
                        assert_eq!(total, model);
                    },
                    Step::Reset(who) => if let Ok(taken) = handles[who].reset().await {
                        assert_eq!(taken, model);
                        model = 0;
                    },
                    Step::Release(who) => _ = handles[who].release().await,
                    Step::Reopen(who) => if let Ok(counter) = Counter::open(&store, "n").await {
                        handles[who] = counter;
                    },
                    Step::Break(nth, fault) => faulty.fail_nth(nth, FAULTS[fault]),
                }
            }
            faulty.heal();
            faulty.deliver_late().await;
            assert_eq!(handles[0].get().await.unwrap(), model);
        });
    }
}
