//! Different visitors of two days, on a clock of the demo's own: each is told once to be new, and the count is theirs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use larder::{ManualClock, Novelty, UniqueVisitors, UniqueVisitorsOptions};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

const DAY: Duration = Duration::from_secs(86_400);
/// How many visitors the workers draw from. They share them, so that many are added by several.
const VISITORS: u64 = 1 << 20;
/// How many come at a time.
const IDS: usize = 20;
/// What the day is made for.
const EXPECTED: u64 = 20_000;

/// What a worker did: whom it added, and how many it was told to be new.
type Account = (BTreeSet<u64>, u64);

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let clock = Arc::new(ManualClock::at(DAY * 20_000));
    let options = UniqueVisitors::options().expected(EXPECTED).timeout(stage.timeout).clock(clock.clone());
    let handles = stage.handles(async |store| options.open_or_create(store, &stage.name).await).await?;
    let driven = stage.drive(handles.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => (check(stage, &handles, &options, &clock, driven).await?, distinct(driven)),
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements, verdict).await
}

/// Adds some at a time until the turns are over.
async fn work(_worker: usize, site: UniqueVisitors, turns: Arc<Turns>) -> larder::Result<Account> {
    let (mut added, mut new) = (BTreeSet::new(), 0);
    while turns.take() {
        let ids: Vec<u64> = (0..IDS).map(|_| fastrand::u64(..VISITORS)).collect();
        let told = site.add(ids.iter().copied()).await?;
        new += told.iter().filter(|novelty| **novelty == Novelty::New).count() as u64;
        added.extend(ids);
        turns.done();
    }
    Ok((added, new))
}

fn distinct(driven: &Driven<Account>) -> u64 {
    driven.accounts.iter().flat_map(|(added, _)| added).collect::<BTreeSet<_>>().len() as u64
}

/// The count must be what was added, and as many must have been told to be new, for a worker and for a fresh handle; the next day begins with nobody.
async fn check(
    stage: &Stage,
    handles: &[UniqueVisitors],
    options: &UniqueVisitorsOptions,
    clock: &ManualClock,
    driven: &Driven<Account>,
) -> Result<Verdict, Failure> {
    let (Some(site), Some(store)) = (handles.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        site.add([u64::MAX]).await?;
    }
    let expected = distinct(driven);
    let fresh = options.open(store, &stage.name).await?;
    let today = site.current()?;
    let reads = [
        ("a worker counts", site.count().await?.visitors, expected),
        ("a fresh handle counts", fresh.count().await?.visitors, expected),
        ("the workers were told to be new", driven.accounts.iter().map(|(_, new)| new).sum(), expected),
    ];
    clock.advance(DAY);
    let next = [
        ("the next day begins with", fresh.count().await?.visitors, 0),
        (
            "of both days a union counts",
            UniqueVisitors::union([(&fresh, today), (&fresh, today + 1)]).await?.visitors,
            expected,
        ),
    ];
    let off = reads.iter().chain(&next).find(|(_, found, expected)| found != expected);
    Ok(off.map_or(Verdict::Right, |(who, found, expected)| Verdict::Off(format!("{who} {found}, not {expected}"))))
}
