//! Locks that nobody else wants.

use std::sync::Arc;

use larder_core::StoreRef;
use larder_structures::Lock;
use larder_structures::lock::{LockGuard, LockStatus, Released};

use super::LEASE;
use crate::Result;
use crate::structures::jobs::Job;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Cycle(Lock),
    /// Two handles: the one whose turn it is did not write last.
    Turns([Lock; 2], usize),
    Renew(Arc<LockGuard>),
    /// Of a lock that the guard holds.
    Status(Lock, Arc<LockGuard>),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let open = || Lock::options().lease(LEASE).open(store, name);
    let lock = open().await?;
    let held = async || Ok::<_, crate::Error>(Arc::new(lock.try_acquire().await?.ok_or("a new lock is held")?));
    Ok(match job {
        Job::LockTurns => Work::Turns([lock, open().await?], 0),
        Job::LockRenew => Work::Renew(held().await?),
        Job::LockStatus => Work::Status(lock.clone(), held().await?),
        _ => Work::Cycle(lock),
    })
}

async fn cycle(lock: &Lock) -> Result<bool> {
    let guard = lock.try_acquire().await?.ok_or("nobody else wants this lock")?;
    Ok(guard.release().await? == Released::Released)
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Cycle(lock) => cycle(lock).await,
            Work::Turns(locks, turn) => {
                *turn += 1;
                cycle(&locks[*turn % 2]).await
            }
            Work::Renew(guard) => {
                guard.renew().await?;
                Ok(true)
            }
            Work::Status(lock, guard) => Ok(guard.is_held() && matches!(lock.status().await?, LockStatus::Held(_))),
        }
    }
}
