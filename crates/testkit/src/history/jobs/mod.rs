//! The jobs: what clients do with each structure.

mod caches;
mod counters;
mod drive;
mod locks;
mod logs;
mod maps;
pub mod planted;
pub(crate) mod queues;
mod records;
mod sharded;
mod tables;

use larder_structures::Kind;

use super::{Arena, Boxed, Job, Run, Verdict};

/// One or more for every structure.
pub const JOBS: &[Job] = &[
    job("lock", Kind::Lock, locks::lock),
    job("counter", Kind::Counter, counters::exact),
    job("fast counter", Kind::FastCounter, counters::fast),
    job("set", Kind::Set, maps::set),
    job("visitors", Kind::Visitors, counters::visitors),
    job("event log", Kind::EventLog, logs::log),
    job("array", Kind::Array, maps::array),
    job("array changes", Kind::Array, maps::array_changes),
    job("table", Kind::Table, maps::table),
    job("queue", Kind::Queue, queues::queue),
    job("stack", Kind::Stack, queues::stack),
    job("cache", Kind::Cache, caches::cache),
    job("unique visitors", Kind::UniqueVisitors, records::unique),
    job("packed records", Kind::Records, records::records),
    job("highest id", Kind::Records, records::highest),
    job("sharded hash", Kind::ShardedHash, sharded::hash),
    job("sharded set", Kind::ShardedSet, sharded::set),
    job("sharded sorted set", Kind::ShardedSortedSet, sharded::sorted_set),
    job("packed table", Kind::PackedTable, tables::packed),
];

const fn job(name: &'static str, kind: Kind, run: fn(Arena, Run) -> Boxed<Verdict>) -> Job {
    Job { name, kind, run }
}
