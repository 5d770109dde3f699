//! What the table's tests share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::steady::metered;
use bytes::Bytes;
use larder_core::{Batch, Ctx, Key, Op, Profile, Reply, Run, Store, StoreExt, StoreRef, Want};
use larder_layers::Counting;
use larder_store_memory::MemoryStore;
use larder_structures::{Name, Table, registry};
use xxhash_rust::xxh3::xxh3_128;

pub(crate) fn memory() -> StoreRef {
    Arc::new(MemoryStore::new())
}

/// A store whose profile says that it may lose what it holds. (Nothing is: a test deletes what shall be lost.)
#[derive(Debug)]
pub(crate) struct Evicting(pub StoreRef);

impl Store for Evicting {
    fn profile(&self) -> Arc<Profile> {
        let eviction = larder_core::Eviction::WhenFull;
        Arc::new(Profile { eviction, ..(*self.0.profile()).clone() })
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.0.run(ctx, batch)
    }
}

pub(crate) fn evicting() -> StoreRef {
    Arc::new(Evicting(memory()))
}

/// A store that counts round trips.
pub(crate) fn counting(inner: StoreRef) -> (StoreRef, Counting) {
    let counting = metered(inner);
    (Arc::new(counting.clone()), counting)
}

/// The round trips that `act` takes.
pub(crate) async fn cost<T>(counting: &Counting, act: impl Future<Output = larder_core::Result<T>>) -> u64 {
    let before = counting.counts();
    act.await.unwrap();
    counting.counts().since(&before).round_trips
}

/// The key of an entry's item, by the documented scheme.
pub(crate) async fn entry_key(store: &StoreRef, name: &str, key: &[u8]) -> Key {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = xxh3_128(key);
    let index: String = (0..14).map(|at| char::from(LETTERS[(bits >> (122 - 6 * at)) as usize & 63])).collect();
    Key::new(format!("{}{index}", prefix(store, name).await)).unwrap()
}

pub(crate) async fn list_key(store: &StoreRef, name: &str, shard: u16) -> Key {
    Key::new(format!("{}{shard}", prefix(store, name).await)).unwrap()
}

async fn prefix(store: &StoreRef, name: &str) -> String {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    format!("L.{name}.t.{:016x}.", manifest.generation)
}

/// Loses an entry, as a server does.
pub(crate) async fn lose(store: &StoreRef, name: &str, key: &[u8]) {
    let item_key = entry_key(store, name, key).await;
    assert!(store.delete(item_key).await.unwrap(), "there is no entry to lose");
}

/// True if the entry says it is listed; `None` if there is none.
pub(crate) async fn is_flagged(store: &StoreRef, name: &str, key: &[u8]) -> Option<bool> {
    let op = Op::get(entry_key(store, name, key).await, Want::FLAGS);
    match store.run_one(Ctx::default(), op).await.unwrap() {
        Reply::Item(item) => Some(item.flags & 1 == 1),
        _ => None,
    }
}

/// Waits for what is done behind the callers.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !is_so().await {
        assert!(Instant::now() < deadline, "{what}: not within 10 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until an entry says that it is listed.
pub(crate) async fn flagged(store: &StoreRef, name: &str, key: &[u8]) {
    eventually("an entry is flagged as listed", || async { is_flagged(store, name, key).await == Some(true) }).await;
}

pub(crate) async fn sorted_keys(table: &Table) -> Vec<Bytes> {
    let mut keys = table.keys().await.unwrap();
    keys.sort();
    keys
}

pub(crate) async fn entries(table: &Table) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let entries = table.entries().await.unwrap();
    let count = entries.len();
    let map: BTreeMap<_, _> = entries.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert_eq!(map.len(), count, "a key is told twice");
    map
}

/// What a task knows of one of its keys.
#[derive(Clone, Debug)]
struct Known {
    /// The value it must have, or none.
    now: Option<String>,
    /// Values of puts whose outcome is unknown: they may have landed, or may yet.
    may: Vec<String>,
    /// A remove is unknown: it may have landed.
    may_be_gone: bool,
}

/// How many keys could be judged for certain, and how many could not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Agreed {
    pub(crate) known: usize,
    pub(crate) unknown: usize,
}

/// So many that most of them meet no fault: those can be judged for certain.
const KEYS_A_TASK: u32 = 20;

const SHARED: [&str; 3] = ["shared-0", "shared-1", ""];

/// 8 tasks over the handles, each with keys of its own, and some that all change; `fresh` reads meanwhile. Then `settle`, and what
/// is there must be what the tasks know.
pub(crate) async fn churn<F: Future<Output = ()>>(
    handles: &[Table],
    fresh: &Table,
    seed: u64,
    turns: u32,
    settle: impl FnOnce() -> F,
) -> Agreed {
    let reader = tokio::spawn({
        let table = fresh.clone();
        async move {
            loop {
                for error in [table.entries().await.err(), table.get(SHARED[0]).await.err()].into_iter().flatten() {
                    assert_ne!(error.kind(), larder_core::ErrorKind::Lost, "nothing was lost: {error}");
                }
                tokio::task::yield_now().await;
            }
        }
    });
    let tasks: Vec<_> = (0..8usize)
        .map(|task| tokio::spawn(work(handles[task % handles.len()].clone(), task, seed ^ task as u64, turns)))
        .collect();
    let mut known = BTreeMap::new();
    for task in tasks {
        known.extend(task.await.unwrap());
    }
    reader.abort();
    assert!(reader.await.is_err_and(|end| end.is_cancelled()), "the reader failed");
    settle().await;
    // What is still repaired beside the calls would be listed between the two looks below.
    for table in handles.iter().chain([fresh]) {
        table.settle().await;
    }
    let mut agreed = Agreed::default();
    let found = entries(fresh).await;
    let keys: Vec<Vec<u8>> = fresh.keys().await.unwrap().iter().map(|key| key.to_vec()).collect();
    assert_eq!(keys.len(), found.len());
    for (key, known) in &known {
        // Read first: that repairs what a broken call left.
        let got = fresh.get(key).await.unwrap_or_else(|error| panic!("{key}: {error}; seed {seed}"));
        let got = got.map(|value| String::from_utf8(value.to_vec()).unwrap());
        let is_certain = known.may.is_empty() && !known.may_be_gone;
        let is_allowed = got == known.now
            || got.as_ref().is_some_and(|value| known.may.contains(value))
            || (got.is_none() && known.may_be_gone);
        assert!(is_allowed, "{key} is {got:?}, known is {known:?}; seed {seed}");
        if is_certain {
            agreed.known += 1;
            assert_eq!(found.contains_key(key.as_bytes()), known.now.is_some(), "{key}; seed {seed}");
        } else {
            agreed.unknown += 1;
        }
    }
    // What anybody reads is on the list, soon.
    eventually("list and entries agree", || async {
        let listed: Vec<Bytes> = fresh.keys().await.unwrap();
        let all: Vec<String> = known.keys().cloned().chain(SHARED.map(str::to_owned)).collect();
        let got = fresh.get_many(&all).await.unwrap();
        all.iter().zip(got).all(|(key, got)| got.is_some() == listed.iter().any(|listed| listed == key.as_bytes()))
    })
    .await;
    agreed
}

async fn work(table: Table, task: usize, seed: u64, turns: u32) -> BTreeMap<String, Known> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut all: BTreeMap<String, Known> = BTreeMap::new();
    for turn in 0..turns {
        if rng.u8(..4) == 0 {
            let key = SHARED[rng.usize(..SHARED.len())];
            let error = if rng.bool() { table.put(key, "x").await.err() } else { table.remove(key).await.err() };
            assert!(error.is_none_or(|error| error.kind() != larder_core::ErrorKind::Lost), "nothing was lost");
            continue;
        }
        let key = format!("{task}-{}", rng.u32(0..KEYS_A_TASK));
        let known = all.entry(key.clone()).or_insert(Known { now: None, may: Vec::new(), may_be_gone: false });
        let is_put = rng.u8(..3) > 0;
        let value = format!("{task} {turn}");
        let outcome = match is_put {
            true if table.has_lives() && rng.bool() => table.put_for(&key, &value, Duration::from_secs(7200)).await,
            true => table.put(&key, &value).await,
            false => table.remove(&key).await.map(drop),
        };
        match outcome {
            Ok(()) => {
                known.now = is_put.then_some(value);
                known.may_be_gone = false;
            }
            Err(error) if error.is_unknown() && is_put => known.may.push(value),
            Err(error) if error.is_unknown() => known.may_be_gone = true,
            Err(error) => assert_ne!(error.kind(), larder_core::ErrorKind::Lost, "{key}: {error}"),
        }
        if rng.u8(..4) == 0
            && let Ok(got) = table.get(&key).await
        {
            let got = got.map(|value| String::from_utf8(value.to_vec()).unwrap());
            let is_allowed = got == known.now
                || got.as_ref().is_some_and(|value| known.may.contains(value))
                || (got.is_none() && known.may_be_gone);
            assert!(is_allowed, "{key} is {got:?}, known is {known:?}; seed {seed}");
        }
    }
    all
}
