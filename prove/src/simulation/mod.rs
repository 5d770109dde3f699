//! Simulation: clients, network, server, clocks and randomness of a run all come from one seed, in one thread, in simulated time, so that a seed
//! that fails shows the same failure to the byte as often as it is asked to.
//!
//! | room | purpose |
//! |---|---|
//! | `world` | the machine: time, randomness, and clocks that are wrong |
//! | `climate` | which faults a seed has |
//! | `server` | the server: a memory store that is stopped, emptied, set back, robbed of items |
//! | `net` | connections that delay, break, lose, deliver late |
//! | `client` | the clients' stores |
//! | `nemesis` | what befalls server and network |
//! | `trace` | what happened, as bytes |

mod client;
mod climate;
mod nemesis;
mod net;
mod server;
#[cfg(test)]
mod tests;
mod trace;
mod world;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use larder_core::StoreRef;
use larder_core::ambient::simulation::enter;
use larder_structures::Kind;
use larder_testkit::history::{Arena, Caused, JOBS, Job, Run, Verdict};

use crate::watched::Watched;
use crate::{Budget, Findings, Part};

use client::{ClientStore, QuietStore};
use climate::Climate;
use net::Net;
use server::Server;
use trace::Trace;
use world::Machine;

/// The part of the proof.
pub const PART: Part = Part {
    name: "simulation",
    about: "every structure in a world whose clock, network and server come from one seed, and replay to the byte",
    run,
};

/// A job that has not ended by then hangs.
const HANGS_AFTER: Duration = Duration::from_secs(4 * 3_600);
/// How many seeds are run before one is run twice.
const REPLAYED_ONE_IN: u64 = 64;

/// What a seed came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Simulated {
    /// The job that ran.
    pub job: &'static str,
    /// What the checker says.
    pub verdict: Verdict,
    /// Faults that were caused, by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// How long it took, in the simulation's time.
    pub time: Duration,
    /// What happened, where that was asked for.
    pub trace: String,
}

/// Runs what a seed stands for.
pub fn simulate(seed: u64, is_traced: bool) -> Simulated {
    simulate_job(seed, &JOBS[(mixed(seed) % JOBS.len() as u64) as usize], is_traced)
}

/// Runs a job in the world of a seed.
pub fn simulate_job(seed: u64, job: &'static Job, is_traced: bool) -> Simulated {
    // A thread of its own: what libraries keep by thread (a generator for jitter, a runtime's context) begins anew.
    let thread = std::thread::Builder::new().name(format!("seed-{seed}"));
    let run = thread.spawn(move || run_here(seed, job, is_traced)).expect("a thread");
    run.join().unwrap_or_else(|_| {
        let verdict = broken(format!("{}: a panic", job.name));
        Simulated { job: job.name, verdict, ..Simulated::default() }
    })
}

fn run_here(seed: u64, job: &'static Job, is_traced: bool) -> Simulated {
    fastrand::seed(mixed(seed ^ 1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let mut random = fastrand::Rng::with_seed(mixed(seed ^ 2));
    let mut climate = Climate::draw(&mut random);
    if bears_twice(job.kind, climate.takes_items()) {
        climate = climate.with_requests_twice(&mut fastrand::Rng::with_seed(mixed(seed ^ 4)));
    }
    let machine = Rc::new({
        let _context = runtime.enter();
        Machine::new(mixed(seed ^ 3), climate.are_clocks_wrong)
    });
    let entered = enter(machine.clone());
    let simulated = runtime.block_on(run_in(seed, job, is_traced, climate, random, &machine));
    drop(runtime);
    drop(entered);
    simulated
}

/// Whether a request that was answered may be carried out a second time, as a router between may do: what is written by token, or appended by writer and
/// sequence, to items that are made once and stay. Logs and records make items as they go: where `items_are_taken`, the making that comes again behind a loss brings back
/// the item as it was made, with its incarnation and without what others wrote to it since.
pub(crate) fn bears_twice(kind: Kind, items_are_taken: bool) -> bool {
    match kind {
        Kind::Lock | Kind::Counter | Kind::Set | Kind::Array => true,
        Kind::EventLog | Kind::Records => !items_are_taken,
        _ => false,
    }
}

async fn run_in(
    seed: u64,
    job: &'static Job,
    is_traced: bool,
    climate: Climate,
    mut random: fastrand::Rng,
    machine: &Machine,
) -> Simulated {
    let trace = Trace::new(is_traced);
    trace.line(format_args!("seed {seed}, job {}: {climate:?}", job.name));
    let caused = Arc::new(Caused::default());
    caused.clock_jumps.store(climate.are_clocks_wrong.into(), Ordering::SeqCst);
    let server = Server::new(climate.value_bytes_max, caused.clone());
    let profile = Arc::new(climate.profile(&server.memory_profile()));
    let ops = random.usize(20..200);
    let net = Net::new(climate.clone(), server, trace.clone(), random, mixed(seed ^ 5));
    let over = Arc::new(Mutex::new(Vec::new()));
    let client = |number| {
        let store = ClientStore::new(net.clone(), profile.clone(), number, &over);
        Arc::new(Watched::on_time(Arc::new(store), caused.clone())) as StoreRef
    };
    let arena = Arena {
        clients: (0..climate.clients).map(client).collect(),
        quiet: Arc::new(QuietStore::new(net.clone(), profile.clone(), &over)),
        caused: caused.clone(),
        calm: {
            let net = net.clone();
            Arc::new(move || {
                let net = net.clone();
                Box::pin(async move { net.calm().await })
            })
        },
    };
    let nemesis = tokio::spawn(nemesis::rage(net.clone()));
    let work = tokio::spawn((job.run)(arena, Run { seed, ops }));
    let mut verdict = match tokio::time::timeout(HANGS_AFTER, work).await {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(panic)) => broken(format!("{}: a panic: {panic}", job.name)),
        Err(_) => broken(format!("{}: not over after {HANGS_AFTER:?} of simulated time", job.name)),
    };
    nemesis.abort();
    for violation in &mut verdict.violations {
        *violation = format!("{:?}: {violation}", climate.harm);
    }
    verdict.violations.append(&mut over.lock().unwrap_or_else(PoisonError::into_inner));
    let time = machine.elapsed();
    let mut faults = net.faults();
    let (wrong, set) = machine.wrong_clocks(time);
    faults.extend([("clock of a wrong rate or time", wrong), ("clock set", set)]);
    trace.line(format_args!("{verdict:?}"));
    Simulated { job: job.name, verdict, faults, time, trace: trace.text() }
}

fn broken(what: String) -> Verdict {
    Verdict { violations: vec![what], ..Verdict::default() }
}

/// Neighbouring seeds must not have neighbouring draws.
pub(crate) fn mixed(seed: u64) -> u64 {
    fastrand::Rng::with_seed(seed).u64(..)
}

fn run(budget: Budget) -> Findings {
    let mut findings = Findings::default();
    for (round, seed) in budget.seeds().enumerate() {
        let is_replayed = (round as u64).is_multiple_of(REPLAYED_ONE_IN);
        let simulated = simulate(seed, is_replayed);
        if is_replayed {
            findings.count("simulation seeds run twice", 1);
            if simulate(seed, true) != simulated {
                findings.violation(seed, "ran otherwise the second time");
            }
        }
        tell(&mut findings, seed, simulated);
    }
    findings
}

/// Adds what a seed came to.
fn tell(findings: &mut Findings, seed: u64, simulated: Simulated) {
    let Simulated { job, verdict, faults, time, .. } = simulated;
    // One that the store refused shows nothing.
    findings.count("simulation seeds", u64::from(verdict.refused == 0));
    findings.count("simulated seconds", time.as_secs());
    for (fault, times) in faults {
        findings.count(&format!("faults: {fault}"), times);
    }
    findings.verdict(seed, job, "simulated", verdict);
}
