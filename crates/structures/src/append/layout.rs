//! The bytes of an append-encoded value: a snapshot, and the operations appended since.
//!
//! Numbers are little-endian; a *varint* is LEB128, 7 bits a byte, the lowest first.
//!
//! | part | bytes | what |
//! |---|---|---|
//! | header | 4 | `LRA` and the version, 1 |
//! | | 8 | generation of the structure |
//! | | 2 | which shard of it this is |
//! | | 4 | epoch: how often the snapshot was rewritten |
//! | | 4 | length of the snapshot |
//! | | 4 | check of the header and the snapshot |
//! | snapshot | varint | how many writers follow |
//! | | 8 + varint + 4 each | writer, the last of its sequences that counted, when (seconds since the epoch, coarse) |
//! | | varint + n each | elements: length, bytes |
//! | log: frames | varint | length of what follows the check |
//! | | 4 | check of it |
//! | | 8 | writer |
//! | | varint | sequence |
//! | | varint + n each | elements: length × 2, + 1 if it is removed; bytes |
//!
//! A check is the low half of XXH3-64, seeded with the generation: foreign bytes, a torn tail, and a frame of another life of
//! the name are told, and never misread.
//!
//! # Repeats
//! A frame counts only if its sequence is above the last of its writer that counted. So a frame that is appended twice (its
//! reply was lost, and the writer tried again) counts once, and one that comes later than a newer one of its writer never
//! counts. A snapshot keeps the last sequences of the recent writers ([`Writers::kept`]).
//!
//! # Figures
//! An element costs its bytes and 1 in a snapshot up to 127 bytes, 2 up to 16,383; in a frame 1 up to 63, 2 up to 8,191. A frame costs
//! 14 bytes (15 from its writer's 128th on, 16 from the 16,384th), a value [`HEADER_BYTES`] + 1, a writer that is kept 13 to 15.

use std::collections::HashSet;

use bytes::Bytes;
use larder_core::{Ctx, Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::past::Trace;
use super::shards::{Reading, Shards};
use super::writers::{Last, WRITERS_MAX, Writers};

const MAGIC: [u8; 4] = *b"LRA\x01";
/// Where the snapshot begins.
pub(crate) const HEADER_BYTES: usize = 26;
const SNAPSHOT_BYTES_AT: usize = 18;
const CHECK_AT: usize = 22;
const CHECK_BYTES: usize = 4;
const WRITER_BYTES: usize = 8;
const SECONDS_BYTES: usize = 4;
const VARINT_BYTES_MAX: usize = 10;
/// The elements of a shorter snapshot or frame are not counted before they are applied: a few steps of growth cost less.
const EXPECT_BYTES_MIN: usize = 4096;
/// The frames of a shorter log are not either.
const FRAMES_BYTES_MIN: usize = 512;

/// Room that a value needs beside its elements at the most: the header, the writers, one frame around the elements.
pub(crate) const RESERVED_BYTES: usize = HEADER_BYTES
    + VARINT_BYTES_MAX
    + WRITERS_MAX * (WRITER_BYTES + VARINT_BYTES_MAX + SECONDS_BYTES)
    + FRAME_BYTES_MAX
    + VARINT_BYTES_MAX;
/// What a frame takes beside its elements at the most.
pub(crate) const FRAME_BYTES_MAX: usize = VARINT_BYTES_MAX + CHECK_BYTES + WRITER_BYTES + VARINT_BYTES_MAX;

/// What an operation does with its element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Put,
    Remove,
}

/// What elements mean: takes operations in order. Elements are slices of the value: nothing is copied.
pub(crate) trait Fold<'v> {
    /// Told before many operations: about so many more elements are coming.
    fn expect(&mut self, _elements: usize) {}

    /// Told before the operations of a frame of the log that counts.
    fn frame(&mut self, _writer: u64, _seq: u64) {}

    fn apply(&mut self, action: Action, element: &'v [u8]);
}

/// A fold that can be written down again, as elements that are put.
pub(crate) trait Snapshot<'v>: Fold<'v> + Default {
    fn elements(&self) -> impl Iterator<Item = &'v [u8]>;

    /// Elements that are nowhere in the value: what others of it came to. A compaction writes them after the others.
    fn made(&self) -> impl Iterator<Item = Vec<u8>> {
        std::iter::empty()
    }

    /// An element of the structure's own, which a compaction writes before the others.
    fn head(&self) -> Option<Vec<u8>> {
        None
    }

    /// Not 0: the state holds changes whose outcome stands elsewhere and is not known here. It must not be compacted before
    /// [`Elements::settle`] was told this number.
    fn unsettled(&self) -> u64 {
        0
    }

    /// False: as a state of this shard it lacks, or contradicts, what is known elsewhere, because it was read too early, or its store was set back. It must not be compacted.
    fn is_whole(&self, _shard: u16) -> bool {
        true
    }
}

/// The bytes of an element in a snapshot, with the length before it.
pub(crate) fn element_bytes(length: usize) -> usize {
    varint_bytes(length as u64) + length
}

/// A structure's elements: which state they fold into.
pub(crate) trait Elements: Send + Sync + 'static {
    type State<'v>: Snapshot<'v>;

    /// A state to begin with; made by those whose values alone do not tell what they hold.
    fn state<'v>(&self) -> Self::State<'v> {
        Self::State::default()
    }

    /// Reads shards, and sees to it that states made from now on know what these were read with. **Round trips: 1.**
    fn read(
        &self,
        shards: &Shards<Self>,
        ctx: Ctx,
        which: Vec<u16>,
    ) -> impl Future<Output = Result<Vec<Reading>>> + Send
    where
        Self: Sized,
    {
        shards.read(ctx, which)
    }

    /// Sees to it that states made from now on know what was [`unsettled`](Snapshot::unsettled) up to this number.
    fn settle(&self, _ctx: Ctx, _upto: u64) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// Each element once, as slices of the value.
#[derive(Debug, Default)]
pub(crate) struct Distinct<'v>(pub(crate) HashSet<&'v [u8], crate::hash::State>);

impl<'v> Fold<'v> for Distinct<'v> {
    fn expect(&mut self, elements: usize) {
        self.0.reserve(elements);
    }

    fn apply(&mut self, action: Action, element: &'v [u8]) {
        match action {
            Action::Put => self.0.insert(element),
            Action::Remove => self.0.remove(element),
        };
    }
}

impl<'v> Snapshot<'v> for Distinct<'v> {
    fn elements(&self) -> impl Iterator<Item = &'v [u8]> {
        self.0.iter().copied()
    }
}

/// Looks at sequences only.
impl Fold<'_> for () {
    fn apply(&mut self, _: Action, _: &[u8]) {}
}

/// True unless the snapshot is all there is, by the header alone, which is not checked.
pub(crate) fn has_log(bytes: &[u8]) -> bool {
    let length = bytes.get(SNAPSHOT_BYTES_AT..).and_then(|rest| rest.first_chunk());
    length.is_none_or(|length| HEADER_BYTES + u32::from_le_bytes(*length) as usize != bytes.len())
}

/// Which value this is; another one's bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) generation: u64,
    pub(crate) shard: u16,
}

/// A value whose header and snapshot were checked.
#[derive(Debug)]
pub(crate) struct Value<'v> {
    place: Place,
    pub(crate) epoch: u32,
    /// Of the header and the snapshot.
    check: u32,
    bytes: &'v [u8],
    /// The writers and elements of the snapshot.
    snapshot: &'v [u8],
    log: &'v [u8],
}

/// A value whose operations were applied, in order and without repeats.
#[derive(Debug)]
pub(crate) struct Folded<S> {
    pub(crate) state: S,
    pub(crate) writers: Writers,
    /// Removals in the log.
    pub(crate) removals: u64,
}

fn mismatch(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::LayoutMismatch, what)
}

pub(crate) fn check(seed: u64, bytes: &[u8]) -> u32 {
    // The low half: truncation is meant.
    xxh3_64_with_seed(bytes, seed) as u32
}

/// An empty value: what a structure is created with.
pub(crate) fn empty(place: Place) -> Bytes {
    finish(place, 0, &[0])
}

fn finish(place: Place, epoch: u32, snapshot: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(HEADER_BYTES + snapshot.len());
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&place.generation.to_le_bytes());
    out.extend_from_slice(&place.shard.to_le_bytes());
    out.extend_from_slice(&epoch.to_le_bytes());
    // Callers hold what they write under the store's item limit, and values over 4 GiB are refused at open.
    out.extend_from_slice(&u32::try_from(snapshot.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&snapshot_check(place, &out, snapshot).to_le_bytes());
    out.extend_from_slice(snapshot);
    Bytes::from(out)
}

/// Chained, so that the snapshot needs no copy to be checked together with the header.
fn snapshot_check(place: Place, header: &[u8], snapshot: &[u8]) -> u32 {
    check(xxh3_64_with_seed(header, place.generation), snapshot)
}

/// Adds an operation to the elements of a frame.
pub(crate) fn put_element(out: &mut Vec<u8>, action: Action, element: &[u8]) {
    put_varint(out, (element.len() as u64) << 1 | u64::from(action == Action::Remove));
    out.extend_from_slice(element);
}

/// A frame of elements that [`put_element`] encoded.
pub(crate) fn frame(place: Place, writer: u64, seq: u64, elements: &[u8]) -> Bytes {
    let body_bytes = WRITER_BYTES + varint_bytes(seq) + elements.len();
    let body_at = varint_bytes(body_bytes as u64) + CHECK_BYTES;
    let mut out = Vec::with_capacity(body_at + body_bytes);
    put_varint(&mut out, body_bytes as u64);
    // Filled in below: the check is of what follows.
    out.extend_from_slice(&[0; CHECK_BYTES]);
    out.extend_from_slice(&writer.to_le_bytes());
    put_varint(&mut out, seq);
    out.extend_from_slice(elements);
    let check = check(frame_seed(place), &out[body_at..]);
    out[body_at - CHECK_BYTES..body_at].copy_from_slice(&check.to_le_bytes());
    Bytes::from(out)
}

/// Another shard's frame does not pass either.
fn frame_seed(place: Place) -> u64 {
    place.generation ^ u64::from(place.shard)
}

impl<'v> Value<'v> {
    /// Checks the header and the snapshot.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no such value, or another one's.
    pub(crate) fn parse(bytes: &'v [u8], place: Place) -> Result<Value<'v>> {
        let mut rest = bytes;
        if take(&mut rest, 4) != Some(&MAGIC[..]) {
            return Err(mismatch(format!("this is no value of layout 1: {}", larder_core::text::Shown(bytes))));
        }
        let header = (|| {
            let place = Place { generation: take_u64(&mut rest)?, shard: take_u16(&mut rest)? };
            let epoch = take_u32(&mut rest)?;
            let snapshot_bytes = take_u32(&mut rest)? as usize;
            let check = take_u32(&mut rest)?;
            Some((place, epoch, check, take(&mut rest, snapshot_bytes)?))
        })();
        let Some((stored, epoch, check, snapshot)) = header else {
            return Err(mismatch(format!("the value is cut short at {} bytes", bytes.len())));
        };
        if stored != place {
            return Err(mismatch(format!("the value belongs to {stored:x?}, not to {place:x?}")));
        }
        if snapshot_check(place, &bytes[..CHECK_AT], snapshot) != check {
            return Err(mismatch("the snapshot does not match its check"));
        }
        Ok(Value { place, epoch, check, bytes, snapshot, log: rest })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The frame of a value that is nothing else: written once, and never compacted.
    pub(crate) fn only_frame(&self) -> Option<Frame<'v>> {
        let mut rest = self.log;
        let frame = Frame::take(&mut rest, self.place)?;
        (self.snapshot == [0] && rest.is_empty() && frame.seq > 0).then_some(frame)
    }

    /// Applies the snapshot and the log to `state`.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that no writer of this layout appended; names where they begin.
    pub(crate) fn fold<S: Fold<'v>>(&self, state: S) -> Result<Folded<S>> {
        self.fold_traced(state, &mut Trace::of(0, 0))
    }

    /// The same, noting what a handle checks its own past against.
    pub(crate) fn fold_traced<S: Fold<'v>>(&self, state: S, trace: &mut Trace) -> Result<Folded<S>> {
        let mut folded = Folded { state, writers: Writers::default(), removals: 0 };
        let mut rest = self.snapshot;
        folded.snapshot(&mut rest).ok_or_else(|| mismatch("the snapshot is malformed"))?;
        trace.begin(&folded.writers, self.check);
        let mut rest = self.log;
        if rest.len() >= FRAMES_BYTES_MIN {
            // One element a frame, as where each was written by itself; a larger one tells its own number.
            folded.state.expect(frames(rest));
        }
        while !rest.is_empty() {
            let at = self.bytes.len() - rest.len();
            trace.reached(at);
            let whole = take_checked(&mut rest, self.place).and_then(|(check, body)| {
                let (writer, seq) = folded.frame(body, at)?;
                trace.frame(writer, seq, check);
                Some(())
            });
            whole.ok_or_else(|| mismatch(format!("the bytes from offset {at} on are no operations of this value")))?;
        }
        trace.reached(self.bytes.len());
        Ok(folded)
    }
}

/// Puts the check of the snapshot right; where the log begins. `None` for what has no header.
#[cfg(feature = "fuzzing")]
pub(crate) fn seal_snapshot(place: Place, bytes: &mut [u8]) -> Option<usize> {
    let snapshot_bytes = u32::from_le_bytes(*bytes.get(SNAPSHOT_BYTES_AT..)?.first_chunk()?) as usize;
    let end = bytes.len().min(HEADER_BYTES.checked_add(snapshot_bytes)?);
    let check = snapshot_check(place, bytes.get(..CHECK_AT)?, bytes.get(HEADER_BYTES..end)?);
    bytes[CHECK_AT..HEADER_BYTES].copy_from_slice(&check.to_le_bytes());
    Some(end)
}

/// Puts the checks of frames right, up to the first that is not whole.
#[cfg(feature = "fuzzing")]
pub(crate) fn seal_frames(place: Place, mut bytes: &mut [u8]) {
    loop {
        let mut rest = &*bytes;
        let Some(length) = take_length(&mut rest) else { return };
        let body_at = bytes.len() - rest.len() + CHECK_BYTES;
        let Some(body) = body_at.checked_add(length).and_then(|end| bytes.get(body_at..end)) else { return };
        let check = check(frame_seed(place), body);
        bytes[body_at - CHECK_BYTES..body_at].copy_from_slice(&check.to_le_bytes());
        bytes = &mut std::mem::take(&mut bytes)[body_at + length..];
    }
}

/// How many elements there are, by a pass over the lengths alone: cheap beside a table that grows step by step. `length` of
/// what stands before each.
fn count(mut elements: &[u8], length: impl Fn(u64) -> u64) -> Option<usize> {
    let mut count = 0;
    while !elements.is_empty() {
        let bytes = length(take_varint(&mut elements)?);
        take(&mut elements, usize::try_from(bytes).ok()?)?;
        count += 1;
    }
    Some(count)
}

/// How many frames there are, by a pass over their lengths alone; up to the first that is not whole.
fn frames(mut log: &[u8]) -> usize {
    std::iter::from_fn(|| {
        let length = take_length(&mut log)?;
        take(&mut log, length.checked_add(CHECK_BYTES)?)
    })
    .count()
}

/// A frame by itself, for values that are nothing but frames behind a header of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame<'v> {
    pub(crate) writer: u64,
    pub(crate) seq: u64,
    /// For [`take_element`].
    pub(crate) elements: &'v [u8],
}

impl<'v> Frame<'v> {
    /// The next frame, and `rest` behind it. `None` for what is no whole frame of `place`.
    pub(crate) fn take(rest: &mut &'v [u8], place: Place) -> Option<Frame<'v>> {
        let mut body = take_frame(rest, place)?;
        Some(Frame { writer: take_u64(&mut body)?, seq: take_varint(&mut body)?, elements: body })
    }
}

/// The next element of a frame, and `rest` behind it.
pub(crate) fn take_element<'v>(rest: &mut &'v [u8]) -> Option<(Action, &'v [u8])> {
    let tag = take_varint(rest)?;
    let element = take(rest, usize::try_from(tag >> 1).ok()?)?;
    Some((if tag & 1 == 0 { Action::Put } else { Action::Remove }, element))
}

/// The body of the frame, if there is a whole one that passes its check.
fn take_frame<'v>(rest: &mut &'v [u8], place: Place) -> Option<&'v [u8]> {
    take_checked(rest, place).map(|(_, body)| body)
}

/// The same, with its check.
fn take_checked<'v>(rest: &mut &'v [u8], place: Place) -> Option<(u32, &'v [u8])> {
    let length = take_length(rest)?;
    let expected = take_u32(rest)?;
    let body = take(rest, length)?;
    (check(frame_seed(place), body) == expected).then_some((expected, body))
}

impl<'v, S: Fold<'v>> Folded<S> {
    fn snapshot(&mut self, rest: &mut &'v [u8]) -> Option<()> {
        for _ in 0..take_varint(rest)? {
            let writer = take_u64(rest)?;
            let seq = take_varint(rest)?;
            let seconds = Some(take_u32(rest)?);
            self.writers.insert(writer, Last { seq, seconds, at: 0 });
        }
        if rest.len() >= EXPECT_BYTES_MIN {
            self.state.expect(count(rest, |tag| tag)?);
        }
        while !rest.is_empty() {
            let length = take_length(rest)?;
            self.state.apply(Action::Put, take(rest, length)?);
        }
        Some(())
    }

    /// Applies the body of a frame, unless it is a repeat; its writer and sequence. `None` for what is none.
    fn frame(&mut self, mut body: &'v [u8], at: usize) -> Option<(u64, u64)> {
        let writer = take_u64(&mut body)?;
        let seq = take_varint(&mut body)?;
        let is_repeat = self.last(writer) >= seq;
        if !is_repeat {
            self.writers.insert(writer, Last { seq, seconds: None, at });
            self.state.frame(writer, seq);
        }
        if !is_repeat && body.len() >= EXPECT_BYTES_MIN {
            self.state.expect(count(body, |tag| tag >> 1)?);
        }
        while !body.is_empty() {
            let (action, element) = take_element(&mut body)?;
            if !is_repeat {
                self.removals += u64::from(action == Action::Remove);
                self.state.apply(action, element);
            }
        }
        Some((writer, seq))
    }

    /// Applies a frame that is not in the value yet.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] unless it is one frame of `place`.
    pub(crate) fn join(&mut self, place: Place, mut frame: &'v [u8]) -> Result<()> {
        let body = take_frame(&mut frame, place).filter(|_| frame.is_empty());
        let joined = body.and_then(|body| self.frame(body, usize::MAX));
        joined.map(drop).ok_or_else(|| mismatch("this is no frame of this value"))
    }

    /// The value as it would be, compacted, in bytes, where its elements take so many.
    pub(crate) fn live_bytes_with(&self, elements_bytes: usize, now_s: u32) -> usize {
        let writers = self.writers.kept(now_s);
        let each = |(_, last): &(u64, Last)| WRITER_BYTES + varint_bytes(last.seq) + SECONDS_BYTES;
        HEADER_BYTES + varint_bytes(writers.len() as u64) + writers.iter().map(each).sum::<usize>() + elements_bytes
    }

    /// The last sequence of a writer that counted; 0 if none is known.
    pub(crate) fn last(&self, writer: u64) -> u64 {
        self.writers.get(writer).map_or(0, |last| last.seq)
    }

    /// How many writers are known to have written.
    pub(crate) fn writers(&self) -> usize {
        self.writers.len()
    }
}

impl<S> Folded<S> {
    /// Forgets all writers but the newest.
    pub(crate) fn keep_writers(&mut self, max: usize) {
        self.writers.keep(max);
    }
}

impl<'v, S: Snapshot<'v>> Folded<S> {
    /// The value as it would be, compacted, in bytes.
    pub(crate) fn live_bytes(&self, now_s: u32) -> usize {
        self.live_bytes_with(self.elements_bytes(), now_s)
    }

    /// What the elements take in a snapshot.
    pub(crate) fn elements_bytes(&self) -> usize {
        let head = self.state.head().map_or(0, |head| element_bytes(head.len()));
        let elements = self.state.elements().map(|element| element_bytes(element.len())).sum::<usize>();
        let made = self.state.made().map(|element| element_bytes(element.len())).sum::<usize>();
        head + elements + made
    }

    /// The value, compacted: the same elements and sequences, the next epoch, an empty log.
    pub(crate) fn compacted(&self, place: Place, epoch: u32, now_s: u32) -> Bytes {
        let mut snapshot = Vec::with_capacity(self.live_bytes(now_s));
        let writers = self.writers.kept(now_s);
        put_varint(&mut snapshot, writers.len() as u64);
        for (writer, last) in writers {
            snapshot.extend_from_slice(&writer.to_le_bytes());
            put_varint(&mut snapshot, last.seq);
            snapshot.extend_from_slice(&last.seconds.unwrap_or(now_s).to_le_bytes());
        }
        let mut put = |element: &[u8]| {
            put_varint(&mut snapshot, element.len() as u64);
            snapshot.extend_from_slice(element);
        };
        if let Some(head) = self.state.head() {
            put(&head);
        }
        self.state.elements().for_each(&mut put);
        self.state.made().for_each(|element| put(&element));
        finish(place, epoch.saturating_add(1), &snapshot)
    }
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn varint_bytes(number: u64) -> usize {
    let bits = (u64::BITS - number.leading_zeros()).max(1);
    bits.div_ceil(7) as usize
}

#[inline]
pub(crate) fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    // Most are lengths of short elements.
    match rest.split_first()? {
        (&byte, tail) if byte < 0x80 => {
            *rest = tail;
            Some(u64::from(byte))
        }
        _ => take_long_varint(rest),
    }
}

fn take_long_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for at in 0..VARINT_BYTES_MAX {
        let (&byte, tail) = rest.split_first()?;
        *rest = tail;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if at == VARINT_BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        number |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

pub(crate) fn take_length(rest: &mut &[u8]) -> Option<usize> {
    usize::try_from(take_varint(rest)?).ok()
}

pub(crate) fn take<'v>(rest: &mut &'v [u8], length: usize) -> Option<&'v [u8]> {
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head)
}

fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    take_array(rest).map(u16::from_le_bytes)
}

pub(crate) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take_array(rest).map(u32::from_le_bytes)
}

pub(crate) fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    take_array(rest).map(u64::from_le_bytes)
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
