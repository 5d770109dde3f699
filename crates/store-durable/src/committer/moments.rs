//! All of one moment, for whoever goes through many items: what stands in front, and what the engine has, between the same two rounds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::RwLockReadGuard;

use super::{ITEMS_END, Shared};
use crate::engine::Moment;
use crate::fault::Fault;

/// Items in front that a page of a listing looks at, if there are so many: some may be gone, or over.
pub(crate) const PAGE_ITEMS_MIN: usize = 1024;
/// How long a turn of the front's is waited for at once.
const HOLD_MAX: Duration = Duration::from_millis(50);

impl Shared {
    /// For whoever needs all of one moment: no round is put in front, and none leaves it. Once the store has failed, and a turn more was waited for, nobody is waited for: who writes a round may wait in the engine for ever, and does not
    /// put it in then.
    fn hold(&self) -> Option<RwLockReadGuard<'_, ()>> {
        loop {
            // In this order: a round that is being put in has all of a turn for it.
            let has_failed = self.failure().is_some();
            let turn = self.front.hold(HOLD_MAX);
            if turn.is_some() || has_failed {
                return turn;
            }
        }
    }

    /// This moment, of the engine entries from `from` on, before `to`.
    pub(crate) fn moment(&self, from: &[u8], to: &[u8]) -> Moment {
        self.told_over.store(true, Ordering::Relaxed);
        let _turn = self.hold();
        self.engine.moment(self.front.entries(from..to, usize::MAX))
    }

    /// This moment, of the items from an engine key on, for who looks at about so many: what stands in front is not copied further than that. The engine key behind the last item that is
    /// known.
    pub(crate) fn page(&self, from: &[u8], count: usize) -> (Moment, Vec<u8>) {
        self.told_over.store(true, Ordering::Relaxed);
        let most = count.max(PAGE_ITEMS_MIN);
        let _turn = self.hold();
        let mut front = self.front.entries(from..&ITEMS_END, most.saturating_add(1));
        let first_unknown = if front.len() > most { front.pop_last() } else { None };
        (self.engine.moment(front), first_unknown.map_or_else(|| ITEMS_END.to_vec(), |(key, _)| key))
    }

    /// The generation of the items that a moment shows.
    pub(crate) fn generation_of(&self, moment: &Moment) -> Result<u32, Fault> {
        // The engine may show the removal of everything though it failed: a crash could take it back. Nothing is written any more, so what was shown last is shown for good.
        if self.failure().is_some() {
            return Ok(self.generation.load(Ordering::Acquire));
        }
        Ok(moment.generations()?.current)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use larder_core::list::{List, Listed};
    use larder_core::{Ctx, Key, Op, PutMode, StoreExt, Ttl, Want};

    use crate::fault::Fault;
    use crate::{Direct, Options};

    /// As where a round waits for room in an engine that has failed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_goes_through_a_failed_store_goes_on_though_its_writer_stands_still() {
        const LONG: std::time::Duration = std::time::Duration::from_secs(20);
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).open().unwrap();
        let put = Op::put(Key::new("k").unwrap(), PutMode::Set, "v", Ttl::Never);
        store.run_one(Ctx::default(), put).await.unwrap();
        let direct = std::sync::Arc::new(Direct::new(store));
        let (done, ended) = mpsc::channel();
        let turn = direct.store().shared().front.change();
        let reader = direct.clone();
        std::thread::spawn(move || {
            let store = reader.store();
            let (mut walked, mut listed) = (0, 0);
            let scanned = store.scan(b"", 10, Want::VALUE).unwrap().len();
            reader.walk(b"", 10, &mut |_, _| walked += 1).unwrap();
            let mut tell = |told: Listed<'_>| listed += usize::from(matches!(told, Listed::Key(_)));
            let listing = store.list(Ctx::default(), b"", &mut tell);
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(listing).unwrap();
            let checked = store.check(&mut |_| ()).unwrap().items;
            let backed_up = store.backup(Vec::new(), &mut |_| ()).unwrap().1.items;
            _ = done.send([scanned as u64, walked, listed as u64, checked, backed_up]);
        });
        assert!(ended.recv_timeout(super::HOLD_MAX * 4).is_err(), "a round that is written is waited for");
        direct.store().shared().fail(&Fault::corrupt("on purpose"));
        assert_eq!(ended.recv_timeout(LONG), Ok([1; 5]));
        drop(turn);
    }
}
