//! A store that several processes use in turns.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use larder_core::list::{List, Listed, Listing};
use larder_core::{Batch, Ctx, Error, ErrorKind, Op, Profile, Replies, Result, Run, Store};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::options::Options;
use crate::place;
use crate::store::{DurableStore, profile};

/// How long the store stays open after the last op: those that follow at once find it open.
const LINGER: Duration = Duration::from_millis(30);

/// A [`DurableStore`] that is open only while ops run, and a moment longer: processes of one machine use the folder in turns, each waiting for the others for up to
/// [`wait`](Options::wait). For commands and scripts, which hold it for one operation and then run a child, or wait for something; a program that works all day opens it for
/// itself, or serves it.
///
/// Guarantees are those of [`DurableStore`]; tokens are good from one turn to the next. Each turn opens the folder, some 10 ms, and longer with a full journal.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// use larder_core::{Key, StoreExt};
/// use larder_store_durable::Options;
/// let wait = std::time::Duration::from_secs(5);
/// let one = Options::new(folder.path()).wait(wait).open_shared()?;
/// let other = Options::new(folder.path()).wait(wait).open_shared()?;
/// assert_eq!(one.get(Key::new("k")?).await?, None);
/// assert_eq!(other.get(Key::new("k")?).await?, None);
/// # Ok(())
/// # }
/// ```
pub struct SharedStore {
    keeper: Option<Sender<Ask>>,
    /// Ends a wait of the keeper's for another process.
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    profile: Arc<Profile>,
}

/// Somebody who wants the store open.
struct Ask {
    since: Instant,
    reply: oneshot::Sender<Result<Arc<DurableStore>>>,
}

impl Options {
    /// Opens the store for use in turns with other processes. The folder is opened, or made, once, so that what is wrong with it is told now. It is not made again: where it is gone in a later turn, each op
    /// is [`ErrorKind::Lost`] until a store is there. Another store in its place, such as a restored one, is taken.
    ///
    /// # Errors
    /// Those of [`open`](Options::open).
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// let store = larder_store_durable::Options::new(folder.path()).open_shared()?;
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn open_shared(self) -> Result<SharedStore> {
        let is_over = self.patience.is_given_up.clone();
        let name = format!("file:{}", self.folder.display());
        let profile = Arc::new(profile(&name, &self));
        let store = Arc::new(self.clone().open()?);
        let (keeper, asked) = mpsc::channel();
        // It is there from now on: none is made in its place.
        let later = self.create(false);
        let spawned =
            std::thread::Builder::new().name("larder-keeper".to_owned()).spawn(move || keep(&later, &asked, store));
        let thread =
            spawned.map_err(|error| Error::new(ErrorKind::Unavailable, format!("no thread: {error}")).store(&name))?;
        Ok(SharedStore { keeper: Some(keeper), is_over, thread: Some(thread), profile })
    }
}

/// Opens the store when it is asked for, and closes it when nobody has it any more.
fn keep(options: &Options, asked: &Receiver<Ask>, store: Arc<DurableStore>) {
    let mut open = Some(store);
    // Those who asked while another was waited for have waited, too.
    let opened = |since: Instant| {
        let mut options = options.clone();
        options.patience.waited = since.elapsed();
        let folder = options.folder.clone();
        options.open().map(Arc::new).map_err(|error| told_as_gone(error, &folder))
    };
    loop {
        let ask = match &open {
            Some(_) => asked.recv_timeout(LINGER),
            None => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match ask {
            // Whoever asked may have given up meanwhile.
            Ok(Ask { reply, .. }) if reply.is_closed() => {}
            Ok(Ask { since, reply }) => {
                // One that has failed writes nothing until it is opened anew, and whoever reads would keep it for good.
                let whole = open.take().filter(|store| store.shared().failure().is_none());
                let store = whole.map_or_else(|| opened(since), Ok);
                open = store.as_ref().ok().cloned();
                _ = reply.send(store);
            }
            // Whoever runs an op has it, too.
            Err(RecvTimeoutError::Timeout) => open = open.filter(|store| Arc::strong_count(store) > 1),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Where there is no store any more, that is told rather than that none is to be made.
fn told_as_gone(error: Error, folder: &Path) -> Error {
    if error.kind() != ErrorKind::Config || !place::is_empty(folder).is_ok_and(|is_empty| is_empty) {
        return error;
    }
    let folder = folder.display();
    let detail = format!(
        "{folder} held the store in an earlier turn, and holds none any more: restore a backup, or open it anew to begin with nothing"
    );
    Error::new(ErrorKind::Lost, detail).store(format!("file:{folder}"))
}

impl SharedStore {
    pub(crate) async fn get(&self, ctx: Ctx) -> Result<Arc<DurableStore>> {
        let gone = || {
            Error::new(ErrorKind::Unavailable, "the thread that opens the store has ended").store(&self.profile.store)
        };
        let (reply, answer) = oneshot::channel();
        self.keeper.as_ref().ok_or_else(gone)?.send(Ask { since: Instant::now(), reply }).map_err(|_| gone())?;
        let opened = async { answer.await.map_err(|_| gone())? };
        // Without a runtime there is no timer: the wait for another process ends by itself.
        let Some(deadline) = ctx.deadline.filter(|_| Handle::try_current().is_ok()) else { return opened.await };
        tokio::time::timeout_at(deadline.into(), opened).await.unwrap_or_else(|_| {
            let detail = "the deadline came while another process had the store open";
            Err(Error::new(ErrorKind::Timeout, detail).store(&self.profile.store))
        })
    }

    async fn run_all(&self, ctx: Ctx, batch: Batch) -> Replies {
        match self.get(ctx).await {
            Ok(store) => store.run(ctx, batch).await,
            Err(error) => batch.iter().map(|op: &Op| Err(error.clone().op(op))).collect(),
        }
    }
}

impl Store for SharedStore {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(self.run_all(ctx, batch))
    }
}

/// The store is open until the listing ends.
impl List for SharedStore {
    fn list<'a>(&'a self, ctx: Ctx, prefix: &'a [u8], tell: &'a mut (dyn FnMut(Listed<'_>) + Send)) -> Listing<'a> {
        Box::pin(async move { self.get(ctx).await?.list(ctx, prefix, tell).await })
    }
}

impl Drop for SharedStore {
    fn drop(&mut self) {
        self.keeper = None;
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore").field("store", &self.profile.store).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use larder_core::{Key, PutMode, StoreExt, Ttl, Want};

    use super::*;
    use crate::fault::{Fault, Harm};

    async fn put(store: &SharedStore) -> Result<()> {
        let put = Op::put(Key::new("k")?, PutMode::Set, "v", Ttl::Never);
        store.run_one(Ctx::default(), put).await.map(drop)
    }

    #[tokio::test]
    async fn a_store_that_is_gone_between_two_turns_is_not_made_anew_and_one_that_is_restored_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("store");
        let shared = Options::new(&at).wait(Duration::from_secs(20)).open_shared().unwrap();
        put(&shared).await.unwrap();
        // No turn of its own lasts while this has the folder.
        let other = Options::new(&at).wait(Duration::from_secs(20)).open().unwrap();
        let (dump, _) = other.backup(Vec::new(), &mut |_| ()).unwrap();
        drop(other);
        std::fs::remove_dir_all(&at).unwrap();
        for _ in 0..3 {
            let error = put(&shared).await.unwrap_err();
            assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Lost, false), "{error}");
            assert!(error.to_string().contains(&at.display().to_string()), "{error}");
            assert!(!at.exists());
        }
        Options::new(&at).restore(&dump[..], &mut |_| ()).unwrap();
        assert_eq!(
            shared.get(Ctx::default()).await.unwrap().get(Key::new("k").unwrap()).await.unwrap().unwrap().value,
            "v"
        );
    }

    /// The disk has recovered, and somebody reads all the time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_store_that_has_failed_is_opened_anew_though_it_is_asked_for_all_the_time() {
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Options::new(folder.path()).wait(Duration::from_secs(20)).open_shared().unwrap());
        put(&shared).await.unwrap();
        let reader = tokio::spawn({
            let shared = shared.clone();
            async move {
                while shared.run_one(Ctx::default(), Op::get(Key::new("k").unwrap(), Want::VALUE)).await.is_ok() {
                    tokio::time::sleep(LINGER / 6).await;
                }
            }
        });
        let store = shared.get(Ctx::default()).await.unwrap();
        store.shared().fail(&Fault { harm: Harm::Unavailable, detail: "as a disk does".to_owned() });
        drop(store);
        let until = Instant::now() + Duration::from_secs(10);
        while let Err(error) = put(&shared).await {
            assert!(Instant::now() < until, "{error}");
            tokio::time::sleep(LINGER / 6).await;
        }
        assert!(!reader.is_finished(), "nobody who reads is told of it");
        reader.abort();
    }
}
