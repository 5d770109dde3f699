//! Queues and stacks on a connection that breaks: before and after every op, at random, and with requests that arrive late.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Effect, ErrorKind, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::QueueOptions;
use larder_testkit::faulty::{Fault, Faulty};

use crate::queue::support::{BOTH, Kind, LEASE, Line, SCRIPTED, key, script, small, text};

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

fn faulty() -> (Faulty, StoreRef) {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let store = faulty.shared();
    (faulty, store)
}

#[tokio::test]
async fn a_break_at_any_op_loses_and_repeats_nothing() {
    for kind in BOTH {
        for fault in FAULTS {
            let mut last_injected = true;
            for nth in 1.. {
                let (faulty, store) = faulty();
                let (one, two) = (Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await);
                faulty.fail_nth(nth, fault);
                let mut all = script(&one, &two).await;
                faulty.heal();
                faulty.deliver_late().await;
                all.extend(one.drain().await);
                let mut times: BTreeMap<String, u32> = BTreeMap::new();
                for item in all {
                    *times.entry(item).or_default() += 1;
                }
                assert_eq!(times.len(), SCRIPTED, "{kind:?}, {fault:?} at op {nth}: {times:?}");
                times.retain(|_, times| *times > 1);
                // A request that is held back until its segment was closed and removed is the one way to a second delivery.
                assert!(times.is_empty(), "{kind:?}, {fault:?} at op {nth}: {times:?}");
                let stat = two.stat().await;
                assert_eq!((stat.segments_lost, stat.items_lost), (0, 0), "{kind:?}, {fault:?} at op {nth}");
                last_injected = faulty.injected() > 0;
                if !last_injected {
                    assert!(nth > 60, "only {nth} ops");
                    break;
                }
            }
            assert!(!last_injected);
        }
    }
}

#[tokio::test]
async fn opening_and_making_survive_a_break_or_say_what_is_known() {
    for kind in BOTH {
        for fault in FAULTS {
            for nth in 1..=6 {
                let (faulty, store) = faulty();
                faulty.fail_nth(nth, fault);
                let made = Line::try_open(kind, &store, &small()).await;
                faulty.heal();
                faulty.deliver_late().await;
                let line = match made {
                    Ok(line) => line,
                    Err(_) => Line::open(kind, &store, &small()).await,
                };
                line.push("a").await.unwrap();
                assert_eq!(line.drain().await, ["a"], "{kind:?}, {fault:?} at op {nth}");
            }
        }
    }
}

#[tokio::test]
async fn a_push_that_is_given_up_is_unknown_and_is_there_once_at_the_most() {
    for kind in BOTH {
        let (faulty, store) = faulty();
        let options = QueueOptions::default().timeout(Duration::from_millis(200));
        let line = Line::open(kind, &store, &options).await;
        faulty.fail_always(Fault::LostReply);
        let error = line.push("a").await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
        faulty.fail_always(Fault::NotSent);
        let error = line.push("b").await.unwrap_err();
        assert_eq!(error.known_effect(), Effect::NotApplied, "{error}");
        faulty.heal();
        line.push("c").await.unwrap();
        let mut items = line.drain().await;
        items.sort();
        assert_eq!(items, ["a", "c"]);
    }
}

#[tokio::test]
async fn a_pop_or_claim_that_is_given_up_says_so_and_a_claim_comes_back() {
    for kind in BOTH {
        let (faulty, store) = faulty();
        let options = QueueOptions::default().timeout(Duration::from_millis(200));
        let line = Line::open(kind, &store, &options).await;
        line.push("a").await.unwrap();
        let claim = line.claim(Duration::from_millis(500)).await.unwrap().unwrap();
        claim.release().await.unwrap();
        faulty.fail_always(Fault::LostReply);
        let error = line.claim(Duration::from_millis(500)).await.unwrap_err();
        faulty.heal();
        // Whether it landed or not, the item is not lost.
        let again = loop {
            if let Some(claim) = line.claim(LEASE).await.unwrap() {
                break claim;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(text(again.item()), "a", "{kind:?} after {error}");
        again.ack().await.unwrap();
    }
}

/// Who finds a loss notes it, and may never hear that: it gives up first, or the reply does not come. The next one is told then.
#[tokio::test]
async fn a_loss_whose_finder_gives_up_is_told_to_the_next() {
    for kind in BOTH {
        for fault in [Fault::NotSent, Fault::LostRequest, Fault::LostReply] {
            let mut untold = 0;
            for nth in 1..=24 {
                let store: StoreRef = Arc::new(MemoryStore::new());
                let faulty = Faulty::new(store.clone());
                let patient = Line::open(kind, &store, &small()).await;
                while patient.stat().await.segments < 2 {
                    patient.push("gone").await.unwrap();
                }
                let hasty = small().timeout(Duration::from_millis(40));
                let finder = Line::open(kind, &faulty.shared(), &hasty).await;
                store.delete(key(kind, &store, Some(0)).await).await.unwrap();
                faulty.fail_from(nth, fault);
                let found = finder.pop().await;
                let heard = u32::from(found.is_err_and(|error| error.kind() == ErrorKind::Lost));
                untold += u32::from(heard == 0 && patient.stat().await.segments_lost == 1);
                let times = heard + told(&patient).await;
                assert!((1..=2).contains(&times), "{kind:?}, {fault:?} from op {nth}: told {times} times");
                assert_eq!(patient.len().await.unwrap(), 0, "{kind:?}, {fault:?} from op {nth}");
            }
            // Only where the reply is lost is it noted, and not heard of.
            assert_eq!(untold > 0, fault == Fault::LostReply, "{kind:?}, {fault:?}: {untold} times");
        }
    }
}

/// Takes all there is; how often a loss was told.
async fn told(line: &Line) -> u32 {
    let mut told = 0;
    loop {
        match line.pop().await {
            Ok(Some(_)) => {}
            Ok(None) => return told,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
                told += 1;
            }
        }
    }
}

/// Breaks at random, 8 tasks on 2 handles; each error must say what is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_random_nothing_acknowledged_is_lost_and_nothing_done_is_repeated() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for kind in BOTH {
        let (faulty, store) = faulty();
        let handles = [Line::open(kind, &store, &small()).await, Line::open(kind, &store, &small()).await];
        faulty.fail_randomly(seed, 40, &FAULTS);
        let tasks: Vec<_> =
            (0..8u64).map(|task| tokio::spawn(work(handles[task as usize % 2].clone(), task))).collect();
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.unwrap());
        }
        faulty.heal();
        faulty.deliver_late().await;
        judge(kind, seed, all, &handles[0]).await;
    }
}

/// What a task knows: what it pushed for certain, what it was given and acknowledged, and what may be gone.
#[derive(Default)]
struct Known {
    pushed: Vec<String>,
    done: Vec<String>,
    in_doubt: Vec<String>,
}

async fn work(line: Line, task: u64) -> Known {
    let mut known = Known::default();
    for n in 0..60 {
        let item = format!("{task} {n:03}");
        match line.push(&item).await {
            Ok(()) => known.pushed.push(item),
            Err(error) => assert!(error.is_unknown() || error.known_effect() == Effect::NotApplied),
        }
        // A short lease: what a lost reply leaves open comes back.
        if let Ok(Some(claim)) = line.claim(Duration::from_secs(5)).await {
            match claim.ack().await {
                Ok(()) => known.done.push(text(claim.item())),
                Err(_) => known.in_doubt.push(text(claim.item())),
            }
        }
    }
    known
}

async fn judge(kind: Kind, seed: u64, all: Vec<Known>, line: &Line) {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    for item in all.iter().flat_map(|known| &known.done) {
        *times.entry(item.clone()).or_default() += 1;
    }
    let in_doubt: Vec<&String> = all.iter().flat_map(|known| &known.in_doubt).collect();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while line.len().await.unwrap() > 0 && std::time::Instant::now() < until {
        match line.pop().await.unwrap() {
            Some(item) => *times.entry(text(&item)).or_default() += 1,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    for item in all.iter().flat_map(|known| &known.pushed) {
        let is_known = times.contains_key(item) || in_doubt.contains(&item);
        assert!(is_known, "{item} is lost; {kind:?}, seed {seed}");
    }
    let repeated = times.values().filter(|&&times| times > 1).count();
    // Only what was delivered late to a segment that was left meanwhile, or whose lease ran out, may come twice.
    assert!(repeated <= times.len() / 20, "{repeated} of {} repeated; {kind:?}, seed {seed}", times.len());
    let stat = line.stat().await;
    assert_eq!((stat.segments_lost, stat.items_lost, stat.segments_missing), (0, 0, 0), "{kind:?}, seed {seed}");
}
