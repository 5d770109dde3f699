//! [`Timeout`]: a limit on how long a batch may take.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, Error, ErrorKind, Profile, Replies, Run, Store, StoreRef, ambient};

use crate::runtime;

/// How long after the deadline a store is taken to hang. A store that keeps its deadlines answers before that, and its own
/// answer is worth more: it knows what was sent.
pub(crate) const HANG_MARGIN: Duration = Duration::from_millis(100);

/// A store that gives up on a batch after a time.
///
/// It caps the deadline that the caller set, and it also ends the wait itself, 100 ms later, should the store hang. Then reads
/// fail with [`ErrorKind::Timeout`], and writes do so with [`Effect::Unknown`]. **Round trips: none of its own.**
///
/// Ending the wait needs a Tokio runtime with its timer (`enable_time`). Outside of one the deadline alone is capped; in one without its timer Tokio panics.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Key, StoreExt};
/// use larder_layers::Timeout;
/// use larder_store_memory::MemoryStore;
/// use std::{sync::Arc, time::Duration};
///
/// let store = Timeout::new(Arc::new(MemoryStore::builder().build()?), Duration::from_millis(250));
/// assert_eq!(store.get(Key::new("greeting")?).await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Timeout {
    store: StoreRef,
    limit: Duration,
}

impl Timeout {
    /// Gives every batch at most `limit`, and less where its caller gives it less.
    ///
    /// ```
    /// use larder_layers::Timeout;
    /// # use larder_store_memory::MemoryStore;
    /// # let store = std::sync::Arc::new(MemoryStore::builder().build()?);
    /// let store = Timeout::new(store, std::time::Duration::from_secs(1));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(store: StoreRef, limit: Duration) -> Timeout {
        Timeout { store, limit }
    }
}

impl Store for Timeout {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let start = ambient::now();
        let ctx = ctx.at_most(self.limit);
        // What to say of each op, should the store hang: op names cost nothing to keep, whole ops would.
        let ops: Vec<(bool, &'static str)> = batch.iter().map(|op| (op.is_read(), op.name())).collect();
        let future = match self.store.run(ctx, batch) {
            Run::Ready(replies) => return Run::Ready(replies),
            Run::Pending(future) => future,
        };
        let Some(deadline) = ctx.deadline else { return Run::Pending(future) };
        Run::pending(async move {
            // Asked here, as the timer is: who runs a batch need not be where it is awaited.
            if !runtime::is_here() {
                return future.await;
            }
            let left = deadline.saturating_duration_since(ambient::now()) + HANG_MARGIN;
            match tokio::time::timeout(left, future).await {
                Ok(replies) => replies,
                Err(_) => gave_up(&ops, deadline.saturating_duration_since(start), &self.store),
            }
        })
    }
}

fn gave_up(ops: &[(bool, &'static str)], limit: Duration, store: &StoreRef) -> Replies {
    let answer = |&(is_read, op): &(bool, &'static str)| {
        let detail = format!("the store hangs: it did not answer a {op} within {limit:?}, nor {HANG_MARGIN:?} after");
        let effect = if is_read { Effect::NotApplied } else { Effect::Unknown };
        Err(Error::new(ErrorKind::Timeout, detail).effect(effect).store(store.profile().store.clone()))
    };
    ops.iter().map(answer).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use larder_core::{Key, Op, PutMode, Ttl, Want};

    use super::*;
    use crate::fake::{Fake, outside_a_runtime};

    const HOUR: Duration = Duration::from_secs(3600);

    fn batch() -> Batch {
        let key = Key::new("key").unwrap();
        Batch::from_iter([
            Op::get(key.clone(), Want::VALUE),
            Op::put(key.clone(), PutMode::Append, "x", Ttl::Never),
            Op::delete(key),
        ])
    }

    #[tokio::test]
    async fn the_deadline_is_capped_and_a_shorter_one_kept() {
        let fake = Arc::new(Fake::default());
        let store = Timeout::new(fake.clone(), Duration::from_secs(1));
        assert_eq!(store.profile(), fake.profile());
        let before = Instant::now();
        _ = store.run(Ctx::default(), batch()).await;
        _ = store.run(Ctx::within(HOUR), batch()).await;
        let shorter = Ctx::within(Duration::from_millis(1));
        _ = store.run(shorter, batch()).await;
        let after = Instant::now();
        let deadlines: Vec<Instant> = fake.take_asked().iter().map(|(ctx, _)| ctx.deadline.unwrap()).collect();
        for deadline in &deadlines[..2] {
            let range = before + Duration::from_secs(1)..=after + Duration::from_secs(1);
            assert!(range.contains(deadline));
        }
        assert_eq!(deadlines[2], shorter.deadline.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_hangs_is_left_with_writes_unknown() {
        let store = Timeout::new(Fake::slow(HOUR), Duration::from_secs(1));
        let start = tokio::time::Instant::now();
        let replies = store.run(Ctx::default(), batch()).await;
        assert!(start.elapsed() < Duration::from_secs(2));
        let unknown: Vec<bool> = replies.iter().map(|reply| reply.as_ref().unwrap_err().is_unknown()).collect();
        assert_eq!(unknown, [false, true, true]);
        for reply in &replies {
            assert_eq!(reply.as_ref().unwrap_err().kind(), ErrorKind::Timeout);
        }
    }

    /// Answers as the fake does, in a future.
    #[derive(Debug)]
    struct Later(Fake);

    impl Store for Later {
        fn profile(&self) -> Arc<Profile> {
            self.0.profile()
        }

        fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
            Run::pending(self.0.run(ctx, batch))
        }
    }

    #[test]
    fn outside_a_runtime_the_deadline_alone_is_capped() {
        let later = Arc::new(Later(Fake::default()));
        let store = Timeout::new(later.clone(), HOUR);
        let outside = store.run(Ctx::default(), batch());
        let within = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let entered = within.enter();
        let run_within = store.run(Ctx::default(), batch());
        drop(entered);
        for run in [outside, run_within] {
            assert!(outside_a_runtime(run).iter().all(Result::is_ok));
        }
        assert!(later.0.take_asked().iter().all(|(ctx, _)| ctx.deadline.is_some()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_answers_a_little_late_has_the_last_word() {
        let store = Timeout::new(Fake::slow(Duration::from_millis(1050)), Duration::from_secs(1));
        let replies = store.run(Ctx::default(), batch()).await;
        assert!(replies.iter().all(Result::is_ok), "{replies:?}");
    }
}
