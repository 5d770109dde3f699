//! A store in a folder that is set back under handles that live: restored from a backup, or an older copy of the folder put in its place. Every structure that
//! says it detects that, does; a witness tells the copy before anybody reads it.
//!
//! The folder is served, or opened by processes in turns: in both, handles outlive what they stand on.

// What is asked where one primary alone fails over is asked there.
#[allow(dead_code)]
#[path = "redis_losses/handles.rs"]
mod handles;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use larder::{Counter, ErrorKind, LockGuard, Set, StoreRef};
use larder_server::{Config, DurableEngine, DurableOptions, Listen, Server};
use tempfile::TempDir;

use crate::handles::{Handles, ROUNDS, begin, older_numbers_and_members_go_unnoticed, said, silent_of, write};

/// How long the folder may be in use by somebody who takes turns.
const TURN: Duration = Duration::from_secs(5);

/// How the folder comes to be older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    Restored,
    Copied,
}

/// A folder, what was kept of it, and what stands on it.
struct Ground {
    folder: TempDir,
    served: Option<(Server, SocketAddr)>,
}

impl Ground {
    fn served() -> Ground {
        let folder = tempfile::tempdir().unwrap();
        let mut ground = Ground { folder, served: None };
        ground.serve(([127, 0, 0, 1], 0).into());
        ground
    }

    fn in_turns() -> Ground {
        Ground { folder: tempfile::tempdir().unwrap(), served: None }
    }

    fn place(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    fn options(&self) -> DurableOptions {
        DurableOptions::new(self.place()).wait(TURN)
    }

    fn serve(&mut self, addr: SocketAddr) {
        let engine = DurableEngine::new(self.options().open().unwrap());
        let server = Server::start(engine, Config { listen: vec![Listen::Tcp(addr)], threads: 2, ..Config::default() });
        let server = server.unwrap();
        let addr = server.addrs()[0];
        self.served = Some((server, addr));
    }

    async fn open(&self) -> StoreRef {
        let url = match &self.served {
            Some((_, addr)) => format!("memcached://{addr}?timeout_ms=10000&connect_timeout_ms=10000"),
            None => format!("file:{}?share=yes&wait_ms=5000", self.place().display()),
        };
        larder::open(&url).await.unwrap()
    }

    /// Does something to the folder while nobody has it open, and serves it again at the same place.
    fn meanwhile<T>(&mut self, what: impl FnOnce(&Ground) -> T) -> T {
        let addr = self.served.take().map(|(server, addr)| {
            server.stop();
            addr
        });
        // Whoever takes turns lets go within 30 ms; who opens it next waits for that.
        drop(self.options().open().unwrap());
        let done = what(self);
        if let Some(addr) = addr {
            self.serve(addr);
        }
        done
    }

    /// Keeps what there is now; the other end puts it back.
    fn keep(&mut self, back: Back) -> impl FnOnce(&Ground) + use<> {
        let kept = self.folder.path().join("kept");
        self.meanwhile(|ground| match back {
            Back::Copied => copy(&ground.place(), &kept),
            Back::Restored => {
                let store = ground.options().open().unwrap();
                std::fs::write(&kept, store.backup(Vec::new(), &mut |_| ()).unwrap().0).unwrap();
            }
        });
        move |ground: &Ground| {
            std::fs::remove_dir_all(ground.place()).unwrap();
            match back {
                Back::Copied => copy(&kept, &ground.place()),
                Back::Restored => {
                    let dump = std::fs::File::open(&kept).unwrap();
                    ground.options().restore(dump, &mut |_| ()).unwrap();
                }
            }
        }
    }
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, to) = entry.map(|entry| (entry.path(), to.join(entry.file_name()))).unwrap();
        if path.is_dir() { copy(&path, &to) } else { _ = std::fs::copy(path, to).unwrap() }
    }
}

/// Opens all, and writes once: what is kept.
async fn first_round(store: &StoreRef) -> Handles {
    let mut handles = begin(store, "").await.unwrap();
    write(&mut handles, 1).await.unwrap();
    handles
}

/// Writes twice more, and takes the lock: what is gone.
async fn two_more_rounds(handles: &mut Handles) -> LockGuard {
    for round in 2..=ROUNDS {
        write(handles, round).await.unwrap();
    }
    handles.lock.acquire(Duration::from_secs(5)).await.unwrap()
}

async fn is_told(mut ground: Ground, back: Back) {
    let store = ground.open().await;
    let mut handles = first_round(&store).await;
    let put_back = ground.keep(back);
    // A client of a server that was away tells so until it has dialed again.
    said(|| handles.counter.get()).await.unwrap();
    let guard = two_more_rounds(&mut handles).await;
    ground.meanwhile(put_back);
    let silent = silent_of(&mut handles, &guard).await;
    assert!(silent.is_empty(), "{back:?}: {silent:#?}");
    older_numbers_and_members_go_unnoticed(&handles.silent).await;
    // Who has seen nothing newer takes what is there for all there ever was, and goes on from it.
    let fresh = ground.open().await;
    let set = Set::open(&fresh, "set").await.unwrap();
    assert!(set.has("1").await.unwrap() && !set.has("2").await.unwrap());
    let counter = Counter::open(&fresh, "counter").await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 5);
    counter.add(1).await.unwrap();
    assert_eq!(handles.counter.get().await.unwrap_err().kind(), ErrorKind::RolledBack, "it stays so");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_folder_that_is_restored_is_told_by_every_structure_that_detects_it() {
    is_told(Ground::served(), Back::Restored).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_a_served_folder_is_told_by_every_structure_that_detects_it() {
    is_told(Ground::served(), Back::Copied).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_used_in_turns_that_is_restored_is_told_by_every_structure_that_detects_it() {
    is_told(Ground::in_turns(), Back::Restored).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_copy_of_a_folder_used_in_turns_is_told_by_every_structure_that_detects_it() {
    is_told(Ground::in_turns(), Back::Copied).await;
}

/// Each structure's own word is needed only where there is no witness: with one nobody reads what went back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_witness_an_older_copy_is_told_whatever_is_asked_of_it() {
    let mut ground = Ground::in_turns();
    let witness = ground.folder.path().join("witness");
    let url = format!("file:{}?share=yes&wait_ms=5000&witness={}", ground.place().display(), witness.display());
    let store = larder::open(&url).await.unwrap();
    let mut handles = first_round(&store).await;
    // A fresh process says so, too: it has seen nothing.
    let put_back = ground.keep(Back::Copied);
    let guard = two_more_rounds(&mut handles).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    ground.meanwhile(put_back);
    let kinds = [
        handles.counter.get().await.unwrap_err().kind(),
        handles.set.has("1").await.unwrap_err().kind(),
        handles.array.elements().await.unwrap_err().kind(),
        handles.table.get("1").await.unwrap_err().kind(),
        handles.queue.pop().await.unwrap_err().kind(),
        handles.silent.fast.get().await.unwrap_err().kind(),
        handles.silent.set.members().await.unwrap_err().kind(),
        handles.silent.sorted.entries().await.unwrap_err().kind(),
        guard.renew().await.unwrap_err().kind(),
    ];
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::RolledBack), "{kinds:?}");
    assert_eq!(larder::open(&url).await.err().map(|error| error.kind()), Some(ErrorKind::RolledBack));
}
