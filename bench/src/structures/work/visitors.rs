//! Visitor counters whose one window lasts longer than the run, and was hit before.

use larder_core::StoreRef;
use larder_structures::Visitors;

use super::{LEASE, MEMBERS};
use crate::Result;
use crate::structures::jobs::Job;

/// Visitors that are named beforehand: so many that they meet each of 256 shards.
const NAMED: u64 = 4_000;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Hit(Visitors),
    HitNamed(Visitors, u64),
    Get(Visitors),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    // Its shards stay small, and each was hit before the measurement begins.
    let (shards, named) = if job == Job::VisitorsHitNamed { (256, NAMED) } else { (1, MEMBERS as u64) };
    let visitors = Visitors::options().period(30 * 24 * LEASE).shards(shards).open_or_create(store, name).await?;
    visitors.hit().await?;
    for at in 0..named {
        visitors.hit_visitor(at.to_le_bytes()).await?;
    }
    Ok(match job {
        Job::VisitorsHit => Work::Hit(visitors),
        Job::VisitorsHitNamed => Work::HitNamed(visitors, NAMED),
        _ => Work::Get(visitors),
    })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Hit(visitors) => {
                visitors.hit().await?;
                Ok(true)
            }
            Work::HitNamed(visitors, at) => {
                *at += 1;
                visitors.hit_visitor(at.to_le_bytes()).await?;
                Ok(true)
            }
            Work::Get(visitors) => Ok(visitors.current().await? == 1 + MEMBERS as u64),
        }
    }
}
