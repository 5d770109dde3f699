//! Unique visitors, in each precision: clients add ids that others add, too, ask for them, and count.

use std::time::Duration;

use larder_core::{Error, ErrorKind, Result};
use larder_structures::{Novelty, Precision, UniqueVisitors};

use super::drive::{self, Excuses, opener};
use super::maps::{Apply, MapJob, Mix, map, unsupported};
use crate::history::check::estimate;
use crate::history::check::map::{MapOp, MapTold};
use crate::history::recorder::Call;
use crate::history::{Arena, Boxed, Run, Verdict, clock};

/// Longer than any run.
const PERIOD: Duration = Duration::from_secs(100 * 24 * 60 * 60);
const EXPECTED: u64 = 64;
/// As few bits as there may be: of so few ids no two meet even so, which a test looks at.
const NEAR: Precision = Precision::NearExact { bits: 24 };

/// One period, told apart to the last visitor.
pub(super) fn exact(arena: Arena, run: Run) -> Boxed<Verdict> {
    members("unique visitors", Precision::Exact, arena, run)
}

/// The same by parts of hashes; on servers with sets of integers, in those.
pub(super) fn compact(arena: Arena, run: Run) -> Boxed<Verdict> {
    members("unique visitors, compact", Precision::Compact, arena, run)
}

/// By few bits of a hash; the count is what is stored and what is taken to be missing, which is nobody of so few.
pub(super) fn near_exact(arena: Arena, run: Run) -> Boxed<Verdict> {
    members("unique visitors, near-exact", NEAR, arena, run)
}

fn members(job: &'static str, precision: Precision, arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let apply: Apply<UniqueVisitors> = |visitors, op| {
            Box::pin(async move {
                let period = visitors.current()?;
                match op {
                    MapOp::Put(key, _) => Ok(match first(visitors.add_in(period, [key]).await?) {
                        Novelty::New => MapTold::WasNew(true),
                        Novelty::Known => MapTold::WasNew(false),
                        Novelty::Unknown => MapTold::Done,
                    }),
                    MapOp::Get(key) => match first(visitors.are_new_in(period, [key]).await?) {
                        Novelty::New => Ok(MapTold::Value(None)),
                        Novelty::Known => Ok(MapTold::Value(Some(1))),
                        Novelty::Unknown => Ok(MapTold::Done),
                    },
                    MapOp::Count => Ok(MapTold::Count(visitors.count_in(period).await?.visitors)),
                    _ => unsupported(),
                }
            })
        };
        let open = opener!(options(precision), drive::name(job, run));
        let mix = Mix { put: 10, get: 6, count: 1, ..Mix::default() };
        map(arena, run, MapJob { name: job, open, mix, apply, also: one_way }).await
    })
}

/// A sketch, which tells of nobody whether he is new, and counts to a percent.
pub(super) fn sketch(arena: Arena, run: Run) -> Boxed<Verdict> {
    Box::pin(async move {
        let apply: Apply<UniqueVisitors> = |visitors, op| {
            Box::pin(async move {
                let period = visitors.current()?;
                match op {
                    MapOp::Put(key, _) => cannot_tell(first(visitors.add_in(period, [key]).await?)),
                    MapOp::Get(key) => cannot_tell(first(visitors.are_new_in(period, [key]).await?)),
                    MapOp::Count => Ok(MapTold::Estimate(visitors.count_in(period).await?.visitors)),
                    _ => unsupported(),
                }
            })
        };
        let job = "unique visitors, sketch";
        let open = opener!(options(Precision::SKETCH), drive::name(job, run));
        // So many that a percent of them is somebody, and each is added twice or so.
        let keys = Some((run.ops / 3).max(2) as u64);
        let mix = Mix { put: 10, get: 1, count: 3, keys, ..Mix::default() };
        let also = |calls: &[Call<MapOp, MapTold>], excuses: &Excuses| {
            let mut bad = one_way(calls, excuses);
            bad.extend(if excuses.set_back { Vec::new() } else { estimate::check(calls, STANDARD_ERROR) });
            bad
        };
        map(arena, run, MapJob { name: job, open, mix, apply, also }).await
    })
}

/// "The count is off by 1.1 %": as a standard deviation.
const STANDARD_ERROR: f64 = 0.011;

fn options(precision: Precision) -> larder_structures::unique::UniqueVisitorsOptions {
    UniqueVisitors::options().period(PERIOD).precision(precision).expected(EXPECTED).clock(clock())
}

fn first(told: Vec<Novelty>) -> Novelty {
    told.first().copied().unwrap_or(Novelty::Unknown)
}

fn cannot_tell(told: Novelty) -> Result<MapTold> {
    match told {
        Novelty::Unknown => Ok(MapTold::Done),
        _ => Err(Error::new(ErrorKind::Corrupt, format!("a sketch told of a visitor that it was {}", told.as_str()))),
    }
}

fn one_way(calls: &[Call<MapOp, MapTold>], excuses: &Excuses) -> Vec<String> {
    if excuses.set_back { Vec::new() } else { estimate::one_way(calls) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use larder_core::StoreRef;
    use larder_store_memory::MemoryStore;

    use super::*;

    /// More than a run has, on a cluster too.
    const IDS: u64 = 1_000;

    #[tokio::test]
    async fn no_two_ids_of_a_run_meet_in_the_bits_that_are_kept() {
        let store: StoreRef = Arc::new(MemoryStore::builder().build().unwrap());
        for precision in [Precision::Compact, NEAR] {
            let visitors = options(precision).open_or_create(&store, precision.as_str()).await.unwrap();
            let told = visitors.add(0..IDS).await.unwrap();
            assert!(told.iter().all(|novelty| *novelty == Novelty::New), "{precision:?}");
            assert_eq!(visitors.count().await.unwrap().visitors, IDS, "{precision:?}");
        }
    }
}
