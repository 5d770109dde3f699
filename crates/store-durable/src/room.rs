//! Room on the disk: writes are refused before the disk is full, so that what was begun can be ended.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{Fault, Harm};

/// The disk is asked again after so many bytes were written.
const ASK_EVERY_BYTES: u64 = 4 << 20;
/// While there is no room it is asked again after so many refusals.
const ASK_EVERY_REFUSALS: u64 = 64;

/// Watches the room on the disk.
#[derive(Debug)]
pub(crate) struct Room {
    folder: PathBuf,
    /// Bytes that must stay free.
    reserve_bytes: u64,
    /// Bytes that may be written before the disk is asked again.
    credit_bytes: AtomicU64,
    /// Bytes that were free when it was asked last.
    free_bytes: AtomicU64,
    refusals: AtomicU64,
}

impl Room {
    pub(crate) fn new(folder: PathBuf, reserve_bytes: u64) -> Room {
        let (free_bytes, refusals) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        Room { folder, reserve_bytes, credit_bytes: AtomicU64::new(0), free_bytes, refusals }
    }

    /// # Errors
    /// `Full` where less than the reserve is free.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let is_short = self.free_bytes.load(Ordering::Relaxed) < self.reserve_bytes;
        let asks =
            is_short && self.refusals.fetch_add(1, Ordering::Relaxed) % ASK_EVERY_REFUSALS == ASK_EVERY_REFUSALS - 1;
        if asks || !is_short && self.credit_bytes.load(Ordering::Relaxed) == 0 {
            self.ask();
        }
        let free = self.free_bytes.load(Ordering::Relaxed);
        if free >= self.reserve_bytes {
            return Ok(());
        }
        let detail = format!(
            "the disk of {} has {free} bytes left; {} must stay free (the option reserve)",
            self.folder.display(),
            self.reserve_bytes
        );
        Err(Fault { harm: Harm::Full, detail })
    }

    /// Bytes were written.
    pub(crate) fn wrote(&self, bytes: usize) {
        let less = |credit: u64| Some(credit.saturating_sub(bytes as u64 + 1));
        _ = self.credit_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn ask(&self) {
        // A disk that does not say is written to until it refuses.
        let free =
            rustix::fs::statvfs(&self.folder).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        self.free_bytes.store(free, Ordering::Relaxed);
        self.credit_bytes.store(ASK_EVERY_BYTES, Ordering::Relaxed);
    }
}
