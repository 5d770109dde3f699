//! Every structure on a cluster whose primaries are killed and come back, and whose slots move meanwhile: no outcome is dishonest, and every
//! structure can be used afterwards.
//!
//! Each write of the test has a number of its own. What was refused as not applied must never turn up. What was acknowledged must be there, unless a
//! failover took it: every other primary that is killed has acknowledged what its replica never got. Then the handle to which it was acknowledged says so,
//! where the guarantees promise that; where they say that it goes unnoticed, it is counted. Slots of every structure move in every round.
//!
//! What a failover can have taken is known by its moment: before each kill the primary and its replica are level, and only what was under way from then
//! until the primary was dead may be gone ([`windows`]). At least half of all acknowledged writes must lie outside of that.
//!
//! `LARDER_CLUSTER_OPS` sets how many ops are run.

mod book;
mod faults;
mod register;
mod subjects;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use larder::log::{Cursor, Tail};
use larder::{
    Arith, Array, Cache, Counter, Ctx, ErrorKind, EventLog, Initial, Key, Lock, Op, PackedRecords, PackedTable, Queue,
    Result, Set, ShardedHash, ShardedSet, ShardedSortedSet, Stack, StoreExt, StoreRef, Table, Ttl, UniqueVisitors,
    Verb, Visitors,
};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisVersion};

use crate::book::{Book, Checkpoint, Kept, Sum, Taken, is_loss, judge, locked};
use crate::faults::{Done, Signals, break_things};
use crate::register::Register;
use crate::subjects::{FastCounter, Subject, There, number};
use crate::windows::{Span, Windows};

const OPS: u64 = 6_000;
const OPS_ENV: &str = "LARDER_CLUSTER_OPS";
const TASKS: usize = 48;
/// Raw numbers, so many that every primary serves some.
const KEYS: u64 = 64;
/// Structures of each kind.
const EACH: usize = 3;
/// Entries of each cache.
const PAGES: usize = 16;
/// For so long a handle of a packed table may read the version before: it looks at the head once a second.
const BEHIND: Duration = Duration::from_secs(2);
/// Replicas have by then what was written.
const REPLICATED: Duration = Duration::from_secs(1);
/// How long a structure may take, once the cluster is whole, until it can be used.
const USABLE_MS_MAX: u64 = 15_000;

/// A tail of a log, and what it has told.
struct Tailed {
    tail: Tail,
    told: BTreeSet<u64>,
}

/// Everything that is worked on.
struct World {
    store: StoreRef,
    keys: Vec<(Key, Book)>,
    counters: Vec<Kept<Counter>>,
    fast: Vec<Kept<FastCounter>>,
    sets: Vec<Kept<Set>>,
    tables: Vec<Kept<Table>>,
    logs: Vec<Kept<EventLog>>,
    arrays: Vec<Kept<Array>>,
    visitors: Vec<Kept<Visitors>>,
    unique: Vec<Kept<UniqueVisitors>>,
    sharded: Vec<Kept<ShardedSet>>,
    hashes: Vec<Kept<ShardedHash>>,
    sorted: Vec<Kept<ShardedSortedSet>>,
    records: Vec<Kept<PackedRecords>>,
    lookups: Vec<Kept<PackedTable>>,
    caches: Vec<Kept<Cache>>,
    /// The versions of each packed table.
    versions: [Register; EACH],
    /// The values of each cache's entries.
    pages: [[Register; PAGES]; EACH],
    queues: Vec<Kept<Queue>>,
    stacks: Vec<Kept<Stack>>,
    locks: Vec<Kept<Lock>>,
    tails: Vec<tokio::sync::Mutex<Tailed>>,
    /// What was taken from each queue, and from each stack.
    popped: [[Taken; EACH]; 2],
    /// The tokens of each lock's holders.
    tokens: [Mutex<BTreeSet<u64>>; EACH],
    signals: Signals,
    windows: Windows,
    /// Before anything was written.
    start: Checkpoint,
}

fn raw(at: u64) -> String {
    format!("raw-{at}")
}

async fn kept<H: Subject>(store: &StoreRef) -> Vec<Kept<H>> {
    let mut all = Vec::new();
    for at in 0..EACH {
        all.push(Kept::new(store, at).await);
    }
    all
}

async fn tailed(store: &StoreRef, name: &str) -> Result<Tailed> {
    let log = EventLog::open(store, name).await?;
    Ok(Tailed { tail: log.tail(Cursor::default())?, told: BTreeSet::new() })
}

impl World {
    async fn new(store: StoreRef) -> World {
        let start = Checkpoint { span: Span::since(Instant::now()), found: 0 };
        let key = |at| (Key::new(raw(at)).unwrap(), Book::default());
        let logs = kept::<EventLog>(&store).await;
        let mut tails = Vec::new();
        for log in &logs {
            let tail = usable(&log.name, || tailed(&store, &log.name)).await;
            tails.push(tokio::sync::Mutex::new(tail));
        }
        World {
            keys: (0..KEYS).map(key).collect(),
            counters: kept(&store).await,
            fast: kept(&store).await,
            sets: kept(&store).await,
            tables: kept(&store).await,
            logs,
            arrays: kept(&store).await,
            visitors: kept(&store).await,
            unique: kept(&store).await,
            sharded: kept(&store).await,
            hashes: kept(&store).await,
            sorted: kept(&store).await,
            records: kept(&store).await,
            lookups: kept(&store).await,
            caches: kept(&store).await,
            versions: Default::default(),
            pages: Default::default(),
            queues: kept(&store).await,
            stacks: kept(&store).await,
            locks: kept(&store).await,
            tails,
            popped: Default::default(),
            tokens: Default::default(),
            signals: Signals::default(),
            windows: Windows::default(),
            start,
            store,
        }
    }

    /// Writes to each once, before anything breaks: a day or window whose beginnings a failover took would be lost for good.
    async fn begin(&self, next: &AtomicU64) {
        async fn all<H: Subject>(all: &[Kept<H>], store: &StoreRef, next: &AtomicU64) {
            for kept in all {
                kept.write(store, next.fetch_add(1, Ordering::Relaxed), 0).await;
            }
        }
        for (key, book) in &self.keys {
            let (id, sent) = (next.fetch_add(1, Ordering::Relaxed), Instant::now());
            book.enter(id, sent, &incr(&self.store, key).await);
        }
        all(&self.counters, &self.store, next).await;
        all(&self.fast, &self.store, next).await;
        all(&self.sets, &self.store, next).await;
        all(&self.tables, &self.store, next).await;
        all(&self.logs, &self.store, next).await;
        all(&self.arrays, &self.store, next).await;
        all(&self.visitors, &self.store, next).await;
        all(&self.unique, &self.store, next).await;
        all(&self.sharded, &self.store, next).await;
        all(&self.hashes, &self.store, next).await;
        all(&self.sorted, &self.store, next).await;
        all(&self.records, &self.store, next).await;
        for at in 0..EACH {
            self.build(at, next.fetch_add(1, Ordering::Relaxed)).await;
            for page in 0..PAGES {
                self.page(at, page, next.fetch_add(1, Ordering::Relaxed)).await;
            }
        }
        all(&self.queues, &self.store, next).await;
        all(&self.stacks, &self.store, next).await;
        tokio::time::sleep(REPLICATED).await;
    }

    /// One op, with a number of its own.
    async fn step(&self, id: u64) {
        let (at, store) = (fastrand::usize(..EACH), &self.store);
        let phase = self.signals.phase.load(Ordering::Relaxed);
        match fastrand::u32(..25) {
            0..=2 => {
                let (key, book) = &self.keys[fastrand::usize(..self.keys.len())];
                let sent = Instant::now();
                book.enter(id, sent, &incr(store, key).await);
            }
            3..=4 => self.counters[at].write(store, id, phase).await,
            5 => self.fast[at].write(store, id, phase).await,
            6..=7 => self.sets[at].write(store, id, phase).await,
            8 => self.tables[at].write(store, id, phase).await,
            9 => self.logs[at].write(store, id, phase).await,
            10 if !self.tail(at).await => return,
            10 => {}
            11 => self.arrays[at].write(store, id, phase).await,
            12 => self.visitors[at].write(store, id, phase).await,
            13 => self.unique[at].write(store, id, phase).await,
            14 => self.sharded[at].write(store, id, phase).await,
            15 => self.queues[at].write(store, id, phase).await,
            16 => self.stacks[at].write(store, id, phase).await,
            17 => {
                let pop = async |queue: &Queue| self.popped[0][at].pop(async || queue.pop().await).await;
                self.queues[at].with(store, pop).await;
            }
            18 => {
                let pop = async |stack: &Stack| self.popped[1][at].pop(async || stack.pop().await).await;
                self.stacks[at].with(store, pop).await;
            }
            19 => self.hashes[at].write(store, id, phase).await,
            20 => self.sorted[at].write(store, id, phase).await,
            21 => self.records[at].write(store, id, phase).await,
            22 if id.is_multiple_of(4) => self.build(at, id).await,
            22 => self.look_up(at).await,
            23 => self.page(at, fastrand::usize(..PAGES), id).await,
            _ => self.lock(at).await,
        }
        self.signals.ops.fetch_add(1, Ordering::Relaxed);
    }

    /// Another version of a packed table.
    async fn build(&self, at: usize, id: u64) {
        let build = async |table: &PackedTable| {
            let sent = Instant::now();
            let outcome = table.write(id).await;
            self.versions[at].made.enter(id, sent, &outcome);
            if outcome.is_ok() {
                self.versions[at].ended(sent);
            }
            outcome
        };
        self.lookups[at].with(&self.store, build).await;
    }

    /// Which version of a packed table is in force.
    async fn look_up(&self, at: usize) {
        let sent = Instant::now();
        if let Some(There::Ids(found)) = self.lookups[at].with(&self.store, async |table| table.read().await).await {
            self.versions[at].read(sent, found[0]);
        }
    }

    /// Asks for an entry of a cache, which is made where it is missing; one time in four ends it first.
    async fn page(&self, at: usize, page: usize, id: u64) {
        let (register, key) = (&self.pages[at][page], format!("page-{page}"));
        if id.is_multiple_of(4) {
            let sent = Instant::now();
            if self.caches[at].with(&self.store, async |cache| cache.invalidate(&key).await).await.is_some() {
                register.ended(sent);
            }
        }
        let ask = async |cache: &Cache| {
            let sent = Instant::now();
            let make = async || {
                // It is made at this moment, whenever it comes to be cached.
                register.made.enter(id, Instant::now(), &Ok(()));
                Ok::<_, larder::Error>(id.to_string())
            };
            let found = cache.get_or_rebuild(&key, make).await?;
            register.read(sent, number(&found.value));
            Ok(())
        };
        self.caches[at].with(&self.store, ask).await;
    }

    /// Holds a lock for a moment. Who checks its token is never fooled: no two holders have one.
    async fn lock(&self, at: usize) {
        let go = async |lock: &Lock| {
            let Some(guard) = lock.try_acquire().await? else { return Ok(()) };
            assert!(locked(&self.tokens[at]).insert(guard.fencing_token()), "two holders have one token");
            guard.release().await.map(drop)
        };
        self.locks[at].with(&self.store, go).await;
    }

    /// What has come to a log. A tail that was told of a setback is opened anew. Whether it was looked at: another task may be at it.
    async fn tail(&self, at: usize) -> bool {
        let Ok(mut tailed) = self.tails[at].try_lock() else { return false };
        if let Err(error) = look(&mut tailed, &self.logs[at].name).await {
            judge(&error);
            if is_loss(&error)
                && let Ok(fresh) = crate::tailed(&self.store, &self.logs[at].name).await
            {
                *tailed = fresh;
            }
        }
        true
    }
}

async fn look(tailed: &mut Tailed, name: &str) -> Result<()> {
    for event in tailed.tail.poll().await?.whole()? {
        let id = number(&event.bytes);
        assert!(tailed.told.insert(id), "{name}: a tail tells event {id} twice");
    }
    Ok(())
}

async fn incr(store: &StoreRef, key: &Key) -> Result<()> {
    let initial = Some(Initial { value: 1, ttl: Ttl::Never });
    let op = Op::new(key.clone(), Verb::Arith { arith: Arith::Incr(1), initial });
    store.run_one(Ctx::default(), op).await.map(|_| ())
}

/// Tries until it works: the cluster is whole again.
pub(crate) async fn usable<T, F: Future<Output = Result<T>>>(what: &str, mut go: impl FnMut() -> F) -> T {
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
    // Twice the testkit's own: a node that waits for its turn on a busy machine is not to seem dead, and the next election is not to come too late.
    let options = RedisOptions::new().arg("cluster-node-timeout", "2000");
    let mut cluster = RedisCluster::start_with(RedisVersion::Redis7, &options);
    let url = format!("{}?connect_timeout_ms=5000", cluster.url());
    let store = usable("the store", || larder::open(&url)).await;
    let world = Arc::new(World::new(store).await);
    let next = Arc::new(AtomicU64::new(1));
    world.begin(&next).await;
    let start = Instant::now();
    let breaker = {
        let world = world.clone();
        tokio::task::spawn_blocking(move || {
            let broken = break_things(&mut cluster, &world.signals, &world.windows);
            (cluster, broken)
        })
    };
    let over = Arc::new(AtomicBool::new(false));
    let work = |_| {
        let (world, next, over) = (world.clone(), next.clone(), over.clone());
        tokio::spawn(async move {
            loop {
                let id = next.fetch_add(1, Ordering::Relaxed);
                if over.load(Ordering::Relaxed) {
                    return;
                }
                world.step(id).await;
            }
        })
    };
    let workers: Vec<_> = (0..TASKS).map(work).collect();
    let mut told = start;
    let done = || world.signals.ops.load(Ordering::Relaxed);
    while done() < ops && !breaker.is_finished() && !workers.iter().any(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if told.elapsed() > Duration::from_secs(60) {
            println!("{} ops in {:.0} s", done(), start.elapsed().as_secs_f64());
            told = Instant::now();
        }
    }
    world.signals.stop.store(true, Ordering::Relaxed);
    // It lives until the end.
    let (_cluster, broken) = breaker.await.unwrap();
    over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    let (done, took) = (done(), start.elapsed());
    assert!(done >= ops);
    let store = usable("the store", || larder::open(&url)).await;
    let sums = settle(&world, &store).await;
    report(done, took, &broken, &sums);
}

fn report(done: u64, took: Duration, broken: &Done, sums: &BTreeMap<&'static str, Sum>) {
    let Done { killed, unreplicated, unplanned, at_once, moved } = broken;
    for kind in sums.keys() {
        assert!(moved.get(*kind).is_some_and(|&moved| moved > 0), "no slot of a {kind} moved: {moved:?}");
    }
    assert!(*unreplicated > 0 && killed > unreplicated, "{killed} killed, {unreplicated} of them unreplicated");
    assert!(*at_once > 0, "no slot moved while a primary was dead");
    println!(
        "{done} ops in {:.1} s, {killed} primaries killed ({unreplicated} with unreplicated writes), {unplanned} unplanned failovers, {at_once} slots moved during one, {} between them: {moved:?}",
        took.as_secs_f64(),
        moved.values().sum::<u32>()
    );
    for (kind, Sum { acknowledged, outside, unknown, lost, told }) in sums {
        println!(
            "{kind}: {acknowledged} acknowledged ({outside} of them outside of all windows), {unknown} unknown, {lost} acknowledged and lost, told by {told} handles"
        );
    }
    let held = sums.iter().filter(|(kind, _)| **kind != Lock::KIND).map(|(_, sum)| (sum.outside, sum.acknowledged));
    let (outside, all) = held.fold((0, 0), |(outside, all), (more, of)| (outside + more, all + of));
    assert!(2 * outside >= all, "of {all} acknowledged writes only {outside} may not be missing");
}

async fn settled<H: Subject>(
    all: &[Kept<H>],
    (store, windows): (&StoreRef, &Windows),
    sums: &mut BTreeMap<&'static str, Sum>,
) {
    for kept in all {
        sums.entry(H::KIND).or_default().add(kept.settle(store, windows).await);
    }
}

/// Holds all books against what is there, by fresh handles, and uses every structure once more. How much was lost of each kind.
async fn settle(world: &World, store: &StoreRef) -> BTreeMap<&'static str, Sum> {
    let mut sums = BTreeMap::new();
    for (at, (key, book)) in world.keys.iter().enumerate() {
        let (sent, touching) = (Instant::now(), world.windows.of("raw", &raw(at as u64)));
        let read = usable("raw", || store.arith(key.clone(), Arith::Incr(0))).await.unwrap_or_default();
        let found = Checkpoint { span: Span::since(sent), found: read };
        let lost = book.close_count("raw", &[world.start, found], &touching);
        usable("raw", || incr(store, key)).await;
        sums.entry("raw").or_insert_with(Sum::default).add(book.sum(lost, &touching));
    }
    // Before others write to the logs.
    for (tailed, log) in world.tails.iter().zip(&world.logs) {
        settle_tail(&mut *tailed.lock().await, log, store).await;
    }
    let at = (store, &world.windows);
    settled(&world.counters, at, &mut sums).await;
    settled(&world.fast, at, &mut sums).await;
    settled(&world.sets, at, &mut sums).await;
    settled(&world.tables, at, &mut sums).await;
    settled(&world.logs, at, &mut sums).await;
    settled(&world.arrays, at, &mut sums).await;
    settled(&world.visitors, at, &mut sums).await;
    settled(&world.unique, at, &mut sums).await;
    settled(&world.sharded, at, &mut sums).await;
    settled(&world.hashes, at, &mut sums).await;
    settled(&world.sorted, at, &mut sums).await;
    settled(&world.records, at, &mut sums).await;
    settle_registers(world, store, &mut sums).await;
    for (at, kept) in world.queues.iter().enumerate() {
        let (fresh, _) = kept.found(store).await;
        usable(&kept.name, || fresh.push("0")).await;
        let sum = drained(kept, &world.windows, &world.popped[0][at], async || fresh.pop().await).await;
        sums.entry(Queue::KIND).or_default().add(sum);
    }
    for (at, kept) in world.stacks.iter().enumerate() {
        let (fresh, _) = kept.found(store).await;
        usable(&kept.name, || fresh.push("0")).await;
        let sum = drained(kept, &world.windows, &world.popped[1][at], async || fresh.pop().await).await;
        sums.entry(Stack::KIND).or_default().add(sum);
    }
    for (at, kept) in world.locks.iter().enumerate() {
        let fresh = usable(&kept.name, || Lock::open(store, &kept.name)).await;
        let guard = usable(&kept.name, || fresh.acquire(Duration::from_secs(40))).await;
        let newest = locked(&world.tokens[at]).last().copied().unwrap_or_default();
        assert!(guard.fencing_token() > newest, "{}: a later holder has an older token", kept.name);
        // Once: what it is told on a busy machine, after the time of an op, is that nobody knows.
        if let Err(error) = guard.release().await {
            assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unavailable), "{}: {error}", kept.name);
        }
        let acknowledged = locked(&world.tokens[at]).len() as u64;
        sums.entry(Lock::KIND)
            .or_default()
            .add(Sum { acknowledged, ..kept.sum(0, &world.windows.of(Lock::KIND, &kept.name)) });
    }
    sums
}

/// Holds what was read where values take each other's place, and has each place take one more. A packed table whose blocks were lost is built anew.
async fn settle_registers(world: &World, store: &StoreRef, sums: &mut BTreeMap<&'static str, Sum>) {
    for (kept, register) in world.lookups.iter().zip(&world.versions) {
        let touching = world.windows.of(PackedTable::KIND, &kept.name);
        let fresh = usable(&kept.name, || PackedTable::open(store, &kept.name)).await;
        let sent = Instant::now();
        match fresh.read().await {
            Ok(There::Ids(found)) => register.read(sent, found[0]),
            Ok(There::Count(_)) => unreachable!("it has numbers"),
            Err(error) => judge(&error),
        }
        let reads = register.close(&kept.name, &touching, BEHIND);
        assert!(reads > 0, "{}: it was never read", kept.name);
        usable(&kept.name, || fresh.write(0)).await;
        let There::Ids(found) = usable(&kept.name, || fresh.read()).await else { unreachable!("it has numbers") };
        assert_eq!(found, [0], "{}", kept.name);
        sums.entry(PackedTable::KIND)
            .or_default()
            .add(Sum { told: kept.sum(0, &touching).told, ..register.sum(&touching) });
    }
    for (kept, registers) in world.caches.iter().zip(&world.pages) {
        let touching = world.windows.of(Cache::KIND, &kept.name);
        let fresh = usable(&kept.name, || <Cache as Subject>::open(store, &kept.name, false)).await;
        for (page, register) in registers.iter().enumerate() {
            let (what, key) = (format!("{}, page {page}", kept.name), format!("page-{page}"));
            let reads = register.close(&what, &touching, Duration::ZERO);
            assert!(reads > 0, "{what}: it was never read");
            usable(&what, || fresh.invalidate(&key)).await;
            let make = || fresh.get_or_rebuild(&key, async || Ok::<_, larder::Error>("0"));
            assert_eq!(usable(&what, make).await.value, "0", "{what}");
            sums.entry(Cache::KIND).or_default().add(register.sum(&touching));
        }
    }
}

/// What a tail has told is there, or the tail says that the log went back.
async fn settle_tail(tailed: &mut Tailed, log: &Kept<EventLog>, store: &StoreRef) {
    let fresh = usable(&log.name, || EventLog::open(store, &log.name)).await;
    let there = usable(&log.name, || fresh.fetch(..)).await.with_gaps().0;
    let there: BTreeSet<u64> = there.iter().map(|event| number(&event.bytes)).collect();
    let gone = tailed.told.difference(&there).count();
    let start = Instant::now();
    let said = loop {
        match look(tailed, &log.name).await {
            Err(error) if !is_loss(&error) && start.elapsed() < Duration::from_millis(USABLE_MS_MAX) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            said => break said,
        }
    };
    match said {
        Ok(()) => assert_eq!(gone, 0, "{}: {gone} events that a tail told are gone, and it says nothing", log.name),
        Err(error) => assert!(is_loss(&error), "{}: {error}", log.name),
    }
}

/// Takes all that is left. How many acknowledged items nobody ever got.
async fn drained<H: Subject>(
    kept: &Kept<H>,
    windows: &Windows,
    popped: &Taken,
    pop: impl AsyncFn() -> Result<Option<bytes::Bytes>>,
) -> Sum {
    while usable(&kept.name, || popped.pop(&pop)).await.is_some() {}
    let touching = windows.of(H::KIND, &kept.name);
    kept.sum(popped.close(&kept.name, &kept.book, &touching), &touching)
}
