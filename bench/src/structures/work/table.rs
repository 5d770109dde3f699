//! Tables of one entry.

use larder_core::StoreRef;
use larder_structures::Table;

use super::VALUE_BYTES;
use crate::Result;
use crate::structures::jobs::Job;

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Put(Table),
    Get(Table),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let table = Table::open_or_create(store, name).await?;
    table.put("k", [b'v'; VALUE_BYTES]).await?;
    table.settle().await;
    Ok(if job == Job::TablePut { Work::Put(table) } else { Work::Get(table) })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Put(table) => {
                table.put("k", [b'v'; VALUE_BYTES]).await?;
                Ok(true)
            }
            Work::Get(table) => Ok(table.get("k").await?.is_some_and(|value| value.len() == VALUE_BYTES)),
        }
    }
}
