//! What a handle made and cannot list any more: it removes that where the list is gone, and leaves it where the list is there.

use std::sync::Arc;
use std::time::Duration;

use larder_core::{ClockRef, Ctx, Effect, ErrorKind, Key, ManualClock, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::records::{PackedRecords, Schema, Value};
use larder_structures::registry::drop_structure;
use larder_structures::{EventLog, Name, UniqueVisitors, Visitors};

use crate::support::hooked::{Hooked, fail};
use crate::support::natives::Natives;

const MINUTE: Duration = Duration::from_secs(60);
/// The beginning of an hour, and of a day.
const START: Duration = Duration::from_secs(19_675 * 86_400);
/// The records of a shard.
const A_SHARD: u64 = 64;

fn clock() -> (Arc<ManualClock>, ClockRef) {
    let clock = Arc::new(ManualClock::at(START));
    (clock.clone(), clock)
}

fn memory(clock: &ClockRef) -> (Arc<MemoryStore>, StoreRef) {
    let memory = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    (memory.clone(), memory)
}

async fn log(store: &StoreRef, clock: &ClockRef) -> EventLog {
    let options = EventLog::options().chunk(MINUTE).retention(60 * MINUTE).clock(clock.clone());
    options.open_or_create(store, "n").await.unwrap()
}

async fn visitors(store: &StoreRef, clock: &ClockRef) -> Visitors {
    let options = Visitors::options().period(60 * MINUTE).shards(1).clock(clock.clone());
    options.open_or_create(store, "n").await.unwrap()
}

async fn unique(store: &StoreRef, clock: &ClockRef) -> UniqueVisitors {
    let options = UniqueVisitors::options().period(24 * 60 * MINUTE).expected(1).clock(clock.clone());
    options.open_or_create(store, "n").await.unwrap()
}

async fn records(store: &StoreRef) -> PackedRecords {
    let options = PackedRecords::options().schema(Schema::parse(["visits:u8"]).unwrap()).shard_bytes(72);
    options.open_or_create(store, "n").await.unwrap()
}

async fn set(records: &PackedRecords, shard: u64) -> larder_core::Result<()> {
    records.set(shard * A_SHARD, &[("visits", Value::Uint(7))]).await
}

async fn drop_it(store: &StoreRef) {
    assert!(drop_structure(store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().is_some());
}

/// Writes something else in the place of the manifest; returns what was there.
async fn spoil_manifest(store: &StoreRef, clock: &ManualClock) -> (Key, bytes::Bytes) {
    let key = Name::new("n").unwrap().manifest_key().unwrap();
    let was = store.get(key.clone()).await.unwrap().unwrap().value;
    store.put(key.clone(), PutMode::Set, "of nobody", Ttl::Never).await.unwrap();
    clock.advance(2 * MINUTE);
    (key, was)
}

async fn mend_manifest(store: &StoreRef, (key, was): (Key, bytes::Bytes)) {
    store.put(key, PutMode::Set, was, Ttl::Never).await.unwrap();
}

/// The handle says `Lost`, and its list is there and names the part: who opens the log again would be told a gap.
#[tokio::test]
async fn a_part_of_a_log_that_is_listed_stays_though_its_maker_meets_another_manifest() {
    let (clock, shared) = clock();
    let (_, store) = memory(&shared);
    let one = log(&store, &shared).await;
    one.put("first").await.unwrap();
    let was = spoil_manifest(&store, &clock).await;
    assert_eq!(one.put("second").await.unwrap_err().kind(), ErrorKind::Lost);
    mend_manifest(&store, was).await;
    let events = log(&store, &shared).await.fetch(..).await.unwrap();
    assert_eq!(events.whole().unwrap().len(), 2);
}

#[tokio::test]
async fn a_window_that_is_listed_stays_though_its_maker_meets_another_manifest() {
    for has_id in [false, true] {
        let (clock, shared) = clock();
        let (_, store) = memory(&shared);
        let one = visitors(&store, &shared).await;
        let was = spoil_manifest(&store, &clock).await;
        let outcome = if has_id { one.hit_visitor("a").await } else { one.hit().await };
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
        mend_manifest(&store, was).await;
        assert_eq!(visitors(&store, &shared).await.current().await.unwrap(), 1, "with an id: {has_id}");
    }
}

/// A clone of the handle meets the manifest at any step of the making of a period.
#[tokio::test]
async fn a_period_that_is_listed_stays_though_its_maker_meets_another_manifest() {
    for step in 2..=6 {
        let (clock, shared) = clock();
        let (_, store) = memory(&shared);
        let hooked = Hooked::new(&store);
        let one = unique(&hooked.shared(), &shared).await;
        let beside = one.clone();
        let was = Arc::new(std::sync::Mutex::new(None));
        let keeps = was.clone();
        hooked.at(step, move |store, batch| async move {
            *keeps.lock().unwrap() = Some(spoil_manifest(&store, &clock).await);
            assert_eq!(beside.count().await.unwrap_err().kind(), ErrorKind::Lost);
            store.run(Ctx::default(), batch).await
        });
        let outcome = one.add([1u64]).await;
        assert!(outcome.is_ok() || outcome.is_err_and(|error| error.kind() == ErrorKind::Lost));
        let was = was.lock().unwrap().take().unwrap();
        mend_manifest(&store, was).await;
        let counted = unique(&store, &shared).await.count().await;
        assert!(counted.is_ok(), "step {step}: {counted:?}");
    }
}

/// The reply is lost to who makes a shard, and he hears of the drop only at his next call.
#[tokio::test]
async fn a_shard_of_records_made_in_a_lost_reply_is_removed_once_its_maker_misses_the_list() {
    for (is_native, is_late) in [(false, false), (false, true), (true, false), (true, true)] {
        let memory = Arc::new(MemoryStore::new());
        let items: StoreRef = memory.clone();
        let natives = is_native.then(|| Natives::over(&items));
        let store = natives.as_ref().map_or(items, Natives::shared);
        set(&records(&store).await, 0).await.unwrap();
        let hooked = Hooked::new(&store);
        let other = records(&hooked.shared()).await;
        hooked.at(2, move |store, batch| async move {
            if !is_late {
                drop_it(&store).await;
            }
            _ = store.run(Ctx::default(), batch.clone()).await;
            fail(&batch, Effect::Unknown)
        });
        let error = set(&other, 1).await.unwrap_err();
        assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Unavailable, Effect::NotApplied), "{error}");
        if is_late {
            drop_it(&store).await;
        }
        assert_eq!(set(&other, 2).await.unwrap_err().kind(), ErrorKind::Lost);
        let left = natives.map(|natives| natives.all()).unwrap_or_default();
        assert_eq!((memory.stats().items, left.len()), (0, 0), "native: {is_native}, late: {is_late}");
    }
}

/// Whoever stopped waiting made it all the same.
#[tokio::test]
async fn a_shard_of_records_whose_maker_stopped_waiting_is_removed_by_his_handle() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let hooked = Hooked::new(&store);
    let one = records(&hooked.shared()).await;
    hooked.at(2, |store, batch| async move {
        _ = store.run(Ctx::default(), batch).await;
        std::future::pending().await
    });
    assert!(tokio::time::timeout(Duration::from_millis(20), set(&one, 1)).await.is_err());
    drop_it(&store).await;
    assert_eq!(one.get(0).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(memory.stats().items, 0);
}

/// It was there before, and others may know it.
#[tokio::test]
async fn a_shard_of_records_that_others_made_is_not_removed_for_one_that_was_not_made() {
    let memory = Arc::new(MemoryStore::new());
    let store: StoreRef = memory.clone();
    let hooked = Hooked::new(&store);
    let (one, other) = (records(&hooked.shared()).await, records(&store).await);
    hooked.at(2, move |store, batch| async move {
        set(&other, 1).await.unwrap();
        _ = store.run(Ctx::default(), batch.clone()).await;
        fail(&batch, Effect::Unknown)
    });
    assert!(set(&one, 1).await.is_err());
    let manifest = larder_structures::registry::find(&store, Ctx::default(), &Name::new("n").unwrap()).await;
    let found = manifest.unwrap().unwrap();
    let before = memory.stats().items;
    let list = Key::new(format!("L.n.r.{:016x}.0", found.generation)).unwrap();
    assert!(store.delete(list).await.unwrap());
    assert_eq!(set(&one, 2).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(memory.stats().items, before - 1);
}

/// Listed between the drop's look at the list and its end.
#[tokio::test]
async fn windows_that_others_list_beside_a_drop_go_as_well() {
    for (nth, has_id) in [(3, false), (4, false), (3, true), (4, true)] {
        let (_, shared) = clock();
        let (memory, store) = memory(&shared);
        let (old, other) = (visitors(&store, &shared).await, visitors(&store, &shared).await);
        old.hit_at(std::time::UNIX_EPOCH + START - MINUTE, 1).await.unwrap();
        let hooked = Hooked::new(&store);
        hooked.at(nth, move |store, batch| async move {
            if has_id {
                other.hit_visitor("a").await.unwrap()
            } else {
                other.hit().await.unwrap()
            }
            store.run(Ctx::default(), batch).await
        });
        drop_it(&hooked.shared()).await;
        assert_eq!(memory.stats().items, 0, "batch {nth}, with an id: {has_id}");
        assert_eq!(old.hit().await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// The making of a window, of which the reply may be lost, and its entry in the list.
#[tokio::test]
async fn a_window_that_is_made_behind_a_drop_is_removed_again() {
    for (step, is_told, has_id) in
        [(1, true, false), (1, false, false), (2, true, false), (1, true, true), (1, false, true), (2, true, true)]
    {
        let (_, shared) = clock();
        let (memory, store) = memory(&shared);
        let hooked = Hooked::new(&store);
        let site = visitors(&hooked.shared(), &shared).await;
        hooked.at(step, move |store, batch| async move {
            drop_it(&store).await;
            let replies = store.run(Ctx::default(), batch.clone()).await;
            if is_told { replies } else { fail(&batch, Effect::Unknown) }
        });
        let when = format!("step {step}, told: {is_told}, with an id: {has_id}");
        let outcome = if has_id { site.hit_visitor("a").await } else { site.hit().await };
        assert!(outcome.is_err(), "{when}");
        if !is_told && !has_id {
            // A hit is never sent again: what it made is removed by who comes next.
            assert_eq!(site.hit().await.unwrap_err().kind(), ErrorKind::Lost);
        }
        assert_eq!(memory.stats().items, 0, "{when}");
    }
}

/// A look beside the making of a window meets the drop, and takes the window, which is not there yet, for removed; then it is made, and its maker is not told, or stopped waiting.
#[tokio::test]
async fn a_window_that_a_look_beside_its_making_missed_is_removed_by_the_next() {
    for (is_dropped, is_answered, has_id) in
        [(true, true, false), (true, true, true), (false, true, false), (true, false, false), (true, false, true)]
    {
        let (_, shared) = clock();
        let (memory, store) = memory(&shared);
        let hooked = Hooked::new(&store);
        let site = visitors(&hooked.shared(), &shared).await;
        let found = larder_structures::registry::find(&store, Ctx::default(), &Name::new("n").unwrap()).await;
        let list = Key::new(format!("L.n.v.{:016x}.0", found.unwrap().unwrap().generation)).unwrap();
        let (beside, made) = (site.clone(), Arc::new(tokio::sync::Notify::new()));
        let is_made = made.clone();
        hooked.at(1, move |store, batch| async move {
            if is_dropped {
                drop_it(&store).await;
            } else {
                assert!(store.delete(list).await.unwrap());
            }
            assert_eq!(beside.current().await.unwrap_err().kind(), ErrorKind::Lost);
            _ = store.run(Ctx::default(), batch.clone()).await;
            is_made.notify_one();
            if !is_answered {
                std::future::pending::<()>().await;
            }
            fail(&batch, Effect::Unknown)
        });
        let hit = async || if has_id { site.hit_visitor("a").await } else { site.hit().await };
        tokio::select! {
            biased;
            outcome = hit() => assert!(outcome.is_err()),
            () = async { made.notified().await; tokio::time::sleep(MINUTE / 60).await } => assert!(!is_answered),
        }
        assert_eq!(site.current().await.unwrap_err().kind(), ErrorKind::Lost);
        // The manifest is there where nothing but the list is gone.
        let kept = usize::from(!is_dropped);
        assert_eq!(memory.stats().items, kept, "dropped: {is_dropped}, answered: {is_answered}, id: {has_id}");
    }
}
