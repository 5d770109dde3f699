//! The bytes of sharded collections: parameters, the map, and a shard where it is one item.
//!
//! The manifest's parameters are two bytes: how shards are kept (0 items, 1 native collections), and how elements are spread (0 by hash, 1 dense); and of a sorted
//! set 4 more: how many are kept at each end (2), and how long a member may be (2).
//!
//! The map, numbers little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | the version of this layout, 1 |
//! | 1 | 1 | 0 stable, 1 planned, 2 moving |
//! | 2 | 8 | how often it was written |
//! | 10 | 10 | the map in force: its id (4), shards (2), ids a shard where they are dense (4) |
//! | 20 | 10 | planned: the one to come; moving: the one that elements come from |
//!
//! A shard that is an item:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | the version of this layout, 1 |
//! | 1 | 1 | 0 unfilled, 1 live, 2 sealed |
//! | 2 | 8 | drawn at random by whoever last changed its elements |
//! | 10 | 4 | how many elements |
//! | 14 | 8 | of a sorted set alone: a version of the ends that writers of this shard have seen |
//! | 14, 22 | … | elements in the order of their names: length (LEB128) and name; but in a set also length and value |
//!
//! The item's flags are the number of elements times 4, and the second byte. The value of a sorted set's element is its score, as the 8 bytes of a double; with a byte of 0
//! behind it the ends may not have it yet. It is empty for a member that was removed and that the ends may still have: that one does not count.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::native::{Collection, Score};
use xxhash_rust::xxh3::xxh3_64;

use super::SHARDS_MAX;

/// The version of the layout, as the manifest has it.
pub(crate) const LAYOUT: u8 = 1;
const VERSION: u8 = 1;
/// Before the elements of a shard.
pub(super) const HEADER_BYTES: usize = 14;
/// The mark of a native shard that is in use. They look like numbers, so that a set of integers stays one; and need no more than 32 bits.
pub(super) const LIVE: &[u8] = b"-2147483648";
/// The mark of one that nothing is written to any more.
pub(super) const SEALED: &[u8] = b"-2147483647";
/// The mark of one that its elements did not come to yet.
pub(super) const UNFILLED: &[u8] = b"-2147483646";
/// Before a name that could be taken for a mark.
const ESCAPE: u8 = 0;

/// How shards are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Portable,
    Native,
}

/// The manifest's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) kept: Kept,
    pub(super) is_dense: bool,
    /// Of a sorted set.
    pub(super) limits: Option<Limits>,
}

/// What the ends of a sorted set take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// How many members are read at each end.
    pub(super) kept: u16,
    pub(super) member_bytes_max: u16,
}

impl Limits {
    /// How many members stand at each end: so many may be removed until the ends must be made anew.
    pub(super) fn capacity(self) -> usize {
        usize::from(self.kept) * 2
    }
}

impl Params {
    pub(super) fn encode(self) -> Bytes {
        let mut out = BytesMut::from(&[u8::from(self.kept == Kept::Native), u8::from(self.is_dense)][..]);
        if let Some(limits) = self.limits {
            out.put_u16_le(limits.kept);
            out.put_u16_le(limits.member_bytes_max);
        }
        out.freeze()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Params> {
        let kept = match bytes.first()? {
            0 => Kept::Portable,
            1 => Kept::Native,
            _ => return None,
        };
        let is_dense = match bytes.get(1)? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let limits = match *bytes.get(2..)? {
            [] => None,
            [a, b, c, d] => {
                Some(Limits { kept: u16::from_le_bytes([a, b]), member_bytes_max: u16::from_le_bytes([c, d]) })
            }
            _ => return None,
        };
        Some(Params { kept, is_dense, limits })
    }
}

/// Which element stands in which shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Map {
    /// Drawn at random; the keys of its shards are made of it.
    pub(super) id: u32,
    pub(super) shards: u16,
    /// How many dense ids stand in a shard; 0 where elements are spread by hash.
    pub(super) per_shard: u32,
}

impl Map {
    /// The shard of an element that is spread by hash: hashes are cut into as many ranges as there are shards.
    pub(super) fn shard_of_hash(&self, hash: u64) -> u16 {
        // Less than the number of shards.
        ((u128::from(hash) * u128::from(self.shards)) >> 64) as u16
    }

    /// How many dense ids it takes.
    pub(super) fn capacity(&self) -> u64 {
        u64::from(self.shards) * u64::from(self.per_shard)
    }

    /// The least dense ids a shard with which the most shards take as many.
    pub(super) fn per_shard_min(&self) -> u64 {
        self.capacity().div_ceil(u64::from(SHARDS_MAX)).max(1)
    }

    /// The shards of `other` that hold what belongs to this one's `shard`, in their order; none where `other` ends before it.
    pub(super) fn overlap(&self, shard: u16, other: &Map) -> std::ops::Range<u16> {
        if self.per_shard > 0 {
            let first = u64::from(shard) * u64::from(self.per_shard);
            let end = first + u64::from(self.per_shard);
            let clip = |at: u64| u16::try_from(at).unwrap_or(u16::MAX).min(other.shards);
            let per_shard = u64::from(other.per_shard.max(1));
            return clip(first / per_shard)..clip(end.div_ceil(per_shard));
        }
        // The first hash of a shard: the least h with h * shards >= shard * 2^64.
        let first = |shard: u16| (u128::from(shard) << 64).div_ceil(u128::from(self.shards));
        let last = first(shard + 1) - 1;
        let of = |hash: u128| other.shard_of_hash(u64::try_from(hash).unwrap_or(u64::MAX));
        of(first(shard))..of(last) + 1
    }

    fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.id);
        out.put_u16_le(self.shards);
        out.put_u32_le(self.per_shard);
    }

    fn decode(bytes: &[u8]) -> Option<Map> {
        let bytes: &[u8; 10] = bytes.first_chunk()?;
        let [a, b, c, d, e, f, g, h, i, j] = *bytes;
        let map = Map {
            id: u32::from_le_bytes([a, b, c, d]),
            shards: u16::from_le_bytes([e, f]),
            per_shard: u32::from_le_bytes([g, h, i, j]),
        };
        (map.shards > 0).then_some(map)
    }
}

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Stable,
    /// Shards of this map are being made; nothing is in them.
    Planned(Map),
    /// Elements come from this map into the one in force.
    Moving(Map),
}

/// The map item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// How often it was written: it only grows.
    pub(super) version: u64,
    pub(super) map: Map,
    pub(super) phase: Phase,
}

impl Plan {
    pub(super) fn encode(&self) -> Bytes {
        let (phase, other) = match &self.phase {
            Phase::Stable => (0, None),
            Phase::Planned(to) => (1, Some(to)),
            Phase::Moving(from) => (2, Some(from)),
        };
        let mut out = BytesMut::with_capacity(30);
        out.put_slice(&[VERSION, phase]);
        out.put_u64_le(self.version);
        self.map.encode(&mut out);
        if let Some(other) = other {
            other.encode(&mut out);
        }
        out.freeze()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Plan> {
        let (&[version, phase], rest) = bytes.split_first_chunk::<2>()?;
        let (writes, rest) = rest.split_first_chunk::<8>()?;
        let map = Map::decode(rest)?;
        let other = rest.get(10..)?;
        let phase = match (phase, other.len()) {
            (0, 0) => Phase::Stable,
            (1, 10) => Phase::Planned(Map::decode(other)?),
            (2, 10) => Phase::Moving(Map::decode(other)?),
            _ => return None,
        };
        (version == VERSION).then_some(Plan { version: u64::from_le_bytes(*writes), map, phase })
    }

    /// The other map, where there is one.
    pub(super) fn other(&self) -> Option<Map> {
        match self.phase {
            Phase::Stable => None,
            Phase::Planned(other) | Phase::Moving(other) => Some(other),
        }
    }

    /// True if `later` may have been written behind this one, or is it. Else the store went back in between: each version is written once, so another plan of the same one
    /// was written after others had gone back to one before; and so was one that comes too soon for what it says. Any may be written behind version 0, where nothing is known.
    pub(super) fn leads_to(&self, later: &Plan) -> bool {
        let leads = |writes: u64| writes >= self.least_writes_to(later);
        self.version == 0 || later == self || later.version.checked_sub(self.version).is_some_and(leads)
    }

    /// How many writes lead from this plan to another one at the least, whatever their versions; at least 1.
    ///
    /// | behind | may be written |
    /// |---|---|
    /// | X is stable | X is in force, and any other is planned |
    /// | X is in force, Y planned | Y is in force, filled from X; or X is stable |
    /// | Y is in force, filled from X | Y is stable |
    ///
    /// So from one stable map to another it is 3, and a map that another took the place of never comes again.
    fn least_writes_to(&self, later: &Plan) -> u64 {
        // The stable map that the later one was written behind, and by how many writes.
        let (stable, then) = match later.phase {
            Phase::Stable => (later.map, 0),
            Phase::Planned(_) => (later.map, 1),
            Phase::Moving(from) => (from, 2),
        };
        let first = match self.phase {
            Phase::Planned(to) if later.map == to && later.phase == Phase::Moving(self.map) => return 1,
            Phase::Stable if stable == self.map => 0,
            Phase::Stable => 3,
            Phase::Planned(_) if stable == self.map => 1,
            Phase::Planned(to) if stable == to => 2,
            Phase::Planned(_) => 4,
            Phase::Moving(_) if stable == self.map => 1,
            Phase::Moving(_) => 4,
        };
        // The same one again: it was planned, and cleared away.
        if first + then == 0 { 2 } else { first + then }
    }

    /// True where shards of this map are of use, or may come to be.
    pub(super) fn names(&self, map: &Map) -> bool {
        self.map.id == map.id || self.other().is_some_and(|other| other.id == map.id)
    }
}

/// What a shard says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Unfilled,
    Live,
    Sealed,
    /// It became live while it was counted: whoever asks again gets it.
    Turned,
    /// There is no such shard.
    Missing,
}

impl Mark {
    fn byte(self) -> u8 {
        match self {
            Mark::Unfilled => 0,
            Mark::Live | Mark::Turned => 1,
            Mark::Sealed | Mark::Missing => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Mark> {
        [Mark::Unfilled, Mark::Live, Mark::Sealed].get(usize::from(byte)).copied()
    }

    /// What an item's flags say, with the number of its elements.
    pub(super) fn of_flags(flags: u32) -> Option<(Mark, u64)> {
        Some((Mark::from_byte((flags & 3) as u8)?, u64::from(flags >> 2)))
    }
}

/// The elements of a shard by their names.
pub(super) type Elements = BTreeMap<Bytes, Bytes>;

/// A shard that is an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) mark: Mark,
    /// Who wrote its elements last.
    pub(super) tag: u64,
    /// Of a sorted set: a version of the ends. Nobody brings to the ends what this shard said before it was written here, if he has read them at an earlier one.
    pub(super) seen: u64,
    pub(super) elements: Elements,
}

impl Shard {
    pub(super) fn empty(mark: Mark) -> Shard {
        Shard { mark, tag: 0, seen: 0, elements: Elements::new() }
    }

    /// The item's flags.
    pub(super) fn flags(&self, of: Collection) -> u32 {
        let count = self.elements.values().filter(|value| counts(of, value)).count();
        ((count as u32) << 2) | u32::from(self.mark.byte())
    }

    pub(super) fn encode(&self, of: Collection) -> Bytes {
        let has_values = of != Collection::Set;
        let bytes: usize = self.elements.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
        let mut out = BytesMut::with_capacity(HEADER_BYTES + 8 + bytes);
        out.put_slice(&[VERSION, self.mark.byte()]);
        out.put_u64_le(self.tag);
        out.put_u32_le(self.elements.len() as u32);
        if of == Collection::Sorted {
            out.put_u64_le(self.seen);
        }
        for (name, value) in &self.elements {
            put_bytes(&mut out, name);
            if has_values {
                put_bytes(&mut out, value);
            }
        }
        out.freeze()
    }

    /// What an element adds to the bytes of one.
    pub(super) fn element_bytes(of: Collection, name: &[u8], value: &[u8]) -> usize {
        let bytes = |part: &[u8]| len_bytes(part.len()) + part.len();
        bytes(name) + if of == Collection::Set { 0 } else { bytes(value) }
    }

    /// `None` for bytes that are no shard.
    pub(super) fn decode(bytes: &Bytes, of: Collection) -> Option<Shard> {
        let has_values = of != Collection::Set;
        let (head, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let mark = Mark::from_byte(head[1])?;
        let tag = u64::from_le_bytes(*head[2..].first_chunk()?);
        let count = u32::from_le_bytes(*head[10..].first_chunk()?);
        let (mut at, mut seen) = (HEADER_BYTES, 0);
        if of == Collection::Sorted {
            seen = u64::from_le_bytes(*rest.first_chunk()?);
            at += 8;
        }
        let mut elements = Elements::new();
        for _ in 0..count {
            let name = take_bytes(bytes, &mut at)?;
            let value = if has_values { take_bytes(bytes, &mut at)? } else { Bytes::new() };
            if elements.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return None;
            }
            if of == Collection::Sorted {
                Record::decode(&value)?;
            }
            elements.insert(name, value);
        }
        (head[0] == VERSION && at == bytes.len()).then_some(Shard { mark, tag, seen, elements })
    }
}

/// True for the value of an element that is there.
pub(super) fn counts(of: Collection, value: &Bytes) -> bool {
    of != Collection::Sorted || !value.is_empty()
}

/// What a shard of a sorted set says of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// `None` for one that is not there.
    pub(super) score: Option<Score>,
    /// The ends may not have it yet.
    pub(super) is_pending: bool,
}

impl Record {
    /// `None` for a member that is not there, and that the ends have not either.
    pub(super) fn encode(self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        match (self.score, self.is_pending) {
            (None, false) => return None,
            (None, true) => {}
            (Some(score), is_pending) => {
                put_score(&mut out, score);
                out.put_bytes(0, usize::from(is_pending));
            }
        }
        Some(out.freeze())
    }

    /// `None` for bytes that are no record.
    pub(super) fn decode(value: &[u8]) -> Option<Record> {
        if value.is_empty() {
            return Some(Record { score: None, is_pending: true });
        }
        let (score, rest) = value.split_first_chunk::<8>()?;
        let is_pending = match rest {
            [] => false,
            [0] => true,
            _ => return None,
        };
        Some(Record { score: Some(score_of(*score)?), is_pending })
    }
}

pub(super) fn put_score(out: &mut BytesMut, score: Score) {
    out.put_f64_le(score.get());
}

/// `None` for what is not a number.
pub(super) fn score_of(bytes: [u8; 8]) -> Option<Score> {
    Score::new(f64::from_le_bytes(bytes)).ok()
}

pub(super) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    let mut len = bytes.len();
    while len >= 0x80 {
        out.put_u8((len & 0x7f) as u8 | 0x80);
        len >>= 7;
    }
    out.put_u8(len as u8);
    out.put_slice(bytes);
}

/// What a length takes.
fn len_bytes(len: usize) -> usize {
    let bits = usize::BITS - len.leading_zeros();
    bits.div_ceil(7).max(1) as usize
}

pub(super) fn take_bytes(from: &Bytes, at: &mut usize) -> Option<Bytes> {
    let (mut len, mut shift) = (0usize, 0);
    loop {
        let byte = *from.get(*at)?;
        *at += 1;
        len |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
        if shift > 28 {
            return None;
        }
    }
    let end = at.checked_add(len)?;
    if end > from.len() {
        return None;
    }
    let bytes = from.slice(*at..end);
    *at = end;
    Some(bytes)
}

/// The hash that spreads elements.
pub(super) fn hash(name: &[u8]) -> u64 {
    xxh3_64(name)
}

/// A name as a native shard has it: none is a mark.
pub(super) fn escaped(name: &Bytes) -> Bytes {
    if name.first() != Some(&ESCAPE) && ![LIVE, SEALED, UNFILLED].contains(&&name[..]) {
        return name.clone();
    }
    let mut escaped = BytesMut::with_capacity(name.len() + 1);
    escaped.put_u8(ESCAPE);
    escaped.put_slice(name);
    escaped.freeze()
}

/// The name that a native shard has; `None` for a mark.
pub(super) fn unescaped(stored: &Bytes) -> Option<Bytes> {
    if [LIVE, SEALED, UNFILLED].contains(&&stored[..]) {
        return None;
    }
    Some(if stored.first() == Some(&ESCAPE) { stored.slice(1..) } else { stored.clone() })
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
