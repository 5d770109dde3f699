//! How the fields of a version's rows are written: made of all rows when it is built, and kept by whoever reads it.
//!
//! Columns with few values go by palettes: each value, or each combination of several columns that stand side by side, has a Huffman code. The
//! others are texts. Which columns go together is what takes the least room.

use std::collections::HashMap;

use super::bits::{Reader, Writer};
use super::huffman::{self, Codes};
use super::rows::{Rows, put_bytes, take_bytes};
use super::text::{Counts, PairCounts, TextDecoder, TextEncoder, TextModel, WEIGHT, cost_bits};
use crate::append::layout::{put_varint, take_length};

/// The most values of a palette, and the most bytes of them: whoever reads keeps them.
const PALETTE_VALUES_MAX: usize = 1 << 14;
const PALETTE_BYTES_MAX: usize = 128 << 10;
/// How many columns a palette may join.
const PALETTE_COLUMNS_MAX: usize = 4;
/// The longest code of a value, in bits, and what its length is stored in.
const BITS_MAX: u8 = 20;
const LENGTH_BITS: u32 = 5;
/// What most texts fit into, in bytes.
const TEXT_CAPACITY: usize = 48;
/// The symbol for "as the row before".
const SAME: usize = 0;
/// Of a row that is as the one before: how much of its weight counts for that, and how much as if it were the first of its group.
const SAME_WEIGHT: u64 = WEIGHT - 1;

/// One or more columns that are written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Group {
    Palette {
        columns: usize,
        /// Each value: the fields, as rows have them.
        values: Vec<Vec<u8>>,
        /// Of "as the row before", and of each value.
        lengths: Vec<u8>,
    },
    Text(TextModel),
}

impl Group {
    /// Of values that come so often, and of so much that is as the row before.
    fn palette(columns: usize, counts: HashMap<&[u8], u64>, same: u64) -> Group {
        let mut values: Vec<(&[u8], u64)> = counts.into_iter().collect();
        values.sort_unstable();
        // The only value takes no bits.
        let same = if values.len() == 1 { 0 } else { same };
        let counts: Vec<u64> = std::iter::once(same).chain(values.iter().map(|(_, count)| *count)).collect();
        let values = values.into_iter().map(|(value, _)| value.to_vec()).collect();
        Group::Palette { columns, values, lengths: huffman::lengths(&counts, BITS_MAX) }
    }

    fn columns(&self) -> usize {
        match self {
            Group::Palette { columns, .. } => *columns,
            Group::Text(_) => 1,
        }
    }
}

/// How all fields of a row are written, from the first on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) groups: Vec<Group>,
}

/// The fields of a row that belong to a group: of a text without its length.
fn cut<'r>(row: &mut &'r [u8], columns: usize, is_text: bool) -> &'r [u8] {
    let whole = *row;
    let mut text = &whole[..0];
    for _ in 0..columns {
        // Rows are made with as many fields as there are columns.
        text = take_bytes(row).unwrap_or_default();
    }
    if is_text { text } else { &whole[..whole.len() - row.len()] }
}

impl Model {
    /// Makes one for these rows.
    pub(super) fn train(rows: &Rows) -> Model {
        let plan = Plan::best(rows);
        let mut palettes: Vec<HashMap<&[u8], u64>> = plan.iter().map(|_| HashMap::new()).collect();
        let mut sames = vec![0u64; plan.len()];
        let mut texts: Vec<Option<Counts>> = plan.iter().map(|part| part.is_text.then(Counts::new)).collect();
        each_part(rows, &plan, |at, part, same| {
            match &mut texts[at] {
                Some(counts) => counts.add(part, same),
                None => {
                    sames[at] += same;
                    *palettes[at].entry(part).or_default() += WEIGHT - same;
                }
            };
        });
        let mut pairs: Vec<Option<PairCounts>> = texts.into_iter().map(|counts| counts.map(PairCounts::new)).collect();
        if plan.iter().any(|part| part.is_text) {
            each_part(rows, &plan, |at, part, same| {
                if let Some(counts) = &mut pairs[at] {
                    counts.add(part, same);
                }
            });
        }
        let mut groups = Vec::with_capacity(plan.len());
        for (at, (palette, pairs)) in palettes.into_iter().zip(pairs).enumerate() {
            groups.push(match pairs {
                Some(pairs) => Group::Text(pairs.model()),
                None => Group::palette(plan[at].columns, palette, sames[at]),
            });
        }
        Model { groups }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.groups.len() as u64);
        for group in &self.groups {
            match group {
                Group::Palette { columns, values, lengths } => {
                    put_varint(out, *columns as u64);
                    put_varint(out, values.len() as u64);
                    values.iter().for_each(|value| put_bytes(out, value));
                    let mut bits = Writer::new(std::mem::take(out));
                    lengths.iter().for_each(|&length| bits.put(u32::from(length), LENGTH_BITS));
                    *out = bits.finish();
                }
                Group::Text(model) => {
                    put_varint(out, 0);
                    *out = model.encode(std::mem::take(out));
                }
            }
        }
    }

    /// Takes one for `columns` columns from the front; `None` for bytes that are none.
    pub(super) fn decode(from: &mut &[u8], columns: usize) -> Option<Model> {
        let count = take_length(from).filter(|&count| count <= columns)?;
        let mut groups = Vec::with_capacity(count);
        for _ in 0..count {
            groups.push(match take_length(from)? {
                0 => Group::Text(TextModel::decode(from)?),
                columns => Model::decode_palette(from, columns)?,
            });
        }
        (groups.iter().map(Group::columns).sum::<usize>() == columns).then_some(Model { groups })
    }

    fn decode_palette(from: &mut &[u8], columns: usize) -> Option<Group> {
        let count = take_length(from).filter(|&count| count <= PALETTE_VALUES_MAX)?;
        if columns > PALETTE_COLUMNS_MAX {
            return None;
        }
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let value = take_bytes(from)?;
            let mut rest = value;
            for _ in 0..columns {
                take_bytes(&mut rest)?;
            }
            if !rest.is_empty() {
                return None;
            }
            values.push(value.to_vec());
        }
        let mut bits = Reader::new(from);
        let lengths = (0..=count).map(|_| Some(bits.take(LENGTH_BITS)? as u8)).collect::<Option<Vec<u8>>>()?;
        *from = bits.rest();
        huffman::is_code(&lengths, BITS_MAX).then_some(Group::Palette { columns, values, lengths })
    }
}

/// Calls `act` with each group of each row, and with how much of its weight counts as "as the row before".
fn each_part<'r>(rows: &'r Rows, plan: &[Part], mut act: impl FnMut(usize, &'r [u8], u64)) {
    let mut last: Vec<Option<&[u8]>> = vec![None; plan.len()];
    for row in 0..rows.len() {
        let mut fields = rows.row(row).fields;
        for (at, part) in plan.iter().enumerate() {
            let own = cut(&mut fields, part.columns, part.is_text);
            act(at, own, if last[at] == Some(own) { SAME_WEIGHT } else { 0 });
            last[at] = Some(own);
        }
    }
}

/// Columns that make a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    columns: usize,
    is_text: bool,
}

/// What it would take to write some columns as a palette.
struct Candidate<'r> {
    first: usize,
    columns: usize,
    /// How often each value comes; `None` once there are too many.
    counts: Option<HashMap<&'r [u8], u64>>,
    bytes: usize,
}

struct Plan;

impl Plan {
    /// The parts that take the least room together.
    fn best(rows: &Rows) -> Vec<Part> {
        let columns = rows.columns().len();
        let mut texts: Vec<Counts> = (0..columns).map(|_| Counts::new()).collect();
        let mut palettes: Vec<Candidate<'_>> = (0..columns)
            .flat_map(|first| (1..=PALETTE_COLUMNS_MAX.min(columns - first)).map(move |columns| (first, columns)))
            .map(|(first, columns)| Candidate { first, columns, counts: Some(HashMap::new()), bytes: 0 })
            .collect();
        let mut ends = vec![0; columns + 1];
        for at in 0..rows.len() {
            let row = rows.row(at).fields;
            let mut rest = row;
            for (column, counts) in texts.iter_mut().enumerate() {
                counts.add(cut(&mut rest, 1, true), 0);
                ends[column + 1] = row.len() - rest.len();
            }
            for palette in &mut palettes {
                palette.count(&row[ends[palette.first]..ends[palette.first + palette.columns]]);
            }
        }
        // The least for all columns before each, and the part that ends there.
        let none = Part { columns: 0, is_text: true };
        let mut least = vec![(f64::INFINITY, none); columns + 1];
        least[0].0 = 0.0;
        for end in 1..=columns {
            let text = (least[end - 1].0 + texts[end - 1].cost_bits(), Part { columns: 1, is_text: true });
            least[end] = text;
            for palette in palettes.iter().filter(|palette| palette.first + palette.columns == end) {
                let Some(cost) = palette.cost_bits() else { continue };
                let cost = least[palette.first].0 + cost;
                if cost < least[end].0 {
                    least[end] = (cost, Part { columns: palette.columns, is_text: false });
                }
            }
        }
        let (mut parts, mut end) = (Vec::new(), columns);
        while end > 0 {
            parts.push(least[end].1);
            end -= least[end].1.columns;
        }
        parts.reverse();
        parts
    }
}

impl<'r> Candidate<'r> {
    fn count(&mut self, value: &'r [u8]) {
        let Some(counts) = &mut self.counts else { return };
        let count = counts.entry(value).or_insert(0);
        if *count == 0 {
            self.bytes += value.len() + 1;
        }
        *count += WEIGHT;
        if counts.len() > PALETTE_VALUES_MAX || self.bytes > PALETTE_BYTES_MAX {
            self.counts = None;
        }
    }

    fn cost_bits(&self) -> Option<f64> {
        let counts = self.counts.as_ref()?;
        Some(cost_bits(counts.values().copied(), f64::from(LENGTH_BITS)) + self.bytes as f64 * 8.0)
    }
}

/// What rows are written by.
pub(super) struct Encoder<'m> {
    groups: Vec<GroupEncoder<'m>>,
}

enum GroupEncoder<'m> {
    Palette { columns: usize, codes: Vec<(u32, u8)>, places: HashMap<&'m [u8], usize> },
    Text(TextEncoder),
}

impl<'m> Encoder<'m> {
    pub(super) fn new(model: &'m Model) -> Encoder<'m> {
        let group = |group: &'m Group| match group {
            Group::Palette { columns, values, lengths } => GroupEncoder::Palette {
                columns: *columns,
                codes: huffman::codes(lengths),
                places: values.iter().enumerate().map(|(at, value)| (&value[..], at + 1)).collect(),
            },
            Group::Text(model) => GroupEncoder::Text(TextEncoder::new(model)),
        };
        Encoder { groups: model.groups.iter().map(group).collect() }
    }

    /// How many bits a row takes behind another one; `None` where it is the first of its stretch.
    pub(super) fn bits(&self, row: &[u8], before: Option<&[u8]>) -> usize {
        let mut all = 0;
        self.each(row, before, |code| {
            all += match code {
                Coded::Bits(_, bits) => usize::from(bits),
                Coded::Text(encoder, text) => encoder.bits(text),
            }
        });
        all
    }

    pub(super) fn put(&self, row: &[u8], before: Option<&[u8]>, out: &mut Writer) {
        self.each(row, before, |code| match code {
            Coded::Bits(code, bits) => out.put(code, u32::from(bits)),
            Coded::Text(encoder, text) => encoder.put(text, out),
        });
    }

    fn each<'e>(&'e self, row: &'e [u8], before: Option<&[u8]>, mut act: impl FnMut(Coded<'e>)) {
        let (mut row, mut before) = (row, before);
        for group in &self.groups {
            let (columns, is_text) = match group {
                GroupEncoder::Palette { columns, .. } => (*columns, false),
                GroupEncoder::Text(_) => (1, true),
            };
            let own = cut(&mut row, columns, is_text);
            let is_same = before.as_mut().is_some_and(|before| cut(before, columns, is_text) == own);
            act(match group {
                GroupEncoder::Palette { codes, places, .. } => {
                    let same = codes[SAME];
                    // Each value of the rows that it was made of is in the palette.
                    let place = places.get(own).copied().unwrap_or(SAME);
                    let (code, bits) = codes[place];
                    // One of no bits: nothing was ever as the row before it.
                    if is_same && same.1 > 0 && same.1 < bits {
                        Coded::Bits(same.0, same.1)
                    } else {
                        Coded::Bits(code, bits)
                    }
                }
                GroupEncoder::Text(encoder) => match encoder.same() {
                    Some((code, bits)) if is_same => Coded::Bits(code, bits),
                    _ => Coded::Text(encoder, own),
                },
            });
        }
    }
}

enum Coded<'e> {
    Bits(u32, u8),
    Text(&'e TextEncoder, &'e [u8]),
}

/// What rows are read by.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    groups: Vec<GroupDecoder>,
    columns: usize,
}

#[derive(Clone, Debug)]
enum GroupDecoder {
    Palette { code: Codes, values: Vec<Vec<u8>>, columns: usize },
    Text(TextDecoder),
}

/// A row under way: what each group has.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    parts: Vec<CursorPart>,
}

#[derive(Clone, Debug)]
enum CursorPart {
    /// One more than the place of the value; 0 before the first.
    Palette(usize),
    Text(Vec<u8>),
}

impl Decoder {
    pub(super) fn new(model: Model) -> Decoder {
        let group = |group: Group| match group {
            Group::Palette { columns, values, lengths } => {
                let mut code = Codes::default();
                code.add(&lengths);
                GroupDecoder::Palette { code, values, columns }
            }
            Group::Text(model) => GroupDecoder::Text(TextDecoder::new(&model)),
        };
        let columns = model.groups.iter().map(Group::columns).sum();
        Decoder { groups: model.groups.into_iter().map(group).collect(), columns }
    }

    pub(super) fn cursor(&self) -> Cursor {
        let part = |group: &GroupDecoder| match group {
            GroupDecoder::Palette { .. } => CursorPart::Palette(0),
            GroupDecoder::Text(_) => CursorPart::Text(Vec::with_capacity(TEXT_CAPACITY)),
        };
        Cursor { parts: self.groups.iter().map(part).collect() }
    }

    /// Reads the row at bit `at`, behind the one that the cursor has. False for bits that are none.
    pub(super) fn read(&self, bytes: &[u8], at: &mut usize, row: &mut Cursor) -> bool {
        for (group, part) in self.groups.iter().zip(&mut row.parts) {
            let is_good = match (group, part) {
                (GroupDecoder::Palette { code, .. }, CursorPart::Palette(place)) => {
                    let symbol = code.decode(0, bytes, at).map(usize::from);
                    *place = symbol.filter(|&symbol| symbol != SAME).unwrap_or(*place);
                    symbol.is_some()
                }
                (GroupDecoder::Text(decoder), CursorPart::Text(text)) => decoder.read(bytes, at, text),
                // Each part was made for its group.
                _ => false,
            };
            if !is_good {
                return false;
            }
        }
        *at <= bytes.len() * 8
    }

    /// The fields of a row that was read; `None` where one has no value.
    pub(super) fn fields(&self, row: &Cursor) -> Option<Vec<bytes::Bytes>> {
        let mut fields = Vec::with_capacity(self.columns);
        for (group, part) in self.groups.iter().zip(&row.parts) {
            match (group, part) {
                (GroupDecoder::Palette { values, columns, .. }, CursorPart::Palette(place)) => {
                    let mut value = &values.get(place.checked_sub(1)?)?[..];
                    for _ in 0..*columns {
                        fields.push(bytes::Bytes::copy_from_slice(take_bytes(&mut value)?));
                    }
                }
                (GroupDecoder::Text(_), CursorPart::Text(text)) => fields.push(bytes::Bytes::copy_from_slice(text)),
                _ => return None,
            }
        }
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_palette_has_so_many_values_and_bytes_and_no_more() {
        let candidate = || Candidate { first: 0, columns: 1, counts: Some(HashMap::new()), bytes: 0 };
        let mut few = candidate();
        [&b"abc"[..], b"", b"abc", b"de"].iter().for_each(|value| few.count(value));
        assert_eq!((few.bytes, few.counts.as_ref().map(HashMap::len)), (8, Some(3)), "each with its length");
        assert_eq!(few.counts.unwrap()[&b"abc"[..]], 2 * WEIGHT);

        let values: Vec<[u8; 2]> = (0..=PALETTE_VALUES_MAX as u16).map(u16::to_le_bytes).collect();
        let mut many = candidate();
        values[1..].iter().for_each(|value| many.count(value));
        assert_eq!(many.counts.as_ref().map(HashMap::len), Some(PALETTE_VALUES_MAX));
        many.count(&values[0]);
        assert!(many.counts.is_none() && many.cost_bits().is_none());

        let (long, longer) = (vec![7; PALETTE_BYTES_MAX - 1], vec![7; PALETTE_BYTES_MAX]);
        let kept = |value| {
            let mut large = candidate();
            large.count(value);
            large.counts.is_some()
        };
        assert_eq!([kept(&long), kept(&longer)], [true, false]);
    }

    #[test]
    fn a_palette_that_never_was_as_the_row_before_has_no_code_for_it() {
        let mut rows = Rows::new(["value"]).unwrap();
        (0..40u64).for_each(|id| rows.push_id(id, [["one", "two"][id as usize % 2]]).unwrap());
        let counts = HashMap::from([(rows.row(0).fields, 20 * WEIGHT), (rows.row(1).fields, 20 * WEIGHT)]);
        let model = Model { groups: vec![Group::palette(1, counts, 0)] };
        let (encoder, row) = (Encoder::new(&model), rows.row(0).fields);
        assert_eq!(encoder.bits(row, Some(row)), encoder.bits(row, None));
        let mut out = Writer::default();
        encoder.put(row, Some(row), &mut out);
        assert_eq!(out.bits(), 1);
    }

    /// Just as many columns as whoever builds would join.
    #[test]
    fn a_palette_of_more_columns_than_one_joins_is_none() {
        for columns in 1..=PALETTE_COLUMNS_MAX + 2 {
            let mut value = Vec::new();
            (0..columns).for_each(|_| put_bytes(&mut value, b"a"));
            let group = Group::palette(columns, HashMap::from([(&value[..], WEIGHT)]), 0);
            let mut bytes = Vec::new();
            let model = Model { groups: vec![group] };
            model.encode(&mut bytes);
            let read = Model::decode(&mut &bytes[..], columns);
            assert_eq!(read, (columns <= PALETTE_COLUMNS_MAX).then_some(model), "{columns} columns");
        }
    }
}
