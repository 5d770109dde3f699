//! A block: some keys where rows begin and end, and the rows.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | check: the lower half of XXH3-64 of all behind it, seed = build + number of the block |
//! | 4 | 2 | keys |
//! | 6 | 2 | rows |
//! | 8 | 1 | flags: 1 keys follow one another, 2 keys have indexes of rows, 4 some keys have no row |
//! | 9 | 1 | by how many bits keys are shifted |
//! | 10 | 1 | how many bits a key has |
//! | 11 | 1 | how many bits the place of a row has |
//! | 12 | … | bits, the highest of a byte first: keys, indexes or marks, places, rows |
//!
//! A key is where the row begins that all keys have up to the next one; or where none does. The first key of a block stands in the directory, the
//! others as what they are over it. Rows stand in stretches of [`STRETCH`]: the first of each is written without regard to the one before it, and the
//! directory of places says where each stretch but the first begins.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bits::{self, Writer};
use super::model::{Cursor, Decoder, Encoder};

/// How many rows are read at the most to have one of them.
pub(super) const STRETCH: usize = 8;
pub(super) const HEADER_BYTES: usize = 12;
/// The most keys of a block.
const KEYS_MAX: usize = u16::MAX as usize;

const STEPS: u8 = 1;
const INDEXES: u8 = 2;
const GAPS: u8 = 4;

/// How many bits it takes to write numbers up to this one.
fn width(number: u128) -> u32 {
    128 - number.leading_zeros()
}

fn check(rest: &[u8], build: u64, number: u32) -> [u8; 4] {
    // The lower half: truncation is meant.
    (xxh3_64_with_seed(rest, build.wrapping_add(u64::from(number))) as u32).to_le_bytes()
}

/// Rows that are written one after the other, and what they take.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    rows: usize,
    bits: usize,
}

impl Taken {
    /// With one more, and what it takes.
    fn with(self, bits: usize) -> Taken {
        Taken { rows: self.rows + 1, bits: self.bits + bits }
    }

    /// True if the next row is the first of a stretch.
    fn begins(&self) -> bool {
        self.rows.is_multiple_of(STRETCH)
    }

    /// Rows and places, in bits.
    fn all_bits(&self) -> usize {
        self.bits + self.rows.saturating_sub(1) / STRETCH * self.place_width() as usize
    }

    fn place_width(&self) -> u32 {
        width(self.bits as u128)
    }
}

/// What keys take.
#[derive(Clone, Copy, Debug)]
struct Keys {
    count: usize,
    /// All offsets from the first key, or-ed: their lowest bit is that of all.
    all: u128,
    last: u128,
    are_steps: bool,
    gaps: bool,
}

impl Keys {
    fn shift(&self) -> u32 {
        if self.all == 0 { 0 } else { self.all.trailing_zeros() }
    }

    fn width(&self) -> u32 {
        if self.are_steps { 0 } else { width(self.last >> self.shift()) }
    }

    fn bits(&self) -> usize {
        self.count.saturating_sub(1) * self.width() as usize
    }

    /// With one more, `offset` over the first.
    fn with(self, offset: u128, is_gap: bool) -> Keys {
        Keys {
            count: self.count + 1,
            all: self.all | offset,
            last: offset,
            are_steps: self.are_steps && offset == self.count as u128,
            gaps: self.gaps || is_gap,
        }
    }
}

/// A block that is being filled.
pub(super) struct Filling<'r> {
    pub(super) first: u128,
    keys: Keys,
    entries: Vec<(u128, Option<&'r [u8]>)>,
    /// As each row would be written by itself.
    plain: Taken,
    /// As each different row would be written once.
    different: Taken,
    order: Vec<&'r [u8]>,
    places: HashMap<&'r [u8], usize>,
}

impl<'r> Filling<'r> {
    pub(super) fn new(first: u128) -> Filling<'r> {
        let keys = Keys { count: 0, all: 0, last: 0, are_steps: true, gaps: false };
        Filling {
            first,
            keys,
            entries: Vec::new(),
            plain: Taken::default(),
            different: Taken::default(),
            order: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Adds a key, and its row if it has one. False if the block would outgrow `target` bytes then; one key it takes in any case.
    pub(super) fn push(&mut self, encoder: &Encoder<'_>, key: u128, row: Option<&'r [u8]>, target: usize) -> bool {
        let keys = self.keys.with(key - self.first, row.is_none());
        let (mut plain, mut different) = (self.plain, self.different);
        if let Some(row) = row {
            let before = self.entries.iter().rev().find_map(|(_, row)| *row).filter(|_| !plain.begins());
            plain = plain.with(encoder.bits(row, before));
            if !self.places.contains_key(row) {
                let before = self.order.last().copied().filter(|_| !different.begins());
                different = different.with(encoder.bits(row, before));
            }
        }
        let bytes = Filling::bytes(&keys, &plain, &different).0;
        if !self.entries.is_empty() && (bytes > target || keys.count > KEYS_MAX) {
            return false;
        }
        if let Some(row) = row {
            let next = self.order.len();
            if *self.places.entry(row).or_insert(next) == next {
                self.order.push(row);
            }
        }
        (self.keys, self.plain, self.different) = (keys, plain, different);
        self.entries.push((key, row));
        true
    }

    /// How many bytes it takes, and whether with indexes.
    fn bytes(keys: &Keys, plain: &Taken, different: &Taken) -> (usize, bool) {
        let marks = if keys.gaps { keys.count } else { 0 };
        let plainly = marks + plain.all_bits();
        let indexed = keys.count * width(different.rows as u128) as usize + different.all_bits();
        (HEADER_BYTES + (keys.bits() + plainly.min(indexed)).div_ceil(8), indexed < plainly)
    }

    /// The bytes of the block, filled up with zeros to `least`.
    pub(super) fn finish(&self, encoder: &Encoder<'_>, build: u64, number: u32, least: usize) -> Vec<u8> {
        let (keys, (_, indexed)) = (&self.keys, Filling::bytes(&self.keys, &self.plain, &self.different));
        let plain: Vec<&[u8]>;
        let rows = if indexed {
            &self.order
        } else {
            plain = self.entries.iter().filter_map(|(_, row)| *row).collect();
            &plain
        };
        let taken = if indexed { &self.different } else { &self.plain };
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(keys.are_steps, STEPS) | flag(indexed, INDEXES) | flag(keys.gaps && !indexed, GAPS);
        let mut out = vec![0; 4];
        // There are at most KEYS_MAX of both.
        out.extend_from_slice(&(keys.count as u16).to_le_bytes());
        out.extend_from_slice(&(rows.len() as u16).to_le_bytes());
        // Each is at most 128, which is a byte.
        out.extend([flags, keys.shift() as u8, keys.width() as u8, taken.place_width() as u8]);
        let mut bits = Writer::new(out);
        for (key, _) in self.entries.iter().skip(1) {
            bits.put_wide((key - self.first) >> keys.shift() & mask(keys.width()), keys.width());
        }
        let index_width = width(rows.len() as u128);
        for (_, row) in &self.entries {
            if indexed {
                let index = row.map_or(0, |row| self.places.get(row).map_or(0, |place| place + 1));
                bits.put_wide(index as u128, index_width);
            } else if keys.gaps {
                bits.put(u32::from(row.is_some()), 1);
            }
        }
        let mut written = Writer::default();
        for (at, row) in rows.iter().enumerate() {
            if at > 0 && at.is_multiple_of(STRETCH) {
                bits.put_wide(written.bits() as u128, taken.place_width());
            }
            let before = if at.is_multiple_of(STRETCH) { None } else { rows.get(at - 1).copied() };
            encoder.put(row, before, &mut written);
        }
        let (count, written) = (written.bits(), written.finish());
        for at in (0..count).step_by(32) {
            let some = (count - at).min(32) as u32;
            bits.put_wide(bits::get(&written, at, some), some);
        }
        let mut bytes = bits.finish();
        bytes.resize(bytes.len().max(least), 0);
        let check = check(&bytes[4..], build, number);
        bytes[..4].copy_from_slice(&check);
        bytes
    }
}

/// Puts the check of a block right.
#[cfg(feature = "fuzzing")]
pub(super) fn seal(bytes: &mut [u8], build: u64, number: u32) {
    if let Some((sum, rest)) = bytes.split_first_chunk_mut::<4>() {
        *sum = check(rest, build, number);
    }
}

fn mask(width: u32) -> u128 {
    if width >= 128 { u128::MAX } else { (1 << width) - 1 }
}

/// A block that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'b> {
    bytes: &'b [u8],
    first: u128,
    keys: usize,
    rows: usize,
    flags: u8,
    shift: u32,
    key_width: u32,
    place_width: u32,
}

/// What a block has of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit {
    /// The first key that has the same row.
    pub(super) first: u128,
    /// The first one behind it that has not; `None` where that is not in the block.
    pub(super) end: Option<u128>,
    /// Which of the block's rows it is.
    pub(super) row: Option<usize>,
}

impl<'b> Block<'b> {
    /// The block of these bytes; `None` where it is not this one. `first` is its first key.
    pub(super) fn parse(bytes: &'b [u8], build: u64, number: u32, first: u128) -> Option<Block<'b>> {
        let (sum, rest) = bytes.split_first_chunk::<4>()?;
        let (&[keys_low, keys_high, rows_low, rows_high, flags, shift, key_width, place_width], _) =
            rest.split_first_chunk::<{ HEADER_BYTES - 4 }>()?;
        let block = Block {
            bytes,
            first,
            keys: usize::from(u16::from_le_bytes([keys_low, keys_high])),
            rows: usize::from(u16::from_le_bytes([rows_low, rows_high])),
            flags,
            shift: u32::from(shift),
            key_width: u32::from(key_width),
            place_width: u32::from(place_width),
        };
        let is_good = *sum == check(rest, build, number)
            && block.keys > 0
            && block.shift < 128
            && block.key_width <= 128
            && block.place_width <= 64
            && block.rows_at() <= bytes.len() * 8;
        is_good.then_some(block)
    }

    /// Where the bits of the indexes, or marks, begin.
    fn indexes_at(&self) -> usize {
        HEADER_BYTES * 8 + (self.keys - 1) * self.key_width as usize
    }

    /// How many bits a key has of the row that it has.
    fn index_width(&self) -> u32 {
        match self.flags & (INDEXES | GAPS) {
            INDEXES => width(self.rows as u128),
            GAPS => 1,
            _ => 0,
        }
    }

    fn places_at(&self) -> usize {
        self.indexes_at() + self.keys * self.index_width() as usize
    }

    fn rows_at(&self) -> usize {
        self.places_at() + self.rows.saturating_sub(1) / STRETCH * self.place_width as usize
    }

    /// The key at a place.
    fn key(&self, at: usize) -> u128 {
        if at == 0 {
            return self.first;
        }
        let offset = if self.flags & STEPS != 0 {
            at as u128
        } else {
            let offset_at = HEADER_BYTES * 8 + (at - 1) * self.key_width as usize;
            bits::get(self.bytes, offset_at, self.key_width) << self.shift
        };
        self.first.saturating_add(offset)
    }

    /// What it has of a key that is not before its first.
    pub(super) fn find(&self, key: u128) -> Hit {
        // The last that is not behind it.
        let (mut low, mut high) = (0, self.keys);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.key(middle) <= key {
                low = middle;
            } else {
                high = middle;
            }
        }
        let end = (low + 1 < self.keys).then(|| self.key(low + 1));
        Hit { first: self.key(low), end, row: self.index(low) }
    }

    /// Which row the key at a place has.
    fn index(&self, at: usize) -> Option<usize> {
        let from = self.indexes_at();
        if self.flags & INDEXES != 0 {
            let width = self.index_width();
            // Fewer than 2^16.
            return (bits::get(self.bytes, from + at * width as usize, width) as usize).checked_sub(1);
        }
        if self.flags & GAPS == 0 {
            return Some(at);
        }
        if bits::get(self.bytes, from + at, 1) == 0 {
            return None;
        }
        let mut before = 0;
        for part in (0..at).step_by(128) {
            before += bits::get(self.bytes, from + part, (at - part).min(128) as u32).count_ones() as usize;
        }
        Some(before)
    }

    /// The fields of a row; `None` for bytes that are none.
    pub(super) fn row(&self, row: usize, decoder: &Decoder) -> Option<Vec<bytes::Bytes>> {
        if row >= self.rows {
            return None;
        }
        let stretch = row / STRETCH;
        let place = match stretch.checked_sub(1) {
            None => 0,
            Some(at) => {
                let place_at = self.places_at() + at * self.place_width as usize;
                usize::try_from(bits::get(self.bytes, place_at, self.place_width)).ok()?
            }
        };
        // A place behind the end is none; what is read from there on stays far from the largest number.
        let mut at = self.rows_at().checked_add(place).filter(|&at| at <= self.bytes.len() * 8)?;
        let mut cursor: Cursor = decoder.cursor();
        for _ in stretch * STRETCH..=row {
            if !decoder.read(self.bytes, &mut at, &mut cursor) {
                return None;
            }
        }
        decoder.fields(&cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stretch_but_the_first_has_a_place() {
        let bits = |rows| Taken { rows, bits: 1_000 }.all_bits();
        assert_eq!(
            [bits(0), bits(1), bits(STRETCH), bits(STRETCH + 1), bits(2 * STRETCH + 1)],
            [1_000, 1_000, 1_000, 1_010, 1_020]
        );
    }

    #[test]
    fn a_block_has_a_key() {
        let block = |keys: u8| {
            let rest = [keys, 0, 1, 0, 0, 0, 8, 0];
            let mut bytes = check(&rest, 7, 3).to_vec();
            bytes.extend_from_slice(&rest);
            Block::parse(&bytes, 7, 3, 0).map(|block| block.keys)
        };
        assert_eq!((block(0), block(1)), (None, Some(1)));
    }

    /// A block of as many keys as fit into `target` bytes, of rows with one text each: what it said that it would take, and its bytes.
    fn block_of(texts: &[Option<&str>], target: usize) -> (usize, usize, Vec<u8>) {
        let mut rows = super::super::rows::Rows::new(["text"]).unwrap();
        let there = texts.iter().flatten();
        (0..).zip(there).for_each(|(id, text)| rows.push_id(id, [text]).unwrap());
        let model = super::super::model::Model::train(&rows);
        let (encoder, mut filling) = (Encoder::new(&model), Filling::new(7));
        let mut next = 0;
        let mut count = 0;
        for (key, text) in (0u128..).zip(texts) {
            let row = text.map(|_| {
                next += 1;
                rows.row(next - 1).fields
            });
            if !filling.push(&encoder, 7 + key * 12, row, target) {
                break;
            }
            count += 1;
        }
        let (said, _) = Filling::bytes(&filling.keys, &filling.plain, &filling.different);
        (count, said, filling.finish(&encoder, 5, 1, 0))
    }

    #[test]
    fn a_block_takes_what_it_said_it_would() {
        let words: Vec<String> = (0..200u32).map(|at| format!("{:x}", at.wrapping_mul(0x9e37_79b9))).collect();
        let all_different: Vec<Option<&str>> = words.iter().map(|word| Some(&word[..])).collect();
        let repeated: Vec<Option<&str>> = (0..200).map(|at| Some(&words[at * 7 % 23][..])).collect();
        let in_a_row: Vec<Option<&str>> = (0..200).map(|at| Some(&words[at / 9][..])).collect();
        let with_gaps: Vec<Option<&str>> = (0..200).map(|at| (at % 5 > 0).then_some(&words[at][..])).collect();
        let repeated_gaps: Vec<Option<&str>> = (0..200).map(|at| (at % 5 > 0).then_some(&words[at % 7][..])).collect();
        let mut flags = Vec::new();
        for texts in [&all_different, &repeated, &in_a_row, &with_gaps, &repeated_gaps] {
            let (all, said, bytes) = block_of(texts, 1 << 20);
            assert_eq!((all, said), (200, bytes.len()));
            flags.push(Block::parse(&bytes, 5, 1, 7).unwrap().flags);
            // Just as large as it may be, and a byte less.
            assert_eq!(block_of(texts, said).0, 200);
            let (fewer, said, bytes) = block_of(texts, said - 1);
            assert!(fewer < 200 && said == bytes.len(), "{fewer} keys");
        }
        assert_eq!(flags, [0, INDEXES, 0, GAPS, INDEXES], "as the row before takes fewer bits than an index");
    }

    #[test]
    fn a_block_has_so_many_keys_and_no_more() {
        let texts = vec![Some("same"); KEYS_MAX + 2];
        let (count, said, bytes) = block_of(&texts, usize::MAX);
        assert_eq!((count, said), (KEYS_MAX, bytes.len()));
    }

    #[test]
    fn keys_are_shifted_by_less_than_their_width() {
        let block = |shift: u8, width: u8| {
            let rest = [1, 0, 1, 0, 0, shift, width, 0];
            let mut bytes = check(&rest, 7, 3).to_vec();
            bytes.extend_from_slice(&rest);
            Block::parse(&bytes, 7, 3, 0).is_some()
        };
        assert_eq!([block(127, 128), block(128, 1), block(0, 129)], [true, false, false]);
    }

    #[test]
    fn rows_that_share_a_field_with_the_one_before_take_what_was_said() {
        let mut rows = super::super::rows::Rows::new(["id", "group"]).unwrap();
        for id in 0..60u32 {
            let group = ["first", "second", "third"][id as usize / 20];
            rows.push_id(u64::from(id), [format!("{:x}", id.wrapping_mul(0x9e37_79b9)), group.to_owned()]).unwrap();
        }
        let model = super::super::model::Model::train(&rows);
        let (encoder, mut filling) = (Encoder::new(&model), Filling::new(0));
        // Each comes many times, so that they are written once, with indexes.
        for key in 0..600u32 {
            let row = rows.row(key as usize * 7 % 60).fields;
            assert!(filling.push(&encoder, u128::from(key), Some(row), 1 << 20));
        }
        let (said, indexed) = Filling::bytes(&filling.keys, &filling.plain, &filling.different);
        assert_eq!((indexed, filling.finish(&encoder, 5, 1, 0).len()), (true, said));
    }
}
