//! Whatever keeps a value by a key: sets, tables, hashes, scores, records. Each key is a register of its own, and its calls must have an order.

use std::collections::{BTreeMap, BTreeSet};

use super::ranking;
use super::search::{Found, Model, search};
use crate::history::recorder::{Call, Moment, Outcome};

/// What is asked of a key, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapOp {
    /// Writes a value.
    Put(u64, i64),
    /// Adds to a value; what is not there counts from 0.
    Add(u64, i64),
    /// Removes a key.
    Remove(u64),
    /// Reads a key.
    Get(u64),
    /// Reads all keys, each at a moment of its own.
    All,
    /// Counts the keys.
    Count,
    /// Reads so many keys of the highest values, the highest first.
    Top(usize),
    /// Reads so many keys of the lowest values, the lowest first.
    Bottom(usize),
    /// Has the keys spread over so many shards, which changes none of them.
    Reshard(u16),
    /// Writes a value where there is none. Nobody asks for it: it is what is left of a put that was held back midway.
    Make(u64, i64),
    /// Ends the life of this value. Nobody asks for it: the store's clock does it.
    End(u64, i64),
    /// Loses this value, that is not listed yet. Nobody asks for it, either: it is what an eviction does to what a put left midway, or is about to list.
    Lose(u64, i64),
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapTold {
    /// It is done; no more is told.
    Done,
    /// It is done, and the key was not there before, or was.
    WasNew(bool),
    /// The key was there and is removed, or was not there.
    WasThere(bool),
    /// What was read.
    Value(Option<i64>),
    /// All keys with their values.
    All(Vec<(u64, i64)>),
    /// How many keys there are.
    Count(u64),
    /// How many there are, about: nothing that is judged here.
    Estimate(u64),
    /// The keys of the highest or the lowest values, the best first.
    Best(Vec<(u64, i64)>),
    /// The key is not there, or no better than the last of those that were told.
    Behind(ranking::Place),
}

impl MapOp {
    /// The key that a call is about, if it is about one.
    pub fn key(self) -> Option<u64> {
        match self {
            MapOp::Put(key, _) | MapOp::Add(key, _) | MapOp::Make(key, _) => Some(key),
            MapOp::End(key, _) | MapOp::Lose(key, _) => Some(key),
            MapOp::Remove(key) | MapOp::Get(key) => Some(key),
            MapOp::All | MapOp::Count | MapOp::Top(_) | MapOp::Bottom(_) | MapOp::Reshard(_) => None,
        }
    }
}

/// A key: nothing, or a number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Held {
    value: Option<i64>,
    /// A put that was acknowledged, or somebody's repair, has listed it: where it is lost, that is told.
    is_listed: bool,
    /// What unknown puts have written by then, since only these make it again.
    landed: BTreeSet<i64>,
}

struct Register;

impl Model for Register {
    type Op = MapOp;
    type Told = MapTold;
    type State = Held;

    fn step(&self, held: &Held, op: &MapOp, told: Option<&MapTold>) -> Option<Held> {
        let (state, landed) = (held.value, &held.landed);
        let is_there = state.is_some();
        let after = match *op {
            MapOp::Put(_, value) => Some(value),
            MapOp::Make(_, value) if is_there || !landed.contains(&value) => return None,
            MapOp::Make(_, value) => Some(value),
            MapOp::Add(_, by) => Some(state.unwrap_or(0) + by),
            MapOp::Lose(..) if held.is_listed && told.is_none() => return None,
            MapOp::Lose(_, value) | MapOp::End(_, value) if state != Some(value) => state,
            MapOp::Remove(_) | MapOp::Lose(..) | MapOp::End(..) => None,
            _ => state,
        };
        let can_be = match told {
            None
            | Some(MapTold::Done | MapTold::All(_) | MapTold::Count(_) | MapTold::Estimate(_) | MapTold::Best(_)) => {
                true
            }
            Some(MapTold::WasNew(is_new)) => *is_new != is_there,
            Some(MapTold::WasThere(was)) => *was == is_there,
            Some(MapTold::Value(value)) => *value == after,
            Some(MapTold::Behind(place)) => match (op.key(), after) {
                (Some(key), Some(value)) => place.is_before(key, value),
                _ => true,
            },
        };
        let mut landed = landed.clone();
        if let (MapOp::Put(_, value), None) = (op, told) {
            landed.insert(*value);
        }
        let lists = matches!(op, MapOp::Put(..)) && told.is_some();
        can_be.then_some(Held { value: after, is_listed: after.is_some() && (held.is_listed || lists), landed })
    }
}

/// What keys promise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// What each key holds at first.
    pub first: Option<i64>,
    /// Acknowledged writes may be undone; what nobody wrote is wrong all the same.
    pub is_set_back: bool,
    /// A key may be missing in reads of all while it is put, though a get finds it: its entry is made before it is listed. Where the writer never came to
    /// the end, until somebody who read it has listed it.
    pub lists_behind: bool,
    /// What a put wrote that was told to have come to nothing may be met by others while that put is under way, and not after it, unless the store was set back
    /// to that moment: its entry is made before the list may refuse the key, and taken back then. Of a put whose outcome is unknown that may be done later on.
    pub takes_back: bool,
    /// A put whose outcome is unknown may have overwritten a value, and make the key once more after that was removed: it is sent as two writes, and the
    /// second may be held back. One that was acknowledged never does.
    pub makes_again: bool,
    /// Entries may have gone by themselves, which is as good as a remove for what is made again. Where they are listed behind, what an unknown put left may
    /// have gone without a word, whoever read it.
    pub may_lose: bool,
}

/// What is wrong with a history of keys.
pub fn check(calls: &[Call<MapOp, MapTold>], rules: Rules) -> Vec<String> {
    let first = rules.first;
    let keys: BTreeSet<u64> = calls.iter().filter_map(|call| call.op.key()).collect();
    let mut of_key: BTreeMap<u64, Vec<Call<MapOp, MapTold>>> = keys.iter().map(|&key| (key, Vec::new())).collect();
    let mut bad = Vec::new();
    for call in calls {
        if let Some(key) = call.op.key() {
            of_key.entry(key).or_default().push(call.clone());
        }
    }
    for call in calls {
        match call.ok() {
            Some(MapTold::All(all)) => bad.extend(spread(call, all, rules, &mut of_key)),
            Some(MapTold::Best(best)) => bad.extend(ranking::spread(call, best, &mut of_key)),
            _ => {}
        }
    }
    for (key, calls) in &mut of_key {
        if rules.takes_back {
            forgive_met(calls, rules.is_set_back);
            take_back_late(calls);
        }
        bad.extend(invented(*key, calls, first));
        if rules.makes_again {
            make_again(calls, rules.may_lose);
        }
        if rules.lists_behind && rules.may_lose {
            lose_unlisted(calls);
        }
        if !rules.is_set_back {
            bad.extend(explained(*key, calls, first));
        }
    }
    if !rules.is_set_back {
        bad.extend(counts(calls));
    }
    bad
}

/// A read of all is a read of each key. What it tells of keys that nobody named, or twice, is wrong.
fn spread(
    call: &Call<MapOp, MapTold>,
    all: &[(u64, i64)],
    rules: Rules,
    of_key: &mut BTreeMap<u64, Vec<Call<MapOp, MapTold>>>,
) -> Vec<String> {
    let told: BTreeMap<u64, i64> = all.iter().copied().collect();
    let mut bad = Vec::new();
    if told.len() != all.len() {
        bad.push(format!("a read of all tells a key twice: {all:?}"));
    }
    bad.extend(told.keys().filter(|key| !of_key.contains_key(key)).map(|key| format!("key {key} was never written")));
    for (key, calls) in of_key {
        let value = told.get(key).copied().or(rules.first);
        let is_listed_by_then = |other: &Call<MapOp, MapTold>| {
            let is_beside = other.invoked < call.returned && call.invoked < other.returned;
            !(other.is_unknown() || is_beside && matches!(other.op, MapOp::Put(..)))
        };
        if value.is_none() && rules.lists_behind && !calls.iter().all(is_listed_by_then) {
            continue;
        }
        let outcome = Outcome::Ok(MapTold::Value(value));
        calls.push(Call {
            client: call.client,
            op: MapOp::Get(*key),
            invoked: call.invoked,
            returned: call.returned,
            outcome,
        });
    }
    bad
}

/// Takes out reads of a value beside the very put that wrote it and was told to have come to nothing. A remove beside such a put may have found its entry, and
/// tells nothing. What was taken back may come back where the store was set back.
fn forgive_met(calls: &mut Vec<Call<MapOp, MapTold>>, is_set_back: bool) {
    let taken_back: Vec<(i64, Moment, Moment)> = calls
        .iter()
        .filter_map(|call| match call.op {
            MapOp::Put(_, value) if !call.may_count() => Some((value, call.invoked, call.returned)),
            _ => None,
        })
        .collect();
    let met = |call: &Call<MapOp, MapTold>, of: Option<i64>| {
        let is_beside =
            |invoked: Moment, returned: Moment| invoked < call.returned && (is_set_back || call.invoked < returned);
        taken_back.iter().any(|&(value, begun, ended)| of.is_none_or(|of| of == value) && is_beside(begun, ended))
    };
    calls.retain(|call| !matches!(call.ok(), Some(MapTold::Value(Some(value))) if met(call, Some(*value))));
    for call in calls.iter_mut() {
        if call.ok() == Some(&MapTold::WasThere(true)) && met(call, None) {
            call.outcome = Outcome::Ok(MapTold::Done);
        }
    }
}

fn is_read(calls: &[Call<MapOp, MapTold>], value: i64) -> bool {
    calls.iter().any(|call| call.ok() == Some(&MapTold::Value(Some(value))))
}

/// Adds what unknown puts may come to a second time, where what they wrote was read at all.
fn make_again(calls: &mut Vec<Call<MapOp, MapTold>>, may_lose: bool) {
    let second = |call: &Call<MapOp, MapTold>| match call.op {
        MapOp::Put(key, value) if call.is_unknown() && is_read(calls, value) => {
            let op = if may_lose { call.op } else { MapOp::Make(key, value) };
            Some(Call { op, ..call.clone() })
        }
        _ => None,
    };
    let seconds: Vec<_> = calls.iter().filter_map(second).collect();
    calls.extend(seconds);
}

/// Adds that what unknown puts wrote is taken back, where it was read at all: the list refused it, and the delete was held back until its caller had given up (simulation seed 999544673).
fn take_back_late(calls: &mut Vec<Call<MapOp, MapTold>>) {
    let taken_back = |call: &Call<MapOp, MapTold>| match call.op {
        MapOp::Put(key, value) if call.is_unknown() && is_read(calls, value) => {
            Some(Call { op: MapOp::Lose(key, value), ..call.clone() })
        }
        _ => None,
    };
    let taken_back: Vec<_> = calls.iter().filter_map(taken_back).collect();
    calls.extend(taken_back);
}

/// Adds losses of what unknown puts left unlisted, and of what others met that was put later on.
fn lose_unlisted(calls: &mut Vec<Call<MapOp, MapTold>>) {
    let is_met = |put: &Call<MapOp, MapTold>, value: i64| {
        let meets = |read: &Call<MapOp, MapTold>| read.ok() == Some(&MapTold::Value(Some(value)));
        calls.iter().any(|read| meets(read) && read.invoked < put.returned)
    };
    let lost = |call: &Call<MapOp, MapTold>| match call.op {
        MapOp::Put(key, value) | MapOp::Make(key, value) if call.may_count() && is_met(call, value) => {
            Some(Call { op: MapOp::Lose(key, value), ..call.clone() })
        }
        _ => None,
    };
    let losses: Vec<_> = calls.iter().filter_map(lost).collect();
    calls.extend(losses);
}

/// Values that nobody wrote before they were read. Only where nobody adds: then values are as they were written.
fn invented(key: u64, calls: &[Call<MapOp, MapTold>], first: Option<i64>) -> Vec<String> {
    if calls.iter().any(|call| matches!(call.op, MapOp::Add(..))) {
        return Vec::new();
    }
    let mut written: BTreeMap<i64, u64> = BTreeMap::new();
    for call in calls.iter().filter(|call| call.may_count()) {
        if let MapOp::Put(_, value) = call.op {
            let at = written.entry(value).or_insert(call.invoked);
            *at = (*at).min(call.invoked);
        }
    }
    let wrong = calls.iter().filter_map(|call| match call.ok() {
        Some(MapTold::Value(Some(value))) if Some(*value) != first => {
            let is_known = written.get(value).is_some_and(|&at| at < call.returned);
            (!is_known).then(|| format!("key {key} read {value}, which nobody had written"))
        }
        _ => None,
    });
    wrong.collect()
}

fn explained(key: u64, calls: &[Call<MapOp, MapTold>], first: Option<i64>) -> Option<String> {
    let all: Vec<&Call<MapOp, MapTold>> = calls.iter().collect();
    match search(&Register, Held { value: first, ..Held::default() }, &all) {
        Found::Order => None,
        Found::None => Some(format!("no order explains what was told of key {key}: {}", shown(calls))),
        Found::Undecided => Some(format!("{} calls on key {key} are too many to be decided", calls.len())),
    }
}

/// The calls in short, for a message.
fn shown(calls: &[Call<MapOp, MapTold>]) -> String {
    let mut calls: Vec<&Call<MapOp, MapTold>> = calls.iter().filter(|call| call.may_count()).collect();
    calls.sort_by_key(|call| call.invoked);
    let one = |call: &&Call<MapOp, MapTold>| match call.ok() {
        Some(told) => format!("{}..{} c{} {:?}={told:?}", call.invoked, call.returned, call.client as i64, call.op),
        None => format!("{}.. c{} {:?}=?", call.invoked, call.client as i64, call.op),
    };
    calls.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Counts of keys that are only ever added: between those that were there for certain and those that may be.
fn counts(calls: &[Call<MapOp, MapTold>]) -> Vec<String> {
    if calls.iter().any(|call| matches!(call.op, MapOp::Remove(_))) {
        return Vec::new();
    }
    let before = |is_in: &dyn Fn(&Call<MapOp, MapTold>) -> bool| {
        let writes = calls.iter().filter(|call| matches!(call.op, MapOp::Put(..) | MapOp::Add(..)) && is_in(call));
        writes.filter_map(|call| call.op.key()).collect::<BTreeSet<u64>>().len() as u64
    };
    let wrong = calls.iter().filter(|call| call.op == MapOp::Count).filter_map(|read| {
        let Some(MapTold::Count(told)) = read.ok() else { return None };
        let least = before(&|call| call.ok().is_some() && call.returned < read.invoked);
        let most = before(&|call| call.may_count() && call.invoked < read.returned);
        (!(least..=most).contains(told)).then(|| format!("{told} keys were counted; there are {least} to {most}"))
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: MapOp, invoked: u64, returned: u64, told: MapTold) -> Call<MapOp, MapTold> {
        Call { client: 0, op, invoked, returned, outcome: Outcome::Ok(told) }
    }

    fn unknown(op: MapOp, invoked: u64) -> Call<MapOp, MapTold> {
        Call { client: 0, op, invoked, returned: Moment::MAX, outcome: Outcome::Unknown }
    }

    fn value(value: i64) -> MapTold {
        MapTold::Value(Some(value))
    }

    #[test]
    fn good_histories_pass() {
        let nothing = MapTold::Value(None);
        let all = MapTold::All(vec![(1, 7)]);
        for good in [
            vec![
                call(MapOp::Put(1, 7), 0, 5, MapTold::Done),
                call(MapOp::Get(1), 1, 2, nothing.clone()),
                call(MapOp::All, 6, 7, all),
            ],
            vec![
                unknown(MapOp::Put(1, 7), 0),
                call(MapOp::Get(1), 1, 2, nothing.clone()),
                call(MapOp::Get(1), 3, 4, value(7)),
            ],
            vec![
                unknown(MapOp::Remove(1), 0),
                call(MapOp::Put(1, 7), 1, 2, MapTold::WasNew(true)),
                call(MapOp::Get(1), 3, 4, nothing),
            ],
            vec![
                call(MapOp::Add(1, 2), 0, 9, value(5)),
                call(MapOp::Add(1, 3), 1, 2, value(3)),
                call(MapOp::Count, 3, 4, MapTold::Count(1)),
            ],
        ] {
            assert_eq!(check(&good, Rules::default()), [""; 0]);
        }
    }

    #[test]
    fn unknown_calls_that_change_nothing_are_not_tried_in_every_order() {
        let mut calls: Vec<_> = (0..40).map(|at| unknown(MapOp::Remove(1), at)).collect();
        calls.push(call(MapOp::Put(1, 7), 50, 51, MapTold::WasNew(false)));
        let said = check(&calls, Rules::default());
        assert!(matches!(&said[..], [said] if said.contains("no order explains")), "{said:?}");
    }

    #[test]
    fn what_is_being_put_may_be_missing_in_a_list_where_lists_come_behind_and_only_there() {
        let seen = |listed: u64, until: u64| {
            vec![
                call(MapOp::Put(1, 7), 0, 9, MapTold::Done),
                call(MapOp::Get(1), 1, 2, value(7)),
                call(MapOp::All, listed, until, MapTold::All(Vec::new())),
            ]
        };
        let behind = Rules { lists_behind: true, ..Rules::default() };
        assert_eq!(check(&seen(3, 12), behind), [""; 0]);
        assert_eq!(check(&seen(3, 12), Rules::default()).len(), 1);
        assert_eq!(check(&seen(10, 12), behind).len(), 1, "the put was over");
    }

    #[test]
    fn what_a_put_takes_back_may_be_met_while_it_is_under_way_and_only_then() {
        let refused =
            Call { client: 0, op: MapOp::Put(1, 7), invoked: 2, returned: 6, outcome: Outcome::<MapTold>::NotApplied };
        let beside = |call: Call<MapOp, MapTold>| check(&[refused.clone(), call], rules()).len();
        fn rules() -> Rules {
            Rules { takes_back: true, ..Rules::default() }
        }
        assert_eq!(beside(call(MapOp::Get(1), 3, 4, value(7))), 0);
        assert_eq!(beside(call(MapOp::All, 5, 9, MapTold::All(vec![(1, 7)]))), 0);
        assert_eq!(beside(call(MapOp::Remove(1), 3, 4, MapTold::WasThere(true))), 0);
        assert_ne!(beside(call(MapOp::Get(1), 0, 1, value(7))), 0, "before it began");
        assert_ne!(beside(call(MapOp::Get(1), 7, 8, value(7))), 0, "after it was over");
        let set_back =
            |call: Call<MapOp, MapTold>| check(&[refused.clone(), call], Rules { is_set_back: true, ..rules() }).len();
        assert_eq!(set_back(call(MapOp::Get(1), 7, 8, value(7))), 0, "the store went back to when it was there");
        assert_ne!(set_back(call(MapOp::Get(1), 0, 1, value(7))), 0, "before it began");
        assert_ne!(beside(call(MapOp::Get(1), 3, 4, value(8))), 0, "another value");
        assert_ne!(beside(call(MapOp::Remove(1), 7, 8, MapTold::WasThere(true))), 0, "after it was over");
        assert_ne!(check(&[refused.clone(), call(MapOp::Get(1), 3, 4, value(7))], Rules::default()).len(), 0);
        // What is there all the while is overwritten by nobody.
        let there = [call(MapOp::Put(1, 5), 0, 1, MapTold::Done), refused.clone()];
        let then = |told: MapTold| check(&[&there[..], &[call(MapOp::Get(1), 7, 8, told)]].concat(), rules()).len();
        assert_eq!(then(value(5)), 0);
        assert_ne!(then(MapTold::Value(None)), 0);
    }

    #[test]
    fn what_an_unknown_put_wrote_may_be_taken_back_late_unless_it_was_listed() {
        let rules = Rules { takes_back: true, ..Rules::default() };
        let unknown =
            Call { client: 0, op: MapOp::Put(1, 7), invoked: 2, returned: Moment::MAX, outcome: Outcome::Unknown };
        let read = |told: MapTold, at| call(MapOp::Get(1), at, at + 1, told);
        let gone = [unknown.clone(), read(value(7), 3), read(MapTold::Value(None), 8)];
        assert_eq!(check(&gone, rules).len(), 0);
        assert_ne!(check(&gone, Rules::default()).len(), 0);
        let back = [&gone[..], &[read(value(7), 12)]].concat();
        assert_ne!(check(&back, rules).len(), 0, "it does not come back");
        let listed = [&[call(MapOp::Put(1, 5), 0, 1, MapTold::Done)], &gone[..]].concat();
        assert_ne!(check(&listed, rules).len(), 0, "the key is listed: nothing is taken back");
    }

    #[test]
    fn an_unknown_put_may_make_its_key_again_where_it_was_removed_and_only_there() {
        let again = Rules { makes_again: true, ..Rules::default() };
        let get = |at: u64, told: MapTold| call(MapOp::Get(1), at, at + 1, told);
        let nothing = MapTold::Value(None);
        let back = |put: Call<MapOp, MapTold>| {
            let remove = call(MapOp::Remove(1), 4, 5, MapTold::Done);
            vec![put, get(2, value(7)), remove, get(6, nothing.clone()), get(8, value(7))]
        };
        let held_back = back(unknown(MapOp::Put(1, 7), 0));
        assert_eq!(check(&held_back, again), [""; 0]);
        assert_eq!(check(&held_back, Rules::default()).len(), 1, "elsewhere a put counts once");
        assert_eq!(check(&back(call(MapOp::Put(1, 7), 0, 1, MapTold::Done)), again).len(), 1, "it was acknowledged");
        let mut thrice = held_back;
        thrice.extend([call(MapOp::Remove(1), 10, 11, MapTold::Done), get(12, nothing), get(14, value(7))]);
        assert_eq!(check(&thrice, again).len(), 1, "twice, and no more");
        let put_over = call(MapOp::Put(1, 8), 4, 5, MapTold::Done);
        let over = [unknown(MapOp::Put(1, 7), 0), get(2, value(7)), put_over, get(6, value(7))];
        assert_eq!(check(&over, again).len(), 1, "what is there is not made");
        assert_eq!(check(&over, Rules { may_lose: true, ..again }), [""; 0], "it may have gone in between");
        // An entry that an unknown put made may go unlisted; one that was put for certain may not.
        let beside = call(MapOp::Put(1, 7), 0, 9, MapTold::Done);
        let gone = |put: Call<MapOp, MapTold>| {
            vec![put, call(MapOp::Get(1), 3, 4, value(7)), call(MapOp::Get(1), 5, 6, MapTold::Value(None))]
        };
        let evicts = Rules { lists_behind: true, may_lose: true, ..Rules::default() };
        assert_eq!(check(&gone(unknown(MapOp::Put(1, 7), 0)), evicts), [""; 0]);
        assert_eq!(check(&gone(beside), evicts), [""; 0], "it went before it was listed");
        for (put, rules) in [
            (unknown(MapOp::Put(1, 7), 0), Rules { may_lose: false, ..evicts }),
            (unknown(MapOp::Put(1, 7), 0), Rules { lists_behind: false, ..evicts }),
            (call(MapOp::Put(1, 7), 0, 1, MapTold::Done), evicts),
        ] {
            assert_eq!(check(&gone(put), rules).len(), 1);
        }
    }

    #[test]
    fn bad_histories_are_found() {
        let nothing = MapTold::Value(None);
        for bad in [
            // Lost.
            vec![call(MapOp::Put(1, 7), 0, 1, MapTold::Done), call(MapOp::Get(1), 2, 3, nothing.clone())],
            // An unknown remove that happens twice.
            vec![
                unknown(MapOp::Remove(1), 0),
                call(MapOp::Put(1, 7), 1, 2, MapTold::Done),
                call(MapOp::Get(1), 3, 4, nothing.clone()),
                call(MapOp::Put(1, 8), 5, 6, MapTold::Done),
                call(MapOp::Get(1), 7, 8, nothing.clone()),
            ],
            // Two that were the first.
            vec![
                call(MapOp::Put(1, 7), 0, 9, MapTold::WasNew(true)),
                call(MapOp::Put(1, 8), 1, 8, MapTold::WasNew(true)),
            ],
            // Back to an older value.
            vec![
                call(MapOp::Put(1, 7), 0, 1, MapTold::Done),
                call(MapOp::Put(1, 8), 2, 3, MapTold::Done),
                call(MapOp::Get(1), 4, 5, value(7)),
            ],
            vec![call(MapOp::Add(1, 2), 0, 1, value(2)), call(MapOp::Get(1), 2, 3, value(4))],
            vec![
                call(MapOp::Put(1, 2), 0, 1, MapTold::Done),
                call(MapOp::All, 2, 3, MapTold::All(vec![(1, 2), (9, 9)])),
            ],
            vec![call(MapOp::Put(1, 2), 0, 1, MapTold::Done), call(MapOp::Count, 2, 3, MapTold::Count(2))],
        ] {
            assert!(!check(&bad, Rules::default()).is_empty(), "{bad:?}");
        }
        let from_nowhere = [call(MapOp::Put(1, 7), 0, 1, MapTold::Done), call(MapOp::Get(1), 2, 3, value(9))];
        assert_eq!(check(&from_nowhere, Rules { is_set_back: true, ..Rules::default() }).len(), 1);
    }
}
