//! Job C: where each user is, and how many are where.

use std::time::{Duration, Instant};

use bytes::Bytes;
use larder_core::native::{BitField, Families, Native, NativeReply};
use larder_core::{Batch, Ctx, Key, Op, StoreExt, StoreRef, Want};
use larder_structures::inspect::inspect;
use larder_structures::records::{Schema, Value};
use larder_structures::{Name, PackedRecords};

use super::ground::{Ground, Held, On, put, run};
use super::{Bench, CHAPTER, LARDER, Laid, PLAIN, RESIDENT_MAX, Sizes};
use crate::Result;
use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::Step;

/// Different places, of which some are far more frequent than others.
const PLACES: usize = 320;
/// Users a string, by the chapter; two bytes each.
const CHAPTER_USERS: u64 = 1 << 20;
/// How many records go out together.
const BATCH: u64 = 1 << 16;
/// Of a plain read, how many bytes are read at once.
const BLOCK_BYTES: usize = 2 << 20;
const PATIENCE: Duration = Duration::from_secs(120);
const AGGREGATE_MS_MAX: f64 = 10.0;
/// The most time over a plain read of as many bytes.
const OVER_PLAIN_MAX: f64 = 1.5;
const READ: &str = "plain read";

fn bytes_max(on: On) -> Option<f64> {
    match on {
        On::Memory => Some(1.125),
        On::Memcached => Some(1.15),
        On::Redis => Some(1.13),
        On::Folder => None,
    }
}

/// The place of a user: the square makes some places some hundred times as frequent as others.
fn place(id: u64) -> usize {
    (fastrand::Rng::with_seed(id).f64().powi(2) * PLACES as f64) as usize
}

fn labels() -> Vec<String> {
    (0..PLACES).map(|place| format!("P{place:03}")).collect()
}

/// Where users are looked up.
#[derive(Clone)]
struct Locate {
    at: At,
    users: u64,
    random: fastrand::Rng,
}

#[derive(Clone)]
enum At {
    Items(StoreRef),
    /// A string of Redis's own.
    Strings(StoreRef),
    Bits(StoreRef),
    Records(PackedRecords),
}

fn user_key(id: u64) -> String {
    format!("user:{id}")
}

fn bits(id: u64) -> (String, u64) {
    (format!("location:{}", id / CHAPTER_USERS), id % CHAPTER_USERS * 16)
}

impl Step for Locate {
    async fn step(&mut self) -> Result<()> {
        let id = self.random.u64(..self.users);
        let expected = format!("P{:03}", place(id));
        let is_right = match &self.at {
            At::Records(records) => {
                let found = records.get(id).await?;
                found.first().is_some_and(|value| *value == Value::from(expected.as_str()))
            }
            At::Items(store) => {
                store.get(Key::new(user_key(id))?).await?.is_some_and(|item| item.value == expected.as_bytes())
            }
            At::Strings(store) => {
                let read = Native::BitsRead { offset_bytes: 0, len_bytes: 16 };
                let reply = store.run_one(Ctx::default(), Op::native(Key::new(user_key(id))?, read)).await?;
                matches!(reply.into_native(), Some(NativeReply::Bytes(bytes)) if bytes == expected.as_bytes())
            }
            At::Bits(store) => {
                let (key, offset) = bits(id);
                let get = Native::Bits(vec![BitField::get(16, offset)]);
                let reply = store.run_one(Ctx::default(), Op::native(Key::new(key)?, get)).await?;
                matches!(reply.into_native(), Some(NativeReply::Numbers(found)) if found == [Some(place(id) as u64)])
            }
        };
        if is_right { Ok(()) } else { Err(format!("user {id} is elsewhere").into()) }
    }
}

pub(super) fn hold_all(bench: &Bench<'_>, on: On, sizes: Sizes, found: &mut Vec<Contest>) -> Result<()> {
    let job = format!("C, locations, {}", on.name());
    if !bench.wants(&job) {
        return Ok(());
    }
    let users = sizes.elements;
    let mut laid: Vec<Laid<Locate>> = Vec::new();
    if on == On::Redis {
        let load = async |ground: &Ground| strings(ground, users).await;
        laid.push(bench.lay(on, (PLAIN, "a string a user"), None, users, load)?);
        let load = async |ground: &Ground| shared_strings(ground, users).await;
        laid.push(bench.lay(on, (CHAPTER, "2 bytes a user"), None, users, load)?);
    } else {
        let load = async |ground: &Ground| items(ground, users).await;
        laid.push(bench.lay(on, (PLAIN, "an item a user"), None, users, load)?);
    }
    let load = async |ground: &Ground| records(ground, users).await;
    laid.push(bench.lay(on, (LARDER, "PackedRecords"), None, users, load)?);
    found.push(bench.memory(
        &format!("{job}: memory"),
        users,
        &laid,
        (bytes_max(on), on.resident_max(RESIDENT_MAX)),
        sizes,
    ));
    found.push(bench.loading(&format!("{job}: loading"), &laid));
    let goal = Goal { ours: LARDER, against: vec![CHAPTER, PLAIN], limit: None };
    found.push(bench.ops(&format!("{job}: one is looked up"), &laid, &[goal])?);
    found.push(aggregate(bench, on, &job, &laid, sizes)?);
    Ok(())
}

fn work(at: At, users: u64) -> Locate {
    Locate { at, users, random: fastrand::Rng::with_seed(4) }
}

async fn items(ground: &Ground, users: u64) -> Result<(Locate, Held)> {
    let (before, labels) = (ground.held()?, labels());
    run(&ground.store, (0..users).map(|id| put(user_key(id), labels[place(id)].clone()))).await?;
    Ok((work(At::Items(ground.store.clone()), users), before))
}

async fn strings(ground: &Ground, users: u64) -> Result<(Locate, Held)> {
    let (before, labels) = (ground.held()?, labels());
    let ops = (0..users).map(|id| {
        let value = Bytes::from(labels[place(id)].clone());
        Ok(Op::native(Key::new(user_key(id))?, Native::BitsMake { value }))
    });
    run(&ground.store, ops).await?;
    Ok((work(At::Strings(ground.store.clone()), users), before))
}

/// Written in the order of the ids, as the chapter does: each string grows as it is filled.
async fn shared_strings(ground: &Ground, users: u64) -> Result<(Locate, Held)> {
    let before = ground.held()?;
    let ops = (0..users).map(|id| {
        let (key, offset) = bits(id);
        Ok(Op::native(Key::new(key)?, Native::Bits(vec![BitField::set(16, offset, place(id) as u64)])))
    });
    run(&ground.store, ops).await?;
    Ok((work(At::Bits(ground.store.clone()), users), before))
}

async fn records(ground: &Ground, users: u64) -> Result<(Locate, Held)> {
    let (before, labels) = (ground.held()?, labels());
    let schema = Schema::new().choice("place", labels.iter().map(String::as_str)).build()?;
    let options = PackedRecords::options().schema(schema).timeout(PATIENCE);
    let records = options.open_or_create(&ground.store, "users").await?;
    for first in (0..users).step_by(BATCH as usize) {
        let entries: Vec<(u64, [(&str, Value); 1])> = (first..users.min(first + BATCH))
            .map(|id| (id, [("place", Value::from(labels[place(id)].as_str()))]))
            .collect();
        records.set_many(entries.iter().map(|(id, fields)| (*id, &fields[..]))).await?;
    }
    Ok((work(At::Records(records), users), before))
}

/// All are counted by their place, beside a read of as many bytes over the same connection, in batches of the same size, as far ahead, with nothing counted.
fn aggregate(bench: &Bench<'_>, on: On, job: &str, laid: &[Laid<Locate>], sizes: Sizes) -> Result<Contest> {
    let ours = laid.iter().find(|one| one.label == LARDER).ok_or("no records")?;
    let At::Records(records) = &ours.work.at else { return Err("no records".into()) };
    let store = &ours.ground.store;
    let labels = labels();
    let mut counts = vec![0u64; PLACES];
    (0..sizes.elements).for_each(|id| counts[place(id)] += 1);
    let plain = bench.runtime.block_on(PlainRead::make(store, sizes.elements))?;
    let contestants = vec![
        Contestant::new(LARDER, String::new(), || {
            let from = Instant::now();
            let found = bench.runtime.block_on(records.aggregate(&["place"]))?;
            let took = from.elapsed();
            let is_right = labels.iter().zip(&counts).all(|(label, &n)| found.count(&[label.as_str().into()]) == n);
            if is_right { Ok(took.as_secs_f64() * 1e3) } else { Err("the users are elsewhere".into()) }
        }),
        Contestant::new(READ, String::new(), || bench.runtime.block_on(plain.run(store))),
    ];
    let (most, ratio) = match on {
        On::Redis => (sizes.goal(Limit::AtMost(AGGREGATE_MS_MAX)), sizes.goal(Limit::AtMost(OVER_PLAIN_MAX))),
        _ => (None, None),
    };
    let goals = [
        Goal { ours: LARDER, against: Vec::new(), limit: most },
        Goal { ours: LARDER, against: vec![READ], limit: ratio },
    ];
    let rounds = bench.plan.rounds;
    contest::hold(bench.progress, &format!("{job}: all are counted"), Unit::Millis, rounds, contestants, &goals)
}

/// How large the shards of the records are.
async fn shard_bytes(store: &StoreRef) -> Result<usize> {
    let found = inspect(store, Ctx::default(), &Name::new("users")?).await?.ok_or("no records")?;
    let told = found.params.iter().find(|(what, _)| *what == "bytes a shard").ok_or("shards of no size")?;
    Ok(told.1.parse()?)
}

/// As many bytes as the records take, in items of the same size.
struct PlainRead {
    keys: Vec<Key>,
    shard_bytes: usize,
    a_batch: usize,
    is_native: bool,
}

impl PlainRead {
    async fn make(store: &StoreRef, users: u64) -> Result<PlainRead> {
        let profile = store.profile();
        let is_native = profile.natives.contains(Families::BITS);
        let shard_bytes = shard_bytes(store).await?;
        let shards = (usize::try_from(users)? * 9 / 8).div_ceil(shard_bytes);
        let keys: Vec<Key> =
            (0..shards).map(|shard| Key::new(format!("plain-{shard}"))).collect::<larder_core::Result<_>>()?;
        let value = Bytes::from(vec![0x5a; shard_bytes]);
        let make = keys.iter().map(|key| match is_native {
            true => Ok(Op::native(key.clone(), Native::BitsMake { value: value.clone() })),
            false => put(String::from_utf8_lossy(key.as_bytes()).into_owned(), value.clone()),
        });
        for op in make {
            run(store, [op]).await?;
        }
        let a_batch = (BLOCK_BYTES / shard_bytes).clamp(1, profile.batch_ops_max);
        Ok(PlainRead { keys, shard_bytes, a_batch, is_native })
    }

    /// Milliseconds. A batch is under way while the one before it is looked at, as ours has it.
    async fn run(&self, store: &StoreRef) -> Result<f64> {
        let read = |key: &Key| match self.is_native {
            true => {
                Op::native(key.clone(), Native::BitsRead { offset_bytes: 0, len_bytes: self.shard_bytes as u64 + 1 })
            }
            false => Op::get(key.clone(), Want::VALUE),
        };
        let begin = |part: &[Key]| {
            let (store, batch) = (store.clone(), part.iter().map(read).collect::<Batch>());
            tokio::spawn(async move { store.run(Ctx::default(), batch).await })
        };
        let from = Instant::now();
        let mut parts = self.keys.chunks(self.a_batch);
        let mut under_way = parts.next().map(begin);
        while let Some(current) = under_way.take() {
            under_way = parts.next().map(begin);
            for reply in current.await? {
                reply?;
            }
        }
        Ok(from.elapsed().as_secs_f64() * 1e3)
    }
}
