//! Bits in bytes, the highest of a byte first, as Huffman codes and packed numbers are written.

/// Appends bits to bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Writer {
    out: Vec<u8>,
    held: u64,
    /// How many bits are held: below 8 between two calls.
    count: u32,
}

impl Writer {
    pub(super) fn new(out: Vec<u8>) -> Writer {
        Writer { out, held: 0, count: 0 }
    }

    /// Appends the lowest `count` bits, 32 at the most; the others are 0.
    pub(super) fn put(&mut self, bits: u32, count: u32) {
        debug_assert!(count <= 32 && u64::from(bits) < 1 << count, "{bits} in {count} bits");
        self.held = self.held << count | u64::from(bits);
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            // The eight bits on top of those that stay: truncation is meant.
            self.out.push((self.held >> self.count) as u8);
        }
    }

    /// Appends the lowest `count` bits, 128 at the most; the others are 0.
    pub(super) fn put_wide(&mut self, bits: u128, count: u32) {
        let mut left = count;
        while left > 0 {
            let some = left.min(32);
            left -= some;
            // Masked to as many bits as are put.
            self.put(((bits >> left) & ((1 << some) - 1)) as u32, some);
        }
    }

    /// How many bits there are.
    pub(super) fn bits(&self) -> usize {
        self.out.len() * 8 + self.count as usize
    }

    /// The bytes, the last one filled up with zeros.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
        self.out
    }
}

/// The 32 bits from bit `at` on, in the upper half of the word; behind the end there are zeros.
#[inline]
pub(super) fn peek(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at / 8..).unwrap_or_default();
    let word = match rest.first_chunk::<8>() {
        Some(chunk) => u64::from_be_bytes(*chunk),
        None => {
            let mut chunk = [0; 8];
            chunk[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(chunk)
        }
    };
    word << (at % 8)
}

/// The `count` bits from bit `at` on, 128 at the most; behind the end there are zeros.
#[inline]
pub(super) fn get(bytes: &[u8], at: usize, count: u32) -> u128 {
    if count <= 32 {
        return if count == 0 { 0 } else { u128::from(peek(bytes, at) >> (64 - count)) };
    }
    let high = count - 32;
    get(bytes, at, high) << 32 | get(bytes, at + high as usize, 32)
}

/// Reads bits one after the other.
#[derive(Clone, Debug)]
pub(super) struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    pub(super) fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes, at: 0 }
    }

    /// The next `count` bits, 32 at the most; `None` where there are not as many.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let end = self.at + count as usize;
        if end > self.bytes.len() * 8 {
            return None;
        }
        let bits = get(self.bytes, self.at, count);
        self.at = end;
        u32::try_from(bits).ok()
    }

    /// The bytes behind those that were begun.
    pub(super) fn rest(&self) -> &'b [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_was_put_is_read(numbers in prop::collection::vec((any::<u128>(), 0u32..=128), 0..40)) {
            let cut = |number: u128, count: u32| if count == 128 { number } else { number & ((1 << count) - 1) };
            let mut writer = Writer::default();
            for &(number, count) in &numbers {
                writer.put_wide(cut(number, count), count);
            }
            let bits = writer.bits();
            let bytes = writer.finish();
            prop_assert_eq!(bytes.len(), bits.div_ceil(8));
            let mut at = 0;
            for &(number, count) in &numbers {
                prop_assert_eq!(get(&bytes, at, count), cut(number, count));
                at += count as usize;
            }
            prop_assert_eq!(get(&bytes, bytes.len() * 8 + 3, 128), 0);
        }
    }

    #[test]
    fn a_reader_stops_at_the_end() {
        let mut reader = Reader::new(&[0b1010_0000, 0xff]);
        assert_eq!((reader.take(3), reader.rest()), (Some(0b101), &[0xff][..]));
        assert_eq!((reader.take(13), reader.take(0), reader.take(1)), (Some(0xff), Some(0), None));
    }
}
