//! Holds what a structure tells after a restart against what it had acknowledged.

use std::collections::BTreeSet;

use larder::{Error, ErrorKind, Result};

use super::subjects::{Held, Sort};

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
        Held::Values(values) => {
            let missing: Vec<&u64> = given.acked.difference(values).collect();
            let strange: Vec<&u64> =
                values.difference(&given.acked).filter(|value| !given.unknown.contains(value)).collect();
            match (missing.is_empty(), strange.is_empty()) {
                (true, true) => Outcome::Whole,
                (false, _) => Outcome::Silent(format!("has {} values, and says nothing of {missing:?}", values.len())),
                (true, false) => Outcome::Wrong(format!("has what was not written: {strange:?}")),
            }
        }
        Held::Count(count) => {
            let (least, most) = (given.acked.len() as u64, (given.acked.len() + given.unknown.len()) as u64);
            match *count {
                count if count < least => Outcome::Silent(format!("counts {count} of {least}, and says nothing")),
                count if count > most => Outcome::Wrong(format!("counts {count}, and {most} were given at the most")),
                _ => Outcome::Whole,
            }
        }
        // Its tokens were held against each other as they were given.
        Held::Last(_) if sort == Sort::Lock => Outcome::Whole,
        Held::Last(last) => {
            let newest = given.acked.last();
            match last {
                last if last.as_ref() < newest => {
                    Outcome::Silent(format!("has {last:?}, and says nothing of {newest:?}"))
                }
                Some(last) if last != newest.unwrap_or(&u64::MAX) && !given.unknown.contains(last) => {
                    Outcome::Wrong(format!("has {last}, which was not written"))
                }
                _ => Outcome::Whole,
            }
        }
    }
}

pub(crate) fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Lost | ErrorKind::RolledBack | ErrorKind::Absent)
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn a_count_is_between_what_was_acknowledged_and_what_may_have_been_written() {
        let of = |count| judge(Sort::Counter, false, &given(&[1, 2], &[3]), &Ok(Held::Count(count)));
        assert_eq!((of(2), of(3)), (Outcome::Whole, Outcome::Whole));
        assert!(matches!(of(0), Outcome::Silent(_)) && matches!(of(1), Outcome::Silent(_)));
        assert!(matches!(of(4), Outcome::Wrong(_)));
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
