//! The ends of what is ordered by values: a read of the best is one of every key, of those that it tells by their values, and of all others by
//! their not being better.

use std::collections::BTreeMap;

use super::map::{MapOp, MapTold};
use crate::history::recorder::{Call, Outcome};

type MapCall = Call<MapOp, MapTold>;

/// Which end is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The highest first; of one value the greater name.
    Top,
    /// The lowest first; of one value the lesser name.
    Bottom,
}

/// A place in a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    end: End,
    key: u64,
    value: i64,
}

impl Place {
    /// Whether it stands before another.
    pub fn is_before(&self, key: u64, value: i64) -> bool {
        // Names are the digits of the keys, and are ordered as bytes.
        let (own, other) = ((self.value, self.key.to_string()), (value, key.to_string()));
        match self.end {
            End::Top => own > other,
            End::Bottom => own < other,
        }
    }
}

/// Adds to the calls of each key what a read of the best says of it; what is wrong with the list itself.
pub(super) fn spread(call: &MapCall, best: &[(u64, i64)], of_key: &mut BTreeMap<u64, Vec<MapCall>>) -> Vec<String> {
    let (end, most) = match call.op {
        MapOp::Top(most) => (End::Top, most),
        MapOp::Bottom(most) => (End::Bottom, most),
        _ => return vec![format!("{:?} was told the best", call.op)],
    };
    let places: Vec<Place> = best.iter().map(|&(key, value)| Place { end, key, value }).collect();
    let mut bad = Vec::new();
    if best.len() > most {
        bad.push(format!("{most} of the best were asked for, and told were {best:?}"));
    }
    if !places.windows(2).all(|pair| pair[0].is_before(pair[1].key, pair[1].value)) {
        bad.push(format!("the best are not in their order: {end:?} {best:?}"));
    }
    bad.extend(
        best.iter().filter(|(key, _)| !of_key.contains_key(key)).map(|(key, _)| format!("key {key} was never written")),
    );
    let last = places.last().filter(|_| best.len() >= most);
    for (key, calls) in of_key {
        let told = match (best.iter().find(|(told, _)| told == key), last) {
            (Some((_, value)), _) => MapTold::Value(Some(*value)),
            (None, Some(last)) => MapTold::Behind(*last),
            // There is room for more: so there are no more.
            (None, None) => MapTold::Value(None),
        };
        let (op, outcome) = (MapOp::Get(*key), Outcome::Ok(told));
        calls.push(Call { client: call.client, op, invoked: call.invoked, returned: call.returned, outcome });
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::check::map::{Rules, check};

    fn call(op: MapOp, invoked: u64, returned: u64, told: MapTold) -> MapCall {
        Call { client: 0, op, invoked, returned, outcome: Outcome::Ok(told) }
    }

    fn found(reads: &[(MapOp, &[(u64, i64)])]) -> Vec<String> {
        let put = |key, value, at| call(MapOp::Put(key, value), at, at + 1, MapTold::Done);
        let mut calls = vec![put(1, 7, 0), put(2, 5, 2), put(10, 5, 4), put(3, 9, 6), put(4, 8, 8)];
        calls.push(call(MapOp::Remove(3), 10, 11, MapTold::WasThere(true)));
        // Under way while all is read.
        calls.push(call(MapOp::Put(1, 2), 12, 99, MapTold::Done));
        calls.extend(reads.iter().map(|(op, best)| call(*op, 20, 21, MapTold::Best(best.to_vec()))));
        check(&calls, Rules::default())
    }

    #[test]
    fn the_best_are_told_as_they_stand() {
        use MapOp::{Bottom, Top};
        assert_eq!(found(&[(Top(2), &[(4, 8), (1, 7)]), (Bottom(2), &[(10, 5), (2, 5)])]), [""; 0]);
        assert_eq!(found(&[(Bottom(1), &[(1, 2)]), (Top(9), &[(4, 8), (1, 7), (2, 5), (10, 5)])]), [""; 0]);
        let bad: [(MapOp, &[(u64, i64)]); 8] = [
            // One that is better is missing; one was removed; there is room for more.
            (Top(2), &[(1, 7), (2, 5)]),
            (Top(2), &[(3, 9), (4, 8)]),
            (Top(4), &[(4, 8), (2, 5)]),
            // Out of order, twice, by names that are equal in value, too many, of nobody.
            (Bottom(2), &[(2, 5), (1, 2)]),
            (Top(2), &[(4, 8), (4, 8)]),
            (Bottom(1), &[(2, 5)]),
            (Top(1), &[(4, 8), (1, 7)]),
            (Top(2), &[(7, 77), (4, 8)]),
        ];
        for read in bad {
            assert!(!found(&[read]).is_empty(), "{read:?}");
        }
    }
}
