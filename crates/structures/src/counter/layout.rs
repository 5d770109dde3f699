//! The bytes of a slot of the exact counter.
//!
//! Numbers are little-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 1 | the version of this layout, 1 |
//! | 1 | 16 | sum, signed |
//! | 17 | 8 | sequence: how often the slot was written, over all writers |
//! | 25 | 8 | owner; 0 for a slot that was given back or never taken |
//! | 33 | 8 | beat: milliseconds since the Unix epoch at the last add, by the writer's clock |
//! | 41 | 1 | how many marks follow, at most [`MARKS_MAX`] |
//! | 42 | 16 each | marks, the newest last: a writer and the number of its last op here |
//!
//! The marks are what makes an unknown outcome known: a writer whose reply was lost finds its mark, or finds it missing, even
//! where others have written the slot since.

use bytes::{BufMut, Bytes, BytesMut};
use larder_core::{Error, ErrorKind, Result};

/// The version of the layout of an exact counter, in its manifest and in each slot.
pub(crate) const LAYOUT: u8 = 1;
/// How many writers a slot remembers.
pub(super) const MARKS_MAX: usize = 8;
/// The owner of a slot that nobody has.
pub(super) const NOBODY: u64 = 0;

const HEADER_BYTES: usize = 42;
const MARK_BYTES: usize = 16;

/// A writer's op: who, and which of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Mark {
    pub(super) writer: u64,
    pub(super) op: u64,
}

/// What a slot holds.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Slot {
    pub(super) sum: i128,
    pub(super) seq: u64,
    pub(super) owner: u64,
    pub(super) beat_ms: u64,
    marks: Marks,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
struct Marks {
    used: usize,
    all: [Mark; MARKS_MAX],
}

/// What a slot tells of an op that was sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It landed.
    Landed,
    /// It has not, but may yet: the slot is as it was when the op was sent.
    Open,
    /// It has not and never will: the slot has moved on.
    Never,
    /// More writers came since than a slot remembers.
    Forgotten,
}

impl Slot {
    /// The slot after `mark` added `delta`; its writer owns the slot from then on.
    pub(super) fn added(&self, mark: Mark, delta: i128, beat_ms: u64) -> Result<Slot> {
        let sum = self.sum.checked_add(delta).ok_or_else(|| {
            Error::new(
                ErrorKind::Overflow,
                format!("{} and {delta} leave the 128 bits of a slot; nothing is added", self.sum),
            )
        })?;
        let mut next = Slot { sum, owner: mark.writer, beat_ms, ..self.moved_on()? };
        next.marks.push(mark);
        Ok(next)
    }

    /// The slot after `mark` took its sum away; it keeps its owner.
    pub(super) fn emptied(&self, mark: Mark) -> Result<Slot> {
        let mut next = Slot { sum: 0, ..self.moved_on()? };
        next.marks.push(mark);
        Ok(next)
    }

    /// The slot after its owner gave it back.
    pub(super) fn released(&self) -> Result<Slot> {
        Ok(Slot { owner: NOBODY, ..self.moved_on()? })
    }

    fn moved_on(&self) -> Result<Slot> {
        let seq = self
            .seq
            .checked_add(1)
            .ok_or_else(|| Error::new(ErrorKind::Overflow, "a slot's sequence is at its end"))?;
        Ok(Slot { seq, ..self.clone() })
    }

    /// What became of an op that was sent when the slot was at `base_seq`. Ops of one writer are numbered upwards.
    pub(super) fn fate(&self, mark: Mark, base_seq: u64) -> Fate {
        match self.marks.op_of(mark.writer) {
            Some(op) if op >= mark.op => Fate::Landed,
            _ if self.seq <= base_seq => Fate::Open,
            // Its mark of before is still its newest, or no new one can have been pushed out.
            Some(_) => Fate::Never,
            None if self.marks.used < MARKS_MAX || self.seq - base_seq <= MARKS_MAX as u64 => Fate::Never,
            None => Fate::Forgotten,
        }
    }

    /// The bytes that are stored.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.marks.used * MARK_BYTES);
        self.encode_into(&mut out);
        out.freeze()
    }

    /// Appends the bytes that are stored.
    pub(super) fn encode_into(&self, out: &mut BytesMut) {
        out.put_u8(LAYOUT);
        out.put_i128_le(self.sum);
        out.put_u64_le(self.seq);
        out.put_u64_le(self.owner);
        out.put_u64_le(self.beat_ms);
        let marks = self.marks.as_slice();
        // At most MARKS_MAX.
        out.put_u8(marks.len() as u8);
        for mark in marks {
            out.put_u64_le(mark.writer);
            out.put_u64_le(mark.op);
        }
    }

    /// Reads stored bytes; `None` if they are no slot.
    pub(super) fn decode(bytes: &[u8]) -> Option<Slot> {
        let (&version, rest) = bytes.split_first()?;
        let (sum, rest) = rest.split_first_chunk()?;
        let (seq, rest) = rest.split_first_chunk()?;
        let (owner, rest) = rest.split_first_chunk()?;
        let (beat_ms, rest) = rest.split_first_chunk()?;
        let (&used, rest) = rest.split_first()?;
        let used = usize::from(used);
        if version != LAYOUT || used > MARKS_MAX || rest.len() != used * MARK_BYTES {
            return None;
        }
        let mut marks = Marks { used, ..Marks::default() };
        for (mark, bytes) in marks.all.iter_mut().zip(rest.chunks_exact(MARK_BYTES)) {
            let (writer, op) = bytes.split_first_chunk()?;
            *mark = Mark { writer: u64::from_le_bytes(*writer), op: u64::from_le_bytes(*op.first_chunk()?) };
        }
        Some(Slot {
            sum: i128::from_le_bytes(*sum),
            seq: u64::from_le_bytes(*seq),
            owner: u64::from_le_bytes(*owner),
            beat_ms: u64::from_le_bytes(*beat_ms),
            marks,
        })
    }
}

impl Marks {
    fn as_slice(&self) -> &[Mark] {
        &self.all[..self.used]
    }

    fn op_of(&self, writer: u64) -> Option<u64> {
        self.as_slice().iter().find(|mark| mark.writer == writer).map(|mark| mark.op)
    }

    /// Makes `mark` the newest; the writer's older one goes, else the oldest of all where there is no room.
    fn push(&mut self, mark: Mark) {
        let at = match self.as_slice().iter().position(|old| old.writer == mark.writer) {
            Some(at) => at,
            None if self.used < MARKS_MAX => {
                self.used += 1;
                self.used - 1
            }
            None => 0,
        };
        self.all[at..self.used].rotate_left(1);
        self.all[self.used - 1] = mark;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mark(writer: u64, op: u64) -> Mark {
        Mark { writer, op }
    }

    #[test]
    fn golden_bytes() {
        let empty = Slot::default().encode();
        assert_eq!(&empty[..], [&[1][..], &[0; 41]].concat());
        let slot = Slot { sum: -2, seq: 0x0102, ..Slot::default() };
        let slot = slot.added(mark(0x1122_3344_5566_7788, 3), 1, 0x0102_0304).unwrap();
        let mut golden = b"\x01".to_vec();
        golden.extend([0xff; 16]);
        golden.extend(b"\x03\x01\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11\x04\x03\x02\x01\0\0\0\0\x01");
        golden.extend(b"\x88\x77\x66\x55\x44\x33\x22\x11\x03\0\0\0\0\0\0\0");
        assert_eq!(slot.encode(), golden);
    }

    #[test]
    fn a_slot_of_another_layout_or_length_is_none() {
        let slot = Slot::default().added(mark(7, 1), 1, 0).unwrap().encode();
        assert!(Slot::decode(&slot).is_some());
        let newer = [&[LAYOUT + 1], &slot[1..]].concat();
        let longer = [&slot[..], &[0; MARK_BYTES]].concat();
        for bytes in [&newer[..], &longer, &slot[..slot.len() - 1], &[]] {
            assert_eq!(Slot::decode(bytes), None);
        }
    }

    #[test]
    fn a_sum_that_would_overflow_is_refused() {
        let slot = Slot { sum: i128::MAX - 1, ..Slot::default() };
        let slot = slot.added(mark(1, 1), 1, 0).unwrap();
        assert_eq!(slot.added(mark(1, 2), 1, 0).unwrap_err().kind(), ErrorKind::Overflow);
        let last = Slot { seq: u64::MAX, ..Slot::default() };
        assert_eq!(last.added(mark(1, 2), 1, 0).unwrap_err().kind(), ErrorKind::Overflow);
    }

    #[test]
    fn a_slot_tells_the_fate_of_an_op() {
        let base = Slot { seq: 10, ..Slot::default() };
        assert_eq!(base.fate(mark(7, 1), 10), Fate::Open);
        let mut slot = base.added(mark(7, 1), 1, 0).unwrap();
        assert_eq!(slot.fate(mark(7, 1), 10), Fate::Landed);
        assert_eq!(slot.fate(mark(7, 2), 11), Fate::Open);
        assert_eq!(slot.fate(mark(7, 2), 10), Fate::Never);
        assert_eq!(slot.fate(mark(8, 1), 10), Fate::Never);
        for writer in 100..108 {
            assert_eq!(slot.fate(mark(7, 1), 10), Fate::Landed, "before {writer}");
            slot = slot.added(mark(writer, 1), 1, 0).unwrap();
        }
        assert_eq!(slot.fate(mark(7, 1), 10), Fate::Forgotten);
        assert_eq!(slot.released().unwrap().fate(mark(107, 1), 18), Fate::Landed);
        assert_eq!(slot.emptied(mark(5, 1)).unwrap().fate(mark(107, 1), 18), Fate::Landed);
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(sum: i128, seq: u64, owner: u64, beat_ms: u64, marks in prop::collection::vec((0u64..12, any::<u64>()), 0..20)) {
            let mut slot = Slot { sum, seq, owner, beat_ms, marks: Marks::default() };
            for (writer, op) in marks {
                slot.marks.push(mark(writer, op));
            }
            prop_assert_eq!(Slot::decode(&slot.encode()), Some(slot));
        }

        #[test]
        fn garbage_is_refused_without_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0u8..3) {
            if let Some(byte) = bytes.first_mut() {
                *byte = first;
            }
            if let Some(slot) = Slot::decode(&bytes) {
                prop_assert_eq!(slot.encode(), bytes);
            }
        }

        /// Against a model that forgets nothing: a slot never tells a wrong fate.
        #[test]
        fn a_fate_is_never_wrong(writers in prop::collection::vec(1u64..12, 1..40), asked in 1u64..12, base in 0usize..40) {
            let mut slot = Slot::default();
            let mut ops = std::collections::HashMap::new();
            for &writer in &writers {
                let op = ops.entry(writer).and_modify(|op| *op += 1).or_insert(1u64);
                slot = slot.added(mark(writer, *op), 1, 0).unwrap();
            }
            // The asked writer sent its next op when the slot was at `base`.
            let base = base.min(writers.len());
            let before = writers[..base].iter().filter(|&&writer| writer == asked).count() as u64;
            let landed = writers[base..].contains(&asked);
            match slot.fate(mark(asked, before + 1), base as u64) {
                Fate::Landed => prop_assert!(landed),
                Fate::Open => prop_assert!(base == writers.len()),
                Fate::Never => prop_assert!(!landed && base < writers.len()),
                Fate::Forgotten => prop_assert!(writers.len() - base > MARKS_MAX),
            }
        }
    }

    #[test]
    fn a_slot_that_is_emptied_or_given_back_keeps_the_rest() {
        let mark = |writer, op| Mark { writer, op };
        let slot = Slot::default().added(mark(7, 1), 5, 99).unwrap();
        assert_eq!((slot.sum, slot.owner, slot.beat_ms), (5, 7, 99));
        let emptied = slot.emptied(mark(8, 1)).unwrap();
        assert_eq!((emptied.sum, emptied.owner, emptied.seq), (0, 7, slot.seq + 1));
        let released = slot.released().unwrap();
        assert_eq!((released.sum, released.owner, released.seq), (5, NOBODY, slot.seq + 1));
    }

    #[test]
    fn a_writer_is_forgotten_only_where_its_mark_may_have_been_pushed_out() {
        let mark = |writer, op| Mark { writer, op };
        let mut slot = Slot::default();
        for writer in 1..MARKS_MAX as u64 {
            slot = slot.added(mark(writer, 1), 1, 0).unwrap();
        }
        assert_eq!(slot.fate(mark(999, 1), 0), Fate::Never, "there is room for its mark");
        for writer in 100..=100 + MARKS_MAX as u64 {
            slot = slot.added(mark(writer, 1), 1, 0).unwrap();
        }
        let since = |writes: u64| slot.fate(mark(999, 1), slot.seq - writes);
        assert_eq!(since(0), Fate::Open);
        assert_eq!(
            [since(1), since(MARKS_MAX as u64), since(MARKS_MAX as u64 + 1)],
            [Fate::Never, Fate::Never, Fate::Forgotten]
        );
    }

    #[test]
    fn a_slot_with_room_for_marks_has_forgotten_nobody() {
        let mut slot = Slot::default();
        for op in 1..=2 * MARKS_MAX as u64 {
            slot = slot.added(Mark { writer: 7, op }, 1, 0).unwrap();
        }
        assert_eq!(slot.fate(Mark { writer: 8, op: 1 }, 0), Fate::Never);
    }
}
