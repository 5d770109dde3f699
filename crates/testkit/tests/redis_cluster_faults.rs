//! Every structure on a cluster whose primaries are killed and come back, and whose slots move meanwhile: no outcome is dishonest, and every
//! structure can be used afterwards.
//!
//! Each write of the test has a number of its own. What was refused as not applied must never turn up. What was acknowledged must be there, unless a
//! failover lost it: that is counted, and the exact counter's handles must tell it.
//!
//! `LARDER_CLUSTER_OPS` sets how many ops are run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use larder::{
    Arith, Array, Counter, Ctx, Error, ErrorKind, EventLog, Initial, Key, Lock, Op, Queue, Result, Set, StoreExt,
    StoreRef, Table, Ttl, Verb,
};
use larder_testkit::redis::{RedisCluster, RedisVersion};

const OPS: u64 = 3_000;
const OPS_ENV: &str = "LARDER_CLUSTER_OPS";
const TASKS: usize = 16;
/// Raw numbers, so many that every primary serves some.
const KEYS: u64 = 64;
/// Structures of each kind.
const EACH: usize = 3;
/// Slots that move in a round of faults.
const MOVES: u64 = 12;
/// How long a structure may take, once the cluster is whole, until it can be used.
const USABLE_MS_MAX: u64 = 15_000;

/// What became of numbered writes to one thing.
#[derive(Default)]
struct Book {
    acknowledged: Mutex<BTreeSet<u64>>,
    unknown: Mutex<BTreeSet<u64>>,
    refused: Mutex<BTreeSet<u64>>,
    /// Times that a handle told a loss.
    told: AtomicU64,
}

impl Book {
    fn enter(&self, id: u64, outcome: Result<()>) {
        match outcome {
            Ok(()) => {
                locked(&self.acknowledged).insert(id);
            }
            Err(error) => {
                self.judge(&error);
                let book = if error.is_unknown() { &self.unknown } else { &self.refused };
                locked(book).insert(id);
            }
        }
    }

    /// Only what a lost node can bring may be told.
    fn judge(&self, error: &Error) {
        match error.kind() {
            ErrorKind::Lost | ErrorKind::RolledBack | ErrorKind::Absent => {
                self.told.fetch_add(1, Ordering::Relaxed);
            }
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Conflict | ErrorKind::Fenced => {}
            _ => panic!("{error}"),
        }
    }

    /// Holds what is there against what was told. How many acknowledged writes are gone.
    fn close(&self, what: &str, there: &BTreeSet<u64>) -> usize {
        let (acknowledged, refused) = (locked(&self.acknowledged), locked(&self.refused));
        let lies: Vec<&u64> = there.intersection(&refused).collect();
        assert!(lies.is_empty(), "{what}: {lies:?} were told not to be applied");
        let known: BTreeSet<u64> = acknowledged.union(&locked(&self.unknown)).copied().collect();
        let strangers: Vec<&u64> = there.difference(&known).collect();
        assert!(strangers.is_empty(), "{what}: nobody wrote {strangers:?}");
        acknowledged.difference(there).count()
    }
}

/// A structure: a handle, opened anew where it tells a loss, and its book.
struct Kept<H> {
    name: String,
    handle: Mutex<Arc<H>>,
    book: Book,
}

/// What can be opened anew.
trait Reopen: Sized {
    async fn reopen(store: &StoreRef, name: &str) -> Result<Self>;
}

macro_rules! reopen {
    ($($kind:ident),*) => {
        $(impl Reopen for $kind {
            async fn reopen(store: &StoreRef, name: &str) -> Result<Self> {
                $kind::open(store, name).await
            }
        })*
    };
}

reopen!(Counter, Set, Table, EventLog, Array, Queue, Lock);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Everything that is worked on.
struct World {
    store: StoreRef,
    keys: Vec<(Key, Book)>,
    counters: Vec<Kept<Counter>>,
    sets: Vec<Kept<Set>>,
    tables: Vec<Kept<Table>>,
    logs: Vec<Kept<EventLog>>,
    arrays: Vec<Kept<Array>>,
    queues: Vec<Kept<Queue>>,
    locks: Vec<Kept<Lock>>,
    popped: Mutex<BTreeMap<u64, u32>>,
    done: AtomicU64,
}

macro_rules! kept {
    ($store:expr, $kind:ident, $open:ident) => {{
        let mut all = Vec::new();
        for at in 0..EACH {
            let name = format!("{}-{at}", stringify!($kind));
            let handle = $kind::$open($store, &name).await.unwrap();
            all.push(Kept { name, handle: Mutex::new(Arc::new(handle)), book: Book::default() });
        }
        all
    }};
}

impl World {
    async fn new(store: StoreRef) -> World {
        let key = |at| (Key::new(format!("raw-{at}")).unwrap(), Book::default());
        World {
            keys: (0..KEYS).map(key).collect(),
            counters: kept!(&store, Counter, open_or_create),
            sets: kept!(&store, Set, open_or_create),
            tables: kept!(&store, Table, open_or_create),
            logs: kept!(&store, EventLog, open_or_create),
            arrays: kept!(&store, Array, open_or_create),
            queues: kept!(&store, Queue, open_or_create),
            locks: kept!(&store, Lock, open),
            popped: Mutex::default(),
            done: AtomicU64::new(0),
            store,
        }
    }

    /// One op, with a number of its own.
    async fn step(&self, id: u64) {
        let (at, store) = (fastrand::usize(..EACH), &self.store);
        let text = &id.to_string();
        match fastrand::u32(..16) {
            0..=4 => {
                let (key, book) = &self.keys[fastrand::usize(..self.keys.len())];
                book.enter(id, incr(store, key).await);
            }
            5..=7 => self.counters[at].write(store, id, async |counter| counter.add(1).await).await,
            8..=9 => self.sets[at].write(store, id, async |set| set.add([text]).await).await,
            10 => self.tables[at].write(store, id, async |table| table.put(text, text).await).await,
            11 => self.logs[at].write(store, id, async |log| log.put(text).await).await,
            12 => self.arrays[at].write(store, id, async |array| array.push([text]).await).await,
            13 => self.queues[at].write(store, id, async |queue| queue.push(text).await).await,
            14 => self.pop(at).await,
            _ => self.lock(at).await,
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    async fn pop(&self, at: usize) {
        let queue = &self.queues[at];
        match queue.now().pop().await {
            Ok(Some(item)) => *locked(&self.popped).entry(number(&item)).or_default() += 1,
            Ok(None) => {}
            Err(error) => queue.book.judge(&error),
        }
    }

    async fn lock(&self, at: usize) {
        let lock = &self.locks[at];
        match lock.now().try_acquire().await {
            Ok(Some(guard)) => {
                if let Err(error) = guard.release().await {
                    lock.book.judge(&error);
                }
            }
            Ok(None) => {}
            Err(error) => lock.book.judge(&error),
        }
    }
}

impl<H: Reopen> Kept<H> {
    fn now(&self) -> Arc<H> {
        locked(&self.handle).clone()
    }

    async fn write(&self, store: &StoreRef, id: u64, go: impl AsyncFnOnce(&H) -> Result<()>) {
        let outcome = go(&self.now()).await;
        let is_lost = outcome.as_ref().is_err_and(is_loss);
        self.book.enter(id, outcome);
        // As a program would that was told of a loss.
        if is_lost && let Ok(fresh) = H::reopen(store, &self.name).await {
            *locked(&self.handle) = Arc::new(fresh);
        }
    }
}

async fn incr(store: &StoreRef, key: &Key) -> Result<()> {
    let initial = Some(Initial { value: 1, ttl: Ttl::Never });
    let op = Op::new(key.clone(), Verb::Arith { arith: Arith::Incr(1), initial });
    store.run_one(Ctx::default(), op).await.map(|_| ())
}

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// What was done to a cluster.
#[derive(Default)]
struct Done {
    killed: u32,
    moved: u32,
}

/// Kills a primary, has its replica take over, brings it back as a replica, and moves slots between all primaries; round after round until it is told to
/// stop, once at the least.
fn break_things(cluster: &mut RedisCluster, slots: &[u16], stop: &AtomicBool) -> Done {
    let (mut rounds, mut moved) = (0, 0);
    while rounds == 0 || !stop.load(Ordering::Relaxed) {
        let victim = rounds as usize % 3;
        let slot = 5_500 * victim as u16;
        let victim = cluster.primary_of(slot);
        cluster.node_mut(victim).kill9();
        cluster.wait_failover(slot, victim);
        cluster.node_mut(victim).restart();
        cluster.wait_ok();
        let primaries: Vec<usize> = (0..6).filter(|&node| cluster.is_primary(node)).collect();
        for turn in 0..MOVES {
            let slot = slots[fastrand::usize(..slots.len())];
            let to = primaries[turn as usize % primaries.len()];
            moved += u32::from(cluster.primary_of(slot) != to);
            cluster.move_slot(slot, to);
        }
        rounds += 1;
    }
    Done { killed: rounds, moved }
}

/// Tries until it works: the cluster is whole again.
async fn usable<T, F: Future<Output = Result<T>>>(what: &str, mut go: impl FnMut() -> F) -> T {
    let start = Instant::now();
    loop {
        match go().await {
            Ok(done) => return done,
            Err(error) if start.elapsed() > Duration::from_millis(USABLE_MS_MAX) => panic!("{what}: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_primaries_killed_and_slots_moving_no_outcome_is_dishonest() {
    let ops: u64 = std::env::var(OPS_ENV).map_or(OPS, |ops| ops.parse().expect("a number of ops"));
    let mut cluster = RedisCluster::start(RedisVersion::Redis7);
    let store = larder::open(&cluster.url()).await.unwrap();
    let world = Arc::new(World::new(store.clone()).await);
    let slots: Vec<u16> = world
        .keys
        .iter()
        .map(|(key, _)| cluster.nodes()[0].command(&[b"CLUSTER", b"KEYSLOT" as &[u8], key.as_bytes()]).text())
        .map(|slot| slot.parse().unwrap())
        .collect();
    let (stop, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let breaker = {
        let stop = stop.clone();
        tokio::task::spawn_blocking(move || {
            let broken = break_things(&mut cluster, &slots, &stop);
            (cluster, broken)
        })
    };
    let next = Arc::new(AtomicU64::new(1));
    let over = Arc::new(AtomicBool::new(false));
    let work = |_| {
        let (world, next, over) = (world.clone(), next.clone(), over.clone());
        tokio::spawn(async move {
            loop {
                let id = next.fetch_add(1, Ordering::Relaxed);
                if id > ops && over.load(Ordering::Relaxed) {
                    return;
                }
                world.step(id).await;
            }
        })
    };
    let mut told = start;
    let workers: Vec<_> = (0..TASKS).map(work).collect();
    while world.done.load(Ordering::Relaxed) < ops
        && !breaker.is_finished()
        && !workers.iter().any(tokio::task::JoinHandle::is_finished)
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if told.elapsed() > Duration::from_secs(60) {
            println!("{} ops in {:.0} s", world.done.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
            told = Instant::now();
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (cluster, broken) = breaker.await.unwrap();
    over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let (done, took) = (world.done.load(Ordering::Relaxed), start.elapsed());
    assert!(done >= ops);
    let store = larder::open(&cluster.url()).await.unwrap();
    let lost = settle(&world, &store).await;
    let Done { killed, moved } = broken;
    assert!(killed > 0 && moved > 0, "{killed} primaries killed, {moved} slots moved: nothing was shown");
    println!(
        "{done} ops in {:.1} s, {killed} primaries killed, {moved} slots moved; acknowledged and lost: {lost:?}",
        took.as_secs_f64()
    );
    drop(cluster);
}

/// Holds all books against what is there, by fresh handles, and uses every structure once more. How much was lost of each kind.
async fn settle(world: &World, store: &StoreRef) -> BTreeMap<&'static str, u64> {
    let mut lost: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (key, book) in &world.keys {
        usable("raw", || incr(store, key)).await;
        let read = usable("raw", || store.arith(key.clone(), Arith::Incr(0))).await.unwrap_or_default();
        *lost.entry("raw").or_default() += counted("raw", book, read - 1);
    }
    for kept in &world.counters {
        let fresh = usable(&kept.name, || Counter::open(store, &kept.name)).await;
        let total = usable(&kept.name, || fresh.get()).await;
        let missing = counted(&kept.name, &kept.book, u64::try_from(total).unwrap());
        if missing > 0 {
            let told = kept.book.told.load(Ordering::Relaxed) > 0
                || kept.now().get().await.is_err_and(|error| is_loss(&error));
            assert!(
                told,
                "{}: {missing} acknowledged adds are gone, and the handle that made them does not tell",
                kept.name
            );
        }
        usable(&kept.name, || fresh.add(1)).await;
        *lost.entry("counter").or_default() += missing;
    }
    for kept in &world.sets {
        let fresh = usable(&kept.name, || Set::open(store, &kept.name)).await;
        let members = usable(&kept.name, || fresh.members()).await;
        let there = members.iter().map(number).collect();
        *lost.entry("set").or_default() += kept.book.close(&kept.name, &there) as u64;
        usable(&kept.name, || fresh.add(["1"])).await;
    }
    for kept in &world.tables {
        let fresh = usable(&kept.name, || Table::open(store, &kept.name)).await;
        let there = usable(&kept.name, || fresh.keys()).await.iter().map(|key| number(key)).collect();
        *lost.entry("table").or_default() += kept.book.close(&kept.name, &there) as u64;
        usable(&kept.name, || fresh.put("1", "1")).await;
    }
    settle_rows(world, store, &mut lost).await;
    lost
}

async fn settle_rows(world: &World, store: &StoreRef, lost: &mut BTreeMap<&'static str, u64>) {
    for kept in &world.arrays {
        let fresh = usable(&kept.name, || Array::open(store, &kept.name)).await;
        let elements = usable(&kept.name, || fresh.elements()).await;
        let there: BTreeSet<u64> = elements.iter().map(|element| number(element)).collect();
        assert_eq!(there.len(), elements.len(), "{}: a push counted twice", kept.name);
        *lost.entry("array").or_default() += kept.book.close(&kept.name, &there) as u64;
        usable(&kept.name, || fresh.push(["1"])).await;
    }
    for kept in &world.logs {
        let fresh = usable(&kept.name, || EventLog::open(store, &kept.name)).await;
        let (events, _gaps) = usable(&kept.name, || fresh.fetch(..)).await.with_gaps();
        let there: Vec<u64> = events.iter().map(|event| number(&event.bytes)).collect();
        let once: BTreeSet<u64> = there.iter().copied().collect();
        assert_eq!(there.len(), once.len(), "{}: an event is told twice", kept.name);
        *lost.entry("log").or_default() += kept.book.close(&kept.name, &once) as u64;
        usable(&kept.name, || fresh.put("1")).await;
    }
    for kept in &world.queues {
        let fresh = usable(&kept.name, || Queue::open(store, &kept.name)).await;
        usable(&kept.name, || fresh.push("1")).await;
        while let Some(item) = usable(&kept.name, || fresh.pop()).await {
            *locked(&world.popped).entry(number(&item)).or_default() += 1;
        }
    }
    let popped: BTreeSet<u64> = locked(&world.popped).keys().copied().filter(|&id| id != 1).collect();
    let missing = |kept: &Kept<Queue>| locked(&kept.book.acknowledged).difference(&popped).count() as u64;
    lost.insert("queue", world.queues.iter().map(missing).sum());
    for kept in &world.queues {
        let lies: Vec<u64> = popped.intersection(&locked(&kept.book.refused)).copied().collect();
        assert!(lies.is_empty(), "{}: {lies:?} were told not to be pushed", kept.name);
    }
    for kept in &world.locks {
        let fresh = usable(&kept.name, || Lock::open(store, &kept.name)).await;
        let guard = usable(&kept.name, || fresh.acquire(Duration::from_secs(40))).await;
        guard.release().await.unwrap();
    }
}

/// Holds a number against its book. How many acknowledged additions are gone.
fn counted(what: &str, book: &Book, found: u64) -> u64 {
    let (acknowledged, unknown) = (locked(&book.acknowledged).len() as u64, locked(&book.unknown).len() as u64);
    assert!(found <= acknowledged + unknown, "{what}: {found} of {acknowledged} acknowledged and {unknown} unknown");
    acknowledged.saturating_sub(found)
}

fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack)
}
