//! Fields as texts: each byte under a Huffman code of its own for the byte before it, or for the two before it where that pays.
//!
//! Short fields of any language take some half of their bytes, and any of them is decoded alone. The codes are made of all rows of a
//! version, so there is no byte that they lack.

use std::collections::BTreeMap;

use super::bits::{Reader, Writer};
use super::huffman::{self, Codes};

/// The longest code, in bits: a length is stored in 4.
const BITS_MAX: u8 = 15;
/// How much a row counts for, so that a share of one can count, too.
pub(super) const WEIGHT: u64 = 16;
/// How often two bytes must come for a third to be counted behind them.
const PAIR_WEIGHT_MIN: u64 = 64 * WEIGHT;
/// For how many pairs of bytes the third is counted.
const PAIRS_MAX: usize = 4096;
/// What a context is stored as beside its lengths, in bits.
const CONTEXT_BITS: u64 = 8;

/// Bytes, the end, and "as the row before".
const SYMBOLS: usize = 258;
const END: usize = 256;
const SAME: usize = 257;
/// Bytes, and the start.
const CONTEXTS: usize = 257;
const START: usize = 256;

/// How often which byte comes behind which, in the texts of a column.
pub(super) struct Counts {
    /// By the byte before.
    single: Vec<u64>,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts { single: vec![0; CONTEXTS * SYMBOLS] }
    }

    /// Counts a text, with [`WEIGHT`]; `same` is how much of the weight stands for "as the row before".
    pub(super) fn add(&mut self, text: &[u8], same: u64) {
        self.single[START * SYMBOLS + SAME] += same;
        let mut context = START;
        for symbol in symbols(text) {
            self.single[context * SYMBOLS + symbol] += WEIGHT - same;
            context = symbol;
        }
    }

    /// About how many bits all texts take, and the codes.
    pub(super) fn cost_bits(&self) -> f64 {
        self.single.chunks(SYMBOLS).map(|counts| cost_bits(counts.iter().copied(), 6.0)).sum()
    }

    /// The pairs of bytes behind which the third is counted.
    fn frequent_pairs(&self) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        for before in 0..CONTEXTS {
            for byte in 0..START {
                let weight = self.single[before * SYMBOLS + byte];
                if weight >= PAIR_WEIGHT_MIN {
                    pairs.push((weight, (before, byte)));
                }
            }
        }
        pairs.sort_unstable_by(|a, b| b.cmp(a));
        pairs.truncate(PAIRS_MAX);
        pairs.into_iter().map(|(_, pair)| pair).collect()
    }
}

/// About how many bits symbols take that occur so often, and each symbol once.
pub(super) fn cost_bits(counts: impl Iterator<Item = u64> + Clone, each: f64) -> f64 {
    let all: u64 = counts.clone().sum();
    let present = counts.filter(|&count| count > 0);
    present.map(|count| count as f64 / WEIGHT as f64 * (all as f64 / count as f64).log2() + each).sum()
}

/// How often which byte comes behind which two.
pub(super) struct PairCounts {
    single: Vec<u64>,
    /// By two bytes, the later last: which of the counted pairs they are.
    places: Vec<u32>,
    pairs: Vec<(usize, usize)>,
    counts: Vec<u64>,
}

impl PairCounts {
    pub(super) fn new(counts: Counts) -> PairCounts {
        let pairs = counts.frequent_pairs();
        let mut places = vec![u32::MAX; CONTEXTS * CONTEXTS];
        for (place, (before, byte)) in (0u32..).zip(&pairs) {
            places[before * CONTEXTS + byte] = place;
        }
        let all = pairs.len() * SYMBOLS;
        PairCounts { single: counts.single, places, pairs, counts: vec![0; all] }
    }

    /// Counts a text again, as it was counted first.
    pub(super) fn add(&mut self, text: &[u8], same: u64) {
        let (mut before, mut context) = (START, START);
        for symbol in symbols(text) {
            if context != START {
                let place = self.places[before * CONTEXTS + context] as usize;
                if let Some(count) = self.counts.get_mut(place.saturating_mul(SYMBOLS) + symbol) {
                    *count += WEIGHT - same;
                }
            }
            (before, context) = (context, symbol);
        }
    }

    /// The codes: a pair of bytes has one of its own where that saves more than it takes to store.
    pub(super) fn model(mut self) -> TextModel {
        let of = |context: usize| context * SYMBOLS..(context + 1) * SYMBOLS;
        let bits_of = |counts: &[u64], lengths: &[u8]| -> u64 {
            counts.iter().zip(lengths).map(|(count, length)| count * u64::from(*length)).sum()
        };
        let listed: Vec<Vec<usize>> = (0..CONTEXTS)
            .map(|context| (0..SYMBOLS).filter(|&symbol| self.single[context * SYMBOLS + symbol] > 0).collect())
            .collect();
        let mut singles: Vec<Vec<u8>> =
            (0..CONTEXTS).map(|context| huffman::lengths(&self.single[of(context)], BITS_MAX)).collect();
        let mut pairs = BTreeMap::new();
        for (place, &(before, byte)) in self.pairs.iter().enumerate() {
            // Behind some bytes there is only one; it takes no bits as it is.
            if listed[byte].len() < 2 {
                continue;
            }
            let counts = &self.counts[of(place)];
            let lengths = huffman::lengths(counts, BITS_MAX);
            let present = lengths.iter().filter(|&&length| length > 0).count() as u64;
            // A code of one symbol takes no bits.
            let taken = if present == 1 { 0 } else { bits_of(counts, &lengths) };
            let stored = CONTEXT_BITS + listed[byte].len() as u64 + 4 * present;
            if bits_of(counts, &singles[byte]) > taken + stored * WEIGHT {
                pairs.insert((byte, before), lengths);
            }
        }
        // What is left for the codes by one byte.
        for &(byte, before) in pairs.keys() {
            let place = self.places[before * CONTEXTS + byte] as usize;
            for symbol in 0..SYMBOLS {
                self.single[byte * SYMBOLS + symbol] -= self.counts[place * SYMBOLS + symbol];
            }
        }
        for (context, lengths) in singles.iter_mut().enumerate() {
            *lengths = huffman::lengths(&self.single[of(context)], BITS_MAX);
        }
        TextModel { listed, singles, pairs }
    }
}

/// The symbols of a text, up to its end.
fn symbols(text: &[u8]) -> impl Iterator<Item = usize> {
    text.iter().map(|&byte| usize::from(byte)).chain([END])
}

/// The lengths of a column's codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextModel {
    /// By the byte before: which symbols come at all.
    listed: Vec<Vec<usize>>,
    /// By the byte before.
    singles: Vec<Vec<u8>>,
    /// By the byte before, and the one before that.
    pairs: BTreeMap<(usize, usize), Vec<u8>>,
}

impl TextModel {
    /// The contexts that there can be: bytes that come at all, and the start.
    fn contexts(is_present: &[bool]) -> Vec<usize> {
        (0..START).filter(|&byte| is_present[byte]).chain([START]).collect()
    }

    /// Appends the lengths.
    pub(super) fn encode(&self, out: Vec<u8>) -> Vec<u8> {
        let mut is_present = [false; SYMBOLS];
        self.listed.iter().flatten().for_each(|&symbol| is_present[symbol] = true);
        let mut bits = Writer::new(out);
        (0..START).for_each(|byte| bits.put(u32::from(is_present[byte]), 1));
        let contexts = TextModel::contexts(&is_present);
        let all: Vec<usize> = contexts[..contexts.len() - 1].iter().copied().chain([END, SAME]).collect();
        for &context in &contexts {
            for symbol in &all {
                let is_listed = self.listed[context].contains(symbol);
                bits.put(u32::from(is_listed), 1);
                if is_listed {
                    bits.put(u32::from(self.singles[context][*symbol]), 4);
                }
            }
        }
        for &byte in &contexts[..contexts.len() - 1] {
            let has_any = contexts.iter().any(|&before| self.pairs.contains_key(&(byte, before)));
            bits.put(u32::from(has_any), 1);
            for &before in contexts.iter().filter(|_| has_any) {
                let Some(lengths) = self.pairs.get(&(byte, before)) else {
                    bits.put(0, 1);
                    continue;
                };
                bits.put(1, 1);
                for &symbol in &self.listed[byte] {
                    bits.put(u32::from(lengths[symbol] > 0), 1);
                    if lengths[symbol] > 0 {
                        bits.put(u32::from(lengths[symbol]), 4);
                    }
                }
            }
        }
        bits.finish()
    }

    /// Takes the lengths from the front; `None` for bytes that are none.
    pub(super) fn decode(from: &mut &[u8]) -> Option<TextModel> {
        let mut bits = Reader::new(from);
        let mut is_present = [false; SYMBOLS];
        for present in &mut is_present[..START] {
            *present = bits.take(1)? == 1;
        }
        let contexts = TextModel::contexts(&is_present);
        let bytes = contexts.len() - 1;
        let all: Vec<usize> = contexts[..bytes].iter().copied().chain([END, SAME]).collect();
        let (mut listed, mut singles) = (vec![Vec::new(); CONTEXTS], vec![vec![0; SYMBOLS]; CONTEXTS]);
        for &context in &contexts {
            for &symbol in &all {
                if bits.take(1)? == 1 {
                    listed[context].push(symbol);
                    singles[context][symbol] = bits.take(4)? as u8;
                }
            }
        }
        let mut pairs = BTreeMap::new();
        for &byte in &contexts[..bytes] {
            if bits.take(1)? == 0 {
                continue;
            }
            for &before in &contexts {
                if bits.take(1)? == 0 {
                    continue;
                }
                let mut lengths = vec![0; SYMBOLS];
                for &symbol in &listed[byte] {
                    if bits.take(1)? == 1 {
                        lengths[symbol] = bits.take(4)? as u8;
                    }
                }
                pairs.insert((byte, before), lengths);
            }
        }
        *from = bits.rest();
        let is_good = singles.iter().chain(pairs.values()).all(|lengths| huffman::is_code(lengths, BITS_MAX));
        is_good.then_some(TextModel { listed, singles, pairs })
    }
}

/// What texts are written by.
pub(super) struct TextEncoder {
    /// By the byte before.
    singles: Vec<Vec<(u32, u8)>>,
    /// By the byte before, and the one before that.
    pairs: Vec<Option<Vec<(u32, u8)>>>,
}

impl TextEncoder {
    pub(super) fn new(model: &TextModel) -> TextEncoder {
        let mut pairs = vec![None; CONTEXTS * CONTEXTS];
        for (&(byte, before), lengths) in &model.pairs {
            pairs[before * CONTEXTS + byte] = Some(huffman::codes(lengths));
        }
        TextEncoder { singles: model.singles.iter().map(|lengths| huffman::codes(lengths)).collect(), pairs }
    }

    /// The codes of a text, one after the other.
    fn codes(&self, text: &[u8]) -> impl Iterator<Item = (u32, u8)> {
        let (mut before, mut context) = (START, START);
        symbols(text).map(move |symbol| {
            let own = if context == START { None } else { self.pairs[before * CONTEXTS + context].as_ref() };
            let code = own.unwrap_or(&self.singles[context])[symbol];
            (before, context) = (context, symbol);
            code
        })
    }

    /// How many bits a text takes.
    pub(super) fn bits(&self, text: &[u8]) -> usize {
        self.codes(text).map(|(_, bits)| usize::from(bits)).sum()
    }

    pub(super) fn put(&self, text: &[u8], out: &mut Writer) {
        self.codes(text).for_each(|(code, bits)| out.put(code, u32::from(bits)));
    }

    /// The code for "as the row before"; `None` where no row is.
    pub(super) fn same(&self) -> Option<(u32, u8)> {
        Some(self.singles[START][SAME]).filter(|&(_, bits)| bits > 0)
    }
}

/// What texts are read by.
#[derive(Clone, Debug)]
pub(super) struct TextDecoder {
    codes: Codes,
    /// The place of each byte among those that come, behind them that of the start.
    places: Vec<u16>,
    /// By the places of the byte before, and of the one before that: the code.
    tables: Vec<u16>,
    contexts: usize,
}

impl TextDecoder {
    pub(super) fn new(model: &TextModel) -> TextDecoder {
        let mut is_present = [false; SYMBOLS];
        model.listed.iter().flatten().for_each(|&symbol| is_present[symbol] = true);
        let present = TextModel::contexts(&is_present);
        let mut places = vec![0u16; CONTEXTS];
        (0u16..).zip(&present).for_each(|(place, &context)| places[context] = place);
        let mut codes = Codes::default();
        let mut tables = vec![0u16; present.len() * present.len()];
        for (row, &context) in tables.chunks_mut(present.len()).zip(&present) {
            // There are fewer codes than 2^16: a context each, and at most as many pairs as are counted.
            row.fill(codes.add(&model.singles[context]) as u16);
        }
        for (&(byte, before), lengths) in &model.pairs {
            let place = usize::from(places[byte]) * present.len() + usize::from(places[before]);
            tables[place] = codes.add(lengths) as u16;
        }
        TextDecoder { codes, places, tables, contexts: present.len() }
    }

    /// Reads the text at bit `at` into `text`, which stays as it is for "as the row before". False for bits that are none.
    #[inline]
    pub(super) fn read(&self, bytes: &[u8], at: &mut usize, text: &mut Vec<u8>) -> bool {
        let start = self.contexts - 1;
        let (mut before, mut context) = (start, start);
        let end = bytes.len() * 8;
        let mut is_first = true;
        loop {
            let Some(&code) = self.tables.get(context * self.contexts + before) else { return false };
            let Some(symbol) = self.codes.decode(usize::from(code), bytes, at) else { return false };
            match usize::from(symbol) {
                SAME => return is_first && *at <= end,
                symbol => {
                    if is_first {
                        text.clear();
                        is_first = false;
                    }
                    if symbol == END {
                        return *at <= end;
                    }
                    // Codes of no bits could go round for ever; a text of them is no longer than what there is to read.
                    if *at > end || text.len() >= TEXT_BYTES_MAX {
                        return false;
                    }
                    // A byte.
                    text.push(symbol as u8);
                    (before, context) = (context, usize::from(self.places[symbol]));
                }
            }
        }
    }
}

/// The longest field, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn model(texts: &[Vec<u8>]) -> TextModel {
        let mut counts = Counts::new();
        texts.iter().for_each(|text| counts.add(text, 0));
        let mut pairs = PairCounts::new(counts);
        texts.iter().for_each(|text| pairs.add(text, 0));
        pairs.model()
    }

    fn round_trip(texts: &[Vec<u8>]) {
        let made = model(texts);
        let stored = made.encode(vec![7]);
        let mut rest = &stored[1..];
        let read = TextModel::decode(&mut rest).unwrap();
        assert!(rest.is_empty());
        assert_eq!(read, made);
        let (encoder, decoder) = (TextEncoder::new(&read), TextDecoder::new(&read));
        let mut out = Writer::default();
        let mut bits = 0;
        for text in texts {
            encoder.put(text, &mut out);
            bits += encoder.bits(text);
        }
        assert_eq!(out.bits(), bits);
        let bytes = out.finish();
        let (mut at, mut found) = (0, Vec::new());
        for text in texts {
            assert!(decoder.read(&bytes, &mut at, &mut found));
            assert_eq!(&found, text);
        }
    }

    #[test]
    fn words_take_half_their_bytes_and_pairs_pay() {
        let words = ["San", "Santa", "Saint", "New", "Port", "Ville", "Burg", "Heim", "Stad", "Field", "Brook", "Ham"];
        let mut random = fastrand::Rng::with_seed(3);
        let texts: Vec<Vec<u8>> = (0..20_000)
            .map(|_| (0..2).map(|_| words[random.usize(..words.len())]).collect::<String>().into_bytes())
            .collect();
        let made = model(&texts);
        assert!(!made.pairs.is_empty());
        let encoder = TextEncoder::new(&made);
        let bytes: usize = texts.iter().map(Vec::len).sum();
        let bits: usize = texts.iter().map(|text| encoder.bits(text)).sum();
        assert!(bits < bytes * 8 / 4, "{bits} bits for {bytes} bytes");
        round_trip(&texts);
    }

    /// How many pairs have codes, and what is stored of them and taken by all texts, for more and more texts.
    #[test]
    fn pairs_have_codes_of_their_own_just_where_that_saves_more_than_it_takes() {
        let mut found = Vec::new();
        for count in (50..1050).step_by(50) {
            let mut random = fastrand::Rng::with_seed(7);
            // Each byte hangs on the two before it, and on some chance.
            let text = |_| {
                let mut text = vec![1, 1];
                for at in 2..14 {
                    let hung = text[at - 2] * 5 + text[at - 1] * 3 + random.u8(0..3);
                    text.push(if random.u8(0..10) < text[at - 2] { hung % 12 } else { random.u8(0..8) });
                }
                text
            };
            let texts: Vec<Vec<u8>> = (0..count).map(text).collect();
            let made = model(&texts);
            let encoder = TextEncoder::new(&made);
            let bits: usize = texts.iter().map(|text| encoder.bits(text)).sum();
            found.push((made.pairs.len(), made.encode(Vec::new()).len(), bits));
        }
        let pairs: Vec<usize> = found.iter().map(|(pairs, ..)| *pairs).collect();
        let all = found.iter().fold((0, 0), |(stored, taken), (_, bytes, bits)| (stored + bytes, taken + bits));
        assert_eq!(pairs, [0, 1, 1, 2, 2, 2, 3, 5, 6, 10, 11, 15, 18, 20, 23, 23, 25, 27, 30, 32]);
        assert_eq!(all, (4_451, 465_447));
    }

    proptest! {
        #[test]
        fn texts_of_any_bytes_come_back(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..60)) {
            round_trip(&texts);
        }

        #[test]
        fn few_bytes_many_times(texts in prop::collection::vec(prop::collection::vec(0u8..3, 0..400), 1..200)) {
            round_trip(&texts);
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400), data in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(model) = TextModel::decode(&mut &bytes[..]) {
                let (decoder, mut at, mut text) = (TextDecoder::new(&model), 0, Vec::new());
                while at < data.len() * 8 && decoder.read(&data, &mut at, &mut text) {
                    if at == 0 {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn what_symbols_cost_is_their_entropy_and_so_much_each() {
        let cost = |counts: &[u64], each: f64| cost_bits(counts.iter().map(|count| count * WEIGHT), each);
        assert_eq!(cost(&[], 6.0), 0.0);
        assert_eq!(cost(&[0, 9, 0], 6.0), 6.0);
        assert_eq!(cost(&[4, 4], 6.0), 8.0 + 12.0);
        assert_eq!(cost(&[8, 4, 4], 5.0), 8.0 + 8.0 + 8.0 + 15.0);
    }

    #[test]
    fn a_text_as_the_row_before_counts_for_so_much_less() {
        let mut counts = Counts::new();
        counts.add(b"ab", 3);
        let of = |context: usize, symbol: usize| counts.single[context * SYMBOLS + symbol];
        assert_eq!(
            [of(START, SAME), of(START, usize::from(b'a')), of(usize::from(b'a'), usize::from(b'b'))],
            [3, WEIGHT - 3, WEIGHT - 3]
        );
        let mut often = Counts::new();
        (0..PAIR_WEIGHT_MIN).for_each(|_| often.add(b"abc", 0));
        let mut pairs = PairCounts::new(often);
        pairs.add(b"abc", 3);
        let place = pairs.pairs.iter().position(|pair| *pair == (usize::from(b'a'), usize::from(b'b'))).unwrap();
        assert_eq!(pairs.counts[place * SYMBOLS + usize::from(b'c')], WEIGHT - 3);
    }

    #[test]
    fn a_text_that_is_as_the_one_before_comes_first_or_never() {
        // Behind a byte it is no symbol; a text that was begun cannot be as another.
        let texts: Vec<Vec<u8>> = [&b"a"[..], b"b"].iter().map(|text| text.to_vec()).collect();
        let mut counts = Counts::new();
        texts.iter().for_each(|text| counts.add(text, 5));
        let mut pairs = PairCounts::new(counts);
        texts.iter().for_each(|text| pairs.add(text, 5));
        let made = pairs.model();
        let (encoder, decoder) = (TextEncoder::new(&made), TextDecoder::new(&made));
        let (code, bits) = encoder.same().unwrap();
        let mut out = Writer::default();
        out.put(code, u32::from(bits));
        let (bytes, mut at, mut text) = (out.finish(), 0, b"kept".to_vec());
        assert!(decoder.read(&bytes, &mut at, &mut text));
        assert_eq!((&text[..], at), (&b"kept"[..], usize::from(bits)));
        // What is cut off is no text.
        assert!(!decoder.read(&[], &mut 8, &mut text));
        assert_eq!(TextEncoder::new(&model(&texts)).same(), None, "no row is as the one before");
    }

    #[test]
    fn what_ends_past_the_bytes_is_no_text_as_the_row_before() {
        let texts: Vec<Vec<u8>> = [&b"a"[..], b"b"].iter().map(|text| text.to_vec()).collect();
        let mut counts = Counts::new();
        texts.iter().for_each(|text| counts.add(text, WEIGHT - 1));
        let mut pairs = PairCounts::new(counts);
        texts.iter().for_each(|text| pairs.add(text, WEIGHT - 1));
        let made = pairs.model();
        let decoder = TextDecoder::new(&made);
        assert_eq!(TextEncoder::new(&made).same(), Some((0, 1)), "the most frequent one");
        assert!(decoder.read(&[0], &mut 0, &mut Vec::new()));
        assert!(!decoder.read(&[], &mut 0, &mut Vec::new()));
    }

    /// What is behind the bytes reads as zeros, and they may be the code of a byte that follows itself.
    #[test]
    fn a_text_that_runs_past_the_bytes_ends_there() {
        let texts = [vec![b'a'; 1_000], [&[b'a'; 1_000][..], b"b"].concat()];
        let made = model(&texts);
        let decoder = TextDecoder::new(&made);
        let mut text = Vec::new();
        assert!(!decoder.read(&[0], &mut 0, &mut text));
        // The first takes none.
        assert!(text.len() <= 1 + 8 && text.iter().all(|byte| *byte == b'a'), "{} bytes of 8 bits", text.len());
    }

    #[test]
    #[expect(clippy::useless_conversion, reason = "whatever pairs are kept as, they are compared as places")]
    fn a_byte_that_two_follow_has_pairs_where_the_one_before_tells_which() {
        let texts: Vec<Vec<u8>> =
            (0..20_000).map(|at| if at % 2 == 0 { b"xab".to_vec() } else { b"yac".to_vec() }).collect();
        let made = model(&texts);
        let pairs: Vec<(usize, usize)> =
            made.pairs.keys().map(|&(byte, before)| (usize::from(byte), usize::from(before))).collect();
        assert_eq!(pairs, [(usize::from(b'a'), usize::from(b'x')), (usize::from(b'a'), usize::from(b'y'))]);
    }
}
