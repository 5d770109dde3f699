//! Clocks and stores for the tests of the lock.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_core::{
    Batch, Clock, Ctx, Key, Op, Profile, Remaining, Reply, Run, Store, StoreExt, StoreRef, Ttl, TtlSupport, Verb, Want,
};
use larder_store_memory::MemoryStore;
use larder_structures::Name;
use larder_structures::lock::{Lock, LockGuard, LockOptions};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// The runtime's clock, so that paused time moves timers and deadlines together; plus what a test adds.
#[derive(Debug)]
pub(crate) struct TokioClock {
    start: tokio::time::Instant,
    wall_ms: AtomicU64,
    asleep_ms: AtomicU64,
}

impl TokioClock {
    pub(crate) fn shared() -> Arc<TokioClock> {
        Arc::new(TokioClock {
            start: tokio::time::Instant::now(),
            wall_ms: AtomicU64::new(1_700_000_000_000),
            asleep_ms: AtomicU64::new(0),
        })
    }

    /// Sets the wall clock back.
    pub(crate) fn set_back(&self, by: Duration) {
        self.wall_ms.fetch_sub(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Lets time pass that no timer notices: the process stood still.
    pub(crate) fn stand_still(&self, by: Duration) {
        self.asleep_ms.fetch_add(by.as_millis() as u64, Ordering::SeqCst);
    }
}

impl Clock for TokioClock {
    fn monotonic(&self) -> Duration {
        // The sweeper of the store asks from outside the runtime, where time is not paused and may be earlier.
        tokio::time::Instant::now().saturating_duration_since(self.start)
            + Duration::from_millis(self.asleep_ms.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Duration {
        Duration::from_millis(self.wall_ms.load(Ordering::SeqCst)) + self.monotonic()
    }
}

/// A memory store and a clock that both go with the runtime's time.
pub(crate) fn memory() -> (StoreRef, Arc<TokioClock>) {
    let clock = TokioClock::shared();
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    (Arc::new(store), clock)
}

pub(crate) fn options(clock: &Arc<TokioClock>) -> LockOptions {
    Lock::options().lease(LEASE).clock(clock.clone())
}

/// What is left of a record's life; then it is made short, which the next write must undo. A token survives that.
pub(crate) async fn life_left(store: &StoreRef, key: &Key) -> Duration {
    let life = store.run_one(Ctx::default(), Op::get(key.clone(), Want::TTL)).await.unwrap().into_item().unwrap().ttl;
    let Remaining::For(left) = life else { panic!("the record has no life: {life:?}") };
    let short = Op::touch(key.clone(), Ttl::After(1000 * SECOND));
    assert_eq!(store.run_one(Ctx::default(), short).await.unwrap(), Reply::Touched);
    left
}

pub(crate) fn key(name: &str) -> larder_core::Key {
    Name::new(name).unwrap().manifest_key().unwrap()
}

/// How a store tells lives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dialect {
    Millis,
    Seconds,
    /// memcached's classic dialect: a get cannot tell.
    Silent,
}

/// The store with another profile.
#[derive(Debug)]
pub(crate) struct Reprofiled {
    inner: StoreRef,
    profile: Arc<Profile>,
}

impl Reprofiled {
    pub(crate) fn shared(inner: &StoreRef, change: impl FnOnce(&mut Profile)) -> StoreRef {
        let mut profile = Profile::clone(&inner.profile());
        change(&mut profile);
        Arc::new(Reprofiled { inner: inner.clone(), profile: Arc::new(profile) })
    }

    pub(crate) fn speaking(inner: &StoreRef, dialect: Dialect) -> StoreRef {
        Reprofiled::shared(inner, |profile| match dialect {
            Dialect::Millis => {}
            Dialect::Seconds => profile.ttl = TtlSupport::Seconds,
            Dialect::Silent => profile.remaining_ttl = false,
        })
    }
}

impl Store for Reprofiled {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.inner.run(ctx, batch)
    }
}

/// What a [`Gate`] does with a batch.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Pass {
    Open,
    /// Nothing is sent, and no answer comes, whatever the deadline.
    HangBefore,
    /// It is applied, and no answer comes.
    HangAfter,
    /// It is applied, and the answer comes two leases later.
    Slow,
}

/// A store that a test can make hang, as one does whose server or process stands still.
pub(crate) struct Gate {
    inner: StoreRef,
    pass: AtomicU8,
}

impl Gate {
    pub(crate) fn new(inner: &StoreRef) -> Arc<Gate> {
        Arc::new(Gate { inner: inner.clone(), pass: AtomicU8::new(Pass::Open as u8) })
    }

    pub(crate) fn set(&self, pass: Pass) {
        self.pass.store(pass as u8, Ordering::SeqCst);
    }
}

impl Store for Gate {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let pass = self.pass.load(Ordering::SeqCst);
        Run::pending(async move {
            if pass == Pass::HangBefore as u8 {
                std::future::pending::<()>().await;
            }
            let replies = self.inner.run(ctx, batch).await;
            if pass == Pass::HangAfter as u8 {
                std::future::pending::<()>().await;
            }
            if pass == Pass::Slow as u8 {
                tokio::time::sleep(2 * LEASE).await;
            }
            replies
        })
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

/// A store on which another takes the lock at the worst moment: right before a chosen batch.
pub(crate) struct Meddler {
    inner: StoreRef,
    other: Lock,
    batches_left: AtomicU64,
    took: Mutex<Option<LockGuard>>,
}

impl Meddler {
    /// `other` takes the lock before the nth batch from now (1 is the next one).
    pub(crate) fn new(inner: &StoreRef, other: Lock) -> Arc<Meddler> {
        Arc::new(Meddler { inner: inner.clone(), other, batches_left: AtomicU64::new(0), took: Mutex::default() })
    }

    pub(crate) fn meddle_before(&self, nth: u64) {
        self.batches_left.store(nth, Ordering::SeqCst);
    }

    pub(crate) fn took(&self) -> Option<LockGuard> {
        self.took.lock().unwrap().take()
    }
}

impl Store for Meddler {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let left = self.batches_left.load(Ordering::SeqCst);
        self.batches_left.store(left.saturating_sub(1), Ordering::SeqCst);
        Run::pending(async move {
            if left == 1 {
                let took = self.other.try_acquire().await.unwrap();
                *self.took.lock().unwrap() = took;
            }
            self.inner.run(ctx, batch).await
        })
    }
}

impl fmt::Debug for Meddler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meddler")
    }
}

/// A store that keeps the history of what was written: the judge of who held the lock when.
pub(crate) struct Spy {
    inner: StoreRef,
    grants: Mutex<Vec<Grant>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    pub(crate) owner: u64,
}

impl Spy {
    pub(crate) fn new(inner: &StoreRef) -> Arc<Spy> {
        Arc::new(Spy { inner: inner.clone(), grants: Mutex::default() })
    }

    /// Every time somebody became the holder, in the order of the store.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        self.grants.lock().unwrap().clone()
    }
}

impl Store for Spy {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        // One batch at a time, so that the history has the store's order. The store behind is in memory: its runs are ready.
        let mut grants = self.grants.lock().unwrap();
        let Run::Ready(replies) = self.inner.run(ctx, batch.clone()) else { panic!("the store behind is in memory") };
        for (op, reply) in batch.iter().zip(&replies) {
            if let (Verb::Put { value, .. }, Ok(Reply::Stored)) = (&op.verb, reply)
                && value[17] == 1
            {
                let number = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
                let grant = Grant { token: number(18), owner: number(26) };
                if grants.last() != Some(&grant) {
                    grants.push(grant);
                }
            }
        }
        Run::Ready(replies)
    }
}

impl fmt::Debug for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spy")
    }
}
