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
/// - Dropping the [`Run`] leaves the store usable; ops that were sent may still take effect, each at most once.
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

    /// Runs the batch.
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
    /// A context whose deadline is `timeout` from now.
    ///
    /// ```
    /// use larder_core::Ctx;
    /// use std::time::Duration;
    /// assert!(Ctx::within(Duration::from_secs(1)).deadline.is_some());
    /// ```
    pub fn within(timeout: Duration) -> Ctx {
        Ctx { deadline: ambient::now().checked_add(timeout) }
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
#[must_use = "a run does nothing unless it is awaited"]
pub enum Run<'a> {
    /// Done.
    Ready(Replies),
    /// Under way.
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
