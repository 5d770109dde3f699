//! Room on the disk: writes are refused before the disk is full, so that what was begun can be ended.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::fault::{Fault, Harm};

/// The disk is asked again after so many bytes were written.
const ASK_EVERY_BYTES: u64 = 4 << 20;
/// While there is no room it is asked again after so many refusals, or after so long.
const ASK_EVERY_REFUSALS: u64 = 64;
const ASK_EVERY_MS: u64 = 1_000;

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
    /// When it was asked last, in milliseconds since it was made.
    asked_ms: AtomicU64,
    made: Instant,
}

impl Room {
    pub(crate) fn new(folder: PathBuf, reserve_bytes: u64) -> Room {
        let (free_bytes, refusals) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        let (credit_bytes, asked_ms, made) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
        Room { folder, reserve_bytes, credit_bytes, free_bytes, refusals, asked_ms, made }
    }

    /// # Errors
    /// `Full` where less than the reserve is free.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.reserve_bytes == 0 {
            return Ok(());
        }
        let is_short = self.free_bytes.load(Ordering::Relaxed) < self.reserve_bytes;
        let asks = is_short && {
            let nth = self.refusals.fetch_add(1, Ordering::Relaxed) % ASK_EVERY_REFUSALS;
            let since_ms = self.now_ms().saturating_sub(self.asked_ms.load(Ordering::Relaxed));
            nth == ASK_EVERY_REFUSALS - 1 || since_ms >= ASK_EVERY_MS
        };
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

    fn now_ms(&self) -> u64 {
        u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn ask(&self) {
        self.asked_ms.store(self.now_ms(), Ordering::Relaxed);
        // A disk that does not say is written to until it refuses.
        let free =
            rustix::fs::statvfs(&self.folder).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        self.free_bytes.store(free, Ordering::Relaxed);
        self.credit_bytes.store(ASK_EVERY_BYTES, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn room_that_came_back_is_found_within_a_second_of_few_refusals() {
        let folder = tempfile::tempdir().unwrap();
        let mut room = Room::new(folder.path().to_path_buf(), u64::MAX);
        assert_eq!(room.check().unwrap_err().harm, Harm::Full);
        // As if others had freed it.
        room.reserve_bytes = 1;
        room.free_bytes.store(0, Ordering::Relaxed);
        assert_eq!(room.check().unwrap_err().harm, Harm::Full, "it was asked just now");
        room.made -= Duration::from_millis(ASK_EVERY_MS);
        room.check().unwrap();
    }
}
