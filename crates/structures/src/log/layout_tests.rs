use proptest::prelude::*;

use super::*;

const GENERATION: u64 = 0x1122_3344_5566_7788;
const AT: At = At { chunk: 0x0102_0304_0506, part: 0x0a0b };
const WRITER: u64 = 0x0102_0304_0506_0708;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn events(part: &PartValue<'_>, from: usize) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for frame in part.frames(from).unwrap() {
        part.events(&frame, |offset_ms, event| all.push((offset_ms, event.to_vec()))).unwrap();
    }
    all
}

#[test]
fn golden_bytes() {
    let params = Params { chunk_ms: 0x0102, retention_ms: 0x0304 };
    assert_eq!(hex(&params.encode()), "02010000000000000403000000000000");
    assert_eq!(Params::decode(&params.encode()), Some(params));

    let mut value = AT.header(GENERATION, 0x1112_1314_1516_1718).to_vec();
    assert_eq!(hex(&value), GOLDEN_HEADER);
    let mut elements = Vec::new();
    put_event(&mut elements, 300, b"ab");
    put_event(&mut elements, 0, b"");
    let frame = AT.frame(GENERATION, WRITER, 200, &elements, false);
    assert_eq!(hex(&frame), GOLDEN_FRAME);
    let marked = AT.frame(GENERATION, WRITER, 201, &elements, true);
    assert_eq!(hex(&marked), GOLDEN_MARKED);
    value.extend_from_slice(&frame);
    value.extend_from_slice(&marked);

    let part = PartValue::parse(&value, GENERATION, AT).unwrap();
    assert_eq!((part.incarnation, part.len()), (0x1112_1314_1516_1718, value.len()));
    let two = [(300, b"ab".to_vec()), (0, vec![])];
    assert_eq!(events(&part, 0), [two.clone(), two.clone()].concat());
    assert_eq!(events(&part, HEADER_BYTES + frame.len()), two);
    assert!(events(&part, value.len()).is_empty());
    let marks: Vec<bool> = part.frames(0).unwrap().iter().map(|frame| frame.is_marked).collect();
    assert_eq!(marks, [false, true]);
    assert!(part.has(WRITER, 201).unwrap() && !part.has(WRITER, 202).unwrap() && !part.has(WRITER + 1, 201).unwrap());
}

const GOLDEN_HEADER: &str = "4c524501887766554433221106050403020100000b0a1817161514131211ced6b55a";
const GOLDEN_FRAME: &str = "1164c8fefd0807060504030201c80108ac0261620200";
const GOLDEN_MARKED: &str = "12c7c346fd0807060504030201c9010108ac0261620200";

#[test]
fn a_part_of_one_event_takes_no_more_than_was_set_aside() {
    let event = vec![7; 1 << 20];
    let mut elements = Vec::new();
    put_event(&mut elements, u64::MAX, &event);
    assert!(elements.len() <= event.len() + EVENT_BYTES_MAX);
    let frame = AT.frame(GENERATION, u64::MAX, u64::MAX, &elements, true);
    let part_bytes = AT.header(GENERATION, 1).len() + frame.len();
    assert!(part_bytes <= event.len() + OVERHEAD_BYTES, "{part_bytes}");
}

#[test]
fn the_longest_index_fits_a_key() {
    let index = At { chunk: CHUNK_MAX, part: u16::MAX }.to_string();
    assert_eq!(index, "ffffffffffff-ffff");
    assert!(index.len() <= crate::name::Name::INDEX_BYTES_MAX);
    assert_eq!(At { chunk: 0, part: 10 }.to_string(), "0-a");
}

#[test]
fn a_part_of_another_life_or_place_is_refused() {
    let value = AT.header(GENERATION, 7);
    for (generation, at) in
        [(GENERATION + 1, AT), (GENERATION, At { part: 0, ..AT }), (GENERATION, At { chunk: 0, ..AT })]
    {
        let error = PartValue::parse(&value, generation, at).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    }
    // Another part's frame does not pass for one of this.
    let foreign = At { part: 0, ..AT }.frame(GENERATION, WRITER, 1, b"", false);
    let value = [&value[..], &foreign[..]].concat();
    let error = PartValue::parse(&value, GENERATION, AT).unwrap().frames(0).unwrap_err();
    assert!(error.to_string().contains("offset 34"), "{error}");
}

#[test]
fn chunks_are_absolute() {
    let params = Params { chunk_ms: 1_000, retention_ms: 60_000 };
    assert_eq!((params.chunk_of(0), params.chunk_of(999), params.chunk_of(1_000)), (0, 0, 1));
    assert_eq!(params.bounds_ms(1), (1_000, 1_999));
    assert_eq!(Params::decode(&[0; 16]), None);
    assert_eq!(Params::decode(&[1; 15]), None);
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), from in 0usize..300) {
        _ = Params::decode(&bytes);
        let value = [&AT.header(GENERATION, 7)[..], &bytes].concat();
        for value in [&bytes, &value] {
            let Ok(part) = PartValue::parse(value, GENERATION, AT) else { continue };
            for frame in part.frames(from).unwrap_or_default() {
                _ = part.events(&frame, |_, _| {});
            }
        }
    }

    #[test]
    fn a_frame_that_passes_its_check_and_holds_garbage_never_panics(elements in proptest::collection::vec(any::<u8>(), 0..60)) {
        let value = [AT.header(GENERATION, 7), AT.frame(GENERATION, WRITER, 1, &elements, false)].concat();
        let part = PartValue::parse(&value, GENERATION, AT).unwrap();
        for frame in part.frames(0).unwrap() {
            _ = part.events(&frame, |_, _| {});
        }
    }

    #[test]
    fn what_was_put_is_read(written in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..8), is_marked: bool) {
        let mut elements = Vec::new();
        for (offset_ms, event) in &written {
            put_event(&mut elements, *offset_ms, event);
        }
        let value = [AT.header(GENERATION, 7), AT.frame(GENERATION, WRITER, 1, &elements, is_marked)].concat();
        let part = PartValue::parse(&value, GENERATION, AT).unwrap();
        prop_assert_eq!(events(&part, 0), written);
        prop_assert_eq!(part.frames(0).unwrap()[0].is_marked, is_marked);
    }
}

#[test]
fn what_does_not_count_is_weighed() {
    let mut elements = Vec::new();
    put_event(&mut elements, 0, b"first");
    put_event(&mut elements, 1, b"second");
    let frame = |seq| AT.frame(GENERATION, WRITER, seq, &elements, false);
    let part = [&AT.header(GENERATION, 7)[..], &frame(1), &frame(2), &frame(1)].concat();
    let mut counted = HashSet::new();
    assert_eq!(
        weigh(&part, GENERATION, &mut counted).unwrap(),
        (frame(1).len(), 4),
        "a frame that came twice counts once"
    );
    assert_eq!(counted, HashSet::from([(AT.chunk, WRITER, 1), (AT.chunk, WRITER, 2)]));
    let all = 2 * frame(1).len() + frame(2).len();
    assert_eq!(weigh(&part, GENERATION, &mut counted).unwrap(), (all, 0));
}

/// Options check sizes against it.
#[test]
fn golden_room() {
    assert_eq!((EVENT_BYTES_MAX, OVERHEAD_BYTES), (20, 34 + 32 + 30));
}
