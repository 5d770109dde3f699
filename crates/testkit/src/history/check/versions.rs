//! What is built in versions: a reader sees one version at a time and none older than it saw, and in the end the latest.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::history::recorder::{Call, Moment};

/// What is asked of a packed table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionOp {
    /// Builds a version whose every row tells this value.
    Build(u64),
    /// Reads some rows.
    Read,
}

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionTold {
    /// It is built, and is the version of this number.
    Built(u64),
    /// The value of all rows that were read; `None` before anything was built.
    Rows(Option<u64>),
}

/// What is wrong with a history that ends with the read of client `last`, in n.
pub fn check(calls: &[Call<VersionOp, VersionTold>], last: usize) -> Vec<String> {
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    let mut begun: HashMap<u64, (u64, bool)> = HashMap::new();
    let mut latest = 0;
    for call in calls {
        let VersionOp::Build(value) = call.op else { continue };
        begun.insert(value, (call.invoked, call.may_count()));
        if let Some(VersionTold::Built(number)) = call.ok() {
            numbers.insert(value, *number);
            latest = latest.max(*number);
        }
    }
    let mut bad = Vec::new();
    let mut seen: HashMap<usize, u64> = HashMap::new();
    for call in calls {
        let Some(VersionTold::Rows(told)) = call.ok() else { continue };
        if let Some(value) = told
            && !begun.get(value).is_some_and(|(at, may_count)| *may_count && *at < call.returned)
        {
            bad.push(format!("rows of {value} were read, which nobody had built"));
        }
        // Of a build whose outcome is unknown the number is, too.
        let Some(number) = told.map_or(Some(0), |value| numbers.get(&value).copied()) else { continue };
        let before = seen.entry(call.client).or_default();
        if number < *before {
            bad.push(format!("client {} read version {number} after {before}", call.client as i64));
        }
        *before = (*before).max(number);
        if call.client == last && number < latest {
            bad.push(format!("at the end it is version {number}; {latest} was built"));
        }
    }
    bad
}

/// Reads of an older version than one that was built long enough before they began, in n log n, up to the moment by which nothing had kept a reader from looking. `times` tells what time
/// it was at moments between the calls.
pub fn stale(
    calls: &[Call<VersionOp, VersionTold>],
    times: &BTreeMap<Moment, Duration>,
    within: Duration,
    until: Moment,
) -> Vec<String> {
    let mut built: Vec<(Duration, u64)> = Vec::new();
    let mut numbers: HashMap<u64, u64> = HashMap::new();
    for call in calls {
        if let (VersionOp::Build(value), Some(VersionTold::Built(number))) = (call.op, call.ok()) {
            numbers.insert(value, *number);
            // No later than it is at the first moment behind it.
            built.extend(times.range(call.returned..).next().map(|(_, at)| (*at, *number)));
        }
    }
    built.sort_unstable();
    let mut latest = 0;
    for entry in &mut built {
        latest = latest.max(entry.1);
        entry.1 = latest;
    }
    let wrong = calls.iter().filter(|call| call.returned <= until).filter_map(|call| {
        let Some(VersionTold::Rows(told)) = call.ok() else { return None };
        let number = told.map_or(Some(0), |value| numbers.get(&value).copied())?;
        let (_, begun) = times.range(..call.invoked).next_back()?;
        let before = built.partition_point(|(at, _)| *at + within < *begun);
        let (at, latest) = *built.get(before.checked_sub(1)?)?;
        let client = call.client as i64;
        (number < latest)
            .then(|| format!("client {client} read version {number} at {begun:?}; {latest} was built by {at:?}"))
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_within_its_time_where_nothing_kept_a_reader_from_it() {
        let builds = [
            call(0, VersionOp::Build(7), 0, VersionTold::Built(1)),
            call(0, VersionOp::Build(8), 10, VersionTold::Built(2)),
        ];
        // Moment 10 is at 1 s, moment 20 at 2 s.
        let times: BTreeMap<Moment, Duration> =
            (0..100).map(|moment| (moment, Duration::from_millis(moment * 100))).collect();
        let of = |at, told, until| {
            let read = call(1, VersionOp::Read, at, VersionTold::Rows(told));
            stale(&[&builds[..], &[read]].concat(), &times, Duration::from_secs(1), until).len()
        };
        assert_eq!(
            [20, 22, 23, 40].map(|at| of(at, Some(7), Moment::MAX)),
            [0, 0, 1, 1],
            "version 2 was built by 1.1 s"
        );
        assert_eq!(
            (of(40, Some(8), Moment::MAX), of(40, Some(9), Moment::MAX)),
            (0, 0),
            "of 9 the number is not known"
        );
        assert_eq!([12, 13].map(|at| of(at, None, Moment::MAX)), [0, 1], "none at all is older than the first");
        assert_eq!([41, 40].map(|until| of(40, Some(7), until)), [1, 0], "something failed before it was over");
    }
    use crate::history::recorder::Outcome;

    fn call(client: usize, op: VersionOp, at: u64, told: VersionTold) -> Call<VersionOp, VersionTold> {
        Call { client, op, invoked: at, returned: at + 1, outcome: Outcome::Ok(told) }
    }

    #[test]
    fn going_back_and_inventing_are_found() {
        let builds = [
            call(0, VersionOp::Build(7), 0, VersionTold::Built(1)),
            call(0, VersionOp::Build(8), 2, VersionTold::Built(2)),
        ];
        let of = |reads: &[(usize, u64, Option<u64>)]| {
            let reads =
                reads.iter().map(|&(client, at, told)| call(client, VersionOp::Read, at, VersionTold::Rows(told)));
            check(&builds.iter().cloned().chain(reads).collect::<Vec<_>>(), 9).len()
        };
        assert_eq!(of(&[(1, 4, Some(7)), (1, 6, Some(8)), (9, 8, Some(8))]), 0);
        assert_eq!(of(&[(1, 4, Some(8)), (1, 6, Some(7))]), 1);
        assert_eq!(of(&[(9, 8, Some(7))]), 1);
        assert_eq!(of(&[(1, 4, Some(5))]), 1);
    }
}
