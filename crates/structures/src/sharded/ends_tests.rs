use proptest::prelude::*;

use super::*;

fn ranked(score: f64, member: &str) -> Ranked {
    Ranked { score: Score::new(score).unwrap(), member: Bytes::copy_from_slice(member.as_bytes()) }
}

fn record(member: &str, score: Option<f64>) -> Records {
    Records::from([(Bytes::copy_from_slice(member.as_bytes()), score.map(|score| Score::new(score).unwrap()))])
}

#[test]
fn golden_bytes() {
    let none = Ends::of_nothing(0x0a0b);
    let bytes = b"\x01\x0b\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\x02\0\0\0\0\x02\x02\0\0\0\0";
    assert_eq!(&none.encode()[..], bytes);
    assert_eq!(Ends::decode(&Bytes::from_static(bytes)), Some(none));
    let mut one = Ends::unknown(3, 0x1122_3344).filled_to(0x1122_3344, 0x0506);
    one.enter(&record("a", Some(1.0)), 1);
    one.enter(&record("b", Some(2.0)), 1);
    let bytes = b"\x01\x04\0\0\0\0\0\0\0\x01\x44\x33\x22\x11\x06\x05\
        \0\x01\x01b\0\0\0\0\0\0\0\x40\x01\0\0\0\x01b\0\0\0\0\0\0\0\x40\
        \0\x01\x01a\0\0\0\0\0\0\xf0\x3f\x01\0\0\0\x01a\0\0\0\0\0\0\xf0\x3f";
    assert_eq!(&one.encode()[..], bytes);
    assert_eq!(Ends::decode(&Bytes::from_static(bytes)), Some(one));
}

#[test]
fn members_of_one_score_are_in_the_order_of_their_bytes() {
    let mut ends = Ends::of_nothing(1);
    for member in ["b", "a", "\u{ff}", ""] {
        ends = ends.with(&record(member, Some(0.0)), 2);
    }
    assert_eq!(ends.side(End::Top).best(2), Some(&[ranked(0.0, "\u{ff}"), ranked(0.0, "b")][..]));
    assert_eq!(ends.side(End::Bottom).best(2), Some(&[ranked(0.0, ""), ranked(0.0, "a")][..]));
    assert_eq!(ends.version, 5);
}

#[test]
fn an_end_that_dropped_a_member_does_not_know_what_comes_after_the_rest() {
    let mut ends = Ends::of_nothing(1);
    for (member, score) in [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0), ("e", 5.0)] {
        ends = ends.with(&record(member, Some(score)), 4);
    }
    assert!(ends.agree(&"a".into(), Some(Score::new(1.0).unwrap())), "beyond the top, and in the bottom");
    assert!(!ends.are_short(4));
    ends = ends.with(&record("e", None), 4);
    assert!(ends.are_short(4) && !ends.are_short(3));
    assert_eq!(ends.side(End::Top).best(4), None);
    assert_eq!(ends.side(End::Bottom).best(4).map(<[Ranked]>::len), Some(4));
    // Filled again, they reach everything that is left, and are complete once all shards were read.
    ends = ends.to_fill(4, 7);
    assert!(ends.are_short(4));
    ends.enter(&record("a", Some(1.0)), 4);
    assert!(ends.filled().side(End::Top).best(4).is_some_and(|best| best.last() == Some(&ranked(1.0, "a"))));
}

/// What a set is, told to its ends in whatever order, and filled now and then: they agree with it wherever they know.
fn check(steps: Vec<(u8, Option<i8>)>, kept: usize) {
    let mut all = Records::new();
    let mut ends = Ends::of_nothing(1);
    for (member, score) in steps {
        let member = Bytes::from(vec![b'a' + member % 24]);
        let score = score.map(|score| Score::from(i32::from(score) / 8));
        let old = all.insert(member.clone(), score).flatten();
        // What is beyond their reach, before and after, they need not learn of.
        if ends.reach(&member, old) || ends.reach(&member, score) {
            ends = ends.with(&Records::from([(member, score)]), kept * 2);
        }
        if ends.are_short(kept) {
            ends = ends.to_fill(kept, 1);
            for (member, score) in &all {
                ends.enter(&Records::from([(member.clone(), *score)]), kept * 2);
                assert_eq!(Ends::decode(&ends.encode()), Some(ends.clone()));
            }
            ends = ends.filled();
        }
        let mut model: Vec<Ranked> = all
            .iter()
            .filter_map(|(member, score)| Some(Ranked { score: (*score)?, member: member.clone() }))
            .collect();
        model.sort();
        let n = kept.min(model.len());
        assert_eq!(ends.side(End::Bottom).best(kept), Some(&model[..n]));
        model.reverse();
        assert_eq!(ends.side(End::Top).best(kept), Some(&model[..n]));
        for (member, score) in &all {
            assert!(ends.agree(member, *score), "{member:?} {score:?} {ends:?}");
        }
        assert_eq!(Ends::decode(&ends.encode()), Some(ends.clone()));
    }
}

proptest! {
    #[test]
    fn ends_agree_with_what_they_are_the_ends_of(steps: Vec<(u8, Option<i8>)>, kept in 1usize..5) {
        check(steps, kept);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
        _ = Ends::decode(&Bytes::from(bytes));
    }

    #[test]
    fn cut_or_changed_bytes_are_read_or_refused(at in 0usize..120, byte: u8) {
        let mut ends = Ends::of_nothing(9);
        for n in 0..8u32 {
            ends = ends.with(&record(&format!("m{n}"), Some(f64::from(n))), 3);
        }
        let mut bytes = ends.encode().to_vec();
        let at = at.min(bytes.len() - 1);
        prop_assert_eq!(Ends::decode(&Bytes::copy_from_slice(&bytes[..at])), None);
        bytes[at] = byte;
        if let Some(read) = Ends::decode(&Bytes::from(bytes)) {
            prop_assert_eq!(Ends::decode(&read.encode()), Some(read));
        }
    }
}

#[test]
fn ends_say_whom_they_reach_name_and_agree_about() {
    let mut ends = Ends::of_nothing(1);
    for (member, score) in [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0), ("e", 5.0)] {
        ends = ends.with(&record(member, Some(score)), 2);
    }
    let score = |score: f64| Some(Score::new(score).unwrap());
    let named = |ends: &Ends| ["a", "b", "c", "d", "e"].map(|member| ends.name(&member.into()));
    assert_eq!(named(&ends), [true, true, false, true, true]);
    assert_eq!(ends.side(End::Top).reach, Bound::To(ranked(4.0, "d")));
    let reached = |score_of: f64| ends.reach(&"x".into(), score(score_of));
    assert_eq!([0.5, 1.5, 3.0, 4.5, 9.0].map(reached), [true, true, false, true, true]);
    assert!(!ends.reach(&"x".into(), None));
    assert!(
        ends.agree(&"c".into(), score(3.0)) && ends.agree(&"a".into(), score(1.0)) && ends.agree(&"x".into(), None)
    );
    for (member, score_of) in [("c", 4.5), ("a", 1.5), ("a", 3.0), ("x", 0.5)] {
        assert!(!ends.agree(&member.into(), score(score_of)), "{member} {score_of}");
    }
    assert!(!ends.agree(&"a".into(), None));
}

#[test]
fn an_end_as_large_as_it_may_be_has_dropped_nobody() {
    let mut ends = Ends::of_nothing(1);
    for (member, score) in [("a", 1.0), ("b", 2.0)] {
        ends = ends.with(&record(member, Some(score)), 2);
    }
    assert_eq!((&ends.top.reach, &ends.bottom.known), (&Bound::Everything, &Bound::Everything));
    ends = ends.with(&record("c", Some(3.0)), 2);
    assert_eq!((&ends.top.reach, &ends.bottom.known), (&Bound::To(ranked(2.0, "b")), &Bound::To(ranked(2.0, "b"))));
}

#[test]
fn bytes_of_no_ends_are_refused() {
    let decoded = |ends: &Ends| Ends::decode(&ends.encode());
    let mut ends = Ends::of_nothing(1).with(&record("a", Some(1.0)), 4).with(&record("b", Some(2.0)), 4);
    assert_eq!(decoded(&ends), Some(ends.clone()));
    let whole = ends.encode();
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.to_vec();
        bytes[at] = byte;
        Ends::decode(&bytes.into())
    };
    assert!(with(0, VERSION + 1).is_none() && with(9, 2).is_none());
    assert!(Ends::decode(&[&whole[..], b"\0"].concat().into()).is_none());
    assert!(Ends::decode(&whole.slice(..whole.len() - 1)).is_none());
    // Entries in another order, twice the same, and one beyond the reach of its end.
    ends.top.entries.reverse();
    assert_eq!(decoded(&ends), None);
    ends.top.entries = vec![ranked(2.0, "b"), ranked(2.0, "b")];
    assert_eq!(decoded(&ends), None);
    ends.top.entries = vec![ranked(2.0, "b"), ranked(1.0, "a")];
    assert!(decoded(&ends).is_some());
    ends.top.reach = Bound::To(ranked(2.0, "b"));
    assert_eq!(decoded(&ends), None);
}
