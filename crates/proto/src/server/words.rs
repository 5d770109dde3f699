//! Words of a line, and numbers as memcached reads them.

use memchr::memchr;

use super::WORDS_MAX;

/// The words of a text, apart by spaces.
///
/// ```
/// use larder_proto::server::words::Words;
/// let words: Vec<&[u8]> = Words::of(b" get  a b ").collect();
/// assert_eq!(words, [&b"get"[..], b"a", b"b"]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// The words of `text`.
    ///
    /// ```
    /// use larder_proto::server::words::Words;
    /// assert_eq!(Words::of(b"a  b").count(), 2);
    /// ```
    pub fn of(text: &'a [u8]) -> Words<'a> {
        Words { rest: text }
    }

    /// What has not been read yet.
    ///
    /// ```
    /// use larder_proto::server::words::Words;
    /// let mut words = Words::of(b"get a b");
    /// words.next();
    /// assert_eq!(words.rest(), b" a b");
    /// ```
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let mut text = self.rest;
        while let [b' ', rest @ ..] = text {
            text = rest;
        }
        if text.is_empty() {
            self.rest = text;
            return None;
        }
        let end = memchr(b' ', text).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        self.rest = rest;
        Some(word)
    }
}

/// True if the last of the words that count is `noreply`. `before` of them were read already.
pub(crate) fn noreply(words: Words<'_>, before: usize) -> bool {
    words.take(WORDS_MAX.saturating_sub(before)).last() == Some(b"noreply")
}

/// A signed number of 32 bits: digits, and a minus. A minus alone is 0, as memcached has it.
pub(crate) fn i32_of(word: &[u8]) -> Option<i32> {
    if word.len() > 11 {
        return None;
    }
    let (negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let number = digits.iter().try_fold(0i64, |sum, &byte| Some(sum * 10 + i64::from(digit(byte)?)))?;
    i32::try_from(if negative { -number } else { number }).ok()
}

/// An unsigned number of 32 bits.
pub(crate) fn u32_of(word: &[u8]) -> Option<u32> {
    if word.len() > 11 { None } else { u64_of(word).and_then(|number| u32::try_from(number).ok()) }
}

/// An unsigned number of 64 bits: digits.
pub(crate) fn u64_of(word: &[u8]) -> Option<u64> {
    if word.len() > 22 {
        return None;
    }
    word.iter().try_fold(0u64, |sum, &byte| sum.checked_mul(10)?.checked_add(u64::from(digit(byte)?)))
}

fn digit(byte: u8) -> Option<u8> {
    let digit = byte.wrapping_sub(b'0');
    (digit < 10).then_some(digit)
}

/// How C's `strtoull` takes a word: white space, a sign, digits, and white space behind it or nothing. The magnitude and whether
/// there was a minus.
fn strto(text: &[u8]) -> Option<(u64, bool)> {
    let start = text.iter().position(|&byte| !is_space(byte))?;
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let end = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 || digits.get(end).is_some_and(|&byte| byte != 0 && !is_space(byte)) {
        return None;
    }
    let number =
        digits[..end].iter().try_fold(0u64, |sum, &byte| sum.checked_mul(10)?.checked_add(u64::from(byte - b'0')))?;
    Some((number, negative))
}

/// An unsigned number as memcached's `safe_strtoull` reads it: a value that arithmetic is done on, or client flags.
///
/// ```
/// use larder_proto::server::words::loose_u64;
/// assert_eq!(loose_u64(b"9 "), Some(9));
/// assert_eq!(loose_u64(b"+7\t"), Some(7));
/// assert_eq!(loose_u64(b"-1"), None);
/// assert_eq!(loose_u64(b"1x"), None);
/// ```
pub fn loose_u64(text: &[u8]) -> Option<u64> {
    let (magnitude, negative) = strto(text)?;
    let number = if negative { magnitude.wrapping_neg() } else { magnitude };
    (!negative || number >> 63 == 0).then_some(number)
}

/// A signed number as memcached's `safe_strtol` reads it, cut to 32 bits.
pub(crate) fn loose_i32(text: &[u8]) -> Option<i32> {
    let (magnitude, negative) = strto(text)?;
    let number = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
    i64::try_from(number).ok().map(|number| number as i32)
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_memcached_reads_them() {
        assert_eq!(i32_of(b"-2147483648"), Some(i32::MIN));
        assert_eq!((i32_of(b"2147483648"), i32_of(b"-2147483649"), i32_of(b"+1")), (None, None, None));
        assert_eq!((i32_of(b"-"), i32_of(b"000000000001")), (Some(0), None));
        assert_eq!((u32_of(b"4294967295"), u32_of(b"4294967296"), u32_of(b"-1")), (Some(u32::MAX), None, None));
        assert_eq!(u64_of(b"0018446744073709551615"), Some(u64::MAX));
        assert_eq!((u64_of(b"18446744073709551616"), u64_of(b"00018446744073709551615")), (None, None));
        assert_eq!(loose_u64(b"18446744073709551616"), None);
        assert_eq!(loose_u64(b"-18446744073709551615"), Some(1));
        assert_eq!((loose_i32(b"4294967296"), loose_i32(b"-1"), loose_i32(b"5\t6")), (Some(0), Some(-1), Some(5)));
        assert_eq!((loose_i32(b"9223372036854775808"), loose_i32(b""), loose_i32(b"-")), (None, None, None));
    }

    #[test]
    fn noreply_is_the_last_of_the_words_that_count() {
        assert!(noreply(Words::of(b"a noreply "), 2));
        assert!(!noreply(Words::of(b"noreply a"), 2));
        let many = [&b"x "[..]].repeat(21).concat();
        let late = [&many[..], b"noreply"].concat();
        assert!(!noreply(Words::of(&late), 2));
    }
}
