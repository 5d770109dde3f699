//! Lines: the bounded reading that everything else stands on.

use std::fmt;

use larder_core::text::Shown;

/// The longest reply line, in bytes. memcached's own are under 600; a server that sends more without a line end is another.
pub const LINE_BYTES_MAX: usize = 2_048;

/// What arrived is not what a memcached would send here. The connection cannot be used any more: nobody knows where the next
/// reply begins.
///
/// ```
/// use larder_proto::stats::Stats;
/// let error = Stats::default().line(b"VA 2").unwrap_err();
/// assert!(error.to_string().contains("VA 2"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub(crate) String);

impl ProtocolError {
    pub(crate) fn unexpected(what: &str, line: &[u8]) -> ProtocolError {
        ProtocolError(format!("{what}: {}", Shown(line)))
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProtocolError {}

/// The first line of `bytes` without its line end, once all of it is there.
///
/// # Errors
/// More than [`LINE_BYTES_MAX`] without a line end, or a line end that is not `\r\n`.
///
/// ```
/// use larder_proto::line::first_line;
/// assert_eq!(first_line(b"END\r\nrest"), Ok(Some(&b"END"[..])));
/// assert_eq!(first_line(b"END\r"), Ok(None));
/// assert!(first_line(b"END\n").is_err());
/// assert!(first_line(&[b'x'; 5_000]).is_err());
/// ```
pub fn first_line(bytes: &[u8]) -> Result<Option<&[u8]>, ProtocolError> {
    let seen = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    match memchr::memchr(b'\n', seen) {
        Some(end) => match seen[..end].strip_suffix(b"\r") {
            Some(line) => Ok(Some(line)),
            None => Err(ProtocolError::unexpected("a line ends without a carriage return", &seen[..end])),
        },
        None if bytes.len() >= LINE_BYTES_MAX => {
            Err(ProtocolError::unexpected("a reply line is longer than 2048 bytes", seen))
        }
        None => Ok(None),
    }
}

/// A decimal number, digits only.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |sum, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 { None } else { sum.checked_mul(10)?.checked_add(u64::from(digit)) }
    })
}
