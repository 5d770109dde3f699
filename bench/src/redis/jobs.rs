//! The same job done by structures of ours, by those of other crates, by Python's libraries, and by the bare commands.

use super::hands::{Bare, Hand};
use super::python::Python;
use super::{Ground, OURS, clients};
use crate::Result;
use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::drive_tasks;

const BARE: &str = "bare commands";
/// The same by a task that starts another between two commands, as peers do which renew what they hold.
const BARE_AND_TASK: &str = "bare commands, a task started between";
/// The same with what a fencing token takes: a record that outlives its holder, and a comparison before each write.
const FENCED: &str = "bare scripts that keep a fencing token, a task started between";
/// The same with what tells a loss: a mark that each write looks for.
const GUARDED: &str = "bare scripts that look before they write";
/// The same of a read, which asks for the mark beside.
const GUARDED_READ: &str = "bare commands that read the mark, too";
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
    /// Of a sharded hash, one field.
    HashSet,
    HashGet,
    /// Of a sharded set, a member that is new.
    MemberAdd,
    MemberHas,
    /// Of a sharded sorted set, a member that is there.
    ScoreSet,
    /// Of packed records, one of 9 bits.
    RecordSet,
    RecordGet,
    /// Of a packed table, by number.
    Lookup,
}

impl Job {
    const ALL: [Job; 15] = [
        Job::LockCycle,
        Job::CounterAdd,
        Job::FastAdd,
        Job::SetAdd,
        Job::SetRead,
        Job::UniqueAdd,
        Job::UniqueCount,
        Job::HashSet,
        Job::HashGet,
        Job::MemberAdd,
        Job::MemberHas,
        Job::ScoreSet,
        Job::RecordSet,
        Job::RecordGet,
        Job::Lookup,
    ];

    fn name(self) -> &'static str {
        match self {
            Job::LockCycle => "lock and unlock",
            Job::CounterAdd => "counter add, exact",
            Job::FastAdd => "counter add, fast",
            Job::SetAdd => "set add of 1 member",
            Job::SetRead => "set read (100 members)",
            Job::UniqueAdd => "unique visitors, add 1",
            Job::UniqueCount => "unique visitors, count",
            Job::HashSet => "sharded hash, set of 1 field",
            Job::HashGet => "sharded hash, get of 1 field",
            Job::MemberAdd => "sharded set, add of 1 member",
            Job::MemberHas => "sharded set, has 1 member",
            Job::ScoreSet => "sharded sorted set, score of 1 member",
            Job::RecordSet => "packed records, set of 1",
            Job::RecordGet => "packed records, get of 1",
            Job::Lookup => "packed table, get of 1 row",
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
            Job::HashSet => "HSET",
            Job::HashGet => "HGET",
            Job::MemberAdd => "SADD",
            Job::MemberHas => "SISMEMBER",
            Job::ScoreSet => "ZADD",
            Job::RecordSet => "BITFIELD SET",
            Job::RecordGet => "BITFIELD GET",
            Job::Lookup => "GET of as many bytes",
        }
    }

    /// The same of who tells a loss, where that is another than the bare commands: whose, and what it sends.
    fn guarded(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Job::LockCycle => (FENCED, "EVALSHA, EVALSHA: compare, SET PX"),
            Job::FastAdd => (GUARDED, "EVALSHA: GET, SET"),
            Job::UniqueAdd | Job::MemberAdd => (GUARDED, "EVALSHA: SISMEMBER, SADD"),
            Job::HashSet => (GUARDED, "EVALSHA: HEXISTS, HSET"),
            Job::RecordSet => (GUARDED, "EVALSHA: GETRANGE, BITFIELD"),
            Job::SetAdd => (GUARDED, "EVALSHA: GETRANGE, APPEND"),
            Job::HashGet => (GUARDED_READ, "HMGET of both"),
            Job::MemberHas => (GUARDED_READ, "SMISMEMBER of both"),
            Job::RecordGet => (GUARDED_READ, "BITFIELD GET of both"),
            _ => return None,
        })
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
            _ => return None,
        })
    }
}

/// All jobs, by one task and by many.
pub(super) fn hold_all(ground: &Ground<'_>, python: &Python) -> Result<Vec<Contest>> {
    let mut contests = Vec::new();
    for tasks in [1, 64] {
        for job in Job::ALL {
            let name = if tasks == 1 { job.name().to_owned() } else { format!("{}, {tasks} tasks", job.name()) };
            // Of many counts of thousands of commands each, no window sees enough.
            let fits = tasks == 1 || job != Job::UniqueCount;
            if fits && ground.plan.wants(&name) {
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
    let likeness = runtime.block_on(ours.first().ok_or("nobody works")?.likeness())?;
    let bare = |stem: &str| {
        let bare = async { Bare::all(clients::multiplexed(&ground.url).await?, job, stem, tasks, likeness).await };
        runtime.block_on(bare)
    };
    let mut contestants = vec![
        contestant(ground, OURS, String::new(), ours),
        contestant(ground, BARE, job.bare().to_owned(), bare(&stem)?),
    ];
    if job == Job::LockCycle {
        let busy = bare(&format!("{stem}-task"))?.into_iter().map(Bare::starting_a_task).collect();
        contestants.push(contestant(ground, BARE_AND_TASK, String::new(), busy));
        let locks = runtime.block_on(Hand::rslock(&ground.url, &stem, tasks))?;
        contestants.push(contestant(ground, RSLOCK, String::new(), locks));
    }
    if let Some((label, detail)) = job.guarded() {
        let mut guarded = Vec::with_capacity(tasks);
        for bare in bare(&format!("{stem}-guarded"))? {
            let bare = if job == Job::LockCycle { bare.starting_a_task() } else { bare };
            guarded.push(runtime.block_on(bare.guarded())?.ok_or("a job that nobody guards")?);
        }
        contestants.push(contestant(ground, label, detail.to_owned(), guarded));
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
    if let Some((label, _)) = job.guarded() {
        goals.push(Goal { ours: OURS, against: vec![label], limit: limit(RATIO_MAX) });
    }
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
