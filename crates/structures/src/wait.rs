//! Waiting for a change: told by the store where it can tell, else by looking again after a pause.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use larder_core::{Batch, Cas, Ctx, Key, Op, Reply, Route, StoreRef, ambient};

/// The longest wait without a look where the store tells of changes: what it could miss (a wrong clock, a proxy in between) is found
/// then.
pub(crate) const WATCH_MAX: Duration = Duration::from_secs(2);

/// How many items one wait watches at the most.
pub(crate) const WATCHED_MAX: usize = 16;

/// An item that a wait depends on, as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) key: Key,
    pub(crate) route: Route,
    /// `None`: there was none.
    pub(crate) seen: Option<Cas>,
}

impl Watched {
    pub(crate) fn new(op: &Op, seen: Option<Cas>) -> Watched {
        Watched { key: op.key.clone(), route: op.route.clone(), seen }
    }
}

/// Waits until one of the items has changed, or may have. Where the store cannot tell, for `poll`; where it can, for `most` at the
/// most, and [`WATCH_MAX`]. True if the store told of a change: a wait that a shorter deadline on the way ended did not.
///
/// **Round trips: 1** where the store can tell, else none. Needs a Tokio runtime with its timer.
pub(crate) async fn changed(
    store: &StoreRef,
    items: impl IntoIterator<Item = Watched>,
    poll: Duration,
    most: Duration,
) -> bool {
    if !store.profile().watch {
        tokio::time::sleep(poll.min(most)).await;
        return false;
    }
    let start = ambient::now();
    let watch = |item: Watched| Op::watch(item.key, item.seen).routed(item.route);
    let batch: Batch = items.into_iter().take(WATCHED_MAX).map(watch).collect();
    let (mut is_told, mut is_over) = (false, false);
    if !batch.is_empty() {
        let most = most.min(WATCH_MAX);
        let replies = store.run(Ctx::within(most), batch).await;
        is_over = ambient::now().duration_since(start) >= most;
        is_told = replies.iter().any(|reply| matches!(reply, Ok(Reply::Changed)));
    }
    if !is_told && !is_over {
        // It could not be watched, or the store ended the wait early: no busy loop.
        tokio::time::sleep(poll.min(most).saturating_sub(ambient::now().duration_since(start))).await;
    }
    is_told
}

/// Ends with the first of two, whatever comes of it.
pub(crate) async fn either<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => other.as_mut().poll(cx).map(drop),
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use larder_core::{Profile, Run, Store};

    use super::*;

    /// A store that tells of changes: here each item has changed at once.
    #[derive(Debug, Default)]
    struct Telling {
        asked: AtomicUsize,
    }

    impl Store for Telling {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { watch: true, ..Profile::unlimited("telling") })
        }

        fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Run::Ready(batch.iter().map(|_| Ok(Reply::Changed)).collect())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_store_tells_ends_a_pause_and_where_nothing_is_watched_nothing_is_asked() {
        let telling = Arc::new(Telling::default());
        let store: StoreRef = telling.clone();
        let (pause, begun) = (Duration::from_secs(1), tokio::time::Instant::now());
        let read = Op::get(Key::new("k").unwrap(), larder_core::Want::CAS);
        assert!(changed(&store, [Watched::new(&read, None)], pause, pause).await);
        assert_eq!((begun.elapsed(), telling.asked.load(Ordering::Relaxed)), (Duration::ZERO, 1));
        assert!(!changed(&store, [], pause, pause).await);
        assert!(begun.elapsed() > pause / 2, "it paused");
        assert_eq!(telling.asked.load(Ordering::Relaxed), 1);
    }

    /// A store that says it tells of changes, and ends every wait at once without a word of one.
    #[derive(Debug)]
    struct Hasty;

    impl Store for Hasty {
        fn profile(&self) -> Arc<Profile> {
            Arc::new(Profile { watch: true, ..Profile::unlimited("hasty") })
        }

        fn run<'a>(&'a self, _: Ctx, batch: Batch) -> Run<'a> {
            Run::Ready(batch.iter().map(|_| Ok(Reply::Miss)).collect())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_ends_a_wait_early_is_not_asked_again_before_the_pause() {
        let store: StoreRef = Arc::new(Hasty);
        let (pause, begun) = (Duration::from_secs(1), tokio::time::Instant::now());
        let read = Op::get(Key::new("k").unwrap(), larder_core::Want::CAS);
        assert!(!changed(&store, [Watched::new(&read, None)], pause, 10 * pause).await);
        assert!(begun.elapsed() > pause / 2, "it paused");
    }
}
