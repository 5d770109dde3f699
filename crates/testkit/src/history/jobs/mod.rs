//! A workload for each structure.

mod counter;

use larder_core::Error;
use larder_structures::Kind;

use super::Job;
use super::record::Outcome;

/// All jobs.
pub const JOBS: &[Job] =
    &[Job { name: "counter", kind: Kind::Counter, run: |arena, run| Box::pin(counter::run(arena, run)) }];

/// What a result tells of its operation.
fn outcome<T, R>(result: Result<T, Error>, told: impl FnOnce(T) -> R) -> Outcome<R> {
    match result {
        Ok(value) => Outcome::Ok(told(value)),
        Err(error) if error.is_unknown() => Outcome::Unknown,
        Err(_) => Outcome::Failed,
    }
}
