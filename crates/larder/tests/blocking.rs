//! The structures without async: on threads of their own, on the background runtime, and where they may not be used.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, SystemTime};

use larder::blocking::{
    self, Array, Cache, Counter, EventLog, Lock, LockGuard, PackedRecords, PackedTable, Queue, Set, ShardedHash,
    ShardedSet, ShardedSortedSet, Stack, Table, UniqueVisitors, Visitors, wait,
};
use larder::cache::Source;
use larder::lock::Released;
use larder::log::Cursor;
use larder::lookup::Rows;
use larder::records::{Schema, Value};
use larder::typed::{Json, TypedEventLog, TypedQueue};
use larder::{Error, ErrorKind, Kind, Name, Novelty, Result, StoreRef};
use larder_testkit::servers::{Memcached, Version};

const SOON: Duration = Duration::from_secs(30);

/// A store in memory, and a client of each real server.
fn stores() -> Vec<(Option<Memcached>, StoreRef)> {
    let servers = Version::ALL.into_iter().map(|version| {
        let server = Memcached::start(version, &[]);
        let url = format!("{}?timeout_ms=10000&connect_timeout_ms=10000", server.url());
        let store = blocking::open(&url).unwrap();
        (Some(server), store)
    });
    servers.chain([(None, blocking::open("memory:").unwrap())]).collect()
}

#[test]
fn every_twin_does_what_it_stands_for() {
    for (_server, store) in stores() {
        let counter = Counter::open_or_create(&store, "counter").unwrap();
        counter.add(-5).unwrap();
        assert_eq!(Counter::open(&store, "counter").unwrap().get().unwrap(), -5);
        assert_eq!((counter.reset().unwrap(), counter.get().unwrap()), (-5, 0));
        counter.release().unwrap();
        assert_eq!(counter.repair().unwrap(), 0);
        let set = larder::Set::options().shards(4).open_or_create(&store, "set");
        let set = Set::new(wait(set).unwrap());
        set.add(["a", "b"]).unwrap();
        set.remove(["a"]).unwrap();
        assert!(set.has("b").unwrap() && !set.has("a").unwrap());
        assert_eq!(set.members().unwrap().to_vec(), ["b"]);
        assert_eq!((set.stat().unwrap().shards, set.compact().unwrap().members), (4, 1));
        let array = Array::open_or_create(&store, "array").unwrap();
        array.push(["a", "b"]).unwrap();
        array.change(["c"], ["a"]).unwrap();
        array.remove(["b"]).unwrap();
        assert_eq!(array.elements().unwrap(), ["c"]);
        assert_eq!(array.stat().unwrap().elements, array.compact().unwrap().elements);
        let table = Table::open_or_create(&store, "table").unwrap();
        table.put("a", "1").unwrap();
        assert_eq!(table.get("a").unwrap().unwrap(), "1");
        assert_eq!(table.get_many(["b", "a"]).unwrap(), [None, Some("1".into())]);
        assert!(table.has("a").unwrap() && table.put_for("a", "1", SOON).is_err());
        assert_eq!((table.keys().unwrap().len(), table.entries().unwrap().len()), (1, 1));
        assert!(table.entries_and_lost().unwrap().lost.is_empty());
        assert!(table.remove("a").unwrap() && !table.has("a").unwrap());
        table.settle().unwrap();
        let visitors = Visitors::open_or_create(&store, "visitors").unwrap();
        visitors.hit_many(2).unwrap();
        visitors.hit().unwrap();
        visitors.hit_visitor("joe").unwrap();
        visitors.hit_visitor_at("joe", SystemTime::now()).unwrap();
        visitors.hit_visitor_at("ann", SystemTime::now()).unwrap();
        assert_eq!(visitors.current().unwrap(), 5);
        let log = EventLog::open_or_create(&store, "log").unwrap();
        let mut tail = log.tail(Cursor::default()).unwrap().every(Duration::from_millis(10));
        log.put("a").unwrap();
        log.put_at(log.handle().now_ms(), "b").unwrap();
        assert_eq!(log.fetch(..).unwrap().whole().unwrap().len(), 2);
        assert_eq!(tail.next().unwrap().whole().unwrap().len(), 2);
        assert!(tail.poll().unwrap().is_empty());
        let mut tail = log.tail(Cursor::default()).unwrap().parts_a_look(1);
        assert_eq!((tail.poll().unwrap().whole().unwrap().len(), tail.is_behind()), (2, false));
        let queue = Queue::open_or_create(&store, "queue").unwrap();
        queue.push_all(["a", "b"]).unwrap();
        let claim = queue.claim(SOON).unwrap().unwrap();
        assert_eq!((&claim.item()[..], claim.attempts(), claim.lease()), (&b"a"[..], 1, SOON));
        claim.renew().unwrap();
        queue.ack(claim.id()).unwrap();
        assert_eq!((queue.len().unwrap(), queue.pop().unwrap().unwrap()), (1, "b".into()));
        assert!(queue.pop().unwrap().is_none());
        queue.changed(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
        let stack = Stack::open_or_create(&store, "stack").unwrap();
        stack.push_all(["a", "b"]).unwrap();
        assert_eq!(stack.pop().unwrap().unwrap(), "b");
        stack.claim(SOON).unwrap().unwrap().release().unwrap();
        assert_eq!(stack.stat().unwrap().ready, 1);
        sharded_twins(&store);
        packed_twins(&store);
        unique_twin(&store);
        let name = Name::new("stack").unwrap();
        assert_eq!(blocking::find(&store, &name).unwrap().unwrap().kind, Kind::Stack);
        assert!(blocking::drop_structure(&store, &name).unwrap().is_some());
        assert!(blocking::find(&store, &name).unwrap().is_none());
    }
}

/// A typed handle has no twin: its calls are waited for, and what is untyped goes through the twin of the handle underneath.
#[test]
fn typed_handles_are_waited_for() {
    for (_server, store) in stores() {
        let raw = wait(larder::Queue::open_or_create(&store, "jobs")).unwrap();
        let jobs: TypedQueue<(u32, String)> = TypedQueue::new(raw);
        let job = |number: u32| (number, format!("job {number}"));
        wait(jobs.push(&job(1))).unwrap();
        wait(jobs.push_all([job(2), job(3)])).unwrap();
        let claim = wait(jobs.claim(SOON)).unwrap().expect("a job");
        assert_eq!(claim.item().unwrap(), job(1));
        wait(claim.raw().ack()).unwrap();
        assert_eq!(wait(jobs.pop()).unwrap(), Some(job(2)));
        assert_eq!(wait(jobs.claim_within(SOON, SOON)).unwrap().expect("a job").item().unwrap(), job(3));
        let twin = Queue::new(jobs.raw().clone());
        assert_eq!(twin.len().unwrap(), 1);
        twin.push("no job").unwrap();
        assert_eq!(wait(jobs.pop()).unwrap_err().kind(), ErrorKind::LayoutMismatch);
        assert_eq!(wait(jobs.pop_within(Duration::from_millis(20))).unwrap(), None);

        let orders: TypedEventLog<(u32, String), Json> =
            TypedEventLog::new(wait(larder::EventLog::open_or_create(&store, "orders")).unwrap());
        let log = EventLog::new(orders.raw().clone());
        let mut tail = log.tail_from_now().unwrap().every(Duration::from_millis(10));
        let put = thread::spawn({
            let orders = orders.clone();
            move || wait(orders.put(&(7, "tea".to_owned())))
        });
        let told = tail.next().unwrap().whole().unwrap();
        put.join().unwrap().unwrap();
        let told: Vec<_> = told.into_iter().map(|event| orders.decode(event).unwrap().event).collect();
        assert_eq!(told, [(7, "tea".to_owned())]);
        log.put("no order").unwrap();
        let [event] = &tail.poll().unwrap().whole().unwrap()[..] else { panic!("one event") };
        assert_eq!(orders.decode(event.clone()).unwrap_err().kind(), ErrorKind::LayoutMismatch);
        assert_eq!(wait(orders.fetch(..)).unwrap_err().kind(), ErrorKind::LayoutMismatch);
    }
}

fn sharded_twins(store: &StoreRef) {
    let hash = ShardedHash::open_or_create(store, "hash").unwrap();
    assert_eq!(hash.set([("17", "Lund"), ("18", "Visby")]).unwrap(), [true, true]);
    assert_eq!(hash.get_many(["18", "19"]).unwrap(), [hash.get("18").unwrap(), None]);
    hash.reshard(3).unwrap();
    assert_eq!((hash.remove(["17"]).unwrap(), hash.stat().unwrap().shards), (vec![true], 3));
    assert_eq!((hash.entries().unwrap(), hash.len().unwrap()), (vec![("18".into(), "Visby".into())], 1));
    let set = ShardedSet::open_or_create(store, "members").unwrap();
    assert!(set.is_empty().unwrap());
    assert_eq!(set.add(["a", "b"]).unwrap(), [true, true]);
    assert_eq!((set.remove(["a"]).unwrap(), set.has("a").unwrap()), (vec![true], false));
    assert_eq!((set.has_many(["a", "b"]).unwrap(), set.members().unwrap()), (vec![false, true], vec!["b".into()]));
    let points = ShardedSortedSet::open_or_create(store, "points").unwrap();
    points.set([("ann", 1.0), ("bob", 2.0)]).unwrap();
    assert_eq!((points.add([("ann", 2.0)]).unwrap(), points.score("bob").unwrap()), (vec![3.0], Some(2.0)));
    assert_eq!(points.top(1).unwrap(), [("ann".into(), 3.0)]);
    assert_eq!(points.bottom(1).unwrap(), [("bob".into(), 2.0)]);
    points.reshard(3).unwrap();
    assert_eq!((points.remove(["ann"]).unwrap(), points.entries().unwrap()), (vec![true], vec![("bob".into(), 2.0)]));
    assert_eq!(points.scores(["ann", "bob"]).unwrap(), [None, Some(2.0)]);
    let mut last = None;
    points.reshard_with(5, |progress| last = Some((progress.filled, progress.shards))).unwrap();
    assert_eq!((last, points.len().unwrap()), (Some((5, 5)), 1));
}

fn packed_twins(store: &StoreRef) {
    let schema = Schema::parse(["place:CA|US", "visits:u7"]).unwrap();
    let made = larder::PackedRecords::options().schema(schema).open_or_create(store, "users");
    let users = PackedRecords::new(wait(made).unwrap());
    assert_eq!(users.highest().unwrap(), None);
    users.set(7, &[("place", "US".into()), ("visits", 3u64.into())]).unwrap();
    let ca = [("place", Value::from("CA"))];
    users.set_many([(8, &ca[..]), (9, &ca[..])]).unwrap();
    assert_eq!(PackedRecords::open(store, "users").unwrap().get(7).unwrap(), ["US".into(), 3u64.into()]);
    assert_eq!(users.get_many(&[9, 6]).unwrap()[0][0], "CA".into());
    assert_eq!((users.highest().unwrap(), users.schema().fields().len()), (Some(9), 2));
    assert_eq!(users.aggregate(&["place"]).unwrap().count(&["CA".into()]), 2);
    let mut told = false;
    let all = users.aggregate_told(&["place"], &mut |_, _| told = true).unwrap();
    assert!(told && all == users.aggregate(&["place"]).unwrap());
    assert_eq!(users.aggregate_ids(&["place"], &[7, 8]).unwrap().count(&["CA".into()]), 1);
    let table = PackedTable::open_or_create(store, "cities").unwrap();
    let mut rows = Rows::new(["city"]).unwrap();
    rows.push_id(17u64, ["Lund"]).unwrap();
    assert_eq!(table.build(rows.clone()).unwrap().rows, 1);
    let mut told = false;
    table.build_told(rows, |_| told = true).unwrap();
    assert!(told && table.columns() == ["city"]);
    assert_eq!(table.get(17u64).unwrap().unwrap().fields, ["Lund"]);
    assert_eq!(table.get_many(&[18u64.into()]).unwrap(), [None]);
    assert_eq!(table.stat().unwrap().rows, 1);
}

fn unique_twin(store: &StoreRef) {
    use Novelty::{Known, New};
    let options = larder::UniqueVisitors::options().expected(1_000);
    let site = UniqueVisitors::new(wait(options.open_or_create(store, "site")).unwrap());
    let today = site.period_of(std::time::SystemTime::now()).unwrap();
    assert_eq!(site.add_in(today, ["alice", "bob", "alice"]).unwrap(), [New, New, Known]);
    assert_eq!(site.add_in(today - 1, [7u64]).unwrap(), [New]);
    assert_eq!(site.are_new_in(today, ["bob", "carol"]).unwrap(), [Known, New]);
    assert_eq!(site.count_in(today).unwrap().visitors, 2);
    assert_eq!(site.forecast(today).unwrap(), 2);
    assert_eq!(UniqueVisitors::union([(&site, today), (&site, today - 1)]).unwrap().visitors, 3);
    assert_eq!(site.stat(today - 1).unwrap().unwrap().count.visitors, 1);
    site.forget(today - 1).unwrap();
    assert!(site.stat(today - 1).unwrap().is_none());
    // That of now may be the next one by then.
    let now = site.handle().current().unwrap();
    site.add(["dave"]).unwrap();
    let is_new = site.is_new("dave").unwrap();
    assert!(is_new == Known || site.handle().current().unwrap() != now, "{is_new:?}");
    assert!(site.count().is_ok());
}

#[test]
fn an_array_that_a_later_holder_changed_is_closed_to_an_earlier_one() {
    for (_server, store) in stores() {
        let array = Array::open_or_create(&store, "array").unwrap();
        let lock = Lock::open(&store, "lock").unwrap();
        let first = lock.acquire(SOON).unwrap();
        array.change_under(&first, ["a", "b"], ["c"]).unwrap();
        lock.force_release().unwrap();
        let second = lock.acquire(SOON).unwrap();
        array.change_under(&second, ["c"], ["a"]).unwrap();
        assert_eq!(array.change_under(&first, ["d"], ["b"]).unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(array.elements().unwrap(), ["b", "c"]);
    }
}

#[test]
fn a_lease_is_renewed_while_its_holder_computes() {
    for (_server, store) in stores() {
        let lock = larder::Lock::options().lease(Duration::from_secs(3)).open(&store, "lock");
        let lock = Lock::new(wait(lock).unwrap());
        let guard = lock.acquire(SOON).unwrap();
        for _ in 0..8 {
            // No call of the library for much longer than the lease.
            thread::sleep(Duration::from_millis(900));
            assert!(guard.is_held());
        }
        assert!(lock.try_acquire().unwrap().is_none());
        guard.renew().unwrap();
        assert_eq!(guard.release().unwrap(), Released::Released);
    }
}

#[test]
fn a_guard_that_is_dropped_has_given_the_lock_back() {
    for (_server, store) in stores() {
        let lock = Lock::open(&store, "lock").unwrap();
        let mut last = 0;
        for _ in 0..20 {
            let guard = lock.try_acquire().unwrap().expect("it was given back");
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
        }
        let panicked = thread::spawn({
            let lock = lock.clone();
            move || {
                let _guard = lock.try_acquire().unwrap().unwrap();
                panic!("on purpose");
            }
        });
        assert!(panicked.join().is_err());
        drop(lock.try_acquire().unwrap().expect("it was given back"));
        let guard = lock.try_acquire().unwrap().unwrap();
        lock.force_release().unwrap();
        assert!(guard.renew().is_err() && !guard.is_held());
    }
}

#[test]
fn eight_threads_count_exactly_and_exclude_each_other() {
    for (_server, store) in stores() {
        let counter = Counter::open_or_create(&store, "counter").unwrap();
        let number = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (store, counter, number) = (store.clone(), counter.clone(), number.clone());
                thread::spawn(move || {
                    let lock = Lock::open(&store, "lock").unwrap();
                    for _ in 0..10 {
                        counter.add(1).unwrap();
                        let _guard: LockGuard = lock.acquire(SOON).unwrap();
                        let found = number.load(Ordering::SeqCst);
                        thread::yield_now();
                        number.store(found + 1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((counter.get().unwrap(), number.load(Ordering::SeqCst)), (80, 80));
    }
}

#[test]
fn of_eight_threads_one_rebuilds_and_its_closure_may_use_other_handles() {
    for (_server, store) in stores() {
        let (rebuilds, barrier) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(8)));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (store, rebuilds, barrier) = (store.clone(), rebuilds.clone(), barrier.clone());
                thread::spawn(move || {
                    let cache = Cache::open_or_create(&store, "cache").unwrap();
                    let counter = Counter::open_or_create(&store, "counter").unwrap();
                    barrier.wait();
                    let made = cache.get_or_rebuild("k", || {
                        rebuilds.fetch_add(1, Ordering::SeqCst);
                        counter.add(1)?;
                        thread::sleep(Duration::from_millis(100));
                        counter.get().map(|count| count.to_string())
                    });
                    made.unwrap().value
                })
            })
            .collect();
        let values: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(values.iter().all(|value| *value == "1"), "{values:?}");
        assert_eq!(rebuilds.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_rebuild_that_fails_or_panics_gives_its_lease_up() {
    for (_server, store) in stores() {
        let cache = larder::Cache::options().lease(Duration::from_secs(3_600)).open_or_create(&store, "cache");
        let cache = Cache::new(wait(cache).unwrap());
        let failed = cache.get_or_rebuild("k", || Err::<&str, _>(Error::new(ErrorKind::Overflow, "mine")));
        assert_eq!(failed.unwrap_err().detail(), "mine");
        let dying = cache.clone();
        let panicked = thread::spawn(move || {
            _ = dying.get_or_rebuild("k", || -> Result<&str> { panic!("on purpose") });
        });
        assert!(panicked.join().is_err());
        let made = cache.get_or_rebuild("k", || Ok::<_, Error>("v")).unwrap();
        assert!(matches!(made.source, Source::Rebuilt(Ok(()))), "{made:?}");
        cache.invalidate("k").unwrap();
        assert!(cache.get("k").unwrap().is_none());
    }
}

/// Whether a call was refused, for the reason that it was made among async code.
fn is_refused<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Unsupported && error.to_string().contains("async"))
}

#[test]
fn among_async_code_a_call_is_an_error_and_no_panic_and_a_guard_still_gives_back() {
    let store = blocking::open("memory:").unwrap();
    let counter = Counter::open_or_create(&store, "counter").unwrap();
    let lock = Lock::open(&store, "lock").unwrap();
    let current = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let multi = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for runtime in [&current, &multi] {
        let guards = [lock.acquire(SOON).unwrap()];
        runtime.block_on(async {
            assert!(is_refused(blocking::open("memory:")));
            assert!(is_refused(counter.add(1)));
            assert!(is_refused(lock.try_acquire()));
            assert!(is_refused(guards[0].renew()));
            let twin = counter.clone();
            assert!(tokio::spawn(async move { is_refused(twin.get()) }).await.unwrap());
            let twin = counter.clone();
            assert!(tokio::task::spawn_blocking(move || is_refused(twin.get())).await.unwrap());
            // It cannot wait here, and gives the lock back in the background.
            drop(guards);
        });
        lock.acquire(SOON).unwrap().release().unwrap();
    }
    assert_eq!(counter.get().unwrap(), 0);
}

#[test]
fn a_store_of_this_module_serves_async_handles_too() {
    let server = Memcached::start(Version::New, &[]);
    let store = blocking::open(&server.url()).unwrap();
    Counter::open_or_create(&store, "counter").unwrap().add(2).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(async { larder::Counter::open(&store, "counter").await?.get().await });
    assert_eq!(found.unwrap(), 2);
}
