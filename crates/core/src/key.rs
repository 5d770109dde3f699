//! Keys: 1 to 250 arbitrary bytes.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::text::Shown;

/// The key of an item: 1 to [`Key::BYTES_MAX`] arbitrary bytes, cheap to clone.
///
/// The limit is memcached's, so that a key which works on one store works on every store. A store may still refuse a
/// binary key that its protocol cannot carry (memcached's classic dialect, or more than 186 bytes that need base64): it
/// answers [`ErrorKind::BadInput`] and sends nothing.
///
/// ```
/// use larder_core::Key;
/// let key = Key::new("user:7")?;
/// assert_eq!(key.as_bytes(), b"user:7");
/// assert!(Key::new("").is_err());
/// assert!(Key::new(vec![0u8; 251]).is_err());
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Bytes);

impl Key {
    /// The longest key, in bytes.
    pub const BYTES_MAX: usize = 250;

    /// Checks the length and makes the key.
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for an empty key and for one of more than [`Key::BYTES_MAX`] bytes.
    ///
    /// ```
    /// use larder_core::{ErrorKind, Key};
    /// let error = Key::new("").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::BadInput);
    /// ```
    pub fn new(bytes: impl Into<Bytes>) -> Result<Key> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::BadInput, "a key is empty; it takes 1 to 250 bytes"));
        }
        if bytes.len() > Key::BYTES_MAX {
            return Err(Error::new(
                ErrorKind::BadInput,
                format!("a key has {} bytes; the limit is {}: {}", bytes.len(), Key::BYTES_MAX, Shown(&bytes)),
            ));
        }
        Ok(Key(bytes))
    }

    /// The bytes of the key.
    ///
    /// ```
    /// assert_eq!(larder_core::Key::new("k")?.as_bytes(), b"k");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key as shared bytes, without a copy.
    ///
    /// ```
    /// assert_eq!(larder_core::Key::new("k")?.into_bytes(), "k");
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn into_bytes(self) -> Bytes {
        self.0
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Shown(&self.0), f)
    }
}
