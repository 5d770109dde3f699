//! A small disk that is written full: what the engine still has to do, tables to merge most of all, has room. The disk is memory, in a name space of the test's own.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{get, key};
use larder_core::{Ctx, ErrorKind, Op, PutMode, Store, StoreExt, Ttl};
use larder_store_durable::{DurableStore, Options, Sync};

const DISK_MB: usize = 600;
/// One batch, of the keys that are drawn for it.
const BATCH_OPS: usize = 1_000;
const VALUE_BYTES: usize = 1_000;
/// So often it is full, and rests.
const TIMES_FULL: usize = 3;
/// Tables that are written behind that: more than the engine leaves unmerged.
const TABLES: usize = 6;
/// For the engine to end what it has begun.
const REST: Duration = Duration::from_millis(1_500);
/// What a store is to leave free, and what it is when it is opened anew.
const LEFT_FREE_BYTES: u64 = 24 << 20;
const MORE_FREE_BYTES: u64 = 320 << 20;
/// So many values of a megabyte follow what was deleted.
const NEW: usize = 20;
/// Until what was removed has given its room back. A merge that runs first takes half a minute where ten others share two cores.
const PATIENCE: Duration = Duration::from_secs(90);

/// A command with a file system of its own at `folder`, of so many megabytes, that is gone with it.
fn on_a_small_disk(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    let mount = format!("mount -t tmpfs -o size={DISK_MB}m none \"$0\" && {script}");
    command.args(["-rm", "sh", "-c", &mount]).arg(folder);
    command
}

fn options(folder: &Path) -> Options {
    Options::new(folder.join("store")).sync(Sync::Never)
}

fn open(folder: &Path) -> DurableStore {
    options(folder).open().unwrap()
}

async fn delete(store: &DurableStore, nth: u64) {
    store.run_one(Ctx::default(), Op::delete(key(&format!("{nth:016x}")))).await.unwrap();
}

/// Writes until it is full, so often, and a rest gives no room any more: how many batches.
async fn fill(store: &DurableStore, times_full: usize) -> usize {
    let (mut written, mut random) = (0, fastrand::Rng::with_seed(7));
    let (mut full, mut in_vain, mut batches) = (0, 0, 0);
    while full < times_full || in_vain < 2 {
        batches += 1;
        let keys: Vec<u64> = (0..BATCH_OPS).map(|_| random.u64(..)).collect();
        let value = |nth: u64| vec![nth as u8; VALUE_BYTES];
        let put = |nth: &u64| Op::put(key(&format!("{nth:016x}")), PutMode::Set, value(*nth), Ttl::Never);
        let replies = store.run(Ctx::default(), keys.iter().map(put).collect()).await;
        let stored = replies.iter().filter(|reply| reply.is_ok()).count();
        written += stored;
        if let Some(Err(error)) = replies.into_iter().find(Result::is_err) {
            println!("wrote {written}: {error}");
            assert!(error.kind() == ErrorKind::Full && !error.is_unknown(), "{error}");
            full += 1;
            in_vain = if stored == 0 { in_vain + 1 } else { 0 };
            tokio::time::sleep(REST).await;
            if full >= times_full {
                store.settle().unwrap();
                tokio::time::sleep(REST).await;
            }
        }
    }
    assert!(written * VALUE_BYTES > DISK_MB << 16, "{written}");
    batches
}

/// Deletes all that so many batches have written, and has room for others then.
async fn make_room(store: &DurableStore, batches: usize) {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..batches {
        let deletes = (0..BATCH_OPS).map(|_| Op::delete(key(&format!("{:016x}", random.u64(..))))).collect();
        assert!(store.run(Ctx::default(), deletes).await.iter().all(Result::is_ok));
    }
    let begun = Instant::now();
    for nth in 0..NEW {
        let put = || Op::put(key(&format!("n{nth}")), PutMode::Set, vec![7; 1 << 20], Ttl::Never);
        while let Err(error) = store.run_one(Ctx::default(), put()).await {
            assert!(begun.elapsed() < PATIENCE && error.kind() == ErrorKind::Full, "{nth}: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    println!("there was room after {:?}", begun.elapsed());
}

#[tokio::test]
async fn child_that_fills_its_disk() {
    let Some(folder) = std::env::var_os("LARDER_SMALL_DISK") else { return };
    let folder = Path::new(&folder);
    let store = open(folder);
    let batches = fill(&store, TIMES_FULL).await;
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..TABLES {
        let (gone, kept) = (random.u64(..), random.u64(..));
        delete(&store, gone).await;
        assert_eq!(get(&store, &format!("{kept:016x}")).await.unwrap().len(), VALUE_BYTES);
        store.settle().unwrap();
        tokio::time::sleep(REST).await;
    }
    delete(&store, random.u64(..)).await;
    drop(store);
    let store = open(folder);
    delete(&store, random.u64(..)).await;
    tokio::time::sleep(REST).await;
    delete(&store, random.u64(..)).await;
    make_room(&store, batches).await;
    println!("went on");
}

#[tokio::test]
async fn child_that_finds_its_disk_full() {
    let Some(folder) = std::env::var_os("LARDER_SMALL_DISK") else { return };
    let folder = Path::new(&folder);
    let store = options(folder).reserve_bytes(LEFT_FREE_BYTES).open().unwrap();
    let batches = fill(&store, 1).await;
    drop(store);
    let store = options(folder).reserve_bytes(MORE_FREE_BYTES).open().unwrap();
    let put = Op::put(key("new"), PutMode::Set, vec![7; VALUE_BYTES], Ttl::Never);
    assert_eq!(store.run_one(Ctx::default(), put).await.unwrap_err().kind(), ErrorKind::Full);
    make_room(&store, batches).await;
    println!("went on");
}

#[test]
fn a_disk_that_is_written_full_has_room_for_what_the_engine_has_begun() {
    run_on_a_small_disk("child_that_fills_its_disk");
}

/// As of a former release, which needed less free.
#[test]
fn a_store_that_is_full_when_it_is_opened_gives_room_back_for_what_is_deleted() {
    run_on_a_small_disk("child_that_finds_its_disk_full");
}

fn run_on_a_small_disk(test: &str) {
    let folder = tempfile::tempdir().unwrap();
    let can = on_a_small_disk(folder.path(), "true").output().is_ok_and(|output| output.status.success());
    if !can && std::env::var_os("CI").is_none() {
        return println!("left out: no file system can be mounted here (unshare -rm)");
    }
    let mut child = on_a_small_disk(folder.path(), "exec \"$@\"");
    child.arg(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env("LARDER_SMALL_DISK", folder.path());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    println!("{text}");
    assert!(output.status.success() && text.contains("went on"), "{text}");
}
