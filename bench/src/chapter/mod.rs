//! The chapter on memory: its three jobs at its sizes, on every store, laid out as one would at first, as the chapter has it, and by the
//! structures; what they take, what an op costs, and what reads them whole.

mod ground;
mod locations;
mod lookup;
mod reshard;
mod visitors;

use tokio::runtime::Runtime;

use crate::contest::{self, Contest, Contestant, Goal, Limit, Unit};
use crate::drive::{Step, drive_tasks};
use crate::machine::Machine;
use crate::memcached::runtime;
use crate::progress::Progress;
use crate::report::{Findings, Section};
use crate::{Plan, Result};
pub(crate) use ground::hold;
use ground::{Ground, Held, On};

/// As anybody would at first.
const PLAIN: &str = "plain";
/// As the chapter has it, on Redis.
const CHAPTER: &str = "the chapter's";
const LARDER: &str = "larder";
/// The visitors and users of the chapter; its rows, and the members that are resharded, are shares of it.
pub(crate) const ELEMENTS: u64 = 10_000_000;
const ROWS: u64 = 370_000;
/// How many times of what is live may be resident.
const RESIDENT_MAX: f64 = 1.25;
/// More rounds than this tell nothing more of ops that take a round trip.
const ROUNDS_MAX: usize = 11;

/// What all jobs share.
struct Bench<'a> {
    runtime: Runtime,
    plan: &'a Plan,
    progress: &'a Progress,
}

/// How large the jobs are.
#[derive(Clone, Copy)]
struct Sizes {
    /// Visitors, and users.
    elements: u64,
    rows: u64,
}

impl Sizes {
    fn of(plan: &Plan) -> Sizes {
        let elements = plan.elements;
        Sizes { elements, rows: (elements * ROWS / ELEMENTS).max(1_000) }
    }

    /// Goals are those of the chapter's sizes: what is small is mostly the store itself.
    fn are_whole(self) -> bool {
        self.elements >= ELEMENTS
    }

    fn goal(self, limit: Limit) -> Option<Limit> {
        self.are_whole().then_some(limit)
    }
}

/// A layout that stands, and what it took to.
struct Laid<W> {
    label: &'static str,
    detail: String,
    held: Held,
    /// Elements a second.
    rate: f64,
    work: W,
    ground: Ground,
}

/// A job on a store: its contests are pushed as they are held.
type Job = fn(&Bench<'_>, On, Sizes, &mut Vec<Contest>) -> Result<()>;

/// Hands on what a job found as soon as it is over, so that a run of an hour that ends early leaves what it has; a job that fails does not keep the others from being held.
pub(crate) fn measure(plan: &Plan, progress: &Progress, keep: &mut dyn FnMut(Findings) -> Result<()>) -> Result<()> {
    let bench = Bench { runtime: runtime()?, plan, progress };
    let sizes = Sizes::of(plan);
    let (how, machine) = (how(&bench, sizes), Machine::read());
    let at_rest: [Job; 3] = [lookup::hold_all, visitors::hold_all, locations::hold_all];
    let jobs = On::ALL.into_iter().flat_map(|on| at_rest.map(|job| (job, on)));
    let reshardings: [Job; 3] = [reshard::of_a_set, reshard::of_a_hash, reshard::of_a_sorted_set];
    let resharding = [On::Memcached, On::Redis].into_iter().flat_map(|on| reshardings.map(|job| (job, on)));
    let mut failed: Vec<String> = Vec::new();
    for (job, on) in jobs.chain(resharding) {
        let mut contests = Vec::new();
        if let Err(error) = job(&bench, on, sizes, &mut contests) {
            progress.note(&format!("failed: {error}"));
            failed.push(error.to_string());
        }
        let (how, machine) = (how.clone(), machine.clone());
        keep(Findings { section: Section::Chapter, how, machine, contests, pools: Vec::new() })?;
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ").into()) }
}

fn how(bench: &Bench<'_>, sizes: Sizes) -> String {
    let plan = bench.plan;
    format!(
        "{} rows, {} visitors, {} users; memcached {:?} and {:?} without persistence, each layout on a server of its own that was in use; loaded once, in batches. Live: what the \
         server says it uses, of memcached the chunks in use, of a folder its files. Resident: by how much the process grew; of the store in the process, what one grows by that \
         loads a copy of its items; of a folder, what one grows by that opens a copy of it and reads all of it once. Ops: one after the other, {} rounds of {:?} each.",
        sizes.rows,
        sizes.elements,
        sizes.elements,
        plan.server,
        plan.redis,
        bench.rounds(),
        plan.window
    )
}

impl Bench<'_> {
    fn rounds(&self) -> usize {
        self.plan.rounds.min(ROUNDS_MAX)
    }

    /// Whether something of a job on a store is asked for: `part` of `--only` may name either, or a contest of it.
    fn wants(&self, job: &str) -> bool {
        self.plan.only.as_ref().is_none_or(|part| job.contains(part.as_str()) || part.starts_with(job))
    }

    /// Lays something out on a store of its own.
    fn lay<W>(
        &self,
        on: On,
        (label, detail): (&'static str, &str),
        limit: Option<(&str, &str)>,
        elements: u64,
        load: impl AsyncFnOnce(&Ground) -> Result<(W, Held)>,
    ) -> Result<Laid<W>> {
        self.progress.note(&format!("{label} {detail}, {}: loading {elements}", on.name()));
        self.runtime.block_on(async {
            let ground = Ground::start(on, self.plan, limit).await?;
            let from = std::time::Instant::now();
            let (work, before) = load(&ground).await?;
            let rate = elements as f64 / from.elapsed().as_secs_f64();
            let held = ground.since(before).await?;
            Ok(Laid { label, detail: detail.to_owned(), held, rate, work, ground })
        })
    }

    /// What an op takes, one after the other.
    fn ops<W: Step + Clone>(&self, name: &str, laid: &[Laid<W>], goals: &[Goal]) -> Result<Contest> {
        let contestants = laid.iter().map(|laid| {
            let mut steps = vec![laid.work.clone()];
            let run = move || Ok(1e6 / drive_tasks(&self.runtime, &mut steps, self.plan.window)?);
            Contestant::new(laid.label, laid.detail.clone(), run)
        });
        contest::hold(self.progress, name, Unit::MicrosPerOp, self.rounds(), contestants.collect(), goals)
    }

    /// What layouts take, an element: live, and resident. `most` is the goal of ours at full size, live, and how many times of that may be resident.
    fn memory<W>(
        &self,
        name: &str,
        elements: u64,
        laid: &[Laid<W>],
        most: (Option<f64>, Option<f64>),
        sizes: Sizes,
    ) -> Contest {
        let each = |bytes: u64| bytes as f64 / elements as f64;
        let mut figures = Vec::new();
        for laid in laid {
            figures.push((laid.label, laid.detail.clone(), each(laid.held.live)));
            figures.extend(laid.held.resident.map(|bytes| (resident(laid.label), String::new(), each(bytes))));
        }
        let limit = |most: Option<f64>| most.and_then(|most| sizes.goal(Limit::AtMost(most)));
        let live = Goal { ours: LARDER, against: Vec::new(), limit: limit(most.0) };
        let resident = Goal { ours: resident(LARDER), against: vec![LARDER], limit: limit(most.1) };
        let mut goals = vec![live, resident];
        if laid.len() > 1 {
            goals.push(Goal { ours: LARDER, against: vec![CHAPTER, PLAIN], limit: None });
        }
        contest::once(self.progress, name, Unit::ElementBytes, figures, &goals)
    }

    /// How fast layouts were loaded.
    fn loading<W>(&self, name: &str, laid: &[Laid<W>]) -> Contest {
        let figures = laid.iter().map(|laid| (laid.label, laid.detail.clone(), laid.rate));
        contest::once(self.progress, name, Unit::OpsPerSecond, figures.collect(), &[])
    }
}

/// The column of what is resident.
fn resident(label: &'static str) -> &'static str {
    match label {
        PLAIN => "plain, resident",
        CHAPTER => "the chapter's, resident",
        _ => "larder, resident",
    }
}
