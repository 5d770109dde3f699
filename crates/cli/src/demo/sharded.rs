//! Changes a sharded hash, and a sharded set, while they are resharded; what is there must be what the workers' own models hold.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder::{ShardedHash, ShardedSet};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How many elements a worker draws from. Workers share none, so that the order of their writes does not matter.
const ELEMENTS: u16 = 512;
/// How many are changed at a time, at the most.
const BATCH_MAX: usize = 8;
/// The first worker reshards after so many turns, and after twice as many, and so on.
const TURNS: u64 = 40;
/// To so many shards, by turns.
pub(super) const SHARDS: [u16; 3] = [24, 7, 16];

type Elements = BTreeMap<Vec<u8>, Vec<u8>>;

/// Elements that are no text.
pub(super) fn some_elements(worker: usize) -> Vec<Vec<u8>> {
    let element = |index: u16| [&[0xff, b'\n'][..], &worker.to_le_bytes()[..2], &index.to_le_bytes()[..]].concat();
    (0..fastrand::usize(1..=BATCH_MAX)).map(|_| element(fastrand::u16(..ELEMENTS))).collect()
}

/// How many shards it is time for, if it is.
pub(super) fn shards_after(worker: usize, turn: u64) -> Option<u16> {
    let is_due = worker == 0 && turn % TURNS == TURNS / 2;
    is_due.then(|| SHARDS[(turn / TURNS) as usize % SHARDS.len()])
}

fn verdict(who: &str, found: &Elements, expected: &Elements) -> Option<Verdict> {
    if found == expected {
        return None;
    }
    let strange = found.iter().filter(|(name, value)| expected.get(*name) != Some(value)).count();
    let missing = expected.keys().filter(|name| !found.contains_key(*name)).count();
    Some(Verdict::Off(format!("{who} finds {strange} elements that are not right, and misses {missing}")))
}

fn expected(driven: &Driven<Elements>) -> Elements {
    driven.accounts.iter().flatten().map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub(super) async fn drive_hash(stage: &Stage) -> Result<Row, Failure> {
    let options = ShardedHash::options().shards(SHARDS[2]).timeout(stage.timeout);
    let hashes = stage.handles(async |store| options.clone().open_or_create(store, &stage.name).await).await?;
    let driven = stage.drive(hashes.clone(), change_hash).await;
    let (mut said, mut elements) = (Verdict::Right, 0);
    if let (Ok(driven), Some(hash), Some(store)) = (&driven, hashes.first(), stage.stores.last()) {
        if stage.is_sabotaged {
            hash.set([("behind", "its back")]).await?;
        }
        let expected = expected(driven);
        let fresh = ShardedHash::options().timeout(stage.timeout).open(store, &stage.name).await?;
        for (who, hash) in [("a worker", hash), ("a fresh handle", &fresh)] {
            let found = hash.entries().await?;
            let found = found.into_iter().map(|(field, value)| (field.to_vec(), value.to_vec())).collect();
            said = verdict(who, &found, &expected).unwrap_or(said);
        }
        elements = fresh.len().await?;
    }
    stage.row(driven, elements, said).await
}

/// Sets and removes until the turns are over; what should be there of it.
async fn change_hash(worker: usize, hash: ShardedHash, turns: Arc<Turns>) -> larder::Result<Elements> {
    let mut model = Elements::new();
    let mut turn = 0;
    while turns.take() {
        let fields = some_elements(worker);
        if let Some(shards) = shards_after(worker, turn) {
            hash.reshard(shards).await?;
        } else if fastrand::u8(..3) > 0 {
            let value = turn.to_string().into_bytes();
            hash.set(fields.iter().map(|field| (field, &value))).await?;
            model.extend(fields.into_iter().map(|field| (field, value.clone())));
        } else {
            hash.remove(&fields).await?;
            fields.iter().for_each(|field| _ = model.remove(field));
        }
        turn += 1;
        turns.done();
    }
    Ok(model)
}

pub(super) async fn drive_set(stage: &Stage) -> Result<Row, Failure> {
    let options = ShardedSet::options().shards(SHARDS[2]).timeout(stage.timeout);
    let sets = stage.handles(async |store| options.clone().open_or_create(store, &stage.name).await).await?;
    let driven = stage.drive(sets.clone(), change_set).await;
    let (mut said, mut elements) = (Verdict::Right, 0);
    if let (Ok(driven), Some(set), Some(store)) = (&driven, sets.first(), stage.stores.last()) {
        if stage.is_sabotaged {
            set.add([b"behind its back"]).await?;
        }
        let expected = expected(driven);
        let fresh = ShardedSet::options().timeout(stage.timeout).open(store, &stage.name).await?;
        for (who, set) in [("a worker", set), ("a fresh handle", &fresh)] {
            let found = set.members().await?.into_iter().map(|member| (member.to_vec(), Vec::new())).collect();
            said = verdict(who, &found, &expected).unwrap_or(said);
        }
        elements = fresh.len().await?;
    }
    stage.row(driven, elements, said).await
}

/// Adds and removes until the turns are over; what should be there of it. Who was told to be new, and was not, is told as an error.
async fn change_set(worker: usize, set: ShardedSet, turns: Arc<Turns>) -> larder::Result<Elements> {
    let mut model = Elements::new();
    let mut turn = 0;
    while turns.take() {
        let members = some_elements(worker);
        if let Some(shards) = shards_after(worker, turn) {
            set.reshard(shards).await?;
        } else {
            let is_add = fastrand::u8(..3) > 0;
            let told = if is_add { set.add(&members).await? } else { set.remove(&members).await? };
            for (member, told) in members.into_iter().zip(told) {
                let changed = match is_add {
                    true => model.insert(member, Vec::new()).is_none(),
                    false => model.remove(&member).is_some(),
                };
                if changed != told {
                    let detail = format!("a member was told {told} and should have been {changed}");
                    return Err(larder::Error::new(larder::ErrorKind::Protocol, detail));
                }
            }
        }
        turn += 1;
        turns.done();
    }
    Ok(model)
}
