//! Sets at the edges: a store that refuses, loses or garbles what is sent, many callers at once, a write that the others are always before.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use larder_core::{Effect, ErrorKind, Op, PutMode, Reply, StoreRef, Verb};
use larder_store_memory::MemoryStore;
use larder_structures::Set;

use crate::support::answering::Answering;
use crate::support::hooked::{Hooked, fail};
use crate::support::probe::{Probe, sorted};

fn is_append(op: &Op) -> bool {
    matches!(op.verb, Verb::Put { mode: PutMode::Append, .. })
}

#[tokio::test]
async fn an_append_that_never_was_sent_is_sent_again_also_where_no_value_can_be_written_anew() {
    let hooked = Hooked::new(&Probe::without_cas(7_000).shared());
    let set = Set::open_or_create(&hooked.shared(), "s").await.unwrap();
    hooked.refuse(1);
    set.add(["a"]).await.unwrap();
    assert_eq!(sorted(&set).await, ["a"]);
}

#[tokio::test]
async fn a_change_that_may_have_landed_in_what_cannot_be_read_since_is_unknown() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let hooked = Hooked::new(&store);
    let set = Set::open_or_create(&hooked.shared(), "s").await.unwrap();
    for effect in [Effect::NotApplied, Effect::Unknown] {
        hooked.at(1, move |_, batch| async move { fail(&batch, effect) });
        hooked.at(2, |_, batch| async move {
            let garbled = larder_core::Item { value: Bytes::from("garbled"), ..Default::default() };
            batch.iter().map(|_| Ok(Reply::Item(garbled.clone()))).collect()
        });
        let error = set.add(["a"]).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::LayoutMismatch, effect), "{error}");
    }
}

/// The limit that the profile names is not the store's: appends are refused, and whoever writes the value anew finds that others were first.
#[tokio::test(start_paused = true)]
async fn a_write_that_others_are_always_before_tells_of_a_conflict() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let answering = Answering::new(&store);
    let set = Set::open_or_create(&answering.shared(), "s").await.unwrap();
    answering.by(|op| match op.verb {
        Verb::Put { mode: PutMode::Append, .. } => Some(Ok(Reply::NotStored)),
        Verb::Put { mode: PutMode::Cas(_), .. } => Some(Ok(Reply::Exists)),
        _ => None,
    });
    let error = set.add(["a"]).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("others wrote at each try"), "{error}");
}

#[tokio::test]
async fn a_compaction_whose_reply_is_lost_has_succeeded() {
    let hooked = Hooked::new(&(Arc::new(MemoryStore::new()) as StoreRef));
    let set = Set::options().dirtiness(1 << 30).open_or_create(&hooked.shared(), "s").await.unwrap();
    for _ in 0..3 {
        set.add(["a"]).await.unwrap();
    }
    hooked.lose_replies(2);
    assert_eq!(set.compact().await.unwrap().stale_bytes, 0);
    assert_eq!(sorted(&set).await, ["a"]);
}

#[tokio::test]
async fn what_many_callers_add_at_once_travels_in_writes_of_64_kib() {
    let answering = Answering::new(&Probe::new().shared());
    let set = Set::open_or_create(&answering.shared(), "s").await.unwrap();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let noted = sent.clone();
    answering.by(move |op| {
        if let (true, Verb::Put { value, .. }) = (is_append(op), &op.verb) {
            noted.lock().unwrap().push(value.len());
        }
        None
    });
    let mut callers = tokio::task::JoinSet::new();
    for number in 0..10u8 {
        let set = set.clone();
        callers.spawn(async move { set.add([vec![number; 20_000]]).await.unwrap() });
    }
    callers.join_all().await;
    assert_eq!(set.members().await.unwrap().to_vec().len(), 10);
    let sent = sent.lock().unwrap();
    assert!(sent.iter().all(|&bytes| bytes < 64 * 1024), "{sent:?}");
    assert!(sent.len() < 10, "some share a write: {sent:?}");
}
