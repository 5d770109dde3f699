//! Holds what a structure tells after a restart against what it had acknowledged.

use std::collections::BTreeSet;

use larder::{Error, ErrorKind, Result};

use super::subjects::{Held, Sort, Stood, amount};

/// What a structure was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// Values whose writing was acknowledged.
    pub(crate) acked: BTreeSet<u64>,
    /// Values of which it was said to be unknown.
    pub(crate) unknown: BTreeSet<u64>,
}

/// What came of a look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All that was acknowledged is there, and nothing that nobody wrote.
    Whole,
    /// The loss is told.
    Told,
    /// Something that was acknowledged is missing, and nobody says so.
    Silent(String),
    /// Anything else that must not be.
    Wrong(String),
}

/// What a handle says that has seen the data, or a fresh one; `keeps` where the server keeps over a crash what it acknowledged.
pub(crate) fn judge(sort: Sort, keeps: bool, given: &Given, said: &Result<Held>) -> Outcome {
    let held = match said {
        Ok(held) => held,
        Err(error) if is_loss(error) && !keeps => return Outcome::Told,
        Err(error) if is_loss(error) => return Outcome::Wrong(format!("says that what was kept is gone: {error}")),
        Err(error) => return Outcome::Wrong(format!("says {error}")),
    };
    match held {
        Held::Values(values) => judge_values(given, values),
        Held::Sum(sum) => judge_sum(sort, given, *sum),
        Held::Known { count, values } => judge_known(given, *count, values),
        Held::Last(last) => judge_last(given, *last),
        // A lock that is gone with its server is made anew by whoever takes it; its tokens were held against each other as they were given.
        Held::Stood(Stood { told, acked }) if keeps && told < acked => {
            Outcome::Silent(format!("told {told:?}, and says nothing of {acked:?}"))
        }
        Held::Stood(_) => Outcome::Whole,
    }
}

fn judge_values(given: &Given, values: &BTreeSet<u64>) -> Outcome {
    let missing: Vec<&u64> = given.acked.difference(values).collect();
    let strange: Vec<&u64> = values.difference(&given.acked).filter(|value| !given.unknown.contains(value)).collect();
    match (missing.is_empty(), strange.is_empty()) {
        (true, true) => Outcome::Whole,
        (false, _) => Outcome::Silent(format!("has {} values, and says nothing of {missing:?}", values.len())),
        (true, false) => Outcome::Wrong(format!("has what was not written: {strange:?}")),
    }
}

/// A sum is whole that is all of what was acknowledged, once, and some of what is unknown.
fn judge_sum(sort: Sort, given: &Given, sum: u64) -> Outcome {
    let amounts = |values: &BTreeSet<u64>| -> Vec<u64> { values.iter().map(|&value| amount(sort, value)).collect() };
    let (acked, unknown) = (amounts(&given.acked), amounts(&given.unknown));
    let least: u64 = acked.iter().sum();
    let most = least + unknown.iter().sum::<u64>();
    match sum.checked_sub(least) {
        None => Outcome::Silent(format!("has {sum} of {least}, and says nothing")),
        Some(_) if sum > most => Outcome::Wrong(format!("has {sum}, and {most} were given at the most")),
        Some(more) if make_up(&unknown, more) => Outcome::Whole,
        // One is missing, or is there twice: a sum does not tell which.
        Some(more) => Outcome::Silent(format!(
            "has {sum}, and says nothing of the {least} that were acknowledged: {more} more are none of the unknown {unknown:?}"
        )),
    }
}

/// Whether some of these amounts make up a sum. Looks at 2^n choices at the most: in a life no more than 16 values are written, of which few are unknown.
fn make_up(amounts: &[u64], sum: u64) -> bool {
    match amounts {
        _ if sum == 0 => true,
        _ if amounts.iter().sum::<u64>() < sum => false,
        [first, others @ ..] => {
            sum.checked_sub(*first).is_some_and(|rest| make_up(others, rest)) || make_up(others, sum)
        }
        [] => false,
    }
}

/// Ids are asked for one by one, and counted. Of those that nobody wrote one may be taken for another's, so these are left to the count.
fn judge_known(given: &Given, count: u64, known: &BTreeSet<u64>) -> Outcome {
    let missing: Vec<&u64> = given.acked.difference(known).collect();
    let there =
        (given.acked.len() + given.unknown.difference(&given.acked).filter(|id| known.contains(id)).count()) as u64;
    match count {
        _ if !missing.is_empty() => Outcome::Silent(format!("counts {count}, and says nothing of {missing:?}")),
        count if count < there => {
            Outcome::Silent(format!("counts {count} of the {there} that it knows, and says nothing"))
        }
        count if count > there => Outcome::Wrong(format!("counts {count}, and of what was given it knows {there}")),
        _ => Outcome::Whole,
    }
}

fn judge_last(given: &Given, last: Option<u64>) -> Outcome {
    let newest = given.acked.last();
    match last {
        last if last.as_ref() < newest => Outcome::Silent(format!("has {last:?}, and says nothing of {newest:?}")),
        Some(last) if last != *newest.unwrap_or(&u64::MAX) && !given.unknown.contains(&last) => {
            Outcome::Wrong(format!("has {last}, which was not written"))
        }
        _ => Outcome::Whole,
    }
}

pub(crate) fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack | ErrorKind::Absent)
}

#[cfg(test)]
mod tests {
    use super::super::subjects::Stand;
    use super::*;

    fn given(acked: &[u64], unknown: &[u64]) -> Given {
        Given { acked: acked.iter().copied().collect(), unknown: unknown.iter().copied().collect() }
    }

    fn values(values: &[u64]) -> Result<Held> {
        Ok(Held::Values(values.iter().copied().collect()))
    }

    #[test]
    fn what_was_acknowledged_is_there_or_its_loss_is_silent() {
        let of = |held: &[u64]| judge(Sort::Set, true, &given(&[1, 2], &[3]), &values(held));
        assert_eq!(of(&[1, 2]), Outcome::Whole);
        assert_eq!(of(&[1, 2, 3]), Outcome::Whole);
        for half in [&[1][..], &[], &[1, 3], &[2, 4]] {
            assert!(matches!(of(half), Outcome::Silent(_)), "{half:?}");
        }
        assert!(matches!(of(&[1, 2, 4]), Outcome::Wrong(_)));
    }

    const SUMS: [Sort; 3] = [Sort::Counter, Sort::FastCounter, Sort::Visitors];

    /// What is said of a sum of the amounts of these values.
    fn judge_sum_of(sort: Sort, given: &Given, values: &[u64]) -> Outcome {
        let sum = values.iter().map(|&value| amount(sort, value)).sum();
        judge(sort, true, given, &Ok(Held::Sum(sum)))
    }

    #[test]
    fn a_sum_is_what_was_acknowledged_and_any_choice_of_what_may_have_been_written() {
        for sort in SUMS {
            let of = |values: &[u64]| judge_sum_of(sort, &given(&[1, 2], &[3, 4, 5]), values);
            for whole in [&[1, 2][..], &[1, 2, 3], &[1, 2, 5], &[1, 2, 3, 5], &[1, 2, 3, 4, 5]] {
                assert_eq!(of(whole), Outcome::Whole, "{sort:?} {whole:?}");
            }
            assert!(matches!(of(&[]), Outcome::Silent(_)) && matches!(of(&[1]), Outcome::Silent(_)), "{sort:?}");
            assert!(matches!(of(&[1, 2, 3, 4, 5, 6]), Outcome::Wrong(_)), "{sort:?}");
        }
    }

    #[test]
    fn one_that_is_missing_is_told_from_an_unknown_one_that_landed() {
        for sort in SUMS {
            for (lost, unknown) in (0..16).flat_map(|one| (0..16).map(move |two| (one, two))).filter(|(a, b)| a != b) {
                let of = |values: &[u64]| judge_sum_of(sort, &given(&[lost, 20], &[unknown, 21]), values);
                for masked in [&[20, unknown][..], &[20, 21], &[20, unknown, 21]] {
                    assert!(matches!(of(masked), Outcome::Silent(_)), "{sort:?} lost {lost}, has {masked:?}");
                }
                assert_eq!(of(&[lost, 20, unknown]), Outcome::Whole);
            }
        }
    }

    #[test]
    fn one_that_is_there_twice_is_told_from_an_unknown_one_that_did_not_land() {
        for sort in SUMS {
            let mut silent = 0;
            for (twice, unknown) in (0..16).flat_map(|one| (0..16).map(move |two| (one, two))).filter(|(a, b)| a != b) {
                let said = judge_sum_of(sort, &given(&[twice, 20], &[unknown]), &[twice, twice, 20]);
                // More than could be is no loss, but as wrong.
                let is_less = amount(sort, twice) < amount(sort, unknown);
                assert_eq!(
                    matches!(said, Outcome::Silent(_)),
                    is_less,
                    "{sort:?} {twice} twice, not {unknown}: {said:?}"
                );
                assert_eq!(
                    matches!(said, Outcome::Wrong(_)),
                    !is_less,
                    "{sort:?} {twice} twice, not {unknown}: {said:?}"
                );
                silent += u64::from(is_less);
            }
            assert_eq!(silent, 16 * 15 / 2);
        }
    }

    #[test]
    fn amounts_make_up_their_sums_alone() {
        let made: Vec<u64> = (0..=18).filter(|&sum| make_up(&[5, 2, 10], sum)).collect();
        assert_eq!(made, [0, 2, 5, 7, 10, 12, 15, 17]);
    }

    #[test]
    fn ids_are_known_one_by_one_and_counted() {
        let of = |count, known: &[u64]| {
            let said = Ok(Held::Known { count, values: known.iter().copied().collect() });
            judge(Sort::Unique, true, &given(&[1, 2], &[3]), &said)
        };
        // That 9 is known is an accident of its hash, and no harm.
        assert_eq!(
            (of(2, &[1, 2]), of(3, &[1, 2, 3]), of(2, &[1, 2, 9])),
            (Outcome::Whole, Outcome::Whole, Outcome::Whole)
        );
        for (count, known) in [(2, &[1, 3][..]), (2, &[1]), (1, &[1]), (0, &[]), (2, &[1, 2, 3]), (1, &[1, 2])] {
            assert!(matches!(of(count, known), Outcome::Silent(_)), "{count} {known:?}");
        }
        assert!(matches!(of(3, &[1, 2]), Outcome::Wrong(_)) && matches!(of(4, &[1, 2, 3]), Outcome::Wrong(_)));
    }

    #[test]
    fn a_lock_stands_no_less_far_than_was_acknowledged_where_the_server_keeps_all() {
        let stand = |token, is_free| Stand { token, is_free };
        let of = |keeps, told| {
            let said = Ok(Held::Stood(Stood { told, acked: stand(7, true) }));
            judge(Sort::Lock, keeps, &given(&[1], &[]), &said)
        };
        for told in [stand(7, true), stand(8, false), stand(8, true)] {
            assert_eq!((of(true, told), of(false, told)), (Outcome::Whole, Outcome::Whole), "{told:?}");
        }
        for told in [Stand::default(), stand(6, true), stand(7, false)] {
            assert!(matches!(of(true, told), Outcome::Silent(_)), "{told:?}");
            assert_eq!(of(false, told), Outcome::Whole, "{told:?}");
        }
        let fresh = Ok(Held::Stood(Stood::default()));
        assert_eq!(judge(Sort::Lock, true, &given(&[], &[]), &fresh), Outcome::Whole);
    }

    #[test]
    fn the_last_value_is_the_newest_that_was_acknowledged_or_one_that_may_have_come_behind() {
        let of = |last| judge(Sort::Lookup, true, &given(&[1, 4], &[2, 5]), &Ok(Held::Last(last)));
        assert_eq!((of(Some(4)), of(Some(5))), (Outcome::Whole, Outcome::Whole));
        for old in [None, Some(1), Some(2)] {
            assert!(matches!(of(old), Outcome::Silent(_)), "{old:?}");
        }
        assert!(matches!(of(Some(6)), Outcome::Wrong(_)));
        let nothing = |last| judge(Sort::Lookup, true, &given(&[], &[]), &Ok(Held::Last(last)));
        assert_eq!(nothing(None), Outcome::Whole);
        assert!(matches!(nothing(Some(1)), Outcome::Wrong(_)));
    }

    #[test]
    fn a_loss_is_told_where_the_server_keeps_nothing_and_wrong_where_it_keeps_all() {
        for kind in [ErrorKind::Lost, ErrorKind::RolledBack, ErrorKind::Absent] {
            let said = Err(Error::new(kind, "gone"));
            assert_eq!(judge(Sort::Set, false, &given(&[1], &[]), &said), Outcome::Told);
            assert!(matches!(judge(Sort::Set, true, &given(&[1], &[]), &said), Outcome::Wrong(_)));
        }
        let said = Err(Error::new(ErrorKind::Corrupt, "twice"));
        assert!(matches!(judge(Sort::Set, false, &given(&[1], &[]), &said), Outcome::Wrong(_)));
    }
}
