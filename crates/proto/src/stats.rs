//! `version`, `stats` and `stats settings`: the handshake.

use bytes::{Buf, BytesMut};

use crate::line::{ProtocolError, first_line};

/// The most lines a `stats` reply may have; memcached's have about 150.
pub const STAT_LINES_MAX: usize = 2_000;
/// The latest time that is taken for one: in 2106. What a server says beyond is no clock's.
const TIME_S_MAX: u64 = u32::MAX as u64;

/// A line of a reply that is not to an op, taken off the front of `received`; `None` until all of it is there.
///
/// # Errors
/// As [`first_line`].
///
/// ```
/// use bytes::BytesMut;
/// use larder_proto::stats::take_line;
/// let mut received = BytesMut::from("VERSION 1.6.18\r\n");
/// assert_eq!(take_line(&mut received)?.as_deref(), Some(&b"VERSION 1.6.18"[..]));
/// assert!(received.is_empty());
/// # Ok::<(), larder_proto::ProtocolError>(())
/// ```
pub fn take_line(received: &mut BytesMut) -> Result<Option<BytesMut>, ProtocolError> {
    let Some(length) = first_line(received)?.map(<[u8]>::len) else {
        return Ok(None);
    };
    let line = received.split_to(length);
    received.advance(2);
    Ok(Some(line))
}

/// Collects the lines of `stats` or `stats settings` and keeps what Larder looks at.
///
/// ```
/// use larder_proto::stats::Stats;
/// let mut stats = Stats::default();
/// for line in [
///     "STAT item_size_max 2097152",
///     "STAT evictions off",
///     "STAT incarnation 00000000000000ff",
///     "STAT time 1700000000",
///     "STAT evictions 0",
/// ] {
///     assert!(!stats.line(line.as_bytes())?);
/// }
/// assert!(stats.line(b"END")?);
/// assert_eq!(stats.item_bytes_max, Some(2_097_152));
/// assert_eq!(stats.evicts, Some(false));
/// assert_eq!(stats.incarnation, Some(255));
/// assert_eq!(stats.time_s, Some(1_700_000_000));
/// # Ok::<(), larder_proto::ProtocolError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// `item_size_max`, of the settings.
    pub item_bytes_max: Option<usize>,
    /// `evictions`, of the settings: true for `on`.
    pub evicts: Option<bool>,
    /// `cas_enabled`, of the settings.
    pub cas: Option<bool>,
    /// `maxbytes`, of the settings: the memory for items.
    pub memory_bytes_max: Option<u64>,
    /// `durability`, of the settings: a word that only Larder's own server says.
    pub durability: Option<String>,
    /// `incarnation`, of the settings, 16 hex digits that only Larder's own server says: two servers with one hold the same data.
    pub incarnation: Option<u64>,
    /// `time`: the server's clock, in seconds since 1970; none that is over 32 bits.
    pub time_s: Option<u64>,
    /// `pid` of the server.
    pub pid: Option<u64>,
    /// `uptime`: the server's age, in seconds.
    pub uptime_s: Option<u64>,
    /// How many lines there were.
    pub lines: usize,
}

impl Stats {
    /// Takes in one line; true if it was the last. A server that does not know the command (`ERROR`) has told nothing.
    ///
    /// # Errors
    /// A line that is neither `STAT …`, `END` nor an error, and the line after [`STAT_LINES_MAX`].
    ///
    /// ```
    /// use larder_proto::stats::Stats;
    /// let mut stats = Stats::default();
    /// assert!(!stats.line(b"STAT uptime 90")?);
    /// assert!(stats.line(b"END")?);
    /// assert_eq!(stats.uptime_s, Some(90));
    /// # Ok::<(), larder_proto::ProtocolError>(())
    /// ```
    pub fn line(&mut self, line: &[u8]) -> Result<bool, ProtocolError> {
        self.lines += 1;
        let error = line == b"ERROR" || line.starts_with(b"CLIENT_ERROR") || line.starts_with(b"SERVER_ERROR");
        if line == b"END" || error {
            return Ok(true);
        }
        if self.lines > STAT_LINES_MAX {
            return Err(ProtocolError(format!("a stats reply has more than {STAT_LINES_MAX} lines")));
        }
        let Some(rest) = line.strip_prefix(b"STAT ") else {
            return Err(ProtocolError::unexpected("unexpected line in a stats reply", line));
        };
        let text = String::from_utf8_lossy(rest);
        let (name, value) = text.split_once(' ').unwrap_or((&text, ""));
        match name {
            "item_size_max" => self.item_bytes_max = value.parse().ok(),
            // `stats` has a count of the same name.
            "evictions" => self.evicts = switch(value).or(self.evicts),
            "cas_enabled" => self.cas = switch(value),
            "durability" => self.durability = Some(value.to_owned()),
            "incarnation" => self.incarnation = u64::from_str_radix(value, 16).ok(),
            "maxbytes" => self.memory_bytes_max = value.parse().ok(),
            "time" => self.time_s = value.parse().ok().filter(|time_s| *time_s <= TIME_S_MAX),
            "pid" => self.pid = value.parse().ok(),
            "uptime" => self.uptime_s = value.parse().ok(),
            _ => {}
        }
        Ok(false)
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "yes" => Some(true),
        "off" | "no" => Some(false),
        _ => None,
    }
}
