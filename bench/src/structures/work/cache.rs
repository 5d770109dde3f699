//! A cache whose value is there, or is made again and again.

use larder_core::StoreRef;
use larder_structures::Cache;
use larder_structures::cache::Source;

use super::{LEASE, VALUE_BYTES};
use crate::Result;
use crate::structures::jobs::Job;

/// The entry.
const KEY: &str = "k";
static VALUE: [u8; VALUE_BYTES] = [b'v'; VALUE_BYTES];

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Hit(Cache),
    /// A miss, what makes it a hit, and what makes it a miss again.
    Rebuild(Cache),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let cache = Cache::options().ttl(LEASE).open_or_create(store, name).await?;
    if job == Job::CacheRebuild {
        return Ok(Work::Rebuild(cache));
    }
    rebuild(&cache).await?;
    Ok(Work::Hit(cache))
}

/// Whether it was made, and is kept.
async fn rebuild(cache: &Cache) -> Result<bool> {
    let cached = cache.get_or_rebuild(KEY, async || Ok::<_, larder_core::Error>(&VALUE[..])).await?;
    Ok(matches!(cached.source, Source::Rebuilt(Ok(()))))
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Hit(cache) => {
                let hit = cache.get_or_rebuild(KEY, async || Err::<Vec<u8>, _>("it is there".to_owned().into()));
                let hit: Result<_> = hit.await;
                Ok(hit?.value.len() == VALUE_BYTES)
            }
            Work::Rebuild(cache) => {
                let is_made = rebuild(cache).await?;
                cache.invalidate(KEY).await?;
                Ok(is_made)
            }
        }
    }
}
