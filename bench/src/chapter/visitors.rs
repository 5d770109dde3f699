//! Job B: how many different visitors came in a day, and who is new.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::Native;
use larder_core::{Ctx, Key, Op, PutMode, StoreExt, StoreRef, Ttl};
use larder_structures::inspect::inspect;
use larder_structures::{Name, Novelty, Precision, UniqueVisitors};

use super::ground::{Ground, Held, On, run};
use super::{Bench, CHAPTER, ELEMENTS, LARDER, Laid, PLAIN, Sizes};
use crate::Result;
use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::Step;

/// How many ids go out together.
const BATCH: u64 = 65_536;
/// Members a shard, by the chapter, which makes twice as many shards as that takes.
const CHAPTER_MEMBERS: u64 = 512;
const PATIENCE: Duration = Duration::from_secs(120);
/// How many times of what is live may be resident: sets of integers grow as they are filled.
const RESIDENT_MAX: f64 = 1.25;
const RESIDENT_OF_SETS_MAX: f64 = 1.6;
const SKETCH_BYTES_MAX: f64 = 3_000.0;
/// Ids a second from standard input, on Redis.
const RATE_MIN: f64 = 200_000.0;
/// How many ids that is measured with.
const STDIN_IDS_MAX: u64 = 2_000_000;
/// A process a round.
const STDIN_ROUNDS_MAX: usize = 5;

fn bytes_max(on: On, precision: Precision) -> Option<f64> {
    match (on, precision) {
        (On::Redis, Precision::Compact) => Some(4.4),
        (On::Memcached, Precision::Compact) => Some(4.6),
        (On::Memory, Precision::Compact) => Some(4.5),
        (On::Redis, Precision::NearExact { .. }) => Some(1.35),
        (On::Memcached, Precision::NearExact { .. }) => Some(1.5),
        (On::Memory, Precision::NearExact { .. }) => Some(1.3),
        _ => None,
    }
}

/// The nth visitor, as a UUID in text.
fn visitor(nth: u64) -> String {
    let bits = fastrand::Rng::with_seed(nth).u128(..);
    let part = |from: u32, digits: usize| format!("{:0digits$x}", bits >> from & ((1 << (4 * digits)) - 1));
    format!("{}-{}-{}-{}-{}", part(96, 8), part(80, 4), part(64, 4), part(48, 4), part(0, 12))
}

/// Where visitors are added, each of them new.
#[derive(Clone)]
struct Add {
    at: At,
    next: u64,
}

#[derive(Clone)]
enum At {
    Items(StoreRef),
    Set(StoreRef),
    Shards(StoreRef, u64),
    Unique(UniqueVisitors),
}

/// The chapter's: the first 56 bits of the id as a number, in the shard that its hash says.
fn shard_op(nth: u64, shards: u64) -> Result<Op> {
    let bits = (fastrand::Rng::with_seed(nth).u128(..) >> 72) as u64;
    // The low bits of a random id are as good as a checksum of it.
    let key = Key::new(format!("visitors:{}", bits % shards))?;
    Ok(Op::native(key, Native::SetAdd { members: vec![Bytes::from(bits.to_string())] }))
}

fn set_op(nth: u64) -> Result<Op> {
    Ok(Op::native(Key::new("visitors")?, Native::SetAdd { members: vec![Bytes::from(visitor(nth))] }))
}

fn item_op(nth: u64) -> Result<Op> {
    Ok(Op::put(Key::new(format!("visitor:{}", visitor(nth)))?, PutMode::Add, "", Ttl::Never))
}

impl Step for Add {
    async fn step(&mut self) -> Result<()> {
        let nth = self.next;
        self.next += 1;
        match &self.at {
            At::Items(store) => drop(store.run_one(Ctx::default(), item_op(nth)?).await?),
            At::Set(store) => drop(store.run_one(Ctx::default(), set_op(nth)?).await?),
            At::Shards(store, shards) => drop(store.run_one(Ctx::default(), shard_op(nth, *shards)?).await?),
            At::Unique(site) => drop(site.add([&visitor(nth)]).await?),
        }
        Ok(())
    }
}

pub(super) fn hold_all(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    let job = format!("B, visitors, {}", on.name());
    let visitors = sizes.elements;
    if !bench.wants(&job) {
        return Ok(());
    }
    let mut laid: Vec<Laid<Add>> = Vec::new();
    if on == On::Redis {
        let load = async |ground: &Ground| plain(ground, visitors, At::Set(ground.store.clone()), set_op).await;
        laid.push(bench.lay(on, (PLAIN, "a set of UUIDs"), None, visitors, load)?);
        let shards = (2 * visitors / CHAPTER_MEMBERS).max(1);
        let load = async |ground: &Ground| {
            plain(ground, visitors, At::Shards(ground.store.clone(), shards), |nth| shard_op(nth, shards)).await
        };
        laid.push(bench.lay(on, (CHAPTER, "sets of numbers"), None, visitors, load)?);
    } else {
        let load = async |ground: &Ground| plain(ground, visitors, At::Items(ground.store.clone()), item_op).await;
        laid.push(bench.lay(on, (PLAIN, "an item a visitor"), None, visitors, load)?);
    }
    let unique = |precision: Precision, detail: &'static str| {
        let load = async |ground: &Ground| unique(ground, visitors, precision).await;
        bench.lay(on, (LARDER, detail), None, visitors, load)
    };
    laid.push(unique(Precision::Compact, "47 bits of a hash")?);
    let resident_max = if on == On::Redis { RESIDENT_OF_SETS_MAX } else { RESIDENT_MAX };
    let most = (bytes_max(on, Precision::Compact), resident_max);
    found.push(bench.memory(&format!("{job}: memory, compact"), visitors, &laid, most, sizes));
    found.push(bench.loading(&format!("{job}: loading"), &laid));
    let goal = Goal { ours: LARDER, against: vec![CHAPTER, PLAIN], limit: None };
    found.push(bench.ops(&format!("{job}: one is added"), &laid, &[goal])?);
    found.push(counting(bench, &job, &laid)?);
    drop(laid);
    let near = [unique(Precision::NEAR_EXACT, "a shorter hash")?];
    let most = (bytes_max(on, Precision::NEAR_EXACT), RESIDENT_MAX);
    found.push(bench.memory(&format!("{job}: memory, near-exact"), visitors, &near, most, sizes));
    drop(near);
    found.push(sketch(bench, &job, &unique(Precision::SKETCH, "a CPC sketch")?)?);
    if on == On::Redis {
        found.push(from_stdin(bench, &job, sizes)?);
    }
    Ok(())
}

async fn plain(ground: &Ground, visitors: u64, at: At, op: impl Fn(u64) -> Result<Op>) -> Result<(Add, Held)> {
    let before = ground.held()?;
    run(&ground.store, (0..visitors).map(op)).await?;
    Ok((Add { at, next: visitors }, before))
}

async fn unique(ground: &Ground, visitors: u64, precision: Precision) -> Result<(Add, Held)> {
    let before = ground.held()?;
    let options = UniqueVisitors::options().precision(precision).expected(visitors).timeout(PATIENCE);
    let site = options.open_or_create(&ground.store, "site").await?;
    // A day of its own, also past midnight.
    let day = site.current()?;
    let mut known = 0;
    for first in (0..visitors).step_by(BATCH as usize) {
        let ids: Vec<String> = (first..visitors.min(first + BATCH)).map(visitor).collect();
        let told = site.add_in(day, &ids).await?;
        known += told.iter().filter(|novelty| **novelty == Novelty::Known).count() as u64;
    }
    // All are different; of compact ones one in a million may be taken for another.
    if precision == Precision::Compact && known > visitors / 100_000 {
        return Err(format!("{known} of {visitors} visitors were said to be known").into());
    }
    Ok((Add { at: At::Unique(site), next: visitors }, before))
}

/// How long a count takes.
fn counting(bench: &Bench<'_>, job: &str, laid: &[Laid<Add>]) -> Result<Contest> {
    let ours = laid.iter().find(|one| one.label == LARDER).ok_or("no visitors")?;
    let At::Unique(site) = &ours.work.at else { return Err("no visitors".into()) };
    let run = || {
        let from = Instant::now();
        let count = bench.runtime.block_on(site.count())?;
        let took = from.elapsed();
        if count.visitors == 0 { Err("nobody is counted".into()) } else { Ok(took.as_secs_f64() * 1e3) }
    };
    let contestants = vec![Contestant::new(LARDER, String::new(), run)];
    contest::hold(bench.progress, &format!("{job}: all are counted"), Unit::Millis, bench.rounds(), contestants, &[])
}

/// What a sketch takes, whatever it counts.
fn sketch(bench: &Bench<'_>, job: &str, laid: &Laid<Add>) -> Result<Contest> {
    let store = &laid.ground.store;
    let found = bench.runtime.block_on(inspect(store, Ctx::default(), &Name::new("site")?))?.ok_or("no visitors")?;
    let goal = Goal { ours: LARDER, against: Vec::new(), limit: Some(Limit::AtMost(SKETCH_BYTES_MAX)) };
    let figures = vec![(LARDER, laid.detail.clone(), found.bytes as f64)];
    Ok(contest::once(bench.progress, &format!("{job}: a sketch"), Unit::WholeBytes, figures, &[goal]))
}

/// The command, with ids on its standard input: a process a round, its start included.
fn from_stdin(bench: &Bench<'_>, job: &str, sizes: Sizes) -> Result<Contest> {
    let larder = &bench.plan.larder;
    if !larder.exists() {
        let place = larder.display();
        return Err(format!(
            "{place} is not there: cargo build --release -p larder-cli makes it, --larder says where it is"
        )
        .into());
    }
    let count = sizes.elements.min(STDIN_IDS_MAX);
    let file = tempfile::NamedTempFile::new()?;
    let mut out = BufWriter::new(file.as_file());
    (0..count).try_for_each(|nth| writeln!(out, "{}", visitor(nth)))?;
    out.flush()?;
    drop(out);
    let ground = bench.runtime.block_on(Ground::start(On::Redis, bench.plan, None))?;
    let url = ground.url().ok_or("a server without an address")?;
    let mut round = 0;
    let run = || {
        round += 1;
        added(larder, &url, &format!("site{round}"), count, file.path())
    };
    let limit = (sizes.elements >= ELEMENTS).then_some(Limit::AtLeast(RATE_MIN));
    let goal = Goal { ours: LARDER, against: Vec::new(), limit };
    let contestants = vec![Contestant::new(LARDER, "unique add -".to_owned(), run)];
    let rounds = bench.plan.rounds.min(STDIN_ROUNDS_MAX);
    let name = format!("{job}: ids from standard input");
    contest::hold(bench.progress, &name, Unit::OpsPerSecond, rounds, contestants, &[goal])
}

/// Ids a second.
fn added(larder: &Path, url: &str, name: &str, count: u64, ids: &Path) -> Result<f64> {
    let mut command = Command::new(larder);
    command.args(["unique", "add", name, "--expected", &count.to_string(), "-"]).env("LARDER_STORE", url);
    command.stdin(File::open(ids)?).stdout(Stdio::piped());
    let from = Instant::now();
    let output = command.output()?;
    let took = from.elapsed();
    let told = String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().unwrap_or(0);
    // One in some millions may be taken for another.
    if !output.status.success() || told + count / 100_000 < count {
        return Err(format!("of {count} ids {told} were said to be new").into());
    }
    Ok(count as f64 / took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visitors_are_uuids_and_no_two_alike() {
        let all: std::collections::HashSet<String> = (0..10_000).map(visitor).collect();
        assert_eq!(all.len(), 10_000);
        assert!(all.iter().all(|id| id.len() == 36 && id.split('-').map(str::len).eq([8, 4, 4, 4, 12])));
    }
}
