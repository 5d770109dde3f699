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
    /// Keys that were asked for.
    keys: BTreeSet<Key>,
    /// How many of the neighbour's items were written.
    fillers: u64,
    /// How many items had been evicted but for the neighbour's.
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
        if let Ok(key) = Key::new(format!("{FILLER}{}", state.fillers)) {
            let filler = Op::put(key, PutMode::Set, vec![0; FILLER_BYTES], Ttl::Never);
            state.fillers += u64::from(self.inner.apply(&filler).is_ok());
        }
    }

    /// How many of the neighbour's items are there; without a use of them, which would keep them from being evicted.
    fn fillers(&self) -> u64 {
        let mut fillers = 0;
        self.inner.each(|key, _| fillers += u64::from(key.starts_with(FILLER.as_bytes())));
        fillers
    }

    /// Counts what was evicted since the batch before: one of the neighbour's that goes is nobody's loss. What goes is counted, and not what is missing now: a batch may make again what its
    /// own filler pushed out (seed 1417458294).
    fn count_evicted(&self) {
        let mut state = locked(&self.state);
        let evicted = self.inner.stats().evicted - (state.fillers - self.fillers());
        let gone = evicted - std::mem::replace(&mut state.evicted, evicted);
        self.caused.losses.fetch_add(gone, Ordering::SeqCst);
        self.lost.fetch_add(gone, Ordering::SeqCst);
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
        let run = self.inner.run(ctx, batch);
        if self.fills {
            // A store in the process has run it by now.
            self.count_evicted();
        }
        run
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a batch's own filler pushes out, and the batch makes again, was lost: an add that succeeds tells of each.
    #[tokio::test]
    async fn an_item_that_is_evicted_and_made_again_by_one_batch_counts_as_lost() {
        const KEYS: u64 = 16;
        let memory =
            MemoryStore::builder().shards(4).bytes_max(64 << 10).evict(true).build().expect("limits that hold");
        let (memory, caused) = (Arc::new(memory), Arc::new(Caused::default()));
        let thief = Thief::new(memory.clone(), fastrand::Rng::with_seed(7), caused.clone(), None, true);
        let keys: Vec<Key> = (0..KEYS).map(|at| Key::new(format!("key {at}")).expect("a short key")).collect();
        let mut made = 0;
        for key in keys.iter().cycle().take(10_000) {
            let add = Op::put(key.clone(), PutMode::Add, vec![0; 8], Ttl::Never);
            let replies = thief.run(Ctx::default(), Batch::from(vec![add])).await;
            made += u64::from(matches!(replies[..], [Ok(Reply::Stored)]));
        }
        let there =
            keys.iter().filter(|key| matches!(memory.direct().delete(key.as_bytes(), None), Ok(Reply::Deleted)));
        let lost = made - there.count() as u64;
        assert!(lost > 100, "{lost}");
        assert_eq!(thief.faults(), [("item removed", 0), ("item evicted", lost)]);
        assert_eq!(caused.losses.load(Ordering::SeqCst), lost);
    }
}
