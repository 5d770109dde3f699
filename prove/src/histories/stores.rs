//! Stores that bring clients together, and that lose things.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use larder_core::{Batch, Ctx, Key, Op, Profile, PutMode, Reply, Run, Store, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_testkit::history::Caused;

/// Lets others run before and after each batch, as often as it draws: clients meet in between.
#[derive(Debug)]
pub(crate) struct Meeting {
    inner: StoreRef,
    rng: Mutex<fastrand::Rng>,
}

impl Meeting {
    pub(crate) fn new(inner: StoreRef, rng: fastrand::Rng) -> Meeting {
        Meeting { inner, rng: Mutex::new(rng) }
    }

    async fn pass(&self) {
        let times = locked(&self.rng).u8(..4);
        for _ in 0..times {
            tokio::task::yield_now().await;
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for Meeting {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            self.pass().await;
            let replies = self.inner.run(ctx, batch).await;
            self.pass().await;
            replies
        })
    }
}

/// A memory store out of which items go: chosen ones, or those that its own eviction takes when others fill it.
#[derive(Debug)]
pub(crate) struct Thief {
    inner: Arc<MemoryStore>,
    state: Mutex<State>,
    caused: Arc<Caused>,
    one_in: Option<u64>,
    fills: bool,
    lost: AtomicU64,
}

#[derive(Debug)]
struct State {
    rng: fastrand::Rng,
    /// Keys that were asked for; of a store that is filled, those that are there.
    keys: BTreeSet<Key>,
    fillers: u64,
    /// How many items the store had evicted.
    evicted: u64,
}

/// A neighbour's item, for a store that is too small.
const FILLER: &str = "filler ";
const FILLER_BYTES: usize = 2_000;

impl Thief {
    /// Takes one item in so many batches, or fills the store with others' items so that it evicts.
    pub(crate) fn new(
        inner: Arc<MemoryStore>,
        rng: fastrand::Rng,
        caused: Arc<Caused>,
        one_in: Option<u64>,
        fills: bool,
    ) -> Thief {
        let state = Mutex::new(State { rng, keys: BTreeSet::new(), fillers: 0, evicted: 0 });
        Thief { inner, state, caused, one_in, fills, lost: AtomicU64::new(0) }
    }

    /// What was taken, by kind.
    pub(crate) fn faults(&self) -> Vec<(&'static str, u64)> {
        let lost = self.lost.load(Ordering::SeqCst);
        vec![("item removed", if self.fills { 0 } else { lost }), ("item evicted", if self.fills { lost } else { 0 })]
    }

    fn steal(&self, one_in: u64, batch: &Batch) {
        let mut state = locked(&self.state);
        state.keys.extend(batch.iter().map(|op| op.key.clone()));
        if state.rng.u64(..one_in) > 0 {
            return;
        }
        let known = state.keys.len().max(1);
        let at = state.rng.usize(..known);
        let Some(key) = state.keys.iter().nth(at).cloned() else { return };
        if matches!(self.inner.direct().delete(key.as_bytes(), None), Ok(Reply::Deleted)) {
            self.caused.losses.fetch_add(1, Ordering::SeqCst);
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn fill(&self) {
        let mut state = locked(&self.state);
        if state.rng.u8(..4) > 0 {
            return;
        }
        state.fillers += 1;
        if let Ok(key) = Key::new(format!("{FILLER}{}", state.fillers)) {
            _ = self.inner.apply(&Op::put(key, PutMode::Set, vec![0; FILLER_BYTES], Ttl::Never));
        }
    }

    /// What is there but for the fillers; without a use of it, which would keep it from being evicted.
    fn there(&self) -> BTreeSet<Key> {
        let mut there = BTreeSet::new();
        for shard in 0..self.inner.shards() {
            self.inner.each_of_shard(shard, |key, _| {
                if !key.starts_with(FILLER.as_bytes()) {
                    there.extend(Key::new(key.to_vec()));
                }
            });
        }
        there
    }

    /// Counts what was there, or was written by this batch, and was evicted since the batch before: a filler that goes is nobody's loss. What this batch removed
    /// beside an eviction counts, too: nobody can tell which came first.
    fn count_evicted(&self, written: &[Key]) {
        let mut state = locked(&self.state);
        let (there, evicted) = (self.there(), self.inner.stats().evicted);
        let before = std::mem::replace(&mut state.keys, there);
        if evicted > std::mem::replace(&mut state.evicted, evicted) {
            let may_be_gone: BTreeSet<&Key> = before.iter().chain(written).collect();
            let gone = may_be_gone.into_iter().filter(|key| !state.keys.contains(*key)).count() as u64;
            self.caused.losses.fetch_add(gone, Ordering::SeqCst);
            self.lost.fetch_add(gone, Ordering::SeqCst);
        }
    }
}

impl Store for Thief {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        if let Some(one_in) = self.one_in {
            self.steal(one_in, &batch);
        }
        if self.fills {
            self.fill();
        }
        let written: Vec<Key> = batch.iter().filter(|op| !op.is_read()).map(|op| op.key.clone()).collect();
        let run = self.inner.run(ctx, batch);
        if self.fills {
            // A store in the process has run it by now.
            self.count_evicted(&written);
        }
        run
    }
}
