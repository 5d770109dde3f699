//! What an op costs as its structure grows from a thousand elements to a million: it should not notice.

mod jobs;

use std::sync::Arc;

use larder_core::StoreRef;
use larder_store_memcached::{Config, MemcachedStore};
use larder_testkit::servers::Memcached;
use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::drive_tasks;
use crate::machine::Machine;
use crate::memcached::{runtime, server_version};
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::{Plan, Result};
use jobs::{Job, Work};

/// The sizes, and how they are called.
const SIZES: [(usize, &str); 4] =
    [(1_000, "1,000 elements"), (10_000, "10,000 elements"), (100_000, "100,000 elements"), (1_000_000, LARGEST)];
const LARGEST: &str = "1,000,000 elements";
/// The most time of the largest over the smallest.
const RATIO_MAX: f64 = 1.15;

pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let runtime = runtime()?;
    let mut contests = Vec::new();
    let mut version = String::new();
    for job in Job::ALL.into_iter().filter(|job| plan.wants(job.name())) {
        // A server a job: what one left behind is not the next one's weather.
        let server = Memcached::start(plan.server, &["-m", "2048"]);
        version = server_version(&server)?;
        let config = Config::from_url(&server.url())?;
        let store: StoreRef = Arc::new(runtime.block_on(MemcachedStore::connect(config))?);
        contests.push(hold(&runtime, plan, progress, &store, job)?);
    }
    let how = format!(
        "memcached {version} on loopback and one connection, a handle and a task; a structure of each size stands beside the \
         others, and their ops take turns; {} rounds of {:?} each. Claim and ack are timed together with the push of the item that they \
         take: so a queue and a stack keep their size.",
        plan.rounds, plan.window
    );
    Ok(Findings { section: Section::Growth, how, machine: Machine::read(), contests, pools: Vec::new() })
}

fn hold(runtime: &Runtime, plan: &Plan, progress: &Progress, store: &StoreRef, job: Job) -> Result<Contest> {
    let mut contestants = Vec::with_capacity(SIZES.len());
    for (elements, label) in SIZES {
        progress.at(&format!("{}: filling {label}", job.name()));
        let mut work: Vec<Work> = vec![runtime.block_on(job.begin(store, elements))?];
        let run = move || Ok(1e6 / drive_tasks(runtime, &mut work, plan.window)?);
        contestants.push(Contestant::new(label, String::new(), run));
    }
    let goal = Goal { ours: LARGEST, against: vec![SIZES[0].1], limit: Some(Limit::AtMost(RATIO_MAX)) };
    contest::hold(progress, job.name(), Unit::MicrosPerOp, plan.rounds, contestants, &[goal])
}
