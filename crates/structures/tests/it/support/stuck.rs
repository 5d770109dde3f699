//! A store that leaves a compaction without an answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use larder_core::{Batch, Ctx, Op, Profile, PutMode, Run, Store, StoreRef, Verb};

const CALM: u8 = 0;
const ARMED: u8 = 1;
const STUCK: u8 = 2;
const HELD: u8 = 3;

/// What another handle writes to the store behind.
type Between = fn(StoreRef) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// A store on which a compaction meets a write of another handle's, once it is armed; from there on no read is answered.
pub(crate) struct Stuck {
    pub(crate) inner: StoreRef,
    between: Between,
    state: AtomicU8,
}

impl Stuck {
    pub(crate) fn over(inner: &StoreRef, between: Between) -> Arc<Stuck> {
        Arc::new(Stuck { inner: inner.clone(), between, state: AtomicU8::new(CALM) })
    }

    pub(crate) fn arm(&self) {
        self.state.store(ARMED, Ordering::SeqCst);
    }

    /// True once a read waits for ever.
    pub(crate) fn is_held(&self) -> bool {
        self.state.load(Ordering::SeqCst) == HELD
    }
}

fn is_rewrite(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Cas(_), .. })
}

impl Store for Stuck {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        match self.state.load(Ordering::SeqCst) {
            ARMED if batch.iter().any(is_rewrite) => {
                self.state.store(STUCK, Ordering::SeqCst);
                Run::pending(async move {
                    (self.between)(self.inner.clone()).await;
                    self.inner.run(ctx, batch).await
                })
            }
            STUCK | HELD if batch.iter().all(Op::is_read) => {
                self.state.store(HELD, Ordering::SeqCst);
                Run::pending(std::future::pending())
            }
            _ => self.inner.run(ctx, batch),
        }
    }
}

impl fmt::Debug for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stuck")
    }
}
