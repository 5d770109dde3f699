//! Whether a write of the journal has failed, asked by a descriptor of our own.
//!
//! The engine's threads sync the journal, too, when they write a table. Where such a sync fails, the engine lets its lock go before it notes that it writes nothing any more: a batch that gets in there
//! is written, and synced, behind a hole. The system has told the engine's descriptor of the failure, once, and has forgotten the bytes; a later sync by the same descriptor succeeds.
//!
//! But Linux tells each open file of a failure once (`errseq_t`, since 4.13). So every journal file that may still fail is open here as well, from before the second batch is written to it, and is asked behind each sync that something is
//! acknowledged for. The question is `sync_file_range` of the first byte: it waits for nothing to speak of, writes nothing, and answers as `fsync` would, where a sync of our own would flush the
//! disk's cache once more. Tried on ext4 over a device that had no room left: the engine's way was told ENOSPC and then nothing, ours was told ENOSPC, once. Elsewhere than on Linux nothing is asked.
//!
//! This is the one module of the crate with `unsafe`: the call has no safe wrapper in the libraries that are kept.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use parking_lot::Mutex;

use crate::fault::Fault;

/// The journal's files that may still fail.
#[derive(Debug, Default)]
pub(crate) struct Told {
    // A lock of its own: the committer and the timer both ask, and what one of them was told the other must not miss.
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The newest last.
    files: Vec<File>,
    /// What was told. It is told once, and holds for ever.
    failed: Option<Fault>,
}

impl Told {
    /// Asks for this file, too, from now on. False where it is gone.
    pub(crate) fn follow(&self, path: &Path) -> Result<bool, Fault> {
        match File::open(path) {
            Ok(file) => self.inner.lock().files.push(file),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Fault::io("the journal cannot be opened once more", error)),
        }
        Ok(true)
    }

    /// All files but the newest are whole and on disk: nothing is to be told of them.
    pub(crate) fn forget_earlier(&self) {
        let files = &mut self.inner.lock().files;
        files.drain(..files.len().saturating_sub(1));
    }

    /// As if that was told.
    #[cfg(test)]
    pub(crate) fn tell(&self, failed: Fault) {
        self.inner.lock().failed = Some(failed);
    }

    /// An error if a write of the journal has failed, whoever was told of it.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let inner = &mut *self.inner.lock();
        if inner.failed.is_none() {
            let told = inner.files.iter().find_map(|file| ask(file).err());
            inner.failed = told.map(|error| Fault::io("the journal was not written by an earlier sync", error));
        }
        inner.failed.clone().map_or(Ok(()), Err)
    }
}

/// What the system has to tell of a file.
#[cfg(target_os = "linux")]
fn ask(file: &File) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;

    // SAFETY: the call takes numbers alone, and touches no memory of ours; `file` keeps the descriptor open until it is back.
    let done = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE) };
    if done == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // Any other says that the question cannot be asked here.
    let is_told = matches!(error.raw_os_error(), Some(libc::EIO | libc::ENOSPC | libc::EDQUOT));
    if is_told { Err(error) } else { Ok(()) }
}

#[cfg(not(target_os = "linux"))]
fn ask(_file: &File) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use larder_core::list::{List, Listed};
    use larder_core::{Ctx, Key, Op, PutMode, StoreExt, Ttl, Want};

    use super::*;
    use crate::{Direct, Options};

    #[test]
    fn what_is_written_without_a_failure_is_not_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let told = Told::default();
        assert_eq!(told.check(), Ok(()), "there is no file yet");
        for number in 0..3 {
            let path = folder.path().join(format!("{number}.jnl"));
            std::fs::write(&path, [7; 5000]).unwrap();
            assert_eq!(told.follow(&path), Ok(true));
            assert_eq!(told.check(), Ok(()));
        }
        told.forget_earlier();
        assert_eq!(told.inner.lock().files.len(), 1);
        assert_eq!(told.check(), Ok(()));
        assert_eq!(told.follow(&folder.path().join("none")), Ok(false));
    }

    /// That a failure is told, and once to each who asks, is the proof's to show (`a_sync_that_fails_in_the_engine_is_heard_before_anything_is_acknowledged_behind_it`): a disk that fails is needed for it.
    #[test]
    fn what_was_told_once_holds() {
        let told = Told::default();
        let failed = Fault::io("the journal", std::io::Error::from_raw_os_error(libc::EIO));
        told.tell(failed.clone());
        assert_eq!(told.check(), Err(failed.clone()));
        assert_eq!(told.check(), Err(failed));
    }

    #[test]
    fn where_the_question_cannot_be_asked_nothing_is_told() {
        let (pipe, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(ask(&File::from(std::os::fd::OwnedFd::from(pipe))).is_ok());
    }

    #[tokio::test]
    async fn what_the_engine_shows_and_nobody_acknowledges_is_told_to_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let store = Options::new(folder.path()).open().unwrap();
        let put = Op::put(Key::new("k").unwrap(), PutMode::Set, "v", Ttl::Never);
        store.run_one(Ctx::default(), put).await.unwrap();
        let direct = Direct::new(store);
        let shared = direct.store().shared();
        shared.engine.told().tell(Fault::io("the journal", std::io::Error::from_raw_os_error(libc::EIO)));
        // The batch is written, and the engine shows it: everything is gone.
        let ticket = direct.clear().unwrap();
        std::future::poll_fn(|cx| match direct.poll_settled(ticket, cx) {
            Ok(settled) => settled.map(|()| panic!("it was acknowledged")),
            Err(_) => Poll::Ready(()),
        })
        .await;
        assert_eq!(shared.engine.generations().unwrap().current, 1);
        assert_eq!(direct.get(b"k").unwrap().0.unwrap().value, "v");
        assert_eq!(direct.store().scan(b"", 10, Want::VALUE).unwrap().len(), 1);
        let (mut walked, mut listed) = (0, 0);
        direct.walk(b"", 10, &mut |_, _| walked += 1).unwrap();
        let mut tell = |told: Listed<'_>| listed += usize::from(matches!(told, Listed::Key(_)));
        direct.store().list(Ctx::default(), b"", &mut tell).await.unwrap();
        assert_eq!((walked, listed), (1, 1));
        assert_eq!(direct.store().backup(Vec::new(), &mut |_| ()).unwrap().1.items, 1);
    }
}
