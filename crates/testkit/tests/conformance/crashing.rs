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

/// Batches between two crashes.
const CRASH_EVERY: u64 = 50;

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
    profile: Arc<Profile>,
}

impl Crashing {
    pub(crate) async fn start(options: &'static str) -> Crashing {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path(), options).await;
        let profile = store.profile();
        let life = Life { store: Some(store), folder };
        Crashing { life: RwLock::new(life), options, batches: AtomicU64::new(0), profile }
    }

    async fn crash(&self) {
        let mut life = self.life.write().await;
        let left = tempfile::tempdir().expect("a folder");
        copy(life.folder.path(), left.path());
        life.store = None;
        life.store = Some(open(left.path(), self.options).await);
        life.folder = left;
    }
}

impl Store for Crashing {
    fn profile(&self) -> Arc<Profile> {
        self.profile.clone()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            if self.batches.fetch_add(1, Ordering::Relaxed) % CRASH_EVERY == CRASH_EVERY - 1 {
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

/// Copies a folder. The zeros at the end of a journal are left out, as nobody needs 64 MB of them.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir(&target).expect("a new folder");
            copy(&entry.path(), &target);
        } else {
            let mut bytes = std::fs::read(entry.path()).expect("a file");
            if target.extension().is_some_and(|extension| extension == "jnl") {
                bytes.truncate(bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
            }
            std::fs::write(&target, bytes).expect("a copy");
        }
    }
}
