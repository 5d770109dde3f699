//! Adds to a counter, up and down; the value must be the sum of what each worker remembers.

use std::sync::Arc;

use larder::Counter;

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::args::Subject;
use crate::exit::Failure;

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let mut options = Counter::options().timeout(stage.timeout);
    if stage.subject == Subject::FastCounter {
        options = options.fast();
    }
    let counters = stage.handles(async |store| options.open_or_create(store, &stage.name).await).await?;
    let driven = stage.drive(counters.clone(), work).await;
    let verdict = match &driven {
        Ok(driven) => check(stage, &counters, driven).await?,
        Err(_) => Verdict::Right,
    };
    stage.row(driven, 1, verdict).await
}

/// Adds until the turns are over; what it added in all.
async fn work(_worker: usize, counter: Counter, turns: Arc<Turns>) -> larder::Result<i128> {
    let mut added = 0;
    while turns.take() {
        let n = fastrand::i64(-3..=9);
        counter.add(n).await?;
        added += i128::from(n);
        turns.done();
    }
    Ok(added)
}

/// The sum must be what a worker's handle reads, what a fresh one reads, and what a reset takes away.
async fn check(stage: &Stage, counters: &[Counter], driven: &Driven<i128>) -> Result<Verdict, Failure> {
    let (Some(counter), Some(store)) = (counters.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        counter.add(1).await?;
    }
    let expected: i128 = driven.accounts.iter().sum();
    let fresh = Counter::options().timeout(stage.timeout).open(store, &stage.name).await?;
    let reads = [
        ("a worker reads", counter.get().await?, expected),
        ("a fresh handle reads", fresh.get().await?, expected),
        ("a reset takes away", fresh.reset().await?, expected),
        ("after a reset a worker reads", counter.get().await?, 0),
    ];
    let off = reads.iter().find(|(_, found, expected)| found != expected);
    Ok(off.map_or(Verdict::Right, |(who, found, expected)| Verdict::Off(format!("{who} {found}, not {expected}"))))
}
