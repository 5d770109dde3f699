//! The bytes of a packed table beside its blocks: the head, and the directory of a version.
//!
//! The head, numbers little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | the version of this layout, 1 |
//! | 1 | 8 | drawn at random for each write, so that a writer knows its own |
//! | 9 | 4 | the number of the last version that was listed |
//! | 13 | 1 | 1 if there is a version in force, else 0 |
//! | 14 | 1 | how many others there are |
//! | 15 | 19 each | the version in force, then the others: number (4), build (8), blocks (4), parts of the directory (2), 0 being built or 1 to be removed (1) |
//!
//! The directory of a version, cut into parts:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `LRP` and the version of this layout, 1 |
//! | 8 | build |
//! | 8 | rows |
//! | 8 | bytes of all blocks |
//! | LEB128 | number of columns; each: length (LEB128), name |
//! | … | how fields are written |
//! | 1 | number of sections; each: family (0 numbers, 4 IPv4, 6 IPv6), bytes a key (0 to 16), number of blocks (LEB128), the first key of each (big-endian) |
//! | … | zeros, if any |
//! | 8 | check: XXH3-64 of all before it, seed = build |

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::key::{Family, LookupKey};
use super::model::{Decoder, Model};
use super::rows::{put_bytes, take_bytes};
use crate::append::layout::{put_varint, take, take_length, take_u64};
use crate::name::{Letters, letters};

/// The version of the layout, as the manifest has it.
pub(crate) const LAYOUT: u8 = 2;
const VERSION: u8 = 1;
const MAGIC: [u8; 4] = *b"LRP\x01";
/// The most versions beside the one in force.
pub(super) const OTHERS_MAX: usize = 16;

/// A version of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// One more than the one before; given again on a store that was set back.
    pub(super) number: u32,
    /// Drawn at random for each build; the keys of its blocks and of its directory are made of it, and their checks.
    pub(super) build: u64,
    pub(super) blocks: u32,
    /// Of the directory.
    pub(super) parts: u16,
    /// True if it is to be removed, whatever becomes of who builds it.
    pub(super) is_over: bool,
}

const VERSION_BYTES: usize = 19;
/// Of the check at the end of a directory.
const CHECK_BYTES: usize = 8;

impl Version {
    fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.number);
        out.put_u64_le(self.build);
        out.put_u32_le(self.blocks);
        out.put_u16_le(self.parts);
        out.put_u8(u8::from(self.is_over));
    }

    fn decode(bytes: &[u8]) -> Option<Version> {
        let (number, rest) = bytes.split_first_chunk::<4>()?;
        let (build, rest) = rest.split_first_chunk::<8>()?;
        let (blocks, rest) = rest.split_first_chunk::<4>()?;
        let (parts, rest) = rest.split_first_chunk::<2>()?;
        let is_over = match rest {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Version {
            number: u32::from_le_bytes(*number),
            build: u64::from_le_bytes(*build),
            blocks: u32::from_le_bytes(*blocks),
            parts: u16::from_le_bytes(*parts),
            is_over,
        })
    }

    /// The index of the key of a block. Of the build, and not of the number: where a store was set back a number is given twice, and what a builder writes late, or
    /// removes, must not be another's.
    pub(super) fn block_index(&self, block: u32) -> String {
        format!("{}-{block:x}", self.key_part())
    }

    /// The index of the key of a part of the directory.
    pub(super) fn part_index(&self, part: u16) -> String {
        format!("{}-p{part:x}", self.key_part())
    }

    /// The highest 48 bits of the build.
    fn key_part(&self) -> Letters<8> {
        letters(u128::from(self.build) << 64)
    }
}

/// The head: which version is in force, and which others have keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) tag: u64,
    pub(super) last: u32,
    pub(super) current: Option<Version>,
    pub(super) others: Vec<Version>,
}

impl Head {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(15 + VERSION_BYTES * (self.others.len() + 1));
        out.put_u8(VERSION);
        out.put_u64_le(self.tag);
        out.put_u32_le(self.last);
        out.put_u8(u8::from(self.current.is_some()));
        // At most OTHERS_MAX.
        out.put_u8(self.others.len() as u8);
        self.current.iter().chain(&self.others).for_each(|version| version.encode(&mut out));
        out.freeze()
    }

    /// `None` for bytes that are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Head> {
        let (&[version], rest) = bytes.split_first_chunk::<1>()?;
        let (tag, rest) = rest.split_first_chunk::<8>()?;
        let (last, rest) = rest.split_first_chunk::<4>()?;
        let (&[has_current, others], rest) = rest.split_first_chunk::<2>()?;
        let count = usize::from(has_current) + usize::from(others);
        if version != VERSION || has_current > 1 || rest.len() != count * VERSION_BYTES {
            return None;
        }
        let mut versions = rest.chunks(VERSION_BYTES).map(Version::decode).collect::<Option<Vec<_>>>()?;
        let current = (has_current == 1).then(|| versions.remove(0));
        Some(Head { tag: u64::from_le_bytes(*tag), last: u32::from_le_bytes(*last), current, others: versions })
    }

    /// True if a build is under way, and nobody has ended it.
    pub(super) fn is_building(&self, version: &Version) -> bool {
        !version.is_over && self.others.contains(version)
    }
}

/// The blocks of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) family: Family,
    /// Bytes a key.
    width: usize,
    /// The first key of each block.
    firsts: Vec<u8>,
    /// The number of its first block.
    pub(super) first_block: u32,
}

impl Section {
    pub(super) fn new(family: Family, first_block: u32, firsts: &[u128]) -> Section {
        let most = firsts.last().copied().unwrap_or_default();
        let width = (128 - most.leading_zeros()).div_ceil(8) as usize;
        let mut bytes = Vec::with_capacity(firsts.len() * width);
        firsts.iter().for_each(|first| bytes.extend_from_slice(&first.to_be_bytes()[16 - width..]));
        Section { family, width, firsts: bytes, first_block }
    }

    pub(super) fn len(&self) -> usize {
        // Of no bytes a key there is one block: its first key is 0.
        self.firsts.len().checked_div(self.width).unwrap_or(1)
    }

    /// The first key of a block.
    pub(super) fn first(&self, at: usize) -> u128 {
        let mut number = [0; 16];
        if let Some(bytes) = self.firsts.get(at * self.width..(at + 1) * self.width) {
            number[16 - self.width..].copy_from_slice(bytes);
        }
        u128::from_be_bytes(number)
    }

    /// The place among its own of the block that a key is in; `None` for a key before the first.
    pub(super) fn place(&self, key: u128) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.first(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }
}

/// What a reader keeps of a version.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) rows: u64,
    /// Of all blocks, in bytes.
    pub(super) bytes: u64,
    pub(super) columns: Arc<[String]>,
    pub(super) sections: Vec<Section>,
    pub(super) decoder: Decoder,
}

/// Where a key is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) family: Family,
    pub(super) key: u128,
    pub(super) block: u32,
    /// The first key of the block.
    pub(super) first: u128,
    /// The last key before the next block.
    pub(super) last: u128,
}

/// The bytes of a directory, as many as make whole parts of `multiple`.
pub(super) fn encode_directory(
    build: u64,
    (rows, bytes): (u64, u64),
    columns: &[String],
    model: &Model,
    sections: &[Section],
    multiple: usize,
) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&build.to_le_bytes());
    out.extend_from_slice(&rows.to_le_bytes());
    out.extend_from_slice(&bytes.to_le_bytes());
    put_varint(&mut out, columns.len() as u64);
    columns.iter().for_each(|column| put_bytes(&mut out, column.as_bytes()));
    model.encode(&mut out);
    // At most three.
    out.push(sections.len() as u8);
    for section in sections {
        // At most 16.
        out.extend([section.family.byte(), section.width as u8]);
        put_varint(&mut out, section.len() as u64);
        out.extend_from_slice(&section.firsts);
    }
    out.resize((out.len() + CHECK_BYTES).next_multiple_of(multiple) - CHECK_BYTES, 0);
    let check = xxh3_64_with_seed(&out, build);
    out.extend_from_slice(&check.to_le_bytes());
    out
}

/// Puts the check of a directory right.
#[cfg(feature = "fuzzing")]
pub(super) fn seal(bytes: &mut [u8], build: u64) {
    if let Some((rest, check)) = bytes.split_last_chunk_mut::<CHECK_BYTES>() {
        *check = xxh3_64_with_seed(rest, build).to_le_bytes();
    }
}

impl Directory {
    /// `None` for bytes that are not those of this version.
    pub(super) fn decode(bytes: &[u8], version: &Version) -> Option<Directory> {
        let (mut rest, check) = bytes.split_last_chunk::<8>()?;
        if u64::from_le_bytes(*check) != xxh3_64_with_seed(rest, version.build) {
            return None;
        }
        if take(&mut rest, 4)? != MAGIC || take_u64(&mut rest)? != version.build {
            return None;
        }
        let rows = take_u64(&mut rest)?;
        let all = take_u64(&mut rest)?;
        let count = take_length(&mut rest).filter(|&count| count <= super::COLUMNS_MAX)?;
        let column = |_| Some(std::str::from_utf8(take_bytes(&mut rest)?).ok()?.to_owned());
        let columns = (0..count).map(column).collect::<Option<Arc<[String]>>>()?;
        let model = Model::decode(&mut rest, count)?;
        let (&sections, behind) = rest.split_first()?;
        rest = behind;
        let mut first_block = 0u32;
        let mut decoded = Vec::new();
        for _ in 0..sections {
            let (&[family, width], behind) = rest.split_first_chunk::<2>()?;
            rest = behind;
            let (family, width) = (Family::from_byte(family)?, usize::from(width));
            let blocks = take_length(&mut rest)?;
            if width > 16 || (width == 0 && blocks != 1) {
                return None;
            }
            let (firsts, behind) = rest.split_at_checked(blocks.checked_mul(width)?)?;
            rest = behind;
            decoded.push(Section { family, width, firsts: firsts.to_vec(), first_block });
            first_block = first_block.checked_add(u32::try_from(blocks).ok()?)?;
        }
        let is_whole = rest.iter().all(|&byte| byte == 0) && first_block == version.blocks;
        let decoder = Decoder::new(model);
        is_whole.then_some(Directory { rows, bytes: all, columns, sections: decoded, decoder })
    }

    /// Where a key is looked for; `None` where no row can be.
    pub(super) fn spot(&self, key: &LookupKey) -> Option<Spot> {
        // Numbers may stand for addresses: the file said so, not the key.
        let numbers = self.sections.iter().find(|section| section.family == Family::Number);
        let section = numbers.or_else(|| self.sections.iter().find(|section| section.family == key.family()))?;
        let number = key.number();
        let place = section.place(number)?;
        let last = if place + 1 < section.len() { section.first(place + 1) - 1 } else { section.family.last() };
        // A block for each: they were counted.
        let block = section.first_block + place as u32;
        Some(Spot { family: section.family, key: number, block, first: section.first(place), last })
    }

    /// True for a table of numbers.
    pub(super) fn has_numbers(&self) -> bool {
        self.sections.iter().any(|section| section.family == Family::Number)
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
