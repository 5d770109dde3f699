use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const GENERATION: u64 = 0x1122_3344_5566_7788;
const WRITER: u64 = 0x0102_0304_0506_0708;
const INCARNATION: u64 = 0x2122_2324_2526_2728;
const LIST: Place = Place { generation: GENERATION, shard: 3 };

fn stamp(seq: u64) -> Stamp {
    Stamp { generation: GENERATION, writer: WRITER, seq }
}

fn made(key: &[u8], value: &[u8]) -> Vec<u8> {
    let spot = Spot::of(key, 1);
    new_entry(GENERATION, &whole_frame(stamp(1), &spot, (INCARNATION, 7), key, value)).to_vec()
}

#[test]
fn a_head_of_another_key_takes_no_value_over() {
    let mut head_alone = Vec::new();
    put_element(&mut head_alone, Action::Put, &head(INCARNATION, 0, b"other"));
    let frame = layout::frame(entry_place(GENERATION), WRITER, 2, &head_alone);
    let bytes = [&made(b"key", b"value")[..], &frame].concat();
    assert_eq!(Entry::parse(&bytes, GENERATION).unwrap_err().kind(), ErrorKind::LayoutMismatch);
    let whole = whole_frame(stamp(2), &Spot::of(b"other", 1), (INCARNATION, 0), b"other", b"its own");
    let bytes = [&made(b"key", b"value")[..], &whole].concat();
    assert_eq!(Entry::parse(&bytes, GENERATION).unwrap().value, b"its own");
}

fn notes(notes: &[Note<'_>]) -> Vec<u8> {
    let mut elements = Vec::new();
    notes.iter().for_each(|note| note.put(&mut elements));
    elements
}

fn list(seq: u64, all: &[Note<'_>]) -> Bytes {
    layout::frame(LIST, WRITER, seq, &notes(all))
}

fn listed(incarnation: u64, key: &[u8]) -> Note<'_> {
    Note::Listed { incarnation, expiry_s: 0, key }
}

fn leaving(incarnation: u64) -> Note<'static> {
    Note::Leaving { incarnation, since_s: 9 }
}

fn gone(incarnation: u64) -> Note<'static> {
    Note::Gone { incarnation }
}

/// What a list says of keys, as it is and compacted.
fn says<const N: usize>(all: &[Note<'_>], keys: [&[u8]; N]) -> [Says; N] {
    let bytes = [&layout::empty(LIST)[..], &list(1, all)].concat();
    let value = Value::parse(&bytes, LIST).unwrap();
    let folded = value.fold(Listing::default()).unwrap();
    let said = keys.map(|key| folded.state.says(key));
    let compacted = folded.compacted(LIST, 0, 5);
    let again = Value::parse(&compacted, LIST).unwrap().fold(Listing::default()).unwrap();
    assert_eq!(keys.map(|key| again.state.says(key)), said, "compacted");
    let late: Vec<Note<'_>> = all.iter().copied().filter(|note| matches!(note, Note::Listed { .. })).collect();
    let listed_again = |bytes: &[u8]| {
        let bytes = [bytes, &list(2, &late)].concat();
        let state = Value::parse(&bytes, LIST).unwrap().fold(Listing::default()).unwrap().state;
        keys.map(|key| state.says(key))
    };
    assert_eq!(listed_again(&compacted), listed_again(&bytes), "compacted, and listed late");
    let some = value.fold(Listing::of(keys)).unwrap();
    assert_eq!(keys.map(|key| some.state.says(key)), said, "of some keys only");
    said
}

/// Its row is another than the one of before, which went, and was forgotten.
#[test]
fn an_incarnation_that_comes_again_once_it_was_forgotten_goes_by_itself_and_not_with_one_that_came_between() {
    let (key, one, other) = (b"k", 5_001, 5_002);
    let forget: Vec<Note<'_>> = (0..GONE_MAX as u64).map(gone).collect();
    let first = [listed(one, key), listed(other, key), gone(one)];
    let all = [&first[..], &forget, &[listed(one, key), gone(other)]].concat();
    assert_eq!(says(&all, [key]), [Says::Listed { incarnation: one }]);
    let all = [&all[..], &[gone(one)]].concat();
    assert_eq!(says(&all, [key]), [Says::NotListed]);
}

#[test]
fn golden_bytes() {
    let spot = Spot::of(b"key", 7);
    assert_eq!(spot.index.as_ref(), "pL305WRWTPi76g");
    assert_eq!((spot.shard, spot.mark), (5, 0x9ce7_3b20_38aa_0d07));
    let entry = made(b"key", b"value");
    assert_eq!(&entry[..27], &layout::empty(entry_place(GENERATION))[..]);
    assert_eq!(
        &entry[27..],
        b")a,S\xfc\x08\x07\x06\x05\x04\x03\x02\x01\x01 \0('&%$#\"!\x07\0\0\0key\x1c\x01\x07\r\xaa8 ;\xe7\x9cvalue"
    );
    let frame = value_frame(stamp(2), &spot, b"next");
    assert_eq!(&frame[..], b"\x17\x82\"rX\x08\x07\x06\x05\x04\x03\x02\x01\x02\x1a\x01\x07\r\xaa8 ;\xe7\x9cnext");
    let all = [
        Note::Listed { incarnation: INCARNATION, expiry_s: 0x6000_0001, key: b"key" },
        Note::Leaving { incarnation: INCARNATION, since_s: 0x6000_0000 },
        gone(INCARNATION),
    ];
    assert_eq!(notes(&all), b" \0('&%$#\"!\x01\0\0`key\x1a\x01('&%$#\"!\0\0\0`\x12\x02('&%$#\"!");
    assert_eq!((spot.flags(false), spot.flags(true)), (0x38aa_0d06, 0x38aa_0d07));
}

#[test]
fn the_hashes_have_golden_vectors() {
    let golden: [(&[u8], &str, [u16; 3]); 3] = [
        (b"", "maoG0wFHmNhgAc", [0, 1, 201]),
        (b"a", "qW-vcFrxaDTmxj", [0, 1, 173]),
        (&[0xff; 300], "1CzLt6WO2RGm64", [0, 4, 676]),
    ];
    let now = golden.map(|(key, _, _)| {
        (key, Spot::of(key, 1).index.to_string(), [1, 7, 1024].map(|count| Spot::of(key, count).shard))
    });
    assert_eq!(now, golden.map(|(key, index, shards)| (key, index.to_owned(), shards)));
    // The hash itself, against the vector of its reference implementation.
    assert_eq!(xxh3_128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
}

#[test]
fn keys_spread_evenly_over_shards() {
    let mut counts = [0u32; 16];
    for number in 0..16_000u32 {
        counts[usize::from(Spot::of(&number.to_le_bytes(), 16).shard)] += 1;
    }
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn the_last_value_counts_and_a_repeat_does_not() {
    let spot = Spot::of(b"k", 1);
    let mut bytes = made(b"k", b"first");
    let second = value_frame(stamp(2), &spot, b"second");
    bytes.extend_from_slice(&second);
    bytes.extend_from_slice(&value_frame(Stamp { writer: 9, ..stamp(1) }, &spot, b""));
    bytes.extend_from_slice(&second);
    let mut entry = Entry::parse(&bytes, GENERATION).unwrap();
    assert_eq!((entry.key, entry.value, entry.incarnation, entry.expiry_s), (&b"k"[..], &b""[..], INCARNATION, 7));
    assert_eq!([WRITER, 9, 10].map(|writer| entry.last(writer)), [2, 1, 0]);
    assert!(entry.stale_bytes(0) > 20);
    let compacted = entry.compacted(0);
    let mut late = compacted.to_vec();
    late.extend_from_slice(&second);
    let entry = Entry::parse(&late, GENERATION).unwrap();
    assert_eq!((entry.key, entry.value, entry.incarnation), (&b"k"[..], &b""[..], INCARNATION));
}

#[test]
fn the_value_of_an_entry_is_read_with_and_without_folding() {
    let spot = Spot::of(b"k", 1);
    let mut bytes = made(b"k", b"first");
    let value = |bytes: &[u8], key: &[u8]| value_of(bytes, GENERATION, &Spot::of(key, 1), key).map(<[u8]>::to_vec);
    assert_eq!(value(&bytes, b"k").unwrap(), b"first");
    assert_eq!(value(&bytes, b"other").unwrap_err().kind(), ErrorKind::Conflict);
    bytes.extend_from_slice(&value_frame(stamp(2), &spot, b"second"));
    assert_eq!(value(&bytes, b"k").unwrap(), b"second");
    assert_eq!(value(&bytes, b"other").unwrap_err().kind(), ErrorKind::Conflict);
}

#[test]
fn an_entry_goes_on_from_what_it_was_before_it_was_put_again() {
    let bytes = made(b"k", b"v");
    let entry = Entry::parse(&bytes, GENERATION).unwrap();
    assert_eq!(entry.writes(), [(WRITER, 1)]);
    assert!(entry.goes_on_from(INCARNATION, &[(WRITER, 1)]) && entry.goes_on_from(INCARNATION, &[(7, 7), (WRITER, 1)]));
    for writes in [&[][..], &[(WRITER, 2)], &[(WRITER + 1, 1)]] {
        assert!(!entry.goes_on_from(INCARNATION, writes), "{writes:?}");
    }
}

#[test]
fn another_keys_value_is_not_taken_for_this_ones() {
    let mut bytes = made(b"k", b"mine");
    bytes.extend_from_slice(&value_frame(stamp(2), &Spot::of(b"other", 1), b"theirs"));
    let entry = Entry::parse(&bytes, GENERATION).unwrap();
    assert_eq!(entry.value, b"mine");
    assert!(entry.expect(b"k").is_ok());
    let error = entry.expect(b"other").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("same hash"), "{error}");
    assert_eq!(Spot::of(b"k", 1).is_listed(Spot::of(b"other", 1).flags(true)), None);
    assert_eq!(Spot::of(b"k", 1).is_listed(Spot::of(b"k", 1).flags(true)), Some(true));
}

#[test]
fn an_entry_keeps_its_newest_writers_and_its_reserve_holds_them() {
    let spot = Spot::of(b"k", 1);
    let mut bytes = made(b"k", b"v");
    for writer in 0..100 {
        bytes.extend_from_slice(&value_frame(Stamp { writer, seq: u64::MAX, ..stamp(0) }, &spot, b"v"));
    }
    let mut entry = Entry::parse(&bytes, GENERATION).unwrap();
    let compacted = entry.compacted(u32::MAX);
    let entry = Entry::parse(&compacted, GENERATION).unwrap();
    let kept: Vec<u64> = (0..100).filter(|&writer| entry.last(writer) > 0).collect();
    assert_eq!(kept, (92..100).collect::<Vec<u64>>());
    assert!(compacted.len() + FRAME_BYTES_MAX <= ENTRY_BYTES + 2, "{} of {ENTRY_BYTES}", compacted.len());
    // What is set aside beyond that are lengths and sequences that are shorter here.
    assert!(
        compacted.len() + FRAME_BYTES_MAX + 6 * LENGTH_BYTES_MAX > ENTRY_BYTES,
        "{} of {ENTRY_BYTES}",
        compacted.len()
    );
}

#[test]
fn the_overhead_is_as_documented() {
    assert_eq!(made(&[7; 20], &[7; 50]).len() - 70, 65);
    assert_eq!(made(&[7; 200], &[7; 500]).len() - 700, 68);
    let all: Vec<[u8; 20]> = (0..100).map(|number| [number; 20]).collect();
    let all: Vec<Note<'_>> = all.iter().zip(0..).map(|(key, incarnation)| listed(incarnation, key)).collect();
    let bytes = [&layout::empty(LIST)[..], &list(1, &all)].concat();
    let folded = Value::parse(&bytes, LIST).unwrap().fold(Listing::default()).unwrap();
    assert_eq!(folded.compacted(LIST, 0, 0).len() - 27 - 13, 100 * (20 + 14));
}

#[test]
fn the_list_says_what_its_notes_say() {
    use Says::{Leaving, Listed, Mortal, NotListed};
    let leaves = |incarnation| Leaving { incarnation, since_s: 9 };
    let (a, b) = (&b"a"[..], &b"b"[..]);
    assert_eq!(says(&[listed(1, a)], [a, b]), [Listed { incarnation: 1 }, NotListed]);
    let mortal = Note::Listed { incarnation: 1, expiry_s: 5, key: a };
    assert_eq!(says(&[mortal, mortal], [a]), [Mortal { incarnation: 1, expiry_s: 5 }]);
    // A remove: leaving, then gone; and nothing that comes late changes that.
    assert_eq!(says(&[listed(1, a), leaving(1)], [a]), [leaves(1)]);
    assert_eq!(says(&[listed(1, a), leaving(1), listed(1, a)], [a]), [leaves(1)]);
    assert_eq!(says(&[listed(1, a), leaving(1), gone(1), listed(1, a), leaving(1)], [a]), [NotListed]);
    assert_eq!(says(&[gone(1), listed(1, a)], [a]), [NotListed]);
    // Put again while the first is on its way out: its end does not touch the second.
    assert_eq!(says(&[listed(1, a), leaving(1), listed(2, a)], [a]), [Listed { incarnation: 2 }]);
    assert_eq!(says(&[listed(1, a), leaving(1), listed(2, a), gone(1), gone(1)], [a]), [Listed { incarnation: 2 }]);
    assert_eq!(says(&[listed(1, a), listed(2, a), gone(1), leaving(2)], [a]), [leaves(2)]);
    // The first was lost; what is gone takes it along.
    assert_eq!(says(&[listed(1, a), listed(2, a), leaving(2)], [a]), [leaves(2)]);
    assert_eq!(says(&[listed(1, a), listed(2, a), leaving(2), gone(2)], [a]), [NotListed]);
    assert_eq!(says(&[listed(1, a), listed(2, a), gone(2), listed(3, a)], [a]), [Listed { incarnation: 3 }]);
    assert_eq!(says(&[listed(1, a), listed(2, a), gone(2), listed(1, a)], [a]), [NotListed]);
    assert_eq!(says(&[listed(1, a), listed(3, b), gone(1)], [a, b]), [NotListed, Listed { incarnation: 3 }]);
    assert_eq!(says(&[listed(1, b""), leaving(7)], [b""]), [Listed { incarnation: 1 }]);
}

#[test]
fn the_newest_that_are_gone_are_remembered() {
    let all: Vec<Note<'_>> = (0..GONE_MAX as u64 + 10).map(gone).collect();
    let late: Vec<Note<'_>> = [&all[..], &[listed(9, b"old"), listed(10, b"new")]].concat();
    assert_eq!(says(&late, [b"old", b"new"]), [Says::Listed { incarnation: 9 }, Says::NotListed]);
}

#[test]
fn foreign_bytes_are_a_mismatch() {
    let is_mismatch = |bytes: &[u8], generation: u64| {
        Entry::parse(bytes, generation).is_err_and(|error| error.kind() == ErrorKind::LayoutMismatch)
    };
    let good = made(b"k", b"v");
    assert!(!is_mismatch(&good, GENERATION));
    assert!(is_mismatch(&good, 1) && is_mismatch(b"42", GENERATION) && is_mismatch(b"", GENERATION));
    for cut in 0..good.len() {
        assert!(is_mismatch(&good[..cut], GENERATION), "{cut}");
    }
    assert!(is_mismatch(&layout::empty(LIST), GENERATION));
    // Not of a list's shard, however high.
    let empty = layout::empty(entry_place(GENERATION));
    let headless = [&empty[..], &value_frame(stamp(1), &Spot::of(b"k", 1), b"v")].concat();
    assert!(is_mismatch(&headless, GENERATION));
}

#[test]
fn what_a_compaction_would_save_is_told_of_an_entry_and_of_the_list() {
    let mut entry = made(b"k", b"v");
    let stale = |bytes: &[u8], shard| super::stale_bytes(bytes, GENERATION, shard, 0).unwrap();
    let before = stale(&entry, None);
    entry.extend_from_slice(&value_frame(stamp(2), &Spot::of(b"k", 1), &[7; 1_000]));
    entry.extend_from_slice(&value_frame(stamp(3), &Spot::of(b"k", 1), b"w"));
    assert!((1_000..1_100).contains(&(stale(&entry, None) - before)), "{} and {before}", stale(&entry, None));
    let of = |all: &[Note<'_>]| [&layout::empty(LIST)[..], &list(1, all)].concat();
    let one = listed(1, &[b'a'; 200]);
    let saved = |all: &[Note<'_>]| stale(&of(all), Some(LIST.shard));
    assert!(saved(&[one, gone(1)]) > saved(&[one]) + 200, "{} and {}", saved(&[one, gone(1)]), saved(&[one]));
    assert!(super::stale_bytes(&entry, GENERATION + 1, None, 0).is_err());
}

#[test]
fn a_look_at_some_keys_leaves_the_others_out() {
    let bytes = [&layout::empty(LIST)[..], &list(1, &[listed(1, b"a"), listed(2, b"b"), listed(3, b"c")])].concat();
    let keys = |of: Listing<'_>| {
        let state = Value::parse(&bytes, LIST).unwrap().fold(of).unwrap().state;
        let mut keys: Vec<Vec<u8>> = state.keys().map(|(key, _)| key.to_vec()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(Listing::of([&b"b"[..], b"z"])), [b"b"]);
    assert_eq!(keys(Listing::of([])), Vec::<Vec<u8>>::new());
    assert_eq!(keys(Listing::default()), [b"a", b"b", b"c"]);
}

/// They are what a put may be long at the most: another number refuses what fits, or lets in what a store refuses.
#[test]
fn what_is_set_aside_for_an_entry_is_counted_by_hand() {
    // Eight writers at 22 bytes; a frame at 32; the head at 13 and the value's mark at 9, each with its length.
    assert_eq!(ENTRY_BYTES, HEADER_BYTES + 10 + 8 * 22 + 32 + (10 + 13) + (10 + 9));
    assert_eq!(LISTING_BYTES, 2 * 23);
}

fn note() -> impl Strategy<Value = (u8, u64, u8)> {
    (0u8..6, 0u64..12, 0u8..3)
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60), more in proptest::collection::vec(any::<u8>(), 0..30)) {
        for elements in [&[&bytes[..], &more][..], &[&more[..], &bytes, &[0; 13], &[1; 13], &[2; 9]]] {
            let mut out = Vec::new();
            elements.iter().for_each(|element| put_element(&mut out, Action::Put, element));
            let value = [&layout::empty(entry_place(GENERATION))[..], &layout::frame(entry_place(GENERATION), 1, 1, &out)].concat();
            if let Ok(mut entry) = Entry::parse(&value, GENERATION) {
                _ = entry.compacted(0);
            }
            _ = Entry::parse(&bytes, GENERATION);
            let value = [&layout::empty(LIST)[..], &layout::frame(LIST, 1, 1, &out)].concat();
            let folded = Value::parse(&value, LIST).unwrap().fold(Listing::default()).unwrap();
            _ = folded.compacted(LIST, 0, 0);
            _ = folded.state.keys().count();
        }
    }

    /// Notes in any order against a plain list of rows.
    #[test]
    fn a_model_agrees(all in proptest::collection::vec(note(), 0..40)) {
        let keys: [&[u8]; 3] = [b"", b"a", b"b"];
        let mut rows: Vec<(u64, usize, bool)> = Vec::new();
        let mut dead: Vec<u64> = Vec::new();
        let mut written = Vec::new();
        let mut owner: BTreeMap<u64, usize> = BTreeMap::new();
        for (what, incarnation, key) in all {
            // An incarnation belongs to one key.
            let key = *owner.entry(incarnation).or_insert(usize::from(key));
            let is_listed = rows.iter().any(|row| row.0 == incarnation);
            match what {
                0..=2 => {
                    if !is_listed && !dead.contains(&incarnation) {
                        rows.push((incarnation, key, false));
                    }
                    written.push(listed(incarnation, keys[key]));
                }
                3 => {
                    rows.iter_mut().filter(|row| row.0 == incarnation).for_each(|row| row.2 = true);
                    written.push(leaving(incarnation));
                }
                _ => {
                    if let Some(at) = rows.iter().position(|row| row.0 == incarnation) {
                        let mut index = 0;
                        rows.retain(|row| {
                            index += 1;
                            let stays = row.1 != key || index - 1 > at;
                            if !stays {
                                dead.push(row.0);
                            }
                            stays
                        });
                    }
                    dead.push(incarnation);
                    written.push(gone(incarnation));
                }
            }
        }
        let expected = [0, 1, 2].map(|key| match rows.iter().rev().find(|row| row.1 == key) {
            None => Says::NotListed,
            Some(&(incarnation, _, true)) => Says::Leaving { incarnation, since_s: 9 },
            Some(&(incarnation, _, false)) => Says::Listed { incarnation },
        });
        prop_assert_eq!(says(&written, keys), expected);
    }
}

#[test]
fn flags_tell_a_key_from_another_and_whether_it_is_listed() {
    let (spot, other) = (Spot::of(b"key", 1), Spot::of(b"other", 1));
    for is_listed in [false, true] {
        let flags = spot.flags(is_listed);
        assert_eq!((spot.is_listed(flags), other.is_listed(flags)), (Some(is_listed), None));
        assert_eq!(flags & FLAG_LISTED != 0, is_listed);
    }
    assert_ne!(spot.flags(false), 0);
}

#[test]
fn an_entry_knows_who_wrote_it() {
    let spot = Spot::of(b"key", 1);
    let one = made(b"key", b"value");
    let entry = |bytes: &[u8], look: &dyn Fn(&Entry<'_>)| look(&Entry::parse(bytes, GENERATION).unwrap());
    entry(&one, &|entry| {
        assert!(entry.is_all_of(WRITER, 1));
        assert!(!entry.is_all_of(WRITER, 2) && !entry.is_all_of(WRITER + 1, 1));
        assert!(
            entry.goes_on_from(9, &[(WRITER, 1)])
                && !entry.goes_on_from(9, &[(WRITER, 2)])
                && !entry.goes_on_from(9, &[])
        );
    });
    let by_another = Stamp { writer: WRITER + 1, ..stamp(4) };
    let two = [&one[..], &value_frame(by_another, &spot, b"second")].concat();
    entry(&two, &|entry| {
        assert_eq!((entry.value, entry.last(WRITER), entry.last(WRITER + 1)), (&b"second"[..], 1, 4));
        assert!(!entry.is_all_of(WRITER, 1) && !entry.is_all_of(WRITER + 1, 4));
    });
    let renewal = Stamp { writer: renewer(77), ..stamp(1) };
    let renewed = [&one[..], &empty_frame(renewal)].concat();
    entry(&renewed, &|entry| assert!(entry.goes_on_from(77, &[]) && !entry.goes_on_from(78, &[])));
    assert!(renewer(1) != renewer(2) && renewer(1) > 1);
    let again = Entry::parse(&one, GENERATION).unwrap().rewritten(&value_frame(by_another, &spot, b"new"), 0).unwrap();
    entry(&again, &|entry| assert_eq!((entry.value, entry.last(WRITER + 1)), (&b"new"[..], 4)));
}

#[test]
fn the_value_of_an_entry_is_that_of_its_own_key() {
    let (spot, other) = (Spot::of(b"key", 1), Spot::of(b"other", 1));
    let one = made(b"key", b"value");
    assert_eq!(value_of(&one, GENERATION, &spot, b"key").unwrap(), b"value");
    assert_eq!(value_of(&one, GENERATION, &other, b"other").unwrap_err().kind(), ErrorKind::Conflict);
    let frame = |elements: &[(Action, Vec<u8>)]| {
        let mut bytes = Vec::new();
        elements.iter().for_each(|(action, element)| put_element(&mut bytes, *action, element));
        new_entry(GENERATION, &layout::frame(entry_place(GENERATION), WRITER, 1, &bytes)).to_vec()
    };
    let value = |spot: &Spot, value: &[u8]| [&[1][..], &spot.mark.to_le_bytes(), value].concat();
    let head = |key: &[u8]| head(INCARNATION, 0, key);
    let only = |bytes: &[u8]| {
        let frame = Value::parse(bytes, entry_place(GENERATION)).unwrap().only_frame().unwrap();
        made_value(frame, &spot, b"key").map(<[u8]>::to_vec)
    };
    use Action::{Put, Remove};
    assert_eq!(only(&frame(&[(Put, head(b"key")), (Put, value(&spot, b"v"))])).as_deref(), Some(&b"v"[..]));
    // Another key, another mark, something behind, something removed, a head that is none.
    assert_eq!(only(&frame(&[(Put, head(b"kex")), (Put, value(&spot, b"v"))])), None);
    assert_eq!(only(&frame(&[(Put, head(b"key")), (Put, value(&other, b"v"))])), None);
    assert_eq!(only(&frame(&[(Put, head(b"key")), (Put, value(&spot, b"v")), (Put, value(&spot, b"w"))])), None);
    assert_eq!(only(&frame(&[(Remove, head(b"key")), (Put, value(&spot, b"v"))])), None);
    assert_eq!(only(&frame(&[(Put, [&[1][..], &head(b"key")[1..]].concat()), (Put, value(&spot, b"v"))])), None);
}

#[test]
fn a_listing_says_how_many_it_may_have() {
    let looked = |all: &[Note<'_>]| {
        let bytes = [&layout::empty(LIST)[..], &list(1, all)].concat();
        let folded = Value::parse(&bytes, LIST).unwrap().fold(Listing::default()).unwrap();
        (folded.state.len_max(), folded.state.keys().count())
    };
    assert_eq!(looked(&[gone(1), gone(2)]), (0, 0));
    assert_eq!(looked(&[listed(1, b"a"), listed(2, b"b"), listed(3, b"c"), gone(2)]), (3, 2));
    assert_eq!(looked(&[listed(1, b"a"), listed(2, b"a")]), (2, 1), "the last of two incarnations");
}

#[test]
fn a_head_that_is_too_short_is_none() {
    for bytes in 1..HEAD_BYTES {
        let mut elements = Vec::new();
        put_element(&mut elements, Action::Put, &vec![0; bytes]);
        let item = new_entry(GENERATION, &layout::frame(entry_place(GENERATION), WRITER, 1, &elements));
        assert_eq!(Entry::parse(&item, GENERATION).unwrap_err().kind(), ErrorKind::LayoutMismatch, "{bytes}");
    }
}

#[test]
fn a_list_is_as_long_as_it_says_with_those_that_go_along() {
    // The second incarnation goes, and the first with it, which nobody noted.
    let bytes =
        [&layout::empty(LIST)[..], &list(1, &[listed(1, b"a"), listed(2, b"a"), listed(3, b"b"), gone(2)])].concat();
    let folded = Value::parse(&bytes, LIST).unwrap().fold(Listing::default()).unwrap();
    assert_eq!(folded.state.made().count(), 1);
    assert_eq!(folded.compacted(LIST, 1, 9).len(), folded.live_bytes(9));
}

#[test]
fn a_table_that_another_release_made_is_refused() {
    use crate::manifest::{Kind, Manifest};
    let name = crate::name::Name::new("t").unwrap();
    let check = |params: &'static [u8], copies: u8| {
        let manifest = Manifest { copies, ..Manifest::new(Kind::Table, LAYOUT, 1, Bytes::from_static(params)) };
        crate::table::check(&name, &manifest, &crate::table::Table::options()).map_err(|error| error.kind())
    };
    assert_eq!(check(&[HASH_XXH3, 1], 1), Ok(()));
    for (params, copies) in
        [(&[HASH_XXH3 + 1, 0][..], 1), (&[HASH_XXH3, 2], 1), (&[HASH_XXH3], 1), (&[HASH_XXH3, 0], 2)]
    {
        assert_eq!(check(params, copies), Err(ErrorKind::LayoutMismatch), "{params:?}, {copies} copies");
    }
}

/// On a store of small items: there is room for it before a compaction, and behind it.
#[tokio::test]
async fn the_longest_key_fits_the_list_twice_with_what_is_said_of_it() {
    let memory = larder_store_memory::MemoryStore::builder().value_bytes_max(20_000).build().unwrap();
    let store: larder_core::StoreRef = std::sync::Arc::new(memory);
    let table = crate::table::Table::open_or_create(&store, "t").await.unwrap();
    let room = table.0.shards.elements_bytes_max();
    assert!(2 * table.key_bytes_max() + LISTING_BYTES <= room && table.key_bytes_max() > 2_000, "{room}");
}
