//! A cache whose value is there.

use larder_core::StoreRef;
use larder_structures::Cache;

use super::{LEASE, VALUE_BYTES};
use crate::Result;

#[derive(Clone)]
pub(in crate::structures) struct Work(Cache);

pub(super) async fn begin(store: &StoreRef, name: &str) -> Result<Work> {
    let cache = Cache::options().ttl(LEASE).open_or_create(store, name).await?;
    cache.get_or_rebuild("k", async || Ok::<_, larder_core::Error>([b'v'; VALUE_BYTES].to_vec())).await?;
    Ok(Work(cache))
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        let hit = self.0.get_or_rebuild("k", async || Err::<Vec<u8>, _>("it is there".to_owned().into()));
        let hit: Result<_> = hit.await;
        Ok(hit?.value.len() == VALUE_BYTES)
    }
}
