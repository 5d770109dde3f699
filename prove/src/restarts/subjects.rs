//! The structures, each as something that takes values and tells what it has.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use larder::lookup::{LookupKey, Rows};
use larder::records::{Schema, Value};
use larder::{
    Array, Counter, Error, ErrorKind, EventLog, Lock, PackedRecords, PackedTable, Queue, Result, Set, ShardedHash,
    ShardedSet, ShardedSortedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};

/// Ids of packed records that are read back: values are less.
pub(crate) const VALUES_MAX: u64 = 256;
/// Of visitors' windows.
const PERIOD: Duration = Duration::from_secs(3_600);
/// A client that died holds a lock for no longer; a handle that misses its record waits as long.
const LEASE: Duration = Duration::from_millis(100);
/// How long a lock is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
const COLUMN: &str = "value";

/// A sort of structure, in its use here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Counter,
    FastCounter,
    Set,
    Array,
    Table,
    Queue,
    Stack,
    Log,
    Records,
    Visitors,
    Unique,
    Hash,
    Members,
    Sorted,
    Lookup,
    Lock,
}

pub(crate) const SORTS: &[Sort] = &[
    Sort::Counter,
    Sort::FastCounter,
    Sort::Set,
    Sort::Array,
    Sort::Table,
    Sort::Queue,
    Sort::Stack,
    Sort::Log,
    Sort::Records,
    Sort::Visitors,
    Sort::Unique,
    Sort::Hash,
    Sort::Members,
    Sort::Sorted,
    Sort::Lookup,
    Sort::Lock,
];

/// What a structure told that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// These values, each once.
    Values(BTreeSet<u64>),
    /// So many.
    Count(u64),
    /// The value that was written last; none where none was.
    Last(Option<u64>),
}

/// What all handles of a structure share here: its name, the time its windows are of, and the greatest token that its lock gave.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) sort: Sort,
    pub(crate) name: String,
    at: SystemTime,
    token: Arc<AtomicU64>,
}

/// A handle.
pub(crate) struct Handle {
    subject: Subject,
    of: Of,
}

enum Of {
    Counter(Counter),
    Set(Set),
    Array(Array),
    Table(Table),
    Queue(Queue),
    Stack(Stack),
    Log(EventLog),
    Records(PackedRecords),
    Visitors(Visitors),
    Unique(UniqueVisitors),
    Hash(ShardedHash),
    Members(ShardedSet),
    Sorted(ShardedSortedSet),
    Lookup(PackedTable),
    Lock(Lock),
}

/// Opens by whatever options, a structure that is there, or makes it.
macro_rules! opened {
    ($options:expr, $store:expr, $name:expr, $create:expr) => {
        if $create { $options.open_or_create($store, $name).await } else { $options.open($store, $name).await }
    };
}

impl Subject {
    pub(crate) fn new(sort: Sort, name: String) -> Subject {
        Subject { sort, name, at: SystemTime::now(), token: Arc::new(AtomicU64::new(0)) }
    }

    /// A handle of what is there; where `create` says so, of a new one if nothing is.
    pub(crate) async fn open(&self, store: &StoreRef, create: bool) -> Result<Handle> {
        let name = &self.name;
        let of = match self.sort {
            Sort::Counter => Of::Counter(opened!(Counter::options(), store, name, create)?),
            Sort::FastCounter => Of::Counter(opened!(Counter::options().fast(), store, name, create)?),
            Sort::Set => Of::Set(opened!(Set::options(), store, name, create)?),
            Sort::Array => Of::Array(opened!(Array::options(), store, name, create)?),
            Sort::Table => Of::Table(opened!(Table::options(), store, name, create)?),
            Sort::Queue => Of::Queue(opened!(Queue::options(), store, name, create)?),
            Sort::Stack => Of::Stack(opened!(Stack::options(), store, name, create)?),
            Sort::Log => Of::Log(opened!(EventLog::options(), store, name, create)?),
            Sort::Records => {
                let options = PackedRecords::options().schema(Schema::parse(["there:bit"])?).shard_bytes(64);
                Of::Records(opened!(options, store, name, create)?)
            }
            Sort::Visitors => Of::Visitors(opened!(Visitors::options().period(PERIOD), store, name, create)?),
            Sort::Unique => Of::Unique(opened!(UniqueVisitors::options().expected(1_000), store, name, create)?),
            Sort::Hash => Of::Hash(opened!(ShardedHash::options(), store, name, create)?),
            Sort::Members => Of::Members(opened!(ShardedSet::options(), store, name, create)?),
            Sort::Sorted => Of::Sorted(opened!(ShardedSortedSet::options(), store, name, create)?),
            Sort::Lookup => Of::Lookup(opened!(PackedTable::options(), store, name, create)?),
            // A lock is made by whoever takes it first.
            Sort::Lock => Of::Lock(Lock::options().lease(LEASE).open(store, name).await?),
        };
        Ok(Handle { subject: self.clone(), of })
    }
}

impl Handle {
    /// Writes a value that is no other's, less than [`VALUES_MAX`].
    pub(crate) async fn write(&self, value: u64) -> Result<()> {
        let text = value.to_string();
        match &self.of {
            Of::Counter(counter) => counter.add(1).await,
            Of::Set(set) => set.add([&text]).await,
            Of::Array(array) => array.push([&text]).await,
            Of::Table(table) => table.put(&text, &text).await,
            Of::Queue(queue) => queue.push(&text).await,
            Of::Stack(stack) => stack.push(&text).await,
            Of::Log(log) => log.put(&text).await,
            Of::Records(records) => records.set(value, &[("there", true.into())]).await,
            Of::Visitors(visitors) => visitors.hit_at(self.subject.at, 1).await,
            Of::Unique(unique) => {
                let period = unique.period_of(self.subject.at)?;
                unique.add_in(period, [text.as_str()]).await.map(drop)
            }
            Of::Hash(hash) => hash.set([(&text, &text)]).await.map(drop),
            Of::Members(set) => set.add([&text]).await.map(drop),
            Of::Sorted(set) => set.set([(&text, value as f64)]).await.map(drop),
            Of::Lookup(table) => {
                let mut rows = Rows::new([COLUMN])?;
                rows.push_id(0u64, [&text])?;
                table.build(rows).await.map(drop)
            }
            Of::Lock(lock) => self.take(lock).await,
        }
    }

    /// Takes the lock and lets it go; its tokens grow for ever.
    async fn take(&self, lock: &Lock) -> Result<()> {
        let before = self.subject.token.load(Ordering::SeqCst);
        let guard = lock.acquire(PATIENCE).await?;
        let token = guard.fencing_token();
        if token <= before {
            return Err(Error::new(ErrorKind::Corrupt, format!("a token fell from {before} to {token}")));
        }
        self.subject.token.fetch_max(token, Ordering::SeqCst);
        guard.release().await.map(drop)
    }

    /// What is there. Takes it out of queues and stacks.
    pub(crate) async fn read(&self) -> Result<Held> {
        match &self.of {
            Of::Counter(counter) => counter.get().await.map(|sum| Held::Count(sum as u64)),
            Of::Set(set) => values(set.members().await?.iter()),
            Of::Array(array) => values(array.elements().await?),
            Of::Table(table) => values(table.entries().await?.into_iter().map(|(_, value)| value)),
            Of::Queue(queue) => {
                let mut all = Vec::new();
                while let Some(item) = queue.pop().await? {
                    all.push(item);
                }
                values(all)
            }
            Of::Stack(stack) => {
                let mut all = Vec::new();
                while let Some(item) = stack.pop().await? {
                    all.push(item);
                }
                values(all)
            }
            Of::Log(log) => values(log.fetch(..).await?.whole()?.into_iter().map(|event| event.bytes)),
            Of::Records(records) => {
                let ids: Vec<u64> = (0..VALUES_MAX).collect();
                let all = records.get_many(&ids).await?;
                let there = ids.into_iter().zip(all).filter(|(_, fields)| fields[0] == Value::from(true));
                Ok(Held::Values(there.map(|(id, _)| id).collect()))
            }
            Of::Visitors(visitors) => visitors.get_at(self.subject.at).await.map(Held::Count),
            Of::Unique(unique) => {
                let period = unique.period_of(self.subject.at)?;
                unique.count_in(period).await.map(|count| Held::Count(count.visitors))
            }
            Of::Hash(hash) => values(hash.entries().await?.into_iter().map(|(_, value)| value)),
            Of::Members(set) => values(set.members().await?),
            Of::Sorted(set) => values(set.entries().await?.into_iter().map(|(member, _)| member)),
            Of::Lookup(table) => {
                let found = table.get(LookupKey::from(0u64)).await?;
                let value = found.map(|found| value_of(&found.fields[0])).transpose()?;
                Ok(Held::Last(value))
            }
            // What it has is the token, which every taking holds against those before.
            Of::Lock(lock) => self.take(lock).await.map(|()| Held::Last(None)),
        }
    }
}

/// Values that were read; one that is there twice, or that nobody wrote, is no loss but as wrong.
fn values(read: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<Held> {
    let mut all = BTreeSet::new();
    for bytes in read {
        let value = value_of(bytes.as_ref())?;
        if !all.insert(value) {
            return Err(Error::new(ErrorKind::Corrupt, format!("{value} is there twice")));
        }
    }
    Ok(Held::Values(all))
}

fn value_of(bytes: &[u8]) -> Result<u64> {
    let value = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    value.ok_or_else(|| Error::new(ErrorKind::Corrupt, format!("nobody wrote {:?}", bytes.escape_ascii().to_string())))
}
