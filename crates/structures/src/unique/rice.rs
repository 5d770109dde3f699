//! Rice coding of sorted numbers: gaps of random numbers, at a bit and a half over what they hold.
//!
//! Each number is the gap from the one before it, less one where no number is there twice: its upper part in unary (so many zeros, then a one), its lower `parameter` bits
//! as they are, from the lowest bit of a byte up.
//!
//! Source: R. F. Rice, "Some Practical Universal Noiseless Coding Techniques", JPL Publication 79-22, 1979. The parameter is that of
//! A. Kiely, "Selecting the Golomb Parameter in Rice Coding", IPN Progress Report 42-159, 2004, taken from the mean gap alone.

/// The largest parameter: a gap of 64 bits has at most one more in unary.
pub(super) const PARAMETER_MAX: u8 = 63;
/// Zeros that are written at once.
const ZEROS_AT_ONCE: u32 = 31;
/// Bits that a window on the bytes holds wherever it begins within one.
const WINDOW_BITS: u32 = 57;

/// The parameter for `count` random numbers below `range` (2^64 where that is 0).
pub(super) fn parameter(range: u64, count: usize) -> u8 {
    let range = if range == 0 { 1u128 << 64 } else { u128::from(range) };
    let gap = range / (count as u128 + 1);
    // Times ln 2, in 256ths.
    let scaled = (gap * 177) >> 8;
    // At most 63: a gap is below 2^64, and its share of ln 2 below that.
    u8::try_from(scaled.max(1).ilog2()).unwrap_or(PARAMETER_MAX).min(PARAMETER_MAX)
}

/// Appends sorted numbers. `step` is 1 where none is there twice, else 0.
pub(super) fn encode(numbers: &[u64], step: u64, parameter: u8, out: &mut Vec<u8>) {
    let mut bits = Writer { out, held: 0, count: 0 };
    let mut next = 0u64;
    for &number in numbers {
        let gap = number.wrapping_sub(next);
        next = number.wrapping_add(step);
        let mut zeros = gap >> parameter;
        while zeros >= u64::from(ZEROS_AT_ONCE) {
            bits.put(0, ZEROS_AT_ONCE);
            zeros -= u64::from(ZEROS_AT_ONCE);
        }
        // Below 31, so it fits.
        let zeros = zeros as u32;
        bits.put(1 << zeros, zeros + 1);
        let low = gap & !(u64::MAX << parameter);
        let first = u32::from(parameter).min(32);
        bits.put(low & u64::from(u32::MAX), first);
        bits.put(low >> 32, u32::from(parameter) - first);
    }
    bits.finish();
}

/// Bits on their way to bytes.
struct Writer<'o> {
    out: &'o mut Vec<u8>,
    held: u64,
    /// How many bits are held: below 32 between two calls.
    count: u32,
}

impl Writer<'_> {
    /// Appends the lowest `count` bits, 32 at the most; the others are 0.
    #[inline]
    fn put(&mut self, bits: u64, count: u32) {
        self.held |= bits << self.count;
        self.count += count;
        if self.count >= 32 {
            // The lower half: truncation is meant.
            self.out.extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held >>= 32;
            self.count -= 32;
        }
    }

    fn finish(self) {
        let bytes = self.count.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.held.to_le_bytes()[..bytes]);
    }
}

/// Reads `count` numbers that rise by `step` at the least, each at most `last`. `None` for bytes that are none.
pub(super) fn decode(bytes: &[u8], count: usize, step: u64, parameter: u8, last: u64) -> Option<Vec<u64>> {
    // Each takes a bit at the least: a false count asks for no more room than the bytes have.
    if parameter > PARAMETER_MAX || count > bytes.len().saturating_mul(8) {
        return None;
    }
    let parameter = u32::from(parameter);
    let mut numbers = Vec::with_capacity(count);
    let (mut at, mut next) = (0usize, Some(0u64));
    for _ in 0..count {
        let window = window(bytes, at);
        let zeros = window.trailing_zeros();
        let gap = if zeros + 1 + parameter <= WINDOW_BITS && at + 64 <= bytes.len() * 8 {
            at += (zeros + 1 + parameter) as usize;
            let low = (window >> (zeros + 1)) & !(u64::MAX << parameter);
            (u64::from(zeros) << parameter) | low
        } else {
            slow(bytes, &mut at, parameter)?
        };
        let number = next?.checked_add(gap)?;
        if number > last {
            return None;
        }
        numbers.push(number);
        next = number.checked_add(step);
    }
    (at.div_ceil(8) == bytes.len()).then_some(numbers)
}

/// The bits from `at` on: [`WINDOW_BITS`] of them at the least, zeros behind the end.
#[inline]
fn window(bytes: &[u8], at: usize) -> u64 {
    let from = at / 8;
    let word = match bytes.get(from..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let mut word = [0; 8];
            let rest = bytes.get(from..).unwrap_or(&[]);
            word[..rest.len()].copy_from_slice(rest);
            u64::from_le_bytes(word)
        }
    };
    word >> (at % 8)
}

/// A gap that is long, or near the end.
fn slow(bytes: &[u8], at: &mut usize, parameter: u32) -> Option<u64> {
    let bits = bytes.len() * 8;
    let mut zeros = 0u64;
    loop {
        if *at >= bits {
            return None;
        }
        let more = window(bytes, *at).trailing_zeros();
        if more < WINDOW_BITS {
            zeros += u64::from(more);
            *at += more as usize + 1;
            break;
        }
        zeros += u64::from(WINDOW_BITS);
        *at += WINDOW_BITS as usize;
    }
    if *at + parameter as usize > bits || zeros > u64::MAX >> parameter {
        return None;
    }
    let first = parameter.min(32);
    let low = window(bytes, *at) & !(u64::MAX << first);
    let rest = parameter - first;
    let high = window(bytes, *at + first as usize) & !(u64::MAX << rest);
    *at += parameter as usize;
    Some((zeros << parameter) | low | (high << first))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round(numbers: &[u64], parameter: u8) -> Option<Vec<u64>> {
        let mut bytes = Vec::new();
        encode(numbers, 1, parameter, &mut bytes);
        decode(&bytes, numbers.len(), 1, parameter, u64::MAX)
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = Vec::new();
        // Gaps 1, 3, 36: `1 10`, `1 11`, nine zeros, `1 00`, of which each byte's lowest bit comes first.
        encode(&[1, 5, 42], 1, 2, &mut bytes);
        assert_eq!(bytes, [0b0011_1011, 0b1000_0000, 0]);
        assert_eq!(decode(&bytes, 3, 1, 2, 42), Some(vec![1, 5, 42]));
        assert_eq!(decode(&bytes, 3, 1, 2, 41), None, "a number past the last was taken");
        assert_eq!(decode(&bytes, 2, 1, 2, 42), None, "bytes were left over");
    }

    #[test]
    fn a_gap_of_more_than_64_bits_is_none() {
        // Two zeros over 63 bits are 2^64.
        assert_eq!(decode(&[0b100, 0, 0, 0, 0, 0, 0, 0, 0], 1, 1, 63, u64::MAX), None);
        assert_eq!(decode(&[0b10, 0, 0, 0, 0, 0, 0, 0, 0], 1, 1, 63, u64::MAX), Some(vec![1 << 63]));
    }

    #[test]
    fn the_edges_of_64_bits_come_back() {
        for parameter in [0, 1, 31, 32, 33, 56, 57, 62, 63] {
            for numbers in [&[][..], &[0], &[0, 1, 2], &[5, 99, 700]] {
                assert_eq!(round(numbers, parameter).as_deref(), Some(numbers), "{parameter}");
            }
        }
        let mut bytes = Vec::new();
        encode(&[3, 3, u64::MAX, u64::MAX], 0, 60, &mut bytes);
        assert_eq!(decode(&bytes, 4, 0, 60, u64::MAX), Some(vec![3, 3, u64::MAX, u64::MAX]));
        for numbers in [&[u64::MAX][..], &[0, u64::MAX], &[u64::MAX - 1, u64::MAX], &[1 << 63, (1 << 63) + 1]] {
            assert_eq!(round(numbers, 56).as_deref(), Some(numbers));
        }
    }

    /// At every place of a byte, with more bytes behind than are read at once.
    #[test]
    fn numbers_as_long_as_what_is_read_at_once_come_back() {
        for (parameter, bits) in (28..=56).flat_map(|parameter| [56, 57, 58, 59].map(|bits| (parameter, bits))) {
            let Some(zeros) = (bits - 1u32).checked_sub(u32::from(parameter)) else { continue };
            let gap = u64::from(zeros) << parameter | u64::MAX >> (64 - parameter);
            for before in 0..8 {
                let mut numbers: Vec<u64> = (0..before).collect();
                numbers.push(before + gap);
                numbers.extend((1..10).map(|more| before + gap + more));
                assert_eq!(round(&numbers, parameter), Some(numbers), "{parameter}, {bits} bits, {before} before");
            }
        }
    }

    #[test]
    fn random_numbers_take_a_bit_and_a_half_over_their_entropy() {
        let mut random = fastrand::Rng::with_seed(7);
        let range = 1u64 << 34;
        let mut numbers: Vec<u64> = (0..4_096).map(|_| random.u64(0..range)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let mut bytes = Vec::new();
        encode(&numbers, 1, parameter(range, numbers.len()), &mut bytes);
        let bits = bytes.len() as f64 * 8.0 / numbers.len() as f64;
        // 34 - 12 bits a gap.
        assert!((22.0..23.6).contains(&bits), "{bits} bits a number");
    }

    proptest! {
        #[test]
        fn numbers_come_back(mut numbers in proptest::collection::vec(0..1u64 << 40, 0..200), parameter in 20u8..60) {
            numbers.sort_unstable();
            numbers.dedup();
            prop_assert_eq!(round(&numbers, parameter), Some(numbers));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0usize..3_000, parameter: u8, last: u64, step in 0u64..2) {
            if let Some(numbers) = decode(&bytes, count, step, parameter, last) {
                prop_assert_eq!(numbers.len(), count);
                prop_assert!(numbers.windows(2).all(|pair| pair[0] + step <= pair[1]) && numbers.iter().all(|&number| number <= last));
            }
        }
    }
}
