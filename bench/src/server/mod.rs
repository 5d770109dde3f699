//! Our server against Debian's memcached, and over a folder against Redis with a file: the same client, the same requests.

mod abuse;
mod load;
mod process;

use std::net::SocketAddr;
use std::time::Duration;

use larder_testkit::redis::{RedisOptions, RedisServer, RedisVersion};
use larder_testkit::servers::{Memcached, Version};
use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::drive_tasks;
use crate::machine::Machine;
use crate::memcached::{runtime, server_version};
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::stats::quantile;
use crate::{Plan, Result};
use abuse::Abuse;
use load::{Client, KEYS, Request, VALUE_BYTES, fill};
use process::{MEMORY_MB, Served, cpu_time};
pub(crate) use process::{ServeArgs, serve};

const CONNECTIONS: usize = 50;
/// Of servers that keep data: as many clients as the durable store's other figures are of.
const DURABLE_CONNECTIONS: usize = 32;
const ROUNDS_MAX: usize = 9;
const WINDOW_MIN: Duration = Duration::from_millis(400);
/// Values of the items whose memory is measured.
const SMALL_VALUE_BYTES: usize = 32;
const KEY_BYTES: usize = 16;

const OURS: &str = "larder serve";
const OURS_PER_CORE: &str = "larder serve, a runtime a thread";
const ABUSED: &str = "larder serve, abused";
const THEIRS: &str = "memcached";
const ALWAYS: &str = "larder serve, sync=always";
const EVERY: &str = "larder serve, sync=every:100ms";
/// With the interval of its peer: as much can be lost.
const EVERY_SECOND: &str = "larder serve, sync=every:1s";
const REDIS: &str = "Redis, appendfsync always";
const REDIS_EVERY: &str = "Redis, appendfsync everysec";

/// Some requests of a kind at once, on each of some connections.
#[derive(Clone, Copy)]
struct Work {
    connections: usize,
    request: Request,
    depth: usize,
}

/// Who answers, and in which process.
#[derive(Clone, Copy)]
struct Peer {
    label: &'static str,
    addr: SocketAddr,
    pid: u32,
    work: Work,
}

pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let machine = Machine::read();
    let runtime = runtime()?;
    let mut contests = Vec::new();
    let mut version = String::new();
    for threads in [1, 2] {
        let options = ["-m", &MEMORY_MB.to_string(), "-t", &threads.to_string(), "-c", "4096"];
        let theirs = Memcached::start(Version::Old, &options);
        version = server_version(&theirs)?;
        let (ours, per_core) = (Served::start(threads, &[])?, Served::start(threads, &["--per-core"])?);
        for addr in [theirs.addr(), ours.addr, per_core.addr] {
            fill(&runtime, addr, KEYS, VALUE_BYTES)?;
        }
        for (request, depth) in works() {
            let work = Work { connections: CONNECTIONS, request, depth };
            let peer = |label, addr, pid| Peer { label, addr, pid, work };
            let peers = [
                peer(OURS, ours.addr, ours.pid()),
                peer(OURS_PER_CORE, per_core.addr, per_core.pid()),
                peer(THEIRS, theirs.addr(), theirs.pid()),
            ];
            contests.extend(compare(plan, progress, &runtime, &format!("{threads} threads"), &peers)?);
        }
    }
    if plan.wants("memory") {
        contests.push(memory(plan, progress, &runtime)?);
    }
    contests.extend(abused(plan, progress, &runtime)?);
    contests.extend(durable(plan, progress, &runtime)?);
    let how = format!(
        "{CONNECTIONS} connections on loopback, {DURABLE_CONNECTIONS} for durable sets, each with so many requests at once; keys of {KEY_BYTES} bytes, values of {VALUE_BYTES}, {KEYS} items; memcached {version} (-m {MEMORY_MB}); client and server share \
         the cores; {} rounds of {:?}. Memory: {} items, values of {SMALL_VALUE_BYTES} bytes.",
        plan.rounds.min(ROUNDS_MAX),
        plan.window.max(WINDOW_MIN),
        plan.items
    );
    Ok(Findings { section: Section::Server, how, machine, contests, pools: Vec::new() })
}

fn works() -> impl Iterator<Item = (Request, usize)> {
    let requests = [Request::ClassicGet, Request::ClassicSet, Request::MetaGet, Request::MetaSet];
    requests.into_iter().flat_map(|request| [(request, 1), (request, 16)])
}

/// What is measured of the same work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    Rate,
    P99,
    Cpu,
}

/// Rate, p99 and processor time of the same work.
fn compare(plan: &Plan, progress: &Progress, runtime: &Runtime, where_: &str, peers: &[Peer]) -> Result<Vec<Contest>> {
    let Work { request, depth, .. } = peers[0].work;
    let mut contests = Vec::new();
    for figure in [Figure::Rate, Figure::P99, Figure::Cpu] {
        let (unit, what) = match figure {
            Figure::Rate => (Unit::OpsPerSecond, ""),
            Figure::P99 => (Unit::Millis, ", p99"),
            Figure::Cpu => (Unit::MicrosPerOp, ", server's processor time"),
        };
        let name = format!("{}, {depth} at once, {where_}{what}", request.name());
        if !plan.wants(&name) {
            continue;
        }
        let rounds = if figure == Figure::Rate { plan.rounds.min(ROUNDS_MAX) } else { plan.rounds.min(ROUNDS_MAX / 2) };
        let contestants =
            peers.iter().map(|peer| contestant(plan, runtime, *peer, figure)).collect::<Result<Vec<_>>>()?;
        let is_deep_classic = depth > 1 && matches!(request, Request::ClassicGet | Request::ClassicSet);
        let limit = match figure {
            Figure::Rate => Limit::AtLeast(if is_deep_classic { 1.2 } else { 1.0 }),
            Figure::P99 | Figure::Cpu => Limit::AtMost(1.0),
        };
        let goal = Goal { ours: OURS, against: vec![THEIRS], limit: Some(limit) };
        contests.push(contest::hold(progress, &name, unit, rounds, contestants, &[goal])?);
    }
    Ok(contests)
}

fn contestant<'a>(plan: &Plan, runtime: &'a Runtime, peer: Peer, figure: Figure) -> Result<Contestant<'a>> {
    let Peer { label, addr, pid, work } = peer;
    let connect = |seed| runtime.block_on(Client::connect(addr, work.request, work.depth, seed));
    let mut clients = (0..work.connections as u64).map(connect).collect::<Result<Vec<Client>>>()?;
    let window = plan.window.max(WINDOW_MIN);
    Ok(Contestant::new(label, String::new(), move || {
        clients.iter_mut().for_each(|client| client.ms.clear());
        let before = cpu_time(pid)?;
        let rate = drive_tasks(runtime, &mut clients, window)? * work.depth as f64;
        let ops = clients.iter().map(|client| client.ms.len()).sum::<usize>() * work.depth;
        Ok(match figure {
            Figure::Rate => rate,
            Figure::Cpu => (cpu_time(pid)? - before).as_secs_f64() * 1e6 / ops.max(1) as f64,
            Figure::P99 => {
                let mut ms: Vec<f64> = clients.iter().flat_map(|client| client.ms.iter().copied()).collect();
                ms.sort_by(f64::total_cmp);
                quantile(&ms, 0.99)
            }
        })
    }))
}

/// What others wait for while a server is abused, against one that is left alone.
fn abused(plan: &Plan, progress: &Progress, runtime: &Runtime) -> Result<Option<Contest>> {
    let name = format!("get, 1 at once, beside {}, p99", abuse::WHAT);
    if !plan.wants(&name) {
        return Ok(None);
    }
    let (quiet, abused) = (Served::start(2, &[])?, Served::start(2, &[])?);
    fill(runtime, quiet.addr, KEYS, VALUE_BYTES)?;
    fill(runtime, abused.addr, KEYS, VALUE_BYTES)?;
    let _abuse = Abuse::of(abused.addr)?;
    let work = Work { connections: CONNECTIONS, request: Request::ClassicGet, depth: 1 };
    let contestants = [(ABUSED, &abused), (OURS, &quiet)]
        .map(|(label, server)| Peer { label, addr: server.addr, pid: server.pid(), work })
        .into_iter()
        .map(|peer| contestant(plan, runtime, peer, Figure::P99))
        .collect::<Result<Vec<_>>>()?;
    let goal = Goal { ours: ABUSED, against: vec![OURS], limit: Some(Limit::AtMost(2.0)) };
    contest::hold(progress, &name, Unit::Millis, plan.rounds.min(ROUNDS_MAX), contestants, &[goal]).map(Some)
}

/// Resident memory an item, all of it.
fn memory(plan: &Plan, progress: &Progress, runtime: &Runtime) -> Result<Contest> {
    let items = plan.items as usize;
    let grown = |addr, rss: &dyn Fn() -> u64| {
        let before = rss();
        fill(runtime, addr, items, SMALL_VALUE_BYTES)?;
        Ok((rss() - before) as f64 / items as f64)
    };
    let ours = Contestant::new(OURS, String::new(), || {
        let server = Served::start(2, &[])?;
        grown(server.addr, &|| larder_testkit::servers::rss_bytes_of(server.pid()))
    });
    let theirs = Contestant::new(THEIRS, String::new(), || {
        let server = Memcached::start(Version::Old, &["-m", &MEMORY_MB.to_string(), "-t", "2"]);
        grown(server.addr(), &|| server.rss_bytes())
    });
    let goal = Goal { ours: OURS, against: vec![THEIRS], limit: Some(Limit::AtMost(0.75)) };
    contest::hold(progress, "memory an item", Unit::Bytes, 1, vec![ours, theirs], &[goal])
}

/// Writes that are on disk when they are answered, and those that soon are.
fn durable(plan: &Plan, progress: &Progress, runtime: &Runtime) -> Result<Vec<Contest>> {
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name).display().to_string();
    let serve = |name: &str, sync: &str| Served::start(2, &["--folder", &place(name), "--sync", sync]);
    let ours = serve("always", "always")?;
    let ours_every = serve("every", "every:100ms")?;
    let ours_every_second = serve("every-second", "every:1s")?;
    let everysec = RedisOptions::new().arg("appendonly", "yes").arg("appendfsync", "everysec");
    let redis = RedisServer::start(RedisVersion::Redis7, &RedisOptions::new().appendonly());
    let redis_every = RedisServer::start(RedisVersion::Redis7, &everysec);
    let mut contests = Vec::new();
    for depth in [1, 16] {
        let name = format!("durable set, {depth} at once");
        if !plan.wants(&name) {
            continue;
        }
        let work = |request| Work { connections: DURABLE_CONNECTIONS, request, depth };
        let peer = |label, addr, pid, request| Peer { label, addr, pid, work: work(request) };
        let peers = [
            peer(ALWAYS, ours.addr, ours.pid(), Request::ClassicSet),
            peer(EVERY, ours_every.addr, ours_every.pid(), Request::ClassicSet),
            peer(EVERY_SECOND, ours_every_second.addr, ours_every_second.pid(), Request::ClassicSet),
            peer(REDIS, redis.addr(), redis.pid(), Request::RespSet),
            peer(REDIS_EVERY, redis_every.addr(), redis_every.pid(), Request::RespSet),
        ];
        let rate = |peer: &Peer| contestant(plan, runtime, *peer, Figure::Rate);
        let contestants = peers.iter().map(rate).collect::<Result<Vec<_>>>()?;
        let least = if depth > 1 { 0.7 } else { 1.0 };
        let goal = |ours, theirs| Goal { ours, against: vec![theirs], limit: Some(Limit::AtLeast(least)) };
        let goals = [goal(ALWAYS, REDIS), goal(EVERY, REDIS_EVERY), goal(EVERY_SECOND, REDIS_EVERY)];
        let rounds = plan.rounds.min(ROUNDS_MAX);
        contests.push(contest::hold(progress, &name, Unit::OpsPerSecond, rounds, contestants, &goals)?);
    }
    Ok(contests)
}
