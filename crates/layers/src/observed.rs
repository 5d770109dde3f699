//! [`Observed`]: every batch of a store, told to an observer.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use larder_core::observe::{self, Event, Observer, Op, Outcome};
use larder_core::{Batch, Ctx, Profile, Replies, Run, Store, StoreRef, ambient};
use smallvec::SmallVec;

/// A store whose every batch is told to the process's observer: what it is called, the ops and how each ended, how long it took.
///
/// Where it stands among the layers is what it sees: outside of [`Retry`](crate::Retry) it tells what the caller waited for, inside each
/// attempt. A batch whose caller stopped waiting is told too, as [`Outcome::GivenUp`]. Without an observer it hands batches on: a load
/// and a branch a batch. **Round trips: none of its own.**
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::observe::{Event, Observer};
/// use larder_core::{Key, StoreExt};
/// use larder_layers::Observed;
/// use larder_store_memory::MemoryStore;
/// use std::sync::{Arc, Mutex};
///
/// #[derive(Debug, Default)]
/// struct Ops(Mutex<Vec<String>>);
/// impl Observer for Ops {
///     fn observe(&self, event: &Event<'_>) {
///         if let Event::Batch(batch) = event {
///             let ops = batch.ops.iter().map(|op| format!("{} {} {}", batch.store, op.name, op.outcome.as_str()));
///             self.0.lock().unwrap().extend(ops);
///         }
///     }
/// }
///
/// let ops = Arc::new(Ops::default());
/// let store = Observed::new(Arc::new(MemoryStore::new()), "sessions").to(ops.clone());
/// store.get(Key::new("greeting")?).await?;
/// assert_eq!(*ops.0.lock().unwrap(), ["sessions get miss"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Observed {
    store: StoreRef,
    label: Arc<str>,
    /// Instead of the process's.
    observer: Option<Arc<dyn Observer>>,
}

impl Observed {
    /// Tells the process's observer ([`observe::set`]) what `store` is asked, under the name `label`.
    ///
    /// ```
    /// use larder_layers::Observed;
    /// # use larder_store_memory::MemoryStore;
    /// let store = Observed::new(std::sync::Arc::new(MemoryStore::new()), "sessions");
    /// ```
    pub fn new(store: StoreRef, label: &str) -> Observed {
        Observed { store, label: label.into(), observer: None }
    }

    /// Tells this observer, and not the process's.
    ///
    /// ```
    /// use larder_core::observe::{Event, Observer};
    /// use larder_layers::Observed;
    /// # use larder_store_memory::MemoryStore;
    /// #[derive(Debug)]
    /// struct Silent;
    /// impl Observer for Silent {
    ///     fn observe(&self, _: &Event<'_>) {}
    /// }
    /// let store = std::sync::Arc::new(MemoryStore::new());
    /// let store = Observed::new(store, "sessions").to(std::sync::Arc::new(Silent));
    /// ```
    #[must_use]
    pub fn to(mut self, observer: Arc<dyn Observer>) -> Observed {
        self.observer = Some(observer);
        self
    }

    fn observer(&self) -> Option<&dyn Observer> {
        match &self.observer {
            Some(observer) => Some(&**observer),
            None => observe::current().map(|observer| observer as &dyn Observer),
        }
    }
}

/// A batch under way; told when it is dropped, however that comes.
struct UnderWay<'a> {
    observer: &'a dyn Observer,
    store: &'a str,
    ops: SmallVec<[Op; 4]>,
    start: Instant,
}

impl<'a> UnderWay<'a> {
    fn new(observer: &'a dyn Observer, store: &'a str, batch: &Batch) -> UnderWay<'a> {
        let ops = batch.iter().map(|op| Op { name: op.name(), outcome: Outcome::GivenUp }).collect();
        UnderWay { observer, store, ops, start: ambient::now() }
    }

    fn answered(mut self, replies: &Replies) {
        for (op, reply) in self.ops.iter_mut().zip(replies) {
            op.outcome = Outcome::of(reply);
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let latency = ambient::now().duration_since(self.start);
        let batch = observe::Batch { store: self.store, ops: &self.ops, latency, round_trips: 1 };
        self.observer.observe(&Event::Batch(batch));
    }
}

impl Store for Observed {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let Some(observer) = self.observer() else { return self.store.run(ctx, batch) };
        let under_way = UnderWay::new(observer, &self.label, &batch);
        match self.store.run(ctx, batch) {
            Run::Ready(replies) => {
                under_way.answered(&replies);
                Run::Ready(replies)
            }
            Run::Pending(future) => Run::pending(async move {
                let replies = future.await;
                under_way.answered(&replies);
                replies
            }),
        }
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("store", &self.store).field("label", &self.label).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::{Effect, ErrorKind, Key, PutMode, Reply, Ttl, Want};
    use parking_lot::Mutex;

    use super::*;
    use crate::fake::{Fake, fault};

    /// Store, ops with their outcomes, round trips.
    type Told = (String, Vec<(&'static str, Outcome)>, u32);

    #[derive(Debug, Default)]
    struct Batches(Mutex<Vec<Told>>);

    impl Observer for Batches {
        fn observe(&self, event: &Event<'_>) {
            let Event::Batch(batch) = event else { panic!("{event:?}") };
            let ops = batch.ops.iter().map(|op| (op.name, op.outcome)).collect();
            self.0.lock().push((batch.store.to_owned(), ops, batch.round_trips));
        }
    }

    fn batch() -> Batch {
        let key = Key::new("key").unwrap();
        Batch::from_iter([
            larder_core::Op::put(key.clone(), PutMode::Append, "x", Ttl::Never),
            larder_core::Op::get(key, Want::VALUE),
        ])
    }

    #[tokio::test(start_paused = true)]
    async fn each_batch_is_told_once_whether_ready_pending_failed_or_given_up() {
        for store in [Arc::new(Fake::default()), Fake::slow(Duration::from_secs(1))] {
            let told = Arc::new(Batches::default());
            let observed = Observed::new(store.clone(), "here").to(told.clone());
            assert_eq!(observed.profile(), store.profile());
            let told_ops = || {
                let all = std::mem::take(&mut *told.0.lock());
                assert!(all.iter().all(|(store, _, round_trips)| store == "here" && *round_trips == 1));
                Vec::from_iter(all.into_iter().map(|(_, ops, _)| ops))
            };
            assert_eq!(observed.run(Ctx::default(), batch()).await.len(), 2);
            assert_eq!(told_ops(), [[("append", Outcome::Done), ("get", Outcome::Done)]]);

            let failed = Outcome::Failed { kind: ErrorKind::Timeout, effect: Effect::Unknown };
            store.will_answer([fault(ErrorKind::Timeout, Effect::Unknown), Ok(Reply::Miss)]);
            assert_eq!(observed.run(Ctx::default(), batch()).await.len(), 2);
            assert_eq!(told_ops(), [[("append", failed), ("get", Outcome::Miss)]]);

            let run = observed.run(Ctx::default(), batch());
            if matches!(run, Run::Pending(_)) {
                assert!(tokio::time::timeout(Duration::from_millis(1), run).await.is_err());
                assert_eq!(told_ops(), [[("append", Outcome::GivenUp), ("get", Outcome::GivenUp)]]);
            }
        }
    }

    #[tokio::test]
    async fn the_latency_is_that_of_the_store() {
        #[derive(Debug, Default)]
        struct Latency(Mutex<Duration>);
        impl Observer for Latency {
            fn observe(&self, event: &Event<'_>) {
                if let Event::Batch(batch) = event {
                    *self.0.lock() = batch.latency;
                }
            }
        }
        let told = Arc::new(Latency::default());
        let observed = Observed::new(Fake::slow(Duration::from_millis(30)), "here").to(told.clone());
        _ = observed.run(Ctx::default(), batch()).await;
        assert!((Duration::from_millis(30)..Duration::from_secs(5)).contains(&told.0.lock()), "{told:?}");
    }
}
