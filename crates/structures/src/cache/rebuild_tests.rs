use larder_core::{ManualClock, StoreRef};
use larder_store_memory::MemoryStore;

use super::*;
use crate::cache::{Cache, Lookup};
use crate::events::tests::{listen, told};
use crate::ruled_tests::{Fate, Ruled};

/// A renewal writes and reads in one round trip. It is tried again, after a pause, and that is told, where neither says that the lease stands anew, and where nothing was sent; where
/// the lease is there yet, behind a write that did not land, it is written once more at once.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_told_as_failed_unless_it_landed_or_may_be_sent_again_at_once() {
    listen();
    let fates = |name| match name {
        "renewed-and-not-read" => [Fate::Goes, Fate::NotSent],
        "neither-renewed-nor-read" => [Fate::LostRequest, Fate::NotSent],
        "not-sent-and-read" => [Fate::NotSent, Fate::Goes],
        _ => [Fate::LostRequest, Fate::Goes],
    };
    for (name, is_told) in [
        ("renewed-and-not-read", false),
        ("neither-renewed-nor-read", true),
        ("not-sent-and-read", true),
        ("lost-and-read", false),
    ] {
        let memory: StoreRef = Arc::new(MemoryStore::new());
        let ruled = Ruled::over(&memory);
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
        let options = Cache::options().lease(Duration::from_secs(600)).clock(clock.clone());
        let cache = options.open_or_create(&ruled.shared(), name).await.unwrap();
        let Lookup::Rebuild(rebuild) = cache.lookup("k").await.unwrap() else { panic!("it is new") };
        let rebuild = rebuild.renewing();
        // A lease that is written anew says when that was.
        clock.advance(Duration::from_secs(1));
        ruled.next(fates(name));
        // A third of the lease, and a while.
        tokio::time::sleep(Duration::from_secs(300)).await;
        let retries: Vec<String> = told(name).into_iter().filter(|event| event.starts_with("retry")).collect();
        let expected = if is_told { &["retry after unavailable"][..] } else { &[] };
        assert_eq!(retries, expected, "{name}");
        assert!(rebuild.finish("v").await.is_kept(), "{name}");
    }
}
