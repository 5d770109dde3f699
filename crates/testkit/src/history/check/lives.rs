//! Lives: when what was put has to be gone, and until when it has to be there, as calls of nobody beside those of the clients.

use std::collections::BTreeMap;
use std::time::Duration;

use super::map::{MapOp, MapTold};
use crate::history::recorder::{Call, Moment, Outcome};

/// How long what is put lives, and how exactly.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// By value; `None`: for ever.
    pub of: fn(i64) -> Option<Duration>,
    /// How much earlier the store may end one.
    pub early: Duration,
    /// How much later.
    pub late: Duration,
    /// By this moment nothing had taken long.
    pub smooth_until: Moment,
    /// How much later than that, where something has: a write that is held back on its way has a life begin anew when it comes.
    pub held_back: Duration,
    /// Whatever has a life may have gone at any time, and nobody is told: so it is near the end of a life where something was lost.
    pub may_lose: bool,
}

/// The ends of all lives that were put, each between the moments by which it can have come, and must have. `times` tells what time it was at moments between the calls.
pub fn ends(
    calls: &[Call<MapOp, MapTold>],
    times: &BTreeMap<Moment, Duration>,
    lives: Lives,
) -> Vec<Call<MapOp, MapTold>> {
    calls.iter().filter(|call| call.may_count()).filter_map(|call| end(call, times, lives)).collect()
}

fn end(put: &Call<MapOp, MapTold>, times: &BTreeMap<Moment, Duration>, lives: Lives) -> Option<Call<MapOp, MapTold>> {
    let MapOp::Put(key, value) = put.op else { return None };
    let life = (lives.of)(value)?;
    // Of an entry that was there for the shortest time: since the call began.
    let begun = times.range(..put.invoked).next_back().map_or(Duration::ZERO, |(_, at)| *at);
    let earliest = (begun + life).saturating_sub(lives.early);
    let done = times.range(put.returned..).next().map(|(_, at)| *at);
    // A put that took longer than that may not have been told before the end came.
    let told = if done.is_some_and(|done| done <= earliest) { put.returned } else { put.invoked };
    let not_before = times.iter().rev().find(|(_, at)| **at <= earliest).map_or(0, |(moment, _)| *moment);
    let invoked = if lives.may_lose { told } else { not_before.max(told) };
    // And for the longest: since it was told. What is unknown may come at any time, and so does its end.
    let over_after = |late: Duration| {
        let latest = done? + life + late;
        times.iter().find(|(_, at)| **at >= latest).map(|(moment, _)| *moment)
    };
    let smoothly = over_after(lives.late).filter(|over| *over <= lives.smooth_until);
    let (returned, outcome) = match smoothly.or_else(|| over_after(lives.late + lives.held_back)) {
        Some(moment) if !put.is_unknown() => (moment, Outcome::Ok(MapTold::Done)),
        _ => (Moment::MAX, Outcome::Unknown),
    };
    Some(Call { client: put.client, op: MapOp::End(key, value), invoked, returned, outcome })
}

#[cfg(test)]
mod tests {
    use super::super::map::{Rules, check};
    use super::*;

    fn call(op: MapOp, invoked: u64, told: MapTold) -> Call<MapOp, MapTold> {
        Call { client: 0, op, invoked, returned: invoked + 1, outcome: Outcome::Ok(told) }
    }

    /// Lives of ten seconds for values up to 10, within one second; a moment is one, too.
    const LIVES: Lives = Lives {
        of: |value| (value <= 10).then_some(Duration::from_secs(10)),
        early: Duration::from_secs(1),
        late: Duration::from_secs(1),
        smooth_until: Moment::MAX,
        held_back: Duration::from_secs(20),
        may_lose: false,
    };

    fn found(calls: &[Call<MapOp, MapTold>], lives: Lives) -> usize {
        let times = (0..100).map(|moment| (moment, Duration::from_secs(moment))).collect();
        let mut calls = calls.to_vec();
        let ends = ends(&calls, &times, lives);
        calls.extend(ends);
        check(&calls, Rules::default()).len()
    }

    fn get(at: u64, value: Option<i64>) -> Call<MapOp, MapTold> {
        call(MapOp::Get(1), at, MapTold::Value(value))
    }

    #[test]
    fn what_has_a_life_is_there_until_it_can_be_over_and_gone_once_it_must_be() {
        let put = call(MapOp::Put(1, 7), 10, MapTold::Done);
        let with = |read| found(&[put.clone(), read], LIVES);
        // It ends between 9 + 10 - 1 = 18 s and 11 + 10 + 1 = 22 s.
        assert_eq!([12, 16, 18, 21, 60].map(|at| with(get(at, None))), [1, 1, 0, 0, 0]);
        assert_eq!([12, 18, 21, 23, 60].map(|at| with(get(at, Some(7)))), [0, 0, 0, 1, 1]);
        let lossy = Lives { may_lose: true, ..LIVES };
        assert_eq!([12, 60].map(|at| found(&[put.clone(), get(at, None)], lossy)), [0, 0]);
        assert_eq!([12, 60].map(|at| found(&[put.clone(), get(at, Some(7))], lossy)), [0, 1]);
        assert_eq!(found(&[put.clone(), get(12, None), get(14, Some(7))], lossy), 1, "it does not come back");
    }

    #[test]
    fn what_may_have_been_held_back_may_last_longer_and_not_for_ever() {
        let put = call(MapOp::Put(1, 7), 10, MapTold::Done);
        let of = |smooth_until| {
            let lives = Lives { smooth_until, ..LIVES };
            [21, 23, 41, 43].map(|at| found(&[put.clone(), get(at, Some(7))], lives))
        };
        assert_eq!((of(22), of(21), of(0)), ([0, 1, 1, 1], [0, 0, 0, 1], [0, 0, 0, 1]));
    }

    #[test]
    fn a_life_is_its_own_values_alone() {
        let over = [call(MapOp::Put(1, 7), 10, MapTold::Done), call(MapOp::Put(1, 11), 15, MapTold::Done)];
        assert_eq!([Some(11), None].map(|told| found(&[&over[..], &[get(60, told)]].concat(), LIVES)), [0, 1]);
        let anew = [call(MapOp::Put(1, 7), 10, MapTold::Done), call(MapOp::Put(1, 8), 18, MapTold::Done)];
        let of = |at, told| found(&[&anew[..], &[get(at, told)]].concat(), LIVES);
        assert_eq!((of(25, Some(8)), of(25, None), of(40, Some(8)), of(40, None)), (0, 1, 1, 0));
    }

    #[test]
    fn what_is_unknown_may_come_and_go_at_any_time() {
        let put =
            Call { returned: Moment::MAX, outcome: Outcome::Unknown, ..call(MapOp::Put(1, 7), 10, MapTold::Done) };
        for told in [None, Some(7)] {
            assert_eq!([12, 60].map(|at| found(&[put.clone(), get(at, told)], LIVES)), [0, 0]);
        }
        assert_eq!(found(&[put, get(12, Some(7)), get(14, None)], LIVES), 1, "it was there, and has some time yet");
    }
}
