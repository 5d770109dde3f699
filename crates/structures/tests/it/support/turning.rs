//! A store that comes to lose what it holds, as a failover to another server makes it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use larder_core::{Batch, Ctx, Durability, Eviction, Profile, Run, Store, StoreRef};

/// A store that keeps everything and never evicts, as it says, until a test turns it. (Nothing is lost by itself: a test deletes what shall be.)
pub(crate) struct Turning {
    inner: StoreRef,
    may_lose: AtomicBool,
    profiles: AtomicU64,
}

impl Turning {
    pub(crate) fn over(inner: &StoreRef) -> Arc<Turning> {
        Arc::new(Turning { inner: inner.clone(), may_lose: AtomicBool::new(false), profiles: AtomicU64::new(0) })
    }

    pub(crate) fn shared(self: &Arc<Self>) -> StoreRef {
        self.clone()
    }

    pub(crate) fn turn(&self, may_lose: bool) {
        self.may_lose.store(may_lose, Ordering::SeqCst);
    }

    pub(crate) fn is_turned(&self) -> bool {
        self.may_lose.load(Ordering::SeqCst)
    }

    /// How often it was asked for its profile.
    pub(crate) fn profiles(&self) -> u64 {
        self.profiles.load(Ordering::SeqCst)
    }
}

impl Store for Turning {
    fn profile(&self) -> Arc<Profile> {
        self.profiles.fetch_add(1, Ordering::SeqCst);
        let (durability, eviction) = match self.may_lose.load(Ordering::SeqCst) {
            true => (Durability::Server, Eviction::WhenFull),
            false => (Durability::Disk, Eviction::Never),
        };
        Arc::new(Profile { durability, eviction, ..(*self.inner.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.inner.run(ctx, batch)
    }
}

impl fmt::Debug for Turning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Turning")
    }
}
