//! [`Counting`]: what a store was asked, in numbers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Batch, Ctx, ErrorKind, Op, Profile, Replies, Run, Store, StoreRef};

/// Room for every [`ErrorKind`], which a test holds it to.
const KINDS: usize = 16;

/// A store that counts what passes: for budgets in tests, for metrics, for the price of an operation.
///
/// Cheap to clone; clones share the counts. **Round trips: none of its own.**
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Key, StoreExt};
/// use larder_layers::Counting;
/// use larder_store_memory::MemoryStore;
/// use std::sync::Arc;
///
/// let store = Counting::new(Arc::new(MemoryStore::builder().build()?));
/// let before = store.counts();
/// store.get(Key::new("greeting")?).await?;
/// let cost = store.counts().since(&before);
/// assert_eq!((cost.round_trips, cost.ops, cost.sent_bytes), (1, 1, 8));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Counting {
    store: StoreRef,
    totals: Arc<Totals>,
}

#[derive(Default)]
struct Totals {
    round_trips: AtomicU64,
    ops: AtomicU64,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    unknown: AtomicU64,
    errors: [AtomicU64; KINDS],
}

/// The counts at one moment.
///
/// A batch that runs meanwhile may be in some of them and not yet in others; once nothing runs they agree.
///
/// ```
/// use larder_layers::Counts;
/// assert_eq!(Counts::default().errors_total(), 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Batches that were sent. All nodes of a fleet are asked at once, so a batch is one wait.
    pub round_trips: u64,
    /// Ops in them.
    pub ops: u64,
    /// Bytes of keys and values that were sent, without what a protocol adds.
    pub sent_bytes: u64,
    /// Bytes of values that came back, without what a protocol adds.
    pub received_bytes: u64,
    /// Ops that failed with an unknown effect; they are among the errors too.
    pub unknown: u64,
    errors: [u64; KINDS],
}

impl Counting {
    /// Counts what `store` is asked, from zero.
    ///
    /// ```
    /// use larder_layers::{Counting, Counts};
    /// # use larder_store_memory::MemoryStore;
    /// let store = Counting::new(std::sync::Arc::new(MemoryStore::builder().build()?));
    /// assert_eq!(store.counts(), Counts::default());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(store: StoreRef) -> Counting {
        Counting { store, totals: Arc::default() }
    }

    /// The counts so far.
    ///
    /// ```
    /// # use larder_layers::Counting;
    /// # use larder_store_memory::MemoryStore;
    /// # let store = Counting::new(std::sync::Arc::new(MemoryStore::builder().build()?));
    /// assert_eq!(store.counts().ops, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn counts(&self) -> Counts {
        let totals = &*self.totals;
        Counts {
            round_trips: totals.round_trips.load(Ordering::Relaxed),
            ops: totals.ops.load(Ordering::Relaxed),
            sent_bytes: totals.sent_bytes.load(Ordering::Relaxed),
            received_bytes: totals.received_bytes.load(Ordering::Relaxed),
            unknown: totals.unknown.load(Ordering::Relaxed),
            errors: std::array::from_fn(|kind| totals.errors[kind].load(Ordering::Relaxed)),
        }
    }
}

impl Counts {
    /// How many ops failed in this way.
    ///
    /// ```
    /// use larder_core::ErrorKind;
    /// assert_eq!(larder_layers::Counts::default().errors(ErrorKind::Timeout), 0);
    /// ```
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize % KINDS]
    }

    /// How many ops failed, in whatever way.
    ///
    /// ```
    /// assert_eq!(larder_layers::Counts::default().errors_total(), 0);
    /// ```
    pub fn errors_total(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// What was added since `earlier`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # use larder_core::{Key, StoreExt};
    /// # let store = larder_layers::Counting::new(std::sync::Arc::new(larder_store_memory::MemoryStore::new()));
    /// let earlier = store.counts();
    /// store.delete(Key::new("greeting")?).await?;
    /// assert_eq!(store.counts().since(&earlier).ops, 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &Counts) -> Counts {
        Counts {
            round_trips: self.round_trips.saturating_sub(earlier.round_trips),
            ops: self.ops.saturating_sub(earlier.ops),
            sent_bytes: self.sent_bytes.saturating_sub(earlier.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(earlier.received_bytes),
            unknown: self.unknown.saturating_sub(earlier.unknown),
            errors: std::array::from_fn(|kind| self.errors[kind].saturating_sub(earlier.errors[kind])),
        }
    }

    /// The sum of both, for several stores that worked together.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> larder_core::Result<()> {
    /// # use larder_core::{Key, StoreExt};
    /// # let store = larder_layers::Counting::new(std::sync::Arc::new(larder_store_memory::MemoryStore::new()));
    /// store.delete(Key::new("greeting")?).await?;
    /// assert_eq!(store.counts().plus(&store.counts()).ops, 2);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn plus(&self, other: &Counts) -> Counts {
        Counts {
            round_trips: self.round_trips + other.round_trips,
            ops: self.ops + other.ops,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_bytes: self.received_bytes + other.received_bytes,
            unknown: self.unknown + other.unknown,
            errors: std::array::from_fn(|kind| self.errors[kind] + other.errors[kind]),
        }
    }
}

impl Totals {
    fn count_batch(&self, batch: &Batch) {
        self.round_trips.fetch_add(1, Ordering::Relaxed);
        self.ops.fetch_add(batch.len() as u64, Ordering::Relaxed);
        self.sent_bytes.fetch_add(batch.iter().map(sent_bytes).sum(), Ordering::Relaxed);
    }

    fn count_replies(&self, replies: &Replies) {
        let mut received_bytes = 0;
        for reply in replies {
            match reply {
                Ok(reply) => received_bytes += reply.value_bytes() as u64,
                Err(error) => {
                    self.errors[error.kind() as usize % KINDS].fetch_add(1, Ordering::Relaxed);
                    self.unknown.fetch_add(u64::from(error.is_unknown()), Ordering::Relaxed);
                }
            }
        }
        if received_bytes > 0 {
            self.received_bytes.fetch_add(received_bytes, Ordering::Relaxed);
        }
    }
}

fn sent_bytes(op: &Op) -> u64 {
    (op.key.as_bytes().len() + op.value_bytes()) as u64
}

impl Store for Counting {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.totals.count_batch(&batch);
        match self.store.run(ctx, batch) {
            Run::Ready(replies) => {
                self.totals.count_replies(&replies);
                Run::Ready(replies)
            }
            Run::Pending(future) => Run::pending(async move {
                let replies = future.await;
                self.totals.count_replies(&replies);
                replies
            }),
        }
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("store", &self.store).field("counts", &self.counts()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use larder_core::{Effect, Key, PutMode, Reply, Ttl, Want};

    use super::*;
    use crate::fake::{Fake, fault};

    fn batch() -> Batch {
        let key = Key::new("four").unwrap();
        Batch::from_iter([
            Op::put(key.clone(), PutMode::Set, "123456", Ttl::Never),
            Op::get(key.clone(), Want::VALUE),
            Op::delete(key),
        ])
    }

    #[tokio::test(start_paused = true)]
    async fn batches_ops_bytes_and_errors_are_counted_whether_ready_or_pending() {
        for store in [Arc::new(Fake::default()), Fake::slow(Duration::from_secs(1))] {
            let counting = Counting::new(store.clone());
            assert_eq!(counting.profile(), store.profile());
            assert_eq!(counting.run(Ctx::default(), batch()).await.len(), 3);
            let first = counting.counts();
            let expected = Counts { round_trips: 1, ops: 3, sent_bytes: 18, received_bytes: 4, ..Counts::default() };
            assert_eq!(first, expected);

            store.will_answer([
                fault(ErrorKind::Timeout, Effect::Unknown),
                fault(ErrorKind::Overflow, Effect::NotApplied),
                Ok(Reply::Deleted),
            ]);
            _ = counting.clone().run(Ctx::default(), batch()).await;
            let cost = counting.counts().since(&first);
            assert_eq!((cost.round_trips, cost.unknown, cost.errors_total()), (1, 1, 2));
            assert_eq!((cost.errors(ErrorKind::Timeout), cost.errors(ErrorKind::Overflow)), (1, 1));
            assert_eq!(first.plus(&cost), counting.counts());
        }
    }

    #[test]
    fn every_kind_of_error_has_a_place_of_its_own() {
        // The last kind; the compiler numbers them in order.
        assert!((ErrorKind::Overflow as usize) < KINDS);
    }
}
