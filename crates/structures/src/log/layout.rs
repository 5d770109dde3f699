//! The bytes of a log: its parameters, its parts, the elements of their frames.
//!
//! Numbers are little-endian; a *varint* is LEB128.
//!
//! | parameters | bytes | what |
//! |---|---|---|
//! | | 8 | length of a chunk in milliseconds |
//! | | 8 | retention in milliseconds |
//!
//! A chunk holds the events of one stretch of time: the number of an event's chunk is its time in milliseconds since the Unix epoch,
//! divided by the length of a chunk, and never taken modulo anything. A chunk is one part, or several where it outgrows one. A part
//! is the value of the key with the index `<chunk>-<part>`, both in hexadecimal.
//!
//! | a part | bytes | what |
//! |---|---|---|
//! | header | 4 | `LRE` and the version, 1 |
//! | | 8 | generation of the log |
//! | | 8 | chunk |
//! | | 2 | part |
//! | | 8 | incarnation: drawn at random for each try to make the part |
//! | | 4 | check of the 30 bytes before: the low half of XXH3-64, seeded with the generation |
//! | frames | … | as in the log of an append-encoded value, to the end |
//!
//! The check of a frame is seeded with XXH3-64(chunk, part; seed = generation) where that of an append-encoded value is with its
//! generation and shard. An element that is put is an event: a varint, the milliseconds since its chunk began, and its bytes.
//! One that is removed, and empty, is a mark: the frame may stand in another part of the chunk, too.
//!
//! A frame counts once a chunk, however often, and in whichever of its parts, its writer and sequence are found.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use larder_core::text::Shown;
use larder_core::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::append::Action;
use crate::append::layout::{self as engine, FRAME_BYTES_MAX, Frame, Place};

/// The version of the layout, as the manifest records it.
pub(crate) const LAYOUT: u8 = 1;

const MAGIC: [u8; 4] = *b"LRE\x01";
const CHECK_AT: usize = 30;
/// Where the frames begin.
pub(crate) const HEADER_BYTES: usize = CHECK_AT + 4;
/// The most that a part takes beside the bytes of its one event.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + FRAME_BYTES_MAX + 3 * VARINT_BYTES_MAX;
const VARINT_BYTES_MAX: usize = 10;
/// The most that an event takes beside its bytes.
pub(crate) const EVENT_BYTES_MAX: usize = 2 * VARINT_BYTES_MAX;
/// A greater number has no room in a key.
pub(crate) const CHUNK_MAX: u64 = (1 << 48) - 1;

/// What is fixed when a log is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    pub(crate) chunk_ms: u64,
    pub(crate) retention_ms: u64,
}

impl Params {
    pub(crate) fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(16);
        out.extend_from_slice(&self.chunk_ms.to_le_bytes());
        out.extend_from_slice(&self.retention_ms.to_le_bytes());
        Bytes::from(out)
    }

    /// `None` for what is none of this layout.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Params> {
        let (chunk_ms, rest) = bytes.split_first_chunk()?;
        let params =
            Params { chunk_ms: u64::from_le_bytes(*chunk_ms), retention_ms: u64::from_le_bytes(rest.try_into().ok()?) };
        (params.chunk_ms > 0).then_some(params)
    }

    pub(crate) fn chunk_of(self, time_ms: u64) -> u64 {
        time_ms / self.chunk_ms
    }

    /// The first and the last millisecond of a chunk.
    pub(crate) fn bounds_ms(self, chunk: u64) -> (u64, u64) {
        let first_ms = chunk.saturating_mul(self.chunk_ms);
        (first_ms, first_ms.saturating_add(self.chunk_ms - 1))
    }
}

/// Which part of which chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) chunk: u64,
    pub(crate) part: u16,
}

/// The index of its key.
impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.chunk, self.part)
    }
}

impl At {
    /// Which part these bytes say that they are; whether they are one, [`PartValue::parse`] tells.
    fn named_by(bytes: &[u8]) -> Option<At> {
        let chunk = bytes.get(12..20)?.try_into().ok()?;
        let part = bytes.get(20..22)?.try_into().ok()?;
        Some(At { chunk: u64::from_le_bytes(chunk), part: u16::from_le_bytes(part) })
    }

    /// What seeds the checks of its frames.
    pub(super) fn place(self, generation: u64) -> Place {
        let mut bytes = [0; 10];
        bytes[..8].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[8..].copy_from_slice(&self.part.to_le_bytes());
        Place { generation: xxh3_64_with_seed(&bytes, generation), shard: 0 }
    }

    /// The header of a new part.
    pub(crate) fn header(self, generation: u64, incarnation: u64) -> Bytes {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&generation.to_le_bytes());
        out.extend_from_slice(&self.chunk.to_le_bytes());
        out.extend_from_slice(&self.part.to_le_bytes());
        out.extend_from_slice(&incarnation.to_le_bytes());
        out.extend_from_slice(&check(&out, generation).to_le_bytes());
        Bytes::from(out)
    }

    /// A frame of elements that [`put_event`] encoded; `is_marked` where it may stand in another part of the chunk, too.
    pub(crate) fn frame(self, generation: u64, writer: u64, seq: u64, elements: &[u8], is_marked: bool) -> Bytes {
        if !is_marked {
            return engine::frame(self.place(generation), writer, seq, elements);
        }
        let mut marked = Vec::with_capacity(elements.len() + 1);
        engine::put_element(&mut marked, Action::Remove, b"");
        marked.extend_from_slice(elements);
        engine::frame(self.place(generation), writer, seq, &marked)
    }
}

/// Adds an event to the elements of a frame. `offset_ms`: since its chunk began.
pub(crate) fn put_event(out: &mut Vec<u8>, offset_ms: u64, event: &[u8]) {
    // As `put_element` does, without a copy of the event in between.
    let length = engine::varint_bytes(offset_ms) + event.len();
    engine::put_varint(out, (length as u64) << 1);
    engine::put_varint(out, offset_ms);
    out.extend_from_slice(event);
}

fn check(bytes: &[u8], generation: u64) -> u32 {
    // The low half: truncation is meant.
    xxh3_64_with_seed(bytes, generation) as u32
}

/// A part whose header was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartValue<'v> {
    at: At,
    place: Place,
    pub(crate) incarnation: u64,
    bytes: &'v [u8],
}

/// One frame of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartFrame<'v> {
    pub(crate) writer: u64,
    pub(crate) seq: u64,
    /// It may stand in another part of the chunk, too.
    pub(crate) is_marked: bool,
    /// For [`PartFrame::events`].
    elements: &'v [u8],
    /// Where it begins in the part.
    at: usize,
}

impl<'v> PartValue<'v> {
    /// Checks the header.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no part, or another one's.
    pub(crate) fn parse(bytes: &'v [u8], generation: u64, at: At) -> Result<PartValue<'v>> {
        let mismatch = |why: &str| {
            let shown = Shown(&bytes[..bytes.len().min(HEADER_BYTES)]);
            Err(Error::new(ErrorKind::LayoutMismatch, format!("part {at} of a log {why}: {shown}")))
        };
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return mismatch("is cut short");
        };
        let mut incarnation = [0; 8];
        incarnation.copy_from_slice(&header[22..CHECK_AT]);
        let incarnation = u64::from_le_bytes(incarnation);
        if header[..] == at.header(generation, incarnation)[..] {
            return Ok(PartValue { at, place: at.place(generation), incarnation, bytes });
        }
        mismatch("has a header of something else")
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What all its bytes come to: the low half of their XXH3-64.
    pub(crate) fn check(&self) -> u32 {
        check(self.bytes, 0)
    }

    /// The same part as it was when it had so many bytes.
    pub(crate) fn cut(self, bytes: usize) -> PartValue<'v> {
        PartValue { bytes: &self.bytes[..bytes.min(self.bytes.len())], ..self }
    }

    /// The frames from `offset` on, where one begins; the header's end is where the first does.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that no writer of this layout appended; names where they begin.
    pub(crate) fn frames(&self, offset: usize) -> Result<Vec<PartFrame<'v>>> {
        let Some(mut rest) = self.bytes.get(offset.max(HEADER_BYTES)..) else {
            return Err(self.malformed(self.bytes.len()));
        };
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let at = self.bytes.len() - rest.len();
            let Frame { writer, seq, mut elements } =
                Frame::take(&mut rest, self.place).ok_or_else(|| self.malformed(at))?;
            let mut behind = elements;
            let is_marked = matches!(engine::take_element(&mut behind), Some((Action::Remove, b"")));
            if is_marked {
                elements = behind;
            }
            frames.push(PartFrame { writer, seq, is_marked, elements, at });
        }
        Ok(frames)
    }

    /// True if a frame of this writer and sequence is there.
    ///
    /// # Errors
    /// As [`frames`](PartValue::frames).
    pub(crate) fn has(&self, writer: u64, seq: u64) -> Result<bool> {
        Ok(self.frames(HEADER_BYTES)?.iter().any(|frame| (frame.writer, frame.seq) == (writer, seq)))
    }

    /// Calls `take` with each event of a frame: milliseconds since its chunk began, and bytes.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for a frame that holds something else.
    pub(crate) fn events(&self, frame: &PartFrame<'v>, mut take: impl FnMut(u64, &'v [u8])) -> Result<()> {
        let mut rest = frame.elements;
        while !rest.is_empty() {
            let event = engine::take_element(&mut rest).filter(|(action, _)| *action == Action::Put);
            let (_, mut event) = event.ok_or_else(|| self.malformed(frame.at))?;
            let offset_ms = engine::take_varint(&mut event).ok_or_else(|| self.malformed(frame.at))?;
            take(offset_ms, event);
        }
        Ok(())
    }

    fn malformed(&self, at: usize) -> Error {
        let detail = format!("part {} of a log: the bytes from offset {at} on are no events of it", self.at);
        Error::new(ErrorKind::LayoutMismatch, detail)
    }
}

/// A frame that counts: its chunk, writer and sequence.
pub(crate) type Counted = (u64, u64, u64);

/// How many bytes of a part are frames that do not count, since they are among those that were `counted` or stand in it before; and how many events the
/// others have. Takes in those that count.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are no part of a log.
pub(crate) fn weigh(bytes: &[u8], generation: u64, counted: &mut HashSet<Counted>) -> Result<(usize, u64)> {
    let at = At::named_by(bytes).unwrap_or(At { chunk: 0, part: 0 });
    let part = PartValue::parse(bytes, generation, at)?;
    let frames = part.frames(HEADER_BYTES)?;
    let (mut stale_bytes, mut events) = (0, 0);
    for (nth, frame) in frames.iter().enumerate() {
        if counted.insert((at.chunk, frame.writer, frame.seq)) {
            part.events(frame, |_, _| events += 1)?;
        } else {
            let end = frames.get(nth + 1).map_or(part.len(), |next| next.at);
            stale_bytes += end - frame.at;
        }
    }
    Ok((stale_bytes, events))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
