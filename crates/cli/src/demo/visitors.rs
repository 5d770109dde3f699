//! Hits of both kinds over two windows, on a clock of the demo's own; each window's figure must be what the workers did.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use larder::{ManualClock, Visitors, VisitorsOptions};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

const PERIOD: Duration = Duration::from_secs(300);
/// How many visitors the workers draw from. They share them, so that most hits of a visitor are repeats of another worker's.
const VISITORS: u16 = 256;

/// What a worker did: hits that it knew to be new, and visitors that it named.
type Account = (u64, BTreeSet<u16>);

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let clock = Arc::new(ManualClock::at(Duration::from_secs(1_700_000_100)));
    let options = Visitors::options().period(PERIOD).timeout(stage.timeout).clock(clock.clone());
    let handles = stage.handles(async |store| options.open_or_create(store, &stage.name).await).await?;
    let driven = stage.drive(handles.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => (check(stage, &handles, &options, &clock, driven).await?, figure(driven)),
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements, verdict).await
}

/// Hits until the turns are over.
async fn work(_worker: usize, visitors: Visitors, turns: Arc<Turns>) -> larder::Result<Account> {
    let (mut hits, mut named) = (0, BTreeSet::new());
    while turns.take() {
        if fastrand::bool() {
            let n = fastrand::u64(1..=3);
            visitors.hit_many(n).await?;
            hits += n;
        } else {
            let visitor = fastrand::u16(..VISITORS);
            visitors.hit_visitor(visitor.to_le_bytes()).await?;
            named.insert(visitor);
        }
        turns.done();
    }
    Ok((hits, named))
}

/// All hits, and each visitor that anybody named once.
fn figure(driven: &Driven<Account>) -> u64 {
    let named: BTreeSet<u16> = driven.accounts.iter().flat_map(|(_, named)| named).copied().collect();
    driven.accounts.iter().map(|(hits, _)| hits).sum::<u64>() + named.len() as u64
}

/// The window's figure must be what was done, while it is filled, when it is complete, and for a fresh handle; half of it half a
/// period later.
async fn check(
    stage: &Stage,
    handles: &[Visitors],
    options: &VisitorsOptions,
    clock: &ManualClock,
    driven: &Driven<Account>,
) -> Result<Verdict, Failure> {
    let (Some(visitors), Some(store)) = (handles.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        visitors.hit().await?;
    }
    let expected = figure(driven);
    let fresh = options.open(store, &stage.name).await?;
    let so_far = visitors.current().await?;
    clock.advance(PERIOD + PERIOD / 2);
    let reads = [
        ("so far a worker reads", so_far, expected),
        ("of the complete window a worker reads", visitors.get().await?, expected),
        ("of the complete window a fresh handle reads", fresh.get().await?, expected),
        ("half a period later the interpolated figure is", fresh.interpolated().await?, expected.div_ceil(2)),
        ("of the next window a fresh handle reads", fresh.current().await?, 0),
    ];
    let off = reads.iter().find(|(_, found, expected)| found != expected);
    Ok(off.map_or(Verdict::Right, |(who, found, expected)| Verdict::Off(format!("{who} {found}, not {expected}"))))
}
