//! Visitor counters whose window lasts longer than the run, and was hit before, as those before it where they are read.

use std::time::{Duration, SystemTime};

use larder_core::StoreRef;
use larder_structures::Visitors;

use super::MEMBERS;
use crate::Result;
use crate::structures::jobs::Job;

/// As long as a window may be.
const PERIOD: Duration = Duration::from_secs(30 * 24 * 3600);
/// Visitors that are named beforehand: so many that they meet each of 256 shards.
const NAMED: u64 = 4_000;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Hit(Visitors),
    HitNamed(Visitors, u64),
    Get(Visitors),
    Interpolated(Visitors),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    // Its shards stay small, and each was hit before the measurement begins.
    let (shards, named) = if job == Job::VisitorsHitNamed { (256, NAMED) } else { (1, MEMBERS as u64) };
    let visitors = Visitors::options().period(PERIOD).shards(shards).open_or_create(store, name).await?;
    visitors.hit().await?;
    for at in 0..named {
        visitors.hit_visitor(at.to_le_bytes()).await?;
    }
    if job == Job::VisitorsInterpolated {
        let now = SystemTime::now();
        for time in [now - PERIOD, now - 2 * PERIOD] {
            for at in 0..named {
                visitors.hit_visitor_at(at.to_le_bytes(), time).await?;
            }
        }
    }
    Ok(match job {
        Job::VisitorsInterpolated => Work::Interpolated(visitors),
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
            // Both windows have as many: so it has, wherever between them it is.
            Work::Interpolated(visitors) => Ok(visitors.interpolated().await? == MEMBERS as u64),
        }
    }
}
