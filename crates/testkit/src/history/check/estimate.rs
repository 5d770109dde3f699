//! Counts of what is only ever added, some of them estimates: none goes back, and none is further off than its error allows.

use std::collections::BTreeMap;

use super::map::{MapOp, MapTold};
use crate::history::recorder::{Call, Moment};

/// An estimate that is off by more standard errors is wrong: of a normal one a run in two million is.
const ERRORS_MAX: f64 = 5.0;

/// Estimates that are further off than so many keys, as a share of them, in n log n: of those that were certainly there, or of those that may have been.
pub fn check(calls: &[Call<MapOp, MapTold>], standard_error: f64) -> Vec<String> {
    let mut sure: BTreeMap<u64, Moment> = BTreeMap::new();
    let mut possible: BTreeMap<u64, Moment> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.may_count()) {
        let MapOp::Put(key, _) = call.op else { continue };
        earliest(&mut possible, key, call.invoked);
        if call.ok().is_some() {
            earliest(&mut sure, key, call.returned);
        }
    }
    let (sure, possible) = (sorted(sure), sorted(possible));
    let before = |moments: &[Moment], moment: Moment| moments.partition_point(|at| *at < moment) as f64;
    let off = ERRORS_MAX * standard_error;
    let wrong = told(calls).filter_map(|(call, told)| {
        if !matches!(call.ok(), Some(MapTold::Estimate(_))) {
            return None;
        }
        let (least, most) = (before(&sure, call.invoked), before(&possible, call.returned));
        // Rounded, to either side.
        let is_near = (least * (1.0 - off)).floor()..=(most * (1.0 + off)).ceil();
        let what = || format!("{told} were estimated; there are {least} to {most} (moment {})", call.invoked);
        (!is_near.contains(&(told as f64))).then(what)
    });
    wrong.collect()
}

fn earliest(of_keys: &mut BTreeMap<u64, Moment>, key: u64, at: Moment) {
    let earliest = of_keys.entry(key).or_insert(at);
    *earliest = (*earliest).min(at);
}

fn sorted(of_keys: BTreeMap<u64, Moment>) -> Vec<Moment> {
    let mut moments: Vec<Moment> = of_keys.into_values().collect();
    moments.sort_unstable();
    moments
}

/// Counts and estimates.
fn told(calls: &[Call<MapOp, MapTold>]) -> impl Iterator<Item = (&Call<MapOp, MapTold>, u64)> {
    calls.iter().filter(|call| call.op == MapOp::Count).filter_map(|call| match call.ok() {
        Some(MapTold::Count(told) | MapTold::Estimate(told)) => Some((call, *told)),
        _ => None,
    })
}

/// Counts of fewer than another count told that had ended before they began, in n log n.
pub fn one_way(calls: &[Call<MapOp, MapTold>]) -> Vec<String> {
    let mut ended: Vec<(Moment, u64)> = told(calls).map(|(call, told)| (call.returned, told)).collect();
    ended.sort_unstable();
    let mut most = 0;
    for entry in &mut ended {
        most = most.max(entry.1);
        entry.1 = most;
    }
    let wrong = told(calls).filter_map(|(call, told)| {
        let before = ended.partition_point(|(at, _)| *at < call.invoked);
        let (_, most) = *ended.get(before.checked_sub(1)?)?;
        (most > told).then(|| format!("{most} had been counted, and then {told} (moment {})", call.invoked))
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn put(key: u64, invoked: u64, returned: u64) -> Call<MapOp, MapTold> {
        Call { client: 0, op: MapOp::Put(key, 1), invoked, returned, outcome: Outcome::Ok(MapTold::Done) }
    }

    fn count(told: MapTold, invoked: u64) -> Call<MapOp, MapTold> {
        Call { client: 0, op: MapOp::Count, invoked, returned: invoked + 1, outcome: Outcome::Ok(told) }
    }

    fn found(calls: &[Call<MapOp, MapTold>]) -> usize {
        check(calls, 0.01).len()
    }

    #[test]
    fn estimates_are_as_near_as_their_error_allows_to_what_was_there_or_may_have_been() {
        let puts: Vec<_> = (0..200).map(|key| put(key, key, key + 1)).collect();
        let of = |told| found(&[&puts[..], &[count(MapTold::Estimate(told), 300)]].concat());
        assert_eq!([189, 190, 200, 210, 211].map(of), [1, 0, 0, 0, 1]);
        // Once more the same: still 200.
        let twice: Vec<_> = puts.iter().cloned().chain((0..200).map(|key| put(key, 300, 301))).collect();
        let of = |told| found(&[&twice[..], &[count(MapTold::Estimate(told), 400)]].concat());
        assert_eq!([189, 200, 211].map(of), [1, 0, 1]);
        // Those under way are there or not, and those that are refused are not.
        let open = Call { outcome: Outcome::Unknown, ..put(900, 250, Moment::MAX) };
        let refused = |key| Call { outcome: Outcome::NotApplied, ..put(key, 260, 261) };
        let few = [put(1, 0, 1), open, refused(901), refused(902), refused(903), refused(904)];
        let of = |told| found(&[&few[..], &[count(MapTold::Estimate(told), 400)]].concat());
        assert_eq!([0, 1, 2, 3, 4].map(of), [0, 0, 0, 0, 1], "and what is rounded is");
    }

    #[test]
    fn what_was_counted_is_not_uncounted() {
        let of = |first: u64, then: u64, at: u64| {
            one_way(&[count(MapTold::Estimate(first), 10), count(MapTold::Count(then), at)]).len()
        };
        assert_eq!((of(5, 5, 12), of(5, 6, 12), of(5, 4, 12)), (0, 0, 1));
        assert_eq!(of(5, 4, 11), 0, "at the same time");
        let last = [count(MapTold::Count(7), 0), count(MapTold::Count(8), 2), count(MapTold::Count(7), 4)];
        assert_eq!(one_way(&last).len(), 1);
    }
}
