//! The folder: who may open it, and what is told where part of it is gone.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{count_of, get, incr, set};
use larder_core::{Error, ErrorKind};
use larder_store_durable::{DurableStore, Options};

fn open(folder: &Path) -> Result<DurableStore, Error> {
    Options::new(folder).open()
}

/// Asserts that a folder is open in this process.
#[track_caller]
fn is_held(opened: Result<DurableStore, Error>) {
    let error = opened.expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("is open in process {}", std::process::id())), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_is_removed_lets_nobody_in() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()).unwrap());
    let ends = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|number| {
            let (store, ends) = (store.clone(), ends.clone());
            tokio::spawn(async move {
                let (name, mut acknowledged) = (format!("n{number}"), 0);
                while !ends.load(Ordering::Relaxed) {
                    acknowledged = incr(&store, &name).await.unwrap();
                }
                (name, acknowledged)
            })
        })
        .collect();
    let path = folder.path().to_owned();
    let intruder = tokio::task::spawn_blocking(move || {
        for _ in 0..30 {
            std::fs::remove_file(path.join("lock")).unwrap();
            is_held(open(&path));
            // Nor by the one that it has made, nor by a restore.
            is_held(Options::new(&path).wait(Duration::from_millis(20)).open());
        }
    });
    intruder.await.unwrap();
    ends.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.push(writer.await.unwrap());
    }
    drop(store);
    let store = open(folder.path()).unwrap();
    for (name, count) in acknowledged {
        assert!(count > 0);
        assert_eq!(count_of(&store, &name).await, count);
    }
    assert_eq!(store.stats().unwrap().torn_bytes, 0);
}

/// As a process does whose folder could not be locked.
#[tokio::test]
async fn files_that_an_engine_has_open_are_not_mended() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    set(&store, "k", "v").await.unwrap();
    drop(store);
    let journal = folder.path().join("engine").join("0.jnl");
    let mut bytes = common::without_zeros(&journal);
    bytes.extend_from_slice(b"torn");
    std::fs::write(&journal, &bytes).unwrap();
    let engine = std::fs::File::open(folder.path().join("engine").join("lock")).unwrap();
    engine.lock().unwrap();
    is_held(open(folder.path()));
    assert_eq!(std::fs::read(&journal).unwrap(), bytes);
    engine.unlock().unwrap();
    let store = open(folder.path()).unwrap();
    assert_eq!(store.stats().unwrap().torn_bytes, 4);
    assert_eq!(get(&store, "k").await.unwrap(), "v");
}

/// What is left is told as damage, and stays.
#[tokio::test]
async fn a_folder_of_which_no_more_than_the_lock_is_left_was_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let lock = folder.path().join("lock");
    let gut = || {
        std::fs::remove_dir_all(folder.path().join("engine")).unwrap();
        ["state", "larder"].iter().for_each(|name| _ = std::fs::remove_file(folder.path().join(name)));
    };
    let store = open(folder.path()).unwrap();
    set(&store, "k", "v").await.unwrap();
    let (dump, _) = store.backup(Vec::new(), &mut |_| ()).unwrap();
    drop(store);
    for round in 0..3 {
        gut();
        let kept = std::fs::read(&lock).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{round}: {error}");
        assert!(error.to_string().contains("no more than the file \"lock\" is left"), "{error}");
        assert_eq!(Options::new(folder.path()).create(false).open().unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(std::fs::read(&lock).unwrap(), kept);
        // As that says, to begin anew; or to restore here.
        std::fs::remove_file(&lock).unwrap();
        if round == 1 {
            Options::new(folder.path()).restore(&dump[..], &mut |_| ()).unwrap();
            continue;
        }
        let store = open(folder.path()).unwrap();
        assert_eq!(get(&store, "k").await, None);
    }
    // An older release leaves its process id alone, and a process that is killed may leave less: the next one that opens the store names it.
    for left in ["", "4242\n", "\0\0\0\0"] {
        drop(open(folder.path()).unwrap());
        std::fs::write(&lock, left).unwrap();
        drop(open(folder.path()).unwrap());
        let named = std::fs::read_to_string(&lock).unwrap();
        assert_eq!(named.lines().count(), 2, "{named:?}");
        assert_eq!(named.lines().next().unwrap(), std::process::id().to_string());
    }
    gut();
    std::fs::write(&lock, "4242\n").unwrap();
    drop(open(folder.path()).unwrap());
}

/// All folders in a folder and those below it.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<PathBuf> = paths.filter(|path| path.is_dir()).collect();
    found.iter().flat_map(|path| folders(path).into_iter().chain([path.clone()])).collect()
}

#[tokio::test]
async fn each_folder_that_is_gone_is_told() {
    let whole = tempfile::tempdir().unwrap();
    let store = open(whole.path()).unwrap();
    for number in 0..100 {
        set(&store, &format!("k{number}"), vec![7; 1_000]).await.unwrap();
    }
    store.settle().unwrap();
    set(&store, "last", "v").await.unwrap();
    drop(store);
    let all = folders(whole.path());
    let names = ["engine", "engine/keyspaces", "engine/keyspaces/0", "engine/keyspaces/1", "engine/keyspaces/1/tables"];
    names.iter().for_each(|name| assert!(all.contains(&whole.path().join(name)), "{name} is not in {all:?}"));
    for gone in all {
        let gone = gone.strip_prefix(whole.path()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        common::copy(whole.path(), folder.path());
        std::fs::remove_dir_all(folder.path().join(gone)).unwrap();
        for _ in 0..2 {
            let told = open(folder.path()).map(drop);
            let error = told.expect_err(&format!("{} is gone", gone.display()));
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{}: {error}", gone.display());
        }
    }
}
