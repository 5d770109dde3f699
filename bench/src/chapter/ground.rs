//! A store of its own for each layout, and what it holds.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use larder_core::list::{List, Listed};
use larder_core::{Batch, Ctx, Key, Op, PutMode, StoreExt, StoreRef, Ttl, Want};
use larder_store_durable::{DurableStore, Options, Sync};
use larder_store_memcached::{Config as MemcachedConfig, MemcachedStore};
use larder_store_memory::MemoryStore;
use larder_store_redis::{Config as RedisConfig, RedisStore};
use larder_testkit::redis::{RedisOptions, RedisServer};
use larder_testkit::servers::Memcached;
use tempfile::TempDir;

use crate::durable::bytes_in;
use crate::machine::rss_bytes;
use crate::{Plan, Result};

/// Before anything is measured a server has had so many items of each of these sizes, and lost them again: what it sets apart once, whatever it then holds (the first page
/// of slab classes, its hash table, its buffers, its code) is no part of what a layout takes.
const WARM_ITEMS: usize = 500;
const WARM_BYTES: [usize; 12] = [10, 40, 70, 100, 140, 190, 250, 330, 430, 550, 700, 900];
/// And one item of each of these: what grows by appends (a ledger of shards) passes through a class after the other, and the first page of each is set apart for whoever comes next.
/// The classes in which shards stand, of 4,544 and 8,880 bytes, are not among them: their pages are counted, all of them.
const WARM_ONCE_BYTES: [usize; 13] =
    [1_100, 1_400, 1_750, 2_200, 2_800, 3_500, 5_500, 7_000, 11_000, 13_700, 17_200, 21_500, 27_000];
/// Redis gives back the buffers of a connection that was idle for 2 s, a connection at a time.
const IDLE: Duration = Duration::from_secs(5);
/// A look with shorter rounds has no figures that matter, and waits for none.
const ROUND_MIN: Duration = Duration::from_millis(100);
/// How often the copy of a folder is begun anew, whose tables are put together meanwhile.
const COPIES_MAX: usize = 20;
/// A folder whose files are the same for so long is at rest.
const REST: Duration = Duration::from_millis(500);
const RESTS_MAX: usize = 240;
/// How many ops go out together.
const BATCH_OPS: usize = 8_192;
/// Of a folder that is read whole, how many items are read at once.
const PAGE_ITEMS: usize = 64;

/// What can be measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Memory,
    Folder,
    Memcached,
    Redis,
}

impl On {
    pub(super) const ALL: [On; 4] = [On::Memory, On::Folder, On::Memcached, On::Redis];

    pub(super) fn name(self) -> &'static str {
        match self {
            On::Memory => "in the process",
            On::Folder => "in a folder",
            On::Memcached => "on memcached",
            On::Redis => "on Redis",
        }
    }

    /// Of a process that has a folder open nothing is asked: its cache takes what it is told to.
    pub(super) fn resident_max(self, most: f64) -> Option<f64> {
        (self != On::Folder).then_some(most)
    }
}

/// A store, and what it stands in.
pub(super) struct Ground {
    at: At,
    idle: Duration,
    pub(super) store: StoreRef,
}

enum At {
    Memory(Arc<MemoryStore>),
    Folder(TempDir, Arc<DurableStore>),
    Memcached(Memcached),
    Redis(RedisServer),
}

/// What a store holds, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// What it says itself: of memcached the chunks in use, of Redis without what connections hold, which is no data; what the files of a folder take.
    pub(super) live: u64,
    /// What its process occupies; of a store in this process, and of a folder that it has open, nothing is told here.
    pub(super) resident: Option<u64>,
}

impl Ground {
    /// `limit` is a setting of Redis's, with its value.
    pub(super) async fn start(on: On, plan: &Plan, limit: Option<(&str, &str)>) -> Result<Ground> {
        let idle = if plan.window < ROUND_MIN { Duration::ZERO } else { IDLE };
        let ground = match on {
            On::Memory => {
                let memory = Arc::new(MemoryStore::new());
                Ground { store: memory.clone(), at: At::Memory(memory), idle }
            }
            On::Folder => {
                let folder = tempfile::tempdir()?;
                let store = Arc::new(Options::new(folder.path().join("store")).sync(Sync::Never).open()?);
                Ground { store: store.clone(), at: At::Folder(folder, store), idle }
            }
            On::Memcached => {
                let server = Memcached::start(plan.server, &["-m", "4096"]);
                let store = MemcachedStore::connect(MemcachedConfig::from_url(&server.url())?).await?;
                Ground { store: Arc::new(store), at: At::Memcached(server), idle }
            }
            On::Redis => {
                // For each command that it has met it keeps a histogram of 24,688 bytes, from its first use on: that is no data of anybody's.
                let options = RedisOptions::new().arg("latency-tracking", "no");
                let options = limit.map_or(options.clone(), |(name, value)| options.arg(name, value));
                let server = RedisServer::start(plan.redis, &options);
                let store = RedisStore::connect(RedisConfig::from_url(&server.url())?).await?;
                Ground { store: Arc::new(store), at: At::Redis(server), idle }
            }
        };
        if ground.url().is_some() {
            warm(&ground.store).await?;
        }
        if on == On::Redis {
            // What it gives back of that only now would be taken off what comes.
            tokio::time::sleep(idle).await;
        }
        Ok(ground)
    }

    pub(super) fn url(&self) -> Option<String> {
        match &self.at {
            At::Redis(server) => Some(server.url()),
            At::Memcached(server) => Some(server.url()),
            At::Memory(_) | At::Folder(..) => None,
        }
    }

    /// The same store on a connection of its own, where it stands on a server.
    pub(super) async fn connect(&self) -> Result<StoreRef> {
        Ok(match &self.at {
            At::Memory(_) | At::Folder(..) => self.store.clone(),
            At::Memcached(server) => {
                Arc::new(MemcachedStore::connect(MemcachedConfig::from_url(&server.url())?).await?)
            }
            At::Redis(server) => Arc::new(RedisStore::connect(RedisConfig::from_url(&server.url())?).await?),
        })
    }

    pub(super) fn held(&self) -> Result<Held> {
        Ok(match &self.at {
            At::Memory(memory) => Held { live: memory.stats().bytes as u64, resident: None },
            At::Folder(folder, _) => Held { live: bytes_in(folder.path())?, resident: None },
            At::Memcached(server) => Held { live: server.used_chunk_bytes(), resident: Some(server.rss_bytes()) },
            At::Redis(server) => {
                // Its allocator gives free pages back as it is used, and one that rests is not: pages of the warming-up would be taken off what comes.
                server.command(&["MEMORY", "PURGE"]);
                let of = |field| server.info("memory", field).parse::<u64>().unwrap_or(0);
                let live = of("used_memory").saturating_sub(of("mem_clients_normal"));
                Held { live, resident: Some(server.rss_bytes()) }
            }
        })
    }

    /// What has come since then, when what the loading's connections had for it is given back, and a folder's tables are written. What is in this process is copied into one that holds nothing else: loading has left room behind in this one.
    pub(super) async fn since(&self, before: Held) -> Result<Held> {
        match &self.at {
            At::Redis(_) => tokio::time::sleep(self.idle).await,
            At::Folder(folder, store) => {
                store.settle()?;
                at_rest(folder.path()).await?;
            }
            At::Memory(_) | At::Memcached(_) => (),
        }
        let now = self.held()?;
        let resident = match &self.at {
            At::Memory(memory) => Some(resident_of_a_copy(memory).await?),
            At::Folder(folder, _) => Some(resident_of_a_folder(folder.path()).await?),
            _ => now.resident.zip(before.resident).map(|(now, before)| now.saturating_sub(before)),
        };
        Ok(Held { live: now.live.saturating_sub(before.live), resident })
    }
}

/// Runs ops, many at a time; each must do.
pub(super) async fn run(store: &StoreRef, ops: impl IntoIterator<Item = Result<Op>>) -> Result<()> {
    let a_batch = store.profile().batch_ops_max.min(BATCH_OPS);
    let mut ops = ops.into_iter().peekable();
    while ops.peek().is_some() {
        let batch: Batch = ops.by_ref().take(a_batch).collect::<Result<_>>()?;
        for reply in store.run(Ctx::default(), batch).await {
            reply?;
        }
    }
    Ok(())
}

/// A server that was in use.
async fn warm(store: &StoreRef) -> Result<()> {
    let key = |size: usize, at: usize| Key::new(format!("warm-{size}-{at}"));
    let all = || {
        let small = WARM_BYTES.into_iter().flat_map(|size| (0..WARM_ITEMS).map(move |at| (size, at)));
        small.chain(WARM_ONCE_BYTES.map(|size| (size, 0)))
    };
    run(store, all().map(|(size, at)| put(format!("warm-{size}-{at}"), vec![b'x'; size]))).await?;
    run(store, all().map(|(size, at)| Ok(Op::get(key(size, at)?, Want::VALUE)))).await?;
    run(store, all().map(|(size, at)| Ok(Op::delete(key(size, at)?)))).await
}

/// A plain item.
pub(super) fn put(key: String, value: impl Into<bytes::Bytes>) -> Result<Op> {
    Ok(Op::put(Key::new(key)?, PutMode::Set, value, Ttl::Never))
}

/// What a process grows by that holds all items of this store, and nothing else.
async fn resident_of_a_copy(memory: &MemoryStore) -> Result<u64> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut tell = |told: Listed<'_>| {
        if let Listed::Key(key) = told {
            keys.push(key.to_vec());
        }
    };
    memory.list(Ctx::default(), b"", &mut tell).await?;
    let mut file = std::io::BufWriter::new(tempfile::NamedTempFile::new()?);
    for key in keys {
        let item = memory.get(Key::new(key.clone())?).await?.ok_or("an item is gone")?;
        for part in [&key[..], &item.value] {
            std::io::Write::write_all(&mut file, &u32::try_from(part.len())?.to_le_bytes())?;
            std::io::Write::write_all(&mut file, part)?;
        }
    }
    let file = file.into_inner().map_err(|error| error.into_error())?;
    grown_by(file.path())
}

/// What a process grows by that opens a copy of this folder and reads all of it once: the folder itself has one who has it open. A copy is of one moment if the same files are there after it
/// as before.
async fn resident_of_a_folder(folder: &Path) -> Result<u64> {
    for _ in 0..COPIES_MAX {
        let (before, copy) = (at_rest(folder).await?, tempfile::tempdir()?);
        match copy_into(folder, copy.path()).and_then(|()| files(folder)) {
            Ok(after) if after == before => return grown_by(&copy.path().join("store")),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            Ok(_) | Err(_) => (),
        }
    }
    Err("the folder never stood still for a copy".into())
}

/// Waits until the engine has put tables together, and removed those: the files that there are then.
async fn at_rest(folder: &Path) -> Result<BTreeMap<PathBuf, u64>> {
    let mut last = BTreeMap::new();
    for _ in 0..RESTS_MAX {
        tokio::time::sleep(REST).await;
        match files(folder) {
            Ok(now) if now == last => return Ok(now),
            Ok(now) => last = now,
            // One that goes while they are listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => last.clear(),
            Err(error) => return Err(error.into()),
        }
    }
    Err("the folder does not come to rest".into())
}

/// Files with how long they are.
fn files(folder: &Path) -> std::io::Result<BTreeMap<PathBuf, u64>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let (path, metadata) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if metadata.is_dir() {
            found.append(&mut files(&path)?);
        } else {
            found.insert(path, metadata.len());
        }
    }
    Ok(found)
}

fn copy_into(folder: &Path, copy: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(copy)?;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (from, to) = (entry.path(), copy.join(entry.file_name()));
        if from.is_dir() {
            copy_into(&from, &to)?;
        } else {
            std::fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

/// Has a process of its own hold what is there; by how much it grew.
fn grown_by(path: &Path) -> Result<u64> {
    let args = [OsStr::new("hold"), path.as_os_str()];
    let child = std::process::Command::new(std::env::current_exe()?).args(args).output()?;
    let (told, failed) = (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    told.trim().parse().map_err(|_| format!("the process that holds a copy said {told:?} {failed}").into())
}

/// Fills a store from a file, or reads the one of a folder whole, and prints by how much this process grew.
pub(crate) fn hold(path: &Path) -> Result<()> {
    let tell = |before: u64| println!("{}", rss_bytes().saturating_sub(before));
    if path.is_dir() {
        let before = rss_bytes();
        let _open = read_whole(path)?;
        tell(before);
    } else {
        let store = MemoryStore::new();
        let before = rss_bytes();
        fill(&store, path)?;
        tell(before);
    }
    Ok(())
}

fn read_whole(folder: &Path) -> Result<DurableStore> {
    let store = Options::new(folder).open()?;
    let mut from = Vec::new();
    loop {
        let page = store.scan(&from, PAGE_ITEMS, Want::VALUE)?;
        let Some((last, _)) = page.last() else { return Ok(store) };
        from = last.as_bytes().to_vec();
        from.push(0);
    }
}

fn fill(store: &MemoryStore, path: &Path) -> Result<()> {
    let mut file = std::io::BufReader::new(std::fs::File::open(path)?);
    let mut part = move || -> Option<Vec<u8>> {
        let mut len = [0; 4];
        file.read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        file.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    while let (Some(key), Some(value)) = (part(), part()) {
        store.direct().put(&key, PutMode::Set, &value, 0, Ttl::Never)?;
    }
    Ok(())
}
