//! Each structure's cost over the raw ops it needs: the same batches, recorded from it, through the same store.

mod jobs;
mod observed;
mod raw;
mod work;

use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memcached::{Config, MemcachedStore};
use larder_store_memory::MemoryStore;
use larder_store_redis::RedisStore;
use larder_testkit::redis::{RedisOptions, RedisServer};
use larder_testkit::servers::Memcached;
use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::{Step, drive_tasks};
use crate::machine::{self, Machine};
use crate::memcached::{runtime, server_version};
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::{Plan, Result};
use jobs::Job;
use observed::Told;
use raw::{Raw, Recorded, Recorder};
use work::Work;

const STRUCTURE: &str = "structure";
const RAW: &str = "raw ops";
const MEMCACHED: &str = "memcached";
const REDIS: &str = "Redis";
/// The most time over the raw ops, on memcached and on Redis.
const RATIO_MAX: f64 = 1.15;
const TASKS: usize = 64;
/// Recordings of an op until one stands alone: now and then a set looks after itself meanwhile.
const RECORDINGS_MAX: usize = 5;

/// What all contests here share.
struct Ground<'a> {
    runtime: Runtime,
    plan: &'a Plan,
    progress: &'a Progress,
}

pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let machine = Machine::read();
    let server = Memcached::start(plan.server, &["-m", "256"]);
    let ground = Ground { runtime: runtime()?, plan, progress };
    let config = Config::from_url(&server.url())?;
    let memcached: StoreRef = Arc::new(ground.runtime.block_on(MemcachedStore::connect(config))?);
    let redis_server = RedisServer::start(plan.redis, &RedisOptions::new());
    let config = larder_store_redis::Config::from_url(&redis_server.url())?;
    let redis: StoreRef = Arc::new(ground.runtime.block_on(RedisStore::connect(config))?);
    let memory: StoreRef = Arc::new(MemoryStore::new());
    let mut contests = Vec::new();
    let stores = [(&memcached, MEMCACHED), (&redis, REDIS), (&memory, "memory")];
    let alone = stores.iter().flat_map(|&(store, name)| Job::ALL.map(|job| (store, name, job, 1)));
    let shared = stores[..2].iter().flat_map(|&(store, name)| Job::SHARED.map(|job| (store, name, job, TASKS)));
    for (store, store_name, job, tasks) in alone.chain(shared) {
        let name = name(store_name, job, tasks);
        if plan.wants(&name) {
            let limit = (store_name != "memory" && tasks == 1).then_some(Limit::AtMost(RATIO_MAX));
            contests.push(hold(&ground, store, &name, job, tasks, limit)?);
        }
    }
    for (store, store_name) in [(&memcached, MEMCACHED), (&memory, "memory")] {
        for told in Told::ALL {
            let name = told.name(store_name);
            if plan.wants(&name) {
                contests.push(observed::hold(&ground, store, &name, told)?);
            }
        }
    }
    let how = format!(
        "memcached {} and {} on loopback and one connection, and the memory store; tokio with {} workers; {} rounds of {:?} each. \
         Many tasks share one handle, whose ops may share round trips; their raw ops do not, and have a key a task where they are conditional.",
        server_version(&server)?,
        redis.profile().store,
        machine::cores(),
        plan.rounds,
        plan.window
    );
    Ok(Findings { section: Section::Structures, how, machine, contests, pools: Vec::new() })
}

fn name(store_name: &str, job: Job, tasks: usize) -> String {
    match tasks {
        1 => format!("{store_name}: {}", job.name()),
        _ => format!("{store_name}: {}, {tasks} tasks", job.name()),
    }
}

fn hold(
    ground: &Ground<'_>,
    store: &StoreRef,
    name: &str,
    job: Job,
    tasks: usize,
    limit: Option<Limit>,
) -> Result<Contest> {
    let round_trips = match job.round_trips() {
        1 => "1 round trip".to_owned(),
        many => format!("{many} round trips"),
    };
    let (batches, raws, work) = ground.runtime.block_on(prepare(store, job, tasks))?;
    let ops: usize = batches.iter().map(Recorded::ops).sum();
    let ops = if ops == 1 { "1 op".to_owned() } else { format!("{ops} ops") };
    let contestants =
        vec![contestant(ground, STRUCTURE, round_trips, vec![work; tasks]), contestant(ground, RAW, ops, raws)];
    let goal = Goal { ours: STRUCTURE, against: vec![RAW], limit };
    contest::hold(ground.progress, name, Unit::MicrosPerOp, ground.plan.rounds, contestants, &[goal])
}

/// The wall time of an op; of many tasks at once, the time between two that end.
fn contestant<'a, S: Step>(
    ground: &'a Ground<'_>,
    label: &'static str,
    detail: String,
    mut steps: Vec<S>,
) -> Contestant<'a> {
    Contestant::new(label, detail, move || Ok(1e6 / drive_tasks(&ground.runtime, &mut steps, ground.plan.window)?))
}

/// Records what the op sends, and holds it to the round trips that are documented; then a fresh structure, and the raw ops.
async fn prepare(store: &StoreRef, job: Job, tasks: usize) -> Result<(Vec<Recorded>, Vec<Raw>, Work)> {
    let recorder = Recorder::new(store.clone());
    let recorded: StoreRef = recorder.clone();
    let mut example = Work::begin(job, &recorded, &format!("recorded-{job:?}-{tasks}")).await?;
    let mut batches = Vec::new();
    for _ in 0..RECORDINGS_MAX {
        recorder.take();
        example.step().await?;
        batches = recorder.take();
        // Now and then a compaction of what was put over travels along: its token is good once, so it cannot be sent again.
        let carries = job == Job::TablePut && batches.iter().any(Recorded::is_conditional);
        if batches.len() == job.round_trips() && !carries {
            break;
        }
    }
    if batches.len() != job.round_trips() {
        return Err(
            format!("{}: {} round trips, documented are {}", job.name(), batches.len(), job.round_trips()).into()
        );
    }
    let mut raws = Vec::with_capacity(tasks);
    for task in 0..tasks {
        raws.push(Raw::new(store, &batches, task, tasks).await?);
    }
    let work = Work::begin(job, store, &format!("measured-{job:?}-{tasks}")).await?;
    Ok((batches, raws, work))
}
