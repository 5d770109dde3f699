//! Changes over several shards: all of one or nothing, whoever dies, meets or comes late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use larder_core::{Batch, Ctx, Effect, ErrorKind, Key, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Array, ArrayOptions, Name, registry};
use tokio::sync::Notify;

use crate::array::support::{NOTHING, Scattered, generation_of, sorted, whole};
use crate::support::hooked::{Hooked, fail};
use crate::support::probe::Probe;

fn options() -> ArrayOptions {
    Array::options().shards(4).dirtiness(1 << 30)
}

/// Elements that are pushed beside a change come after it or before it; both are right.
fn split(elements: Vec<Bytes>) -> (Vec<Bytes>, Vec<Bytes>) {
    elements.into_iter().partition(|element| element.starts_with(b"push"))
}

/// The changer runs only the first `ops` ops of its nth batch, and dies. False if it had fewer batches or ops.
async fn change_and_die(nth: u64, ops: usize) -> bool {
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&inner);
    let (dying, others) =
        (options().open_or_create(&hooked.shared(), "a").await.unwrap(), options().open(&inner, "a").await.unwrap());
    others.push(whole(0)).await.unwrap();
    others.push(["push-0"]).await.unwrap();
    let (dead, was_reached) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    hooked.at(nth, {
        let (dead, was_reached, others) = (dead.clone(), was_reached.clone(), others.clone());
        move |store, batch| async move {
            was_reached.store(ops <= batch.len(), Ordering::SeqCst);
            let first: Batch = batch.iter().take(ops).cloned().collect();
            if !first.is_empty() {
                _ = store.run(Ctx::default(), first).await;
            }
            // Acknowledged while the change is half done.
            others.push(["push-1", "push-2", "push-3"]).await.unwrap();
            dead.notify_one();
            std::future::pending().await
        }
    });
    let reached = tokio::select! {
        done = dying.change(whole(1), whole(0)) => { done.unwrap(); false }
        () = dead.notified() => was_reached.load(Ordering::SeqCst),
    };
    drop(dying);
    // No repair is needed: readers old and new see all of it, or nothing, and every push once.
    let mut pushed = vec!["push-0"];
    pushed.extend(if was_reached.load(Ordering::SeqCst) || !reached {
        ["push-1", "push-2", "push-3"].as_slice()
    } else {
        &[]
    });
    let fresh = options().open(&inner, "a").await.unwrap();
    let (pushes, rest) = split(sorted(&fresh).await);
    let generation = generation_of(&rest).unwrap_or_else(|| panic!("half a change: {rest:?}, batch {nth}, {ops} ops"));
    assert!(pushes.len() == 1 || pushes.len() == 4, "{pushes:?}");
    for array in [&others, &fresh] {
        assert_eq!(split(sorted(array).await).1, whole(generation), "batch {nth}, {ops} ops");
        array.compact().await.unwrap();
        assert_eq!(
            split(sorted(array).await),
            (pushes.clone(), whole(generation).iter().map(|e| Bytes::from(e.clone())).collect())
        );
    }
    // Others go on, and what was left behind never counts.
    others.change(whole(2), whole(generation)).await.unwrap();
    fresh.change(whole(3), whole(2)).await.unwrap();
    others.compact().await.unwrap();
    assert_eq!(split(sorted(&fresh).await).1, whole(3));
    reached
}

#[tokio::test]
async fn a_changer_that_dies_at_any_op_of_any_batch_leaves_all_or_nothing() {
    let mut deaths = 0;
    for nth in 1.. {
        let mut ops = 0;
        while change_and_die(nth, ops).await {
            (ops, deaths) = (ops + 1, deaths + 1);
        }
        if ops == 0 {
            break;
        }
    }
    // The commits are read, the shards written, the commits written and read back.
    assert!(deaths >= 2 + 5 + 3, "only {deaths}");
}

/// A changer swaps wholes as fast as it can, others push and compact; every read must find one whole. Over a store whose batches fall apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_never_see_half_a_change() {
    let store = Scattered::shared();
    let open = || Array::options().shards(4).dirtiness(64).timeout(Duration::from_secs(60)).open_or_create(&store, "a");
    let array = open().await.unwrap();
    array.push(whole(0)).await.unwrap();
    let (is_over, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let readers: Vec<_> = (0..3)
        .map(|reader| {
            let (store, is_over, reads) = (store.clone(), is_over.clone(), reads.clone());
            tokio::spawn(async move {
                let options = Array::options().shards(4).dirtiness(if reader == 0 { 64 } else { 1 << 30 });
                let array = options.open(&store, "a").await.unwrap();
                let mut newest = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let (_, rest) = split(sorted(&array).await);
                    let generation = generation_of(&rest).unwrap_or_else(|| panic!("half a change: {rest:?}"));
                    assert!(generation >= newest, "{generation} after {newest}");
                    newest = generation;
                    reads.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let pusher = tokio::spawn({
        let (array, is_over) = (open().await.unwrap(), is_over.clone());
        async move {
            let mut pushed = 0u32;
            while !is_over.load(Ordering::SeqCst) {
                array.push([format!("push-{pushed}")]).await.unwrap();
                pushed += 1;
                if pushed.is_multiple_of(20) {
                    _ = array.compact().await;
                }
            }
            pushed
        }
    });
    // Until the readers have met enough of it, however the scheduler shares the time out.
    let mut generation = 0;
    let start = std::time::Instant::now();
    while (generation < 300 || reads.load(Ordering::SeqCst) < 100) && !readers.iter().any(|reader| reader.is_finished())
    {
        assert!(start.elapsed() < Duration::from_secs(60), "{} reads", reads.load(Ordering::SeqCst));
        generation += 1;
        array.change(whole(generation), whole(generation - 1)).await.unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    let pushed = pusher.await.unwrap();
    let (pushes, rest) = split(sorted(&array).await);
    assert_eq!((pushes.len() as u32, generation_of(&rest)), (pushed, Some(generation)));
    println!("{} reads, {pushed} pushes", reads.load(Ordering::SeqCst));
}

/// 8 tasks over 2 handles change and push elements of their own: each finds at the end what it left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_tasks_on_two_handles_agree_with_their_models() {
    let store = Scattered::shared();
    let open =
        || Array::options().shards(4).dirtiness(256).timeout(Duration::from_secs(60)).open_or_create(&store, "a");
    let handles = [open().await.unwrap(), open().await.unwrap()];
    let tasks: Vec<_> = (0..8usize)
        .map(|task| {
            let array = handles[task % 2].clone();
            tokio::spawn(async move {
                let mut model: Vec<String> = Vec::new();
                let draw =
                    || (0..fastrand::usize(0..4)).map(|_| format!("{task}-{}", fastrand::u8(0..9))).collect::<Vec<_>>();
                for _ in 0..40 {
                    let (add, delete) = (draw(), draw());
                    match fastrand::u8(0..3) {
                        0 => {
                            array.push(&add).await.unwrap();
                            model.extend(add);
                        }
                        1 => {
                            array.change(&add, &delete).await.unwrap();
                            model.retain(|element| !delete.contains(element));
                            model.extend(add);
                        }
                        _ => {
                            array.remove(&delete).await.unwrap();
                            model.retain(|element| !delete.contains(element));
                        }
                    }
                }
                model
            })
        })
        .collect();
    let mut expected = Vec::new();
    for task in tasks {
        expected.extend(task.await.unwrap());
    }
    expected.sort();
    for array in &handles {
        assert_eq!(sorted(array).await, expected);
        array.compact().await.unwrap();
        assert_eq!(sorted(array).await, expected);
    }
}

#[tokio::test]
async fn who_meets_another_change_or_a_compaction_tries_the_next_number() {
    for is_compaction in [false, true] {
        let inner: StoreRef = Arc::new(MemoryStore::new());
        let hooked = Hooked::new(&inner);
        let one = options().open_or_create(&hooked.shared(), "a").await.unwrap();
        let two = options().open(&inner, "a").await.unwrap();
        two.push(whole(0)).await.unwrap();
        // The third batch writes the commits; before it comes, somebody else does.
        hooked.at(3, {
            let two = two.clone();
            move |store, batch| async move {
                if is_compaction {
                    two.compact().await.unwrap();
                } else {
                    two.change(["x", "y", "z", "0-0"], ["0-0"]).await.unwrap();
                }
                store.run(Ctx::default(), batch).await
            }
        });
        one.change(whole(1), whole(0)).await.unwrap();
        let mut expected = whole(1);
        if !is_compaction {
            expected.extend(["x", "y", "z"].map(str::to_owned));
        }
        for array in [&one, &two] {
            assert_eq!(sorted(array).await, expected, "compaction {is_compaction}");
            array.compact().await.unwrap();
            assert_eq!(sorted(array).await, expected, "compaction {is_compaction}");
        }
    }
}

#[tokio::test]
async fn a_lost_reply_is_looked_into_and_an_outcome_that_stays_open_is_unknown() {
    let inner: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&inner);
    let array = options().timeout(Duration::from_millis(800)).open_or_create(&hooked.shared(), "a").await.unwrap();
    array.push(whole(0)).await.unwrap();
    hooked.lose_replies(3);
    array.change(whole(1), whole(0)).await.unwrap();
    assert_eq!(sorted(&array).await, whole(1));
    // The replies are lost and nothing can be read any more.
    hooked.lose_replies(2);
    for nth in 3..200 {
        hooked.refuse(nth);
    }
    let error = array.change(whole(2), whole(1)).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
    let fresh = options().open(&inner, "a").await.unwrap();
    assert_eq!(sorted(&fresh).await, whole(2));
    // The write of the commits was never sent: it is known that nothing counts.
    let hooked = Hooked::new(&inner);
    let array = options().timeout(Duration::from_millis(800)).open(&hooked.shared(), "a").await.unwrap();
    for nth in 3..200 {
        hooked.refuse(nth);
    }
    let error = array.change(whole(3), whole(2)).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::NotApplied, "{error}");
    assert_eq!(sorted(&fresh).await, whole(2));
}

/// A write of the commits that arrives after its changer gave up counts whole, or not at all.
#[tokio::test]
async fn a_write_of_the_commits_that_comes_late_counts_whole_or_not_at_all() {
    for has_another_come_first in [false, true] {
        let inner: StoreRef = Arc::new(MemoryStore::new());
        let hooked = Hooked::new(&inner);
        let array = options().timeout(Duration::from_millis(200)).open_or_create(&hooked.shared(), "a").await.unwrap();
        let other = options().open(&inner, "a").await.unwrap();
        other.push(whole(0)).await.unwrap();
        let late = Arc::new(std::sync::Mutex::new(None));
        hooked.at(3, {
            let late = late.clone();
            move |_, batch| async move {
                *late.lock().unwrap() = Some(batch.clone());
                fail(&batch, Effect::Unknown)
            }
        });
        for nth in 4..200 {
            hooked.refuse(nth);
        }
        let error = array.change(whole(1), whole(0)).await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        if has_another_come_first {
            other.change(["0-0", "x", "y"], ["0-0"]).await.unwrap();
        }
        let late = late.lock().unwrap().take().unwrap();
        inner.run(Ctx::default(), late).await;
        let mut expected = if has_another_come_first { whole(0) } else { whole(1) };
        expected.extend(if has_another_come_first { vec!["x".to_owned(), "y".to_owned()] } else { vec![] });
        assert_eq!(sorted(&other).await, expected);
        other.compact().await.unwrap();
        assert_eq!(sorted(&other).await, expected);
    }
}

#[tokio::test]
async fn the_commits_stay_small_and_what_that_costs_is_as_documented() {
    let probe = Probe::new();
    let store = probe.shared();
    let array = options().open_or_create(&store, "a").await.unwrap();
    array.push(whole(0)).await.unwrap();
    let manifest = registry::find(&store, Ctx::default(), &Name::new("a").unwrap()).await.unwrap().unwrap();
    let commits = Key::new(format!("L.a.a.{:016x}.commits", manifest.generation)).unwrap();
    probe.round_trips();
    let mut dear = 0;
    for generation in 1..=1_000 {
        array.change(whole(generation), whole(generation - 1)).await.unwrap();
        match probe.round_trips() {
            2 => {}
            3 if generation == 1 => {}
            6 => dear += 1,
            other => panic!("{other} round trips at {generation}"),
        }
        let bytes = store.get(commits.clone()).await.unwrap().unwrap().value.len();
        assert!(bytes <= 4096 + 32, "{bytes}");
        probe.round_trips();
    }
    assert!((3..=4).contains(&dear), "{dear}");
    let fresh = options().open(&store, "a").await.unwrap();
    assert_eq!(sorted(&fresh).await, whole(1_000));
    // A change that was written long ago and forgotten since never counts.
    array.compact().await.unwrap();
    assert_eq!(array.stat().await.unwrap().stale_bytes, 0);
    assert_eq!(sorted(&array).await, whole(1_000));
}

#[tokio::test]
async fn changes_of_one_handle_wait_for_each_other_and_one_that_is_dropped_counts_whole_or_not_at_all() {
    let store = Scattered::shared();
    let array = options().timeout(Duration::from_secs(60)).open_or_create(&store, "a").await.unwrap();
    array.push(whole(0)).await.unwrap();
    for _ in 0..200 {
        let change = |from: u32, to: u32| {
            let array = array.clone();
            async move { array.change(whole(to), whole(from)).await }
        };
        let before = generation_of(&sorted(&array).await).unwrap();
        let abandoned = tokio::spawn(change(before, before + 1));
        for _ in 0..fastrand::usize(0..40) {
            tokio::task::yield_now().await;
        }
        abandoned.abort();
        _ = abandoned.await;
        let after = generation_of(&sorted(&array).await).expect("one whole");
        assert!(after == before || after == before + 1);
    }
    let error = array.change(NOTHING, [vec![0; 2 << 20]]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadInput);
}

/// The shards answer at once, and the server of the commits after all shards were settled and the commits have forgotten what was settled. Nothing of it went back.
#[tokio::test]
async fn commits_that_are_read_later_than_the_shards_and_have_forgotten_what_these_do_not_show_are_no_rollback() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let array = options().open_or_create(&store, "a").await.unwrap();
    let hooked = Hooked::new(&store);
    let reader = options().open(&hooked.shared(), "a").await.unwrap();
    for number in 0..5 {
        array.change(whole(number), number.checked_sub(1).map_or(Vec::new(), whole)).await.unwrap();
    }
    assert_eq!(sorted(&reader).await, whole(4));
    let other = array.clone();
    hooked.at(1, |store, batch| async move {
        // The commits are asked for last.
        let (shards, commits) = (batch.len() - 1, batch.iter().skip(batch.len() - 1).cloned().collect());
        let mut replies = store.run(Ctx::default(), batch.iter().take(shards).cloned().collect()).await;
        other.compact().await.unwrap();
        assert_eq!(sorted(&other).await, whole(4));
        other.change(whole(5), whole(4)).await.unwrap();
        replies.extend(store.run(Ctx::default(), commits).await);
        replies
    });
    assert_eq!(sorted(&reader).await, whole(5));
}

/// Others write the commits between a change's write of them and the look at what stands there then, which goes out with it.
#[tokio::test]
async fn what_others_change_right_behind_a_change_is_not_taken_for_its_own() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    let (array, others) =
        (options().open_or_create(&hooked.shared(), "a").await.unwrap(), options().open(&store, "a").await.unwrap());
    let second = others.clone();
    // The commits are read, the shards written, the commits written and read back.
    hooked.at(3, move |store, batch| async move {
        let [write, look] = [0, 1].map(|at| batch.iter().skip(at).take(1).cloned().collect::<Batch>());
        assert_eq!(batch.len(), 2);
        let mut replies = store.run(Ctx::default(), write).await;
        second.change(whole(1), whole(0)).await.unwrap();
        replies.extend(store.run(Ctx::default(), look).await);
        replies
    });
    array.change(whole(0), NOTHING).await.unwrap();
    array.change(whole(2), whole(1)).await.unwrap();
    let fresh = options().open(&store, "a").await.unwrap();
    for array in [&array, &others, &fresh] {
        assert_eq!(sorted(array).await, whole(2));
        array.compact().await.unwrap();
    }
}
