//! The lock on a store that loses things: every op of every method killed in every way, and stalls at random.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{Ctx, Effect, ErrorKind, StoreRef};
use larder_structures::lock::{Lock, LockStatus, Loss, Released};
use larder_testkit::faulty::{Fault, Faulty};

use crate::lock::support::*;
use crate::support::hooked::{Hooked, fail};

const FAULTS: [Fault; 6] =
    [Fault::NotSent, Fault::LostRequest, Fault::Cut, Fault::LostReply, Fault::Late(1), Fault::Late(6)];

/// More ops than any method runs.
const NTH_MAX: u64 = 6;

struct World {
    store: StoreRef,
    faulty: Faulty,
    clock: Arc<TokioClock>,
    lock: Lock,
    case: String,
}

impl World {
    async fn new(nth: u64, fault: Fault) -> World {
        let (store, clock) = memory();
        let faulty = Faulty::new(store.clone());
        let lock = options(&clock).open(&faulty.shared(), "n").await.unwrap();
        World { store, faulty, clock, lock, case: format!("op {nth}, {fault:?}") }
    }

    /// A handle of another process, on a network that works.
    async fn other(&self) -> Lock {
        options(&self.clock).open(&self.store, "n").await.unwrap()
    }

    /// Whatever happened, the lock is to be had again within one lease.
    async fn is_to_be_had(&self) {
        self.faulty.heal();
        self.faulty.deliver_late().await;
        let guard = self.other().await.acquire(LEASE + SECOND).await;
        assert!(guard.is_ok_and(|guard| guard.is_held()), "{}", self.case);
    }
}

/// Every op of a method, killed in every way.
fn cases() -> impl Iterator<Item = (u64, Fault)> {
    (1..=NTH_MAX).flat_map(|nth| FAULTS.map(|fault| (nth, fault)))
}

#[tokio::test(start_paused = true)]
async fn a_try_says_truly_whether_it_took_the_lock() {
    for (nth, fault) in cases() {
        for was_taken_before in [false, true] {
            let world = World::new(nth, fault).await;
            if was_taken_before {
                world.other().await.try_acquire().await.unwrap().unwrap().release().await.unwrap();
            }
            world.faulty.fail_nth(nth, fault);
            let got = world.lock.try_acquire().await;
            world.faulty.heal();
            let status = world.other().await.status().await.unwrap();
            match got {
                Ok(guard) => {
                    let guard = guard.expect("nobody else wants it");
                    assert!(
                        matches!(status, LockStatus::Held(holder) if holder.owner == guard.owner()),
                        "{}",
                        world.case
                    );
                    // The guard works on: late writes and new connections do not shake it.
                    world.faulty.deliver_late().await;
                    guard.renew().await.unwrap();
                    tokio::time::sleep(2 * LEASE).await;
                    assert!(world.other().await.try_acquire().await.unwrap().is_none(), "{}", world.case);
                    assert_eq!(guard.release().await.unwrap(), Released::Released, "{}", world.case);
                }
                Err(error) if error.is_unknown() => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", world.case);
                    assert!(!matches!(status, LockStatus::Held(_)), "{}: {error}", world.case);
                }
            }
            world.is_to_be_had().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_rides_out_every_fault() {
    for (nth, fault) in cases() {
        let world = World::new(nth, fault).await;
        world.faulty.fail_nth(nth, fault);
        let guard = world.lock.acquire(LEASE).await.unwrap();
        world.faulty.heal();
        let status = world.other().await.status().await.unwrap();
        assert!(matches!(status, LockStatus::Held(holder) if holder.owner == guard.owner()), "{}", world.case);
        assert_eq!(guard.release().await.unwrap(), Released::Released, "{}", world.case);
        world.is_to_be_had().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_leaves_the_lock_held_and_is_made_up_for() {
    for (nth, fault) in cases() {
        let world = World::new(nth, fault).await;
        let guard = world.lock.try_acquire().await.unwrap().unwrap();
        world.faulty.fail_nth(nth, fault);
        if let Err(error) = guard.renew().await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", world.case);
        }
        assert!(guard.is_held(), "{}", world.case);
        tokio::time::sleep(3 * LEASE).await;
        assert!(guard.is_held(), "{}", world.case);
        assert!(world.other().await.try_acquire().await.unwrap().is_none(), "{}", world.case);
        assert_eq!(guard.release().await.unwrap(), Released::Released, "{}", world.case);
        world.is_to_be_had().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_says_truly_whether_the_lock_is_free() {
    for (nth, fault) in cases() {
        let world = World::new(nth, fault).await;
        let guard = world.lock.try_acquire().await.unwrap().unwrap();
        let token = guard.fencing_token();
        world.faulty.fail_nth(nth, fault);
        let released = guard.release().await;
        let status = world.other().await.status().await.unwrap();
        match released {
            Ok(released) => {
                assert_eq!(released, Released::Released, "{}", world.case);
                assert_eq!(status, LockStatus::Free { token }, "{}", world.case);
            }
            Err(error) if error.is_unknown() => {}
            Err(error) => assert!(matches!(status, LockStatus::Held(_)), "{}: {error}", world.case),
        }
        // What the release left open, the background tries once more.
        tokio::time::sleep(Duration::from_millis(5)).await;
        world.faulty.deliver_late().await;
        assert_eq!(world.other().await.status().await.unwrap(), LockStatus::Free { token }, "{}", world.case);
        world.is_to_be_had().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_that_fails_while_an_earlier_write_of_its_own_is_open_says_unknown() {
    let world = World::new(0, Fault::NotSent).await;
    let outer = Faulty::new(world.faulty.shared());
    let lock = options(&world.clock).open(&outer.shared(), "n").await.unwrap();
    // The first write (ops 1 and 2) is late, the read after it (3) finds nothing, the second write (4) is not sent.
    world.faulty.fail_nth(1, Fault::Late(100));
    outer.fail_nth(4, Fault::NotSent);
    let error = lock.try_acquire().await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    world.faulty.deliver_late().await;
    assert!(matches!(world.other().await.status().await.unwrap(), LockStatus::Held(_)), "it did take effect");
    world.is_to_be_had().await;
}

/// A record that was made counts once it is written over. One that stands without that holds others off: that is no "nothing was done".
#[tokio::test(start_paused = true)]
async fn a_try_that_made_the_record_and_cannot_write_it_over_says_unknown_and_gives_it_back() {
    let world = World::new(0, Fault::NotSent).await;
    // A look (op 1); the record is made (2), and written over (3).
    world.faulty.fail_nth(3, Fault::NotSent);
    let error = world.lock.try_acquire().await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(matches!(world.other().await.status().await.unwrap(), LockStatus::Held(_)), "it stands");
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(matches!(world.other().await.status().await.unwrap(), LockStatus::Free { .. }), "it was given back");
    assert!(world.other().await.try_acquire().await.unwrap().is_some(), "long before the lease is over");
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_reply_is_lost_while_another_takes_the_lock_says_unknown() {
    let world = World::new(0, Fault::LostReply).await;
    let meddler = Meddler::new(&world.faulty.shared(), world.other().await);
    let store: StoreRef = meddler.clone();
    let guard = options(&world.clock).open(&store, "n").await.unwrap().try_acquire().await.unwrap().unwrap();
    world.faulty.fail_nth(1, Fault::LostReply);
    meddler.meddle_before(2);
    let error = guard.release().await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    let next = meddler.took().expect("the release had landed");
    tokio::time::sleep(LEASE).await;
    assert!(next.is_held(), "nobody freed another's lock");
}

/// Who was found is freed once, and not whoever has the lock by the time that this is looked for (simulation, seed 5136 of the lock's job, found it).
#[tokio::test(start_paused = true)]
async fn a_force_whose_reply_is_lost_frees_nobody_who_took_the_lock_since() {
    let world = World::new(0, Fault::LostReply).await;
    let meddler = Meddler::new(&world.faulty.shared(), world.other().await);
    let store: StoreRef = meddler.clone();
    let guard = world.other().await.try_acquire().await.unwrap().unwrap();
    let lock = options(&world.clock).open(&store, "n").await.unwrap();
    // The look (op 1), the write with the read behind it (2 and 3), and the look after that, in the third batch.
    world.faulty.fail_nth(2, Fault::LostReply);
    meddler.meddle_before(3);
    let error = lock.force_release().await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost, "the force had landed");
    let next = meddler.took().expect("the force had landed");
    tokio::time::sleep(LEASE).await;
    assert!(next.is_held(), "nobody asked to free this one");
}

#[tokio::test(start_paused = true)]
async fn a_late_write_of_a_dead_holder_takes_nothing_back() {
    for late in [1, 3, 8] {
        let world = World::new(0, Fault::Late(late)).await;
        let guard = world.lock.try_acquire().await.unwrap().unwrap();
        world.faulty.fail_always(Fault::Late(late));
        tokio::time::sleep(LEASE).await;
        assert_eq!(guard.lost().await, Loss::LeaseOver);
        let next = world.other().await.acquire(2 * LEASE).await.unwrap();
        assert!(next.fencing_token() > guard.fencing_token());
        world.faulty.deliver_late().await;
        drop(guard);
        tokio::time::sleep(LEASE).await;
        world.faulty.deliver_late().await;
        assert!(next.is_held());
        assert_eq!(next.release().await.unwrap(), Released::Released);
    }
}

/// What the lock guards: a number that only the newest holder may write.
#[derive(Default)]
struct Resource {
    token_max: u64,
    accepted: Vec<u64>,
    refused: u64,
}

impl Resource {
    fn write(&mut self, token: u64) {
        if token < self.token_max {
            self.refused += 1;
            return;
        }
        self.token_max = token;
        self.accepted.push(token);
    }
}

/// Six clients work under the lock on a network that loses things, and stand still past their lease now and then. They write
/// without asking whether they still hold it: the worst client there is.
#[tokio::test(start_paused = true)]
async fn with_stalls_past_the_lease_a_resource_that_checks_tokens_accepts_no_stale_write() {
    const RUN: Duration = Duration::from_secs(2_000);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let (store, clock) = memory();
    let spy = Spy::new(&store);
    let resource = Arc::new(Mutex::new(Resource::default()));
    let over = Arc::new(AtomicBool::new(false));
    let lost_in_time = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..6)
        .map(|client| {
            let (clock, resource, over, lost) = (clock.clone(), resource.clone(), over.clone(), lost_in_time.clone());
            let faulty = Faulty::new(spy.clone());
            faulty.fail_randomly(seed ^ client, 30, &FAULTS);
            let mut rng = fastrand::Rng::with_seed(seed + client);
            tokio::spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let options = options(&clock).lease(SECOND);
                    let Ok(lock) = options.open(&faulty.shared(), "n").await else { continue };
                    let Ok(guard) = lock.acquire(20 * SECOND).await else { continue };
                    let work = Duration::from_millis(rng.u64(1..300));
                    if rng.u64(..25) == 0 {
                        // The process stands still, and its renewals with it.
                        faulty.fail_always(Fault::LostRequest);
                        tokio::time::sleep(4 * SECOND + work).await;
                        faulty.fail_randomly(rng.u64(..), 30, &FAULTS);
                        lost.fetch_add(u64::from(!guard.is_held()), Ordering::SeqCst);
                    } else {
                        tokio::time::sleep(work).await;
                    }
                    resource.lock().unwrap().write(guard.fencing_token());
                    _ = guard.release().await;
                }
            })
        })
        .collect();
    tokio::time::sleep(RUN).await;
    over.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let grants = spy.grants();
    assert!(grants.windows(2).all(|pair| pair[0].token < pair[1].token), "tokens grow in the order of the store");
    let rank = |token: u64| grants.iter().position(|grant| grant.token == token).expect("a token that was granted");
    let resource = resource.lock().unwrap();
    let ranks: Vec<usize> = resource.accepted.iter().map(|&token| rank(token)).collect();
    // The oracle is the order in which the store granted the lock, not the tokens.
    let stale = ranks.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert_eq!(stale, 0, "seed {seed}");
    println!("{} grants, {} accepted, {} refused", grants.len(), ranks.len(), resource.refused);
    assert!(ranks.len() > 500, "the clients got work done: {}", ranks.len());
    assert!(resource.refused > 0, "stalls made holders overlap, or this test proves nothing");
    assert!(lost_in_time.load(Ordering::SeqCst) > 0);
}

/// The first renewal arrives while the second is on its way: what is read back is the first, and it began the lease earlier.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_an_earlier_one_came_before_does_not_overstate_the_lease() {
    let (store, clock) = memory();
    let hooked = Hooked::new(&store);
    let lock = options(&clock).open(&hooked.shared(), "n").await.unwrap();
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let sent = Arc::new(Mutex::new(None));
    let first = sent.clone();
    hooked.at(1, |_, batch| async move {
        let replies = fail(&batch, Effect::Unknown);
        *first.lock().unwrap() = Some(batch);
        replies
    });
    hooked.at(2, |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        let late = sent.lock().unwrap().take().unwrap();
        _ = store.run(Ctx::default(), late).await;
        // The answer takes its time.
        tokio::time::sleep(2 * SECOND).await;
        replies
    });
    guard.renew().await.unwrap();
    let other = options(&clock).open(&store, "n").await.unwrap();
    let LockStatus::Held(holder) = other.status().await.unwrap() else { panic!("it is held") };
    let left = LEASE - holder.age.unwrap();
    assert!(guard.lease().remaining() < left, "{:?} of {left:?}", guard.lease().remaining());
}
