use larder_core::{ManualClock, StoreRef};
use larder_store_memory::MemoryStore;

use super::*;
use crate::answering_tests::{Answering, fails};
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

/// A cache of a timeout of a second, and the lease to rebuild an entry that is new there.
async fn begun(store: &StoreRef) -> (Cache, Rebuild) {
    let cache = Cache::options().timeout(Duration::from_secs(1)).open_or_create(store, "n").await.unwrap();
    let Lookup::Rebuild(rebuild) = cache.lookup("k").await.unwrap() else { panic!("it is new") };
    (cache, rebuild)
}

/// Another try of the write would change nothing, and the next who asks need not wait for the lease to end.
#[tokio::test(start_paused = true)]
async fn a_value_that_the_store_refuses_is_told_at_once_and_its_lease_given_up() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let answering = Answering::over(&memory);
    let (cache, rebuild) = begun(&answering.shared()).await;
    let mut is_full = true;
    answering.by(move |op| {
        let is_refused = !op.is_read() && std::mem::take(&mut is_full);
        is_refused.then(|| fails(ErrorKind::Full, Effect::NotApplied))
    });
    let Source::Rebuilt(Err(error)) = rebuild.finish("v").await.source else { panic!("it was refused") };
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied));
    assert!(matches!(cache.lookup("k").await.unwrap(), Lookup::Rebuild(_)));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_may_have_landed_is_looked_up_until_the_store_answers() {
    for lost in [Fate::LostReply, Fate::LostRequest] {
        let memory: StoreRef = Arc::new(MemoryStore::new());
        let ruled = Ruled::over(&memory);
        let (cache, rebuild) = begun(&ruled.shared()).await;
        ruled.next([lost, Fate::NotSent, Fate::NotSent]);
        assert!(rebuild.finish("v").await.is_kept(), "{lost:?}");
        assert_eq!(cache.get("k").await.unwrap().unwrap().value, "v", "{lost:?}");
    }
}

/// It may land yet, in the place of the lease: to give that up would keep it out, and take as long again.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_value_that_may_land_yet_is_not_given_up() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let answering = Answering::over(&memory);
    let (cache, rebuild) = begun(&answering.shared()).await;
    answering.asked();
    // Longer than the timeout and a pause.
    let until = Instant::now() + Duration::from_millis(1_300);
    answering.by(move |op| {
        let effect = if op.is_read() { Effect::NotApplied } else { Effect::Unknown };
        (Instant::now() < until).then(|| fails(ErrorKind::Unavailable, effect))
    });
    let Source::Rebuilt(Err(error)) = rebuild.finish("v").await.source else { panic!("nothing was answered") };
    assert!(error.is_unknown() && Instant::now() < until, "{error}");
    answering.by(|_| None);
    let (ctx, late) = answering.asked().swap_remove(0);
    assert!(matches!(memory.run(ctx, late).await[..], [Ok(Reply::Stored)]));
    assert_eq!(cache.get("k").await.unwrap().unwrap().value, "v");
}

/// What gives the lease up behind it finds the value there.
#[tokio::test(start_paused = true)]
async fn a_value_that_landed_stays_though_its_caller_went_before_that_was_told() {
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let ruled = Ruled::over(&memory);
    let (cache, rebuild) = begun(&ruled.shared()).await;
    ruled.next([Fate::LostReply, Fate::NotSent]);
    tokio::select! {
        biased;
        _ = rebuild.finish("v") => panic!("it pauses before it looks once more"),
        () = std::future::ready(()) => {}
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(cache.get("k").await.unwrap().unwrap().value, "v");
}
