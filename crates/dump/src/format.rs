//! What a dump is made of.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Key, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) const MAGIC: &[u8; 14] = b"LARDER-DUMP 1\n";
pub(crate) const HEAD: u8 = b'h';
pub(crate) const ITEMS: u8 = b'i';
pub(crate) const END: u8 = b'e';
/// A block's kind and length.
pub(crate) const PREFIX_BYTES: usize = 5;
pub(crate) const CHECK_BYTES: usize = 8;
/// The last block's body, and the block.
pub(crate) const TOTALS_BYTES: usize = 16;
pub(crate) const END_BYTES: usize = PREFIX_BYTES + TOTALS_BYTES + CHECK_BYTES;
/// An item, but for its key and its value.
pub(crate) const ITEM_BYTES: usize = 2 + 4 + 8 + 4;
/// Items are gathered into a block until it has so many bytes: none begins behind them, so that what a block's items take in memory is bounded.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// No block is longer: the largest item, and a block's worth before it.
pub(crate) const BLOCK_BYTES_MAX: usize = (128 << 20) + BLOCK_BYTES;
/// A head is some 200 bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;
/// No address of a store in it is longer, so that it can be read.
const ADDRESS_BYTES_MAX: usize = 16 << 10;

/// What a dump is of.
///
/// ```
/// let head = larder_dump::Head::now("memcached://localhost:11211");
/// assert_eq!(head.origin, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The store, as people know it; no secrets.
    pub source: String,
    /// Where that is: a URL's scheme, servers and path, which tell it from others of its kind; no secrets. `None`: not told, as in a backup, and in dumps of before.
    pub address: Option<String>,
    /// When it was begun, ms since 1970.
    pub made_ms: u64,
    /// Of a durable store's backup: which moment of which store.
    pub origin: Option<Origin>,
}

/// A moment of a durable store.
///
/// ```
/// let origin = larder_dump::Origin { store: 1, incarnation: 2, restores: 0, sequence: 7 };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Drawn when the store was made; a restored one keeps it.
    pub store: u64,
    /// Drawn when the store was made, and anew by each restore.
    pub incarnation: u64,
    /// How many restores it has behind it.
    pub restores: u64,
    /// The number of its last batch.
    pub sequence: u64,
}

/// An item of a dump.
///
/// ```
/// # use larder_core::Key;
/// let item = larder_dump::DumpItem { key: Key::new("k")?, flags: 0, expiry_ms: None, value: "v".into() };
/// # Ok::<(), larder_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpItem {
    /// Its key.
    pub key: Key,
    /// Its flags.
    pub flags: u32,
    /// When its life ends, ms since 1970; `None`: never.
    pub expiry_ms: Option<u64>,
    /// Its value.
    pub value: Bytes,
}

/// How much a dump holds.
///
/// ```
/// assert_eq!(larder_dump::Totals::default().items, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Items.
    pub items: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
}

impl Head {
    /// Of a store, now.
    ///
    /// ```
    /// assert_eq!(larder_dump::Head::now("memory:").source, "memory:");
    /// ```
    pub fn now(source: impl Into<String>) -> Head {
        Head { source: source.into(), address: None, made_ms: now_ms(), origin: None }
    }

    /// Of a store that is there. An address of more than 16 KiB is left out.
    ///
    /// ```
    /// let head = larder_dump::Head::now("redis 8.2.1, 1 replica").at("redis://cache:6379");
    /// assert_eq!(head.address.as_deref(), Some("redis://cache:6379"));
    /// ```
    #[must_use]
    pub fn at(self, address: impl Into<String>) -> Head {
        let address = Some(address.into()).filter(|address| address.len() <= ADDRESS_BYTES_MAX);
        Head { address, ..self }
    }

    /// True if it is the head of a dump of the same store, as far as both tell: by their addresses, or, where one has none, by their kinds and versions. What a store
    /// says of its replicas and servers changes.
    ///
    /// ```
    /// use larder_dump::Head;
    /// let at = |address| Head::now("redis 8.2.1").at(address);
    /// assert!(at("redis://a").is_of_store_of(&Head::now("redis 8.2.2, 1 replica").at("redis://a")));
    /// assert!(!at("redis://a").is_of_store_of(&at("redis://b")));
    /// assert!(at("redis://a").is_of_store_of(&Head::now("redis 8.2.1, 1 replica")));
    /// ```
    pub fn is_of_store_of(&self, other: &Head) -> bool {
        let kind = |head: &Head| match line(&head.source) {
            // Its path may have commas.
            folder if folder.starts_with("file:") => Some(folder),
            source => source.split(',').next().map(str::to_owned),
        };
        match (&self.address, &other.address) {
            (Some(one), Some(two)) => line(one) == line(two),
            _ => kind(self) == kind(other),
        }
    }

    /// The store, and where it is, as people read it.
    ///
    /// ```
    /// let head = larder_dump::Head::now("redis 8.2.1").at("redis://cache:6379");
    /// assert_eq!(head.shown(), r#""redis 8.2.1" at "redis://cache:6379""#);
    /// ```
    pub fn shown(&self) -> String {
        let at = self.address.as_ref().map(|address| format!(" at {}", Shown(address.as_bytes())));
        format!("{}{}", Shown(self.source.as_bytes()), at.unwrap_or_default())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!("source {}\nmade {}\n", line(&self.source), self.made_ms);
        if let Some(address) = &self.address {
            text += &format!("address {}\n", line(address));
        }
        if let Some(Origin { store, incarnation, restores, sequence }) = self.origin {
            text += &format!(
                "store {store:016x}\nincarnation {incarnation:016x}\nrestores {restores}\nsequence {sequence}\n"
            );
        }
        text.into_bytes()
    }

    /// Lines that it does not know are left to later versions.
    pub(crate) fn decode(body: &[u8]) -> Option<Head> {
        let text = std::str::from_utf8(body).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let hex = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
        let decimal = |name: &str| field(name)?.parse::<u64>().ok();
        let origin = match field("store") {
            None => None,
            Some(_) => Some(Origin {
                store: hex("store")?,
                incarnation: hex("incarnation")?,
                restores: decimal("restores")?,
                sequence: decimal("sequence")?,
            }),
        };
        let address = field("address").map(str::to_owned);
        Some(Head { source: field("source")?.to_owned(), address, made_ms: decimal("made")?, origin })
    }
}

/// On one line: a line break would be another one.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

impl DumpItem {
    pub(crate) fn bytes(&self) -> usize {
        ITEM_BYTES + self.key.as_bytes().len() + self.value.len()
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        let key = self.key.as_bytes();
        let too_long = |_| {
            let detail =
                format!("a value has {} bytes; a dump takes {}", self.value.len(), BLOCK_BYTES_MAX - BLOCK_BYTES);
            Error::new(ErrorKind::BadInput, detail).key(&self.key)
        };
        let value_bytes = u32::try_from(self.value.len()).map_err(too_long)?;
        let key_bytes = u16::try_from(key.len()).map_err(too_long)?;
        out.extend_from_slice(&key_bytes.to_le_bytes());
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.expiry_ms.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&value_bytes.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(&self.value);
        Ok(())
    }

    /// The next item of a block's body.
    pub(crate) fn decode(body: &mut Bytes) -> Option<DumpItem> {
        let head = (body.len() >= ITEM_BYTES).then(|| body.split_to(ITEM_BYTES))?;
        let number = |from: usize, to: usize| {
            head[from..to].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
        };
        let (key_bytes, value_bytes) = (number(0, 2) as usize, number(14, 18) as usize);
        if body.len() < key_bytes + value_bytes {
            return None;
        }
        let key = Key::new(body.split_to(key_bytes)).ok()?;
        let expiry_ms = Some(number(6, 14)).filter(|&ms| ms > 0);
        Some(DumpItem { key, flags: number(2, 6) as u32, expiry_ms, value: body.split_to(value_bytes) })
    }
}

impl Totals {
    pub(crate) fn add(&mut self, item: &DumpItem) {
        self.items += 1;
        self.value_bytes += item.value.len() as u64;
    }

    pub(crate) fn encode(self) -> [u8; TOTALS_BYTES] {
        let mut out = [0; TOTALS_BYTES];
        out[..8].copy_from_slice(&self.items.to_le_bytes());
        out[8..].copy_from_slice(&self.value_bytes.to_le_bytes());
        out
    }
}

/// A block, with what stands before and behind its body.
pub(crate) fn block(number: u64, kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + body.len() + CHECK_BYTES);
    out.push(kind);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
    let check = xxh3_64_with_seed(&out, number);
    out.extend_from_slice(&check.to_le_bytes());
    out
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Why a dump could not be read or written where it lies: a file, a pipe. It is the source of an [`Error`], and tells it from those of a store.
#[derive(Debug)]
pub struct FileError(pub std::io::Error);

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for FileError {}

impl FileError {
    /// The error of a dump that could not be read or written; [`ErrorKind::Full`] where there is no room, else [`ErrorKind::Unavailable`].
    ///
    /// ```
    /// let error = larder_dump::FileError(std::io::ErrorKind::StorageFull.into()).of("the dump cannot be written");
    /// assert_eq!(error.kind(), larder_core::ErrorKind::Full);
    /// ```
    pub fn of(self, what: &str) -> Error {
        let kind = match self.0.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Full,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("{what}: {self}")).source(self)
    }
}

/// That a dump itself is at fault: the source of an [`Error`] for what is no dump, one of another version, or a damaged one. It tells it from those of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpFault;

impl DumpFault {
    /// True of an error that says so.
    ///
    /// ```
    /// let error = larder_dump::DumpReader::new(&b"a text"[..]).err().expect("it is no dump");
    /// assert!(larder_dump::DumpFault::is_why(&error));
    /// ```
    pub fn is_why(error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|source| source.is::<DumpFault>())
    }

    pub(crate) fn error(kind: ErrorKind, what: impl Into<String>) -> Error {
        Error::new(kind, what.into()).source(DumpFault)
    }
}

impl std::fmt::Display for DumpFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the dump is at fault")
    }
}

impl std::error::Error for DumpFault {}

pub(crate) fn io_error(what: &str, error: std::io::Error) -> Error {
    FileError(error).of(what)
}
