//! The structures that are worked on: how each is opened, written with a number of the test's own, and read whole.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use larder::lookup::Rows;
use larder::records::Schema;
use larder::{
    Array, Cache, Counter, EventLog, Lock, PackedRecords, PackedTable, Queue, Result, Set, ShardedHash, ShardedSet,
    ShardedSortedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};

/// Of visitors and unique visitors: longer than any run.
const PERIOD: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Unique visitors are made for so many.
const EXPECTED: u64 = 100_000;
/// Of packed records: two bits each.
const SHARD_BYTES: usize = 16 * 1024;
/// More than the ids of any run.
const RECORDS: u64 = 1 << 22;
/// No more than stand in a shard.
const RECORDS_A_SHARD: usize = 1 << 15;
/// The row of a packed table that all builds write.
const ROW: u64 = 7;

/// What a structure holds.
pub(crate) enum There {
    /// These numbers.
    Ids(Vec<u64>),
    /// So many of what was written.
    Count(u64),
}

/// What a handle says of its own acknowledged writes that a failover took: as the guarantees have it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tells {
    /// The handle that made them says so when it is read, whatever it and others have written since.
    Always,
    /// They go unnoticed: a number that others have outgrown, members of a server's own set, what nobody had read or taken yet.
    Unseen,
}

/// A structure of one kind, under work by all tasks at once.
pub(crate) trait Subject: Sized {
    const KIND: &'static str;
    const TELLS: Tells;
    async fn open(store: &StoreRef, name: &str, may_create: bool) -> Result<Self>;
    async fn write(&self, id: u64) -> Result<()>;
    async fn read(&self) -> Result<There>;
}

/// A moment in the period that all is counted in.
fn moment() -> SystemTime {
    static MOMENT: OnceLock<SystemTime> = OnceLock::new();
    *MOMENT.get_or_init(SystemTime::now)
}

pub(crate) fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn numbers(all: impl IntoIterator<Item = impl AsRef<[u8]>>) -> There {
    There::Ids(all.into_iter().map(|text| number(text.as_ref())).collect())
}

/// A fast counter: the exact one's type, told apart here.
pub(crate) struct FastCounter(Counter);

macro_rules! subject {
    ($Type:ty, $kind:literal, $tells:expr, $options:expr, |$handle:ident, $id:ident| $write:expr, $read:expr) => {
        impl Subject for $Type {
            const KIND: &'static str = $kind;
            const TELLS: Tells = $tells;

            async fn open(store: &StoreRef, name: &str, may_create: bool) -> Result<Self> {
                let options = $options;
                if may_create { options.open_or_create(store, name).await } else { options.open(store, name).await }
            }

            async fn write(&self, $id: u64) -> Result<()> {
                let $handle = self;
                $write
            }

            async fn read(&self) -> Result<There> {
                let $handle = self;
                Ok($read)
            }
        }
    };
}

subject!(
    Counter,
    "counter",
    Tells::Always,
    Counter::options(),
    |counter, _id| counter.add(1).await,
    There::Count(u64::try_from(counter.get().await?).unwrap())
);
subject!(
    Set,
    "set",
    Tells::Always,
    Set::options().shards(3),
    |set, id| set.add([id.to_string()]).await,
    numbers(set.members().await?.iter())
);
subject!(
    Table,
    "table",
    Tells::Always,
    Table::options(),
    |table, id| table.put(id.to_string(), id.to_string()).await,
    numbers(table.keys().await?)
);
subject!(
    Array,
    "array",
    Tells::Always,
    Array::options().shards(2),
    |array, id| array.push([id.to_string()]).await,
    numbers(array.elements().await?)
);
subject!(
    EventLog,
    "log",
    Tells::Unseen,
    EventLog::options(),
    |log, id| log.put(id.to_string()).await,
    numbers(log.fetch(..).await?.with_gaps().0.into_iter().map(|event| event.bytes))
);
subject!(
    Visitors,
    "visitors",
    Tells::Unseen,
    Visitors::options().period(PERIOD),
    |visitors, _id| visitors.hit_at(moment(), 1).await,
    There::Count(visitors.get_at(moment()).await?)
);
subject!(
    UniqueVisitors,
    "unique",
    Tells::Unseen,
    UniqueVisitors::options().period(PERIOD).ids(larder::IdKind::Integer).expected(EXPECTED),
    |unique, id| unique.add_in(unique.period_of(moment())?, [id]).await.map(|_| ()),
    There::Count(unique.count_in(unique.period_of(moment())?).await?.stored)
);
subject!(
    ShardedSet,
    "sharded",
    Tells::Unseen,
    ShardedSet::options().shards(6),
    |sharded, id| sharded.add([id.to_string()]).await.map(|_| ()),
    numbers(sharded.members().await?)
);
subject!(
    Queue,
    "queue",
    Tells::Unseen,
    Queue::options(),
    |queue, id| queue.push(id.to_string()).await,
    There::Count(queue.len().await?)
);
subject!(
    Stack,
    "stack",
    Tells::Unseen,
    Stack::options(),
    |stack, id| stack.push(id.to_string()).await,
    There::Count(stack.len().await?)
);

impl Subject for FastCounter {
    const KIND: &'static str = "fast";
    const TELLS: Tells = Tells::Unseen;

    async fn open(store: &StoreRef, name: &str, may_create: bool) -> Result<Self> {
        let options = Counter::options().fast();
        let opened =
            if may_create { options.open_or_create(store, name).await } else { options.open(store, name).await };
        opened.map(FastCounter)
    }

    async fn write(&self, _id: u64) -> Result<()> {
        self.0.add(1).await
    }

    async fn read(&self) -> Result<There> {
        Ok(There::Count(u64::try_from(self.0.get().await?).unwrap()))
    }
}

subject!(
    ShardedHash,
    "hash",
    Tells::Unseen,
    ShardedHash::options().shards(6),
    |hash, id| hash.set([(id.to_string(), id.to_string())]).await.map(|_| ()),
    There::Ids(hash.entries().await?.iter().map(|(field, value)| same(number(field), number(value))).collect())
);
subject!(
    ShardedSortedSet,
    "sorted",
    Tells::Unseen,
    ShardedSortedSet::options().shards(6),
    |sorted, id| sorted.set([(id.to_string(), id as f64)]).await.map(|_| ()),
    {
        let best = sorted.top(10).await?;
        let entries = sorted.entries().await?;
        best.iter().for_each(|(member, score)| _ = same(number(member), *score as u64));
        There::Ids(entries.iter().map(|(member, score)| same(number(member), *score as u64)).collect())
    }
);

/// A number that was written twice in one write.
fn same(one: u64, other: u64) -> u64 {
    assert_eq!(one, other, "what was written together");
    one
}

impl Subject for PackedRecords {
    const KIND: &'static str = "records";
    const TELLS: Tells = Tells::Unseen;

    /// Makes all shards that will be written to: one whose beginnings a failover took would be lost for good.
    async fn open(store: &StoreRef, name: &str, may_create: bool) -> Result<Self> {
        let schema = Schema::parse(["there:bit", "made:bit"])?;
        let options = PackedRecords::options().schema(schema).shard_bytes(SHARD_BYTES);
        if !may_create {
            return options.open(store, name).await;
        }
        let records = options.open_or_create(store, name).await?;
        let made = [("made", true.into())];
        records.set_many((0..RECORDS).step_by(RECORDS_A_SHARD).map(|id| (id, &made[..]))).await?;
        Ok(records)
    }

    async fn write(&self, id: u64) -> Result<()> {
        self.set(id, &[("there", true.into())]).await
    }

    async fn read(&self) -> Result<There> {
        Ok(There::Count(self.aggregate(&["there"]).await?.count(&[true.into()])))
    }
}

impl Subject for PackedTable {
    const KIND: &'static str = "lookup";
    const TELLS: Tells = Tells::Unseen;

    async fn open(store: &StoreRef, name: &str, may_create: bool) -> Result<Self> {
        if may_create { PackedTable::open_or_create(store, name).await } else { PackedTable::open(store, name).await }
    }

    /// Takes the place of what was built before.
    async fn write(&self, id: u64) -> Result<()> {
        let mut rows = Rows::new(["id"])?;
        rows.push_id(ROW, [id.to_string()])?;
        self.build(rows).await.map(drop)
    }

    /// What was built last.
    async fn read(&self) -> Result<There> {
        let row = self.get(ROW).await?.expect("every build has it");
        Ok(There::Ids(vec![number(&row.fields[0])]))
    }
}

impl Subject for Cache {
    const KIND: &'static str = "cache";
    const TELLS: Tells = Tells::Unseen;

    /// Nothing expires while the run lasts. A lease of which nobody knows whether it was taken holds others up for a second.
    async fn open(store: &StoreRef, name: &str, may_create: bool) -> Result<Self> {
        let (ttl, lease) = (Duration::from_secs(24 * 3_600), Duration::from_secs(1));
        let options = Cache::options().ttl(ttl).lease(lease).wait(2 * lease);
        if may_create { options.open_or_create(store, name).await } else { options.open(store, name).await }
    }

    /// Not used: what is made, and read, is the world's to note.
    async fn write(&self, _id: u64) -> Result<()> {
        Ok(())
    }

    async fn read(&self) -> Result<There> {
        Ok(There::Count(0))
    }
}

impl Subject for Lock {
    const KIND: &'static str = "lock";
    const TELLS: Tells = Tells::Unseen;

    async fn open(store: &StoreRef, name: &str, _may_create: bool) -> Result<Self> {
        Lock::open(store, name).await
    }

    /// Not used: who holds a lock, and with which token, is the world's to note.
    async fn write(&self, _id: u64) -> Result<()> {
        Ok(())
    }

    async fn read(&self) -> Result<There> {
        Ok(There::Count(0))
    }
}
