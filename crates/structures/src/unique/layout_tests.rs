use proptest::prelude::*;

use super::*;
use crate::unique::id::hash_of;

fn params() -> Params {
    Params {
        period_ms: 86_400_000,
        offset_ms: -18_000_000,
        seed: 0x0102_0304_0506_0708,
        precision: Precision::NearExact { bits: 40 },
        ids: IdKind::Integer,
        shape: Shape::Padded,
        expected: 1_000,
        keep_ms: 5,
        zone: None,
    }
}

fn head(shards: u32, bits: u8) -> Head {
    Head { incarnation: 0x1112_1314_1516_1718, expected: 7, shards, bits, padded_bytes: 0 }
}

#[test]
fn golden_bytes() {
    let bytes = b"\x00\x5c\x26\x05\0\0\0\0\x80\x57\xed\xfe\x08\x07\x06\x05\x04\x03\x02\x01\x03\x28\x02\x02\xe8\x03\0\0\0\0\0\0\x05\0\0\0\0\0\0\0";
    assert_eq!(params().encode(), &bytes[..]);
    let head = Head { padded_bytes: 9, ..head(3, 40) };
    let bytes = b"LRU\x01\x18\x17\x16\x15\x14\x13\x12\x11\x07\0\0\0\0\0\0\0\x03\0\0\0\x28\x09\0\0\0";
    assert_eq!(head.encode(), &bytes[..]);
    assert_eq!((head.index(255).to_string(), head_index(20_000).to_string()), ("15161718-ff".into(), "h4e20".into()));
    for (incarnation, shard, index) in [
        (0, 0, "0-0"),
        (0x10, 0xf, "10-f"),
        (u64::MAX, SHARDS_MAX, "ffffffff-400000"),
        (1 << 32, u32::MAX, "0-ffffffff"),
    ] {
        assert_eq!(Head { incarnation, ..head }.index(shard).to_string(), index);
    }
    let members = Members { offsets: vec![1, 5, 42], lows: Vec::new() };
    // A mean gap of 11 has parameter 2.
    let blob = members.encode(44, 0x0a0b_0c0d, 0);
    assert_eq!(blob, &b"LU\x01\x02\x0d\x0c\x0b\x0a\x03\0\0\0\x03\0\0\0\x3b\x80\0"[..]);
    assert_eq!(members.encode(44, 0x0a0b_0c0d, 24), [&blob[..], &[0; 5]].concat());
    let wide = Members { offsets: vec![1], lows: vec![0x0102_0304_0506_0708] };
    let blob = wide.encode(4, 0, 0);
    assert_eq!(blob, &b"LU\x01\x00\0\0\0\0\x01\0\0\0\x01\0\0\0\x02\x08\x07\x06\x05\x04\x03\x02\x01"[..]);
    assert_eq!(sketch_blob(b"cpc", 1, 2), &b"LU\x01\0\x01\0\0\0\x02\0\0\0\x03\0\0\0cpc"[..]);
}

#[test]
fn what_is_stored_is_read_back() {
    assert_eq!(Params::decode(&params().encode()), Some(params()));
    for precision in [Precision::Exact, Precision::Compact, Precision::NEAR_EXACT, Precision::SKETCH] {
        let params = Params { precision, ..params() };
        assert_eq!(Params::decode(&params.encode()), Some(params));
    }
    let berlin = Params { zone: Zone::named("Europe/Berlin"), offset_ms: 0, ..params() };
    assert_eq!(Params::decode(&berlin.encode()), Some(berlin.clone()));
    assert_eq!(berlin.encode()[40..], b"Europe/Berlin"[..]);
    for wrong in [&b"Europe/\xff"[..], b"Europe Berlin", &[b'x'; 65]] {
        assert_eq!(Params::decode(&[&params().encode()[..], wrong].concat()), None, "{wrong:?}");
    }
    assert_eq!(Head::decode(&head(3, 40).encode()).unwrap(), head(3, 40));
    assert_eq!(Head::decode(&head(0, 40).encode()).unwrap_err().kind(), ErrorKind::LayoutMismatch);
    assert_eq!(Head::decode(&head(1, 65).encode()).unwrap_err().kind(), ErrorKind::LayoutMismatch);
}

#[test]
fn a_time_is_in_one_period_for_ever() {
    let day = 86_400_000;
    let of = |offset_ms, time_ms| Params { offset_ms, ..params() }.period_of(time_ms);
    assert_eq!([of(0, 0), of(0, day - 1), of(0, day)], [Some(0), Some(0), Some(1)]);
    // Five hours behind UTC a day begins at five.
    let new_york = -18_000_000;
    assert_eq!([of(new_york, day), of(new_york, day + 18_000_000)], [Some(0), Some(1)]);
    assert_eq!(of(new_york, 0), None);
    assert_eq!(Params { period_ms: 1, ..params() }.period_of(u64::MAX), None);
    assert_eq!(Params { offset_ms: new_york, ..params() }.begin_ms(1), day + 18_000_000);
    assert_eq!(Params { offset_ms: 18_000_000, ..params() }.begin_ms(0), 0);
}

#[test]
fn shards_follow_each_other_without_a_gap() {
    for (shards, bits) in [(1, 35), (3, 40), (1, 64), (7, 64), (1000, 47)] {
        let head = head(shards, bits);
        assert_eq!(head.first(0), 0);
        assert_eq!(head.first(shards), 1 << bits);
        for shard in [0, shards / 2, shards - 1] {
            for prefix in [head.first(shard), head.first(shard + 1) - 1] {
                let high = (prefix << (64 - bits)) as u64;
                let spot = head.spot(Hash { high, low: 9 }, true);
                assert_eq!((spot.shard, u128::from(spot.offset), spot.low), (shard, prefix - head.first(shard), 9));
                assert!(spot.offset <= head.span(shard).wrapping_sub(1));
            }
        }
    }
}

#[test]
fn two_whole_hashes_with_one_upper_half_are_two() {
    let spots = [4, 9].map(|low| Spot { shard: 0, offset: 7, low });
    let members = Members::default().merge(&spots, true);
    let blob = members.encode(0, 0, 0);
    let read = Blob::parse(&blob).unwrap().members(u64::MAX, true).unwrap();
    assert_eq!(read, members);
    assert!(spots.iter().all(|spot| read.has(spot)));
    assert!(!read.has(&Spot { low: 5, ..spots[0] }));
    let between = read.merge(&[Spot { low: 5, ..spots[0] }], true);
    assert!(between.has(&spots[0]) && between.has(&spots[1]) && between.has(&Spot { low: 5, ..spots[0] }));
}

proptest! {
    #[test]
    fn what_was_merged_is_there_and_nothing_else(ids in proptest::collection::vec(0u64..5_000, 0..300), wide: bool) {
        let head = head(1, 64);
        let (mut all, mut model) = (Members::default(), std::collections::BTreeSet::new());
        let kind = if wide { IdKind::Any } else { IdKind::Integer };
        let spot = |id: u64| head.spot(hash_of(id.into(), kind, 1).unwrap(), wide);
        for part in ids.chunks(20) {
            let new: std::collections::BTreeSet<Spot> =
                part.iter().map(|&id| spot(id)).filter(|spot| !all.has(spot)).collect();
            model.extend(part.iter().copied());
            let new: Vec<Spot> = new.into_iter().collect();
            let blob = all.merge(&new, wide).encode(head.span(0), 5, 0);
            let parsed = Blob::parse(&blob).unwrap();
            prop_assert_eq!((parsed.count as usize, parsed.mark), (model.len(), 5));
            all = parsed.members(u64::MAX, wide).unwrap();
        }
        for id in 0..5_000 {
            prop_assert_eq!(all.has(&spot(id)), model.contains(&id));
        }
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400), last: u64, wide: bool, dressed: bool) {
        let bytes = if dressed { [&b"LU\x01"[..], &bytes].concat() } else { bytes };
        if let Ok(members) = Blob::parse(&bytes).and_then(|blob| blob.members(last, wide)) {
            prop_assert!(members.offsets.iter().all(|&offset| offset <= last));
            prop_assert_eq!(members.lows.len(), if wide { members.offsets.len() } else { 0 });
        }
        _ = Head::decode(&bytes);
        _ = Params::decode(&bytes);
    }
}

#[test]
fn precisions_are_told_in_a_word_and_are_sound_within_their_limits() {
    let words = [Precision::Exact, Precision::Compact, Precision::NEAR_EXACT, Precision::SKETCH].map(Precision::as_str);
    assert_eq!(words, ["exact", "compact", "near-exact", "sketch"]);
    let bits = |bits| Precision::NearExact { bits }.is_sound();
    assert_eq!([23, 24, 48, 49].map(bits), [false, true, true, false]);
    let rows = |lg_k| Precision::Sketch { lg_k }.is_sound();
    assert_eq!([9, 10, 16, 17].map(rows), [false, true, true, false]);
    assert!(Precision::Exact.is_sound() && Precision::Compact.is_sound());
}

#[test]
fn parameters_of_each_kind_come_back() {
    for ids in [IdKind::Any, IdKind::Integer] {
        for shape in [Shape::Blob, Shape::Padded, Shape::Native] {
            let params = Params { ids, shape, ..params() };
            assert_eq!(Params::decode(&params.encode()), Some(params));
        }
    }
    assert_eq!([IdKind::Any.as_str(), IdKind::Integer.as_str()].map(str::is_empty), [false, false]);
    assert_ne!(IdKind::Any.as_str(), IdKind::Integer.as_str());
}

#[test]
fn a_blob_that_outgrows_its_class_grows_by_quarters() {
    assert_eq!([padded(0, 100), padded(100, 100), padded(101, 100), padded(126, 100)], [100, 100, 125, 157]);
    assert_eq!(padded(2, 1), 2);
}

#[test]
fn the_last_period_has_forty_bits() {
    assert_eq!((PERIOD_MAX, SHARDS_MAX), (0xff_ffff_ffff, 0x40_0000));
}

#[test]
fn a_period_of_several_days_of_a_zone_is_as_many_of_its_days() {
    let of = |days: u64| Params {
        zone: Zone::named("Europe/Berlin"),
        offset_ms: 0,
        period_ms: days * 86_400_000,
        ..params()
    };
    let (daily, weekly) = (of(1), of(7));
    // Over both changes of the clocks.
    for time_ms in (0..400).map(|day| 1_700_000_000_000 + day * 86_400_000) {
        let (day, week) = (daily.period_of(time_ms).unwrap(), weekly.period_of(time_ms).unwrap());
        assert_eq!(week, day / 7, "{time_ms}");
        assert_eq!(weekly.begin_ms(week), daily.begin_ms(week * 7));
        assert_eq!(weekly.period_of(weekly.begin_ms(week)), Some(week));
        assert_eq!(weekly.period_of(weekly.begin_ms(week) - 1), Some(week - 1));
    }
}
