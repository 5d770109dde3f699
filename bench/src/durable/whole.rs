//! A whole store: what it takes on disk, also after all of it was written over at random, and how soon it answers once it was closed, or killed under load.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Batch, Ctx, Op, PutMode, Store as _, StoreExt as _, Ttl};
use larder_store_durable::{DurableStore, Options, Sync};
use tokio::runtime::Runtime;

use super::{Ground, KEY_BYTES, VALUE_BYTES, WHOLE, key};
use crate::Result;
use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::memcached::runtime;
use crate::progress::Progress;

const BATCH_OPS: u64 = 1_000;
/// For so long a process writes as fast as it can, before it is killed: long enough for a journal file of 64 MiB to be full, and for tables to be written beside.
const LOAD: Duration = Duration::from_secs(3);
/// With nothing written nor removed for so long, merges are at their end.
const REST: Duration = Duration::from_secs(10);
const OPENED_MS_MAX: f64 = 2_000.0;
const DISK_MAX: f64 = 1.6;
const LARDER: &str = "larder";

/// What a whole store takes on disk, and how soon it answers.
pub(super) fn measure(ground: &Ground<'_>, progress: &Progress) -> Result<Vec<Contest>> {
    let whole = Whole { ground, progress, folder: ground.place(WHOLE), items: ground.plan.items };
    let store = whole.open()?;
    fill(&ground.runtime, &store, whole.items)?;
    drop(store);
    let filled = whole.disk("disk over raw data")?;
    let closed = whole.opened("opened, first answer", |_| Ok(()))?;
    let mut journals = 0;
    let killed = whole.opened("killed under load, opened, first answer", |folder| {
        let mut writer = Writer::start(folder, whole.items)?;
        thread::sleep(LOAD);
        writer.kill()?;
        journals = journals.max(journal_bytes(folder)?);
        Ok(())
    })?;
    // Of a run that wrote next to nothing the figure would be that of a closed store.
    if journals < 32 << 20 {
        return Err(format!("the journals had {journals} bytes at most when a writer was killed").into());
    }
    let store = whole.open()?;
    write_over(&ground.runtime, &store, whole.items, whole.items)?;
    store.settle()?;
    whole.rest()?;
    drop(store);
    let written_over = whole.disk("disk over raw data, written over at random")?;
    Ok(vec![filled, written_over, closed, killed])
}

struct Whole<'a> {
    ground: &'a Ground<'a>,
    progress: &'a Progress,
    folder: PathBuf,
    items: u64,
}

impl Whole<'_> {
    fn open(&self) -> Result<DurableStore> {
        Ok(Options::new(&self.folder).sync(Sync::Never).open()?)
    }

    /// Waits until the engine has merged what it will: the folder has been as large for so long.
    fn rest(&self) -> Result<()> {
        let (mut bytes, mut since) = (bytes_in(&self.folder)?, Instant::now());
        while since.elapsed() < REST {
            thread::sleep(REST / 20);
            let now = bytes_in(&self.folder)?;
            if now != bytes {
                (bytes, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn disk(&self, what: &str) -> Result<Contest> {
        let raw_bytes = self.items * (KEY_BYTES + VALUE_BYTES) as u64;
        let disk = Contestant::new(LARDER, String::new(), || Ok(bytes_in(&self.folder)? as f64 / raw_bytes as f64));
        self.hold(what, Unit::Times, 1, disk, DISK_MAX)
    }

    /// How long it takes from opening to the first item, after something was done to the folder.
    fn opened(&self, what: &str, mut before: impl FnMut(&Path) -> Result<()>) -> Result<Contest> {
        let mut rng = fastrand::Rng::with_seed(1);
        let reopen = Contestant::new(LARDER, String::new(), || {
            before(&self.folder)?;
            let from = Instant::now();
            let store = Options::new(&self.folder).open()?;
            let found = self.ground.runtime.block_on(store.get(key(rng.u64(..self.items))?))?;
            let elapsed = from.elapsed();
            found.map(|_| elapsed.as_secs_f64() * 1e3).ok_or_else(|| "an item is gone".into())
        });
        self.hold(what, Unit::Millis, self.ground.rounds(), reopen, OPENED_MS_MAX)
    }

    fn hold(&self, what: &str, unit: Unit, rounds: usize, larder: Contestant<'_>, most: f64) -> Result<Contest> {
        let goal = Goal { ours: LARDER, against: Vec::new(), limit: Some(Limit::AtMost(most)) };
        contest::hold(self.progress, &format!("{WHOLE}: {what}"), unit, rounds, vec![larder], &[goal])
    }
}

/// Fills a store with items, in batches.
pub(super) fn fill(runtime: &Runtime, store: &DurableStore, items: u64) -> Result<()> {
    write(runtime, store, 0..items)?;
    Ok(store.settle()?)
}

/// Writes over so many of the items, drawn at random.
fn write_over(runtime: &Runtime, store: &DurableStore, items: u64, times: u64) -> Result<()> {
    let mut rng = fastrand::Rng::new();
    write(runtime, store, (0..times).map(|_| rng.u64(..items)))
}

fn write(runtime: &Runtime, store: &DurableStore, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
    let mut numbers = numbers.into_iter().peekable();
    while numbers.peek().is_some() {
        let mut batch = Batch::new();
        for number in numbers.by_ref().take(BATCH_OPS as usize) {
            // Values that do not compress to nothing.
            let value: Bytes = std::iter::repeat_with(|| fastrand::u8(..)).take(VALUE_BYTES).collect();
            batch.push(Op::put(key(number)?, PutMode::Set, value, Ttl::Never));
        }
        for reply in runtime.block_on(store.run(Ctx::default(), batch)) {
            reply?;
        }
    }
    Ok(())
}

/// Writes over items of a store for ever: the process that is killed.
pub(crate) fn overwrite(folder: &Path, items: u64) -> Result<()> {
    let (runtime, store) = (runtime()?, Options::new(folder).sync(Sync::Never).open()?);
    loop {
        write_over(&runtime, &store, items, BATCH_OPS)?;
    }
}

/// The process that writes.
struct Writer(Child);

impl Writer {
    fn start(folder: &Path, items: u64) -> Result<Writer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("overwrite").arg(folder).arg(items.to_string());
        Ok(Writer(command.stdin(Stdio::null()).spawn()?))
    }

    /// Kills it (SIGKILL): it must not have ended by itself.
    fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.0.try_wait()? {
            return Err(format!("the process that writes ended by itself: {status}").into());
        }
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// What the files of a folder take on disk.
pub(crate) fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    each_file(folder, &mut |_, on_disk| bytes += on_disk)?;
    Ok(bytes)
}

fn journal_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut count =
        |path: &Path, on_disk| bytes += if path.extension().is_some_and(|is| is == "jnl") { on_disk } else { 0 };
    each_file(folder, &mut count)?;
    Ok(bytes)
}

/// Shows each file of a folder, and what it takes on disk.
fn each_file(folder: &Path, see: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    for entry in fs::read_dir(folder)? {
        let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if metadata.is_dir() {
            each_file(&path, see)?;
        } else {
            // Blocks of 512 bytes: what is prepared and not written takes none.
            see(&path, metadata.blocks() * 512);
        }
    }
    Ok(())
}
