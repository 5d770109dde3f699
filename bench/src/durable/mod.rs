//! The store in a folder, against a bare log and against Redis with a file.

mod log;
mod whole;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::{Ctx, Key, Op, PutMode, Reply, Run, Store, StoreExt, StoreRef, Ttl, Want};
use larder_store_durable::{Options, Sync};
use larder_store_redis::{Config, RedisStore};
use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::{Step, drive_tasks, drive_threads};
use crate::machine::Machine;
use crate::memcached::runtime;
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::stats::quantile;
use crate::{Plan, Result};
use log::BareLog;
pub(crate) use whole::{bytes_in, overwrite};

const KEY_BYTES: usize = 16;
const VALUE_BYTES: usize = 100;
/// Writers write over keys of so many, so that their number does not decide.
const KEYS: u64 = 100_000;
/// Those that are read: all in the cache of blocks.
const KEYS_READ: u64 = 200_000;
/// Writes reach the disk in stalls; rounds are long and few.
const ROUNDS_MAX: usize = 7;
const WINDOW_MIN: Duration = Duration::from_millis(500);
const CLIENTS: usize = 32;
const IN_FLIGHT: usize = 16;

const OURS: &str = "larder, sync=always";
const OURS_EVERY: &str = "larder, sync=every:100ms";
const LOG: &str = "append and fdatasync";
const REDIS: &str = "Redis, appendfsync always";
const REDIS_EVERY: &str = "Redis, appendfsync everysec";

/// What all contests here share.
struct Ground<'a> {
    runtime: Runtime,
    folder: tempfile::TempDir,
    redis: RedisServer,
    redis_every: RedisServer,
    plan: &'a Plan,
}

pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let machine = Machine::read();
    let every = RedisOptions::new().arg("appendonly", "yes").arg("appendfsync", "everysec");
    let ground = Ground {
        runtime: runtime()?,
        folder: tempfile::tempdir()?,
        redis: RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().appendonly()),
        redis_every: RedisServer::start(RedisVersion::Redis7, &every),
        plan,
    };
    let how = format!(
        "Keys of {KEY_BYTES} bytes, values of {VALUE_BYTES}, {KEYS} keys written over; ours in the process, Redis {} over loopback through our client, the files of all on the same disk; \
         {} rounds of {:?} each. {} items where a whole store is measured.",
        ground.redis.info("server", "redis_version"),
        ground.rounds(),
        ground.window(),
        plan.items
    );
    let mut contests = Vec::new();
    for (unit, tasks) in [
        (Unit::OpsPerSecond, CLIENTS),
        (Unit::Millis, CLIENTS),
        (Unit::OpsPerSecond, CLIENTS * IN_FLIGHT),
        (Unit::Millis, CLIENTS * IN_FLIGHT),
    ] {
        if plan.wants(&write_name(unit, tasks)) {
            contests.push(writes(&ground, progress, unit, tasks)?);
        }
    }
    if plan.wants(GET) {
        contests.push(reads(&ground, progress)?);
    }
    if plan.wants(WHOLE) {
        contests.extend(whole::measure(&ground, progress)?);
    }
    Ok(Findings { section: Section::Durable, how, machine, contests, pools: Vec::new() })
}

const GET: &str = "get, 2 threads";
const WHOLE: &str = "a whole store";

impl Ground<'_> {
    fn rounds(&self) -> usize {
        self.plan.rounds.min(ROUNDS_MAX)
    }

    fn window(&self) -> Duration {
        self.plan.window.max(WINDOW_MIN)
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn folder_for(&self, name: &str) -> Result<PathBuf> {
        let path = self.place(name);
        std::fs::create_dir(&path)?;
        Ok(path)
    }
}

fn write_name(unit: Unit, tasks: usize) -> String {
    let flight = if tasks == CLIENTS { String::new() } else { format!(", {IN_FLIGHT} in flight each") };
    let what = if unit == Unit::Millis { "p99 of set" } else { "set" };
    format!("{what}, {CLIENTS} clients{flight}")
}

/// Writers that each wait for their write.
fn writes(ground: &Ground<'_>, progress: &Progress, unit: Unit, tasks: usize) -> Result<Contest> {
    let name = write_name(unit, tasks);
    let log = Target::Log(BareLog::open(&ground.folder_for(&format!("log {name}"))?)?);
    let mut contestants = vec![writers(ground, LOG, unit, tasks, &log)];
    for (label, sync) in [(OURS, Sync::Always), (OURS_EVERY, Sync::Every(Duration::from_millis(100)))] {
        let store = Options::new(ground.place(&format!("{label} {name}"))).sync(sync).open()?;
        contestants.push(writers(ground, label, unit, tasks, &Target::Store(Arc::new(store))));
    }
    for (label, server) in [(REDIS, &ground.redis), (REDIS_EVERY, &ground.redis_every)] {
        let store = ground.runtime.block_on(RedisStore::connect(Config::from_url(&server.url())?))?;
        contestants.push(writers(ground, label, unit, tasks, &Target::Store(Arc::new(store))));
    }
    let goals = goals(unit, tasks);
    contest::hold(progress, &name, unit, ground.rounds(), contestants, &goals)
}

/// What must be reached; latencies are only shown.
fn goals(unit: Unit, tasks: usize) -> Vec<Goal> {
    let goal = |ours, against: &[&'static str], least| Goal {
        ours,
        against: against.to_vec(),
        limit: (unit == Unit::OpsPerSecond).then_some(Limit::AtLeast(least)),
    };
    if tasks > CLIENTS {
        return vec![goal(OURS, &[REDIS], 0.7), goal(OURS_EVERY, &[REDIS_EVERY], 0.7)];
    }
    let mut goals = vec![goal(OURS, &[LOG], 0.75), goal(OURS, &[REDIS], 1.0), goal(OURS_EVERY, &[REDIS_EVERY], 1.0)];
    if unit == Unit::OpsPerSecond {
        goals.extend([goal(OURS, &[], 70_000.0), goal(OURS_EVERY, &[], 250_000.0)]);
    }
    goals
}

fn writers<'a>(
    ground: &'a Ground<'_>,
    label: &'static str,
    unit: Unit,
    tasks: usize,
    target: &Target,
) -> Contestant<'a> {
    let writer = |task| Writer { target: target.clone(), rng: fastrand::Rng::with_seed(task as u64), ms: Vec::new() };
    let mut writers: Vec<Writer> = (0..tasks).map(writer).collect();
    Contestant::new(label, String::new(), move || {
        writers.iter_mut().for_each(|writer| writer.ms.clear());
        let rate = drive_tasks(&ground.runtime, &mut writers, ground.window())?;
        if unit == Unit::OpsPerSecond {
            return Ok(rate);
        }
        let mut ms: Vec<f64> = writers.iter().flat_map(|writer| writer.ms.iter().copied()).collect();
        ms.sort_by(f64::total_cmp);
        Ok(quantile(&ms, 0.99))
    })
}

/// What is written to.
#[derive(Clone)]
enum Target {
    Store(StoreRef),
    Log(BareLog),
}

/// One client, one write at a time.
struct Writer {
    target: Target,
    rng: fastrand::Rng,
    /// How long each write took.
    ms: Vec<f64>,
}

impl Step for Writer {
    async fn step(&mut self) -> Result<()> {
        let (key, value) = (key(self.rng.u64(..KEYS))?, Bytes::from_static(&[7; VALUE_BYTES]));
        let from = Instant::now();
        match &self.target {
            Target::Log(log) => {
                let mut record = key.as_bytes().to_vec();
                record.extend_from_slice(&value);
                log.append(record.into()).await?;
            }
            Target::Store(store) => {
                let op = Op::put(key, PutMode::Set, value, Ttl::Never);
                match store.run_one(Ctx::default(), op).await? {
                    Reply::Stored => {}
                    other => return Err(format!("a write was answered by {other:?}").into()),
                }
            }
        }
        self.ms.push(from.elapsed().as_secs_f64() * 1e3);
        Ok(())
    }
}

fn key(number: u64) -> Result<Key> {
    Ok(Key::new(format!("k{number:0width$}", width = KEY_BYTES - 1))?)
}

/// Reads of what is in memory.
fn reads(ground: &Ground<'_>, progress: &Progress) -> Result<Contest> {
    let store = Options::new(ground.place(GET)).sync(Sync::Never).cache_bytes(1 << 30).open()?;
    whole::fill(&ground.runtime, &store, KEYS_READ)?;
    let get = |rng: &mut fastrand::Rng| {
        let op = Op::get(key(rng.u64(..KEYS_READ))?, Want::VALUE);
        match store.run(Ctx::default(), [op].into_iter().collect()) {
            Run::Ready(replies) => match replies.into_iter().next() {
                Some(Ok(Reply::Item(item))) if item.value.len() == VALUE_BYTES => Ok(()),
                other => Err(format!("a read was answered by {other:?}").into()),
            },
            _ => Err("a read waited for something".into()),
        }
    };
    let contestant = Contestant::new("larder", String::new(), || drive_threads(2, ground.window(), get));
    let goal = Goal { ours: "larder", against: Vec::new(), limit: Some(Limit::AtLeast(500_000.0)) };
    contest::hold(progress, GET, Unit::OpsPerSecond, ground.rounds(), vec![contestant], &[goal])
}
