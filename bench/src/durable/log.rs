//! The least that could be durable: a file that is appended to and synced, many writers to a sync. It can't be read from.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::Result;

/// As the engine prepares its journal.
const FILE_BYTES: u64 = 64 << 20;

/// A record that waits to be written.
struct Waiting {
    record: Bytes,
    written: oneshot::Sender<()>,
}

/// A log.
#[derive(Clone)]
pub(super) struct BareLog {
    queue: Arc<Sender<Waiting>>,
}

impl BareLog {
    pub(super) fn open(folder: &Path) -> Result<BareLog> {
        let file = OpenOptions::new().write(true).create_new(true).open(folder.join("log"))?;
        file.set_len(FILE_BYTES)?;
        file.sync_all()?;
        let (queue, waiting) = mpsc::channel();
        thread::Builder::new().name("bare-log".to_owned()).spawn(move || write_all(file, &waiting))?;
        Ok(BareLog { queue: Arc::new(queue) })
    }

    /// Waits until the record is on disk.
    pub(super) async fn append(&self, record: Bytes) -> Result<()> {
        let (written, done) = oneshot::channel();
        self.queue.send(Waiting { record, written }).map_err(|_| "the log has ended")?;
        done.await.map_err(|_| "the log has ended".into())
    }
}

/// Whoever waits while it syncs is written by the next write. An error ends it, and is told by everybody's.
fn write_all(mut file: File, waiting: &Receiver<Waiting>) {
    let (mut bytes, mut answers) = (Vec::new(), Vec::new());
    while let Ok(first) = waiting.recv() {
        for one in std::iter::once(first).chain(waiting.try_iter()) {
            bytes.extend_from_slice(&one.record);
            answers.push(one.written);
        }
        if file.write_all(&bytes).and_then(|()| file.sync_data()).is_err() {
            return;
        }
        bytes.clear();
        answers.drain(..).for_each(|answer| _ = answer.send(()));
    }
}
