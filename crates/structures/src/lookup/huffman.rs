//! Canonical Huffman codes of limited length, decoded by comparing with the last code of each length.
//!
//! Source: D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952; canonical codes and their decoding as in
//! A. Moffat and A. Turpin, "On the Implementation of Minimum Redundancy Prefix Codes", 1997. A code that comes out too long is shortened by
//! lengthening others until it fits (Kraft's inequality), which costs next to nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The longest code there can be, in bits: a window on the bytes holds as many wherever it begins.
pub(super) const BITS_MAX: u8 = 24;

/// The lengths of the codes of symbols that occur so often: 0 for one that does not occur, 1 for the only one there is.
pub(super) fn lengths(counts: &[u64], max: u8) -> Vec<u8> {
    debug_assert!(max <= BITS_MAX);
    let mut lengths = vec![0u8; counts.len()];
    let present: Vec<usize> = (0..counts.len()).filter(|&symbol| counts[symbol] > 0).collect();
    if let [only] = present[..] {
        lengths[only] = 1;
    }
    if present.len() < 2 {
        return lengths;
    }
    // Leaves come first, then nodes in the order in which they are made; a parent is behind its children.
    let mut parents = vec![0usize; present.len() * 2 - 1];
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> =
        present.iter().enumerate().map(|(leaf, &symbol)| Reverse((counts[symbol], leaf))).collect();
    let mut made = present.len();
    while let (Some(Reverse((a, left))), Some(Reverse((b, right)))) = (heap.pop(), heap.pop()) {
        parents[left] = made;
        parents[right] = made;
        if made + 1 < parents.len() {
            heap.push(Reverse((a.saturating_add(b), made)));
        }
        made += 1;
    }
    let mut depths = vec![0u32; parents.len()];
    for node in (0..parents.len() - 1).rev() {
        depths[node] = depths[parents[node]] + 1;
    }
    for (leaf, &symbol) in present.iter().enumerate() {
        // At most `max`.
        lengths[symbol] = depths[leaf].min(u32::from(max)) as u8;
    }
    fit(&mut lengths, counts, &present, max);
    lengths
}

/// Makes lengths that were cut at `max` a complete code again.
fn fit(lengths: &mut [u8], counts: &[u64], present: &[usize], max: u8) {
    let share = |length: u8| 1u64 << (max - length);
    let whole = 1u64 << max;
    let mut taken: u64 = present.iter().map(|&symbol| share(lengths[symbol])).sum();
    // The rarest first.
    let mut order = present.to_vec();
    order.sort_by_key(|&symbol| (counts[symbol], symbol));
    while taken > whole {
        // There is one: if all were `max` long, they would fit, since there are at most 2^max of them.
        let Some(&symbol) = order.iter().filter(|&&symbol| lengths[symbol] < max).max_by_key(|&&s| lengths[s]) else {
            return;
        };
        taken -= share(lengths[symbol]) / 2;
        lengths[symbol] += 1;
    }
    // What that left over goes to the most frequent.
    for &symbol in order.iter().rev() {
        while lengths[symbol] > 1 && taken + share(lengths[symbol]) <= whole {
            taken += share(lengths[symbol]);
            lengths[symbol] -= 1;
        }
    }
}

/// True for the lengths of a code: none, one symbol, or a complete code.
pub(super) fn is_code(lengths: &[u8], max: u8) -> bool {
    let present = lengths.iter().filter(|&&length| length > 0).count();
    if lengths.iter().any(|&length| length > max) {
        return false;
    }
    let taken: u64 = lengths.iter().filter(|&&length| length > 0).map(|&length| 1u64 << (max - length)).sum();
    match present {
        0 => true,
        1 => lengths.contains(&1),
        _ => taken == 1 << max,
    }
}

/// The symbols of a code in the order of their codes.
fn ordered(lengths: &[u8]) -> Vec<usize> {
    let mut symbols: Vec<usize> = (0..lengths.len()).filter(|&symbol| lengths[symbol] > 0).collect();
    symbols.sort_by_key(|&symbol| (lengths[symbol], symbol));
    symbols
}

/// The code of each symbol, and how many bits it has; none for the only symbol there is, and for those that do not occur.
pub(super) fn codes(lengths: &[u8]) -> Vec<(u32, u8)> {
    let mut codes = vec![(0, 0); lengths.len()];
    let symbols = ordered(lengths);
    if symbols.len() < 2 {
        return codes;
    }
    let (mut next, mut length) = (0u32, 0u8);
    for symbol in symbols {
        next <<= lengths[symbol] - length;
        length = lengths[symbol];
        codes[symbol] = (next, length);
        next += 1;
    }
    codes
}

/// All codes of one length.
#[derive(Clone, Copy, Debug)]
struct Level {
    /// The last window that holds one of them.
    last: u32,
    /// What is added to the code to have the symbol's place.
    bias: i32,
    /// By how much a window is shifted to have the code alone.
    shift: u8,
}

/// Codes of so many bits are looked up, and not searched for: nearly all symbols of a text have shorter ones.
const SHORT_BITS: u8 = 6;
/// Of an entry of a table of short codes: below it the symbol, above it how many bits its code has; 0 for none.
const SHORT_SYMBOL_BITS: u32 = 12;

/// Where one of many codes has what.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of its levels, the first that is searched, and the end.
    levels: (u32, u32),
    symbols: (u32, u32),
}

/// Many codes, for decoding, in little room.
#[derive(Clone, Debug, Default)]
pub(super) struct Codes {
    levels: Vec<Level>,
    symbols: Vec<u16>,
    /// Of each code by the first bits of a window, all 0 where a code has fewer than two symbols, or symbols that are too large.
    short: Vec<[u16; 1 << SHORT_BITS]>,
    places: Vec<Place>,
}

impl Codes {
    /// Adds a code, of at most 2^16 symbols, and returns its number.
    pub(super) fn add(&mut self, lengths: &[u8]) -> usize {
        let symbols = ordered(lengths);
        // There are fewer of all than 2^32.
        let (first_level, first_symbol) = (self.levels.len() as u32, self.symbols.len() as u32);
        let mut searched = first_level;
        let mut short = [0u16; 1 << SHORT_BITS];
        let has_short = symbols.len() > 1 && symbols.iter().all(|&symbol| symbol < 1 << SHORT_SYMBOL_BITS);
        if symbols.len() > 1 {
            let (mut next, mut at, mut length) = (0u64, 0usize, 0u8);
            while at < symbols.len() {
                let of = lengths[symbols[at]];
                next <<= of - length;
                length = of;
                let count = symbols[at..].iter().take_while(|&&symbol| lengths[symbol] == of).count();
                let shift = 32 - of;
                let first = next;
                next += count as u64;
                if has_short && of <= SHORT_BITS {
                    let each = 1usize << (SHORT_BITS - of);
                    for (place, &symbol) in symbols[at..at + count].iter().enumerate() {
                        let from = (first as usize + place) * each;
                        short[from..from + each].fill(u16::from(of) << SHORT_SYMBOL_BITS | symbol as u16);
                    }
                    searched += 1;
                }
                // A code has at most 24 bits, and there are at most 2^16 symbols.
                let last = ((next << shift) - 1) as u32;
                self.levels.push(Level { last, bias: at as i32 - first as i32, shift });
                at += count;
            }
        }
        self.symbols.extend(symbols.iter().map(|&symbol| symbol as u16));
        self.short.push(short);
        self.places.push(Place {
            levels: (searched, self.levels.len() as u32),
            symbols: (first_symbol, self.symbols.len() as u32),
        });
        self.places.len() - 1
    }

    /// The symbol at bit `at`, which goes on behind it; `None` where the code has none.
    #[inline]
    pub(super) fn decode(&self, code: usize, bytes: &[u8], at: &mut usize) -> Option<u16> {
        let window = (super::bits::peek(bytes, *at) >> 32) as u32;
        let entry = self.short.get(code)?[(window >> (32 - SHORT_BITS)) as usize];
        if entry != 0 {
            *at += usize::from(entry >> SHORT_SYMBOL_BITS);
            return Some(entry & ((1 << SHORT_SYMBOL_BITS) - 1));
        }
        let place = self.places.get(code)?;
        let symbols = self.symbols.get(place.symbols.0 as usize..place.symbols.1 as usize)?;
        if symbols.len() < 2 {
            return symbols.first().copied();
        }
        for level in self.levels.get(place.levels.0 as usize..place.levels.1 as usize)? {
            if window <= level.last {
                *at += 32 - usize::from(level.shift);
                let place = (window >> level.shift) as i32 + level.bias;
                return symbols.get(usize::try_from(place).ok()?).copied();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bits::Writer;
    use super::*;

    #[test]
    fn golden_codes() {
        // Two of 2 bits, one of 1: the shorter first, then by symbol.
        let lengths = lengths(&[1, 0, 5, 1], 15);
        assert_eq!(lengths, [2, 0, 1, 2]);
        assert_eq!(codes(&lengths), [(0b10, 2), (0, 0), (0, 1), (0b11, 2)]);
        assert_eq!(codes(&[0, 1]), [(0, 0), (0, 0)]);
    }

    #[test]
    fn fibonacci_counts_make_long_codes_that_are_cut() {
        let mut counts = vec![1u64, 1];
        for at in 2..40 {
            counts.push(counts[at - 1] + counts[at - 2]);
        }
        for max in [6, 8, 15, BITS_MAX] {
            let lengths = lengths(&counts, max);
            assert!(is_code(&lengths, max), "{lengths:?}");
            assert!(lengths.is_sorted_by(|rare, frequent| rare >= frequent), "{lengths:?}");
        }
    }

    #[test]
    fn a_code_that_is_complete_once_cut_is_not_lengthened_further() {
        assert_eq!(lengths(&[1, 1, 2, 4, 4, 4], 3), [3, 3, 3, 2, 2, 3]);
    }

    #[test]
    fn symbols_too_large_for_a_table_of_short_codes_are_searched_for() {
        // The largest ones have the shortest codes.
        let counts: Vec<u64> = (0..5_000u64).map(|symbol| 1 + (symbol / 4_900) * 10_000).collect();
        let lengths = lengths(&counts, 20);
        assert!(lengths[4_999] < lengths[0] && lengths.iter().any(|&length| length > SHORT_BITS));
        let few: Vec<u8> = super::lengths(&[8, 4, 2, 1, 1], 15);
        let mut all = Codes::default();
        let numbers = [all.add(&lengths), all.add(&few)];
        let (codes, few) = (codes(&lengths), super::codes(&few));
        let mut writer = Writer::default();
        let put = [(0, 4_999), (1, 3), (0, 0), (0, 4_095), (1, 0), (0, 4_096), (0, 4_950)];
        for (of, symbol) in put {
            let (code, bits) = if of == 0 { codes[symbol] } else { few[symbol] };
            writer.put(code, u32::from(bits));
        }
        let (bytes, mut at) = (writer.finish(), 0);
        for (of, symbol) in put {
            assert_eq!(all.decode(numbers[of], &bytes, &mut at), Some(symbol as u16));
        }
    }

    #[test]
    fn lengths_that_are_no_code_are_told() {
        assert!(is_code(&[0, 0], 15) && is_code(&[0, 1], 15) && is_code(&[1, 2, 2], 15));
        assert!(!is_code(&[2, 0], 15) && !is_code(&[1, 2], 15) && !is_code(&[1, 1, 1], 15) && !is_code(&[16], 15));
    }

    proptest! {
        #[test]
        fn symbols_are_decoded(
            tables in prop::collection::vec(prop::collection::vec(prop_oneof![Just(0u64), 1u64..1_000_000], 1..300), 1..4),
            picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..100),
        ) {
            let lengths: Vec<_> = tables.iter().map(|counts| lengths(counts, 15)).collect();
            let mut all = Codes::default();
            for lengths in &lengths {
                prop_assert!(is_code(lengths, 15));
                all.add(lengths);
            }
            let mut writer = Writer::default();
            let mut put = Vec::new();
            for (table, symbol) in picks {
                let table = table.index(lengths.len());
                let present: Vec<usize> = (0..lengths[table].len()).filter(|&s| lengths[table][s] > 0).collect();
                if present.is_empty() {
                    continue;
                }
                let symbol = present[symbol.index(present.len())];
                let (code, bits) = codes(&lengths[table])[symbol];
                writer.put(code, u32::from(bits));
                put.push((table, symbol as u16));
            }
            let bytes = writer.finish();
            let mut at = 0;
            for (table, symbol) in put {
                prop_assert_eq!(all.decode(table, &bytes, &mut at), Some(symbol));
            }
        }
    }

    #[test]
    fn a_code_that_is_too_long_is_cut_at_the_least_cost() {
        // Eight of the same weight are a code of three bits each, which fits; one more makes two of them longer.
        assert_eq!(lengths(&[1; 8], 3), [3; 8]);
        assert_eq!(lengths(&[1; 9], 4).iter().filter(|&&length| length == 4).count(), 2);
        // Cut at three bits, the rarest two share what is left of a longer code.
        assert_eq!(lengths(&[1, 1, 2, 4, 8], 3), [3, 3, 3, 3, 1]);
        assert_eq!(lengths(&[1, 1, 2, 4, 8, 16], 3), [3, 3, 3, 3, 2, 2]);
    }

    #[test]
    fn short_codes_are_looked_up_and_long_ones_searched_for() {
        let lengths = lengths(&[1 << 20, 1 << 10, 1 << 8, 8, 4, 2, 1, 1, 1, 1, 1], 15);
        let mut codes = Codes::default();
        let number = codes.add(&lengths);
        let short = lengths.iter().filter(|&&length| (1..=SHORT_BITS).contains(&length)).count();
        let found: std::collections::BTreeSet<u16> =
            codes.short[number].iter().copied().filter(|&entry| entry != 0).collect();
        assert_eq!(found.len(), short);
        let of_each: std::collections::BTreeSet<u8> = lengths.iter().copied().collect();
        let searched = of_each.iter().filter(|&&length| length > SHORT_BITS).count();
        let place = codes.places[number];
        assert_eq!((place.levels.1 - place.levels.0) as usize, searched);
        // The largest symbol that has a place in the table, and one that has none.
        let of = |symbols: usize| {
            let mut codes = Codes::default();
            let mut lengths = vec![0; symbols];
            (lengths[0], lengths[symbols - 1]) = (1, 1);
            codes.add(&lengths);
            codes.short[0].iter().any(|&entry| entry != 0)
        };
        assert_eq!([of(1 << SHORT_SYMBOL_BITS), of((1 << SHORT_SYMBOL_BITS) + 1)], [true, false]);
    }

    #[test]
    fn of_two_symbols_too_large_for_the_table_each_is_found() {
        let mut lengths = vec![0; (1 << SHORT_SYMBOL_BITS) + 2];
        let first = lengths.len() - 2;
        lengths[first..].fill(1);
        let mut codes = Codes::default();
        let number = codes.add(&lengths);
        let mut at = 0;
        let found = [0, 1].map(|_| codes.decode(number, &[0b0000_0010], &mut at).map(usize::from));
        assert!(found.contains(&Some(first)), "{found:?}");
        let mut at = 0;
        assert_eq!(codes.decode(number, &[0xff], &mut at).map(usize::from), Some(first + 1));
    }
}
