//! Part `nemesis`: the histories of every structure, played on real servers while their networks fail and things happen to them.

mod clocks;
mod stages;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use clocks::Clocks;
use fastrand::Rng;
use larder::Kind;
use larder_testkit::history::{COPIES, JOBS, Job, Run, by_clocks};
use larder_testkit::nemesis::Done;
use larder_testkit::proxy::Counts;
use larder_testkit::redis::RedisVersion;
use stages::{STAGES, Scene, Stage};

use crate::simulation::mixed;
use crate::{Budget, Findings, Part};

/// Rounds at one time: they wait most of the time, for leases, timeouts and servers that stand still.
const ROUNDS_AT_ONCE: usize = 4;
/// Of so many rounds one is played on a cluster, which takes 2 s to start and as long to notice that a primary is gone.
const CLUSTER_EVERY: u64 = 20;
/// Each as often as it stands here: only the first can be cut off from its cluster ([`Partitioned::grave_of`](larder_testkit::nemesis::Partitioned::grave_of)).
const CLUSTERS: [RedisVersion; 4] =
    [RedisVersion::Redis7, RedisVersion::Redis7, RedisVersion::Redis8, RedisVersion::Valkey];
/// Operations of a round.
const OPS: std::ops::Range<usize> = 100..600;
/// So many times more on a cluster: it has no network that fails before it, and answers a round's in some ms, before anything could happen to it.
const OPS_ON_CLUSTERS: usize = 10;
/// Within this time of a round its deeds are done.
const DEEDS_WITHIN_MS: u64 = 400;
/// And on a cluster.
const DEEDS_ON_CLUSTERS_WITHIN_MS: u64 = 100;
/// A round that takes longer hangs.
const ROUND_S_MAX: u64 = 180;

/// The part.
pub(crate) const PART: Part = Part {
    name: "nemesis",
    about: "histories on real servers, whose networks fail, and that are killed, stopped, flushed, filled and replaced",
    run,
};

/// Plays rounds until the time is over.
fn run(budget: Budget) -> Findings {
    budget.side_by_side(2, ROUNDS_AT_ONCE, round)
}

/// What is drawn from a round's seed, each from numbers of its own: drawn from the same, what happens on a stage would hang on how rare that is.
#[derive(Clone, Copy)]
enum Drawn {
    Cast = 1,
    Stage,
    Deeds,
    Clocks,
    Networks,
}

impl Drawn {
    fn of(self, seed: u64) -> u64 {
        mixed(seed ^ self as u64)
    }
}

/// What a round plays, and where.
fn cast(seed: u64) -> (&'static Job, Stage, Run) {
    let mut rng = Rng::with_seed(Drawn::Cast.of(seed));
    let mut job = &JOBS[(seed % JOBS.len() as u64) as usize];
    let mut stage = match rng.u64(..CLUSTER_EVERY) {
        0 => Stage::Cluster(CLUSTERS[rng.usize(..CLUSTERS.len())]),
        _ => STAGES[rng.usize(..STAGES.len())],
    };
    if stage == Stage::Several && job.kind == Kind::Counter && rng.bool() {
        (job, stage) = (&COPIES, Stage::SparingOthers);
    }
    let many = if matches!(stage, Stage::Cluster(_)) { OPS_ON_CLUSTERS } else { 1 };
    (job, stage, Run { seed, ops: rng.usize(OPS) * many })
}

async fn round(seed: u64) -> Findings {
    let (job, stage, run) = cast(seed);
    let mut found = Findings::default();
    let within_ms = if matches!(stage, Stage::Cluster(_)) { DEEDS_ON_CLUSTERS_WITHIN_MS } else { DEEDS_WITHIN_MS };
    let Scene { arena, trouble, proxies } = stages::set(stage, job.kind, seed, within_ms).await;
    let clocks = Arc::new(Clocks::of(Drawn::Clocks.of(seed), job, arena.caused.clone()));
    let playing = by_clocks(clocks.giving(), (job.run)(arena, run));
    match within(playing).await {
        Some(verdict) => {
            // The others make do with what every store has.
            let native = if stage.is_redis() { verdict.operations } else { 0 };
            found.count("operations checked on Redis, by its own commands", native);
            found.verdict(seed, job.name, &format!("on {stage:?}"), verdict);
        }
        None => found.violation(seed, &format!("{}: not over after {ROUND_S_MAX} s (on {stage:?})", job.name)),
    }
    found.count("histories", 1);
    found.count("faults: clock set off by minutes", clocks.jumps());
    count_deeds(&mut found, stage, &trouble.done());
    for proxy in &proxies {
        count_network(&mut found, &proxy.counts());
    }
    // Ends the server and joins a thread.
    let ended = tokio::task::spawn_blocking(move || drop((trouble, proxies)));
    ended.await.expect("an end");
    found
}

async fn within<T>(playing: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_secs(ROUND_S_MAX), playing).await.ok()
}

/// Counts what was done, and as 0 what can be on any stage: the page tells what never came.
fn count_deeds(found: &mut Findings, stage: Stage, done: &Done) {
    for &other in stages::STAGES.iter().chain(&CLUSTERS.map(Stage::Cluster)) {
        for &deed in other.deeds() {
            found.count(&other.fault(deed), 0);
        }
    }
    for (&deed, &times) in done {
        found.count(&stage.fault(deed), times);
    }
}

fn count_network(found: &mut Findings, counts: &Counts) {
    for (what, times) in [
        ("request lost", counts.lost_requests),
        ("reply lost", counts.lost_replies),
        ("request delivered after its client gave up", counts.late_deliveries),
        ("request cut", counts.request_cuts),
        ("reply cut", counts.reply_cuts),
        ("connection half open", counts.half_opens),
        ("request delivered twice", counts.duplicates),
        ("two connections' requests in the other order", counts.reorders),
        ("request delayed", counts.delays),
    ] {
        found.count(&format!("faults: {what}"), times);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use larder_testkit::nemesis::{Deed, Partitioned, draw};

    use super::*;

    #[test]
    fn a_deed_that_never_came_is_counted_as_none_and_a_clusters_apart() {
        let mut found = Findings::default();
        count_deeds(&mut found, Stage::Cluster(RedisVersion::Redis8), &Done::from([(Deed::Kill, 2)]));
        count_deeds(&mut found, Stage::Full, &Done::from([(Deed::Fill, 1)]));
        let of = |what: &str| found.counts.get(&format!("faults: {what}")).copied();
        assert_eq!(of("server killed (kill -9)"), Some(0));
        assert_eq!(of("server killed (kill -9), in a cluster"), Some(2));
        assert_eq!(
            of("primary cut off from its cluster, and not from clients, in a cluster"),
            None,
            "it says so itself"
        );
        assert_eq!(of("primary cut off from its cluster, and not from clients"), Some(0));
        assert_eq!(
            (of("memory filled by others: it refuses"), of("memory filled by others: it evicts")),
            (Some(1), Some(0))
        );
    }

    #[test]
    fn every_deed_befalls_a_cluster_however_rare_that_is() {
        let (mut plans, mut due) = (Vec::new(), BTreeSet::new());
        for (seed, stage) in (0..8_000).map(|seed| (seed, cast(seed).1)) {
            let Stage::Cluster(version) = stage else { continue };
            let (mild, grave) = (Partitioned::MILD, Partitioned::grave_of(version));
            due.extend(mild.iter().chain(grave));
            plans.push(draw(Drawn::Deeds.of(seed), mild, grave, DEEDS_ON_CLUSTERS_WITHIN_MS));
        }
        let seen: BTreeSet<Deed> = plans.iter().flatten().map(|step| step.deed).collect();
        assert_eq!(seen, due);
        let several = plans.iter().filter(|plan| plan.len() > 1).count();
        assert!(plans.len() > 50 && several * 3 > plans.len(), "{several} of {} have more than one deed", plans.len());
    }
}
