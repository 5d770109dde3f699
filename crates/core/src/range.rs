//! Ranges of a value's bytes: what [`Verb::GetRange`](crate::Verb::GetRange) and [`Verb::PutRange`](crate::Verb::PutRange) mean, as
//! pure functions, for stores that have the whole value at hand and for whoever emulates them.
//!
//! A store whose profile says [`Ranges::ByCas`](crate::Ranges::ByCas) answers both [`ErrorKind::Unsupported`], and they are had of portable
//! ops instead. A read is a whole get and [`part`]: **round trips: 1**, and all bytes of the value cross the network. A write is a get with
//! the token, [`spliced`], and a conditional put of the result: **round trips: 2**, all bytes cross it twice, and it is done again where
//! somebody wrote in between. A program that does so often keeps its values small.

use bytes::{Bytes, BytesMut};

use crate::error::{Error, ErrorKind, Result};

/// The part of a value from `offset` on that is at most `len` long: empty behind the end. Shares the value's memory.
///
/// ```
/// use larder_core::range::part;
/// assert_eq!(part(&"hello".into(), 1, 3), "ell");
/// assert_eq!(part(&"hello".into(), 4, u64::MAX), "o");
/// assert_eq!(part(&"hello".into(), 9, 1), "");
/// ```
pub fn part(value: &Bytes, offset: u64, len: u64) -> Bytes {
    let (from, to) = bounds(value.len(), offset, len);
    value.slice(from..to)
}

/// Where [`part`] begins and ends in a value of `value_bytes`.
///
/// ```
/// assert_eq!(larder_core::range::bounds(5, 4, 9), (4, 5));
/// ```
pub fn bounds(value_bytes: usize, offset: u64, len: u64) -> (usize, usize) {
    let within = |at: u64| usize::try_from(at).map_or(value_bytes, |at| at.min(value_bytes));
    (within(offset), within(offset.saturating_add(len)))
}

/// Where a write of `len` bytes at `offset` ends; a value grows to there, if it is shorter. `value_bytes_max` is the limit of a value.
///
/// # Errors
/// [`ErrorKind::BadInput`] where that is over the limit.
///
/// ```
/// use larder_core::range::end;
/// assert_eq!(end(10, 5, 100)?, 15);
/// assert!(end(u64::MAX, 1, 100).is_err());
/// # Ok::<(), larder_core::Error>(())
/// ```
pub fn end(offset: u64, len: usize, value_bytes_max: usize) -> Result<usize> {
    let end = offset.checked_add(len as u64).filter(|&end| end <= value_bytes_max as u64);
    end.and_then(|end| usize::try_from(end).ok()).ok_or_else(|| {
        let detail = format!("a range of {len} bytes begins at byte {offset}; a value ends at {value_bytes_max}");
        Error::new(ErrorKind::BadInput, detail)
    })
}

/// A value with `bytes` written over it from `offset` on; a gap behind its end is filled with zeros. Nothing changes where `bytes` is empty.
///
/// # Errors
/// [`ErrorKind::BadInput`] where it would be over `value_bytes_max`.
///
/// ```
/// use larder_core::range::spliced;
/// assert_eq!(spliced(b"hello", 1, b"ipp", 100)?, "hippo");
/// assert_eq!(spliced(b"a", 3, b"b", 100)?, &b"a\0\0b"[..]);
/// # Ok::<(), larder_core::Error>(())
/// ```
pub fn spliced(value: &[u8], offset: u64, bytes: &[u8], value_bytes_max: usize) -> Result<Bytes> {
    let end = end(offset, bytes.len(), value_bytes_max)?;
    let mut out = BytesMut::with_capacity(value.len().max(end));
    out.extend_from_slice(value);
    if !bytes.is_empty() {
        out.resize(value.len().max(end), 0);
        out[end - bytes.len()..end].copy_from_slice(bytes);
    }
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_offset_is_too_large_to_be_told_so() {
        for (offset, len) in [(u64::MAX, 1), (u64::MAX - 1, 2), (101, 0), (100, 1)] {
            assert_eq!(end(offset, len, 100).unwrap_err().kind(), ErrorKind::BadInput);
        }
        assert_eq!(end(100, 0, 100).unwrap(), 100);
        assert_eq!(bounds(5, u64::MAX, u64::MAX), (5, 5));
        assert_eq!(spliced(b"abc", 50, b"", 100).unwrap(), "abc");
    }
}
