use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::append::writers::{WRITER_RECENT_S, WRITERS_IDLE_MAX};

const PLACE: Place = Place { generation: 0x1122_3344_5566_7788, shard: 3 };
const WRITER: u64 = 0x0102_0304_0506_0708;

fn elements(ops: &[(Action, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (action, element) in ops {
        put_element(&mut out, *action, element);
    }
    out
}

fn put(writer: u64, seq: u64, element: &[u8]) -> Bytes {
    frame(PLACE, writer, seq, &elements(&[(Action::Put, element)]))
}

fn remove(writer: u64, seq: u64, element: &[u8]) -> Bytes {
    frame(PLACE, writer, seq, &elements(&[(Action::Remove, element)]))
}

fn value(frames: &[Bytes]) -> Vec<u8> {
    let mut out = empty(PLACE).to_vec();
    for frame in frames {
        out.extend_from_slice(frame);
    }
    out
}

fn members(bytes: &[u8]) -> Vec<Vec<u8>> {
    let folded = Value::parse(bytes, PLACE).unwrap().fold(Distinct::default()).unwrap();
    let mut members: Vec<Vec<u8>> = folded.state.0.iter().map(|member| member.to_vec()).collect();
    members.sort();
    members
}

fn compact(bytes: &[u8], now_s: u32) -> Bytes {
    let value = Value::parse(bytes, PLACE).unwrap();
    let folded = value.fold(Distinct::default()).unwrap();
    let compacted = folded.compacted(PLACE, value.epoch, now_s);
    assert_eq!(compacted.len(), folded.live_bytes(now_s));
    compacted
}

#[test]
fn golden_bytes() {
    let empty = empty(PLACE);
    assert_eq!(
        &empty[..],
        b"LRA\x01\x88\x77\x66\x55\x44\x33\x22\x11\x03\x00\x00\x00\x00\x00\x01\x00\x00\x00\x92\x42\x67\x36\x00"
    );
    let frame = frame(PLACE, WRITER, 200, &elements(&[(Action::Put, b"ab"), (Action::Remove, b"c")]));
    assert_eq!(&frame[..], b"\x0f\x05\x3c\x56\x29\x08\x07\x06\x05\x04\x03\x02\x01\xc8\x01\x04ab\x03c");
    let compacted = compact(&[&empty[..], &frame].concat(), 0x6000_0001);
    assert_eq!(
        &compacted[..],
        b"LRA\x01\x88\x77\x66\x55\x44\x33\x22\x11\x03\x00\x01\x00\x00\x00\x12\x00\x00\x00\xdb\xed\x2b\x84\
          \x01\x08\x07\x06\x05\x04\x03\x02\x01\xc8\x01\x01\x00\x00\x60\x02ab"
    );
}

#[test]
fn operations_count_in_order() {
    let bytes = value(&[put(1, 1, b"a"), put(2, 1, b"b"), remove(1, 2, b"b"), remove(1, 3, b"a"), put(1, 4, b"a")]);
    assert_eq!(members(&bytes), [b"a"]);
}

#[test]
fn a_retried_add_after_anothers_remove_does_not_bring_it_back() {
    let add = put(1, 1, b"a");
    let bytes = value(&[add.clone(), remove(2, 1, b"a"), add.clone()]);
    assert!(members(&bytes).is_empty());
    // Not after a compaction either.
    let mut compacted = compact(&value(&[add.clone(), remove(2, 1, b"a")]), 1_000).to_vec();
    compacted.extend_from_slice(&add);
    assert!(members(&compacted).is_empty());
}

#[test]
fn a_late_write_after_a_newer_one_of_its_writer_never_counts() {
    assert_eq!(members(&value(&[put(1, 2, b"new"), put(1, 1, b"late")])), [b"new"]);
}

#[test]
fn the_empty_element_and_long_ones_are_elements() {
    let long = vec![0xff; 100_000];
    let bytes = value(&[put(1, 1, b""), put(1, 2, &long)]);
    assert_eq!(members(&bytes), [&b""[..], &long]);
    assert_eq!(members(&compact(&bytes, 0)), [&b""[..], &long]);
}

#[test]
fn the_overhead_is_as_documented() {
    let one = |seq, length: usize| put(WRITER, seq, &vec![0; length]).len() - length;
    assert_eq!(one(1, 16), 14 + 1);
    assert_eq!(one(127, 63), 14 + 1);
    assert_eq!(one(128, 16), 15 + 1);
    assert_eq!(one(16_383, 64), 15 + 2);
    assert_eq!(one(16_383, 128), 16 + 2);
    assert_eq!(one(16_384, 128), 17 + 2);
    let after = |count: u16, length: usize| {
        let members: Vec<Vec<u8>> =
            (0..count).map(|number| [&number.to_le_bytes()[..], &vec![7; length - 2]].concat()).collect();
        let ops: Vec<(Action, &[u8])> = members.iter().map(|member| (Action::Put, &member[..])).collect();
        let bytes = value(&[frame(PLACE, WRITER, 1, &elements(&ops))]);
        compact(&bytes, 0).len() - usize::from(count) * length - (HEADER_BYTES + 1) - 13
    };
    assert_eq!(after(1_000, 16), 1_000);
    assert_eq!(after(1_000, 127), 1_000);
    assert_eq!(after(10, 128), 20);
}

#[test]
fn foreign_torn_and_misplaced_bytes_are_a_mismatch() {
    let good = value(&[put(1, 1, b"a"), put(1, 2, b"b")]);
    assert_eq!(members(&good).len(), 2);
    let is_mismatch = |bytes: &[u8], place: Place| {
        let folded = Value::parse(bytes, place).and_then(|value| value.fold(Distinct::default()).map(drop));
        folded.is_err_and(|error| error.kind() == ErrorKind::LayoutMismatch)
    };
    let first_end = good.len() - put(1, 2, b"b").len();
    let empty_end = empty(PLACE).len();
    for cut in 0..good.len() {
        // A value may end between frames, and nowhere else.
        let is_whole = cut == empty_end || cut == first_end;
        assert_eq!(is_mismatch(&good[..cut], PLACE), !is_whole, "{cut}");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        assert!(is_mismatch(&bad, PLACE), "{at}");
    }
    for tail in [&b"+a "[..], b"0", b"\0", b"\0\0\0\0\0", &[0xff; 20]] {
        assert!(is_mismatch(&[&good[..], tail].concat(), PLACE), "{tail:?}");
    }
    assert!(is_mismatch(&good, Place { shard: 4, ..PLACE }));
    assert!(is_mismatch(&good, Place { generation: 1, ..PLACE }));
    let strange = frame(Place { shard: 4, ..PLACE }, 1, 3, &elements(&[(Action::Put, b"c")]));
    assert!(is_mismatch(&[&good[..], &strange].concat(), PLACE));
}

#[test]
fn the_last_128_writers_are_kept_and_of_the_idle_ones_16() {
    let frames: Vec<Bytes> = (1..=200u64).map(|writer| put(writer, 1, b"a")).collect();
    let busy = compact(&value(&frames), 10_000);
    let kept_of = |bytes: &[u8]| {
        let folded = Value::parse(bytes, PLACE).unwrap().fold(()).unwrap();
        let mut writers: Vec<u64> = folded.writers.iter().map(|(writer, _)| writer).collect();
        writers.sort_unstable();
        writers
    };
    assert_eq!(kept_of(&busy), (73..=200).collect::<Vec<u64>>());
    let still_recent = compact(&busy, 10_000 + WRITER_RECENT_S);
    assert_eq!(kept_of(&still_recent).len(), WRITERS_MAX);
    // 201 writes much later: of the others, the newest make up 16.
    let later = compact(&[&busy[..], &put(201, 1, b"b")].concat(), 10_001 + WRITER_RECENT_S);
    assert_eq!(kept_of(&later).len(), WRITERS_IDLE_MAX);
    assert!(kept_of(&later).contains(&201));
}

#[test]
fn a_log_is_told_by_the_header_alone() {
    assert!(!has_log(&empty(PLACE)));
    let logged = value(&[put(1, 1, b"a")]);
    assert!(has_log(&logged));
    let compacted = compact(&logged, 0);
    assert!(!has_log(&compacted));
    assert!(has_log(&[&compacted[..], &put(1, 2, b"b")].concat()));
    // What is no whole value is left to `parse`, which refuses it; it must not be taken for one without repeats.
    assert!((0..compacted.len()).all(|cut| has_log(&compacted[..cut])));
}

#[test]
fn an_epoch_is_counted_up_by_compaction() {
    let once = compact(&value(&[put(1, 1, b"a")]), 0);
    let twice = compact(&once, 0);
    assert_eq!(Value::parse(&once, PLACE).unwrap().epoch, 1);
    assert_eq!(Value::parse(&twice, PLACE).unwrap().epoch, 2);
}

#[test]
fn the_reserve_holds_what_it_must() {
    let frames: Vec<Bytes> =
        (0..WRITERS_MAX as u64).map(|writer| frame(PLACE, u64::MAX - writer, u64::MAX, b"")).collect();
    assert!(compact(&value(&frames), 0).len() + FRAME_BYTES_MAX <= RESERVED_BYTES);
    // Of its numbers the length alone is not the largest there is.
    let large = frame(PLACE, u64::MAX, u64::MAX, &[0; 1 << 21]);
    assert_eq!(large.len() - (1 << 21), FRAME_BYTES_MAX - VARINT_BYTES_MAX + varint_bytes(1 << 21));
}

#[test]
fn varints_have_golden_bytes_and_refuse_what_overflows() {
    for (number, bytes) in
        [(0, &b"\0"[..]), (127, b"\x7f"), (128, b"\x80\x01"), (u64::MAX, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")]
    {
        let mut out = Vec::new();
        put_varint(&mut out, number);
        assert_eq!(out, bytes);
        assert_eq!(varint_bytes(number), bytes.len());
        assert_eq!(take_varint(&mut &out[..]), Some(number));
    }
    for bad in
        [&b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"[..], b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x80"]
    {
        assert_eq!(take_varint(&mut &bad[..]), None);
    }
}

#[test]
fn a_value_of_one_frame_is_told_from_one_that_was_written_again() {
    let only = |bytes: &[u8]| Value::parse(bytes, PLACE).unwrap().only_frame().map(|frame| (frame.writer, frame.seq));
    let once = value(&[put(WRITER, 7, b"a")]);
    assert_eq!(only(&once), Some((WRITER, 7)));
    assert_eq!(only(&empty(PLACE)), None);
    assert_eq!(only(&value(&[put(WRITER, 0, b"a")])), None, "a sequence that nobody gives");
    assert_eq!(only(&value(&[put(WRITER, 7, b"a"), put(WRITER, 8, b"b")])), None);
    assert_eq!(only(&[&compact(&once, 5)[..], &put(WRITER, 8, b"b")].concat()), None, "compacted since");
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), keep in 0usize..80) {
        let good = value(&[put(1, 1, b"a"), remove(2, 1, b"b"), put(1, 2, b"cc")]);
        let mut mixed = good[..keep.min(good.len())].to_vec();
        mixed.extend_from_slice(&bytes);
        for candidate in [&bytes, &mixed] {
            if let Ok(value) = Value::parse(candidate, PLACE) {
                _ = value.fold(Distinct::default());
            }
        }
    }

    /// Frames with a check that passes, but with a body of anything.
    #[test]
    fn a_strange_body_never_panics(body in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut bytes = empty(PLACE).to_vec();
        put_varint(&mut bytes, body.len() as u64);
        bytes.extend_from_slice(&check(frame_seed(PLACE), &body).to_le_bytes());
        bytes.extend_from_slice(&body);
        _ = Value::parse(&bytes, PLACE).unwrap().fold(Distinct::default());
        let snapshot = finish(PLACE, 7, &body);
        _ = Value::parse(&snapshot, PLACE).unwrap().fold(Distinct::default());
    }

    /// Any mix of writers, repeats and compactions folds to what a plain set holds.
    #[test]
    fn a_model_agrees(ops in proptest::collection::vec((0u64..3, any::<bool>(), 0u8..6, 0u8..10), 0..60)) {
        let mut model: HashSet<Vec<u8>> = HashSet::new();
        let mut bytes = empty(PLACE).to_vec();
        let mut seqs = [0u64; 3];
        let mut sent: Vec<Bytes> = Vec::new();
        for (writer, is_put, member, dice) in ops {
            match dice {
                0 => bytes = compact(&bytes, 5).to_vec(),
                1 if !sent.is_empty() => bytes.extend_from_slice(&sent[usize::from(member) % sent.len()]),
                _ => {
                    let seq = &mut seqs[writer as usize];
                    *seq += 1 + u64::from(dice == 2);
                    let member = vec![member; usize::from(member)];
                    let next = if is_put { put(writer, *seq, &member) } else { remove(writer, *seq, &member) };
                    bytes.extend_from_slice(&next);
                    sent.push(next);
                    if is_put { model.insert(member) } else { model.remove(&member) };
                }
            }
        }
        let mut expected: Vec<Vec<u8>> = model.into_iter().collect();
        expected.sort();
        prop_assert_eq!(members(&bytes), expected);
    }
}

/// Notes what it is told to make room for.
#[derive(Default)]
struct Room(Vec<usize>);

impl<'v> Fold<'v> for Room {
    fn expect(&mut self, elements: usize) {
        self.0.push(elements);
    }

    fn apply(&mut self, _: Action, _: &'v [u8]) {}
}

#[test]
fn room_is_made_for_as_many_elements_as_come() {
    let room = |bytes: &[u8]| Value::parse(bytes, PLACE).unwrap().fold(Room::default()).unwrap().state.0;
    let long = [7; 100];
    let many: Vec<(Action, &[u8])> = (0..1_000).map(|_| (Action::Put, &long[..])).collect();
    let one_frame = value(&[frame(PLACE, WRITER, 1, &elements(&many))]);
    assert_eq!(room(&one_frame), [1, 1_000], "by the frames, and by the elements of a large one");
    let frames: Vec<Bytes> = (1..=1_000u64).map(|seq| put(WRITER, seq, &long)).collect();
    assert_eq!(room(&value(&frames)), [1_000]);
    let twice = [put(1, 1, b"a"), frame(PLACE, WRITER, 1, &elements(&many)), frame(PLACE, WRITER, 1, &elements(&many))];
    assert_eq!(room(&value(&twice)), [3, 1_000], "a repeat brings nothing");
    assert!(room(&value(&[put(1, 1, b"a")])).is_empty(), "for a few there is room");
    let different: Vec<Bytes> = (0..1_000u64).map(|at| put(WRITER, at + 1, &at.to_le_bytes())).collect();
    assert_eq!(room(&compact(&value(&different), 5)), [1_000], "by a snapshot");
}

#[test]
fn removals_and_writers_are_counted() {
    let bytes = value(&[put(1, 1, b"a"), remove(2, 1, b"a"), put(2, 2, b"b"), remove(2, 1, b"b"), remove(3, 1, b"x")]);
    let folded = Value::parse(&bytes, PLACE).unwrap().fold(Distinct::default()).unwrap();
    assert_eq!((folded.removals, folded.writers()), (2, 3));
    let none = value(&[]);
    let folded = Value::parse(&none, PLACE).unwrap().fold(Distinct::default()).unwrap();
    assert_eq!((folded.removals, folded.writers()), (0, 0));
}

#[test]
fn what_is_put_is_no_removal() {
    let bytes = value(&[put(1, 1, b"a"), put(1, 2, b"b"), put(1, 3, b"c"), remove(1, 4, b"a")]);
    assert_eq!(Value::parse(&bytes, PLACE).unwrap().fold(Distinct::default()).unwrap().removals, 1);
}

/// Options check sizes against it.
#[test]
fn golden_room() {
    assert_eq!((FRAME_BYTES_MAX, RESERVED_BYTES), (10 + 4 + 8 + 10, 26 + 10 + 128 * (8 + 10 + 4) + 32 + 10));
}
