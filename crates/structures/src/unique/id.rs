//! Ids of visitors, and the hashes that stand for them.

use std::fmt;

use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The id of a visitor: a number of 64 bits, or any bytes.
///
/// A number and its decimal digits are the same id, so `7` and `"7"` are one visitor.
///
/// ```
/// use larder_structures::VisitorId;
/// let ids: [VisitorId; 3] = [7u64.into(), "7".into(), "0b62a1c4-8a4d-4a55-9d0e-6f9a1f6f7b1e".into()];
/// assert_eq!(ids[0].to_string(), "7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisitorId<'a> {
    /// A number.
    Integer(u64),
    /// Any bytes, none included.
    Bytes(&'a [u8]),
}

impl From<u64> for VisitorId<'_> {
    fn from(id: u64) -> Self {
        VisitorId::Integer(id)
    }
}

impl From<u32> for VisitorId<'_> {
    fn from(id: u32) -> Self {
        VisitorId::Integer(id.into())
    }
}

impl<'a> From<&'a [u8]> for VisitorId<'a> {
    fn from(id: &'a [u8]) -> Self {
        VisitorId::Bytes(id)
    }
}

impl<'a> From<&'a Vec<u8>> for VisitorId<'a> {
    fn from(id: &'a Vec<u8>) -> Self {
        VisitorId::Bytes(id)
    }
}

impl<'a> From<&'a str> for VisitorId<'a> {
    fn from(id: &'a str) -> Self {
        VisitorId::Bytes(id.as_bytes())
    }
}

impl<'a> From<&'a String> for VisitorId<'a> {
    fn from(id: &'a String) -> Self {
        VisitorId::Bytes(id.as_bytes())
    }
}

impl fmt::Display for VisitorId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VisitorId::Integer(id) => id.fmt(f),
            VisitorId::Bytes(id) => Shown(id).fmt(f),
        }
    }
}

/// What kind of ids a structure takes.
///
/// ```
/// use larder_structures::IdKind;
/// assert_eq!(IdKind::default(), IdKind::Any);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdKind {
    /// Any bytes, by their 128-bit hash (XXH3).
    #[default]
    Any,
    /// Numbers of 64 bits, by a function that takes no two of them to one hash.
    Integer,
}

impl IdKind {
    /// The kind in a word.
    ///
    /// ```
    /// assert_eq!(larder_structures::IdKind::Integer.as_str(), "integer");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            IdKind::Any => "any",
            IdKind::Integer => "integer",
        }
    }
}

/// A visitor's hash: the upper half is where it stands, the lower is kept only where everything is. Where ids are numbers, the lower half is the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hash {
    pub(super) high: u64,
    pub(super) low: u64,
}

/// The hash of an id.
///
/// # Errors
/// [`ErrorKind::BadInput`] for what is no number where numbers are counted.
pub(super) fn hash_of(id: VisitorId<'_>, kind: IdKind, seed: u64) -> Result<Hash> {
    match kind {
        IdKind::Integer => Ok(Rounds::new(seed).hash(integer(id)?)),
        IdKind::Any => {
            let mut digits = [0; 20];
            let bytes = match id {
                VisitorId::Bytes(bytes) => bytes,
                VisitorId::Integer(id) => decimal(id, &mut digits),
            };
            let hash = xxh3_128_with_seed(bytes, seed);
            // The halves: truncation is meant.
            Ok(Hash { high: (hash >> 64) as u64, low: hash as u64 })
        }
    }
}

/// The number that an id is.
fn integer(id: VisitorId<'_>) -> Result<u64> {
    match id {
        VisitorId::Integer(id) => Ok(id),
        VisitorId::Bytes(bytes) => {
            let is_digits = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(bytes).ok().filter(|_| is_digits).and_then(|text| text.parse().ok());
            number.ok_or_else(|| {
                let detail =
                    format!("ids here are whole numbers from 0 to {}, and this is none: {}", u64::MAX, Shown(bytes));
                Error::new(ErrorKind::BadInput, detail)
            })
        }
    }
}

/// The digits of a number, without an allocation.
fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        // Below 10.
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// The hash of numbers: takes each to another one that looks random, no two to the same.
///
/// A Feistel network of two rounds over the halves of a number, the upper one with its bits reversed. So the upper half of the hash and the lower half of the number tell the
/// upper half of the number, and the first bits of the one the last bits of the other: what a set of 32-bit members lives by ([`native`](super::native)). Numbers that share their lower
/// half have different upper halves of the hash.
///
/// Source: M. Luby and C. Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions", 1988.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    first: u64,
    second: u64,
}

impl Rounds {
    pub(super) fn new(seed: u64) -> Rounds {
        let first = mixed(seed);
        Rounds { first, second: mixed(!first) }
    }

    /// What the lower half of a number adds to the upper one.
    pub(super) fn of(&self, lower: u32) -> u32 {
        (mixed(u64::from(lower) ^ self.first) >> 32) as u32
    }

    pub(super) fn hash(&self, id: u64) -> Hash {
        // The halves: truncation is meant.
        let (upper, lower) = ((id >> 32) as u32, id as u32);
        let left = upper.reverse_bits() ^ self.of(lower);
        let right = mixed_half(lower ^ self.back(left));
        Hash { high: u64::from(left) << 32 | u64::from(right), low: id }
    }

    /// What the upper half of a hash adds to the lower one.
    fn back(&self, left: u32) -> u32 {
        mixed(u64::from(left) ^ self.second) as u32
    }
}

/// Takes each number of 32 bits to another, no two to the same.
///
/// Source: the finalizer of MurmurHash3.
fn mixed_half(number: u32) -> u32 {
    let number = (number ^ (number >> 16)).wrapping_mul(0x85eb_ca6b);
    let number = (number ^ (number >> 13)).wrapping_mul(0xc2b2_ae35);
    number ^ (number >> 16)
}

/// Takes each number to another one that looks random, no two to the same.
///
/// Source: the finalizer of D. Stafford, "Better Bit Mixing", variant 13, as in SplitMix64.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The inverse, so the hash is a bijection.
    fn unhashed(rounds: &Rounds, high: u64) -> u64 {
        let (left, right) = ((high >> 32) as u32, high as u32);
        let lower = unmixed_half(right) ^ rounds.back(left);
        let upper = (left ^ rounds.of(lower)).reverse_bits();
        u64::from(upper) << 32 | u64::from(lower)
    }

    fn unmixed_half(number: u32) -> u32 {
        let unshift = |number: u32, by: u32| {
            let mut all = number;
            for _ in 0..32 / by {
                all = number ^ (all >> by);
            }
            all
        };
        let number = unshift(number, 16).wrapping_mul(0x7ed1_b41d);
        let number = unshift(number, 13).wrapping_mul(0xa5cb_9243);
        unshift(number, 16)
    }

    #[test]
    fn golden_hashes() {
        let hash = |id: VisitorId<'_>, kind, seed| hash_of(id, kind, seed).unwrap();
        let one = hash(1u64.into(), IdKind::Integer, 0);
        assert_eq!(one, Hash { high: 0x5692_161d_8fbb_d0ed, low: 1 });
        assert_ne!(one, hash(1u64.into(), IdKind::Integer, 1));
        let empty = hash("".into(), IdKind::Any, 0);
        // As XXH3's own test vector has it.
        assert_eq!(empty, Hash { high: 0x99aa_06d3_0147_98d8, low: 0x6001_c324_468d_497f });
        assert_eq!(hash(1234u64.into(), IdKind::Any, 5), hash("1234".into(), IdKind::Any, 5));
        assert_eq!(hash(0u64.into(), IdKind::Any, 5), hash("0".into(), IdKind::Any, 5));
        assert_eq!(hash("1234".into(), IdKind::Integer, 5), hash(1234u64.into(), IdKind::Integer, 5));
    }

    #[test]
    fn no_two_numbers_have_one_hash() {
        for seed in [0, 1, u64::MAX] {
            let rounds = Rounds::new(seed);
            for number in [0, 1, 2, u64::MAX, 1 << 32, 1 << 63, 0x0123_4567_89ab_cdef] {
                assert_eq!(unhashed(&rounds, rounds.hash(number).high), number);
            }
        }
    }

    /// Dense ids, ids of a clock with a worker behind it, ids that differ in their upper halves only: shards are as full as chance makes them, and hashes that are cut meet as
    /// often as chance has it.
    #[test]
    fn hashes_of_numbers_are_spread_as_by_chance() {
        let rounds = Rounds::new(5);
        type Ids = fn(u64) -> u64;
        let kinds: [(&str, Ids); 4] = [
            ("dense", |n| n),
            ("clock", |n| (1_700_000_000_000 + n * 7) << 22 | (n % 32) << 12),
            ("spaced", |n| n * 4_096),
            ("upper", |n| n << 32),
        ];
        for (kind, id) in kinds {
            let hashes: Vec<u64> = (0..200_000).map(|n| rounds.hash(id(n)).high).collect();
            let mut shards = [0u32; 500];
            hashes.iter().for_each(|&hash| shards[((u128::from(hash) * 500) >> 64) as usize] += 1);
            // 400 on average, 20 is a deviation.
            let (least, most) = (shards.iter().min().unwrap(), shards.iter().max().unwrap());
            assert!(*least > 300 && *most < 500, "{kind}: {least} to {most}");
            if kind != "upper" {
                for bits in [28, 36] {
                    let cut: std::collections::HashSet<u64> = hashes.iter().map(|hash| hash >> (64 - bits)).collect();
                    let (met, expected) = ((hashes.len() - cut.len()) as f64, 2e10 / f64::from(bits).exp2());
                    assert!((met - expected).abs() <= 5.0 * expected.sqrt() + 2.0, "{kind} of {bits} bits: {met} met");
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_of_64_bits_is_refused_where_numbers_are_counted() {
        for wrong in ["", "-1", "+1", "1.0", "x", " 1", "18446744073709551616", "９"] {
            let error = hash_of(wrong.into(), IdKind::Integer, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadInput, "{wrong}");
            assert!(error.to_string().contains("18446744073709551615"), "{error}");
        }
        assert!(hash_of("18446744073709551615".into(), IdKind::Integer, 0).is_ok());
    }

    #[test]
    fn ids_and_their_kinds_are_told_in_words() {
        assert_eq!(
            (VisitorId::from(42u64).to_string(), IdKind::Any.as_str(), IdKind::Integer.as_str()),
            ("42".to_owned(), "any", "integer")
        );
        assert!(VisitorId::from("who").to_string().contains("who"));
    }
}
