//! Arrays on a connection that breaks: before and after every op, at random, and with requests that arrive late.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Effect, ErrorKind, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Array, ArrayOptions};
use larder_testkit::faulty::{Fault, Faulty};

use crate::array::support::{NOTHING, Scattered, generation_of, sorted, whole};
use crate::support::twice::Twice;

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

fn faulty() -> (Faulty, StoreRef) {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let store = faulty.shared();
    (faulty, store)
}

fn options(shards: u16) -> ArrayOptions {
    Array::options().shards(shards).dirtiness(64)
}

/// Pushes, removes and changes through two handles, with compactions. Every change must be settled; reads may fail.
async fn script(one: &Array, two: &Array) {
    one.push(["a", "b", "a", "c"]).await.unwrap();
    two.remove(["b"]).await.unwrap();
    _ = one.elements().await;
    one.change(["d", "e", "f"], ["a"]).await.unwrap();
    two.push(["a", "e"]).await.unwrap();
    _ = two.compact().await;
    two.change(["g", "g"], ["e", "c"]).await.unwrap();
    one.push(["h"]).await.unwrap();
    _ = one.elements().await;
    one.change(["d"], ["d", "h"]).await.unwrap();
}

#[tokio::test]
async fn a_break_at_any_op_changes_nothing() {
    for (shards, fault) in [1, 3].into_iter().flat_map(|shards| FAULTS.map(|fault| (shards, fault))) {
        for nth in 1.. {
            let (faulty, store) = faulty();
            let one = options(shards).open_or_create(&store, "a").await.unwrap();
            let two = options(shards).open(&store, "a").await.unwrap();
            faulty.fail_nth(nth, fault);
            script(&one, &two).await;
            faulty.heal();
            faulty.deliver_late().await;
            let fresh = options(shards).open(&store, "a").await.unwrap();
            for array in [&one, &two, &fresh] {
                assert_eq!(sorted(array).await, ["a", "d", "f", "g", "g"], "{fault:?} at op {nth}, {shards} shards");
                array.compact().await.unwrap();
            }
            if faulty.injected() == 0 {
                assert!(nth > 10, "only {nth} ops");
                break;
            }
        }
    }
}

#[tokio::test]
async fn opening_and_making_survive_a_break_or_say_what_is_known() {
    for fault in FAULTS {
        for nth in 1..=6 {
            let (faulty, store) = faulty();
            faulty.fail_nth(nth, fault);
            let made = options(2).open_or_create(&store, "a").await;
            faulty.heal();
            faulty.deliver_late().await;
            let array = match made {
                Ok(array) => array,
                Err(_) => options(2).open_or_create(&store, "a").await.unwrap(),
            };
            array.change(whole(0), NOTHING).await.unwrap();
            let fresh = options(2).open(&store, "a").await.unwrap();
            assert_eq!(sorted(&fresh).await, whole(0), "{fault:?} at op {nth}");
        }
    }
}

#[tokio::test]
async fn a_push_that_is_tried_again_counts_once_also_beside_a_compaction() {
    let (faulty, store) = faulty();
    let one = Array::open_or_create(&store, "a").await.unwrap();
    let two = Array::open(&store, "a").await.unwrap();
    for round in 0..3 {
        // The request is held back on the network; the handle looks, does not find it, and appends it again.
        faulty.fail_nth(1, Fault::Late(1_000));
        one.push(["x"]).await.unwrap();
        if round > 0 {
            two.compact().await.unwrap();
        }
        faulty.deliver_late().await;
        assert_eq!(two.elements().await.unwrap().len(), round + 1);
    }
}

#[tokio::test]
async fn what_was_given_up_is_unknown_and_never_counts_after_a_later_one() {
    for shards in [1, 3] {
        let (faulty, store) = faulty();
        let array = options(shards).timeout(Duration::from_millis(100)).open_or_create(&store, "a").await.unwrap();
        faulty.fail_always(Fault::Late(u64::MAX / 2));
        let error = array.push(whole(0)).await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        faulty.heal();
        array.push(whole(1)).await.unwrap();
        faulty.deliver_late().await;
        assert_eq!(sorted(&array).await, whole(1));
        // A change over several shards whose first half is in doubt: nothing counts, and that is known.
        faulty.fail_always(Fault::Late(u64::MAX / 2));
        let error = array.change(whole(2), whole(1)).await.unwrap_err();
        faulty.heal();
        faulty.deliver_late().await;
        if shards > 1 {
            assert_eq!(sorted(&array).await, whole(1), "{error}");
        }
        array.compact().await.unwrap();
    }
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_an_error_that_changed_nothing() {
    for shards in [1, 3] {
        let (faulty, store) = faulty();
        let array = options(shards).timeout(Duration::from_secs(1)).open_or_create(&store, "a").await.unwrap();
        faulty.fail_always(Fault::NotSent);
        for error in [array.push(whole(0)).await, array.change(whole(0), NOTHING).await].map(Result::unwrap_err) {
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        }
        assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::Unavailable);
        faulty.heal();
        assert!(array.elements().await.unwrap().is_empty());
    }
}

/// What a task knows of one of its elements: how many there are, or that an outcome was unknown and nothing settled it since.
type Known = HashMap<String, Option<usize>>;

/// 8 tasks over 2 handles, each with elements of its own; a third handle compacts all the time; the connection breaks at random.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_repeated_at_random_breaks() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for one_in in [u64::MAX, 12] {
        let faulty = Faulty::new(Scattered::shared());
        let store = faulty.shared();
        let open = || options(3).timeout(Duration::from_secs(30)).open_or_create(&store, "a");
        let handles = [open().await.unwrap(), open().await.unwrap()];
        let compacting = open().await.unwrap();
        faulty.fail_randomly(seed, one_in, &FAULTS);
        let compactor = tokio::spawn({
            let array = compacting.clone();
            async move {
                loop {
                    _ = array.compact().await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        });
        let tasks: Vec<_> =
            (0..8u64).map(|task| tokio::spawn(churn(handles[task as usize % 2].clone(), task, seed ^ task))).collect();
        let mut known = Known::new();
        for task in tasks {
            known.extend(task.await.unwrap());
        }
        compactor.abort();
        _ = compactor.await;
        faulty.heal();
        faulty.deliver_late().await;
        let elements = options(3).open(&store, "a").await.unwrap().elements().await.unwrap();
        for (element, known) in &known {
            let found = elements.iter().filter(|there| there == &element.as_bytes()).count();
            assert!(known.is_none_or(|known| known == found), "{element}: {found}, not {known:?}; seed {seed}");
        }
        let unknown = known.values().filter(|known| known.is_none()).count();
        assert!(unknown <= known.len() / 5, "{unknown} of {} unknown; seed {seed}", known.len());
        assert!(elements.iter().all(|element| known.contains_key(std::str::from_utf8(element).unwrap())));
    }
}

async fn churn(array: Array, task: u64, seed: u64) -> Known {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut known = Known::new();
    for _ in 0..40 {
        let elements: Vec<String> = (0..rng.usize(1..4)).map(|_| format!("{task}-{}", rng.u32(0..10))).collect();
        let kind = rng.u8(0..3);
        let outcome = match kind {
            0 => array.push(&elements).await,
            1 => array.remove(&elements).await,
            _ => array.change(&elements, &elements).await,
        };
        let is_unknown = match outcome {
            Ok(()) => false,
            Err(error) if error.is_unknown() => true,
            Err(_) => continue,
        };
        for element in &elements {
            let count = elements.iter().filter(|other| *other == element).count();
            let before = known.get(element).copied().unwrap_or(Some(0));
            let after = match kind {
                0 => before.map(|before| before + count),
                1 => Some(0),
                _ => Some(count),
            };
            known.insert(element.clone(), after.filter(|_| !is_unknown));
            if kind == 0 && count > 1 {
                // The same element twice in one push is counted once for both.
                known.insert(element.clone(), before.map(|before| before + count).filter(|_| !is_unknown));
            }
        }
        // Repeats within one push would be added twice by the loop above: settle them from the state before.
        if kind == 0 && has_repeats(&elements) {
            _ = array
                .remove(&elements)
                .await
                .map(|()| elements.iter().for_each(|e| _ = known.insert(e.clone(), Some(0))))
                .map_err(|_| elements.iter().for_each(|e| _ = known.insert(e.clone(), None)));
        }
    }
    known
}

fn has_repeats(elements: &[String]) -> bool {
    elements.iter().enumerate().any(|(at, element)| elements[..at].contains(element))
}

/// The number that a worker's elements are at, if all of them are, and nothing else of it is there.
fn number_of(worker: usize, elements: &[bytes::Bytes]) -> Option<u32> {
    let prefix = format!("{worker}/");
    let of_worker = elements.iter().filter_map(|element| std::str::from_utf8(element).ok()?.strip_prefix(&prefix));
    let parts: Vec<bytes::Bytes> = of_worker.map(|part| part.to_owned().into()).collect();
    generation_of(&parts)
}

/// No connection does that; a router may that repeats what it has not seen answered.
#[tokio::test]
async fn requests_that_are_delivered_twice_count_once_and_nothing_is_told_to_be_lost() {
    const WORKERS: usize = 4;
    const CHANGES: u32 = 30;
    for _ in 0..12 {
        let store: StoreRef = Arc::new(Twice(Scattered::shared()));
        let one = options(3).dirtiness(64).open_or_create(&store, "a").await.unwrap();
        let two = options(3).dirtiness(64).open(&store, "a").await.unwrap();
        let of = |worker: usize, number: u32| {
            whole(number).into_iter().map(move |part| format!("{worker}/{part}")).collect::<Vec<_>>()
        };
        let work = (0..WORKERS).map(|worker| {
            let array = if worker % 2 == 0 { one.clone() } else { two.clone() };
            tokio::spawn(async move {
                array.change(of(worker, 0), NOTHING).await.unwrap();
                for number in 1..CHANGES {
                    array.change(of(worker, number), of(worker, number - 1)).await.unwrap();
                    let elements = sorted(&array).await;
                    assert_eq!(number_of(worker, &elements), Some(number), "worker {worker}");
                }
            })
        });
        for worker in work.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        let elements = sorted(&options(3).open(&store, "a").await.unwrap()).await;
        assert_eq!((0..WORKERS).map(|worker| number_of(worker, &elements)).collect::<Vec<_>>(), [Some(CHANGES - 1); 4]);
    }
}
