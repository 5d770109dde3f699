//! The memcached client against the crates `memcache` and `async-memcached`, on one server.

pub(crate) mod clients;
pub(crate) mod load;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use larder_testkit::servers::Memcached;
use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::{drive_tasks, drive_threads};
use crate::machine::{self, Machine};
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::{Plan, Result};
use clients::{AsyncMemcached, Larder, MemcacheExpTasks, MemcacheExpThreads, MemcacheThreads, Tasks, Threads};
use load::{KEYS, Load, Verb, shares};

const TASKS: [usize; 3] = [1, 64, 512];
const POOLS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];
/// Rounds that choose a pool size.
const POOL_ROUNDS: usize = 5;

const OURS: &str = "larder";
/// On the one connection that carries writes, without the lane for reads.
const OURS_ON_ONE: &str = "larder, connections=1";
const OURS_ON_TWO: &str = "larder, connections=2";

/// The peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    AsyncMemcached,
    MemcacheExpTasks,
    MemcacheExpThreads,
    MemcacheThreads,
}

impl Peer {
    const ALL: [Peer; 4] =
        [Peer::AsyncMemcached, Peer::MemcacheExpTasks, Peer::MemcacheExpThreads, Peer::MemcacheThreads];

    fn label(self) -> &'static str {
        match self {
            Peer::AsyncMemcached => "async-memcached",
            Peer::MemcacheExpTasks => "memcache (exp, tokio)",
            Peer::MemcacheExpThreads => "memcache (exp, threads)",
            Peer::MemcacheThreads => "memcache (sync, threads)",
        }
    }
}

/// What all contests here share.
struct Ground<'a> {
    runtime: Runtime,
    addr: SocketAddr,
    load: Arc<Load>,
    plan: &'a Plan,
}

pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let machine = Machine::read();
    let server = Memcached::start(plan.server, &["-m", "256", "-c", "4096"]);
    let version = server_version(&server)?;
    let ground =
        Ground { runtime: runtime()?, addr: server.addr(), load: Arc::new(Load::new("bench", "bench")?), plan };
    ground.load.fill(ground.addr)?;
    let how = format!(
        "memcached {version} on loopback (-m 256 -c 4096), {} keys, values of 100 bytes, tokio with {} workers, {} rounds of {:?} each.",
        KEYS,
        machine::cores(),
        plan.rounds,
        plan.window
    );
    let (mut contests, mut pools) = (Vec::new(), Vec::new());
    for verb in [Verb::Get, Verb::Set] {
        for tasks in TASKS.into_iter().filter(|&tasks| plan.wants(&name(verb, tasks))) {
            let chosen = choose_pools(&ground, progress, verb, tasks, &mut pools)?;
            contests.push(hold(&ground, progress, verb, tasks, &chosen)?);
        }
    }
    Ok(Findings { section: Section::Memcached, how, machine, contests, pools })
}

/// As many workers as cores, as tokio does it.
pub(crate) fn runtime() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(machine::cores()).enable_all().build()?)
}

/// What the server says it is.
pub(crate) fn server_version(server: &Memcached) -> Result<String> {
    let stats = server.stats("");
    let version = stats.lines().find_map(|line| line.strip_prefix("STAT version "));
    Ok(version.ok_or("the server does not say its version")?.trim().to_owned())
}

pub(crate) fn name(verb: Verb, tasks: usize) -> String {
    let verb = if verb == Verb::Get { "get" } else { "set" };
    if tasks == 1 { format!("{verb}, 1 task") } else { format!("{verb}, {tasks} tasks") }
}

/// Tries every sensible pool size of every peer, and names the fastest of each.
fn choose_pools(
    ground: &Ground<'_>,
    progress: &Progress,
    verb: Verb,
    tasks: usize,
    pools: &mut Vec<Contest>,
) -> Result<Vec<(Peer, usize)>> {
    let sizes: Vec<usize> = POOLS.into_iter().filter(|&size| size <= tasks).collect();
    if sizes.len() == 1 {
        return Ok(Peer::ALL.map(|peer| (peer, 1)).to_vec());
    }
    let stint = Stint { verb, tasks, window: ground.plan.window };
    let mut chosen = Vec::new();
    for peer in Peer::ALL {
        let mut contestants = Vec::new();
        for &size in &sizes {
            contestants.push(enter(ground, peer, size, stint)?);
        }
        let name = format!("{}, {}: pool size", name(verb, tasks), peer.label());
        let contest = contest::hold(progress, &name, Unit::OpsPerSecond, POOL_ROUNDS, contestants, &[])?;
        let by_median =
            contest.entries.iter().zip(&sizes).max_by(|a, b| a.0.spread.median.total_cmp(&b.0.spread.median));
        chosen.extend(by_median.map(|(_, &size)| (peer, size)));
        pools.push(contest);
    }
    Ok(chosen)
}

fn hold(
    ground: &Ground<'_>,
    progress: &Progress,
    verb: Verb,
    tasks: usize,
    chosen: &[(Peer, usize)],
) -> Result<Contest> {
    let stint = Stint { verb, tasks, window: ground.plan.window };
    let mut contestants = vec![
        ours(ground, OURS, "auto", stint)?,
        ours(ground, OURS_ON_ONE, "1", stint)?,
        ours(ground, OURS_ON_TWO, "2", stint)?,
    ];
    for &(peer, size) in chosen {
        contestants.push(enter(ground, peer, size, stint)?);
    }
    let limit = match (verb, tasks) {
        (Verb::Get, 512) => Some(Limit::AtLeast(4.0)),
        (Verb::Get, 1) => Some(Limit::AtLeast(0.95)),
        _ => None,
    };
    let goal = Goal { ours: OURS, against: Peer::ALL.map(Peer::label).to_vec(), limit };
    contest::hold(progress, &name(verb, tasks), Unit::OpsPerSecond, ground.plan.rounds, contestants, &[goal])
}

/// What one contestant does in a round.
#[derive(Clone, Copy)]
struct Stint {
    verb: Verb,
    tasks: usize,
    window: Duration,
}

fn ours<'a>(ground: &'a Ground<'_>, label: &'static str, connections: &str, stint: Stint) -> Result<Contestant<'a>> {
    let client = ground.runtime.block_on(Larder::connect(ground.addr, connections, ground.load.clone()))?;
    Ok(on_tasks(ground, label, String::new(), client, stint))
}

/// Connects a peer with a pool of a size.
fn enter<'a>(ground: &'a Ground<'_>, peer: Peer, size: usize, stint: Stint) -> Result<Contestant<'a>> {
    let (label, detail) = (peer.label(), format!("pool of {size}"));
    let (runtime, addr, load) = (&ground.runtime, ground.addr, ground.load.clone());
    Ok(match peer {
        Peer::AsyncMemcached => {
            on_tasks(ground, label, detail, runtime.block_on(AsyncMemcached::connect(addr, size, load))?, stint)
        }
        Peer::MemcacheExpTasks => {
            on_tasks(ground, label, detail, runtime.block_on(MemcacheExpTasks::connect(addr, size, load))?, stint)
        }
        Peer::MemcacheExpThreads => on_threads(label, detail, MemcacheExpThreads::connect(addr, size, load)?, stint),
        Peer::MemcacheThreads => on_threads(label, detail, MemcacheThreads::connect(addr, size, load)?, stint),
    })
}

fn on_tasks<'a, C: Tasks>(
    ground: &'a Ground<'_>,
    label: &'static str,
    detail: String,
    client: C,
    stint: Stint,
) -> Contestant<'a> {
    let mut shares = shares(&Arc::new(client), stint.verb, stint.tasks);
    Contestant::new(label, detail, move || drive_tasks(&ground.runtime, &mut shares, stint.window))
}

fn on_threads<'a>(label: &'static str, detail: String, client: impl Threads + 'a, stint: Stint) -> Contestant<'a> {
    Contestant::new(label, detail, move || {
        drive_threads(stint.tasks, stint.window, |rng| match stint.verb {
            Verb::Get => client.get(rng.usize(..KEYS)),
            Verb::Set => client.set(rng.usize(..KEYS)),
        })
    })
}
