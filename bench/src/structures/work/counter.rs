//! Counters.

use larder_core::StoreRef;
use larder_structures::Counter;

use crate::Result;
use crate::structures::jobs::Job;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Add(Counter),
    /// As a process does that adds once and ends.
    FirstAdd(Counter),
    Get(Counter),
    Reset(Counter),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let counter = match job {
        Job::FastAdd | Job::FastGet => Counter::options().fast().open_or_create(store, name).await?,
        _ => Counter::open_or_create(store, name).await?,
    };
    Ok(match job {
        Job::CounterFirstAdd => Work::FirstAdd(counter),
        Job::CounterReset => Work::Reset(counter),
        Job::CounterGet | Job::FastGet => {
            counter.add(1).await?;
            Work::Get(counter)
        }
        _ => Work::Add(counter),
    })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        Ok(match self {
            Work::Add(counter) => {
                counter.add(1).await?;
                true
            }
            Work::FirstAdd(counter) => {
                counter.add(1).await?;
                counter.release().await?;
                true
            }
            Work::Get(counter) => counter.get().await? == 1,
            Work::Reset(counter) => {
                counter.add(1).await?;
                counter.reset().await? == 1
            }
        })
    }
}
