//! Locks through their handle, on every store with conditional writes and lives: exclusion, tokens, dead holders, force, faults, a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{ErrorKind, StoreRef};
use larder_structures::Lock;
use larder_structures::lock::{LockGuard, LockStatus, Released};

use super::structure_cases::FAULTS;
use super::{Bench, cases};
use crate::faulty::{Fault, Faulty};

cases! {
    lock_agrees_with_a_model [Cas, Ttl];
    lock_excludes_eight_tasks_on_two_handles [Cas, Ttl];
    lock_tokens_rise [Cas, Ttl];
    lock_of_a_dead_holder_is_taken_over [Cas, Ttl];
    lock_that_is_forced_open_is_lost_to_its_holder [Cas, Ttl];
    lock_survives_the_nth_op_failing [Cas, Ttl];
}

/// What a lock is to all who look at it.
#[derive(Default)]
struct LockModel {
    /// The last that was granted; 0 before the first.
    token: u64,
    holder: Option<LockGuard>,
    /// Those whose lock was forced open, which they are not told before they renew.
    overthrown: Vec<LockGuard>,
}

impl LockModel {
    fn check(&self, status: &LockStatus, at: &str) {
        let agrees = match (status, &self.holder) {
            (LockStatus::Held(found), Some(guard)) => (found.token, found.owner) == (self.token, guard.owner()),
            (LockStatus::Free { token }, None) => *token == self.token,
            (LockStatus::Absent, None) => self.token == 0,
            _ => false,
        };
        assert!(agrees, "{status:?} where {:?} holds it with token {}, {at}", self.holder, self.token);
    }

    /// Tries, or waits for no time at all, which looks once whatever the store tells.
    async fn take(&mut self, lock: &Lock, tries: bool, at: &str) {
        let found = if tries { lock.try_acquire().await } else { lock.acquire(Duration::ZERO).await.map(Some) };
        let found = match found {
            Err(error) if !tries && error.kind() == ErrorKind::Timeout => None,
            found => found.unwrap_or_else(|error| panic!("{error}, {at}")),
        };
        match (found, &self.holder) {
            (Some(guard), None) => {
                assert!(guard.fencing_token() > self.token, "{at}");
                self.token = guard.fencing_token();
                self.holder = Some(guard);
            }
            (None, Some(_)) => {}
            (found, holder) => panic!("a try gave {found:?} while {holder:?} held it, {at}"),
        }
    }

    /// The holder's, or that of one who was overthrown: that must not free the lock of who came after.
    async fn release(&mut self, of_holder: bool, at: &str) {
        let (guard, expected) = if of_holder {
            (self.holder.take(), Released::Released)
        } else {
            (self.overthrown.pop(), Released::AlreadyLost)
        };
        if let Some(guard) = guard {
            assert_eq!(guard.release().await.expect("a release"), expected, "{at}");
        }
    }

    async fn renew(&self, at: &str) {
        if let Some(guard) = &self.holder {
            guard.renew().await.unwrap_or_else(|error| panic!("{error}, {at}"));
            assert!(guard.is_held() && guard.fencing_token() == self.token, "{at}");
        }
        if let Some(guard) = self.overthrown.last() {
            let error = guard.renew().await.expect_err("it was forced open");
            assert!(error.kind() == ErrorKind::Fenced && !guard.is_held(), "{error}, {at}");
        }
    }
}

async fn lock_agrees_with_a_model(t: Bench) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let name = t.name("a");
    // So long that it never ends here. Where the store does not tell how old a record is, a try at a lock that is held would observe it for a part of that.
    let options = Lock::options().lease(Duration::from_secs(60));
    let tells_age = t.store.profile().remaining_ttl;
    let open = || async { options.clone().open(&t.store, &name).await.expect("a lock") };
    let mut locks = [open().await, open().await, open().await];
    let mut model = LockModel::default();
    for step in 0..60 {
        let at = format!("step {step}, seed {seed}");
        let handle = rng.usize(..locks.len());
        match rng.u8(..10) {
            0 => locks[handle] = open().await,
            1..=4 => {
                let tries = rng.bool() && (tells_age || model.holder.is_none());
                model.take(&locks[handle], tries, &at).await;
            }
            5 => model.renew(&at).await,
            6 => {
                model.check(&locks[handle].force_release().await.expect("forced"), &at);
                model.overthrown.extend(model.holder.take());
            }
            7 => model.release(false, &at).await,
            _ => model.release(true, &at).await,
        }
        model.check(&locks[rng.usize(..locks.len())].status().await.expect("a status"), &at);
    }
    assert!(model.token > 0, "nobody ever took it, seed {seed}");
}

async fn lock_excludes_eight_tasks_on_two_handles(t: Bench) {
    let name = t.name("a");
    let locks =
        [Lock::open(&t.store, &name).await.expect("a lock"), Lock::open(&t.store, &name).await.expect("a lock")];
    let (inside, guarded) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let (lock, inside, guarded) = (locks[n % 2].clone(), inside.clone(), guarded.clone());
            tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock.acquire(Duration::from_secs(60)).await.expect("an acquire");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    let seen = guarded.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    guarded.store(seen + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    assert_eq!(guard.release().await.expect("a release"), Released::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    assert_eq!(guarded.load(Ordering::SeqCst), 40);
}

async fn lock_tokens_rise(t: Bench) {
    let name = t.name("a");
    let mut last = 0;
    for _ in 0..10 {
        let lock = Lock::open(&t.store, &name).await.expect("a lock");
        let guard = lock.try_acquire().await.expect("a try").expect("free");
        assert!(guard.fencing_token() > last);
        last = guard.fencing_token();
        guard.release().await.expect("a release");
    }
    assert_eq!(
        Lock::open(&t.store, &name).await.expect("a lock").status().await.expect("a status"),
        LockStatus::Free { token: last }
    );
}

/// Takes a lock over a store that breaks, so that nothing renews or releases it: a holder that died.
async fn dead_holder(store: &StoreRef, name: &str, lease: Duration) -> u64 {
    let faulty = Faulty::new(store.clone());
    let lock = Lock::options().lease(lease).open(&faulty.shared(), name).await.expect("a lock");
    let guard = lock.try_acquire().await.expect("a try").expect("free");
    faulty.fail_always(Fault::NotSent);
    let token = guard.fencing_token();
    drop(guard);
    token
}

async fn lock_of_a_dead_holder_is_taken_over(t: Bench) {
    let name = t.name("a");
    let lease = Duration::from_secs(1);
    let started = std::time::Instant::now();
    let token = dead_holder(&t.store, &name, lease).await;
    let lock = Lock::options().lease(lease).open(&t.store, &name).await.expect("a lock");
    let guard = lock.acquire(Duration::from_secs(20)).await.expect("the holder is dead");
    assert!(started.elapsed() >= lease / 2, "it was taken from a holder that may live, after {:?}", started.elapsed());
    assert!(guard.fencing_token() > token);
    guard.release().await.expect("a release");
}

async fn lock_that_is_forced_open_is_lost_to_its_holder(t: Bench) {
    let name = t.name("a");
    let lock = Lock::options().lease(Duration::from_secs(3)).open(&t.store, &name).await.expect("a lock");
    let guard = lock.try_acquire().await.expect("a try").expect("free");
    let other = Lock::open(&t.store, &name).await.expect("the lock");
    assert!(matches!(other.force_release().await.expect("forced"), LockStatus::Held(_)));
    tokio::time::timeout(Duration::from_secs(5), guard.lost()).await.expect("the holder is told");
    assert!(!guard.is_held());
    assert_eq!(guard.release().await.expect("a release"), Released::AlreadyLost);
    let next = other.try_acquire().await.expect("a try").expect("free");
    next.release().await.expect("a release");
}

async fn lock_survives_the_nth_op_failing(t: Bench) {
    for fault in FAULTS {
        for nth in 1..=6 {
            let name = t.name(&format!("{fault:?}-{nth}"));
            let faulty = Faulty::new(t.store.clone());
            let lock =
                Lock::options().lease(Duration::from_millis(300)).open(&faulty.shared(), &name).await.expect("a lock");
            faulty.fail_nth(nth, fault);
            let mut tokens = Vec::new();
            for _ in 0..2 {
                if let Ok(guard) = lock.acquire(Duration::from_secs(5)).await {
                    tokens.push(guard.fencing_token());
                    _ = guard.release().await;
                }
            }
            faulty.heal();
            faulty.deliver_late().await;
            let fresh = Lock::options().lease(Duration::from_millis(300)).open(&t.store, &name).await.expect("a lock");
            let guard = fresh
                .acquire(Duration::from_secs(10))
                .await
                .unwrap_or_else(|e| panic!("stuck after {fault:?} at {nth}: {e}"));
            tokens.push(guard.fencing_token());
            assert!(tokens.is_sorted_by(|a, b| a < b), "{fault:?} at {nth}: {tokens:?}");
            guard.release().await.expect("a release");
        }
    }
}
