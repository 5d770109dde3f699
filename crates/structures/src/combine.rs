//! Many callers' changes in one write, safe to cancel.
//!
//! A structure that orders its writes (each conditional on the last, or numbered in sequence) can have one under way at a
//! time. Callers that come meanwhile wait in a queue; whoever gets the driver next takes the whole queue along in one write. So
//! a busy handle needs fewer round trips than it has callers, and an idle one exactly one.
//!
//! Any caller may be dropped at any moment. A change that still waits is withdrawn. A change that is under way stays with the
//! driver, not with the future that was dropped: the next caller first finishes it.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use larder_core::{Effect, Error, ErrorKind, Result};

/// The most changes that may wait in one handle.
pub(crate) const QUEUE_CHANGES_MAX: usize = 65_536;

/// What turns changes into one write.
pub(crate) trait Driver: Send {
    /// A change that a caller asks for.
    type Change: Send;
    /// What every caller of one write gets.
    type Outcome: Clone + Send + Sync;

    /// How heavy a change is; one write takes changes of at most `weight_max` together, but always at least one.
    fn weight(change: &Self::Change) -> usize;

    /// Brings the changes about as one write, exactly once.
    ///
    /// `interrupted`: an earlier call with the same changes was dropped midway. What it sent may have landed; the driver must
    /// know its own write again (by a sequence number) and not do it twice.
    fn apply(
        &mut self,
        changes: &[Self::Change],
        interrupted: bool,
    ) -> impl Future<Output = Result<Self::Outcome>> + Send;
}

/// A driver and the queue before it.
pub(crate) struct Combiner<D: Driver> {
    weight_max: usize,
    /// Protects the order of writes, held across a write: so an async mutex. It is fair, so nobody starves.
    under_way: tokio::sync::Mutex<UnderWay<D>>,
    /// Protects the queue only, never held across an await: so a plain mutex.
    queue: Mutex<VecDeque<Waiting<D>>>,
}

struct UnderWay<D: Driver> {
    driver: D,
    changes: Vec<D::Change>,
    callers: Vec<Arc<Ticket<D>>>,
}

struct Waiting<D: Driver> {
    change: D::Change,
    caller: Arc<Ticket<D>>,
}

/// Where a caller finds its outcome.
type Ticket<D> = OnceLock<Result<<D as Driver>::Outcome>>;

impl<D: Driver> Combiner<D> {
    pub(crate) fn new(driver: D, weight_max: usize) -> Combiner<D> {
        let under_way = UnderWay { driver, changes: Vec::new(), callers: Vec::new() };
        Combiner { weight_max, under_way: tokio::sync::Mutex::new(under_way), queue: Mutex::default() }
    }

    /// Brings a change about, alone or together with others.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] when [`QUEUE_CHANGES_MAX`] changes wait already; else what the driver says of the write.
    #[cfg(test)]
    pub(crate) async fn submit(&self, change: D::Change) -> Result<D::Outcome> {
        let place = self.enqueue(change)?;
        self.wait(&place).await
    }

    /// As `submit`, but waits no longer than `timeout`.
    ///
    /// # Errors
    /// Also [`ErrorKind::Timeout`]: with the effect "not applied" where the change still waited for others and was withdrawn,
    /// unknown where it was under way.
    pub(crate) async fn submit_within(&self, change: D::Change, timeout: Duration) -> Result<D::Outcome> {
        let place = self.enqueue(change)?;
        match tokio::time::timeout(timeout, self.wait(&place)).await {
            Ok(outcome) => outcome,
            Err(_) if place.withdraw() => {
                let detail =
                    format!("the change waited for {timeout:?} behind others of this handle and was withdrawn");
                Err(Error::new(ErrorKind::Timeout, detail))
            }
            // It may have been settled this very moment.
            Err(_) => place.ticket.get().cloned().unwrap_or_else(|| {
                let detail = format!("the change was not settled within {timeout:?}");
                Err(Error::new(ErrorKind::Timeout, detail).effect(Effect::Unknown))
            }),
        }
    }

    async fn wait(&self, place: &Place<'_, D>) -> Result<D::Outcome> {
        let mut under_way = self.under_way.lock().await;
        loop {
            if let Some(outcome) = place.ticket.get() {
                return outcome.clone();
            }
            let interrupted = !under_way.changes.is_empty();
            if !interrupted {
                self.take_queue(&mut under_way);
            }
            let UnderWay { driver, changes, callers } = &mut *under_way;
            let outcome = driver.apply(changes, interrupted).await;
            for caller in callers.drain(..) {
                // A ticket is set once: its change was moved from the queue to exactly one write.
                _ = caller.set(outcome.clone());
            }
            changes.clear();
        }
    }

    /// The driver alone, for reads that must see its state, and for letting go. Waits for the write under way.
    pub(crate) async fn driver(&self) -> tokio::sync::MappedMutexGuard<'_, D> {
        tokio::sync::MutexGuard::map(self.under_way.lock().await, |under_way| &mut under_way.driver)
    }

    fn enqueue(&self, change: D::Change) -> Result<Place<'_, D>> {
        let mut queue = self.lock_queue();
        if queue.len() >= QUEUE_CHANGES_MAX {
            let detail =
                format!("{} changes wait on this handle already; the limit is {QUEUE_CHANGES_MAX}", queue.len());
            return Err(Error::new(ErrorKind::Full, detail));
        }
        let ticket = Arc::new(OnceLock::new());
        queue.push_back(Waiting { change, caller: ticket.clone() });
        Ok(Place { combiner: self, ticket })
    }

    fn take_queue(&self, under_way: &mut UnderWay<D>) {
        let mut queue = self.lock_queue();
        let mut weight = 0;
        while let Some(next) = queue.front() {
            weight += D::weight(&next.change);
            if !under_way.changes.is_empty() && weight > self.weight_max {
                break;
            }
            if let Some(next) = queue.pop_front() {
                under_way.changes.push(next.change);
                under_way.callers.push(next.caller);
            }
        }
    }

    fn lock_queue(&self) -> MutexGuard<'_, VecDeque<Waiting<D>>> {
        // A panic while it was held (an allocation failed) leaves the queue whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller's place in the queue; dropped early, it withdraws the change that still waits.
struct Place<'a, D: Driver> {
    combiner: &'a Combiner<D>,
    ticket: Arc<Ticket<D>>,
}

impl<D: Driver> Place<'_, D> {
    /// Takes the change out of the queue. True if it was still there, and so never takes effect.
    fn withdraw(&self) -> bool {
        let mut queue = self.combiner.lock_queue();
        let at = queue.iter().position(|waiting| Arc::ptr_eq(&waiting.caller, &self.ticket));
        at.is_some_and(|at| queue.remove(at).is_some())
    }
}

impl<D: Driver> Drop for Place<'_, D> {
    fn drop(&mut self) {
        if self.ticket.get().is_none() {
            self.withdraw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds numbers up; a write waits for a permit in the middle, after it landed.
    struct Adder {
        total: u64,
        writes: Vec<usize>,
        landed: bool,
        gate: Arc<tokio::sync::Semaphore>,
    }

    impl Driver for Adder {
        type Change = u64;
        type Outcome = u64;

        fn weight(_: &u64) -> usize {
            1
        }

        async fn apply(&mut self, changes: &[u64], interrupted: bool) -> Result<u64> {
            if !interrupted {
                self.landed = false;
            }
            if !self.landed {
                self.total += changes.iter().sum::<u64>();
                self.writes.push(changes.len());
                self.landed = true;
            }
            if let Ok(permit) = self.gate.acquire().await {
                permit.forget();
            }
            Ok(self.total)
        }
    }

    fn adder(permits: usize, weight_max: usize) -> (Arc<Combiner<Adder>>, Arc<tokio::sync::Semaphore>) {
        let gate = Arc::new(tokio::sync::Semaphore::new(permits));
        let driver = Adder { total: 0, writes: Vec::new(), landed: false, gate: gate.clone() };
        (Arc::new(Combiner::new(driver, weight_max)), gate)
    }

    #[tokio::test]
    async fn waiting_changes_share_a_write_up_to_the_weight() {
        let (combiner, gate) = adder(0, 4);
        let callers: Vec<_> = (0..10)
            .map(|_| {
                tokio::spawn({
                    let combiner = combiner.clone();
                    async move { combiner.submit(1).await }
                })
            })
            .collect();
        tokio::task::yield_now().await;
        gate.add_permits(100);
        for caller in callers {
            assert!(caller.await.unwrap().is_ok());
        }
        let driver = combiner.driver().await;
        assert_eq!(driver.total, 10);
        assert_eq!(driver.writes.iter().sum::<usize>(), 10);
        assert!(driver.writes.iter().all(|&changes| changes <= 4), "{:?}", driver.writes);
        assert!(driver.writes.len() <= 5, "{:?}", driver.writes);
    }

    #[tokio::test]
    async fn a_write_takes_as_many_changes_as_it_may() {
        let (combiner, _gate) = adder(100, 4);
        let places: Vec<_> = (0..9).map(|_| combiner.enqueue(1).unwrap()).collect();
        for place in &places {
            combiner.wait(place).await.unwrap();
        }
        assert_eq!(combiner.driver().await.writes, [4, 4, 1]);
    }

    #[tokio::test]
    async fn a_write_whose_caller_was_dropped_is_finished_by_the_next_and_not_doubled() {
        let (combiner, gate) = adder(0, 100);
        let first = tokio::spawn({
            let combiner = combiner.clone();
            async move { combiner.submit(1).await }
        });
        tokio::task::yield_now().await;
        first.abort();
        assert!(first.await.is_err());
        gate.add_permits(100);
        assert_eq!(combiner.submit(10).await.unwrap(), 11);
        assert_eq!(combiner.driver().await.writes, [1, 1]);
    }

    #[tokio::test]
    async fn a_change_that_waits_is_withdrawn_with_its_caller() {
        let (combiner, gate) = adder(0, 100);
        let first = tokio::spawn({
            let combiner = combiner.clone();
            async move { combiner.submit(1).await }
        });
        tokio::task::yield_now().await;
        let second = tokio::spawn({
            let combiner = combiner.clone();
            async move { combiner.submit(5).await }
        });
        tokio::task::yield_now().await;
        second.abort();
        assert!(second.await.is_err());
        gate.add_permits(100);
        assert_eq!(first.await.unwrap().unwrap(), 1);
        assert_eq!(combiner.submit(10).await.unwrap(), 11);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_tells_a_change_that_was_withdrawn_from_one_that_was_under_way() {
        let (combiner, gate) = adder(0, 100);
        let within = |change, ms| {
            let combiner = combiner.clone();
            async move { combiner.submit_within(change, Duration::from_millis(ms)).await }
        };
        let first = tokio::spawn(within(1, 100));
        tokio::task::yield_now().await;
        let second = within(5, 50).await.unwrap_err();
        assert_eq!((second.kind(), second.known_effect()), (ErrorKind::Timeout, Effect::NotApplied), "{second}");
        let first = first.await.unwrap().unwrap_err();
        assert_eq!((first.kind(), first.known_effect()), (ErrorKind::Timeout, Effect::Unknown), "{first}");
        gate.add_permits(100);
        // The first took effect, the second never does.
        assert_eq!(within(10, 100).await.unwrap(), 11);
    }

    #[tokio::test]
    async fn a_full_queue_is_refused() {
        let (combiner, _gate) = adder(0, 100);
        let mut waiting = Vec::new();
        for _ in 0..QUEUE_CHANGES_MAX {
            waiting.push(combiner.enqueue(1).ok());
        }
        let error = combiner.submit(1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        drop(waiting);
    }
}
