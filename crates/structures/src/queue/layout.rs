//! The bytes of queues and stacks: the state cell, and the segments.
//!
//! A *segment* is a value of the append engine ([`layout`](crate::append::layout)). Its generation is the segment's own incarnation,
//! drawn by whoever opened it, and its shard the low 16 bits of its number. Elements that are put are items; their *ordinal*
//! is their place among them, without repeats, and never changes. Elements that are removed are notes of a stack (see [`Note`]).
//! Its key is made of its incarnation, which one request alone ever writes: once it is removed it stays so, however late a request comes.
//!
//! A *link* tells the incarnation of a segment by its number, where the state does not: 4 bytes of check, seeded as the state's, of the
//! number and the incarnation, and 8 bytes of incarnation. It is written before the state forgets, and by all with the same bytes.
//!
//! The *state* is one value under conditional writes. A *varint* is LEB128; other numbers are little-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `LRQ` and the version, 4 |
//! | 4 | check of what follows: the low half of XXH3-64, seeded with the generation |
//! | varint | sequence: rises by 1 with each write |
//! | varint, 8 | the tail's number, and its incarnation |
//! | 1 | 1 if the tail is known to be lost, else 0 |
//! | varint | segments that are live |
//! | varint × 5 | totals: items acknowledged, segments lost, items lost while claimed, losses found, and how many of these a consumer is known to have heard of |
//! | varint | how many marks follow |
//! | 8 + varint each | marks: a writer of the state, and the last of its sequences; the newest first |
//! | varint | how many records follow |
//! | varint, 8 each | records: the segment's number, and its incarnation (0: not known), |
//! | varint | where a stack goes on below it: 0 for nowhere, else (number + 1) × 2, + 1 if numbers below may be missing, |
//! | varint + 2 varints each | the ranges of ordinals that were taken: the gap since the last range, and the length, |
//! | varint | and how many frames of items there were up to the last item that was taken; unless 0: |
//! | 8 | their digest, XXH3-64 of writer and sequence (8 bytes each) seeded with the digest before; before the first, the incarnation |
//! | 4 each | the low half of the digests 1, 2, 4 … frames before, as long as there is a frame (see [`Print`]) |
//! | 1 | 0; 1 if nothing is left of it and a writer is about to remove it, 2 if that is not the first (see [`removal`](super::removal)); unless 0: |
//! | 8 + varint | that writer, and the sequence of the state that named it |
//! | varint | how many open claims follow |
//! | 2 varints, 8, varint each | open claims: segment, ordinal, id (0: given back), how often it was delivered |

use bytes::Bytes;
use larder_core::{Cas, Error, ErrorKind, Item, Result};

use super::past::{Chain, Print};
use crate::append::layout::{self, Place, Value};
use crate::append::{Action, Fold};

const MAGIC: [u8; 4] = *b"LRQ\x04";
/// The version of the layout, in the manifest.
pub(crate) const LAYOUT: u8 = 5;
/// How many writers of the state are remembered.
pub(super) const MARKS_MAX: usize = 16;
/// How many claims may be open at a time.
pub(super) const CLAIMS_MAX: usize = 1024;

/// All that is known of a queue or stack beside the items.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct State {
    pub(super) seq: u64,
    pub(super) tail: u64,
    pub(super) incarnation: u64,
    pub(super) is_tail_lost: bool,
    pub(super) live: u64,
    pub(super) acked: u64,
    pub(super) lost_segments: u64,
    pub(super) lost_items: u64,
    /// Losses that were found.
    pub(super) found: u64,
    /// Of these, the first so many were told to a consumer that is known to have heard of them.
    pub(super) told: u64,
    pub(super) marks: Vec<Mark>,
    /// Of segments that are partly taken, by rising number. A queue's last one is where it takes from.
    pub(super) records: Vec<Record>,
    pub(super) opens: Vec<Open>,
}

/// A writer of the state and its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) writer: u64,
    pub(super) seq: u64,
}

/// Which items of a segment were taken: acknowledged, or claimed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Record {
    pub(super) segment: u64,
    /// 0: not known.
    pub(super) incarnation: u64,
    pub(super) below: Below,
    /// Half-open, rising, not touching.
    pub(super) taken: Vec<(u32, u32)>,
    /// Of what there was up to the last that was taken.
    pub(super) print: Print,
    /// Who is to remove it, once nothing is left of it.
    pub(super) remover: Option<Remover>,
}

/// The writer that is to remove a segment of which nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remover {
    pub(super) writer: u64,
    /// The sequence of the write that said so.
    pub(super) seq: u64,
    /// True if another was named before: what that one sent may yet remove it.
    pub(super) is_second: bool,
}

/// Where a stack goes on below a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Below {
    pub(super) segment: Option<u64>,
    /// True after the segment that knew was lost: from here down numbers may be missing for a good reason.
    pub(super) is_guess: bool,
}

/// An item that was claimed, and is not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) segment: u64,
    pub(super) ordinal: u32,
    /// [`GIVEN_BACK`]: nobody has it.
    pub(super) claim: u64,
    pub(super) attempts: u32,
}

/// The claim of an item that a consumer gave back.
pub(super) const GIVEN_BACK: u64 = 0;

/// What a segment of a stack says of itself: where to go on below it, which of its items were taken, and what they were.
pub(super) type Note = (Below, Vec<(u32, u32)>, Print);

impl Record {
    pub(super) fn new(segment: u64, incarnation: u64, below: Below) -> Record {
        Record { segment, incarnation, below, taken: Vec::new(), print: Print::default(), remover: None }
    }

    /// Notes that an item of this content was taken.
    pub(super) fn take(&mut self, ordinal: u32, content: &Content) {
        add(&mut self.taken, (ordinal, ordinal.saturating_add(1)));
        self.incarnation = content.incarnation;
        self.print = content.chain.print(self.end());
        // Whoever is about to remove it knows of fewer items.
        self.remover = None;
    }

    /// `None`: this content holds all that was taken. Else it is an older one, which others may have pushed to since: so many of the first items
    /// are for certain the ones that were there.
    pub(super) fn kept(&self, content: &Content) -> Option<u32> {
        content.chain.kept(&self.print, self.end())
    }

    /// Forgets that items from this one on were taken.
    pub(super) fn cut(&mut self, kept: u32, content: &Content) {
        cut(&mut self.taken, kept);
        self.print = content.chain.print(self.end());
        self.remover = None;
    }

    /// The first item that was not taken, if there is one among `count`.
    pub(super) fn first_free(&self, count: u32) -> Option<u32> {
        let free = match self.taken.first() {
            Some(&(0, end)) => end,
            _ => 0,
        };
        (free < count).then_some(free)
    }

    /// The last item that was not taken, among `count`.
    pub(super) fn last_free(&self, count: u32) -> Option<u32> {
        let last = count.checked_sub(1)?;
        match self.taken.iter().rev().find(|range| range.0 <= last) {
            Some(&(start, end)) if end > last => start.checked_sub(1),
            _ => Some(last),
        }
    }

    /// How many items there were at least: one past the last that was taken.
    pub(super) fn end(&self) -> u32 {
        self.taken.last().map_or(0, |range| range.1)
    }

    /// How many were taken.
    pub(super) fn count(&self) -> u32 {
        self.taken.iter().map(|range| range.1 - range.0).sum()
    }

    /// True if the first so many were taken, none is left between them, and there is one at least.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.taken[..], [(0, _)])
    }
}

/// Takes what begins at `end` or lies behind it out of the ranges.
fn cut(ranges: &mut Vec<(u32, u32)>, end: u32) {
    ranges.retain(|range| range.0 < end);
    if let Some(last) = ranges.last_mut() {
        last.1 = last.1.min(end);
    }
}

/// Joins a range with others.
pub(super) fn add(ranges: &mut Vec<(u32, u32)>, new: (u32, u32)) {
    let from = ranges.partition_point(|range| range.1 < new.0);
    let to = ranges.partition_point(|range| range.0 <= new.1);
    let joined = ranges[from..to].iter().fold(new, |all, range| (all.0.min(range.0), all.1.max(range.1)));
    ranges.splice(from..to, [joined]);
}

fn mismatch(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::LayoutMismatch, what)
}

impl State {
    /// Of a queue or stack that was just made: an empty segment 0.
    pub(super) fn first(incarnation: u64) -> State {
        let records = vec![Record::new(0, incarnation, Below::default())];
        State { incarnation, live: 1, records, ..State::default() }
    }

    /// Losses that no consumer is known to have heard of.
    pub(super) fn untold(&self) -> u64 {
        self.found.saturating_sub(self.told)
    }

    /// The last write of a writer that is remembered.
    pub(super) fn last_of(&self, writer: u64) -> Option<u64> {
        self.marks.iter().find(|mark| mark.writer == writer).map(|mark| mark.seq)
    }

    /// Notes a write: the next sequence, and whose it is.
    pub(super) fn mark(&mut self, mark: Mark) {
        self.seq += 1;
        self.marks.retain(|other| other.writer != mark.writer);
        self.marks.insert(0, mark);
        self.marks.truncate(MARKS_MAX);
    }

    /// The record that a queue goes on with.
    pub(super) fn next_record(&self, segment: u64) -> Record {
        Record::new(segment, self.incarnation_of(segment).unwrap_or(0), Below::default())
    }

    /// The incarnation of a segment, if the state tells it. Where it does not, a link does.
    pub(super) fn incarnation_of(&self, segment: u64) -> Option<u64> {
        if segment == self.tail {
            return Some(self.incarnation);
        }
        let at = self.record_at(segment)?;
        Some(self.records[at].incarnation).filter(|&incarnation| incarnation != 0)
    }

    pub(super) fn record_at(&self, segment: u64) -> Option<usize> {
        self.records.iter().position(|record| record.segment == segment)
    }

    pub(super) fn encode(&self, generation: u64) -> Bytes {
        let mut out = Vec::with_capacity(128 + 16 * (self.opens.len() + self.marks.len() + self.records.len()));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[0; 4]);
        layout::put_varint(&mut out, self.seq);
        layout::put_varint(&mut out, self.tail);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.push(u8::from(self.is_tail_lost));
        for number in [self.live, self.acked, self.lost_segments, self.lost_items, self.found, self.told] {
            layout::put_varint(&mut out, number);
        }
        layout::put_varint(&mut out, self.marks.len() as u64);
        for mark in &self.marks {
            out.extend_from_slice(&mark.writer.to_le_bytes());
            layout::put_varint(&mut out, mark.seq);
        }
        layout::put_varint(&mut out, self.records.len() as u64);
        for record in &self.records {
            layout::put_varint(&mut out, record.segment);
            out.extend_from_slice(&record.incarnation.to_le_bytes());
            put_note(&mut out, record.below, &record.taken, &record.print);
            put_remover(&mut out, record.remover);
        }
        layout::put_varint(&mut out, self.opens.len() as u64);
        for open in &self.opens {
            layout::put_varint(&mut out, open.segment);
            layout::put_varint(&mut out, u64::from(open.ordinal));
            out.extend_from_slice(&open.claim.to_le_bytes());
            layout::put_varint(&mut out, u64::from(open.attempts));
        }
        let check = layout::check(generation, &out[8..]).to_le_bytes();
        out[4..8].copy_from_slice(&check);
        Bytes::from(out)
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no state of this generation.
    pub(super) fn decode(bytes: &[u8], generation: u64) -> Result<State> {
        let Some((head, mut rest)) = bytes.split_at_checked(8).filter(|(head, _)| head[..4] == MAGIC) else {
            return Err(mismatch(format!("this is no state of a queue: {}", larder_core::text::Shown(bytes))));
        };
        if head[4..] != layout::check(generation, rest).to_le_bytes() {
            return Err(mismatch("the state does not match its check"));
        }
        let state = State::take(&mut rest).filter(|_| rest.is_empty());
        state.ok_or_else(|| mismatch("the state is malformed"))
    }

    fn take(rest: &mut &[u8]) -> Option<State> {
        let seq = layout::take_varint(rest)?;
        let tail = layout::take_varint(rest)?;
        let incarnation = layout::take_u64(rest)?;
        let (&lost, tail_of) = rest.split_first()?;
        *rest = tail_of;
        let mut totals = [0; 6];
        for total in &mut totals {
            *total = layout::take_varint(rest)?;
        }
        let [live, acked, lost_segments, lost_items, found, told] = totals;
        let mut marks = Vec::new();
        for _ in 0..layout::take_varint(rest)? {
            marks.push(Mark { writer: layout::take_u64(rest)?, seq: layout::take_varint(rest)? });
        }
        let mut records = Vec::new();
        for _ in 0..layout::take_varint(rest)? {
            let segment = layout::take_varint(rest)?;
            let incarnation = layout::take_u64(rest)?;
            let (below, taken, print) = take_note(rest)?;
            let remover = take_remover(rest)?;
            records.push(Record { segment, incarnation, below, taken, print, remover });
        }
        let mut opens = Vec::new();
        for _ in 0..layout::take_varint(rest)? {
            opens.push(Open {
                segment: layout::take_varint(rest)?,
                ordinal: take_small(rest)?,
                claim: layout::take_u64(rest)?,
                attempts: take_small(rest)?,
            });
        }
        let is_tail_lost = lost != 0;
        let totals = State { live, acked, lost_segments, lost_items, found, told, ..State::default() };
        Some(State { seq, tail, incarnation, is_tail_lost, marks, records, opens, ..totals })
    }
}

/// Puts the check of a state right.
#[cfg(feature = "fuzzing")]
pub(super) fn seal_state(bytes: &mut [u8], generation: u64) {
    if let Some((head, rest)) = bytes.split_at_mut_checked(8) {
        head[4..].copy_from_slice(&layout::check(generation, rest).to_le_bytes());
    }
}

fn take_small(rest: &mut &[u8]) -> Option<u32> {
    u32::try_from(layout::take_varint(rest)?).ok()
}

fn put_note(out: &mut Vec<u8>, below: Below, taken: &[(u32, u32)], print: &Print) {
    let shown = below.segment.map_or(0, |segment| segment.saturating_add(1));
    layout::put_varint(out, shown << 1 | u64::from(below.is_guess));
    layout::put_varint(out, taken.len() as u64);
    let mut end = 0;
    for range in taken {
        layout::put_varint(out, u64::from(range.0 - end));
        layout::put_varint(out, u64::from(range.1 - range.0));
        end = range.1;
    }
    print.put(out);
}

fn take_note(rest: &mut &[u8]) -> Option<Note> {
    let shown = layout::take_varint(rest)?;
    let below = Below { segment: (shown >> 1).checked_sub(1), is_guess: shown & 1 == 1 };
    let mut taken = Vec::new();
    let mut end = 0u32;
    for at in 0..layout::take_varint(rest)? {
        let gap = take_small(rest)?;
        let length = take_small(rest)?;
        // Ranges that touch would be one.
        if length == 0 || (gap == 0 && at > 0) {
            return None;
        }
        let start = end.checked_add(gap)?;
        end = start.checked_add(length)?;
        taken.push((start, end));
    }
    Some((below, taken, Print::take(rest)?))
}

fn put_remover(out: &mut Vec<u8>, remover: Option<Remover>) {
    let Some(Remover { writer, seq, is_second }) = remover else { return out.push(0) };
    out.push(1 + u8::from(is_second));
    out.extend_from_slice(&writer.to_le_bytes());
    layout::put_varint(out, seq);
}

#[expect(clippy::option_option, reason = "malformed, none, or one")]
fn take_remover(rest: &mut &[u8]) -> Option<Option<Remover>> {
    let (&which, tail) = rest.split_first()?;
    *rest = tail;
    match which {
        0 => Some(None),
        1 | 2 => {
            let writer = layout::take_u64(rest)?;
            Some(Some(Remover { writer, seq: layout::take_varint(rest)?, is_second: which == 2 }))
        }
        _ => None,
    }
}

/// A link: which incarnation the segment of this number has.
pub(super) fn link(generation: u64, number: u64, incarnation: u64) -> Bytes {
    let check = link_check(generation, number, incarnation);
    [&check[..], &incarnation.to_le_bytes()].concat().into()
}

fn link_check(generation: u64, number: u64, incarnation: u64) -> [u8; 4] {
    layout::check(generation, &[number.to_le_bytes(), incarnation.to_le_bytes()].concat()).to_le_bytes()
}

/// The incarnation that a link tells.
///
/// # Errors
/// [`ErrorKind::LayoutMismatch`] for bytes that are no link of this segment.
pub(super) fn linked(bytes: &[u8], generation: u64, number: u64) -> Result<u64> {
    let told = bytes.split_first_chunk::<4>().and_then(|(check, rest)| {
        let incarnation = u64::from_le_bytes(rest.try_into().ok()?);
        (*check == link_check(generation, number, incarnation)).then_some(incarnation)
    });
    told.ok_or_else(|| mismatch(format!("the link of segment {number} is none: {}", larder_core::text::Shown(bytes))))
}

/// The incarnation of a segment, from its header.
pub(super) fn incarnation(bytes: &[u8]) -> Result<u64> {
    let incarnation = bytes.get(4..).and_then(|mut rest| layout::take_u64(&mut rest));
    incarnation.ok_or_else(|| mismatch("the segment is cut short"))
}

/// Which segment this is.
pub(super) fn place(number: u64, incarnation: u64) -> Place {
    // The low half is meant: the key tells the rest.
    Place { generation: incarnation, shard: number as u16 }
}

/// A new segment: empty but for its note. Only a stack's first lies on nothing; a queue's has no note.
pub(super) fn segment(number: u64, incarnation: u64, note: Option<Bytes>) -> Bytes {
    let empty = layout::empty(place(number, incarnation));
    match note {
        Some(note) => [empty, note].concat().into(),
        None => empty,
    }
}

/// A frame that notes what was taken of a segment, and where to go on below it, by the state of this sequence. Each has a writer of its own: none is a repeat.
pub(super) fn note_frame(record: &Record, writer: u64, seq: u64) -> Bytes {
    let mut note = Vec::new();
    put_note(&mut note, record.below, &record.taken, &record.print);
    let mut elements = Vec::with_capacity(note.len() + 3);
    layout::put_element(&mut elements, Action::Remove, &note);
    layout::frame(place(record.segment, record.incarnation), writer, seq, &elements)
}

/// A segment as it was read.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) incarnation: u64,
    pub(super) items: Vec<Bytes>,
    /// Where it says a stack goes on below it; `None` where it says nothing.
    pub(super) below: Option<Below>,
    /// What the segment itself says was taken, as far as it is there.
    pub(super) taken: Vec<(u32, u32)>,
    /// Set where its last note has more as taken than is there: the segment was set back before that note, and so many of its first items are for certain the ones that
    /// were there.
    pub(super) kept: Option<u32>,
    /// Which items these are.
    pub(super) chain: Chain,
    pub(super) bytes: usize,
    pub(super) cas: Option<Cas>,
    /// The last sequence of a writer that was asked for.
    pub(super) last: u64,
}

/// What the frames of a segment come to.
#[derive(Default)]
struct Frames<'v> {
    incarnation: u64,
    items: Vec<&'v [u8]>,
    /// Each with the sequence of the state that it is of.
    notes: Vec<(u64, &'v [u8])>,
    chain: Chain,
    /// Writer and sequence of the frame.
    frame: (u64, u64),
    /// True until the frame has brought an item.
    is_new: bool,
}

impl<'v> Fold<'v> for Frames<'v> {
    fn expect(&mut self, elements: usize) {
        self.items.reserve(elements);
    }

    fn frame(&mut self, writer: u64, seq: u64) {
        (self.frame, self.is_new) = ((writer, seq), true);
    }

    fn apply(&mut self, action: Action, element: &'v [u8]) {
        match action {
            Action::Put => {
                let (writer, seq) = self.frame;
                self.chain.add(self.incarnation, writer, seq, std::mem::take(&mut self.is_new));
                self.items.push(element);
            }
            Action::Remove => self.notes.push((self.frame.1, element)),
        }
    }
}

impl Content {
    /// Reads a segment; `writer` is the one whose last sequence is asked for.
    ///
    /// # Errors
    /// [`ErrorKind::LayoutMismatch`] for bytes that are no such segment.
    pub(super) fn parse(number: u64, item: &Item, writer: u64) -> Result<Content> {
        let bytes = &item.value;
        let incarnation = incarnation(bytes)?;
        let value = Value::parse(bytes, place(number, incarnation))?;
        let folded = value.fold(Frames { incarnation, ..Frames::default() })?;
        let mut content = Content {
            incarnation,
            items: folded.state.items.iter().map(|item| bytes.slice_ref(item)).collect(),
            below: None,
            taken: Vec::new(),
            kept: None,
            bytes: bytes.len(),
            cas: item.cas,
            last: folded.last(writer),
            chain: folded.state.chain,
        };
        let mut last = 0;
        for (seq, mut note) in folded.state.notes {
            let whole = take_note(&mut note).filter(|_| note.is_empty());
            let kept = content.note(whole.ok_or_else(|| mismatch("a note of the segment is malformed"))?);
            // By the state's order: one that came late says nothing of what was found since, and a later one knows what an earlier one missed.
            if seq >= last {
                let before = content.kept.filter(|_| seq == last);
                (last, content.kept) = (seq, before.into_iter().chain(kept).min());
            }
        }
        if let Some(kept) = content.kept {
            cut(&mut content.taken, kept);
        }
        Ok(content)
    }

    /// Joins a note: both what was taken and how far below it goes on only ever grow, so their order does not matter. Of what it has as taken, so many items are
    /// there for certain; `None`: all.
    fn note(&mut self, (below, mut taken, print): Note) -> Option<u32> {
        let depth = |below: &Below| (below.segment.map_or(0, |segment| segment + 1), !below.is_guess);
        if self.below.is_none_or(|known| depth(&below) < depth(&known)) {
            self.below = Some(below);
        }
        let kept = self.chain.kept(&print, taken.last().map_or(0, |range| range.1));
        if let Some(kept) = kept {
            cut(&mut taken, kept);
        }
        for range in taken {
            add(&mut self.taken, range);
        }
        kept
    }

    /// True if the segment itself says so of the item; of a queue's, which says nothing, always.
    pub(super) fn has_taken(&self, ordinal: u32) -> bool {
        self.below.is_none() || self.taken.iter().any(|range| (range.0..range.1).contains(&ordinal))
    }

    /// The record that a stack goes on with when it comes down to the segment.
    pub(super) fn record(&self, segment: u64) -> Record {
        let Content { incarnation, below, taken, chain, .. } = self;
        let print = chain.print(taken.last().map_or(0, |range| range.1));
        let below = below.unwrap_or_default();
        Record { segment, incarnation: *incarnation, below, taken: taken.clone(), print, remover: None }
    }

    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.items.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
