//! What tests of making periods of unique visitors, and of forgetting them, begin with.

use std::sync::Arc;
use std::time::Duration;

use larder_core::StoreRef;
use larder_store_memory::MemoryStore;
use larder_structures::{UniqueVisitors, UniqueVisitorsOptions};

use crate::support::steady::steady;

pub(super) const DAY: Duration = Duration::from_secs(86_400);
/// The steps of making a period that is kept for ever: look, forecast, plan, ...
pub(super) const SHARDS: u64 = 4;
pub(super) const HEAD: u64 = 5;
pub(super) const ENTRY: u64 = 6;

pub(super) fn memory() -> (Arc<MemoryStore>, StoreRef) {
    let memory = Arc::new(MemoryStore::new());
    (memory.clone(), memory)
}

/// Periods of a year: a test on the last of its milliseconds would take longer.
pub(super) fn options() -> UniqueVisitorsOptions {
    steady();
    UniqueVisitors::options().period(365 * DAY).expected(1)
}

pub(super) async fn open(store: &StoreRef) -> UniqueVisitors {
    options().open_or_create(store, "site").await.unwrap()
}
