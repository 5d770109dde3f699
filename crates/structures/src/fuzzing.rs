//! Not for programs: every decoder of the structures, for the proof's fuzzing.
//!
//! A codec stands beside its layout (`fuzz.rs` in the structure's folder): it draws valid bytes, reads any, and puts the checks right of bytes that were changed, so
//! that what is behind a check is fuzzed, too.

use std::fmt::Debug;

use bytes::Bytes;
use fastrand::Rng;
use larder_core::native::Collection;

use crate::append::layout::{self, Action, Elements, Place, Snapshot, Value};
use crate::ledger::layout::Piece;
use crate::manifest::{Kind, Manifest};
use crate::name::Name;
use crate::records::layout as records;
use crate::set::layout as set;

/// One decoder, or a family of them.
#[derive(Clone, Copy)]
pub struct Codec {
    /// What it reads.
    pub name: &'static str,
    /// Draws bytes that it takes.
    pub draw: fn(&mut Rng) -> Vec<u8>,
    /// Reads bytes, and all that can be read of what they hold: whether it takes them; an error where what it took does not come back from its own encoding.
    pub read: fn(&[u8]) -> Result<bool, String>,
    /// Puts checks right.
    pub seal: fn(&mut [u8]),
}

/// The generation of whatever is drawn and read.
pub(crate) const GENERATION: u64 = 0x0123_4567_89ab_cdef;

/// All of them.
pub fn codecs() -> Vec<Codec> {
    [
        CODECS,
        crate::array::fuzz::CODECS,
        crate::cache::fuzz::CODECS,
        crate::counter::fuzz::CODECS,
        crate::lock::fuzz::CODECS,
        crate::log::fuzz::CODECS,
        crate::lookup::fuzz::CODECS,
        crate::queue::fuzz::CODECS,
        crate::sharded::fuzz::CODECS,
        crate::table::fuzz::CODECS,
        crate::unique::fuzz::CODECS,
        crate::visitors::fuzz::CODECS,
    ]
    .concat()
}

pub(crate) fn unsealed(_: &mut [u8]) {}

/// Whether what was read comes back from its own bytes: true for what was read.
pub(crate) fn comes_back<T: PartialEq + Debug>(
    read: Option<T>,
    again: impl FnOnce(&T) -> Option<T>,
) -> Result<bool, String> {
    let Some(value) = read else { return Ok(false) };
    match again(&value) {
        Some(same) if same == value => Ok(true),
        other => Err(format!("{value:?} comes back as {other:?}")),
    }
}

/// Any bytes.
pub(crate) fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let length = rng.usize(0..=most);
    (0..length).map(|_| rng.u8(..)).collect()
}

/// A number of any size.
pub(crate) fn number(rng: &mut Rng) -> u64 {
    rng.u64(..) >> rng.u32(0..64)
}

/// An append-encoded value: a snapshot and frames of these elements, some of them twice.
pub(crate) fn appended(rng: &mut Rng, place: Place, mut element: impl FnMut(&mut Rng) -> Vec<u8>) -> Vec<u8> {
    let mut value = layout::empty(place).to_vec();
    for _ in 0..rng.usize(0..4) {
        let mut elements = Vec::new();
        for _ in 0..rng.usize(0..5) {
            let action = if rng.u8(0..4) > 0 { Action::Put } else { Action::Remove };
            layout::put_element(&mut elements, action, &element(rng));
        }
        let frame = layout::frame(place, rng.u64(1..4), number(rng).max(1), &elements);
        value.extend_from_slice(&frame);
        if rng.u8(0..8) == 0 {
            value.extend_from_slice(&frame);
        }
    }
    value
}

/// Puts the checks of an append-encoded value right: of its snapshot, and of whatever frames are whole.
pub(crate) fn seal_appended(place: Place, bytes: &mut [u8]) {
    let Some(at) = layout::seal_snapshot(place, bytes) else { return };
    layout::seal_frames(place, &mut bytes[at..]);
}

/// Reads an append-encoded value, and holds it against itself compacted: the same elements, nothing left to compact.
pub(crate) fn read_appended<E: Elements>(
    bytes: &[u8],
    place: Place,
    see: impl FnOnce(&E::State<'_>) -> Result<(), String>,
) -> Result<bool, String> {
    let Ok(value) = Value::parse(bytes, place) else { return Ok(false) };
    let Ok(folded) = value.fold(E::State::default()) else { return Ok(false) };
    see(&folded.state)?;
    let compacted = folded.compacted(place, value.epoch, 7);
    if compacted.len() != folded.live_bytes(7) {
        return Err(format!("{} bytes were foretold of {} compacted", folded.live_bytes(7), compacted.len()));
    }
    let again = Value::parse(&compacted, place).and_then(|value| value.fold(E::State::default()));
    let again = again.map_err(|error| format!("a compaction cannot be read: {error}"))?;
    let (before, after) = (all_of(&folded.state), all_of(&again.state));
    if before != after {
        return Err(format!("{before:?} is compacted to {after:?}"));
    }
    Ok(true)
}

fn all_of<'v>(state: &impl Snapshot<'v>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = state.elements().map(<[u8]>::to_vec).chain(state.made()).collect();
    all.sort_unstable();
    all
}

fn manifest(rng: &mut Rng) -> Vec<u8> {
    let kind = [Kind::Lock, Kind::Queue, Kind::Table, Kind::EventLog][rng.usize(0..4)];
    let params = Bytes::from(bytes(rng, 40));
    let (layout, shards) = (rng.u8(..), rng.u16(..));
    Manifest { kind, layout, shards, generation: rng.u64(..), copies: rng.u8(..), params }.encode().to_vec()
}

/// Keys: of a manifest, of data, or nearly.
fn key(rng: &mut Rng) -> Vec<u8> {
    let name = loop {
        if let Ok(name) = Name::new(bytes(rng, 64)) {
            break name;
        }
    };
    let key = if rng.bool() { name.manifest_key() } else { name.data_key('s', rng.u64(..), rng.u16(..)) };
    key.map(|key| key.as_bytes().to_vec()).unwrap_or_default()
}

fn read_key(bytes: &[u8]) -> Result<bool, String> {
    let manifest = Name::of_manifest_key(bytes);
    let Some((name, life)) = Name::of_key(bytes) else {
        return if manifest.is_none() { Ok(false) } else { Err("a manifest's key is none of a name".to_owned()) };
    };
    let own = name.manifest_key().map_err(|error| error.to_string())?;
    if life.is_none() != manifest.is_some() || (life.is_none() && own.as_bytes() != bytes) {
        return Err(format!("it is read as a key of {name}"));
    }
    Ok(true)
}

fn schema(rng: &mut Rng) -> Vec<u8> {
    let mut builder = crate::records::Schema::new();
    for at in 0..rng.usize(1..6) {
        let name = format!("field-{at}");
        builder = match rng.u8(0..5) {
            0 => builder.bit(name),
            1 => builder.uint(name, rng.u8(1..=64)),
            2 => builder.int(name, rng.u8(2..=64)),
            3 => builder.choice(name, (0..rng.usize(2..9)).map(|label| label.to_string())),
            _ => builder.bytes(name, rng.u8(1..=20)),
        };
    }
    let schema = builder.build().unwrap_or_else(|_| unreachable!("fields of sizes that there are"));
    let kept = if rng.bool() { records::Kept::Portable } else { records::Kept::Native };
    records::Params { kept, per_shard: rng.u32(1..100_000), schema }.encode().to_vec()
}

fn read_schema(bytes: &[u8]) -> Result<bool, String> {
    let params = records::Params::decode(bytes);
    if let Some(params) = &params {
        // Bits at any place of a short shard, as a reader of damaged ones meets them.
        for field in params.schema.fields() {
            let read: Vec<u64> =
                field.parts().iter().map(|part| records::read_bits(bytes, part.offset, part.width)).collect();
            let Ok(value) = field.value(&read) else { continue };
            let pieces = field.pieces(&value).map_err(|error| format!("{value:?} cannot be written: {error}"))?;
            let again: Vec<u64> = pieces.iter().map(|piece| piece.value).collect();
            if again != read {
                return Err(format!("{value:?} is {read:?}, and written as {again:?}"));
            }
        }
    }
    comes_back(params, |params| records::Params::decode(&params.encode()))
}

fn read_header(bytes: &[u8]) -> Result<bool, String> {
    comes_back(records::Header::parse(bytes), |header| records::Header::parse(&header.shard_of_zeros(bytes.len())))
}

fn read_text(bytes: &[u8]) -> Result<bool, String> {
    let Ok(text) = set::decode_text(bytes) else { return Ok(false) };
    let compacted = text.compacted();
    let again = set::decode_text(&compacted).map_err(|error| error.to_string())?;
    if again.members.0 != text.members.0 || compacted.len() != text.live_bytes() {
        return Err(format!("{:?} is compacted to {:?}", text.members, again.members));
    }
    Ok(true)
}

const PLACE: Place = Place { generation: GENERATION, shard: 3 };

const CODECS: &[Codec] = &[
    Codec {
        name: "manifest",
        draw: manifest,
        read: |bytes| {
            let read = Manifest::decode(&Bytes::copy_from_slice(bytes)).ok();
            comes_back(read, |manifest| Manifest::decode(&manifest.encode()).ok())
        },
        seal: unsealed,
    },
    Codec { name: "keys", draw: key, read: read_key, seal: unsealed },
    Codec {
        name: "ledger entry",
        draw: |rng| Piece { number: number(rng), part: rng.u16(..), incarnation: rng.u64(..) }.encode().to_vec(),
        read: |bytes| comes_back(Piece::decode(bytes).ok(), |piece| Piece::decode(&piece.encode()).ok()),
        seal: unsealed,
    },
    Codec {
        name: "set",
        draw: |rng| appended(rng, PLACE, |rng| bytes(rng, 9)),
        read: |bytes| read_appended::<set::SetElements>(bytes, PLACE, |_| Ok(())),
        seal: |bytes| seal_appended(PLACE, bytes),
    },
    Codec {
        name: "set as text",
        draw: |rng| {
            let mut out = Vec::new();
            for _ in 0..rng.usize(0..6) {
                let action = if rng.bool() { Action::Put } else { Action::Remove };
                // Never empty, and of what a text can hold.
                let member: Vec<u8> = (0..rng.usize(1..9)).map(|_| rng.u8(b'!'..=b'~')).collect();
                _ = set::put_text(&mut out, action, &member);
            }
            out
        },
        read: read_text,
        seal: unsealed,
    },
    Codec { name: "records", draw: schema, read: read_schema, seal: unsealed },
    Codec {
        name: "records shard",
        draw: |rng| {
            let incarnation = rng.u64(1..1 << 63);
            records::Header { incarnation, known: rng.u32(..), shard: rng.u32(..) }.shard_of_zeros(rng.usize(16..64))
        },
        read: read_header,
        seal: unsealed,
    },
];

/// The shards of the sharded structures, by what they hold.
pub(crate) const COLLECTIONS: [Collection; 3] = [Collection::Hash, Collection::Set, Collection::Sorted];
