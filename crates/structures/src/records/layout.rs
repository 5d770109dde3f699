//! The bytes of packed records.
//!
//! Records stand in shards, `n` in each: record `id` is number `id % n` of shard `id / n`. A shard is written whole when it is made:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | incarnation: drawn at random by its maker, 63 bits, never 0 |
//! | 8 | 4 | the portable layout: how many of its records are known, up to the highest that was set; the native one: 0 |
//! | 12 | 4 | the number of the shard |
//! | 16 | … | the records, `bits` each, without gaps; zeros to the end of the last byte |
//!
//! Numbers are big-endian, bits are counted from the highest of a byte: as Redis's BITFIELD counts them. So both layouts have the same
//! bytes, and what differs is how they are changed.
//!
//! A native shard is told from another program's string by its header, as its maker wrote it, and changed by nobody. Beside the shards stands the highest id: a
//! sorted set of one member, the generation as 16 hexadecimal digits, whose score is the highest id plus 1.
//!
//! The parameters of the manifest:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | 0: portable, items under conditional writes; 2: native bit fields |
//! | 1 | 4 | records of a shard, little-endian |
//! | 5 | … | the schema: 1 byte for the number of fields; of each its kind (0 bit, 1 unsigned, 2 signed, 3 choice, 4 bytes), 2 bytes for its bits, labels or bytes, its name, its labels; each text with 1 byte for its length |

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::native::BitField;

use super::schema::Schema;

/// The version of the layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;
/// What stands before the records of a shard.
pub(crate) const HEADER_BYTES: usize = 16;

/// How shards are kept, in the parameters. 1 was native, with the highest id in a member that another program may have, too.
const PORTABLE: u8 = 0;
const NATIVE: u8 = 2;

/// A number in the bits of a record, or of a shard: at most [`BitField::WIDTH_MAX`] bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    pub(crate) offset: u64,
    pub(crate) width: u8,
    pub(crate) value: u64,
}

/// A number of up to 64 bits, in as many pieces as it takes.
pub(crate) fn of_number(offset: u64, width: u8, value: u64) -> Vec<Bits> {
    if width <= BitField::WIDTH_MAX {
        return vec![Bits { offset, width, value }];
    }
    vec![
        Bits { offset, width: width - 32, value: value >> 32 },
        Bits { offset: offset + u64::from(width) - 32, width: 32, value: value & 0xffff_ffff },
    ]
}

/// The number of its pieces.
pub(crate) fn to_number(width: u8, pieces: &[u64]) -> u64 {
    match pieces {
        [high, low] if width > BitField::WIDTH_MAX => high << 32 | low,
        [all, ..] => *all,
        [] => 0,
    }
}

/// Bytes, seven in a piece.
pub(crate) fn of_bytes(offset: u64, bytes: &[u8]) -> Vec<Bits> {
    let piece = |(at, seven): (usize, &[u8])| Bits {
        offset: offset + at as u64 * 56,
        width: seven.len() as u8 * 8,
        value: seven.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)),
    };
    bytes.chunks(7).enumerate().map(piece).collect()
}

/// The bytes of their pieces.
pub(crate) fn to_bytes(count: usize, pieces: &[u64]) -> Bytes {
    let mut out = BytesMut::with_capacity(count);
    for piece in pieces {
        let left = (count - out.len()).min(7);
        out.put_slice(&piece.to_be_bytes()[8 - left..]);
    }
    out.freeze()
}

/// The number in the bits from `offset` on; bits past the end are 0. `width` is 1 to 63.
#[inline]
pub(crate) fn read_bits(bytes: &[u8], offset: u64, width: u8) -> u64 {
    let at = (offset / 8) as usize;
    let skip = (offset % 8) as u32;
    // Nine bytes hold 63 bits from any bit on.
    let mut window = [0; 16];
    let rest = bytes.get(at..).unwrap_or(&[]);
    let have = rest.len().min(9);
    window[..have].copy_from_slice(&rest[..have]);
    let all = u128::from_be_bytes(window) << skip;
    (all >> (128 - u32::from(width))) as u64
}

/// Writes the bits; those past the end are dropped.
pub(crate) fn write_bits(bytes: &mut [u8], bits: Bits) {
    let at = (bits.offset / 8) as usize;
    let shift = 128 - u32::from(bits.width) - (bits.offset % 8) as u32;
    let mask = (u128::MAX >> (128 - u32::from(bits.width))) << shift;
    let value = u128::from(bits.value) << shift & mask;
    let (mask, value) = (mask.to_be_bytes(), value.to_be_bytes());
    for (byte, (mask, value)) in bytes.iter_mut().skip(at).zip(mask.iter().zip(value)) {
        *byte = *byte & !mask | value;
    }
}

/// How the shards of a structure are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Portable,
    Native,
}

/// The parameters of the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) kept: Kept,
    pub(crate) per_shard: u32,
    pub(crate) schema: Schema,
}

impl Params {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(if self.kept == Kept::Native { NATIVE } else { PORTABLE });
        out.put_u32_le(self.per_shard);
        out.put_slice(&self.schema.encode());
        out.freeze()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Params> {
        let (&kept, rest) = bytes.split_first()?;
        let (&per_shard, schema) = rest.split_first_chunk()?;
        let kept = match kept {
            PORTABLE => Kept::Portable,
            NATIVE => Kept::Native,
            _ => return None,
        };
        let params = Params { kept, per_shard: u32::from_le_bytes(per_shard), schema: Schema::decode(schema)? };
        (params.per_shard > 0 && shard_bits(&params).is_some()).then_some(params)
    }

    /// The bytes of a shard.
    pub(crate) fn shard_bytes(&self) -> usize {
        HEADER_BYTES + (u64::from(self.per_shard) * self.schema.bits() as u64).div_ceil(8) as usize
    }

    /// The first bit of a record in its shard.
    pub(crate) fn first_bit(&self, position: u32) -> u64 {
        HEADER_BYTES as u64 * 8 + u64::from(position) * self.schema.bits() as u64
    }
}

/// The bits of a shard, if they can be told in one value.
fn shard_bits(params: &Params) -> Option<u64> {
    let bits = u64::from(params.per_shard).checked_mul(params.schema.bits() as u64)?;
    let all = bits.checked_add(HEADER_BYTES as u64 * 8)?;
    (all <= BitField::OFFSET_END).then_some(all)
}

/// How many records fit into a shard of so many bytes.
pub(crate) fn per_shard(shard_bytes: usize, record_bits: usize) -> u32 {
    let bits = shard_bytes.saturating_sub(HEADER_BYTES).saturating_mul(8);
    u32::try_from(bits / record_bits).unwrap_or(u32::MAX)
}

/// What the first bytes of a shard say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) incarnation: u64,
    pub(crate) known: u32,
    pub(crate) shard: u32,
}

impl Header {
    /// A shard of zeros.
    pub(crate) fn shard_of_zeros(self, bytes: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.max(HEADER_BYTES));
        out.extend_from_slice(&self.incarnation.to_be_bytes());
        out.extend_from_slice(&self.known.to_be_bytes());
        out.extend_from_slice(&self.shard.to_be_bytes());
        out.resize(bytes.max(HEADER_BYTES), 0);
        out
    }

    /// The first bytes of a native shard: what tells it from all else.
    pub(crate) fn mark(shard: u32, incarnation: u64) -> Bytes {
        Header { incarnation, known: 0, shard }.shard_of_zeros(HEADER_BYTES).into()
    }

    /// The fields that tell the same: the incarnation, and the shard behind the bits of zero.
    pub(crate) fn mark_fields() -> [BitField; 2] {
        [BitField::get(63, 1), BitField::get(63, 65)]
    }

    /// The incarnation of a shard that says of itself that it is one, by these fields.
    pub(crate) fn of_fields(shard: u32, fields: &[Option<u64>]) -> Option<u64> {
        match fields {
            [Some(incarnation), Some(rest), ..] if *incarnation != 0 && *rest == u64::from(shard) => Some(*incarnation),
            _ => None,
        }
    }

    /// `None` where these are not the first bytes of a shard.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Header> {
        let (incarnation, rest) = bytes.split_first_chunk()?;
        let (known, rest) = rest.split_first_chunk()?;
        let (shard, _) = rest.split_first_chunk()?;
        let incarnation = u64::from_be_bytes(*incarnation);
        let is_one = incarnation != 0 && incarnation >> 63 == 0;
        is_one.then_some(Header { incarnation, known: u32::from_be_bytes(*known), shard: u32::from_be_bytes(*shard) })
    }

    /// Raises the number of known records in a shard's bytes.
    pub(crate) fn raise_known(bytes: &mut [u8], known: u32) {
        if let Some(field) = bytes.get_mut(8..12)
            && let Ok(now) = field.try_into()
            && u32::from_be_bytes(now) < known
        {
            field.copy_from_slice(&known.to_be_bytes());
        }
    }
}

/// Joins pieces that follow one another into fewer, wider ones; what is written twice stays in its order.
pub(crate) fn joined(mut pieces: Vec<Bits>) -> Vec<Bits> {
    pieces.sort_by_key(|piece| piece.offset);
    let mut out: Vec<Bits> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match out.last_mut() {
            Some(last)
                if last.offset + u64::from(last.width) == piece.offset
                    && last.width + piece.width <= BitField::WIDTH_MAX =>
            {
                last.value = last.value << piece.width | piece.value;
                last.width += piece.width;
            }
            _ => out.push(piece),
        }
    }
    out
}
