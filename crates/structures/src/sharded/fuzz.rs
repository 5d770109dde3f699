//! The map, the shards and the ends of sharded structures, fuzzed.

use bytes::Bytes;
use larder_core::native::{Collection, Score};

use super::ends::{Ends, Records};
use super::layout::{Elements, Kept, Limits, Map, Mark, Params, Phase, Plan, Record, Shard, escaped, unescaped};
use crate::fuzzing::{COLLECTIONS, Codec, bytes, comes_back, unsealed};

fn map(rng: &mut fastrand::Rng) -> Map {
    Map { id: rng.u32(..), shards: rng.u16(1..), per_shard: if rng.bool() { 0 } else { rng.u32(..) } }
}

fn plan(rng: &mut fastrand::Rng) -> Vec<u8> {
    let phase = match rng.u8(0..3) {
        0 => Phase::Stable,
        1 => Phase::Planned(map(rng)),
        _ => Phase::Moving(map(rng)),
    };
    Plan { version: rng.u64(..), map: map(rng), phase }.encode().to_vec()
}

fn read_plan(bytes: &[u8]) -> Result<bool, String> {
    let plan = Plan::decode(bytes);
    if let Some(plan) = &plan
        && let Some(other) = plan.other()
        && (plan.map.per_shard > 0) == (other.per_shard > 0)
    {
        for shard in [0, plan.map.shards / 2, plan.map.shards - 1] {
            let overlap = plan.map.overlap(shard, &other);
            if overlap.end > other.shards || (plan.map.per_shard == 0 && overlap.is_empty()) {
                return Err(format!("shard {shard} of {plan:?} overlaps {overlap:?}"));
            }
        }
    }
    comes_back(plan, |plan| Plan::decode(&plan.encode()))
}

fn score(rng: &mut fastrand::Rng) -> Score {
    Score::new(f64::from_bits(rng.u64(..))).unwrap_or(Score::from(rng.i32(..)))
}

/// The first byte is which collection it is of.
fn shard(rng: &mut fastrand::Rng) -> Vec<u8> {
    let which = rng.usize(0..COLLECTIONS.len());
    let mut elements = Elements::new();
    for _ in 0..rng.usize(0..7) {
        let value = match COLLECTIONS[which] {
            Collection::Set => Bytes::new(),
            Collection::Sorted => {
                let record = Record { score: rng.bool().then(|| score(rng)), is_pending: true };
                record.encode().unwrap_or_default()
            }
            _ => bytes(rng, 12).into(),
        };
        elements.insert(bytes(rng, 9).into(), value);
    }
    let mark = [Mark::Unfilled, Mark::Live, Mark::Sealed][rng.usize(0..3)];
    let seen = if COLLECTIONS[which] == Collection::Sorted { rng.u64(..) } else { 0 };
    let shard = Shard { mark, tag: rng.u64(..), seen, elements };
    [&[which as u8], &shard.encode(COLLECTIONS[which])[..]].concat()
}

fn read_shard(bytes: &[u8]) -> Result<bool, String> {
    let Some((which, rest)) = bytes.split_first() else { return Ok(false) };
    let of = COLLECTIONS[usize::from(*which) % COLLECTIONS.len()];
    let shard = Shard::decode(&Bytes::copy_from_slice(rest), of);
    if let Some(shard) = &shard
        && Mark::of_flags(shard.flags(of)).map(|(mark, _)| mark) != Some(shard.mark)
    {
        return Err(format!("{shard:?} has flags {}", shard.flags(of)));
    }
    comes_back(shard, |shard| Shard::decode(&shard.encode(of), of))
}

fn ends(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut ends = if rng.bool() { Ends::of_nothing(rng.u64(0..1 << 60)) } else { Ends::unknown(1, 7) };
    for _ in 0..rng.usize(0..4) {
        let mut records = Records::new();
        for _ in 0..rng.usize(1..6) {
            records.insert(bytes(rng, 3).into(), rng.bool().then(|| score(rng)));
        }
        ends = ends.with(&records, rng.usize(1..6));
    }
    ends.encode().to_vec()
}

pub(crate) const CODECS: &[Codec] = &[
    Codec {
        name: "sharded",
        draw: |rng| {
            let limits = rng.bool().then(|| Limits { kept: rng.u16(..), member_bytes_max: rng.u16(..) });
            let kept = if rng.bool() { Kept::Portable } else { Kept::Native };
            Params { kept, is_dense: rng.bool(), limits }.encode().to_vec()
        },
        read: |bytes| comes_back(Params::decode(bytes), |params| Params::decode(&params.encode())),
        seal: unsealed,
    },
    Codec { name: "sharded map", draw: plan, read: read_plan, seal: unsealed },
    Codec { name: "shard", draw: shard, read: read_shard, seal: unsealed },
    Codec {
        name: "sorted set's ends",
        draw: ends,
        read: |bytes| comes_back(Ends::decode(&Bytes::copy_from_slice(bytes)), |ends| Ends::decode(&ends.encode())),
        seal: unsealed,
    },
    Codec {
        name: "sorted set's record",
        draw: |rng| {
            let record = Record { score: rng.bool().then(|| score(rng)), is_pending: true };
            record.encode().unwrap_or_default().to_vec()
        },
        read: |bytes| comes_back(Record::decode(bytes), |record| Record::decode(&record.encode()?)),
        seal: unsealed,
    },
    Codec {
        name: "native shard's name",
        draw: |rng| escaped(&bytes(rng, 12).into()).to_vec(),
        read: |bytes| comes_back(unescaped(&Bytes::copy_from_slice(bytes)), |name| unescaped(&escaped(name))),
        seal: unsealed,
    },
];
