//! The bytes of visitors, the numbers of windows, and the arithmetic between two of them.
//!
//! Numbers are little-endian, but for the counter, which is decimal digits as servers count with them.
//!
//! | what | bytes | |
//! |---|---|---|
//! | parameters in the manifest | 8 | period in milliseconds |
//! | | 2 | shards of visitors a window |
//! | | 1 | the hash of visitors: 1, XXH3-64 seeded with the generation |
//! | a window's counter | digits | incarnation × 2^40 + hits; blanks may follow |
//! | a shard of a window's visitors | 4 | `LRV` and the version, 1 |
//! | | 8 | incarnation |
//! | | 8 each | hashes, in no order, repeats allowed |
//!
//! The [ledger](crate::ledger) lists a window's pieces by the window's number; part 0 is the counter, 1 + *n* shard *n*. A counter's
//! incarnation has 22 bits, the upper ones of its number, so that every answer to a hit tells it.

use std::fmt;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The version of the layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;
/// The hash of visitors, as the manifest's parameters record it.
const HASH_XXH3: u8 = 1;
const PARAMS_BYTES: usize = 11;

/// The last window that has a key: 11 digits.
pub(super) const WINDOW_MAX: u64 = 99_999_999_999;

/// The most shards that a window's visitors are spread over.
pub(super) const SHARDS_MAX: u16 = 256;

const COUNT_BITS: u32 = 40;
const INCARNATION_BITS: u32 = 22;
/// The most hits of one window. The other half of the field is for writers that pass it at once, before they take it back.
pub(super) const COUNT_MAX: u64 = 1 << (COUNT_BITS - 1);

const MAGIC: [u8; 4] = *b"LRV\x01";
/// What a shard takes beside its hashes.
pub(super) const SHARD_HEADER_BYTES: usize = 12;
/// What a visitor takes in a shard.
pub(super) const HASH_BYTES: usize = 8;

/// What is fixed when visitors are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) period_ms: u64,
    pub(super) shards: u16,
}

impl Params {
    pub(super) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(PARAMS_BYTES);
        out.extend_from_slice(&self.period_ms.to_le_bytes());
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.push(HASH_XXH3);
        Bytes::from(out)
    }

    /// `None` for what this release did not write.
    pub(super) fn decode(bytes: &[u8]) -> Option<Params> {
        let (period_ms, rest) = bytes.split_first_chunk()?;
        let (shards, hash) = rest.split_first_chunk()?;
        let params = Params { period_ms: u64::from_le_bytes(*period_ms), shards: u16::from_le_bytes(*shards) };
        (hash == [HASH_XXH3]).then_some(params)
    }
}

/// The window of a time. Absolute: a number names one window for ever.
pub(super) fn window_of(time_ms: u64, period_ms: u64) -> u64 {
    time_ms / period_ms.max(1)
}

/// When a window begins, in milliseconds.
pub(super) fn begin_ms(window: u64, period_ms: u64) -> u64 {
    window.saturating_mul(period_ms)
}

/// The figure that goes evenly from `older` to `newer` while a period passes, rounded to the nearest, a half up.
///
/// At the end of a period it is `newer`, and there the next one begins: it has no steps.
pub(super) fn interpolated(older: u64, newer: u64, elapsed_ms: u64, period_ms: u64) -> u64 {
    let period = u128::from(period_ms.max(1));
    let elapsed = u128::from(elapsed_ms).min(period);
    let sum = u128::from(older) * (period - elapsed) + u128::from(newer) * elapsed;
    // Between the two, so it fits.
    u64::try_from((sum + period / 2) / period).unwrap_or(u64::MAX)
}

/// Which part of a window its counter is, as the ledger has it.
pub(super) const COUNTER: u16 = 0;

/// Which part of a window a shard is.
pub(super) fn part_of(shard: u16) -> u16 {
    shard.saturating_add(1)
}

/// A part of a window as the index in its key: `w7` the counter, `w7-0` the first shard. 17 bytes at the most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Index {
    pub(super) window: u64,
    pub(super) part: u16,
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part.checked_sub(1) {
            None => write!(f, "w{}", self.window),
            Some(shard) => write!(f, "w{}-{shard}", self.window),
        }
    }
}

/// A counter's incarnation, of random bits; never 0.
pub(super) fn counter_incarnation(random: u64) -> u64 {
    (random & ((1 << INCARNATION_BITS) - 1)).max(1)
}

/// A counter without hits.
pub(super) fn new_counter(incarnation: u64) -> String {
    (incarnation << COUNT_BITS).to_string()
}

/// The incarnation of a counter, and its hits.
pub(super) fn split_counter(number: u64) -> (u64, u64) {
    (number >> COUNT_BITS, number & ((1 << COUNT_BITS) - 1))
}

/// Reads stored digits.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for what is no number.
pub(super) fn parse_counter(value: &[u8]) -> Result<(u64, u64)> {
    // Servers leave the blanks of a longer number behind a shorter one.
    let number = std::str::from_utf8(value).ok().and_then(|text| text.trim_end_matches(' ').parse::<u64>().ok());
    let number = number
        .ok_or_else(|| Error::new(ErrorKind::LayoutMismatch, format!("this is no number of hits: {}", Shown(value))))?;
    Ok(split_counter(number))
}

/// The hash that stands for a visitor.
pub(super) fn hash_of(id: &[u8], generation: u64) -> u64 {
    xxh3_64_with_seed(id, generation)
}

/// The shard of a hash: the high half of its product with the number of shards. Frozen.
pub(super) fn shard_of(hash: u64, shards: u16) -> u16 {
    // Less than `shards`, so it fits.
    ((u128::from(hash) * u128::from(shards)) >> 64) as u16
}

/// A shard of these visitors.
pub(super) fn shard_value(incarnation: u64, hashes: &[u64]) -> Bytes {
    let mut out = Vec::with_capacity(SHARD_HEADER_BYTES + hashes.len() * HASH_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&incarnation.to_le_bytes());
    for hash in hashes {
        out.extend_from_slice(&hash.to_le_bytes());
    }
    Bytes::from(out)
}

/// The incarnation of a shard, and its visitors, each once, in rising order.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are no shard.
pub(super) fn parse_shard(value: &[u8]) -> Result<(u64, Vec<u64>)> {
    let parsed = (|| {
        let (magic, rest) = value.split_first_chunk()?;
        let (incarnation, hashes) = rest.split_first_chunk()?;
        let (hashes, rest) = hashes.as_chunks::<HASH_BYTES>();
        (*magic == MAGIC && rest.is_empty()).then_some((u64::from_le_bytes(*incarnation), hashes))
    })();
    let Some((incarnation, hashes)) = parsed else {
        let detail = format!("this is no shard of visitors: {}", Shown(value));
        return Err(Error::new(ErrorKind::LayoutMismatch, detail));
    };
    let mut hashes: Vec<u64> = hashes.iter().map(|hash| u64::from_le_bytes(*hash)).collect();
    hashes.sort_unstable();
    hashes.dedup();
    Ok((incarnation, hashes))
}

/// How many bytes of a piece are stale: repeats in a shard, blanks behind a counter.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are neither.
pub(crate) fn stale_bytes(value: &[u8]) -> Result<usize> {
    if value.starts_with(&MAGIC) {
        let (_, hashes) = parse_shard(value)?;
        return Ok(value.len() - SHARD_HEADER_BYTES - hashes.len() * HASH_BYTES);
    }
    parse_counter(value)?;
    Ok(value.len() - value.trim_ascii_end().len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn golden_bytes() {
        let params = Params { period_ms: 300_000, shards: 4 };
        assert_eq!(&params.encode()[..], b"\xe0\x93\x04\0\0\0\0\0\x04\0\x01");
        assert_eq!(Params::decode(&params.encode()), Some(params));
        assert_eq!(new_counter(0x2a_bcde), "3079580336795942912");
        assert_eq!(parse_counter(b"3079580336795942919  ").unwrap(), (0x2a_bcde, 7));
        let shard = shard_value(0x2a_bcde, &[0x0102_0304_0506_0708, 9]);
        assert_eq!(&shard[..], b"LRV\x01\xde\xbc\x2a\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0");
        assert_eq!(parse_shard(&shard).unwrap(), (0x2a_bcde, vec![9, 0x0102_0304_0506_0708]));
    }

    #[test]
    fn indices_have_golden_text_and_fit() {
        let text = |window, part| Index { window, part }.to_string();
        assert_eq!((text(0, COUNTER), text(7, part_of(0))), ("w0".to_owned(), "w7-0".to_owned()));
        assert!(text(WINDOW_MAX, part_of(SHARDS_MAX - 1)).len() <= 17);
    }

    #[test]
    fn visitors_have_golden_hashes_and_shards() {
        assert_eq!(hash_of(b"visitor", 0x1122_3344_5566_7788), 12_680_395_523_828_877_379);
        assert_eq!([0, u64::MAX / 2, u64::MAX].map(|hash| shard_of(hash, 4)), [0, 1, 3]);
        assert_eq!(shard_of(u64::MAX, 1), 0);
    }

    #[test]
    fn a_repeat_counts_once() {
        assert_eq!(parse_shard(&shard_value(1, &[5, 5, 4, 5])).unwrap().1, [4, 5]);
    }

    #[test]
    fn repeats_and_blanks_are_stale() {
        assert_eq!(stale_bytes(&shard_value(1, &[5, 5, 4, 5])).unwrap(), 16);
        assert_eq!(stale_bytes(&shard_value(1, &[])).unwrap(), 0);
        assert_eq!((stale_bytes(b"17  ").unwrap(), stale_bytes(b"17").unwrap()), (2, 0));
        assert!(stale_bytes(b"LRV\x01").is_err() && stale_bytes(b"x").is_err());
    }

    #[test]
    fn foreign_and_torn_bytes_are_a_mismatch() {
        let good = shard_value(1, &[5]);
        for cut in (0..good.len()).filter(|cut| *cut != SHARD_HEADER_BYTES) {
            assert_eq!(parse_shard(&good[..cut]).unwrap_err().kind(), ErrorKind::LayoutMismatch, "{cut}");
        }
        assert!(parse_shard(b"LRV\x02\x01\0\0\0\0\0\0\0").is_err());
        for bad in [&b""[..], b" ", b"x", b"-1", b"1 2", b"18446744073709551616"] {
            assert_eq!(parse_counter(bad).unwrap_err().kind(), ErrorKind::LayoutMismatch, "{bad:?}");
        }
        for bad in [&b""[..], &[0; 10], &[0; 12], b"\0\0\0\0\0\0\0\0\0\0\x02"] {
            assert_eq!(Params::decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_counters_incarnation_is_never_zero_and_leaves_the_sign_alone() {
        assert_eq!((counter_incarnation(0), counter_incarnation(u64::MAX)), (1, (1 << 22) - 1));
        let largest = new_counter(counter_incarnation(u64::MAX)).parse::<u64>().unwrap();
        // Before memcached 1.6.22, arithmetic from 2^63 on may fail.
        assert!(largest + (1 << COUNT_BITS) <= 1 << 63);
    }

    #[test]
    fn windows_are_absolute_and_shift_at_the_boundary() {
        assert_eq!([0, 299_999, 300_000, 599_999].map(|ms| window_of(ms, 300_000)), [0, 0, 1, 1]);
        assert_eq!(begin_ms(2, 300_000), 600_000);
        assert_eq!(begin_ms(u64::MAX, 2), u64::MAX);
    }

    #[test]
    fn the_interpolated_figure_goes_from_one_to_the_other_without_steps() {
        assert_eq!(interpolated(10, 20, 0, 1_000), 10);
        assert_eq!(interpolated(10, 20, 500, 1_000), 15);
        assert_eq!(interpolated(10, 20, 1_000, 1_000), 20);
        assert_eq!(interpolated(1, 0, 499, 1_000), 1);
        assert_eq!(interpolated(1, 0, 501, 1_000), 0);
        assert_eq!(interpolated(0, 0, 7, 1_000), 0);
        assert_eq!(interpolated(u64::MAX, u64::MAX, 3, 2_592_000_000), u64::MAX);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            _ = Params::decode(&bytes);
            _ = parse_counter(&bytes);
            _ = parse_shard(&bytes);
            _ = parse_shard(&[&MAGIC[..], &bytes].concat());
        }

        /// The oracle is the line through the two figures, in floating point: exact enough for figures of 40 bits.
        #[test]
        fn the_interpolated_figure_agrees_with_an_oracle(
            older in 0..1u64 << 40, newer in 0..1u64 << 40, period_ms in 1_000..2_592_000_000u64, part in 0.0..1.0f64,
        ) {
            let elapsed_ms = (period_ms as f64 * part) as u64;
            let found = interpolated(older, newer, elapsed_ms, period_ms);
            let exact = older as f64 + (newer as f64 - older as f64) * elapsed_ms as f64 / period_ms as f64;
            prop_assert!((found as f64 - exact).abs() <= 0.51, "{found} is not {exact}");
            prop_assert!((older.min(newer)..=older.max(newer)).contains(&found));
        }

        #[test]
        fn a_shard_holds_each_once(hashes in proptest::collection::vec(0..20u64, 0..40), incarnation in any::<u64>()) {
            let model: std::collections::BTreeSet<u64> = hashes.iter().copied().collect();
            let (found, distinct) = parse_shard(&shard_value(incarnation, &hashes)).unwrap();
            prop_assert_eq!(found, incarnation);
            prop_assert_eq!(distinct, model.into_iter().collect::<Vec<u64>>());
        }
    }

    #[test]
    fn a_window_counts_to_half_of_its_field() {
        assert_eq!(COUNT_MAX, 1 << 39);
    }
}
