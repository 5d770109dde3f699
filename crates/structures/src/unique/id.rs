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

/// A visitor's hash: the upper half is where it stands, the lower is kept only where everything is.
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
        IdKind::Integer => Ok(Hash { high: mixed(integer(id)? ^ mixed(seed)), low: 0 }),
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

    /// The inverse, so `mixed` is a bijection.
    fn unmixed(number: u64) -> u64 {
        let unshift = |number: u64, by: u32| {
            let mut all = number;
            for _ in 0..64 / by {
                all = number ^ (all >> by);
            }
            all
        };
        let number = unshift(number, 31).wrapping_mul(0x3196_42b2_d24d_8ec3);
        let number = unshift(number, 27).wrapping_mul(0x96de_1b17_3f11_9089);
        unshift(number, 30)
    }

    #[test]
    fn golden_hashes() {
        let hash = |id: VisitorId<'_>, kind, seed| hash_of(id, kind, seed).unwrap();
        let one = hash(1u64.into(), IdKind::Integer, 0);
        assert_eq!(one, Hash { high: 0x5692_161d_100b_05e5, low: 0 });
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
        for number in [0, 1, 2, u64::MAX, 1 << 63, 0x0123_4567_89ab_cdef] {
            assert_eq!(unmixed(mixed(number)), number);
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
}
