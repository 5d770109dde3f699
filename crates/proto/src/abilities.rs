//! What one server can do.

use larder_core::{Error, ErrorKind, Result};

use crate::dialect::Dialect;

/// What one server can do and hold, as its handshake told.
///
/// ```
/// use larder_proto::{Abilities, Dialect};
/// let server = Abilities::of(Dialect::Meta);
/// assert_eq!(server.value_bytes_max(20, 0), 1_048_497);
/// assert_eq!(server.value_bytes_max(20, 7), 1_048_493); // flags other than 0 take 4 bytes
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The commands it understands.
    pub dialect: Dialect,
    /// True if items have cas tokens (`-C` turns them off; some servers of the classic dialect never had them).
    pub cas: bool,
    /// True if items expire. A server without expiry ignores what it is told, so that it must not be told.
    pub ttl: bool,
    /// `item_size_max` of the server (`-I`): key, value and [`ITEM_OVERHEAD_BYTES`](Abilities::ITEM_OVERHEAD_BYTES) together.
    pub item_bytes_max: usize,
}

impl Abilities {
    /// What the server adds to key and value: a header of 48 bytes, a token of 8, a zero after the key, a line end after the
    /// value.
    pub const ITEM_OVERHEAD_BYTES: usize = 48 + 8 + 1 + 2;
    /// What flags other than 0 take on top.
    pub const FLAGS_BYTES: usize = 4;
    /// `item_size_max` where a server does not tell: the default of every memcached.
    pub const ITEM_BYTES_DEFAULT: usize = 1024 * 1024;

    /// A server with everything on, at the default sizes.
    ///
    /// ```
    /// use larder_proto::{Abilities, Dialect};
    /// assert!(Abilities::of(Dialect::Classic).cas);
    /// ```
    pub fn of(dialect: Dialect) -> Abilities {
        Abilities { dialect, cas: true, ttl: true, item_bytes_max: Abilities::ITEM_BYTES_DEFAULT }
    }

    /// A server that knows get, set, add, replace, append, prepend, incr, decr and delete: no expiry and no tokens.
    ///
    /// ```
    /// use larder_proto::Abilities;
    /// assert!(!Abilities::bare().ttl && !Abilities::bare().cas);
    /// ```
    pub fn bare() -> Abilities {
        Abilities { cas: false, ttl: false, ..Abilities::of(Dialect::Classic) }
    }

    /// The largest value that fits beside a key of `key_bytes`, stored with `flags`.
    ///
    /// ```
    /// use larder_proto::{Abilities, Dialect};
    /// let large = Abilities { item_bytes_max: 8 << 20, ..Abilities::of(Dialect::Meta) };
    /// assert_eq!(large.value_bytes_max(250, 0), (8 << 20) - 309);
    /// ```
    pub fn value_bytes_max(&self, key_bytes: usize, flags: u32) -> usize {
        let flags = if flags == 0 { 0 } else { Abilities::FLAGS_BYTES };
        self.item_bytes_max.saturating_sub(Abilities::ITEM_OVERHEAD_BYTES + flags + key_bytes)
    }

    /// Refuses a value that would not fit, before it is sent: the server would delete the old item.
    pub(crate) fn check_value(&self, key_bytes: usize, value_bytes: usize, flags: u32) -> Result<()> {
        let limit = self.value_bytes_max(key_bytes, flags);
        if value_bytes <= limit {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::BadInput,
            format!(
                "a value has {value_bytes} bytes; the limit beside a key of {key_bytes} is {limit} \
                 (the server's item_size_max is {}; its option -I changes it)",
                self.item_bytes_max
            ),
        ))
    }
}
