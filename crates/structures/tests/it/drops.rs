//! Drops of what has a list of its pieces (packed records, packed tables, event logs, queues and stacks) beside those who add to it: nothing is left behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use larder_core::{Batch, Ctx, Effect, ErrorKind, Key, Profile, PutMode, Result, Run, Store, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::lookup::{LookupKey, Rows};
use larder_structures::records::{Schema, Value};
use larder_structures::registry::{drop_structure, find};
use larder_structures::{EventLog, Name, PackedRecords, PackedTable, Table};
use larder_testkit::lines::{BOTH, Kind, Line, small};

use crate::support::hooked::{Hooked, fail};
use crate::support::natives::Natives;
use crate::support::steady::metered;

/// The batches of a drop: one reads the manifest, one the list, ...
const PIECES: u64 = 3;
/// ... one deletes what it names, and this one the list.
const LIST: u64 = 4;
/// How often a list is deleted that others write meanwhile.
const TRIES_MAX: u64 = 24;
/// The records of a shard.
const A_SHARD: u64 = 64;

/// A store with native data beside its items, or without.
struct World {
    memory: Arc<MemoryStore>,
    natives: Option<Arc<Natives>>,
    store: StoreRef,
}

impl World {
    fn new(is_native: bool) -> World {
        let memory = Arc::new(MemoryStore::new());
        let items: StoreRef = memory.clone();
        let natives = is_native.then(|| Natives::over(&items));
        let store = natives.as_ref().map_or(items, Natives::shared);
        World { memory, natives, store }
    }

    /// Fails if a key is left.
    fn must_be_empty(&self, when: &str) {
        self.must_be_empty_but_for(None, when);
    }

    /// The same, but for keys whose index begins so.
    fn must_be_empty_but_for(&self, known: Option<char>, when: &str) {
        let mut left = BTreeMap::new();
        self.memory.each(|key, _| _ = left.insert(String::from_utf8_lossy(key).into_owned(), ()));
        left.retain(|key, ()| {
            known.is_none() || !key.rsplit('.').next().unwrap_or_default().starts_with(known.as_slice())
        });
        let natives = self.natives.as_ref().map(|natives| natives.all()).unwrap_or_default();
        assert!(left.is_empty() && natives.is_empty(), "{when}: {:?}, {natives:?}", left.keys());
    }
}

async fn drop_it(store: &StoreRef) -> Result<bool> {
    Ok(drop_structure(store, Ctx::default(), &Name::new("n").unwrap()).await?.is_some())
}

async fn records(store: &StoreRef) -> PackedRecords {
    let options = PackedRecords::options().schema(Schema::parse(["visits:u8"]).unwrap()).shard_bytes(72);
    options.open_or_create(store, "n").await.unwrap()
}

async fn set(records: &PackedRecords, shard: u64) -> Result<()> {
    records.set(shard * A_SHARD, &[("visits", Value::Uint(7))]).await
}

async fn log(store: &StoreRef) -> EventLog {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    EventLog::options().chunk(minutes(1)).retention(minutes(60)).open_or_create(store, "n").await.unwrap()
}

/// Puts an event of so many minutes ago, into a chunk of its own.
async fn put(log: &EventLog, minutes: u64) -> Result<()> {
    log.put_at(log.now_ms() - minutes * 60_000, "event").await
}

async fn table(store: &StoreRef) -> PackedTable {
    PackedTable::options().block_bytes(64).open_or_create(store, "n").await.unwrap()
}

fn rows(word: &str) -> Rows {
    let mut rows = Rows::new(["word"]).unwrap();
    for id in 0..30u64 {
        rows.push_id(id, [format!("{word} {:x}", id.wrapping_mul(0x9e37_79b9_7f4a_7c15))]).unwrap();
    }
    rows
}

/// The entry, and a note in the list: by then it is in one of two shards of the list.
#[tokio::test]
async fn entries_that_others_list_beside_a_drop_go_as_well() {
    for shards in [1, 2] {
        for nth in [PIECES, LIST] {
            let world = World::new(false);
            let open = || Table::options().shards(shards).open_or_create(&world.store, "n");
            let (old, other) = (open().await.unwrap(), open().await.unwrap());
            for n in 0..8 {
                old.put(format!("old {n}"), "v").await.unwrap();
            }
            let hooked = Hooked::new(&world.store);
            hooked.at(nth, move |store, batch| async move {
                for n in 0..8 {
                    other.put(format!("new {n}"), "v").await.unwrap();
                }
                store.run(Ctx::default(), batch).await
            });
            assert!(drop_it(&hooked.shared()).await.unwrap());
            world.must_be_empty(&format!("batch {nth}, {shards} shards"));
            assert_eq!(old.put("old 0", "v").await.unwrap_err().kind(), ErrorKind::Lost);
        }
    }
}

/// It may name entries that nobody would find without it.
#[tokio::test]
async fn a_table_whose_list_cannot_be_read_is_not_dropped() {
    let world = World::new(false);
    let table = Table::open_or_create(&world.store, "n").await.unwrap();
    table.put("k", "v").await.unwrap();
    let found = find(&world.store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
    let list = Key::new(format!("L.n.t.{:016x}.0", found.generation)).unwrap();
    let known = world.store.get(list.clone()).await.unwrap().unwrap();
    let put = |value: bytes::Bytes| world.store.put(list.clone(), PutMode::Set, value, Ttl::Never);
    put("of another program".into()).await.unwrap();
    let error = drop_it(&world.store).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch, "{error}");
    assert!(error.to_string().contains(&list.to_string()), "{error}");
    put(known.value).await.unwrap();
    assert_eq!(table.get("k").await.unwrap().unwrap(), "v");
    assert!(drop_it(&world.store).await.unwrap());
    world.must_be_empty("read again");
}

#[tokio::test]
async fn shards_of_records_that_others_list_beside_a_drop_go_as_well() {
    for (nth, is_native) in [(PIECES, false), (LIST, false), (PIECES, true), (LIST, true)] {
        let world = World::new(is_native);
        let (old, other) = (records(&world.store).await, records(&world.store).await);
        set(&old, 0).await.unwrap();
        let hooked = Hooked::new(&world.store);
        hooked.at(nth, move |store, batch| async move {
            // In the native layout the highest id is gone by then: what was set is, too.
            let outcome = set(&other, 1).await;
            assert!(outcome.is_ok() || is_native && nth == LIST, "{outcome:?}");
            store.run(Ctx::default(), batch).await
        });
        assert!(drop_it(&hooked.shared()).await.unwrap());
        world.must_be_empty(&format!("batch {nth}, native: {is_native}"));
        for outcome in [set(&old, 0).await, set(&old, 1).await] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
        }
    }
}

/// A look at the list, the making, the entry, a look again, and what is to be written.
#[tokio::test]
async fn a_shard_of_records_that_is_made_behind_a_drop_is_removed_again() {
    for (step, is_native) in (1..=6).flat_map(|step| [(step, false), (step, true)]) {
        let world = World::new(is_native);
        set(&records(&world.store).await, 0).await.unwrap();
        let hooked = Hooked::new(&world.store);
        let other = records(&hooked.shared()).await;
        hooked.at(step, |store, batch| async move {
            assert!(drop_it(&store).await.unwrap());
            store.run(Ctx::default(), batch).await
        });
        let outcome = set(&other, 1).await;
        if step <= 4 {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.known_effect()), (ErrorKind::Lost, Effect::NotApplied), "{error}");
        } else {
            // In the native layout the fifth batch is the last.
            assert!(outcome.is_err() || is_native && step == 6, "step {step}");
        }
        if is_native && step == 6 {
            assert!(drop_it(&world.store).await.unwrap());
        }
        world.must_be_empty(&format!("step {step}, native: {is_native}"));
    }
}

#[tokio::test]
async fn parts_of_a_log_that_others_list_beside_a_drop_go_as_well() {
    // Of another chunk, or of the same once its part is deleted.
    for (nth, minutes) in [(PIECES, 3), (LIST, 3), (LIST, 1)] {
        let world = World::new(false);
        let (old, other) = (log(&world.store).await, log(&world.store).await);
        put(&old, 1).await.unwrap();
        let hooked = Hooked::new(&world.store);
        hooked.at(nth, move |store, batch| async move {
            put(&other, minutes).await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        assert!(drop_it(&hooked.shared()).await.unwrap());
        world.must_be_empty(&format!("batch {nth}, {minutes} minutes"));
        assert_eq!(put(&old, 1).await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// The making of a part, of which the reply may be lost, and its entry in the list.
#[tokio::test]
async fn a_part_of_a_log_that_is_made_behind_a_drop_is_removed_again() {
    for (step, is_told) in [(1, true), (1, false), (2, true), (2, false)] {
        let world = World::new(false);
        put(&log(&world.store).await, 1).await.unwrap();
        let hooked = Hooked::new(&world.store);
        let other = log(&hooked.shared()).await;
        hooked.at(step, move |store, batch| async move {
            assert!(drop_it(&store).await.unwrap());
            let replies = store.run(Ctx::default(), batch.clone()).await;
            if is_told { replies } else { fail(&batch, Effect::Unknown) }
        });
        assert_eq!(put(&other, 3).await.unwrap_err().kind(), ErrorKind::Lost);
        world.must_be_empty(&format!("step {step}, told: {is_told}"));
    }
}

/// Where the list was lost, and nothing was dropped, what others made stays: they may know of it.
#[tokio::test]
async fn a_part_of_a_log_that_others_made_is_not_removed_with_the_list() {
    let world = World::new(false);
    let (one, other) = (log(&world.store).await, log(&world.store).await);
    put(&one, 3).await.unwrap();
    let before = world.memory.stats().items;
    let manifest = find(&world.store, Ctx::default(), &Name::new("n").unwrap()).await;
    let list = format!("L.n.e.{:016x}.0", manifest.unwrap().unwrap().generation);
    world.store.delete(Key::new(list).unwrap()).await.unwrap();
    assert_eq!(put(&other, 3).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(world.memory.stats().items, before - 1);
}

/// What the index of a link begins with: whoever is late with one leaves it behind.
const LINK: Option<char> = Some('n');

/// A queue, or a stack, of which the tail waits in the middle as soon as there is another.
async fn line(kind: Kind, store: &StoreRef) -> Line {
    let line = Line::open_as(kind, store, "n", &small()).await;
    if line.stat().await.segments < 2 {
        line.push([b'x'; 250]).await.unwrap();
    }
    line
}

#[tokio::test]
async fn segments_that_others_open_beside_a_drop_go_as_well() {
    // A stack's segments are found by two reads more.
    for (kind, nth) in BOTH.into_iter().flat_map(|kind| (PIECES..=LIST + 2).map(move |nth| (kind, nth))) {
        let world = World::new(false);
        let (old, other) = (line(kind, &world.store).await, line(kind, &world.store).await);
        let hooked = Hooked::new(&world.store);
        hooked.at(nth, move |store, batch| async move {
            for _ in 0..2 {
                let outcome = other.push([b'x'; 250]).await;
                assert!(outcome.is_ok() || kind == Kind::Queue && nth > LIST, "{kind:?}, batch {nth}: {outcome:?}");
            }
            store.run(Ctx::default(), batch).await
        });
        assert!(drop_it(&hooked.shared()).await.unwrap());
        world.must_be_empty(&format!("{kind:?}, batch {nth}"));
        assert_eq!(old.push("more").await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// The push, the making of the next segment, and the naming of it.
#[tokio::test]
async fn a_segment_that_is_made_behind_a_drop_is_removed_again() {
    for (kind, step) in BOTH.into_iter().flat_map(|kind| (1..=3).map(move |step| (kind, step))) {
        let world = World::new(false);
        line(kind, &world.store).await;
        let hooked = Hooked::new(&world.store);
        let other = line(kind, &hooked.shared()).await;
        hooked.at(step, |store, batch| async move {
            assert!(drop_it(&store).await.unwrap());
            store.run(Ctx::default(), batch).await
        });
        // Of the later steps it had landed by then.
        let outcome = other.push([b'x'; 250]).await;
        assert_eq!(outcome.is_ok(), step > 1, "{kind:?}, step {step}: {outcome:?}");
        assert_eq!(other.push("more").await.unwrap_err().kind(), ErrorKind::Lost);
        world.must_be_empty_but_for(LINK, &format!("{kind:?}, step {step}"));
    }
}

/// A build that comes to an end beside a drop never looks at the head again.
#[tokio::test]
async fn versions_of_a_table_that_others_build_beside_a_drop_go_as_well() {
    for nth in [PIECES, LIST] {
        let world = World::new(false);
        let (old, other) = (table(&world.store).await, table(&world.store).await);
        old.build(rows("old")).await.unwrap();
        let hooked = Hooked::new(&world.store);
        hooked.at(nth, move |store, batch| async move {
            other.build(rows("new")).await.unwrap();
            store.run(Ctx::default(), batch).await
        });
        assert!(drop_it(&hooked.shared()).await.unwrap());
        world.must_be_empty(&format!("batch {nth}"));
        assert_eq!(old.build(rows("late")).await.unwrap_err().kind(), ErrorKind::Lost);
        world.must_be_empty(&format!("batch {nth}, a late build"));
    }
}

#[tokio::test]
async fn a_build_that_a_drop_overtakes_at_any_step_removes_what_it_has_written() {
    let (mut lost, mut last) = (0, false);
    for step in 1.. {
        let world = World::new(false);
        table(&world.store).await.build(rows("old")).await.unwrap();
        // So few ops in a batch that it takes many.
        let hooked = Hooked::with_batches_of(&world.store, 6);
        let other = table(&hooked.shared()).await;
        let dropped = Arc::new(AtomicBool::new(false));
        let tells = dropped.clone();
        hooked.at(step, move |store, batch| async move {
            assert!(drop_it(&store).await.unwrap());
            tells.store(true, Ordering::SeqCst);
            store.run(Ctx::default(), batch).await
        });
        match other.build(rows("new")).await {
            Err(error) => {
                assert_eq!((error.kind(), last), (ErrorKind::Lost, false), "step {step}: {error}");
                lost += 1;
            }
            // It is in force, and goes with the others.
            Ok(_) => last = true,
        }
        if !dropped.load(Ordering::SeqCst) {
            break;
        }
        world.must_be_empty(&format!("step {step}"));
    }
    assert!(lost > 5 && last, "{lost}");
}

/// Makes one of each kind, and then something that its list names.
async fn each_kind(store: &StoreRef, kind: usize) {
    match kind {
        0 => set(&records(store).await, 0).await.unwrap(),
        1 => put(&log(store).await, 1).await.unwrap(),
        _ => _ = table(store).await.build(rows("old")).await.unwrap(),
    }
}

#[tokio::test]
async fn a_drop_whose_list_is_deleted_in_a_lost_reply_is_unknown_and_can_be_done_again() {
    for kind in 0..3 {
        for lands in [true, false] {
            let world = World::new(false);
            each_kind(&world.store, kind).await;
            let hooked = Hooked::new(&world.store);
            if lands {
                hooked.lose_replies(LIST);
            } else {
                hooked.at(LIST, |_, batch| async move { fail(&batch, Effect::Unknown) });
            }
            let error = drop_it(&hooked.shared()).await.unwrap_err();
            assert!(error.is_unknown(), "kind {kind}: {error}");
            assert!(drop_it(&world.store).await.unwrap());
            world.must_be_empty(&format!("kind {kind}, lands: {lands}"));
        }
    }
}

/// What the list names is gone by then, whatever became of the list.
#[tokio::test]
async fn a_drop_whose_list_cannot_be_deleted_says_that_a_part_may_be_gone() {
    for kind in 0..3 {
        let world = World::new(false);
        each_kind(&world.store, kind).await;
        let hooked = Hooked::new(&world.store);
        hooked.at(LIST, |_, batch| async move { fail(&batch, Effect::NotApplied) });
        let error = drop_it(&hooked.shared()).await.unwrap_err();
        assert!(error.is_unknown(), "kind {kind}: {error}");
        assert!(drop_it(&world.store).await.unwrap());
        world.must_be_empty(&format!("kind {kind}"));
    }
}

/// Who knows it knows what it names.
#[tokio::test]
async fn a_packed_table_with_a_head_of_another_release_is_not_dropped() {
    let world = World::new(false);
    table(&world.store).await.build(rows("word")).await.unwrap();
    let found = find(&world.store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap().unwrap();
    let head = Key::new(format!("L.n.b.{:016x}.0", found.generation)).unwrap();
    let known = world.store.get(head.clone()).await.unwrap().unwrap();
    let put = |value: bytes::Bytes| world.store.put(head.clone(), PutMode::Set, value, Ttl::Never);
    put("of another release".into()).await.unwrap();
    assert_eq!(drop_it(&world.store).await.unwrap_err().kind(), ErrorKind::LayoutMismatch);
    put(known.value).await.unwrap();
    assert!(table(&world.store).await.get(LookupKey::from(7)).await.unwrap().is_some());
    assert!(drop_it(&world.store).await.unwrap());
    world.must_be_empty("its own release");
}

/// What is listed at each try, up to the last.
#[tokio::test(start_paused = true)]
async fn a_drop_beside_one_who_keeps_adding_says_conflict_and_what_it_may_have_done() {
    for tries in [TRIES_MAX - 1, TRIES_MAX] {
        let world = World::new(false);
        let other = records(&world.store).await;
        set(&other, 0).await.unwrap();
        let hooked = Hooked::new(&world.store);
        for shard in 1..=tries {
            let other = other.clone();
            // The list is read, what it names is deleted, and it is deleted itself.
            hooked.at(LIST + 3 * (shard - 1), move |store, batch| async move {
                set(&other, shard).await.unwrap();
                store.run(Ctx::default(), batch).await
            });
        }
        match drop_it(&hooked.shared()).await {
            Ok(dropped) => assert!(dropped && tries < TRIES_MAX),
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.is_unknown(), tries),
                    (ErrorKind::Conflict, true, TRIES_MAX),
                    "{error}"
                );
                assert!(drop_it(&world.store).await.unwrap());
            }
        }
        world.must_be_empty(&format!("{tries} tries"));
    }
}

/// 5, and 3 more where the list was written meanwhile.
#[tokio::test]
async fn a_drop_takes_the_round_trips_it_documents() {
    for kind in 0..3 {
        for (is_met, documented) in [(false, 5), (true, 8)] {
            let memory: StoreRef = Arc::new(MemoryStore::new());
            each_kind(&memory, kind).await;
            let hooked = Hooked::new(&memory);
            if is_met {
                hooked.at(LIST, move |store, batch| async move {
                    match kind {
                        0 => set(&records(&store).await, 1).await.unwrap(),
                        1 => put(&log(&store).await, 3).await.unwrap(),
                        _ => each_kind(&store, kind).await,
                    }
                    store.run(Ctx::default(), batch).await
                });
            }
            let counting = metered(hooked.shared());
            let store: StoreRef = Arc::new(counting.clone());
            assert!(drop_it(&store).await.unwrap());
            assert_eq!(counting.counts().round_trips, documented, "kind {kind}, met: {is_met}");
        }
    }
}

/// A store that is a network away.
#[derive(Debug)]
struct Slow(StoreRef);

impl Store for Slow {
    fn profile(&self) -> Arc<Profile> {
        self.0.profile()
    }

    fn run<'a>(&'a self, ctx: Ctx, batch: Batch) -> Run<'a> {
        Run::pending(async move {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(500..1_500))).await;
            self.0.run(ctx, batch).await
        })
    }
}

/// Each makes the parts anew that the drop has deleted: without a pause between its tries it came to no end, three times of ten. With them it still may, on a
/// machine with too much to do: it says so then, and can be done again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_of_a_log_that_many_put_into_all_the_time_comes_to_an_end() {
    for _ in 0..8 {
        let world = World::new(false);
        let store: StoreRef = Arc::new(Slow(world.store.clone()));
        let mut putters = Vec::new();
        for _ in 0..32 {
            let log = log(&store).await;
            putters.push(tokio::spawn(async move { while put(&log, fastrand::u64(0..30)).await.is_ok() {} }));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut drops = 1;
        while let Err(error) = drop_it(&store).await {
            assert_eq!((error.kind(), error.is_unknown()), (ErrorKind::Conflict, true), "{error}");
            assert!(drops < 12, "drop {drops}: {error}");
            drops += 1;
        }
        for putter in putters {
            putter.await.unwrap();
        }
        world.must_be_empty("all putters are done");
    }
}

/// Each takes, and opens a segment where the drop has deleted the tail, or takes note of what is gone: with the state's token alone it came to no end for as long as they went on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_of_a_queue_that_many_use_all_the_time_comes_to_an_end() {
    for kind in BOTH {
        let world = World::new(false);
        let store: StoreRef = Arc::new(Slow(world.store.clone()));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut users = Vec::new();
        for n in 0..16 {
            let (line, is_over) = (line(kind, &store).await, is_over.clone());
            users.push(tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    _ = if n % 2 == 0 { line.push([b'x'; 50]).await } else { line.pop().await.map(|_| ()) };
                }
            }));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(drop_it(&store).await.unwrap(), "{kind:?}");
        is_over.store(true, Ordering::Relaxed);
        for user in users {
            user.await.unwrap();
        }
        assert_eq!(find(&world.store, Ctx::default(), &Name::new("n").unwrap()).await.unwrap(), None, "{kind:?}");
    }
}
