//! Sets on a connection that breaks: before and after every op, at random, and with requests that arrive late.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, StoreExt, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::{Set, SetOptions};
use larder_testkit::faulty::{Fault, Faulty};

use crate::support::hooked::Hooked;
use crate::support::probe::{Probe, shard_key, sorted};

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(3)];

fn faulty() -> (Faulty, StoreRef) {
    let faulty = Faulty::new(Arc::new(MemoryStore::new()));
    let store = faulty.shared();
    (faulty, store)
}

fn options() -> SetOptions {
    Set::options().shards(2).dirtiness(64)
}

/// Adds and removes through two handles, with compactions. Every change must be settled; reads may fail.
async fn script(one: &Set, two: &Set) {
    one.add(["a", "b", "c", "d"]).await.unwrap();
    two.remove(["a", "b"]).await.unwrap();
    _ = one.members().await;
    one.add(["a", "e"]).await.unwrap();
    two.add(["f"]).await.unwrap();
    _ = two.compact().await;
    two.remove(["f", "c"]).await.unwrap();
    one.add(["g"]).await.unwrap();
    _ = one.members().await;
    two.remove(["a"]).await.unwrap();
}

#[tokio::test]
async fn a_break_at_any_op_changes_nothing() {
    for fault in FAULTS {
        let mut last_injected = true;
        for nth in 1.. {
            let (faulty, store) = faulty();
            let one = options().open_or_create(&store, "s").await.unwrap();
            let two = options().open(&store, "s").await.unwrap();
            faulty.fail_nth(nth, fault);
            script(&one, &two).await;
            faulty.heal();
            faulty.deliver_late().await;
            let fresh = options().open(&store, "s").await.unwrap();
            for set in [&one, &two, &fresh] {
                assert_eq!(sorted(set).await, ["d", "e", "g"], "{fault:?} at op {nth}");
                set.compact().await.unwrap();
            }
            last_injected = faulty.injected() > 0;
            if !last_injected {
                assert!(nth > 10, "only {nth} ops");
                break;
            }
        }
        assert!(!last_injected);
    }
}

#[tokio::test]
async fn opening_and_making_survive_a_break_or_say_what_is_known() {
    for fault in FAULTS {
        for nth in 1..=6 {
            let (faulty, store) = faulty();
            faulty.fail_nth(nth, fault);
            let made = options().open_or_create(&store, "s").await;
            faulty.heal();
            faulty.deliver_late().await;
            let set = match made {
                Ok(set) => set,
                Err(_) => options().open_or_create(&store, "s").await.unwrap(),
            };
            set.add(["a"]).await.unwrap();
            assert_eq!(sorted(&options().open(&store, "s").await.unwrap()).await, ["a"], "{fault:?} at op {nth}");
        }
    }
}

/// The errata of the article: a retried `+a` after somebody else's `-a` brings the element back. Not here.
#[tokio::test]
async fn a_retried_add_after_anothers_remove_does_not_bring_it_back() {
    let (faulty, store) = faulty();
    let one = Set::open_or_create(&store, "s").await.unwrap();
    let two = Set::open(&store, "s").await.unwrap();
    // The request is held back on the network; the handle looks, does not find it, and appends it again.
    faulty.fail_nth(1, Fault::Late(1_000));
    one.add(["a"]).await.unwrap();
    two.remove(["a"]).await.unwrap();
    faulty.deliver_late().await;
    assert!(two.members().await.unwrap().is_empty());
    // Compacted in between, too.
    faulty.fail_nth(1, Fault::Late(1_000));
    one.add(["a"]).await.unwrap();
    two.remove(["a"]).await.unwrap();
    two.compact().await.unwrap();
    faulty.deliver_late().await;
    assert!(two.members().await.unwrap().is_empty());
    // The reply is lost, and before the handle looks, somebody removes it: the add landed, and is not done again.
    faulty.fail_nth(1, Fault::LostReply);
    let add = one.add(["a"]);
    let mut add = std::pin::pin!(add);
    // One poll sends the append; the handle pauses before it looks.
    assert!(std::future::poll_fn(|cx| std::task::Poll::Ready(add.as_mut().poll(cx))).await.is_pending());
    two.remove(["a"]).await.unwrap();
    two.compact().await.unwrap();
    add.await.unwrap();
    assert!(two.members().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_change_that_was_given_up_is_unknown_and_never_counts_after_a_later_one() {
    let (faulty, store) = faulty();
    let set = Set::options().timeout(Duration::from_millis(100)).open_or_create(&store, "s").await.unwrap();
    faulty.fail_always(Fault::Late(u64::MAX / 2));
    let error = set.add(["late"]).await.unwrap_err();
    assert_eq!(error.known_effect(), Effect::Unknown, "{error}");
    faulty.heal();
    set.add(["next"]).await.unwrap();
    faulty.deliver_late().await;
    assert_eq!(sorted(&set).await, ["next"]);
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_is_an_error_that_changed_nothing() {
    let (faulty, store) = faulty();
    let set = Set::open_or_create(&store, "s").await.unwrap();
    faulty.fail_always(Fault::NotSent);
    let error = set.add(["a"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(set.compact().await.unwrap_err().kind(), ErrorKind::Unavailable);
    faulty.heal();
    assert!(set.members().await.unwrap().is_empty());
}

/// What a task knows of one of its members.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Known {
    There,
    Gone,
    /// An outcome was unknown, and nothing settled it since.
    Either,
}

/// 8 tasks over 2 handles, each with members of its own; a third handle compacts all the time; the connection breaks at random.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_brought_back_at_random_breaks() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for one_in in [u64::MAX, 7] {
        // Others come in between at every op: without that, a compaction that ignores them would go unseen.
        let faulty = Faulty::new(Probe::new().shared());
        let store = faulty.shared();
        let open = || options().timeout(Duration::from_secs(20)).open_or_create(&store, "s");
        let handles = [open().await.unwrap(), open().await.unwrap()];
        let compacting = open().await.unwrap();
        faulty.fail_randomly(seed, one_in, &FAULTS);
        let compactor = tokio::spawn({
            let set = compacting.clone();
            async move {
                loop {
                    _ = set.compact().await;
                    tokio::task::yield_now().await;
                }
            }
        });
        let tasks: Vec<_> =
            (0..8u64).map(|task| tokio::spawn(churn(handles[task as usize % 2].clone(), task, seed ^ task))).collect();
        let mut known = HashMap::new();
        for task in tasks {
            known.extend(task.await.unwrap());
        }
        compactor.abort();
        faulty.heal();
        faulty.deliver_late().await;
        let members = options().open(&store, "s").await.unwrap().members().await.unwrap();
        for (member, known) in &known {
            let is_there = members.iter().any(|there| there == member.as_bytes());
            match known {
                Known::There => assert!(is_there, "{member} was lost; seed {seed}"),
                Known::Gone => assert!(!is_there, "{member} came back; seed {seed}"),
                Known::Either => {}
            }
        }
        assert!(known.values().filter(|&&known| known == Known::Either).count() < known.len() / 10, "{known:?}");
        assert!(members.iter().all(|member| known.contains_key(std::str::from_utf8(member).unwrap())));
    }
}

async fn churn(set: Set, task: u64, seed: u64) -> HashMap<String, Known> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut known = HashMap::new();
    for _ in 0..150 {
        let members: Vec<String> = (0..rng.usize(1..4)).map(|_| format!("{task}-{}", rng.u32(0..10))).collect();
        let is_add = rng.bool();
        let outcome = if is_add { set.add(&members).await } else { set.remove(&members).await };
        let now = match outcome {
            Ok(()) if is_add => Known::There,
            Ok(()) => Known::Gone,
            Err(error) if error.is_unknown() => Known::Either,
            Err(_) => continue,
        };
        known.extend(members.into_iter().map(|member| (member, now)));
    }
    known
}

/// Others may have read it, and gone by it, before the shard went.
#[tokio::test]
async fn a_change_that_landed_unheard_in_a_shard_that_went_is_unknown() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    let set = Set::open_or_create(&hooked.shared(), "s").await.unwrap();
    let (reader, key) = (Set::open(&store, "s").await.unwrap(), shard_key(&store, "s", 0).await);
    hooked.lose_replies(1);
    hooked.at(2, |store, batch| async move {
        assert!(reader.has("x").await.unwrap());
        assert!(store.delete(key).await.unwrap());
        store.run(Ctx::default(), batch).await
    });
    let error = set.add(["x"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::Unknown), "{error}");
    // Of what came behind the loss it is known that it never counts.
    let error = set.add(["y"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
}
