//! The jobs: what clients do with each structure.

mod counters;
mod drive;

use larder_structures::Kind;

use super::Job;

/// One or more for every structure.
pub const JOBS: &[Job] = &[
    Job { name: "counter", kind: Kind::Counter, run: |arena, run| counters::exact(arena, run) },
    Job { name: "fast counter", kind: Kind::FastCounter, run: |arena, run| counters::fast(arena, run) },
    Job { name: "visitors", kind: Kind::Visitors, run: |arena, run| counters::visitors(arena, run) },
];
