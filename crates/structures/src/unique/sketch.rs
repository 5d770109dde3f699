//! Sketches: how many came, to a percent, in 2.7 KB whatever their number.
//!
//! CPC sketches of the Apache DataSketches library, in the bytes that all its languages share, behind four bytes of a check: what is broken does not reach the
//! library. Nothing stands for a sketch of nobody: the library's own bytes of that lose a term of the estimate (0.6).
//!
//! Source: K. Lang, "Back to the Future: an Even More Nearly Optimal Cardinality Estimation Algorithm", 2017.

use datasketches::cpc::{CpcSketch, CpcUnion};
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

const CHECK_BYTES: usize = 4;

/// Reads a sketch.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are none, or one of another size.
pub(super) fn read(bytes: &[u8], lg_k: u8) -> Result<CpcSketch> {
    if bytes.is_empty() {
        return CpcSketch::new(lg_k).map_err(refused);
    }
    let checked = bytes.split_first_chunk::<CHECK_BYTES>().filter(|(check, rest)| check_of(rest) == **check);
    let Some((_, bytes)) = checked else {
        return Err(Error::new(ErrorKind::LayoutMismatch, "this is no sketch, or a broken one"));
    };
    let sketch = CpcSketch::deserialize(bytes).map_err(refused)?;
    if sketch.lg_k() == lg_k {
        return Ok(sketch);
    }
    let detail = format!("a sketch of 2^{} rows, where one of 2^{lg_k} is kept", sketch.lg_k());
    Err(Error::new(ErrorKind::LayoutMismatch, detail))
}

fn check_of(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    // The low half: truncation is meant.
    (xxh3_64(bytes) as u32).to_le_bytes()
}

/// The sketch with hashes in it; `None` where that changes nothing.
///
/// # Errors
/// As [`read`].
pub(super) fn with(bytes: &[u8], lg_k: u8, hashes: impl Iterator<Item = u64>) -> Result<Option<(Vec<u8>, u64)>> {
    let mut sketch = read(bytes, lg_k)?;
    for hash in hashes {
        sketch.update(hash);
    }
    let sketched = sketch.serialize();
    let after = [&check_of(&sketched)[..], &sketched].concat();
    Ok((after != bytes).then(|| (after, estimate(&sketch))))
}

/// How many came.
pub(super) fn estimate(sketch: &CpcSketch) -> u64 {
    // Never negative; saturates.
    sketch.estimate().round() as u64
}

/// The standard error of a sketch, as a share of its estimate.
pub(super) fn relative_error(lg_k: u8) -> f64 {
    std::f64::consts::LN_2 / f64::from(1u32 << lg_k.min(31)).sqrt()
}

/// Several sketches in one.
///
/// # Errors
/// As [`read`].
pub(super) fn union(lg_k: u8, sketches: &[CpcSketch]) -> Result<u64> {
    let mut union = CpcUnion::new(lg_k).map_err(refused)?;
    for sketch in sketches {
        union.update(sketch).map_err(refused)?;
    }
    Ok(estimate(&union.to_sketch()))
}

fn refused(error: datasketches::error::Error) -> Error {
    Error::new(ErrorKind::LayoutMismatch, format!("this is no sketch: {error}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sketch_counts_to_a_few_percent_and_takes_no_more_room() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut bytes = Vec::new();
        for _ in 0..20 {
            let hashes: Vec<u64> = (0..5_000).map(|_| random.u64(..)).collect();
            bytes = with(&bytes, 12, hashes.iter().copied()).unwrap().unwrap().0;
            assert_eq!(with(&bytes, 12, hashes.into_iter()).unwrap(), None, "the same again changed it");
        }
        let error = estimate(&read(&bytes, 12).unwrap()) as f64 / 100_000.0 - 1.0;
        assert!(error.abs() < 4.0 * relative_error(12), "off by {error}");
        assert!(bytes.len() <= 3_000, "{} bytes", bytes.len());
        assert_eq!(read(&bytes, 11).unwrap_err().kind(), ErrorKind::LayoutMismatch);
    }

    #[test]
    fn an_error_under_one_percent_takes_more_than_three_thousand_bytes() {
        let mut random = fastrand::Rng::with_seed(12);
        let hashes: Vec<u64> = (0..200_000).map(|_| random.u64(..)).collect();
        let bytes = |lg_k| with(&[], lg_k, hashes.iter().copied()).unwrap().unwrap().0.len();
        let (off_by, takes) = ([12, 13].map(relative_error), [12, 13].map(bytes));
        assert!((0.0105..0.0115).contains(&off_by[0]) && takes[0] < 3_000, "{off_by:?} in {takes:?}");
        assert!(off_by[1] < 0.01 && takes[1] > 3_000, "{off_by:?} in {takes:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn garbage_never_panics(at: usize, byte: u8, cut in 0usize..200, count in 1u64..6_000) {
            let hashes = (0..count).map(|id| id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let (mut bytes, _) = with(&[], 10, hashes).unwrap().unwrap();
            let length = bytes.len();
            prop_assert!(read(&bytes, 10).is_ok());
            let before = bytes.clone();
            bytes[at % length] = byte;
            bytes.truncate(length.saturating_sub(cut).max(1));
            prop_assert_eq!(read(&bytes, 10).is_ok(), bytes == before);
        }
    }

    #[test]
    fn a_sketch_in_which_any_bit_is_turned_is_refused() {
        let hashes = (1..3_000u64).map(|id| id.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (good, _) = with(&[], 10, hashes).unwrap().unwrap();
        assert!(read(&good, 10).is_ok());
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let error = read(&bytes, 10).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("a broken one"), "bit {bit}: {error}");
        }
    }
}
