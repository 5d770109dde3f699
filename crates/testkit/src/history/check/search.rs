//! A search for an order of calls that explains what was told: linearizability, by the algorithm of Wing and Gong with the memory of
//! Lowe's (as porcupine and knossos have it). Exponential at worst, so for the calls of one key, of which there are few.

use std::collections::HashSet;
use std::hash::Hash;

use crate::history::recorder::{Call, Moment};

/// What one key does, told call by call.
pub trait Model {
    /// What is asked.
    type Op;
    /// What is told.
    type Told;
    /// What is stored.
    type State: Clone + Eq + Hash;

    /// The state after a call took effect; `None` if what was told cannot be. `told` is `None` where it is unknown.
    fn step(&self, state: &Self::State, op: &Self::Op, told: Option<&Self::Told>) -> Option<Self::State>;
}

/// What a search came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is an order that explains all.
    Order,
    /// There is none.
    None,
    /// It would take too long to tell.
    Undecided,
}

/// Steps of a search before it is given up: half a minute. A tenth of it left 2 in 60,000 rounds undecided, both of which have an order.
const STEPS_MAX: usize = 200_000_000;
/// The end of the list.
const END: usize = usize::MAX;

/// Whether the calls have an order in which each takes effect between its invocation and its return, unknown ones at any time after their
/// invocation or never, such that the model explains what was told. Calls that were not applied are passed over.
pub fn search<M: Model>(model: &M, first: M::State, calls: &[&Call<M::Op, M::Told>]) -> Found {
    search_within(STEPS_MAX, model, first, calls)
}

/// The same, given up after so many steps.
pub fn search_within<M: Model>(steps: usize, model: &M, first: M::State, calls: &[&Call<M::Op, M::Told>]) -> Found {
    let calls: Vec<&Call<M::Op, M::Told>> = calls.iter().copied().filter(|call| call.may_count()).collect();
    Search::new(&calls).run(steps, model, first, &calls)
}

/// Invocations and returns in the order of time, as a list that calls are taken out of and put back into.
struct Search {
    /// By entry: which call, and whether it is its return.
    entries: Vec<(usize, bool)>,
    next: Vec<usize>,
    prev: Vec<usize>,
    head: usize,
    /// By call: its entries.
    of_call: Vec<(usize, Option<usize>)>,
    /// Returns that are still in the list.
    returns: usize,
}

impl Search {
    fn new<O, R>(calls: &[&Call<O, R>]) -> Search {
        let mut times: Vec<(Moment, usize, bool)> = Vec::with_capacity(2 * calls.len());
        for (at, call) in calls.iter().enumerate() {
            times.push((call.invoked, at, false));
            if call.ok().is_some() {
                times.push((call.returned, at, true));
            }
        }
        times.sort_unstable();
        let count = times.len();
        let mut of_call = vec![(0, None); calls.len()];
        for (entry, (_, call, is_return)) in times.iter().enumerate() {
            if *is_return { of_call[*call].1 = Some(entry) } else { of_call[*call].0 = entry }
        }
        Search {
            entries: times.iter().map(|(_, call, is_return)| (*call, *is_return)).collect(),
            next: (1..=count).map(|at| if at == count { END } else { at }).collect(),
            prev: (0..count).map(|at| at.checked_sub(1).unwrap_or(END)).collect(),
            head: if count == 0 { END } else { 0 },
            returns: of_call.iter().filter(|(_, back)| back.is_some()).count(),
            of_call,
        }
    }

    fn take(&mut self, entry: usize) {
        let (prev, next) = (self.prev[entry], self.next[entry]);
        if prev == END {
            self.head = next
        } else {
            self.next[prev] = next
        }
        if next != END {
            self.prev[next] = prev;
        }
    }

    fn put_back(&mut self, entry: usize) {
        let (prev, next) = (self.prev[entry], self.next[entry]);
        if prev == END {
            self.head = entry
        } else {
            self.next[prev] = entry
        }
        if next != END {
            self.prev[next] = entry;
        }
    }

    fn take_call(&mut self, call: usize) {
        let (begin, end) = self.of_call[call];
        self.take(begin);
        if let Some(end) = end {
            self.take(end);
            self.returns -= 1;
        }
    }

    fn put_call_back(&mut self, call: usize) {
        let (begin, end) = self.of_call[call];
        if let Some(end) = end {
            self.put_back(end);
            self.returns += 1;
        }
        self.put_back(begin);
    }

    fn run<M: Model>(mut self, steps: usize, model: &M, first: M::State, calls: &[&Call<M::Op, M::Told>]) -> Found {
        let mut seen: HashSet<(Vec<u64>, M::State)> = HashSet::new();
        let mut done = vec![0u64; calls.len().div_ceil(64)];
        let mut path: Vec<(usize, M::State)> = Vec::new();
        let mut state = first;
        let mut entry = self.head;
        for _ in 0..steps {
            if self.returns == 0 {
                return Found::Order;
            }
            let (call, is_return) = self.entries[entry];
            if is_return {
                // It had to take effect before, and could not: one step back.
                let Some((last, before)) = path.pop() else { return Found::None };
                state = before;
                done[last / 64] &= !(1 << (last % 64));
                self.put_call_back(last);
                entry = self.next[self.of_call[last].0];
                continue;
            }
            let after = model.step(&state, &calls[call].op, calls[call].ok()).filter(|after| {
                // One that is unknown and would change nothing may as well never take effect.
                if calls[call].ok().is_none() && *after == state {
                    return false;
                }
                done[call / 64] |= 1 << (call % 64);
                let is_new = seen.insert((done.clone(), after.clone()));
                if !is_new {
                    done[call / 64] &= !(1 << (call % 64));
                }
                is_new
            });
            match after {
                Some(after) => {
                    path.push((call, std::mem::replace(&mut state, after)));
                    self.take_call(call);
                    entry = self.head;
                }
                None => entry = self.next[entry],
            }
        }
        Found::Undecided
    }
}
