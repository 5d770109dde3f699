//! How a key travels.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Key, Result};

use crate::dialect::Dialect;

/// The longest key a command line may carry, in bytes; base64 text counts as it stands there.
pub const KEY_TEXT_BYTES_MAX: usize = 250;
/// The longest key that still fits as base64: 4 characters for each 3 bytes begun.
pub const BINARY_KEY_BYTES_MAX: usize = KEY_TEXT_BYTES_MAX / 4 * 3;

/// True if the key can stand in a command line as it is: printable ASCII without spaces.
///
/// The server would take more (tab, NUL, bytes over 127), but what it takes differs by command and version, and
/// an overlong or split key makes 1.6.18 run the body of a `set` as a command.
///
/// ```
/// use larder_proto::key::is_printable;
/// assert!(is_printable(b"L.hits.m"));
/// assert!(!is_printable(b"two words") && !is_printable(b"tab\t") && !is_printable("é".as_bytes()));
/// ```
pub fn is_printable(key: &[u8]) -> bool {
    key.iter().all(|byte| (0x21..=0x7e).contains(byte))
}

/// A key that has been checked for a dialect, ready to be written.
#[derive(Clone, Copy)]
pub(crate) enum WireKey<'a> {
    Plain(&'a [u8]),
    /// To be written as base64, with the flag `b`.
    Binary(&'a [u8]),
}

impl<'a> WireKey<'a> {
    pub(crate) fn new(key: &'a Key, dialect: Dialect) -> Result<WireKey<'a>> {
        let bytes = key.as_bytes();
        if is_printable(bytes) {
            return Ok(WireKey::Plain(bytes));
        }
        if !dialect.is_meta() {
            return Err(Error::new(
                ErrorKind::BadInput,
                format!("the classic protocol carries printable ASCII keys only (no spaces), not {}", Shown(bytes)),
            ));
        }
        if bytes.len() > BINARY_KEY_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::BadInput,
                format!(
                    "a binary key has {} bytes; the limit is {BINARY_KEY_BYTES_MAX}, since its base64 text may have \
                     {KEY_TEXT_BYTES_MAX} (printable ASCII keys: {KEY_TEXT_BYTES_MAX}): {}",
                    bytes.len(),
                    Shown(bytes)
                ),
            ));
        }
        Ok(WireKey::Binary(bytes))
    }

    pub(crate) fn is_binary(self) -> bool {
        matches!(self, WireKey::Binary(_))
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        match self {
            WireKey::Plain(bytes) => out.extend_from_slice(bytes),
            WireKey::Binary(bytes) => {
                let start = out.len();
                out.resize(start + KEY_TEXT_BYTES_MAX + 2, 0);
                // The key was measured in `new`, so that its text always fits; an empty key is all that could be left otherwise.
                let text = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
                out.truncate(start + text);
            }
        }
    }
}
