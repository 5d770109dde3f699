//! Those who do a job, step by step.

use std::sync::Arc;
use std::time::Duration;

use distkit::DistkitRedisKey;
use distkit::counter::{CounterOptions, CounterTrait, StrictCounter};
use distkit::lock::{LockOptions, Mutex};
use larder_core::StoreRef;
use larder_structures::lock::Released;
use larder_structures::{Counter, Lock, Set, UniqueVisitors};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use rslock::LockManager;

use super::clients;
use super::jobs::Job;
use super::natives::{self, Native, command};
use crate::Result;
use crate::drive::Step;

/// No run outlasts it.
const LEASE: Duration = Duration::from_secs(3600);
/// Members of a set.
const MEMBERS: u64 = 100;
/// Visitors that a day is made for; those who are counted.
const EXPECTED: u64 = 1_000_000;
const COUNTED: u64 = 10_000;

const UNLOCK: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
/// Nobody counts exactly without comparing: a blind increment that is sent again counts twice.
const SWAP: &str =
    "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('SET', KEYS[1], ARGV[2]) return 1";
/// The same of a value that has a life: a lock whose tokens never fall keeps the last one where nobody holds it, so each change is made over what was read.
const SWAP_MORTAL: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1";
/// How long a lock's record lives, in milliseconds: as long as ours.
const RECORD_MS: &str = "2592000000";

/// Somebody with a structure.
pub(super) enum Hand {
    Lock(Lock),
    Counter(Counter),
    SetAdd(Set, u64),
    SetRead(Set),
    UniqueAdd(UniqueVisitors, u64),
    UniqueCount(UniqueVisitors),
    Native(Native),
    Rslock(LockManager, String),
    DistkitLock(Arc<Mutex>),
    DistkitCounter(Arc<StrictCounter>, DistkitRedisKey),
}

fn member(at: u64) -> String {
    format!("member:{:03}", at % MEMBERS)
}

/// The record of a lock that nobody holds, with the token of who held it last; of one that is held.
fn free(token: u64) -> String {
    format!("free:{token:016x}")
}

fn held(token: u64) -> String {
    format!("held:{token:016x}:{:016x}", fastrand::u64(..))
}

/// Tasks draw from ranges of their own.
pub(super) fn first_of(task: usize) -> u64 {
    task as u64 * 1_000_000_000
}

impl Hand {
    /// Ours: a lock a task, one handle of everything else for all of them.
    pub(super) async fn ours(store: &StoreRef, job: Job, stem: &str, tasks: usize) -> Result<Vec<Hand>> {
        let mut hands = Vec::with_capacity(tasks);
        match job {
            Job::LockCycle => {
                for task in 0..tasks {
                    hands.push(Hand::Lock(Lock::options().lease(LEASE).open(store, format!("{stem}-{task}")).await?));
                }
            }
            Job::CounterAdd | Job::FastAdd => {
                let options = if job == Job::FastAdd { Counter::options().fast() } else { Counter::options() };
                let counter = options.open_or_create(store, stem).await?;
                hands.extend((0..tasks).map(|_| Hand::Counter(counter.clone())));
            }
            Job::SetAdd | Job::SetRead => {
                let set = Set::open_or_create(store, stem).await?;
                set.add((0..MEMBERS).map(member)).await?;
                let hand = |task| match job {
                    Job::SetAdd => Hand::SetAdd(set.clone(), task as u64),
                    _ => Hand::SetRead(set.clone()),
                };
                hands.extend((0..tasks).map(hand));
            }
            Job::UniqueAdd | Job::UniqueCount => {
                let options = UniqueVisitors::options().expected(EXPECTED);
                let visitors = options.open_or_create(store, stem).await?;
                // The day is made by the first.
                let counted = if job == Job::UniqueAdd { 1 } else { COUNTED };
                visitors.add((0..counted).map(|at| u64::MAX - at)).await?;
                let hand = |task| match job {
                    Job::UniqueAdd => Hand::UniqueAdd(visitors.clone(), first_of(task)),
                    _ => Hand::UniqueCount(visitors.clone()),
                };
                hands.extend((0..tasks).map(hand));
            }
            _ => {
                let natives = Native::ours(store, job, stem, tasks).await?;
                hands.extend(natives.ok_or("a job that nobody does")?.into_iter().map(Hand::Native));
            }
        }
        Ok(hands)
    }

    /// A resource a task, one manager of one connection.
    pub(super) async fn rslock(url: &str, stem: &str, tasks: usize) -> Result<Vec<Hand>> {
        let manager = LockManager::new(vec![url]);
        Ok((0..tasks).map(|task| Hand::Rslock(manager.clone(), format!("rslock-{stem}-{task}"))).collect())
    }

    /// `None` for what it does not have.
    pub(super) async fn distkit(url: &str, job: Job, stem: &str, tasks: usize) -> Result<Option<Vec<Hand>>> {
        let conn = clients::manager(url).await?;
        let key = |text: String| DistkitRedisKey::try_from(text);
        Ok(match job {
            Job::LockCycle => {
                let lock = |task| -> Result<Hand> {
                    let options = LockOptions::builder(key(format!("distkit-{stem}-{task}"))?, conn.clone());
                    Ok(Hand::DistkitLock(Mutex::new(options.ttl(LEASE).build())))
                };
                Some((0..tasks).map(lock).collect::<Result<_>>()?)
            }
            Job::CounterAdd | Job::FastAdd => {
                let counter = StrictCounter::new(CounterOptions::new(key("distkit".to_owned())?, conn));
                let key = key(stem.to_owned())?;
                Some((0..tasks).map(|_| Hand::DistkitCounter(counter.clone(), key.clone())).collect())
            }
            _ => None,
        })
    }
}

impl Step for Hand {
    async fn step(&mut self) -> Result<()> {
        let is_right = match self {
            Hand::Lock(lock) => {
                let guard = lock.try_acquire().await?.ok_or("nobody else wants this lock")?;
                guard.release().await? == Released::Released
            }
            Hand::Counter(counter) => {
                counter.add(1).await?;
                true
            }
            Hand::SetAdd(set, at) => {
                *at += 1;
                set.add([member(*at)]).await?;
                true
            }
            Hand::SetRead(set) => {
                // Each is looked at: a list that nobody reads would be no work.
                let members = set.members().await?;
                members.iter().filter(|member| member.starts_with(b"member:")).count() as u64 == MEMBERS
            }
            Hand::UniqueAdd(visitors, at) => {
                *at += 1;
                visitors.add([*at]).await?.len() == 1
            }
            Hand::UniqueCount(visitors) => visitors.count().await?.visitors >= COUNTED - 1,
            Hand::Native(native) => native.step().await?,
            Hand::Rslock(manager, resource) => {
                let lock = manager.lock(resource.as_str(), LEASE).await?;
                manager.unlock(&lock).await;
                true
            }
            Hand::DistkitLock(mutex) => {
                mutex.try_lock().await?.release().await?;
                true
            }
            Hand::DistkitCounter(counter, key) => counter.inc(key, 1).await? > 0,
        };
        if is_right { Ok(()) } else { Err("a structure answered what it must not".into()) }
    }
}

/// What the bare commands must be about so that they do no less than ours.
#[derive(Clone, Copy)]
pub(super) struct Likeness {
    /// Over how many sets is spread what is counted.
    shards: u32,
    /// How long is what a lookup reads.
    block_bytes: usize,
}

impl Hand {
    pub(super) async fn likeness(&self) -> Result<Likeness> {
        let mut likeness = Likeness { shards: 1, block_bytes: 0 };
        match self {
            Hand::UniqueCount(visitors) => {
                let today = visitors.period_of(std::time::SystemTime::now())?;
                likeness.shards = visitors.stat(today).await?.ok_or("nobody came today")?.shards;
            }
            Hand::Native(native) => likeness.block_bytes = native.block_bytes().await?,
            _ => {}
        }
        Ok(likeness)
    }
}

/// Somebody with nothing but commands.
pub(super) struct Bare {
    conn: MultiplexedConnection,
    job: Job,
    key: String,
    at: u64,
    unlock: String,
    swap: String,
    /// The keys that a count asks.
    shards: Vec<String>,
    /// Between two round trips it starts a task that does nothing.
    starts_a_task: bool,
    /// What it writes tells a loss, as ours does: by this script, which looks before it writes.
    guard: Option<String>,
}

impl Bare {
    /// One a task.
    pub(super) async fn all(
        mut conn: MultiplexedConnection,
        job: Job,
        stem: &str,
        tasks: usize,
        likeness: Likeness,
    ) -> Result<Vec<Bare>> {
        let unlock: String = redis::cmd("SCRIPT").arg("LOAD").arg(UNLOCK).query_async(&mut conn).await?;
        let swap: String = redis::cmd("SCRIPT").arg("LOAD").arg(SWAP).query_async(&mut conn).await?;
        let key = |task: usize| match job {
            Job::LockCycle | Job::CounterAdd => format!("bare-{stem}-{task}"),
            _ => format!("bare-{stem}"),
        };
        let shards: Vec<String> = (0..likeness.shards).map(|shard| format!("bare-{stem}-{shard}")).collect();
        let filled: Vec<(String, String)> = match job {
            Job::SetRead => (0..MEMBERS).map(|at| (key(0), member(at))).collect(),
            Job::UniqueCount => {
                (0..COUNTED).zip(shards.iter().cycle()).map(|(at, shard)| (shard.clone(), at.to_string())).collect()
            }
            _ => Vec::new(),
        };
        for (key, member) in filled {
            redis::cmd("SADD").arg(key).arg(member).exec_async(&mut conn).await?;
        }
        for trip in natives::filling(job, &key(0), likeness.block_bytes) {
            trip.exec_async(&mut conn).await?;
        }
        if job == Job::CounterAdd {
            for task in 0..tasks {
                redis::cmd("SET").arg(key(task)).arg(first_of(task)).exec_async(&mut conn).await?;
            }
        }
        let bare = |task| Bare {
            conn: conn.clone(),
            job,
            key: key(task),
            at: first_of(task),
            unlock: unlock.clone(),
            swap: swap.clone(),
            shards: shards.clone(),
            starts_a_task: false,
            guard: None,
        };
        Ok((0..tasks).map(bare).collect())
    }

    pub(super) fn starting_a_task(self) -> Bare {
        Bare { starts_a_task: true, ..self }
    }

    /// With the least that tells a loss, as anybody would write it who needs that: of a lock a fencing token, and the record of one that is free is made before; of all else a mark, or a number behind one.
    /// `None` for a job that has no such.
    pub(super) async fn guarded(mut self) -> Result<Option<Bare>> {
        let (script, makes) = match self.job {
            Job::LockCycle => (Some(SWAP_MORTAL), command(&["SET", &self.key, &free(self.at)])),
            job => match natives::guard(job, &self.key) {
                Some(guard) => guard,
                None => return Ok(None),
            },
        };
        let script: String = match script {
            Some(script) => redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut self.conn).await?,
            None => String::new(),
        };
        makes.exec_async(&mut self.conn).await?;
        Ok(Some(Bare { guard: Some(script), ..self }))
    }

    /// The commands of a step: a pipeline a round trip.
    fn trips(&self) -> Vec<Pipeline> {
        let (key, at) = (self.key.as_str(), self.at.to_string());
        match (self.job, self.guard.as_deref()) {
            (Job::LockCycle, Some(script)) => {
                let (before, held, after) = (free(self.at - 1), held(self.at), free(self.at));
                let swap = |from: &str, to: &str| command(&["EVALSHA", script, "1", key, from, to, RECORD_MS]);
                return vec![swap(&before, &held), swap(&held, &after)];
            }
            (job, Some(script)) => return natives::guarded_trip(job, script, key, self.at).into_iter().collect(),
            (_, None) => {}
        }
        match self.job {
            Job::LockCycle => {
                vec![
                    command(&["SET", key, &at, "NX", "PX", "3600000"]),
                    command(&["EVALSHA", &self.unlock, "1", key, &at]),
                ]
            }
            Job::CounterAdd => {
                let before = (self.at - 1).to_string();
                vec![command(&["EVALSHA", &self.swap, "1", key, &before, &at])]
            }
            Job::FastAdd => vec![command(&["INCRBY", key, "1"])],
            Job::SetAdd => vec![command(&["SADD", key, &member(self.at)])],
            Job::SetRead => vec![command(&["SMEMBERS", key])],
            Job::UniqueAdd => vec![command(&["SADD", key, &at])],
            Job::UniqueCount => {
                let mut trip = Pipeline::with_capacity(2 * self.shards.len());
                for shard in &self.shards {
                    // A mark tells a shard that is there from one that was lost.
                    trip.cmd("SISMEMBER").arg(shard).arg("mark").cmd("SCARD").arg(shard);
                }
                vec![trip]
            }
            job => natives::trip(job, key, self.at).into_iter().collect(),
        }
    }
}

impl Step for Bare {
    async fn step(&mut self) -> Result<()> {
        self.at += 1;
        for (at, trip) in self.trips().into_iter().enumerate() {
            if self.starts_a_task && at > 0 {
                tokio::spawn(async {});
            }
            let values: Vec<Value> = trip.query_async(&mut self.conn).await?;
            let is_right = match (self.job, values.first()) {
                (_, None | Some(Value::ServerError(_) | Value::Nil)) => false,
                (Job::SetRead, Some(Value::Array(members))) => members.len() as u64 == MEMBERS,
                (Job::UniqueCount, _) => {
                    let counts = values
                        .iter()
                        .skip(1)
                        .step_by(2)
                        .filter_map(|value| if let Value::Int(count) = value { Some(*count as u64) } else { None });
                    counts.sum::<u64>() == COUNTED
                }
                (Job::LockCycle | Job::CounterAdd, Some(Value::Int(done))) => *done == 1,
                (Job::LockCycle | Job::FastAdd | Job::SetAdd | Job::SetRead | Job::UniqueAdd, _) => true,
                (Job::HashGet | Job::MemberHas | Job::RecordGet, Some(both)) if self.guard.is_some() => {
                    natives::behind_mark(self.job, both)
                        .is_some_and(|found| natives::is_right(self.job, self.at, &found))
                }
                (job, Some(answer)) => natives::is_right(job, self.at, answer),
            };
            if !is_right {
                return Err(format!("{values:?} to {:?}", self.job).into());
            }
        }
        Ok(())
    }
}
