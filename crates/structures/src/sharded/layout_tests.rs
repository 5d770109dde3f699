use proptest::prelude::*;

use super::*;

fn map(id: u32, shards: u16, per_shard: u32) -> Map {
    Map { id, shards, per_shard }
}

#[test]
fn golden_bytes() {
    let params = |limits| Params { kept: Kept::Native, is_dense: true, limits };
    assert_eq!(&params(None).encode()[..], b"\x01\x01");
    let sorted = params(Some(Limits { kept: 100, member_bytes_max: 0x0203 }));
    assert_eq!(&sorted.encode()[..], b"\x01\x01\x64\0\x03\x02");
    assert_eq!(Params::decode(&sorted.encode()), Some(sorted));
    assert_eq!(sorted.limits.map(Limits::capacity), Some(200));
    let moving =
        Plan { version: 3, map: map(0x1122_3344, 0x0506, 64), phase: Phase::Moving(map(0xaabb_ccdd, 7, 0x0102)) };
    let bytes = b"\x01\x02\x03\0\0\0\0\0\0\0\x44\x33\x22\x11\x06\x05\x40\0\0\0\xdd\xcc\xbb\xaa\x07\0\x02\x01\0\0";
    assert_eq!(&moving.encode()[..], bytes);
    assert_eq!(Plan::decode(bytes), Some(moving));
    let elements = Elements::from([("b".into(), "22".into()), ("a".into(), "1".into())]);
    let shard = Shard { mark: Mark::Live, tag: 0x0807_0605_0403_0201, seen: 0, elements };
    let hash = b"\x01\x01\x01\x02\x03\x04\x05\x06\x07\x08\x02\0\0\0\x01a\x011\x01b\x0222";
    assert_eq!(&shard.encode(Collection::Hash)[..], hash);
    assert_eq!(Shard::decode(&Bytes::from_static(hash), Collection::Hash), Some(shard.clone()));
    assert_eq!(&shard.encode(Collection::Set)[..], b"\x01\x01\x01\x02\x03\x04\x05\x06\x07\x08\x02\0\0\0\x01a\x01b");
    assert_eq!(Mark::of_flags(shard.flags(Collection::Hash)), Some((Mark::Live, 2)));
}

#[test]
fn golden_bytes_of_a_sorted_set() {
    let one = Score::new(1.0).unwrap();
    let record = |score, is_pending| Record { score, is_pending };
    let mut elements = Elements::new();
    for (name, record) in [("a", record(Some(one), false)), ("b", record(Some(one), true)), ("c", record(None, true))] {
        let bytes = record.encode().unwrap();
        assert_eq!(Record::decode(&bytes), Some(record));
        elements.insert(name.into(), bytes);
    }
    assert_eq!(record(None, false).encode(), None);
    let shard = Shard { mark: Mark::Live, tag: 0x0807_0605_0403_0201, seen: 0x0a09, elements };
    let bytes = b"\x01\x01\x01\x02\x03\x04\x05\x06\x07\x08\x03\0\0\0\x09\x0a\0\0\0\0\0\0\
        \x01a\x08\0\0\0\0\0\0\xf0\x3f\x01b\x09\0\0\0\0\0\0\xf0\x3f\0\x01c\0";
    assert_eq!(&shard.encode(Collection::Sorted)[..], bytes);
    assert_eq!(Shard::decode(&Bytes::from_static(bytes), Collection::Sorted), Some(shard.clone()));
    assert_eq!(
        Mark::of_flags(shard.flags(Collection::Sorted)),
        Some((Mark::Live, 2)),
        "one that was removed does not count"
    );
}

/// The spread is part of the layout for ever.
#[test]
fn golden_places() {
    let places = |name: &[u8]| [2, 3, 1_000, 65_535].map(|shards| map(0, shards, 0).shard_of_hash(hash(name)));
    assert_eq!(places(b""), [0, 0, 175, 11_526]);
    assert_eq!(places(b"a"), [1, 2, 901, 59_077]);
}

#[test]
fn a_name_is_never_a_mark_and_comes_back() {
    for name in [&b""[..], b"a", b"\0", b"\0a", LIVE, SEALED, UNFILLED, b"\0-2147483648", b"-2147483649"] {
        let name = Bytes::copy_from_slice(name);
        let stored = escaped(&name);
        assert!(![LIVE, SEALED, UNFILLED].contains(&&stored[..]), "{name:?}");
        assert_eq!(unescaped(&stored), Some(name));
    }
    assert_eq!(unescaped(&Bytes::from_static(LIVE)), None);
}

fn some_maps() -> impl Strategy<Value = (Map, Map)> {
    (1u16..400, 1u16..400, 1u32..50, 1u32..50, any::<bool>()).prop_map(|(one, other, a, b, is_dense)| {
        let (a, b) = if is_dense { (a, b) } else { (0, 0) };
        (map(1, one, a), map(2, other, b))
    })
}

fn some_kind() -> impl Strategy<Value = Collection> {
    prop_oneof![Just(Collection::Hash), Just(Collection::Set), Just(Collection::Sorted)]
}

#[test]
fn an_overlap_is_no_wider_than_it_must_be() {
    for shards in [1, 2, 3, 7, 500] {
        let (few, many) = (map(0, shards, 0), map(1, shards * 3, 0));
        for shard in 0..shards {
            assert_eq!(few.overlap(shard, &many), shard * 3..shard * 3 + 3);
            assert_eq!(many.overlap(shard * 3 + 2, &few), shard..shard + 1);
            assert_eq!(few.overlap(shard, &few), shard..shard + 1);
        }
    }
}

proptest! {
    #[test]
    fn what_belongs_to_a_shard_comes_from_its_overlap((to, from) in some_maps(), hash: u64, id in 0u64..20_000) {
        let of = |map: &Map| match map.per_shard {
            0 => Some(map.shard_of_hash(hash)),
            per_shard => u16::try_from(id / u64::from(per_shard)).ok().filter(|shard| *shard < map.shards),
        };
        if let (Some(shard), Some(source)) = (of(&to), of(&from)) {
            prop_assert!(to.overlap(shard, &from).contains(&source), "{shard} of {to:?}, {source} of {from:?}");
        }
    }

    #[test]
    fn overlaps_go_on_where_the_last_one_ended((to, from) in some_maps()) {
        let mut last = 0..0;
        for shard in 0..to.shards {
            let next = to.overlap(shard, &from);
            prop_assert!(next.start >= last.start && next.end >= last.end && next.start <= last.end, "{last:?} {next:?}");
            prop_assert!(next.end <= from.shards);
            last = next;
        }
        if to.per_shard == 0 || to.capacity() >= from.capacity() {
            prop_assert_eq!(last.end, from.shards);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, of in some_kind()) {
        _ = Plan::decode(&bytes);
        _ = Params::decode(&bytes);
        let bytes = Bytes::from(bytes);
        if let Some(shard) = Shard::decode(&bytes, of) {
            prop_assert!(shard.elements.len() as u32 >= shard.flags(of) >> 2);
        }
    }

    #[test]
    fn a_shard_comes_back(elements: BTreeMap<Vec<u8>, Vec<u8>>, tag: u64) {
        let elements = elements.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let shard = Shard { mark: Mark::Sealed, tag, seen: 0, elements };
        prop_assert_eq!(Shard::decode(&shard.encode(Collection::Hash), Collection::Hash), Some(shard));
    }
}

#[test]
fn lengths_of_any_size_come_back() {
    for len in [0, 1, 127, 128, 300, 16_383, 16_384, 70_000] {
        let (mut out, bytes) = (BytesMut::new(), vec![7; len]);
        put_bytes(&mut out, &bytes);
        let (encoded, mut at) = (out.freeze(), 0);
        assert_eq!(take_bytes(&encoded, &mut at).as_deref(), Some(&bytes[..]), "{len}");
        assert_eq!(at, encoded.len());
        assert_eq!(take_bytes(&encoded.slice(..at - 1), &mut 0), None, "{len}: cut short");
    }
}

#[test]
fn parameters_and_plans_of_each_kind_come_back() {
    for kept in [Kept::Portable, Kept::Native] {
        for is_dense in [false, true] {
            let params = Params { kept, is_dense, limits: None };
            assert_eq!(Params::decode(&params.encode()), Some(params));
        }
    }
    for bytes in [&b""[..], b"\0", b"\x02\0", b"\0\x02", b"\0\0\0", b"\0\0\0\0\0\0\0"] {
        assert_eq!(Params::decode(bytes), None, "{bytes:?}");
    }
    let (one, other) = (map(1, 2, 3), map(4, 5, 6));
    for (phase, told) in
        [(Phase::Stable, None), (Phase::Planned(other), Some(other)), (Phase::Moving(other), Some(other))]
    {
        let plan = Plan { version: 9, map: one, phase };
        assert_eq!((Plan::decode(&plan.encode()), plan.other()), (Some(plan), told));
        let mut bytes = plan.encode().to_vec();
        bytes[0] += 1;
        assert_eq!(Plan::decode(&bytes), None, "of another version");
        bytes[0] -= 1;
        bytes[1] = 3;
        assert_eq!(Plan::decode(&bytes), None, "of a phase that there is not");
        bytes[14..16].fill(0);
        assert_eq!(Plan::decode(&bytes), None, "of no shards");
    }
    assert_eq!((one.capacity(), map(1, 65_535, u32::MAX).capacity()), (6, 65_535 * u64::from(u32::MAX)));
    let none = Plan { version: 9, map: map(1, 0, 3), phase: Phase::Stable };
    assert_eq!(Plan::decode(&none.encode()), None);
}

#[test]
fn what_follows_a_shard_or_is_of_another_version_is_none() {
    let shard = Shard { mark: Mark::Live, tag: 1, seen: 0, elements: Elements::from([("a".into(), "1".into())]) };
    let whole = shard.encode(Collection::Hash);
    let more: Bytes = [&whole[..], b"\0"].concat().into();
    let mut other = whole.to_vec();
    other[0] += 1;
    assert!(Shard::decode(&whole, Collection::Hash).is_some());
    assert_eq!(Shard::decode(&more, Collection::Hash), None);
    assert_eq!(Shard::decode(&other.into(), Collection::Hash), None);
}

#[test]
fn lengths_of_five_bytes_are_read_and_those_of_more_are_none() {
    let read = |bytes: &[u8]| take_bytes(&Bytes::copy_from_slice(bytes), &mut 0);
    let long = vec![7; 0x4001];
    let mut out = BytesMut::new();
    put_bytes(&mut out, &long);
    assert_eq!(&out[..3], b"\x81\x80\x01");
    assert_eq!(read(&out).as_deref(), Some(&long[..]));
    assert_eq!(read(b"\x81\x80\x80\x80\0a").as_deref(), Some(&b"a"[..]), "five bytes that say one");
    assert_eq!(read(b"\x81\x80\x80\x80\x80\0a"), None);
}

#[test]
fn a_shard_takes_its_header_and_what_each_element_adds() {
    for of in [Collection::Hash, Collection::Set] {
        let mut shard = Shard::empty(Mark::Live);
        let mut bytes = shard.encode(of).len();
        for len in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let (name, value) = (Bytes::from(vec![b'n'; len]), Bytes::from(vec![b'v'; len]));
            bytes += Shard::element_bytes(of, &name, &value);
            shard.elements.insert(name, value);
            assert_eq!(shard.encode(of).len(), bytes, "{of:?}, {len}");
        }
    }
}

fn plan(version: u64, map: Map, phase: Phase) -> Plan {
    Plan { version, map, phase }
}

#[test]
fn a_plan_leads_to_another_one_behind_no_fewer_writes_than_it_takes() {
    let [x, y, z, w] = [1, 2, 3, 4].map(|id| map(id, 2, 0));
    let (stable, planned, moving) = (Phase::Stable, Phase::Planned, Phase::Moving);
    for (before, after, writes) in [
        ((x, stable), (x, stable), 2),
        ((x, stable), (x, planned(y)), 1),
        ((x, stable), (y, moving(x)), 2),
        ((x, stable), (y, stable), 3),
        ((x, stable), (y, planned(z)), 4),
        ((x, stable), (z, moving(y)), 5),
        ((x, planned(y)), (x, stable), 1),
        ((x, planned(y)), (x, planned(z)), 2),
        ((x, planned(y)), (y, moving(x)), 1),
        ((x, planned(y)), (y, stable), 2),
        ((x, planned(y)), (y, planned(z)), 3),
        ((x, planned(y)), (z, moving(y)), 4),
        ((x, planned(y)), (z, moving(x)), 3),
        ((x, planned(y)), (z, stable), 4),
        ((x, planned(y)), (z, planned(w)), 5),
        ((x, planned(y)), (w, moving(z)), 6),
        ((y, moving(x)), (y, stable), 1),
        ((y, moving(x)), (y, planned(z)), 2),
        ((y, moving(x)), (z, moving(y)), 3),
        ((y, moving(x)), (z, stable), 4),
        ((y, moving(x)), (z, planned(w)), 5),
        ((y, moving(x)), (w, moving(z)), 6),
        // From before it, by another way.
        ((y, moving(x)), (z, moving(x)), 6),
    ] {
        let known = plan(7, before.0, before.1);
        for (more, leads) in [(0, false), (writes - 1, false), (writes, true), (writes + 1, true)] {
            let later = plan(7 + more, after.0, after.1);
            if later != known {
                assert_eq!(known.leads_to(&later), leads, "{before:?} to {after:?} behind {more} writes");
            }
        }
        assert!(known.leads_to(&known));
        assert!(!plan(8, before.0, before.1).leads_to(&plan(7, after.0, after.1)));
        assert!(plan(0, w, stable).leads_to(&plan(1, after.0, after.1)), "nothing was known");
    }
}

proptest! {
    #[test]
    fn every_plan_of_a_history_leads_to_all_later_ones(steps in proptest::collection::vec(any::<bool>(), 1..40)) {
        let mut history = vec![plan(1, map(0, 1, 0), Phase::Stable)];
        for (id, is_cleared) in (1u32..).zip(steps) {
            let now = *history.last().unwrap();
            let (map, phase) = match now.phase {
                Phase::Stable => (now.map, Phase::Planned(map(id, 1, 0))),
                Phase::Planned(_) if is_cleared => (now.map, Phase::Stable),
                Phase::Planned(to) => (to, Phase::Moving(now.map)),
                Phase::Moving(_) => (now.map, Phase::Stable),
            };
            history.push(plan(now.version + 1, map, phase));
        }
        for (at, before) in history.iter().enumerate() {
            for later in &history[at..] {
                prop_assert!(before.leads_to(later), "{before:?} to {later:?}");
            }
        }
    }
}
