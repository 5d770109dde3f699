//! Changes over several shards whose older numbers cannot be settled.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use larder_core::{Batch, Op, Profile, PutMode, Replies, Reply, Run, Store, StoreRef, Verb};
use larder_layers::Counting;
use larder_store_memory::MemoryStore;

use super::*;
use crate::array::Array;
use crate::array::commits::Commits;
use crate::name::Name;
use crate::set::layout::shard_of;

const NOTHING: [&str; 0] = [];

/// A store where somebody else has always written to a shard before it is written anew, or one that reads of shards come back from too late.
#[derive(Debug)]
struct Busy {
    inner: MemoryStore,
    is_busy: AtomicBool,
    is_slow: AtomicBool,
}

impl Busy {
    fn reply(&self, op: &Op) -> Result<Reply> {
        let is_shard = !op.key.as_bytes().ends_with(b"commits");
        match op.verb {
            Verb::Put { mode: PutMode::Cas(_), .. } if is_shard && self.is_busy.load(Ordering::Relaxed) => {
                Ok(Reply::Exists)
            }
            _ => self.inner.apply(op),
        }
    }
}

impl Store for Busy {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        let is_slow = |op: &Op| op.is_read() && !op.key.as_bytes().ends_with(b"commits");
        match ctx.deadline {
            Some(deadline) if self.is_slow.load(Ordering::Relaxed) && batch.iter().any(is_slow) => {
                Run::pending(async move {
                    tokio::time::sleep_until((deadline + Duration::from_millis(10)).into()).await;
                    let late = || Error::new(ErrorKind::Timeout, "the server stalls").effect(Effect::Unknown);
                    batch.iter().map(|_| Err(late())).collect::<Replies>()
                })
            }
            _ => Run::Ready(batch.iter().map(|op| self.reply(op)).collect()),
        }
    }
}

/// A handle whose commits have grown until this is true of them; no shard has settled anything.
async fn grown(until: impl Fn(&Keeper, &Commits) -> bool) -> (Arc<Busy>, Handle) {
    let inner = MemoryStore::builder().value_bytes_max(7_000).build().unwrap();
    let busy = Arc::new(Busy { inner, is_busy: AtomicBool::new(true), is_slow: AtomicBool::new(false) });
    let store: StoreRef = busy.clone();
    let handle = Handle::open(&store, &Name::new("a").unwrap(), &Array::options().shards(2), true).await.unwrap();
    let keeper = handle.keeper().unwrap();
    let (now, _) = keeper.current(Ctx::default()).await.unwrap();
    let mut next = (*now).clone();
    while !until(keeper, &next) {
        next = next.next(0, [], 0, 0);
    }
    assert!(keeper.replace(Ctx::default(), &now, next).await.unwrap());
    (busy, handle)
}

#[tokio::test(start_paused = true)]
async fn a_change_is_made_though_no_shard_could_be_settled_while_there_is_room_for_its_number() {
    let (_, handle) = grown(|keeper, commits| keeper.wants_tidying(commits)).await;
    let all = ["a", "b", "c", "d", "e"];
    handle.change(None, all, NOTHING).await.unwrap();
    let mut elements = handle.elements().await.unwrap();
    elements.sort();
    assert_eq!(elements, all);
}

#[tokio::test(start_paused = true)]
async fn without_room_for_another_number_a_change_fails_until_the_shards_are_settled() {
    let (busy, handle) = grown(|keeper, commits| keeper.is_full(commits)).await;
    let all = ["a", "b", "c", "d", "e"];
    let error = handle.change(None, all, NOTHING).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Conflict, Effect::NotApplied), "{error}");
    assert!(handle.elements().await.unwrap().is_empty());
    busy.is_busy.store(false, Ordering::Relaxed);
    handle.change(None, all, NOTHING).await.unwrap();
    assert_eq!(handle.elements().await.unwrap().len(), all.len());
}

/// It begins with settling older numbers, and its own was sent nowhere by then.
#[tokio::test(start_paused = true)]
async fn a_change_that_waits_in_vain_for_a_look_at_the_shards_changed_nothing() {
    let (busy, handle) = grown(|keeper, commits| keeper.wants_tidying(commits)).await;
    busy.is_slow.store(true, Ordering::Relaxed);
    let error = handle.change(None, ["a", "b", "c", "d", "e"], NOTHING).await.unwrap_err();
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Timeout, Effect::NotApplied), "{error}");
}

/// Which numbers a shard has settled is noted in front of its elements, where that has room.
#[tokio::test]
async fn a_full_shard_refuses_changes_of_others_only_once_no_number_is_left_and_by_its_name() {
    let counting = Counting::new(Arc::new(MemoryStore::builder().value_bytes_max(8_000).build().unwrap()));
    let store: StoreRef = Arc::new(counting.clone());
    let handle = Handle::open(&store, &Name::new("a").unwrap(), &Array::options().shards(3), true).await.unwrap();
    let of = |shard| (0u32..).map(|n| format!("{n:04}")).filter(move |text| shard_of(text.as_bytes(), 3) == shard);
    for element in of(0) {
        if let Err(error) = handle.append(Action::Put, [element]).await {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            break;
        }
    }
    let both = [of(1).next().unwrap(), of(2).next().unwrap()];
    let (mut changes, mut after_256, mut after_384) = (0, 0, 0);
    let error = loop {
        if let Err(error) = handle.change(None, &both, &both).await {
            break error;
        }
        changes += 1;
        match changes {
            260 => after_256 = counting.counts().round_trips,
            380 => after_384 = counting.counts().round_trips,
            _ => {}
        }
    };
    assert!(changes > 800, "{changes}");
    assert!(after_384 - after_256 < 120 * 3, "it is not tried again each time: {}", after_384 - after_256);
    assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Full, Effect::NotApplied), "{error}");
    assert!(error.to_string().contains("shard 0 of 3 holds"), "{error}");
    assert_eq!(handle.compact().await.unwrap().elements, handle.elements().await.unwrap().len() as u64);

    handle.append(Action::Remove, of(0).take(10)).await.unwrap();
    handle.change(None, &both, &both).await.unwrap();
}

/// Something of a later release, or damage that the check does not show: what cannot be read is told, with the name of what it is in.
#[tokio::test]
async fn a_shard_that_holds_what_no_release_writes_is_named() {
    let inner = MemoryStore::new();
    let store: StoreRef = Arc::new(inner);
    let handle = Handle::open(&store, &Name::new("a").unwrap(), &Array::options(), true).await.unwrap();
    let mut elements = Vec::new();
    crate::append::layout::put_element(&mut elements, Action::Put, &[0, 99, 1]);
    let frame = crate::append::layout::frame(handle.shards.place(0), 1, 1, &elements);
    let op = handle.shards.op(0, |key| Op::put(key, PutMode::Append, frame, larder_core::Ttl::Never));
    assert!(store.run(Ctx::default(), Batch::from_iter([op])).await[0].is_ok());
    let error = handle.elements().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert!(error.to_string().contains("array \"a\": shard 0 holds what this release does not know"), "{error}");
}

/// A store that notes until when it is asked to answer, at the latest.
#[derive(Debug)]
struct Urged {
    inner: MemoryStore,
    deadlines: Mutex<Vec<Instant>>,
}

impl Store for Urged {
    fn profile(&self) -> Arc<Profile> {
        self.inner.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        self.deadlines.lock().unwrap().extend(ctx.deadline);
        Run::Ready(batch.iter().map(|op| self.inner.apply(op)).collect())
    }
}

#[tokio::test]
async fn a_change_of_several_steps_takes_them_in_seven_eighths_of_its_time() {
    let urged = Arc::new(Urged { inner: MemoryStore::new(), deadlines: Mutex::default() });
    let store: StoreRef = urged.clone();
    let timeout = Duration::from_millis(160);
    let options = Array::options().shards(2).timeout(timeout);
    let handle = Handle::open(&store, &Name::new("a").unwrap(), &options, true).await.unwrap();
    urged.deadlines.lock().unwrap().clear();
    let began = ambient::now();
    // On a machine that stands still it may come to nothing.
    _ = handle.change(None, ["a", "b", "c", "d", "e"], NOTHING).await;
    let first = urged.deadlines.lock().unwrap()[0];
    assert!(first >= began + timeout - timeout / 8, "{:?}", first - began);
    assert!(first <= ambient::now() + timeout - timeout / 8);
}

/// However a call's operations are written: as they are, or as a change that has a number or a token, of any size.
#[tokio::test]
async fn the_largest_call_fits_into_what_a_write_may_take_in_any_form() {
    let store: StoreRef = Arc::new(MemoryStore::new());
    let handle = Handle::open(&store, &Name::new("a").unwrap(), &Array::options(), true).await.unwrap();
    let mut largest = BTreeMap::new();
    handle.operations(&mut largest, Action::Put, [vec![0; handle.element_bytes_max()]]).unwrap();
    handle.operations(&mut largest, Action::Put, [[1; 50]]).unwrap();
    let most = handle.shards.elements_bytes_max();
    for form in [numbered, fenced] {
        let bytes = form(u64::MAX, u64::MAX, &largest[&0]).len();
        assert!(bytes <= most && bytes + 100 > most, "{bytes} of {most}");
    }
}
