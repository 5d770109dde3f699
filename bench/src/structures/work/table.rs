//! Tables.

use larder_core::StoreRef;
use larder_structures::Table;

use super::{MEMBERS, VALUE_BYTES, member};
use crate::Result;
use crate::structures::jobs::Job;

/// The entry that is put, read and removed.
const KEY: &str = "k";

#[derive(Clone)]
pub(in crate::structures) enum Work {
    Put(Table),
    /// An entry comes and goes.
    PutNew(Table),
    Get(Table),
    Has(Table),
    GetMany(Table),
    Keys(Table),
}

pub(super) async fn begin(job: Job, store: &StoreRef, name: &str) -> Result<Work> {
    let table = Table::open_or_create(store, name).await?;
    match job {
        Job::TablePutNew => {}
        Job::TableGetMany | Job::TableKeys => {
            for at in 0..MEMBERS {
                table.put(member(at), [b'v'; VALUE_BYTES]).await?;
            }
        }
        _ => table.put(KEY, [b'v'; VALUE_BYTES]).await?,
    }
    table.settle().await;
    Ok(match job {
        Job::TablePut => Work::Put(table),
        Job::TablePutNew => Work::PutNew(table),
        Job::TableHas => Work::Has(table),
        Job::TableGetMany => Work::GetMany(table),
        Job::TableKeys => Work::Keys(table),
        _ => Work::Get(table),
    })
}

impl Work {
    /// False if it answered what it must not.
    pub(super) async fn step(&mut self) -> Result<bool> {
        match self {
            Work::Put(table) => {
                table.put(KEY, [b'v'; VALUE_BYTES]).await?;
                Ok(true)
            }
            Work::PutNew(table) => {
                table.put(KEY, [b'v'; VALUE_BYTES]).await?;
                table.settle().await;
                let was_there = table.remove(KEY).await?;
                table.settle().await;
                Ok(was_there)
            }
            Work::Get(table) => Ok(table.get(KEY).await?.is_some_and(|value| value.len() == VALUE_BYTES)),
            Work::Has(table) => Ok(table.has(KEY).await?),
            Work::GetMany(table) => {
                let values = table.get_many((0..MEMBERS).map(member)).await?;
                Ok(values.iter().flatten().filter(|value| value.len() == VALUE_BYTES).count() == MEMBERS)
            }
            Work::Keys(table) => {
                let keys = table.keys().await?;
                Ok(keys.iter().filter(|key| key.starts_with(b"member:")).count() == MEMBERS)
            }
        }
    }
}
