//! Jobs on structures whose data the server holds in kinds of its own, and the bare commands of each.

use larder_core::StoreRef;
use larder_structures::lookup::{LookupKey, Rows};
use larder_structures::records::{Schema, Value as Field};
use larder_structures::{PackedRecords, PackedTable, ShardedHash, ShardedSet, ShardedSortedSet};
use redis::{Pipeline, Value};

use super::hands::first_of;
use super::jobs::Job;
use crate::Result;

/// Fields, members, records and rows that are there before.
const ELEMENTS: u64 = 10_000;
/// Members that a set is made for: every add is of a new one.
const ADDED: u64 = 2_000_000;
/// Bits of a record, as in the chapter on memory: a place.
const RECORD_BITS: u64 = 9;
/// What tells a collection that is there from one that was lost, and from another program's: a member of it, a field, or what its bytes begin with.
const MARK: &str = "mark";
/// Records that the mark takes the place of.
const RECORDS_OF_MARK: u64 = 4;
/// Each looks for the mark before it writes; of a number, whether it is there is enough.
const GUARDED_SADD: &str = "if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then return false end return redis.call('SADD', KEYS[1], ARGV[2])";
const GUARDED_HSET: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return false end return redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])";
const GUARDED_BITFIELD: &str = "if redis.call('GETRANGE', KEYS[1], '0', '3') ~= ARGV[1] then return false end return redis.call('BITFIELD', KEYS[1], 'SET', ARGV[2], ARGV[3], ARGV[4])";
const GUARDED_APPEND: &str = "if redis.call('GETRANGE', KEYS[1], '0', '3') ~= ARGV[1] then return false end return redis.call('APPEND', KEYS[1], ARGV[2])";
const GUARDED_INCRBY: &str =
    "if redis.call('EXISTS', KEYS[1]) == 0 then return false end return redis.call('INCRBY', KEYS[1], ARGV[2])";
/// Commands in a pipeline that fills.
const FILLED_AT_ONCE: usize = 1_000;

/// One with such a structure, and the number of its last step.
pub(super) struct Native {
    of: Of,
    job: Job,
    at: u64,
}

#[derive(Clone)]
enum Of {
    Hash(ShardedHash),
    Set(ShardedSet),
    Sorted(ShardedSortedSet),
    Records(PackedRecords),
    Table(PackedTable),
}

/// Which element a step is about: all of them, in no order.
fn drawn(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn element(at: u64) -> u64 {
    drawn(at) % ELEMENTS
}

/// Between the ends, nearly always, where nobody but the shard need know it.
fn score(at: u64) -> u64 {
    drawn(at ^ 0x5555) % 1_000_000
}

fn place(at: u64) -> u64 {
    at % (1 << RECORD_BITS)
}

fn value(at: u64) -> String {
    format!("value of {:023}", at % ELEMENTS)
}

impl Native {
    /// One handle for all of them; `None` for a job that is no such.
    pub(super) async fn ours(store: &StoreRef, job: Job, stem: &str, tasks: usize) -> Result<Option<Vec<Native>>> {
        let of = match job {
            Job::HashSet | Job::HashGet => {
                let hash = ShardedHash::options().expected(ELEMENTS).open_or_create(store, stem).await?;
                hash.set((0..ELEMENTS).map(|at| (at.to_string(), value(at)))).await?;
                Of::Hash(hash)
            }
            Job::MemberAdd | Job::MemberHas => {
                let expected = if job == Job::MemberAdd { ADDED } else { ELEMENTS };
                let set = ShardedSet::options().expected(expected).open_or_create(store, stem).await?;
                if job == Job::MemberHas {
                    set.add((0..ELEMENTS).map(|at| at.to_string())).await?;
                }
                Of::Set(set)
            }
            Job::ScoreSet => {
                let sorted = ShardedSortedSet::options().expected(ELEMENTS).open_or_create(store, stem).await?;
                sorted.set((0..ELEMENTS).map(|at| (at.to_string(), score(at) as f64))).await?;
                Of::Sorted(sorted)
            }
            Job::RecordSet | Job::RecordGet => {
                let schema = Schema::parse([format!("place:u{RECORD_BITS}").as_str()])?;
                let records = PackedRecords::options().schema(schema).open_or_create(store, stem).await?;
                let fields: Vec<_> = (0..ELEMENTS).map(|id| [("place", Field::from(place(id)))]).collect();
                records.set_many((0..).zip(fields.iter().map(|fields| &fields[..]))).await?;
                Of::Records(records)
            }
            Job::Lookup => {
                let mut rows = Rows::new(["value"])?;
                for id in 0..ELEMENTS {
                    rows.push_id(id, [value(id)])?;
                }
                let table = PackedTable::open_or_create(store, stem).await?;
                table.build(rows).await?;
                Of::Table(table)
            }
            _ => return Ok(None),
        };
        Ok(Some((0..tasks).map(|task| Native { of: of.clone(), job, at: first_of(task) }).collect()))
    }

    /// True if the answer is right.
    pub(super) async fn step(&mut self) -> Result<bool> {
        self.at += 1;
        let at = self.at;
        let id = element(at);
        Ok(match (&self.of, self.job) {
            (Of::Hash(hash), Job::HashSet) => hash.set([(id.to_string(), value(at))]).await? == [false],
            (Of::Hash(hash), _) => hash.get(id.to_string()).await?.is_some_and(|found| found == value(id)),
            (Of::Set(set), Job::MemberAdd) => set.add([at.to_string()]).await? == [true],
            (Of::Set(set), _) => set.has(id.to_string()).await?,
            (Of::Sorted(sorted), _) => sorted.set([(id.to_string(), score(at) as f64)]).await? == [false],
            (Of::Records(records), Job::RecordSet) => {
                records.set(id, &[("place", place(at).into())]).await?;
                true
            }
            (Of::Records(records), _) => records.get(id).await? == [Field::from(place(id))],
            (Of::Table(table), _) => {
                let found = table.get(LookupKey::from(id)).await?;
                found.is_some_and(|found| found.fields[0] == value(id))
            }
        })
    }

    /// How many bytes are read by one lookup, as far as it is one.
    pub(super) async fn block_bytes(&self) -> Result<usize> {
        let Of::Table(table) = &self.of else { return Ok(0) };
        let stat = table.stat().await?;
        Ok(usize::try_from(stat.bytes / u64::from(stat.blocks.max(1)))?)
    }
}

/// A command as its words.
pub(super) fn command(words: &[&str]) -> Pipeline {
    let mut trip = Pipeline::with_capacity(1);
    add(&mut trip, words);
    trip
}

fn add(trip: &mut Pipeline, words: &[&str]) {
    trip.cmd(words[0]);
    for word in &words[1..] {
        trip.arg(*word);
    }
}

/// Where a record is among the bits, behind the mark.
fn position(id: u64) -> String {
    format!("#{}", id + RECORDS_OF_MARK)
}

/// The script of who looks for a mark before it writes, if it takes one, and what makes the mark; `None` for a job that needs none, or has its own.
pub(super) fn guard(job: Job, key: &str) -> Option<(Option<&'static str>, Pipeline)> {
    Some(match job {
        Job::FastAdd => (Some(GUARDED_INCRBY), command(&["SET", key, "0"])),
        Job::SetAdd => (Some(GUARDED_APPEND), command(&["SET", key, MARK])),
        Job::UniqueAdd | Job::MemberAdd => (Some(GUARDED_SADD), command(&["SADD", key, MARK])),
        Job::HashSet => (Some(GUARDED_HSET), command(&["HSET", key, MARK, ""])),
        Job::RecordSet => (Some(GUARDED_BITFIELD), command(&["SETRANGE", key, "0", MARK])),
        Job::MemberHas => (None, command(&["SADD", key, MARK])),
        Job::HashGet => (None, command(&["HSET", key, MARK, ""])),
        Job::RecordGet => (None, command(&["SETRANGE", key, "0", MARK])),
        _ => return None,
    })
}

/// What a step of who looks for a mark sends: its script, by its name on the server, or a read of both.
pub(super) fn guarded_trip(job: Job, script: &str, key: &str, at: u64) -> Option<Pipeline> {
    let (id, member) = (element(at), at.to_string());
    let bits = format!("u{RECORD_BITS}");
    let send = |words: &[&str]| command(&[&["EVALSHA", script, "1", key, MARK], words].concat());
    Some(match job {
        Job::FastAdd => send(&["1"]),
        Job::UniqueAdd | Job::MemberAdd => send(&[&member]),
        Job::HashSet => send(&[&id.to_string(), &value(at)]),
        Job::SetAdd => send(&[&member]),
        Job::RecordSet => send(&[&bits, &position(id), &place(at).to_string()]),
        Job::HashGet => command(&["HMGET", key, MARK, &id.to_string()]),
        Job::MemberHas => command(&["SMISMEMBER", key, MARK, &id.to_string()]),
        Job::RecordGet => command(&["BITFIELD", key, "GET", "u32", "0", "GET", &bits, &position(id)]),
        _ => return None,
    })
}

/// The bare command of a step; `None` for a job that is none of these.
pub(super) fn trip(job: Job, key: &str, at: u64) -> Option<Pipeline> {
    let id = element(at).to_string();
    let bits = format!("u{RECORD_BITS}");
    let position = position(element(at));
    Some(match job {
        Job::HashSet => command(&["HSET", key, &id, &value(at)]),
        Job::HashGet => command(&["HGET", key, &id]),
        Job::MemberAdd => command(&["SADD", key, &at.to_string()]),
        Job::MemberHas => command(&["SISMEMBER", key, &id]),
        Job::ScoreSet => command(&["ZADD", key, &score(at).to_string(), &id]),
        Job::RecordSet => command(&["BITFIELD", key, "SET", &bits, &position, &place(at).to_string()]),
        Job::RecordGet => command(&["BITFIELD", key, "GET", &bits, &position]),
        Job::Lookup => command(&["GET", key]),
        _ => return None,
    })
}

/// What a read of both answers besides the mark; `None` where that is gone.
pub(super) fn behind_mark(job: Job, answer: &Value) -> Option<Value> {
    let Value::Array(both) = answer else { return None };
    let [mark, found] = &both[..] else { return None };
    match (job, mark) {
        (Job::HashGet, Value::BulkString(_)) | (Job::MemberHas, Value::Int(1)) => Some(found.clone()),
        (Job::RecordGet, Value::Int(mark)) if *mark == i64::from(u32::from_be_bytes(*b"mark")) => {
            Some(Value::Array(vec![found.clone()]))
        }
        _ => None,
    }
}

/// True if it is what the bare command of a step answers.
pub(super) fn is_right(job: Job, at: u64, answer: &Value) -> bool {
    let number = |wanted: i64| *answer == Value::Int(wanted);
    match (job, answer) {
        (Job::HashSet | Job::ScoreSet, _) => number(0),
        (Job::MemberAdd | Job::MemberHas, _) => number(1),
        (Job::HashGet, Value::BulkString(found)) => *found == value(element(at)).into_bytes(),
        (Job::RecordGet, Value::Array(found)) => found[..] == [Value::Int(place(element(at)) as i64)],
        (Job::RecordSet, Value::Array(_)) | (Job::Lookup, Value::BulkString(_)) => true,
        _ => false,
    }
}

/// What is there before the bare commands begin, some commands at a time.
pub(super) fn filling(job: Job, key: &str, block_bytes: usize) -> Vec<Pipeline> {
    let bits = format!("u{RECORD_BITS}");
    let fill = |trip: &mut Pipeline, at: u64| {
        let id = at.to_string();
        match job {
            Job::HashSet | Job::HashGet => add(trip, &["HSET", key, &id, &value(at)]),
            Job::MemberHas => add(trip, &["SADD", key, &id]),
            Job::ScoreSet => add(trip, &["ZADD", key, &score(at).to_string(), &id]),
            Job::RecordSet | Job::RecordGet => {
                add(trip, &["BITFIELD", key, "SET", &bits, &position(at), &place(at).to_string()]);
            }
            _ => {}
        }
    };
    if job == Job::Lookup {
        return vec![command(&["SET", key, &"x".repeat(block_bytes)])];
    }
    let ids: Vec<u64> = (0..ELEMENTS).collect();
    let trips = ids.chunks(FILLED_AT_ONCE).map(|ids| {
        let mut trip = Pipeline::with_capacity(ids.len());
        ids.iter().for_each(|&at| fill(&mut trip, at));
        trip
    });
    trips.filter(|trip| !trip.is_empty()).collect()
}
