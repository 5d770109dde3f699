//! A store that says of itself what a test wants.

use std::fmt;
use std::sync::Arc;

use larder_core::{Batch, Ctx, Profile, Run, Store, StoreRef};

/// A store with another profile.
pub(crate) struct Shaped {
    inner: StoreRef,
    profile: Arc<Profile>,
}

impl Shaped {
    /// The store with its profile changed.
    pub(crate) fn over(inner: &StoreRef, change: impl FnOnce(&mut Profile)) -> StoreRef {
        let mut profile = (*inner.profile()).clone();
        change(&mut profile);
        Arc::new(Shaped { inner: inner.clone(), profile: Arc::new(profile) })
    }
}

impl Store for Shaped {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.inner.run(ctx, batch)
    }
}

impl fmt::Debug for Shaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shaped")
    }
}
