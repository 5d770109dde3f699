//! Arrays.

use larder_core::StoreRef;
use larder_structures::Array;

use super::{MEMBERS, member};
use crate::Result;
use crate::structures::jobs::Job;

/// After so many pushes an array is emptied: it would be full after some ten thousand.
const PUSHES_MAX: usize = 1_000;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Push(Array, usize),
    Elements(Array),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let array = Array::open_or_create(store, name).await?;
    if job == Job::ArrayPush {
        return Ok(Work::Push(array, 0));
    }
    array.push((0..MEMBERS).map(member)).await?;
    Ok(Work::Elements(array))
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
            Work::Elements(array) => Ok(array.elements().await?.len() == MEMBERS),
        }
    }
}
