//! Pushes to an array and changes it; the elements must be what the workers' own models hold, as often, and in their order.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder::Array;

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many elements a worker draws from. Workers share none, so that each can tell the order of its own.
const ELEMENTS: u8 = 200;
/// How many are pushed or changed at a time, at the most.
const BATCH_MAX: usize = 6;
/// A worker's elements are kept to about so many.
const KEPT_MAX: usize = 400;

type Model = Vec<Vec<u8>>;
/// Of which worker, and what it left.
type Account = (usize, Model);

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let arrays = stage
        .handles(async |store| Array::options().timeout(stage.timeout).open_or_create(store, &stage.name).await)
        .await?;
    let driven = stage.drive(arrays.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => {
            (check(stage, &arrays, driven).await?, driven.accounts.iter().map(|(_, model)| model.len()).sum())
        }
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements as u64, verdict).await
}

/// Pushes, changes and removes until the turns are over; what should be there of it, in order.
async fn work(worker: usize, array: Array, turns: Arc<Turns>) -> larder::Result<Account> {
    let mut model = Model::new();
    while turns.take() {
        let draw = || (0..fastrand::usize(1..=BATCH_MAX)).map(|_| element(worker, fastrand::u8(..ELEMENTS))).collect();
        let (add, delete): (Model, Model) = (draw(), draw());
        match fastrand::u8(..4) {
            _ if model.len() > KEPT_MAX => {
                let all: Model = (0..ELEMENTS).map(|index| element(worker, index)).collect();
                array.remove(&all).await?;
                model.clear();
            }
            0 => {
                array.change(&add, &delete).await?;
                model.retain(|element| !delete.contains(element));
                model.extend(add);
            }
            _ => {
                array.push(&add).await?;
                model.extend(add);
            }
        }
        turns.done();
    }
    Ok((worker, model))
}

/// An element that is no text.
fn element(worker: usize, index: u8) -> Vec<u8> {
    let mut bytes = vec![0, b'\n'];
    bytes.extend_from_slice(&worker.to_le_bytes()[..2]);
    bytes.push(index);
    bytes
}

fn owner(element: &[u8]) -> Vec<u8> {
    element.get(2..4).unwrap_or_default().to_vec()
}

/// The elements must be the models', read by a worker, by a fresh handle, and after a compaction.
async fn check(stage: &Stage, arrays: &[Array], driven: &Driven<Account>) -> Result<Verdict, Failure> {
    let (Some(array), Some(store)) = (arrays.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        array.push([element(0, 0)]).await?;
    }
    let left = |(worker, model): &Account| (owner(&element(*worker, 0)), model.clone());
    let expected: BTreeMap<Vec<u8>, Model> =
        driven.accounts.iter().filter(|(_, model)| !model.is_empty()).map(left).collect();
    let fresh = Array::options().timeout(stage.timeout).open(store, &stage.name).await?;
    let by_worker = by_owner(array).await?;
    let by_fresh = by_owner(&fresh).await?;
    if store.profile().cas {
        fresh.compact().await?;
    }
    let compacted = by_owner(array).await?;
    for (who, found) in
        [("a worker", by_worker), ("a fresh handle", by_fresh), ("after compaction a worker", compacted)]
    {
        if found != expected {
            let wrong = expected.iter().filter(|&(worker, model)| found.get(worker) != Some(model)).count();
            return Ok(Verdict::Off(format!(
                "{who} finds other elements, or another order, than {wrong} workers left"
            )));
        }
    }
    Ok(Verdict::Right)
}

/// The elements of each worker, in the array's order.
async fn by_owner(array: &Array) -> larder::Result<BTreeMap<Vec<u8>, Model>> {
    let mut found: BTreeMap<Vec<u8>, Model> = BTreeMap::new();
    for element in array.elements().await? {
        found.entry(owner(&element)).or_default().push(element.to_vec());
    }
    Ok(found)
}
