//! That every event of the structures is told, where it happens and only there.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use larder_core::observe::{self, Event, Observer};
use larder_core::{Ctx, ErrorKind, Key, ManualClock, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_memory::MemoryStore;
use larder_structures::lock::Lock;
use larder_structures::log::Cursor;
use larder_structures::records::{Schema, Value};
use larder_structures::{
    Array, Cache, Counter, EventLog, Name, PackedRecords, Queue, Set, Stack, Table, UniqueVisitors, Visitors, registry,
};

use crate::array::support::{NOTHING, whole};
use crate::counter::support::{memory, slot_key};
use crate::lock::support::{LEASE, SECOND, options};
use crate::support::hooked::Hooked;
use crate::support::probe::Probe;
use crate::table::support::{evicting, flagged, lose};

/// Events in words, each with the name of its structure; tests use names of their own, since the observer is the process's.
type Seen = Mutex<Vec<(Vec<u8>, String)>>;

#[derive(Debug)]
struct Recorder(&'static Seen);

impl Observer for Recorder {
    fn observe(&self, event: &Event<'_>) {
        let (subject, text) = match event {
            Event::Conflict { subject } => (subject, "conflict".to_owned()),
            Event::Retry { subject, cause } => (subject, format!("retry after {}", cause.as_str())),
            Event::Compaction { subject, shard, phase } => (subject, format!("compaction {shard} {}", phase.as_str())),
            Event::Loss { subject, kind } => (subject, kind.as_str().to_owned()),
            Event::PutBack { subject } => (subject, "put back".to_owned()),
            Event::Wait { subject, time, end } => {
                (subject, format!("waited {} ms: {}", time.as_millis(), end.as_str()))
            }
            Event::Hold { subject, time, end } => (subject, format!("held {} ms: {end}", time.as_millis())),
            Event::Takeover { subject, is_dead } => (subject, format!("takeover, dead {is_dead}")),
            other => panic!("{other:?} is none of the structures'"),
        };
        let kind = subject.kind;
        self.0.lock().unwrap().push((subject.name.to_vec(), format!("{kind}: {text}")));
    }
}

fn seen() -> &'static Seen {
    static SEEN: Seen = Mutex::new(Vec::new());
    static SET: OnceLock<()> = OnceLock::new();
    SET.get_or_init(|| observe::set(Recorder(&SEEN)).unwrap());
    &SEEN
}

/// What was told of a name since the last call.
fn told(name: &str) -> Vec<String> {
    let mut seen = seen().lock().unwrap();
    let (of_name, rest) = seen.drain(..).partition(|(of, _)| of == name.as_bytes());
    *seen = rest;
    Vec::from_iter::<Vec<(Vec<u8>, String)>>(of_name).into_iter().map(|(_, text)| text).collect()
}

#[tokio::test]
async fn a_counter_tells_conflicts_retries_and_takeovers() {
    seen();
    let store = memory();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let options = Counter::options().clock(clock.clone());
    let first = options.clone().slots(1).open_or_create(&store, "c").await.unwrap();
    first.add(1).await.unwrap();
    first.add(1).await.unwrap();
    assert!(told("c").is_empty(), "nobody was in the way");
    let second = options.open(&store, "c").await.unwrap();
    second.add(1).await.unwrap();
    assert_eq!(told("c"), ["counter: takeover, dead false"]);
    first.add(1).await.unwrap();
    assert_eq!(
        told("c"),
        ["counter: conflict", "counter: retry after conflict", "counter: takeover, dead false"],
        "it looks for a better slot, and there is none"
    );
    clock.advance(Duration::from_secs(31));
    let third = options.open(&store, "c").await.unwrap();
    third.add(1).await.unwrap();
    assert_eq!(told("c"), ["counter: takeover, dead true"]);
    store.delete(slot_key(&store, "c", 0).await).await.unwrap();
    assert_eq!(third.get().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("c"), ["counter: lost"]);
}

#[tokio::test]
async fn a_set_tells_retries_and_losses() {
    seen();
    let plain = Probe::new().shared();
    let hooked = Hooked::new(&plain);
    let set = Set::open_or_create(&hooked.shared(), "s1").await.unwrap();
    hooked.refuse(1);
    set.add(["a"]).await.unwrap();
    hooked.lose_replies(1);
    set.add(["b"]).await.unwrap();
    assert_eq!(told("s1"), ["set: retry after unavailable"; 2]);

    let key = crate::support::probe::shard_key(&plain, "s1", 0).await;
    let value = crate::support::probe::value_of(&plain, &key).await;
    set.add(["c"]).await.unwrap();
    crate::support::probe::set_value(&plain, &key, value).await;
    assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::RolledBack);
    assert_eq!(told("s1"), ["set: rolled back"]);
    plain.delete(key).await.unwrap();
    assert_eq!(set.members().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("s1"), ["set: lost"]);
}

#[tokio::test]
async fn a_log_tells_retries_and_gaps() {
    seen();
    let plain = Probe::new().shared();
    let hooked = Hooked::new(&plain);
    let log = EventLog::open_or_create(&hooked.shared(), "e1").await.unwrap();
    log.put("a").await.unwrap();
    let mut tail = log.tail(Cursor::default()).unwrap();
    tail.poll().await.unwrap().whole().unwrap();
    hooked.lose_replies(1);
    log.put("b").await.unwrap();
    assert_eq!(told("e1"), ["log: retry after unavailable"]);

    let name = Name::new("e1").unwrap();
    let manifest = registry::find(&plain, Ctx::default(), &name).await.unwrap().unwrap();
    let chunk = log.now_ms() / 3_600_000;
    let key = Key::new(format!("L.e1.e.{:016x}.{chunk:x}-0", manifest.generation)).unwrap();
    assert!(plain.delete(key).await.unwrap());
    assert!(log.fetch(..).await.unwrap().whole().is_err());
    assert_eq!(told("e1"), ["log: lost"]);
    for expected in [1, 0] {
        let (_, gaps) = tail.poll().await.unwrap().with_gaps();
        assert_eq!(gaps.len(), expected);
        assert_eq!(told("e1"), vec!["log: lost"; expected]);
    }
}

#[tokio::test]
async fn a_compaction_is_told_begun_and_done_or_met() {
    seen();
    let plain = Probe::new().shared();
    let hooked = Hooked::new(&plain);
    let options = Set::options().dirtiness(usize::MAX);
    let set = options.clone().open_or_create(&hooked.shared(), "s2").await.unwrap();
    set.add(["a", "b"]).await.unwrap();
    set.remove(["a"]).await.unwrap();
    set.compact().await.unwrap();
    assert_eq!(told("s2"), ["set: compaction 0 begun", "set: compaction 0 done"]);
    set.compact().await.unwrap();
    assert!(told("s2").is_empty(), "nothing was stale");
    set.remove(["b"]).await.unwrap();
    // Another handle writes between the compaction's read and its write.
    let other = options.open(&plain, "s2").await.unwrap();
    hooked.at(2, move |store, batch| async move {
        other.add(["c"]).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    set.compact().await.unwrap();
    let both =
        ["set: compaction 0 begun", "set: compaction 0 met", "set: compaction 0 begun", "set: compaction 0 done"];
    assert_eq!(told("s2"), both);
}

#[tokio::test]
async fn a_write_that_makes_its_own_room_tells_a_compaction() {
    seen();
    let store = Probe::small(12_000).shared();
    let set = Set::options().dirtiness(usize::MAX).open_or_create(&store, "s3").await.unwrap();
    let member = format!("{:01000}", 1);
    let mut all = Vec::new();
    while all.is_empty() {
        set.add([&member]).await.unwrap();
        set.remove([&member]).await.unwrap();
        all = told("s3");
    }
    assert_eq!(all, ["set: compaction 0 begun", "set: compaction 0 done"]);
}

#[tokio::test]
async fn a_manifest_that_is_put_back_and_a_race_to_create_are_told() {
    seen();
    let plain: StoreRef = memory();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000)));
    let set = Set::options().clock(clock.clone()).open_or_create(&plain, "s4").await.unwrap();
    plain.delete(Name::new("s4").unwrap().manifest_key().unwrap()).await.unwrap();
    clock.advance(Duration::from_secs(60));
    set.members().await.unwrap();
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    assert_eq!(told("s4"), ["set: put back"]);

    let hooked = Hooked::new(&plain);
    // The open looks, the data are added, and before the manifest is, somebody else makes the name.
    hooked.at(3, |store, batch| async move {
        Set::open_or_create(&store, "s5").await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    Set::open_or_create(&hooked.shared(), "s5").await.unwrap();
    assert_eq!(told("s5"), ["set: conflict"]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_tells_how_long_was_waited_and_held() {
    seen();
    let (store, clock) = crate::lock::support::memory();
    let lock = options(&clock).open(&store, "l1").await.unwrap();
    let other = options(&clock).open(&store, "l1").await.unwrap();
    let guard = lock.acquire(SECOND).await.unwrap();
    // Who made the record waits until the wall clock has gone on, which in paused time takes a pause.
    assert_eq!(told("l1"), ["lock: waited 1 ms: got"]);
    assert!(other.try_acquire().await.unwrap().is_none());
    // It bet that the lock was still as it had opened it, and lost the bet.
    assert_eq!(told("l1"), ["lock: conflict", "lock: waited 0 ms: busy"]);
    assert_eq!(other.acquire(SECOND).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(told("l1"), ["lock: waited 1000 ms: busy"]);
    assert!(tokio::time::timeout(SECOND / 2, other.acquire(SECOND)).await.is_err());
    assert_eq!(told("l1"), ["lock: waited 500 ms: given up"]);
    guard.release().await.unwrap();
    assert_eq!(told("l1"), ["lock: held 1500 ms: released"]);

    let guard = other.acquire(SECOND).await.unwrap();
    lock.force_release().await.unwrap();
    guard.renew().await.unwrap_err();
    drop(guard);
    assert_eq!(told("l1"), ["lock: waited 0 ms: got", "lock: held 0 ms: freed"], "told once");
}

#[tokio::test(start_paused = true)]
async fn a_lock_tells_its_loss_and_a_dead_holders_takeover() {
    seen();
    let (store, clock) = crate::lock::support::memory();
    let lock = options(&clock).open(&store, "l2").await.unwrap();
    let guard = lock.acquire(SECOND).await.unwrap();
    store.delete(crate::lock::support::key("l2")).await.unwrap();
    guard.renew().await.unwrap_err();
    let lost = ["lock: waited 1 ms: got", "lock: held 0 ms: gone", "lock: lost"];
    assert_eq!(told("l2"), lost);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(told("l2"), ["lock: lost", "lock: waited 0 ms: failed"]);

    let dead = options(&clock).open(&store, "l3").await.unwrap().acquire(SECOND).await.unwrap();
    // Its process stood still: no renewal.
    std::mem::forget(dead);
    let record = store.get(crate::lock::support::key("l3")).await.unwrap().unwrap();
    clock.stand_still(LEASE + SECOND);
    store
        .put(
            crate::lock::support::key("l3"),
            PutMode::Set,
            record.value,
            Ttl::After(30 * 86_400 * SECOND - LEASE - SECOND),
        )
        .await
        .unwrap();
    told("l3");
    let fresh: Lock = options(&clock).open(&store, "l3").await.unwrap();
    assert!(fresh.try_acquire().await.unwrap().is_some());
    assert_eq!(told("l3")[..2], ["lock: takeover, dead true", "lock: waited 0 ms: got"]);
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_cannot_be_renewed_tells_its_retries() {
    seen();
    let (plain, clock) = crate::lock::support::memory();
    let hooked = Hooked::new(&plain);
    let lock = options(&clock).open(&hooked.shared(), "l4").await.unwrap();
    hooked.refuse(1);
    let guard = lock.acquire(SECOND).await.unwrap();
    let all = told("l4");
    assert_eq!(all[0], "lock: retry after unavailable");
    assert!(all[1].ends_with(": got"), "{all:?}");
    hooked.refuse(1);
    tokio::time::sleep(LEASE / 2).await;
    assert_eq!(told("l4"), ["lock: retry after unavailable"]);
    assert!(guard.is_held());
}

#[tokio::test]
async fn visitors_tell_retries_compactions_and_losses() {
    seen();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(3_000_000)));
    let options = Visitors::options().period(Duration::from_secs(300)).shards(1).clock(clock);
    let plain = Probe::small(12_300).shared();
    let hooked = Hooked::new(&plain);
    let site = options.open_or_create(&hooked.shared(), "v").await.unwrap();
    site.hit_visitor("first").await.unwrap();
    assert!(told("v").is_empty(), "nothing was in the way");
    hooked.refuse(1);
    site.hit_visitor("second").await.unwrap();
    assert_eq!(told("v"), ["visitors: retry after unavailable"]);
    // Two that name the same: repeats fill the shard, and make room for another.
    for _ in 0..2 {
        let site = options.open(&plain, "v").await.unwrap();
        for id in 0..1_000u32 {
            site.hit_visitor(id.to_le_bytes()).await.unwrap();
        }
    }
    assert!(told("v").is_empty(), "who is in it needs no room");
    site.hit_visitor("third").await.unwrap();
    assert_eq!(told("v"), ["visitors: compaction 0 begun", "visitors: compaction 0 done"]);
    site.hit().await.unwrap();
    let manifest = registry::find(&plain, Ctx::default(), &Name::new("v").unwrap()).await.unwrap().unwrap();
    let key = format!("L.v.v.{:016x}.w10000", manifest.generation);
    plain.delete(larder_core::Key::new(key).unwrap()).await.unwrap();
    assert_eq!(site.current().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("v"), ["visitors: lost"]);
}

/// The period before is over, and has expired, when the next one is planned by it.
#[tokio::test]
async fn a_period_that_is_over_is_no_loss_to_the_next() {
    seen();
    let clock = Arc::new(ManualClock::at(Duration::from_secs(20_000 * 3_600)));
    let store: StoreRef = Arc::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let hours = UniqueVisitors::options().period(Duration::from_secs(3_600)).keep(SECOND).clock(clock.clone());
    let site = hours.open_or_create(&store, "u").await.unwrap();
    site.add([1u64]).await.unwrap();
    clock.advance(Duration::from_secs(2 * 3_600 - 10));
    site.add([1u64]).await.unwrap();
    assert_eq!(told("u"), [""; 0]);
}

#[tokio::test]
async fn an_array_tells_conflicts_retries_compactions_and_losses() {
    seen();
    let plain = Probe::new().shared();
    let hooked = Hooked::new(&plain);
    let options = Array::options().shards(3).dirtiness(usize::MAX);
    let array = options.clone().open_or_create(&hooked.shared(), "a1").await.unwrap();
    let other = options.open(&plain, "a1").await.unwrap();
    array.change(whole(0), NOTHING).await.unwrap();
    assert!(told("a1").is_empty(), "nobody was in the way");

    other.change(whole(1), whole(0)).await.unwrap();
    array.change(whole(2), whole(1)).await.unwrap();
    assert_eq!(told("a1"), ["array: conflict", "array: retry after conflict"], "it did not know of the other's change");
    // The appends come first, then the write that makes them count.
    hooked.lose_replies(2);
    array.change(whole(3), whole(2)).await.unwrap();
    hooked.refuse(1);
    array.push(["x"]).await.unwrap();
    assert_eq!(told("a1"), ["array: retry after unavailable"; 2]);

    array.compact().await.unwrap();
    let mut all = told("a1");
    all.sort();
    let each = |phase| (0..3).map(move |shard| format!("array: compaction {shard} {phase}"));
    let mut expected: Vec<String> = each("begun").chain(each("done")).collect();
    expected.sort();
    assert_eq!(all, expected);

    let manifest = registry::find(&plain, Ctx::default(), &Name::new("a1").unwrap()).await.unwrap().unwrap();
    let commits = Key::new(format!("L.a1.a.{:016x}.commits", manifest.generation)).unwrap();
    assert!(plain.delete(commits).await.unwrap());
    assert_eq!(array.elements().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("a1"), ["array: lost"]);
}

#[tokio::test]
async fn a_table_tells_conflicts_retries_and_losses() {
    seen();
    let plain = evicting();
    let hooked = Hooked::new(&plain);
    let table = Table::open_or_create(&hooked.shared(), "t1").await.unwrap();
    let other = Table::open(&plain, "t1").await.unwrap();
    table.put("k", "1").await.unwrap();
    table.settle().await;
    assert!(told("t1").is_empty(), "nobody was in the way");
    hooked.refuse(1);
    table.put("k", "2").await.unwrap();
    hooked.refuse(1);
    assert_eq!(table.get("k").await.unwrap().unwrap(), "2");
    table.settle().await;
    assert_eq!(told("t1"), ["table: retry after unavailable"; 2]);

    // Read, noted as leaving, and before it is deleted another puts it.
    hooked.at(3, move |store, batch| async move {
        other.put("k", "3").await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    assert!(table.remove("k").await.unwrap());
    table.settle().await;
    assert_eq!(told("t1"), ["table: conflict"]);

    table.put("k", "4").await.unwrap();
    flagged(&plain, "t1", b"k").await;
    lose(&plain, "t1", b"k").await;
    assert_eq!(table.get("k").await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(table.entries().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(table.entries_and_lost().await.unwrap().lost, ["k"]);
    assert_eq!(told("t1"), ["table: lost"; 3]);
}

#[tokio::test]
async fn a_table_tells_compactions_of_its_list_and_its_entries() {
    seen();
    let store = Probe::small(12_000).shared();
    let table = Table::options().dirtiness(1).open_or_create(&store, "t2").await.unwrap();
    let both = ["table: compaction 0 begun", "table: compaction 0 done"];
    // Which put looks whether its entry is dirty is drawn.
    let mut all = Vec::new();
    while all.is_empty() {
        table.put("k", vec![b'x'; 1_000]).await.unwrap();
        table.settle().await;
        all = told("t2");
    }
    assert_eq!(all, both, "an entry, with a put or beside it");
    while all.len() < 4 {
        table.put("k", vec![b'x'; 5_900]).await.unwrap();
        table.settle().await;
        all.extend(told("t2"));
    }
    assert_eq!(all[2..4], both, "an entry that has no room for another value");
    // A compaction of the entry may wait for the next put.
    table.put("gone", "v").await.unwrap();
    table.settle().await;
    told("t2");
    all.clear();
    while all.len() < 2 {
        assert!(table.remove("gone").await.unwrap());
        table.settle().await;
        assert_eq!(table.keys().await.unwrap(), ["k"]);
        table.settle().await;
        all.extend(told("t2"));
        table.put("gone", "v").await.unwrap();
        table.settle().await;
    }
    assert_eq!(all[..2], both, "the list");
}

/// A single wait that was told: how long, and how it ended.
fn wait_of(told: &[String]) -> (u64, &str) {
    let [wait] = told else { panic!("{told:?}") };
    let (time, end) = wait.split_once(" ms: ").unwrap();
    (time.rsplit_once("waited ").unwrap().1.parse().unwrap(), end)
}

#[tokio::test]
async fn a_queue_tells_retries_conflicts_and_waits() {
    seen();
    let plain = memory();
    let hooked = Hooked::new(&plain);
    let options = Queue::options();
    let queue = options.clone().open_or_create(&hooked.shared(), "q1").await.unwrap();
    queue.push_all(["a", "b", "c"]).await.unwrap();
    let first = queue.claim(LEASE).await.unwrap().unwrap();
    assert!(told("q1").is_empty(), "nobody was in the way");
    hooked.refuse(1);
    queue.push("d").await.unwrap();
    assert_eq!(told("q1"), ["queue: retry after unavailable"]);
    hooked.lose_replies(1);
    first.ack().await.unwrap();
    assert_eq!(told("q1"), ["queue: retry after unavailable"]);

    let other = options.open(&plain, "q1").await.unwrap();
    assert_eq!(other.pop().await.unwrap().unwrap(), "b");
    assert_eq!(queue.pop().await.unwrap().unwrap(), "c");
    assert_eq!(told("q1"), ["queue: conflict"], "it did not know that another had taken one");

    assert_eq!(queue.pop_within(SECOND).await.unwrap().unwrap(), "d");
    assert!(told("q1").is_empty(), "there was no wait");
    assert!(queue.pop_within(SECOND / 5).await.unwrap().is_none());
    let all = told("q1");
    // A wait begins behind the first look, and a machine that others share may take its time for that.
    assert!(matches!(wait_of(&all), (100..10_000, "busy")), "{all:?}");
    assert!(tokio::time::timeout(SECOND / 5, queue.pop_within(LEASE)).await.is_err());
    let all = told("q1");
    assert!(matches!(wait_of(&all), (100..10_000, "given up")), "{all:?}");
    let waiter = queue.clone();
    let waiter = tokio::spawn(async move { waiter.pop_within(SECOND * 60).await });
    tokio::time::sleep(SECOND / 5).await;
    queue.push("e").await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().unwrap(), "e");
    let all = told("q1");
    assert!(matches!(wait_of(&all), (100..10_000, "got")), "{all:?}");
}

#[tokio::test]
async fn queues_and_stacks_tell_their_losses() {
    seen();
    let store = Probe::new().shared();
    let queue = Queue::open_or_create(&store, "q2").await.unwrap();
    let stack = Stack::open_or_create(&store, "q3").await.unwrap();
    queue.push("a").await.unwrap();
    stack.push("a").await.unwrap();
    for (name, role) in [("q2", 'q'), ("q3", 'k')] {
        let manifest = registry::find(&store, Ctx::default(), &Name::new(name).unwrap()).await.unwrap().unwrap();
        let key = format!("L.{name}.{role}.{:016x}.0", manifest.generation);
        assert!(store.delete(Key::new(key).unwrap()).await.unwrap());
    }
    assert_eq!(queue.len().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("q2"), ["queue: lost"]);
    assert_eq!(stack.len().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("q3"), ["stack: lost"]);
}

#[tokio::test(start_paused = true)]
async fn a_cache_tells_retries_conflicts_and_waits() {
    seen();
    let (plain, clock) = crate::lock::support::memory();
    let hooked = Hooked::new(&plain);
    let options = crate::cache::support::options().clock(clock);
    let cache: Cache = options.clone().open_or_create(&hooked.shared(), "k1").await.unwrap();
    let other = options.open(&plain, "k1").await.unwrap();
    crate::cache::support::cached(&cache, "a", "one").await;
    crate::cache::support::found(&cache, "a").await;
    assert!(told("k1").is_empty(), "nobody was in the way");

    hooked.lose_replies(1);
    cache.invalidate("a").await.unwrap();
    assert_eq!(told("k1"), ["cache: retry after unavailable"]);
    let rebuild = crate::cache::support::leased(&cache, "a").await;
    hooked.refuse(1);
    assert!(rebuild.finish("two").await.is_kept());
    assert_eq!(told("k1"), ["cache: retry after unavailable"]);

    cache.invalidate("a").await.unwrap();
    let rebuild = crate::cache::support::leased(&cache, "a").await;
    assert!(other.get("a").await.unwrap().is_none());
    assert!(tokio::time::timeout(SECOND / 2, other.lookup("a")).await.is_err());
    assert_eq!(told("k1"), ["cache: waited 500 ms: given up"]);
    other.invalidate("a").await.unwrap();
    assert!(!rebuild.finish("three").await.is_kept());
    assert_eq!(told("k1"), ["cache: conflict"], "the lease was taken from it");

    let rebuild = crate::cache::support::leased(&cache, "a").await;
    let waiter = tokio::spawn(async move { crate::cache::support::found(&other, "a").await });
    tokio::time::sleep(SECOND).await;
    assert!(rebuild.finish("four").await.is_kept());
    assert_eq!(waiter.await.unwrap().value, "four");
    let all = told("k1");
    assert!(matches!(&all[..], [wait] if wait.starts_with("cache: waited 1") && wait.ends_with(" ms: got")), "{all:?}");
}

#[tokio::test]
async fn records_tell_conflicts_and_losses() {
    seen();
    let plain = memory();
    let hooked = Hooked::new(&plain);
    let options = PackedRecords::options().schema(Schema::parse(["n:u8"]).unwrap());
    let records = options.open_or_create(&hooked.shared(), "r1").await.unwrap();
    let other = PackedRecords::open(&plain, "r1").await.unwrap();
    for _ in 0..2 {
        records.set(3, &[("n", Value::Uint(7))]).await.unwrap();
    }
    assert_eq!(told("r1"), [""; 0], "nobody was in the way");
    // It is read, then written.
    hooked.at(2, move |store, batch| async move {
        other.set(4, &[("n", Value::Uint(8))]).await.unwrap();
        store.run(Ctx::default(), batch).await
    });
    records.set(3, &[("n", Value::Uint(9))]).await.unwrap();
    assert_eq!(told("r1"), ["packed records: conflict"]);
    assert_eq!(records.get_many(&[3, 4]).await.unwrap(), [[Value::Uint(9)], [Value::Uint(8)]]);
    let manifest = registry::find(&plain, Ctx::default(), &Name::new("r1").unwrap()).await.unwrap().unwrap();
    let shard = Key::new(format!("L.r1.r.{:016x}.s0", manifest.generation)).unwrap();
    assert!(plain.delete(shard).await.unwrap());
    assert_eq!(records.get(3).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(told("r1"), ["packed records: lost"]);
}
