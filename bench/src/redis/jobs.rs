//! The same job done by structures of ours, by those of other crates, by Python's libraries, and by the bare commands.

use super::hands::{Bare, Hand};
use super::python::Python;
use super::{Ground, OURS, clients};
use crate::Result;
use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::drive_tasks;

const BARE: &str = "bare commands";
const RSLOCK: &str = "rslock";
const DISTKIT: &str = "distkit";
const POTTERY: &str = "pottery (Python)";
const WALRUS: &str = "walrus (Python)";

/// The most time over the bare commands.
const RATIO_MAX: f64 = 1.15;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    LockCycle,
    /// The exact counter: each add counts once, whatever happens to replies.
    CounterAdd,
    /// The server's arithmetic.
    FastAdd,
    SetAdd,
    SetRead,
    UniqueAdd,
    UniqueCount,
}

impl Job {
    const ALL: [Job; 7] =
        [Job::LockCycle, Job::CounterAdd, Job::FastAdd, Job::SetAdd, Job::SetRead, Job::UniqueAdd, Job::UniqueCount];

    fn name(self) -> &'static str {
        match self {
            Job::LockCycle => "lock and unlock",
            Job::CounterAdd => "counter add, exact",
            Job::FastAdd => "counter add, fast",
            Job::SetAdd => "set add of 1 member",
            Job::SetRead => "set read (100 members)",
            Job::UniqueAdd => "unique visitors, add 1",
            Job::UniqueCount => "unique visitors, count",
        }
    }

    /// What anybody would send who has no structures; a count asks as many sets as ours has shards.
    fn bare(self) -> &'static str {
        match self {
            Job::LockCycle => "SET NX PX; EVALSHA",
            Job::CounterAdd => "EVALSHA: compares, SET",
            Job::FastAdd => "INCRBY",
            Job::SetAdd => "SADD",
            Job::SetRead => "SMEMBERS",
            Job::UniqueAdd => "SADD",
            Job::UniqueCount => "SISMEMBER and SCARD of as many sets",
        }
    }

    /// What the Python side calls it; `None` where it has no such thing.
    fn python(self, library: &str) -> Option<&'static str> {
        Some(match (self, library) {
            (Job::LockCycle, _) => "lock",
            (Job::FastAdd, _) => "counter",
            (Job::SetAdd, _) => "set_add",
            (Job::SetRead, _) => "set_read",
            (Job::UniqueAdd, _) => "unique_add",
            (Job::UniqueCount, _) => "unique_count",
            (Job::CounterAdd, _) => return None,
        })
    }
}

/// All jobs, by one task and by many.
pub(super) fn hold_all(ground: &Ground<'_>, python: &Python) -> Result<Vec<Contest>> {
    let mut contests = Vec::new();
    for tasks in [1, 64] {
        for job in Job::ALL {
            let name = if tasks == 1 { job.name().to_owned() } else { format!("{}, {tasks} tasks", job.name()) };
            if ground.plan.wants(&name) {
                contests.push(hold(ground, python, &name, job, tasks)?);
            }
        }
    }
    Ok(contests)
}

fn hold(ground: &Ground<'_>, python: &Python, name: &str, job: Job, tasks: usize) -> Result<Contest> {
    let runtime = &ground.runtime;
    let stem = format!("{job:?}-{tasks}");
    let ours = runtime.block_on(Hand::ours(&ground.store, job, &stem, tasks))?;
    let bare = runtime.block_on(async {
        let shards = ours.first().ok_or("nobody works")?.shards().await?;
        Bare::all(clients::multiplexed(&ground.url).await?, job, &stem, tasks, shards).await
    })?;
    let mut contestants =
        vec![contestant(ground, OURS, String::new(), ours), contestant(ground, BARE, job.bare().to_owned(), bare)];
    if job == Job::LockCycle {
        let locks = runtime.block_on(Hand::rslock(&ground.url, &stem, tasks))?;
        contestants.push(contestant(ground, RSLOCK, String::new(), locks));
    }
    if let Some(hands) = runtime.block_on(async { Hand::distkit(&ground.url, job, &stem, tasks).await })? {
        contestants.push(contestant(ground, DISTKIT, String::new(), hands));
    }
    for (label, library) in [(POTTERY, "pottery"), (WALRUS, "walrus")] {
        if let (1, Some(job)) = (tasks, job.python(library)) {
            let window = ground.plan.window;
            if let Some(run) = python.contestant(library, job, window)? {
                contestants.push(Contestant::new(label, String::new(), run));
            }
        }
    }
    let limit = |limit: f64| (tasks == 1).then_some(Limit::AtMost(limit));
    let mut goals = vec![Goal { ours: OURS, against: vec![BARE], limit: limit(RATIO_MAX) }];
    if matches!(job, Job::LockCycle | Job::CounterAdd | Job::FastAdd) {
        goals.push(Goal { ours: OURS, against: vec![RSLOCK, DISTKIT], limit: Some(Limit::AtMost(1.0)) });
    }
    contest::hold(ground.progress, name, Unit::MicrosPerOp, ground.plan.rounds, contestants, &goals)
}

/// The wall time of an op; of many tasks at once, the time between two that end.
fn contestant<'a, S: crate::drive::Step>(
    ground: &'a Ground<'_>,
    label: &'static str,
    detail: String,
    mut hands: Vec<S>,
) -> Contestant<'a> {
    Contestant::new(label, detail, move || Ok(1e6 / drive_tasks(&ground.runtime, &mut hands, ground.plan.window)?))
}
