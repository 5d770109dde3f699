//! Puts events and follows them: every event that a worker put must be told once, by a fetch and by a tail.

use std::collections::HashMap;
use std::sync::Arc;

use larder::EventLog;
use larder::log::{Cursor, Event};

use super::stage::{Driven, Stage, Turns};
use super::table::{Row, Verdict};
use crate::exit::Failure;

/// How far back the events of the workers reach, so that they fall into several chunks.
const SPREAD_MS: u64 = 4 * 60 * 60 * 1000;

/// How many events a worker put.
type Account = (usize, u64);

pub(super) async fn drive(stage: &Stage) -> Result<Row, Failure> {
    let logs = stage
        .handles(async |store| EventLog::options().timeout(stage.timeout).open_or_create(store, &stage.name).await)
        .await?;
    let driven = stage.drive(logs.clone(), work).await;
    let (verdict, elements) = match &driven {
        Ok(driven) => (check(stage, &logs, driven).await?, driven.accounts.iter().map(|(_, events)| events).sum()),
        Err(_) => (Verdict::Right, 0),
    };
    stage.row(driven, elements, verdict).await
}

async fn work(worker: usize, log: EventLog, turns: Arc<Turns>) -> larder::Result<Account> {
    let mut events = 0;
    while turns.take() {
        let time_ms = log.now_ms() - fastrand::u64(..SPREAD_MS);
        log.put_at(time_ms, event(worker, events)).await?;
        events += 1;
        turns.done();
    }
    Ok((worker, events))
}

/// An event that is no text.
fn event(worker: usize, number: u64) -> Vec<u8> {
    let mut bytes = vec![0xff, b'\n'];
    bytes.extend_from_slice(&worker.to_le_bytes()[..2]);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

async fn check(stage: &Stage, logs: &[EventLog], driven: &Driven<Account>) -> Result<Verdict, Failure> {
    let (Some(log), Some(store)) = (logs.first(), stage.stores.last()) else { return Ok(Verdict::Right) };
    if stage.is_sabotaged {
        log.put("behind its back").await?;
    }
    let fresh = EventLog::options().timeout(stage.timeout).open(store, &stage.name).await?;
    let fetched = fresh.fetch(..).await?.whole()?;
    let mut tail = log.tail(Cursor::default())?;
    let mut told = tail.poll().await?.whole()?;
    // A look reads so much; what is left, the next one takes up.
    while tail.is_behind() {
        told.extend(tail.poll().await?.whole()?);
    }
    for (who, events) in [("a fetch", fetched), ("a tail", told)] {
        if let Some(wrong) = off(&events, &driven.accounts) {
            return Ok(Verdict::Off(format!("{who} {wrong}")));
        }
    }
    Ok(Verdict::Right)
}

/// What is wrong with the events, if anything is.
fn off(events: &[Event], accounts: &[Account]) -> Option<String> {
    let mut times: HashMap<&[u8], usize> = HashMap::with_capacity(events.len());
    events.iter().for_each(|event| *times.entry(&event.bytes).or_default() += 1);
    let (mut missed, mut expected) = (0, 0);
    for (worker, count) in accounts {
        expected += count;
        missed += (0..*count).filter(|number| !times.contains_key(&event(*worker, *number)[..])).count();
    }
    let more = (events.len() as u64 + missed as u64).saturating_sub(expected);
    let is_ordered = events.is_sorted_by_key(|event| event.time_ms);
    match (missed, more, is_ordered) {
        (0, 0, true) => None,
        (0, 0, false) => Some("tells events out of order".to_owned()),
        _ => Some(format!("tells {more} events too many, and misses {missed}")),
    }
}
