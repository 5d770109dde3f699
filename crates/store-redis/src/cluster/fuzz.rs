//! Maps of a cluster, for the proof's fuzzing: answers that a node may give, what they tell, and what tells the same again.

use std::collections::BTreeSet;

use fastrand::Rng;
use larder_core::Result;
use redis::Value;

use super::map::{PRIMARIES_MAX, Place, SlotMap};
use super::slot::{SLOTS, Slot};

/// A node's answer to `CLUSTER SLOTS` as it was read.
#[derive(Debug, PartialEq)]
pub struct Map(SlotMap);

/// The primary that serves a slot, as host and port.
pub type Owner<'a> = Option<(&'a str, u16)>;

/// The host of the node that answers.
pub const HOST: &str = "answers";

fn answered() -> Place {
    Place { host: HOST.to_owned(), port: 1 }
}

/// An answer, and who serves each slot by it; nobody is told where it names more primaries than there can be.
pub fn answer(rng: &mut Rng) -> (Value, Option<Vec<Owner<'static>>>) {
    const HOSTS: [&str; 5] = ["10.0.0.1", "::1", "node.example", "?", ""];
    let (mut owners, mut places) = (vec![None; SLOTS], BTreeSet::new());
    let are_many = rng.u8(0..50) == 0;
    let (most, slots, ports) = if are_many { (2 * PRIMARIES_MAX, 30, u16::MAX) } else { (6, SLOTS / 2, 9) };
    let mut ranges = Vec::new();
    for _ in 0..rng.usize(0..most) {
        let first = rng.usize(0..SLOTS);
        let last = (first + rng.usize(0..slots)).min(SLOTS - 1);
        let (host, port) = (HOSTS[rng.usize(0..HOSTS.len())], rng.u16(0..ports));
        let name = match rng.u8(0..8) {
            0 if host.is_empty() => Value::Nil,
            1..=3 => Value::SimpleString(host.to_owned()),
            _ => Value::BulkString(host.into()),
        };
        let node = Value::Array(vec![name, Value::Int(port.into()), Value::BulkString(b"id".to_vec())]);
        ranges.push(Value::Array(vec![Value::Int(first as i64), Value::Int(last as i64), node.clone(), node]));
        let place = (if matches!(host, "" | "?") { HOST } else { host }, port);
        owners[first..=last].fill(Some(place));
        places.insert(place);
    }
    (Value::Array(ranges), (places.len() <= PRIMARIES_MAX).then_some(owners))
}

/// Reads such an answer.
///
/// # Errors
/// It is none.
pub fn read(answer: &Value, info: &str) -> Result<Map> {
    SlotMap::read(answer, &answered()).map(|map| Map(map.at_epoch(info)))
}

/// Reads the place that a redirection names, as host and port.
pub fn read_place(text: &str) -> Option<(String, u16)> {
    Place::parse(text, &answered()).map(|place| (place.host, place.port))
}

impl Map {
    /// Who serves each slot.
    ///
    /// # Errors
    /// It names somebody who is not among the primaries, or more of these than there can be.
    pub fn owners(&self) -> std::result::Result<Vec<Owner<'_>>, String> {
        let primaries = self.0.primaries();
        let owner = |slot: usize| match self.0.owner(Slot::at(slot)) {
            None => Ok(None),
            Some(at) => {
                let place =
                    primaries.get(at).ok_or_else(|| format!("slot {slot} is served by {at} of {primaries:?}"))?;
                Ok(Some((&*place.host, place.port)))
            }
        };
        let owners = (0..SLOTS).map(owner).collect::<std::result::Result<Vec<_>, String>>()?;
        let served = owners.iter().flatten().count();
        if primaries.len() > PRIMARIES_MAX || served != self.0.served() || self.0.is_whole() != (served == SLOTS) {
            return Err(format!(
                "{} primaries serve {served} slots, and {} are told",
                primaries.len(),
                self.0.served()
            ));
        }
        Ok(owners)
    }

    /// The epoch that it is of.
    pub fn epoch(&self) -> u64 {
        self.0.epoch()
    }
}

/// An answer that tells these owners.
pub fn again(owners: &[Owner<'_>]) -> Value {
    let range = |(first, last, owner): (usize, usize, Owner<'_>)| {
        let (host, port) = owner?;
        let node = Value::Array(vec![Value::BulkString(host.into()), Value::Int(port.into())]);
        Some(Value::Array(vec![Value::Int(first as i64), Value::Int(last as i64), node]))
    };
    let mut end = 0;
    let runs = owners.chunk_by(|one, other| one == other).map(|run| {
        let first = end;
        end += run.len();
        (first, end - 1, run[0])
    });
    Value::Array(runs.filter_map(range).collect())
}
