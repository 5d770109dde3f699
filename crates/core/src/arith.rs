//! What arithmetic makes of a value: for stores that do it themselves.

use crate::error::{Error, ErrorKind, Result};
use crate::op::Arith;
use crate::text::Shown;

impl Arith {
    /// The number that this makes of a value.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for a value that is no number, as memcached reads one: 1 to 20 ASCII digits, at most 2^64 - 1.
    ///
    /// ```
    /// use larder_core::Arith;
    /// assert_eq!(Arith::Incr(2).of(b"7")?, 9);
    /// assert_eq!(Arith::Decr(9).of(b"7")?, 0);
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn of(self, value: &[u8]) -> Result<u64> {
        let old = number(value)?;
        Ok(match self {
            Arith::Incr(by) => old.wrapping_add(by),
            Arith::Decr(by) => old.saturating_sub(by),
        })
    }
}

fn number(value: &[u8]) -> Result<u64> {
    let digits = (1..=20).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    let number = |value: &[u8]| {
        value.iter().try_fold(0u64, |sum, &digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
    };
    digits.then(|| number(value)).flatten().ok_or_else(|| {
        let detail = format!(
            "arithmetic on a value that is no number: {}; it takes 1 to 20 ASCII digits, at most {}",
            Shown(value),
            u64::MAX
        );
        Error::new(ErrorKind::BadInput, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_memcached_takes() {
        for (value, expected) in [
            (&b"0"[..], Some(0)),
            (b"007", Some(7)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"00000000000000000001", Some(1)),
            (b"18446744073709551616", None),
            (b"000000000000000000001", None),
            (b"", None),
            (b"-1", None),
            (b"+1", None),
            (b"1 ", None),
            (b"\xff", None),
        ] {
            assert_eq!(number(value).ok(), expected, "{value:?}");
        }
    }
}
