//! Arrays.

use std::sync::LazyLock;

use larder_core::StoreRef;
use larder_structures::Array;

use super::{MEMBERS, member};
use crate::Result;
use crate::structures::jobs::Job;

/// After so many pushes an array is emptied: it would be full after some ten thousand.
const PUSHES_MAX: usize = 1_000;
/// Shards of the array whose changes go over several.
const SHARDS: u16 = 4;

/// Of one length, however far the changes have come, and made before anything is measured. An element comes back long after it has gone.
static ELEMENTS: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..64 * MEMBERS).map(|at| format!("element:{at:09}")).collect());

fn element(at: usize) -> &'static str {
    &ELEMENTS[at % ELEMENTS.len()]
}

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Push(Array, usize),
    /// The next element.
    Remove(Array, usize),
    Elements(Array),
    /// So many elements leave, from this one on, and as many come.
    Change(Array, usize, usize),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let shards = if job == Job::ArrayChangeShards { SHARDS } else { 1 };
    let array = Array::options().shards(shards).open_or_create(store, name).await?;
    if job == Job::ArrayPush {
        return Ok(Work::Push(array, 0));
    }
    array.push((0..MEMBERS).map(element)).await?;
    Ok(match job {
        Job::ArrayRemove => Work::Remove(array, 0),
        Job::ArrayChange => Work::Change(array, 1, 0),
        Job::ArrayChangeShards => Work::Change(array, usize::from(SHARDS), 0),
        _ => Work::Elements(array),
    })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Push(array, at) => {
                *at += 1;
                array.push([member(*at)]).await?;
                if at.is_multiple_of(PUSHES_MAX) {
                    array.remove((0..MEMBERS).map(member)).await?;
                }
                Ok(true)
            }
            // Once round, none is there any more: a remove does not ask.
            Work::Remove(array, at) => {
                *at += 1;
                array.remove([element(*at % MEMBERS)]).await?;
                Ok(true)
            }
            Work::Elements(array) => Ok(array.elements().await?.len() == MEMBERS),
            Work::Change(array, many, at) => {
                let go = *at..*at + *many;
                let come = go.start + MEMBERS..go.end + MEMBERS;
                *at += *many;
                array.change(come.map(element), go.map(element)).await?;
                Ok(true)
            }
        }
    }
}
