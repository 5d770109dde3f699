use super::*;
use crate::{Op, Reply};

/// Ops and replies are moved through every layer: what is optional lies behind a pointer.
#[test]
fn native_ops_do_not_make_ops_and_replies_larger() {
    assert!(size_of::<Op>() <= 152, "{}", size_of::<Op>());
    assert!(size_of::<Reply>() <= 88, "{}", size_of::<Reply>());
}

#[test]
fn scores_are_ordered_and_have_one_zero() {
    let score = |score| Score::new(score).unwrap();
    assert_eq!(score(-0.0), score(0.0));
    assert_eq!(score(-0.0).get().to_bits(), 0);
    assert!(score(f64::NEG_INFINITY) < score(-1.5) && score(-1.5) < score(0.0) && score(3.0) < score(f64::INFINITY));
    assert!(Score::new(f64::NAN).is_err());
}

fn bits(mark: &'static str, act: GuardedBitsAct) -> Native {
    Native::GuardedBits(GuardedBits { mark: mark.into(), act })
}

#[test]
fn what_every_store_would_refuse_is_named() {
    let bad = [
        Native::HashGet { fields: Vec::new() },
        Native::SetAdd { members: Vec::new() },
        Native::StreamAppend { fields: Vec::new(), keep: None },
        Native::SortedAdd { entries: vec![("m".into(), Score::from(1))], only: Only::GREATER | Only::LESS },
        Native::SortedTrim(Ranks::top(1)),
        Native::SetScan(Scan::start(0)),
        Native::Bits(Vec::new()),
        Native::Bits(vec![BitField::get(1, 0), BitField::get(64, 0)]),
        Native::Bits(vec![BitField::get(2, BitField::OFFSET_END - 1)]),
        Native::Bits(vec![BitField::get(2, u64::MAX)]),
        Native::Bits(vec![BitField::set(3, 0, 8)]),
        bits("m", GuardedBitsAct::Put { numbers: Vec::new() }),
        bits("m", GuardedBitsAct::Put { numbers: vec![BitField::incr(3, 8, 1)] }),
        bits("m", GuardedBitsAct::Put { numbers: vec![BitField::set(3, 8, 8)] }),
        bits("m", GuardedBitsAct::Incr { number: BitField::set(3, 8, 1) }),
        bits("m", GuardedBitsAct::Incr { number: BitField::incr(64, 8, 1) }),
        bits("m", GuardedBitsAct::Incr { number: BitField::incr(63, 8_192 - 62, 1) }),
        bits("", GuardedBitsAct::Incr { number: BitField::incr(3, 8, 1) }),
        bits("m", GuardedBitsAct::Drop { or: vec![Bytes::from(vec![7; 1_025])] }),
        Native::Guarded(Guarded { of: Collection::Set, mark: "m".into(), act: GuardedAct::Make { ttl_ms: Some(0) } }),
    ];
    for native in bad {
        assert_eq!(native.check().unwrap_err().kind(), ErrorKind::BadInput, "{native:?}");
    }
    for field in [BitField::get(2, BitField::OFFSET_END - 2), BitField::set(63, 0, i64::MAX as u64)] {
        field.check().unwrap();
    }
}

#[test]
fn a_number_that_is_added_to_ends_within_the_longest_mark() {
    let incr = |offset| bits("m", GuardedBitsAct::Incr { number: BitField::incr(63, offset, 1) });
    incr(8 * 1_024 - 63).check().unwrap();
    let error = incr(8 * 1_024 - 62).check().unwrap_err();
    assert!(error.detail().contains("ends in byte 1025; the limit is 1024"), "{error}");
}
