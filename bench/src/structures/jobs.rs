//! What each structure is asked to do, op by op.

use std::sync::Arc;
use std::time::Duration;

use larder_core::StoreRef;
use larder_structures::lock::{LockGuard, Released};
use larder_structures::{Array, Cache, Counter, EventLog, Lock, Queue, Set, Stack, Table, Visitors};

use crate::Result;
use crate::drive::Step;

/// No run outlasts it.
const LEASE: Duration = Duration::from_secs(3600);
/// Members of the set that is read.
const MEMBERS: usize = 100;
/// After so many pushes an array is emptied.
const ARRAY_PUSHES_MAX: usize = 1_000;
/// Visitors that are named beforehand: so many that they meet each of 256 shards.
const NAMED: u64 = 4_000;
/// Items that are pushed at a time for those who take one at a time.
const PUSHED: usize = 1_000;
/// The value that a cache holds.
const VALUE_BYTES: usize = 100;

/// An op of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    CounterAdd,
    CounterGet,
    FastAdd,
    LockCycle,
    LockRenew,
    SetAdd,
    SetMembers,
    SetHas,
    ArrayPush,
    ArrayElements,
    CacheHit,
    LogPut,
    LogFetch,
    VisitorsHit,
    VisitorsHitNamed,
    VisitorsGet,
    TablePut,
    TableGet,
    QueuePush,
    QueueTake,
    StackPush,
    StackPop,
}

impl Job {
    pub(super) const ALL: [Job; 22] = [
        Job::CounterAdd,
        Job::CounterGet,
        Job::FastAdd,
        Job::LockCycle,
        Job::LockRenew,
        Job::SetAdd,
        Job::SetMembers,
        Job::SetHas,
        Job::ArrayPush,
        Job::ArrayElements,
        Job::CacheHit,
        Job::LogPut,
        Job::LogFetch,
        Job::VisitorsHit,
        Job::VisitorsHitNamed,
        Job::VisitorsGet,
        Job::TablePut,
        Job::TableGet,
        Job::QueuePush,
        Job::QueueTake,
        Job::StackPush,
        Job::StackPop,
    ];
    /// Those that many tasks may do on one handle at the same time.
    pub(super) const SHARED: [Job; 5] = [Job::CounterAdd, Job::FastAdd, Job::SetAdd, Job::LogPut, Job::VisitorsHit];

    pub(super) fn name(self) -> &'static str {
        match self {
            Job::CounterAdd => "counter add",
            Job::CounterGet => "counter get (16 slots)",
            Job::FastAdd => "fast counter add",
            Job::LockCycle => "lock acquire and release",
            Job::LockRenew => "lock renew",
            Job::SetAdd => "set add of 1 member",
            Job::SetMembers => "set members (100)",
            Job::SetHas => "set has (of 100)",
            Job::ArrayPush => "array push of 1 element",
            Job::ArrayElements => "array elements (100)",
            Job::CacheHit => "cache hit of 100 bytes",
            Job::LogPut => "log put of 1 event",
            Job::LogFetch => "log fetch (100 events)",
            Job::VisitorsHit => "visitors hit",
            Job::VisitorsHitNamed => "visitors hit that names a new one",
            Job::VisitorsGet => "visitors get (100 named)",
            Job::TablePut => "table put of an existing entry",
            Job::TableGet => "table get",
            Job::QueuePush => "queue push of 1 item",
            Job::QueueTake => "queue claim and ack",
            Job::StackPush => "stack push of 1 item",
            Job::StackPop => "stack pop",
        }
    }

    /// The round trips that the documentation promises a handle in use.
    pub(super) fn round_trips(self) -> usize {
        match self {
            Job::LockCycle | Job::LogFetch | Job::QueueTake | Job::StackPop => 2,
            _ => 1,
        }
    }

    /// Opens what is needed, and does the op a few times, so that the handle is in use.
    pub(super) async fn begin(self, store: &StoreRef, name: &str) -> Result<Work> {
        let mut work = match self {
            Job::CounterAdd | Job::CounterGet => {
                let counter = Counter::open_or_create(store, name).await?;
                counter.add(1).await?;
                if self == Job::CounterAdd { Work::CounterAdd(counter) } else { Work::CounterGet(counter) }
            }
            Job::FastAdd => Work::CounterAdd(Counter::options().fast().open_or_create(store, name).await?),
            Job::LockCycle => Work::LockCycle(Lock::options().lease(LEASE).open(store, name).await?),
            Job::LockRenew => {
                let lock = Lock::options().lease(LEASE).open(store, name).await?;
                Work::LockRenew(Arc::new(lock.try_acquire().await?.ok_or("a new lock is held")?))
            }
            Job::SetAdd => Work::SetAdd(Set::open_or_create(store, name).await?, 0),
            Job::SetMembers | Job::SetHas => {
                let set = Set::open_or_create(store, name).await?;
                set.add((0..MEMBERS).map(member)).await?;
                if self == Job::SetMembers { Work::SetMembers(set) } else { Work::SetHas(set, 0) }
            }
            Job::CacheHit => {
                let cache = Cache::options().ttl(LEASE).open_or_create(store, name).await?;
                cache.get_or_rebuild("k", async || Ok::<_, larder_core::Error>([b'v'; VALUE_BYTES].to_vec())).await?;
                Work::CacheHit(cache)
            }
            Job::ArrayPush => Work::ArrayPush(Array::open_or_create(store, name).await?, 0),
            Job::ArrayElements => {
                let array = Array::open_or_create(store, name).await?;
                array.push((0..MEMBERS).map(member)).await?;
                Work::ArrayElements(array)
            }
            Job::LogPut | Job::LogFetch => {
                // One chunk, however long it takes.
                let log = EventLog::options().chunk(LEASE * 24).open_or_create(store, name).await?;
                log.put_all((0..MEMBERS).map(|at| (log.now_ms(), member(at)))).await?;
                if self == Job::LogPut { Work::LogPut(log, 0) } else { Work::LogFetch(log) }
            }
            Job::TablePut | Job::TableGet => {
                let table = Table::open_or_create(store, name).await?;
                table.put("k", [b'v'; VALUE_BYTES]).await?;
                table.settle().await;
                if self == Job::TablePut { Work::TablePut(table) } else { Work::TableGet(table) }
            }
            Job::QueuePush => Work::QueuePush(Queue::open_or_create(store, name).await?),
            Job::QueueTake => Work::QueueTake(Queue::open_or_create(store, name).await?, 0),
            Job::StackPush => Work::StackPush(Stack::open_or_create(store, name).await?),
            Job::StackPop => Work::StackPop(Stack::open_or_create(store, name).await?, 0),
            Job::VisitorsHit | Job::VisitorsHitNamed | Job::VisitorsGet => {
                // One window lasts longer than the run, and its shards stay small. Each was hit before the measurement begins.
                let shards = if self == Job::VisitorsHitNamed { 256 } else { 1 };
                let options = Visitors::options().period(30 * 24 * LEASE).shards(shards);
                let visitors = options.open_or_create(store, name).await?;
                visitors.hit().await?;
                let named = if self == Job::VisitorsHitNamed { NAMED } else { MEMBERS as u64 };
                for at in 0..named {
                    visitors.hit_visitor(at.to_le_bytes()).await?;
                }
                match self {
                    Job::VisitorsHit => Work::VisitorsHit(visitors),
                    Job::VisitorsHitNamed => Work::VisitorsHitNamed(visitors, NAMED),
                    _ => Work::VisitorsGet(visitors),
                }
            }
        };
        for _ in 0..3 {
            work.step().await?;
        }
        Ok(work)
    }
}

/// A structure at work. Clones work on the same handle.
#[derive(Clone)]
pub(super) enum Work {
    CounterAdd(Counter),
    CounterGet(Counter),
    LockCycle(Lock),
    LockRenew(Arc<LockGuard>),
    SetAdd(Set, usize),
    SetMembers(Set),
    SetHas(Set, usize),
    CacheHit(Cache),
    ArrayPush(Array, usize),
    ArrayElements(Array),
    LogPut(EventLog, usize),
    LogFetch(EventLog),
    VisitorsHit(Visitors),
    VisitorsHitNamed(Visitors, u64),
    VisitorsGet(Visitors),
    TablePut(Table),
    TableGet(Table),
    QueuePush(Queue),
    /// And how many items it has.
    QueueTake(Queue, usize),
    StackPush(Stack),
    StackPop(Stack, usize),
}

fn member(at: usize) -> String {
    format!("member:{:03}", at % MEMBERS)
}

impl Work {
    /// A step of a queue or a stack; false if it answered what it must not.
    async fn take_or_push(&mut self) -> Result<bool> {
        Ok(match self {
            Work::QueuePush(queue) => {
                queue.push(member(0)).await?;
                true
            }
            Work::QueueTake(queue, left) => {
                if *left == 0 {
                    queue.push_all((0..PUSHED).map(member)).await?;
                    *left = PUSHED;
                }
                *left -= 1;
                queue.claim(LEASE).await?.ok_or("a queue has lost its items")?.ack().await?;
                true
            }
            Work::StackPush(stack) => {
                stack.push(member(0)).await?;
                true
            }
            Work::StackPop(stack, left) => {
                if *left == 0 {
                    stack.push_all((0..PUSHED).map(member)).await?;
                    *left = PUSHED;
                }
                *left -= 1;
                stack.pop().await?.is_some_and(|item| item.starts_with(b"member:"))
            }
            _ => false,
        })
    }
}

impl Step for Work {
    async fn step(&mut self) -> Result<()> {
        let is_right = match self {
            Work::CounterAdd(counter) => {
                counter.add(1).await?;
                true
            }
            Work::CounterGet(counter) => counter.get().await? == 1,
            Work::LockCycle(lock) => {
                let guard = lock.try_acquire().await?.ok_or("nobody else wants this lock")?;
                guard.release().await? == Released::Released
            }
            Work::LockRenew(guard) => {
                guard.renew().await?;
                true
            }
            Work::SetAdd(set, at) => {
                *at += 1;
                set.add([member(*at)]).await?;
                true
            }
            Work::SetMembers(set) => {
                // Each is looked at: a list that nobody reads would be no work.
                let members = set.members().await?;
                members.iter().filter(|member| member.starts_with(b"member:")).count() == MEMBERS
            }
            Work::SetHas(set, at) => {
                *at += 1;
                set.has(member(*at)).await?
            }
            Work::VisitorsHit(visitors) => {
                visitors.hit().await?;
                true
            }
            Work::VisitorsHitNamed(visitors, at) => {
                *at += 1;
                visitors.hit_visitor(at.to_le_bytes()).await?;
                true
            }
            Work::VisitorsGet(visitors) => visitors.current().await? == 1 + MEMBERS as u64,
            Work::CacheHit(cache) => {
                let hit = cache.get_or_rebuild("k", async || Err::<Vec<u8>, _>("it is there".to_owned().into()));
                let hit: Result<_> = hit.await;
                hit?.value.len() == VALUE_BYTES
            }
            Work::ArrayPush(array, at) => {
                *at += 1;
                array.push([member(*at)]).await?;
                // Now and then it begins anew: it would be full after some ten thousand pushes.
                if at.is_multiple_of(ARRAY_PUSHES_MAX) {
                    array.remove((0..MEMBERS).map(member)).await?;
                }
                true
            }
            Work::ArrayElements(array) => array.elements().await?.len() == MEMBERS,
            Work::TablePut(table) => {
                table.put("k", [b'v'; VALUE_BYTES]).await?;
                true
            }
            Work::TableGet(table) => table.get("k").await?.is_some_and(|value| value.len() == VALUE_BYTES),
            Work::LogPut(log, at) => {
                *at += 1;
                log.put(member(*at)).await?;
                true
            }
            Work::LogFetch(log) => {
                let events = log.fetch(..).await?.whole()?;
                events.iter().filter(|event| event.bytes.starts_with(b"member:")).count() == MEMBERS
            }
            _ => self.take_or_push().await?,
        };
        if is_right { Ok(()) } else { Err("a structure answered what it must not".into()) }
    }
}
