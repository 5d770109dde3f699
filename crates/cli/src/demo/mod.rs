//! `larder demo`: drives every structure from several workers at once, and checks every total itself.

mod array;
mod cache;
mod counter;
mod entries;
mod footprint;
mod lock;
mod log;
mod lookup;
mod queue;
mod records;
mod set;
mod sharded;
mod stage;
mod table;
mod top;
mod unique;
mod visitors;

use std::sync::Arc;
use std::time::Duration;

use larder::layers::Counting;
use larder::{Ctx, Durability, Name, StoreRef};

use crate::args::{Common, Demo, Subject};
use crate::exit::{Exit, Failure, say};
use crate::own::is_file;
use crate::run::{Forwarded, code_of_signal};
use crate::session::{TIMEOUT, as_commands_do, connect};
use stage::{Stage, Worker};
use table::Row;

/// Where the demo runs when it is not told.
const EMBEDDED: &str = "memory:?bytes_max=64m";

const SUBJECTS: [Subject; 17] = [
    Subject::Lock,
    Subject::Counter,
    Subject::FastCounter,
    Subject::Set,
    Subject::Array,
    Subject::Cache,
    Subject::Visitors,
    Subject::Unique,
    Subject::Log,
    Subject::Records,
    Subject::Lookup,
    Subject::Table,
    Subject::Queue,
    Subject::Stack,
    Subject::Hash,
    Subject::ShardedSet,
    Subject::Top,
];

/// Drives the structures; the exit code says whether every total was right.
pub(crate) async fn run(common: &Common, demo: &Demo) -> Result<u8, Failure> {
    let url = common.store.clone().filter(|url| !url.is_empty()).unwrap_or_else(|| EMBEDDED.to_owned());
    let url = as_commands_do(url, common.timeout);
    let timeout = common.timeout.unwrap_or(TIMEOUT);
    let workers = workers(&url, demo.workers, timeout).await?;
    let stages = SUBJECTS.map(|subject| Stage::new(subject, &workers, demo, timeout));
    let mut signals = Forwarded::listen()?;
    let rows = tokio::select! {
        rows = drive(&stages) => rows,
        signal = signals.next() => {
            if let Err(failure) = clean_up(&workers, &stages, timeout).await {
                say(&format!("warning: what the demo made could not be removed: {}", failure.message()));
            }
            return Ok(code_of_signal(signal));
        }
    };
    let cleaned_up = clean_up(&workers, &stages, timeout).await;
    let rows = rows?;
    cleaned_up?;
    let profile = workers.first().map(|worker| worker.store.profile().store.clone()).unwrap_or_default();
    if common.json {
        table::print_json(&rows)?
    } else {
        table::print(&rows, &profile, demo.workers)?
    }
    Ok(if rows.iter().any(Row::is_off) { Exit::No } else { Exit::Ok } as u8)
}

/// Each worker has a connection of its own, but for a store that stands in this process: a second one in memory would be another store, and files are open once.
async fn workers(url: &str, count: u16, timeout: Duration) -> Result<Vec<Worker>, Failure> {
    let first = connect(url, timeout).await?;
    let is_embedded = first.profile().durability == Durability::Process || is_file(url);
    let mut stores: Vec<StoreRef> = vec![first.clone()];
    for _ in 1..count {
        stores.push(if is_embedded { first.clone() } else { connect(url, timeout).await? });
    }
    Ok(stores.into_iter().map(|store| Worker { counting: Counting::new(store.clone()), store }).collect())
}

async fn drive(stages: &[Stage]) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::with_capacity(stages.len());
    for stage in stages {
        let row = match stage.subject {
            Subject::Lock => lock::drive(stage).await,
            Subject::Counter | Subject::FastCounter => counter::drive(stage).await,
            Subject::Set => set::drive(stage).await,
            Subject::Array => array::drive(stage).await,
            Subject::Cache => cache::drive(stage).await,
            Subject::Visitors => visitors::drive(stage).await,
            Subject::Unique => unique::drive(stage).await,
            Subject::Queue | Subject::Stack => queue::drive(stage).await,
            Subject::Hash => sharded::drive_hash(stage).await,
            Subject::ShardedSet => sharded::drive_set(stage).await,
            Subject::Top => top::drive(stage).await,
            Subject::Log => log::drive(stage).await,
            Subject::Records => records::drive(stage).await,
            Subject::Lookup => lookup::drive(stage).await,
            Subject::Table => entries::drive(stage).await,
        };
        rows.push(match row {
            Err(failure) if failure.is_unsupported() => Row::unsupported(stage.subject, failure.message()),
            row => row?,
        });
    }
    Ok(rows)
}

/// Removes what was made, also after a stage that failed.
async fn clean_up(workers: &[Worker], stages: &[Stage], timeout: Duration) -> Result<(), Failure> {
    let Some(worker) = workers.first() else { return Ok(()) };
    let store: StoreRef = Arc::clone(&worker.store);
    for stage in stages {
        if stage.subject == Subject::Cache {
            cache::forget(&store, &stage.name, timeout).await?;
        }
        larder::drop_structure(&store, Ctx::within(timeout), &Name::new(&stage.name)?).await?;
    }
    Ok(())
}
