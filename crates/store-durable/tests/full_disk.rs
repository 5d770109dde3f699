//! A small disk that is written full: what the engine still has to do, tables to merge most of all, has room. The disk is memory, in a name space of the test's own.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

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

/// A command with a file system of its own at `folder`, of so many megabytes, that is gone with it.
fn on_a_small_disk(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    let mount = format!("mount -t tmpfs -o size={DISK_MB}m none \"$0\" && {script}");
    command.args(["-rm", "sh", "-c", &mount]).arg(folder);
    command
}

fn open(folder: &Path) -> DurableStore {
    Options::new(folder.join("store")).sync(Sync::Never).open().unwrap()
}

async fn delete(store: &DurableStore, nth: u64) {
    store.run_one(Ctx::default(), Op::delete(key(&format!("{nth:016x}")))).await.unwrap();
}

#[tokio::test]
async fn child_that_fills_its_disk() {
    let Some(folder) = std::env::var_os("LARDER_SMALL_DISK") else { return };
    let folder = Path::new(&folder);
    let store = open(folder);
    let (mut written, mut random) = (0, fastrand::Rng::with_seed(7));
    let mut full = 0;
    while full < TIMES_FULL {
        let keys: Vec<u64> = (0..BATCH_OPS).map(|_| random.u64(..)).collect();
        let value = |nth: u64| vec![nth as u8; VALUE_BYTES];
        let put = |nth: &u64| Op::put(key(&format!("{nth:016x}")), PutMode::Set, value(*nth), Ttl::Never);
        let replies = store.run(Ctx::default(), keys.iter().map(put).collect()).await;
        written += replies.iter().filter(|reply| reply.is_ok()).count();
        if let Some(Err(error)) = replies.into_iter().find(Result::is_err) {
            println!("wrote {written}: {error}");
            assert!(error.kind() == ErrorKind::Full && !error.is_unknown(), "{error}");
            full += 1;
            tokio::time::sleep(REST).await;
        }
    }
    assert!(written * VALUE_BYTES > DISK_MB << 16, "{written}");
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
    println!("went on");
}

#[test]
fn a_disk_that_is_written_full_has_room_for_what_the_engine_has_begun() {
    let folder = tempfile::tempdir().unwrap();
    let can = on_a_small_disk(folder.path(), "true").output().is_ok_and(|output| output.status.success());
    if !can && std::env::var_os("CI").is_none() {
        return println!("left out: no file system can be mounted here (unshare -rm)");
    }
    let mut child = on_a_small_disk(folder.path(), "exec \"$@\"");
    child.arg(std::env::current_exe().unwrap());
    child.args(["--exact", "child_that_fills_its_disk", "--nocapture"]).env("LARDER_SMALL_DISK", folder.path());
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("went on"), "{text}");
}
