//! Adds to a set and removes from it; the members must be what the workers' own models hold.

use std::collections::BTreeSet;
use std::sync::Arc;

use larder::Set;

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many members a worker draws from. Workers share none, so that the order of their writes does not matter.
const MEMBERS: u16 = 512;
/// How many are added or removed at a time, at the most.
const BATCH_MAX: usize = 8;

type Members = BTreeSet<Vec<u8>>;

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let sets = stage
        .handles(async |store| Set::options().timeout(stage.timeout).open_or_create(store, &stage.name).await)
        .await?;
    let driven = stage.drive(sets.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => (check(stage, &sets, driven).await?, driven.accounts.iter().map(BTreeSet::len).sum()),
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements as u64, verdict).await
}

/// Adds and removes until the turns are over; what should be there of it.
async fn work(worker: usize, set: Set, turns: Arc<Turns>) -> larder::Result<Members> {
    let mut model = Members::new();
    while turns.take() {
        let count = fastrand::usize(1..=BATCH_MAX);
        let members: Vec<Vec<u8>> = (0..count).map(|_| member(worker, fastrand::u16(..MEMBERS))).collect();
        if fastrand::u8(..3) > 0 {
            set.add(&members).await?;
            model.extend(members);
        } else {
            set.remove(&members).await?;
            members.iter().for_each(|member| _ = model.remove(member));
        }
        turns.done();
    }
    Ok(model)
}

/// A member that is no text.
fn member(worker: usize, index: u16) -> Vec<u8> {
    let mut bytes = vec![0xff, b'\n'];
    bytes.extend_from_slice(&worker.to_le_bytes()[..2]);
    bytes.extend_from_slice(&index.to_le_bytes());
    bytes
}

/// The members must be the models', read by a worker, by a fresh handle, and after a compaction.
async fn check(stage: &Stage, sets: &[Set], driven: &Driven<Members>) -> Result<Verdict, Failure> {
    let (Some(set), Some(store)) = (sets.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        set.add([b"behind its back"]).await?;
    }
    let expected: Members = driven.accounts.iter().flatten().cloned().collect();
    let fresh = Set::options().timeout(stage.timeout).open(store, &stage.name).await?;
    let by_worker = members(set).await?;
    let by_fresh = members(&fresh).await?;
    if store.profile().cas {
        fresh.compact().await?;
    }
    let compacted = members(set).await?;
    for (who, found) in
        [("a worker", by_worker), ("a fresh handle", by_fresh), ("after compaction a worker", compacted)]
    {
        if found != expected {
            let (strange, missing) = (found.difference(&expected).count(), expected.difference(&found).count());
            return Ok(Verdict::Off(format!("{who} finds {strange} members too many, and misses {missing}")));
        }
    }
    for (worker, index) in [(0, 0), (0, MEMBERS - 1), (sets.len(), 0)] {
        let member = member(worker, index);
        if fresh.has(&member).await? != expected.contains(&member) {
            return Ok(Verdict::Off(format!("`has` is wrong of member {index} of worker {worker}")));
        }
    }
    Ok(Verdict::Right)
}

async fn members(set: &Set) -> larder::Result<Members> {
    Ok(set.members().await?.into_iter().map(|member| member.to_vec()).collect())
}
