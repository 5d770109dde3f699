//! The [`Store`] trait: what a store must do, and nothing more.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::ambient;
use crate::op::Batch;
use crate::profile::Profile;
use crate::reply::Replies;

/// Something that runs batches of ops.
///
/// One method does the work, so that a wrapper (namespace, retry, metrics, timeout) cannot forget one and so be bypassed.
/// There are no default methods; sugar for people is in [`StoreExt`](crate::StoreExt).
///
/// # Contract
/// - One result an op, in the order of the batch. An op that fails leaves the others alone.
/// - Ops on one key take effect in the order of the batch. A batch is no transaction.
/// - An error says what is known of the op's effect ([`Effect`](crate::Effect)): `NotApplied` is a promise.
/// - A store may do its work in the call of [`run`](Store::run), as those in the process do, or when the [`Run`] is polled. So the call alone, its run dropped unseen,
///   may have done nothing or everything: who wants the ops done awaits it, who does not must not call.
/// - Dropping the [`Run`] leaves the store usable; ops that were done stay done, and those that were sent may still take effect, each at most once.
/// - A store never retries a write whose effect is unknown.
/// - **Round trips: 1** on each node that holds a key of the batch, all nodes at once.
///
/// ```
/// use larder_core::{Batch, Ctx, Profile, Reply, Run, Store};
/// use std::sync::Arc;
///
/// /// A store that holds nothing.
/// #[derive(Debug)]
/// struct Empty;
///
/// impl Store for Empty {
///     fn profile(&self) -> Arc<Profile> {
///         Arc::new(Profile::unlimited("empty"))
///     }
///
///     fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
///         Run::Ready(batch.iter().map(|_| Ok(Reply::Miss)).collect())
///     }
/// }
/// ```
pub trait Store: Send + Sync + fmt::Debug {
    /// The limits and guarantees, as the last handshake found them.
    fn profile(&self) -> Arc<Profile>;

    /// Runs the batch: now, if the answer is [`Run::Ready`], else as it is polled.
    ///
    /// ```
    /// use larder_core::{Batch, Ctx, Key, Op, Profile, Reply, Run, Store};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// /// Counts the ops that were done.
    /// #[derive(Debug, Default)]
    /// struct Done {
    ///     ops: AtomicUsize,
    ///     waits: bool,
    /// }
    ///
    /// impl Store for Done {
    ///     fn profile(&self) -> Arc<Profile> {
    ///         Arc::new(Profile::unlimited("done"))
    ///     }
    ///
    ///     fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
    ///         let work = move || {
    ///             self.ops.fetch_add(batch.len(), Ordering::Relaxed);
    ///             batch.iter().map(|_| Ok(Reply::Deleted)).collect()
    ///         };
    ///         if self.waits { Run::pending(async move { work() }) } else { Run::Ready(work()) }
    ///     }
    /// }
    ///
    /// // Nobody awaits it: a store in the process has done it all the same, one that waits for a server has not.
    /// for (waits, done) in [(false, 1), (true, 0)] {
    ///     let store = Done { waits, ..Done::default() };
    ///     drop(store.run(Ctx::default(), Batch::from_iter([Op::delete(Key::new("k")?)])));
    ///     assert_eq!(store.ops.load(Ordering::Relaxed), done);
    /// }
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a>;
}

/// A store that is shared. Handles hold one; there is no type parameter, since generics bought nothing here.
///
/// ```
/// async fn is_there(store: &larder_core::StoreRef, key: larder_core::Key) -> larder_core::Result<bool> {
///     use larder_core::StoreExt;
///     Ok(store.get(key).await?.is_some())
/// }
/// ```
pub type StoreRef = Arc<dyn Store>;

/// What the caller wants of a run, apart from its ops.
///
/// ```
/// assert_eq!(larder_core::Ctx::default().deadline, None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Ctx {
    /// When the caller stops waiting. `None`: the store's own default applies.
    pub deadline: Option<Instant>,
}

impl Ctx {
    /// A context whose deadline is `timeout` from now, or a hundred years where that is further off than clocks go.
    ///
    /// ```
    /// use larder_core::Ctx;
    /// use std::time::Duration;
    /// assert!(Ctx::within(Duration::from_secs(1)).deadline.is_some());
    /// ```
    pub fn within(timeout: Duration) -> Ctx {
        /// As good as for ever.
        const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
        let now = ambient::now();
        Ctx { deadline: now.checked_add(timeout).or_else(|| now.checked_add(CENTURY)) }
    }

    /// The earlier of this context's deadline and `timeout` from now.
    ///
    /// ```
    /// use larder_core::Ctx;
    /// use std::time::Duration;
    /// let outer = Ctx::within(Duration::from_secs(1));
    /// assert_eq!(outer.at_most(Duration::from_secs(60)).deadline, outer.deadline);
    /// ```
    #[must_use]
    pub fn at_most(self, timeout: Duration) -> Ctx {
        let other = ambient::now().checked_add(timeout);
        Ctx { deadline: self.deadline.into_iter().chain(other).min() }
    }
}

/// Replies that are there already, or a future of them. A store in the process never boxes.
///
/// ```
/// use larder_core::{Replies, Reply, Run};
/// let run = Run::Ready(Replies::from_iter([Ok(Reply::Stored)]));
/// assert!(matches!(run, Run::Ready(_)));
/// ```
#[must_use = "a run holds the replies, errors among them, and one that is pending may do nothing unless it is awaited"]
pub enum Run<'a> {
    /// Done: the ops have taken effect, whoever looks at the replies.
    Ready(Replies),
    /// To be awaited: until it is polled nothing may have been sent.
    Pending(Pin<Box<dyn Future<Output = Replies> + Send + 'a>>),
}

impl<'a> Run<'a> {
    /// Boxes a future.
    ///
    /// ```
    /// use larder_core::{Replies, Run};
    /// let run = Run::pending(async { Replies::new() });
    /// assert!(matches!(run, Run::Pending(_)));
    /// ```
    pub fn pending(future: impl Future<Output = Replies> + Send + 'a) -> Run<'a> {
        Run::Pending(Box::pin(future))
    }
}

impl Future for Run<'_> {
    type Output = Replies;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Replies> {
        match self.get_mut() {
            Run::Ready(replies) => Poll::Ready(std::mem::take(replies)),
            Run::Pending(future) => future.as_mut().poll(cx),
        }
    }
}

impl fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Run::Ready(replies) => f.debug_tuple("Ready").field(replies).finish(),
            Run::Pending(_) => f.write_str("Pending"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_no_clock_takes_is_a_hundred_years() {
        let before = ambient::now();
        let far = Ctx::within(Duration::MAX).deadline.expect("a deadline");
        let years = (far - before).as_secs_f64() / (365.0 * 86_400.0);
        assert!((100.0..100.001).contains(&years), "{years}");
    }
}
