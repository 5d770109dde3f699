//! Where a store tells nobody of changes, whoever waits looks, 250 ms apart at the most: on memcached, and in a folder.

use std::any::Any;
use std::time::{Duration, Instant};

use larder::{Cache, Lock, StoreRef};
use larder_testkit::servers::{Memcached, Version};

/// The bound is 250 ms; the rest is for a machine that is busy.
const ENOUGH: Duration = Duration::from_secs(2);
/// Until pauses have grown as long as they get.
const LONG: Duration = Duration::from_millis(600);

/// Two clients of one store each, with what it needs.
async fn places() -> Vec<(String, StoreRef, StoreRef, Box<dyn Any>)> {
    let mut places: Vec<(String, StoreRef, StoreRef, Box<dyn Any>)> = Vec::new();
    for (version, options) in [(Version::Old, ""), (Version::New, ""), (Version::New, "?dialect=classic")] {
        let server = Memcached::start(version, &[]);
        let url = format!("memcached://{}{options}", server.addr());
        let (one, other) = (larder::open(&url).await.unwrap(), larder::open(&url).await.unwrap());
        places.push((format!("{version:?} {options}"), one, other, Box::new(server)));
    }
    let folder = tempfile::tempdir().unwrap();
    let store = larder::open(&format!("file:{}", folder.path().display())).await.unwrap();
    places.push(("file:".to_owned(), store.clone(), store, Box::new(folder)));
    places
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_lock_ends_within_the_bound_of_its_looks() {
    for (place, one, other, _needs) in places().await {
        assert!(!one.profile().watch, "{place} tells: this is of those that do not");
        let guard = Lock::open(&one, "l").await.unwrap().try_acquire().await.unwrap().expect("it is new");
        let lock = Lock::open(&other, "l").await.unwrap();
        let waiting = tokio::spawn(async move {
            let guard = lock.acquire(Duration::from_secs(60)).await.unwrap();
            let at = Instant::now();
            guard.release().await.unwrap();
            at
        });
        tokio::time::sleep(LONG).await;
        let freed = Instant::now();
        guard.release().await.unwrap();
        let waited = waiting.await.unwrap().saturating_duration_since(freed);
        assert!(waited < ENOUGH, "{place}: {waited:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_a_rebuild_ends_within_the_bound_of_its_looks() {
    for (place, one, other, _needs) in places().await {
        let makes = Cache::open_or_create(&one, "pages").await.unwrap();
        let waits = Cache::open_or_create(&other, "pages").await.unwrap();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let making = tokio::spawn(async move {
            let mut begun = Some(begun);
            let made = makes.get_or_rebuild("k", async || {
                _ = begun.take().map(|begun| begun.send(()));
                tokio::time::sleep(LONG).await;
                Ok::<_, larder::Error>("value")
            });
            made.await.unwrap();
            Instant::now()
        });
        has_begun.await.unwrap();
        let found = waits.get_or_rebuild("k", async || Ok::<_, larder::Error>("made twice")).await.unwrap();
        let ended = Instant::now();
        assert_eq!(found.value, "value", "{place}");
        let waited = ended.saturating_duration_since(making.await.unwrap());
        assert!(waited < ENOUGH, "{place}: {waited:?}");
    }
}
