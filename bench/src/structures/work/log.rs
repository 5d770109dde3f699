//! Event logs of one chunk, however long it takes.

use larder_core::StoreRef;
use larder_structures::EventLog;

use super::{LEASE, MEMBERS, member};
use crate::Result;
use crate::structures::jobs::Job;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Put(EventLog, usize),
    Fetch(EventLog),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let log = EventLog::options().chunk(LEASE * 24).open_or_create(store, name).await?;
    log.put_all((0..MEMBERS).map(|at| (log.now_ms(), member(at)))).await?;
    Ok(if job == Job::LogPut { Work::Put(log, 0) } else { Work::Fetch(log) })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Put(log, at) => {
                *at += 1;
                log.put(member(*at)).await?;
                Ok(true)
            }
            Work::Fetch(log) => {
                let events = log.fetch(..).await?.whole()?;
                Ok(events.iter().filter(|event| event.bytes.starts_with(b"member:")).count() == MEMBERS)
            }
        }
    }
}
