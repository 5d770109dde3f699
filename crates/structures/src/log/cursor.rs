//! How far a tail has read, as bytes to go on from in another process.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `LRC` and the version, 2 |
//! | 8 | generation of the log |
//! | varint | how many places follow |
//! | … each | chunk, less that of the place before (varint); part (varint); incarnation (8); 1 + bytes read of it, or 0 where its loss was told (varint); where bytes were read, their check: the low half of their XXH3-64, seed 0 (4) |
//! | varint | how many frames follow that may stand in another part, too |
//! | … each | chunk (varint), writer (8), sequence (varint) |
//! | 4 | check of all before it: the low half of XXH3-64, seeded with the generation |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::layout::At;
use crate::append::layout::{put_varint, take_u32, take_u64, take_varint};

const MAGIC: [u8; 4] = *b"LRC\x02";
const CHECK_BYTES: usize = 4;

/// How far a [`Tail`](super::Tail) has read. Its bytes can be kept, and taken up again by another process.
///
/// It grows with the parts that a log has within its retention: 17 to 24 bytes each.
///
/// ```
/// # use larder_core::StoreRef;
/// # use larder_structures::{EventLog, log::Cursor};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> larder_core::Result<()> {
/// # let store: StoreRef = std::sync::Arc::new(larder_store_memory::MemoryStore::new());
/// let log = EventLog::open_or_create(&store, "audit").await?;
/// log.put("seen").await?;
/// let mut tail = log.tail(Cursor::default())?;
/// tail.poll().await?.whole()?;
/// let kept = tail.cursor().to_bytes();
///
/// log.put("not seen yet").await?;
/// let mut tail = log.tail(Cursor::from_bytes(&kept)?)?;
/// let events = tail.poll().await?.whole()?;
/// assert_eq!(events[0].bytes, "not seen yet");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Of the log; 0 before the first poll.
    pub(super) generation: u64,
    /// What was read of each incarnation of each part; `None` where its loss was told.
    pub(super) places: BTreeMap<(At, u64), Option<Begin>>,
    /// Frames that were told and may stand in another part, too: chunk, writer, sequence.
    pub(super) marked: BTreeSet<(u64, u64, u64)>,
}

/// What was read of a part: how many bytes from its first one on, and their [check](super::layout::PartValue::check). One that begins otherwise is not the part that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    pub(super) bytes: u32,
    pub(super) check: u32,
}

impl Cursor {
    /// The bytes to keep.
    ///
    /// ```
    /// # use larder_structures::log::Cursor;
    /// let bytes = Cursor::default().to_bytes();
    /// assert_eq!(Cursor::from_bytes(&bytes)?, Cursor::default());
    /// # Ok::<(), larder_core::Error>(())
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.generation.to_le_bytes());
        put_varint(&mut out, self.places.len() as u64);
        let mut chunk_before = 0;
        for ((at, incarnation), read) in &self.places {
            put_varint(&mut out, at.chunk - chunk_before);
            put_varint(&mut out, u64::from(at.part));
            out.extend_from_slice(&incarnation.to_le_bytes());
            put_varint(&mut out, read.map_or(0, |begin| u64::from(begin.bytes) + 1));
            if let Some(begin) = read {
                out.extend_from_slice(&begin.check.to_le_bytes());
            }
            chunk_before = at.chunk;
        }
        put_varint(&mut out, self.marked.len() as u64);
        for (chunk, writer, seq) in &self.marked {
            put_varint(&mut out, *chunk);
            out.extend_from_slice(&writer.to_le_bytes());
            put_varint(&mut out, *seq);
        }
        out.extend_from_slice(&check(&out, self.generation).to_le_bytes());
        out
    }

    /// Takes up a cursor that was kept.
    ///
    /// ```
    /// # use larder_structures::log::Cursor;
    /// assert!(Cursor::from_bytes(b"not one").is_err());
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::BadInput`] for bytes that are none, or of a newer release.
    pub fn from_bytes(bytes: &[u8]) -> Result<Cursor> {
        decode(bytes).ok_or_else(|| {
            let shown = Shown(&bytes[..bytes.len().min(32)]);
            let detail = format!("{} bytes are no cursor of a log of this release: {shown}", bytes.len());
            Error::new(ErrorKind::BadInput, detail)
        })
    }
}

/// Says how much it knows of, not what: its bytes are not for people.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a cursor over {} parts", self.places.len())
    }
}

fn check(bytes: &[u8], generation: u64) -> u32 {
    // The low half: truncation is meant.
    xxh3_64_with_seed(bytes, generation) as u32
}

fn decode(bytes: &[u8]) -> Option<Cursor> {
    let (body, end) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_BYTES)?)?;
    let mut rest = body.strip_prefix(&MAGIC)?;
    let generation = take_u64(&mut rest)?;
    if check(body, generation).to_le_bytes() != end {
        return None;
    }
    let mut cursor = Cursor { generation, ..Cursor::default() };
    let mut chunk = 0u64;
    for _ in 0..take_varint(&mut rest)? {
        chunk = chunk.checked_add(take_varint(&mut rest)?)?;
        let at = At { chunk, part: u16::try_from(take_varint(&mut rest)?).ok()? };
        let incarnation = take_u64(&mut rest)?;
        let read = match take_varint(&mut rest)? {
            0 => None,
            more => Some(Begin { bytes: u32::try_from(more - 1).ok()?, check: take_u32(&mut rest)? }),
        };
        cursor.places.insert((at, incarnation), read);
    }
    for _ in 0..take_varint(&mut rest)? {
        let chunk = take_varint(&mut rest)?;
        let writer = take_u64(&mut rest)?;
        cursor.marked.insert((chunk, writer, take_varint(&mut rest)?));
    }
    rest.is_empty().then_some(cursor)
}

/// A cursor, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(super) fn drawn(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut cursor = Cursor { generation: rng.u64(..), ..Cursor::default() };
    for _ in 0..rng.usize(0..4) {
        let at = At { chunk: rng.u64(0..9), part: rng.u16(..) };
        let read = rng.bool().then(|| Begin { bytes: rng.u32(..), check: rng.u32(..) });
        cursor.places.insert((at, rng.u64(..)), read);
        cursor.marked.insert((rng.u64(..), rng.u64(..), rng.u64(..)));
    }
    cursor.to_bytes()
}

/// Puts its check right, for fuzzing.
#[cfg(feature = "fuzzing")]
pub(super) fn seal(bytes: &mut [u8]) {
    let Some(body_bytes) = bytes.len().checked_sub(CHECK_BYTES).filter(|&bytes| bytes >= MAGIC.len() + 8) else {
        return;
    };
    let (body, end) = bytes.split_at_mut(body_bytes);
    let generation = take_u64(&mut &body[MAGIC.len()..]).unwrap_or_default();
    end.copy_from_slice(&check(body, generation).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cursor() -> Cursor {
        let at = |chunk, part| At { chunk, part };
        Cursor {
            generation: 0x1122_3344_5566_7788,
            places: [
                ((at(0x0102, 0), 1), Some(Begin { bytes: 34, check: 0x0d0c_0b0a })),
                ((at(0x0102, 1), 2), None),
                ((at(0x0105, 300), 3), Some(Begin { bytes: u32::MAX, check: 1 })),
            ]
            .into(),
            marked: [(0x0102, 7, 200)].into(),
        }
    }

    #[test]
    fn golden_bytes() {
        let hex: String = cursor().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, GOLDEN);
        assert_eq!(Cursor::from_bytes(&cursor().to_bytes()).unwrap(), cursor());
    }

    const GOLDEN: &str = "4c5243028877665544332211\
        038202000100000000000000230a0b0c0d000102000000000000000003ac02030000000000000080808080100100000001\
        82020700000000000000c801f711b9f7";

    #[test]
    fn a_changed_byte_is_refused() {
        let bytes = cursor().to_bytes();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(Cursor::from_bytes(&bytes).unwrap_err().kind(), ErrorKind::BadInput, "at {at}");
        }
    }

    #[test]
    fn it_shows_how_much_it_knows_of() {
        assert_eq!(cursor().to_string(), "a cursor over 3 parts");
    }

    proptest! {
        #[test]
        fn garbage_never_panics(generation: u64, bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            _ = Cursor::from_bytes(&bytes);
            let mut body = [&MAGIC[..], &generation.to_le_bytes(), &bytes].concat();
            let end = check(&body, generation);
            body.extend_from_slice(&end.to_le_bytes());
            _ = Cursor::from_bytes(&body);
        }
    }
}
