//! A store for the tests of sets: counts round trips, can be held at a gate, and can lack what other stores lack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use larder_core::{
    Batch, Ctx, Error, ErrorKind, Key, Op, Profile, PutMode, Replies, Reply, Run, Store, StoreExt, StoreRef, Ttl, Verb,
};
use larder_store_memory::MemoryStore;
use larder_structures::{Name, registry};
use tokio::sync::Semaphore;

use crate::support::steady::steady;

/// A memory store behind a counter and a gate.
#[derive(Debug)]
pub(crate) struct Probe {
    inner: StoreRef,
    round_trips: AtomicU64,
    has_cas: bool,
    /// A permit lets one batch through; a great many by default.
    pub(crate) gate: Semaphore,
}

impl Probe {
    pub(crate) fn new() -> Arc<Probe> {
        Probe::over(Arc::new(MemoryStore::new()))
    }

    /// A store whose values are at most this long.
    pub(crate) fn small(value_bytes_max: usize) -> Arc<Probe> {
        Probe::over(Arc::new(MemoryStore::builder().value_bytes_max(value_bytes_max).build().unwrap()))
    }

    pub(crate) fn over(inner: StoreRef) -> Arc<Probe> {
        Arc::new(Probe::assemble(inner, true))
    }

    pub(crate) fn without_cas(value_bytes_max: usize) -> Arc<Probe> {
        let inner = MemoryStore::builder().value_bytes_max(value_bytes_max).build().unwrap();
        Arc::new(Probe::assemble(Arc::new(inner), false))
    }

    fn assemble(inner: StoreRef, has_cas: bool) -> Probe {
        steady();
        Probe { inner, round_trips: AtomicU64::new(0), has_cas, gate: Semaphore::new(Semaphore::MAX_PERMITS / 2) }
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    /// Round trips since the last call.
    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.swap(0, Ordering::SeqCst)
    }

    /// Nothing gets through from now on.
    pub(crate) fn close_gate(&self) {
        self.gate.forget_permits(usize::MAX);
    }

    pub(crate) fn open_gate(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

impl Store for Probe {
    fn profile(&self) -> Arc<Profile> {
        let profile = self.inner.profile();
        if self.has_cas { profile } else { Arc::new(Profile { cas: false, ..(*profile).clone() }) }
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            self.round_trips.fetch_add(1, Ordering::SeqCst);
            self.gate.acquire().await.unwrap().forget();
            // Others may come in between, as on any store that is not in the process.
            tokio::task::yield_now().await;
            let is_cas = |op: &Op| matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. });
            if !self.has_cas && batch.iter().any(is_cas) {
                let refuse = |_| Err(Error::new(ErrorKind::Unsupported, "no cas"));
                return batch.iter().map(refuse).collect();
            }
            let mut replies: Replies = self.inner.run(ctx, batch).await;
            for reply in &mut replies {
                if let (false, Ok(Reply::Item(item))) = (self.has_cas, reply) {
                    item.cas = None;
                }
            }
            replies
        })
    }
}

/// The key of a shard, by the documented scheme.
pub(crate) async fn shard_key(store: &StoreRef, name: &str, shard: u16) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.{name}.p.{:016x}.{shard}", manifest.generation)).unwrap()
}

pub(crate) async fn value_of(store: &StoreRef, key: &Key) -> Bytes {
    store.get(key.clone()).await.unwrap().unwrap().value
}

pub(crate) async fn set_value(store: &StoreRef, key: &Key, value: Bytes) {
    store.put(key.clone(), PutMode::Set, value, Ttl::Never).await.unwrap();
}

pub(crate) async fn sorted(set: &larder_structures::Set) -> Vec<Bytes> {
    let mut members = set.members().await.unwrap().to_vec();
    members.sort();
    members
}
