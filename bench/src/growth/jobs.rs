//! The ops whose cost must not grow, and how a structure of a size is made.

use std::time::Duration;

use larder_core::{Key, Op, PutMode, StoreRef, Ttl};
use larder_structures::lock::Released;
use larder_structures::{Array, Counter, EventLog, Lock, Queue, Set, Stack, Table, Visitors};
use tokio::task::JoinSet;

use crate::Result;
use crate::drive::Step;

/// No run outlasts it.
const LEASE: Duration = Duration::from_secs(3600);
/// As many as there may be: the server copies a value that it appends to, so what an append costs is a matter of a shard's size, some 10 KB
/// at a million elements.
const SHARDS: u16 = 1024;
/// As many as visitors take.
const VISITORS_SHARDS: u16 = 256;
/// Elements that are filled in at a time.
const FILL: usize = 10_000;
/// Items that are pushed at a time.
const PUSH: usize = 1_000;
/// Tasks that fill at the same time.
const TASKS: usize = 2_048;
/// Entries that are put again and again, spread over the table, whatever its size: what one costs is also a matter of how often it was put.
const HOT: usize = 1_000;
/// Fewer where each leaves work behind the caller, which is dropped where there is too much of it.
const TABLE_TASKS: usize = 48;

/// An op whose cost is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    LockCycle,
    CounterAdd,
    SetAdd,
    SetRemove,
    Hit,
    HitVisitor,
    LogPut,
    ArrayPush,
    TablePut,
    TablePutNew,
    QueuePush,
    QueueTake,
    StackTake,
}

impl Job {
    pub(super) const ALL: [Job; 13] = [
        Job::LockCycle,
        Job::CounterAdd,
        Job::SetAdd,
        Job::SetRemove,
        Job::Hit,
        Job::HitVisitor,
        Job::LogPut,
        Job::ArrayPush,
        Job::TablePut,
        Job::TablePutNew,
        Job::QueuePush,
        Job::QueueTake,
        Job::StackTake,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Job::LockCycle => "lock acquire and release, of so many locks",
            Job::CounterAdd => "counter add, to so high a count",
            Job::SetAdd => "set add of 1 member",
            Job::SetRemove => "set remove of 1 member",
            Job::Hit => "visitors hit",
            Job::HitVisitor => "visitors hit by a visitor's id",
            Job::LogPut => "log put of 1 event",
            Job::ArrayPush => "array push of 1 element",
            Job::TablePut => "table put of an entry that is there",
            Job::TablePutNew => "table put of a new entry, and its remove, all settled",
            Job::QueuePush => "queue push of 1 item",
            Job::QueueTake => "queue push, claim and ack",
            Job::StackTake => "stack push, claim and ack",
        }
    }

    /// Makes a structure of so many elements.
    pub(super) async fn begin(self, store: &StoreRef, elements: usize) -> Result<Work> {
        let name = format!("{self:?}-{elements}");
        let work = match self {
            Job::LockCycle => {
                other_locks(store, &name, elements).await?;
                Work::LockCycle(Lock::options().lease(LEASE).open(store, &name).await?)
            }
            Job::CounterAdd => {
                let counter = Counter::open_or_create(store, &name).await?;
                counter.add(i64::try_from(elements)?).await?;
                Work::CounterAdd(counter)
            }
            Job::SetAdd | Job::SetRemove => {
                let set = Set::options().shards(SHARDS).open_or_create(store, &name).await?;
                set.add((0..elements).map(member)).await?;
                if self == Job::SetAdd { Work::SetAdd(set, elements) } else { Work::SetRemove(set, elements) }
            }
            Job::Hit | Job::HitVisitor => {
                let visitors =
                    Visitors::options().period(LEASE).shards(VISITORS_SHARDS).open_or_create(store, &name).await?;
                if self == Job::Hit {
                    visitors.hit_many(elements as u64).await?;
                    Work::Hit(visitors)
                } else {
                    all_at_once(elements, TASKS, |at| hit_visitor(visitors.clone(), at)).await?;
                    Work::HitVisitor(visitors, elements)
                }
            }
            Job::LogPut => {
                let log = EventLog::open_or_create(store, &name).await?;
                let now_ms = log.now_ms();
                for first in (0..elements).step_by(FILL) {
                    log.put_all((first..first + FILL.min(elements)).map(|at| (now_ms, member(at)))).await?;
                }
                Work::LogPut(log)
            }
            Job::ArrayPush => {
                let array = Array::options().shards(SHARDS).open_or_create(store, &name).await?;
                array.push((0..elements).map(member)).await?;
                Work::ArrayPush(array, elements)
            }
            Job::TablePut | Job::TablePutNew => {
                let table = Table::options().shards(SHARDS).open_or_create(store, &name).await?;
                all_at_once(elements, TABLE_TASKS, |at| put(table.clone(), at)).await?;
                if self == Job::TablePut { Work::TablePut(table, elements) } else { Work::TablePutNew(table, elements) }
            }
            Job::QueuePush | Job::QueueTake => {
                let queue = Queue::open_or_create(store, &name).await?;
                for first in (0..elements).step_by(PUSH) {
                    queue.push_all((first..first + PUSH.min(elements)).map(member)).await?;
                }
                if self == Job::QueuePush { Work::QueuePush(queue) } else { Work::QueueTake(queue) }
            }
            Job::StackTake => {
                let stack = Stack::open_or_create(store, &name).await?;
                for first in (0..elements).step_by(PUSH) {
                    stack.push_all((first..first + PUSH.min(elements)).map(member)).await?;
                }
                Work::StackTake(stack)
            }
        };
        Ok(work)
    }
}

/// Records of as many locks as stand beside the one that is used.
async fn other_locks(store: &StoreRef, name: &str, elements: usize) -> Result<()> {
    for first in (0..elements).step_by(FILL) {
        let put = |number| {
            let key = Key::new(format!("L.{name}-{number}.m"))?;
            Ok(Op::put(key, PutMode::Set, vec![b'l'; 55], Ttl::Never))
        };
        let batch: Result<_> = (first..first + FILL.min(elements)).map(put).collect();
        for reply in store.run(larder_core::Ctx::default(), batch?).await {
            reply?;
        }
    }
    Ok(())
}

async fn hit_visitor(visitors: Visitors, at: usize) -> larder_core::Result<()> {
    visitors.hit_visitor(member(at)).await
}

async fn put(table: Table, at: usize) -> larder_core::Result<()> {
    table.put(member(at), member(at)).await
}

/// Does something for each element, so many at the same time.
async fn all_at_once<F>(elements: usize, at_once: usize, act: impl Fn(usize) -> F) -> Result<()>
where
    F: Future<Output = larder_core::Result<()>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for at in 0..elements {
        if tasks.len() >= at_once
            && let Some(done) = tasks.join_next().await
        {
            done??;
        }
        tasks.spawn(act(at));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

fn member(at: usize) -> [u8; 8] {
    (at as u64).to_be_bytes()
}

/// A structure at work.
#[derive(Clone)]
pub(super) enum Work {
    LockCycle(Lock),
    CounterAdd(Counter),
    SetAdd(Set, usize),
    SetRemove(Set, usize),
    Hit(Visitors),
    HitVisitor(Visitors, usize),
    LogPut(EventLog),
    ArrayPush(Array, usize),
    TablePut(Table, usize),
    TablePutNew(Table, usize),
    QueuePush(Queue),
    QueueTake(Queue),
    StackTake(Stack),
}

impl Step for Work {
    async fn step(&mut self) -> Result<()> {
        match self {
            Work::LockCycle(lock) => {
                let guard = lock.try_acquire().await?.ok_or("nobody else wants this lock")?;
                if guard.release().await? != Released::Released {
                    return Err("a lock was lost".into());
                }
            }
            Work::CounterAdd(counter) => counter.add(1).await?,
            // One that is there: the size stays what it is.
            Work::SetAdd(set, elements) => set.add([member(fastrand::usize(..*elements))]).await?,
            // One that is not: the same.
            Work::SetRemove(set, elements) => set.remove([member(*elements + fastrand::usize(..*elements))]).await?,
            Work::Hit(visitors) => visitors.hit().await?,
            // A new one each time: the handle remembers those it has counted, and asks nobody.
            Work::HitVisitor(visitors, elements) => {
                visitors.hit_visitor(member(*elements)).await?;
                *elements += 1;
            }
            Work::LogPut(log) => log.put(member(0)).await?,
            Work::ArrayPush(array, elements) => array.push([member(fastrand::usize(..*elements))]).await?,
            Work::TablePut(table, elements) => {
                let at = fastrand::usize(..HOT) * (*elements / HOT);
                table.put(member(at), member(at)).await?;
            }
            // A new key each time, so that each shard of the list is appended to in turn. It goes again: the size stays what it is.
            Work::TablePutNew(table, elements) => {
                let key = member(*elements);
                *elements += 1;
                table.put(key, key).await?;
                table.settle().await;
                if !table.remove(key).await? {
                    return Err("a table has lost an entry".into());
                }
                table.settle().await;
            }
            Work::QueuePush(queue) => queue.push(member(0)).await?,
            Work::QueueTake(queue) => {
                queue.push(member(0)).await?;
                queue.claim(LEASE).await?.ok_or("a queue has lost its items")?.ack().await?;
            }
            Work::StackTake(stack) => {
                stack.push(member(0)).await?;
                stack.claim(LEASE).await?.ok_or("a stack has lost its items")?.ack().await?;
            }
        }
        Ok(())
    }
}
