//! Sets of a hundred members.

use larder_core::StoreRef;
use larder_structures::Set;

use super::{MEMBERS, member};
use crate::Result;
use crate::structures::jobs::Job;

#[derive(Clone)]
pub(in crate::structures) struct Work {
    job: Job,
    set: Set,
    /// The next member.
    at: usize,
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let set = Set::open_or_create(store, name).await?;
    set.add((0..MEMBERS).map(member)).await?;
    Ok(Work { job, set, at: 0 })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        self.at += 1;
        Ok(match self.job {
            Job::SetAddMany => {
                self.set.add((0..MEMBERS).map(member)).await?;
                true
            }
            Job::SetRemove => {
                self.set.remove([member(self.at)]).await?;
                true
            }
            Job::SetMembers => {
                // Each is looked at: a list that nobody reads would be no work.
                let members = self.set.members().await?;
                members.iter().filter(|member| member.starts_with(b"member:")).count() == MEMBERS
            }
            Job::SetHas => self.set.has(member(self.at)).await?,
            Job::SetStat => self.set.stat().await?.members == MEMBERS as u64,
            Job::SetCompact => {
                self.set.add([member(self.at)]).await?;
                self.set.compact().await?.members == MEMBERS as u64
            }
            _ => {
                self.set.add([member(self.at)]).await?;
                true
            }
        })
    }
}
