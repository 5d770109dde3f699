//! What the tests of caches share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use larder_core::{Batch, Ctx, Error, Key, ManualClock, Profile, Run, Store, StoreRef};
use larder_store_memory::MemoryStore;
use larder_structures::cache::{Cached, Lookup, Rebuild, Source};
use larder_structures::{Cache, CacheOptions, Name, registry};

/// A memory store by a clock that is turned by hand, and that clock.
pub(crate) fn clocked() -> (Arc<ManualClock>, StoreRef) {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let store = MemoryStore::builder().clock(clock.clone()).build().unwrap();
    (clock, Arc::new(store))
}

/// A store that is far away: every batch takes as long to it, and its replies as long back. Where time is paused.
#[derive(Debug)]
pub(crate) struct Distant {
    inner: StoreRef,
    each_way: Duration,
}

impl Distant {
    pub(crate) fn shared(inner: &StoreRef, each_way: Duration) -> StoreRef {
        Arc::new(Distant { inner: inner.clone(), each_way })
    }
}

impl Store for Distant {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            tokio::time::sleep(self.each_way).await;
            let replies = self.inner.run(ctx, batch).await;
            tokio::time::sleep(self.each_way).await;
            replies
        })
    }
}

/// Fresh for 10 s, served for 5 more, leased for 2.
pub(crate) fn options() -> CacheOptions {
    Cache::options().ttl(secs(10)).stale(secs(5)).lease(secs(2)).wait(secs(20))
}

pub(crate) fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What is in the cache, or is made now.
pub(crate) async fn cached(cache: &Cache, key: &str, value: &'static str) -> Cached {
    cache.get_or_rebuild(key, async || Ok::<_, larder_core::Error>(value)).await.unwrap()
}

pub(crate) async fn leased(cache: &Cache, key: &str) -> Rebuild {
    match cache.lookup(key).await.unwrap() {
        Lookup::Rebuild(rebuild) => rebuild,
        Lookup::Found(cached) => panic!("no lease: {cached:?}"),
    }
}

pub(crate) async fn found(cache: &Cache, key: &str) -> Cached {
    match cache.lookup(key).await.unwrap() {
        Lookup::Found(cached) => cached,
        Lookup::Rebuild(rebuild) => panic!("nothing is there: {rebuild:?}"),
    }
}

pub(crate) fn is_fresh(cached: &Cached, value: &str) -> bool {
    matches!(cached.source, Source::Fresh) && cached.value == value
}

pub(crate) fn is_stale(cached: &Cached, value: &str) -> bool {
    matches!(cached.source, Source::Stale) && cached.value == value
}

/// The error that says why a value that was made is not cached.
pub(crate) fn why_not(cached: &Cached) -> &Error {
    match &cached.source {
        Source::Rebuilt(Err(error)) => error,
        _ => panic!("{cached:?}"),
    }
}

/// The key of an entry, by the documented scheme; `index` is that of the key.
pub(crate) async fn entry_key(store: &StoreRef, name: &str, index: &str) -> Key {
    let manifest = registry::find(store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
    Key::new(format!("L.{name}.c.{:016x}.{index}", manifest.generation)).unwrap()
}

/// Four clients ask at once for a value whose making takes three leases; how often it was made, and what each got.
pub(crate) async fn long_rebuild(clients: Vec<Cache>, lease: Duration) -> (usize, Vec<Cached>) {
    let rebuilds = Arc::new(AtomicUsize::new(0));
    let asking: Vec<_> = clients
        .into_iter()
        .map(|cache| {
            let rebuilds = rebuilds.clone();
            tokio::spawn(async move {
                let rebuild = async || {
                    let mine = rebuilds.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(lease * 3).await;
                    Ok::<_, Error>(mine.to_string())
                };
                cache.get_or_rebuild("k", rebuild).await.unwrap()
            })
        })
        .collect();
    let mut got = Vec::new();
    for asked in asking {
        got.push(asked.await.unwrap());
    }
    (rebuilds.load(Ordering::SeqCst), got)
}

/// What is cached is a number that grows; whoever was told of an invalidation must never see a smaller one than stood then.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    number: AtomicU64,
    invalidated: AtomicU64,
    pub(crate) rebuilds: AtomicU64,
    pub(crate) served: AtomicU64,
    pub(crate) unknown: AtomicU64,
}

/// Asks, invalidates, fails and dies, at random. Panics where an invalidation was undone.
pub(crate) async fn churn(cache: Cache, truth: Arc<Truth>, seed: u64, turns: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for turn in 0..turns {
        if rng.u8(..4) == 0 {
            let number = truth.number.fetch_add(1, Ordering::SeqCst) + 1;
            if cache.invalidate("k").await.is_ok() {
                truth.invalidated.fetch_max(number, Ordering::SeqCst);
            }
            continue;
        }
        let least = truth.invalidated.load(Ordering::SeqCst);
        let Ok(lookup) = cache.lookup("k").await else {
            // While a client waits before it dials again, its calls fail at once: all turns would be over before it is back.
            tokio::time::sleep(Duration::from_millis(rng.u64(..20))).await;
            continue;
        };
        let cached = match lookup {
            Lookup::Found(cached) => cached,
            Lookup::Rebuild(rebuild) => {
                truth.rebuilds.fetch_add(1, Ordering::SeqCst);
                let number = truth.number.load(Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(rng.u64(..5))).await;
                match rng.u8(..10) {
                    0 => continue,
                    1 => {
                        rebuild.give_up().await;
                        continue;
                    }
                    _ => rebuild.finish(number.to_string()).await,
                }
            }
        };
        truth.served.fetch_add(1, Ordering::SeqCst);
        if matches!(&cached.source, Source::Rebuilt(Err(error)) if error.is_unknown()) {
            truth.unknown.fetch_add(1, Ordering::SeqCst);
        }
        let number: u64 = std::str::from_utf8(&cached.value).unwrap().parse().unwrap();
        // What this caller made itself it may have begun before an invalidation, but not before it asked.
        assert!(number >= least, "{number} after {least} was invalidated: {cached:?}, turn {turn}, seed {seed}");
    }
}
