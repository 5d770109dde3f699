//! Zeros ahead of the journal's end, so that a sync has less to write.
//!
//! The engine makes a journal file as one hole. Where a hole is written to, the file system has to find blocks and to note them, and the
//! sync that follows waits for the note as well as for the data: on ext4 a sync of 5 KB takes about 1.4 times as long as where blocks were
//! written before. So, where each batch is synced, zeros are written over some of the hole before batches come there.
//!
//! The committer does so between two batches, when nobody else writes to the file, and only where there is a hole: what is in the file is
//! the same after it. That there is one is for the file system to say, and it is not taken at its word: where anything but zeros is read, nothing is written, then and later. What fails is
//! left: it was to save time. A file that was reopened has no hole, and gets none.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;

/// So much of the hole is written over at once.
const STEP_BYTES: usize = 1 << 20;

static ZEROS: [u8; STEP_BYTES] = [0; STEP_BYTES];

/// The room that is made in one file.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Gone when there is nothing more to do.
    file: Option<File>,
    /// What is left of the zeros.
    left_bytes: usize,
    /// There is no hole before this.
    end: u64,
}

impl Ahead {
    /// Of a file that others write to.
    pub(crate) fn of(path: &Path) -> Ahead {
        Ahead { file: OpenOptions::new().read(true).write(true).open(path).ok(), ..Ahead::default() }
    }

    /// So many bytes, at the most, will be written next.
    pub(crate) fn make_room(&mut self, bytes: usize) {
        if let Some(left_bytes) = self.left_bytes.checked_sub(bytes) {
            self.left_bytes = left_bytes;
            return;
        }
        self.left_bytes = 0;
        // What is larger than a step takes its time anyway.
        if bytes <= STEP_BYTES && self.file.is_some() {
            match self.step() {
                Some(made_bytes) => self.left_bytes = made_bytes.saturating_sub(bytes),
                None => self.file = None,
            }
        }
    }

    /// Writes over the next piece of the hole: how large it is.
    fn step(&mut self) -> Option<usize> {
        let file = self.file.as_ref()?;
        let file_bytes = file.metadata().ok()?.len();
        let hole = rustix::fs::seek(file, SeekFrom::Hole(self.end)).ok()?;
        let bytes = usize::try_from(file_bytes.checked_sub(hole)?).unwrap_or(usize::MAX).min(STEP_BYTES);
        fill(file, hole, bytes)?;
        self.end = hole + bytes as u64;
        (bytes > 0).then_some(bytes)
    }
}

/// Writes zeros where zeros are read.
fn fill(file: &File, at: u64, bytes: usize) -> Option<()> {
    let mut found = vec![0; bytes];
    file.read_exact_at(&mut found, at).ok()?;
    if found != ZEROS[..bytes] {
        return None;
    }
    file.write_all_at(&ZEROS[..bytes], at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the first hole begins.
    fn hole(path: &Path) -> u64 {
        rustix::fs::seek(File::open(path).unwrap(), SeekFrom::Hole(0)).unwrap()
    }

    #[test]
    fn zeros_are_ahead_of_what_is_written_and_nothing_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.jnl");
        let file = File::create(&path).unwrap();
        let file_bytes = (STEP_BYTES * 2 + 5000) as u64;
        file.set_len(file_bytes).unwrap();
        let mut ahead = Ahead::of(&path);
        let mut at = 0;
        // A step that is used up, one that is too small for what comes, and what is left of the file.
        for bytes in [1000, STEP_BYTES - 2000, 4000, STEP_BYTES + 1, 1000, 1000] {
            ahead.make_room(bytes);
            if bytes <= STEP_BYTES && hole(&path) < file_bytes {
                assert!(hole(&path) >= at + bytes as u64, "{bytes} bytes at {at}");
            }
            if at + bytes as u64 <= file_bytes {
                file.write_all_at(&vec![7; bytes], at).unwrap();
                at += bytes as u64;
            }
        }
        let written = std::fs::read(&path).unwrap();
        assert_eq!(written.len() as u64, file_bytes);
        let (begin, end) = written.split_at(at as usize);
        assert!(begin.iter().all(|byte| *byte == 7) && end.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_is_no_hole_whatever_the_file_system_says_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.jnl");
        let mut bytes = vec![0; 9000];
        bytes[8191] = 7;
        std::fs::write(&path, &bytes).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(fill(&file, 4096, 4096), None);
        assert_eq!(fill(&file, 8192, 808), Some(()));
        assert_eq!(fill(&file, 8192, 809), None, "it is not made longer");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn a_file_without_a_hole_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.jnl");
        std::fs::write(&path, [7; 5000]).unwrap();
        let mut ahead = Ahead::of(&path);
        ahead.make_room(100);
        assert!(ahead.file.is_none(), "it is not looked at again");
        assert_eq!(std::fs::read(&path).unwrap(), [7; 5000]);
        Ahead::of(&folder.path().join("none")).make_room(100);
    }
}
