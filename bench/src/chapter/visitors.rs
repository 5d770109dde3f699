//! Job B: how many different visitors came in a day, and who is new.

use std::io::{BufWriter, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::Native;
use larder_core::{Ctx, Key, Op, PutMode, StoreExt, StoreRef, Ttl};
use larder_structures::inspect::inspect;
use larder_structures::unique::IdKind;
use larder_structures::{Name, Novelty, Precision, UniqueVisitors};

use super::ground::{Ground, Held, On, run};
use super::{Bench, CHAPTER, ELEMENTS, LARDER, Laid, PLAIN, RESIDENT_MAX, Sizes};
use crate::Result;
use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::Step;

/// How many ids go out together; of exact ones as many as a call takes, since what they take is all that is asked.
const BATCH: u64 = 65_536;
const BATCH_MAX: u64 = 1 << 20;
/// What visitors take is measured with so many times fewer as well.
const FEWER: u64 = 10;
/// Numbers have so many bits: of those the server's sets keep 32.
const NUMBER_BITS: u32 = 45;
/// Members a shard, by the chapter, which makes twice as many shards as that takes.
const CHAPTER_MEMBERS: u64 = 512;
const PATIENCE: Duration = Duration::from_secs(120);
/// How many times of what is live may be resident of sets of integers, which grow as they are filled.
const RESIDENT_OF_SETS_MAX: f64 = 1.6;
/// By so many of its standard errors a count may be off.
const DEVIATIONS_MAX: f64 = 5.0;
/// What is asked of a near-exact count, and of a sketch.
const NEAR_ERROR_MAX: f64 = 1e-5;
const SKETCH_ERROR_MAX: f64 = 0.0106 * DEVIATIONS_MAX;
const SKETCH_BYTES_MAX: f64 = 3_000.0;
/// Ids a second from standard input, on Redis.
const RATE_MIN: f64 = 200_000.0;
/// How many ids that is measured with.
const STDIN_IDS_MAX: u64 = 2_000_000;
/// A process a round.
const STDIN_ROUNDS_MAX: usize = 5;
/// The command at a terminal of its own, where it shows its progress; what it prints goes into a file.
const AT_A_TERMINAL: &str = r#""$LARDER" unique add "$SITE" --expected "$COUNT" - < "$IDS" > "$TOLD""#;
/// A command that takes so long has shown how far it is.
const SHOWN_AFTER: Duration = Duration::from_secs(2);

/// How ids are kept.
#[derive(Clone, Copy)]
struct Kept {
    what: &'static str,
    precision: Precision,
    ids: IdKind,
    batch: u64,
}

const COMPACT: Kept = Kept { what: "compact", precision: Precision::Compact, ids: IdKind::Any, batch: BATCH };
const NEAR: Kept = Kept { what: "near-exact", precision: Precision::NEAR_EXACT, ..COMPACT };
const SKETCH: Kept = Kept { what: "a sketch", precision: Precision::SKETCH, ..COMPACT };
const NUMBERS: Kept =
    Kept { what: "exact, numbers", precision: Precision::Exact, ids: IdKind::Integer, batch: BATCH_MAX };
const IDS: Kept = Kept { what: "exact, any ids", ids: IdKind::Any, ..NUMBERS };

/// What was asked for first was asked of visitors that are exact; those that are compact keep it.
fn bytes_max(on: On, precision: Precision) -> Option<f64> {
    match (on, precision) {
        (On::Redis, Precision::Compact | Precision::Exact) => Some(4.4),
        (On::Memcached, Precision::Compact | Precision::Exact) => Some(4.6),
        (On::Memory, Precision::Compact | Precision::Exact) => Some(4.5),
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

/// The nth visitor, as a number: an odd factor takes no two to one.
fn number(nth: u64) -> u64 {
    nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) & ((1 << NUMBER_BITS) - 1)
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
    let mut laid = plain_layouts(bench, on, visitors)?;
    laid.push(unique_layout(bench, on, visitors, COMPACT)?);
    let memory = |kept: Kept, laid: &[Laid<Add>]| {
        let are_sets = on == On::Redis && [COMPACT.what, NUMBERS.what].contains(&kept.what);
        let resident_max = if are_sets { RESIDENT_OF_SETS_MAX } else { RESIDENT_MAX };
        let most = (bytes_max(on, kept.precision), on.resident_max(resident_max));
        bench.memory(&format!("{job}: memory, {}", kept.what), visitors, laid, most, sizes)
    };
    found.push(memory(COMPACT, &laid));
    found.push(bench.loading(&format!("{job}: loading"), &laid));
    let goal = Goal { ours: LARDER, against: vec![CHAPTER, PLAIN], limit: None };
    found.push(bench.ops(&format!("{job}: one is added"), &laid, &[goal])?);
    found.push(counting(bench, &job, &laid)?);
    drop(laid);
    for kept in [NEAR, NUMBERS, IDS] {
        let laid = [unique_layout(bench, on, visitors, kept)?];
        found.push(memory(kept, &laid));
        if kept.what == NEAR.what {
            error(bench, &job, &laid[0], sizes.goal(Limit::AtMost(NEAR_ERROR_MAX)), visitors, found)?;
        }
    }
    let laid = unique_layout(bench, on, visitors, SKETCH)?;
    found.push(sketch(bench, &job, &laid)?);
    error(bench, &job, &laid, sizes.goal(Limit::AtMost(SKETCH_ERROR_MAX)), visitors, found)?;
    drop(laid);
    of_fewer(bench, on, &job, sizes, found)?;
    if on == On::Redis {
        found.push(from_stdin(bench, &job, sizes)?);
    }
    Ok(())
}

/// What a tenth of the visitors take: nothing is asked of that.
fn of_fewer(bench: &Bench<'_>, on: On, job: &str, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    let visitors = sizes.elements / FEWER;
    let mut laid = plain_layouts(bench, on, visitors)?;
    for kept in [COMPACT, NEAR, NUMBERS, IDS] {
        laid.push(unique_layout(bench, on, visitors, kept)?);
        let name = format!("{job}: memory of a tenth, {}", kept.what);
        found.push(bench.memory(&name, visitors, &laid, (None, None), sizes));
        laid.clear();
    }
    Ok(())
}

/// As one would at first, and where the server has sets as the chapter has it.
fn plain_layouts(bench: &Bench<'_>, on: On, visitors: u64) -> Result<Vec<Laid<Add>>> {
    if on != On::Redis {
        let load = async |ground: &Ground| plain(ground, visitors, At::Items(ground.store.clone()), item_op).await;
        return Ok(vec![bench.lay(on, (PLAIN, "an item a visitor"), None, visitors, load)?]);
    }
    let load = async |ground: &Ground| plain(ground, visitors, At::Set(ground.store.clone()), set_op).await;
    let set = bench.lay(on, (PLAIN, "a set of UUIDs"), None, visitors, load)?;
    let shards = (2 * visitors / CHAPTER_MEMBERS).max(1);
    let load = async |ground: &Ground| {
        plain(ground, visitors, At::Shards(ground.store.clone(), shards), |nth| shard_op(nth, shards)).await
    };
    Ok(vec![set, bench.lay(on, (CHAPTER, "sets of numbers"), None, visitors, load)?])
}

fn unique_layout(bench: &Bench<'_>, on: On, visitors: u64, kept: Kept) -> Result<Laid<Add>> {
    let load = async |ground: &Ground| unique(ground, visitors, kept).await;
    bench.lay(on, (LARDER, kept.what), None, visitors, load)
}

async fn plain(ground: &Ground, visitors: u64, at: At, op: impl Fn(u64) -> Result<Op>) -> Result<(Add, Held)> {
    let before = ground.held()?;
    run(&ground.store, (0..visitors).map(op)).await?;
    Ok((Add { at, next: visitors }, before))
}

async fn unique(ground: &Ground, visitors: u64, kept: Kept) -> Result<(Add, Held)> {
    let before = ground.held()?;
    let options = UniqueVisitors::options().precision(kept.precision).ids(kept.ids).expected(visitors);
    let site = options.timeout(PATIENCE).open_or_create(&ground.store, "site").await?;
    // A day of its own, also past midnight.
    let day = site.current()?;
    let mut known = 0;
    for first in (0..visitors).step_by(kept.batch as usize) {
        let some = first..visitors.min(first + kept.batch);
        let told = match kept.ids {
            IdKind::Integer => site.add_in(day, some.map(number)).await?,
            IdKind::Any => site.add_in(day, &some.map(visitor).collect::<Vec<_>>()).await?,
        };
        known += told.iter().filter(|novelty| **novelty == Novelty::Known).count() as u64;
    }
    // All are different; of compact ones one in a million may be taken for another.
    let known_max = match kept.precision {
        Precision::Exact => 0,
        Precision::Compact => visitors / 100_000,
        Precision::NearExact { .. } | Precision::Sketch { .. } => visitors,
    };
    if known > known_max {
        return Err(format!("{known} of {visitors} visitors were said to be known").into());
    }
    Ok((Add { at: At::Unique(site), next: visitors }, before))
}

/// By how much a count is off, beside what it says itself. More than some of its standard errors are a count that is wrong, or an error that is.
fn error(
    bench: &Bench<'_>,
    job: &str,
    laid: &Laid<Add>,
    limit: Option<Limit>,
    visitors: u64,
    found: &mut Vec<Contest>,
) -> Result<()> {
    let At::Unique(site) = &laid.work.at else { return Err("no visitors".into()) };
    let count = bench.runtime.block_on(site.count())?;
    let off = count.visitors.abs_diff(visitors) as f64;
    let detail = format!("{} of {visitors}, standard error {:.1}", count.visitors, count.standard_error);
    let goal = Goal { ours: LARDER, against: Vec::new(), limit };
    let name = format!("{job}: error, {}", laid.detail);
    let figures = vec![(LARDER, detail.clone(), off / visitors as f64)];
    found.push(contest::once(bench.progress, &name, Unit::Error, figures, &[goal]));
    // Of few visitors the error is a part of one.
    if off > DEVIATIONS_MAX * count.standard_error + 1.0 { Err(format!("{name}: {detail}").into()) } else { Ok(()) }
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

/// The command, with ids on its standard input: a process a round, its start included. It shows its progress, at a terminal that `script` makes, where there is that.
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
    let is_shown = Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success());
    let mut round = 0;
    let run = || {
        round += 1;
        let mut command = Command::new(if is_shown { "script" } else { "sh" });
        command.args(if is_shown { ["-qefc", AT_A_TERMINAL, "/dev/null"].as_slice() } else { &["-c", AT_A_TERMINAL] });
        command.env("LARDER", larder).env("LARDER_STORE", &url).env("SITE", format!("site{round}"));
        added(command.env("IDS", file.path()), count, is_shown)
    };
    let limit = (sizes.elements >= ELEMENTS).then_some(Limit::AtLeast(RATE_MIN));
    let goal = Goal { ours: LARDER, against: Vec::new(), limit };
    let detail = if is_shown { "unique add -, its progress shown" } else { "unique add -" };
    let contestants = vec![Contestant::new(LARDER, detail.to_owned(), run)];
    let rounds = bench.plan.rounds.min(STDIN_ROUNDS_MAX);
    let name = format!("{job}: ids from standard input");
    contest::hold(bench.progress, &name, Unit::OpsPerSecond, rounds, contestants, &[goal])
}

/// Ids a second.
fn added(command: &mut Command, count: u64, is_shown: bool) -> Result<f64> {
    let told = tempfile::NamedTempFile::new()?;
    command.env("TOLD", told.path()).env("COUNT", count.to_string()).stdin(Stdio::null());
    let from = Instant::now();
    let output = command.output()?;
    let took = from.elapsed();
    let new = std::fs::read_to_string(told.path())?.trim().parse::<u64>().unwrap_or(0);
    let said = String::from_utf8_lossy(&output.stdout);
    // One in some millions may be taken for another.
    if !output.status.success() || new + count / 100_000 < count {
        return Err(format!("of {count} ids {new} were said to be new; {said}").into());
    }
    if is_shown && took > SHOWN_AFTER && said.trim().is_empty() {
        return Err(format!("{count} ids took {took:?}, and no progress was shown").into());
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
        let numbers: std::collections::HashSet<u64> = (0..10_000).map(number).collect();
        assert_eq!(numbers.len(), 10_000);
        assert!(numbers.iter().all(|number| *number < 1 << NUMBER_BITS));
    }
}
