//! Looking at a cache from outside, without taking part: what stands under a key, and how many entries there are.

use std::time::Duration;

use larder_core::list::{List, Listed};
use larder_core::{Ctx, Error, ErrorKind, Op, Reply, Result, StoreRef, SystemClock, Want, ambient};

use super::judge::{self, Verdict};
use super::layout::{Record, index_of};
use super::shared::{check, checked};
use crate::copies;
use crate::manifest::{Manifest, unexpected};
use crate::name::Name;
use crate::timeout::TIMEOUT_MAX;

/// What stands under a key of a cache: see [`cache_entry`].
///
/// ```
/// # use larder_core::{Ctx, StoreRef};
/// # use larder_structures::{Cache, Name, inspect};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let pages = Cache::open_or_create(&store, "pages").await?;
/// pages.get_or_rebuild("/", async || Ok::<_, larder_core::Error>("<h1>")).await?;
/// let entry = inspect::cache_entry(&store, Ctx::default(), &Name::new("pages")?, b"/").await?.expect("it is cached");
/// assert_eq!((entry.state, entry.value_bytes), (inspect::CacheState::Fresh, Some(4)));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// What who asks for the key would meet.
    pub state: CacheState,
    /// Bytes of the value; `None` where there is none to be served.
    pub value_bytes: Option<u64>,
    /// What the item takes, in bytes, without its key and the store's own overhead.
    pub bytes: u64,
    /// How long ago it was written.
    pub age: Duration,
    /// How much longer the value may be served, fresh or stale; zero where there is none.
    pub left: Duration,
}

/// What who asks for a key of a cache would meet.
///
/// ```
/// assert_eq!(larder_structures::inspect::CacheState::Rebuilding.as_str(), "being rebuilt");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheState {
    /// A fresh value.
    Fresh,
    /// A stale value, and nobody who rebuilds it: the next who asks does.
    Stale,
    /// Somebody who rebuilds it; a stale value meanwhile, if [`CacheEntry::value_bytes`] tells of one.
    Rebuilding,
    /// Nothing that counts: a lease that is over, or a value that is past its time.
    Over,
}

/// Looks at the entry of a key, and takes no part: no lease is taken, and nothing is written. `None` if there is none, or one of another key that shares its place.
/// **Round trips: 2.**
///
/// # Errors
/// [`Absent`](ErrorKind::Absent) where there is no structure of that name, [`LayoutMismatch`](ErrorKind::LayoutMismatch) where it is no cache, [`BadInput`](ErrorKind::BadInput) for a key
/// over the limit; those of the store.
///
/// ```
/// # use larder_core::{Ctx, StoreRef};
/// # use larder_structures::{Cache, Name, inspect};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// Cache::open_or_create(&store, "pages").await?;
/// assert!(inspect::cache_entry(&store, Ctx::default(), &Name::new("pages")?, b"/").await?.is_none());
/// # Ok(()) }
/// ```
pub async fn cache_entry(store: &StoreRef, ctx: Ctx, name: &Name, key: &[u8]) -> Result<Option<CacheEntry>> {
    let key = checked(key)?;
    let manifest = found(store, ctx, name).await?;
    let op = Op::get(manifest.data_key(name, index_of(&key))?, Want::VALUE | Want::TTL);
    let mut replies = store.run(ctx, larder_core::Batch::from_iter([op.clone()])).await;
    let item = match replies.pop().unwrap_or_else(|| Err(larder_core::ext::no_reply()))? {
        Reply::Item(item) => item,
        Reply::Miss => return Ok(None),
        other => return Err(unexpected(&op, &other)),
    };
    let record = Record::decode(&item.value).map_err(|error| error.key(&op.key))?;
    if record.key != key {
        return Ok(None);
    }
    let age = judge::age(&record, item.ttl, &store.profile(), SystemClock::shared().wall());
    let served = record.content.as_ref().map(|content| content.served_ms.saturating_sub(age.ms)).filter(|&ms| ms > 0);
    let value_bytes = record.content.as_ref().filter(|_| served.is_some()).map(|content| content.value.len() as u64);
    let state = match judge::judge(record, &key, |_| false, age) {
        Verdict::Fresh(_) => CacheState::Fresh,
        Verdict::Stale(_) | Verdict::Busy | Verdict::Mine { .. } => CacheState::Rebuilding,
        Verdict::Takeable(Some(_)) => CacheState::Stale,
        Verdict::Takeable(None) => CacheState::Over,
    };
    let left = Duration::from_millis(served.unwrap_or(0));
    let age = Duration::from_millis(age.ms);
    Ok(Some(CacheEntry { state, value_bytes, bytes: item.value.len() as u64, age, left }))
}

/// How many entries were counted: see [`cache_entries`].
///
/// ```
/// # use larder_structures::inspect::CacheEntries;
/// # fn show(entries: CacheEntries) {
/// println!("{}{}", entries.count, if entries.are_all { "" } else { " or more" });
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntries {
    /// How many were seen, leases and values that are past their time too.
    pub count: u64,
    /// True if all keys were looked at; false if the time for that was over.
    pub are_all: bool,
}

/// Counts the entries of a cache by listing keys, for `within` at the most, and a day: a store looks at all its keys for it, and one that is large takes its time. It is no snapshot.
/// **Round trips: 1** for the manifest, and what listing takes.
///
/// # Errors
/// [`Absent`](ErrorKind::Absent) where there is no structure of that name, [`LayoutMismatch`](ErrorKind::LayoutMismatch) where it is no cache; those of the list, but for that the time is over.
///
/// ```
/// # use std::time::Duration;
/// # use larder_core::{Ctx, StoreRef};
/// # use larder_structures::{Cache, Name, inspect};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> larder_core::Result<()> {
/// let memory = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let store: StoreRef = memory.clone();
/// let pages = Cache::open_or_create(&store, "pages").await?;
/// pages.get_or_rebuild("/", async || Ok::<_, larder_core::Error>("<h1>")).await?;
/// let name = Name::new("pages")?;
/// let entries = inspect::cache_entries(&store, &*memory, Ctx::default(), &name, Duration::from_secs(1)).await?;
/// assert_eq!((entries.count, entries.are_all), (1, true));
/// # Ok(()) }
/// ```
pub async fn cache_entries(
    store: &StoreRef,
    list: &dyn List,
    ctx: Ctx,
    name: &Name,
    within: Duration,
) -> Result<CacheEntries> {
    let manifest = found(store, ctx, name).await?;
    // What all keys of entries begin with: the key of an index of no letters.
    let prefix = manifest.data_key(name, "")?;
    let end = ambient::now() + within.min(TIMEOUT_MAX);
    let listing = Ctx { deadline: Some(ctx.deadline.map_or(end, |deadline| deadline.min(end))) };
    let mut count = 0;
    let mut tell = |told: Listed<'_>| count += u64::from(matches!(told, Listed::Key(_)));
    let are_all = match list.list(listing, prefix.as_bytes(), &mut tell).await {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Timeout && ctx.deadline.is_none_or(|deadline| end < deadline) => false,
        Err(error) => return Err(error),
    };
    Ok(CacheEntries { count, are_all })
}

/// The manifest of a cache.
async fn found(store: &StoreRef, ctx: Ctx, name: &Name) -> Result<Manifest> {
    let Some(found) = copies::find(store, ctx, name).await? else {
        return Err(Error::new(ErrorKind::Absent, format!("{name} is not there")));
    };
    check(name, &found.manifest)?;
    Ok(found.manifest)
}

impl CacheState {
    /// In a word or two.
    ///
    /// ```
    /// assert_eq!(larder_structures::inspect::CacheState::Fresh.as_str(), "fresh");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            CacheState::Fresh => "fresh",
            CacheState::Stale => "stale",
            CacheState::Rebuilding => "being rebuilt",
            CacheState::Over => "over",
        }
    }
}
