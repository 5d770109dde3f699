//! [`Retry`]: trying again what is known not to have taken effect.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_core::observe::{self, Event, Subject};
use larder_core::{
    Batch, Ctx, Error, ErrorKind, Key, Profile, Replies, Reply, Result, Route, Run, Store, StoreRef, ambient,
};

use crate::runtime;

/// How often a batch is sent at the most, unless told otherwise.
const ATTEMPTS_MAX: u32 = 4;
/// The bound of the first pause; it doubles from one to the next.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The bound of every pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A store that tries again what failed for want of the server, where that can do no harm.
///
/// An op is sent again if its error is [`Unavailable`](ErrorKind::Unavailable) or [`Timeout`](ErrorKind::Timeout) and the op did
/// not take effect, or only reads. **A write whose effect is unknown is never sent again**, nor is any op if that would
/// change the order of ops on one key: behind an unknown write, or before an op that already ran. Pauses grow with full
/// jitter (source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015) and never reach past the deadline.
///
/// Pauses need a Tokio runtime with its timer (`enable_time`). Outside of one nothing is sent again: errors are handed on as they are. In one without its timer Tokio panics.
///
/// **Round trips: none of its own** while all goes well; else up to 4 times the store's
/// ([`attempts_max`](Retry::attempts_max)).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// use larder_core::{Key, StoreExt};
/// use larder_layers::Retry;
/// use larder_store_memory::MemoryStore;
/// use std::sync::Arc;
///
/// let store = Retry::new(Arc::new(MemoryStore::builder().build()?));
/// assert_eq!(store.get(Key::new("greeting")?).await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Retry {
    store: StoreRef,
    attempts_max: u32,
    pause_first: Duration,
    pause_max: Duration,
}

impl Retry {
    /// Up to 4 attempts, with pauses of up to 10 ms, 20 ms and 40 ms between them.
    ///
    /// ```
    /// use larder_layers::Retry;
    /// # use larder_store_memory::MemoryStore;
    /// # let store = std::sync::Arc::new(MemoryStore::builder().build()?);
    /// let store = Retry::new(store);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn new(store: StoreRef) -> Retry {
        Retry { store, attempts_max: ATTEMPTS_MAX, pause_first: PAUSE_FIRST, pause_max: PAUSE_MAX }
    }

    /// How often a batch is sent at the most, the first time included; 0 counts as 1.
    ///
    /// ```
    /// # use larder_layers::Retry;
    /// # use larder_store_memory::MemoryStore;
    /// # let store = std::sync::Arc::new(MemoryStore::builder().build()?);
    /// let store = Retry::new(store).attempts_max(2);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Retry {
        self.attempts_max = attempts;
        self
    }

    /// The bound of the first pause, and that of every pause.
    ///
    /// ```
    /// # use larder_layers::Retry;
    /// # use larder_store_memory::MemoryStore;
    /// # use std::time::Duration;
    /// # let store = std::sync::Arc::new(MemoryStore::builder().build()?);
    /// let store = Retry::new(store).pauses(Duration::from_millis(1), Duration::from_millis(50));
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    #[must_use]
    pub fn pauses(mut self, first: Duration, max: Duration) -> Retry {
        self.pause_first = first;
        self.pause_max = max;
        self
    }

    /// Tells the process's observer that ops are sent again: once, with what the first of them met.
    fn tell(&self, replies: &Replies, places: &[usize]) {
        let Some(observer) = observe::current() else { return };
        if let Some(Err(error)) = places.first().map(|&at| &replies[at]) {
            let profile = self.store.profile();
            let subject = Subject { kind: "store", name: profile.store.as_bytes() };
            observer.observe(&Event::Retry { subject, cause: error.kind() });
        }
    }

    async fn try_again(&self, ctx: Ctx, batch: Batch, mut replies: Replies, mut places: Vec<usize>) -> Replies {
        let mut pauses = Pauses::new(self.pause_first, self.pause_max);
        for _ in 1..self.attempts_max {
            let pause = pauses.next_pause();
            let ends = |deadline: Instant| deadline.saturating_duration_since(ambient::now()) <= pause;
            if ctx.deadline.is_some_and(ends) || !runtime::is_here() {
                break;
            }
            tokio::time::sleep(pause).await;
            self.tell(&replies, &places);
            let again: Batch = places.iter().map(|&at| batch[at].clone()).collect();
            let answers = self.store.run(ctx, again.clone()).await;
            let next = harmless(&again, &answers, is_passing).into_iter().map(|at| places[at]).collect();
            for (&at, answer) in places.iter().zip(answers) {
                replies[at] = answer;
            }
            places = next;
            if places.is_empty() {
                break;
            }
        }
        replies
    }
}

impl Store for Retry {
    fn profile(&self) -> Arc<Profile> {
        self.store.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let judge = move |batch: Batch, replies: Replies| {
            let places = harmless(&batch, &replies, is_passing);
            if places.is_empty() { Err(replies) } else { Ok(self.try_again(ctx, batch, replies, places)) }
        };
        match self.store.run(ctx, batch.clone()) {
            Run::Ready(replies) => match judge(batch, replies) {
                Ok(future) => Run::pending(future),
                Err(replies) => Run::Ready(replies),
            },
            Run::Pending(future) => Run::pending(async move {
                match judge(batch, future.await) {
                    Ok(future) => future.await,
                    Err(replies) => replies,
                }
            }),
        }
    }
}

/// Pauses that grow, with full jitter: each is drawn evenly between zero and a bound that doubles.
#[derive(Debug)]
pub(crate) struct Pauses {
    bound: Duration,
    max: Duration,
}

impl Pauses {
    pub(crate) fn new(first: Duration, max: Duration) -> Pauses {
        Pauses { bound: first.min(max), max }
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let pause = self.bound.mul_f64(fastrand::f64());
        self.bound = self.bound.saturating_mul(2).min(self.max);
        pause
    }
}

/// The places of the ops that may be sent again without harm, of those that failed in a way that passes.
pub(crate) fn harmless(batch: &Batch, replies: &Replies, passes: fn(&Error) -> bool) -> Vec<usize> {
    let failed = |reply: &Result<Reply>| reply.as_ref().is_err_and(passes);
    if batch.len() != replies.len() || !replies.iter().any(failed) {
        return Vec::new();
    }
    let mut by_key: HashMap<(&Key, Option<&Key>, u8), Vec<usize>> = HashMap::new();
    for (at, op) in batch.iter().enumerate() {
        let Route { with, rank } = &op.route;
        by_key.entry((&op.key, with.as_ref(), *rank)).or_default().push(at);
    }
    let mut places: Vec<usize> =
        by_key.into_values().flat_map(|ops| harmless_of_key(&ops, batch, replies, passes)).collect();
    places.sort_unstable();
    places
}

/// Of the ops on one key, those that can be sent again in order: the last ones, from some op on, all of which failed.
fn harmless_of_key(ops: &[usize], batch: &Batch, replies: &Replies, passes: fn(&Error) -> bool) -> Vec<usize> {
    let may_land_yet = |&at: &usize| !batch[at].is_read() && replies[at].as_ref().is_err_and(Error::is_unknown);
    if ops.iter().any(may_land_yet) {
        return Vec::new();
    }
    // What failed and is no such write did nothing: it was not applied, or it only reads.
    let may_repeat = |at: &&usize| replies[**at].as_ref().is_err_and(passes);
    let mut places: Vec<usize> = ops.iter().rev().take_while(may_repeat).copied().collect();
    places.reverse();
    places
}

fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
}

#[cfg(test)]
mod tests {
    use larder_core::{Effect, Op, PutMode, Ttl};

    use super::*;
    use crate::fake::{Fake, down, fault, get, key, outside_a_runtime};

    fn put(name: &'static str) -> Op {
        Op::put(key(name), PutMode::Append, "x", Ttl::Never)
    }

    fn unknown() -> Result<Reply> {
        fault(ErrorKind::Timeout, Effect::Unknown)
    }

    /// The names of the ops that were sent again after one batch was answered so.
    async fn sent_again(ops: impl IntoIterator<Item = Op>, answers: Vec<Result<Reply>>) -> Vec<String> {
        let fake = Arc::new(Fake::default());
        fake.will_answer(answers);
        let replies = Retry::new(fake.clone()).run(Ctx::default(), ops.into_iter().collect()).await;
        let asked = fake.take_asked();
        assert!(asked.len() <= 2);
        assert_eq!(replies.len(), asked[0].1.len());
        let again = asked.get(1).map(|(_, batch)| batch.as_slice()).unwrap_or_default();
        again.iter().map(|op| format!("{} {}", op.name(), op.key)).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn reads_and_writes_that_did_not_happen_are_sent_again() {
        let again = sent_again([get("a"), put("b"), put("c")], vec![unknown(), down(), Ok(Reply::Stored)]).await;
        assert_eq!(again, ["get \"a\"", "append \"b\""]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_may_have_happened_is_never_sent_again() {
        assert!(sent_again([put("a")], vec![unknown()]).await.is_empty());
        let other = fault(ErrorKind::Full, Effect::NotApplied);
        assert!(sent_again([put("a")], vec![other]).await.is_empty(), "what would fail again is not sent again");
    }

    #[tokio::test(start_paused = true)]
    async fn the_order_of_ops_on_one_key_is_kept() {
        let late = sent_again([put("a"), get("a"), get("b")], vec![down(), Ok(Reply::Miss), down()]).await;
        assert_eq!(late, ["get \"b\""], "the put would land after a get that was sent behind it");
        let behind = sent_again([put("a"), get("a")], vec![unknown(), down()]).await;
        assert!(behind.is_empty(), "the get could miss a put that lands later");
        let both = sent_again([get("a"), put("a"), get("a")], vec![Ok(Reply::Miss), down(), down()]).await;
        assert_eq!(both, ["append \"a\"", "get \"a\""]);
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_later_attempts_take_the_place_of_errors() {
        let fake = Fake::slow(Duration::from_millis(1));
        fake.will_answer([down(), Ok(Reply::Miss), down()]);
        fake.will_answer([down(), Ok(Reply::Deleted)]);
        fake.will_answer([Ok(Reply::NotStored)]);
        let store = Retry::new(fake.clone());
        assert_eq!(store.profile(), fake.profile());
        let replies = store.run(Ctx::default(), Batch::from_iter([put("a"), get("b"), Op::delete(key("c"))])).await;
        let replies: Vec<Reply> = replies.into_iter().map(Result::unwrap).collect();
        assert_eq!(replies, [Reply::NotStored, Reply::Miss, Reply::Deleted]);
        assert_eq!(fake.take_asked().len(), 3);
    }

    #[test]
    fn outside_a_runtime_nothing_is_sent_again() {
        let fake = Arc::new(Fake::default());
        fake.will_answer([down(), Ok(Reply::Miss)]);
        let store = Retry::new(fake.clone());
        let replies = outside_a_runtime(store.run(Ctx::default(), Batch::from_iter([put("a"), get("b")])));
        assert_eq!(replies[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(replies[1].as_ref().unwrap(), &Reply::Miss);
        assert_eq!(fake.take_asked().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_and_the_deadline_end_it() {
        let fake = Arc::new(Fake::default());
        for _ in 0..20 {
            fake.will_answer([down()]);
        }
        let store = Retry::new(fake.clone());
        assert!(store.run(Ctx::default(), Batch::from_iter([put("a")])).await[0].is_err());
        assert_eq!(fake.take_asked().len(), ATTEMPTS_MAX as usize);
        let store = Retry::new(fake.clone()).attempts_max(0);
        assert!(store.run(Ctx::default(), Batch::from_iter([put("a")])).await[0].is_err());
        assert_eq!(fake.take_asked().len(), 1);
        for (first, max) in [(Duration::from_secs(3_600), Duration::from_secs(7_200)), (Duration::MAX, Duration::MAX)] {
            let store = Retry::new(fake.clone()).pauses(first, max);
            let start = tokio::time::Instant::now();
            let ctx = Ctx::within(Duration::from_micros(1));
            assert!(store.run(ctx, Batch::from_iter([put("a")])).await[0].is_err());
            assert_eq!(start.elapsed(), Duration::ZERO, "no pause reaches past the deadline");
        }
    }
}
