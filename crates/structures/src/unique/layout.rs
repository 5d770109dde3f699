//! The bytes of unique visitors, where a hash stands, and how many shards a period has.
//!
//! Numbers are little-endian.
//!
//! | what | bytes | |
//! |---|---|---|
//! | parameters in the manifest | 8 | period in milliseconds |
//! | | 4 | offset in milliseconds, signed: how far ahead of UTC periods begin |
//! | | 8 | seed of the hash |
//! | | 1 | precision: 1 exact, 2 compact, 3 near-exact, 4 sketch |
//! | | 1 | bits of the hash where near-exact, lg k where a sketch, else 0 |
//! | | 1 | ids: 1 any (XXH3-128), 2 integers (a bijection) |
//! | | 1 | shards: 1 blobs, 2 blobs padded to a size class, 3 the store's own sets |
//! | | 8 | visitors expected where no period before tells |
//! | | 8 | how long a period is kept after its end, in milliseconds; 0 for ever |
//! | | … | the name of the zone whose days they are; none where the offset tells |
//! | a period's head | 4 | `LRU` and the version, 1 |
//! | | 8 | incarnation; its lower 32 bits stand in the shards' keys |
//! | | 8 | visitors expected |
//! | | 4 | shards |
//! | | 1 | bits of a hash's upper half that are kept |
//! | | 4 | what a shard is padded to, 0 for none |
//! | a shard as a blob | 3 | `LU` and the version, 1 |
//! | | 1 | Rice parameter |
//! | | 4 | mark of the last write |
//! | | 4 | visitors |
//! | | 4 | bytes of the coded offsets |
//! | | … | offsets, sorted, [Rice-coded](super::rice); for a sketch its own bytes |
//! | | 8 each | lower halves of the hashes, in the order of the offsets: exact, ids of any kind |
//! | | … | zeros up to what it is padded to |
//!
//! A blob's item carries the number of its visitors as flags, too, so that a count brings no values.
//!
//! A hash's first `bits` bits are a number *p*; of *N* shards it belongs to *p N* / 2^bits, rounded down, and its offset there is how far it
//! is behind the first number of that shard. So shards, and the offsets in them, are in the order of the hashes, whatever *N* is.

use std::fmt;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};

use super::id::{Hash, IdKind};
use super::rice;
use super::zone::Zone;

/// The version of the layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;
const PARAMS_BYTES: usize = 40;
pub(super) const DAY_MS: u64 = 86_400_000;

const HEAD_MAGIC: [u8; 4] = *b"LRU\x01";
const HEAD_BYTES: usize = 29;
const BLOB_MAGIC: [u8; 3] = *b"LU\x01";
/// What a blob takes beside its offsets.
pub(super) const BLOB_HEADER_BYTES: usize = 16;

/// The last period that has a key.
pub(super) const PERIOD_MAX: u64 = (1 << 40) - 1;
/// The most shards that a period has.
pub(super) const SHARDS_MAX: u32 = 1 << 22;
/// The most visitors that may be expected in a period.
pub(super) const EXPECTED_MAX: u64 = 1 << 30;

/// How exactly visitors are counted.
///
/// ```
/// use larder_structures::Precision;
/// assert_eq!(Precision::default(), Precision::Compact);
/// assert_eq!(Precision::NEAR_EXACT.as_str(), "near-exact");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Every id counts: numbers by a bijection of 64 bits, other ids by their whole 128-bit hash. 5.3 and 13.3 bytes a visitor at 10 million.
    Exact,
    /// A hash of 35 bits, and one more for each doubling of the shards: 47 at 10 million, where 0.4 ids are expected to be lost. 3.4 bytes a visitor there. In sets
    /// of a Redis or Valkey server up to 32 bits behind the number of the shard, 46 at 10 million, where 0.7 are; 4.5 bytes a visitor.
    #[default]
    Compact,
    /// A hash of so many bits, 24 to 48; the count is corrected for those that met. At 10 million 32 bits take 1.3 bytes a visitor, and the count
    /// is off by 1 in 90,000.
    NearExact {
        /// Bits of the hash.
        bits: u8,
    },
    /// A CPC sketch with 2^`lg_k` rows, 10 to 16: 2.7 KB in all for 12, and a standard error of 1.1 %.
    Sketch {
        /// Rows, as a power of two.
        lg_k: u8,
    },
}

impl Precision {
    /// Near-exact with 32 bits.
    pub const NEAR_EXACT: Precision = Precision::NearExact { bits: 32 };
    /// A sketch of 2^12 rows.
    pub const SKETCH: Precision = Precision::Sketch { lg_k: 12 };

    /// The precision in a word.
    ///
    /// ```
    /// assert_eq!(larder_structures::Precision::SKETCH.as_str(), "sketch");
    /// ```
    pub fn as_str(self) -> &'static str {
        match self {
            Precision::Exact => "exact",
            Precision::Compact => "compact",
            Precision::NearExact { .. } => "near-exact",
            Precision::Sketch { .. } => "sketch",
        }
    }

    fn code(self) -> (u8, u8) {
        match self {
            Precision::Exact => (1, 0),
            Precision::Compact => (2, 0),
            Precision::NearExact { bits } => (3, bits),
            Precision::Sketch { lg_k } => (4, lg_k),
        }
    }

    fn of_code(code: u8, detail: u8) -> Option<Precision> {
        match (code, detail) {
            (1, 0) => Some(Precision::Exact),
            (2, 0) => Some(Precision::Compact),
            (3, 24..=48) => Some(Precision::NearExact { bits: detail }),
            (4, 10..=16) => Some(Precision::Sketch { lg_k: detail }),
            _ => None,
        }
    }

    /// True for bits and rows that there are.
    pub(super) fn is_sound(self) -> bool {
        let (code, detail) = self.code();
        Precision::of_code(code, detail).is_some()
    }
}

/// What a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// An item of sorted, coded offsets.
    Blob,
    /// The same, padded to a size class of the store.
    Padded,
    /// A set of integers of the store's own.
    Native,
}

/// What is fixed when unique visitors are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) period_ms: u64,
    pub(super) offset_ms: i32,
    pub(super) seed: u64,
    pub(super) precision: Precision,
    pub(super) ids: IdKind,
    pub(super) shape: Shape,
    pub(super) expected: u64,
    pub(super) keep_ms: u64,
    /// Where periods are whole days of a zone, whose clocks may change.
    pub(super) zone: Option<Zone>,
}

impl Params {
    pub(super) fn encode(&self) -> Bytes {
        let (precision, detail) = self.precision.code();
        let ids = match self.ids {
            IdKind::Any => 1,
            IdKind::Integer => 2,
        };
        let shape = match self.shape {
            Shape::Blob => 1,
            Shape::Padded => 2,
            Shape::Native => 3,
        };
        let mut out = Vec::with_capacity(PARAMS_BYTES);
        out.extend_from_slice(&self.period_ms.to_le_bytes());
        out.extend_from_slice(&self.offset_ms.to_le_bytes());
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&[precision, detail, ids, shape]);
        out.extend_from_slice(&self.expected.to_le_bytes());
        out.extend_from_slice(&self.keep_ms.to_le_bytes());
        out.extend_from_slice(self.zone.as_ref().map_or("", Zone::name).as_bytes());
        Bytes::from(out)
    }

    /// `None` for what this release did not write.
    pub(super) fn decode(bytes: &[u8]) -> Option<Params> {
        let (period_ms, rest) = bytes.split_first_chunk()?;
        let (offset_ms, rest) = rest.split_first_chunk()?;
        let (seed, rest) = rest.split_first_chunk()?;
        let (&[precision, detail, ids, shape], rest) = rest.split_first_chunk()?;
        let (expected, rest) = rest.split_first_chunk()?;
        let (keep_ms, zone) = rest.split_first_chunk()?;
        Some(Params {
            period_ms: u64::from_le_bytes(*period_ms),
            offset_ms: i32::from_le_bytes(*offset_ms),
            seed: u64::from_le_bytes(*seed),
            precision: Precision::of_code(precision, detail)?,
            ids: match ids {
                1 => IdKind::Any,
                2 => IdKind::Integer,
                _ => return None,
            },
            shape: match shape {
                1 => Shape::Blob,
                2 => Shape::Padded,
                3 => Shape::Native,
                _ => return None,
            },
            expected: u64::from_le_bytes(*expected),
            keep_ms: u64::from_le_bytes(*keep_ms),
            zone: match zone {
                [] => None,
                name => Some(Zone::named(std::str::from_utf8(name).ok()?)?),
            },
        })
    }

    /// True where the lower half of each hash is kept, too.
    pub(super) fn is_wide(&self) -> bool {
        self.precision == Precision::Exact && self.ids == IdKind::Any
    }

    /// The period of a time. Absolute: a number names one period for ever.
    ///
    /// `None` for a time before the first or after the last.
    pub(super) fn period_of(&self, time_ms: u64) -> Option<u64> {
        let period = match &self.zone {
            Some(zone) => zone.day_of(time_ms)? / self.days(),
            None => {
                let local = i128::from(time_ms) + i128::from(self.offset_ms);
                u64::try_from(local.div_euclid(i128::from(self.period_ms.max(1)))).ok()?
            }
        };
        (period <= PERIOD_MAX).then_some(period)
    }

    /// When a period begins, in milliseconds since 1970; 0 where that is before.
    pub(super) fn begin_ms(&self, period: u64) -> u64 {
        if let Some(zone) = &self.zone {
            return zone.begin_ms(period.saturating_mul(self.days()));
        }
        let begin = i128::from(period) * i128::from(self.period_ms) - i128::from(self.offset_ms);
        u64::try_from(begin.max(0)).unwrap_or(u64::MAX)
    }

    /// How many days of a zone a period has.
    fn days(&self) -> u64 {
        (self.period_ms / DAY_MS).max(1)
    }
}

/// What is recorded about a period with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) incarnation: u64,
    pub(super) expected: u64,
    pub(super) shards: u32,
    pub(super) bits: u8,
    /// The length that a blob is padded to; 0 for none.
    pub(super) padded_bytes: u32,
}

/// Where a hash stands in a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) shard: u32,
    pub(super) offset: u64,
    pub(super) low: u64,
}

impl Head {
    pub(super) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(HEAD_BYTES);
        out.extend_from_slice(&HEAD_MAGIC);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.expected.to_le_bytes());
        out.extend_from_slice(&self.shards.to_le_bytes());
        out.push(self.bits);
        out.extend_from_slice(&self.padded_bytes.to_le_bytes());
        Bytes::from(out)
    }

    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no head of this release.
    pub(super) fn decode(bytes: &[u8]) -> Result<Head> {
        let fields = || {
            let (incarnation, rest) = bytes.strip_prefix(&HEAD_MAGIC)?.split_first_chunk()?;
            let (expected, rest) = rest.split_first_chunk()?;
            let (shards, rest) = rest.split_first_chunk()?;
            let (&bits, rest) = rest.split_first()?;
            let head = Head {
                incarnation: u64::from_le_bytes(*incarnation),
                expected: u64::from_le_bytes(*expected),
                shards: u32::from_le_bytes(*shards),
                bits,
                padded_bytes: u32::from_le_bytes(rest.try_into().ok()?),
            };
            ((1..=SHARDS_MAX).contains(&head.shards) && (22..=64).contains(&bits)).then_some(head)
        };
        fields().ok_or_else(|| {
            let detail = format!("this is no head of a period: {}", Shown(bytes));
            Error::new(ErrorKind::LayoutMismatch, detail)
        })
    }

    /// Where a hash stands.
    pub(super) fn spot(&self, hash: Hash, is_wide: bool) -> Spot {
        let prefix = hash.high >> (64 - u32::from(self.bits));
        // Below the number of shards, so it fits.
        let shard = ((u128::from(prefix) * u128::from(self.shards)) >> self.bits) as u32;
        let offset = (u128::from(prefix) - self.first(shard)) as u64;
        Spot { shard, offset, low: if is_wide { hash.low } else { 0 } }
    }

    /// The first number of a shard.
    pub(super) fn first(&self, shard: u32) -> u128 {
        (u128::from(shard) << self.bits).div_ceil(u128::from(self.shards))
    }

    /// How many numbers a shard has; 0 stands for 2^64.
    pub(super) fn span(&self, shard: u32) -> u64 {
        // 2^64 at the most, which wraps to 0.
        (self.first(shard + 1) - self.first(shard)) as u64
    }

    /// A shard as the index in its key: 15 bytes at the most.
    pub(super) fn index(&self, shard: u32) -> ShardIndex {
        ShardIndex::new(self.incarnation as u32, shard)
    }
}

/// Two numbers in base 16, a dash between them. Written by hand: a count makes one for each of thousands of shards.
pub(super) struct ShardIndex {
    text: [u8; 17],
    len: usize,
}

impl ShardIndex {
    fn new(tag: u32, shard: u32) -> ShardIndex {
        let mut index = ShardIndex { text: [b'-'; 17], len: 0 };
        index.push(tag);
        index.len += 1;
        index.push(shard);
        index
    }

    fn push(&mut self, number: u32) {
        let digits = number.max(1).ilog2() / 4 + 1;
        for at in (0..digits).rev() {
            self.text[self.len] = b"0123456789abcdef"[(number >> (4 * at)) as usize & 15];
            self.len += 1;
        }
    }
}

impl AsRef<str> for ShardIndex {
    fn as_ref(&self) -> &str {
        // They are all of ASCII.
        std::str::from_utf8(&self.text[..self.len]).unwrap_or_default()
    }
}

impl fmt::Display for ShardIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_ref())
    }
}

/// A period's head as the index in its key: 11 bytes at the most.
pub(super) fn head_index(period: u64) -> impl fmt::Display {
    HeadIndex(period)
}

struct HeadIndex(u64);

impl fmt::Display for HeadIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{:x}", self.0)
    }
}

/// The visitors of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Members {
    pub(super) offsets: Vec<u64>,
    /// One an offset where hashes are kept whole, else none.
    pub(super) lows: Vec<u64>,
}

/// A blob whose header was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blob<'v> {
    parameter: u8,
    pub(super) mark: u32,
    pub(super) count: u32,
    pub(super) coded: &'v [u8],
    rest: &'v [u8],
}

impl<'v> Blob<'v> {
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no blob.
    pub(super) fn parse(bytes: &'v [u8]) -> Result<Blob<'v>> {
        let fields = || {
            let (&parameter, rest) = bytes.strip_prefix(&BLOB_MAGIC)?.split_first()?;
            let (mark, rest) = rest.split_first_chunk()?;
            let (count, rest) = rest.split_first_chunk()?;
            let (coded, rest) = rest.split_first_chunk()?;
            let (coded, rest) = rest.split_at_checked(u32::from_le_bytes(*coded) as usize)?;
            let (mark, count) = (u32::from_le_bytes(*mark), u32::from_le_bytes(*count));
            Some(Blob { parameter, mark, count, coded, rest })
        };
        fields().ok_or_else(|| broken("it is none, or cut short"))
    }

    /// The visitors.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for what no release wrote.
    pub(super) fn members(&self, last: u64, is_wide: bool) -> Result<Members> {
        let count = self.count as usize;
        let offsets = rice::decode(self.coded, count, step(is_wide), self.parameter, last);
        let offsets = offsets.ok_or_else(|| broken("its offsets cannot be read"))?;
        if !is_wide {
            return Ok(Members { offsets, lows: Vec::new() });
        }
        let lows = self.rest.get(..count.saturating_mul(8)).ok_or_else(|| broken("it is cut short"))?;
        let lows = lows.chunks_exact(8).map(|low| u64::from_le_bytes(low.try_into().unwrap_or_default())).collect();
        Ok(Members { offsets, lows })
    }
}

/// Whole hashes may share their upper halves; what is kept of others is there once.
fn step(is_wide: bool) -> u64 {
    u64::from(!is_wide)
}

fn broken(why: &str) -> Error {
    Error::new(ErrorKind::LayoutMismatch, format!("this is no shard of unique visitors: {why}"))
}

impl Members {
    /// True if one is among them.
    pub(super) fn has(&self, spot: &Spot) -> bool {
        if self.lows.is_empty() {
            return self.offsets.binary_search(&spot.offset).is_ok();
        }
        let from = self.offsets.partition_point(|&offset| offset < spot.offset);
        let same =
            self.offsets[from..].iter().zip(&self.lows[from..]).take_while(|(offset, _)| **offset == spot.offset);
        same.into_iter().any(|(_, &low)| low == spot.low)
    }

    /// Adds spots that are sorted and not there yet.
    pub(super) fn merge(&self, spots: &[Spot], is_wide: bool) -> Members {
        let total = self.offsets.len() + spots.len();
        let mut merged = Members { offsets: Vec::with_capacity(total), lows: Vec::new() };
        let mut at = 0;
        for spot in spots {
            let upto = at + self.offsets[at..].partition_point(|&offset| offset < spot.offset);
            merged.offsets.extend_from_slice(&self.offsets[at..upto]);
            merged.offsets.push(spot.offset);
            if is_wide {
                merged.lows.extend_from_slice(&self.lows[at..upto]);
                merged.lows.push(spot.low);
            }
            at = upto;
        }
        merged.offsets.extend_from_slice(&self.offsets[at..]);
        if is_wide {
            merged.lows.extend_from_slice(&self.lows[at..]);
        }
        merged
    }

    /// The bytes of a blob.
    pub(super) fn encode(&self, span: u64, mark: u32, padded_bytes: usize) -> Bytes {
        let parameter = rice::parameter(span, self.offsets.len());
        let mut out = Vec::with_capacity(padded_bytes.max(BLOB_HEADER_BYTES + self.offsets.len() * 8));
        put_header(&mut out, parameter, mark, self.offsets.len());
        rice::encode(&self.offsets, step(!self.lows.is_empty()), parameter, &mut out);
        let coded = out.len() - BLOB_HEADER_BYTES;
        put_length(&mut out, coded);
        for low in &self.lows {
            out.extend_from_slice(&low.to_le_bytes());
        }
        let needed = out.len();
        if padded_bytes > 0 {
            out.resize(padded(needed, padded_bytes), 0);
        } else {
            out.shrink_to_fit();
        }
        Bytes::from(out)
    }
}

/// The bytes of a blob around a sketch.
pub(super) fn sketch_blob(sketch: &[u8], mark: u32, rough_count: usize) -> Bytes {
    let mut out = Vec::with_capacity(BLOB_HEADER_BYTES + sketch.len());
    put_header(&mut out, 0, mark, rough_count);
    out.extend_from_slice(sketch);
    put_length(&mut out, sketch.len());
    Bytes::from(out)
}

fn put_header(out: &mut Vec<u8>, parameter: u8, mark: u32, count: usize) {
    out.extend_from_slice(&BLOB_MAGIC);
    out.push(parameter);
    out.extend_from_slice(&mark.to_le_bytes());
    // Callers hold blobs under a store's item limit, and those under 4 GiB.
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
}

fn put_length(out: &mut [u8], coded: usize) {
    out[BLOB_HEADER_BYTES - 4..BLOB_HEADER_BYTES]
        .copy_from_slice(&u32::try_from(coded).unwrap_or(u32::MAX).to_le_bytes());
}

/// What a blob of `needed` bytes is padded to, if it begins with `first`: one that outgrows it by as many steps of a quarter as it takes.
fn padded(needed: usize, first: usize) -> usize {
    let mut padded = first;
    while padded < needed {
        padded += padded.div_ceil(4);
    }
    padded
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
