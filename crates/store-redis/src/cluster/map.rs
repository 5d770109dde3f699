//! Which primary serves which slot, as a node tells it.

use std::collections::BTreeMap;

use larder_core::{Error, ErrorKind, Result};
use redis::Value;

use super::slot::{SLOTS, Slot};
use crate::handshake::text;

/// The most primaries: what a cluster is specified for.
pub(crate) const PRIMARIES_MAX: usize = 1_000;
/// Of a slot that nobody serves.
const NOBODY: u16 = u16::MAX;

/// Where a node listens, `host` without brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Place {
    /// Reads `host:port` as redirections have it. The host may be left out: it is that of the node which answered.
    pub(crate) fn parse(text: &str, answered: &Place) -> Option<Place> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // `?` is an unknown endpoint of newer servers.
        let host = if host.is_empty() || host == "?" { &answered.host } else { host };
        Some(Place { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// The primaries, and the slots of each.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct SlotMap {
    primaries: Vec<Place>,
    /// For each slot, a primary's index.
    owners: Box<[u16]>,
    /// The cluster's epoch as the node knew it that told the map: it grows with each failover. 0 where it did not say.
    epoch: u64,
}

impl std::fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotMap").field("primaries", &self.primaries).field("served", &self.served()).finish()
    }
}

impl SlotMap {
    /// A map that knows nobody.
    pub(crate) fn empty() -> SlotMap {
        SlotMap { primaries: Vec::new(), owners: vec![NOBODY; SLOTS].into(), epoch: 0 }
    }

    /// Reads what `CLUSTER SLOTS` answered.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for anything else, and for more primaries than a cluster can have.
    pub(crate) fn read(answer: &Value, answered: &Place) -> Result<SlotMap> {
        let Value::Array(ranges) = answer else { return Err(strange(answer)) };
        let mut map = SlotMap::empty();
        let mut indices: BTreeMap<Place, u16> = BTreeMap::new();
        for range in ranges {
            let (slots, place) = range_of(range, answered).ok_or_else(|| strange(range))?;
            let next = map.primaries.len();
            let index = *indices.entry(place.clone()).or_insert(next as u16);
            if usize::from(index) == next {
                if next == PRIMARIES_MAX {
                    let detail = format!("the cluster has more than {PRIMARIES_MAX} primaries");
                    return Err(Error::new(ErrorKind::Protocol, detail));
                }
                map.primaries.push(place);
            }
            map.owners[slots].fill(index);
        }
        Ok(map)
    }

    /// With the epoch of what `CLUSTER INFO` answered.
    pub(crate) fn at_epoch(mut self, info: &str) -> SlotMap {
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        self.epoch = epoch.and_then(|epoch| epoch.trim_end().parse().ok()).unwrap_or(0);
        self
    }

    /// The index of the primary that serves a slot; `None` for a slot that nobody serves.
    pub(crate) fn owner(&self, slot: Slot) -> Option<usize> {
        let owner = self.owners[slot.index()];
        (owner != NOBODY).then_some(usize::from(owner))
    }

    /// The primaries.
    pub(crate) fn primaries(&self) -> &[Place] {
        &self.primaries
    }

    /// How many slots are served.
    pub(crate) fn served(&self) -> usize {
        self.owners.iter().filter(|&&owner| owner != NOBODY).count()
    }

    /// Whether every slot is served.
    pub(crate) fn is_whole(&self) -> bool {
        self.served() == SLOTS
    }

    /// Whether it is of an older epoch than another, as far as both say.
    pub(crate) fn is_older_than(&self, other: &SlotMap) -> bool {
        self.epoch != 0 && self.epoch < other.epoch
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The greater, the better the map: first the slots that are served, then how new it is.
    pub(crate) fn fullness(&self) -> (usize, u64) {
        (self.served(), self.epoch)
    }
}

/// A range of `CLUSTER SLOTS`: first slot, last slot, the primary as `[host, port, …]`, and then the replicas.
fn range_of(range: &Value, answered: &Place) -> Option<(std::ops::RangeInclusive<usize>, Place)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else { return None };
    let [host, Value::Int(port), ..] = &primary[..] else { return None };
    let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
    if first > last || last >= SLOTS {
        return None;
    }
    let host = text(host);
    let host = if host.is_empty() || host == "?" { answered.host.clone() } else { host };
    Some((first..=last, Place { host, port: u16::try_from(*port).ok()? }))
}

fn strange(value: &Value) -> Error {
    Error::new(ErrorKind::Protocol, format!("the server answered CLUSTER SLOTS with {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> Place {
        Place { host: "h".into(), port: 1 }
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node.clone(), node])
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn slots_are_found_and_holes_are_told() {
        let answer = Value::Array(vec![
            range(0, 99, bulk("a"), 7_000),
            range(200, 16_383, bulk("b"), 7_001),
            range(100, 150, bulk("a"), 7_000),
            range(151, 151, Value::Nil, 7_002),
        ]);
        let map = SlotMap::read(&answer, &here()).unwrap();
        assert_eq!(map.primaries().len(), 3);
        assert_eq!(map.served(), 16_384 - 48);
        // "123456789" is in slot 12739.
        let owner = map.owner(Slot::of(b"123456789")).unwrap();
        assert_eq!(map.primaries()[owner], Place { host: "b".into(), port: 7_001 });
        assert_eq!(map.primaries()[2], Place { host: "h".into(), port: 7_002 });
        assert_eq!(SlotMap::empty().owner(Slot::of(b"x")), None);
    }

    #[test]
    fn the_fuller_map_is_better_and_of_equal_ones_the_newer() {
        let map = |last, info| {
            let answer = Value::Array(vec![range(0, last, bulk("a"), 7_000)]);
            SlotMap::read(&answer, &here()).unwrap().at_epoch(info)
        };
        let older = map(99, "cluster_state:ok\r\ncluster_current_epoch:6\r\ncluster_my_epoch:2\r\n");
        assert_eq!(older.fullness(), (100, 6));
        assert!(map(99, "cluster_current_epoch:10").fullness() > older.fullness());
        assert!(map(100, "").fullness() > older.fullness() && older.fullness() > map(99, "").fullness());
        assert!(older.is_older_than(&map(1, "cluster_current_epoch:7\r\n")) && !older.is_older_than(&older));
        assert!(!map(99, "").is_older_than(&older), "it did not say");
        assert!(!map(16_382, "").is_whole() && map(16_383, "").is_whole());
    }

    #[test]
    fn what_is_no_map_is_an_error() {
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 4, bulk("a"), 1)]),
            Value::Array(vec![range(0, 16_384, bulk("a"), 1)]),
            Value::Array(vec![range(-1, 4, bulk("a"), 1)]),
            Value::Array(vec![range(0, 4, bulk("a"), 70_000)]),
        ] {
            assert_eq!(SlotMap::read(&answer, &here()).unwrap_err().kind(), ErrorKind::Protocol, "{answer:?}");
        }
    }

    #[test]
    fn redirections_may_leave_the_host_out() {
        assert_eq!(Place::parse("10.0.0.1:7000", &here()), Some(Place { host: "10.0.0.1".into(), port: 7_000 }));
        assert_eq!(Place::parse("::1:7000", &here()), Some(Place { host: "::1".into(), port: 7_000 }));
        assert_eq!(Place::parse(":7000", &here()), Some(Place { host: "h".into(), port: 7_000 }));
        assert_eq!(Place::parse("x:y", &here()), None);
        assert_eq!(Place::parse("", &here()), None);
    }
}
