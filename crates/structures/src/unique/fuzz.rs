//! The parameters, heads, shards and sketches of unique visitors, fuzzed.

use super::id::{Hash, IdKind};
use super::layout::{Blob, Head, Members, Params, Precision, SHARDS_MAX, Shape, Spot, sketch_blob};
use super::sketch;
use super::zone::Zone;
use crate::fuzzing::{Codec, comes_back, number, unsealed};

const SPAN: u64 = 1 << 35;
/// Of the sketches that are drawn.
const LG_K: u8 = 10;

fn params(rng: &mut fastrand::Rng) -> Vec<u8> {
    let precision = match rng.u8(0..4) {
        0 => Precision::Exact,
        1 => Precision::Compact,
        2 => Precision::NearExact { bits: rng.u8(24..=48) },
        _ => Precision::Sketch { lg_k: rng.u8(10..=16) },
    };
    let params = Params {
        period_ms: number(rng),
        offset_ms: rng.i32(..),
        seed: rng.u64(..),
        precision,
        ids: if rng.bool() { IdKind::Any } else { IdKind::Integer },
        shape: [Shape::Blob, Shape::Padded, Shape::Native][rng.usize(0..3)],
        expected: number(rng),
        keep_ms: number(rng),
        zone: if rng.bool() {
            Zone::named(["Europe/Berlin", "Asia/Tokyo", "UTC", "No/Where"][rng.usize(0..4)])
        } else {
            None
        },
    };
    params.encode().to_vec()
}

fn read_params(bytes: &[u8]) -> Result<bool, String> {
    let params = Params::decode(bytes);
    if let Some(params) = &params {
        for time_ms in [0, 1, 1_700_000_000_000, u64::MAX] {
            _ = params.period_of(time_ms).map(|period| params.begin_ms(period));
        }
    }
    comes_back(params, |params| Params::decode(&params.encode()))
}

fn read_head(bytes: &[u8]) -> Result<bool, String> {
    let head = Head::decode(bytes).ok();
    if let Some(head) = &head {
        for high in [0, 1, 1 << 40, u64::MAX] {
            let spot = head.spot(Hash { high, low: 5 }, true);
            // 0 stands for 2^64.
            let span = head.span(spot.shard);
            if spot.shard >= head.shards || (span > 0 && spot.offset >= span) {
                return Err(format!("{high} stands at {spot:?} of {head:?}"));
            }
        }
    }
    comes_back(head, |head| Head::decode(&head.encode()).ok())
}

/// The first byte says whether hashes are kept whole.
fn blob(rng: &mut fastrand::Rng) -> Vec<u8> {
    let is_wide = rng.bool();
    let spot = |rng: &mut fastrand::Rng| Spot { shard: 0, offset: rng.u64(0..SPAN), low: rng.u64(..) };
    let mut spots: Vec<Spot> = (0..rng.usize(0..30)).map(|_| spot(rng)).collect();
    spots.sort_unstable();
    spots.dedup_by_key(|spot| spot.offset);
    let members = Members::default().merge(&spots, is_wide);
    let padded = if rng.bool() { 0 } else { 64 };
    [&[u8::from(is_wide)], &members.encode(SPAN, rng.u32(..), padded)[..]].concat()
}

fn read_blob(bytes: &[u8]) -> Result<bool, String> {
    let Some((&is_wide, rest)) = bytes.split_first() else { return Ok(false) };
    let is_wide = is_wide & 1 == 1;
    let Ok(blob) = Blob::parse(rest) else { return Ok(false) };
    let Ok(members) = blob.members(SPAN - 1, is_wide) else { return Ok(false) };
    if members.offsets.len() != blob.count as usize || members.offsets.iter().any(|&offset| offset >= SPAN) {
        return Err(format!("{} offsets of {}", members.offsets.len(), blob.count));
    }
    let (first, low) = (members.offsets.first(), members.lows.first());
    if let Some(&offset) = first
        && !members.has(&Spot { shard: 0, offset, low: low.copied().unwrap_or(0) })
    {
        return Err(format!("{offset} is there, and not found"));
    }
    // Nobody writes a wide one of no members.
    if is_wide && members.lows.is_empty() {
        return Ok(true);
    }
    comes_back(Some(members), |members| {
        Blob::parse(&members.encode(SPAN, blob.mark, 0)).and_then(|blob| blob.members(SPAN - 1, is_wide)).ok()
    })
}

fn sketched(rng: &mut fastrand::Rng) -> Vec<u8> {
    let hashes: Vec<u64> = (0..rng.usize(1..40)).map(|_| rng.u64(..)).collect();
    let sketched = sketch::with(&[], LG_K, hashes.into_iter()).ok().flatten();
    sketch_blob(&sketched.map(|(bytes, _)| bytes).unwrap_or_default(), rng.u32(..), 5).to_vec()
}

fn read_sketch(bytes: &[u8]) -> Result<bool, String> {
    let Ok(blob) = Blob::parse(bytes) else { return Ok(false) };
    let Ok(sketch) = sketch::read(blob.coded, LG_K) else { return Ok(false) };
    _ = sketch::estimate(&sketch);
    _ = sketch::union(LG_K, &[sketch]);
    Ok(true)
}

pub(crate) const CODECS: &[Codec] = &[
    Codec { name: "unique visitors", draw: params, read: read_params, seal: unsealed },
    Codec {
        name: "unique visitors' head",
        draw: |rng| {
            let (shards, bits) = (rng.u32(1..=SHARDS_MAX), rng.u8(22..=64));
            let head =
                Head { incarnation: rng.u64(..), expected: number(rng), shards, bits, padded_bytes: rng.u32(..) };
            head.encode().to_vec()
        },
        read: read_head,
        seal: unsealed,
    },
    Codec { name: "unique visitors' shard", draw: blob, read: read_blob, seal: unsealed },
    Codec {
        name: "unique visitors' sketch",
        draw: sketched,
        read: read_sketch,
        // What is broken does not reach the library that reads sketches: its check is not put right.
        seal: unsealed,
    },
];
