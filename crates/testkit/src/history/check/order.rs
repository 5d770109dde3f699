//! One order of elements: every read shows them in the order in which they were put, and all reads in the same.

use std::collections::HashMap;

use super::map::{MapOp, MapTold};
use crate::history::recorder::Call;

/// What is wrong with the order of elements that were put once each, in n log n: an element stands behind another whose put began after its
/// own had ended; or two reads disagree.
pub fn check(calls: &[Call<MapOp, MapTold>]) -> Vec<String> {
    let mut puts: HashMap<u64, (u64, u64)> = HashMap::new();
    for call in calls {
        if let MapOp::Put(key, _) = call.op {
            puts.insert(key, (call.invoked, call.returned));
        }
    }
    let reads: Vec<&Vec<(u64, i64)>> = calls
        .iter()
        .filter_map(|call| match call.ok() {
            Some(MapTold::All(all)) => Some(all),
            _ => None,
        })
        .collect();
    let mut bad = Vec::new();
    for read in &reads {
        let mut latest: Option<(u64, u64)> = None;
        for &(key, _) in *read {
            let Some(&(invoked, returned)) = puts.get(&key) else { continue };
            if let Some((before, begun)) = latest.filter(|&(_, begun)| returned < begun) {
                bad.push(format!("{key} was put before {before}, which began at {begun}, and stands behind it"));
            }
            if latest.is_none_or(|(_, begun)| invoked > begun) {
                latest = Some((key, invoked));
            }
        }
    }
    bad.extend(reads.windows(2).filter_map(|pair| disagree(pair[0], pair[1])));
    bad
}

/// Two elements that stand in one order here and in the other there.
fn disagree(one: &[(u64, i64)], other: &[(u64, i64)]) -> Option<String> {
    let places: HashMap<u64, usize> = one.iter().enumerate().map(|(at, (key, _))| (*key, at)).collect();
    let mut last = None;
    for (key, _) in other {
        let Some(&at) = places.get(key) else { continue };
        if let Some((before, place)) = last.filter(|&(_, place)| place > at) {
            return Some(format!(
                "{key} stands at {at} in one read, before {before} at {place}, and behind it in the next"
            ));
        }
        last = Some((*key, at));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::recorder::Outcome;

    fn put(key: u64, invoked: u64, returned: u64) -> Call<MapOp, MapTold> {
        Call { client: 0, op: MapOp::Put(key, 1), invoked, returned, outcome: Outcome::Ok(MapTold::Done) }
    }

    fn read(keys: &[u64]) -> Call<MapOp, MapTold> {
        let all = keys.iter().map(|&key| (key, 1)).collect();
        Call { client: 0, op: MapOp::All, invoked: 90, returned: 91, outcome: Outcome::Ok(MapTold::All(all)) }
    }

    #[test]
    fn orders_are_held_against_time_and_each_other() {
        let puts = [put(1, 0, 1), put(2, 2, 5), put(3, 3, 4)];
        let of = |reads: &[&[u64]]| {
            check(&puts.iter().cloned().chain(reads.iter().map(|keys| read(keys))).collect::<Vec<_>>())
        };
        assert_eq!(of(&[&[1, 2, 3], &[1, 3]]), [""; 0]);
        assert_eq!(of(&[&[1, 3, 2]]), [""; 0]);
        assert_eq!(of(&[&[2, 1]]).len(), 1);
        assert_eq!(of(&[&[1, 2, 3], &[1, 3, 2]]).len(), 1);
    }
}
