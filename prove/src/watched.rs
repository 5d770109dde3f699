//! A connection that says what goes wrong on it, before whoever asked is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Batch, Ctx, Error, Profile, Run, Store, StoreRef};
use larder_testkit::history::{Caused, SLOW};
use tokio::time::Instant;

/// Counts the batches of which something failed, and of those the ones with a write that may have been carried out for all their caller learns, or waits for.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: StoreRef,
    caused: Arc<Caused>,
    /// What is given up may arrive afterwards.
    is_late: bool,
}

impl Watched {
    /// A connection on which what is given up may arrive later: each counts as late.
    pub(crate) fn new(inner: StoreRef, caused: Arc<Caused>) -> Watched {
        caused.watched.store(true, Ordering::SeqCst);
        Watched { inner, caused, is_late: true }
    }

    /// A connection on which what is given up has arrived by then or never does, or which counts itself what is late.
    pub(crate) fn on_time(inner: StoreRef, caused: Arc<Caused>) -> Watched {
        Watched { is_late: false, ..Watched::new(inner, caused) }
    }
}

/// A batch under way: counts what came of it as it is dropped.
struct UnderWay {
    caused: Arc<Caused>,
    is_late: bool,
    has_writes: bool,
    failed: bool,
    number: u64,
    /// Whether it may be unknown of a write that it was carried out.
    is_cut: bool,
}

impl UnderWay {
    fn begin(watched: &Watched, batch: &Batch) -> UnderWay {
        let (caused, has_writes) = (watched.caused.clone(), batch.iter().any(|op| !op.is_read()));
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        caused.begun().insert(number, Instant::now());
        // So it is where nobody waits for its end.
        UnderWay { caused, is_late: watched.is_late, has_writes, failed: true, number, is_cut: has_writes }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let count = |counter: &AtomicU64, is_one| _ = counter.fetch_add(u64::from(is_one), Ordering::SeqCst);
        let begun = self.caused.begun().get(&self.number).copied();
        count(&self.caused.failures, self.failed || begun.is_some_and(|begun| begun.elapsed() >= SLOW));
        count(&self.caused.cuts, self.is_cut);
        count(&self.caused.late, self.is_cut && self.is_late);
        self.caused.begun().remove(&self.number);
    }
}

impl Store for Watched {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let under_way = UnderWay::begin(self, &batch);
        Run::pending(async move {
            // All of it, and not its fields: it counts also where this is dropped before it begins.
            let mut under_way = under_way;
            let replies = self.inner.run(ctx, batch).await;
            under_way.failed = replies.iter().any(Result::is_err);
            under_way.is_cut =
                under_way.has_writes && replies.iter().any(|reply| reply.as_ref().is_err_and(Error::is_unknown));
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
        let failures = || caused.failures.load(Ordering::SeqCst);
        store.run(Ctx::default(), put()).await;
        assert_eq!(failures(), 0);
        faulty.fail_always(Fault::NotSent);
        store.run(Ctx::default(), put()).await;
        faulty.fail_always(Fault::LostReply);
        store.run(Ctx::default(), get()).await;
        drop(store.run(Ctx::default(), get()));
        assert_eq!((late(), failures()), (0, 3));
        store.run(Ctx::default(), put()).await;
        assert_eq!((late(), failures()), (1, 4));
        drop(store.run(Ctx::default(), put()));
        assert_eq!((late(), failures()), (2, 5), "whoever asked is gone");
        let on_time = Watched::on_time(faulty.shared(), caused.clone());
        on_time.run(Ctx::default(), put()).await;
        let (cuts, under_way) = (caused.cuts.load(Ordering::SeqCst), caused.begun().len());
        assert_eq!((late(), cuts, under_way), (2, 3, 0));
    }
}
