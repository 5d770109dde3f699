//! Puts entries into a table and removes them; what is there must be what the workers' own models hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder::Table;

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many keys a worker draws from. Workers share none, so that the order of their writes does not matter.
const KEYS: u16 = 64;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let tables = stage
        .handles(async |store| Table::options().timeout(stage.timeout).open_or_create(store, &stage.name).await)
        .await?;
    let driven = stage.drive(tables.clone(), work).await;
    let (verdict, entries) = match &driven {
        Ok(driven) => (check(stage, &tables, driven).await?, driven.accounts.iter().map(BTreeMap::len).sum()),
        Err(_) => (Verdict::Right, 0),
    };
    for table in &tables {
        table.settle().await;
    }
    stage.row(driven, entries as u64, verdict).await
}

/// Puts, removes and gets until the turns are over; what should be there of it.
async fn work(worker: usize, table: Table, turns: Arc<Turns>) -> larder::Result<Model> {
    let mut model = Model::new();
    while turns.take() {
        let key = key(worker, fastrand::u16(..KEYS));
        match fastrand::u8(..8) {
            0 => {
                table.remove(&key).await?;
                model.remove(&key);
            }
            1..4 => {
                let value = fastrand::u64(..).to_le_bytes().to_vec();
                table.put(&key, &value).await?;
                model.insert(key, value);
            }
            _ => _ = table.get(&key).await?,
        }
        turns.done();
    }
    Ok(model)
}

/// A key that is no text.
fn key(worker: usize, index: u16) -> Vec<u8> {
    let mut bytes = vec![0xff, b'\n'];
    bytes.extend_from_slice(&worker.to_le_bytes()[..2]);
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes
}

/// The entries must be the models', read by a worker and by a fresh handle; so must the keys be.
async fn check(stage: &Stage, tables: &[Table], driven: &Driven<Model>) -> Result<Verdict, Failure> {
    let (Some(table), Some(store)) = (tables.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        table.put(b"behind its back", b"").await?;
    }
    let expected: Model = driven.accounts.iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect();
    let fresh = Table::options().timeout(stage.timeout).open(store, &stage.name).await?;
    for (who, table) in [("a worker", table), ("a fresh handle", &fresh)] {
        let found: Model =
            table.entries().await?.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        if found != expected {
            let off = |these: &Model, those: &Model| {
                these.iter().filter(|(key, value)| those.get(*key) != Some(value)).count()
            };
            let (strange, missing) = (off(&found, &expected), off(&expected, &found));
            return Ok(Verdict::Off(format!("{who} finds {strange} entries too many, and misses {missing}")));
        }
    }
    let keys = fresh.keys().await?;
    if keys.len() != expected.len() || keys.iter().any(|key| !expected.contains_key(&key[..])) {
        return Ok(Verdict::Off(format!("{} keys are listed, {} are there", keys.len(), expected.len())));
    }
    let wanted: Vec<Vec<u8>> = (0..KEYS).map(|index| key(0, index)).collect();
    for (key, value) in wanted.iter().zip(fresh.get_many(&wanted).await?) {
        if value.as_deref() != expected.get(key).map(|value| &value[..]) {
            return Ok(Verdict::Off("a key of worker 0 has another value than it was put".to_owned()));
        }
    }
    Ok(Verdict::Right)
}
