//! The structures, each as something that takes values and tells what it has.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use larder::lock::Released;
use larder::lookup::{LookupKey, Rows};
use larder::records::{Schema, Value};
use larder::{
    Array, Counter, Error, ErrorKind, EventLog, Lock, LockStatus, Novelty, PackedRecords, PackedTable, Queue, Result,
    Set, ShardedHash, ShardedSet, ShardedSortedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};

/// Ids that packed records and unique visitors are asked for: values are less.
pub(crate) const VALUES_MAX: u64 = 256;
/// Of visitors' windows.
const PERIOD: Duration = Duration::from_secs(3_600);
/// A client that died holds a lock for no longer; a handle that misses its record waits as long.
const LEASE: Duration = Duration::from_millis(100);
/// How long a lock is waited for, where nothing is written over that is still to be looked at.
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
    /// The [`amount`]s of its values, summed up.
    Sum(u64),
    /// So many ids, and of these values it says that it knows them.
    Known { count: u64, values: BTreeSet<u64> },
    /// The value that was written last; none where none was.
    Last(Option<u64>),
    /// How far a lock's record said that it had come, and how far it had by what was acknowledged.
    Stood(Stood),
}

/// How far a lock has come: it is taken with a token, then let go, and the next token is greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stand {
    pub(crate) token: u64,
    pub(crate) is_free: bool,
}

/// A look at a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stood {
    /// What its record told; where there was none, less than any.
    pub(crate) told: Stand,
    /// What had been acknowledged by then.
    pub(crate) acked: Stand,
}

/// What all handles of a lock know of it.
#[derive(Debug, Default)]
struct Progress {
    /// The last that was acknowledged.
    acked: Stand,
    /// The first look that found less than was acknowledged, or else the last one.
    look: Stood,
}

/// What all handles of a structure share here: its name, the time its windows are of, and how far its lock has come.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) sort: Sort,
    pub(crate) name: String,
    at: SystemTime,
    /// How long a lock is waited for by who writes.
    patience: Duration,
    lock: Arc<Mutex<Progress>>,
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
    /// One that is taken, and one that is only looked at: what a look sees must not change how the other is taken.
    Lock(Lock, Lock),
}

/// Opens by whatever options, a structure that is there, or makes it.
macro_rules! opened {
    ($options:expr, $store:expr, $name:expr, $create:expr) => {
        if $create { $options.open_or_create($store, $name).await } else { $options.open($store, $name).await }
    };
}

/// What a value adds to a sum: to the same value always the same, and within what one call may add, 2^31 hits and 2^56. They are as if drawn, so that one that is
/// missing, or is there twice, is not made up for by others that are unknown: where *k* are, by accident once in 2^(31 - *k*). Of three at a time a test holds it.
pub(crate) fn amount(sort: Sort, value: u64) -> u64 {
    let bits = if sort == Sort::Visitors { 31 } else { 40 };
    Rng::with_seed(value).u64(1..1 << bits)
}

impl Subject {
    /// Of a server that keeps what it acknowledged, or of one that does not. Where it does, who writes to a lock does not wait for it: a wait would ride out a restart,
    /// and make a record that is gone anew before anybody looked.
    pub(crate) fn new(sort: Sort, name: String, keeps: bool) -> Subject {
        let patience = if keeps { Duration::ZERO } else { PATIENCE };
        Subject { sort, name, at: SystemTime::now(), patience, lock: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
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
            Sort::Lock => {
                let options = Lock::options().lease(LEASE);
                Of::Lock(options.clone().open(store, name).await?, options.open(store, name).await?)
            }
        };
        Ok(Handle { subject: self.clone(), of })
    }
}

impl Handle {
    /// Writes a value that is no other's, less than [`VALUES_MAX`].
    pub(crate) async fn write(&self, value: u64) -> Result<()> {
        let text = value.to_string();
        let amount = amount(self.subject.sort, value);
        match &self.of {
            Of::Counter(counter) => counter.add(amount as i64).await,
            Of::Set(set) => set.add([&text]).await,
            Of::Array(array) => array.push([&text]).await,
            Of::Table(table) => table.put(&text, &text).await,
            Of::Queue(queue) => queue.push(&text).await,
            Of::Stack(stack) => stack.push(&text).await,
            Of::Log(log) => log.put(&text).await,
            Of::Records(records) => records.set(value, &[("there", true.into())]).await,
            Of::Visitors(visitors) => visitors.hit_at(self.subject.at, amount).await,
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
            Of::Lock(lock, looker) => self.take(lock, looker, self.subject.patience).await,
        }
    }

    /// Looks at the lock, takes it and lets it go; its tokens grow for ever.
    async fn take(&self, lock: &Lock, looker: &Lock, patience: Duration) -> Result<()> {
        self.look(looker).await?;
        let before = self.subject.lock().acked.token;
        let guard = lock.acquire(patience).await?;
        let token = guard.fencing_token();
        if token <= before {
            return Err(Error::new(ErrorKind::Corrupt, format!("a token fell from {before} to {token}")));
        }
        self.subject.lock().acked = Stand { token, is_free: false };
        if guard.release().await? == Released::Released {
            self.subject.lock().acked = Stand { token, is_free: true };
        }
        Ok(())
    }

    /// Takes note of what a lock's record tells. Tokens that grow show nothing of it: whoever makes a record that is gone anew takes one from the clock.
    async fn look(&self, looker: &Lock) -> Result<()> {
        let acked = self.subject.lock().acked;
        let told = match looker.status().await {
            Ok(LockStatus::Free { token }) => Stand { token, is_free: true },
            Ok(LockStatus::Held(holder)) => Stand { token: holder.token, is_free: false },
            Ok(_) => Stand::default(),
            // Who takes the lock is not told so.
            Err(error) if error.kind() == ErrorKind::Lost => Stand::default(),
            Err(error) => return Err(error),
        };
        let mut progress = self.subject.lock();
        if progress.look.told >= progress.look.acked {
            progress.look = Stood { told, acked };
        }
        Ok(())
    }

    /// What is there. Takes it out of queues and stacks.
    pub(crate) async fn read(&self) -> Result<Held> {
        match &self.of {
            Of::Counter(counter) => {
                let sum = counter.get().await?;
                let wrong = |_| Error::new(ErrorKind::Corrupt, format!("nobody added up to {sum}"));
                u64::try_from(sum).map(Held::Sum).map_err(wrong)
            }
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
            Of::Visitors(visitors) => visitors.get_at(self.subject.at).await.map(Held::Sum),
            Of::Unique(unique) => {
                let period = unique.period_of(self.subject.at)?;
                let count = unique.count_in(period).await?.visitors;
                let ids: Vec<String> = (0..VALUES_MAX).map(|value| value.to_string()).collect();
                let said = unique.are_new_in(period, &ids).await?;
                let known = (0..).zip(said).filter(|(_, novelty)| *novelty == Novelty::Known);
                Ok(Held::Known { count, values: known.map(|(value, _)| value).collect() })
            }
            Of::Hash(hash) => values(hash.entries().await?.into_iter().map(|(_, value)| value)),
            Of::Members(set) => values(set.members().await?),
            Of::Sorted(set) => values(set.entries().await?.into_iter().map(|(member, _)| member)),
            Of::Lookup(table) => {
                let found = table.get(LookupKey::from(0u64)).await?;
                let value = found.map(|found| value_of(&found.fields[0])).transpose()?;
                Ok(Held::Last(value))
            }
            // Every taking looks at what it has, and holds its token against those before.
            Of::Lock(lock, looker) => {
                self.take(lock, looker, PATIENCE).await?;
                Ok(Held::Stood(self.subject.lock().look))
            }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn no_three_amounts_make_up_others() {
        let values: Vec<u64> = (0..32).chain([VALUES_MAX - 1]).collect();
        for (sort, most) in [(Sort::Visitors, 1 << 31), (Sort::Counter, 1 << 40), (Sort::FastCounter, 1 << 40)] {
            // Sums of up to three, by the values that make them up.
            let mut sums = BTreeMap::from([(0, vec![])]);
            for _ in 0..3 {
                for (sum, made) in sums.clone() {
                    for &value in values.iter().filter(|&value| made.last().is_none_or(|last| last < value)) {
                        let amount = amount(sort, value);
                        assert!((1..most).contains(&amount), "{sort:?}: {value} is {amount}");
                        let more: Vec<u64> = made.iter().copied().chain([value]).collect();
                        let others = sums.insert(sum + amount, more.clone());
                        assert!(others.as_ref().is_none_or(|others| *others == more), "{sort:?}: {others:?}, {more:?}");
                    }
                }
            }
            assert_eq!(sums.len(), 1 + 33 + 528 + 5_456);
        }
    }
}
