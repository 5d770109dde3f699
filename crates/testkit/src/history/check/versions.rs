//! What is built in versions: a reader sees one version at a time and none older than it saw, and in the end the latest.

use std::collections::HashMap;

use crate::history::recorder::Call;

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

#[cfg(test)]
mod tests {
    use super::*;
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
