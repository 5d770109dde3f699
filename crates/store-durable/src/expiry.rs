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

    /// The first expiries that have come. To be called by the committer alone.
    pub(crate) fn due(&self, engine: &Engine, now_ms: u64) -> Result<Due, Fault> {
        let (mut keys, mut next_ms, mut is_full) = (Vec::new(), u64::MAX, false);
        engine.scan(&[layout::EXPIRY], &[layout::EXPIRY + 1], &mut |key, _| {
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
