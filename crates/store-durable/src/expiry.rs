//! Reclaim: items whose life is over are removed without anybody asking for them.
//!
//! Each write of an item with a life adds an entry of its expiry, ordered by time. When the time has come the entry is looked up: if the item
//! is over, it goes; if it got another life since, that one has an entry of its own. So a write need not know the life it replaces.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::Engine;
use crate::fault::Fault;
use crate::layout;

/// Expiries that are taken up at once.
pub(crate) const DUE_MAX: usize = 1024;

/// When the next item may be over.
#[derive(Debug, Default)]
pub(crate) struct Expiry {
    /// No item is over before this.
    earliest_ms: AtomicU64,
}

/// Expiries whose time has come.
pub(crate) struct Due {
    /// Their engine keys.
    pub(crate) keys: Vec<Vec<u8>>,
    /// There may be more.
    pub(crate) is_full: bool,
}

impl Expiry {
    /// An item expires then.
    pub(crate) fn note(&self, expiry_ms: u64) {
        self.earliest_ms.fetch_min(expiry_ms, Ordering::Relaxed);
    }

    /// True if something may be over.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        self.earliest_ms.load(Ordering::Relaxed) <= now_ms
    }

    /// The first expiries that have come, of the engine keys from `from` on. To be called by the committer alone.
    pub(crate) fn due(&self, engine: &Engine, from: &[u8], now_ms: u64) -> Result<Due, Fault> {
        let (mut keys, mut next_ms, mut is_full) = (Vec::new(), u64::MAX, false);
        engine.scan(from, &[layout::EXPIRY + 1], &mut |key, _| {
            match layout::split_expiry_key(key) {
                Some((expiry_ms, _)) if expiry_ms > now_ms => {
                    next_ms = expiry_ms;
                    return false;
                }
                _ if keys.len() == DUE_MAX => is_full = true,
                _ => keys.push(key.to_vec()),
            }
            !is_full
        })?;
        self.earliest_ms.store(if is_full { 0 } else { next_ms }, Ordering::Relaxed);
        Ok(Due { keys, is_full })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use larder_core::{Ctx, ErrorKind, Key, ManualClock, Op, PutMode, StoreExt, Ttl};

    use super::*;
    use crate::committer::Request;
    use crate::layout::Commit;
    use crate::{DurableStore, Options};

    async fn put_for_a_second(store: &DurableStore, key: &str) {
        let put = Op::put(Key::new(key.to_owned()).unwrap(), PutMode::Set, "v", Ttl::After(Duration::from_secs(1)));
        store.run_one(Ctx::default(), put).await.unwrap();
    }

    #[tokio::test]
    async fn items_that_are_damaged_stay_and_those_behind_them_are_reclaimed() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000)));
        let store = Options::new(folder.path()).clock(clock.clone()).open().unwrap();
        // More than are taken up at once, and all of them before the others.
        let damaged = DUE_MAX as u64 + 1;
        let mut entries = store.shared().engine.entries();
        for number in 0..damaged {
            let key = format!("damaged{number}");
            entries.add(&layout::item_key(key.as_bytes()), Some(b"no record"));
            entries.add(&layout::expiry_key(1, key.as_bytes()), Some(&[]));
        }
        store.shared().engine.commit(entries, Commit::default(), false).unwrap();
        put_for_a_second(&store, "one").await;
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.reclaim_expired().await.unwrap(), 1);
        put_for_a_second(&store, "two").await;
        clock.advance(Duration::from_secs(1));
        // As the timer asks.
        assert!(store.ask(Request::Reclaim { reply: None }).await.is_ok());
        store.sync().await.unwrap();
        let found = store.check(&mut |_| ()).unwrap();
        assert_eq!((found.items, found.damaged), (damaged, damaged));
        let error = store.get(Key::new("damaged7").unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
