//! What an add sends: how often it tries, what it makes of an answer that tells nothing, and when it writes a shard anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use larder_core::{Ctx, Effect, Error, ErrorKind, Op, PutMode, Reply, StoreRef, Verb};
use larder_structures::Set;

use crate::support::answering::Answering;
use crate::support::hooked::Hooked;
use crate::support::probe::{Probe, sorted};

fn appends(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
}

/// Has this answer given to all appends from now on; how often it was given.
fn answered(
    answering: &Answering,
    answer: impl Fn() -> larder_core::Result<Reply> + Send + Sync + 'static,
) -> Arc<AtomicU64> {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    answering.by(move |op| {
        appends(op).then(|| {
            counted.fetch_add(1, Ordering::Relaxed);
            answer()
        })
    });
    asked
}

async fn one_shard(store: &StoreRef) -> Set {
    Set::options().shards(1).timeout(Duration::from_secs(60)).open_or_create(store, "s").await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_add_of_which_nothing_was_sent_is_given_up_at_the_eighth_fault_and_at_the_first_that_stays() {
    for (kind, tries) in [(ErrorKind::Unavailable, 8), (ErrorKind::Timeout, 8), (ErrorKind::Unsupported, 1)] {
        let store = Probe::new().shared();
        let answering = Answering::new(&store);
        let set = one_shard(&answering.shared()).await;
        let asked = answered(&answering, move || Err(Error::new(kind, "as the test wants").effect(Effect::NotApplied)));
        let error = set.add(["a"]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (kind, Effect::NotApplied), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), tries, "{kind:?}");
    }
}

/// It landed, and what came back for it makes no sense: a look tells.
#[tokio::test(start_paused = true)]
async fn an_add_whose_answer_was_garbled_looks_whether_it_landed() {
    let store = Probe::new().shared();
    let hooked = Hooked::new(&store);
    let set = one_shard(&hooked.shared()).await;
    hooked.at(1, |store, batch| async move {
        let replies = store.run(Ctx::default(), batch).await;
        let garbled = |_| Err(Error::new(ErrorKind::Protocol, "as the test wants").effect(Effect::Unknown));
        replies.into_iter().map(garbled).collect()
    });
    set.add(["a"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["a"]);
}

/// As memcached does that has no memory left for values of that size: by its profile there is room.
#[tokio::test(start_paused = true)]
async fn a_shard_whose_appends_are_refused_twice_though_there_is_room_is_written_anew() {
    let store = Probe::new().shared();
    let answering = Answering::new(&store);
    let set = one_shard(&answering.shared()).await;
    let asked = answered(&answering, || Ok(Reply::NotStored));
    set.add(["a"]).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    assert_eq!(sorted(&set).await, ["a"]);
}
