//! A failover that loses acknowledged writes: every structure that says it detects one, does.
//!
//! The replicas are down while writes are acknowledged, the primaries die, and the replicas come back over their own files and take over: what happens to a
//! cluster whose replication had fallen behind, without a race. To the handles it is a store that was set back to an older state.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use larder::log::Cursor;
use larder::lookup::Rows;
use larder::records::Schema;
use larder::{
    Array, Counter, ErrorKind, EventLog, IdKind, Lock, LockGuard, PackedRecords, PackedTable, Queue, Result, Set,
    ShardedHash, ShardedSet, ShardedSortedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};
use larder_testkit::redis::{RedisCluster, RedisOptions, RedisVersion};

const PRIMARIES: usize = 3;
/// Of visitors' windows.
const PERIOD: Duration = Duration::from_secs(3_600);
/// How long a structure may take until its store serves again.
const USABLE_MS_MAX: u64 = 30_000;

/// Waits until a replica has, in its file, what its primary has.
fn wait_in_step(cluster: &RedisCluster, primary: usize) {
    let (primary, replica) = (&cluster.nodes()[primary], &cluster.nodes()[primary + PRIMARIES]);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let offset = primary.info("replication", "master_repl_offset");
        let is_level = replica.info("replication", "slave_repl_offset") == offset;
        let is_written = replica.info("persistence", "aof_rewrite_in_progress") == "0"
            && replica.info("persistence", "aof_rewrite_scheduled") == "0"
            && replica.info("persistence", "aof_enabled") == "1";
        if is_level && is_written {
            return;
        }
        assert!(Instant::now() < deadline, "a replica never got level: {offset}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// From now on replicas take in nothing, though primaries acknowledge.
fn fall_behind(cluster: &mut RedisCluster) {
    for primary in 0..PRIMARIES {
        wait_in_step(cluster, primary);
        cluster.node_mut(primary + PRIMARIES).kill9();
    }
}

/// Every primary dies, and its replica takes over with what it has.
fn fail_over(cluster: &mut RedisCluster) {
    for primary in 0..PRIMARIES {
        cluster.node_mut(primary).kill9();
    }
    for primary in 0..PRIMARIES {
        cluster.node_mut(primary + PRIMARIES).restart();
    }
    for primary in 0..PRIMARIES {
        let said = cluster.nodes()[primary + PRIMARIES].command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        assert!(!said.is_error(), "{}", said.text());
    }
    cluster.wait_ok();
}

/// What a call says once the store serves again.
async fn said<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> Result<T> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error)
                if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
                    && start.elapsed() < Duration::from_millis(USABLE_MS_MAX) =>
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            said => return said,
        }
    }
}

/// Holds what a handle said against what it must say.
fn must_tell<T>(structure: &str, said: Result<T>, kinds: &[ErrorKind], silent: &mut Vec<String>) {
    match said {
        Err(error) if kinds.contains(&error.kind()) => println!("{structure}: {error}"),
        Err(error) => silent.push(format!("{structure} says {error}")),
        Ok(_) => silent.push(format!("{structure} says nothing")),
    }
}

/// Handles of every structure that detects an older state, which have written what the replicas have not.
struct Handles {
    counter: Counter,
    set: Set,
    array: Array,
    table: Table,
    queue: Queue,
    stack: Stack,
    tail: larder::log::Tail,
    records: PackedRecords,
    visitors: Visitors,
    unique: UniqueVisitors,
    lookup: PackedTable,
    hash: ShardedHash,
    lock: Lock,
    silent: Silent,
}

/// Structures of which the guarantees say that older numbers and members go unnoticed: those are the server's own.
struct Silent {
    fast: Counter,
    set: ShardedSet,
    sorted: ShardedSortedSet,
}

async fn records(store: &StoreRef) -> Result<PackedRecords> {
    let schema = Schema::parse(["place:CA|US|FR", "paid:bit"])?;
    PackedRecords::options().schema(schema).shard_bytes(64).open_or_create(store, "records").await
}

/// What both sides have.
async fn begin(store: &StoreRef) -> Result<Handles> {
    let log = EventLog::open_or_create(store, "log").await?;
    let handles = Handles {
        counter: Counter::open_or_create(store, "counter").await?,
        set: Set::open_or_create(store, "set").await?,
        array: Array::open_or_create(store, "array").await?,
        table: Table::open_or_create(store, "table").await?,
        queue: Queue::open_or_create(store, "queue").await?,
        stack: Stack::open_or_create(store, "stack").await?,
        tail: log.tail(Cursor::default())?,
        records: records(store).await?,
        visitors: Visitors::options().period(PERIOD).open_or_create(store, "visitors").await?,
        unique: UniqueVisitors::options().ids(IdKind::Integer).expected(1_000).open_or_create(store, "unique").await?,
        lookup: PackedTable::open_or_create(store, "lookup").await?,
        hash: ShardedHash::options().shards(4).open_or_create(store, "hash").await?,
        lock: Lock::options().lease(Duration::from_secs(600)).open(store, "lock").await?,
        silent: Silent {
            fast: Counter::options().fast().open_or_create(store, "fast").await?,
            set: ShardedSet::options().shards(4).open_or_create(store, "sharded").await?,
            sorted: ShardedSortedSet::options().shards(4).open_or_create(store, "sorted").await?,
        },
    };
    Ok(handles)
}

/// A write of each, and a look, so that the handle has seen it.
async fn write(handles: &mut Handles, log: &EventLog, round: u64) -> Result<()> {
    let text = round.to_string();
    handles.counter.add(5).await?;
    handles.counter.get().await?;
    handles.set.add([&text]).await?;
    handles.set.members().await?;
    handles.array.push([&text]).await?;
    handles.array.elements().await?;
    handles.table.put(&text, &text).await?;
    handles.table.keys().await?;
    handles.queue.push(&text).await?;
    handles.queue.pop().await?;
    handles.stack.push(&text).await?;
    handles.stack.pop().await?;
    log.put(&text).await?;
    handles.tail.next().await?.whole()?;
    // Another shard each round: what is new stands in the ledger.
    handles.records.set(round * 1_000, &[("paid", true.into())]).await?;
    handles.records.aggregate(&["paid"]).await?;
    handles.visitors.hit_at(SystemTime::now() - PERIOD * (round as u32 - 1), 1).await?;
    // Another day each round, another version of the table, another map.
    let day = handles.unique.current()? - (round - 1);
    handles.unique.add_in(day, [1u64, 2, 3]).await?;
    let mut rows = Rows::new(["round"])?;
    rows.push_id(7, [&text])?;
    handles.lookup.build(rows).await?;
    handles.lookup.get(7).await?;
    handles.hash.set([(&text, &text)]).await?;
    handles.hash.reshard(4 + round as u16).await?;
    handles.hash.entries().await?;
    handles.silent.fast.add(5).await?;
    handles.silent.set.add([&text]).await?;
    handles.silent.sorted.add([(&text, round as f64)]).await?;
    Ok(())
}

/// Asks the handle of each structure that promises to tell: which of them do not.
async fn silent_of(handles: &mut Handles, guard: &LockGuard) -> Vec<String> {
    let Handles { counter, set, array, table, queue, stack, tail, records, visitors, .. } = handles;
    let rolled_back = &[ErrorKind::RolledBack, ErrorKind::Lost][..];
    let mut silent = Vec::new();
    must_tell("counter", said(|| counter.get()).await, rolled_back, &mut silent);
    // A write of its own before it looks does not hide what is gone.
    said(|| set.add(["after"])).await.unwrap();
    must_tell("set", said(|| set.members()).await, rolled_back, &mut silent);
    must_tell("array", said(|| array.elements()).await, rolled_back, &mut silent);
    must_tell("table", said(|| table.keys()).await, rolled_back, &mut silent);
    must_tell("queue", said(|| queue.pop()).await, rolled_back, &mut silent);
    must_tell("stack", said(|| stack.pop()).await, rolled_back, &mut silent);
    let told = tokio::time::timeout(Duration::from_millis(USABLE_MS_MAX), tail.next()).await;
    must_tell(
        "log",
        told.unwrap_or_else(|_| Err(larder::Error::new(ErrorKind::Timeout, "it waits for another event"))),
        rolled_back,
        &mut silent,
    );
    must_tell("records", said(|| records.aggregate(&["paid"])).await, rolled_back, &mut silent);
    must_tell("visitors", said(|| visitors.current()).await, rolled_back, &mut silent);
    let Handles { unique, lookup, hash, .. } = handles;
    // A day that began after the replicas fell behind.
    let day = unique.current().unwrap() - 2;
    must_tell("unique visitors", said(|| unique.count_in(day)).await, rolled_back, &mut silent);
    // By the next look at its head, within a second of use.
    let start = Instant::now();
    let mut told = said(|| lookup.get(7)).await;
    while told.is_ok() && start.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        told = said(|| lookup.get(7)).await;
    }
    must_tell("packed table", told, rolled_back, &mut silent);
    must_tell("sharded hash", said(|| hash.entries()).await, rolled_back, &mut silent);
    // The holder learns that nobody keeps its lock any more, or that another may have it.
    must_tell("lock", said(|| guard.renew()).await, &[ErrorKind::Lost, ErrorKind::Fenced], &mut silent);
    silent
}

/// What the guarantees name as going unnoticed does so, and no more of it: what had reached the replicas is there.
async fn older_numbers_and_members_go_unnoticed(silent: &Silent) {
    assert_eq!(said(|| silent.fast.get()).await.unwrap(), 5);
    assert_eq!(said(|| silent.set.members()).await.unwrap(), ["1"]);
    let scored: Vec<_> = said(|| silent.sorted.entries()).await.unwrap();
    assert_eq!(scored.iter().map(|(member, score)| (&member[..], *score)).collect::<Vec<_>>(), [(&b"1"[..], 1.0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_structure_that_detects_a_loss_by_failover_tells_it() {
    let start = Instant::now();
    let options = RedisOptions::new().appendonly().arg("cluster-require-full-coverage", "no");
    let mut cluster = RedisCluster::start_with(RedisVersion::Redis7, &options);
    // All nodes are named: with every primary gone, one must know whom else to ask.
    let nodes: Vec<String> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redis-cluster://{}?timeout_ms=5000&connect_timeout_ms=5000", nodes.join(","));
    let store = larder::open(&url).await.unwrap();
    let mut handles = begin(&store).await.unwrap();
    let log = EventLog::open(&store, "log").await.unwrap();
    write(&mut handles, &log, 1).await.unwrap();
    tokio::task::block_in_place(|| fall_behind(&mut cluster));
    for round in 2..=3 {
        write(&mut handles, &log, round).await.unwrap();
    }
    let guard = handles.lock.acquire(Duration::from_secs(5)).await.unwrap();
    tokio::task::block_in_place(|| fail_over(&mut cluster));
    println!("failed over, {:?} after the start", start.elapsed());
    let silent = silent_of(&mut handles, &guard).await;
    assert!(silent.is_empty(), "{silent:#?}");
    older_numbers_and_members_go_unnoticed(&handles.silent).await;
    // A fresh process finds the older state, and can use it: it cannot know.
    let fresh = larder::open(&url).await.unwrap();
    let counter = Counter::open(&fresh, "counter").await.unwrap();
    assert_eq!(said(|| counter.get()).await.unwrap(), 5);
    assert_eq!(said(|| counter.add(1)).await.map(|_| ()).map_err(|error| error.to_string()), Ok(()));
    let set = Set::open(&fresh, "set").await.unwrap();
    let members = said(|| set.members()).await.unwrap();
    assert_eq!(members.iter().collect::<BTreeSet<_>>(), BTreeSet::from([&b"1"[..], b"after"]));
}
