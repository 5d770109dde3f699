//! Asks a cache and invalidates what it holds: a value is made once between two invalidations, and nobody is served what was invalidated before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder::cache::{Cached, Lookup};
use larder::{Cache, ErrorKind, StoreRef};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many keys the workers ask for; few, so that they meet.
const KEYS: usize = 16;
/// One turn in so many invalidates.
const INVALIDATE_ONE_IN: u8 = 8;
/// Longer than the demo: nothing expires by itself, and no lease ends under its holder.
const LONG: Duration = Duration::from_secs(24 * 60 * 60);

/// What a key's value is made of: the source that the cache stands before.
#[derive(Debug, Default)]
struct Origin {
    /// Grows with every change; it is the value.
    number: AtomicU64,
    /// The number at the last change that the cache was told of: nobody may be served a smaller one who asks after that.
    told: AtomicU64,
    /// How many values were made of it and cached.
    made: AtomicU64,
}

type Origins = Arc<Vec<Origin>>;

/// A worker's account: what it saw that must not be.
type Account = Vec<String>;

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let options = Cache::options().ttl(Duration::from_secs(60 * 60)).lease(LONG).timeout(stage.timeout);
    let caches = stage.handles(async |store| options.clone().open_or_create(store, &stage.name).await).await?;
    let origins: Origins = Arc::new((0..KEYS).map(|_| Origin::default()).collect());
    let driven = stage.drive(caches.clone(), |_, cache, turns| work(cache, turns, origins.clone())).await;
    if stage.is_sabotaged {
        // A change of every origin that the caches are not told of, and everybody else is.
        origins.iter().for_each(|origin| _ = origin.told.fetch_add(1 << 32, Ordering::SeqCst));
    }
    let (verdict, elements) = match &driven {
        Ok(driven) => check(&caches, &origins, driven).await?,
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements, verdict).await
}

/// Removes the values: a drop leaves them to expire.
pub(super) async fn forget(store: &StoreRef, name: &str, timeout: Duration) -> Result<(), Failure> {
    let cache = match Cache::options().timeout(timeout).open(store, name).await {
        Err(error) if matches!(error.kind(), ErrorKind::Absent | ErrorKind::Unsupported) => return Ok(()),
        cache => cache?,
    };
    for key in 0..KEYS {
        cache.invalidate(key.to_be_bytes()).await?;
    }
    Ok(())
}

async fn work(cache: Cache, turns: Arc<Turns>, origins: Origins) -> larder::Result<Account> {
    let mut account = Account::new();
    while turns.take() {
        let key = fastrand::usize(..KEYS);
        let origin = &origins[key];
        if fastrand::u8(..INVALIDATE_ONE_IN) == 0 {
            let number = origin.number.fetch_add(1, Ordering::SeqCst) + 1;
            cache.invalidate(key.to_be_bytes()).await?;
            origin.told.fetch_max(number, Ordering::SeqCst);
        } else {
            account.extend(ask(&cache, key, origin).await?);
        }
        turns.done();
    }
    Ok(account)
}

/// Asks for a key, and makes its value if need be; what was wrong with it.
async fn ask(cache: &Cache, key: usize, origin: &Origin) -> larder::Result<Option<String>> {
    let least = origin.told.load(Ordering::SeqCst);
    let cached = match cache.lookup(key.to_be_bytes()).await? {
        Lookup::Found(cached) => cached,
        Lookup::Rebuild(rebuild) => {
            let number = origin.number.load(Ordering::SeqCst);
            tokio::task::yield_now().await;
            let cached = rebuild.finish(number.to_string()).await;
            origin.made.fetch_add(u64::from(cached.is_kept()), Ordering::SeqCst);
            cached
        }
    };
    Ok(number_of(&cached).is_none_or(|number| number < least).then(|| {
        format!("key {key} was served as {:?} after {least} was invalidated", String::from_utf8_lossy(&cached.value))
    }))
}

fn number_of(cached: &Cached) -> Option<u64> {
    std::str::from_utf8(&cached.value).ok()?.parse().ok()
}

/// What is left in the cache must not be older than the last invalidation, nor newer than its origin.
async fn check(caches: &[Cache], origins: &Origins, driven: &Driven<Account>) -> Result<(Verdict, u64), Failure> {
    let mut elements = 0;
    if let Some(wrong) = driven.accounts.iter().flatten().next() {
        return Ok((Verdict::Off(wrong.clone()), elements));
    }
    let Some(cache) = caches.first() else { return Ok((Verdict::Right, elements)) };
    let mut verdict = Verdict::Right;
    for (key, origin) in origins.iter().enumerate() {
        let Some(cached) = cache.get(key.to_be_bytes()).await? else { continue };
        elements += 1;
        let (least, most) = (origin.told.load(Ordering::SeqCst), origin.number.load(Ordering::SeqCst));
        if !number_of(&cached).is_some_and(|number| (least..=most).contains(&number)) {
            verdict = Verdict::Off(format!("key {key} holds {:?}, not {least} to {most}", cached.value));
        }
        // Each change is followed by one invalidation, and nothing else ends a value.
        let made = origin.made.load(Ordering::SeqCst);
        if made > most + 1 {
            verdict = Verdict::Off(format!("key {key} was made {made} times between {most} invalidations"));
        }
    }
    Ok((verdict, elements))
}
