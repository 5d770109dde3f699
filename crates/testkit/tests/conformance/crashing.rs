//! A durable store that crashes now and then, and is opened anew.
//!
//! A crash here is what `kill -9` leaves: the files as they are at that moment, while the store is open, copied to another folder. The old process, as
//! it were, is closed only then.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_core::{Batch, Ctx, Profile, Run, Store, StoreRef};
use tempfile::TempDir;
use tokio::sync::RwLock;

/// The first crashes come before these batches, counted from 0: most cases have no more than a few.
const EARLY: [u64; 2] = [1, 6];
/// Batches between two crashes from then on.
const CRASH_EVERY: u64 = 50;
/// Cases of a single batch, or none, which have no middle: they crash at their end alone.
const TOO_SHORT: &[&str] = &[
    "a_batch_keeps_the_order_of_one_key",
    "budget_lock_open",
    "ranges_keep_their_order_in_a_batch",
    "structures_refuse_empty_and_long_names",
    "touch_of_nothing_is_a_miss",
];
/// What is compared at once in the search for the end of a journal.
const CHUNK_BYTES: usize = 64 << 10;

/// The store of the moment, and its folder.
#[derive(Debug)]
struct Life {
    store: Option<StoreRef>,
    folder: TempDir,
}

/// A store that crashes every now and then.
#[derive(Debug)]
pub(crate) struct Crashing {
    /// Read for each batch, written for a crash: those under way end first.
    life: RwLock<Life>,
    options: &'static str,
    batches: AtomicU64,
    crashes: AtomicU64,
    profile: Arc<Profile>,
}

impl Crashing {
    pub(crate) async fn start(options: &'static str) -> Crashing {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path(), options).await;
        let profile = store.profile();
        let life = Life { store: Some(store), folder };
        let (batches, crashes) = (AtomicU64::new(0), AtomicU64::new(0));
        Crashing { life: RwLock::new(life), options, batches, crashes, profile }
    }

    /// Looks whether the case of that name crashed in its middle; one that has none crashes now, and what is left is opened.
    ///
    /// # Errors
    /// It did not, or did though it is listed as too short.
    pub(crate) async fn end(&self, case: &str) -> Result<(), String> {
        let (batches, crashes) = (self.batches.load(Ordering::Relaxed), self.crashes.load(Ordering::Relaxed));
        match (crashes, TOO_SHORT.contains(&case)) {
            (0, false) => return Err(format!("nothing crashed in its {batches} batches")),
            (1.., true) => return Err(format!("{crashes} crashes: it is no case without a middle any more")),
            (0, true) => self.crash().await,
            (1.., false) => {}
        }
        Ok(())
    }

    async fn crash(&self) {
        let mut life = self.life.write().await;
        let left = tempfile::tempdir().expect("a folder");
        copy(life.folder.path(), left.path());
        life.store = None;
        life.store = Some(open(left.path(), self.options).await);
        life.folder = left;
        self.crashes.fetch_add(1, Ordering::Relaxed);
    }
}

impl Store for Crashing {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            let number = self.batches.fetch_add(1, Ordering::Relaxed);
            if EARLY.contains(&number) || number % CRASH_EVERY == CRASH_EVERY - 1 {
                self.crash().await;
            }
            let life = self.life.read().await;
            life.store.as_ref().expect("a store but in a crash").run(ctx, batch).await
        })
    }
}

async fn open(folder: &Path, options: &str) -> StoreRef {
    let url = format!("file:{}?{options}", folder.display());
    larder::open(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Copies a folder. The zeros at the end of a journal are left out, as nobody needs 64 MB of them; and a note that is being written, which an open store renames meanwhile.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).expect("a new folder");
            copy(&entry.path(), &target);
        } else if target.extension().is_none_or(|extension| extension != "new") {
            let mut bytes = std::fs::read(entry.path()).expect("a file");
            if target.extension().is_some_and(|extension| extension == "jnl") {
                bytes.truncate(used_bytes(&bytes));
            }
            std::fs::write(&target, bytes).expect("a copy");
        }
    }
}

/// How many bytes there are up to the last that is no zero.
fn used_bytes(bytes: &[u8]) -> usize {
    let is_zero = |chunk: &&[u8]| **chunk == [0; CHUNK_BYTES][..chunk.len()];
    let zeros: usize = bytes.rchunks(CHUNK_BYTES).take_while(is_zero).map(<[u8]>::len).sum();
    let rest = &bytes[..bytes.len() - zeros];
    rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
}
