//! Who keeps the leases of a handle.
//!
//! Most leases are given back long before their first renewal is due. Until then one task sleeps for all of them: to make one for each and to end it takes longer
//! than all else that a client does for a lock.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::renew::{Leased, keep, until_renewal};

/// Those who keep the leases of one handle, which all last equally long.
pub(crate) struct Keepers<L> {
    watch: Arc<Mutex<Watch<L>>>,
}

/// A lease that is kept until this is dropped, or told to end it.
pub(crate) struct Kept<L> {
    watch: Arc<Mutex<Watch<L>>>,
    number: u64,
}

struct Watch<L> {
    held: Vec<Held<L>>,
    /// How many were ever held.
    count: u64,
    sleeper: Option<Sleeper>,
}

struct Held<L> {
    number: u64,
    leased: Arc<L>,
    runtime: Id,
    /// The task that renews it, once that is due.
    keeper: Option<AbortHandle>,
}

/// The task that sleeps until the first renewal is due.
struct Sleeper {
    task: AbortHandle,
    runtime: Id,
    wakes: Instant,
}

fn locked<L>(watch: &Mutex<Watch<L>>) -> MutexGuard<'_, Watch<L>> {
    // Each change is one push or removal, or one assignment: whole after a panic, too.
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<L: Leased> Keepers<L> {
    /// Keeps a lease by a task of this runtime, which the caller runs on.
    pub(crate) fn keep(&self, leased: Arc<L>, runtime: &Handle) -> Kept<L> {
        let (id, due) = (runtime.id(), Instant::now() + until_renewal(&*leased));
        let mut watch = locked(&self.watch);
        watch.count += 1;
        let number = watch.count;
        let mut held = Held { number, leased, runtime: id, keeper: None };
        let is_alive = |sleeper: &&Sleeper| !sleeper.task.is_finished();
        match watch.sleeper.as_ref().filter(is_alive) {
            Some(sleeper) if sleeper.runtime == id && sleeper.wakes <= due => {}
            // It sleeps in another runtime, or too long: only by a clock that was set.
            Some(_) => held.keeper = Some(spawned(&held.leased, runtime)),
            None => {
                let task = runtime.spawn(sleep(self.watch.clone(), runtime.clone(), due)).abort_handle();
                watch.sleeper = Some(Sleeper { task, runtime: id, wakes: due });
            }
        }
        watch.held.push(held);
        Kept { watch: self.watch.clone(), number }
    }
}

fn spawned<L: Leased>(leased: &Arc<L>, runtime: &Handle) -> AbortHandle {
    runtime.spawn(keep(leased.clone())).abort_handle()
}

/// Sleeps until the first of the leases is due, and on while others are held. Not before: whoever takes the same lock again and again would have one made each time.
async fn sleep<L: Leased>(watch: Arc<Mutex<Watch<L>>>, runtime: Handle, first: Instant) {
    let mut wakes = Some(first);
    while let Some(until) = wakes {
        tokio::time::sleep_until(until).await;
        wakes = locked(&watch).wakes(&runtime);
    }
}

impl<L: Leased> Watch<L> {
    /// Gives those that are due to a task each; when the next one will be, if there is one.
    fn wakes(&mut self, runtime: &Handle) -> Option<Instant> {
        let (id, now) = (runtime.id(), Instant::now());
        let mut wakes = None;
        for held in self.held.iter_mut().filter(|held| held.runtime == id && held.keeper.is_none()) {
            match until_renewal(&*held.leased) {
                Duration::ZERO => held.keeper = Some(spawned(&held.leased, runtime)),
                pause => wakes = Some(wakes.map_or(now + pause, |wakes: Instant| wakes.min(now + pause))),
            }
        }
        match (wakes, &mut self.sleeper) {
            (Some(wakes), Some(sleeper)) => sleeper.wakes = wakes,
            _ => self.sleeper = None,
        }
        wakes
    }
}

impl<L> Kept<L> {
    /// Renews it no more.
    pub(crate) fn end(&self) {
        let mut watch = locked(&self.watch);
        let at = watch.held.iter().position(|held| held.number == self.number);
        let held = at.map(|at| watch.held.swap_remove(at));
        drop(watch);
        // Not with the others locked: what ends with it may end the handle.
        if let Some(keeper) = held.and_then(|held| held.keeper) {
            keeper.abort();
        }
    }
}

impl<L> Drop for Kept<L> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<L> Default for Keepers<L> {
    fn default() -> Keepers<L> {
        Keepers { watch: Arc::new(Mutex::new(Watch { held: Vec::new(), count: 0, sleeper: None })) }
    }
}

impl<L> Drop for Keepers<L> {
    fn drop(&mut self) {
        if let Some(sleeper) = locked(&self.watch).sleeper.take() {
            sleeper.task.abort();
        }
    }
}

impl<L> fmt::Debug for Keepers<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keepers").field("held", &locked(&self.watch).held.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use larder_core::observe::Subject;
    use larder_core::{Ctx, Result};

    use super::*;

    /// A lease of three seconds, taken at a moment, which counts its renewals, and how often it is looked at.
    struct Counted {
        taken: Instant,
        renewed: AtomicU32,
        looks: AtomicU32,
    }

    impl Counted {
        fn taken() -> Arc<Counted> {
            Arc::new(Counted { taken: Instant::now(), renewed: AtomicU32::new(0), looks: AtomicU32::new(0) })
        }

        fn renewed(&self) -> u32 {
            self.renewed.load(Ordering::Relaxed)
        }
    }

    impl Leased for Counted {
        fn lease(&self) -> Duration {
            Duration::from_secs(3)
        }

        fn timeout(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn age(&self) -> Duration {
            self.looks.fetch_add(1, Ordering::Relaxed);
            (Instant::now() - self.taken).saturating_sub(Duration::from_secs(u64::from(self.renewed())))
        }

        fn left(&self) -> Duration {
            self.lease()
        }

        fn subject(&self) -> Subject<'_> {
            Subject { kind: "lock", name: b"counted" }
        }

        async fn renew(&self, _: Ctx) -> Result<()> {
            self.renewed.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    async fn pass(millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    fn tasks() -> usize {
        Handle::current().metrics().num_alive_tasks()
    }

    #[tokio::test(start_paused = true)]
    async fn each_lease_is_renewed_a_third_after_it_was_taken_until_it_is_given_back() {
        let keepers = Keepers::default();
        let mut leases = Vec::new();
        for _ in 0..3 {
            let leased = Counted::taken();
            leases.push((keepers.keep(leased.clone(), &Handle::current()), leased));
            pass(300).await;
        }
        let renewed = |leases: &[(Kept<Counted>, Arc<Counted>)]| -> Vec<u32> {
            leases.iter().map(|(_, leased)| leased.renewed()).collect()
        };
        pass(200).await;
        assert_eq!(renewed(&leases), [1, 0, 0], "at 1.1 s");
        pass(300).await;
        assert_eq!(renewed(&leases), [1, 1, 0], "at 1.4 s");
        assert_eq!(leases[2].1.looks.load(Ordering::Relaxed), 3, "as it was taken, and as the others were due");
        pass(300).await;
        assert_eq!(renewed(&leases), [1, 1, 1], "at 1.7 s");
        leases[1].0.end();
        drop(leases.remove(2));
        pass(10_000).await;
        let now = renewed(&leases);
        assert!((10..=11).contains(&now[0]) && now[1] == 1, "{now:?}");
        drop(leases);
        pass(10_000).await;
        assert_eq!(tasks(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn leases_that_are_given_back_before_they_are_due_take_one_task_and_the_handle_takes_it_along() {
        let keepers = Keepers::default();
        for _ in 0..50 {
            let leased = Counted::taken();
            let kept = keepers.keep(leased.clone(), &Handle::current());
            pass(70).await;
            assert_eq!(tasks(), 1, "one sleeps for all");
            drop(kept);
            assert_eq!((leased.renewed(), Arc::strong_count(&leased)), (0, 1), "nobody has it any more");
        }
        assert_eq!(tasks(), 1);
        drop(keepers);
        pass(1).await;
        assert_eq!(tasks(), 0);
        // One that nobody drops ends by itself, and another begins with the next lease.
        let keepers = Keepers::default();
        drop(keepers.keep(Counted::taken(), &Handle::current()));
        pass(1_001).await;
        assert_eq!(tasks(), 0);
        let leased = Counted::taken();
        let _kept = keepers.keep(leased.clone(), &Handle::current());
        pass(1_001).await;
        assert_eq!(leased.renewed(), 1);
    }

    /// Handles are used from several runtimes: what is taken on one is renewed there.
    #[test]
    fn a_lease_is_renewed_by_the_runtime_that_it_was_taken_on_whoever_sleeps_elsewhere() {
        let paused = || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let keepers = Keepers::default();
        let (one, other, third) = (paused(), paused(), paused());
        let kept = |runtime: &tokio::runtime::Runtime| {
            runtime.block_on(async {
                let leased = Counted::taken();
                (keepers.keep(leased.clone(), &Handle::current()), leased)
            })
        };
        let (first, of_first) = kept(&one);
        let (_second, of_second) = kept(&other);
        other.block_on(pass(1_001));
        assert_eq!((of_first.renewed(), of_second.renewed()), (0, 1));
        drop(one);
        let (_third, of_third) = kept(&third);
        third.block_on(pass(1_001));
        assert_eq!((of_first.renewed(), of_third.renewed()), (0, 1), "that of a runtime that has ended sleeps no more");
        drop(first);
        assert_eq!(Arc::strong_count(&of_first), 1);
    }
}
