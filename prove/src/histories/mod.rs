//! The part `histories`: the jobs of the testkit on stores in the process, behind everything that breaks there.
//!
//! Each round draws a job, a store and the faults from its seed. On memory, time is virtual: a round takes a millisecond or so.

pub(crate) mod stores;

use std::sync::Arc;

use larder_core::{ClockRef, StoreRef, SystemClock};
use larder_layers::testing::{Fault, Faulty};
use larder_store_memory::MemoryStore;
use larder_testkit::history::{Arena, Caused, JOBS, Job, Run, Verdict, by_clocks};

use self::stores::{Meeting, Thief};
use crate::virtual_time::{self, VirtualClock};
use crate::watched::Watched;
use crate::{Budget, Findings, Part};

pub(crate) const PART: Part = Part {
    name: "histories",
    about: "every structure by 2 to 4 clients on memory that breaks, memory that evicts and a folder, held against its guarantees",
    run,
};

/// Rounds on a folder are some hundred times slower.
const ON_DISK_ONE_IN: u64 = 64;

/// What a round runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ground {
    /// Memory, and nothing breaks: only clients that meet.
    Calm,
    /// Memory, by clients whose connections break.
    Faulty,
    /// Memory that loses items, one here and one there.
    Stolen,
    /// Both.
    Worst,
    /// Memory without room.
    Evicting,
    /// A folder, by clients whose connections break.
    Folder,
}

fn run(budget: Budget) -> Findings {
    let mut findings = Findings::default();
    for seed in budget.seeds() {
        round(seed, &mut findings);
    }
    findings
}

/// What a round comes to; which job it draws is the seed's remainder, so that every job has its turn.
fn round(seed: u64, findings: &mut Findings) {
    round_of(seed, &JOBS[(seed % JOBS.len() as u64) as usize], findings);
}

fn round_of(seed: u64, job: &Job, findings: &mut Findings) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let ground = match rng.u64(..ON_DISK_ONE_IN) {
        0 => Ground::Folder,
        1..=8 => Ground::Evicting,
        9..=24 => Ground::Stolen,
        25..=32 => Ground::Worst,
        33..=38 => Ground::Calm,
        _ => Ground::Faulty,
    };
    let (verdict, faults) = play(job, ground, seed, &mut rng);
    findings.verdict(seed, job.name, &format!("{ground:?}"), verdict);
    for (fault, times) in faults {
        findings.count(&format!("faults: {fault}"), times);
    }
}

/// Faults by kind, and how often.
type Faults = Vec<(&'static str, u64)>;

fn play(job: &Job, ground: Ground, seed: u64, rng: &mut fastrand::Rng) -> (Verdict, Faults) {
    let run = Run { seed, ops: if ground == Ground::Folder { rng.usize(20..80) } else { rng.usize(40..400) } };
    if ground != Ground::Folder {
        return virtual_time::run(seed, async {
            let clock = VirtualClock::shared();
            let caused = Arc::new(Caused::default());
            let memory = Arc::new(memory(ground, clock.clone()));
            let thief =
                Thief::new(memory, rng.fork(), caused.clone(), steals_one_in(ground), ground == Ground::Evicting);
            let thief = Arc::new(thief);
            let is_faulty = matches!(ground, Ground::Faulty | Ground::Worst);
            let (verdict, mut faults) = on(job, thief.clone(), run, is_faulty, caused, clock, rng).await;
            faults.extend(thief.faults());
            (verdict, faults)
        });
    }
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let store = larder_store_durable::Options::new(folder.path()).open().expect("a durable store in a new folder");
        on(job, Arc::new(store), run, true, Arc::new(Caused::default()), SystemClock::shared(), rng).await
    })
}

fn memory(ground: Ground, clock: ClockRef) -> MemoryStore {
    let builder = MemoryStore::builder().clock(clock).shards(4);
    let builder = match ground {
        Ground::Evicting => builder.bytes_max(64 << 10).evict(true),
        // It says that it may evict, and has room: what goes is the thief's choice.
        Ground::Stolen | Ground::Worst => builder.bytes_max(64 << 20).evict(true),
        Ground::Calm | Ground::Faulty | Ground::Folder => builder,
    };
    builder.build().expect("limits that hold")
}

fn steals_one_in(ground: Ground) -> Option<u64> {
    matches!(ground, Ground::Stolen | Ground::Worst).then_some(150)
}

/// Runs a job by 2 to 4 clients, each behind a connection that breaks in a way of its own.
async fn on(
    job: &Job,
    store: StoreRef,
    run: Run,
    is_faulty: bool,
    caused: Arc<Caused>,
    clock: ClockRef,
    rng: &mut fastrand::Rng,
) -> (Verdict, Faults) {
    let kinds: [(&'static str, Fault); 5] = [
        ("request not sent", Fault::NotSent),
        ("request lost", Fault::LostRequest),
        ("cut between two ops", Fault::Cut),
        ("reply lost", Fault::LostReply),
        ("delivered late", Fault::Late(rng.u64(1..30))),
    ];
    let mut connections = Vec::new();
    for _ in 0..rng.usize(2..=4) {
        let (name, fault) = kinds[rng.usize(..kinds.len())];
        let faulty = Faulty::new(Arc::new(Meeting::new(store.clone(), rng.fork())));
        if is_faulty {
            faulty.fail_randomly(rng.u64(..), [12, 30, 100][rng.usize(..3)], &[fault]);
        }
        connections.push((name, fault, faulty));
    }
    let all: Vec<Faulty> = connections.iter().map(|(.., faulty)| faulty.clone()).collect();
    // What a connection gives up that delivers late arrives; what others give up has arrived by then, or never does.
    let client = |(_, fault, faulty): &(_, Fault, Faulty)| match fault {
        Fault::Late(_) => Arc::new(Watched::new(faulty.shared(), caused.clone())) as StoreRef,
        _ => Arc::new(Watched::on_time(faulty.shared(), caused.clone())),
    };
    let arena = Arena {
        clients: connections.iter().map(client).collect(),
        quiet: store,
        caused: caused.clone(),
        calm: Arc::new(move || {
            let all = all.clone();
            Box::pin(async move {
                for faulty in &all {
                    faulty.heal();
                    faulty.deliver_late().await;
                }
            })
        }),
    };
    let verdict = by_clocks(move || clock.clone(), (job.run)(arena, run)).await;
    (verdict, connections.iter().map(|(name, _, faulty)| (*name, faulty.injected())).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Rounds in the normal tests: each job some ten times.
    const ROUNDS: u64 = 200;

    #[test]
    fn no_history_breaks_a_guarantee() {
        let mut findings = Findings::default();
        for seed in 0..ROUNDS {
            round(seed, &mut findings);
        }
        assert_eq!(findings.violations, 0, "{:#?}", findings.told);
        assert!(findings.counts["operations checked"] > ROUNDS * 50, "{:?}", findings.counts);
        assert!(findings.counts["ambiguous operations"] > 100, "{:?}", findings.counts);
        assert!(findings.counts["losses told"] > 10, "{:?}", findings.counts);
    }

    /// Seeds that found something once, and in which job: in the product, or in a checker. They do as long as what is drawn stays as it is; each has a test of its own beside that (the lock's: `lock/faults.rs` of the structures).
    const FOUND: [(u64, &str); 2] = [(1_370_030_363, "visitors"), (1_410_022_224, "lock")];

    #[test]
    fn what_broke_a_guarantee_once_does_so_no_more() {
        let mut findings = Findings::default();
        for (seed, name) in FOUND {
            let job = JOBS.iter().find(|job| job.name == name).expect("a job that there is");
            round_of(seed, job, &mut findings);
        }
        assert_eq!(findings.violations, 0, "{:#?}", findings.told);
    }

    #[test]
    fn a_round_can_be_had_again() {
        let of = |seed| run(Budget::new(seed, Duration::ZERO));
        assert_eq!(of(2).counts.get("operations checked"), of(2).counts.get("operations checked"));
    }
}
