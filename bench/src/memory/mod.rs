//! The store in the process against `moka`, `dashmap` and `quick_cache`: the same semantics, and the memory they take.

mod ours;
mod peers;
mod table;
mod worker;

use std::cell::RefCell;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::{Plan, Result};
use worker::{Candidate, KEY_BYTES, Work, Worker};
pub(crate) use worker::{WorkerArgs, work};

const VALUE_BYTES: usize = 100;
/// A round is long here.
const ROUNDS_MAX: usize = 11;
const THREADS: [usize; 2] = [1, 2];
/// The most memory an item that must be reached is stated for values of this size.
const OVERHEAD_VALUE_BYTES: usize = 32;
const OVERHEAD_BYTES_MAX: f64 = 48.0;

const PEERS: [Candidate; 4] =
    [Candidate::Dashmap, Candidate::QuickCacheShared, Candidate::QuickCacheCopied, Candidate::Moka];
const ALL: [Candidate; 6] = [
    Candidate::Larder,
    Candidate::LarderDyn,
    Candidate::Dashmap,
    Candidate::QuickCacheShared,
    Candidate::QuickCacheCopied,
    Candidate::Moka,
];

/// Ops a second, each candidate in a process of its own, in turns.
pub(crate) fn measure(plan: &Plan, progress: &Progress) -> Result<Findings> {
    let machine = Machine::read();
    let mut workers = Vec::with_capacity(ALL.len());
    for candidate in ALL {
        progress.note(&format!("{}: loading {} items", candidate.label(), plan.items));
        workers.push((candidate, RefCell::new(Worker::start(candidate, plan.items, VALUE_BYTES, true)?)));
    }
    let how = format!(
        "{} items, keys of {KEY_BYTES} bytes, values of {VALUE_BYTES} with a life of an hour, drawn evenly; {} rounds of {} ops a thread.",
        plan.items,
        plan.rounds.min(ROUNDS_MAX),
        plan.ops
    );
    let mut contests = Vec::new();
    for work in Work::ALL {
        for threads in THREADS.into_iter().filter(|&threads| plan.wants(&name(work, threads))) {
            contests.push(hold(plan, progress, &workers, work, threads)?);
        }
    }
    Ok(Findings { section: Section::Memory, how, machine, contests, pools: Vec::new() })
}

fn hold(
    plan: &Plan,
    progress: &Progress,
    workers: &[(Candidate, RefCell<Worker>)],
    work: Work,
    threads: usize,
) -> Result<Contest> {
    let contestants = workers.iter().map(|(candidate, worker)| {
        let mut seed = 0;
        Contestant::new(candidate.label(), String::new(), move || {
            seed += 1;
            worker.borrow_mut().round(work, threads, plan.ops, seed)
        })
    });
    let must = threads == 2 && matches!(work, Work::Read | Work::Get | Work::Append);
    let against = PEERS.map(Candidate::label).to_vec();
    let goal = Goal { ours: Candidate::Larder.label(), against, limit: must.then_some(Limit::AtLeast(1.0)) };
    let name = name(work, threads);
    contest::hold(progress, &name, Unit::OpsPerSecond, plan.rounds.min(ROUNDS_MAX), contestants.collect(), &[goal])
}

fn name(work: Work, threads: usize) -> String {
    format!("{}, {threads} thread{}", work.name(), if threads == 1 { "" } else { "s" })
}

/// Bytes an item beyond its key and value, each candidate and round in a process of its own.
pub(crate) fn measure_overhead(plan: &Plan, progress: &Progress) -> Result<Findings> {
    /// Memory hardly differs between rounds.
    const PROCESSES_MAX: usize = 3;
    let machine = Machine::read();
    let rounds = plan.rounds.min(PROCESSES_MAX);
    let how = format!(
        "Growth of the resident set over {} items, keys of {KEY_BYTES} bytes, less keys and values, an item; {rounds} rounds.",
        plan.items
    );
    let mut contests = Vec::new();
    for (value_bytes, ttl) in [(OVERHEAD_VALUE_BYTES, false), (OVERHEAD_VALUE_BYTES, true), (VALUE_BYTES, false)] {
        let contestants = ALL.into_iter().filter(|&candidate| candidate != Candidate::LarderDyn).map(|candidate| {
            Contestant::new(candidate.label(), String::new(), move || {
                let grown = Worker::start(candidate, plan.items, value_bytes, ttl)?.grown_bytes;
                Ok(grown as f64 / plan.items as f64 - (KEY_BYTES + value_bytes) as f64)
            })
        });
        let must = value_bytes == OVERHEAD_VALUE_BYTES;
        let limit = must.then_some(Limit::AtMost(OVERHEAD_BYTES_MAX));
        let goal = Goal { ours: Candidate::Larder.label(), against: Vec::new(), limit };
        let name = format!("values of {value_bytes} bytes, {} lives", if ttl { "with" } else { "without" });
        let contest = contest::hold(progress, &name, Unit::OverheadBytes, rounds, contestants.collect(), &[goal])?;
        contests.push(contest);
    }
    Ok(Findings { section: Section::Overhead, how, machine, contests, pools: Vec::new() })
}
