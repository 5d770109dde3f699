//! Handles of every structure, and what each must say of a store that lost the latest writes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use larder::log::{Cursor, Events, Tail};
use larder::lookup::Rows;
use larder::records::Schema;
use larder::{
    Array, Cache, Counter, Error, ErrorKind, EventLog, IdKind, Lock, LockGuard, PackedRecords, PackedTable, Queue,
    Result, Set, ShardedHash, ShardedSet, ShardedSortedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};

/// Of visitors' windows.
const PERIOD: Duration = Duration::from_secs(3_600);
/// Times that each is written; what comes after the first is lost.
pub(crate) const ROUNDS: u64 = 3;
/// A handle of a packed table has looked at its head by then: it does so within a second of use.
const LOOKED: Duration = Duration::from_secs(2);
/// How long a structure may take until its store serves again.
const USABLE_MS_MAX: u64 = 30_000;
const AGAIN: Duration = Duration::from_millis(50);

/// What a call says once the store serves again.
pub(crate) async fn said<T, F: Future<Output = Result<T>>>(mut call: impl FnMut() -> F) -> Result<T> {
    let start = Instant::now();
    loop {
        match call().await {
            Err(error) if is_passing(&error, start) => tokio::time::sleep(AGAIN).await,
            said => return said,
        }
    }
}

fn is_passing(error: &Error, start: Instant) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout)
        && start.elapsed() < Duration::from_millis(USABLE_MS_MAX)
}

/// What the handle of one structure says: whether all that was acknowledged is there, and what it may say instead.
pub(crate) struct Told {
    pub(crate) structure: &'static str,
    pub(crate) said: Result<bool>,
    kinds: &'static [ErrorKind],
}

impl Told {
    /// Whether it tells a loss as it promises to.
    pub(crate) fn is_loss(&self) -> bool {
        self.said.as_ref().is_err_and(|error| self.kinds.contains(&error.kind()))
    }
}

/// Handles of every structure that detects an older state, which have written what the replicas have not.
pub(crate) struct Handles {
    /// In the window that was written to first; the others lie before it.
    began: SystemTime,
    /// The same, of unique visitors.
    day: u64,
    pub(crate) counter: Counter,
    pub(crate) set: Set,
    pub(crate) array: Array,
    pub(crate) table: Table,
    pub(crate) queue: Queue,
    stack: Stack,
    log: EventLog,
    tail: Tail,
    records: PackedRecords,
    visitors: Visitors,
    unique: UniqueVisitors,
    lookup: PackedTable,
    hash: ShardedHash,
    pub(crate) lock: Lock,
    pub(crate) silent: Silent,
}

/// Structures of which the guarantees say that older numbers, members and values go unnoticed: those are the server's own, or made again.
pub(crate) struct Silent {
    pub(crate) cache: Cache,
    pub(crate) fast: Counter,
    pub(crate) set: ShardedSet,
    pub(crate) sorted: ShardedSortedSet,
}

async fn records(store: &StoreRef, name: &str) -> Result<PackedRecords> {
    let schema = Schema::parse(["place:CA|US|FR", "paid:bit"])?;
    PackedRecords::options().schema(schema).shard_bytes(64).open_or_create(store, name).await
}

/// What both sides have; `which` ends the names.
pub(crate) async fn begin(store: &StoreRef, which: &str) -> Result<Handles> {
    let name = |kind: &str| format!("{kind}{which}");
    let log = EventLog::open_or_create(store, name("log")).await?;
    let unique = UniqueVisitors::options().ids(IdKind::Integer).expected(1_000);
    let unique = unique.open_or_create(store, name("unique")).await?;
    let handles = Handles {
        began: SystemTime::now(),
        day: unique.current()?,
        counter: Counter::open_or_create(store, name("counter")).await?,
        set: Set::open_or_create(store, name("set")).await?,
        array: Array::open_or_create(store, name("array")).await?,
        table: Table::open_or_create(store, name("table")).await?,
        queue: Queue::open_or_create(store, name("queue")).await?,
        stack: Stack::open_or_create(store, name("stack")).await?,
        tail: log.tail(Cursor::default())?,
        log,
        records: records(store, &name("records")).await?,
        visitors: Visitors::options().period(PERIOD).open_or_create(store, name("visitors")).await?,
        unique,
        lookup: PackedTable::open_or_create(store, name("lookup")).await?,
        hash: ShardedHash::options().shards(4).open_or_create(store, name("hash")).await?,
        lock: Lock::options().lease(Duration::from_secs(600)).open(store, name("lock")).await?,
        silent: Silent {
            cache: Cache::options().ttl(PERIOD).open_or_create(store, name("cache")).await?,
            fast: Counter::options().fast().open_or_create(store, name("fast")).await?,
            set: ShardedSet::options().shards(4).open_or_create(store, name("sharded")).await?,
            sorted: ShardedSortedSet::options().shards(4).open_or_create(store, name("sorted")).await?,
        },
    };
    Ok(handles)
}

/// A write of each, and a look, so that the handle has seen it.
pub(crate) async fn write(handles: &mut Handles, round: u64) -> Result<()> {
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
    handles.log.put(&text).await?;
    handles.tail.next().await?.whole()?;
    // Another shard each round: what is new stands in the ledger.
    handles.records.set(round * 1_000, &[("paid", true.into())]).await?;
    handles.records.aggregate(&["paid"]).await?;
    handles.visitors.hit_at(handles.began - PERIOD * (round as u32 - 1), 1).await?;
    // Another day each round, another version of the table, another map.
    handles.unique.add_in(handles.day - (round - 1), [1u64, 2, 3]).await?;
    let mut rows = Rows::new(["round"])?;
    rows.push_id(7, [&text])?;
    handles.lookup.build(rows).await?;
    handles.lookup.get(7).await?;
    handles.hash.set([(&text, &text)]).await?;
    handles.hash.reshard(4 + round as u16).await?;
    handles.hash.entries().await?;
    handles.silent.cache.invalidate("page").await?;
    handles.silent.cache.get_or_rebuild("page", async || Ok::<_, larder::Error>(text.clone())).await?;
    handles.silent.fast.add(5).await?;
    handles.silent.set.add([&text]).await?;
    handles.silent.sorted.add([(&text, round as f64)]).await?;
    Ok(())
}

/// Which of the structures that promise to tell a loss do not.
pub(crate) async fn silent_of(handles: &mut Handles, guard: &LockGuard) -> Vec<String> {
    let told = told_by(handles, guard).await;
    told.iter()
        .filter(|told| !told.is_loss())
        .map(|Told { structure, said, .. }| format!("{structure}: {said:?}"))
        .collect()
}

/// Asks the handle of each structure that promises to tell.
pub(crate) async fn told_by(handles: &mut Handles, guard: &LockGuard) -> Vec<Told> {
    let mut all = Vec::new();
    let mut told = |structure, said| {
        let kinds = if structure == "lock" { LOCK_KINDS } else { LOSS_KINDS };
        all.push(Told { structure, said, kinds });
    };
    let Handles { counter, set, array, table, queue, stack, tail, .. } = handles;
    told("counter", said(|| counter.get()).await.map(|found| found == i128::from(5 * ROUNDS)));
    // A write of its own before it looks does not hide what is gone.
    _ = said(|| set.add(["after"])).await;
    told("set", said(|| set.members()).await.map(|members| has_all(members.iter())));
    told("array", said(|| array.elements()).await.map(|elements| has_all(&elements)));
    told("table", table_said(table).await);
    // All was taken.
    told("queue", said(|| queue.pop()).await.map(|item| item.is_none()));
    told("stack", said(|| stack.pop()).await.map(|item| item.is_none()));
    told("log", tail_said(tail).await);
    let Handles { began, day, records, visitors, unique, lookup, hash, .. } = handles;
    told("records", records_said(records).await);
    let (mut hits, mut ids) = (Ok(true), Ok(true));
    for back in 0..ROUNDS {
        let window = *began - PERIOD * back as u32;
        hits = both(hits, said(|| visitors.get_at(window)).await.map(|hits| hits == 1));
        ids = both(ids, said(|| unique.count_in(*day - back)).await.map(|count| count.stored == 3));
    }
    told("visitors", hits);
    told("unique visitors", ids);
    told("packed table", lookup_said(lookup).await);
    told("sharded hash", said(|| hash.entries()).await.map(|entries| has_all(entries.iter().map(|(field, _)| field))));
    // The holder learns that nobody keeps its lock any more, or that another may have it.
    told("lock", said(|| guard.renew()).await.map(|_| true));
    all
}

const LOSS_KINDS: &[ErrorKind] = &[ErrorKind::RolledBack, ErrorKind::Lost];
const LOCK_KINDS: &[ErrorKind] = &[ErrorKind::Lost, ErrorKind::Fenced];

/// Whether what every round wrote is there.
fn has_all(found: impl IntoIterator<Item = impl AsRef<[u8]>>) -> bool {
    let found: BTreeSet<Vec<u8>> = found.into_iter().map(|one| one.as_ref().to_vec()).collect();
    (1..=ROUNDS).all(|round| found.contains(round.to_string().as_bytes()))
}

/// An error where one of two is, and else whether both are whole.
fn both(one: Result<bool>, other: Result<bool>) -> Result<bool> {
    Ok(one? && other?)
}

/// Its list, and each entry of it.
async fn table_said(table: &Table) -> Result<bool> {
    let keys = said(|| table.keys()).await?;
    let mut is_whole = has_all(&keys);
    for key in &keys {
        is_whole &= said(|| table.get(key)).await?.is_some();
    }
    Ok(is_whole)
}

/// What is counted, and each record. The highest id stands under a key of its own: where that alone went back, the handle that raised it says so.
async fn records_said(records: &PackedRecords) -> Result<bool> {
    let paid = said(|| records.aggregate(&["paid"])).await?;
    let up_to = (paid.records - 1) / 1_000;
    let mut is_whole = up_to == ROUNDS && paid.count(&[true.into()]) == up_to;
    for round in 1..=ROUNDS {
        is_whole &= said(|| records.get(round * 1_000)).await?[1] == true.into();
    }
    Ok(is_whole)
}

/// All was read: there is nothing more, and nothing again.
async fn tail_said(tail: &mut Tail) -> Result<bool> {
    let start = Instant::now();
    loop {
        match tail.poll().await.and_then(Events::whole) {
            Err(error) if is_passing(&error, start) => tokio::time::sleep(AGAIN).await,
            told => return told.map(|events| events.is_empty()),
        }
    }
}

/// The latest version, also once it has looked at its head again.
async fn lookup_said(lookup: &PackedTable) -> Result<bool> {
    let start = Instant::now();
    loop {
        let row = said(|| lookup.get(7)).await?;
        if start.elapsed() > LOOKED {
            return Ok(row.is_some_and(|row| has_latest(&row.fields[0])));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn has_latest(text: &[u8]) -> bool {
    text == ROUNDS.to_string().as_bytes()
}

/// What the guarantees name as going unnoticed does so, and no more of it: what had reached the replicas is there.
pub(crate) async fn older_numbers_and_members_go_unnoticed(silent: &Silent) {
    assert_eq!(said(|| silent.cache.get("page")).await.unwrap().expect("an older value").value, "1");
    assert_eq!(said(|| silent.fast.get()).await.unwrap(), 5);
    assert_eq!(said(|| silent.set.members()).await.unwrap(), ["1"]);
    let scored: Vec<_> = said(|| silent.sorted.entries()).await.unwrap();
    assert_eq!(scored.iter().map(|(member, score)| (&member[..], *score)).collect::<Vec<_>>(), [(&b"1"[..], 1.0)]);
}

/// The same where some of their keys went back, and others did not: each of them is of one moment or the other.
pub(crate) async fn each_is_older_or_newer(silent: &Silent) {
    let page = said(|| silent.cache.get("page")).await.unwrap().expect("one of its values").value;
    assert!(page == "1" || has_latest(&page), "{page:?}");
    let number = said(|| silent.fast.get()).await.unwrap();
    assert!([5, 5 * i128::from(ROUNDS)].contains(&number), "{number}");
    let members = said(|| silent.set.members()).await.unwrap();
    let sorted = said(|| silent.sorted.entries()).await.unwrap();
    for found in [members, sorted.into_iter().map(|(member, _)| member).collect()] {
        assert!(found.iter().any(|member| member == "1"), "{found:?}");
        assert!(found.iter().all(|member| ["1", "2", "3"].iter().any(|one| member == one)), "{found:?}");
    }
}
