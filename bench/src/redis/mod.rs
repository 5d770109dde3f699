//! The Redis client against the crates `redis` and `fred`, and structures against those of other crates, of Python's libraries, and
//! the bare commands; on one server.

mod clients;
mod hands;
mod jobs;
mod natives;
mod python;

use std::sync::Arc;

use larder_core::{Op, PutMode, StoreExt, StoreRef, Ttl};
use larder_store_redis::{Config, RedisStore};
use larder_testkit::redis::{RedisOptions, RedisServer};
use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::drive_tasks;
use crate::machine::{self, Machine};
use crate::memcached::clients::{Larder, Tasks};
use crate::memcached::load::{KEYS, Load, Verb, shares};
use crate::memcached::{name, runtime};
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::{Plan, Result};
use clients::{Fred, Redis};
use python::Python;

const TASKS: [usize; 3] = [1, 64, 512];

const OURS: &str = "larder";
const MULTIPLEXED: &str = "redis (multiplexed)";
const MANAGER: &str = "redis (manager)";
const FRED: &str = "fred";

/// What all contests here share.
struct Ground<'a> {
    runtime: Runtime,
    url: String,
    store: StoreRef,
    load: Arc<Load>,
    plan: &'a Plan,
    progress: &'a Progress,
}

pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let machine = Machine::read();
    let server = RedisServer::start(plan.redis, &RedisOptions::new());
    let runtime = runtime()?;
    let store: StoreRef = Arc::new(runtime.block_on(RedisStore::connect(Config::from_url(&server.url())?))?);
    let (described, python) = (store.profile().store.clone(), Python::start(plan.python, &server)?);
    let load = Arc::new(Load::new("larde", "plain")?);
    let ground = Ground { runtime, url: server.url(), store, load, plan, progress };
    ground.runtime.block_on(fill(&ground))?;
    let mut contests = Vec::new();
    for verb in [Verb::Get, Verb::Set] {
        for tasks in TASKS.into_iter().filter(|&tasks| plan.wants(&name(verb, tasks))) {
            contests.push(hold(&ground, verb, tasks)?);
        }
    }
    contests.extend(jobs::hold_all(&ground, &python)?);
    let how = format!(
        "{described} on loopback without persistence, {KEYS} keys, values of 100 bytes, one connection a client, tokio with {} workers, {} rounds \
         of {:?} each. Python: {}.",
        machine::cores(),
        plan.rounds,
        plan.window,
        python.described()
    );
    Ok(Findings { section: Section::Redis, how, machine, contests, pools: Vec::new() })
}

/// Writes all values: ours behind headers, under keys of their own, and the peers'.
async fn fill(ground: &Ground<'_>) -> Result<()> {
    let mut conn = clients::multiplexed(&ground.url).await?;
    for at in 0..KEYS {
        let (key, value) = (ground.load.keys[at].clone(), ground.load.values[at].clone());
        ground.store.run_one(larder_core::Ctx::default(), Op::put(key, PutMode::Set, value, Ttl::Never)).await?;
        let mut set = redis::cmd("SET");
        set.arg(&ground.load.text_keys[at]).arg(&ground.load.values[at][..]);
        set.exec_async(&mut conn).await?;
    }
    Ok(())
}

fn hold(ground: &Ground<'_>, verb: Verb, tasks: usize) -> Result<Contest> {
    let load = || ground.load.clone();
    let connect = async {
        let multiplexed = Redis::new(clients::multiplexed(&ground.url).await?, load());
        let manager = Redis::new(clients::manager(&ground.url).await?, load());
        Ok::<_, crate::Error>((multiplexed, manager, Fred::connect(&ground.url, load()).await?))
    };
    let (multiplexed, manager, fred) = ground.runtime.block_on(connect)?;
    let contestants = vec![
        contestant(ground, OURS, Larder::over(ground.store.clone(), load()), verb, tasks),
        contestant(ground, MULTIPLEXED, multiplexed, verb, tasks),
        contestant(ground, MANAGER, manager, verb, tasks),
        contestant(ground, FRED, fred, verb, tasks),
    ];
    let limit = (verb == Verb::Get && tasks == 512).then_some(Limit::AtLeast(0.95));
    let goal = Goal { ours: OURS, against: vec![MULTIPLEXED, MANAGER, FRED], limit };
    contest::hold(ground.progress, &name(verb, tasks), Unit::OpsPerSecond, ground.plan.rounds, contestants, &[goal])
}

fn contestant<'a, C: Tasks>(
    ground: &'a Ground<'_>,
    label: &'static str,
    client: C,
    verb: Verb,
    tasks: usize,
) -> Contestant<'a> {
    let mut shares = shares(&Arc::new(client), verb, tasks);
    let window = ground.plan.window;
    Contestant::new(label, String::new(), move || drive_tasks(&ground.runtime, &mut shares, window))
}
