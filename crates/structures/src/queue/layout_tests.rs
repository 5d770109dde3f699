use proptest::prelude::*;

use super::*;

fn sample() -> State {
    State {
        seq: 300,
        tail: 2,
        incarnation: 0x1122_3344_5566_7788,
        is_tail_lost: true,
        live: 3,
        acked: 4,
        lost_segments: 5,
        lost_items: 6,
        found: 7,
        told: 2,
        marks: vec![Mark { writer: 9, seq: 1 }],
        records: vec![
            Record {
                segment: 1,
                incarnation: 8,
                below: Below { segment: Some(0), is_guess: true },
                taken: vec![(0, 2), (5, 6)],
                print: Chain::of(3, 3, 0).print(3),
                remover: None,
            },
            Record {
                remover: Some(Remover { writer: 0x99, seq: 300, is_second: true }),
                ..Record::new(2, 7, Below::default())
            },
        ],
        opens: vec![Open { segment: 1, ordinal: 5, claim: 0xab, attempts: 2 }],
    }
}

#[test]
fn a_state_has_golden_bytes() {
    let bytes = sample().encode(0x42);
    let golden = b"LRQ\x04\xac\x02\x02\x88\x77\x66\x55\x44\x33\x22\x11\x01\x03\x04\x05\x06\x07\x02\
        \x01\x09\0\0\0\0\0\0\0\x01\
        \x02\x01\x08\0\0\0\0\0\0\0\x03\x02\0\x02\x03\x01\x03\xf4\x83\x2f\x9c\x9a\x59\xcf\xd4\xac\x23\xa9\xcf\x1b\x5e\xca\xa4\0\
        \x02\x07\0\0\0\0\0\0\0\0\0\0\x02\x99\0\0\0\0\0\0\0\xac\x02\
        \x01\x01\x05\xab\0\0\0\0\0\0\0\x02";
    assert_eq!([&bytes[..4], &bytes[8..]].concat(), golden);
    assert_eq!(bytes[4..8], layout::check(0x42, &bytes[8..]).to_le_bytes());
    assert_eq!(State::decode(&bytes, 0x42).unwrap(), sample());
    assert_eq!(State::decode(&bytes, 0x43).unwrap_err().kind(), ErrorKind::LayoutMismatch);
}

#[test]
fn the_last_write_of_each_writer_is_told_and_of_no_more_than_are_kept() {
    let mut state = State::default();
    for writer in (0..MARKS_MAX as u64 + 1).chain([3, 1]) {
        state.mark(Mark { writer, seq: 100 + writer });
    }
    state.mark(Mark { writer: 3, seq: 200 });
    assert_eq!(state.marks.len(), MARKS_MAX);
    assert_eq!([3, 1, 4].map(|writer| state.last_of(writer)), [Some(200), Some(101), Some(104)]);
    assert_eq!([0, 99].map(|writer| state.last_of(writer)), [None, None]);
    assert_eq!(state.seq, MARKS_MAX as u64 + 4);
}

#[test]
fn a_segment_of_a_stack_has_golden_bytes() {
    let note = note_of(3, 0x77, 5, 2, &[(1, 3)], &Chain::of(1, 1, 0));
    // A frame of one removed element of 13 bytes: below 2, one range, a gap of 1, a length of 2, and of what was there one frame.
    assert_eq!(note[0], 23);
    assert_eq!(&note[5..], b"\x05\0\0\0\0\0\0\0\x05\x1b\x06\x01\x01\x02\x01\x1b\x5e\xca\xa4\xfc\x05\x68\x41");
    let value = segment(3, 0x77, Some(note));
    assert_eq!(&value[..4], b"LRA\x01");
    assert_eq!(&value[4..14], b"\x77\0\0\0\0\0\0\0\x03\0");
}

#[test]
fn a_link_has_golden_bytes() {
    let bytes = link(0x42, 3, 0x1122_3344_5566_7788);
    let check = layout::check(0x42, b"\x03\0\0\0\0\0\0\0\x88\x77\x66\x55\x44\x33\x22\x11");
    assert_eq!(bytes, [&check.to_le_bytes()[..], b"\x88\x77\x66\x55\x44\x33\x22\x11"].concat());
    assert_eq!(linked(&bytes, 0x42, 3).unwrap(), 0x1122_3344_5566_7788);
    for (bytes, generation, number) in
        [(&bytes[..], 0x43, 3), (&bytes, 0x42, 4), (&bytes[..11], 0x42, 3), (b"", 0x42, 3)]
    {
        assert_eq!(linked(bytes, generation, number).unwrap_err().kind(), ErrorKind::LayoutMismatch);
    }
}

/// A note of what was taken of a segment that is left with the write of the state that has the same number as the note's writer.
fn note_of(number: u64, incarnation: u64, writer: u64, below: u64, taken: &[(u32, u32)], chain: &Chain) -> Bytes {
    let seq = writer;
    let below = Below { segment: Some(below), is_guess: false };
    let print = chain.print(taken.last().map_or(0, |range| range.1));
    note_frame(
        &Record { segment: number, incarnation, below, taken: taken.to_vec(), print, remover: None },
        writer,
        seq,
    )
}

/// A segment with these frames, as it is read.
fn read(number: u64, incarnation: u64, frames: &[Bytes], writer: u64) -> Result<Content> {
    let value =
        [segment(number, incarnation, None)].iter().chain(frames).map(Bytes::as_ref).collect::<Vec<_>>().concat();
    Content::parse(number, &Item { value: value.into(), ..Item::default() }, writer)
}

fn items(number: u64, incarnation: u64, writer: u64, seq: u64, items: &[&str]) -> Bytes {
    let mut elements = Vec::new();
    for item in items {
        layout::put_element(&mut elements, Action::Put, item.as_bytes());
    }
    layout::frame(place(number, incarnation), writer, seq, &elements)
}

#[test]
fn repeats_count_once_and_notes_are_joined_in_any_order() {
    let (first, second) = (items(1, 9, 7, 1, &["a", ""]), items(1, 9, 7, 2, &["b"]));
    let chain = read(1, 9, &[first.clone(), second.clone()], 7).unwrap().chain;
    let deep = note_of(1, 9, 21, 2, &[(0, 1)], &chain);
    let deeper = note_of(1, 9, 22, 1, &[(1, 3)], &chain);
    for notes in [[&deep, &deeper], [&deeper, &deep]] {
        let frames = [&first, notes[0], &second, &first, notes[1], &second].map(Clone::clone);
        let content = read(1, 9, &frames, 7).unwrap();
        assert_eq!(content.items, ["a", "", "b"]);
        assert_eq!((content.last, content.count()), (2, 3));
        assert_eq!(content.below, Some(Below { segment: Some(1), is_guess: false }));
        assert_eq!(content.taken, [(0, 3)]);
    }
    // A frame of another incarnation, or of another segment, is none of this one's.
    for frame in [items(1, 8, 7, 1, &["a"]), items(2, 9, 7, 1, &["a"])] {
        assert_eq!(read(1, 9, &[frame], 7).unwrap_err().kind(), ErrorKind::LayoutMismatch);
    }
}

#[test]
fn an_incarnation_is_told_of_the_tail_and_of_records_that_have_one() {
    let mut state = sample();
    assert_eq!([2, 1, 3].map(|segment| state.incarnation_of(segment)), [Some(0x1122_3344_5566_7788), Some(8), None]);
    assert_eq!([2, 1, 3].map(|segment| state.next_record(segment).incarnation), [0x1122_3344_5566_7788, 8, 0]);
    state.records[0].incarnation = 0;
    assert_eq!(state.incarnation_of(1), None, "a link tells it");
}

#[test]
fn the_same_items_by_another_push_are_others() {
    let chain = |writer, seq| read(1, 9, &[items(1, 9, writer, seq, &["a", "b"])], 7).unwrap().chain;
    assert_eq!(chain(7, 1), chain(7, 1));
    assert_ne!(chain(7, 1), chain(7, 2));
    assert_ne!(chain(7, 1), chain(8, 1));
    let two = read(1, 9, &[items(1, 9, 7, 1, &["a"]), items(1, 9, 7, 2, &["b"])], 7).unwrap().chain;
    assert_eq!((two.kept(&two.print(2), 2), two.kept(&chain(7, 1).print(2), 2)), (None, Some(0)), "pushes, not items");
}

#[test]
fn ranges_join_and_tell_what_is_free() {
    let content = read(0, 0, &[items(0, 0, 1, 1, &["a"; 6])], 0).unwrap();
    let mut record = Record::new(0, 0, Below::default());
    assert_eq!((record.first_free(0), record.last_free(0)), (None, None));
    assert_eq!((record.first_free(2), record.last_free(2)), (Some(0), Some(1)));
    for ordinal in [1, 4, 2, 0] {
        record.take(ordinal, &content);
    }
    assert_eq!(record.taken, [(0, 3), (4, 5)]);
    assert_eq!((record.first_free(6), record.last_free(6)), (Some(3), Some(5)));
    assert_eq!((record.first_free(5), record.last_free(5)), (Some(3), Some(3)));
    assert_eq!((record.first_free(3), record.last_free(3)), (None, None));
    assert!(!record.is_whole());
    record.take(3, &content);
    assert!(record.is_whole());
    assert_eq!((record.count(), record.end(), record.last_free(5)), (5, 5, None));
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), seed in any::<u64>()) {
        _ = State::decode(&bytes, seed);
        // As it would be with a check that holds.
        let mut checked = [&MAGIC[..], &layout::check(seed, &bytes).to_le_bytes(), &bytes].concat();
        if let Ok(state) = State::decode(&checked, seed) {
            prop_assert_eq!(State::decode(&state.encode(seed), seed).unwrap(), state);
        }
        _ = Content::parse(seed, &Item { value: bytes.clone().into(), ..Item::default() }, 0);
        let mut elements = Vec::new();
        layout::put_element(&mut elements, Action::Remove, &bytes);
        checked = [&segment(seed, 1, None)[..], &layout::frame(place(seed, 1), 2, 3, &elements)].concat();
        _ = Content::parse(seed, &Item { value: checked.into(), ..Item::default() }, 0);
    }

    #[test]
    fn a_cut_or_changed_state_is_never_misread(at in 0usize..80, bit in 0u8..8) {
        let bytes = sample().encode(0x42);
        let at = at % bytes.len();
        prop_assert!(State::decode(&bytes[..at], 0x42).is_err());
        let mut changed = bytes.to_vec();
        changed[at] ^= 1 << bit;
        prop_assert!(State::decode(&changed, 0x42).is_err());
    }

    #[test]
    fn ranges_agree_with_a_set(taken in proptest::collection::vec(0u32..60, 0..80), count in 0u32..70) {
        let content = read(0, 0, &[items(0, 0, 1, 1, &["a"; 60])], 0).unwrap();
        let mut record = Record::new(0, 0, Below::default());
        for &ordinal in &taken {
            record.take(ordinal, &content);
        }
        let free: Vec<u32> = (0..count).filter(|ordinal| !taken.contains(ordinal)).collect();
        prop_assert_eq!(record.last_free(count), free.last().copied());
        prop_assert_eq!(record.first_free(count), free.first().copied());
        let state = State { records: vec![record], ..State::default() };
        prop_assert_eq!(State::decode(&state.encode(1), 1).unwrap(), state);
    }
}

#[test]
fn what_is_cut_of_ranges_begins_behind_or_reaches_over_the_end() {
    let cut = |end| {
        let mut ranges = vec![(0, 2), (4, 8), (10, 12)];
        super::cut(&mut ranges, end);
        ranges
    };
    assert_eq!(cut(12), [(0, 2), (4, 8), (10, 12)]);
    assert_eq!(cut(11), [(0, 2), (4, 8), (10, 11)]);
    assert_eq!(cut(10), [(0, 2), (4, 8)]);
    assert_eq!(cut(4), [(0, 2)]);
    assert_eq!(cut(1), [(0, 1)]);
    assert!(cut(0).is_empty());
}

#[test]
fn a_new_queue_has_an_empty_segment_and_has_lost_nothing() {
    let state = State::first(7);
    assert_eq!((state.incarnation, state.live, state.tail, state.untold()), (7, 1, 0, 0));
    assert_eq!(state.records, [Record::new(0, 7, Below::default())]);
    assert_eq!(sample().untold(), 5);
}

#[test]
fn a_record_counts_what_was_taken() {
    let record = |taken: &[(u32, u32)]| Record { taken: taken.to_vec(), ..Record::new(1, 2, Below::default()) };
    assert_eq!([&[][..], &[(0, 3)], &[(1, 3), (5, 9)]].map(|taken| record(taken).count()), [0, 3, 6]);
    assert_eq!([&[][..], &[(0, 3)], &[(1, 3), (5, 9)]].map(|taken| record(taken).end()), [0, 3, 9]);
}

#[test]
fn ranges_of_a_note_do_not_touch_and_are_not_empty() {
    let note = |ranges: &[(u64, u64)]| {
        let mut bytes = Vec::new();
        layout::put_varint(&mut bytes, 0);
        layout::put_varint(&mut bytes, ranges.len() as u64);
        for &(gap, length) in ranges {
            layout::put_varint(&mut bytes, gap);
            layout::put_varint(&mut bytes, length);
        }
        Chain::of(1, 1, 0).print(0).put(&mut bytes);
        take_note(&mut &bytes[..]).map(|(_, taken, _)| taken)
    };
    assert_eq!(note(&[(0, 2), (1, 3)]), Some(vec![(0, 2), (3, 6)]));
    assert_eq!(note(&[(4, 2)]), Some(vec![(4, 6)]));
    assert_eq!([note(&[(0, 0)]), note(&[(3, 0)]), note(&[(0, 2), (0, 3)])], [None, None, None]);
}

#[test]
#[expect(clippy::cloned_ref_to_slice_refs, reason = "frames are read as they come, one or many")]
fn a_stacks_segment_says_what_was_taken_and_a_queues_says_nothing() {
    let pushed = items(3, 0x77, 1, 1, &["a", "b", "c", "d"]);
    let queue = read(3, 0x77, &[pushed.clone()], 1).unwrap();
    assert!((0..4).all(|at| queue.has_taken(at)), "it says nothing: all may have been");
    let note = note_of(3, 0x77, 5, 2, &[(1, 3)], &queue.chain);
    let stack = read(3, 0x77, &[pushed, note], 1).unwrap();
    assert_eq!([0, 1, 2, 3].map(|at| stack.has_taken(at)), [false, true, true, false]);
}

#[test]
fn what_is_below_is_sooner_a_guess_than_known_and_deeper_than_either() {
    let [known, guess] = [false, true].map(|is_guess| Below { segment: Some(4), is_guess });
    let deeper = Below { segment: Some(3), is_guess: true };
    let below = |notes: &[Below]| {
        let mut content = read(1, 9, &[], 7).unwrap();
        let print = content.chain.print(0);
        notes.iter().for_each(|&below| assert_eq!(content.note((below, Vec::new(), print.clone())), None));
        content.below
    };
    assert_eq!([below(&[known, guess]), below(&[guess, known])], [Some(guess); 2]);
    assert_eq!([below(&[guess, deeper]), below(&[deeper, known])], [Some(deeper); 2]);
}

/// The first is of more than there is; whether that is known by now the last of them tells, whenever it came.
#[test]
fn what_a_segment_had_lost_when_it_was_left_is_told_by_the_note_that_is_last_by_the_state() {
    let (first, second) = (items(1, 9, 7, 1, &["a"]), items(1, 9, 7, 2, &["b"]));
    let whole = read(1, 9, &[first.clone(), second.clone()], 7).unwrap().chain;
    let there = read(1, 9, std::slice::from_ref(&first), 7).unwrap().chain;
    let note = |writer, taken: &[(u32, u32)], chain| note_of(1, 9, writer, 0, taken, chain);
    let (early, cut, late) = (note(20, &[(0, 1)], &there), note(30, &[(0, 2)], &whole), note(40, &[(0, 1)], &there));
    for (notes, kept) in [
        (vec![&early], None),
        (vec![&cut], Some(1)),
        (vec![&early, &cut], Some(1)),
        (vec![&cut, &early], Some(1)),
        (vec![&early, &cut, &late], None),
        (vec![&late, &cut], None),
    ] {
        let frames: Vec<Bytes> = std::iter::once(&first).chain(notes).cloned().collect();
        let content = read(1, 9, &frames, 7).unwrap();
        assert_eq!((content.kept, content.taken), (kept, vec![(0, 1)]));
    }
}

#[test]
fn the_same_items_of_another_incarnation_are_others() {
    let chain = |incarnation| read(1, incarnation, &[items(1, incarnation, 7, 1, &["a", "b"])], 7).unwrap().chain;
    assert_eq!(chain(9).kept(&chain(9).print(2), 2), None);
    assert_eq!(chain(9).kept(&chain(8).print(2), 2), Some(0));
}
