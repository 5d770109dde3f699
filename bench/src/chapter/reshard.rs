//! What a resharding costs those who read and write meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use larder_core::StoreRef;
use larder_structures::{ShardedHash, ShardedSet, ShardedSortedSet};

use super::ground::{Ground, On};
use super::{Bench, LARDER, Sizes};
use crate::Result;
use crate::contest::{self, Contest, Goal, Limit, Unit};

/// Of the visitors, so many are members.
const SHARE: u64 = 10;
const TASKS: u64 = 4;
const NAME: &str = "seen";
/// Members a shard, before it and after it.
const FROM: u64 = 125;
const TO: u64 = 62;
/// How long they work before it: as long as so many rounds of others.
const BEFORE_ROUNDS: u32 = 25;
const PATIENCE: Duration = Duration::from_secs(60);
/// How many go out together.
const BATCH: u64 = 10_000;
/// The longest that an operation may take.
const MILLIS_MAX: f64 = 50.0;

/// What is resharded: elements by their number, which is the value of one, or its score.
#[derive(Clone)]
enum Sharded {
    Set(ShardedSet),
    Hash(ShardedHash),
    Sorted(ShardedSortedSet),
}

#[derive(Clone, Copy)]
enum Kind {
    Set,
    Hash,
    Sorted,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Set => "a set",
            Kind::Hash => "a hash",
            Kind::Sorted => "a sorted set",
        }
    }
}

impl Sharded {
    /// With so many shards, if it is made.
    async fn open(kind: Kind, store: &StoreRef, shards: u16) -> Result<Sharded> {
        macro_rules! open {
            ($Type:ident) => {
                $Type::options().shards(shards).timeout(PATIENCE).open_or_create(store, NAME).await?
            };
        }
        Ok(match kind {
            Kind::Set => Sharded::Set(open!(ShardedSet)),
            Kind::Hash => Sharded::Hash(open!(ShardedHash)),
            Kind::Sorted => Sharded::Sorted(open!(ShardedSortedSet)),
        })
    }

    async fn fill(&self, numbers: std::ops::Range<u64>) -> Result<()> {
        match self {
            Sharded::Set(set) => drop(set.add(numbers.map(|n| n.to_string())).await?),
            Sharded::Hash(hash) => drop(hash.set(numbers.map(|n| (n.to_string(), n.to_string()))).await?),
            Sharded::Sorted(sorted) => drop(sorted.set(numbers.map(|n| (n.to_string(), n as f64))).await?),
        }
        Ok(())
    }

    async fn has(&self, number: u64) -> Result<bool> {
        let name = number.to_string();
        Ok(match self {
            Sharded::Set(set) => set.has(name).await?,
            Sharded::Hash(hash) => hash.get(&name).await?.is_some_and(|value| value == name.as_bytes()),
            Sharded::Sorted(sorted) => sorted.score(name).await? == Some(number as f64),
        })
    }

    /// How many of one are new. Scores are anywhere among those that there are, so that some change the ends.
    async fn add(&self, name: String, number: u64) -> Result<u64> {
        let told = match self {
            Sharded::Set(set) => set.add([name]).await?,
            Sharded::Hash(hash) => hash.set([(name, number.to_string())]).await?,
            Sharded::Sorted(sorted) => sorted.set([(name, number as f64)]).await?,
        };
        Ok(told.into_iter().map(u64::from).sum())
    }

    async fn reshard(&self, shards: u16) -> Result<()> {
        match self {
            Sharded::Set(set) => set.reshard(shards).await?,
            Sharded::Hash(hash) => hash.reshard(shards).await?,
            Sharded::Sorted(sorted) => sorted.reshard(shards).await?,
        }
        Ok(())
    }

    /// By its count, and how many there are to read.
    async fn len(&self) -> Result<(u64, u64)> {
        let (len, read) = match self {
            Sharded::Set(set) => (set.len().await?, set.members().await?.len()),
            Sharded::Hash(hash) => (hash.len().await?, hash.entries().await?.len()),
            Sharded::Sorted(sorted) => (sorted.len().await?, sorted.entries().await?.len()),
        };
        Ok((len, read as u64))
    }
}

pub(super) fn of_a_set(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    hold_all(bench, on, sizes, found, Kind::Set)
}

pub(super) fn of_a_hash(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    hold_all(bench, on, sizes, found, Kind::Hash)
}

pub(super) fn of_a_sorted_set(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    hold_all(bench, on, sizes, found, Kind::Sorted)
}

fn hold_all(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>, kind: Kind) -> Result<()> {
    let job = format!("resharding {}, {}", kind.name(), on.name());
    if !bench.wants(&job) {
        return Ok(());
    }
    let members = (sizes.elements / SHARE).max(1_000);
    let shards = |members_a_shard: u64| u16::try_from(members / members_a_shard).unwrap_or(u16::MAX).max(1);
    let (from, to) = (shards(FROM), shards(TO));
    bench.progress.note(&format!("{job}: {members} members"));
    let (before, during, took) = bench.runtime.block_on(reshard(bench, on, kind, members, (from, to)))?;
    let detail = |took: &[Duration]| format!("{} ops, median {:.2} ms", took.len(), millis(at(took, 0.5)));
    let resharding = format!("{members} members, {from} to {to} shards in {:.1} s", took.as_secs_f64());
    let figures = |part: f64| {
        let meanwhile = format!("{resharding}; {}", detail(&during));
        vec![("before", detail(&before), millis(at(&before, part))), (LARDER, meanwhile, millis(at(&during, part)))]
    };
    let goal = Goal { ours: LARDER, against: Vec::new(), limit: sizes.goal(Limit::AtMost(MILLIS_MAX)) };
    let once = |what: &str, part: f64, goals: &[Goal]| {
        contest::once(bench.progress, &format!("{job}: {what} op meanwhile"), Unit::Millis, figures(part), goals)
    };
    found.push(once("the longest", 1.0, &[goal]));
    found.push(once("the slowest of 1,000", 0.999, &[]));
    Ok(())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Of sorted times, the one at this part of them.
fn at(sorted: &[Duration], part: f64) -> Duration {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * part) as usize).copied().unwrap_or_default()
}

/// What single ops took before it and during it, and how long it took.
async fn reshard(
    bench: &Bench<'_>,
    on: On,
    kind: Kind,
    members: u64,
    (from, to): (u16, u16),
) -> Result<(Vec<Duration>, Vec<Duration>, Duration)> {
    let ground = Ground::start(on, bench.plan, None).await?;
    // Those who read and write have a connection of their own, as other processes would.
    let other = ground.connect().await?;
    let set = Sharded::open(kind, &ground.store, from).await?;
    for first in (0..members).step_by(BATCH as usize) {
        set.fill(first..(first + BATCH).min(members)).await?;
    }
    let user = Sharded::open(kind, &other, from).await?;
    let new = Arc::new(AtomicU64::new(0));
    let before = under_load(&user, members, &new, pause(bench.plan.window * BEFORE_ROUNDS)).await?;
    let start = Instant::now();
    let during = under_load(&user, members, &new, set.reshard(to)).await?;
    let took = start.elapsed();
    let (found, expected) = (set.len().await?, members + new.load(Ordering::Relaxed));
    if found != (expected, expected) {
        return Err(format!("{found:?} members of {expected}: some were lost, or doubled").into());
    }
    Ok((before, during, took))
}

/// Nothing goes on.
async fn pause(time: Duration) -> Result<()> {
    tokio::time::sleep(time).await;
    Ok(())
}

/// Reads and adds as long as something else goes on; what each op took, sorted.
async fn under_load(
    set: &Sharded,
    members: u64,
    new: &Arc<AtomicU64>,
    meanwhile: impl Future<Output = Result<()>>,
) -> Result<Vec<Duration>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks = (0..TASKS).map(|_| {
        let (set, is_over, new) = (set.clone(), is_over.clone(), new.clone());
        tokio::spawn(async move {
            let mut took = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                let start = Instant::now();
                if fastrand::bool() {
                    if !set.has(fastrand::u64(..members)).await? {
                        return Err("a member is lost".into());
                    }
                } else {
                    let told = set.add(format!("x{}", fastrand::u64(..)), fastrand::u64(..members)).await?;
                    new.fetch_add(told, Ordering::Relaxed);
                }
                took.push(start.elapsed());
            }
            Ok::<_, crate::Error>(took)
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let outcome = meanwhile.await;
    is_over.store(true, Ordering::Relaxed);
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    outcome?;
    all.sort_unstable();
    Ok(all)
}
