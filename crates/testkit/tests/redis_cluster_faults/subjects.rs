//! The structures that are worked on: how each is opened, written with a number of the test's own, and read whole.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use larder::{
    Array, Counter, EventLog, Lock, Queue, Result, Set, ShardedSet, Stack, StoreRef, Table, UniqueVisitors, Visitors,
};

/// Of visitors and unique visitors: longer than any run.
const PERIOD: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Unique visitors are made for so many.
const EXPECTED: u64 = 100_000;

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
