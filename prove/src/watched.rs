//! A connection that says when a write was given up: it may arrive afterwards, and nobody can tell.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use larder_core::{Batch, Ctx, Error, Profile, Run, Store, StoreRef};
use larder_testkit::history::Caused;

/// Counts a late delivery for each batch with a write whose outcome its caller does not learn, or does not wait for.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: StoreRef,
    caused: Arc<Caused>,
}

impl Watched {
    pub(crate) fn new(inner: StoreRef, caused: Arc<Caused>) -> Watched {
        Watched { inner, caused }
    }
}

/// Of a batch under way: counts it as it is dropped, unless it was answered by then.
struct UnderWay {
    caused: Arc<Caused>,
    is_open: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.is_open {
            self.caused.late.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Store for Watched {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let is_open = batch.iter().any(|op| !op.is_read());
        let under_way = UnderWay { caused: self.caused.clone(), is_open };
        Run::pending(async move {
            // All of it, and not its fields: it counts also where this is dropped before it begins.
            let mut under_way = under_way;
            let replies = self.inner.run(ctx, batch).await;
            under_way.is_open = replies.iter().any(|reply| reply.as_ref().is_err_and(Error::is_unknown));
            replies
        })
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Key, Op, PutMode, Ttl};
    use larder_layers::testing::{Fault, Faulty};
    use larder_store_memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn a_write_that_was_given_up_is_counted_and_no_other() {
        let caused = Arc::new(Caused::default());
        let faulty = Faulty::new(Arc::new(MemoryStore::new()));
        let store = Watched::new(faulty.shared(), caused.clone());
        let key = || Key::new("k").unwrap();
        let put = || Batch::from_iter([Op::put(key(), PutMode::Set, "v", Ttl::Never)]);
        let get = || Batch::from_iter([Op::get(key(), larder_core::Want::VALUE)]);
        let late = || caused.late.load(Ordering::SeqCst);
        store.run(Ctx::default(), put()).await;
        faulty.fail_always(Fault::NotSent);
        store.run(Ctx::default(), put()).await;
        faulty.fail_always(Fault::LostReply);
        store.run(Ctx::default(), get()).await;
        drop(store.run(Ctx::default(), get()));
        assert_eq!(late(), 0);
        store.run(Ctx::default(), put()).await;
        assert_eq!(late(), 1);
        drop(store.run(Ctx::default(), put()));
        assert_eq!(late(), 2, "whoever asked is gone");
    }
}
