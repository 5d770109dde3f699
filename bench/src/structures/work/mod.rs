//! Structures at work: each opened for its job, and its op, again and again. A file a structure.

mod array;
mod cache;
mod counter;
mod lock;
mod log;
mod queue;
mod set;
mod table;
mod visitors;

use std::sync::LazyLock;
use std::time::Duration;

use larder_core::StoreRef;

use super::jobs::Job;
use crate::Result;
use crate::drive::Step;

/// No run outlasts it.
const LEASE: Duration = Duration::from_secs(3600);
/// Elements of a structure that is read.
const MEMBERS: usize = 100;
/// The value of an entry.
const VALUE_BYTES: usize = 100;

/// Made before anything is measured: what a caller makes his members of is no work of a structure.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| (0..MEMBERS).map(|at| format!("member:{at:03}")).collect());

fn member(at: usize) -> &'static str {
    &NAMES[at % MEMBERS]
}

/// A structure at work. Clones work on the same handle.
#[derive(Clone)]
pub(super) enum Work {
    Array(array::Work),
    Cache(cache::Work),
    Counter(counter::Work),
    Lock(lock::Work),
    Log(log::Work),
    Queue(queue::Work),
    Set(set::Work),
    Table(table::Work),
    Visitors(visitors::Work),
}

impl Work {
    /// Opens what is needed, and does the op a few times, so that the handle is in use.
    pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
        use Job::*;
        let mut work = match job {
            CounterAdd | CounterFirstAdd | CounterGet | CounterReset | FastAdd | FastGet => {
                Work::Counter(counter::begin(job, store, name).await?)
            }
            LockCycle | LockTurns | LockRenew | LockStatus => Work::Lock(lock::begin(job, store, name).await?),
            SetAdd | SetAddMany | SetRemove | SetMembers | SetHas | SetStat | SetCompact => {
                Work::Set(set::begin(job, store, name).await?)
            }
            ArrayPush | ArrayRemove | ArrayElements | ArrayChange | ArrayChangeShards => {
                Work::Array(array::begin(job, store, name).await?)
            }
            CacheHit | CacheRebuild => Work::Cache(cache::begin(job, store, name).await?),
            LogPut | LogFetch => Work::Log(log::begin(job, store, name).await?),
            VisitorsHit | VisitorsHitNamed | VisitorsGet | VisitorsInterpolated => {
                Work::Visitors(visitors::begin(job, store, name).await?)
            }
            TablePut | TablePutNew | TableGet | TableHas | TableGetMany | TableKeys => {
                Work::Table(table::begin(job, store, name).await?)
            }
            QueuePush | QueueTake | QueuePop | StackPush | StackTake | StackPop => {
                Work::Queue(queue::begin(job, store, name).await?)
            }
        };
        for _ in 0..3 {
            work.step().await?;
        }
        Ok(work)
    }
}

impl Step for Work {
    async fn step(&mut self) -> Result<()> {
        let is_right = match self {
            Work::Array(work) => work.step().await?,
            Work::Cache(work) => work.step().await?,
            Work::Counter(work) => work.step().await?,
            Work::Lock(work) => work.step().await?,
            Work::Log(work) => work.step().await?,
            Work::Queue(work) => work.step().await?,
            Work::Set(work) => work.step().await?,
            Work::Table(work) => work.step().await?,
            Work::Visitors(work) => work.step().await?,
        };
        if is_right { Ok(()) } else { Err("a structure answered what it must not".into()) }
    }
}
