//! Handles of every structure, and what each must say of a store that lost the latest writes.

use std::time::{Duration, Instant, SystemTime};

use larder::log::Cursor;
use larder::lookup::Rows;
use larder::records::Schema;
use larder::{
    Array, Counter, ErrorKind, EventLog, IdKind, Lock, LockGuard, PackedRecords, PackedTable, Queue, Result, Set,
    ShardedHash, ShardedSet, ShardedSortedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};

/// Of visitors' windows.
const PERIOD: Duration = Duration::from_secs(3_600);
/// How long a structure may take until its store serves again.
const USABLE_MS_MAX: u64 = 30_000;

/// What a call says once the store serves again.
pub(crate) async fn said<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> Result<T> {
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
pub(crate) struct Handles {
    pub(crate) counter: Counter,
    pub(crate) set: Set,
    pub(crate) array: Array,
    pub(crate) table: Table,
    pub(crate) queue: Queue,
    pub(crate) stack: Stack,
    pub(crate) tail: larder::log::Tail,
    pub(crate) records: PackedRecords,
    pub(crate) visitors: Visitors,
    pub(crate) unique: UniqueVisitors,
    pub(crate) lookup: PackedTable,
    pub(crate) hash: ShardedHash,
    pub(crate) lock: Lock,
    pub(crate) silent: Silent,
}

/// Structures of which the guarantees say that older numbers and members go unnoticed: those are the server's own.
pub(crate) struct Silent {
    pub(crate) fast: Counter,
    pub(crate) set: ShardedSet,
    pub(crate) sorted: ShardedSortedSet,
}

async fn records(store: &StoreRef) -> Result<PackedRecords> {
    let schema = Schema::parse(["place:CA|US|FR", "paid:bit"])?;
    PackedRecords::options().schema(schema).shard_bytes(64).open_or_create(store, "records").await
}

/// What both sides have.
pub(crate) async fn begin(store: &StoreRef) -> Result<Handles> {
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
pub(crate) async fn write(handles: &mut Handles, log: &EventLog, round: u64) -> Result<()> {
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
pub(crate) async fn silent_of(handles: &mut Handles, guard: &LockGuard) -> Vec<String> {
    let Handles { counter, set, array, table, queue, stack, tail, records, visitors, .. } = handles;
    let rolled_back = &[ErrorKind::RolledBack, ErrorKind::Lost][..];
    let mut silent = Vec::new();
    must_tell("counter", said(|| counter.get()).await, rolled_back, &mut silent);
    // A write of its own before it looks does not hide what is gone.
    _ = said(|| set.add(["after"])).await;
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
pub(crate) async fn older_numbers_and_members_go_unnoticed(silent: &Silent) {
    assert_eq!(said(|| silent.fast.get()).await.unwrap(), 5);
    assert_eq!(said(|| silent.set.members()).await.unwrap(), ["1"]);
    let scored: Vec<_> = said(|| silent.sorted.entries()).await.unwrap();
    assert_eq!(scored.iter().map(|(member, score)| (&member[..], *score)).collect::<Vec<_>>(), [(&b"1"[..], 1.0)]);
}
