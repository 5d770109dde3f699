//! The two ends of a sorted set, as one item: pure bytes, and what a change makes of them.
//!
//! Numbers little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | the version of this layout, 1 |
//! | 1 | 8 | the version of the ends: it only grows, from the time they were made, in microseconds |
//! | 9 | 1 | 1 while they are filled from the shards, else 0 |
//! | 10 | 6 | where they are filled: the id of the map (4), and the next shard (2) |
//! | 16 | … | the top, then the bottom |
//!
//! An end: how far it is complete and how far members are entered, as bounds; the number of entries (4); the entries, the best first. A bound is a byte, 0 nothing, 1 up to
//! the entry behind it, 2 everything. An entry is length (LEB128) and member, and the score, as the 8 bytes of a double.
//!
//! Members are in the order of their scores, those of one score in the order of their bytes. The best of the top is the last in that order, the best of the bottom the first.
//!
//! | | holds |
//! |---|---|
//! | entered up to `reach` | whoever changes a member to, or from, a score within it brings that to the ends |
//! | complete up to `known` | each such member stands there |
//!
//! They are the same but while the ends are filled. An end that holds more than it may drops its worst entry, and reaches up to the last that it keeps. To reach further
//! it must be filled from the shards.

use std::collections::{BTreeMap, HashMap};

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::native::Score;

use super::layout::{put_bytes, put_score, score_of, take_bytes};

const VERSION: u8 = 1;
/// What an entry, or a bound, takes beside its member.
pub(super) const ENTRY_BYTES: usize = 12;
/// What the item takes beside entries and bounds.
pub(super) const HEAD_BYTES: usize = 24;

/// Members, and their scores where they are there.
pub(super) type Records = BTreeMap<Bytes, Option<Score>>;

/// A member with its score, in the order of scores.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ranked {
    pub(super) score: Score,
    pub(super) member: Bytes,
}

/// How far an end goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    Nothing,
    /// To this one, itself included.
    To(Ranked),
    Everything,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Top,
    Bottom,
}

impl End {
    /// The better one is the lesser.
    fn compare(self, one: &Ranked, other: &Ranked) -> std::cmp::Ordering {
        match self {
            End::Top => other.cmp(one),
            End::Bottom => one.cmp(other),
        }
    }

    fn is_within(self, bound: &Bound, ranked: &Ranked) -> bool {
        match bound {
            Bound::Nothing => false,
            Bound::To(last) => self.compare(ranked, last).is_le(),
            Bound::Everything => true,
        }
    }
}

/// One end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    end: End,
    known: Bound,
    reach: Bound,
    /// The best first.
    entries: Vec<Ranked>,
    /// The scores of those that are entered.
    scores: HashMap<Bytes, Score>,
}

impl Side {
    fn new(end: End, known: Bound) -> Side {
        Side { end, known, reach: Bound::Everything, entries: Vec::new(), scores: HashMap::new() }
    }

    /// The `n` best, or all where there are fewer; `None` where that is not known.
    pub(super) fn best(&self, n: usize) -> Option<&[Ranked]> {
        let sure = match self.known {
            Bound::Everything => self.entries.len().max(n),
            _ => self.entries.partition_point(|entry| self.end.is_within(&self.known, entry)),
        };
        (sure >= n).then(|| &self.entries[..n.min(self.entries.len())])
    }

    fn reaches(&self, ranked: &Ranked) -> bool {
        self.end.is_within(&self.reach, ranked)
    }

    fn agrees(&self, member: &Bytes, ranked: Option<&Ranked>) -> bool {
        let entered = ranked.filter(|ranked| self.reaches(ranked)).map(|ranked| ranked.score);
        self.scores.get(member).copied() == entered
    }

    fn apply(&mut self, records: &Records, capacity: usize) {
        self.entries.retain(|entry| !records.contains_key(&entry.member));
        for (member, score) in records {
            self.scores.remove(member);
            let Some(score) = *score else { continue };
            let ranked = Ranked { score, member: member.clone() };
            if self.reaches(&ranked) {
                self.scores.insert(member.clone(), score);
                self.entries.push(ranked);
            }
        }
        // Stable, since it takes a row that is sorted already as one.
        self.entries.sort_by(|one, other| self.end.compare(one, other));
        if self.entries.len() > capacity {
            for dropped in self.entries.drain(capacity..) {
                self.scores.remove(&dropped.member);
            }
            if let Some(last) = self.entries.last() {
                if self.end.is_within(&self.known, last) {
                    self.known = Bound::To(last.clone());
                }
                self.reach = Bound::To(last.clone());
            }
        }
    }

    fn encode(&self, out: &mut BytesMut) {
        put_bound(out, &self.known);
        put_bound(out, &self.reach);
        out.put_u32_le(self.entries.len() as u32);
        self.entries.iter().for_each(|entry| put_entry(out, entry));
    }

    fn decode(end: End, bytes: &Bytes, at: &mut usize) -> Option<Side> {
        let (known, reach) = (take_bound(bytes, at)?, take_bound(bytes, at)?);
        let count = u32::from_le_bytes(take(bytes, at)?);
        let mut entries: Vec<Ranked> = Vec::new();
        for _ in 0..count {
            let entry = take_entry(bytes, at)?;
            if entries.last().is_some_and(|last| end.compare(last, &entry).is_ge()) || !end.is_within(&reach, &entry) {
                return None;
            }
            entries.push(entry);
        }
        let scores: HashMap<Bytes, Score> = entries.iter().map(|entry| (entry.member.clone(), entry.score)).collect();
        (scores.len() == entries.len()).then_some(Side { end, known, reach, entries, scores })
    }
}

/// How far they are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filling {
    /// The id of the map whose shards are read.
    pub(super) map: u32,
    /// Those before this one have been read.
    pub(super) next: u16,
}

/// Both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) version: u64,
    pub(super) filling: Option<Filling>,
    top: Side,
    bottom: Side,
}

impl Ends {
    /// Those of an empty set.
    pub(super) fn of_nothing(version: u64) -> Ends {
        let side = |end| Side::new(end, Bound::Everything);
        Ends { version, filling: None, top: side(End::Top), bottom: side(End::Bottom) }
    }

    /// Those of a set that nothing is known of yet.
    pub(super) fn unknown(version: u64, map: u32) -> Ends {
        let side = |end| Side::new(end, Bound::Nothing);
        Ends { version, filling: Some(Filling { map, next: 0 }), top: side(End::Top), bottom: side(End::Bottom) }
    }

    pub(super) fn side(&self, end: End) -> &Side {
        match end {
            End::Top => &self.top,
            End::Bottom => &self.bottom,
        }
    }

    fn sides(&self) -> [&Side; 2] {
        [&self.top, &self.bottom]
    }

    /// True if a member of this score is entered.
    pub(super) fn reach(&self, member: &Bytes, score: Option<Score>) -> bool {
        let Some(score) = score else { return false };
        let ranked = Ranked { score, member: member.clone() };
        self.sides().into_iter().any(|side| side.reaches(&ranked))
    }

    /// True if a member stands in an end.
    pub(super) fn name(&self, member: &Bytes) -> bool {
        self.sides().into_iter().any(|side| side.scores.contains_key(member))
    }

    /// True if they say of a member what this score makes of them.
    pub(super) fn agree(&self, member: &Bytes, score: Option<Score>) -> bool {
        let ranked = score.map(|score| Ranked { score, member: member.clone() });
        self.sides().into_iter().all(|side| side.agrees(member, ranked.as_ref()))
    }

    /// The next version. The last that there can be has none: it comes from bytes, and what is written over it is refused by whoever compares versions.
    fn next(&self, filling: Option<Filling>) -> Ends {
        Ends { version: self.version.saturating_add(1), filling, ..self.clone() }
    }

    /// The next version, with what shards say of these members.
    pub(super) fn with(&self, records: &Records, capacity: usize) -> Ends {
        let mut next = self.next(self.filling);
        next.enter(records, capacity);
        next
    }

    /// Enters what shards say of these members.
    pub(super) fn enter(&mut self, records: &Records, capacity: usize) {
        self.top.apply(records, capacity);
        self.bottom.apply(records, capacity);
    }

    /// True where an end has fewer than `n` members, and there may be more.
    pub(super) fn are_short(&self, n: usize) -> bool {
        self.sides().into_iter().any(|side| side.best(n).is_none())
    }

    /// The next version, to be filled from the shards of a map: ends that are short of `n` reach everything, until they hold more than they may.
    pub(super) fn to_fill(&self, n: usize, map: u32) -> Ends {
        let mut next = self.next(Some(Filling { map, next: 0 }));
        for side in [&mut next.top, &mut next.bottom] {
            if side.best(n).is_none() {
                side.reach = Bound::Everything;
            }
        }
        next
    }

    /// The next version, with what was filled so far.
    pub(super) fn filled_to(&self, map: u32, next: u16) -> Ends {
        self.next(Some(Filling { map, next }))
    }

    /// The next version, filled.
    pub(super) fn filled(&self) -> Ends {
        let mut next = self.next(None);
        for side in [&mut next.top, &mut next.bottom] {
            side.known = side.reach.clone();
        }
        next
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        out.put_u64_le(self.version);
        out.put_u8(u8::from(self.filling.is_some()));
        let Filling { map, next } = self.filling.unwrap_or(Filling { map: 0, next: 0 });
        out.put_u32_le(map);
        out.put_u16_le(next);
        self.top.encode(&mut out);
        self.bottom.encode(&mut out);
        out.freeze()
    }

    /// `None` for bytes that are no ends.
    pub(super) fn decode(bytes: &Bytes) -> Option<Ends> {
        let mut at = 0;
        let [layout] = take(bytes, &mut at)?;
        let version = u64::from_le_bytes(take(bytes, &mut at)?);
        let [is_filling] = take(bytes, &mut at)?;
        let map = u32::from_le_bytes(take(bytes, &mut at)?);
        let next = u16::from_le_bytes(take(bytes, &mut at)?);
        let filling = match is_filling {
            0 => None,
            1 => Some(Filling { map, next }),
            _ => return None,
        };
        let top = Side::decode(End::Top, bytes, &mut at)?;
        let bottom = Side::decode(End::Bottom, bytes, &mut at)?;
        (layout == VERSION && at == bytes.len()).then_some(Ends { version, filling, top, bottom })
    }
}

fn put_entry(out: &mut BytesMut, entry: &Ranked) {
    put_bytes(out, &entry.member);
    put_score(out, entry.score);
}

fn put_bound(out: &mut BytesMut, bound: &Bound) {
    match bound {
        Bound::Nothing => out.put_u8(0),
        Bound::To(last) => {
            out.put_u8(1);
            put_entry(out, last);
        }
        Bound::Everything => out.put_u8(2),
    }
}

fn take<const N: usize>(bytes: &Bytes, at: &mut usize) -> Option<[u8; N]> {
    let taken = *bytes.get(*at..)?.first_chunk::<N>()?;
    *at += N;
    Some(taken)
}

fn take_entry(bytes: &Bytes, at: &mut usize) -> Option<Ranked> {
    let member = take_bytes(bytes, at)?;
    Some(Ranked { score: score_of(take(bytes, at)?)?, member })
}

fn take_bound(bytes: &Bytes, at: &mut usize) -> Option<Bound> {
    let [which] = take(bytes, at)?;
    match which {
        0 => Some(Bound::Nothing),
        1 => Some(Bound::To(take_entry(bytes, at)?)),
        2 => Some(Bound::Everything),
        _ => None,
    }
}

#[cfg(test)]
#[path = "ends_tests.rs"]
mod tests;
